/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include <malloc.h>
#include <string.h>

/* ---- rows ---- */

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17613") };
#undef CONF_T
#define CONF_T struct wpl
static const struct conf_row wpl_rows[] = { PLANNER_CONF(CONF_ROW) };
#undef CONF_T
static const struct conf_part conf_parts[] = {
	SVC_CONF_PART(shared_rows),
	{ .rows = wpl_rows, .n = ARRAY_LEN(wpl_rows) },
};

/* What one plan needs must fit beside the texts it is made of. */
static enum err check_conf(struct conf *c, const void *at, struct why *why)
{
	const struct wpl *w = at;
	enum err e = svc_conf_check(c, at, why);
	if (!e && w->plan_memory > w->memory / 2)
		e = why_set(
			why, ERR_INVALID_PARAMS,
			"planner.plan_memory: %llu bytes; at most half of planner.memory (%llu)",
			(unsigned long long)w->plan_memory, (unsigned long long)w->memory);
	if (!e && w->cache_bytes > w->memory)
		e = why_set(why, ERR_INVALID_PARAMS,
			    "planner.cache_bytes: %llu bytes; at most planner.memory (%llu)",
			    (unsigned long long)w->cache_bytes, (unsigned long long)w->memory);
	return e;
}

static const struct conf_schema conf = { "planner", conf_parts, ARRAY_LEN(conf_parts),
					 check_conf };

static const struct metric_row metric_rows[] = { PLANNER_METRICS(METRIC_ROW) };
static const struct metric_schema metrics = { "planner", metric_rows, ARRAY_LEN(metric_rows) };

/* ---- metrics ---- */

static void follow(struct wpl *w, unsigned id, unsigned cell, uint64_t now)
{
	metric_add(w->svc.metrics, id, cell, now - metric_get(w->svc.metrics, id, cell));
}

static void on_scrape(struct svc *s, struct buf *out)
{
	struct wpl *w = wpl_of(s);
	struct metrics *m = s->metrics;
	uint64_t rest = w->mem.used - w->plans.text_bytes - w->shelf.bytes;
	wpl_plans_check(&w->plans);
	wpl_shelf_check(&w->shelf);
	metric_set(m, WPL_M_OPEN, 0, (int64_t)w->plans.plans.n);
	metric_set(m, WPL_M_RUNNING, 0, w->n_running);
	metric_set(m, WPL_M_WAITING, 0, w->n_waiting);
	metric_set(m, WPL_M_MEMORY, 0, (int64_t)w->mem.used);
	metric_set(m, WPL_M_MEMORY, 1, (int64_t)w->plans.text_bytes);
	metric_set(m, WPL_M_MEMORY, 2, (int64_t)w->shelf.bytes);
	metric_set(m, WPL_M_MEMORY, 3, (int64_t)rest);
	metric_set(m, WPL_M_PEAK, 0, (int64_t)w->mem.peak);
	metric_set(m, WPL_M_CACHED, 0, (int64_t)w->shelf.docs.n);
	follow(w, WPL_M_CACHE, 0, w->shelf.hits);
	follow(w, WPL_M_CACHE, 1, w->shelf.misses);
	follow(w, WPL_M_CACHE, 2, w->shelf.evicted);
}

/* ---- life ---- */

/* What small pieces left in the heap goes back to the system, once nothing runs (W3). */
static void work_trim(struct job *j)
{
	(void)j;
	malloc_trim(0);
}

static void on_trimmed(struct job *j)
{
	container_of(j, struct wpl, trim)->trimming = false;
}

static void trim(struct wpl *w)
{
	if (!w->trim_due || w->trimming || w->n_running || svc_stopping(&w->svc))
		return;
	w->trim = (struct job){ .work = work_trim, .done = on_trimmed };
	w->trimming = pool_submit(w->svc.pool, &w->trim) == ERR_NONE;
	w->trim_due = !w->trimming;
}

/* A job that frees. */
struct grave {
	struct job job;
	struct wpl_remains r;
};

static void work_bury(struct job *j)
{
	wpl_remains_free(&container_of(j, struct grave, job)->r);
}

static void on_buried(struct job *j)
{
	struct grave *g = container_of(j, struct grave, job);
	if (j->err) /* cancelled before it began: the service ends */
		wpl_remains_free(&g->r);
	free(g);
}

static void bury(void *ctx, const struct wpl_remains *r)
{
	struct wpl *w = ctx;
	struct wpl_remains here = *r;
	struct grave *g = svc_stopping(&w->svc) ? NULL : malloc(sizeof(*g));
	if (g) {
		*g = (struct grave){ .job = { .work = work_bury, .done = on_buried }, .r = *r };
		if (pool_submit(w->svc.pool, &g->job) == ERR_NONE)
			return;
		free(g);
	}
	wpl_remains_free(&here);
}

/* Plans that nobody asks about; a look costs one comparison when there are none. */
static void on_idle(struct timer *t)
{
	struct wpl *w = container_of(t, struct wpl, idle);
	uint64_t now = loop_now_ns(w->svc.loop), idle_ns = w->idle_ms * NS_PER_MS;
	struct wpl_plan *p;
	while (now > idle_ns && (p = wpl_plan_idle(&w->plans, now - idle_ns)) != NULL) {
		metric_inc(w->svc.metrics, WPL_M_DROPPED);
		wpl_plan_drop(&w->plans, p);
		wpl_run_wake(w);
	}
	trim(w);
	timer_start(w->svc.loop, &w->idle, clock_after_ms(now, MIN_OF(w->idle_ms / 4, 1000)),
		    on_idle);
}

static enum err on_open(struct svc *s, struct why *why)
{
	struct wpl *w = wpl_of(s);
	uint64_t seed;
	memcpy(&seed, s->instance, sizeof(seed));
	w->mem = BUDGET_INIT(w->memory);
	list_init(&w->waiting);
	wpl_shelf_init(&w->shelf, &w->mem, w->cache_bytes, w->cache_max, seed);
	wpl_plans_init(&w->plans, &w->mem, &w->shelf, w->plans_max, seed);
	w->shelf.bury = bury;
	w->shelf.ctx = w;
	w->plans.tenant_plans_max = w->tenant_plans_max;
	w->plans.tenant_bytes_max = w->tenant_memory;
	/* a piece and what is around it fit a message */
	w->plans.part_bytes = (uint32_t)MIN_OF(s->conf.message_max - 4096, 4u << 20) & ~4095u;
	on_idle(&w->idle);
	return ERR_NONE;
}

static void on_close(struct svc *s)
{
	struct wpl *w = wpl_of(s);
	timer_stop(s->loop, &w->idle);
	timer_stop(s->loop, &w->wake);
	wpl_plans_fini(&w->plans);
	wpl_shelf_fini(&w->shelf);
	assert(w->mem.used == 0);
	svc_closed(s);
}

const struct svc_def wpl_def = {
	.name = "planner",
	.exe = "pomelo-weight-planner",
	.about = "Plans how a stored model is laid out anew.",
	.role = ROLE_SERVICE,
	.size = sizeof(struct wpl),
	.needs_master = false,
	.conf = &conf,
	.methods = wpl_methods,
	.n_methods = WPL_N_METHODS,
	.metrics = &metrics,
	.open = on_open,
	.close = on_close,
	.scrape = on_scrape,
};
