/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes part in a plan, and by which pipeline stages it goes: lists of operations, by counting.
 * Fragments are long records in the order of ids, so that whatever is asked of an operation's
 * fragments is first put into a list of one number a fragment.
 */
#include "reshard/plan_priv.h"

#include "reshard/names.h"

/* ---- executors ---- */

static bool exec_alloc(const struct plan *p, const struct place *side, struct plan_exec **execs,
		       uint32_t **ops, struct plan_room *room)
{
	*ops = plan_alloc(room, p->n_ops * sizeof(**ops));
	*execs = plan_alloc(room, side->n_parts * sizeof(**execs));
	return *ops && *execs;
}

/* A part's fragments are in the order of ids, and so are operations. */
static bool target_execs(struct plan *p, const uint32_t *at, struct plan_room *room)
{
	const struct place *t = p->target;
	uint32_t n = 0;
	if (!exec_alloc(p, t, &p->targets, &p->target_ops, room))
		return false;
	for (uint32_t r = 0; r < t->n_parts; r++) {
		const struct place_part *q = &t->parts[t->rank_order[r]];
		struct plan_exec x = { t->rank_order[r], n, 0 };
		for (uint32_t f = q->first; f < q->first + q->n; f++) {
			for (uint32_t i = at[t->id_rank[f]]; i < at[t->id_rank[f] + 1]; i++)
				p->target_ops[n++] = i;
			if (!plan_go(room, f))
				return false;
		}
		x.n = n - x.first;
		if (x.n)
			p->targets[p->n_targets++] = x;
	}
	return true;
}

static void fill_parts(const struct place *s, uint32_t *part_of)
{
	for (uint32_t r = 0; r < s->n_parts; r++)
		for (uint32_t f = s->parts[r].first; f < s->parts[r].first + s->parts[r].n; f++)
			part_of[f] = r;
}

static bool source_execs(struct plan *p, struct plan_room *room)
{
	const struct place *s = p->source;
	AUTO_FREE uint32_t *at = plan_zero(room, s->n_parts, sizeof(*at));
	AUTO_FREE uint32_t *part_of = plan_alloc(room, s->n_frags * sizeof(*part_of));
	if (!exec_alloc(p, s, &p->sources, &p->source_ops, room) || !at || !part_of)
		return false;
	if (!plan_touch(room, p->source_ops, p->n_ops * sizeof(*p->source_ops)))
		return false;
	fill_parts(s, part_of);
	for (uint32_t i = 0; i < p->n_ops; i++) {
		at[part_of[p->ops[i].source]]++;
		if (!plan_go(room, i))
			return false;
	}
	uint32_t sum = 0;
	for (uint32_t r = 0; r < s->n_parts; r++) {
		uint32_t part = s->rank_order[r], n = at[part];
		at[part] = sum;
		if (n)
			p->sources[p->n_sources++] = (struct plan_exec){ part, sum, n };
		sum += n;
	}
	for (uint32_t i = 0; i < p->n_ops; i++) {
		p->source_ops[at[part_of[p->ops[i].source]]++] = i;
		if (!plan_go(room, i))
			return false;
	}
	return true;
}

/* ---- routes ---- */

/* What of a fragment decides by which route it goes. */
struct stop_key {
	uint64_t pp, has_stage, stage;
};

/* The distinct ones of a side, ascending, and which a fragment has; of is NULL when that is the only
 * one. */
struct stops {
	struct names keys;
	struct arena mem;
	uint32_t *order, *of;
};

static void stops_fini(struct stops *s)
{
	names_fini(&s->keys);
	arena_fini(&s->mem);
	free(s->order);
	free(s->of);
}

static const struct stop_key *stop_key(const struct stops *s, uint32_t number)
{
	return (const void *)s->keys.name[number].p;
}

static int key_cmp(const void *a, const void *b, void *arg)
{
	const struct stop_key *x = stop_key(arg, *(const uint32_t *)a);
	const struct stop_key *y = stop_key(arg, *(const uint32_t *)b);
	if (x->pp != y->pp)
		return x->pp < y->pp ? -1 : 1;
	if (x->has_stage != y->has_stage)
		return x->has_stage < y->has_stage ? -1 : 1;
	return (x->stage > y->stage) - (x->stage < y->stage);
}

static uint32_t stop_number(struct stops *s, const struct place_part *q, const struct frag *f)
{
	struct stop_key k = { q->rank.c[AX_PP], f->has_stage, f->has_stage ? f->stage : 0 };
	return names_put(&s->keys, BYTES(&k, sizeof(k)), &s->mem);
}

/* Numbers as they come. A fragment like the one before it, and any where none has a stage, has the
 * same. */
static bool number_stops(struct stops *s, const struct place *side, struct plan_room *room)
{
	for (uint32_t r = 0; r < side->n_parts; r++) {
		const struct place_part *q = &side->parts[r];
		uint32_t number = NAMES_NONE;
		for (uint32_t i = q->first; i < q->first + q->n; i++) {
			const struct frag *f = &side->frags[i];
			if (i == q->first ||
			    (side->staged &&
			     (f->has_stage != f[-1].has_stage || f->stage != f[-1].stage)))
				number = stop_number(s, q, f);
			if (number == NAMES_NONE)
				return plan_no_memory(room->why);
			s->of[i] = number;
			if (!plan_go(room, i))
				return false;
		}
	}
	return true;
}

