/* SPDX-License-Identifier: Apache-2.0 */
#include "regions.h"

#include "sdk.h"
#include "store/object.h"

#include <string.h>

/* A region without the dimensions that change nothing: of one step, or contiguous on both sides. */
struct box {
	uint8_t *memory;
	uint64_t object, inner, runs; /* runs 0: nothing moves */
	uint32_t n;
	uint64_t counts[PML_DIMS_MAX], memory_strides[PML_DIMS_MAX],
		object_strides[PML_DIMS_MAX];
};

static enum err bad(struct why *why, size_t i, const char *what)
{
	return why_set(why, ERR_INVALID_PARAMS, "region %zu: %s", i, what);
}

static bool region_at(const struct pml_nd_region *v, size_t i, struct pml_nd_region *out)
{
	size_t stride;
	memcpy(&stride, v, sizeof(stride));
	/* a region of none of its first fields has no memory to speak of */
	if (stride < offsetof(struct pml_nd_region, n_dims) || stride > 4096)
		return false;
	return sdk_opts(out, sizeof(*out), (const char *)v + i * stride) && !out->reserved;
}

/* One past the last byte that is touched on one side. False: it does not fit into 64 bits. */
static bool reach(const struct pml_nd_region *r, uint64_t base, const uint64_t *strides,
		  uint64_t *end)
{
	uint64_t last = base, step;
	for (uint32_t d = 0; d < r->n_dims; d++) {
		if (__builtin_mul_overflow(r->counts[d] - 1, strides[d], &step) ||
		    __builtin_add_overflow(last, step, &last))
			return false;
	}
	return !__builtin_add_overflow(last, r->inner_bytes, end);
}

static bool is_empty(const struct pml_nd_region *r)
{
	for (uint32_t d = 0; d < r->n_dims; d++)
		if (r->counts[d] == 0)
			return true;
	return r->inner_bytes == 0;
}

static enum err check(const struct pml_nd_region *r, size_t i, struct why *why)
{
	uint64_t end;
	if (!reach(r, r->memory_base, r->memory_strides, &end))
		return bad(why, i, "memory_base, counts and memory_strides exceed 64 bits");
	if (end > r->memory_bytes)
		return why_set(why, ERR_INVALID_PARAMS,
			       "region %zu: it reaches byte %llu of its memory, which has %llu",
			       i, (unsigned long long)end, (unsigned long long)r->memory_bytes);
	if (!r->memory)
		return bad(why, i, "memory is NULL");
	if (r->memory_bytes > UINTPTR_MAX - (uintptr_t)r->memory)
		return bad(why, i, "its memory ends behind the end of memory");
	if (!reach(r, r->object_base, r->object_strides, &end))
		return bad(why, i, "object_base, counts and object_strides exceed 64 bits");
	if (end > OBJ_SIZE_MAX)
		return why_set(why, ERR_INVALID_PARAMS,
			       "region %zu: it reaches byte %llu; an object has at most %llu",
			       i, (unsigned long long)end, (unsigned long long)OBJ_SIZE_MAX);
	return ERR_NONE;
}

/* The region as a box; checked, when it moves anything. */
static enum err box_of(const struct pml_nd_region *v, size_t i, struct box *b, struct why *why)
{
	struct pml_nd_region r;
	if (!region_at(v, i, &r))
		return bad(why, i,
			   "its size is not set, or reserved not 0; PML_ND_REGION_INIT");
	if (r.n_dims > PML_DIMS_MAX)
		return bad(why, i, "n_dims is at most 32");
	*b = (struct box){ 0 };
	if (is_empty(&r))
		return ERR_NONE;
	enum err e = check(&r, i, why);
	if (e != ERR_NONE)
		return e;
	b->memory = (uint8_t *)r.memory + r.memory_base;
	b->object = r.object_base;
	b->inner = r.inner_bytes;
	b->runs = 1;
	for (uint32_t d = r.n_dims; d-- > 0;) { /* innermost first */
		uint64_t c = r.counts[d];
		if (c == 1)
			continue;
		if (b->n == 0 && r.memory_strides[d] == b->inner &&
		    r.object_strides[d] == b->inner) {
			b->inner *= c; /* within what was checked */
			continue;
		}
		b->counts[b->n] = c;
		b->memory_strides[b->n] = r.memory_strides[d];
		b->object_strides[b->n++] = r.object_strides[d];
		if (__builtin_mul_overflow(b->runs, c, &b->runs) || b->runs > REGION_RUNS_MAX)
			return why_set(why, ERR_TOO_LARGE,
				       "region %zu: more than %d runs that are contiguous on "
				       "both sides; split it",
				       i, REGION_RUNS_MAX);
	}
	return ERR_NONE;
}

