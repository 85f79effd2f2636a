/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a backend of files holds, in memory: one entry a stored object, found by id, with where it lies.
 * About 110 bytes an object beside its names; above 1 MiB its block sums too (8 bytes a MiB).
 *
 * I1: at most `limit` entries (B1).
 * I2: a hidden entry (its put is not durable yet) is seen by its writer alone.
 *
 * Internal to common/store. Thread: who holds its lock (the backend's).
 */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "store/store.h"

struct ix_entry {
	struct map_node node;
	struct list in_where; /* of the segment, or of the backend, in order */
	void *where;	      /* the backend's */
	uint64_t off;
	uint64_t version, size, sum;
	uint64_t *vector; /* block sums in host order; NULL up to 1 MiB */
	uint8_t tenant_n;
	bool hidden;
	bool doubt; /* a delete of it failed: on the medium it may be deleted (store_log_write.c) */
	bool keep;  /* of a reclaim under way */
	bool going; /* of a delete under way */
	bool busy;  /* the writer holds a pointer to it: others only mark it gone */
	bool gone;  /* its bytes are lost or bad; nobody sees it */
	uint16_t key_n;
	uint8_t names[];
};

struct ix {
	struct map map;
	uint64_t seed;
	uint64_t bytes; /* sum of sizes, hidden ones too */
	uint64_t n_hidden;
};

void ix_init(struct ix *x, uint64_t limit, uint64_t seed);
/* Frees all entries. */
void ix_fini(struct ix *x);
static inline struct store_id ix_id(const struct ix_entry *e)
{
	return (struct store_id){ .tenant = BYTES(e->names, e->tenant_n),
				  .key = BYTES(e->names + e->tenant_n, e->key_n),
				  .version = e->version };
}
/* Does anybody but the writer see it? e may be NULL. */
static inline bool ix_visible(const struct ix_entry *e)
{
	return e && !e->hidden && !e->gone;
}
/* NULL when there is none; hidden ones and gone ones are found too. */
struct ix_entry *ix_find(const struct ix *x, const struct store_id *id);
/* owned until it is added, ix_entry_free(). vector: copied, sum_n_blocks(size) words. NULL: no memory. */
struct ix_entry *ix_entry_new(const struct store_id *id, uint64_t size, uint64_t sum,
			      const uint64_t *vector);
void ix_entry_free(struct ix_entry *e);
/* e is taken on success; no entry of its id may be there. ERR_BUSY at the limit, ERR_NO_MEMORY. */
enum err ix_add(struct ix *x, struct ix_entry *e) MUST_CHECK;
/* Out of index and list, and freed. */
void ix_drop(struct ix *x, struct ix_entry *e);
static inline uint64_t ix_n(const struct ix *x)
{
	return x->map.n - x->n_hidden;
}
void ix_show(struct ix *x, struct ix_entry *e);
/* Fills a page from s->cursor on; s->err, more, n, entries. */
void ix_scan(struct ix *x, struct store_scan *s);
void ix_has(const struct ix *x, struct store_has *r);
