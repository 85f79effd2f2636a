/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sp engine: SP's REQ/REP on libuv streams, nng-compatible, without nng's threads. This file is
 * the server: connections, their limits, tokens.
 *
 * I1: a connection is freed when its pipe is closed and its last token has ended.
 * I2: every open connection is on `all`, a not yet known one on `anon` too, oldest first; both have
 *     their limits (conns_max, conns_anon_max).
 * I3: a sweep looks at SWEEP_N connections at most, so that ten thousand idle ones cost nothing.
 *
 * Thread: the loop's.
 */
#include "rpc/sp_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SWEEP_N		256
#define SWEEP_MS_MAX	500
#define SWEEP_MS_MIN	5
#define RETRY_MS	100
#define TOKEN_BIG	(1ull << 32)
#define REPLY_PARTS_MAX 6

struct eng_server {
	struct loop *loop;
	struct sp_hub *hub;
	struct eng_server_opts o;
	struct list listeners, all, anon;
	uint64_t n_open, n_anon;
	uint64_t held;	 /* bytes of large frames */
	uint32_t n_refs; /* connections, listeners: what must go before the server does */
	struct timer sweep, flush;
	bool draining;
	void (*closed)(void *arg);
	void *arg;
	struct post post;
};

struct sp_conn {
	struct eng_conn c;
	struct sp_pipe pipe;
	struct eng_server *server;
	struct list all, anon;
	uint64_t accepted_ns;
	uint32_t n_tokens;
	bool told, left, gone;
	struct sp_cred cred; /* ipc */
	/* what the last sweep saw */
	uint64_t mark_frames, mark_written, read_ns, write_ns;
};

/* A token with more to it than a request id: a large request, or one that came through devices. */
struct sp_big {
	struct sp_conn *conn;
	uint8_t *owned;
	size_t n_owned, n_hdr;
	uint8_t hdr[4 * SP_HOPS_MAX];
};

/* ---- connections ---- */

static void server_unref(struct eng_server *s);

static void conn_name(const struct eng_conn *ec, char *out, size_t size)
{
	const struct sp_conn *c = container_of((struct eng_conn *)ec, struct sp_conn, c);
	if (c->pipe.rx.ipc) {
		snprintf(out, size, "ipc pid %d uid %u", c->cred.pid, c->cred.uid);
		return;
	}
	struct sockaddr_storage sa = { 0 };
	int n = sizeof(sa);
	char host[64] = "?";
	unsigned port = 0;
	if (!c->pipe.closing &&
	    uv_tcp_getpeername(&c->pipe.u.tcp, (struct sockaddr *)&sa, &n) == 0) {
		bool six = sa.ss_family == AF_INET6;
		if (six)
			uv_ip6_name((struct sockaddr_in6 *)&sa, host, sizeof(host));
		else
			uv_ip4_name((struct sockaddr_in *)&sa, host, sizeof(host));
		port = ntohs(six ? ((struct sockaddr_in6 *)&sa)->sin6_port
				 : ((struct sockaddr_in *)&sa)->sin_port);
	}
	snprintf(out, size, "tcp %s:%u", host, port);
}

static void conn_release(struct sp_conn *c)
{
	struct eng_server *s = c->server;
	if (!c->gone || c->n_tokens > 0)
		return;
	free(c);
	server_unref(s);
}

static void leave_anon(struct sp_conn *c)
{
	if (!list_linked(&c->anon))
		return;
	list_del(&c->anon);
	c->server->n_anon--;
}

/* It counts no more, though libuv still has it. */
static void conn_leave(struct sp_conn *c)
{
	leave_anon(c);
	if (c->left)
		return;
	c->left = true;
	c->server->n_open--;
	c->server->o.counters->conns_open--;
}

static void conn_drop(struct sp_conn *c)
{
	if (!c->left)
		c->server->o.counters->conns_dropped++;
	conn_leave(c);
	sp_pipe_close(&c->pipe);
}

