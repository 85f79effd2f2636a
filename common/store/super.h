/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `super` (version 1; little-endian): two copies of 4,096 bytes, each with a sequence number and
 * a CRC-32C. A change goes to the copy that is not the latest good one, in one write, then a sync:
 * whatever is torn or lost, the other copy stands. Pure.
 *
 * Internal to common/store. Thread: any.
 */
#pragma once

#include "store/mempool.h"

enum { SUPER_COPY_BYTES = 4096, SUPER_BYTES = 2 * SUPER_COPY_BYTES };

struct super_under {
	uint64_t term, adoption, pool_epoch;
};
struct super {
	uint64_t seq;
	uint8_t pool[16], boot_id[16];
	uint32_t n_segments, n_slots, n_lanes, n_shards;
	uint64_t heap_bytes, segment_bytes;
	struct super_under under[OBJ_SHARDS_MAX];
};

void super_encode(const struct super *s, uint8_t out[SUPER_COPY_BYTES]);
/*
 * The latest good copy; *which: its number.
 *
 * ERR_CORRUPT           neither is good
 * ERR_VERSION_MISMATCH  of another release (why)
 */
enum err super_decode(const uint8_t bytes[SUPER_BYTES], struct super *out, unsigned *which,
		      struct why *why) MUST_CHECK;
/* ERR_INVALID_PARAMS: a figure out of its range (why). */
enum err super_check(const struct super *s, struct why *why) MUST_CHECK;
