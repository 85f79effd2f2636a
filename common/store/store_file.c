/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file an object: AA/BB/OWNER-HASH-VERSION in two levels of 64 folders by hash. A file is a head
 * of 4 KiB (logrec.h: key, version, size, sum, CRC), the value, its block sums. It is written under
 * a temporary name, synced by the policy, renamed, and its folder synced: a name without ".tmp" has all its bytes.
 *
 * F1: an object's name follows from owner and id alone; of two ids of one hash the second is refused
 *     (ERR_CONFLICT): it never overwrites the first.
 * F2: what is acknowledged was renamed, and the folder synced, before.
 * F3: a name that is not ours, or whose head is not, is counted and never touched.
 * F4: a failed unlink or sync leaves the object listed but in doubt: a put writes it anew.
 *
 * Lock: index and counters. Files are opened for each get; the writer alone makes and removes them.
 */
#include "store/store_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/sum.h"

#define EVICT_ITEMS 500u /* of one eviction */

static struct file_be *file_of(struct store_blk *b)
{
	return container_of(b, struct file_be, blk);
}

/* ---- names ---- */

static uint64_t name_hash(const struct store_id *id, uint64_t salt)
{
	uint64_t both[3] = { salt, obj_key_hash(id->tenant, id->key), obj_key_tie(id->key) };
	return sum64(both, sizeof(both));
}

void file_name(const struct file_be *f, const struct store_id *id, const char *end,
	       char out[NAME_MAX_BYTES])
{
	uint64_t h = name_hash(id, 1), h2 = name_hash(id, 2);
	snprintf(out, NAME_MAX_BYTES,
		 "%02x/%02x/%016" PRIx64 "-%016" PRIx64 "%016" PRIx64 "-%016" PRIx64 "%s",
		 (unsigned)(h >> 58), (unsigned)(h >> 52 & 63), f->owner_hash, h, h2,
		 id->version, end);
}

/* "AA/BB" of a name. */
static void folder_of(const char *name, char out[6])
{
	memcpy(out, name, 5);
	out[5] = 0;
}

/* ---- writing ---- */

static bool syncs(const struct file_be *f)
{
	return f->fsync != STORE_FSYNC_NEVER;
}

static unsigned top_of(const char *name)
{
	unsigned top = 0;
	(void)!sscanf(name, "%2x", &top);
	return top & 255;
}

/* AA and AA/BB, durably: whose sync failed is in doubt until one succeeds. */
static enum err make_folders(struct file_be *f, const char *name)
{
	char folder[6];
	unsigned top = top_of(name);
	folder_of(name, folder);
	folder[2] = 0;
	enum err e = f->fs->ops->mkdir(f->fs, folder);
	if (e && e != ERR_EXISTS)
		return e;
	f->root_doubt = f->root_doubt || e == ERR_NONE;
	f->doubt[top] = true;
	e = ERR_NONE;
	if (f->root_doubt && syncs(f))
		e = f->fs->ops->sync_dir(f->fs, "");
	if (e)
		return e;
	f->root_doubt = false;
	folder[2] = '/';
	e = f->fs->ops->mkdir(f->fs, folder);
	if (e && e != ERR_EXISTS)
		return e;
	folder[2] = 0;
	e = syncs(f) ? f->fs->ops->sync_dir(f->fs, folder) : ERR_NONE;
	f->doubt[top] = e != ERR_NONE;
	return e;
}

static enum err make_temp(struct file_be *f, const char *temp, struct disk_file **out)
{
	enum err e = f->doubt[top_of(temp)] ? make_folders(f, temp) : ERR_NONE;
	if (e == ERR_NONE)
		e = f->fs->ops->open(f->fs, temp, DISK_CREATE, out);
	if (e == ERR_EXISTS) { /* of a crash, or of a failed put */
		e = f->fs->ops->unlink(f->fs, temp);
		if (e == ERR_NONE)
			e = f->fs->ops->open(f->fs, temp, DISK_CREATE, out);
	}
	if (e != ERR_NOT_FOUND)
		return e;
	e = make_folders(f, temp);
	return e ? e : f->fs->ops->open(f->fs, temp, DISK_CREATE, out);
}

