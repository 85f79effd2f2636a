/* SPDX-License-Identifier: Apache-2.0 */
/* The state as a whole: applying, planning, dumping, counting. */
#include "meta/meta_priv.h"

#include <string.h>
#include <xxhash.h>

uint64_t meta_hash(const struct meta_state *st, const void *p, size_t n, uint64_t salt)
{
	return XXH3_64bits_withSeed(n ? p : "", n, st->seed ^ salt);
}

void meta_limits_default(struct meta_limits *l)
{
	l->holders_max = l->holders_max ? l->holders_max : 4096;
	l->tombs_max = l->tombs_max ? l->tombs_max : 1000000;
	l->tomb_bytes_max = l->tomb_bytes_max ? l->tomb_bytes_max : 256ull << 20;
	l->claims_max = l->claims_max ? l->claims_max : 1000000;
	l->views_max = l->views_max ? l->views_max : 65536;
	l->bytes_max = l->bytes_max ? l->bytes_max : 4ull << 30;
}

enum err meta_state_new(uint64_t seed, struct meta_state **out)
{
	struct meta_state *st = calloc(1, sizeof(*st));
	if (!st)
		return ERR_NO_MEMORY;
	st->seed = seed;
	map_init(&st->holders, SIZE_MAX);
	map_init(&st->claims, SIZE_MAX);
	map_init(&st->views, SIZE_MAX);
	list_init(&st->sweep);
	*out = st;
	return ERR_NONE;
}

static void free_holder(struct map_node *n, void *arg)
{
	struct meta_holder *h = container_of(n, struct meta_holder, node);
	map_remove(&h->st->holders, n);
	holder_free(h);
}

void meta_state_free(struct meta_state *st)
{
	if (!st)
		return;
	uint64_t cursor = 0;
	while (map_scan(&st->holders, &cursor, 64, free_holder, NULL))
		;
	/* those forgotten and not yet swept */
	for (struct list *l; (l = list_pop_front(&st->sweep));)
		holder_free(list_entry(l, struct meta_holder, sweep));
	map_fini(&st->holders);
	named_fini(st);
	free(st);
}

/* ---- applying ---- */

static enum err term_apply(struct meta_state *st, uint64_t seq, uint64_t term)
{
	if (term <= st->term)
		return ERR_CONFLICT; /* I1 */
	st->term = term;
	st->term_seq = seq;
	return ERR_NONE;
}

static enum err apply(struct meta_state *st, uint64_t seq, const struct meta_rec *r)
{
	struct meta_holder *h;
	switch (r->type) {
	case META_TERM:
		return term_apply(st, seq, r->TERM.term);
	case META_HOLDER:
		return holder_apply(st, seq, &r->HOLDER);
	case META_FORGET:
		return forget_apply(st, &r->FORGET);
	case META_TOMB:
		h = meta_holder_of(st, r->TOMB.holder);
		return h ? tomb_add(h, seq, r->TOMB.shard, 0, r->TOMB.tenant, r->TOMB.key,
				    r->TOMB.ceiling)
			 : ERR_NOT_FOUND;
	case META_RANGE:
		h = meta_holder_of(st, r->RANGE.holder);
		return h ? tomb_add(h, seq, r->RANGE.shard, r->RANGE.match, r->RANGE.tenant,
				    r->RANGE.prefix, r->RANGE.ceiling)
			 : ERR_NOT_FOUND;
	case META_FLOOR:
		h = meta_holder_of(st, r->FLOOR.holder);
		return h ? floor_raise(h, seq, r->FLOOR.shard, r->FLOOR.floor) : ERR_NOT_FOUND;
	case META_SETTLED:
		h = meta_holder_of(st, r->SETTLED.holder);
		if (!h)
			return ERR_NOT_FOUND;
		/* not what is still to come: it would be dead at birth here and alive after a
		 * snapshot */
		tombs_settle(h, r->SETTLED.shard, MIN_OF(r->SETTLED.through, seq));
		return ERR_NONE;
	case META_CLAIM:
		return claim_apply(st, seq, &r->CLAIM);
	case META_UNCLAIM:
		return unclaim_apply(st, &r->UNCLAIM);
	case META_VIEW:
		return view_apply(st, seq, &r->VIEW);
	case META_UNVIEW:
		return unview_apply(st, &r->UNVIEW);
	}
	return ERR_UNSUPPORTED;
}

enum err meta_state_apply(struct meta_state *st, uint64_t seq, const struct meta_rec *r)
{
	assert(seq > st->last_seq);
	st->last_seq = seq;
	return apply(st, seq, r);
}

enum err meta_state_restore(struct meta_state *st, uint64_t seq, const struct meta_rec *r)
{
	return apply(st, seq, r);
}

void meta_state_restored(struct meta_state *st, uint64_t seq)
{
	assert(seq >= st->last_seq);
	st->last_seq = seq;
}

/* ---- planning ---- */

