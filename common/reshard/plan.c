/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor by tensor: the target's distinct boxes meet the source's offers, and each pair that meets
 * is a region. The list of a box is shared by all target fragments that have it; at the end the
 * lists are written out in the order of target ids.
 */
#include "reshard/place_priv.h"
#include "reshard/plan_priv.h"

#include <stdio.h>

/* A target fragment's list of pairs. */
struct list {
	uint32_t first, n;
};

/* A pair that met. */
struct pair {
	uint64_t target_base;
	uint32_t source; /* fragment */
};

/* What all pairs of a target box come to: no more than the box has. */
struct sum {
	uint64_t bytes, segments;
};

struct making {
	const struct plan_ask *ask;
	struct plan *p;
	struct reject *why;
	struct plan_room room;
	struct box_work work;
	struct box_join join;
	struct offers offers;
	struct cands k;
	const uint64_t **source_boxes, **target_boxes;
	uint32_t *pair_at; /* target box -> first of its pairs in join.pairs, once sorted */
	struct sum *sums;  /* target box -> its pairs */
	struct pair *pairs;
	uint32_t n_pairs, cap_pairs;
	uint64_t n_ops;
	unsigned __int128 segments;
	struct list *lists;  /* target fragment, as by_tensor has it -> its pairs */
	uint32_t *op_at;     /* target fragment, as by_id has it -> its first operation */
	uint32_t *to_source; /* target tensor -> source tensor */
	uint32_t part;	     /* local: the target's part */
	bool *only;	     /* local: target part -> is it that one? */
};

static bool fail(struct making *m, enum rule r, const char *what)
{
	return reject_set(m->why, r, "", "%s", what);
}

static bool fail_tensor(struct making *m, enum rule r, struct bytes id)
{
	return reject_set(m->why, r, "", "tensor %.*s", (int)MIN_OF(id.n, 120),
			  (const char *)id.p);
}

static const struct tensor *source_tensor(const struct making *m, uint32_t t)
{
	return m->ask->source ? &m->ask->source->tensors[t] : &m->ask->stored->tensors[t];
}

/* ---- is there anything to plan? ---- */

static bool check_limits(struct making *m)
{
	const struct plan_limits *l = &m->ask->lim;
	return (l->max_transfer_regions && l->max_segments_per_region &&
		l->max_total_lowered_segments) ||
	       reject_set(m->why, RULE_LIMITS_POSITIVE, "limits", "0; at least 1 is allowed");
}

static bool check_identity(struct making *m)
{
	const struct place *s = m->ask->source, *t = m->ask->target;
	const struct stored *d = m->ask->stored;
	if (!bytes_eq(s ? s->resource_id : d->resource_id, t->resource_id))
		return fail(m, RULE_PLAN_IDENTITY, "resource_id");
	if (!bytes_eq(s ? s->revision : d->revision, t->revision))
		return fail(m, RULE_PLAN_IDENTITY, "revision");
	return (s ? s->generation : d->generation) == t->generation ||
	       fail(m, RULE_PLAN_IDENTITY, "weight_generation");
}

static bool check_local(struct making *m)
{
	const struct place *t = m->ask->target;
	m->part = UINT32_MAX;
	if (!m->ask->local)
		return true;
	if (!m->ask->participant.p && t->n_parts > 1)
		return fail(m, RULE_PLAN_PARTICIPANT, "the target has several: name one");
	m->part = m->ask->participant.p ? place_find_part(t, m->ask->participant) : 0;
	if (m->part == UINT32_MAX)
		return fail(m, RULE_PLAN_PARTICIPANT, "the target has no such participant");
	return t->parts[m->part].n > 0 ||
	       fail(m, RULE_PLAN_LOCAL_EMPTY, "the participant holds nothing");
}