/* Pieces through the lane's bounce: the value's end and what follows it are padded. */
static enum err write_body(struct file_be *f, struct blk_lane *lane, struct disk_file *file,
			   const struct store_put_item *it)
{
	uint64_t body = logrec_body(it->n), whole = it->n & ~(uint64_t)(DISK_ALIGN - 1);
	enum err e = ERR_NONE;
	for (uint64_t at = 0; e == ERR_NONE && at < whole; at += SUM_BLOCK_BYTES) {
		uint32_t n = (uint32_t)MIN_OF(whole - at, (uint64_t)SUM_BLOCK_BYTES);
		e = disk_write(lane->io, file, (const uint8_t *)it->p + at, n,
			       LOGREC_BLOCK + at);
	}
	if (e || body == whole)
		return e;
	size_t n = (size_t)(body - whole), blocks = sum_n_blocks(it->n);
	uint8_t *tail = aligned_alloc(DISK_ALIGN, n);
	if (!tail)
		return ERR_NO_MEMORY;
	memset(tail, 0, n);
	if (it->n > whole)
		memcpy(tail, (const uint8_t *)it->p + whole, (size_t)(it->n - whole));
	if (blocks > 0)
		memcpy(tail + (obj_vector_at(it->n) - whole), f->vector, blocks * 8);
	e = disk_write(lane->io, file, tail, (uint32_t)n, LOGREC_BLOCK + whole);
	free(tail);
	return e;
}

static enum err write_file(struct file_be *f, struct blk_lane *lane, const char *temp,
			   const struct store_put_item *it, uint64_t *real)
{
	struct disk_file *file;
	struct disk_stat st = { 0 };
	uint8_t *block = lane->bounce;
	enum err e = make_temp(f, temp, &file);
	if (e)
		return e;
	const struct logrec_head h = {
		.type = LOGREC_PUT, .id = it->id, .size = it->n, .sum = it->sum
	};
	logrec_head_put(&h, FILE_SALT, file_head_place(f), block);
	e = disk_write(lane->io, file, block, LOGREC_BLOCK, 0);
	if (e == ERR_NONE)
		e = write_body(f, lane, file, it);
	if (e == ERR_NONE && syncs(f))
		e = f->fs->ops->sync(file);
	if (e == ERR_NONE)
		e = f->fs->ops->stat(file, &st);
	disk_close(file);
	if (e)
		(void)f->fs->ops->unlink(f->fs, temp);
	*real = st.real;
	return e;
}

/* ---- put ---- */

static void settle(struct store_put_item *it, enum err e)
{
	it->err = e;
	it->settled = true;
}

static enum err sums_of(struct file_be *f, const struct store_put_item *it)
{
	uint64_t n = sum_n_blocks(it->n);
	if (n > f->cap_vector) {
		uint64_t *more = realloc(f->vector, n * sizeof(*more));
		if (!more)
			return ERR_NO_MEMORY;
		f->vector = more;
		f->cap_vector = n;
	}
	return sum_object(it->p, it->n, f->vector) == it->sum ? ERR_NONE : ERR_CORRUPT;
}

static enum err put_range(const struct file_be *f, const struct store_put_item *it)
{
	if (!store_id_valid(&it->id) || (!it->p && it->n > 0))
		return ERR_INVALID_PARAMS;
	if (it->n > store_backends[1].caps.max_value)
		return ERR_TOO_LARGE;
	return logrec_length(it->n) > f->limit / 2 ? ERR_TOO_LARGE : ERR_NONE;
}

/* Under the lock. */
static void drop(struct file_be *f, struct ix_entry *e)
{
	f->used -= MIN_OF(f->used, e->off);
	ix_drop(&f->ix, e);
}

/* True: it has its answer, or waits with an equal one of its batch (existed set). */
static bool put_known(struct file_be *f, struct store_put_item *it)
{
	pthread_mutex_lock(&f->lock);
	struct ix_entry *e = ix_find(&f->ix, &it->id);
	bool known = e && !e->doubt && !e->gone;
	if (known && (e->size != it->n || e->sum != it->sum)) {
		settle(it, ERR_CONFLICT);
	} else if (known) {
		it->existed = true;
		if (!e->hidden)
			settle(it, ERR_NONE);
	} else if (e) {
		drop(f, e);
	}
	pthread_mutex_unlock(&f->lock);
	return known;
}

