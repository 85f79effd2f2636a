/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.h, each test on both backends: the same faults have the same effects on a caller, whether
 * the members are simulated or processes on loopback.
 */
#include "tests/sim/echo.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <string.h>

static struct echo_world world;
static const char *const args[] = { "%a", "%s", NULL };

static struct cluster *open_echo(enum cl_backend backend, uint64_t seed)
{
	struct cluster *c = cl_open(&(struct cl_opts){ .backend = backend, .seed = seed });
	world = (struct echo_world){ .rng = sim_rng(seed, "work") };
	cl_add(c, &(struct cl_member_opts){ .name = "echo",
					    .node = "s",
					    .app = &echo_app,
					    .arg = &world,
					    .exe = "tests/sim/echo_main",
					    .args = args });
	cr_assert(cl_start(c, "echo"), "%s", cl_why(c, "echo"));
	return c;
}

static enum err call(struct cluster *c, uint32_t method, uint32_t deadline_ms)
{
	static const char text[] = "twelve bytes";
	struct buf b = BUF_INIT(1 << 16);
	struct why why = { 0 };
	struct cl_from from = { .node = "c" };
	enum err e = cl_call(c, from, "echo", method, BYTES(text, 12), deadline_ms, &b, &why);
	if (e == ERR_NONE)
		cr_assert(b.n == 12 && memcmp(b.p, text, 12) == 0);
	else if (e != ERR_UNKNOWN_METHOD) /* the server's own words, those */
		cr_assert(strstr(why.text, "echo"), "%s does not name the peer", why.text);
	buf_fini(&b);
	return e;
}

/* A call that must succeed, after a time to recover. */
static void call_ok(struct cluster *c, uint32_t patience_ms)
{
	uint64_t end = clock_after_ms(cl_now_ns(c), patience_ms);
	enum err e;
	do
		e = call(c, ECHO_ECHO, 1000);
	while (e != ERR_NONE && cl_now_ns(c) < end);
	cr_assert_eq(e, ERR_NONE, "%s after %u ms", err_name(e), patience_ms);
}

