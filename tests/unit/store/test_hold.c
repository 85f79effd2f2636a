/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holder's part of the store protocol: each rule of hold.h, by the V it mends where there is one.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "store/mempool_priv.h"
#include "store_fix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)

/* ---- adoption ---- */

Test(hold, adopt_raises_the_epoch_and_refuses_a_lower_pair, .timeout = 10)
{
	struct store_fix x;
	struct hold_under u, again;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	cr_assert_gt(epoch, 0, "a start raises it");
	OK(hold_adopt(x.h, 0, 3, 1, &u, &x.why));
	cr_assert_eq(u.pool_epoch, epoch + 1);
	cr_assert_eq(u.term, 3);
	cr_assert_eq(hold_adopt(x.h, 0, 2, 9, &again, &x.why), ERR_STALE_TERM);
	cr_assert(strstr(x.why.text, "2.9") && strstr(x.why.text, "3.1"), "%s", x.why.text);
	cr_assert_eq(hold_adopt(x.h, 0, 3, 0, &again, &x.why), ERR_STALE_TERM);
	cr_assert_eq(hold_adopt(x.h, 1, 3, 2, &again, &x.why), ERR_INVALID_PARAMS);
	OK(hold_adopt(x.h, 0, 3, 2, &u, &x.why));
	cr_assert_eq(u.pool_epoch, epoch + 2);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, V10_an_equal_adoption_answers_again_and_changes_nothing, .timeout = 10)
{
	struct store_fix x;
	struct hold_under u, again;
	store_fix_init(&x, NULL);
	OK(hold_adopt(x.h, 0, 3, 1, &u, &x.why));
	OK(hold_adopt(x.h, 0, 3, 1, &again, &x.why));
	cr_assert(store_fix_same(&u, &again));
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, V9_a_command_under_any_other_pair_changes_nothing, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct hold_under u;
	enum hold_fence state;
	store_fix_init(&x, NULL);
	OK(hold_adopt(x.h, 0, 3, 1, &u, &x.why));
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	struct hold_under wrong[] = { u, u, u, u };
	enum err want[] = { ERR_STALE_TERM, ERR_STALE_TERM, ERR_STALE_EPOCH,
			    ERR_INVALID_PARAMS };
	wrong[0].term--, wrong[1].adoption++, wrong[2].pool_epoch--, wrong[3].shard = 7;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		cr_assert_eq(hold_retire(x.h, &wrong[i], s.slot, s.generation, 5,
					 RETIRE_REMOVED, 0),
			     want[i]);
		cr_assert_eq(hold_free(x.h, &wrong[i], s.slot, s.generation), want[i]);
		cr_assert_eq(hold_fence(x.h, &wrong[i], 6, NULL, 0, &state, &s), want[i]);
	}
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	cr_assert(!s.retired);
	OK(store_fix_commit(&x, 6, "l", 64, 64, &s));
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, a_restart_fences_the_last_run, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct msg_extent ext;
	store_fix_init(&x, NULL);
	struct msg_ticket t = store_fix_ticket(&x, 5, "k", 0, 64, &ext);
	store_fix_kill(&x);
	OK(store_fix_open(&x));
	cr_assert_eq(hold_commit(x.h, &t, 1, &s, &x.why), ERR_STALE_EPOCH);
	store_fix_fini(&x);
	NO_LEAKS();
}

/* ---- COMMIT ---- */

static bool is_whole(void *arg, const struct hold_entry *e)
{
	*(bool *)arg = true;
	cr_assert_eq(e->size, 164);
	cr_assert_eq(e->key.n, 8);
	cr_assert_eq(memcmp(e->key.p, "some key", 8), 0);
	cr_assert_eq(memcmp(e->tenant.p, "default", 7), 0);
	cr_assert_eq(e->n_extents, 2);
	cr_assert_eq(e->extents[0].offset, 4096);
	cr_assert_eq(e->extents[1].bytes, 64);
	cr_assert_eq(e->opts.replica_num, 2);
	cr_assert(e->opts.durable && !e->opts.hard_pin);
	cr_assert_eq(e->opts.soft_pin_ms, 77);
	cr_assert_eq(e->opts.group.n, 1000);
	cr_assert_eq(e->opts.group.p[999], 'g');
	cr_assert_eq(e->opts.group_size, 5);
	cr_assert_eq(memcmp(e->opts.format.p, "bf16", 4), 0);
	cr_assert_eq(e->reason, RETIRE_NONE);
	return true;
}

