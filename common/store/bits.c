/* SPDX-License-Identifier: Apache-2.0 */
#include "store/bits.h"

#include <string.h>

static uint64_t words(uint64_t n)
{
	return (n + 63) / 64;
}

enum err bits_init(struct bits *b, uint64_t n)
{
	assert(n > 0 && n <= 1ull << 36);
	*b = (struct bits){ .n = n };
	for (uint64_t w = words(n);; w = words(w)) {
		uint64_t *level = calloc(w, sizeof(*level));
		if (!level) {
			bits_fini(b);
			return ERR_NO_MEMORY;
		}
		b->level[b->n_levels++] = level;
		if (w == 1)
			return ERR_NONE;
	}
}

void bits_fini(struct bits *b)
{
	for (unsigned l = 0; l < b->n_levels; l++)
		free(b->level[l]);
	*b = (struct bits){ 0 };
}

void bits_fill(struct bits *b)
{
	uint64_t n = b->n;
	for (unsigned l = 0; l < b->n_levels; l++) {
		memset(b->level[l], 0xff, n / 64 * 8);
		if (n % 64)
			b->level[l][n / 64] = (1ull << n % 64) - 1;
		n = words(n);
	}
	b->count = b->n;
}

bool bits_has(const struct bits *b, uint64_t i)
{
	return i < b->n && (b->level[0][i / 64] >> i % 64 & 1);
}

void bits_add(struct bits *b, uint64_t i)
{
	assert(i < b->n);
	if (bits_has(b, i))
		return;
	b->count++;
	for (unsigned l = 0; l < b->n_levels; l++, i /= 64) {
		uint64_t *w = &b->level[l][i / 64], old = *w;
		*w |= 1ull << i % 64;
		if (old != 0)
			return;
	}
}

void bits_del(struct bits *b, uint64_t i)
{
	assert(i < b->n);
	if (!bits_has(b, i))
		return;
	b->count--;
	for (unsigned l = 0; l < b->n_levels; l++, i /= 64) {
		uint64_t *w = &b->level[l][i / 64];
		*w &= ~(1ull << i % 64);
		if (*w != 0)
			return;
	}
}

/* The least bit of word i of that level, and of those below, that is set: down to a number. */
static uint64_t down(const struct bits *b, unsigned l, uint64_t i)
{
	for (;; l--) {
		i = i * 64 + (unsigned)__builtin_ctzll(b->level[l][i]);
		if (l == 0)
			return i;
	}
}

uint64_t bits_from(const struct bits *b, uint64_t i)
{
	uint64_t n = b->n;
	for (unsigned l = 0; l < b->n_levels && i < n; l++, n = words(n)) {
		uint64_t rest = b->level[l][i / 64] >> i % 64;
		if (rest) {
			i += (unsigned)__builtin_ctzll(rest);
			return l == 0 ? i : down(b, l - 1, i);
		}
		i = i / 64 + 1;
	}
	return BITS_NONE;
}
