/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/num.h"

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/*
 * The loops below carry no branches, so each clone is vector code of its width. The clones are static:
 * of a hidden function gcc leaves the resolver visible, and libpomelo.a may define pml_ names only.
 */
/* Not under ThreadSanitizer: it would look into the resolvers before it has started. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
	!defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

CLONES
static void row_to_fp8(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scales)
{
	for (uint32_t g = 0; g < hidden / EP_SCALE_GROUP; g++) {
		float v[EP_SCALE_GROUP];
		int32_t mag[EP_SCALE_GROUP], amax = 0;
		const uint16_t *xg = x + g * EP_SCALE_GROUP;
		for (int i = 0; i < EP_SCALE_GROUP; i++) {
			int32_t u = (int32_t)((uint32_t)xg[i] << 16), a = u & 0x7fffffff;
			v[i] = num_float((uint32_t)u);
			mag[i] = a > 0x7f800000 ? 0
						: a; /* a NaN does not count, as fmaxf has it */
		}
		for (int i = 0; i < EP_SCALE_GROUP;
		     i++) /* its own loop: else gcc 12 leaves it scalar */
			amax = mag[i] > amax ? mag[i]
					     : amax; /* positive floats order as integers */
		float m = num_float((uint32_t)amax);
		float scale = (m > EP_AMAX_MIN ? m : EP_AMAX_MIN) / EP_FP8_MAX;
		scales[g] = scale;
		uint8_t *qg = q + g * EP_SCALE_GROUP;
		for (int i = 0; i < EP_SCALE_GROUP; i++)
			qg[i] = num_to_e4m3(v[i] / scale);
	}
}

CLONES
static void row_fma(float *acc, const uint16_t *y, float w, uint32_t hidden)
{
	for (uint32_t i = 0; i < hidden; i++)
		acc[i] = fmaf(w, num_from_bf16(y[i]), acc[i]);
}

CLONES
static void row_to_bf16(const float *acc, uint16_t *out, uint32_t hidden)
{
	for (uint32_t i = 0; i < hidden; i++)
		out[i] = num_to_bf16(acc[i]);
}

void num_row_to_fp8(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scales)
{
	row_to_fp8(x, hidden, q, scales);
}

void num_row_fma(float *acc, const uint16_t *y, float w, uint32_t hidden)
{
	row_fma(acc, y, w, hidden);
}

void num_row_to_bf16(const float *acc, uint16_t *out, uint32_t hidden)
{
	row_to_bf16(acc, out, hidden);
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
