/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of data lanes: sockets, frames, read tickets. Thread: its own, but where said. */
#include "agent.h"

#include "loop/thread.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	EVENTS = 64,
	TICK_MS = 250,
	TURN_BYTES = 8 << 20, /* of one connection before the others have their turn */
	ARENA_TICKET = 32 << 10,
};

static uint64_t now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

/* ---- tickets: lane_srv's questions ---- */

static enum lane_open no(struct why *why, enum err e, const char *text)
{
	*why = (struct why){ 0 };
	why_note(why, e, "%s", text);
	return LANE_REFUSED;
}

/* D2 */
static bool pin(struct xfa_data_conn *c, uint32_t slot, uint64_t generation, bool *unverified)
{
	struct xfa_data *d = c->t->d;
	pthread_mutex_lock(&d->pins.lock);
	bool ok = mempool_generation(d->x->pool, slot, unverified) == generation;
	if (ok) {
		c->generation = generation;
		d->pins.slots[c->idx] = slot + 1ull;
		d->pins.n++;
	}
	pthread_mutex_unlock(&d->pins.lock);
	return ok;
}

static void unpin(struct xfa_data_conn *c)
{
	struct xfa_data *d = c->t->d;
	pthread_mutex_lock(&d->pins.lock);
	d->pins.slots[c->idx] = 0;
	d->pins.n--;
	pthread_mutex_unlock(&d->pins.lock);
}

static enum lane_open open_get(struct xfa_data_conn *c, const struct msg_ticket *t,
			       struct lane_obj *out, struct why *why)
{
	const struct mempool *pool = c->t->d->x->pool;
	const struct peer *peer = &c->srv.peer;
	if (t->op != TICKET_READ)
		return no(why, ERR_BAD_TICKET, "GET takes a read ticket, this is none");
	if (peer->role == ROLE_CLIENT && (t->tenant.n != strlen(peer->tenant) ||
					  memcmp(t->tenant.p, peer->tenant, t->tenant.n) != 0))
		return no(why, ERR_BAD_TICKET, "the ticket is another tenant's");
	if (memcmp(t->pool, mempool_id(pool), 16) != 0)
		return no(why, ERR_LEASE_LOST, "the ticket is for another pool");
	*out = (struct lane_obj){ .n_ext = (uint32_t)t->extents.n,
				  .size = t->size,
				  .sum = t->sum };
	for (size_t i = 0; i < t->extents.n; i++) {
		const struct msg_extent *m = &t->extents.p[i];
		struct extent e = { m->segment, m->offset, m->bytes };
		out->ext[i] = (struct iovec){ mempool_at(pool, &e), (size_t)m->bytes };
		if (!out->ext[i].iov_base)
			return no(why, ERR_BAD_TICKET, "an extent lies outside the pool");
	}
	if (!pin(c, t->slot, t->generation, &out->check))
		return no(why, ERR_LEASE_LOST, "the slot has another generation now");
	return LANE_OPENED;
}

static enum lane_open on_get(void *ctx, struct bytes ticket, struct lane_obj *out,
			     struct why *why)
{
	struct xfa_data_conn *c = ctx;
	struct arena a = ARENA_INIT(ARENA_TICKET);
	struct msg_ticket t;
	enum lane_open r = LANE_REFUSED;
	if (ticket_open(c->t->tickets, ticket, &a, &t, why) == ERR_NONE)
		r = open_get(c, &t, out, why);
	arena_fini(&a);
	if (r == LANE_REFUSED)
		atomic_fetch_add(&c->t->d->counts.get_refused, 1);
	return r;
}

/* What is committed and fenced is the loop's to know. */
static enum lane_open on_put(void *ctx, struct bytes ticket, struct lane_obj *out,
			     struct why *why)
{
	struct xfa_data_conn *c = ctx;
	if (ticket.n == 0 || ticket.n > sizeof(c->sealed)) {
		atomic_fetch_add(&c->t->d->counts.put_refused, 1);
		return no(why, ERR_BAD_TICKET, "PUT takes a write ticket, this is none");
	}
	memcpy(c->sealed, ticket.p, ticket.n);
	c->n_sealed = ticket.n;
	c->asking = true;
	loop_post(c->t->d->x->svc.loop, &c->post);
	return LANE_LATER;
}

