/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta_state.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "meta_model.h"
#include "support/leak.h"

static struct meta_state *state_new(void)
{
	struct meta_state *st = NULL;
	cr_assert_eq(meta_state_new(7, &st), ERR_NONE);
	return st;
}

static enum err put(struct meta_state *st, struct meta_rec r)
{
	return meta_state_apply(st, meta_last_seq(st) + 1, &r);
}

#define S(s)                                        \
	{                                           \
		(const uint8_t *)(s), sizeof(s) - 1 \
	}
#define HOLDER(name, is_away)                    \
	((struct meta_rec){ .type = META_HOLDER, \
			    .HOLDER = { .id = S(name), .kind = 1, .away = is_away } })
#define TOMB(name, k, c) \
	((struct meta_rec){ .type = META_TOMB, .TOMB = { S(name), 0, S("t"), S(k), c, c } })
#define RANGE(name, t, p, c) \
	((struct meta_rec){ .type = META_RANGE, .RANGE = { S(name), 0, 1, S(t), S(p), c, c } })
#define FLOOR(name, f) ((struct meta_rec){ .type = META_FLOOR, .FLOOR = { S(name), 0, f } })
#define SETTLED(name, n) \
	((struct meta_rec){ .type = META_SETTLED, .SETTLED = { S(name), 0, n } })
#define TERM(n) ((struct meta_rec){ .type = META_TERM, .TERM = { n } })

static uint64_t barred(const struct meta_state *st, const char *holder, const char *key)
{
	const struct meta_holder *h = meta_holder_find(st, BYTES_STR(holder));
	cr_assert(h);
	return meta_barred(h, 0, BYTES_STR("t"), BYTES_STR(key));
}

static void finish(struct meta_state *st)
{
	while (meta_state_sweep(st, 100))
		;
	meta_state_check(st);
	meta_state_free(st);
}

Test(meta_state, term_only_rises, .timeout = 5)
{
	struct meta_state *st = state_new();
	cr_assert_eq(meta_term(st), 0);
	cr_assert_eq(put(st, TERM(3)), ERR_NONE);
	cr_assert_eq(put(st, TERM(3)), ERR_CONFLICT);
	cr_assert_eq(put(st, TERM(2)), ERR_CONFLICT);
	cr_assert_eq(meta_term(st), 3);
	cr_assert_eq(meta_last_seq(st), 3, "records without effect have numbers too");
	finish(st);
	NO_LEAKS();
}

Test(meta_state, tombstones_and_ranges, .timeout = 5)
{
	struct meta_state *st = state_new();
	cr_assert_eq(put(st, TOMB("h", "k", 5)), ERR_NOT_FOUND);
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE);
	cr_assert_eq(put(st, TOMB("h", "key", 5)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "key"), 5);
	cr_assert_eq(barred(st, "h", "ke"), 0);
	cr_assert_eq(barred(st, "h", "keyy"), 0);
	cr_assert_eq(put(st, RANGE("h", "t", "ke", 9)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "key"), 9);
	cr_assert_eq(barred(st, "h", "ke"), 9);
	cr_assert_eq(barred(st, "h", "k"), 0);
	cr_assert_eq(put(st, RANGE("h", "other", "", 20)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "key"), 9, "another tenant's");
	cr_assert_eq(put(st, RANGE("h", "", "", 11)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "zzz"), 11, "every tenant's");
	cr_assert_eq(put(st, TOMB("h", "key", 4)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "key"), 11, "I2: nothing is barred less");
	const struct meta_holder *h = meta_holder_find(st, BYTES_STR("h"));
	cr_assert_eq(meta_barred(h, 1, BYTES_STR("t"), BYTES_STR("key")), 0, "another shard");
	finish(st);
	NO_LEAKS();
}