Test(hold, commit_writes_all_that_the_slot_keeps, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct hold_verify v;
	struct msg_extent ext[2];
	char group[1000], format[] = "bf16";
	memset(group, 'g', sizeof(group));
	store_fix_init(&x, NULL);
	struct msg_ticket t = store_fix_ticket(&x, 9, "some key", 4096, 100, ext);
	ext[1] = (struct msg_extent){ .offset = 64, .bytes = 64 };
	struct msg_put_opts o = { .replica_num = 2,
				  .durable = true,
				  .soft_pin_ms = 77,
				  .group = BYTES(group, sizeof(group)),
				  .group_size = 5,
				  .format = BYTES_STR(format) };
	t.extents.n = 2;
	t.size = 164;
	t.opts = &o;
	OK(hold_commit(x.h, &t, 0xabc, &s, &x.why));
	cr_assert_eq(s.version, 9);
	cr_assert_eq(s.sum, 0xabc);
	cr_assert(!s.retired && !s.published);
	for (int round = 0; round < 2; round++) { /* as committed, and after a restart */
		bool saw = false;
		uint64_t cursor = 0;
		hold_scan(x.h, 0, &cursor, is_whole, &saw);
		cr_assert(saw);
		cr_assert_eq(cursor, 0);
		cr_assert_eq(hold_verify_slot(x.h, s.slot, &v), round == 1);
		store_fix_kill(&x);
		OK(store_fix_open(&x));
	}
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, V3_a_slot_is_looked_up_before_the_epoch, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s, again;
	struct hold_under u;
	struct msg_extent ext;
	store_fix_init(&x, NULL);
	struct msg_ticket t = store_fix_ticket(&x, 5, "k", 0, 64, &ext);
	OK(hold_commit(x.h, &t, 15, &s, &x.why));
	OK(hold_adopt(x.h, 0, 4, 1, &u, &x.why));
	OK(hold_commit(x.h, &t, 15, &again, &x.why));
	cr_assert_eq(again.slot, s.slot);
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_SUPERSEDED, 0));
	OK(hold_commit(x.h, &t, 15, &again, &x.why));
	cr_assert(again.retired);
	OK(hold_free(x.h, &u, s.slot, s.generation));
	cr_assert_eq(hold_commit(x.h, &t, 15, &again, &x.why), ERR_STALE_EPOCH);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, V3_slots_barred_overlapped_or_corrupt_end_their_attempt, .timeout = 10)
{
	static const enum retire_reason reasons[] = { RETIRE_BARRED, RETIRE_OVERLAP,
						      RETIRE_CORRUPT };
	struct store_fix x;
	struct hold_slot s;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
		OK(store_fix_commit(&x, 5 + i, "k", 64 * i, 64, &s));
		OK(hold_retire(x.h, &u, s.slot, s.generation, 5 + i, reasons[i], 0));
		cr_assert_eq(store_fix_commit(&x, 5 + i, "k", 64 * i, 64, &s),
			     ERR_STALE_ATTEMPT);
	}
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, V3_a_commit_after_its_slot_is_gone_is_refused, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_REMOVED, 0));
	OK(hold_free(x.h, &u, s.slot, s.generation));
	cr_assert_eq(store_fix_commit(&x, 5, "k", 0, 64, &s), ERR_STALE_ATTEMPT);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, V3_below_what_is_remembered_the_master_is_asked, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	for (uint64_t v = 10; v < 15; v++) { /* closed: 4 */
		OK(store_fix_commit(&x, v, "k", 64 * v, 64, &s));
		OK(hold_retire(x.h, &u, s.slot, s.generation, v, RETIRE_REMOVED, 0));
		OK(hold_free(x.h, &u, s.slot, s.generation));
	}
	cr_assert_eq(store_fix_commit(&x, 10, "k", 0, 64, &s), ERR_NOT_READY, "it was closed");
	cr_assert_eq(store_fix_commit(&x, 9, "k", 0, 64, &s), ERR_NOT_READY, "it may be open");
	cr_assert_eq(store_fix_commit(&x, 11, "k", 0, 64, &s), ERR_STALE_ATTEMPT);
	hold_confirm(x.h, 0, 9);
	OK(store_fix_commit(&x, 9, "k", 0, 64, &s));
	OK(hold_retire(x.h, &u, s.slot, s.generation, 9, RETIRE_REMOVED, 0));
	OK(hold_free(x.h, &u, s.slot, s.generation));
	cr_assert_eq(store_fix_commit(&x, 9, "k", 0, 64, &s), ERR_STALE_ATTEMPT);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, commit_waits_for_every_hazard, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct extent e = { .bytes = 64 };
	store_fix_init(&x, NULL);
	struct shmpool *c = store_fix_client(&x, NULL), *d = store_fix_client(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct pool_lane *l = shmpool_lane(c), *m = shmpool_lane(d);
	OK(lane_begin(l, shmpool_ctl(c), 0, epoch, 5, &e, 1));
	OK(lane_begin(m, shmpool_ctl(d), 0, epoch, 5, &e, 1));
	cr_assert_eq(store_fix_commit(&x, 5, "k", 0, 64, &s), ERR_BUSY);
	lane_end(l);
	cr_assert_eq(store_fix_commit(&x, 5, "k", 0, 64, &s), ERR_BUSY);
	lane_end(m);
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	shmpool_lane_done(c, l);
	shmpool_lane_done(d, m);
	shmpool_close(c);
	shmpool_close(d);
	store_fix_fini(&x);
	NO_LEAKS();
}