/* Which target tensors are wanted; all but for a local plan. */
static bool wanted(const struct making *m, bool *out)
{
	const struct place *t = m->ask->target;
	memset(out, m->part == UINT32_MAX, t->n_tensors);
	if (m->part == UINT32_MAX)
		return true;
	const struct place_part *q = &t->parts[m->part];
	for (uint32_t i = q->first; i < q->first + q->n; i++)
		out[t->frags[i].tensor] = true;
	return true;
}

static bool match_tensor(struct making *m, uint32_t i)
{
	const struct tensor *t = &m->ask->target->tensors[i];
	uint32_t k = m->ask->source ? place_find_tensor(m->ask->source, t->id)
				    : stored_find_tensor(m->ask->stored, t->id);
	if (k == UINT32_MAX)
		return fail_tensor(m, RULE_PLAN_TENSOR_SET, t->id);
	m->to_source[i] = k;
	return true;
}

/* Both lists are in the order of names when the source is a placement: one walk. */
static bool match_tensors(struct making *m, const bool *want)
{
	const struct place *t = m->ask->target;
	uint32_t n = m->ask->source ? m->ask->source->n_tensors : m->ask->stored->n_tensors;
	for (uint32_t i = 0; i < t->n_tensors; i++) {
		if (!plan_go(&m->room, i))
			return false;
		m->to_source[i] = UINT32_MAX;
		if (want[i] && n == t->n_tensors && m->ask->source &&
		    bytes_eq(m->ask->source->tensors[i].id, t->tensors[i].id))
			m->to_source[i] = i;
		else if (want[i] && !match_tensor(m, i))
			return false;
	}
	if (m->part == UINT32_MAX && n != t->n_tensors)
		return fail(m, RULE_PLAN_TENSOR_SET,
			    "the source has tensors that the target lacks");
	return true;
}

static bool check_tensors(struct making *m)
{
	const struct place *t = m->ask->target;
	AUTO_FREE bool *want = plan_alloc(&m->room, t->n_tensors * sizeof(bool));
	m->to_source = plan_alloc(&m->room, t->n_tensors * sizeof(uint32_t));
	if (!want || !m->to_source)
		return false;
	if (!wanted(m, want) || !match_tensors(m, want))
		return false;
	for (uint32_t i = 0; i < t->n_tensors; i++) {
		if (m->to_source[i] == UINT32_MAX)
			continue;
		const struct tensor *a = source_tensor(m, m->to_source[i]), *b = &t->tensors[i];
		if (!bytes_eq(a->layout, b->layout))
			return fail_tensor(m, RULE_PLAN_LAYOUT, b->id);
		if (!tensor_like(a, b, false))
			return fail_tensor(m, RULE_PLAN_DESCRIPTOR, b->id);
		if (!plan_go(&m->room, i))
			return false;
	}
	return true;
}

/* ---- is the target whole? ---- */

static uint32_t count_dp(const struct place *t)
{
	uint32_t n = 0;
	uint64_t last = 0;
	for (uint32_t i = 0; i < t->n_parts; i++) {
		const struct place_part *q = &t->parts[t->rank_order[i]];
		if (q->n && (!n || q->rank.c[AX_DP] != last)) {
			last = q->rank.c[AX_DP];
			n++;
		}
	}
	return n;
}

/* k holds all fragments of the tensor, sorted by (dp, owner, box). */
static bool target_whole(struct making *m, uint32_t n_dp)
{
	struct cands *k = &m->k;
	uint32_t dps = 0;
	for (uint32_t i = 0, e; i < k->n; i = e) {
		for (e = i + 1; e < k->n && cands_same(k, i, e, true);)
			e++;
		if (!cands_whole(k, i, e))
			return fail_tensor(m, RULE_PLAN_TARGET_COVERAGE, k->t->id);
		dps += !i || k->c[i - 1].rank->c[AX_DP] != k->c[i].rank->c[AX_DP];
	}
	return tensor_dp_owned(k->t) || dps == n_dp ||
	       fail_tensor(m, RULE_PLAN_TARGET_COVERAGE, k->t->id);
}

