/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the rpc server share: rpc_server.c (engines, requests, replies) and
 * rpc_session.c (session table, HELLO). Internal to rpc; tests and fuzz targets may look.
 *
 * I1: a session with requests inside is never ended; an ended one is never found.
 * I2: sessions do not belong to connections: the last connection a session was used on is noted, and
 *     when that closes the session is the first to make room.
 *
 * Thread: the loop's.
 */
#pragma once

#include "rpc/engine.h"
#include "rpc/rpc_env.h"

#define METHOD_MAX	1024 /* method numbers are below it */
#define ENGINES_MAX	3
#define SESSIONS_CAP	65535u /* a session's slot has 16 bits of its id */
#define SLOT_INLINE	1024   /* a body up to this needs no memory of its own */
#define BUSY_RETRY_MS	20
#define SERVER_FLUSH_MS 1000

/* One engine under a server. */
struct side {
	struct rpc_server *server;
	const struct engine *e;
	struct eng_server *s;
};

struct session {
	struct auth_session auth;
	struct peer peer;
	uint32_t n_inside; /* in request slots */
	uint32_t n_parked;
	uint64_t parked_bytes;
	struct list lru;       /* server->lru, oldest first */
	struct list siblings;  /* ring of those on the same connection */
	struct eng_conn *conn; /* where it was used last; NULL: closed since */
};

struct slot {
	struct rpc_req r;
	struct side *side;
	struct eng_token token;
	struct session *session;
	struct list node;  /* on the connection's requests, or on the free list */
	uint64_t serial;   /* moves on when the request ends */
	uint64_t begin_ns; /* when it was read */
	uint8_t *heap;	   /* a body larger than room */
	bool parked;
	uint8_t room[SLOT_INLINE];
};

struct rpc_server {
	struct loop *loop;
	struct rpc_server_opts o;
	struct rpc_counters c;
	char holder[HOLDER_MAX + 1];
	uint8_t instance[16];
	struct side sides[ENGINES_MAX];
	uint32_t n_sides, n_open;
	struct rpc_method *methods;
	uint32_t n_methods;
	uint16_t by_number[METHOD_MAX]; /* index + 1 into methods */
	bool draining, closing;
	struct list free_slots;
	uint32_t n_free;
	uint64_t copied_bytes; /* bodies on the heap */
	struct buf out;	       /* the reply being encoded */
	/* sessions */
	struct hello_server *hello;
	struct auth_limit *tries;
	struct session **table;
	uint16_t *free_ids; /* stack of free table slots */
	uint32_t n_free_ids;
	uint16_t gen;
	struct list lru;
	struct buf hello_out;
	void (*closed)(void *arg);
	void *arg;
	struct post post;
};

/* ---- rpc_server.c ---- */

/* The engines' callbacks; ctx is a struct side. The fuzz target calls them too. */
extern const struct eng_server_events rpc_server_events;

/*
 * Answers outside any session, unauthenticated: handshakes, and why a message was refused. The client
 * believes only a few statuses in such a reply (rpc_client.c).
 */
void rpc_reply_plain(struct side *sd, struct eng_token t, uint64_t id, enum err status,
		     uint32_t retry_ms, struct bytes body);
/* The same with an ERROR_INFO body. */
void rpc_refuse_plain(struct side *sd, struct eng_token t, uint64_t id, uint32_t retry_ms,
		      enum err status, const char *text);

/* ---- rpc_session.c ---- */

enum err sessions_init(struct rpc_server *s) MUST_CHECK;
/* No session may have requests inside. Zeroed state is fine. */
void sessions_fini(struct rpc_server *s);
static inline struct session *session_find(struct rpc_server *s, uint32_t id)
{
	uint32_t i = id & 0xffff;
	struct session *x = i < s->o.limits.sessions_max ? s->table[i] : NULL;
	return x && x->auth.id == id ? x : NULL;
}
/* x was just used on c. */
void session_touch(struct rpc_server *s, struct session *x, struct eng_conn *c);
/* c is gone. */
void sessions_conn_closed(struct rpc_server *s, struct eng_conn *c);
/* A request of no session: HELLO, PROVE, or refused. */
void session_hello(struct side *sd, struct eng_conn *c, struct eng_token t,
		   const struct msg_request *q);
