/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One value at a time: what each kind takes, what it refuses, and in which words.
 */
#include "fill.h"
#include "kinds.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

/* Criterion copies rows between processes: no pointers in them. */
struct row {
	char msg[12];
	char hex[64];
	char json[64]; /* what it decodes to; empty: refused */
	char why[88];
};

static const struct wire_msg *find(const char *name)
{
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		if (strcmp(t->name, name) == 0)
			return t;
	cr_assert_fail("no message %s", name);
	return NULL;
}

static size_t unhex(const char *hex, uint8_t *out)
{
	size_t n = 0;
	unsigned byte;
	for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
		out[n++] = (uint8_t)byte;
	return n;
}

/* clang-format off */
static const struct row takes[] = {
	{ "ONE_U8", "9100", "{\"v\":0}", "" },
	{ "ONE_U8", "917f", "{\"v\":127}", "" },
	{ "ONE_U8", "91cc80", "{\"v\":128}", "" },
	{ "ONE_U8", "91ccff", "{\"v\":255}", "" },
	{ "ONE_U8", "91cd00ff", "{\"v\":255}", "" },
	{ "ONE_U8", "91ce000000ff", "{\"v\":255}", "" },
	{ "ONE_U8", "91cf00000000000000ff", "{\"v\":255}", "" },
	{ "ONE_U8", "91d07f", "{\"v\":127}", "" },
	{ "ONE_U8", "91d100ff", "{\"v\":255}", "" },
	{ "ONE_U8", "91d200000005", "{\"v\":5}", "" },
	{ "ONE_U8", "91d30000000000000005", "{\"v\":5}", "" },
	{ "ONE_U16", "91cdffff", "{\"v\":65535}", "" },
	{ "ONE_U32", "91ceffffffff", "{\"v\":4294967295}", "" },
	{ "ONE_U64", "91cfffffffffffffffff", "{\"v\":18446744073709551615}", "" },
	{ "ONE_I64", "91ff", "{\"v\":-1}", "" },
	{ "ONE_I64", "91e0", "{\"v\":-32}", "" },
	{ "ONE_I64", "91d080", "{\"v\":-128}", "" },
	{ "ONE_I64", "91d18000", "{\"v\":-32768}", "" },
	{ "ONE_I64", "91d280000000", "{\"v\":-2147483648}", "" },
	{ "ONE_I64", "91d38000000000000000", "{\"v\":-9223372036854775808}", "" },
	{ "ONE_I64", "91cf7fffffffffffffff", "{\"v\":9223372036854775807}", "" },
	{ "ONE_I64", "91d3ffffffffffffffff", "{\"v\":-1}", "" },
	{ "ONE_F64", "91cb3ff8000000000000", "{\"v\":1.5}", "" },
	{ "ONE_F64", "91ca3fc00000", "{\"v\":1.5}", "" },
	{ "ONE_BOOL", "91c2", "{\"v\":false}", "" },
	{ "ONE_BOOL", "91c3", "{\"v\":true}", "" },
	{ "ONE_STR", "91a0", "{\"v\":\"\"}", "" },
	{ "ONE_STR", "91a56162636465", "{\"v\":\"abcde\"}", "" },
	{ "ONE_STR", "91d9026162", "{\"v\":\"ab\"}", "" },
	{ "ONE_STR", "91da00026162", "{\"v\":\"ab\"}", "" },
	{ "ONE_STR", "91db000000026162", "{\"v\":\"ab\"}", "" },
	{ "ONE_STR", "91a3220aff", "{\"v\":\"\\\"\\u000a\\u00ff\"}", "" },
	{ "ONE_BIN", "91c400", "{\"v\":\"\"}", "" },
	{ "ONE_BIN", "91c4020aff", "{\"v\":\"0aff\"}", "" },
	{ "ONE_BIN", "91c500020aff", "{\"v\":\"0aff\"}", "" },
	{ "ONE_BIN", "91c6000000020aff", "{\"v\":\"0aff\"}", "" },
	{ "ONE_ID", "91c41000112233445566778899aabbccddeeff",
	  "{\"v\":\"00112233445566778899aabbccddeeff\"}", "" },
	{ "ONE_U64S", "9190", "{\"v\":[]}", "" },
	{ "ONE_U64S", "91dc000201cd0100", "{\"v\":[1,256]}", "" },
	{ "ONE_U64S", "91dd00000001ccff", "{\"v\":[255]}", "" },
	{ "ONE_STRS", "9192a161d90162", "{\"v\":[\"a\",\"b\"]}", "" },
	{ "ONE_BINS", "9191c40161", "{\"v\":[\"61\"]}", "" },
	{ "ONE_LIST", "91929207c401aa9205c400", "{\"v\":[{\"id\":7,\"key\":\"aa\"},{\"id\":5,\"key\":\"\"}]}", "" },
	{ "ONE_LIST", "919190", "{\"v\":[{\"id\":0,\"key\":\"\"}]}", "" },
	{ "ONE_LIST", "91919109", "{\"v\":[{\"id\":9,\"key\":\"\"}]}", "" },
	{ "ONE_LIST", "919291039105", "{\"v\":[{\"id\":3,\"key\":\"\"},{\"id\":5,\"key\":\"\"}]}", "" },
	{ "ONE_OPT", "91c0", "{\"v\":null}", "" },
	{ "ONE_OPT", "919103", "{\"v\":{\"id\":3,\"key\":\"\"}}", "" },
	/* C1: nothing, less, more */
	{ "ONE_U8", "", "{\"v\":0}", "" },
	{ "ONE_U8", "90", "{\"v\":0}", "" },
	{ "ONE_OPT", "90", "{\"v\":null}", "" },
	{ "ONE_STR", "90", "{\"v\":\"\"}", "" },
	{ "ONE_U8", "9205c0", "{\"v\":5}", "" },
	{ "ONE_U8", "960581a16101c403616263d60102030405920102ca00000000", "{\"v\":5}", "" },
	{ "ONE_U8", "dc000205c0", "{\"v\":5}", "" },
	{ "ONE_U8", "dd0000000105", "{\"v\":5}", "" },
};

