/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's pool as its agent has it (spec/store.md, Pool): the files behind a pool_backing, checked
 * and re-adopted at a start, segments as they become ready, sessions of local clients. What the
 * directory says changes only through hold.h. (loop/pool.h has the worker threads.)
 *
 *   super      two checksummed copies: pool id, geometry, boot id, {term, adoption, pool_epoch} a shard
 *   dir        slots of 256 bytes, then the key heap; the agent's alone
 *   gen        u64 a slot: its generation, and whether readers verify it; clients read it
 *   ctl        struct pool_ctl; clients read it
 *   data.N     payload of segment N
 *   ses.ID     hazard records of one client process (struct pool_lane)
 *
 * I1: a pool that was not wholly made has no super: the next start begins again.
 * I2: a slot's bytes are whole before its state word says so; recovery believes no other.
 * I3: COMMITTED slots do not overlap after a start.
 * I4: another boot, an empty pool.
 *
 * Thread: opened by one thread, then its owner's; mempool_slice, mempool_sum: any.
 */
#pragma once

#include "store/backing.h"
#include "store/object.h"
#include "store/shmpool.h"

enum { MEMPOOL_SEGMENTS_MAX = 64, MEMPOOL_SESSIONS_MAX = 4096 };
#define MEMPOOL_SLICE_BYTES (256ull << 20)

struct mempool;

struct mempool_opts {
	struct pool_backing *backing; /* borrowed for life */
	uint8_t boot_id[16];
	/* Of a pool that is made now; one that is there keeps its own. */
	uint64_t segment_bytes; /* multiple of 4 KiB; not 0 */
	uint32_t n_segments;	/* 0: 1 */
	uint32_t n_slots;	/* 0: one for each 8 KiB, at least 1,024 */
	uint64_t heap_bytes;	/* of the key heap, sparse; 0: 512 a slot */
	uint32_t n_lanes;	/* a session; 0: POOL_LANES */
	uint32_t n_shards;	/* 0: OBJ_SHARDS_MAX */
	uint32_t sessions_max;	/* 0: 1,024 */
	/* Pool and session ids; NULL: the kernel's. */
	void (*random)(void *ctx, void *p, size_t n);
	void *random_ctx;
};

enum mempool_found {
	MEMPOOL_NEW,	 /* there was none, or one that was never finished */
	MEMPOOL_KEPT,	 /* re-adopted */
	MEMPOOL_OLD_BOOT /* of another boot: emptied; terms, adoptions, epochs were kept */
};

/* What a start found and did. */
struct mempool_start {
	enum mempool_found found;
	uint64_t committed, retired; /* slots kept */
	uint64_t dropped;	     /* bad CRC, or nonsense under a good one: now EMPTY */
	uint64_t overlaps;	     /* now RETIRED(OVERLAP) */
	uint32_t sessions;	     /* whose client lives still */
	uint32_t sessions_ended;
};

/*
 * Opens, or makes, the pool in that backing; takes its lock.
 *
 * out    owned, mempool_close()
 * start  out
 *
 * ERR_DIRECTORY_IN_USE  another agent runs it
 * ERR_CORRUPT, ERR_FORBIDDEN, ERR_VERSION_MISMATCH  what lies there is no pool of ours; why names the
 *                       file and says how to start empty
 * ERR_INVALID_PARAMS, ERR_NO_SPACE, ERR_NO_MEMORY, ERR_IO
 *
 * Blocks: about 0.5 us a slot in use (2026-11-29, a busy machine).
 */
enum err mempool_open(const struct mempool_opts *o, struct mempool **out,
		      struct mempool_start *start, struct why *why) MUST_CHECK;
/* Files stay (L3). NULL is fine. */
void mempool_close(struct mempool *p);
/* Removes a pool's files (`pomelo down`); no mempool may be open over it. Files of other names stay. */
enum err mempool_remove(struct pool_backing *b, struct why *why) MUST_CHECK;
/* The same for a folder, and the folder itself (`pomelo down`). One that is not there is fine.
 * ERR_DIRECTORY_IN_USE: an agent runs it. ERR_EXISTS: files of other names are left in it (why). */
