/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Services of the common shape on a virtual clock: many in one process, seen by up to three masters;
 * partitions, stops, kills, clocks that jump; and their end with requests inside.
 */
#include "tests/support/leak.h"
#include "tests/support/meta_fs_sim.h"
#include "tests/support/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/messages.h"
#include "rpc/auth.h"
#include "rpc/net_sim.h"
#include "services/master/master.h"
#include "services/offload-owner/owner.h"
#include "services/pg-coordinator/pg.h"
#include "services/transfer-agent/agent.h"
#include "services/weight-planner/planner.h"
#include "svc/svc.h"

TestSuite(services, .timeout = 60);

struct world {
	struct sim *sim;
	struct keyring *keys;
	const char *masters[3];
	size_t n_masters;
};

/* One run of a service, in a process of its own. */
struct run {
	struct world *w;
	struct sim_proc *proc;
	struct loop loop;
	struct svc *svc;
	struct meta_fs *fs; /* on the machine's disk */
	struct log_capture quiet;
	unsigned n_errors; /* lines of level error or warn */
	char error[200];   /* the last of them */
	char addr[64];
	bool ended;
};

static void world_init(struct world *w, uint64_t seed, size_t n_masters)
{
	static const char *const addrs[] = { "sim://m0/master", "sim://m1/master",
					     "sim://m2/master" };
	static const uint8_t secret[32] = { 4, 2 };
	*w = (struct world){ .sim = sim_new(seed), .n_masters = n_masters };
	memcpy(w->masters, addrs, sizeof(addrs));
	cr_assert_eq(keyring_new(secret, NULL, &w->keys), ERR_NONE);
}

static void world_fini(struct world *w)
{
	sim_free(w->sim);
	keyring_free(w->keys);
}

static void no_line(struct log_capture *c, const char *line, size_t n)
{
}

static void on_line(struct log_capture *c, const char *line, size_t n)
{
	struct run *r = container_of(c, struct run, quiet);
	if (!memmem(line, n, "level=error", 11) && !memmem(line, n, "level=warn", 10))
		return;
	r->n_errors++;
	snprintf(r->error, sizeof(r->error), "%.*s", (int)n, line);
}

static void run_over(void *arg)
{
	struct run *r = arg;
	free(r->svc);
	r->svc = NULL;
	meta_fs_free(r->fs);
	sim_loop_close(&r->loop);
	sim_proc_end(r->proc);
	r->ended = true;
}

/* The loop is still in its turn: its end is an event of its own. */
static void on_closed(struct svc *s, void *arg)
{
	struct run *r = arg;
	sim_at_proc(r->proc, sim_now_ns(r->w->sim), run_over, r);
}

static void on_kill(void *arg)
{
	struct run *r = arg;
	if (r->svc)
		svc_stop(r->svc, 0);
}

static void run_start(struct world *w, struct run *r, const char *node,
		      const struct svc_def *def)
{
	struct why why = { 0 };
	const char *listen = r->addr;
	static char *const args[] = { "x", NULL };
	char dir[32];
	*r = (struct run){ .w = w, .quiet = { on_line } };
	snprintf(r->addr, sizeof(r->addr), "sim://%s/%s", node, def->name);
	r->proc = sim_proc_start(sim_node(w->sim, node),
				 &(struct sim_proc_opts){
					 .name = def->name, .on_kill = on_kill, .arg = r });
	sim_loop_open(r->proc, &r->loop);
	r->svc = calloc(1, def->size);
	snprintf(dir, sizeof(dir), "/%s/meta", def->name);
	r->fs = meta_fs_sim_new(sim_node_disk(sim_node(w->sim, node)), dir);
	struct svc_env env = { .loop = &r->loop,
			       .argc = 1,
			       .argv = args,
			       .listen = &listen,
			       .n_listen = 1,
			       .masters = w->masters,
			       .n_masters = w->n_masters,
			       .keys = w->keys,
			       .meta_fs = r->fs,
			       .log = &r->quiet,
			       .closed = on_closed,
			       .arg = r };
	cr_assert_eq(svc_open(r->svc, def, &env, &why), ERR_NONE, "%s", why.text);
}

