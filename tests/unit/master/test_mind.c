/* SPDX-License-Identifier: Apache-2.0 */
/* Puts, gets, removes of the mind, with two holders that do as they should. */
#include <criterion/criterion.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

Test(mind, put_get_remove, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0, got = 0;
	cr_assert_eq(rig_get(r, "k", &got), ERR_NOT_FOUND);
	cr_assert_eq(rig_put_v(r, "k", 0, false, &v), ERR_NONE);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NONE);
	cr_assert_eq(got, v);
	cr_assert_eq(rig_put(r, "k", 1, false), ERR_ALREADY_EXISTS);
	cr_assert_eq(rig_remove(r, "k"), ERR_NONE);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 0, 2), 0, "the slot is empty again");
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, upsert_replaces_and_frees, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v1 = 0, v2 = 0, got = 0;
	cr_assert_eq(rig_put_v(r, "k", 0, false, &v1), ERR_NONE);
	cr_assert_eq(rig_put_v(r, "k", 1, true, &v2), ERR_NONE);
	cr_assert_gt(v2, v1);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NONE);
	cr_assert_eq(got, v2);
	cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 0, 2), 0);
	cr_assert_eq(rig_counts(r).objects, 1);
	cr_assert_eq(rig_counts(r).copies, 1);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, restart_serves_what_was_published, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0, got = 0;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &v), ERR_NONE);
	cr_assert_eq(rig_put(r, "b", 1, false), ERR_NONE);
	rig_restart(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_RECOVERING);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v);
	cr_assert_eq(rig_get(r, "b", NULL), ERR_NONE);
	cr_assert_eq(rig_get(r, "c", NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, away_and_back, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0, got = 0;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &v), ERR_NONE);
	cr_assert_eq(rig_put(r, "b", 0, false), ERR_NONE);
	rig_away(r, 0);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_remove(r, "b"), ERR_NONE);
	rig_reborn(r, 0);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v);
	cr_assert_eq(rig_get(r, "b", NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

/* A new version COMMITTED at h1, its PUBLISH sent; the old one at h0, whose RETIRE is under way. */
static struct rig *in_t2(struct rig_put *p, uint64_t *v1)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put_v(r, "k", 0, false, v1), ERR_NONE);
	rig_start(r, p, "k", 100, 1, true);
	cr_assert_eq(rig_commit(r, p), ERR_NONE);
	rig_publish(r, p);
	cr_assert_eq(rig_waiting(r, MIND_RETIRE), 1);
	return r;
}

Test(mind, t2_readers_see_the_old_version_until_the_third_step, .timeout = 10)
{
	struct rig_put p;
	uint64_t v1, got = 0;
	struct rig *r = in_t2(&p, &v1);
	cr_assert_eq(p.published, 0);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NONE);
	cr_assert_eq(got, v1);
	rig_deliver(r, 0, false);
	cr_assert_eq(p.published, 1);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NONE);
	cr_assert_eq(got, p.p.version);
	rig_run(r);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, t2_survives_the_master_at_any_message, .timeout = 10)
{
	for (int n = 0; n < 4; n++) {
		struct rig_put p;
		uint64_t v1, got = 0;
		struct rig *r = in_t2(&p, &v1);
		for (int i = 0; i < n && r->n_cmds > 0; i++)
			rig_deliver(r, 0, false);
		bool acked = p.published;
		rig_restart(r);
		cr_assert_eq(rig_get(r, "k", NULL), ERR_RECOVERING);
		rig_run(r);
		cr_assert_eq(rig_get(r, "k", &got), ERR_NONE);
		cr_assert_eq(got, p.p.version, "acknowledged: %d", acked);
		cr_assert_eq(rig_counts(r).copies, 1 + (rig_slots(r, 0, 2) > 0));
		rig_free(r);
	}
	NO_LEAKS();
}

Test(mind, t3_a_remove_waits_for_every_holder_that_is_in, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	cr_assert_eq(rig_put(r, "k", 0, false), ERR_NONE);
	rig_remove_start(r, &x, "k");
	rig_lose(r, -1, -1);
	rig_run(r);
	cr_assert_eq(x.done, 0);
	cr_assert_eq(rig_slots(r, 0, 1), 1);
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r);
	cr_assert_eq(x.done, 1);
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, t3_or_for_its_tombstone, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	cr_assert_eq(rig_put(r, "k", 0, false), ERR_NONE);
	r->h[0].up = false;
	rig_remove_start(r, &x, "k");
	rig_run(r);
	cr_assert_eq(x.done, 0);
	mind_away(r->m, BYTES_STR("h0"));
	cr_assert_eq(x.done, 0);
	rig_appends(r);
	rig_run(r);
	cr_assert_eq(x.done, 1);
	cr_assert_gt(meta_barred(meta_holder_find(r->st, BYTES_STR("h0")), 0, BYTES_STR("t"),
				 BYTES_STR("k")),
		     0);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, case_015_of_64_writers_one_wins, .timeout = 10)
{
	struct rig *r = rig_new();
	static struct rig_put p[64];
	int won = -1;
	for (int i = 0; i < 64; i++) {
		r->client[15] = (uint8_t)i;
		rig_start(r, &p[i], "k", 1000, i % 2, false);
		if (p[i].p.call.err != ERR_NONE) {
			cr_assert_eq(p[i].p.call.err, ERR_BUSY_WRITING);
			continue;
		}
		cr_assert_eq(won, -1);
		won = i;
	}
	cr_assert_eq(rig_commit(r, &p[won]), ERR_NONE);
	rig_publish(r, &p[won]);
	cr_assert_eq(p[won].pub.err, ERR_NONE);
	for (int i = 0; i < 64; i++) {
		r->client[15] = (uint8_t)i;
		rig_start(r, &p[i], "k", 1000, i % 2, false);
		cr_assert_eq(p[i].p.call.err, ERR_ALREADY_EXISTS);
	}
	rig_free(r);
	NO_LEAKS();
}

Test(mind, case_014_a_late_end_changes_nothing, .timeout = 10)
{
	struct rig *r = rig_new();
	const struct mind_who w = rig_who(r);
	struct rig_put a, b;
	rig_start(r, &a, "k", 100, 0, false);
	rig_pass(r, 30001); /* time out */
	rig_run(r);
	rig_start(r, &b, "k", 100, 0, false);
	cr_assert_eq(b.p.call.err, ERR_NONE);
	cr_assert_eq(rig_commit(r, &a), ERR_STALE_ATTEMPT);
	cr_assert_eq(mind_put_revoke(r->m, &w, a.it.attempt, a.p.version), ERR_NONE);
	cr_assert_eq(mind_put_revoke(r->m, &w, b.it.attempt, a.p.version), ERR_STALE_ATTEMPT);
	cr_assert_eq(rig_counts(r).attempts, 1);
	cr_assert_eq(rig_commit(r, &b), ERR_NONE);
	rig_publish(r, &b);
	cr_assert_eq(b.pub.err, ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, a_revoked_attempt_with_the_old_holder_away_ends, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_put p;
	rig_start(r, &p, "k", 100, 0, false);
	rig_away(r, 0);
	cr_assert_eq(rig_counts(r).attempts, 0, "at once: its return fences it");
	cr_assert_eq(rig_put(r, "k", 1, false), ERR_NONE);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_commit(r, &p), ERR_STALE_EPOCH);
	rig_free(r);
	NO_LEAKS();
}
