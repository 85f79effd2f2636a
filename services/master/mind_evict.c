/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction (B2): plain LRU by last real use (B3: probes are none), over all tenants or over one whose quota is
 * used up. Skipped: leased, being written, hard-pinned; soft-pinned until nothing else is left. An evicted object is RETIRED first and served until that is acknowledged,
 * so that nobody is told NOT_FOUND of what a new master would serve again. No tombstones (V7).
 */
#include "mind_priv.h"

enum {
	LOOK = 1024,	    /* objects looked at in one go (I6) */
	INDEX_AT_ONCE = 64, /* objects evicted when the index is full */
};

static uint64_t bytes_of(const struct obj *o)
{
	uint64_t n = 0;
	for (const struct copy *c = o->copies; c; c = c->next)
		n += c->state == COPY_COMMITTED ? space_of(c) : 0;
	return n;
}

/* Nothing is going on with it, and its space comes back now from one holder at least that can use it (L4). */
static bool evictable(const struct mind *m, const struct obj *o)
{
	if (o->work || obj_leased(m, o))
		return false;
	bool any = false;
	for (const struct copy *c = o->copies; c; c = c->next) {
		const struct holder *h = m->holders[c->holder];
		if (h->state != HOLDER_MERGED)
			return false;
		any |= c->state == COPY_COMMITTED && holder_gives(m, h);
	}
	return any;
}

static void evict(struct mind *m, struct obj *o)
{
	m->n.evictions++;
	for (struct copy *c = o->copies; c; c = c->next)
		if (c->state == COPY_COMMITTED)
			copy_retire(m, c, RETIRE_EVICTED);
}

bool evict_may(struct mind *m, struct obj *o)
{
	struct group *g = group_of(o);
	enum lru which = g ? g->which : o->which;
	if (!obj_served(m, o) || which == LRU_HARD || (which == LRU_SOFT && m->l.keep_soft))
		return false;
	return g ? group_evictable(m, g) : evictable(m, o);
}

enum err evict_obj(struct mind *m, struct obj *o)
{
	if (!obj_served(m, o))
		return ERR_NOT_FOUND;
	struct group *g = group_of(o);
	if (g ? !group_evictable(m, g) : !evictable(m, o))
		return ERR_BUSY;
	if (g)
		group_evict(m, g);
	else
		evict(m, o);
	return ERR_NONE;
}

enum err mind_evict(struct mind *m, struct bytes tenant, struct bytes key)
{
	struct obj *o = key.n ? obj_find(m, tenant_of(m, tenant, false), key) : NULL;
	mind_enter(m);
	enum err e = o ? evict_obj(m, o) : ERR_NOT_FOUND;
	mind_leave(m);
	return e;
}

/* Soft pins that have ended are plain again, the oldest in use. */
static void unpin(struct mind *m)
{
	struct heap_node *n;
	for (int i = 0; i < LOOK && (n = heap_min(&m->softs)) && n->key <= m->now; i++) {
		struct opts *p = container_of(n, struct opts, soft);
		struct obj *o = p->copy->obj;
		heap_remove(&m->softs, n);
		group_soft(m, p, false);
		if (!list_linked(&o->lru) || o->which != LRU_SOFT || lru_of(m, o) != LRU_PLAIN)
			continue;
		lru_del(m, o);
		lru_add(m, o, LRU_PLAIN, true);
	}
}

struct round {
	const struct lru_set *only; /* NULL: all sets */
	uint64_t want, got;
	bool more; /* not all were looked at */
};

static void leased_until(struct mind *m, uint64_t end)
{
	if (end > m->now)
		m->lease_end_ns = m->lease_end_ns ? MIN_OF(m->lease_end_ns, end) : end;
}

static void look_obj(struct mind *m, struct lru_queue *q, struct obj *o, struct round *r)
{
	if (evictable(m, o)) {
		r->got += bytes_of(o);
		evict(m, o);
		q->looked = 0;
	} else {
		leased_until(m, lease_end_ns(m, o));
	}
}

static void look_group(struct mind *m, struct lru_queue *q, struct group *g, struct round *r)
{
	if (group_evictable(m, g)) {
		r->got += MAX_OF(g->bytes, 1u);
		group_evict(m, g);
		q->looked = 0;
	} else {
		leased_until(m, group_lease_ns(m, g));
	}
}