static void on_closed(struct sp_pipe *p)
{
	struct sp_conn *c = container_of(p, struct sp_conn, pipe);
	struct eng_server *s = c->server;
	conn_leave(c);
	list_del(&c->all);
	c->gone = true;
	c->n_tokens++; /* ours, while the core ends its own */
	if (c->told)
		s->o.events->closed(s->o.ctx, &c->c);
	c->n_tokens--;
	conn_release(c);
}

/* A peer that goes away is no news; one that breaks the protocol is, once. */
static void on_ended(struct sp_pipe *p, enum err e, const char *text)
{
	struct sp_conn *c = container_of(p, struct sp_conn, pipe);
	struct eng_server *s = c->server;
	char name[96];
	if (e == ERR_CONN_LOST) {
		conn_leave(c);
		sp_pipe_close(p);
		return;
	}
	conn_name(&c->c, name, sizeof(name));
	s->o.counters->bad_frames++;
	LOG_WARN(s->o.log, "rpc", "peer=\"%s\" err=%s msg=\"%s; connection closed\"", name,
		 err_name(e), text);
	conn_drop(c);
}

/* ---- requests ---- */

static bool make_big(struct sp_conn *c, struct bytes body, size_t n_hdr, uint8_t *owned,
		     struct eng_token *t)
{
	struct sp_big *b = malloc(sizeof(*b));
	if (!b)
		return false;
	*b = (struct sp_big){ .conn = c, .owned = owned, .n_owned = body.n, .n_hdr = n_hdr };
	memcpy(b->hdr, body.p, n_hdr);
	*t = (struct eng_token){ .p = b, .u = TOKEN_BIG };
	return true;
}

static void on_frame(struct sp_pipe *p, struct bytes body, uint8_t *owned)
{
	struct sp_conn *c = container_of(p, struct sp_conn, pipe);
	struct eng_server *s = c->server;
	size_t n_hdr;
	struct eng_token t = { .p = c };
	if (!sp_req_hdr(body, &n_hdr)) {
		on_ended(p, ERR_BAD_MESSAGE, "a request without an id");
		goto fail;
	}
	if (n_hdr == 4 && !owned) {
		t.u = sp_u32(body.p);
	} else if (!make_big(c, body, n_hdr, owned, &t)) {
		on_ended(p, ERR_NO_MEMORY, "no memory for a request");
		goto fail;
	}
	c->n_tokens++;
	c->told = true;
	s->o.events->request(s->o.ctx, &c->c, t, BYTES(body.p + n_hdr, body.n - n_hdr),
			     owned ? ENG_STABLE : ENG_BORROWED);
	return;

fail:
	if (owned) {
		s->held -= body.n;
		free(owned);
	}
}

static const struct sp_pipe_ops pipe_ops = {
	.frame = on_frame,
	.ended = on_ended,
	.closed = on_closed,
};

static struct sp_conn *token_conn(struct eng_token t)
{
	return t.u & TOKEN_BIG ? ((struct sp_big *)t.p)->conn : t.p;
}

static void token_end(struct eng_server *s, struct eng_token t)
{
	struct sp_conn *c = token_conn(t);
	if (t.u & TOKEN_BIG) {
		struct sp_big *b = t.p;
		if (b->owned) {
			s->held -= b->n_owned;
			free(b->owned);
			sp_hub_fed(s->hub);
		}
		free(b);
	}
	c->n_tokens--;
	conn_release(c);
}

/* The total is over its limit: whoever reads least pays, not whoever comes last. */
static void shed_queue(struct eng_server *s)
{
	struct sp_conn *worst = NULL;
	char name[96];
	list_for_each (n, &s->all) {
		struct sp_conn *c = container_of(n, struct sp_conn, all);
		if (!c->pipe.closing && (!worst || c->pipe.queued > worst->pipe.queued))
			worst = c;
	}
	if (!worst)
		return;
	conn_name(&worst->c, name, sizeof(name));
	LOG_WARN(s->o.log, "rpc",
		 "peer=\"%s\" queued_bytes=%llu msg=\"does not read its replies; connection "
		 "closed\"",
		 name, (unsigned long long)worst->pipe.queued);
	conn_drop(worst);
}

