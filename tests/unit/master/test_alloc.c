/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "../../support/leak.h"
#include "store/alloc.h"

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s >> 11;
}

Test(alloc, rounds_as_object_h_says, .timeout = 10)
{
	cr_assert_eq(alloc_round(0), 0);
	cr_assert_eq(alloc_round(1), 64);
	cr_assert_eq(alloc_round(4095), 4096);
	cr_assert_eq(alloc_round(4096), 4096);
	cr_assert_eq(alloc_round(4097), 8192);
}

Test(alloc, refuses_no_size, .timeout = 10)
{
	struct alloc *a = NULL;
	cr_assert_eq(alloc_new(0, &a), ERR_INVALID_PARAMS);
	cr_assert_eq(alloc_new(UINT64_MAX, &a), ERR_INVALID_PARAMS);
	cr_assert_null(a);
	alloc_free(NULL);
}

Test(alloc, grows_in_slices, .timeout = 10)
{
	struct alloc *a;
	uint64_t at;
	cr_assert_eq(alloc_new(1 << 20, &a), ERR_NONE);
	cr_assert_eq(alloc_take(a, 64, &at), ERR_NO_SPACE);
	cr_assert_eq(alloc_grow(a, 1 << 18), ERR_NONE);
	cr_assert_eq(alloc_take(a, 1 << 18, &at), ERR_NONE);
	cr_assert_eq(alloc_take(a, 64, &at), ERR_NO_SPACE);
	cr_assert_eq(alloc_grow(a, 1 << 20), ERR_NONE);
	cr_assert_eq(alloc_grow(a, 1 << 19), ERR_NONE, "less changes nothing");
	cr_assert_eq(alloc_bytes(a), 1 << 20);
	cr_assert_eq(alloc_take(a, 3 << 18, &at), ERR_NONE);
	cr_assert(alloc_give(a, 0, 1 << 18));
	cr_assert(alloc_give(a, 1 << 18, 3 << 18));
	alloc_check(a);
	cr_assert_eq(alloc_take(a, 1 << 20, &at), ERR_NONE, "neighbours are joined");
	alloc_free(a);
	NO_LEAKS();
}

Test(alloc, reserve_takes_only_what_is_free, .timeout = 10)
{
	struct alloc *a;
	cr_assert_eq(alloc_new(1 << 20, &a), ERR_NONE);
	cr_assert_eq(alloc_grow(a, 1 << 20), ERR_NONE);
	cr_assert_eq(alloc_reserve(a, 8192, 4096), ERR_NONE);
	cr_assert_eq(alloc_reserve(a, 8192, 4096), ERR_CONFLICT);
	cr_assert_eq(alloc_reserve(a, 4096, 8192), ERR_CONFLICT);
	cr_assert_eq(alloc_reserve(a, 12288 - 64, 64), ERR_CONFLICT);
	cr_assert_eq(alloc_reserve(a, 100, 64), ERR_CONFLICT, "misplaced");
	cr_assert_eq(alloc_reserve(a, 64, 4096), ERR_CONFLICT, "misplaced");
	cr_assert_eq(alloc_reserve(a, 1 << 20, 64), ERR_CONFLICT);
	cr_assert_eq(alloc_reserve(a, (1 << 20) - 64, 128), ERR_CONFLICT);
	cr_assert_eq(alloc_reserve(a, UINT64_MAX - 63, 64), ERR_CONFLICT);
	cr_assert_eq(alloc_reserve(a, 0, UINT64_MAX), ERR_CONFLICT);
	cr_assert_eq(alloc_reserve(a, 64, 64), ERR_NONE);
	alloc_check(a);
	cr_assert_eq(alloc_used(a), 4096 + 64);
	alloc_free(a);
	NO_LEAKS();
}

/* Every call against a map of bytes. */
Test(alloc, against_a_map, .timeout = 60)
{
	enum { GRAINS = 1 << 12, HELD = 300 };
	struct {
		uint64_t at, n;
	} held[HELD];
	static uint8_t map[GRAINS];
	struct alloc *a;
	uint64_t s = 88172645463325252, n = 0, used = 0;
	memset(map, 0, sizeof(map));
	cr_assert_eq(alloc_new(GRAINS * 64, &a), ERR_NONE);
	cr_assert_eq(alloc_grow(a, GRAINS * 64), ERR_NONE);
	for (int i = 0; i < 200000; i++) {
		uint64_t bytes = rnd(&s) % 3 ? 1 + rnd(&s) % 20000 : 1 + rnd(&s) % 400, at = 0;
		uint64_t g = alloc_round(bytes) / 64;
		bool reserve = rnd(&s) % 4 == 0;
		if (n < HELD && rnd(&s) % 2) {
			bool fits = true;
			if (reserve) {
				at = rnd(&s) % (GRAINS - g) * 64;
				at = bytes >= 4096 ? at / 4096 * 4096 : at;
				for (uint64_t x = at / 64; x < at / 64 + g; x++)
					fits = fits && !map[x];
				cr_assert_eq(alloc_reserve(a, at, bytes) == ERR_NONE, fits);
			} else {
				uint64_t sure = alloc_fits(a);
				fits = alloc_take(a, bytes, &at) == ERR_NONE;
				cr_assert(fits || bytes > sure);
			}
			if (!fits)
				continue;
			cr_assert_eq(at % (bytes >= 4096 ? 4096 : 64), 0);
			for (uint64_t x = at / 64; x < at / 64 + g; x++)
				cr_assert_eq(map[x]++, 0, "given out twice");
			used += g;
			held[n].at = at;
			held[n++].n = bytes;
		} else if (n > 0) {
			uint64_t k = rnd(&s) % n;
			cr_assert(alloc_give(a, held[k].at, held[k].n));
			g = alloc_round(held[k].n) / 64;
			for (uint64_t x = held[k].at / 64; x < held[k].at / 64 + g; x++)
				map[x]--;
			used -= g;
			held[k] = held[--n];
		}
		cr_assert_eq(alloc_used(a), used * 64);
		if (i % 64 == 0)
			alloc_check(a);
	}
	alloc_free(a);
	NO_LEAKS();
}

/* I2: 99 % of a segment, filled, and filled again after random frees. */
static void uniform(uint64_t bytes)
{
	uint64_t total = bytes * 1000 / 4096 * 4096 + 4096, n = 0, s = bytes;
	uint64_t *at = calloc(1100, sizeof(*at));
	struct alloc *a;
	cr_assert_eq(alloc_new(total, &a), ERR_NONE);
	cr_assert_eq(alloc_grow(a, total), ERR_NONE);
	for (int round = 0; round < 20; round++) {
		while (n < 1100 && alloc_take(a, bytes, &at[n]) == ERR_NONE)
			n++;
		cr_assert_geq(n * bytes, total / 100 * 99, "%zu of %zu bytes in round %d",
			      (size_t)(n * bytes), (size_t)total, round);
		for (uint64_t k = 0; k < n;)
			if (rnd(&s) % 3 == 0) {
				cr_assert(alloc_give(a, at[k], bytes));
				at[k] = at[--n];
			} else {
				k++;
			}
		alloc_check(a);
	}
	alloc_free(a);
	free(at);
}

Test(alloc, uniform_sizes_fill_it, .timeout = 60)
{
	uniform(643 << 10);
	uniform(obj_stored_bytes(1 << 20));
	uniform(obj_stored_bytes((312ull << 20) / 100));
	uniform(obj_stored_bytes((2 << 20) + 17));
	uniform(64);
	NO_LEAKS();
}
