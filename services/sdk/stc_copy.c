/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between a caller's buffers and a mapped pool, in steps: sums on the way (T4), a look between
 * the steps of a put (V2), the generation after the last byte of a get.
 *
 * Thread: a worker's while a step runs (or the loop's, for small ones), the loop's otherwise.
 */
#include "stc_priv.h"

#include "base/sum.h"

#include <string.h>

enum { SHARD = 0 }; /* design.md section 6: now n = 1 */

/* ---- where bytes are ---- */

/* How many bytes lie together at `off` of the stored ones, and where. */
static size_t stored_span(const struct stc_copy *c, uint64_t off, uint8_t **p)
{
	for (uint32_t i = 0; i < c->n_stored; i++) {
		if (off < c->stored[i].n) {
			*p = (uint8_t *)c->stored[i].p + off;
			return c->stored[i].n - off;
		}
		off -= c->stored[i].n;
	}
	assert(!"place_extents has compared what they hold");
	return 0;
}

/* The same at the present place of the caller's buffers. */
static size_t user_span(struct stc_copy *c, uint8_t **p)
{
	const struct stc_item *it = c->f->it;
	while (c->buf < it->n_bufs && c->buf_at == it->bufs[c->buf].n) {
		c->buf++;
		c->buf_at = 0;
	}
	assert(c->buf < it->n_bufs); /* their total was compared at the start */
	*p = (uint8_t *)it->bufs[c->buf].p + c->buf_at;
	return it->bufs[c->buf].n - c->buf_at;
}

static uint64_t bufs_bytes(const struct stc_item *it)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < it->n_bufs; i++)
		n += it->bufs[i].n;
	return n;
}

/* ---- beginning ---- */

static enum err place_extents(struct stc_copy *c, const struct msg_extent *v, size_t n)
{
	struct stc_flow *f = c->f;
	uint64_t bytes = 0;
	bool bad = n > OBJ_EXTENTS_MAX;
	for (size_t i = 0; !bad && i < n; i++) {
		c->extents[i] = (struct extent){ v[i].segment, v[i].offset, v[i].bytes };
		c->stored[i].p = shmpool_at(c->map, &c->extents[i]);
		c->stored[i].n = v[i].bytes;
		bad = !c->stored[i].p || bytes + v[i].bytes < bytes;
		bytes += v[i].bytes;
	}
	if (bad || bytes < obj_stored_bytes(c->size)) {
		flow_note(f, ERR_BAD_MESSAGE, 0, "master", "copy",
			  "extents outside of the holder's pool, or too small for the object");
		return ERR_BAD_MESSAGE;
	}
	c->n_stored = c->n_extents = (uint32_t)n;
	return ERR_NONE;
}

static enum err copy_new(struct stc_flow *f, uint64_t size)
{
	struct stc *s = f->w->s;
	struct stc_copy *c = s->spare ? TAKE(s->spare) : malloc(sizeof(*c));
	if (!c) {
		flow_note(f, ERR_NO_MEMORY, 0, "", "copy", "no memory for a copy");
		return ERR_NO_MEMORY;
	}
	memset(c, 0, offsetof(struct stc_copy, stored));
	c->f = f;
	c->map = f->pool->map;
	c->size = size;
	f->copy = c;
	return ERR_NONE;
}

static enum err begin_failed(struct stc_flow *f, enum err e)
{
	if (f->err != e)
		flow_note(f, e, 0, "", "copy", "%s", err_text(e));
	copy_end(f);
	return e;
}

/* The sums of a whole object as it goes by; small ones in one piece need no stream. */
static enum err begin_sums(struct stc_copy *c, bool in_one)
{
	uint64_t blocks = obj_blocks(c->size);
	if (blocks) {
		c->vector = malloc(blocks * sizeof(uint64_t));
		if (!c->vector)
			return ERR_NO_MEMORY;
	}
	if (in_one)
		return ERR_NONE;
	return sum_stream_new(c->size, c->vector, &c->stream);
}