/* One reading for many COMMITs: taken by the first that needs it, gone with the end. */
Test(hold, commits_share_a_reading_of_the_hazards, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct extent e = { .bytes = 64 };
	store_fix_init(&x, NULL);
	struct shmpool *c = store_fix_client(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct pool_lane *l = shmpool_lane(c), *m = shmpool_lane(c);
	hold_commits_begin(x.h);
	OK(lane_begin(l, shmpool_ctl(c), 0, epoch, 5, &e, 1));
	OK(lane_begin(m, shmpool_ctl(c), 0, epoch, 6, &e, 1));
	cr_assert_eq(store_fix_commit(&x, 5, "k", 0, 64, &s), ERR_BUSY);
	cr_assert_eq(store_fix_commit(&x, 6, "l", 64, 64, &s), ERR_BUSY);
	OK(store_fix_commit(&x, 7, "m", 128, 64, &s));
	lane_end(l);
	lane_end(m);
	cr_assert_eq(store_fix_commit(&x, 5, "k", 0, 64, &s), ERR_BUSY, "as it was read");
	hold_commits_end(x.h);
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	hold_commits_begin(x.h);
	OK(store_fix_commit(&x, 6, "l", 64, 64, &s));
	hold_commits_end(x.h);
	OK(lane_begin(l, shmpool_ctl(c), 0, epoch, 8, &e, 1));
	cr_assert_eq(store_fix_commit(&x, 8, "n", 192, 64, &s), ERR_BUSY);
	lane_end(l);
	shmpool_lane_done(c, l);
	shmpool_lane_done(c, m);
	shmpool_close(c);
	store_fix_fini(&x);
	NO_LEAKS();
}

/* More hazards than a reading has room for: each COMMIT looks for itself. */
Test(hold, a_reading_too_large_is_none, .timeout = 20)
{
	enum { CLIENTS = 140 }; /* of 2 lanes */
	struct store_fix x;
	struct hold_slot s;
	struct extent e = { .bytes = 64 };
	struct shmpool *c[CLIENTS];
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	for (uint64_t i = 0; i < CLIENTS; i++) {
		c[i] = store_fix_client(&x, NULL);
		for (uint64_t k = 0; k < 2; k++)
			OK(lane_begin(shmpool_lane(c[i]), shmpool_ctl(c[i]), 0, epoch,
				      100 + 2 * i + k, &e, 1));
	}
	hold_commits_begin(x.h);
	cr_assert_eq(store_fix_commit(&x, 100, "k", 0, 64, &s), ERR_BUSY);
	cr_assert_eq(store_fix_commit(&x, 99 + 2 * CLIENTS, "k", 0, 64, &s), ERR_BUSY);
	OK(store_fix_commit(&x, 100 + 2 * CLIENTS, "k", 0, 64, &s));
	hold_commits_end(x.h);
	store_fix_kill(&x);
	for (uint64_t i = 0; i < CLIENTS; i++)
		shmpool_died(c[i]);
	OK(store_fix_open(&x));
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, bad_tickets_are_refused_with_a_reason, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct msg_extent ext;
	store_fix_init(&x, NULL);
	const struct msg_ticket good = store_fix_ticket(&x, 5, "k", 0, 64, &ext);
	struct msg_ticket bad[8];
	struct msg_extent far = { .offset = 1 << 20, .bytes = 64 },
			  other = { .segment = 1, .bytes = 64 },
			  wrap = { .offset = UINT64_MAX, .bytes = 64 };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = good;
	bad[0].op = 2;
	bad[1].pool[0] ^= 1;
	bad[2].shard = 1;
	bad[3].extents.p = &far;
	bad[4].extents.p = &other;
	bad[5].extents.p = &wrap;
	bad[6].size = 65;
	bad[7].key = BYTES("", 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		x.why = (struct why){ 0 };
		cr_assert_eq(hold_commit(x.h, &bad[i], 1, &s, &x.why), ERR_BAD_TICKET, "%zu",
			     i);
		cr_assert_neq(x.why.text[0], 0, "%zu", i);
	}
	cr_assert_eq(mempool_slots_used(x.p), 0);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, no_slot_and_no_room_for_names_change_nothing, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	char key[1025];
	memset(key, 'k', 1024);
	key[1024] = 0;
	store_fix_init(&x, NULL);
	uint64_t v = 1;
	for (; v <= 8; v++)
		OK(store_fix_commit(&x, v, "k", 64 * v, 64, &s));
	cr_assert_eq(store_fix_commit(&x, v, "k", 64 * v, 64, &s), ERR_NO_SPACE);
	cr_assert(strstr(x.why.text, "8 slots"), "%s", x.why.text);
	store_fix_kill(&x);
	pool_backing_free(x.b);

	OK(pool_memory_new(&x.b));
	x.po.backing = x.b;
	x.po.n_slots = 64;
	x.po.heap_bytes = 4096; /* two names of 2 KiB */
	OK(store_fix_open(&x));
	OK(store_fix_commit(&x, 1, key, 0, 64, &s));
	OK(store_fix_commit(&x, 2, key, 64, 64, &s));
	cr_assert_eq(store_fix_commit(&x, 3, key, 128, 64, &s), ERR_NO_SPACE);
	OK(store_fix_commit(&x, 4, "a short one needs none", 128, 64, &s));
	struct hold_under u = store_fix_under(&x);
	OK(hold_retire(x.h, &u, 0, 0, 1, RETIRE_REMOVED, 0));
	OK(hold_free(x.h, &u, 0, 0));
	OK(store_fix_commit(&x, 3, key, 128, 64, &s));
	store_fix_fini(&x);
	NO_LEAKS();
}

/* ---- slots ---- */

Test(hold, a_slot_goes_round, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s, t;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	cr_assert_eq(hold_published(x.h, s.slot, s.generation, 6), ERR_NOT_FOUND);
	cr_assert_eq(hold_published(x.h, s.slot, s.generation + 1, 5), ERR_NOT_FOUND);
	OK(hold_published(x.h, s.slot, s.generation, 5));
	OK(hold_published(x.h, s.slot, s.generation, 5));
	cr_assert_eq(hold_free(x.h, &u, s.slot, s.generation), ERR_NOT_FOUND, "not RETIRED");
	cr_assert_eq(hold_retire(x.h, &u, s.slot, s.generation, 4, RETIRE_REMOVED, 0),
		     ERR_NOT_FOUND);
	cr_assert_eq(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_NONE, 0),
		     ERR_INVALID_PARAMS);
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_EVICTED, 77));
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_REMOVED, 0));
	OK(store_fix_commit(&x, 5, "k", 0, 64, &t));
	cr_assert(t.retired && t.published);
	cr_assert_eq(hold_published(x.h, s.slot, s.generation, 5), ERR_NOT_FOUND);
	cr_assert_eq(hold_free(x.h, &u, s.slot, s.generation + 1), ERR_NOT_FOUND);
	OK(hold_free(x.h, &u, s.slot, s.generation));
	cr_assert_eq(hold_free(x.h, &u, s.slot, s.generation), ERR_NOT_FOUND);
	cr_assert_eq(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_REMOVED, 0),
		     ERR_NOT_FOUND);
	OK(store_fix_commit(&x, 6, "k", 0, 64, &t));
	cr_assert_eq(t.slot, s.slot);
	cr_assert_eq(t.generation, s.generation + 1);
	store_fix_fini(&x);
	NO_LEAKS();
}

