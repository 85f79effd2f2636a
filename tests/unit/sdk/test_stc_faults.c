/* SPDX-License-Identifier: Apache-2.0 */
/* The store session when others fail: terms, epochs, lost answers, lost leases, cancels, deaths. */
#include "stc_world.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(stc_faults, .timeout = 60);

static size_t n_items(struct rpc_req *r)
{
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	size_t n = 0;
	union {
		struct msg_put_start_req put;
		struct msg_keys_req keys;
		struct msg_commit_req commit;
		struct msg_remove_req remove;
		struct msg_attempts_req attempts;
	} q;
	switch (r->method) {
	case METHOD_PUT_START:
		n = dec_put_start_req(&d, &q.put) == ERR_NONE ? q.put.items.n : 0;
		break;
	case METHOD_COMMIT:
		n = dec_commit_req(&d, &q.commit) == ERR_NONE ? q.commit.items.n : 0;
		break;
	case METHOD_REMOVE:
		n = dec_remove_req(&d, &q.remove) == ERR_NONE ? q.remove.items.n : 0;
		break;
	case METHOD_PUT_PROGRESS:
		n = dec_attempts_req(&d, &q.attempts) == ERR_NONE ? q.attempts.items.n : 0;
		break;
	default:
		n = dec_keys_req(&d, &q.keys) == ERR_NONE ? q.keys.keys.n : 0;
	}
	arena_fini(&a);
	SIM_CHECK(n > 0, "no items");
	return n;
}

/* ---- terms (V4) ---- */

/* The first change asks for the term; one that has changed is taken from the refusal. */
Test(stc_faults, terms)
{
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 20 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("1"), false, 1000), ERR_NONE);
	cr_expect_eq(w.f.asked[METHOD_ECHO], 1);
	cr_expect_eq(stc_term(w.stc), 1);
	w_new_term(&w.f);
	cr_assert_eq(w_put(&w, "b", BYTES_STR("2"), false, 1000), ERR_NONE);
	cr_expect_eq(stc_term(w.stc), 2);
	cr_expect_eq(w.f.n_attempts, 3);
	cr_expect(w.f.put_term[1] == 1 && w.f.put_term[2] == 2);
	cr_expect_eq(w.f.attempts[1], w.f.attempts[2], "the same put, once more");
	cr_expect_gt(w.f.attempts[1], w.f.attempts[0]);
	w_close(&w);
	NO_LEAKS();
}

/* The old term was over before this remove began: what was put, and perhaps read, under the new one is
 * older than it. */
Test(stc_faults, remove_of_a_new_term_has_no_ceiling)
{
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 21 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("1"), false, 1000), ERR_NONE);
	w_new_term(&w.f);
	cr_expect_eq(w_key(&w, STC_REMOVE, "a", 1000), ERR_NONE);
	cr_assert_eq(w.f.n_removed, 2);
	cr_expect(w.f.removed_term[0] == 1 && w.f.removed[0].ceiling == 0);
	cr_expect(w.f.removed_term[1] == 2 && w.f.removed[1].ceiling == 0);
	cr_expect_eq(w.f.removed[0].attempt, w.f.removed[1].attempt);
	cr_expect_eq(w_key(&w, STC_REMOVE, "a", 1000), ERR_NONE);
	cr_expect(w.f.removed[2].ceiling == 0 &&
		  w.f.removed[2].attempt > w.f.removed[1].attempt);
	w_close(&w);
	NO_LEAKS();
}

/* Answers under the old term; the next request finds a new one. */
static bool busy_then_over(struct fake *w, uint32_t method, struct rpc_req *r)
{
	if (method != METHOD_REMOVE || w->asked[METHOD_REMOVE] > 1)
		return false;
	w_reply_results(r, n_items(r), ERR_BUSY, 20);
	w_new_term(w);
	return true;
}

/* T3: a remove that is repeated under a new term leaves what was put since. */
Test(stc_faults, remove_carries_its_ceiling)
{
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 21 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("1"), false, 1000), ERR_NONE);
	w.f.on = busy_then_over;
	cr_expect_eq(w_key(&w, STC_REMOVE, "a", 1000), ERR_NONE);
	cr_assert_eq(w.f.n_removed, 2);
	cr_expect_eq(w.f.removed_term[1], 2);
	cr_expect_eq(w.f.removed[1].ceiling, version_make(1, VERSION_COUNTER_MAX));
	w_close(&w);
	NO_LEAKS();
}