static bool has_room(struct file_be *f, const struct store_put_item *it)
{
	uint64_t fs_free;
	bool fs_room = f->fs->ops->space(f->fs, &fs_free) != ERR_NONE ||
		       fs_free > logrec_length(it->n);
	pthread_mutex_lock(&f->lock);
	bool room = fs_room && f->used + logrec_length(it->n) + 2 * DISK_ALIGN <= f->limit &&
		    f->ix.map.n < f->limit_objects;
	pthread_mutex_unlock(&f->lock);
	return room;
}

/* Somebody else's file of this name? Only on a hash that collides. */
static enum err name_free(struct file_be *f, struct blk_lane *lane, const char *name,
			  const struct store_id *id)
{
	struct disk_file *file;
	struct logrec_head h;
	enum err e = f->fs->ops->open(f->fs, name, 0, &file);
	if (e)
		return e == ERR_NOT_FOUND ? ERR_NONE : e;
	e = disk_read(lane->io, file, lane->bounce, LOGREC_BLOCK, 0);
	if (e == ERR_NONE &&
	    logrec_head_get(lane->bounce, FILE_SALT, file_head_place(f), &h) == ERR_NONE &&
	    !store_id_equal(&h.id, id))
		e = ERR_CONFLICT; /* F1 */
	if (e == ERR_CORRUPT)
		e = ERR_NONE;
	disk_close(file);
	return e;
}

static enum err add_hidden(struct file_be *f, const struct store_put_item *it, uint64_t real)
{
	struct ix_entry *e = ix_entry_new(&it->id, it->n, it->sum, f->vector);
	if (!e)
		return ERR_NO_MEMORY;
	e->hidden = true;
	e->off = real; /* what it takes */
	pthread_mutex_lock(&f->lock);
	e->where = (void *)(uintptr_t)++f->n_made;
	enum err r = ix_add(&f->ix, e);
	if (r == ERR_NONE) {
		list_push_back(&f->order_list, &e->in_where);
		f->used += real;
	} else {
		ix_entry_free(e);
	}
	pthread_mutex_unlock(&f->lock);
	return r;
}

static void undo_hidden(struct file_be *f, const struct store_id *id)
{
	pthread_mutex_lock(&f->lock);
	struct ix_entry *e = ix_find(&f->ix, id);
	if (e && e->hidden)
		drop(f, e);
	pthread_mutex_unlock(&f->lock);
}

static void put_one(struct file_be *f, struct blk_lane *lane, struct store_put_item *it)
{
	char name[NAME_MAX_BYTES], temp[NAME_MAX_BYTES];
	uint64_t real = 0;
	it->existed = false;
	it->err = ERR_NONE;
	enum err e = put_range(f, it);
	if (e == ERR_NONE)
		e = sums_of(f, it);
	if (e) {
		settle(it, e);
		return;
	}
	if (put_known(f, it))
		return;
	it->err = ERR_BUSY;
	if (!has_room(f, it))
		return;
	file_name(f, &it->id, "", name);
	file_name(f, &it->id, ".tmp", temp);
	e = name_free(f, lane, name, &it->id);
	if (e == ERR_NONE)
		e = write_file(f, lane, temp, it, &real);
	if (e == ERR_NO_SPACE)
		return;
	if (e == ERR_NONE)
		e = add_hidden(f, it, real);
	if (e == ERR_NONE) {
		e = f->fs->ops->rename(f->fs, temp, name);
		if (e)
			undo_hidden(f, &it->id);
	}
	if (e)
		settle(it, e == ERR_CONFLICT || e == ERR_NO_MEMORY ? e : ERR_IO);
	else
		it->err = ERR_NONE; /* renamed: shown when its folder is synced */
}

/* Folders of a batch, each synced once. */
struct folders {
	uint64_t seen[1024]; /* a bit each */
};

static bool folder_first(struct folders *fs, const char *folder)
{
	unsigned a = (unsigned)strtoul(folder, NULL, 16),
		 b = (unsigned)strtoul(folder + 3, NULL, 16);
	unsigned i = (a & 255) << 8 | (b & 255);
	bool first = !(fs->seen[i / 64] >> (i % 64) & 1);
	fs->seen[i / 64] |= 1ull << (i % 64);
	return first;
}

