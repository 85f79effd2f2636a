/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON reader by itself, the writer's escapes, limits, budgets and cancelling. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "reshard/plan.h"
#include "tests/support/leak.h"

/* Skips one text; the rule that it breaks. */
static enum rule skip(const char *text, size_t n, const struct json_limits *lim)
{
	struct arena mem = ARENA_INIT(1 << 20);
	struct reject why = { 0 };
	struct json_in r;
	bool ok = json_in_open(&r, BYTES(text, n), lim, &mem, &why) && json_in_skip(&r) &&
		  json_in_close(&r);
	cr_expect_eq(ok, why.rule == RULE_NONE, "%s", text);
	arena_fini(&mem);
	return why.rule;
}

static const struct {
	const char *text;
	enum rule rule;
} texts[] = {
	{ "{}", RULE_NONE },
	{ " [ ] ", RULE_NONE },
	{ "[1,-2,3.5,1e9,1E+2,-0,true,false,null,\"x\"]", RULE_NONE },
	{ "{\"a\":{\"a\":1},\"b\":[{\"a\":1},{\"a\":1}]}", RULE_NONE },
	{ "\"\\ud83d\\ude00\"", RULE_NONE },
	{ "\"\xf0\x9f\x98\x80\"", RULE_NONE },
	{ "", RULE_JSON_SYNTAX },
	{ "[1,]", RULE_JSON_SYNTAX },
	{ "[,1]", RULE_JSON_SYNTAX },
	{ "[1 2]", RULE_JSON_SYNTAX },
	{ "{\"a\":1,}", RULE_JSON_SYNTAX },
	{ "{\"a\" 1}", RULE_JSON_SYNTAX },
	{ "{a:1}", RULE_JSON_SYNTAX },
	{ "{'a':1}", RULE_JSON_SYNTAX },
	{ "[1]]", RULE_JSON_SYNTAX },
	{ "[", RULE_JSON_SYNTAX },
	{ "{\"a\"", RULE_JSON_SYNTAX },
	{ "01", RULE_JSON_SYNTAX },
	{ "1.", RULE_JSON_SYNTAX },
	{ ".5", RULE_JSON_SYNTAX },
	{ "1e", RULE_JSON_SYNTAX },
	{ "+1", RULE_JSON_SYNTAX },
	{ "-", RULE_JSON_SYNTAX },
	{ "tru", RULE_JSON_SYNTAX },
	{ "nul", RULE_JSON_SYNTAX },
	{ "\"abc", RULE_JSON_SYNTAX },
	{ "\"a\\", RULE_JSON_SYNTAX },
	{ "\"\\x\"", RULE_JSON_SYNTAX },
	{ "\"\\u12g4\"", RULE_JSON_SYNTAX },
	{ "\"\\ud83d\"", RULE_JSON_SYNTAX },
	{ "\"\\ude00\"", RULE_JSON_SYNTAX },
	{ "\"\\ud83d\\u0041\"", RULE_JSON_SYNTAX },
	{ "\"a\nb\"", RULE_JSON_SYNTAX },
	{ "\"\x80\"", RULE_JSON_SYNTAX },
	{ "\"\xc0\xaf\"", RULE_JSON_SYNTAX },
	{ "\"\xed\xa0\x80\"", RULE_JSON_SYNTAX },
	{ "\"\xf4\x90\x80\x80\"", RULE_JSON_SYNTAX },
	{ "\xef\xbb\xbf{}", RULE_JSON_SYNTAX },
	{ "NaN", RULE_JSON_NON_FINITE },
	{ "[Infinity]", RULE_JSON_NON_FINITE },
	{ "{\"x\":-Infinity}", RULE_JSON_NON_FINITE },
	{ "{\"a\":1,\"a\":1}", RULE_JSON_DUPLICATE_KEY },
	{ "{\"a\":1,\"\\u0061\":1}", RULE_JSON_DUPLICATE_KEY },
	{ "[{\"b\":{\"x\":1,\"y\":2,\"x\":3}}]", RULE_JSON_DUPLICATE_KEY },
};

Test(reshard_reader, texts, .timeout = 10)
{
	static const struct json_limits lim = JSON_LIMITS;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		enum rule r = skip(texts[i].text, strlen(texts[i].text), &lim);
		cr_expect_eq(r, texts[i].rule, "%s: %s", texts[i].text, rule_name(r));
	}
	NO_LEAKS();
}

