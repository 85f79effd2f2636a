/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several copies of objects end to end on a virtual clock: master, three agents that fetch from each other, clients
 * with the library's session. Puts of more than one copy, the loss of a holder, tasks over the wire, drains through
 * kills.
 */
#include "tests/support/leak.h"
#include "tests/support/store_sim.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

TestSuite(copies, .timeout = 180);

static const char *const flags[] = { "--set", "holder_dead_ms=3000",
				     "--set", "suspect_ms=600",
				     "--set", "beat_ms=100",
				     "--set", "master.lease_ms=1000",
				     "--set", "master.put_start_discard_ms=1500",
				     NULL };
static const char *const agent_flags[] = { "--set", "agent.register_ms=500", "--set",
					   "beat_ms=100", NULL };
static const struct cl_from admin = { "c0", ROLE_ADMIN, NULL },
			    client = { "c0", ROLE_CLIENT, NULL };

static void open_store(struct ss *s, uint64_t seed)
{
	ss_open(s, &(struct ss_opts){ .seed = seed,
				      .n_agents = 3,
				      .master_flags = flags,
				      .agent_flags = agent_flags });
	ss_client(s, "c0", "c0", "default");
	ss_client(s, "c1", "c1", "default");
	ss_start(s);
}

/* ---- objects ---- */

static const char *key_of(int i)
{
	static char text[4][16];
	static int at;
	char *p = text[at++ % 4];
	snprintf(p, 16, "k%d", i);
	return p;
}

/* Bytes that only this key has. */
static struct bytes value_of(int i, uint8_t *room, size_t n)
{
	for (size_t k = 0; k < n; k++)
		room[k] = (uint8_t)(k * 31 + (size_t)i * 7 + (k >> 8));
	return BYTES(room, n);
}

static size_t size_of(int i)
{
	return i % 5 == 0 ? 0 : i % 3 ? 3000 + (size_t)i : 70000 + (size_t)i;
}

static uint8_t room[128 << 10];

static enum err put_n(struct ss *s, int i, uint32_t num, uint32_t required)
{
	struct stc_call *c;
	const char *key = key_of(i);
	struct bytes v = value_of(i, room, size_of(i));
	struct stc_buf b = { (void *)(uintptr_t)v.p, v.n };
	cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
	c->put.upsert = true;
	c->put.replica_num = num;
	c->put.replicas_required = required;
	c->items[0].key = BYTES_STR(key);
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	enum err e = ss_call(s, "c0", c, 20000);
	e = e != ERR_NONE ? e : c->items[0].err;
	stc_call_free(c);
	return e;
}

static bool whole(struct ss *s, const char *who, int i)
{
	struct buf b = BUF_INIT(2 << 20);
	enum err e = ss_get(s, who, key_of(i), 20000, &b);
	struct bytes v = value_of(i, room, size_of(i));
	bool same = e == ERR_NONE && b.n == v.n && (v.n == 0 || memcmp(b.p, v.p, v.n) == 0);
	if (!same)
		cr_log_warn("%s: %s, %zu bytes", key_of(i), err_name(e), b.n);
	buf_fini(&b);
	return same;
}

static size_t copies_of(struct ss *s, int i)
{
	struct mind_object o;
	struct why why = { 0 };
	const char *key = key_of(i);
	enum err e = mind_lookup(ss_master(s)->term.mind, BYTES_STR("default"), BYTES_STR(key),
				 0, BYTES(NULL, 0), &o, &why);
	return e == ERR_NONE ? o.n_replicas : 0;
}

static bool is_agent(const struct mind_holder *h, int agent)
{
	char addr[24];
	snprintf(addr, sizeof(addr), "sim://n%d/a%d", agent, agent);
	return h->n_addrs && strcmp(h->addrs[0], addr) == 0;
}

static const char *holder_id(struct ss *s, int agent)
{
	static char id[65];
	struct mind_holder h;
	for (uint32_t i = 0; mind_holder(ss_master(s)->term.mind, i, &h); i++)
		if (is_agent(&h, agent)) {
			snprintf(id, sizeof(id), "%s", h.id);
			return id;
		}
	cr_assert_fail("no holder of a%d", agent);
	return NULL;
}

/* ---- tasks over the wire ---- */

struct task {
	uint64_t id;
	struct msg_task t;
	char text[321];
};