static const struct row refuses[] = {
	{ "ONE_U8", "91cd0100", "", "ONE_U8.v: 256, at most 255 (at byte 1)" },
	{ "ONE_U8", "91ff", "", "ONE_U8.v: -1, must not be negative (at byte 1)" },
	{ "ONE_U8", "91c3", "", "ONE_U8.v: bool where u8 belongs (at byte 1)" },
	{ "ONE_U8", "91c0", "", "ONE_U8.v: nil where u8 belongs (at byte 1)" },
	{ "ONE_U8", "91cb3ff0000000000000", "", "ONE_U8.v: float where u8 belongs (at byte 1)" },
	{ "ONE_U8", "91a131", "", "ONE_U8.v: str where u8 belongs (at byte 1)" },
	{ "ONE_U8", "91c1", "", "ONE_U8.v: the byte 0xc1 (at byte 1)" },
	{ "ONE_U8", "91cd01", "", "ONE_U8.v: the message ends here (at byte 1)" },
	{ "ONE_U8", "91", "", "ONE_U8: claims 1 fields, 0 bytes are left (at byte 0)" },
	{ "ONE_U8", "ddffffffff05", "", "ONE_U8: claims 4294967295 fields, 1 bytes are left (at byte 0)" },
	{ "ONE_U8", "05", "", "ONE_U8: int where its array belongs (at byte 0)" },
	{ "ONE_U8", "8105", "", "ONE_U8: map where its array belongs (at byte 0)" },
	{ "ONE_U8", "c1", "", "ONE_U8: the byte 0xc1 where its array belongs (at byte 0)" },
	{ "ONE_U8", "dc00", "", "ONE_U8: cut off where its array belongs (at byte 0)" },
	{ "ONE_U8", "910505", "", "ONE_U8: 1 bytes follow it" },
	{ "ONE_U8", "9005", "", "ONE_U8: 1 bytes follow it" },
	{ "ONE_U16", "91ce00010000", "", "ONE_U16.v: 65536, at most 65535 (at byte 1)" },
	{ "ONE_U32", "91cf0000000100000000", "", "ONE_U32.v: 4294967296, at most 4294967295 (at byte 1)" },
	{ "ONE_U64", "91d3ffffffffffffffff", "", "ONE_U64.v: -1, must not be negative (at byte 1)" },
	{ "ONE_I64", "91cf8000000000000000", "", "ONE_I64.v: 9223372036854775808, at most 9223372036854775807 (at byte 1)" },
	{ "ONE_I64", "91a0", "", "ONE_I64.v: str where i64 belongs (at byte 1)" },
	{ "ONE_F64", "9101", "", "ONE_F64.v: int where f64 belongs (at byte 1)" },
	{ "ONE_F64", "91cb3ff00000000000", "", "ONE_F64.v: the message ends here (at byte 1)" },
	{ "ONE_BOOL", "9101", "", "ONE_BOOL.v: int where bool belongs (at byte 1)" },
	{ "ONE_STR", "91a6616263646566", "", "ONE_STR.v: 6 bytes, at most 5 (at byte 1)" },
	{ "ONE_STR", "91a56162", "", "ONE_STR.v: claims 5 bytes, 2 are left (at byte 1)" },
	{ "ONE_STR", "91dbffffffff", "", "ONE_STR.v: 4294967295 bytes, at most 5 (at byte 1)" },
	{ "ONE_STR", "91c40161", "", "ONE_STR.v: bin where str belongs (at byte 1)" },
	{ "ONE_BIN", "91a161", "", "ONE_BIN.v: str where bin belongs (at byte 1)" },
	{ "ONE_BIN", "91c406616263646566", "", "ONE_BIN.v: 6 bytes, at most 5 (at byte 1)" },
	{ "ONE_BIN", "91c4", "", "ONE_BIN.v: the message ends here (at byte 1)" },
	{ "ONE_BIN", "91c7010061", "", "ONE_BIN.v: ext where bin belongs (at byte 1)" },
	{ "ONE_ID", "91c40f000102030405060708090a0b0c0d0e", "", "ONE_ID.v: 15 bytes, must be 16 (at byte 1)" },
	{ "ONE_ID", "91c411000102030405060708090a0b0c0d0e0f10", "", "ONE_ID.v: 17 bytes, must be 16 (at byte 1)" },
	{ "ONE_ID", "91c4100001", "", "ONE_ID.v: claims 16 bytes, 2 are left (at byte 1)" },
	{ "ONE_U64S", "9101", "", "ONE_U64S.v: int where list of u64 belongs (at byte 1)" },
	{ "ONE_U64S", "919401020304", "", "ONE_U64S.v: 4 items, at most 3 (at byte 1)" },
	{ "ONE_U64S", "91930102", "", "ONE_U64S.v: claims 3 items, 2 bytes are left (at byte 1)" },
	{ "ONE_U64S", "91ddffffffff", "", "ONE_U64S.v: claims 4294967295 items, 0 bytes are left (at byte 1)" },
	{ "ONE_U64S", "919201ff", "", "ONE_U64S.v[1]: -1, must not be negative (at byte 3)" },
	{ "ONE_U64S", "919201c2", "", "ONE_U64S.v[1]: bool where u64 belongs (at byte 3)" },
	{ "ONE_STRS", "9192a161c40161", "", "ONE_STRS.v[1]: bin where str belongs (at byte 4)" },
	{ "ONE_STRS", "9191a6616263646566", "", "ONE_STRS.v[0]: 6 bytes, at most 5 (at byte 2)" },
	{ "ONE_BINS", "9191c405616263", "", "ONE_BINS.v[0]: claims 5 bytes, 3 are left (at byte 2)" },
	{ "ONE_U8", "990581a16101c403616263d6010203040591929394c0ca00000000", "", "ONE_U8: a field of a newer version, behind byte 2, is malformed" },
	{ "ONE_LIST", "91929103910503", "", "ONE_LIST: 1 bytes follow it" },
	{ "ONE_LIST", "91929103c0", "", "LEAF: nil where its array belongs (at byte 4)" },
	{ "ONE_LIST", "919291039203c3", "", "LEAF.key: bool where bin belongs (at byte 6)" },
	{ "ONE_LIST", "919490909090", "", "ONE_LIST.v: 4 items, at most 3 (at byte 1)" },
	{ "ONE_OPT", "9103", "", "ONE_OPT.v: int where array or nil belongs (at byte 1)" },
	{ "ONE_OPT", "9191c3", "", "LEAF.id: bool where u32 belongs (at byte 2)" },
};
/* clang-format on */

