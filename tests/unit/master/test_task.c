/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks: copy, move, prefetch, drain; their progress, cancel, TASK_LOST; every key readable throughout (L5). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

static const struct bytes tenant = { (const uint8_t *)"t", 1 }, nobody = { NULL, 0 };

static struct rig *three(void)
{
	struct rig *r = rig_new();
	rig_register(r, 2);
	rig_run(r);
	return r;
}

static void hold_copies(struct rig *r, enum fake_copies how)
{
	for (int h = 0; h < FAKES_MAX; h++)
		r->h[h].copies = how;
}

static const char *name(int i)
{
	static char text[8][16];
	static int at;
	char *p = text[at++ % 8];
	snprintf(p, 16, "k%d", i);
	return p;
}

static void fill(struct rig *r, int n, int h)
{
	for (int i = 0; i < n; i++)
		cr_assert_eq(rig_put(r, name(i), h, false), ERR_NONE);
}

struct ask {
	uint8_t kind;
	int from, to; /* -1: none */
	uint32_t num;
	struct bytes keys[64];
	size_t n;
};

static enum err begin(struct rig *r, const struct ask *q, uint64_t *id)
{
	struct why why = { 0 };
	struct msg_task_start_req m = { .kind = q->kind,
					.keys = { q->keys, q->n },
					.replica_num = q->num };
	if (q->from >= 0)
		m.from = BYTES_STR(r->h[q->from].id);
	if (q->to >= 0)
		m.to = BYTES_STR(r->h[q->to].id);
	enum err e = mind_task_start(r->m, q->kind == MIND_TASK_DRAIN ? nobody : tenant, &m, id,
				     &why);
	cr_assert(e == ERR_NONE || e == ERR_NO_MEMORY || why.text[0], "%s", err_name(e));
	return e;
}

static struct msg_task state(struct rig *r, uint64_t id)
{
	struct msg_task t = { 0 };
	struct why why = { 0 };
	cr_assert_eq(mind_task(r->m, NULL, id, &t, &why), ERR_NONE, "%s", why.text);
	return t;
}

/* Until it has ended, every key readable at each step. */
static struct msg_task to_end(struct rig *r, uint64_t id, int n_keys)
{
	for (int i = 0; i < 400; i++) {
		rig_run(r);
		for (int k = 0; k < n_keys; k++)
			cr_assert_eq(rig_get(r, name(k), NULL), ERR_NONE, "%s", name(k));
		struct msg_task t = state(r, id);
		if (t.state >= MIND_TASK_DONE)
			return t;
		rig_pass(r, 100);
	}
	cr_assert_fail("it does not end: %s", state(r, id).text.p);
	return (struct msg_task){ 0 };
}

static void copies_at(struct rig *r, int h)
{
	while (r->h[h].n_copying)
		cr_assert_eq(rig_copy_done(r, h, 0), ERR_NONE);
}

/* ---- copy, move, prefetch ---- */

