/* SPDX-License-Identifier: Apache-2.0 */
/*
 * N-D regions (pml_memory.h) as what a copy walks: ranges of the object and buffers of memory, of the same
 * bytes in all, both in the regions' order. Neighbours are one range, one buffer.
 *
 * Pure. Thread: any.
 */
#pragma once

#include "base/err.h"
#include "pml_memory.h"
#include "stc.h"

enum { REGION_RUNS_MAX = PML_RUNS_MAX };
/* Of one item: more than any memory has, so that no sum of sizes can wrap. */
#define REGION_BYTES_MAX (1ull << 62)

/* Of one item. Arrays are the caller's, of as many places as the counting said. */
struct regions_out {
	struct stc_range *ranges;
	struct stc_buf *bufs;
	uint32_t n_ranges, n_bufs;
	uint64_t bytes;
};

/*
 * Checks and counts: out's n_ranges, n_bufs (at most so many) and bytes.
 *
 * v    regions whose distance is the size in the first of them
 * put  memory is only read, and the object has to come out from its first byte to its last
 *
 * ERR_INVALID_PARAMS  a region that makes no sense, named; ERR_TOO_LARGE more than REGION_RUNS_MAX runs
 */
enum err regions_count(const struct pml_nd_region *v, size_t n, bool put,
		       struct regions_out *out, struct why *why) MUST_CHECK;
/* Fills what was counted. ERR_INVALID_PARAMS: get, and two of them meet in memory; ERR_NO_MEMORY. */
enum err regions_fill(const struct pml_nd_region *v, size_t n, bool put,
		      struct regions_out *out, struct why *why) MUST_CHECK;
