/* SPDX-License-Identifier: Apache-2.0 */
#include "store/slot.h"

#include <string.h>

#include "base/crc.h"
#include "rpc/peer.h"

enum { GROUP_MAX = 1024, FORMAT_MAX = 64 };

static_assert(sizeof(struct extent) == 24 && offsetof(struct slot, tail) % 8 == 0,
	      "extents lie in a record as they do in memory");
static_assert(OBJ_EXTENTS_MAX * sizeof(struct extent) + TENANT_MAX + OBJ_KEY_MAX + GROUP_MAX +
			      FORMAT_MAX <=
		      SLOT_RECORD_MAX,
	      "the longest record");

/* ---- to bytes ---- */

static bool sizes_fit(uint64_t extents, uint64_t tenant, uint64_t key, uint64_t group,
		      uint64_t format)
{
	return extents <= OBJ_EXTENTS_MAX && tenant >= 1 && tenant <= TENANT_MAX && key >= 1 &&
	       key <= OBJ_KEY_MAX && group <= GROUP_MAX && format <= FORMAT_MAX;
}

static uint8_t *put(uint8_t *at, const void *p, size_t n)
{
	if (n > 0)
		memcpy(at, p, n);
	return at + n;
}

static uint8_t *put_extent(uint8_t *at, const struct extent *e)
{
	struct extent whole;
	memset(&whole, 0, sizeof(whole)); /* its padding too: the CRC sees it */
	whole.segment = e->segment;
	whole.offset = e->offset;
	whole.bytes = e->bytes;
	return put(at, &whole, sizeof(whole));
}

enum err slot_record(const struct slot_body *b, uint8_t *out, size_t *n, struct why *why)
{
	const struct msg_put_opts *o = &b->opts;
	if (!sizes_fit(b->n_extents, b->tenant.n, b->key.n, o->group.n, o->format.n))
		return why_set(
			why, ERR_INVALID_PARAMS,
			"slot: %zu extents (0..%d), tenant of %zu bytes (1..%d), key %zu (1..%d), group %zu (0..%d), format %zu (0..%d)",
			b->n_extents, OBJ_EXTENTS_MAX, b->tenant.n, TENANT_MAX, b->key.n,
			OBJ_KEY_MAX, o->group.n, GROUP_MAX, o->format.n, FORMAT_MAX);
	uint8_t *at = out;
	for (size_t i = 0; i < b->n_extents; i++)
		at = put_extent(at, &b->extents[i]);
	at = put(at, b->tenant.p, b->tenant.n);
	at = put(at, b->key.p, b->key.n);
	at = put(at, o->group.p, o->group.n);
	at = put(at, o->format.p, o->format.n);
	*n = (size_t)(at - out);
	return ERR_NONE;
}

void slot_fill(struct slot *s, const struct slot_body *b, const uint8_t *record, size_t n,
	       uint64_t record_at)
{
	*s = (struct slot){
		.version = b->version,
		.size = b->size,
		.sum = b->sum,
		.attempt = b->attempt,
		.soft_pin_ms = b->opts.soft_pin_ms,
		.record_at = record_at,
		.record_bytes = (uint32_t)n,
		.record_crc = crc32c(0, record, n),
		.shard = b->shard,
		/* a later field: zero in older pools */
		.replica_num = b->opts.replica_num | b->opts.replicas_required << 16,
		.group_size = b->opts.group_size,
		.n_extents = (uint16_t)b->n_extents,
		.tenant_bytes = (uint16_t)b->tenant.n,
		.key_bytes = (uint16_t)b->key.n,
		.group_bytes = (uint16_t)b->opts.group.n,
		.format_bytes = (uint16_t)b->opts.format.n,
		.durable = b->opts.durable,
		.hard_pin = b->opts.hard_pin,
	};
	memcpy(s->client, b->client, sizeof(s->client));
	if (n <= SLOT_TAIL)
		memcpy(s->tail, record, n);
}

