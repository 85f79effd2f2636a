/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions, ranges, lists, explain; the roster; what holders say that is not sound; lost appends. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

static void on_end(struct mind_call *c)
{
	(void)c;
}

/* ---- conditions ---- */

static enum err put_if(struct rig *r, const char *key, const struct msg_put_item *cond,
		       struct rig_put *out)
{
	struct rig_put p = { .r = r, .who = rig_who(r), .it = *cond };
	p.it.attempt = ++r->attempt;
	p.it.key = BYTES_STR(key);
	p.p.call.done = on_end;
	snprintf(p.key, sizeof(p.key), "%s", key);
	mind_put_start(r->m, &p.who, &p.it, &p.p);
	if (p.p.call.err == ERR_NONE) {
		p.h = rig_index(r, p.p.holder);
		if (out) {
			*out = p;
		} else {
			const struct mind_who w = rig_who(r);
			(void)mind_put_revoke(r->m, &w, p.it.attempt, p.p.version);
			rig_run(r);
		}
	}
	return p.p.call.err;
}

Test(calls, conditions_are_looked_at, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t va = 0, vb = 0;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &va), ERR_NONE);
	cr_assert_eq(rig_put_v(r, "b", 1, false, &vb), ERR_NONE);
	struct msg_put_item it = { .upsert = true, .if_absent = true };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_ALREADY_EXISTS);
	cr_assert_eq(put_if(r, "new", &it, NULL), ERR_NONE);
	it = (struct msg_put_item){ .upsert = true, .if_version = va };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_NONE);
	cr_assert_eq(put_if(r, "b", &it, NULL), ERR_CONFLICT);
	cr_assert_eq(put_if(r, "new", &it, NULL), ERR_CONFLICT);
	it = (struct msg_put_item){ .require_key = BYTES_STR("b"), .require_version = vb };
	cr_assert_eq(put_if(r, "new", &it, NULL), ERR_NONE);
	it.require_version++;
	cr_assert_eq(put_if(r, "new", &it, NULL), ERR_CONFLICT);
	it.require_key = BYTES_STR("none");
	cr_assert_eq(put_if(r, "new", &it, NULL), ERR_CONFLICT);
	rig_free(r);
	NO_LEAKS();
}

static void count(struct mind_call *c)
{
	container_of(c, struct rig_put, pub)->published++;
}

Test(calls, a_condition_must_hold_when_it_takes_effect, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t va = 0;
	struct rig_put p;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &va), ERR_NONE);
	const struct msg_put_item it = { .require_key = BYTES_STR("a"),
					 .require_version = va,
					 .size = 10 };
	cr_assert_eq(put_if(r, "b", &it, &p), ERR_NONE);
	p.pub.done = count;
	cr_assert_eq(rig_commit(r, &p), ERR_NONE);
	cr_assert_eq(rig_remove(r, "a"), ERR_NONE);
	rig_publish(r, &p);
	rig_run(r);
	cr_assert_eq(p.pub.err, ERR_CONFLICT);
	cr_assert_eq(rig_get(r, "b", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, p.h, 1), 0);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, remove_if_version_and_ceiling, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0;
	struct mind_call c = { .done = on_end };
	const struct mind_who w = rig_who(r);
	cr_assert_eq(rig_put_v(r, "a", 0, false, &v), ERR_NONE);
	struct msg_remove_item it = { .attempt = 100,
				      .key = BYTES_STR("a"),
				      .if_version = v + 1 };
	mind_remove(r->m, &w, &it, &c);
	cr_assert_eq(c.err, ERR_CONFLICT);
	it = (struct msg_remove_item){ .attempt = 101,
				       .key = BYTES_STR("a"),
				       .ceiling = v - 1 };
	mind_remove(r->m, &w, &it, &c);
	rig_run(r);
	cr_assert_eq(c.err, ERR_NONE);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE, "it is newer than the ceiling");
	it = (struct msg_remove_item){ .attempt = 102, .key = BYTES_STR("a"), .if_version = v };
	mind_remove(r->m, &w, &it, &c);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	it = (struct msg_remove_item){ .attempt = 103, .key = BYTES_STR("") };
	mind_remove(r->m, &w, &it, &c);
	cr_assert_eq(c.err, ERR_INVALID_PARAMS);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, what_a_put_may_not_ask, .timeout = 10)
{
	struct rig *r = rig_new();
	static uint8_t big[OBJ_KEY_MAX + 1];
	struct msg_put_opts durable = { .durable = true };
	struct msg_put_opts many = { .replica_num = 17 }, two = { .replica_num = 2 };
	struct msg_put_item it = { .replicas_required = 2 };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_INVALID_PARAMS, "of one");
	it = (struct msg_put_item){ .opts = &many };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_INVALID_PARAMS);
	it = (struct msg_put_item){ .opts = &two, .replicas_required = 3 };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_INVALID_PARAMS);
	it = (struct msg_put_item){ .opts = &durable };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_UNSUPPORTED);
	it = (struct msg_put_item){ .require_key = BYTES(big, sizeof(big)) };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_INVALID_PARAMS);
	it = (struct msg_put_item){ 0 };
	cr_assert_eq(put_if(r, "", &it, NULL), ERR_INVALID_PARAMS);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, before_anybody_is_here, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	const struct msg_put_item it = { .size = 1 };
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_NOT_READY);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	rig_register(r, 0);
	rig_run(r);
	rig_restart(r);
	cr_assert_eq(put_if(r, "a", &it, NULL), ERR_RECOVERING);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_RECOVERING);
	rig_free(r);
	NO_LEAKS();
}

