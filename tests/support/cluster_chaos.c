/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults by chance: a schedule of actions made from budgets, by the cluster's seed alone.
 */
#include "tests/support/cluster_priv.h"

#include <string.h>

struct pick {
	struct cl_member *m[64];
	const char *n[64];
	size_t n_m, n_n;
};

static bool among(const char *const *list, const char *name)
{
	if (!list)
		return true;
	for (; *list; list++)
		if (strcmp(*list, name) == 0)
			return true;
	return false;
}

static struct pick targets(struct cluster *c, const char *const *members,
			   const char *const *nodes)
{
	struct pick p = { 0 };
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		if (p.n_m < ARRAY_LEN(p.m) && among(members, m->name))
			p.m[p.n_m++] = m;
	}
	list_for_each (i, &c->nodes) {
		struct cl_node *n = list_entry(i, struct cl_node, node);
		if (p.n_n < ARRAY_LEN(p.n) && among(nodes, n->name))
			p.n[p.n_n++] = n->name;
	}
	return p;
}

/* ---- actions ---- */

typedef void act_fn(struct cluster *c, struct cl_action *a);

static void follow(struct cluster *c, const struct cl_action *a, act_fn *fn)
{
	struct cl_action next = *a;
	next.fn = fn;
	cl_later(c, clock_after_ms(cl_now_ns(c), a->lasts_ms), &next);
}

static void do_start(struct cluster *c, struct cl_action *a)
{
	cl_start(c, a->m->name);
}

static void do_kill(struct cluster *c, struct cl_action *a)
{
	cl_kill(c, a->m->name);
	if (a->lasts_ms)
		follow(c, a, do_start);
}

static void do_cont(struct cluster *c, struct cl_action *a)
{
	cl_cont(c, a->m->name);
}

static void do_stop(struct cluster *c, struct cl_action *a)
{
	cl_stop(c, a->m->name);
	follow(c, a, do_cont);
}

static void do_heal(struct cluster *c, struct cl_action *a)
{
	cl_heal(c, a->a, a->b);
}

static void do_partition(struct cluster *c, struct cl_action *a)
{
	cl_partition(c, a->a, a->b);
	follow(c, a, do_heal);
}

static void do_oneway(struct cluster *c, struct cl_action *a)
{
	cl_partition_oneway(c, a->a, a->b);
	follow(c, a, do_heal);
}

static void do_delay(struct cluster *c, struct cl_action *a)
{
	cl_delay(c, a->a, a->b, (uint32_t)(1 + a->n % 400), a->lasts_ms);
}

static void do_reset(struct cluster *c, struct cl_action *a)
{
	cl_reset(c, a->a, a->n % 4 ? a->b : NULL);
}

static void do_black_hole(struct cluster *c, struct cl_action *a)
{
	cl_black_hole(c, a->a, a->n % 4 ? a->b : NULL);
}

static void end_lossy(struct cluster *c, struct cl_action *a)
{
	(void)a;
	cl_lossy(c, 0, 0, 0);
}

static void do_lossy(struct cluster *c, struct cl_action *a)
{
	cl_lossy(c, (uint32_t)(a->n % 30000), (uint32_t)(a->n % 300000),
		 (uint32_t)(a->n % 100000));
	follow(c, a, end_lossy);
}

static void end_reorder(struct cluster *c, struct cl_action *a)
{
	(void)a;
	cl_reorder(c, 0);
}

static void do_reorder(struct cluster *c, struct cl_action *a)
{
	cl_reorder(c, (uint32_t)(a->n % 300000));
	follow(c, a, end_reorder);
}

static void do_jump(struct cluster *c, struct cl_action *a)
{
	cl_clock_jump(c, a->a, (int64_t)(a->n % 7200000) - 3600000);
}

static void do_drift(struct cluster *c, struct cl_action *a)
{
	cl_clock_drift(c, a->a, (int32_t)(a->n % 1001) - 500);
}

static void do_suspend(struct cluster *c, struct cl_action *a)
{
	cl_suspend(c, a->a, a->lasts_ms);
}

static void start_all(struct cluster *c, struct cl_action *a)
{
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		if (strcmp(m->on->name, a->a) == 0)
			cl_start(c, m->name);
	}
}

static void do_power_cut(struct cluster *c, struct cl_action *a)
{
	cl_power_cut(c, a->a);
	if (a->n) /* stay_down says no */
		follow(c, a, start_all);
}

static void end_full(struct cluster *c, struct cl_action *a)
{
	cl_disk_full(c, a->a, false);
}

static void do_full(struct cluster *c, struct cl_action *a)
{
	cl_disk_full(c, a->a, true);
	follow(c, a, end_full);
}

