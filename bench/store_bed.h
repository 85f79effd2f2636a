/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks of the store run on: a master and an agent as processes of their own, with a pool
 * in /dev/shm, a handle of libpomelo, and a process that echoes over bare SP, which is the limit of
 * control messages: the engine alone, no envelope, no MAC, no work.
 *
 * Daemons come from the build folder this program lies in. Whatever fails ends the program.
 * Thread: main's.
 */
#pragma once

#include "bench.h"
#include "pml_store.h"
#include "tests/service/daemons.h"

enum { BED_BATCH_MAX = 128, BED_FLIGHTS = 16 };

struct bed_echo; /* the client's end */

struct bed {
	struct box box;
	struct proc master, agent;
	char shm[64];	     /* folder of the pool */
	struct pml *p, *tcp; /* tcp: over data lanes alone; NULL until bed_tcp */
	struct pml_cq *cq, *tcp_cq;
	bool over_tcp; /* they have changed places */
	pid_t echo_pid;
	struct bed_echo *echo;
};

/* Is argv that of the echo process? Then it serves until it is killed. */
bool bed_echo_main(int argc, char **argv);
/* pool: its size as a setting, "1GiB". Waits until a put succeeds. */
void bed_up(struct bed *b, const char *pool, unsigned slots);
void bed_down(struct bed *b);
/* The calls that follow go through a handle that maps no memory, or through the first one again. */
void bed_tcp(struct bed *b, bool on);

/* Seconds of CLOCK_MONOTONIC. */
double bed_now(void);
/* Nanoseconds of processor time of this process. */
double bed_cpu_now(void);
_Noreturn void bed_die(const char *what, const char *text);

/* ---- calls ---- */

enum bed_op { BED_PUT, BED_GET, BED_EXISTS };

struct bed_work {
	enum bed_op op;
	const char *prefix; /* of the keys: PREFIX/00000017 */
	uint32_t n;	    /* items in all, a multiple of batch; the keys' numbers 0..n-1 */
	uint32_t batch;	    /* items a call */
	uint32_t flights;   /* calls under way, up to BED_FLIGHTS */
	size_t bytes;	    /* of an object */
	uint8_t *mem;	    /* item i is at mem + i % mem_n * bytes */
	uint32_t mem_n, verify; /* verify: enum pml_verify */
};

/* Nanoseconds of processor time an item took, in each of the three processes. */
struct bed_cpu {
	double client, master, agent;
};

/* Items a second, n at most 32,768. Every item must succeed. */
double bed_run(struct bed *b, const struct bed_work *w, struct bed_cpu *cpu);
/* Bytes of the pool that are given out. */
uint64_t bed_used(struct bed *b);
/* Removes what was put under prefix and waits until no more than `used` bytes are given out. */
void bed_clear(struct bed *b, const char *prefix, uint64_t used);

/* ---- the limit of messages ---- */

/* Bytes of one exchange. */
struct bed_bytes {
	size_t ask, answer;
};
/*
 * What w's calls move: [0] between client and master, [1] between client and agent (puts; else 0), a
 * call, as the daemons' counters say. Runs w once.
 */
void bed_bytes(struct bed *b, const struct bed_work *w, struct bed_bytes out[2]);
/* Rounds a second of n exchanges one after the other (those of 0 bytes left out), `flights` rounds at a
 * time, for ms. */
double bed_echo(struct bed *b, const struct bed_bytes *x, size_t n, unsigned flights,
		unsigned ms);
/* Median of `n` round trips, one at a time, nanoseconds. */
double bed_echo_p50(struct bed *b, struct bed_bytes x, unsigned n);

/* ---- the limit of data lanes (store_raw.c) ---- */

enum { BED_RAW_MAX = 4 };
struct bed_raw { /* zeroed: none */
	pid_t pid;
	unsigned n, set_mib;
	int fd[BED_RAW_MAX];
};
/* Is argv that of the process that sends? Then it does so until it is killed. */
bool bed_raw_main(int argc, char **argv);
/* conns: connections, and threads at each side. set_mib: what it sends from. */
void bed_raw_open(struct bed_raw *r, unsigned conns, unsigned set_mib);
void bed_raw_close(struct bed_raw *r);
/* Bytes a second of that many blocks of 1 MiB into a set of set_mib at `to`. */
double bed_raw_run(const struct bed_raw *r, uint8_t *to, unsigned blocks);