/* How a master sees the service of run r. */
static bool sees(const struct run *master, const struct run *r, struct beat_peer *out)
{
	return beat_table_find(mst_of(master->svc)->beats, r->svc->id, out);
}

static enum beat_state state_of(const struct run *master, const struct run *r)
{
	struct beat_peer p = { .state = BEAT_DEAD };
	cr_expect(sees(master, r, &p), "%s is not known", r->svc->id);
	return p.state;
}

static bool is_ready(struct run *r)
{
	struct svc_reasons why;
	svc_reasons(r->svc, &why);
	return why.n == 0;
}

static const struct svc_def *const all[] = { &mst_def, &xfa_def, &own_def, &wpl_def, &pgc_def };

Test(services, five_on_one_clock)
{
	struct world w;
	struct run r[5];
	world_init(&w, 1, 1);
	for (size_t i = 0; i < 5; i++)
		run_start(&w, &r[i], i ? "n1" : "m0", all[i]);
	sim_run_ms(w.sim, 2000);
	for (size_t i = 0; i < 5; i++) {
		cr_expect(is_ready(&r[i]), "%s", all[i]->name);
		cr_expect_eq(state_of(&r[0], &r[i]), BEAT_READY, "%s", all[i]->name);
	}
	for (size_t i = 0; i < 5; i++)
		svc_stop(r[i].svc, 1000);
	sim_run_ms(w.sim, 2000);
	for (size_t i = 0; i < 5; i++)
		cr_expect(r[i].ended, "%s", all[i]->name);
	world_fini(&w);
	NO_LEAKS();
}

/* Case 80: five services with nothing to do, for an hour and from the start on, have nothing to complain of. */
Test(services, case_080_an_idle_hour_has_no_error_line)
{
	struct world w;
	struct run r[5];
	world_init(&w, 80, 1);
	for (size_t i = 0; i < 5; i++)
		run_start(&w, &r[i], i ? "n1" : "m0", all[i]);
	sim_run_ms(w.sim, 3600000);
	for (size_t i = 0; i < 5; i++) {
		cr_expect(is_ready(&r[i]), "%s", all[i]->name);
		cr_expect_eq(r[i].n_errors, 0, "%s: %u lines, %s", all[i]->name, r[i].n_errors,
			     r[i].error);
		cr_expect_eq(state_of(&r[0], &r[i]), BEAT_READY, "%s", all[i]->name);
	}
	for (size_t i = 0; i < 5; i++)
		svc_stop(r[i].svc, 1000);
	sim_run_ms(w.sim, 2000);
	for (size_t i = 0; i < 5; i++)
		cr_expect(r[i].ended, "%s", all[i]->name);
	world_fini(&w);
	NO_LEAKS();
}

/* Three masters and ten agents in one process: no singletons. */
Test(services, three_masters_see_ten_agents)
{
	struct world w;
	struct run m[3], a[10];
	char node[16];
	world_init(&w, 2, 3);
	for (int i = 0; i < 3; i++) {
		snprintf(node, sizeof(node), "m%d", i);
		run_start(&w, &m[i], node, &mst_def);
	}
	for (int i = 0; i < 10; i++) {
		snprintf(node, sizeof(node), "n%d", i);
		run_start(&w, &a[i], node, &xfa_def);
	}
	sim_run_ms(w.sim, 2000);
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 10; k++)
			cr_expect_eq(state_of(&m[i], &a[k]), BEAT_READY);
	/* one master goes: the others, and the agents, do not mind */
	sim_kill(m[0].proc);
	sim_run_ms(w.sim, 5000);
	cr_expect(m[0].ended);
	for (int k = 0; k < 10; k++) {
		cr_expect(is_ready(&a[k]));
		cr_expect_eq(state_of(&m[1], &a[k]), BEAT_READY);
		svc_stop(a[k].svc, 0);
	}
	svc_stop(m[1].svc, 0);
	svc_stop(m[2].svc, 0);
	sim_run_ms(w.sim, 2000);
	world_fini(&w);
	NO_LEAKS();
}

