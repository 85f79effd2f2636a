/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_fix.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- handlers ---- */

static void note(struct rpc_fix *f, const struct rpc_req *r)
{
	f->n_run++;
	f->last_deadline_ns = r->deadline_ns;
	f->last_peer = *r->peer;
}

static void do_echo(void *ctx, struct rpc_req *r)
{
	note(ctx, r);
	rpc_reply(r, ERR_NONE, 0, r->body);
}

static void gone(struct rpc_req *r)
{
	struct rpc_fix *f = r->user;
	f->n_gone++;
}

static void do_hold(void *ctx, struct rpc_req *r)
{
	struct rpc_fix *f = ctx;
	note(f, r);
	assert(f->n_held < FIX_HELD_MAX);
	r->user = f;
	r->gone = gone;
	f->held[f->n_held++] = r;
}

static void do_park(void *ctx, struct rpc_req *r)
{
	if (rpc_park(r) != ERR_NONE) {
		struct why why = { 0 };
		why_set(&why, ERR_BUSY, "too many polls are parked");
		rpc_reply_why(r, &why, 7);
		return;
	}
	do_hold(ctx, r);
}

static void do_fail(void *ctx, struct rpc_req *r)
{
	struct why why = { 0 };
	note(ctx, r);
	why_set(&why, ERR_EXISTS, "the words of the server");
	rpc_reply_why(r, &why, 33);
}

static void do_big(void *ctx, struct rpc_req *r)
{
	uint32_t n;
	note(ctx, r);
	assert(r->body.n >= sizeof(n));
	memcpy(&n, r->body.p, sizeof(n));
	uint8_t *p = malloc(n + 1);
	assert(p);
	memset(p, 'x', n);
	rpc_reply(r, ERR_NONE, 0, BYTES(p, n));
	free(p);
}

struct later {
	struct post post;
	struct rpc_req *r;
};

static void later_reply(struct post *p)
{
	struct later *l = container_of(p, struct later, post);
	rpc_reply(l->r, ERR_NONE, 0, l->r->body);
	free(l);
}

static void do_aecho(void *ctx, struct rpc_req *r)
{
	struct rpc_fix *f = ctx;
	struct later *l = calloc(1, sizeof(*l));
	note(f, r);
	assert(l);
	l->r = r;
	l->post.fn = later_reply;
	loop_defer(&f->loop, &l->post);
}

#define ANY \
	((1u << ROLE_CLIENT) | (1u << ROLE_HOLDER) | (1u << ROLE_SERVICE) | (1u << ROLE_ADMIN))

static void add_methods(struct rpc_fix *f)
{
	const struct rpc_method rows[] = {
		{ FIX_ECHO_M, "FIX_ECHO", ANY, do_echo, f, true },
		{ FIX_AECHO_M, "FIX_AECHO", ANY, do_aecho, f, false },
		{ FIX_HOLD_M, "FIX_HOLD", ANY, do_hold, f, false },
		{ FIX_PARK_M, "FIX_PARK", ANY, do_park, f, false },
		{ FIX_FAIL_M, "FIX_FAIL", ANY, do_fail, f, true },
		{ FIX_HOLDER_M, "FIX_HOLDER", 1u << ROLE_HOLDER, do_echo, f, true },
		{ FIX_BIG_M, "FIX_BIG", ANY, do_big, f, true },
	};
	rpc_server_add(f->srv, rows, ARRAY_LEN(rows));
}

/* ---- logs ---- */

static void keep(char lines[][512], uint32_t *n, const char *line, size_t len)
{
	if (*n < FIX_LINES) {
		size_t m = MIN_OF(len, (size_t)511);
		memcpy(lines[*n], line, m);
		lines[*n][m] = '\0';
	}
	(*n)++;
}

static void on_sline(struct log_capture *c, const char *line, size_t n)
{
	struct rpc_fix *f = container_of(c, struct rpc_fix, scap);
	keep(f->slines, &f->n_slines, line, n);
}

static void on_cline(struct log_capture *c, const char *line, size_t n)
{
	struct rpc_fix *f = container_of(c, struct rpc_fix, ccap);
	keep(f->clines, &f->n_clines, line, n);
}

uint32_t rpc_fix_lines(const struct rpc_fix *f, bool server, const char *text)
{
	uint32_t n = MIN_OF(server ? f->n_slines : f->n_clines, (uint32_t)FIX_LINES), found = 0;
	for (uint32_t i = 0; i < n; i++)
		found += strstr(server ? f->slines[i] : f->clines[i], text) != NULL;
	return found;
}

/* ---- life ---- */

static uint64_t get_term(void *ctx)
{
	return ((struct rpc_fix *)ctx)->term;
}

void rpc_fix_serve(struct rpc_fix *f, const char *addr)
{
	struct why why = { 0 };
	f->srv_closed = false;
	enum err e = rpc_server_new(&f->loop, &f->srv_opts, &f->srv);
	assert(e == ERR_NONE);
	add_methods(f);
	e = rpc_server_listen(f->srv, addr, f->addr, sizeof(f->addr), &why);
	if (e != ERR_NONE)
		fprintf(stderr, "%s\n", why.text);
	assert(e == ERR_NONE);
}

