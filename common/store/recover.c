/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A start over a directory that is there: which slots are whole, and that COMMITTED ones do not
 * overlap (mempool.h I2, I3). What it throws away it makes EMPTY or RETIRED in the file, so that the
 * next start finds the same.
 */
#include <string.h>

#include "base/shm.h"
#include "store/mempool_priv.h"

/* An extent of a COMMITTED slot. */
struct claim {
	uint32_t segment, slot;
	uint64_t offset, end, version;
};

struct recovery {
	struct mempool *p;
	struct mempool_start *start;
	struct claim *claims;
	size_t n, cap;
	uint64_t heap_end; /* of the names in use */
	uint32_t slots_end;
};

/* Readers that know the slot must not take what comes next for it. */
static void drop(struct recovery *r, uint32_t slot)
{
	struct mempool *p = r->p;
	directory_raise(p, slot);
	shm_fence();
	shm_publish_u64(&p->slots[slot].state, 0);
	r->start->dropped++;
}

static enum err add_claim(struct recovery *r, const struct claim *c)
{
	if (r->n == r->cap) {
		size_t cap = MAX_OF(r->cap * 2, (size_t)256);
		struct claim *more = realloc(r->claims, cap * sizeof(*more));
		if (!more)
			return ERR_NO_MEMORY;
		r->claims = more;
		r->cap = cap;
	}
	r->claims[r->n++] = *c;
	return ERR_NONE;
}

static enum err add_claims(struct recovery *r, uint32_t slot, const struct slot_body *b)
{
	enum err e = ERR_NONE;
	for (size_t i = 0; i < b->n_extents && e == ERR_NONE; i++) {
		const struct extent *x = &b->extents[i];
		e = add_claim(r, &(struct claim){ .segment = x->segment,
						  .slot = slot,
						  .offset = x->offset,
						  .end = x->offset + x->bytes,
						  .version = b->version });
	}
	return e;
}

static uint64_t total(const struct slot_body *b)
{
	uint64_t n = 0;
	for (size_t i = 0; i < b->n_extents; i++)
		n += b->extents[i].bytes;
	return n;
}

/* Is it good as a slot of this pool, and the only one of its version? */
static bool fits_pool(struct recovery *r, const struct slot *s, struct slot_body *b)
{
	struct mempool *p = r->p;
	if (!slot_sound(s, p->heap, p->super.heap_bytes) ||
	    slot_body(s, p->heap, p->super.heap_bytes, b) != ERR_NONE)
		return false;
	return b->shard < p->super.n_shards &&
	       mempool_extents_fit(p, b->extents, b->n_extents) &&
	       total(b) >= obj_stored_bytes(b->size) &&
	       directory_find(p, b->shard, b->version) == NO_SLOT;
}

static enum err keep(struct recovery *r, uint32_t slot, const struct slot_body *b)
{
	struct mempool *p = r->p;
	const struct slot *s = &p->slots[slot];
	directory_add(p, slot);
	if (s->record_bytes > SLOT_TAIL)
		r->heap_end = MAX_OF(r->heap_end, s->record_at + s->record_bytes);
	r->slots_end = slot + 1;
	directory_doubt(p, slot);
	if (slot_state(s->state) == SLOT_RETIRED) {
		r->start->retired++;
		return ERR_NONE;
	}
	r->start->committed++;
	bits_add(&p->unverified, slot);
	return add_claims(r, slot, b);
}

static enum err take_slot(struct recovery *r, uint32_t slot)
{
	struct mempool *p = r->p;
	const struct slot *s = &p->slots[slot];
	struct slot_body b;
	if (s->state == 0)
		return ERR_NONE;
	bool good = fits_pool(r, s, &b);
	if (good && s->record_bytes > SLOT_TAIL)
		good = keyheap_mark(&p->keys, s->record_at, s->record_bytes) == ERR_NONE;
	if (good)
		return keep(r, slot, &b);
	drop(r, slot);
	return ERR_NONE;
}

