/* SPDX-License-Identifier: Apache-2.0 */
/* Object groups: all members or none, whoever dies when (G1 to G4 of mind_group.c). */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

TestSuite(group, .timeout = 60);

static struct msg_put_opts of(const char *id, uint32_t size)
{
	return (struct msg_put_opts){ .group = BYTES_STR(id), .group_size = size };
}

static struct rig *one_holder(uint64_t bytes)
{
	struct rig *r = rig_bare(NULL);
	r->h[0].bytes = bytes;
	rig_register(r, 0);
	rig_run(r);
	return r;
}

static const char *name(const char *family, unsigned i)
{
	static char k[4][32];
	static unsigned at;
	snprintf(k[++at % 4], sizeof(k[0]), "%s/%u", family, i);
	return k[at % 4];
}

static unsigned fill(struct rig *r, const char *family, unsigned from, unsigned to,
		     size_t bytes, const struct msg_put_opts *o)
{
	unsigned n = 0;
	for (unsigned i = from; i < to; i++)
		n += rig_put_opts(r, name(family, i), bytes, o) == ERR_NONE;
	return n;
}

static unsigned found(struct rig *r, const char *family, unsigned n)
{
	unsigned yes = 0;
	for (unsigned i = 0; i < n; i++)
		yes += rig_use(r, name(family, i), 0) == ERR_NONE;
	return yes;
}

/* ---- G1 ---- */

Test(group, readable_when_all_are_whole)
{
	struct rig *r = rig_new();
	const struct msg_put_opts o = of("g", 8);
	struct why why = { 0 };
	struct mind_object x;
	cr_assert_eq(fill(r, "a", 0, 7, 100, &o), 7, "each is acknowledged");
	cr_assert_eq(found(r, "a", 8), 0);
	cr_assert_eq(mind_lookup(r->m, BYTES_STR("t"), BYTES_STR("a/1"), 0, BYTES(NULL, 0), &x,
				 &why),
		     ERR_NOT_FOUND);
	cr_assert(strstr(why.text, "7 of 8"), "%s", why.text);
	cr_assert_eq(fill(r, "a", 7, 8, 100, &o), 1);
	cr_assert_eq(found(r, "a", 8), 8);
	rig_free(r);
	NO_LEAKS();
}

Test(group, the_loss_of_one_retires_the_rest)
{
	struct rig *r = rig_new();
	const struct msg_put_opts o = of("g", 8);
	cr_assert_eq(fill(r, "a", 0, 8, 100, &o), 8);
	cr_assert_eq(rig_put_opts(r, "other", 100, NULL), ERR_NONE);
	cr_assert_eq(rig_remove(r, "a/3"), ERR_NONE);
	cr_assert_eq(found(r, "a", 8), 0);
	cr_assert_eq(rig_counts(r).objects, 1);
	rig_pass(r, 1);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 1, 1), 1);
	cr_assert_eq(rig_slots(r, 0, 2) + rig_slots(r, 1, 2), 0, "and freed");
	cr_assert_eq(fill(r, "a", 0, 8, 100, &o), 8, "the group begins anew");
	cr_assert_eq(found(r, "a", 8), 8);
	rig_free(r);
	NO_LEAKS();
}