Test(task, copy_makes_one_more_or_so_many, .timeout = 10)
{
	struct rig *r = three();
	uint64_t id = 0, second = 0;
	fill(r, 3, 0);
	struct ask q = { MIND_TASK_COPY, -1, -1, 0, { BYTES_STR("k0"), BYTES_STR("k1") }, 2 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	cr_assert_eq(id >> 40, meta_term(r->st), "term and counter");
	cr_assert_eq(state(r, id).state, MIND_TASK_QUEUED);
	struct msg_task t = to_end(r, id, 3);
	cr_assert_eq(t.state, MIND_TASK_DONE);
	cr_assert_eq(t.done, 2);
	cr_assert_eq(t.total, 2);
	cr_assert_eq(t.failed, 0);
	cr_assert_eq(t.bytes_done, 2000);
	cr_assert_eq(t.bytes_total, 2000);
	cr_assert_eq(rig_replicas(r, "k0", NULL), 2);
	cr_assert_eq(rig_replicas(r, "k2", NULL), 1);
	q.num = 3;
	q.n = 1;
	cr_assert_eq(begin(r, &q, &second), ERR_NONE);
	cr_assert_eq(second, id + 1);
	cr_assert_eq(to_end(r, second, 3).state, MIND_TASK_DONE);
	cr_assert_eq(rig_replicas(r, "k0", NULL), 3);
	/* said again it has nothing to do */
	uint64_t n = r->n_seen[MIND_COPY];
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	cr_assert_eq(to_end(r, id, 3).state, MIND_TASK_DONE);
	cr_assert_eq(r->n_seen[MIND_COPY], n);
	rig_free(r);
	NO_LEAKS();
}

Test(task, copy_to_a_holder, .timeout = 10)
{
	struct rig *r = three();
	uint64_t id = 0;
	fill(r, 1, 0);
	struct ask q = { MIND_TASK_COPY, -1, 2, 0, { BYTES_STR("k0"), BYTES_STR("none") }, 2 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	struct msg_task t = to_end(r, id, 1);
	cr_assert_eq(t.state, MIND_TASK_FAILED, "some could not");
	cr_assert_eq(t.done, 1);
	cr_assert_eq(t.failed, 1);
	cr_assert(strstr((const char *)t.text.p, "no object"), "%s", t.text.p);
	cr_assert(rig_has(r, 2, "k0"));
	rig_free(r);
	NO_LEAKS();
}

Test(task, move_gives_up_the_old_one_when_the_new_is_readable, .timeout = 10)
{
	struct rig *r = three();
	uint64_t id = 0;
	fill(r, 2, 0);
	hold_copies(r, COPIES_HELD);
	struct ask q = { MIND_TASK_MOVE, 0, 1, 0, { BYTES_STR("k0"), BYTES_STR("k1") }, 2 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	rig_run(r);
	rig_pass(r, 1000);
	rig_run(r);
	cr_assert_eq(r->h[1].n_copying, 2);
	cr_assert_eq(rig_slots(r, 0, 1), 2, "nothing goes before");
	cr_assert_eq(state(r, id).state, MIND_TASK_RUNNING);
	cr_assert_eq(rig_copy_done(r, 1, 0), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 1), 1);
	copies_at(r, 1);
	struct msg_task t = to_end(r, id, 2);
	cr_assert_eq(t.state, MIND_TASK_DONE);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	cr_assert_eq(rig_slots(r, 1, 1), 2);
	for (size_t i = 0; i < FAKE_SLOTS; i++)
		cr_assert(r->h[0].slots[i].state == 0 ||
			  r->h[0].slots[i].reason == RETIRE_MOVED);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "k0", NULL), 1, "a new master finds it at h1 alone");
	rig_free(r);
	NO_LEAKS();
}

Test(task, move_anywhere_keeps_the_number_of_copies, .timeout = 10)
{
	struct rig *r = three();
	const struct msg_put_opts two = { .replica_num = 2 };
	uint64_t id = 0;
	r->opts = (struct msg_put_opts *)&two;
	cr_assert_eq(rig_put(r, "k0", 0, false), ERR_NONE);
	r->opts = NULL;
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "k0", NULL), 2);
	struct ask q = { MIND_TASK_MOVE, 0, -1, 0, { BYTES_STR("k0") }, 1 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	cr_assert_eq(to_end(r, id, 1).state, MIND_TASK_DONE);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "k0", NULL), 2);
	cr_assert_not(rig_has(r, 0, "k0"));
	rig_free(r);
	NO_LEAKS();
}

