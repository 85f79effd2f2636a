/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between agents (services/transfer-agent/pull.h) under scripted masters, one an agent: "d" fetches,
 * "s0" and "s1" have the bytes. The test gives the masters' commands.
 */
#include "tests/sim/boss.h"
#include "tests/support/fetch_sim.h"
#include "tests/support/leak.h"
#include "tests/support/sim_alloc.h"

#include "services/transfer-agent/agent.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(pull, .timeout = 60);

enum { D, S0, S1, N_AGENTS, MiB = 1 << 20, BIG = 2 * MiB + 4097, STALL_MS = 500 };

static const char *const flags[] = { "--set", "agent.pool_size=16MiB",
				     "--set", "agent.segments=1",
				     "--set", "agent.slots=1024",
				     "--set", "agent.pulls_max=3",
				     "--set", "agent.pulls_per_source=2",
				     "--set", "agent.pull_queue_max=8",
				     "--set", "agent.pull_stall_ms=500",
				     "--set", "agent.register_ms=1000",
				     "--set", "grace_ms=1000",
				     NULL };

struct agent {
	char name[8], boss_name[8], node[8], boss_node[8], master[64];
	const char *masters[1];
	struct cl_svc svc;
	struct boss *boss;
	struct ticket_key *key;
	struct msg_under under; /* as adopted */
};

struct world {
	struct cluster *c;
	struct fetch_sim fetch;
	struct agent a[N_AGENTS];
	uint64_t next; /* number of a copy */
	struct msg_result last;
	char text[321];
};

static struct xfa *xfa(struct world *w, int i)
{
	struct svc *s = cl_svc_of(w->c, w->a[i].name);
	return s ? xfa_of(s) : NULL;
}

/* ---- commands ---- */

static enum err command(struct world *w, int i, uint32_t method, struct buf *body,
			struct buf *reply, struct why *why)
{
	struct cl_from from = { .node = "m9", .role = ROLE_SERVICE };
	enum err e =
		cl_call(w->c, from, w->a[i].name, method, buf_bytes(body), 3000, reply, why);
	buf_fini(body);
	return e;
}

static void adopt(struct world *w, int i, uint64_t adoption)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct buf body = BUF_INIT(256), reply = BUF_INIT(1 << 16);
	struct msg_adopt_rep m;
	struct why why = { 0 };
	enc_under(&body, &(struct msg_under){ .term = 1, .adoption = adoption });
	cr_assert_eq(command(w, i, METHOD_ADOPT, &body, &reply, &why), ERR_NONE, "%s",
		     why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_adopt_rep(&d, &m), ERR_NONE);
	w->a[i].under = *m.under;
	arena_fini(&a);
	buf_fini(&reply);
}

static uint8_t fence_number(struct world *w, int i, uint64_t version, uint64_t number,
			    struct msg_extent x, struct msg_fence_res *res)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(1 << 16);
	struct msg_fence_item it = { .version = version,
				     .extents = { &x, 1 },
				     .attempt = number };
	struct msg_fence_rep m;
	struct why why = { 0 };
	enc_fence_req(&body,
		      &(struct msg_fence_req){ .under = &w->a[i].under, .items = { &it, 1 } });
	cr_assert_eq(command(w, i, METHOD_FENCE, &body, &reply, &why), ERR_NONE, "%s",
		     why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_fence_rep(&d, &m), ERR_NONE);
	*res = m.items.p[0];
	arena_fini(&a);
	buf_fini(&reply);
	return res->state;
}

static uint8_t fence(struct world *w, int i, uint64_t version, struct msg_extent x,
		     struct msg_fence_res *res)
{
	return fence_number(w, i, version, 0, x, res);
}

/* RETIRE or FREE of one slot. */
static enum err slot_cmd(struct world *w, int i, uint32_t method, const struct hold_slot *s)
{
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(1 << 16);
	struct msg_retire_item it = { .slot = s->slot,
				      .generation = s->generation,
				      .version = s->version,
				      .reason = RETIRE_REMOVED };
	enc_retire_req(&body, &(struct msg_retire_req){ .under = &w->a[i].under,
							.items = { &it, 1 } });
	enum err e = command(w, i, method, &body, &reply, NULL);
	buf_fini(&reply);
	return e;
}

/* ---- objects ---- */

struct object {
	uint64_t version, size, sum;
	struct hold_slot at[N_AGENTS]; /* at sources */
	uint64_t offset[N_AGENTS];
};

