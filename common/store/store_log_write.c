/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer: records into the active segment, and the commit that makes them true.
 *
 * A batch is written whole, then synced, then told: nothing in it is seen before (hidden), nothing of it is
 * acknowledged when the sync fails (G1, G4). Small values are gathered into writes of 1 MiB; large aligned ones
 * go from the caller's memory.
 */
#include "store/store_log.h"

#include <endian.h>
#include <string.h>

#include "base/crc.h"
#include "base/sum.h"

#define PIECE_BYTES (1u << 20)
#define STRAIGHT_BYTES \
	(128u          \
	 << 10) /* from here on a value is not copied; a copy of less costs no more than an io */
#define DELS_COPIES 2 /* a damaged block must not bring objects back */

/* ---- the stream ---- */

static void out_done(struct disk_req *q)
{
	struct out_req *r = container_of(q, struct out_req, req);
	struct log_out *o = r->out;
	if (q->err && !o->err)
		o->err = q->err;
	if (r->piece >= 0)
		o->pieces |= 1u << r->piece;
	r->next = o->idle;
	o->idle = r;
}

void log_out_init(struct log_out *o, struct blk_lane *lane)
{
	memset(o, 0, sizeof(*o));
	o->lane = lane;
	o->piece = -1;
	o->pieces = (1u << BLK_BOUNCES) - 1;
	for (uint32_t i = 0; i < MIN_OF(OUT_REQS, lane->depth); i++) {
		o->reqs[i].out = o;
		o->reqs[i].next = o->idle;
		o->idle = &o->reqs[i];
	}
}

static void out_submit(struct log_out *o, const void *p, uint32_t n, int piece)
{
	while (!o->idle)
		disk_reap(o->lane->io, o->lane->io->in_flight - 1);
	struct out_req *r = o->idle;
	o->idle = r->next;
	r->piece = piece;
	r->req = (struct disk_req){ .file = o->seg->file,
				    .p = (void *)(uintptr_t)p,
				    .n = n,
				    .off = o->at,
				    .write = true,
				    .done = out_done };
	o->at += n;
	disk_submit(o->lane->io, &r->req);
}

static uint8_t *piece_at(struct log_out *o)
{
	return o->lane->bounce + (size_t)o->piece * BLK_BOUNCE;
}

static void out_flush(struct log_out *o)
{
	if (o->piece < 0)
		return;
	int piece = o->piece;
	uint8_t *p = piece_at(o);
	assert(o->fill % DISK_ALIGN == 0);
	o->piece = -1;
	if (o->fill > 0)
		out_submit(o, p, o->fill, piece);
	else
		o->pieces |= 1u << piece;
	o->fill = 0;
}

static void out_piece(struct log_out *o)
{
	if (o->piece >= 0)
		return;
	while (!o->pieces)
		disk_reap(o->lane->io, o->lane->io->in_flight - 1);
	o->piece = __builtin_ctz(o->pieces);
	o->pieces &= ~(1u << o->piece);
	o->fill = 0;
}

/* p NULL: zeros. */
void log_out_bytes(struct log_out *o, const void *p, size_t n)
{
	const uint8_t *from = p;
	while (n > 0) {
		out_piece(o);
		size_t part = MIN_OF(n, (size_t)(PIECE_BYTES - o->fill));
		if (from)
			memcpy(piece_at(o) + o->fill, from, part);
		else
			memset(piece_at(o) + o->fill, 0, part);
		from = from ? from + part : NULL;
		o->fill += (uint32_t)part;
		n -= part;
		if (o->fill == PIECE_BYTES)
			out_flush(o);
	}
}

uint8_t *log_out_place(struct log_out *o, uint32_t n)
{
	assert(n <= PIECE_BYTES && o->fill % DISK_ALIGN == 0);
	if (o->piece >= 0 && PIECE_BYTES - o->fill < n)
		out_flush(o);
	out_piece(o);
	return piece_at(o) + o->fill;
}

void log_out_advance(struct log_out *o, uint32_t n)
{
	o->fill += n;
	if (o->fill == PIECE_BYTES)
		out_flush(o);
}

