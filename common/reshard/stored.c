/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks manifests of stored weights. Order of checks: text, fields, keys, tensors,
 * fragments one by one, then all together, aliases, coverage, object ranges. */
#include "reshard/stored.h"

#include "reshard/place_priv.h"

#include <stdarg.h>
#include <stdio.h>

struct reader {
	struct json_in in;
	struct stored *s;
	struct reject *why;
	struct place_limits lim;
	size_t held;	  /* bytes of lists; arena and names come on top */
	struct arena mem; /* strings with escapes */
	struct names names, groups;
	struct bytes *list;
	uint32_t cap_list, cap_tensors, cap_frags, cap_aliases;
	uint32_t *name_tensor;
	struct box_join join;
	struct box_work work;
};

static bool no_memory(struct reader *d)
{
	return reject_set(d->why, RULE_LIMIT_MEMORY, "", "no memory within the limit");
}

static bool fail_frag(struct reader *d, enum rule r, uint32_t i, const char *field)
{
	char path[64];
	snprintf(path, sizeof(path), "fragments[%u].%s", i, field);
	return reject_set(d->why, r, path, "%s", rule_text(r));
}

static bool stopped(struct reader *d)
{
	return reject_set(d->why, RULE_PLAN_CANCELLED, "",
			  "stopped while the manifest was read");
}

/* In turn i of a long loop. */
static bool go(struct reader *d, size_t i)
{
	return !stop_at(d->lim.cancel, i) || stopped(d);
}

static bool sort_fail(struct reader *d)
{
	return stop_now(d->lim.cancel) ? stopped(d) : no_memory(d);
}

static bool fits(const struct reader *d, size_t n)
{
	size_t now =
		d->held + d->s->mem.held + names_bytes(&d->names) + names_bytes(&d->groups);
	return now <= d->lim.memory && n <= d->lim.memory - now;
}

/* n items, zeroed, kept or not: counted in any case. */
static void *take(struct reader *d, size_t n, size_t each)
{
	void *p = fits(d, n * each) ? calloc(MAX_OF(n, 1), each) : NULL;
	if (p)
		d->held += n * each;
	else
		no_memory(d);
	return p;
}

static bool grow(struct reader *d, void *list, uint32_t *cap, uint32_t n, size_t each)
{
	void *old, *q;
	if (n < *cap)
		return true;
	uint32_t want = *cap ? *cap + *cap / 2 : 32;
	memcpy(&old, list, sizeof(old));
	size_t more = (want - *cap) * each;
	q = n < 1u << 31 && fits(d, more) ? realloc(old, want * each) : NULL;
	if (!q)
		return no_memory(d);
	d->held += more;
	memcpy(list, &q, sizeof(q));
	*cap = want;
	return true;
}

static bool copy(struct reader *d, const void *in, size_t n, const void **out)
{
	void *p = arena_alloc(&d->s->mem, MAX_OF(n, 1));
	if (!p)
		return no_memory(d);
	if (n)
		memcpy(p, in, n);
	*out = p;
	return true;
}

static bool copy_bytes(struct reader *d, struct bytes in, struct bytes *out)
{
	out->n = in.n;
	return copy(d, in.p, in.n, (const void **)&out->p);
}

static bool text(struct reader *d, struct bytes *out)
{
	struct bytes b;
	return json_in_text(&d->in, &b) && copy_bytes(d, b, out);
}

static bool name(struct reader *d, struct bytes b, uint32_t *out)
{
	*out = names_put(&d->names, b, &d->s->mem);
	return *out != NAMES_NONE || no_memory(d);
}

/* ---- reading ---- */

static bool read_tensor(struct reader *d)
{
	struct stored *s = d->s;
	uint64_t shape[BOX_DIMS_MAX], shard[BOX_DIMS_MAX];
	uint32_t number;
	if (!grow(d, &s->tensors, &d->cap_tensors, s->n_tensors, sizeof(*s->tensors)))
		return false;
	struct tensor *t = &s->tensors[s->n_tensors];
	if (!place_read_tensor(&d->in, t, shape, shard) || !name(d, t->id, &number))
		return false;
	t->pos = s->n_tensors++;
	t->id = d->names.name[number];
	return copy_bytes(d, t->dtype, &t->dtype) && copy_bytes(d, t->layout, &t->layout) &&
	       copy(d, shape, t->n_dims * sizeof(*shape), (const void **)&t->shape) &&
	       copy(d, shard, t->n_shard * sizeof(*shard), (const void **)&t->shard_dims);
}

