/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator by itself: clocks, timers, processes, chance. */
#include "tests/support/dies.h"
#include "tests/support/leak.h"
#include "tests/support/sim.h"

#include <criterion/criterion.h>
#include <string.h>

/* A process with one loop and a timer that counts. */
struct ticker {
	struct sim_proc *p;
	struct loop l;
	struct timer t;
	struct post post;
	uint64_t every_ns, n, last_ns;
	uint64_t seen[64];
	bool in_proc, closed;
};

static void tick(struct timer *t)
{
	struct ticker *k = container_of(t, struct ticker, t);
	k->last_ns = loop_now_ns(&k->l);
	k->in_proc = sim_current() == k->p;
	k->n++;
	timer_start(&k->l, &k->t, k->last_ns + k->every_ns, tick);
}

static void ticker_end(void *arg)
{
	struct ticker *k = arg;
	timer_stop(&k->l, &k->t);
	sim_loop_close(&k->l);
	sim_proc_end(k->p);
	k->closed = true;
}

static void ticker_start(struct ticker *k, struct sim_node *n, const char *name,
			 uint64_t every_ms)
{
	*k = (struct ticker){ .every_ns = every_ms * NS_PER_MS };
	k->p = sim_proc_start(n, &(struct sim_proc_opts){
					 .name = name, .on_kill = ticker_end, .arg = k });
	sim_loop_open(k->p, &k->l);
	timer_start(&k->l, &k->t, loop_now_ns(&k->l) + k->every_ns, tick);
}

Test(sim, timers_follow_the_virtual_clock, .timeout = 20)
{
	struct sim *s = sim_new(1);
	struct ticker k;
	ticker_start(&k, sim_node(s, "a"), "tick", 10);
	sim_run_ms(s, 1000);
	cr_assert(k.n >= 98 && k.n <= 100, "%lu ticks of 10 ms in a second", k.n);
	cr_assert(k.in_proc);
	cr_assert_null(sim_current());
	ticker_end(&k);
	sim_free(s);
	NO_LEAKS();
}

Test(sim, each_machine_has_a_clock_of_its_own, .timeout = 20)
{
	struct sim *s = sim_new(2);
	struct ticker a, b;
	ticker_start(&a, sim_node(s, "a"), "a", 1000);
	ticker_start(&b, sim_node(s, "b"), "b", 1000);
	cr_assert_neq(loop_now_ns(&a.l), loop_now_ns(&b.l));
	sim_clock_drift(sim_node(s, "a"), 100000);
	uint64_t a0 = loop_now_ns(&a.l), b0 = loop_now_ns(&b.l);
	sim_run_ms(s, 100000);
	cr_assert_eq(loop_now_ns(&a.l) - a0, 110 * NS_PER_S);
	cr_assert_eq(loop_now_ns(&b.l) - b0, 100 * NS_PER_S);
	cr_assert(a.n >= 109 && a.n <= 110, "%lu seconds on the fast clock", a.n);
	cr_assert(b.n >= 99 && b.n <= 100, "%lu seconds on the right clock", b.n);
	ticker_end(&a);
	ticker_end(&b);
	sim_free(s);
	NO_LEAKS();
}

Test(sim, a_wall_jump_moves_no_timer, .timeout = 20)
{
	struct sim *s = sim_new(3);
	struct ticker k;
	ticker_start(&k, sim_node(s, "a"), "tick", 100);
	uint64_t wall = loop_wall_ms(&k.l), mono = loop_now_ns(&k.l);
	sim_clock_jump(sim_node(s, "a"), -3600 * 1000);
	cr_assert_eq(loop_wall_ms(&k.l), wall - 3600 * 1000);
	cr_assert_eq(loop_now_ns(&k.l), mono);
	sim_run_ms(s, 1000);
	cr_assert(k.n >= 9 && k.n <= 10);
	ticker_end(&k);
	sim_free(s);
	NO_LEAKS();
}

Test(sim, a_skip_makes_timers_due_at_once, .timeout = 20)
{
	struct sim *s = sim_new(4);
	struct ticker k;
	ticker_start(&k, sim_node(s, "a"), "tick", 60000);
	sim_run_ms(s, 10);
	cr_assert_eq(k.n, 0);
	sim_clock_skip(sim_node(s, "a"), 60000);
	sim_run_ms(s, 1);
	cr_assert_eq(k.n, 1);
	ticker_end(&k);
	sim_free(s);
	NO_LEAKS();
}

Test(sim, a_sleeping_machine_runs_nothing_and_its_clock_goes_on, .timeout = 20)
{
	struct sim *s = sim_new(5);
	struct ticker k;
	ticker_start(&k, sim_node(s, "a"), "tick", 100);
	uint64_t t0 = loop_now_ns(&k.l);
	sim_suspend(sim_node(s, "a"), 5000);
	sim_run_ms(s, 4999);
	cr_assert_eq(k.n, 0);
	sim_run_ms(s, 2);
	cr_assert_eq(k.n, 1, "what fell due meanwhile fires once");
	cr_assert_geq(loop_now_ns(&k.l) - t0, 5000 * NS_PER_MS);
	ticker_end(&k);
	sim_free(s);
	NO_LEAKS();
}

static void see(void *arg)
{
	struct ticker *k = arg;
	k->seen[k->n++] = k->last_ns++;
}

