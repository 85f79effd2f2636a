/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in a whole store on virtual time: puts with two copies on three agents that are killed, stopped and cut
 * off; repair; a drain under load. What was acknowledged with two copies survives the loss of any one agent.
 */
#include "tests/support/leak.h"
#include "tests/support/store_sim.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

TestSuite(replicas, .timeout = 280);

enum { KEYS = 24, CHAOS_MS = 5000 };

static const char *const flags[] = { "--set", "holder_dead_ms=60000",
				     "--set", "suspect_ms=600",
				     "--set", "beat_ms=100",
				     "--set", "master.lease_ms=300",
				     "--set", "master.lease_max_ms=1000",
				     "--set", "master.put_start_discard_ms=1500",
				     NULL };
static const char *const agent_flags[] = { "--set", "agent.register_ms=500",
					   "--set", "beat_ms=100",
					   "--set", "agent.pull_stall_ms=400",
					   NULL };

static void open_store(struct ss *s, uint64_t seed)
{
	ss_open(s, &(struct ss_opts){ .seed = seed,
				      .n_agents = 3,
				      .pool_bytes = 8 << 20,
				      .master_flags = flags,
				      .agent_flags = agent_flags });
	ss_client(s, "c0", "c0", "default");
	ss_start(s);
}

static const char *key_of(unsigned i)
{
	static char k[16];
	snprintf(k, sizeof(k), "k/%u", i);
	return k;
}

static size_t fill(unsigned i, uint8_t *out)
{
	size_t n = 1 + i * 7919u % 90000;
	for (size_t k = 0; k < n; k++)
		out[k] = (uint8_t)(k * 3 >> 1 ^ i);
	return n;
}

/* Its error; copies: as the put says. */
static enum err put(struct ss *s, unsigned i, uint32_t required, uint32_t ms, uint32_t *copies)
{
	static uint8_t v[1 << 17];
	struct stc_call *c = NULL;
	struct stc_buf b = { v, fill(i, v) };
	cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR(key_of(i));
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	c->put.replica_num = 2;
	c->put.replicas_required = required;
	c->put.upsert = true;
	enum err e = ss_call(s, "c0", c, ms);
	e = e ? e : c->items[0].err;
	*copies = c->items[0].copies;
	stc_call_free(c);
	return e;
}

static enum err get(struct ss *s, unsigned i, uint32_t ms)
{
	static uint8_t want[1 << 17];
	struct buf b = BUF_INIT(1 << 20);
	enum err e = ss_get(s, "c0", key_of(i), ms, &b);
	size_t n = fill(i, want);
	if (e == ERR_NONE)
		SIM_CHECK(b.n == n && memcmp(b.p, want, n) == 0, "%s: wrong bytes", key_of(i));
	buf_fini(&b);
	return e;
}

static bool repaired(void *arg)
{
	struct mind_counts c = ss_counts(arg);
	return !c.recovering && c.under_replicated == 0 && c.copying == 0;
}

/* Each of them, without this agent. */
static void all_without(struct ss *s, const bool *acked, size_t agent)
{
	cl_stop(s->c, s->agents[agent].name);
	for (unsigned i = 0; i < KEYS; i++)
		if (acked[i])
			SIM_CHECK(get(s, i, 10000) == ERR_NONE, "%s without %s", key_of(i),
				  s->agents[agent].name);
	cl_cont(s->c, s->agents[agent].name);
	cr_assert(cl_until(s->c, ss_ready, s, 20000));
}

Test(replicas, any_agent_may_be_missing)
{
	struct ss s;
	bool acked[KEYS];
	uint32_t copies;
	open_store(&s, 1);
	for (unsigned i = 0; i < KEYS; i++) {
		acked[i] = put(&s, i, 2, 5000, &copies) == ERR_NONE;
		cr_expect(acked[i]);
		cr_expect_eq(copies, 2, "%u", copies);
	}
	cr_expect_geq(s.fetch.good, KEYS);
	for (size_t a = 0; a < s.n_agents; a++)
		all_without(&s, acked, a);
	ss_close(&s);
	NO_LEAKS();
}

