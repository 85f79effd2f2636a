/* SPDX-License-Identifier: Apache-2.0 */
/* Several copies of an object: puts of more than one, unfinished copies (V13), repair, doubt, order of readers. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

/* What an object of so many bytes takes. */
static uint64_t alloc_of(uint64_t bytes)
{
	return bytes >= OBJ_ALIGN
		       ? (bytes + OBJ_ALIGN - 1) / OBJ_ALIGN * OBJ_ALIGN
		       : (bytes + OBJ_ALIGN_SMALL - 1) / OBJ_ALIGN_SMALL * OBJ_ALIGN_SMALL;
}

static struct rig *three(void)
{
	struct rig *r = rig_new();
	rig_register(r, 2);
	rig_run(r);
	return r;
}

struct many {
	struct msg_put_opts opts;
	struct rig_put p;
};

static enum err many_start(struct rig *r, struct many *x, const char *key, uint64_t size, int h,
			   uint32_t num, uint32_t required)
{
	x->opts = (struct msg_put_opts){ .replica_num = num };
	r->opts = &x->opts;
	r->required = required;
	rig_start(r, &x->p, key, size, h, true);
	r->opts = NULL;
	r->required = 0;
	return x->p.done ? x->p.p.call.err : ERR_TIMED_OUT;
}

static enum err many_end(struct rig *r, struct many *x)
{
	enum err e = rig_commit(r, &x->p);
	if (e != ERR_NONE)
		return e;
	rig_publish(r, &x->p);
	rig_run(r);
	return x->p.published ? x->p.pub.err : ERR_TIMED_OUT;
}

static enum err put_many(struct rig *r, const char *key, int h, uint32_t num, uint32_t required)
{
	struct many x;
	enum err e = many_start(r, &x, key, 1000, h, num, required);
	rig_run(r);
	return e == ERR_NONE ? many_end(r, &x) : e;
}

static void hold_copies(struct rig *r, enum fake_copies how)
{
	for (int h = 0; h < FAKES_MAX; h++)
		r->h[h].copies = how;
}

Test(copy, a_put_makes_as_many_as_it_asks_for, .timeout = 10)
{
	struct rig *r = three();
	int where[OBJ_EXTENTS_MAX];
	cr_assert_eq(put_many(r, "a", 0, 3, 1), ERR_NONE);
	cr_assert_eq(rig_replicas(r, "a", where), 3);
	cr_assert_eq(rig_counts(r).under_replicated, 0);
	cr_assert_eq(rig_counts(r).copies_made, 2);
	cr_assert_eq(rig_counts(r).objects, 1);
	cr_assert_eq(rig_counts(r).copies, 3);
	cr_assert_eq(rig_counts(r).copying, 0);
	cr_assert_eq(rig_counts(r).bytes_used, 3 * alloc_of(1000));
	for (int h = 0; h < 3; h++)
		cr_assert(rig_has(r, h, "a"));
	rig_free(r);
	NO_LEAKS();
}

