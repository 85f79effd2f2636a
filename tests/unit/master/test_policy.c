/* SPDX-License-Identifier: Apache-2.0 */
/* What is evicted, and what a put is told when nothing can be: leases, pins, tenants (B2, B3). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

TestSuite(policy, .timeout = 30);

static struct rig *one_holder(uint64_t bytes, const struct mind_limits *l)
{
	struct rig *r = rig_bare(l);
	r->h[0].bytes = bytes;
	rig_register(r, 0);
	rig_run(r);
	return r;
}

/* A put that must end at once: its call, with the time it was told. */
static struct mind_call asked(struct rig *r, const char *key, uint64_t size,
			      const struct msg_put_opts *o)
{
	struct rig_put p;
	r->opts = (struct msg_put_opts *)o;
	rig_start(r, &p, key, size, -1, false);
	r->opts = NULL;
	if (!p.done)
		mind_drop(r->m, &p.p.call);
	struct mind_call c = p.p.call;
	c.err = p.done ? c.err : ERR_TIMED_OUT;
	return c;
}

/* ---- leases ---- */

/* Case 22: three times the pool, every object read under a lease that has ended: no put fails. */
Test(policy, case_022_no_put_fails_while_leases_have_ended)
{
	struct rig *r = one_holder(1 << 20, NULL);
	char k[16];
	for (int i = 0; i < 150; i++) {
		snprintf(k, sizeof(k), "k%d", i);
		cr_assert_eq(rig_put_opts(r, k, 20000, NULL), ERR_NONE, "%s", k);
		cr_assert_eq(rig_use(r, k, 1000), ERR_NONE);
		rig_pass(r, 30); /* some 33 leases run, of 51 that fit */
	}
	cr_assert_gt(rig_counts(r).evictions, 90);
	cr_assert_eq(rig_use(r, "k149", 0), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* Case 21: probes keep nothing. */
Test(policy, case_021_probes_are_no_use)
{
	struct rig *r = one_holder(1 << 20, NULL);
	char k[16];
	for (int i = 0; i < 100; i++) {
		snprintf(k, sizeof(k), "k%d", i);
		cr_assert_eq(rig_put_opts(r, k, 20000, NULL), ERR_NONE);
		for (int j = 0; j <= i; j++) {
			snprintf(k, sizeof(k), "k%d", j);
			(void)rig_use(r, k, 0);
		}
	}
	cr_assert_eq(rig_use(r, "k0", 0), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(policy, busy_says_when_the_first_lease_ends)
{
	struct rig *r = one_holder(1 << 20, NULL);
	cr_assert_eq(rig_put_opts(r, "a", 450000, NULL), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "b", 450000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "a", 8000), ERR_NONE);
	cr_assert_eq(rig_use(r, "b", 3000), ERR_NONE);
	struct mind_call c = asked(r, "c", 400000, NULL);
	cr_assert_eq(c.err, ERR_BUSY);
	cr_assert(c.retry_ms > 2900 && c.retry_ms < 3100, "%u", c.retry_ms);
	rig_pass(r, c.retry_ms);
	cr_assert_eq(rig_put_opts(r, "c", 400000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "a", 0), ERR_NONE);
	cr_assert_eq(rig_use(r, "b", 0), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

/* ---- pins ---- */

static uint64_t minutes(uint64_t n)
{
	return n * 60000;
}

Test(policy, a_soft_pin_begins_when_readable_and_reads_prolong_nothing)
{
	struct rig *r = one_holder(1 << 20, NULL);
	const struct msg_put_opts soft = { .soft_pin_ms = minutes(30) };
	struct rig_put p;
	r->opts = (struct msg_put_opts *)&soft;
	rig_start(r, &p, "soft", 400000, -1, false);
	r->opts = NULL;
	rig_pass(r, 20000); /* it is being written */
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.pub.err, ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "plain", 400000, NULL), ERR_NONE);
	rig_pass(r, minutes(30) - 10000);
	cr_assert_eq(rig_use(r, "soft", 1000), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "p2", 400000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "soft", 0), ERR_NONE, "it runs still");
	cr_assert_eq(rig_use(r, "plain", 0), ERR_NOT_FOUND);
	rig_pass(r, 10001);
	cr_assert_eq(rig_put_opts(r, "p3", 400000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "soft", 0), ERR_NOT_FOUND, "30 minutes, whatever read it");
	cr_assert_eq(rig_use(r, "p2", 0), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(policy, a_soft_pin_lasts_a_day_at_most)
{
	struct rig *r = one_holder(1 << 20, NULL);
	const struct msg_put_opts soft = { .soft_pin_ms = minutes(60 * 24 * 365) };
	cr_assert_eq(rig_put_opts(r, "soft", 400000, &soft), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "plain", 400000, NULL), ERR_NONE);
	rig_pass(r, minutes(60 * 24) + 1);
	cr_assert_eq(rig_put_opts(r, "p2", 400000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "soft", 0), ERR_NOT_FOUND);
	cr_assert_eq(rig_use(r, "plain", 0), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* One that has ended goes before one that runs, wherever it stands in the order of use. */
Test(policy, ended_pins_go_first)
{
	struct rig *r = one_holder(1 << 20, NULL);
	const struct msg_put_opts l = { .soft_pin_ms = minutes(60) },
				  s = { .soft_pin_ms = minutes(1) };
	cr_assert_eq(rig_put_opts(r, "long", 400000, &l), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "short", 400000, &s), ERR_NONE);
	rig_pass(r, minutes(2));
	cr_assert_eq(rig_put_opts(r, "new", 400000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "long", 0), ERR_NONE);
	cr_assert_eq(rig_use(r, "short", 0), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(policy, soft_pins_may_be_told_to_stay)
{
	const struct mind_limits keep = { .keep_soft = true };
	struct rig *r = one_holder(1 << 20, &keep);
	const struct msg_put_opts l = { .soft_pin_ms = 60000 }, s = { .soft_pin_ms = 20000 };
	cr_assert_eq(rig_put_opts(r, "long", 400000, &l), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "short", 400000, &s), ERR_NONE);
	struct mind_call c = asked(r, "new", 400000, NULL);
	cr_assert_eq(c.err, ERR_BUSY);
	cr_assert(c.retry_ms > 19000 && c.retry_ms < 20100, "%u", c.retry_ms);
	rig_pass(r, c.retry_ms);
	cr_assert_eq(rig_put_opts(r, "new", 400000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "short", 0), ERR_NOT_FOUND);
	cr_assert_eq(rig_use(r, "long", 0), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(policy, all_pinned_is_said_and_force_removes)
{
	struct rig *r = one_holder(1 << 20, NULL);
	const struct msg_put_opts hard = { .hard_pin = true };
	const struct mind_who w = rig_who(r);
	cr_assert_eq(rig_put_opts(r, "a", 500000, &hard), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "b", 500000, &hard), ERR_NONE);
	struct mind_call c = asked(r, "c", 400000, NULL);
	cr_assert_eq(c.err, ERR_POOL_PINNED);
	cr_assert_eq(c.retry_ms, 0);
	rig_pass(r, minutes(60 * 24 * 7));
	cr_assert_eq(asked(r, "c", 400000, NULL).err, ERR_POOL_PINNED, "they never go");
	cr_assert_eq(rig_remove(r, "a"), ERR_POOL_PINNED);
	struct rig_remove x;
	rig_remove_start(r, &x, "nothing");
	rig_run(r);
	x.it = (struct msg_remove_item){ .attempt = 99, .key = BYTES_STR("a"), .force = true };
	mind_remove(r->m, &w, &x.it, &x.c);
	rig_run(r);
	cr_assert_eq(x.c.err, ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "c", 400000, NULL), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* The newer version decides, not the one that it replaced. */
Test(policy, a_plain_version_over_a_pinned_one_is_in_the_plain_queue)
{
	struct rig *r = one_holder(1 << 20, NULL);
	const struct msg_put_opts hard = { .hard_pin = true };
	cr_assert_eq(rig_put_opts(r, "a", 100, &hard), ERR_NONE);
	cr_assert_eq(rig_put(r, "a", 0, true), ERR_NONE);
	for (int i = 0; i < 12; i++) {
		char k[8];
		snprintf(k, sizeof(k), "k%d", i);
		cr_assert_eq(rig_put_opts(r, k, 300000, NULL), ERR_NONE, "%s", k);
	}
	cr_assert_neq(rig_use(r, "a", 0), ERR_NONE, "the oldest went first");
	rig_free(r);
	NO_LEAKS();
}

Test(policy, hard_pins_have_a_quota)
{
	const struct mind_limits l = { .pinned_max = 0.5 };
	struct rig *r = one_holder(1 << 20, &l);
	const struct msg_put_opts hard = { .hard_pin = true };
	cr_assert_eq(rig_put_opts(r, "a", 300000, &hard), ERR_NONE);
	struct mind_call c = asked(r, "b", 300000, &hard);
	cr_assert_eq(c.err, ERR_QUOTA);
	cr_assert(strstr(c.why.text, "pinned_max"), "%s", c.why.text);
	cr_assert_eq(rig_put_opts(r, "b", 300000, NULL), ERR_NONE, "without a pin");
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(asked(r, "c", 300000, &hard).err, ERR_QUOTA, "counted again");
	rig_free(r);
	NO_LEAKS();
}

/* ---- tenants ---- */

static const struct mind_quota quotas[] = {
	{ { (const uint8_t *)"red", 3 }, 400000, 100000 },
	{ { (const uint8_t *)"blue", 4 }, 300000, 0 },
};
static const struct mind_limits two = { .quotas = quotas, .n_quotas = 2 };

static struct mind_tenant tenant(const struct rig *r, const char *name)
{
	struct mind_tenant t = { 0 };
	for (uint32_t i = 0; mind_tenant(r->m, i, &t); i++)
		if (t.name.n == strlen(name) && memcmp(t.name.p, name, t.name.n) == 0)
			return t;
	return (struct mind_tenant){ 0 };
}

static unsigned fill(struct rig *r, const char *who, unsigned from, unsigned to)
{
	char k[16];
	unsigned n = 0;
	r->tenant = who;
	for (unsigned i = from; i < to; i++) {
		snprintf(k, sizeof(k), "k%u", i);
		n += rig_put_opts(r, k, 40000, NULL) == ERR_NONE;
	}
	r->tenant = NULL;
	return n;
}

static unsigned found(struct rig *r, const char *who, unsigned n)
{
	char k[16];
	unsigned yes = 0;
	r->tenant = who;
	for (unsigned i = 0; i < n; i++) {
		snprintf(k, sizeof(k), "k%u", i);
		yes += rig_use(r, k, 0) == ERR_NONE;
	}
	r->tenant = NULL;
	return yes;
}

Test(policy, a_tenant_at_its_quota_evicts_its_own)
{
	struct rig *r = one_holder(4 << 20, &two);
	cr_assert_eq(fill(r, "t", 0, 20), 20);
	cr_assert_eq(fill(r, "blue", 0, 5), 5);
	cr_assert_eq(fill(r, "red", 0, 40), 40, "no put fails");
	cr_assert_eq(found(r, "t", 20), 20, "nobody else pays");
	cr_assert_eq(found(r, "blue", 5), 5);
	unsigned left = found(r, "red", 40);
	cr_assert(left >= 8 && left <= 9, "%u of 40960 bytes", left);
	struct mind_tenant t = tenant(r, "red");
	cr_assert_leq(t.bytes, 400000);
	cr_assert_eq(t.bytes_max, 400000);
	cr_assert_eq(t.objects, left);
	cr_assert_eq(tenant(r, "t").bytes_max, 0);
	cr_assert_eq(tenant(r, "t").objects, 20);
	rig_free(r);
	NO_LEAKS();
}

Test(policy, all_of_a_quota_leased_is_busy_with_a_time)
{
	struct rig *r = one_holder(4 << 20, &two);
	char k[16];
	cr_assert_eq(fill(r, "blue", 0, 7), 7);
	r->tenant = "blue";
	for (unsigned i = 0; i < 7; i++) {
		snprintf(k, sizeof(k), "k%u", i);
		cr_assert_eq(rig_use(r, k, 5000 + i * 100), ERR_NONE);
	}
	struct mind_call c = asked(r, "more", 40000, NULL);
	cr_assert_eq(c.err, ERR_BUSY);
	cr_assert(c.retry_ms > 4900 && c.retry_ms < 5100, "%u", c.retry_ms);
	cr_assert(strstr(c.why.text, "tenant_memory"), "%s", c.why.text);
	r->tenant = "red";
	cr_assert_eq(rig_put_opts(r, "more", 40000, NULL), ERR_NONE, "others go on");
	r->tenant = "blue";
	rig_pass(r, c.retry_ms);
	cr_assert_eq(rig_put_opts(r, "more", 40000, NULL), ERR_NONE);
	r->tenant = NULL;
	rig_free(r);
	NO_LEAKS();
}

Test(policy, what_a_quota_can_never_hold_is_refused)
{
	struct rig *r = one_holder(4 << 20, &two);
	const struct msg_put_opts hard = { .hard_pin = true };
	r->tenant = "red";
	cr_assert_eq(rig_put_opts(r, "a", 90000, &hard), ERR_NONE);
	cr_assert_eq(asked(r, "b", 90000, &hard).err, ERR_QUOTA, "pins of a tenant");
	cr_assert_eq(asked(r, "b", 500000, NULL).err, ERR_QUOTA);
	cr_assert_eq(asked(r, "b", 5 << 20, NULL).err, ERR_TOO_LARGE);
	cr_assert_eq(rig_counts(r).evictions, 0);
	r->tenant = "blue";
	cr_assert_eq(rig_put_opts(r, "a", 200000, &hard), ERR_NONE);
	cr_assert_eq(asked(r, "b", 200000, NULL).err, ERR_QUOTA, "all of it is pinned");
	r->tenant = NULL;
	rig_free(r);
	NO_LEAKS();
}

Test(policy, one_key_in_two_tenants_is_two_objects)
{
	struct rig *r = one_holder(4 << 20, &two);
	cr_assert_eq(fill(r, "red", 0, 1), 1);
	cr_assert_eq(fill(r, "blue", 0, 1), 1);
	cr_assert_eq(rig_counts(r).objects, 2);
	r->tenant = "red";
	cr_assert_eq(rig_remove(r, "k0"), ERR_NONE);
	cr_assert_eq(rig_use(r, "k0", 0), ERR_NOT_FOUND);
	r->tenant = "blue";
	cr_assert_eq(rig_use(r, "k0", 0), ERR_NONE);
	r->tenant = NULL;
	rig_free(r);
	NO_LEAKS();
}

/* L4: who waits for a holder that hangs, because its quota is used up, holds up none of those behind. */
Test(policy, a_tenant_that_waits_for_its_own_blocks_nobody)
{
	struct rig *r = rig_bare(&two);
	struct rig_put red[3], t;
	r->h[0].bytes = 4 << 20;
	r->h[1].bytes = 1 << 20;
	rig_register(r, 0);
	rig_register(r, 1);
	rig_run(r);
	r->tenant = "red";
	cr_assert_eq(rig_put(r, "mine", 0, false), ERR_NONE);
	rig_start(r, &t, "mine too", 390000, 0, false);
	cr_assert_eq(rig_commit(r, &t), ERR_NONE);
	rig_publish(r, &t);
	rig_run(r);
	r->h[0].up = false;
	for (int i = 0; i < 3; i++)
		rig_start(r, &red[i], i == 0 ? "r0" : i == 1 ? "r1" : "r2", 300000, 1, false);
	rig_run(r);
	cr_assert_eq(red[0].done + red[1].done + red[2].done, 0, "h0 does not answer");
	r->tenant = "blue";
	rig_start(r, &t, "b0", 250000, 1, false);
	cr_assert_eq(rig_commit(r, &t), ERR_NONE);
	rig_publish(r, &t);
	rig_run(r);
	rig_start(r, &t, "b1", 250000, 1, false);
	cr_assert_eq(t.done, 0, "at its quota: it evicts its own");
	rig_run(r);
	cr_assert_eq(t.done, 1, "and waits for nobody else's");
	cr_assert_eq(t.p.call.err, ERR_NONE);
	r->tenant = NULL;
	cr_assert_eq(rig_counts(r).waiting, 3);
	r->h[0].up = true;
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r);
	cr_assert_eq(red[0].done, 1);
	cr_assert_eq(red[0].p.call.err, ERR_NONE);
	for (int i = 1; i < 3; i++) /* one after the other; the first is being written */
		if (!red[i].done)
			mind_drop(r->m, &red[i].p.call);
	rig_free(r);
	NO_LEAKS();
}

/* L4: what a holder that hangs was to free is made room for at others, after a second. */
Test(policy, a_holder_that_hangs_holds_up_no_room_of_others)
{
	const struct mind_limits full = { .high_watermark = 1 };
	struct rig *r = rig_bare(&full);
	static const char *const key[] = { "a", "b", "c", "d" };
	struct rig_put p;
	rig_register(r, 0);
	rig_register(r, 1);
	rig_run(r);
	for (int i = 0; i < 4; i++) {
		rig_start(r, &p, key[i], 500000, i / 2, false);
		cr_assert_eq(rig_commit(r, &p), ERR_NONE);
		rig_publish(r, &p);
		rig_run(r);
		rig_pass(r, 100);
	}
	r->h[0].up = false;
	rig_start(r, &p, "new", 400000, -1, false);
	rig_run(r);
	cr_assert_eq(p.done, 0, "the oldest is at h0, which does not answer");
	rig_pass(r, 1100);
	rig_run(r);
	cr_assert(p.done && p.p.call.err == ERR_NONE, "%d", p.done);
	cr_assert_eq(p.h, 1);
	cr_assert_eq(rig_use(r, "c", 0), ERR_NOT_FOUND);
	cr_assert_eq(rig_use(r, "d", 0), ERR_NONE);
	r->h[0].up = true;
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r);
	rig_free(r);
	NO_LEAKS();
}

/* C3: what is charged is a recount's, after a restart and after everything is gone. */
Test(policy, charges_are_a_recounts)
{
	struct rig *r = one_holder(4 << 20, &two);
	struct rig_put p;
	cr_assert_eq(fill(r, "red", 0, 30), 30);
	uint64_t before = tenant(r, "red").bytes;
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(tenant(r, "red").bytes, before);
	r->tenant = "red";
	rig_start(r, &p, "open", 1000, -1, false);
	rig_run(r);
	cr_assert_eq(p.p.call.err, ERR_NONE, "one of the old ones went");
	cr_assert_leq(tenant(r, "red").bytes, 400000);
	cr_assert_eq(mind_put_revoke(r->m, &p.who, p.it.attempt, p.p.version), ERR_NONE);
	uint64_t n = 0;
	cr_assert_eq(rig_remove_prefix(r, "", &n), ERR_NONE);
	rig_pass(r, 61000);
	rig_run(r);
	cr_assert_eq(tenant(r, "red").bytes, 0);
	cr_assert_eq(tenant(r, "red").objects, 0);
	r->tenant = NULL;
	rig_free(r);
	NO_LEAKS();
}

/* C3: a range that a stopped writer may still write is its tenant's until it is free, whoever restarts. */
Test(policy, a_range_in_quarantine_is_charged)
{
	struct rig *r = one_holder(1 << 20, &two);
	struct rig_put p;
	r->tenant = "red";
	rig_start(r, &p, "a", 40000, -1, false);
	rig_stop(r, &p);
	mind_discard(r->m, p.p.version);
	rig_run(r);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 40960);
	cr_assert_eq(tenant(r, "red").bytes, 40960, "FENCE found it writing");
	rig_reborn(r, 0);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(tenant(r, "red").bytes, 40960, "its holder was adopted again");
	cr_assert_eq(rig_writer_gone(r, 0), ERR_NONE);
	rig_run(r);
	cr_assert_eq(tenant(r, "red").bytes, 0);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 0);
	rig_start(r, &p, "b", 40000, -1, false);
	rig_stop(r, &p); /* open while its holder is adopted again */
	rig_reborn(r, 0);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_counts(r).attempts, 0);
	cr_assert_eq(tenant(r, "red").bytes, 40960);
	rig_restart(r); /* whose it was is no holder's to know */
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 40960);
	cr_assert_eq(tenant(r, "red").bytes, 0);
	cr_assert_eq(rig_writer_gone(r, 0), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_counts(r).quarantine_bytes, 0);
	r->tenant = NULL;
	rig_free(r);
	NO_LEAKS();
}

/* The pool's pressure takes the oldest of all tenants, those with a quota too. */
Test(policy, the_pools_pressure_is_over_all_tenants)
{
	struct rig *r = one_holder(1 << 20, &two);
	cr_assert_eq(fill(r, "red", 0, 5), 5);
	rig_pass(r, 100);
	cr_assert_eq(fill(r, "t", 0, 10), 10);
	rig_pass(r, 100);
	cr_assert_eq(fill(r, "t", 10, 26), 16);
	cr_assert_eq(found(r, "red", 5), 0, "the oldest");
	cr_assert_gt(found(r, "t", 26), 20);
	rig_free(r);
	NO_LEAKS();
}
