/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's flows over the real mind, on a virtual clock, with scripted holders (holder.h): batches
 * and their ends, commands and their retries, who may ask what, recovery.
 */
#include "tests/support/cluster_svc.h"
#include "tests/support/holder.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "services/master/master.h"

TestSuite(master, .timeout = 60);

static const char *const masters[] = { "sim://m0/master" };
static const char *const flags[] = { "--set", "holder_dead_ms=4000", "--set", "suspect_ms=600",
				     "--set", "beat_ms=100",	     NULL };
static const struct cl_svc master_svc = { &mst_def, masters, 1, flags };
static const char *const names[] = { "h0", "h1" };

struct world {
	struct cluster *c;
	struct holder h[2];
	size_t n;
	uint64_t attempt;
};

static const struct cl_from client = { "c", ROLE_CLIENT, NULL };

static struct mst *mst(struct world *w)
{
	struct svc *s = cl_svc_of(w->c, "master");
	return s ? mst_of(s) : NULL;
}

static bool is_ready(void *arg)
{
	struct world *w = arg;
	struct svc_reasons r;
	struct mind_counts c;
	struct mst *m = mst(w);
	if (!m || m->svc.state != SVC_RUNNING || !m->term.mind)
		return false;
	mind_counts(m->term.mind, &c);
	svc_reasons(&m->svc, &r);
	uint64_t total = 0;
	for (size_t i = 0; i < w->n; i++)
		total += w->h[i].shy ? 0 : w->h[i].bytes;
	return r.n == 0 && !c.recovering && c.bytes_total == total;
}

static void wait_ready(struct world *w, uint64_t ms)
{
	bool ready = cl_until(w->c, is_ready, w, ms);
	struct svc_reasons r = { 0 };
	if (!ready && mst(w))
		svc_reasons(&mst(w)->svc, &r);
	cr_assert(ready, "not ready: %s", r.n ? r.text[0] : "no reason");
}

static void world_open(struct world *w, uint64_t seed, size_t n)
{
	*w = (struct world){ .n = n };
	w->c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = seed });
	cl_add(w->c, &(struct cl_member_opts){ .name = "master",
					       .node = "m0",
					       .app = &cl_svc_app,
					       .arg = (void *)&master_svc });
	for (size_t i = 0; i < n; i++) {
		w->h[i] = (struct holder){ .id = i ? "agent-1" : "agent-0",
					   .master = masters[0],
					   .bytes = 4 << 20 };
		cl_add(w->c, &(struct cl_member_opts){ .name = names[i],
						       .node = i ? "n1" : "n0",
						       .app = &holder_app,
						       .arg = &w->h[i] });
	}
}

static void world_start(struct world *w, uint64_t seed, size_t n)
{
	world_open(w, seed, n);
	cr_assert(cl_start(w->c, "master"), "%s", cl_why(w->c, "master"));
	for (size_t i = 0; i < n; i++)
		cr_assert(cl_start(w->c, names[i]));
	wait_ready(w, 5000);
}

static void world_close(struct world *w)
{
	if (mst(w) && mst(w)->term.mind)
		mind_check(mst(w)->term.mind);
	cl_close(w->c);
	for (size_t i = 0; i < w->n; i++)
		holder_fini(&w->h[i]);
}

static uint64_t metric(struct world *w, unsigned id, unsigned cell)
{
	struct buf b = BUF_INIT(8u << 20);
	svc_metrics_print(&mst(w)->svc, &b); /* brings gauges up to date */
	buf_fini(&b);
	return metric_get(mst(w)->svc.metrics, id, cell);
}

/* ---- calls; what they decode borrows from the room ---- */

struct room {
	struct buf body, reply;
	struct arena arena;
	struct why why;
};

static struct room *room_new(void)
{
	struct room *r = calloc(1, sizeof(*r));
	r->body.limit = r->reply.limit = WIRE_MESSAGE_MAX;
	r->arena.limit = 64u << 20;
	return r;
}

static void room_free(struct room *r)
{
	buf_fini(&r->body);
	buf_fini(&r->reply);
	arena_fini(&r->arena);
	free(r);
}

static enum err call(struct world *w, struct cl_from from, const char *to, uint32_t method,
		     uint32_t ms, struct room *r)
{
	cr_assert_eq(buf_err(&r->body), ERR_NONE);
	return cl_call(w->c, from, to, method, buf_bytes(&r->body), ms, &r->reply, &r->why);
}

