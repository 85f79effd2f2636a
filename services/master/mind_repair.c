/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where one more copy goes, what an object lacks, and its repair: in flight at most so many a holder, after a
 * failure later and later. Rules C1..C4: mind_copy.h.
 */
#include "mind_copy.h"

enum {
	LACK_MS = 1000,	    /* the first wait of an object that could not be repaired */
	LACK_DOUBLINGS = 5, /* 32 s */
	LOOK_MS = 5000,	    /* an object is looked at again while its copies are made */
	REST_MS = 20,	    /* all holders have their most */
	TRIES = 64,	    /* objects looked at in one go (I6) */
	MISSES = 16,	    /* without a place: the pool is full */
};

/* ---- where one more goes ---- */

uint32_t copies_live(const struct mind *m, const struct obj *o, uint64_t version)
{
	uint32_t n = 0;
	for (const struct copy *c = o->copies; c; c = c->next)
		n += c->version == version && c->state == COPY_COMMITTED &&
		     (c->flags & COPY_SERVED) && holder_in(m->holders[c->holder]);
	return n;
}

uint32_t pulls_live(const struct obj *o, uint64_t version)
{
	uint32_t n = 0;
	for (const struct pull *p = o->work ? o->work->pulls : NULL; p; p = p->next)
		n += p->version == version && p->state != PULL_FENCING;
	return n;
}

/* C1, C4. In whatever state its slot is. */
static bool may_have(const struct obj *o, uint64_t version, const struct holder *h)
{
	if (!holder_in(h) || h->draining)
		return false;
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->holder == h->index && c->version == version)
			return false;
	for (const struct pull *p = o->work ? o->work->pulls : NULL; p; p = p->next)
		if (p->holder == h->index && p->version == version)
			return false;
	return true;
}

static bool same_host(const struct mind *m, const struct obj *o, uint64_t version,
		      const struct holder *h)
{
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->version == version && strcmp(m->holders[c->holder]->host, h->host) == 0)
			return true;
	return false;
}

static uint64_t bytes_of(const struct holder *h)
{
	uint64_t n = 0;
	for (size_t i = 0; i < h->n_segs; i++)
		n += alloc_bytes(h->segs[i].alloc);
	return n;
}

/* The lower the better: who answers, another host, who is grown up, who has more room. */
static uint32_t rank_of(const struct mind *m, const struct obj *o, uint64_t version,
			const struct holder *h)
{
	uint64_t n = bytes_of(h);
	uint32_t full = n ? (uint32_t)(h->used * 1000 / n) : 1000;
	return h->suspect * 8000 + same_host(m, o, version, h) * 4000 + h->young * 2000 +
	       MIN_OF(full, 1000u);
}

static bool take_at(struct mind *m, struct holder *h, uint64_t bytes, struct place *out)
{
	if (h->kind == 2 && h->state == HOLDER_MERGED) { /* it chooses the place itself */
		*out = (struct place){ .h = h };
		return true;
	}
	return space_take_at(m, h, bytes, out);
}

static bool at_most(const struct mind *m, const struct holder *h, enum copy_for why)
{
	return why != COPY_FOR_PUT &&
	       (h->n_pulls >= m->l.copies_per_holder || m->now < h->copy_rest_ns);
}

/* C3 */
static bool too_full(const struct mind *m, uint64_t bytes, enum copy_for why)
{
	return why == COPY_FOR_REPAIR &&
	       (double)(m->used + bytes) > m->l.high_watermark * (double)m->total;
}

static enum err place_at(struct mind *m, const struct obj *o, uint64_t version, uint64_t bytes,
			 struct holder *to, enum copy_for why, struct place *out)
{
	if (!may_have(o, version, to) || to->state != HOLDER_MERGED)
		return ERR_NOT_READY;
	if (at_most(m, to, why))
		return ERR_BUSY;
	return take_at(m, to, bytes, out) ? ERR_NONE : ERR_NO_SPACE;
}

/* The best one not above `over`, the rank of the last that had no room. */
static struct holder *best_of(const struct mind *m, const struct obj *o, uint64_t version,
			      enum copy_for why, uint64_t over, uint64_t *rank, enum err *e)
{
	struct holder *best = NULL;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		struct holder *h = m->holders[i];
		if (h->state != HOLDER_MERGED || h->kind == 2 || !may_have(o, version, h))
			continue;
		*e = *e == ERR_NOT_READY ? ERR_NO_SPACE : *e;
		if (at_most(m, h, why)) {
			*e = ERR_BUSY;
			continue;
		}
		uint64_t r = ((uint64_t)rank_of(m, o, version, h) << 16 | i) + 1;
		if (r > over && (!best || r < *rank)) {
			best = h;
			*rank = r;
		}
	}
	return best;
}