Test(copy, its_answer_waits_for_the_required_ones, .timeout = 10)
{
	struct rig *r = three();
	struct many x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(many_start(r, &x, "a", 1000, 0, 3, 2), ERR_NONE);
	cr_assert_eq(rig_counts(r).copying, 1, "the space of the second is taken");
	cr_assert_eq(rig_counts(r).bytes_used, 2 * alloc_of(1000));
	cr_assert_eq(many_end(r, &x), ERR_TIMED_OUT);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE, "readable from the first on");
	cr_assert_eq(r->h[0].slots[x.p.slot].published, true, "the mark does not wait");
	int at = r->h[1].n_copying ? 1 : 2;
	cr_assert_eq(r->h[at].n_copying, 1);
	cr_assert_eq(rig_copy_done(r, at, 0), ERR_NONE, "a copy's own waits for nothing");
	rig_run(r);
	cr_assert_eq(x.p.published, 1);
	cr_assert_eq(x.p.pub.err, ERR_NONE);
	cr_assert_eq(x.p.pub.made, 2);
	cr_assert_eq(rig_counts(r).under_replicated, 1, "the third is a repair");
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_new_master_waits_for_the_required_ones_too, .timeout = 10)
{
	struct rig *r = three();
	struct many x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(many_start(r, &x, "a", 1000, 0, 2, 2), ERR_NONE);
	cr_assert_eq(many_end(r, &x), ERR_TIMED_OUT);
	rig_restart(r);
	rig_run(r);
	rig_publish(r, &x.p); /* COMMIT is said again */
	rig_run(r);
	cr_assert_eq(x.p.published, 0, "it is on its way again");
	int at = r->h[1].n_copying ? 1 : 2;
	cr_assert_eq(r->h[at].n_copying, 1);
	cr_assert_eq(rig_copy_done(r, at, 0), ERR_NONE);
	rig_run(r);
	cr_assert_eq(x.p.published, 1);
	cr_assert_eq(x.p.pub.err, ERR_NONE);
	cr_assert_eq(x.p.pub.made, 2);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, as_many_as_there_can_never_be, .timeout = 10)
{
	struct rig *r = rig_new();
	struct many x;
	cr_assert_eq(many_start(r, &x, "a", 1000, -1, 3, 3), ERR_NOT_READY);
	cr_assert(strstr(x.p.p.call.why.text, "2 holders"), "%s", x.p.p.call.why.text);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	cr_assert_eq(rig_counts(r).copying, 0);
	/* best effort takes what there is */
	cr_assert_eq(put_many(r, "a", -1, 3, 2), ERR_NONE);
	cr_assert_eq(rig_replicas(r, "a", NULL), 2);
	cr_assert_eq(rig_counts(r).under_replicated, 1);
	/* a third holder comes: repaired */
	rig_register(r, 2);
	rig_run(r);
	for (int i = 0; i < 8 && rig_counts(r).under_replicated; i++) {
		rig_pass(r, 40000);
		rig_run(r);
	}
	cr_assert_eq(rig_replicas(r, "a", NULL), 3);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, the_last_that_could_goes_away_meanwhile, .timeout = 10)
{
	struct rig *r = rig_new();
	struct many x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(many_start(r, &x, "a", 1000, 0, 2, 2), ERR_NONE);
	cr_assert_eq(many_end(r, &x), ERR_TIMED_OUT);
	rig_away(r, 1);
	cr_assert_eq(x.p.published, 1);
	cr_assert_eq(x.p.pub.err, ERR_NOT_READY, "it cannot be: said so");
	cr_assert_eq(x.p.pub.made, 1);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE);
	cr_assert_eq(rig_counts(r).copying, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_put_that_is_given_up_gives_all_its_space_back, .timeout = 10)
{
	struct rig *r = three();
	struct many x;
	cr_assert_eq(many_start(r, &x, "a", 1000, 0, 3, 3), ERR_NONE);
	cr_assert_eq(rig_counts(r).bytes_used, 3 * alloc_of(1000));
	mind_discard(r->m, x.p.p.version);
	rig_run(r);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	cr_assert_eq(rig_counts(r).copying, 0);
	cr_assert_eq(r->n_seen[MIND_COPY], 0);
	/* likewise when a planned one's holder is adopted anew */
	cr_assert_eq(many_start(r, &x, "a", 1000, 0, 3, 3), ERR_NONE);
	rig_reborn(r, 1);
	rig_register(r, 1);
	rig_run(r);
	cr_assert_eq(rig_counts(r).copying, 1);
	cr_assert_eq(many_end(r, &x), ERR_NONE, "another place was found");
	cr_assert_eq(rig_replicas(r, "a", NULL), 3);
	rig_free(r);
	NO_LEAKS();
}

/* ---- V13 ---- */

