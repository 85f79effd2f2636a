/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and replies between Pomelo's processes (design.md section 4). One interface; below it
 * an engine (engine.h): `sp` (SP framing on libuv), `nng` (the library), `sim` (net_sim.h).
 * This layer owns the envelope, HELLO and sessions, MACs and windows, deadlines, matching,
 * limits; an engine only carries opaque messages.
 *
 * Addresses: tcp://HOST:PORT, ipc://PATH, tls+tcp://HOST:PORT, sim://NODE/NAME.
 *
 * I1: every request gets exactly one reply or one typed error; nothing waits without a deadline (T7).
 * I2: a handler runs only after HELLO, the MAC, the window and the deadline were checked; the peer
 *     it sees comes from the key, never from the message.
 * I3: memory per connection, per peer and in all is bounded by struct rpc_limits (B1).
 * I4: an IV (session, sequence) is used once; a retry takes a new sequence number.
 *
 * Thread: the loop's, everything.
 */
#pragma once

#include "base/buf.h"
#include "base/list.h"
#include "base/log.h"
#include "loop/loop.h"
#include "rpc/peer.h"
#include "rpc/xchg.h"

struct rpc_limits {
	uint32_t message_bytes_max; /* one message; default 8 MiB */
	uint32_t conns_max;	 /* open connections of a server; default from RLIMIT_NOFILE */
	uint32_t conns_anon_max; /* of these, without a HELLO; half of conns_max, 512 */
	uint32_t handshake_ms;	 /* a connection without HELLO by then is closed; 5000 */
	uint32_t frame_ms;	 /* a frame that began is whole by then, or closed; 30000 */
	uint32_t inflight_max;	 /* requests inside a server, all peers; 4096 */
	uint32_t inflight_peer_max; /* one session's; 1024; more get BUSY */
	uint64_t inside_bytes_max;  /* bytes of requests inside, read or being read; 64 MiB */
	uint64_t queue_bytes_max;   /* bytes of replies waiting for slow readers; 64 MiB */
	uint64_t conn_queue_bytes_max;	/* of one connection; above it we read no more; 1 MiB */
	uint64_t parked_bytes_max;	/* bytes held by parked requests; 16 MiB */
	uint64_t parked_peer_bytes_max; /* one session's; a quarter of parked_bytes_max */
	uint32_t sessions_max;		/* 8192; the longest idle one goes */
};
/* Fills every field that is 0 with its default. */
void rpc_limits_default(struct rpc_limits *l);

struct keyring; /* auth.h: role keys, ticket keys; locked memory */
struct tls_files {
	const char *ca, *cert, *key; /* PEM paths, borrowed for life; NULL: none */
};

/* ---- server ---- */

struct rpc_server;

/* One request inside. Valid from the handler until rpc_reply(). Handlers may keep it. */
struct rpc_req {
	const struct peer *peer; /* borrowed, as long as the request */
	struct rpc_server *server;
	uint32_t method, shard;
	uint64_t id;
	uint64_t deadline_ns; /* on our loop's clock */
	struct bytes body;    /* borrowed, as long as the request */
	void *user;	      /* the handler's */
	/* the peer's connection went: no reply can arrive. Set by the handler; may be NULL */
	void (*gone)(struct rpc_req *r);
};

struct rpc_method {
	uint32_t number;
	const char *name;
	uint32_t roles; /* bit (1 << ROLE_x) for each that may call it; others get FORBIDDEN */
	void (*fn)(void *ctx, struct rpc_req *r);
	void *ctx;
	/* fn always answers before it returns; spares the copy of the body. Asserted. */
	bool sync;
};

struct rpc_server_opts {
	struct rpc_limits limits;
	const struct keyring *keys;  /* borrowed for life */
	const struct log *log;	     /* borrowed for life */
	const uint8_t *instance;     /* 16 bytes, ours; copied */
	enum role role;		     /* ROLE_SERVICE or ROLE_HOLDER: what we are to clients */
	const char *name;	     /* "master", "agent": HELLO names it; borrowed for life */
	const char *holder;	     /* role holder: our id; copied */
	uint64_t (*term)(void *ctx); /* put into every reply; may be NULL */
	/* A request that was run has its answer, so long after it was read; may be NULL */
	void (*took)(void *ctx, uint64_t ns);
	void *ctx;	       /* of both */
	struct tls_files tls;  /* borrowed for life */
	const char *engine;    /* NULL: by address (sim: sim, else sp) */
	uint32_t v_min, v_max; /* wire versions; 0: all that this release speaks */
};

struct rpc_counters {
	uint64_t requests, replies, errors, busy, expired;
	uint64_t conns_open, conns_accepted, conns_refused, conns_dropped;
	uint64_t bad_frames, bad_macs, replays, hello_failed;
	uint64_t bytes_in, bytes_out, bytes_queued, bytes_parked, inflight, parked, sessions;
};

