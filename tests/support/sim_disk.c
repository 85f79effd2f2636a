/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated disk: inodes with a cached and a durable image, folders with their names twice over.
 *
 * I1: an inode lives while a handle, a name (cached, durable or journaled) mentions it; collect()
 *     finds the others.
 * I2: durable images change only in fsync, in write-back by chance, and when the power goes.
 */
#include "tests/support/sim_disk.h"
#include "tests/support/sim_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SIZES_MAX   64	/* unsynced sizes remembered; beyond it chance replaces one */
#define JOURNAL_MAX 512 /* unsynced name changes of a folder; beyond it the first is durable */

struct image {
	uint8_t *p; /* cap bytes, zero behind size */
	size_t size, cap;
};

struct name {
	struct list node;
	char text[64];
	struct inode *inode;
};

/* A change of names: `add` under text (NULL: none), and `gone` no more ("": none). */
struct change {
	struct list node;
	char text[64], gone[64];
	struct inode *add;
};

struct inode {
	struct list node; /* sim_disk.inodes */
	bool dir, marked;
	struct image cache, disk;
	uint8_t *dirty;			     /* one byte a sector of cache.cap */
	size_t sizes[SIZES_MAX], n_sizes;    /* since the last fsync */
	struct list names, durable, journal; /* of a folder */
	size_t n_journal;
};

struct sim_file {
	struct list node; /* sim_disk.files */
	struct sim_disk *disk;
	struct inode *inode;
	const struct sim_proc *proc; /* who opened it */
	bool dead, locked;
};

struct faults {
	uint64_t ops, from, to; /* calls so far; those that fail */
	int err;
};

struct sim_disk {
	struct sim *sim;
	char node[32];
	struct sim_rng rng;
	struct list inodes, files;
	struct inode *root;
	size_t n_inodes;
	uint64_t used, limit, ns_per_op, ns_per_kib;
	bool full;
	struct faults reads, writes;
};

/* ---- images ---- */

static bool image_room(struct image *m, size_t size)
{
	if (size <= m->cap)
		return true;
	size_t cap = MAX_OF(m->cap * 2, (size + SIM_SECTOR - 1) / SIM_SECTOR * SIM_SECTOR);
	uint8_t *p = sim_alloc(cap);
	if (m->cap)
		memcpy(p, m->p, m->cap);
	free(m->p);
	m->p = p;
	m->cap = cap;
	return true;
}

static void image_resize(struct image *m, size_t size)
{
	image_room(m, size);
	if (size < m->size)
		memset(m->p + size, 0, m->size - size);
	m->size = size;
}

/* The sector s of `from` into `to`, whose size stays. */
static void copy_sector(struct image *to, const struct image *from, size_t s)
{
	size_t at = s * SIM_SECTOR;
	if (at >= from->cap)
		return;
	image_room(to, at + SIM_SECTOR);
	memcpy(to->p + at, from->p + at, SIM_SECTOR);
}

static size_t n_sectors(const struct inode *i)
{
	return i->cache.cap / SIM_SECTOR;
}

static void cache_room(struct inode *i, size_t size)
{
	size_t before = n_sectors(i);
	image_room(&i->cache, size);
	size_t after = n_sectors(i);
	if (after == before)
		return;
	uint8_t *d = sim_alloc(after);
	if (before)
		memcpy(d, i->dirty, before);
	free(i->dirty);
	i->dirty = d;
}

/* ---- inodes and folders ---- */

static struct inode *inode_new(struct sim_disk *d, bool dir)
{
	if (d->n_inodes >= SIM_DISK_FILES)
		return NULL;
	struct inode *i = sim_alloc(sizeof(*i));
	i->dir = dir;
	list_init(&i->names);
	list_init(&i->durable);
	list_init(&i->journal);
	list_push_back(&d->inodes, &i->node);
	d->n_inodes++;
	return i;
}

static void free_names(struct list *l)
{
	list_for_each_safe (n, l)
		free(list_entry(n, struct name, node));
	list_init(l);
}

