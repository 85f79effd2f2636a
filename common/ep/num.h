/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number formats of expert parallelism, exactly as answers.md ("EP arithmetic") fixes them:
 * bf16 by round-to-nearest-even, e4m3 saturating at 448 by round-to-nearest-even, one f32 scale
 * for 128 channels: scale = max(amax, 1e-4f)/448, q = e4m3(x/scale) with IEEE division. The GPU
 * kernels give the same bits. Built with -ffp-contract=off and never with fast-math.
 *
 * Thread: any. Pure.
 */
#pragma once

#include "base/def.h"

#define EP_SCALE_GROUP 128 /* channels that share one scale */
#define EP_FP8_MAX     448.0f
#define EP_AMAX_MIN    1e-4f

static inline uint32_t num_bits(float f)
{
	union {
		float f;
		uint32_t u;
	} v = { .f = f };
	return v.u;
}

static inline float num_float(uint32_t u)
{
	union {
		uint32_t u;
		float f;
	} v = { .u = u };
	return v.f;
}

static inline float num_from_bf16(uint16_t h)
{
	return num_float((uint32_t)h << 16);
}

/* Nearest even; every NaN becomes 0x7fff, as the GPU's instruction has it. */
static inline uint16_t num_to_bf16(float f)
{
	uint32_t u = num_bits(f);
	uint32_t r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)r;
}

/*
 * f32 -> e4m3 (OCP "fn": no infinity, NaN is 0x7f), nearest even, saturating. Without branches, so
 * that loops over it become vector code on every x86-64. Below 2^-6 the format is fixed point with a step of 2^-9:
 * adding 2^14 rounds to that step.
 */
static inline uint8_t num_to_e4m3(float f)
{
	int32_t u = (int32_t)num_bits(f),
		a = u & 0x7fffffff; /* signed: AVX2 compares no others */
	int32_t sign = (u >> 24) & 0x80;
	int32_t c = a > 0x43e00000 ? 0x43e00000 : a; /* 448 */
	int32_t normal = ((c + 0x7ffff + ((c >> 20) & 1)) >> 20) - (120 << 3);
	int32_t small = (int32_t)num_bits(num_float((uint32_t)c) + 16384.0f) -
			(int32_t)num_bits(16384.0f);
	int32_t low = (c - 0x3c800000) >> 31; /* all ones below 2^-6; a mask, no branch */
	int32_t nan = (0x7f800000 - a) >> 31;
	int32_t q = (small & low) | (normal & ~low);
	return (uint8_t)((q & ~nan) | (nan & 0x7f) | sign);
}

static inline float num_from_e4m3(uint8_t q)
{
	uint32_t e = (q >> 3) & 15, m = q & 7, sign = (uint32_t)(q & 0x80) << 24;
	if (e == 15 && m == 7)
		return num_float(0x7fc00000 | sign);
	float mag = e == 0 ? (float)m * 0x1p-9f : num_float(((e + 120) << 23) | (m << 20));
	return num_float(num_bits(mag) | sign);
}

/*
 * Casts one row. x: [hidden] bf16, q: [hidden] e4m3, scales: [hidden/128] f32. hidden is a
 * multiple of 128. A NaN becomes 0x7f and does not count for the scale. 10.6 GB/s of x with AVX-512 (one
 * core of an EPYC beside other work, 2026-11; dividing gave 8).
 */
void num_row_to_fp8(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scales);

/*
 * memcpy past the caches, for rows that are many and read later: spares reading the lines that are
 * overwritten whole. Call num_stream_end() before anybody is told of them.
 */
void num_row_stream(void *to, const void *from, size_t bytes);
void num_stream_end(void);

/* acc[i] = fmaf(w, bf16 y[i], acc[i]). */
void num_row_fma(float *acc, const uint16_t *y, float w, uint32_t hidden);

/* out[i] = bf16(acc[i]). */
void num_row_to_bf16(const float *acc, uint16_t *out, uint32_t hidden);
