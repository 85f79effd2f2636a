/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, where puts go, ranges in quarantine, puts that wait for space (B2, T6). */
#include "mind_priv.h"

static void used_add(struct mind *m, struct holder *h, uint64_t n)
{
	h->used += n;
	if (h->state == HOLDER_MERGED)
		m->used += n;
}

struct segment *seg_of(const struct holder *h, uint32_t number)
{
	for (size_t i = 0; i < h->n_segs; i++)
		if (h->segs[i].number == number)
			return &h->segs[i];
	return NULL;
}

void segs_free(struct mind *m, struct holder *h)
{
	for (size_t i = 0; i < h->n_segs; i++)
		alloc_free(h->segs[i].alloc);
	free(h->segs);
	h->segs = NULL;
	h->n_segs = 0;
	used_add(m, h, -h->used);
	h->n_lost = 0;
}

static void slots_told(struct holder *h, const struct mind_segment *s, size_t n)
{
	h->n_slots = 0;
	for (size_t i = 0; i < n; i++)
		h->n_slots = MAX_OF(h->n_slots, s[i].slots);
}

bool holder_slots_full(const struct holder *h)
{
	return h->n_slots && h->n_copies + h->n_attempts + h->n_pulls >= h->n_slots;
}

enum err segs_reset(struct mind *m, struct holder *h, const struct mind_segment *s, size_t n)
{
	assert(h->state != HOLDER_MERGED);
	segs_free(m, h);
	m->grow_ns = m->now;
	h->segs = calloc(n + 1, sizeof(*h->segs));
	if (!h->segs)
		return ERR_NO_MEMORY;
	slots_told(h, s, n);
	for (size_t i = 0; i < n; i++) {
		struct segment *g = &h->segs[h->n_segs];
		if (s[i].bytes_total == 0 || seg_of(h, s[i].segment))
			continue;
		*g = (struct segment){ .number = s[i].segment,
				       .bytes_total = s[i].bytes_total };
		enum err e = alloc_new(s[i].bytes_total, &g->alloc);
		if (e == ERR_INVALID_PARAMS)
			continue;
		if (e != ERR_NONE)
			return e;
		h->n_segs++;
		if (alloc_grow(g->alloc, s[i].bytes) != ERR_NONE)
			return ERR_NO_MEMORY;
	}
	return ERR_NONE;
}

static uint64_t seg_bytes(const struct holder *h)
{
	uint64_t n = 0;
	for (size_t i = 0; i < h->n_segs; i++)
		n += alloc_bytes(h->segs[i].alloc);
	return n;
}

void segs_grow(struct mind *m, struct holder *h, const struct mind_segment *s, size_t n)
{
	uint64_t was = seg_bytes(h);
	for (size_t i = 0; i < n; i++) {
		struct segment *g = seg_of(h, s[i].segment);
		if (g && alloc_grow(g->alloc, s[i].bytes) != ERR_NONE)
			continue; /* the next REGISTER says it again */
	}
	if (h->state != HOLDER_MERGED || seg_bytes(h) == was)
		return;
	m->total += seg_bytes(h) - was;
	m->grow_ns = m->now;
	m->space_dirty = true;
}

uint64_t segs_growing_ns(const struct mind *m)
{
	uint64_t end = m->grow_ns + GROW_MS * 1000000ull;
	for (uint32_t i = 0; m->now < end && i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		for (size_t s = 0; h->state == HOLDER_MERGED && s < h->n_segs; s++)
			if (alloc_bytes(h->segs[s].alloc) < h->segs[s].bytes_total)
				return end;
	}
	return 0;
}

/* An agent that has just started may answer before it has touched its memory again: what is in use there
 * was ready before, and all that lies in front of it. */
static enum err segment_reach(struct segment *g, const struct range *r)
{
	uint64_t end = r->offset + alloc_round(r->bytes);
	if (end < r->offset || end > g->bytes_total || end <= alloc_bytes(g->alloc))
		return ERR_NONE; /* alloc_reserve judges it */
	return alloc_grow(g->alloc, end);
}

enum err space_reserve(struct mind *m, struct holder *h, uint32_t segment,
		       const struct range *r, size_t n)
{
	struct segment *g = seg_of(h, segment);
	for (size_t i = 0; i < n; i++) {
		enum err e = g ? segment_reach(g, &r[i]) : ERR_CONFLICT;
		if (e == ERR_NONE)
			e = alloc_reserve(g->alloc, r[i].offset, r[i].bytes);
		if (e == ERR_NONE) {
			used_add(m, h, alloc_round(r[i].bytes));
			continue;
		}
		space_give(m, h, segment, r, i);
		return e;
	}
	return ERR_NONE;
}

