/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything is counted in grains of 64 bytes. A free range (span) is in a bin by its size (32 bins
 * a power of two), in a map by its start, and its start is a bit in a tree of words, which finds the
 * neighbour below. Ranges are cut from a span's end, so that its start stays.
 */
#include "store/alloc.h"

#include <string.h>

#include "base/list.h"
#include "base/map.h"

#define GRAIN  OBJ_ALIGN_SMALL
#define BIG    (OBJ_ALIGN / GRAIN) /* grains; from here on all is aligned to it */
#define SUB    32		   /* bins a power of two */
#define BINS   (SUB * 37)	   /* up to 2^40 grains */
#define LEVELS 7
#define PROBES 8  /* spans looked at in the request's own bin, some of which are too small */
#define LAST   64 /* and when no larger bin has any */

struct span {
	struct map_node node;
	struct list bin;
	uint64_t at, n;
};

struct alloc {
	uint64_t max, bytes, free; /* grains */
	struct map by_at;
	uint64_t bins_set[(BINS + 63) / 64];
	struct list bins[BINS];
	uint64_t *starts[LEVELS]; /* [0] a bit a grain, each higher one a bit a word below */
	uint64_t *ends; /* a bit where a span ends: most ranges have no free neighbour */
	unsigned n_levels;
};

/* ---- the tree of starts ---- */

static enum err starts_new(struct alloc *a)
{
	uint64_t n = a->max + 1;
	a->ends = calloc((n + 63) / 64, sizeof(uint64_t));
	if (!a->ends)
		return ERR_NO_MEMORY;
	do {
		n = (n + 63) / 64;
		a->starts[a->n_levels] = calloc(n, sizeof(uint64_t));
		if (!a->starts[a->n_levels++])
			return ERR_NO_MEMORY;
	} while (n > 1);
	return ERR_NONE;
}

static void start_set(struct alloc *a, uint64_t at)
{
	for (unsigned l = 0; l < a->n_levels; l++, at /= 64)
		a->starts[l][at / 64] |= 1ull << (at % 64);
}

static void start_clear(struct alloc *a, uint64_t at)
{
	for (unsigned l = 0; l < a->n_levels; l++, at /= 64) {
		uint64_t *w = &a->starts[l][at / 64];
		*w &= ~(1ull << (at % 64));
		if (*w)
			return;
	}
}

static void end_flip(struct alloc *a, uint64_t end)
{
	a->ends[end / 64] ^= 1ull << (end % 64);
}

static bool bit(const uint64_t *w, uint64_t at)
{
	return w[at / 64] >> (at % 64) & 1;
}

/* The highest start at or below `at`; UINT64_MAX: none. */
static uint64_t start_below(const struct alloc *a, uint64_t at)
{
	unsigned l = 0;
	uint64_t mask = ~0ull >> (63 - at % 64);
	while (!(a->starts[l][at / 64] & mask)) {
		at /= 64;
		if (++l == a->n_levels)
			return UINT64_MAX;
		mask = (1ull << (at % 64)) - 1;
	}
	at = at / 64 * 64 + 63u - (unsigned)__builtin_clzll(a->starts[l][at / 64] & mask);
	while (l-- > 0)
		at = at * 64 + 63u - (unsigned)__builtin_clzll(a->starts[l][at]);
	return at;
}

/* ---- spans ---- */

static unsigned bin_of(uint64_t n)
{
	if (n < SUB)
		return (unsigned)n;
	unsigned l = 63u - (unsigned)__builtin_clzll(n);
	return (l - 4) * SUB + (unsigned)(n >> (l - 5)) % SUB;
}

static void bin_add(struct alloc *a, struct span *s)
{
	unsigned b = bin_of(s->n);
	list_push_front(&a->bins[b], &s->bin);
	a->bins_set[b / 64] |= 1ull << (b % 64);
}

static void bin_del(struct alloc *a, struct span *s)
{
	unsigned b = bin_of(s->n);
	list_del(&s->bin);
	if (list_empty(&a->bins[b]))
		a->bins_set[b / 64] &= ~(1ull << (b % 64));
}

static uint64_t hash_of(uint64_t at)
{
	at = (at ^ at >> 31) * 0x9e3779b97f4a7c15;
	return at ^ at >> 29;
}

static bool at_eq(const struct map_node *n, const void *key)
{
	return container_of(n, struct span, node)->at == *(const uint64_t *)key;
}

static struct span *span_at(const struct alloc *a, uint64_t at)
{
	struct map_node *n = map_find(&a->by_at, hash_of(at), at_eq, &at);
	return n ? container_of(n, struct span, node) : NULL;
}

/* The one that begins at or below `at`. */
static struct span *span_below(const struct alloc *a, uint64_t at)
{
	at = start_below(a, at);
	return at == UINT64_MAX ? NULL : span_at(a, at);
}

