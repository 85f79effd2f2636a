/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator: any number of machines and processes in one thread, on a virtual clock. A seed
 * decides everything that chance decides outside: how long a wake-up, a job, a message takes, who
 * of two goes first. The same seed gives the same run, event by event (sim_hash).
 *
 *   struct sim_node   a machine: clock (offset, drift, jumps), disk, network address
 *   struct sim_proc   one run of a process on it, with one or more loops
 *
 * A process is running, stopped (SIGSTOP: what falls due waits) or dead. A dead one is cut from
 * network and disk at that instant, so nothing it does is seen any more; what is left of it then
 * ends like any other process, through its own shutdown path (on_kill), so that memory is freed,
 * leaks are found and shutting down is tried in every state a kill can hit. A restart is a new
 * process.
 *
 * I1: time never goes back; an event runs at its time or, while its process is stopped, after.
 * I2: callbacks of a process run only while it runs or is dead; sim_current() is it meanwhile.
 * I3: code under test takes time, chance, workers, messages and files from here alone.
 * I4: the list of events is bounded: the last SIM_LINES lines and the first SIM_FAULTS faults.
 *
 * Errors in using the simulator, and lack of memory in it, abort with the event list: it is the
 * test's own foot. Thread: one, whose stack the whole world shares.
 */
#pragma once

#include "base/list.h"
#include "loop/loop.h"

#include <stdio.h>

#define SIM_LINES  400
#define SIM_FAULTS 400

struct sim;
struct sim_node;
struct sim_proc;
struct sim_disk;
struct net_sim;

/* ---- chance ---- */

struct sim_rng {
	uint64_t s;
};

/* A stream of its own for each label: more draws in one leave the others as they were. */
struct sim_rng sim_rng(uint64_t seed, const char *label);
uint64_t sim_rng_next(struct sim_rng *r);
/* 0..n-1; n > 0. */
uint64_t sim_rng_below(struct sim_rng *r, uint64_t n);
static inline uint64_t sim_rng_between(struct sim_rng *r, uint64_t lo, uint64_t hi)
{
	return lo + sim_rng_below(r, hi - lo + 1);
}
/* True in ppm of a million cases. */
static inline bool sim_rng_chance(struct sim_rng *r, uint32_t ppm)
{
	return ppm > 0 && sim_rng_below(r, 1000000) < ppm;
}

/*
 * Which seeds a test runs: 1..n_default; SEEDS=n in the environment runs 1..n instead, SEED=n the
 * one seed n.
 *
 *   uint64_t seed;
 *   for (struct sim_seeds r = sim_seeds(1000); sim_seeds_next(&r, &seed);)
 *           scenario(seed);
 */
struct sim_seeds {
	uint64_t next, end;
};
struct sim_seeds sim_seeds(uint64_t n_default);
bool sim_seeds_next(struct sim_seeds *r, uint64_t *seed);

/* ---- the world ---- */

/* owned, sim_free(). Aborts for lack of memory. */
struct sim *sim_new(uint64_t seed);
/*
 * Runs until every process has ended, at most ten virtual minutes, and frees all. A process that
 * still lives then, or never closed its loop, is a failed check.
 */
void sim_free(struct sim *s);

uint64_t sim_seed(const struct sim *s);
uint64_t sim_now_ns(const struct sim *s);
/* For the harness; workloads of tests have streams of their own. */
struct sim_rng *sim_world_rng(struct sim *s);
struct net_sim *sim_net(struct sim *s);

/* Runs fn(arg) at when_ns, or now if that has passed; in no process. Not to be taken back. */
void sim_at(struct sim *s, uint64_t when_ns, void (*fn)(void *arg), void *arg);
/* The same in process p: waits while p is stopped. */
void sim_at_proc(struct sim_proc *p, uint64_t when_ns, void (*fn)(void *arg), void *arg);

/* One event. False: none is left. */
bool sim_step(struct sim *s);
/* Runs what falls due in the next ms; the clock stands at its end then. */
void sim_run_ms(struct sim *s, uint64_t ms);
/* Runs until pred says true, for at most ms. False: it never did. */
bool sim_run_until(struct sim *s, bool (*pred)(void *arg), void *arg, uint64_t ms);
/* The same to a point in time, not before now. */
bool sim_run_until_ns(struct sim *s, bool (*pred)(void *arg), void *arg, uint64_t end_ns);

/* ---- machines ---- */

