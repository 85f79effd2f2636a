/* SPDX-License-Identifier: Apache-2.0 */
/* Headers and the meta of a GET: there and back, and what is refused. */
#include "xfer/frame.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/leak.h"

TestSuite(frame, .timeout = 10);

static struct xf_head some(void)
{
	struct xf_head h = { .op = XF_DATA,
			     .flags = XF_MAC_DATA,
			     .request = 0x01020304,
			     .data_bytes = 4097,
			     .status = 9,
			     .seq = 0x1122334455667788,
			     .offset = 0x8877665544332211,
			     .sum = 0xfedcba9876543210 };
	memset(h.tag, 0xa5, sizeof(h.tag));
	return h;
}

Test(frame, a_header_there_and_back)
{
	uint8_t p[XF_HEADER], q[XF_HEADER];
	struct xf_head h = some(), back;
	xf_put(p, &h);
	cr_assert_eq(xf_get(p, &back, NULL), ERR_NONE);
	xf_put(q,
	       &back); /* each field is on the wire; what lies between them in memory is nobody's */
	cr_assert_eq(memcmp(p, q, sizeof(p)), 0);
	cr_assert_eq(back.request, h.request);
	cr_assert_eq(back.data_bytes, h.data_bytes);
	cr_assert_eq(back.status, h.status);
	cr_assert_eq(back.seq, h.seq);
	cr_assert_eq(back.offset, h.offset);
	cr_assert_eq(back.sum, h.sum);
	NO_LEAKS();
}

/* The layout is the wire: other releases read it. */
Test(frame, every_field_has_its_place)
{
	uint8_t p[XF_HEADER];
	struct xf_head h = some();
	xf_put(p, &h);
	cr_expect_eq(memcmp(p, "pmld\x01\x08\x01\x00\x04\x03\x02\x01", 12), 0);
	cr_expect_eq(memcmp(p + 16, "\x88\x77\x66\x55\x44\x33\x22\x11", 8), 0);
	cr_expect_eq(memcmp(p + 24, "\x11\x22\x33\x44\x55\x66\x77\x88", 8), 0);
	cr_expect_eq(memcmp(p + 32, "\x01\x10\x00\x00\x09\x00\x00\x00", 8), 0);
	cr_expect_eq(memcmp(p + 40, "\x10\x32\x54\x76\x98\xba\xdc\xfe", 8), 0);
	NO_LEAKS();
}

static enum err with(size_t at, uint8_t byte, struct why *why)
{
	uint8_t p[XF_HEADER];
	struct xf_head h = some(), out = { .op = 99 };
	xf_put(p, &h);
	p[at] = byte;
	enum err e = xf_get(p, &out, why);
	cr_expect(e == ERR_NONE || out.op == 99, "out is untouched on an error");
	return e;
}

Test(frame, what_is_no_header_is_refused_in_words)
{
	struct why w = { 0 };
	cr_expect_eq(with(0, 'q', &w), ERR_BAD_MESSAGE);
	cr_expect(strstr(w.text, "pmld"));
	w = (struct why){ 0 };
	cr_expect_eq(with(4, 2, &w), ERR_VERSION_MISMATCH);
	cr_expect(strstr(w.text, "version 2"));
	cr_expect_eq(with(5, 0, NULL), ERR_BAD_MESSAGE);
	cr_expect_eq(with(5, XF_OPS, NULL), ERR_BAD_MESSAGE);
	cr_expect_eq(with(6, 0x10, NULL), ERR_BAD_MESSAGE, "an unknown flag");
	cr_expect_eq(with(34, 0xff, NULL), ERR_TOO_LARGE, "16 MiB of data");
	cr_expect_eq(with(12, 1, NULL), ERR_BAD_MESSAGE, "meta and data");
	cr_expect_eq(with(14, 1, NULL), ERR_TOO_LARGE, "64 KiB of meta");
	cr_expect_eq(with(5, XF_GET, NULL), ERR_BAD_MESSAGE, "data in a GET");
	NO_LEAKS();
}

Test(frame, data_without_data_is_refused)
{
	uint8_t p[XF_HEADER];
	struct xf_head h = { .op = XF_DATA }, out;
	xf_put(p, &h);
	cr_expect_eq(xf_get(p, &out, NULL), ERR_BAD_MESSAGE);
	NO_LEAKS();
}

Test(frame, a_get_there_and_back)
{
	struct xf_range r[3] = { { 0, 1 }, { 1ull << 40, 5 }, { 7, 1ull << 39 } };
	uint8_t p[256];
	struct bytes ticket, ranges;
	size_t n = 0, bytes = xf_get_bytes(6, 3);
	cr_assert_leq(bytes, sizeof(p));
	xf_put_get(p, BYTES_STR("ticket"), r, 3);
	cr_assert_eq(xf_get_get(BYTES(p, bytes), &ticket, &ranges, &n), ERR_NONE);
	cr_expect_eq(n, 3);
	cr_expect_eq(ticket.n, 6);
	cr_expect_eq(memcmp(ticket.p, "ticket", 6), 0);
	for (size_t i = 0; i < 3; i++) {
		struct xf_range b = xf_range_at(ranges, i);
		cr_expect_eq(b.offset, r[i].offset);
		cr_expect_eq(b.bytes, r[i].bytes);
	}
	NO_LEAKS();
}

Test(frame, a_get_of_other_lengths_is_refused)
{
	struct xf_range r[1] = { { 0, 1 } };
	uint8_t p[64];
	struct bytes ticket, ranges;
	size_t n, bytes = xf_get_bytes(6, 1);
	xf_put_get(p, BYTES_STR("ticket"), r, 1);
	for (size_t k = 0; k < bytes; k++)
		cr_expect_eq(xf_get_get(BYTES(p, k), &ticket, &ranges, &n), ERR_BAD_MESSAGE,
			     "%zu of %zu bytes", k, bytes);
	for (size_t at = 0; at < 8; at++) {
		uint8_t was = p[at];
		p[at] ^= 0x81;
		cr_expect_eq(xf_get_get(BYTES(p, bytes), &ticket, &ranges, &n),
			     ERR_BAD_MESSAGE);
		p[at] = was;
	}
	NO_LEAKS();
}

Test(frame, the_largest_get_fits)
{
	cr_expect_leq(xf_get_bytes(4096, XF_RANGES_MAX), XF_META_MAX);
}
