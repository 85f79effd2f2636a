/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file is what is seen (cache), what is durable, and what is pending between the two. Names likewise: a list
 * seen, a list durable, changes pending, each of a folder or two.
 */
#include "store/disk_cut.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PIECE	  512u
#define BLOCK	  4096u
#define KINDS	  65536u
#define NAME_SIZE 192u

struct pending {
	struct pending *next;
	uint64_t off;
	size_t n;
	bool resize; /* off is the size */
	uint8_t p[];
};

struct image {
	uint8_t *p;
	size_t n, cap;
};

struct inode {
	struct inode *next; /* of all */
	struct image seen, durable;
	struct pending *first, **last;
	uint64_t allocated;
	uint32_t links; /* names seen */
	bool dir, locked;
};

struct name {
	char text[NAME_SIZE];
	struct inode *at;
};
struct names {
	struct name *v;
	size_t n, cap;
};

struct change {
	struct change *next;
	char from[NAME_SIZE], to[NAME_SIZE]; /* "": none */
	struct inode *at;
};

struct cut_file {
	struct disk_file file;
	struct inode *at;
	bool lock;
};

struct cut_lane {
	struct disk_lane lane;
	struct disk_req *first;
};

struct disk_cut {
	struct disk_fs fs;
	pthread_mutex_t lock;
	struct inode *all;
	struct names seen, durable;
	struct change *first, **last;
	uint64_t ops, cut_at, fail_at, fail_n, space, skip_reads, fail_reads, rng;
	enum err fail_err;
	bool fail_kept;
	uint32_t slow_ms;
	uint8_t kinds[KINDS];
};

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static struct disk_cut *cut_of(struct disk_fs *fs)
{
	return container_of(fs, struct disk_cut, fs);
}

static uint64_t next_random(uint64_t *s)
{
	uint64_t z = (*s += 0x9e3779b97f4a7c15ull); /* splitmix64 */
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* ---- images ---- */

static void image_size(struct image *m, size_t n)
{
	if (n > m->cap) {
		m->cap = MAX_OF(n, m->cap * 2);
		m->p = must(realloc(m->p, m->cap));
	}
	if (n > m->n)
		memset(m->p + m->n, 0, n - m->n);
	m->n = n;
}

static void image_put(struct image *m, uint64_t off, const uint8_t *p, size_t n)
{
	if (off + n > m->n)
		image_size(m, off + n);
	if (n > 0 && m->p)
		memcpy(m->p + off, p, n);
}

static void image_copy(struct image *to, const struct image *from)
{
	if (from->n > to->cap) {
		to->cap = from->n;
		to->p = must(realloc(to->p, to->cap));
	}
	to->n = from->n;
	if (from->n > 0)
		memcpy(to->p, from->p, from->n);
}

static void pend(struct inode *i, uint64_t off, const uint8_t *p, size_t n, bool resize)
{
	struct pending *w = must(malloc(sizeof(*w) + n));
	*w = (struct pending){ .off = off, .n = n, .resize = resize };
	if (n > 0)
		memcpy(w->p, p, n);
	*i->last = w;
	i->last = &w->next;
}

static void pending_free(struct inode *i)
{
	while (i->first) {
		struct pending *w = i->first;
		i->first = w->next;
		free(w);
	}
	i->last = &i->first;
}

static struct inode *inode_new(struct disk_cut *c, bool dir)
{
	struct inode *i = must(calloc(1, sizeof(*i)));
	i->dir = dir;
	i->last = &i->first;
	i->next = c->all;
	c->all = i;
	return i;
}

/* ---- names ---- */

static struct name *names_find(const struct names *s, const char *text)
{
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->v[i].text, text) == 0)
			return &s->v[i];
	return NULL;
}

static void names_set(struct names *s, const char *text, struct inode *at)
{
	struct name *n = names_find(s, text);
	if (!n) {
		if (s->n == s->cap) {
			s->cap = MAX_OF(2 * s->cap, (size_t)64);
			s->v = must(realloc(s->v, s->cap * sizeof(*s->v)));
		}
		n = &s->v[s->n++];
		snprintf(n->text, NAME_SIZE, "%s", text);
	}
	n->at = at;
}