enum err rpc_server_new(struct loop *l, const struct rpc_server_opts *o,
			struct rpc_server **out) MUST_CHECK;
/* Methods are added before the first listen; a second row of one number is a bug. */
void rpc_server_add(struct rpc_server *s, const struct rpc_method *rows, size_t n);
/* Several addresses may be listened on. `bound` (may be NULL) gets the real address, with the port
 * the kernel chose for port 0. Errors say what and where in why. */
enum err rpc_server_listen(struct rpc_server *s, const char *addr, char *bound,
			   size_t bound_size, struct why *why) MUST_CHECK;
/* Shutdown, step 1: no new connections or requests (they get SHUTTING_DOWN); replies still go. */
void rpc_server_drain(struct rpc_server *s);
/* Requests inside, parked ones included. */
uint64_t rpc_server_inflight(const struct rpc_server *s);
/* Ends everything; requests inside must have been answered. closed runs later, then s is free. */
void rpc_server_close(struct rpc_server *s, void (*closed)(void *arg), void *arg);
void rpc_server_counters(const struct rpc_server *s, struct rpc_counters *out);

/* Answers r and ends it. body is borrowed for the call. retry_ms: hint, 0 for none. */
void rpc_reply(struct rpc_req *r, enum err status, uint32_t retry_ms, struct bytes body);
/* The error and its reason, as the ERROR_INFO body (common.def). */
void rpc_reply_why(struct rpc_req *r, const struct why *why, uint32_t retry_ms);
/* Moves r out of the request slots (long polls); bounded by parked_bytes_max: ERR_BUSY. */
enum err rpc_park(struct rpc_req *r) MUST_CHECK;

/* ---- client ---- */

struct rpc_client; /* one peer, by one or more addresses; connects by need, reconnects 50 ms..2 s */

struct rpc_client_opts {
	struct rpc_limits limits;
	const char *const *addrs; /* tried in turn; copied */
	size_t n_addrs;
	const char *peer_name;	   /* for error texts: "master"; borrowed for life */
	enum role as;		   /* our role */
	enum role expect;	   /* the server's role; ROLE_SERVICE or ROLE_HOLDER */
	const char *expect_name;   /* the listener name it must give; NULL: any; copied */
	const char *expect_holder; /* the holder id it must have; NULL: any; copied */
	const char *tenant;	   /* role client; copied */
	const char *holder;	   /* role holder; copied */
	const struct keyring *keys;
	const struct log *log;
	const uint8_t *instance; /* 16 bytes, ours; copied */
	struct tls_files tls;	 /* borrowed for life */
	const char *engine;	 /* NULL: by address */
	uint32_t v_min, v_max;	 /* wire versions; 0: all that this release speaks */
	uint32_t inflight_max;	 /* calls on the wire to this peer; more wait here; 256 */
	uint32_t queue_max;	 /* calls waiting; more are ERR_BUSY; 4096 */
	uint32_t backoff_min_ms, backoff_max_ms; /* 50, 2000 */
	void (*on_state)(void *ctx, bool up);	 /* may be NULL */
	void *ctx;
};

/*
 * One call, in the caller's memory until done runs. Transport failures are retried within the
 * deadline only when `idempotent`; status codes are the caller's business.
 */
struct rpc_call {
	uint32_t method, shard;
	bool idempotent;
	uint64_t deadline_ns;
	struct bytes body; /* borrowed until done */
	void (*done)(struct rpc_call *c);
	/* results, set before done */
	enum err err;	    /* transport error or the reply's status */
	uint32_t retry_ms;  /* from the reply */
	uint64_t term;	    /* from the reply */
	struct bytes reply; /* borrowed, valid inside done only */
	struct why why;	    /* on error: names peer and step */
	/* private */
	struct rpc_client *client;
	struct list node;     /* waiting, or on the wire */
	struct heap_node due; /* by deadline */
	struct post post;
	struct eng_xchg xchg;
	uint64_t id;
	uint64_t sent_ns, n_answers; /* when it was sent, and what had been answered by then */
	uint32_t session, tries;
	int state;
};

/*
 * out  owned, rpc_client_close(). Connects with the first call.
 *
 * ERR_INVALID_PARAMS  an address no engine can serve (why)
 * ERR_FORBIDDEN       the ring lacks the key of our role (why)    ERR_NO_MEMORY
 */
enum err rpc_client_new(struct loop *l, const struct rpc_client_opts *o,
			struct rpc_client **out, struct why *why) MUST_CHECK;
/* done always runs later, never inside this call. c is taken until then. */
void rpc_send(struct rpc_client *cl, struct rpc_call *c);
/* done follows with ERR_CANCELLED unless it was on its way already. */
void rpc_cancel(struct rpc_call *c);
/* Fails all calls with ERR_CLOSED, then closed runs and cl is free. */
void rpc_client_close(struct rpc_client *cl, void (*closed)(void *arg), void *arg);
bool rpc_client_up(const struct rpc_client *cl);
