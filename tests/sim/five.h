/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The five services in one cluster under random faults, with callers from outside.
 *
 * Checked every 50 ms (F1..F4), and at each call's end (F5):
 *   F1  a service that no fault has touched for a while, nor the master, is READY in the master's
 *       table, or STARTING while it says so itself: no false suspicion, whatever clocks and disks do
 *   F2  one that is down or stopped for longer than suspect_ms is not READY there; for longer than
 *       holder_dead_ms: DEAD, if it is known at all
 *   F3  who is seen is the present instance, once it has been up for a while (L2)
 *   F4  each run of master and coordinator has a term above all earlier ones (T1), power cuts and
 *       failing disks included; replies carry no other
 *   F5  a call ends by its deadline, with the right answer or a typed error (T7)
 * In calm: all are ready within seconds; each ends when asked to; nothing is left.
 */
#pragma once

#include "tests/support/cluster.h"

struct five_sums {
	uint64_t calls, ok, by_err[128];
	uint64_t seen[8];		/* samples by enum beat_state */
	uint64_t runs_of_master, terms; /* terms: of the master, as it has it at the end */
	uint64_t mended; /* started again because their log could not be opened */
};

/* Faults that happen behind the cluster's back, to see that the checks are awake. */
enum five_plant {
	FIVE_NONE,
	FIVE_SECRET_STOP, /* F1 */
	FIVE_SECRET_CUT,  /* F1 */
	FIVE_SECRET_CONT, /* F2: the cluster takes it for stopped */
};

/* One run; returns the hash. sums are added to. */
uint64_t five_scenario(uint64_t seed, enum five_plant plant_what, struct five_sums *sums);
