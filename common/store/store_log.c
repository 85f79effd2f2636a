/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/sum.h"

#define GET_CHUNK 64u
#define SEG_BYTES (256ull << 20)

void log_seg_name(uint64_t serial, char name[LOG_SEG_NAME_MAX])
{
	snprintf(name, LOG_SEG_NAME_MAX, "seg-%016" PRIx64 ".log", serial);
}

struct log_seg *log_seg_find(struct log_be *lg, uint64_t serial)
{
	/* deletes are of young objects mostly: from the youngest on */
	for (struct list *n = lg->segs.prev; n != &lg->segs; n = n->prev) {
		struct log_seg *s = list_entry(n, struct log_seg, node);
		if (s->serial == serial)
			return s;
		if (s->serial < serial)
			return NULL;
	}
	return NULL;
}

void log_seg_free(struct log_seg *s)
{
	if (!s)
		return;
	disk_close(s->file);
	free(s->dels);
	free(s);
}

void log_seg_count(struct log_be *lg, struct log_seg *s)
{
	struct disk_stat st;
	if (lg->fs->ops->stat(s->file, &st))
		return;
	lg->used += st.real - s->real;
	s->real = st.real;
}

void log_drop(struct log_be *lg, struct ix_entry *e)
{
	struct log_seg *s = e->where;
	assert(!e->busy);
	if (!e->hidden) {
		s->live_bytes -= logrec_length(e->size);
		s->n_live--;
	}
	ix_drop(&lg->ix, e);
}

void log_break(struct log_be *lg, const char *what, enum err e)
{
	if (lg->broken)
		return;
	lg->broken = true;
	snprintf(lg->broken_why, sizeof(lg->broken_why), "%s: %s", what, err_name(e));
	LOG_ERROR(lg->log, "disk", "broken=1 what=\"%s\" err=%s", what, err_name(e));
}

void log_kill(struct log_be *lg, struct logrec_place p)
{
	if (lg->n_kills == lg->cap_kills) {
		uint32_t cap = MAX_OF(2 * lg->cap_kills, 64u);
		struct logrec_place *more = realloc(lg->kills, cap * sizeof(*more));
		if (!more) { /* G3 could not be kept */
			log_break(lg, "no memory left for the list of dead records",
				  ERR_NO_MEMORY);
			return;
		}
		lg->kills = more;
		lg->cap_kills = cap;
	}
	lg->kills[lg->n_kills++] = p;
}

static uint64_t percent(uint64_t of, uint32_t pct)
{
	return of / 100 * pct + of % 100 * pct / 100;
}

void log_look(struct log_be *lg)
{
	uint64_t n = lg->ix.map.n;
	bool above = lg->used > percent(lg->limit, lg->high_pct) ||
		     n > percent(lg->limit_objects, lg->high_pct);
	bool below = lg->used <= percent(lg->limit, lg->low_pct) &&
		     n <= percent(lg->limit_objects, lg->low_pct);
	lg->draining = above || (lg->draining && !below);
	bool tidy = lg->n_kills > 0;
	list_for_each (it, &lg->segs) {
		struct log_seg *s = list_entry(it, struct log_seg, node);
		tidy = tidy || s->state == SEG_ZOMBIE ||
		       (s->state != SEG_ACTIVE && !s->sick && s->live_bytes <= s->real / 4);
	}
	lg->tidy = tidy;
}

void log_quarantine(struct log_be *lg, const struct store_id *id, struct logrec_place at,
		    bool lost)
{
	pthread_mutex_lock(&lg->lock);
	struct ix_entry *e = ix_find(&lg->ix, id);
	struct log_seg *s = e ? e->where : NULL;
	if (!ix_visible(e) || s->serial != at.serial || e->off != at.off) {
		pthread_mutex_unlock(&lg->lock); /* somebody was here before */
		return;
	}
	if (lost)
		lg->n.lost++;
	else
		lg->n.corrupt++;
	if (!lost)
		lg->n.bytes_quarantined += logrec_length(e->size);
	log_kill(lg, at);
	if (e->busy)
		e->gone = true; /* G6 */
	else
		log_drop(lg, e);
	lg->tidy = true;
	pthread_mutex_unlock(&lg->lock);
	LOG_ERROR(lg->log, "disk", "%s=1 seg=%016" PRIx64 " off=%" PRIu64 " key_n=%zu",
		  lost ? "lost" : "corrupt", at.serial, at.off, id->key.n);
}

/* ---- get ---- */

struct got {
	struct log_seg *seg;
	struct logrec_place at;
	uint64_t *vector; /* a copy: the entry may go meanwhile */
};

static enum err copy_vector(const struct ix_entry *e, uint64_t **out)
{
	size_t n = sum_n_blocks(e->size) * sizeof(uint64_t);
	if (n == 0)
		return ERR_NONE;
	*out = malloc(n);
	if (!*out)
		return ERR_NO_MEMORY;
	memcpy(*out, e->vector, n);
	return ERR_NONE;
}

