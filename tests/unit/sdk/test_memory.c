/* SPDX-License-Identifier: Apache-2.0 */
/* pml_memory.h: regions against a naive loop, what is refused, tensors; and over a store. */
#include "regions.h"
#include "store_fix.h"

#include <stdio.h>
#include <string.h>

TestSuite(memory, .timeout = 60);

/* ---- runs ---- */

/* Where byte k of the region's walk lies on both sides; false: past its end. */
static bool naive(const struct pml_nd_region *r, uint64_t k, uint64_t *memory, uint64_t *object)
{
	uint64_t run = k / r->inner_bytes, at = k % r->inner_bytes;
	*memory = r->memory_base + at;
	*object = r->object_base + at;
	for (uint32_t d = r->n_dims; d-- > 0;) {
		*memory += run % r->counts[d] * r->memory_strides[d];
		*object += run % r->counts[d] * r->object_strides[d];
		run /= r->counts[d];
	}
	return run == 0;
}

static enum err expand(const struct pml_nd_region *r, size_t n, bool put, struct regions_out *o,
		       struct why *why)
{
	*o = (struct regions_out){ 0 };
	*why = (struct why){ 0 };
	enum err e = regions_count(r, n, put, o, why);
	if (e != ERR_NONE)
		return e;
	o->ranges = calloc(o->n_ranges, sizeof(*o->ranges));
	o->bufs = calloc(o->n_bufs + 1, sizeof(*o->bufs));
	uint32_t ranges = o->n_ranges, bufs = o->n_bufs;
	e = regions_fill(r, n, put, o, why);
	cr_expect(e != ERR_NONE || (o->n_ranges <= ranges && o->n_bufs <= bufs));
	return e;
}

static void free_runs(struct regions_out *o)
{
	free(o->ranges);
	free(o->bufs);
}

/* The runs name the same bytes in the same order as the naive loop. */
static void same_walk(const struct pml_nd_region *r, const struct regions_out *o)
{
	uint32_t ri = 0, bi = 0;
	uint64_t ra = 0, ba = 0, k = 0, memory, object;
	for (; r->inner_bytes && k < o->bytes && naive(r, k, &memory, &object); k++) {
		while (ra == o->ranges[ri].bytes)
			ri++, ra = 0;
		while (ba == o->bufs[bi].n)
			bi++, ba = 0;
		cr_assert_eq(o->ranges[ri].offset + ra++, object);
		cr_assert_eq((uint8_t *)o->bufs[bi].p + ba++, (uint8_t *)r->memory + memory);
	}
	cr_expect_eq(k, o->bytes);
}

static uint64_t pick(uint64_t *seed, uint64_t n)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (*seed >> 33) % n;
}

/* Dimensions in each other, dense or with gaps, some of one step, some of none. */
static void make_region(uint64_t *seed, struct pml_nd_region *r, uint8_t *memory, size_t bytes)
{
	*r = (struct pml_nd_region)PML_ND_REGION_INIT;
	r->inner_bytes = 1 + pick(seed, 4);
	r->n_dims = (uint32_t)pick(seed, 5);
	uint64_t m = r->inner_bytes, o = r->inner_bytes;
	for (uint32_t d = r->n_dims; d-- > 0;) {
		r->counts[d] = pick(seed, 20) ? 1 + pick(seed, 4) : 0;
		r->memory_strides[d] = m + (pick(seed, 2) ? pick(seed, 3) : 0);
		r->object_strides[d] = o + (pick(seed, 2) ? pick(seed, 3) : 0);
		m = r->memory_strides[d] * MAX_OF(r->counts[d], 1u);
		o = r->object_strides[d] * MAX_OF(r->counts[d], 1u);
	}
	r->memory = memory;
	r->memory_bytes = bytes;
	r->memory_base = pick(seed, 10);
	r->object_base = pick(seed, 10);
}

