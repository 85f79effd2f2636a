/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/meta_fs_fault.h"

#include <stdio.h>
#include <string.h>

#define NAME_MAX_ 48
#define FILES_MAX 64 /* inodes of one disk's life */
#define NAMES_MAX 16
#define PIECE	  512
#define OPS_MAX	  16384

/* One unsynced piece of a write. */
struct piece {
	size_t at, n; /* bytes; inside one PIECE of the file */
	uint8_t data[PIECE];
};

struct inode {
	uint8_t *cache, *disk;
	size_t cache_n, disk_n;
	struct piece *pending;
	size_t n_pending;
};

struct names {
	char text[NAMES_MAX][NAME_MAX_];
	int inode[NAMES_MAX]; /* -1: free */
};

/* `gone` loses its meaning, then `add` means inode. */
struct change {
	char add[NAME_MAX_], gone[NAME_MAX_];
	int inode;
};

struct fault_fs {
	struct meta_fs fs;
	struct inode inodes[FILES_MAX];
	int n_inodes;
	struct names cache, disk;
	struct change *changes;
	size_t n_changes;
	uint64_t ops, cut_at, fail_from, fail_to;
	size_t cut_bytes;
	enum err fail_err;
	bool dead, locked;
	uint8_t kinds[OPS_MAX];
};

struct file {
	struct meta_file file;
	int inode; /* -1: the lock */
};

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static struct fault_fs *fs_of(struct meta_fs *fs)
{
	return container_of(fs, struct fault_fs, fs);
}

static struct inode *inode_of(struct meta_file *f)
{
	struct file *h = container_of(f, struct file, file);
	assert(h->inode >= 0);
	return &fs_of(f->fs)->inodes[h->inode];
}

/* ---- names ---- */

static int names_find(const struct names *n, const char *text)
{
	for (int i = 0; i < NAMES_MAX; i++)
		if (n->inode[i] >= 0 && strcmp(n->text[i], text) == 0)
			return i;
	return -1;
}

static void names_set(struct names *n, const char *text, int inode)
{
	int at = names_find(n, text);
	for (int i = 0; at < 0 && i < NAMES_MAX; i++)
		if (n->inode[i] < 0)
			at = i;
	assert(at >= 0);
	snprintf(n->text[at], NAME_MAX_, "%s", text);
	n->inode[at] = inode;
}

static void names_change(struct names *n, const struct change *c)
{
	int gone = c->gone[0] ? names_find(n, c->gone) : -1;
	if (gone >= 0)
		n->inode[gone] = -1;
	if (c->add[0])
		names_set(n, c->add, c->inode);
}

static void change(struct fault_fs *f, const char *add, int inode, const char *gone)
{
	struct change c = { .inode = inode };
	snprintf(c.add, sizeof(c.add), "%s", add);
	snprintf(c.gone, sizeof(c.gone), "%s", gone);
	names_change(&f->cache, &c);
	f->changes = must(realloc(f->changes, (f->n_changes + 1) * sizeof(c)));
	f->changes[f->n_changes++] = c;
}

/* ---- inodes ---- */

static void resize(uint8_t **p, size_t *n, size_t to)
{
	if (to > *n) {
		*p = must(realloc(*p, to));
		memset(*p + *n, 0, to - *n);
	}
	*n = to;
}

static void store(uint8_t **p, size_t *n, const void *from, size_t bytes, size_t at)
{
	if (at + bytes > *n)
		resize(p, n, at + bytes);
	memcpy(*p + at, from, bytes);
}

static void write_cache(struct inode *i, const uint8_t *p, size_t n, size_t at)
{
	if (n == 0)
		return;
	store(&i->cache, &i->cache_n, p, n, at);
	while (n > 0) {
		size_t take = MIN_OF(n, PIECE - at % PIECE);
		i->pending =
			must(realloc(i->pending, (i->n_pending + 1) * sizeof(*i->pending)));
		struct piece *s = &i->pending[i->n_pending++];
		*s = (struct piece){ .at = at, .n = take };
		memcpy(s->data, p, take);
		p += take;
		at += take;
		n -= take;
	}
}

/* Only what was written since: a page whose sync failed is clean, and never written again. */
static void sync_inode(struct inode *i)
{
	resize(&i->disk, &i->disk_n, i->cache_n);
	for (size_t k = 0; k < i->n_pending; k++)
		store(&i->disk, &i->disk_n, i->pending[k].data, i->pending[k].n,
		      i->pending[k].at);
	i->n_pending = 0;
}

/* The cache's bytes are the disk's. */
static void settle_inode(struct inode *i)
{
	resize(&i->disk, &i->disk_n, i->cache_n);
	if (i->cache_n)
		memcpy(i->disk, i->cache, i->cache_n);
	i->n_pending = 0;
}

/* ---- operations ---- */

/* Counts the operation; what it answers, ERR_NONE to go on. */
static enum err begin(struct fault_fs *f, enum fault_op kind)
{
	uint64_t n = f->ops++;
	assert(n < OPS_MAX);
	f->kinds[n] = (uint8_t)kind;
	if (n >= f->cut_at)
		f->dead = true;
	if (f->dead)
		return ERR_IO;
	return n >= f->fail_from && n < f->fail_to ? f->fail_err : ERR_NONE;
}

