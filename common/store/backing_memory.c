/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's files as plain memory: a table of names. Nothing blocks, nothing is ever half written but
 * through the stores that base/shm.h logs.
 */
#include "store/backing.h"

#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/shm.h"

struct file {
	struct list node;
	char name[BACKING_NAME_MAX];
	uint8_t *p;
	uint64_t bytes;
	bool locked; /* a session's */
};

struct memory {
	struct pool_backing base;
	struct list files;
	struct list gone; /* removed: mappings of them live on until the end */
	bool locked;
	uint8_t *region; /* NULL: each file its own */
	size_t region_bytes, region_used;
};

static struct memory *memory_of(const struct pool_backing *b)
{
	return container_of(b, struct memory, base);
}

static struct file *find(const struct memory *m, const char *name)
{
	list_for_each (n, &m->files) {
		struct file *f = container_of(n, struct file, node);
		if (strcmp(f->name, name) == 0)
			return f;
	}
	return NULL;
}

static struct file *must_find(struct pool_backing *b, const char *name, uint64_t offset,
			      uint64_t bytes)
{
	struct file *f = find(memory_of(b), name);
	if (!f || offset > f->bytes || bytes > f->bytes - offset)
		return NULL;
	return f;
}

static enum err no_file(const char *name, struct why *why)
{
	return why_set(why, ERR_NOT_FOUND, "%s: there is no such file", name);
}

/* ---- files ---- */

static enum err mem_size(struct pool_backing *b, const char *name, uint64_t *bytes,
			 struct why *why)
{
	struct file *f = find(memory_of(b), name);
	if (!f)
		return no_file(name, why);
	*bytes = f->bytes;
	return ERR_NONE;
}

/* NULL: no memory, or the region is full. */
static uint8_t *new_bytes(struct memory *m, uint64_t bytes)
{
	size_t n = (bytes + 63) & ~(size_t)63;
	if (!m->region) {
		/* NOLINTNEXTLINE(bugprone-unused-return-value) */
		uint8_t *p = aligned_alloc(64, MAX_OF(n, (size_t)64));
		if (p)
			memset(p, 0, n);
		return p;
	}
	if (n > m->region_bytes - m->region_used)
		return NULL;
	uint8_t *p = m->region + m->region_used;
	m->region_used += n;
	memset(p, 0, n);
	return p;
}

static enum err mem_create(struct pool_backing *b, const char *name, uint64_t bytes,
			   struct why *why)
{
	struct memory *m = memory_of(b);
	if (find(m, name))
		return why_set(why, ERR_EXISTS, "%s: is there already", name);
	struct file *f = calloc(1, sizeof(*f));
	if (!f)
		return ERR_NO_MEMORY;
	f->p = new_bytes(m, bytes);
	if (!f->p) {
		free(f);
		return why_set(why, ERR_NO_SPACE, "%s: no memory for %llu bytes", name,
			       (unsigned long long)bytes);
	}
	(void)snprintf(f->name, sizeof(f->name), "%s", name);
	f->bytes = bytes;
	list_push_back(&m->files, &f->node);
	return ERR_NONE;
}

static enum err mem_rename(struct pool_backing *b, const char *from, const char *to,
			   struct why *why)
{
	struct file *f = find(memory_of(b), from);
	if (!f)
		return no_file(from, why);
	if (find(memory_of(b), to))
		return why_set(why, ERR_EXISTS, "%s: is there already", to);
	(void)snprintf(f->name, sizeof(f->name), "%s", to);
	return ERR_NONE;
}

static enum err mem_remove(struct pool_backing *b, const char *name, struct why *why)
{
	(void)why;
	struct memory *m = memory_of(b);
	struct file *f = find(m, name);
	if (!f)
		return ERR_NONE;
	list_del(&f->node);
	list_push_back(&m->gone, &f->node);
	return ERR_NONE;
}

static enum err mem_list(struct pool_backing *b, void (*fn)(void *arg, const char *name),
			 void *arg, struct why *why)
{
	(void)why;
	list_for_each_safe (n, &memory_of(b)->files) {
		char name[BACKING_NAME_MAX];
		memcpy(name, container_of(n, struct file, node)->name, sizeof(name));
		fn(arg, name);
	}
	return ERR_NONE;
}

static enum err mem_map(struct pool_backing *b, const char *name, uint64_t bytes, void **out,
			struct why *why)
{
	struct file *f = must_find(b, name, 0, bytes);
	if (!f)
		return no_file(name, why);
	*out = f->p;
	return ERR_NONE;
}

static void mem_unmap(struct pool_backing *b, void *p, uint64_t bytes)
{
	(void)b, (void)p, (void)bytes;
}

static enum err mem_reserve(struct pool_backing *b, const char *name, uint64_t offset,
			    uint64_t bytes, struct why *why)
{
	return must_find(b, name, offset, bytes) ? ERR_NONE : no_file(name, why);
}

