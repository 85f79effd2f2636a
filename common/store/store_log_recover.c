/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start: segments from the youngest to the oldest, so that a delete record is met before what it kills
 * and of two records of one id the younger first. Sealed segments tell by their footer. Others (the tail after a crash, a
 * damaged footer) by their records: every head is checked, every value hashed, since what was not acknowledged may
 * be torn; behind a damaged head the search goes on block by block (R1 of logrec.h). What was read so
 * gets its footer now.
 */
#include "store/store_log.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/crc.h"
#include "base/sum.h"

#define WINDOW	   (1u << 20)
#define ERRORS_MAX 64u /* unreadable blocks after which a segment is read no further */

/* ---- places that delete records name ---- */

struct places {
	struct logrec_place *slots; /* serial 0: empty */
	size_t n, cap;		    /* a power of two */
};

static size_t place_slot(const struct places *t, struct logrec_place p)
{
	size_t i = sum64(&p, sizeof(p)) & (t->cap - 1);
	while (t->slots[i].serial &&
	       !(t->slots[i].serial == p.serial && t->slots[i].off == p.off))
		i = (i + 1) & (t->cap - 1);
	return i;
}

static bool places_has(const struct places *t, struct logrec_place p)
{
	return t->cap > 0 && t->slots[place_slot(t, p)].serial != 0;
}

static enum err places_grow(struct places *t)
{
	struct places more = { .cap = MAX_OF(t->cap * 2, (size_t)1024) };
	more.slots = calloc(more.cap, sizeof(*more.slots));
	if (!more.slots)
		return ERR_NO_MEMORY;
	for (size_t i = 0; i < t->cap; i++)
		if (t->slots[i].serial)
			more.slots[place_slot(&more, t->slots[i])] = t->slots[i];
	more.n = t->n;
	free(t->slots);
	*t = more;
	return ERR_NONE;
}

static enum err places_add(struct places *t, struct logrec_place p)
{
	if (t->n * 2 >= t->cap) {
		enum err e = places_grow(t);
		if (e)
			return e;
	}
	t->slots[place_slot(t, p)] = p;
	t->n++;
	return ERR_NONE;
}

/* ---- one start ---- */

struct start {
	struct log_be *lg;
	struct blk_lane *lane;
	struct places dead;
	uint64_t *serials;
	size_t n_serials, cap_serials;
	enum err err;
	/* the window over a segment that is read by its records */
	struct log_seg *seg;
	uint64_t size, win_off;
	uint32_t win_n;
	unsigned errors;
};

static void note_name(void *arg, const char *name, bool is_dir)
{
	struct start *st = arg;
	char again[LOG_SEG_NAME_MAX];
	uint64_t serial = 0;
	int n = 0;
	if (strcmp(name, BLK_MARKER_NAME) == 0 || strcmp(name, BLK_LOCK_NAME) == 0 ||
	    strcmp(name, BLK_MARKER_NAME ".tmp") == 0 || st->err)
		return;
	if (sscanf(name, "seg-%16" SCNx64 "%n", &serial, &n) == 1 && serial > 0 && !is_dir)
		log_seg_name(serial, again);
	if (n == 0 || serial == 0 || is_dir || strcmp(again, name) != 0) {
		st->lg->n.unknown++;
		return;
	}
	if (st->n_serials == st->cap_serials) {
		size_t cap = MAX_OF(2 * st->cap_serials, (size_t)64);
		uint64_t *more = realloc(st->serials, cap * sizeof(*more));
		if (!more) {
			st->err = ERR_NO_MEMORY;
			return;
		}
		st->serials = more;
		st->cap_serials = cap;
	}
	st->serials[st->n_serials++] = serial;
}

static int youngest_first(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x < y) - (x > y);
}

/* ---- what a segment tells ---- */

