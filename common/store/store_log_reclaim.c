/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room comes back by whole segments: one whose records are all dead goes at once; one mostly dead is moved together
 * (compaction); else the first or the least recently used one is evicted, after its user was asked.
 *
 * What stays of a segment, and delete records that still name something, are written anew and synced before
 * its name goes (G2), its name is durably gone before anything rests on that (G5).
 */
#include "store/store_log.h"

#include <inttypes.h>
#include <string.h>

#include "base/sum.h"

/* ---- choosing ---- */

static bool del_needed(struct log_be *lg, const struct log_seg *s, struct logrec_place p)
{
	return p.serial != s->serial && log_seg_find(lg, p.serial) != NULL;
}

/* What a removal would have to write anew, beside records. */
static uint64_t dels_cost(struct log_be *lg, const struct log_seg *s)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < s->n_dels; i++)
		n += del_needed(lg, s, s->dels[i]);
	return n * LOGREC_DEL_BYTES;
}

struct choice {
	struct log_seg *seg;
	bool compaction; /* keep all */
};

/* A part, in quarters, of what it takes is all that moving it together would leave. */
static bool worth_moving(struct log_be *lg, const struct log_seg *s, unsigned quarters)
{
	uint64_t most = s->real / 4 * quarters;
	return s->live_bytes <= most && s->live_bytes + dels_cost(lg, s) <= most;
}

static struct choice choose(struct log_be *lg, bool need)
{
	struct choice c = { 0 };
	struct log_seg *victim = NULL;
	list_for_each (it, &lg->segs) {
		struct log_seg *s = list_entry(it, struct log_seg, node);
		if (s->state == SEG_ACTIVE)
			continue;
		if (s->state == SEG_ZOMBIE)
			return (struct choice){ .seg = s };
		/* a move that found no room leaves evictions only, until something is won */
		bool movable =
			!s->sick && (!lg->no_moves || s->live_bytes + dels_cost(lg, s) == 0);
		if (movable && worth_moving(lg, s, need ? 2 : 1) &&
		    (!c.seg || s->live_bytes < c.seg->live_bytes))
			c = (struct choice){ .seg = s, .compaction = true };
		bool better =
			!victim || (lg->order == STORE_LRU && s->used_tick < victim->used_tick);
		if (s->n_live > 0 && better)
			victim = s;
	}
	if (c.seg || !need || lg->order == STORE_EVICT_NONE)
		return c;
	return (struct choice){ .seg = victim };
}

static enum err list_items(struct log_seg *s, struct store_eviction **out)
{
	size_t names = 0;
	list_for_each (it, &s->entries) {
		const struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		names += (size_t)e->tenant_n + e->key_n;
	}
	struct store_eviction *ev = blk_eviction_new((uint32_t)s->n_live, names);
	if (!ev)
		return ERR_NO_MEMORY;
	list_for_each (it, &s->entries) {
		const struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		struct store_id id = ix_id(e);
		blk_eviction_add(ev, &id, e->size);
	}
	*out = ev;
	return ERR_NONE;
}

enum err log_pick(struct store_blk *b, struct blk_lane *lane, bool starved,
		  struct store_eviction **out)
{
	struct log_be *lg = log_of(b);
	enum err e = ERR_NONE;
	*out = NULL;
	lg->out.lane = lane;
	if (log_may_write(lg)) { /* G3, before somebody waits for it */
		e = log_write_kills(lg);
		(void)log_commit(lg);
		if (e != ERR_BUSY && e != ERR_NO_SPACE && e != ERR_NONE)
			return e;
		e = ERR_NONE;
	}
	pthread_mutex_lock(&lg->lock);
	log_look(lg);
	struct choice c = choose(lg, starved || lg->draining);
	if (c.seg && (c.compaction || c.seg->n_live == 0))
		*out = blk_eviction_new(0, 0);
	else if (c.seg)
		e = list_items(c.seg, out);
	if (c.seg && !*out)
		e = ERR_NO_MEMORY;
	if (*out) {
		(*out)->what = c.seg->serial;
		(*out)->compaction = c.compaction;
	}
	pthread_mutex_unlock(&lg->lock);
	return e;
}

/* ---- moving ---- */

