/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small pool in memory, with a holder and a client over it: 1 MiB in one segment, 8 slots unless told
 * otherwise, ring of 4, 4 closed versions, 2 lanes, 1 shard.
 */
#pragma once

#include "store/hold.h"
#include "store/mempool.h"
#include "store/shmpool.h"
#include "tests/support/leak.h"

struct store_fix {
	struct mempool_opts po;
	struct hold_opts ho;
	struct pool_backing *b;
	struct mempool *p;
	struct hold *h;
	struct mempool_start start;
	struct why why;
	uint64_t fenced[64]; /* versions, in the order they came */
	size_t n_fenced;
	uint64_t seed;
};

/* b NULL: memory of its own. Asserts that all is well. */
void store_fix_init(struct store_fix *x, struct pool_backing *b);
/* Opens pool and holder over x->b as x->po and x->ho say. */
enum err store_fix_open(struct store_fix *x);
/* As a kill -9 of the agent: nothing is written any more. */
void store_fix_kill(struct store_fix *x);
void store_fix_fini(struct store_fix *x);
/* A client; its session's id by *id (may be NULL). */
struct shmpool *store_fix_client(struct store_fix *x, uint32_t *id);

struct hold_under store_fix_under(const struct store_fix *x);
bool store_fix_same(const struct hold_under *a, const struct hold_under *b);
/* A write ticket for [offset, offset + bytes) of segment 0, as the pool is now. ext: its memory. */
struct msg_ticket store_fix_ticket(const struct store_fix *x, uint64_t version, const char *key,
				   uint64_t offset, uint64_t bytes, struct msg_extent *ext);
/* A whole COMMIT of such a ticket. */
enum err store_fix_commit(struct store_fix *x, uint64_t version, const char *key,
			  uint64_t offset, uint64_t bytes, struct hold_slot *out);
