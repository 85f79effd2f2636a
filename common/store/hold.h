/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holder's part of the store protocol (spec/store.md Terms and puts, V1 V2 V3 V5 V9 V10), over a
 * pool's directory (mempool.h): adopt, commit, publish, retire, free, fence, inventory. Synchronous and
 * pure but for stores into the pool: flows bring messages, this decides. The model checker runs
 * exactly this code over a pool in plain memory.
 *
 * I1: every command names (shard, term, adoption, pool_epoch); any other than the superblock's is
 *     refused and changes nothing (V9).
 * I2: a closed version never commits again in its pool_epoch (V3).
 * I3: a slot's state moves EMPTY -> COMMITTED -> RETIRED -> EMPTY; each by one release store.
 * I4: an extent whose writer may still write is in the list of writing ranges until it cannot (T6).
 *
 * Thread: its owner's.
 */
#pragma once

#include "store/object.h"
#include "store/mempool.h"

struct hold;

struct hold_opts {
	struct mempool *pool; /* borrowed for life */
	uint32_t ring;	 /* revoked versions kept in the control page; 0: 1,024 (tests: less) */
	uint32_t closed; /* versions closed by COMMIT that are kept; 0: 65,536 */
	/* The writer of that range can no longer write: it may be given out. Called by hold_sweep;
	 * must not call back. */
	void (*fenced)(void *ctx, uint32_t shard, uint64_t version);
	void *ctx;
#ifdef POMELO_PLANT
	uint32_t
		hold_break; /* enum hold_break: rules left out, for the model checker to find */
#endif
};
#ifdef POMELO_PLANT
enum hold_break {
	HOLD_BREAK_CLOSED = 1 << 0,  /* V3: a closed version commits again */
	HOLD_BREAK_HAZARD = 1 << 1,  /* T6: a fence that reads no hazards */
	HOLD_BREAK_EXTENTS = 1 << 2, /* V1: hazard records without extents */
	HOLD_BREAK_BELOW = 1 << 3,   /* V2: what leaves the ring is forgotten */
	HOLD_BREAK_UNDER = 1 << 4,   /* V9: commands of another adoption are obeyed */
	HOLD_BREAK_ADOPT = 1 << 5,   /* V10: every ADOPT of the term raises the epoch */
};
#endif

struct hold_under {
	uint32_t shard;
	uint64_t term, adoption, pool_epoch;
};

/* out: owned, hold_close(). A start fences the last run's writers (L2): each shard's pool_epoch is
 * raised before this returns. ERR_NO_MEMORY; ERR_IO, ERR_NO_SPACE of the superblock. Blocks for one
 * sync. */
enum err hold_new(const struct hold_opts *o, struct hold **out) MUST_CHECK;
void hold_close(struct hold *h);

/* As it is now. */
struct hold_under hold_under(const struct hold *h, uint32_t shard);

/*
 * ADOPT(term, adoption): superblock first (term, adoption, pool_epoch + 1), then older epochs'
 * writers are fenced. An equal pair answers again and changes nothing (V10).
 *
 * ERR_STALE_TERM      a lower pair
 * ERR_INVALID_PARAMS  shard out of range (why)
 * ERR_IO, ERR_NO_SPACE, ERR_CORRUPT of the superblock; nothing has changed
 */
enum err hold_adopt(struct hold *h, uint32_t shard, uint64_t term, uint64_t adoption,
		    struct hold_under *out, struct why *why) MUST_CHECK;
/* I1: ERR_STALE_TERM, ERR_STALE_EPOCH. */
enum err hold_check(const struct hold *h, const struct hold_under *u) MUST_CHECK;

struct hold_slot {
	uint32_t slot;
	uint64_t generation, version, sum;
	bool retired; /* RETIRED: ask the master what became of it */
	bool published;
};

