/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/region.h"

/* Byte offset of the overlap's first element, and the strides of every dimension. */
static uint64_t lay_out(const uint64_t *box, uint32_t n, uint64_t itemsize, const uint64_t *at,
			uint64_t *strides)
{
	uint64_t stride = itemsize, base = 0;
	for (uint32_t d = n; d-- > 0;) {
		strides[d] = stride;
		base += (at[d] - box[d]) * stride;
		stride *= box[n + d];
	}
	return base;
}

bool region_of(const uint64_t *source, const uint64_t *target, uint32_t n_dims,
	       uint64_t itemsize, struct region *out)
{
	if (!box_meet(source, target, n_dims))
		return false;
	out->n_dims = n_dims;
	for (uint32_t d = 0; d < n_dims; d++) {
		uint64_t lo = MAX_OF(source[d], target[d]);
		uint64_t hi =
			MIN_OF(source[d] + source[n_dims + d], target[d] + target[n_dims + d]);
		out->offset[d] = lo;
		out->shape[d] = hi - lo;
	}
	out->source_base = lay_out(source, n_dims, itemsize, out->offset, out->source_strides);
	out->target_base = lay_out(target, n_dims, itemsize, out->offset, out->target_strides);
	uint32_t d = n_dims - 1;
	uint64_t inner = out->shape[d] * itemsize;
	while (d > 0 && out->source_strides[d - 1] == inner &&
	       out->target_strides[d - 1] == inner)
		inner *= out->shape[--d];
	out->inner_bytes = inner;
	out->n_outer = d;
	out->segments = 1;
	for (uint32_t i = 0; i < d; i++) {
		out->counts[i] = out->shape[i];
		out->segments *= out->shape[i];
	}
	return true;
}