struct frag_in {
	uint64_t box[2 * BOX_DIMS_MAX], offset[BOX_DIMS_MAX], shape[BOX_DIMS_MAX];
	uint32_t n_offset, n_shape, n_list;
};

static bool frag_field(struct reader *d, int f, struct stored_frag *o, struct frag_in *g)
{
	struct json_in *r = &d->in;
	struct bytes b;
	switch (f) {
	case 0:
		return place_read_names(r, &d->mem, &d->list, &d->cap_list, &g->n_list);
	case 1:
		return text(d, &o->id);
	case 2:
		return place_read_u64s(r, g->offset, BOX_DIMS_MAX, &g->n_offset);
	case 3:
		return place_read_u64s(r, g->shape, BOX_DIMS_MAX, &g->n_shape);
	case 4:
		return json_in_u64(r, &o->nbytes) &&
		       (o->nbytes || json_in_fail(r, RULE_JSON_INTEGER_RANGE, "0; at least 1"));
	case 5:
		return text(d, &o->object_key);
	case 6:
		return json_in_u64(r, &o->object_offset);
	default:
		return json_in_text(r, &b) && name(d, b, &o->tensor);
	}
}

static int u32_cmp(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static bool read_group(struct reader *d, uint32_t n, uint32_t *out)
{
	AUTO_FREE uint32_t *v = malloc(MAX_OF(n, 1) * sizeof(*v));
	uint32_t before = d->groups.n;
	*out = 0;
	if (!n)
		return true;
	if (!v)
		return no_memory(d);
	for (uint32_t i = 0; i < n; i++)
		if (!name(d, d->list[i], &v[i]))
			return false;
	qsort(v, n, sizeof(*v), u32_cmp);
	uint32_t g = names_put(&d->groups, BYTES(v, n * sizeof(*v)), &d->s->mem);
	if (g == NAMES_NONE)
		return no_memory(d);
	*out = g + 1;
	if (d->groups.n == before)
		return true;
	if (!grow(d, &d->s->aliases, &d->cap_aliases, d->s->n_aliases, sizeof(*d->s->aliases)))
		return false;
	d->s->aliases[d->s->n_aliases++] = (struct alias){ .n = n };
	return true;
}

/* The box as it is kept: both lists when they are alike, else as far as the shorter goes; the
 * lengths are checked with the tensor, later. */
static bool keep_box(struct reader *d, struct stored_frag *o, struct frag_in *g)
{
	uint32_t n = MIN_OF(g->n_offset, g->n_shape);
	uint64_t *p = arena_alloc(&d->s->mem, (2 + 2 * (size_t)n) * sizeof(*p));
	if (!p)
		return no_memory(d);
	p[0] = g->n_offset;
	p[1] = g->n_shape;
	memcpy(p + 2, g->offset, n * sizeof(*p));
	memcpy(p + 2 + n, g->shape, n * sizeof(*p));
	o->box = p + 2;
	return true;
}

static bool read_frag(struct reader *d)
{
	static const struct json_field fields[] = {
		JSON_FIELD("aliases"),	     JSON_FIELD("fragment_id"),
		JSON_FIELD("global_offset"), JSON_FIELD("local_shape"),
		JSON_FIELD("nbytes"),	     JSON_FIELD("object_key"),
		JSON_FIELD("object_offset"), JSON_FIELD("tensor_id"),
	};
	struct stored *s = d->s;
	struct json_obj o;
	struct frag_in g = { 0 };
	if (!grow(d, &s->frags, &d->cap_frags, s->n_frags, sizeof(*s->frags)) ||
	    !json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	struct stored_frag *f = &s->frags[s->n_frags];
	*f = (struct stored_frag){ 0 };
	for (int k; (k = json_in_key(&d->in, &o)) >= 0;)
		if (!frag_field(d, k, f, &g))
			return false;
	if (!o.whole || !read_group(d, g.n_list, &f->alias) || !keep_box(d, f, &g))
		return false;
	s->n_frags++;
	arena_clear(&d->mem);
	return true;
}

static bool read_list(struct reader *d, bool (*one)(struct reader *d))
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!one(d))
			return false;
	return a.whole;
}