Test(meta_state, tombstones_of_groups_bar_their_members_alone, .timeout = 5)
{
	struct meta_state *st = state_new();
	const struct bytes t = BYTES_STR("t"), g = BYTES_STR("ke");
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE);
	const struct meta_rec r = { .type = META_RANGE,
				    .RANGE = { S("h"), 0, 2, S("t"), S("ke"), 9, 9 } };
	cr_assert_eq(put(st, r), ERR_NONE);
	const struct meta_holder *h = meta_holder_find(st, BYTES_STR("h"));
	cr_assert_eq(meta_barred_group(h, 0, t, g), 9);
	cr_assert_eq(meta_barred_group(h, 0, t, BYTES_STR("key")), 0);
	cr_assert_eq(meta_barred_group(h, 0, BYTES_STR("u"), g), 0);
	cr_assert_eq(barred(st, "h", "key"), 0, "it is no prefix");
	cr_assert_eq(barred(st, "h", "ke"), 0, "and no key");
	cr_assert_not(meta_holder_clear(h, 0));
	cr_assert_eq(put(st, FLOOR("h", 12)), ERR_NONE);
	cr_assert_eq(meta_barred_group(h, 0, t, g), 12);
	cr_assert_eq(put(st, SETTLED("h", 3)), ERR_NONE);
	cr_assert_eq(meta_barred_group(h, 0, t, g), 0);
	cr_assert(meta_holder_clear(h, 0));
	finish(st);
	NO_LEAKS();
}

/* V11, V14: what was acknowledged goes, what came later stays. */
Test(meta_state, settled, .timeout = 5)
{
	struct meta_state *st = state_new();
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE); /* 1 */
	cr_assert_eq(put(st, TOMB("h", "a", 5)), ERR_NONE); /* 2 */
	cr_assert_eq(put(st, FLOOR("h", 3)), ERR_NONE);	    /* 3 */
	cr_assert_eq(put(st, TOMB("h", "b", 6)), ERR_NONE); /* 4 */
	const struct meta_holder *h = meta_holder_find(st, BYTES_STR("h"));
	cr_assert_not(meta_holder_clear(h, 0));
	cr_assert_eq(put(st, SETTLED("h", 3)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "a"), 0);
	cr_assert_eq(meta_floor(h, 0), 0);
	cr_assert_eq(barred(st, "h", "b"), 6);
	cr_assert_not(meta_holder_clear(h, 0));
	cr_assert_eq(put(st, SETTLED("h", 5)), ERR_NONE);
	cr_assert(meta_holder_clear(h, 0));
	/* a dead one that is written again starts anew */
	cr_assert_eq(put(st, TOMB("h", "b", 2)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "b"), 2);
	cr_assert_eq(put(st, SETTLED("nobody", 5)), ERR_NOT_FOUND);
	finish(st);
	NO_LEAKS();
}

/* A tombstone made after a floor is kept although the floor bars more: the floor may go first.
 */
Test(meta_state, tombstone_under_a_floor, .timeout = 5)
{
	struct meta_state *st = state_new();
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE);  /* 1 */
	cr_assert_eq(put(st, TOMB("h", "a", 40)), ERR_NONE); /* 2: the floor takes its place */
	cr_assert_eq(put(st, FLOOR("h", 100)), ERR_NONE);    /* 3 */
	cr_assert_eq(put(st, TOMB("h", "a", 50)), ERR_NONE); /* 4 */
	cr_assert_eq(barred(st, "h", "a"), 100);
	cr_assert_eq(put(st, SETTLED("h", 3)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "a"), 50);
	finish(st);
	NO_LEAKS();
}

Test(meta_state, forget, .timeout = 5)
{
	struct meta_state *st = state_new();
	struct meta_counts c;
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE);
	cr_assert_eq(put(st, TOMB("h", "a", 5)), ERR_NONE);
	cr_assert_eq(put(st, (struct meta_rec){ .type = META_FORGET, .FORGET = { S("h") } }),
		     ERR_NONE);
	cr_assert_eq(put(st, (struct meta_rec){ .type = META_FORGET, .FORGET = { S("h") } }),
		     ERR_NOT_FOUND);
	cr_assert_null(meta_holder_find(st, BYTES_STR("h")));
	meta_state_check(st);
	/* comes back before the sweep took what it had */
	cr_assert_eq(put(st, HOLDER("h", false)), ERR_NONE);
	cr_assert_eq(barred(st, "h", "a"), 0);
	meta_state_counts(st, &c);
	cr_assert_eq(c.holders, 1);
	cr_assert_eq(c.away, 0);
	cr_assert_eq(c.dead, 1);
	meta_state_check(st);
	finish(st);
	st = state_new();
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE);
	cr_assert_eq(put(st, TOMB("h", "a", 5)), ERR_NONE);
	cr_assert_eq(put(st, (struct meta_rec){ .type = META_FORGET, .FORGET = { S("h") } }),
		     ERR_NONE);
	meta_state_free(st); /* unswept */
	meta_state_free(NULL);
	NO_LEAKS();
}