/* One copy is acknowledged, the second follows by itself; a lost pool is made up for. */
Test(replicas, repair)
{
	struct ss s;
	bool acked[KEYS];
	uint32_t copies;
	open_store(&s, 2);
	for (unsigned i = 0; i < KEYS; i++) {
		acked[i] = put(&s, i, 1, 5000, &copies) == ERR_NONE;
		cr_expect(acked[i]);
	}
	cr_assert(cl_until(s.c, repaired, &s, 20000), "%" PRIu64 " lack a copy",
		  ss_counts(&s).under_replicated);
	for (size_t a = 0; a < s.n_agents; a++)
		all_without(&s, acked, a);
	cl_power_cut(s.c, "n1"); /* its memory is gone for good */
	cl_start(s.c, "a1");
	cr_assert(cl_until(s.c, ss_ready, &s, 20000));
	cr_assert(cl_until(s.c, repaired, &s, 30000), "%" PRIu64 " lack a copy",
		  ss_counts(&s).under_replicated);
	for (size_t a = 0; a < s.n_agents; a++)
		all_without(&s, acked, a);
	ss_close(&s);
	NO_LEAKS();
}

/* ---- a drain ---- */

static enum err start_drain(struct ss *s, const char *holder)
{
	struct cl_from from = { .node = "adm", .role = ROLE_ADMIN };
	struct buf body = BUF_INIT(1024);
	struct why why = { 0 };
	enc_task_start_req(&body, &(struct msg_task_start_req){ .kind = 3,
								.from = BYTES_STR(holder) });
	enum err e = cl_call(s->c, from, "master", METHOD_TASK_START, buf_bytes(&body), 5000,
			     NULL, &why);
	cr_expect_eq(e, ERR_NONE, "%s", why.text);
	buf_fini(&body);
	return e;
}

static bool is_drained(void *arg)
{
	struct ss *s = arg;
	struct mst *m = ss_master(s);
	struct mind_holder h;
	for (uint32_t i = 0; m && m->term.mind && i < mind_holders(m->term.mind); i++)
		if (mind_holder(m->term.mind, i, &h) && h.objects == 0 && h.drained)
			return true;
	return false;
}

/* L5: every key readable throughout; then it can go. */
Test(replicas, drain)
{
	struct ss s;
	bool acked[KEYS];
	uint32_t copies;
	struct mind_holder h = { 0 };
	open_store(&s, 3);
	for (unsigned i = 0; i < KEYS; i++) {
		acked[i] = put(&s, i, i % 2 + 1, 5000, &copies) == ERR_NONE;
		cr_expect(acked[i]);
	}
	cr_assert(mind_holder(ss_master(&s)->term.mind, 0, &h));
	cr_assert_eq(start_drain(&s, h.id), ERR_NONE);
	for (unsigned k = 0; k < 2000 && !is_drained(&s); k++)
		cr_expect_eq(get(&s, k % KEYS, 5000), ERR_NONE);
	cr_assert(is_drained(&s));
	for (size_t a = 0; a < s.n_agents; a++) {
		struct svc *v = cl_svc_of(s.c, s.agents[a].name);
		if (strcmp(v->id, h.id) == 0)
			cl_kill(s.c, s.agents[a].name);
	}
	for (unsigned i = 0; i < KEYS; i++)
		cr_expect_eq(get(&s, i, 10000), ERR_NONE, "%u", i);
	ss_close(&s);
	NO_LEAKS();
}

/* ---- trouble ---- */

static void scenario(uint64_t seed)
{
	static const char *const members[] = { "master", "a0", "a1", "a2", NULL };
	static const char *const nodes[] = { "m0", "n0", "n1", "n2", NULL };
	struct cl_budget b = {
		.kill = 4, .stop = 2, .partition = 2, .reset = 2, .max_ms = 900
	};
	struct ss s;
	bool acked[KEYS] = { false };
	uint32_t copies;
	open_store(&s, seed);
	cl_chaos(s.c, &b, CHAOS_MS, members, nodes);
	for (unsigned i = 0; i < KEYS; i++) {
		acked[i] = put(&s, i, 1 + i % 2, 2000, &copies) == ERR_NONE;
		SIM_CHECK(!acked[i] || copies >= 1 + i % 2, "%s: %u copies", key_of(i), copies);
		cl_run_ms(s.c, CHAOS_MS / KEYS / 2);
	}
	cl_calm(s.c);
	SIM_CHECK(cl_until(s.c, ss_ready, &s, 30000), "it does not come to rest");
	SIM_CHECK(cl_until(s.c, repaired, &s, 60000),
		  "%" PRIu64 " lack a copy, %" PRIu64 " made", ss_counts(&s).under_replicated,
		  ss_counts(&s).copying);
	for (unsigned i = 0; i < KEYS; i++)
		if (acked[i])
			SIM_CHECK(get(&s, i, 10000) == ERR_NONE, "%s is lost", key_of(i));
	all_without(&s, acked, seed % s.n_agents);
	ss_close(&s);
}

Test(replicas, any_trouble)
{
	uint64_t seed;
	for (struct sim_seeds r = sim_seeds(8); sim_seeds_next(&r, &seed);)
		scenario(seed);
	NO_LEAKS();
}