static uint8_t *bytes_at(struct world *w, int i, uint64_t offset)
{
	struct extent x = { .offset = offset, .bytes = 1 };
	return mempool_at(xfa(w, i)->pool, &x);
}

static struct msg_extent room(uint64_t offset, uint64_t size)
{
	return (struct msg_extent){ 0, offset, MAX_OF(obj_stored_bytes(size), 64u) };
}

static struct msg_ticket ticket(struct world *w, int i, uint8_t op, const struct object *o,
				struct msg_extent *x)
{
	static const struct msg_put_opts opts = { .replica_num = 2 };
	*x = room(o->offset[i], o->size);
	struct msg_ticket t = { .op = op,
				.tenant = BYTES_STR("default"),
				.term = w->a[i].under.term,
				.pool_epoch = w->a[i].under.pool_epoch,
				.extents = { x, o->size ? 1 : 0 },
				.size = o->size,
				.version = o->version,
				.attempt = op == TICKET_WRITE ? o->version : 0,
				.sum = o->sum,
				.key = BYTES_STR("a key"),
				.opts = &opts };
	memcpy(t.pool, w->a[i].boss->pool, 16);
	return t;
}

/* As a client put it there. */
static void put(struct world *w, int i, struct object *o, uint64_t offset)
{
	struct msg_extent x;
	struct why why = { 0 };
	o->offset[i] = offset;
	uint8_t *p = bytes_at(w, i, offset);
	for (uint64_t k = 0; k < o->size; k++)
		p[k] = (uint8_t)(k * 7 >> 2 ^ o->version);
	o->sum = obj_sum(p, o->size,
			 obj_blocks(o->size) ? (uint64_t *)(p + obj_vector_at(o->size)) : NULL);
	struct msg_ticket t = ticket(w, i, TICKET_WRITE, o, &x);
	cr_assert_eq(hold_commit(xfa(w, i)->hold, &t, o->sum, &o->at[i], &why), ERR_NONE, "%s",
		     why.text);
}

static struct object object(struct world *w, uint64_t version, uint64_t size, uint64_t offset,
			    bool at_s0, bool at_s1)
{
	struct object o = { .version = version, .size = size };
	if (at_s0)
		put(w, S0, &o, offset);
	if (at_s1)
		put(w, S1, &o, offset);
	o.offset[D] = offset;
	return o;
}

/* COPY to d from those sources; what it answers. */
static enum err copy(struct world *w, const struct object *o, const int *from, size_t n,
		     uint64_t attempt)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct buf body = BUF_INIT(1 << 16), reply = BUF_INIT(1 << 16), sealed[4];
	struct msg_copy_source src[3];
	struct msg_extent x;
	struct msg_results_rep m;
	struct why why = { 0 };
	struct msg_ticket t = ticket(w, D, TICKET_PULL, o, &x);
	t.attempt = attempt;
	sealed[3] = BUF_INIT(TICKET_MAX);
	cr_assert_eq(ticket_mint(w->a[D].key, &t, &sealed[3], &why), ERR_NONE, "%s", why.text);
	for (size_t i = 0; i < n; i++) {
		t = ticket(w, from[i], TICKET_READ, o, &x);
		t.slot = o->at[from[i]].slot;
		t.generation = o->at[from[i]].generation;
		sealed[i] = BUF_INIT(TICKET_MAX);
		cr_assert_eq(ticket_mint(w->a[from[i]].key, &t, &sealed[i], &why), ERR_NONE);
		src[i] = (struct msg_copy_source){ .holder = BYTES_STR(
							   w->a[from[i]].boss->holder),
						   .ticket = buf_bytes(&sealed[i]),
						   .tier = 1 };
	}
	struct msg_copy_item it = { buf_bytes(&sealed[3]), { src, n } };
	enc_copy_req(&body,
		     &(struct msg_copy_req){ .under = &w->a[D].under, .items = { &it, 1 } });
	enum err e = command(w, D, METHOD_COPY, &body, &reply, &why);
	cr_assert_eq(e, ERR_NONE, "COPY: %s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_results_rep(&d, &m), ERR_NONE);
	w->last = m.items.p[0];
	(void)snprintf(w->text, sizeof(w->text), "%.*s", (int)w->last.text.n,
		       (const char *)w->last.text.p);
	for (size_t i = 0; i < n; i++)
		buf_fini(&sealed[i]);
	buf_fini(&sealed[3]);
	arena_fini(&a);
	buf_fini(&reply);
	return (enum err)w->last.status;
}

