/* SPDX-License-Identifier: Apache-2.0 */
/* Room in one piece: neighbours are evicted when fragmentation blocks a put (mind_clear.c). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

TestSuite(clear, .timeout = 60);

enum { N = 1024, SIZE = 4096, BIG = 256 << 10 };

static const char *key(unsigned i)
{
	static char k[4][16];
	static unsigned at;
	snprintf(k[++at % 4], sizeof(k[0]), "k%u", i);
	return k[at % 4];
}

static void put_at(struct rig *r, unsigned i, int h, const struct msg_put_opts *o)
{
	struct rig_put p;
	r->opts = (struct msg_put_opts *)o;
	rig_start(r, &p, key(i), SIZE, h, false);
	r->opts = NULL;
	cr_assert_eq(p.p.call.err, ERR_NONE, "%u: %s", i, p.p.call.why.text);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	cr_assert_eq(p.pub.err, ERR_NONE);
	r->h[p.h].slots[p.slot].published = true;
}

/*
 * A segment full of small objects; which is which of opts() says (NULL: none); then used in an order that has
 * nothing to do with where they lie.
 */
static struct rig *full(const struct mind_limits *l,
			const struct msg_put_opts *(*opts)(unsigned i))
{
	struct rig *r = rig_bare(l);
	r->h[0].bytes = N * SIZE;
	rig_register(r, 0);
	rig_run(r);
	for (unsigned i = 0; i < N; i++)
		put_at(r, i, 0, opts ? opts(i) : NULL);
	for (unsigned i = 0; i < N; i++) {
		cr_assert_eq(rig_use(r, key(i * 389 % N), 1), ERR_NONE);
		if (i % 8 == 0)
			rig_pass(r, 40);
	}
	rig_pass(r, 100);
	rig_run(r);
	return r;
}

static unsigned left(struct rig *r)
{
	unsigned n = 0;
	for (unsigned i = 0; i < N; i++)
		n += rig_use(r, key(i), 0) == ERR_NONE;
	return n;
}

static const struct mind_limits to_the_brim = { .high_watermark = 1 };