/* ---- ranges ---- */

Test(calls, a_prefix_goes_and_stays_gone, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t n = 0;
	char k[8];
	for (int i = 0; i < 10; i++) {
		snprintf(k, sizeof(k), "%c%d", i % 2 ? 'x' : 'y', i);
		cr_assert_eq(rig_put(r, k, i % 4 < 2, false), ERR_NONE);
	}
	rig_away(r, 1);
	uint64_t there = rig_counts(r).objects;
	cr_assert_eq(rig_remove_prefix(r, "x", &n), ERR_NONE);
	cr_assert(n > 0 && n < there);
	cr_assert_eq(rig_counts(r).objects, there - n);
	cr_assert_eq(meta_holder_find(r->st, BYTES_STR("h1")) != NULL, true);
	rig_register(r, 1);
	rig_run(r);
	for (int i = 0; i < 10; i++) {
		snprintf(k, sizeof(k), "%c%d", i % 2 ? 'x' : 'y', i);
		cr_assert_eq(rig_get(r, k, NULL), i % 2 ? ERR_NOT_FOUND : ERR_NONE, "%s", k);
	}
	cr_assert_eq(rig_put(r, "x1", 0, false), ERR_NONE);
	cr_assert_eq(rig_remove_prefix(r, "", &n), ERR_NONE, "all of the tenant");
	cr_assert_eq(n, 6);
	cr_assert_eq(rig_counts(r).objects, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, a_range_waits_for_unmerged_holders, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t n = 0;
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	cr_assert_eq(rig_put(r, "b", 1, false), ERR_NONE);
	rig_restart(r);
	r->h[0].up = false;
	cr_assert_eq(rig_remove_prefix(r, "", &n), ERR_TIMED_OUT);
	r->h[0].up = true;
	mind_resend(r->m, rig_holder(r, 0));
	rig_run(r); /* the call has gone; what was begun goes on */
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_get(r, "b", NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

/* ---- lists ---- */

struct listed {
	uint64_t hash[64];
	size_t n, stop;
};

static bool on_listed(void *arg, const struct mind_object *o)
{
	struct listed *l = arg;
	l->hash[l->n++] = obj_key_hash(BYTES_STR("t"), o->key);
	return l->n % l->stop != 0;
}

Test(calls, lists_go_by_the_keys_hash_and_show_all_once, .timeout = 10)
{
	struct rig *r = rig_new();
	char k[8];
	for (int i = 0; i < 40; i++) {
		snprintf(k, sizeof(k), "%c%d", i % 2 ? 'x' : 'y', i);
		cr_assert_eq(rig_put(r, k, i % 2, false), ERR_NONE);
	}
	for (size_t stop = 1; stop <= 41; stop += 5) {
		struct listed l = { .stop = stop };
		struct mind_cursor cursor = { 0 };
		while (mind_list(r->m, BYTES_STR("t"), BYTES(NULL, 0), &cursor, on_listed, &l))
			;
		cr_assert_eq(l.n, 40);
		for (size_t i = 1; i < l.n; i++)
			cr_assert_lt(l.hash[i - 1], l.hash[i]);
	}
	struct listed l = { .stop = 64 };
	struct mind_cursor cursor = { 0 };
	cr_assert_not(mind_list(r->m, BYTES_STR("t"), BYTES_STR("x"), &cursor, on_listed, &l));
	cr_assert_eq(l.n, 20);
	cursor = (struct mind_cursor){ 0 };
	cr_assert_not(
		mind_list(r->m, BYTES_STR("other"), BYTES(NULL, 0), &cursor, on_listed, &l));
	cr_assert_eq(l.n, 20);
	rig_free(r);
	NO_LEAKS();
}

/*
 * Keys of one hash, any number: with u16 length, tenant "t" and 61 bytes of key 64 bytes are hashed, and XXH3
 * multiplies bytes 16..23 xor eight of its own with 24..31: the first are made 0.
 */
static void twin_of(unsigned i, char out[80])
{
	static const char own[] = "\xcb\x79\xe6\x4e\xcc\xc0\xe5\x78";
	snprintf(out, 80, "%s%.8s%08u%s", "twins/twins/t", own, i,
		 "the rest of the key is alike....");
}

struct twins {
	unsigned seen[5000];
	size_t n, stop;
};

static bool on_twin(void *arg, const struct mind_object *o)
{
	struct twins *l = arg;
	char digits[9] = "";
	memcpy(digits, o->key.p + 21, 8);
	l->seen[strtoul(digits, NULL, 10)]++;
	return ++l->n % l->stop != 0;
}

static void list_twins(struct rig *r, unsigned n, size_t stop)
{
	static struct twins l;
	struct mind_cursor cursor = { 0 };
	l = (struct twins){ .stop = stop };
	while (mind_list(r->m, BYTES_STR("t"), BYTES_STR("twins/"), &cursor, on_twin, &l))
		;
	cr_assert_eq(l.n, n, "%zu, not %u, in pages of %zu", l.n, n, stop);
	for (unsigned i = 0; i < n; i++)
		cr_assert_eq(l.seen[i], 1, "%u", i);
}

Test(calls, a_page_may_end_between_keys_of_one_hash, .timeout = 20)
{
	struct rig *r = rig_new();
	char k[80], k0[80];
	twin_of(0, k0);
	for (unsigned i = 0; i < 20; i++) {
		twin_of(i, k);
		cr_assert_eq(obj_key_hash(BYTES_STR("t"), BYTES_STR(k)),
			     obj_key_hash(BYTES_STR("t"), BYTES_STR(k0)));
		cr_assert(i == 0 || obj_key_tie(BYTES_STR(k)) != obj_key_tie(BYTES_STR(k0)));
		cr_assert_eq(rig_put(r, k, 0, false), ERR_NONE);
		snprintf(k, sizeof(k), "other/%u", i);
		cr_assert_eq(rig_put(r, k, 1, false), ERR_NONE);
	}
	for (size_t stop = 1; stop <= 21; stop++)
		list_twins(r, 20, stop);
	rig_free(r);
	NO_LEAKS();
}

/* More of them than a page of the scan holds. */
Test(calls, a_page_of_one_hash_may_be_over, .timeout = 20)
{
	struct rig *r = rig_bare(NULL);
	rig_register(r, 0);
	rig_appends(r);
	rig_deliver(r, 0, false);
	struct msg_under u = { 0, r->h[0].term, r->h[0].adoption, r->h[0].epoch };
	for (unsigned i = 0; i < 5000; i++) {
		char k[80];
		twin_of(i, k);
		struct msg_entry e = { .slot = i,
				       .state = 1,
				       .published = true,
				       .tenant = BYTES_STR("t"),
				       .key = BYTES_STR(k),
				       .version = version_make(1, 5 + i) };
		struct msg_inventory_rep rep = { .under = &u,
						 .cursor = i + 1 < 5000 ? i + 1 : 0,
						 .entries = { &e, 1 } };
		mind_inventory(r->m, 0, &rep);
	}
	list_twins(r, 5000, 5001);
	list_twins(r, 5000, 999);
	rig_lose(r, -1, -1);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, a_list_has_what_is_adopted_again_just_now, .timeout = 10)
{
	struct rig *r = rig_new();
	struct listed l = { .stop = 64 };
	struct mind_cursor cursor = { 0 };
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	cr_assert_eq(rig_put(r, "b", 1, false), ERR_NONE);
	rig_reborn(r, 0);
	r->h[0].up = false;
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_TEMPORARILY_AWAY);
	cr_assert_not(mind_list(r->m, BYTES_STR("t"), BYTES(NULL, 0), &cursor, on_listed, &l));
	cr_assert_eq(l.n, 2, "it was there throughout");
	rig_free(r);
	NO_LEAKS();
}

struct said {
	char text[4096];
};

static void on_fact(void *arg, const char *name, const char *value)
{
	struct said *s = arg;
	size_t n = strlen(s->text);
	snprintf(s->text + n, sizeof(s->text) - n, "%s=%s\n", name, value);
}

Test(calls, explain_says_what_is_known, .timeout = 10)
{
	struct rig *r = rig_new();
	struct said s = { 0 };
	struct rig_put p;
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_start(r, &p, "a", 10, 1, true);
	mind_explain(r->m, BYTES_STR("t"), BYTES_STR("a"), on_fact, &s);
	cr_assert(strstr(s.text, "hash="), "%s", s.text);
	cr_assert(strstr(s.text, "version="), "%s", s.text);
	cr_assert(strstr(s.text, "holder h0 slot 0"), "%s", s.text);
	cr_assert(strstr(s.text, "served"), "%s", s.text);
	cr_assert(strstr(s.text, "attempt="), "%s", s.text);
	rig_away(r, 0);
	cr_assert_eq(rig_remove(r, "z"), ERR_NONE);
	s.text[0] = '\0';
	mind_explain(r->m, BYTES_STR("t"), BYTES_STR("z"), on_fact, &s);
	cr_assert(strstr(s.text, "tombstone=at h0"), "%s", s.text);
	cr_assert(strstr(s.text, "away=h0"), "%s", s.text);
	rig_free(r);
	NO_LEAKS();
}

/* ---- the roster ---- */

Test(calls, a_forgotten_holder_returns_empty, .timeout = 10)
{
	struct rig *r = rig_new();
	struct mind_call c = { .done = on_end, .err = ERR_INTERNAL };
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	mind_forget(r->m, BYTES_STR("h0"), &c);
	rig_run(r);
	cr_assert_eq(c.err, ERR_NONE);
	cr_assert_null(meta_holder_find(r->st, BYTES_STR("h0")));
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	mind_forget(r->m, BYTES_STR("h0"), &c);
	rig_run(r);
	cr_assert_eq(c.err, ERR_NOT_FOUND);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, 0, 1), 0, "all of it is retired and freed");
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, another_pool_under_the_same_name_is_empty, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	r->h[0].pool = 99; /* with slots of old: a pool that was used elsewhere */
	rig_reborn(r, 0);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, holders_not_heard_of_are_away_after_a_while, .timeout = 10)
{
	struct rig *r = rig_new();
	cr_assert_eq(rig_put(r, "a", 0, false), ERR_NONE);
	rig_restart(r);
	r->h[0].up = false;
	rig_run(r);
	cr_assert_eq(rig_get(r, "x", NULL), ERR_RECOVERING);
	cr_assert_leq(mind_due_ns(r->m), r->now + 30000000000ull);
	rig_pass(r, 30001);
	rig_run(r);
	cr_assert_eq(rig_get(r, "x", NULL), ERR_NOT_FOUND);
	struct mind_holder h;
	cr_assert(mind_holder(r->m, rig_holder(r, 0), &h));
	cr_assert(h.away);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, readers_avoid_a_suspect, .timeout = 10)
{
	struct rig *r = rig_new();
	struct mind_holder h;
	mind_suspect(r->m, BYTES_STR("h0"), true);
	cr_assert(mind_holder(r->m, rig_holder(r, 0), &h));
	cr_assert(h.suspect);
	for (int i = 0; i < 8; i++) {
		struct rig_put p;
		char k[8];
		snprintf(k, sizeof(k), "k%d", i);
		rig_start(r, &p, k, 10, -1, true);
		cr_assert_eq(p.h, 1, "and puts do");
	}
	mind_suspect(r->m, BYTES_STR("h0"), false);
	rig_free(r);
	NO_LEAKS();
}