void meta_state_plan(struct meta_state *st)
{
	uint64_t id = st->plan.id + 1;
	memset(&st->plan, 0, sizeof(st->plan));
	st->plan.id = id;
	st->plan.term = st->term;
}

static enum err over(struct why *why, const char *what, uint64_t limit)
{
	return why_set(why, ERR_TOO_LARGE, "the meta store holds its limit of %s: %llu", what,
		       (unsigned long long)limit);
}

static enum err admit_bytes(struct meta_state *st, const struct meta_limits *l, size_t n,
			    struct why *why)
{
	if (st->bytes + st->plan.bytes + n > l->bytes_max)
		return over(why, "bytes", l->bytes_max);
	st->plan.bytes += n;
	return ERR_NONE;
}

static enum err admit_holder(struct meta_state *st, const struct meta_limits *l,
			     const struct msg_meta_holder *m, struct why *why)
{
	if (meta_holder_of(st, m->id))
		return ERR_NONE;
	if (st->holders.n + st->plan.holders >= l->holders_max)
		return over(why, "holders", l->holders_max);
	st->plan.holders++;
	return admit_bytes(st, l, sizeof(struct meta_holder), why);
}

/* Known, or just planned to be: then the record finds it when it is applied. */
static enum err admit_place(const struct meta_state *st, struct bytes id, struct why *why)
{
	if (meta_holder_of(st, id) || st->plan.holders > 0)
		return ERR_NONE;
	return why_set(why, ERR_NOT_FOUND, "holder '%.*s' is not in the roster", (int)id.n,
		       (const char *)id.p);
}

/* True when the budget is spent: the caller writes a floor instead (T3). */
static bool over_budget(struct meta_state *st, const struct meta_limits *l, struct bytes id,
			size_t n_bytes)
{
	struct meta_holder *h = meta_holder_of(st, id);
	if (!h)
		return false;
	if (h->plan_id != st->plan.id) {
		h->plan_id = st->plan.id;
		h->planned = h->planned_bytes = 0;
	}
	uint64_t bytes, n = tombs_alive(h, &bytes);
	bool total = st->bytes + st->plan.bytes + n_bytes > l->bytes_max;
	if (total || n + h->planned >= l->tombs_max ||
	    bytes + h->planned_bytes + n_bytes > l->tomb_bytes_max)
		return true;
	h->planned++;
	h->planned_bytes += n_bytes;
	st->plan.bytes += n_bytes;
	return false;
}

static void make_floor(struct meta_rec *r, struct bytes holder, uint32_t shard, uint64_t now)
{
	r->type = META_FLOOR;
	r->FLOOR = (struct msg_meta_floor){ holder, shard, now };
}

static enum err admit_tomb(struct meta_state *st, const struct meta_limits *l,
			   struct meta_rec *r, struct why *why)
{
	const struct msg_meta_tomb m = r->TOMB;
	enum err e = admit_place(st, m.holder, why);
	if (e == ERR_NONE && over_budget(st, l, m.holder, tomb_bytes_of(m.tenant, m.key)))
		make_floor(r, m.holder, m.shard, m.now);
	return e;
}

static enum err admit_range(struct meta_state *st, const struct meta_limits *l,
			    struct meta_rec *r, struct why *why)
{
	const struct msg_meta_range m = r->RANGE;
	enum err e = admit_place(st, m.holder, why);
	if (e == ERR_NONE && over_budget(st, l, m.holder, tomb_bytes_of(m.tenant, m.prefix)))
		make_floor(r, m.holder, m.shard, m.now);
	return e;
}

static enum err admit_claim(struct meta_state *st, const struct meta_limits *l,
			    const struct msg_meta_claim *m, struct why *why)
{
	const struct claim *c = claim_of(st, m->space, m->name);
	if (c) {
		struct bytes o = claim_owner(c);
		if (o.n != m->owner.n || memcmp(o.p, m->owner.p, o.n) != 0)
			return why_set(why, ERR_CONFLICT, "it is claimed by '%.*s'", (int)o.n,
				       (const char *)o.p);
	} else if (st->claims.n + st->plan.claims++ >= l->claims_max) {
		return over(why, "claims", l->claims_max);
	}
	return admit_bytes(st, l,
			   sizeof(struct claim) + m->space.n + m->name.n + m->owner.n +
				   m->value.n,
			   why);
}

static enum err admit_view(struct meta_state *st, const struct meta_limits *l,
			   const struct msg_meta_view *m, struct why *why)
{
	const struct view *v = view_of(st, m->tenant, m->group);
	if (v && (m->term < v->term || (m->term == v->term && m->epoch <= v->epoch)))
		return why_set(why, ERR_CONFLICT,
			       "the group's view of term %llu epoch %llu is not older",
			       (unsigned long long)v->term, (unsigned long long)v->epoch);
	if (!v && st->views.n + st->plan.views++ >= l->views_max)
		return over(why, "views", l->views_max);
	return admit_bytes(st, l, sizeof(struct view) + m->tenant.n + m->group.n + m->blob.n,
			   why);
}

