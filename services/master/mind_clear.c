/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in one piece (spec/store.md, Placement: evict neighbours when fragmentation blocks). When a segment
 * has as many bytes free as a put asks for, but in more pieces than an object may have, evicting what was used
 * longest ago frees more pieces, here and there. Instead a stretch is looked for whose objects are few and
 * old, and just these go.
 *
 *	look at every slot ──► price of each cell ──► the cheapest stretches ──► every slot again: evict those there
 *
 * One segment at a time, in slices (I6). A stretch with a lease, a hard pin, a writer or quarantine in it is
 * none; one with a soft pin comes after all others. Nothing is reserved: if another put is quicker, it is looked
 * again, and each time something goes, or the order of use decides as ever.
 *
 * Cost: two walks over the holder's slots a clearing, a word a cell (at most CELLS_MAX).
 */
#include "mind_priv.h"

enum {
	PAGES = 8, /* of slots, in one go */
	CELLS_MAX = 65536,
	AT_ONCE = 16,	/* stretches, one a put that waits */
	VAIN_MS = 5000, /* nothing to be had: not again before */
	SOFT = 4096,	/* how much dearer a soft pin is */
};
#define BLOCKED UINT64_MAX
#define TAKEN	(UINT64_MAX - 1)

struct clear {
	struct holder *h;
	struct segment *g;
	uint64_t bytes, cell, n_cells, n_win; /* a stretch: n_win cells hold `bytes` */
	uint32_t page;
	uint16_t merge;
	bool picked;
	uint64_t n_evicted;
	uint64_t price[];
};

static uint64_t aligned(uint64_t n)
{
	return (n + OBJ_ALIGN - 1) / OBJ_ALIGN * OBJ_ALIGN;
}

static size_t clear_bytes(const struct clear *k)
{
	return sizeof(*k) + k->n_cells * sizeof(k->price[0]);
}

void clear_free(struct mind *m)
{
	if (!m->clear)
		return;
	m->bytes -= clear_bytes(m->clear);
	free(m->clear);
	m->clear = NULL;
}

/* ---- beginning ---- */

/* The one with most free, of those that have enough, in pieces. */
static struct segment *in_pieces(const struct mind *m, uint64_t bytes, struct holder **at)
{
	struct segment *best = NULL;
	uint64_t most = 0;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		struct holder *h = m->holders[i];
		for (size_t s = 0; holder_gives(m, h) && !holder_slots_full(h) && s < h->n_segs;
		     s++) {
			const struct alloc *a = h->segs[s].alloc;
			uint64_t left = alloc_bytes(a) - alloc_used(a);
			if (left < bytes || left <= most)
				continue;
			best = &h->segs[s];
			most = left;
			*at = h;
		}
	}
	return best;
}

static struct clear *clear_new(struct mind *m, struct holder *h, struct segment *g,
			       uint64_t bytes)
{
	uint64_t all = alloc_bytes(g->alloc);
	uint64_t cell = aligned(MAX_OF(bytes / 8, all / CELLS_MAX));
	uint64_t n = (all + cell - 1) / cell;
	struct clear *k = calloc(1, sizeof(*k) + n * sizeof(k->price[0]));
	if (!k)
		return NULL;
	k->h = h;
	k->g = g;
	k->bytes = bytes;
	k->cell = cell;
	k->n_cells = n;
	k->n_win = (bytes + cell - 1) / cell;
	k->merge = h->merge;
	m->bytes += clear_bytes(k);
	return k;
}

/* What is on its way back makes it enough somewhere: nothing more goes before it is seen whether that fits. */
static bool comes(const struct mind *m, uint64_t bytes)
{
	for (uint32_t i = 0; i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		for (size_t s = 0;
		     h->coming && holder_gives(m, h) && !holder_slots_full(h) && s < h->n_segs;
		     s++) {
			const struct alloc *a = h->segs[s].alloc;
			if (alloc_bytes(a) - alloc_used(a) + h->coming >= bytes)
				return true;
		}
	}
	return false;
}

bool clear_for(struct mind *m, uint64_t bytes, bool coming)
{
	struct holder *h = NULL;
	bool recent = m->now < m->clear_ns;
	if (m->clear || (recent && coming && !m->clear_vain))
		return true;
	struct segment *g = recent && m->clear_vain ? NULL : in_pieces(m, bytes, &h);
	if (g)
		m->clear = clear_new(m, h, g, bytes);
	return m->clear || comes(m, bytes);
}

/* ---- prices ---- */

static void add(struct clear *k, const struct range *r, uint64_t weight)
{
	uint64_t end = r->offset + alloc_round(r->bytes);
	for (uint64_t i = r->offset / k->cell; i < k->n_cells && i * k->cell < end; i++) {
		uint64_t from = MAX_OF(r->offset, i * k->cell),
			 to = MIN_OF(end, (i + 1) * k->cell);
		k->price[i] = weight == BLOCKED || k->price[i] == BLOCKED
				      ? BLOCKED
				      : k->price[i] + (to - from) / OBJ_ALIGN_SMALL * weight;
	}
}

