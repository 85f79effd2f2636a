/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_scan: what stands between foreign bytes and msgpack-c.
 */
#include "fill.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <msgpack.h>
#include <string.h>

struct row {
	const char *bytes;
	size_t n;
	enum err err;
	const char *why;
};

#define BYTES_OF(s) s, sizeof(s) - 1

Test(scan, tells_what_is_wrong, .timeout = 10)
{
	const struct row rows[] = {
		{ BYTES_OF("\xc0"), ERR_NONE, "" },
		{ BYTES_OF("\x93\x01\xa1x\x81\x01\x02"), ERR_NONE, "" },
		{ BYTES_OF("\xc7\x02\x05hi"), ERR_NONE, "" },
		{ BYTES_OF("\xd8\x05"
			   "0123456789abcdef"),
		  ERR_NONE, "" },
		{ BYTES_OF("\xca\x01\x02\x03\x04"), ERR_NONE, "" },
		{ BYTES_OF(""), ERR_BAD_MESSAGE,
		  "at byte 0 of 0: the bytes end inside a value" },
		{ BYTES_OF("\xc1"), ERR_BAD_MESSAGE, "at byte 0 of 1: 0xc1 begins no value" },
		{ BYTES_OF("\xc0\xc0"), ERR_BAD_MESSAGE, "1 bytes follow the value" },
		{ BYTES_OF("\x92\x01"), ERR_BAD_MESSAGE,
		  "at byte 1 of 2: it claims more items than bytes are left" },
		{ BYTES_OF("\xdd\xff\xff\xff\xff\xc0"), ERR_BAD_MESSAGE,
		  "at byte 5 of 6: it claims more items than bytes are left" },
		{ BYTES_OF("\xdf\xff\xff\xff\xff\xc0"), ERR_BAD_MESSAGE,
		  "at byte 5 of 6: it claims more items than bytes are left" },
		{ BYTES_OF("\x81\x01"), ERR_BAD_MESSAGE,
		  "at byte 1 of 2: it claims more items than bytes are left" },
		{ BYTES_OF("\xc6\xff\xff\xff\xff"), ERR_BAD_MESSAGE,
		  "at byte 5 of 5: it claims more bytes than are left" },
		{ BYTES_OF("\xa3xy"), ERR_BAD_MESSAGE,
		  "at byte 1 of 3: it claims more bytes than are left" },
		{ BYTES_OF("\xcf\x01"), ERR_BAD_MESSAGE,
		  "at byte 0 of 2: the bytes end inside a value" },
		{ BYTES_OF("\xd6\x01\x02"), ERR_BAD_MESSAGE,
		  "at byte 2 of 3: it claims more bytes than are left" },
		{ BYTES_OF("\x9f\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"),
		  ERR_TOO_LARGE, "at byte 11 of 16: there are too many values" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct why why = { 0 };
		enum err e = wire_scan(BYTES(rows[i].bytes, rows[i].n), 11, &why);
		cr_expect_eq(e, rows[i].err, "row %zu: %s", i, why.text);
		cr_expect_str_eq(why.text, rows[i].why);
	}
	NO_LEAKS();
}

static size_t nest(uint8_t *out, size_t depth)
{
	memset(out, 0x91, depth);
	out[depth] = 0xc0;
	return depth + 1;
}

Test(scan, depth_is_limited, .timeout = 10)
{
	static uint8_t in[1 << 20];
	struct why why = { 0 };
	cr_assert_eq(wire_scan(BYTES(in, nest(in, WIRE_DEPTH_MAX)), 100, NULL), ERR_NONE);
	cr_assert_eq(wire_scan(BYTES(in, nest(in, WIRE_DEPTH_MAX + 1)), 100, &why),
		     ERR_BAD_MESSAGE);
	cr_assert_str_eq(why.text, "at byte 17 of 18: it is nested too deep");
	cr_assert_eq(wire_scan(BYTES(in, nest(in, sizeof(in) - 1)), SIZE_MAX, NULL),
		     ERR_BAD_MESSAGE);
	NO_LEAKS();
}

/* Random bytes that favour heads: whatever passes, msgpack-c takes whole. */
Test(scan, what_passes_msgpack_c_takes, .timeout = 20)
{
	struct rng rng = { 6 };
	size_t passed = 0;
	for (int round = 0; round < 200000; round++) {
		uint8_t in[24];
		size_t n = 1 + rng_below(&rng, sizeof(in)), off = 0;
		for (size_t i = 0; i < n; i++)
			in[i] = (uint8_t)(rng_below(&rng, 2) ? 0x80 + rng_below(&rng, 0x80)
							     : rng_below(&rng, 6));
		if (wire_scan(BYTES(in, n), 100, NULL) != ERR_NONE)
			continue;
		msgpack_zone zone;
		msgpack_object o;
		cr_assert(msgpack_zone_init(&zone, 1024));
		cr_assert_eq(msgpack_unpack((char *)in, n, &off, &zone, &o),
			     MSGPACK_UNPACK_SUCCESS);
		cr_assert_eq(off, n);
		msgpack_zone_destroy(&zone);
		passed++;
	}
	cr_assert_gt(passed, 1000, "%zu passed: the bytes are too random to say anything",
		     passed);
	NO_LEAKS();
}
