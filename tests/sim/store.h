/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store under random faults, with clients that record what they were told.
 *
 * Each value names its key and a serial, and the rest of it follows from these. Checked at each call's
 * end against all that ended before it began (S1..S6), and in calm (S7..S9):
 *   S1  a get returns the whole bytes of one put to that key that began before the get's end (T4)
 *   S2  no older version than the highest that was acknowledged to a put or returned by a get before
 *       this get began (T2, T5)
 *   S3  no version that an acknowledged remove had found acknowledged or returned when it began (T3)
 *   S4  NOT_FOUND only where no put is acknowledged, or a remove came after it or may still take effect;
 *       not judged while a holder is or was away, as its copies leave the index then, nor in runs
 *       whose pools evict or lose their memory to a power cut
 *   S5  a call ends by its deadline (T7)
 *   S6  an error is one that this call may have
 *   S7  S4 again, for every key, when all holders are back
 *   S8  no key is stuck: an upsert and a get of it succeed
 *   S9  after the last remove all space comes back, no attempt is left, the index is sound
 */
#pragma once

#include "base/def.h"

struct store_sums {
	uint64_t calls[8], ok[8]; /* by enum store_op */
	uint64_t by_err[512];
	uint64_t seen_away, runs_of_master, runs_of_agents, runs_of_clients;
	uint64_t hits, judged_absent;
};

/* Faults in the harness, to see that the checks are awake. */
enum store_plant {
	STORE_RIGHT,
	STORE_WRONG_BYTE, /* S1 */
	STORE_OLD,	  /* S2: a get's version is taken for an older one */
	STORE_REMOVED,	  /* S3: a put is taken for removed */
	STORE_LOST,	  /* S4: a hit is taken for NOT_FOUND */
};

/* One run; returns the hash of its events. sums are added to. */
uint64_t store_scenario(uint64_t seed, enum store_plant plant, struct store_sums *sums);
