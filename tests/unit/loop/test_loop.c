/* SPDX-License-Identifier: Apache-2.0 */
/* Inbox, timers, and the libuv driver. */
#include "loop/loop.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <uv.h>

#include "fake_loop.h"
#include "tests/support/leak.h"

struct item {
	struct post p;
	struct timer t;
	struct loop *l;
	unsigned runs, order;
	bool again;
};

static unsigned order;

static void item_posted(struct post *p)
{
	struct item *i = container_of(p, struct item, p);
	i->runs++;
	i->order = ++order;
	if (i->again) {
		i->again = false;
		loop_defer(i->l, p);
	}
}

Test(inbox, one_wake_for_many_and_order, .timeout = 5)
{
	struct fake_loop f;
	struct item it[3] = { 0 };
	fake_open(&f, false);
	for (int i = 0; i < 3; i++) {
		it[i].p.fn = item_posted;
		inbox_expect(&f.l.inbox);
		loop_post(&f.l, &it[i].p);
	}
	cr_expect_eq(f.wakes, 1); /* I3 */
	cr_expect_eq(f.l.inbox.expected, 3);
	cr_expect_eq(inbox_drain(&f.l.inbox), 3);
	cr_expect_eq(f.l.inbox.expected, 0);
	for (unsigned i = 0; i < 3; i++)
		cr_expect_eq(it[i].order, i + 1);
	cr_expect_eq(inbox_drain(&f.l.inbox), 0);
	fake_close(&f);
}

/* What is posted while draining waits for the next drain. */
Test(inbox, posts_made_by_posts, .timeout = 5)
{
	struct fake_loop f;
	struct item a = { .p.fn = item_posted, .again = true };
	fake_open(&f, false);
	a.l = &f.l;
	loop_defer(&f.l, &a.p);
	cr_expect_eq(inbox_drain(&f.l.inbox), 1);
	cr_expect_eq(a.runs, 1);
	cr_expect_eq(f.wakes, 2);
	cr_expect_eq(inbox_drain(&f.l.inbox), 1);
	cr_expect_eq(a.runs, 2);
	fake_close(&f);
}

/* The loop's own thread needs no wake: one that was not empty has what it takes. */
Test(inbox, put_tells_whether_a_turn_is_due, .timeout = 5)
{
	struct fake_loop f;
	struct item it[3] = { { .p.fn = item_posted },
			      { .p.fn = item_posted },
			      { .p.fn = item_posted } };
	fake_open(&f, false);
	for (int i = 0; i < 3; i++)
		inbox_expect(&f.l.inbox);
	cr_expect(inbox_put(&f.l.inbox, &it[0].p));
	cr_expect(!inbox_put(&f.l.inbox, &it[1].p));
	loop_post(&f.l, &it[2].p);
	cr_expect_eq(f.wakes, 0);
	cr_expect_eq(inbox_drain(&f.l.inbox), 3);
	for (unsigned i = 1; i < 3; i++)
		cr_expect_eq(it[i].order, it[i - 1].order + 1);
	fake_close(&f);
}

Test(inbox, unexpect, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	loop_expect(&f.l);
	inbox_unexpect(&f.l.inbox);
	cr_expect_eq(f.l.inbox.expected, 0);
	fake_close(&f);
}

Test(inbox, posting_twice_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct fake_loop f;
	struct item a = { .p.fn = item_posted };
	fake_open(&f, false);
	loop_defer(&f.l, &a.p);
	loop_defer(&f.l, &a.p); /* I4 */
}

Test(inbox, unexpected_post_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct fake_loop f;
	struct item a = { .p.fn = item_posted };
	fake_open(&f, false);
	loop_post(&f.l, &a.p);
	fake_turn(&f, 0);
}

static void item_timed(struct timer *t)
{
	struct item *i = container_of(t, struct item, t);
	i->runs++;
	i->order = ++order;
	if (i->again)
		timer_start(i->l, t, loop_now_ns(i->l), item_timed);
}