static void check(const struct row *r)
{
	const struct wire_msg *t = find(r->msg);
	max_align_t m[8];
	uint8_t in[64];
	struct why why = { 0 };
	struct arena a = ARENA_INIT(1 << 16);
	struct buf json = BUF_INIT(4096);
	struct dec d = DEC_INIT(BYTES(in, unhex(r->hex, in)), &a, &why);
	enum err e = t->dec(&d, m);
	if (r->json[0]) {
		cr_expect_eq(e, ERR_NONE, "%s %s: %s", r->msg, r->hex, why.text);
		if (e == ERR_NONE)
			cr_expect_str_eq(json_of(t, m, &json), r->json);
	} else {
		cr_expect_eq(e, ERR_BAD_MESSAGE, "%s %s was taken", r->msg, r->hex);
		cr_expect_str_eq(why.text, r->why);
	}
	arena_fini(&a);
	buf_fini(&json);
}

Test(wire, takes, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(takes); i++)
		check(&takes[i]);
	NO_LEAKS();
}

Test(wire, refuses, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(refuses); i++)
		check(&refuses[i]);
	NO_LEAKS();
}

/* Without a why the error is the same. */
Test(wire, a_reason_is_optional, .timeout = 10)
{
	struct msg_one_u8 m;
	uint8_t in[] = { 0x91, 0xc3 };
	struct dec d = DEC_INIT(BYTES(in, sizeof(in)), NULL, NULL);
	cr_assert_eq(dec_one_u8(&d, &m), ERR_BAD_MESSAGE);
	NO_LEAKS();
}

