/* SPDX-License-Identifier: Apache-2.0 */
/* Every vector of tests/vectors/reshard, by name: what is valid, and what it becomes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "reshard/bind.h"
#include "reshard/plan.h"
#include "reshard/plan_read.h"
#include "reshard/upload.h"
#include "tests/support/leak.h"
#include "tests/support/vec.h"

static const struct place_limits limits = PLACE_LIMITS;

static bool to_buf(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

/* What a writer writes, and its SHA-256. */
struct written {
	struct buf b;
	char sha[SHA_HEX + 1];
};

static void writing(struct written *w, struct text_out *o, struct sha *sha, bool raw)
{
	w->b = BUF_INIT((size_t)1 << 30);
	cr_assert_eq(sha_init(sha), ERR_NONE);
	text_init(o, sha, raw);
	o->put = to_buf;
	o->arg = &w->b;
}

static void wrote(struct written *w, struct text_out *o, struct sha *sha)
{
	cr_assert(text_end(o));
	sha_hex(sha, w->sha);
	w->sha[SHA_HEX] = 0;
	sha_fini(sha);
	cr_assert_eq(buf_err(&w->b), ERR_NONE);
}

static struct text_out out;

static struct written place_written(const struct place *p)
{
	struct written w;
	struct sha sha;
	writing(&w, &out, &sha, false);
	place_text(p, &out);
	wrote(&w, &out, &sha);
	return w;
}

static bool same(struct bytes a, struct bytes b)
{
	return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

static bool same_str(const struct vec *v, const char *s, size_t n)
{
	return v && v->type == VEC_STR && same(v->str, BYTES(s, n));
}

static struct place *read_place(const struct vec *v, enum place_form form, const char *name)
{
	struct reject why;
	struct place *p = NULL;
	struct bytes text = v->type == VEC_STR ? v->str : v->raw;
	enum err e = place_read(text, form, &limits, &why, &p);
	cr_expect_eq(e, ERR_NONE, "%s: %s at %s: %s", name, rule_name(why.rule), why.path,
		     why.text);
	return p;
}

static void check_place(const struct vec *e, const struct place *p, const char *name)
{
	struct written w = place_written(p);
	const struct vec *bytes = vec_get(e, "canonical_bytes"),
			 *topo = vec_get(e, "topology_id");
	cr_expect(same(vec_get(e, "canonical")->str, buf_bytes(&w.b)), "%s: %.*s", name,
		  (int)w.b.n, (char *)w.b.p);
	cr_expect(same_str(vec_get(e, "digest"), p->digest, SHA_HEX), "%s: digest", name);
	cr_expect(same_str(vec_get(e, "digest"), w.sha, SHA_HEX), "%s: digest of the text",
		  name);
	cr_expect(same_str(vec_get(e, "placement_id"), p->id, DERIVED_ID_LEN), "%s: id", name);
	cr_expect_eq(p->text_bytes, w.b.n, "%s: bytes", name);
	if (bytes)
		cr_expect_eq(bytes->num, w.b.n, "%s: bytes", name);
	if (topo)
		cr_expect(same_str(topo, p->topology_id, DERIVED_ID_LEN), "%s: topology", name);
	buf_fini(&w.b);
}

/* Ids part by part in the order of the draft. */
static void check_frag_ids(const struct vec *v, const struct place *p, const char *name)
{
	const struct vec *want = vec_get(vec_get(v, "expect"), "fragment_ids"), *part, *ids;
	part = vec_get(vec_get(v, "draft"), "parts")->kid;
	for (ids = want->kid; ids && part; ids = ids->next, part = part->next) {
		uint32_t i = place_find_part(p, vec_get(part, "participant_id")->str);
		uint32_t k = 0;
		cr_assert_neq(i, UINT32_MAX, "%s", name);
		cr_expect_eq(ids->n, p->parts[i].n, "%s: fragments", name);
		vec_each(id, ids)
		{
			uint32_t f = place_find_frag(p, id->str);
			cr_assert_neq(f, UINT32_MAX, "%s: %s", name, vec_str(id));
			cr_expect_eq(p->frags[f].part, i, "%s: part of %s", name, vec_str(id));
			cr_expect_eq(p->frags[f].pos, k++, "%s: place of %s", name,
				     vec_str(id));
		}
	}
	cr_expect(!ids && !part, "%s: parts", name);
}

Test(reshard_vectors, placements, .timeout = 30)
{
	struct vec_file f = vec_open("reshard/placements.json");
	cr_expect_eq(f.root->n, 39);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		const struct vec *e = vec_get(v, "expect");
		struct place *p = read_place(vec_get(v, "draft"), PLACE_DRAFT, name);
		if (!p)
			continue;
		check_place(e, p, name);
		check_frag_ids(v, p, name);
		place_free(p);
		p = read_place(vec_get(e, "canonical"), PLACE_WIRE, name);
		if (p)
			check_place(e, p, name);
		place_free(p);
	}
	vec_free(&f);
	NO_LEAKS();
}

