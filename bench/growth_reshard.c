/* SPDX-License-Identifier: Apache-2.0 */
/*
 * growth_reshard [FRAGMENTS...]: how planning grows. Tensors of 4,096 x 64 cut by rows over 8 ranks, to be
 * cut over 4; from 1 k to 1 M fragments at the source, or as many as named. Prints a table, and for
 * the former a plot on logarithmic axes (docs/weights.md has one): parsing and checking are left
 * out, the dotted line is N log N through the first point. Processor time of one thread, the best of
 * ten, and the steps that the plan took from its work budget.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "reshard/plan.h"

#define POINTS 13
#define TIMES  10

static double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static bool put_tensors(struct place_new *b, uint32_t n)
{
	static const uint64_t shape[2] = { 4096, 64 }, shard[1] = { 0 };
	char name[32];
	bool ok = true;
	for (uint32_t i = 0; ok && i < n; i++) {
		struct tensor t = { .shape = shape,
				    .shard_dims = shard,
				    .n_dims = 2,
				    .n_shard = 1,
				    .itemsize = 2,
				    .dtype = BYTES("bfloat16", 8),
				    .layout = BYTES("l", 1) };
		t.id = BYTES(name, snprintf(name, sizeof(name), "layers.%u.weight", i));
		t.axes[AX_TP] = (struct axis){ SEM_SPLIT, 0 };
		ok = place_new_tensor(b, &t);
	}
	return ok;
}

static bool put_part(struct place_new *b, uint32_t n, uint64_t tp, uint64_t rank)
{
	const struct rank r = { { 0, 0, 0, rank } };
	const uint64_t rows = 4096 / tp, box[4] = { rank * rows, 0, rows, 64 };
	char name[32];
	struct bytes id = BYTES(name, snprintf(name, sizeof(name), "r%03u", (unsigned)rank));
	bool ok = place_new_member(b, id, &r) && place_new_part(b, id, &r);
	for (uint32_t i = 0; ok && i < n; i++)
		ok = place_new_frag(b, BYTES(NULL, 0),
				    BYTES(name,
					  snprintf(name, sizeof(name), "layers.%u.weight", i)),
				    box, 2, rows * 128, NULL, NULL, 0);
	return ok;
}

static struct place *lay(uint32_t n, uint64_t tp)
{
	static const struct place_limits lim = PLACE_LIMITS;
	const uint64_t size[AX_N] = { 1, 1, 1, tp };
	struct reject why = { 0 };
	struct place *p = NULL;
	struct place_new *b = place_new_open(&lim, &why);
	bool ok = b &&
		  place_new_ident(b, BYTES("m", 1), BYTES("r", 1), 1, BYTES("s", 1), size) &&
		  put_tensors(b, n);
	for (uint64_t r = 0; ok && r < tp; r++)
		ok = put_part(b, n, tp, r);
	if (!ok || place_build(b, &p) != ERR_NONE) {
		fprintf(stderr, "growth_reshard: %s: %s\n", rule_name(why.rule), why.text);
		exit(1);
	}
	place_new_free(b);
	return p;
}

struct point {
	double fragments, ms;
	double steps; /* charged to the plan's work budget: the same on every machine */
};

/* n tensors: 8 n fragments at the source. The best of `times`. */
static struct point measure(uint32_t n, int times)
{
	struct place *s = lay(n, 8), *t = lay(n, 4);
	struct plan_ask a = { .source = s, .target = t, .lim = PLAN_LIMITS_WIDE };
	struct point out = { .fragments = s->n_frags, .ms = 1e18 };
	for (int i = 0; i < times; i++) {
		struct reject why;
		struct plan *p = NULL;
		double t0 = cpu_ms();
		if (plan_make(&a, &why, &p) != ERR_NONE)
			exit(1);
		out.ms = MIN_OF(out.ms, cpu_ms() - t0);
		out.steps = (double)p->work;
		plan_free(p);
	}
	place_free(s);
	place_free(t);
	return out;
}

enum { W = 61, DECADE = 4, DECADES_MAX = 8 };

/* The row of value v, 0 at the bottom. */
static int row_of(double v, double y0)
{
	return (int)lround((log10(v) - y0) * DECADE);
}

static void plot(const double *x, const double *y)
{
	char at[DECADE * DECADES_MAX + 1][W + 1];
	double x0 = log10(x[0]), x1 = log10(x[POINTS - 1]), y0 = floor(log10(y[0]));
	int top = MIN_OF((int)(ceil(log10(y[POINTS - 1])) - y0), DECADES_MAX) * DECADE;
	memset(at, ' ', sizeof(at));
	for (int c = 0; c < W; c++) {
		double n = pow(10, x0 + (x1 - x0) * c / (W - 1));
		int r = row_of(y[0] * n * log(n) / (x[0] * log(x[0])), y0);
		if (r >= 0 && r <= top)
			at[r][c] = '.';
	}
	for (int i = 0; i < POINTS; i++)
		at[row_of(y[i], y0)][(int)lround((log10(x[i]) - x0) / (x1 - x0) * (W - 1))] =
			'#';
	printf("\n    ms: # measured; . N log N through the first\n");
	for (int r = top; r >= 0; r--) {
		at[r][W] = 0;
		if (r % DECADE == 0)
			printf("    %6g |%s\n", pow(10, y0 + r / DECADE), at[r]);
		else
			printf("           |%s\n", at[r]);
	}
	printf("           +");
	for (int c = 0; c < W; c++)
		putchar(c % 20 == 0 ? '+' : '-');
	printf("\n            1 k                 10 k                100 k               1 M fragments\n");
}

static void print(const struct point *p)
{
	printf("    %9.0f %8.2f %8.0f %8.1f\n", p->fragments, p->ms, p->ms * 1e6 / p->fragments,
	       p->steps / p->fragments);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	double x[POINTS], y[POINTS];
	printf("    fragments       ms   ns and steps a fragment\n");
	for (int i = 0; argc < 2 && i < POINTS; i++) {
		struct point p = measure((uint32_t)lround(125 * pow(10, i / 4.0)), TIMES);
		x[i] = p.fragments;
		y[i] = p.ms;
		print(&p);
	}
	for (int i = 1; i < argc; i++) {
		struct point p = measure((uint32_t)(strtoul(argv[i], NULL, 10) / 8), TIMES);
		print(&p);
	}
	if (argc < 2)
		plot(x, y);
	return 0;
}