static bool say_done(struct fake *w, uint32_t method, struct rpc_req *r)
{
	if (method != METHOD_REMOVE)
		return false;
	w_reply_results(r, n_items(r), ERR_EXISTS, 0);
	return true;
}

/* DONE: the first copy of this request has done it. */
Test(stc_faults, remove_done_before)
{
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 22 });
	w.f.on = say_done;
	cr_expect_eq(w_key(&w, STC_REMOVE, "a", 1000), ERR_NONE);
	cr_expect_eq(w.f.asked[METHOD_REMOVE], 1);
	w_close(&w);
	NO_LEAKS();
}

/* ---- what passes ---- */

static const enum err passes[] = { ERR_RECOVERING, ERR_TEMPORARILY_AWAY, ERR_BUSY,
				   ERR_NOT_READY, ERR_SHUTTING_DOWN };

static bool refuse_some(struct fake *w, uint32_t method, struct rpc_req *r)
{
	static const uint32_t of[] = { METHOD_PUT_START, METHOD_COMMIT, METHOD_QUERY,
				       METHOD_REMOVE, METHOD_EXISTS };
	bool ours = false;
	for (size_t i = 0; i < ARRAY_LEN(of); i++)
		ours |= method == of[i];
	if (!ours || w->asked[method] % 4 == 0)
		return false;
	enum err e = passes[w->step];
	if (method == METHOD_PUT_START)
		w_reply_grants(r, n_items(r), e, 3);
	else if (method == METHOD_QUERY)
		w_reply_objects(r, n_items(r), e, 3);
	else if (w->asked[method] % 4 == 1)
		rpc_reply(r, e, 3, BYTES("", 0)); /* the whole message */
	else
		w_reply_results(r, n_items(r), e, 0);
	return true;
}

/* Every refusal that passes by itself is tried again, at each step of each call. */
Test(stc_faults, tried_again)
{
	for (size_t i = 0; i < ARRAY_LEN(passes); i++) {
		struct world w;
		char b[8];
		size_t n = 0;
		w_open(&w, &(struct w_opts){ .seed = 23 + i });
		w.f.on = refuse_some;
		w.f.step = (int)i;
		cr_expect_eq(w_put(&w, "a", BYTES_STR("1"), false, 5000), ERR_NONE, "%s",
			     err_name(passes[i]));
		cr_expect_eq(w_get(&w, "a", b, 8, &n, false, 5000), ERR_NONE);
		cr_expect_eq(w_key(&w, STC_EXISTS, "a", 5000), ERR_NONE);
		cr_expect_eq(w_key(&w, STC_REMOVE, "a", 5000), ERR_NONE);
		cr_expect_eq(w.f.asked[METHOD_PUT_START], 4);
		cr_expect_eq(w.f.asked[METHOD_COMMIT], 4);
		cr_expect_eq(w.f.asked[METHOD_REMOVE], 4);
		w_close(&w);
	}
	NO_LEAKS();
}

static bool refuse_always(struct fake *w, uint32_t method, struct rpc_req *r)
{
	enum err e = (enum err)w->step;
	if (method == METHOD_PUT_START)
		w_reply_grants(r, n_items(r), e, 0);
	else if (method == METHOD_QUERY)
		w_reply_objects(r, n_items(r), e, 0);
	else if (method == METHOD_REMOVE || method == METHOD_EXISTS)
		w_reply_results(r, n_items(r), e, 0);
	else
		return false;
	return true;
}

/* Until the deadline, and then with the reason, not with a bare TIMED_OUT. */
Test(stc_faults, the_last_reason)
{
	struct world w;
	char b[8];
	w_open(&w, &(struct w_opts){ .seed = 30 });
	w.f.on = refuse_always;
	w.f.step = ERR_RECOVERING;
	uint64_t t0 = sim_now_ns(w.sim);
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, false, 2000), ERR_RECOVERING);
	cr_expect_gt(sim_now_ns(w.sim) - t0, 1900000000ull);
	w.f.step = ERR_TEMPORARILY_AWAY;
	cr_expect_eq(w_put(&w, "a", BYTES_STR("1"), false, 300), ERR_TEMPORARILY_AWAY);
	w.f.step = ERR_BUSY;
	cr_expect_eq(w_key(&w, STC_REMOVE, "a", 300), ERR_BUSY);
	w_close(&w);
	NO_LEAKS();
}