static enum err take_del(struct start *st, struct log_seg *s, struct logrec_place p)
{
	if (p.serial == 0 || places_has(&st->dead, p))
		return ERR_NONE; /* told twice */
	enum err e = places_add(&st->dead, p);
	if (e)
		return e;
	if (s->n_dels == s->cap_dels) {
		uint32_t cap = MAX_OF(2 * s->cap_dels, 64u);
		struct logrec_place *more = realloc(s->dels, cap * sizeof(*more));
		if (!more)
			return ERR_NO_MEMORY;
		s->dels = more;
		s->cap_dels = cap;
	}
	s->dels[s->n_dels++] = p;
	return ERR_NONE;
}

static enum err take_put(struct start *st, struct log_seg *s, const struct store_id *id,
			 uint64_t off, uint64_t size, uint64_t sum, const uint64_t *vector)
{
	struct log_be *lg = st->lg;
	struct logrec_place at = { s->serial, off };
	s->footer_bytes += logrec_entry_bytes(id, size);
	if (places_has(&st->dead, at))
		return ERR_NONE;
	if (ix_find(&lg->ix, id)) { /* a younger twin (an unfinished move): this one goes */
		log_kill(lg, at);
		return ERR_NONE;
	}
	struct ix_entry *e = ix_entry_new(id, size, sum, vector);
	if (!e)
		return ERR_NO_MEMORY;
	enum err r = ix_add(&lg->ix, e);
	if (r) {
		ix_entry_free(e);
		return r;
	}
	e->where = s;
	e->off = off;
	/* oldest first, as they were put */
	list_push_back(&s->entries, &e->in_where);
	s->live_bytes += logrec_length(size);
	s->n_live++;
	return ERR_NONE;
}

/* ---- by footer ---- */

static enum err vector_of(const struct logrec_entry *e, uint64_t **out)
{
	size_t n = sum_n_blocks(e->size);
	*out = NULL;
	if (n == 0)
		return ERR_NONE;
	uint64_t *v = malloc(n * sizeof(*v));
	if (!v)
		return ERR_NO_MEMORY;
	memcpy(v, e->vector, n * sizeof(*v));
	for (size_t i = 0; i < n; i++)
		v[i] = le64toh(v[i]);
	*out = v;
	return ERR_NONE;
}

/* Entries of one type; ERR_CORRUPT before anything was taken when the bytes make no sense. */
static enum err take_entries(struct start *st, struct log_seg *s, struct bytes footer,
			     enum logrec_type type)
{
	struct logrec_entry e;
	size_t at = 0;
	bool bad = false;
	enum err r = ERR_NONE;
	while (r == ERR_NONE && logrec_entry_get(footer, &at, s->end, &e, &bad)) {
		uint64_t *vector = NULL;
		if (e.type != type)
			continue;
		if (type == LOGREC_DEL) {
			r = take_del(st, s, e.del);
			continue;
		}
		r = vector_of(&e, &vector);
		if (r == ERR_NONE)
			r = take_put(st, s, &e.id, e.off, e.size, e.sum, vector);
		free(vector);
	}
	return bad ? ERR_CORRUPT : r;
}

static bool footer_sound(struct bytes footer, uint64_t data_end)
{
	struct logrec_entry e;
	size_t at = 0;
	bool bad = false;
	while (logrec_entry_get(footer, &at, data_end, &e, &bad)) {
		if (e.type != LOGREC_PUT || e.size <= SUM_BLOCK_BYTES)
			continue;
		uint64_t *v;
		if (vector_of(&e, &v))
			return false;
		bad = sum_of_blocks(v, sum_n_blocks(e.size)) != e.sum;
		free(v);
		if (bad)
			return false;
	}
	return !bad;
}

static enum err read_footer(struct start *st, struct log_seg *s, const struct logrec_trailer *t)
{
	size_t n = (size_t)logrec_round(t->footer_len);
	uint8_t *p = aligned_alloc(DISK_ALIGN, MAX_OF(n, (size_t)DISK_ALIGN));
	if (!p)
		return ERR_NO_MEMORY;
	enum err e =
		n ? disk_read(st->lane->io, s->file, p, (uint32_t)n, t->footer_off) : ERR_NONE;
	struct bytes footer = BYTES(p, (size_t)t->footer_len);
	if (e == ERR_NONE &&
	    (crc32c(0, p, footer.n) != t->footer_crc || !footer_sound(footer, t->footer_off)))
		e = ERR_CORRUPT;
	if (e == ERR_NONE) {
		s->end = t->footer_off;
		e = take_entries(st, s, footer, LOGREC_DEL);
	}
	if (e == ERR_NONE)
		e = take_entries(st, s, footer, LOGREC_PUT);
	free(p);
	return e;
}

