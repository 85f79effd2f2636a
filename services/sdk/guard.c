/* SPDX-License-Identifier: Apache-2.0 */
/* A page the kernel wipes in a child (MADV_WIPEONFORK): costs a load to check, and unlike a process
 * id it cannot be used again by a grandchild. */
#include "sdk.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_ALIVE 0x504d4c31u

struct guard {
	_Atomic uint32_t *page;
	_Atomic uint32_t refs;
	pthread_rwlock_t lock;
	struct pml *owner; /* under the lock */
};

enum err guard_new(struct guard **out)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	struct guard *g = calloc(1, sizeof(*g));
	if (!g)
		return ERR_NO_MEMORY;
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || madvise(p, size, MADV_WIPEONFORK) != 0) {
		if (p != MAP_FAILED)
			munmap(p, size);
		free(g);
		return ERR_NO_MEMORY;
	}
	g->page = p;
	*g->page = GUARD_ALIVE;
	g->refs = 1;
	pthread_rwlock_init(&g->lock, NULL);
	*out = g;
	return ERR_NONE;
}

struct guard *guard_ref(struct guard *g)
{
	atomic_fetch_add(&g->refs, 1);
	return g;
}

void guard_unref(struct guard *g)
{
	if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
		return;
	munmap((void *)g->page, (size_t)sysconf(_SC_PAGESIZE));
	pthread_rwlock_destroy(&g->lock);
	free(g);
}

bool guard_ok(const struct guard *g)
{
	return *g->page == GUARD_ALIVE;
}

void guard_own(struct guard *g, struct pml *p)
{
	pthread_rwlock_wrlock(&g->lock);
	g->owner = p;
	pthread_rwlock_unlock(&g->lock);
}

struct pml *guard_enter(struct guard *g)
{
	pthread_rwlock_rdlock(&g->lock);
	struct pml *p = g->owner;
	if (!p)
		pthread_rwlock_unlock(&g->lock);
	return p;
}

void guard_leave(struct guard *g)
{
	pthread_rwlock_unlock(&g->lock);
}