/* Answered at once, once. */
Test(stc_faults, not_tried_again)
{
	static const enum err final[] = { ERR_BUSY_WRITING, ERR_ALREADY_EXISTS, ERR_CONFLICT,
					  ERR_TOO_LARGE,    ERR_POOL_PINNED,	ERR_FORBIDDEN };
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 31 });
	w.f.on = refuse_always;
	for (size_t i = 0; i < ARRAY_LEN(final); i++) {
		uint32_t before = w.f.asked[METHOD_PUT_START];
		w.f.step = (int) final[i];
		cr_expect_eq(w_put(&w, "a", BYTES_STR("1"), false, 2000), final[i]);
		cr_expect_eq(w.f.asked[METHOD_PUT_START], before + 1);
	}
	cr_expect_eq(w.f.revoked, 0, "nothing was granted");
	w_close(&w);
	NO_LEAKS();
}

/* The flag goes to the master, and what it does not turn into a miss is not waited for. */
static bool see_flag(struct fake *w, uint32_t method, struct rpc_req *r)
{
	struct arena a = ARENA_INIT(1 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_keys_req q;
	if (method != METHOD_QUERY)
		return false;
	SIM_CHECK(dec_keys_req(&d, &q) == ERR_NONE, "QUERY");
	w->step = q.recovering_as_miss && q.lease_ms == 77 && q.format.n == 3;
	w_reply_objects(r, 1, ERR_TEMPORARILY_AWAY, 0);
	arena_fini(&a);
	return true;
}

Test(stc_faults, recovering_as_miss)
{
	struct world w;
	struct stc_call *c = NULL;
	w_open(&w, &(struct w_opts){ .seed = 32 });
	w.f.on = see_flag;
	cr_assert_eq(stc_call_new(STC_QUERY, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("a");
	c->get.recovering_as_miss = true;
	c->get.lease_ms = 77;
	c->get.format = BYTES_STR("kv1");
	cr_assert(w_run(&w, c, 5000));
	cr_expect_eq(c->items[0].err, ERR_TEMPORARILY_AWAY);
	cr_expect_eq(w.f.step, 1);
	cr_expect_eq(w.f.asked[METHOD_QUERY], 1);
	stc_call_free(c);
	w_close(&w);
	NO_LEAKS();
}

/* ---- puts that begin again ---- */

static struct sim *the_sim; /* of the test that runs: each is a process */

static void raise_epoch(void *arg)
{
	w_adopt(arg);
}

static bool fence_after_grant(struct fake *w, uint32_t method, struct rpc_req *r)
{
	if (method == METHOD_PUT_START && w->step++ < 2)
		/* the reply takes some time; the epoch rises before it arrives */
		sim_at(the_sim, sim_now_ns(the_sim), raise_epoch, w);
	return false;
}

/* STALE_EPOCH at the first look: another attempt, with a number of its own; the old one is given up. */
Test(stc_faults, epoch_raised_after_the_grant)
{
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 33 });
	the_sim = w.sim;
	w.f.on = fence_after_grant;
	cr_assert_eq(w_put(&w, "a", BYTES_STR("value"), false, 5000), ERR_NONE);
	cr_expect_eq(w.f.n_attempts, 3);
	cr_expect(w.f.attempts[0] < w.f.attempts[1] && w.f.attempts[1] < w.f.attempts[2]);
	sim_run_ms(w.sim, 100);
	cr_expect_eq(w.f.revoked, 2);
	w_close(&w);
	NO_LEAKS();
}

/* In the middle of a long copy: found by a look between steps. */
Test(stc_faults, epoch_raised_while_copying)
{
	struct world w;
	size_t n = 1 << 20;
	uint8_t *a = calloc(1, n);
	bool done;
	struct stc_buf buf = { a, n };
	struct stc_call *c = NULL;
	w_open(&w, &(struct w_opts){ .seed = 34, .step_bytes = 4096 });
	cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("a");
	c->items[0].bufs = &buf;
	c->items[0].n_bufs = 1;
	w_start(&w, c, 10000, &done);
	while (c->bytes_done < n / 2)
		cr_assert(sim_step(w.sim));
	w_adopt(&w.f);
	cr_assert(w_wait(&w, &done, 10000));
	cr_expect_eq(c->items[0].err, ERR_NONE);
	cr_expect_eq(w.f.n_attempts, 2);
	cr_expect_lt(c->bytes_done, n + n / 2 + 3 * 4096, "the look ended the first copy");
	stc_call_free(c);
	free(a);
	w_close(&w);
	NO_LEAKS();
}

/* Every answer of a COMMIT that means another attempt. */
static bool refuse_commit(struct fake *w, uint32_t method, struct rpc_req *r)
{
	static const enum err v[] = { ERR_STALE_EPOCH, ERR_STALE_ATTEMPT, ERR_NO_SPACE };
	if (method != METHOD_COMMIT || w->step >= (int)ARRAY_LEN(v))
		return false;
	w_reply_results(r, 1, v[w->step++], 0);
	return true;
}

Test(stc_faults, commit_refused)
{
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 35 });
	w.f.on = refuse_commit;
	cr_expect_eq(w_put(&w, "a", BYTES_STR("value"), false, 5000), ERR_NONE);
	cr_expect_eq(w.f.n_attempts, 4);
	sim_run_ms(w.sim, 100);
	cr_expect_eq(w.f.revoked, 3);
	w_close(&w);
	NO_LEAKS();
}

