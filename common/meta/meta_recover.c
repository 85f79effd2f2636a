/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta_recover.h"

#include <stdio.h>
#include <string.h>

#define SNAP_PAYLOAD (256u << 10) /* a snapshot's frame */
#define SNAP_SYNC    (8u << 20)	  /* written between two syncs, so that none takes long */
#define REC_ARENA    (16u << 10)  /* a record's lists: 8 addresses */

void meta_name(char out[META_NAME_BYTES], const char *name, const char *suffix)
{
	int n = snprintf(out, META_NAME_BYTES, "%s%s", name, suffix);
	assert(n > 0 && n < META_NAME_BYTES);
}

static enum err corrupt(struct recovery *r, const char *what, uint64_t from, uint64_t to)
{
	return why_set(
		r->why, ERR_CORRUPT,
		"%s/%s: %s (records %llu to %llu): put back the folder's last copy, or move "
		"%s.* away to begin without roster and tombstones",
		r->fs->where, r->name, what, (unsigned long long)from, (unsigned long long)to,
		r->name);
}

/* ---- records ---- */

static enum err apply_one(struct recovery *r, enum meta_kind kind, uint64_t seq, uint32_t type,
			  struct bytes body, struct arena *a)
{
	struct meta_rec rec;
	struct why why = { 0 };
	enum err e = meta_rec_decode(type, body, a, &rec, &why);
	if (e == ERR_UNSUPPORTED)
		return why_set(
			r->why, ERR_VERSION_MISMATCH,
			"%s/%s holds record %llu of type %u, which this release does not "
			"know; run the release that wrote it",
			r->fs->where, r->name, (unsigned long long)seq, type);
	if (e == ERR_NO_MEMORY)
		return e;
	if (e != ERR_NONE || meta_rec_check(&rec, &why) != ERR_NONE)
		return corrupt(r, why.text, seq, seq);
	e = kind == META_SNAP ? meta_state_restore(r->st, seq, &rec)
			      : meta_state_apply(r->st, seq, &rec);
	/* what had no effect then has none now */
	return e == ERR_NO_MEMORY ? e : ERR_NONE;
}

static enum err apply_payload(struct recovery *r, enum meta_kind kind,
			      const struct meta_frame *f, struct bytes payload)
{
	struct arena a = ARENA_INIT(REC_ARENA);
	enum err e = ERR_NONE;
	uint32_t n = 0;
	uint64_t seq;
	uint32_t type;
	struct bytes body;
	for (; e == ERR_NONE && meta_payload_next(&payload, &seq, &type, &body); n++) {
		bool in_order = kind == META_SNAP || seq == f->first + n;
		if (!in_order)
			e = corrupt(r, "numbers out of order", f->first + n, seq);
		else if (kind == META_SNAP || seq > r->seq)
			e = apply_one(r, kind, seq, type, body, &a);
		arena_clear(&a);
	}
	arena_fini(&a);
	if (e == ERR_NONE && (payload.n > 0 || n != f->n_records))
		e = corrupt(r, "a frame's records do not add up", f->first,
			    f->first + f->n_records);
	meta_state_sweep(r->st, 2 * (size_t)n + 16);
	return e;
}

/* ---- files ---- */

static enum err check_store(struct recovery *r, const struct meta_head *h)
{
	if (r->have_store && memcmp(r->store, h->store, 16) != 0)
		return why_set(
			r->why, ERR_CORRUPT,
			"%s holds %s.* files of two stores; put back the folder's last copy",
			r->fs->where, r->name);
	r->have_store = true;
	memcpy(r->store, h->store, 16);
	return ERR_NONE;
}

static enum err read_snap(struct recovery *r, struct meta_reader *rd)
{
	struct meta_frame f;
	struct bytes payload;
	uint64_t n = 0;
	enum err e = check_store(r, &rd->head);
	while (e == ERR_NONE && (e = meta_reader_next(rd, &f, &payload, r->why)) == ERR_NONE) {
		if (f.first != n)
			return corrupt(r, "the snapshot has a gap", n, f.first);
		e = apply_payload(r, META_SNAP, &f, payload);
		n += f.n_records;
	}
	if (e != ERR_NOT_FOUND)
		return e;
	meta_state_restored(r->st, rd->head.seq);
	r->seq = rd->head.seq;
	r->chain = rd->head.chain;
	r->snap_bytes = rd->size;
	return ERR_NONE;
}

