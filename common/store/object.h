/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that master, holders and clients share about objects (design.md section 2). Pure.
 * Thread: any.
 */
#pragma once

#include "base/def.h"
#include "proto/messages.h"

enum {
	OBJ_KEY_MAX = 1024,
	OBJ_EXTENTS_MAX = 16,
	OBJ_BLOCK = 1 << 20, /* the checksum vector's block */
	OBJ_SHARDS_MAX = 64,
	OBJ_ALIGN = 4096, /* of extents of 4 KiB and more; below: OBJ_ALIGN_SMALL */
	OBJ_ALIGN_SMALL = 64,
};
#define OBJ_SIZE_MAX (1ull << 40)

/* A version: term (24 bits) | counter (40 bits). 0 is none. */
#define VERSION_COUNTER_BITS 40
#define VERSION_COUNTER_MAX  ((1ull << VERSION_COUNTER_BITS) - 1)
static inline uint64_t version_make(uint64_t term, uint64_t counter)
{
	return term << VERSION_COUNTER_BITS | counter;
}
static inline uint64_t version_term(uint64_t v)
{
	return v >> VERSION_COUNTER_BITS;
}

/* A range of one segment of a pool. */
struct extent {
	uint32_t segment;
	uint64_t offset, bytes;
};

/* Why a slot is RETIRED; on disk and on the wire: never renumbered. */
enum retire_reason {
	RETIRE_NONE,
	RETIRE_REMOVED,
	RETIRE_SUPERSEDED,
	RETIRE_EVICTED,
	RETIRE_MOVED,
	/* a late COMMIT of these is STALE_ATTEMPT (V3) */
	RETIRE_BARRED,	/* by a floor or a tombstone at a merge */
	RETIRE_OVERLAP, /* two slots over one extent at a start: the lower version */
	RETIRE_CORRUPT, /* its bytes failed their checksum */
};

/* Bytes that an object of this size takes in its extents: payload, and above 1 MiB the vector of
 * block sums behind it (T4). */
uint64_t obj_stored_bytes(uint64_t size);
/* Where the vector begins in those bytes: size, up to a multiple of 8. Only above 1 MiB. */
uint64_t obj_vector_at(uint64_t size);
/* Blocks whose sums are kept; 0 up to 1 MiB. */
uint64_t obj_blocks(uint64_t size);

/* Index order and cursor: XXH3-64(u16 length LE, tenant, key). */
uint64_t obj_key_hash(struct bytes tenant, struct bytes key);
/* The order among a tenant's keys of one hash: XXH3-64 of the key with a seed. Such keys can be made. */
uint64_t obj_key_tie(struct bytes key);

/*
 * T4: the object's checksum. Up to 1 MiB: XXH3-64 of the bytes; above: XXH3-64 over the vector of
 * XXH3-64 of its 1 MiB blocks (little-endian). Run-time dispatched XXH3.
 *
 * vector  NULL, or obj_blocks(n) words that get the block sums
 */
uint64_t obj_sum(const void *p, size_t n, uint64_t *vector);
/* The same from the vector alone (size above 1 MiB). */
uint64_t obj_sum_of_vector(const uint64_t *vector, uint64_t blocks);

/*
 * A walk over a model's state for a canonical fingerprint (the model checker): the model calls these
 * in an order that its state alone decides. Versions, terms, epochs and generations go through their
 * own calls, so that the walker may rename them.
 */
struct fold {
	void (*word)(struct fold *f, uint64_t v);
	void (*version)(struct fold *f, uint64_t v);
	void (*term)(struct fold *f, uint64_t v);	/* term or adoption number */
	void (*epoch)(struct fold *f, uint64_t v);	/* pool_epoch */
	void (*generation)(struct fold *f, uint64_t v); /* of a slot */
};
