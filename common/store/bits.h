/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of small numbers with a quick "first one at or above": words of 64 bits, over them words that
 * say which of those are not zero, and so on. n / 63 bits of memory, touched as it is used.
 * Thread: its owner's. Cost: one word a level (n = 2^24: four).
 */
#pragma once

#include "base/err.h"

#define BITS_LEVELS 6
#define BITS_NONE   UINT64_MAX

struct bits {
	uint64_t n, count;
	/* private */
	uint64_t *level[BITS_LEVELS];
	unsigned n_levels;
};

/* Empty, of numbers below n (1..2^36). ERR_NO_MEMORY. */
enum err bits_init(struct bits *b, uint64_t n) MUST_CHECK;
/* Zeroed memory is fine. */
void bits_fini(struct bits *b);
/* All of them. O(n / 64). */
void bits_fill(struct bits *b);
bool bits_has(const struct bits *b, uint64_t i);
/* Nothing happens to one that is in, or out, already. */
void bits_add(struct bits *b, uint64_t i);
void bits_del(struct bits *b, uint64_t i);
/* The least one that is at least i; BITS_NONE. */
uint64_t bits_from(const struct bits *b, uint64_t i);
