/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T2 and T3. obj_step() looks at all that is known of a key and does what is due:
 *
 *	1  a remove under way marks every version up to its ceiling        RETIRE
 *	2  the highest COMMITTED version, v: served if it has the mark; else T2:
 *	   no unmerged holder may know of the key (V8); a tombstone up to v - 1 is durable for every
 *	   away holder (V7); every older version is RETIRED; then v is served
 *	3  removes end when all up to the ceiling is RETIRED, tombstoned, and no holder is unmerged
 *	4  PUBLISHes end: served, or RETIRED again by somebody after T2's conditions held
 *	5  what is RETIRED and not served is freed
 *
 * Nothing irreversible is done for v before V8's condition holds, so that what a slow merge leaves
 * unreadable is as little as can be. The old version is served until v is (T5).
 */
#include "mind_priv.h"

#include "base/fault.h"

static bool live(const struct mind *m, const struct copy *c)
{
	return holder_in(m->holders[c->holder]);
}

bool obj_settled(const struct mind *m, const struct obj *o)
{
	if (BROKEN(m, MIND_BREAK_UNMERGED))
		return true;
	if (m->n_unmerged)
		return false;
	if (m->n_partial == 0)
		return true;
	for (const struct copy *c = o->copies; c; c = c->next)
		if (live(m, c) && m->holders[c->holder]->state != HOLDER_MERGED)
			return false;
	const struct attempt *a = o->work ? o->work->attempt : NULL;
	for (const struct pull *p = o->work ? o->work->pulls : NULL; p; p = p->next)
		if (m->holders[p->holder]->state != HOLDER_MERGED)
			return false;
	return !a || m->holders[a->holder]->state == HOLDER_MERGED;
}

/* ---- tombstones (V7) ---- */

static bool lacks(const struct mind *m, const struct holder *h, const struct obj *o,
		  uint64_t ceiling)
{
	return h->state == HOLDER_AWAY &&
	       meta_barred(h->row, 0, tenant_name(m, o->tenant), obj_key(o)) < ceiling;
}

static void ask(struct mind *m, struct obj *o, uint64_t ceiling, size_t n)
{
	struct app *a = app_new(m, APP_TOMB, n);
	if (!a) {
		retry_later(m);
		return;
	}
	a->obj = o;
	for (uint32_t i = 0, at = 0; i < m->n_holders; i++)
		if (lacks(m, m->holders[i], o, ceiling))
			a->recs[at++] = (struct meta_rec){
				.type = META_TOMB,
				.TOMB = { .holder = BYTES_STR(m->holders[i]->id),
					  .tenant = tenant_name(m, o->tenant),
					  .key = obj_key(o),
					  .ceiling = ceiling,
					  .now = m->last }
			};
	o->work->asking++;
	app_send(m, a);
}

bool tombs_durable(struct mind *m, struct obj *o, uint64_t ceiling)
{
	size_t n = 0;
	for (uint32_t i = 0; m->n_away && i < m->n_holders; i++)
		n += lacks(m, m->holders[i], o, ceiling);
	if (n == 0)
		return true;
	if (o->work->asking == 0 && m->retry_ns == 0)
		ask(m, o, ceiling, n);
	return false;
}

/* ---- marking ---- */

void copy_retire(struct mind *m, struct copy *c, enum retire_reason reason)
{
	c->reason = (uint8_t)reason;
	copy_state(m, c, COPY_RETIRING);
	slot_owe(m, c);
}

void copy_retired(struct mind *m, struct copy *c)
{
	struct holder *h = m->holders[c->holder];
	struct obj *o = c->obj;
	copy_state(m, c, COPY_RETIRED);
	obj_step(m, o);
	holder_settle(m, h);
}

/* Every version below v is RETIRED on all holders that are in, and no copy of one is being made (V13). */
static bool retired_below(const struct mind *m, const struct obj *o, uint64_t v)
{
	if (BROKEN(m, MIND_BREAK_RETIRE))
		return true;
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->version < v && live(m, c) && c->state < COPY_RETIRED)
			return false;
	return !pulls_open(m, o, v - 1);
}

static void retire_below(struct mind *m, struct obj *o, uint64_t v, enum retire_reason reason)
{
	for (struct copy *c = o->copies; c; c = c->next)
		if (c->version < v && live(m, c) && c->state == COPY_COMMITTED)
			copy_retire(m, c, reason);
	pulls_cancel(m, o, v - 1);
}

/* ---- T2 ---- */

