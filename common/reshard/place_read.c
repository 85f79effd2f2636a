/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of placements. Keys may come in any order, and in canonical texts "parts" comes first:
 * fragments name their tensors, which become known later. An error in one of the top-level values
 * does not end the reading, so that the errors come out in their order: text, top level, topology,
 * tensors, parts.
 */
#include "reshard/place_priv.h"

#include <stdio.h>

#define ALIASES_MAX 65536

struct reader {
	struct json_in in;
	struct place_new *b;
	struct arena mem; /* strings with escapes, lists of names */
	struct bytes *aliases;
	uint32_t cap_aliases;
	struct reject why; /* of the value being read */
};

bool place_read_rank(struct json_in *r, struct rank *out)
{
	static const struct json_field fields[] = { JSON_FIELD("dp"), JSON_FIELD("ep"),
						    JSON_FIELD("pp"), JSON_FIELD("tp") };
	static const uint8_t kind[] = { AX_DP, AX_EP, AX_PP, AX_TP };
	struct json_obj o;
	if (!json_in_obj(r, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(r, &o)) >= 0;)
		if (!json_in_u64(r, &out->c[kind[f]]))
			return false;
	return o.whole;
}

bool place_read_u64s(struct json_in *r, uint64_t *v, uint32_t most, uint32_t *n)
{
	struct json_arr a;
	*n = 0;
	if (!json_in_arr(r, &a))
		return false;
	while (json_in_item(r, &a)) {
		if (*n == most)
			return json_in_fail(r, RULE_LIMIT_DIMS, "at most %u", most);
		if (!json_in_u64(r, &v[(*n)++]))
			return false;
	}
	return a.whole;
}

/* Dimensions. */
static bool read_dims(struct json_in *r, uint64_t *v, uint8_t *n)
{
	uint32_t k = 0;
	bool ok = place_read_u64s(r, v, BOX_DIMS_MAX, &k);
	*n = (uint8_t)k;
	return ok;
}

static bool positive(struct json_in *r, uint64_t v)
{
	return v > 0 || json_in_fail(r, RULE_JSON_INTEGER_RANGE, "0; at least 1 is allowed");
}

/* ---- tensors ---- */

static int word_of(struct bytes s, const char *const *words, int n)
{
	for (int i = 0; i < n; i++)
		if (words[i][0] && bytes_eq(s, BYTES_STR(words[i])))
			return i;
	return -1;
}

/* "semantics" and "kind" of an axis. */
bool place_read_axis_word(struct json_in *r, bool is_kind, int *out)
{
	struct bytes s;
	if (!json_in_text(r, &s))
		return false;
	*out = is_kind ? word_of(s, axis_names, AX_N) : word_of(s, sem_names, 4);
	if (*out >= 0)
		return true;
	return json_in_fail(r, is_kind ? RULE_AXIS_KIND : RULE_AXIS_SEMANTICS, "\"%.*s\"",
			    (int)MIN_OF(s.n, 64), (const char *)s.p);
}

static bool axis_set(struct json_in *r, struct tensor *t, int kind, int sem, bool has_dim,
		     uint64_t dim)
{
	if (has_dim != (sem == SEM_SPLIT))
		return json_in_fail(r, RULE_JSON_FIELDS,
				    "a split axis has the key dim, no other");
	if (sem == SEM_SPLIT && kind != AX_EP && kind != AX_TP)
		return json_in_fail(r, RULE_AXIS_SPLIT_KIND, "%s may not be split",
				    axis_names[kind]);
	if (t->axes[kind].sem != SEM_NONE)
		return json_in_fail(r, RULE_AXIS_DUPLICATE_KIND, "%s again", axis_names[kind]);
	t->axes[kind] = (struct axis){ .sem = (uint8_t)sem, .dim = dim };
	return true;
}