Test(task, prefetch_of_what_is_in_memory_is_done, .timeout = 10)
{
	struct rig *r = three();
	uint64_t id = 0;
	fill(r, 2, 0);
	struct ask q = { MIND_TASK_PREFETCH, -1, -1, 0, { BYTES_STR("k0") }, 1 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	struct msg_task t = to_end(r, id, 2);
	cr_assert_eq(t.state, MIND_TASK_DONE);
	cr_assert_eq(r->n_seen[MIND_COPY], 0);
	rig_free(r);
	NO_LEAKS();
}

Test(task, a_copy_that_fails_again_and_again_fails_its_key, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t id = 0;
	fill(r, 2, 0);
	hold_copies(r, COPIES_HELD);
	struct ask q = { MIND_TASK_COPY, -1, -1, 0, { BYTES_STR("k0"), BYTES_STR("k1") }, 2 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	for (int i = 0; i < 40 && state(r, id).state < MIND_TASK_DONE; i++) {
		rig_run(r);
		for (size_t k = 0; k < r->h[1].n_copying; k++)
			if (strcmp(r->h[1].copying[k].key, "k0") == 0) {
				rig_copy_fail(r, 1, k, ERR_UNREACHABLE, 0);
				break;
			} else {
				cr_assert_eq(rig_copy_done(r, 1, k), ERR_NONE);
				break;
			}
		rig_pass(r, 500);
	}
	struct msg_task t = state(r, id);
	cr_assert_eq(t.state, MIND_TASK_FAILED);
	cr_assert_eq(t.done, 1);
	cr_assert_eq(t.failed, 1);
	cr_assert(strstr((const char *)t.text.p, "as the test wants it"), "%s", t.text.p);
	rig_free(r);
	NO_LEAKS();
}

Test(task, a_key_that_is_removed_meanwhile, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t id = 0;
	fill(r, 1, 0);
	hold_copies(r, COPIES_HELD);
	struct ask q = { MIND_TASK_COPY, -1, 1, 0, { BYTES_STR("k0") }, 1 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	rig_run(r);
	cr_assert_eq(r->h[1].n_copying, 1);
	cr_assert_eq(rig_remove(r, "k0"), ERR_NONE);
	struct msg_task t = to_end(r, id, 0);
	cr_assert_eq(t.state, MIND_TASK_FAILED);
	cr_assert_eq(rig_slots(r, 1, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

/* ---- drain ---- */

static uint64_t drain(struct rig *r, int h)
{
	uint64_t id = 0;
	struct ask q = { .kind = MIND_TASK_DRAIN, .from = h, .to = -1 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	return id;
}

static struct mind_holder holder(struct rig *r, int h)
{
	struct mind_holder x;
	cr_assert(mind_holder(r->m, rig_holder(r, h), &x));
	return x;
}

Test(task, drain_moves_all_and_nothing_new_comes, .timeout = 20)
{
	struct rig *r = three();
	fill(r, 100, 0);
	uint64_t id = drain(r, 0), again = 0;
	struct ask q = { .kind = MIND_TASK_DRAIN, .from = 0, .to = -1 };
	cr_assert_eq(begin(r, &q, &again), ERR_NONE);
	cr_assert_eq(again, id, "said again: the same");
	cr_assert(holder(r, 0).draining);
	cr_assert_not(holder(r, 0).drained);
	cr_assert_eq(rig_put(r, "new", 0, false), ERR_NONE, "preferred, and elsewhere");
	cr_assert_not(rig_has(r, 0, "new"));
	struct msg_task t = to_end(r, id, 100);
	cr_assert_eq(t.state, MIND_TASK_DONE);
	cr_assert_eq(t.done, 100);
	cr_assert_eq(t.total, 100);
	cr_assert_eq(t.bytes_done, 100000);
	cr_assert(holder(r, 0).drained);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	cr_assert(rig_slots(r, 1, 1) > 20 && rig_slots(r, 2, 1) > 20, "level");
	for (int i = 0; i < 20; i++)
		cr_assert_eq(rig_put(r, name(200 + i), -1, false), ERR_NONE);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	/* it may be switched off */
	rig_away(r, 0);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(rig_get(r, name(i), NULL), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(task, drained_only_when_the_last_is_readable_elsewhere, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put open;
	fill(r, 3, 0);
	rig_start(r, &open, "k3", 1000, 0, false); /* a put was open before */
	hold_copies(r, COPIES_HELD);
	uint64_t id = drain(r, 0);
	rig_run(r);
	cr_assert_eq(r->h[1].n_copying, 3);
	copies_at(r, 1);
	for (int i = 0; i < 20; i++) {
		rig_pass(r, 300);
		rig_run(r);
	}
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	cr_assert_eq(state(r, id).state, MIND_TASK_RUNNING, "the put is open");
	cr_assert_eq(rig_commit(r, &open), ERR_NONE);
	rig_publish(r, &open);
	rig_run(r);
	cr_assert_eq(open.pub.err, ERR_NONE);
	rig_pass(r, 300);
	rig_run(r);
	cr_assert_eq(r->h[1].n_copying, 1);
	cr_assert_eq(state(r, id).state, MIND_TASK_RUNNING);
	rig_copy_fail(r, 1, 0, ERR_TIMED_OUT, 0);
	rig_run(r);
	cr_assert_eq(state(r, id).state, MIND_TASK_RUNNING);
	cr_assert(rig_has(r, 0, "k3"), "it stays until it is elsewhere");
	cr_assert_eq(r->h[1].n_copying, 0, "not at once");
	hold_copies(r, COPIES_DONE);
	cr_assert_eq(to_end(r, id, 4).state, MIND_TASK_DONE);
	rig_free(r);
	NO_LEAKS();
}

Test(task, drain_waits_for_room_and_says_so, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p;
	for (int h = 0; h < 2; h++) {
		rig_start(r, &p, name(h), 700000, h, false);
		cr_assert_eq(rig_commit(r, &p), ERR_NONE);
		rig_publish(r, &p);
		rig_run(r);
		cr_assert_eq(rig_use(r, name(h), 60000), ERR_NONE);
	}
	uint64_t id = drain(r, 0);
	for (int i = 0; i < 10; i++) {
		rig_pass(r, 1000);
		rig_run(r);
	}
	struct msg_task t = state(r, id);
	cr_assert_eq(t.state, MIND_TASK_RUNNING);
	cr_assert(strstr((const char *)t.text.p, "no room"), "%s", t.text.p);
	cr_assert_eq(rig_counts(r).evictions, 0);
	rig_register(r, 2);
	rig_run(r);
	cr_assert_eq(to_end(r, id, 2).state, MIND_TASK_DONE);
	rig_free(r);
	NO_LEAKS();
}

Test(task, nothing_is_evicted_where_all_are_drained, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p;
	fill(r, 4, 0);
	(void)drain(r, 0);
	(void)drain(r, 1);
	rig_start(r, &p, "new", 1000, 0, false);
	rig_run(r);
	cr_assert_eq(p.done, 1);
	cr_assert_eq(p.p.call.err, ERR_NOT_READY);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("k0")), ERR_BUSY);
	cr_assert_eq(rig_counts(r).evictions, 0);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(rig_get(r, name(i), NULL), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(task, drain_is_undone_by_its_cancel, .timeout = 10)
{
	struct rig *r = rig_new();
	struct why why = { 0 };
	fill(r, 5, 0);
	hold_copies(r, COPIES_HELD);
	uint64_t id = drain(r, 0);
	rig_run(r);
	cr_assert_eq(mind_task_cancel(r->m, NULL, id, &why), ERR_NONE);
	cr_assert_not(holder(r, 0).draining);
	cr_assert_eq(state(r, id).state, MIND_TASK_CANCELLED);
	copies_at(r, 1); /* what was under way stays */
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "k0", NULL), 2);
	cr_assert_eq(rig_slots(r, 0, 1), 5);
	cr_assert_eq(rig_put(r, "new", 0, false), ERR_NONE);
	cr_assert(rig_has(r, 0, "new"), "in use again");
	cr_assert_eq(mind_task_cancel(r->m, NULL, id, &why), ERR_NONE, "twice");
	/* of one that is done, too */
	hold_copies(r, COPIES_DONE);
	id = drain(r, 0);
	cr_assert_eq(to_end(r, id, 5).state, MIND_TASK_DONE);
	cr_assert(holder(r, 0).drained);
	cr_assert_eq(mind_task_cancel(r->m, NULL, id, &why), ERR_NONE);
	cr_assert_not(holder(r, 0).draining);
	cr_assert_eq(state(r, id).state, MIND_TASK_CANCELLED);
	/* and what went comes back the other way */
	id = drain(r, 1);
	cr_assert_eq(to_end(r, id, 5).state, MIND_TASK_DONE);
	cr_assert_eq(rig_slots(r, 1, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(task, drain_goes_on_when_its_holder_returns, .timeout = 10)
{
	struct rig *r = three();
	fill(r, 10, 0);
	hold_copies(r, COPIES_HELD);
	uint64_t id = drain(r, 0);
	rig_run(r);
	copies_at(r, 1);
	rig_run(r);
	r->h[0].up = false;
	rig_away(r, 0);
	rig_pass(r, 500);
	rig_run(r);
	cr_assert(strstr((const char *)state(r, id).text.p, "away"), "%s", state(r, id).text.p);
	cr_assert_eq(state(r, id).state, MIND_TASK_RUNNING);
	while (r->h[2].n_copying) /* who fetched from it gives up */
		rig_copy_fail(r, 2, 0, ERR_UNREACHABLE, 0);
	r->h[0].up = true;
	hold_copies(r, COPIES_DONE);
	rig_register(r, 0);
	cr_assert_eq(to_end(r, id, 10).state, MIND_TASK_DONE);
	rig_free(r);
	NO_LEAKS();
}

static void on_forgot(struct mind_call *c)
{
	cr_assert_eq(c->err, ERR_NONE);
}

Test(task, drain_of_a_holder_that_is_forgotten_fails, .timeout = 10)
{
	struct rig *r = three();
	struct mind_call c = { .done = on_forgot };
	fill(r, 3, 0);
	hold_copies(r, COPIES_HELD);
	uint64_t id = drain(r, 0);
	rig_run(r);
	mind_forget(r->m, BYTES_STR("h0"), &c);
	rig_run(r);
	rig_pass(r, 500);
	rig_run(r);
	cr_assert_eq(state(r, id).state, MIND_TASK_FAILED);
	rig_free(r);
	NO_LEAKS();
}

Test(task, drain_of_one_copy_of_two_makes_no_other_where_none_can_be, .timeout = 10)
{
	struct rig *r = rig_new();
	const struct msg_put_opts two = { .replica_num = 2 };
	r->opts = (struct msg_put_opts *)&two;
	fill(r, 5, 0);
	r->opts = NULL;
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "k0", NULL), 2);
	uint64_t id = drain(r, 0);
	cr_assert_eq(to_end(r, id, 5).state, MIND_TASK_DONE, "each is readable elsewhere");
	cr_assert_eq(rig_counts(r).under_replicated, 5);
	/* with a third they are whole again */
	rig_register(r, 2);
	rig_run(r);
	for (int i = 0; i < 4; i++) {
		rig_pass(r, 40000);
		rig_run(r);
	}
	cr_assert_eq(rig_counts(r).under_replicated, 0);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(task, drain_under_puts_and_removes, .timeout = 20)
{
	struct rig *r = three();
	fill(r, 60, 0);
	uint64_t id = drain(r, 0);
	for (int i = 0; i < 60; i += 2) {
		cr_assert_eq(rig_put(r, name(i), -1, true), ERR_NONE);
		if (i % 6 == 0)
			cr_assert_eq(rig_remove(r, name(i)), ERR_NONE);
	}
	struct msg_task t = to_end(r, id, 0);
	cr_assert_eq(t.state, MIND_TASK_DONE);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	for (int i = 0; i < 60; i++)
		cr_assert_eq(rig_get(r, name(i), NULL), i % 6 == 0 ? ERR_NOT_FOUND : ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* ---- who sees what, for how long ---- */

Test(task, of_another_term_is_lost, .timeout = 10)
{
	struct rig *r = rig_new();
	struct msg_task t;
	struct why why = { 0 };
	fill(r, 2, 0);
	uint64_t id = drain(r, 0);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(mind_task(r->m, NULL, id, &t, &why), ERR_TASK_LOST);
	cr_assert_eq(mind_task_cancel(r->m, NULL, id, &why), ERR_TASK_LOST);
	cr_assert_not(holder(r, 0).draining, "its holder is in use");
	cr_assert_eq(mind_task(r->m, NULL, (uint64_t)meta_term(r->st) << 40 | 7, &t, &why),
		     ERR_NOT_FOUND, "never given");
	rig_free(r);
	NO_LEAKS();
}

Test(task, a_tenant_sees_its_own, .timeout = 10)
{
	struct rig *r = rig_new();
	struct msg_task t;
	struct why why = { 0 };
	const struct bytes other = BYTES_STR("other");
	uint64_t id = 0, d = drain(r, 1);
	fill(r, 1, 0);
	struct ask q = { MIND_TASK_PREFETCH, -1, -1, 0, { BYTES_STR("k0") }, 1 };
	cr_assert_eq(begin(r, &q, &id), ERR_NONE);
	cr_assert_eq(mind_task(r->m, &tenant, id, &t, &why), ERR_NONE);
	cr_assert_eq(t.id, id);
	cr_assert_neq(mind_task(r->m, &other, id, &t, &why), ERR_NONE);
	cr_assert_neq(mind_task(r->m, &tenant, d, &t, &why), ERR_NONE, "an admin's");
	cr_assert_neq(mind_task_cancel(r->m, &tenant, d, &why), ERR_NONE);
	cr_assert(holder(r, 1).draining);
	cr_assert(mind_task_next(r->m, NULL, 0, &t));
	cr_assert_eq(t.id, d);
	cr_assert(mind_task_next(r->m, NULL, d, &t));
	cr_assert_eq(t.id, id);
	cr_assert_not(mind_task_next(r->m, NULL, id, &t));
	cr_assert(mind_task_next(r->m, &tenant, 0, &t));
	cr_assert_eq(t.id, id);
	cr_assert_not(mind_task_next(r->m, &other, 0, &t));
	rig_free(r);
	NO_LEAKS();
}

Test(task, there_are_so_many_and_ended_ones_are_forgotten, .timeout = 10)
{
	struct mind_limits l = { .tasks_max = 4, .task_keep_ms = 5000 };
	struct rig *r = rig_bare(&l);
	struct msg_task t;
	struct why why = { 0 };
	uint64_t id[6];
	rig_register(r, 0);
	rig_register(r, 1);
	rig_run(r);
	fill(r, 1, 0);
	hold_copies(r, COPIES_HELD);
	struct ask q = { MIND_TASK_COPY, -1, 1, 0, { BYTES_STR("k0") }, 1 };
	for (int i = 0; i < 4; i++)
		cr_assert_eq(begin(r, &q, &id[i]), ERR_NONE);
	cr_assert_eq(begin(r, &q, &id[4]), ERR_BUSY);
	cr_assert_eq(rig_counts(r).tasks, 4);
	cr_assert_eq(mind_task_cancel(r->m, &tenant, id[1], &why), ERR_NONE);
	cr_assert_eq(rig_counts(r).tasks, 3);
	cr_assert_eq(begin(r, &q, &id[4]), ERR_NONE, "in the place of one that has ended");
	cr_assert_eq(mind_task(r->m, &tenant, id[1], &t, &why), ERR_TASK_LOST);
	rig_run(r);
	cr_assert_eq(r->h[1].n_copying, 1, "one copy for all of them");
	copies_at(r, 1);
	cr_assert_eq(to_end(r, id[4], 1).state, MIND_TASK_DONE);
	rig_pass(r, 6000);
	why = (struct why){ 0 };
	cr_assert_eq(mind_task(r->m, &tenant, id[4], &t, &why), ERR_TASK_LOST, "long ago");
	cr_assert_eq(rig_counts(r).tasks, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(task, what_may_not_be_asked, .timeout = 10)
{
	struct rig *r = rig_new();
	static uint8_t big[OBJ_KEY_MAX + 1];
	uint64_t id = 0;
	struct why why = { 0 };
	const struct bytes k = BYTES_STR("k");
	struct ask q = { 0, -1, -1, 0, { k }, 1 };
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q.kind = 5;
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q.kind = MIND_TASK_MOVE;
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS, "from whom?");
	q.from = q.to = 0;
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q.kind = MIND_TASK_COPY;
	q.to = 1;
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS, "a copy leaves nothing");
	q.from = -1;
	q.num = 17;
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q.num = 0;
	q.n = 0;
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q.n = 1;
	q.keys[0] = BYTES(big, sizeof(big));
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q.keys[0] = BYTES("", 0);
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q = (struct ask){ MIND_TASK_DRAIN, -1, -1, 0, { k }, 0 };
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	q.from = 0;
	q.n = 1;
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS);
	struct msg_task_start_req m = { .kind = MIND_TASK_DRAIN, .from = BYTES_STR("h9") };
	cr_assert_eq(mind_task_start(r->m, nobody, &m, &id, &why), ERR_NOT_FOUND);
	id = drain(r, 1);
	q = (struct ask){ MIND_TASK_COPY, -1, 1, 0, { k }, 1 };
	cr_assert_eq(begin(r, &q, &id), ERR_INVALID_PARAMS, "to one that is drained");
	mind_check(r->m);
	rig_free(r);
	NO_LEAKS();
}
