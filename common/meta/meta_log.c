/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta_log.h"

#include <stdio.h>
#include <string.h>

#include "meta/meta_recover.h"

struct meta_log {
	struct meta_fs *fs;
	char name[33];
	uint32_t chunk;
	struct meta_file *lock, *file;
	struct meta_head head; /* of the log */
	uint64_t sector;       /* where the next frame goes */
	uint64_t number, next; /* its number in the file, its first record's number */
	uint64_t durable;      /* zeroed and synced so far */
	uint32_t chain;
	bool broken, has_old;
	uint64_t snap_bytes;
	struct buf sectors;
};

static enum err break_it(struct meta_log *g, const char *step, enum err e, struct why *why)
{
	g->broken = true;
	return why_set(
		why, ERR_IO,
		"%s of %s/%s.log failed (%s): nothing more is written; check the disk and "
		"restart the service",
		step, g->fs->where, g->name, err_text(e));
}

/* ---- making files ---- */

static enum err write_zeros(struct meta_fs *fs, struct meta_file *f, uint64_t from, uint64_t to)
{
	static const uint8_t zeros[64u << 10];
	for (uint64_t at = from; at < to;) {
		size_t n = MIN_OF(to - at, sizeof(zeros));
		enum err e = fs->ops->write(f, zeros, n, at);
		if (e != ERR_NONE)
			return e;
		at += n;
	}
	return ERR_NONE;
}

/* NAME.log.new, whole and synced, not yet named. */
static enum err make_log(struct meta_log *g, const struct meta_head *head,
			 struct meta_file **out)
{
	char name[META_NAME_BYTES];
	uint8_t first[META_SECTOR];
	struct meta_file *f;
	meta_name(name, g->name, ".log.new");
	enum err e = g->fs->ops->unlink(g->fs, name);
	if (e == ERR_NONE || e == ERR_NOT_FOUND)
		e = g->fs->ops->open(g->fs, name, true, &f);
	if (e != ERR_NONE)
		return e;
	meta_head_encode(head, first);
	e = g->fs->ops->write(f, first, sizeof(first), 0);
	if (e == ERR_NONE)
		e = write_zeros(g->fs, f, META_SECTOR, head->durable);
	if (e == ERR_NONE)
		e = g->fs->ops->sync(f);
	if (e != ERR_NONE) {
		meta_file_close(f);
		(void)!g->fs->ops->unlink(g->fs, name);
		return e;
	}
	*out = f;
	return ERR_NONE;
}

static enum err rename_sync(struct meta_log *g, const char *from, const char *to)
{
	char a[META_NAME_BYTES], b[META_NAME_BYTES];
	meta_name(a, g->name, from);
	meta_name(b, g->name, to);
	enum err e = g->fs->ops->rename(g->fs, a, b);
	return e == ERR_NONE ? g->fs->ops->sync_dir(g->fs) : e;
}

/* g writes into this empty log from here on. */
static void adopt(struct meta_log *g, struct meta_file *f, const struct meta_head *head)
{
	meta_file_close(g->file);
	g->file = f;
	g->head = *head;
	g->sector = 1;
	g->number = 0;
	g->next = head->seq;
	g->durable = head->durable;
	g->chain = head->chain;
}

/* ---- opening ---- */

static enum err create_store(struct meta_log *g, const uint8_t store[16])
{
	struct meta_head head = { .kind = META_LOG, .seq = 1, .durable = g->chunk };
	struct meta_file *f;
	memcpy(head.store, store, 16);
	enum err e = make_log(g, &head, &f);
	if (e != ERR_NONE)
		return e;
	e = rename_sync(g, ".log.new", ".log");
	if (e != ERR_NONE) {
		meta_file_close(f);
		return e;
	}
	adopt(g, f, &head);
	return ERR_NONE;
}

/*
 * The last frame may be in the page cache alone: its fsync failed, or never came. Written again
 * and synced it is durable; what an unfinished frame left is wiped, so that no later frame can
 * mix with it.
 */
static enum err repair_tail(struct meta_log *g, const struct recovery *r)
{
	uint64_t last = r->end.last_sector, n = last ? (r->end.sector - last) * META_SECTOR : 0;
	enum err e = ERR_NONE;
	if (n > 0) {
		size_t got = 0;
		uint8_t *p = malloc(n);
		if (!p)
			return ERR_NO_MEMORY;
		e = g->fs->ops->read(g->file, p, n, last * META_SECTOR, &got);
		if (e == ERR_NONE && got != n)
			e = ERR_IO;
		if (e == ERR_NONE)
			e = g->fs->ops->write(g->file, p, n, last * META_SECTOR);
		free(p);
	}
	if (e == ERR_NONE && r->end.torn)
		e = write_zeros(g->fs, g->file, r->end.sector * META_SECTOR, r->end.durable);
	if (e == ERR_NONE && (n > 0 || r->end.torn))
		e = g->fs->ops->sync(g->file);
	return e;
}