static void pair_start(struct world *w, uint64_t seed, struct run *m, struct run *a)
{
	world_init(w, seed, 1);
	run_start(w, m, "m0", &mst_def);
	run_start(w, a, "n1", &xfa_def);
	sim_run_ms(w->sim, 2000);
	cr_assert_eq(state_of(m, a), BEAT_READY);
}

static void pair_end(struct world *w, struct run *m, struct run *a)
{
	if (!a->ended)
		svc_stop(a->svc, 0);
	svc_stop(m->svc, 0);
	sim_run_ms(w->sim, 2000);
	cr_expect(m->ended && a->ended);
	world_fini(w);
}

Test(services, a_partition_is_suspect_dead_and_over)
{
	struct world w;
	struct run m, a;
	pair_start(&w, 3, &m, &a);
	net_link_cut(sim_net(w.sim), "n1", "m0");
	sim_run_ms(w.sim, 3000);
	cr_expect_eq(state_of(&m, &a), BEAT_SUSPECT);
	cr_expect_not(is_ready(&a), "the agent knows that nobody acknowledges it");
	cr_expect_eq(state_of(&m, &m), BEAT_READY, "nobody else is suspect");
	sim_run_ms(w.sim, 30000);
	cr_expect_eq(state_of(&m, &a), BEAT_DEAD);
	net_link_heal(sim_net(w.sim), "n1", "m0");
	sim_run_ms(w.sim, 2000);
	cr_expect_eq(state_of(&m, &a), BEAT_READY);
	cr_expect(is_ready(&a));
	pair_end(&w, &m, &a);
	NO_LEAKS();
}

/* One direction only: beats arrive, acknowledgements do not. The master is right, the agent waits. */
Test(services, lost_acknowledgements_are_the_agents_to_know)
{
	struct world w;
	struct run m, a;
	pair_start(&w, 4, &m, &a);
	net_link_cut(sim_net(w.sim), "m0", "n1");
	sim_run_ms(w.sim, 5000);
	cr_expect_eq(state_of(&m, &a), BEAT_STARTING, "it says itself that it is not ready");
	cr_expect_not(is_ready(&a));
	net_link_heal(sim_net(w.sim), "n1", "m0");
	sim_run_ms(w.sim, 2000);
	cr_expect_eq(state_of(&m, &a), BEAT_READY);
	pair_end(&w, &m, &a);
	NO_LEAKS();
}

Test(services, a_stopped_process_is_suspect_and_comes_back)
{
	struct world w;
	struct run m, a;
	pair_start(&w, 5, &m, &a);
	sim_stop(a.proc);
	sim_run_ms(w.sim, 2700);
	cr_expect_eq(state_of(&m, &a), BEAT_SUSPECT);
	sim_cont(a.proc);
	sim_run_ms(w.sim, 1000);
	cr_expect_eq(state_of(&m, &a), BEAT_READY);
	pair_end(&w, &m, &a);
	NO_LEAKS();
}

/* beat.h I4 */
Test(services, a_stopped_master_suspects_nobody_for_it)
{
	struct world w;
	struct run m, a;
	struct beat_peer p;
	pair_start(&w, 6, &m, &a);
	sim_stop(m.proc);
	sim_run_ms(w.sim, 60000);
	sim_cont(m.proc);
	for (int i = 0; i < 40; i++) {
		sim_run_ms(w.sim, 50);
		cr_assert(sees(&m, &a, &p));
		cr_assert(p.state == BEAT_READY || p.state == BEAT_STARTING, "%d ms after: %s",
			  50 * i, beat_state_name(p.state));
	}
	pair_end(&w, &m, &a);
	NO_LEAKS();
}