Test(copy, v13_a_remove_waits_for_an_unfinished_copy, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	cr_assert_eq(r->h[1].n_copying, 1);
	rig_remove_start(r, &x, "a");
	cr_assert_eq(rig_waiting(r, MIND_FENCE), 1);
	rig_lose(r, 1, MIND_FENCE);
	rig_run(r);
	cr_assert_eq(x.done, 0, "RETIRED at h0, and being copied");
	mind_resend(r->m, rig_holder(r, 1));
	rig_run(r);
	cr_assert_eq(x.done, 1);
	cr_assert_eq(x.c.err, ERR_NONE);
	cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 1, 1), 0);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, v13_a_copy_that_was_committed_first_is_retired, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	(void)rig_copy_commit(r, 1, 0); /* PUBLISH is lost */
	rig_remove_start(r, &x, "a");
	rig_run(r);
	cr_assert_eq(x.done, 1);
	cr_assert_eq(rig_slots(r, 1, 1), 0);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, v13_a_put_waits_for_the_copy_of_what_it_replaces, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p;
	uint64_t v;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	rig_start(r, &p, "a", 1000, 0, true);
	rig_run(r);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	rig_lose(r, 1, MIND_FENCE);
	rig_run(r);
	cr_assert_eq(p.published, 0);
	cr_assert_eq(rig_get(r, "a", &v), ERR_NONE);
	cr_assert_lt(v, p.p.version, "the old one is served until then (T5)");
	/* it ended by itself, COMMITTED: PUBLISHed, RETIRED, and never served */
	cr_assert_neq(rig_copy_done(r, 1, 0), ERR_STALE_ATTEMPT);
	rig_run(r);
	cr_assert_eq(p.published, 1);
	cr_assert_eq(p.pub.err, ERR_NONE);
	cr_assert_eq(rig_get(r, "a", &v), ERR_NONE);
	cr_assert_eq(v, p.p.version);
	cr_assert_eq(rig_replicas(r, "a", NULL), 1);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, v13_a_remove_by_prefix_waits, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t n = 0;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "p/a", 0, 2, 1), ERR_NONE);
	cr_assert_eq(put_many(r, "p/b", 0, 2, 1), ERR_NONE);
	cr_assert_eq(r->h[1].n_copying, 2);
	(void)rig_copy_commit(r, 1, 0); /* one is there, PUBLISH is lost; one is fetched */
	cr_assert_eq(rig_remove_prefix(r, "p/", &n), ERR_NONE);
	cr_assert_eq(n, 2);
	cr_assert_eq(rig_slots(r, 1, 1), 0, "T3");
	cr_assert_eq(r->h[1].n_copying, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, v13_its_destination_goes_away, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	r->h[1].up = false;
	rig_remove_start(r, &x, "a");
	rig_run(r);
	cr_assert_eq(x.done, 0);
	rig_away(r, 1);
	cr_assert_eq(x.done, 1, "a tombstone there does as well");
	/* it had committed: the return finds the tombstone */
	r->h[1].up = true;
	r->h[1].n_copying = 1;
	(void)rig_copy_commit(r, 1, 0);
	rig_reborn(r, 1);
	rig_register(r, 1);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, 1, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, v13_its_destination_starts_again, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	cr_assert_eq(put_many(r, "b", 0, 2, 1), ERR_NONE);
	(void)rig_copy_commit(r, 1, 1); /* b: in the directory; a: cut */
	rig_reborn(r, 1);
	r->h[1].up = false;
	rig_register(r, 1);
	rig_run(r);
	rig_remove_start(r, &x, "a");
	rig_run(r);
	cr_assert_eq(x.done, 0,
		     "it was merged in this term: only keys of which it had something");
	r->h[1].up = true;
	mind_resend(r->m, rig_holder(r, 1));
	rig_run(r);
	cr_assert_eq(x.done, 1);
	cr_assert_eq(rig_replicas(r, "b", NULL), 2, "what it had is a copy");
	cr_assert_eq(rig_counts(r).copying, 0);
	cr_assert_eq(rig_counts(r).bytes_used, 2 * alloc_of(1000));
	rig_free(r);
	NO_LEAKS();
}

