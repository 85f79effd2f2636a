/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash map of embedded nodes, keyed by a 64-bit hash and a comparison. Linear hashing: it grows
 * and shrinks by one bucket at a time, so no insert or remove is ever long (L4), and there is no
 * big array to copy. 24 bytes an entry beside the entry itself.
 *
 * I1: n <= limit (B1).
 * I2: an entry that is in the map during a whole scan (map_scan from 0 to its end) is seen exactly
 *     once, whatever is inserted and removed between the slices.
 *
 * The hash must be a good one in its low bits (XXH3); hostile keys need a seeded one.
 * Thread: its owner's.
 */
#pragma once

#include "base/err.h"

struct map_node {
	struct map_node *next;
	uint64_t hash;
};

struct map {
	size_t n, limit;
	/* private */
	struct map_node ***segs; /* directory of segments of buckets */
	size_t n_segs, cap_segs, n_buckets;
	bool scanning;
};

/* Compares the node with the key sought; hashes are equal already. */
typedef bool (*map_eq)(const struct map_node *n, const void *key);

/* No allocation until the first insert. */
void map_init(struct map *m, size_t limit);
/* Frees buckets, not entries (they are the caller's). Fine on a zeroed map. */
void map_fini(struct map *m);
/* NULL when there is none. */
struct map_node *map_find(const struct map *m, uint64_t hash, map_eq eq, const void *key);
/*
 * Hints to the memory that a map_find of this hash is near, for callers with many of them: first where its
 * bucket is, then, some work later, the first entry in it. map_peek: an entry of this hash, by which the
 * caller may go on to what the entry points to; its key may be another one.
 */
void map_warm_bucket(const struct map *m, uint64_t hash);
void map_warm_node(const struct map *m, uint64_t hash);
struct map_node *map_peek(const struct map *m, uint64_t hash);
/* Does not look for an equal key: map_find first. ERR_BUSY at the limit, ERR_NO_MEMORY. */
enum err map_insert(struct map *m, struct map_node *n, uint64_t hash) MUST_CHECK;
/* n must be in m (asserted). */
void map_remove(struct map *m, struct map_node *n);

/* One slice of a scan: calls fn for the entries of at least one and about `want` entries' worth of
 * buckets. *cursor is 0 at the start; true while there is more. fn may remove the node it is given,
 * and nothing else may change meanwhile. */
bool map_scan(struct map *m, uint64_t *cursor, size_t want,
	      void (*fn)(struct map_node *n, void *arg), void *arg);

/* First node of bucket b or a later one, and the one after n; NULL at the end. For map_for_each. */
struct map_node *map_first(const struct map *m);
struct map_node *map_next(const struct map *m, const struct map_node *n);
/* The body must not insert or remove, `it` included. */
#define map_for_each(it, m) for (struct map_node *it = map_first(m); it; it = map_next(m, it))

/* Counts again and checks every node's bucket; for tests. */
void map_check(const struct map *m);