static void names_drop(struct names *s, const char *text)
{
	struct name *n = names_find(s, text);
	if (n)
		*n = s->v[--s->n];
}

static void names_copy(struct names *to, const struct names *from)
{
	to->n = 0;
	for (size_t i = 0; i < from->n; i++)
		names_set(to, from->v[i].text, from->v[i].at);
}

static void apply(struct names *s, const struct change *g)
{
	if (g->from[0])
		names_drop(s, g->from);
	if (g->to[0])
		names_set(s, g->to, g->at);
}

/* The folder that a name is in: "" for the top. */
static void folder_of(const char *text, char out[NAME_SIZE])
{
	const char *slash = strrchr(text, '/');
	snprintf(out, NAME_SIZE, "%.*s", slash ? (int)(slash - text) : 0, text);
}

static bool in_folder(const char *text, const char *folder)
{
	char f[NAME_SIZE];
	if (!text[0])
		return false;
	folder_of(text, f);
	return strcmp(f, folder) == 0;
}

static void change(struct disk_cut *c, const char *from, const char *to, struct inode *at)
{
	struct change *g = must(calloc(1, sizeof(*g)));
	snprintf(g->from, NAME_SIZE, "%s", from);
	snprintf(g->to, NAME_SIZE, "%s", to);
	g->at = at;
	apply(&c->seen, g);
	*c->last = g;
	c->last = &g->next;
}

static bool folder_there(const struct disk_cut *c, const char *text)
{
	char f[NAME_SIZE];
	folder_of(text, f);
	if (!f[0])
		return true;
	const struct name *n = names_find(&c->seen, f);
	return n && n->at->dir;
}

/* ---- operations ---- */

/* May this one happen? */
static enum err step(struct disk_cut *c, enum disk_cut_op op)
{
	uint64_t n = c->ops++;
	c->kinds[n % KINDS] = (uint8_t)op;
	if (n >= c->cut_at)
		return ERR_IO;
	return n >= c->fail_at && n - c->fail_at < c->fail_n ? c->fail_err : ERR_NONE;
}

static bool powered(const struct disk_cut *c)
{
	return c->ops <= c->cut_at;
}

static uint64_t real_of(const struct inode *i)
{
	uint64_t n = MAX_OF(i->allocated, (uint64_t)i->seen.n);
	return (n + BLOCK - 1) / BLOCK * BLOCK;
}

static uint64_t taken(const struct disk_cut *c)
{
	uint64_t n = 0;
	for (const struct inode *i = c->all; i; i = i->next)
		n += i->links > 0 ? real_of(i) : 0;
	return n;
}

static bool fits(const struct disk_cut *c, const struct inode *i, uint64_t size)
{
	uint64_t now = real_of(i), then = (size + BLOCK - 1) / BLOCK * BLOCK;
	return c->space == UINT64_MAX || then <= now || taken(c) + (then - now) <= c->space;
}

static struct cut_file *file_of(struct disk_file *f)
{
	return container_of(f, struct cut_file, file);
}

static enum err cut_open_locked(struct disk_cut *c, const char *text, unsigned flags,
				struct inode **out)
{
	struct name *n = names_find(&c->seen, text);
	if (flags & DISK_CREATE) {
		if (n)
			return ERR_EXISTS;
		if (!folder_there(c, text))
			return ERR_NOT_FOUND;
		enum err e = step(c, CUT_CREATE);
		if (e)
			return e;
		*out = inode_new(c, false);
		(*out)->links = 1;
		change(c, "", text, *out);
		return ERR_NONE;
	}
	if (!n)
		return ERR_NOT_FOUND;
	*out = n->at;
	return n->at->dir ? ERR_FORBIDDEN : ERR_NONE;
}

