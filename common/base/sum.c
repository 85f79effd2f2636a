/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sum_priv.h"

#include <endian.h>

uint64_t sum_of_blocks(const uint64_t *blocks, uint64_t n_blocks)
{
	return sum64(blocks, n_blocks * sizeof(*blocks));
}

struct sum_stream {
	uint64_t n_bytes, at; /* of the object; taken so far */
	uint64_t *blocks;     /* the caller's, or NULL */
	XXH3_state_t *block;  /* of the block at `at` */
	XXH3_state_t *vector; /* of the sums of whole blocks */
};

enum err sum_stream_new(uint64_t n_bytes, uint64_t *blocks, struct sum_stream **out)
{
	struct sum_stream *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	*s = (struct sum_stream){ .n_bytes = n_bytes,
				  .blocks = blocks,
				  .block = XXH3_createState(),
				  .vector = XXH3_createState() };
	if (!s->block || !s->vector) {
		sum_stream_free(s);
		return ERR_NO_MEMORY;
	}
	XXH3_64bits_reset(s->block);
	XXH3_64bits_reset(s->vector);
	*out = s;
	return ERR_NONE;
}

void sum_stream_free(struct sum_stream *s)
{
	if (!s)
		return;
	XXH3_freeState(s->block);
	XXH3_freeState(s->vector);
	free(s);
}

/* The block that ends at s->at joins the vector. */
static void end_block(struct sum_stream *s)
{
	uint64_t le = htole64(XXH3_64bits_digest(s->block));
	if (s->blocks)
		s->blocks[(s->at - 1) / SUM_BLOCK_BYTES] = le;
	sum_update(s->vector, &le, sizeof(le));
	XXH3_64bits_reset(s->block);
}

enum err sum_stream_add(struct sum_stream *s, const void *p, size_t n)
{
	const uint8_t *from = p;
	if (n > s->n_bytes - s->at)
		return ERR_TOO_LARGE;
	while (n > 0) {
		size_t room = SUM_BLOCK_BYTES - (size_t)(s->at % SUM_BLOCK_BYTES);
		size_t part = MIN_OF(room, n);
		sum_update(s->block, from, part);
		s->at += part;
		from += part;
		n -= part;
		if (s->n_bytes > SUM_BLOCK_BYTES &&
		    (s->at % SUM_BLOCK_BYTES == 0 || s->at == s->n_bytes))
			end_block(s);
	}
	return ERR_NONE;
}

enum err sum_stream_end(struct sum_stream *s, uint64_t *out)
{
	if (s->at != s->n_bytes)
		return ERR_CORRUPT;
	*out = XXH3_64bits_digest(s->n_bytes > SUM_BLOCK_BYTES ? s->vector : s->block);
	return ERR_NONE;
}

uint64_t sum_object(const void *p, size_t n, uint64_t *blocks)
{
	const uint8_t *from = p;
	if (n <= SUM_BLOCK_BYTES)
		return sum64(p, n);
	for (size_t at = 0, i = 0; at < n; at += SUM_BLOCK_BYTES, i++)
		blocks[i] = htole64(sum64(from + at, MIN_OF(n - at, (size_t)SUM_BLOCK_BYTES)));
	return sum_of_blocks(blocks, sum_n_blocks(n));
}
