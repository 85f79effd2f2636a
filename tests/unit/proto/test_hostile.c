/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes nobody honest sends (B5): a typed error, bounded memory, no crash. Run under ASan and UBSan
 * too, which see a read past the end.
 */
#include "fill.h"
#include "kinds.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <string.h>

#define ARENA_MAX (256u << 10)

struct hostile {
	struct arena fill, dec;
	struct buf wire, again;
	max_align_t m[64], got[64];
};

static struct hostile *hostile_new(void)
{
	struct hostile *h = calloc(1, sizeof(*h));
	cr_assert_not_null(h);
	h->fill = ARENA_INIT(4 << 20);
	h->dec = ARENA_INIT(ARENA_MAX);
	h->wire = h->again = BUF_INIT(4 << 20);
	return h;
}

static void hostile_free(struct hostile *h)
{
	arena_fini(&h->fill);
	arena_fini(&h->dec);
	buf_fini(&h->wire);
	buf_fini(&h->again);
	free(h);
}

static void make(struct hostile *h, const struct wire_msg *t, struct rng *rng)
{
	arena_clear(&h->fill);
	buf_clear(&h->wire);
	fill_random(t, h->m, rng, &h->fill, 24, 3);
	t->enc(&h->wire, h->m, 9);
	cr_assert_eq(buf_err(&h->wire), ERR_NONE);
}

/*
 * Decodes a copy that ends where its heap block ends. What decodes must encode and decode to itself;
 * what does not must say why.
 */
static enum err try(struct hostile *h, const struct wire_msg *t, struct bytes in)
{
	struct why why = { 0 };
	uint8_t *copy = malloc(in.n ? in.n : 1);
	cr_assert_not_null(copy);
	memcpy(copy, in.p, in.n);
	arena_clear(&h->dec);
	struct dec d = DEC_INIT(BYTES(copy, in.n), &h->dec, &why);
	enum err e = t->dec(&d, h->got);
	cr_assert_leq(h->dec.held, ARENA_MAX);
	if (e != ERR_NONE) {
		cr_assert(e == ERR_BAD_MESSAGE || e == ERR_TOO_LARGE, "%s: %s", t->name,
			  err_name(e));
		cr_assert_eq(why.err, e);
		cr_assert_gt(strlen(why.text), 8);
	} else {
		buf_clear(&h->again);
		t->enc(&h->again, h->got, 9);
		cr_assert_eq(buf_err(&h->again), ERR_NONE, "%s: decodes, does not encode",
			     t->name);
	}
	free(copy);
	return e;
}

