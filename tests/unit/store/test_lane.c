/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local writers: lanes against fences and adoptions, in one thread, step by step. The traces of the
 * model check that concern them are here by their V.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "store/mempool_priv.h"
#include "store_fix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)

struct writer {
	struct shmpool *c;
	struct pool_lane *l;
	uint32_t session;
};

static struct writer attach(struct store_fix *x)
{
	struct writer w;
	w.c = store_fix_client(x, &w.session);
	w.l = shmpool_lane(w.c);
	cr_assert_not_null(w.l);
	return w;
}

static enum err begin(struct store_fix *x, struct writer *w, uint64_t epoch, uint64_t version)
{
	struct extent e = { .offset = version * 64, .bytes = 64 };
	(void)x;
	return lane_begin(w->l, shmpool_ctl(w->c), 0, epoch, version, &e, 1);
}

static enum err look(struct writer *w, uint64_t epoch, uint64_t version)
{
	return lane_look(w->l, shmpool_ctl(w->c), 0, epoch, version);
}

static void leave(struct writer *w)
{
	shmpool_lane_done(w->c, w->l);
	shmpool_close(w->c);
}

static enum hold_fence fence(struct store_fix *x, uint64_t version)
{
	struct hold_under u = store_fix_under(x);
	struct extent e = { .offset = version * 64, .bytes = 64 };
	struct hold_slot s;
	enum hold_fence state = 0;
	OK(hold_fence(x->h, &u, version, &e, 1, &state, &s));
	return state;
}

struct seen {
	size_t n;
	uint64_t version, offset, bytes;
};

static void see(void *arg, uint64_t version, const struct extent *ext, size_t n)
{
	struct seen *s = arg;
	s->n++;
	s->version = version;
	s->offset = n ? ext[0].offset : 0;
	s->bytes = n ? ext[0].bytes : 0;
}

static struct seen writing(struct store_fix *x)
{
	struct seen s = { 0 };
	hold_writing(x->h, 0, see, &s);
	return s;
}