Test(copy, v13_a_range_that_is_still_written_stays, .timeout = 10)
{
	struct rig *r = rig_new();
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	/* its thread hangs in the middle of a copy */
	r->h[1].hazard = r->h[1].copying[0].version;
	r->h[1].n_hazard_ext = 1;
	r->h[1].hazard_ext[0] = r->h[1].copying[0].ext[0];
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE, "it can commit no more");
	cr_assert_eq(rig_counts(r).quarantine_bytes, alloc_of(1000));
	cr_assert_eq(rig_writer_gone(r, 1), ERR_NONE);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 0);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_late_publish_or_failure_of_it_changes_nothing, .timeout = 10)
{
	struct rig *r = rig_new();
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	const struct fake_copy k = r->h[1].copying[0];
	const struct mind_under u = rig_under(r, 1);
	struct msg_copy_fail f = { .version = k.version, .attempt = k.number + 1 };
	mind_copy_failed(r->m, rig_holder(r, 1), &u, &f); /* of another number */
	cr_assert_eq(rig_counts(r).copying, 1);
	f.attempt = k.number;
	const struct mind_under old = { 0, u.term, u.adoption + 1, u.pool_epoch };
	mind_copy_failed(r->m, rig_holder(r, 1), &old, &f); /* V9 */
	cr_assert_eq(rig_counts(r).copying, 1);
	mind_copied(r->m, rig_holder(r, 1), &u, k.version, k.number + 1, ERR_STALE_ATTEMPT, 0);
	cr_assert_eq(rig_counts(r).copying, 1);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	mind_copy_failed(r->m, rig_holder(r, 1), &u, &f);
	mind_copied(r->m, rig_holder(r, 1), &u, k.version, k.number, ERR_NONE, 0);
	r->h[1].n_copying = 1; /* as if nothing had been */
	r->h[1].copying[0] = k;
	cr_assert_eq(rig_copy_done(r, 1, 0), ERR_STALE_ATTEMPT, "V15");
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	mind_check(r->m);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, its_source_goes_while_its_destination_is_merged, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(put_many(r, "a", 0, 1, 1), ERR_NONE);
	cr_assert_eq(mind_copy_to(r->m, BYTES_STR("t"), BYTES_STR("a"), rig_holder(r, 1)),
		     ERR_NONE);
	rig_lose(r, 1, MIND_COPY); /* it was never told */
	rig_reborn(r, 1);
	rig_register(r, 1);
	rig_appends(r);
	while (rig_waiting(r, MIND_INVENTORY) == 0)
		rig_deliver(r, 0, false); /* ADOPT is answered: the allocator is empty */
	mind_away(r->m, BYTES_STR("h0"));
	rig_appends(r);
	for (int i = 0; i < 4; i++)
		(void)mind_work(r->m);
	rig_run(r);
	cr_assert_eq(rig_counts(r).copying, 0);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

/* ---- failures, repair ---- */

Test(copy, a_failed_copy_is_made_elsewhere, .timeout = 10)
{
	struct rig *r = three();
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	int at = r->h[1].n_copying ? 1 : 2;
	rig_copy_fail(r, at, 0, ERR_NO_SPACE, -1);
	cr_assert_eq(rig_counts(r).copies_failed, 1);
	cr_assert_eq(rig_counts(r).copying, 0);
	cr_assert_eq(rig_counts(r).bytes_used, alloc_of(1000), "its range is free");
	rig_run(r);
	cr_assert_eq(rig_counts(r).copying, 0, "not at once");
	r->h[at].copies = COPIES_REFUSED;
	r->h[at].copies_err = ERR_NO_SPACE;
	hold_copies(r, COPIES_DONE);
	r->h[at].copies = COPIES_REFUSED;
	for (int i = 0; i < 40 && rig_counts(r).under_replicated; i++) {
		rig_pass(r, 2000);
		r->h[at].bytes = 1 << 20;
		rig_run(r);
		if (i == 20)
			r->h[at].copies = COPIES_DONE;
	}
	cr_assert_eq(rig_counts(r).under_replicated, 0);
	cr_assert_eq(rig_replicas(r, "a", NULL), 2);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_busy_holder_is_asked_again, .timeout = 10)
{
	struct rig *r = rig_new();
	r->h[1].copies = COPIES_REFUSED;
	r->h[1].copies_err = ERR_BUSY;
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	cr_assert_eq(rig_counts(r).copying, 1);
	uint64_t n = r->n_seen[MIND_COPY];
	rig_run(r);
	cr_assert_eq(r->n_seen[MIND_COPY], n, "not before its time");
	r->h[1].copies = COPIES_DONE;
	r->h[1].copy_top = 0;
	rig_pass(r, 200);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "a", NULL), 2);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_command_or_its_end_that_is_lost_is_said_again, .timeout = 10)
{
	struct rig *r = rig_new();
	struct many x;
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(many_start(r, &x, "a", 1000, 0, 2, 2), ERR_NONE);
	cr_assert_eq(rig_commit(r, &x.p), ERR_NONE);
	rig_publish(r, &x.p);
	rig_lose(r, 1, MIND_COPY);
	rig_run(r);
	cr_assert_eq(r->h[1].n_copying, 0);
	mind_resend(r->m, rig_holder(r, 1));
	rig_run(r);
	cr_assert_eq(r->h[1].n_copying, 1);
	(void)rig_copy_commit(r, 1, 0); /* PUBLISH is lost, and the holder says nothing */
	rig_pass(r, 31000);
	rig_run(r);
	cr_assert_geq(r->n_seen[MIND_COPY], 3, "nothing was heard of it for long");
	rig_free(r);
	NO_LEAKS();
}

