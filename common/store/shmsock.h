/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run/agent.fd: where a client of the same host and user gets a pool's descriptors (design.md
 * sections 4 and 5). A SOCK_SEQPACKET socket, one message each:
 *
 *   agent                                         client
 *   CHALLENGE  version, nonce                 ->
 *                                             <-  ASK    version, role, tenant, instance, write, nonce, MAC
 *   GRANT      status, pool, sizes, session, MAC ->     with SCM_RIGHTS: ctl gen ses data.0 ..
 *
 * I1: SO_PEERCRED must name our own user, and the MAC (HMAC-SHA256 by the role's key, over both nonces
 *     and every field) must be right, before a session is made. A right GRANT proves the agent's key
 *     to the client in turn. A nonce is used once.
 * I2: ctl and gen go out read-only; data.N as asked for; ses.ID to write, with its lock.
 * I3: at most conns_max connections; one that has not asked within ask_ms is closed (B1, B5).
 *
 * The connection stays open: its end tells the agent to look at the session's lock, and the client
 * that the agent has gone (the mapping is good still: a pool outlives its agent).
 */
#pragma once

#include "loop/loop.h"
#include "rpc/auth.h"
#include "store/mempool.h"

/* ---- the agent's end. Thread: the loop's ---- */

struct shmsock;

struct shmsock_opts {
	struct loop *loop;	    /* borrowed for life; a real one */
	const struct keyring *keys; /* borrowed for life */
	struct mempool *pool;	    /* borrowed for life */
	const char *path;	    /* at most 107 bytes; an old socket there is replaced */
	uint32_t conns_max;	    /* 0: 1,024 */
	uint32_t ask_ms;	    /* 0: 5,000 */
};

struct shmsock_counts {
	uint64_t granted, refused_user, refused_key, refused_message, refused_busy;
	uint32_t open;
};

/* out: owned, shmsock_close(). ERR_INVALID_PARAMS (path), ERR_IO, ERR_NO_MEMORY. */
enum err shmsock_listen(const struct shmsock_opts *o, struct shmsock **out, struct why *why)
	MUST_CHECK;
/* Removes the socket; closed (may be NULL) runs on the loop when all is gone. NULL is fine (nothing runs). */
void shmsock_close(struct shmsock *s, void (*closed)(void *ctx), void *ctx);
void shmsock_counts(const struct shmsock *s, struct shmsock_counts *out);

/* ---- the client's end. Thread: any; blocks until deadline ---- */

struct shmsock_ask {
	const char *path;
	const struct keyring *keys; /* borrowed for the call */
	enum role role;		    /* client, service or admin */
	const char *tenant;	    /* role client; else NULL */
	const uint8_t *instance;    /* 16 bytes */
	bool write;
	uint32_t timeout_ms; /* 0: 5,000 */
};

/*
 * fds   out: for shmpool_map
 * conn  out: owned, close(); keep it as long as the mapping
 *
 * ERR_UNREACHABLE       nobody listens there
 * ERR_FORBIDDEN         another user's socket, or we are another user for the agent, or the ring lacks the key
 * ERR_UNAUTHENTICATED   either end's proof is wrong
 * ERR_VERSION_MISMATCH, ERR_BAD_MESSAGE, ERR_BUSY, ERR_TIMED_OUT, and what the agent answers
 */
enum err shmsock_ask(const struct shmsock_ask *a, struct shmpool_fds *fds, int *conn,
		     struct why *why) MUST_CHECK;

/* ---- messages; for both ends and the fuzz target. Pure ---- */

enum {
	SHMSOCK_VERSION = 1,
	SHMSOCK_MSG_MAX = 2048,
	SHMSOCK_FDS_MAX = 3 + MEMPOOL_SEGMENTS_MAX
};

struct shmsock_challenge {
	uint8_t nonce[AUTH_NONCE_BYTES];
};
struct shmsock_ask_msg {
	enum role role;
	char tenant[TENANT_MAX + 1];
	uint8_t instance[16], nonce[AUTH_NONCE_BYTES];
	bool write;
	uint8_t mac[32];
};
struct shmsock_grant {
	uint32_t status; /* enum err; else nothing follows but the MAC */
	uint8_t pool[16];
	uint32_t session, n_segments, n_slots, n_lanes, n_shards;
	uint64_t bytes[MEMPOOL_SEGMENTS_MAX];
	uint8_t mac[32];
};
/* Bytes written to out[SHMSOCK_MSG_MAX]. */
size_t shmsock_put_challenge(uint8_t *out, const struct shmsock_challenge *m);
size_t shmsock_put_ask(uint8_t *out, const struct shmsock_ask_msg *m);
size_t shmsock_put_grant(uint8_t *out, const struct shmsock_grant *m);
/* ERR_BAD_MESSAGE, ERR_VERSION_MISMATCH; out is untouched then. */
enum err shmsock_get_challenge(struct bytes in, struct shmsock_challenge *out) MUST_CHECK;
enum err shmsock_get_ask(struct bytes in, struct shmsock_ask_msg *out) MUST_CHECK;
enum err shmsock_get_grant(struct bytes in, struct shmsock_grant *out) MUST_CHECK;
