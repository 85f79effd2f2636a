/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and opening a pool. `super` comes last and by a rename (I1): a folder without it was never a
 * pool, and is begun again.
 */
#include "store/mempool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/shm.h"
#include "base/sum.h"
#include "store/mempool_priv.h"

/* ---- sizes ---- */

uint64_t mempool_heap_at(const struct super *s)
{
	uint64_t n = (uint64_t)s->n_slots * SLOT_BYTES;
	return (n + KEYHEAP_PAGE - 1) / KEYHEAP_PAGE * KEYHEAP_PAGE;
}

uint64_t mempool_dir_bytes(const struct super *s)
{
	return mempool_heap_at(s) + s->heap_bytes;
}

uint64_t mempool_ctl_bytes(const struct super *s)
{
	return sizeof(struct pool_ctl) + s->n_shards * sizeof(struct pool_ctl_shard);
}

uint64_t mempool_lane_bytes(const struct super *s)
{
	return s->n_lanes * sizeof(struct pool_lane);
}

static uint64_t gen_bytes(const struct super *s)
{
	return s->n_slots * sizeof(uint64_t);
}

static void data_name(char out[BACKING_NAME_MAX], uint32_t segment)
{
	(void)snprintf(out, BACKING_NAME_MAX, "data.%u", segment);
}

/* ---- super ---- */

enum err mempool_put_super(struct mempool *p, const struct super *next, struct why *why)
{
	uint8_t bytes[SUPER_COPY_BYTES];
	struct super s = *next;
	s.seq = p->super.seq + 1;
	super_encode(&s, bytes);
	unsigned to = 1 - p->super_which; /* the good one stays as it is */
	enum err e = p->b->ops->write(p->b, "super", to * (uint64_t)SUPER_COPY_BYTES, bytes,
				      sizeof(bytes), why);
	if (e == ERR_NONE)
		e = p->b->ops->sync(p->b, "super", why);
	if (e)
		return e;
	/* The rest never changes, and other threads read it (mempool_at, mempool_generation). */
	p->super.seq = s.seq;
	memcpy(p->super.under, s.under, sizeof(s.under));
	p->super_which = to;
	return ERR_NONE;
}

/* ERR_NOT_FOUND: none. */
static enum err read_super(struct mempool *p, struct why *why)
{
	uint8_t bytes[SUPER_BYTES];
	struct why inner = { 0 };
	uint64_t n;
	enum err e = p->b->ops->size(p->b, "super", &n, &inner);
	if (e == ERR_NOT_FOUND)
		return e;
	if (e == ERR_NONE)
		e = p->b->ops->read(p->b, "super", 0, bytes, sizeof(bytes), &inner);
	if (e == ERR_NONE)
		e = super_decode(bytes, &p->super, &p->super_which, &inner);
	if (e == ERR_CORRUPT || e == ERR_VERSION_MISMATCH)
		return why_set(
			why, e,
			"pool file super: %s; remove the pool's folder to start with an empty pool",
			inner.text);
	return e ? why_set(why, e, "%s", inner.text) : ERR_NONE;
}

/* ---- making ---- */

static void random_id(const struct mempool_opts *o, uint8_t id[16])
{
	if (o->random)
		o->random(o->random_ctx, id, 16);
	else
		while (getrandom(id, 16, 0) != 16)
			continue;
}

static enum err plan(const struct mempool_opts *o, struct super *s, struct why *why)
{
	uint32_t n_segments = o->n_segments ? o->n_segments : 1;
	uint64_t slots = o->n_slots;
	if (slots == 0)
		slots = MAX_OF(o->segment_bytes / 8192 * n_segments, (uint64_t)1024);
	slots = MIN_OF(slots, 1ull << 30);
	uint64_t heap = o->heap_bytes ? o->heap_bytes : slots * 512;
	struct super next = {
		.n_segments = n_segments,
		.n_slots = (uint32_t)slots,
		.n_lanes = o->n_lanes ? o->n_lanes : POOL_LANES,
		.n_shards = o->n_shards ? o->n_shards : OBJ_SHARDS_MAX,
		.heap_bytes = (heap + KEYHEAP_PAGE - 1) / KEYHEAP_PAGE * KEYHEAP_PAGE,
		.segment_bytes = o->segment_bytes,
	};
	memcpy(next.boot_id, o->boot_id, sizeof(next.boot_id));
	random_id(o, next.pool);
	*s = next;
	return super_check(s, why);
}

static bool is_ours(const char *name)
{
	static const char *const whole[] = { "super", "super.new", "dir", "gen", "ctl" };
	for (size_t i = 0; i < ARRAY_LEN(whole); i++)
		if (strcmp(name, whole[i]) == 0)
			return true;
	return strncmp(name, "data.", 5) == 0 || session_of_name(name) != 0;
}