/*
 * COMMIT (V3). t: an opened write or pull ticket (its MAC is good), of the tenant that asks.
 *
 * ERR_NONE            the slot is COMMITTED or RETIRED: PUBLISH it, answer then; out is filled
 * ERR_NOT_READY       not remembered: ask the master whether the version is open (CONFIRM), then
 *                     hold_confirm and call again
 * ERR_STALE_EPOCH, ERR_STALE_ATTEMPT
 * ERR_BUSY            a hazard still names it: the client has not cleared its word
 * ERR_BAD_TICKET      neither of them, or extents that are none of this pool (why)
 * ERR_NO_SPACE        no free slot, or no room for its key (nothing has changed)
 */
enum err hold_commit(struct hold *h, const struct msg_ticket *t, uint64_t sum,
		     struct hold_slot *out, struct why *why) MUST_CHECK;
/*
 * Between the two, COMMITs share one reading of the hazards: for those of one message, in one turn of the
 * loop, with no other call of the hold in between. A reading takes a cache line a lane (64) and session. It
 * is no weaker: a client clears its word before it sends COMMIT, and nobody is stopped by a reading from
 * setting one after it.
 */
void hold_commits_begin(struct hold *h);
void hold_commits_end(struct hold *h);
/*
 * A writer inside our own process begins (tcp): the hazard record names the ticket's version from here
 * on, lane_end takes it back. t: an opened ticket, of the tenant that asks. Unlike a client that maps
 * the pool, it cannot write once its version was committed: a ticket used again is refused.
 *
 * ext                 out: the ticket's extents, t->extents.n of them
 *
 * ERR_STALE_EPOCH     of another epoch, or for another pool
 * ERR_STALE_ATTEMPT   its version is closed, or so old that this is not remembered (V3)
 * ERR_BUSY            it is being written already
 * ERR_BAD_TICKET      as hold_commit
 */
enum err hold_write(struct hold *h, const struct msg_ticket *t, struct pool_lane *lane,
		    struct extent ext[OBJ_EXTENTS_MAX], struct why *why) MUST_CHECK;
/*
 * COPY: a copy that our own process is to fetch. t: an opened pull ticket. Admitted at most once: its number
 * (attempt) is above that of every other in this pool_epoch, so what comes late begins nothing (V3), while
 * an old version may be copied, and one that was here before may come back.
 *
 * ERR_EXISTS          a slot has this version: hold_commit says which
 * ERR_STALE_EPOCH, ERR_STALE_ATTEMPT (late, or fenced), ERR_BUSY, ERR_BAD_TICKET  as hold_write
 */
enum err hold_pull_admit(struct hold *h, const struct msg_ticket *t, struct why *why)
	MUST_CHECK;
/* FENCE of a copy: its number and those below begin nothing any more, though the ring may forget its version.
 * ERR_STALE_TERM, ERR_STALE_EPOCH. */
enum err hold_pull_bar(struct hold *h, const struct hold_under *u, uint64_t number) MUST_CHECK;
/*
 * One that was admitted begins to write: the hazard record names its version until lane_end. Its writer
 * looks at no ring: whoever calls hold_fence or hold_adopt stops it. hold_commit takes the ticket when
 * the record was taken back. ext, errors: as hold_write, and ERR_EXISTS.
 */
enum err hold_pull(struct hold *h, const struct msg_ticket *t, struct pool_lane *lane,
		   struct extent ext[OBJ_EXTENTS_MAX], struct why *why) MUST_CHECK;
/* The master says this version is open. */
void hold_confirm(struct hold *h, uint32_t shard, uint64_t version);
/* The answer to PUBLISH came, or MARK: sets the published mark (V6). ERR_NOT_FOUND: the slot holds
 * another generation or version now, or is not COMMITTED; nothing has changed. */
enum err hold_published(struct hold *h, uint32_t slot, uint64_t generation, uint64_t version);

/* ERR_NOT_FOUND: another generation or version, or EMPTY: as good as done. Retired already: ERR_NONE,
 * the first reason stays. */
