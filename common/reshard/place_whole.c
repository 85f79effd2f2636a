/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set of parts, fragments of the whole placement put in their order, and alias groups. After
 * place_check_whole fragments are grouped by part, parts by participant, and the indices by id and
 * by tensor exist.
 */
#include "reshard/place_priv.h"

static struct bytes part_name(const void *ctx, uint32_t i)
{
	return ((const struct part_in *)ctx)[i].id;
}

static bool parts_match(struct place_new *b, const uint32_t *order)
{
	uint32_t i = 0, k = 0;
	for (; i < b->n_parts || k < b->n_members; i++, k++) {
		if (!place_go(b, i))
			return false;
		const struct part_in *q = i < b->n_parts ? &b->parts[order[i]] : NULL;
		const struct member *m =
			k < b->n_members ? &b->members[b->member_order[k]] : NULL;
		int c = !q ? 1 : !m ? -1 : bytes_cmp(q->id, m->id);
		if (c < 0)
			return place_fail(b, RULE_PART_UNKNOWN,
					  "the topology has no such participant",
					  "parts[%u].participant_id", order[i]);
		assert(m); /* c is -1 without one */
		if (c > 0)
			return place_fail(b, RULE_PART_MISSING, "no part for this participant",
					  "topology.participants[%u]", m->pos);
		if (rank_cmp(&q->rank, &m->rank) != 0)
			return place_fail(b, RULE_PART_TOPOLOGY_RANK,
					  "differs from the topology's", "parts[%u].rank",
					  order[i]);
	}
	return true;
}

static int part_rank_cmp(const void *x, const void *y, void *arg)
{
	const struct place_part *p = arg;
	return rank_cmp(&p[*(const uint32_t *)x].rank, &p[*(const uint32_t *)y].rank);
}

static bool order_ranks(struct place_new *b)
{
	struct place *p = b->p;
	p->rank_order = place_keep(b, p->n_parts * sizeof(uint32_t));
	if (!p->rank_order)
		return false;
	for (uint32_t i = 0; i < p->n_parts; i++)
		p->rank_order[i] = i;
	return stop_sort(p->rank_order, p->n_parts, sizeof(uint32_t), part_rank_cmp, p->parts,
			 b->lim.cancel) ||
	       place_sort_fail(b);
}

bool place_check_set(struct place_new *b)
{
	struct place *p = b->p;
	AUTO_FREE uint32_t *order = place_tmp(b, b->n_parts * sizeof(uint32_t));
	if (!order)
		return false;
	if (!names_sort(part_name, b->parts, b->n_parts, order, b->lim.cancel))
		return place_sort_fail(b);
	for (uint32_t i = 1; i < b->n_parts; i++)
		if (bytes_eq(b->parts[order[i - 1]].id, b->parts[order[i]].id))
			return place_fail(b, RULE_PART_DUPLICATE,
					  "a part of that name came before",
					  "parts[%u].participant_id", order[i]);
	if (!parts_match(b, order))
		return false;
	p->parts = place_keep(b, b->n_parts * sizeof(*p->parts));
	if (!p->parts)
		return false;
	p->n_parts = b->n_parts;
	for (uint32_t i = 0; i < b->n_parts; i++)
		p->parts[i] = (struct place_part){ .id = b->parts[order[i]].id,
						   .rank = b->parts[order[i]].rank,
						   .n = b->parts[order[i]].n,
						   .pos = order[i] };
	return order_ranks(b);
}

/* ---- fragments in order ---- */

static struct bytes frag_name(const void *ctx, uint32_t i)
{
	return ((const struct frag *)ctx)[i].id;
}

static bool refuse_twin(struct place_new *b, const struct frag *f)
{
	return place_fail(b, RULE_FRAGMENT_DUPLICATE_ID, "that id came before",
			  "parts[%u].fragments[%u].placement_fragment_id",
			  b->p->parts[f->part].pos, f->pos);
}

