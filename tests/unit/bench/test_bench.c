/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmarks' harness on made-up samples: medians, ratios the right way round, names.
 */
#include "bench/bench.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

struct fake {
	int n_ours, n_limit;
	char order[2 * BENCH_SAMPLES + 1]; /* 'o' ours, 'l' limit */
};

static void note(struct fake *f, char who)
{
	size_t n = strlen(f->order);
	if (n < sizeof(f->order) - 1)
		f->order[n] = who;
}

static double ours(void *arg)
{
	static const double samples[BENCH_SAMPLES] = { 9, 1, 5, 4, 6, 2, 100 };
	struct fake *f = arg;
	note(f, 'o');
	return samples[f->n_ours++ % BENCH_SAMPLES];
}

static double limit(void *arg)
{
	struct fake *f = arg;
	note(f, 'l');
	return 10 + f->n_limit++ % BENCH_SAMPLES; /* median 13 */
}

static const struct bench_row rows[] = {
	{ "x.more", "items/s", false, ours, limit, "peer", 0, NULL },
	{ "x.less", "ns", true, ours, limit, "peer", 20, "one client" },
	{ "y.alone", "ns", true, ours, NULL, NULL, 0, NULL },
};

static int run(struct fake *f, const char *a, const char *b)
{
	char *argv[] = { (char *)"bench", (char *)a, (char *)b, NULL };
	return bench_main(a ? b ? 3 : 2 : 1, argv, rows, ARRAY_LEN(rows), f);
}

/* The next line printed, as JSON. */
static json_t *line(FILE *out)
{
	char text[1024];
	json_error_t e;
	cr_assert_not_null(fgets(text, sizeof(text), out));
	json_t *j = json_loads(text, 0, &e);
	cr_assert_not_null(j, "%s: %s", e.text, text);
	return j;
}

static double number(const json_t *j, const char *key)
{
	return json_number_value(json_object_get(j, key));
}

static const char *text(const json_t *j, const char *key)
{
	return json_string_value(json_object_get(j, key));
}

Test(bench, medians_and_ratios, .timeout = 10)
{
	struct fake f = { 0 };
	cr_redirect_stdout();
	cr_assert_eq(run(&f, NULL, NULL), 0);
	FILE *out = cr_get_redirected_stdout();
	json_t *more = line(out), *less = line(out), *alone = line(out);
	cr_assert_str_eq(text(more, "name"), "x.more");
	cr_assert_float_eq(number(more, "value"), 5, 1e-9);
	cr_assert_float_eq(number(more, "limit"), 13, 1e-9);
	cr_assert_float_eq(number(more, "ratio"), 5 / 13.0, 1e-3);
	cr_assert_float_eq(number(more, "spread"), 99 / 5.0, 1e-1);
	cr_assert_eq(number(more, "samples"), BENCH_SAMPLES);
	cr_assert_null(json_object_get(more, "goal"));
	cr_assert_float_eq(number(less, "ratio"), 13 / 5.0, 1e-3);
	cr_assert_float_eq(number(less, "goal"), 20, 1e-9);
	cr_assert_str_eq(text(less, "note"), "one client");
	cr_assert(json_is_null(json_object_get(alone, "limit")));
	cr_assert(json_is_null(json_object_get(alone, "ratio")));
	cr_assert_not_null(text(alone, "commit"));
	cr_assert_not_null(text(alone, "machine"));
	json_decref(more);
	json_decref(less);
	json_decref(alone);
}

/* Ours and the limit's samples alternate, and so does who goes first. */
Test(bench, samples_interleave, .timeout = 10)
{
	struct fake f = { 0 };
	cr_redirect_stdout();
	cr_assert_eq(run(&f, "x.more", NULL), 0);
	cr_assert_str_eq(f.order, "olloollooll"
				  "ool");
}

Test(bench, names_choose, .timeout = 10)
{
	struct fake f = { 0 };
	cr_redirect_stdout();
	cr_redirect_stderr();
	cr_assert_eq(run(&f, "x", NULL), 0);
	cr_assert_eq(f.n_ours, 2 * BENCH_SAMPLES);
	f = (struct fake){ 0 };
	cr_assert_eq(run(&f, "y.alone", NULL), 0);
	cr_assert_eq(f.n_ours, BENCH_SAMPLES);
	f = (struct fake){ 0 };
	cr_assert_eq(run(&f, "x.mo", NULL), 2, "a beginning ends at a dot");
	cr_assert_eq(run(&f, "z", NULL), 2);
	cr_assert_eq(f.n_ours, 0);
	cr_assert_eq(run(&f, "--list", NULL), 0);
	cr_assert_eq(f.n_ours, 0);
}

static void count(void *arg)
{
	(*(uint64_t *)arg)++;
}

Test(bench, a_loop_runs_long_enough, .timeout = 10)
{
	uint64_t calls = 0;
	double ns = bench_loop_ns(count, &calls, 5);
	cr_assert_gt(ns, 0);
	cr_assert_geq((double)calls * ns, 5e6);
}