enum err copy_begin_put(struct stc_flow *f, const struct msg_put_grant *g)
{
	const struct stc_item *it = f->it;
	if (f->dlane)
		return remote_begin_put(f, g);
	enum err e = copy_new(f, it->size);
	if (e != ERR_NONE)
		return e;
	struct stc_copy *c = f->copy;
	c->write = true;
	c->total = it->size;
	c->half = f->w->s->halves ? c->total / 2 : 0;
	c->pool_epoch = g->pool_epoch;
	c->version = g->version;
	e = place_extents(c, g->extents.p, g->extents.n);
	if (e == ERR_NONE && g->version == 0)
		e = ERR_BAD_MESSAGE;
	if (e == ERR_NONE)
		e = begin_sums(c, it->n_bufs == 1 && c->size <= STC_PIECE);
	if (e == ERR_NONE && !stc_alive(f->w->s))
		e = ERR_CLOSED;
	if (e != ERR_NONE)
		return begin_failed(f, e);
	struct pool_lane *lane = shmpool_lane(c->map);
	if (!lane)
		return begin_failed(f, ERR_BUSY);
	e = lane_begin(lane, shmpool_ctl(c->map), SHARD, c->pool_epoch, c->version, c->extents,
		       c->n_extents);
	if (e != ERR_NONE) {
		shmpool_lane_done(c->map, lane);
		return begin_failed(f, e);
	}
	c->lane = lane;
	FAULT_AT(put_looked);
	return ERR_NONE;
}

/* The ranges lie in the object, and fit into the buffers. */
static enum err check_ranges(struct stc_flow *f, uint64_t size, uint64_t *total)
{
	const struct stc_item *it = f->it;
	uint64_t sum = it->n_ranges ? 0 : size;
	for (uint32_t i = 0; i < it->n_ranges; i++) {
		const struct stc_range *r = &it->ranges[i];
		if (r->offset > size || r->bytes > size - r->offset) {
			flow_note(f, ERR_INVALID_PARAMS, 0, "", "copy",
				  "range %u: %llu bytes at %llu: the object has %llu", i,
				  (unsigned long long)r->bytes, (unsigned long long)r->offset,
				  (unsigned long long)size);
			return ERR_INVALID_PARAMS;
		}
		sum += r->bytes;
	}
	uint64_t room = bufs_bytes(it);
	if (sum > room) {
		flow_note(f, ERR_TOO_LARGE, 0, "", "copy", "%llu bytes, the buffers hold %llu",
			  (unsigned long long)sum, (unsigned long long)room);
		return ERR_TOO_LARGE;
	}
	*total = sum;
	return ERR_NONE;
}

enum err copy_check_get(struct stc_flow *f, uint64_t size)
{
	uint64_t total = 0;
	enum err e = check_ranges(f, size, &total);
	if (e == ERR_NONE)
		f->it->bytes = total;
	return e;
}

enum err copy_begin_get(struct stc_flow *f, const struct msg_object *o,
			const struct msg_replica *r)
{
	const struct stc_item *it = f->it;
	if (f->dlane)
		return remote_begin_get(f, o, r);
	enum err e = copy_new(f, o->size);
	if (e != ERR_NONE)
		return e;
	struct stc_copy *c = f->copy;
	c->slot = r->slot;
	c->generation = r->generation;
	c->want_sum = o->sum;
	c->verify = f->verify;
	c->total = it->bytes;
	c->half = f->w->s->halves ? c->total / 2 : 0;
	c->range_left = it->n_ranges ? it->ranges[0].bytes : o->size;
	c->stored_at = it->n_ranges ? it->ranges[0].offset : 0;
	e = place_extents(c, r->extents.p, r->extents.n);
	if (e == ERR_NONE && c->verify)
		e = begin_sums(c, it->n_ranges > 0);
	return e == ERR_NONE ? e : begin_failed(f, e);
}

void copy_end(struct stc_flow *f)
{
	struct stc_copy *c = f->copy;
	if (!c)
		return;
	dlane_drop(f, c->job.err);
	free(c->bounce);
	if (c->lane && stc_alive(f->w->s)) {
		lane_end(c->lane);
		shmpool_lane_done(c->map, c->lane);
	}
	sum_stream_free(c->stream);
	free(c->vector);
	free(f->w->s->spare);
	f->w->s->spare = c;
	f->copy = NULL;
}