Test(lane, a_fence_before_the_hazard_stops_the_writer, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct writer w = attach(&x);
	cr_assert_eq(fence(&x, 5), HOLD_FENCED);
	cr_assert_eq(begin(&x, &w, epoch, 5), ERR_STALE_ATTEMPT);
	cr_assert_eq(w.l->hazard, 0, "cleared");
	cr_assert_eq(store_fix_commit(&x, 5, "k", 320, 64, &s), ERR_STALE_ATTEMPT);
	OK(begin(&x, &w, epoch, 6));
	lane_end(w.l);
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, V2_a_session_opened_after_the_fence_sees_it_too, .timeout = 10)
{
	struct store_fix x;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	cr_assert_eq(fence(&x, 5), HOLD_FENCED);
	struct writer w = attach(&x);
	cr_assert_eq(begin(&x, &w, epoch, 5), ERR_STALE_ATTEMPT);
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, V2_what_has_left_the_ring_is_below_revoked_below, .timeout = 10)
{
	struct store_fix x;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct writer w = attach(&x);
	for (uint64_t v = 5; v < 15; v++) /* ring: 4 */
		cr_assert_eq(fence(&x, v), HOLD_FENCED);
	for (uint64_t v = 1; v < 15; v++)
		cr_assert_eq(begin(&x, &w, epoch, v), ERR_STALE_ATTEMPT, "%u", (unsigned)v);
	OK(begin(&x, &w, epoch, 15));
	lane_end(w.l);
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, a_fence_said_twice_takes_one_place_in_the_ring, .timeout = 10)
{
	struct store_fix x;
	store_fix_init(&x, NULL);
	for (int i = 0; i < 20; i++)
		cr_assert_eq(fence(&x, 5), HOLD_FENCED);
	cr_assert_eq(x.p->ctl->shard[0].revoke_seq, 1);
	cr_assert_eq(x.p->ctl->shard[0].revoked_below, 0);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, a_hazard_before_the_fence_keeps_its_range, .timeout = 10)
{
	struct store_fix x;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct writer w = attach(&x);
	OK(begin(&x, &w, epoch, 5));
	cr_assert_eq(fence(&x, 5), HOLD_WRITING);
	cr_assert_eq(fence(&x, 5), HOLD_WRITING);
	cr_assert_eq(writing(&x).n, 1);
	cr_assert_eq(writing(&x).offset, 320);
	cr_assert_eq(hold_quarantine(x.h), 64);
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 0, "it may still write");
	cr_assert_eq(look(&w, epoch, 5), ERR_STALE_ATTEMPT);
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 1);
	cr_assert_eq(x.fenced[0], 5);
	cr_assert_eq(hold_quarantine(x.h), 0);
	cr_assert_eq(fence(&x, 5), HOLD_FENCED);
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 1, "once");
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, V1_a_new_epoch_knows_the_range_of_a_stopped_writer, .timeout = 10)
{
	struct store_fix x;
	struct hold_under u;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct writer w = attach(&x);
	OK(begin(&x, &w, epoch, 5));
	OK(hold_adopt(x.h, 0, 7, 1, &u, &x.why)); /* nobody told the agent of version 5 */
	cr_assert_eq(writing(&x).version, 5);
	cr_assert_eq(writing(&x).offset, 320);
	cr_assert_eq(writing(&x).bytes, 64);
	cr_assert_eq(look(&w, epoch, 5), ERR_STALE_EPOCH);
	hold_sweep(x.h);
	cr_assert_eq(x.fenced[0], 5);
	cr_assert_eq(begin(&x, &w, epoch, 6), ERR_STALE_EPOCH);
	OK(begin(&x, &w, u.pool_epoch, 6));
	lane_end(w.l);
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, a_restarted_agent_finds_writers_of_the_last_run, .timeout = 10)
{
	struct store_fix x;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct writer w = attach(&x), gone = attach(&x);
	OK(begin(&x, &w, epoch, 5));
	OK(begin(&x, &gone, epoch, 6));
	store_fix_kill(&x);
	shmpool_died(gone.c);
	OK(store_fix_open(&x));
	cr_assert_eq(x.start.sessions, 1);
	cr_assert_eq(x.start.sessions_ended, 1);
	cr_assert_eq(writing(&x).n, 1);
	cr_assert_eq(writing(&x).version, 5);
	lane_end(w.l);
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 1);
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, a_dead_client_frees_its_ranges_with_its_lock_only, .timeout = 10)
{
	struct store_fix x;
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct writer w = attach(&x);
	OK(begin(&x, &w, epoch, 5));
	cr_assert_eq(fence(&x, 5), HOLD_WRITING);
	mempool_session_hint(x.p, w.session); /* its connection broke; it lives */
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 0);
	shmpool_died(w.c);
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 1);
	cr_assert_eq(mempool_sessions(x.p), 0);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, two_lanes_of_one_version_keep_both_parts, .timeout = 10)
{
	struct store_fix x;
	struct hold_under u;
	struct extent a = { .bytes = 64 }, b = { .offset = 640, .bytes = 128 };
	store_fix_init(&x, NULL);
	uint64_t epoch = store_fix_under(&x).pool_epoch;
	struct writer w = attach(&x);
	struct pool_lane *l = shmpool_lane(w.c);
	OK(lane_begin(w.l, shmpool_ctl(w.c), 0, epoch, 5, &a, 1));
	OK(lane_begin(l, shmpool_ctl(w.c), 0, epoch, 5, &b, 1));
	cr_assert_null(shmpool_lane(w.c), "two lanes");
	OK(hold_adopt(x.h, 0, 7, 1, &u, &x.why));
	cr_assert_eq(hold_quarantine(x.h), 192);
	lane_end(w.l);
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 0);
	lane_end(l);
	hold_sweep(x.h);
	cr_assert_eq(x.n_fenced, 1);
	shmpool_lane_done(w.c, l);
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, hostile_hazard_records_hurt_nobody_else, .timeout = 10)
{
	struct store_fix x;
	struct hold_under u;
	store_fix_init(&x, NULL);
	struct writer w = attach(&x);
	memset(w.l, 0xff, sizeof(*w.l));
	OK(hold_adopt(x.h, 0, 7, 1, &u, &x.why));
	cr_assert_eq(writing(&x).n, 0);
	w.l->shard_next = 0 | 16ull << 32;
	for (int i = 0; i < 16; i++)
		w.l->extents[i] =
			(struct extent){ (uint32_t)i, 1ull << (4 * i), UINT64_MAX - i };
	OK(hold_adopt(x.h, 0, 7, 2, &u, &x.why));
	cr_assert_eq(hold_quarantine(x.h), 0);
	hold_sweep(x.h);
	memset(w.l, 0, sizeof(*w.l));
	leave(&w);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, a_committed_version_is_not_fenced, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s, out;
	enum hold_fence state;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	OK(store_fix_commit(&x, 5, "k", 320, 64, &s));
	OK(hold_fence(x.h, &u, 5, NULL, 0, &state, &out));
	cr_assert_eq(state, HOLD_COMMITTED);
	cr_assert_eq(out.slot, s.slot);
	cr_assert_eq(out.sum, 15);
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_REMOVED, 0));
	OK(hold_fence(x.h, &u, 5, NULL, 0, &state, &out));
	cr_assert_eq(state, HOLD_COMMITTED);
	cr_assert(out.retired);
	cr_assert_eq(hold_fence(x.h, &u, 0, NULL, 0, &state, &out), ERR_INVALID_PARAMS);
	struct extent far = { .offset = 1 << 20, .bytes = 1 };
	cr_assert_eq(hold_fence(x.h, &u, 9, &far, 1, &state, &out), ERR_INVALID_PARAMS);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(lane, readers_see_a_freed_slot_by_its_generation, .timeout = 10)
{
	struct store_fix x;
	struct hold_slot s;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	struct shmpool *c = store_fix_client(&x, NULL);
	OK(store_fix_commit(&x, 5, "k", 320, 64, &s));
	cr_assert(shmpool_same(c, s.slot, s.generation));
	OK(hold_retire(x.h, &u, s.slot, s.generation, 5, RETIRE_REMOVED, 0));
	cr_assert(shmpool_same(c, s.slot, s.generation), "bytes stay until FREE");
	OK(hold_free(x.h, &u, s.slot, s.generation));
	cr_assert(!shmpool_same(c, s.slot, s.generation));
	cr_assert(!shmpool_same(c, 8, 0), "no such slot");
	cr_assert_not_null(shmpool_at(c, &(struct extent){ 0, (1 << 20) - 64, 64 }));
	cr_assert_null(shmpool_at(c, &(struct extent){ 0, (1 << 20) - 64, 65 }));
	cr_assert_null(shmpool_at(c, &(struct extent){ 0, UINT64_MAX, 2 }));
	cr_assert_null(shmpool_at(c, &(struct extent){ 1, 0, 1 }));
	shmpool_close(c);
	store_fix_fini(&x);
	NO_LEAKS();
}
