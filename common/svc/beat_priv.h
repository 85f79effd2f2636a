/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a beat that need no thread, socket or loop: datagrams under a MAC, what the sender
 * remembers (beat_out), what the master does (beat_book). Their tests feed them bytes and times.
 */
#pragma once

#include "base/map.h"
#include "svc/beat.h"

#include <pthread.h>

#define BEAT_MAC_BYTES	     16
#define BEAT_CHALLENGE_BYTES 16
#define BEAT_OVERHEAD	     (2 + BEAT_MAC_BYTES) /* kind, role, tag */

enum beat_kind { BEAT_KIND_BEAT = 'B', BEAT_KIND_ACK = 'A' };

/* ---- beat_wire.c ---- */

/* HKDF(role key, ...) for holder and service, the current and the previous secret's. */
struct beat_keys {
	uint8_t k[2][2][32]; /* [holder, service][which] */
	uint8_t n[2];
};

/* ERR_FORBIDDEN: the ring has neither role's key. Wipe with explicit_bzero. */
enum err beat_keys_init(struct beat_keys *k, const struct keyring *ring) MUST_CHECK;
/* How many keys of a role there are; 0 for a role that does not beat. */
unsigned beat_keys_of(const struct beat_keys *k, enum role role);
/* kind, role, body, tag into out[BEAT_BYTES_MAX]; returns the bytes, 0 when it does not fit. */
size_t beat_seal(const struct beat_keys *k, unsigned which, enum beat_kind kind, enum role role,
		 struct bytes body, uint8_t *out);
/* ERR_BAD_MESSAGE: no datagram of this kind; ERR_UNAUTHENTICATED: the tag. body borrows. */
enum err beat_unseal(const struct beat_keys *k, enum beat_kind kind, struct bytes dgram,
		     enum role *role, unsigned *which, struct bytes *body) MUST_CHECK;

/* ---- beat_out.c: one sender ---- */

struct beat_target {
	char addr[BEAT_ADDR_MAX];
	uint8_t challenge[BEAT_CHALLENGE_BYTES];
	bool challenged;
	uint64_t acked_seq;
	_Atomic uint64_t last_ack_ns;
	uint64_t answered_ns; /* when a datagram was last answered at once */
};

struct beat_out {
	char name[BEAT_NAME_MAX + 1];
	enum role role;
	struct beat_keys keys;
	uint8_t instance[16];
	uint64_t seq;
	struct beat_target to[BEAT_ADDRS_MAX];
	size_t n_to;
	uint64_t
		quiet_ns; /* an acknowledgement after so long is answered at once: it is news */
	_Atomic uint64_t sent, send_errors, acked, bad;
};

uint64_t beat_out_last_ack(const struct beat_out *o);
/* The next beat for target i, into out[BEAT_BYTES_MAX]; returns its bytes. */
size_t beat_out_make(struct beat_out *o, size_t i, const struct beat_news *n, bool loop_owes,
		     uint64_t wall_ms, uint8_t *out);
/* A datagram from target i. True: send the next beat at once, for it brought a new challenge, or the
 * first acknowledgement after quiet_ns. */
bool beat_out_take(struct beat_out *o, size_t i, struct bytes dgram, uint64_t now_ns);

/* ---- beat_book.c: the master's ---- */

struct beat_entry {
	struct map_node node;
	struct beat_peer p;
	/* the loop's: what `changed` was told last */
	uint8_t told_instance[16];
	bool told;
};

/* Under `lock`: entries and counters. The state fields are the loop's. */
struct beat_book {
	pthread_mutex_t lock;
	struct beat_keys keys;
	uint8_t secret[32]; /* of the challenges of this run */
	struct map names;
	struct beat_entry **v; /* in the order of their first stamps */
	size_t n, cap, peers_max;
	struct beat_table_counters c;
	/* the loop's */
	uint64_t suspect_ns, dead_ns;
	uint64_t looked_ns, resumed_ns;
};

/* keys, secret, peers_max and limits are set by the caller after it. */
void beat_book_init(struct beat_book *b, size_t peers_max);
void beat_book_fini(struct beat_book *b);

enum beat_verdict { BEAT_OK, BEAT_NO_MAC, BEAT_NO_FRAME, BEAT_REPLAY, BEAT_FULL };

/*
 * One datagram, at now_ns. Appends the reply to reply[BEAT_BYTES_MAX]; *n_reply is 0 without one.
 * Any thread; takes the lock.
 */
enum beat_verdict beat_book_take(struct beat_book *b, uint64_t now_ns, struct bytes dgram,
				 uint8_t *reply, size_t *n_reply);
/* Decides the states; period_ns is how often it is meant to be called (I4 of beat.h). */
void beat_book_look(struct beat_book *b, uint64_t now_ns, uint64_t period_ns,
		    void (*changed)(void *ctx, const struct beat_peer *p), void *ctx);
/* Lock held. NULL: never stamped. */
const struct beat_peer *beat_book_find(const struct beat_book *b, const char *name);
/* The state of a copy, from its stamps alone. */
void beat_book_judge(const struct beat_book *b, struct beat_peer *p, uint64_t now_ns);

/* ---- beat_sock.c: real datagrams ---- */

struct beat_sock {
	int fd;
	char path[BEAT_ADDR_MAX]; /* unix: unlinked at close; else "" */
};

/* A socket bound to addr (unix: an older one there is replaced), non-blocking. */
enum err beat_sock_listen(struct beat_sock *s, const char *addr, struct why *why) MUST_CHECK;
/* A socket to send to `to`; unix: bound to from_path. */
enum err beat_sock_dial(struct beat_sock *s, const char *to, const char *from, struct why *why)
	MUST_CHECK;
/* Sends on a dialed socket. False: refused, full or nobody there. */
bool beat_sock_send(const struct beat_sock *s, const char *to, const uint8_t *p, size_t n);
void beat_sock_close(struct beat_sock *s);
/* A thread with every signal blocked and a name of at most 15 characters. */
enum err beat_thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg)
	MUST_CHECK;
