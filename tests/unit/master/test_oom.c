/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The soak with allocations that fail, one in eight, at random. Linked with --wrap: only calls of our own
 * objects pass here.
 */
#include <criterion/criterion.h>

#include "../../support/leak.h"
#include "rig.h"
#include "soak.h"

static uint64_t state, seed, n_failed;

static bool fails(void)
{
	if (rig_calm)
		return false;
	if (seed != rig_seed)
		state = (seed = rig_seed) * 0x9e3779b97f4a7c15 + 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	if ((state >> 20) % 8)
		return false;
	n_failed++;
	return true;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t k, size_t n);
void *__wrap_realloc(void *p, size_t n);

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

Test(oom, events, .timeout = 600)
{
	soak_seeds(300001, 60, 0, 1 << 20);
	cr_assert_gt(n_failed, 1000);
	NO_LEAKS();
}

Test(oom, little_space, .timeout = 600)
{
	soak_seeds(400001, 60, 2, 40960);
	NO_LEAKS();
}

Test(oom, copies, .timeout = 600)
{
	soak_copies(700001, 40, 1 << 20);
	NO_LEAKS();
}