static enum err cut_open(struct disk_fs *fs, const char *text, unsigned flags,
			 struct disk_file **out)
{
	struct disk_cut *c = cut_of(fs);
	struct inode *i = NULL;
	pthread_mutex_lock(&c->lock);
	enum err e = cut_open_locked(c, text, flags, &i);
	pthread_mutex_unlock(&c->lock);
	if (e)
		return e;
	struct cut_file *f = must(calloc(1, sizeof(*f)));
	f->file.fs = fs;
	f->file.direct = flags & DISK_DIRECT;
	f->at = i;
	*out = &f->file;
	return ERR_NONE;
}

static void cut_close(struct disk_file *file)
{
	struct cut_file *f = file_of(file);
	pthread_mutex_lock(&cut_of(file->fs)->lock);
	if (f->lock)
		f->at->locked = false;
	pthread_mutex_unlock(&cut_of(file->fs)->lock);
	free(f);
}

static enum err cut_stat(struct disk_file *file, struct disk_stat *out)
{
	struct disk_cut *c = cut_of(file->fs);
	const struct inode *i = file_of(file)->at;
	pthread_mutex_lock(&c->lock);
	*out = (struct disk_stat){ i->seen.n, real_of(i), i->links };
	pthread_mutex_unlock(&c->lock);
	return ERR_NONE;
}

static enum err cut_truncate(struct disk_file *file, uint64_t size)
{
	struct disk_cut *c = cut_of(file->fs);
	struct inode *i = file_of(file)->at;
	pthread_mutex_lock(&c->lock);
	enum err e = step(c, CUT_TRUNCATE);
	if (e == ERR_NONE && !fits(c, i, size))
		e = ERR_NO_SPACE;
	if (e == ERR_NONE) {
		image_size(&i->seen, size);
		i->allocated = size;
		pend(i, size, NULL, 0, true);
	}
	pthread_mutex_unlock(&c->lock);
	return e;
}

static enum err cut_allocate(struct disk_file *file, uint64_t n)
{
	struct disk_cut *c = cut_of(file->fs);
	struct inode *i = file_of(file)->at;
	pthread_mutex_lock(&c->lock);
	enum err e = step(c, CUT_ALLOCATE);
	if (e == ERR_NONE && !fits(c, i, n))
		e = ERR_NO_SPACE;
	if (e == ERR_NONE) {
		i->allocated = MAX_OF(i->allocated, n);
		image_size(&i->seen, MAX_OF(i->seen.n, n));
		pend(i, i->seen.n, NULL, 0, true);
	}
	pthread_mutex_unlock(&c->lock);
	return e;
}

static void make_durable(struct inode *i)
{
	for (struct pending *w = i->first; w; w = w->next) {
		if (w->resize)
			image_size(&i->durable, w->off);
		else
			image_put(&i->durable, w->off, w->p, w->n);
	}
}

static enum err cut_sync_all(struct disk_fs *fs)
{
	struct disk_cut *c = cut_of(fs);
	pthread_mutex_lock(&c->lock);
	enum err e = step(c, CUT_SYNC);
	for (struct inode *i = c->all; e == ERR_NONE && i; i = i->next) {
		make_durable(i);
		pending_free(i);
	}
	while (e == ERR_NONE && c->first) {
		struct change *g = c->first;
		apply(&c->durable, g);
		c->first = g->next;
		free(g);
	}
	if (!c->first)
		c->last = &c->first;
	pthread_mutex_unlock(&c->lock);
	return e;
}

static enum err cut_sync(struct disk_file *file)
{
	struct disk_cut *c = cut_of(file->fs);
	struct inode *i = file_of(file)->at;
	pthread_mutex_lock(&c->lock);
	enum err e = step(c, CUT_SYNC);
	if (e == ERR_NONE)
		make_durable(i);
	if (e == ERR_NONE || (powered(c) && !c->fail_kept))
		pending_free(i);
	pthread_mutex_unlock(&c->lock);
	return e;
}