/* ---- by records ---- */

/* n bytes at off, or NULL: unreadable, or past the end. */
static uint8_t *window(struct start *st, uint64_t off, uint32_t n)
{
	uint8_t *buf = st->lane->bounce;
	assert(n <= WINDOW && off % DISK_ALIGN == 0);
	if (off >= st->win_off && off + n <= st->win_off + st->win_n)
		return buf + (off - st->win_off);
	if (off + n > st->size)
		return NULL;
	uint32_t want = (uint32_t)MIN_OF((uint64_t)WINDOW, st->size - off);
	st->win_off = off;
	st->win_n = 0;
	enum err e = disk_read(st->lane->io, st->seg->file, buf, want, off);
	if (e && want > n) { /* perhaps only what is behind it cannot be read */
		want = n;
		e = disk_read(st->lane->io, st->seg->file, buf, want, off);
	}
	if (e) {
		st->errors++;
		st->lg->n.io_errors++;
		return NULL;
	}
	st->win_n = want;
	return buf;
}

/* Hashes the value behind a head; its block sums into vector. */
static bool value_whole(struct start *st, uint64_t off, uint64_t size, uint64_t sum,
			uint64_t *vector)
{
	uint64_t left = size, at = off + LOGREC_BLOCK, i = 0;
	if (size == 0)
		return sum64("", 0) == sum;
	for (; left > 0; i++) {
		uint32_t len = (uint32_t)MIN_OF(left, (uint64_t)SUM_BLOCK_BYTES);
		const uint8_t *p = window(st, at, (uint32_t)logrec_round(len));
		if (!p)
			return false;
		uint64_t got = sum64(p, len);
		if (!vector) /* one block is all of it */
			return got == sum;
		vector[i] = got;
		at += len;
		left -= len;
	}
	return sum_of_blocks(vector, i) == sum;
}

static enum err take_put_record(struct start *st, struct log_seg *s, uint64_t off,
				const struct logrec_head *h)
{
	uint8_t names[64 + OBJ_KEY_MAX]; /* the window moves on */
	struct store_id id = h->id;
	memcpy(names, id.tenant.p, id.tenant.n);
	memcpy(names + id.tenant.n, id.key.p, id.key.n);
	id.tenant.p = names;
	id.key.p = names + id.tenant.n;
	size_t n = sum_n_blocks(h->size);
	uint64_t *vector = n ? malloc(n * sizeof(*vector)) : NULL;
	if (n && !vector)
		return ERR_NO_MEMORY;
	enum err e = ERR_NONE;
	/* torn, or never acknowledged, or damaged: it is not there */
	if (value_whole(st, off, h->size, h->sum, vector))
		e = take_put(st, s, &id, off, h->size, h->sum, vector);
	free(vector);
	return e;
}

/* A whole walk for records of one type: deletes must be known before what they kill. */
static enum err walk(struct start *st, struct log_seg *s, enum logrec_type type)
{
	uint64_t off = LOGREC_BLOCK;
	enum err e = ERR_NONE;
	while (e == ERR_NONE && off + LOGREC_BLOCK <= st->size && st->errors < ERRORS_MAX) {
		struct logrec_head h;
		const uint8_t *block = window(st, off, LOGREC_BLOCK);
		struct logrec_place at = { s->serial, off };
		if (!block || logrec_head_get(block, s->salt, at, &h) ||
		    h.length > st->size - off) {
			off += LOGREC_BLOCK;
			continue;
		}
		for (uint32_t i = 0; e == ERR_NONE && h.type == type && i < h.n_dels; i++)
			e = take_del(st, s, logrec_del(block, i));
		if (h.type == type && type == LOGREC_PUT)
			e = take_put_record(st, s, off, &h);
		off += h.length;
		s->end = MAX_OF(s->end, off);
	}
	return e;
}

