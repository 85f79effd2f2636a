/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries messages below rpc.h. An engine moves opaque messages as request/reply exchanges
 * over SP (REQ/REP) and knows nothing of envelopes, sessions or keys; the core (rpc.c) does, and
 * tells the engine only which connections have proven themselves (eng_known).
 *
 *   sp   rpc_sp.c     SP framing on libuv: tcp://HOST:PORT, ipc://PATH, tls+tcp://HOST:PORT
 *   nng  rpc_nng.c    the library, cooked REQ/REP contexts: the same three; the reference
 *   sim  net_sim.c    no sockets, virtual time: sim://NODE/NAME; needs a simulated loop
 *
 * I1: every token ends by exactly one reply or drop; every accepted exchange ends by exactly one
 *     done, unless it was cancelled.
 * I2: no callback runs inside the call that caused it: done, down, opened, closed come later.
 *     (request may run inside the engine's own read, and reply may be called inside request.)
 *     The core may call send, cancel, reply, conn_close and hangup inside any callback.
 * I3: what a peer can make an engine hold is bounded by struct eng_limits (B1, B5).
 * I4: an engine sends what it is given once, never again by itself: a second copy of a message
 *     would be a replay to the peer (rpc.h I4). nng: REQ resend time infinite.
 *
 * Thread: the loop's, everything, callbacks included.
 */
#pragma once

#include "rpc/rpc.h"

/* Limits of one server or one dialed peer; every field is set (no zero means "default" here). */
struct eng_limits {
	uint32_t message_bytes_max;	 /* larger frames close the connection */
	uint32_t anon_message_bytes_max; /* the same before eng_known; a HELLO fits */
	uint32_t conns_max;		 /* one more is closed at once */
	uint32_t conns_anon_max;	 /* one more drops the oldest unknown one */
	uint32_t handshake_ms; /* SP handshake and eng_known by then, or closed; for dial: up */
	uint32_t frame_ms;     /* a frame that began is whole by then, or closed */
	uint64_t queue_bytes_max;      /* bytes waiting to be written, all connections */
	uint64_t conn_queue_bytes_max; /* the same of one; above it we stop reading from it */
	uint64_t inside_bytes_max;     /* request bytes held for tokens; above it no reading */
};

/* How long the bytes of a request stay. */
enum eng_life {
	ENG_BORROWED, /* until request returns: whoever needs them longer copies */
	ENG_STABLE,   /* until the token ends */
};

/* One exchange on the server's side, until reply or drop. Passed by value; the engine's meaning. */
struct eng_token {
	void *p;
	uint64_t u;
};

/*
 * One accepted connection; engines embed it in theirs. Valid from its first callback until closed
 * has returned; tokens of a closed connection must still be ended (they go nowhere).
 */
struct eng_conn {
	struct list requests; /* the core's: what this connection has inside */
	void *user;	      /* the core's */
	bool known;	      /* eng_known was called */
};

struct eng_server_events {
	/* A whole message arrived. The token is the core's now. */
	void (*request)(void *ctx, struct eng_conn *c, struct eng_token t, struct bytes msg,
			enum eng_life life);
	/* c is gone; no reply can reach it. Runs once for each connection that had a request. */
	void (*closed)(void *ctx, struct eng_conn *c);
};

struct eng_server_opts {
	struct eng_limits limits;
	const struct log *log;	       /* borrowed for life */
	struct rpc_counters *counters; /* borrowed for life: conns_*, bad_frames, bytes_* */
	const struct eng_server_events *events;
	void *ctx;
	struct tls_files tls;
};

struct eng_peer_events {
	/* The connection stands; send may be called. */
	void (*up)(void *ctx);
	/*
	 * It could not be made, or it broke; every exchange had its done before. The core hangs up
	 * after this. text: one phrase for the error line, "connection refused"; borrowed.
	 */
	void (*down)(void *ctx, enum err e, const char *text);
};

struct eng_dial_opts {
	struct eng_limits limits;
	const char *addr; /* borrowed for the call */
	const struct log *log;
	const struct eng_peer_events *events;
	void *ctx;
	struct tls_files tls;
};

struct eng_server; /* the engine's own */
struct eng_peer;   /* one dialed connection: dial again for the next */

struct engine {
	const char *name;
	bool (*can)(const char *addr); /* the address has one of its schemes */

	/* ---- server ---- */
	enum err (*server_new)(struct loop *l, const struct eng_server_opts *o,
			       struct eng_server **out);
	/* As rpc_server_listen. */
	enum err (*listen)(struct eng_server *s, const char *addr, char *bound,
			   size_t bound_size, struct why *why);
	/*
	 * Ends t with the message parts[0..n), borrowed for the call. A connection that is gone, or
	 * whose queue is over its limit (then it is closed), swallows it.
	 */
	void (*reply)(struct eng_server *s, struct eng_token t, const struct bytes *parts,
		      int n);
	/* Ends t without an answer: for peers that prove hostile; the connection is closed too. */
	void (*drop)(struct eng_server *s, struct eng_token t);
	/* c has shown a valid session: the handshake deadline and the anonymous share end for it. */
	void (*known)(struct eng_server *s, struct eng_conn *c);
	/* After what is queued for it has been written, or refuses to be: closed follows. */
	void (*conn_close)(struct eng_server *s, struct eng_conn *c);
	/* "tcp 10.0.0.7:41120", "ipc pid 812 uid 1000", for log lines. */
	void (*conn_name)(const struct eng_conn *c, char *out, size_t size);
	/* Stops accepting; open connections go on. */
	void (*drain)(struct eng_server *s);
	/* All tokens have ended. Writes what is queued for at most flush_ms; then closed, s is free. */
	void (*server_close)(struct eng_server *s, uint32_t flush_ms, void (*closed)(void *arg),
			     void *arg);

	/* ---- client ---- */
	/* Begins to connect; up or down follows. An error here: the address is no good (why). */
	enum err (*dial)(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
			 struct why *why);
	/*
	 * Sends parts[0..n) (borrowed for the call) as one request; done follows with the reply.
	 * ERR_BUSY (queue full), ERR_CONN_LOST (not up): x is not taken, done does not run.
	 */
	enum err (*send)(struct eng_peer *p, struct eng_xchg *x, const struct bytes *parts,
			 int n);
	/* x is the caller's again on return; done does not run; a late reply is thrown away. */
	void (*cancel)(struct eng_peer *p, struct eng_xchg *x);
	/* Ends the connection; exchanges still out get no done. Then closed, p is free. */
	void (*hangup)(struct eng_peer *p, void (*closed)(void *arg), void *arg);
};

extern const struct engine engine_sp, engine_nng, engine_sim;

/* The engine of an address; name NULL: sim -> sim, else sp. NULL and why if none. */
const struct engine *engine_pick(const char *name, const char *addr, struct why *why);
