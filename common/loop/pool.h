/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded pool of worker threads for blocking or heavy work. The queue has a depth; a full queue
 * is ERR_BUSY at once (B1). In a simulation there are no threads: jobs run, one at a time and in
 * order, when the simulator gives the pool its turn.
 *
 * I1: done runs on the loop's thread, exactly once for each accepted job, after work.
 * I2: a job that is cancelled before a worker took it ends with ERR_CANCELLED, work never runs.
 *
 * Threads: work on a worker; all else the loop's.
 */
#pragma once

#include "base/list.h"
#include "loop/loop.h"

struct pool;

struct job {
	struct post post;	     /* private */
	void (*work)(struct job *j); /* worker thread */
	void (*done)(struct job *j); /* loop thread */
	enum err err;		     /* set by work; ERR_CANCELLED by pool_cancel */
	struct list node;	     /* private */
	int state;		     /* private */
	struct pool *pool;	     /* private */
};

struct pool_opts {
	const char *name; /* thread name, at most 15 characters; borrowed for life */
	uint32_t n_threads;
	uint32_t depth; /* jobs accepted and not yet taken by a worker */
};

/* owned, pool_free(). ERR_NO_MEMORY. */
enum err pool_new(struct loop *l, const struct pool_opts *o, struct pool **out) MUST_CHECK;
/* Joins the workers; every accepted job must have ended (expected == 0). NULL is fine. */
void pool_free(struct pool *p);
/* ERR_BUSY when the queue is full. On ERR_NONE j is taken until done. */
enum err pool_submit(struct pool *p, struct job *j) MUST_CHECK;
/* True when the job had not begun: done follows with ERR_CANCELLED. A begun job runs to its end. */
bool pool_cancel(struct job *j);
/* Jobs done so far; any thread, relaxed: the beat carries it (L1). */
uint64_t pool_progress(const struct pool *p);
uint32_t pool_queued(const struct pool *p);