/* ---- steps ---- */

static bool stopped(const struct stc_copy *c)
{
	return __atomic_load_n(&c->stop, __ATOMIC_RELAXED);
}

static void moved(struct stc_copy *c, size_t n)
{
	c->moved += n;
	c->stored_at += n;
	c->buf_at += n;
	__atomic_fetch_add(&c->f->w->c->bytes_done, n, __ATOMIC_RELAXED);
}

/* A piece that is contiguous on both sides. */
static size_t piece(struct stc_copy *c, uint64_t left, uint8_t **user, uint8_t **stored)
{
	size_t n = MIN_OF(user_span(c, user), stored_span(c, c->stored_at, stored));
	n = (size_t)MIN_OF((uint64_t)n, MIN_OF(left, (uint64_t)STC_PIECE));
	if (c->moved < c->half)
		n = (size_t)MIN_OF((uint64_t)n, c->half - c->moved);
	return n;
}

/* The vector goes behind the payload, little-endian. */
static void store_vector(struct stc_copy *c)
{
	const uint8_t *from = (const uint8_t *)c->vector;
	uint64_t left = obj_blocks(c->size) * sizeof(uint64_t);
	c->stored_at = obj_vector_at(c->size);
	while (left > 0) {
		uint8_t *to = NULL;
		size_t n = (size_t)MIN_OF((uint64_t)stored_span(c, c->stored_at, &to), left);
		memcpy(to, from, n);
		from += n;
		left -= n;
		c->stored_at += n;
	}
}

static enum err put_last(struct stc_copy *c)
{
	const struct stc_item *it = c->f->it;
	enum err e = ERR_NONE;
	if (c->stream)
		e = sum_stream_end(c->stream, &c->sum);
	else
		c->sum = sum_object(it->bufs[0].p, c->size, NULL);
	if (e != ERR_NONE)
		return e;
	store_vector(c);
	FAULT_AT(put_copied);
	struct pool_lane *lane = c->lane;
	lane_end(lane); /* before COMMIT: a hazard that names it would hold that up */
	FAULT_AT(put_cleared);
	return ERR_NONE;
}

static enum err put_step(struct stc_copy *c, uint64_t limit)
{
	enum err e = ERR_NONE;
	if (c->moved > 0)
		e = lane_look(c->lane, shmpool_ctl(c->map), SHARD, c->pool_epoch, c->version);
	while (e == ERR_NONE && !copy_over(c) && limit > 0 && !stopped(c)) {
		uint8_t *user = NULL, *stored = NULL;
		size_t n = piece(c, MIN_OF(limit, c->total - c->moved), &user, &stored);
		memcpy(stored, user, n);
		if (c->stream) /* from the cache: a tenth less than before the copy */
			e = sum_stream_add(c->stream, user, n);
		moved(c, n);
		limit -= n;
		if (c->moved == c->half)
			FAULT_AT(put_half);
	}
	if (e == ERR_NONE && copy_over(c))
		e = put_last(c);
	return e;
}

/* ---- verifying ranges: whole blocks where they lie ---- */

static enum err hash_stored(struct stc_copy *c, uint64_t off, uint64_t n, uint64_t *sum)
{
	struct sum_stream *s = NULL;
	enum err e = sum_stream_new(n, NULL, &s);
	while (e == ERR_NONE && n > 0) {
		uint8_t *p = NULL;
		size_t k = (size_t)MIN_OF((uint64_t)stored_span(c, off, &p), n);
		e = sum_stream_add(s, p, k);
		off += k;
		n -= k;
	}
	if (e == ERR_NONE)
		e = sum_stream_end(s, sum);
	sum_stream_free(s);
	return e;
}