/* ---- appends that fail ---- */

Test(calls, a_full_disk_is_waited_for, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	rig_away(r, 0);
	r->append_err = ERR_NO_SPACE;
	rig_remove_start(r, &x, "a");
	rig_run(r);
	cr_assert_eq(x.done, 0);
	cr_assert_eq(rig_counts(r).failed, ERR_NONE);
	r->append_err = ERR_NONE;
	rig_pass(r, 101);
	rig_run(r);
	cr_assert_eq(x.done, 1);
	r->append_err = ERR_NO_SPACE;
	rig_register(r, 0);
	rig_run(r);
	r->append_err = ERR_NONE;
	rig_pass(r, 101);
	rig_run(r);
	struct mind_holder h;
	cr_assert((mind_holder(r->m, rig_holder(r, 0), &h), h.merged));
	rig_free(r);
	NO_LEAKS();
}

Test(calls, a_broken_log_is_told, .timeout = 10)
{
	struct rig *r = rig_new();
	struct rig_remove x;
	rig_away(r, 0);
	r->append_err = ERR_IO;
	rig_remove_start(r, &x, "a");
	rig_run(r);
	cr_assert_eq(rig_counts(r).failed, ERR_IO);
	cr_assert_eq(x.done, 0);
	rig_free(r); /* the call ends with the mind */
	cr_assert_eq(x.c.err, ERR_SHUTTING_DOWN);
	NO_LEAKS();
}