Test(meta_state, holder_rows, .timeout = 5)
{
	struct meta_state *st = state_new();
	struct bytes addrs[2] = { BYTES_STR("tcp://10.0.0.1:17601"),
				  BYTES_STR("ipc:///run/agent.sock") };
	struct meta_rec r = HOLDER("agent-1", true);
	r.HOLDER.addrs = (struct bytes_list){ addrs, 2 };
	r.HOLDER.host = BYTES_STR("rack7");
	r.HOLDER.fd_path = BYTES_STR("/run/agent.fd");
	r.HOLDER.away_since = 99;
	r.HOLDER.term = 4;
	r.HOLDER.adoption = 2;
	memcpy(r.HOLDER.pool, "sixteen bytes..", 16);
	cr_assert_eq(put(st, r), ERR_NONE);
	struct meta_holder_info i;
	meta_holder_info(meta_holder_find(st, BYTES_STR("agent-1")), &i);
	cr_assert_str_eq(i.id, "agent-1");
	cr_assert_eq(i.n_addrs, 2);
	cr_assert_str_eq(i.addrs[0], "tcp://10.0.0.1:17601");
	cr_assert_str_eq(i.addrs[1], "ipc:///run/agent.sock");
	cr_assert_str_eq(i.host, "rack7");
	cr_assert_str_eq(i.fd_path, "/run/agent.fd");
	cr_assert(i.away && i.away_since == 99 && i.term == 4 && i.adoption == 2);
	cr_assert_arr_eq(i.pool, "sixteen bytes..", 16);
	r.HOLDER.away = false;
	r.HOLDER.addrs = (struct bytes_list){ addrs + 1, 1 };
	cr_assert_eq(put(st, r), ERR_NONE);
	meta_holder_info(meta_holder_find(st, BYTES_STR("agent-1")), &i);
	cr_assert_eq(i.n_addrs, 1);
	cr_assert_not(i.away);
	finish(st);
	NO_LEAKS();
}

/* ---- budgets (T3) ---- */

static enum err admit(struct meta_state *st, struct meta_limits *l, struct meta_rec *r,
		      struct why *why)
{
	enum err e = meta_state_admit(st, l, r, why);
	return e;
}

Test(meta_state, a_spent_budget_becomes_a_floor, .timeout = 5)
{
	struct meta_state *st = state_new();
	struct meta_limits l = { .tombs_max = 3 };
	struct why why = { 0 };
	meta_limits_default(&l);
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE);
	cr_assert_eq(put(st, HOLDER("g", true)), ERR_NONE);
	meta_state_plan(st);
	struct meta_rec r[4] = { TOMB("h", "a", 5), TOMB("h", "b", 6), TOMB("h", "c", 7),
				 TOMB("h", "d", 8) };
	r[3].TOMB.now = 30;
	for (int i = 0; i < 4; i++)
		cr_assert_eq(admit(st, &l, &r[i], &why), ERR_NONE);
	cr_assert_eq(r[2].type, META_TOMB);
	cr_assert_eq(r[3].type, META_FLOOR);
	cr_assert_eq(r[3].FLOOR.floor, 30);
	struct meta_rec other = TOMB("g", "a", 5);
	cr_assert_eq(admit(st, &l, &other, &why), ERR_NONE);
	cr_assert_eq(other.type, META_TOMB, "a budget is one holder's");
	for (int i = 0; i < 4; i++)
		cr_assert_eq(put(st, r[i]), ERR_NONE);
	cr_assert_eq(barred(st, "h", "anything"), 30, "it returns empty");

	/* what the floor took no longer counts, swept or not */
	struct meta_holder_info info;
	meta_holder_info(meta_holder_find(st, BYTES_STR("h")), &info);
	cr_assert_eq(info.n_tombs, 0);
	meta_state_plan(st);
	struct meta_rec next = TOMB("h", "a", 31);
	cr_assert_eq(admit(st, &l, &next, &why), ERR_NONE);
	cr_assert_eq(next.type, META_TOMB);
	cr_assert_eq(put(st, next), ERR_NONE);
	meta_state_check(st);

	l.tomb_bytes_max = 99;
	meta_state_plan(st);
	struct meta_rec range = RANGE("h", "t", "b", 35);
	range.RANGE.now = 40;
	cr_assert_eq(admit(st, &l, &range, &why), ERR_NONE);
	cr_assert_eq(range.type, META_FLOOR, "by bytes too");
	cr_assert_eq(range.FLOOR.floor, 40);
	finish(st);
	NO_LEAKS();
}

