/* SPDX-License-Identifier: Apache-2.0 */
/* Space: leases, eviction (B2), waiting puts, FREE after a failover, quarantine, limits. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

static struct rig *one_holder(uint64_t bytes)
{
	struct rig *r = rig_bare(NULL);
	r->h[0].bytes = bytes;
	rig_register(r, 0);
	rig_run(r);
	return r;
}

static enum err put_opts(struct rig *r, const char *key, uint64_t size,
			 const struct msg_put_opts *o)
{
	struct rig_put p;
	r->opts = (struct msg_put_opts *)o;
	rig_start(r, &p, key, size, -1, false);
	r->opts = NULL;
	rig_run(r);
	if (!p.done) {
		mind_drop(r->m, &p.p.call);
		return ERR_TIMED_OUT;
	}
	if (p.p.call.err != ERR_NONE)
		return p.p.call.err;
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.published, 1);
	r->h[p.h].slots[p.slot].published = true;
	return p.pub.err;
}

static enum err put(struct rig *r, const char *key, uint64_t size)
{
	return put_opts(r, key, size, NULL);
}

static enum err use(struct rig *r, const char *key, uint32_t lease_ms, uint64_t *version)
{
	struct mind_object o;
	enum err e = mind_lookup(r->m, BYTES_STR("t"), BYTES_STR(key), lease_ms, BYTES(NULL, 0),
				 &o, NULL);
	if (e == ERR_NONE && version)
		*version = o.version;
	return e;
}

/* B2: small objects fill a holder's slots before its bytes; the watermark and puts make room there, too. */
Test(space, slots_fill_before_bytes, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	char key[16];
	r->h[0].bytes = 1 << 20;
	r->h[0].n_slots = 32;
	rig_register(r, 0);
	rig_run(r);
	for (unsigned i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		cr_assert_eq(put(r, key, i % 3 ? 100 : 0), ERR_NONE, "%s", key);
		cr_assert_eq(use(r, key, 0, NULL), ERR_NONE, "%s", key);
		struct mind_counts c = rig_counts(r);
		cr_assert_leq(c.copies + c.attempts, 32, "%s", key);
		rig_pass(r, 20);
		rig_run(r);
	}
	cr_assert_gt(rig_counts(r).objects, 16, "no more than what has to go");
	cr_assert_gt(rig_counts(r).evictions, 100);
	rig_free(r);
	NO_LEAKS();
}

/* Objects of no bytes give no bytes back: a round is of slots then, and the watermark rests between two. */
Test(space, slots_full_of_nothing, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	char key[16];
	r->h[0].bytes = 1 << 20;
	r->h[0].n_slots = 100;
	rig_register(r, 0);
	rig_run(r);
	for (unsigned i = 0; i < 400; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		cr_assert_eq(put(r, key, 0), ERR_NONE, "%s", key);
		rig_pass(r, 20);
		rig_run(r);
		cr_assert_gt(mind_due_ns(r->m), r->now, "%s: nothing is left to be done", key);
		if (i > 100)
			cr_assert_geq(rig_counts(r).objects, 80, "%s", key);
	}
	cr_assert_leq(rig_counts(r).objects, 90);
	rig_free(r);
	NO_LEAKS();
}

Test(space, slots_full_of_leases_and_pins, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	const struct msg_put_opts pin = { .hard_pin = true };
	char key[16];
	r->h[0].bytes = 1 << 20;
	r->h[0].n_slots = 16;
	rig_register(r, 0);
	rig_run(r);
	for (unsigned i = 0; i < 16; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		cr_assert_eq(put_opts(r, key, 100, i < 15 ? &pin : NULL), ERR_NONE, "%s", key);
		cr_assert_eq(use(r, key, 5000, NULL), ERR_NONE);
	}
	struct rig_put p;
	rig_start(r, &p, "one more", 100, -1, false);
	rig_run(r);
	cr_assert(p.done);
	cr_assert_eq(p.p.call.err, ERR_BUSY);
	cr_assert_gt(p.p.call.retry_ms, 0, "when the lease ends");
	cr_assert_eq(rig_counts(r).evictions, 0);
	rig_pass(r, 6000);
	cr_assert_eq(put_opts(r, "one more", 100, &pin), ERR_NONE);
	rig_start(r, &p, "too many", 100, -1, false);
	rig_run(r);
	cr_assert(p.done);
	cr_assert_eq(p.p.call.err, ERR_POOL_PINNED);
	rig_free(r);
	NO_LEAKS();
}

