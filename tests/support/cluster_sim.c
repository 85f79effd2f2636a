/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend of the simulator. A member's run is a process with one loop; callers on a node share a
 * process of their own there.
 */
#include "tests/support/cluster_priv.h"
#include "tests/support/sim_alloc.h"
#include "tests/support/sim_disk.h"

#include "rpc/net_sim.h"

#include <stdio.h>
#include <string.h>

struct sim_cluster {
	struct sim *sim;
	struct list runs; /* of all members, dead ones too */
};

struct sim_node_impl {
	struct sim_node *machine;
	struct sim_proc *callers; /* NULL until somebody calls from here */
	struct loop loop;
};

static struct sim *sim_of(const struct cluster *c)
{
	return ((struct sim_cluster *)c->impl)->sim;
}

static struct sim_node *machine(const struct cl_node *n)
{
	return ((struct sim_node_impl *)n->impl)->machine;
}

struct sim *cl_sim(struct cluster *c)
{
	return c->o.backend == CL_SIM ? sim_of(c) : NULL;
}

static void sim_open_cluster(struct cluster *c)
{
	struct sim_cluster *sc = calloc(1, sizeof(*sc));
	SIM_CHECK(sc, "no memory");
	sc->sim = sim_new(c->o.seed);
	list_init(&sc->runs);
	c->impl = sc;
}

static void node_add(struct cluster *c, struct cl_node *n)
{
	struct sim_node_impl *ni = calloc(1, sizeof(*ni));
	SIM_CHECK(ni, "no memory");
	ni->machine = sim_node(sim_of(c), n->name);
	n->impl = ni;
}

static void member_add(struct cluster *c, struct cl_member *m)
{
	SIM_CHECK(m->o.app, "%s has no app to run in the simulator", m->name);
	snprintf(m->addr, sizeof(m->addr), "sim://%s/%s", m->on->name, m->name);
}

