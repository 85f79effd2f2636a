/* SPDX-License-Identifier: Apache-2.0 */
/* Commands as messages, answers as calls of the mind. */
#include "links_priv.h"

#include <string.h>

/* A piece of an inventory, decoded: as large as its bytes allow, a few times over. */
#define ARENA_BYTES (64u << 20)

void link_drop(struct list *cmds, size_t *n)
{
	for (struct list *x; (x = list_pop_front(cmds));)
		free(list_entry(x, struct link_cmd, node));
	*n = 0;
}

/* ---- out ---- */

static struct msg_under under_out(const struct mind_under *u)
{
	return (struct msg_under){ u->shard, u->term, u->adoption, u->pool_epoch };
}

bool link_same_under(const struct mind_under *a, const struct mind_under *b)
{
	return a->shard == b->shard && a->term == b->term && a->adoption == b->adoption &&
	       a->pool_epoch == b->pool_epoch;
}

static void take(struct lane *l)
{
	size_t max = l->op <= MIND_INVENTORY ? 1
		     : l->op == MIND_COPY    ? MST_LINK_COPIES_MAX
					     : MST_LINK_BATCH_MAX;
	l->under = list_entry(l->queue.next, struct link_cmd, node)->c.under;
	while (l->n_sent < max && !list_empty(&l->queue)) {
		struct link_cmd *x = list_entry(l->queue.next, struct link_cmd, node);
		if (!link_same_under(&x->c.under, &l->under))
			return;
		list_del(&x->node);
		list_push_back(&l->sent, &x->node);
		l->n_queue--;
		l->n_sent++;
	}
}

static enum err encode_slots(struct lane *l, const struct msg_under *u, struct arena *a)
{
	struct msg_retire_item *it = arena_alloc(a, l->n_sent * sizeof(*it));
	size_t n = 0;
	if (!it)
		return ERR_NO_MEMORY;
	list_for_each (x, &l->sent) {
		const struct mind_cmd *c = &list_entry(x, struct link_cmd, node)->c;
		it[n++] = (struct msg_retire_item){ .slot = c->slot,
						    .generation = c->generation,
						    .version = c->version,
						    .reason = (uint8_t)c->reason,
						    .evict_id = c->evict_id };
	}
	enc_retire_req(&l->body, &(struct msg_retire_req){ .under = u, .items = { it, n } });
	return ERR_NONE;
}

static enum err encode_fences(struct lane *l, const struct msg_under *u, struct arena *a)
{
	struct msg_fence_item *it = arena_alloc(a, l->n_sent * sizeof(*it));
	size_t n = 0;
	list_for_each (x, &l->sent) {
		const struct mind_cmd *c = &list_entry(x, struct link_cmd, node)->c;
		struct msg_extent *e = arena_alloc(a, (c->n_extents + 1) * sizeof(*e));
		if (!it || !e)
			return ERR_NO_MEMORY;
		for (size_t i = 0; i < c->n_extents; i++)
			e[i] = (struct msg_extent){ c->extents[i].segment, c->extents[i].offset,
						    c->extents[i].bytes };
		it[n++] = (struct msg_fence_item){ c->version,
						   { e, c->n_extents },
						   c->generation };
	}
	enc_fence_req(&l->body, &(struct msg_fence_req){ .under = u, .items = { it, n } });
	return ERR_NONE;
}

enum err link_encode(struct lane *l, uint32_t inventory_bytes)
{
	struct arena a = ARENA_INIT(4u << 20);
	enum err e = ERR_NONE;
	take(l);
	const struct mind_cmd *first = &list_entry(l->sent.next, struct link_cmd, node)->c;
	struct msg_under u = under_out(&l->under);
	l->body.limit = WIRE_MESSAGE_MAX;
	buf_clear(&l->body);
	switch (l->op) {
	case MIND_ADOPT:
		u.pool_epoch = 0;
		enc_under(&l->body, &u);
		break;
	case MIND_INVENTORY:
		enc_inventory_req(&l->body, &(struct msg_inventory_req){ &u, first->cursor,
									 inventory_bytes });
		break;
	case MIND_RETIRE:
	case MIND_FREE:
	case MIND_MARK:
		e = encode_slots(l, &u, &a);
		break;
	case MIND_FENCE:
		e = encode_fences(l, &u, &a);
		break;
	case MIND_COPY:
		e = link_encode_copies(l, &u, &a);
		break;
	}
	arena_fini(&a);
	return e ? e : buf_err(&l->body);
}

/* ---- back ---- */

static struct mind_under under_in(const struct msg_under *u)
{
	return (struct mind_under){ u->shard, u->term, u->adoption, u->pool_epoch };
}

static enum err on_adopted(struct lane *l, struct dec *d, struct mind *mind)
{
	struct msg_adopt_rep m;
	struct mind_segment segs[256];
	enum err e = dec_adopt_rep(d, &m);
	if (e == ERR_NONE && !m.under)
		return why_set(d->why, ERR_BAD_MESSAGE, "ADOPT_REP.under: missing");
	if (e)
		return e;
	struct mind_under u = under_in(m.under);
	for (size_t i = 0; i < m.segments.n; i++)
		segs[i] = (struct mind_segment){ m.segments.p[i].segment, m.segments.p[i].bytes,
						 m.segments.p[i].bytes_total,
						 m.segments.p[i].slots };
	mind_adopted(mind, l->link->index, &u, segs, m.segments.n);
	return ERR_NONE;
}

