/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Object groups in a cluster under pressure and faults: groups of eight, more than the pools hold, are put
 * while master and agents are killed, stopped and cut off. At every instant the
 * index has all members of a group or none (case 18).
 */
#include "tests/support/leak.h"
#include "tests/support/store_sim.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

TestSuite(groups, .timeout = 280);

enum { MEMBERS = 8, GROUPS = 24, BYTES_EACH = 20000, CHAOS_MS = 6000 };

static const char *const flags_stay[] = { "--set", "holder_dead_ms=60000",
					  "--set", "suspect_ms=600",
					  "--set", "beat_ms=100",
					  "--set", "master.lease_ms=300",
					  "--set", "master.lease_max_ms=1000",
					  "--set", "master.put_start_discard_ms=1500",
					  NULL };
static const char *const flags_away[] = { "--set", "holder_dead_ms=1500",
					  "--set", "suspect_ms=600",
					  "--set", "beat_ms=100",
					  "--set", "master.lease_ms=300",
					  "--set", "master.lease_max_ms=1000",
					  "--set", "master.put_start_discard_ms=1500",
					  NULL };
static const char *const agent_flags[] = { "--set", "agent.register_ms=500", "--set",
					   "beat_ms=100", NULL };

struct sums {
	uint64_t whole, none, unsaid, puts, runs_of_master, runs_of_agents, evictions;
};

struct world {
	struct ss s;
	struct sums *sums;
	uint64_t seed, looked_ns;
	bool done;
};

static const char *key_of(unsigned g, unsigned i)
{
	static char k[16];
	snprintf(k, sizeof(k), "g%u/%u", g, i);
	return k;
}

/* All or none; what cannot be said yet is none, for the whole of it. */
static void judge(struct world *w, struct mind *m, unsigned g)
{
	unsigned yes = 0, no = 0;
	struct mind_object o;
	struct why why = { 0 };
	for (unsigned i = 0; i < MEMBERS; i++) {
		enum err e = mind_lookup(m, BYTES_STR("default"), BYTES_STR(key_of(g, i)), 0,
					 BYTES(NULL, 0), &o, &why);
		yes += e == ERR_NONE;
		no += e == ERR_NOT_FOUND;
	}
	SIM_CHECK(yes == 0 || yes == MEMBERS, "seed %" PRIu64 ": group %u: %u found, %u not",
		  w->seed, g, yes, no);
	w->sums->whole += yes == MEMBERS;
	w->sums->none += no == MEMBERS;
	w->sums->unsaid += yes + no < MEMBERS;
}

static void judge_all(struct world *w)
{
	struct mst *m = ss_master(&w->s);
	for (unsigned g = 0; m && m->term.mind && g < GROUPS; g++)
		judge(w, m->term.mind, g);
}

static bool watch(void *arg)
{
	struct world *w = arg;
	uint64_t now = sim_now_ns(cl_sim(w->s.c));
	if (now >= w->looked_ns + 5 * NS_PER_MS) {
		w->looked_ns = now;
		judge_all(w);
	}
	return w->done;
}

static void run_ms(struct world *w, uint64_t ms)
{
	w->done = false;
	cl_until(w->s.c, watch, w, ms);
}

static void on_done(struct stc_call *c)
{
	((struct world *)c->user)->done = true;
}

struct begin {
	struct ss_client *c;
	struct stc_call *call;
	struct world *w;
};

static void begin(void *arg)
{
	struct begin *b = arg;
	b->call->deadline_ns = clock_after_ms(loop_now_ns(b->c->loop), 1200);
	if (!b->c->stc || stc_start(b->c->stc, b->call) != ERR_NONE)
		b->w->done = true;
}

static void fill(uint8_t *p, unsigned g, unsigned i)
{
	for (size_t n = 0; n < BYTES_EACH; n++)
		p[n] = (uint8_t)(g * 31 + i * 7 + n);
}

/* Puts or reads all of a group; its members that went well. The client may be killed meanwhile: 0. */
static unsigned call(struct world *w, const char *client, enum stc_kind kind, unsigned g)
{
	static uint8_t v[MEMBERS][BYTES_EACH];
	static char key[MEMBERS][16], group[16];
	struct stc_buf buf[MEMBERS];
	struct stc_call *c = NULL;
	struct begin b = { ss_client_of(&w->s, client), NULL, w };
	unsigned ok = 0;
	if (!b.c->stc)
		return 0;
	SIM_CHECK(stc_call_new(kind, MEMBERS, &c) == ERR_NONE, "no memory");
	snprintf(group, sizeof(group), "group-%u", g);
	for (unsigned i = 0; i < MEMBERS; i++) {
		snprintf(key[i], sizeof(key[i]), "g%u/%u", g, i);
		buf[i] = (struct stc_buf){ v[i], BYTES_EACH };
		if (kind == STC_PUT)
			fill(v[i], g, i);
		c->items[i].key = BYTES_STR(key[i]);
		c->items[i].bufs = &buf[i];
		c->items[i].n_bufs = 1;
		if (kind == STC_PUT)
			c->items[i].group = BYTES_STR(group);
		c->items[i].group_size = kind == STC_PUT ? MEMBERS : 0;
	}
	c->done = on_done;
	c->user = w;
	b.call = c;
	w->done = false;
	sim_at_proc(sim_loop_proc(b.c->loop), sim_now_ns(cl_sim(w->s.c)), begin, &b);
	bool ended = cl_until(w->s.c, watch, w, 20000);
	for (unsigned i = 0; ended && i < MEMBERS; i++) {
		uint8_t want[BYTES_EACH];
		fill(want, g, i);
		ok += c->items[i].err == ERR_NONE;
		if (kind == STC_GET && c->items[i].err == ERR_NONE)
			SIM_CHECK(memcmp(v[i], want, BYTES_EACH) == 0, "wrong bytes of %s",
				  key[i]);
	}
	SIM_CHECK(ended, "a call never ended (T7)");
	stc_call_free(c);
	return ok;
}

