/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers: memory of the caller's that was looked at once, before bytes move through it.
 *
 * B1: a call whose memory touches a registered buffer lies in it, and holds it until the call is over.
 * B2: unregistering takes it from the table first, so that no call can take it any more; then ends those that
 *     hold it, and waits for them.
 *
 * Threads: any. buf_lock guards the table; a buffer's own lock, its holders. Order: buf_lock, then a buffer's.
 */
#include "buffers.h"

#include "store.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

enum { SLICE = 64 << 20, BUFFERS_MAX = 65536 };

struct pml_buffer {
	struct guard *guard;
	uintptr_t base;
	size_t bytes;
	bool read_only, locked, prefaulted;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint32_t users;
};

static int bad(struct pml_error *err, enum err e, const char *what)
{
	return sdk_error(err, e, 0, NULL, "register", "%s", what);
}

/* ---- the memory ---- */

struct pages {
	uintptr_t at, end;
};

static struct pages pages_of(const struct pml_buffer *b)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	return (struct pages){ b->base & ~(page - 1),
			       (b->base + b->bytes + page - 1) & ~(page - 1) };
}

/* Slice by slice: other threads of the process want its page tables, too. 0 or errno. */
static int advise(struct pages p, int advice)
{
	for (; p.at < p.end; p.at += MIN_OF(p.end - p.at, (uintptr_t)SLICE))
		if (madvise((void *)p.at, MIN_OF(p.end - p.at, (uintptr_t)SLICE), advice) != 0)
			return errno;
	return 0;
}

/* Is all of it mapped? For kernels and kinds of memory that cannot be prefaulted. */
static bool is_mapped(struct pages p)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *in = malloc(SLICE / page);
	bool mapped = in != NULL;
	for (; p.at < p.end && mapped; p.at += MIN_OF(p.end - p.at, (uintptr_t)SLICE))
		mapped = mincore((void *)p.at, MIN_OF(p.end - p.at, (uintptr_t)SLICE), in) == 0;
	free(in);
	return mapped;
}

/* Every page is there, and may be read or written: afterwards no copy meets a fault. */
static enum err look_at(struct pml_buffer *b, bool prefault, struct why *why)
{
	struct pages p = pages_of(b), first = p;
	int sys = prefault ? advise(p, b->read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE)
			   : EINVAL;
	b->prefaulted = sys == 0;
	if (sys == 0)
		return ERR_NONE;
	first.end = first.at + (uintptr_t)sysconf(_SC_PAGESIZE);
	if (sys == EINVAL && prefault && !b->read_only &&
	    advise(first, MADV_POPULATE_READ) == 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "the memory may not be written; read_only is for puts");
	if (sys == EINVAL && is_mapped(p))
		return ERR_NONE;
	if (sys == EFAULT)
		return why_set(why, ERR_INVALID_PARAMS,
			       "the memory faults: a file that is shorter than its mapping?");
	return why_set(why, ERR_INVALID_PARAMS, "not all of the memory is mapped");
}

static enum err lock_it(struct pml_buffer *b, struct why *why)
{
	struct pages p = pages_of(b);
	if (mlock((void *)p.at, p.end - p.at) != 0)
		return why_set(why, ERR_NO_MEMORY,
			       "mlock of %zu bytes: %s; see `ulimit -l` (RLIMIT_MEMLOCK)",
			       b->bytes, strerror(errno));
	b->locked = true;
	return ERR_NONE;
}

/* ---- the table ---- */