static bool marked(const struct mind *m, const struct obj *o, uint64_t v)
{
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->version == v && c->state == COPY_COMMITTED && live(m, c) &&
		    (c->flags & (COPY_MARKED | COPY_SERVED) || BROKEN(m, MIND_BREAK_MARK)))
			return true;
	return false;
}

/* Does a PUBLISH wait for it? Its answer sets the mark; one that waits for further copies may be long. */
static bool publish_waits(const struct copy *c)
{
	const struct work *w = c->obj->work;
	if (!w || (c->opts && c->opts->m.replicas_required > 1))
		return false;
	list_for_each (it, &w->pubs) {
		const struct pub *p = list_entry(it, struct mind_call, node)->on;
		if (p->holder == c->holder && p->slot == c->slot)
			return true;
	}
	return false;
}

static void serve(struct mind *m, struct obj *o, uint64_t v)
{
	for (struct copy *c = o->copies; c; c = c->next) {
		if (!live(m, c))
			continue;
		if (c->version < v) {
			copy_unserve(m, c);
		} else if (c->version == v && c->state == COPY_COMMITTED) {
			copy_serve(m, c);
			if (!(c->flags & COPY_MARKED) && !publish_waits(c))
				slot_owe(m, c); /* MARK */
			c->flags |= COPY_MARKED;
		}
	}
}

static uint64_t top_of(const struct mind *m, const struct obj *o)
{
	uint64_t top = 0;
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->state == COPY_COMMITTED && live(m, c))
			top = MAX_OF(top, c->version);
	return top;
}

static bool t2(struct mind *m, struct obj *o, uint64_t v)
{
	if (!work_get(m, o)) {
		retry_later(m);
		return false;
	}
	if (!obj_settled(m, o))
		return false;
	retire_below(m, o, v, RETIRE_SUPERSEDED);
	bool tombs = BROKEN(m, MIND_BREAK_TOMB_PUT) || tombs_durable(m, o, v - 1);
	bool retired = retired_below(m, o, v);
	if (retired)
		FAULT_AT(publish_retired);
	if (tombs)
		FAULT_AT(publish_tombs);
	return tombs && retired;
}

static void step_top(struct mind *m, struct obj *o)
{
	uint64_t v = top_of(m, o);
	if (v == 0)
		return;
	bool was = marked(m, o, v);
	if (!was && !t2(m, o, v))
		return;
	if (!was)
		m->n.publishes++;
	serve(m, o, v);
	if (!was)
		FAULT_AT(publish_indexed);
	retire_below(m, o, v, RETIRE_SUPERSEDED);
}

/* ---- removes (T3) ---- */

bool obj_remove(struct mind *m, struct obj *o, uint64_t ceiling)
{
	bool any = false;
	retire_below(m, o, ceiling + 1, RETIRE_REMOVED);
	/* one that is served only until a newer one is (T5) is not any more */
	for (struct copy *c = o->copies; c; c = c->next)
		if (c->version <= ceiling && c->state >= COPY_RETIRING &&
		    (c->reason == RETIRE_SUPERSEDED ||
		     (c->reason == RETIRE_EVICTED && group_holds(c)))) {
			c->reason = RETIRE_REMOVED;
			any |= c->state == COPY_RETIRED;
		}
	return any;
}

static void rems_mark(struct mind *m, struct obj *o, struct work *w)
{
	list_for_each (it, &w->rems)
		(void)obj_remove(m, o, list_entry(it, struct rem, node)->ceiling);
}

static void rem_end(struct mind *m, struct rem *r)
{
	client_close(m, r->client, r->number);
	client_release(m, r->client);
	calls_end(m, &r->calls, ERR_NONE);
	list_del(&r->node);
	map_remove(&m->rems, &r->by_number);
	m->n.removes++;
	m->bytes -= sizeof(*r);
	free(r);
}

static bool rem_tombs(struct mind *m, struct obj *o, const struct rem *r)
{
	if (BROKEN(m, MIND_BREAK_TOMB_REMOVE))
		return true;
	if (BROKEN(m, MIND_BREAK_TOMB_ABSENT) && !o->copies)
		return true;
	return tombs_durable(m, o, r->ceiling);
}

static void rems_end(struct mind *m, struct obj *o, struct work *w)
{
	if (list_empty(&w->rems))
		return;
	bool settled = obj_settled(m, o);
	list_for_each_safe (it, &w->rems) {
		struct rem *r = list_entry(it, struct rem, node);
		bool tombs = rem_tombs(m, o, r); /* asked for at once */
		if (settled && tombs && retired_below(m, o, r->ceiling + 1))
			rem_end(m, r);
	}
}