static bool check_target(struct making *m)
{
	const struct place *t = m->ask->target;
	if (m->part != UINT32_MAX)
		return true;
	uint32_t n_dp = count_dp(t);
	for (uint32_t i = 0; i < t->n_tensors; i++) {
		uint32_t first = t->tensor_first[i], n = t->tensor_first[i + 1] - first;
		if (!box_work_take(&m->work, 16ull + n))
			return plan_work_fail(&m->work, m->why);
		cands_fill(&m->k, t, i, NULL);
		if (!cands_sort(&m->k, true, &m->room) || !target_whole(m, n_dp))
			return false;
	}
	return true;
}

/* ---- regions ---- */

static int pair_cmp(const void *a, const void *b, void *arg)
{
	(void)arg;
	const struct pair *x = a, *y = b;
	return (x->target_base > y->target_base) - (x->target_base < y->target_base);
}

static bool sort_pairs(struct making *m, struct pair *v, uint32_t n)
{
	if (n > 24)
		return stop_sort(v, n, sizeof(*v), pair_cmp, NULL, m->room.cancel) ||
		       plan_sort_fail(&m->room);
	for (uint32_t i = 1; i < n; i++) {
		struct pair x = v[i];
		uint32_t k = i;
		for (; k > 0 && v[k - 1].target_base > x.target_base; k--)
			v[k] = v[k - 1];
		v[k] = x;
	}
	return true;
}

static bool make_pair(struct making *m, const struct offer *o, const uint64_t *target,
		      const struct tensor *t, struct sum *sum, struct pair *out)
{
	struct region r;
	uint64_t bytes = t->itemsize;
	bool met = region_of(o->box, target, t->n_dims, t->itemsize, &r);
	assert(met);
	for (uint32_t d = 0; d < t->n_dims; d++)
		bytes *= r.shape[d];
	if (r.segments > m->ask->lim.max_segments_per_region)
		return reject_set(m->why, RULE_LIMITS_SEGMENTS_PER_REGION,
				  "limits.max_segments_per_region",
				  "%llu segments; at most %llu", (unsigned long long)r.segments,
				  (unsigned long long)m->ask->lim.max_segments_per_region);
	*out = (struct pair){ r.target_base, o->frag };
	sum->bytes += bytes;
	sum->segments += r.segments;
	return true;
}

/* The pairs of n_boxes distinct boxes, grouped by box (counting), each group by base. */
static bool put_pairs(struct making *m, const struct offer_run *run, uint32_t n_boxes,
		      const struct tensor *t)
{
	const struct box_join *j = &m->join;
	uint32_t first = m->n_pairs;
	if (j->n_pairs + m->n_pairs >= UINT32_MAX / 2 ||
	    (j->n_pairs && j->n_pairs > m->ask->lim.max_transfer_regions))
		return reject_set(m->why, RULE_LIMITS_REGIONS, "limits.max_transfer_regions",
				  "more than %llu",
				  (unsigned long long)m->ask->lim.max_transfer_regions);
	while (m->cap_pairs < m->n_pairs + j->n_pairs + 1)
		if (!plan_grow(&m->pairs, &m->cap_pairs, m->cap_pairs, sizeof(*m->pairs),
			       &m->room))
			return false;
	memset(m->pair_at, 0, (n_boxes + 1) * sizeof(uint32_t));
	memset(m->sums, 0, n_boxes * sizeof(*m->sums));
	for (size_t i = 0; i < j->n_pairs; i++)
		m->pair_at[j->pairs[i].b + 1]++;
	for (uint32_t i = 0; i < n_boxes; i++)
		m->pair_at[i + 1] += m->pair_at[i];
	for (size_t i = 0; i < j->n_pairs; i++) {
		struct box_pair q = j->pairs[i];
		if (!make_pair(m, &m->offers.offer[run->first + q.a], m->target_boxes[q.b], t,
			       &m->sums[q.b], &m->pairs[first + m->pair_at[q.b]++]) ||
		    !plan_go(&m->room, i))
			return false;
	}
	m->n_pairs += (uint32_t)j->n_pairs;
	for (uint32_t i = 0, at = 0; i < n_boxes; at = m->pair_at[i++])
		if (!sort_pairs(m, m->pairs + first + at, m->pair_at[i] - at) ||
		    !plan_go(&m->room, i))
			return false;
	return true;
}