static void cut_forget(struct disk_file *file)
{
	struct disk_cut *c = cut_of(file->fs);
	struct inode *i = file_of(file)->at;
	pthread_mutex_lock(&c->lock);
	image_copy(&i->seen, &i->durable);
	for (struct pending *w = i->first; w; w = w->next) {
		if (w->resize)
			image_size(&i->seen, w->off);
		else
			image_put(&i->seen, w->off, w->p, w->n);
	}
	pthread_mutex_unlock(&c->lock);
}

static enum err cut_rename(struct disk_fs *fs, const char *from, const char *to)
{
	struct disk_cut *c = cut_of(fs);
	pthread_mutex_lock(&c->lock);
	struct name *n = names_find(&c->seen, from), *old = names_find(&c->seen, to);
	enum err e = n && folder_there(c, to) ? step(c, CUT_RENAME) : ERR_NOT_FOUND;
	if (e == ERR_NONE) {
		struct inode *at = n->at;
		if (old)
			old->at->links--;
		change(c, from, to, at);
	}
	pthread_mutex_unlock(&c->lock);
	return e;
}

static enum err cut_unlink(struct disk_fs *fs, const char *text)
{
	struct disk_cut *c = cut_of(fs);
	pthread_mutex_lock(&c->lock);
	struct name *n = names_find(&c->seen, text);
	enum err e = n ? step(c, CUT_UNLINK) : ERR_NOT_FOUND;
	if (e == ERR_NONE) {
		n->at->links--;
		change(c, text, "", NULL);
	}
	pthread_mutex_unlock(&c->lock);
	return e;
}

static enum err cut_mkdir(struct disk_fs *fs, const char *text)
{
	struct disk_cut *c = cut_of(fs);
	pthread_mutex_lock(&c->lock);
	enum err e = names_find(&c->seen, text) ? ERR_EXISTS
		     : folder_there(c, text)	? step(c, CUT_MKDIR)
						: ERR_NOT_FOUND;
	if (e == ERR_NONE) {
		struct inode *i = inode_new(c, true);
		change(c, "", text, i);
	}
	pthread_mutex_unlock(&c->lock);
	return e;
}

static enum err cut_sync_dir(struct disk_fs *fs, const char *text)
{
	struct disk_cut *c = cut_of(fs);
	pthread_mutex_lock(&c->lock);
	const struct name *n = text[0] ? names_find(&c->seen, text) : NULL;
	enum err e = !text[0] || (n && n->at->dir) ? step(c, CUT_SYNC_DIR) : ERR_NOT_FOUND;
	struct change **at = &c->first;
	while (e == ERR_NONE && *at) {
		struct change *g = *at;
		if (!in_folder(g->from, text) && !in_folder(g->to, text)) {
			at = &g->next;
			continue;
		}
		apply(&c->durable, g);
		*at = g->next;
		free(g);
	}
	for (c->last = &c->first; *c->last;)
		c->last = &(*c->last)->next;
	pthread_mutex_unlock(&c->lock);
	return e;
}

static enum err cut_list(struct disk_fs *fs, const char *folder,
			 void (*fn)(void *arg, const char *name, bool is_dir), void *arg)
{
	struct disk_cut *c = cut_of(fs);
	struct names copy = { 0 };
	pthread_mutex_lock(&c->lock);
	enum err e = !powered(c)				  ? ERR_IO
		     : !folder[0] || names_find(&c->seen, folder) ? ERR_NONE
								  : ERR_NOT_FOUND;
	names_copy(&copy, &c->seen);
	pthread_mutex_unlock(&c->lock);
	for (size_t i = 0; e == ERR_NONE && i < copy.n; i++) {
		const char *slash = strrchr(copy.v[i].text, '/');
		if (in_folder(copy.v[i].text, folder))
			fn(arg, slash ? slash + 1 : copy.v[i].text, copy.v[i].at->dir);
	}
	free(copy.v);
	return e;
}