/* Fragments know their input part until now, and their final one from here on. */
static bool renumber_parts(struct place_new *b)
{
	struct place *p = b->p;
	AUTO_FREE uint32_t *to = place_tmp(b, p->n_parts * sizeof(uint32_t));
	if (!to)
		return false;
	uint32_t at = 0;
	for (uint32_t i = 0; i < p->n_parts; i++) {
		to[p->parts[i].pos] = i;
		p->parts[i].first = at;
		at += p->parts[i].n;
	}
	for (uint32_t i = 0; i < p->n_frags; i++) {
		p->frags[i].part = to[p->frags[i].part];
		if (!place_go(b, i))
			return false;
	}
	b->in_order = true;
	return true;
}

#define AHEAD 8 /* fragments that are on their way to the caches while one is worked on */

static void fetch_frag(const struct frag *f)
{
	__builtin_prefetch(f);
	__builtin_prefetch((const char *)(f + 1) - 1);
}

/* Walking in the order of ids fills every part in that order. */
static bool group_by_part(struct place_new *b, uint32_t *order)
{
	struct place *p = b->p;
	struct frag *out = place_tmp(b, p->n_frags * sizeof(*out));
	AUTO_FREE uint32_t *at = place_tmp(b, p->n_parts * sizeof(uint32_t));
	p->id_rank = place_keep(b, p->n_frags * sizeof(uint32_t));
	if (!out || !at || !p->id_rank || !place_touch(b, out, p->n_frags * sizeof(*out)) ||
	    !place_touch(b, p->id_rank, p->n_frags * sizeof(uint32_t))) {
		free(out);
		return false;
	}
	for (uint32_t i = 0; i < p->n_parts; i++)
		at[i] = p->parts[i].first;
	for (uint32_t i = 0; i < p->n_frags; i++) {
		if (!place_go(b, i)) {
			free(out);
			return false;
		}
		if (i + AHEAD < p->n_frags)
			fetch_frag(&p->frags[order[i + AHEAD]]);
		const struct frag *f = &p->frags[order[i]];
		uint32_t to = at[f->part]++;
		out[to] = *f;
		order[i] = to;
		p->id_rank[to] = i;
	}
	free(p->frags);
	p->frags = out;
	return true;
}

/* Where the boxes of tensors lie; in box_at too, which moves on with each box. */
static bool lay_boxes(struct place_new *b, uint64_t **box_at)
{
	struct place *p = b->p;
	for (uint32_t t = 0; t < p->n_tensors; t++)
		p->box_words += 2ull * p->tensors[t].n_dims *
				(p->tensor_first[t + 1] - p->tensor_first[t]);
	p->boxes = place_keep(b, p->box_words * sizeof(*p->boxes));
	if (!p->boxes || !place_touch(b, p->boxes, p->box_words * sizeof(*p->boxes)))
		return false;
	uint64_t *at = p->boxes;
	for (uint32_t t = 0; t < p->n_tensors; t++) {
		p->tensors[t].boxes = box_at[t] = at;
		at += 2ull * p->tensors[t].n_dims *
		      (p->tensor_first[t + 1] - p->tensor_first[t]);
	}
	return true;
}

static bool count_by_tensor(struct place_new *b)
{
	struct place *p = b->p;
	p->tensor_first = place_zero(b, (size_t)p->n_tensors + 1, sizeof(uint32_t));
	p->by_tensor = place_keep(b, p->n_frags * sizeof(uint32_t));
	p->tensor_part = place_keep(b, p->n_frags * sizeof(uint32_t));
	if (!p->tensor_first || !p->by_tensor || !p->tensor_part ||
	    !place_touch(b, p->by_tensor, p->n_frags * sizeof(uint32_t)) ||
	    !place_touch(b, p->tensor_part, p->n_frags * sizeof(uint32_t)))
		return false;
	for (uint32_t i = 0; i < p->n_frags; i++) {
		p->tensor_first[p->frags[i].tensor + 1]++;
		if (!place_go(b, i))
			return false;
	}
	for (uint32_t t = 0; t < p->n_tensors; t++)
		p->tensor_first[t + 1] += p->tensor_first[t];
	return true;
}

