/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inventories (T1). A slot's entry is compared with what the table has there; the first merge and
 * that of a restarted holder are one code. The allocators were emptied at ADOPT's answer: every range
 * that a slot or a writer has is reserved again as it comes (T6), and nothing is allocated before
 * the end (I3). What the last piece leaves unmentioned is gone.
 */
#include "mind_priv.h"

static size_t ranges_of(const struct msg_entry *e, struct range *out, uint32_t *segment)
{
	*segment = e->extents.n ? e->extents.p[0].segment : 0;
	for (size_t i = 0; i < e->extents.n; i++)
		out[i] = (struct range){ e->extents.p[i].offset, e->extents.p[i].bytes };
	return e->extents.n;
}

/* What a holder says is looked at before it is believed (B5). */
static bool sound(const struct msg_entry *e)
{
	if (e->slot >= SLOT_MAX || e->version == 0 || e->key.n == 0 || e->key.n > OBJ_KEY_MAX ||
	    e->tenant.n == 0 || e->tenant.n > 64 || e->extents.n > OBJ_EXTENTS_MAX ||
	    (e->state != 1 && e->state != 2))
		return false;
	for (size_t i = 1; i < e->extents.n; i++)
		if (e->extents.p[i].segment != e->extents.p[0].segment)
			return false;
	return true;
}

/* Of what is RETIRED only the mark of a group's eviction says more (G3). */
static bool evicted_member(const struct msg_entry *e)
{
	return e->state == 2 && e->reason == RETIRE_EVICTED && e->opts && e->opts->group.n;
}

static bool keeps_opts(const struct msg_entry *e)
{
	return e->state == 1 || evicted_member(e);
}

/* An entry that the table does not have. */
static struct copy *entry_new(struct mind *m, struct holder *h, const struct msg_entry *e)
{
	struct range r[OBJ_EXTENTS_MAX];
	uint32_t segment;
	size_t n = ranges_of(e, r, &segment);
	struct attempt *a = attempt_of(m, e->version);
	if (a && a->holder == h->index) { /* it was committed; the publish is lost */
		struct copy *c = attempt_commit(m, a, e->slot, e->generation, e->sum);
		h->short_memory |= !c;
		return c;
	}
	struct pull *p = pull_of(m, e->version, h->index);
	if (p) { /* likewise of a copy */
		struct copy *c = pull_commit(m, p, e->slot, e->generation, e->sum);
		h->short_memory |= !c;
		return c;
	}
	uint16_t tenant = tenant_of(m, e->tenant, true);
	struct obj *o;
	if (tenant == TENANTS_MAX || obj_merge(m, tenant, e->key, &o) != ERR_NONE) {
		h->short_memory |= m->n_tenants < TENANTS_MAX;
		return NULL;
	}
	struct copy *c = copy_new(m, o, h, e->slot, n);
	/* one that is to go through T2 is remembered from the start */
	if (!c || (keeps_opts(e) && opts_copy(m, e->opts, &c->opts) != ERR_NONE) ||
	    group_join(m, tenant, c->opts) != ERR_NONE ||
	    (e->state == 1 && !e->published && !work_get(m, o))) {
		h->short_memory = true;
		if (c)
			copy_drop(m, c, false);
		work_gc(m, o);
		obj_gc(m, o);
		return NULL;
	}
	c->version = e->version;
	c->size = e->size;
	c->sum = e->sum;
	c->segment = segment;
	memcpy(c->ranges, r, n * sizeof(*r));
	charge_copy(m, c, true);
	group_link(m, c);
	c->flags = COPY_MERGED;
	return c;
}

/* The slot was emptied and used again while we did not look. */
static void forget_old(struct mind *m, struct copy *c)
{
	struct obj *o = c->obj;
	copy_drop(m, c, false);
	obj_step(m, o);
}

#ifdef POMELO_PLANT
/* Its row says `in` since this term alone. */
static bool returned(const struct mind *m, const struct holder *h)
{
	struct meta_holder_info i;
	meta_holder_info(h->row, &i);
	return i.term == m->term;
}
#endif

static void entry_committed(struct mind *m, struct holder *h, struct copy *c,
			    const struct msg_entry *e)
{
	if (c->state >= COPY_RETIRING) { /* RETIRE was lost: it is owed under this adoption */
		copy_retire(m, c, c->reason);
		return;
	}
	copy_state(m, c, COPY_COMMITTED);
	if (e->published)
		c->flags |= COPY_MARKED;
#ifdef POMELO_PLANT
	if (BROKEN(m, MIND_BREAK_MERGE_TOMB) && !returned(m, h))
		return;
#endif
	if (c->version > holder_barred(m, h, c->obj, c->opts))
		return;
	copy_unserve(m, c);
	if (!(c->flags & COPY_BARRED))
		h->n_barred++;
	c->flags |= COPY_BARRED;
	copy_retire(m, c, RETIRE_BARRED);
}

