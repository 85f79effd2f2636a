/* SPDX-License-Identifier: Apache-2.0 */
/* The mends V1..V15 of the protocol (docs/decisions/0030), the master's half of each. */
#include <criterion/criterion.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

static struct rig_put start(struct rig *r, const char *key, uint64_t size, int h)
{
	struct rig_put p;
	rig_start(r, &p, key, size, h, true);
	rig_run(r);
	cr_assert_eq(p.p.call.err, ERR_NONE);
	return p;
}

Test(v, v01_ranges_still_written_are_not_given_out, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p = start(r, "a", 40000, 0), q;
	rig_stop(r, &p);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 40960);
	rig_start(r, &q, "b", 1020000, 0, true);
	cr_assert_eq(q.p.call.err, ERR_NONE);
	cr_assert_eq(q.h, 1, "there is no room at h0");
	const struct mind_under u = rig_under(r, 0), old = { 0, u.term, u.adoption + 1, 9 };
	cr_assert_eq(mind_range_free(r->m, rig_holder(r, 0), &old, p.p.version),
		     ERR_STALE_EPOCH);
	cr_assert_eq(mind_range_free(r->m, rig_holder(r, 0), &u, 12345), ERR_NONE);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 40960);
	cr_assert_eq(mind_range_free(r->m, rig_holder(r, 0), &u, p.p.version), ERR_NONE);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 0);
	rig_start(r, &q, "c", 1020000, 0, true);
	cr_assert_eq(q.h, 0);
	mind_check(r->m);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v02_a_fenced_range_is_free_a_written_one_is_not, .timeout = 10)
{
	struct rig *r = rig_new();
	const struct mind_who w = rig_who(r);
	struct rig_put p = start(r, "a", 5000, 0);
	cr_assert_eq(mind_put_revoke(r->m, &w, p.it.attempt, p.p.version), ERR_NONE);
	cr_assert_eq(rig_counts(r).bytes_used, 8192, "not before the holder says so");
	rig_run(r);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	cr_assert_eq(rig_commit(r, &p), ERR_STALE_ATTEMPT);
	p = start(r, "a", 5000, 0);
	rig_stop(r, &p);
	cr_assert_eq(mind_put_revoke(r->m, &w, p.it.attempt, p.p.version), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_counts(r).bytes_used, 8192);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 8192);
	cr_assert_eq(rig_counts(r).attempts, 0);
	cr_assert_eq(rig_put(r, "a", 1, false), ERR_NONE, "the key is free at once");
	rig_free(r);
	NO_LEAKS();
}

Test(v, v02_a_report_that_overtakes_its_fence_is_said_again, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p = start(r, "a", 5000, 0);
	const struct mind_under u = rig_under(r, 0), other = rig_under(r, 1);
	rig_stop(r, &p);
	mind_discard(r->m, p.p.version);
	cr_assert_eq(rig_waiting(r, MIND_FENCE), 1);
	cr_assert_eq(mind_range_free(r->m, rig_holder(r, 0), &u, p.p.version), ERR_RECOVERING);
	cr_assert_eq(mind_range_free(r->m, rig_holder(r, 1), &other, p.p.version), ERR_NONE);
	rig_run(r); /* WRITING */
	cr_assert_eq(rig_counts(r).quarantine_bytes, 8192);
	cr_assert_eq(mind_range_free(r->m, rig_holder(r, 0), &u, p.p.version), ERR_NONE);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 0);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	mind_check(r->m);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v03_confirm_knows_open_attempts_alone, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p = start(r, "a", 100, 0);
	const struct mind_under u = rig_under(r, 0);
	const uint32_t h0 = rig_holder(r, 0), h1 = rig_holder(r, 1);
	struct mind_under other = u;
	other.pool_epoch++;
	cr_assert(mind_open_attempt(r->m, h0, &u, p.p.version));
	cr_assert_not(mind_open_attempt(r->m, h1, &u, p.p.version));
	cr_assert_not(mind_open_attempt(r->m, h0, &other, p.p.version));
	cr_assert_not(mind_open_attempt(r->m, h0, &u, p.p.version + 1));
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.pub.err, ERR_NONE);
	cr_assert_not(mind_open_attempt(r->m, h0, &u, p.p.version));
	p = start(r, "b", 100, 0);
	mind_discard(r->m, p.p.version);
	cr_assert_not(mind_open_attempt(r->m, h0, &u, p.p.version), "being fenced");
	rig_free(r);
	NO_LEAKS();
}

struct counted {
	struct mind_call c;
	int done;
};

static void on_counted(struct mind_call *c)
{
	container_of(c, struct counted, c)->done++;
}

