/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/boss.h"

#include <stdio.h>
#include <string.h>

struct boss_run {
	struct cl_run *run;
	struct boss *b;
	struct rpc_server *server;
	struct log log;
	struct log_capture capture;
	uint8_t instance[16];
	struct rpc_req *held[BOSS_HELD]; /* not answered */
	struct timer tick;
	bool stopping;
};

static void no_line(struct log_capture *c, const char *line, size_t n)
{
	(void)c, (void)line, (void)n;
}

static void results(struct rpc_req *r, size_t n, enum err e, uint32_t *refusals)
{
	struct msg_result *res = calloc(n + 1, sizeof(*res));
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	for (size_t i = 0; i < n; i++)
		if (e && (!refusals || *refusals > 0)) {
			res[i].status = (uint32_t)e;
			res[i].text = BYTES_STR("the script says so");
			*(refusals ? refusals : &(uint32_t){ 0 }) -= refusals != NULL;
		}
	enc_results_rep(&b, &(struct msg_results_rep){ .items = { res, n } });
	rpc_reply(r, ERR_NONE, 0, buf_bytes(&b));
	buf_fini(&b);
	free(res);
}

static void keep_text(char *out, size_t size, struct bytes text)
{
	snprintf(out, size, "%.*s", (int)text.n, (const char *)text.p);
}

static void on_register(void *ctx, struct rpc_req *r)
{
	struct boss *b = ((struct boss_run *)ctx)->b;
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_register_req m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, &a, &why);
	SIM_CHECK(dec_register_req(&d, &m) == ERR_NONE, "REGISTER: %s", why.text);
	SIM_CHECK(r->peer->role == ROLE_HOLDER, "REGISTER by role %d", r->peer->role);
	if (b->n_register++ == 0)
		b->first_epoch = m.pool_epoch;
	b->ready = b->total = 0;
	for (size_t i = 0; i < m.segments.n; i++) {
		b->ready += m.segments.p[i].bytes;
		b->total += m.segments.p[i].bytes_total;
	}
	b->n_segments = m.segments.n;
	b->pool_epoch = m.pool_epoch;
	memcpy(b->instance, m.instance, 16);
	memcpy(b->pool, m.pool, 16);
	keep_text(b->holder, sizeof(b->holder), m.holder);
	keep_text(b->host, sizeof(b->host), m.host);
	if (m.addrs.n)
		keep_text(b->addr, sizeof(b->addr), m.addrs.p[0]);
	struct buf out = BUF_INIT(256);
	enc_register_rep(&out,
			 &(struct msg_register_rep){ .term = b->term, .adopted = b->adopted });
	rpc_reply(r, ERR_NONE, 0, buf_bytes(&out));
	buf_fini(&out);
	arena_fini(&a);
}

static void hold_back(struct boss_run *x, struct rpc_req *r)
{
	for (size_t i = 0; i < BOSS_HELD; i++)
		if (!x->held[i]) {
			x->held[i] = r;
			return;
		}
	rpc_reply(r, ERR_BUSY, 20, BYTES(NULL, 0));
}

static void let_go(struct boss_run *x, bool all)
{
	for (size_t i = 0; i < BOSS_HELD; i++)
		if (x->held[i] &&
		    (all || x->held[i]->deadline_ns <= loop_now_ns(&x->run->loop)))
			rpc_reply(TAKE(x->held[i]), ERR_TIMED_OUT, 0, BYTES(NULL, 0));
}

static void on_publish(void *ctx, struct rpc_req *r)
{
	struct boss_run *x = ctx;
	struct boss *b = x->b;
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_publish_req m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, &a, &why);
	SIM_CHECK(dec_publish_req(&d, &m) == ERR_NONE, "PUBLISH: %s", why.text);
	SIM_CHECK(m.under, "PUBLISH without under");
	b->n_publish++;
	b->under = *m.under;
	for (size_t i = 0; i < m.items.n && b->n_items < BOSS_MAX; i++)
		b->items[b->n_items++] = m.items.p[i];
	if (b->silent)
		hold_back(x, r);
	else if (b->publish_all)
		rpc_reply(r, b->publish_all, 0, BYTES(NULL, 0));
	else
		results(r, m.items.n, b->publish_err, &b->refusals);
	arena_fini(&a);
}