/* A virtual machine is moved: its clock skips a minute. */
Test(services, a_clock_that_skips_makes_nobody_suspect)
{
	struct world w;
	struct run m, a;
	pair_start(&w, 7, &m, &a);
	sim_clock_skip(sim_node(w.sim, "m0"), 60000);
	for (int i = 0; i < 40; i++) {
		sim_run_ms(w.sim, 50);
		cr_assert_neq(state_of(&m, &a), BEAT_SUSPECT);
		cr_assert_neq(state_of(&m, &a), BEAT_DEAD);
	}
	pair_end(&w, &m, &a);
	NO_LEAKS();
}

/* L2: a restart is a new instance under the same id. */
Test(services, a_restart_is_a_new_instance)
{
	struct world w;
	struct run m, a, again;
	struct beat_peer before, after;
	pair_start(&w, 8, &m, &a);
	cr_assert(sees(&m, &a, &before));
	sim_kill(a.proc);
	sim_run_ms(w.sim, 1000);
	cr_assert(a.ended);
	run_start(&w, &again, "n1", &xfa_def);
	sim_run_ms(w.sim, 2000);
	cr_assert(sees(&m, &again, &after));
	cr_expect_eq(after.state, BEAT_READY);
	cr_expect_eq(after.instances, 2);
	cr_expect_neq(memcmp(before.instance, after.instance, 16), 0);
	pair_end(&w, &m, &again);
	NO_LEAKS();
}

/* Beats that are lost, doubled and overtaken: states hold, and nothing is stamped twice. */
Test(services, a_bad_network_makes_no_false_suspects)
{
	uint64_t seed;
	for (struct sim_seeds r = sim_seeds(5); sim_seeds_next(&r, &seed);) {
		struct world w;
		struct run m, a;
		struct net_link l;
		pair_start(&w, seed, &m, &a);
		net_link_get(sim_net(w.sim), NULL, NULL, &l);
		l.dgram_loss_ppm = 100000;
		l.dgram_dup_ppm = 200000;
		l.reorder_ppm = 200000;
		l.reorder_us = 800000;
		net_link_set(sim_net(w.sim), NULL, NULL, &l);
		for (int i = 0; i < 200; i++) {
			sim_run_ms(w.sim, 100);
			cr_assert_neq(state_of(&m, &a), BEAT_DEAD);
		}
		struct beat_table_counters c;
		beat_table_counters(mst_of(m.svc)->beats, &c);
		cr_expect_gt(c.replays, 0, "doubled and overtaken beats were refused");
		cr_expect_eq(c.bad_macs + c.bad_frames, 0);
		pair_end(&w, &m, &a);
	}
	NO_LEAKS();
}

/* ---- the meta log ---- */

static uint64_t term_of(struct run *r)
{
	return r->svc->def->term(r->svc);
}

/* M1, P1: whatever ends a run, the next one's term is higher. */
Test(services, each_run_has_a_higher_term)
{
	static const struct svc_def *const with_term[] = { &mst_def, &pgc_def };
	for (size_t k = 0; k < 2; k++) {
		struct world w;
		uint64_t last = 0;
		world_init(&w, 30 + k, 1);
		for (int i = 0; i < 9; i++) {
			struct run r;
			run_start(&w, &r, "m0", with_term[k]);
			cr_expect_eq(term_of(&r), 0, "none until it is durable");
			cr_expect_not(is_ready(&r));
			sim_run_ms(w.sim, 1000);
			cr_expect(is_ready(&r));
			cr_expect_gt(term_of(&r), last);
			last = term_of(&r);
			if (i % 3 == 0)
				svc_stop(r.svc, 0);
			else if (i % 3 == 1)
				sim_kill(r.proc);
			else
				sim_power_cut(sim_node(w.sim, "m0"));
			sim_run_ms(w.sim, 1000);
			cr_assert(r.ended);
		}
		world_fini(&w);
	}
	NO_LEAKS();
}