/* ERR_NONE: the name of id is durable, or will never matter. failed: folders whose sync failed. */
static enum err sync_folder(struct file_be *f, const struct store_id *id, struct folders *done,
			    struct folders *failed)
{
	char name[NAME_MAX_BYTES], folder[6];
	if (!syncs(f))
		return ERR_NONE;
	file_name(f, id, "", name);
	folder_of(name, folder);
	if (folder_first(done, folder)) {
		enum err e = f->fs->ops->sync_dir(f->fs, folder);
		if (e && e != ERR_NOT_FOUND) /* no folder: nothing in it can come back */
			(void)folder_first(failed, folder);
	}
	struct folders probe = *failed;
	return folder_first(&probe, folder) ? ERR_NONE : ERR_IO;
}

static void show(struct file_be *f, struct store_put_item *it, enum err e)
{
	pthread_mutex_lock(&f->lock);
	struct ix_entry *x = ix_find(&f->ix, &it->id);
	bool mine = x && x->hidden;
	if (mine && e == ERR_NONE) {
		ix_show(&f->ix, x);
		f->n.puts++;
		f->n.bytes_put += it->n;
	} else if (mine) {
		drop(f, x);
		f->n.io_errors++;
	}
	bool there = ix_visible(ix_find(&f->ix, &it->id));
	pthread_mutex_unlock(&f->lock);
	settle(it, there ? ERR_NONE : ERR_IO);
	it->existed = there && !mine;
	if (mine && e) { /* its outcome is unknown; try that it is not there (F4) */
		char name[NAME_MAX_BYTES];
		file_name(f, &it->id, "", name);
		(void)f->fs->ops->unlink(f->fs, name);
	}
}

static uint64_t percent(uint64_t of, uint32_t pct)
{
	return of / 100 * pct + of % 100 * pct / 100;
}

/* Under the lock. */
static void look(struct file_be *f)
{
	uint64_t n = f->ix.map.n;
	bool above = f->used > percent(f->limit, f->high_pct) ||
		     n > percent(f->limit_objects, f->high_pct);
	bool below = f->used <= percent(f->limit, f->low_pct) &&
		     n <= percent(f->limit_objects, f->low_pct);
	f->draining = above || (f->draining && !below);
}

static void file_put(struct store_blk *b, struct blk_lane *lane, struct store_put *r)
{
	struct file_be *f = file_of(b);
	struct folders *done = calloc(2, sizeof(*done));
	for (uint32_t i = 0; i < r->n; i++) {
		struct store_put_item *it = &r->items[i];
		if (it->settled)
			continue;
		if (!done)
			settle(it, ERR_NO_MEMORY);
		else
			put_one(f, lane, it);
	}
	for (uint32_t i = 0; done && i < r->n; i++) {
		struct store_put_item *it = &r->items[i];
		if (!it->settled && it->err == ERR_NONE)
			show(f, it, sync_folder(f, &it->id, &done[0], &done[1]));
	}
	free(done);
	pthread_mutex_lock(&f->lock);
	look(f);
	pthread_mutex_unlock(&f->lock);
}

/* ---- get ---- */

/* Under the lock, so that no new file of this name is taken for it. Aside, for inspection; what cannot be moved is out
 * of the index all the same. */
static void set_aside(struct file_be *f, const struct store_id *id, uint64_t size)
{
	char name[NAME_MAX_BYTES], to[NAME_MAX_BYTES];
	file_name(f, id, "", name);
	snprintf(to, sizeof(to), QUARANTINE "/%.140s", name + 6);
	enum err e = f->fs->ops->rename(f->fs, name, to);
	if (e == ERR_NOT_FOUND && f->fs->ops->mkdir(f->fs, QUARANTINE) == ERR_NONE)
		e = f->fs->ops->rename(f->fs, name, to);
	if (e == ERR_NONE && syncs(f)) {
		char folder[6];
		folder_of(name, folder);
		e = f->fs->ops->sync_dir(f->fs, folder);
	}
	LOG_ERROR(f->log, "disk", "corrupt=1 file=%s size=%" PRIu64 " quarantine=%s", name,
		  size, err_name(e));
}