/* ---- the state word ---- */

static uint32_t word_crc(const struct slot *s, uint32_t low)
{
	const size_t from = offsetof(struct slot, version);
	uint32_t crc = crc32c(0, &low, sizeof(low));
	crc = crc32c(crc, &s->version, offsetof(struct slot, tail) - from);
	if (slot_state(low) == SLOT_RETIRED)
		crc = crc32c(crc, &s->evict_id, sizeof(s->evict_id));
	return crc;
}

uint64_t slot_word(const struct slot *s, enum slot_state state, bool published,
		   enum retire_reason reason)
{
	uint32_t low = (uint32_t)state | (uint32_t)published << 8 | (uint32_t)reason << 16;
	return low | (uint64_t)word_crc(s, low) << 32;
}

/* ---- from bytes ---- */

const uint8_t *slot_names(const struct slot *s, const uint8_t *heap, uint64_t heap_bytes)
{
	uint64_t n = s->n_extents * sizeof(struct extent) + s->tenant_bytes + s->key_bytes +
		     s->group_bytes + s->format_bytes;
	if (n != s->record_bytes || n > SLOT_RECORD_MAX)
		return NULL;
	if (n <= SLOT_TAIL)
		return s->tail;
	if (s->record_at % sizeof(uint64_t) != 0 || s->record_at > heap_bytes ||
	    n > heap_bytes - s->record_at)
		return NULL;
	return heap + s->record_at;
}

static struct bytes next(const uint8_t **at, size_t n)
{
	struct bytes b = BYTES(*at, n);
	*at += n;
	return b;
}

enum err slot_body(const struct slot *s, const uint8_t *heap, uint64_t heap_bytes,
		   struct slot_body *out)
{
	const uint8_t *at = slot_names(s, heap, heap_bytes);
	if (!at)
		return ERR_CORRUPT;
	struct slot_body b = { .version = s->version,
			       .size = s->size,
			       .sum = s->sum,
			       .attempt = s->attempt,
			       .shard = s->shard,
			       .n_extents = s->n_extents };
	memcpy(b.client, s->client, sizeof(b.client));
	b.extents = (const struct extent *)(const void *)at;
	at += s->n_extents * sizeof(struct extent);
	b.tenant = next(&at, s->tenant_bytes);
	b.key = next(&at, s->key_bytes);
	b.opts = (struct msg_put_opts){ .replica_num = s->replica_num & 0xffff,
					.replicas_required = s->replica_num >> 16,
					.durable = s->durable,
					.hard_pin = s->hard_pin,
					.soft_pin_ms = s->soft_pin_ms,
					.group_size = s->group_size };
	b.opts.group = next(&at, s->group_bytes);
	b.opts.format = next(&at, s->format_bytes);
	*out = b;
	return ERR_NONE;
}

static bool word_sound(uint64_t word)
{
	enum slot_state state = slot_state(word);
	return (state == SLOT_COMMITTED || state == SLOT_RETIRED) && (word >> 8 & 0xff) <= 1 &&
	       (state == SLOT_RETIRED) == (slot_reason(word) != RETIRE_NONE) &&
	       slot_reason(word) <= RETIRE_CORRUPT && (word >> 24 & 0xff) == 0;
}

bool slot_sound(const struct slot *s, const uint8_t *heap, uint64_t heap_bytes)
{
	if (!word_sound(s->state) || s->state >> 32 != word_crc(s, (uint32_t)s->state) ||
	    !sizes_fit(s->n_extents, s->tenant_bytes, s->key_bytes, s->group_bytes,
		       s->format_bytes))
		return false;
	const uint8_t *names = slot_names(s, heap, heap_bytes);
	return names && crc32c(0, names, s->record_bytes) == s->record_crc && s->version != 0 &&
	       s->size <= OBJ_SIZE_MAX && s->durable <= 1 && s->hard_pin <= 1;
}
