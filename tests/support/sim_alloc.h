/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation failures of one simulated process. A test program linked with sim_alloc_dep has its
 * malloc, calloc, realloc and strdup calls (those of our own code, not of libraries) pass here; they
 * fail by count while an event of that process runs. Without sim_alloc_dep nothing is wrapped and
 * sim_alloc_fail does not exist.
 *
 * Thread: the world's.
 */
#pragma once

#include "tests/support/sim.h"

/* The allocations skip..skip+count-1 that p makes from now on return NULL. One process at a time;
 * count 0 ends it. */
__attribute__((weak)) void sim_alloc_fail(const struct sim_proc *p, uint64_t skip,
					  uint64_t count);
/* How many allocations of that process were let fail, since the last sim_alloc_fail. */
__attribute__((weak)) uint64_t sim_alloc_failed(void);