static bool span_new(struct alloc *a, uint64_t at, uint64_t n)
{
	struct span *s = malloc(sizeof(*s));
	if (!s)
		return false;
	*s = (struct span){ .at = at, .n = n };
	if (map_insert(&a->by_at, &s->node, hash_of(at)) != ERR_NONE) {
		free(s);
		return false;
	}
	bin_add(a, s);
	start_set(a, at);
	end_flip(a, at + n);
	a->free += n;
	return true;
}

static void span_drop(struct alloc *a, struct span *s)
{
	bin_del(a, s);
	map_remove(&a->by_at, &s->node);
	start_clear(a, s->at);
	end_flip(a, s->at + s->n);
	a->free -= s->n;
	free(s);
}

static void span_resize(struct alloc *a, struct span *s, uint64_t n)
{
	bin_del(a, s);
	end_flip(a, s->at + s->n);
	end_flip(a, s->at + n);
	a->free = a->free - s->n + n;
	s->n = n;
	bin_add(a, s);
}

/* Cuts [at, at + n) out of s, which has it. */
static enum err span_cut(struct alloc *a, struct span *s, uint64_t at, uint64_t n)
{
	uint64_t end = s->at + s->n;
	assert(n > 0 && at >= s->at && at + n <= end);
	if (at + n < end) { /* what lies above is a span of its own */
		span_resize(a, s, at + n - s->at);
		if (!span_new(a, at + n, end - at - n)) {
			span_resize(a, s, end - s->at);
			return ERR_NO_MEMORY;
		}
	}
	if (at > s->at)
		span_resize(a, s, at - s->at);
	else
		span_drop(a, s);
	return ERR_NONE;
}

/* ---- life ---- */

enum err alloc_new(uint64_t bytes_max, struct alloc **out)
{
	if (bytes_max < GRAIN || bytes_max > OBJ_SIZE_MAX * 64)
		return ERR_INVALID_PARAMS;
	struct alloc *a = calloc(1, sizeof(*a));
	if (!a)
		return ERR_NO_MEMORY;
	a->max = bytes_max / GRAIN;
	map_init(&a->by_at, SIZE_MAX);
	for (unsigned b = 0; b < BINS; b++)
		list_init(&a->bins[b]);
	if (starts_new(a) != ERR_NONE) {
		alloc_free(a);
		return ERR_NO_MEMORY;
	}
	*out = a;
	return ERR_NONE;
}

void alloc_free(struct alloc *a)
{
	if (!a)
		return;
	for (unsigned b = 0; b < BINS; b++)
		for (struct list *l; (l = list_pop_front(&a->bins[b]));)
			free(list_entry(l, struct span, bin));
	map_fini(&a->by_at);
	free(a->ends);
	for (unsigned l = 0; l < a->n_levels; l++)
		free(a->starts[l]);
	free(a);
}

static bool give(struct alloc *a, uint64_t at, uint64_t n)
{
	assert(!bit(a->starts[0], at));
	struct span *below = bit(a->ends, at) ? span_below(a, at) : NULL;
	struct span *above = bit(a->starts[0], at + n) ? span_at(a, at + n) : NULL;
	uint64_t more = above ? above->n : 0;
	if (below) {
		if (above)
			span_drop(a, above);
		span_resize(a, below, below->n + n + more);
		return true;
	}
	if (!span_new(a, at, n + more))
		return false;
	if (above)
		span_drop(a, above);
	return true;
}

enum err alloc_grow(struct alloc *a, uint64_t bytes)
{
	uint64_t n = MIN_OF(bytes / GRAIN, a->max), was = a->bytes;
	if (n <= was)
		return ERR_NONE;
	a->bytes = n;
	if (give(a, was, n - was))
		return ERR_NONE;
	a->bytes = was;
	return ERR_NO_MEMORY;
}

static uint64_t grains(uint64_t bytes)
{
	uint64_t n = bytes / GRAIN + (bytes % GRAIN != 0);
	return bytes < OBJ_ALIGN ? n : (n + BIG - 1) / BIG * BIG;
}

uint64_t alloc_round(uint64_t bytes)
{
	return grains(bytes) * GRAIN;
}

/* ---- taking ---- */

/* Where n grains begin at the end of s; UINT64_MAX: they do not fit. */
static uint64_t place_in(const struct span *s, uint64_t n, uint64_t align)
{
	if (s->n < n)
		return UINT64_MAX;
	uint64_t at = (s->at + s->n - n) / align * align;
	return at >= s->at ? at : UINT64_MAX;
}

