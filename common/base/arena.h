/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for one message's worth of decoded lists: taken piece by piece, given back all at once.
 * Zero with a limit set is a valid, empty state; nothing is allocated before the first piece.
 *
 * I1 (B1): the bytes held, headers and waste included, never exceed limit.
 *
 * Thread: its owner's.
 */
#pragma once

#include "base/err.h"

struct arena_chunk;

struct arena {
	size_t limit; /* bytes held at most */
	/* private */
	uint8_t *p, *end; /* free part of the newest chunk */
	struct arena_chunk *chunks;
	size_t held;
	bool no_memory; /* it was the heap that refused, not the limit */
};

#define ARENA_INIT(limit_bytes) ((struct arena){ .limit = (limit_bytes) })

/* Gives everything back to the heap. The limit stays: the arena can be used again. */
void arena_fini(struct arena *a);
/* Ends the life of all pieces; keeps one chunk, the largest, for the next message. */
void arena_clear(struct arena *a);
/* The slow half of arena_alloc: begins a new chunk. */
void *arena_grow(struct arena *a, size_t n);

/*
 * n bytes aligned to 8, valid until arena_clear or arena_fini, contents undefined.
 * NULL when the limit or the heap is reached; what was there before stays valid.
 * A few instructions, but for one heap allocation a chunk; chunks double from 4 KiB.
 */
static inline void *arena_alloc(struct arena *a, size_t n)
{
	if (n > (size_t)(a->end - a->p) || n > SIZE_MAX - 7)
		return arena_grow(a, n);
	uint8_t *p = a->p;
	n = (n + 7) & ~(size_t)7;
	a->p = n < (size_t)(a->end - p) ? p + n : a->end;
	return p;
}