/* ---- unsound inventories (B5, case 4) ---- */

Test(calls, bad_entries_are_rejected_one_by_one, .timeout = 10)
{
	struct rig *r = rig_bare(NULL);
	rig_register(r, 0);
	rig_appends(r);
	rig_deliver(r, 0, false);
	struct msg_under u = { 0, r->h[0].term, r->h[0].adoption, r->h[0].epoch };
	const uint64_t v = version_make(1, 5);
	const struct msg_extent good = { 0, 0, 4096 }, over = { 0, 2048, 64 };
	const struct msg_extent wild = { 7, 1ull << 60, 4096 }, two[2] = { good, wild };
	const struct msg_entry good_entry = { .slot = 1,
					      .state = 1,
					      .published = true,
					      .tenant = BYTES_STR("t"),
					      .key = BYTES_STR("good"),
					      .version = v - 1,
					      .size = 4096,
					      .extents = { &good, 1 } };
	struct msg_entry e[10];
	for (int i = 0; i < 10; i++)
		e[i] = good_entry;
	e[1].slot = UINT32_MAX;
	e[2].slot = 2, e[2].key.n = 0;
	e[3].slot = 3, e[3].version = 0;
	e[4].slot = 4, e[4].state = 9;
	e[5].slot = 5, e[5].extents.p = two, e[5].extents.n = 2;
	e[6].slot = 6, e[6].tenant.n = 0;
	e[7].slot = 7, e[7].key = BYTES_STR("over"), e[7].extents.p = &over;
	e[8].slot = 8, e[8].key = BYTES_STR("wild"), e[8].extents.p = &wild;
	e[9].slot = 1; /* the same again: it came twice */
	struct msg_inventory_rep rep = { .under = &u, .entries = { e, 10 } };
	/* the floor of a new holder does not bar what is above it */
	for (int i = 0; i < 10; i++)
		e[i].version = e[i].version ? v + (uint64_t)i : 0;
	e[9].version = e[0].version;
	mind_inventory(r->m, 0, &rep);
	mind_check(r->m);
	cr_assert_eq(rig_get(r, "good", NULL), ERR_NONE);
	cr_assert_neq(rig_get(r, "over", NULL), ERR_NONE);
	cr_assert_neq(rig_get(r, "wild", NULL), ERR_NONE);
	cr_assert_eq(rig_counts(r).rejected, 8);
	cr_assert_eq(rig_counts(r).malformed, 6, "and two overlaps");
	rig_lose(r, -1, -1);
	rig_free(r);
	NO_LEAKS();
}

Test(calls, a_corrupt_slot_leaves_the_index, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &v), ERR_NONE);
	const struct mind_under u = rig_under(r, 0);
	mind_corrupt(r->m, rig_holder(r, 0), &u, 0, 0, v + 1);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NONE);
	r->h[0].slots[0].state = 2;
	r->h[0].slots[0].reason = RETIRE_CORRUPT;
	mind_corrupt(r->m, rig_holder(r, 0), &u, 0, 0, v);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	rig_run(r);
	cr_assert_eq(rig_slots(r, 0, 2), 0);
	rig_free(r);
	NO_LEAKS();
}