void space_give(struct mind *m, struct holder *h, uint32_t segment, const struct range *r,
		size_t n)
{
	struct segment *g = seg_of(h, segment);
	for (size_t i = 0; i < n; i++)
		if (alloc_give(g->alloc, r[i].offset, r[i].bytes))
			used_add(m, h, -alloc_round(r[i].bytes));
		else
			h->n_lost++;
	m->space_dirty = true;
}

/* ---- placement ---- */

/* All of `left`, or the largest piece there is. */
static bool take_piece(struct mind *m, struct holder *h, struct segment *g, uint64_t left,
		       struct range *r)
{
	r->bytes = left;
	if (alloc_take(g->alloc, left, &r->offset) != ERR_NONE) {
		r->bytes = alloc_fits(g->alloc);
		if (r->bytes < OBJ_ALIGN || r->bytes >= left ||
		    alloc_take(g->alloc, r->bytes, &r->offset) != ERR_NONE)
			return false;
	}
	used_add(m, h, alloc_round(r->bytes));
	return true;
}

/* One range if one fits, else up to OBJ_EXTENTS_MAX. */
static bool take_ranges(struct mind *m, struct holder *h, struct segment *g, uint64_t bytes,
			struct place *out)
{
	out->h = h;
	out->segment = g->number;
	out->n = 0;
	for (uint64_t left = bytes; left > 0; left -= out->r[out->n++].bytes)
		if (out->n == OBJ_EXTENTS_MAX || !take_piece(m, h, g, left, &out->r[out->n])) {
			space_give(m, h, g->number, out->r, out->n);
			return false;
		}
	return true;
}

bool space_take_at(struct mind *m, struct holder *h, uint64_t bytes, struct place *out)
{
	if (h->state != HOLDER_MERGED || h->draining || holder_slots_full(h)) /* L5 */
		return false;
	for (size_t i = 0; i < h->n_segs; i++) { /* in turn: NUMA nodes fill alike */
		struct segment *g = &h->segs[h->seg_at++ % h->n_segs];
		if (alloc_bytes(g->alloc) - alloc_used(g->alloc) >= bytes &&
		    take_ranges(m, h, g, bytes, out))
			return true;
	}
	return false;
}

uint64_t space_largest(const struct mind *m)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		for (size_t s = 0; holder_in(h) && s < h->n_segs; s++)
			n = MAX_OF(n, h->segs[s].bytes_total / OBJ_ALIGN * OBJ_ALIGN);
	}
	return n;
}

/* An object of no bytes has no ranges, yet a holder keeps its slot. */
static bool take_none(struct mind *m, struct holder *h, struct place *out)
{
	if (h->state != HOLDER_MERGED || h->draining || holder_slots_full(h))
		return false;
	*out = (struct place){ .h = h };
	return true;
}

static bool take_preferred(struct mind *m, uint64_t bytes, const struct bytes_list *preferred,
			   struct place *out)
{
	for (size_t i = 0; i < preferred->n; i++) {
		int64_t at = mind_holder_index(m, preferred->p[i]);
		struct holder *h = at < 0 ? NULL : m->holders[at];
		if (h && !h->suspect &&
		    (bytes ? space_take_at(m, h, bytes, out) : take_none(m, h, out)))
			return true;
	}
	return false;
}

static bool all_draining(const struct mind *m)
{
	for (uint32_t i = 0; m->n_draining && i < m->n_holders; i++)
		if (m->holders[i]->state == HOLDER_MERGED && !m->holders[i]->draining)
			return false;
	return m->n_draining > 0;
}

enum err space_take(struct mind *m, uint64_t bytes, const struct bytes_list *preferred,
		    struct place *out, struct why *why)
{
	uint64_t most = space_largest(m);
	if (all_draining(m))
		return why_set(why, ERR_NOT_READY, "every holder with memory is being drained");
	if (m->total == 0)
		return why_set(why,
			       m->n_unmerged || m->n_partial ? ERR_RECOVERING : ERR_NOT_READY,
			       "no holder with memory is merged yet");
	if (bytes > most && m->n_unmerged == 0)
		return why_set(why, ERR_TOO_LARGE,
			       "%llu bytes with its sums, the largest segment has %llu",
			       (unsigned long long)bytes, (unsigned long long)most);
	if (take_preferred(m, bytes, preferred, out))
		return ERR_NONE;
	for (uint32_t i = 0; bytes == 0 && i < m->n_holders; i++)
		if (take_none(m, m->holders[i], out))
			return ERR_NONE;
	return place_take(m, bytes, out) ? ERR_NONE : ERR_NO_SPACE;
}

