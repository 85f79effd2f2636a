/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a pool: slots in the file, and in memory what finds them. Every store into the
 * file is one of base/shm.h's; the prefix tests cut between any two of them.
 */
#include <string.h>

#include "base/shm.h"
#include "store/mempool_priv.h"

/* Memory behind slots, their generations and names comes in steps of that many. */
enum { SLOT_STEP = 4096, HEAP_STEP = 1 << 20 };

/* ---- the table of versions ---- */

/* Versions come in runs: eight of one share a cache line. */
static uint32_t home(const struct mempool *p, uint32_t shard, uint64_t version)
{
	uint64_t h = (version >> 3 ^ (uint64_t)shard << 58) * 0x9e3779b97f4a7c15ull >> 32;
	return (uint32_t)(h << 3 | (version & 7)) & p->mask;
}

static bool holds(const struct mempool *p, uint32_t slot, uint32_t shard, uint64_t version)
{
	return p->slots[slot].version == version && p->slots[slot].shard == shard;
}

uint32_t directory_find(const struct mempool *p, uint32_t shard, uint64_t version)
{
	for (uint32_t i = home(p, shard, version);; i = (i + 1) & p->mask) {
		uint32_t at = p->by_version[i];
		if (at == 0)
			return NO_SLOT;
		if (holds(p, at - 1, shard, version))
			return at - 1;
	}
}

static void table_add(struct mempool *p, uint32_t slot)
{
	uint32_t i = home(p, p->slots[slot].shard, p->slots[slot].version);
	while (p->by_version[i] != 0)
		i = (i + 1) & p->mask;
	p->by_version[i] = slot + 1;
}

/* May the entry at i move back to the hole? Not past its home. */
static bool may_move(const struct mempool *p, uint32_t i, uint32_t hole)
{
	uint32_t slot = p->by_version[i] - 1;
	uint32_t h = home(p, p->slots[slot].shard, p->slots[slot].version);
	return ((i - h) & p->mask) >= ((i - hole) & p->mask);
}

static void table_del(struct mempool *p, uint32_t slot)
{
	uint32_t i = home(p, p->slots[slot].shard, p->slots[slot].version);
	while (p->by_version[i] != slot + 1)
		i = (i + 1) & p->mask;
	uint32_t hole = i;
	p->by_version[hole] = 0;
	for (i = (i + 1) & p->mask; p->by_version[i] != 0; i = (i + 1) & p->mask) {
		if (!may_move(p, i, hole))
			continue;
		p->by_version[hole] = p->by_version[i];
		p->by_version[i] = 0;
		hole = i;
	}
}

/* ---- sets ---- */

static enum err init_table(struct mempool *p)
{
	uint64_t n = 16;
	while (n < 2ull * p->super.n_slots)
		n *= 2;
	p->by_version = calloc(n, sizeof(*p->by_version));
	p->mask = (uint32_t)(n - 1);
	return p->by_version ? ERR_NONE : ERR_NO_MEMORY;
}

enum err directory_init(struct mempool *p)
{
	enum err e = init_table(p);
	if (e == ERR_NONE)
		e = bits_init(&p->free, p->super.n_slots);
	if (e == ERR_NONE)
		e = bits_init(&p->used, p->super.n_slots);
	if (e == ERR_NONE)
		e = bits_init(&p->unverified, p->super.n_slots);
	if (e == ERR_NONE)
		e = keyheap_init(&p->keys, p->super.heap_bytes);
	if (e == ERR_NONE)
		bits_fill(&p->free);
	return e;
}

void directory_fini(struct mempool *p)
{
	bits_fini(&p->free);
	bits_fini(&p->used);
	bits_fini(&p->unverified);
	keyheap_fini(&p->keys);
	free(p->by_version);
	p->by_version = NULL;
}

void directory_add(struct mempool *p, uint32_t slot)
{
	bits_del(&p->free, slot);
	bits_add(&p->used, slot);
	table_add(p, slot);
}

/* ---- memory behind the file ---- */

static enum err reserve_slot(struct mempool *p, uint32_t slot, struct why *why)
{
	if (slot < p->slots_reserved)
		return ERR_NONE;
	uint32_t to = MIN_OF(p->super.n_slots, (slot / SLOT_STEP + 1) * SLOT_STEP);
	uint64_t from = p->slots_reserved, n = to - from;
	enum err e = p->b->ops->reserve(p->b, "dir", from * SLOT_BYTES, n * SLOT_BYTES, why);
	if (e == ERR_NONE)
		e = p->b->ops->reserve(p->b, "gen", from * 8, n * 8, why);
	if (e == ERR_NONE)
		p->slots_reserved = to;
	return e;
}