/* dec_NAME of a reply. */
#define READ(name, r, out)                                                                \
	do {                                                                              \
		struct dec d_ = DEC_INIT(buf_bytes(&(r)->reply), &(r)->arena, &(r)->why); \
		cr_assert_eq(dec_##name(&d_, out), ERR_NONE, "%s", (r)->why.text);        \
	} while (0)

static enum err put_start(struct world *w, struct cl_from from,
			  const struct msg_put_item *items, size_t n, uint32_t ms,
			  struct room *r, struct msg_put_start_rep *out)
{
	struct msg_put_start_req q = { .items = { items, n } };
	memcpy(q.client, cl_instance(w->c, from, "master"), 16);
	enc_put_start_req(&r->body, &q);
	enum err e = call(w, from, "master", METHOD_PUT_START, ms, r);
	if (e == ERR_NONE)
		READ(put_start_rep, r, out);
	return e;
}

static struct msg_put_item item(struct world *w, const char *key, uint64_t size, bool upsert)
{
	return (struct msg_put_item){
		.attempt = ++w->attempt, .key = BYTES_STR(key), .size = size, .upsert = upsert
	};
}

static const char *member_of(struct bytes id)
{
	return id.n && id.p[id.n - 1] == '1' ? "h1" : "h0";
}

/* COMMIT of one grant; the item's status. */
static enum err commit(struct world *w, struct cl_from from, struct bytes holder,
		       struct bytes ticket, uint32_t ms)
{
	struct room *r = room_new();
	struct msg_commit_item it = { ticket, 77 };
	struct msg_results_rep rep;
	enc_commit_req(&r->body, &(struct msg_commit_req){ { &it, 1 } });
	enum err e = call(w, from, member_of(holder), METHOD_COMMIT, ms, r);
	if (e == ERR_NONE) {
		READ(results_rep, r, &rep);
		cr_assert_eq(rep.items.n, 1);
		e = (enum err)rep.items.p[0].status;
	}
	room_free(r);
	return e;
}

/* A whole put; *version may be NULL. */
static enum err put_at(struct world *w, struct cl_from from, const char *key, uint64_t size,
		       bool upsert, uint64_t *version)
{
	struct room *r = room_new();
	struct msg_put_start_rep rep;
	struct msg_put_item it = item(w, key, size, upsert);
	enum err e = put_start(w, from, &it, 1, 3000, r, &rep);
	if (e == ERR_NONE)
		e = (enum err)rep.items.p[0].status;
	if (e == ERR_NONE) {
		const struct msg_put_grant *g = &rep.items.p[0];
		if (version)
			*version = g->version;
		e = commit(w, from, rep.places.p[g->place].holder, g->ticket, 3000);
	}
	room_free(r);
	return e;
}

static enum err put(struct world *w, const char *key)
{
	return put_at(w, client, key, 1000, false, NULL);
}

/* QUERY of one key; *version may be NULL. */
static enum err query_as(struct world *w, struct cl_from from, const char *key, bool miss,
			 uint64_t *version)
{
	struct room *r = room_new();
	struct bytes k = BYTES_STR(key);
	struct msg_query_rep rep;
	enc_keys_req(&r->body,
		     &(struct msg_keys_req){ .keys = { &k, 1 }, .recovering_as_miss = miss });
	enum err e = call(w, from, "master", METHOD_QUERY, 1000, r);
	if (e == ERR_NONE) {
		READ(query_rep, r, &rep);
		cr_assert_eq(rep.items.n, 1);
		e = (enum err)rep.items.p[0].status;
		if (version)
			*version = rep.items.p[0].version;
	}
	room_free(r);
	return e;
}

static enum err query(struct world *w, const char *key)
{
	return query_as(w, client, key, false, NULL);
}

static enum err remove_n(struct world *w, const struct msg_remove_item *items, size_t n,
			 uint32_t ms, struct room *r, struct msg_results_rep *rep)
{
	struct msg_remove_req q = { .items = { items, n } };
	memcpy(q.client, cl_instance(w->c, client, "master"), 16);
	enc_remove_req(&r->body, &q);
	enum err e = call(w, client, "master", METHOD_REMOVE, ms, r);
	if (e == ERR_NONE)
		READ(results_rep, r, rep);
	return e;
}

static enum err remove_key(struct world *w, const char *key, uint32_t ms, struct why *why)
{
	struct room *r = room_new();
	struct msg_results_rep rep;
	struct msg_remove_item it = { .attempt = ++w->attempt, .key = BYTES_STR(key) };
	enum err e = remove_n(w, &it, 1, ms, r, &rep);
	if (e == ERR_NONE) {
		e = (enum err)rep.items.p[0].status;
		if (e && why)
			why_note(why, e, "%.*s", (int)rep.items.p[0].text.n,
				 (const char *)rep.items.p[0].text.p);
	}
	room_free(r);
	return e;
}

/* ---- put, get, remove ---- */

Test(master, a_put_is_published_found_and_removed)
{
	struct world w;
	uint64_t v = 0, found = 0;
	world_start(&w, 1, 1);
	cr_assert_eq(query(&w, "k"), ERR_NOT_FOUND);
	cr_assert_eq(put_at(&w, client, "k", 1000, false, &v), ERR_NONE);
	cr_assert_eq(query_as(&w, client, "k", false, &found), ERR_NONE);
	cr_assert_eq(v, found);
	cr_assert_eq(put(&w, "k"), ERR_ALREADY_EXISTS);
	cr_assert_eq(put_at(&w, client, "k", 2000, true, &v), ERR_NONE);
	cr_assert_eq(query_as(&w, client, "k", false, &found), ERR_NONE);
	cr_assert_eq(v, found);
	cr_assert_gt(w.h[0].got[METHOD_RETIRE - METHOD_ADOPT].items, 0u, "T2: the old one");
	cr_assert_eq(remove_key(&w, "k", 3000, NULL), ERR_NONE);
	cr_assert_null(holder_find(&w.h[0], "k"), "T3: acknowledged before it was marked");
	cr_assert_eq(query(&w, "k"), ERR_NOT_FOUND);
	cr_assert_eq(remove_key(&w, "k", 3000, NULL), ERR_NONE, "absent is OK");
	cr_assert_eq(metric(&w, MST_M_OBJECTS, 0), 0u);
	cr_assert_geq(metric(&w, MST_M_PUBLISHES, 0), 2u);
	world_close(&w);
	NO_LEAKS();
}

Test(master, the_published_mark_is_set_and_space_comes_back)
{
	struct world w;
	world_start(&w, 2, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	cl_run_ms(w.c, 500);
	cr_assert(holder_find(&w.h[0], "k")->published);
	cr_assert_gt(metric(&w, MST_M_BYTES, 1), 0u);
	cr_assert_eq(remove_key(&w, "k", 3000, NULL), ERR_NONE);
	cl_run_ms(w.c, 15000); /* its lease and more */
	cr_assert_eq(w.h[0].got[METHOD_FREE - METHOD_ADOPT].items, 1u);
	cr_assert_eq(metric(&w, MST_M_BYTES, 1), 0u);
	world_close(&w);
	NO_LEAKS();
}

/* ---- who asks ---- */

Test(master, the_tenant_is_that_of_the_key)
{
	static const struct cl_from other = { "c", ROLE_CLIENT, "other" };
	struct world w;
	world_start(&w, 3, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	cr_assert_eq(query_as(&w, other, "k", false, NULL), ERR_NOT_FOUND);
	cr_assert_eq(put_at(&w, other, "k", 10, false, NULL), ERR_NONE, "another object");
	cr_assert_eq(query_as(&w, (struct cl_from){ "c", ROLE_ADMIN, NULL }, "k", false, NULL),
		     ERR_NONE, "an admin acts on default");
	world_close(&w);
	NO_LEAKS();
}

Test(master, nobody_speaks_for_another)
{
	struct world w;
	struct room *r = room_new();
	struct msg_put_start_rep rep;
	world_start(&w, 4, 1);
	struct msg_put_item it = item(&w, "k", 10, false);
	struct msg_put_start_req q = { .client = { 9, 9 }, .items = { &it, 1 } };
	enc_put_start_req(&r->body, &q);
	cr_assert_eq(call(&w, client, "master", METHOD_PUT_START, 1000, r), ERR_FORBIDDEN);
	cr_assert(strstr(r->why.text, "client"), "%s", r->why.text);
	/* a client is no holder */
	cr_assert_eq(call(&w, client, "master", METHOD_PUBLISH, 1000, r), ERR_FORBIDDEN);
	/* nor an admin who drops holders */
	cr_assert_eq(call(&w, client, "master", METHOD_FORGET, 1000, r), ERR_FORBIDDEN);
	buf_clear(&r->body);
	buf_put(&r->body, "\xc1", 1);
	r->why = (struct why){ 0 };
	cr_assert_eq(call(&w, client, "master", METHOD_PUT_START, 1000, r), ERR_BAD_MESSAGE);
	(void)rep;
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

/* What a holder says counts only under the adoption that the master knows, and for itself. */
Test(master, holders_are_taken_at_their_own_word_alone)
{
	static const struct cl_from agent = { "n0", ROLE_HOLDER, NULL, "agent-0" };
	static const struct cl_from stranger = { "n0", ROLE_HOLDER, NULL, "agent-9" };
	struct world w;
	struct room *r = room_new();
	struct msg_results_rep rep;
	uint64_t versions[] = { 5, 6 };
	world_start(&w, 9, 1);
	struct msg_under u = { 0, w.h[0].term, w.h[0].adoption, w.h[0].epoch };
	const struct {
		struct cl_from from;
		const char *holder;
		uint64_t term, epoch;
		bool no_under;
		enum err err;
	} rows[] = {
		{ agent, "agent-0", 0, 0, false, ERR_NONE },
		{ agent, "agent-1", 0, 0, false, ERR_FORBIDDEN },
		{ stranger, "agent-9", 0, 0, false, ERR_NOT_IN_ROSTER },
		{ agent, "agent-0", 1, 0, false, ERR_STALE_TERM },
		{ agent, "agent-0", 0, 1, false, ERR_STALE_EPOCH },
		{ agent, "agent-0", 0, 0, true, ERR_BAD_MESSAGE },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct msg_under x = u;
		x.term += rows[i].term;
		x.pool_epoch += rows[i].epoch;
		struct msg_confirm_req q = { BYTES_STR(rows[i].holder),
					     rows[i].no_under ? NULL : &x,
					     { versions, 2 } };
		buf_clear(&r->body);
		r->why = (struct why){ 0 };
		enc_confirm_req(&r->body, &q);
		enum err e = call(&w, rows[i].from, "master", METHOD_CONFIRM, 1000, r);
		cr_assert_eq(e, rows[i].err, "row %zu: %s %s", i, err_name(e), r->why.text);
		if (e)
			continue;
		READ(results_rep, r, &rep);
		cr_assert_eq(rep.items.n, 2);
		cr_assert_eq(rep.items.p[0].status, (uint32_t)ERR_STALE_ATTEMPT);
	}
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

/* ---- batches ---- */

Test(master, a_batch_has_a_result_for_each_item)
{
	struct world w;
	struct room *r = room_new();
	struct msg_put_start_rep rep;
	struct msg_put_item it[300];
	char keys[300][16];
	world_start(&w, 5, 2);
	cr_assert_eq(put(&w, "k7"), ERR_NONE);
	for (size_t i = 0; i < 300; i++) { /* more than a slice */
		snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
		it[i] = item(&w, keys[i], 100, false);
	}
	it[9].size = OBJ_SIZE_MAX + 1;
	cr_assert_eq(put_start(&w, client, it, 300, 3000, r, &rep), ERR_NONE, "%s",
		     r->why.text);
	cr_assert_eq(rep.items.n, 300);
	cr_assert_leq(rep.places.n, 2);
	for (size_t i = 0; i < 300; i++) {
		const struct msg_put_grant *g = &rep.items.p[i];
		enum err want = i == 7	 ? ERR_ALREADY_EXISTS
				: i == 9 ? (enum err)g->status
					 : ERR_NONE;
		cr_assert_eq(g->status, (uint32_t)want, "item %zu: %u", i, g->status);
		if (want)
			cr_assert(g->status != 0 && g->text.n > 0 && g->ticket.n == 0);
		else
			cr_assert(g->ticket.n > 0 && g->extents.n >= 1 &&
				  g->place < rep.places.n);
	}
	cr_assert_eq(metric(&w, MST_M_ATTEMPTS, 0), 298u);
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

Test(master, commands_of_a_turn_are_one_message)
{
	struct world w;
	struct room *r = room_new();
	struct msg_results_rep rep;
	struct msg_remove_item it[200];
	char key[200][16];
	world_start(&w, 6, 1);
	for (size_t i = 0; i < 200; i++) {
		snprintf(key[i], sizeof(key[i]), "k%zu", i);
		cr_assert_eq(put(&w, key[i]), ERR_NONE);
		it[i] = (struct msg_remove_item){ .attempt = ++w.attempt,
						  .key = BYTES_STR(key[i]) };
	}
	uint64_t before = w.h[0].got[METHOD_RETIRE - METHOD_ADOPT].calls;
	cr_assert_eq(remove_n(&w, it, 200, 3000, r, &rep), ERR_NONE);
	for (size_t i = 0; i < 200; i++)
		cr_assert_eq(rep.items.p[i].status, 0u);
	cr_assert_leq(w.h[0].got[METHOD_RETIRE - METHOD_ADOPT].calls - before, 3u);
	cr_assert_eq(w.h[0].got[METHOD_RETIRE - METHOD_ADOPT].items, 200u);
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

/* T7: the answer comes before the caller's own deadline, and says what was waited for. */
Test(master, a_deadline_ends_in_an_answer_that_names_the_holder)
{
	struct world w;
	struct why why = { 0 };
	world_start(&w, 7, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	cl_stop(w.c, "h0");
	cl_run_ms(w.c, 1500);
	enum err e = remove_key(&w, "k", 1000, &why);
	cr_assert_eq(e, ERR_BUSY, "%s %s", err_name(e), why.text);
	cr_assert(strstr(why.text, "agent-0") && strstr(why.text, "REMOVE"), "%s", why.text);
	cr_assert_gt(metric(&w, MST_M_LATE, 0), 0u);
	cl_cont(w.c, "h0");
	cl_run_ms(w.c, 3000);
	cr_assert_null(holder_find(&w.h[0], "k"), "what was begun goes on");
	cr_assert_eq(metric(&w, MST_M_WAITING, 0), 0u);
	world_close(&w);
	NO_LEAKS();
}

static bool parked_over;

static void on_parked_done(struct rpc_call *c)
{
	(void)c;
	parked_over = true;
}

Test(master, a_request_that_waits_is_parked_and_its_peer_may_go)
{
	struct world w;
	struct rpc_counters c;
	world_start(&w, 8, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	w.h[0].rule[0] =
		(struct holder_rule){ .method = METHOD_RETIRE, .times = 1, .mute = true };
	struct room *r = room_new();
	struct msg_remove_item it = { .attempt = ++w.attempt, .key = BYTES_STR("k") };
	struct msg_remove_req q = { .items = { &it, 1 } };
	memcpy(q.client, cl_instance(w.c, client, "master"), 16);
	enc_remove_req(&r->body, &q);
	struct rpc_call parked = { .method = METHOD_REMOVE, .body = buf_bytes(&r->body) };
	struct loop *l;
	struct rpc_client *cl = cl_client(w.c, client, "master", &l);
	parked.deadline_ns = clock_after_ms(loop_now_ns(l), 1200);
	parked.done = on_parked_done;
	parked_over = false;
	rpc_send(cl, &parked);
	cl_run_ms(w.c, 300);
	rpc_server_counters(mst(&w)->svc.rpc, &c);
	cr_assert_eq(c.parked, 1u);
	cr_assert_eq(mst(&w)->svc.ops.n, 1u);
	cl_reset(w.c, "c", "m0");
	cl_run_ms(w.c, 200);
	cr_assert_eq(mst(&w)->svc.ops.n, 0u, "nobody waits for it");
	cl_run_ms(w.c, 3000);
	cr_assert(parked_over);
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

/* ---- links ---- */

static const struct {
	const char *what;
	struct holder_rule rule;
} troubles[] = {
	{ "busy", { .times = 3, .err = ERR_BUSY } },
	{ "busy items", { .times = 3, .item_err = ERR_BUSY } },
	{ "garbage", { .times = 2, .garbage = true } },
	{ "silence", { .times = 1, .mute = true } },
	{ "stale", { .times = 2, .err = ERR_STALE_EPOCH } },
	{ "late", { .times = 2, .delay_ms = 400 } },
};

Test(master, commands_are_said_again_until_they_are_done)
{
	for (size_t i = 0; i < ARRAY_LEN(troubles); i++) {
		struct world w;
		struct why why = { 0 };
		world_start(&w, 20 + i, 1);
		cr_assert_eq(put(&w, "k"), ERR_NONE);
		w.h[0].rule[0] = troubles[i].rule;
		w.h[0].rule[0].method = METHOD_RETIRE;
		enum err e = remove_key(&w, "k", 8000, &why);
		cr_assert_eq(e, ERR_NONE, "%s: %s %s", troubles[i].what, err_name(e), why.text);
		cr_assert_null(holder_find(&w.h[0], "k"));
		cr_assert_eq(query(&w, "k"), ERR_NOT_FOUND);
		wait_ready(&w, 5000);
		world_close(&w);
	}
	NO_LEAKS();
}

Test(master, an_adoption_that_fails_is_tried_again)
{
	static const uint32_t methods[] = { METHOD_ADOPT, METHOD_INVENTORY };
	for (size_t i = 0; i < ARRAY_LEN(troubles) * ARRAY_LEN(methods); i++) {
		struct world w;
		world_open(&w, 40 + i, 1);
		w.h[0].rule[0] = troubles[i / ARRAY_LEN(methods)].rule;
		w.h[0].rule[0].item_err = ERR_NONE;
		w.h[0].rule[0].method = methods[i % ARRAY_LEN(methods)];
		cl_start(w.c, "master");
		cl_start(w.c, "h0");
		wait_ready(&w, 20000);
		cr_assert_eq(put(&w, "k"), ERR_NONE, "%s", troubles[i / 2].what);
		world_close(&w);
	}
	NO_LEAKS();
}

Test(master, a_holder_that_comes_back_elsewhere_is_dialed_there)
{
	struct world w;
	world_start(&w, 60, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	cl_kill(w.c, "h0");
	struct holder moved = w.h[0];
	w.h[0] = (struct holder){ .bytes = 0 };
	cl_add(w.c, &(struct cl_member_opts){
			    .name = "h9", .node = "n9", .app = &holder_app, .arg = &moved });
	cl_run_ms(w.c, 200);
	cl_start(w.c, "h9");
	w.n = 0;
	cl_run_ms(w.c, 3000);
	cr_assert_eq(query(&w, "k"), ERR_NONE);
	cr_assert_eq(remove_key(&w, "k", 3000, NULL), ERR_NONE);
	cr_assert_null(holder_find(&moved, "k"));
	world_close(&w);
	holder_fini(&moved);
	NO_LEAKS();
}

/* ---- recovery ---- */

Test(master, a_restart_finds_all_and_says_whom_it_merges)
{
	struct world w;
	struct svc_reasons why;
	char key[16];
	world_start(&w, 70, 2);
	for (size_t i = 0; i < 40; i++) {
		snprintf(key, sizeof(key), "k%zu", i);
		cr_assert_eq(put(&w, key), ERR_NONE);
	}
	cr_assert_eq(remove_key(&w, "k3", 3000, NULL), ERR_NONE);
	cl_kill(w.c, "h1");
	cl_restart(w.c, "master");
	cl_run_ms(w.c, 1500);
	svc_reasons(&mst(&w)->svc, &why);
	cr_assert_eq(why.n, 1);
	cr_assert(strstr(why.text[0], "merging holder agent-1"), "%s", why.text[0]);
	cr_assert_eq(query(&w, "nothing"), ERR_RECOVERING);
	cr_assert_eq(query_as(&w, client, "nothing", true, NULL), ERR_NOT_FOUND);
	cl_start(w.c, "h1");
	wait_ready(&w, 5000);
	for (size_t i = 0; i < 40; i++) {
		snprintf(key, sizeof(key), "k%zu", i);
		cr_assert_eq(query(&w, key), i == 3 ? ERR_NOT_FOUND : ERR_NONE, "%s", key);
	}
	world_close(&w);
	NO_LEAKS();
}

Test(master, a_holder_that_never_comes_is_away_in_the_end)
{
	struct world w;
	world_start(&w, 71, 2);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	cl_kill(w.c, "h1");
	cl_restart(w.c, "master");
	w.n = 1;
	wait_ready(&w, 15000);
	cr_assert_neq(query(&w, "nothing"), ERR_RECOVERING);
	w.n = 2;
	cl_start(w.c, "h1");
	wait_ready(&w, 8000);
	world_close(&w);
	NO_LEAKS();
}

Test(master, a_holder_that_never_beats_is_away_once_it_is_silent)
{
	struct world w;
	struct mind_holder h;
	world_open(&w, 73, 1);
	w.h[0].beats_off = true;
	cl_start(w.c, "master");
	cl_start(w.c, "h0");
	wait_ready(&w, 5000);
	cl_run_ms(w.c, 5000); /* registering again and again is a sign of life */
	cr_assert(mind_holder(mst(&w)->term.mind, 0, &h) && !h.away && !h.suspect);
	cl_kill(w.c, "h0");
	cl_run_ms(w.c, 1500);
	cr_assert(mind_holder(mst(&w)->term.mind, 0, &h) && !h.away && h.suspect);
	cl_run_ms(w.c, 4000);
	cr_assert(mind_holder(mst(&w)->term.mind, 0, &h) && h.away);
	w.n = 0;
	world_close(&w);
	holder_fini(&w.h[0]);
	NO_LEAKS();
}

Test(master, an_inventory_comes_in_pieces)
{
	struct world w;
	char key[24];
	world_open(&w, 72, 1);
	w.h[0].bytes = 64 << 20;
	for (size_t i = 0; i < 5000; i++) {
		snprintf(key, sizeof(key), "key-%zu", i);
		holder_plant(&w.h[0], key, version_make(1, 1000 + i), 100, true);
	}
	holder_plant(&w.h[0], "of no version", 0, 100, true);
	cl_start(w.c, "master");
	/* known to the roster, or it would return empty: registered while it was empty */
	size_t n = w.h[0].n_slots;
	w.h[0].n_slots = 0;
	cl_start(w.c, "h0");
	wait_ready(&w, 3000);
	w.h[0].n_slots = n;
	cl_restart(w.c, "master");
	wait_ready(&w, 10000);
	cr_assert_geq(w.h[0].got[METHOD_INVENTORY - METHOD_ADOPT].calls, 5u);
	cr_assert_leq(w.h[0].got[METHOD_INVENTORY - METHOD_ADOPT].calls, 8u, "each once");
	cr_assert_eq(metric(&w, MST_M_OBJECTS, 0), 5000u);
	cr_assert_eq(metric(&w, MST_M_REJECTED, 3), 1u, "malformed");
	cr_assert_eq(query(&w, "key-4999"), ERR_NONE);
	world_close(&w);
	NO_LEAKS();
}

/* Whichever piece is lost, late or spoilt: the next one is on its way by then. */
Test(master, a_piece_may_fail)
{
	char key[24];
	for (size_t i = 0; i < ARRAY_LEN(troubles) * 4; i++) {
		struct world w;
		world_open(&w, 200 + i, 1);
		w.h[0].bytes = 64 << 20;
		cl_start(w.c, "master");
		cl_start(w.c, "h0");
		wait_ready(&w, 3000);
		for (size_t n = 0; n < 4500; n++) {
			snprintf(key, sizeof(key), "key-%zu", n);
			holder_plant(&w.h[0], key, version_make(1, 1000 + n), 100, true);
		}
		w.h[0].rule[0] = troubles[i / 4].rule;
		w.h[0].rule[0].item_err = ERR_NONE;
		w.h[0].rule[0].method = METHOD_INVENTORY;
		w.h[0].rule[0].skip = (uint32_t)(i % 4);
		cl_restart(w.c, "master");
		wait_ready(&w, 20000);
		cr_assert_eq(metric(&w, MST_M_OBJECTS, 0), 4500u, "%s %zu",
			     troubles[i / 4].what, i % 4);
		world_close(&w);
	}
	NO_LEAKS();
}

/* T4: slots of the pool that is gone are never looked up in the one that came. */
Test(master, another_pool_has_nothing_of_the_old_one)
{
	struct world w;
	uint8_t old[16];
	size_t n_registered = 0;
	world_start(&w, 76, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	memcpy(old, w.h[0].pool, 16);
	cl_kill(w.c, "h0");
	holder_lose(&w.h[0]);
	cl_disk_slow(w.c, "m0", 20);
	cl_start(w.c, "h0");
	for (int i = 0; i < 300; i++) {
		struct room *r = room_new();
		struct bytes k = BYTES_STR("k");
		struct msg_query_rep rep;
		enc_keys_req(&r->body, &(struct msg_keys_req){ .keys = { &k, 1 } });
		cr_assert_eq(call(&w, client, "master", METHOD_QUERY, 1000, r), ERR_NONE);
		READ(query_rep, r, &rep);
		if (rep.items.p[0].status == ERR_NONE)
			cr_assert_eq(memcmp(rep.places.p[0].pool, old, 16), 0,
				     "a slot of the old pool in the new one");
		else
			n_registered++;
		room_free(r);
	}
	cr_assert_gt(n_registered, 10u);
	cl_disk_slow(w.c, "m0", 0);
	wait_ready(&w, 5000);
	cr_assert_eq(query(&w, "k"), ERR_NOT_FOUND);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	world_close(&w);
	NO_LEAKS();
}

/* An agent that has not touched its memory again answers all the same: what it has is no overlap. */
Test(master, what_lies_beyond_the_ready_part_is_kept)
{
	struct world w;
	world_start(&w, 75, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	w.h[0].unready = true;
	cl_restart(w.c, "master");
	cl_run_ms(w.c, 2000);
	cr_assert_eq(query(&w, "k"), ERR_NONE);
	w.h[0].unready = false;
	cl_restart(w.c, "h0");
	cl_run_ms(w.c, 1500);
	wait_ready(&w, 5000);
	cr_assert_eq(query(&w, "k"), ERR_NONE);
	cr_assert_eq(put(&w, "l"), ERR_NONE);
	cr_assert_eq(query(&w, "k"), ERR_NONE);
	world_close(&w);
	NO_LEAKS();
}

/* One overlapping pair among 300 records: the holder has retired the lower one. No more than that is lost,
 * it is said why, and the next failover sees the same. */
Test(master, case_004_one_bad_descriptor_costs_one_object)
{
	struct world w;
	char key[24];
	world_open(&w, 74, 1);
	cl_start(w.c, "master");
	cl_start(w.c, "h0");
	wait_ready(&w, 3000);
	for (size_t i = 0; i < 300; i++) {
		snprintf(key, sizeof(key), "key-%zu", i);
		holder_plant(&w.h[0], key, version_make(1, 1000 + i), 100, true);
	}
	w.h[0].slots[7].state = 2;
	w.h[0].slots[7].reason = RETIRE_OVERLAP;
	w.h[0].slots[7].extent = w.h[0].slots[8].extent;
	for (int failover = 0; failover < 2; failover++) {
		cl_restart(w.c, "master");
		wait_ready(&w, 10000);
		cr_assert_eq(metric(&w, MST_M_OBJECTS, 0), 299u);
		cr_assert_eq(metric(&w, MST_M_REJECTED, 1),
			     failover ? metric(&w, MST_M_REJECTED, 1) : 1u);
		cr_assert_eq(query(&w, "key-7"), ERR_NOT_FOUND);
		cr_assert_eq(query(&w, "key-8"), ERR_NONE);
	}
	world_close(&w);
	NO_LEAKS();
}

/* ---- lists ---- */

Test(master, a_list_shows_every_key_once)
{
	struct world w;
	char key[16];
	uint8_t seen[50] = { 0 };
	uint8_t cursor[64];
	size_t n_cursor = 0, pages = 0;
	world_start(&w, 80, 1);
	for (size_t i = 0; i < 50; i++) {
		snprintf(key, sizeof(key), "a%zu", i);
		cr_assert_eq(put(&w, key), ERR_NONE);
	}
	cr_assert_eq(put(&w, "b"), ERR_NONE);
	do {
		struct room *r = room_new();
		struct msg_list_rep rep;
		enc_list_req(&r->body,
			     &(struct msg_list_req){ .prefix = BYTES_STR("a"),
						     .cursor = BYTES(cursor, n_cursor),
						     .limit = 7 });
		cr_assert_eq(call(&w, client, "master", METHOD_LIST, 1000, r), ERR_NONE);
		READ(list_rep, r, &rep);
		cr_assert_leq(rep.items.n, 7);
		for (size_t i = 0; i < rep.items.n; i++) {
			snprintf(key, sizeof(key), "%.*s", (int)rep.items.p[i].key.n,
				 (const char *)rep.items.p[i].key.p);
			seen[atoi(key + 1)]++;
			cr_assert_eq(rep.items.p[i].memory, 1u);
		}
		n_cursor = rep.cursor.n;
		memcpy(cursor, rep.cursor.n ? rep.cursor.p : cursor, n_cursor);
		room_free(r);
		cr_assert_lt(pages++, 20u);
	} while (n_cursor);
	for (size_t i = 0; i < 50; i++)
		cr_assert_eq(seen[i], 1, "a%zu: %d times", i, seen[i]);
	world_close(&w);
	NO_LEAKS();
}

Test(master, bad_pages_are_refused_in_words)
{
	struct world w;
	struct room *r = room_new();
	world_start(&w, 81, 1);
	enc_list_req(&r->body, &(struct msg_list_req){ .cursor = BYTES_STR("xyz") });
	cr_assert_eq(call(&w, client, "master", METHOD_LIST, 1000, r), ERR_INVALID_PARAMS);
	cr_assert(strstr(r->why.text, "cursor"), "%s", r->why.text);
	buf_clear(&r->body);
	r->why = (struct why){ 0 };
	enc_list_req(&r->body, &(struct msg_list_req){ .limit = 5000 });
	cr_assert_eq(call(&w, client, "master", METHOD_LIST, 1000, r), ERR_INVALID_PARAMS);
	cr_assert(strstr(r->why.text, "5000"), "%s", r->why.text);
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

/* ---- the roster ---- */

Test(master, the_roster_is_shown_and_a_holder_forgotten)
{
	struct world w;
	struct room *r = room_new();
	struct msg_holders_rep rep;
	static const struct cl_from admin = { "c", ROLE_ADMIN, NULL };
	world_start(&w, 90, 2);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	cr_assert_eq(call(&w, client, "master", METHOD_HOLDERS, 1000, r), ERR_NONE);
	READ(holders_rep, r, &rep);
	cr_assert_eq(rep.holders.n, 2);
	cr_assert_eq(rep.objects, 1u);
	cr_assert_not(rep.recovering);
	for (size_t i = 0; i < 2; i++) {
		cr_assert_eq(rep.holders.p[i].bytes_total, 4u << 20);
		cr_assert_eq(rep.holders.p[i].state.n, 2u); /* "in" */
	}
	cl_kill(w.c, "h1");
	cl_run_ms(w.c, 6000);
	cr_assert_eq(call(&w, client, "master", METHOD_HOLDERS, 1000, r), ERR_NONE);
	READ(holders_rep, r, &rep);
	size_t away = 0;
	for (size_t i = 0; i < 2; i++)
		away += rep.holders.p[i].state.n == 4;
	cr_assert_eq(away, 1u);
	enc_forget_req(&r->body, &(struct msg_forget_req){ BYTES_STR("agent-1") });
	cr_assert_eq(call(&w, admin, "master", METHOD_FORGET, 1000, r), ERR_NONE, "%s",
		     r->why.text);
	cr_assert_eq(call(&w, admin, "master", METHOD_FORGET, 1000, r), ERR_NOT_FOUND);
	w.n = 1;
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

/* ---- settings ---- */

Test(master, settings_that_contradict_are_refused)
{
	static const char *const bad[][3] = {
		{ "--set", "master.lease_ms=70000", NULL },
		{ "--set", "master.put_start_discard_ms=700000", NULL },
		{ "--set", "master.high_watermark=1.5", NULL },
		{ "--set", "master.tenant_memory=red", NULL },
		{ "--set", "master.allocation_strategy=ssd_free_ratio_first", NULL },
		{ "--set", "master.tenant_pinned=red=1,red=2", NULL },
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		const struct cl_svc svc = { &mst_def, masters, 1, bad[i] };
		struct cluster *c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = 1 });
		cl_add(c, &(struct cl_member_opts){ .name = "master",
						    .node = "m0",
						    .app = &cl_svc_app,
						    .arg = (void *)&svc });
		cr_assert_not(cl_start(c, "master"));
		const char *eq = strchr(bad[i][1], '=');
		char name[64];
		snprintf(name, sizeof(name), "%.*s", (int)(eq - bad[i][1]), bad[i][1]);
		cr_assert(strstr(cl_why(c, "master"), name), "%s", cl_why(c, "master"));
		cl_close(c);
	}
	NO_LEAKS();
}

/* ---- the end ---- */

Test(master, it_ends_with_requests_inside)
{
	struct world w;
	world_start(&w, 95, 1);
	cr_assert_eq(put(&w, "k"), ERR_NONE);
	w.h[0].rule[0] = (struct holder_rule){ .method = METHOD_RETIRE,
					       .times = UINT32_MAX,
					       .mute = true };
	struct room *r = room_new();
	struct msg_remove_item it = { .attempt = ++w.attempt, .key = BYTES_STR("k") };
	struct msg_remove_req q = { .items = { &it, 1 } };
	memcpy(q.client, cl_instance(w.c, client, "master"), 16);
	enc_remove_req(&r->body, &q);
	cl_term(w.c, "master");
	enum err e = call(&w, client, "master", METHOD_REMOVE, 9000, r);
	cr_assert_neq(e, ERR_NONE);
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}

/* C1: a holder of an older release knows no COPY; all else goes on there. */
Test(master, a_holder_that_cannot_copy_does_all_else)
{
	struct world w;
	struct room *r = room_new();
	struct msg_put_start_rep rep;
	static const struct msg_put_opts two = { .replica_num = 2 };
	world_start(&w, 41, 2);
	struct msg_put_item it = item(&w, "k", 1000, false);
	it.opts = &two;
	cr_assert_eq(put_start(&w, client, &it, 1, 3000, r, &rep), ERR_NONE);
	const struct msg_put_grant *g = &rep.items.p[0];
	cr_assert_eq(g->status, ERR_NONE);
	cr_assert_eq(commit(&w, client, rep.places.p[g->place].holder, g->ticket, 3000),
		     ERR_NONE);
	cl_run_ms(w.c, 3000);
	cr_assert_gt(metric(&w, MST_M_COPIED, 1), 0, "refused, tried again now and then");
	cr_assert_eq(metric(&w, MST_M_LACKING, 0), 1);
	cr_assert_eq(metric(&w, MST_M_COPYING, 0), 0);
	cr_assert_eq(metric(&w, MST_M_COMMAND_CALLS, 1), 0, "no call has failed");
	cr_assert_eq(put(&w, "other"), ERR_NONE);
	cr_assert_eq(remove_key(&w, "k", 300, NULL), ERR_NONE, "nothing waits for a back-off");
	room_free(r);
	world_close(&w);
	NO_LEAKS();
}