void log_out_seek(struct log_out *o, uint64_t at)
{
	if (o->piece >= 0) { /* a record that is not going to be one: pad what there is */
		uint32_t ragged = o->fill % DISK_ALIGN;
		if (ragged)
			log_out_bytes(o, NULL, DISK_ALIGN - ragged);
	}
	out_flush(o);
	o->at = at;
}

/* Whole blocks from the caller's memory, at a block's border of the segment. */
static void out_straight(struct log_out *o, const uint8_t *p, uint64_t n)
{
	out_flush(o);
	while (n > 0) {
		uint32_t part = (uint32_t)MIN_OF(n, (uint64_t)PIECE_BYTES);
		out_submit(o, p, part, -1);
		p += part;
		n -= part;
	}
}

static void out_value(struct log_out *o, const uint8_t *p, uint64_t n)
{
	uint64_t whole = n & ~(uint64_t)(DISK_ALIGN - 1);
	if (whole < STRAIGHT_BYTES || (uintptr_t)p % DISK_ALIGN != 0)
		whole = 0;
	if (whole > 0)
		out_straight(o, p, whole);
	log_out_bytes(o, p + whole, n - whole);
}

/* All of it is with the kernel and back. */
enum err log_out_wait(struct log_out *o)
{
	out_flush(o);
	disk_reap(o->lane->io, 0);
	return o->err;
}

/* ---- records ---- */

static enum err more_pend(struct log_be *lg)
{
	if (lg->n_pend < lg->cap_pend)
		return ERR_NONE;
	uint32_t cap = MAX_OF(2 * lg->cap_pend, 256u);
	struct pend *more = realloc(lg->pend, cap * sizeof(*more));
	if (!more)
		return ERR_NO_MEMORY;
	lg->pend = more;
	lg->cap_pend = cap;
	return ERR_NONE;
}

enum err log_pend(struct log_be *lg, const struct pend *p)
{
	enum err e = more_pend(lg);
	if (e == ERR_NONE)
		lg->pend[lg->n_pend++] = *p;
	return e;
}

struct logrec_place log_record_begin(struct log_be *lg, const struct logrec_head *h)
{
	struct log_seg *s = lg->active;
	struct logrec_place at = { s->serial, s->end };
	uint8_t block[LOGREC_BLOCK];
	logrec_head_put(h, s->salt, at, block);
	s->end += logrec_length(h->size);
	s->footer_bytes += logrec_entry_bytes(&h->id, h->size);
	log_out_bytes(&lg->out, block, sizeof(block));
	return at;
}

void log_record_end(struct log_be *lg, uint64_t size, const uint64_t *vector)
{
	uint64_t blocks = sum_n_blocks(size);
	uint64_t at = size;
	if (blocks > 0) {
		log_out_bytes(&lg->out, NULL, obj_vector_at(size) - size);
		for (uint64_t i = 0; i < blocks; i++) {
			uint64_t w = htole64(vector[i]);
			log_out_bytes(&lg->out, &w, sizeof(w));
		}
		at = obj_stored_bytes(size);
	}
	log_out_bytes(&lg->out, NULL, logrec_body(size) - at);
}

/* Room in the segment's list for what a commit will add, so that it cannot fail then. */
static enum err reserve_dels(struct log_seg *s, uint32_t n)
{
	uint32_t need = s->n_dels + n;
	if (need <= s->cap_dels)
		return ERR_NONE;
	uint32_t cap = MAX_OF(need, 2 * s->cap_dels);
	struct logrec_place *more = realloc(s->dels, cap * sizeof(*more));
	if (!more)
		return ERR_NO_MEMORY;
	s->dels = more;
	s->cap_dels = cap;
	return ERR_NONE;
}

static uint32_t pending_dels(const struct log_be *lg)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < lg->n_pend; i++)
		n += lg->pend[i].kind == PEND_DEL || lg->pend[i].kind == PEND_PLACE;
	return n;
}

/* One block of them, twice. */
static enum err dels_block(struct log_be *lg, const struct logrec_place *p, uint32_t n)
{
	uint8_t block[LOGREC_BLOCK];
	enum err e = log_room(lg, DELS_COPIES * LOGREC_BLOCK, (uint64_t)n * LOGREC_DEL_BYTES,
			      FOR_REST);
	if (e == ERR_NONE)
		e = reserve_dels(lg->active, pending_dels(lg) + n);
	if (e)
		return e;
	struct log_seg *s = lg->active;
	for (int i = 0; i < DELS_COPIES; i++) {
		logrec_dels_put(p, n, s->salt, (struct logrec_place){ s->serial, s->end },
				block);
		log_out_bytes(&lg->out, block, sizeof(block));
		s->end += LOGREC_BLOCK;
	}
	s->footer_bytes += (uint64_t)n * LOGREC_DEL_BYTES;
	return ERR_NONE;
}