enum err copy_place(struct mind *m, const struct obj *o, uint64_t version, uint64_t bytes,
		    struct holder *to, enum copy_for why, struct place *out)
{
	enum err e = ERR_NOT_READY;
	uint64_t over = 0, rank = 0;
	if (too_full(m, bytes, why))
		return ERR_NO_SPACE;
	if (to)
		return place_at(m, o, version, bytes, to, why, out);
	for (int i = 0; i < 8; i++, over = rank) {
		struct holder *h = best_of(m, o, version, why, over, &rank, &e);
		if (!h)
			return e;
		if (take_at(m, h, bytes, out))
			return ERR_NONE;
	}
	return e;
}

static bool is_taken(const struct place *taken, size_t n, const struct holder *h)
{
	for (size_t i = 0; i < n; i++)
		if (taken[i].h == h)
			return true;
	return false;
}

static bool may_beside(const struct place *taken, size_t n, const struct holder *h)
{
	return h->state == HOLDER_MERGED && h->kind != 2 && !h->draining &&
	       !is_taken(taken, n, h);
}

/* Who answers, on another host than the first, with the most room; the last that had none was of rank `over`. */
static struct holder *best_beside(const struct mind *m, const struct place *taken, size_t n,
				  uint64_t over, uint64_t *rank)
{
	struct holder *best = NULL;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		struct holder *h = m->holders[i];
		uint64_t all = bytes_of(h);
		uint64_t r = h->suspect * 8000ull +
			     (strcmp(h->host, taken[0].h->host) == 0) * 4000ull +
			     h->young * 2000ull + (all ? h->used * 1000 / all : 1000);
		r = (r << 16 | i) + 1;
		if (may_beside(taken, n, h) && r > over && (!best || r < *rank)) {
			best = h;
			*rank = r;
		}
	}
	return best;
}

enum err copy_place_beside(struct mind *m, uint64_t bytes, const struct bytes_list *preferred,
			   const struct place *taken, size_t n, struct place *out)
{
	uint64_t over = 0, rank = 0;
	struct holder *h;
	for (size_t i = 0; i < preferred->n; i++) {
		int64_t at = mind_holder_index(m, preferred->p[i]);
		h = at < 0 ? NULL : m->holders[at];
		if (h && !h->suspect && may_beside(taken, n, h) &&
		    space_take_at(m, h, bytes, out))
			return ERR_NONE;
	}
	for (; (h = best_beside(m, taken, n, over, &rank)); over = rank)
		if (space_take_at(m, h, bytes, out))
			return ERR_NONE;
	if (over)
		return ERR_NO_SPACE;
	return m->n_unmerged || m->n_partial ? ERR_RECOVERING : ERR_NOT_READY;
}

static bool over_quota(const struct mind *m, const struct obj *o, uint64_t bytes)
{
	const struct tenant *t = m->tenant[o->tenant];
	return t->quota && t->quota->memory && t->used + alloc_round(bytes) > t->quota->memory;
}

enum err copy_begin(struct mind *m, struct obj *o, const struct copy *of, struct holder *to,
		    enum copy_for why, struct pull **out)
{
	struct place at;
	uint64_t bytes = obj_stored_bytes(of->size);
	if (of->state != COPY_COMMITTED || !(of->flags & COPY_SERVED) || group_holds(of))
		return ERR_CONFLICT;
	if (over_quota(m, o, bytes))
		return ERR_QUOTA;
	enum err e = copy_place(m, o, of->version, bytes, to, why, &at);
	if (e != ERR_NONE)
		return e;
	struct pull *p =
		pull_new(m, o, of->version, of->size, of->opts ? &of->opts->m : NULL, &at);
	if (!p)
		return ERR_NO_MEMORY;
	pull_say(m, p, of);
	*out = p;
	return ERR_NONE;
}

/* ---- what an object is to have ---- */

static struct lack *lack_of(const struct obj *o)
{
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->opts && c->opts->lack)
			return c->opts->lack;
	return NULL;
}

static uint64_t back_off(const struct lack *l)
{
	return (uint64_t)LACK_MS << MIN_OF(l->tries, (uint32_t)LACK_DOUBLINGS);
}

static void lack_at(struct mind *m, struct lack *l, uint64_t ns)
{
	heap_remove(&m->lacks, &l->node);
	heap_insert(&m->lacks, &l->node, ns);
}

void lack_later(struct mind *m, struct obj *o)
{
	struct lack *l = lack_of(o);
	if (!l)
		return;
	lack_at(m, l, in_ms(m, back_off(l)));
	l->tries++;
}

