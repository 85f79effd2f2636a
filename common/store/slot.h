/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One slot of a pool's directory, as it lies in the file `dir` (version 1; little-endian): 256 bytes,
 * and a record of its names that stands in the slot's tail or, when longer, in the key heap.
 *
 *   state word  state | published << 8 | reason << 16 | CRC-32C << 32
 *
 * The CRC covers the low half of the state word, the fixed fields (the record's own CRC among them) and, when
 * RETIRED, the evict id. A change of state is one release store of this word (I2 of mempool.h); what it
 * covers was stored before.
 *
 * Internal to common/store. Thread: the directory's owner.
 */
#pragma once

#include "store/object.h"

enum slot_state { SLOT_EMPTY, SLOT_COMMITTED, SLOT_RETIRED };
enum { SLOT_BYTES = 256, SLOT_TAIL = 144, SLOT_RECORD_MAX = 2560 };

struct slot {
	uint64_t state;
	uint64_t evict_id;
	/* fixed fields: written while EMPTY */
	uint64_t version, size, sum, attempt, soft_pin_ms;
	uint8_t client[16];
	uint64_t record_at; /* in the key heap, when record_bytes > SLOT_TAIL; else 0 */
	uint32_t record_bytes, record_crc;
	uint32_t shard, replica_num, group_size; /* replica_num: replicas_required << 16 | it */
	uint16_t n_extents, tenant_bytes, key_bytes, group_bytes, format_bytes;
	uint8_t durable, hard_pin;
	/* the record: extents, tenant, key, group, format */
	uint8_t tail[SLOT_TAIL];
};
static_assert(sizeof(struct slot) == SLOT_BYTES, "a slot is 256 bytes");

/* What a slot says; names and extents are borrowed from the slot, the heap or the caller. */
struct slot_body {
	uint64_t version, size, sum, attempt;
	uint8_t client[16];
	uint32_t shard;
	const struct extent *extents;
	size_t n_extents;
	struct bytes tenant, key;
	struct msg_put_opts opts;
};

/* The record of a body: SLOT_RECORD_MAX bytes are enough. ERR_INVALID_PARAMS: an empty or too long name, or
 * extents that are none or too many (why). */
enum err slot_record(const struct slot_body *b, uint8_t *out, size_t *n, struct why *why)
	MUST_CHECK;
/* The fixed fields and, when the record fits, the tail; state and evict_id are 0. */
void slot_fill(struct slot *s, const struct slot_body *b, const uint8_t *record, size_t n,
	       uint64_t record_at);

/* The state word for a slot whose other fields stand. */
uint64_t slot_word(const struct slot *s, enum slot_state state, bool published,
		   enum retire_reason reason);
static inline enum slot_state slot_state(uint64_t word)
{
	return (enum slot_state)(word & 0xff);
}
static inline bool slot_published(uint64_t word)
{
	return (word >> 8 & 0xff) != 0;
}
static inline enum retire_reason slot_reason(uint64_t word)
{
	return (enum retire_reason)(word >> 16 & 0xff);
}

/* Where the names are; NULL: outside the heap, or a length that lies. */
const uint8_t *slot_names(const struct slot *s, const uint8_t *heap, uint64_t heap_bytes);
/* Of a slot that is not EMPTY. ERR_CORRUPT: as slot_names. Believes the CRCs. */
enum err slot_body(const struct slot *s, const uint8_t *heap, uint64_t heap_bytes,
		   struct slot_body *out) MUST_CHECK;
/* Is all that the state word covers as it was stored, and within its ranges? For a start. */
bool slot_sound(const struct slot *s, const uint8_t *heap, uint64_t heap_bytes);