Test(reshard_vectors, accepts, .timeout = 30)
{
	struct vec_file f = vec_open("reshard/accepts.json");
	cr_expect_eq(f.root->n, 8);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		struct place *p = read_place(vec_get(v, "text"), PLACE_WIRE, name);
		if (p)
			check_place(vec_get(v, "expect"), p, name);
		place_free(p);
	}
	vec_free(&f);
	NO_LEAKS();
}

static struct stored *read_stored(struct bytes text, const char *name)
{
	struct reject why;
	struct stored *s = NULL;
	enum err e = stored_read(text, &limits, &why, &s);
	cr_expect_eq(e, ERR_NONE, "%s: %s at %s: %s", name, rule_name(why.rule), why.path,
		     why.text);
	return s;
}

static void check_stored(const struct vec *e, const struct stored *s, const char *name)
{
	struct written w;
	struct sha sha;
	writing(&w, &out, &sha, true);
	stored_text(s, &out);
	wrote(&w, &out, &sha);
	cr_expect(same(vec_get(e, "canonical")->str, buf_bytes(&w.b)), "%s: %.*s", name,
		  (int)w.b.n, (char *)w.b.p);
	cr_expect(same_str(vec_get(e, "manifest_digest"), s->digest, SHA_HEX), "%s: digest",
		  name);
	cr_expect_str_eq(w.sha, vec_str(vec_get(e, "manifest_digest")), "%s", name);
	cr_expect_eq(vec_num(e, "canonical_bytes", 0), s->text_bytes, "%s: bytes", name);
	buf_fini(&w.b);
}

Test(reshard_vectors, stored, .timeout = 30)
{
	struct vec_file f = vec_open("reshard/stored.json");
	cr_expect_eq(f.root->n, 10);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		const struct vec *e = vec_get(v, "expect");
		struct stored *s = read_stored(vec_get(v, "manifest")->raw, name);
		if (!s)
			continue;
		check_stored(e, s, name);
		stored_free(s);
		s = read_stored(vec_get(e, "canonical")->str, name);
		if (s)
			check_stored(e, s, name);
		stored_free(s);
	}
	vec_free(&f);
	NO_LEAKS();
}

/* ---- plans ---- */

struct sides {
	struct place *source, *target;
	struct stored *stored;
};

static struct plan_ask ask_of(const struct vec *v, struct sides *s, const char *name)
{
	const char *kind = vec_str(vec_get(v, "kind"));
	const struct vec *l = vec_get(v, "limits"), *who = vec_get(v, "target_participant_id");
	struct plan_ask a = { .lim = PLAN_LIMITS, .local = strcmp(kind, "local") == 0 };
	*s = (struct sides){ .target = read_place(vec_get(v, "target"), PLACE_WIRE, name) };
	if (strcmp(kind, "stored") == 0)
		s->stored = read_stored(vec_get(v, "source")->raw, name);
	else
		s->source = read_place(vec_get(v, "source"), PLACE_WIRE, name);
	a.source = s->source;
	a.stored = s->stored;
	a.target = s->target;
	if (who && who->type == VEC_STR)
		a.participant = who->str;
	a.lim.max_transfer_regions = vec_num(l, "max_transfer_regions", 1000000);
	a.lim.max_segments_per_region = vec_num(l, "max_segments_per_region", 1000000);
	a.lim.max_total_lowered_segments = vec_num(l, "max_total_lowered_segments", 10000000);
	return a;
}