/* I2: by time, then by start. */
Test(timer, order_and_arming, .timeout = 5)
{
	struct fake_loop f;
	struct item it[4] = { 0 };
	static const uint64_t due[4] = { 30, 10, 20, 10 };
	fake_open(&f, false);
	uint64_t t0 = f.now_ns;
	for (int i = 0; i < 4; i++)
		timer_start(&f.l, &it[i].t, t0 + due[i], item_timed);
	cr_expect_eq(f.armed_ns, t0 + 10);
	fake_turn(&f, 9);
	cr_expect_eq(order, 0);
	fake_turn(&f, 11);
	cr_expect_eq(it[1].order, 1);
	cr_expect_eq(it[3].order, 2);
	cr_expect_eq(it[2].order, 3);
	cr_expect_eq(it[0].runs, 0);
	cr_expect_eq(f.armed_ns, t0 + 30);
	cr_expect(timer_running(&it[0].t) && !timer_running(&it[1].t));
	timer_stop(&f.l, &it[0].t);
	timer_stop(&f.l, &it[0].t);
	cr_expect_eq(f.armed_ns, UINT64_MAX);
	fake_turn(&f, 100);
	cr_expect_eq(it[0].runs, 0);
	fake_close(&f);
}

Test(timer, restart_moves_it, .timeout = 5)
{
	struct fake_loop f;
	struct item a = { 0 };
	fake_open(&f, false);
	uint64_t t0 = f.now_ns;
	timer_start(&f.l, &a.t, t0 + 10, item_timed);
	timer_start(&f.l, &a.t, t0 + 50, item_timed);
	cr_expect_eq(f.armed_ns, t0 + 50);
	fake_turn(&f, 20);
	cr_expect_eq(a.runs, 0);
	fake_turn(&f, 30);
	cr_expect_eq(a.runs, 1);
	fake_close(&f);
}

/* One that starts itself again at once runs once a turn: a turn ends. */
Test(timer, a_turn_ends, .timeout = 5)
{
	struct fake_loop f;
	struct item a = { .again = true };
	fake_open(&f, false);
	a.l = &f.l;
	timer_start(&f.l, &a.t, f.now_ns, item_timed);
	fake_turn(&f, 0);
	cr_expect_eq(a.runs, 1);
	cr_expect_eq(f.armed_ns, f.now_ns);
	fake_turn(&f, 0);
	cr_expect_eq(a.runs, 2);
	timer_stop(&f.l, &a.t);
	fake_close(&f);
}

Test(timer, never, .timeout = 5)
{
	struct fake_loop f;
	struct item a = { 0 };
	fake_open(&f, false);
	timer_start(&f.l, &a.t, UINT64_MAX, item_timed);
	fake_turn(&f, NS_PER_S);
	cr_expect_eq(a.runs, 0);
	timer_stop(&f.l, &a.t);
	fake_close(&f);
}

static void stop_timed(struct timer *t)
{
	struct item *i = container_of(t, struct item, t);
	i->runs++;
	loop_stop(i->l);
}

Test(loop_uv, timers_stop_and_run_again, .timeout = 10)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct item a = { .l = &l };
	cr_expect_not_null(loop_uv(&l));
	for (unsigned n = 1; n <= 2; n++) {
		uint64_t t0 = loop_now_ns(&l);
		timer_start(&l, &a.t, t0 + 5 * NS_PER_MS, stop_timed);
		loop_run(&l);
		cr_expect_eq(a.runs, n);
		cr_expect_geq(loop_now_ns(&l) - t0, 5 * NS_PER_MS, "never early");
	}
	cr_expect(loop_wall_ms(&l) > 1600000000000ull);
	loop_close(&l);
	NO_LEAKS();
}

static void defer_timed(struct timer *t)
{
	struct item *i = container_of(t, struct item, t);
	loop_defer(i->l, &i->p);
}

/* What a timer, or what was deferred itself, puts off runs before the loop waits: nothing else would end
 * that wait. */
Test(loop_uv, what_is_deferred_is_not_waited_for, .timeout = 20)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct item a = { .l = &l, .p.fn = item_posted, .again = true };
	struct item far = { .l = &l };
	uint64_t t0 = loop_now_ns(&l);
	timer_start(&l, &far.t, t0 + 60 * NS_PER_S, stop_timed);
	timer_start(&l, &a.t, t0 + NS_PER_MS, defer_timed);
	while (a.runs < 2)
		loop_run_once(&l, true);
	cr_expect_lt(loop_now_ns(&l) - t0, 5 * NS_PER_S);
	loop_defer(&l, &a.p); /* from no callback at all */
	while (a.runs < 3)
		loop_run_once(&l, true);
	cr_expect_lt(loop_now_ns(&l) - t0, 5 * NS_PER_S);
	cr_expect_eq(far.runs, 0);
	timer_stop(&l, &far.t);
	loop_defer(&l, &a.p);
	loop_close(&l); /* waits for it */
	cr_expect_eq(a.runs, 4);
	NO_LEAKS();
}