Test(memory, runs_are_the_loop)
{
	static uint8_t memory[16384];
	uint64_t seed = 7, whole = 0;
	for (int i = 0; i < 3000; i++) {
		struct pml_nd_region r;
		struct regions_out o;
		struct why why;
		make_region(&seed, &r, memory, sizeof(memory));
		cr_assert_eq(expand(&r, 1, false, &o, &why), ERR_NONE, "%d: %s", i, why.text);
		same_walk(&r, &o);
		whole += o.n_bufs == 1 && r.n_dims > 0;
		free_runs(&o);
	}
	cr_expect_gt(whole, 50, "some were merged to one run: %u", (unsigned)whole);
	NO_LEAKS();
}

/* Millions of steps that are contiguous on both sides are one run. */
Test(memory, dense_dimensions_cost_nothing)
{
	struct pml_nd_region r = PML_ND_REGION_INIT;
	struct regions_out o;
	struct why why;
	r.memory = (void *)4096; /* not touched */
	r.memory_bytes = 1ull << 36;
	r.inner_bytes = 16;
	r.n_dims = 3;
	r.counts[0] = 64, r.counts[1] = 1 << 13, r.counts[2] = 1 << 13;
	r.memory_strides[2] = r.object_strides[2] = 16;
	r.memory_strides[1] = r.object_strides[1] = 16ull << 13;
	r.memory_strides[0] = 16ull << 26;
	r.object_strides[0] = 1ull << 31;
	cr_assert_eq(expand(&r, 1, false, &o, &why), ERR_NONE, "%s", why.text);
	cr_expect(o.n_bufs == 1 && o.n_ranges == 64, "%u %u", o.n_bufs, o.n_ranges);
	cr_expect_eq(o.bytes, 1ull << 36);
	free_runs(&o);
	NO_LEAKS();
}

/* ---- what is refused ---- */

static void no_size(struct pml_nd_region *r)
{
	r->size = 0;
}
static void reserved(struct pml_nd_region *r)
{
	r->reserved = 1;
}
static void many_dims(struct pml_nd_region *r)
{
	r->n_dims = 33;
}
static void null_memory(struct pml_nd_region *r)
{
	r->memory = NULL;
}
static void too_far(struct pml_nd_region *r)
{
	r->memory_bytes = 63;
}
static void base_too_far(struct pml_nd_region *r)
{
	r->memory_base = 1;
}
static void memory_wraps(struct pml_nd_region *r)
{
	r->memory_strides[0] = UINT64_MAX / 2;
}
static void memory_adds_up(struct pml_nd_region *r)
{
	r->memory_base = UINT64_MAX - 10;
}
static void object_wraps(struct pml_nd_region *r)
{
	r->object_strides[0] = UINT64_MAX / 2;
}
static void object_too_large(struct pml_nd_region *r)
{
	r->object_base = 1ull << 40;
}
static void end_of_memory(struct pml_nd_region *r)
{
	r->memory_bytes = UINT64_MAX;
}
static void overlaps(struct pml_nd_region *r)
{
	r->memory_strides[0] = 15;
}
static void repeats(struct pml_nd_region *r)
{
	r->memory_strides[0] = 0;
}
static void many_runs(struct pml_nd_region *r)
{
	r->inner_bytes = 1;
	r->counts[0] = PML_RUNS_MAX + 1;
	r->memory_bytes = 1ull << 40;
	r->memory_strides[0] = 2;
}

static struct pml_nd_region good(void *memory)
{
	struct pml_nd_region r = PML_ND_REGION_INIT;
	r.memory = memory;
	r.memory_bytes = 64;
	r.inner_bytes = 16;
	r.n_dims = 1;
	r.counts[0] = 4;
	r.memory_strides[0] = 16;
	r.object_strides[0] = 32;
	return r;
}