static void sides_free(struct sides *s)
{
	place_free(s->source);
	place_free(s->target);
	stored_free(s->stored);
}

/* The text read back says what the plan does. */
static void check_listed(const struct plan *p, struct bytes text, const char *name)
{
	struct listed_plan *l = NULL;
	struct reject why;
	cr_assert_eq(listed_plan_read(text, &limits, &why, &l), ERR_NONE, "%s: %s %s", name,
		     why.path, why.text);
	cr_assert_eq(l->n_ops, p->n_ops, "%s", name);
	for (uint32_t i = 0; i < p->n_ops; i++) {
		const struct listed_op *o = &l->ops[i];
		const struct frag *t = &p->target->frags[p->ops[i].target];
		size_t n = o->n_outer * sizeof(uint64_t);
		struct region r;
		plan_region(p, i, &r);
		cr_expect(bytes_eq(o->source, plan_source_id(p, i)) &&
			  bytes_eq(o->target, t->id));
		cr_expect(bytes_eq(o->tensor, p->target->tensors[t->tensor].id));
		cr_expect(bytes_eq(o->target_part, p->target->parts[t->part].id), "%s", name);
		if (p->source)
			cr_expect(bytes_eq(
				o->source_part,
				p->source->parts[p->source->frags[p->ops[i].source].part].id));
		else
			cr_expect_eq(o->source_part.n, 0);
		cr_expect(o->inner_bytes == r.inner_bytes && o->source_base == r.source_base &&
			  o->target_base == r.target_base && o->n_outer == r.n_outer);
		if (n)
			cr_expect(memcmp(o->outer, r.counts, n) == 0 &&
				  memcmp(o->outer + r.n_outer, r.source_strides, n) == 0 &&
				  memcmp(o->outer + 2 * (size_t)r.n_outer, r.target_strides,
					 n) == 0);
	}
	listed_plan_free(l);
	/* cut anywhere it is no plan */
	for (size_t n = 0; n < text.n; n += 1 + text.n / 37)
		cr_expect_neq(listed_plan_read(BYTES(text.p, n), &limits, &why, &l), ERR_NONE);
}

Test(reshard_vectors, plans, .timeout = 60)
{
	struct vec_file f = vec_open("reshard/plans.json");
	cr_expect_eq(f.root->n, 63);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		struct sides s;
		struct reject why;
		struct plan *p = NULL;
		struct plan_ask a = ask_of(v, &s, name);
		enum err e = plan_make(&a, &why, &p);
		cr_expect_eq(e, ERR_NONE, "%s: %s: %s", name, rule_name(why.rule), why.text);
		if (!e) {
			struct written w;
			struct sha sha;
			writing(&w, &out, &sha, false);
			plan_text(p, &out);
			wrote(&w, &out, &sha);
			/* the vectors' own text is canonical */
			cr_expect(same(vec_get(v, "expect")->raw, buf_bytes(&w.b)), "%s: %.*s",
				  name, (int)w.b.n, (char *)w.b.p);
			cr_expect_str_eq(w.sha, vec_str(vec_get(v, "expect_sha256")), "%s",
					 name);
			check_listed(p, buf_bytes(&w.b), name);
			buf_fini(&w.b);
		}
		plan_free(p);
		sides_free(&s);
	}
	vec_free(&f);
	NO_LEAKS();
}

/* ---- regions ---- */

static uint32_t numbers(const struct vec *v, uint64_t *to)
{
	uint32_t n = 0;
	vec_each(k, v) to[n++] = k->num;
	return n;
}

static void same_list(const struct vec *v, const char *key, const uint64_t *have, uint32_t n,
		      const char *name)
{
	uint64_t want[64];
	uint32_t m = numbers(vec_get(v, key), want);
	cr_expect_eq(m, n, "%s: %s has %u", name, key, n);
	for (uint32_t i = 0; i < MIN_OF(m, n); i++)
		cr_expect_eq(want[i], have[i], "%s: %s[%u]", name, key, i);
}

