/* SPDX-License-Identifier: Apache-2.0 */
/* pml_memory.h: puts and gets of regions, tensors as regions. */
#include "pml_memory.h"

#include "store.h"

#include <string.h>

static int bad(struct pml_error *err, enum err e, const char *what)
{
	return sdk_error(err, e, 0, NULL, "start", "%s", what);
}

/* ---- plain forms ---- */

static struct pml_item item_of(const void *key, size_t key_bytes,
			       const struct pml_nd_region *regions, size_t n)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = key;
	it.key_bytes = key_bytes;
	it.regions = regions;
	it.n_regions = n;
	return it;
}

int pml_get_regions(struct pml *p, const void *key, size_t key_bytes,
		    const struct pml_nd_region *regions, size_t n_regions,
		    const struct pml_get_opts *o, struct pml_error *err)
{
	struct pml_item it = item_of(key, key_bytes, regions, n_regions);
	struct pml_op *op = NULL;
	if (n_regions == 0)
		return bad(err, ERR_INVALID_PARAMS, "no regions: pml_get reads whole objects");
	int e = pml_get_start(p, &it, 1, o, NULL, NULL, &op, err);
	return sop_finish(e, op, NULL, err);
}

int pml_put_regions(struct pml *p, const void *key, size_t key_bytes,
		    const struct pml_nd_region *regions, size_t n_regions,
		    const struct pml_put_opts *o, struct pml_error *err)
{
	struct pml_item it = item_of(key, key_bytes, regions, n_regions);
	struct pml_op *op = NULL;
	if (n_regions == 0)
		return bad(err, ERR_INVALID_PARAMS, "no regions: pml_put writes a buffer");
	int e = pml_put_start(p, &it, 1, o, NULL, NULL, &op, err);
	return sop_finish(e, op, NULL, err);
}

/* ---- tensors ---- */

enum { DL_CPU = 1, DL_CUDA_HOST = 3 };

static enum err check_tensor(const struct pml_tensor *t, struct why *why)
{
	if (t->ndim < 0 || t->ndim > PML_DIMS_MAX || (t->ndim && !t->shape))
		return why_set(why, ERR_INVALID_PARAMS,
			       "tensor: ndim = %d: 0..%d, and shape may not be NULL", t->ndim,
			       PML_DIMS_MAX);
	if (t->device_type != DL_CPU && t->device_type != DL_CUDA_HOST)
		return why_set(why, ERR_UNSUPPORTED,
			       "tensor: device type %d: memory of the host (1, 3) alone",
			       t->device_type);
	if (t->type_bits == 0 || t->type_bits * t->type_lanes % 8 != 0 || !t->type_lanes)
		return why_set(why, ERR_UNSUPPORTED,
			       "tensor: elements of %u x %u bits are no whole bytes",
			       t->type_bits, t->type_lanes);
	for (int32_t d = 0; d < t->ndim; d++) {
		if (t->shape[d] < 0)
			return why_set(why, ERR_INVALID_PARAMS, "tensor: shape[%d] = %lld", d,
				       (long long)t->shape[d]);
		if (t->strides && t->strides[d] < 0 && t->shape[d] > 1)
			return why_set(why, ERR_UNSUPPORTED,
				       "tensor: strides[%d] = %lld: not negative", d,
				       (long long)t->strides[d]);
	}
	return ERR_NONE;
}

/* Dense strides, last dimension innermost; and on the memory's side what the tensor says. */
static bool set_strides(const struct pml_tensor *t, struct pml_nd_region *r)
{
	uint64_t dense = r->inner_bytes, end = r->inner_bytes, step;
	bool fits = true, empty = false;
	for (int32_t d = t->ndim; d-- > 0;) {
		uint64_t n = (uint64_t)t->shape[d];
		bool own = t->strides && n > 1; /* of one step: never taken, may be anything */
		r->counts[d] = n;
		r->object_strides[d] = r->memory_strides[d] = dense;
		if (own && __builtin_mul_overflow((uint64_t)t->strides[d], r->inner_bytes,
						  &r->memory_strides[d]))
			fits = false;
		empty |= n == 0;
		if (n == 0)
			continue;
		if (__builtin_mul_overflow(n - 1, r->memory_strides[d], &step) ||
		    __builtin_add_overflow(end, step, &end) ||
		    __builtin_mul_overflow(dense, n, &dense))
			fits = false;
	}
	r->memory_bytes = empty ? 0 : end;
	return fits || empty;
}

int pml_nd_region_of_tensor(const struct pml_tensor *t, uint64_t object_offset,
			    struct pml_nd_region *out, struct pml_error *err)
{
	static const char step[] = "tensor";
	struct pml_nd_region r = PML_ND_REGION_INIT;
	struct why why = { 0 };
	if (!t || !out)
		return bad(err, ERR_INVALID_PARAMS, "the tensor, or out, is NULL");
	if (check_tensor(t, &why) != ERR_NONE)
		return sdk_error_why(err, &why, step);
	r.n_dims = (uint32_t)t->ndim;
	r.inner_bytes = (uint64_t)t->type_bits * t->type_lanes / 8;
	r.object_base = object_offset;
	if (!set_strides(t, &r) || t->byte_offset > UINTPTR_MAX - (uintptr_t)t->data)
		return bad(err, ERR_INVALID_PARAMS, "the tensor exceeds 64 bits");
	r.memory = t->data ? (char *)t->data + t->byte_offset : NULL;
	if (sop_give(out, &r, sizeof(r)) != PML_ERR_NONE)
		return bad(err, ERR_INVALID_PARAMS,
			   "out->size is not set; use PML_ND_REGION_INIT");
	return PML_ERR_NONE;
}