static void look(struct mind *m, struct lru_queue *q, struct list *it, struct round *r)
{
	if (q->groups)
		look_group(m, q, list_entry(it, struct group, lru), r);
	else
		look_obj(m, q, list_entry(it, struct obj, lru), r);
}

static uint32_t first_used(const struct lru_queue *q)
{
	return q->groups ? list_entry(q->l.next, struct group, lru)->used
			 : list_entry(q->l.next, struct obj, lru)->used;
}

/* The queue whose first was used longest ago, of those that were not looked through; NULL: none. */
static struct lru_queue *oldest(const struct mind *m, enum lru which, const struct round *r)
{
	struct lru_queue *best = NULL;
	uint32_t used = 0;
	for (uint32_t i = 0; i < 2 * m->n_sets; i++) {
		struct lru_set *s = m->sets[i / 2];
		struct lru_queue *q = i % 2 ? &s->groups[which] : &s->objs[which];
		if (q->looked >= q->n || (r->only && r->only != s))
			continue;
		if (!best || first_used(q) < used) {
			best = q;
			used = first_used(q);
		}
	}
	return best;
}

/* From the one used longest ago, until want bytes are on their way. What may not go is in use, and
 * goes to the young end; a whole turn without a victim ends it. */
static void evict_list(struct mind *m, enum lru which, struct round *r)
{
	struct lru_queue *q;
	for (int n = 0; r->got < r->want && (q = oldest(m, which, r)); n++) {
		if (n == LOOK) {
			r->more = true;
			return;
		}
		struct list *it = q->l.next;
		list_del(it);
		list_push_back(&q->l, it);
		q->looked++;
		look(m, q, it, r);
	}
}

static void turn_ends(struct mind *m)
{
	for (uint32_t i = 0; i < m->n_sets; i++)
		for (int w = 0; w < LRU_N; w++)
			m->sets[i]->objs[w].looked = m->sets[i]->groups[w].looked = 0;
	m->lease_end_ns = 0;
}

bool evict_turning(const struct mind *m)
{
	for (uint32_t i = 0; i < m->n_sets; i++)
		for (int w = 0; w < LRU_N; w++)
			if (m->sets[i]->objs[w].looked || m->sets[i]->groups[w].looked)
				return true;
	return false;
}

static void evict_round(struct mind *m, struct round *r)
{
	unpin(m);
	evict_list(m, LRU_PLAIN, r);
	if (r->got < r->want && !r->more && !m->l.keep_soft)
		evict_list(m, LRU_SOFT, r);
}

/* When the first of what waits for a lease may be freed. */
static uint64_t later_ns(const struct mind *m)
{
	uint64_t at = 0;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		uint64_t l = slots_later_ns(m->holders[i]);
		at = l && (at == 0 || l < at) ? l : at;
	}
	return at;
}

static uint64_t n_in(const struct mind *m, const struct lru_set *only, enum lru which)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < m->n_sets; i++)
		n += !only || only == m->sets[i]
			     ? m->sets[i]->objs[which].n + m->sets[i]->groups[which].n
			     : 0;
	return n;
}

/* Only hard pins are there: time changes nothing. */
static bool all_pinned(const struct mind *m, const struct tenant *only)
{
	const struct lru_set *s = only ? only->set : NULL;
	return n_in(m, s, LRU_PLAIN) == 0 && n_in(m, s, LRU_SOFT) == 0 &&
	       n_in(m, s, LRU_HARD) > 0 && m->by_version.n == 0 && m->pulls.n == 0 &&
	       m->quarantine == 0 && later_ns(m) == 0;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a && (b == 0 || a < b) ? a : b;
}

/* When the first lease, soft pin or wait for an older master's leases ends. */
static uint64_t room_ns(const struct mind *m)
{
	const struct heap_node *soft = m->l.keep_soft ? heap_min(&m->softs) : NULL;
	return sooner(soft ? soft->key : 0, sooner(later_ns(m), m->lease_end_ns));
}

/* On its way back from holders that answer. */
static uint64_t coming_soon(const struct mind *m)
{
	uint64_t n = m->coming;
	for (uint32_t i = 0; i < m->n_holders; i++)
		n -= holder_gives(m, m->holders[i]) ? 0 : m->holders[i]->coming;
	return n;
}