/* ---- PUBLISHes ---- */

static enum err pub_retired(struct mind *m, struct obj *o, const struct copy *c, bool *wait)
{
	bool barred = c->reason == RETIRE_BARRED && BROKEN(m, MIND_BREAK_FLOOR);
	if ((c->reason >= RETIRE_BARRED && !barred) || c->reason == RETIRE_NONE)
		return ERR_STALE_ATTEMPT;
	/* the conditions of its own T2 hold again (a new master has to see to that) */
	*wait = c->state < COPY_RETIRED || !obj_settled(m, o) ||
		!tombs_durable(m, o, c->version - 1) || !retired_below(m, o, c->version);
	return ERR_NONE;
}

/* Readable; as many as the put asked for? */
static enum err pub_served(struct mind *m, const struct obj *o, const struct pub *p,
			   struct mind_call *call, bool *wait)
{
	bool more = false;
	enum err e = copies_enough(m, o, p->version, &more, &call->made);
	if (p->pulled)
		return ERR_NONE;
	*wait = more;
	if (e != ERR_NONE)
		why_note(&call->why, e, "%u copies are readable, no other holder can have one",
			 call->made);
	return e;
}

static enum err pub_state(struct mind *m, struct obj *o, const struct pub *p,
			  struct mind_call *call, bool *wait)
{
	const struct holder *h = m->holders[p->holder];
	if (h->state != HOLDER_MERGED || h->under.adoption != p->adoption)
		return ERR_STALE_EPOCH;
	const struct copy *c = slot_at(h, p->slot);
	if (!c || c->generation != p->generation || c->version != p->version)
		return ERR_STALE_ATTEMPT;
	if (c->flags & COPY_SERVED)
		return pub_served(m, o, p, call, wait);
	if (c->state != COPY_COMMITTED)
		return pub_retired(m, o, c, wait);
	*wait = true;
	return ERR_NONE;
}

static void pubs_end(struct mind *m, struct obj *o, struct work *w)
{
	list_for_each_safe (it, &w->pubs) {
		struct mind_call *c = list_entry(it, struct mind_call, node);
		bool wait = false;
		enum err e = pub_state(m, o, c->on, c, &wait);
		if (!wait)
			call_end(m, c, e);
	}
}

/* ---- all of it ---- */

/* A RETIRED version is served only while a newer one is on its way (T5). */
static void step_retired(struct mind *m, struct obj *o)
{
	uint64_t top = top_of(m, o);
	for (struct copy *c = o->copies; c; c = c->next) {
		if (!live(m, c) || c->state != COPY_RETIRED)
			continue;
		bool stays = c->reason == RETIRE_EVICTED && group_holds(c); /* G2 */
		if (!stays && (c->reason != RETIRE_SUPERSEDED || c->version > top))
			copy_unserve(m, c);
		slot_free_due(m, c);
	}
}

void obj_step(struct mind *m, struct obj *o)
{
	struct work *w = o->work;
	if (w)
		rems_mark(m, o, w);
	step_top(m, o);
	copies_step(m, o);
	w = o->work;
	if (w) {
		rems_end(m, o, w);
		pubs_end(m, o, w);
	}
	step_retired(m, o);
	work_gc(m, o);
	obj_gc(m, o);
}

/* ---- answers of holders ---- */

static struct copy *awaited(struct mind *m, uint32_t holder, const struct mind_under *u,
			    uint32_t slot, uint64_t generation, enum copy_state state,
			    enum err e)
{
	struct holder *h = holder_at(m, holder);
	if (!h || h->state != HOLDER_MERGED || (e != ERR_NONE && e != ERR_NOT_FOUND))
		return NULL;
	if (!same_under(u, &h->under) && !BROKEN(m, MIND_BREAK_UNDER))
		return NULL; /* V9 */
	struct copy *c = slot_at(h, slot);
	return c && c->generation == generation && c->state == state ? c : NULL;
}

void mind_retired(struct mind *m, uint32_t holder, const struct mind_under *u, uint32_t slot,
		  uint64_t generation, uint64_t version, enum err e)
{
	struct copy *c = awaited(m, holder, u, slot, generation, COPY_RETIRING, e);
	if (!c || c->version != version)
		return;
	mind_enter(m);
	m->holders[holder]->heard_ns = m->now;
	slot_answered(m, c);
	copy_retired(m, c);
	mind_leave(m);
}