Test(reshard_reader, limits_are_kept, .timeout = 10)
{
	char deep[200], wide[2000] = "{";
	memset(deep, '[', sizeof(deep));
	cr_expect_eq(skip(deep, 200, &(struct json_limits){ 1000, 1000, 32 }),
		     RULE_LIMIT_DEPTH);
	cr_expect_eq(skip(deep, 200, &(struct json_limits){ 1000, 1000, 1000 }),
		     RULE_LIMIT_DEPTH);
	cr_expect_eq(skip("[1,2,3]", 7, &(struct json_limits){ 6, 1000, 32 }),
		     RULE_LIMIT_TEXT_BYTES);
	cr_expect_eq(skip("[1,2,3]", 7, &(struct json_limits){ 7, 3, 32 }), RULE_LIMIT_NODES);
	cr_expect_eq(skip("[1,2,3]", 7, &(struct json_limits){ 7, 4, 1 }), RULE_NONE);
	for (int i = 0; i < 65; i++)
		snprintf(wide + strlen(wide), sizeof(wide) - strlen(wide), "%s\"k%d\":1",
			 i ? "," : "", i);
	strcat(wide, "}");
	cr_expect_eq(skip(wide, strlen(wide), &(struct json_limits){ 4000, 1000, 32 }),
		     RULE_LIMIT_OBJECT_KEYS);
}

static enum rule number(const char *text, uint64_t *v)
{
	static const struct json_limits lim = JSON_LIMITS;
	struct arena mem = ARENA_INIT(1 << 20);
	struct reject why = { 0 };
	struct json_in r;
	bool ok = json_in_open(&r, BYTES_STR(text), &lim, &mem, &why) && json_in_u64(&r, v) &&
		  json_in_close(&r);
	cr_expect_eq(ok, why.rule == RULE_NONE);
	arena_fini(&mem);
	return why.rule;
}

Test(reshard_reader, integers_are_exact, .timeout = 10)
{
	static const struct {
		const char *text;
		enum rule rule;
		uint64_t v;
	} rows[] = {
		{ "0", RULE_NONE, 0 },
		{ "-0", RULE_NONE, 0 },
		{ " 7 ", RULE_NONE, 7 },
		{ "9007199254740993", RULE_NONE, 9007199254740993u },
		{ "999999999999999999", RULE_NONE, 999999999999999999u },
		{ "1000000000000000000", RULE_NONE, 1000000000000000000u },
		{ "18446744073709551615", RULE_NONE, UINT64_MAX },
		{ "18446744073709551616", RULE_JSON_INTEGER_RANGE, 0 },
		{ "99999999999999999999999", RULE_JSON_INTEGER_RANGE, 0 },
		{ "-1", RULE_JSON_INTEGER_RANGE, 0 },
		{ "1.0", RULE_JSON_INTEGER, 0 },
		{ "1e3", RULE_JSON_INTEGER, 0 },
		{ "\"1\"", RULE_JSON_INTEGER, 0 },
		{ "true", RULE_JSON_INTEGER, 0 },
		{ "null", RULE_JSON_INTEGER, 0 },
		{ "[1]", RULE_JSON_INTEGER, 0 },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		uint64_t v = 0;
		cr_expect_eq(number(rows[i].text, &v), rows[i].rule, "%s", rows[i].text);
		cr_expect_eq(v, rows[i].v, "%s", rows[i].text);
	}
	NO_LEAKS();
}

static struct text_out out;

Test(reshard_reader, writer_u128, .timeout = 10)
{
	text_init(&out, NULL, false);
	text_u128(&out, 0);
	text_lit(&out, " ");
	text_u128(&out, UINT64_MAX);
	text_lit(&out, " ");
	text_u128(&out, (unsigned __int128)UINT64_MAX + 1);
	text_lit(&out, " ");
	text_u128(&out, (unsigned __int128)1000000000000000000u * 1000000000000000000u);
	text_lit(&out, " ");
	text_u128(&out, ~(unsigned __int128)0);
	cr_expect_eq(strncmp(out.room,
			     "0 18446744073709551615 18446744073709551616 "
			     "1000000000000000000000000000000000000 "
			     "340282366920938463463374607431768211455",
			     out.n),
		     0, "%.*s", (int)out.n, out.room);
}

/* ---- boxes ---- */

static uint64_t rng = 88172645463325252u;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (rng >> 20) % n;
}

#define HOSTILE 40000

/* Thin slabs through all of a 5-D array, each long in all dimensions but one: every plane is crossed
 * by four fifths of them. */
static const uint64_t **hostile(uint64_t (*boxes)[10])
{
	const uint64_t **list = malloc(HOSTILE * sizeof(*list));
	for (uint32_t i = 0; i < HOSTILE; i++) {
		uint32_t thin = i % 5;
		for (uint32_t d = 0; d < 5; d++) {
			boxes[i][d] = d == thin ? rnd(1 << 30) : 0;
			boxes[i][5 + d] = d == thin ? 1 : 1u << 30;
		}
		list[i] = boxes[i];
	}
	return list;
}

