/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded pool of worker threads for blocking or heavy work. The queue has a depth; a full queue
 * is ERR_BUSY at once (B1). In a simulation there are no threads: the driver's `later` runs the
 * jobs, n_threads of them in flight at a time (loop.h).
 *
 * I1: done runs on the loop's thread, exactly once for each accepted job, after work.
 * I2: a job that is cancelled before a worker took it ends with ERR_CANCELLED, work never runs.
 * I3: jobs are taken in the order they were accepted.
 *
 * Threads: work on a worker; pool_progress any; all else the loop's.
 */
#pragma once

#include "base/list.h"
#include "loop/loop.h"

struct pool;

struct job {
	struct post post;	     /* private */
	void (*work)(struct job *j); /* worker thread */
	void (*done)(struct job *j); /* loop thread; may free j or submit it again */
	enum err err;		     /* set by work; ERR_CANCELLED by pool_cancel */
	struct list node;	     /* private */
	int state;		     /* private */
	struct pool *pool;	     /* private */
};

struct pool_opts {
	const char *name;   /* thread name, at most 15 characters; borrowed for life */
	uint32_t n_threads; /* 1..256 */
	uint32_t depth;	    /* jobs accepted and not yet taken by a worker; at least 1 */
};

/* owned, pool_free(). ERR_NO_MEMORY; ERR_BUSY when the system has no more threads. */
enum err pool_new(struct loop *l, const struct pool_opts *o, struct pool **out) MUST_CHECK;
/* Joins the workers; every accepted job must have ended (asserted). NULL is fine. */
void pool_free(struct pool *p);
/* ERR_BUSY when the queue is full. On ERR_NONE j is taken until done; j->err starts as ERR_NONE. */
enum err pool_submit(struct pool *p, struct job *j) MUST_CHECK;
/* True when the job had not begun: done follows with ERR_CANCELLED. A begun job runs to its end.
 * Safe on a job that is not submitted (false). */
bool pool_cancel(struct job *j);
/* Cancels all that has not begun; returns how many. For shutdown. */
size_t pool_cancel_all(struct pool *p);
/* Jobs done so far; any thread, relaxed: the beat carries it (L1). */
uint64_t pool_progress(const struct pool *p);
/* Accepted and not yet taken; and taken and not yet ended. */
uint32_t pool_queued(struct pool *p);
uint32_t pool_running(struct pool *p);
