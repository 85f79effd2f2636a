/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Releases apart by one or two (C1): the same bytes read by rows of another age.
 */
#include "fill.h"
#include "kinds.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <string.h>

struct skew {
	struct arena a;
	struct buf b;
	struct msg_new_item items[2];
	struct msg_leaf leaf;
	struct bytes tags[2];
	struct msg_branch more[1];
	struct msg_new m;
};

static void setup(struct skew *s)
{
	*s = (struct skew){ .a = ARENA_INIT(1 << 16), .b = BUF_INIT(1 << 16) };
	s->leaf = (struct msg_leaf){ .id = 7, .key = BYTES("k", 1) };
	s->items[0] = (struct msg_new_item){ .id = 1, .size = 1000, .leaf = &s->leaf };
	s->items[1] = (struct msg_new_item){ .id = 2, .size = 2000 };
	s->tags[0] = BYTES("red", 3);
	s->tags[1] = BYTES("blue", 4);
	s->more[0] = (struct msg_branch){ .name = BYTES("b", 1) };
	s->m = (struct msg_new){ .name = BYTES("thing", 5),
				 .items = { s->items, 2 },
				 .limit = 99,
				 .tags = { s->tags, 2 },
				 .more = { s->more, 1 },
				 .ratio = 0.5 };
}

static void teardown(struct skew *s)
{
	arena_fini(&s->a);
	buf_fini(&s->b);
}

Test(skew, an_older_reader_skips_what_it_does_not_know, .timeout = 5)
{
	struct skew s;
	struct msg_old old;
	struct msg_mid mid;
	setup(&s);
	enc_new_at(&s.b, &s.m, 3);
	struct dec d = DEC_INIT(buf_bytes(&s.b), &s.a, NULL);
	cr_assert_eq(dec_old(&d, &old), ERR_NONE);
	cr_assert_eq(old.items.n, 2);
	cr_assert_eq(old.items.p[1].id, 2);
	cr_assert_eq(old.name.n, 5);
	d = DEC_INIT(buf_bytes(&s.b), &s.a, NULL);
	cr_assert_eq(dec_mid(&d, &mid), ERR_NONE);
	cr_assert_eq(mid.items.p[0].size, 1000);
	cr_assert_eq(mid.limit, 99);
	cr_assert_eq(mid.tags.n, 2);
	cr_assert_arr_eq(mid.tags.p[1].p, "blue", 4);
	teardown(&s);
	NO_LEAKS();
}

Test(skew, a_newer_reader_takes_defaults, .timeout = 5)
{
	struct skew s;
	struct msg_new got;
	setup(&s);
	struct msg_old_item items[1] = { { .id = 5 } };
	struct msg_old old = { .name = BYTES("x", 1), .items = { items, 1 } };
	enc_old(&s.b, &old);
	memset(&got, 0xff, sizeof(got));
	struct dec d = DEC_INIT(buf_bytes(&s.b), &s.a, NULL);
	cr_assert_eq(dec_new(&d, &got), ERR_NONE);
	cr_assert_eq(got.items.p[0].id, 5);
	cr_assert_eq(got.items.p[0].size, 0);
	cr_assert_null(got.items.p[0].leaf);
	cr_assert_eq(got.limit, 0);
	cr_assert_eq(got.tags.n, 0);
	cr_assert_eq(got.more.n, 0);
	cr_assert_eq(got.ratio, 0);
	teardown(&s);
	NO_LEAKS();
}