Test(meta_state, limits_refuse_and_name_themselves, .timeout = 5)
{
	struct meta_state *st = state_new();
	struct meta_limits l = { .holders_max = 2, .claims_max = 1, .views_max = 1 };
	struct why why = { 0 };
	meta_limits_default(&l);
	cr_assert_eq(put(st, HOLDER("a", false)), ERR_NONE);
	meta_state_plan(st);
	struct meta_rec b = HOLDER("b", false), c = HOLDER("c", false), a = HOLDER("a", true);
	cr_assert_eq(admit(st, &l, &b, &why), ERR_NONE);
	cr_assert_eq(admit(st, &l, &c, &why), ERR_TOO_LARGE);
	cr_assert(strstr(why.text, "holders: 2"), "%s", why.text);
	cr_assert_eq(admit(st, &l, &a, &why), ERR_NONE, "it is there already");

	struct meta_rec claim = { .type = META_CLAIM,
				  .CLAIM = { S("s"), S("n"), S("o"), S("v") } };
	struct meta_rec view = { .type = META_VIEW,
				 .VIEW = { S("t"), S("g"), 1, 1, S("blob") } };
	meta_state_plan(st);
	cr_assert_eq(admit(st, &l, &claim, &why), ERR_NONE);
	claim.CLAIM.name = BYTES_STR("m");
	cr_assert_eq(admit(st, &l, &claim, NULL), ERR_TOO_LARGE);
	cr_assert_eq(admit(st, &l, &view, &why), ERR_NONE);
	view.VIEW.group = BYTES_STR("h");
	cr_assert_eq(admit(st, &l, &view, NULL), ERR_TOO_LARGE);

	meta_state_plan(st);
	l.bytes_max = 10;
	why = (struct why){ 0 };
	claim.CLAIM.name = BYTES_STR("n");
	cr_assert_eq(admit(st, &l, &claim, &why), ERR_TOO_LARGE);
	cr_assert(strstr(why.text, "bytes: 10"), "%s", why.text);
	finish(st);
	NO_LEAKS();
}

Test(meta_state, admission_sees_conflicts_before_they_are_written, .timeout = 5)
{
	struct meta_state *st = state_new();
	struct meta_limits l = { 0 };
	struct why why = { 0 };
	meta_limits_default(&l);
	struct meta_rec claim = { .type = META_CLAIM,
				  .CLAIM = { S("s"), S("n"), S("one"), S("v") } };
	struct meta_rec view = { .type = META_VIEW,
				 .VIEW = { S("t"), S("g"), 2, 7, S("blob") } };
	cr_assert_eq(put(st, claim), ERR_NONE);
	cr_assert_eq(put(st, view), ERR_NONE);
	cr_assert_eq(put(st, TERM(4)), ERR_NONE);
	meta_state_plan(st);
	claim.CLAIM.owner = BYTES_STR("two");
	cr_assert_eq(admit(st, &l, &claim, &why), ERR_CONFLICT);
	cr_assert(strstr(why.text, "'one'"), "%s", why.text);
	why = (struct why){ 0 };
	cr_assert_eq(admit(st, &l, &view, &why), ERR_CONFLICT);
	cr_assert(strstr(why.text, "epoch 7"), "%s", why.text);
	struct meta_rec t = TERM(4), u = TERM(5), tomb = TOMB("x", "k", 1);
	cr_assert_eq(admit(st, &l, &t, NULL), ERR_CONFLICT);
	cr_assert_eq(admit(st, &l, &u, NULL), ERR_NONE);
	cr_assert_eq(admit(st, &l, &u, NULL), ERR_CONFLICT, "planned already");
	why = (struct why){ 0 };
	cr_assert_eq(admit(st, &l, &tomb, &why), ERR_NOT_FOUND);
	cr_assert(strstr(why.text, "'x'"), "%s", why.text);
	struct meta_rec x = HOLDER("x", true);
	cr_assert_eq(admit(st, &l, &x, NULL), ERR_NONE);
	cr_assert_eq(admit(st, &l, &tomb, NULL), ERR_NONE, "planned to be there");
	finish(st);
	NO_LEAKS();
}