enum err mempool_remove_folder(const char *dir, struct why *why) MUST_CHECK;

const uint8_t *mempool_id(const struct mempool *p); /* 16 bytes */
uint32_t mempool_shards(const struct mempool *p);
uint32_t mempool_slots(const struct mempool *p);
uint32_t mempool_slots_used(const struct mempool *p);
uint32_t mempool_segments(const struct mempool *p);

/* ---- segments become ready in slices ---- */

struct mempool_segment {
	uint64_t bytes; /* ready: may be allocated from */
	uint64_t bytes_total;
};
struct mempool_segment mempool_segment(const struct mempool *p, uint32_t segment);
/* Slices of a segment: MEMPOOL_SLICE_BYTES each, the last may be shorter. */
uint32_t mempool_slices(const struct mempool *p, uint32_t segment);
/*
 * Gives one slice its memory and touches it. Any thread, several at once; blocks (0.1 s for 256 MiB).
 * ERR_NO_SPACE.
 */
enum err mempool_slice(const struct mempool *p, uint32_t segment, uint32_t slice,
		       struct why *why) MUST_CHECK;
/* Owner: slices [0, n) of the segment are done: its ready bytes follow, never less than they are. Those of a
 * kept pool begin with what an earlier run had touched. */
void mempool_ready(struct mempool *p, uint32_t segment, uint32_t n);

/* This process looks no more at an extent for the time being: its entries for those pages go, the bytes stay.
 * Any thread. */
void mempool_unload(const struct mempool *p, const struct extent *e);

/* Payload address of an extent; NULL if it lies outside its segment. */
void *mempool_at(const struct mempool *p, const struct extent *e);

/* ---- sessions ---- */

/*
 * A hazard page for one client process. fds: out, owned by the caller: to be sent, then closed
 * (shmsock.h does); write: data files writable. In memory the descriptors are -1 and the client maps
 * with mempool_attach.
 *
 * ERR_BUSY (sessions_max), ERR_NO_SPACE, ERR_NO_MEMORY, ERR_IO
 */
enum err mempool_session(struct mempool *p, bool write, uint32_t *id, struct shmpool_fds *fds,
			 struct why *why) MUST_CHECK;
/* In memory: what shmpool_map is over descriptors. The shmpool outlives p, not the backing. */
enum err mempool_attach(struct mempool *p, uint32_t session, struct shmpool **out) MUST_CHECK;
/* Its connection has gone: look at its lock soon. Unknown ids are fine. */
void mempool_session_hint(struct mempool *p, uint32_t id);
uint32_t mempool_sessions(const struct mempool *p);

/*
 * Hazard records for writers inside the agent's own process (tcp): n of them, in plain memory, for they
 * end with the process, whose next run fences everything (L2). Fences and COMMITs read them as they
 * read those of clients. out: borrowed for p's life. Called once (asserted). ERR_NO_MEMORY.
 */
enum err mempool_own_lanes(struct mempool *p, uint32_t n, struct pool_lane **out) MUST_CHECK;
/* The control page, for lane_begin and lane_look of such a writer. Any thread. */
const struct pool_ctl *mempool_ctl(const struct mempool *p);
/* The slot's present generation, 0 for a slot that is none; and whether its bytes were re-adopted and
 * are still to be verified (shmpool_unverified). Acquire; any thread. */
uint64_t mempool_generation(const struct mempool *p, uint32_t slot, bool *unverified);

/* ---- payload ---- */

/* The sum of the bytes in these extents. Any thread. ERR_INVALID_PARAMS: they hold fewer. About 10 GB/s. */
enum err mempool_sum(const struct mempool *p, const struct extent *ext, size_t n, uint64_t size,
		     uint64_t *sum) MUST_CHECK;