/* Told the peer's version, the newest rows write what that release would: byte for byte. */
Test(skew, the_encoder_cuts_to_the_peers_version, .timeout = 5)
{
	struct skew s;
	struct buf want = BUF_INIT(1 << 16);
	setup(&s);
	struct msg_old_item o[2] = { { 1 }, { 2 } };
	struct msg_mid_item m[2] = { { 1, 1000 }, { 2, 2000 } };
	enc_old(&want, &(struct msg_old){ .name = s.m.name, .items = { o, 2 } });
	enc_new_at(&s.b, &s.m, 1);
	cr_assert(want.n > 0 && s.b.n == want.n);
	cr_assert_arr_eq(s.b.p, want.p, want.n);
	buf_clear(&want);
	buf_clear(&s.b);
	enc_mid_at(&want,
		   &(struct msg_mid){ s.m.name, { m, 2 }, .limit = 99, .tags = s.m.tags }, 2);
	enc_new_at(&s.b, &s.m, 2);
	cr_assert(want.n > 0 && s.b.n == want.n);
	cr_assert_arr_eq(s.b.p, want.p, want.n);
	buf_fini(&want);
	teardown(&s);
	NO_LEAKS();
}

/* Of every message: an encoder that appends fields of any shape is understood by this release. */
Test(skew, every_message_skips_appended_fields, .timeout = 20)
{
	static const uint8_t extra[] = { 0xc0, 0x93, 1, 0xa1, 'x', 0x81, 1, 2,	  0xcb, 0,
					 0,    0,    0, 0,    0,   0,	 0, 0xd4, 9,	9 };
	struct rng rng = { 7 };
	struct arena a = ARENA_INIT(1 << 20), b = ARENA_INIT(1 << 20);
	struct buf wire = BUF_INIT(1 << 20), j1 = BUF_INIT(1 << 22), j2 = BUF_INIT(1 << 22);
	static max_align_t m[64], got[64];
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++) {
		size_t n = t->n_fields + 4;
		arena_clear(&a);
		arena_clear(&b);
		buf_clear(&wire);
		fill_random(t, m, &rng, &a, 20, 3);
		t->enc(&wire, m, 9);
		uint8_t head[3] = { 0xdc, (uint8_t)(n >> 8), (uint8_t)n };
		struct buf longer = BUF_INIT(1 << 20);
		buf_put(&longer, head, 3);
		buf_put(&longer, wire.p + (t->n_fields < 16 ? 1 : 3),
			wire.n - (t->n_fields < 16 ? 1 : 3));
		buf_put(&longer, extra, sizeof(extra));
		struct why why = { 0 };
		struct dec d = DEC_INIT(buf_bytes(&longer), &b, &why);
		cr_assert_eq(t->dec(&d, got), ERR_NONE, "%s: %s", t->name, why.text);
		cr_assert_str_eq(json_of(t, m, &j1), json_of(t, got, &j2));
		buf_fini(&longer);
	}
	arena_fini(&a);
	arena_fini(&b);
	buf_fini(&wire);
	buf_fini(&j1);
	buf_fini(&j2);
	NO_LEAKS();
}

/* Of every message: any number of trailing fields may be missing. */
Test(skew, every_message_defaults_missing_fields, .timeout = 20)
{
	static max_align_t got[64];
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++) {
		uint8_t empty[1] = { 0x90 };
		struct buf whole = BUF_INIT(1 << 16), j1 = BUF_INIT(1 << 16),
			   j2 = BUF_INIT(1 << 16);
		static const max_align_t zero[64];
		memset(got, 0xff, sizeof(got));
		struct dec d = DEC_INIT(BYTES(empty, 1), NULL, NULL);
		cr_assert_eq(t->dec(&d, got), ERR_NONE, "%s", t->name);
		cr_assert_str_eq(json_of(t, zero, &j1), json_of(t, got, &j2));
		memset(got, 0xff, sizeof(got));
		d = DEC_INIT(BYTES(NULL, 0), NULL, NULL);
		cr_assert_eq(t->dec(&d, got), ERR_NONE, "%s", t->name);
		cr_assert_str_eq(json_of(t, zero, &j1), json_of(t, got, &j2));
		buf_fini(&whole);
		buf_fini(&j1);
		buf_fini(&j2);
	}
	NO_LEAKS();
}