static enum err verify_vector(struct stc_copy *c)
{
	uint8_t *to = (uint8_t *)c->vector;
	uint64_t blocks = obj_blocks(c->size), left = blocks * sizeof(uint64_t);
	uint64_t off = obj_vector_at(c->size);
	while (left > 0) {
		uint8_t *p = NULL;
		size_t n = (size_t)MIN_OF((uint64_t)stored_span(c, off, &p), left);
		memcpy(to, p, n);
		to += n;
		off += n;
		left -= n;
	}
	c->vector_good = sum_of_blocks(c->vector, blocks) == c->want_sum;
	return c->vector_good ? ERR_NONE : ERR_CORRUPT;
}

/* The block that holds the present place. cost: bytes that were hashed. */
static enum err verify_block(struct stc_copy *c, uint64_t *cost)
{
	uint64_t blocks = obj_blocks(c->size), b = blocks ? c->stored_at / OBJ_BLOCK : 0;
	uint64_t off = b * OBJ_BLOCK, sum = 0;
	uint64_t n = blocks ? MIN_OF((uint64_t)OBJ_BLOCK, c->size - off) : c->size;
	*cost = 0;
	if (c->block_good == b + 1)
		return ERR_NONE;
	enum err e = blocks && !c->vector_good ? verify_vector(c) : ERR_NONE;
	if (e == ERR_NONE)
		e = hash_stored(c, off, n, &sum);
	if (e == ERR_NONE && sum != (blocks ? c->vector[b] : c->want_sum))
		e = ERR_CORRUPT;
	c->block_good = b + 1;
	*cost = n;
	return e;
}

/* ---- reading ---- */

static void next_range(struct stc_copy *c)
{
	const struct stc_item *it = c->f->it;
	while (c->range_left == 0 && c->range + 1 < it->n_ranges) {
		c->range++;
		c->range_left = it->ranges[c->range].bytes;
		c->stored_at = it->ranges[c->range].offset;
	}
}

static enum err get_piece(struct stc_copy *c, uint64_t *limit)
{
	bool ranges = c->f->it->n_ranges > 0;
	uint8_t *user = NULL, *stored = NULL;
	uint64_t cost = 0, left = *limit;
	enum err e = ERR_NONE;
	next_range(c);
	if (c->verify && ranges) {
		e = verify_block(c, &cost);
		left = MIN_OF(left, OBJ_BLOCK - c->stored_at % OBJ_BLOCK);
	}
	if (e != ERR_NONE)
		return e;
	size_t n = piece(c, MIN_OF(left, c->range_left), &user, &stored);
	memcpy(user, stored, n);
	if (c->verify && !ranges)
		e = sum_stream_add(c->stream, user, n); /* what arrived, not what lay there */
	moved(c, n);
	c->range_left -= n;
	*limit -= MIN_OF(*limit, n + cost);
	if (c->moved == c->half)
		FAULT_AT(get_half);
	return e;
}

static enum err get_last(struct stc_copy *c)
{
	uint64_t sum = 0;
	if (!c->verify || c->f->it->n_ranges > 0)
		return ERR_NONE;
	enum err e = sum_stream_end(c->stream, &sum);
	return e == ERR_NONE && sum != c->want_sum ? ERR_CORRUPT : e;
}

static enum err get_step(struct stc_copy *c, uint64_t limit)
{
	enum err e = ERR_NONE;
	while (e == ERR_NONE && !copy_over(c) && limit > 0 && !stopped(c))
		e = get_piece(c, &limit);
	if (e == ERR_NONE && copy_over(c))
		e = get_last(c);
	if (e != ERR_CORRUPT && !copy_over(c))
		return e;
	FAULT_AT(get_copied);
	/* I4; and bytes of another object are no corruption of this one */
	return shmpool_same(c->map, c->slot, c->generation) ? e : ERR_LEASE_LOST;
}

void copy_step(struct job *j)
{
	struct stc_copy *c = container_of(j, struct stc_copy, job);
	const struct stc *s = c->f->w->s;
	if (!stc_alive(s))
		j->err = ERR_CLOSED;
	else if (c->write)
		j->err = put_step(c, s->o.step_bytes);
	else
		j->err = get_step(c, s->o.step_bytes);
}