Test(memory, refused_regions)
{
	static const struct {
		void (*bend)(struct pml_nd_region *r);
		enum err e;
		const char *says;
	} rows[] = { { no_size, ERR_INVALID_PARAMS, "PML_ND_REGION_INIT" },
		     { reserved, ERR_INVALID_PARAMS, "PML_ND_REGION_INIT" },
		     { many_dims, ERR_INVALID_PARAMS, "32" },
		     { null_memory, ERR_INVALID_PARAMS, "NULL" },
		     { too_far, ERR_INVALID_PARAMS, "byte 64 of its memory, which has 63" },
		     { base_too_far, ERR_INVALID_PARAMS, "byte 65" },
		     { memory_wraps, ERR_INVALID_PARAMS, "memory_strides exceed 64 bits" },
		     { memory_adds_up, ERR_INVALID_PARAMS, "64 bits" },
		     { object_wraps, ERR_INVALID_PARAMS, "object_strides exceed 64 bits" },
		     { object_too_large, ERR_INVALID_PARAMS, "an object has at most" },
		     { end_of_memory, ERR_INVALID_PARAMS, "end of memory" },
		     { overlaps, ERR_INVALID_PARAMS, "overlap" },
		     { repeats, ERR_INVALID_PARAMS, "overlap" },
		     { many_runs, ERR_TOO_LARGE, "1048576" } };
	static uint8_t memory[64];
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct pml_nd_region r[2] = { good(memory), good(memory) };
		struct regions_out o;
		struct why why;
		r[0].counts[0] = 0; /* the second is the bad one, and named */
		rows[i].bend(&r[1]);
		if (r[1].size == 0)
			r[0].size = 0;
		cr_expect_eq(expand(r, 2, false, &o, &why), rows[i].e, "row %zu", i);
		cr_expect(strstr(why.text, rows[i].says), "row %zu: %s", i, why.text);
		free_runs(&o);
	}
	NO_LEAKS();
}

/* Two regions that are each fine, and meet; in the other order too. */
Test(memory, regions_that_meet)
{
	static uint8_t memory[128];
	struct regions_out o;
	struct why why;
	for (int swap = 0; swap < 2; swap++) {
		struct pml_nd_region r[2] = { good(memory), good(memory) };
		r[!swap].memory_base = 48, r[!swap].memory_bytes = 128;
		cr_expect_eq(expand(r, 2, false, &o, &why), ERR_INVALID_PARAMS);
		free_runs(&o);
		r[!swap].memory_base = 64;
		cr_expect_eq(expand(r, 2, false, &o, &why), ERR_NONE, "%s", why.text);
		cr_expect_eq(o.n_ranges, 8);
		free_runs(&o);
	}
	NO_LEAKS();
}

Test(memory, puts_leave_no_gap)
{
	static uint8_t memory[64];
	struct pml_nd_region r = good(memory);
	struct regions_out o;
	struct why why;
	cr_expect_eq(expand(&r, 1, true, &o, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, "byte 32 comes where 16 is due"), "%s", why.text);
	free_runs(&o);
	r.object_strides[0] = 16;
	r.memory_strides[0] = 0; /* the same bytes four times */
	cr_expect_eq(expand(&r, 1, true, &o, &why), ERR_NONE, "%s", why.text);
	cr_expect(o.n_bufs == 4 && o.n_ranges == 1 && o.bytes == 64);
	free_runs(&o);
	r.n_dims = 2; /* more than an object has, of hardly any memory */
	r.counts[0] = 1024, r.counts[1] = 1024;
	r.inner_bytes = 1 << 21;
	r.memory_strides[0] = r.memory_strides[1] = 0;
	r.object_strides[1] = 1 << 21, r.object_strides[0] = 1ull << 31;
	r.memory_bytes = 1 << 21;
	cr_expect_neq(expand(&r, 1, true, &o, &why), ERR_NONE);
	free_runs(&o);
	NO_LEAKS();
}

/* ---- over a store ---- */

