/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/plan_read.h"

#include "reshard/place_priv.h"

struct reader {
	struct json_in in;
	struct listed_plan *p;
	struct reject *why;
	struct place_limits lim;
	size_t held;
	uint32_t cap;
};

static bool no_memory(struct reader *d)
{
	return reject_set(d->why, RULE_LIMIT_MEMORY, "", "no memory within the limit");
}

static bool room(struct reader *d)
{
	struct listed_plan *p = d->p;
	if (p->n_ops < d->cap)
		return true;
	uint32_t want = d->cap ? d->cap + d->cap / 2 : 64;
	size_t more = (want - d->cap) * sizeof(*p->ops);
	bool fits = d->held + p->mem.held + more <= d->lim.memory && want < 1u << 31;
	struct listed_op *q = fits ? realloc(p->ops, want * sizeof(*q)) : NULL;
	if (!q)
		return no_memory(d);
	d->held += more;
	p->ops = q;
	d->cap = want;
	return true;
}

struct loops {
	uint64_t v[3][BOX_DIMS_MAX], box[2][BOX_DIMS_MAX];
	uint32_t n[3], n_box[2];
};

enum {
	O_INNER,
	O_COUNTS,
	O_OFFSET,
	O_SHAPE,
	O_SOURCE,
	O_SBASE,
	O_SSTRIDES,
	O_TARGET,
	O_TBASE,
	O_TSTRIDES,
	O_TENSOR
};

static bool op_field(struct json_in *r, int f, struct listed_op *o, struct loops *l)
{
	switch (f) {
	case O_INNER:
		return json_in_u64(r, &o->inner_bytes);
	case O_COUNTS:
		return place_read_u64s(r, l->v[0], BOX_DIMS_MAX, &l->n[0]);
	case O_OFFSET:
		return place_read_u64s(r, l->box[0], BOX_DIMS_MAX, &l->n_box[0]);
	case O_SHAPE:
		return place_read_u64s(r, l->box[1], BOX_DIMS_MAX, &l->n_box[1]);
	case O_SOURCE:
		return json_in_text(r, &o->source);
	case O_SBASE:
		return json_in_u64(r, &o->source_base);
	case O_SSTRIDES:
		return place_read_u64s(r, l->v[1], BOX_DIMS_MAX, &l->n[1]);
	case O_TARGET:
		return json_in_text(r, &o->target);
	case O_TBASE:
		return json_in_u64(r, &o->target_base);
	case O_TSTRIDES:
		return place_read_u64s(r, l->v[2], BOX_DIMS_MAX, &l->n[2]);
	default:
		return json_in_text(r, &o->tensor);
	}
}

static bool keep_loops(struct reader *d, struct listed_op *o, const struct loops *l)
{
	uint32_t n = l->n[0];
	if (l->n[1] != n || l->n[2] != n)
		return json_in_fail(&d->in, RULE_BINDING_STRIDE_COUNT,
				    "%u counts, %u and %u strides", n, l->n[1], l->n[2]);
	if (!n)
		return true;
	uint64_t *p = arena_alloc(&d->p->mem, (size_t)3 * n * sizeof(*p));
	if (!p)
		return no_memory(d);
	for (int i = 0; i < 3; i++)
		memcpy(p + (size_t)i * n, l->v[i], n * sizeof(*p));
	o->outer = p;
	o->n_outer = n;
	return true;
}