/* k->c[first..end) read from one run, sorted by box. */
static bool meet(struct making *m, const struct offer_run *run, uint32_t first, uint32_t end)
{
	struct cands *k = &m->k;
	uint32_t n = 0, base = m->n_pairs;
	for (uint32_t i = 0; i < run->n; i++)
		m->source_boxes[i] = m->offers.offer[run->first + i].box;
	for (uint32_t i = first; i < end; i++)
		if (i == first || box_cmp(k->c[i - 1].box, k->c[i].box, k->n_dims) != 0)
			m->target_boxes[n++] = k->c[i].box;
	if (!box_join(&m->join, m->source_boxes, run->n, m->target_boxes, n, k->n_dims,
		      &m->work))
		return plan_work_fail(&m->work, m->why);
	if (!put_pairs(m, run, n, k->t))
		return false;
	for (uint32_t i = first, b = 0; i < end; i++) {
		if (i > first && box_cmp(k->c[i - 1].box, k->c[i].box, k->n_dims) != 0)
			b++;
		uint32_t from = b ? m->pair_at[b - 1] : 0, n_pairs = m->pair_at[b] - from;
		m->lists[k->c[i].pos] = (struct list){ base + from, n_pairs };
		m->n_ops += n_pairs;
		m->segments += m->sums[b].segments;
		m->p->total_bytes += m->sums[b].bytes;
	}
	return true;
}

/* Target fragments by what they read from, then by box. seq holds the run. */
static int read_cmp(const void *a, const void *b, void *arg)
{
	const struct cand *x = a, *y = b;
	if (x->seq != y->seq)
		return x->seq < y->seq ? -1 : 1;
	return box_cmp(x->box, y->box, ((const struct cands *)arg)->n_dims);
}

static bool sort_reads(struct making *m)
{
	struct cands *k = &m->k;
	if (k->n > 24)
		return stop_sort(k->c, k->n, sizeof(*k->c), read_cmp, k, m->room.cancel) ||
		       plan_sort_fail(&m->room);
	for (uint32_t i = 1; i < k->n; i++) {
		struct cand x = k->c[i];
		uint32_t j = i;
		for (; j > 0 && read_cmp(&k->c[j - 1], &x, k) > 0; j--)
			k->c[j] = k->c[j - 1];
		k->c[j] = x;
	}
	return true;
}

static bool plan_tensor(struct making *m, uint32_t t)
{
	struct cands *k = &m->k;
	uint32_t s = m->to_source[t];
	if (s == UINT32_MAX)
		return true;
	if (!box_work_take(&m->work, 64ull + m->ask->target->tensor_first[t + 1] -
					     m->ask->target->tensor_first[t]))
		return plan_work_fail(&m->work, m->why);
	cands_fill(k, m->ask->target, t, m->only);
	for (uint32_t i = 0; i < k->n; i++) {
		const struct offer_run *r = offers_for(&m->offers, s, k->c[i].rank->c[AX_DP]);
		if (!r)
			return fail_tensor(m, RULE_PLAN_SOURCE_REPLICA, k->t->id);
		k->c[i].seq = (uint32_t)(r - m->offers.run);
	}
	if (!sort_reads(m))
		return false;
	for (uint32_t i = 0, e; i < k->n; i = e) {
		for (e = i + 1; e < k->n && k->c[e].seq == k->c[i].seq;)
			e++;
		if (!meet(m, &m->offers.run[k->c[i].seq], i, e))
			return false;
	}
	return true;
}

/* ---- writing out ---- */