/* Only runs that hold data: a look at a hole would give it memory. */
static enum err take_slots(struct recovery *r, struct why *why)
{
	struct mempool *p = r->p;
	uint64_t end_of_slots = (uint64_t)p->super.n_slots * SLOT_BYTES, start, end = 0;
	enum err e = ERR_NONE;
	while (e == ERR_NONE && end < end_of_slots &&
	       p->b->ops->data(p->b, "dir", end, &start, &end)) {
		uint64_t from = start / SLOT_BYTES;
		uint64_t to = MIN_OF(end, end_of_slots) / SLOT_BYTES;
		if (from < to)
			e = p->b->ops->reserve(p->b, "gen", from * 8, (to - from) * 8, why);
		for (uint64_t i = from; i < to && e == ERR_NONE; i++)
			e = take_slot(r, (uint32_t)i);
	}
	return e;
}

/* ---- overlaps ---- */

static int by_place(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;
	if (x->segment != y->segment)
		return x->segment < y->segment ? -1 : 1;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->slot > y->slot) - (x->slot < y->slot);
}

/* The bytes are another's, in part: its readers are sent away at once, its extents are nobody's. */
static void retire_overlapped(struct recovery *r, uint32_t slot)
{
	struct mempool *p = r->p;
	if (slot_state(p->slots[slot].state) != SLOT_COMMITTED)
		return;
	directory_raise(p, slot);
	directory_retire(p, slot, RETIRE_OVERLAP, 0);
	r->start->overlaps++;
	r->start->committed--;
	r->start->retired++;
}

static const struct claim *lower_of(const struct claim *a, const struct claim *b)
{
	if (a->version != b->version)
		return a->version < b->version ? a : b;
	return a->slot < b->slot ? b : a;
}

static bool alive(const struct recovery *r, const struct claim *c)
{
	return slot_state(r->p->slots[c->slot].state) == SLOT_COMMITTED;
}

/*
 * Claims in order of place. Those alive before c do not overlap one another, so that the last of them
 * alone can reach into c; when that one goes, what stood before it ends where it began.
 */
static void retire_overlaps(struct recovery *r)
{
	const struct claim *last = NULL;
	for (size_t i = 0; i < r->n; i++) {
		const struct claim *c = &r->claims[i];
		if (!alive(r, c))
			continue;
		if (last && alive(r, last) && last->segment == c->segment &&
		    c->offset < last->end)
			retire_overlapped(r, lower_of(last, c)->slot);
		if (alive(r, c))
			last = c;
	}
}

/* ---- the whole ---- */

static enum err reserve_found(struct recovery *r, struct why *why)
{
	struct mempool *p = r->p;
	uint64_t heap = (r->heap_end + KEYHEAP_PAGE - 1) / KEYHEAP_PAGE * KEYHEAP_PAGE;
	enum err e = ERR_NONE;
	if (r->slots_end > 0)
		e = p->b->ops->reserve(p->b, "dir", 0, (uint64_t)r->slots_end * SLOT_BYTES,
				       why);
	if (e == ERR_NONE && r->slots_end > 0)
		e = p->b->ops->reserve(p->b, "gen", 0, (uint64_t)r->slots_end * 8, why);
	if (e == ERR_NONE && heap > 0)
		e = p->b->ops->reserve(p->b, "dir", mempool_heap_at(&p->super), heap, why);
	p->slots_reserved = r->slots_end;
	p->heap_reserved = heap;
	return e;
}

enum err recover_slots(struct mempool *p, struct mempool_start *start, struct why *why)
{
	struct recovery r = { .p = p, .start = start };
	enum err e = take_slots(&r, why);
	if (e == ERR_NONE && r.n > 0)
		qsort(r.claims, r.n, sizeof(*r.claims), by_place);
	if (e == ERR_NONE)
		retire_overlaps(&r);
	if (e == ERR_NONE)
		e = reserve_found(&r, why);
	free(r.claims);
	return e;
}
