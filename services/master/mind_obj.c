/* SPDX-License-Identifier: Apache-2.0 */
/* The table of objects: copies, options, order of use, leases; what readers ask. */
#include "mind_priv.h"

static size_t obj_bytes(size_t key_n)
{
	return offsetof(struct obj, key) + key_n;
}

static size_t copy_bytes(size_t n_ranges)
{
	return sizeof(struct copy) + n_ranges * sizeof(struct range);
}

struct obj_name {
	uint16_t tenant;
	struct bytes key;
};

static bool obj_eq(const struct map_node *n, const void *key)
{
	const struct obj *o = container_of(n, struct obj, node);
	const struct obj_name *k = key;
	return o->tenant == k->tenant && o->key_n == k->key.n &&
	       memcmp(o->key, k->key.p, k->key.n) == 0;
}

static uint64_t hash_of(const struct mind *m, uint16_t tenant, struct bytes key)
{
	return bits_reversed(obj_key_hash(tenant_name(m, tenant), key));
}

struct obj *obj_find(const struct mind *m, uint16_t tenant, struct bytes key)
{
	if (tenant == TENANTS_MAX)
		return NULL;
	const struct obj_name k = { tenant, key };
	struct map_node *n = map_find(&m->objs, hash_of(m, tenant, key), obj_eq, &k);
	return n ? container_of(n, struct obj, node) : NULL;
}

void mind_warm(struct mind *m, struct bytes tenant, const struct bytes *keys, size_t n)
{
	uint16_t t = tenant_of(m, tenant, false);
	uint64_t hash[MIND_WARM];
	if (t == TENANTS_MAX)
		return;
	n = MIN_OF(n, (size_t)MIND_WARM);
	for (size_t i = 0; i < n; i++) {
		hash[i] = hash_of(m, t, keys[i]);
		map_warm_bucket(&m->objs, hash[i]);
	}
	for (size_t i = 0; i < n; i++)
		map_warm_node(&m->objs, hash[i]);
	for (size_t i = 0; i < n; i++) {
		struct map_node *o = map_peek(&m->objs, hash[i]);
		if (o)
			__builtin_prefetch(container_of(o, struct obj, node)->copies);
	}
}

enum err obj_merge(struct mind *m, uint16_t tenant, struct bytes key, struct obj **out)
{
	const struct obj_name k = { tenant, key };
	uint64_t hash = hash_of(m, tenant, key);
	struct map_node *n = map_find(&m->objs, hash, obj_eq, &k);
	if (n) {
		*out = container_of(n, struct obj, node);
		return ERR_NONE;
	}
	struct obj *o = new_zeroed(MAX_OF(obj_bytes(key.n), sizeof(*o)));
	if (!o)
		return ERR_NO_MEMORY;
	o->tenant = tenant;
	o->key_n = (uint16_t)key.n;
	memcpy(o->key, key.p, key.n);
	if (map_insert(&m->objs, &o->node, hash) != ERR_NONE) {
		free(o);
		return ERR_NO_MEMORY;
	}
	m->bytes += obj_bytes(key.n);
	*out = o;
	return ERR_NONE;
}

enum err obj_get(struct mind *m, uint16_t tenant, struct bytes key, struct obj **out)
{
	if (m->bytes >= m->l.index_bytes_max && !obj_find(m, tenant, key))
		return ERR_BUSY;
	return obj_merge(m, tenant, key, out);
}

void obj_gc(struct mind *m, struct obj *o)
{
	if (o->copies || o->work)
		return;
	assert(!list_linked(&o->lru));
	m->bytes -= obj_bytes(o->key_n);
	map_remove(&m->objs, &o->node);
	free(o);
}

struct work *work_get(struct mind *m, struct obj *o)
{
	if (o->work)
		return o->work;
	struct work *w = new_zeroed(sizeof(*w));
	if (!w)
		return NULL;
	w->obj = o;
	list_init(&w->pubs);
	list_init(&w->rems);
	list_push_back(&m->active, &w->node);
	m->bytes += sizeof(*w);
	return o->work = w;
}

/* Is there a version that waits for T2? */
static bool has_pending(const struct mind *m, const struct obj *o)
{
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->state == COPY_COMMITTED && !(c->flags & COPY_SERVED) &&
		    holder_in(m->holders[c->holder]))
			return true;
	return false;
}