static void on_end(struct mind_call *c)
{
	(void)c;
}

static struct counted *remove_again(struct rig *r, struct counted *x,
				    const struct msg_remove_item *it)
{
	const struct mind_who w = rig_who(r);
	*x = (struct counted){ .c.done = on_counted };
	mind_remove(r->m, &w, it, &x->c);
	return x;
}

Test(v, v04_a_remove_that_comes_twice_removes_once, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove first;
	struct counted dup;
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_remove_start(r, &first, "a");
	cr_assert_eq(first.done, 0);
	remove_again(r, &dup, &first.it); /* joins */
	cr_assert_eq(dup.done, 0);
	rig_run(r);
	cr_assert_eq(first.done + dup.done, 2);
	cr_assert_eq(first.c.err, ERR_NONE);
	cr_assert_eq(dup.c.err, ERR_NONE);
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	cr_assert_eq(remove_again(r, &dup, &first.it)->done, 1);
	cr_assert_eq(dup.c.err, ERR_EXISTS, "DONE");
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v04_numbers_below_the_window_are_closed, .timeout = 10)
{
	struct rig *r = rig_new();
	struct counted x;
	struct msg_remove_item it = { .key = BYTES_STR("nothing") };
	it.attempt = 7;
	remove_again(r, &x, &it);
	it.attempt = 5000;
	remove_again(r, &x, &it);
	rig_run(r);
	for (uint64_t n = 0; n <= 5001; n++) {
		it.attempt = n;
		remove_again(r, &x, &it);
		bool closed = n <= 5000 - 4096 || n == 5000;
		/* each of these closes its own number, and the window stays where it is */
		cr_assert_eq(x.c.err, closed ? ERR_EXISTS : ERR_NONE, "%d", (int)n);
	}
	rig_free(r);
	NO_LEAKS();
}

Test(v, v04_another_term_is_refused, .timeout = 10)
{
	struct rig *r = rig_new();
	struct mind_who w = rig_who(r);
	struct counted x = { .c.done = on_counted };
	struct mind_remove_range rr = { .call.done = on_end };
	struct mind_put put = { .call.done = on_end };
	const struct msg_put_item it = { .attempt = 1, .key = BYTES_STR("a"), .size = 1 };
	const struct msg_remove_item ri = { .attempt = 2, .key = BYTES_STR("a") };
	const struct msg_remove_range_req rq = { .attempt = 3 };
	w.term += 7;
	mind_put_start(r->m, &w, &it, &put);
	cr_assert_eq(put.call.err, ERR_STALE_TERM);
	mind_remove(r->m, &w, &ri, &x.c);
	cr_assert_eq(x.c.err, ERR_STALE_TERM);
	mind_remove_range(r->m, &w, &rq, &rr);
	cr_assert_eq(rr.call.err, ERR_STALE_TERM);
	cr_assert_eq(mind_put_revoke(r->m, &w, 1, 1), ERR_STALE_TERM);
	cr_assert_eq(mind_put_progress(r->m, &w, 1, 1), ERR_STALE_TERM);
	w.term = 0; /* not known yet */
	mind_remove(r->m, &w, &ri, &x.c);
	rig_run(r);
	cr_assert_eq(x.c.err, ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v05_one_number_one_reservation, .timeout = 10)
{
	struct rig *r = rig_new();
	const struct mind_who w = rig_who(r);
	struct rig_put p = start(r, "a", 5000, 0), q = p;
	q.p.version = 0;
	q.done = 0;
	mind_put_start(r->m, &q.who, &q.it, &q.p);
	cr_assert_eq(q.p.version, p.p.version, "a repeat of an open attempt");
	cr_assert_eq(q.p.extents[0].offset, p.p.extents[0].offset);
	cr_assert_eq(rig_counts(r).attempts, 1);
	q.it.key = BYTES_STR("b");
	mind_put_start(r->m, &q.who, &q.it, &q.p);
	cr_assert_eq(q.p.call.err, ERR_INVALID_PARAMS, "one number for two keys");
	cr_assert_eq(mind_put_revoke(r->m, &w, p.it.attempt, p.p.version), ERR_NONE);
	rig_deliver(r, 0, true);
	rig_run(r); /* the second answer finds nothing */
	q.it.key = BYTES_STR("a");
	mind_put_start(r->m, &q.who, &q.it, &q.p);
	cr_assert_eq(q.p.call.err, ERR_EXISTS, "closed: nothing is reserved");
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	cr_assert_eq(mind_put_revoke(r->m, &w, p.it.attempt, p.p.version), ERR_NONE);
	cr_assert_eq(mind_put_revoke(r->m, &w, 999, p.p.version), ERR_STALE_ATTEMPT, "foreign");
	rig_free(r);
	NO_LEAKS();
}

/* v1 published at h0, v2 COMMITTED at h1 and not published; then another master. */
static struct rig *two_versions(uint64_t *v1, uint64_t *v2, bool v2_marked)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put_v(r, "a", 0, false, v1), ERR_NONE);
	struct rig_put p = start(r, "a", 100, 1);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	*v2 = p.p.version;
	r->h[1].slots[p.slot].published = v2_marked;
	rig_restart(r);
	return r;
}