/* ---- against the model ---- */

struct restore {
	struct meta_state *st;
};

static enum err restore_one(void *arg, uint64_t seq, const struct meta_rec *r)
{
	struct restore *re = arg;
	return meta_state_restore(re->st, seq, r);
}

static struct meta_state *through_a_snapshot(const struct meta_state *st)
{
	struct restore re = { state_new() };
	cr_assert_eq(meta_state_dump(st, restore_one, &re), ERR_NONE);
	meta_state_restored(re.st, meta_last_seq(st));
	meta_state_check(re.st);
	return re.st;
}

static void run_against_model(uint64_t seed, int n_ops)
{
	static struct model m;
	memset(&m, 0, sizeof(m));
	struct meta_state *st = state_new();
	uint64_t counter = 10, seq = 0;
	for (int i = 0; i < n_ops; i++) {
		struct model_rec rec;
		model_random(&seed, &counter, &m, &rec);
		seq += 1 + model_rnd(&seed) % 2;
		enum err want = model_apply(&m, seq, &rec.r),
			 got = meta_state_apply(st, seq, &rec.r);
		cr_assert_eq(got, want, "op %d %s: %s, want %s", i, meta_type_name(rec.r.type),
			     err_name(got), err_name(want));
		if (model_rnd(&seed) % 4 == 0)
			meta_state_sweep(st, model_rnd(&seed) % 40);
		if (i % 97 == 0) {
			meta_state_check(st);
			model_compare(&m, st);
		}
		if (i % 1009 == 0) {
			struct meta_state *again = through_a_snapshot(st);
			model_compare(&m, again);
			meta_state_free(st);
			st = again;
		}
	}
	model_compare(&m, st);
	finish(st);
}

Test(meta_state, random_records_against_a_plain_model, .timeout = 60)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		run_against_model(seed, 10000);
	NO_LEAKS();
}

/* ---- slices ---- */

static void count_one(void *arg, uint64_t seq, const struct meta_rec *r)
{
	size_t *n = arg;
	cr_assert(r->type == META_TOMB && seq > 0);
	++*n;
}

Test(meta_state, many_tombstones_die_in_slices, .timeout = 30)
{
	struct meta_state *st = state_new();
	enum { N = 20000 };
	cr_assert_eq(put(st, HOLDER("h", true)), ERR_NONE);
	for (int i = 0; i < N; i++) {
		char key[16];
		snprintf(key, sizeof(key), "key-%d", i);
		struct meta_rec r = TOMB("h", "", 5);
		r.TOMB.key = BYTES_STR(key);
		cr_assert_eq(put(st, r), ERR_NONE);
	}
	const struct meta_holder *h = meta_holder_find(st, BYTES_STR("h"));
	size_t seen = 0, slices = 0;
	for (uint64_t c = 0; meta_tomb_scan(st, h, &c, 100, count_one, &seen); slices++)
		;
	cr_assert_eq(seen, N);
	cr_assert_gt(slices, 20);

	struct meta_counts before, after;
	cr_assert_eq(put(st, SETTLED("h", N + 1)), ERR_NONE);
	meta_state_counts(st, &before);
	cr_assert_eq(before.tombs, 0, "dead at once");
	cr_assert_eq(before.dead, N);
	slices = 0;
	while (meta_state_sweep(st, 100))
		slices++;
	cr_assert_gt(slices, 20);
	meta_state_counts(st, &after);
	cr_assert_eq(after.dead, 0);
	cr_assert_lt(after.bytes, before.bytes);
	finish(st);
	NO_LEAKS();
}

/* ---- records as bytes ---- */