static void free_journal(struct inode *i)
{
	list_for_each_safe (n, &i->journal)
		free(list_entry(n, struct change, node));
	list_init(&i->journal);
	i->n_journal = 0;
}

static void inode_free(struct sim_disk *d, struct inode *i)
{
	d->used -= i->cache.size;
	d->n_inodes--;
	list_del(&i->node);
	free_names(&i->names);
	free_names(&i->durable);
	free_journal(i);
	free(i->cache.p);
	free(i->disk.p);
	free(i->dirty);
	free(i);
}

static struct name *find_name(const struct list *l, const char *text)
{
	list_for_each (n, l) {
		struct name *e = list_entry(n, struct name, node);
		if (strcmp(e->text, text) == 0)
			return e;
	}
	return NULL;
}

static void set_name(struct list *l, const char *text, struct inode *to)
{
	struct name *e = find_name(l, text);
	if (!e) {
		e = sim_alloc(sizeof(*e));
		memcpy(e->text, text, strlen(text) + 1);
		list_push_back(l, &e->node);
	}
	e->inode = to;
}

static void drop_name(struct list *l, const char *text)
{
	struct name *e = find_name(l, text);
	if (!e)
		return;
	list_del(&e->node);
	free(e);
}

static void apply(struct list *names, const struct change *c)
{
	if (c->gone[0])
		drop_name(names, c->gone);
	if (c->add)
		set_name(names, c->text, c->add);
}

static void commit(struct inode *dir, struct change *c)
{
	list_del(&c->node);
	apply(&dir->durable, c);
	dir->n_journal--;
	free(c);
}

/* The first n changes are durable. */
static void commit_some(struct inode *dir, size_t n)
{
	list_for_each_safe (i, &dir->journal) {
		if (n-- == 0)
			return;
		commit(dir, list_entry(i, struct change, node));
	}
}

static void change(struct inode *dir, const char *text, struct inode *add, const char *gone)
{
	struct change *c = sim_alloc(sizeof(*c));
	if (text)
		memcpy(c->text, text, strlen(text) + 1);
	if (gone)
		memcpy(c->gone, gone, strlen(gone) + 1);
	c->add = add;
	apply(&dir->names, c);
	list_push_back(&dir->journal, &c->node);
	if (++dir->n_journal > JOURNAL_MAX)
		commit_some(dir, 1);
}

static void mark(struct inode *i)
{
	/* folders nest a few deep; a work list keeps even that off the stack */
	struct inode *work[SIM_DISK_FILES];
	size_t n = 0;
	if (!i->marked) {
		i->marked = true;
		work[n++] = i;
	}
	while (n > 0) {
		struct inode *dir = work[--n];
		const struct list *lists[] = { &dir->names, &dir->durable };
		for (size_t l = 0; l < ARRAY_LEN(lists); l++)
			list_for_each (e, lists[l]) {
				struct inode *to = list_entry(e, struct name, node)->inode;
				if (!to->marked) {
					to->marked = true;
					work[n++] = to;
				}
			}
		list_for_each (e, &dir->journal) {
			struct inode *to = list_entry(e, struct change, node)->add;
			if (to && !to->marked) {
				to->marked = true;
				work[n++] = to;
			}
		}
	}
}

static void collect(struct sim_disk *d)
{
	list_for_each (n, &d->inodes)
		list_entry(n, struct inode, node)->marked = false;
	mark(d->root);
	list_for_each (n, &d->files)
		mark(list_entry(n, struct sim_file, node)->inode);
	list_for_each_safe (n, &d->inodes) {
		struct inode *i = list_entry(n, struct inode, node);
		if (!i->marked)
			inode_free(d, i);
	}
}

/* ---- the disk ---- */

struct sim_disk *sim_disk_new(struct sim *s, const char *node)
{
	struct sim_disk *d = sim_alloc(sizeof(*d));
	d->sim = s;
	memcpy(d->node, node, MIN_OF(strlen(node), sizeof(d->node) - 1));
	d->rng = (struct sim_rng){ sim_rng_next(sim_world_rng(s)) };
	d->limit = SIM_DISK_BYTES;
	d->ns_per_op = 2000;
	list_init(&d->inodes);
	list_init(&d->files);
	d->root = inode_new(d, true);
	return d;
}