static void entry_retired(struct mind *m, struct copy *c, const struct msg_entry *e)
{
	if (c->state >= COPY_RETIRED) {
		if (c->state == COPY_FREEING)
			slot_owe(m, c);
		return;
	}
	bool ours = c->state == COPY_RETIRING;
	if (ours)
		slot_answered(m, c);
	copy_state(m, c, COPY_RETIRING);
	copy_state(m, c, COPY_RETIRED);
	if (!ours || c->reason == RETIRE_NONE)
		c->reason = e->reason;
}

/* Two slots over one extent: the range is the other one's, and its bytes are not to be trusted here. */
static void entry_overlap(struct mind *m, struct copy *c)
{
	copy_coming(m, c, false);
	charge_copy(m, c, false);
	m->bytes -= c->n_ranges * sizeof(struct range);
	c->n_ranges = 0;
	m->n.rejected++;
	if (c->state != COPY_COMMITTED)
		return;
	copy_unserve(m, c);
	copy_retire(m, c, RETIRE_OVERLAP);
}

/* Not taken into the index. Its range is not given out all the same. */
static void entry_reject(struct mind *m, struct holder *h, const struct msg_entry *e)
{
	struct range r[OBJ_EXTENTS_MAX];
	uint32_t segment;
	m->n.rejected++;
	m->n.malformed++;
	if (e->extents.n > OBJ_EXTENTS_MAX)
		return;
	size_t n = ranges_of(e, r, &segment);
	enum err x = space_reserve(m, h, segment, r, n); /* an error: somebody has it */
	h->n_lost += x == ERR_NONE;
	h->short_memory |= x == ERR_NO_MEMORY;
}

/* The range is taken; ERR_CONFLICT: another has some of it; ERR_NO_MEMORY: as if it had not been read. */
static enum err entry_reserve(struct mind *m, struct holder *h, struct copy *c,
			      const struct msg_entry *e)
{
	if (e->state == 2 && e->reason == RETIRE_OVERLAP)
		return ERR_NONE; /* the loser of an overlap comes after all others */
	enum err x = space_reserve(m, h, c->segment, c->ranges, c->n_ranges);
	if (x != ERR_NO_MEMORY)
		return x;
	struct obj *o = c->obj;
	h->short_memory = true;
	c->merge = (uint16_t)(h->merge - 1);
	if (c->state == 0)
		copy_drop(m, c, false);
	obj_step(m, o);
	return x;
}

static void entry_merge(struct mind *m, struct holder *h, const struct msg_entry *e)
{
	struct copy *c = slot_at(h, e->slot);
	if (c && c->version != e->version && c->merge == h->merge) {
		entry_reject(m, h, e); /* B5: one slot, named twice */
		return;
	}
	if (c && c->version != e->version) {
		forget_old(m, c);
		c = NULL;
	}
	if (c && c->merge == h->merge)
		return; /* the piece came twice */
	if (!c)
		c = entry_new(m, h, e);
	if (!c) {
		if (!h->short_memory)
			entry_reject(m, h, e);
		return;
	}
	enum err x = entry_reserve(m, h, c, e);
	if (x == ERR_NO_MEMORY)
		return;
	c->merge = h->merge;
	c->generation = e->generation;
	if (e->state == 1)
		entry_committed(m, h, c, e);
	else
		entry_retired(m, c, e);
	if (evicted_member(e))
		group_mark(m, c, e->evict_id);
	if (x != ERR_NONE)
		entry_overlap(m, c);
	obj_step(m, c->obj);
}

/* ---- writing ranges ---- */

/* Whose range it is and since when, if that was known. */
static void writer_of(const struct mind *m, const struct holder *h, struct quar *q)
{
	const struct attempt *a = attempt_of(m, q->version);
	if (a) { /* the merge's end resolves it */
		q->tenant = a->obj->tenant;
		q->client = a->client;
	}
	list_for_each (it, &h->quars) {
		const struct quar *old = list_entry(it, struct quar, node);
		if (old->version != q->version)
			continue;
		q->since_ns = old->since_ns;
		q->tenant = old->tenant;
		q->client = old->client;
		break;
	}
	if (q->client) {
		q->client->quarantine += q->bytes;
		client_hold(q->client);
	}
}

static void writing_merge(struct mind *m, struct holder *h, const struct msg_writing *w)
{
	size_t n = w->extents.n;
	if (n > OBJ_EXTENTS_MAX)
		return;
	struct quar *q = calloc(1, sizeof(*q) + n * sizeof(struct range));
	if (!q) {
		h->short_memory = true;
		return;
	}
	q->version = w->version;
	q->since_ns = m->now;
	q->segment = n ? w->extents.p[0].segment : 0;
	q->merge = h->merge;
	q->tenant = TENANTS_MAX;
	for (size_t i = 0; i < n; i++)
		q->ranges[i] = (struct range){ w->extents.p[i].offset, w->extents.p[i].bytes };
	q->n_ranges = (uint8_t)n;
	enum err x = space_reserve(m, h, q->segment, q->ranges, n);
	if (x != ERR_NONE) {
		h->short_memory |= x == ERR_NO_MEMORY;
		free(q); /* a slot has it; or nonsense; or it was read before */
		return;
	}
	for (size_t i = 0; i < n; i++)
		q->bytes += alloc_round(q->ranges[i].bytes);
	writer_of(m, h, q);
	h->quarantine += q->bytes;
	m->quarantine += q->bytes;
	m->bytes += sizeof(*q) + n * sizeof(struct range);
	charge_quar(m, q, true);
	list_push_back(&h->quars, &q->node);
}