Test(meta_state, records_encode_and_decode, .timeout = 5)
{
	struct buf b = BUF_INIT(1 << 16);
	struct arena a = ARENA_INIT(1 << 16);
	struct meta_rec r;
	struct why why = { 0 };
	static struct model m;
	uint64_t seed = 3, counter = 10;
	m.term = 5;
	m.last_seq = 100;
	for (int i = 0; i < 2000; i++) {
		struct model_rec rec;
		struct buf again = BUF_INIT(1 << 16);
		model_random(&seed, &counter, &m, &rec);
		buf_clear(&b);
		arena_clear(&a);
		meta_rec_encode(&b, &rec.r);
		cr_assert_eq(meta_rec_decode(rec.r.type, buf_bytes(&b), &a, &r, &why),
			     ERR_NONE);
		meta_rec_encode(&again, &r);
		cr_assert_eq(b.n, again.n);
		cr_assert_arr_eq(b.p, again.p, b.n);
		buf_fini(&again);
	}
	cr_assert_eq(meta_rec_decode(77, buf_bytes(&b), &a, &r, &why), ERR_UNSUPPORTED);
	cr_assert(strstr(why.text, "type 77"), "%s", why.text);
	cr_assert_str_eq(meta_type_name(77), "UNKNOWN");
	cr_assert_str_eq(meta_type_name(META_TOMB), "TOMB");
	buf_fini(&b);
	arena_fini(&a);
	NO_LEAKS();
}

Test(meta_state, unsound_records, .timeout = 5)
{
	static const uint8_t big[1025];
	struct {
		struct meta_rec r;
		const char *says;
	} rows[] = {
		{ TERM(0), "term" },
		{ TERM(1 << 24), "term" },
		{ HOLDER("", true), "id" },
		{ HOLDER("a b", true), "id" },
		{ { .type = META_HOLDER, .HOLDER = { .id = S("h"), .kind = 3 } }, "kind" },
		{ { .type = META_HOLDER,
		    .HOLDER = { .id = S("h"), .kind = 1, .host = S("a\0b") } },
		  "host" },
		{ TOMB("h", "", 5), "key" },
		{ TOMB("h", "k", 0), "ceiling" },
		{ { .type = META_TOMB, .TOMB = { S("h"), 0, S("t"), S("k"), 9, 8 } },
		  "ceiling" },
		{ { .type = META_TOMB, .TOMB = { S("h"), 64, S("t"), S("k"), 9, 9 } },
		  "shard" },
		{ { .type = META_TOMB, .TOMB = { S("h"), 0, S("t"), { big, 1025 }, 9, 9 } },
		  "key" },
		{ { .type = META_TOMB, .TOMB = { S("h"), 0, S(""), S("k"), 9, 9 } }, "tenant" },
		{ { .type = META_RANGE, .RANGE = { S("h"), 0, 3, S("t"), S("k"), 9, 9 } },
		  "match" },
		{ { .type = META_RANGE, .RANGE = { S("h"), 0, 2, S("t"), S(""), 9, 9 } },
		  "match" },
		{ { .type = META_RANGE, .RANGE = { S("h"), 0, 2, S(""), S("g"), 9, 9 } },
		  "match" },
		{ { .type = META_RANGE, .RANGE = { S("h"), 0, 1, S("t/"), S("k"), 9, 9 } },
		  "tenant" },
		{ FLOOR("h", 0), "floor" },
		{ SETTLED("/", 3), "holder" },
		{ { .type = META_CLAIM, .CLAIM = { S(""), S("n"), S("o"), S("v") } }, "space" },
		{ { .type = META_CLAIM, .CLAIM = { S("s"), S(""), S("o"), S("v") } }, "name" },
		{ { .type = META_CLAIM, .CLAIM = { S("s"), S("n"), S(""), S("v") } }, "owner" },
		{ { .type = META_UNCLAIM, .UNCLAIM = { S("s"), S("n"), S("") } }, "owner" },
		{ { .type = META_VIEW, .VIEW = { S("t"), S(""), 1, 1, S("") } }, "group" },
		{ { .type = META_UNVIEW, .UNVIEW = { S(""), S("g"), 1, 1 } }, "tenant" },
		{ { .type = (enum meta_type)99 }, "99" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct why why = { 0 };
		cr_assert_eq(meta_rec_check(&rows[i].r, &why), ERR_INVALID_PARAMS, "row %zu",
			     i);
		cr_assert(strstr(why.text, rows[i].says), "row %zu: %s", i, why.text);
	}
	struct meta_rec good[] = { TERM(1),	      HOLDER("h", true),
				   TOMB("h", "k", 4), RANGE("h", "", "", 4),
				   FLOOR("h", 1),     SETTLED("h", 0) };
	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		cr_assert_eq(meta_rec_check(&good[i], NULL), ERR_NONE);
}