/* Only h1 answers. */
static void merge_h1_alone(struct rig *r)
{
	r->h[0].up = false;
	rig_run(r);
}

Test(v, v06_no_unmarked_version_before_t2, .timeout = 10)
{
	uint64_t v1, v2, got = 0;
	struct rig *r = two_versions(&v1, &v2, false);
	merge_h1_alone(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_RECOVERING);
	r->h[0].up = true;
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v2);
	cr_assert(r->h[1].slots[0].published, "MARK went to its holder");
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v06_a_marked_version_is_served_at_once, .timeout = 10)
{
	uint64_t v1, v2, got = 0;
	struct rig *r = two_versions(&v1, &v2, true);
	merge_h1_alone(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v2);
	rig_free(r);
	r = two_versions(&v1, &v2, false);
	r->h[1].up = false;
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE, "v1 is marked, h0 is merged");
	cr_assert_eq(got, v1);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v07_a_remove_of_an_absent_key_bars_it_at_away_holders, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_away(r, 0);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	struct rig_remove x;
	rig_remove_start(r, &x, "a");
	cr_assert_eq(x.done, 0, "its tombstone is not durable yet");
	cr_assert_eq(r->n_apps, 1);
	rig_run(r);
	cr_assert_eq(x.c.err, ERR_NONE);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 0, 2), 0);
	cr_assert(meta_holder_clear(meta_holder_find(r->st, BYTES_STR("h0")), 0), "SETTLED");
	rig_free(r);
	NO_LEAKS();
}

Test(v, v07_a_put_bars_older_versions_at_away_holders, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_away(r, 0);
	struct rig_put p = start(r, "a", 100, 1);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	cr_assert_eq(p.published, 0, "its tombstone is not durable yet");
	rig_run(r);
	cr_assert_eq(p.published, 1);
	rig_away(r, 1);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND, "not the old version");
	rig_free(r);
	NO_LEAKS();
}

Test(v, v08_unmerged_holders_hold_up_acknowledgements, .timeout = 10)
{
	uint64_t v1, v2, got = 0;
	struct rig *r = two_versions(&v1, &v2, false);
	merge_h1_alone(r);
	struct rig_remove x;
	struct counted pub = { .c.done = on_counted };
	const struct mind_under u = rig_under(r, 1);
	const struct msg_publish_item it = { .slot = 0, .version = v2, .sum = v2 * 31 };
	mind_publish(r->m, rig_holder(r, 1), &u, &it, &pub.c);
	rig_run(r);
	cr_assert_eq(pub.done, 0);
	rig_remove_start(r, &x, "b");
	rig_run(r);
	cr_assert_eq(x.done, 0);
	rig_away(r, 0); /* merged or away: both go on, with tombstones */
	cr_assert_eq(pub.done, 1);
	cr_assert_eq(pub.c.err, ERR_NONE);
	cr_assert_eq(x.done, 1);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v2);
	r->h[0].up = true;
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v2);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v08_a_restarted_holder_holds_up_its_own_keys_alone, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	struct rig_put c = start(r, "c", 100, 0); /* an open attempt */
	rig_reborn(r, 0);
	r->h[0].up = false;
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_put(r, "b", 1, false), ERR_NONE, "it has nothing of b");
	cr_assert_eq(rig_remove(r, "b"), ERR_NONE);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_TEMPORARILY_AWAY);
	rig_remove_start(r, &x, "a");
	rig_run(r);
	cr_assert_eq(x.done, 0);
	cr_assert_eq(rig_remove(r, "c"), ERR_TIMED_OUT);
	r->h[0].up = true;
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r);
	cr_assert_eq(x.done, 1);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_commit(r, &c), ERR_STALE_EPOCH);
	cr_assert_eq(rig_counts(r).attempts, 0, "the epoch has fenced it");
	rig_free(r);
	NO_LEAKS();
}