Test(copy, who_goes_away_is_replaced_within_bounds, .timeout = 20)
{
	struct mind_limits l = { .copies_per_holder = 3 };
	struct rig *r = rig_bare(&l);
	char key[16];
	for (int h = 0; h < 3; h++)
		rig_register(r, h);
	rig_run(r);
	for (int i = 0; i < 40; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(put_many(r, key, i % 2, 2, 2), ERR_NONE);
	}
	hold_copies(r, COPIES_HELD);
	rig_away(r, 1);
	cr_assert_gt(rig_counts(r).under_replicated, 10);
	for (int i = 0; i < 200 && rig_counts(r).under_replicated; i++) {
		for (int h = 0; h < 3; h++) {
			cr_assert_leq(r->h[h].n_copying, 3, "bounded a holder");
			while (r->h[h].n_copying)
				cr_assert_eq(rig_copy_done(r, h, 0), ERR_NONE);
		}
		rig_pass(r, 50);
		rig_run(r);
	}
	cr_assert_eq(rig_counts(r).under_replicated, 0);
	for (int i = 0; i < 40; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(rig_replicas(r, key, NULL), 2, "%s", key);
	}
	/* it returns with what it had: its copies count again, none is too new */
	rig_register(r, 1);
	rig_run(r);
	cr_assert_eq(rig_counts(r).objects, 40);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_start_repairs_nothing_before_all_are_merged, .timeout = 10)
{
	struct rig *r = three();
	cr_assert_eq(put_many(r, "a", 0, 2, 2), ERR_NONE);
	int other = rig_has(r, 1, "a") ? 1 : 2;
	uint64_t n = r->n_seen[MIND_COPY];
	rig_restart(r);
	r->h[other].up = false;
	rig_run(r);
	rig_pass(r, 100);
	rig_run(r);
	cr_assert_eq(rig_counts(r).under_replicated, 1);
	cr_assert_eq(r->n_seen[MIND_COPY], n);
	r->h[other].up = true;
	mind_resend(r->m, rig_holder(r, other));
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "a", NULL), 2, "one version, two holders: copies");
	cr_assert_eq(r->n_seen[MIND_COPY], n);
	cr_assert_eq(rig_counts(r).under_replicated, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_repair_evicts_nothing_and_stays_below_the_watermark, .timeout = 10)
{
	struct rig *r = rig_new(); /* 2 MiB, watermark 90 % */
	struct many x;
	for (int h = 0; h < 2; h++) {
		struct rig_put p;
		rig_start(r, &p, h ? "big1" : "big0", 900000, h, false);
		cr_assert_eq(rig_commit(r, &p), ERR_NONE);
		rig_publish(r, &p);
		rig_run(r);
	}
	cr_assert_eq(many_start(r, &x, "a", 50000, 0, 2, 1), ERR_NONE);
	cr_assert_eq(many_end(r, &x), ERR_NONE);
	for (int i = 0; i < 5; i++) {
		rig_pass(r, 10000);
		rig_run(r);
	}
	cr_assert_eq(rig_counts(r).under_replicated, 1);
	cr_assert_eq(rig_replicas(r, "a", NULL), 1);
	cr_assert_eq(rig_counts(r).evictions, 0);
	cr_assert_eq(rig_remove(r, "big1"), ERR_NONE);
	rig_pass(r, 40000);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "a", NULL), 2, "there is room now");
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_bad_slot_is_repaired_from_the_good_one, .timeout = 10)
{
	struct rig *r = three();
	cr_assert_eq(put_many(r, "a", 0, 2, 2), ERR_NONE);
	int other = rig_has(r, 1, "a") ? 1 : 2, third = 3 - other;
	const struct mind_under u = rig_under(r, 0);
	uint32_t slot = 0;
	while (r->h[0].slots[slot].state != 1)
		slot++;
	struct fake_slot *s = &r->h[0].slots[slot];
	s->state = 2;
	s->reason = RETIRE_CORRUPT;
	mind_corrupt(r->m, rig_holder(r, 0), &u, slot, s->generation, s->version);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "a", NULL), 2);
	cr_assert(rig_has(r, other, "a"));
	cr_assert(rig_has(r, third, "a") || rig_has(r, 0, "a"));
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_doubted_source_goes_only_if_another_is_readable, .timeout = 10)
{
	struct rig *r = three();
	cr_assert_eq(put_many(r, "a", 0, 1, 1), ERR_NONE);
	const struct bytes t = BYTES_STR("t"), a = BYTES_STR("a");
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(mind_copy_to(r->m, t, a, rig_holder(r, 1)), ERR_NONE);
	cr_assert_eq(mind_copy_to(r->m, t, a, rig_holder(r, 1)), ERR_BUSY,
		     "one at a time (C1)");
	rig_run(r);
	rig_copy_fail(r, 1, 0, ERR_CORRUPT, 0);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "a", NULL), 1,
		     "the last one is its own holder's to judge");
	cr_assert(rig_has(r, 0, "a"));
	cr_assert_eq(mind_copy_to(r->m, t, a, rig_holder(r, 1)), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_copy_done(r, 1, 0), ERR_NONE);
	cr_assert_eq(mind_copy_to(r->m, t, a, rig_holder(r, 1)), ERR_EXISTS);
	cr_assert_eq(mind_copy_to(r->m, t, a, rig_holder(r, 2)), ERR_NONE);
	rig_run(r);
	rig_copy_fail(r, 2, 0, ERR_CORRUPT, 0);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "a", NULL), 1);
	cr_assert_not(rig_has(r, 0, "a"));
	cr_assert(rig_has(r, 1, "a"));
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_version_may_come_back_to_who_gave_it_up, .timeout = 10)
{
	struct rig *r = rig_new();
	const struct bytes t = BYTES_STR("t"), a = BYTES_STR("a");
	cr_assert_eq(put_many(r, "a", 0, 1, 1), ERR_NONE);
	for (int i = 0; i < 3; i++)
		for (int to = 1; to >= 0; to--) {
			cr_assert_eq(mind_copy_to(r->m, t, a, rig_holder(r, to)), ERR_NONE);
			rig_run(r);
			cr_assert_eq(rig_replicas(r, "a", NULL), 2);
			cr_assert_eq(mind_copy_drop(r->m, t, a, rig_holder(r, 1 - to)),
				     ERR_NONE);
			cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE, "throughout");
			rig_run(r);
			cr_assert_eq(rig_replicas(r, "a", NULL), 1);
			cr_assert_eq(mind_copy_drop(r->m, t, a, rig_holder(r, to)), ERR_BUSY,
				     "never the last one");
			cr_assert_eq(rig_counts(r).bytes_used, alloc_of(1000));
		}
	rig_free(r);
	NO_LEAKS();
}

