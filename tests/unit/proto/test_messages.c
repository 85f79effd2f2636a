/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <string.h>

static struct bytes str(const char *s)
{
	return BYTES_STR(s);
}

/* A message with every plain kind there and back. */
Test(messages, hello_round_trip, .timeout = 5)
{
	struct msg_hello m = {
		.v_min = 1,
		.v_max = 300,
		.release = str("0.1.0"),
		.role = 1,
		.tenant = str("default"),
		.instance = { 1, 2, 3 },
		.nonce = str("0123456789abcdef0123456789abcdef"),
	};
	struct msg_hello got;
	struct buf b = BUF_INIT(4096);
	struct why why = { 0 };
	enc_hello(&b, &m);
	cr_assert_eq(buf_err(&b), ERR_NONE);
	struct dec d = DEC_INIT(buf_bytes(&b), NULL, &why);
	cr_assert_eq(dec_hello(&d, &got), ERR_NONE, "%s", why.text);
	cr_assert_eq(got.v_max, 300);
	cr_assert_eq(got.tenant.n, 7);
	cr_assert_arr_eq(got.tenant.p, "default", 7);
	cr_assert_arr_eq(got.instance, m.instance, 16);
	cr_assert_eq(got.mechanism.n, 0);
	buf_fini(&b);
	NO_LEAKS();
}

Test(messages, an_error_names_message_and_field, .timeout = 5)
{
	uint8_t in[128] = { 0x99, 1, 1, 0xa1, 'r', 1, 0xd9, 70 };
	struct msg_hello m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(BYTES(in, sizeof(in)), NULL, &why);
	cr_assert_eq(dec_hello(&d, &m), ERR_BAD_MESSAGE);
	cr_assert_str_eq(why.text, "HELLO.tenant: 70 bytes, at most 64 (at byte 6)");
	NO_LEAKS();
}

Test(messages, lists_lie_in_the_arena, .timeout = 5)
{
	struct msg_extent ext[2] = { { 1, 4096, 100 }, { 2, 1ull << 40, 200 } };
	struct msg_ticket t = { .op = 1, .tenant = str("t"), .extents = { ext, 2 } }, got;
	struct arena a = ARENA_INIT(1 << 16);
	struct buf b = BUF_INIT(4096);
	enc_ticket(&b, &t);
	struct dec d = DEC_INIT(buf_bytes(&b), &a, NULL);
	cr_assert_eq(dec_ticket(&d, &got), ERR_NONE);
	cr_assert_eq(got.extents.n, 2);
	cr_assert_eq(got.extents.p[1].offset, 1ull << 40);
	arena_fini(&a);
	buf_fini(&b);
	NO_LEAKS();
}

Test(messages, a_method_is_known_by_its_number, .timeout = 5)
{
	cr_assert_str_eq(method_name(METHOD_ECHO), "ECHO");
	cr_assert_str_eq(method_name(99), "UNKNOWN");
	cr_assert_eq(wire_method(METHOD_HELLO)->roles, ROLES_ANON);
	cr_assert_eq(wire_method(METHOD_STATUS)->rep, wire_msg_status_rep);
}