Test(memory, a_tile_of_a_matrix)
{
	enum { ROWS = 300, COLS = 64, TILE = 16 };
	struct fix x;
	uint32_t *m = malloc(ROWS * COLS * 4), tile[ROWS][TILE + 1];
	fix_open(&x);
	for (uint32_t i = 0; i < ROWS * COLS; i++)
		m[i] = i * 7919;
	cr_assert_eq(pml_put(x.p, "m", 1, m, ROWS * COLS * 4, NULL, &x.err), 0, "%s",
		     x.err.text);
	for (int verify = 1; verify < 3; verify++) {
		struct pml_get_opts o = PML_GET_OPTS_INIT;
		struct pml_nd_region r = PML_ND_REGION_INIT;
		o.verify = (uint32_t)verify;
		memset(tile, 0xee, sizeof(tile));
		r.memory = tile, r.memory_bytes = sizeof(tile);
		r.object_base = 16 * 4;
		r.inner_bytes = TILE * 4;
		r.n_dims = 1;
		r.counts[0] = ROWS;
		r.object_strides[0] = COLS * 4;
		r.memory_strides[0] = (TILE + 1) * 4;
		cr_assert_eq(pml_get_regions(x.p, "m", 1, &r, 1, &o, &x.err), 0, "%s",
			     x.err.text);
		for (uint32_t i = 0; i < ROWS; i++) {
			cr_expect_eq(memcmp(tile[i], m + i * COLS + 16, TILE * 4), 0);
			cr_expect_eq(tile[i][TILE], 0xeeeeeeee,
				     "what lies between is not ours");
		}
		r.object_base = COLS * 4;
		cr_expect_eq(pml_get_regions(x.p, "m", 1, &r, 1, &o, &x.err),
			     PML_ERR_INVALID_PARAMS);
		cr_expect(strstr(x.err.text, "the object has"), "%s", x.err.text);
	}
	free(m);
	fix_close(&x);
	NO_LEAKS();
}