static void sp_reply(struct eng_server *s, struct eng_token t, const struct bytes *parts, int n)
{
	struct sp_conn *c = token_conn(t);
	struct bytes all[REPLY_PARTS_MAX + 1];
	uint8_t id[4];
	assert(n <= REPLY_PARTS_MAX);
	if (t.u & TOKEN_BIG) {
		struct sp_big *b = t.p;
		all[0] = BYTES(b->hdr, b->n_hdr);
	} else {
		sp_put_u32(id, (uint32_t)t.u);
		all[0] = BYTES(id, sizeof(id));
	}
	for (int i = 0; i < n; i++)
		all[i + 1] = parts[i];
	if (!sp_pipe_send(&c->pipe, all, n + 1))
		sp_pipe_break(&c->pipe,
			      UV_ENOMEM); /* or it is closing: then this does nothing */
	if (s->o.counters->bytes_queued > s->o.limits.queue_bytes_max)
		shed_queue(s);
	token_end(s, t);
}

static void sp_drop(struct eng_server *s, struct eng_token t)
{
	conn_drop(token_conn(t));
	token_end(s, t);
}

static void sp_known(struct eng_server *s, struct eng_conn *ec)
{
	struct sp_conn *c = container_of(ec, struct sp_conn, c);
	ec->known = true;
	leave_anon(c);
	c->pipe.rx.max = s->o.limits.message_bytes_max;
}

static void sp_conn_close(struct eng_server *s, struct eng_conn *ec)
{
	struct sp_conn *c = container_of(ec, struct sp_conn, c);
	if (!c->left)
		s->o.counters->conns_dropped++;
	conn_leave(c);
	sp_pipe_finish(&c->pipe);
}

/* ---- accepting ---- */

static void drop_oldest_anon(struct eng_server *s)
{
	conn_drop(container_of(s->anon.next, struct sp_conn, anon));
}

/* Unix sockets: the same user, or root. The secret is asked for all the same. */
static bool cred_ok(struct sp_conn *c)
{
	struct eng_server *s = c->server;
	if (!c->pipe.rx.ipc)
		return true;
	if (sp_cred_get(&c->pipe.u.handle, &c->cred) &&
	    (c->cred.uid == 0 || c->cred.uid == geteuid()))
		return true;
	LOG_WARN(s->o.log, "rpc",
		 "peer=\"ipc pid %d uid %u\" err=FORBIDDEN msg=\"only uid %u and root may "
		 "connect here\"",
		 c->cred.pid, c->cred.uid, (unsigned)geteuid());
	return false;
}

/* Makes room for one more; false: it has to go itself. */
static bool admit(struct eng_server *s)
{
	if (s->n_open > s->o.limits.conns_max && s->n_anon == 0)
		return false;
	if (s->n_open > s->o.limits.conns_max || s->n_anon >= s->o.limits.conns_anon_max)
		drop_oldest_anon(s);
	return true;
}

static void sweep(struct timer *t);

static void arm_sweep(struct eng_server *s)
{
	uint64_t ms = MIN_OF(s->o.limits.handshake_ms, s->o.limits.frame_ms) / 8;
	ms = MIN_OF(MAX_OF(ms, (uint64_t)SWEEP_MS_MIN), (uint64_t)SWEEP_MS_MAX);
	if (!timer_running(&s->sweep) && s->n_open > 0)
		timer_start(s->loop, &s->sweep, loop_now_ns(s->loop) + ms * NS_PER_MS, sweep);
}

