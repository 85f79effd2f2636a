/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded random events against the mind, with an oracle beside it (soak.c). */
#pragma once

#include "base/def.h"

/*
 * n seeds from `first` on. tombs_max: a holder's budget of tombstones, 0: plenty; bytes: of a pool.
 * Environment: SOAK_SEED=n that one alone, SOAK_N=n so many, SOAK_TRACE=1 what happens.
 */
void soak_seeds(uint64_t first, uint64_t n, uint32_t tombs_max, uint64_t bytes);
/* The same with many copies under way. */
void soak_copies(uint64_t first, uint64_t n, uint64_t bytes);