static void forget(struct file_be *f, const struct store_id *id, const void *made, bool lost)
{
	pthread_mutex_lock(&f->lock);
	struct ix_entry *e = ix_find(&f->ix, id);
	if (ix_visible(e) && e->where == made) {
		uint64_t size = e->size;
		if (!lost)
			set_aside(f, id, size);
		f->n.lost += lost;
		f->n.corrupt += !lost;
		f->n.bytes_quarantined += lost ? 0 : logrec_length(size);
		if (e->busy)
			e->gone = true;
		else
			drop(f, e);
	}
	pthread_mutex_unlock(&f->lock);
}

struct found {
	const void *made;
	uint64_t size, sum;
	uint64_t *vector;
};

static enum err find_one(struct file_be *f, const struct store_id *id, struct found *out)
{
	if (!store_id_valid(id))
		return ERR_INVALID_PARAMS;
	pthread_mutex_lock(&f->lock);
	struct ix_entry *e = ix_find(&f->ix, id);
	enum err r = ix_visible(e) ? ERR_NONE : ERR_NOT_FOUND;
	if (r == ERR_NONE) {
		size_t n = sum_n_blocks(e->size) * sizeof(uint64_t);
		*out = (struct found){ .made = e->where, .size = e->size, .sum = e->sum };
		out->vector = n ? malloc(n) : NULL;
		if (n && !out->vector)
			r = ERR_NO_MEMORY;
		else if (n)
			memcpy(out->vector, e->vector, n);
	}
	if (r == ERR_NONE && f->order == STORE_LRU) {
		list_del(&e->in_where);
		list_push_back(&f->order_list, &e->in_where);
	}
	pthread_mutex_unlock(&f->lock);
	return r;
}

static void get_one(struct file_be *f, struct blk_lane *lane, struct store_get_item *it)
{
	struct found at = { 0 };
	char name[NAME_MAX_BYTES];
	struct blk_value v;
	it->got = it->size = it->sum = 0;
	it->err = find_one(f, &it->id, &at);
	if (it->err)
		return;
	file_name(f, &it->id, "", name);
	v = (struct blk_value){
		.off = LOGREC_BLOCK, .size = at.size, .sum = at.sum, .vector = at.vector
	};
	enum err e = f->fs->ops->open(f->fs, name, 0, &v.file);
	if (e == ERR_NONE) {
		blk_read(lane, &it, &v, 1);
		disk_close(v.file);
	} else {
		it->err = e == ERR_NOT_FOUND ? e : ERR_IO;
	}
	free(at.vector);
	if (it->err == ERR_NOT_FOUND || it->err == ERR_CORRUPT)
		forget(f, &it->id, at.made, it->err == ERR_NOT_FOUND);
	pthread_mutex_lock(&f->lock);
	f->n.io_errors += it->err == ERR_IO;
	f->n.gets += it->err == ERR_NONE;
	f->n.bytes_got += it->got;
	pthread_mutex_unlock(&f->lock);
}

static void file_get(struct store_blk *b, struct blk_lane *lane, struct store_get *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		get_one(file_of(b), lane, &r->items[i]);
}

/* ---- delete ---- */

/* Both names: a put of unknown outcome may have left one or the other. */
static enum err remove_name(struct file_be *f, const struct store_id *id)
{
	char name[NAME_MAX_BYTES];
	file_name(f, id, "", name);
	enum err e = f->fs->ops->unlink(f->fs, name);
	return e == ERR_NOT_FOUND ? ERR_NONE : e;
}

/* The entry is marked: gets may read on while its name goes. */
static enum err del_mark(struct file_be *f, struct store_del_item *it)
{
	it->absent = true;
	it->err = store_id_valid(&it->id) ? ERR_NONE : ERR_INVALID_PARAMS;
	if (it->err)
		return it->err;
	pthread_mutex_lock(&f->lock);
	struct ix_entry *e = ix_find(&f->ix, &it->id);
	if (ix_visible(e)) {
		it->absent = e->going;
		e->busy = e->going = true;
	}
	pthread_mutex_unlock(&f->lock);
	it->err = remove_name(f, &it->id) ? ERR_IO : ERR_NONE;
	return it->err;
}