static bool top_field(struct reader *d, int f)
{
	struct stored *s = d->s;
	switch (f) {
	case 0:
		return text(d, &s->created_at);
	case 1:
		return read_list(d, read_frag);
	case 2:
		return text(d, &s->group_id);
	case 3:
		return text(d, &s->manifest_key);
	case 4:
		return text(d, &s->ns);
	case 5:
		return text(d, &s->resource_id);
	case 6:
		return place_read_kind(&d->in);
	case 7:
		return text(d, &s->revision);
	case 8:
		return read_list(d, read_tensor);
	default:
		return json_in_u64(&d->in, &s->generation);
	}
}

static bool read_top(struct reader *d)
{
	static const struct json_field fields[] = {
		JSON_FIELD("created_at"),    JSON_FIELD("fragments"),
		JSON_FIELD("group_id"),	     JSON_FIELD("manifest_key"),
		JSON_FIELD("namespace"),     JSON_FIELD("resource_id"),
		JSON_FIELD("resource_kind"), JSON_FIELD("revision"),
		JSON_FIELD("tensors"),	     JSON_FIELD("weight_generation"),
	};
	struct json_obj o;
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!top_field(d, f))
			return false;
	return o.whole && json_in_close(&d->in);
}

/* Errors of the text come before all others: what was not read yet is read over. */
static bool read_text(struct reader *d, struct bytes in)
{
	struct reject other = { 0 };
	struct json_in r;
	if (json_in_open(&d->in, in, &d->lim.json, &d->mem, d->why) && read_top(d))
		return true;
	if (json_in_text_rule(d->why->rule) ||
	    !json_in_open(&r, in, &d->lim.json, &d->mem, &other))
		return false;
	if (!json_in_skip(&r) || !json_in_close(&r))
		*d->why = other;
	return false;
}

/* ---- checking ---- */

static bool is_under(struct bytes key, struct bytes group, const char *sep, bool exact)
{
	size_t n = strlen(sep);
	return key.n >= group.n + n && (!exact || key.n == group.n + n) &&
	       memcmp(key.p, group.p, group.n) == 0 && memcmp(key.p + group.n, sep, n) == 0;
}

static struct bytes tensor_name(const void *ctx, uint32_t i)
{
	return ((const struct tensor *)ctx)[i].id;
}

static bool check_tensors(struct reader *d)
{
	struct stored *s = d->s;
	const char *field;
	char path[64];
	for (uint32_t i = 0; i < s->n_tensors; i++) {
		enum rule r = place_tensor_rule(&s->tensors[i], &field);
		snprintf(path, sizeof(path), "tensors[%u].%s", i, field);
		if (r != RULE_NONE)
			return reject_set(d->why, r, path, "%s", rule_text(r));
		if (!go(d, i))
			return false;
	}
	s->by_name = take(d, s->n_tensors, sizeof(uint32_t));
	d->name_tensor = take(d, d->names.n, sizeof(uint32_t));
	if (!s->by_name || !d->name_tensor)
		return false;
	if (!names_sort(tensor_name, s->tensors, s->n_tensors, s->by_name, d->lim.cancel))
		return sort_fail(d);
	memset(d->name_tensor, 0xff, d->names.n * sizeof(uint32_t));
	for (uint32_t i = 0; i < s->n_tensors; i++) {
		uint32_t *at = &d->name_tensor[names_find(&d->names, s->tensors[i].id)];
		snprintf(path, sizeof(path), "tensors[%u].tensor_id", i);
		if (*at != UINT32_MAX)
			return reject_set(d->why, RULE_TENSOR_DUPLICATE, path, "listed before");
		*at = i;
		if (!go(d, i))
			return false;
	}
	return true;
}