static enum err handle_new(struct fault_fs *f, int inode, struct meta_file **out)
{
	struct file *h = must(calloc(1, sizeof(*h)));
	h->file.fs = &f->fs;
	h->inode = inode;
	*out = &h->file;
	return ERR_NONE;
}

static enum err ff_open(struct meta_fs *fs, const char *name, bool create,
			struct meta_file **out)
{
	struct fault_fs *f = fs_of(fs);
	int at = names_find(&f->cache, name);
	if (!create)
		return f->dead	? ERR_IO
		       : at < 0 ? ERR_NOT_FOUND
				: handle_new(f, f->cache.inode[at], out);
	enum err e = begin(f, FAULT_CREATE);
	if (e != ERR_NONE)
		return e;
	if (at >= 0)
		return ERR_EXISTS;
	assert(f->n_inodes < FILES_MAX);
	change(f, name, f->n_inodes, "");
	return handle_new(f, f->n_inodes++, out);
}

static void ff_close(struct meta_file *file)
{
	struct file *h = container_of(file, struct file, file);
	if (h->inode < 0)
		fs_of(file->fs)->locked = false;
	free(h);
}

static enum err ff_size(struct meta_file *file, uint64_t *out)
{
	*out = inode_of(file)->cache_n;
	return ERR_NONE;
}

static enum err ff_read(struct meta_file *file, void *p, size_t n, uint64_t off, size_t *got)
{
	const struct inode *i = inode_of(file);
	if (fs_of(file->fs)->dead)
		return ERR_IO;
	*got = off >= i->cache_n ? 0 : MIN_OF(n, i->cache_n - (size_t)off);
	if (*got)
		memcpy(p, i->cache + off, *got);
	return ERR_NONE;
}

static enum err ff_write(struct meta_file *file, const void *p, size_t n, uint64_t off)
{
	struct fault_fs *f = fs_of(file->fs);
	bool was_dead = f->dead;
	enum err e = begin(f, FAULT_WRITE);
	if (e != ERR_NONE) {
		size_t some = f->dead ? MIN_OF(n, f->cut_bytes) : n / 2;
		if (!was_dead)
			write_cache(inode_of(file), p, some, (size_t)off);
		return e;
	}
	write_cache(inode_of(file), p, n, (size_t)off);
	return ERR_NONE;
}

static enum err ff_sync(struct meta_file *file)
{
	struct fault_fs *f = fs_of(file->fs);
	enum err e = begin(f, FAULT_SYNC);
	if (e == ERR_NONE)
		sync_inode(inode_of(file));
	else if (!f->dead)
		inode_of(file)->n_pending = 0; /* clean pages that were never written */
	return e;
}

static enum err ff_rename(struct meta_fs *fs, const char *from, const char *to)
{
	struct fault_fs *f = fs_of(fs);
	enum err e = begin(f, FAULT_RENAME);
	int at = names_find(&f->cache, from);
	if (e != ERR_NONE || at < 0)
		return e != ERR_NONE ? e : ERR_NOT_FOUND;
	change(f, to, f->cache.inode[at], from);
	return ERR_NONE;
}

static enum err ff_unlink(struct meta_fs *fs, const char *name)
{
	struct fault_fs *f = fs_of(fs);
	enum err e = begin(f, FAULT_UNLINK);
	if (e != ERR_NONE || names_find(&f->cache, name) < 0)
		return e != ERR_NONE ? e : ERR_NOT_FOUND;
	change(f, "", 0, name);
	return ERR_NONE;
}

static enum err ff_sync_dir(struct meta_fs *fs)
{
	struct fault_fs *f = fs_of(fs);
	enum err e = begin(f, FAULT_SYNC_DIR);
	if (e != ERR_NONE)
		return e;
	f->disk = f->cache;
	f->n_changes = 0;
	return ERR_NONE;
}

static enum err ff_lock(struct meta_fs *fs, const char *name, struct meta_file **out,
			struct why *why)
{
	struct fault_fs *f = fs_of(fs);
	if (f->locked)
		return why_set(why, ERR_DIRECTORY_IN_USE, "%s is locked", name);
	f->locked = true;
	return handle_new(f, -1, out);
}

static void ff_free(struct meta_fs *fs)
{
	fault_fs_free(fs_of(fs));
}

static const struct meta_fs_ops ops = {
	.open = ff_open,
	.close = ff_close,
	.size = ff_size,
	.read = ff_read,
	.write = ff_write,
	.sync = ff_sync,
	.rename = ff_rename,
	.unlink = ff_unlink,
	.sync_dir = ff_sync_dir,
	.lock = ff_lock,
	.free = ff_free,
};

/* ---- the test's side ---- */

struct fault_fs *fault_fs_new(void)
{
	struct fault_fs *f = must(calloc(1, sizeof(*f)));
	f->fs = (struct meta_fs){ .ops = &ops, .where = "DISK" };
	f->cut_at = f->fail_from = f->fail_to = UINT64_MAX;
	for (int i = 0; i < NAMES_MAX; i++)
		f->cache.inode[i] = f->disk.inode[i] = -1;
	return f;
}

