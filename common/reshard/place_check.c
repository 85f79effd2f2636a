/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of topology, tensors and parts: everything that is looked at before the fragments of
 * the whole placement are put in order (place_whole.c).
 */
#include "reshard/place_priv.h"

#include <stdio.h>

static struct bytes member_name(const void *ctx, uint32_t i)
{
	return ((const struct member *)ctx)[i].id;
}

static int member_rank_cmp(const void *x, const void *y, void *arg)
{
	const struct member *m = arg;
	return rank_cmp(&m[*(const uint32_t *)x].rank, &m[*(const uint32_t *)y].rank);
}

static bool check_sizes(struct place_new *b)
{
	for (int k = 0; k < AX_N; k++)
		if (b->p->size[k] < 1)
			return place_fail(b, RULE_TOPOLOGY_SIZE, "0; at least 1 is allowed",
					  "topology.%s_size", axis_names[k]);
	if (!b->n_members)
		return place_fail(b, RULE_TOPOLOGY_EMPTY, "at least one participant is needed",
				  "topology.participants");
	return true;
}

static bool check_member_ranks(struct place_new *b, uint32_t *order)
{
	const struct member *m = b->members;
	if (!stop_sort(order, b->n_members, sizeof(*order), member_rank_cmp, b->members,
		       b->lim.cancel))
		return place_sort_fail(b);
	for (uint32_t i = 1; i < b->n_members; i++)
		if (rank_cmp(&m[order[i - 1]].rank, &m[order[i]].rank) == 0)
			return place_fail(b, RULE_TOPOLOGY_DUPLICATE_RANK,
					  "another participant sits there",
					  "topology.participants[%u].rank",
					  MAX_OF(order[i - 1], order[i]));
	for (uint32_t i = 0; i < b->n_members; i++)
		for (int k = 0; k < AX_N; k++)
			if (m[i].rank.c[k] >= b->p->size[k])
				return place_fail(b, RULE_TOPOLOGY_RANK_RANGE,
						  "not below the size of the axis",
						  "topology.participants[%u].rank.%s", i,
						  axis_names[k]);
	return true;
}

bool place_check_topology(struct place_new *b)
{
	uint32_t n = b->n_members;
	if (!check_sizes(b))
		return false;
	b->member_order = place_keep(b, n * sizeof(uint32_t));
	AUTO_FREE uint32_t *order = place_tmp(b, n * sizeof(uint32_t));
	if (!b->member_order || !order)
		return false;
	if (!names_sort(member_name, b->members, n, b->member_order, b->lim.cancel))
		return place_sort_fail(b);
	for (uint32_t i = 1; i < n; i++)
		if (bytes_eq(b->members[b->member_order[i - 1]].id,
			     b->members[b->member_order[i]].id))
			return place_fail(b, RULE_TOPOLOGY_DUPLICATE_PARTICIPANT,
					  "listed before",
					  "topology.participants[%u].participant_id",
					  b->member_order[i]);
	memcpy(order, b->member_order, n * sizeof(uint32_t));
	return check_member_ranks(b, order) && place_derive_topology(b);
}

/* ---- tensors ---- */

static enum rule axes_rule(const struct tensor *t, const char **field)
{
	const struct axis *ep = &t->axes[AX_EP], *tp = &t->axes[AX_TP];
	*field = "parallel_axes";
	if (ep->sem == SEM_SPLIT && ep->dim != 0)
		return RULE_AXIS_EP_LEADING;
	if (ep->sem == SEM_SPLIT && tp->sem == SEM_SPLIT && ep->dim == tp->dim)
		return RULE_AXIS_SHARED_DIM;
	for (int k = 0; k < AX_N; k++)
		if (t->axes[k].sem == SEM_SPLIT && t->axes[k].dim >= t->n_dims)
			return RULE_AXIS_DIM_RANGE;
	return RULE_NONE;
}