Test(wire, lists_without_an_arena_are_refused, .timeout = 10)
{
	struct msg_one_u64s m;
	struct why why = { 0 };
	uint8_t in[] = { 0x91, 0x91, 1 };
	struct dec d = DEC_INIT(BYTES(in, sizeof(in)), NULL, &why);
	cr_assert_eq(dec_one_u64s(&d, &m), ERR_TOO_LARGE);
	cr_assert_str_eq(why.text, "ONE_U64S.v: its items need more than the 0 bytes allowed");
	NO_LEAKS();
}

/* ---- encoding ---- */

Test(wire, the_encoder_keeps_a_rows_limit, .timeout = 10)
{
	struct buf b = BUF_INIT(4096);
	struct why why = { 0 };
	struct msg_one_str m = { .v = BYTES("abcdef", 6) };
	buf_put(&b, "before", 6);
	enc_one_str(&b, &m);
	cr_assert_eq(buf_err(&b), ERR_TOO_LARGE);
	cr_assert_eq(b.n, 6, "what was there stays");
	cr_assert_eq(wire_explain(wire_msg_one_str(), &m, buf_err(&b), &why), ERR_TOO_LARGE);
	cr_assert_str_eq(why.text, "ONE_STR.v: 6 bytes, at most 5");
	enc_one_u8(&b, &(struct msg_one_u8){ 1 });
	cr_assert_eq(b.n, 6, "a latched error stays");
	buf_fini(&b);
	NO_LEAKS();
}

/* Every limit below the size refuses, the size itself does not: at each field's border. */
Test(wire, the_encoder_keeps_the_buffers_limit, .timeout = 10)
{
	struct rng rng = { 5 };
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_kinds m;
	struct why why = { 0 };
	struct buf whole = BUF_INIT(1 << 20);
	fill_random(wire_msg_kinds(), &m, &rng, &a, 30, 3);
	enc_kinds(&whole, &m);
	cr_assert_eq(buf_err(&whole), ERR_NONE);
	for (size_t limit = 0; limit <= whole.n; limit++) {
		struct buf b = BUF_INIT(limit);
		enc_kinds(&b, &m);
		cr_assert_eq(buf_err(&b), limit < whole.n ? ERR_TOO_LARGE : ERR_NONE);
		cr_assert_eq(b.n, limit < whole.n ? 0 : limit);
		buf_fini(&b);
	}
	wire_explain(wire_msg_kinds(), &m, ERR_TOO_LARGE, &why);
	cr_assert_str_eq(why.text, "KINDS: larger than its buffer may become");
	buf_fini(&whole);
	arena_fini(&a);
	NO_LEAKS();
}

