/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of an N-dimensional array: n_dims offsets followed by n_dims extents, in one run of
 * uint64_t. Whether boxes tile an array, and which of two sets meet.
 *
 * The join halves space by planes that few boxes cross, so that regular cuts (grids, blocks, any
 * number of dimensions) cost N log N. Boxes made to defeat it cost more; each comparison is counted
 * against a budget, and the work stops there (B5): limit.work.
 *
 * Thread: the caller's. Memory: struct box_join keeps its scratch space between calls, at most some
 * 16 bytes a box and what the pairs need.
 */
#pragma once

#include "reshard/stop.h"

#define BOX_DIMS_MAX 32

/* How much may still be done. */
struct box_work {
	uint64_t left;		   /* comparisons */
	const atomic_bool *cancel; /* borrowed; NULL: none. Looked at every 2^15 comparisons */
	size_t memory;		   /* bytes for each list of a join; 0: no limit */
	uint64_t pairs_max;	   /* of one join; 0: no limit */
	uint64_t look;		   /* private: value of left at which to look next */
	bool spent, cancelled, no_memory, many;
};

/* 2^29 comparisons: some seconds on one core. */
#define BOX_WORK_DEFAULT (1ull << 29)

/* False: stop. Then one of the flags is set. */
static inline bool box_work_take(struct box_work *w, uint64_t n)
{
	if (w->left < n) {
		w->spent = true;
		return false;
	}
	w->left -= n;
	if (w->left > w->look)
		return true;
	w->look = w->left > 1u << 15 ? w->left - (1u << 15) : 0;
	if (w->cancel && atomic_load_explicit(w->cancel, memory_order_relaxed)) {
		w->cancelled = true;
		return false;
	}
	return true;
}

struct box_pair {
	uint32_t a, b;
};

struct box_join {
	struct box_pair *pairs; /* result of the last call, in no order */
	size_t n_pairs;
	/* private */
	size_t cap_pairs;
	uint32_t *idx;
	size_t n_idx, cap_idx;
	struct box_cell *cells;
	size_t n_cells, cap_cells;
};

void box_join_fini(struct box_join *j);

/* Lexicographic on offsets, then on extents. */
int box_cmp(const uint64_t *a, const uint64_t *b, uint32_t n_dims);
/* Elements; the caller knows that it fits (boxes of fragments do). */
uint64_t box_volume(const uint64_t *box, uint32_t n_dims);
/* Elements of a whole shape; all ones when it is beyond 2^128: more than 2^32 boxes hold. */
unsigned __int128 box_shape_volume(const uint64_t *shape, uint32_t n_dims);
/* Do they share an element? */
static inline bool box_meet(const uint64_t *a, const uint64_t *b, uint32_t n_dims)
{
	for (uint32_t d = 0; d < n_dims; d++)
		if (a[d] >= b[d] + b[n_dims + d] || b[d] >= a[d] + a[n_dims + d])
			return false;
	return true;
}

/* All pairs (a, b) that meet, each once. False: w says why. Boxes are inside one array, so that
 * offset + extent does not wrap. */
bool box_join(struct box_join *j, const uint64_t *const *a, uint32_t n_a,
	      const uint64_t *const *b, uint32_t n_b, uint32_t n_dims, struct box_work *w)
	MUST_CHECK;
/* *out: no two boxes meet. *i, *k (may be NULL): two that do. */
bool box_disjoint(struct box_join *j, const uint64_t *const *a, uint32_t n, uint32_t n_dims,
		  struct box_work *w, bool *out, uint32_t *i, uint32_t *k) MUST_CHECK;
/* *out: the boxes, each inside shape, cover it and do not meet. */
bool box_tile(struct box_join *j, const uint64_t *const *a, uint32_t n, const uint64_t *shape,
	      uint32_t n_dims, struct box_work *w, bool *out) MUST_CHECK;