Test(sim, a_stopped_process_does_it_all_later_in_order, .timeout = 20)
{
	struct sim *s = sim_new(6);
	struct ticker k;
	ticker_start(&k, sim_node(s, "a"), "p", 1000000);
	for (int i = 0; i < 20; i++)
		sim_at_proc(k.p, sim_now_ns(s) + (uint64_t)(i + 1) * NS_PER_MS, see, &k);
	sim_stop(k.p);
	cr_assert_eq(sim_proc_state(k.p), SIM_STOPPED);
	sim_run_ms(s, 1000);
	cr_assert_eq(k.n, 0);
	sim_cont(k.p);
	sim_run_ms(s, 1);
	cr_assert_eq(k.n, 20);
	for (uint64_t i = 0; i < 20; i++)
		cr_assert_eq(k.seen[i], i);
	ticker_end(&k);
	sim_free(s);
	NO_LEAKS();
}

Test(sim, a_killed_process_ends_through_its_own_shutdown, .timeout = 20)
{
	struct sim *s = sim_new(7);
	struct ticker a, b;
	ticker_start(&a, sim_node(s, "a"), "a", 10);
	ticker_start(&b, sim_node(s, "b"), "b", 10);
	sim_stop(a.p);
	sim_kill(a.p);
	sim_kill(a.p); /* once is enough */
	sim_run_ms(s, 100);
	cr_assert(a.closed);
	cr_assert_eq(sim_proc_state(a.p), SIM_ENDED);
	cr_assert(b.n > 5, "others go on");
	sim_power_cut(sim_node(s, "b"));
	sim_free(s);
	cr_assert(b.closed);
	NO_LEAKS();
}

static void post_back(struct post *p)
{
	struct ticker *k = container_of(p, struct ticker, post);
	k->n++;
}

static void worker_done(void *arg)
{
	struct ticker *k = arg;
	loop_post(&k->l, &k->post);
}

Test(sim, later_comes_later_and_waits_while_stopped, .timeout = 20)
{
	struct sim *s = sim_new(8);
	struct ticker k;
	ticker_start(&k, sim_node(s, "a"), "p", 1000000);
	k.post.fn = post_back;
	loop_expect(&k.l);
	k.l.driver->later(&k.l, worker_done, &k);
	cr_assert_eq(k.n, 0);
	sim_stop(k.p);
	sim_run_ms(s, 100);
	cr_assert_eq(k.n, 0);
	sim_cont(k.p);
	sim_run_ms(s, 1);
	cr_assert_eq(k.n, 1);
	ticker_end(&k);
	sim_free(s);
	NO_LEAKS();
}

/* Many tickers of equal periods: who goes first is up to the seed. */
static uint64_t crowd(uint64_t seed, uint8_t *nonce)
{
	struct sim *s = sim_new(seed);
	struct ticker k[8];
	char name[8] = "t0";
	for (int i = 0; i < 8; i++) {
		name[1] = (char)('0' + i);
		ticker_start(&k[i], sim_node(s, i % 2 ? "a" : "b"), name, 10);
	}
	loop_random(&k[0].l, nonce, 16);
	sim_run_ms(s, 500);
	sim_kill(k[3].p);
	sim_stop(k[4].p);
	sim_run_ms(s, 500);
	for (int i = 0; i < 8; i++)
		sim_kill(k[i].p);
	sim_run_ms(s, 10);
	uint64_t h = sim_hash(s);
	sim_free(s);
	return h;
}

Test(sim, the_same_seed_gives_the_same_events, .timeout = 20)
{
	uint8_t r[4][16];
	uint64_t h = crowd(11, r[0]);
	cr_assert_eq(h, crowd(11, r[1]));
	cr_assert_arr_eq(r[0], r[1], 16);
	cr_assert_neq(h, crowd(12, r[2]));
	cr_assert_neq(memcmp(r[0], r[2], 16), 0);
	NO_LEAKS();
}

Test(sim, labels_split_a_seed_into_streams, .timeout = 20)
{
	struct sim_rng a = sim_rng(1, "a"), a2 = sim_rng(1, "a"), b = sim_rng(1, "b");
	uint64_t first = sim_rng_next(&a);
	cr_assert_eq(first, sim_rng_next(&a2));
	cr_assert_neq(first, sim_rng_next(&b));
	uint64_t n[10] = { 0 };
	for (int i = 0; i < 10000; i++)
		n[sim_rng_below(&a, 10)]++;
	for (int i = 0; i < 10; i++)
		cr_assert(n[i] > 850 && n[i] < 1150, "digit %d came %lu times", i, n[i]);
}

static void fail_a_check(void *arg)
{
	struct sim *s = sim_new(4711);
	struct ticker k;
	(void)arg;
	ticker_start(&k, sim_node(s, "a"), "victim", 10);
	sim_stop(k.p);
	SIM_CHECK(k.n == 77, "n is %lu", k.n);
}

Test(sim, a_failed_check_prints_seed_and_events, .timeout = 20)
{
	static char text[8192];
	cr_assert(dies(fail_a_check, NULL, text, sizeof(text)));
	const char *want[] = { "k.n == 77 is false: n is 0", "SEED=4711 runs it again",
			       "start victim on a", "stop victim" };
	for (size_t i = 0; i < ARRAY_LEN(want); i++)
		cr_assert(strstr(text, want[i]), "'%s' is not in:\n%s", want[i], text);
}

Test(sim, seeds_come_from_the_environment, .timeout = 20)
{
	uint64_t seed, n = 0;
	unsetenv("SEED");
	unsetenv("SEEDS");
	for (struct sim_seeds r = sim_seeds(5); sim_seeds_next(&r, &seed);)
		n += seed;
	cr_assert_eq(n, 15);
	setenv("SEEDS", "3", 1);
	n = 0;
	for (struct sim_seeds r = sim_seeds(5); sim_seeds_next(&r, &seed);)
		n += seed;
	cr_assert_eq(n, 6);
	setenv("SEED", "77", 1);
	n = 0;
	for (struct sim_seeds r = sim_seeds(5); sim_seeds_next(&r, &seed);)
		n += seed;
	cr_assert_eq(n, 77);
}