/* Why nothing may go, and when something may. */
static void no_room(struct mind *m, const struct tenant *only, enum err *e, uint32_t *retry_ms)
{
	uint64_t at = room_ns(m);
	turn_ends(m);
	*e = !all_pinned(m, only) ? ERR_BUSY : only ? ERR_QUOTA : ERR_POOL_PINNED;
	*retry_ms = *e != ERR_BUSY ? 0
		    : at > m->now  ? (uint32_t)MIN_OF((at - m->now) / 1000000 + 1, UINT32_MAX)
				   : 1000;
}

bool evict_for(struct mind *m, const struct tenant *only, uint64_t bytes, enum err *e,
	       uint32_t *retry_ms)
{
	uint64_t coming = only ? only->coming : coming_soon(m);
	bytes = MAX_OF(bytes, 1u); /* of a slot, when there are no bytes */
	if (!only &&
	    segs_growing_ns(m)) /* nothing goes for want of memory that is being mounted */
		return true;
	for (uint32_t i = 0; i < m->n_holders; i++)
		slots_hurry(m, m->holders[i]);
	struct round r = { .only = only ? only->set : NULL,
			   .want = coming >= bytes ? 0 : bytes - coming };
	if (r.want && !only && clear_for(m, bytes, coming))
		return true;
	if (r.want)
		evict_round(m, &r);
	if (r.got || coming || r.more || (!only && m->coming))
		return true;
	no_room(m, only, e, retry_ms);
	return false;
}

bool evict_index(struct mind *m, enum err *e, uint32_t *retry_ms)
{
	struct round r = { .want = 1 };
	bool any = coming_soon(m);
	for (int i = 0; !any && i < INDEX_AT_ONCE; i++) {
		r.got = 0;
		evict_round(m, &r);
		if (r.got == 0)
			break;
	}
	any |= m->coming || r.more;
	if (!any)
		no_room(m, NULL, e, retry_ms);
	return any;
}

/* What was evicted already and waits for leases of before has not to be evicted again.
 * What is being drained takes nothing any more: the others have to have the room. */
static bool above(const struct mind *m)
{
	uint64_t used = m->used, total = m->total;
	for (uint32_t i = 0; m->n_draining && i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		if (!h->draining || h->state != HOLDER_MERGED)
			continue;
		used -= h->used;
		for (size_t s = 0; s < h->n_segs; s++)
			total -= alloc_bytes(h->segs[s].alloc);
	}
	return (double)used - (double)m->coming - (double)m->later >
	       m->l.high_watermark * (double)total;
}

/* The same of slots, which small objects fill first. */
static bool slots_above(const struct mind *m)
{
	uint64_t used = 0, total = 0;
	if (m->coming || m->later)
		return false;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		if (h->draining || h->state != HOLDER_MERGED || h->n_slots == 0)
			continue;
		used += h->n_copies + h->n_attempts + h->n_pulls;
		total += h->n_slots;
	}
	return (double)used > m->l.high_watermark * (double)total;
}

uint64_t evict_due_ns(const struct mind *m)
{
	/* what all together have is known when all are merged */
	if (m->n_unmerged || m->n_partial || (!above(m) && !slots_above(m)))
		return UINT64_MAX;
	return MAX_OF(m->now, MAX_OF(m->evict_ns, segs_growing_ns(m)));
}

/* Of bytes; of slots as large a share of what has them, and some of what has nothing else. */
static uint64_t round_bytes(const struct mind *m)
{
	uint64_t n = above(m) ? m->total : MAX_OF(m->used, m->n_copies);
	return MAX_OF((uint64_t)(m->l.evict_ratio * (double)n), 1u);
}

bool evict_work(struct mind *m)
{
	if (m->evict_left == 0 && evict_due_ns(m) <= m->now)
		m->evict_left = round_bytes(m);
	if (m->evict_left == 0)
		return false;
	struct round r = { .want = m->evict_left };
	evict_round(m, &r);
	m->evict_ns = r.got || r.more ? 0 : m->now + RETRY_MS * 1000000ull;
	m->evict_left = r.more ? m->evict_left - MIN_OF(r.got, m->evict_left) : 0;
	if (!r.more && !space_waited(m))
		turn_ends(m);
	return m->evict_left;
}
