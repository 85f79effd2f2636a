/* SPDX-License-Identifier: Apache-2.0 */
/* The number formats against models that search, over every value where there are few enough. */
#include "ep/num.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* The value of an e4m3 code without its sign, from the format's definition. */
static double value_of(int code)
{
	int e = code >> 3, m = code & 7;
	return e ? ldexp(1.0 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
}

/* Nearest code; of two equally near the even one; saturating; NaN is 0x7f. */
static uint8_t nearest(float f)
{
	uint8_t sign = num_bits(f) >> 31 ? 0x80 : 0;
	if (isnan(f))
		return 0x7f | sign;
	int best = 0;
	double a = fabs((double)f), gap = INFINITY;
	for (int c = 0; c <= 0x7e; c++) {
		double d = isinf(a) ? -c : fabs(value_of(c) - a);
		if (d < gap || (d == gap && !(c & 1))) {
			gap = d;
			best = c;
		}
	}
	return (uint8_t)(best | sign);
}

Test(num, every_bf16_to_e4m3, .timeout = 30)
{
	for (uint32_t h = 0; h < 65536; h++) {
		float f = num_from_bf16((uint16_t)h);
		cr_assert_eq(num_to_e4m3(f), nearest(f), "bf16 %04x: %02x, not %02x", h,
			     num_to_e4m3(f), nearest(f));
	}
	NO_LEAKS();
}

/* The midpoint between each two codes, and its neighbours in f32. */
Test(num, every_tie_to_e4m3, .timeout = 30)
{
	for (int c = 0; c < 0x7e; c++) {
		float mid = (float)((value_of(c) + value_of(c + 1)) / 2);
		float at[] = { mid, nextafterf(mid, 0), nextafterf(mid, INFINITY), -mid };
		for (size_t i = 0; i < ARRAY_LEN(at); i++)
			cr_assert_eq(num_to_e4m3(at[i]), nearest(at[i]), "%a", (double)at[i]);
	}
	NO_LEAKS();
}

Test(num, every_e4m3_comes_back, .timeout = 30)
{
	for (int c = 0; c < 256; c++) {
		float f = num_from_e4m3((uint8_t)c);
		if ((c & 0x7f) == 0x7f)
			cr_assert(isnan(f));
		else
			cr_assert_eq((double)f, c & 0x80 ? -value_of(c & 0x7f) : value_of(c));
		cr_assert_eq(num_to_e4m3(f), c);
	}
	NO_LEAKS();
}

/* bf16 of every upper half with the lower halves around a tie, by comparing distances. */
Test(num, every_f32_half_to_bf16, .timeout = 30)
{
	static const uint16_t low[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
	for (uint32_t h = 0; h < 65536; h++)
		for (size_t i = 0; i < ARRAY_LEN(low); i++) {
			float f = num_float(h << 16 | low[i]);
			uint16_t got = num_to_bf16(f);
			uint16_t up = low[i] > 0x8000 || (low[i] == 0x8000 && (h & 1));
			if (isnan(f))
				cr_assert_eq(got, 0x7fff);
			else
				cr_assert_eq(got, (uint16_t)(h + up), "%08x", num_bits(f));
		}
	NO_LEAKS();
}

static void check_row(const uint16_t *x, uint32_t hidden)
{
	static uint8_t q[16384];
	static float scales[128];
	num_row_to_fp8(x, hidden, q, scales);
	for (uint32_t g = 0; g < hidden / 128; g++) {
		float amax = 0;
		for (uint32_t i = g * 128; i < g * 128 + 128; i++)
			if (!isnan(num_from_bf16(x[i]))) /* fmaxf gives a signalling NaN back */
				amax = fmaxf(amax, fabsf(num_from_bf16(x[i])));
		float scale = fmaxf(amax, 1e-4f) / 448.0f;
		cr_assert_eq(num_bits(scales[g]), num_bits(scale), "group %u", g);
		for (uint32_t i = g * 128; i < g * 128 + 128; i++) {
			volatile float d = num_from_bf16(x[i]) / scale;
			/* a row's NaN has no sign, on the CPU and on the GPU */
			cr_assert_eq(q[i], isnan(d) ? 0x7f : nearest(d),
				     "channel %u: x %04x scale %a: %02x", i, x[i],
				     (double)scale, q[i]);
		}
	}
}

/* Every bf16 in a row with others of its size, of all sizes, and with NaN and infinity. */
Test(num, rows_of_every_bf16, .timeout = 60)
{
	static uint16_t x[16384];
	for (uint32_t h = 0; h < 65536; h += 16384) {
		for (uint32_t i = 0; i < 16384; i++)
			x[i] = (uint16_t)(h + i);
		check_row(x, 16384);
		for (uint32_t i = 0; i < 16384; i++)
			x[i] = (uint16_t)(h + i * 40503u);
		check_row(x, 16384);
	}
	NO_LEAKS();
}

/*
 * A scale is amax / 448 with a bf16 amax, so it has 128 significands (and the least scale): each of them
 * with every bf16 below amax, at common, least and greatest exponents, against the division.
 */
Test(num, every_quotient_to_e4m3, .timeout = 120)
{
	static const uint16_t exponents[] = { 1, 103, 120, 127, 254 };
	static uint16_t x[32768 / 127 * 128 + 128];
	static uint8_t q[sizeof(x) / 2];
	static float scales[sizeof(x) / 256];
	for (uint32_t k = 0; k < ARRAY_LEN(exponents) * 128; k++) {
		uint16_t amax = (uint16_t)(exponents[k / 128] << 7 | k % 128);
		uint32_t n = 0, h = 0;
		while (h <= amax) {
			if (n % 128 == 0)
				x[n++] = amax;
			x[n++] = (uint16_t)(h | (h & 1) << 15), h++;
		}
		while (n % 128 != 0)
			x[n++] = amax;
		num_row_to_fp8(x, n, q, scales);
		for (uint32_t i = 0; i < n; i++) {
			volatile float d = num_from_bf16(x[i]) / scales[0];
			cr_assert_eq(q[i], num_to_e4m3(d), "x %04x amax %04x: %02x", x[i], amax,
				     q[i]);
		}
	}
	NO_LEAKS();
}

Test(num, rows_of_all_lengths, .timeout = 60)
{
	static uint16_t x[16384];
	uint32_t s = 1;
	for (uint32_t i = 0; i < 16384; i++) {
		s = s * 1664525u + 1013904223u;
		x[i] = num_to_bf16(((float)(s >> 8) - 8388608.0f) * 1e-7f);
	}
	memset(x, 0, 256); /* a group of zeros: the least scale */
	for (uint32_t hidden = 128; hidden <= 16384; hidden += 128)
		if (hidden <= 1024 || hidden % 2048 == 0)
			check_row(x, hidden);
	NO_LEAKS();
}

Test(num, fma_and_back_in_order, .timeout = 30)
{
	static float acc[1000], want[1000];
	static uint16_t y[1000], out[1000];
	for (uint32_t k = 0; k < 9; k++) {
		for (uint32_t i = 0; i < 1000; i++) {
			y[i] = num_to_bf16((float)((i * 31 + k * 17) % 97) * 0.037f - 1.5f);
			want[i] = fmaf(0.1f * (float)k, num_from_bf16(y[i]), want[i]);
		}
		num_row_fma(acc, y, 0.1f * (float)k, 1000);
	}
	cr_assert_eq(memcmp(acc, want, sizeof(acc)), 0);
	num_row_to_bf16(acc, out, 1000);
	for (uint32_t i = 0; i < 1000; i++)
		cr_assert_eq(out[i], num_to_bf16(want[i]));
	NO_LEAKS();
}