static bool read_axis(struct json_in *r, struct tensor *t)
{
	static const struct json_field fields[] = { JSON_FIELD_OPT("dim"), JSON_FIELD("kind"),
						    JSON_FIELD("semantics") };
	struct json_obj o;
	int kind = 0, sem = 0;
	bool ok = true, has_dim = false;
	uint64_t dim = 0;
	if (!json_in_obj(r, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; ok && (f = json_in_key(r, &o)) >= 0;) {
		has_dim |= f == 0;
		ok = f == 0   ? json_in_u64(r, &dim)
		     : f == 1 ? place_read_axis_word(r, true, &kind)
			      : place_read_axis_word(r, false, &sem);
	}
	return ok && o.whole && axis_set(r, t, kind, sem, has_dim, dim);
}

static bool read_axes(struct json_in *r, struct tensor *t)
{
	struct json_arr a;
	if (!json_in_arr(r, &a))
		return false;
	while (json_in_item(r, &a))
		if (!read_axis(r, t))
			return false;
	return a.whole;
}

enum { T_DTYPE, T_EXPERT, T_SHAPE, T_ITEMSIZE, T_LAYER, T_LAYOUT, T_AXES, T_SHARD, T_ID };

static bool tensor_field(struct json_in *r, int f, struct tensor *t, uint64_t *shape,
			 uint64_t *shard)
{
	switch (f) {
	case T_DTYPE:
		return json_in_text(r, &t->dtype);
	case T_EXPERT:
		return json_in_u64_null(r, &t->expert, &t->has_expert);
	case T_SHAPE:
		return read_dims(r, shape, &t->n_dims);
	case T_ITEMSIZE:
		return json_in_u64(r, &t->itemsize) && positive(r, t->itemsize);
	case T_LAYER:
		return json_in_u64_null(r, &t->layer, &t->has_layer);
	case T_LAYOUT:
		return json_in_text(r, &t->layout);
	case T_AXES:
		return read_axes(r, t);
	case T_SHARD:
		return read_dims(r, shard, &t->n_shard);
	default:
		return json_in_text(r, &t->id);
	}
}

bool place_read_tensor(struct json_in *r, struct tensor *t, uint64_t *shape, uint64_t *shard)
{
	static const struct json_field fields[] = {
		JSON_FIELD("dtype"),	     JSON_FIELD("expert_id"),
		JSON_FIELD("global_shape"),  JSON_FIELD("itemsize"),
		JSON_FIELD("layer_id"),	     JSON_FIELD("layout_fingerprint"),
		JSON_FIELD("parallel_axes"), JSON_FIELD("shard_dims"),
		JSON_FIELD("tensor_id"),
	};
	struct json_obj o;
	*t = (struct tensor){ .shape = shape, .shard_dims = shard };
	if (!json_in_obj(r, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(r, &o)) >= 0;)
		if (!tensor_field(r, f, t, shape, shard))
			return false;
	return o.whole;
}

static bool read_tensors(struct reader *d)
{
	struct json_arr a;
	struct tensor t;
	uint64_t shape[BOX_DIMS_MAX], shard[BOX_DIMS_MAX];
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!place_read_tensor(&d->in, &t, shape, shard) || !place_new_tensor(d->b, &t))
			return false;
	return a.whole;
}

/* ---- parts ---- */

bool place_read_names(struct json_in *r, struct arena *mem, struct bytes **list, uint32_t *cap,
		      uint32_t *n)
{
	struct json_arr a;
	*n = 0;
	if (!json_in_arr(r, &a))
		return false;
	while (json_in_item(r, &a)) {
		if (*n == ALIASES_MAX)
			return json_in_fail(r, RULE_LIMIT_COUNT, "at most %u names",
					    ALIASES_MAX);
		if (*n == *cap) {
			uint32_t want = *cap ? *cap * 2 : 16;
			struct bytes *q = realloc(*list, want * sizeof(*q));
			if (!q)
				return json_in_fail(r, RULE_LIMIT_MEMORY, "no memory");
			*list = q;
			*cap = want;
		}
		if (!json_in_text(r, &(*list)[(*n)++]))
			return false;
	}
	return a.whole;
}

struct frag_in {
	struct bytes id, tensor;
	uint64_t offset[BOX_DIMS_MAX], shape[BOX_DIMS_MAX], nbytes, stage;
	uint8_t n_offset, n_shape;
	bool has_stage;
	uint32_t n_aliases;
	struct rank rank;
};

enum { F_ALIASES, F_OFFSET, F_SHAPE, F_NBYTES, F_STAGE, F_ID, F_RANK, F_TENSOR };

static const struct json_field frag_wire[] = {
	JSON_FIELD("aliases"),
	JSON_FIELD("global_offset"),
	JSON_FIELD("local_shape"),
	JSON_FIELD("nbytes"),
	JSON_FIELD_OPT("pipeline_stage_id"),
	JSON_FIELD("placement_fragment_id"),
	JSON_FIELD("rank"),
	JSON_FIELD("tensor_id"),
};