static bool is_evicted(void *arg, const struct hold_entry *e)
{
	*(bool *)arg = true;
	cr_assert_eq(e->reason, RETIRE_EVICTED);
	cr_assert_eq(e->evict_id, 77);
	cr_assert(e->at.retired && e->at.published);
	return true;
}

Test(hold, the_first_reason_and_its_evict_id_stay_over_a_restart, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	uint64_t cursor = 0;
	bool saw = false;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	OK(hold_published(x.h, s.slot, s.generation, 5));
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_EVICTED, 77));
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_REMOVED, 0));
	store_fix_kill(&x);
	OK(store_fix_open(&x));
	cr_assert_eq(x.start.retired, 1);
	hold_scan(x.h, 0, &cursor, is_evicted, &saw);
	cr_assert(saw);
	store_fix_fini(&x);
	NO_LEAKS();
}

struct pieces {
	uint64_t seen;
	unsigned left;
};

static bool take_two(void *arg, const struct hold_entry *e)
{
	struct pieces *p = arg;
	if (p->left == 0)
		return false;
	p->left--;
	cr_assert_eq(p->seen >> e->at.slot & 1, 0, "once");
	p->seen |= 1u << e->at.slot;
	return true;
}

Test(hold, a_scan_goes_on_where_it_stopped, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	for (uint64_t v = 1; v <= 8; v++)
		OK(store_fix_commit(&x, v, "k", 64 * v, 64, &s));
	OK(hold_retire(x.h, &u, 3, 0, 4, RETIRE_REMOVED, 0));
	OK(hold_free(x.h, &u, 3, 0));
	struct pieces p = { 0 };
	uint64_t cursor = 0;
	unsigned n = 0;
	do {
		p.left = 2;
		n++;
		hold_scan(x.h, 0, &cursor, take_two, &p);
	} while (cursor != 0);
	cr_assert_eq(p.seen, 0xf7);
	cr_assert_eq(n, 4);
	store_fix_fini(&x);
	NO_LEAKS();
}

