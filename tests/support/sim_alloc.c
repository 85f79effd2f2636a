/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked with -Wl,--wrap=malloc and so on: references of our objects come here first.
 */
#include "tests/support/sim_alloc.h"

#include <string.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);

static struct {
	const struct sim_proc *p;
	uint64_t seen, from, to, failed;
} plan;

void sim_alloc_fail(const struct sim_proc *p, uint64_t skip, uint64_t count)
{
	plan.p = count ? p : NULL;
	plan.seen = plan.failed = 0;
	plan.from = skip;
	plan.to = count > UINT64_MAX - skip ? UINT64_MAX : skip + count;
}

uint64_t sim_alloc_failed(void)
{
	return plan.failed;
}

static bool fails(void)
{
	if (!plan.p || sim_current() != plan.p)
		return false;
	uint64_t i = plan.seen++;
	bool hit = i >= plan.from && i < plan.to;
	plan.failed += hit;
	return hit;
}

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
	size_t n = strlen(s) + 1;
	char *p = fails() ? NULL : __real_malloc(n);
	return p ? memcpy(p, s, n) : NULL;
}