static enum rule shard_rule(const struct tensor *t, const char **field)
{
	uint64_t want[AX_N];
	uint32_t n = 0;
	*field = "shard_dims";
	for (uint32_t i = 0; i < t->n_shard; i++)
		for (uint32_t k = 0; k < i; k++)
			if (t->shard_dims[i] == t->shard_dims[k])
				return RULE_TENSOR_SHARD_DIMS_DUPLICATE;
	for (uint32_t i = 1; i < t->n_shard; i++)
		if (t->shard_dims[i - 1] > t->shard_dims[i])
			return RULE_TENSOR_SHARD_DIMS_ORDER;
	if (t->n_shard && t->shard_dims[t->n_shard - 1] >= t->n_dims)
		return RULE_TENSOR_SHARD_DIMS_RANGE;
	/* ep's is dimension 0, or there is but one: ascending by itself */
	for (int k = 0; k < AX_N; k++)
		if (t->axes[k].sem == SEM_SPLIT)
			want[n++] = t->axes[k].dim;
	if (n != t->n_shard || (n && memcmp(want, t->shard_dims, n * sizeof(*want)) != 0))
		return RULE_TENSOR_SHARD_DIMS_CONFLICT;
	return RULE_NONE;
}

enum rule place_tensor_rule(const struct tensor *t, const char **field)
{
	*field = "global_shape";
	if (!t->n_dims)
		return RULE_TENSOR_SHAPE_EMPTY;
	for (uint32_t d = 0; d < t->n_dims; d++)
		if (t->shape[d] < 1)
			return RULE_TENSOR_SHAPE_EXTENT;
	enum rule r = axes_rule(t, field);
	if (r == RULE_NONE)
		r = shard_rule(t, field);
	if (r != RULE_NONE)
		return r;
	*field = "expert_id";
	return t->has_expert && t->axes[AX_EP].sem == SEM_SPLIT ? RULE_TENSOR_EXPERT_SPLIT
								: RULE_NONE;
}

bool tensor_like(const struct tensor *a, const struct tensor *b, bool axes)
{
	if (a->n_dims != b->n_dims || a->itemsize != b->itemsize ||
	    a->has_layer != b->has_layer || a->layer != b->layer ||
	    a->has_expert != b->has_expert || a->expert != b->expert ||
	    memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape)) != 0 ||
	    !bytes_eq(a->dtype, b->dtype))
		return false;
	if (!axes)
		return true;
	for (int k = 0; k < AX_N; k++)
		if (a->axes[k].sem != b->axes[k].sem || a->axes[k].dim != b->axes[k].dim)
			return false;
	return bytes_eq(a->layout, b->layout);
}

static struct bytes tensor_name(const void *ctx, uint32_t i)
{
	return ((const struct tensor *)ctx)[i].id;
}

/* A name again: once a part in an assembly, never else. */
static bool tensor_again(struct place_new *b, const struct tensor *first,
			 const struct tensor *t)
{
	if (b->form != PLACE_PARTS || first->part == t->part)
		return place_fail_tensor(b, RULE_TENSOR_DUPLICATE, t, "tensor_id",
					 "listed before");
	return tensor_like(first, t, true) ||
	       place_fail_tensor(b, RULE_PART_DESCRIPTOR_MISMATCH, t, "",
				 "an earlier part describes this tensor otherwise");
}

static bool put_in_order(struct place_new *b, const uint32_t *order)
{
	struct place *p = b->p;
	struct tensor *out = place_tmp(b, p->n_tensors * sizeof(*out));
	uint32_t n = 0;
	if (!out)
		return false;
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct tensor *t = &p->tensors[order[i]];
		if (!place_go(b, i)) {
			free(out);
			return false;
		}
		if (n && bytes_eq(out[n - 1].id, t->id)) {
			if (!tensor_again(b, &out[n - 1], t)) {
				free(out);
				return false;
			}
			continue;
		}
		out[n++] = *t;
	}
	free(p->tensors);
	p->tensors = out;
	p->n_tensors = n;
	return true;
}

/* Which number each name of the input has, and which tensor each number is. */
static bool number_tensors(struct place_new *b, uint32_t n_listed)
{
	struct place *p = b->p;
	b->listed = place_keep(b, n_listed * sizeof(uint32_t));
	b->name_tensor = place_keep(b, b->names.n * sizeof(uint32_t));
	if (!b->listed || !b->name_tensor)
		return false;
	for (uint32_t i = 0; i < n_listed; i++) {
		b->listed[i] = p->tensors[i].name;
		if (!place_go(b, i))
			return false;
	}
	return true;
}

