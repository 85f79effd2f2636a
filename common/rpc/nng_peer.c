/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of the nng engine: a REQ socket with one dialer for one connection, and one context
 * with its one aio for each exchange.
 *
 * An exchange is a chain: send, wait for its completion, then receive. On 1.5.2 a receive that is
 * started before and then cancelled while no peer is connected is a crash (upstream #1702), and an
 * aio that is used again before its operation was retired is an abort.
 *
 * I1: a slot's x is NULL once the exchange was cancelled, failed or done.
 * I2: every operation of a slot was expected before it began (inbox.h I2); n_busy counts them.
 * I3: contexts and socket are closed when n_busy is 0.
 * I4: nng never sends a message twice: its resend timer is off, and a broken connection fails what
 *     was on it instead of moving it to the next (engine.h I4).
 *
 * Thread: the loop's; on_aio runs on nng's.
 */
#include "rpc/nng_dial.h"
#include "rpc/nng_int.h"
#include "rpc/nng_sock.h"
#include "rpc/nng_tls.h"

#include <nng/protocol/reqrep0/req.h>

#include <stdio.h>
#include <string.h>

/* More than the core puts on the wire to one peer; a limit all the same (B1). */
#define SLOTS_MAX	 8192
/* nng's own redial while we wait for the first connection; one that broke is not dialed again. */
#define RECONNECT_MIN_MS 50
#define RECONNECT_MAX_MS 2000
/* How soon a failed dial is noticed: nng tells nobody, it only counts (nng_dial.h). */
#define LOOK_MIN_MS	 2
#define LOOK_MAX_MS	 100
/*
 * A socket that is closed between the two halves of a greeting leaves the connection's memory and
 * descriptor behind (nng 1.5): a hangup waits this long for a dial to end one way or the other.
 */
#define DIAL_END_MS	 500
/* Replies to what was given up: let them arrive before the pipe is closed (nng_sock.h I3). */
#define LINGER_MS	 50

enum peer_state { PEER_DIALING, PEER_PROBING, PEER_UP, PEER_BREAKING, PEER_DOWN, PEER_CLOSING };
enum slot_state { SLOT_IDLE, SLOT_SEND, SLOT_RECV };

struct slot {
	struct post post;
	nng_ctx ctx;
	bool has_ctx;
	nng_aio *aio;
	struct eng_peer *peer;
	struct eng_xchg *x; /* I1 */
	enum slot_state state;
	size_t n_bytes; /* its share of queued */
	struct list all, idle, live;
};

struct eng_peer {
	struct loop *loop;
	struct nsock sock;
	struct eng_limits limits;
	const struct log *log;
	const struct eng_peer_events *events;
	void *ctx;
	struct addr addr;
	enum peer_state state;
	struct list slots, idle, live;
	uint32_t n_slots, n_busy;
	uint64_t queued;
	bool gone, linger, ending;
	struct timer timer;
	uint64_t dial_deadline_ns, look_ms;
	struct tls_files tls;
	struct eng_peer *probe; /* the sp engine's */
	struct post post;
	void (*closed)(void *arg);
	void *arg;
};

/* ---- slots ---- */

static void on_aio(void *arg)
{
	struct slot *sl = arg;
	loop_post(sl->peer->loop, &sl->post);
}

static void on_slot(struct post *p);

static void slot_go(struct slot *sl, enum slot_state state, nng_duration timeout_ms)
{
	loop_expect(sl->peer->loop);
	sl->peer->n_busy++;
	sl->state = state;
	nng_aio_set_timeout(sl->aio, timeout_ms);
}

/* A request that was sent and never answered stays in its context: that one cannot be used again. */
static void slot_reset(struct slot *sl)
{
	if (sl->has_ctx) // NOLINT(clang-analyzer-unix.Malloc): counted references
		nng_ctx_close(sl->ctx);
	sl->has_ctx = false;
}

static void slot_idle(struct slot *sl)
{
	sl->state = SLOT_IDLE;
	sl->x = NULL;
	list_del(&sl->live);
	list_push_front(&sl->peer->idle, &sl->idle);
}

static void slot_free(struct slot *sl)
{
	slot_reset(sl);
	nng_aio_free(sl->aio);
	free(sl);
}

static struct slot *slot_new(struct eng_peer *p)
{
	if (p->n_slots >= SLOTS_MAX)
		return NULL;
	struct slot *sl = calloc(1, sizeof(*sl));
	if (!sl)
		return NULL;
	if (nng_aio_alloc(&sl->aio, on_aio, sl) != 0) {
		free(sl);
		return NULL;
	}
	sl->peer = p;
	sl->post.fn = on_slot;
	p->n_slots++;
	list_push_back(&p->slots, &sl->all);
	return sl;
}

static struct slot *slot_get(struct eng_peer *p)
{
	struct list *n = list_pop_front(&p->idle);
	struct slot *sl = n ? container_of(n, struct slot, idle) : slot_new(p);
	if (!sl)
		return NULL;
	if (!sl->has_ctx && nng_ctx_open(&sl->ctx, p->sock.id) != 0) {
		list_push_front(&p->idle, &sl->idle);
		return NULL;
	}
	sl->has_ctx = true;
	return sl;
}

/* ---- exchanges ---- */

static void break_off(struct eng_peer *p);

static void xchg_end(struct slot *sl, enum err e, struct bytes reply)
{
	struct eng_xchg *x = sl->x;
	sl->x = NULL; /* I1 */
	list_del(&sl->live);
	if (!x)
		return;
	x->impl = NULL;
	x->done(x, e, reply);
}

static void sent(struct slot *sl, int rv)
{
	struct eng_peer *p = sl->peer;
	p->queued -= sl->n_bytes;
	sl->n_bytes = 0;
	if (rv != 0) {
		nng_msg_free(nng_aio_get_msg(sl->aio)); /* ours again */
		nng_aio_set_msg(sl->aio, NULL);
		xchg_end(sl, ERR_CONN_LOST, BYTES(NULL, 0));
		slot_idle(sl);
	} else if (!sl->x || p->state != PEER_UP) {
		xchg_end(sl, ERR_CONN_LOST, BYTES(NULL, 0));
		slot_reset(sl);
		slot_idle(sl);
	} else {
		slot_go(sl, SLOT_RECV, NNG_DURATION_INFINITE);
		nng_ctx_recv(sl->ctx, sl->aio);
	}
}

static void received(struct slot *sl, int rv)
{
	if (rv != 0) {
		if (rv == NNG_ECONNRESET)
			break_off(sl->peer);
		xchg_end(sl, ERR_CONN_LOST, BYTES(NULL, 0));
		slot_idle(sl);
		return;
	}
	nng_msg *m = nng_aio_get_msg(sl->aio);
	nng_aio_set_msg(sl->aio, NULL);
	xchg_end(sl, ERR_NONE, BYTES(nng_msg_body(m), nng_msg_len(m)));
	nng_msg_free(m);
	slot_idle(sl);
}

static void peer_step(struct eng_peer *p);
static void broken(struct eng_peer *p);

static void on_slot(struct post *post)
{
	struct slot *sl = container_of(post, struct slot, post);
	struct eng_peer *p = sl->peer;
	int rv = nng_aio_result(sl->aio);
	p->n_busy--;
	if (sl->state == SLOT_SEND)
		sent(sl, rv);
	else
		received(sl, rv);
	if (p->state == PEER_CLOSING)
		peer_step(p);
	else
		broken(p);
}

enum err nng_peer_send(struct eng_peer *p, struct eng_xchg *x, const struct bytes *parts, int n)
{
	size_t total = 0;
	for (int i = 0; i < n; i++)
		total += parts[i].n;
	if (p->state != PEER_UP)
		return ERR_CONN_LOST;
	if (total + NNG_HDR_BYTES > p->limits.message_bytes_max)
		return ERR_TOO_LARGE;
	if (p->queued > 0 && p->queued + total > p->limits.queue_bytes_max)
		return ERR_BUSY;
	nng_msg *m;
	struct slot *sl = slot_get(p);
	if (!sl)
		return ERR_BUSY;
	if (nng_msg_alloc(&m, total) != 0) {
		slot_idle(sl);
		return ERR_NO_MEMORY;
	}
	uint8_t *at = nng_msg_body(m);
	for (int i = 0; i < n; i++) {
		if (parts[i].n > 0)
			memcpy(at, parts[i].p, parts[i].n);
		at += parts[i].n;
	}
	sl->x = x;
	x->impl = sl;
	list_push_back(&p->live, &sl->live);
	sl->n_bytes = total;
	p->queued += total;
	nng_aio_set_msg(sl->aio, m);
	slot_go(sl, SLOT_SEND, (nng_duration)p->limits.frame_ms);
	nng_ctx_send(sl->ctx, sl->aio);
	return ERR_NONE;
}

/* The slot comes back by its post, whatever its operation still brings. */
void nng_peer_cancel(struct eng_peer *p, struct eng_xchg *x)
{
	struct slot *sl = x->impl;
	if (!sl)
		return;
	assert(sl->peer == p && sl->x == x);
	x->impl = NULL;
	sl->x = NULL;
	list_del(&sl->live);
	p->linger = true;
	nng_aio_cancel(sl->aio);
}

/* ---- the connection ---- */

static void on_up(struct nsock *ns, uint32_t pipe)
{
	struct eng_peer *p = container_of(ns, struct eng_peer, sock);
	(void)pipe;
	if (p->state == PEER_DIALING) {
		p->state = PEER_UP;
		timer_stop(p->loop, &p->timer);
		p->events->up(p->ctx);
	} else if (p->state == PEER_CLOSING) {
		timer_stop(p->loop, &p->timer);
		peer_step(p);
	}
}

static void peer_down(struct eng_peer *p, enum err e, const char *text)
{
	p->state = PEER_DOWN;
	timer_stop(p->loop, &p->timer);
	p->events->down(p->ctx, e, text);
}

/*
 * The connection is no more: its end was reported, or an exchange was reset with it (the report may
 * never come: nng_sock.h I3). Exchanges end by their own completions, then the core hears of it:
 * one whose reply nng handed over just before may have its post behind this one.
 */
static void break_off(struct eng_peer *p)
{
	if (p->state != PEER_UP)
		return;
	p->state = PEER_BREAKING;
	list_for_each (n, &p->live)
		nng_aio_cancel(container_of(n, struct slot, live)->aio);
}

static void broken(struct eng_peer *p)
{
	if (p->state == PEER_BREAKING && list_empty(&p->live))
		peer_down(p, ERR_CONN_LOST, "the peer closed the connection");
}

static void on_gone(struct nsock *ns, uint32_t pipe, void *conn)
{
	struct eng_peer *p = container_of(ns, struct eng_peer, sock);
	(void)pipe;
	(void)conn;
	p->gone = true;
	if (p->state == PEER_DIALING) {
		peer_down(p, ERR_UNREACHABLE, "the peer is no SP server (REP)");
	} else {
		break_off(p);
		broken(p);
	}
}

static void on_probe_closed(void *arg)
{
	struct eng_peer *p = arg;
	p->probe = NULL;
	if (p->state == PEER_CLOSING)
		peer_step(p);
}

static void probe_end(struct eng_peer *p, const char *text)
{
	if (p->state != PEER_PROBING)
		return; /* hung up, and the probe with it */
	engine_sp.hangup(p->probe, on_probe_closed, p);
	peer_down(p, ERR_UNREACHABLE, text);
}

static void on_probe_up(void *ctx)
{
	probe_end(
		ctx,
		"tls: nng's TLS refuses the server, though its certificate is valid: it knows "
		"TLS 1.2 alone, and compares a host with DNS names, not with IP names");
}

static void on_probe_down(void *ctx, enum err e, const char *text)
{
	(void)e;
	probe_end(ctx, text);
}

/* nng counted a failed handshake, no more: the sp engine says what is wrong with it. */
static void probe_tls(struct eng_peer *p)
{
	static const struct eng_peer_events events = { on_probe_up, on_probe_down };
	struct why why = { 0 };
	char text[ADDR_TEXT_MAX];
	addr_format(&p->addr, text, sizeof(text));
	struct eng_dial_opts o = { .limits = p->limits,
				   .addr = text,
				   .log = p->log,
				   .events = &events,
				   .ctx = p,
				   .tls = p->tls };
	p->state = PEER_PROBING;
	timer_stop(p->loop, &p->timer);
	if (engine_sp.dial(p->loop, &o, &p->probe, &why) != ERR_NONE)
		peer_down(p, ERR_UNREACHABLE, "tls: the handshake failed");
}

static void on_look(struct timer *t)
{
	struct eng_peer *p = container_of(t, struct eng_peer, timer);
	const char *text = "no answer";
	uint64_t now = loop_now_ns(p->loop);
	enum dial_state dial = nng_dial_failure(p->sock.dialer, &p->addr, &text);
	if (p->state == PEER_CLOSING && (dial != DIAL_PENDING || now >= p->dial_deadline_ns)) {
		peer_step(p);
		return;
	}
	switch (dial) {
	case DIAL_TLS:
		probe_tls(p);
		return;
	case DIAL_FAILED:
		peer_down(p, ERR_UNREACHABLE, text);
		return;
	case DIAL_PENDING:
		break;
	}
	if (now >= p->dial_deadline_ns) {
		peer_down(p, ERR_TIMED_OUT, text);
		return;
	}
	p->look_ms = MIN_OF(p->look_ms * 2, (uint64_t)LOOK_MAX_MS);
	timer_start(p->loop, t, MIN_OF(clock_after_ms(now, p->look_ms), p->dial_deadline_ns),
		    on_look);
}

/* ---- life ---- */

static void peer_closed(struct nsock *ns, bool stuck)
{
	struct eng_peer *p = container_of(ns, struct eng_peer, sock);
	void (*closed)(void *arg) = p->closed;
	void *arg = p->arg;
	if (!stuck)
		free(p);
	if (closed)
		closed(arg);
}

static const struct nsock_ops sock_ops = {
	.up = on_up,
	.gone = on_gone,
	.closed = peer_closed,
};

static enum err set_options(nng_socket id, const struct eng_limits *l)
{
	/* contexts and dialers copy these when they are made */
	int rv = nng_socket_set_ms(id, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE); /* I4 */
	if (rv == 0)
		rv = nng_socket_set_size(id, NNG_OPT_RECVMAXSZ, l->message_bytes_max);
	if (rv == 0)
		rv = nng_socket_set_ms(id, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS);
	if (rv == 0)
		rv = nng_socket_set_ms(id, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS);
	return nng_to_err(rv);
}

static enum err dialer_tls(struct eng_peer *p, struct why *why)
{
	nng_tls_config *cfg;
	enum err e = nng_tls_config_new(&p->tls, p->addr.host, &cfg, why);
	if (e != ERR_NONE)
		return e;
	int rv = nng_dialer_set_ptr(p->sock.dialer, NNG_OPT_TLS_CONFIG, cfg);
	nng_tls_config_free(cfg); /* the dialer holds its own reference */
	return rv == 0 ? ERR_NONE : why_set(why, nng_to_err(rv), "tls: %s", nng_strerror(rv));
}

/* What nng is to dial: its own look-up does not know localhost everywhere. */
static void url_of(const struct addr *a, char out[ADDR_TEXT_MAX])
{
	struct addr known = *a;
	if (a->scheme != ADDR_IPC)
		snprintf(known.host, sizeof(known.host), "%s", addr_known_host(a->host));
	addr_format(&known, out, ADDR_TEXT_MAX);
}

static enum err dialer_start(struct eng_peer *p, const struct eng_dial_opts *o, struct why *why)
{
	char url[ADDR_TEXT_MAX];
	url_of(&p->addr, url);
	int rv = nng_dialer_create(&p->sock.dialer, p->sock.id, url);
	enum err e = ERR_NONE;
	if (rv == 0 && p->addr.scheme == ADDR_TLS)
		e = dialer_tls(p, why);
	if (e != ERR_NONE)
		return e;
	if (rv == 0)
		rv = nng_dialer_start(p->sock.dialer, NNG_FLAG_NONBLOCK);
	if (rv == NNG_ENOTSUP)
		return why_set(
			why, ERR_UNSUPPORTED,
			"dial %.160s: this build of the nng library lacks this transport",
			o->addr);
	if (rv != 0)
		return why_set(why, nng_to_err(rv), "dial %.160s: %s", o->addr,
			       nng_strerror(rv));
	return ERR_NONE;
}

static enum err socket_open(struct eng_peer *p, struct why *why)
{
	nng_socket id;
	int rv = nng_req0_open(&id);
	if (rv != 0)
		return why_set(why, nng_to_err(rv), "nng: cannot open a socket: %s",
			       nng_strerror(rv));
	enum err e = set_options(id, &p->limits);
	if (e == ERR_NONE)
		e = nsock_open(&p->sock, id, true,
			       4); /* one lives; ended ones wait for the loop */
	if (e != ERR_NONE) {
		nng_close(id);
		why_set(why, e, "nng: cannot set up a socket");
	}
	return e;
}

static void peer_init(struct eng_peer *p, struct loop *l, const struct eng_dial_opts *o)
{
	p->loop = l;
	p->limits = o->limits;
	p->log = o->log;
	p->events = o->events;
	p->ctx = o->ctx;
	p->tls = o->tls;
	p->sock = (struct nsock){ .loop = l, .log = o->log, .ops = &sock_ops };
	list_init(&p->slots);
	list_init(&p->idle);
	list_init(&p->live);
	p->look_ms = LOOK_MIN_MS;
	p->dial_deadline_ns = clock_after_ms(loop_now_ns(l), o->limits.handshake_ms);
}

enum err nng_peer_dial(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
		       struct why *why)
{
	struct eng_peer *p = calloc(1, sizeof(*p));
	if (!p)
		return ERR_NO_MEMORY;
	peer_init(p, l, o);
	enum err e = addr_parse(o->addr, &p->addr, why);
	if (e == ERR_NONE)
		e = socket_open(p, why);
	if (e != ERR_NONE) {
		free(p);
		return e;
	}
	e = dialer_start(p, o, why);
	if (e != ERR_NONE) {
		p->state = PEER_CLOSING;
		nsock_close(&p->sock); /* frees p later */
		return e;
	}
	timer_start(l, &p->timer, clock_after_ms(loop_now_ns(l), p->look_ms), on_look);
	*out = p;
	return ERR_NONE;
}

static void on_linger(struct timer *t)
{
	peer_step(container_of(t, struct eng_peer, timer));
}

/* Closing: slots, then the probe and the linger, then the socket. */
static void peer_step(struct eng_peer *p)
{
	if (p->n_busy > 0 || p->probe || p->ending || timer_running(&p->timer))
		return;
	p->ending = true;
	list_for_each_safe (n, &p->slots)
		slot_free(container_of(n, struct slot, all));
	list_init(&p->slots);
	nsock_close(&p->sock);
}

static void on_hangup(struct post *post)
{
	peer_step(container_of(post, struct eng_peer, post));
}

void nng_peer_hangup(struct eng_peer *p, void (*closed)(void *arg), void *arg)
{
	enum peer_state was = p->state;
	p->state = PEER_CLOSING;
	p->closed = closed;
	p->arg = arg;
	uint64_t now = loop_now_ns(p->loop);
	if (was == PEER_DIALING)
		p->dial_deadline_ns =
			MIN_OF(p->dial_deadline_ns, clock_after_ms(now, DIAL_END_MS));
	else
		timer_stop(p->loop, &p->timer);
	if (was == PEER_PROBING && p->probe)
		engine_sp.hangup(p->probe, on_probe_closed, p);
	while (!list_empty(&p->live)) {
		struct slot *sl = container_of(p->live.next, struct slot, live);
		nng_peer_cancel(p, sl->x);
	}
	if (was == PEER_UP && p->linger && !p->gone)
		timer_start(p->loop, &p->timer, clock_after_ms(loop_now_ns(p->loop), LINGER_MS),
			    on_linger);
	p->post.fn = on_hangup;
	loop_defer(p->loop, &p->post);
}
