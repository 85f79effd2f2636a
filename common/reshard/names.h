/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names as numbers, and many names in order.
 * Thread: the caller's. The hash is seeded by the address space, so that nobody can choose names
 * that collide (B5); no result depends on it.
 */
#pragma once

#include "base/arena.h"
#include "reshard/stop.h"

struct names {
	struct bytes *name; /* by number */
	uint32_t n;
	/* private */
	uint32_t cap, n_slots;
	uint32_t *slots; /* number + 1; 0: free */
	uint32_t *tags;	 /* top bits of the hash */
};

#define NAMES_NONE UINT32_MAX

void names_fini(struct names *s);
/* The number of b, copied into mem when it is new. NAMES_NONE: no memory. */
uint32_t names_put(struct names *s, struct bytes b, struct arena *mem);
uint32_t names_find(const struct names *s, struct bytes b);

/*
 * order[0..n): indices of name(ctx, i) in ascending order; equal ones stay in the order of their
 * indices. Radix on the first eight bytes behind what all have in common, then comparisons.
 * False: no memory, or stopped. O(n) for names that differ early, n log n else.
 */
bool names_sort(struct bytes (*name)(const void *ctx, uint32_t i), const void *ctx, uint32_t n,
		uint32_t *order, const atomic_bool *cancel) MUST_CHECK;
/* Bytes that the numbering holds beside the names themselves. */
size_t names_bytes(const struct names *s);