/* Tensor by tensor is how coverage and planning walk: what they need of a fragment is put in that
 * order here, once. */
static bool group_by_tensor(struct place_new *b)
{
	struct place *p = b->p;
	if (!count_by_tensor(b))
		return false;
	AUTO_FREE uint32_t *at = place_tmp(b, p->n_tensors * sizeof(*at));
	AUTO_FREE uint64_t **box_at = place_tmp(b, p->n_tensors * sizeof(*box_at));
	if (!at || !box_at || !lay_boxes(b, box_at))
		return false;
	memcpy(at, p->tensor_first, p->n_tensors * sizeof(*at));
	for (uint32_t r = 0; r < p->n_parts; r++) {
		const struct place_part *q = &p->parts[p->rank_order[r]];
		for (uint32_t i = q->first; i < q->first + q->n; i++) {
			if (i + AHEAD < p->n_frags)
				__builtin_prefetch(p->frags[i + AHEAD].box);
			struct frag *f = &p->frags[i];
			p->tensor_part[at[f->tensor]] = p->rank_order[r];
			p->by_tensor[at[f->tensor]++] = i;
			f->box = memcpy(box_at[f->tensor], f->box,
					2ull * f->n_dims * sizeof(*f->box));
			box_at[f->tensor] += 2ull * f->n_dims;
			if (!place_go(b, i))
				return false;
		}
	}
	arena_fini(&b->boxes);
	return true;
}

/* Two boxes of one tensor at one rank: which rule do they break? */
static bool refuse_pair(struct place_new *b, uint32_t i, uint32_t k)
{
	const struct frag *f = &b->p->frags[i], *g = &b->p->frags[k];
	const struct frag *late = f->pos > g->pos ? f : g;
	bool same = box_cmp(f->box, g->box, f->n_dims) == 0;
	return place_fail_frag(b, same ? RULE_FRAGMENT_DUPLICATE_BOX : RULE_FRAGMENT_OVERLAP,
			       late, "global_offset",
			       same ? "the same box came before"
				    : "shares elements with another fragment");
}

/* by_tensor[first .. first + n): a tensor's at one rank. */
static bool check_rank_boxes(struct place_new *b, const struct tensor *t, uint32_t t_first,
			     uint32_t first, uint32_t n, const uint64_t **boxes)
{
	uint32_t i = 0, k = 0;
	bool apart = false;
	for (uint32_t j = 0; j < n; j++)
		boxes[j] = t->boxes + 2ull * t->n_dims * (first - t_first + j);
	if (!box_disjoint(&b->join, boxes, n, t->n_dims, &b->work, &apart, &i, &k))
		return place_work_fail(b, &b->work);
	return apart || refuse_pair(b, b->p->by_tensor[first + i], b->p->by_tensor[first + k]);
}

static bool check_boxes(struct place_new *b)
{
	struct place *p = b->p;
	AUTO_FREE const uint64_t **boxes = place_tmp(b, p->n_frags * sizeof(*boxes));
	if (!boxes)
		return false;
	for (uint32_t t = 0; t < p->n_tensors; t++) {
		uint32_t first = p->tensor_first[t], end = p->tensor_first[t + 1];
		for (uint32_t i = first, k; i < end; i = k) {
			for (k = i + 1; k < end && p->tensor_part[k] == p->tensor_part[i]; k++)
				if (!place_go(b, k))
					return false;
			if (k - i > 1 &&
			    !check_rank_boxes(b, &p->tensors[t], first, i, k - i, boxes))
				return false;
		}
		if (!place_go(b, t))
			return false;
	}
	return true;
}

/* ---- aliases ---- */

