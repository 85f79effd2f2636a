/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/upload_set.h"

#include <stdio.h>

#include "reshard/place_priv.h"
#include "reshard/plan_priv.h"

struct making {
	struct upload_set *s;
	struct reject *why;
	const struct upload_opts *opts;
	struct plan_room room;
	struct upload_bound *bound;
	uint32_t *binding_of; /* part -> index of its binding, or UINT32_MAX */
	uint32_t *at_of;      /* fragment of the placement -> index in its binding */
};

/* ---- who is bound, and where ---- */

static bool index_bindings(struct making *m)
{
	const struct place *p = m->s->place;
	const struct bindings *b = m->s->bindings;
	m->bound = plan_alloc(&m->room, b->n * sizeof(*m->bound));
	m->binding_of = plan_alloc(&m->room, p->n_parts * sizeof(*m->binding_of));
	m->at_of = plan_alloc(&m->room, p->n_frags * sizeof(*m->at_of));
	if (!m->bound || !m->binding_of || !m->at_of)
		return false;
	memset(m->binding_of, 0xff, p->n_parts * sizeof(*m->binding_of));
	memset(m->at_of, 0xff, p->n_frags * sizeof(*m->at_of));
	for (uint32_t i = 0; i < b->n; i++) {
		m->bound[i] = (struct upload_bound){ b->b[i].part, b->b[i].generation };
		m->binding_of[b->b[i].part] = i;
		for (uint32_t k = 0; k < b->b[i].n_frags; k++) {
			m->at_of[b->b[i].frags[k].frag] = k;
			if (!plan_go(&m->room, k))
				return false;
		}
	}
	return true;
}

/* ---- keys ---- */

static bool key_fail(struct making *m, enum err e, const struct why *why)
{
	if (e == ERR_NO_MEMORY)
		return plan_no_memory(m->why);
	return reject_set(m->why, RULE_UPLOAD_NAMES, "", "%s", why->text);
}

static bool make_keys(struct making *m, const struct upload_names *n)
{
	struct why why = { 0 };
	struct upload_set *s = m->s;
	enum err e = upload_base(n, &s->base, &why);
	if (!e)
		e = upload_manifest_key(n, &s->manifest_key, &why);
	if (!e)
		e = upload_transaction_group(n, &s->transaction_group, &why);
	if (!e)
		e = upload_control_key(n, &s->control_key, &why);
	return !e || key_fail(m, e, &why);
}

/* "BASE/payload/TXN/ID" for each: the same but for its end. */
static bool object_key(struct making *m, const char *stem, size_t n, const char *id,
		       struct bytes *out)
{
	uint8_t *k = arena_alloc(&m->s->mem, n + UPLOAD_FRAGMENT_ID_LEN);
	if (!k)
		return plan_no_memory(m->why);
	memcpy(k, stem, n);
	memcpy(k + n, id, UPLOAD_FRAGMENT_ID_LEN);
	*out = BYTES(k, n + UPLOAD_FRAGMENT_ID_LEN);
	return true;
}

/* ---- operations ---- */

/* U1 for one operation: what the reader of bindings has proved, asked again of what is used. */
static bool check_op(struct making *m, const struct upload_op *o)
{
	const struct place *p = m->s->place;
	const struct frag *f = &p->frags[o->frag];
	const struct binding *b = &m->s->bindings->b[o->binding];
	const struct bound_frag *g = &b->frags[o->bound];
	if (!bytes_eq(g->place_id, f->id))
		return reject_set(m->why, RULE_BINDING_FRAGMENT_MISSING, "", "fragment %.*s",
				  (int)MIN_OF(f->id.n, 100), (const char *)f->id.p);
	if (g->nbytes != f->nbytes || o->nbytes != f->nbytes)
		return reject_set(m->why, RULE_BINDING_NBYTES, "", "fragment %.*s",
				  (int)MIN_OF(f->id.n, 100), (const char *)f->id.p);
	if (g->n_dims != f->n_dims ||
	    memcmp(g->shape, f->box + f->n_dims, f->n_dims * sizeof(*g->shape)) != 0)
		return reject_set(m->why, RULE_BINDING_SHAPE, "", "fragment %.*s",
				  (int)MIN_OF(f->id.n, 100), (const char *)f->id.p);
	return b->generation == m->s->plan->generation ||
	       reject_set(m->why, RULE_UPLOAD_GENERATIONS_DIFFER, "", "participant %.*s",
			  (int)MIN_OF(b->participant.n, 100), (const char *)b->participant.p);
}