static enum err copy_from(struct world *w, const struct object *o, int from)
{
	return copy(w, o, &from, 1, version_make(1, ++w->next));
}

static enum err copy_from_both(struct world *w, const struct object *o)
{
	return copy(w, o, (const int[]){ S0, S1 }, 2, version_make(1, ++w->next));
}

/* ---- what came of it ---- */

static bool is_idle(void *arg)
{
	struct xfa *x = xfa(arg, D);
	return x && x->pulls.ops_alive.n == 0 && x->report.n_failed == 0 && !x->report.busy;
}

static bool moving(void *arg)
{
	struct world *w = arg;
	return w->fetch.bytes > 0;
}

static void settle(struct world *w)
{
	cr_assert(cl_until(w->c, is_idle, w, 20000), "copies do not end");
	for (uint32_t i = 0; i < xfa(w, D)->pulls_max; i++)
		cr_assert_eq(xfa(w, D)->pulls.lanes[i].hazard, 0, "P1: a record is left");
}

static size_t published(struct world *w, uint64_t version)
{
	const struct boss *b = w->a[D].boss;
	size_t n = 0;
	for (size_t i = 0; i < b->n_items; i++)
		n += b->items[i].version == version;
	return n;
}

static const struct boss_failed *failed(struct world *w, uint64_t version)
{
	const struct boss *b = w->a[D].boss;
	for (size_t i = b->n_failed; i > 0; i--)
		if (b->failed[i - 1].version == version)
			return &b->failed[i - 1];
	return NULL;
}

/* Committed at d, published, with the object's bytes and its vector. */
static void is_there(struct world *w, const struct object *o)
{
	uint64_t sum = 0;
	struct msg_extent m = room(o->offset[D], o->size);
	struct extent x = { m.segment, m.offset, m.bytes };
	cr_expect_gt(published(w, o->version), 0, "it is not published");
	cr_expect_null(failed(w, o->version));
	cr_assert_eq(mempool_sum(xfa(w, D)->pool, &x, 1, o->size, &sum), ERR_NONE);
	cr_expect_eq(sum, o->sum);
	if (obj_blocks(o->size))
		cr_expect_eq(obj_sum_of_vector((uint64_t *)(bytes_at(w, D, o->offset[D]) +
							    obj_vector_at(o->size)),
					       obj_blocks(o->size)),
			     o->sum, "the vector behind the payload");
}

static void failed_with(struct world *w, const struct object *o, enum err e, int source)
{
	const struct boss_failed *f = failed(w, o->version);
	cr_assert(f, "it was not reported");
	cr_expect_eq(f->err, e, "%s, not %s: %s", err_name(f->err), err_name(e), f->text);
	cr_expect_str_eq(f->source, source < 0 ? "" : w->a[source].boss->holder, "%s", f->text);
	cr_expect_eq(published(w, o->version), 0);
}

/* ---- the fixture ---- */

static bool registered(void *arg)
{
	return ((struct boss *)arg)->n_register > 0;
}

static void add(struct world *w, int i, const char *name)
{
	struct agent *a = &w->a[i];
	snprintf(a->name, sizeof(a->name), "%s", name);
	snprintf(a->boss_name, sizeof(a->boss_name), "b%d", i);
	snprintf(a->node, sizeof(a->node), "n%d", i);
	snprintf(a->boss_node, sizeof(a->boss_node), "m%d", i);
	snprintf(a->master, sizeof(a->master), "sim://m%d/b%d", i, i);
	a->masters[0] = a->master;
	a->boss = calloc(1, sizeof(*a->boss));
	a->boss->adopted = true;
	a->boss->term = 1;
	a->svc = (struct cl_svc){ .def = &xfa_def,
				  .masters = a->masters,
				  .n_masters = 1,
				  .flags = flags,
				  .fetch = &fetch_sim_ops,
				  .fetch_ctx = fetch_sim_add(&w->fetch, name) };
	cl_add(w->c, &(struct cl_member_opts){ .name = a->boss_name,
					       .node = a->boss_node,
					       .app = &boss_app,
					       .arg = a->boss });
	cl_add(w->c,
	       &(struct cl_member_opts){
		       .name = a->name, .node = a->node, .app = &cl_svc_app, .arg = &a->svc });
	cr_assert(cl_start(w->c, a->boss_name) && cl_start(w->c, a->name));
	cr_assert(cl_until(w->c, registered, a->boss, 3000), "%s does not REGISTER", name);
	cr_assert_eq(ticket_key_new(cl_keys(w->c), a->boss->holder, &a->key), ERR_NONE);
	adopt(w, i, 1);
}

