/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a mempool: what mempool.c, directory.c, recover.c, session.c and hold.c share.
 * Thread: the pool's owner.
 */
#pragma once

#include "store/bits.h"
#include "store/keyheap.h"
#include "store/mempool.h"
#include "store/slot.h"
#include "store/super.h"

#define NO_SLOT UINT32_MAX

struct session {
	uint32_t id;
	bool hint; /* its connection has gone */
	struct pool_lane *lanes;
};

struct mempool {
	struct pool_backing *b;
	struct super super; /* as the latest good copy says */
	unsigned super_which;
	/* mapped */
	struct slot *slots;
	uint8_t *heap;
	uint64_t *gen;
	struct pool_ctl *ctl;
	uint8_t *data[MEMPOOL_SEGMENTS_MAX];
	uint64_t ready[MEMPOOL_SEGMENTS_MAX];
	/* the directory, in memory */
	struct bits free, used; /* slots */
	struct bits unverified; /* COMMITTED ones still to be read by the agent */
	struct keyheap keys;
	uint32_t *by_version; /* open addressing: slot + 1 */
	uint32_t mask;
	uint32_t slots_reserved; /* whose memory exists */
	uint64_t heap_reserved;
	/* */
	struct session *sessions;
	uint32_t n_sessions, sessions_max, next_look;
	struct pool_lane *own_lanes; /* of writers in this process */
	uint32_t n_own_lanes;
	void (*random)(void *ctx, void *p, size_t n);
	void *random_ctx;
};

uint64_t mempool_dir_bytes(const struct super *s);
uint64_t mempool_ctl_bytes(const struct super *s);
uint64_t mempool_lane_bytes(const struct super *s);
/* Where the key heap begins in dir. */
uint64_t mempool_heap_at(const struct super *s);

/* ---- super ---- */

/* Durably `next`, or an error and all is as it was. */
enum err mempool_put_super(struct mempool *p, const struct super *next, struct why *why)
	MUST_CHECK;

/* ---- directory.c ---- */

enum err directory_init(struct mempool *p) MUST_CHECK;
void directory_fini(struct mempool *p);
/* The slot that has this version, in any state but EMPTY; NO_SLOT. */
uint32_t directory_find(const struct mempool *p, uint32_t shard, uint64_t version);
/* A slot in use from here on, in memory: joins the sets and the table. */
void directory_add(struct mempool *p, uint32_t slot);
/*
 * Writes a COMMITTED slot: body, then the state word.
 *
 * ERR_NO_SPACE  no slot, no room for the names, no memory behind them; nothing has changed (why)
 */
enum err directory_commit(struct mempool *p, const struct slot_body *b, uint32_t *slot,
			  struct why *why) MUST_CHECK;
void directory_publish(struct mempool *p, uint32_t slot);
void directory_retire(struct mempool *p, uint32_t slot, enum retire_reason reason,
		      uint64_t evict_id);
/* Generation + 1, then EMPTY; then it may be used again. */
void directory_free(struct mempool *p, uint32_t slot);
/* Names, extents: borrowed until the slot changes. */
void directory_body(const struct mempool *p, uint32_t slot, struct slot_body *out);
/* Another generation, verified: no reader of the old one takes what it finds. */
void directory_raise(struct mempool *p, uint32_t slot);
/* Found by a start: until it is verified, or freed, its readers verify it; RETIRED ones, too. */
void directory_doubt(struct mempool *p, uint32_t slot);
/* Its payload has its sum. */
void directory_verified(struct mempool *p, uint32_t slot);
static inline uint64_t directory_generation(const struct mempool *p, uint32_t slot)
{
	return p->gen[slot] & ~POOL_GEN_UNVERIFIED;
}
static inline uint64_t directory_word(const struct mempool *p, uint32_t slot)
{
	return p->slots[slot].state;
}

/* Do these extents lie in the pool, at least one byte each? */
bool mempool_extents_fit(const struct mempool *p, const struct extent *ext, size_t n);

/* ---- recover.c ---- */

enum err recover_slots(struct mempool *p, struct mempool_start *start, struct why *why)
	MUST_CHECK;

/* ---- session.c ---- */

enum err sessions_recover(struct mempool *p, struct mempool_start *start, struct why *why)
	MUST_CHECK;
void mempool_sessions_fini(struct mempool *p);
/* Removes session i if its client has gone. */
bool session_ended(struct mempool *p, uint32_t i);
/* Looks at those hinted and at `n` more in turn. */
void sessions_sweep(struct mempool *p, uint32_t n);
/* "ses.ID" */
void session_name(char out[BACKING_NAME_MAX], uint32_t id);
/* The id in such a name; 0: none. */
uint32_t session_of_name(const char *name);