/* ---- eviction, groups, leases ---- */

Test(copy, an_eviction_takes_all_copies_and_frees_when_all_are_marked, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(put_many(r, "a", 0, 2, 2), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_NONE);
	cr_assert_eq(rig_waiting(r, MIND_RETIRE), 2);
	for (size_t i = 0; i < r->n_cmds; i++)
		cr_assert_eq(r->cmds[i].c.reason, RETIRE_EVICTED);
	rig_lose(r, 1, MIND_RETIRE);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE, "one copy is not marked yet");
	cr_assert_eq(rig_slots(r, 0, 2), 1, "not freed yet");
	mind_resend(r->m, rig_holder(r, 1));
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	rig_pass(r, 200);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2) + rig_slots(r, 1, 2), 0);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	cr_assert_eq(rig_counts(r).under_replicated, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_sick_holder_does_not_keep_the_others_space, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(put_many(r, "a", 0, 2, 2), ERR_NONE);
	r->h[1].up = false;
	mind_suspect(r->m, BYTES_STR("h1"), true);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 0), FAKE_SLOTS, "L4");
	rig_free(r);
	NO_LEAKS();
}

Test(copy, what_is_being_copied_is_not_evicted, .timeout = 10)
{
	struct rig *r = rig_new();
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_BUSY);
	cr_assert_eq(rig_copy_done(r, 1, 0), ERR_NONE);
	rig_run(r);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_NONE);
	rig_run(r);
	rig_free(r);
	NO_LEAKS();
}

