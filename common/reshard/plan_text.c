/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes part in a plan, by which pipeline stages it goes, and its text. */
#include "reshard/plan_priv.h"

#include "reshard/names.h"

/* ---- executors ---- */

/* part_of op -> lists of operations per part, in rank order. */
static bool exec_lists(const struct plan *p, const struct place *side, bool source,
		       struct plan_exec **execs, uint32_t *n_execs, uint32_t **ops,
		       struct plan_room *room)
{
	AUTO_FREE uint32_t *at = plan_zero(room, (size_t)side->n_parts + 1, sizeof(*at));
	*ops = plan_alloc(room, p->n_ops * sizeof(**ops));
	*execs = plan_alloc(room, side->n_parts * sizeof(**execs));
	if (!at || !*ops || !*execs)
		return false;
	for (uint32_t i = 0; i < p->n_ops; i++) {
		at[side->frags[source ? p->ops[i].source : p->ops[i].target].part]++;
		if (!plan_go(room, i))
			return false;
	}
	uint32_t sum = 0;
	for (uint32_t r = 0; r < side->n_parts; r++) {
		uint32_t part = side->rank_order[r], n = at[part];
		at[part] = sum;
		if (n)
			(*execs)[(*n_execs)++] = (struct plan_exec){ part, sum, n };
		sum += n;
	}
	for (uint32_t i = 0; i < p->n_ops; i++) {
		uint32_t f = source ? p->ops[i].source : p->ops[i].target;
		(*ops)[at[side->frags[f].part]++] = i;
		if (!plan_go(room, i))
			return false;
	}
	return true;
}

/* ---- routes ---- */

struct route_key {
	uint64_t v[7]; /* have and value of source pp, source stage; target pp; target stage */
};

static struct route_key route_key(const struct plan *p, uint32_t i)
{
	const struct frag *t = &p->target->frags[p->ops[i].target];
	struct route_key k = { { 0 } };
	if (p->source) {
		const struct frag *s = &p->source->frags[p->ops[i].source];
		k.v[0] = 1;
		k.v[1] = p->source->parts[s->part].rank.c[AX_PP];
		k.v[2] = s->has_stage;
		k.v[3] = s->has_stage ? s->stage : 0;
	}
	k.v[4] = p->target->parts[t->part].rank.c[AX_PP];
	k.v[5] = t->has_stage;
	k.v[6] = t->has_stage ? t->stage : 0;
	return k;
}

static int key_cmp(const void *a, const void *b, void *arg)
{
	const struct bytes *names = arg;
	const struct route_key *x = (const void *)names[*(const uint32_t *)a].p;
	const struct route_key *y = (const void *)names[*(const uint32_t *)b].p;
	for (int i = 0; i < 7; i++)
		if (x->v[i] != y->v[i])
			return x->v[i] < y->v[i] ? -1 : 1;
	return 0;
}

struct routing {
	struct plan_room *room;
	struct names keys;
	struct arena mem;
	uint32_t *of_op, *count, *order;
};

static void route_put(struct plan *p, const struct route_key *k, uint32_t first, uint32_t n)
{
	p->routes[p->n_routes++] = (struct plan_route){
		.has_source_pp = k->v[0],
		.source_pp = k->v[1],
		.has_source_stage = k->v[2],
		.source_stage = k->v[3],
		.target_pp = k->v[4],
		.has_target_stage = k->v[5],
		.target_stage = k->v[6],
		.first = first,
		.n = n,
	};
}

static bool route_keys(struct plan *p, struct routing *r)
{
	uint32_t last = 0;
	struct route_key before = { { 0 } };
	for (uint32_t i = 0; i < p->n_ops; i++) {
		struct route_key k = route_key(p, i);
		if (!i || memcmp(&k, &before, sizeof(k)) != 0)
			last = names_put(&r->keys, BYTES(&k, sizeof(k)), &r->mem);
		if (last == NAMES_NONE)
			return false;
		before = k;
		r->of_op[i] = last;
		if (!plan_go(r->room, i))
			return false;
	}
	return true;
}