/* A switch was cut short: the old log is the log. */
static enum err undo_switch(struct meta_log *g, struct recovery *r)
{
	enum err e = rename_sync(g, ".log.old", ".log");
	if (e != ERR_NONE)
		return e;
	r->have_old = false;
	r->have_log = true;
	return ERR_NONE;
}

static enum err continue_log(struct meta_log *g, struct recovery *r)
{
	char name[META_NAME_BYTES];
	enum err e = r->have_log ? ERR_NONE : undo_switch(g, r);
	meta_name(name, g->name, ".log");
	if (e == ERR_NONE)
		e = g->fs->ops->open(g->fs, name, false, &g->file);
	if (e == ERR_NONE)
		e = repair_tail(g, r);
	if (e != ERR_NONE)
		return e;
	g->head = r->end.head;
	g->sector = r->end.sector;
	g->number = r->end.number;
	g->next = r->seq + 1;
	g->durable = r->end.durable;
	g->chain = r->end.chain;
	g->has_old = r->have_old;
	g->snap_bytes = r->snap_bytes;
	return ERR_NONE;
}

static enum err open_files(struct meta_log *g, const struct meta_log_opts *o,
			   struct meta_state *st, struct why *why)
{
	char lock[META_NAME_BYTES];
	meta_name(lock, g->name, ".lock");
	enum err e = g->fs->ops->lock(g->fs, lock, &g->lock, why);
	if (e != ERR_NONE)
		return e;
	struct recovery r = { .fs = g->fs, .name = g->name, .st = st, .why = why };
	e = recovery_run(&r, NULL);
	if (e == ERR_NONE)
		e = r.have_log || r.have_old ? continue_log(g, &r) : create_store(g, o->store);
	return why_set(why, e, "cannot open %s/%s.log: %s", g->fs->where, g->name, err_text(e));
}

enum err meta_log_open(const struct meta_log_opts *o, struct meta_state *st,
		       struct meta_log **out, struct why *why)
{
	assert(o->chunk_bytes > 0 && o->chunk_bytes % 4096 == 0);
	assert(strlen(o->name) >= 1 && strlen(o->name) <= 32);
	struct meta_log *g = calloc(1, sizeof(*g));
	if (!g)
		return ERR_NO_MEMORY;
	g->fs = o->fs;
	g->chunk = o->chunk_bytes;
	g->sectors = BUF_INIT(2 * META_PAYLOAD_MAX);
	memcpy(g->name, o->name, strlen(o->name));
	struct why first = { 0 };
	enum err e = open_files(g, o, st, &first);
	if (e != ERR_NONE) {
		meta_log_close(g);
		return why_set(why, e, "%s", first.text);
	}
	*out = g;
	return ERR_NONE;
}

void meta_log_close(struct meta_log *g)
{
	if (!g)
		return;
	meta_file_close(g->file);
	meta_file_close(g->lock);
	buf_fini(&g->sectors);
	free(g);
}

/* ---- appending ---- */

/* So much that a frame of n sectors fits and one zero sector follows it. */
static enum err grow(struct meta_log *g, uint64_t n_sectors, struct why *why)
{
	uint64_t need = (g->sector + n_sectors + 1) * META_SECTOR, to = g->durable;
	while (to < need)
		to += g->chunk;
	if (to == g->durable)
		return ERR_NONE;
	/* what this leaves behind when it fails lies past the durable length: never looked at
	 */
	enum err e = write_zeros(g->fs, g->file, g->durable, to);
	if (e == ERR_NO_SPACE)
		return why_set(why, e, "no space for %s/%s.log: it needs %llu more bytes",
			       g->fs->where, g->name, (unsigned long long)(to - g->durable));
	if (e == ERR_NONE)
		e = g->fs->ops->sync(g->file);
	if (e != ERR_NONE)
		return break_it(g, "growing", e, why);
	g->durable = to;
	return ERR_NONE;
}

/* L2: takes back what a failed write may have left. */
static enum err take_back(struct meta_log *g, uint64_t n_sectors, struct why *why)
{
	uint64_t from = g->sector * META_SECTOR;
	enum err e = write_zeros(g->fs, g->file, from, from + n_sectors * META_SECTOR);
	if (e == ERR_NONE)
		e = g->fs->ops->sync(g->file);
	if (e != ERR_NONE)
		return break_it(g, "taking back a write", e, why);
	return why_set(why, ERR_NO_SPACE, "no space for %s/%s.log", g->fs->where, g->name);
}