static enum err start(struct ss *s, struct cl_from from, const struct msg_task_start_req *q,
		      uint64_t *id)
{
	struct buf body = BUF_INIT(1 << 20), reply = BUF_INIT(1 << 20);
	struct msg_task_start_rep m;
	struct why why = { 0 };
	enc_task_start_req(&body, q);
	enum err e = cl_call(s->c, from, "master", METHOD_TASK_START, buf_bytes(&body), 5000,
			     &reply, &why);
	if (e == ERR_NONE) {
		struct dec d = DEC_INIT(buf_bytes(&reply), NULL, &why);
		cr_assert_eq(dec_task_start_rep(&d, &m), ERR_NONE);
		*id = m.id;
	}
	buf_fini(&body);
	buf_fini(&reply);
	return e;
}

static enum err look(struct ss *s, struct cl_from from, struct task *t)
{
	struct buf body = BUF_INIT(1 << 20), reply = BUF_INIT(1 << 20);
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_tasks_rep m;
	struct why why = { 0 };
	enc_tasks_req(&body, &(struct msg_tasks_req){ .ids = { &t->id, 1 } });
	enum err e = cl_call(s->c, from, "master", METHOD_TASKS, buf_bytes(&body), 5000, &reply,
			     &why);
	if (e == ERR_NONE) {
		struct dec d = DEC_INIT(buf_bytes(&reply), &a, &why);
		cr_assert_eq(dec_tasks_rep(&d, &m), ERR_NONE);
		cr_assert_eq(m.tasks.n, 1);
		t->t = m.tasks.p[0];
		snprintf(t->text, sizeof(t->text), "%.*s", (int)t->t.text.n,
			 (const char *)t->t.text.p);
	}
	buf_fini(&body);
	buf_fini(&reply);
	arena_fini(&a);
	return e;
}

static enum err cancel(struct ss *s, struct cl_from from, uint64_t id)
{
	struct buf body = BUF_INIT(1 << 20), reply = BUF_INIT(1 << 20);
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_results_rep m;
	struct why why = { 0 };
	enc_tasks_req(&body, &(struct msg_tasks_req){ .ids = { &id, 1 } });
	enum err e = cl_call(s->c, from, "master", METHOD_TASK_CANCEL, buf_bytes(&body), 5000,
			     &reply, &why);
	if (e == ERR_NONE) {
		struct dec d = DEC_INIT(buf_bytes(&reply), &a, &why);
		cr_assert_eq(dec_results_rep(&d, &m), ERR_NONE);
		e = (enum err)m.items.p[0].status;
	}
	buf_fini(&body);
	buf_fini(&reply);
	arena_fini(&a);
	return e;
}

static uint64_t drain(struct ss *s, int agent)
{
	uint64_t id = 0;
	const struct msg_task_start_req q = { .kind = MIND_TASK_DRAIN,
					      .from = BYTES_STR(holder_id(s, agent)) };
	cr_assert_eq(start(s, admin, &q, &id), ERR_NONE);
	return id;
}

/* Until it has ended, all n keys whole throughout. */
static struct task to_end(struct ss *s, uint64_t id, int n)
{
	struct task t = { .id = id };
	for (int i = 0; i < 600; i++) {
		cr_assert(whole(s, "c1", i % n), "%s", key_of(i % n));
		cr_assert_eq(look(s, admin, &t), ERR_NONE);
		if (t.t.state >= MIND_TASK_DONE)
			return t;
		cl_run_ms(s->c, 50);
	}
	cr_assert_fail("it does not end: %s", t.text);
	return t;
}

static void wait_ready(struct ss *s)
{
	cr_assert(cl_until(s->c, ss_ready, s, 30000), "not ready");
}

/* ---- tests ---- */

Test(copies, a_put_of_two_survives_its_holder)
{
	struct ss s;
	open_store(&s, 1);
	for (int i = 0; i < 24; i++) {
		cr_assert_eq(put_n(&s, i, 2, 2), ERR_NONE, "%s", key_of(i));
		cr_assert_eq(copies_of(&s, i), 2);
	}
	cl_kill(s.c, "a0");
	for (int i = 0; i < 24; i++)
		cr_assert(whole(&s, "c1", i), "at once, from the other copy");
	cl_run_ms(s.c, 8000); /* it is away; what it had is made again */
	cr_assert_eq(ss_counts(&s).under_replicated, 0);
	for (int i = 0; i < 24; i++) {
		cr_assert_eq(copies_of(&s, i), 2, "%s", key_of(i));
		cr_assert(whole(&s, "c0", i));
	}
	cl_start(s.c, "a0");
	wait_ready(&s);
	for (int i = 0; i < 24; i++)
		cr_assert(whole(&s, "c1", i));
	ss_close(&s);
	NO_LEAKS();
}

