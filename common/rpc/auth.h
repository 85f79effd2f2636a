/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof of who speaks (design.md section 4, Authentication): keys, HELLO, message tags. Tickets
 * are in ticket.h. Everything here is bytes in, bytes out; only keyring_load and secret_new
 * touch files.
 *
 *   cluster secret (32 random bytes, DATA/secret; services and admins)
 *     -> role key    HKDF-SHA256(secret, "pomelo/v1/role/ROLE[/TENANT]")   all a client gets
 *          -> HELLO  proves the key both ways over the exact bytes both sides saw
 *               -> two session keys, one a direction, AES-128-GMAC on every message
 *
 * Why it is built so, and what each attack meets: docs/decisions/0001-handshake.md.
 *
 * I1: key bytes lie in one locked, undumpable, wiped-on-fork mapping and are wiped at free; no
 *     function prints them but keyring_derive_line.
 * I2: every comparison of proofs and tags takes constant time.
 * I3: the peer a server reports comes from the key that verified, never from the message alone.
 * I4: an IV (session, sequence) is used once: auth_next_seq gives each number once and ends at
 *     AUTH_SEQ_END; a challenge makes at most one session.
 * I5: a server keeps nothing for a HELLO that is not finished (the challenge is a sealed
 *     cookie).
 *
 * Thread: a keyring is read-only after it is made, any thread; all else its owner's.
 */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "rpc/peer.h"

#include <sys/uio.h>

#define AUTH_KEY_BYTES	  32
#define AUTH_TAG_BYTES	  16
#define AUTH_NONCE_BYTES  32
#define AUTH_WINDOW	  4096	       /* sequence numbers a message may be late by */
#define AUTH_SEQ_RENEW	  (1ull << 40) /* past it: do a new HELLO when convenient */
#define AUTH_SEQ_END	  (1ull << 48) /* the session's hard end (GMAC's safe use) */
#define AUTH_HELLO_MAX	  1024	       /* bytes of any HELLO message's body */
#define AUTH_HANDSHAKE_MS 5000	       /* default life of a challenge */

/* ---- keys ---- */

/*
 * The keys a process has: the cluster secret (and for a rotation a second, accepted one), from
 * which every role's key follows, or up to KEYRING_KEYS_MAX single role keys.
 */
struct keyring;
#define KEYRING_KEYS_MAX 16

/* "client" "holder" "service" "admin"; "none" for any other number. */
const char *role_name(enum role r);
bool role_parse(const char *s, enum role *out);
/* 1..64 of [A-Za-z0-9._-]: tenants and holder ids. */
bool auth_name_ok(const char *s);

/*
 * secret    AUTH_KEY_BYTES, copied
 * previous  AUTH_KEY_BYTES or NULL: also accepted from peers, never used to speak first
 * out       owned, keyring_free()
 *
 * ERR_NO_MEMORY  the mapping or the lock was refused (RLIMIT_MEMLOCK)
 */
enum err keyring_new(const uint8_t *secret, const uint8_t *previous, struct keyring **out)
	MUST_CHECK;
/* A ring of one role key, AUTH_KEY_BYTES, copied; tenant only for ROLE_CLIENT, else "" or NULL.
 */
enum err keyring_new_role(enum role role, const char *tenant, const uint8_t *key,
			  struct keyring **out) MUST_CHECK;
/*
 * Reads a secret file. It must be a regular file, owned by the effective user, with no access
 * for group and others. Its lines are either
 *     64 hex digits                         the cluster secret; a second one: also accepted
 * or, at most KEYRING_KEYS_MAX of,
 *     pomelo-key v1 ROLE TENANT 64HEX       one role's key; TENANT is - for roles without one
 * out   owned, keyring_free()
 * why   one line naming the file, what is wrong and the remedy
 *
 * ERR_NOT_FOUND   no such file                    ERR_FORBIDDEN  mode, owner, or no access
 * ERR_CORRUPT     not the format above            ERR_IO, ERR_NO_MEMORY
 */
enum err keyring_load(const char *path, struct keyring **out, struct why *why) MUST_CHECK;
/* The same on bytes (the fuzz target's door). `name` stands for the path in the texts. */
enum err keyring_parse(const char *name, struct bytes text, struct keyring **out,
		       struct why *why) MUST_CHECK;
