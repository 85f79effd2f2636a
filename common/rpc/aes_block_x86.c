/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/aes_block.h"

#include <immintrin.h>

#define AES __attribute__((target("aes,sse2")))

bool aes_block_have(void)
{
	return __builtin_cpu_supports("aes");
}

/* FIPS 197, 5.2: each word of a round key is xored with all words before it. */
AES static inline __m128i next_key(__m128i k, __m128i assist)
{
	k = _mm_xor_si128(k, _mm_slli_si128(k, 4));
	k = _mm_xor_si128(k, _mm_slli_si128(k, 8));
	return _mm_xor_si128(k, _mm_shuffle_epi32(assist, 0xff));
}

/* The round constant is part of the instruction, so the rounds cannot be a loop. */
#define ROUND(i, rcon) r[i] = next_key(r[(i)-1], _mm_aeskeygenassist_si128(r[(i)-1], rcon))

AES void aes_block_expand(uint8_t *sched, const uint8_t key[16])
{
	__m128i *r = (__m128i *)(void *)sched;
	r[0] = _mm_loadu_si128((const __m128i *)(const void *)key);
	ROUND(1, 0x01);
	ROUND(2, 0x02);
	ROUND(3, 0x04);
	ROUND(4, 0x08);
	ROUND(5, 0x10);
	ROUND(6, 0x20);
	ROUND(7, 0x40);
	ROUND(8, 0x80);
	ROUND(9, 0x1b);
	ROUND(10, 0x36);
}

AES void aes_block(const unsigned char in[16], unsigned char out[16], const void *sched)
{
	const __m128i *r = sched;
	__m128i x = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)in), r[0]);
	for (int i = 1; i < 10; i++)
		x = _mm_aesenc_si128(x, r[i]);
	_mm_storeu_si128((__m128i *)(void *)out, _mm_aesenclast_si128(x, r[10]));
}