static enum rule group_rule(const struct reader *d, const struct stored_frag *f,
			    uint32_t number)
{
	struct bytes g = d->groups.name[f->alias - 1];
	const uint32_t *v = (const uint32_t *)(const void *)g.p;
	uint32_t n = (uint32_t)(g.n / sizeof(*v));
	bool member = false, known = true;
	for (uint32_t i = 0; i < n; i++) {
		if (i && v[i] == v[i - 1])
			return RULE_ALIAS_DUPLICATE;
		member |= v[i] == number;
		known = known && d->name_tensor[v[i]] != UINT32_MAX;
	}
	return n < 2	 ? RULE_ALIAS_TOO_SMALL
	       : !member ? RULE_ALIAS_NOT_MEMBER
	       : !known	 ? RULE_STORED_ALIAS
			 : RULE_NONE;
}

static bool check_frag(struct reader *d, uint32_t i)
{
	struct stored_frag *f = &d->s->frags[i];
	uint32_t number = f->tensor;
	const char *field = "aliases";
	if (!is_under(f->object_key, d->s->group_id, "/payload/", false))
		return fail_frag(d, RULE_STORED_OBJECT_KEY, i, "object_key");
	f->tensor = d->name_tensor[number];
	if (f->tensor == UINT32_MAX)
		return fail_frag(d, RULE_PART_UNKNOWN_TENSOR, i, "tensor_id");
	enum rule r = place_box_rule(&d->s->tensors[f->tensor], f->box, (uint32_t)f->box[-2],
				     (uint32_t)f->box[-1], f->nbytes, &field);
	if (r == RULE_NONE && f->alias) {
		field = "aliases";
		r = group_rule(d, f, number);
	}
	if (r != RULE_NONE)
		return fail_frag(d, r, i, field);
	uint64_t end;
	return !__builtin_add_overflow(f->object_offset, f->nbytes, &end) ||
	       fail_frag(d, RULE_STORED_OBJECT_RANGE, i, "object_offset");
}

static struct bytes frag_name(const void *ctx, uint32_t i)
{
	return ((const struct stored_frag *)ctx)[i].id;
}

static bool check_ids(struct reader *d, uint32_t *order)
{
	const struct stored *s = d->s;
	if (!names_sort(frag_name, s->frags, s->n_frags, order, d->lim.cancel))
		return sort_fail(d);
	for (uint32_t i = 1; i < s->n_frags; i++) {
		if (bytes_eq(s->frags[order[i - 1]].id, s->frags[order[i]].id))
			return fail_frag(d, RULE_STORED_DUPLICATE_ID, order[i], "fragment_id");
		if (!go(d, i))
			return false;
	}
	return true;
}

static int object_cmp(const void *a, const void *b, void *arg)
{
	const struct stored_frag *f = arg, *x = &f[*(const uint32_t *)a],
				 *y = &f[*(const uint32_t *)b];
	int c = bytes_cmp(x->object_key, y->object_key);
	if (c)
		return c;
	return (x->object_offset > y->object_offset) - (x->object_offset < y->object_offset);
}

static bool check_objects(struct reader *d, uint32_t *order)
{
	struct stored_frag *f = d->s->frags;
	if (!stop_sort(order, d->s->n_frags, sizeof(*order), object_cmp, f, d->lim.cancel))
		return sort_fail(d);
	for (uint32_t i = 1; i < d->s->n_frags; i++) {
		if (!go(d, i))
			return false;
		const struct stored_frag *a = &f[order[i - 1]], *b = &f[order[i]];
		if (bytes_eq(a->object_key, b->object_key) &&
		    b->object_offset - a->object_offset < a->nbytes)
			return fail_frag(d, RULE_STORED_OBJECT_RANGE, order[i],
					 "object_offset");
	}
	return true;
}

static int source_cmp(const void *a, const void *b, void *arg)
{
	const struct stored_frag *f = arg, *x = &f[*(const uint32_t *)a],
				 *y = &f[*(const uint32_t *)b];
	int c = bytes_cmp(x->object_key, y->object_key);
	return c ? c : bytes_cmp(x->id, y->id);
}