/* A hint: of keys that are there, and not, and of tenants that nobody knows; as many as one likes. */
Test(space, warmed_keys_are_as_they_were, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	struct bytes keys[MIND_WARM + 4];
	char text[MIND_WARM + 4][8];
	mind_warm(r->m, BYTES_STR("t"), keys, 0);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		snprintf(text[i], sizeof(text[i]), "k%zu", i);
		keys[i] = BYTES_STR(text[i]);
		if (i % 2)
			cr_assert_eq(put(r, text[i], 4096), ERR_NONE);
	}
	struct mind_counts was = rig_counts(r);
	mind_warm(r->m, BYTES_STR("t"), keys, ARRAY_LEN(keys));
	mind_warm(r->m, BYTES_STR("nobody"), keys, ARRAY_LEN(keys));
	struct mind_counts is = rig_counts(r);
	cr_assert_eq(memcmp(&was, &is, sizeof(was)), 0);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		cr_assert_eq(use(r, text[i], 0, NULL), i % 2 ? ERR_NONE : ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

/* ---- leases ---- */

Test(space, a_removed_object_vanishes_at_once_and_its_space_later, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	cr_assert_eq(put(r, "a", 5000), ERR_NONE);
	cr_assert_eq(use(r, "a", 10000, NULL), ERR_NONE);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	cr_assert_eq(use(r, "a", 10000, NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, 0, 2), 1, "RETIRED, not freed");
	rig_pass(r, 9999);
	rig_run(r);
	cr_assert_eq(rig_counts(r).bytes_used, 8192);
	cr_assert_leq(mind_due_ns(r->m), r->now + 40000000);
	rig_pass(r, 40);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2), 0);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(space, leases_are_given_back_and_prolonged, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	uint64_t v = 0;
	cr_assert_eq(put(r, "a", 100), ERR_NONE);
	cr_assert_eq(use(r, "a", 0, &v), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("b")), ERR_NOT_FOUND);
	cr_assert_eq(use(r, "a", 1000, &v), ERR_NONE);
	cr_assert_eq(use(r, "a", 5000, &v), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_BUSY);
	cr_assert_eq(mind_release(r->m, BYTES_STR("t"), BYTES_STR("a"), v), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_BUSY,
		     "another reads");
	cr_assert_eq(mind_release(r->m, BYTES_STR("t"), BYTES_STR("a"), v + 1), ERR_LEASE_LOST);
	cr_assert_eq(mind_renew(r->m, BYTES_STR("t"), BYTES_STR("a"), v + 1, 1),
		     ERR_LEASE_LOST);
	cr_assert_eq(mind_renew(r->m, BYTES_STR("t"), BYTES_STR("a"), v, 1000000), ERR_NONE);
	rig_pass(r, 59000);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_BUSY,
		     "60 s at most");
	cr_assert_eq(mind_release(r->m, BYTES_STR("t"), BYTES_STR("a"), v), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a")), ERR_NONE);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NONE, "until RETIRE is acknowledged");
	rig_run(r);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NOT_FOUND);
	cr_assert_eq(mind_release(r->m, BYTES_STR("t"), BYTES_STR("a"), v), ERR_LEASE_LOST);
	cr_assert_eq(rig_counts(r).evictions, 1);
	rig_free(r);
	NO_LEAKS();
}

Test(space, after_a_failover_free_waits_for_the_longest_lease, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	cr_assert_eq(put(r, "a", 5000), ERR_NONE);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	cr_assert_eq(rig_slots(r, 0, 2), 1);
	rig_pass(r, 59000);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2), 1);
	rig_pass(r, 1001);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(space, unless_space_is_below_the_low_reserve, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	cr_assert_eq(put(r, "a", 1 << 19), ERR_NONE);
	cr_assert_eq(put(r, "b", (1 << 19) - 8192), ERR_NONE);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(put(r, "c", 1 << 18), ERR_NONE, "evicted and freed at once");
	rig_free(r);
	NO_LEAKS();
}

