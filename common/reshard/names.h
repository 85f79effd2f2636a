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
	struct name_slot *slots;
};

#define NAMES_NONE UINT32_MAX

void names_fini(struct names *s);
/* The number of b, copied into mem when it is new. NAMES_NONE: no memory. */
uint32_t names_put(struct names *s, struct bytes b, struct arena *mem);
uint32_t names_find(const struct names *s, struct bytes b);

/* The same in steps, for a table beyond the caches: names_fetch() of the hash when the name is known,
 * names_fetch_name() some names later, names_put_hashed() some names after that. Only hints. */
uint64_t names_hash(struct bytes b);
void names_fetch(const struct names *s, uint64_t hash);
void names_fetch_name(const struct names *s, uint64_t hash);
uint32_t names_put_hashed(struct names *s, struct bytes b, uint64_t hash, struct arena *mem);

/*
 * order[0..n): indices of name(ctx, i) in ascending order; equal ones stay in the order of their
 * indices. Radix on the first eight bytes behind what all have in common, then comparisons.
 * False: no memory, or stopped. O(n) for names that differ early, n log n else.
 */
bool names_sort(struct bytes (*name)(const void *ctx, uint32_t i), const void *ctx, uint32_t n,
		uint32_t *order, const atomic_bool *cancel) MUST_CHECK;
/* The same; *twin: the first place of order whose name is that of the place before it. 0: all names
 * differ. */
bool names_sort_twin(struct bytes (*name)(const void *ctx, uint32_t i), const void *ctx,
		     uint32_t n, uint32_t *order, uint32_t *twin, const atomic_bool *cancel)
	MUST_CHECK;
/* Bytes that the numbering holds beside the names themselves. */
size_t names_bytes(const struct names *s);