Test(group, an_open_group_may_lose_one_by_name)
{
	struct rig *r = rig_new();
	const struct msg_put_opts o = of("g", 0);
	cr_assert_eq(fill(r, "a", 0, 5, 100, &o), 5);
	cr_assert_eq(found(r, "a", 5), 5);
	cr_assert_eq(rig_remove(r, "a/3"), ERR_NONE);
	cr_assert_eq(found(r, "a", 5), 4);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/0")), ERR_NONE);
	rig_run(r);
	cr_assert_eq(found(r, "a", 5), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(group, a_holder_that_goes_takes_all_with_it)
{
	struct rig *r = rig_new();
	const struct msg_put_opts o = of("g", 4);
	cr_assert_eq(fill(r, "a", 0, 4, 100, &o), 4);
	while (rig_slots(r, 0, 1) == 0 || rig_slots(r, 1, 1) == 0) { /* at random */
		uint64_t n = 0;
		cr_assert_eq(rig_remove_prefix(r, "a", &n), ERR_NONE);
		cr_assert_eq(fill(r, "a", 0, 4, 100, &o), 4);
	}
	r->h[1].up = false;
	rig_away(r, 1);
	cr_assert_eq(found(r, "a", 4), 0);
	cr_assert_eq(rig_counts(r).objects, 0, "the rest was retired");
	cr_assert_eq(rig_slots(r, 0, 1), 0);
	r->h[1].up = true;
	rig_register(r, 1);
	rig_run(r);
	cr_assert_eq(found(r, "a", 4), 0, "the tombstone of the group");
	cr_assert_eq(rig_slots(r, 1, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(group, a_member_is_replaced_in_place)
{
	struct rig *r = rig_new();
	struct msg_put_opts o = of("g", 4), other = of("h", 0);
	cr_assert_eq(fill(r, "a", 0, 4, 100, &o), 4);
	r->opts = &o;
	cr_assert_eq(rig_put(r, "a/2", 0, true), ERR_NONE);
	cr_assert_eq(found(r, "a", 4), 4, "still four");
	r->opts = &other;
	cr_assert_eq(rig_put(r, "a/2", 0, true), ERR_NONE, "into another group");
	r->opts = NULL;
	cr_assert_eq(found(r, "a", 4), 1);
	cr_assert_eq(rig_use(r, "a/2", 0), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(group, what_does_not_fit_is_refused)
{
	struct rig *r = rig_new();
	const struct msg_put_opts o = of("g", 2), more = of("g", 3), open = of("g", 0),
				  huge = of("h", (1 << 20) + 1);
	struct rig_put p;
	cr_assert_eq(fill(r, "a", 0, 1, 100, &o), 1);
	cr_assert_eq(rig_put_opts(r, "x", 100, &more), ERR_CONFLICT);
	cr_assert_eq(rig_put_opts(r, "x", 100, &open), ERR_CONFLICT);
	r->opts = (struct msg_put_opts *)&o;
	rig_start(r, &p, "b", 100, -1, false);
	rig_run(r);
	cr_assert_eq(rig_put(r, "b", 0, false), ERR_BUSY_WRITING, "one is being written");
	r->opts = NULL;
	cr_assert_eq(rig_put_opts(r, "x", 100, &o), ERR_CONFLICT, "two are under way");
	cr_assert_eq(rig_put_opts(r, "a/0", 100, &o), ERR_ALREADY_EXISTS);
	cr_assert_eq(rig_put_opts(r, "x", 100, &huge), ERR_INVALID_PARAMS);
	rig_free(r);
	NO_LEAKS();
}

/* ---- eviction ---- */

/* Case 18: under pressure a query finds all or none; the youngest use is the group's age. */
Test(group, case_018_all_or_none_under_pressure)
{
	struct rig *r = one_holder(1 << 20);
	char id[8];
	for (unsigned g = 0; g < 40; g++) {
		snprintf(id, sizeof(id), "g%u", g);
		const struct msg_put_opts o = of(id, 8);
		cr_assert_eq(fill(r, id, 0, 8, 12000, &o), 8, "%s", id);
		if (g > 0)
			(void)rig_use(r, "g0/3", 1); /* one of the first is used */
		rig_pass(r, 50);
		for (unsigned k = 0; k <= g; k++) {
			snprintf(id, sizeof(id), "g%u", k);
			unsigned n = found(r, id, 8);
			cr_assert(n == 0 || n == 8, "%s: %u", id, n);
		}
	}
	cr_assert_eq(found(r, "g0", 8), 8);
	cr_assert_eq(found(r, "g1", 8), 0);
	cr_assert_eq(found(r, "g39", 8), 8);
	rig_free(r);
	NO_LEAKS();
}

Test(group, a_lease_on_one_protects_all_until_it_is_given_back)
{
	struct rig *r = one_holder(1 << 20);
	const struct msg_put_opts o = of("g", 8);
	struct mind_object x;
	cr_assert_eq(fill(r, "a", 0, 8, 100, &o), 8);
	cr_assert_eq(mind_lookup(r->m, BYTES_STR("t"), BYTES_STR("a/5"), 5000, BYTES(NULL, 0),
				 &x, NULL),
		     ERR_NONE);
	uint64_t v = x.version;
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/0")), ERR_BUSY);
	cr_assert_eq(mind_release(r->m, BYTES_STR("t"), BYTES_STR("a/5"), v), ERR_NONE);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/0")), ERR_NONE);
	rig_run(r);
	cr_assert_eq(found(r, "a", 8), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(group, pinned_or_unfinished_it_stays)
{
	struct rig *r = one_holder(1 << 20);
	struct msg_put_opts o = of("g", 0), hard = o;
	struct rig_put p;
	hard.hard_pin = true;
	cr_assert_eq(fill(r, "a", 0, 3, 90000, &o), 3);
	r->opts = &o;
	rig_start(r, &p, "a/9", 100, -1, false);
	r->opts = NULL;
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/0")), ERR_BUSY,
		     "unfinished");
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.pub.err, ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "a/8", 100, &hard), ERR_NONE);
	for (int i = 0; i < 30; i++) {
		char k[8];
		snprintf(k, sizeof(k), "k%d", i);
		cr_assert_eq(rig_put_opts(r, k, 100000, NULL), ERR_NONE);
	}
	cr_assert_eq(found(r, "a", 10), 5, "one hard pin keeps all");
	rig_free(r);
	NO_LEAKS();
}

/* T2: a put that was open when the group lost a member ends before the group does. Committed after, its version
 * would stand under the evict id of marks on disk, and the next start would retire what was acknowledged. */
Test(group, an_open_put_ends_before_its_group_does)
{
	struct rig *r = one_holder(1 << 20);
	struct msg_put_opts o = of("g", 4);
	struct rig_put p;
	cr_assert_eq(fill(r, "a", 0, 4, 100, &o), 4);
	r->opts = &o;
	rig_start(r, &p, "a/0", 100, -1, true);
	r->opts = NULL;
	cr_assert_eq(rig_remove(r, "a/3"), ERR_NONE);
	rig_run(r);
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	rig_publish(r, &p);
	rig_run(r);
	rig_pass(r, 1);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 1), 0, "nothing is left under the evict id");
	cr_assert_eq(found(r, "a", 4), 0);
	cr_assert_eq(fill(r, "a", 0, 4, 100, &o), 4, "the group begins anew");
	cr_assert_eq(found(r, "a", 4), 4);
	rig_free(r);
	NO_LEAKS();
}

/* All are served until the last RETIRE is acknowledged, and nothing is freed before (G2); a put waits (G4). */
Test(group, they_go_in_one_step)
{
	struct rig *r = rig_new();
	struct msg_put_opts o = of("g", 0);
	struct rig_put p, q;
	cr_assert_eq(fill(r, "a", 0, 6, 100, &o), 6);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/0")), ERR_NONE);
	while (mind_work(r->m))
		;
	cr_assert_eq(rig_waiting(r, MIND_RETIRE), 6);
	r->opts = &o;
	rig_start(r, &p, "a/7", 100, -1, false);
	r->opts = NULL;
	rig_start(r, &q, "free", 100, -1, false);
	cr_assert_eq(p.done, 0, "it waits");
	cr_assert_eq(q.done, 1, "and holds up nobody");
	for (int i = 0; i < 5; i++) {
		rig_deliver(r, 0, false);
		while (mind_work(r->m))
			;
		cr_assert_eq(found(r, "a", 6), 6);
		cr_assert_eq(rig_waiting(r, MIND_FREE), 0);
	}
	rig_deliver(r, 0, false);
	cr_assert_eq(found(r, "a", 6), 0);
	rig_run(r);
	cr_assert_eq(p.done, 1);
	cr_assert_eq(p.p.call.err, ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* ---- G3 ---- */

/* The master dies when some are marked: the next one finishes it, and shows none before all is merged. */
Test(group, a_mark_is_finished_by_the_next_master)
{
	for (int n = 1; n <= 6; n++) {
		struct rig *r = rig_new();
		const struct msg_put_opts o = of("g", 0);
		cr_assert_eq(fill(r, "a", 0, 6, 100, &o), 6);
		cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/0")), ERR_NONE);
		while (mind_work(r->m))
			;
		for (int i = 0; i < n; i++)
			rig_deliver(r, 0, false);
		r->h[1].up = false;
		rig_restart(r);
		rig_run(r);
		cr_assert_eq(found(r, "a", 6), 0, "not yet: the mark may lie at h1");
		r->h[1].up = true;
		for (uint32_t i = 0; i < mind_holders(r->m); i++)
			mind_resend(r->m, i);
		rig_run(r);
		cr_assert_eq(found(r, "a", 6), 0, "%d were marked", n);
		cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 1, 1), 0);
		rig_pass(r, 61000);
		rig_run(r);
		cr_assert_eq(rig_slots(r, 0, 2) + rig_slots(r, 1, 2), 0);
		cr_assert_eq(fill(r, "a", 0, 6, 100, &o), 6);
		cr_assert_eq(found(r, "a", 6), 6);
		rig_free(r);
	}
	NO_LEAKS();
}

/* The mark is not freed while a holder may still have members that it takes. */
Test(group, a_mark_stays_until_all_are_marked)
{
	const struct mind_limits stay = { .dead_ms = UINT32_MAX };
	struct rig *r = rig_bare(&stay);
	const struct msg_put_opts o = of("g", 0);
	struct rig_put p;
	rig_register(r, 0);
	rig_register(r, 1);
	rig_run(r);
	r->opts = (struct msg_put_opts *)&o;
	for (int h = 0; h < 2; h++) {
		cr_assert_eq(rig_put(r, h ? "on1" : "on0", h, false), ERR_NONE);
	}
	rig_start(r, &p, "x", 1, 0, false);
	r->opts = NULL;
	cr_assert_eq(mind_put_revoke(r->m, &p.who, p.it.attempt, p.p.version), ERR_NONE);
	rig_run(r);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("on0")), ERR_NONE);
	while (mind_work(r->m))
		;
	rig_lose(r, 1, -1); /* h1 never hears of it */
	r->h[1].up = false;
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2), 1);
	cr_assert_eq(rig_get(r, "on0", NULL), ERR_NONE, "both are served still");
	rig_restart(r);
	rig_run(r);
	rig_pass(r, 100000);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2), 1, "not freed");
	rig_restart(r);
	r->h[1].up = true;
	rig_run(r);
	cr_assert_eq(rig_get(r, "on0", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_get(r, "on1", NULL), ERR_NOT_FOUND);
	rig_pass(r, 100000);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2) + rig_slots(r, 1, 2), 0);
	rig_free(r);
	NO_LEAKS();
}

