/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetches over data lanes. Each holds a worker of its own pool while it runs; the worker waits for its
 * socket in slices, looking whether it is to stop, so a source that stands still holds one worker for
 * stall_ms and nothing else (L4). Lanes are kept by (holder, address) and used again.
 *
 * A frame without its sum says only that what was read is wrong: by the wire, or where it lies? The
 * source is asked (XF_CHECK): what it cannot find whole itself is ERR_CORRUPT, the rest ERR_CONN_LOST.
 *
 * A lane is the worker's from submit to done, the loop's otherwise.
 */
#include "xfer/fetch.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "xfer/lane_cli.h"

enum {
	SLICE_MS = 10, /* a stop is seen so soon */
	LOOKUP_MS = 5000,
};

struct fetch_lane {
	struct list node; /* x->idle; or none */
	struct fetch_lanes *x;
	int fd;
	bool started, reused;
	struct lane_cli cli;
	struct xf_addr to;
	uint64_t used_ns;
	char holder[65], addr[257];
};

struct fetch_lanes {
	struct fetch_lanes_opts o;
	uint8_t instance[16];
	struct pool *pool;
	struct list idle; /* the longest idle first */
	uint32_t n_idle, n_open, n_running;
	struct timer tick;
};

static uint64_t now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

/* ---- lanes ---- */

static void lane_hangup(struct fetch_lane *l)
{
	if (l->started)
		lane_cli_fini(&l->cli);
	l->started = false;
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
}

static void lane_free(struct fetch_lane *l)
{
	if (!l)
		return;
	lane_hangup(l);
	l->x->n_open--;
	free(l);
}

static struct fetch_lane *lane_new(struct fetch_lanes *x, const struct fetch *f)
{
	struct fetch_lane *l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->x = x;
	l->fd = -1;
	x->n_open++;
	(void)snprintf(l->holder, sizeof(l->holder), "%s", f->holder);
	(void)snprintf(l->addr, sizeof(l->addr), "%s", f->addr);
	return l;
}