/* w->step: how often the holder does not like the ticket, as after the loss of its pool. */
static bool bad_ticket(struct fake *w, uint32_t method, struct rpc_req *r)
{
	if (method != METHOD_COMMIT || w->step-- <= 0)
		return false;
	w_reply_results(r, 1, ERR_BAD_TICKET, 0);
	return true;
}

Test(stc_faults, commit_refused_for_good)
{
	struct world w;
	struct stc_call *c = NULL;
	struct stc_buf buf = { "x", 1 };
	w_open(&w, &(struct w_opts){ .seed = 36 });
	w.f.on = bad_ticket;
	w.f.step = 2;
	cr_expect_eq(w_put(&w, "lost", BYTES_STR("value"), false, 5000), ERR_NONE);
	cr_expect_eq(w.f.n_attempts, 3);
	sim_run_ms(w.sim, 100);
	cr_expect_eq(w.f.revoked, 2);
	w.f.step = 100;
	cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("a");
	c->items[0].bufs = &buf;
	c->items[0].n_bufs = 1;
	cr_assert(w_run(&w, c, 5000));
	cr_expect_eq(c->items[0].err, ERR_BAD_TICKET);
	cr_expect_str_eq(c->items[0].peer, "agent-1");
	cr_expect_str_eq(c->items[0].step, "COMMIT");
	cr_expect_eq(w.f.n_attempts, 6);
	sim_run_ms(w.sim, 100);
	cr_expect_eq(w.f.revoked, 5);
	stc_call_free(c);
	w_close(&w);
	NO_LEAKS();
}

/* ---- doubt ---- */

/*
 * The first COMMIT gets no answer, and PROGRESS says that its attempt is closed. WAS_DONE: it was
 * carried out, and only its answer was lost.
 */
enum { WAS_DONE = 1, NEVER_DONE = 2 };

static bool lose_commit(struct fake *w, uint32_t method, struct rpc_req *r)
{
	if (method == METHOD_PUT_PROGRESS) {
		w_reply_results(r, n_items(r), ERR_STALE_ATTEMPT, 0);
		return true;
	}
	if (method != METHOD_COMMIT || w->asked[METHOD_COMMIT] > 1)
		return false;
	if (w->step == WAS_DONE) {
		struct w_object *o = w_find(w, "a");
		o->version = version_make(w->term, w->counter);
		o->size = 5;
		o->whole = true;
	}
	SIM_CHECK(rpc_park(r) == ERR_NONE, "park");
	w->parked = r;
	return true;
}

static void put_in_doubt(int step)
{
	struct world w;
	w_open(&w, &(struct w_opts){ .seed = 37 });
	w.f.on = lose_commit;
	w.f.step = step;
	cr_expect_eq(w_put(&w, "a", BYTES_STR("value"), false, 20000), ERR_NONE);
	cr_expect_eq(w.f.n_attempts, (uint32_t)step);
	cr_expect_eq(w.f.asked[METHOD_OBJECT_STAT], 1);
	cr_expect_eq(w.f.asked[METHOD_COMMIT], (uint32_t)step);
	w_close(&w);
}

/* The version is there: acknowledged, without a second copy. */
Test(stc_faults, doubt_ends_well)
{
	put_in_doubt(WAS_DONE);
	NO_LEAKS();
}