Test(v, v09_answers_of_an_older_adoption_change_nothing, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v1 = 0, got = 0;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &v1), ERR_NONE);
	const struct mind_under old = rig_under(r, 0);
	struct rig_remove x;
	rig_remove_start(r, &x, "a"); /* RETIRE is under way */
	cr_assert_eq(rig_waiting(r, MIND_RETIRE), 1);
	cr_assert_eq(r->cmds[0].c.under.pool_epoch, old.pool_epoch);
	mind_beat_epoch(r->m, BYTES_STR("h0"), ++r->h[0].epoch);
	mind_retired(r->m, rig_holder(r, 0), &old, 0, 0, v1, ERR_NONE);
	cr_assert_eq(x.done, 0);
	rig_lose(r, 0, MIND_RETIRE);
	rig_deliver(r, 0, false);
	rig_deliver(r, 0, false); /* adopted and merged: the slot is COMMITTED still */
	mind_retired(r->m, rig_holder(r, 0), &old, 0, 0, v1, ERR_NONE);
	cr_assert_eq(x.done, 0);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	rig_run(r); /* RETIRE was said again under the new adoption */
	cr_assert_eq(x.done, 1);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v10_adoptions_are_counted_and_late_ones_dropped, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	const struct mind_segment seg = { 0, 1 << 20, 1 << 20 };
	rig_register(r, 0);
	rig_appends(r);
	cr_assert_eq(r->cmds[0].c.op, MIND_ADOPT);
	const struct mind_under first = r->cmds[0].c.under;
	rig_away(r, 0);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_gt(r->h[0].adoption, first.adoption);
	struct mind_under late = first;
	late.pool_epoch = 77;
	mind_adopted(r->m, rig_holder(r, 0), &late, &seg, 1);
	struct mind_holder h;
	cr_assert(mind_holder(r->m, 0, &h));
	cr_assert(h.merged);
	cr_assert_eq(h.under.pool_epoch, r->h[0].epoch);
	mind_beat_epoch(r->m, BYTES_STR("h0"), r->h[0].epoch - 1);
	cr_assert_eq(r->n_cmds, 0, "an old beat");
	mind_beat_epoch(r->m, BYTES_STR("h0"), r->h[0].epoch + 5);
	cr_assert_eq(r->n_cmds, 1);
	cr_assert_eq(r->cmds[0].c.op, MIND_ADOPT);
	cr_assert_gt(r->cmds[0].c.under.adoption, h.under.adoption);
	r->h[0].epoch += 5;
	rig_run(r);
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v10_inventories_of_another_adoption_are_dropped, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	rig_register(r, 0);
	rig_appends(r);
	rig_deliver(r, 0, false); /* adopted: INVENTORY is asked for */
	struct msg_under u = { 0, r->h[0].term, r->h[0].adoption, r->h[0].epoch + 1 };
	struct msg_inventory_rep rep = { .under = &u };
	mind_inventory(r->m, 0, &rep);
	struct mind_holder h;
	cr_assert(mind_holder(r->m, 0, &h));
	cr_assert_not(h.merged);
	rep.under = NULL;
	mind_inventory(r->m, 0, &rep);
	cr_assert_not((mind_holder(r->m, 0, &h), h.merged));
	u.pool_epoch--;
	rep.under = &u;
	mind_inventory(r->m, 0, &rep);
	cr_assert((mind_holder(r->m, 0, &h), h.merged));
	rig_free(r);
	NO_LEAKS();
}

/* h0 has a and b; over its budget while it is away. */
static struct rig *floored(void)
{
	struct rig *r = rig_new();
	r->meta.tombs_max = 1;
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	cr_assert_eq(rig_put(r, "b", 0, false), ERR_NONE);
	rig_away(r, 0);
	cr_assert_eq(rig_remove(r, "x"), ERR_NONE);
	cr_assert_eq(rig_remove(r, "y"), ERR_NONE);
	cr_assert_gt(meta_floor(meta_holder_find(r->st, BYTES_STR("h0")), 0), 0);
	return r;
}

Test(v, v11_under_a_floor_nothing_is_served_or_published, .timeout = 10)
{
	struct rig *r = floored();
	uint64_t va = r->h[0].slots[0].version;
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_get(r, "b", NULL), ERR_NOT_FOUND);
	cr_assert(meta_holder_clear(meta_holder_find(r->st, BYTES_STR("h0")), 0));
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE, "new ones are above it");
	struct counted pub = { .c.done = on_counted };
	const struct mind_under u = rig_under(r, 0);
	const struct msg_publish_item it = { .slot = 0, .version = va };
	mind_publish(r->m, rig_holder(r, 0), &u, &it, &pub.c);
	rig_run(r);
	cr_assert_eq(pub.c.err, ERR_STALE_ATTEMPT);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v11_a_publish_that_waits_ends_when_its_holder_goes, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put(r, "a", 1, false), ERR_NONE);
	struct rig_put p = start(r, "a", 100, 0);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	r->h[1].up = false; /* RETIRE is not answered */
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.published, 0);
	rig_away(r, 0);
	cr_assert_eq(p.published, 1);
	cr_assert_eq(p.pub.err, ERR_STALE_EPOCH, "never acknowledged");
	rig_free(r);
	NO_LEAKS();
}