static enum err on_look(void *ctx)
{
	struct xfa_data_conn *c = ctx;
	return lane_look(c->lane, mempool_ctl(c->t->d->x->pool), c->shard, c->pool_epoch,
			 c->version);
}

static void on_end(void *ctx, bool put, bool all)
{
	struct xfa_data_conn *c = ctx;
	struct xfa_data_counts *n = &c->t->d->counts;
	if (put)
		lane_end(c->lane);
	else
		unpin(c);
	atomic_fetch_add(put   ? all ? &n->put_ok : &n->put_cut
			 : all ? &n->get_ok
			       : &n->get_cut,
			 1);
}

static void on_corrupt(void *ctx)
{
	struct xfa_data_conn *c = ctx;
	struct xfa_data *d = c->t->d;
	atomic_fetch_add(&d->counts.corrupt, 1);
	pthread_mutex_lock(&d->pins.lock);
	if (d->pins.n_doubts < XFA_DATA_DOUBTS_MAX) /* it is pinned */
		d->pins.doubts[d->pins.n_doubts++] =
			(struct xfa_data_doubt){ (uint32_t)(d->pins.slots[c->idx] - 1),
						 c->generation };
	pthread_mutex_unlock(&d->pins.lock);
}

/* ---- connections ---- */

/* What is no handshake at all is not its address's fault, as a wrong key is: it is only told less often. */
static bool noise_told(struct xfa_data_thread *t, uint64_t now, uint64_t *times)
{
	t->n_noise++;
	if (t->noise_ns && now - t->noise_ns < NS_PER_S)
		return false;
	t->noise_ns = now;
	*times = t->n_noise;
	t->n_noise = 0;
	return true;
}

static void lane_closed(struct xfa_data_conn *c)
{
	struct xfa_data *d = c->t->d;
	enum err e = c->srv.pipe.err;
	uint64_t repeated = 1;
	if (e == ERR_NONE || e == ERR_STALE_EPOCH || e == ERR_STALE_ATTEMPT)
		return;
	atomic_fetch_add(e == ERR_UNAUTHENTICATED ? &d->counts.lanes_key : &d->counts.lanes_bad,
			 1);
	if (e == ERR_UNAUTHENTICATED
		    ? auth_limit_failed(c->t->limit, c->source, now_ns(), &repeated)
		    : noise_told(c->t, now_ns(), &repeated))
		LOG_WARN(&d->x->svc.log, "data",
			 "from=%s err=%s times=%llu msg=\"lane closed: %s\"", c->from,
			 err_name(e), (unsigned long long)repeated, c->srv.pipe.why.text);
}

static void drop(struct xfa_data_conn *c)
{
	if (c->fd >= 0) {
		lane_closed(c);
		(void)epoll_ctl(c->t->epoll, EPOLL_CTL_DEL, c->fd, NULL);
		close(c->fd);
		c->fd = -1;
		c->closing = true;
	}
	if (c->asking)
		return; /* its answer comes first */
	lane_srv_fini(&c->srv);
	list_del(&c->node);
	loop_post(c->t->d->x->svc.loop, &c->post); /* c is the loop's from here on */
}

static void interest(struct xfa_data_conn *c, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = c };
	if (c->events == events)
		return;
	c->events = events;
	(void)epoll_ctl(c->t->epoll, EPOLL_CTL_MOD, c->fd, &ev);
}

/* One send or receive. 0: the socket has no more of it, errno says why. */
static size_t transfer(struct xfa_data_conn *c, bool out, struct iovec *v, size_t n)
{
	struct msghdr m = { .msg_iov = v, .msg_iovlen = n };
	ssize_t r;
	do
		r = out ? sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL)
			: recvmsg(c->fd, &m, MSG_DONTWAIT);
	while (r < 0 && errno == EINTR);
	if (r > 0)
		return (size_t)r;
	if (r == 0)
		errno = ECONNRESET; /* the peer has gone */
	return 0;
}

static void moved(struct xfa_data_conn *c, bool out, size_t n)
{
	struct xfa_data_counts *k = &c->t->d->counts;
	c->moved_ns = now_ns();
	atomic_fetch_add_explicit(out ? &k->bytes_out : &k->bytes_in, n, memory_order_relaxed);
	if (out)
		lane_srv_sent(&c->srv, n);
	else
		lane_srv_got(&c->srv, n, c->moved_ns);
	if (!c->proven && c->srv.pipe.secure) {
		c->proven = true;
		atomic_fetch_add(&k->lanes_ok, 1);
	}
}