static void *post_many(void *arg)
{
	struct item *i = arg;
	for (int n = 0; n < 64; n++)
		loop_post(i->l, &i[n].p);
	return NULL;
}

/* Deferred ones keep others' posts from sending a wake, and must not lose it for them. */
Test(loop_uv, deferred_and_posted_at_once, .timeout = 60)
{
	struct loop l;
	static struct item it[64], own;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	own = (struct item){ .l = &l, .p.fn = item_posted };
	for (unsigned round = 1; round <= 200; round++) {
		pthread_t t;
		for (int n = 0; n < 64; n++) {
			it[n].l = &l;
			it[n].p.fn = item_posted;
			loop_expect(&l);
		}
		cr_assert_eq(pthread_create(&t, NULL, post_many, it), 0);
		loop_defer(&l, &own.p);
		while (it[63].runs < round || own.runs < round) {
			loop_run_once(&l, true);
			if (own.runs == round && it[63].runs < round && !own.p.queued) {
				own.runs--;
				loop_defer(&l, &own.p);
			}
		}
		cr_assert_eq(pthread_join(t, NULL), 0);
		while (own.p.queued)
			loop_run_once(&l, true);
		own.runs = round;
	}
	for (int n = 0; n < 64; n++)
		cr_expect_eq(it[n].runs, 200);
	loop_close(&l);
	NO_LEAKS();
}

/* Never ahead of the clock, never back, and new with a turn. */
Test(loop_uv, recent_time, .timeout = 10)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	uint64_t last = 0;
	for (unsigned i = 0; i < 1000; i++) {
		uint64_t recent = loop_recent_ns(&l);
		cr_assert(recent >= last && recent <= loop_now_ns(&l));
		last = recent;
	}
	uint64_t before = loop_now_ns(&l);
	loop_run_once(&l, false);
	loop_recent_ns(&l);
	for (unsigned i = 0; i < 20; i++) /* as many uses as a reading lasts, and more */
		last = loop_recent_ns(&l);
	cr_expect_geq(last, before);
	loop_recent_ns(&l);
	before = loop_now_ns(&l);
	loop_worked(&l); /* something came, after a wait perhaps */
	cr_expect_geq(loop_recent_ns(&l), before);
	loop_close(&l);
	NO_LEAKS();
}

Test(loop_fake, recent_time_is_the_time, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	for (unsigned i = 0; i < 40; i++, f.now_ns += 7)
		cr_assert_eq(loop_recent_ns(&f.l), f.now_ns);
	fake_close(&f);
}

Test(loop_uv, random_bytes, .timeout = 5)
{
	struct loop l;
	uint8_t a[300] = { 0 }, zero[32] = { 0 };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	loop_random(&l, a, sizeof(a));
	cr_expect(memcmp(a, zero, 32) != 0 && memcmp(a + 268, zero, 32) != 0);
	cr_expect(memcmp(a, a + 32, 32) != 0);
	loop_random(&l, NULL, 0);
	loop_close(&l);
}

static void *post_thread(void *arg)
{
	struct item *i = arg;
	loop_post(i->l, &i->p);
	return NULL;
}

/* loop_close waits for what is owed. */
Test(loop_uv, close_waits_for_posts, .timeout = 10)
{
	struct loop l;
	pthread_t t;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct item a = { .p.fn = item_posted, .l = &l };
	loop_expect(&l);
	cr_assert_eq(pthread_create(&t, NULL, post_thread, &a), 0);
	loop_close(&l);
	cr_expect_eq(a.runs, 1);
	pthread_join(t, NULL);
	NO_LEAKS();
}

Test(loop_uv, stop_from_another_thread_before_run, .timeout = 10)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	loop_stop(&l);
	loop_run(&l); /* returns: the stop is not lost */
	loop_close(&l);
	NO_LEAKS();
}

Test(loop_fake, has_no_uv, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	cr_expect_null(loop_uv(&f.l));
	uint64_t before = f.l.turns;
	fake_turn(&f, 0);
	cr_expect_eq(f.l.turns, before + 1);
	fake_close(&f);
}
