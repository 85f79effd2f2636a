/* SPDX-License-Identifier: Apache-2.0 */
/* The toy service under random faults, and proof that the harness can fail. */
#include "tests/sim/echo.h"
#include "tests/support/dies.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct echo_world w;

struct sums {
	uint64_t begun, failed, by_err[ARRAY_LEN(w.by_err)], once, events;
};

static void add(struct sums *t)
{
	t->begun += w.n_begun;
	t->failed += w.n_failed;
	t->once += w.n_once;
	for (size_t i = 0; i < ARRAY_LEN(t->by_err); i++)
		t->by_err[i] += w.by_err[i];
}

/* The runs are worth something only if faults are met: each of these is, thousands of times. */
static void check_sums(const struct sums *t, uint64_t n)
{
	static const enum err want[] = { ERR_NONE,	ERR_TIMED_OUT,	ERR_CONN_LOST,
					 ERR_CANCELLED, ERR_CLOSED,	ERR_BUSY,
					 ERR_NOT_FOUND, ERR_UNREACHABLE };
	fprintf(stderr, "%lu seeds, %lu calls, %lu failed:", n, t->begun, t->failed);
	for (size_t i = 0; i < ARRAY_LEN(t->by_err); i++)
		if (t->by_err[i])
			fprintf(stderr, " %s %lu", err_name((enum err)i), t->by_err[i]);
	fprintf(stderr, "\n");
	for (size_t i = 0; i < ARRAY_LEN(want); i++)
		cr_assert(t->by_err[want[i]] > n / 10, "%s came %lu times only",
			  err_name(want[i]), t->by_err[want[i]]);
}

Test(echo, every_call_ends_whatever_happens, .timeout = 280)
{
	struct sums t = { 0 };
	uint64_t seed, n = 0;
	for (struct sim_seeds r = sim_seeds(5000); sim_seeds_next(&r, &seed); n++) {
		echo_scenario(seed, ECHO_RIGHT, &w);
		add(&t);
	}
	if (n > 100)
		check_sums(&t, n);
	NO_LEAKS();
}

Test(echo, the_same_seed_gives_the_same_events, .timeout = 60)
{
	for (uint64_t seed = 1; seed <= 50; seed++) {
		uint64_t h = echo_scenario(seed, ECHO_RIGHT, &w);
		uint64_t begun = w.n_begun, failed = w.n_failed;
		cr_assert_eq(echo_scenario(seed, ECHO_RIGHT, &w), h, "seed %lu ran in two ways",
			     seed);
		cr_assert(w.n_begun == begun && w.n_failed == failed);
		cr_assert_neq(echo_scenario(seed + 1000, ECHO_RIGHT, &w), h);
	}
	NO_LEAKS();
}

static void run_bug(void *arg)
{
	for (uint64_t seed = 1; seed <= 300; seed++)
		echo_scenario(seed, *(enum echo_bug *)arg, &w);
}

static bool found(enum echo_bug bug, char *text, size_t size)
{
	return dies(run_bug, &bug, text, size);
}

struct planted {
	enum echo_bug bug;
	const char *says;
};

Test(echo, planted_mistakes_are_found, .timeout = 120)
{
	static const struct planted rows[] = {
		{ ECHO_FORGETS, "a member does not end when asked to" },
		{ ECHO_LOSES_WAKE, "a member does not end when asked to" },
		{ ECHO_WRONG_BYTES, "answered other bytes than it got" },
		{ ECHO_RETRIES_ONCE, "<= 1 is false: number" },
		{ ECHO_LEAVES_TIMER, "echo ended, a timer of it runs" },
		{ ECHO_TELLS_LIES, "was not carried out, its caller was told so" },
		{ ECHO_OWES, "echo ended, its loop is owed 1 posts" },
		{ ECHO_LATE, "us after its deadline" },
	};
	static char text[200000];
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cr_assert(found(rows[i].bug, text, sizeof(text)), "mistake %d is not found",
			  rows[i].bug);
		cr_assert(strstr(text, rows[i].says), "'%s' is not in: %.3000s", rows[i].says,
			  text);
		cr_assert(strstr(text, "runs it again"), "%.3000s", text);
	}
	cr_assert(!found(ECHO_RIGHT, text, sizeof(text)), "%.3000s", text);
}