void sim_disk_free(struct sim_disk *d)
{
	if (!d)
		return;
	list_for_each_safe (n, &d->files)
		free(list_entry(n, struct sim_file, node));
	list_for_each_safe (n, &d->inodes)
		inode_free(d, list_entry(n, struct inode, node));
	free(d);
}

void sim_disk_forget(struct sim_disk *d, const struct sim_proc *p)
{
	list_for_each (n, &d->files) {
		struct sim_file *f = list_entry(n, struct sim_file, node);
		if (f->proc == p)
			f->dead = true;
	}
}

/* How much of what was not synced stays: often all or nothing, else each sector by itself. */
static uint32_t keep_ppm(struct sim_disk *d)
{
	static const uint32_t kinds[] = { 0, 1000000, 500000, 500000, 900000, 100000 };
	return kinds[sim_rng_below(&d->rng, ARRAY_LEN(kinds))];
}

/* A sector that was allocated and never written shows another file's old bytes. */
static void show_garbage(struct sim_disk *d, struct inode *i, size_t synced, size_t size)
{
	size_t first = (synced + SIM_SECTOR - 1) / SIM_SECTOR, last = (size - 1) / SIM_SECTOR;
	if (first > last || !i->disk.p)
		return;
	size_t from = sim_rng_between(&d->rng, first, last) * SIM_SECTOR;
	size_t to = MIN_OF(from + SIM_SECTOR, size);
	bool kept = to <= i->cache.cap &&
		    memcmp(i->disk.p + from, i->cache.p + from, to - from) == 0;
	for (size_t at = from; at < to && !kept; at++)
		i->disk.p[at] = (uint8_t)sim_rng_next(&d->rng);
}

static void cut_data(struct sim_disk *d, struct inode *i)
{
	uint32_t keep = keep_ppm(d);
	for (size_t s = 0; s < n_sectors(i); s++)
		if (i->dirty[s] && sim_rng_chance(&d->rng, keep))
			copy_sector(&i->disk, &i->cache, s);
	size_t synced = i->disk.size, size = synced;
	size_t pick = sim_rng_below(&d->rng, i->n_sizes + 1);
	if (keep == 1000000 && i->n_sizes > 0)
		size = i->cache.size;
	else if (pick > 0)
		size = i->sizes[pick - 1];
	image_room(&i->disk, size);
	if (i->disk.p)
		memset(i->disk.p + size, 0, i->disk.cap - size);
	if (size > synced && sim_rng_chance(&d->rng, 300000))
		show_garbage(d, i, synced, size);
	i->disk.size = size;
}

/* The machine is up again: what is durable is all there is. */
static void reload(struct sim_disk *d, struct inode *i)
{
	d->used -= i->cache.size;
	image_resize(&i->cache, 0);
	cache_room(i, i->disk.size);
	if (i->disk.size)
		memcpy(i->cache.p, i->disk.p, i->disk.size);
	i->cache.size = i->disk.size;
	if (i->dirty)
		memset(i->dirty, 0, n_sectors(i));
	i->n_sizes = 0;
	d->used += i->cache.size;
}

static void cut_names(struct sim_disk *d, struct inode *dir)
{
	commit_some(dir, sim_rng_below(&d->rng, dir->n_journal + 1));
	free_journal(dir);
	free_names(&dir->names);
	list_for_each (n, &dir->durable) {
		struct name *e = list_entry(n, struct name, node);
		set_name(&dir->names, e->text, e->inode);
	}
}

void sim_disk_power_cut(struct sim_disk *d)
{
	list_for_each (n, &d->files)
		list_entry(n, struct sim_file, node)->dead = true;
	list_for_each (n, &d->inodes) {
		struct inode *i = list_entry(n, struct inode, node);
		if (i->dir) {
			cut_names(d, i);
			continue;
		}
		cut_data(d, i);
		reload(d, i);
	}
	collect(d);
}

/* ---- faults ---- */

