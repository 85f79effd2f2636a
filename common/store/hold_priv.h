/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a hold: what hold.c, hold_fence.c and hold_scan.c share. Thread: its owner's. */
#pragma once

#include "store/closed.h"
#include "store/hold.h"
#include "store/mempool_priv.h"

/* A range whose writer may still write (I4). */
struct hold_range {
	uint64_t version;
	uint32_t shard, n;
	bool named; /* by a hazard, in the sweep under way */
	struct extent extents[OBJ_EXTENTS_MAX];
};

enum { HOLD_NAMED_MAX = 256 };

struct hold {
	struct hold_opts o;
	struct mempool *p;
	/* hazards, while COMMITs of one turn share a reading of them (hold_commits_begin) */
	bool sharing, have_named;
	uint32_t n_named;
	uint64_t named[HOLD_NAMED_MAX];
	struct closed *closed[OBJ_SHARDS_MAX]; /* made when the shard first commits */
	uint64_t copies[OBJ_SHARDS_MAX];       /* the highest number of a COPY in this epoch */
	bool scan_owed
		[OBJ_SHARDS_MAX];  /* the epoch rose, its hazards were not all taken down */
	struct hold_range *ranges; /* by (version, shard) */
	size_t n_ranges, cap_ranges;
};

#ifdef POMELO_PLANT
#define HOLD_BROKEN(h, bit) ((h)->o.hold_break & (bit))
#else
#define HOLD_BROKEN(h, bit) false
#endif

/* Does any hazard of a client that lives name it? */
bool hold_named(const struct hold *h, uint64_t version);
/* The same for a COMMIT: by the shared reading while there is one. */
bool hold_commit_named(struct hold *h, uint64_t version);
/* Is it in the ring, or below what has left it? */
bool hold_revoked(const struct hold *h, uint32_t shard, uint64_t version);
/* Is it in the ring? */
bool hold_in_ring(const struct hold *h, uint32_t shard, uint64_t version);
/* A new epoch, for clients to see. */
void hold_show_epoch(struct hold *h, uint32_t shard);
/* Every hazard of that shard becomes a writing range. ERR_NO_MEMORY: call again. */
enum err hold_take_hazards(struct hold *h, uint32_t shard) MUST_CHECK;
/* Of a slot in use. */
void hold_slot_at(const struct hold *h, uint32_t slot, struct hold_slot *out);
