/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/num.h"

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/*
 * The loops below carry no branches, so each becomes vector code of the width it is compiled for. Every
 * body exists three times, chosen at run time: for AVX-512, for AVX2 with FMA, and for anything else.
 */
#define BODY static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GNUC__)
#define FOR_V4 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define FOR_V3 __attribute__((target("avx2,fma")))
#define CHOOSE(v4, v3, plain)                                                             \
	do {                                                                              \
		if (__builtin_cpu_supports("avx512bw") &&                                 \
		    __builtin_cpu_supports("avx512vl") &&                                 \
		    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))  \
			v4;                                                               \
		else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) \
			v3;                                                               \
		else                                                                      \
			plain;                                                            \
	} while (0)
#else
#define FOR_V4
#define FOR_V3
#define CHOOSE(v4, v3, plain) plain
#endif

/* A group with NaN or infinity, or without FMA: the definition, word for word. */
BODY void group_by_division(const uint16_t *x, float scale, uint8_t *q)
{
	for (int i = 0; i < EP_SCALE_GROUP; i++)
		q[i] = num_to_e4m3(num_from_bf16(x[i]) / scale);
	for (int i = 0; i < EP_SCALE_GROUP; i++) /* as the GPU's instruction has it */
		q[i] = (q[i] & 0x7f) == 0x7f ? 0x7f : q[i];
}

/*
 * The same bits by multiplying. z = a*inv is within 1.5 ulp of a/scale; one correction by the remainder
 * leaves an error below 2^-46 of it, and no a/scale lies that near to where e4m3 of the rounded quotient
 * changes: a has 8 significant bits and such a place 5, half an f32 ulp aside; the nearest quotient is
 * 2^-34 of itself away. test_num.c tries every a with every scale.
 *
 * Rounding to e4m3: adding m = 2^20 times the power of two below z (2^-6 at least) leaves z in steps of
 * its lowest bit, to nearest even; the difference of the bit patterns is the number of steps.
 */
BODY void group_by_product(const uint16_t *x, float scale, uint8_t *q)
{
	float inv = 1.0f / scale;
	for (int i = 0; i < EP_SCALE_GROUP; i++) {
		float a = num_float((uint32_t)(x[i] & 0x7fff) << 16), z = a * inv;
		z = fmaf(fmaf(-z, scale, a), inv, z);
		int32_t power = (int32_t)(num_bits(z) & 0x7f800000);
		power = power > 0x3c800000 ? power : 0x3c800000;
		int32_t m = power + (20 << 23);
		int32_t steps = (int32_t)num_bits(z + num_float((uint32_t)m)) - m;
		q[i] = (uint8_t)(steps + ((power - 0x3c800000) >> 20) + ((x[i] >> 8) & 0x80));
	}
}

BODY void row_to_fp8(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scales, bool fma)
{
	for (uint32_t g = 0; g < hidden / EP_SCALE_GROUP; g++, x += EP_SCALE_GROUP) {
		uint16_t top = 0, amax = 0;
		for (int i = 0; i < EP_SCALE_GROUP; i++) { /* magnitudes order as integers */
			uint16_t a = x[i] & 0x7fff;
			top = a > top ? a : top;
		}
		amax = top;
		if (top > 0x7f80) { /* a NaN does not count, as fmaxf has it */
			amax = 0;
			for (int i = 0; i < EP_SCALE_GROUP; i++) {
				uint16_t a = x[i] & 0x7fff;
				amax = a > amax && a <= 0x7f80 ? a : amax;
			}
		}
		float m = num_from_bf16(amax);
		float scale = (m > EP_AMAX_MIN ? m : EP_AMAX_MIN) / EP_FP8_MAX;
		scales[g] = scale;
		if (fma && top < 0x7f80)
			group_by_product(x, scale, q + g * EP_SCALE_GROUP);
		else
			group_by_division(x, scale, q + g * EP_SCALE_GROUP);
	}
}

BODY void row_fma(float *acc, const uint16_t *y, float w, uint32_t hidden)
{
	for (uint32_t i = 0; i < hidden; i++)
		acc[i] = fmaf(w, num_from_bf16(y[i]), acc[i]);
}

BODY void row_to_bf16(const float *acc, uint16_t *out, uint32_t hidden)
{
	for (uint32_t i = 0; i < hidden; i++)
		out[i] = num_to_bf16(acc[i]);
}

FOR_V4 static void fp8_v4(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scales)
{
	row_to_fp8(x, hidden, q, scales, true);
}

FOR_V3 static void fp8_v3(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scales)
{
	row_to_fp8(x, hidden, q, scales, true);
}

void num_row_to_fp8(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scales)
{
	CHOOSE(fp8_v4(x, hidden, q, scales), fp8_v3(x, hidden, q, scales),
	       row_to_fp8(x, hidden, q, scales, false));
}

FOR_V4 static void fma_v4(float *acc, const uint16_t *y, float w, uint32_t hidden)
{
	row_fma(acc, y, w, hidden);
}

FOR_V3 static void fma_v3(float *acc, const uint16_t *y, float w, uint32_t hidden)
{
	row_fma(acc, y, w, hidden);
}

void num_row_fma(float *acc, const uint16_t *y, float w, uint32_t hidden)
{
	CHOOSE(fma_v4(acc, y, w, hidden), fma_v3(acc, y, w, hidden),
	       row_fma(acc, y, w, hidden));
}

FOR_V4 static void bf16_v4(const float *acc, uint16_t *out, uint32_t hidden)
{
	row_to_bf16(acc, out, hidden);
}

FOR_V3 static void bf16_v3(const float *acc, uint16_t *out, uint32_t hidden)
{
	row_to_bf16(acc, out, hidden);
}

void num_row_to_bf16(const float *acc, uint16_t *out, uint32_t hidden)
{
	CHOOSE(bf16_v4(acc, out, hidden), bf16_v3(acc, out, hidden),
	       row_to_bf16(acc, out, hidden));
}

#ifdef __SSE2__
void num_row_stream(void *to, const void *from, size_t bytes)
{
	__m128i *d = to;
	const __m128i *s = from;
	if ((uintptr_t)to % 16 || bytes % 64) {
		memcpy(to, from, bytes);
		return;
	}
	for (size_t i = 0; i < bytes / 16; i += 4) {
		__m128i a = _mm_loadu_si128(s + i), b = _mm_loadu_si128(s + i + 1);
		__m128i c = _mm_loadu_si128(s + i + 2), e = _mm_loadu_si128(s + i + 3);
		_mm_stream_si128(d + i, a);
		_mm_stream_si128(d + i + 1, b);
		_mm_stream_si128(d + i + 2, c);
		_mm_stream_si128(d + i + 3, e);
	}
}

void num_stream_end(void)
{
	_mm_sfence();
}
#else
void num_row_stream(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

void num_stream_end(void)
{
}
#endif
