/* SPDX-License-Identifier: Apache-2.0 */
/* Unfinished copies (V13), from PLANNED to their end. Rules C1..C4: mind_copy.h. */
#include "mind_copy.h"

enum {
	AGAIN_MS = 30000,    /* a copy that nothing was heard of is said again */
	NO_SOURCE_MS = 1000, /* nobody has its bytes just now */
	REFUSED_MS = 500,    /* a holder that could not is left alone */
	TRIES = 64,	     /* said again in one go (I6) */
};

/* ---- the table ---- */

struct pull_name {
	uint64_t version;
	uint32_t holder;
};

static uint64_t name_hash(const struct pull_name *k)
{
	uint64_t h = (k->version ^ k->version >> 32) * 0x9e3779b97f4a7c15 + k->holder;
	return (h ^ h >> 29) * 0xd6e8feb86659fd93;
}

static bool name_eq(const struct map_node *n, const void *key)
{
	const struct pull *p = container_of(n, struct pull, node);
	const struct pull_name *k = key;
	return p->version == k->version && p->holder == k->holder;
}

struct pull *pull_of(const struct mind *m, uint64_t version, uint32_t holder)
{
	const struct pull_name k = { version, holder };
	if (m->pulls.n == 0) /* an inventory asks for each entry */
		return NULL;
	struct map_node *n = map_find(&m->pulls, name_hash(&k), name_eq, &k);
	return n ? container_of(n, struct pull, node) : NULL;
}

static size_t pull_bytes(const struct pull *p)
{
	return sizeof(*p) + p->n_ranges * sizeof(struct range);
}

static bool pull_link(struct mind *m, struct pull *p, struct holder *h)
{
	const struct pull_name k = { p->version, p->holder };
	if (map_insert(&m->pulls, &p->node, name_hash(&k)) != ERR_NONE)
		return false;
	p->next = p->obj->work->pulls;
	p->obj->work->pulls = p;
	list_push_back(&h->pulls, &p->of_holder);
	h->n_pulls++;
	if (p->opts && p->opts->group)
		list_push_back(&p->opts->group->pulls, &p->of_group);
	m->bytes += pull_bytes(p);
	charge_pull(m, p, true);
	return true;
}

struct pull *pull_new(struct mind *m, struct obj *o, uint64_t version, uint64_t size,
		      const struct msg_put_opts *opts, const struct place *at)
{
	struct pull *p = calloc(1, sizeof(*p) + at->n * sizeof(struct range));
	if (p) {
		p->obj = o;
		p->version = version;
		p->size = size;
		p->segment = at->segment;
		p->holder = (uint16_t)at->h->index;
		p->n_ranges = (uint8_t)at->n;
		if (at->n)
			memcpy(p->ranges, at->r, at->n * sizeof(struct range));
	}
	if (p && work_get(m, o) && opts_copy(m, opts, &p->opts) == ERR_NONE &&
	    group_join(m, o->tenant, p->opts) == ERR_NONE && pull_link(m, p, at->h))
		return p;
	if (p)
		opts_free(m, p->opts);
	free(p);
	work_gc(m, o);
	space_give(m, at->h, at->segment, at->r, at->n);
	return NULL;
}

/* The range remove under way waits for it, or for the copy that it became. */
static void unrange(struct mind *m, const struct pull *p)
{
	if (p->ranged && !list_empty(&m->ranges))
		list_entry(m->ranges.next, struct range_op, node)->n_owed--;
}

static void pull_unlink(struct mind *m, struct pull *p)
{
	struct holder *h = m->holders[p->holder];
	struct pull **at = &p->obj->work->pulls;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	map_remove(&m->pulls, &p->node);
	list_del(&p->of_holder);
	list_del(&p->of_group);
	heap_remove(&m->pulls_due, &p->due);
	h->n_pulls--;
	charge_pull(m, p, false);
	m->copy_ns = 0;
}

