/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of payloads (T4): XXH3-64 of an object's bytes up to 1 MiB, else XXH3-64 over the
 * vector (u64 little endian) of XXH3-64 of its 1 MiB blocks. Uses the library's run-time dispatched
 * variant where it has one (about twice as fast on AVX2).
 * Thread: any. Pure.
 */
#pragma once

#include "base/err.h"

#define SUM_BLOCK_BYTES (1u << 20)

uint64_t sum64(const void *p, size_t n);

/* Entries of the vector: 0 for objects up to 1 MiB, which have none. */
static inline uint64_t sum_n_blocks(uint64_t n_bytes)
{
	return n_bytes <= SUM_BLOCK_BYTES ? 0
					  : (n_bytes + SUM_BLOCK_BYTES - 1) / SUM_BLOCK_BYTES;
}
/* The whole object in memory. blocks gets the vector: room for sum_n_blocks(n) entries, may be NULL
 * when that is 0. */
uint64_t sum_object(const void *p, size_t n, uint64_t *blocks);
/* The sum of an object of n_bytes from its vector. */
uint64_t sum_of_blocks(const uint64_t *blocks, uint64_t n_blocks);

/* The same in pieces of any size. n_bytes, the object's whole length, is known beforehand. */
struct sum_stream;
/* blocks: as above, or NULL when only the sum is wanted; owned, sum_stream_free(). ERR_NO_MEMORY. */
enum err sum_stream_new(uint64_t n_bytes, uint64_t *blocks, struct sum_stream **out) MUST_CHECK;
/* ERR_TOO_LARGE past n_bytes. */
enum err sum_stream_add(struct sum_stream *s, const void *p, size_t n) MUST_CHECK;
/* ERR_CORRUPT when fewer than n_bytes came. */
enum err sum_stream_end(struct sum_stream *s, uint64_t *out) MUST_CHECK;
void sum_stream_free(struct sum_stream *s);