static struct world *open_world(uint64_t seed)
{
	struct world *w = calloc(1, sizeof(*w));
	w->c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = seed });
	fetch_sim_init(&w->fetch, w->c, seed);
	w->next = 1000;
	add(w, D, "d");
	add(w, S0, "s0");
	add(w, S1, "s1");
	return w;
}

static void close_world(struct world *w)
{
	cl_close(w->c);
	for (int i = 0; i < N_AGENTS; i++) {
		ticket_key_free(w->a[i].key);
		free(w->a[i].boss);
	}
	free(w);
}

/* ---- tests ---- */

Test(pull, sizes)
{
	static const uint64_t sizes[] = { 0, 1, 5000, MiB, MiB + 1, BIG };
	struct world *w = open_world(1);
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		struct object o = object(w, 10 + i, sizes[i], 0, true, false);
		cr_expect_eq(copy_from(w, &o, S0), ERR_NONE, "%s", w->text);
		settle(w);
		is_there(w, &o);
		size_t n = published(w, o.version);
		cr_expect_eq(copy_from(w, &o, S0), ERR_NONE, "again: %s", w->text);
		settle(w);
		cr_expect_eq(published(w, o.version), n + 1, "PUBLISH comes again");
		struct msg_fence_res res;
		cr_expect_eq(fence(w, D, o.version, room(0, sizes[i]), &res), HOLD_COMMITTED);
		struct hold_slot s = { .slot = res.slot,
				       .generation = res.generation,
				       .version = o.version };
		cr_expect_eq(slot_cmd(w, D, METHOD_RETIRE, &s), ERR_NONE);
		cr_expect_eq(slot_cmd(w, D, METHOD_FREE, &s), ERR_NONE);
		cr_expect_eq(slot_cmd(w, S0, METHOD_RETIRE, &o.at[S0]), ERR_NONE);
		cr_expect_eq(slot_cmd(w, S0, METHOD_FREE, &o.at[S0]), ERR_NONE);
		/* V3: the same COPY, late, when its slot is gone */
		cr_expect_eq(copy(w, &o, (const int[]){ S0 }, 1, version_make(1, w->next)),
			     ERR_STALE_ATTEMPT);
	}
	close_world(w);
	NO_LEAKS();
}

/* What can be refused at once is. */
Test(pull, refusals)
{
	struct world *w = open_world(2);
	struct object o = object(w, 10, 5000, 0, true, false);
	cr_expect_eq(copy(w, &o, NULL, 0, 5), ERR_INVALID_PARAMS, "%s", w->text);
	w->a[D].under.pool_epoch++; /* tickets of another epoch than the command's */
	struct msg_under bad = w->a[D].under;
	w->a[D].under.pool_epoch--;
	struct buf body = BUF_INIT(1024);
	enc_copy_req(&body, &(struct msg_copy_req){ .under = &bad });
	cr_expect_eq(command(w, D, METHOD_COPY, &body, NULL, NULL), ERR_STALE_EPOCH);
	body = BUF_INIT(64);
	buf_put(&body, "nonsense", 8);
	cr_expect_neq(command(w, D, METHOD_COPY, &body, NULL, NULL), ERR_NONE);
	struct ticket_key *was = w->a[D].key;
	w->a[D].key = w->a[S0].key; /* a ticket for another holder */
	cr_expect_eq(copy_from(w, &o, S0), ERR_BAD_TICKET, "%s", w->text);
	w->a[D].key = was;
	o.offset[D] = 15 * MiB + 8192; /* outside */
	o.size = MiB;
	cr_expect_eq(copy_from(w, &o, S0), ERR_BAD_TICKET, "%s", w->text);
	settle(w);
	cr_expect_eq(w->fetch.started, 0);
	close_world(w);
	NO_LEAKS();
}

/* P2, B1 */
Test(pull, queue_and_limits)
{
	struct world *w = open_world(3);
	struct object o[16];
	unsigned taken = 0, busy = 0;
	w->fetch.hold = true;
	for (unsigned i = 0; i < 16; i++) {
		o[i] = object(w, 10 + i, 5000, i * 8192, true, false);
		enum err e = copy_from(w, &o[i], S0);
		taken += e == ERR_NONE;
		busy += e == ERR_BUSY;
		cr_expect(e == ERR_NONE || (w->last.retry_ms > 0 && i == taken + busy - 1));
	}
	cr_expect_eq(taken, 8 + 2, "%u", taken);
	cr_expect_eq(busy, 6);
	cr_expect_eq(xfa(w, D)->pulls.n_running, 2, "per source");
	w->fetch.hold = false;
	settle(w);
	for (unsigned i = 0; i < taken; i++)
		is_there(w, &o[i]);
	close_world(w);
	NO_LEAKS();
}

