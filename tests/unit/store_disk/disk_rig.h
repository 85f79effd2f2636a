/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocking backend on a disk in memory, and a model of what it owes: what was acknowledged is there with its
 * bytes, what was deleted or evicted is not, and of what failed either may be true. No loop, no threads.
 */
#pragma once

#include "../../support/leak.h"
#include "store/disk_cut.h"
#include "store/store_blk.h"

#define RIG_IDS	  48
#define RIG_SIZES 8
#define RIG_LIMIT (6u << 20)

/* A sanitizer is slow: there each of a test's parameters walks every so manieth place, others each a different one. */
#ifdef LEAK_CHECKED
#define RIG_STEP 7
#else
#define RIG_STEP 1
#endif

enum rig_state { RIG_ABSENT, RIG_PRESENT, RIG_UNKNOWN };

struct rig {
	const char *backend;
	enum store_fsync fsync;
	enum store_order order;
	uint64_t limit;
	struct disk_cut *disk; /* ours */
	struct store_blk *blk; /* NULL: not open */
	struct blk_lane lane;
	struct log log;
	uint64_t rng;
	enum rig_state state[RIG_IDS];
	bool there[RIG_IDS]; /* at the last check */
	bool fresh;	     /* nothing was done since it was opened */
	bool lax;	     /* bytes were spoiled: what is present may be gone, never wrong */
	uint8_t *values[RIG_IDS];
	uint64_t gone; /* of what is lax */
	char what[80]; /* of the case, for texts */
};

void rig_init(struct rig *r, const char *backend, uint64_t seed);
void rig_fini(struct rig *r);
uint64_t rig_random(struct rig *r, uint64_t below);

struct store_id rig_id(uint32_t i);
uint64_t rig_size(uint32_t i);
uint64_t rig_sum(const struct rig *r, uint32_t i);

enum err rig_open(struct rig *r);
void rig_close(struct rig *r); /* in good order */
/* The process ends here; the disk goes on as `next`, which is taken. */
void rig_crash(struct rig *r, struct disk_cut *next);

/* One batch each. Results go into the model. True: all went well. */
bool rig_put(struct rig *r, const uint32_t *ids, uint32_t n);
bool rig_del(struct rig *r, const uint32_t *ids, uint32_t n);
/* A pick and a reclaim; items at random are kept. True: something went. */
bool rig_evict(struct rig *r, bool starved, bool keep_some);
/* A step by chance. */
void rig_step(struct rig *r);
/* Everything is as the model says; with lax, nothing is wrong. What is unknown becomes known
 * when this is the first thing after a start. */
void rig_check(struct rig *r);