/* As many as lie in its way go, beside those that went before it was seen that they do not help. */
Test(clear, neighbours_go_when_pieces_do_not_fit)
{
	struct rig *r = full(&to_the_brim, NULL);
	cr_assert_eq(rig_put_opts(r, "big", BIG, NULL), ERR_NONE);
	cr_assert_leq(rig_counts(r).evictions, 2 * (BIG / SIZE) + 16, "%u",
		      (unsigned)rig_counts(r).evictions);
	cr_assert_geq(left(r), N - 2 * (BIG / SIZE) - 16);
	for (unsigned i = 0; i < 4; i++) {
		char k[8];
		snprintf(k, sizeof(k), "b%u", i);
		cr_assert_eq(rig_put_opts(r, k, BIG, NULL), ERR_NONE, "%s", k);
	}
	cr_assert_leq(rig_counts(r).evictions, 10 * (BIG / SIZE) + 5 * 16);
	cr_assert_eq(rig_use(r, "big", 0), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

static const struct msg_put_opts hard = { .hard_pin = true }, soft = { .soft_pin_ms = 3600000 };

static bool in_the_gap(unsigned i)
{
	return i >= 500 && i < 500 + 2 * BIG / SIZE;
}

static const struct msg_put_opts *hard_but_in_the_gap(unsigned i)
{
	return i % 32 == 0 && !in_the_gap(i) ? &hard : NULL;
}

static const struct msg_put_opts *soft_but_in_the_gap(unsigned i)
{
	return i % 32 == 0 && !in_the_gap(i) ? &soft : NULL;
}

static unsigned pins(struct rig *r, const struct msg_put_opts *(*opts)(unsigned i),
		     unsigned *all)
{
	unsigned n = 0;
	*all = 0;
	for (unsigned i = 0; i < N; i++)
		if (opts(i)) {
			++*all;
			n += rig_use(r, key(i), 0) == ERR_NONE;
		}
	return n;
}

Test(clear, between_hard_pins)
{
	struct rig *r = full(&to_the_brim, hard_but_in_the_gap);
	unsigned all;
	cr_assert_eq(rig_put_opts(r, "big", BIG, NULL), ERR_NONE);
	cr_assert_leq(rig_counts(r).evictions, 2 * (BIG / SIZE) + 32);
	cr_assert_eq(pins(r, hard_but_in_the_gap, &all), all);
	rig_free(r);
	NO_LEAKS();
}

Test(clear, soft_pins_are_spared_while_there_is_another_stretch)
{
	struct rig *r = full(&to_the_brim, soft_but_in_the_gap);
	unsigned all;
	cr_assert_eq(rig_put_opts(r, "big", BIG, NULL), ERR_NONE);
	cr_assert_leq(rig_counts(r).evictions, 2 * (BIG / SIZE) + 32);
	cr_assert_eq(pins(r, soft_but_in_the_gap, &all), all);
	cr_assert_eq(rig_put_opts(r, "big2", BIG, NULL), ERR_NONE, "then they go");
	cr_assert_eq(rig_put_opts(r, "big3", BIG, NULL), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "big4", BIG, NULL), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* What is read often is not in the stretch. */
Test(clear, the_old_ones_go)
{
	struct rig *r = full(&to_the_brim, NULL);
	unsigned hot = 0;
	for (unsigned i = 0; i < N / 2; i++)
		cr_assert_eq(rig_use(r, key(i), 1), ERR_NONE);
	rig_pass(r, 100);
	cr_assert_eq(rig_put_opts(r, "big", BIG, NULL), ERR_NONE);
	for (unsigned i = 0; i < N / 2; i++)
		hot += rig_use(r, key(i), 0) == ERR_NONE;
	cr_assert_geq(hot, N / 2 - 8, "%u of %u", hot, N / 2);
	rig_free(r);
	NO_LEAKS();
}

/* Leases everywhere: BUSY with a time, as ever; then it goes. */
Test(clear, leased_neighbours_stay)
{
	struct rig *r = full(&to_the_brim, NULL);
	struct rig_put p;
	for (unsigned i = 0; i < N; i += 2)
		cr_assert_eq(rig_use(r, key(i), 5000), ERR_NONE);
	rig_start(r, &p, "big", BIG, -1, false);
	rig_run(r);
	rig_pass(r, 1000);
	rig_run(r);
	cr_assert_eq(p.done, 1);
	cr_assert_eq(p.p.call.err, ERR_BUSY);
	cr_assert(p.p.call.retry_ms > 0 && p.p.call.retry_ms <= 5100, "%u", p.p.call.retry_ms);
	for (unsigned i = 0; i < N; i += 2)
		cr_assert_eq(rig_use(r, key(i), 0), ERR_NONE);
	rig_pass(r, 5100);
	cr_assert_eq(rig_put_opts(r, "big", BIG, NULL), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* Room at a holder that is being drained is none: nothing is evicted for it there (L5). */
Test(clear, nothing_at_a_holder_that_is_drained)
{
	struct rig *r = full(&to_the_brim, NULL);
	const struct msg_task_start_req q = { .kind = MIND_TASK_DRAIN,
					      .from = BYTES_STR(r->h[0].id) };
	struct why why = { 0 };
	struct rig_put p;
	uint64_t id = 0;
	r->h[1].bytes = 64 << 10; /* nothing of it fits there */
	rig_register(r, 1);
	rig_run(r);
	rig_start(r, &p, "all of it", 64 << 10, 1, false);
	cr_assert_eq(p.p.call.err, ERR_NONE);
	for (unsigned i = 0; i < 128; i++)
		cr_assert_eq(rig_remove(r, key(i * 389 % N)), ERR_NONE);
	cr_assert_eq(mind_task_start(r->m, BYTES(NULL, 0), &q, &id, &why), ERR_NONE, "%s",
		     why.text);
	rig_start(r, &p, "big", BIG, -1, false);
	for (int i = 0; i < 20; i++) {
		rig_run(r);
		rig_pass(r, 500);
	}
	cr_assert(!p.done || p.p.call.err == ERR_BUSY, "%s", err_name(p.p.call.err));
	if (!p.done)
		mind_drop(r->m, &p.p.call);
	cr_assert_eq(rig_counts(r).evictions, 0);
	cr_assert_eq(left(r), N - 128);
	rig_free(r);
	NO_LEAKS();
}

/* The holder is adopted anew in the middle; another put is quicker; the mind ends. */
Test(clear, what_comes_between)
{
	struct rig *r = full(&to_the_brim, NULL);
	struct rig_put p, q;
	rig_start(r, &p, "big", BIG, -1, false);
	for (int i = 0; i < 3; i++)
		mind_work(r->m);
	rig_reborn(r, 0);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(p.done, 1);
	cr_assert_eq(p.p.call.err, ERR_RECOVERING, "%s", p.p.call.why.text);
	cr_assert_gt(p.p.call.retry_ms, 0);
	rig_start(r, &p, "big2", BIG, -1, false);
	rig_run(r);
	cr_assert_eq(p.p.call.err, ERR_NONE);
	rig_start(r, &p, "big3", BIG, -1, false);
	rig_start(r, &q, "big4", 2 * BIG, -1, false);
	for (int i = 0; i < 2; i++)
		mind_work(r->m);
	rig_free(r);
	NO_LEAKS();
}
