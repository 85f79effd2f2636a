/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets, maps and places: every limit, no overlap, and routes against plain loops. */
#include "ep/route.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

struct row {
	struct ep_shape s;
	char text[160];
};

ParameterizedTestParameters(layout, refuses)
{
	static struct row rows[] = {
		{ { 0, 8, 4, 128, 8 }, "num_ranks is 0, allowed are 1 to 64" },
		{ { 65, 8, 4, 128, 8 }, "num_ranks is 65, allowed are 1 to 64" },
		{ { 2, 0, 4, 128, 8 }, "num_experts is 0, allowed are 1 to 4096" },
		{ { 2, 4097, 4, 128, 8 }, "num_experts is 4097, allowed are 1 to 4096" },
		{ { 2, 8, 0, 128, 8 }, "is 0, allowed are 1 to 65536" },
		{ { 2, 8, 65537, 128, 8 }, "is 65537, allowed are 1 to 65536" },
		{ { 2, 8, 4, 0, 8 }, "hidden is 0" },
		{ { 2, 8, 4, 100, 8 }, "hidden is 100" },
		{ { 2, 8, 4, 16512, 8 }, "hidden is 16512" },
	};
	return cr_make_param_array(struct row, rows, ARRAY_LEN(rows));
}

ParameterizedTest(struct row *r, layout, refuses, .timeout = 10)
{
	struct ep_layout l = { .bytes = 7 };
	struct why why = { 0 };
	cr_assert_eq(layout_make(&r->s, &l, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, r->text), "'%s' does not say '%s'", why.text, r->text);
	cr_assert_eq(l.bytes, 7, "out was touched");
	NO_LEAKS();
}

/* Each part ends before the next begins, starts on a line, and no two flags share a line. */
Test(layout, parts_do_not_overlap, .timeout = 10)
{
	static const struct ep_shape shapes[] = { { 1, 1, 1, 128, 1 },
						  { 3, 7, 5, 384, 3 },
						  { 64, 4096, 16, 256, 64 },
						  { 8, 256, 128, 7168, 32 },
						  { 17, 256, 9, 16384, 16 } };
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		const struct ep_shape *s = &shapes[i];
		struct ep_layout l;
		cr_assert_eq(layout_make(s, &l, NULL), ERR_NONE);
		uint64_t m = s->max_tokens, rows = (uint64_t)s->max_local * s->n_ranks * m;
		cr_assert_geq(l.topk, sizeof(struct ep_slot_head));
		cr_assert_geq(l.pos, l.topk + m * EP_TOP_K_MAX * 4);
		cr_assert_geq(l.counts, l.pos + m * EP_TOP_K_MAX * 4);
		cr_assert_geq(l.begin, l.counts + s->n_experts * 4);
		cr_assert_geq(l.rows, l.begin + (uint64_t)s->max_local * s->n_ranks * 4);
		for (int fp8 = 0; fp8 < 2; fp8++)
			cr_assert_geq(l.y, l.rows + m * layout_row_stride(s->hidden, fp8));
		cr_assert_geq(l.slot[1], l.slot[0] + l.y + rows * s->hidden * 2);
		cr_assert_geq(l.bytes, l.slot[1] + l.y + rows * s->hidden * 2);
		cr_assert_geq(l.flags, sizeof(struct ep_window_head));
		uint64_t at[] = { l.topk, l.pos,   l.counts,  l.begin,	 l.rows,
				  l.y,	  l.flags, l.slot[0], l.slot[1], l.bytes };
		for (size_t j = 0; j < ARRAY_LEN(at); j++)
			cr_assert_eq(at[j] % EP_LINE, 0);
		uint64_t last = 0;
		for (uint32_t slot = 0; slot < EP_SLOTS; slot++)
			for (int f = 0; f < EP_N_FLAGS; f++)
				for (uint32_t w = 0; w < s->n_ranks; w++) {
					uint64_t o =
						layout_flag(&l, s, slot, (enum ep_flag)f, w);
					cr_assert(o >= l.flags && o >= last &&
						  o + EP_LINE <= l.slot[0]);
					last = o + EP_LINE;
				}
	}
	NO_LEAKS();
}

Test(layout, rows_are_wide_enough, .timeout = 10)
{
	for (uint32_t h = 128; h <= EP_HIDDEN_MAX; h += 128) {
		cr_assert_eq(layout_row_bytes(h, false), h * 2);
		cr_assert_eq(layout_row_bytes(h, true), h + h / 32);
		for (int fp8 = 0; fp8 < 2; fp8++)
			cr_assert(layout_row_stride(h, fp8) % 16 == 0 &&
				  layout_row_stride(h, fp8) >= layout_row_bytes(h, fp8) &&
				  layout_row_stride(h, fp8) < layout_row_bytes(h, fp8) + 16);
	}
	NO_LEAKS();
}