static enum err cut_space(struct disk_fs *fs, uint64_t *free_bytes)
{
	struct disk_cut *c = cut_of(fs);
	pthread_mutex_lock(&c->lock);
	uint64_t all = c->space == UINT64_MAX ? 1ull << 40 : c->space, used = taken(c);
	*free_bytes = used < all ? all - used : 0;
	pthread_mutex_unlock(&c->lock);
	return ERR_NONE;
}

static enum err cut_lock(struct disk_fs *fs, const char *text, struct disk_file **out,
			 struct why *w)
{
	struct disk_cut *c = cut_of(fs);
	struct disk_file *file;
	if (!names_find(&c->seen, text))
		disk_cut_put(c, text, "", 0);
	enum err e = cut_open(fs, text, 0, &file);
	if (e)
		return e;
	pthread_mutex_lock(&c->lock);
	bool held = file_of(file)->at->locked;
	file_of(file)->at->locked = true;
	file_of(file)->lock = !held;
	pthread_mutex_unlock(&c->lock);
	if (held) {
		cut_close(file);
		return why_set(w, ERR_DIRECTORY_IN_USE, "%s: in use", text);
	}
	*out = file;
	return ERR_NONE;
}

/* ---- lanes ---- */

static enum err cut_lane_new(struct disk_fs *fs, const struct disk_lane_opts *o,
			     struct disk_lane **out)
{
	struct cut_lane *l = must(calloc(1, sizeof(*l)));
	(void)o;
	l->lane.fs = fs;
	*out = &l->lane;
	return ERR_NONE;
}

static void cut_lane_free(struct disk_lane *lane)
{
	assert(lane->in_flight == 0);
	free(container_of(lane, struct cut_lane, lane));
}

static void do_write(struct disk_cut *c, struct disk_req *q)
{
	struct inode *i = file_of(q->file)->at;
	enum err e = step(c, CUT_WRITE);
	size_t n = q->n;
	if (e == ERR_NONE && !fits(c, i, q->off + n))
		e = ERR_NO_SPACE;
	if (e)
		n = powered(c) && e != ERR_NO_SPACE ? n / 2 : 0;
	if (n > 0) {
		image_put(&i->seen, q->off, q->p, n);
		pend(i, q->off, q->p, n, false);
	}
	q->err = e;
	q->got = e ? 0 : q->n;
}

static void do_read(struct disk_cut *c, struct disk_req *q)
{
	const struct inode *i = file_of(q->file)->at;
	bool strikes = c->fail_reads > 0 && c->skip_reads == 0;
	c->fail_reads -= strikes;
	c->skip_reads -= c->skip_reads > 0;
	if (!powered(c) || strikes) {
		q->err = ERR_IO;
		return;
	}
	size_t n = q->off < i->seen.n ? MIN_OF((size_t)q->n, i->seen.n - q->off) : 0;
	if (n > 0)
		memcpy(q->p, i->seen.p + q->off, n);
	q->got = (uint32_t)n;
}

static void do_io(struct disk_cut *c, struct disk_req *q)
{
	if (q->file->direct)
		assert(q->off % BLOCK == 0 && q->n % BLOCK == 0 &&
		       (uintptr_t)q->p % BLOCK == 0);
	pthread_mutex_lock(&c->lock);
	q->err = ERR_NONE;
	q->got = 0;
	if (q->write)
		do_write(c, q);
	else
		do_read(c, q);
	uint32_t ms = q->write ? c->slow_ms : 0;
	pthread_mutex_unlock(&c->lock);
	if (ms > 0) {
		struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };
		nanosleep(&t, NULL);
	}
}

static void cut_submit(struct disk_lane *lane, struct disk_req *q)
{
	struct cut_lane *l = container_of(lane, struct cut_lane, lane);
	q->next = l->first;
	l->first = q;
	lane->in_flight++;
}