void pull_free(struct mind *m, struct pull *p)
{
	m->bytes -= pull_bytes(p);
	opts_free(m, p->opts);
	free(p);
}

/* Nothing is left of it; e: why, for its task and the next try. The caller steps the object. */
void pull_end(struct mind *m, struct pull *p, bool give, enum err e, const struct why *why)
{
	struct task *t = p->task;
	uint32_t item = p->item;
	struct obj *o = p->obj;
	if (give)
		space_give(m, m->holders[p->holder], p->segment, p->ranges, p->n_ranges);
	unrange(m, p);
	pull_unlink(m, p);
	m->n.copies_failed += p->state == PULL_SAID || p->state == PULL_TAKEN;
	pull_free(m, p);
	lack_later(m, o);
	if (t)
		task_pulled(m, t, item, e, why);
}

struct copy *pull_commit(struct mind *m, struct pull *p, uint32_t slot, uint64_t generation,
			 uint64_t sum)
{
	struct holder *h = m->holders[p->holder];
	struct copy *c = copy_new(m, p->obj, h, slot, p->n_ranges);
	if (!c)
		return NULL;
	c->version = p->version;
	c->generation = generation;
	c->size = p->size;
	c->sum = sum;
	c->segment = p->segment;
	c->merge = h->merge;
	memcpy(c->ranges, p->ranges, p->n_ranges * sizeof(struct range));
	pull_unlink(m, p);
	c->opts = TAKE(p->opts);
	charge_copy(m, c, true);
	group_link(m, c);
	copy_state(m, c, COPY_COMMITTED);
	m->n.copies_made++;
	if (p->ranged) { /* no record of its own says that it was removed */
		c->flags |= COPY_RANGED;
		copy_retire(m, c, RETIRE_REMOVED);
	}
	if (p->task)
		task_pulled(m, p->task, p->item, ERR_NONE, NULL);
	pull_free(m, p);
	return c;
}

/* ---- what is said ---- */

static void say(struct mind *m, const struct pull *p)
{
	const struct holder *h = m->holders[p->holder];
	struct extent ext[OBJ_EXTENTS_MAX];
	for (size_t i = 0; i < p->n_ranges; i++)
		ext[i] = (struct extent){ p->segment, p->ranges[i].offset, p->ranges[i].bytes };
	struct mind_cmd cmd = { .op = p->state == PULL_FENCING ? MIND_FENCE : MIND_COPY,
				.holder = h->index,
				.under = h->under,
				.generation = p->number,
				.version = p->version,
				.extents = ext,
				.n_extents = p->n_ranges };
	if (h->state == HOLDER_MERGED)
		m->out.command(m->out.ctx, &cmd);
}

static void due_at(struct mind *m, struct pull *p, uint64_t ns)
{
	heap_remove(&m->pulls_due, &p->due);
	heap_insert(&m->pulls_due, &p->due, ns);
}

void pull_say(struct mind *m, struct pull *p, const struct copy *of)
{
	p->state = PULL_SAID;
	p->number = ++m->pull_last;
	p->sum = of->sum;
	p->said_ns = m->now;
	due_at(m, p, in_ms(m, AGAIN_MS));
	say(m, p);
}

void pull_fence(struct mind *m, struct pull *p)
{
	if (p->state == PULL_PLANNED || p->state == PULL_FENCING)
		return;
	p->state = PULL_FENCING;
	heap_remove(&m->pulls_due, &p->due);
	say(m, p);
}

void pulls_resend(struct mind *m, struct holder *h)
{
	list_for_each (it, &h->pulls) {
		const struct pull *p = list_entry(it, struct pull, of_holder);
		if (p->state != PULL_PLANNED)
			say(m, p);
	}
}

void pulls_say_due(struct mind *m)
{
	struct heap_node *n;
	for (int i = 0; i < TRIES && (n = heap_min(&m->pulls_due)) && n->key <= m->now; i++) {
		struct pull *p = container_of(n, struct pull, due);
		due_at(m, p, in_ms(m, AGAIN_MS));
		say(m, p);
	}
}