/* Case 4: what was not taken is counted, with its reason. */
static void count_rejected(struct mst *m, const struct msg_inventory_rep *p)
{
	metric_add(m->svc.metrics, MST_M_ENTRIES, 0, p->entries.n);
	for (size_t i = 0; i < p->entries.n; i++) {
		const struct msg_entry *x = &p->entries.p[i];
		if (x->state == 2 && x->reason == RETIRE_OVERLAP)
			metric_add(m->svc.metrics, MST_M_REJECTED, 1, 1);
		else if (x->state == 2 && x->reason == RETIRE_CORRUPT)
			metric_add(m->svc.metrics, MST_M_REJECTED, 2, 1);
	}
}

static enum err on_piece(struct lane *l, struct dec *d, struct mind *mind)
{
	struct msg_inventory_rep m;
	enum err e = dec_inventory_rep(d, &m);
	if (e == ERR_NONE && !m.under)
		return why_set(d->why, ERR_BAD_MESSAGE, "INVENTORY_REP.under: missing");
	if (e)
		return e;
	count_rejected(l->link->m, &m);
	struct mind_under u = under_in(m.under);
	if (m.cursor && link_same_under(&u, &l->under))
		link_ahead(l, m.cursor);
	mind_inventory(mind, l->link->index, &m);
	return ERR_NONE;
}

static bool stale(enum err e)
{
	return e == ERR_STALE_TERM || e == ERR_STALE_EPOCH;
}

/* One slot's answer; what says neither yes nor no is asked again. */
static enum err on_slot(struct lane *l, const struct mind_cmd *c, enum err e, struct mind *mind)
{
	uint32_t h = l->link->index;
	if (e != ERR_NONE && e != ERR_NOT_FOUND)
		return e;
	if (l->op == MIND_RETIRE)
		mind_retired(mind, h, &l->under, c->slot, c->generation, c->version, e);
	else if (l->op == MIND_FREE)
		mind_freed(mind, h, &l->under, c->slot, c->generation, e);
	if (l->op == MIND_RETIRE && c->reason == RETIRE_BARRED)
		metric_add(l->link->m->svc.metrics, MST_M_REJECTED, 0, 1);
	if (l->op == MIND_RETIRE &&
	    c->reason == RETIRE_OVERLAP) /* found by us, not by its holder */
		metric_add(l->link->m->svc.metrics, MST_M_REJECTED, 1, 1);
	return ERR_NONE;
}

static enum err on_slots(struct lane *l, struct dec *d, struct mind *mind)
{
	struct msg_results_rep m;
	enum err e = dec_results_rep(d, &m);
	size_t i = 0;
	if (e == ERR_NONE && m.items.n != l->n_sent)
		return why_set(d->why, ERR_BAD_MESSAGE, "%zu results for %zu commands",
			       m.items.n, l->n_sent);
	if (e)
		return e;
	list_for_each (x, &l->sent) {
		const struct mind_cmd *c = &list_entry(x, struct link_cmd, node)->c;
		enum err one = on_slot(l, c, (enum err)m.items.p[i++].status, mind);
		if (e == ERR_NONE || stale(one))
			e = one ? why_set(d->why, one, "%s", err_text(one)) : e;
	}
	return e;
}

static enum err on_fenced(struct lane *l, struct dec *d, struct mind *mind)
{
	struct msg_fence_rep m;
	enum err e = dec_fence_rep(d, &m);
	size_t i = 0;
	if (e == ERR_NONE && m.items.n != l->n_sent)
		return why_set(d->why, ERR_BAD_MESSAGE, "%zu results for %zu fences", m.items.n,
			       l->n_sent);
	if (e)
		return e;
	list_for_each (x, &l->sent) {
		uint64_t version = list_entry(x, struct link_cmd, node)->c.version;
		mind_fenced(mind, l->link->index, &l->under, version, &m.items.p[i++]);
	}
	return ERR_NONE;
}

enum err link_answer(struct lane *l, struct bytes body, struct why *why)
{
	struct mind *mind = mst_mind(l->link->m);
	struct arena a = ARENA_INIT(ARENA_BYTES);
	struct dec d = DEC_INIT(body, &a, why);
	enum err e = ERR_INTERNAL;
	switch (l->op) {
	case MIND_ADOPT:
		e = on_adopted(l, &d, mind);
		break;
	case MIND_INVENTORY:
		e = on_piece(l, &d, mind);
		break;
	case MIND_RETIRE:
	case MIND_FREE:
	case MIND_MARK:
		e = on_slots(l, &d, mind);
		break;
	case MIND_FENCE:
		e = on_fenced(l, &d, mind);
		break;
	case MIND_COPY:
		e = link_copied(l, &d, mind);
		break;
	}
	arena_fini(&a);
	return e;
}