void sim_disk_full(struct sim_disk *d, bool full)
{
	sim_fault(d->sim, "disk of %s is %s", d->node, full ? "full" : "no longer full");
	d->full = full;
}

void sim_disk_limit(struct sim_disk *d, uint64_t bytes)
{
	d->limit = MIN_OF(bytes, SIM_DISK_BYTES);
}

void sim_disk_slow(struct sim_disk *d, uint64_t ns_per_op, uint64_t ns_per_kib)
{
	sim_fault(d->sim, "disk of %s takes %" PRIu64 " us a call", d->node, ns_per_op / 1000);
	d->ns_per_op = ns_per_op;
	d->ns_per_kib = ns_per_kib;
}

void sim_disk_fail(struct sim_disk *d, bool writes, uint64_t skip, uint64_t count, int err)
{
	struct faults *f = writes ? &d->writes : &d->reads;
	sim_fault(d->sim, "disk of %s: after %" PRIu64 " %s %" PRIu64 " fail with errno %d",
		  d->node, skip, writes ? "writes" : "reads", count, err);
	f->from = f->ops + skip;
	f->to = count > UINT64_MAX - f->from ? UINT64_MAX : f->from + count;
	f->err = err;
}

uint64_t sim_disk_ops(const struct sim_disk *d, bool writes)
{
	return writes ? d->writes.ops : d->reads.ops;
}

uint64_t sim_disk_used(const struct sim_disk *d)
{
	return d->used;
}

/* 0 or the -errno this call answers. D2. */
static int enter(struct sim_disk *d, bool writes, size_t n_bytes)
{
	struct faults *f = writes ? &d->writes : &d->reads;
	const struct sim_proc *p = sim_current();
	if (p && (sim_proc_state(p) == SIM_DEAD || sim_proc_state(p) == SIM_ENDED))
		return -EBADF;
	uint64_t op = f->ops++;
	sim_spend(d->ns_per_op + n_bytes / 1024 * d->ns_per_kib);
	return op >= f->from && op < f->to ? -f->err : 0;
}

static int enter_file(struct sim_file *f, bool writes, size_t n_bytes)
{
	return f->dead ? -EBADF : enter(f->disk, writes, n_bytes);
}

/* ---- paths ---- */

/* The folder of path and its last name; -errno. */
static int walk(struct sim_disk *d, const char *path, struct inode **dir, char *last)
{
	if (path[0] != '/' || strlen(path) > SIM_PATH_MAX)
		return -EINVAL;
	*dir = d->root;
	for (const char *at = path + 1;;) {
		size_t n = strcspn(at, "/");
		if (n == 0 || n >= 64)
			return n ? -ENAMETOOLONG : -EINVAL;
		memcpy(last, at, n);
		last[n] = 0;
		if (!at[n])
			return 0;
		struct name *e = find_name(&(*dir)->names, last);
		if (!e)
			return -ENOENT;
		if (!e->inode->dir)
			return -ENOTDIR;
		*dir = e->inode;
		at += n + 1;
	}
}

static int find(struct sim_disk *d, const char *path, struct inode **out)
{
	struct inode *dir;
	char last[64];
	if (strcmp(path, "/") == 0) {
		*out = d->root;
		return 0;
	}
	int r = walk(d, path, &dir, last);
	if (r)
		return r;
	struct name *e = find_name(&dir->names, last);
	if (!e)
		return -ENOENT;
	*out = e->inode;
	return 0;
}

static int make(struct sim_disk *d, const char *path, bool dir, struct inode **out)
{
	struct inode *in;
	char last[64];
	int r = walk(d, path, &in, last);
	if (r)
		return r;
	if (d->full)
		return -ENOSPC;
	struct inode *i = inode_new(d, dir);
	if (!i)
		return -ENOSPC;
	change(in, last, i, NULL);
	*out = i;
	return 0;
}

/* ---- calls ---- */