static bool make_op(struct making *m, uint32_t i, const char *stem, size_t n)
{
	const struct place *p = m->s->place;
	const struct upload_item *it = &m->s->plan->items[i];
	const struct frag *f = &p->frags[it->frag];
	struct upload_op *o = &m->s->ops[m->s->n_ops++];
	*o = (struct upload_op){ .frag = it->frag,
				 .binding = m->binding_of[f->part],
				 .bound = m->at_of[it->frag],
				 .nbytes = f->nbytes,
				 .dp_owned = it->dp_owned };
	memcpy(o->id, it->id, sizeof(o->id));
	assert(o->binding != UINT32_MAX && o->bound != UINT32_MAX); /* chosen among the bound */
	return object_key(m, stem, n, it->id, &o->object_key) && check_op(m, o) &&
	       plan_go(&m->room, i);
}

static bool make_ops(struct making *m, const struct upload_names *names)
{
	static const char zeros[UPLOAD_FRAGMENT_ID_LEN + 1] = "000000000000000000000000";
	struct why why = { 0 };
	uint32_t n = m->s->plan->n_items;
	AUTO_FREE char *any = NULL;
	enum err e = upload_object_key(names, zeros, &any, &why);
	if (e)
		return key_fail(m, e, &why);
	m->s->ops = plan_alloc(&m->room, n * sizeof(*m->s->ops));
	if (!m->s->ops)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (!make_op(m, i, any, strlen(any) - UPLOAD_FRAGMENT_ID_LEN))
			return false;
	return true;
}

/* ---- text ---- */

static void names_text(const struct alias *a, struct text_out *o)
{
	for (uint32_t i = 0; i < a->n; i++) {
		if (i)
			text_lit(o, ",");
		text_str(o, a->names[i]);
	}
}

static void target_text(const struct upload_set *s, const struct upload_op *op,
			struct text_out *o)
{
	const struct frag *f = &s->place->frags[op->frag];
	text_lit(o, "{\"aliases\":[");
	names_text(&s->place->aliases[f->alias], o);
	text_lit(o, "],\"fragment_id\":\"");
	text_raw(o, op->id, sizeof(op->id));
	text_lit(o, "\",\"global_offset\":");
	text_u64s(o, f->box, f->n_dims);
	text_lit(o, ",\"local_shape\":");
	text_u64s(o, f->box + f->n_dims, f->n_dims);
	text_lit(o, ",\"nbytes\":");
	text_u64(o, op->nbytes);
	text_lit(o, ",\"object_key\":");
	text_str(o, op->object_key);
	text_lit(o, ",\"object_offset\":");
	text_u64(o, op->object_offset);
	text_lit(o, ",\"tensor_id\":");
	text_str(o, s->place->tensors[f->tensor].id);
	text_lit(o, "}");
}

void upload_set_text(const struct upload_set *s, struct text_out *o)
{
	const struct place *p = s->place;
	text_lit(o, "{\"created_at\":");
	text_str(o, s->created_at);
	text_lit(o, ",\"fragments\":[");
	for (uint32_t i = 0; i < s->n_ops && !o->ended; i++) {
		if (i)
			text_lit(o, ",");
		target_text(s, &s->ops[i], o);
	}
	text_lit(o, "],\"group_id\":");
	text_str(o, BYTES_STR(s->base));
	text_lit(o, ",\"manifest_key\":");
	text_str(o, BYTES_STR(s->manifest_key));
	text_lit(o, ",\"namespace\":");
	text_str(o, s->ns);
	text_lit(o, ",\"resource_id\":");
	text_str(o, p->resource_id);
	text_lit(o, ",\"resource_kind\":\"model_weight\",\"revision\":");
	text_str(o, p->revision);
	text_lit(o, ",\"tensors\":[");
	for (uint32_t i = 0; i < p->n_tensors && !o->ended; i++) {
		if (i)
			text_lit(o, ",");
		place_tensor_text(&p->tensors[i], o);
	}
	text_lit(o, "],\"weight_generation\":");
	text_u64(o, p->generation);
	text_lit(o, "}");
}