static struct sp_conn *conn_new(struct eng_server *s, const struct sp_listener *l)
{
	struct sp_conn *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->server = s;
	list_init(&c->c.requests);
	c->accepted_ns = c->read_ns = c->write_ns = loop_now_ns(s->loop);
	c->pipe.rx.peer_proto = SP_PROTO_REQ;
	c->pipe.rx.max = s->o.limits.anon_message_bytes_max;
	c->pipe.rx.held = &s->held;
	c->pipe.rx.held_max = s->o.limits.inside_bytes_max;
	c->pipe.queue_max = s->o.limits.conn_queue_bytes_max;
	c->pipe.all_queued = &s->o.counters->bytes_queued;
	c->pipe.bytes_in = &s->o.counters->bytes_in;
	c->pipe.bytes_out = &s->o.counters->bytes_out;
	if (l->tls && !(c->pipe.tls = sp_tls_new(l->tls, NULL))) {
		free(c);
		return NULL;
	}
	if (sp_pipe_init(&c->pipe, s->hub, &pipe_ops, l->ipc) != ERR_NONE) {
		sp_tls_free(c->pipe.tls);
		free(c);
		return NULL;
	}
	s->n_refs++;
	s->n_open++;
	s->o.counters->conns_open++;
	list_push_back(&s->all, &c->all);
	return c;
}

/* fd is the connection's now, or closed. */
static bool adopt(struct sp_conn *c, int fd)
{
	struct sp_pipe *p = &c->pipe;
	int r = p->rx.ipc ? uv_pipe_open(&p->u.pipe, fd) : uv_tcp_open(&p->u.tcp, fd);
	if (r != 0)
		close(fd);
	return r == 0;
}

static void on_conn(struct sp_listener *l, int fd)
{
	struct eng_server *s = l->owner;
	struct sp_conn *c = conn_new(s, l);
	if (!c) {
		s->o.counters->conns_refused++;
		close(fd);
		return;
	}
	if (!adopt(c, fd) || !cred_ok(c) || !admit(s)) {
		s->o.counters->conns_refused++;
		sp_pipe_close(&c->pipe);
		return;
	}
	s->o.counters->conns_accepted++;
	list_push_back(&s->anon, &c->anon);
	s->n_anon++;
	arm_sweep(s);
	sp_pipe_start(&c->pipe, SP_PROTO_REP);
}

static void on_refused(struct sp_listener *l, int sys)
{
	struct eng_server *s = l->owner;
	s->o.counters->conns_refused++;
	LOG_WARN(s->o.log, "rpc",
		 "err=BUSY msg=\"accept: %s; raise the descriptor limit (ulimit -n) or lower "
		 "conns_max\"",
		 uv_strerror(sys));
}

/* ---- deadlines ---- */

/* True while the peer keeps to frame_ms in both directions (limits: frame_ms). */
static bool conn_moves(struct sp_conn *c, uint64_t now)
{
	struct sp_pipe *p = &c->pipe;
	uint64_t max_ns = c->server->o.limits.frame_ms * NS_PER_MS;
	if (!sp_rx_partial(&p->rx) || p->rx.stop || p->n_frames != c->mark_frames) {
		c->mark_frames = p->n_frames;
		c->read_ns = now;
	}
	if (p->queued == 0 || p->n_written != c->mark_written) {
		c->mark_written = p->n_written;
		c->write_ns = now;
	}
	return now - c->read_ns < max_ns && now - c->write_ns < max_ns;
}

static void sweep_anon(struct eng_server *s, uint64_t now)
{
	uint64_t max_ns = s->o.limits.handshake_ms * NS_PER_MS;
	while (!list_empty(&s->anon)) {
		struct sp_conn *c = container_of(s->anon.next, struct sp_conn, anon);
		if (now - c->accepted_ns < max_ns)
			return;
		conn_drop(c);
	}
}