void work_gc(struct mind *m, struct obj *o)
{
	struct work *w = o->work;
	if (!w || w->attempt || w->pulls || w->asking || !list_empty(&w->pubs) ||
	    !list_empty(&w->rems) || has_pending(m, o))
		return;
	list_del(&w->node);
	m->bytes -= sizeof(*w);
	free(w);
	o->work = NULL;
}

/* ---- options ---- */

bool opts_default(const struct msg_put_opts *o)
{
	return !o || (o->replica_num <= 1 && !o->durable && !o->hard_pin && !o->soft_pin_ms &&
		      o->group.n == 0 && o->format.n == 0);
}

enum err opts_copy(struct mind *m, const struct msg_put_opts *o, struct opts **out)
{
	*out = NULL;
	if (opts_default(o))
		return ERR_NONE;
	size_t bytes = sizeof(struct opts) + o->group.n + o->format.n;
	struct opts *p = malloc(bytes);
	if (!p)
		return ERR_NO_MEMORY;
	uint8_t *at = (uint8_t *)(p + 1);
	*p = (struct opts){ .m = *o, .bytes = bytes };
	if (o->group.n)
		memcpy(at, o->group.p, o->group.n);
	if (o->format.n)
		memcpy(at + o->group.n, o->format.p, o->format.n);
	p->m.group = BYTES(at, o->group.n);
	p->m.format = BYTES(at + o->group.n, o->format.n);
	m->bytes += bytes;
	*out = p;
	return ERR_NONE;
}

void opts_free(struct mind *m, struct opts *o)
{
	if (!o)
		return;
	group_leave(m, o);
	lack_free(m, o);
	heap_remove(&m->softs, &o->soft);
	m->bytes -= o->bytes;
	free(o);
}

/* ---- copies ---- */

struct copy *copy_new(struct mind *m, struct obj *o, struct holder *h, uint32_t slot,
		      size_t n_ranges)
{
	struct copy *c = new_zeroed(copy_bytes(n_ranges));
	if (!c)
		return NULL;
	c->obj = o;
	c->slot = slot;
	c->holder = (uint16_t)h->index;
	c->n_ranges = (uint8_t)n_ranges;
	if (slot_put(m, h, slot, c) != ERR_NONE) {
		free(c);
		return NULL;
	}
	c->next = o->copies;
	o->copies = c;
	h->n_copies++;
	m->n_copies++;
	m->bytes += copy_bytes(n_ranges);
	return c;
}

uint64_t space_of(const struct copy *c)
{
	uint64_t n = 0;
	for (size_t i = 0; i < c->n_ranges; i++)
		n += alloc_round(c->ranges[i].bytes);
	return MAX_OF(n, 1u);
}

void copy_coming(struct mind *m, struct copy *c, bool on)
{
	bool is = c->flags & COPY_COMING;
	if (c->flags & COPY_LATER)
		m->later -= space_of(c);
	c->flags &= (uint8_t)~COPY_LATER;
	if (is == on)
		return;
	uint64_t n = on ? space_of(c) : -space_of(c);
	c->flags ^= COPY_COMING;
	m->coming += n;
	m->holders[c->holder]->coming += n;
	m->tenant[c->obj->tenant]->coming += n;
}

void copy_later(struct mind *m, struct copy *c)
{
	copy_coming(m, c, false);
	c->flags |= COPY_LATER;
	m->later += space_of(c);
}

static void unlink_copy(struct copy *c)
{
	struct copy **at = &c->obj->copies;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
}

/* What waits for its RETIRE waits no more. */
static void copy_unflag(struct mind *m, struct copy *c)
{
	if (c->flags & COPY_BARRED)
		m->holders[c->holder]->n_barred--;
	if ((c->flags & COPY_RANGED) && !list_empty(&m->ranges))
		list_entry(m->ranges.next, struct range_op, node)->n_owed--;
	c->flags &= (uint8_t) ~(COPY_BARRED | COPY_RANGED);
}

void copy_drop(struct mind *m, struct copy *c, bool give)
{
	struct holder *h = m->holders[c->holder];
	copy_unserve(m, c);
	copy_coming(m, c, false);
	copy_unflag(m, c);
	slot_take(m, h, c->slot);
	charge_copy(m, c, false);
	unlink_copy(c);
	if (give)
		space_give(m, h, c->segment, c->ranges, c->n_ranges);
	h->n_copies--;
	m->n_copies--;
	m->bytes -= copy_bytes(c->n_ranges);
	opts_free(m, c->opts);
	free(c);
}

