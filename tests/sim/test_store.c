/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store end to end on a virtual clock: master, two agents, clients with the library's session; each
 * killed, stopped, cut off and back. Then a share of the soak (store.h).
 */
#include "tests/sim/store.h"
#include "tests/support/dies.h"
#include "tests/support/leak.h"
#include "tests/support/store_sim.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

TestSuite(store, .timeout = 120);

static const char *const flags[] = { "--set", "holder_dead_ms=3000",
				     "--set", "suspect_ms=600",
				     "--set", "beat_ms=100",
				     "--set", "master.lease_ms=1000",
				     "--set", "master.put_start_discard_ms=1500",
				     NULL };
static const char *const agent_flags[] = { "--set", "agent.register_ms=500", "--set",
					   "beat_ms=100", NULL };

static void open_store(struct ss *s, uint64_t seed, uint64_t pool_bytes)
{
	ss_open(s, &(struct ss_opts){ .seed = seed,
				      .n_agents = 2,
				      .pool_bytes = pool_bytes,
				      .master_flags = flags,
				      .agent_flags = agent_flags });
	ss_client(s, "c0", "c0", "default");
	ss_client(s, "c1", "c1", "default");
	ss_start(s);
}

static enum err put(struct ss *s, const char *client, const char *key, const char *text,
		    bool upsert)
{
	return ss_put(s, client, key, BYTES_STR(text), upsert, 5000, NULL);
}

static bool holds(struct ss *s, const char *client, const char *key, const char *text)
{
	struct buf b = BUF_INIT(2 << 20);
	enum err e = ss_get(s, client, key, 10000, &b);
	bool same = e == ERR_NONE && b.n == strlen(text) &&
		    (b.n == 0 || memcmp(b.p, text, b.n) == 0);
	if (!same)
		cr_log_warn("%s: %s, %zu bytes", key, err_name(e), b.n);
	buf_fini(&b);
	return same;
}

static void wait_ready(struct ss *s)
{
	cr_assert(cl_until(s->c, ss_ready, s, 20000), "not ready");
}

Test(store, put_get_upsert_remove)
{
	struct ss s;
	open_store(&s, 1, 0);
	cr_assert_eq(ss_get(&s, "c0", "k", 1000, NULL), ERR_NOT_FOUND);
	cr_assert_eq(put(&s, "c0", "k", "one", false), ERR_NONE);
	cr_assert(holds(&s, "c1", "k", "one"));
	cr_assert_eq(put(&s, "c1", "k", "two", false), ERR_ALREADY_EXISTS);
	cr_assert_eq(put(&s, "c1", "k", "three", true), ERR_NONE);
	cr_assert(holds(&s, "c0", "k", "three"));
	cr_assert_eq(ss_exists(&s, "c0", "k", 1000), ERR_NONE);
	cr_assert_eq(put(&s, "c0", "empty", "", false), ERR_NONE, "zero bytes are a value");
	cr_assert(holds(&s, "c1", "empty", ""));
	cr_assert_eq(ss_remove(&s, "c0", "k", 5000), ERR_NONE);
	cr_assert_eq(ss_get(&s, "c1", "k", 1000, NULL), ERR_NOT_FOUND);
	cr_assert_eq(ss_remove(&s, "c0", "k", 5000), ERR_NONE);
	ss_close(&s);
	NO_LEAKS();
}

/* Cases 1 and 2: the index after a restart of the master is what the holders have, and nothing that
 * lives is allocated over. */
Test(store, case_001_a_restarted_master_has_every_key)
{
	struct ss s;
	char key[16], text[32];
	open_store(&s, 2, 0);
	for (int i = 0; i < 30; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		snprintf(text, sizeof(text), "value %d", i);
		cr_assert_eq(put(&s, "c0", key, text, false), ERR_NONE);
	}
	cl_kill(s.c, "master");
	cl_start(s.c, "master");
	for (int i = 0; i < 30; i++) { /* the library waits while it is RECOVERING */
		snprintf(key, sizeof(key), "n%d", i);
		cr_assert_eq(put(&s, "c1", key, "new", false), ERR_NONE);
	}
	wait_ready(&s);
	for (int i = 0; i < 30; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		snprintf(text, sizeof(text), "value %d", i);
		cr_assert(holds(&s, "c1", key, text), "%s", key);
	}
	cr_assert_eq(ss_counts(&s).objects, 60u);
	ss_close(&s);
	NO_LEAKS();
}