enum err hold_retire(struct hold *h, const struct hold_under *u, uint32_t slot,
		     uint64_t generation, uint64_t version, enum retire_reason reason,
		     uint64_t evict_id) MUST_CHECK;
/* Generation + 1, state EMPTY, in that order. Only a RETIRED slot of that generation; any other: ERR_NOT_FOUND. */
enum err hold_free(struct hold *h, const struct hold_under *u, uint32_t slot,
		   uint64_t generation) MUST_CHECK;

enum hold_fence { HOLD_COMMITTED = 1, HOLD_FENCED = 2, HOLD_WRITING = 3 };
/* FENCE(version): closes it. COMMITTED: out is filled (a RETIRED slot too). WRITING: the range joins
 * the writing ranges; opts.fenced says when it is free. ERR_INVALID_PARAMS: version 0, or extents of no
 * pool of ours; ERR_NO_MEMORY. */
enum err hold_fence(struct hold *h, const struct hold_under *u, uint64_t version,
		    const struct extent *ext, size_t n_ext, enum hold_fence *state,
		    struct hold_slot *out) MUST_CHECK;

/* Looks at the hazards of writing ranges and at sessions whose process has gone; calls opts.fenced. */
void hold_sweep(struct hold *h);
/* Bytes in writing ranges; of one client's session. */
uint64_t hold_quarantine(const struct hold *h);

struct hold_entry {
	struct hold_slot at;
	uint32_t shard;
	enum retire_reason reason;
	uint64_t evict_id, size;
	struct bytes tenant, key; /* borrowed from the pool */
	const struct extent *extents;
	size_t n_extents;
	struct msg_put_opts opts; /* borrowed likewise */
};
/* Slots in use from *cursor (0: the start) until fn returns false (that one was not taken: it comes
 * first next time); *cursor is where to go on, 0 at the end. A slot RETIRED(OVERLAP) shows no
 * extents: its bytes are another's, FREE of it returns nothing. */
void hold_scan(struct hold *h, uint32_t shard, uint64_t *cursor,
	       bool (*fn)(void *arg, const struct hold_entry *e), void *arg);
/* The writing ranges of a shard. */
void hold_writing(struct hold *h, uint32_t shard,
		  void (*fn)(void *arg, uint64_t version, const struct extent *ext, size_t n),
		  void *arg);

/*
 * Payload of slots that this start re-adopted, verified in the background: hold_verify_next ->
 * mempool_sum on a worker -> hold_verified. Until then their readers do it (shmpool_unverified).
 */
struct hold_verify { /* by value: the slot may change meanwhile */
	uint32_t slot, shard;
	uint64_t generation, version, size, sum;
	struct extent extents[OBJ_EXTENTS_MAX];
	size_t n_extents;
};
/* Somebody found bytes of that slot wrong: they are verified anew, by readers too until that is done. False: it
 * holds something else by now, or is not COMMITTED. */
bool hold_doubt(struct hold *h, uint32_t slot, uint64_t generation);
/* Still to be verified? */
bool hold_unverified(const struct hold *h, uint32_t slot);
uint32_t hold_n_unverified(const struct hold *h);
/* That slot's work; false: nothing to do. */
bool hold_verify_slot(const struct hold *h, uint32_t slot, struct hold_verify *out);
/* The next one from *cursor (0: the start); false: none from there on. */
bool hold_verify_next(const struct hold *h, uint64_t *cursor, struct hold_verify *out);
/* The sum that its bytes have. ERR_CORRUPT: they fail; the slot is RETIRED(CORRUPT) now: REPORT it.
 * ERR_NONE also when the slot holds something else by now. */
enum err hold_verified(struct hold *h, const struct hold_verify *v, uint64_t sum) MUST_CHECK;

/* For the checker. */
void hold_fold(const struct hold *h, struct fold *f);