/* Under the lock: finds and pins. */
static enum err find_one(struct log_be *lg, struct store_get_item *it, struct got *g,
			 struct blk_value *v)
{
	if (!store_id_valid(&it->id))
		return ERR_INVALID_PARAMS;
	struct ix_entry *e = ix_find(&lg->ix, &it->id);
	if (!ix_visible(e))
		return ERR_NOT_FOUND;
	enum err r = copy_vector(e, &g->vector);
	if (r)
		return r;
	g->seg = e->where;
	g->seg->pins++;
	g->seg->used_tick = ++lg->tick;
	g->at = (struct logrec_place){ g->seg->serial, e->off };
	*v = (struct blk_value){ .file = g->seg->file,
				 .off = e->off + LOGREC_BLOCK,
				 .size = e->size,
				 .sum = e->sum,
				 .vector = g->vector };
	return ERR_NONE;
}

/* Its file's name is gone: so are its objects, at the next start if not now (case 23). */
static bool is_lost(struct log_be *lg, const struct log_seg *s)
{
	struct disk_stat st;
	return lg->fs->ops->stat(s->file, &st) == ERR_NONE && st.links == 0;
}

/* False: its name went by our own hand; who still reads it may go on. */
static bool mark_lost(struct log_be *lg, struct log_seg *s)
{
	pthread_mutex_lock(&lg->lock);
	if (s->doomed || s->lost || s->state == SEG_ZOMBIE) {
		bool lost = s->lost;
		pthread_mutex_unlock(&lg->lock);
		return lost;
	}
	uint64_t n = 0;
	s->lost = true;
	list_for_each_safe (it, &s->entries) {
		struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		if (!ix_visible(e))
			continue;
		n++;
		if (e->busy)
			e->gone = true;
		else
			log_drop(lg, e);
	}
	lg->n.lost += n;
	lg->tidy = true;
	pthread_mutex_unlock(&lg->lock);
	LOG_ERROR(lg->log, "disk", "lost=%" PRIu64 " seg=%016" PRIx64 " why=\"file removed\"",
		  n, s->serial);
	return true;
}

static void unpin(struct log_be *lg, struct got *g)
{
	free(g->vector);
	if (!g->seg)
		return;
	pthread_mutex_lock(&lg->lock);
	struct log_seg *s = --g->seg->pins == 0 && g->seg->doomed ? g->seg : NULL;
	pthread_mutex_unlock(&lg->lock);
	log_seg_free(s); /* G5 */
}

static void settle(struct log_be *lg, struct store_get_item *it, const struct got *g)
{
	if (it->err == ERR_CORRUPT)
		log_quarantine(lg, &it->id, g->at, false);
	pthread_mutex_lock(&lg->lock);
	if (it->err == ERR_IO)
		lg->n.io_errors++;
	if (it->err == ERR_NONE) {
		lg->n.gets++;
		lg->n.bytes_got += it->got;
	}
	pthread_mutex_unlock(&lg->lock);
}

static void get_some(struct log_be *lg, struct blk_lane *lane, struct store_get_item *items,
		     uint32_t n)
{
	struct got g[GET_CHUNK] = { 0 };
	struct blk_value v[GET_CHUNK];
	struct store_get_item *its[GET_CHUNK];
	pthread_mutex_lock(&lg->lock);
	for (uint32_t i = 0; i < n; i++) {
		its[i] = &items[i];
		items[i].got = items[i].size = items[i].sum = 0;
		items[i].err = find_one(lg, &items[i], &g[i], &v[i]);
	}
	pthread_mutex_unlock(&lg->lock);
	const struct log_seg *asked = NULL;
	bool lost = false;
	for (uint32_t i = 0; i < n; i++) {
		if (items[i].err)
			continue;
		if (g[i].seg != asked)
			lost = is_lost(lg, g[i].seg) && mark_lost(lg, g[i].seg);
		asked = g[i].seg;
		if (lost)
			items[i].err = ERR_NOT_FOUND;
	}
	blk_read(lane, its, v, n);
	for (uint32_t i = 0; i < n; i++) {
		settle(lg, &items[i], &g[i]);
		unpin(lg, &g[i]);
	}
}

static void log_get(struct store_blk *b, struct blk_lane *lane, struct store_get *r)
{
	for (uint32_t i = 0; i < r->n; i += GET_CHUNK)
		get_some(log_of(b), lane, r->items + i, MIN_OF(r->n - i, GET_CHUNK));
}

/* ---- what needs no I/O ---- */

static void log_has(struct store_blk *b, struct store_has *r)
{
	struct log_be *lg = log_of(b);
	pthread_mutex_lock(&lg->lock);
	ix_has(&lg->ix, r);
	pthread_mutex_unlock(&lg->lock);
}

static void log_scan(struct store_blk *b, struct store_scan *r)
{
	struct log_be *lg = log_of(b);
	pthread_mutex_lock(&lg->lock);
	ix_scan(&lg->ix, r);
	pthread_mutex_unlock(&lg->lock);
}

