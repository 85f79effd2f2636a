/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every message, filled at random by its table: there and back, and against msgpack-c.
 */
#include "fill.h"
#include "kinds.h"
#include "oracle.h"
#include "proto/messages.h"
#include "proto/prim.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>

struct room {
	struct arena fill, dec;
	struct buf wire, again, json, json2;
	max_align_t m[64], got[64];
};

static struct room *room_new(void)
{
	struct room *r = calloc(1, sizeof(*r));
	cr_assert_not_null(r);
	r->fill = r->dec = ARENA_INIT(8 << 20);
	r->wire = r->again = r->json = r->json2 = BUF_INIT(32 << 20);
	return r;
}

static void room_free(struct room *r)
{
	arena_fini(&r->fill);
	arena_fini(&r->dec);
	buf_fini(&r->wire);
	buf_fini(&r->again);
	buf_fini(&r->json);
	buf_fini(&r->json2);
	free(r);
}

static void make(struct room *r, const struct wire_msg *t, struct rng *rng)
{
	cr_assert_leq(t->size, sizeof(r->m));
	arena_clear(&r->fill);
	arena_clear(&r->dec);
	buf_clear(&r->wire);
	fill_random(t, r->m, rng, &r->fill, 70000, 20);
	t->enc(&r->wire, r->m, WIRE_VERSION_MIN + 9);
	cr_assert_eq(buf_err(&r->wire), ERR_NONE, "%s", t->name);
}

static void decode(struct room *r, const struct wire_msg *t, struct bytes in)
{
	struct why why = { 0 };
	struct dec d = DEC_INIT(in, &r->dec, &why);
	cr_assert_eq(t->dec(&d, r->got), ERR_NONE, "%s: %s", t->name, why.text);
	cr_assert_eq(d.p, d.end);
}

Test(random, there_and_back, .timeout = 30)
{
	struct room *r = room_new();
	struct rng rng = { 1 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (int round = 0; round < 25; round++) {
			make(r, t, &rng);
			decode(r, t, buf_bytes(&r->wire));
			cr_assert_str_eq(json_of(t, r->m, &r->json),
					 json_of(t, r->got, &r->json2));
			buf_clear(&r->again);
			t->enc(&r->again, r->got, WIRE_VERSION_MIN + 9);
			cr_assert_eq(r->again.n, r->wire.n);
			cr_assert_arr_eq(r->again.p, r->wire.p, r->wire.n);
		}
	room_free(r);
	NO_LEAKS();
}

Test(random, msgpack_c_reads_what_we_write, .timeout = 30)
{
	struct room *r = room_new();
	struct rng rng = { 2 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (int round = 0; round < 12; round++) {
			make(r, t, &rng);
			cr_assert_eq(wire_scan(buf_bytes(&r->wire), 100000, NULL), ERR_NONE);
			oracle_check(t, r->m, buf_bytes(&r->wire));
		}
	room_free(r);
	NO_LEAKS();
}

Test(random, we_read_what_msgpack_c_writes, .timeout = 30)
{
	struct room *r = room_new();
	struct rng rng = { 3 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (int round = 0; round < 12; round++) {
			make(r, t, &rng);
			buf_clear(&r->again);
			oracle_pack(t, r->m, &r->again);
			cr_assert_eq(r->again.n, r->wire.n, "%s", t->name);
			cr_assert_arr_eq(r->again.p, r->wire.p, r->wire.n);
			decode(r, t, buf_bytes(&r->again));
			cr_assert_str_eq(json_of(t, r->m, &r->json),
					 json_of(t, r->got, &r->json2));
		}
	room_free(r);
	NO_LEAKS();
}

/* Wider heads than needed say the same thing. */
Test(random, any_width_is_read, .timeout = 30)
{
	struct room *r = room_new();
	struct rng rng = { 4 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (int round = 0; round < 12; round++) {
			make(r, t, &rng);
			buf_clear(&r->again);
			oracle_widen(buf_bytes(&r->wire), &rng, &r->again);
			decode(r, t, buf_bytes(&r->again));
			cr_assert_str_eq(json_of(t, r->m, &r->json),
					 json_of(t, r->got, &r->json2));
		}
	room_free(r);
	NO_LEAKS();
}

/* A buffer's limit is exact, whatever bounds the encoder reckons with on the way. */
Test(random, a_limit_of_the_very_size_is_enough, .timeout = 30)
{
	struct room *r = room_new();
	struct rng rng = { 5 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (int round = 0; round < 12; round++) {
			make(r, t, &rng);
			struct buf fits = BUF_INIT(r->wire.n), small = BUF_INIT(r->wire.n - 1);
			t->enc(&fits, r->m, WIRE_VERSION_MIN + 9);
			cr_assert_eq(buf_err(&fits), ERR_NONE, "%s", t->name);
			cr_assert_eq(fits.n, r->wire.n);
			t->enc(&small, r->m, WIRE_VERSION_MIN + 9);
			cr_assert_eq(buf_err(&small), ERR_TOO_LARGE, "%s", t->name);
			cr_assert_eq(small.n, 0);
			cr_assert_leq(small.cap, small.limit + 2 * WIRE_SLACK);
			buf_fini(&fits);
			buf_fini(&small);
		}
	room_free(r);
	NO_LEAKS();
}