void keyring_free(struct keyring *k);
/* Holds the cluster secret itself? */
bool keyring_is_cluster(const struct keyring *k);
/* Can it speak as, or check, this role (and tenant)? */
bool keyring_holds(const struct keyring *k, enum role role, const char *tenant);
/*
 * The line for `pomelo secret derive ROLE [TENANT]`, with its newline, appended to out; the
 * caller wipes out. ERR_FORBIDDEN: the ring lacks that key. ERR_INVALID_PARAMS: no such role or
 * tenant.
 */
enum err keyring_derive_line(const struct keyring *k, enum role role, const char *tenant,
			     struct buf *out, struct why *why) MUST_CHECK;

/*
 * Makes a secret file: 64 random hex digits, 0600, in one step (a file of another name,
 * fsynced, then linked), so nobody ever reads half of one. ERR_EXISTS leaves the file that is
 * there alone.
 */
enum err secret_new(const char *path, struct why *why) MUST_CHECK;

/* ---- sessions: tags and windows ---- */

/* One direction's receive window: which of the last AUTH_WINDOW numbers came. */
struct auth_window {
	uint64_t next; /* highest seen + 1; 0: nothing yet */
	uint64_t bits[AUTH_WINDOW / 64];
};

/* True when seq is new and not too old; changes nothing. */
bool auth_window_fresh(const struct auth_window *w, uint64_t seq);
/* Marks a fresh seq as seen. */
void auth_window_mark(struct auth_window *w, uint64_t seq);

struct gmac; /* gmac.h */

/*
 * One session at one end. Zero is a valid, ended state: every call on it is ERR_STALE_SESSION.
 * About 2.5 KiB with the library's contexts.
 */
struct auth_session {
	uint32_t id;
	uint64_t next_seq;	 /* ours, from 0 */
	struct auth_window seen; /* the peer's */
	/* private */
	struct gmac *send, *recv; /* keyed once */
};

void auth_session_fini(struct auth_session *s);
/* A number for the message about to be encoded. ERR_STALE_SESSION: ended, a new HELLO is due.
 */
enum err auth_next_seq(struct auth_session *s, uint64_t *out) MUST_CHECK;
/* Either direction is past AUTH_SEQ_RENEW. */
bool auth_session_old(const struct auth_session *s);
/*
 * The tag of a message: envelope and body as they go out, in n_iov pieces (borrowed). seq from
 * auth_next_seq, once. 50-130 ns for 256 B (2026-11-29; gmac.h).
 */
enum err auth_tag(struct auth_session *s, uint64_t seq, const struct iovec *iov, size_t n_iov,
		  uint8_t tag[AUTH_TAG_BYTES]) MUST_CHECK;
/*
 * Checks the peer's tag, then the window; marks seq as seen when both are good.
 *
 * ERR_UNAUTHENTICATED  the tag is wrong; nothing changed
 * ERR_REPLAYED         seen before, or more than AUTH_WINDOW behind
 * ERR_STALE_SESSION    seq is past AUTH_SEQ_END, or the session ended
 */
enum err auth_check(struct auth_session *s, uint64_t seq, const struct iovec *iov, size_t n_iov,
		    const uint8_t tag[AUTH_TAG_BYTES]) MUST_CHECK;

/* ---- HELLO ---- */

/*
 * Two exchanges, each a request and its reply, in session 0 (whose messages carry a tag of
 * zeros):
 *
 *   client                                     server
 *   HELLO     versions, role, tenant, ... ->
 *                                         <-   CHALLENGE  version, role, nonce, cookie ...
 *   PROVE     both of them, proof         ->
 *                                         <-   WELCOME    session, proof
 *
 * The bodies are the messages of proto/common.def of those names. Each call below appends one
 * body to a buf and consumes the other side's. An error from the server travels as the reply's
 * status.
 */

/* Where nonces come from: loop_random of a simulated loop, or NULL for the kernel. */
struct auth_random {
	void (*fn)(void *ctx, void *p, size_t n);
	void *ctx;
};

/* What the server takes, told in WELCOME and covered by its proof. */
struct hello_limits {
	uint32_t message_max;  /* bytes of a message */
	uint32_t inflight_max; /* requests at once in this session */
};

struct hello_server_opts {
	const struct keyring *keys; /* borrowed for life */
	enum role role;		    /* ROLE_SERVICE or ROLE_HOLDER */
	const char *listener;	    /* our name: "master", "agent", ...; copied */
	const char *holder;	    /* role holder: our id; else NULL; copied */
	const uint8_t *instance;    /* 16 bytes; copied */
	uint32_t v_min, v_max;	    /* wire versions we speak */
	uint32_t handshake_ms;	    /* 0: AUTH_HANDSHAKE_MS */
	uint32_t handshakes_max;    /* finished in handshake_ms, more are ERR_BUSY; 0: 8192 */
	struct hello_limits limits; /* told to clients in WELCOME */
	struct auth_random random;
};

