/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc_srv.h"

#include <inttypes.h>
#include <string.h>

/* How far from the oldest end we look for a session without requests inside. */
#define EVICT_LOOK 64

/* ---- the table ---- */

static void fill_random(void *ctx, void *p, size_t n)
{
	loop_random(ctx, p, n);
}

enum err sessions_init(struct rpc_server *s)
{
	uint32_t n = s->o.limits.sessions_max;
	list_init(&s->lru);
	s->table = calloc(n, sizeof(struct session *));
	s->free_ids = calloc(n, sizeof(*s->free_ids));
	if (!s->table || !s->free_ids)
		return ERR_NO_MEMORY;
	for (uint32_t i = 0; i < n; i++)
		s->free_ids[i] = (uint16_t)(n - 1 - i);
	s->n_free_ids = n;
	/* ids of an earlier run should not look like ours: its peers learn sooner that it ended */
	loop_random(s->loop, &s->gen, sizeof(s->gen));
	s->hello_out = BUF_INIT(8 << 10);
	enum err e = auth_limit_new(&s->tries);
	if (e != ERR_NONE)
		return e;
	struct hello_server_opts o = {
		.keys = s->o.keys,
		.role = s->o.role,
		.listener = s->o.name,
		.holder = s->o.holder,
		.instance = s->instance,
		.v_min = s->o.v_min,
		.v_max = s->o.v_max,
		.handshake_ms = s->o.limits.handshake_ms,
		.limits = { s->o.limits.message_bytes_max, s->o.limits.inflight_peer_max },
		.random = { fill_random, s->loop },
	};
	return hello_server_new(&o, &s->hello);
}

static void leave_conn(struct session *x)
{
	struct eng_conn *c = x->conn;
	if (!c)
		return;
	if (c->user == x)
		c->user = list_linked(&x->siblings)
				  ? container_of(x->siblings.next, struct session, siblings)
				  : NULL;
	list_del(&x->siblings);
	x->conn = NULL;
}

static void join_conn(struct session *x, struct eng_conn *c)
{
	struct session *first = c->user;
	if (first)
		list_push_back(&first->siblings, &x->siblings);
	else
		c->user = x;
	x->conn = c;
}

static void session_end(struct rpc_server *s, struct session *x)
{
	assert(x->n_inside == 0 && x->n_parked == 0); /* I1 */
	uint32_t i = x->auth.id & 0xffff;
	leave_conn(x);
	list_del(&x->lru);
	s->table[i] = NULL;
	s->free_ids[s->n_free_ids++] = (uint16_t)i;
	s->c.sessions--;
	auth_session_fini(&x->auth);
	free(x);
}

void sessions_fini(struct rpc_server *s)
{
	for (uint32_t i = 0; s->table && i < s->o.limits.sessions_max; i++)
		if (s->table[i])
			session_end(s, s->table[i]);
	free(s->table);
	free(s->free_ids);
	hello_server_free(s->hello);
	auth_limit_free(s->tries);
	buf_fini(&s->hello_out);
}

static bool make_room(struct rpc_server *s)
{
	int looked = 0;
	list_for_each (n, &s->lru) {
		struct session *x = container_of(n, struct session, lru);
		if (x->n_inside == 0 && x->n_parked == 0) {
			session_end(s, x);
			return true;
		}
		if (++looked == EVICT_LOOK)
			break;
	}
	return false;
}

void session_touch(struct rpc_server *s, struct session *x, struct eng_conn *c)
{
	if (s->lru.prev != &x->lru) {
		list_del(&x->lru);
		list_push_back(&s->lru, &x->lru);
	}
	if (x->conn == c)
		return;
	leave_conn(x);
	join_conn(x, c);
}

void sessions_conn_closed(struct rpc_server *s, struct eng_conn *c)
{
	while (c->user) {
		struct session *x = c->user;
		leave_conn(x);
		list_del(&x->lru);
		list_push_front(&s->lru, &x->lru); /* I2 */
	}
}

/* ---- HELLO ---- */

/* Where a connection comes from, without what changes from one to the next (port, pid). */
static uint64_t source_of(const char *name)
{
	const char *uid = strstr(name, " uid "), *port = strrchr(name, ':');
	const char *at = uid ? uid : name;
	const char *end = !uid && port ? port : name + strlen(name);
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
	for (; at < end; at++)
		h = (h ^ (uint8_t)*at) * 0x100000001b3u;
	return h;
}