bool mind_copying(struct mind *m, uint32_t holder, uint64_t version, uint64_t number,
		  struct mind_copying *out)
{
	struct pull *p = pull_of(m, version, holder);
	struct mind_object o;
	if (!p || p->number != number || (p->state != PULL_SAID && p->state != PULL_TAKEN))
		return false;
	struct copy *best = obj_readable(m, p->obj);
	if (!best || best->version != version) {
		due_at(m, p, in_ms(m, NO_SOURCE_MS));
		return false;
	}
	m->near = BYTES_STR(m->holders[holder]->host);
	obj_show(m, p->obj, best, &o);
	m->near = BYTES(NULL, 0);
	struct extent *ext = m->copying;
	for (size_t i = 0; i < p->n_ranges; i++)
		ext[i] = (struct extent){ p->segment, p->ranges[i].offset, p->ranges[i].bytes };
	p->told = true;
	*out = (struct mind_copying){ .tenant = tenant_name(m, p->obj->tenant),
				      .key = obj_key(p->obj),
				      .version = version,
				      .number = number,
				      .size = p->size,
				      .sum = p->sum,
				      .extents = ext,
				      .n_extents = p->n_ranges,
				      .opts = p->opts ? &p->opts->m : NULL,
				      .n_sources = o.n_replicas };
	memcpy(out->sources, o.replicas, o.n_replicas * sizeof(o.replicas[0]));
	return true;
}

/* ---- answers ---- */

static struct pull *awaited(struct mind *m, uint32_t holder, const struct mind_under *u,
			    uint64_t version, uint64_t number)
{
	const struct holder *h = holder_at(m, holder);
	if (!h || h->state != HOLDER_MERGED || !same_under(u, &h->under))
		return NULL;
	struct pull *p = pull_of(m, version, holder);
	return p && p->state != PULL_PLANNED && p->number == number ? p : NULL;
}

static void failed(struct mind *m, struct pull *p, enum err e, const struct why *why)
{
	struct obj *o = p->obj;
	pull_end(m, p, true, e, why);
	obj_step(m, o);
}

void mind_copied(struct mind *m, uint32_t holder, const struct mind_under *u, uint64_t version,
		 uint64_t number, enum err e, uint32_t retry_ms)
{
	struct pull *p = awaited(m, holder, u, version, number);
	struct why why = { 0 };
	if (!p || p->state == PULL_FENCING) /* FENCE's answer decides */
		return;
	mind_enter(m);
	if (e == ERR_NONE) {
		p->state = PULL_TAKEN;
	} else if (e == ERR_BUSY) {
		due_at(m, p, in_ms(m, MAX_OF(retry_ms, (uint32_t)RETRY_MS)));
	} else if (e != ERR_STALE_TERM && e != ERR_STALE_EPOCH) {
		why_note(&why, e, "%s refused the copy: %s", m->holders[holder]->id,
			 err_text(e));
		m->holders[holder]->copy_rest_ns = in_ms(m, REFUSED_MS);
		failed(m, p, e, &why);
	}
	mind_leave(m);
}

/* Its bytes are bad, says who read them: it goes, if another one is readable. The last one is for its own holder
 * to judge. */
static void doubt(struct mind *m, struct obj *o, uint64_t version, struct bytes source)
{
	int64_t at = mind_holder_index(m, source);
	struct copy *bad = NULL, *good = NULL;
	for (struct copy *c = o->copies; at >= 0 && c; c = c->next) {
		if (c->version != version || c->state != COPY_COMMITTED ||
		    m->holders[c->holder]->state != HOLDER_MERGED)
			continue;
		if (c->holder == at)
			bad = c;
		else if (c->flags & COPY_SERVED)
			good = c;
	}
	if (bad && good)
		copy_retire(m, bad, RETIRE_CORRUPT);
}

