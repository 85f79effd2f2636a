/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every benchmark shares: interleaved samples, medians, one JSON object a line
 * (spec/store.md, "Benchmarks"):
 *
 *	{"name":"wire.encode_item","value":9.1,"unit":"ns","limit_name":"msgpack-c","limit":80.2,
 *	 "ratio":8.81,"spread":0.04,"samples":7,"goal":20,"note":"...","commit":"...","load":0.3,
 *	 "machine":"..."}
 *
 *   value   median of our samples
 *   limit   median of the peer's, or of the physical bound's, measured in the same run: ours and
 *           the limit's samples alternate, and who goes first alternates too
 *   ratio   value / limit, limit / value where less is better: above 1 beats the limit
 *   spread  (largest - smallest) / median of our samples
 *   goal    a number some rule asks for; absent when none does
 *
 * A program is a table of rows and main() { return bench_main(argc, argv, rows, n, arg); }. Its
 * arguments are names, or beginnings of names up to a dot; none: all. --list prints names.
 * Thread: main's.
 */
#pragma once

#include "base/def.h"

struct bench_row {
	const char *name; /* stable: "store.get_1m_shm" */
	const char *unit; /* "items/s", "bytes/s", "ns" */
	bool less;	  /* less is better */
	/* One sample in `unit`, of at least some ten milliseconds of work. */
	double (*ours)(void *arg);
	double (*limit)(void *arg); /* NULL: no limit measured */
	const char *limit_name;
	double goal;	  /* 0: none */
	const char *note; /* clients, batches in flight, sizes */
};

#define BENCH_SAMPLES 7 /* median of at least 5 (spec/store.md); odd */

/*
 * Runs the rows named by argv and prints them. Returns what main returns: 0; 2 for a name that no
 * row begins with, so that a caller of several programs can tell.
 */
int bench_main(int argc, char **argv, const struct bench_row *rows, size_t n, void *arg);

/*
 * Runs op again and again for at least min_ms; nanoseconds a call. Of this thread's processor time,
 * so that a neighbour's time slice does not count: for work that neither waits nor has threads.
 */
double bench_loop_ns(void (*op)(void *arg), void *arg, uint32_t min_ms);

/* Keeps the compiler from dropping work whose result nobody reads. */
static inline void bench_keep(const void *p)
{
	__asm__ volatile("" : : "g"(p) : "memory");
}