/* Any of those in flight is next. */
static void cut_reap(struct disk_lane *lane, uint32_t left)
{
	struct cut_lane *l = container_of(lane, struct cut_lane, lane);
	struct disk_cut *c = cut_of(lane->fs);
	while (lane->in_flight > left) {
		pthread_mutex_lock(&c->lock);
		uint64_t skip = next_random(&c->rng) % lane->in_flight;
		pthread_mutex_unlock(&c->lock);
		struct disk_req **at = &l->first;
		while (skip-- > 0)
			at = &(*at)->next;
		struct disk_req *q = *at;
		*at = q->next;
		lane->in_flight--;
		do_io(c, q);
		if (q->done)
			q->done(q);
	}
}

/* ---- life ---- */

static void cut_free_fs(struct disk_fs *fs)
{
	disk_cut_free(cut_of(fs));
}

static const struct disk_fs_ops cut_ops = {
	.open = cut_open,
	.close = cut_close,
	.stat = cut_stat,
	.truncate = cut_truncate,
	.allocate = cut_allocate,
	.sync = cut_sync,
	.forget = cut_forget,
	.rename = cut_rename,
	.unlink = cut_unlink,
	.mkdir = cut_mkdir,
	.sync_dir = cut_sync_dir,
	.sync_all = cut_sync_all,
	.list = cut_list,
	.space = cut_space,
	.lock = cut_lock,
	.lane_new = cut_lane_new,
	.lane_free = cut_lane_free,
	.submit = cut_submit,
	.reap = cut_reap,
	.free = cut_free_fs,
};

struct disk_cut *disk_cut_new(uint64_t seed)
{
	struct disk_cut *c = must(calloc(1, sizeof(*c)));
	c->fs = (struct disk_fs){ .ops = &cut_ops, .where = "a disk in memory" };
	pthread_mutex_init(&c->lock, NULL);
	c->last = &c->first;
	c->rng = seed;
	c->cut_at = c->space = UINT64_MAX;
	return c;
}

