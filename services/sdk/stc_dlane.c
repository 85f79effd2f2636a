/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data lanes to agents whose pool is not mapped (xfer/frame.h): at most STC_LANES a holder, made by
 * need, kept while they work; who finds none free waits for one. A holder that could not be reached is
 * left alone for a while, doubling (T7: what waits for it hears so at once).
 *
 * A lane belongs to one flow's copy at a time; its socket is a worker's during a step and the
 * loop's between steps. Thread: the loop's.
 */
#include "stc_priv.h"

#include "rpc/addr.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

/* ---- lanes ---- */

static void lane_free(struct stc_dlane *l)
{
	if (l->started)
		lane_cli_fini(&l->cli);
	if (l->fd >= 0)
		close(l->fd);
	free(l);
}

static void on_poll_closed(uv_handle_t *h)
{
	struct stc_dlane *l = h->data;
	struct stc *s = l->s;
	lane_free(l);
	s->n_closing--;
	hold_closed(s);
}

static void lane_close(struct stc_dlane *l)
{
	struct stc *s = l->s;
	list_del(&l->node);
	l->peer->n_lanes--;
	l->peer = NULL;
	if (!l->polls) {
		lane_free(l);
		return;
	}
	s->n_closing++;
	uv_close((uv_handle_t *)&l->poll, on_poll_closed);
}

static struct stc_dlane *lane_new(struct stc_peer *p)
{
	struct stc_dlane *l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->s = p->s;
	l->peer = p;
	l->fd = -1;
	p->n_lanes++;
	return l;
}