enum err meta_log_append(struct meta_log *g, uint64_t first, uint32_t n, struct bytes payload,
			 struct why *why)
{
	assert(first == g->next && n > 0);
	if (g->broken)
		return why_set(why, ERR_IO, "%s/%s.log broke earlier; restart the service",
			       g->fs->where, g->name);
	uint64_t n_sectors = meta_frame_sectors(payload.n);
	enum err e = grow(g, n_sectors, why);
	if (e != ERR_NONE)
		return e;
	const struct meta_frame f = { .number = g->number,
				      .first = first,
				      .n_records = n,
				      .n_bytes = (uint32_t)payload.n,
				      .chain = g->chain,
				      .durable = g->durable };
	buf_clear(&g->sectors);
	uint8_t *to = buf_room(&g->sectors, n_sectors * META_SECTOR);
	if (!to)
		return why_set(why, ERR_NO_MEMORY, "no memory for a frame of %zu bytes",
			       payload.n);
	uint32_t chain = meta_frame_encode(g->head.store, g->sector, &f, payload, to);
	e = g->fs->ops->write(g->file, to, n_sectors * META_SECTOR, g->sector * META_SECTOR);
	if (e == ERR_NO_SPACE)
		return take_back(g, n_sectors, why);
	if (e != ERR_NONE)
		return break_it(g, "writing", e, why);
	e = g->fs->ops->sync(g->file);
	if (e != ERR_NONE)
		return break_it(g, "fsync", e, why);
	g->sector += n_sectors;
	g->number++;
	g->next += n;
	g->chain = chain;
	return ERR_NONE;
}

/* ---- snapshots ---- */

enum err meta_log_switch(struct meta_log *g, struct why *why)
{
	assert(!g->has_old && g->number > 0);
	if (g->broken)
		return why_set(why, ERR_IO, "%s/%s.log broke earlier", g->fs->where, g->name);
	struct meta_head head = g->head;
	struct meta_file *f;
	head.seq = g->next;
	head.chain = g->chain;
	head.durable = g->chunk;
	enum err e = make_log(g, &head, &f);
	if (e != ERR_NONE)
		return why_set(why, e, "cannot make %s/%s.log.new: %s", g->fs->where, g->name,
			       err_text(e));
	e = rename_sync(g, ".log", ".log.old");
	if (e == ERR_NONE)
		e = rename_sync(g, ".log.new", ".log");
	if (e != ERR_NONE) {
		meta_file_close(f);
		return break_it(g, "renaming", e, why);
	}
	adopt(g, f, &head);
	g->has_old = true;
	return ERR_NONE;
}

bool meta_log_has_old(const struct meta_log *g)
{
	return g->has_old;
}

uint64_t meta_log_bytes(const struct meta_log *g)
{
	return (g->sector - 1) * META_SECTOR;
}

uint64_t meta_log_snap_bytes(const struct meta_log *g)
{
	return g->snap_bytes;
}

void meta_log_compaction(const struct meta_log *g, struct meta_compaction *out)
{
	*out = (struct meta_compaction){ .fs = g->fs,
					 .seq = g->head.seq - 1,
					 .chain = g->head.chain };
	memcpy(out->name, g->name, sizeof(out->name));
	memcpy(out->store, g->head.store, sizeof(out->store));
}

enum err meta_log_compact(struct meta_compaction *c, struct why *why)
{
	struct recovery r = { .fs = c->fs, .name = c->name, .why = why };
	uint64_t seed;
	memcpy(&seed, c->store, sizeof(seed)); /* random, and nobody outside knows it */
	enum err e = meta_state_new(seed, &r.st);
	if (e != ERR_NONE)
		return e;
	e = recovery_run(&r, c);
	if (e == ERR_NONE) {
		struct meta_head head = { .kind = META_SNAP, .seq = c->seq, .chain = c->chain };
		memcpy(head.store, c->store, sizeof(head.store));
		e = snapshot_write(c->fs, c->name, r.st, &head, &c->snap_bytes, why);
	}
	meta_state_free(r.st);
	char old[META_NAME_BYTES];
	meta_name(old, c->name, ".log.old");
	if (e == ERR_NONE)
		e = c->fs->ops->unlink(c->fs, old);
	return e;
}

void meta_log_compacted(struct meta_log *g, const struct meta_compaction *c)
{
	g->has_old = false;
	g->snap_bytes = c->snap_bytes;
}