static void source_text(const struct upload_set *s, const struct upload_op *op,
			struct text_out *o)
{
	const struct binding *b = &s->bindings->b[op->binding];
	const struct bound_frag *g = &b->frags[op->bound];
	text_lit(o, "{\"address\":");
	text_u64(o, g->address);
	text_lit(o, ",\"fragment_id\":");
	text_str(o, g->id);
	text_lit(o, ",\"generation\":");
	text_u64(o, b->generation);
	text_lit(o, ",\"instance_id\":");
	text_str(o, b->instance);
	text_lit(o, ",\"lease_id\":");
	text_str(o, b->lease);
	text_lit(o, ",\"participant_id\":");
	text_str(o, b->participant);
	text_lit(o, ",\"placement_fragment_id\":");
	text_str(o, g->place_id);
	text_lit(o, ",\"worker_id\":");
	text_str(o, g->worker);
	text_lit(o, "}");
}

static void op_text(const struct upload_set *s, const struct upload_op *op, struct text_out *o)
{
	text_raw(o, op->dp_owned ? "{\"dp_owned\":1," : "{\"dp_owned\":0,", 14);
	text_lit(o, "\"source\":");
	source_text(s, op, o);
	text_lit(o, ",\"target\":");
	target_text(s, op, o);
	text_lit(o, "}");
}

void upload_set_ops_text(const struct upload_set *s, struct text_out *o)
{
	text_lit(o, "{\"control_key\":");
	text_str(o, BYTES_STR(s->control_key));
	text_lit(o, ",\"manifest_digest\":\"");
	text_raw(o, s->digest, SHA_HEX);
	text_lit(o, "\",\"manifest_key\":");
	text_str(o, BYTES_STR(s->manifest_key));
	text_lit(o, ",\"operations\":[");
	for (uint32_t i = 0; i < s->n_ops && !o->ended; i++) {
		if (i)
			text_lit(o, ",");
		op_text(s, &s->ops[i], o);
	}
	text_lit(o, "],\"source_dp\":");
	text_u64_null(o, s->plan->has_dp, s->plan->dp);
	text_lit(o, ",\"source_placement_digest\":\"");
	text_raw(o, s->place->digest, SHA_HEX);
	text_lit(o, "\",\"source_placement_id\":\"");
	text_raw(o, s->place->id, DERIVED_ID_LEN);
	text_lit(o, "\",\"transaction_group_id\":");
	text_str(o, BYTES_STR(s->transaction_group));
	text_lit(o, "}");
}

static bool digest(struct making *m)
{
	struct sha sha = { 0 };
	struct text_out *o = malloc(sizeof(*o));
	bool ok = o && sha_init(&sha) == ERR_NONE;
	if (ok) {
		text_init(o, &sha, true);
		o->cancel = m->room.cancel;
		upload_set_text(m->s, o);
		ok = text_end(o) || plan_sort_fail(&m->room);
		sha_hex(&sha, m->s->digest);
	} else {
		plan_no_memory(m->why);
	}
	sha_fini(&sha);
	free(o);
	return ok;
}

/* ---- the whole ---- */

static bool make(struct making *m, const struct upload_names *names)
{
	struct upload_set *s = m->s;
	struct upload_names n = *names;
	n.resource_id = s->place->resource_id;
	n.revision = s->place->revision;
	n.generation = s->place->generation;
	s->ns = n.ns.p ? n.ns : BYTES_STR("default");
	if (!make_keys(m, &n) || !index_bindings(m))
		return false;
	enum err e = upload_plan(s->place, m->bound, s->bindings->n, m->opts, m->why, &s->plan);
	if (e)
		return m->why->rule != RULE_NONE ? false : plan_no_memory(m->why);
	return make_ops(m, &n) && digest(m);
}

enum err upload_set_make(const struct place *p, const struct bindings *b,
			 const struct upload_names *names, struct bytes created_at,
			 const struct upload_opts *opts, struct reject *why,
			 struct upload_set **out)
{
	struct making m = { .why = why, .opts = opts, .s = calloc(1, sizeof(*m.s)) };
	*why = (struct reject){ 0 };
	if (!m.s)
		return ERR_NO_MEMORY;
	m.room = (struct plan_room){ why, opts->cancel, opts->memory };
	m.s->place = p;
	m.s->bindings = b;
	m.s->created_at = created_at;
	m.s->mem = ARENA_INIT(opts->memory);
	bool ok = make(&m, names);
	free(m.bound);
	free(m.binding_of);
	free(m.at_of);
	if (ok)
		*out = m.s;
	else
		upload_set_free(m.s);
	return rule_err(why->rule);
}

void upload_set_free(struct upload_set *s)
{
	if (!s)
		return;
	upload_free(s->plan);
	arena_fini(&s->mem);
	free(s->ops);
	free(s->base);
	free(s->manifest_key);
	free(s->transaction_group);
	free(s->control_key);
	free(s);
}