Test(store, case_002_nothing_is_allocated_over)
{
	struct ss s;
	char key[16];
	static char big[100000];
	open_store(&s, 3, 1 << 20);
	memset(big, 'b', sizeof(big) - 1);
	for (int i = 0; i < 8; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(put(&s, "c0", key, big, false), ERR_NONE, "%s", key);
	}
	cl_restart(s.c, "master");
	memset(big, 'n', sizeof(big) - 1);
	for (int i = 0; i < 4; i++) {
		snprintf(key, sizeof(key), "n%d", i);
		cr_assert_eq(put(&s, "c1", key, big, false), ERR_NONE, "%s", key);
	}
	memset(big, 'b', sizeof(big) - 1);
	for (int i = 0; i < 8; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert(holds(&s, "c0", key, big), "%s", key);
	}
	ss_close(&s);
	NO_LEAKS();
}

Test(store, a_killed_agent_finds_its_pool_again)
{
	struct ss s;
	char key[16];
	open_store(&s, 4, 0);
	for (int i = 0; i < 20; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(put(&s, "c0", key, key, false), ERR_NONE);
	}
	for (int a = 0; a < 2; a++) {
		cl_kill(s.c, a ? "a1" : "a0");
		cl_run_ms(s.c, 300);
		cl_start(s.c, a ? "a1" : "a0");
		wait_ready(&s);
	}
	for (int i = 0; i < 20; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert(holds(&s, "c1", key, key), "%s", key);
		cr_assert_eq(put(&s, "c1", key, "again", true), ERR_NONE);
		cr_assert(holds(&s, "c0", key, "again"), "%s", key);
	}
	ss_close(&s);
	NO_LEAKS();
}

/* T3: what was removed while its holder was away does not come back with it. */
Test(store, nothing_dead_returns_with_a_holder)
{
	struct ss s;
	char key[16];
	open_store(&s, 5, 0);
	for (int i = 0; i < 20; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(put(&s, "c0", key, "old", false), ERR_NONE);
	}
	cl_kill(s.c, "a0");
	cl_run_ms(s.c, 5000); /* away */
	for (int i = 0; i < 20; i += 2) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(ss_remove(&s, "c0", key, 5000), ERR_NONE, "%s", key);
		snprintf(key, sizeof(key), "k%d", i + 1);
		cr_assert_eq(put(&s, "c0", key, "new", true), ERR_NONE, "%s", key);
	}
	cl_restart(s.c, "master");
	cl_start(s.c, "a0");
	wait_ready(&s);
	for (int i = 0; i < 20; i += 2) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(ss_get(&s, "c1", key, 5000, NULL), ERR_NOT_FOUND, "%s is back",
			     key);
		snprintf(key, sizeof(key), "k%d", i + 1);
		cr_assert(holds(&s, "c1", key, "new"), "%s", key);
	}
	ss_close(&s);
	NO_LEAKS();
}

struct wild { /* a call whose end nobody waits for */
	struct ss_client *c;
	struct stc_call *call;
};

static void begin_wild(void *arg)
{
	struct wild *w = arg;
	w->call->deadline_ns = clock_after_ms(loop_now_ns(w->c->loop), 20000);
	w->call->done = stc_call_free;
	cr_assert_eq(stc_start(w->c->stc, w->call), ERR_NONE);
}