void copy_state(struct mind *m, struct copy *c, enum copy_state s)
{
	if (c->state <= COPY_COMMITTED && s >= COPY_RETIRING && !(c->flags & COPY_SERVED))
		c->free_ns = 0; /* nobody read it */
	c->state = (uint8_t)s;
	copy_coming(m, c, s >= COPY_RETIRING);
	group_state(m, c);
	if (s >= COPY_RETIRED)
		copy_unflag(m, c);
}

/* ---- what is served, order of use ---- */

static uint32_t tick_of(const struct mind *m, uint64_t ns)
{
	return (uint32_t)MIN_OF((ns - m->start_ns) >> TICK_BITS, UINT32_MAX - 1ull);
}

enum lru lru_of(const struct mind *m, const struct obj *o)
{
	enum lru w = LRU_PLAIN;
	for (const struct copy *c = o->copies; c; c = c->next) {
		if (!(c->flags & COPY_SERVED) || !c->opts)
			continue;
		if (c->opts->m.hard_pin)
			return LRU_HARD;
		if (c->opts->soft_until_ns > m->now)
			w = LRU_SOFT;
	}
	return w;
}

static bool any_served(const struct obj *o)
{
	const struct copy *c = o->copies;
	while (c && !(c->flags & COPY_SERVED))
		c = c->next;
	return c;
}

void lru_del(struct mind *m, struct obj *o)
{
	if (!list_linked(&o->lru))
		return;
	list_del(&o->lru);
	set_of(m, o)->objs[o->which].n--;
}

void lru_add(struct mind *m, struct obj *o, enum lru which, bool old)
{
	struct lru_queue *q = &set_of(m, o)->objs[which];
	o->which = (uint8_t)which;
	q->n++;
	if (old)
		list_push_front(&q->l, &o->lru);
	else
		list_push_back(&q->l, &o->lru);
}

static void lru_place(struct mind *m, struct obj *o)
{
	lru_del(m, o);
	if (!group_of(o)) /* a group has its place, its members have none */
		lru_add(m, o, lru_of(m, o), false);
}

/* A soft pin starts when the first replica is readable; further ones, and reads, prolong nothing. */
static void soft_begin(struct mind *m, struct copy *c)
{
	struct opts *p = c->opts;
	uint64_t until = m->now + MIN_OF(p->m.soft_pin_ms, SOFT_PIN_MAX_MS) * 1000000;
	for (const struct copy *k = c->obj->copies; k; k = k->next)
		if (k != c && k->version == c->version && k->opts && k->opts->soft_until_ns)
			until = MIN_OF(until, k->opts->soft_until_ns);
	if (p->soft_until_ns)
		return;
	p->soft_until_ns = until;
	if (until > m->now) {
		heap_insert(&m->softs, &p->soft, until);
		group_soft(m, p, true);
	}
}

static void count_served(struct mind *m, const struct obj *o, uint64_t n)
{
	m->n_served += n;
	m->tenant[o->tenant]->n_served += n;
}

void copy_serve(struct mind *m, struct copy *c)
{
	if (c->flags & COPY_SERVED)
		return;
	if (!any_served(c->obj))
		count_served(m, c->obj, 1);
	c->flags |= COPY_SERVED;
	if (c->opts)
		c->opts->copy = c;
	if (c->opts && c->opts->m.soft_pin_ms)
		soft_begin(m, c);
	group_served(m, c, true);
	if (c->obj->used == 0)
		c->obj->used = tick_of(m, m->now);
	lru_place(m, c->obj);
}

void copy_unserve(struct mind *m, struct copy *c)
{
	if (!(c->flags & COPY_SERVED))
		return;
	c->flags &= (uint8_t)~COPY_SERVED;
	if (c->state != COPY_COMMITTED)
		c->free_ns = lease_end_ns(m, c->obj); /* readers may still be at it */
	group_served(m, c, false);
	if (any_served(c->obj)) {
		/* a newer version is of no group, or is not pinned */
		if (!list_linked(&c->obj->lru) || c->obj->which != lru_of(m, c->obj))
			lru_place(m, c->obj);
		return;
	}
	count_served(m, c->obj, -1ull);
	lru_del(m, c->obj);
}