/* An agent closes a lane that is idle for long. */
static bool lane_works(const struct stc_dlane *l)
{
	char byte;
	return recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static struct stc_dlane *lane_any(struct stc_peer *p)
{
	while (!list_empty(&p->idle)) {
		struct stc_dlane *l =
			list_entry(list_pop_front(&p->idle), struct stc_dlane, node);
		if (lane_works(l))
			return l;
		lane_close(l);
	}
	return p->n_lanes < STC_LANES ? lane_new(p) : NULL;
}

/* ---- peers ---- */

static void peer_free(struct stc_peer *p)
{
	list_del(&p->node);
	p->s->n_peers--;
	free(p);
}

/* Idle ones that nobody has used since then. */
static void close_idle(struct stc_peer *p, uint64_t used_before_ns)
{
	list_for_each_safe (n, &p->idle) {
		struct stc_dlane *l = list_entry(n, struct stc_dlane, node);
		if (l->used_ns <= used_before_ns)
			lane_close(l);
	}
}

/* Too many are remembered: those that nobody uses go, with the lanes they kept. */
static void peer_trim(struct stc_peer *p)
{
	if (p->s->n_peers <= STC_PEERS_MAX || !list_empty(&p->waiting))
		return;
	close_idle(p, UINT64_MAX);
	if (p->n_lanes == 0)
		peer_free(p);
}

static void on_lane_tick(struct timer *t);

static void lane_tick_soon(struct stc *s)
{
	if (!timer_running(&s->lane_tick))
		timer_start(s->o.loop, &s->lane_tick,
			    clock_after_ms(loop_now_ns(s->o.loop), STC_LANE_IDLE_MS / 4),
			    on_lane_tick);
}

/* To an address that is gone, say: the holder is at another one now. */
static void on_lane_tick(struct timer *t)
{
	struct stc *s = container_of(t, struct stc, lane_tick);
	uint64_t now = loop_now_ns(s->o.loop), limit = STC_LANE_IDLE_MS * NS_PER_MS;
	bool any = false;
	list_for_each (n, &s->peers) {
		struct stc_peer *p = list_entry(n, struct stc_peer, node);
		close_idle(p, now - MIN_OF(now, limit));
		any |= !list_empty(&p->idle);
	}
	if (any)
		lane_tick_soon(s);
}

/* The k-th address of data lanes there, as tcp://HOST:PORT; false: there are not so many. */
static bool data_addr(const struct msg_place *at, size_t k, char out[257])
{
	struct bytes a;
	if (!addr_data_at(at->addrs.p, at->addrs.n, k, &a))
		return false;
	(void)snprintf(out, 257, "%.*s", (int)a.n, (const char *)a.p);
	return true;
}

bool dlane_rests(const struct stc *s, const struct msg_place *at)
{
	uint64_t now = loop_now_ns(s->o.loop);
	char holder[65];
	bool rests = false;
	place_name(at, holder);
	list_for_each (n, &s->peers) {
		const struct stc_peer *p = list_entry(n, struct stc_peer, node);
		if (strcmp(p->holder, holder) != 0)
			continue;
		if (now >= p->not_before_ns) /* it has several addresses */
			return false;
		rests = true;
	}
	return rests;
}

static struct stc_peer *peer_of(struct stc *s, const char *holder, const char *addr)
{
	list_for_each (n, &s->peers) {
		struct stc_peer *p = list_entry(n, struct stc_peer, node);
		if (strcmp(p->holder, holder) == 0 && strcmp(p->addr, addr) == 0)
			return p;
	}
	struct stc_peer *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->s = s;
	list_init(&p->idle);
	list_init(&p->waiting);
	(void)snprintf(p->holder, sizeof(p->holder), "%s", holder);
	(void)snprintf(p->addr, sizeof(p->addr), "%s", addr);
	list_push_back(&s->peers, &p->node);
	s->n_peers++;
	return p;
}

/*
 * Of the addresses a holder tells the one that failed least, the first of these: one that nobody here can dial
 * costs a try or two. NULL: no memory.
 */
static struct stc_peer *peer_pick(struct stc *s, const struct msg_place *at, const char *holder)
{
	struct stc_peer *best = NULL;
	char addr[257];
	for (size_t k = 0; data_addr(at, k, addr); k++) {
		struct stc_peer *p = peer_of(s, holder, addr);
		if (!p)
			return NULL;
		if (!best || p->fails < best->fails)
			best = p;
	}
	return best;
}

/* It is left alone for now. */
static bool peer_rests(const struct stc_peer *p, struct stc_flow *f)
{
	uint64_t now = loop_now_ns(p->s->o.loop);
	if (now >= p->not_before_ns)
		return false;
	flow_note(f, ERR_UNREACHABLE, (uint32_t)clock_left_ms(p->not_before_ns, now) + 1,
		  p->holder, "connect", "its data lanes at %s failed just now: %s", p->addr,
		  err_text(p->last));
	return true;
}

static void peer_failed(struct stc_peer *p, enum err e)
{
	uint64_t ms = (uint64_t)STC_LANE_REST_MS << MIN_OF(p->fails, 5u);
	p->fails++;
	p->last = e;
	p->not_before_ns = clock_after_ms(loop_now_ns(p->s->o.loop), ms);
}

/* Those who wait: a lane each, or, while it rests, the news. */
static void peer_next(struct stc_peer *p)
{
	while (!list_empty(&p->waiting)) {
		struct stc_flow *f = list_entry(p->waiting.next, struct stc_flow, node);
		bool rests = peer_rests(p, f);
		struct stc_dlane *l = rests ? NULL : lane_any(p);
		if (!rests && !l)
			return;
		list_del(&f->node);
		if (l) {
			f->err = ERR_NONE;
			f->dlane = l;
		}
		op_resume(&f->op);
	}
}

/* ---- taking and giving back ---- */

enum err dlane_take(struct stc_flow *f, const struct msg_place *at)
{
	struct stc *s = f->w->s;
	char holder[65], addr[257];
	place_name(at, holder);
	if (!data_addr(at, 0, addr) || !loop_uv(s->o.loop)) {
		flow_note(
			f, ERR_UNSUPPORTED, 0, holder, "connect",
			"holder %s is on host %.*s and shares no memory with this process on host "
			"%s, and it opens no data lanes; set agent.data_listen there",
			holder, (int)at->host.n, (const char *)at->host.p, s->host);
		return ERR_UNSUPPORTED;
	}
	struct stc_peer *p = peer_pick(s, at, holder);
	if (!p) {
		flow_note(f, ERR_NO_MEMORY, 0, holder, "connect", "no memory for a data lane");
		return ERR_NO_MEMORY;
	}
	if (peer_rests(p, f))
		return ERR_UNREACHABLE;
	f->dlane = list_empty(&p->waiting) ? lane_any(p) : NULL;
	if (f->dlane)
		return ERR_NONE;
	if (p->n_lanes == 0) {
		flow_note(f, ERR_NO_MEMORY, 0, holder, "connect", "no memory for a data lane");
		return ERR_NO_MEMORY;
	}
	list_push_back(&p->waiting, &f->node);
	return ERR_BUSY;
}

void dlane_drop(struct stc_flow *f, enum err e)
{
	struct stc_dlane *l = TAKE(f->dlane);
	if (!l)
		return;
	struct stc_peer *p = l->peer;
	struct stc *s = l->s;
	bool good = l->started && l->cli.pipe.err == ERR_NONE && l->cli.state == CLI_READY &&
		    xf_pipe_idle(&l->cli.pipe);
	bool lost = e == ERR_UNREACHABLE || e == ERR_CONN_LOST;
	if (good) {
		p->fails = 0;
		l->used_ns = loop_now_ns(s->o.loop);
		list_push_back(&p->idle, &l->node);
		lane_tick_soon(s);
	} else {
		if (lost)
			peer_failed(p, e);
		lane_close(l);
	}
	if (!s->lanes_due) { /* not from here: a flow's step runs */
		s->lanes_due = true;
		loop_defer(s->o.loop, &s->lanes);
	}
}

void dlane_next(struct stc *s)
{
	list_for_each_safe (n, &s->peers) {
		struct stc_peer *p = list_entry(n, struct stc_peer, node);
		peer_next(p);
		peer_trim(p);
	}
}

/* ---- waiting for the socket ---- */

static void wait_over(struct stc_dlane *l)
{
	struct stc_flow *f = TAKE(l->waiter);
	timer_stop(l->s->o.loop, &f->timer);
	(void)uv_poll_stop(&l->poll);
	f->copy->blocked = false;
	op_resume(&f->op);
}

static void on_socket(uv_poll_t *t, int status, int events)
{
	struct stc_dlane *l = t->data;
	loop_worked(l->s->o.loop);
	if (l->waiter)
		wait_over(l);
}

/* T7: a peer that stands still is given up long before a call's deadline: another copy may do. */
static void on_stall(struct timer *t)
{
	struct stc_flow *f = container_of(t, struct stc_flow, timer);
	struct stc_dlane *l = f->dlane;
	flow_note(f, ERR_CONN_LOST, 0, l->peer->holder, "copy",
		  "nothing moved for %u ms on the data lane to %s", f->stall_ms, l->peer->addr);
	f->copy->job.err = ERR_CONN_LOST;
	wait_over(l);
}

/* While there are others to be asked, each has its share of what is left. */
static uint32_t stall_ms(const struct stc_flow *f)
{
	uint64_t left = clock_left_ms(f->op.deadline_ns, loop_now_ns(f->w->s->o.loop));
	uint64_t share = MAX_OF(left / (f->others + 1ull), 20ull);
	return f->others ? (uint32_t)MIN_OF(share, (uint64_t)STC_STALL_MS) : STC_STALL_MS;
}

bool dlane_wait(struct stc_flow *f)
{
	struct stc_dlane *l = f->dlane;
	struct loop *loop = l->s->o.loop;
	if (!l->polls && uv_poll_init(loop_uv(loop), &l->poll, l->fd) != 0)
		return false;
	l->polls = true;
	l->poll.data = l;
	if (uv_poll_start(&l->poll, f->copy->sends ? UV_READABLE | UV_WRITABLE : UV_READABLE,
			  on_socket) != 0)
		return false;
	l->waiter = f;
	f->stall_ms = stall_ms(f);
	timer_start(loop, &f->timer, clock_after_ms(loop_now_ns(loop), f->stall_ms), on_stall);
	return true;
}

bool dlane_unwait(struct stc_flow *f)
{
	if (!f->dlane || !f->dlane->waiter)
		return false;
	wait_over(f->dlane);
	return true;
}

/* ---- the end ---- */

void dlane_close_all(struct stc *s)
{
	timer_stop(s->o.loop, &s->lane_tick);
	list_for_each_safe (n, &s->peers) {
		struct stc_peer *p = list_entry(n, struct stc_peer, node);
		while (!list_empty(&p->idle))
			lane_close(
				list_entry(list_pop_front(&p->idle), struct stc_dlane, node));
		assert(p->n_lanes == 0 && list_empty(&p->waiting));
		peer_free(p);
	}
}