/* A buffer without a limit worth the name must not overflow the arithmetic. */
Test(wire, the_largest_limit_is_no_trap, .timeout = 10)
{
	struct buf b = BUF_INIT(SIZE_MAX);
	enc_one_u8(&b, &(struct msg_one_u8){ 200 });
	cr_assert_eq(buf_err(&b), ERR_NONE);
	cr_assert_eq(b.n, 3);
	buf_fini(&b);
	NO_LEAKS();
}

struct over {
	const struct wire_msg *t;
	const void *m;
	const char *why;
};

Test(wire, what_did_not_fit_is_named, .timeout = 10)
{
	static const uint64_t nums[4];
	static const uint8_t run[2000];
	struct bytes runs[4] = { { 0 }, { run, 6 } };
	struct msg_leaf leaves[4] = { { .id = 1 }, { .key = { run, 1025 } } };
	struct msg_one_opt opt = { &leaves[1] };
	struct msg_one_list four = { { leaves, 4 } }, two = { { leaves, 2 } };
	const struct over rows[] = {
		{ wire_msg_one_bin(), &(struct msg_one_bin){ { run, 6 } },
		  "ONE_BIN.v: 6 bytes, at most 5" },
		{ wire_msg_one_u64s(), &(struct msg_one_u64s){ { nums, 4 } },
		  "ONE_U64S.v: 4 items, at most 3" },
		{ wire_msg_one_strs(), &(struct msg_one_strs){ { runs, 4 } },
		  "ONE_STRS.v: 4 items, at most 3" },
		{ wire_msg_one_strs(), &(struct msg_one_strs){ { runs, 2 } },
		  "ONE_STRS.v: 6 bytes in an item, at most 5" },
		{ wire_msg_one_bins(), &(struct msg_one_bins){ { runs, 4 } },
		  "ONE_BINS.v: 4 items, at most 3" },
		{ wire_msg_one_bins(), &(struct msg_one_bins){ { runs, 2 } },
		  "ONE_BINS.v: 6 bytes in an item, at most 5" },
		{ wire_msg_one_list(), &four, "ONE_LIST.v: 4 items, at most 3" },
		{ wire_msg_one_list(), &two, "LEAF.key: 1025 bytes, at most 1024" },
		{ wire_msg_one_opt(), &opt, "LEAF.key: 1025 bytes, at most 1024" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct buf b = BUF_INIT(1 << 16);
		struct why why = { 0 };
		rows[i].t->enc(&b, rows[i].m, WIRE_VERSION);
		cr_assert_eq(buf_err(&b), ERR_TOO_LARGE, "%s", rows[i].why);
		wire_explain(rows[i].t, rows[i].m, buf_err(&b), &why);
		cr_assert_str_eq(why.text, rows[i].why);
		buf_fini(&b);
	}
	NO_LEAKS();
}

static uint64_t bits(double v)
{
	uint64_t n;
	memcpy(&n, &v, 8);
	return n;
}

/* Floats that JSON and arithmetic trip over keep their bits. */
Test(wire, floats_keep_their_bits, .timeout = 10)
{
	const double odd[] = {
		0.0, -0.0, __builtin_inf(), -__builtin_inf(), __builtin_nan(""), 5e-324
	};
	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		struct msg_one_f64 m = { odd[i] }, got;
		struct buf b = BUF_INIT(64), json = BUF_INIT(64);
		enc_one_f64(&b, &m);
		struct dec d = DEC_INIT(buf_bytes(&b), NULL, NULL);
		cr_assert_eq(dec_one_f64(&d, &got), ERR_NONE);
		cr_assert_eq(bits(got.v), bits(m.v));
		if (!__builtin_isfinite(odd[i]))
			cr_assert_str_eq(json_of(wire_msg_one_f64(), &m, &json),
					 "{\"v\":null}");
		buf_fini(&b);
		buf_fini(&json);
	}
	NO_LEAKS();
}