static bool route_lists(struct plan *p, struct routing *r)
{
	uint32_t n = r->keys.n, sum = 0;
	r->count = plan_zero(r->room, n, sizeof(uint32_t));
	r->order = plan_alloc(r->room, n * sizeof(uint32_t));
	p->routes = plan_alloc(r->room, n * sizeof(*p->routes));
	if (!r->count || !r->order || !p->routes)
		return false;
	for (uint32_t i = 0; i < p->n_ops; i++)
		r->count[r->of_op[i]]++;
	for (uint32_t i = 0; i < n; i++)
		r->order[i] = i;
	if (!stop_sort(r->order, n, sizeof(uint32_t), key_cmp, r->keys.name, r->room->cancel))
		return plan_sort_fail(r->room);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = r->order[i], c = r->count[k];
		route_put(p, (const void *)r->keys.name[k].p, sum, c);
		r->count[k] = sum;
		sum += c;
	}
	for (uint32_t i = 0; i < p->n_ops; i++) {
		p->route_ops[r->count[r->of_op[i]]++] = i;
		if (!plan_go(r->room, i))
			return false;
	}
	return true;
}

static bool routes(struct plan *p, struct plan_room *room)
{
	struct routing r = { .room = room, .mem = ARENA_INIT(room->left) };
	r.of_op = plan_alloc(room, p->n_ops * sizeof(uint32_t));
	p->route_ops = plan_alloc(room, p->n_ops * sizeof(uint32_t));
	bool ok = r.of_op && p->route_ops && route_keys(p, &r) && route_lists(p, &r);
	names_fini(&r.keys);
	arena_fini(&r.mem);
	free(r.of_op);
	free(r.count);
	free(r.order);
	return ok || plan_no_memory(room->why);
}

bool plan_index(struct plan *p, struct plan_room *room)
{
	if (p->source &&
	    !exec_lists(p, p->source, true, &p->sources, &p->n_sources, &p->source_ops, room))
		return false;
	return exec_lists(p, p->target, false, &p->targets, &p->n_targets, &p->target_ops,
			  room) &&
	       routes(p, room);
}

/* ---- text ---- */

static void op_text(const struct plan *p, uint32_t i, struct text_out *o)
{
	struct region r;
	const struct frag *t = &p->target->frags[p->ops[i].target];
	plan_region(p, i, &r);
	text_lit(o, "{\"inner_bytes\":");
	text_u64(o, r.inner_bytes);
	text_lit(o, ",\"outer_loop_counts\":");
	text_u64s(o, r.counts, r.n_outer);
	text_lit(o, ",\"overlap_offset\":");
	text_u64s(o, r.offset, r.n_dims);
	text_lit(o, ",\"overlap_shape\":");
	text_u64s(o, r.shape, r.n_dims);
	text_lit(o, ",\"source\":");
	text_str(o, plan_source_id(p, i));
	text_lit(o, ",\"source_base_offset\":");
	text_u64(o, r.source_base);
	text_lit(o, ",\"source_strides\":");
	text_u64s(o, r.source_strides, r.n_outer);
	text_lit(o, ",\"target\":");
	text_str(o, t->id);
	text_lit(o, ",\"target_base_offset\":");
	text_u64(o, r.target_base);
	text_lit(o, ",\"target_strides\":");
	text_u64s(o, r.target_strides, r.n_outer);
	text_lit(o, ",\"tensor_id\":");
	text_str(o, p->target->tensors[t->tensor].id);
	text_lit(o, "}");
}

void plan_ops_some(const struct plan *p, uint32_t first, uint32_t n, struct text_out *o)
{
	for (uint32_t i = first; i < first + n && !o->ended; i++) {
		if (i > first)
			text_lit(o, ",");
		op_text(p, i, o);
	}
}

void plan_ops_text(const struct plan *p, struct text_out *o)
{
	text_lit(o, "[");
	plan_ops_some(p, 0, p->n_ops, o);
	text_lit(o, "]");
}

static void indices_text(const uint32_t *v, uint32_t n, struct text_out *o)
{
	text_lit(o, "\"operation_indices\":[");
	for (uint32_t i = 0; i < n && !o->ended; i++) {
		if (i)
			text_lit(o, ",");
		text_u64(o, v[i]);
	}
	text_lit(o, "]");
}

