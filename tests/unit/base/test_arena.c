/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <string.h>

Test(arena, zero_is_empty_and_gives_nothing, .timeout = 5)
{
	struct arena a = { 0 };
	cr_assert_null(arena_alloc(&a, 1));
	cr_assert_not(a.no_memory);
	arena_clear(&a);
	arena_fini(&a);
	arena_fini(NULL);
	NO_LEAKS();
}

/* Pieces keep what was written in them, are aligned, and do not touch. */
Test(arena, pieces_are_apart_and_aligned, .timeout = 5)
{
	enum { N = 500 };
	struct arena a = ARENA_INIT(1 << 20);
	uint8_t *p[N];
	size_t size[N];
	unsigned seed = 3;
	for (int i = 0; i < N; i++) {
		size[i] = 1 + (size_t)rand_r(&seed) % 700;
		p[i] = arena_alloc(&a, size[i]);
		cr_assert_not_null(p[i]);
		cr_assert_eq((uintptr_t)p[i] % 8, 0);
		memset(p[i], i & 0xff, size[i]);
	}
	for (int i = 0; i < N; i++)
		for (size_t k = 0; k < size[i]; k++)
			cr_assert_eq(p[i][k], i & 0xff);
	arena_fini(&a);
	NO_LEAKS();
}

Test(arena, the_limit_holds_whatever_is_asked, .timeout = 5)
{
	struct arena a = ARENA_INIT(10000);
	unsigned seed = 4;
	size_t given = 0;
	for (int i = 0; i < 2000; i++) {
		size_t n = 1 + (size_t)rand_r(&seed) % 3000;
		if (arena_alloc(&a, n))
			given += n;
		cr_assert_leq(a.held, a.limit);
	}
	cr_assert_leq(given, 10000);
	cr_assert_geq(given, 5000);
	cr_assert_null(arena_alloc(&a, SIZE_MAX));
	cr_assert_null(arena_alloc(&a, SIZE_MAX - 7));
	cr_assert_not(a.no_memory, "it was the limit");
	arena_fini(&a);
	NO_LEAKS();
}

Test(arena, the_whole_limit_can_be_one_piece, .timeout = 5)
{
	struct arena a = ARENA_INIT(100000);
	cr_assert_null(arena_alloc(&a, 100000), "the chunk's header needs some");
	cr_assert_not_null(arena_alloc(&a, 100000 - 16));
	cr_assert_null(arena_alloc(&a, 1));
	arena_fini(&a);
	NO_LEAKS();
}

/* A cleared arena serves the same message again without the heap. */
Test(arena, clear_keeps_one_chunk, .timeout = 5)
{
	struct arena a = ARENA_INIT(1 << 20);
	for (int i = 0; i < 100; i++)
		cr_assert_not_null(arena_alloc(&a, 500));
	arena_clear(&a);
	size_t held = a.held;
	cr_assert_gt(held, 0);
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 50; i++)
			cr_assert_not_null(arena_alloc(&a, 500));
		cr_assert_eq(a.held, held);
		arena_clear(&a);
	}
	arena_fini(&a);
	cr_assert_eq(a.held, 0);
	cr_assert_not_null(arena_alloc(&a, 10), "usable after fini");
	arena_fini(&a);
	NO_LEAKS();
}

#ifndef LEAK_CHECKED /* ASan ends the process over such a request */
Test(arena, a_heap_that_refuses_is_told_apart, .timeout = 5)
{
	struct arena a = ARENA_INIT(SIZE_MAX);
	cr_assert_null(arena_alloc(&a, SIZE_MAX / 2 + 1));
	cr_assert(a.no_memory);
	arena_fini(&a);
	NO_LEAKS();
}
#endif
