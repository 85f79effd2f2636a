/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear hashing. With b buckets and L = floor(log2 b), bucket i holds the hashes whose low k bits
 * are i, where k is L + 1 for the buckets that are split already (i < b - 2^L, and their other
 * halves i >= 2^L) and L for the rest. Growing splits bucket b - 2^L into itself and bucket b.
 *
 * A scan goes by the bits of the hash reversed: there each bucket is one interval, and a split or a
 * merge cuts or joins intervals at places where a scan may stand, or which it filters (I2).
 */
#include "base/map.h"

#define SEG_BUCKETS 256
#define BUCKETS_MIN 16

void map_init(struct map *m, size_t limit)
{
	*m = (struct map){ .limit = limit };
}

void map_fini(struct map *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->n_segs; i++)
		free(m->segs[i]);
	free(m->segs);
	*m = (struct map){ 0 };
}

static struct map_node **bucket_at(const struct map *m, size_t i)
{
	return &m->segs[i / SEG_BUCKETS][i % SEG_BUCKETS];
}

/* floor(log2 b), b >= 1 */
static unsigned log_of(size_t b)
{
	return 63u - (unsigned)__builtin_clzll(b);
}

static size_t bucket_of(const struct map *m, uint64_t hash)
{
	size_t full = (size_t)1 << log_of(m->n_buckets);
	size_t i = hash & (2 * full - 1);
	return i < m->n_buckets ? i : i & (full - 1);
}

/* Room for bucket i in the directory. */
static bool have_segment(struct map *m, size_t i)
{
	size_t seg = i / SEG_BUCKETS;
	if (seg < m->n_segs)
		return true;
	if (m->n_segs == m->cap_segs) {
		size_t cap = m->cap_segs ? 2 * m->cap_segs : 1;
		struct map_node ***segs = realloc(m->segs, cap * sizeof(struct map_node **));
		if (!segs)
			return false;
		m->segs = segs;
		m->cap_segs = cap;
	}
	struct map_node **s = calloc(SEG_BUCKETS, sizeof(struct map_node *));
	if (!s)
		return false;
	m->segs[m->n_segs++] = s;
	return true;
}

/* The one bucket after the other is split: their entries lie anywhere, and are fetched while the ones before
 * are moved. Measured in a merge of 500,000: a fifth of its time (2026-11-30). */
enum { SPLIT_AHEAD = 8 };

/* always_inline: gcc 12 takes a function that only fetches for one that does nothing. */
__attribute__((always_inline)) static inline void split_ahead(const struct map *m, size_t i,
							      size_t full)
{
	if (i + 2 * SPLIT_AHEAD >= full)
		return;
	__builtin_prefetch(*bucket_at(m, i + 2 * SPLIT_AHEAD), 1);
	const struct map_node *n = *bucket_at(m, i + SPLIT_AHEAD);
	if (n)
		__builtin_prefetch(n->next, 1);
}

/* One bucket more; without memory the chains get longer instead. */
static void grow(struct map *m)
{
	size_t b = m->n_buckets, full = (size_t)1 << log_of(b);
	if (!have_segment(m, b))
		return;
	struct map_node **low = bucket_at(m, b - full), **high = bucket_at(m, b);
	m->n_buckets++;
	split_ahead(m, b - full, full);
	while (*low) {
		struct map_node *n = *low;
		if ((n->hash & (2 * full - 1)) != b) {
			low = &n->next;
			continue;
		}
		*low = n->next;
		n->next = *high;
		*high = n;
	}
}

static void shrink(struct map *m)
{
	size_t last = m->n_buckets - 1, full = (size_t)1 << log_of(last);
	struct map_node **low = bucket_at(m, last - full), **high = bucket_at(m, last);
	while (*low)
		low = &(*low)->next;
	*low = *high;
	*high = NULL;
	m->n_buckets--;
	/* one segment stays spare, so that a size at the border costs no allocations */
	if (m->n_segs > last / SEG_BUCKETS + 2)
		free(m->segs[--m->n_segs]);
}

/* Two a removal: buckets stay below twice the entries. */
static void shrink_some(struct map *m, size_t removals)
{
	for (size_t i = 0; i < 2 * removals; i++) {
		if (m->n_buckets <= BUCKETS_MIN || m->n >= m->n_buckets / 2)
			return;
		shrink(m);
	}
}

struct map_node *map_find(const struct map *m, uint64_t hash, map_eq eq, const void *key)
{
	if (m->n == 0)
		return NULL;
	struct map_node *n = *bucket_at(m, bucket_of(m, hash));
	while (n && !(n->hash == hash && eq(n, key)))
		n = n->next;
	return n;
}