static const struct json_field frag_draft[] = {
	JSON_FIELD("aliases"),
	JSON_FIELD("global_offset"),
	JSON_FIELD("local_shape"),
	JSON_FIELD("nbytes"),
	JSON_FIELD_OPT("pipeline_stage_id"),
	JSON_FIELD_OPT("placement_fragment_id"),
	JSON_FIELD("rank"),
	JSON_FIELD("tensor_id"),
};

static bool frag_field(struct reader *d, int f, struct frag_in *g)
{
	struct json_in *r = &d->in;
	switch (f) {
	case F_ALIASES:
		return place_read_names(r, &d->mem, &d->aliases, &d->cap_aliases,
					&g->n_aliases);
	case F_OFFSET:
		return read_dims(r, g->offset, &g->n_offset);
	case F_SHAPE:
		return read_dims(r, g->shape, &g->n_shape);
	case F_NBYTES:
		return json_in_u64(r, &g->nbytes) && positive(r, g->nbytes);
	case F_STAGE:
		return json_in_u64_null(r, &g->stage, &g->has_stage);
	case F_ID:
		return json_in_text(r, &g->id);
	case F_RANK:
		return place_read_rank(r, &g->rank);
	default:
		return json_in_text(r, &g->tensor);
	}
}

static bool frag_add(struct reader *d, struct frag_in *g)
{
	uint64_t box[2 * BOX_DIMS_MAX];
	struct place_new *b = d->b;
	uint32_t n = MIN_OF(g->n_offset, g->n_shape);
	memcpy(box, g->offset, n * sizeof(*box));
	memcpy(box + n, g->shape, n * sizeof(*box));
	b->frag_rank = g->rank;
	// NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): json_in_obj has seen the required fields
	if (!place_new_frag(b, g->id, g->tensor, box, n, g->nbytes,
			    g->has_stage ? &g->stage : NULL, d->aliases, g->n_aliases))
		return false;
	struct frag *f = &b->p->frags[b->p->n_frags - 1];
	f->n_dims = g->n_offset;
	f->n_shape = g->n_shape;
	return true;
}

static bool read_frag(struct reader *d)
{
	struct frag_in g;
	struct json_obj o;
	const struct json_field *fields = d->b->form == PLACE_WIRE ? frag_wire : frag_draft;
	g.id = (struct bytes){ 0 };
	g.has_stage = false;
	g.n_offset = g.n_shape = 0;
	memset(g.offset, 0, sizeof(g.offset));
	memset(g.shape, 0, sizeof(g.shape));
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(frag_wire)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!frag_field(d, f, &g))
			return false;
	if (!o.whole || !frag_add(d, &g))
		return false;
	arena_clear(&d->mem);
	return true;
}

static bool read_frags(struct reader *d)
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!read_frag(d))
			return false;
	return a.whole;
}

enum { P_FRAGS, P_ID, P_SET, P_RANK, P_RESOURCE, P_REVISION, P_TENSORS, P_TOPOLOGY, P_GEN };

static bool part_text(struct reader *d, struct bytes *out)
{
	struct bytes s;
	return json_in_text(&d->in, &s) && place_copy(d->b, s, out);
}

static bool part_field(struct reader *d, int f)
{
	struct part_in *q = &d->b->parts[d->b->n_parts - 1];
	switch (f) {
	case P_FRAGS:
		return read_frags(d);
	case P_ID:
		return part_text(d, &q->id);
	case P_SET:
		return part_text(d, &q->set_id);
	case P_RANK:
		return place_read_rank(&d->in, &q->rank);
	case P_RESOURCE:
		return part_text(d, &q->resource_id);
	case P_REVISION:
		return part_text(d, &q->revision);
	case P_TENSORS:
		return read_tensors(d);
	case P_TOPOLOGY:
		return part_text(d, &q->topology_id);
	default:
		return json_in_u64(&d->in, &q->generation);
	}
}

