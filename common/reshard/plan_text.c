/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's text. */
#include "reshard/plan_priv.h"

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