static bool check_totals(struct making *m)
{
	const struct plan_limits *l = &m->ask->lim;
	if (m->n_ops > l->max_transfer_regions || m->n_ops >= UINT32_MAX / 2)
		return reject_set(m->why, RULE_LIMITS_REGIONS, "limits.max_transfer_regions",
				  "%llu regions; at most %llu", (unsigned long long)m->n_ops,
				  (unsigned long long)l->max_transfer_regions);
	if (m->segments > l->max_total_lowered_segments)
		return reject_set(m->why, RULE_LIMITS_TOTAL_SEGMENTS,
				  "limits.max_total_lowered_segments",
				  "%llu segments; at most %llu",
				  m->segments > UINT64_MAX ? ~0ull
							   : (unsigned long long)m->segments,
				  (unsigned long long)l->max_total_lowered_segments);
	m->p->n_ops = (uint32_t)m->n_ops;
	m->p->total_segments = (uint64_t)m->segments;
	return true;
}

/* Where the operations of each fragment go, in the order of ids. */
static bool place_ops(struct making *m)
{
	const struct place *t = m->ask->target;
	uint32_t at = 0;
	m->op_at = plan_alloc(&m->room, ((size_t)t->n_frags + 1) * sizeof(*m->op_at));
	if (!m->op_at ||
	    !plan_touch(&m->room, m->op_at, ((size_t)t->n_frags + 1) * sizeof(*m->op_at)))
		return false;
	for (uint32_t i = 0; i < t->n_frags; i++) {
		m->op_at[t->id_rank[t->by_tensor[i]]] = m->lists[i].n;
		if (!plan_go(&m->room, i))
			return false;
	}
	for (uint32_t i = 0; i < t->n_frags; i++) {
		uint32_t n = m->op_at[i];
		m->op_at[i] = at;
		at += n;
	}
	m->op_at[t->n_frags] = at;
	return true;
}

#define AHEAD 16 /* fragments: so many lines are on their way to the caches at once */

/* The lists are read in the order in which they were made; each goes where its fragment's id puts
 * it. */
static bool write_ops(struct making *m)
{
	struct plan *p = m->p;
	const struct place *t = m->ask->target;
	if (!check_totals(m) || !place_ops(m))
		return false;
	p->ops = plan_alloc(&m->room, p->n_ops * sizeof(*p->ops));
	if (!p->ops || !plan_touch(&m->room, p->ops, p->n_ops * sizeof(*p->ops)))
		return false;
	for (uint32_t i = 0; i < t->n_frags; i++) {
		if (i + AHEAD < t->n_frags)
			__builtin_prefetch(
				p->ops + m->op_at[t->id_rank[t->by_tensor[i + AHEAD]]], 1);
		uint32_t f = t->by_tensor[i];
		const struct pair *v = m->pairs + m->lists[i].first;
		struct plan_op *o = p->ops + m->op_at[t->id_rank[f]];
		for (uint32_t k = 0; k < m->lists[i].n; k++)
			o[k] = (struct plan_op){ f, v[k].source, v[k].target_base };
		if (!plan_go(&m->room, i))
			return false;
	}
	return true;
}

/* ---- the whole ---- */

static uint32_t most(const uint32_t *first, uint32_t n)
{
	uint32_t m = 1;
	for (uint32_t t = 0; t < n; t++)
		m = MAX_OF(m, first[t + 1] - first[t]);
	return m;
}