static void log_stat(struct store_blk *b, struct store_stat *out)
{
	struct log_be *lg = log_of(b);
	pthread_mutex_lock(&lg->lock);
	*out = lg->n;
	out->objects = ix_n(&lg->ix);
	out->bytes_live = lg->ix.bytes;
	out->bytes_used = lg->used + lg->foreign;
	out->bytes_limit = lg->limit;
	list_for_each (it, &lg->segs)
		out->files++;
	out->direct = lg->direct;
	pthread_mutex_unlock(&lg->lock);
}

static enum store_health_state log_health(struct store_blk *b, struct why *w)
{
	struct log_be *lg = log_of(b);
	pthread_mutex_lock(&lg->lock);
	bool broken = lg->broken;
	if (broken)
		why_note(w, ERR_IO, "disk tier: %s: %s; writes are refused until a restart",
			 lg->fs->where, lg->broken_why);
	pthread_mutex_unlock(&lg->lock);
	return broken ? STORE_BROKEN : STORE_OK;
}

static enum blk_want log_wants(struct store_blk *b)
{
	struct log_be *lg = log_of(b);
	pthread_mutex_lock(&lg->lock);
	enum blk_want w = lg->broken	 ? BLK_NOTHING
			  : lg->draining ? BLK_PRESSURE
			  : lg->tidy	 ? BLK_TIDY
					 : BLK_NOTHING;
	pthread_mutex_unlock(&lg->lock);
	return w;
}

/* ---- life ---- */

static void log_free(struct log_be *lg)
{
	struct list *n;
	while ((n = list_pop_front(&lg->segs)))
		log_seg_free(list_entry(n, struct log_seg, node));
	ix_fini(&lg->ix);
	disk_close(lg->lock_file);
	pthread_mutex_destroy(&lg->lock);
	free(lg->kills);
	free(lg->pend);
	free(lg->vector);
	free(lg);
}

static void log_close(struct store_blk *b, struct blk_lane *lane)
{
	struct log_be *lg = log_of(b);
	log_out_init(&lg->out, lane);
	/* the next start finds a footer; without one it reads records */
	if (log_may_write(lg) && log_write_kills(lg) == ERR_NONE)
		(void)log_commit(lg);
	(void)log_seal(lg);
	log_free(lg);
}

/* A small limit needs small segments: room comes and goes by segments. */
static uint64_t segment_bytes(uint64_t wanted, uint64_t limit)
{
	uint64_t most = MAX_OF(limit / 16 & ~((1ull << 20) - 1), 1ull << 20);
	return MIN_OF(wanted ? wanted : SEG_BYTES, most) & ~(uint64_t)(LOGREC_BLOCK - 1);
}

static void take_options(struct log_be *lg, const struct blk_opts *o)
{
	lg->fs = o->fs;
	lg->log = o->o->log;
	lg->fsync = o->o->fsync;
	lg->order = o->o->order;
	lg->direct = o->direct;
	lg->high_pct = o->o->high_pct;
	lg->low_pct = o->o->low_pct;
	lg->limit_objects = o->o->limit_objects;
	lg->salt_seed = o->seed;
	lg->next_serial = 1;
	lg->blk.ops = &store_log_blk;
}

static enum err log_open(const struct blk_opts *o, struct blk_lane *lane,
			 struct store_blk **out, struct why *w)
{
	struct log_be *lg = calloc(1, sizeof(*lg));
	struct blk_marker m;
	if (!lg)
		return why_set(w, ERR_NO_MEMORY, "disk tier: no memory left");
	take_options(lg, o);
	list_init(&lg->segs);
	pthread_mutex_init(&lg->lock, NULL);
	ix_init(&lg->ix, SIZE_MAX, o->seed);
	log_out_init(&lg->out, lane);
	enum err e = blk_marker_take(o->fs, lane->io, "log", o->o->owner, o->owner, &m,
				     &lg->lock_file, w);
	if (e)
		goto fail;
	memcpy(lg->blk.owner, m.owner, sizeof(lg->blk.owner));
	lg->limit = blk_limit(o->fs, &m, o->o->limit_bytes);
	lg->seg_bytes = segment_bytes(o->o->segment_bytes, lg->limit);
	if (lg->limit < 4 * lg->seg_bytes) {
		e = why_set(w, ERR_NO_SPACE,
			    "disk tier: %s has room for %" PRIu64
			    " bytes only; at least 4 MiB are needed",
			    o->fs->where, lg->limit);
		goto fail;
	}
	e = log_recover(lg, lane, w);
	if (e)
		goto fail;
	lg->ix.map.limit = lg->limit_objects;
	log_look(lg);
	*out = &lg->blk;
	return ERR_NONE;
fail:
	log_free(lg);
	return e;
}

const struct store_blk_ops store_log_blk = {
	.open = log_open,
	.close = log_close,
	.put = log_put,
	.get = log_get,
	.del = log_del,
	.has = log_has,
	.scan = log_scan,
	.stat = log_stat,
	.health = log_health,
	.wants = log_wants,
	.pick = log_pick,
	.reclaim = log_reclaim,
};