/* L4: who waits for one that stands still does not hold up the others; then they fail (T7). */
Test(pull, a_stopped_source)
{
	struct world *w = open_world(4);
	struct object sick[4], good[3];
	cl_stop(w->c, "s0");
	for (unsigned i = 0; i < 4; i++) {
		sick[i] = object(w, 10 + i, 5000, i * 8192, true, false);
		cr_expect_eq(copy_from(w, &sick[i], S0), ERR_NONE, "%s", w->text);
	}
	uint64_t t0 = cl_now_ns(w->c);
	for (unsigned i = 0; i < 3; i++) {
		good[i] = object(w, 20 + i, 5000, (8 + i) * 8192, false, true);
		cr_expect_eq(copy_from(w, &good[i], S1), ERR_NONE, "%s", w->text);
	}
	cl_run_ms(w->c, 100);
	for (unsigned i = 0; i < 3; i++)
		is_there(w, &good[i]);
	settle(w);
	cr_expect_lt(cl_now_ns(w->c) - t0, 2 * STALL_MS * NS_PER_MS,
		     "those in the queue hear it at once (P4)");
	for (unsigned i = 0; i < 2; i++)
		failed_with(w, &sick[i], ERR_TIMED_OUT, S0);
	for (unsigned i = 2; i < 4; i++)
		failed_with(w, &sick[i], ERR_UNREACHABLE, S0);
	cl_cont(w->c, "s0");
	cl_run_ms(w->c, 4000);
	for (unsigned i = 0; i < 4; i++) {
		cr_expect_eq(copy_from(w, &sick[i], S0), ERR_NONE, "a new number: %s", w->text);
		w->a[D].boss->n_failed = 0;
		settle(w);
		is_there(w, &sick[i]);
	}
	close_world(w);
	NO_LEAKS();
}

/* The next source goes on where the last one stopped. */
Test(pull, failover)
{
	struct world *w = open_world(5);
	struct object o = object(w, 10, BIG, 0, true, true);
	w->fetch.piece_us = 1000;
	cr_expect_eq(copy_from_both(w, &o), ERR_NONE, "%s", w->text);
	while (xfa(w, D)->pulls.n_running == 0 || w->fetch.bytes < 3 * MiB / 2)
		cl_run_ms(w->c, 1);
	cl_kill(w->c, "s0");
	settle(w);
	is_there(w, &o);
	cr_expect_lt(w->fetch.bytes, BIG + MiB, "whole blocks are not fetched twice");
	struct object p = object(w, 11, BIG, 4 * MiB, false, true);
	p.at[S0] = p.at[S1];
	p.offset[S0] = p.offset[S1];
	cr_expect_eq(copy_from_both(w, &p), ERR_NONE); /* s0 is down */
	settle(w);
	is_there(w, &p);
	close_world(w);
	NO_LEAKS();
}

/* T4: a bit that changed at the source. */
Test(pull, corrupt_source)
{
	struct world *w = open_world(6);
	struct object o = object(w, 10, BIG, 0, true, true);
	bytes_at(w, S0, 0)[MiB + 77] ^= 8;
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE);
	settle(w);
	failed_with(w, &o, ERR_CORRUPT, S0);
	w->a[D].boss->n_failed = 0;
	cr_expect_eq(copy_from_both(w, &o), ERR_NONE, "%s", w->text);
	settle(w);
	is_there(w, &o);
	struct object p = object(w, 11, BIG, 4 * MiB, true, true);
	bytes_at(w, S0, p.offset[S0])[5] ^= 1;
	bytes_at(w, S1, p.offset[S1])[6] ^= 1;
	cr_expect_eq(copy_from_both(w, &p), ERR_NONE);
	settle(w);
	failed_with(w, &p, ERR_CORRUPT, S0);
	close_world(w);
	NO_LEAKS();
}

Test(pull, a_source_that_no_longer_has_it)
{
	struct world *w = open_world(7);
	struct object o = object(w, 10, 5000, 0, true, true);
	cr_expect_eq(slot_cmd(w, S0, METHOD_RETIRE, &o.at[S0]), ERR_NONE);
	cr_expect_eq(slot_cmd(w, S0, METHOD_FREE, &o.at[S0]), ERR_NONE);
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE);
	settle(w);
	failed_with(w, &o, ERR_LEASE_LOST, S0);
	w->a[D].boss->n_failed = 0;
	cr_expect_eq(copy_from_both(w, &o), ERR_NONE);
	settle(w);
	is_there(w, &o);
	close_world(w);
	NO_LEAKS();
}