static bool group_by_tensor(struct reader *d)
{
	struct stored *s = d->s;
	uint32_t n = s->n_tensors;
	s->tensor_first = take(d, (size_t)n + 2, sizeof(uint32_t));
	s->by_tensor = take(d, s->n_frags, sizeof(uint32_t));
	if (!s->tensor_first || !s->by_tensor)
		return false;
	uint32_t *at = s->tensor_first + 1; /* becomes the first array, one ahead */
	for (uint32_t i = 0; i < s->n_frags; i++)
		s->tensor_first[s->frags[i].tensor + 2]++;
	for (uint32_t t = 0; t < n; t++)
		at[t + 1] += at[t];
	for (uint32_t i = 0; i < s->n_frags; i++)
		s->by_tensor[at[s->frags[i].tensor]++] = i;
	for (uint32_t t = 0; t < n; t++)
		if (!stop_sort(s->by_tensor + s->tensor_first[t],
			       s->tensor_first[t + 1] - s->tensor_first[t], sizeof(uint32_t),
			       source_cmp, s->frags, d->lim.cancel))
			return sort_fail(d);
	return true;
}

struct box_order {
	const struct stored_frag *f;
	uint32_t n_dims;
};

static int box_order_cmp(const void *a, const void *b, void *arg)
{
	const struct box_order *o = arg;
	return box_cmp(o->f[*(const uint32_t *)a].box, o->f[*(const uint32_t *)b].box,
		       o->n_dims);
}

/* The boxes of tensor t: none twice, and all of it. order and boxes have room for them. */
static bool check_tensor(struct reader *d, uint32_t t, uint32_t *order, const uint64_t **boxes)
{
	const struct stored *s = d->s;
	const struct tensor *e = &s->tensors[t];
	uint32_t n = s->tensor_first[t + 1] - s->tensor_first[t];
	struct box_order o = { s->frags, e->n_dims };
	bool whole = false;
	char path[64];
	memcpy(order, s->by_tensor + s->tensor_first[t], n * sizeof(*order));
	if (!stop_sort(order, n, sizeof(*order), box_order_cmp, &o, d->lim.cancel))
		return sort_fail(d);
	for (uint32_t i = 0; i < n; i++) {
		boxes[i] = s->frags[order[i]].box;
		if (i && box_cmp(boxes[i - 1], boxes[i], e->n_dims) == 0)
			return fail_frag(d, RULE_STORED_DUPLICATE_BOX,
					 MAX_OF(order[i - 1], order[i]), "global_offset");
	}
	if (!box_tile(&d->join, boxes, n, e->shape, e->n_dims, &d->work, &whole))
		return reject_set(d->why,
				  d->work.cancelled   ? RULE_PLAN_CANCELLED
				  : d->work.no_memory ? RULE_LIMIT_MEMORY
						      : RULE_LIMIT_WORK,
				  "", "stopped while coverage was proved");
	snprintf(path, sizeof(path), "tensors[%u]", e->pos);
	return whole || reject_set(d->why, RULE_STORED_COVERAGE, path, "a gap or an overlap");
}

/* Has tensor t a fragment with f's box, size and group? */
static bool has_twin(const struct stored *s, const struct stored_frag *f, uint32_t t)
{
	uint32_t nd = s->tensors[t].n_dims;
	if (nd != s->tensors[f->tensor].n_dims)
		return false;
	for (uint32_t i = s->tensor_first[t]; i < s->tensor_first[t + 1]; i++) {
		const struct stored_frag *g = &s->frags[s->by_tensor[i]];
		if (g->alias == f->alias && g->nbytes == f->nbytes &&
		    box_cmp(g->box, f->box, nd) == 0)
			return true;
	}
	return false;
}