/* The list says which of those known before are still written. */
static void writing_all(struct mind *m, struct holder *h, const struct msg_inventory_rep *piece)
{
	for (size_t i = 0; i < piece->writing.n; i++)
		writing_merge(m, h, &piece->writing.p[i]);
	if (h->short_memory)
		return;
	list_for_each_safe (it, &h->quars) {
		struct quar *q = list_entry(it, struct quar, node);
		if (q->merge != h->merge)
			quar_free(m, h, q, false);
	}
}

/* ---- pieces ---- */

/* Keys come in no order: what the table has near them is fetched while those before them are merged. */
static void merge_ahead(const struct mind *m, const struct msg_inventory_rep *piece, size_t i)
{
	enum { STEP = 8 };
	for (size_t n = 1; n <= 2 && i + n * STEP < piece->entries.n; n++) {
		const struct msg_entry *e = &piece->entries.p[i + n * STEP];
		uint64_t hash = bits_reversed(obj_key_hash(e->tenant, e->key));
		if (n == 2)
			map_warm_bucket(&m->objs, hash);
		else
			map_warm_node(&m->objs, hash);
	}
}

void mind_inventory(struct mind *m, uint32_t holder, const struct msg_inventory_rep *piece)
{
	struct holder *h = holder_at(m, holder);
	const struct msg_under *w = piece->under;
	if (!h || h->state != HOLDER_MERGING || !w)
		return;
	const struct mind_under u = { w->shard, w->term, w->adoption, w->pool_epoch };
	if (!same_under(&u, &h->under))
		return; /* V10 */
	mind_enter(m);
	for (size_t i = 0; i < piece->entries.n; i++) {
		merge_ahead(m, piece, i);
		if (sound(&piece->entries.p[i])) {
			entry_merge(m, h, &piece->entries.p[i]);
		} else {
			entry_reject(m, h, &piece->entries.p[i]);
		}
	}
	if (piece->cursor == 0)
		writing_all(m, h, piece);
	if (h->short_memory) { /* what is not known may not be called absent */
		h->short_memory = false;
		h->retry_ns = m->now + RETRY_MS * 1000000ull; /* the same piece again */
	} else if (piece->cursor) {
		h->cursor = piece->cursor;
		holder_say(m, h);
	} else {
		h->finish_at = 0;
		holder_set(m, h, HOLDER_FINISHING, h->known);
		merge_finish(m, h);
	}
	mind_leave(m);
}

/* ---- the end of a merge ---- */

/* An attempt that no slot has: the epoch has fenced it; a range still written is in quarantine. */
static void attempts_resolve(struct mind *m, struct holder *h)
{
	while (!list_empty(&h->attempts))
		attempt_end(m, list_entry(h->attempts.next, struct attempt, of_holder), false);
	pulls_resolve(m, h);
}

static void merge_done(struct mind *m, struct holder *h)
{
	attempts_resolve(m, h);
	holder_set(m, h, HOLDER_MERGED, true);
	m->merges++;
	m->space_dirty = true;
	mind_kick(m);
	slots_send(m, h);
	publish_early(m, h);
	holder_settle(m, h);
	holder_step(m, h);
}

/* false: no memory, the same one again. */
static bool finish_one(struct mind *m, struct holder *h, struct copy *c)
{
	struct obj *o = c->obj;
	enum err x = ERR_NONE;
	if (c->merge != h->merge) {
		copy_drop(m, c, false);
		obj_step(m, o);
		return true;
	}
	if (c->state >= COPY_RETIRED && c->reason == RETIRE_OVERLAP)
		x = space_reserve(m, h, c->segment, c->ranges, c->n_ranges);
	if (x == ERR_CONFLICT)
		entry_overlap(m, c);
	return x != ERR_NO_MEMORY;
}

void merge_finish(struct mind *m, struct holder *h)
{
	for (uint32_t n = 0; n < 4096 && h->state == HOLDER_FINISHING; h->finish_at++) {
		if (h->finish_at / SLOT_PAGE >= h->n_pages) {
			merge_done(m, h);
			return;
		}
		struct copy *c = slot_at(h, (uint32_t)h->finish_at);
		if (c) {
			if (!finish_one(m, h, c))
				return;
			n++;
		} else if (!h->pages[h->finish_at / SLOT_PAGE]) {
			h->finish_at |= SLOT_PAGE - 1;
		}
	}
}