/* T6: cancelled by FENCE, waiting, under way, done. */
Test(pull, fence)
{
	struct world *w = open_world(8);
	struct msg_fence_res res;
	struct object o[4];
	for (unsigned i = 0; i < 4; i++)
		o[i] = object(w, 10 + i, BIG, i * 4 * MiB, true, false);
	w->fetch.hold = true;
	for (unsigned i = 0; i < 3; i++)
		cr_expect_eq(copy_from(w, &o[i], S0), ERR_NONE);
	cl_run_ms(w->c, 20);
	cr_expect_eq(xfa(w, D)->pulls.n_running, 2);
	cr_expect_eq(fence(w, D, o[2].version, room(o[2].offset[D], BIG), &res), HOLD_FENCED,
		     "it waits: nobody writes");
	cr_expect_eq(fence(w, D, o[0].version, room(o[0].offset[D], BIG), &res), HOLD_WRITING);
	cr_expect_gt(hold_quarantine(xfa(w, D)->hold), 0);
	cr_expect_eq(copy(w, &o[0], (const int[]){ S0 }, 1, version_make(1, 5000)),
		     ERR_STALE_ATTEMPT, "%s", w->text);
	w->fetch.hold = false;
	settle(w);
	cl_run_ms(w->c, 500);
	cr_expect_eq(hold_quarantine(xfa(w, D)->hold), 0);
	cr_expect_eq(w->a[D].boss->n_fenced, 1);
	cr_expect_eq(w->a[D].boss->fenced[0], o[0].version);
	cr_expect_eq(w->a[D].boss->n_failed, 0, "who was fenced is not reported as failed");
	cr_expect_eq(published(w, o[0].version) + published(w, o[2].version), 0);
	is_there(w, &o[1]);
	cr_expect_eq(fence(w, D, o[1].version, room(o[1].offset[D], BIG), &res),
		     HOLD_COMMITTED);
	/* a FENCE that comes before its COPY */
	cr_expect_eq(fence(w, D, o[3].version, room(o[3].offset[D], BIG), &res), HOLD_FENCED);
	cr_expect_eq(copy_from(w, &o[3], S0), ERR_STALE_ATTEMPT, "%s", w->text);
	/* much later: the ring has forgotten it, its number is barred */
	uint64_t number = version_make(1, w->next + 1);
	cr_expect_eq(fence_number(w, D, o[3].version, number, room(o[3].offset[D], BIG), &res),
		     HOLD_FENCED);
	for (unsigned i = 0; i <= POOL_RING; i++)
		cr_assert_eq(fence(w, D, 100000 + i, room(15 * MiB, 64), &res), HOLD_FENCED);
	cr_expect_eq(copy_from(w, &o[3], S0), ERR_STALE_ATTEMPT, "%s", w->text);
	cr_expect_eq(copy_from(w, &o[3], S0), ERR_NONE, "%s", w->text);
	settle(w);
	is_there(w, &o[3]);
	close_world(w);
	NO_LEAKS();
}

/* Old versions are copied to a holder that has fenced and committed many newer ones. */
Test(pull, old_versions)
{
	struct world *w = open_world(9);
	struct msg_fence_res res;
	struct object o = object(w, 10, 5000, 0, true, false);
	for (unsigned i = 0; i < POOL_RING + 10; i++)
		cr_assert_eq(fence(w, D, 100000 + i, room(MiB, 64), &res), HOLD_FENCED);
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE, "%s", w->text);
	settle(w);
	is_there(w, &o);
	close_world(w);
	NO_LEAKS();
}