static bool read_part(struct reader *d)
{
	static const struct json_field own[] = {
		JSON_FIELD("fragments"),	 JSON_FIELD("participant_id"),
		JSON_FIELD("placement_set_id"),	 JSON_FIELD("rank"),
		JSON_FIELD("resource_id"),	 JSON_FIELD("revision"),
		JSON_FIELD("tensors"),		 JSON_FIELD("topology_id"),
		JSON_FIELD("weight_generation"),
	};
	static const struct json_field plain[] = { JSON_FIELD("fragments"),
						   JSON_FIELD("participant_id"),
						   JSON_FIELD("rank") };
	static const uint8_t plain_to[] = { P_FRAGS, P_ID, P_RANK };
	struct json_obj o;
	bool assemble = d->b->form == PLACE_PARTS;
	if (!place_new_part(d->b, BYTES("", 0), &(struct rank){ { 0 } }))
		return false;
	if (!json_in_obj(&d->in, &o, assemble ? own : plain,
			 assemble ? ARRAY_LEN(own) : ARRAY_LEN(plain)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!part_field(d, assemble ? f : plain_to[f]))
			return false;
	return o.whole;
}

static bool read_parts(struct reader *d)
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!read_part(d))
			return false;
	return a.whole;
}

/* ---- topology ---- */

static bool read_member(struct reader *d)
{
	static const struct json_field fields[] = { JSON_FIELD("participant_id"),
						    JSON_FIELD("rank") };
	struct json_obj o;
	struct bytes id = { 0 };
	struct rank r = { { 0 } };
	if (!json_in_obj(&d->in, &o, fields, 2))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (f == 0 ? !json_in_text(&d->in, &id) : !place_read_rank(&d->in, &r))
			return false;
	return o.whole && place_new_member(d->b, id, &r);
}

static bool read_members(struct reader *d)
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!read_member(d))
			return false;
	return a.whole;
}

static bool topology_field(struct reader *d, int f)
{
	switch (f) {
	case 0:
		return json_in_u64(&d->in, &d->b->p->size[AX_DP]);
	case 1:
		return json_in_u64(&d->in, &d->b->p->size[AX_EP]);
	case 2:
		return read_members(d);
	case 3:
		return json_in_u64(&d->in, &d->b->p->size[AX_PP]);
	case 4:
		return json_in_u64(&d->in, &d->b->p->size[AX_TP]);
	default:
		return part_text(d, &d->b->topology_id);
	}
}

static bool read_topology(struct reader *d)
{
	/* topology_id last: a draft's object is without it */
	static const struct json_field fields[] = {
		JSON_FIELD("dp_size"), JSON_FIELD("ep_size"), JSON_FIELD("participants"),
		JSON_FIELD("pp_size"), JSON_FIELD("tp_size"), JSON_FIELD("topology_id"),
	};
	struct json_obj o;
	uint32_t n = d->b->form == PLACE_WIRE ? 6 : 5;
	if (!json_in_obj(&d->in, &o, fields, n))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!topology_field(d, f))
			return false;
	return o.whole;
}

/* ---- the whole ---- */

enum {
	W_PARTS,
	W_PLACE_ID,
	W_SET_ID,
	W_RESOURCE,
	W_KIND,
	W_REVISION,
	W_TENSORS,
	W_TOPOLOGY,
	W_GENERATION,
	W_N
};

static const struct json_field wire_fields[W_N] = {
	JSON_FIELD("parts"),	   JSON_FIELD("placement_id"),	JSON_FIELD("placement_set_id"),
	JSON_FIELD("resource_id"), JSON_FIELD("resource_kind"), JSON_FIELD("revision"),
	JSON_FIELD("tensors"),	   JSON_FIELD("topology"),	JSON_FIELD("weight_generation"),
};

/* Which keys a form has, in the order of wire_fields. */
static const bool form_has[3][W_N] = {
	[PLACE_WIRE] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 },
	[PLACE_DRAFT] = { 1, 0, 1, 1, 1, 1, 1, 1, 1 },
	[PLACE_PARTS] = { 1, 0, 1, 1, 0, 1, 0, 1, 1 },
};

bool place_read_kind(struct json_in *r)
{
	struct bytes s;
	if (!json_in_text(r, &s))
		return false;
	return bytes_eq(s, BYTES_STR("model_weight")) ||
	       json_in_fail(r, RULE_JSON_RESOURCE_KIND, "\"%.*s\"; model_weight is allowed",
			    (int)MIN_OF(s.n, 64), (const char *)s.p);
}