static bool check_twins(struct reader *d, uint32_t i)
{
	const struct stored *s = d->s;
	const struct stored_frag *f = &s->frags[i];
	struct bytes g = d->groups.name[f->alias - 1];
	const uint32_t *v = (const uint32_t *)(const void *)g.p;
	for (uint32_t k = 0; k < g.n / sizeof(*v); k++) {
		uint32_t t = d->name_tensor[v[k]];
		uint64_t cost = 1ull + s->tensor_first[t + 1] - s->tensor_first[t];
		if (!box_work_take(&d->work, cost))
			return d->work.cancelled
				       ? stopped(d)
				       : reject_set(d->why, RULE_LIMIT_WORK, "", "aliases");
		if (!tensor_like(&s->tensors[t], &s->tensors[f->tensor], true) ||
		    !has_twin(s, f, t))
			return fail_frag(d, RULE_STORED_ALIAS, i, "aliases");
	}
	return true;
}

static int name_cmp(const void *x, const void *y, void *arg)
{
	(void)arg;
	return bytes_cmp(*(const struct bytes *)x, *(const struct bytes *)y);
}

static bool resolve_groups(struct reader *d)
{
	struct stored *s = d->s;
	for (uint32_t g = 1; g < s->n_aliases; g++) {
		struct alias *a = &s->aliases[g];
		const uint32_t *v = (const uint32_t *)(const void *)d->groups.name[g - 1].p;
		struct bytes *names = arena_alloc(&s->mem, a->n * sizeof(*names));
		if (!names)
			return no_memory(d);
		for (uint32_t i = 0; i < a->n; i++)
			names[i] = d->names.name[v[i]];
		if (!stop_sort(names, a->n, sizeof(*names), name_cmp, NULL, d->lim.cancel))
			return sort_fail(d);
		a->names = names;
	}
	return true;
}

static bool check_all(struct reader *d)
{
	struct stored *s = d->s;
	if (!is_under(s->manifest_key, s->group_id, "/manifest", true))
		return reject_set(d->why, RULE_STORED_MANIFEST_KEY, "manifest_key", "%s",
				  rule_text(RULE_STORED_MANIFEST_KEY));
	if (!check_tensors(d))
		return false;
	for (uint32_t i = 0; i < s->n_frags; i++)
		if (!check_frag(d, i) || !go(d, i))
			return false;
	AUTO_FREE uint32_t *order = take(d, s->n_frags, sizeof(*order));
	AUTO_FREE const uint64_t **boxes = take(d, s->n_frags, sizeof(*boxes));
	if (!order || !boxes)
		return false;
	if (!check_ids(d, order) || !group_by_tensor(d))
		return false;
	for (uint32_t t = 0; t < s->n_tensors; t++)
		if (!check_tensor(d, s->by_name[t], order, boxes))
			return false;
	for (uint32_t i = 0; i < s->n_frags; i++)
		if (s->frags[i].alias && !check_twins(d, i))
			return false;
	for (uint32_t i = 0; i < s->n_frags; i++)
		order[i] = i;
	return check_objects(d, order) && resolve_groups(d);
}

/* ---- text ---- */

static void frag_text(const struct stored *s, const struct stored_frag *f, struct text_out *o)
{
	const struct alias *a = &s->aliases[f->alias];
	uint32_t n = s->tensors[f->tensor].n_dims;
	text_lit(o, "{\"aliases\":[");
	for (uint32_t i = 0; i < a->n; i++) {
		if (i)
			text_lit(o, ",");
		text_str(o, a->names[i]);
	}
	text_lit(o, "],\"fragment_id\":");
	text_str(o, f->id);
	text_lit(o, ",\"global_offset\":");
	text_u64s(o, f->box, n);
	text_lit(o, ",\"local_shape\":");
	text_u64s(o, f->box + n, n);
	text_lit(o, ",\"nbytes\":");
	text_u64(o, f->nbytes);
	text_lit(o, ",\"object_key\":");
	text_str(o, f->object_key);
	text_lit(o, ",\"object_offset\":");
	text_u64(o, f->object_offset);
	text_lit(o, ",\"tensor_id\":");
	text_str(o, s->tensors[f->tensor].id);
	text_lit(o, "}");
}