/* What the low reserve hurries is due at once, and what waits for space is looked at again in time. */
Test(space, a_put_that_waits_is_due, .timeout = 10)
{
	const struct mind_limits l = { .high_watermark = 1 };
	struct rig *r = rig_bare(&l);
	struct rig_put p;
	r->h[0].bytes = 1 << 20;
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(put(r, "a", 512000), ERR_NONE);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	cr_assert_eq(put(r, "b", 520000), ERR_NONE);
	cr_assert_eq(rig_slots(r, 0, 2), 1, "a waits for leases of before");
	cr_assert_gt(mind_due_ns(r->m), r->now);
	rig_start(r, &p, "c", 100000, -1, false);
	cr_assert_eq(p.done, 0);
	cr_assert_leq(mind_due_ns(r->m), r->now);
	mind_work(r->m);
	cr_assert_gt(mind_due_ns(r->m), r->now);
	r->now += 100 * 1000000ull;
	mind_clock(r->m, r->now);
	cr_assert_leq(mind_due_ns(r->m), r->now);
	rig_run(r);
	cr_assert_eq(p.done, 1);
	cr_assert_eq(p.p.call.err, ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* ---- eviction ---- */

Test(space, the_one_used_longest_ago_goes, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	for (char k[2] = "a"; k[0] <= 'c'; k[0]++)
		cr_assert_eq(put(r, k, 300000), ERR_NONE);
	cr_assert_eq(use(r, "a", 1, NULL), ERR_NONE);
	cr_assert_eq(use(r, "b", 0, NULL), ERR_NONE, "a probe is no use (B3)");
	rig_pass(r, 100);
	cr_assert_eq(put(r, "d", 300000), ERR_NONE, "B2");
	cr_assert_eq(use(r, "b", 0, NULL), ERR_NOT_FOUND);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NONE);
	cr_assert_eq(use(r, "c", 0, NULL), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(space, above_the_watermark_a_twentieth_goes, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	char k[8];
	for (int i = 0; i < 240; i++) {
		snprintf(k, sizeof(k), "k%d", i);
		cr_assert_eq(put(r, k, 4096), ERR_NONE);
		cr_assert_leq(rig_counts(r).bytes_used, (1 << 20) * 0.91);
	}
	cr_assert_eq(use(r, "k0", 0, NULL), ERR_NOT_FOUND);
	cr_assert_eq(use(r, "k239", 0, NULL), ERR_NONE);
	cr_assert_geq(rig_counts(r).objects, 210);
	rig_free(r);
	NO_LEAKS();
}

/* The pool is all holders' together: while some are still to be merged nothing is too full. */
Test(space, after_a_restart_nothing_goes_for_the_watermark_until_all_are_merged, .timeout = 10)
{
	struct rig *r = rig_new();
	char k[8];
	for (int i = 0; i < 245; i++) { /* h0: 96 %, both: 48 % */
		struct rig_put p;
		snprintf(k, sizeof(k), "k%d", i);
		rig_start(r, &p, k, 4096, 0, false);
		cr_assert_eq(rig_commit(r, &p), ERR_NONE);
		rig_publish(r, &p);
		r->h[0].slots[p.slot].published = true;
	}
	rig_run(r);
	r->h[1].up = false;
	rig_restart(r);
	rig_register(r, 0);
	for (int i = 0; i < 5; i++) {
		rig_run(r);
		rig_pass(r, 500);
	}
	r->h[1].up = true;
	rig_register(r, 1);
	rig_run(r);
	cr_assert_eq(rig_counts(r).evictions, 0);
	cr_assert_eq(rig_counts(r).objects, 245);
	rig_free(r);
	NO_LEAKS();
}

/* What goes after a restart waits for leases of before, a minute: it is not in use any more all the same. */
Test(space, after_a_restart_a_twentieth_goes_once, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	char k[8];
	for (int i = 0; i < 228; i++) { /* 89 % */
		snprintf(k, sizeof(k), "k%d", i);
		cr_assert_eq(put(r, k, 4096), ERR_NONE);
	}
	rig_restart(r);
	rig_run(r);
	for (int i = 0; i < 4; i++) {
		snprintf(k, sizeof(k), "n%d", i);
		cr_assert_eq(put(r, k, 4096), ERR_NONE);
	}
	for (int i = 0; i < 50; i++) {
		rig_pass(r, 200);
		rig_run(r);
	}
	cr_assert(rig_counts(r).evictions > 10 && rig_counts(r).evictions < 16, "%u",
		  (unsigned)rig_counts(r).evictions);
	cr_assert_gt(rig_slots(r, 0, 2), 10, "RETIRED, not freed");
	rig_pass(r, 61000);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2), 0);
	rig_free(r);
	NO_LEAKS();
}

/* Nobody calls the mind for the watermark's sake but who asks when it is due. */
Test(space, above_the_watermark_it_is_due, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	cr_assert_eq(put(r, "a", 500000), ERR_NONE);
	cr_assert_eq(use(r, "a", 5000, NULL), ERR_NONE);
	cr_assert_gt(mind_due_ns(r->m), r->now + 1000000000ull);
	struct rig_put p;
	rig_start(r, &p, "b", 500000, -1, false);
	cr_assert(p.done && p.p.call.err == ERR_NONE);
	cr_assert_leq(mind_due_ns(r->m), r->now);
	mind_work(r->m);
	uint64_t due = mind_due_ns(r->m);
	cr_assert(due > r->now && due <= r->now + 200000000ull,
		  "nothing may go: not at once again, for ever");
	rig_pass(r, 5500);
	cr_assert_leq(mind_due_ns(r->m), r->now);
	rig_run(r);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NOT_FOUND);
	cr_assert_gt(mind_due_ns(r->m), r->now + 1000000000ull);
	rig_free(r);
	NO_LEAKS();
}