static bool read_op(struct reader *d)
{
	static const struct json_field fields[] = {
		JSON_FIELD("inner_bytes"),
		JSON_FIELD("outer_loop_counts"),
		JSON_FIELD("overlap_offset"),
		JSON_FIELD("overlap_shape"),
		JSON_FIELD("source"),
		JSON_FIELD("source_base_offset"),
		JSON_FIELD("source_strides"),
		JSON_FIELD("target"),
		JSON_FIELD("target_base_offset"),
		JSON_FIELD("target_strides"),
		JSON_FIELD("tensor_id"),
	};
	struct json_obj o;
	struct loops l;
	l.n[0] = l.n[1] = l.n[2] = 0;
	if (!room(d) || !json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	struct listed_op *op = &d->p->ops[d->p->n_ops];
	*op = (struct listed_op){ 0 };
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!op_field(&d->in, f, op, &l))
			return false;
	if (!o.whole || !keep_loops(d, op, &l))
		return false;
	d->p->n_ops++;
	return true;
}

static bool read_ops(struct reader *d)
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!read_op(d))
			return false;
	return a.whole;
}

/* ---- executors: who does which operations ---- */

/* Sorted keys put the indices before the name: the list is read a second time once it is known. */
static bool exec_indices(struct reader *d, struct json_in at, struct bytes name, bool source)
{
	struct json_arr a;
	struct json_in keep = d->in;
	uint64_t i;
	at.nodes_left = d->in.nodes_left;
	d->in = at;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a)) {
		if (!json_in_u64(&d->in, &i))
			return false;
		if (i >= d->p->n_ops)
			return json_in_fail(&d->in, RULE_JSON_INTEGER_RANGE,
					    "operation %llu of %u", (unsigned long long)i,
					    d->p->n_ops);
		*(source ? &d->p->ops[i].source_part : &d->p->ops[i].target_part) = name;
	}
	keep.nodes_left = d->in.nodes_left;
	d->in = keep;
	return a.whole;
}

static bool read_exec(struct reader *d, bool source)
{
	static const struct json_field fields[] = {
		JSON_FIELD("operation_indices"),
		JSON_FIELD("participant_id"),
		JSON_FIELD("placement_fragment_ids"),
		JSON_FIELD("rank"),
	};
	struct json_obj o;
	struct json_in at = d->in;
	struct bytes name = { 0 };
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;) {
		if (f == 0)
			at = d->in;
		if (f == 1 ? !json_in_text(&d->in, &name) : !json_in_skip(&d->in))
			return false;
	}
	return o.whole && exec_indices(d, at, name, source);
}

static bool read_execs(struct reader *d, bool source)
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!read_exec(d, source))
			return false;
	return a.whole;
}

/* ---- the whole ---- */

static bool read_top(struct reader *d)
{
	static const struct json_field fields[] = {
		JSON_FIELD("operations"),
		JSON_FIELD("pipeline_routes"),
		JSON_FIELD("resource_id"),
		JSON_FIELD("revision"),
		JSON_FIELD("source"),
		JSON_FIELD("source_executors"),
		JSON_FIELD("target"),
		JSON_FIELD("target_executors"),
		JSON_FIELD("total_bytes"),
		JSON_FIELD("total_segments"),
		JSON_FIELD("weight_generation"),
	};
	struct json_obj o;
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (f == 0	       ? !read_ops(d)
		    : f == 5 || f == 7 ? !read_execs(d, f == 5)
				       : !json_in_skip(&d->in))
			return false;
	return o.whole && json_in_close(&d->in);
}

enum err listed_plan_read(struct bytes text, const struct place_limits *lim, struct reject *why,
			  struct listed_plan **out)
{
	struct reader d = { .why = why, .lim = *lim, .p = calloc(1, sizeof(*d.p)) };
	*why = (struct reject){ 0 };
	if (!d.p)
		return ERR_NO_MEMORY;
	d.lim.json.cancel = lim->cancel;
	d.p->mem = ARENA_INIT(lim->memory);
	if (json_in_open(&d.in, text, &d.lim.json, &d.p->mem, why) && read_top(&d))
		*out = d.p;
	else
		listed_plan_free(d.p);
	return rule_err(why->rule);
}

void listed_plan_free(struct listed_plan *p)
{
	if (!p)
		return;
	free(p->ops);
	arena_fini(&p->mem);
	free(p);
}