Test(stc_faults, doubt_begins_again)
{
	put_in_doubt(NEVER_DONE);
	NO_LEAKS();
}

/* ---- reads ---- */

struct moving {
	struct world *w;
	struct stc_call *c;
	uint8_t *buf;
	size_t n;
	bool done;
};

static void get_and_stop_half(struct moving *m, struct world *w, size_t n)
{
	static struct stc_buf b;
	uint8_t *a = malloc(n);
	*m = (struct moving){ .w = w, .buf = calloc(1, n), .n = n };
	memset(a, 0x5a, n);
	cr_assert_eq(w_put(w, "a", BYTES(a, n), false, 5000), ERR_NONE);
	free(a);
	cr_assert_eq(stc_call_new(STC_GET, 1, &m->c), ERR_NONE);
	b = (struct stc_buf){ m->buf, n };
	m->c->items[0].key = BYTES_STR("a");
	m->c->items[0].bufs = &b;
	m->c->items[0].n_bufs = 1;
}

static void run_to_half(struct moving *m)
{
	w_start(m->w, m->c, 10000, &m->done);
	while (m->c->bytes_done < m->n / 2)
		cr_assert(sim_step(m->w->sim));
}

static bool whole(const struct moving *m)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->buf[i] != 0x5a)
			return false;
	return true;
}

static void moving_free(struct moving *m)
{
	stc_call_free(m->c);
	free(m->buf);
}

/* The slot is emptied and its space rewritten under the reader: it takes the other copy. */
Test(stc_faults, the_other_replica)
{
	struct world w;
	struct moving m;
	w_open(&w, &(struct w_opts){ .seed = 40 });
	get_and_stop_half(&m, &w, 200000);
	struct w_object *o = w_find(&w.f, "a");
	w_copy(&w.f, o);
	run_to_half(&m);
	memset(mempool_at(w.f.pool, &o->copies[0].ext[0]), 0xff, 200000);
	struct w_object first = *o;
	w_free_copy(&w.f, &first, 0);
	cr_assert(w_wait(&w, &m.done, 10000));
	cr_expect_eq(m.c->items[0].err, ERR_NONE);
	cr_expect(whole(&m));
	cr_expect_eq(w.f.asked[METHOD_QUERY], 1);
	moving_free(&m);
	w_close(&w);
	NO_LEAKS();
}

/* The index is right again when it is asked for the second time. */
static bool right_the_second_time(struct fake *w, uint32_t method, struct rpc_req *r)
{
	if (method == METHOD_QUERY && ++w->step == 2)
		w_find(w, "a")->copies[0].generation--;
	return false;
}

/* One copy may come back and the other is bad for good: that is no reason to give up. */
Test(stc_faults, one_lost_and_one_corrupt)
{
	struct world w;
	char b[8];
	w_open(&w, &(struct w_opts){ .seed = 140 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("value"), false, 1000), ERR_NONE);
	struct w_object *o = w_find(&w.f, "a");
	w_copy(&w.f, o);
	*(uint8_t *)mempool_at(w.f.pool, &o->copies[1].ext[0]) ^= 1;
	o->copies[0].generation++;
	w.f.on = right_the_second_time;
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, true, 1000), ERR_NONE);
	cr_expect_eq(w.f.asked[METHOD_QUERY], 2);
	w.f.on = NULL;
	o->copies[0] = o->copies[1];
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, true, 1000), ERR_CORRUPT, "both are bad");
	w_close(&w);
	NO_LEAKS();
}

static bool three_made(struct fake *w, uint32_t method, struct rpc_req *r)
{
	struct msg_result one = { .made = 3 };
	struct buf b = BUF_INIT(256);
	if (method != METHOD_COMMIT)
		return false;
	enc_results_rep(&b, &(struct msg_results_rep){ .items = { &one, 1 } });
	rpc_reply(r, ERR_NONE, 0, buf_bytes(&b));
	buf_fini(&b);
	return true;
}