/* A kill at any moment of the start: the term of the next run is higher than any that was seen. */
Test(services, a_kill_while_the_term_is_raised)
{
	uint64_t seed;
	for (struct sim_seeds sr = sim_seeds(5); sim_seeds_next(&sr, &seed);) {
		struct world w;
		uint64_t last = 0;
		world_init(&w, seed, 1);
		for (int i = 0; i < 30; i++) {
			struct run r;
			run_start(&w, &r, "m0", &mst_def);
			for (int us = 0; us < i; us++)
				sim_step(w.sim);
			uint64_t seen = term_of(&r);
			cr_expect(seen == 0 || seen > last);
			last = MAX_OF(last, seen);
			if (i % 2)
				sim_kill(r.proc);
			else
				sim_power_cut(sim_node(w.sim, "m0"));
			sim_run_ms(w.sim, 500);
			cr_assert(r.ended);
		}
		world_fini(&w);
	}
	NO_LEAKS();
}

static bool has_reason(struct run *r, const char *text)
{
	struct svc_reasons why;
	svc_reasons(r->svc, &why);
	for (size_t i = 0; i < why.n; i++)
		if (strstr(why.text[i], text))
			return true;
	return false;
}

/* I2 of svc_meta.h: up and not ready, with the reason; beats go on (L1). */
Test(services, a_disk_that_fails_at_the_start_is_a_reason)
{
	struct world w;
	struct run m;
	world_init(&w, 40, 1);
	run_start(&w, &m, "m0", &mst_def);
	sim_disk_fail(sim_node_disk(sim_node(w.sim, "m0")), true, 0, 1000, EIO);
	sim_run_ms(w.sim, 3000);
	cr_expect(has_reason(&m, "meta log:"));
	cr_expect_eq(term_of(&m), 0);
	cr_expect_eq(state_of(&m, &m), BEAT_STARTING);
	svc_stop(m.svc, 0);
	sim_run_ms(w.sim, 1000);
	cr_expect(m.ended);
	world_fini(&w);
	NO_LEAKS();
}

static bool on_disk_full(struct run *r)
{
	return has_reason(r, "the file system is full") &&
	       has_reason(r, "goes on when there is room");
}

/* I3 of svc_meta.h: a full disk delays the start of whoever has a log; room ends that, alone. */
Test(services, a_full_disk_is_waited_for)
{
	static const struct svc_def *const with_log[] = { &mst_def, &pgc_def };
	for (size_t k = 0; k < 4; k++) {
		struct world w;
		struct run r;
		world_init(&w, 50 + k, 1);
		if (k >= 2) {
			run_start(&w, &r, "m0", with_log[k % 2]);
			sim_run_ms(w.sim, 1000);
			svc_stop(r.svc, 0);
			sim_run_ms(w.sim, 1000);
		}
		struct sim_disk *d = sim_node_disk(sim_node(w.sim, "m0"));
		run_start(&w, &r, "m0", with_log[k % 2]); /* its folder is made at once */
		sim_disk_full(d, true);
		sim_run_ms(w.sim, 60000);
		if (k < 2)
			cr_expect(on_disk_full(&r));
		cr_expect_eq(is_ready(&r), k >= 2, "its log has room for a term");
		uint64_t tries = sim_disk_ops(d, true);
		sim_run_ms(w.sim, 60000);
		cr_expect_leq(sim_disk_ops(d, true) - tries, 60, "it backs off");
		sim_disk_full(d, false);
		sim_run_ms(w.sim, 6000);
		cr_expect(is_ready(&r), "%zu", k);
		cr_expect_gt(term_of(&r), 0);
		svc_stop(r.svc, 0);
		sim_run_ms(w.sim, 1000);
		cr_expect(r.ended);
		world_fini(&w);
	}
	NO_LEAKS();
}