/* As far as the socket goes. The connection may be gone afterwards. */
static void pump(struct xfa_data_conn *c)
{
	struct iovec v[XF_IOV];
	for (size_t done = 0; done < TURN_BYTES;) {
		size_t n = lane_srv_out(&c->srv, v);
		bool out = n > 0;
		done += (size_t)lane_srv_hashed(&c->srv);
		if (!out && lane_srv_over(&c->srv)) {
			drop(c);
			return;
		}
		if (!out)
			n = lane_srv_want(&c->srv, v);
		if (n == 0) {
			interest(c, 0); /* the loop is asked */
			return;
		}
		size_t k = transfer(c, out, v, n);
		if (k == 0 && errno != EAGAIN) {
			drop(c);
			return;
		}
		if (k == 0) {
			interest(c, out ? EPOLLOUT : EPOLLIN);
			return;
		}
		moved(c, out, k);
		done += k;
	}
	interest(c, lane_srv_out(&c->srv, v) ? EPOLLOUT : EPOLLIN);
}

static const struct lane_srv_ops srv_ops = {
	.get = on_get, .put = on_put, .look = on_look, .end = on_end, .corrupt = on_corrupt
};

static void begin(struct xfa_data_conn *c)
{
	struct xfa_data_thread *t = c->t;
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = c };
	int on = 1;
	c->ops = srv_ops;
	c->ops.ctx = c;
	struct lane_srv_opts o = { .ops = &c->ops,
				   .hello = t->hello,
				   .session = ++t->next_session,
				   .mac_data = c->srv.o.mac_data };
	lane_srv_init(&c->srv, &o);
	c->events = EPOLLIN;
	c->begun_ns = c->moved_ns = now_ns();
	list_push_back(&t->conns, &c->node);
	(void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (!auth_limit_allow(t->limit, c->source, c->moved_ns) ||
	    epoll_ctl(t->epoll, EPOLL_CTL_ADD, c->fd, &ev) != 0)
		drop(c);
	else
		pump(c);
}

/* The loop's answer about a write ticket. */
static void answered(struct xfa_data_conn *c)
{
	c->asking = false;
	if (c->closing) { /* what it was given goes back */
		if (c->err == ERR_NONE)
			lane_end(c->lane);
		drop(c);
		return;
	}
	if (c->err != ERR_NONE)
		atomic_fetch_add(&c->t->d->counts.put_refused, 1);
	lane_srv_opened(&c->srv, c->err, &c->obj, &c->why);
	lane_srv_cut(&c->srv); /* a fence may have come while it was opened */
	pump(c);
}

/* ---- the thread ---- */

static void take_mail(struct xfa_data_thread *t, bool *stop)
{
	struct list now;
	list_init(&now);
	pthread_mutex_lock(&t->lock);
	while (!list_empty(&t->mail))
		list_push_back(&now, list_pop_front(&t->mail));
	*stop = t->stop;
	pthread_mutex_unlock(&t->lock);
	while (!list_empty(&now)) {
		struct xfa_data_conn *c =
			list_entry(list_pop_front(&now), struct xfa_data_conn, mail);
		if (c->asking)
			answered(c);
		else
			begin(c);
	}
}

static void look_all(struct xfa_data_thread *t)
{
	if (!atomic_exchange(&t->look, false))
		return;
	list_for_each_safe (n, &t->conns) {
		struct xfa_data_conn *c = list_entry(n, struct xfa_data_conn, node);
		lane_srv_cut(&c->srv);
		if (c->srv.pipe.err != ERR_NONE && !c->closing)
			pump(c);
	}
}

/* D3 */
static void drop_still(struct xfa_data_thread *t, bool all)
{
	const struct xfa *x = t->d->x;
	uint64_t now = now_ns();
	list_for_each_safe (n, &t->conns) {
		struct xfa_data_conn *c = list_entry(n, struct xfa_data_conn, node);
		uint64_t limit = !c->proven ? x->ask_ms
				 : lane_srv_active(&c->srv) || !xf_pipe_idle(&c->srv.pipe)
					 ? x->data_stall_ms
					 : x->data_idle_ms;
		/* who has not proven itself gets that long in all, however it spreads its bytes */
		uint64_t since = c->proven ? c->moved_ns : c->begun_ns;
		if (!c->closing && (all || now - since >= limit * NS_PER_MS))
			drop(c);
	}
}