static int u32_cmp(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* Numbers of names become tensors, in the order of their names: the tensors' own. */
static bool resolve_group(struct place_new *b, uint32_t g, bool *known)
{
	struct bytes raw = b->groups.name[g - 1];
	struct alias *a = &b->p->aliases[g];
	uint32_t *t = place_alloc(b, raw.n);
	struct bytes *names = place_alloc(b, raw.n / sizeof(uint32_t) * sizeof(*names));
	*known = true;
	if (!t || !names)
		return false;
	memcpy(t, raw.p, raw.n);
	for (uint32_t i = 0; i < a->n; i++) {
		t[i] = b->name_tensor[t[i]];
		*known = *known && t[i] != UINT32_MAX;
	}
	qsort(t, a->n, sizeof(*t), u32_cmp);
	for (uint32_t i = 0; *known && i < a->n; i++)
		names[i] = b->p->tensors[t[i]].id;
	a->tensors = t;
	a->names = names;
	return true;
}

static bool resolve_groups(struct place_new *b)
{
	struct place *p = b->p;
	AUTO_FREE bool *known = place_tmp(b, p->n_aliases * sizeof(bool));
	if (!known)
		return false;
	bool all = true;
	for (uint32_t g = 1; g < p->n_aliases; g++) {
		if (!resolve_group(b, g, &known[g]) || !place_go(b, g))
			return false;
		all = all && known[g];
	}
	for (uint32_t i = 0; !all && i < p->n_frags; i++)
		if (p->frags[i].alias && !known[p->frags[i].alias])
			return place_fail_frag(b, RULE_ALIAS_UNKNOWN_MEMBER, &p->frags[i],
					       "aliases",
					       "a member is no tensor of the placement");
	return true;
}

static bool one_sided(struct place_new *b, const struct frag *f)
{
	return place_fail_frag(b, RULE_ALIAS_INCONSISTENT, f, "aliases",
			       "fragments of the members carry different groups");
}

/* All fragments of a tensor carry one group, and all its members do. */
static bool check_aliases(struct place_new *b)
{
	struct place *p = b->p;
	if (p->n_aliases == 1)
		return true;
	if (!resolve_groups(b))
		return false;
	for (uint32_t i = 0; i < p->n_frags; i++) {
		const struct frag *f = &p->frags[i];
		if (!place_go(b, i))
			return false;
		if (f->alias != p->frags[p->by_tensor[p->tensor_first[f->tensor]]].alias)
			return one_sided(b, f);
	}
	for (uint32_t t = 0; t < p->n_tensors; t++) {
		const struct frag *f = &p->frags[p->by_tensor[p->tensor_first[t]]];
		const struct alias *a = &p->aliases[f->alias];
		/* a group of n names is looked at n times: bounded like boxes are */
		if (!box_work_take(&b->work, 1ull + a->n))
			return place_work_fail(b, &b->work);
		for (uint32_t k = 0; k < a->n; k++)
			if (p->frags[p->by_tensor[p->tensor_first[a->tensors[k]]]].alias !=
			    f->alias)
				return one_sided(b, f);
	}
	return true;
}

bool place_check_whole(struct place_new *b)
{
	struct place *p = b->p;
	if (!p->n_tensors || !p->n_frags)
		return place_fail(b, RULE_PLACEMENT_EMPTY, "at least one of each is needed",
				  "%s", p->n_tensors ? "parts" : "tensors");
	uint32_t twin;
	p->by_id = place_keep(b, p->n_frags * sizeof(uint32_t));
	if (!p->by_id || !place_derive_frags(b))
		return false;
	if (!names_sort_twin(frag_name, p->frags, p->n_frags, p->by_id, &twin, b->lim.cancel))
		return place_sort_fail(b);
	if (!renumber_parts(b))
		return false;
	if (twin)
		return refuse_twin(b, &p->frags[p->by_id[twin]]);
	return group_by_part(b, p->by_id) && group_by_tensor(b) && check_boxes(b) &&
	       check_aliases(b);
}
