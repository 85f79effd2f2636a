/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer: shape, escapes, broken UTF-8, misuse. */
#include "base/json_out.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/leak.h"

static char *text_of(struct buf *b)
{
	buf_put(b, "", 1);
	cr_assert_eq(buf_err(b), ERR_NONE);
	return (char *)b->p;
}

Test(json, shape, .timeout = 5)
{
	struct buf b = BUF_INIT(4096);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_bool(&j, "ready", false);
	json_key(&j, "reasons");
	json_arr(&j);
	json_str(&j, "a");
	json_u64(&j, UINT64_MAX);
	json_i64(&j, INT64_MIN);
	json_nil(&j);
	json_arr(&j);
	json_end(&j);
	json_obj(&j);
	json_end(&j);
	json_end(&j);
	json_kv_u64(&j, "n", 0);
	json_kv_str(&j, "s", "");
	cr_expect(!json_whole(&j));
	json_end(&j);
	cr_expect(json_whole(&j));
	cr_expect_str_eq(text_of(&b),
			 "{\"ready\":false,\"reasons\":[\"a\",18446744073709551615,"
			 "-9223372036854775808,null,[],{}],\"n\":0,\"s\":\"\"}");
	buf_fini(&b);
	NO_LEAKS();
}

Test(json, one_value_is_a_document, .timeout = 5)
{
	struct buf b = BUF_INIT(100);
	struct json j = JSON_OUT(&b);
	json_double(&j, 0.5);
	cr_expect_str_eq(text_of(&b), "0.5");
	buf_fini(&b);
}

Test(json, doubles, .timeout = 5)
{
	struct buf b = BUF_INIT(1000);
	struct json j = JSON_OUT(&b);
	json_arr(&j);
	json_double(&j, 1);
	json_double(&j, -2.25);
	json_double(&j, 1e21);
	json_double(&j, NAN);
	json_double(&j, INFINITY);
	json_end(&j);
	cr_expect_str_eq(text_of(&b), "[1,-2.25,1e+21,null,null]");
	buf_fini(&b);
}

static const struct {
	const char *in;
	size_t n;
	const char *out;
} strings[] = {
	{ "plain", 5, "plain" },
	{ "\"\\/", 3, "\\\"\\\\/" },
	{ "\b\f\n\r\t", 5, "\\b\\f\\n\\r\\t" },
	{ "\0\x01\x1f\x7f", 4, "\\u0000\\u0001\\u001f\\u007f" },
	{ "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8d\x8a", 11,
	  "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8d\x8a" },
	{ "\xc3", 1, "\\ufffd" }, /* cut */
	{ "\xc3"
	  "a",
	  2,
	  "\\ufffd"
	  "a" },
	{ "\xc0\x80", 2, "\\ufffd\\ufffd" }, /* overlong */
	{ "\xe0\x80\x80", 3, "\\ufffd\\ufffd\\ufffd" },
	{ "\xed\xa0\x80", 3, "\\ufffd\\ufffd\\ufffd" },		   /* surrogate */
	{ "\xf4\x90\x80\x80", 4, "\\ufffd\\ufffd\\ufffd\\ufffd" }, /* above U+10FFFF */
	{ "\xf4\x8f\xbf\xbf", 4, "\xf4\x8f\xbf\xbf" },
	{ "\xff\x80", 2, "\\ufffd\\ufffd" },
};

Test(json, strings, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(strings); i++) {
		struct buf b = BUF_INIT(1000);
		struct json j = JSON_OUT(&b);
		char want[200];
		json_bytes(&j, BYTES(strings[i].in, strings[i].n));
		snprintf(want, sizeof(want), "\"%s\"", strings[i].out);
		cr_expect_str_eq(text_of(&b), want, "%zu", i);
		buf_fini(&b);
	}
	NO_LEAKS();
}

Test(json, full_buffer_latches, .timeout = 5)
{
	struct buf b = BUF_INIT(10);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_str(&j, "key", "a long value");
	json_end(&j);
	cr_expect_eq(buf_err(&b), ERR_TOO_LARGE);
	buf_fini(&b);
}

Test(json, value_without_key_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct buf b = BUF_INIT(100);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_u64(&j, 1);
}

Test(json, key_in_array_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct buf b = BUF_INIT(100);
	struct json j = JSON_OUT(&b);
	json_arr(&j);
	json_key(&j, "k");
}

Test(json, too_deep_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct buf b = BUF_INIT(100);
	struct json j = JSON_OUT(&b);
	for (int i = 0; i <= JSON_DEPTH_MAX; i++)
		json_arr(&j);
}

/* Any bytes at all make a text that another reader takes, and plain text comes back as it was. */
Test(json, random_bytes_are_always_json, .timeout = 20)
{
	uint64_t x = 7;
	for (int round = 0; round < 5000; round++) {
		uint8_t in[40];
		size_t n = (size_t)(round % 41);
		bool ascii = round % 3 == 0;
		for (size_t i = 0; i < n; i++) {
			x = x * 6364136223846793005ull + 1442695040888963407ull;
			in[i] = ascii ? (uint8_t)(1 + (x >> 56) % 126) : (uint8_t)(x >> 56);
		}
		struct buf b = BUF_INIT(1000);
		struct json j = JSON_OUT(&b);
		json_arr(&j);
		json_bytes(&j, BYTES(in, n));
		json_end(&j);
		cr_assert_eq(buf_err(&b), ERR_NONE);
		json_error_t bad;
		json_t *got = json_loadb((const char *)b.p, b.n, JSON_ALLOW_NUL, &bad);
		cr_assert_not_null(got, "round %d: %s in %.*s", round, bad.text, (int)b.n, b.p);
		if (ascii) {
			json_t *s = json_array_get(got, 0);
			cr_assert_eq(json_string_length(s), n);
			cr_assert_eq(n ? memcmp(json_string_value(s), in, n) : 0, 0);
		}
		json_decref(got);
		buf_fini(&b);
	}
	NO_LEAKS();
}