static enum err admit_term(struct meta_state *st, uint64_t term, struct why *why)
{
	if (term <= st->plan.term)
		return why_set(why, ERR_CONFLICT, "term %llu is not above the store's %llu",
			       (unsigned long long)term, (unsigned long long)st->plan.term);
	st->plan.term = term;
	return ERR_NONE;
}

enum err meta_state_admit(struct meta_state *st, const struct meta_limits *l,
			  struct meta_rec *r, struct why *why)
{
	switch (r->type) {
	case META_TERM:
		return admit_term(st, r->TERM.term, why);
	case META_HOLDER:
		return admit_holder(st, l, &r->HOLDER, why);
	case META_FORGET:
		return admit_place(st, r->FORGET.holder, why);
	case META_TOMB:
		return admit_tomb(st, l, r, why);
	case META_RANGE:
		return admit_range(st, l, r, why);
	case META_FLOOR:
		return admit_place(st, r->FLOOR.holder, why);
	case META_SETTLED:
		return admit_place(st, r->SETTLED.holder, why);
	case META_CLAIM:
		return admit_claim(st, l, &r->CLAIM, why);
	case META_VIEW:
		return admit_view(st, l, &r->VIEW, why);
	case META_UNCLAIM:
	case META_UNVIEW:
		return ERR_NONE; /* what they name may be planned: known when they are applied */
	}
	return ERR_INVALID_PARAMS;
}

/* ---- dumping ---- */

struct dump {
	enum err (*emit)(void *arg, uint64_t seq, const struct meta_rec *r);
	void *arg;
	enum err err;
};

static void dump_one(void *arg, uint64_t seq, const struct meta_rec *r)
{
	struct dump *d = arg;
	if (d->err == ERR_NONE)
		d->err = d->emit(d->arg, seq, r);
}

static void dump_holder(struct dump *d, const struct meta_holder *h)
{
	struct bytes addrs[8];
	struct meta_rec r = holder_row(h, addrs);
	dump_one(d, h->row_seq, &r);
	for (uint32_t i = 0; i < h->n_shards; i++) {
		const struct hshard *s = &h->shards[i];
		if (s->floor == 0)
			continue;
		make_floor(&r, BYTES_STR(h->id), s->shard, s->floor);
		dump_one(d, s->floor_seq, &r);
	}
}

enum err meta_state_dump(const struct meta_state *st,
			 enum err (*emit)(void *arg, uint64_t seq, const struct meta_rec *r),
			 void *arg)
{
	struct dump d = { emit, arg, ERR_NONE };
	if (st->term > 0)
		dump_one(&d, st->term_seq,
			 &(struct meta_rec){ .type = META_TERM, .TERM = { st->term } });
	const struct meta_holder *h;
	for (h = meta_holder_first(st); h && d.err == ERR_NONE; h = meta_holder_next(st, h))
		dump_holder(&d, h);
	for (h = meta_holder_first(st); h; h = meta_holder_next(st, h))
		for (uint64_t c = 0;
		     d.err == ERR_NONE && meta_tomb_scan(st, h, &c, 4096, dump_one, &d);)
			;
	for (uint64_t c = 0; d.err == ERR_NONE && meta_claim_scan(st, &c, 4096, dump_one, &d);)
		;
	for (uint64_t c = 0; d.err == ERR_NONE && meta_view_scan(st, &c, 4096, dump_one, &d);)
		;
	return d.err;
}

/* ---- reading ---- */

uint64_t meta_term(const struct meta_state *st)
{
	return st->term;
}

uint64_t meta_last_seq(const struct meta_state *st)
{
	return st->last_seq;
}

void meta_state_counts(const struct meta_state *st, struct meta_counts *out)
{
	uint64_t alive = 0;
	const struct meta_holder *h;
	for (h = meta_holder_first(st); h; h = meta_holder_next(st, h))
		alive += tombs_alive(h, NULL);
	*out = (struct meta_counts){ .holders = st->holders.n,
				     .away = st->n_away,
				     .tombs = alive,
				     .dead = st->n_tombs - alive,
				     .claims = st->claims.n,
				     .views = st->views.n,
				     .bytes = st->bytes };
}

void meta_state_check(const struct meta_state *st)
{
	uint64_t away = 0, tombs = 0, bytes = named_check(st);
	const struct meta_holder *h;
	for (h = meta_holder_first(st); h; h = meta_holder_next(st, h)) {
		assert(!h->gone);
		tombs_check(h);
		away += h->away;
		tombs += h->tombs.n;
		bytes += sizeof(*h) + h->tomb_bytes;
	}
	list_for_each (l, &st->sweep) {
		h = list_entry(l, struct meta_holder, sweep);
		if (!h->gone)
			continue;
		tombs += h->tombs.n;
		bytes += sizeof(*h) + h->tomb_bytes;
	}
	assert(away == st->n_away && tombs == st->n_tombs && bytes == st->bytes); /* I4 */
	map_check(&st->holders);
}
