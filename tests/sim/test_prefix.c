/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store-prefix log on a small slot, as a pool's: a body, then a state word that says the body is
 * whole; FREE raises the generation before the state says empty. Right code passes, each planted
 * mistake is found. Built with POMELO_STORE_LOG.
 */
#include "tests/support/leak.h"
#include "tests/support/prefix.h"

#include <criterion/criterion.h>
#include <string.h>

struct slot {
	uint64_t state; /* 0 empty, 1 committed */
	uint64_t generation;
	uint64_t version;
	uint64_t sum;
	uint8_t key[32];
};

static uint64_t sum_of(const struct slot *s)
{
	uint64_t h = s->version;
	for (size_t i = 0; i < sizeof(s->key); i++)
		h = h * 31 + s->key[i];
	return h;
}

enum mistake { NONE, STATE_PLAIN, STATE_FIRST, SUM_LATE, AROUND };

static void commit(struct slot *s, uint64_t version, const char *key, enum mistake m)
{
	struct slot whole = { .version = version };
	memset(whole.key, 0, sizeof(whole.key));
	memcpy(whole.key, key, strlen(key) + 1);
	whole.sum = sum_of(&whole);
	if (m == STATE_FIRST)
		shm_publish_u64(&s->state, 1);
	if (m == AROUND)
		s->version = version;
	else
		shm_put_u64(&s->version, version);
	shm_copy(s->key, whole.key, sizeof(whole.key));
	if (m != SUM_LATE)
		shm_put_u64(&s->sum, whole.sum);
	if (m == STATE_PLAIN)
		shm_put_u64(&s->state, 1);
	else if (m != STATE_FIRST)
		shm_publish_u64(&s->state, 1);
	if (m == SUM_LATE)
		shm_put_u64(&s->sum, whole.sum);
}

/* What a restarted process, or a reader, may find: empty, or committed and whole. */
static bool slot_sound(void *ctx, void *region, struct why *why)
{
	const struct slot *s = region;
	(void)ctx;
	if (s->state == 0)
		return true;
	if (s->sum != sum_of(s))
		why_set(why, ERR_CORRUPT, "committed, but the sum is wrong");
	return s->sum == sum_of(s);
}

static bool run(enum mistake m, enum prefix_model model, struct prefix_result *r)
{
	static _Alignas(64) struct slot s;
	memset(&s, 0, sizeof(s));
	struct prefix_log *g = prefix_begin(&s, sizeof(s));
	commit(&s, 7, "some key of thirty-one letters.", m);
	bool ok = prefix_check(g, model, 0, slot_sound, NULL, r);
	prefix_free(g);
	return ok;
}

Test(prefix, the_right_order_passes_in_both_models, .timeout = 20)
{
	struct prefix_result r;
	cr_assert(run(NONE, PREFIX_KILL, &r), "%s", r.text);
	cr_assert(r.exhaustive);
	cr_assert_eq(r.n_stores, 7);
	cr_assert_eq(r.n_sets, 65, "2^6 subsets of the body without the state, one with it");
	cr_assert(run(NONE, PREFIX_WEAK, &r), "%s", r.text);
	cr_assert_eq(r.n_sets, 65);
	NO_LEAKS();
}

Test(prefix, a_plain_state_store_is_found, .timeout = 20)
{
	struct prefix_result r;
	cr_assert(!run(STATE_PLAIN, PREFIX_KILL, &r));
	cr_assert(strstr(r.text, "the sum is wrong"), "%s", r.text);
	cr_assert(strstr(r.text, "missing #") && strstr(r.text, "test_prefix.c:"), "%s",
		  r.text);
	cr_assert(!run(STATE_PLAIN, PREFIX_WEAK, &r));
	NO_LEAKS();
}

Test(prefix, a_state_before_its_body_is_found, .timeout = 20)
{
	struct prefix_result r;
	cr_assert(!run(STATE_FIRST, PREFIX_KILL, &r));
	cr_assert(!run(SUM_LATE, PREFIX_KILL, &r));
	NO_LEAKS();
}

Test(prefix, a_store_around_the_log_is_found, .timeout = 20)
{
	struct prefix_result r;
	cr_assert(!run(AROUND, PREFIX_KILL, &r));
	cr_assert(strstr(r.text, "offset 16"), "%s", r.text);
	NO_LEAKS();
}

/*
 * FREE, then the next COMMIT into the slot. A reader took generation g with the body of version 7,
 * and says "still g" after its copy: then it must not have seen the body of version 8.
 */
static void reuse(struct slot *s, bool fenced, bool generation_first)
{
	if (generation_first)
		shm_publish_u64(&s->generation, s->generation + 1);
	if (fenced)
		shm_fence();
	shm_publish_u64(&s->state, 0);
	shm_put_u64(&s->version, 8);
	if (!generation_first)
		shm_publish_u64(&s->generation, s->generation + 1);
	shm_publish_u64(&s->state, 1);
}

static bool reader_sound(void *ctx, void *region, struct why *why)
{
	const struct slot *s = region;
	(void)ctx, (void)why;
	return s->generation != 3 || s->version == 7;
}

