/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beats (L1): the path on which a master learns that a service lives. It shares nothing with data
 * work: in a daemon a thread of its own sends a small MACed datagram every beat_ms, and in the
 * master a thread that only receives, verifies and stamps; the loop reads the stamps. In a
 * simulation both ends are timers of the loop and datagrams of net_sim.h.
 *
 * A beat carries the sender's loop and pool progress. The sender also drops a ping into its own
 * loop's inbox each time, so a healthy idle loop moves and a dead-locked one does not.
 *
 * Freshness: the master answers a beat of an instance it has not confirmed with a challenge (16
 * random bytes); only beats that carry it, and a higher sequence, are stamped. So a recorded beat,
 * of this run or of an older one, stamps nothing.
 *
 *   service                          master
 *   BEAT(instance, seq 1, "")     ->           unknown instance: no stamp
 *                                 <-  BEAT_ACK(instance, seq 0, challenge)
 *   BEAT(instance, seq 2, chall.) ->           stamped; replaces the name's older instance
 *                                 <-  BEAT_ACK(instance, seq 2, challenge)
 *
 * The datagram: kind 'B' or 'A' (ack), the service's role, the message, 16 bytes of HMAC-SHA256
 * under HKDF(role key, "pomelo/v1/beat").
 *
 * I1: nothing a peer sends makes memory grow: names are at most peers_max, all else is counted.
 * I2: a datagram is parsed only after its MAC was verified.
 * I3: within one instance the stamped sequence only rises.
 * I4: states are decided by a timer of the loop that forgives its own absence: a master that was
 *     stopped itself suspects nobody for it.
 *
 * Addresses: unix:/PATH, udp://HOST:PORT, and in a simulation sim://NODE/NAME.
 */
#pragma once

#include "base/err.h"
#include "base/log.h"
#include "loop/loop.h"
#include "rpc/peer.h"

struct keyring;

#define BEAT_NAME_MAX  64 /* a service's name, or a holder's id */
#define BEAT_BYTES_MAX 512
#define BEAT_ADDRS_MAX 8
#define BEAT_ADDR_MAX  280 /* characters, the NUL included */

/* Where the beats of a master at this rpc address go: ipc:///D/master.sock -> unix:/D/beat.sock,
 * tcp://H:P -> udp://H:(P + 5) (17600 -> 17605), sim://N/x -> sim://N/beat.
 * ERR_INVALID_PARAMS: no such address; why says so. */
enum err beat_addr_of(const char *rpc_addr, char out[BEAT_ADDR_MAX], struct why *why)
	MUST_CHECK;

/* What a beat tells, beside who and when. */
struct beat_news {
	uint64_t loop_turns;
	uint64_t pool_done;
	uint32_t pool_queued;
	uint32_t pid;
	bool ready;
	uint64_t pool_epoch;
};

/* ---- the sending end ---- */

struct beat_sender;

struct beat_sender_opts {
	const char *name; /* "agent", or a holder's id; at most BEAT_NAME_MAX; copied */
	enum role role;	  /* ROLE_SERVICE or ROLE_HOLDER: whose key signs */
	const struct keyring *keys; /* borrowed for the call */
	const uint8_t *instance;    /* 16 bytes; copied */
	const struct log *log;	    /* borrowed for life */
	const char *const *to;	    /* the masters' beat addresses; copied */
	size_t n_to;		    /* 1..BEAT_ADDRS_MAX */
	/* Our own address, for acks from unix: and sim:// masters; the second and later ones get
	 * its text with their number behind it. */
	const char *from;
	uint32_t beat_ms;
	/* Runs on the sending thread: reads relaxed counters only. last_ack_ns as in the counters. */
	void (*news)(void *ctx, uint64_t last_ack_ns, struct beat_news *out);
	/* Loop thread, at each ping: how late the loop was. May be NULL. */
	void (*ping)(void *ctx, uint64_t late_ns);
	void *ctx;
};

/* Starts beating at once. ERR_INVALID_PARAMS an address, ERR_FORBIDDEN the ring lacks the role's
 * key, ERR_TOO_LARGE a socket path over 107 bytes, ERR_NO_MEMORY, ERR_BUSY. */
enum err beat_sender_open(struct loop *l, const struct beat_sender_opts *o,
			  struct beat_sender **out, struct why *why) MUST_CHECK;
/* Ends the thread; closed runs later, then b is free. */
void beat_sender_close(struct beat_sender *b, void (*closed)(void *arg), void *arg);

struct beat_sender_counters {
	uint64_t sent, send_errors, acked, bad;
	uint64_t last_ack_ns; /* 0: never; the latest of all masters */
};
/* Any thread. */
void beat_sender_counters(const struct beat_sender *b, struct beat_sender_counters *out);
/* Has a master stamped a beat within the last three periods? Loop thread. */
bool beat_sender_acked(const struct beat_sender *b);

/* ---- the master's end ---- */

enum beat_state {
	BEAT_READY,    /* beats come, the sender says it is ready */
	BEAT_STARTING, /* beats come, the sender says it is not ready */
	BEAT_SUSPECT,  /* none for suspect_ms, or its loop stands still for as long */
	BEAT_DEAD,     /* none for dead_ms */
};
const char *beat_state_name(enum beat_state s);

struct beat_peer {
	char name[BEAT_NAME_MAX + 1];
	enum role role;
	uint8_t instance[16];
	struct beat_news news;
	uint64_t seq, last_ns; /* of the last stamp */
	uint64_t moved_ns;     /* when the loop was last known to move */
	uint64_t since_ns;     /* first stamp of this instance */
	uint32_t instances;    /* how many runs of this name were seen */
	enum beat_state state; /* as the last look found it */
	bool loop_stands;      /* why it is suspect: beats come, its loop does not move */
};

struct beat_table;

struct beat_table_opts {
	const struct keyring *keys; /* borrowed for the call */
	const struct log *log;	    /* borrowed for life */
	const char *const *listen;  /* borrowed for the call */
	size_t n_listen;	    /* 1..BEAT_ADDRS_MAX */
	uint32_t suspect_ms, dead_ms;
	uint32_t peers_max; /* 0: 4096 */
	/* Loop thread, when a peer's state or instance changed. May be NULL. */
	void (*changed)(void *ctx, const struct beat_peer *p);
	void *ctx;
};

/* why names the address. ERR_BUSY taken, ERR_TOO_LARGE a path over 107 bytes,
 * ERR_INVALID_PARAMS, ERR_FORBIDDEN (no cluster secret), ERR_NO_MEMORY. */
enum err beat_table_open(struct loop *l, const struct beat_table_opts *o,
			 struct beat_table **out, struct why *why) MUST_CHECK;
/* Ends the thread; closed runs later, then t is free. */
void beat_table_close(struct beat_table *t, void (*closed)(void *arg), void *arg);

struct beat_table_counters {
	uint64_t received, stamped;
	uint64_t bad_macs, bad_frames, replays; /* refused: one log line a 10 s */
	uint64_t challenges;
	uint64_t refused; /* names beyond peers_max */
	uint64_t peers;
};
/* Loop thread, all three. */
void beat_table_counters(struct beat_table *t, struct beat_table_counters *out);
/* Copies up to max peers from the from-th on, in the order of their names' first beats; returns
 * how many were copied. */
size_t beat_table_list(struct beat_table *t, size_t from, struct beat_peer *out, size_t max);
/* false: no such name. */
bool beat_table_find(struct beat_table *t, const char *name, struct beat_peer *out);