enum err log_write_dels(struct log_be *lg, const struct logrec_place *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += LOGREC_DELS) {
		uint32_t part = MIN_OF(n - i, LOGREC_DELS);
		enum err e = dels_block(lg, p + i, part);
		for (uint32_t k = 0; e == ERR_NONE && k < part; k++) {
			const struct pend d = { .kind = PEND_PLACE, .place = p[i + k] };
			e = log_pend(lg, &d);
		}
		if (e)
			return e;
	}
	return ERR_NONE;
}

enum err log_write_kills(struct log_be *lg)
{
	/* a copy: readers add to the list, and a commit on the way takes from it */
	pthread_mutex_lock(&lg->lock);
	uint32_t n = lg->n_kills;
	struct logrec_place *mine = n > 0 ? malloc(n * sizeof(*mine)) : NULL;
	if (mine)
		memcpy(mine, lg->kills, n * sizeof(*mine));
	pthread_mutex_unlock(&lg->lock);
	if (n == 0)
		return ERR_NONE;
	if (!mine)
		return ERR_NO_MEMORY;
	enum err e = log_write_dels(lg, mine, n);
	free(mine);
	return e;
}

/* ---- commit ---- */

static bool same_place(struct logrec_place a, struct logrec_place b)
{
	return a.serial == b.serial && a.off == b.off;
}

/* Its delete record is durable: it is no kill any more. */
static void unkill(struct log_be *lg, struct logrec_place p)
{
	for (uint32_t i = 0; i < lg->n_kills; i++)
		if (same_place(lg->kills[i], p)) {
			lg->kills[i] = lg->kills[--lg->n_kills];
			return;
		}
}

static void count_put(struct log_be *lg, const struct ix_entry *e)
{
	lg->n.puts++;
	lg->n.bytes_put += e->size;
}

static void live_in(struct log_seg *s, const struct ix_entry *e)
{
	s->live_bytes += logrec_length(e->size);
	s->n_live++;
}

static void move_true(struct log_be *lg, const struct pend *p, struct log_seg *to)
{
	struct ix_entry *e = p->e;
	struct log_seg *from = e->where;
	e->busy = false;
	if (e->gone) { /* found bad meanwhile */
		log_kill(lg, p->place);
		log_drop(lg, e);
		return;
	}
	from->live_bytes -= logrec_length(e->size);
	from->n_live--;
	list_del(&e->in_where);
	list_push_back(&to->entries, &e->in_where);
	e->where = to;
	e->off = p->place.off;
	e->doubt = false;
	live_in(to, e);
}

static void del_true(struct log_be *lg, const struct pend *p)
{
	p->e->busy = false;
	log_drop(lg, p->e);
	p->del->err = ERR_NONE;
	p->del->absent = false;
	lg->n.deletes++;
}

static void pend_true(struct log_be *lg, const struct pend *p, struct log_seg *s)
{
	switch (p->kind) {
	case PEND_PUT:
		ix_show(&lg->ix, p->e);
		live_in(s, p->e);
		count_put(lg, p->e);
		p->put->err = ERR_NONE;
		p->put->settled = true;
		return;
	case PEND_MOVE:
		move_true(lg, p, s);
		return;
	case PEND_DEL:
		s->dels[s->n_dels++] = p->place;
		del_true(lg, p);
		return;
	case PEND_PLACE:
		s->dels[s->n_dels++] = p->place;
		unkill(lg, p->place);
		return;
	}
}