int sim_open(struct sim_disk *d, const char *path, int flags, struct sim_file **out)
{
	struct inode *i;
	int r = enter(d, (flags & SIM_O_CREATE) != 0, 0);
	if (r)
		return r;
	r = find(d, path, &i);
	if (r == 0 && (flags & SIM_O_EXCL))
		return -EEXIST;
	if (r == -ENOENT && (flags & SIM_O_CREATE))
		r = make(d, path, false, &i);
	if (r)
		return r;
	if (i->dir != ((flags & SIM_O_DIR) != 0))
		return i->dir ? -EISDIR : -ENOTDIR;
	struct sim_file *f = sim_alloc(sizeof(*f));
	*f = (struct sim_file){ .disk = d, .inode = i, .proc = sim_current() };
	list_push_back(&d->files, &f->node);
	*out = f;
	return flags & SIM_O_TRUNC ? sim_ftruncate(f, 0) : 0;
}

void sim_close(struct sim_file *f)
{
	struct sim_disk *d = f->disk;
	list_del(&f->node);
	free(f);
	collect(d);
}

int64_t sim_pread(struct sim_file *f, void *p, size_t n, uint64_t off)
{
	const struct image *m = &f->inode->cache;
	int r = enter_file(f, false, n);
	if (r)
		return r;
	if (off >= m->size)
		return 0;
	n = MIN_OF(n, m->size - off);
	memcpy(p, m->p + off, n);
	return (int64_t)n;
}

/* The kernel may have written a dirty sector back before it is written again. */
static void touch(struct sim_disk *d, struct inode *i, size_t from, size_t to)
{
	for (size_t s = from / SIM_SECTOR; s * SIM_SECTOR < to; s++) {
		if (i->dirty[s] && sim_rng_chance(&d->rng, 300000))
			copy_sector(&i->disk, &i->cache, s);
		i->dirty[s] = 1;
	}
}

static void new_size(struct sim_disk *d, struct inode *i)
{
	size_t at = i->n_sizes < SIZES_MAX ? i->n_sizes++ : sim_rng_below(&d->rng, SIZES_MAX);
	i->sizes[at] = i->cache.size;
}

/* How far a write may grow the file. */
static uint64_t end_allowed(const struct sim_disk *d, const struct inode *i)
{
	if (d->full || d->used >= d->limit)
		return i->cache.size;
	return i->cache.size + (d->limit - d->used);
}

int64_t sim_pwrite(struct sim_file *f, const void *p, size_t n, uint64_t off)
{
	struct sim_disk *d = f->disk;
	struct inode *i = f->inode;
	int r = enter_file(f, true, n);
	if (r)
		return r;
	uint64_t end = MIN_OF(off + n, end_allowed(d, i));
	if (n == 0 || end <= off)
		return n == 0 ? 0 : -ENOSPC;
	n = (size_t)(end - off);
	cache_room(i, end);
	touch(d, i, off, end);
	memcpy(i->cache.p + off, p, n);
	if (end > i->cache.size) {
		d->used += end - i->cache.size;
		i->cache.size = end;
		new_size(d, i);
	}
	return (int64_t)n;
}

int sim_ftruncate(struct sim_file *f, uint64_t size)
{
	struct sim_disk *d = f->disk;
	struct inode *i = f->inode;
	int r = enter_file(f, true, 0);
	if (r)
		return r;
	if (size > end_allowed(d, i))
		return -ENOSPC;
	size_t old = i->cache.size;
	d->used += size - old;
	cache_room(i, MAX_OF(size, old));
	if (size < old)
		touch(d, i, size, old);
	image_resize(&i->cache, size);
	new_size(d, i);
	return 0;
}

int64_t sim_size(struct sim_file *f)
{
	return f->dead ? -EBADF : (int64_t)f->inode->cache.size;
}

static void sync_data(struct inode *i)
{
	for (size_t s = 0; s < n_sectors(i); s++)
		if (i->dirty[s])
			copy_sector(&i->disk, &i->cache, s);
	image_resize(&i->disk, i->cache.size);
}