void stored_text(const struct stored *s, struct text_out *o)
{
	text_lit(o, "{\"created_at\":");
	text_str(o, s->created_at);
	text_lit(o, ",\"fragments\":[");
	for (uint32_t i = 0; i < s->n_frags && !o->ended; i++) {
		if (i)
			text_lit(o, ",");
		frag_text(s, &s->frags[i], o);
	}
	text_lit(o, "],\"group_id\":");
	text_str(o, s->group_id);
	text_lit(o, ",\"manifest_key\":");
	text_str(o, s->manifest_key);
	text_lit(o, ",\"namespace\":");
	text_str(o, s->ns);
	text_lit(o, ",\"resource_id\":");
	text_str(o, s->resource_id);
	text_lit(o, ",\"resource_kind\":\"model_weight\",\"revision\":");
	text_str(o, s->revision);
	text_lit(o, ",\"tensors\":[");
	for (uint32_t i = 0; i < s->n_tensors && !o->ended; i++) {
		if (i)
			text_lit(o, ",");
		place_tensor_text(&s->tensors[i], o);
	}
	text_lit(o, "],\"weight_generation\":");
	text_u64(o, s->generation);
	text_lit(o, "}");
}

static bool digest(struct reader *d)
{
	struct sha sha = { 0 };
	AUTO_FREE struct text_out *o = malloc(sizeof(*o));
	if (!o || sha_init(&sha) != ERR_NONE)
		return no_memory(d);
	text_init(o, &sha, true);
	o->cancel = d->lim.cancel;
	stored_text(d->s, o);
	bool whole = text_end(o);
	d->s->text_bytes = text_bytes(o);
	sha_hex(&sha, d->s->digest);
	sha_fini(&sha);
	return whole || stopped(d);
}

static void reader_free(void *p)
{
	struct reader *d = p;
	arena_fini(&d->mem);
	names_fini(&d->names);
	names_fini(&d->groups);
	box_join_fini(&d->join);
	free(d->list);
	free(d->name_tensor);
	stored_free(d->s);
	free(d);
}

static struct reader *reader_new(const struct place_limits *lim, struct reject *why)
{
	struct reader *d = calloc(1, sizeof(*d));
	struct stored *s = calloc(1, sizeof(*s));
	if (!d || !s) {
		free(d);
		free(s);
		return NULL;
	}
	d->s = s;
	d->why = why;
	d->lim = *lim;
	d->lim.json.cancel = lim->cancel;
	s->mem = d->mem = ARENA_INIT(lim->memory);
	d->work = (struct box_work){ .left = lim->work,
				     .look = lim->work,
				     .cancel = lim->cancel,
				     .memory = lim->memory };
	return d;
}

enum err stored_read(struct bytes in, const struct place_limits *lim, struct reject *why,
		     struct stored **out)
{
	struct reader *d = reader_new(lim, why);
	*why = (struct reject){ 0 };
	if (!d)
		return ERR_NO_MEMORY;
	bool ok = grow(d, &d->s->aliases, &d->cap_aliases, 0, sizeof(*d->s->aliases));
	if (ok && d->s->aliases)
		d->s->aliases[d->s->n_aliases++] = (struct alias){ 0 };
	ok = ok && read_text(d, in) && check_all(d) && digest(d);
	if (ok)
		*out = TAKE(d->s);
	left_put(ok ? NULL : lim->left, reader_free, d);
	return rule_err(why->rule);
}

size_t stored_bytes(const struct stored *s)
{
	return sizeof(*s) + s->mem.held + s->n_tensors * (sizeof(*s->tensors) + 8) +
	       s->n_frags * (sizeof(*s->frags) + 4) + s->n_aliases * sizeof(*s->aliases);
}

void stored_free(struct stored *s)
{
	if (!s)
		return;
	arena_fini(&s->mem);
	free(s->tensors);
	free(s->frags);
	free(s->aliases);
	free(s->by_name);
	free(s->by_tensor);
	free(s->tensor_first);
	free(s);
}

uint32_t stored_find_tensor(const struct stored *s, struct bytes id)
{
	for (uint32_t lo = 0, hi = s->n_tensors; lo < hi;) {
		uint32_t mid = lo + (hi - lo) / 2;
		int c = bytes_cmp(s->tensors[s->by_name[mid]].id, id);
		if (c == 0)
			return s->by_name[mid];
		*(c < 0 ? &lo : &hi) = c < 0 ? mid + 1 : mid;
	}
	return UINT32_MAX;
}