static void challenge(struct side *sd, struct eng_token t, const struct msg_request *q,
		      uint64_t now)
{
	struct rpc_server *s = sd->server;
	struct why why = { 0 };
	buf_clear(&s->hello_out);
	enum err e = hello_server_challenge(s->hello, q->body, now, &s->hello_out, &why);
	if (e == ERR_NONE) {
		rpc_reply_plain(sd, t, q->id, ERR_NONE, 0, buf_bytes(&s->hello_out));
		return;
	}
	s->c.hello_failed++;
	rpc_refuse_plain(sd, t, q->id, 0, e, why.text);
}

static void prove_failed(struct side *sd, struct eng_token t, const struct msg_request *q,
			 const char *from, uint64_t now, const struct why *why)
{
	struct rpc_server *s = sd->server;
	uint64_t repeated = 1;
	s->c.hello_failed++;
	if (why->err == ERR_UNAUTHENTICATED &&
	    auth_limit_failed(s->tries, source_of(from), now, &repeated))
		LOG_WARN(s->o.log, "rpc",
			 "peer=\"%s\" err=UNAUTHENTICATED times=%" PRIu64 " msg=\"%s\"", from,
			 repeated, why->text);
	rpc_refuse_plain(sd, t, q->id, why->err == ERR_BUSY ? s->o.limits.handshake_ms : 0,
			 why->err, why->text);
}

/* A session in a free slot, proven; NULL with why. */
static struct session *try_prove(struct rpc_server *s, const struct msg_request *q,
				 uint64_t now, struct why *why)
{
	if (s->n_free_ids == 0 && !make_room(s)) {
		why_set(why, ERR_BUSY, "%s has no room for a session: all %u are in use",
			s->o.name, s->o.limits.sessions_max);
		return NULL;
	}
	struct session *x = calloc(1, sizeof(*x));
	if (!x) {
		why_set(why, ERR_NO_MEMORY, "%s has no memory for a session", s->o.name);
		return NULL;
	}
	uint32_t i = s->free_ids[s->n_free_ids - 1];
	uint32_t id = (uint32_t)(s->gen == 0 ? 1 : s->gen) << 16 | i;
	buf_clear(&s->hello_out);
	enum err e = hello_server_prove(s->hello, q->body, now, id, &s->hello_out, &x->auth,
					&x->peer, why);
	if (e != ERR_NONE) {
		why_set(why, e, "%s", err_text(e));
		free(x);
		return NULL;
	}
	list_init(&x->siblings);
	s->gen++;
	s->n_free_ids--;
	s->table[i] = x;
	s->c.sessions++;
	list_push_back(&s->lru, &x->lru);
	return x;
}

static void prove(struct side *sd, struct eng_conn *c, struct eng_token t,
		  const struct msg_request *q, uint64_t now)
{
	struct rpc_server *s = sd->server;
	struct why why = { 0 };
	char from[96];
	sd->e->conn_name(c, from, sizeof(from));
	if (!auth_limit_allow(s->tries, source_of(from), now)) {
		rpc_refuse_plain(sd, t, q->id, 1000, ERR_BUSY,
				 "too many failed tries from there; wait a second");
		return;
	}
	struct session *x = try_prove(s, q, now, &why);
	if (!x) {
		prove_failed(sd, t, q, from, now, &why);
		return;
	}
	join_conn(x, c);
	sd->e->known(sd->s, c);
	LOG_DEBUG(s->o.log, "rpc", "peer=\"%s\" session=%u role=%s tenant=%s holder=%s", from,
		  x->auth.id, role_name(x->peer.role), x->peer.tenant, x->peer.holder);
	rpc_reply_plain(sd, t, q->id, ERR_NONE, 0, buf_bytes(&s->hello_out));
}

void session_hello(struct side *sd, struct eng_conn *c, struct eng_token t,
		   const struct msg_request *q)
{
	struct rpc_server *s = sd->server;
	uint64_t now = loop_now_ns(s->loop);
	if (s->draining)
		rpc_refuse_plain(sd, t, q->id, 0, ERR_SHUTTING_DOWN,
				 "it is draining and takes no new sessions");
	else if (q->method == METHOD_HELLO)
		challenge(sd, t, q, now);
	else if (q->method == METHOD_PROVE)
		prove(sd, c, t, q, now);
	else
		rpc_refuse_plain(sd, t, q->id, 0, ERR_UNAUTHENTICATED,
				 "the first message must be HELLO");
}