Test(copies, more_than_there_are_holders)
{
	struct ss s;
	open_store(&s, 2);
	cr_assert_eq(put_n(&s, 1, 4, 2), ERR_NONE, "best effort");
	cl_run_ms(s.c, 1000);
	cr_assert_eq(copies_of(&s, 1), 3);
	cr_assert_eq(ss_counts(&s).under_replicated, 1);
	ss_close(&s);
	NO_LEAKS();
}

Test(copies, tasks_over_the_wire)
{
	struct ss s;
	uint64_t id = 0;
	struct task t;
	open_store(&s, 3);
	for (int i = 1; i < 4; i++)
		cr_assert_eq(put_n(&s, i, 1, 1), ERR_NONE);
	struct bytes keys[] = { BYTES_STR("k1"), BYTES_STR("k2"), BYTES_STR("none") };
	struct msg_task_start_req q = { .kind = MIND_TASK_COPY,
					.keys = { keys, 3 },
					.replica_num = 3 };
	cr_assert_eq(start(&s, client, &q, &id), ERR_NONE);
	t = (struct task){ .id = id };
	for (int i = 0; i < 100 && t.t.state < MIND_TASK_DONE; i++) {
		cr_assert_eq(look(&s, client, &t), ERR_NONE);
		cl_run_ms(s.c, 50);
	}
	cr_assert_eq(t.t.state, MIND_TASK_FAILED);
	cr_assert_eq(t.t.done, 2);
	cr_assert_eq(t.t.failed, 1);
	cr_assert_eq(copies_of(&s, 1), 3);
	cr_assert_eq(copies_of(&s, 3), 1);
	/* a drain is an admin's; so is its cancel */
	q = (struct msg_task_start_req){ .kind = MIND_TASK_DRAIN,
					 .from = BYTES_STR(holder_id(&s, 0)) };
	cr_assert_eq(start(&s, client, &q, &id), ERR_FORBIDDEN);
	id = drain(&s, 0);
	cr_assert_neq(cancel(&s, client, id), ERR_NONE);
	cr_assert_eq(cancel(&s, admin, id), ERR_NONE);
	t.id = id + 100;
	cr_assert_eq(look(&s, admin, &t), ERR_NOT_FOUND);
	ss_close(&s);
	NO_LEAKS();
}

Test(copies, L5_a_drain_leaves_every_key_readable)
{
	struct ss s;
	enum { N = 40 };
	open_store(&s, 4);
	for (int i = 0; i < N; i++)
		cr_assert_eq(put_n(&s, i, 1, 1), ERR_NONE);
	struct task t = to_end(&s, drain(&s, 0), N);
	cr_assert_eq(t.t.state, MIND_TASK_DONE, "%s", t.text);
	cr_assert_eq(t.t.done, t.t.total);
	cr_assert_gt(t.t.done, 0);
	for (int i = N; i < N + 10; i++)
		cr_assert_eq(put_n(&s, i, 1, 1), ERR_NONE);
	cl_kill(s.c, "a0"); /* for good */
	for (int i = 0; i < N + 10; i++)
		cr_assert(whole(&s, "c0", i), "%s", key_of(i));
	cl_run_ms(s.c, 5000);
	for (int i = 0; i < N + 10; i++)
		cr_assert(whole(&s, "c1", i), "%s", key_of(i));
	ss_close(&s);
	NO_LEAKS();
}

