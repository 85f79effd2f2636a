/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double bench_loop_ns(void (*op)(void *arg), void *arg, uint32_t min_ms)
{
	uint64_t need = (uint64_t)min_ms * 1000000u;
	op(arg);
	for (uint64_t calls = 1;; calls *= 2) {
		uint64_t start = cpu_ns();
		for (uint64_t i = 0; i < calls; i++)
			op(arg);
		uint64_t took = cpu_ns() - start;
		if (took >= need)
			return (double)took / (double)calls;
	}
}

/* "model name", of the first processor; "unknown" where there is none. */
static void machine_name(char *out, size_t size)
{
	char line[256];
	FILE *f = fopen("/proc/cpuinfo", "re");
	snprintf(out, size, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !colon)
			continue;
		line[strcspn(line, "\n\"\\")] = 0;
		snprintf(out, size, "%s", colon + 2);
		break;
	}
	if (f)
		fclose(f);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void print_row(const struct bench_row *r, const double *ours, const double *limit)
{
	char machine[128];
	double load = 0, mid = ours[BENCH_SAMPLES / 2], lim = limit[BENCH_SAMPLES / 2];
	const char *commit = getenv("BENCH_COMMIT");
	machine_name(machine, sizeof(machine));
	getloadavg(&load, 1);
	printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", r->name, mid, r->unit);
	if (r->limit)
		printf(",\"limit_name\":\"%s\",\"limit\":%.6g,\"ratio\":%.4g", r->limit_name,
		       lim, r->less ? lim / mid : mid / lim);
	else
		printf(",\"limit_name\":null,\"limit\":null,\"ratio\":null");
	printf(",\"spread\":%.3g,\"samples\":%d", (ours[BENCH_SAMPLES - 1] - ours[0]) / mid,
	       BENCH_SAMPLES);
	if (r->goal > 0)
		printf(",\"goal\":%g", r->goal);
	if (r->note)
		printf(",\"note\":\"%s\"", r->note);
	printf(",\"commit\":\"%s\",\"load\":%.2f,\"machine\":\"%s, %ld cores\"}\n",
	       commit ? commit : "unknown", load, machine, sysconf(_SC_NPROCESSORS_ONLN));
	fflush(stdout);
}

static void run_row(const struct bench_row *r, void *arg)
{
	double ours[BENCH_SAMPLES], limit[BENCH_SAMPLES] = { 0 };
	for (size_t i = 0; i < BENCH_SAMPLES; i++) {
		if (r->limit && i % 2)
			limit[i] = r->limit(arg);
		ours[i] = r->ours(arg);
		if (r->limit && i % 2 == 0)
			limit[i] = r->limit(arg);
	}
	qsort(ours, BENCH_SAMPLES, sizeof(ours[0]), by_value);
	qsort(limit, BENCH_SAMPLES, sizeof(limit[0]), by_value);
	print_row(r, ours, limit);
}

/* "wire" and "wire.encode_item" name wire.encode_item; "wire.enc" does not. */
static bool named(const struct bench_row *r, const char *name)
{
	size_t n = strlen(name);
	return strncmp(r->name, name, n) == 0 && (r->name[n] == 0 || r->name[n] == '.');
}

static bool wanted(const struct bench_row *r, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (named(r, argv[i]))
			return true;
	return argc <= 1;
}

static int list(const struct bench_row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%s\n", rows[i].name);
	return 0;
}

int bench_main(int argc, char **argv, const struct bench_row *rows, size_t n, void *arg)
{
	bool any = false;
	if (argc == 2 && strcmp(argv[1], "--list") == 0)
		return list(rows, n);
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__)
	fprintf(stderr, "warning: not a release build: these numbers mean nothing\n");
#endif
	for (size_t i = 0; i < n; i++) {
		if (!wanted(&rows[i], argc, argv))
			continue;
		any = true;
		run_row(&rows[i], arg);
	}
	if (!any)
		fprintf(stderr, "no benchmark has that name; --list prints them\n");
	return any ? 0 : 2;
}