/*
 * A log's records up to the snapshot's last are looked at and left; there the chains must meet.
 * The first one after it must be the next.
 */
static enum err read_frames(struct recovery *r, struct meta_reader *rd)
{
	struct meta_frame f;
	struct bytes payload;
	uint64_t next = rd->head.seq;
	enum err e = ERR_NONE;
	while (e == ERR_NONE) {
		if (next == r->seq + 1 && rd->chain != r->chain)
			return corrupt(r, "the log does not continue what came before", next,
				       next);
		e = meta_reader_next(rd, &f, &payload, r->why);
		if (e != ERR_NONE)
			break;
		if (f.first != next)
			return corrupt(r, "a frame has other numbers", next, f.first);
		if (next <= r->seq && next + f.n_records > r->seq + 1)
			return corrupt(r, "the snapshot ends inside a frame", next, r->seq);
		e = apply_payload(r, META_LOG, &f, payload);
		next += f.n_records;
		if (e == ERR_NONE && next > r->seq + 1) {
			r->seq = next - 1;
			r->chain = rd->chain;
		}
	}
	r->end.next = next;
	return e == ERR_NOT_FOUND ? ERR_NONE : e;
}

static enum err read_log(struct recovery *r, struct meta_reader *rd)
{
	enum err e = check_store(r, &rd->head);
	if (e != ERR_NONE)
		return e;
	if (rd->head.seq > r->seq + 1)
		return corrupt(r, "acknowledged records are missing", r->seq + 1,
			       rd->head.seq - 1);
	e = read_frames(r, rd);
	r->end.head = rd->head;
	r->end.sector = rd->sector;
	r->end.number = rd->number;
	r->end.last_sector = rd->last_sector;
	r->end.durable = rd->durable;
	r->end.chain = rd->chain;
	r->end.torn = rd->torn;
	return e;
}

/* *have: the file is there. */
static enum err read_file(struct recovery *r, const char *suffix, enum meta_kind kind,
			  bool *have)
{
	char name[META_NAME_BYTES], text[512];
	struct meta_file *file;
	struct meta_reader rd = { 0 };
	meta_name(name, r->name, suffix);
	snprintf(text, sizeof(text), "%s/%s", r->fs->where, name);
	enum err e = r->fs->ops->open(r->fs, name, false, &file);
	*have = e != ERR_NOT_FOUND;
	if (e == ERR_NOT_FOUND)
		return ERR_NONE;
	if (e != ERR_NONE)
		return why_set(r->why, e, "cannot open %s: %s", text, err_text(e));
	e = meta_reader_init(&rd, file, text, kind, r->why);
	if (e == ERR_NONE)
		e = kind == META_SNAP ? read_snap(r, &rd) : read_log(r, &rd);
	meta_reader_fini(&rd);
	meta_file_close(file);
	return e;
}

/* The old log was whole when it was put aside: an end before its last record is damage. */
static enum err check_old(struct recovery *r, const struct meta_compaction *old)
{
	if (r->seq != old->seq || r->chain != old->chain)
		return corrupt(r, "the old log is not what it was", r->seq + 1, old->seq);
	return ERR_NONE;
}

enum err recovery_run(struct recovery *r, const struct meta_compaction *old_only)
{
	enum err e = read_file(r, ".snap", META_SNAP, &r->have_snap);
	if (e == ERR_NONE)
		e = read_file(r, ".log.old", META_LOG, &r->have_old);
	if (e != ERR_NONE)
		return e;
	if (old_only)
		return check_old(r, old_only);
	e = read_file(r, ".log", META_LOG, &r->have_log);
	if (e != ERR_NONE)
		return e;
	if (r->have_snap && !r->have_old && !r->have_log)
		return corrupt(r, "the snapshot is there and the log is not", r->seq + 1,
			       r->seq + 1);
	if ((r->have_old || r->have_log) && r->end.next != r->seq + 1)
		return corrupt(r, "the log ends before the snapshot does", r->end.next, r->seq);
	return ERR_NONE;
}

/* ---- snapshots ---- */

