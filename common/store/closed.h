/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of one shard that COMMIT closed (V3): the last `limit` of them, and the highest that was
 * dropped; and a few that the master has confirmed to be open.
 *
 * Internal to common/store. Thread: its owner's.
 */
#pragma once

#include "base/err.h"

struct closed {
	uint64_t dropped; /* the highest that is no longer remembered; 0: none */
	/* private */
	uint64_t *fifo;	     /* [limit], oldest at `first` */
	uint32_t *table;     /* open addressing: place in fifo + 1 */
	uint64_t *confirmed; /* [n_confirmed_max] */
	uint32_t limit, first, n, mask, n_confirmed, confirmed_max;
};

/* limit 1..2^20. ERR_NO_MEMORY. */
enum err closed_init(struct closed *c, uint32_t limit) MUST_CHECK;
void closed_fini(struct closed *c);
bool closed_has(const struct closed *c, uint64_t version);
/* Not remembered, and so low that it may have been? Then only the master knows. */
bool closed_unsure(const struct closed *c, uint64_t version);
/* Ends a confirmation of it too. Twice is as once. */
void closed_add(struct closed *c, uint64_t version);
/* The oldest confirmation goes when there are too many. */
void closed_confirm(struct closed *c, uint64_t version);
/* A new epoch: no ticket of the old one commits any more. */
void closed_clear(struct closed *c);
/* The i-th from the oldest; i < c->n. */
uint64_t closed_at(const struct closed *c, uint32_t i);