void map_warm_bucket(const struct map *m, uint64_t hash)
{
	if (m->n > 0)
		__builtin_prefetch(bucket_at(m, bucket_of(m, hash)));
}

void map_warm_node(const struct map *m, uint64_t hash)
{
	if (m->n > 0)
		__builtin_prefetch(*bucket_at(m, bucket_of(m, hash)));
}

struct map_node *map_peek(const struct map *m, uint64_t hash)
{
	struct map_node *n = m->n > 0 ? *bucket_at(m, bucket_of(m, hash)) : NULL;
	while (n && n->hash != hash)
		n = n->next;
	return n;
}

enum err map_insert(struct map *m, struct map_node *n, uint64_t hash)
{
	if (m->n >= m->limit)
		return ERR_BUSY; /* I1 */
	if (m->n_buckets == 0) {
		if (!have_segment(m, 0))
			return ERR_NO_MEMORY;
		m->n_buckets = BUCKETS_MIN;
	}
	if (m->n >= m->n_buckets)
		grow(m);
	struct map_node **head = bucket_at(m, bucket_of(m, hash));
	*n = (struct map_node){ .next = *head, .hash = hash };
	*head = n;
	m->n++;
	return ERR_NONE;
}

void map_remove(struct map *m, struct map_node *n)
{
	assert(m->n > 0);
	struct map_node **at = bucket_at(m, bucket_of(m, n->hash));
	while (*at != n) {
		assert(*at);
		at = &(*at)->next;
	}
	*at = n->next;
	n->next = NULL;
	m->n--;
	if (!m->scanning)
		shrink_some(m, 1);
}

static uint64_t reversed(uint64_t x)
{
	x = (x & 0x5555555555555555) << 1 | (x >> 1 & 0x5555555555555555);
	x = (x & 0x3333333333333333) << 2 | (x >> 2 & 0x3333333333333333);
	x = (x & 0x0f0f0f0f0f0f0f0f) << 4 | (x >> 4 & 0x0f0f0f0f0f0f0f0f);
	return __builtin_bswap64(x);
}

/* Where the interval of bucket i that holds `at` ends; 0 when it is the last one. */
static uint64_t interval_end(const struct map *m, size_t i, uint64_t at)
{
	unsigned l = log_of(m->n_buckets);
	size_t full = (size_t)1 << l;
	unsigned bits = i >= full || i < m->n_buckets - full ? l + 1 : l;
	return ((at >> (64 - bits)) + 1) << (64 - bits); /* bits >= 4: BUCKETS_MIN */
}

/* Entries of bucket i from `at` on; returns how many. */
static size_t scan_bucket(struct map *m, size_t i, uint64_t at,
			  void (*fn)(struct map_node *n, void *arg), void *arg)
{
	size_t seen = 0;
	for (struct map_node *n = *bucket_at(m, i), *next; n; n = next) {
		next = n->next;
		if (reversed(n->hash) < at)
			continue;
		fn(n, arg);
		seen++;
	}
	return seen;
}

bool map_scan(struct map *m, uint64_t *cursor, size_t want,
	      void (*fn)(struct map_node *n, void *arg), void *arg)
{
	if (m->n_buckets == 0) {
		*cursor = 0;
		return false;
	}
	size_t before = m->n;
	m->scanning = true; /* fn may remove: buckets stay where they are */
	for (size_t done = 0;;) {
		size_t i = bucket_of(m, reversed(*cursor));
		uint64_t at = *cursor;
		*cursor = interval_end(m, i, at);
		done += 1 + scan_bucket(m, i, at, fn, arg);
		if (*cursor == 0 || done >= want)
			break;
	}
	m->scanning = false;
	assert(m->n <= before);
	shrink_some(m, before - m->n);
	return *cursor != 0;
}

static struct map_node *first_from(const struct map *m, size_t i)
{
	for (; i < m->n_buckets; i++)
		if (*bucket_at(m, i))
			return *bucket_at(m, i);
	return NULL;
}

struct map_node *map_first(const struct map *m)
{
	return first_from(m, 0);
}

struct map_node *map_next(const struct map *m, const struct map_node *n)
{
	return n->next ? n->next : first_from(m, bucket_of(m, n->hash) + 1);
}

void map_check(const struct map *m)
{
	size_t n = 0;
	for (size_t i = 0; i < m->n_buckets; i++)
		for (const struct map_node *it = *bucket_at(m, i); it; it = it->next, n++)
			assert(bucket_of(m, it->hash) == i);
	assert(n == m->n && n <= m->limit);
	for (size_t i = m->n_buckets; i < m->n_segs * SEG_BUCKETS; i++)
		assert(!*bucket_at(m, i));
}