static void end_slow(struct cluster *c, struct cl_action *a)
{
	cl_disk_slow(c, a->a, 0);
}

static void do_slow(struct cluster *c, struct cl_action *a)
{
	cl_disk_slow(c, a->a, (uint32_t)(1 + a->n % 200));
	follow(c, a, end_slow);
}

/* ---- the schedule ---- */

struct plan {
	struct cluster *c;
	struct pick p;
	uint64_t span_ms, lo_ms, hi_ms;
	const char *const *members;
};

static void add(struct plan *p, uint32_t n, bool can, act_fn *fn)
{
	struct cluster *c = p->c;
	for (uint32_t i = 0; i < n; i++) {
		/* drawn even when it cannot be used: other kinds keep their times then */
		uint64_t at = sim_rng_below(&c->rng, p->span_ms + 1);
		uint64_t lasts = sim_rng_between(&c->rng, p->lo_ms, p->hi_ms);
		uint64_t r = sim_rng_next(&c->rng) >> 1, pick = sim_rng_next(&c->rng);
		if (!can || p->p.n_n == 0)
			continue;
		size_t a = pick % p->p.n_n;
		size_t b = (a + 1 + (pick >> 32) % MAX_OF(p->p.n_n - 1, (size_t)1)) % p->p.n_n;
		struct cl_action act = { .fn = fn,
					 .a = p->p.n[a],
					 .b = p->p.n[b],
					 .n = r,
					 .lasts_ms = (uint32_t)lasts };
		if (p->p.n_m > 0)
			act.m = p->p.m[pick % p->p.n_m];
		cl_later(c, clock_after_ms(cl_now_ns(c), at), &act);
	}
}

static void add_kills(struct plan *p, const struct cl_budget *b)
{
	uint64_t lo = p->lo_ms, hi = p->hi_ms;
	if (b->stay_down)
		p->lo_ms = p->hi_ms = 0;
	add(p, b->kill, p->p.n_m > 0, do_kill);
	p->lo_ms = lo;
	p->hi_ms = hi;
}

void cl_chaos(struct cluster *c, const struct cl_budget *b, uint64_t span_ms,
	      const char *const *members, const char *const *nodes)
{
	struct plan p = { .c = c,
			  .p = targets(c, members, nodes),
			  .span_ms = span_ms,
			  .lo_ms = b->min_ms ? b->min_ms : 50,
			  .hi_ms = b->max_ms ? b->max_ms : 2000 };
	bool pair = p.p.n_n > 1;
	SIM_CHECK(p.lo_ms <= p.hi_ms, "min_ms %u is over max_ms %u", b->min_ms, b->max_ms);
	add_kills(&p, b);
	add(&p, b->stop, p.p.n_m > 0, do_stop);
	add(&p, b->partition, pair && cl_can(c, CL_PARTITION), do_partition);
	add(&p, b->oneway, pair && cl_can(c, CL_PARTITION), do_oneway);
	add(&p, b->delay, pair && cl_can(c, CL_DELAY), do_delay);
	add(&p, b->reset, pair && cl_can(c, CL_RESET), do_reset);
	add(&p, b->black_hole, pair && cl_can(c, CL_BLACK_HOLE), do_black_hole);
	add(&p, b->lossy, cl_can(c, CL_LOSSY), do_lossy);
	add(&p, b->reorder, cl_can(c, CL_REORDER), do_reorder);
	add(&p, b->suspend, cl_can(c, CL_SUSPEND), do_suspend);
	add(&p, b->power_cut, cl_can(c, CL_POWER_CUT), do_power_cut);
	add(&p, b->clock_jump, cl_can(c, CL_CLOCK_JUMP), do_jump);
	add(&p, b->clock_drift, cl_can(c, CL_CLOCK_DRIFT), do_drift);
	add(&p, b->disk_full, cl_can(c, CL_DISK_FULL), do_full);
	add(&p, b->disk_slow, cl_can(c, CL_DISK_SLOW), do_slow);
}

void cl_calm(struct cluster *c)
{
	cl_forget(c);
	cl_note(c, "calm");
	cl_heal(c, NULL, NULL);
	if (cl_can(c, CL_LOSSY))
		cl_lossy(c, 0, 0, 0);
	if (cl_can(c, CL_REORDER))
		cl_reorder(c, 0);
	list_for_each (i, &c->nodes) {
		const char *n = list_entry(i, struct cl_node, node)->name;
		if (cl_can(c, CL_DISK_FULL))
			cl_disk_full(c, n, false);
		if (cl_can(c, CL_DISK_SLOW))
			cl_disk_slow(c, n, 0);
	}
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		cl_cont(c, m->name);
		SIM_CHECK(cl_start(c, m->name), "%s does not start in calm: %s", m->name,
			  m->why);
	}
}