/* The first that begins behind `at`; the one before it may hold it. */
static uint32_t after(const struct pml *p, uintptr_t at)
{
	uint32_t lo = 0, hi = p->n_buffers;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (p->buffers[mid]->base <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Under buf_lock: the one that [at, end) lies in, if *out is not NULL. False: it crosses an edge. */
static bool find(const struct pml *p, uintptr_t at, uintptr_t end, struct pml_buffer **out)
{
	uint32_t i = after(p, at);
	*out = i > 0 && at < p->buffers[i - 1]->base + p->buffers[i - 1]->bytes
		       ? p->buffers[i - 1]
		       : NULL;
	if (*out)
		return end <= (*out)->base + (*out)->bytes;
	return i == p->n_buffers || end <= p->buffers[i]->base;
}

static enum err add(struct pml *p, struct pml_buffer *b, struct why *why)
{
	struct pml_buffer *other;
	if (!find(p, b->base, b->base + b->bytes, &other) || other)
		return why_set(why, ERR_EXISTS,
			       "memory of it is in a registered buffer already");
	if (p->n_buffers == BUFFERS_MAX)
		return why_set(why, ERR_BUSY, "a handle has at most %d registered buffers",
			       BUFFERS_MAX);
	if (p->n_buffers == p->cap_buffers) {
		uint32_t cap = p->cap_buffers ? 2 * p->cap_buffers : 16;
		struct pml_buffer **v = realloc(p->buffers, cap * sizeof(*v));
		if (!v)
			return why_set(why, ERR_NO_MEMORY, "no memory for a buffer");
		p->buffers = v;
		p->cap_buffers = cap;
	}
	uint32_t i = after(p, b->base);
	memmove(p->buffers + i + 1, p->buffers + i, (p->n_buffers - i) * sizeof(p->buffers[0]));
	p->buffers[i] = b;
	__atomic_store_n(&p->n_buffers, p->n_buffers + 1, __ATOMIC_RELEASE);
	return ERR_NONE;
}

static void take_out(struct pml *p, const struct pml_buffer *b)
{
	pthread_rwlock_wrlock(&p->buf_lock);
	uint32_t i = after(p, b->base) - 1;
	assert(p->buffers[i] == b);
	memmove(p->buffers + i, p->buffers + i + 1,
		(p->n_buffers - i - 1) * sizeof(p->buffers[0]));
	__atomic_store_n(&p->n_buffers, p->n_buffers - 1, __ATOMIC_RELEASE);
	pthread_rwlock_unlock(&p->buf_lock);
}

/* ---- registering ---- */

static void destroy(struct pml_buffer *b)
{
	struct pages p = pages_of(b);
	if (b->locked)
		(void)munlock((void *)p.at, p.end - p.at);
	guard_unref(b->guard);
	pthread_cond_destroy(&b->cond);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

static int check(const void *base, size_t bytes, const struct pml_buffer_opts *o, bool good,
		 struct pml_error *err)
{
	for (size_t i = 0; i < ARRAY_LEN(o->reserved) && good; i++)
		good = !o->reserved[i];
	if (!good)
		return bad(err, ERR_INVALID_PARAMS,
			   "pml_buffer_opts: size is not set; use PML_BUFFER_OPTS_INIT");
	if (!base || bytes == 0)
		return bad(err, ERR_INVALID_PARAMS, "a buffer has memory, and at least a byte");
	if (bytes > UINTPTR_MAX / 2 || (uintptr_t)base > UINTPTR_MAX / 2)
		return bad(err, ERR_INVALID_PARAMS, "it ends behind the end of memory");
	return PML_ERR_NONE;
}

int pml_buffer_register(struct pml *p, void *base, size_t bytes,
			const struct pml_buffer_opts *opts, struct pml_buffer **out,
			struct pml_error *err)
{
	struct pml_buffer_opts o;
	struct why why = { 0 };
	int r = sdk_usable(p, err);
	if (r == PML_ERR_NONE && !out)
		r = bad(err, ERR_INVALID_PARAMS, "out is NULL");
	if (r == PML_ERR_NONE)
		r = check(base, bytes, &o, sdk_opts(&o, sizeof(o), opts), err);
	if (r != PML_ERR_NONE)
		return r;
	struct pml_buffer *b = calloc(1, sizeof(*b));
	if (!b)
		return bad(err, ERR_NO_MEMORY, "no memory for a buffer");
	b->guard = guard_ref(p->guard);
	b->base = (uintptr_t)base;
	b->bytes = bytes;
	b->read_only = o.read_only;
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->cond, NULL);
	enum err e = look_at(b, !o.no_prefault, &why);
	if (e == ERR_NONE && o.lock)
		e = lock_it(b, &why);
	if (e == ERR_NONE) {
		pthread_rwlock_wrlock(&p->buf_lock);
		e = add(p, b, &why);
		pthread_rwlock_unlock(&p->buf_lock);
	}
	if (e == ERR_NONE) {
		assert(out);
		*out = b;
		return PML_ERR_NONE;
	}
	destroy(b);
	return sdk_error_why(err, &why, "register");
}

int pml_buffer_info(const struct pml_buffer *b, struct pml_buffer_facts *out)
{
	if (!b)
		return PML_ERR_INVALID_PARAMS;
	if (!guard_ok(b->guard))
		return PML_ERR_FORKED;
	pthread_mutex_lock((pthread_mutex_t *)&b->lock);
	struct pml_buffer_facts f = { .size = sizeof(f),
				      .base = (void *)b->base,
				      .bytes = b->bytes,
				      .calls = b->users,
				      .read_only = b->read_only,
				      .locked = b->locked,
				      .prefaulted = b->prefaulted };
	pthread_mutex_unlock((pthread_mutex_t *)&b->lock);
	return sop_give(out, &f, sizeof(f));
}

int pml_buffer_unregister(struct pml_buffer *b)
{
	if (!b)
		return PML_ERR_NONE;
	if (!guard_ok(b->guard))
		return PML_ERR_FORKED;
	struct pml *p = guard_enter(b->guard);
	if (p) {
		take_out(p, b);
		op_cancel_users(p, b);
		guard_leave(b->guard);
	}
	pthread_mutex_lock(&b->lock);
	while (b->users > 0)
		pthread_cond_wait(&b->cond, &b->lock);
	pthread_mutex_unlock(&b->lock);
	destroy(b);
	return PML_ERR_NONE;
}

/* ---- calls ---- */

static bool hold(struct sop *s, struct pml_buffer *b)
{
	if (s->held && s->held->b == b)
		return true;
	struct sop_held *h = arena_alloc(&s->mem, sizeof(*h));
	if (!h)
		return false;
	*h = (struct sop_held){ s->held, b };
	s->held = h;
	pthread_mutex_lock(&b->lock);
	b->users++;
	pthread_mutex_unlock(&b->lock);
	return true;
}

enum err buffers_hold(struct pml *p, struct sop *s, const struct stc_buf *v, size_t n,
		      bool write, struct why *why)
{
	enum err e = ERR_NONE;
	if (__atomic_load_n(&p->n_buffers, __ATOMIC_ACQUIRE) == 0)
		return e;
	pthread_rwlock_rdlock(&p->buf_lock);
	for (size_t i = 0; i < n && e == ERR_NONE; i++) {
		struct pml_buffer *b;
		uintptr_t at = (uintptr_t)v[i].p;
		if (v[i].n == 0)
			continue;
		if (!find(p, at, at + v[i].n, &b))
			e = why_set(why, ERR_INVALID_PARAMS,
				    "%zu bytes at %p cross the edge of a registered buffer",
				    v[i].n, v[i].p);
		else if (b && write && b->read_only)
			e = why_set(why, ERR_INVALID_PARAMS,
				    "%zu bytes at %p are in a buffer that is registered for "
				    "reading alone",
				    v[i].n, v[i].p);
		else if (b && !hold(s, b))
			e = ERR_NO_MEMORY;
	}
	pthread_rwlock_unlock(&p->buf_lock);
	return e;
}

bool buffers_held(const struct sop *s, const struct pml_buffer *b)
{
	const struct sop_held *h = s->held;
	while (h && h->b != b)
		h = h->next;
	return h != NULL;
}

void buffers_let_go(struct sop *s)
{
	struct sop_held *h = TAKE(s->held);
	for (; h; h = h->next) {
		struct pml_buffer *b = h->b;
		pthread_mutex_lock(&b->lock);
		if (--b->users == 0)
			pthread_cond_broadcast(&b->cond);
		pthread_mutex_unlock(&b->lock); /* it may be gone */
	}
}