static bool begin(struct making *m)
{
	const struct plan_ask *a = m->ask;
	uint32_t nt = most(a->target->tensor_first, a->target->n_tensors);
	uint32_t ns = a->source ? most(a->source->tensor_first, a->source->n_tensors)
				: most(a->stored->tensor_first, a->stored->n_tensors);
	m->k.c = plan_alloc(&m->room, nt * sizeof(*m->k.c));
	m->source_boxes = plan_alloc(&m->room, ns * sizeof(*m->source_boxes));
	m->target_boxes = plan_alloc(&m->room, nt * sizeof(*m->target_boxes));
	m->pair_at = plan_alloc(&m->room, ((size_t)nt + 2) * sizeof(*m->pair_at));
	m->sums = plan_alloc(&m->room, nt * sizeof(*m->sums));
	m->lists = plan_zero(&m->room, a->target->n_frags, sizeof(*m->lists));
	if (a->local)
		m->only = plan_zero(&m->room, a->target->n_parts, sizeof(*m->only));
	if (a->local && !m->only)
		return false;
	if (a->local)
		m->only[m->part] = true;
	m->work = (struct box_work){ .left = a->lim.work,
				     .look = a->lim.work,
				     .cancel = a->lim.cancel,
				     .memory = m->room.left,
				     .pairs_max = a->lim.max_transfer_regions };
	return m->k.c && m->source_boxes && m->target_boxes && m->pair_at && m->sums &&
	       m->lists;
}

static void making_free(void *p)
{
	struct making *m = p;
	free(m->k.c);
	free(m->source_boxes);
	free(m->target_boxes);
	free(m->pair_at);
	free(m->sums);
	free(m->pairs);
	free(m->lists);
	free(m->op_at);
	free(m->only);
	free(m->to_source);
	box_join_fini(&m->join);
	offers_fini(&m->offers);
	plan_free(m->p);
	free(m);
}

static bool make(struct making *m)
{
	const struct plan_ask *a = m->ask;
	if (stop_now(a->lim.cancel))
		return reject_set(m->why, RULE_PLAN_CANCELLED, "", "stopped before it began");
	if (!check_limits(m) || !check_identity(m) || !check_local(m) || !begin(m) ||
	    !check_tensors(m) || !check_target(m))
		return false;
	if (a->source ? !offers_of_place(&m->offers, a->source, &m->work, &m->room)
		      : !offers_of_stored(&m->offers, a->stored, &m->room))
		return false;
	for (uint32_t t = 0; t < a->target->n_tensors; t++)
		if (!plan_tensor(m, t))
			return false;
	m->p->work = a->lim.work - m->work.left;
	return write_ops(m) && plan_index(m->p, m->op_at, &m->room);
}

enum err plan_make(const struct plan_ask *ask, struct reject *why, struct plan **out)
{
	struct making *m = calloc(1, sizeof(*m));
	struct plan *p = calloc(1, sizeof(*p));
	*why = (struct reject){ 0 };
	if (!m || !p) {
		free(m);
		free(p);
		return ERR_NO_MEMORY;
	}
	*p = (struct plan){ .source = ask->source,
			    .stored = ask->stored,
			    .target = ask->target };
	m->ask = ask;
	m->why = why;
	m->p = p;
	m->room = (struct plan_room){ why, ask->lim.cancel, ask->lim.memory };
	bool ok = make(m);
	if (ok)
		*out = TAKE(m->p);
	left_put(ok ? NULL : ask->lim.left, making_free, m);
	return rule_err(why->rule);
}

void plan_free(struct plan *p)
{
	if (!p)
		return;
	free(p->ops);
	free(p->sources);
	free(p->targets);
	free(p->routes);
	free(p->source_ops);
	free(p->target_ops);
	free(p->route_ops);
	free(p);
}

size_t plan_bytes(const struct plan *p)
{
	size_t ops = p->n_ops * (sizeof(*p->ops) + (p->source ? 3 : 2) * sizeof(uint32_t));
	return ops + p->n_routes * sizeof(*p->routes) +
	       ((p->source ? (size_t)p->source->n_parts : 0) + p->target->n_parts) *
		       sizeof(*p->sources);
}

void plan_region(const struct plan *p, uint32_t i, struct region *out)
{
	const struct frag *t = &p->target->frags[p->ops[i].target];
	const uint64_t *s = p->source ? p->source->frags[p->ops[i].source].box
				      : p->stored->frags[p->ops[i].source].box;
	bool met = region_of(s, t->box, t->n_dims, p->target->tensors[t->tensor].itemsize, out);
	assert(met);
}