Test(reshard_boxes, hostile_5d_ends_at_the_budget, .timeout = 60)
{
	uint64_t(*boxes)[10] = malloc(HOSTILE * sizeof(*boxes));
	const uint64_t **list = hostile(boxes);
	struct box_join j = { 0 };
	struct box_work w = { .left = 5000000 };
	/* all pairs of two sets that hardly ever end: the join gives up */
	cr_expect(!box_join(&j, list, HOSTILE, list, HOSTILE, 5, &w));
	cr_expect(w.spent && !w.cancelled && !w.no_memory);
	cr_expect_lt(j.cap_idx, (size_t)64 * HOSTILE, "scratch stays linear");
	box_join_fini(&j);
	free(list);
	free(boxes);
	NO_LEAKS();
}

Test(reshard_boxes, cancelled_at_once, .timeout = 60)
{
	uint64_t(*boxes)[10] = malloc(HOSTILE * sizeof(*boxes));
	const uint64_t **list = hostile(boxes);
	atomic_bool stop = true;
	struct box_join j = { 0 };
	struct box_work w = { .left = 1ull << 40, .look = 1ull << 40, .cancel = &stop };
	cr_expect(!box_join(&j, list, HOSTILE, list, HOSTILE, 5, &w));
	cr_expect(w.cancelled && !w.spent);
	cr_expect_gt(w.left, (1ull << 40) - 1000000);
	box_join_fini(&j);
	free(list);
	free(boxes);
	NO_LEAKS();
}

/* Random boxes: the join finds what comparing all finds, each pair once. */
Test(reshard_boxes, join_finds_all_pairs, .timeout = 60)
{
	enum { N = 300 };
	uint64_t boxes[2 * N][10];
	const uint64_t *a[N], *b[N];
	struct box_join j = { 0 };
	static uint8_t seen[N][N];
	for (int round = 0; round < 60; round++) {
		uint32_t nd = 1 + (uint32_t)rnd(5), met = 0;
		uint64_t span = 4 + rnd(60);
		struct box_work w = { .left = BOX_WORK_DEFAULT };
		for (uint32_t i = 0; i < 2 * N; i++)
			for (uint32_t d = 0; d < nd; d++) {
				boxes[i][d] = rnd(span);
				boxes[i][nd + d] = 1 + rnd(MIN_OF(span - boxes[i][d], 8));
			}
		for (uint32_t i = 0; i < N; i++) {
			a[i] = boxes[i];
			b[i] = boxes[N + i];
		}
		cr_assert(box_join(&j, a, N, b, N, nd, &w));
		memset(seen, 0, sizeof(seen));
		for (size_t i = 0; i < j.n_pairs; i++)
			cr_expect_eq(seen[j.pairs[i].a][j.pairs[i].b]++, 0, "a pair twice");
		for (uint32_t i = 0; i < N; i++)
			for (uint32_t k = 0; k < N; k++) {
				met += box_meet(a[i], b[k], nd);
				cr_expect_eq(seen[i][k], box_meet(a[i], b[k], nd));
			}
		cr_expect_eq(met, j.n_pairs);
	}
	box_join_fini(&j);
	NO_LEAKS();
}

/* A 5-D grid tiles; with one box moved it does not. Few comparisons. */
Test(reshard_boxes, grids_are_cheap, .timeout = 60)
{
	enum { SIDE = 8, N = SIDE * SIDE * SIDE * SIDE * SIDE };
	static uint64_t boxes[N][10];
	static const uint64_t *list[N];
	const uint64_t shape[5] = { 3 * SIDE, 3 * SIDE, 3 * SIDE, 3 * SIDE, 3 * SIDE };
	struct box_join j = { 0 };
	struct box_work w = { .left = (uint64_t)N * 200 };
	bool whole = false;
	for (uint32_t i = 0; i < N; i++) {
		uint32_t x = i;
		for (uint32_t d = 0; d < 5; d++, x /= SIDE) {
			boxes[i][d] = 3 * (x % SIDE);
			boxes[i][5 + d] = 3;
		}
		list[(i * 7919ull) % N] = boxes[i];
	}
	cr_assert(box_tile(&j, list, N, shape, 5, &w, &whole));
	cr_expect(whole);
	boxes[N / 2][4] -= 1;
	cr_assert(box_tile(&j, list, N, shape, 5, &w, &whole));
	cr_expect(!whole);
	box_join_fini(&j);
	NO_LEAKS();
}