/* L2, V9: what was ordered under an older epoch ends; its range is in the new inventory till it has. */
Test(pull, adoption_in_the_middle)
{
	struct world *w = open_world(10);
	struct object o = object(w, 10, BIG, 0, true, false);
	struct object p = object(w, 11, BIG, 4 * MiB, true, false);
	w->fetch.piece_us = 1000;
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE);
	cr_assert(cl_until(w->c, moving, w, 1000));
	adopt(w, D, 2);
	cr_expect_gt(hold_quarantine(xfa(w, D)->hold), 0);
	settle(w);
	cl_run_ms(w->c, 100);
	cr_expect_eq(hold_quarantine(xfa(w, D)->hold), 0);
	cr_expect_eq(published(w, o.version), 0);
	cr_expect_eq(w->a[D].boss->n_failed, 0);
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE, "%s", w->text);
	/* and with a master that does not answer PUBLISH */
	w->a[D].boss->silent = true;
	cr_expect_eq(copy_from(w, &p, S0), ERR_NONE, "%s", w->text);
	cl_run_ms(w->c, 3000);
	cr_expect_eq(xfa(w, D)->pulls.ops_alive.n, 2);
	adopt(w, D, 3);
	settle(w);
	cl_run_ms(w->c, 2000);
	w->a[D].boss->silent = false;
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE, "%s", w->text);
	settle(w);
	is_there(w, &o);
	close_world(w);
	NO_LEAKS();
}

Test(pull, a_full_destination)
{
	struct world *w = open_world(11);
	struct object o = object(w, 5000, 4096, 0, true, false), f = { .size = 0 };
	struct msg_extent x;
	struct why why = { 0 };
	struct hold_slot s;
	enum err e = ERR_NONE;
	for (f.version = 10; e == ERR_NONE && f.version < 3000; f.version++) {
		struct msg_ticket t = ticket(w, D, TICKET_WRITE, &f, &x);
		e = hold_commit(xfa(w, D)->hold, &t, 0, &s, &why);
	}
	cr_assert_eq(e, ERR_NO_SPACE);
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE);
	settle(w);
	failed_with(w, &o, ERR_NO_SPACE, -1);
	close_world(w);
	NO_LEAKS();
}

/* The master's word: refused, and a destination killed in the middle. */
Test(pull, a_destination_killed)
{
	struct world *w = open_world(12);
	struct object o = object(w, 10, BIG, 0, true, false);
	w->fetch.piece_us = 1000;
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE);
	cr_assert(cl_until(w->c, moving, w, 1000));
	w->a[D].boss->n_register = 0;
	cl_restart(w->c, "d");
	cr_assert(cl_until(w->c, registered, w->a[D].boss, 3000));
	adopt(w, D, 2);
	cr_expect_eq(mempool_slots_used(xfa(w, D)->pool), 0);
	cr_expect_eq(hold_quarantine(xfa(w, D)->hold), 0, "its writers ended with it");
	cr_expect_eq(published(w, o.version), 0);
	cr_expect_eq(copy_from(w, &o, S0), ERR_NONE, "%s", w->text);
	settle(w);
	is_there(w, &o);
	struct object p = object(w, 11, 5000, 4 * MiB, true, false);
	w->a[D].boss->publish_err = ERR_STALE_ATTEMPT;
	w->a[D].boss->refusals = 1;
	cr_expect_eq(copy_from(w, &p, S0), ERR_NONE);
	settle(w);
	cr_expect_eq(metric_get(xfa(w, D)->svc.metrics, XFA_M_PULLS, 3), 1);
	cr_expect_null(failed(w, p.version), "the master refused it itself");
	/* an end with copies under way */
	struct object q = object(w, 12, BIG, 8 * MiB, true, false);
	w->fetch.hold = true;
	cr_expect_eq(copy_from(w, &q, S0), ERR_NONE);
	cl_run_ms(w->c, 10);
	cl_term(w->c, "d");
	cl_run_ms(w->c, 3000);
	cr_expect(!cl_running(w->c, "d"));
	close_world(w);
	NO_LEAKS();
}

/* ---- each allocation fails once ---- */

/* COPY, whatever becomes of it: what its item says, or the whole request. */
static enum err try_copy(struct world *w, const struct object *o)
{
	struct buf body = BUF_INIT(1 << 16), reply = BUF_INIT(1 << 16), sealed[2];
	struct arena a = ARENA_INIT(64 << 10);
	struct msg_extent x;
	struct msg_results_rep m;
	struct why why = { 0 };
	for (int i = 0; i < 2; i++) {
		struct msg_ticket t =
			ticket(w, i ? S0 : D, i ? TICKET_READ : TICKET_PULL, o, &x);
		t.attempt = i ? 0 : version_make(1, ++w->next);
		t.slot = o->at[S0].slot;
		t.generation = o->at[S0].generation;
		sealed[i] = BUF_INIT(TICKET_MAX);
		cr_assert_eq(ticket_mint(w->a[i ? S0 : D].key, &t, &sealed[i], &why), ERR_NONE);
	}
	struct msg_copy_source src = { .holder = BYTES_STR(w->a[S0].boss->holder),
				       .ticket = buf_bytes(&sealed[1]) };
	struct msg_copy_item it = { buf_bytes(&sealed[0]), { &src, 1 } };
	enc_copy_req(&body,
		     &(struct msg_copy_req){ .under = &w->a[D].under, .items = { &it, 1 } });
	enum err e = command(w, D, METHOD_COPY, &body, &reply, NULL);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	if (e == ERR_NONE) {
		cr_assert_eq(dec_results_rep(&d, &m), ERR_NONE);
		e = (enum err)m.items.p[0].status;
	}
	for (int i = 0; i < 2; i++)
		buf_fini(&sealed[i]);
	arena_fini(&a);
	buf_fini(&reply);
	return e;
}