/* An agent that has just started mounts its memory in slices. */
Test(space, nothing_goes_for_want_of_memory_that_is_being_mounted, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	struct rig_put p;
	r->h[0].bytes = 1 << 18;
	r->h[0].whole = 1 << 20;
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(put(r, "a", 256000), ERR_NONE);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NONE, "the whole of what is ready is in use");
	rig_start(r, &p, "b", 256000, -1, false);
	rig_run(r);
	cr_assert_eq(p.done, 0, "it waits");
	r->h[0].bytes = 1 << 19;
	rig_register(r, 0);
	rig_run(r);
	cr_assert(p.done && p.p.call.err == ERR_NONE);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NONE);
	rig_pass(r, 4000);
	rig_start(r, &p, "c", 256000, -1, false);
	rig_run(r);
	cr_assert_eq(p.done, 0);
	rig_pass(r, 1001);
	rig_run(r);
	cr_assert(p.done && p.p.call.err == ERR_NONE,
		  "no slice for so long: no more will come");
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(space, all_leased_is_busy_with_a_time, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	struct rig_put p;
	cr_assert_eq(put(r, "a", 400000), ERR_NONE);
	cr_assert_eq(put(r, "b", 400000), ERR_NONE);
	cr_assert_eq(use(r, "a", 5000, NULL), ERR_NONE);
	cr_assert_eq(use(r, "b", 9000, NULL), ERR_NONE);
	rig_start(r, &p, "c", 400000, -1, false);
	cr_assert_eq(p.p.call.err, ERR_BUSY);
	cr_assert(p.p.call.retry_ms > 4900 && p.p.call.retry_ms < 5100);
	rig_pass(r, p.p.call.retry_ms);
	cr_assert_eq(put(r, "c", 400000), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(space, hard_pins_stay_soft_pins_go_last, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	const struct msg_put_opts hard = { .hard_pin = true }, soft = { .soft_pin_ms = 60000 };
	cr_assert_eq(put_opts(r, "soft", 300000, &soft), ERR_NONE);
	cr_assert_eq(put_opts(r, "hard", 300000, &hard), ERR_NONE);
	cr_assert_eq(put(r, "plain", 300000), ERR_NONE);
	cr_assert_eq(put_opts(r, "hard2", 300000, &hard), ERR_NONE);
	cr_assert_eq(use(r, "plain", 0, NULL), ERR_NOT_FOUND);
	cr_assert_eq(use(r, "soft", 0, NULL), ERR_NONE);
	cr_assert_eq(put_opts(r, "hard3", 300000, &hard), ERR_NONE);
	cr_assert_eq(use(r, "soft", 0, NULL), ERR_NOT_FOUND);
	cr_assert_eq(put(r, "more", 300000), ERR_POOL_PINNED);
	cr_assert_eq(rig_remove(r, "hard"), ERR_POOL_PINNED);
	struct rig_remove x = { .it = { .key = BYTES_STR("hard"), .force = true } };
	const struct mind_who w = rig_who(r);
	rig_remove_start(r, &x, "nothing");
	rig_run(r);
	x.it = (struct msg_remove_item){ .attempt = 999,
					 .key = BYTES_STR("hard"),
					 .force = true };
	mind_remove(r->m, &w, &x.it, &x.c);
	rig_run(r);
	cr_assert_eq(x.c.err, ERR_NONE);
	cr_assert_eq(put(r, "more", 300000), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(space, a_soft_pin_ends, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	const struct msg_put_opts soft = { .soft_pin_ms = 1000 };
	cr_assert_eq(put_opts(r, "soft", 400000, &soft), ERR_NONE);
	cr_assert_eq(put(r, "plain", 400000), ERR_NONE);
	rig_pass(r, 1001);
	cr_assert_eq(put(r, "new", 400000), ERR_NONE);
	cr_assert_eq(use(r, "plain", 0, NULL), ERR_NONE);
	cr_assert_eq(use(r, "soft", 0, NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(space, too_large_before_anything_is_evicted, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	cr_assert_eq(put(r, "a", 900000), ERR_NONE);
	cr_assert_eq(put(r, "b", (1 << 20) + 1), ERR_TOO_LARGE);
	cr_assert_eq(put(r, "b", OBJ_SIZE_MAX + 1), ERR_TOO_LARGE);
	cr_assert_eq(rig_counts(r).evictions, 0);
	cr_assert_eq(put(r, "b", 1 << 20), ERR_NONE, "the whole segment");
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(space, a_put_waits_for_the_answer_of_a_slow_holder, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	struct rig_put p, q;
	cr_assert_eq(put(r, "a", 900000), ERR_NONE);
	r->h[0].up = false;
	rig_start(r, &p, "b", 900000, -1, false);
	rig_start(r, &q, "c", 900000, -1, false);
	rig_run(r);
	cr_assert_eq(p.done + q.done, 0);
	cr_assert_eq(rig_counts(r).waiting, 2);
	mind_drop(r->m, &q.p.call); /* its client has gone */
	r->h[0].up = true;
	mind_resend(r->m, 0);
	rig_run(r);
	cr_assert_eq(p.done, 1);
	cr_assert_eq(p.p.call.err, ERR_NONE);
	cr_assert_eq(q.done, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(space, pieces_of_one_segment, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	static char k[32][8];
	struct rig_put p;
	for (int i = 0; i < 32; i++) {
		snprintf(k[i], sizeof(k[i]), "k%d", i);
		rig_start(r, &p, k[i], 32768, -1, false); /* open attempts do not go */
		cr_assert_eq(p.p.call.err, ERR_NONE);
		if (i % 4)
			continue;
		const struct mind_who w = rig_who(r);
		cr_assert_eq(mind_put_revoke(r->m, &w, p.it.attempt, p.p.version), ERR_NONE);
	}
	rig_run(r);
	rig_start(r, &p, "big", 200000, -1, false);
	cr_assert_eq(p.p.call.err, ERR_NONE);
	cr_assert_eq(p.p.n_extents, 7);
	uint64_t sum = 0;
	for (size_t i = 0; i < p.p.n_extents; i++)
		sum += p.p.extents[i].bytes;
	cr_assert_eq(sum, obj_stored_bytes(200000));
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.pub.err, ERR_NONE);
	rig_restart(r);
	rig_run(r); /* its ranges are reserved again */
	cr_assert_eq(rig_remove(r, "big"), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(space, no_bytes_is_an_object, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	cr_assert_eq(put(r, "a", 0), ERR_NONE);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NONE);
	cr_assert_eq(put(r, "a", 0), ERR_ALREADY_EXISTS);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NONE);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* ---- attempts and time ---- */

Test(space, an_attempt_without_progress_is_fenced, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	struct rig_put p, q;
	rig_start(r, &p, "a", 100, -1, false);
	rig_pass(r, 20000);
	cr_assert_eq(mind_put_progress(r->m, &p.who, p.it.attempt, p.p.version), ERR_NONE);
	rig_pass(r, 20000);
	rig_run(r);
	cr_assert_eq(rig_counts(r).attempts, 1);
	rig_start(r, &q, "a", 100, -1, false);
	cr_assert_eq(q.p.call.err, ERR_BUSY_WRITING);
	cr_assert_gt(q.p.call.retry_ms, 0);
	cr_assert_eq(mind_due_ns(r->m), r->now + 10000000000ull);
	rig_pass(r, 10001);
	rig_run(r);
	cr_assert_eq(rig_counts(r).attempts, 0);
	cr_assert_eq(mind_put_progress(r->m, &p.who, p.it.attempt, p.p.version),
		     ERR_STALE_ATTEMPT);
	cr_assert_eq(put(r, "a", 100), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(space, a_fence_that_finds_it_committed_publishes, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	struct rig_put p;
	rig_start(r, &p, "a", 100, -1, false);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_pass(r, 30001);
	rig_run(r);
	cr_assert_eq(use(r, "a", 0, NULL), ERR_NONE);
	cr_assert(r->h[0].slots[p.slot].published, "MARK");
	rig_free(r);
	NO_LEAKS();
}

Test(space, stopped_writers_that_hold_too_much_get_no_more, .timeout = 10)
{
	struct rig *r = one_holder(1 << 20);
	struct rig_put p;
	rig_start(r, &p, "a", 200000, -1, false);
	rig_stop(r, &p);
	mind_discard(r->m, p.p.version);
	rig_run(r);
	cr_assert_gt(rig_counts(r).quarantine_bytes, 100000);
	cr_assert_eq(rig_counts(r).stuck, 0);
	rig_pass(r, 600001);
	cr_assert_eq(rig_counts(r).stuck, 1,
		     "put_start_release_timeout: an alarm, nothing is freed");
	cr_assert_eq(put(r, "b", 1), ERR_BUSY);
	r->client[0]++; /* another client may */
	cr_assert_eq(put(r, "b", 1), ERR_NONE);
	r->client[0]--;
	const struct mind_under u = rig_under(r, 0);
	cr_assert_eq(mind_range_free(r->m, 0, &u, p.p.version), ERR_NONE);
	cr_assert_eq(put(r, "c", 1), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* ---- limits (B1) ---- */

Test(space, limits_answer_busy, .timeout = 10)
{
	const struct mind_limits l = { .calls_max = 2,
				       .clients_max = 2,
				       .index_bytes_max = 100000 };
	struct rig *r = rig_bare(&l);
	rig_register(r, 0);
	rig_register(r, 1);
	rig_run(r);
	struct rig_remove x[3];
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	r->h[0].up = false;
	for (int i = 0; i < 3; i++)
		rig_remove_start(r, &x[i], "a");
	cr_assert_eq(x[2].done, 1);
	cr_assert_eq(x[2].c.err, ERR_BUSY);
	cr_assert_gt(x[2].c.retry_ms, 0);
	r->h[0].up = true;
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r);
	cr_assert_eq(x[0].done + x[1].done, 2);
	r->client[0] = 1;
	cr_assert_eq(rig_put(r, "b", 0, false), ERR_NONE);
	r->client[0] = 2;
	cr_assert_eq(rig_put(r, "c", 0, false), ERR_BUSY, "a third client");
	rig_pass(r, 600001); /* nothing of the oldest can be under way */
	cr_assert_eq(rig_put(r, "c", 0, false), ERR_NONE);
	char k[16];
	for (int i = 0; i < 900; i++) { /* case 11: three times of what fits */
		snprintf(k, sizeof(k), "key-%d", i);
		cr_assert_eq(rig_put(r, k, 0, false), ERR_NONE, "%s", k);
		cr_assert_leq(rig_counts(r).index_bytes, 110000);
	}
	cr_assert(rig_counts(r).evictions > 300 && rig_counts(r).objects > 100, "%u, %u",
		  (unsigned)rig_counts(r).evictions, (unsigned)rig_counts(r).objects);
	for (int i = 0; i < 900; i++) {
		snprintf(k, sizeof(k), "key-%d", i);
		(void)use(r, k, 5000, NULL);
	}
	enum err e = ERR_NONE;
	for (int i = 0; i < 500 && e == ERR_NONE; i++) {
		struct rig_put p;
		snprintf(k, sizeof(k), "more-%d", i);
		rig_start(r, &p, k, 100, 0, false); /* open: it does not go */
		rig_run(r);
		e = p.p.call.err;
		cr_assert_eq(p.done, 1);
		cr_assert(e == ERR_NONE || p.p.call.retry_ms > 4000);
	}
	cr_assert_eq(e, ERR_BUSY, "all of it is leased");
	rig_free(r);
	NO_LEAKS();
}

Test(space, an_object_costs_200_bytes_beside_its_key, .timeout = 60)
{
	enum { N = 2000 };
	struct rig *r = one_holder(1 << 20);
	char k[16];
	uint64_t before = rig_counts(r).index_bytes, keys = 0;
	for (int i = 0; i < N; i++) {
		keys += (uint64_t)snprintf(k, sizeof(k), "key-%d", i);
		struct rig_put p;
		rig_start(r, &p, k, 64, 0, false);
		cr_assert_eq(rig_commit(r, &p), ERR_NONE);
		rig_publish(r, &p);
		cr_assert_eq(p.pub.err, ERR_NONE);
	}
	uint64_t each = (rig_counts(r).index_bytes - before - keys) / N;
	cr_assert_leq(each, 200 - 24, "%d bytes, and the heap's own 16", (int)each);
	rig_free(r);
	NO_LEAKS();
}
