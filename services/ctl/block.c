/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are written as they lie in memory"
#endif

enum { WORDS = 8, LINE = WORDS * sizeof(uint64_t) };

static inline void line_make(uint64_t *out, uint64_t i, uint64_t id)
{
	uint64_t h = XXH3_64bits_withSeed(&i, sizeof(i), id);
	for (uint64_t w = 0; w < WORDS; w++)
		out[w] = h + w * 0x9e3779b97f4a7c15ull;
}

void block_fill(void *p, size_t n, uint64_t id)
{
	uint64_t line[WORDS], i = 0;
	uint8_t *to = p;
	for (; n >= LINE; n -= LINE, to += LINE) {
		line_make(line, i++, id);
		memcpy(to, line, LINE);
	}
	line_make(line, i, id);
	memcpy(to, line, n);
}

bool block_check(const void *p, size_t n, uint64_t id)
{
	uint64_t want[WORDS], have[WORDS], i = 0, bad = 0;
	const uint8_t *from = p;
	for (; n >= LINE; n -= LINE, from += LINE) {
		line_make(want, i++, id);
		memcpy(have, from, LINE);
		for (int w = 0; w < WORDS; w++)
			bad |= want[w] ^ have[w];
	}
	line_make(want, i, id);
	return bad == 0 && memcmp(from, want, n) == 0;
}