/* Runs the loop, and compares each segment. */
static void check_segments(const struct vec *list, const struct region *r, const char *name)
{
	uint64_t at[BOX_DIMS_MAX] = { 0 };
	vec_each(seg, list)
	{
		uint64_t s = r->source_base, t = r->target_base, want[3];
		for (uint32_t d = 0; d < r->n_outer; d++) {
			s += at[d] * r->source_strides[d];
			t += at[d] * r->target_strides[d];
		}
		numbers(seg, want);
		cr_expect(want[0] == s && want[1] == t && want[2] == r->inner_bytes, "%s",
			  name);
		for (uint32_t d = r->n_outer; d-- > 0 && ++at[d] == r->counts[d];)
			at[d] = 0;
	}
}

static void check_region(const struct vec *e, const struct region *r, const char *name)
{
	cr_expect_eq(vec_num(e, "inner_bytes", 0), r->inner_bytes, "%s: inner", name);
	cr_expect_eq(vec_num(e, "source_base_offset", 9), r->source_base, "%s: source", name);
	cr_expect_eq(vec_num(e, "target_base_offset", 9), r->target_base, "%s: target", name);
	same_list(e, "outer_loop_counts", r->counts, r->n_outer, name);
	same_list(e, "source_strides", r->source_strides, r->n_outer, name);
	same_list(e, "target_strides", r->target_strides, r->n_outer, name);
	same_list(e, "overlap_offset", r->offset, r->n_dims, name);
	same_list(e, "overlap_shape", r->shape, r->n_dims, name);
	const struct vec *seg = vec_get(e, "segments");
	if (seg && seg->type == VEC_ARR) {
		cr_expect_eq(seg->n, r->segments, "%s: segments", name);
		check_segments(seg, r, name);
	}
}

Test(reshard_vectors, regions, .timeout = 30)
{
	struct vec_file f = vec_open("reshard/regions.json");
	cr_expect_eq(f.root->n, 60);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		uint64_t s[2 * BOX_DIMS_MAX], t[2 * BOX_DIMS_MAX];
		uint32_t n = numbers(vec_get(v, "source_offset"), s);
		struct region r;
		numbers(vec_get(v, "source_shape"), s + n);
		numbers(vec_get(v, "target_offset"), t);
		numbers(vec_get(v, "target_shape"), t + n);
		bool met = region_of(s, t, n, vec_num(v, "itemsize", 0), &r);
		cr_expect_eq(met, vec_get(v, "expect")->type == VEC_OBJ, "%s", name);
		if (met)
			check_region(vec_get(v, "expect"), &r, name);
	}
	vec_free(&f);
	NO_LEAKS();
}

/* ---- bindings ---- */

static void check_strides(const struct vec *e, const struct bindings *b, const char *name)
{
	for (uint32_t i = 0; i < b->n; i++)
		for (uint32_t k = 0; k < b->b[i].n_frags; k++) {
			const struct bound_frag *f = &b->b[i].frags[k];
			char who[128], id[128];
			snprintf(who, sizeof(who), "%.*s", (int)b->b[i].participant.n,
				 b->b[i].participant.p);
			snprintf(id, sizeof(id), "%.*s", (int)f->id.n, f->id.p);
			same_list(vec_get(vec_get(e, "strides"), who), id, f->strides,
				  f->n_strides, name);
		}
}

Test(reshard_vectors, bindings, .timeout = 30)
{
	struct vec_file f = vec_open("reshard/bindings.json");
	cr_expect_eq(f.root->n, 9);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		struct reject why;
		struct bindings *b = NULL;
		struct place *p = read_place(vec_get(v, "placement"), PLACE_DRAFT, name);
		enum err e = bind_read(vec_get(v, "bindings")->raw, p, &limits, &why, &b);
		cr_expect_eq(e, ERR_NONE, "%s: %s at %s", name, rule_name(why.rule), why.path);
		if (b)
			check_strides(vec_get(v, "expect"), b, name);
		cr_expect(
			same_str(vec_get(vec_get(v, "expect"), "digest"), p->digest, SHA_HEX));
		bind_free(b);
		place_free(p);
	}
	vec_free(&f);
	NO_LEAKS();
}