static void del_end(struct file_be *f, struct store_del_item *it)
{
	pthread_mutex_lock(&f->lock);
	struct ix_entry *e = ix_find(&f->ix, &it->id);
	if (e && e->busy) {
		e->busy = e->going = false;
		e->doubt = it->err != ERR_NONE; /* F4 */
		if (it->err == ERR_NONE || e->gone)
			drop(f, e);
		f->n.deletes += it->err == ERR_NONE;
	}
	f->n.io_errors += it->err == ERR_IO;
	pthread_mutex_unlock(&f->lock);
}

static void file_del(struct store_blk *b, struct blk_lane *lane, struct store_del *r)
{
	struct file_be *f = file_of(b);
	struct folders *done = calloc(2, sizeof(*done));
	(void)lane;
	for (uint32_t i = 0; i < r->n; i++) {
		if (done)
			(void)del_mark(f, &r->items[i]);
		else
			r->items[i].err = ERR_NO_MEMORY;
	}
	for (uint32_t i = 0; done && i < r->n; i++) {
		struct store_del_item *it = &r->items[i];
		if (it->err == ERR_INVALID_PARAMS)
			continue;
		enum err e = sync_folder(f, &it->id, &done[0], &done[1]);
		if (e)
			it->err = ERR_IO;
		del_end(f, it);
	}
	free(done);
	pthread_mutex_lock(&f->lock);
	look(f);
	pthread_mutex_unlock(&f->lock);
}

/* ---- eviction ---- */

static enum err file_pick(struct store_blk *b, struct blk_lane *lane, bool starved,
			  struct store_eviction **out)
{
	struct file_be *f = file_of(b);
	size_t names = 0;
	uint32_t n = 0;
	uint64_t bytes = 0;
	(void)lane;
	*out = NULL;
	pthread_mutex_lock(&f->lock);
	look(f);
	uint64_t low = percent(f->limit, f->low_pct);
	uint64_t want = f->used > low ? f->used - low : f->limit / 16;
	bool go = f->order != STORE_EVICT_NONE && (starved || f->draining);
	for (struct list *it = f->order_list.next;
	     go && it != &f->order_list && n < EVICT_ITEMS && bytes < want; it = it->next) {
		const struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		names += (size_t)e->tenant_n + e->key_n;
		bytes += e->off;
		n += !e->hidden;
	}
	struct store_eviction *ev = n > 0 ? blk_eviction_new(n, names) : NULL;
	for (struct list *it = f->order_list.next; ev && ev->n < n; it = it->next) {
		const struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		struct store_id id = ix_id(e);
		if (!e->hidden)
			blk_eviction_add(ev, &id, e->size);
	}
	pthread_mutex_unlock(&f->lock);
	*out = ev;
	return n > 0 && !ev ? ERR_NO_MEMORY : ERR_NONE;
}

/* What was kept goes to the end of the line: the next eviction looks elsewhere. */
static void keep_one(struct file_be *f, const struct store_id *id)
{
	pthread_mutex_lock(&f->lock);
	struct ix_entry *e = ix_find(&f->ix, id);
	if (e) {
		list_del(&e->in_where);
		list_push_back(&f->order_list, &e->in_where);
	}
	pthread_mutex_unlock(&f->lock);
}

/* What file_del said of them, item by item. */
static enum err count_evicted(struct file_be *f, struct store_eviction *ev,
			      const struct store_del_item *items)
{
	enum err e = ERR_BUSY; /* nothing was won */
	const struct store_del_item *it = items;
	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < ev->n; i++) {
		if (ev->items[i].keep)
			continue;
		ev->items[i].gone = it->err == ERR_NONE;
		if (it->err == ERR_NONE && !it->absent) {
			f->n.deletes--; /* nobody asked for these */
			f->n.evicted++;
			f->n.evicted_bytes += ev->items[i].size;
			e = ERR_NONE;
		} else if (it->err && e) {
			e = it->err;
		}
		it++;
	}
	pthread_mutex_unlock(&f->lock);
	return e;
}