/* Case 13: a killed writer's key is free again after put_start_discard_ms, and so is its space. */
Test(store, case_013_writer_dies)
{
	struct ss s;
	static char big[200000];
	open_store(&s, 6, 0);
	memset(big, 'x', sizeof(big));
	struct stc_buf b = { big, sizeof(big) };
	struct wild w = { .c = ss_client_of(&s, "c0") };
	cr_assert_eq(stc_call_new(STC_PUT, 1, &w.call), ERR_NONE);
	w.call->items[0].key = BYTES_STR("k");
	w.call->items[0].bufs = &b;
	w.call->items[0].n_bufs = 1;
	sim_at_proc(sim_loop_proc(w.c->loop), sim_now_ns(cl_sim(s.c)), begin_wild, &w);
	for (int i = 0; i < 1000 && ss_counts(&s).attempts == 0; i++)
		sim_step(cl_sim(s.c));
	cr_assert_eq(ss_counts(&s).attempts, 1u);
	cl_kill(s.c, "c0");
	cr_assert_eq(ss_get(&s, "c1", "k", 500, NULL), ERR_NOT_FOUND, "nobody sees half of it");
	cr_assert_eq(ss_put(&s, "c1", "k", BYTES_STR("whole"), false, 100, NULL),
		     ERR_BUSY_WRITING);
	cl_run_ms(s.c, 3000);
	cr_assert_eq(put(&s, "c1", "k", "whole", false), ERR_NONE);
	cr_assert(holds(&s, "c1", "k", "whole"));
	cr_assert_lt(ss_counts(&s).bytes_used, 5000u, "its space is back");
	ss_close(&s);
	NO_LEAKS();
}

Test(store, a_cut_off_agent_is_waited_for_then_away_then_back)
{
	struct ss s;
	char key[16];
	open_store(&s, 7, 0);
	for (int i = 0; i < 10; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(put(&s, "c0", key, "old", false), ERR_NONE);
	}
	cl_partition(s.c, "m0", "n0");
	cl_run_ms(s.c, 1000);
	for (int i = 0; i < 10; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(put(&s, "c0", key, "new", true), ERR_NONE, "%s", key);
	}
	cl_heal(s.c, NULL, NULL);
	wait_ready(&s);
	for (int i = 0; i < 10; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert(holds(&s, "c1", key, "new"), "%s", key);
	}
	ss_close(&s);
	NO_LEAKS();
}

/* B2: old objects make room. */
Test(store, a_full_pool_evicts)
{
	struct ss s;
	char key[16];
	static char big[60000];
	open_store(&s, 8, 1 << 20);
	memset(big, 'e', sizeof(big) - 1);
	for (int i = 0; i < 120; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(ss_put(&s, "c0", key, BYTES_STR(big), false, 20000, NULL),
			     ERR_NONE, "%s", key);
	}
	cr_assert(holds(&s, "c1", "k119", big));
	cr_assert_gt(ss_counts(&s).evictions, 50u);
	ss_close(&s);
	NO_LEAKS();
}

struct complaints {
	struct log_capture cap;
	unsigned n;
	char last[200];
};

static void on_line(struct log_capture *cap, const char *line, size_t n)
{
	struct complaints *k = container_of(cap, struct complaints, cap);
	if (!memmem(line, n, "level=error", 11) && !memmem(line, n, "level=warn", 10))
		return;
	k->n++;
	snprintf(k->last, sizeof(k->last), "%.*s", (int)n, line);
}