static void drop_leaving(struct xfa_data_thread *t)
{
	if (!atomic_exchange(&t->leave, false))
		return;
	list_for_each_safe (n, &t->conns) {
		struct xfa_data_conn *c = list_entry(n, struct xfa_data_conn, node);
		if (!c->closing && !c->proven && atomic_load(&c->leave))
			drop(c);
	}
}

static void on_events(struct xfa_data_thread *t, const struct epoll_event *ev, int n)
{
	for (int i = 0; i < n; i++) {
		struct xfa_data_conn *c = ev[i].data.ptr;
		uint64_t count;
		if (!c) {
			if (read(t->event, &count, sizeof(count)) < 0)
				continue;
		} else if (!c->closing && c->events == 0) {
			drop(c); /* hung up while the loop was asked */
		} else if (!c->closing) {
			pump(c);
		}
	}
}

static void *run(void *arg)
{
	struct xfa_data_thread *t = arg;
	struct epoll_event ev[EVENTS];
	uint64_t tick = now_ns();
	bool stop = false;
	while (!stop || !list_empty(&t->conns)) {
		int n = epoll_wait(t->epoll, ev, EVENTS, TICK_MS);
		on_events(t, ev, n);
		take_mail(t, &stop);
		look_all(t);
		drop_leaving(t);
		if (stop || now_ns() - tick >= TICK_MS * NS_PER_MS) {
			tick = now_ns();
			drop_still(t, stop);
		}
	}
	loop_post(t->d->x->svc.loop, &t->ended);
	return NULL;
}

/* ---- from the loop ---- */

void xfa_data_wake(struct xfa_data_thread *t)
{
	uint64_t one = 1;
	if (write(t->event, &one, sizeof(one)) < 0)
		return; /* it is awake */
}

void xfa_data_mail(struct xfa_data_conn *c)
{
	struct xfa_data_thread *t = c->t;
	pthread_mutex_lock(&t->lock);
	list_push_back(&t->mail, &c->mail);
	pthread_mutex_unlock(&t->lock);
	xfa_data_wake(t);
}

static void parts_fini(struct xfa_data_thread *t)
{
	hello_server_free(t->hello);
	ticket_key_free(t->tickets);
	auth_limit_free(t->limit);
	if (t->epoll >= 0)
		close(t->epoll);
	if (t->event >= 0)
		close(t->event);
	pthread_mutex_destroy(&t->lock);
}

static enum err parts_init(struct xfa_data *d, struct xfa_data_thread *t)
{
	const struct svc *s = &d->x->svc;
	struct epoll_event ev = { .events = EPOLLIN };
	struct hello_server_opts o = { .keys = s->keys,
				       .role = ROLE_HOLDER,
				       .listener = "agent",
				       .holder = s->id,
				       .instance = s->instance,
				       .v_min = WIRE_VERSION_MIN,
				       .v_max = WIRE_VERSION };
	t->d = d;
	list_init(&t->conns);
	list_init(&t->mail);
	pthread_mutex_init(&t->lock, NULL);
	t->epoll = epoll_create1(EPOLL_CLOEXEC);
	t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->epoll < 0 || t->event < 0 ||
	    epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->event, &ev) != 0)
		return ERR_BUSY;
	enum err e = hello_server_new(&o, &t->hello);
	if (e == ERR_NONE)
		e = ticket_key_new(s->keys, s->id, &t->tickets);
	return e == ERR_NONE ? auth_limit_new(&t->limit) : e;
}

enum err xfa_data_thread_start(struct xfa_data *d, struct xfa_data_thread *t, struct why *why)
{
	enum err e = parts_init(d, t);
	if (e == ERR_NONE && thread_start(&t->thread, NULL, "pomelo-data", run, t) != 0)
		e = ERR_BUSY;
	if (e != ERR_NONE) {
		parts_fini(t);
		return why_set(why, e, "no thread for data lanes: %s", err_text(e));
	}
	return ERR_NONE;
}

void xfa_data_thread_fini(struct xfa_data_thread *t)
{
	(void)pthread_join(t->thread, NULL);
	parts_fini(t);
}