void disk_cut_free(struct disk_cut *c)
{
	if (!c)
		return;
	while (c->all) {
		struct inode *i = c->all;
		c->all = i->next;
		pending_free(i);
		free(i->seen.p);
		free(i->durable.p);
		free(i);
	}
	while (c->first) {
		struct change *g = c->first;
		c->first = g->next;
		free(g);
	}
	free(c->seen.v);
	free(c->durable.v);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

struct disk_fs *disk_cut_fs(struct disk_cut *c)
{
	return &c->fs;
}

uint64_t disk_cut_ops(const struct disk_cut *c)
{
	return c->ops;
}

enum disk_cut_op disk_cut_kind(const struct disk_cut *c, uint64_t n)
{
	return (enum disk_cut_op)c->kinds[n % KINDS];
}

void disk_cut_at(struct disk_cut *c, uint64_t n)
{
	c->cut_at = n;
}

void disk_cut_fail(struct disk_cut *c, uint64_t n, uint64_t count, enum err e, bool kept)
{
	c->fail_at = n;
	c->fail_n = count;
	c->fail_err = e;
	c->fail_kept = kept;
}

void disk_cut_fail_reads(struct disk_cut *c, uint64_t skip, uint64_t count)
{
	c->skip_reads = skip;
	c->fail_reads = count;
}

void disk_cut_space(struct disk_cut *c, uint64_t bytes)
{
	c->space = bytes;
}

void disk_cut_slow(struct disk_cut *c, uint32_t write_ms)
{
	c->slow_ms = write_ms;
}

/* ---- after the power came back ---- */

struct pick {
	enum disk_cut_keep keep;
	uint64_t rng;
};

static bool kept(struct pick *k, bool name)
{
	switch (k->keep) {
	case CUT_NOTHING:
		return false;
	case CUT_ALL:
		return true;
	case CUT_NAMES:
		return name;
	case CUT_BYTES:
		return !name;
	case CUT_RANDOM:
		return next_random(&k->rng) & 1;
	}
	return false;
}

/* Pieces and sizes of one file; a piece past the size that is left stands for nothing. */
static void settle(struct image *to, const struct inode *i, struct pick *k)
{
	image_copy(to, &i->durable);
	for (const struct pending *w = i->first; w; w = w->next) {
		if (w->resize) {
			if (kept(k, false))
				image_size(to, w->off);
			continue;
		}
		for (size_t at = 0; at < w->n;) {
			size_t part =
				MIN_OF(w->n - at, PIECE - (size_t)((w->off + at) % PIECE));
			if (kept(k, false))
				image_put(to, w->off + at, w->p + at, part);
			at += part;
		}
	}
}

struct disk_cut *disk_cut_after(const struct disk_cut *c, enum disk_cut_keep keep,
				uint64_t seed)
{
	struct disk_cut *n = disk_cut_new(seed);
	struct pick k = { .keep = keep, .rng = seed };
	struct names names = { 0 };
	names_copy(&names, &c->durable);
	for (const struct change *g = c->first; g; g = g->next)
		if (kept(&k, true))
			apply(&names, g);
	n->space = c->space;
	for (size_t i = 0; i < names.n; i++) {
		struct inode *at = inode_new(n, names.v[i].at->dir);
		settle(&at->seen, names.v[i].at, &k);
		image_copy(&at->durable, &at->seen);
		at->allocated = at->seen.n;
		at->links = 1;
		names_set(&n->seen, names.v[i].text, at);
	}
	/* what lies in a folder that is not there is not there */
	for (bool again = true; again;) {
		again = false;
		for (size_t i = 0; i < n->seen.n; i++)
			if (!folder_there(n, n->seen.v[i].text)) {
				n->seen.v[i].at->links = 0;
				names_drop(&n->seen, n->seen.v[i].text);
				again = true;
				break;
			}
	}
	names_copy(&n->durable, &n->seen);
	free(names.v);
	return n;
}

struct disk_cut *disk_cut_copy(const struct disk_cut *c)
{
	struct disk_cut *n = disk_cut_new(c->rng);
	n->space = c->space;
	for (size_t i = 0; i < c->seen.n; i++) {
		struct inode *at = inode_new(n, c->seen.v[i].at->dir);
		image_copy(&at->seen, &c->seen.v[i].at->seen);
		image_copy(&at->durable, &at->seen);
		at->allocated = MAX_OF(c->seen.v[i].at->allocated, (uint64_t)at->seen.n);
		at->links = 1;
		names_set(&n->seen, c->seen.v[i].text, at);
	}
	names_copy(&n->durable, &n->seen);
	return n;
}

/* ---- by hand ---- */

uint8_t *disk_cut_file(struct disk_cut *c, const char *text, size_t *n)
{
	const struct name *at = names_find(&c->seen, text);
	if (!at || at->at->dir)
		return NULL;
	*n = at->at->seen.n;
	return at->at->seen.p;
}

void disk_cut_remove(struct disk_cut *c, const char *text)
{
	pthread_mutex_lock(&c->lock);
	struct name *at = names_find(&c->seen, text);
	if (at) {
		at->at->links--;
		names_drop(&c->seen, text);
		names_drop(&c->durable, text);
	}
	pthread_mutex_unlock(&c->lock);
}

void disk_cut_put(struct disk_cut *c, const char *text, const void *p, size_t n)
{
	pthread_mutex_lock(&c->lock);
	struct inode *i = inode_new(c, false);
	image_put(&i->seen, 0, p, n);
	image_copy(&i->durable, &i->seen);
	i->allocated = n;
	i->links = 1;
	names_set(&c->seen, text, i);
	names_set(&c->durable, text, i);
	pthread_mutex_unlock(&c->lock);
}

void disk_cut_each(struct disk_cut *c, void (*fn)(void *arg, const char *name, size_t n),
		   void *arg)
{
	for (size_t i = 0; i < c->seen.n; i++)
		if (!c->seen.v[i].at->dir)
			fn(arg, c->seen.v[i].text, c->seen.v[i].at->seen.n);
}