/* One block of a record of s into the stream, verified. */
static enum err move_block(struct log_be *lg, struct log_seg *s, uint64_t off, uint32_t len,
			   uint64_t want)
{
	struct log_out *o = &lg->out;
	uint32_t padded = (uint32_t)logrec_round(len);
	uint8_t *p = log_out_place(o, padded);
	struct disk_req q = { .file = s->file, .p = p, .n = padded, .off = off };
	disk_submit(o->lane->io, &q);
	disk_reap(o->lane->io, 0);
	if (q.err)
		return ERR_IO;
	if (q.got < len || sum64(p, len) != want)
		return ERR_CORRUPT;
	log_out_advance(o, len);
	return ERR_NONE;
}

static enum err move_value(struct log_be *lg, struct log_seg *s, const struct ix_entry *e)
{
	uint64_t off = e->off + LOGREC_BLOCK;
	for (uint64_t at = 0, i = 0; at < e->size; at += SUM_BLOCK_BYTES, i++) {
		uint32_t len = (uint32_t)MIN_OF(e->size - at, (uint64_t)SUM_BLOCK_BYTES);
		enum err r =
			move_block(lg, s, off + at, len, e->vector ? e->vector[i] : e->sum);
		if (r)
			return r;
	}
	return ERR_NONE;
}

/* e is busy. ERR_CORRUPT: it is out, the move goes on. */
static enum err move_one(struct log_be *lg, struct log_seg *s, struct ix_entry *e)
{
	struct store_id id = ix_id(e);
	const struct logrec_head h = {
		.type = LOGREC_PUT, .id = id, .size = e->size, .sum = e->sum
	};
	enum err r = log_room(lg, logrec_length(e->size), logrec_entry_bytes(&id, e->size),
			      FOR_REST);
	if (r)
		return r;
	struct logrec_place at = log_record_begin(lg, &h);
	r = move_value(lg, s, e);
	if (r) { /* a head without its value: no start will take it */
		log_out_seek(&lg->out, lg->active->end);
		if (r == ERR_CORRUPT)
			log_quarantine(lg, &id, (struct logrec_place){ s->serial, e->off },
				       false);
		return r;
	}
	log_record_end(lg, e->size, e->vector);
	const struct pend p = { .kind = PEND_MOVE, .e = e, .place = at };
	r = log_pend(lg, &p);
	if (r) {
		pthread_mutex_lock(&lg->lock);
		log_kill(lg, at);
		pthread_mutex_unlock(&lg->lock);
	}
	return r;
}

/* All that stays, busy from now on. NULL with *n 0: nothing. */
static enum err take_kept(struct log_be *lg, struct log_seg *s, const struct store_eviction *ev,
			  struct ix_entry ***out, size_t *n)
{
	struct ix_entry **kept = malloc(MAX_OF(s->n_live, (uint64_t)1) * sizeof(*kept));
	*n = 0;
	if (!kept)
		return ERR_NO_MEMORY;
	pthread_mutex_lock(&lg->lock);
	for (uint32_t i = 0; i < ev->n; i++) {
		struct ix_entry *e =
			ev->items[i].keep ? ix_find(&lg->ix, &ev->items[i].id) : NULL;
		if (e && e->where == s)
			e->keep = true;
	}
	list_for_each (it, &s->entries) {
		struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		if (!ev->compaction && !e->keep)
			continue;
		e->keep = false;
		e->busy = true;
		kept[(*n)++] = e;
	}
	pthread_mutex_unlock(&lg->lock);
	*out = kept;
	return ERR_NONE;
}

/* Those that are not pending any more, or never were. */
static void release_kept(struct log_be *lg, struct ix_entry **kept, size_t n)
{
	pthread_mutex_lock(&lg->lock);
	for (size_t i = 0; i < n; i++) {
		if (!kept[i])
			continue;
		kept[i]->busy = false;
		if (kept[i]->gone)
			log_drop(lg, kept[i]);
	}
	pthread_mutex_unlock(&lg->lock);
}

/* Pending entries are the commit's from here on. */
static enum err move_kept(struct log_be *lg, struct log_seg *s, struct ix_entry **kept,
			  size_t n)
{
	for (size_t i = 0; i < n; i++) {
		enum err r = kept[i]->gone ? ERR_CORRUPT : move_one(lg, s, kept[i]);
		if (r == ERR_CORRUPT)
			continue; /* released below */
		if (r)
			return r;
		kept[i] = NULL;
	}
	return ERR_NONE;
}