static bool stops_make(struct stops *s, const struct place *side, struct plan_room *room)
{
	s->mem = ARENA_INIT(room->left);
	s->of = plan_alloc(room, side->n_frags * sizeof(*s->of));
	if (!s->of || !number_stops(s, side, room))
		return false;
	uint32_t n = s->keys.n;
	AUTO_FREE uint32_t *rank = plan_alloc(room, n * sizeof(*rank));
	s->order = plan_alloc(room, n * sizeof(*s->order));
	if (!rank || !s->order)
		return false;
	for (uint32_t i = 0; i < n; i++)
		s->order[i] = i;
	if (!stop_sort(s->order, n, sizeof(*s->order), key_cmp, s, room->cancel))
		return plan_sort_fail(room);
	for (uint32_t i = 0; i < n; i++)
		rank[s->order[i]] = i;
	for (uint32_t f = 0; n > 1 && f < side->n_frags; f++)
		s->of[f] = rank[s->of[f]];
	return true;
}

/* in[0..n), or 0..n for NULL, by the number that by_source says, and else as they were. */
static bool sort_ops(const struct plan *p, const struct stops *s, bool by_source,
		     const uint32_t *in, uint32_t *out, struct plan_room *room)
{
	AUTO_FREE uint32_t *at = plan_zero(room, (size_t)s->keys.n + 1, sizeof(*at));
	if (!at || !plan_touch(room, out, p->n_ops * sizeof(*out)))
		return false;
	for (uint32_t i = 0; i < p->n_ops; i++) {
		at[s->of[by_source ? p->ops[i].source : p->ops[i].target] + 1]++;
		if (!plan_go(room, i))
			return false;
	}
	for (uint32_t k = 0; k < s->keys.n; k++)
		at[k + 1] += at[k];
	for (uint32_t i = 0; i < p->n_ops; i++) {
		uint32_t op = in ? in[i] : i;
		out[at[s->of[by_source ? p->ops[op].source : p->ops[op].target]]++] = op;
		if (!plan_go(room, i))
			return false;
	}
	return true;
}

static bool route_put(struct plan *p, uint32_t *cap, const struct stop_key *s,
		      const struct stop_key *t, uint32_t first, uint32_t n,
		      struct plan_room *room)
{
	if (!plan_grow(&p->routes, cap, p->n_routes, sizeof(*p->routes), room))
		return false;
	p->routes[p->n_routes++] = (struct plan_route){
		.source_pp = s ? s->pp : 0,
		.source_stage = s ? s->stage : 0,
		.target_pp = t->pp,
		.target_stage = t->stage,
		.has_source_pp = s != NULL,
		.has_source_stage = s && s->has_stage,
		.has_target_stage = t->has_stage,
		.first = first,
		.n = n,
	};
	return true;
}

/* Source (0 for stored weights) and target number of an operation. */
static uint64_t route_of(const struct plan *p, const struct stops *s, const struct stops *t,
			 uint32_t op)
{
	uint64_t source = s->of ? s->of[p->ops[op].source] : 0;
	return source << 32 | t->of[p->ops[op].target];
}

/* Runs of one route in route_ops. */
static bool route_runs(struct plan *p, const struct stops *s, const struct stops *t,
		       struct plan_room *room)
{
	bool one = s->keys.n <= 1 && t->keys.n == 1;
	uint32_t cap = 0;
	for (uint32_t i = 0, e; i < p->n_ops; i = e) {
		uint64_t r = route_of(p, s, t, p->route_ops[i]);
		for (e = one ? p->n_ops : i + 1; e < p->n_ops; e++) {
			if (route_of(p, s, t, p->route_ops[e]) != r)
				break;
			if (!plan_go(room, e))
				return false;
		}
		const struct stop_key *from =
			p->source && s->order ? stop_key(s, s->order[r >> 32]) : NULL;
		if (!route_put(p, &cap, from, stop_key(t, t->order[(uint32_t)r]), i, e - i,
			       room))
			return false;
	}
	return true;
}

/* By target, then by source: sorting keeps what it does not look at. */
static bool sort_routes(struct plan *p, const struct stops *s, const struct stops *t,
			struct plan_room *room)
{
	bool two = s->keys.n > 1 && t->keys.n > 1;
	AUTO_FREE uint32_t *tmp = two ? plan_alloc(room, p->n_ops * sizeof(*tmp)) : NULL;
	p->route_ops = plan_alloc(room, p->n_ops * sizeof(*p->route_ops));
	if (!p->route_ops || (two && !tmp))
		return false;
	if (two)
		return sort_ops(p, t, false, NULL, tmp, room) &&
		       sort_ops(p, s, true, tmp, p->route_ops, room);
	if (t->keys.n > 1)
		return sort_ops(p, t, false, NULL, p->route_ops, room);
	if (s->keys.n > 1)
		return sort_ops(p, s, true, NULL, p->route_ops, room);
	for (uint32_t i = 0; i < p->n_ops; i++)
		p->route_ops[i] = i;
	return true;
}

static bool routes(struct plan *p, struct plan_room *room)
{
	struct stops s = { 0 }, t = { 0 };
	bool ok = (!p->source || stops_make(&s, p->source, room)) &&
		  stops_make(&t, p->target, room) && sort_routes(p, &s, &t, room) &&
		  route_runs(p, &s, &t, room);
	stops_fini(&s);
	stops_fini(&t);
	return ok;
}

bool plan_index(struct plan *p, const uint32_t *at, struct plan_room *room)
{
	return (!p->source || source_execs(p, room)) && target_execs(p, at, room) &&
	       routes(p, room);
}