struct removal {
	struct pool_backing *b;
	bool super; /* this one first, and alone: without it there is no pool */
	enum err err;
	struct why *why;
};

static void remove_one(void *arg, const char *name)
{
	struct removal *r = arg;
	bool super = strcmp(name, "super") == 0;
	if (r->err == ERR_NONE && is_ours(name) && super == r->super)
		r->err = r->b->ops->remove(r->b, name, r->why);
}

enum err mempool_remove(struct pool_backing *b, struct why *why)
{
	struct removal r = { .b = b, .why = why, .super = true };
	enum err e = b->ops->list(b, remove_one, &r, why);
	r.super = false;
	if (e == ERR_NONE && r.err == ERR_NONE)
		e = b->ops->list(b, remove_one, &r, why);
	return e ? e : r.err;
}

static enum err remove_locked(struct pool_backing *b, struct why *why)
{
	enum err e = b->ops->lock(b, why);
	if (e)
		return e;
	e = mempool_remove(b, why);
	b->ops->unlock(b);
	return e;
}

enum err mempool_remove_folder(const char *dir, struct why *why)
{
	struct pool_backing *b;
	struct stat st;
	if (lstat(dir, &st) != 0 && errno == ENOENT)
		return ERR_NONE;
	enum err e = pool_folder_open(dir, &b, why);
	if (e)
		return e;
	e = remove_locked(b, why);
	pool_backing_free(b);
	if (e || rmdir(dir) == 0)
		return e;
	return why_set(why, errno == ENOTEMPTY ? ERR_EXISTS : err_from_errno(errno),
		       "%.200s: the pool's files are gone, the folder stays: %s", dir,
		       strerror(errno));
}

static enum err make_file(struct mempool *p, const char *name, uint64_t bytes, bool touch,
			  struct why *why)
{
	enum err e = p->b->ops->create(p->b, name, bytes, why);
	if (e == ERR_NONE && touch)
		e = p->b->ops->reserve(p->b, name, 0, bytes, why);
	return e;
}

static enum err make_files(struct mempool *p, struct why *why)
{
	enum err e = make_file(p, "dir", mempool_dir_bytes(&p->super), false, why);
	if (e == ERR_NONE)
		e = make_file(p, "gen", gen_bytes(&p->super), false, why);
	if (e == ERR_NONE)
		e = make_file(p, "ctl", mempool_ctl_bytes(&p->super), true, why);
	for (uint32_t i = 0; i < p->super.n_segments && e == ERR_NONE; i++) {
		char name[BACKING_NAME_MAX];
		data_name(name, i);
		e = make_file(p, name, p->super.segment_bytes, false, why);
	}
	return e;
}

static enum err make_super(struct mempool *p, struct why *why)
{
	uint8_t bytes[SUPER_COPY_BYTES];
	super_encode(&p->super, bytes);
	enum err e = make_file(p, "super.new", SUPER_BYTES, true, why);
	if (e == ERR_NONE)
		e = p->b->ops->write(p->b, "super.new", 0, bytes, sizeof(bytes), why);
	if (e == ERR_NONE)
		e = p->b->ops->sync(p->b, "super.new", why);
	if (e == ERR_NONE)
		e = p->b->ops->rename(p->b, "super.new", "super", why);
	p->super_which = 0;
	return e;
}

static enum err fill_ctl(struct mempool *p, struct why *why)
{
	uint64_t bytes = mempool_ctl_bytes(&p->super);
	void *at;
	enum err e = p->b->ops->map(p->b, "ctl", bytes, &at, why);
	if (e)
		return e;
	struct pool_ctl *c = at;
	c->magic = POOL_CTL_MAGIC;
	c->version = POOL_CTL_VERSION;
	c->n_shards = p->super.n_shards;
	for (uint32_t i = 0; i < c->n_shards; i++)
		c->shard[i].ring_n = POOL_RING;
	p->b->ops->unmap(p->b, at, bytes);
	return ERR_NONE;
}

/* under: terms and epochs of the pool that was there; NULL: none. */
static enum err make(struct mempool *p, const struct mempool_opts *o,
		     const struct super_under *under, struct why *why)
{
	struct super s;
	enum err e = plan(o, &s, why);
	if (e)
		return e;
	if (under)
		memcpy(s.under, under, sizeof(s.under));
	p->super = s;
	e = mempool_remove(p->b, why);
	if (e == ERR_NONE)
		e = make_files(p, why);
	if (e == ERR_NONE)
		e = fill_ctl(p, why);
	if (e == ERR_NONE)
		e = make_super(p, why);
	return e;
}

/* ---- mapping ---- */

