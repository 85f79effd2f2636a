/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C and object sums: published vectors, equal answers of equal paths. */
#include "base/crc.h"
#include "base/sum.h"

#include <criterion/criterion.h>
#include <endian.h>
#include <string.h>

#include "tests/support/leak.h"

/* RFC 3720 appendix B.4, and the usual check value. */
Test(crc, published_vectors, .timeout = 5)
{
	uint8_t b[32];
	memset(b, 0, sizeof(b));
	cr_expect_eq(crc32c(0, b, 32), 0x8a9136aau);
	memset(b, 0xff, sizeof(b));
	cr_expect_eq(crc32c(0, b, 32), 0x62a8ab43u);
	for (uint8_t i = 0; i < 32; i++)
		b[i] = i;
	cr_expect_eq(crc32c(0, b, 32), 0x46dd794eu);
	for (uint8_t i = 0; i < 32; i++)
		b[i] = (uint8_t)(31 - i);
	cr_expect_eq(crc32c(0, b, 32), 0x113fdb5cu);
	cr_expect_eq(crc32c(0, "123456789", 9), 0xe3069283u);
	cr_expect_eq(crc32c(0, NULL, 0), 0);
}

Test(crc, table_and_instruction_agree, .timeout = 5)
{
	uint8_t b[300];
	for (size_t i = 0; i < sizeof(b); i++)
		b[i] = (uint8_t)(i * 167 + 13);
	for (size_t at = 0; at < 9; at++)
		for (size_t n = 0; n + at <= sizeof(b); n++)
			cr_assert_eq(crc32c(7, b + at, n), crc32c_table(7, b + at, n));
}

Test(crc, in_pieces, .timeout = 5)
{
	const char text[] = "the quick brown fox jumps over the lazy dog";
	uint32_t whole = crc32c(0, text, sizeof(text));
	for (size_t cut = 0; cut <= sizeof(text); cut++)
		cr_expect_eq(crc32c(crc32c(0, text, cut), text + cut, sizeof(text) - cut),
			     whole);
}

/* XXH3-64 of nothing with the default secret, from the specification's test values. */
Test(sum, published_vectors, .timeout = 5)
{
	cr_expect_eq(sum64(NULL, 0), 0x2d06800538d394c2ull);
	cr_expect_eq(sum64("", 0), 0x2d06800538d394c2ull);
}

static uint8_t *payload(size_t n)
{
	uint8_t *p = malloc(n + 1);
	uint64_t x = 1;
	for (size_t i = 0; i < n; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		p[i] = (uint8_t)(x >> 56);
	}
	return p;
}

static const size_t sizes[] = { 0,
				1,
				100,
				SUM_BLOCK_BYTES - 1,
				SUM_BLOCK_BYTES,
				SUM_BLOCK_BYTES + 1,
				2 * SUM_BLOCK_BYTES,
				3 * SUM_BLOCK_BYTES + 777 };

/* T4, spelled out once more: up to 1 MiB the sum of the bytes, else that of the vector. */
Test(sum, object, .timeout = 20)
{
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		size_t n = sizes[i], n_blocks = (size_t)sum_n_blocks(n);
		uint8_t *p = payload(n);
		uint64_t blocks[8], want[8];
		uint64_t got = sum_object(p, n, n_blocks ? blocks : NULL);
		if (n <= SUM_BLOCK_BYTES) {
			cr_expect_eq(n_blocks, 0);
			cr_expect_eq(got, sum64(p, n));
			free(p);
			continue;
		}
		cr_expect_eq(n_blocks, (n + SUM_BLOCK_BYTES - 1) / SUM_BLOCK_BYTES);
		for (size_t k = 0; k < n_blocks; k++) {
			size_t left = n - k * SUM_BLOCK_BYTES;
			want[k] = htole64(sum64(p + k * SUM_BLOCK_BYTES,
						MIN_OF(left, (size_t)SUM_BLOCK_BYTES)));
		}
		cr_expect_arr_eq(blocks, want, n_blocks * 8);
		cr_expect_eq(got, sum64(want, n_blocks * 8));
		cr_expect_eq(got, sum_of_blocks(blocks, n_blocks));
		free(p);
	}
	NO_LEAKS();
}

Test(sum, stream_equals_object, .timeout = 30)
{
	static const size_t steps[] = { 1 << 30, 4096, 100003, SUM_BLOCK_BYTES };
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (size_t k = 0; k < ARRAY_LEN(steps); k++) {
			size_t n = sizes[i];
			uint8_t *p = payload(n);
			uint64_t want[8] = { 0 }, blocks[8] = { 0 }, got = 0;
			struct sum_stream *s;
			uint64_t sum = sum_object(p, n, want);
			bool keep = k % 2 == 0;
			cr_assert_eq(sum_stream_new(n, keep ? blocks : NULL, &s), ERR_NONE);
			for (size_t at = 0; at < n; at += steps[k])
				cr_assert_eq(sum_stream_add(s, p + at,
							    MIN_OF(steps[k], n - at)),
					     ERR_NONE);
			cr_assert_eq(sum_stream_end(s, &got), ERR_NONE);
			cr_expect_eq(got, sum, "%zu in steps of %zu", n, steps[k]);
			if (keep)
				cr_expect_arr_eq(blocks, want, sizeof(want));
			sum_stream_free(s);
			free(p);
		}
	sum_stream_free(NULL);
	NO_LEAKS();
}

Test(sum, stream_knows_its_length, .timeout = 5)
{
	struct sum_stream *s;
	uint64_t got = 99;
	cr_assert_eq(sum_stream_new(10, NULL, &s), ERR_NONE);
	cr_expect_eq(sum_stream_add(s, "12345678901", 11), ERR_TOO_LARGE);
	cr_expect_eq(sum_stream_add(s, "123456789", 9), ERR_NONE);
	cr_expect_eq(sum_stream_end(s, &got), ERR_CORRUPT);
	cr_expect_eq(got, 99, "untouched");
	cr_expect_eq(sum_stream_add(s, "0", 1), ERR_NONE);
	cr_expect_eq(sum_stream_add(s, "1", 1), ERR_TOO_LARGE);
	cr_expect_eq(sum_stream_end(s, &got), ERR_NONE);
	cr_expect_eq(got, sum64("1234567890", 10));
	sum_stream_free(s);
	NO_LEAKS();
}