void mind_copy_failed(struct mind *m, uint32_t holder, const struct mind_under *u,
		      const struct msg_copy_fail *f)
{
	struct pull *p = awaited(m, holder, u, f->version, f->attempt);
	struct why why = { 0 };
	if (!p)
		return;
	mind_enter(m);
	why_note(&why, f->status ? (enum err)f->status : ERR_INTERNAL, "copy to %s: %.*s",
		 m->holders[holder]->id, (int)f->text.n, (const char *)f->text.p);
	if (f->status == ERR_CORRUPT && f->source.n)
		doubt(m, p->obj, p->version, f->source);
	if (f->source.n == 0)
		m->holders[holder]->copy_rest_ns = in_ms(m, REFUSED_MS);
	failed(m, p, why.err, &why);
	mind_leave(m);
}

/* The range that it may still write is kept until REPORT says that it is free (T6). */
static void quarantine(struct mind *m, struct holder *h, const struct pull *p)
{
	size_t bytes = sizeof(struct quar) + p->n_ranges * sizeof(struct range);
	struct quar *q = calloc(1, bytes);
	if (!q) {
		h->n_lost++; /* taken until the holder is adopted again */
		return;
	}
	q->version = p->version;
	q->since_ns = m->now;
	q->segment = p->segment;
	q->merge = h->merge;
	q->tenant = p->obj->tenant;
	q->n_ranges = p->n_ranges;
	memcpy(q->ranges, p->ranges, p->n_ranges * sizeof(struct range));
	for (size_t i = 0; i < q->n_ranges; i++)
		q->bytes += alloc_round(q->ranges[i].bytes);
	h->quarantine += q->bytes;
	m->quarantine += q->bytes;
	m->bytes += bytes;
	charge_quar(m, q, true);
	list_push_back(&h->quars, &q->node);
}

void pull_fenced(struct mind *m, struct pull *p, const struct msg_fence_res *res)
{
	struct holder *h = m->holders[p->holder];
	struct obj *o = p->obj;
	if (res->state == 1) {
		if (!slot_vacant(m, h, res->slot, res->generation) ||
		    !pull_commit(m, p, res->slot, res->generation, res->sum))
			return;
	} else if (res->state == 2) {
		pull_end(m, p, true, ERR_CANCELLED, NULL);
	} else if (res->state == 3) {
		quarantine(m, h, p);
		pull_end(m, p, false, ERR_CANCELLED, NULL);
	}
	obj_step(m, o);
}

/* ---- holders that come and go; mind_kick steps the objects ---- */

void pulls_unplan(struct mind *m, struct holder *h)
{
	list_for_each_safe (it, &h->pulls) {
		struct pull *p = list_entry(it, struct pull, of_holder);
		if (p->state == PULL_PLANNED)
			pull_end(m, p, true, ERR_TEMPORARILY_AWAY, NULL);
	}
}

void pulls_resolve(struct mind *m, struct holder *h)
{
	struct why why = { 0 };
	why_note(&why, ERR_TEMPORARILY_AWAY, "%s went away, or began anew", h->id);
	for (struct list *l; (l = list_pop_front(&h->pulls));)
		pull_end(m, list_entry(l, struct pull, of_holder), false, why.err, &why);
}

/* ---- T2, T3 ---- */

bool pulls_open(const struct mind *m, const struct obj *o, uint64_t upto)
{
	const struct pull *p = o->work ? o->work->pulls : NULL;
	if (BROKEN(m, MIND_BREAK_COPIES))
		return false;
	for (; p; p = p->next)
		if (p->state != PULL_PLANNED && p->version <= upto)
			return true;
	return false;
}

void pulls_cancel(struct mind *m, struct obj *o, uint64_t upto)
{
	struct pull *p = o->work ? o->work->pulls : NULL;
	if (BROKEN(m, MIND_BREAK_COPIES))
		return;
	for (; p; p = p->next)
		if (p->version <= upto)
			pull_fence(m, p);
}