static enum err put_member(struct rig *r, const char *key, uint32_t num, uint32_t size)
{
	const struct msg_put_opts o = { .replica_num = num,
					.group = BYTES_STR("g"),
					.group_size = size };
	return rig_put_opts(r, key, 1000, &o);
}

Test(copy, a_group_with_copies_goes_and_is_lost_as_one, .timeout = 10)
{
	struct rig *r = three();
	cr_assert_eq(put_member(r, "g0", 2, 2), ERR_NONE);
	cr_assert_eq(put_member(r, "g1", 2, 2), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_replicas(r, "g0", NULL), 2);
	cr_assert_eq(rig_replicas(r, "g1", NULL), 2);
	/* the loss of one holder is the loss of no member */
	for (int h = 0; h < 3; h++)
		if (rig_has(r, h, "g0")) {
			rig_away(r, h);
			break;
		}
	rig_run(r);
	cr_assert_eq(rig_get(r, "g0", NULL), ERR_NONE);
	cr_assert_eq(rig_get(r, "g1", NULL), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("g0")), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_get(r, "g0", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_get(r, "g1", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	cr_assert_eq(rig_counts(r).under_replicated, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_group_that_goes_ends_the_copies_of_its_members, .timeout = 10)
{
	struct rig *r = rig_new();
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_member(r, "g0", 2, 2), ERR_NONE);
	cr_assert_eq(put_member(r, "g1", 2, 2), ERR_NONE);
	size_t n = r->h[0].n_copying + r->h[1].n_copying;
	cr_assert_eq(n, 2);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("g0")), ERR_BUSY);
	/* a member's only whole copy is lost: the rest goes, unfinished copies too (G1, V13) */
	int at = rig_has(r, 0, "g0") ? 0 : 1;
	uint32_t slot = 0;
	while (strcmp(r->h[at].slots[slot].key, "g0") != 0)
		slot++;
	const struct mind_under u = rig_under(r, at);
	r->h[at].slots[slot].state = 2;
	r->h[at].slots[slot].reason = RETIRE_CORRUPT;
	mind_corrupt(r->m, rig_holder(r, at), &u, slot, r->h[at].slots[slot].generation,
		     r->h[at].slots[slot].version);
	rig_run(r);
	cr_assert_eq(rig_get(r, "g0", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_get(r, "g1", NULL), ERR_NOT_FOUND);
	rig_pass(r, 61000);
	rig_run(r);
	cr_assert_eq(rig_counts(r).copying, 0);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

/* ---- readers ---- */

static void first_of(struct rig *r, const char *key, const char *host, int *where, size_t *n)
{
	struct mind_object o;
	struct why why = { 0 };
	cr_assert_eq(mind_lookup_near(r->m, BYTES_STR("t"), BYTES_STR(key), BYTES_STR(host), 0,
				      BYTES(NULL, 0), &o, &why),
		     ERR_NONE);
	*where = rig_index(r, o.replicas[0].holder);
	*n = o.n_replicas;
}

Test(copy, the_nearest_comes_first_and_suspects_last, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	int first = -1, seen = 0;
	size_t n;
	const char *hosts[] = { "left", "right", "far" };
	for (int h = 0; h < 3; h++) {
		r->h[h].host = hosts[h];
		rig_register(r, h);
	}
	rig_run(r);
	cr_assert_eq(put_many(r, "a", 0, 3, 3), ERR_NONE);
	for (int i = 0; i < 12; i++)
		for (int h = 0; h < 3; h++) {
			first_of(r, "a", hosts[h], &first, &n);
			cr_assert_eq(first, h);
			cr_assert_eq(n, 3);
		}
	for (int i = 0; i < 12; i++) {
		first_of(r, "a", "elsewhere", &first, &n);
		seen |= 1 << first;
	}
	cr_assert_eq(seen, 7, "in turn where all are as far");
	mind_suspect(r->m, BYTES_STR("h1"), true);
	for (int i = 0; i < 12; i++) {
		first_of(r, "a", "right", &first, &n);
		cr_assert_neq(first, 1);
		cr_assert_eq(n, 3);
	}
	rig_free(r);
	NO_LEAKS();
}

Test(copy, further_copies_go_to_other_hosts_first, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	r->h[0].host = r->h[1].host = "left";
	r->h[2].host = "right";
	for (int h = 0; h < 3; h++)
		rig_register(r, h);
	rig_run(r);
	char key[16];
	for (int i = 0; i < 8; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_assert_eq(put_many(r, key, i % 2, 2, 1 + i / 4), ERR_NONE);
		cr_assert(rig_has(r, 2, key), "%s", key);
	}
	rig_free(r);
	NO_LEAKS();
}

Test(copy, a_quota_counts_copies_before_they_are_made, .timeout = 10)
{
	const struct mind_quota q = { BYTES_STR("t"), .memory = 3 * 1024 };
	struct mind_limits l = { .quotas = &q, .n_quotas = 1 };
	struct rig *r = rig_bare(&l);
	struct many x;
	rig_register(r, 0);
	rig_register(r, 1);
	rig_run(r);
	cr_assert_eq(put_many(r, "a", 0, 2, 2), ERR_NONE);
	/* the second evicts the first: the tenant's own */
	cr_assert_eq(many_start(r, &x, "b", 1000, 0, 2, 2), ERR_TIMED_OUT);
	rig_run(r);
	rig_pass(r, 200);
	rig_run(r);
	cr_assert_eq(x.p.done, 1);
	cr_assert_eq(x.p.p.call.err, ERR_NONE);
	cr_assert_eq(many_end(r, &x), ERR_NONE);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_replicas(r, "b", NULL), 2);
	/* best effort goes no further than it */
	rig_free(r);
	NO_LEAKS();
}

static int n_facts;
static char all_facts[4096];

static void on_fact(void *arg, const char *name, const char *value)
{
	n_facts++;
	size_t n = strlen(all_facts);
	snprintf(all_facts + n, sizeof(all_facts) - n, "%s=%s\n", name, value);
}

Test(copy, explain_tells_of_copies, .timeout = 10)
{
	struct rig *r = rig_new();
	hold_copies(r, COPIES_HELD);
	cr_assert_eq(put_many(r, "a", 0, 2, 1), ERR_NONE);
	mind_explain(r->m, BYTES_STR("t"), BYTES_STR("a"), on_fact, NULL);
	cr_assert(strstr(all_facts, "replicas=1 of 2"), "%s", all_facts);
	cr_assert(strstr(all_facts, "to h1, being fetched"), "%s", all_facts);
	rig_free(r);
	NO_LEAKS();
}
