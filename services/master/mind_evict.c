/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction (B2): plain LRU by last real use. Skipped: leased, being written, hard-pinned; soft-pinned
 * until nothing else is left. An evicted object is RETIRED first and served until that is acknowledged,
 * so that nobody is told NOT_FOUND of what a new master would serve again. No tombstones (V7).
 */
#include "mind_priv.h"

enum { LOOK = 1024, /* objects looked at in one go (I6) */ };

static uint64_t bytes_of(const struct obj *o)
{
	uint64_t n = 0;
	for (const struct copy *c = o->copies; c; c = c->next)
		for (size_t i = 0; c->state == COPY_COMMITTED && i < c->n_ranges; i++)
			n += alloc_round(c->ranges[i].bytes);
	return n;
}

/* Nothing is going on with it, and all its copies can be reached. */
static bool evictable(const struct mind *m, const struct obj *o)
{
	if (o->work || obj_leased(m, o))
		return false;
	bool any = false;
	for (const struct copy *c = o->copies; c; c = c->next) {
		if (m->holders[c->holder]->state != HOLDER_MERGED)
			return false;
		any |= c->state == COPY_COMMITTED;
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

enum err evict_obj(struct mind *m, struct obj *o)
{
	if (!obj_served(m, o))
		return ERR_NOT_FOUND;
	if (!evictable(m, o))
		return ERR_BUSY;
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

/* Soft pins that have ended are plain again, oldest first. */
static void unpin(struct mind *m)
{
	for (int n = 0; n < LOOK && !list_empty(&m->lru[LRU_SOFT]); n++) {
		struct obj *o = list_entry(m->lru[LRU_SOFT].next, struct obj, lru);
		uint64_t until = 0;
		for (const struct copy *c = o->copies; c; c = c->next)
			if (c->opts)
				until = MAX_OF(until, c->opts->soft_until_ns);
		if (until > m->now)
			return;
		lru_del(m, o);
		lru_add(m, o, LRU_PLAIN, true);
	}
}

struct round {
	uint64_t want, got;
	bool more; /* not all were looked at */
};

static void look(struct mind *m, struct obj *o, struct round *r)
{
	if (evictable(m, o)) {
		r->got += bytes_of(o);
		evict(m, o);
		m->looked[o->which] = 0;
	} else if (obj_leased(m, o)) {
		uint64_t end = lease_end_ns(m, o);
		m->lease_end_ns = m->lease_end_ns ? MIN_OF(m->lease_end_ns, end) : end;
	}
}

/* From the one used longest ago, until want bytes are on their way. What may not go is in use, and
 * goes to the young end; a whole turn without a victim ends it. */
static void evict_list(struct mind *m, enum lru which, struct round *r)
{
	for (int n = 0; m->looked[which] < m->n_lru[which] && r->got < r->want; n++) {
		if (n == LOOK) {
			r->more = true;
			return;
		}
		struct list *it = m->lru[which].next;
		list_del(it);
		list_push_back(&m->lru[which], it);
		m->looked[which]++;
		look(m, list_entry(it, struct obj, lru), r);
	}
}

static void turn_ends(struct mind *m)
{
	memset(m->looked, 0, sizeof(m->looked));
	m->lease_end_ns = 0;
}

static void evict_round(struct mind *m, struct round *r)
{
	unpin(m);
	evict_list(m, LRU_PLAIN, r);
	if (r->got < r->want && !r->more)
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

static bool all_pinned(const struct mind *m)
{
	return list_empty(&m->lru[LRU_PLAIN]) && list_empty(&m->lru[LRU_SOFT]) &&
	       !list_empty(&m->lru[LRU_HARD]) && m->by_version.n == 0 && m->quarantine == 0 &&
	       later_ns(m) == 0;
}

bool evict_for(struct mind *m, uint64_t bytes, enum err *e, uint32_t *retry_ms)
{
	for (uint32_t i = 0; i < m->n_holders; i++)
		slots_hurry(m, m->holders[i]);
	/* free space that did not fit is in pieces: as much again must come */
	struct round r = { .want = m->coming >= bytes ? 0 : bytes - m->coming };
	if (r.want)
		evict_round(m, &r);
	if (r.got || m->coming || r.more)
		return true;
	uint64_t at = later_ns(m);
	at = m->lease_end_ns && (at == 0 || m->lease_end_ns < at) ? m->lease_end_ns : at;
	turn_ends(m);
	*e = all_pinned(m) ? ERR_POOL_PINNED : ERR_BUSY;
	*retry_ms = *e == ERR_POOL_PINNED ? 0
		    : at > m->now	  ? (uint32_t)((at - m->now) / 1000000 + 1)
					  : 1000;
	return false;
}

bool evict_work(struct mind *m)
{
	double high = m->l.high_watermark * (double)m->total;
	if (m->evict_left == 0 && (double)m->used - (double)m->coming > high)
		m->evict_left = (uint64_t)(m->l.evict_ratio * (double)m->total);
	if (m->evict_left == 0)
		return false;
	struct round r = { .want = m->evict_left };
	evict_round(m, &r);
	m->evict_left = r.more ? m->evict_left - MIN_OF(r.got, m->evict_left) : 0;
	if (!r.more && list_empty(&m->space))
		turn_ends(m);
	return m->evict_left;
}