void fault_fs_free(struct fault_fs *f)
{
	if (!f)
		return;
	for (int i = 0; i < f->n_inodes; i++) {
		free(f->inodes[i].cache);
		free(f->inodes[i].disk);
		free(f->inodes[i].pending);
	}
	free(f->changes);
	free(f);
}

struct meta_fs *fault_fs_fs(struct fault_fs *f)
{
	return &f->fs;
}

uint64_t fault_fs_ops(const struct fault_fs *f)
{
	return f->ops;
}

void fault_fs_cut(struct fault_fs *f, uint64_t n, size_t bytes)
{
	f->cut_at = n;
	f->cut_bytes = bytes;
}

void fault_fs_fail(struct fault_fs *f, uint64_t n, uint64_t count, enum err e)
{
	f->fail_from = n;
	f->fail_to = n + count;
	f->fail_err = e;
}

enum fault_op fault_fs_kind(const struct fault_fs *f, uint64_t n)
{
	assert(n < f->ops);
	return (enum fault_op)f->kinds[n];
}

size_t fault_fs_pending(const struct fault_fs *f)
{
	size_t n = f->n_changes;
	for (int i = 0; i < f->n_inodes; i++)
		n += f->inodes[i].n_pending;
	return n;
}

static int add_inode(struct fault_fs *g, const uint8_t *p, size_t n)
{
	struct inode *i = &g->inodes[g->n_inodes];
	if (n) {
		store(&i->cache, &i->cache_n, p, n, 0);
		store(&i->disk, &i->disk_n, p, n, 0);
	}
	return g->n_inodes++;
}

/* The tail that nobody synced: where a file ends, and what a lost piece shows. */
static void spoil_tail(struct inode *d, const struct inode *i, const uint8_t *kept,
		       enum fault_tail tail)
{
	if (tail == FAULT_SHORT || i->cache_n <= i->disk_n)
		return;
	resize(&d->cache, &d->cache_n, MAX_OF(d->cache_n, i->cache_n));
	for (size_t at = i->disk_n; tail == FAULT_GARBAGE && at < i->cache_n; at++)
		if (!kept[at])
			d->cache[at] = (uint8_t)(at * 37 + 11);
}

static void cut_inode(struct fault_fs *g, const struct inode *i, size_t first,
		      bool (*keep)(void *arg, size_t i), void *arg, enum fault_tail tail)
{
	struct inode *d = &g->inodes[add_inode(g, i->disk, i->disk_n)];
	uint8_t *kept = must(calloc(1, i->cache_n + 1));
	for (size_t k = 0; k < i->n_pending; k++) {
		const struct piece *s = &i->pending[k];
		if (!keep(arg, first + k))
			continue;
		store(&d->cache, &d->cache_n, s->data, s->n, s->at);
		memset(kept + s->at, 1, s->n);
	}
	spoil_tail(d, i, kept, tail);
	free(kept);
	settle_inode(d);
}

struct fault_fs *fault_fs_after_cut(const struct fault_fs *f, bool (*keep)(void *arg, size_t i),
				    void *arg, enum fault_tail tail)
{
	struct fault_fs *g = fault_fs_new();
	size_t bit = 0;
	for (int i = 0; i < f->n_inodes; i++) {
		cut_inode(g, &f->inodes[i], bit, keep, arg, tail);
		bit += f->inodes[i].n_pending;
	}
	g->disk = f->disk;
	for (size_t k = 0; k < f->n_changes; k++)
		if (keep(arg, bit + k))
			names_change(&g->disk, &f->changes[k]);
	g->cache = g->disk;
	return g;
}

struct fault_fs *fault_fs_copy(const struct fault_fs *f)
{
	struct fault_fs *g = fault_fs_new();
	for (int i = 0; i < f->n_inodes; i++)
		add_inode(g, f->inodes[i].cache, f->inodes[i].cache_n);
	g->cache = g->disk = f->cache;
	return g;
}

static struct inode *named(struct fault_fs *f, const char *name)
{
	int at = names_find(&f->cache, name);
	return at < 0 ? NULL : &f->inodes[f->cache.inode[at]];
}

uint8_t *fault_fs_file(struct fault_fs *f, const char *name, size_t *n)
{
	struct inode *i = named(f, name);
	if (!i)
		return NULL;
	*n = i->cache_n;
	return i->cache;
}

void fault_fs_truncate(struct fault_fs *f, const char *name, size_t n)
{
	named(f, name)->cache_n = n;
	settle_inode(named(f, name));
}

void fault_fs_remove(struct fault_fs *f, const char *name)
{
	int at = names_find(&f->cache, name);
	assert(at >= 0);
	f->cache.inode[at] = -1;
	f->disk = f->cache;
}

void fault_fs_put(struct fault_fs *f, const char *name, const void *p, size_t n)
{
	names_set(&f->cache, name, add_inode(f, p, n));
	f->disk = f->cache;
}