/* Case 80: a pool that is full, leases that end, pins that end, a group, and nobody comes for an hour. */
Test(store, case_080_an_idle_hour_has_no_error_line)
{
	static const char *const names[] = { "master", "a0", "a1" };
	struct complaints k[ARRAY_LEN(names)] = { 0 };
	struct ss s;
	char key[16];
	static char big[60000];
	open_store(&s, 80, 1 << 20);
	memset(big, 'i', sizeof(big) - 1);
	for (int i = 0; i < 40; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(ss_put(&s, "c0", key, BYTES_STR(big), false, 20000, NULL),
			     ERR_NONE, "%s", key);
	}
	cr_assert(holds(&s, "c1", "k39", big));
	cl_run_ms(s.c, 3000);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		k[i].cap.fn = on_line;
		log_set_capture(&cl_svc_of(s.c, names[i])->log, &k[i].cap);
	}
	uint64_t objects = ss_counts(&s).objects, used = ss_counts(&s).bytes_used;
	cl_run_ms(s.c, 3600000);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		cr_expect_eq(k[i].n, 0, "%s: %u lines, %s", names[i], k[i].n, k[i].last);
	cr_expect_eq(ss_counts(&s).objects, objects, "nothing went");
	cr_expect_eq(ss_counts(&s).bytes_used, used);
	cr_assert(holds(&s, "c1", "k39", big));
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		log_set_capture(&cl_svc_of(s.c, names[i])->log, NULL);
	ss_close(&s);
	NO_LEAKS();
}

/* ---- the soak ---- */

static void print(const struct store_sums *s, uint64_t n)
{
	static const char *const ops[] = { "put",    "upsert", "get",
					   "remove", "exists", "remove_range" };
	fprintf(stderr,
		"%" PRIu64 " seeds, runs: master %" PRIu64 ", agents %" PRIu64
		", clients %" PRIu64 ", away %" PRIu64 ", hits %" PRIu64
		", absences judged %" PRIu64 ";",
		n, s->runs_of_master, s->runs_of_agents, s->runs_of_clients, s->seen_away,
		s->hits, s->judged_absent);
	for (size_t i = 0; i < ARRAY_LEN(ops); i++)
		fprintf(stderr, " %s %" PRIu64 "/%" PRIu64, ops[i], s->ok[i], s->calls[i]);
	for (size_t i = 1; i < ARRAY_LEN(s->by_err); i++)
		if (s->by_err[i])
			fprintf(stderr, " %s %" PRIu64, err_name((enum err)i), s->by_err[i]);
	fprintf(stderr, "\n");
}

Test(store, promises_are_kept_under_faults, .timeout = 280)
{
	struct store_sums sums = { 0 };
	uint64_t seed, n = 0;
	for (struct sim_seeds r = sim_seeds(150); sim_seeds_next(&r, &seed); n++)
		store_scenario(seed, STORE_RIGHT, &sums);
	print(&sums, n);
	if (n >= 100) {
		cr_assert_gt(sums.hits, n * 5);
		cr_assert_gt(sums.judged_absent, n);
		cr_assert_gt(sums.runs_of_master, n);
		cr_assert_gt(sums.runs_of_agents, n * 2);
		cr_assert_gt(sums.runs_of_clients, n * 3);
	}
	NO_LEAKS();
}

Test(store, the_same_seed_gives_the_same_events, .timeout = 60)
{
	struct store_sums sums = { 0 };
	log_set_level(LOG_ERROR_L); /* how often a line is held back depends on earlier runs */
	for (uint64_t seed = 1; seed <= 5; seed++)
		cr_assert_eq(store_scenario(seed, STORE_RIGHT, &sums),
			     store_scenario(seed, STORE_RIGHT, &sums), "seed %" PRIu64, seed);
	NO_LEAKS();
}

static void run_planted(void *arg)
{
	struct store_sums sums = { 0 };
	for (uint64_t seed = 1; seed <= 10; seed++)
		store_scenario(seed, *(enum store_plant *)arg, &sums);
}

Test(store, what_is_planted_is_noticed, .timeout = 60)
{
	static const struct {
		enum store_plant plant;
		const char *says;
	} rows[] = { { STORE_WRONG_BYTE, "S1: key" },
		     { STORE_OLD, "S2: key" },
		     { STORE_REMOVED, "S3: key" },
		     { STORE_LOST, "S4: key" } };
	static char text[100000];
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		enum store_plant p = rows[i].plant;
		cr_assert(dies(run_planted, &p, text, sizeof(text)), "plant %d", p);
		cr_assert(strstr(text, rows[i].says), "'%s' is not in: %.3000s", rows[i].says,
			  text);
	}
}