void obj_use(struct mind *m, struct obj *o)
{
	struct group *g = group_of(o);
	o->used = tick_of(m, m->now);
	if (g)
		group_used(m, g);
	else
		lru_place(m, o);
}

bool obj_leased(const struct mind *m, const struct obj *o)
{
	return lease_end_ns(m, o) > m->now;
}

struct copy *obj_served(const struct mind *m, const struct obj *o)
{
	struct copy *best = NULL;
	for (struct copy *c = o ? o->copies : NULL; c; c = c->next)
		if ((c->flags & COPY_SERVED) && holder_in(m->holders[c->holder]) &&
		    (!best || c->version > best->version))
			best = c;
	return best;
}

struct copy *obj_readable(const struct mind *m, const struct obj *o)
{
	struct copy *best = NULL, *any = obj_served(m, o);
	for (struct copy *c = any ? o->copies : NULL; c; c = c->next) {
		const struct holder *h = m->holders[c->holder];
		if (!(c->flags & COPY_SERVED) || !copy_known(h, c) ||
		    c->version != any->version)
			continue;
		if (!best || (m->holders[best->holder]->suspect && !h->suspect))
			best = c;
	}
	return best;
}

/* ---- reading ---- */

static void replica_of(const struct copy *c, struct mind_replica *r, struct extent *ext)
{
	for (size_t i = 0; i < c->n_ranges; i++)
		ext[i] = (struct extent){ c->segment, c->ranges[i].offset, c->ranges[i].bytes };
	*r = (struct mind_replica){ c->holder, c->slot, c->generation, ext, c->n_ranges };
}

/* Those that answer, then memory before disk, then the reader's own host. */
static unsigned rank_of(const struct mind *m, const struct copy *c)
{
	const struct holder *h = m->holders[c->holder];
	bool near = m->near.n && m->near.n == strlen(h->host) &&
		    memcmp(m->near.p, h->host, m->near.n) == 0;
	return h->suspect * 4u + (h->kind == 2) * 2u + !near;
}

/* Among those that are alike each is the first in turn. */
static void take_turns(struct mind *m, const struct copy **all, size_t n)
{
	size_t k = 1;
	while (k < n && rank_of(m, all[k]) == rank_of(m, all[0]))
		k++;
	size_t first = m->shows++ % k;
	const struct copy *c = all[first];
	memmove(all + 1, all, first * sizeof(all[0]));
	all[0] = c;
}

static size_t nearest_first(struct mind *m, const struct obj *o, uint64_t version,
			    const struct copy *all[OBJ_EXTENTS_MAX])
{
	size_t n = 0;
	for (const struct copy *c = o->copies; c && n < OBJ_EXTENTS_MAX; c = c->next) {
		if (!(c->flags & COPY_SERVED) || c->version != version ||
		    !copy_known(m->holders[c->holder], c))
			continue;
		size_t at = n++;
		for (; at > 0 && rank_of(m, all[at - 1]) > rank_of(m, c); at--)
			all[at] = all[at - 1];
		all[at] = c;
	}
	if (n > 1)
		take_turns(m, all, n);
	return n;
}

void obj_show(struct mind *m, const struct obj *o, const struct copy *best,
	      struct mind_object *out)
{
	struct extent *ext = m->shown;
	out->key = obj_key(o);
	out->version = best->version;
	out->size = best->size;
	out->sum = best->sum;
	out->opts = best->opts ? &best->opts->m : NULL;
	out->leased = obj_leased(m, o);
	out->idle_ns = m->now - used_at_ns(m, o);
	out->n_replicas = 0; /* the replicas behind it are not zeroed: 640 bytes a lookup */
	const struct copy *all[OBJ_EXTENTS_MAX];
	size_t n = nearest_first(m, o, best->version, all);
	for (size_t i = 0; i < n; i++) {
		replica_of(all[i], &out->replicas[out->n_replicas++], ext);
		ext += all[i]->n_ranges;
	}
}

