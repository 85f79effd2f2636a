/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the master. REGISTER goes out when the first slice is ready, when segments have
 * grown, when the connection was lost, and every register_ms: a master that has forgotten us (away, a
 * new term) hears of us again, whatever was lost.
 *
 *   tell ──> timer ──> REGISTER ──answer──> timer in register_ms, or sooner while not adopted
 *                          └──failure────> timer in 100 ms, doubling to 2 s
 */
#include "agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEADLINE_NS	  (5 * NS_PER_S)
#define DOUBT_NS	  (500 * NS_PER_MS)
#define NOT_ADOPTED_MS	  10 /* doubled with each such answer */
#define NOT_ADOPTED_NS	  (1 * NS_PER_S)
#define ASKED_MAX	  7u /* in a row: the same master does not want it any longer */
#define BACKOFF_MIN_MS	  100
#define BACKOFF_SHIFT_MAX 4 /* 1.6 s */

static void on_timer(struct timer *t);

static void in_ns(struct xfa *x, uint64_t ns)
{
	if (!x->link.stopped)
		timer_start(x->svc.loop, &x->link.timer, loop_now_ns(x->svc.loop) + ns,
			    on_timer);
}

void xfa_link_tell(struct xfa *x)
{
	if (x->link.stopped || !x->pool)
		return;
	x->link.again = x->link.busy;
	if (!x->link.busy)
		in_ns(x, 0);
}

void xfa_link_doubt(struct xfa *x)
{
	if (loop_now_ns(x->svc.loop) - x->link.sent_ns >= DOUBT_NS)
		xfa_link_tell(x);
}

void xfa_link_adopted(struct xfa *x, uint64_t term)
{
	if (!x->link.adopted || x->link.term != term)
		LOG_INFO(&x->svc.log, "master", "adopted term=%" PRIu64 " pool_epoch=%" PRIu64,
			 term, hold_under(x->hold, 0).pool_epoch);
	x->link.adopted = true;
	x->link.term = term;
}

void xfa_link_overtaken(struct xfa *x)
{
	if (!x->link.busy)
		return;
	x->link.again = true;
	rpc_cancel(&x->link.call);
}

/* ---- REGISTER ---- */

static void encode(struct xfa *x)
{
	struct xfa_link *l = &x->link;
	const struct svc *s = &x->svc;
	struct msg_segment segments[MEMPOOL_SEGMENTS_MAX];
	struct bytes addrs[SVC_ADDRS_MAX + SVC_ADDRS_MAX];
	char data[XFA_DATA_LISTEN_MAX][SVC_ADDR_MAX + 8];
	struct msg_register_req m = { .holder = BYTES_STR(s->id),
				      .kind = 1,
				      .host = BYTES_STR(x->host),
				      .fd_path = BYTES_STR(x->fd_path),
				      .pool_epoch = hold_under(x->hold, 0).pool_epoch };
	size_t n = 0, n_data = xfa_data_addrs(x->data, data), room = SVC_ADDRS_MAX - n_data;
	for (size_t i = 0; i < s->conf.advertise.n && n < room; i++)
		addrs[n++] = BYTES_STR(s->conf.advertise.v[i]);
	for (size_t i = 0; i < s->n_addrs && n < room; i++)
		if (s->conf.advertise.n == 0 || strncmp(s->addrs[i], "ipc:", 4) == 0)
			addrs[n++] = BYTES_STR(s->addrs[i]);
	for (size_t i = 0; i < XFA_DATA_LISTEN_MAX && i < n_data; i++)
		addrs[n++] = BYTES_STR(data[i]);
	m.addrs = (struct bytes_list){ addrs, n };
	m.segments = (struct list_segment){ segments, xfa_memory_segments(x, segments) };
	memcpy(m.instance, s->instance, 16);
	memcpy(m.pool, mempool_id(x->pool), 16);
	buf_clear(&l->body);
	enc_register_req(&l->body, &m);
}

/* One line for each kind of failure, not for each try. */
static void failed(struct xfa *x, enum err e, const struct why *why)
{
	struct xfa_link *l = &x->link;
	metric_add(x->svc.metrics, XFA_M_REGISTERS, 1, 1);
	if (l->why.err != e)
		LOG_WARN(&x->svc.log, "master", "register err=%s msg=\"%s\"", err_name(e),
			 why->err ? why->text : err_text(e));
	l->old_master |= e == ERR_UNKNOWN_METHOD;
	l->why = (struct why){ 0 };
	why_note(&l->why, e, "%s", why->err ? why->text : err_text(e));
	l->failed += l->failed < BACKOFF_SHIFT_MAX;
	in_ns(x, ((uint64_t)BACKOFF_MIN_MS << l->failed) / 2 * NS_PER_MS);
}