/* How many copies there are is what COMMIT says. */
Test(stc_faults, copies_made)
{
	struct world w;
	struct stc_call *c = NULL;
	struct stc_buf buf = { "x", 1 };
	w_open(&w, &(struct w_opts){ .seed = 141 });
	for (int i = 0; i < 2; i++) {
		w.f.on = i ? three_made : NULL;
		cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
		c->items[0].key = BYTES_STR(i ? "b" : "a");
		c->items[0].bufs = &buf;
		c->items[0].n_bufs = 1;
		c->put.replica_num = 3;
		c->put.replicas_required = 2;
		cr_assert(w_run(&w, c, 1000));
		cr_expect_eq(c->items[0].err, ERR_NONE);
		cr_expect_eq(c->items[0].copies, i ? 3 : 1);
		stc_call_free(c);
	}
	w.f.on = NULL;
	w_close(&w);
	NO_LEAKS();
}

/* No other copy: the master is asked again, and names where it lies now; then it is gone. */
Test(stc_faults, asks_again)
{
	struct world w;
	struct moving m;
	w_open(&w, &(struct w_opts){ .seed = 41 });
	get_and_stop_half(&m, &w, 200000);
	struct w_object *o = w_find(&w.f, "a");
	w_copy(&w.f, o);
	o->n_copies = 1;
	run_to_half(&m);
	w_free_copy(&w.f, o, 0);
	o->copies[0] = o->copies[1];
	cr_assert(w_wait(&w, &m.done, 10000));
	cr_expect_eq(m.c->items[0].err, ERR_NONE);
	cr_expect(whole(&m));
	cr_expect_eq(w.f.asked[METHOD_QUERY], 2);
	moving_free(&m);
	w_close(&w);
	NO_LEAKS();
}

Test(stc_faults, removed_while_read)
{
	struct world w;
	struct moving m;
	w_open(&w, &(struct w_opts){ .seed = 42 });
	get_and_stop_half(&m, &w, 200000);
	run_to_half(&m);
	w_free_copy(&w.f, w_find(&w.f, "a"), 0);
	w_find(&w.f, "a")->whole = false;
	cr_assert(w_wait(&w, &m.done, 10000));
	cr_expect_eq(m.c->items[0].err, ERR_NOT_FOUND);
	cr_expect_eq(m.c->items[0].bytes, 0);
	moving_free(&m);
	w_close(&w);
	NO_LEAKS();
}

/* An index that names a slot which is something else: a few times, then LEASE_LOST, and never bytes. */
Test(stc_faults, lease_lost)
{
	struct world w;
	char b[8];
	w_open(&w, &(struct w_opts){ .seed = 43 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("value"), false, 1000), ERR_NONE);
	w_free_copy(&w.f, w_find(&w.f, "a"), 0);
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, false, 5000), ERR_LEASE_LOST);
	cr_expect_eq(w.f.asked[METHOD_QUERY], 4);
	/* with verify too: another's bytes are no corruption */
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, true, 5000), ERR_LEASE_LOST);
	w_close(&w);
	NO_LEAKS();
}

/* B4: while bytes move, the lease is renewed, and a put's progress is told. */
Test(stc_faults, renewals)
{
	struct world w;
	struct moving m;
	w_open(&w, &(struct w_opts){ .seed = 44, .step_bytes = 64 });
	w.f.lease_ms = 3000;
	get_and_stop_half(&m, &w, 20000);
	run_to_half(&m);
	sim_stop(w.client);
	sim_run_ms(w.sim, 2000);
	sim_cont(w.client);
	cr_assert(w_wait(&w, &m.done, 10000));
	cr_expect_eq(m.c->items[0].err, ERR_NONE);
	cr_expect_gt(w.f.renewed, 0);
	moving_free(&m);
	w_close(&w);
	NO_LEAKS();
}

/* ---- out of reach ---- */

Test(stc_faults, another_host)
{
	struct world w;
	struct stc_call *c = NULL;
	struct stc_buf buf = { "x", 1 };
	char b[8];
	w_open(&w, &(struct w_opts){ .seed = 45 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("value"), false, 1000), ERR_NONE);
	w.f.host = "elsewhere";
	cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("b");
	c->items[0].bufs = &buf;
	c->items[0].n_bufs = 1;
	cr_assert(w_run(&w, c, 1000));
	cr_expect_eq(c->items[0].err, ERR_UNSUPPORTED);
	cr_expect(strstr(c->items[0].text, "agent-1") &&
			  strstr(c->items[0].text, "elsewhere") &&
			  strstr(c->items[0].text, "here"),
		  "%s", c->items[0].text);
	stc_call_free(c);
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, false, 1000), ERR_UNSUPPORTED);
	/* nothing of it has to be reached */
	cr_expect_eq(w_put(&w, "empty", BYTES("", 0), false, 1000), ERR_NONE);
	cr_expect_eq(w_get(&w, "empty", b, 8, NULL, false, 1000), ERR_NONE);
	sim_run_ms(w.sim, 100);
	cr_expect_eq(w.f.revoked, 1);
	w_close(&w);
	NO_LEAKS();
}