bool place_check_tensors(struct place_new *b)
{
	struct place *p = b->p;
	const char *field;
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		enum rule r = place_tensor_rule(&p->tensors[i], &field);
		if (r != RULE_NONE)
			return place_fail_tensor(b, r, &p->tensors[i], field, rule_text(r));
		if (!place_go(b, i))
			return false;
	}
	AUTO_FREE uint32_t *order = place_tmp(b, p->n_tensors * sizeof(uint32_t));
	if (!order)
		return false;
	if (!names_sort(tensor_name, p->tensors, p->n_tensors, order, b->lim.cancel))
		return place_sort_fail(b);
	if (!number_tensors(b, p->n_tensors) || !put_in_order(b, order))
		return false;
	for (uint32_t i = 0; i < b->names.n; i++)
		b->name_tensor[i] = UINT32_MAX;
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		b->name_tensor[p->tensors[i].name] = i;
		if (!place_go(b, i))
			return false;
	}
	return true;
}

/* ---- parts ---- */

enum rule place_box_rule(const struct tensor *t, const uint64_t *box, uint32_t n_offset,
			 uint32_t n_shape, uint64_t nbytes, const char **field)
{
	uint64_t want = t->itemsize;
	bool over = false;
	uint32_t n = MIN_OF(n_offset, n_shape);
	*field = "local_shape";
	for (uint32_t d = 0; d < n; d++)
		if (box[n + d] < 1)
			return RULE_FRAGMENT_EXTENT;
	if (n_shape != t->n_dims || n_offset != t->n_dims) {
		*field = n_shape != t->n_dims ? "local_shape" : "global_offset";
		return RULE_FRAGMENT_RANK_COUNT;
	}
	for (uint32_t d = 0; d < n; d++) {
		if (box[d] >= t->shape[d] || box[n + d] > t->shape[d] - box[d])
			return RULE_FRAGMENT_OUT_OF_BOUNDS;
		over |= __builtin_mul_overflow(want, box[n + d], &want);
	}
	*field = "nbytes";
	return over || want != nbytes ? RULE_FRAGMENT_NBYTES : RULE_NONE;
}

static const uint32_t *group_numbers(const struct place_new *b, uint32_t alias, uint32_t *n)
{
	struct bytes g = b->groups.name[alias - 1];
	*n = (uint32_t)(g.n / sizeof(uint32_t));
	return (const uint32_t *)(const void *)g.p;
}

static enum rule alias_rule(const struct place_new *b, const struct frag *f)
{
	uint32_t n;
	bool member = false;
	const uint32_t *v = group_numbers(b, f->alias, &n);
	for (uint32_t i = 0; i < n; i++) {
		if (i && v[i] == v[i - 1])
			return RULE_ALIAS_DUPLICATE;
		member |= v[i] == f->tensor;
	}
	return n < 2 ? RULE_ALIAS_TOO_SMALL : !member ? RULE_ALIAS_NOT_MEMBER : RULE_NONE;
}

/* seen[t]: part + 1 of the last part that used tensor t; lists[t]: that listed it. */
static bool check_frag(struct place_new *b, struct frag *f, uint32_t *seen,
		       const uint32_t *lists)
{
	const char *field = "aliases";
	uint32_t t = b->name_tensor[f->tensor];
	if (t == UINT32_MAX || (lists && lists[t] != f->part + 1))
		return place_fail_frag(b, RULE_PART_UNKNOWN_TENSOR, f, "tensor_id",
				       "no tensor of that name is listed");
	enum rule r = f->alias ? alias_rule(b, f) : RULE_NONE;
	if (r == RULE_NONE)
		r = place_box_rule(&b->p->tensors[t], f->box, f->n_dims, f->n_shape, f->nbytes,
				   &field);
	if (r != RULE_NONE)
		return place_fail_frag(b, r, f, field, rule_text(r));
	f->tensor = t;
	seen[t] = f->part + 1;
	return true;
}

