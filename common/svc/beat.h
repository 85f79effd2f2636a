/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beats (L1): the path on which a master learns that a service lives. It shares nothing with data
 * work: in a daemon a thread of its own sends a small MACed datagram every beat_ms, and in the
 * master a thread that only receives, verifies and stamps; the loop reads the stamps.
 *
 * A beat carries the sender's loop and pool progress. The sender also drops a ping into its own
 * loop's inbox each time, so a healthy idle loop moves and a dead-locked one does not.
 *
 * Freshness: the master answers a beat of an instance it has not confirmed with a challenge (8
 * random bytes); only beats that carry the challenge and a higher sequence are stamped. So a
 * recorded beat, of this run or an older one, stamps nothing.
 *
 *   service                      master
 *   BEAT(instance, seq 1, 0)  ->            unknown instance: no stamp
 *                             <-  BEAT_ACK(instance, challenge)
 *   BEAT(instance, seq 2, ch) ->            stamped; replaces the name's older instance
 *                             <-  BEAT_ACK(instance, challenge, seq 2)
 *
 * I1: nothing a peer sends makes memory grow: names are at most peers_max, all else is counted.
 * I2: a datagram is parsed only after its MAC was verified.
 * I3: within one instance the stamped sequence only rises.
 *
 * Addresses: "unix:/path" and "udp://host:port"; in a simulation what its network calls a node.
 */
#pragma once

#include "base/err.h"
#include "base/log.h"
#include "loop/loop.h"

#define BEAT_NAME_MAX  64 /* a service's name, or a holder's id */
#define BEAT_BYTES_MAX 512
#define BEAT_KEY_BYTES 32

/* What a beat tells, beside who and when. */
struct beat_news {
	uint64_t loop_turns;
	uint64_t pool_done;
	uint32_t pool_queued;
	bool loop_owes; /* the ping of an earlier beat still waits in the inbox */
	bool ready;
	uint64_t pool_epoch;
	uint32_t pid;
};

/* ---- datagrams, for a simulation ---- */

struct dgram; /* an open end */

/* The simulator's network. Datagrams may be lost, doubled, reordered. Loop thread. */
struct beat_net {
	/* recv runs on l; from and b are borrowed for the call. */
	enum err (*open)(const struct beat_net *net, struct loop *l, const char *addr,
			 void (*recv)(void *arg, const char *from, struct bytes b), void *arg,
			 struct dgram **out);
	void (*send)(struct dgram *d, const char *to, struct bytes b);
	void (*close)(struct dgram *d); /* recv does not run any more */
};

/* ---- the sending end ---- */

struct beat_sender;

struct beat_sender_opts {
	const char *name;	 /* "agent", or a holder's id; at most BEAT_NAME_MAX */
	const uint8_t *instance; /* 16 bytes; borrowed for life */
	const uint8_t *key;	 /* BEAT_KEY_BYTES; copied */
	const struct log *log;	 /* borrowed for life */
	const char *const *to;	 /* the masters' beat addresses; copied */
	size_t n_to;		 /* at most 8 */
	const char *from;	 /* our own address, for the acks: "unix:RUN/NAME.beat" */
	uint32_t beat_ms;
	const struct beat_net *net; /* NULL: a thread and sockets */
	/* The news; runs on the sending thread, so it reads relaxed counters only. */
	void (*news)(void *ctx, struct beat_news *out);
	void *ctx;
};

/* Starts beating at once. ERR_INVALID_PARAMS an address, ERR_NO_MEMORY, ERR_BUSY. */
enum err beat_sender_open(struct loop *l, const struct beat_sender_opts *o,
			  struct beat_sender **out, struct why *why) MUST_CHECK;
/* Joins the thread; closed runs later, then b is free. */
void beat_sender_close(struct beat_sender *b, void (*closed)(void *arg), void *arg);

struct beat_sender_counters {
	uint64_t sent, send_errors, acked, bad;
	uint64_t last_ack_ns; /* 0: never */
};
/* Loop thread. */
void beat_sender_counters(const struct beat_sender *b, struct beat_sender_counters *out);
/* Has a master acknowledged one of the last three beats? */
bool beat_sender_acked(const struct beat_sender *b);

/* ---- the master's end ---- */

enum beat_state {
	BEAT_READY,   /* beats come, the sender says it is ready */
	BEAT_BUSY,    /* beats come, the sender says it is not ready yet */
	BEAT_SUSPECT, /* none for suspect_ms, or its loop stands still for as long */
	BEAT_DEAD,    /* none for dead_ms */
};
const char *beat_state_name(enum beat_state s);

struct beat_peer {
	char name[BEAT_NAME_MAX + 1];
	uint8_t instance[16];
	struct beat_news news;
	uint64_t seq, last_ns; /* of the last stamp */
	uint64_t moved_ns;     /* when loop_turns was last seen to move, or nothing was owed */
	uint64_t since_ns;     /* first stamp of this instance */
	uint32_t instances;    /* how many runs of this name were seen */
	enum beat_state state; /* at the time of the call */
	bool loop_stands;      /* why it is suspect: beats come, the loop does not move */
};

struct beat_table;

struct beat_table_opts {
	const uint8_t *key;    /* BEAT_KEY_BYTES; copied */
	const struct log *log; /* borrowed for life */
	const char *const *listen;
	size_t n_listen;			      /* at most 8 */
	uint32_t suspect_ms;			      /* 2000 */
	uint32_t dead_ms;			      /* 30000 */
	uint32_t peers_max;			      /* 0: 4096 */
	const struct beat_net *net;		      /* NULL: a thread and sockets */
	void (*random)(void *ctx, void *p, size_t n); /* any thread; NULL: getrandom */
	void *random_ctx;
	/* Loop thread, when a peer's state or instance changed; looked at every suspect_ms / 4. */
	void (*changed)(void *ctx, const struct beat_peer *p);
	void *ctx;
};

/* why names the address. ERR_BUSY taken, ERR_TOO_LARGE a path over 107 bytes. */
enum err beat_table_open(struct loop *l, const struct beat_table_opts *o,
			 struct beat_table **out, struct why *why) MUST_CHECK;
/* Joins the thread; closed runs later, then t is free. */
void beat_table_close(struct beat_table *t, void (*closed)(void *arg), void *arg);

struct beat_table_counters {
	uint64_t received, stamped, bad_macs, bad_frames, replays, challenges, refused;
};
/* refused: names beyond peers_max. Loop thread. */
void beat_table_counters(struct beat_table *t, struct beat_table_counters *out);
/* Copies up to max peers in the order of their names' first beats; returns how many there are. */
size_t beat_table_list(struct beat_table *t, struct beat_peer *out, size_t max);
/* false: no such name. */
bool beat_table_find(struct beat_table *t, const char *name, struct beat_peer *out);
