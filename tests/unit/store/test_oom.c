/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of the pool's code fails once, in turn. Each failure ends with ERR_NO_MEMORY, leaves what
 * was, and the next try goes well. Linked with --wrap for malloc, calloc, realloc, aligned_alloc: only calls
 * of our own objects pass here.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "store/mempool_priv.h"
#include "store_fix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)

static uint64_t n_calls, fail_at = UINT64_MAX;

static bool fails(void)
{
	return n_calls++ == fail_at;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t a, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t k, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t a, size_t n);

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t k, size_t n)
{
	return fails() ? NULL : __real_calloc(k, n);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t a, size_t n)
{
	return fails() ? NULL : __real_aligned_alloc(a, n);
}

static void arm(uint64_t skip)
{
	n_calls = 0;
	fail_at = skip;
}

/* Did it strike? */
static bool disarm(void)
{
	bool struck = n_calls > fail_at;
	fail_at = UINT64_MAX;
	return struck;
}

Test(oom, a_start_new_and_kept, .timeout = 30)
{
	for (int kept = 0; kept < 2; kept++) {
		uint64_t skip = 0;
		for (bool struck = true; struck; skip++) {
			struct store_fix x;
			struct hold_slot s;
			store_fix_init(&x, NULL);
			OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
			store_fix_kill(&x);
			if (!kept)
				OK(mempool_remove(x.b, NULL));
			arm(skip);
			enum err e = store_fix_open(&x);
			struck = disarm();
			/* memory for a file is space: a folder would say so too */
			cr_assert(struck ? e == ERR_NO_MEMORY || e == ERR_NO_SPACE
					 : e == ERR_NONE,
				  "%u: %s", (unsigned)skip, err_name(e));
			store_fix_kill(&x);
			OK(store_fix_open(&x));
			cr_assert_eq(mempool_slots_used(x.p), (uint32_t)kept);
			store_fix_fini(&x);
		}
		cr_assert_gt(skip, 10);
	}
	NO_LEAKS();
}

Test(oom, a_first_commit, .timeout = 30)
{
	uint64_t skip = 0;
	for (bool struck = true; struck; skip++) {
		struct store_fix x;
		struct hold_slot s;
		store_fix_init(&x, NULL);
		arm(skip);
		enum err e = store_fix_commit(&x, 5, "k", 0, 64, &s);
		struck = disarm();
		cr_assert_eq(e, struck ? ERR_NO_MEMORY : ERR_NONE);
		cr_assert_eq(mempool_slots_used(x.p), !struck);
		OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
		store_fix_fini(&x);
	}
	cr_assert_gt(skip, 4);
	NO_LEAKS();
}

static struct pool_lane *stuck_writer(struct store_fix *x, struct shmpool **c)
{
	struct extent e = { .offset = 64, .bytes = 64 };
	*c = store_fix_client(x, NULL);
	struct pool_lane *l = shmpool_lane(*c);
	OK(lane_begin(l, shmpool_ctl(*c), 0, store_fix_under(x).pool_epoch, 5, &e, 1));
	return l;
}

static void end_writer(struct shmpool *c, struct pool_lane *l)
{
	lane_end(l);
	shmpool_lane_done(c, l);
	shmpool_close(c);
}

Test(oom, a_fence_that_cannot_be_noted_is_not_answered, .timeout = 30)
{
	struct store_fix x;
	struct hold_slot s;
	struct shmpool *c;
	struct extent e = { .offset = 64, .bytes = 64 };
	enum hold_fence state = 0;
	store_fix_init(&x, NULL);
	struct hold_under u = store_fix_under(&x);
	struct pool_lane *l = stuck_writer(&x, &c);
	arm(0);
	cr_assert_eq(hold_fence(x.h, &u, 5, &e, 1, &state, &s), ERR_NO_MEMORY);
	cr_assert(disarm());
	cr_assert_eq(state, 0, "neither FENCED nor WRITING");
	OK(hold_fence(x.h, &u, 5, &e, 1, &state, &s));
	cr_assert_eq(state, HOLD_WRITING);
	end_writer(c, l);
	store_fix_fini(&x);
	NO_LEAKS();
}

/* The epoch rose, the hazards were not all noted: the same ADOPT again must note them (V1, V10). */
Test(oom, an_adoption_owes_its_scan, .timeout = 30)
{
	struct store_fix x;
	struct shmpool *c;
	struct hold_under u;
	store_fix_init(&x, NULL);
	struct pool_lane *l = stuck_writer(&x, &c);
	arm(0);
	cr_assert_eq(hold_adopt(x.h, 0, 7, 1, &u, NULL), ERR_NO_MEMORY);
	cr_assert(disarm());
	cr_assert_eq(hold_quarantine(x.h), 0);
	OK(hold_adopt(x.h, 0, 7, 1, &u, NULL));
	cr_assert_eq(hold_quarantine(x.h), 64);
	end_writer(c, l);
	store_fix_fini(&x);
	NO_LEAKS();
}

Test(oom, a_client_in_memory, .timeout = 30)
{
	uint64_t skip = 0;
	for (bool struck = true; struck; skip++) {
		struct store_fix x;
		struct shmpool_fds fds;
		struct shmpool *c = NULL;
		uint32_t id;
		store_fix_init(&x, NULL);
		arm(skip);
		enum err e = mempool_session(x.p, true, &id, &fds, NULL);
		if (e == ERR_NONE)
			e = mempool_attach(x.p, id, &c);
		struck = disarm();
		cr_assert(struck ? e == ERR_NO_MEMORY || e == ERR_NO_SPACE : e == ERR_NONE);
		shmpool_close(c);
		store_fix_fini(&x);
	}
	cr_assert_gt(skip, 2);
	NO_LEAKS();
}