static enum err reserve_heap(struct mempool *p, uint64_t end, struct why *why)
{
	if (end <= p->heap_reserved)
		return ERR_NONE;
	uint64_t to =
		MIN_OF(p->super.heap_bytes, (end + HEAP_STEP - 1) / HEAP_STEP * HEAP_STEP);
	uint64_t from = p->heap_reserved;
	enum err e = p->b->ops->reserve(p->b, "dir", mempool_heap_at(&p->super) + from,
					to - from, why);
	if (e == ERR_NONE)
		p->heap_reserved = to;
	return e;
}

/* ---- stores ---- */

/* A place for the names: 0 when they stand in the slot. */
static enum err take_names(struct mempool *p, size_t n, uint64_t *at, struct why *why)
{
	*at = 0;
	if (n <= SLOT_TAIL)
		return ERR_NONE;
	if (keyheap_take(&p->keys, n, at) != ERR_NONE)
		return why_set(why, ERR_NO_SPACE, "pool: no room for %zu bytes of names", n);
	enum err e = reserve_heap(p, *at + n, why);
	if (e)
		keyheap_give(&p->keys, *at, n);
	return e;
}

/* The body of an EMPTY slot: in any order. */
static void store_body(struct mempool *p, struct slot *to, const struct slot *s,
		       const uint8_t *record)
{
	const size_t from = offsetof(struct slot, version);
	size_t n = offsetof(struct slot, tail) - from;
	if (s->record_bytes > SLOT_TAIL)
		shm_copy(p->heap + s->record_at, record, s->record_bytes);
	else
		n += s->record_bytes;
	shm_copy(&to->version, &s->version, n);
}

static void store_word(struct slot *s, enum slot_state state, bool published,
		       enum retire_reason reason)
{
	shm_publish_u64(&s->state, slot_word(s, state, published, reason));
}

enum err directory_commit(struct mempool *p, const struct slot_body *b, uint32_t *slot,
			  struct why *why)
{
	uint8_t record[SLOT_RECORD_MAX];
	struct slot s;
	size_t n;
	uint64_t at, i = bits_from(&p->free, 0);
	if (i == BITS_NONE)
		return why_set(why, ERR_NO_SPACE, "pool: all %u slots are in use",
			       p->super.n_slots);
	enum err e = slot_record(b, record, &n, why);
	if (e == ERR_NONE)
		e = reserve_slot(p, (uint32_t)i, why);
	if (e == ERR_NONE)
		e = take_names(p, n, &at, why);
	if (e)
		return e;
	slot_fill(&s, b, record, n, at);
	store_body(p, &p->slots[i], &s, record);
	store_word(&p->slots[i], SLOT_COMMITTED, false, RETIRE_NONE);
	directory_add(p, (uint32_t)i);
	*slot = (uint32_t)i;
	return ERR_NONE;
}

void directory_publish(struct mempool *p, uint32_t slot)
{
	assert(slot_state(p->slots[slot].state) == SLOT_COMMITTED);
	store_word(&p->slots[slot], SLOT_COMMITTED, true, RETIRE_NONE);
}

void directory_raise(struct mempool *p, uint32_t slot)
{
	shm_publish_u64(&p->gen[slot], directory_generation(p, slot) + 1);
}

void directory_doubt(struct mempool *p, uint32_t slot)
{
	shm_publish_u64(&p->gen[slot], directory_generation(p, slot) | POOL_GEN_UNVERIFIED);
}

void directory_verified(struct mempool *p, uint32_t slot)
{
	bits_del(&p->unverified, slot);
	shm_publish_u64(&p->gen[slot], directory_generation(p, slot));
}

void directory_retire(struct mempool *p, uint32_t slot, enum retire_reason reason,
		      uint64_t evict_id)
{
	struct slot *s = &p->slots[slot];
	assert(slot_state(s->state) == SLOT_COMMITTED && reason != RETIRE_NONE);
	shm_put_u64(&s->evict_id, evict_id);
	store_word(s, SLOT_RETIRED, slot_published(s->state), reason);
	bits_del(&p->unverified, slot);
}

void directory_free(struct mempool *p, uint32_t slot)
{
	struct slot *s = &p->slots[slot];
	table_del(p, slot);
	directory_raise(p, slot);
	shm_fence(); /* readers see it before anybody writes there again (Reads) */
	shm_publish_u64(&s->state, 0);
	if (s->record_bytes > SLOT_TAIL)
		keyheap_give(&p->keys, s->record_at, s->record_bytes);
	bits_del(&p->unverified, slot);
	bits_del(&p->used, slot);
	bits_add(&p->free, slot);
}

void directory_body(const struct mempool *p, uint32_t slot, struct slot_body *out)
{
	enum err e = slot_body(&p->slots[slot], p->heap, p->super.heap_bytes, out);
	assert(e == ERR_NONE); /* checked at the start or written by us since (I2) */
}

bool mempool_extents_fit(const struct mempool *p, const struct extent *ext, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ext[i].bytes == 0 || !mempool_at(p, &ext[i]))
			return false;
	return n <= OBJ_EXTENTS_MAX;
}