static void on_confirm(void *ctx, struct rpc_req *r)
{
	struct boss *b = ((struct boss_run *)ctx)->b;
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_confirm_req m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, &a, &why);
	SIM_CHECK(dec_confirm_req(&d, &m) == ERR_NONE, "CONFIRM: %s", why.text);
	b->n_confirm++;
	for (size_t i = 0; i < m.versions.n && b->n_confirmed < BOSS_MAX; i++)
		b->confirmed[b->n_confirmed++] = m.versions.p[i];
	results(r, m.versions.n, b->confirm_err, NULL);
	arena_fini(&a);
}

static void on_report(void *ctx, struct rpc_req *r)
{
	struct boss *b = ((struct boss_run *)ctx)->b;
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_report_req m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, &a, &why);
	SIM_CHECK(dec_report_req(&d, &m) == ERR_NONE, "REPORT: %s", why.text);
	b->n_report++;
	for (size_t i = 0; !b->report_err && i < m.fenced.n && b->n_fenced < BOSS_MAX; i++)
		b->fenced[b->n_fenced++] = m.fenced.p[i];
	for (size_t i = 0; !b->report_err && i < m.corrupt.n; i++)
		if (b->n_corrupt < ARRAY_LEN(b->corrupt))
			b->corrupt[b->n_corrupt++] = m.corrupt.p[i];
	for (size_t i = 0; !b->report_err && i < m.failed.n && b->n_failed < BOSS_FAILED; i++) {
		const struct msg_copy_fail *f = &m.failed.p[i];
		struct boss_failed *to = &b->failed[b->n_failed++];
		to->version = f->version;
		to->err = (enum err)f->status;
		keep_text(to->text, sizeof(to->text), f->text);
		keep_text(to->source, sizeof(to->source), f->source);
	}
	rpc_reply(r, b->report_err, 0, BYTES(NULL, 0));
	arena_fini(&a);
}

static const struct rpc_method methods[] = {
	{ METHOD_REGISTER, "REGISTER", ROLES_HOLDER, on_register, NULL, true },
	{ METHOD_PUBLISH, "PUBLISH", ROLES_HOLDER, on_publish, NULL, false },
	{ METHOD_CONFIRM, "CONFIRM", ROLES_HOLDER, on_confirm, NULL, true },
	{ METHOD_REPORT, "REPORT", ROLES_HOLDER, on_report, NULL, true },
};

static void on_closed(void *arg)
{
	cl_run_ended(((struct boss_run *)arg)->run);
}

static void on_tick(struct timer *t)
{
	struct boss_run *x = container_of(t, struct boss_run, tick);
	struct loop *l = &x->run->loop;
	let_go(x, x->stopping);
	if (x->stopping && rpc_server_inflight(x->server) == 0)
		rpc_server_close(x->server, on_closed, x);
	else
		timer_start(l, &x->tick, clock_after_ms(loop_now_ns(l), 10), on_tick);
}

static enum err start(struct cl_run *r, struct why *why)
{
	struct boss_run *x = r->state;
	x->run = r;
	x->b = r->arg;
	x->capture.fn = no_line;
	x->log = (struct log){ .svc = "boss", .clock = r->loop.clock };
	log_set_capture(&x->log, &x->capture);
	loop_random(&r->loop, x->instance, sizeof(x->instance));
	struct rpc_server_opts o = { .keys = cl_keys(r->cluster),
				     .log = &x->log,
				     .instance = x->instance,
				     .role = ROLE_SERVICE,
				     .name = "master" };
	enum err e = rpc_server_new(&r->loop, &o, &x->server);
	SIM_CHECK(e == ERR_NONE, "no server");
	for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
		struct rpc_method m = methods[i];
		m.ctx = x;
		rpc_server_add(x->server, &m, 1);
	}
	e = rpc_server_listen(x->server, r->addr, NULL, 0, why);
	SIM_CHECK(e == ERR_NONE, "%s", why->text);
	timer_start(&r->loop, &x->tick, loop_now_ns(&r->loop), on_tick);
	return ERR_NONE;
}

static void stop(struct cl_run *r, bool killed)
{
	struct boss_run *x = r->state;
	(void)killed;
	x->stopping = true;
	rpc_server_drain(x->server);
}

const struct cl_app boss_app = { sizeof(struct boss_run), start, stop };