static uint64_t now_ns(struct cluster *c)
{
	return sim_now_ns(sim_of(c));
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static bool run(struct cluster *c, bool (*pred)(void *arg), void *arg, uint64_t until_ns)
{
	struct sim *s = sim_of(c);
	uint64_t now = sim_now_ns(s);
	if (!pred)
		pred = never;
	return sim_run_until_ns(s, pred, arg, MAX_OF(until_ns, now));
}

static void note(struct cluster *c, const char *text)
{
	sim_fault(sim_of(c), "%s", text);
}

/* ---- members ---- */

static void run_end(void *arg)
{
	struct cl_run *r = arg;
	struct cl_member *m = r->member;
	SIM_CHECK(r->loop.inbox.expected == 0, "%s ended, its loop is owed %lu posts", r->name,
		  r->loop.inbox.expected);
	SIM_CHECK(!heap_min(&r->loop.timers), "%s ended, a timer of it runs", r->name);
	sim_loop_close(&r->loop);
	sim_proc_end(r->proc);
	if (m->impl == r) {
		m->impl = NULL;
		cl_member_ended(r->cluster, m);
	}
	list_del(&r->node);
	free(r->state);
	free(r);
}

void cl_run_ended(struct cl_run *r)
{
	SIM_CHECK(!r->ended, "%s says twice that it ended", r->name);
	r->ended = true;
	/* what it deferred in this turn is done then */
	sim_at_proc(r->proc, sim_now_ns(sim_of(r->cluster)) + NS_PER_MS, run_end, r);
}

static void begin_stop(struct cl_run *r, bool killed)
{
	if (!r->started || r->ended || (r->stopping && !killed))
		return;
	r->stopping = true;
	r->member->o.app->stop(r, killed);
}

static void run_killed(void *arg)
{
	begin_stop(arg, true);
}

static void run_term(void *arg)
{
	begin_stop(arg, false);
}

static void run_start(void *arg)
{
	struct cl_run *r = arg;
	struct cl_member *m = r->member;
	struct why why = { 0 };
	if (sim_proc_state(r->proc) == SIM_DEAD) { /* killed before it began */
		r->ended = true;
		run_end(r);
		return;
	}
	enum err e = m->o.app->start(r, &why);
	r->started = e == ERR_NONE;
	if (r->started)
		return;
	if (m->impl == r) {
		m->impl = NULL; /* it ends by cl_run_ended */
		m->up = false;
	}
	snprintf(m->why, sizeof(m->why), "%s: %s", err_name(e), why.text);
}

static bool start(struct cluster *c, struct cl_member *m)
{
	struct cl_run *r = calloc(1, sizeof(*r));
	SIM_CHECK(r, "no memory");
	r->cluster = c;
	r->member = m;
	r->name = m->name;
	r->addr = m->addr;
	r->arg = m->o.arg;
	r->state = calloc(1, MAX_OF(m->o.app->state_bytes, (size_t)1));
	SIM_CHECK(r->state, "no memory");
	r->proc = sim_proc_start(machine(m->on), &(struct sim_proc_opts){ .name = m->name,
									  .on_kill = run_killed,
									  .arg = r });
	sim_loop_open(r->proc, &r->loop);
	list_push_back(&((struct sim_cluster *)c->impl)->runs, &r->node);
	m->impl = r;
	if (!sim_awake(r->proc)) { /* when its machine wakes up */
		sim_at_proc(r->proc, now_ns(c), run_start, r);
		return true;
	}
	sim_run_in(r->proc, run_start, r);
	return r->started;
}

static void term(struct cluster *c, struct cl_member *m)
{
	struct cl_run *r = m->impl;
	sim_at_proc(r->proc, now_ns(c), run_term, r);
}

static void kill_member(struct cluster *c, struct cl_member *m)
{
	struct cl_run *r = m->impl;
	(void)c;
	m->impl = NULL;
	sim_kill(r->proc);
}

static void stop(struct cluster *c, struct cl_member *m)
{
	(void)c;
	sim_stop(((struct cl_run *)m->impl)->proc);
}

static void cont(struct cluster *c, struct cl_member *m)
{
	(void)c;
	sim_cont(((struct cl_run *)m->impl)->proc);
}

void *cl_state(struct cluster *c, const char *name)
{
	struct cl_member *m = cl_member_of(c, name);
	return c->o.backend == CL_SIM && m->impl ? ((struct cl_run *)m->impl)->state : NULL;
}

/* ---- callers ---- */

static const char *addr(struct cluster *c, struct cl_node *from, struct cl_member *to)
{
	(void)c, (void)from;
	return to->addr;
}

static struct loop *caller_loop(struct cluster *c, struct cl_node *n)
{
	struct sim_node_impl *ni = n->impl;
	char name[40];
	(void)c;
	if (!ni->callers) {
		snprintf(name, sizeof(name), "call@%.24s", n->name);
		ni->callers =
			sim_proc_start(ni->machine, &(struct sim_proc_opts){ .name = name });
		sim_loop_open(ni->callers, &ni->loop);
	}
	return &ni->loop;
}

static void run_in(struct cluster *c, struct cl_node *n, void (*fn)(void *arg), void *arg)
{
	struct sim_node_impl *ni = n->impl;
	caller_loop(c, n);
	while (!sim_awake(ni->callers))
		SIM_CHECK(sim_step(sim_of(c)), "%s sleeps for ever", n->name);
	sim_run_in(ni->callers, fn, arg);
}

static void callers_end(struct cl_node *n)
{
	struct sim_node_impl *ni = n->impl;
	if (!ni->callers)
		return;
	SIM_CHECK(ni->loop.inbox.expected == 0 && !heap_min(&ni->loop.timers),
		  "something of the callers on %s is left", n->name);
	sim_loop_close(&ni->loop);
	sim_proc_end(ni->callers);
}

/* ---- faults ---- */

static void cut(struct cluster *c, struct cl_node *from, struct cl_node *to)
{
	net_link_cut(sim_net(sim_of(c)), from->name, to->name);
}

static void heal(struct cluster *c, struct cl_node *a, struct cl_node *b)
{
	net_link_heal(sim_net(sim_of(c)), a ? a->name : NULL, b ? b->name : NULL);
}

static void delay(struct cluster *c, struct cl_node *from, struct cl_node *to, uint32_t ms,
		  uint32_t for_ms)
{
	net_link_spike(sim_net(sim_of(c)), from->name, to->name, ms, for_ms);
}

static void reorder(struct cluster *c, uint32_t ppm)
{
	struct net_link l;
	net_link_get(sim_net(sim_of(c)), NULL, NULL, &l);
	l.reorder_ppm = ppm;
	net_link_set(sim_net(sim_of(c)), NULL, NULL, &l);
}

static void lossy(struct cluster *c, uint32_t break_ppm, uint32_t loss_ppm, uint32_t dup_ppm)
{
	struct net_link l;
	net_link_get(sim_net(sim_of(c)), NULL, NULL, &l);
	l.break_ppm = break_ppm;
	l.dgram_loss_ppm = loss_ppm;
	l.dgram_dup_ppm = dup_ppm;
	net_link_set(sim_net(sim_of(c)), NULL, NULL, &l);
}

static void reset(struct cluster *c, struct cl_node *a, struct cl_node *b)
{
	net_reset(sim_net(sim_of(c)), a->name, b ? b->name : NULL);
}

static void black_hole(struct cluster *c, struct cl_node *a, struct cl_node *b)
{
	net_black_hole(sim_net(sim_of(c)), a->name, b ? b->name : NULL);
}

static void disk_full(struct cluster *c, struct cl_node *n, bool full)
{
	(void)c;
	sim_disk_full(sim_node_disk(machine(n)), full);
}

static void disk_slow(struct cluster *c, struct cl_node *n, uint32_t ms)
{
	(void)c;
	sim_disk_slow(sim_node_disk(machine(n)), ms ? ms * NS_PER_MS : 2000, 0);
}

/* Callers do not count as members: a node that has some keeps them. */
static void power_cut(struct cluster *c, struct cl_node *n)
{
	SIM_CHECK(!((struct sim_node_impl *)n->impl)->callers,
		  "a power cut on %s would kill the test's own callers there", n->name);
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		if (m->on == n)
			m->impl = NULL;
	}
	sim_power_cut(machine(n));
}