/* The longer ago it was used, the cheaper; what is on its way back costs next to nothing. */
static uint64_t weight_of(struct mind *m, const struct copy *c)
{
	uint64_t now = (m->now - m->start_ns) >> TICK_BITS;
	struct group *g = group_of(c->obj);
	uint32_t used = g ? g->used : c->obj->used;
	if (c->flags & COPY_COMING)
		return 1;
	if (!evict_may(m, c->obj))
		return BLOCKED;
	uint64_t w = 16 + 48 * used / (now + 1);
	return (g ? g->which : c->obj->which) == LRU_SOFT ? w * SOFT : w;
}

static void price(struct mind *m, struct clear *k, const struct copy *c)
{
	if (c->segment != k->g->number || c->n_ranges == 0)
		return;
	uint64_t w = weight_of(m, c);
	for (size_t i = 0; i < c->n_ranges; i++)
		add(k, &c->ranges[i], w);
}

static void price_writers(struct clear *k)
{
	list_for_each (it, &k->h->attempts) {
		const struct attempt *a = list_entry(it, struct attempt, of_holder);
		for (size_t i = 0; a->segment == k->g->number && i < a->n_ranges; i++)
			add(k, &a->ranges[i], BLOCKED);
	}
	list_for_each (it, &k->h->quars) {
		const struct quar *q = list_entry(it, struct quar, node);
		for (size_t i = 0; q->segment == k->g->number && i < q->n_ranges; i++)
			add(k, &q->ranges[i], BLOCKED);
	}
}

/* The cheapest stretch; false: none. One that costs nothing is free, but for what nobody knows of. */
static bool pick(struct clear *k)
{
	uint64_t sum = 0, blocked = 0, best = UINT64_MAX, at = 0;
	for (uint64_t i = 0; i < k->n_cells; i++) {
		uint64_t old = i >= k->n_win ? k->price[i - k->n_win] : 0;
		blocked += k->price[i] >= TAKEN;
		sum += k->price[i] >= TAKEN ? 0 : k->price[i];
		blocked -= old >= TAKEN;
		sum -= old >= TAKEN ? 0 : old;
		if (i + 1 < k->n_win || blocked || sum == 0 || sum >= best ||
		    (i + 1 - k->n_win) * k->cell + k->bytes > alloc_bytes(k->g->alloc))
			continue;
		best = sum;
		at = i + 1 - k->n_win;
	}
	for (uint64_t i = 0; best < UINT64_MAX && i < k->n_win; i++)
		k->price[at + i] = TAKEN;
	return best < UINT64_MAX;
}

static bool pick_some(const struct mind *m, struct clear *k)
{
	size_t n = 0, got = 0;
	for (const struct list *it = m->space.next; it != &m->space && n < AT_ONCE;
	     it = it->next)
		n++;
	while (got < MAX_OF(n, (size_t)1) && pick(k))
		got++;
	return got;
}

/* ---- evicting ---- */

static bool is_taken(const struct clear *k, const struct copy *c)
{
	for (size_t r = 0; c->segment == k->g->number && r < c->n_ranges; r++) {
		uint64_t end = c->ranges[r].offset + alloc_round(c->ranges[r].bytes);
		for (uint64_t i = c->ranges[r].offset / k->cell;
		     i < k->n_cells && i * k->cell < end; i++)
			if (k->price[i] == TAKEN)
				return true;
	}
	return false;
}

static void take(struct mind *m, struct clear *k, const struct copy *c)
{
	if (!(c->flags & COPY_COMING) && is_taken(k, c) && evict_may(m, c->obj))
		k->n_evicted += evict_obj(m, c->obj) == ERR_NONE;
}

/* ---- in slices ---- */

static void walk(struct mind *m, struct clear *k)
{
	for (int n = 0; n < PAGES && k->page < k->h->n_pages; n++, k->page++) {
		const struct slot_page *p = k->h->pages[k->page];
		for (uint32_t i = 0; p && i < SLOT_PAGE; i++)
			if (!p->at[i])
				continue;
			else if (k->picked)
				take(m, k, p->at[i]);
			else
				price(m, k, p->at[i]);
	}
}

static void ended(struct mind *m, bool vain)
{
	m->clear_vain = vain;
	m->clear_ns = m->now + (vain ? VAIN_MS : LATE_MS) * 1000000ull;
	clear_free(m);
	m->space_dirty = true;
}

bool clear_work(struct mind *m)
{
	struct clear *k = m->clear;
	if (!k)
		return false;
	if (!holder_gives(m, k->h) ||
	    k->h->merge != k->merge) { /* no use now, or another knowledge */
		ended(m, false);
		return false;
	}
	walk(m, k);
	if (k->page < k->h->n_pages)
		return true;
	if (k->picked) {
		ended(m, k->n_evicted == 0 && m->coming == 0);
		return false;
	}
	price_writers(k);
	k->page = 0;
	k->picked = pick_some(m, k);
	if (!k->picked)
		ended(m, true);
	return m->clear;
}