static void pend_failed(struct log_be *lg, const struct pend *p)
{
	switch (p->kind) {
	case PEND_PUT:
		log_kill(lg, p->place); /* G3 */
		log_drop(lg, p->e);
		p->put->err = ERR_IO;
		p->put->settled = true;
		return;
	case PEND_MOVE:
		log_kill(lg, p->place);
		p->e->busy = false;
		if (p->e->gone)
			log_drop(lg, p->e);
		return;
	case PEND_DEL:
		p->del->err = ERR_IO;
		p->e->busy = p->e->going = false;
		p->e->doubt = true; /* a put of it may not rest on the old record */
		if (p->e->gone)
			log_drop(lg, p->e);
		return;
	case PEND_PLACE:
		return; /* stays what it was */
	}
}

/* Its file's name is still there: else nothing in it survives. */
static enum err still_there(struct log_be *lg, struct log_seg *s)
{
	struct disk_stat st;
	enum err e = lg->fs->ops->stat(s->file, &st);
	return e ? e : st.links == 0 ? ERR_IO : ERR_NONE;
}

void log_make_bad(struct log_be *lg, struct log_seg *s, enum err e)
{
	s->state = SEG_BAD;
	lg->active = NULL;
	lg->n.bad_files++;
	lg->n.io_errors++;
	log_seg_count(lg, s);
	LOG_ERROR(lg->log, "disk", "bad_segment=%016llx err=%s", (unsigned long long)s->serial,
		  err_name(e));
}

enum err log_commit(struct log_be *lg)
{
	struct log_seg *s = lg->active;
	if (!s)
		return ERR_NONE;
	enum err e = log_out_wait(&lg->out);
	if (e == ERR_NONE && lg->n_pend == 0)
		return ERR_NONE;
	if (e == ERR_NONE && lg->fsync != STORE_FSYNC_NEVER)
		e = lg->fs->ops->sync(s->file);
	if (e == ERR_NONE)
		e = still_there(lg, s);
	pthread_mutex_lock(&lg->lock);
	for (uint32_t i = 0; i < lg->n_pend; i++) {
		if (e)
			pend_failed(lg, &lg->pend[i]);
		else
			pend_true(lg, &lg->pend[i], s);
	}
	lg->n_pend = 0;
	if (e)
		log_make_bad(lg, s, e); /* G4 */
	pthread_mutex_unlock(&lg->lock);
	return e ? ERR_IO : ERR_NONE;
}

/* ---- put ---- */

static void settle(struct store_put_item *it, enum err e)
{
	it->err = e;
	it->settled = true;
}

static enum err sums_of(struct log_be *lg, const struct store_put_item *it)
{
	uint64_t n = sum_n_blocks(it->n);
	if (n > lg->cap_vector) {
		uint64_t *more = realloc(lg->vector, n * sizeof(*more));
		if (!more)
			return ERR_NO_MEMORY;
		lg->vector = more;
		lg->cap_vector = n;
	}
	return sum_object(it->p, it->n, lg->vector) == it->sum ? ERR_NONE : ERR_CORRUPT;
}

static enum err put_range(const struct log_be *lg, const struct store_put_item *it)
{
	if (!store_id_valid(&it->id) || (!it->p && it->n > 0))
		return ERR_INVALID_PARAMS;
	if (it->n > store_backends[0].caps.max_value)
		return ERR_TOO_LARGE;
	uint64_t whole = log_seg_need(LOGREC_BLOCK, logrec_length(it->n),
				      logrec_entry_bytes(&it->id, it->n));
	return whole > lg->limit - lg->seg_bytes ? ERR_TOO_LARGE : ERR_NONE;
}

/*
 * True: the item has its answer, or rides on an equal one of this batch (existed is set, settled not).
 * What was there and is in doubt or gone makes way.
 */
static bool put_known(struct log_be *lg, struct store_put_item *it)
{
	pthread_mutex_lock(&lg->lock);
	struct ix_entry *e = ix_find(&lg->ix, &it->id);
	bool known = e && !e->gone && !e->doubt;
	if (known && (e->size != it->n || e->sum != it->sum)) {
		settle(it, ERR_CONFLICT);
	} else if (known && e->hidden) {
		it->existed = true;
	} else if (known) {
		it->existed = true;
		settle(it, ERR_NONE);
	} else if (e) {
		const struct log_seg *s = e->where;
		log_kill(lg, (struct logrec_place){ s->serial, e->off });
		log_drop(lg, e);
	}
	pthread_mutex_unlock(&lg->lock);
	return known;
}