static void clock_jump(struct cluster *c, struct cl_node *n, int64_t ms)
{
	(void)c;
	sim_clock_jump(machine(n), ms);
}

static void clock_drift(struct cluster *c, struct cl_node *n, int32_t ppm)
{
	(void)c;
	sim_clock_drift(machine(n), ppm);
}

static void suspend(struct cluster *c, struct cl_node *n, uint32_t ms)
{
	(void)c;
	sim_suspend(machine(n), ms);
}

static void oom(struct cluster *c, struct cl_member *m, uint64_t skip, uint64_t count)
{
	(void)c;
	if (m->impl)
		sim_alloc_fail(((struct cl_run *)m->impl)->proc, skip, count);
}

static void oom_callers(struct cluster *c, struct cl_node *n, uint64_t skip, uint64_t count)
{
	caller_loop(c, n);
	sim_alloc_fail(((struct sim_node_impl *)n->impl)->callers, skip, count);
}

static bool all_ended(void *arg)
{
	return list_empty(&((struct sim_cluster *)((struct cluster *)arg)->impl)->runs);
}

static void close_cluster(struct cluster *c)
{
	struct sim_cluster *sc = c->impl;
	SIM_CHECK(sim_run_until(sc->sim, all_ended, c, 60000),
		  "what is left of %s, which was killed, does not end",
		  list_entry(sc->runs.next, struct cl_run, node)->name);
	list_for_each (i, &c->nodes)
		callers_end(list_entry(i, struct cl_node, node));
	sim_free(sc->sim);
	list_for_each (i, &c->nodes)
		free(list_entry(i, struct cl_node, node)->impl);
	free(sc);
}

const struct cl_ops cl_ops_sim = {
	.can = ~0u,
	.open = sim_open_cluster,
	.close = close_cluster,
	.node_add = node_add,
	.member_add = member_add,
	.now_ns = now_ns,
	.run = run,
	.start = start,
	.term = term,
	.kill = kill_member,
	.stop = stop,
	.cont = cont,
	.note = note,
	.addr = addr,
	.loop = caller_loop,
	.run_in = run_in,
	.cut = cut,
	.heal = heal,
	.delay = delay,
	.reorder = reorder,
	.reset = reset,
	.black_hole = black_hole,
	.lossy = lossy,
	.disk_full = disk_full,
	.disk_slow = disk_slow,
	.power_cut = power_cut,
	.clock_jump = clock_jump,
	.clock_drift = clock_drift,
	.suspend = suspend,
	.oom = oom,
	.oom_callers = oom_callers,
};
