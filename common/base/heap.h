/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairing heap, embedded: smallest key first, no allocation, O(1) insert, O(log n) remove of any
 * node. Equal keys leave in the order they came (timers rely on it; the sim's replays do too).
 * Thread: its owner's.
 */
#pragma once

#include "base/def.h"

struct heap_node {
	struct heap_node *child, *next,
		*prev; /* prev: left sibling, or parent of a first child */
	uint64_t key, seq;
	bool linked;
};

struct heap {
	struct heap_node *root;
	uint64_t next_seq;
	size_t n;
};

void heap_insert(struct heap *h, struct heap_node *n, uint64_t key);
/* Safe on a node that is in no heap. */
void heap_remove(struct heap *h, struct heap_node *n);
/* NULL when empty. */
static inline struct heap_node *heap_min(const struct heap *h)
{
	return h->root;
}
