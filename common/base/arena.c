/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/huge.h"

#define CHUNK_MIN 4096

struct arena_chunk {
	struct arena_chunk *next; /* older */
	size_t bytes;		  /* with this header */
	uint8_t data[];
};

void arena_fini(struct arena *a)
{
	if (!a)
		return;
	while (a->chunks) {
		struct arena_chunk *c = a->chunks;
		a->chunks = c->next;
		free(c);
	}
	*a = ARENA_INIT(a->limit);
}

/* Chunks only grow, so the newest is the largest. */
void arena_clear(struct arena *a)
{
	struct arena_chunk *keep = a->chunks;
	if (!keep)
		return;
	a->chunks = keep->next;
	arena_fini(a);
	keep->next = NULL;
	a->chunks = keep;
	a->held = keep->bytes;
	a->p = keep->data;
	a->end = (uint8_t *)keep + keep->bytes;
}

void *arena_grow(struct arena *a, size_t n)
{
	size_t left = a->limit - a->held;
	if (left < sizeof(struct arena_chunk) || n > left - sizeof(struct arena_chunk))
		return NULL;
	size_t want = a->chunks ? a->chunks->bytes * 2 : CHUNK_MIN;
	want = MIN_OF(MAX_OF(want, n + sizeof(struct arena_chunk)), left);
	struct arena_chunk *c = malloc(want);
	if (!c) {
		a->no_memory = true;
		return NULL;
	}
	huge_hint(c, want);
	*c = (struct arena_chunk){ .next = a->chunks, .bytes = want };
	a->chunks = c;
	a->held += want;
	a->p = c->data;
	a->end = (uint8_t *)c + want;
	return arena_alloc(a, n);
}