/* ---- rejections ---- */

static enum err refuse_plan(const struct vec *in, const char *name, struct reject *why)
{
	struct sides s;
	struct plan *p = NULL;
	struct plan_ask a = ask_of(in, &s, name);
	enum err e = plan_make(&a, why, &p);
	plan_free(p);
	sides_free(&s);
	return e;
}

static enum err refuse_bindings(const struct vec *in, const char *name, struct reject *why)
{
	struct bindings *b = NULL;
	struct place *p = read_place(vec_get(in, "placement"), PLACE_DRAFT, name);
	enum err e = bind_read(vec_get(in, "bindings")->raw, p, &limits, why, &b);
	bind_free(b);
	place_free(p);
	return e;
}

static enum err refuse(const struct vec *v, const char *name, struct reject *why)
{
	const char *kind = vec_str(vec_get(v, "input_kind"));
	const struct vec *in = vec_get(v, "input");
	struct place *p = NULL;
	struct stored *s = NULL;
	enum err e;
	if (strcmp(kind, "plan") == 0)
		return refuse_plan(in, name, why);
	if (strcmp(kind, "bindings") == 0)
		return refuse_bindings(in, name, why);
	if (strcmp(kind, "stored_json") == 0)
		e = stored_read(in->str, &limits, why, &s);
	else if (strcmp(kind, "placement_json") == 0)
		e = place_read(in->str, PLACE_WIRE, &limits, why, &p);
	else
		e = place_read(in->raw, strcmp(kind, "parts") == 0 ? PLACE_PARTS : PLACE_DRAFT,
			       &limits, why, &p);
	place_free(p);
	stored_free(s);
	return e;
}

/* Where each rejection is: ours. "" where the whole is meant. */
static const struct {
	const char *name, *path;
} paths[] = {
#include "paths.inc"
};

static const char *path_of(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		if (strcmp(paths[i].name, name) == 0)
			return paths[i].path;
	return "no row in paths.inc";
}

Test(reshard_vectors, rejections, .timeout = 60)
{
	struct vec_file f = vec_open("reshard/rejections.json");
	cr_expect_eq(f.root->n, 128);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		struct reject why = { 0 };
		enum err e = refuse(v, name, &why);
		cr_expect_neq(e, ERR_NONE, "%s was accepted", name);
		cr_expect_str_eq(rule_name(why.rule), vec_str(vec_get(v, "rule")),
				 "%s: %s at %s", name, rule_name(why.rule), why.path);
		cr_expect_str_eq(why.path, path_of(name), "%s: { \"%s\", \"%s\" },", name, name,
				 why.path);
		cr_expect_neq(why.text[0], 0, "%s: no text", name);
	}
	vec_free(&f);
	NO_LEAKS();
}

/* ---- uploads ---- */

static void check_id(const struct vec *v, struct bytes tensor, const struct vec *want,
		     const char *name)
{
	uint64_t box[2 * BOX_DIMS_MAX];
	char id[UPLOAD_FRAGMENT_ID_LEN];
	uint32_t n = numbers(vec_get(v, "global_offset"), box);
	numbers(vec_get(v, "local_shape"), box + n);
	cr_assert_eq(upload_fragment_id(tensor, box, n, id), ERR_NONE);
	if (want)
		cr_expect(same_str(want, id, sizeof(id)), "%s: %.24s", name, id);
}

typedef enum err (*key_fn)(const struct upload_names *n, char **out, struct why *why);

static void check_key(const struct vec *e, const char *key, key_fn fn,
		      const struct upload_names *n, const char *name)
{
	char *k = NULL;
	cr_assert_eq(fn(n, &k, NULL), ERR_NONE);
	cr_expect_str_eq(k, vec_str(vec_get(e, key)), "%s: %s", name, key);
	free(k);
}