void mind_freed(struct mind *m, uint32_t holder, const struct mind_under *u, uint32_t slot,
		uint64_t generation, enum err e)
{
	struct copy *c = awaited(m, holder, u, slot, generation, COPY_FREEING, e);
	if (!c)
		return;
	mind_enter(m);
	struct obj *o = c->obj;
	m->holders[holder]->heard_ns = m->now;
	copy_drop(m, c, true);
	slots_send(m, m->holders[holder]);
	obj_step(m, o);
	mind_leave(m);
}

uint64_t holder_barred(const struct mind *m, const struct holder *h, const struct obj *o,
		       const struct opts *p)
{
	struct bytes tenant = tenant_name(m, o->tenant);
	uint64_t bar = meta_barred(h->row, 0, tenant, obj_key(o));
	if (p && p->m.group.n)
		bar = MAX_OF(bar, meta_barred_group(h->row, 0, tenant, p->m.group));
	return bar;
}

bool slot_vacant(struct mind *m, struct holder *h, uint32_t slot, uint64_t generation)
{
	if (slot >= SLOT_MAX)
		return false;
	struct copy *c = slot_at(h, slot);
	if (!c)
		return true;
	if (c->state != COPY_FREEING || c->generation >= generation) {
		holder_adopt(m, h); /* it knows something else than we do */
		return false;
	}
	struct obj *o = c->obj;
	copy_drop(m, c, true);
	obj_step(m, o);
	return true;
}

void mind_corrupt(struct mind *m, uint32_t holder, const struct mind_under *u, uint32_t slot,
		  uint64_t generation, uint64_t version)
{
	struct holder *h = holder_at(m, holder);
	struct copy *c = h && same_under(u, &h->under) ? slot_at(h, slot) : NULL;
	if (!c || !copy_known(h, c) || c->generation != generation || c->version != version ||
	    c->state > COPY_RETIRING)
		return;
	mind_enter(m);
	if (c->state == COPY_RETIRING)
		slot_answered(m, c);
	else
		copy_state(m, c, COPY_RETIRING);
	c->reason = RETIRE_CORRUPT;
	copy_retired(m, c);
	mind_leave(m);
}

/* ---- PUBLISH ---- */

static enum err publish_check(struct mind *m, struct holder *h, const struct mind_under *u)
{
	if (u->term != m->term)
		return ERR_STALE_TERM;
	if (!h || !holder_in(h) || h->state < HOLDER_MERGING)
		return ERR_STALE_EPOCH;
	return same_under(u, &h->under) ? ERR_NONE : ERR_STALE_EPOCH;
}

/* The attempt's slot is COMMITTED. A condition that holds no more: it is RETIRED at once. */
static enum err publish_attempt(struct mind *m, struct holder *h, struct attempt *a,
				const struct msg_publish_item *it, struct mind_call *c)
{
	struct obj *o = a->obj;
	uint64_t bar = holder_barred(m, h, o, a->opts);
	bool holds = cond_holds(m, a);
	if (a->version <= bar)
		return ERR_STALE_ATTEMPT; /* V11 */
	if (!slot_vacant(m, h, it->slot, it->generation))
		return ERR_STALE_EPOCH;
	struct copy *k = attempt_commit(m, a, it->slot, it->generation, it->sum);
	if (!k)
		return ERR_NO_MEMORY;
	if (holds && !it->retired)
		return ERR_NONE;
	copy_retire(m, k, RETIRE_BARRED);
	obj_step(m, o);
	return it->retired
		       ? ERR_STALE_ATTEMPT
		       : why_set(&c->why, ERR_CONFLICT, "the put's condition holds no more");
}

/* A copy that was commanded is COMMITTED. */
static enum err publish_pull(struct mind *m, struct holder *h, struct pull *p,
			     const struct msg_publish_item *it)
{
	struct obj *o = p->obj;
	if (p->version <= holder_barred(m, h, o, p->opts))
		return ERR_STALE_ATTEMPT; /* V11 */
	if (!slot_vacant(m, h, it->slot, it->generation))
		return ERR_STALE_EPOCH;
	struct copy *k = pull_commit(m, p, it->slot, it->generation, it->sum);
	if (!k)
		return ERR_NO_MEMORY;
	if (!it->retired)
		return ERR_NONE;
	if (k->state == COPY_COMMITTED)
		copy_retire(m, k, RETIRE_CORRUPT);
	obj_step(m, o);
	return ERR_STALE_ATTEMPT;
}

