/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of stored values, block by block: each 1 MiB block that a range touches is read whole and compared
 * with its sum before a byte of it counts (T4). A block that lies wholly inside the range goes straight into the
 * caller's memory where alignment and room allow; others by way of the lane's pieces. Hashing of one block
 * overlaps the reads of others.
 */
#include "store/store_blk.h"

#include <string.h>

#include "base/sum.h"

#define TRIPS 64u /* blocks under way at once, at most */

struct walk;

/* One block under way. */
struct trip {
	struct disk_req req;
	struct walk *walk;
	struct trip *next; /* free */
	struct store_get_item *it;
	uint64_t want; /* the block's sum */
	uint32_t len;  /* of the block's bytes */
	int piece;     /* of the bounce; -1: straight */
	uint32_t skip, take;
	uint8_t *to;
};

struct walk {
	struct blk_lane *lane;
	struct trip trips[TRIPS];
	struct trip *idle;
	uint32_t pieces; /* bit set: free */
};

enum err blk_range(struct store_get_item *it, uint64_t size, uint64_t sum, uint64_t *n)
{
	it->size = size;
	it->sum = sum;
	it->got = 0;
	if (it->off > size || (it->n != STORE_WHOLE && it->n > size - it->off))
		return ERR_INVALID_PARAMS;
	*n = it->n == STORE_WHOLE ? size - it->off : it->n;
	return *n <= it->room ? ERR_NONE : ERR_TOO_LARGE;
}

static void fail(struct store_get_item *it, enum err e)
{
	if (it->err == ERR_NONE)
		it->err = e;
}

static void landed(struct disk_req *q)
{
	struct trip *t = container_of(q, struct trip, req);
	struct walk *w = t->walk;
	if (q->err)
		fail(t->it, q->err == ERR_NO_MEMORY || q->err == ERR_BUSY ? q->err : ERR_IO);
	else if (q->got < t->len || sum64(q->p, t->len) != t->want)
		fail(t->it, ERR_CORRUPT);
	else if (t->piece >= 0)
		memcpy(t->to, (uint8_t *)q->p + t->skip, t->take);
	if (t->piece >= 0)
		w->pieces |= 1u << t->piece;
	t->next = w->idle;
	w->idle = t;
}

/* A trip, waiting for one to come home when all are out. */
static struct trip *trip_take(struct walk *w)
{
	while (!w->idle)
		disk_reap(w->lane->io, w->lane->io->in_flight - 1);
	struct trip *t = w->idle;
	w->idle = t->next;
	return t;
}

static int piece_take(struct walk *w)
{
	while (!w->pieces)
		disk_reap(w->lane->io, w->lane->io->in_flight - 1);
	int i = __builtin_ctz(w->pieces);
	w->pieces &= ~(1u << i);
	return i;
}

/* Bytes from lo to hi of the value, all in block b. */
static void read_block(struct walk *w, struct store_get_item *it, const struct blk_value *v,
		       uint64_t b, uint64_t lo, uint64_t hi)
{
	uint64_t start = b * SUM_BLOCK_BYTES;
	uint32_t len = (uint32_t)MIN_OF(v->size - start, (uint64_t)SUM_BLOCK_BYTES);
	uint32_t padded = (len + DISK_ALIGN - 1) & ~(DISK_ALIGN - 1);
	uint8_t *to = (uint8_t *)it->to + (lo - it->off);
	bool whole = lo == start && hi == start + len;
	/* what is behind this block in the caller's memory is either not ours to touch, or comes later */
	bool room = it->room - (lo - it->off) >= padded && (len == padded || hi == v->size);
	struct trip *t = trip_take(w);
	*t = (struct trip){ .walk = w,
			    .it = it,
			    .want = v->vector ? v->vector[b] : v->sum,
			    .len = len,
			    .piece = -1,
			    .skip = (uint32_t)(lo - start),
			    .take = (uint32_t)(hi - lo),
			    .to = to };
	bool straight = whole && room && (uintptr_t)to % DISK_ALIGN == 0;
	if (!straight)
		t->piece = piece_take(w);
	t->req = (struct disk_req){
		.file = v->file,
		.p = straight ? to : w->lane->bounce + (size_t)t->piece * BLK_BOUNCE,
		.n = padded,
		.off = v->off + start,
		.done = landed
	};
	disk_submit(w->lane->io, &t->req);
}

static void read_item(struct walk *w, struct store_get_item *it, const struct blk_value *v)
{
	uint64_t n;
	enum err e = blk_range(it, v->size, v->sum, &n);
	if (e) {
		it->err = e;
		return;
	}
	uint64_t end = it->off + n;
	for (uint64_t at = it->off; at < end && it->err == ERR_NONE;) {
		uint64_t b = at / SUM_BLOCK_BYTES;
		uint64_t hi = MIN_OF(end, (b + 1) * SUM_BLOCK_BYTES);
		read_block(w, it, v, b, at, hi);
		at = hi;
	}
	it->got = n; /* unless it fails below */
}

void blk_read(struct blk_lane *lane, struct store_get_item **items, const struct blk_value *v,
	      uint32_t n)
{
	struct walk w = { .lane = lane, .pieces = (1u << BLK_BOUNCES) - 1 };
	for (uint32_t i = 0; i < MIN_OF(TRIPS, lane->depth); i++) {
		w.trips[i].next = w.idle;
		w.idle = &w.trips[i];
	}
	for (uint32_t i = 0; i < n; i++)
		if (items[i]->err == ERR_NONE)
			read_item(&w, items[i], &v[i]);
	disk_reap(lane->io, 0);
	for (uint32_t i = 0; i < n; i++)
		if (items[i]->err)
			items[i]->got = 0;
}
