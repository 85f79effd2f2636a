/* SPDX-License-Identifier: Apache-2.0 */
/* Where puts go: strategies, and the slow start of a holder that has just joined (mind_place.c). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

TestSuite(place, .timeout = 60);

enum { SIZE = 16384, SEG = 16 << 20, PER = SEG / SIZE };

/* Everything that is said is answered, without the recount of rig_run. */
static void pump(struct rig *r)
{
	while (mind_work(r->m) || r->n_cmds || r->n_apps) {
		rig_appends(r);
		while (r->n_cmds)
			rig_deliver(r, r->n_cmds - 1, false);
	}
}

/* Where it went. */
static int put_one(struct rig *r, unsigned i, int h)
{
	struct rig_put p;
	char k[16];
	snprintf(k, sizeof(k), "k%u", i);
	rig_start(r, &p, k, SIZE, h, false);
	pump(r);
	cr_assert_eq(p.done, 1);
	cr_assert_eq(p.p.call.err, ERR_NONE, "%s: %s", k, p.p.call.why.text);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	pump(r);
	cr_assert_eq(p.pub.err, ERR_NONE);
	return p.h;
}

static struct rig *holders(const struct mind_limits *l, int n)
{
	struct rig *r = rig_bare(l);
	for (int i = 0; i < n; i++) {
		r->h[i].bytes = SEG;
		r->h[i].host = i < 5 ? "box" : "far";
		rig_register(r, i);
	}
	rig_run(r);
	return r;
}

static double fill(const struct rig *r, int h)
{
	struct mind_holder x;
	cr_assert(mind_holder(r->m, rig_holder(r, h), &x));
	return (double)x.bytes_used / SEG;
}

/*
 * Ten segments, nine of them at 90 %: in no second does the new one get more than twice the mean share, it
 * begins with less, and in the end all are level to 10 %.
 */
static void slow_start(enum mind_strategy strategy)
{
	enum { PUTS = 200 /* a second */, SECONDS = 60 };
	const struct mind_limits l = { .strategy = strategy, .local_host = BYTES_STR("box") };
	struct rig *r = holders(&l, 9);
	unsigned n = 0, first = 0, any = 0;
	static bool
		to_new[PUTS *
		       SECONDS]; /* the last PUTS of them are any second, not just whole ones */
	for (unsigned i = 0; i < PER * 90 / 100 - 8; i++)
		for (int h = 0; h < 9; h++)
			put_one(r, n++, h);
	r->h[9].bytes = SEG;
	rig_register(r, 9);
	rig_run(r);
	for (unsigned s = 0; s < SECONDS; s++) {
		unsigned got = 0;
		for (unsigned i = 0; i < PUTS; i++) {
			unsigned at = s * PUTS + i;
			to_new[at] = put_one(r, n++, -1) == 9;
			got += to_new[at];
			any += to_new[at] - (at < PUTS ? 0u : to_new[at - PUTS]);
			cr_assert_leq(any, 2 * PUTS / 10,
				      "the second up to put %u: %u of %u, strategy %d", at, any,
				      PUTS, strategy);
			rig_pass(r, 1000 / PUTS);
		}
		first = s == 0 ? got : first;
		cr_assert_leq(got, 2 * PUTS / 10, "second %u: %u of %u, strategy %d", s, got,
			      PUTS, strategy);
		if (s == 4)
			cr_assert_geq(got, PUTS * 15 / 100, "%u: slow, not stopped", got);
	}
	cr_assert_leq(first, PUTS * 6 / 100, "%u in the first second", first);
	double mean = 0;
	for (int h = 0; h < 10; h++)
		mean += fill(r, h) / 10;
	cr_assert(fill(r, 9) > mean * 0.9 && fill(r, 9) < mean * 1.1, "%f of %f", fill(r, 9),
		  mean);
	rig_free(r);
}

Test(place, a_new_segment_starts_slowly)
{
	slow_start(MIND_RANDOM);
	NO_LEAKS();
}

Test(place, also_where_the_freest_goes_first)
{
	slow_start(MIND_FREE_RATIO_FIRST);
	NO_LEAKS();
}

Test(place, at_random_is_even)
{
	struct rig *r = holders(NULL, 5);
	unsigned n[10] = { 0 };
	for (unsigned i = 0; i < 2000; i++)
		n[put_one(r, i, -1)]++;
	for (int h = 0; h < 5; h++)
		cr_assert(n[h] > 330 && n[h] < 470, "h%d: %u", h, n[h]);
	rig_free(r);
	NO_LEAKS();
}

Test(place, the_freest_of_a_sample)
{
	const struct mind_limits l = { .strategy = MIND_FREE_RATIO_FIRST };
	struct rig *r = holders(&l, 5);
	unsigned n = 0;
	for (unsigned i = 0; i < 15; i++) /* 1.5 % apart: nobody is young */
		for (int h = 0; h < 4; h++)
			put_one(r, n++, h);
	unsigned got = 0;
	for (unsigned i = 0; i < 12; i++)
		got += put_one(r, n++, -1) == 4;
	cr_assert_gt(got, 5, "%u of 12 to the emptiest of five", got);
	for (unsigned i = 0; i < 1000; i++)
		put_one(r, n++, -1);
	for (int h = 0; h < 5; h++)
		cr_assert(fill(r, h) > fill(r, 0) - 0.01 && fill(r, h) < fill(r, 0) + 0.01);
	rig_free(r);
	NO_LEAKS();
}

Test(place, the_local_ones_first)
{
	const struct mind_limits l = { .strategy = MIND_LOCAL_FIRST,
				       .local_host = BYTES_STR("far") };
	struct rig *r = holders(&l, 6);
	for (unsigned i = 0; i < 30; i++)
		cr_assert_eq(put_one(r, i, -1), 5);
	for (unsigned i = 30; i < 60; i++)
		cr_assert_eq(put_one(r, i, 2), 2, "what the put prefers comes before");
	r->h[5].up = false;
	mind_suspect(r->m, BYTES_STR("h5"), true);
	for (unsigned i = 60; i < 80; i++)
		cr_assert_neq(put_one(r, i, -1), 5);
	r->h[5].up = true;
	rig_free(r);
	NO_LEAKS();
}

/* B2: it is no reason to refuse that only the new one has room. */
Test(place, where_there_is_room_in_the_end)
{
	const struct mind_limits l = { .high_watermark = 1 };
	const struct msg_put_opts hard = { .hard_pin = true };
	struct rig *r = holders(&l, 2);
	unsigned n = 0;
	r->opts = (struct msg_put_opts *)&hard;
	for (unsigned i = 0; i < PER; i++)
		put_one(r, n++, 0);
	for (unsigned i = 0; i < PER; i++)
		cr_assert_eq(put_one(r, n++, -1), 1);
	r->opts = NULL;
	rig_free(r);
	NO_LEAKS();
}