/* A holder says RETIRED of what is believed COMMITTED: it did so itself. */
static void publish_retired(struct mind *m, struct copy *k, const struct msg_publish_item *it)
{
	if (!it->retired || k->state >= COPY_RETIRED)
		return;
	if (k->state == COPY_COMMITTED) {
		copy_state(m, k, COPY_RETIRING);
		k->reason = RETIRE_CORRUPT;
	} else {
		slot_answered(m, k);
	}
	copy_retired(m, k);
}

#ifdef POMELO_PLANT
/* As if PUBLISH named its key and what is known nowhere were new. */
static enum err publish_unknown(struct mind *m, struct holder *h,
				const struct msg_publish_item *it, struct obj **out)
{
	struct copy *c = NULL;
	if (!slot_vacant(m, h, it->slot, it->generation) || m->n_tenants == 0)
		return ERR_STALE_ATTEMPT;
	if (obj_get(m, 0, BYTES_STR(m->l.unknown_key), out) == ERR_NONE)
		c = copy_new(m, *out, h, it->slot, 0);
	if (!c)
		return ERR_NO_MEMORY;
	c->version = it->version;
	c->generation = it->generation;
	c->merge = h->merge;
	copy_state(m, c, COPY_COMMITTED);
	return ERR_NONE;
}
#endif

static enum err publish(struct mind *m, struct holder *h, const struct msg_publish_item *it,
			struct mind_call *c, struct obj **out, bool *pulled)
{
	struct copy *k = it->slot < SLOT_MAX ? slot_at(h, it->slot) : NULL;
	bool known = k && k->generation == it->generation && k->version == it->version;
	struct attempt *a = known ? NULL : attempt_of(m, it->version);
	struct pull *p = known ? NULL : pull_of(m, it->version, h->index);
	a = a && a->holder == h->index ? a : NULL;
	p = p && p->state != PULL_PLANNED ? p : NULL;
#ifdef POMELO_PLANT
	if (!known && !a && !p && BROKEN(m, MIND_BREAK_UNKNOWN))
		return publish_unknown(m, h, it, out);
#endif
	if (!known && !a && !p)
		return why_set(&c->why, ERR_STALE_ATTEMPT, "version %llx is not open here",
			       (unsigned long long)it->version); /* V15 */
	struct obj *o = known ? k->obj : a ? a->obj : p->obj;
	enum err e = known ? ERR_NONE
		     : a   ? publish_attempt(m, h, a, it, c)
			   : publish_pull(m, h, p, it);
	*pulled = !known && !a;
	if (e == ERR_NONE && known)
		publish_retired(m, k, it);
	*out = o;
	return e;
}

static void publish_wait(struct mind *m, struct holder *h, const struct mind_under *u,
			 const struct msg_publish_item *it, struct mind_call *c, struct obj *o,
			 bool pulled)
{
	struct pub *p = malloc(sizeof(*p));
	if (!p || (o && !work_get(m, o))) {
		free(p);
		call_end(m, c, ERR_NO_MEMORY);
		return;
	}
	*p = (struct pub){ .obj = o,
			   .version = it->version,
			   .generation = it->generation,
			   .adoption = u->adoption,
			   .sum = it->sum,
			   .slot = it->slot,
			   .holder = h->index,
			   .retired = it->retired,
			   .pulled = pulled };
	call_wait(m, c, o ? &o->work->pubs : &h->early, p);
}

static void publish_call(struct mind *m, struct holder *h, const struct mind_under *u,
			 const struct msg_publish_item *it, struct mind_call *c)
{
	struct obj *o = NULL;
	bool pulled = false;
	enum err e = publish_check(m, h, u);
	if (e == ERR_NONE && h->state != HOLDER_MERGED) {
		publish_wait(m, h, u, it, c, NULL, false); /* its slot may not be read yet */
		return;
	}
	if (e == ERR_NONE)
		e = publish(m, h, it, c, &o, &pulled);
	if (e != ERR_NONE) {
		call_end(m, c, e);
		return;
	}
	publish_wait(m, h, u, it, c, o, pulled);
	obj_step(m, o);
}

void mind_publish(struct mind *m, uint32_t holder, const struct mind_under *u,
		  const struct msg_publish_item *it, struct mind_call *c)
{
	mind_enter(m);
	call_init(c, CALL_PUB);
	publish_call(m, holder_at(m, holder), u, it, c);
	mind_leave(m);
}