void rpc_fix_open(struct rpc_fix *f, const char *addr, const struct rpc_server_opts *opts)
{
	*f = (struct rpc_fix){ .term = 7 };
	signal(SIGPIPE, SIG_IGN); /* as a service does: loop/signals.h */
	f->slog = (struct log){ .svc = "server", .fd = 2 };
	f->clog = (struct log){ .svc = "client", .fd = 2 };
	f->scap.fn = on_sline;
	f->ccap.fn = on_cline;
	log_set_capture(&f->slog, &f->scap);
	log_set_capture(&f->clog, &f->ccap);
	for (int i = 0; i < AUTH_KEY_BYTES; i++)
		f->secret[i] = (uint8_t)(i + 1);
	memset(f->instance, 0xab, sizeof(f->instance));
	enum err e = keyring_new(f->secret, NULL, &f->keys);
	assert(e == ERR_NONE);
	e = loop_open(&f->loop);
	assert(e == ERR_NONE);
	f->srv_opts = opts ? *opts : (struct rpc_server_opts){ 0 };
	struct rpc_server_opts *o = &f->srv_opts;
	o->keys = o->keys ? o->keys : f->keys;
	o->log = o->log ? o->log : &f->slog;
	o->instance = o->instance ? o->instance : f->instance;
	o->name = o->name ? o->name : "master";
	o->role = o->role ? o->role : ROLE_SERVICE;
	o->term = get_term;
	o->ctx = f;
	rpc_fix_serve(f, addr);
}

static void set_flag(void *arg)
{
	*(bool *)arg = true;
}

void rpc_fix_release(struct rpc_fix *f)
{
	for (uint32_t i = 0; i < f->n_held; i++)
		rpc_reply(f->held[i], ERR_NONE, 0, f->held[i]->body);
	f->n_held = 0;
}

void rpc_fix_stop_server(struct rpc_fix *f)
{
	rpc_server_drain(f->srv);
	rpc_fix_release(f);
	while (rpc_server_inflight(f->srv) > 0) /* those that answer on the next turn */
		loop_run_once(&f->loop, true);
	rpc_server_close(f->srv, set_flag, &f->srv_closed);
	while (!f->srv_closed)
		loop_run_once(&f->loop, true);
	f->srv = NULL;
}

struct rpc_client *rpc_fix_client(struct rpc_fix *f, const struct rpc_client_opts *opts)
{
	struct why why = { 0 };
	struct rpc_client *cl;
	struct rpc_client_opts o = opts ? *opts : (struct rpc_client_opts){ 0 };
	const char *addrs[] = { f->addr };
	if (!o.addrs) {
		o.addrs = addrs;
		o.n_addrs = 1;
	}
	o.peer_name = o.peer_name ? o.peer_name : "master";
	o.as = o.as ? o.as : ROLE_ADMIN;
	o.expect = o.expect ? o.expect : ROLE_SERVICE;
	o.keys = o.keys ? o.keys : f->keys;
	o.log = o.log ? o.log : &f->clog;
	o.instance = o.instance ? o.instance : f->instance;
	enum err e = rpc_client_new(&f->loop, &o, &cl, &why);
	if (e != ERR_NONE)
		fprintf(stderr, "%s\n", why.text);
	assert(e == ERR_NONE);
	return cl;
}

void rpc_fix_close_client(struct rpc_fix *f, struct rpc_client *cl)
{
	bool closed = false;
	rpc_client_close(cl, set_flag, &closed);
	while (!closed)
		loop_run_once(&f->loop, true);
}

struct rpc_counters rpc_fix_counters(const struct rpc_fix *f)
{
	struct rpc_counters c;
	rpc_server_counters(f->srv, &c);
	return c;
}

void rpc_fix_close(struct rpc_fix *f)
{
	if (f->srv) {
		rpc_fix_release(f);
		struct rpc_counters c = rpc_fix_counters(f);
		assert(c.inflight == 0 && c.parked == 0 && c.bytes_parked == 0);
		rpc_fix_stop_server(f);
	}
	loop_close(&f->loop);
	keyring_free(f->keys);
	log_set_capture(&f->slog, NULL);
	log_set_capture(&f->clog, NULL);
}

/* ---- calls ---- */

static void on_done(struct rpc_call *rc)
{
	struct fix_call *c = container_of(rc, struct fix_call, call);
	c->done = true;
	c->n_done++;
	c->err = rc->err;
	c->term = rc->term;
	c->retry_ms = rc->retry_ms;
	c->n_reply = rc->reply.n;
	c->same = rc->reply.n == c->want.n &&
		  (c->want.n == 0 || memcmp(rc->reply.p, c->want.p, c->want.n) == 0);
	if (rc->reply.n > 0)
		memcpy(c->reply, rc->reply.p, MIN_OF(rc->reply.n, sizeof(c->reply)));
}

void rpc_fix_start(struct rpc_fix *f, struct rpc_client *cl, struct fix_call *c)
{
	uint32_t ms = c->deadline_ms ? c->deadline_ms : 10000;
	c->fix = f;
	c->done = false;
	c->call = (struct rpc_call){
		.method = c->method,
		.idempotent = !c->not_idempotent,
		.deadline_ns = clock_after_ms(loop_now_ns(&f->loop), ms),
		.body = c->body,
		.done = on_done,
	};
	rpc_send(cl, &c->call);
}

void rpc_fix_wait(struct rpc_fix *f, struct fix_call *c)
{
	while (!c->done)
		loop_run_once(&f->loop, true);
}

void rpc_fix_call(struct rpc_fix *f, struct rpc_client *cl, struct fix_call *c)
{
	rpc_fix_start(f, cl, c);
	rpc_fix_wait(f, c);
}

static void tick_over(struct timer *t)
{
}

void rpc_fix_run_ms(struct rpc_fix *f, uint32_t ms)
{
	struct timer t = { 0 };
	uint64_t end = clock_after_ms(loop_now_ns(&f->loop), ms);
	timer_start(&f->loop, &t, end, tick_over);
	while (timer_running(&t))
		loop_run_once(&f->loop, true);
}