/* What was put after an eviction is not taken for a part of it. */
Test(group, a_mark_takes_nothing_newer)
{
	struct rig *r = rig_new();
	const struct msg_put_opts o = of("g", 0);
	cr_assert_eq(fill(r, "a", 0, 3, 100, &o), 3);
	for (int i = 0; i < 3; i++) /* under a lease: RETIRED, not freed */
		cr_assert_eq(rig_use(r, name("a", (unsigned)i), 50000), ERR_NONE);
	rig_pass(r, 50100);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/0")), ERR_NONE);
	while (mind_work(r->m))
		;
	while (rig_waiting(r, MIND_RETIRE))
		rig_deliver(r, 0, false);
	rig_lose(r, -1, MIND_FREE); /* the marks stay in the slots */
	cr_assert_eq(fill(r, "b", 0, 3, 100, &o), 3);
	rig_restart(r);
	rig_run(r);
	cr_assert_eq(found(r, "a", 3), 0);
	cr_assert_eq(found(r, "b", 3), 3);
	rig_free(r);
	NO_LEAKS();
}

/* The pin of one keeps all of them, and no longer than that one is there. */
Test(group, a_soft_pin_leaves_with_its_member)
{
	struct rig *r = one_holder(1 << 20);
	struct msg_put_opts soft = of("g", 0), plain = of("g", 0);
	soft.soft_pin_ms = 3600000;
	cr_assert_eq(rig_put_opts(r, "a/0", 300000, &soft), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "a/1", 300000, &plain), ERR_NONE);
	rig_pass(r, 100);
	cr_assert_eq(rig_put_opts(r, "p", 300000, NULL), ERR_NONE);
	rig_pass(r, 100);
	cr_assert_eq(rig_put_opts(r, "q", 300000, NULL), ERR_NONE);
	cr_assert_eq(found(r, "a", 2), 2, "pinned: p went");
	cr_assert_eq(rig_use(r, "p", 0), ERR_NOT_FOUND);
	cr_assert_eq(rig_remove(r, "a/0"), ERR_NONE);
	rig_pass(r, 100);
	cr_assert_eq(rig_put_opts(r, "r", 300000, NULL), ERR_NONE);
	cr_assert_eq(rig_put_opts(r, "s", 300000, NULL), ERR_NONE);
	cr_assert_eq(rig_use(r, "a/1", 0), ERR_NOT_FOUND, "the oldest, and no longer pinned");
	cr_assert_eq(rig_use(r, "q", 0), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

/* ---- many members ---- */

Test(group, a_large_group_goes_in_slices)
{
	enum { N = 1500 };
	struct rig *r = one_holder(1 << 20);
	const struct msg_put_opts o = of("g", N);
	for (unsigned i = 0; i < N; i++) {
		struct rig_put p;
		r->opts = (struct msg_put_opts *)&o;
		rig_start(r, &p, name("a", i), 64, -1, false);
		r->opts = NULL;
		cr_assert_eq(rig_commit(r, &p), ERR_NONE);
		rig_publish(r, &p);
		cr_assert_eq(p.pub.err, ERR_NONE);
	}
	rig_run(r);
	cr_assert_eq(found(r, "a", N), N);
	cr_assert_eq(mind_evict(r->m, BYTES_STR("t"), BYTES_STR("a/7")), ERR_NONE);
	cr_assert_lt(rig_waiting(r, MIND_RETIRE), 300, "a slice at a time (I6)");
	rig_run(r);
	cr_assert_eq(found(r, "a", N), 0);
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

/*
 * While a holder is adopted again, a group that it has no part in is shown, however large: each member is
 * looked at once, not for every read. One that it has part in is not, until the last of it is merged.
 */
Test(group, a_large_group_is_shown_while_another_holder_is_adopted)
{
	enum { N = 4200 };
	struct rig *r = rig_bare(NULL);
	const struct msg_put_opts o = of("g", N), small = of("s", 2);
	for (int h = 0; h < 4; h++)
		rig_register(r, h);
	rig_run(r);
	for (unsigned i = 0; i < N + 2; i++) {
		struct rig_put p;
		r->opts = (struct msg_put_opts *)(i < N ? &o : &small);
		rig_start(r, &p, i < N ? name("a", i) : name("s", i - N), 64,
			  i < N	   ? (int)i % 3
			  : i == N ? 0
				   : 3,
			  false);
		r->opts = NULL;
		cr_assert_eq(rig_commit(r, &p), ERR_NONE);
		rig_publish(r, &p);
		cr_assert_eq(p.pub.err, ERR_NONE);
		r->h[p.h].slots[p.slot].published = true;
	}
	rig_run(r);
	cr_assert_eq(found(r, "a", N), N);
	cr_assert_eq(found(r, "s", 2), 2);
	r->h[3].up = false;
	rig_reborn(r, 3);
	rig_register(r, 3);
	rig_run(r);
	cr_assert_eq(found(r, "a", N), N, "h3 has none of it");
	cr_assert_eq(rig_use(r, "s/0", 0), ERR_TEMPORARILY_AWAY);
	cr_assert_eq(rig_remove(r, "a/0"), ERR_NONE);
	rig_run(r);
	cr_assert_eq(found(r, "a", N), 0, "the loss of one");
	r->h[3].up = true;
	mind_resend(r->m, rig_holder(r, 3));
	rig_run(r);
	cr_assert_eq(found(r, "s", 2), 2);
	rig_free(r);
	NO_LEAKS();
}

/* ---- under random faults ---- */

enum { GROUPS = 3, MEMBERS = 4, WRITERS = 6 };

struct gput {
	struct rig_put p;
	int state; /* 0 none, 1 started, 2 committed, 3 publish sent */
};

struct gsoak {
	struct rig *r;
	uint64_t rng, seed, whole, none;
	bool aways; /* holders go, too: then only groups with a size are judged */
	struct msg_put_opts o[GROUPS];
	bool open_whole; /* the open group was filled once; nobody puts to it again */
	struct gput p[WRITERS];
};

static uint64_t rnd(struct gsoak *s, uint64_t n)
{
	s->rng ^= s->rng << 13;
	s->rng ^= s->rng >> 7;
	s->rng ^= s->rng << 17;
	return (s->rng >> 11) % n;
}

static const char *member(unsigned g, unsigned i)
{
	static const char *const keys[GROUPS][MEMBERS] = { { "a/0", "a/1", "a/2", "a/3" },
							   { "b/0", "b/1", "b/2", "b/3" },
							   { "c/0", "c/1", "c/2", "c/3" } };
	return keys[g][i];
}

static void on_fact(void *arg, const char *what, const char *value)
{
	(void)arg;
	fprintf(stderr, "  %s: %s\n", what, value);
}

/* All or none. What cannot be said yet (RECOVERING, TEMPORARILY_AWAY) is no answer: with a size none is found
 * then, of an open group those whose holder is there. */
static void judge(struct gsoak *s, unsigned g)
{
	unsigned yes = 0, no = 0;
	enum err e[MEMBERS];
	for (unsigned i = 0; i < MEMBERS; i++) {
		e[i] = rig_get(s->r, member(g, i), NULL);
		yes += e[i] == ERR_NONE;
		no += e[i] == ERR_NOT_FOUND || (g < 2 && e[i] != ERR_NONE);
	}
	if (g == 2 && (s->aways || !s->open_whole))
		return;
	for (unsigned i = 0; i < MEMBERS && yes && no; i++) {
		fprintf(stderr, "%s: %s\n", member(g, i), err_name(e[i]));
		mind_explain(s->r->m, BYTES_STR("t"), BYTES_STR(member(g, i)), on_fact, s);
	}
	cr_assert(!yes || !no, "seed %" PRIu64 ": group %u has %u", s->seed, g, yes);
	s->whole += yes == MEMBERS;
	s->none += no == MEMBERS;
}

static void put_on(struct gsoak *s)
{
	struct gput *p = &s->p[rnd(s, WRITERS)];
	if (p->state == 0) {
		unsigned g = (unsigned)rnd(s, s->open_whole ? 2 : GROUPS);
		s->r->opts = &s->o[g];
		rig_start(s->r, &p->p, member(g, (unsigned)rnd(s, MEMBERS)), 100 + rnd(s, 9000),
			  (int)rnd(s, FAKES), rnd(s, 8) == 0);
		s->r->opts = NULL;
		p->state = 1;
	} else if (p->state == 1 && p->p.done) {
		bool ok = p->p.p.call.err == ERR_NONE && rig_commit(s->r, &p->p) == ERR_NONE;
		p->state = ok ? 2 : 0;
	} else if (p->state == 2) {
		const struct fake_slot *f = &s->r->h[p->p.h].slots[p->p.slot];
		p->state = f->version == p->p.p.version && f->reason < RETIRE_BARRED ? 3 : 0;
		if (p->state)
			rig_publish(s->r, &p->p);
	} else if (p->state == 3 && p->p.published) {
		struct fake_slot *f = &s->r->h[p->p.h].slots[p->p.slot];
		if (p->p.pub.err == ERR_NONE && f->state == 1 && f->version == p->p.p.version)
			f->published = rnd(s, 4) != 0;
		p->state = 0;
	}
}

static void master_dies(struct gsoak *s)
{
	rig_restart(s->r);
	for (int i = 0; i < WRITERS; i++)
		s->p[i].state = 0;
}

static void holder(struct gsoak *s)
{
	int h = (int)rnd(s, FAKES);
	if (s->aways && rnd(s, 3) == 0) {
		s->r->h[h].up = rnd(s, 2);
		mind_away(s->r->m, BYTES_STR(s->r->h[h].id));
		return;
	}
	s->r->h[h].up = true;
	if (rnd(s, 2))
		rig_reborn(s->r, h);
	rig_register(s->r, h);
}

static void message(struct gsoak *s)
{
	struct rig *r = s->r;
	if (r->n_cmds == 0)
		return;
	size_t i = rnd(s, r->n_cmds);
	if (rnd(s, 12) == 0)
		memmove(r->cmds + i, r->cmds + i + 1, (--r->n_cmds - i) * sizeof(*r->cmds));
	else
		rig_deliver(r, i, rnd(s, 12) == 0);
}

static void other(struct gsoak *s)
{
	struct rig *r = s->r;
	unsigned g = (unsigned)rnd(s, GROUPS);
	switch (rnd(s, 9)) {
	case 0:
	case 1:
		(void)!mind_evict(r->m, BYTES_STR("t"),
				  BYTES_STR(member(g, (unsigned)rnd(s, MEMBERS))));
		break;
	case 2:
		if (rnd(s, 4) == 0)
			master_dies(s);
		break;
	case 3:
		if (rnd(s, 3) == 0)
			holder(s);
		break;
	case 4:
		mind_resend(r->m, (uint32_t)rnd(s, FAKES));
		break;
	case 5:
		rig_pass(r, rnd(s, 20000));
		break;
	case 6:
		(void)rig_use(r, member(g, (unsigned)rnd(s, MEMBERS)), (uint32_t)rnd(s, 3000));
		break;
	case 7:
		if (g < 2 && rnd(s, 6) == 0) {
			struct rig_remove x;
			rig_remove_start(r, &x, member(g, (unsigned)rnd(s, MEMBERS)));
			mind_drop(r->m, &x.c);
		}
		break;
	default:
		(void)mind_work(r->m);
	}
}

static void settle(struct gsoak *s)
{
	for (int i = 0; i < FAKES; i++) {
		s->r->h[i].up = true;
		rig_register(s->r, i);
	}
	for (int n = 0; n < 8; n++) {
		rig_run(s->r);
		for (uint32_t i = 0; i < mind_holders(s->r->m); i++)
			mind_resend(s->r->m, i);
		rig_pass(s->r, 31000);
	}
	rig_run(s->r);
}

/* Nobody puts to the open group after it was whole once; so whatever is evicted of it, all is. */
static void fill_open(struct gsoak *s)
{
	for (unsigned i = 0; i < MEMBERS; i++)
		cr_assert_eq(rig_put_opts(s->r, member(2, i), 100, &s->o[2]), ERR_NONE);
	s->open_whole = true;
}

static void scenario(uint64_t seed, struct gsoak *sum)
{
	struct gsoak *s = calloc(1, sizeof(*s));
	cr_assert(s);
	s->seed = seed;
	s->rng = seed * 0x9e3779b97f4a7c15 + 1;
	s->aways = seed % 2;
	const struct mind_limits stay = { .dead_ms = UINT32_MAX };
	s->r = rig_bare(s->aways ? NULL : &stay);
	s->o[0] = of("a", MEMBERS);
	s->o[1] = of("b", MEMBERS);
	s->o[2] = of("c", 0);
	for (int i = 0; i < FAKES; i++) {
		s->r->h[i].piece = (uint32_t)rnd(s, 4) * 3;
		rig_register(s->r, i);
	}
	rig_run(s->r);
	if (!s->aways)
		fill_open(s);
	for (int i = 0; i < 500; i++) {
		uint64_t what = rnd(s, 10);
		if (what < 4)
			put_on(s);
		else if (what < 7)
			message(s);
		else if (what < 8)
			rig_appends(s->r);
		else
			other(s);
		mind_check(s->r->m);
		for (unsigned g = 0; g < GROUPS; g++)
			judge(s, g);
	}
	settle(s);
	for (unsigned g = 0; g < GROUPS; g++)
		judge(s, g);
	for (int i = 0; i < WRITERS; i++) {
		mind_drop(s->r->m, &s->p[i].p.p.call);
		mind_drop(s->r->m, &s->p[i].p.pub);
	}
	sum->whole += s->whole;
	sum->none += s->none;
	rig_free(s->r);
	free(s);
}

Test(group, all_or_none_under_random_faults, .timeout = 110)
{
	struct gsoak sum = { 0 };
	for (uint64_t seed = 1; seed <= 300; seed++)
		scenario(seed, &sum);
	cr_assert_gt(sum.whole, 20000, "%" PRIu64, sum.whole);
	cr_assert_gt(sum.none, 20000, "%" PRIu64, sum.none);
	NO_LEAKS();
}