/* ---- payload ---- */

/* The first slots that a reader has to verify itself; none has another generation than it had. */
static unsigned doubted(struct store_fix *x)
{
	struct shmpool_fds fds;
	struct shmpool *map;
	uint32_t id;
	unsigned bits = 0;
	OK(mempool_session(x->p, false, &id, &fds, &x->why));
	OK(mempool_attach(x->p, id, &map));
	for (uint32_t i = 0; i < 8; i++) {
		bits |= (unsigned)shmpool_unverified(map, i) << i;
		cr_assert(shmpool_same(map, i, 0));
	}
	cr_assert(shmpool_unverified(map, UINT32_MAX));
	shmpool_close(map);
	hold_sweep(x->h);
	return bits;
}

/* A freed slot's next object is written by this agent's clients: nobody doubts it. */
Test(hold, doubt_of_a_slot_ends_with_its_generation, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	store_fix_init(&x, NULL);
	OK(store_fix_commit(&x, 1, "k", 0, 64, &s));
	store_fix_kill(&x);
	OK(store_fix_open(&x));
	store_fix_kill(&x); /* twice found, no other generation */
	OK(store_fix_open(&x));
	struct hold_under u;
	OK(hold_adopt(x.h, 0, 2, 1, &u, NULL));
	cr_assert_eq(doubted(&x), 1);
	OK(hold_retire(x.h, &u, s.slot, 0, 1, RETIRE_REMOVED, 0));
	cr_assert_eq(doubted(&x), 1, "RETIRED, it may still be read under a lease");
	cr_assert_eq(hold_n_unverified(x.h), 0);
	OK(hold_free(x.h, &u, s.slot, 0));
	OK(store_fix_commit(&x, 2, "k", 64, 64, &s));
	cr_assert_eq(s.generation, 1);
	cr_assert_eq(directory_generation(x.p, s.slot), 1);
	cr_assert_eq(x.p->gen[s.slot], 1, "no doubt");
	store_fix_fini(&x);
	NO_LEAKS();
}