/* ---- quarantine ---- */

void quar_add(struct mind *m, struct holder *h, struct attempt *a)
{
	size_t bytes = sizeof(struct quar) + a->n_ranges * sizeof(struct range);
	struct quar *q = calloc(1, bytes);
	if (!q) {
		h->n_lost++; /* its range stays taken until the holder is adopted again */
		return;
	}
	q->version = a->version;
	q->since_ns = m->now;
	q->segment = a->segment;
	q->merge = h->merge;
	q->tenant = a->obj->tenant;
	q->n_ranges = a->n_ranges;
	memcpy(q->ranges, a->ranges, a->n_ranges * sizeof(struct range));
	for (size_t i = 0; i < q->n_ranges; i++)
		q->bytes += alloc_round(q->ranges[i].bytes);
	q->client = a->client;
	client_hold(q->client);
	q->client->quarantine += q->bytes;
	h->quarantine += q->bytes;
	m->quarantine += q->bytes;
	m->bytes += bytes;
	charge_quar(m, q, true);
	list_push_back(&h->quars, &q->node);
}

void quar_free(struct mind *m, struct holder *h, struct quar *q, bool give)
{
	list_del(&q->node);
	if (give)
		space_give(m, h, q->segment, q->ranges, q->n_ranges);
	h->quarantine -= q->bytes;
	m->quarantine -= q->bytes;
	charge_quar(m, q, false);
	if (q->client) {
		q->client->quarantine -= q->bytes;
		client_release(m, q->client);
	}
	m->bytes -= sizeof(*q) + q->n_ranges * sizeof(struct range);
	free(q);
}

enum err mind_range_free(struct mind *m, uint32_t holder, const struct mind_under *u,
			 uint64_t version)
{
	struct holder *h = holder_at(m, holder);
	if (!h || !holder_in(h) || u->term != m->term)
		return h && u->term == m->term ? ERR_STALE_EPOCH : ERR_STALE_TERM;
	if (!same_under(u, &h->under))
		return ERR_STALE_EPOCH;
	const struct attempt *a = attempt_of(m, version);
	if (h->state != HOLDER_MERGED || (a && a->holder == holder) ||
	    pull_of(m, version, holder))
		return ERR_RECOVERING; /* FENCE's answer, that the range waits, may come later */
	mind_enter(m);
	list_for_each_safe (it, &h->quars) {
		struct quar *q = list_entry(it, struct quar, node);
		if (q->version == version)
			quar_free(m, h, q, true);
	}
	mind_leave(m);
	return ERR_NONE;
}

/* ---- puts that wait ---- */

bool space_waited(const struct mind *m)
{
	return !list_empty(&m->space) || !list_empty(&m->over_quota);
}

/* In order, until one has to go on waiting here; true: there are more that may not have to. */
static bool pump(struct mind *m, struct list *l, int *n)
{
	for (; *n > 0 && !list_empty(l); --*n) {
		struct mind_call *c = list_entry(l->next, struct mind_call, node);
		struct list *wait = NULL;
		enum err e = put_try(m, c->on, &wait);
		if (wait == l)
			return false;
		if (wait) {
			list_del(&c->node);
			list_push_back(wait, &c->node);
		} else {
			call_end(m, c, e);
		}
	}
	return !list_empty(l);
}

/* One tenant after the other: who waits for its own holds up nobody else (L4). */
static bool pump_tenants(struct mind *m, int n)
{
	const struct list *first = NULL;
	bool more = false;
	while (n > 0 && !list_empty(&m->over_quota) && m->over_quota.next != first) {
		struct tenant *t = list_entry(m->over_quota.next, struct tenant, waiting);
		list_del(&t->waiting);
		more |= pump(m, &t->waits, &n);
		n--;
		if (list_empty(&t->waits))
			continue;
		if (!list_linked(&t->waiting))
			list_push_back(&m->over_quota, &t->waiting);
		first = first ? first : &t->waiting;
	}
	return more;
}

void space_pump(struct mind *m)
{
	int n = 64;
	m->space_dirty = false;
	bool more = pump(m, &m->space, &n);
	more |= pump_tenants(m, 64);
	m->space_dirty |= more;
}
