/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Polling before sleeping (I3 of loop.h). A pass that sleeps ends with the timer that each case
 * arms; one that polls returns at once, long before it.
 */
#include "loop/loop.h"

#include <criterion/criterion.h>
#include <time.h>

#include "fake_loop.h"
#include "tests/support/leak.h"

#define SPIN_US	 1000
#define ALARM_MS 40

struct spin {
	struct loop l;
	struct post p;
	struct timer alarm;
	unsigned posts, alarms;
};

static void on_post(struct post *p)
{
	container_of(p, struct spin, p)->posts++;
}

static void on_alarm(struct timer *t)
{
	container_of(t, struct spin, alarm)->alarms++;
}

static void spin_open(struct spin *s, uint32_t us, const uint32_t *only_if)
{
	*s = (struct spin){ .p.fn = on_post };
	cr_assert_eq(loop_open(&s->l), ERR_NONE);
	loop_spin(&s->l, us, only_if);
}

static void spin_close(struct spin *s)
{
	timer_stop(&s->l, &s->alarm);
	loop_close(&s->l);
	NO_LEAKS();
}

static void arm(struct spin *s)
{
	timer_start(&s->l, &s->alarm, clock_after_ms(loop_now_ns(&s->l), ALARM_MS), on_alarm);
}

static void work(struct spin *s)
{
	unsigned before = s->posts;
	loop_defer(&s->l, &s->p);
	loop_run_once(&s->l, true);
	cr_assert_eq(s->posts, before + 1);
}

static void wait_us(unsigned us)
{
	nanosleep(&(struct timespec){ .tv_nsec = (long)us * 1000 }, NULL);
}

/* Whether the next pass sleeps. */
static bool sleeps(struct spin *s)
{
	unsigned before = s->alarms;
	arm(s);
	loop_run_once(&s->l, true);
	return s->alarms > before;
}

Test(spin, after_work_it_polls_then_sleeps, .timeout = 10)
{
	struct spin s;
	spin_open(&s, SPIN_US, NULL);
	for (int i = 0; i < 3; i++) {
		work(&s);
		cr_expect(!sleeps(&s), "it had work: it polls");
		wait_us(2 * SPIN_US);
		cr_expect(sleeps(&s), "its time is over");
		cr_expect(sleeps(&s), "and stays over");
	}
	spin_close(&s);
}

Test(spin, loop_worked_counts, .timeout = 10)
{
	struct spin s;
	spin_open(&s, SPIN_US, NULL);
	loop_worked(&s.l);
	cr_expect(!sleeps(&s));
	wait_us(2 * SPIN_US);
	cr_expect(sleeps(&s));
	spin_close(&s);
}

Test(spin, timers_are_no_work, .timeout = 10)
{
	struct spin s;
	spin_open(&s, SPIN_US, NULL);
	cr_expect(sleeps(&s), "a new loop");
	cr_expect(sleeps(&s), "a timer fired");
	spin_close(&s);
}

Test(spin, zero_never_polls, .timeout = 10)
{
	struct spin s;
	spin_open(&s, 0, NULL);
	work(&s);
	cr_expect(sleeps(&s));
	spin_close(&s);
}

Test(spin, only_while_something_is_awaited, .timeout = 10)
{
	struct spin s;
	uint32_t awaited = 0;
	spin_open(&s, SPIN_US, &awaited);
	work(&s);
	cr_expect(sleeps(&s), "nobody waits");
	awaited = 1;
	work(&s);
	cr_expect(!sleeps(&s), "somebody does");
	awaited = 0;
	cr_expect(sleeps(&s), "no more");
	spin_close(&s);
}

Test(spin, run_stops_while_polling, .timeout = 10)
{
	struct spin s;
	spin_open(&s, SPIN_US, NULL);
	work(&s);
	loop_stop(&s.l);
	loop_run(&s.l);
	spin_close(&s);
}

Test(spin, nothing_in_a_simulation, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	loop_spin(&f.l, SPIN_US, NULL);
	loop_worked(&f.l);
	fake_turn(&f, 0);
	fake_close(&f);
}
