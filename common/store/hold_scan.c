/* SPDX-License-Identifier: Apache-2.0 */
/* What is in the directory: inventory, payload to be verified, the checker's fold. */
#include <string.h>

#include "base/shm.h"
#include "store/hold_priv.h"

/* ---- inventory ---- */

/* The bytes of an overlapped slot are another's: it has none to give back. */
static void entry_of(const struct hold *h, uint32_t slot, const struct slot_body *b,
		     struct hold_entry *out)
{
	const struct slot *s = &h->p->slots[slot];
	enum retire_reason reason = slot_reason(s->state);
	*out = (struct hold_entry){ .shard = b->shard,
				    .reason = reason,
				    .evict_id = reason != RETIRE_NONE ? s->evict_id : 0,
				    .size = b->size,
				    .tenant = b->tenant,
				    .key = b->key,
				    .extents = b->extents,
				    .n_extents = reason == RETIRE_OVERLAP ? 0 : b->n_extents,
				    .opts = b->opts };
	hold_slot_at(h, slot, &out->at);
}

void hold_scan(struct hold *h, uint32_t shard, uint64_t *cursor,
	       bool (*fn)(void *arg, const struct hold_entry *e), void *arg)
{
	uint64_t i = bits_from(&h->p->used, *cursor ? *cursor - 1 : 0);
	for (; i != BITS_NONE; i = bits_from(&h->p->used, i + 1)) {
		struct slot_body b;
		struct hold_entry e;
		directory_body(h->p, (uint32_t)i, &b);
		if (b.shard != shard)
			continue;
		entry_of(h, (uint32_t)i, &b, &e);
		if (!fn(arg, &e)) {
			*cursor = i + 1;
			return;
		}
	}
	*cursor = 0;
}

/* ---- payload of re-adopted slots ---- */

bool hold_unverified(const struct hold *h, uint32_t slot)
{
	return bits_has(&h->p->unverified, slot);
}

bool hold_doubt(struct hold *h, uint32_t slot, uint64_t generation)
{
	struct mempool *p = h->p;
	if (slot >= p->super.n_slots || !bits_has(&p->used, slot) ||
	    directory_generation(p, slot) != generation ||
	    slot_state(p->slots[slot].state) != SLOT_COMMITTED)
		return false;
	bits_add(&p->unverified, slot);
	directory_doubt(p, slot);
	return true;
}

uint32_t hold_n_unverified(const struct hold *h)
{
	return (uint32_t)h->p->unverified.count;
}

bool hold_verify_slot(const struct hold *h, uint32_t slot, struct hold_verify *out)
{
	struct slot_body b;
	if (!hold_unverified(h, slot))
		return false;
	directory_body(h->p, slot, &b);
	*out = (struct hold_verify){ .slot = slot,
				     .shard = b.shard,
				     .generation = directory_generation(h->p, slot),
				     .version = b.version,
				     .size = b.size,
				     .sum = b.sum,
				     .n_extents = b.n_extents };
	memcpy(out->extents, b.extents, b.n_extents * sizeof(*b.extents));
	return true;
}

bool hold_verify_next(const struct hold *h, uint64_t *cursor, struct hold_verify *out)
{
	uint64_t i = bits_from(&h->p->unverified, *cursor);
	if (i == BITS_NONE)
		return false;
	*cursor = i + 1;
	return hold_verify_slot(h, (uint32_t)i, out);
}

enum err hold_verified(struct hold *h, const struct hold_verify *v, uint64_t sum)
{
	struct mempool *p = h->p;
	if (!hold_unverified(h, v->slot) || directory_generation(p, v->slot) != v->generation ||
	    p->slots[v->slot].version != v->version)
		return ERR_NONE;
	if (sum == v->sum) {
		directory_verified(p, v->slot);
		return ERR_NONE;
	}
	directory_retire(p, v->slot, RETIRE_CORRUPT, 0);
	return ERR_CORRUPT;
}

/* ---- the checker's fold ---- */

static void fold_shard(const struct hold *h, uint32_t shard, struct fold *f)
{
	const struct super_under *u = &h->p->super.under[shard];
	const struct pool_ctl_shard *s = &h->p->ctl->shard[shard];
	f->term(f, u->term);
	f->term(f, u->adoption);
	f->epoch(f, u->pool_epoch);
	f->epoch(f, s->pool_epoch);
	f->version(f, s->revoked_below);
	for (uint64_t i = 0; i < s->ring_n; i++) /* from the oldest */
		f->version(f, s->ring[(s->revoke_seq + i) % s->ring_n]);
	const struct closed *c = h->closed[shard];
	f->word(f, c ? c->n : 0);
	for (uint32_t i = 0; c && i < c->n; i++)
		f->version(f, closed_at(c, i));
	f->version(f, c ? c->dropped : 0);
	f->word(f, c ? c->n_confirmed : 0);
	for (uint32_t i = 0; c && i < c->n_confirmed; i++)
		f->version(f, c->confirmed[i]);
	f->word(f, h->scan_owed[shard]);
	f->word(f, h->copies[shard]);
}

static void fold_slot(const struct hold *h, uint32_t slot, struct fold *f)
{
	uint64_t word = h->p->slots[slot].state;
	f->generation(f, directory_generation(h->p, slot));
	f->word(f, word & 0xffffffff);
	if (slot_state(word) == SLOT_EMPTY)
		return;
	struct slot_body b;
	directory_body(h->p, slot, &b);
	f->version(f, b.version);
	f->word(f, b.shard);
	f->word(f, b.sum);
	f->word(f, b.size);
	f->word(f, obj_key_hash(b.tenant, b.key));
	f->word(f, hold_unverified(h, slot));
	if (slot_reason(word) == RETIRE_EVICTED)
		f->version(f, h->p->slots[slot].evict_id);
}

static void fold_extents(const struct extent *e, uint32_t n, struct fold *f)
{
	f->word(f, n);
	for (uint32_t i = 0; i < n; i++) {
		f->word(f, (uint64_t)e[i].segment << 56 ^ e[i].offset);
		f->word(f, e[i].bytes);
	}
}

static void fold_lane(const struct pool_lane *l, struct fold *f)
{
	f->version(f, l->hazard);
	if (l->hazard == 0)
		return;
	f->word(f, (uint32_t)l->shard_next);
	fold_extents(l->extents, MIN_OF((uint32_t)(l->shard_next >> 32), 16u), f);
}

void hold_fold(const struct hold *h, struct fold *f)
{
	const struct mempool *p = h->p;
	for (uint32_t i = 0; i < p->super.n_shards; i++)
		fold_shard(h, i, f);
	for (uint32_t i = 0; i < p->super.n_slots; i++)
		fold_slot(h, i, f);
	f->word(f, p->n_sessions);
	for (uint32_t s = 0; s < p->n_sessions; s++)
		for (uint32_t l = 0; l < p->super.n_lanes; l++)
			fold_lane(&p->sessions[s].lanes[l], f);
	f->word(f, h->n_ranges);
	for (size_t i = 0; i < h->n_ranges; i++) {
		f->version(f, h->ranges[i].version);
		f->word(f, h->ranges[i].shard);
		fold_extents(h->ranges[i].extents, h->ranges[i].n, f);
	}
}