static enum err map_one(struct mempool *p, const char *name, uint64_t bytes, void *out,
			struct why *why)
{
	uint64_t n;
	enum err e = p->b->ops->size(p->b, name, &n, why);
	if (e)
		return e;
	if (n != bytes)
		return why_set(
			why, ERR_CORRUPT,
			"pool file %s: %llu bytes, not %llu; remove the pool's folder to start with an empty pool",
			name, (unsigned long long)n, (unsigned long long)bytes);
	return p->b->ops->map(p->b, name, bytes, out, why);
}

static enum err map_files(struct mempool *p, struct why *why)
{
	enum err e = map_one(p, "dir", mempool_dir_bytes(&p->super), &p->slots, why);
	if (e == ERR_NONE)
		p->heap = (uint8_t *)p->slots + mempool_heap_at(&p->super);
	if (e == ERR_NONE)
		e = map_one(p, "gen", gen_bytes(&p->super), &p->gen, why);
	if (e == ERR_NONE)
		e = map_one(p, "ctl", mempool_ctl_bytes(&p->super), &p->ctl, why);
	for (uint32_t i = 0; i < p->super.n_segments && e == ERR_NONE; i++) {
		char name[BACKING_NAME_MAX];
		data_name(name, i);
		e = map_one(p, name, p->super.segment_bytes, &p->data[i], why);
	}
	return e;
}

static void unmap_one(struct mempool *p, void *at, uint64_t bytes)
{
	if (at)
		p->b->ops->unmap(p->b, at, bytes);
}

static void unmap_files(struct mempool *p)
{
	unmap_one(p, p->slots, mempool_dir_bytes(&p->super));
	unmap_one(p, p->gen, gen_bytes(&p->super));
	unmap_one(p, p->ctl, mempool_ctl_bytes(&p->super));
	for (uint32_t i = 0; i < p->super.n_segments; i++)
		unmap_one(p, p->data[i], p->super.segment_bytes);
}

/* Rings and revoked_below stay from run to run. */
static enum err check_ctl(const struct mempool *p, struct why *why)
{
	const struct pool_ctl *c = p->ctl;
	bool ok = c->magic == POOL_CTL_MAGIC && c->version == POOL_CTL_VERSION &&
		  c->n_shards == p->super.n_shards;
	for (uint32_t i = 0; i < p->super.n_shards && ok; i++)
		ok = c->shard[i].ring_n >= 1 && c->shard[i].ring_n <= POOL_RING;
	if (ok)
		return ERR_NONE;
	return why_set(
		why, ERR_CORRUPT,
		"pool file ctl: is damaged; remove the pool's folder to start with an empty pool");
}

/* ---- opening ---- */

/* What an earlier run touched has its memory: it is ready before it is mapped page by page again. */
static void recover_ready(struct mempool *p)
{
	char name[BACKING_NAME_MAX];
	for (uint32_t i = 0; i < p->super.n_segments; i++) {
		uint64_t start = 0, end = 0;
		data_name(name, i);
		if (p->b->ops->data(p->b, name, 0, &start, &end) && start == 0)
			p->ready[i] = end >= p->super.segment_bytes
					      ? p->super.segment_bytes
					      : end - end % MEMPOOL_SLICE_BYTES;
	}
}

static enum err open_files(struct mempool *p, const struct mempool_opts *o,
			   struct mempool_start *start, struct why *why)
{
	enum err e = read_super(p, why);
	bool found = e == ERR_NONE;
	bool kept = found && memcmp(p->super.boot_id, o->boot_id, sizeof(o->boot_id)) == 0;
	if (e != ERR_NONE && e != ERR_NOT_FOUND)
		return e;
	start->found = kept ? MEMPOOL_KEPT : found ? MEMPOOL_OLD_BOOT : MEMPOOL_NEW;
	if (!kept) {
		struct super old = p->super;
		e = make(p, o, found ? old.under : NULL, why);
	}
	if (e == ERR_NONE)
		e = map_files(p, why);
	if (e == ERR_NONE)
		e = check_ctl(p, why);
	if (e == ERR_NONE)
		e = directory_init(p);
	if (e == ERR_NONE && kept)
		e = recover_slots(p, start, why);
	if (e == ERR_NONE && kept)
		recover_ready(p);
	return e == ERR_NONE ? sessions_recover(p, start, why) : e;
}

enum err mempool_open(const struct mempool_opts *o, struct mempool **out,
		      struct mempool_start *start, struct why *why)
{
	struct mempool *p = calloc(1, sizeof(*p));
	if (!p)
		return ERR_NO_MEMORY;
	p->b = o->backing;
	p->random = o->random;
	p->random_ctx = o->random_ctx;
	p->sessions_max = o->sessions_max
				  ? MIN_OF(o->sessions_max, (uint32_t)MEMPOOL_SESSIONS_MAX)
				  : 1024;
	enum err e = p->b->ops->lock(p->b, why);
	if (e) {
		free(p);
		return e;
	}
	*start = (struct mempool_start){ 0 };
	e = open_files(p, o, start, why);
	if (e) {
		mempool_close(p);
		return e;
	}
	*out = p;
	return ERR_NONE;
}