static bool mem_data(struct pool_backing *b, const char *name, uint64_t from, uint64_t *start,
		     uint64_t *end)
{
	struct file *f = find(memory_of(b), name);
	if (!f || from >= f->bytes)
		return false;
	*start = from;
	*end = f->bytes;
	return true;
}

static enum err mem_read(struct pool_backing *b, const char *name, uint64_t offset, void *p,
			 size_t n, struct why *why)
{
	struct file *f = must_find(b, name, offset, n);
	if (!f)
		return no_file(name, why);
	memcpy(p, f->p + offset, n);
	return ERR_NONE;
}

static enum err mem_write(struct pool_backing *b, const char *name, uint64_t offset,
			  const void *p, size_t n, struct why *why)
{
	struct file *f = must_find(b, name, offset, n);
	if (!f)
		return no_file(name, why);
	shm_copy(f->p + offset, p, n);
	return ERR_NONE;
}

static enum err mem_sync(struct pool_backing *b, const char *name, struct why *why)
{
	(void)b, (void)name, (void)why;
	shm_fence();
	return ERR_NONE;
}

/* ---- locks ---- */

static enum err mem_lock(struct pool_backing *b, struct why *why)
{
	struct memory *m = memory_of(b);
	if (m->locked)
		return why_set(why, ERR_DIRECTORY_IN_USE,
			       "pool in memory: another one runs it");
	m->locked = true;
	return ERR_NONE;
}

static void mem_unlock(struct pool_backing *b)
{
	memory_of(b)->locked = false;
}

void pool_memory_killed(struct pool_backing *b)
{
	mem_unlock(b);
}

static enum err mem_session_lock(struct pool_backing *b, const char *name, int *fd,
				 struct why *why)
{
	struct file *f = find(memory_of(b), name);
	if (!f)
		return no_file(name, why);
	f->locked = true;
	*fd = -1;
	return ERR_NONE;
}

static bool mem_session_gone(struct pool_backing *b, const char *name)
{
	struct file *f = find(memory_of(b), name);
	return !f || !f->locked;
}

void pool_memory_session_killed(struct pool_backing *b, uint32_t session)
{
	char name[BACKING_NAME_MAX];
	(void)snprintf(name, sizeof(name), "ses.%08x", session);
	struct file *f = find(memory_of(b), name);
	if (f)
		f->locked = false;
}

static enum err mem_fd(struct pool_backing *b, const char *name, bool write, int *fd,
		       struct why *why)
{
	(void)b, (void)name, (void)write, (void)why;
	*fd = -1;
	return ERR_NONE;
}

/* ---- the whole ---- */

static void free_files(struct memory *m, struct list *l)
{
	list_for_each_safe (n, l) {
		struct file *f = container_of(n, struct file, node);
		list_del(&f->node);
		if (!m->region)
			free(f->p);
		free(f);
	}
}

static void mem_free(struct pool_backing *b)
{
	struct memory *m = memory_of(b);
	free_files(m, &m->files);
	free_files(m, &m->gone);
	free(m);
}

static const struct pool_backing_ops mem_ops = {
	.size = mem_size,
	.create = mem_create,
	.rename = mem_rename,
	.remove = mem_remove,
	.list = mem_list,
	.map = mem_map,
	.unmap = mem_unmap,
	.reserve = mem_reserve,
	.data = mem_data,
	.read = mem_read,
	.write = mem_write,
	.sync = mem_sync,
	.lock = mem_lock,
	.unlock = mem_unlock,
	.session_lock = mem_session_lock,
	.session_gone = mem_session_gone,
	.fd = mem_fd,
	.free = mem_free,
};

enum err pool_memory_new_at(void *p, size_t n, struct pool_backing **out)
{
	struct memory *m = calloc(1, sizeof(*m));
	if (!m)
		return ERR_NO_MEMORY;
	m->base.ops = &mem_ops;
	m->region = p;
	m->region_bytes = n;
	list_init(&m->files);
	list_init(&m->gone);
	*out = &m->base;
	return ERR_NONE;
}

enum err pool_memory_new(struct pool_backing **out)
{
	return pool_memory_new_at(NULL, 0, out);
}

enum err pool_memory_new_like(const struct pool_backing *like, void *p,
			      struct pool_backing **out)
{
	const struct memory *from = memory_of(like);
	enum err e = pool_memory_new_at(p, from->region_bytes, out);
	if (e)
		return e;
	struct memory *to = memory_of(*out);
	to->region_used = from->region_used;
	list_for_each (n, &from->files) {
		const struct file *f = container_of(n, struct file, node);
		struct file *g = calloc(1, sizeof(*g));
		if (!g) {
			mem_free(*out);
			return ERR_NO_MEMORY;
		}
		*g = *f;
		g->p = to->region + (f->p - from->region);
		list_push_back(&to->files, &g->node);
	}
	return ERR_NONE;
}