static struct span *probe(struct alloc *a, unsigned bin, uint64_t n, uint64_t align,
			  unsigned tries)
{
	list_for_each (it, &a->bins[bin]) {
		struct span *s = list_entry(it, struct span, bin);
		if (place_in(s, n, align) != UINT64_MAX)
			return s;
		if (--tries == 0)
			break;
	}
	return NULL;
}

/* The first bin from b on that has a span; BINS: none. */
static unsigned bin_from(const struct alloc *a, unsigned b)
{
	if (b >= BINS)
		return BINS;
	uint64_t w = a->bins_set[b / 64] & ~0ull << (b % 64);
	for (b /= 64; w == 0;) {
		if (++b == ARRAY_LEN(a->bins_set))
			return BINS;
		w = a->bins_set[b];
	}
	return b * 64 + (unsigned)__builtin_ctzll(w);
}

static struct span *find(struct alloc *a, uint64_t n, uint64_t align)
{
	unsigned own = bin_of(n), b;
	struct span *s = probe(a, own, n, align, PROBES);
	/* a span of a larger bin may still lie badly for the alignment; from bin_of(n + align) on,
	 * none does */
	for (b = bin_from(a, own + 1); !s && b < bin_of(n + align); b = bin_from(a, b + 1))
		s = probe(a, b, n, align, PROBES);
	b = bin_from(a, bin_of(n + align) + 1);
	if (!s && b < BINS)
		s = list_entry(a->bins[b].next, struct span, bin);
	for (b = bin_from(a, own); !s && b <= bin_of(n + align); b = bin_from(a, b + 1))
		s = probe(a, b, n, align, LAST);
	return s;
}

enum err alloc_take(struct alloc *a, uint64_t bytes, uint64_t *offset)
{
	uint64_t n = grains(bytes), align = bytes >= OBJ_ALIGN ? BIG : 1;
	assert(n > 0);
	if (n > a->free)
		return ERR_NO_SPACE;
	struct span *s = find(a, n, align);
	if (!s)
		return ERR_NO_SPACE;
	uint64_t at = place_in(s, n, align);
	enum err e = span_cut(a, s, at, n);
	if (e == ERR_NONE)
		*offset = at * GRAIN;
	return e;
}

enum err alloc_reserve(struct alloc *a, uint64_t offset, uint64_t bytes)
{
	uint64_t n = grains(bytes), at = offset / GRAIN;
	if (n == 0 || offset % (bytes >= OBJ_ALIGN ? OBJ_ALIGN : GRAIN) || at >= a->bytes ||
	    n > a->bytes - at)
		return ERR_CONFLICT;
	struct span *s = span_below(a, at);
	if (!s || s->at + s->n < at + n)
		return ERR_CONFLICT;
	return span_cut(a, s, at, n);
}

bool alloc_give(struct alloc *a, uint64_t offset, uint64_t bytes)
{
	uint64_t n = grains(bytes);
	assert(n > 0 && offset / GRAIN + n <= a->bytes);
	return give(a, offset / GRAIN, n);
}

/* ---- reading ---- */

uint64_t alloc_bytes(const struct alloc *a)
{
	return a->bytes * GRAIN;
}

uint64_t alloc_used(const struct alloc *a)
{
	return (a->bytes - a->free) * GRAIN;
}

uint64_t alloc_fits(const struct alloc *a)
{
	for (unsigned w = ARRAY_LEN(a->bins_set); w-- > 0;) {
		if (!a->bins_set[w])
			continue;
		unsigned b = w * 64 + 63u - (unsigned)__builtin_clzll(a->bins_set[w]);
		const struct span *s = list_entry(a->bins[b].next, struct span, bin);
		if (s->n >= 2 * BIG)
			return (s->n - BIG + 1) / BIG * OBJ_ALIGN;
		return MIN_OF(s->n, (uint64_t)BIG - 1) * GRAIN;
	}
	return 0;
}

void alloc_check(const struct alloc *a)
{
	uint64_t free_n = 0, n = 0;
	map_for_each (it, &a->by_at) {
		const struct span *s = container_of(it, struct span, node);
		const struct span *below = s->at ? span_below(a, s->at - 1) : NULL;
		assert(s->n > 0 && s->at + s->n <= a->bytes);
		assert(!below || below->at + below->n < s->at); /* I1 */
		assert(start_below(a, s->at) == s->at && bit(a->ends, s->at + s->n));
		assert(a->bins_set[bin_of(s->n) / 64] >> (bin_of(s->n) % 64) & 1);
		free_n += s->n;
		n++;
	}
	assert(free_n == a->free && n == a->by_at.n && free_n <= a->bytes); /* I1 */
	for (unsigned b = 0; b < BINS; b++)
		assert(list_empty(&a->bins[b]) == !(a->bins_set[b / 64] >> (b % 64) & 1));
	map_check(&a->by_at);
}
