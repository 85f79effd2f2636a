/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_STATIC_LINKING_ONLY /* a state on the stack: no allocation to fail */
#include "store/object.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

#include "base/sum.h"

static_assert(OBJ_BLOCK == SUM_BLOCK_BYTES, "one block for sums everywhere (T4)");

uint64_t obj_blocks(uint64_t size)
{
	return sum_n_blocks(size);
}

uint64_t obj_vector_at(uint64_t size)
{
	return (size + 7) & ~7ull;
}

uint64_t obj_stored_bytes(uint64_t size)
{
	uint64_t blocks = obj_blocks(size);
	return blocks == 0 ? size : obj_vector_at(size) + blocks * sizeof(uint64_t);
}

uint64_t obj_key_hash(struct bytes tenant, struct bytes key)
{
	uint8_t text[2 + 64 + OBJ_KEY_MAX];
	size_t n = MIN_OF(tenant.n, (size_t)64), n_key = MIN_OF(key.n, (size_t)OBJ_KEY_MAX);
	text[0] = (uint8_t)n;
	text[1] = (uint8_t)(n >> 8);
	if (n > 0)
		memcpy(text + 2, tenant.p, n);
	if (n_key > 0)
		memcpy(text + 2 + n, key.p, n_key);
	return sum64(text, 2 + n + n_key);
}

uint64_t obj_key_tie(struct bytes key)
{
	static const uint64_t seed = 0x9e3779b97f4a7c15; /* any but 0, which obj_key_hash has */
	return XXH3_64bits_withSeed(key.p, key.n, seed);
}

/* The blocks' sums go straight into the sum of their vector, which nobody wants to keep. */
static uint64_t sum_without_vector(const uint8_t *p, size_t n)
{
	XXH3_state_t vector;
	XXH3_INITSTATE(&vector);
	XXH3_64bits_reset(&vector);
	for (size_t at = 0; at < n; at += OBJ_BLOCK) {
		uint64_t le = htole64(sum64(p + at, MIN_OF(n - at, (size_t)OBJ_BLOCK)));
		XXH3_64bits_update(&vector, &le, sizeof(le));
	}
	return XXH3_64bits_digest(&vector);
}

uint64_t obj_sum(const void *p, size_t n, uint64_t *vector)
{
	if (!vector && obj_blocks(n) > 0)
		return sum_without_vector(p, n);
	return sum_object(p, n, vector);
}

uint64_t obj_sum_of_vector(const uint64_t *vector, uint64_t blocks)
{
	return sum_of_blocks(vector, blocks);
}