Test(pull, each_allocation_fails_once)
{
	uint64_t failed = 1, skip = 0;
	for (; failed > 0; skip++) {
		struct world *w = open_world(20);
		struct object o = object(w, 10, BIG, 0, true, false);
		cl_oom(w->c, "d", skip, 1);
		(void)try_copy(w, &o);
		cl_run_ms(w->c, 600);
		failed = sim_alloc_failed();
		sim_alloc_fail(NULL, 0, 0);
		settle(w);
		/* it is there, or was refused or reported: then it goes under another number */
		if (published(w, o.version) == 0) {
			w->a[D].boss->n_failed = 0;
			cl_run_ms(w->c, 4000);
			enum err e = try_copy(w, &o);
			cr_assert_eq(e, ERR_NONE, "after allocation %lu: %s",
				     (unsigned long)skip, err_name(e));
			settle(w);
		}
		is_there(w, &o);
		close_world(w);
	}
	cr_expect_gt(skip, 10);
	NO_LEAKS();
}

/* ---- any order of trouble ---- */

static void trouble(struct world *w, struct sim_rng *r, int *down)
{
	static const char *const sources[] = { "s0", "s1" };
	uint64_t k = sim_rng_below(r, 2);
	switch (sim_rng_below(r, 6)) {
	case 0:
		cl_stop(w->c, sources[k]);
		cl_run_ms(w->c, sim_rng_below(r, 900));
		cl_cont(w->c, sources[k]);
		break;
	case 1:
		cl_partition(w->c, "n0", k ? "n1" : "n2");
		cl_run_ms(w->c, sim_rng_below(r, 900));
		cl_heal(w->c, NULL, NULL);
		break;
	case 2:
		w->fetch.damaged = 1;
		break;
	case 3:
		if ((*down)++ < 1)
			cl_kill(w->c, "s1");
		break;
	default:
		cl_run_ms(w->c, sim_rng_below(r, 20));
	}
}

/* Each copy ends: published and whole, reported, or fenced; and nothing else is there. */
static void scenario(uint64_t seed)
{
	enum { N = 8 };
	struct world *w = open_world(seed);
	struct sim_rng r = sim_rng(seed, "trouble");
	struct msg_fence_res res;
	struct object o[N];
	bool fenced[N] = { false };
	int down = 0;
	for (unsigned i = 0; i < N; i++)
		o[i] = object(w, 10 + i, 1 + sim_rng_below(&r, 3 * MiB / 2), i * 2 * MiB, true,
			      true);
	for (unsigned i = 0; i < N; i++) {
		cr_assert_eq(copy_from_both(w, &o[i]), ERR_NONE, "%s", w->text);
		trouble(w, &r, &down);
		if (sim_rng_chance(&r, 200000)) {
			unsigned k = (unsigned)sim_rng_below(&r, i + 1);
			uint8_t s = fence(w, D, o[k].version, room(o[k].offset[D], o[k].size),
					  &res);
			fenced[k] |= s != HOLD_COMMITTED;
		}
	}
	settle(w);
	cl_run_ms(w->c, 1000);
	SIM_CHECK(hold_quarantine(xfa(w, D)->hold) == 0, "a range stays in quarantine");
	for (unsigned i = 0; i < N; i++) {
		bool there = published(w, o[i].version) > 0;
		bool gone = failed(w, o[i].version) != NULL;
		SIM_CHECK(there + gone + (fenced[i] && !gone) == 1, "copy %u: %d %d %d", i,
			  there, gone, fenced[i]);
		if (there)
			is_there(w, &o[i]);
	}
	close_world(w);
}

Test(pull, any_trouble)
{
	uint64_t seed;
	for (struct sim_seeds r = sim_seeds(20); sim_seeds_next(&r, &seed);)
		scenario(seed);
	NO_LEAKS();
}