static struct copy *served_of(const struct mind *m, const struct obj *o, uint64_t version)
{
	for (struct copy *c = o->copies; c; c = c->next)
		if (c->version == version && c->state == COPY_COMMITTED &&
		    holder_in(m->holders[c->holder]))
			return c;
	return NULL;
}

static void pull_step(struct mind *m, struct obj *o, struct pull *p)
{
	const struct attempt *a = o->work->attempt;
	const struct copy *c = served_of(m, o, p->version);
	if (p->state != PULL_PLANNED) {
		/* none is left to copy from; FENCE would bar the version there for good, should one return */
		/* while its holder is adopted anew its range is no longer the allocator's: its directory ends it */
		if (!c && !p->told && p->state != PULL_FENCING &&
		    m->holders[p->holder]->state == HOLDER_MERGED)
			pull_end(m, p, true, ERR_NOT_FOUND, NULL);
		return;
	}
	if (a && a->version == p->version)
		return;
	if (!c || group_holds(c))
		pull_end(m, p, true, ERR_CANCELLED, NULL);
	else if (c->flags & COPY_SERVED)
		pull_say(m, p, c);
}

void lack_free(struct mind *m, struct opts *o)
{
	if (!o->lack)
		return;
	heap_remove(&m->lacks, &o->lack->node);
	m->bytes -= sizeof(*o->lack);
	free(o->lack);
	o->lack = NULL;
}

static void lack_set(struct mind *m, struct lack *l, struct opts *to)
{
	if (l && l->opts == to)
		return;
	if (l) {
		l->opts->lack = NULL;
	} else {
		l = calloc(1, sizeof(*l));
		if (!l)
			return; /* the next step tries again */
		m->bytes += sizeof(*l);
		heap_insert(&m->lacks, &l->node, m->now);
	}
	l->opts = to;
	to->lack = l;
}

static void lack_step(struct mind *m, struct obj *o)
{
	struct copy *c = obj_served(m, o);
	struct lack *l = lack_of(o);
	c = c ? served_of(m, o, c->version) : NULL;
	uint32_t want = c && c->opts && (c->flags & COPY_SERVED) ? c->opts->m.replica_num : 0;
	if (want > 1 && copies_live(m, o, c->version) < want)
		lack_set(m, l, c->opts);
	else if (l)
		lack_free(m, l->opts);
}

/* C4: what is readable elsewhere goes from a holder that is drained. */
static void drain_step(struct mind *m, struct obj *o)
{
	const struct copy *s = obj_served(m, o);
	uint32_t n = 0;
	for (const struct copy *c = s ? o->copies : NULL; c; c = c->next) {
		const struct holder *h = m->holders[c->holder];
		n += c->version == s->version && c->state == COPY_COMMITTED &&
		     (c->flags & COPY_SERVED) && h->state == HOLDER_MERGED && !h->draining;
	}
	if (n == 0)
		return;
	uint32_t want = s->opts ? MAX_OF(s->opts->m.replica_num, 1u) : 1;
	for (struct copy *c = o->copies; c; c = c->next) {
		struct holder *h = m->holders[c->holder];
		if (!h->draining || c->version != s->version || c->state != COPY_COMMITTED ||
		    h->state != HOLDER_MERGED || group_holds(c))
			continue;
		/* as many as it is to have, or as many as there can be */
		if (n < want && !drain_may_go(m, o, c))
			continue;
		h->moved++;
		h->moved_bytes += c->size;
		copy_retire(m, c, RETIRE_MOVED);
	}
}

void copies_step(struct mind *m, struct obj *o)
{
	for (struct pull *p = o->work ? o->work->pulls : NULL, *next; p; p = next) {
		next = p->next;
		pull_step(m, o, p);
	}
	if (o->copies && (o->copies->next || o->copies->opts)) {
		lack_step(m, o);
		if (m->n_draining)
			drain_step(m, o);
	}
}

bool drain_may_go(const struct mind *m, const struct obj *o, const struct copy *c)
{
	if (pulls_live(o, c->version))
		return false;
	for (uint32_t i = 0; i < m->n_holders; i++)
		if (m->holders[i]->kind != 2 && may_have(o, c->version, m->holders[i]))
			return false;
	return true;
}

enum err copies_enough(const struct mind *m, const struct obj *o, uint64_t version, bool *wait,
		       uint32_t *made)
{
	const struct copy *c = served_of(m, o, version);
	uint32_t n = *made = copies_live(m, o, version);
	if (!c || n == 0 || !c->opts || n >= c->opts->m.replicas_required)
		return ERR_NONE;
	*wait = pulls_live(o, version) > 0;
	for (uint32_t i = 0; !*wait && i < m->n_holders; i++)
		*wait = m->holders[i]->kind != 2 && may_have(o, version, m->holders[i]);
	return *wait ? ERR_NONE : ERR_NOT_READY;
}