Test(v, v11_v14_floors_and_tombstones_outlive_the_return, .timeout = 10)
{
	for (int with_floor = 0; with_floor < 2; with_floor++) {
		struct rig *r = rig_new();
		r->meta.tombs_max = with_floor ? 1 : 100;
		cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
		rig_away(r, 0);
		cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
		cr_assert_eq(rig_remove(r, "z"), ERR_NONE);
		rig_register(r, 0);
		rig_appends(r); /* in, by the roster; not adopted */
		rig_restart(r);
		rig_run(r);
		cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND, "floor: %d", with_floor);
		cr_assert_eq(rig_slots(r, 0, 1), 0);
		rig_free(r);
	}
	NO_LEAKS();
}

Test(v, v11_settled_waits_for_the_holder, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_away(r, 0);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	const struct meta_holder *h = meta_holder_find(r->st, BYTES_STR("h0"));
	rig_register(r, 0);
	while (rig_waiting(r, MIND_RETIRE) == 0) { /* merged; RETIRE under way */
		rig_appends(r);
		mind_work(r->m);
		if (rig_waiting(r, MIND_RETIRE) == 0)
			rig_deliver(r, 0, false);
	}
	rig_lose(r, 0, MIND_RETIRE);
	rig_run(r);
	cr_assert_not(meta_holder_clear(h, 0), "it has not acknowledged");
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert(meta_holder_clear(h, 0));
	rig_free(r);
	NO_LEAKS();
}

Test(v, v12_a_key_with_versions_that_wait_is_never_not_found, .timeout = 10)
{
	uint64_t v1, v2, got = 0;
	struct rig *r = two_versions(&v1, &v2, false);
	r->h[0].slots[0].published = false;
	for (int i = 0; i < 100 && rig_waiting(r, MIND_RETIRE) == 0; i++) {
		rig_appends(r);
		mind_work(r->m);
		if (rig_waiting(r, MIND_RETIRE) == 0)
			rig_deliver(r, 0, false);
		cr_assert_eq(rig_get(r, "a", &got), ERR_RECOVERING);
	}
	cr_assert_not(rig_counts(r).recovering, "all are merged");
	rig_lose(r, -1, -1);
	cr_assert_eq(rig_get(r, "a", &got), ERR_RECOVERING);
	mind_resend(r->m, rig_holder(r, 0));
	mind_resend(r->m, rig_holder(r, 1));
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v2);
	rig_free(r);
	NO_LEAKS();
}

/* Further replicas are unfinished copies; with one replica the only one is an attempt whose holder
 * has restarted: what became of it is waited for. */
Test(v, v13_an_unfinished_copy_holds_up_a_remove, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p = start(r, "a", 100, 0);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE); /* PUBLISH is lost */
	rig_reborn(r, 0);
	r->h[0].up = false;
	rig_register(r, 0);
	rig_run(r);
	struct rig_remove x;
	rig_remove_start(r, &x, "a");
	rig_run(r);
	cr_assert_eq(x.done, 0);
	r->h[0].up = true;
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r);
	cr_assert_eq(x.done, 1);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(v, v15_an_unknown_publish_changes_nothing, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p = start(r, "a", 100, 0);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	struct fake_slot slot = r->h[0].slots[p.slot];
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.pub.err, ERR_NONE);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	struct counted pub = { .c.done = on_counted };
	const struct mind_under u = rig_under(r, 0);
	for (uint64_t n = 0; n < 1000; n++) { /* late, doubled, foreign */
		const struct msg_publish_item it = { .slot = (uint32_t)(p.slot + n % 3),
						     .generation = slot.generation + n % 2,
						     .version = slot.version + n / 500,
						     .sum = slot.sum,
						     .retired = n % 5 == 0 };
		mind_publish(r->m, rig_holder(r, n % 7 == 0), &u, &it, &pub.c);
		rig_run(r);
		cr_assert(pub.c.err == ERR_STALE_ATTEMPT || pub.c.err == ERR_STALE_EPOCH);
	}
	cr_assert_eq(pub.done, 1000);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_counts(r).copies, 0);
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}