#define BOTH(name)                                \
	static void name(enum cl_backend b);      \
	Test(cluster, name##_sim, .timeout = 30)  \
	{                                         \
		name(CL_SIM);                     \
		NO_LEAKS();                       \
	}                                         \
	Test(cluster, name##_real, .timeout = 60) \
	{                                         \
		name(CL_REAL);                    \
		NO_LEAKS();                       \
	}                                         \
	static void name(enum cl_backend b)

BOTH(calls_are_answered)
{
	struct cluster *c = open_echo(b, 1);
	call_ok(c, 5000);
	static const uint32_t all[] = { ECHO_ECHO, ECHO_SLOW, ECHO_WORK, ECHO_PARK };
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		cr_assert_eq(call(c, all[i], 4000), ERR_NONE, "method %u", all[i]);
	cr_assert_eq(call(c, ECHO_NO, 1000), ERR_NOT_FOUND);
	cr_assert_eq(call(c, 1000, 1000), ERR_UNKNOWN_METHOD);
	cl_close(c);
}

BOTH(a_partition_times_out_and_heals)
{
	struct cluster *c = open_echo(b, 2);
	call_ok(c, 5000);
	cl_partition(c, "c", "s");
	uint64_t t0 = cl_now_ns(c);
	cr_assert_eq(call(c, ECHO_ECHO, 300), ERR_TIMED_OUT);
	uint64_t ms = (cl_now_ns(c) - t0) / NS_PER_MS;
	cr_assert(ms >= 299 && ms < 2000, "%lu ms", ms);
	cl_heal(c, "c", "s");
	call_ok(c, 10000);
	cl_partition_oneway(c, "s", "c");
	cr_assert_eq(call(c, ECHO_ECHO, 300), ERR_TIMED_OUT);
	cl_heal(c, NULL, NULL);
	call_ok(c, 10000);
	cl_close(c);
}

BOTH(a_kill_is_typed_and_a_restart_serves_again)
{
	struct cluster *c = open_echo(b, 3);
	call_ok(c, 5000);
	for (int i = 0; i < 3; i++) {
		cl_kill(c, "echo");
		cr_assert(!cl_running(c, "echo"));
		enum err e = call(c, ECHO_ECHO, 400);
		cr_assert(e == ERR_UNREACHABLE || e == ERR_CONN_LOST || e == ERR_TIMED_OUT,
			  "%s", err_name(e));
		cr_assert(cl_start(c, "echo"));
		call_ok(c, 10000);
		cl_restart(c, "echo");
		call_ok(c, 10000);
	}
	cr_assert_eq(cl_runs(c, "echo"), 7);
	cl_close(c);
}

BOTH(a_stopped_peer_times_out_and_goes_on)
{
	struct cluster *c = open_echo(b, 4);
	call_ok(c, 5000);
	cl_stop(c, "echo");
	cr_assert_eq(call(c, ECHO_ECHO, 300), ERR_TIMED_OUT);
	cl_cont(c, "echo");
	call_ok(c, 10000);
	cl_suspend(c, "s", 500);
	cr_assert_eq(call(c, ECHO_ECHO, 200), ERR_TIMED_OUT);
	call_ok(c, 10000);
	cl_close(c);
}

BOTH(a_delay_is_felt_and_passes)
{
	struct cluster *c = open_echo(b, 5);
	call_ok(c, 5000);
	cl_delay(c, "c", "s", 200, 300);
	uint64_t t0 = cl_now_ns(c);
	cr_assert_eq(call(c, ECHO_ECHO, 5000), ERR_NONE);
	cr_assert_geq(cl_now_ns(c) - t0, 200 * NS_PER_MS);
	cl_run_ms(c, 500);
	call_ok(c, 1000);
	cl_close(c);
}

BOTH(a_reset_costs_a_reconnect)
{
	struct cluster *c = open_echo(b, 6);
	call_ok(c, 5000);
	cl_reset(c, "c", "s");
	call_ok(c, 10000);
	cl_reset(c, "s", NULL);
	call_ok(c, 10000);
	cl_close(c);
}

BOTH(overtaken_messages_are_matched_all_the_same)
{
	struct cluster *c = open_echo(b, 7);
	call_ok(c, 5000);
	cl_reorder(c, 300000);
	for (int i = 0; i < 30; i++)
		cr_assert_eq(call(c, ECHO_ECHO, 2000), ERR_NONE);
	cl_close(c);
}

BOTH(a_member_ends_when_asked)
{
	struct cluster *c = open_echo(b, 8);
	call_ok(c, 5000);
	cl_term(c, "echo");
	for (int i = 0; i < 100 && cl_running(c, "echo"); i++)
		cl_run_ms(c, 50);
	cr_assert(!cl_running(c, "echo"));
	if (b == CL_REAL)
		cr_assert_str_eq(cl_why(c, "echo"), "exit code 0");
	cl_close(c);
}

BOTH(chaos_passes)
{
	struct cluster *c = open_echo(b, 9);
	call_ok(c, 5000);
	struct cl_budget all = { .kill = 1,
				 .stop = 1,
				 .partition = 1,
				 .oneway = 1,
				 .delay = 1,
				 .reset = 1,
				 .reorder = 1,
				 .suspend = 1,
				 .clock_jump = 1,
				 .black_hole = 1,
				 .lossy = 1,
				 .disk_full = 1,
				 .disk_slow = 1,
				 .min_ms = 20,
				 .max_ms = 150 };
	cl_chaos(c, &all, 600, NULL, NULL);
	for (int i = 0; i < 10; i++)
		call(c, ECHO_ECHO, 100);
	cl_calm(c);
	call_ok(c, 40000);
	cl_close(c);
}

Test(cluster, what_a_backend_lacks_it_says, .timeout = 30)
{
	struct cluster *c = open_echo(CL_REAL, 10), *s = open_echo(CL_SIM, 10);
	static const enum cl_fault sim_only[] = {
		CL_BLACK_HOLE, CL_LOSSY,      CL_DISK_SLOW,
		CL_POWER_CUT,  CL_CLOCK_JUMP, CL_CLOCK_DRIFT
	};
	for (size_t i = 0; i < ARRAY_LEN(sim_only); i++)
		cr_assert(!cl_can(c, sim_only[i]) && cl_can(s, sim_only[i]));
	cr_assert(!cl_can(c, CL_OOM));
	cr_assert(cl_can(c, CL_DISK_FULL));
	cr_assert_null(cl_sim(c));
	cr_assert_not_null(cl_sim(s));
	cl_close(c);
	cl_close(s);
	NO_LEAKS();
}