/* The agent's socket is away for a moment (tried again) or not for us (not). */
Test(stc_faults, pool_out_of_reach)
{
	struct world w;
	char b[8];
	w_open(&w, &(struct w_opts){ .seed = 46 });
	w.map_err = ERR_UNREACHABLE;
	cr_expect_eq(w_put(&w, "a", BYTES_STR("value"), false, 500), ERR_UNREACHABLE);
	cr_expect_gt(w.maps, 2);
	w.map_err = ERR_FORBIDDEN;
	cr_expect_eq(w_put(&w, "a", BYTES_STR("value"), false, 500), ERR_FORBIDDEN);
	w.map_err = ERR_NONE;
	cr_expect_eq(w_put(&w, "a", BYTES_STR("value"), false, 500), ERR_NONE);
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, false, 500), ERR_NONE);
	w_close(&w);
	NO_LEAKS();
}

static void reachable(void *arg)
{
	((struct world *)arg)->map_err = ERR_NONE;
}

/* An agent that is away for as long as a restart takes: a get waits for it. */
Test(stc_faults, get_waits_for_the_agent)
{
	struct world w;
	char b[8];
	w_open(&w, &(struct w_opts){ .seed = 47 });
	cr_assert_eq(w_put(&w, "e", BYTES_STR(""), false, 500), ERR_NONE);
	w.map_err = ERR_UNREACHABLE;
	sim_at(w.sim, sim_now_ns(w.sim) + 3000000000ull, reachable, &w);
	cr_expect_eq(w_put(&w, "a", BYTES_STR("value"), false, 10000), ERR_NONE);
	w.map_err = ERR_UNREACHABLE;
	cr_expect_eq(w_get(&w, "a", b, 8, NULL, false, 500), ERR_NONE, "mapped already");
	w_close(&w);
	NO_LEAKS();
}

/* ---- ends ---- */

/* A cancel at every moment of a put's life: it ends at once, and a grant is given back. */
Test(stc_faults, cancel_anywhere)
{
	for (uint32_t steps = 0; steps < 120; steps += 3) {
		struct world w;
		struct stc_call *c = NULL;
		size_t n = 40000;
		uint8_t *a = calloc(1, n);
		struct stc_buf buf = { a, n };
		bool done;
		w_open(&w, &(struct w_opts){ .seed = 50 + steps });
		cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
		c->items[0].key = BYTES_STR("a");
		c->items[0].bufs = &buf;
		c->items[0].n_bufs = 1;
		w_start(&w, c, 10000, &done);
		for (uint32_t i = 0; i < steps && !done; i++)
			cr_assert(sim_step(w.sim));
		if (!done)
			sim_run_in(w.client, (void (*)(void *))stc_cancel, c);
		uint64_t t0 = sim_now_ns(w.sim);
		cr_assert(w_wait(&w, &done, 1000));
		cr_expect_lt(sim_now_ns(w.sim) - t0, 100000000ull, "at once");
		enum err e = c->items[0].err;
		cr_expect(e == ERR_NONE || e == ERR_CANCELLED, "%s", err_name(e));
		stc_call_free(c);
		free(a); /* nothing touches it any more (I1) */
		sim_run_ms(w.sim, 200);
		if (e == ERR_CANCELLED && w.f.n_attempts > 0)
			cr_expect_eq(w.f.revoked, 1, "after %u steps", steps);
		w_close(&w);
	}
	NO_LEAKS();
}

