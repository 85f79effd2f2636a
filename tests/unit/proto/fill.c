/* SPDX-License-Identifier: Apache-2.0 */
#include "fill.h"

#include <string.h>

uint64_t rng_next(struct rng *r)
{
	uint64_t z = r->s += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
	return rng_next(r) % n;
}

struct filler {
	struct rng *r;
	struct arena *a;
	size_t run_max, list_max;
};

static void *take(struct filler *f, size_t n)
{
	void *p = arena_alloc(f->a, n);
	assert(p);
	return memset(p, 0, n);
}

/* Lengths around msgpack's width changes, the limit itself now and then. */
static size_t some_length(struct filler *f, size_t max, size_t cap)
{
	static const size_t likes[] = { 0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536 };
	size_t n = likes[rng_below(f->r, ARRAY_LEN(likes))];
	if (rng_below(f->r, 4) == 0)
		n = max;
	else if (rng_below(f->r, 2))
		n = rng_below(f->r, 40);
	return MIN_OF(MIN_OF(n, max), cap);
}

static uint64_t some_uint(struct filler *f)
{
	unsigned shift = (unsigned)rng_below(f->r, 65);
	uint64_t top = shift == 64 ? 0 : UINT64_MAX >> shift;
	return rng_below(f->r, 3) ? rng_next(f->r) & top : top + rng_below(f->r, 2);
}

static struct bytes some_run(struct filler *f, size_t max)
{
	size_t n = some_length(f, max, f->run_max);
	uint8_t *p = n ? take(f, n) : NULL;
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)rng_next(f->r);
	return BYTES(p, n);
}

static void fill(struct filler *f, const struct wire_msg *t, void *m);

static void fill_list(struct filler *f, const struct wire_field *row, void *v)
{
	const struct wire_msg *of = row->of();
	struct {
		void *p;
		size_t n;
	} l = { .n = some_length(f, row->max, f->list_max) };
	l.p = l.n ? take(f, l.n * of->size + 1) : NULL;
	for (size_t i = 0; i < l.n; i++)
		fill(f, of, (uint8_t *)l.p + i * of->size);
	memcpy(v, &l, sizeof(l));
}

static void fill_opt(struct filler *f, const struct wire_field *row, void *v)
{
	void *p = rng_below(f->r, 2) ? take(f, row->of()->size) : NULL;
	if (p)
		fill(f, row->of(), p);
	memcpy(v, &p, sizeof(p));
}

static void fill_runs(struct filler *f, const struct wire_field *row, struct bytes_list *l)
{
	size_t n = some_length(f, row->max, f->list_max);
	struct bytes *items = n ? take(f, n * sizeof(*items)) : NULL;
	for (size_t i = 0; i < n; i++)
		items[i] = some_run(f, row->each);
	*l = (struct bytes_list){ items, n };
}

static void fill_u64s(struct filler *f, const struct wire_field *row, struct u64s *l)
{
	size_t n = some_length(f, row->max, f->list_max);
	uint64_t *items = n ? take(f, n * sizeof(*items)) : NULL;
	for (size_t i = 0; i < n; i++)
		items[i] = some_uint(f);
	*l = (struct u64s){ items, n };
}

/* Finite: JSON has no other. */
static double some_f64(struct filler *f)
{
	double whole = (double)(int64_t)rng_next(f->r);
	return rng_below(f->r, 2) ? whole : whole / 1024.0 / (double)(1 + rng_below(f->r, 99));
}

static void fill_field(struct filler *f, const struct wire_field *row, void *v)
{
	switch (row->kind) {
	case WIRE_BOOL:
		*(bool *)v = rng_below(f->r, 2);
		break;
	case WIRE_U8:
		*(uint8_t *)v = (uint8_t)some_uint(f);
		break;
	case WIRE_U16:
		*(uint16_t *)v = (uint16_t)some_uint(f);
		break;
	case WIRE_U32:
		*(uint32_t *)v = (uint32_t)some_uint(f);
		break;
	case WIRE_U64:
		*(uint64_t *)v = some_uint(f);
		break;
	case WIRE_I64:
		*(int64_t *)v = (int64_t)(rng_below(f->r, 2) ? some_uint(f) : -some_uint(f));
		break;
	case WIRE_F64:
		*(double *)v = some_f64(f);
		break;
	case WIRE_STR:
	case WIRE_BIN:
		*(struct bytes *)v = some_run(f, row->max);
		break;
	case WIRE_ID16:
		memcpy(v, (uint64_t[]){ rng_next(f->r), rng_next(f->r) }, 16);
		break;
	case WIRE_U64S:
		fill_u64s(f, row, v);
		break;
	case WIRE_STRS:
	case WIRE_BINS:
		fill_runs(f, row, v);
		break;
	case WIRE_LIST:
		fill_list(f, row, v);
		break;
	case WIRE_OPT:
		fill_opt(f, row, v);
		break;
	}
}

static void fill(struct filler *f, const struct wire_msg *t, void *m)
{
	for (size_t i = 0; i < t->n_fields; i++)
		fill_field(f, &t->fields[i], (uint8_t *)m + t->fields[i].offset);
}

void fill_random(const struct wire_msg *t, void *m, struct rng *r, struct arena *a,
		 size_t run_max, size_t list_max)
{
	struct filler f = { .r = r, .a = a, .run_max = run_max, .list_max = list_max };
	memset(m, 0, t->size);
	fill(&f, t, m);
}

const char *json_of(const struct wire_msg *t, const void *m, struct buf *out)
{
	buf_clear(out);
	wire_json(out, t, m);
	buf_put(out, "", 1);
	assert(buf_err(out) == ERR_NONE);
	return (const char *)out->p;
}