static void execs_text(const struct place *side, const struct plan_exec *e, uint32_t n,
		       const uint32_t *ops, struct text_out *o)
{
	text_lit(o, "[");
	for (uint32_t i = 0; i < n && !o->ended; i++) {
		const struct place_part *q = &side->parts[e[i].part];
		if (i)
			text_lit(o, ",");
		text_lit(o, "{");
		indices_text(ops + e[i].first, e[i].n, o);
		text_lit(o, ",\"participant_id\":");
		text_str(o, q->id);
		text_lit(o, ",\"placement_fragment_ids\":[");
		for (uint32_t k = 0; k < q->n && !o->ended; k++) {
			if (k)
				text_lit(o, ",");
			text_str(o, side->frags[q->first + k].id);
		}
		text_lit(o, "],\"rank\":");
		rank_text(&q->rank, o);
		text_lit(o, "}");
	}
	text_lit(o, "]");
}

static void routes_text(const struct plan *p, struct text_out *o)
{
	text_lit(o, "[");
	for (uint32_t i = 0; i < p->n_routes && !o->ended; i++) {
		const struct plan_route *r = &p->routes[i];
		if (i)
			text_lit(o, ",");
		text_lit(o, "{");
		indices_text(p->route_ops + r->first, r->n, o);
		text_lit(o, ",\"source_pipeline_stage_id\":");
		text_u64_null(o, r->has_source_stage, r->source_stage);
		text_lit(o, ",\"source_pp\":");
		text_u64_null(o, r->has_source_pp, r->source_pp);
		text_lit(o, ",\"target_pipeline_stage_id\":");
		text_u64_null(o, r->has_target_stage, r->target_stage);
		text_lit(o, ",\"target_pp\":");
		text_u64(o, r->target_pp);
		text_lit(o, "}");
	}
	text_lit(o, "]");
}

static void source_text(const struct plan *p, struct text_out *o)
{
	const struct stored *s = p->stored;
	if (p->source) {
		text_lit(o, "{\"digest\":\"");
		text_raw(o, p->source->digest, SHA_HEX);
		text_lit(o, "\",\"kind\":\"placement\",\"placement_id\":\"");
		text_raw(o, p->source->id, DERIVED_ID_LEN);
		text_lit(o, "\"}");
		return;
	}
	text_lit(o, "{\"content_sha256\":\"");
	text_raw(o, s->digest, SHA_HEX);
	text_lit(o, "\",\"group_id\":");
	text_str(o, s->group_id);
	text_lit(o, ",\"kind\":\"stored\",\"manifest_key\":");
	text_str(o, s->manifest_key);
	text_lit(o, ",\"namespace\":");
	text_str(o, s->ns);
	text_lit(o, "}");
}

static void sides_text(const struct plan *p, struct text_out *o)
{
	text_lit(o, ",\"source\":");
	source_text(p, o);
	text_lit(o, ",\"source_executors\":");
	if (p->source)
		execs_text(p->source, p->sources, p->n_sources, p->source_ops, o);
	else
		text_lit(o, "[]");
	text_lit(o, ",\"target\":{\"digest\":\"");
	text_raw(o, p->target->digest, SHA_HEX);
	text_lit(o, "\",\"placement_id\":\"");
	text_raw(o, p->target->id, DERIVED_ID_LEN);
	text_lit(o, "\"},\"target_executors\":");
	execs_text(p->target, p->targets, p->n_targets, p->target_ops, o);
}

void plan_text(const struct plan *p, struct text_out *o)
{
	text_lit(o, "{\"operations\":");
	plan_ops_text(p, o);
	text_lit(o, ",\"pipeline_routes\":");
	routes_text(p, o);
	text_lit(o, ",\"resource_id\":");
	text_str(o, p->target->resource_id);
	text_lit(o, ",\"revision\":");
	text_str(o, p->target->revision);
	sides_text(p, o);
	text_lit(o, ",\"total_bytes\":");
	text_u128(o, p->total_bytes);
	text_lit(o, ",\"total_segments\":");
	text_u64(o, p->total_segments);
	text_lit(o, ",\"weight_generation\":");
	text_u64(o, p->target->generation);
	text_lit(o, "}");
}