/* The machine of that name, made at the first call. Name: 1..31 characters without '/'. */
struct sim_node *sim_node(struct sim *s, const char *name);
const char *sim_node_name(const struct sim_node *n);
struct sim *sim_node_sim(const struct sim_node *n);
/* A disk of SIM_DISK_BYTES, made at the first call (sim_disk.h). */
struct sim_disk *sim_node_disk(struct sim_node *n);
/*
 * What it keeps in memory over the lives of its processes (a pool, L3), by name: made at the first
 * call. A power cut loses it: the next call makes another one. drop runs in sim_free, when no process
 * is left that could look at it.
 */
void *sim_node_ram(struct sim_node *n, const char *name, void *(*make)(void),
		   void (*drop)(void *ram));
/* Its monotonic clock runs fast by ppm (negative: slow), from now on; |ppm| <= 100,000. */
void sim_clock_drift(struct sim_node *n, int32_t ppm);
/* Its wall clock jumps. */
void sim_clock_jump(struct sim_node *n, int64_t ms);
/* Its monotonic clock jumps ahead, for it alone, as after the move of a virtual machine. */
void sim_clock_skip(struct sim_node *n, uint64_t ms);
/* It sleeps: for ms of everybody's time nothing on it runs; CLOCK_BOOTTIME goes on. */
void sim_suspend(struct sim_node *n, uint64_t ms);
/*
 * The power goes: every process on it dies without a word to its peers, the disk loses or tears
 * what was not synced. It is up again at once.
 */
void sim_power_cut(struct sim_node *n);

/* ---- processes ---- */

enum sim_state { SIM_RUNNING, SIM_STOPPED, SIM_DEAD, SIM_ENDED };

struct sim_proc_opts {
	const char *name; /* 1..31 characters; copied */
	/* It was killed: begin the shutdown that ends in sim_proc_end. Runs later, in the process. */
	void (*on_kill)(void *arg);
	void *arg;
};

/* borrowed; valid until sim_free. */
struct sim_proc *sim_proc_start(struct sim_node *n, const struct sim_proc_opts *o);
/* It ends by itself, or the dead one is done: its loops must be closed. */
void sim_proc_end(struct sim_proc *p);
enum sim_state sim_proc_state(const struct sim_proc *p);
const char *sim_proc_name(const struct sim_proc *p);
struct sim_node *sim_proc_node(const struct sim_proc *p);
/* SIGSTOP, SIGCONT, SIGKILL. On a process that is dead: nothing. */
void sim_stop(struct sim_proc *p);
void sim_cont(struct sim_proc *p);
void sim_kill(struct sim_proc *p);
/* It is not stopped and its machine does not sleep: its events run. */
bool sim_awake(const struct sim_proc *p);
/* When it last began to be: at its start, after a SIGCONT, when its machine woke up. */
uint64_t sim_awake_since_ns(const struct sim_proc *p);
/* From outside of any event: fn(arg) runs now, as an event of p, which must be awake. */
void sim_run_in(struct sim_proc *p, void (*fn)(void *arg), void *arg);
/* The process whose event runs; NULL between events and in the world's own. */
struct sim_proc *sim_current(void);
/* A job or disk operation of the current process takes ns more. */
void sim_spend(uint64_t ns);

/* As loop_open, in p. */
void sim_loop_open(struct sim_proc *p, struct loop *l);
/* As loop_close, but nothing runs in it: expected must be 0 and no timer run. */
void sim_loop_close(struct loop *l);
struct sim_proc *sim_loop_proc(const struct loop *l);

/* ---- the list of events ---- */

/* A line; counts for the hash. */
void sim_note(struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A line that is kept to the end: a fault. */
void sim_fault(struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Over every event, its time and process, and every line, so far. */
uint64_t sim_hash(const struct sim *s);
uint64_t sim_events(const struct sim *s);
/* Seed, faults and last lines. SIM_TRACE=1 in the environment prints each line as it comes. */
void sim_dump(const struct sim *s, FILE *f);

/*
 * Prints the text, then the lists of all worlds there are, and aborts. Abort from anywhere (an
 * assert in the code under test), a memory fault and a failed cr_assert print them too.
 */
#define SIM_CHECK(cond, ...)                                              \
	do {                                                              \
		if (!(cond))                                              \
			sim_fail(__FILE__, __LINE__, #cond, __VA_ARGS__); \
	} while (0)
_Noreturn void sim_fail(const char *file, int line, const char *cond, const char *fmt, ...)
	PRINTF_LIKE(4, 5);