/* ---- repair ---- */

/* ERR_NONE: as many are under way as it lacks. */
static enum err repair(struct mind *m, struct obj *o, const struct copy *c)
{
	uint32_t live = copies_live(m, o, c->version), n = live + pulls_live(o, c->version);
	bool waits =
		o->work && !list_empty(&o->work->pubs); /* a put, for its acknowledgement */
	enum err e = ERR_NONE;
	struct pull *p;
	for (; n < c->opts->m.replica_num && e == ERR_NONE; n++)
		e = copy_begin(m, o, c, NULL,
			       waits && n < c->opts->m.replicas_required ? COPY_FOR_PUT
									 : COPY_FOR_REPAIR,
			       &p);
	return e;
}

/* false: nobody may take more now. */
static bool lack_try(struct mind *m, struct lack *l, int *misses)
{
	struct obj *o = l->opts->copy->obj;
	struct copy *c = served_of(m, o, l->opts->copy->version);
	enum err e = c && c->opts ? repair(m, o, c) : ERR_NONE;
	if (e == ERR_BUSY)
		return false;
	if (e == ERR_NONE) {
		lack_at(m, l, in_ms(m, LOOK_MS));
		return true;
	}
	*misses += e == ERR_NO_SPACE;
	lack_later(m, o);
	return true;
}

/* Before all are merged nobody knows what is missing. */
static bool may_repair(const struct mind *m)
{
	return m->n_unmerged == 0 && m->n_partial == 0;
}

bool copies_work(struct mind *m)
{
	struct heap_node *n = NULL;
	int misses = 0;
	pulls_say_due(m);
	if (!may_repair(m) || m->now < m->copy_ns)
		return false;
	for (int i = 0; i < TRIES && (n = heap_min(&m->lacks)) && n->key <= m->now; i++) {
		bool more = lack_try(m, container_of(n, struct lack, node), &misses);
		if (more && misses < MISSES)
			continue;
		m->copy_ns = in_ms(m, more ? LACK_MS : REST_MS);
		return false;
	}
	return n && n->key <= m->now;
}

uint64_t copies_due_ns(const struct mind *m)
{
	const struct heap_node *a = heap_min(&m->pulls_due), *b = heap_min(&m->lacks);
	uint64_t due = a ? a->key : UINT64_MAX;
	if (b && may_repair(m))
		due = MIN_OF(due, MAX_OF(b->key, m->copy_ns));
	return due;
}

/* ---- for the checker ---- */

static struct copy *copy_at(const struct mind *m, const struct obj *o, uint32_t holder)
{
	const struct copy *s = obj_served(m, o);
	for (struct copy *c = s ? o->copies : NULL; c; c = c->next)
		if (c->version == s->version && c->holder == holder)
			return c;
	return NULL;
}

enum err mind_copy_to(struct mind *m, struct bytes tenant, struct bytes key, uint32_t holder)
{
	struct obj *o = obj_find(m, tenant_of(m, tenant, false), key);
	const struct copy *s = obj_served(m, o);
	struct pull *p;
	if (!s || !holder_at(m, holder))
		return ERR_NOT_FOUND;
	s = served_of(m, o, s->version);
	if (!s)
		return ERR_BUSY;
	if (copy_at(m, o, holder))
		return ERR_EXISTS;
	mind_enter(m);
	enum err e = copy_begin(m, o, s, m->holders[holder], COPY_FOR_PUT, &p);
	mind_leave(m);
	return e == ERR_NONE ? e : ERR_BUSY;
}

enum err mind_copy_drop(struct mind *m, struct bytes tenant, struct bytes key, uint32_t holder)
{
	struct obj *o = obj_find(m, tenant_of(m, tenant, false), key);
	struct copy *c = o ? copy_at(m, o, holder) : NULL;
	if (!c)
		return ERR_NOT_FOUND;
	if (c->state != COPY_COMMITTED || m->holders[holder]->state != HOLDER_MERGED)
		return ERR_BUSY;
	for (const struct copy *k = o->copies; k; k = k->next)
		if (k != c && k->version == c->version && k->state == COPY_COMMITTED &&
		    (k->flags & COPY_SERVED) && m->holders[k->holder]->state == HOLDER_MERGED) {
			mind_enter(m);
			copy_retire(m, c, RETIRE_MOVED);
			mind_leave(m);
			return ERR_NONE;
		}
	return ERR_BUSY;
}
