/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/names.h"

#include <string.h>

#include "base/huge.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static char seed_here;

static uint64_t hash_of(struct bytes b)
{
	return XXH3_64bits_withSeed(b.p, b.n, (uint64_t)(uintptr_t)&seed_here);
}

/* All that a look-up compares before the name itself is in one line. */
struct name_slot {
	const uint8_t *p; /* the name */
	uint32_t number;  /* + 1; 0: free */
	uint16_t tag;	  /* of the hash; not the bits that chose the slot */
	uint16_t n;	  /* its length; LONG: that or more */
};

#define LONG UINT16_MAX

static struct name_slot slot_for(struct bytes b, uint64_t h, uint32_t number)
{
	return (struct name_slot){ b.p, number + 1, (uint16_t)(h >> 48),
				   (uint16_t)MIN_OF(b.n, LONG) };
}

void names_fini(struct names *s)
{
	free(s->name);
	free(s->slots);
	*s = (struct names){ 0 };
}

static bool same(const struct names *s, const struct name_slot *x, const struct name_slot *y,
		 size_t n)
{
	return x->tag == y->tag && x->n == y->n &&
	       (y->n < LONG || s->name[x->number - 1].n == n) &&
	       (!n || memcmp(x->p, y->p, n) == 0);
}

/* The slot of b, or the free one where it would go. */
static uint32_t slot_of(const struct names *s, struct bytes b, uint64_t h)
{
	const struct name_slot want = slot_for(b, h, 0);
	uint32_t mask = s->n_slots - 1, i = (uint32_t)h & mask;
	for (; s->slots[i].number; i = (i + 1) & mask)
		if (same(s, &s->slots[i], &want, b.n))
			break;
	return i;
}

static bool slots_grow(struct names *s)
{
	uint32_t n = s->n_slots ? s->n_slots * 2 : 64;
	struct name_slot *slots = calloc(n, sizeof(*slots));
	if (!slots)
		return false;
	huge_hint(slots, n * sizeof(*slots));
	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t h = hash_of(s->name[i]);
		uint32_t k = (uint32_t)h & (n - 1);
		while (slots[k].number)
			k = (k + 1) & (n - 1);
		slots[k] = slot_for(s->name[i], h, i);
	}
	free(s->slots);
	s->slots = slots;
	s->n_slots = n;
	return true;
}

static bool room(struct names *s)
{
	if (s->n >= s->n_slots / 2 && (s->n >= 1u << 30 || !slots_grow(s)))
		return false;
	if (s->n < s->cap)
		return true;
	uint32_t cap = s->cap ? s->cap * 2 : 64;
	struct bytes *p = realloc(s->name, cap * sizeof(*p));
	if (!p)
		return false;
	s->name = p;
	s->cap = cap;
	return true;
}

uint64_t names_hash(struct bytes b)
{
	return hash_of(b);
}

void names_fetch(const struct names *s, uint64_t hash)
{
	if (s->n_slots)
		__builtin_prefetch(&s->slots[(uint32_t)hash & (s->n_slots - 1)]);
}

void names_fetch_name(const struct names *s, uint64_t hash)
{
	if (s->n_slots)
		__builtin_prefetch(s->slots[(uint32_t)hash & (s->n_slots - 1)].p);
}

uint32_t names_put(struct names *s, struct bytes b, struct arena *mem)
{
	return names_put_hashed(s, b, hash_of(b), mem);
}

uint32_t names_put_hashed(struct names *s, struct bytes b, uint64_t h, struct arena *mem)
{
	if (!room(s))
		return NAMES_NONE;
	uint32_t i = slot_of(s, b, h);
	if (s->slots[i].number)
		return s->slots[i].number - 1;
	uint8_t *p = arena_alloc(mem, MAX_OF(b.n, 1));
	if (!p)
		return NAMES_NONE;
	memcpy(p, b.p, b.n);
	s->name[s->n] = BYTES(p, b.n);
	s->slots[i] = slot_for(s->name[s->n], h, s->n);
	return s->n++;
}

size_t names_bytes(const struct names *s)
{
	return s->cap * sizeof(*s->name) + s->n_slots * sizeof(*s->slots);
}

uint32_t names_find(const struct names *s, struct bytes b)
{
	if (!s->n)
		return NAMES_NONE;
	uint32_t i = slot_of(s, b, hash_of(b));
	return s->slots[i].number ? s->slots[i].number - 1 : NAMES_NONE;
}

/* ---- sorting ---- */

struct keyed {
	uint64_t key;
	uint32_t idx;
};

struct source {
	struct bytes (*name)(const void *ctx, uint32_t i);
	const void *ctx;
	const atomic_bool *cancel;
};

static int cmp(struct bytes a, struct bytes b)
{
	size_t n = MIN_OF(a.n, b.n);
	int c = n ? memcmp(a.p, b.p, n) : 0;
	return c ? c : (a.n > b.n) - (a.n < b.n);
}