/* Some of it may have reached the medium; nobody will write the rest again. */
static void sync_fails(struct sim_disk *d, struct inode *i)
{
	for (size_t s = 0; s < n_sectors(i); s++)
		if (i->dirty[s] && sim_rng_chance(&d->rng, 500000))
			copy_sector(&i->disk, &i->cache, s);
	if (i->n_sizes > 0 && sim_rng_chance(&d->rng, 500000))
		image_resize(&i->disk, i->cache.size);
}

int sim_fsync(struct sim_file *f)
{
	struct inode *i = f->inode;
	int r = enter_file(f, true, 0);
	if (r == -EBADF)
		return r;
	sim_spend(9 * f->disk->ns_per_op + sim_rng_between(&f->disk->rng, 100000, 4000000));
	if (i->dir) {
		if (r == 0)
			commit_some(i, i->n_journal);
		collect(f->disk);
		return r;
	}
	if (r)
		sync_fails(f->disk, i);
	else
		sync_data(i);
	if (i->dirty)
		memset(i->dirty, 0, n_sectors(i));
	i->n_sizes = 0;
	return r;
}

int sim_lock(struct sim_file *f)
{
	if (f->dead)
		return -EBADF;
	list_for_each (n, &f->disk->files) {
		const struct sim_file *g = list_entry(n, struct sim_file, node);
		if (g != f && g->inode == f->inode && g->locked && !g->dead)
			return -EWOULDBLOCK;
	}
	f->locked = true;
	return 0;
}

int sim_mkdir(struct sim_disk *d, const char *path)
{
	struct inode *i;
	int r = enter(d, true, 0);
	if (r)
		return r;
	return find(d, path, &i) == 0 ? -EEXIST : make(d, path, true, &i);
}

int sim_rename(struct sim_disk *d, const char *from, const char *to)
{
	struct inode *from_dir, *to_dir;
	char from_last[64], to_last[64];
	int r = enter(d, true, 0);
	if (r == 0)
		r = walk(d, from, &from_dir, from_last);
	if (r == 0)
		r = walk(d, to, &to_dir, to_last);
	if (r)
		return r;
	if (from_dir != to_dir)
		return -EXDEV; /* nobody here needs it */
	struct name *e = find_name(&from_dir->names, from_last);
	if (!e)
		return -ENOENT;
	change(from_dir, to_last, e->inode, strcmp(from_last, to_last) ? from_last : NULL);
	collect(d);
	return 0;
}

int sim_unlink(struct sim_disk *d, const char *path)
{
	struct inode *dir;
	char last[64];
	int r = enter(d, true, 0);
	if (r == 0)
		r = walk(d, path, &dir, last);
	if (r)
		return r;
	struct name *e = find_name(&dir->names, last);
	if (!e)
		return -ENOENT;
	if (e->inode->dir && !list_empty(&e->inode->names))
		return -ENOTEMPTY;
	change(dir, NULL, NULL, last);
	collect(d);
	return 0;
}

int sim_readdir(struct sim_disk *d, const char *path, size_t i, char *name, size_t size)
{
	struct inode *dir;
	int r = enter(d, false, 0);
	if (r == 0)
		r = find(d, path, &dir);
	if (r)
		return r;
	if (!dir->dir)
		return -ENOTDIR;
	list_for_each (n, &dir->names) {
		const char *text = list_entry(n, struct name, node)->text;
		size_t before = 0;
		list_for_each (m, &dir->names)
			before += strcmp(list_entry(m, struct name, node)->text, text) < 0;
		if (before != i)
			continue;
		if (strlen(text) >= size)
			return -ENAMETOOLONG;
		memcpy(name, text, strlen(text) + 1);
		return 0;
	}
	return -ENOENT;
}

int sim_disk_rot(struct sim_disk *d, const char *path, uint64_t off)
{
	struct inode *i;
	int r = find(d, path, &i);
	if (r)
		return r;
	if (off >= i->cache.size)
		return -EINVAL;
	uint8_t bit = (uint8_t)(1u << sim_rng_below(&d->rng, 8));
	sim_fault(d->sim, "disk of %s: %s rots at %" PRIu64, d->node, path, off);
	i->cache.p[off] ^= bit;
	if (off < i->disk.size)
		i->disk.p[off] ^= bit;
	return 0;
}