static bool top_value(struct reader *d, int f)
{
	struct place *p = d->b->p;
	switch (f) {
	case W_PARTS:
		return read_parts(d);
	case W_PLACE_ID:
		return part_text(d, &d->b->place_id);
	case W_SET_ID:
		return part_text(d, &p->set_id);
	case W_RESOURCE:
		return part_text(d, &p->resource_id);
	case W_KIND:
		return place_read_kind(&d->in);
	case W_REVISION:
		return part_text(d, &p->revision);
	case W_TENSORS:
		return read_tensors(d);
	case W_TOPOLOGY:
		return read_topology(d);
	default:
		return json_in_u64(&d->in, &p->generation);
	}
}

/* 0: top level, then topology, tensors, parts. */
static uint32_t phase_of(int f)
{
	return f == W_TOPOLOGY ? 1 : f == W_TENSORS ? 2 : f == W_PARTS ? 3 : 0;
}

/* The value was refused: keeps the refusal if it is the earliest in order, and reads over the value
 * again, for errors of the text. */
static bool read_over(struct reader *d, const struct json_in *before, struct reject *kept,
		      uint32_t phase)
{
	if (json_in_text_rule(d->why.rule))
		return false;
	if (kept[phase].rule == RULE_NONE)
		kept[phase] = d->why;
	d->why.rule = RULE_NONE;
	uint64_t nodes = d->in.nodes_left;
	d->in = *before;
	d->in.nodes_left = nodes;
	arena_clear(&d->mem);
	return json_in_skip(&d->in);
}

static bool top_values(struct reader *d, struct json_obj *o, struct reject kept[4],
		       const uint8_t *to)
{
	for (int f; (f = json_in_key(&d->in, o)) >= 0;) {
		struct json_in before = d->in;
		if (!top_value(d, to[f]) && !read_over(d, &before, kept, phase_of(to[f])))
			return false;
	}
	return o->whole;
}

static bool first_kept(struct reader *d, const struct reject kept[4])
{
	for (int i = 0; i < 4; i++)
		if (kept[i].rule != RULE_NONE) {
			d->why = kept[i];
			return false;
		}
	return true;
}

/* A key that is not listed ends the reading of the object; the rest of the text still counts. */
static bool rest_of_text(struct reader *d, struct bytes text)
{
	struct reject missing = d->why, other = { 0 };
	struct json_in r;
	if (json_in_text_rule(missing.rule) ||
	    !json_in_open(&r, text, &d->b->lim.json, &d->mem, &other))
		return false;
	if (!json_in_skip(&r) || !json_in_close(&r))
		d->why = other;
	return false;
}

static bool read_all(struct reader *d, struct bytes text)
{
	struct json_field fields[W_N];
	uint8_t to[W_N];
	uint32_t n = 0;
	struct json_obj o;
	struct reject kept[4] = { 0 };
	for (unsigned i = 0; i < W_N; i++)
		if (form_has[d->b->form][i]) {
			fields[n] = wire_fields[i];
			to[n++] = i;
		}
	if (!json_in_open(&d->in, text, &d->b->lim.json, &d->mem, &d->why))
		return false;
	if (!json_in_obj(&d->in, &o, fields, n) || !top_values(d, &o, kept, to))
		return rest_of_text(d, text);
	return json_in_close(&d->in) && first_kept(d, kept);
}

bool place_new_read(struct place_new *b, struct bytes text, enum place_form form)
{
	struct reader d = { .b = b, .mem = ARENA_INIT(b->lim.memory) };
	struct reject *why = b->why;
	b->form = form;
	b->why = &d.why; /* a refusal in one value does not end the reading */
	b->in = &d.in;
	bool ok = read_all(&d, text) && place_late_names(b);
	b->in = NULL;
	b->why = why;
	if (!ok)
		*why = d.why;
	arena_fini(&d.mem);
	free(d.aliases);
	return ok;
}

static void free_new(void *b)
{
	place_new_free(b);
}

enum err place_read(struct bytes text, enum place_form form, const struct place_limits *lim,
		    struct reject *why, struct place **out)
{
	*why = (struct reject){ 0 };
	struct place_new *b = place_new_open(lim, why);
	if (!b)
		return ERR_NO_MEMORY;
	enum err e = place_new_read(b, text, form) ? place_build(b, out) : rule_err(why->rule);
	left_put(e ? lim->left : NULL, free_new, b);
	return e;
}