enum err regions_count(const struct pml_nd_region *v, size_t n, bool put,
		       struct regions_out *out, struct why *why)
{
	uint64_t runs = 0, bytes = 0, part;
	for (size_t i = 0; i < n; i++) {
		struct box b;
		enum err e = box_of(v, i, &b, why);
		if (e != ERR_NONE)
			return e;
		runs += b.runs;
		if (runs > REGION_RUNS_MAX)
			return why_set(why, ERR_TOO_LARGE,
				       "regions: more than %d runs in one item; split it",
				       REGION_RUNS_MAX);
		if (b.runs && (__builtin_mul_overflow(b.runs, b.inner, &part) ||
			       __builtin_add_overflow(bytes, part, &bytes)))
			bytes = UINT64_MAX; /* the same bytes over and over: strides of 0 */
		if (bytes > REGION_BYTES_MAX)
			return bad(why, i, "more bytes in all than any memory has");
	}
	if (put && bytes > OBJ_SIZE_MAX)
		return why_set(why, ERR_TOO_LARGE, "regions: %llu bytes, at most %llu",
			       (unsigned long long)bytes, (unsigned long long)OBJ_SIZE_MAX);
	out->n_ranges = (uint32_t)MAX_OF(runs, 1u);
	out->n_bufs = (uint32_t)runs;
	out->bytes = bytes;
	return ERR_NONE;
}

/* ---- runs ---- */

struct fill {
	struct regions_out *out;
	uint32_t n_ranges, n_bufs;
	uint64_t done; /* bytes so far */
	size_t region;
	bool put, in_order;
	struct why *why;
};

static enum err add_run(struct fill *f, uint8_t *memory, uint64_t object, uint64_t n)
{
	struct stc_range *r = f->out->ranges;
	struct stc_buf *b = f->out->bufs;
	if (f->put && object != f->done)
		return why_set(f->why, ERR_INVALID_PARAMS,
			       "region %zu: a put writes the object from its first byte to its "
			       "last: byte %llu comes where %llu is due",
			       f->region, (unsigned long long)object,
			       (unsigned long long)f->done);
	f->done += n;
	if (f->n_ranges && r[f->n_ranges - 1].offset + r[f->n_ranges - 1].bytes == object)
		r[f->n_ranges - 1].bytes += n;
	else
		r[f->n_ranges++] = (struct stc_range){ object, n };
	uint8_t *end = f->n_bufs ? (uint8_t *)b[f->n_bufs - 1].p + b[f->n_bufs - 1].n : NULL;
	f->in_order = f->in_order && memory >= end;
	if (f->n_bufs && end == memory)
		b[f->n_bufs - 1].n += n;
	else
		b[f->n_bufs++] = (struct stc_buf){ memory, n };
	return ERR_NONE;
}

/* counts[0] is the innermost. */
static enum err add_box(struct fill *f, const struct box *b)
{
	uint64_t at[PML_DIMS_MAX] = { 0 };
	uint64_t memory = 0, object = b->object;
	for (uint64_t k = 0; k < b->runs; k++) {
		enum err e = add_run(f, b->memory + memory, object, b->inner);
		if (e != ERR_NONE)
			return e;
		for (uint32_t d = 0; d < b->n; d++) {
			memory += b->memory_strides[d];
			object += b->object_strides[d];
			if (++at[d] < b->counts[d])
				break;
			memory -= b->counts[d] * b->memory_strides[d];
			object -= b->counts[d] * b->object_strides[d];
			at[d] = 0;
		}
	}
	return ERR_NONE;
}

static int by_place(const void *x, const void *y)
{
	const struct stc_buf *a = x, *b = y;
	return a->p < b->p ? -1 : a->p > b->p;
}

/* Bytes that arrive twice in one place would be the one or the other's. */
static enum err no_overlap(const struct regions_out *o, struct why *why)
{
	struct stc_buf *v = malloc(o->n_bufs * sizeof(*v));
	enum err e = ERR_NONE;
	if (!v)
		return why_set(why, ERR_NO_MEMORY, "no memory for an operation");
	memcpy(v, o->bufs, o->n_bufs * sizeof(*v));
	qsort(v, o->n_bufs, sizeof(*v), by_place);
	for (uint32_t i = 1; i < o->n_bufs && e == ERR_NONE; i++)
		if ((uint8_t *)v[i - 1].p + v[i - 1].n > (uint8_t *)v[i].p)
			e = why_set(why, ERR_INVALID_PARAMS,
				    "regions overlap in memory: %zu bytes at %p and %zu at %p",
				    v[i - 1].n, v[i - 1].p, v[i].n, v[i].p);
	free(v);
	return e;
}

enum err regions_fill(const struct pml_nd_region *v, size_t n, bool put,
		      struct regions_out *out, struct why *why)
{
	struct fill f = { .out = out, .put = put, .in_order = true, .why = why };
	for (; f.region < n; f.region++) {
		struct box b;
		enum err e = box_of(v, f.region, &b, why);
		if (e == ERR_NONE)
			e = add_box(&f, &b);
		if (e != ERR_NONE)
			return e;
	}
	if (f.n_ranges == 0) /* no ranges at all would mean the whole object */
		out->ranges[f.n_ranges++] = (struct stc_range){ 0, 0 };
	out->n_ranges = f.n_ranges;
	out->n_bufs = f.n_bufs;
	return put || f.in_order ? ERR_NONE : no_overlap(out, why);
}