/* Might there be a version that nobody may see yet, and that an older master acknowledged? (V6, V12) */
static bool unseen(const struct mind *m, const struct obj *o)
{
	for (const struct copy *c = o ? o->copies : NULL; c; c = c->next)
		if ((c->flags & COPY_MERGED) && !(c->flags & COPY_SERVED) &&
		    c->state < COPY_RETIRED && !(c->flags & COPY_BARRED) &&
		    holder_in(m->holders[c->holder]))
			return !BROKEN(m, MIND_BREAK_NOT_FOUND);
	return false;
}

static enum err absent(const struct mind *m, const struct obj *o, struct why *why)
{
	if (m->n_unmerged || unseen(m, o))
		return why_set(why, ERR_RECOVERING,
			       "the master is still merging what holders have");
	if (m->n_away)
		why_note(why, ERR_NOT_FOUND, "no such key; %u holders are away", m->n_away);
	return ERR_NOT_FOUND;
}

static void lease(struct mind *m, struct obj *o, uint32_t ms)
{
	uint64_t until = m->now + MIN_OF(ms, m->l.lease_max_ms) * 1000000ull;
	if (!obj_leased(m, o))
		o->n_leases = 0;
	o->lease = MAX_OF(o->lease, tick_of(m, until) + 1); /* never shorter than granted */
	struct group *g = group_of(o);
	if (g)
		group_leased(g, o->lease);
}

enum err mind_lookup(struct mind *m, struct bytes tenant, struct bytes key, uint32_t lease_ms,
		     struct bytes format, struct mind_object *out, struct why *why)
{
	enum err e = key_check(key, why);
	if (e != ERR_NONE)
		return e;
	struct obj *o = obj_find(m, tenant_of(m, tenant, false), key);
	struct copy *c = obj_served(m, o);
	if (!c) {
		e = absent(m, o, why);
		m->n.misses += lease_ms && e == ERR_NOT_FOUND;
		return e;
	}
	c = obj_readable(m, o);
	if (!c)
		return why_set(why, ERR_TEMPORARILY_AWAY, "its holder is being adopted again");
	if (format.n && (!c->opts || c->opts->m.format.n != format.n ||
			 memcmp(c->opts->m.format.p, format.p, format.n) != 0))
		return why_set(why, ERR_NOT_FOUND, "the key has an object of another format");
	e = group_readable(m, c, why);
	if (e != ERR_NONE)
		return e;
	if (lease_ms) {
		m->n.hits++;
		lease(m, o, lease_ms);
		if (o->n_leases < UINT16_MAX)
			o->n_leases++;
		obj_use(m, o);
	}
	obj_show(m, o, c, out);
	return ERR_NONE;
}

enum err mind_lookup_near(struct mind *m, struct bytes tenant, struct bytes key,
			  struct bytes host, uint32_t lease_ms, struct bytes format,
			  struct mind_object *out, struct why *why)
{
	m->near = host;
	enum err e = mind_lookup(m, tenant, key, lease_ms, format, out, why);
	m->near = BYTES(NULL, 0);
	return e;
}

static struct obj *leased_obj(struct mind *m, struct bytes tenant, struct bytes key,
			      uint64_t version)
{
	struct obj *o = key.n ? obj_find(m, tenant_of(m, tenant, false), key) : NULL;
	struct copy *c = obj_served(m, o);
	return c && c->version == version ? o : NULL;
}

/* A lease is a time, the longest one granted; when all who took one gave it back, it ends. */
enum err mind_release(struct mind *m, struct bytes tenant, struct bytes key, uint64_t version)
{
	struct obj *o = leased_obj(m, tenant, key, version);
	if (!o)
		return ERR_LEASE_LOST;
	/* at the counter's end it is not known how many there are: time ends it */
	if (o->n_leases > 0 && o->n_leases < UINT16_MAX && --o->n_leases == 0) {
		struct group *g = group_of(o);
		o->lease = 0;
		if (g)
			group_released(g);
		m->space_dirty = true;
	}
	return ERR_NONE;
}

enum err mind_renew(struct mind *m, struct bytes tenant, struct bytes key, uint64_t version,
		    uint32_t lease_ms)
{
	struct obj *o = leased_obj(m, tenant, key, version);
	if (!o)
		return ERR_LEASE_LOST;
	lease(m, o, lease_ms ? lease_ms : m->l.lease_ms);
	if (o->n_leases == 0)
		o->n_leases = 1; /* granted by an older master */
	obj_use(m, o);
	return ERR_NONE;
}
