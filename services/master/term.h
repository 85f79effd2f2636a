/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lives for one term: the mind, its clock, its appends to the meta log, its turns of work.
 *
 * I1: the mind exists from the moment the raised term is durable until the service closes; before,
 *     mst_mind() is NULL and callers answer RECOVERING or NOT_READY.
 * I2: the mind's time is the loop's less the master's own absence: after a stop of the whole process
 *     nothing has expired meanwhile, as nobody could reach it (L1). Leases only get longer by it.
 * I3: whoever touches the mind gets a turn after this one, in which its commands leave, coalesced, and
 *     its sliced work goes on (L4).
 * I4: an append that fails otherwise than for lack of room ends the service: a restart reads what is
 *     there (T1).
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/err.h"
#include "loop/loop.h"

struct mind;
struct mst;

struct mst_term {
	struct mind *mind;
	/* private */
	uint64_t mind_ns, seen_ns; /* I2 */
	uint64_t armed_ns;	   /* mind_due_ns for which `due` runs */
	struct post after;
	bool after_posted;
	struct timer due;
};

/* The term is durable. An error fails the service. */
void mst_term_begin(struct mst *m);
/* Frees the mind; appends under way end by themselves. Fine before begin. */
void mst_term_end(struct mst *m);
/* The mind, told the time (I2), with a turn to follow (I3); NULL: no term yet. */
struct mind *mst_mind(struct mst *m);