static bool sorted(const struct source *s, uint32_t n, uint32_t *twin)
{
	struct bytes last = { 0 };
	*twin = 0;
	for (uint32_t i = 0; i < n && !stop_at(s->cancel, i); i++) {
		struct bytes b = s->name(s->ctx, i);
		int c = i ? cmp(last, b) : -1;
		if (c > 0)
			return false;
		if (c == 0 && !*twin)
			*twin = i;
		last = b;
	}
	return true;
}

static size_t common(const struct source *s, uint32_t n)
{
	struct bytes a = s->name(s->ctx, 0);
	size_t k = a.n;
	for (uint32_t i = 1; i < n && k && !stop_at(s->cancel, i); i++) {
		struct bytes b = s->name(s->ctx, i);
		k = MIN_OF(k, b.n);
		if (memcmp(a.p, b.p, k) == 0)
			continue;
		for (k = 0; a.p[k] == b.p[k];)
			k++;
	}
	return k;
}

static uint64_t key_at(struct bytes b, size_t skip)
{
	uint64_t v = 0;
	if (b.n - skip >= 8) {
		memcpy(&v, b.p + skip, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
		v = __builtin_bswap64(v);
#endif
		return v;
	}
	for (size_t i = 0; i < 8; i++)
		v = v << 8 | (skip + i < b.n ? b.p[skip + i] : 0);
	return v;
}

/* A pass is one read and one write an item, the writes far apart. */
static void radix(struct keyed **a, struct keyed **b, uint32_t n, const atomic_bool *cancel)
{
	uint32_t count[8][256];
	memset(count, 0, sizeof(count));
	for (uint32_t i = 0; i < n && !stop_at(cancel, i); i++)
		for (int k = 0; k < 8; k++)
			count[k][(*a)[i].key >> 8 * k & 255]++;
	for (int k = 0; k < 8 && !stop_now(cancel); k++) {
		uint32_t at[256], sum = 0;
		if (count[k][(*a)[0].key >> 8 * k & 255] == n)
			continue; /* all have the same byte here */
		for (int c = 0; c < 256; c++) {
			at[c] = sum;
			sum += count[k][c];
		}
		for (uint32_t i = 0; i < n && !stop_at(cancel, i); i++)
			(*b)[at[(*a)[i].key >> 8 * k & 255]++] = (*a)[i];
		struct keyed *t = *a;
		*a = *b;
		*b = t;
	}
}

static int tie(const void *x, const void *y, void *arg)
{
	const struct source *s = arg;
	uint32_t i = ((const struct keyed *)x)->idx, k = ((const struct keyed *)y)->idx;
	int c = cmp(s->name(s->ctx, i), s->name(s->ctx, k));
	return c ? c : (i > k) - (i < k);
}

static bool ties(struct source *s, struct keyed *a, uint32_t n)
{
	for (uint32_t i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n && a[k].key == a[i].key; k++)
			;
		if (k - i > 1 && !stop_sort(a + i, k - i, sizeof(*a), tie, s, s->cancel))
			return false;
	}
	return true;
}

/* Names alike have keys alike: few are compared. */
static uint32_t first_twin(const struct source *s, const struct keyed *a, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (a[i].key == a[i - 1].key &&
		    cmp(s->name(s->ctx, a[i - 1].idx), s->name(s->ctx, a[i].idx)) == 0)
			return i;
	return 0;
}

bool names_sort(struct bytes (*name)(const void *ctx, uint32_t i), const void *ctx, uint32_t n,
		uint32_t *order, const atomic_bool *cancel)
{
	uint32_t twin;
	return names_sort_twin(name, ctx, n, order, &twin, cancel);
}

bool names_sort_twin(struct bytes (*name)(const void *ctx, uint32_t i), const void *ctx,
		     uint32_t n, uint32_t *order, uint32_t *twin, const atomic_bool *cancel)
{
	struct source s = { name, ctx, cancel };
	if (sorted(&s, n, twin)) {
		for (uint32_t i = 0; i < n; i++)
			order[i] = i;
		return !stop_now(cancel);
	}
	struct keyed *a = malloc(n * sizeof(*a)), *b = malloc(n * sizeof(*b));
	bool ok = a && b && stop_touch(b, n * sizeof(*b), cancel);
	if (ok) {
		size_t skip = common(&s, n);
		for (uint32_t i = 0; i < n && !stop_at(cancel, i); i++)
			a[i] = (struct keyed){ key_at(name(ctx, i), skip), i };
		/* stopped, the keys are not all there: radix does nothing then */
		radix(&a, &b, n, cancel);
		ok = !stop_now(cancel) && ties(&s, a, n) && !stop_now(cancel);
		*twin = ok ? first_twin(&s, a, n) : 0;
		for (uint32_t i = 0; ok && i < n; i++)
			order[i] = a[i].idx;
	}
	free(a);
	free(b);
	return ok;
}