Test(hostile, every_cut_is_an_error, .timeout = 60)
{
	struct hostile *h = hostile_new();
	struct rng rng = { 8 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (int round = 0; round < 3; round++) {
			make(h, t, &rng);
			for (size_t n = 1; n < h->wire.n; n++)
				cr_assert_neq(try(h, t, BYTES(h->wire.p, n)), ERR_NONE,
					      "%s cut to %zu of %zu", t->name, n, h->wire.n);
		}
	hostile_free(h);
	NO_LEAKS();
}

Test(hostile, every_bit_flipped, .timeout = 60)
{
	struct hostile *h = hostile_new();
	struct rng rng = { 9 };
	const struct wire_msg *t;
	size_t refused = 0, taken = 0;
	for (size_t i = 0; (t = any_message(i)); i++) {
		make(h, t, &rng);
		for (size_t bit = 0; bit < h->wire.n * 8; bit++) {
			h->wire.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
			if (try(h, t, buf_bytes(&h->wire)) == ERR_NONE)
				taken++;
			else
				refused++;
			h->wire.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
		}
	}
	cr_assert_gt(refused, 100);
	cr_assert_gt(taken, 100);
	hostile_free(h);
	NO_LEAKS();
}

Test(hostile, every_byte_replaced_by_every_head, .timeout = 60)
{
	struct hostile *h = hostile_new();
	struct rng rng = { 10 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++) {
		make(h, t, &rng);
		for (size_t at = 0; at < h->wire.n; at += 1 + rng_below(&rng, 3)) {
			uint8_t was = h->wire.p[at];
			for (unsigned v = 0xc0; v < 0xe0; v++) {
				h->wire.p[at] = (uint8_t)v;
				(void)try(h, t, buf_bytes(&h->wire));
			}
			h->wire.p[at] = was;
		}
	}
	hostile_free(h);
	NO_LEAKS();
}

Test(hostile, random_bytes, .timeout = 60)
{
	struct hostile *h = hostile_new();
	struct rng rng = { 11 };
	const struct wire_msg *t;
	for (size_t i = 0; (t = any_message(i)); i++)
		for (int round = 0; round < 3000; round++) {
			uint8_t in[40];
			size_t n = 1 + rng_below(&rng, sizeof(in));
			in[0] = (uint8_t)(0x90 + rng_below(&rng, 16));
			for (size_t k = 1; k < n; k++)
				in[k] = (uint8_t)(rng_below(&rng, 2)
							  ? rng_next(&rng)
							  : 0x90 + rng_below(&rng, 64));
			(void)try(h, t, BYTES(in, n));
		}
	hostile_free(h);
	NO_LEAKS();
}

/* A count is checked against the bytes left and the row before anything is allocated. */
Test(hostile, a_huge_count_allocates_nothing, .timeout = 10)
{
	static const char *const heads[] = { "\x91\xdd\xff\xff\xff\xff\x01",
					     "\x91\xdd\x00\x00\x10\x00\x01",
					     "\x91\xdc\xff\xff\x01" };
	static const size_t sizes[] = { 7, 7, 5 };
	const char *names[] = { "ONE_LIST", "ONE_U64S", "ONE_STRS", "ONE_BINS" };
	const struct wire_msg *t;
	max_align_t got[8];
	for (size_t k = 0; (t = any_message(k)); k++) {
		bool mine = false;
		for (size_t j = 0; j < ARRAY_LEN(names); j++)
			mine |= strcmp(names[j], t->name) == 0;
		for (size_t i = 0; mine && i < ARRAY_LEN(heads); i++) {
			struct arena a = ARENA_INIT(1 << 20);
			size_t before = mallinfo2().uordblks;
			struct dec d = DEC_INIT(BYTES(heads[i], sizes[i]), &a, NULL);
			cr_assert_eq(t->dec(&d, got), ERR_BAD_MESSAGE);
			cr_assert_eq(a.held, 0);
			cr_assert_eq(mallinfo2().uordblks, before);
			arena_fini(&a);
		}
	}
	NO_LEAKS();
}

/* Honest counts of tiny items amplify; the arena's limit is where that ends. */
Test(hostile, amplification_stops_at_the_arenas_limit, .timeout = 10)
{
	struct buf b = BUF_INIT(1 << 20);
	struct arena a = ARENA_INIT(8 << 10);
	struct msg_kinds got;
	struct why why = { 0 };
	struct msg_kinds m = { 0 };
	struct msg_branch branches[17] = { 0 };
	struct msg_leaf leaves[20] = { 0 };
	for (size_t i = 0; i < 17; i++)
		branches[i].leaves = (struct list_leaf){ leaves, 20 };
	m.list = (struct list_branch){ branches, 17 };
	enc_kinds(&b, &m);
	struct dec d = DEC_INIT(buf_bytes(&b), &a, &why);
	cr_assert_eq(dec_kinds(&d, &got), ERR_TOO_LARGE);
	cr_assert_str_eq(why.text,
			 "BRANCH.leaves: its items need more than the 8192 bytes allowed");
	cr_assert_leq(a.held, 8u << 10);
	arena_fini(&a);
	buf_fini(&b);
	NO_LEAKS();
}