void mempool_close(struct mempool *p)
{
	if (!p)
		return;
	mempool_sessions_fini(p);
	directory_fini(p);
	unmap_files(p);
	p->b->ops->unlock(p->b);
	free(p);
}

/* ---- figures ---- */

const uint8_t *mempool_id(const struct mempool *p)
{
	return p->super.pool;
}

uint32_t mempool_shards(const struct mempool *p)
{
	return p->super.n_shards;
}

uint32_t mempool_slots(const struct mempool *p)
{
	return p->super.n_slots;
}

uint32_t mempool_slots_used(const struct mempool *p)
{
	return (uint32_t)p->used.count;
}

uint32_t mempool_segments(const struct mempool *p)
{
	return p->super.n_segments;
}

struct mempool_segment mempool_segment(const struct mempool *p, uint32_t segment)
{
	if (segment >= p->super.n_segments)
		return (struct mempool_segment){ 0 };
	return (struct mempool_segment){ .bytes = p->ready[segment],
					 .bytes_total = p->super.segment_bytes };
}

void *mempool_at(const struct mempool *p, const struct extent *e)
{
	if (e->segment >= p->super.n_segments || e->offset > p->super.segment_bytes ||
	    e->bytes > p->super.segment_bytes - e->offset)
		return NULL;
	return p->data[e->segment] + e->offset;
}

/* ---- slices ---- */

uint32_t mempool_slices(const struct mempool *p, uint32_t segment)
{
	if (segment >= p->super.n_segments)
		return 0;
	return (uint32_t)((p->super.segment_bytes + MEMPOOL_SLICE_BYTES - 1) /
			  MEMPOOL_SLICE_BYTES);
}

/*
 * A kernel without POPULATE_WRITE touches on the first write, which cannot fail any more. The pages are the
 * file's and stay; our own entries for them go again, for a process that ends with millions of those takes
 * seconds, and its successor cannot begin before.
 */
static void touch(const struct mempool *p, uint8_t *at, uint64_t bytes)
{
	if (((uintptr_t)at & 4095) == 0 && madvise(at, bytes, MADV_POPULATE_WRITE) == 0 &&
	    p->b->ops->unload)
		p->b->ops->unload(p->b, at, bytes);
}

void mempool_unload(const struct mempool *p, const struct extent *e)
{
	void *at = mempool_at(p, e);
	if (at && p->b->ops->unload)
		p->b->ops->unload(p->b, at, e->bytes);
}

enum err mempool_slice(const struct mempool *p, uint32_t segment, uint32_t slice,
		       struct why *why)
{
	char name[BACKING_NAME_MAX];
	if (slice >= mempool_slices(p, segment))
		return why_set(why, ERR_INVALID_PARAMS, "pool: no slice %u of segment %u",
			       slice, segment);
	uint64_t from = slice * MEMPOOL_SLICE_BYTES;
	uint64_t n = MIN_OF(MEMPOOL_SLICE_BYTES, p->super.segment_bytes - from);
	data_name(name, segment);
	enum err e = p->b->ops->reserve(p->b, name, from, n, why);
	if (e == ERR_NONE)
		touch(p, p->data[segment] + from, n);
	return e;
}

void mempool_ready(struct mempool *p, uint32_t segment, uint32_t n)
{
	assert(segment < p->super.n_segments);
	uint64_t bytes = MIN_OF(p->super.segment_bytes, n * MEMPOOL_SLICE_BYTES);
	p->ready[segment] = MAX_OF(p->ready[segment], bytes);
}

/* ---- payload ---- */

static enum err add_extents(const struct mempool *p, const struct extent *ext, size_t n,
			    uint64_t left, struct sum_stream *s)
{
	enum err e = ERR_NONE;
	for (size_t i = 0; i < n && left > 0 && e == ERR_NONE; i++) {
		uint64_t part = MIN_OF(left, ext[i].bytes);
		const void *at = mempool_at(p, &ext[i]);
		e = at ? sum_stream_add(s, at, part) : ERR_INVALID_PARAMS;
		left -= part;
	}
	return e == ERR_NONE && left > 0 ? ERR_INVALID_PARAMS : e;
}

enum err mempool_sum(const struct mempool *p, const struct extent *ext, size_t n, uint64_t size,
		     uint64_t *sum)
{
	struct sum_stream *s;
	enum err e = sum_stream_new(size, NULL, &s);
	if (e)
		return e;
	e = add_extents(p, ext, n, size, s);
	if (e == ERR_NONE)
		e = sum_stream_end(s, sum);
	sum_stream_free(s);
	return e;
}