struct snap_writer {
	struct meta_fs *fs;
	struct meta_file *file;
	const uint8_t *store;
	uint64_t sector, number, records, unsynced;
	uint32_t chain, n;
	struct buf payload, sectors, body;
};

static enum err snap_flush(struct snap_writer *w, uint32_t flags)
{
	const struct meta_frame f = { .number = w->number,
				      .first = w->records,
				      .n_records = w->n,
				      .n_bytes = (uint32_t)w->payload.n,
				      .flags = flags,
				      .chain = w->chain };
	size_t n = meta_frame_sectors(w->payload.n) * META_SECTOR;
	buf_clear(&w->sectors);
	uint8_t *to = buf_room(&w->sectors, n);
	if (!to)
		return ERR_NO_MEMORY;
	w->chain = meta_frame_encode(w->store, w->sector, &f, buf_bytes(&w->payload), to);
	enum err e = w->fs->ops->write(w->file, to, n, w->sector * META_SECTOR);
	w->sector += n / META_SECTOR;
	w->number++;
	w->records += w->n;
	w->n = 0;
	w->unsynced += n;
	buf_clear(&w->payload);
	if (e == ERR_NONE && w->unsynced >= SNAP_SYNC) {
		e = w->fs->ops->sync(w->file);
		w->unsynced = 0;
	}
	return e;
}

static enum err snap_emit(void *arg, uint64_t seq, const struct meta_rec *rec)
{
	struct snap_writer *w = arg;
	buf_clear(&w->body);
	meta_rec_encode(&w->body, rec);
	meta_payload_add(&w->payload, seq, rec->type, buf_bytes(&w->body));
	w->n++;
	if (buf_err(&w->body) != ERR_NONE || buf_err(&w->payload) != ERR_NONE)
		return ERR_NO_MEMORY;
	return w->payload.n >= SNAP_PAYLOAD ? snap_flush(w, 0) : ERR_NONE;
}

static enum err snap_fill(struct snap_writer *w, const struct meta_state *st,
			  const struct meta_head *head)
{
	uint8_t first[META_SECTOR];
	meta_head_encode(head, first);
	enum err e = w->fs->ops->write(w->file, first, sizeof(first), 0);
	if (e == ERR_NONE)
		e = meta_state_dump(st, snap_emit, w);
	if (e == ERR_NONE)
		e = snap_flush(w, META_FRAME_END);
	if (e == ERR_NONE)
		e = w->fs->ops->sync(w->file);
	return e;
}

static enum err snap_make(struct meta_fs *fs, const char *name, const struct meta_state *st,
			  const struct meta_head *head, uint64_t *bytes)
{
	struct snap_writer w = { .fs = fs,
				 .store = head->store,
				 .sector = 1,
				 .chain = head->chain,
				 .payload = BUF_INIT(META_PAYLOAD_MAX),
				 .sectors = BUF_INIT(2 * META_PAYLOAD_MAX),
				 .body = BUF_INIT(META_PAYLOAD_MAX) };
	enum err e = fs->ops->open(fs, name, true, &w.file);
	if (e != ERR_NONE)
		return e;
	e = snap_fill(&w, st, head);
	*bytes = w.sector * META_SECTOR;
	meta_file_close(w.file);
	buf_fini(&w.payload);
	buf_fini(&w.sectors);
	buf_fini(&w.body);
	return e;
}

enum err snapshot_write(struct meta_fs *fs, const char *name, const struct meta_state *st,
			const struct meta_head *head, uint64_t *bytes, struct why *why)
{
	char to[META_NAME_BYTES], tmp[META_NAME_BYTES];
	meta_name(to, name, ".snap");
	meta_name(tmp, name, ".snap.new");
	enum err e = fs->ops->unlink(fs, tmp);
	if (e == ERR_NONE || e == ERR_NOT_FOUND)
		e = snap_make(fs, tmp, st, head, bytes);
	if (e == ERR_NONE)
		e = fs->ops->rename(fs, tmp, to);
	if (e == ERR_NONE)
		e = fs->ops->sync_dir(fs);
	if (e == ERR_NONE)
		return e;
	(void)!fs->ops->unlink(fs, tmp);
	return why_set(why, e, "cannot write %s/%s: %s", fs->where, to, err_text(e));
}
