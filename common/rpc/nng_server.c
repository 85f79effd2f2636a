/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server of the nng engine: one REP socket, contexts that each hold one request at a time.
 *
 * A slot is a context with its one aio. It goes round: idle -> receiving -> inside (the token is
 * the core's) -> sending -> idle; one operation at a time, the next only after the last one's post
 * was drained, so that an aio is never used while nng still holds it.
 *
 * I1: the bytes of requests inside plus what the receiving slots may yet bring stay within
 *     inside_bytes_max, one message more at most: that is how many slots receive.
 * I2: a slot's connection is NULL once that connection is gone; a conn is freed when nng has
 *     reported its end, never before.
 * I3: every operation of a slot was expected before it began (inbox.h I2); n_busy counts them.
 * I4: a server closes its contexts, then its socket, only when n_busy is 0.
 *
 * Thread: the loop's; on_aio runs on nng's.
 */
#include "rpc/nng_int.h"
#include "rpc/nng_sock.h"
#include "rpc/nng_tls.h"

#include <nng/protocol/reqrep0/rep.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Enough receiving contexts that one wake of the loop takes a batch. */
#define RECEIVERS_MAX 16
/* What a slot costs beside its message: context, aio, this struct. */
#define SLOT_BYTES    1024
/* At least this many unknown connections, however small inside_bytes_max is. */
#define ANON_MIN      8
/* nng says "sent" when it has taken the message; this much later the kernel has it. */
#define LINGER_MS     50
/* A closed pipe is reported within this, or nng is stuck (nng_sock.h I3). */
#define GONE_MS	      5000

enum slot_state { SLOT_IDLE, SLOT_RECV, SLOT_INSIDE, SLOT_SEND };

struct nng_conn {
	struct eng_conn c;
	struct eng_server *server;
	uint32_t pipe;
	struct list all, anon, slots;
	struct timer timer; /* handshake; then the linger of a close; then GONE_MS */
	uint64_t queued;
	bool told, finishing, killed;
};

struct slot {
	struct post post;
	nng_ctx ctx;
	nng_aio *aio;
	struct eng_server *server;
	struct nng_conn *conn; /* I2 */
	enum slot_state state;
	nng_msg *msg;	/* the request */
	size_t cost;	/* its share of inside */
	size_t n_reply; /* its share of queued */
	uint64_t turn;	/* the token's u: catches a token that is used twice */
	struct list all, idle, of_conn;
};

struct eng_server {
	struct loop *loop;
	struct eng_server_opts o;
	struct nsock sock;
	struct list slots, idle, conns, anon;
	uint32_t n_receiving, n_busy, n_sending, n_conns, n_anon;
	uint64_t inside, queued;
	bool opened, closing, stopping, stuck_told;
	struct timer timer;
	struct post gone;
	void (*closed)(void *arg);
	void *arg;
};

/* ---- slots ---- */

static void on_aio(void *arg)
{
	struct slot *sl = arg;
	loop_post(sl->server->loop, &sl->post);
}

static void on_slot(struct post *p);

static void slot_free(struct slot *sl)
{
	nng_ctx_close(sl->ctx); // NOLINT(clang-analyzer-unix.Malloc): counted references
	nng_aio_free(sl->aio);
	free(sl);
}

static struct slot *slot_new(struct eng_server *s)
{
	struct slot *sl = calloc(1, sizeof(*sl));
	if (!sl)
		return NULL;
	if (nng_ctx_open(&sl->ctx, s->sock.id) != 0) {
		free(sl);
		return NULL;
	}
	if (nng_aio_alloc(&sl->aio, on_aio, sl) != 0) {
		nng_ctx_close(sl->ctx);
		free(sl);
		return NULL;
	}
	sl->server = s;
	sl->post.fn = on_slot;
	list_push_back(&s->slots, &sl->all);
	return sl;
}

/* Its next operation begins: I3. */
static void slot_go(struct slot *sl, enum slot_state state, nng_duration timeout_ms)
{
	loop_expect(sl->server->loop);
	sl->server->n_busy++;
	sl->state = state;
	nng_aio_set_timeout(sl->aio, timeout_ms);
}

static uint32_t may_receive(const struct eng_server *s)
{
	uint64_t max = s->o.limits.inside_bytes_max;
	if (s->closing || s->inside >= max)
		return 0;
	uint64_t n = (max - s->inside) / s->o.limits.message_bytes_max;
	return (uint32_t)MIN_OF(MAX_OF(n, (uint64_t)1), (uint64_t)RECEIVERS_MAX); /* I1 */
}

static void receive_more(struct eng_server *s)
{
	while (s->n_receiving < may_receive(s)) {
		struct list *n = list_pop_front(&s->idle);
		struct slot *sl = n ? container_of(n, struct slot, idle) : slot_new(s);
		if (!sl)
			return; /* no memory: the next slot that comes back tries again */
		s->n_receiving++;
		slot_go(sl, SLOT_RECV, NNG_DURATION_INFINITE);
		nng_ctx_recv(sl->ctx, sl->aio);
	}
}

static void slot_idle(struct slot *sl)
{
	struct eng_server *s = sl->server;
	nng_msg_free(sl->msg);
	sl->msg = NULL;
	s->inside -= sl->cost;
	sl->cost = 0;
	list_del(&sl->of_conn);
	sl->conn = NULL;
	sl->state = SLOT_IDLE;
	list_push_front(&s->idle, &sl->idle);
}

/* ---- connections ---- */

static void leave_anon(struct nng_conn *c)
{
	if (!list_linked(&c->anon))
		return;
	list_del(&c->anon);
	c->server->n_anon--;
}

static void on_stuck(struct timer *t)
{
	struct nng_conn *c = container_of(t, struct nng_conn, timer);
	struct eng_server *s = c->server;
	if (s->stuck_told)
		return;
	s->stuck_told = true;
	LOG_ERROR(
		s->o.log, "nng",
		"step=conn_close waited_ms=%d msg=\"the library does not end a closed connection; "
		"closed ones stay counted until a restart (nng 1.5, issue 1543)\"",
		GONE_MS);
}

/* Its end is reported later: on_gone. */
static void conn_kill(struct nng_conn *c)
{
	struct eng_server *s = c->server;
	if (c->killed)
		return;
	c->killed = true;
	s->o.counters->conns_dropped++;
	leave_anon(c);
	timer_start(s->loop, &c->timer, clock_after_ms(loop_now_ns(s->loop), GONE_MS),
		    on_stuck);
	nng_pipe_close((nng_pipe){ .id = c->pipe });
}

static void conn_kill_why(struct nng_conn *c, enum err e, const char *text)
{
	char name[96];
	if (c->killed)
		return;
	nng_server_conn_name(&c->c, name, sizeof(name));
	LOG_WARN(c->server->o.log, "rpc", "peer=\"%s\" err=%s msg=\"%s; connection closed\"",
		 name, err_name(e), text);
	conn_kill(c);
}

static void on_handshake_late(struct timer *t)
{
	conn_kill(container_of(t, struct nng_conn, timer));
}

static void on_linger(struct timer *t)
{
	conn_kill(container_of(t, struct nng_conn, timer));
}

static void conn_linger(struct nng_conn *c)
{
	if (!c->finishing || c->killed || c->queued > 0)
		return;
	timer_start(c->server->loop, &c->timer,
		    clock_after_ms(loop_now_ns(c->server->loop), LINGER_MS), on_linger);
}

/* Unix sockets: the same user, or root. The secret is asked for all the same. */
static bool cred_ok(struct nng_conn *c)
{
	uint64_t uid = 0, pid = 0;
	nng_pipe p = { .id = c->pipe };
	if (nng_pipe_get_uint64(p, NNG_OPT_IPC_PEER_UID, &uid) != 0)
		return true; /* not ipc */
	if (uid == 0 || uid == geteuid())
		return true;
	nng_pipe_get_uint64(p, NNG_OPT_IPC_PEER_PID, &pid);
	LOG_WARN(c->server->o.log, "rpc",
		 "peer=\"ipc pid %" PRIu64 " uid %" PRIu64
		 "\" err=FORBIDDEN msg=\"only uid %u and "
		 "root may connect here\"",
		 pid, uid, (unsigned)geteuid());
	return false;
}

/* nng holds one message a connection, of any size up to the limit: see rpc_nng.c. */
static uint32_t anon_max(const struct eng_server *s)
{
	uint64_t fit = s->o.limits.inside_bytes_max / s->o.limits.message_bytes_max;
	return (uint32_t)MIN_OF((uint64_t)s->o.limits.conns_anon_max,
				MAX_OF(fit, (uint64_t)ANON_MIN));
}

static void on_up(struct nsock *ns, uint32_t pipe)
{
	struct eng_server *s = container_of(ns, struct eng_server, sock);
	struct nng_conn *c = calloc(1, sizeof(*c));
	if (!c || !nsock_set_conn(ns, pipe, c)) {
		free(c);
		nng_pipe_close((nng_pipe){ .id = pipe });
		return;
	}
	c->server = s;
	c->pipe = pipe;
	list_init(&c->c.requests);
	list_init(&c->slots);
	list_push_back(&s->conns, &c->all);
	list_push_back(&s->anon, &c->anon);
	s->n_conns++;
	s->n_anon++;
	s->o.counters->conns_open++;
	if (!cred_ok(c)) {
		s->o.counters->conns_refused++;
		conn_kill(c);
		return;
	}
	s->o.counters->conns_accepted++;
	timer_start(s->loop, &c->timer,
		    clock_after_ms(loop_now_ns(s->loop), s->o.limits.handshake_ms),
		    on_handshake_late);
	if (s->n_anon > anon_max(s))
		conn_kill(container_of(s->anon.next, struct nng_conn, anon));
}

static void conn_end(struct nng_conn *c)
{
	struct eng_server *s =
		c->server; // NOLINT(clang-analyzer-unix.Malloc): counted references
	struct list *n;
	timer_stop(s->loop, &c->timer);
	leave_anon(c);
	while ((n = list_pop_front(&c->slots)))
		container_of(n, struct slot, of_conn)->conn = NULL; /* I2 */
	list_del(&c->all);
	s->n_conns--;
	s->o.counters->conns_open--;
	if (c->told)
		s->o.events->closed(s->o.ctx, &c->c);
	free(c);
}

static void on_gone(struct nsock *ns, uint32_t pipe, void *conn)
{
	(void)ns, (void)pipe;
	if (conn)
		conn_end(conn);
}

static void on_refused(struct nsock *ns, uint64_t n)
{
	container_of(ns, struct eng_server, sock)->o.counters->conns_refused += n;
}

void nng_server_conn_name(const struct eng_conn *ec, char *out, size_t size)
{
	const struct nng_conn *c = container_of((struct eng_conn *)ec, struct nng_conn, c);
	nng_pipe p = { .id = c->pipe };
	uint64_t pid = 0, uid = 0;
	if (nng_pipe_get_uint64(p, NNG_OPT_IPC_PEER_PID, &pid) == 0 &&
	    nng_pipe_get_uint64(p, NNG_OPT_IPC_PEER_UID, &uid) == 0) {
		snprintf(out, size, "ipc pid %" PRIu64 " uid %" PRIu64, pid, uid);
		return;
	}
	nng_sockaddr sa = { 0 };
	if (nng_pipe_get_addr(p, NNG_OPT_REMADDR, &sa) != 0) {
		snprintf(out, size, "nng pipe %" PRIu32, c->pipe);
		return;
	}
	const uint8_t *a = (const uint8_t *)&sa.s_in.sa_addr;
	if (sa.s_family == NNG_AF_INET)
		snprintf(out, size, "tcp %u.%u.%u.%u:%u", a[0], a[1], a[2], a[3],
			 (unsigned)(sa.s_in.sa_port >> 8 | (sa.s_in.sa_port & 0xff) << 8));
	else
		snprintf(out, size, "tcp6 port %u",
			 (unsigned)(sa.s_in6.sa_port >> 8 | (sa.s_in6.sa_port & 0xff) << 8));
}

/* ---- requests ---- */

static void got_request(struct slot *sl)
{
	struct eng_server *s = sl->server;
	nng_msg *m = nng_aio_get_msg(sl->aio);
	struct nng_conn *c = nsock_conn(&s->sock, (uint32_t)nng_pipe_id(nng_msg_get_pipe(m)));
	size_t n = nng_msg_len(m);
	sl->msg = m;
	sl->cost = n + SLOT_BYTES;
	s->inside += sl->cost;
	s->o.counters->bytes_in += n;
	if (!c || c->killed || c->finishing || s->closing) {
		slot_idle(sl);
		return;
	}
	if (!c->c.known && n > s->o.limits.anon_message_bytes_max) {
		s->o.counters->bad_frames++;
		conn_kill_why(c, ERR_TOO_LARGE, "a message too large for a peer without HELLO");
		slot_idle(sl);
		return;
	}
	sl->state = SLOT_INSIDE;
	sl->conn = c;
	list_push_back(&c->slots, &sl->of_conn);
	c->told = true;
	s->o.events->request(s->o.ctx, &c->c, (struct eng_token){ .p = sl, .u = ++sl->turn },
			     BYTES(nng_msg_body(m), n), ENG_STABLE);
}

static void reply_sent(struct slot *sl, int rv)
{
	struct eng_server *s = sl->server;
	struct nng_conn *c = sl->conn;
	s->n_sending--;
	s->queued -= sl->n_reply;
	s->o.counters->bytes_queued -= sl->n_reply;
	if (rv == 0)
		s->o.counters->bytes_out += sl->n_reply;
	else
		nng_msg_free(nng_aio_get_msg(sl->aio)); /* ours again */
	nng_aio_set_msg(sl->aio, NULL);
	if (c) {
		c->queued -= sl->n_reply;
		if (rv == NNG_ETIMEDOUT)
			conn_kill_why(c, ERR_TIMED_OUT, "does not read its replies");
		conn_linger(c);
	}
	sl->n_reply = 0;
	slot_idle(sl);
}

static void server_step(struct eng_server *s);

static void on_slot(struct post *p)
{
	struct slot *sl = container_of(p, struct slot, post);
	struct eng_server *s = sl->server;
	int rv = nng_aio_result(sl->aio);
	s->n_busy--;
	if (sl->state == SLOT_SEND) {
		reply_sent(sl, rv);
	} else {
		s->n_receiving--;
		if (rv == 0)
			got_request(sl);
		else
			slot_idle(sl);
	}
	if (s->closing)
		server_step(s);
	else
		receive_more(s);
}

static struct slot *token_slot(struct eng_server *s, struct eng_token t)
{
	struct slot *sl = t.p;
	assert(sl->server == s && sl->state == SLOT_INSIDE &&
	       sl->turn == t.u); /* engine.h I1 */
	return sl;
}

static void token_end(struct slot *sl)
{
	struct eng_server *s = sl->server;
	slot_idle(sl);
	if (!s->closing)
		receive_more(s);
}

static nng_msg *msg_of(const struct bytes *parts, int n, size_t total)
{
	nng_msg *m;
	if (nng_msg_alloc(&m, total) != 0)
		return NULL;
	uint8_t *at = nng_msg_body(m);
	for (int i = 0; i < n; i++) {
		if (parts[i].n > 0)
			memcpy(at, parts[i].p, parts[i].n);
		at += parts[i].n;
	}
	return m;
}

static bool queue_full(struct eng_server *s, struct nng_conn *c, size_t n)
{
	uint64_t max = s->o.limits.queue_bytes_max;
	return c->queued + n > max / 2 || s->queued + n > max;
}

void nng_server_reply(struct eng_server *s, struct eng_token t, const struct bytes *parts,
		      int n)
{
	struct slot *sl = token_slot(s, t);
	struct nng_conn *c = sl->conn;
	size_t total = 0;
	for (int i = 0; i < n; i++)
		total += parts[i].n;
	if (!c || c->killed) {
		token_end(sl);
		return;
	}
	if (c->queued > 0 && queue_full(s, c, total)) {
		conn_kill_why(c, ERR_BUSY, "does not read its replies");
		token_end(sl);
		return;
	}
	nng_msg *m = msg_of(parts, n, total);
	if (!m) {
		conn_kill_why(c, ERR_NO_MEMORY, "no memory for a reply");
		token_end(sl);
		return;
	}
	nng_msg_free(sl->msg);
	sl->msg = NULL;
	s->inside -= sl->cost;
	sl->cost = 0;
	sl->n_reply = total;
	s->queued += total;
	c->queued += total;
	s->o.counters->bytes_queued += total;
	s->n_sending++;
	nng_aio_set_msg(sl->aio, m);
	slot_go(sl, SLOT_SEND, (nng_duration)s->o.limits.frame_ms);
	nng_ctx_send(sl->ctx, sl->aio);
	receive_more(s);
}

void nng_server_drop(struct eng_server *s, struct eng_token t)
{
	struct slot *sl = token_slot(s, t);
	if (sl->conn)
		conn_kill(sl->conn);
	token_end(sl);
}

void nng_server_known(struct eng_server *s, struct eng_conn *ec)
{
	struct nng_conn *c = container_of(ec, struct nng_conn, c);
	ec->known = true;
	if (c->killed)
		return;
	leave_anon(c);
	if (!c->finishing)
		timer_stop(s->loop, &c->timer);
}

void nng_server_conn_close(struct eng_server *s, struct eng_conn *ec)
{
	struct nng_conn *c = container_of(ec, struct nng_conn, c);
	(void)s;
	c->finishing = true;
	conn_linger(c);
}

/* ---- listening ---- */

static enum err socket_open(struct eng_server *s, struct why *why)
{
	nng_socket id;
	int rv = nng_rep0_open(&id);
	if (rv != 0)
		return why_set(why, nng_to_err(rv), "nng: cannot open a socket: %s",
			       nng_strerror(rv));
	/* before any listener takes it over: 0, the default, is no limit at all */
	rv = nng_socket_set_size(id, NNG_OPT_RECVMAXSZ, s->o.limits.message_bytes_max);
	enum err e = rv == 0 ? ERR_NONE : nng_to_err(rv);
	if (e == ERR_NONE)
		e = nsock_open(&s->sock, id, false, s->o.limits.conns_max);
	if (e != ERR_NONE) {
		nng_close(id);
		return why_set(why, e, "nng: cannot set up a socket");
	}
	s->opened = true;
	return ERR_NONE;
}

static enum err listener_tls(struct eng_server *s, nng_listener l, struct why *why)
{
	nng_tls_config *cfg;
	enum err e = nng_tls_config_new(&s->o.tls, NULL, &cfg, why);
	if (e != ERR_NONE)
		return e;
	int rv = nng_listener_set_ptr(l, NNG_OPT_TLS_CONFIG, cfg);
	nng_tls_config_free(cfg); /* the listener holds its own reference */
	return rv == 0 ? ERR_NONE : why_set(why, nng_to_err(rv), "tls: %s", nng_strerror(rv));
}

static enum err listen_err(const char *addr, int rv, struct why *why)
{
	const char *remedy =
		rv == NNG_EADDRINUSE
			? "; another process has it: stop that one or choose another address"
		: rv == NNG_EADDRINVAL ? "; no interface here has this address"
		: rv == NNG_EPERM      ? "; check the permissions"
		: rv == NNG_ENOTSUP    ? "; this build of the nng library lacks this transport"
				       : "";
	enum err e = rv == NNG_EADDRINUSE ? ERR_EXISTS : nng_to_err(rv);
	return why_set(why, e, "listen on %.160s: %s%s", addr, nng_strerror(rv), remedy);
}

static void report_bound(struct addr *a, nng_listener l, char *bound, size_t bound_size)
{
	int port = 0;
	if (a->scheme != ADDR_IPC &&
	    nng_listener_get_int(l, NNG_OPT_TCP_BOUND_PORT, &port) == 0)
		a->port = (uint16_t)port;
	if (bound)
		addr_format(a, bound, bound_size);
}

enum err nng_server_listen(struct eng_server *s, const char *addr, char *bound,
			   size_t bound_size, struct why *why)
{
	struct addr a;
	nng_listener l;
	enum err e = addr_parse(addr, &a, why);
	if (e == ERR_NONE && !s->opened)
		e = socket_open(s, why);
	if (e != ERR_NONE)
		return e;
	int rv = nng_listener_create(&l, s->sock.id, addr);
	if (rv != 0)
		return listen_err(addr, rv, why);
	if (a.scheme == ADDR_TLS)
		e = listener_tls(s, l, why);
	if (a.scheme == ADDR_IPC)
		nng_listener_set_int(l, NNG_OPT_IPC_PERMISSIONS, 0600);
	if (e == ERR_NONE && (rv = nng_listener_start(l, 0)) != 0)
		e = listen_err(addr, rv, why);
	if (e != ERR_NONE) {
		nng_listener_close(l);
		return e;
	}
	report_bound(&a, l, bound, bound_size);
	receive_more(s);
	return ERR_NONE;
}

/* nng_listener_close would close the connections too: new ones are refused instead. */
void nng_server_drain(struct eng_server *s)
{
	if (s->opened)
		nsock_refuse(&s->sock);
}

/* ---- life ---- */

static void server_closed(struct nsock *ns, bool stuck)
{
	struct eng_server *s = container_of(ns, struct eng_server, sock);
	void (*closed)(void *arg) = s->closed;
	void *arg = s->arg;
	list_for_each_safe (n, &s->conns)
		conn_end(container_of(n, struct nng_conn, all));
	if (!stuck)
		free(s);
	closed(arg);
}

static const struct nsock_ops sock_ops = {
	.up = on_up,
	.gone = on_gone,
	.refused = on_refused,
	.closed = server_closed,
};

enum err nng_server_new(struct loop *l, const struct eng_server_opts *o,
			struct eng_server **out)
{
	struct eng_server *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->loop = l;
	s->o = *o;
	s->sock = (struct nsock){ .loop = l, .log = o->log, .ops = &sock_ops };
	list_init(&s->slots);
	list_init(&s->idle);
	list_init(&s->conns);
	list_init(&s->anon);
	*out = s;
	return ERR_NONE;
}

static void slots_end(struct eng_server *s)
{
	list_for_each_safe (n, &s->slots)
		slot_free(container_of(n, struct slot, all));
	list_init(&s->slots);
	nsock_close(&s->sock);
}

/* What is still on its way is stopped; its posts lead to slots_end. */
static void on_stop(struct timer *t)
{
	struct eng_server *s = container_of(t, struct eng_server, timer);
	s->stopping = true;
	list_for_each (n, &s->slots)
		nng_aio_cancel(container_of(n, struct slot, all)->aio);
	server_step(s);
}

static void server_step(struct eng_server *s)
{
	if (s->stopping) {
		if (s->n_busy == 0) {
			timer_stop(s->loop, &s->timer);
			slots_end(s); /* I4 */
		}
		return;
	}
	if (s->n_sending == 0)
		timer_start(s->loop, &s->timer, clock_after_ms(loop_now_ns(s->loop), LINGER_MS),
			    on_stop);
}

static void on_never_opened(struct post *p)
{
	struct eng_server *s = container_of(p, struct eng_server, gone);
	server_closed(&s->sock, false);
}

/*
 * From here on no slot receives. So every busy peer's pipe ends up holding one message that nobody
 * takes, and reads no more: LINGER_MS later closing them is safe (nng_sock.h I3).
 */
void nng_server_close(struct eng_server *s, uint32_t flush_ms, void (*closed)(void *arg),
		      void *arg)
{
	s->closed = closed;
	s->arg = arg;
	s->closing = true;
	if (!s->opened) {
		s->gone.fn = on_never_opened;
		loop_defer(s->loop, &s->gone);
		return;
	}
	nsock_refuse(&s->sock);
	list_for_each (n, &s->slots) {
		struct slot *sl = container_of(n, struct slot, all);
		assert(sl->state != SLOT_INSIDE);
		if (sl->state == SLOT_RECV)
			nng_aio_cancel(sl->aio);
	}
	if (s->n_sending == 0)
		flush_ms = LINGER_MS;
	timer_start(s->loop, &s->timer, clock_after_ms(loop_now_ns(s->loop), flush_ms),
		    on_stop);
}