static void answered(struct xfa *x, const struct msg_register_rep *m)
{
	struct xfa_link *l = &x->link;
	metric_add(x->svc.metrics, XFA_M_REGISTERS, 0, 1);
	l->failed = 0;
	l->old_master = false;
	l->why = (struct why){ 0 };
	if (m->adopted)
		xfa_link_adopted(x, m->term);
	else if (m->term != l->term || l->asked == ASKED_MAX)
		l->adopted =
			false; /* a pool that grows is adopted anew, and serves meanwhile */
	l->term = m->term;
	l->asked = m->adopted ? 0 : MIN_OF(l->asked + 1, ASKED_MAX);
	/* merging what it has takes the master milliseconds when there is little */
	in_ns(x, m->adopted ? x->register_ms * NS_PER_MS
			    : MIN_OF(((uint64_t)NOT_ADOPTED_MS << l->asked) * NS_PER_MS,
				     MIN_OF(NOT_ADOPTED_NS, x->register_ms * NS_PER_MS)));
	if (m->adopted)
		xfa_asks_kick(x);
}

static void on_answer(struct rpc_call *c)
{
	struct xfa_link *l = container_of(c, struct xfa_link, call);
	struct xfa *x = container_of(l, struct xfa, link);
	struct msg_register_rep m;
	struct why why = c->why;
	enum err e = c->err;
	l->busy = false;
	if (e == ERR_NONE) {
		struct dec d = DEC_INIT(c->reply, NULL, &why);
		e = dec_register_rep(&d, &m);
	}
	if (x->link.stopped)
		return;
	bool again = l->again && (e == ERR_NONE || e == ERR_CANCELLED);
	l->again = false;
	if (e == ERR_NONE)
		answered(x, &m);
	else if (!again)
		failed(x, e, &why);
	if (again)
		in_ns(x, 0);
}

static void on_timer(struct timer *t)
{
	struct xfa_link *l = container_of(t, struct xfa_link, timer);
	struct xfa *x = container_of(l, struct xfa, link);
	/* Nothing may be allocated before the first slice: no hurry to be known. */
	if (l->busy || !x->hold || xfa_memory_bytes(x).bytes == 0)
		return;
	encode(x);
	if (buf_err(&l->body)) {
		struct why why = { 0 };
		why_note(&why, buf_err(&l->body), "REGISTER: %s", err_text(buf_err(&l->body)));
		failed(x, why.err, &why);
		return;
	}
	l->busy = true;
	l->sent_ns = loop_now_ns(x->svc.loop);
	l->call = (struct rpc_call){ .method = METHOD_REGISTER,
				     .idempotent = true,
				     .deadline_ns = loop_now_ns(x->svc.loop) + DEADLINE_NS,
				     .body = buf_bytes(&l->body),
				     .done = on_answer };
	rpc_send(l->client, &l->call);
}

/* ---- life ---- */

static void on_state(void *ctx, bool up)
{
	struct xfa *x = ctx;
	if (!up) /* a master that starts again is told at once, not at the next period */
		xfa_link_tell(x);
}

enum err xfa_link_open(struct xfa *x, struct why *why)
{
	const struct svc *s = &x->svc;
	const char *addrs[SVC_ADDRS_MAX];
	for (size_t i = 0; i < s->n_masters; i++)
		addrs[i] = s->masters[i];
	struct rpc_client_opts o = {
		.limits = { .message_bytes_max = (uint32_t)s->conf.message_max },
		.addrs = addrs,
		.n_addrs = s->n_masters,
		.peer_name = "master",
		.as = ROLE_HOLDER,
		.expect = ROLE_SERVICE,
		.expect_name = "master",
		.holder = s->id,
		.keys = s->keys,
		.log = &s->log,
		.instance = s->instance,
		.tls = { s->conf.tls_ca[0] ? s->conf.tls_ca : NULL,
			 s->conf.tls_cert[0] ? s->conf.tls_cert : NULL,
			 s->conf.tls_key[0] ? s->conf.tls_key : NULL },
		.on_state = on_state,
		.ctx = x,
	};
	x->link.body = BUF_INIT(64 << 10);
	return rpc_client_new(s->loop, &o, &x->link.client, why);
}

void xfa_link_stop(struct xfa *x)
{
	x->link.stopped = true;
	timer_stop(x->svc.loop, &x->link.timer);
}

void xfa_link_close(struct xfa *x, void (*closed)(void *arg), void *arg)
{
	rpc_client_close(TAKE(x->link.client), closed, arg);
}

void xfa_link_reasons(const struct xfa *x, struct svc_reasons *r)
{
	const struct xfa_link *l = &x->link;
	if (l->adopted || l->old_master)
		return;
	if (l->why.err)
		svc_reason(r, "not adopted: REGISTER: %s", l->why.text);
	else if (l->term)
		svc_reason(r, "not adopted in the master's term %" PRIu64, l->term);
	else
		svc_reason(r, "not adopted: no master has answered REGISTER");
}