static bool check_identity(struct place_new *b, const struct part_in *q, uint32_t i)
{
	const struct place *p = b->p;
	struct bytes topology = BYTES(p->topology_id, DERIVED_ID_LEN);
	const struct {
		bool same;
		enum rule rule;
		const char *field;
	} rows[] = {
		{ bytes_eq(q->resource_id, p->resource_id), RULE_PART_RESOURCE_ID,
		  "resource_id" },
		{ bytes_eq(q->revision, p->revision), RULE_PART_REVISION, "revision" },
		{ q->generation == p->generation, RULE_PART_WEIGHT_GENERATION,
		  "weight_generation" },
		{ bytes_eq(q->set_id, p->set_id), RULE_PART_PLACEMENT_SET_ID,
		  "placement_set_id" },
		{ bytes_eq(q->topology_id, topology), RULE_PART_TOPOLOGY_ID, "topology_id" },
	};
	for (uint32_t k = 0; k < ARRAY_LEN(rows); k++)
		if (!rows[k].same)
			return place_fail(b, rows[k].rule, "differs from the whole's",
					  "parts[%u].%s", i, rows[k].field);
	return true;
}

static bool check_ranks(struct place_new *b, const struct part_in *q, uint32_t i)
{
	uint32_t pos = 0;
	if (!q->n || (rank_cmp(&q->frag_rank, &q->rank) == 0 && q->odd_pos == UINT32_MAX))
		return true;
	if (rank_cmp(&q->frag_rank, &q->rank) == 0)
		pos = q->odd_pos;
	return place_fail(b, RULE_PART_FRAGMENT_RANK, "differs from the part's rank",
			  "parts[%u].fragments[%u].rank", i, pos);
}

#define AHEAD 8 /* fragments */

static void fetch_tensor(const struct place_new *b, const struct frag *f)
{
	uint32_t t = b->name_tensor[f->tensor];
	if (t != UINT32_MAX)
		__builtin_prefetch(&b->p->tensors[t]);
}

static bool check_part(struct place_new *b, uint32_t i, uint32_t *seen, uint32_t *lists)
{
	const struct part_in *q = &b->parts[i];
	if (lists && !check_identity(b, q, i))
		return false;
	for (uint32_t k = 0; lists && k < q->n_tensors; k++)
		lists[b->name_tensor[b->listed[q->first_tensor + k]]] = i + 1;
	if (!check_ranks(b, q, i))
		return false;
	for (uint32_t k = 0; k < q->n; k++) {
		if (k + AHEAD < q->n)
			fetch_tensor(b, &b->p->frags[q->first + k + AHEAD]);
		if (!check_frag(b, &b->p->frags[q->first + k], seen, lists) ||
		    !place_go(b, q->first + k))
			return false;
	}
	for (uint32_t k = 0; lists && k < q->n_tensors; k++)
		if (seen[b->name_tensor[b->listed[q->first_tensor + k]]] != i + 1)
			return place_fail(b, RULE_PART_UNREFERENCED_TENSOR,
					  "no fragment of the part uses it",
					  "parts[%u].tensors[%u]", i, k);
	return true;
}

bool place_check_parts(struct place_new *b)
{
	uint32_t n = MAX_OF(b->p->n_tensors, 1);
	AUTO_FREE uint32_t *seen = place_zero(b, n, sizeof(*seen));
	AUTO_FREE uint32_t *lists =
		b->form == PLACE_PARTS ? place_zero(b, n, sizeof(*lists)) : NULL;
	if (!seen || (b->form == PLACE_PARTS && !lists))
		return false;
	for (uint32_t i = 0; i < b->n_parts; i++)
		if (!check_part(b, i, seen, lists) || !place_go(b, i))
			return false;
	if (b->n_parts && b->p->n_frags)
		for (uint32_t i = 0; i < b->p->n_tensors; i++)
			if (!seen[i])
				return place_fail_tensor(b, RULE_PART_UNREFERENCED_TENSOR,
							 &b->p->tensors[i], "",
							 "no fragment uses it");
	return true;
}