/* The source closes a lane that is idle for long. */
static bool lane_works(const struct fetch_lane *l)
{
	char byte;
	return recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static struct fetch_lane *lane_idle(struct fetch_lanes *x, const struct fetch *f)
{
	list_for_each_safe (n, &x->idle) {
		struct fetch_lane *l = list_entry(n, struct fetch_lane, node);
		if (strcmp(l->holder, f->holder) != 0 || strcmp(l->addr, f->addr) != 0)
			continue;
		list_del(&l->node);
		x->n_idle--;
		if (lane_works(l)) {
			l->reused = true;
			return l;
		}
		lane_free(l);
	}
	return NULL;
}

static void on_tick(struct timer *t);

static void tick_soon(struct fetch_lanes *x)
{
	uint64_t now = loop_now_ns(x->o.loop);
	if (x->n_idle > 0 && !timer_running(&x->tick))
		timer_start(x->o.loop, &x->tick,
			    clock_after_ms(now, MAX_OF(x->o.idle_ms / 4, 10u)), on_tick);
}

static void drop_longest_idle(struct fetch_lanes *x)
{
	x->n_idle--;
	lane_free(list_entry(list_pop_front(&x->idle), struct fetch_lane, node));
}

static void on_tick(struct timer *t)
{
	struct fetch_lanes *x = container_of(t, struct fetch_lanes, tick);
	uint64_t limit = x->o.idle_ms * NS_PER_MS, now = now_ns();
	while (!list_empty(&x->idle) &&
	       now - list_entry(x->idle.next, struct fetch_lane, node)->used_ns >= limit)
		drop_longest_idle(x);
	tick_soon(x);
}

static void lane_keep(struct fetch_lanes *x, struct fetch_lane *l)
{
	bool good = l->started && l->cli.pipe.err == ERR_NONE && l->cli.state == CLI_READY &&
		    xf_pipe_idle(&l->cli.pipe);
	if (!good || x->o.idle_max == 0) {
		lane_free(l);
		return;
	}
	if (x->n_idle == x->o.idle_max)
		drop_longest_idle(x);
	l->used_ns = now_ns();
	list_push_back(&x->idle, &l->node);
	x->n_idle++;
	tick_soon(x);
}

/* ---- on a worker: the socket ---- */

struct run {
	struct fetch *f;
	struct fetch_lane *l;
	uint64_t moved_ns; /* of the last frame; I3 */
	uint8_t scratch;   /* where a check's byte lands */
	bool check;
};

static size_t on_land(void *ctx, uint64_t offset, size_t n, struct iovec *spans)
{
	struct run *r = ctx;
	if (!r->check)
		return fetch_land(r->f, offset, n, spans);
	spans[0] = (struct iovec){ &r->scratch, 1 };
	return n == 1;
}

static enum err on_landed(void *ctx, uint64_t offset, size_t n, uint64_t sum)
{
	struct run *r = ctx;
	r->moved_ns = now_ns();
	return r->check ? ERR_NONE : fetch_landed(r->f, offset, n, sum);
}

static const struct lane_cli_ops get_ops = { on_land, on_landed };

static enum err start_lane(struct fetch_lane *l, struct why *why)
{
	const struct fetch_lanes *x = l->x;
	struct lane_cli_opts o = { .keys = x->o.keys,
				   .holder = l->holder,
				   .instance = x->instance,
				   .as_holder = x->o.self,
				   .mac_data = !xf_addr_is_loopback(&l->to) };
	l->started = true;
	return lane_cli_init(&l->cli, &o, why);
}

static enum err dial(struct run *r)
{
	struct fetch_lane *l = r->l;
	struct why why = { 0 };
	int on = 1;
	lane_hangup(l);
	l->reused = false;
	l->fd = socket(l->to.sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0) {
		fetch_fail(r->f, ERR_BUSY, "no socket: %s", strerror(errno));
		return ERR_BUSY;
	}
	(void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(l->fd, (struct sockaddr *)&l->to.sa, l->to.n) != 0 &&
	    errno != EINPROGRESS) {
		fetch_fail(r->f, ERR_UNREACHABLE, "connect: %s", strerror(errno));
		return ERR_UNREACHABLE;
	}
	enum err e = start_lane(l, &why);
	if (e != ERR_NONE)
		fetch_fail(r->f, e, "%s", why.err ? why.text : err_text(e));
	return e;
}

/* One send or receive. ERR_BUSY: the socket has no more of it now. */
static enum err transfer(struct fetch_lane *l, bool *out)
{
	struct iovec v[XF_IOV];
	size_t k = lane_cli_out(&l->cli, v);
	*out = k > 0;
	if (!*out)
		k = lane_cli_want(&l->cli, v);
	struct msghdr m = { .msg_iov = v, .msg_iovlen = k };
	ssize_t n;
	do
		n = *out ? sendmsg(l->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL)
			 : recvmsg(l->fd, &m, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return ERR_BUSY;
	if (n <= 0)
		return l->cli.pipe.secure ? ERR_CONN_LOST : ERR_UNREACHABLE;
	if (*out)
		lane_cli_sent(&l->cli, (size_t)n);
	else
		lane_cli_got(&l->cli, (size_t)n);
	return ERR_NONE;
}

/* Nothing comes just now. */
static enum err wait_for(struct run *r, bool out)
{
	struct pollfd p = { .fd = r->l->fd, .events = out ? POLLOUT : POLLIN };
	(void)poll(&p, 1, SLICE_MS);
	if (r->f->stopped)
		return ERR_CANCELLED;
	if (now_ns() - r->moved_ns < r->f->stall_ms * NS_PER_MS)
		return ERR_NONE;
	fetch_fail(r->f, ERR_TIMED_OUT, "%s for %u ms",
		   r->l->cli.pipe.secure ? "no frame came" : "no answer to the handshake",
		   r->f->stall_ms);
	return ERR_TIMED_OUT;
}

/* Bytes go, until the lane is ready or over. */
static enum err until_ready(struct run *r)
{
	struct lane_cli *c = &r->l->cli;
	while (c->state != CLI_READY || !xf_pipe_idle(&c->pipe)) {
		bool out = false;
		enum err e = r->f->stopped ? ERR_CANCELLED : transfer(r->l, &out);
		if (e == ERR_BUSY)
			e = wait_for(r, out);
		if (e == ERR_NONE)
			e = c->pipe.err;
		if (e != ERR_NONE)
			return e;
	}
	return ERR_NONE;
}

/* Asks, and takes what comes. */
static enum err get(struct run *r, const struct xf_range *ranges, size_t n)
{
	struct lane_cli *c = &r->l->cli;
	enum err e = until_ready(r);
	r->moved_ns = now_ns();
	if (e == ERR_NONE)
		e = lane_cli_get(c, r->f->ticket, ranges, n, r->check, &get_ops, r);
	if (e == ERR_NONE)
		e = until_ready(r);
	if (e == ERR_NONE && c->status != ERR_NONE) {
		e = c->status;
		fetch_fail(r->f, e, "%s", c->text);
	}
	return e;
}

static bool is_damage(enum err e)
{
	return e == ERR_UNAUTHENTICATED || e == ERR_REPLAYED || e == ERR_BAD_MESSAGE ||
	       e == ERR_TOO_LARGE || e == ERR_STALE_SESSION;
}

/* Its bytes came without their sum: does the source find them whole? One byte of the block, checked. */
static enum err ask_source(struct run *r)
{
	struct xf_range one = { r->f->at, 1 };
	r->check = true;
	enum err e = dial(r);
	if (e == ERR_NONE)
		e = get(r, &one, 1);
	if (e == ERR_CANCELLED)
		return e;
	r->f->err = ERR_NONE;
	r->f->why = (struct why){ 0 };
	e = e == ERR_CORRUPT ? e : ERR_CONN_LOST;
	fetch_fail(r->f, e, "bytes at %llu fail their sum %s", (unsigned long long)r->f->at,
		   e == ERR_CORRUPT ? "where they lie" : "when they arrive");
	return e;
}

static enum err run(struct run *r)
{
	struct xf_range ranges[2];
	struct fetch *f = r->f;
	uint64_t from = f->at;
	size_t n = fetch_wanted(f, ranges);
	if (n == 0)
		return ERR_NONE;
	enum err e = r->l->fd < 0 ? dial(r) : ERR_NONE;
	if (e == ERR_NONE)
		e = get(r, ranges, n);
	/* one that was kept may have been closed meanwhile */
	if (e == ERR_CONN_LOST && r->l->reused && f->at == from && !f->stopped) {
		fetch_begin(f);
		e = dial(r);
		if (e == ERR_NONE)
			e = get(r, ranges, n);
	}
	if (e == ERR_NONE && !fetch_whole(f))
		e = ERR_BAD_MESSAGE; /* END, and not all that was asked for came */
	if (e == ERR_CORRUPT && !f->bad && f->err == ERR_NONE)
		return ask_source(r);
	if (is_damage(e) && r->l->cli.pipe.secure) {
		fetch_fail(f, ERR_CONN_LOST, "%s",
			   r->l->cli.pipe.err ? r->l->cli.pipe.why.text : "");
		return ERR_CONN_LOST;
	}
	return e;
}

static void work(struct job *j)
{
	struct fetch *f = container_of(j, struct fetch, job);
	struct run r = { .f = f, .l = f->lane, .moved_ns = now_ns() };
	enum err e = f->stopped ? ERR_CANCELLED : run(&r);
	const struct xf_pipe *p = &f->lane->cli.pipe;
	if (e != ERR_NONE) /* whatever said it first stays */
		fetch_fail(f, e, "%s", f->lane->started && p->err == e ? p->why.text : "");
}

/* ---- on the loop ---- */

static void over(struct fetch *f)
{
	struct fetch_lanes *x = f->engine;
	struct fetch_lane *l = TAKE(f->lane);
	if (l)
		lane_keep(x, l);
	f->running = false;
	x->n_running--;
	f->done(f);
}

static void on_work(struct job *j)
{
	over(container_of(j, struct fetch, job));
}

static void on_over(struct post *p)
{
	over(container_of(p, struct fetch, post));
}

/* Without a worker having begun. */
static void over_soon(struct fetch *f, enum err e, const char *text)
{
	struct fetch_lanes *x = f->engine;
	fetch_fail(f, e, "%s", text);
	f->post.fn = on_over;
	loop_defer(x->o.loop, &f->post);
}

static void submit(struct fetch *f)
{
	struct fetch_lanes *x = f->engine;
	f->job = (struct job){ .work = work, .done = on_work };
	if (pool_submit(x->pool, &f->job) != ERR_NONE)
		over_soon(f, ERR_BUSY, "more fetches at once than workers");
}

static void on_lookup(void *arg, enum err e, const struct xf_addr *a, const char *text)
{
	struct fetch *f = arg;
	f->lookup = NULL;
	if (e != ERR_NONE) {
		over_soon(f, e, text);
		return;
	}
	f->lane->to = *a;
	submit(f);
}

static void start(void *ctx, struct fetch *f)
{
	struct fetch_lanes *x = ctx;
	assert(!f->running && strlen(f->holder) < sizeof(f->lane->holder) &&
	       strlen(f->addr) < sizeof(f->lane->addr));
	fetch_begin(f);
	f->engine = x;
	f->running = true;
	f->stopped = false;
	x->n_running++;
	f->lane = lane_idle(x, f);
	if (!f->lane)
		f->lane = lane_new(x, f);
	if (!f->lane) {
		over_soon(f, ERR_NO_MEMORY, "no memory for a data lane");
		return;
	}
	if (f->lane->fd >= 0 || xf_addr_digits(f->addr, &f->lane->to)) {
		submit(f);
		return;
	}
	enum err e = xf_lookup(x->o.loop, f->addr, MIN_OF(f->stall_ms, (uint32_t)LOOKUP_MS),
			       on_lookup, f, &f->lookup);
	if (e != ERR_NONE)
		over_soon(f, e, "no address of data lanes");
}

static void stop(void *ctx, struct fetch *f)
{
	if (!f->running)
		return;
	f->stopped = true;
	if (!f->lookup)
		return;
	xf_lookup_drop(TAKE(f->lookup));
	over_soon(f, ERR_CANCELLED, "");
}

const struct fetch_ops fetch_lanes_ops = { start, stop };

enum err fetch_lanes_new(const struct fetch_lanes_opts *o, struct fetch_lanes **out)
{
	struct fetch_lanes *x = calloc(1, sizeof(*x));
	if (!x)
		return ERR_NO_MEMORY;
	x->o = *o;
	memcpy(x->instance, o->instance, sizeof(x->instance));
	list_init(&x->idle);
	struct pool_opts p = { .name = "pomelo-pull",
			       .n_threads = o->threads,
			       .depth = o->threads };
	enum err e = pool_new(o->loop, &p, &x->pool);
	if (e != ERR_NONE) {
		free(x);
		return e;
	}
	*out = x;
	return ERR_NONE;
}

void fetch_lanes_close(struct fetch_lanes *x)
{
	if (!x)
		return;
	assert(x->n_running == 0);
	timer_stop(x->o.loop, &x->tick);
	while (!list_empty(&x->idle))
		drop_longest_idle(x);
	assert(x->n_open == 0);
	pool_free(x->pool);
	free(x);
}

uint32_t fetch_lanes_open(const struct fetch_lanes *x, uint32_t *idle)
{
	*idle = x->n_idle;
	return x->n_open;
}