static enum err file_reclaim(struct store_blk *b, struct blk_lane *lane,
			     struct store_eviction *ev)
{
	struct file_be *f = file_of(b);
	struct store_del_item *items = calloc(MAX_OF(ev->n, 1u), sizeof(*items));
	struct store_del d = { .items = items };
	if (!items)
		return ERR_NO_MEMORY;
	for (uint32_t i = 0; i < ev->n; i++) {
		if (ev->items[i].keep)
			keep_one(f, &ev->items[i].id);
		else
			items[d.n++].id = ev->items[i].id;
	}
	file_del(b, lane, &d);
	enum err e = count_evicted(f, ev, items);
	free(items);
	return e;
}

/* ---- what needs no I/O ---- */

static void file_has(struct store_blk *b, struct store_has *r)
{
	pthread_mutex_lock(&file_of(b)->lock);
	ix_has(&file_of(b)->ix, r);
	pthread_mutex_unlock(&file_of(b)->lock);
}

static void file_scan(struct store_blk *b, struct store_scan *r)
{
	pthread_mutex_lock(&file_of(b)->lock);
	ix_scan(&file_of(b)->ix, r);
	pthread_mutex_unlock(&file_of(b)->lock);
}

static void file_stat(struct store_blk *b, struct store_stat *out)
{
	struct file_be *f = file_of(b);
	pthread_mutex_lock(&f->lock);
	*out = f->n;
	out->objects = ix_n(&f->ix);
	out->files = out->objects;
	out->bytes_live = f->ix.bytes;
	out->bytes_used = f->used;
	out->bytes_limit = f->limit;
	pthread_mutex_unlock(&f->lock);
}

static enum store_health_state file_health(struct store_blk *b, struct why *w)
{
	(void)b;
	(void)w;
	return STORE_OK;
}

static enum blk_want file_wants(struct store_blk *b)
{
	struct file_be *f = file_of(b);
	pthread_mutex_lock(&f->lock);
	bool press = f->draining;
	pthread_mutex_unlock(&f->lock);
	return press ? BLK_PRESSURE : BLK_NOTHING;
}

/* ---- life ---- */

static void file_free(struct file_be *f)
{
	ix_fini(&f->ix);
	disk_close(f->lock_file);
	pthread_mutex_destroy(&f->lock);
	free(f->vector);
	free(f);
}

static void file_close(struct store_blk *b, struct blk_lane *lane)
{
	(void)lane;
	file_free(file_of(b));
}

static enum err file_open(const struct blk_opts *o, struct blk_lane *lane,
			  struct store_blk **out, struct why *w)
{
	struct file_be *f = calloc(1, sizeof(*f));
	struct blk_marker m;
	if (!f)
		return why_set(w, ERR_NO_MEMORY, "disk tier: no memory left");
	f->blk.ops = &store_file_blk;
	f->fs = o->fs;
	f->log = o->o->log;
	f->fsync = o->o->fsync;
	f->order = o->o->order;
	f->high_pct = o->o->high_pct;
	f->low_pct = o->o->low_pct;
	f->limit_objects = o->o->limit_objects;
	list_init(&f->order_list);
	pthread_mutex_init(&f->lock, NULL);
	ix_init(&f->ix, SIZE_MAX, o->seed);
	enum err e = blk_marker_take(o->fs, lane->io, "file", o->o->owner, o->owner, &m,
				     &f->lock_file, w);
	if (e == ERR_NONE) {
		memcpy(f->blk.owner, m.owner, sizeof(f->blk.owner));
		f->owner_hash = sum64(m.owner, strlen(m.owner));
		f->limit = blk_limit(o->fs, &m, o->o->limit_bytes);
		e = file_start(f, lane, w);
	}
	if (e) {
		file_free(f);
		return e;
	}
	look(f);
	*out = &f->blk;
	return ERR_NONE;
}

const struct store_blk_ops store_file_blk = {
	.open = file_open,
	.close = file_close,
	.put = file_put,
	.get = file_get,
	.del = file_del,
	.has = file_has,
	.scan = file_scan,
	.stat = file_stat,
	.health = file_health,
	.wants = file_wants,
	.pick = file_pick,
	.reclaim = file_reclaim,
};