/* Each write of the start in turn, and `count` from it on, finds no room. */
static void no_space_from(uint64_t skip, uint64_t count, unsigned *n_ready)
{
	struct world w;
	struct run r;
	world_init(&w, 60, 1);
	run_start(&w, &r, "m0", &mst_def);
	sim_disk_fail(sim_node_disk(sim_node(w.sim, "m0")), true, skip, count, ENOSPC);
	sim_run_ms(w.sim, 30000);
	/* once the log is open a sync that fails ends the run, whatever it says (meta.h I4) */
	if (!r.ended) {
		cr_expect(is_ready(&r), "skip %d count %d", (int)skip, (int)count);
		cr_expect_gt(term_of(&r), 0);
		++*n_ready;
		svc_stop(r.svc, 0);
	}
	sim_run_ms(w.sim, 1000);
	cr_expect(r.ended);
	world_fini(&w);
}

Test(services, no_space_at_any_write_of_the_start)
{
	enum { WRITES = 30 };
	unsigned n_ready = 0;
	for (uint64_t skip = 0; skip < WRITES; skip++)
		for (uint64_t count = 1; count < 9; count += 7)
			no_space_from(skip, count, &n_ready);
	cr_expect_geq(n_ready, 2 * WRITES - 4);
	NO_LEAKS();
}

/* The end may come at any moment of the wait. */
Test(services, stopped_while_the_disk_is_full)
{
	for (int steps = 0; steps < 60; steps++) {
		struct world w;
		struct run r;
		world_init(&w, 70, 1);
		run_start(&w, &r, "m0", &mst_def);
		sim_disk_full(sim_node_disk(sim_node(w.sim, "m0")), true);
		for (int i = 0; i < steps; i++)
			sim_step(w.sim);
		svc_stop(r.svc, 0);
		sim_run_ms(w.sim, 1000);
		cr_expect(r.ended, "%d", steps);
		world_fini(&w);
	}
	NO_LEAKS();
}

/* A slow disk delays readiness, and nothing else. */
Test(services, a_slow_disk_delays_no_beat)
{
	struct world w;
	struct run m, a;
	world_init(&w, 41, 1);
	sim_disk_slow(sim_node_disk(sim_node(w.sim, "m0")), 300 * NS_PER_MS, 0);
	run_start(&w, &m, "m0", &mst_def);
	run_start(&w, &a, "n1", &xfa_def);
	sim_run_ms(w.sim, 2000);
	cr_expect(has_reason(&m, "meta log: replaying"));
	cr_expect_eq(state_of(&m, &a), BEAT_STARTING, "heard of, not adopted yet");
	cr_expect(has_reason(&a, "not adopted"));
	sim_disk_slow(sim_node_disk(sim_node(w.sim, "m0")), 0, 0);
	sim_run_ms(w.sim, 20000);
	cr_expect(is_ready(&m));
	cr_expect_eq(state_of(&m, &a), BEAT_READY);
	cr_expect(is_ready(&a));
	pair_end(&w, &m, &a);
	NO_LEAKS();
}

/* ---- the end with requests inside ---- */

struct caller;

struct call {
	struct rpc_call call;
	struct buf body;
	struct caller *of;
	bool ended;
};

struct caller {
	struct world *w;
	struct sim_proc *proc;
	struct loop loop;
	struct log log;
	struct log_capture quiet;
	struct rpc_client *client;
	struct call v[24];
	unsigned n_ended, n_ok, n_refused, n_cancelled, n_other;
	bool ended;
};

static void on_done(struct rpc_call *call)
{
	struct call *o = container_of(call, struct call, call);
	struct caller *c = o->of;
	cr_expect_not(o->ended, "done runs once");
	o->ended = true;
	c->n_ended++;
	c->n_ok += call->err == ERR_NONE;
	c->n_refused += call->err == ERR_SHUTTING_DOWN;
	c->n_cancelled += call->err == ERR_CANCELLED;
	c->n_other += call->err != ERR_NONE && call->err != ERR_SHUTTING_DOWN &&
		      call->err != ERR_CANCELLED;
}