/* A transposed put, read back whole; and an empty one. */
Test(memory, put_from_strided_memory)
{
	struct fix x;
	uint16_t a[3][5], b[5][3];
	size_t n = 99;
	fix_open(&x);
	for (unsigned i = 0; i < 15; i++)
		a[i / 5][i % 5] = (uint16_t)(i * 1000);
	struct pml_nd_region r = PML_ND_REGION_INIT;
	r.memory = a, r.memory_bytes = sizeof(a);
	r.inner_bytes = 2;
	r.n_dims = 2;
	r.counts[0] = 5, r.counts[1] = 3;
	r.memory_strides[0] = 2, r.memory_strides[1] = 10;
	r.object_strides[0] = 6, r.object_strides[1] = 2;
	cr_assert_eq(pml_put_regions(x.p, "t", 1, &r, 1, NULL, &x.err), 0, "%s", x.err.text);
	cr_assert_eq(pml_get(x.p, "t", 1, b, sizeof(b), &n, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(n, 30);
	for (unsigned i = 0; i < 15; i++)
		cr_expect_eq(b[i % 5][i / 5], a[i / 5][i % 5]);
	r.counts[1] = 0;
	cr_expect_eq(pml_put_regions(x.p, "e", 1, &r, 1, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_get(x.p, "e", 1, b, sizeof(b), &n, NULL, &x.err), 0);
	cr_expect_eq(n, 0);
	memset(b, 0x77, sizeof(b));
	r.memory = b;
	cr_expect_eq(pml_get_regions(x.p, "t", 1, &r, 1, NULL, &x.err), 0,
		     "nothing is asked for");
	cr_expect_eq(b[0][0], 0x7777);
	fix_close(&x);
	NO_LEAKS();
}

Test(memory, refused_items)
{
	struct fix x;
	char out[64];
	struct pml_nd_region r = good(out);
	struct pml_buf buf = { out, 64 };
	struct pml_item it[2] = { PML_ITEM_INIT, PML_ITEM_INIT };
	struct pml_op *op = NULL;
	fix_open(&x);
	for (int i = 0; i < 2; i++) {
		it[i].key = "k", it[i].key_bytes = 1;
		it[i].regions = &r, it[i].n_regions = 1;
	}
	it[1].bufs = &buf, it[1].n_bufs = 1;
	cr_expect_eq(pml_get_start(x.p, it, 2, NULL, NULL, NULL, &op, &x.err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(x.err.text, "or buffers"), "%s", x.err.text);
	it[1].n_bufs = 0;
	it[1].regions = NULL;
	cr_expect_eq(pml_get_start(x.p, it, 2, NULL, NULL, NULL, &op, &x.err),
		     PML_ERR_INVALID_PARAMS);
	struct pml_nd_region far = r;
	far.memory_bytes = 1;
	it[1].regions = &far;
	cr_expect_eq(pml_get_start(x.p, it, 2, NULL, NULL, NULL, &op, &x.err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(x.err.text, "item 1: region 0"), "%s", x.err.text);
	cr_expect_eq(pml_get_regions(x.p, "k", 1, NULL, 0, NULL, &x.err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_put_regions(x.p, "k", 1, NULL, 0, NULL, &x.err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_get_regions(x.p, "k", 1, NULL, 1, NULL, &x.err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_get_regions(NULL, "k", 1, &r, 1, NULL, &x.err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_null(op);
	fix_close(&x);
	NO_LEAKS();
}

/* ---- tensors ---- */

static struct pml_tensor tensor(void *data, int32_t ndim, int64_t *shape, int64_t *strides)
{
	return (struct pml_tensor){ .data = data,
				    .device_type = 1,
				    .ndim = ndim,
				    .type_code = 2,
				    .type_bits = 32,
				    .type_lanes = 1,
				    .shape = shape,
				    .strides = strides };
}

Test(memory, tensors)
{
	float data[64];
	int64_t shape[] = { 3, 4, 1 }, strides[] = { 20, 2, 999 };
	struct pml_tensor t = tensor(data, 3, shape, strides);
	struct pml_nd_region r = PML_ND_REGION_INIT;
	struct pml_error err = PML_ERROR_INIT;
	t.byte_offset = 8;
	cr_assert_eq(pml_nd_region_of_tensor(&t, 100, &r, &err), 0, "%s", err.text);
	cr_expect_eq(r.memory, (char *)data + 8);
	cr_expect(r.n_dims == 3 && r.inner_bytes == 4 && r.object_base == 100);
	cr_expect(r.memory_strides[0] == 80 && r.memory_strides[1] == 8);
	cr_expect(r.object_strides[0] == 16 && r.object_strides[1] == 4);
	cr_expect_eq(r.memory_bytes, 2 * 80 + 3 * 8 + 4);
	t.strides = NULL;
	cr_assert_eq(pml_nd_region_of_tensor(&t, 0, &r, &err), 0);
	cr_expect(r.memory_strides[0] == 16 && r.memory_bytes == 48);
	t.ndim = 0; /* a scalar */
	cr_assert_eq(pml_nd_region_of_tensor(&t, 0, &r, &err), 0);
	cr_expect_eq(r.memory_bytes, 4);
	shape[1] = 0, t.ndim = 3; /* none at all */
	cr_assert_eq(pml_nd_region_of_tensor(&t, 0, &r, &err), 0);
	cr_expect_eq(r.memory_bytes, 0);
	NO_LEAKS();
}

Test(memory, refused_tensors)
{
	float data[4];
	int64_t shape[40] = { 2, 2 }, strides[] = { 2, 1 };
	struct pml_nd_region r = PML_ND_REGION_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_tensor t;
#define REFUSED(code, change)                \
	t = tensor(data, 2, shape, strides); \
	change;                              \
	cr_expect_eq(pml_nd_region_of_tensor(&t, 0, &r, &err), code, "%s", #change)
	REFUSED(PML_ERR_INVALID_PARAMS, t.ndim = -1);
	REFUSED(PML_ERR_INVALID_PARAMS, t.ndim = 33);
	REFUSED(PML_ERR_INVALID_PARAMS, t.shape = NULL);
	REFUSED(PML_ERR_UNSUPPORTED, t.device_type = 2);
	REFUSED(PML_ERR_UNSUPPORTED, t.type_bits = 4);
	REFUSED(PML_ERR_UNSUPPORTED, t.type_bits = 0);
	REFUSED(PML_ERR_UNSUPPORTED, t.type_lanes = 0);
	REFUSED(PML_ERR_UNSUPPORTED, strides[0] = -2);
	strides[0] = 2;
	REFUSED(PML_ERR_INVALID_PARAMS, shape[0] = -1);
	REFUSED(PML_ERR_INVALID_PARAMS, shape[0] = INT64_MAX);
	shape[0] = 2;
	REFUSED(PML_ERR_INVALID_PARAMS, strides[0] = INT64_MAX);
	strides[0] = 2;
	REFUSED(PML_ERR_INVALID_PARAMS, r.size = 3);
	cr_expect_eq(pml_nd_region_of_tensor(NULL, 0, &r, &err), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_nd_region_of_tensor(&t, 0, NULL, &err), PML_ERR_INVALID_PARAMS);
#undef REFUSED
	NO_LEAKS();
}
