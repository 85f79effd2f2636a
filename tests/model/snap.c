/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/snap.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { CLASSES = 28, HEAD = 16, FIRST = 5 };

/* At the front of the block, so that a snapshot has it too. */
struct block {
	size_t used, live;
	void *freed[CLASSES]; /* by power of two from 1 << FIRST */
};

static struct {
	struct block *b;
	size_t max;
	bool inside;
} snap;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
char *__real_strdup(const char *s);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

void snap_open(size_t max)
{
	void *at = (void *)(uintptr_t)0x510000000000;
	void *p = mmap(at, max, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (p != at) {
		fprintf(stderr, "model: no room at %p\n", at);
		abort();
	}
	snap.b = p;
	snap.max = max;
	snap.b->used = (sizeof(*snap.b) + 63) & ~63ull;
}

void snap_enter(void)
{
	assert(!snap.inside);
	snap.inside = true;
}

void snap_leave(void)
{
	assert(snap.inside);
	snap.inside = false;
}

size_t snap_bytes(void)
{
	return snap.b->used;
}

void snap_save(void *dst)
{
	memcpy(dst, snap.b, snap.b->used);
}

void snap_load(const void *src, size_t bytes)
{
	memcpy(snap.b, src, bytes);
}

size_t snap_live(void)
{
	return snap.b->live;
}

static bool ours(const void *p)
{
	return snap.b && (const char *)p >= (const char *)snap.b &&
	       (const char *)p < (const char *)snap.b + snap.max;
}

static unsigned class_of(size_t n)
{
	unsigned c = 0;
	while (((size_t)1 << (c + FIRST)) < n + HEAD)
		c++;
	return c;
}

static size_t *head_of(void *p)
{
	return (size_t *)(void *)((char *)p - HEAD);
}

static void *take(size_t n)
{
	unsigned c = class_of(n);
	void *p = snap.b->freed[c];
	if (p) {
		memcpy(&snap.b->freed[c], p, sizeof(void *));
	} else {
		size_t bytes = (size_t)1 << (c + FIRST);
		if (snap.b->used + bytes > snap.max) {
			fprintf(stderr, "model: the world is full\n");
			abort();
		}
		p = (char *)snap.b + snap.b->used + HEAD;
		snap.b->used += bytes;
	}
	*head_of(p) = n;
	snap.b->live++;
	return p;
}

void *__wrap_malloc(size_t n)
{
	return snap.inside ? take(n) : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	if (!snap.inside)
		return __real_calloc(n, size);
	void *p = take(n * size);
	memset(p, 0, n * size);
	return p;
}

void __wrap_free(void *p)
{
	if (!ours(p)) {
		__real_free(p);
		return;
	}
	unsigned c = class_of(*head_of(p));
	memcpy(p, &snap.b->freed[c], sizeof(void *));
	snap.b->freed[c] = p;
	snap.b->live--;
}

void *__wrap_realloc(void *p, size_t n)
{
	if (p ? !ours(p) : !snap.inside)
		return __real_realloc(p, n);
	void *to = take(n);
	if (p) {
		memcpy(to, p, MIN_OF(n, *head_of(p)));
		__wrap_free(p);
	}
	return to;
}

char *__wrap_strndup(const char *s, size_t n)
{
	size_t len = strnlen(s, n);
	char *p = __wrap_malloc(len + 1);
	if (p) {
		memcpy(p, s, len);
		p[len] = 0;
	}
	return p;
}

char *__wrap_strdup(const char *s)
{
	return __wrap_strndup(s, strlen(s));
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	if (!snap.inside)
		return __real_aligned_alloc(align, n);
	/* pieces lie at 16 modulo 32: enough for cache lines by going further in, which free could not
	 * undo; so only what our code asks for */
	assert(align <= 16);
	return take(n);
}