void publish_early(struct mind *m, struct holder *h)
{
	for (struct list *l; (l = list_pop_front(&h->early));) {
		struct mind_call *c = list_entry(l, struct mind_call, node);
		struct pub p = *(struct pub *)c->on;
		const struct msg_publish_item it = { .slot = p.slot,
						     .generation = p.generation,
						     .version = p.version,
						     .sum = p.sum,
						     .retired = p.retired };
		struct mind_under u = h->under;
		u.adoption = p.adoption;
		free(TAKE(c->on));
		c->mind = NULL;
		m->n_waiting--;
		publish_call(m, h, &u, &it, c);
	}
}

/* ---- REMOVE ---- */

struct rem_name {
	const struct client *client;
	uint64_t number;
};

static uint64_t rem_hash(const struct rem_name *k)
{
	uint64_t h = k->number * 0x9e3779b97f4a7c15 ^ k->client->node.hash;
	return (h ^ h >> 32) * 0xd6e8feb86659fd93;
}

static bool rem_eq(const struct map_node *n, const void *key)
{
	const struct rem *r = container_of(n, struct rem, by_number);
	const struct rem_name *k = key;
	return r->client == k->client && r->number == k->number;
}

static enum err rem_begin(struct mind *m, uint16_t tenant, struct client *client,
			  const struct msg_remove_item *it, struct mind_call *c)
{
	struct obj *o;
	enum err e = obj_get(m, tenant, it->key, &o);
	struct rem *r = e == ERR_NONE ? calloc(1, sizeof(*r)) : NULL;
	const struct rem_name k = { client, it->attempt };
	if (!r || !work_get(m, o) ||
	    map_insert(&m->rems, &r->by_number, rem_hash(&k)) != ERR_NONE) {
		free(r);
		if (e == ERR_NONE)
			obj_step(m, o); /* nothing may be left of it */
		return e != ERR_NONE ? e : ERR_NO_MEMORY;
	}
	r->obj = o;
	r->client = client;
	r->number = it->attempt;
	r->ceiling = MIN_OF(it->ceiling ? it->ceiling : m->last,
			    it->if_version ? it->if_version : m->last);
	list_init(&r->calls);
	client_hold(client);
	m->bytes += sizeof(*r);
	list_push_back(&o->work->rems, &r->node);
	call_wait(m, c, &r->calls, NULL);
	obj_step(m, o);
	return ERR_NONE;
}

static enum err may_remove(struct mind *m, const struct obj *o,
			   const struct msg_remove_item *it, struct mind_call *c)
{
	const struct copy *served = obj_served(m, o);
	if (!served)
		return ERR_NONE;
	if (it->if_version && served->version != it->if_version)
		return why_set(&c->why, ERR_CONFLICT, "the key has version %llx",
			       (unsigned long long)served->version);
	if (served->opts && served->opts->m.hard_pin && !it->force)
		return why_set(&c->why, ERR_POOL_PINNED,
			       "the object is hard-pinned; use force");
	return ERR_NONE;
}

static enum err remove_call(struct mind *m, const struct mind_who *w,
			    const struct msg_remove_item *it, struct mind_call *c)
{
	uint16_t tenant;
	enum err e = key_check(it->key, &c->why);
	e = e != ERR_NONE ? e : who_check(m, w, &tenant, &c->why);
	if (e != ERR_NONE)
		return e;
	struct client *client = client_get(m, tenant, w->client);
	if (!client)
		return why_set(&c->why, ERR_BUSY, "too many clients (master.clients_max)");
	const struct rem_name k = { client, it->attempt };
	struct map_node *n = map_find(&m->rems, rem_hash(&k), rem_eq, &k);
	if (n) {
		call_wait(m, c, &container_of(n, struct rem, by_number)->calls, NULL);
		return ERR_NONE;
	}
	if (client_closed(client, it->attempt))
		return why_set(&c->why, ERR_EXISTS, "DONE: attempt %llu is closed",
			       (unsigned long long)it->attempt);
	e = may_remove(m, obj_find(m, tenant, it->key), it, c);
	return e != ERR_NONE ? e : rem_begin(m, tenant, client, it, c);
}

void mind_remove(struct mind *m, const struct mind_who *w, const struct msg_remove_item *it,
		 struct mind_call *c)
{
	mind_enter(m);
	call_init(c, CALL_PLAIN);
	enum err e = remove_call(m, w, it, c);
	if (e != ERR_NONE)
		call_end(m, c, e);
	mind_leave(m);
}