Test(route, maps, .timeout = 10)
{
	static struct ep_map m;
	struct why why = { 0 };
	uint32_t owner[256];
	cr_assert_eq(route_map(15, 256, NULL, &m, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "256, no multiple of 15 ranks; give expert_owner"));
	for (uint32_t e = 0; e < 256; e++)
		owner[e] = e % 15;
	cr_assert_eq(route_map(15, 256, owner, &m, NULL), ERR_NONE);
	cr_assert_eq(m.max_local, 18);
	uint32_t seen = 0;
	for (uint32_t e = 0; e < 256; e++) {
		cr_assert_eq(m.owner[e], e % 15);
		cr_assert_eq(m.local[e], e / 15);
	}
	for (uint32_t r = 0; r < 15; r++)
		seen += m.n_local[r];
	cr_assert_eq(seen, 256);
	owner[77] = 15;
	why = (struct why){ 0 };
	cr_assert_eq(route_map(15, 256, owner, &m, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "expert_owner[77] is 15, allowed are 0 to 14"), "%s",
		  why.text);
	NO_LEAKS();
}

Test(route, check_names_the_place, .timeout = 10)
{
	int64_t topk[12] = { 0, 1, -1, 3, 4, 5, 6, 7, 0, 1, 2, 3 };
	struct why why = { 0 };
	cr_assert_eq(route_check(topk, 4, 3, 8, &why), ERR_NONE);
	static const int64_t bad[] = { -2, 8, INT64_MAX, INT64_MIN, 1ll << 32 };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char want[64];
		why = (struct why){ 0 };
		topk[7] = bad[i];
		cr_assert_eq(route_check(topk, 4, 3, 8, &why), ERR_INVALID_PARAMS);
		snprintf(want, sizeof(want), "topk_idx[2][1] is %lld, allowed are -1 to 7",
			 (long long)bad[i]);
		cr_assert_str_eq(why.text, want);
	}
	why = (struct why){ 0 };
	cr_assert_eq(route_check(topk, 0, 33, 8, &why), ERR_INVALID_PARAMS);
	cr_assert_eq(route_check(topk, 0, 0, 8, NULL), ERR_INVALID_PARAMS);
	cr_assert_eq(route_check(NULL, 0, 32, 8, NULL), ERR_NONE);
	NO_LEAKS();
}

/* Places and layout against loops that count anew for each entry. */
Test(route, places_by_counting, .timeout = 30)
{
	enum { T = 50, K = 6, E = 13, R = 3 };
	static int64_t topk[R][T * K];
	static int32_t ids[R][T * K], pos[R][T * K], counts[R][E];
	uint32_t s = 7;
	for (int r = 0; r < R; r++) {
		for (int i = 0; i < T * K; i++) {
			s = s * 1664525u + 1013904223u;
			topk[r][i] = (int64_t)(s >> 16) % (E + 1) - 1;
		}
		route_source(topk[r], T, K, E, ids[r], pos[r], counts[r]);
		for (int i = 0; i < T * K; i++) {
			int before = 0, all = 0;
			for (int j = 0; j < T * K; j++) {
				before += j < i && topk[r][j] == topk[r][i];
				all += topk[r][j] == topk[r][i];
			}
			cr_assert_eq(ids[r][i], topk[r][i]);
			if (topk[r][i] >= 0) {
				cr_assert_eq(pos[r][i], before);
				cr_assert_eq(counts[r][topk[r][i]], all);
			}
		}
	}
	int32_t by_source[E * R], begin[E * R], recv[E];
	int64_t range[E * R];
	for (int e = 0; e < E; e++)
		for (int r = 0; r < R; r++)
			by_source[e * R + r] = counts[r][e];
	route_receiver(by_source, E, R, begin, recv, range);
	for (int e = 0; e < E; e++) {
		int at = 0;
		for (int r = 0; r < R; r++) {
			cr_assert_eq(begin[e * R + r], at);
			cr_assert_eq(range[e * R + r], (int64_t)at << 32 | counts[r][e]);
			at += counts[r][e];
		}
		cr_assert_eq(recv[e], at);
	}
	route_receiver(by_source, E, R, begin, recv, NULL);
	NO_LEAKS();
}