/* Into index and segment, not seen yet. */
static enum err add_hidden(struct log_be *lg, struct store_put_item *it, struct ix_entry **out)
{
	struct ix_entry *e = ix_entry_new(&it->id, it->n, it->sum, lg->vector);
	enum err r = e ? more_pend(lg) : ERR_NO_MEMORY;
	if (r) {
		ix_entry_free(e);
		return r;
	}
	e->hidden = true;
	e->where = lg->active;
	e->off = lg->active->end;
	pthread_mutex_lock(&lg->lock);
	r = ix_add(&lg->ix, e);
	if (r == ERR_NONE)
		list_push_back(&lg->active->entries, &e->in_where);
	pthread_mutex_unlock(&lg->lock);
	if (r)
		ix_entry_free(e);
	else
		*out = e;
	return r;
}

static enum err put_record(struct log_be *lg, struct store_put_item *it)
{
	struct ix_entry *e;
	enum err r = log_room(lg, logrec_length(it->n), logrec_entry_bytes(&it->id, it->n),
			      FOR_PUTS);
	if (r == ERR_NONE)
		r = add_hidden(lg, it, &e);
	if (r)
		return r;
	const struct logrec_head h = {
		.type = LOGREC_PUT, .id = it->id, .size = it->n, .sum = it->sum
	};
	struct logrec_place at = log_record_begin(lg, &h);
	out_value(&lg->out, it->p, it->n);
	log_record_end(lg, it->n, lg->vector);
	const struct pend p = { .kind = PEND_PUT, .e = e, .place = at, .put = it };
	r = log_pend(lg, &p);
	assert(r == ERR_NONE); /* more_pend made the place */
	return r;
}

/* No room is no answer: the item stays open (W2). */
static void put_one(struct log_be *lg, struct store_put_item *it)
{
	it->existed = false;
	enum err e = put_range(lg, it);
	if (e == ERR_NONE)
		e = sums_of(lg, it);
	if (e) {
		settle(it, e);
		return;
	}
	if (put_known(lg, it))
		return;
	e = put_record(lg, it);
	if (e == ERR_BUSY || e == ERR_NO_SPACE)
		it->err = ERR_BUSY;
	else if (e)
		settle(it, e == ERR_NO_MEMORY ? e : ERR_IO);
	else if (lg->fsync == STORE_FSYNC_ALWAYS)
		(void)log_commit(lg);
}

/* Those that rode on another item of their batch share its fate. */
static void put_rider(struct log_be *lg, struct store_put_item *it)
{
	pthread_mutex_lock(&lg->lock);
	const struct ix_entry *e = ix_find(&lg->ix, &it->id);
	bool there = ix_visible(e) && e->size == it->n && e->sum == it->sum;
	pthread_mutex_unlock(&lg->lock);
	it->existed = there;
	settle(it, there ? ERR_NONE : ERR_IO);
}

bool log_may_write(struct log_be *lg)
{
	pthread_mutex_lock(&lg->lock);
	bool ok = !lg->broken;
	pthread_mutex_unlock(&lg->lock);
	return ok;
}

void log_put(struct store_blk *b, struct blk_lane *lane, struct store_put *r)
{
	struct log_be *lg = log_of(b);
	lg->out.lane = lane;
	enum err e = log_may_write(lg) ? log_write_kills(lg) : ERR_IO; /* G3 */
	bool no_room = e == ERR_BUSY || e == ERR_NO_SPACE;
	for (uint32_t i = 0; i < r->n; i++) {
		struct store_put_item *it = &r->items[i];
		if (it->settled)
			continue;
		if (no_room)
			it->err = ERR_BUSY;
		else if (e)
			settle(it, ERR_IO);
		else
			put_one(lg, it);
	}
	(void)log_commit(lg);
	for (uint32_t i = 0; i < r->n; i++)
		if (!r->items[i].settled && r->items[i].existed)
			put_rider(lg, &r->items[i]);
	pthread_mutex_lock(&lg->lock);
	log_look(lg);
	pthread_mutex_unlock(&lg->lock);
}

/* ---- delete ---- */