static void open_world(struct world *w, struct sim_rng *r)
{
	bool away = sim_rng_chance(r, 400000);
	ss_open(&w->s, &(struct ss_opts){ .seed = w->seed,
					  .n_agents = 2,
					  .pool_bytes = 1 << 20,
					  .master_flags = away ? flags_away : flags_stay,
					  .agent_flags = agent_flags });
	ss_client(&w->s, "c0", "c0", "default");
	ss_start(&w->s);
}

static struct cl_budget budget(struct sim_rng *r)
{
	struct cl_budget b = { .min_ms = 20, .max_ms = 2000, .kill = 3 };
	uint32_t *kinds[] = { &b.kill,	&b.stop,  &b.partition, &b.oneway,
			      &b.delay, &b.reset, &b.lossy,	&b.reorder };
	for (int i = 0; i < 3; i++)
		*kinds[sim_rng_below(r, ARRAY_LEN(kinds))] += 1;
	return b;
}

static void scenario(uint64_t seed, struct sums *sums)
{
	static const char *const members[] = { "master", "a0", "a1", NULL };
	struct world *w = calloc(1, sizeof(*w));
	struct sim_rng r = sim_rng(seed, "groups");
	SIM_CHECK(w, "no memory");
	w->sums = sums;
	w->seed = seed;
	open_world(w, &r);
	struct cl_budget b = budget(&r);
	cl_chaos(w->s.c, &b, CHAOS_MS, members, NULL);
	uint64_t end = sim_now_ns(cl_sim(w->s.c)) + (CHAOS_MS + 200) * NS_PER_MS;
	while (sim_now_ns(cl_sim(w->s.c)) < end) {
		unsigned g = (unsigned)sim_rng_below(&r, GROUPS);
		sums->puts += call(w, "c0", STC_PUT, g) == MEMBERS;
		if (sim_rng_chance(&r, 300000))
			call(w, "c0", STC_GET, (unsigned)sim_rng_below(&r, GROUPS));
		run_ms(w, sim_rng_between(&r, 1, 60));
	}
	cl_calm(w->s.c);
	run_ms(w, 3000);
	SIM_CHECK(cl_until(w->s.c, ss_ready, &w->s, 60000), "%s", "not ready in calm");
	for (unsigned g = 0; g < GROUPS; g++) {
		judge_all(w);
		unsigned n = call(w, "c0", STC_GET, g);
		SIM_CHECK(n == 0 || n == MEMBERS, "seed %" PRIu64 ": group %u: a get has %u",
			  seed, g, n);
	}
	sums->evictions += ss_counts(&w->s).evictions;
	sums->runs_of_master += cl_runs(w->s.c, "master");
	sums->runs_of_agents += cl_runs(w->s.c, "a0") + cl_runs(w->s.c, "a1");
	ss_close(&w->s);
	free(w);
}

Test(groups, case_018_all_or_none_at_every_instant)
{
	struct sums s = { 0 };
	uint64_t seed, n = 0;
	for (struct sim_seeds r = sim_seeds(60); sim_seeds_next(&r, &seed); n++)
		scenario(seed, &s);
	fprintf(stderr,
		"# %" PRIu64 " seeds: whole %" PRIu64 " none %" PRIu64 " unsaid %" PRIu64
		" puts %" PRIu64 " evictions %" PRIu64 " runs %" PRIu64 " %" PRIu64 "\n",
		n, s.whole, s.none, s.unsaid, s.puts, s.evictions, s.runs_of_master,
		s.runs_of_agents);
	if (n >= 50) {
		cr_assert_gt(s.whole, n * 500);
		cr_assert_gt(s.none, n * 500);
		cr_assert_gt(s.puts, n * 4);
		cr_assert_gt(s.evictions, n * MEMBERS);
		cr_assert_gt(s.runs_of_master + s.runs_of_agents, n * 4);
	}
	NO_LEAKS();
}
