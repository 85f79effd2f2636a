/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies over a data lane, in steps: what stc_copy.c does between buffers and a mapped pool. Bytes move
 * between the socket and the caller's buffers; every block of a whole get is compared with the object's
 * own sums as it arrives (T4).
 *
 * A step never waits longer than STC_LANE_POLL_MS for the socket: then the copy says `blocked`, gives its
 * worker to others, and the loop looks at the socket (L4: a peer that stands still holds nobody's turn).
 *
 * Thread: a worker's while a step runs, the loop's otherwise.
 */
#include "stc_priv.h"

#include "base/sum.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LANE_POLL_MS = 2 };

/* ---- the caller's buffers ---- */

/* The next n bytes of them, from the present place on; 0: in more pieces than a frame has. */
static size_t user_spans(const struct stc_copy *c, size_t n, struct iovec *out)
{
	const struct stc_item *it = c->f->it;
	size_t k = 0, at = c->buf_at;
	for (uint32_t i = c->buf; i < it->n_bufs && n > 0; i++, at = 0) {
		size_t part = MIN_OF(it->bufs[i].n - at, n);
		if (part == 0)
			continue;
		if (k == XF_SPANS)
			return 0;
		out[k++] = (struct iovec){ (uint8_t *)it->bufs[i].p + at, part };
		n -= part;
	}
	assert(n == 0); /* their total was compared at the start */
	return k;
}

/* Moves on by n bytes; gather or scatter: to or from `flat`, if that is not NULL. */
static void user_advance(struct stc_copy *c, size_t n, uint8_t *flat, bool scatter)
{
	const struct stc_item *it = c->f->it;
	while (n > 0) {
		size_t part = MIN_OF(it->bufs[c->buf].n - c->buf_at, n);
		uint8_t *p = (uint8_t *)it->bufs[c->buf].p + c->buf_at;
		if (flat && part) {
			memcpy(scatter ? p : flat, scatter ? flat : p, part);
			flat += part;
		}
		c->buf_at += part;
		n -= part;
		if (c->buf_at == it->bufs[c->buf].n && c->buf + 1 < it->n_bufs) {
			c->buf++;
			c->buf_at = 0;
		}
	}
}

/* Tiny buffers travel through one of ours. */
static uint8_t *bounce(struct stc_copy *c)
{
	if (!c->bounce)
		c->bounce = malloc(XF_DATA_MAX);
	return c->bounce;
}

static void count(struct stc_copy *c, size_t n)
{
	c->moved += n;
	c->stored_at += n;
	__atomic_fetch_add(&c->f->w->c->bytes_done, n, __ATOMIC_RELAXED);
}

/* ---- beginning ---- */

static enum err begin(struct stc_flow *f, uint64_t size, struct bytes ticket)
{
	struct stc_copy *c = calloc(1, sizeof(*c));
	uint64_t blocks = obj_blocks(size);
	uint64_t *vector = blocks ? malloc(blocks * sizeof(*vector)) : NULL;
	if (!c || (blocks && !vector)) {
		free(c);
		free(vector);
		flow_note(f, ERR_NO_MEMORY, 0, "", "copy", "no memory for a copy");
		return ERR_NO_MEMORY;
	}
	c->f = f;
	c->remote = true;
	c->size = size;
	c->ticket = ticket;
	c->vector = vector;
	f->copy = c;
	return ERR_NONE;
}

enum err remote_begin_put(struct stc_flow *f, const struct msg_put_grant *g)
{
	enum err e = begin(f, f->it->size, g->ticket);
	if (e != ERR_NONE)
		return e;
	f->copy->write = true;
	f->copy->total = f->it->size;
	f->copy->vector_left = obj_blocks(f->it->size) * sizeof(uint64_t);
	FAULT_AT(put_looked);
	return ERR_NONE;
}

enum err remote_begin_get(struct stc_flow *f, const struct msg_object *o,
			  const struct msg_replica *r)
{
	const struct stc_item *it = f->it;
	if (r->ticket.n == 0) {
		flow_note(f, ERR_NOT_READY, 0, "master", "QUERY",
			  "no read ticket came with a copy on another host");
		return ERR_NOT_READY;
	}
	enum err e = begin(f, o->size, r->ticket);
	if (e != ERR_NONE)
		return e;
	struct stc_copy *c = f->copy;
	c->want_sum = o->sum;
	c->verify = f->verify;
	c->total = it->bytes;
	c->range_left = it->n_ranges ? it->ranges[0].bytes : o->size;
	c->stored_at = it->n_ranges ? it->ranges[0].offset : 0;
	c->vector_left = it->n_ranges ? 0 : obj_blocks(o->size) * sizeof(uint64_t);
	return ERR_NONE;
}

/* ---- receiving ---- */

static uint8_t *vector_at(const struct stc_copy *c)
{
	return (uint8_t *)c->vector + obj_blocks(c->size) * sizeof(uint64_t) - c->vector_left;
}

static void next_range(struct stc_copy *c)
{
	const struct stc_item *it = c->f->it;
	while (c->range_left == 0 && c->range + 1 < it->n_ranges) {
		c->range++;
		c->range_left = it->ranges[c->range].bytes;
		c->stored_at = it->ranges[c->range].offset;
	}
}

/* A whole get takes whole blocks alone: a part could not be compared with anything. */
static bool awaited(const struct stc_copy *c, uint64_t offset, size_t n)
{
	if (offset != c->stored_at || n > c->range_left)
		return false;
	return c->f->it->n_ranges > 0 ||
	       n == MIN_OF((uint64_t)OBJ_BLOCK, c->size - c->stored_at);
}

static size_t on_land(void *ctx, uint64_t offset, size_t n, struct iovec *spans)
{
	struct stc_copy *c = ctx;
	if (c->vector_left > 0) {
		uint64_t all = obj_blocks(c->size) * sizeof(uint64_t);
		if (offset != obj_vector_at(c->size) + all - c->vector_left ||
		    n > c->vector_left)
			return 0;
		spans[0] = (struct iovec){ vector_at(c), n };
		return 1;
	}
	next_range(c);
	if (!awaited(c, offset, n))
		return 0;
	size_t k = user_spans(c, n, spans);
	c->bounced = k == 0;
	if (k > 0 || !bounce(c))
		return k;
	spans[0] = (struct iovec){ c->bounce, n };
	return 1;
}

static enum err on_landed(void *ctx, uint64_t offset, size_t n, uint64_t sum)
{
	struct stc_copy *c = ctx;
	uint64_t blocks = obj_blocks(c->size);
	if (c->vector_left > 0) {
		c->vector_left -= n;
		c->bad = c->vector_left == 0 && sum_of_blocks(c->vector, blocks) != c->want_sum;
		return c->bad ? ERR_CORRUPT : ERR_NONE;
	}
	if (c->f->it->n_ranges == 0)
		c->bad = sum != (blocks ? le64toh(c->vector[offset / OBJ_BLOCK]) : c->want_sum);
	if (c->bad)
		return ERR_CORRUPT;
	user_advance(c, n, c->bounced ? c->bounce : NULL, true);
	c->range_left -= n;
	count(c, n);
	return ERR_NONE;
}

static const struct lane_cli_ops get_ops = { on_land, on_landed };

/* The next request: the vector and the whole, or as many ranges as one takes. */
static enum err ask_get(struct stc_copy *c)
{
	const struct stc_item *it = c->f->it;
	struct xf_range *r = malloc(XF_RANGES_MAX * sizeof(*r));
	size_t n = 0;
	if (!r)
		return ERR_NO_MEMORY;
	if (it->n_ranges == 0) {
		if (c->vector_left)
			r[n++] = (struct xf_range){ obj_vector_at(c->size), c->vector_left };
		r[n++] = (struct xf_range){ 0, c->size };
	}
	for (; c->asked_ranges < it->n_ranges && n < XF_RANGES_MAX; c->asked_ranges++)
		if (it->ranges[c->asked_ranges].bytes)
			r[n++] = (struct xf_range){ it->ranges[c->asked_ranges].offset,
						    it->ranges[c->asked_ranges].bytes };
	enum err e = lane_cli_get(&c->f->dlane->cli, c->ticket, r, n, c->verify, &get_ops, c);
	free(r);
	return e;
}

/* ---- sending ---- */

static enum err send_block(struct stc_copy *c)
{
	struct iovec v[XF_SPANS];
	uint64_t sum = 0;
	size_t n = (size_t)MIN_OF(c->total - c->moved, (uint64_t)OBJ_BLOCK);
	size_t k = user_spans(c, n, v);
	if (k == 0 && !bounce(c))
		return ERR_NO_MEMORY;
	uint64_t at = c->moved;
	user_advance(c, n, k ? NULL : c->bounce, false);
	if (k == 0)
		v[k++] = (struct iovec){ c->bounce, n };
	enum err e = xf_sum(v, k, &sum);
	if (e != ERR_NONE)
		return e;
	if (c->vector)
		c->vector[at / OBJ_BLOCK] = htole64(sum);
	else
		c->sum = sum;
	c->sent_bytes = n;
	return lane_cli_data(&c->f->dlane->cli, at, v, k, n, sum);
}

static enum err send_vector(struct stc_copy *c)
{
	size_t n = (size_t)MIN_OF(c->vector_left, (uint64_t)XF_DATA_MAX);
	uint64_t all = obj_blocks(c->size) * sizeof(uint64_t);
	struct iovec v = { vector_at(c), n };
	uint64_t at = obj_vector_at(c->size) + all - c->vector_left;
	c->vector_left -= n;
	return lane_cli_data(&c->f->dlane->cli, at, &v, 1, n, sum64(v.iov_base, n));
}

static enum err send_next(struct stc_copy *c)
{
	count(c, c->sent_bytes);
	c->sent_bytes = 0;
	if (c->moved < c->total)
		return send_block(c);
	if (c->vector_left > 0)
		return send_vector(c);
	if (c->vector)
		c->sum = sum_of_blocks(c->vector, obj_blocks(c->size));
	FAULT_AT(put_copied);
	return lane_cli_last(&c->f->dlane->cli);
}

/* ---- the lane ---- */

static enum err start_lane(struct stc_dlane *l)
{
	const struct stc *s = l->s;
	struct why why = { 0 };
	struct lane_cli_opts o = { .keys = s->o.keys,
				   .tenant = s->tenant,
				   .holder = l->peer->holder,
				   .instance = s->instance,
				   .mac_data = !xf_addr_is_loopback(&l->to) };
	l->started = true;
	return lane_cli_init(&l->cli, &o, &why);
}

static enum err dial(struct stc_dlane *l)
{
	int on = 1;
	l->fd = socket(l->to.sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0)
		return ERR_BUSY;
	(void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(l->fd, (struct sockaddr *)&l->to.sa, l->to.n) != 0 && errno != EINPROGRESS)
		return ERR_UNREACHABLE;
	return start_lane(l);
}

/* One send or receive; *n 0: the socket has no more of it now. */
static enum err transfer(struct stc_dlane *l, bool out, size_t *n)
{
	struct iovec v[XF_IOV];
	size_t k = out ? lane_cli_out(&l->cli, v) : lane_cli_want(&l->cli, v);
	struct msghdr m = { .msg_iov = v, .msg_iovlen = k };
	ssize_t r;
	*n = 0;
	if (k == 0)
		return ERR_NONE;
	do
		r = out ? sendmsg(l->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL)
			: recvmsg(l->fd, &m, MSG_DONTWAIT);
	while (r < 0 && errno == EINTR);
	if (r < 0 && errno == EAGAIN)
		return ERR_NONE;
	if (r <= 0)
		return l->cli.pipe.secure ? ERR_CONN_LOST : ERR_UNREACHABLE;
	*n = (size_t)r;
	if (out)
		lane_cli_sent(&l->cli, *n);
	else
		lane_cli_got(&l->cli, *n);
	return ERR_NONE;
}

/* Frames that were damaged on the way may come right another time; only bytes that are wrong where they
 * lie are CORRUPT. */
static enum err on_the_way(const struct stc_copy *c, enum err e)
{
	bool damaged = e == ERR_UNAUTHENTICATED || e == ERR_REPLAYED || e == ERR_BAD_MESSAGE ||
		       e == ERR_TOO_LARGE || e == ERR_STALE_SESSION;
	return damaged || (e == ERR_CORRUPT && c->write) ? ERR_CONN_LOST : e;
}

static enum err lane_err(const struct stc_copy *c)
{
	const struct lane_cli *l = &c->f->dlane->cli;
	enum err e = l->pipe.err;
	if (c->bad)
		return ERR_CORRUPT;
	if (!l->pipe.secure)
		return e;
	return e == ERR_CORRUPT ? ERR_CONN_LOST : on_the_way(c, e);
}

/* Bytes out, else bytes in. While a put waits to send, an END may come. */
static enum err pump(struct stc_copy *c, size_t *n)
{
	struct stc_dlane *l = c->f->dlane;
	enum err e = ERR_NONE;
	*n = 0;
	c->sends = !xf_pipe_idle(&l->cli.pipe);
	if (c->sends)
		e = transfer(l, true, n);
	if (e == ERR_CONN_LOST && c->write) /* what it said before it hung up */
		e = transfer(l, false, n) == ERR_NONE && *n > 0 ? ERR_NONE : e;
	else if (e == ERR_NONE && *n == 0)
		e = transfer(l, false, n);
	return e == ERR_NONE && l->cli.pipe.err != ERR_NONE ? lane_err(c) : e;
}

/* The next thing to be said, when nothing is on its way. */
static enum err drive(struct stc_copy *c)
{
	struct lane_cli *l = &c->f->dlane->cli;
	/* refused in the middle of what is said: why, before the wire breaks */
	if (c->asked && l->state == CLI_READY && l->status != ERR_NONE)
		return on_the_way(c, l->status);
	if (!xf_pipe_idle(&l->pipe))
		return ERR_NONE;
	if (l->state == CLI_WRITING)
		return send_next(c);
	if (l->state != CLI_READY)
		return ERR_NONE;
	c->ended = c->asked && (c->write || c->moved == c->total);
	if (c->ended)
		return ERR_NONE;
	if (c->asked && c->asked_ranges == c->f->it->n_ranges)
		return ERR_BAD_MESSAGE; /* END, and not all that was asked for came */
	c->asked = true;
	return c->write ? lane_cli_put(l, c->ticket) : ask_get(c);
}

static bool wait_for(struct stc_dlane *l, bool sends)
{
	struct pollfd p = { .fd = l->fd, .events = (short)(sends ? POLLIN | POLLOUT : POLLIN) };
	return poll(&p, 1, LANE_POLL_MS) > 0;
}

static bool stopped(const struct stc_copy *c)
{
	return __atomic_load_n(&c->stop, __ATOMIC_RELAXED);
}

void remote_step(struct job *j)
{
	struct stc_copy *c = container_of(j, struct stc_copy, job);
	struct stc_dlane *l = c->f->dlane;
	uint64_t from = c->moved, limit = c->f->w->s->o.step_bytes;
	enum err e = l->fd < 0 ? dial(l) : ERR_NONE;
	while (e == ERR_NONE && !stopped(c) && c->moved - from < limit) {
		size_t n = 0;
		e = drive(c);
		if (e != ERR_NONE || c->ended)
			break;
		e = pump(c, &n);
		if (e == ERR_NONE && n == 0 && !wait_for(l, c->sends)) {
			c->blocked = true;
			break;
		}
	}
	j->err = e;
}

/* ---- the loop's side ---- */

static void on_step(struct job *j)
{
	struct stc_copy *c = container_of(j, struct stc_copy, job);
	struct stc_flow *f = c->f;
	const struct lane_cli *l = &f->dlane->cli;
	if (j->err != ERR_NONE && f->err != j->err) {
		const char *text = l->pipe.err != ERR_NONE ? l->pipe.why.text : l->text;
		flow_note(f, j->err, 0, f->dlane->peer->holder, "copy", "data lane to %s: %s",
			  f->dlane->peer->addr,
			  f->dlane->started && text[0] ? text : err_text(j->err));
	}
	op_resume(&f->op);
}

static void on_lookup(void *arg, enum err e, const struct xf_addr *a, const char *text)
{
	struct stc_flow *f = arg;
	struct stc_dlane *l = f->dlane;
	l->lookup = NULL;
	if (e == ERR_NONE)
		l->to = *a;
	else
		flow_note(f, ERR_UNREACHABLE, 0, l->peer->holder, "connect",
			  "data lane to %s: %s", l->peer->addr, text);
	f->copy->job.err = e == ERR_NONE ? e : ERR_UNREACHABLE;
	op_resume(&f->op);
}

/* Where the lane goes. False: a name is being looked up, which resumes f, or failed (job.err). */
static bool find_addr(struct stc_flow *f)
{
	struct stc_dlane *l = f->dlane;
	struct stc_copy *c = f->copy;
	if (l->fd >= 0 || l->to.n > 0 || xf_addr_digits(l->peer->addr, &l->to))
		return true;
	flow_turn_over(f); /* no worker, and nobody's turn: L4 */
	c->job.err = xf_lookup(f->w->s->o.loop, l->peer->addr, STC_STALL_MS, on_lookup, f,
			       &l->lookup);
	if (c->job.err != ERR_NONE)
		flow_note(f, c->job.err, 0, l->peer->holder, "connect",
			  "data lane to %s: no address", l->peer->addr);
	return false;
}

bool remote_copy(struct stc_flow *f)
{
	struct stc_copy *c = f->copy;
	if (c->blocked) {
		flow_turn_over(f);
		if (dlane_wait(f))
			return false;
		c->job.err = ERR_BUSY;
		return true;
	}
	if (!find_addr(f))
		return c->job.err != ERR_NONE;
	if (!f->in_turn && !flow_turn(f))
		return false;
	c->job.work = remote_step;
	c->job.done = on_step;
	c->job.err = pool_submit(f->w->s->pool, &c->job);
	return c->job.err != ERR_NONE;
}

void remote_stop(struct stc_flow *f)
{
	if (f->dlane->lookup) {
		xf_lookup_drop(TAKE(f->dlane->lookup));
		op_resume(&f->op);
		return;
	}
	if (dlane_unwait(f))
		return;
	if (list_linked(&f->node)) { /* it waits for its turn */
		list_del(&f->node);
		op_resume(&f->op);
		return;
	}
	__atomic_store_n(&f->copy->stop, true, __ATOMIC_RELAXED);
}
