/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A toy service over the full rpc stack and callers that never rest, for the harness to break.
 *
 *   ECHO   answers at once            SLOW  answers after a while, by a timer
 *   WORK   answers after a pool job   PARK  parks, answers later still
 *   ONCE   answers at once and counts: a number that is not idempotent may be carried out once
 *   NO     refuses with NOT_FOUND
 *
 * Checked by the callers, each time: the call ended by its deadline (T7), with the right bytes or a
 * typed error whose text names the peer; by the end of a run: every call ended, each ONCE number was
 * carried out at most once and, if its caller was told so, exactly once.
 */
#pragma once

#include "tests/support/cluster.h"

enum echo_method { ECHO_ECHO = 601, ECHO_SLOW, ECHO_WORK, ECHO_PARK, ECHO_ONCE, ECHO_NO };

/* Mistakes the harness must find. */
enum echo_bug {
	ECHO_RIGHT,
	ECHO_FORGETS,	 /* one request in a while is never answered */
	ECHO_LOSES_WAKE, /* a job's end is not told to the loop */
	ECHO_WRONG_BYTES,
	ECHO_RETRIES_ONCE, /* the caller says ONCE were idempotent */
	ECHO_LEAVES_TIMER, /* ends with a timer that runs */
	ECHO_TELLS_LIES,   /* ONCE is answered, now and then, and not carried out */
	ECHO_OWES,	   /* ends with a post expected that never comes */
	ECHO_LATE,	   /* calls end 5 ms after their deadline */
};

#define ONCE_MAX 20000

/* Shared by the members of one cluster; the test's memory. */
struct echo_world {
	enum echo_bug bug;
	struct sim_rng rng;
	uint32_t n_slots; /* calls each caller has under way */
	bool quiet;	  /* callers begin no new calls */
	/* what happened */
	uint64_t n_begun, n_ended, n_ok, n_failed, n_retried;
	uint64_t by_err[64]; /* numbers from 64 on: in the last */
	uint32_t ok_of[2];   /* of each caller */
	uint32_t n_once;
	uint8_t once_done[ONCE_MAX]; /* how often a number was carried out */
	uint8_t once_told[ONCE_MAX]; /* its caller got a yes */
};

extern const struct cl_app echo_app; /* arg: struct echo_world */

/* A caller's arg. */
struct echo_caller {
	struct echo_world *w;
	const char *to; /* address */
	uint32_t i;
};
extern const struct cl_app echo_caller_app;

/* One run: a service, callers on other nodes, faults, calm, the end. Returns the hash. */
uint64_t echo_scenario(uint64_t seed, enum echo_bug bug, struct echo_world *w);