static enum err read_records(struct start *st, struct log_seg *s, uint64_t size)
{
	st->seg = s;
	st->size = size;
	st->win_n = 0;
	st->errors = 0;
	st->lg->n.rebuilt_from_records++;
	/* what the medium has, not what a cache has of a write that failed */
	(void)st->lg->fs->ops->sync(s->file);
	st->lg->fs->ops->forget(s->file);
	enum err e = walk(st, s, LOGREC_DEL);
	if (e == ERR_NONE)
		e = walk(st, s, LOGREC_PUT);
	s->sick = st->errors > 0;
	return e;
}

/* ---- one segment ---- */

static bool all_zero(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

/* The salt where the first block is damaged: from the trailer, or from the first record's head. */
static bool salt_from_elsewhere(const uint8_t *first_head, bool have_trailer,
				const struct logrec_trailer *t, uint64_t serial, uint64_t *salt)
{
	struct logrec_head h;
	struct logrec_place at = { serial, LOGREC_BLOCK };
	if (have_trailer && t->serial == serial) {
		*salt = t->salt;
		return true;
	}
	uint64_t claimed;
	memcpy(&claimed, first_head + 16, sizeof(claimed));
	claimed = le64toh(claimed);
	if (logrec_head_get(first_head, claimed, at, &h))
		return false;
	*salt = claimed;
	return true;
}

enum look { LOOK_OURS, LOOK_EMPTY, LOOK_FOREIGN, LOOK_UNREADABLE };

/* Whose is it, and what is its salt? */
static enum look look_at(struct start *st, struct log_seg *s, uint64_t size, bool have_trailer,
			 const struct logrec_trailer *t)
{
	struct logrec_seg h;
	uint8_t *two = st->lane->bounce;
	if (size < LOGREC_BLOCK)
		return size == 0 ? LOOK_EMPTY : LOOK_FOREIGN;
	uint32_t n = size < 2 * LOGREC_BLOCK ? LOGREC_BLOCK : 2 * LOGREC_BLOCK;
	memset(two, 0, 2 * LOGREC_BLOCK);
	if (disk_read(st->lane->io, s->file, two, n, 0)) {
		st->lg->n.io_errors++;
		s->salt = have_trailer ? t->salt : 0;
		return have_trailer && t->serial == s->serial ? LOOK_OURS : LOOK_UNREADABLE;
	}
	if (logrec_seg_get(two, &h) == ERR_NONE) {
		s->salt = h.salt;
		return h.serial == s->serial && strcmp(h.owner, st->lg->blk.owner) == 0
			       ? LOOK_OURS
			       : LOOK_FOREIGN;
	}
	if (salt_from_elsewhere(two + LOGREC_BLOCK, have_trailer, t, s->serial, &s->salt))
		return LOOK_OURS;
	/* its making did not get to the first sync: nothing in it was ever acknowledged */
	return all_zero(two, 2 * LOGREC_BLOCK) && !have_trailer ? LOOK_EMPTY : LOOK_FOREIGN;
}

static enum err take_seg(struct start *st, struct log_seg *s, uint64_t size,
			 const struct logrec_trailer *t)
{
	enum err e = ERR_CORRUPT;
	if (t && t->serial == s->serial && t->salt == s->salt)
		e = read_footer(st, s, t);
	s->state = SEG_SEALED;
	if (e != ERR_CORRUPT && e != ERR_IO)
		return e;
	s->end = LOGREC_BLOCK;
	e = read_records(st, s, size);
	s->state = SEG_ACTIVE; /* until it has its footer */
	return e;
}

static bool read_trailer(struct start *st, struct log_seg *s, uint64_t size,
			 struct logrec_trailer *t)
{
	uint8_t *block = st->lane->bounce;
	if (size < 2 * LOGREC_BLOCK || size % LOGREC_BLOCK != 0)
		return false;
	return disk_read(st->lane->io, s->file, block, LOGREC_BLOCK, size - LOGREC_BLOCK) ==
		       ERR_NONE &&
	       logrec_trailer_get(block, size, t) == ERR_NONE;
}

static enum err open_seg(struct start *st, uint64_t serial)
{
	struct log_be *lg = st->lg;
	struct disk_stat ds;
	struct logrec_trailer t;
	char name[LOG_SEG_NAME_MAX];
	struct log_seg *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->serial = serial;
	s->end = LOGREC_BLOCK;
	list_init(&s->entries);
	log_seg_name(serial, name);
	enum err e = lg->fs->ops->open(lg->fs, name, lg->direct ? DISK_DIRECT : 0, &s->file);
	if (e == ERR_NONE)
		e = lg->fs->ops->stat(s->file, &ds);
	if (e) {
		log_seg_free(s);
		return e;
	}
	uint64_t size = ds.size & ~(uint64_t)(LOGREC_BLOCK - 1);
	bool have_trailer = read_trailer(st, s, ds.size, &t);
	switch (look_at(st, s, size, have_trailer, &t)) {
	case LOOK_FOREIGN:
		lg->n.unknown++;
		lg->foreign += ds.real;
		log_seg_free(s);
		LOG_WARN(lg->log, "disk", "unknown=1 file=%s", name);
		return ERR_NONE;
	case LOOK_EMPTY:
		log_seg_free(s);
		return lg->fs->ops->unlink(lg->fs, name);
	case LOOK_UNREADABLE: /* deletes may stand in it: without them others would come back */
		log_seg_free(s);
		return ERR_IO;
	case LOOK_OURS:
		break;
	}
	list_push_front(&lg->segs, &s->node); /* youngest came first */
	s->real = ds.real;
	s->room = ds.size;
	lg->used += ds.real;
	return take_seg(st, s, size, have_trailer ? &t : NULL);
}

/* ---- after all were read ---- */

/* What was read by its records gets its footer, and is synced by that. */
static void seal_read(struct log_be *lg, struct blk_lane *lane, struct log_seg *s)
{
	enum err e = log_write_footer(lg, lane, s);
	s->state = e ? SEG_BAD : SEG_SEALED;
	if (e) {
		lg->n.bad_files++;
		LOG_ERROR(lg->log, "disk", "bad_segment=%016" PRIx64 " err=%s", s->serial,
			  err_name(e));
	}
	log_seg_count(lg, s);
}

static void finish_segs(struct start *st)
{
	struct log_be *lg = st->lg;
	list_for_each_safe (it, &lg->segs) {
		struct log_seg *s = list_entry(it, struct log_seg, node);
		if (s->state != SEG_ACTIVE)
			continue;
		if (s->sick) { /* what could not be read now may be read another day */
			s->state = SEG_BAD;
			lg->n.bad_files++;
			continue;
		}
		if (s->n_live > 0 || s->n_dels > 0) {
			seal_read(lg, st->lane, s);
			continue;
		}
		s->state = SEG_SEALED;
		(void)log_remove_seg(lg, s);
	}
}

enum err log_recover(struct log_be *lg, struct blk_lane *lane, struct why *w)
{
	struct start st = { .lg = lg, .lane = lane };
	/* what is seen now stays */
	enum err e = lg->fs->ops->sync_dir(lg->fs, "");
	if (e == ERR_NONE)
		e = lg->fs->ops->list(lg->fs, "", note_name, &st);
	if (e == ERR_NONE)
		e = st.err;
	if (e)
		why_note(w, e, "disk tier: cannot read the folder %s: %s", lg->fs->where,
			 err_text(e));
	if (st.n_serials > 0) {
		qsort(st.serials, st.n_serials, sizeof(*st.serials), youngest_first);
		lg->next_serial = st.serials[0] + 1;
	}
	for (size_t i = 0; e == ERR_NONE && i < st.n_serials; i++) {
		e = open_seg(&st, st.serials[i]);
		if (e)
			why_note(w, e,
				 "disk tier: cannot read seg-%016" PRIx64
				 ".log in %s: %s; try again, or move that file away to go on "
				 "without its objects",
				 st.serials[i], lg->fs->where, err_text(e));
	}
	if (e == ERR_NONE)
		finish_segs(&st);
	free(st.serials);
	free(st.dead.slots);
	return e;
}