static enum err carry_dels(struct log_be *lg, const struct log_seg *s)
{
	struct logrec_place some[LOGREC_DELS];
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_dels; i++) {
		if (del_needed(lg, s, s->dels[i]))
			some[n++] = s->dels[i];
		if (n == LOGREC_DELS || (n > 0 && i + 1 == s->n_dels)) {
			enum err e = log_write_dels(lg, some, n);
			if (e)
				return e;
			n = 0;
		}
	}
	return ERR_NONE;
}

/* ---- removing ---- */

/* Off the table: nothing rests on it any more. */
static void forget_seg(struct log_be *lg, struct log_seg *s)
{
	pthread_mutex_lock(&lg->lock);
	lg->used -= s->real;
	list_del(&s->node);
	/* kills in it are dead with it */
	for (uint32_t i = 0; i < lg->n_kills;)
		if (lg->kills[i].serial == s->serial)
			lg->kills[i] = lg->kills[--lg->n_kills];
		else
			i++;
	s->doomed = true;
	bool last = s->pins == 0;
	pthread_mutex_unlock(&lg->lock);
	if (last)
		log_seg_free(s); /* else the last reader does (G5) */
}

static void drop_entries(struct log_be *lg, struct log_seg *s, bool evicted)
{
	pthread_mutex_lock(&lg->lock);
	list_for_each_safe (it, &s->entries) {
		struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		if (evicted) {
			lg->n.evicted++;
			lg->n.evicted_bytes += e->size;
		}
		log_drop(lg, e);
	}
	pthread_mutex_unlock(&lg->lock);
}

/*
 * Entries go between unlink and the folder's sync: before, and a failed unlink would leave what its user
 * has written off; after, and a get could find what a power cut takes.
 */
enum err log_remove_seg(struct log_be *lg, struct log_seg *s)
{
	char name[LOG_SEG_NAME_MAX];
	log_seg_name(s->serial, name);
	if (s->state != SEG_ZOMBIE) {
		enum err e = lg->fs->ops->unlink(lg->fs, name);
		if (e != ERR_NONE && e != ERR_NOT_FOUND)
			return e;
		pthread_mutex_lock(&lg->lock);
		s->state = SEG_ZOMBIE;
		pthread_mutex_unlock(&lg->lock);
	}
	drop_entries(lg, s, true);
	enum err e =
		lg->fsync == STORE_FSYNC_NEVER ? ERR_NONE : lg->fs->ops->sync_dir(lg->fs, "");
	if (e == ERR_NONE)
		forget_seg(lg, s);
	return e;
}

/* What is kept is elsewhere, durably, when this says ERR_NONE. */
static enum err save_rest(struct log_be *lg, struct log_seg *s, const struct store_eviction *ev)
{
	struct ix_entry **kept;
	size_t n;
	uint64_t bad = lg->n.bad_files;
	enum err e = take_kept(lg, s, ev, &kept, &n);
	if (e)
		return e;
	e = move_kept(lg, s, kept, n);
	if (e == ERR_NONE)
		e = carry_dels(lg, s);
	enum err c = log_commit(lg);
	release_kept(lg, kept, n);
	free(kept);
	if (e)
		return e;
	return c || lg->n.bad_files != bad ? ERR_IO : ERR_NONE;
}

enum err log_reclaim(struct store_blk *b, struct blk_lane *lane, struct store_eviction *ev)
{
	struct log_be *lg = log_of(b);
	lg->out.lane = lane;
	pthread_mutex_lock(&lg->lock);
	struct log_seg *s = log_seg_find(lg, ev->what);
	bool broken = lg->broken;
	pthread_mutex_unlock(&lg->lock);
	enum err e = !s || s->state == SEG_ACTIVE ? ERR_NONE : broken ? ERR_IO : ERR_NONE;
	if (!s || s->state == SEG_ACTIVE || e)
		return e;
	if (s->state != SEG_ZOMBIE)
		e = save_rest(lg, s, ev);
	if (e == ERR_NONE)
		e = log_remove_seg(lg, s);
	pthread_mutex_lock(&lg->lock);
	if (e == ERR_NONE && ev->compaction)
		lg->n.compactions++;
	for (uint32_t i = 0; i < ev->n; i++)
		ev->items[i].gone = e == ERR_NONE && !ev->items[i].keep;
	lg->no_moves = e == ERR_BUSY || e == ERR_NO_SPACE;
	log_look(lg);
	pthread_mutex_unlock(&lg->lock);
	return e;
}