static void check_keys(const struct vec *v, const char *name)
{
	const struct vec *e = vec_get(v, "expect"), *want = vec_get(e, "object_keys")->kid;
	struct upload_names n = {
		.prefix = vec_get(v, "key_prefix")->str,
		.ns = vec_get(v, "namespace")->str,
		.resource_id = vec_get(v, "resource_id")->str,
		.revision = vec_get(v, "revision")->str,
		.generation = vec_num(v, "weight_generation", 0),
		.transaction = vec_get(v, "transaction_id")->str,
	};
	check_key(e, "group_id", upload_base, &n, name);
	check_key(e, "manifest_key", upload_manifest_key, &n, name);
	check_key(e, "control_key", upload_control_key, &n, name);
	check_key(e, "transaction_group_id", upload_transaction_group, &n, name);
	vec_each(g, vec_get(v, "fragments"))
	{
		uint64_t box[2 * BOX_DIMS_MAX];
		char id[UPLOAD_FRAGMENT_ID_LEN], *k = NULL;
		uint32_t d = numbers(vec_get(g, "global_offset"), box);
		numbers(vec_get(g, "local_shape"), box + d);
		cr_assert_eq(upload_fragment_id(vec_get(g, "tensor_id")->str, box, d, id),
			     ERR_NONE);
		cr_assert_eq(upload_object_key(&n, id, &k, NULL), ERR_NONE);
		cr_expect_str_eq(k, vec_str(want), "%s", name);
		want = want->next;
		free(k);
	}
}

static void check_items(const struct vec *e, const struct place *p, const struct upload *u,
			const char *name)
{
	uint32_t i = 0;
	cr_expect_eq(vec_num(e, "selected_dp", 99), u->dp, "%s: dp", name);
	cr_expect_eq(vec_num(e, "generation", 99), u->generation, "%s: generation", name);
	cr_assert_eq(vec_get(e, "fragments")->n, u->n_items, "%s: items", name);
	vec_each(g, vec_get(e, "fragments"))
	{
		const struct upload_item *it = &u->items[i++];
		const struct frag *f = &p->frags[it->frag];
		cr_expect(same_str(vec_get(g, "fragment_id"), it->id, sizeof(it->id)), "%s",
			  name);
		cr_expect(same(vec_get(g, "source_placement_fragment_id")->str, f->id), "%s",
			  name);
		cr_expect(same(vec_get(g, "source_participant_id")->str, p->parts[f->part].id));
		cr_expect(same(vec_get(g, "tensor_id")->str, p->tensors[f->tensor].id), "%s",
			  name);
		check_id(g, p->tensors[f->tensor].id, vec_get(g, "fragment_id"), name);
	}
}

static void check_selection(const struct vec *v, const char *name)
{
	const struct vec *e = vec_get(v, "expect"), *reject = vec_get(e, "reject");
	const struct vec *draft =
		vec_get(v, "placement") ? vec_get(v, "placement") : vec_get(v, "draft");
	struct place *p = read_place(draft, PLACE_DRAFT, name);
	struct upload_bound bound[64];
	struct upload *u = NULL;
	struct reject why;
	uint32_t n = 0;
	vec_each(g, vec_get(v, "generations"))
	{
		uint32_t part = place_find_part(p, g->key);
		cr_assert_neq(part, UINT32_MAX);
		bound[n++] = (struct upload_bound){ part, g->num };
	}
	static const struct upload_opts opts = UPLOAD_OPTS;
	enum err err = upload_plan(p, bound, n, &opts, &why, &u);
	cr_expect_str_eq(rule_name(why.rule), reject ? vec_str(reject) : "none", "%s", name);
	cr_expect_eq(err != ERR_NONE, reject != NULL, "%s", name);
	if (u)
		check_items(e, p, u, name);
	upload_free(u);
	place_free(p);
}

Test(reshard_vectors, uploads, .timeout = 30)
{
	struct vec_file f = vec_open("reshard/uploads.json");
	cr_expect_eq(f.root->n, 25);
	vec_each(v, f.root)
	{
		const char *name = vec_str(vec_get(v, "name"));
		const char *kind = vec_str(vec_get(v, "kind"));
		if (strcmp(kind, "fragment_id") == 0)
			check_id(v, vec_get(v, "tensor_id")->str,
				 vec_get(vec_get(v, "expect"), "fragment_id"), name);
		else if (strcmp(kind, "keys") == 0)
			check_keys(v, name);
		else
			check_selection(v, name);
	}
	vec_free(&f);
	NO_LEAKS();
}