/* Found wrong by a reader while it is served: verified as after a restart. */
Test(hold, a_slot_in_doubt_is_verified_anew, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct hold_verify v;
	uint64_t cursor = 0;
	store_fix_init(&x, NULL);
	OK(store_fix_commit(&x, 1, "k", 0, 64, &s));
	cr_expect(!hold_doubt(x.h, s.slot, s.generation + 1));
	cr_expect(!hold_doubt(x.h, s.slot + 1, 0), "EMPTY");
	cr_expect(!hold_doubt(x.h, UINT32_MAX, 0));
	cr_expect_eq(hold_n_unverified(x.h), 0);
	cr_assert(hold_doubt(x.h, s.slot, s.generation));
	cr_expect_eq(doubted(&x), 1, "readers look, too");
	cr_assert(hold_verify_next(x.h, &cursor, &v));
	OK(hold_verified(x.h, &v, s.sum));
	cr_expect_eq(hold_n_unverified(x.h) + doubted(&x), 0, "it was right");
	cr_assert(hold_doubt(x.h, s.slot, s.generation));
	cursor = 0;
	cr_assert(hold_verify_next(x.h, &cursor, &v));
	cr_assert_eq(hold_verified(x.h, &v, s.sum + 1), ERR_CORRUPT);
	cr_expect(!hold_doubt(x.h, s.slot, s.generation), "RETIRED");
	cr_assert_eq(store_fix_commit(&x, 1, "k", 0, 64, &s), ERR_STALE_ATTEMPT);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, re_adopted_payload_is_verified_and_bad_bytes_retired, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s[3];
	struct hold_verify v;
	uint64_t cursor = 0, sum;
	unsigned n = 0, bad = 0;
	store_fix_init(&x, NULL);
	for (uint64_t i = 0; i < 3; i++) {
		struct msg_extent ext;
		struct msg_ticket t = store_fix_ticket(&x, i + 1, "k", i * 4096, 4096, &ext);
		uint8_t *at = mempool_at(x.p, &(struct extent){ 0, i * 4096, 4096 });
		memset(at, (int)i + 1, 4096);
		OK(hold_commit(x.h, &t, obj_sum(at, 4096, NULL), &s[i], &x.why));
		if (i == 1)
			at[4095] ^= 1;
	}
	cr_assert_eq(hold_n_unverified(x.h), 0, "what we committed ourselves needs none");
	cr_assert_eq(doubted(&x), 0);
	store_fix_kill(&x);
	OK(store_fix_open(&x));
	cr_assert_eq(hold_n_unverified(x.h), 3);
	cr_assert_eq(doubted(&x), 7, "until then its readers look");
	while (hold_verify_next(x.h, &cursor, &v)) {
		OK(mempool_sum(x.p, v.extents, v.n_extents, v.size, &sum));
		enum err e = hold_verified(x.h, &v, sum);
		cr_assert_eq(e, v.slot == s[1].slot ? ERR_CORRUPT : ERR_NONE);
		bad += e != ERR_NONE;
		n++;
	}
	cr_assert_eq(n, 3);
	cr_assert_eq(bad, 1);
	cr_assert_eq(hold_n_unverified(x.h), 0);
	cr_assert_eq(doubted(&x), 1 << s[1].slot,
		     "who has a descriptor of the bad one must see it");
	cr_assert_eq(store_fix_commit(&x, 2, "k", 4096, 4096, &s[1]), ERR_STALE_ATTEMPT);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(hold, a_slot_that_changed_under_the_verifier_is_left_alone, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	struct hold_verify v;
	store_fix_init(&x, NULL);
	OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
	store_fix_kill(&x);
	OK(store_fix_open(&x));
	struct hold_under u = store_fix_under(&x);
	cr_assert(hold_verify_slot(x.h, s.slot, &v));
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_REMOVED, 0));
	OK(hold_free(x.h, &u, s.slot, s.generation));
	OK(store_fix_commit(&x, 6, "k", 0, 64, &s));
	OK(hold_verified(x.h, &v, 1234));
	OK(hold_published(x.h, s.slot, s.generation, 6));
	store_fix_fini(&x);
	NO_LEAKS();
}