static bool run_reuse(bool fenced, bool generation_first, enum prefix_model m,
		      struct prefix_result *r)
{
	struct slot s = { .state = 1, .generation = 3, .version = 7 };
	struct prefix_log *g = prefix_begin(&s, sizeof(s));
	reuse(&s, fenced, generation_first);
	bool ok = prefix_check(g, m, 0, reader_sound, NULL, r);
	prefix_free(g);
	return ok;
}

Test(prefix, what_a_release_does_not_order_is_seen_by_readers_only, .timeout = 20)
{
	struct prefix_result r;
	cr_assert(run_reuse(false, true, PREFIX_KILL, &r), "%s", r.text);
	cr_assert(!run_reuse(false, true, PREFIX_WEAK, &r),
		  "a store may pass a release before it");
	cr_assert(run_reuse(true, true, PREFIX_WEAK, &r), "%s", r.text);
	cr_assert(!run_reuse(true, false, PREFIX_KILL, &r));
	NO_LEAKS();
}

/* Two words that must never differ by more than one, over many stores: not exhaustive any more. */
static bool pair_sound(void *ctx, void *region, struct why *why)
{
	const uint64_t *w = region;
	(void)ctx;
	if (w[0] - w[1] > 1)
		why_set(why, ERR_CORRUPT, "%lu and %lu", w[0], w[1]);
	return w[0] - w[1] <= 1;
}

/* slip: this round's w[1], and w[0] of the next round, are stored plainly: they may change places. */
static bool run_pair(int n, int slip, struct prefix_result *r)
{
	static uint64_t w[64];
	memset(w, 0, sizeof(w));
	struct prefix_log *g = prefix_begin(w, sizeof(w));
	for (int i = 1; i <= n; i++) {
		uint64_t v = (uint64_t)i;
		if (i == slip + 1)
			shm_put_u64(&w[0], v);
		else
			shm_publish_u64(&w[0], v);
		for (int k = 0; k < 20; k++)
			shm_put_u64(&w[2 + k], v);
		if (i == slip)
			shm_put_u64(&w[1], v);
		else
			shm_publish_u64(&w[1], v);
	}
	bool ok = prefix_check(g, PREFIX_KILL, 20000, pair_sound, NULL, r);
	prefix_free(g);
	return ok;
}

Test(prefix, too_many_sets_are_sampled_and_one_slip_is_still_found, .timeout = 20)
{
	struct prefix_result r;
	cr_assert(run_pair(20, -1, &r), "%s", r.text);
	cr_assert(!r.exhaustive);
	cr_assert_eq(r.n_sets, 20000);
	for (int slip = 1; slip < 20; slip++) {
		cr_assert(!run_pair(20, slip, &r), "the slip in round %d was missed", slip);
		cr_assert(strstr(r.text, "missing #"), "%s", r.text);
	}
	NO_LEAKS();
}

Test(prefix, torn_copies_are_torn_at_words, .timeout = 20)
{
	static _Alignas(8) uint8_t m[32];
	struct prefix_result r;
	memset(m, 0, sizeof(m));
	struct prefix_log *g = prefix_begin(m, sizeof(m));
	shm_copy(m + 5, "abcdefghijkl", 12); /* 3 + 8 + 1 bytes */
	cr_assert_eq(prefix_n_stores(g), 3);
	shm_zero(m + 5, 12);
	shm_put_u16((uint16_t *)(m + 20), 7);
	shm_put_u32((uint32_t *)(m + 24), 7);
	shm_put_u8(m, 7);
	shm_publish_u8(m, 8);
	cr_assert_eq(shm_swap_u64((uint64_t *)(m + 24), 9), 7);
	cr_assert(prefix_check(g, PREFIX_WEAK, 0, slot_sound, NULL, &r) || r.text[0]);
	prefix_free(g);
	uint64_t outside = 0;
	g = prefix_begin(m, sizeof(m));
	shm_put_u64(&outside, 1);
	cr_assert_eq(prefix_n_stores(g), 0);
	prefix_free(g);
	NO_LEAKS();
}

static bool nothing_missing(void *ctx, void *region, struct why *why)
{
	const uint64_t *w = region;
	uint64_t *seen = ctx;
	(void)why;
	*seen |= 1ull << (w[0] | w[1] << 1 | w[2] << 2);
	return true;
}

Test(prefix, every_allowed_set_is_met_once, .timeout = 20)
{
	uint64_t w[3] = { 0 }, seen = 0;
	struct prefix_result r;
	struct prefix_log *g = prefix_begin(w, sizeof(w));
	shm_put_u64(&w[0], 1);
	shm_swap_u64(&w[1], 1);
	shm_put_u64(&w[2], 1);
	cr_assert(prefix_check(g, PREFIX_WEAK, 0, nothing_missing, &seen, &r));
	cr_assert_eq(r.n_sets, 4);
	cr_assert_eq(seen, 1ull << 0 | 1ull << 1 | 1ull << 3 | 1ull << 7);
	prefix_free(g);
	NO_LEAKS();
}
