/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store of real processes for tests that stop and kill them: a master and two agents on one host,
 * each a child of the test, with pools in /dev/shm and small times; a handle of the library; other
 * objects that are put until the pools have turned over and whose every byte is compared; and kids,
 * processes that make one call each and stop or die at a place (base/fault.h). Or all of it under the
 * supervisor, with one agent (rig_sup_up).
 *
 * A test's main begins with rig_kid_main(). What must hold is a CHECK: it prints, ends every process
 * and exits. Every wait has a limit. Thread: the test's.
 */
#pragma once

#include "daemons.h"
#include "pml_store.h"

#include <stdio.h>

enum { RIG_AGENTS = 2, RIG_OTHERS = 160, RIG_VALUE_MAX = 2 << 20, RIG_WAIT_MS = 60000 };

struct rig_other {
	char key[32]; /* "": none */
	uint64_t seed;
	size_t n;
};

struct rig {
	struct box box[RIG_AGENTS]; /* box[0] has the master, too */
	char shm[RIG_AGENTS][64];
	struct proc master, agent[RIG_AGENTS];
	char id[RIG_AGENTS][65];
	unsigned port, pool_mib, dead_ms, discard_ms, budget;
	struct pml *p;
	uint64_t rng, gen, version; /* version: the highest that a put of ours got */
	struct rig_other others[RIG_OTHERS];
	uint8_t *want, *got;
	unsigned evicted, compared;
	bool supervised; /* rig_sup_up made it: no agents and no master of ours */
};

#define CHECK(r, cond, ...)                                                        \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
			fprintf(stderr, __VA_ARGS__);                              \
			fputc('\n', stderr);                                       \
			rig_fail(r);                                               \
		}                                                                  \
	} while (0)

/* ---- the cluster ---- */

/* pool_mib, dead_ms, discard_ms, budget (0: the default) and rng are set by the caller. */
void rig_up(struct rig *r);
void rig_down(struct rig *r);
_Noreturn void rig_fail(struct rig *r);

/* faults: POMELO_TEST_FAULTS of the process; NULL: none. Waits until it can be reached, not until ready. */
void rig_master(struct rig *r, const char *faults);
void rig_agent(struct rig *r, unsigned i, const char *faults);
void rig_kill(struct rig *r, struct proc *p);
/* Until the master says that of the agent: "in", "away", "suspect", "merging". */
void rig_until(struct rig *r, unsigned agent, const char *state);
/* Both in, and nothing is recovering. */
void rig_settled(struct rig *r);
/* Waits for a child to stop by itself; false: it ended, or ms passed. */
bool rig_stopped(pid_t pid, unsigned ms);
bool rig_ended(pid_t pid);

uint64_t rig_chance(uint64_t *rng, uint64_t n);
uint64_t rig_now_ms(void);
void rig_sleep(unsigned ms);

/* ---- under the supervisor (store_sup.c) ---- */

/* All five services, one agent among them, in box[0], as `pomelo up` starts them; instead of rig_up. pool_mib is set by the caller. */
void rig_sup_up(struct rig *r);
/* `pomelo down`: nothing is left behind. */
void rig_sup_down(struct rig *r);
/* `pomelo up`: a supervisor that is not there is started and adopts what runs; back when all are ready. */
void rig_sup_ready(struct rig *r);
/* The service's process; wait: until it runs, else 0 when it does not. */
pid_t rig_sup_pid(struct rig *r, const char *name, bool wait);
/* What the last `up` left. */
pid_t rig_sup_supervisor(struct rig *r);
void rig_sup_kill(struct rig *r, pid_t pid, const char *name);
/* Part of rig_fail. */
void rig_sup_fail(struct rig *r);

/* ---- values ---- */

void value_fill(uint8_t *p, size_t n, uint64_t seed);
bool value_is(const uint8_t *p, size_t n, uint64_t seed);

/* ---- the handle ---- */

/* put or upsert, hard-pinned unless the key begins with "o/"; agent: preferred, -1: none. Returns the code; its version in *version (may be NULL). */
int rig_put(struct rig *r, const char *key, uint64_t seed, size_t n, bool upsert, int agent,
	    uint64_t *version);
/* The code of a get. Success: *seed says which of the seeds it was; a value of none of them ends the test. */
int rig_get(struct rig *r, const char *key, const uint64_t *seeds, unsigned n_seeds, size_t n,
	    unsigned *which);
int rig_remove(struct rig *r, const char *key);

/* Puts and removes others until so many pools' worth of bytes went in. lenient: errors are no end. */
void rig_turn_over(struct rig *r, double pools, bool lenient);
/* Reads every other object. Gone is evicted; a foreign byte ends the test. */
void rig_compare(struct rig *r);

/* ---- kids ---- */

struct kid {
	pid_t pid;
	int out;
	const char *row;
	char key[32];
	uint64_t seed;
	size_t n;
	bool get;
	/* when it is over */
	int code;
	uint64_t version;
	char text[400];
};
/* A process that puts (upserts with upsert) or gets, with faults armed. */
void kid_start(struct rig *r, struct kid *k, const char *op, const char *faults, int agent,
	       unsigned deadline_ms);
/* Prints what it said so far. */
void kid_show(const struct kid *k);
/* Its end, by itself; a get of wrong bytes ends the test. */
void kid_wait(struct rig *r, struct kid *k);
/* Is argv a kid's? Then runs it, and returns its exit code in *code. */
bool rig_kid_main(int argc, char **argv, int *code);
