/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner as a whole: the shell (svc/svc.h), what is open (plans.h), what is known by digest
 * (shelf.h), and the one budget both are charged to.
 * Thread: the loop's; workers touch what struct wpl_run names.
 */
#pragma once

#include "loop/pool.h"
#include "plans.h"
#include "svc/svc.h"

#include "conf.def"
#include "metrics.def"

enum { PLANNER_METRICS(METRIC_ENUM) };
enum wpl_end { WPL_MADE_, WPL_REFUSED_, WPL_CANCELLED_, WPL_TIMED_OUT_, WPL_FAILED_ };

struct wpl {
	struct svc svc; /* first: svc.h */
	PLANNER_CONF(CONF_FIELD)
	struct budget mem;
	struct wpl_shelf shelf;
	struct wpl_plans plans;
	struct list waiting; /* runs that wait for memory, in their order */
	uint32_t n_running, n_waiting;
	struct timer idle, wake;
	struct job trim;
	bool trim_due,
		trimming; /* a run has ended since the heap was last trimmed; a job does it now */
};

extern const struct svc_def wpl_def;

static inline struct wpl *wpl_of(struct svc *s)
{
	return container_of(s, struct wpl, svc);
}

/* calls.c */
#define WPL_N_METHODS 5
extern const struct rpc_method wpl_methods[WPL_N_METHODS];

/* op_run.c: makes the plan in answer to r, which it takes. ERR_BUSY, ERR_NO_MEMORY: nothing has
 * begun and r is the caller's still. */
enum err wpl_run_start(struct wpl *w, struct wpl_plan *p, struct rpc_req *r) MUST_CHECK;
/* Stops it; p->stopper is answered when it has ended, and the plan goes. */
void wpl_run_cancel(struct wpl_plan *p);
/* Memory was given back: runs that wait for some look again. */
void wpl_run_wake(struct wpl *w);
/* The answer for a plan that is made, or refused. */
void wpl_run_answer(const struct wpl_plan *p, struct rpc_req *r);