struct hello_server;

/* owned, hello_server_free(). ERR_NO_MEMORY; ERR_INVALID_PARAMS for our own bad names. */
enum err hello_server_new(const struct hello_server_opts *o, struct hello_server **out)
	MUST_CHECK;
void hello_server_free(struct hello_server *h);
/*
 * HELLO -> CHALLENGE. Keeps nothing (I5); costs two HMACs whoever asks.
 *
 * ERR_BAD_MESSAGE       not a HELLO
 * ERR_VERSION_MISMATCH  no common version; why names both ranges
 */
enum err hello_server_challenge(struct hello_server *h, struct bytes hello, uint64_t now_ns,
				struct buf *challenge, struct why *why) MUST_CHECK;
/*
 * PROVE -> WELCOME and a session.
 *
 * session  the id to give; not 0, not that of a live session
 * s        out: init; auth_session_fini()
 * peer     out: from the key
 *
 * ERR_STALE_SESSION    the challenge is old, used, or of another run of this server: begin
 *                      again
 * ERR_UNAUTHENTICATED  the proof does not match any key of ours for that role and tenant
 * ERR_BUSY             handshakes_max reached; again after handshake_ms
 */
enum err hello_server_prove(struct hello_server *h, struct bytes prove, uint64_t now_ns,
			    uint32_t session, struct buf *welcome, struct auth_session *s,
			    struct peer *peer, struct why *why) MUST_CHECK;

struct hello_client_opts {
	const struct keyring *keys; /* borrowed for life */
	enum role role;
	const char *tenant;	 /* role client; copied */
	const char *holder;	 /* role holder: our id; copied */
	const uint8_t *instance; /* 16 bytes; copied */
	uint32_t v_min, v_max;
	enum role expect;	     /* the server's role; ROLE_NONE: any */
	const char *expect_listener; /* the name it must give; NULL: any; copied */
	const char *expect_holder;   /* likewise, for a holder that is dialed; copied */
	struct auth_random random;
};

struct hello_client;

/* owned, hello_client_free(). ERR_INVALID_PARAMS, ERR_FORBIDDEN: the ring lacks the key (why).
 */
enum err hello_client_new(const struct hello_client_opts *o, struct hello_client **out,
			  struct why *why) MUST_CHECK;
void hello_client_free(struct hello_client *h);
/* Begins, or begins again with a fresh nonce: appends HELLO. */
enum err hello_client_start(struct hello_client *h, struct buf *hello) MUST_CHECK;
/*
 * CHALLENGE -> PROVE.
 *
 * ERR_VERSION_MISMATCH  the version it chose is not the highest both speak (a downgrade), or
 *                       none is
 * ERR_UNAUTHENTICATED   it is another role, listener or holder than expected; why names both
 * ERR_BAD_MESSAGE       not a CHALLENGE, or not in this state
 */
enum err hello_client_challenge(struct hello_client *h, struct bytes challenge,
				struct buf *prove, struct why *why) MUST_CHECK;
/*
 * WELCOME -> the session, who the server is and what it takes (limits may be NULL).
 *
 * ERR_UNAUTHENTICATED  its proof is wrong: it does not have the key
 */
enum err hello_client_welcome(struct hello_client *h, struct bytes welcome,
			      struct auth_session *s, struct peer *server,
			      struct hello_limits *limits, struct why *why) MUST_CHECK;

/* ---- failed tries ---- */

/*
 * A token bucket for each source of failed proofs: AUTH_TRIES at once, then one a second. At
 * most AUTH_SOURCES sources are known; the one longest quiet goes.
 */
struct auth_limit;
#define AUTH_TRIES   10
#define AUTH_SOURCES 1024

enum err auth_limit_new(struct auth_limit **out) MUST_CHECK;
void auth_limit_free(struct auth_limit *l);
/* May this source try now? (source: any hash of its address; of its uid on a unix socket) */
bool auth_limit_allow(const struct auth_limit *l, uint64_t source, uint64_t now_ns);
/*
 * It failed. True when a line is to be logged: the first failure, then at most one in 10 s a
 * source; *repeated (may be NULL) counts the failures since the last line, this one included.
 */
bool auth_limit_failed(struct auth_limit *l, uint64_t source, uint64_t now_ns,
		       uint64_t *repeated);