/* The same for every other kind of call: it ends at once, and then nothing touches its buffers. */
static void cancel_one(enum stc_kind kind, uint32_t steps)
{
	struct world w;
	struct stc_call *c = NULL;
	size_t n = 40000;
	uint8_t *a = calloc(1, n);
	struct stc_buf buf = { a, n };
	bool done;
	w_open(&w, &(struct w_opts){ .seed = 500 + steps });
	cr_assert_eq(w_put(&w, "a", BYTES(a, n), false, 1000), ERR_NONE);
	cr_assert_eq(stc_call_new(kind, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("a");
	c->items[0].if_version = kind == STC_RELEASE ? w_find(&w.f, "a")->version : 0;
	c->items[0].bufs = &buf;
	c->items[0].n_bufs = 1;
	if (kind == STC_SNAPSHOT)
		cr_assert_eq(stc_snap_new(&c->snap), ERR_NONE);
	w_start(&w, c, 10000, &done);
	for (uint32_t i = 0; i < steps && !done; i++)
		cr_assert(sim_step(w.sim));
	if (!done)
		sim_run_in(w.client, (void (*)(void *))stc_cancel, c);
	uint64_t t0 = sim_now_ns(w.sim);
	cr_assert(w_wait(&w, &done, 1000));
	cr_expect_lt(sim_now_ns(w.sim) - t0, 100000000ull, "kind %d: at once", (int)kind);
	enum err e = c->items[0].err;
	/* those that the fake keeps nothing of are refused */
	cr_expect(e == ERR_NONE || e == ERR_CANCELLED || e == ERR_UNKNOWN_METHOD, "kind %d: %s",
		  (int)kind, err_name(e));
	stc_call_free(c);
	free(a);
	w_close(&w);
}

Test(stc_faults, cancel_of_every_kind)
{
	for (int kind = STC_GET; kind <= STC_TASK_CANCEL; kind++)
		for (uint32_t steps = 0; steps < (kind == STC_GET ? 90 : 30); steps += 3)
			cancel_one((enum stc_kind)kind, steps);
	NO_LEAKS();
}

/* Closing, and dying, with everything under way. */
static void end_with_calls(bool kill)
{
	for (uint32_t steps = 0; steps < 120; steps += 5) {
		struct world w;
		struct stc_call *put = NULL, *get = NULL;
		size_t n = 40000;
		uint8_t *a = calloc(1, n), *b = calloc(1, n);
		struct stc_buf bufs[2] = { { a, n }, { b, n } };
		bool put_done, get_done;
		w_open(&w, &(struct w_opts){ .seed = 200 + steps });
		cr_assert_eq(w_put(&w, "old", BYTES(a, n), false, 5000), ERR_NONE);
		cr_assert_eq(stc_call_new(STC_PUT, 1, &put), ERR_NONE);
		cr_assert_eq(stc_call_new(STC_GET, 1, &get), ERR_NONE);
		put->items[0].key = BYTES_STR("a");
		get->items[0].key = BYTES_STR("old");
		put->items[0].bufs = &bufs[0];
		get->items[0].bufs = &bufs[1];
		put->items[0].n_bufs = get->items[0].n_bufs = 1;
		w_start(&w, put, 10000, &put_done);
		w_start(&w, get, 10000, &get_done);
		for (uint32_t i = 0; i < steps && sim_step(w.sim); i++)
			continue;
		if (kill)
			sim_kill(w.client);
		w_close(&w);
		cr_expect(put_done && get_done);
		enum err e = put->items[0].err, g = get->items[0].err;
		cr_expect(e == ERR_NONE || e == ERR_CLOSED || e == ERR_CONN_LOST, "%s",
			  err_name(e));
		cr_expect(g == ERR_NONE || g == ERR_CLOSED, "%s", err_name(g));
		stc_call_free(put);
		stc_call_free(get);
		free(a);
		free(b);
	}
}

Test(stc_faults, close_with_calls)
{
	end_with_calls(false);
	NO_LEAKS();
}

Test(stc_faults, death_with_calls)
{
	end_with_calls(true);
	NO_LEAKS();
}

/* T7: servers that never answer. */
Test(stc_faults, deadline)
{
	struct world w;
	struct stc_call *c = NULL;
	bool done;
	w_open(&w, &(struct w_opts){ .seed = 60 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("1"), false, 1000), ERR_NONE);
	sim_stop(w.servers);
	cr_assert_eq(stc_call_new(STC_EXISTS, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("a");
	w_start(&w, c, 700, &done);
	uint64_t t0 = sim_now_ns(w.sim);
	cr_assert(w_wait(&w, &done, 800));
	cr_expect(sim_now_ns(w.sim) - t0 <= 701000000ull);
	cr_expect_eq(c->items[0].err, ERR_TIMED_OUT);
	cr_expect(strstr(c->items[0].text, "master"), "%s", c->items[0].text);
	stc_call_free(c);
	sim_cont(w.servers);
	w_close(&w);
	NO_LEAKS();
}