static void caller_over(void *arg)
{
	struct caller *c = arg;
	sim_loop_close(&c->loop);
	sim_proc_end(c->proc);
	c->ended = true;
}

static void on_client_closed(void *arg)
{
	struct caller *c = arg;
	sim_at_proc(c->proc, sim_now_ns(c->w->sim), caller_over, c);
}

static void caller_start(struct world *w, struct caller *c, const char *addr)
{
	static const uint8_t instance[16] = { 0xca };
	struct why why = { 0 };
	*c = (struct caller){ .w = w, .quiet = { no_line } };
	c->proc = sim_proc_start(sim_node(w->sim, "c"),
				 &(struct sim_proc_opts){ .name = "caller" });
	sim_loop_open(c->proc, &c->loop);
	c->log = (struct log){ .svc = "caller", .clock = c->loop.clock };
	log_set_capture(&c->log, &c->quiet);
	struct rpc_client_opts o = { .addrs = &addr,
				     .n_addrs = 1,
				     .peer_name = "planner",
				     .as = ROLE_ADMIN,
				     .expect = ROLE_SERVICE,
				     .keys = w->keys,
				     .log = &c->log,
				     .instance = instance };
	cr_assert_eq(rpc_client_new(&c->loop, &o, &c->client, &why), ERR_NONE, "%s", why.text);
}

static void caller_send(struct caller *c, size_t i, uint32_t park_ms)
{
	struct call *o = &c->v[i];
	*o = (struct call){ .of = c, .body = BUF_INIT(256) };
	enc_echo(&o->body, &(struct msg_echo){ .data = BYTES("x", 1), .park_ms = park_ms });
	o->call = (struct rpc_call){ .method = METHOD_ECHO,
				     .body = buf_bytes(&o->body),
				     .done = on_done,
				     .deadline_ns =
					     clock_after_ms(loop_now_ns(&c->loop), 20000) };
	rpc_send(c->client, &o->call);
}

/* I1 of svc.h, on every seed: the short ones are answered, the long ones cancelled, in time. */
Test(services, requests_inside_at_the_end_are_answered)
{
	uint64_t seed;
	for (struct sim_seeds r = sim_seeds(20); sim_seeds_next(&r, &seed);) {
		struct world w;
		struct run p;
		struct caller c;
		world_init(&w, seed, 1);
		run_start(&w, &p, "n1", &wpl_def);
		caller_start(&w, &c, p.addr);
		for (size_t i = 0; i < 24; i++)
			caller_send(&c, i, i % 3 == 0 ? 100 : i % 3 == 1 ? 600 : 60000);
		sim_run_ms(w.sim, 300);
		cr_expect_eq(c.n_ok, 8, "seed %lu: %u", seed, c.n_ok);
		svc_stop(p.svc, 1000);
		sim_run_ms(w.sim, 600);
		cr_expect_eq(c.n_ok, 16, "those that ended within the grace");
		sim_run_ms(w.sim, 1500);
		cr_expect_eq(c.n_cancelled, 8, "those that did not");
		cr_expect_eq(c.n_ended, 24);
		cr_expect_eq(c.n_other, 0);
		cr_expect(p.ended, "and the service is gone");
		for (size_t i = 0; i < 24; i++)
			buf_fini(&c.v[i].body);
		rpc_client_close(c.client, on_client_closed, &c);
		sim_run_ms(w.sim, 1000);
		cr_expect(c.ended);
		world_fini(&w);
	}
	NO_LEAKS();
}

/* The same seed is the same run, event by event. */
Test(services, a_run_can_be_repeated)
{
	uint64_t hash[2];
	for (int i = 0; i < 2; i++) {
		struct world w;
		struct run m, a;
		pair_start(&w, 77, &m, &a);
		sim_run_ms(w.sim, 10000);
		hash[i] = sim_hash(w.sim);
		pair_end(&w, &m, &a);
	}
	cr_expect_eq(hash[0], hash[1]);
	NO_LEAKS();
}
