/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows themselves: what a careless new row would break.
 */
#include "fill.h"
#include "kinds.h"
#include "proto/messages.h"
#include "proto/prim.h"
#include "proto/wire_page.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static bool is_list(enum wire_kind k)
{
	return k == WIRE_U64S || k == WIRE_STRS || k == WIRE_BINS || k == WIRE_LIST;
}

/* Appended only: within a message the version never falls, and is one that exists. */
Test(table, rows_are_in_order_of_version, .timeout = 5)
{
	const struct wire_msg *t;
	for (size_t i = 0; (t = wire_message(i)); i++) {
		uint32_t since = WIRE_VERSION_MIN;
		for (size_t k = 0; k < t->n_fields; k++) {
			const struct wire_field *f = &t->fields[k];
			cr_assert_geq(f->since, since, "%s.%s", t->name, f->name);
			cr_assert_leq(f->since, WIRE_VERSION, "%s.%s", t->name, f->name);
			since = f->since;
		}
	}
}

/* B1: whatever has a length has a limit; nothing else pretends to. */
Test(table, what_has_a_length_has_a_limit, .timeout = 5)
{
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (size_t k = 0; k < t->n_fields; k++) {
			const struct wire_field *f = &t->fields[k];
			bool run = f->kind == WIRE_STR || f->kind == WIRE_BIN;
			cr_assert_eq(f->max > 0, run || is_list(f->kind), "%s.%s", t->name,
				     f->name);
			cr_assert_eq(f->each > 0, f->kind == WIRE_STRS || f->kind == WIRE_BINS);
			cr_assert_leq(f->max, WIRE_MESSAGE_MAX);
			cr_assert_gt(strlen(f->doc), 0, "%s.%s", t->name, f->name);
			cr_assert_eq(f->of != NULL,
				     f->kind == WIRE_LIST || f->kind == WIRE_OPT);
			cr_assert_lt(f->offset, t->size);
		}
}

Test(table, names_are_unique, .timeout = 5)
{
	const struct wire_msg *a, *b;
	for (size_t i = 0; (a = wire_message(i)); i++)
		for (size_t j = 0; j < i && (b = wire_message(j)); j++)
			cr_assert_str_neq(a->name, b->name);
}

/* The fixed part of a struct must fit what an encoder may write past a buffer's limit. */
Test(table, fixed_parts_are_small, .timeout = 5)
{
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		cr_assert_leq(5 + 18 * t->n_fields, (size_t)WIRE_SLACK, "%s", t->name);
}

Test(table, methods_have_their_own_numbers_and_ranges, .timeout = 5)
{
	size_t n;
	const struct wire_method *m = wire_methods(&n);
	cr_assert_gt(n, 0);
	for (size_t i = 0; i < n; i++) {
		cr_assert_gt(m[i].number, 0);
		cr_assert_lt(m[i].number, 600, "%s: 500 ep is the last range", m[i].name);
		cr_assert_neq(m[i].roles, 0, "%s", m[i].name);
		cr_assert_gt(strlen(m[i].policy), 0, "%s: B1", m[i].name);
		cr_assert_eq(wire_method(m[i].number), &m[i]);
		cr_assert_str_eq(method_name(m[i].number), m[i].name);
		for (size_t j = 0; j < i; j++)
			cr_assert_str_neq(m[i].name, m[j].name);
	}
	cr_assert_null(wire_method(0));
	cr_assert_null(wire_method(UINT32_MAX));
}

/* Only the handshake may be called by who has not ended it. */
Test(table, strangers_may_only_shake_hands, .timeout = 5)
{
	size_t n;
	const struct wire_method *m = wire_methods(&n);
	for (size_t i = 0; i < n; i++)
		if (m[i].roles & ROLES_ANON)
			cr_assert(m[i].number == METHOD_HELLO || m[i].number == METHOD_PROVE,
				  "%s", m[i].name);
}

/* The envelope is what answers.md says, number by number: it is the one thing all releases share. */
Test(table, the_envelope_is_as_agreed, .timeout = 5)
{
	struct msg_request q = { 1, 4, 2, 3, 5, 6, 7, BYTES("b", 1) };
	struct msg_reply r = { 1, 2, 3, 5, 14, 250, 9, BYTES("b", 1) };
	struct buf b = BUF_INIT(64);
	enc_request(&b, &q);
	cr_assert_eq(b.n, 11);
	cr_assert_arr_eq(b.p,
			 "\x98\x01\x04\x02\x03\x05\x06\x07\xc4\x01"
			 "b",
			 11);
	buf_clear(&b);
	enc_reply(&b, &r);
	cr_assert_eq(b.n, 12);
	cr_assert_arr_eq(b.p,
			 "\x98\x01\x02\x03\x05\x0e\xcc\xfa\x09\xc4\x01"
			 "b",
			 12);
	buf_fini(&b);
	NO_LEAKS();
}

Test(table, kinds_have_names, .timeout = 5)
{
	for (enum wire_kind k = WIRE_BOOL; k <= WIRE_OPT; k++)
		cr_assert_gt(strlen(wire_kind_name(k)), 0);
}

Test(table, json_stops_at_its_limit, .timeout = 5)
{
	struct buf out = BUF_INIT(16);
	struct msg_one_bin m = { BYTES("\x01\x02\x03", 3) };
	wire_json(&out, wire_msg_one_bin(), &m);
	cr_assert_eq(buf_err(&out), ERR_NONE);
	cr_assert_eq(memcmp(out.p, "{\"v\":\"010203\"}", 14), 0);
	wire_json(&out, wire_msg_one_bin(), &m);
	cr_assert_eq(buf_err(&out), ERR_TOO_LARGE);
	buf_fini(&out);
	NO_LEAKS();
}

Test(table, the_page_has_every_message_and_method, .timeout = 5)
{
	struct buf page = BUF_INIT(1 << 20), small = BUF_INIT(1000);
	const struct wire_msg *t;
	char line[128];
	size_t n;
	wire_page(&page);
	buf_put(&page, "", 1);
	cr_assert_eq(buf_err(&page), ERR_NONE);
	for (size_t i = 0; (t = wire_message(i)); i++) {
		snprintf(line, sizeof(line), "\n### %s\n\n%s\n", t->name, t->doc);
		cr_assert_not_null(strstr((char *)page.p, line), "%s", t->name);
	}
	const struct wire_method *m = wire_methods(&n);
	for (size_t i = 0; i < n; i++) {
		snprintf(line, sizeof(line), "\n| %u | %s | [", m[i].number, m[i].name);
		cr_assert_not_null(strstr((char *)page.p, line), "%s", m[i].name);
	}
	cr_assert_not_null(strstr((char *)page.p,
				  "| extents | list of [EXTENT](#extent) | 16 items | 1 |"));
	wire_page(&small);
	cr_assert_eq(buf_err(&small), ERR_TOO_LARGE);
	buf_fini(&page);
	buf_fini(&small);
	NO_LEAKS();
}