Test(copies, a_drain_through_deaths)
{
	struct ss s;
	enum { N = 30 };
	struct task t = { 0 };
	open_store(&s, 5);
	for (int i = 0; i < N; i++)
		cr_assert_eq(put_n(&s, i, 1 + (uint32_t)(i % 2), 1), ERR_NONE);
	s.fetch.piece_us = 20000;
	uint64_t id = drain(&s, 1);
	cl_run_ms(s.c, 100);
	cl_kill(s.c, "a2"); /* a destination; it is back before it is away */
	cl_run_ms(s.c, 300);
	cl_start(s.c, "a2");
	wait_ready(&s);
	cl_kill(s.c, "a1"); /* the source */
	cl_run_ms(s.c, 300);
	cl_start(s.c, "a1");
	wait_ready(&s);
	t.id = id;
	cr_assert_eq(look(&s, admin, &t), ERR_NONE);
	cl_kill(s.c, "master");
	cl_start(s.c, "master");
	wait_ready(&s);
	cr_assert_eq(look(&s, admin, &t), ERR_TASK_LOST);
	cr_assert_eq(cancel(&s, admin, id), ERR_TASK_LOST);
	s.fetch.piece_us = 0;
	t = to_end(&s, drain(&s, 1), N); /* does what is left */
	cr_assert_eq(t.t.state, MIND_TASK_DONE, "%s", t.text);
	struct mind_holder h;
	for (uint32_t i = 0; mind_holder(ss_master(&s)->term.mind, i, &h); i++)
		cr_assert_eq(h.drained, is_agent(&h, 1), "%s", h.id);
	for (int i = 0; i < N; i++)
		cr_assert(whole(&s, "c0", i), "%s", key_of(i));
	ss_close(&s);
	NO_LEAKS();
}

Test(copies, a_source_with_bad_bytes_is_not_believed)
{
	struct ss s;
	open_store(&s, 6);
	cr_assert_eq(put_n(&s, 1, 1, 1), ERR_NONE);
	s.fetch.damaged = 2;
	uint64_t id = 0;
	struct bytes key = BYTES_STR("k1");
	const struct msg_task_start_req q = { .kind = MIND_TASK_COPY, .keys = { &key, 1 } };
	cr_assert_eq(start(&s, client, &q, &id), ERR_NONE);
	for (int i = 0; i < 400 && copies_of(&s, 1) < 2; i++)
		cl_run_ms(s.c, 50);
	cr_assert_eq(copies_of(&s, 1), 2, "what was damaged on the way is fetched again");
	cr_assert(whole(&s, "c1", 1));
	cl_kill(s.c, "a0");
	cr_assert(whole(&s, "c1", 1));
	ss_close(&s);
	NO_LEAKS();
}

/* Puts, gets, removes, drains and deaths at random: a get returns the key's own bytes, a removed key is gone, and in
 * the end everything is there and the recount is right (ss_close). */
static void scenario(uint64_t seed)
{
	struct ss s;
	struct sim_rng rng = sim_rng(seed, "copies");
	enum { N = 12 };
	bool there[N] = { false };
	uint64_t id = 0;
	open_store(&s, seed);
	for (int step = 0; step < 120; step++) {
		int i = (int)sim_rng_below(&rng, N);
		switch (sim_rng_below(&rng, 12)) {
		case 0:
		case 1:
		case 2:
		case 3:
			there[i] = put_n(&s, i, 2, 1 + (uint32_t)sim_rng_below(&rng, 2)) ==
				   ERR_NONE;
			break;
		case 4:
			if (ss_remove(&s, "c1", key_of(i), 20000) == ERR_NONE) {
				there[i] = false;
				cr_assert_eq(ss_exists(&s, "c0", key_of(i), 20000),
					     ERR_NOT_FOUND, "seed %" PRIu64 " step %d", seed,
					     step);
			}
			break;
		case 5:
			id = drain(&s, (int)sim_rng_below(&rng, 3));
			break;
		case 6:
			if (id)
				(void)cancel(&s, admin, id);
			break;
		case 7: {
			const char *const who[] = { "a0", "a1", "a2", "master" };
			const char *w = who[sim_rng_below(&rng, 4)];
			cl_kill(s.c, w);
			cl_run_ms(s.c, sim_rng_below(&rng, 800));
			cl_start(s.c, w);
			wait_ready(&s);
			break;
		}
		default:
			if (there[i])
				cr_assert(whole(&s, "c1", i), "seed %" PRIu64 " step %d", seed,
					  step);
			cl_run_ms(s.c, sim_rng_below(&rng, 300));
		}
	}
	for (int i = 0; i < N; i++)
		if (there[i])
			cr_assert(whole(&s, "c0", i), "seed %" PRIu64, seed);
	ss_close(&s);
}

Test(copies, at_random)
{
	const char *n = getenv("SEEDS"), *one = getenv("SEED");
	uint64_t from = one ? strtoull(one, NULL, 10) : 100;
	uint64_t seeds = one ? 1 : n ? strtoull(n, NULL, 10) : 4;
	for (uint64_t i = 0; i < seeds; i++)
		scenario(from + i);
	NO_LEAKS();
}