static void sweep(struct timer *t)
{
	struct eng_server *s = container_of(t, struct eng_server, sweep);
	uint64_t now = loop_now_ns(s->loop);
	sweep_anon(s, now);
	for (uint64_t i = 0; i < MIN_OF(s->n_open, (uint64_t)SWEEP_N); i++) {
		struct list *n = list_pop_front(&s->all);
		struct sp_conn *c = container_of(n, struct sp_conn, all);
		list_push_back(&s->all, n);
		if (!c->pipe.closing && !conn_moves(c, now))
			conn_drop(c);
	}
	arm_sweep(s);
}

/* ---- the server ---- */

static enum err server_new(struct loop *l, const struct eng_server_opts *o,
			   struct eng_server **out)
{
	struct eng_server *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	enum err e = sp_hub_ref(l, &s->hub);
	if (e != ERR_NONE) {
		free(s);
		return e;
	}
	s->loop = l;
	s->o = *o;
	s->n_refs = 1;
	list_init(&s->listeners);
	list_init(&s->all);
	list_init(&s->anon);
	*out = s;
	return ERR_NONE;
}

static void on_listener_closed(struct sp_listener *l)
{
	server_unref(l->owner);
}

static const struct sp_listener_ops listener_ops = {
	.conn = on_conn,
	.refused = on_refused,
	.closed = on_listener_closed,
};

static enum err sp_listen(struct eng_server *s, const char *addr, char *bound,
			  size_t bound_size, struct why *why)
{
	struct sp_listener *l;
	enum err e = sp_listener_new(s->loop, addr, &s->o.tls, &listener_ops, s, bound,
				     bound_size, &l, why);
	if (e != ERR_NONE)
		return e;
	s->n_refs++;
	list_push_back(&s->listeners, &l->node);
	return ERR_NONE;
}

static void drain(struct eng_server *s)
{
	struct list *n;
	s->draining = true;
	while ((n = list_pop_front(&s->listeners)))
		sp_listener_close(container_of(n, struct sp_listener, node));
}

static void close_all(struct timer *t)
{
	struct eng_server *s = container_of(t, struct eng_server, flush);
	list_for_each (n, &s->all)
		sp_pipe_close(&container_of(n, struct sp_conn, all)->pipe);
}

static void server_gone(struct post *p)
{
	struct eng_server *s = container_of(p, struct eng_server, post);
	void (*closed)(void *arg) = s->closed;
	void *arg = s->arg;
	sp_hub_unref(s->hub);
	free(s);
	closed(arg);
}

static void server_unref(struct eng_server *s)
{
	if (--s->n_refs > 0)
		return;
	timer_stop(s->loop, &s->sweep);
	timer_stop(s->loop, &s->flush);
	s->post.fn = server_gone;
	loop_defer(s->loop, &s->post);
}

static void server_close(struct eng_server *s, uint32_t flush_ms, void (*closed)(void *arg),
			 void *arg)
{
	s->closed = closed;
	s->arg = arg;
	drain(s);
	list_for_each (n, &s->all)
		sp_pipe_finish(&container_of(n, struct sp_conn, all)->pipe);
	timer_start(s->loop, &s->flush, clock_after_ms(loop_now_ns(s->loop), flush_ms),
		    close_all);
	server_unref(s);
}

static bool can(const char *addr)
{
	enum addr_scheme scheme;
	return addr_scheme(addr, &scheme) && scheme != ADDR_SIM;
}

const struct engine engine_sp = {
	.name = "sp",
	.can = can,
	.server_new = server_new,
	.listen = sp_listen,
	.reply = sp_reply,
	.drop = sp_drop,
	.known = sp_known,
	.conn_close = sp_conn_close,
	.conn_name = conn_name,
	.drain = drain,
	.server_close = server_close,
	.dial = sp_dial,
	.send = sp_send,
	.cancel = sp_cancel,
	.hangup = sp_hangup,
};