/* False: it has its answer, or rides on another item (going). */
static bool del_find(struct log_be *lg, struct store_del_item *it, struct pend *p)
{
	it->absent = true;
	it->err = store_id_valid(&it->id) ? ERR_NONE : ERR_INVALID_PARAMS;
	if (it->err)
		return false;
	pthread_mutex_lock(&lg->lock);
	struct ix_entry *e = ix_find(&lg->ix, &it->id);
	bool found = ix_visible(e);
	if (found && e->going) {
		it->err = ERR_BUSY; /* being deleted by an item before it: del_rider */
		found = false;
	} else if (found) {
		const struct log_seg *s = e->where;
		e->busy = e->going = true;
		*p = (struct pend){
			.kind = PEND_DEL, .e = e, .place = { s->serial, e->off }, .del = it
		};
	}
	pthread_mutex_unlock(&lg->lock);
	return found;
}

/* Not even written: as it was. */
static void del_undo(struct log_be *lg, const struct pend *p, enum err e)
{
	pthread_mutex_lock(&lg->lock);
	p->e->busy = p->e->going = false;
	if (p->e->gone)
		log_drop(lg, p->e);
	pthread_mutex_unlock(&lg->lock);
	p->del->err = e == ERR_BUSY ? ERR_NO_SPACE : e;
}

static void del_some(struct log_be *lg, struct pend *some, uint32_t n)
{
	struct logrec_place places[LOGREC_DELS] = { 0 };
	for (uint32_t i = 0; i < n; i++)
		places[i] = some[i].place;
	enum err e = ERR_NONE;
	/* room for all of them first: a block that is written must be pending as a whole */
	while (e == ERR_NONE && lg->cap_pend - lg->n_pend < n) {
		uint32_t cap = MAX_OF(2 * lg->cap_pend, 512u);
		struct pend *more = realloc(lg->pend, cap * sizeof(*more));
		e = more ? ERR_NONE : ERR_NO_MEMORY;
		lg->pend = more ? more : lg->pend;
		lg->cap_pend = more ? cap : lg->cap_pend;
	}
	if (e == ERR_NONE)
		e = dels_block(lg, places, n);
	for (uint32_t i = 0; i < n; i++) {
		if (e)
			del_undo(lg, &some[i], e);
		else
			(void)!log_pend(lg, &some[i]);
	}
}

static void del_rider(struct log_be *lg, struct store_del_item *it)
{
	pthread_mutex_lock(&lg->lock);
	bool there = ix_visible(ix_find(&lg->ix, &it->id));
	pthread_mutex_unlock(&lg->lock);
	it->err = there ? ERR_IO : ERR_NONE;
}

/*
 * A delete, of an absent object too, is true only with all kills of before (G3): a failed put of it may stand
 * somewhere. bad: how many segments were bad at the batch's start.
 */
static bool kills_true(struct log_be *lg, uint64_t bad)
{
	for (int tries = 0; lg->n.bad_files != bad; tries++) {
		bad = lg->n.bad_files;
		if (tries == 2 || log_write_kills(lg))
			return false;
		(void)log_commit(lg);
	}
	return true;
}

void log_del(struct store_blk *b, struct blk_lane *lane, struct store_del *r)
{
	struct log_be *lg = log_of(b);
	struct pend some[LOGREC_DELS];
	uint32_t n = 0;
	lg->out.lane = lane;
	uint64_t bad = lg->n.bad_files;
	enum err e = log_may_write(lg) ? log_write_kills(lg) : ERR_IO; /* G3 */
	for (uint32_t i = 0; i < r->n; i++) {
		if (e) {
			r->items[i].absent = false;
			r->items[i].err = e == ERR_BUSY ? ERR_NO_SPACE : e;
			continue;
		}
		if (del_find(lg, &r->items[i], &some[n]) && ++n == LOGREC_DELS) {
			del_some(lg, some, n);
			n = 0;
		}
	}
	if (n > 0)
		del_some(lg, some, n);
	(void)log_commit(lg);
	for (uint32_t i = 0; i < r->n; i++)
		if (r->items[i].err == ERR_BUSY)
			del_rider(lg, &r->items[i]);
	bool sure = e != ERR_NONE || kills_true(lg, bad);
	for (uint32_t i = 0; !sure && i < r->n; i++)
		if (r->items[i].err == ERR_NONE)
			r->items[i].err = ERR_IO;
	pthread_mutex_lock(&lg->lock);
	log_look(lg);
	pthread_mutex_unlock(&lg->lock);
}
