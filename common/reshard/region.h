/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One transfer: what two boxes share, as a copy loop. Both sides are row-major with their own
 * extents; strides and offsets are in bytes.
 *
 *	for each index of outer_counts, outermost first:
 *		copy inner_bytes from source_base + index . source_strides
 *		           to   target_base + index . target_strides
 *
 * Pure. Thread: any. O(n_dims).
 */
#pragma once

#include "reshard/box.h"

struct region {
	uint32_t n_dims, n_outer;
	uint64_t offset[BOX_DIMS_MAX], shape[BOX_DIMS_MAX]; /* of the overlap, in the tensor */
	uint64_t source_base, target_base, inner_bytes;
	uint64_t counts[BOX_DIMS_MAX], source_strides[BOX_DIMS_MAX],
		target_strides[BOX_DIMS_MAX];
	uint64_t segments; /* product of counts */
};

/* False when the boxes share nothing; then out is untouched. Both boxes' bytes fit 64 bits. */
bool region_of(const uint64_t *source, const uint64_t *target, uint32_t n_dims,
	       uint64_t itemsize, struct region *out);
