/* SPDX-License-Identifier: Apache-2.0 */
/* Order of checks: text and fields; each binding by itself; identity; the set of participants;
 * fragments against the placement; ranges against each other. */
#include "reshard/bind.h"

#include <stdio.h>

#include "reshard/names.h"

struct reader {
	struct json_in in;
	struct bindings *out;
	const struct place *p;
	struct reject *why;
	struct place_limits lim;
	uint32_t cap;
};

static bool no_memory(struct reader *d)
{
	return reject_set(d->why, RULE_LIMIT_MEMORY, "", "no memory within the limit");
}

static bool stopped(struct reader *d)
{
	return reject_set(d->why, RULE_PLAN_CANCELLED, "", "stopped while bindings were read");
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

static bool fail(struct reader *d, enum rule r, uint32_t b, const char *field)
{
	char path[96];
	snprintf(path, sizeof(path), "bindings[%u].%s", b, field);
	return reject_set(d->why, r, path, "%s", rule_text(r));
}

static bool fail_frag(struct reader *d, enum rule r, uint32_t b, uint32_t i, const char *field)
{
	char path[96];
	snprintf(path, sizeof(path), "bindings[%u].fragments[%u].%s", b, i, field);
	return reject_set(d->why, r, path, "%s", rule_text(r));
}

static bool text(struct reader *d, struct bytes *out)
{
	struct bytes b;
	if (!json_in_text(&d->in, &b))
		return false;
	uint8_t *p = arena_alloc(&d->out->mem, b.n);
	if (!p)
		return no_memory(d);
	memcpy(p, b.p, b.n);
	*out = BYTES(p, b.n);
	return true;
}

static bool grow(struct reader *d, void *list, uint32_t *cap, uint32_t n, size_t each)
{
	void *old, *q;
	if (n < *cap)
		return true;
	uint32_t want = *cap ? *cap + *cap / 2 : 16;
	memcpy(&old, list, sizeof(old));
	q = n < 1u << 30 && want * each <= d->lim.memory ? realloc(old, want * each) : NULL;
	if (!q)
		return no_memory(d);
	memcpy(list, &q, sizeof(q));
	*cap = want;
	return true;
}

static bool u64s(struct reader *d, uint64_t **out, uint32_t *n)
{
	uint64_t v[BOX_DIMS_MAX];
	struct json_arr a;
	*n = 0;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a)) {
		if (*n == BOX_DIMS_MAX)
			return json_in_fail(&d->in, RULE_LIMIT_DIMS, "at most %u",
					    BOX_DIMS_MAX);
		if (!json_in_u64(&d->in, &v[(*n)++]))
			return false;
	}
	*out = arena_alloc(&d->out->mem, MAX_OF(*n, 1) * sizeof(**out));
	if (!*out)
		return no_memory(d);
	memcpy(*out, v, *n * sizeof(**out));
	return a.whole;
}

static bool frag_field(struct reader *d, int f, struct bound_frag *o)
{
	struct json_in *r = &d->in;
	switch (f) {
	case 0:
		return json_in_u64(r, &o->address);
	case 1:
		return text(d, &o->device);
	case 2:
		return text(d, &o->endpoint);
	case 3:
		return text(d, &o->id);
	case 4:
		return json_in_u64(r, &o->itemsize) &&
		       (o->itemsize ||
			json_in_fail(r, RULE_JSON_INTEGER_RANGE, "0; at least 1"));
	case 5:
		return u64s(d, &o->shape, &o->n_dims);
	case 6:
		return json_in_u64(r, &o->nbytes) &&
		       (o->nbytes || json_in_fail(r, RULE_JSON_INTEGER_RANGE, "0; at least 1"));
	case 7:
		return text(d, &o->place_id);
	case 8:
		return json_in_u64(r, &o->storage_address);
	case 9:
		return json_in_u64(r, &o->storage_nbytes);
	case 10:
		return json_in_u64(r, &o->storage_offset);
	case 11:
		return u64s(d, &o->strides, &o->n_strides);
	default:
		return text(d, &o->worker);
	}
}

static bool read_frag(struct reader *d, struct bound_frag *out)
{
	static const struct json_field fields[] = {
		JSON_FIELD("address"),
		JSON_FIELD("device"),
		JSON_FIELD("endpoint"),
		JSON_FIELD("fragment_id"),
		JSON_FIELD("itemsize"),
		JSON_FIELD("local_shape"),
		JSON_FIELD("nbytes"),
		JSON_FIELD("placement_fragment_id"),
		JSON_FIELD("storage_address"),
		JSON_FIELD("storage_nbytes"),
		JSON_FIELD("storage_offset_bytes"),
		JSON_FIELD("strides_bytes"),
		JSON_FIELD("worker_id"),
	};
	struct json_obj o;
	*out = (struct bound_frag){ 0 };
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!frag_field(d, f, out))
			return false;
	return o.whole;
}

static bool read_frags(struct reader *d, struct binding *b)
{
	struct json_arr a;
	uint32_t cap = 0;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a)) {
		if (!grow(d, &b->frags, &cap, b->n_frags, sizeof(*b->frags)) ||
		    !read_frag(d, &b->frags[b->n_frags]))
			return false;
		b->n_frags++;
	}
	return a.whole;
}

static bool binding_field(struct reader *d, int f, struct binding *b)
{
	switch (f) {
	case 0:
		return read_frags(d, b);
	case 1:
		return json_in_u64(&d->in, &b->generation);
	case 2:
		return text(d, &b->instance);
	case 3:
		return text(d, &b->lease);
	case 4:
		return text(d, &b->participant);
	case 5:
		return text(d, &b->digest);
	case 6:
		return text(d, &b->placement_id);
	case 7:
		return text(d, &b->resource_id);
	default:
		return text(d, &b->revision);
	}
}

static bool read_binding(struct reader *d)
{
	static const struct json_field fields[] = {
		JSON_FIELD("fragments"),      JSON_FIELD("generation"),
		JSON_FIELD("instance_id"),    JSON_FIELD("lease_id"),
		JSON_FIELD("participant_id"), JSON_FIELD("placement_digest"),
		JSON_FIELD("placement_id"),   JSON_FIELD("resource_id"),
		JSON_FIELD("revision"),
	};
	struct json_obj o;
	if (!grow(d, &d->out->b, &d->cap, d->out->n, sizeof(*d->out->b)))
		return false;
	struct binding *b = &d->out->b[d->out->n++];
	*b = (struct binding){ 0 };
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!binding_field(d, f, b))
			return false;
	return o.whole;
}

static bool read_list(struct reader *d)
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!read_binding(d))
			return false;
	return a.whole && json_in_close(&d->in);
}

static bool read_text(struct reader *d, struct bytes in)
{
	struct reject other = { 0 };
	struct json_in r;
	if (json_in_open(&d->in, in, &d->lim.json, &d->out->mem, d->why) && read_list(d))
		return true;
	if (json_in_text_rule(d->why->rule) ||
	    !json_in_open(&r, in, &d->lim.json, &d->out->mem, &other))
		return false;
	if (!json_in_skip(&r) || !json_in_close(&r))
		*d->why = other;
	return false;
}

/* ---- each by itself ---- */

static bool is_digest(struct bytes b)
{
	if (b.n != SHA_HEX)
		return false;
	for (size_t i = 0; i < b.n; i++)
		if (!(b.p[i] >= '0' && b.p[i] <= '9') && !(b.p[i] >= 'a' && b.p[i] <= 'f'))
			return false;
	return true;
}

/* Row-major strides where an extent is 1. False: they do not fit 64 bits. */
static bool normalise(struct bound_frag *f)
{
	uint64_t stride = f->itemsize;
	for (uint32_t d = f->n_dims; d-- > 0;) {
		if (f->shape[d] == 1)
			f->strides[d] = stride;
		if (__builtin_mul_overflow(stride, f->shape[d], &stride))
			return false;
	}
	return true;
}

static enum rule range_rule(const struct bound_frag *f, const char **field)
{
	uint64_t end;
	*field = "address";
	if (!f->address || !f->storage_address) {
		*field = f->address ? "storage_address" : "address";
		return RULE_BINDING_ADDRESS;
	}
	if (__builtin_add_overflow(f->address, f->nbytes, &end) ||
	    __builtin_add_overflow(f->storage_address, f->storage_nbytes, &end))
		return RULE_BINDING_ADDRESS_RANGE;
	*field = "strides_bytes";
	if (f->n_strides != f->n_dims)
		return RULE_BINDING_STRIDE_COUNT;
	for (uint32_t d = 0; d < f->n_dims; d++)
		if (f->shape[d] > 1 && f->strides[d] == 0)
			return RULE_BINDING_STRIDE_ZERO;
	*field = "storage_offset_bytes";
	if (__builtin_add_overflow(f->storage_address, f->storage_offset, &end) ||
	    end != f->address)
		return RULE_BINDING_STORAGE_OFFSET;
	if (f->storage_offset > f->storage_nbytes ||
	    f->nbytes > f->storage_nbytes - f->storage_offset)
		return RULE_BINDING_STORAGE_BOUNDS;
	return RULE_NONE;
}

static struct bytes place_id_of(const void *ctx, uint32_t i)
{
	return ((const struct bound_frag *)ctx)[i].place_id;
}

static struct bytes runtime_id_of(const void *ctx, uint32_t i)
{
	return ((const struct bound_frag *)ctx)[i].id;
}

static bool check_twice(struct reader *d, uint32_t k, bool runtime)
{
	const struct binding *b = &d->out->b[k];
	struct bytes (*of)(const void *, uint32_t) = runtime ? runtime_id_of : place_id_of;
	AUTO_FREE uint32_t *order = malloc(MAX_OF(b->n_frags, 1) * sizeof(*order));
	if (!order || !names_sort(of, b->frags, b->n_frags, order, d->lim.cancel))
		return sort_fail(d);
	for (uint32_t i = 1; i < b->n_frags; i++)
		if (bytes_eq(of(b->frags, order[i - 1]), of(b->frags, order[i])))
			return fail_frag(d, RULE_BINDING_DUPLICATE_ID, k, order[i],
					 runtime ? "fragment_id" : "placement_fragment_id");
	return true;
}

static bool check_one(struct reader *d, uint32_t k)
{
	struct binding *b = &d->out->b[k];
	const char *field;
	if (!is_digest(b->digest))
		return fail(d, RULE_BINDING_DIGEST_FORMAT, k, "placement_digest");
	for (uint32_t i = 0; i < b->n_frags; i++) {
		enum rule r = range_rule(&b->frags[i], &field);
		if (r != RULE_NONE)
			return fail_frag(d, r, k, i, field);
		if (!normalise(&b->frags[i]))
			return fail_frag(d, RULE_BINDING_SHAPE, k, i, "local_shape");
	}
	return check_twice(d, k, false) && check_twice(d, k, true);
}

/* ---- against the placement ---- */

static bool check_identity(struct reader *d, uint32_t k)
{
	const struct binding *b = &d->out->b[k];
	const struct place *p = d->p;
	if (!bytes_eq(b->resource_id, p->resource_id))
		return fail(d, RULE_BINDING_IDENTITY, k, "resource_id");
	if (!bytes_eq(b->revision, p->revision))
		return fail(d, RULE_BINDING_IDENTITY, k, "revision");
	if (!bytes_eq(b->placement_id, BYTES(p->id, DERIVED_ID_LEN)))
		return fail(d, RULE_BINDING_IDENTITY, k, "placement_id");
	return bytes_eq(b->digest, BYTES(p->digest, SHA_HEX)) ||
	       fail(d, RULE_BINDING_IDENTITY, k, "placement_digest");
}

static bool check_set(struct reader *d)
{
	const struct place *p = d->p;
	AUTO_FREE bool *bound = calloc(p->n_parts, sizeof(bool));
	if (!bound)
		return no_memory(d);
	for (uint32_t k = 0; k < d->out->n; k++) {
		struct binding *b = &d->out->b[k];
		b->part = place_find_part(p, b->participant);
		if (b->part == UINT32_MAX || bound[b->part])
			return fail(d, RULE_BINDING_PARTICIPANTS, k, "participant_id");
		bound[b->part] = true;
	}
	for (uint32_t i = 0; i < p->n_parts; i++)
		if (p->parts[i].n && !bound[i])
			return reject_set(d->why, RULE_BINDING_PARTICIPANTS, "bindings",
					  "participant %.*s has none",
					  (int)MIN_OF(p->parts[i].id.n, 100),
					  (const char *)p->parts[i].id.p);
	return true;
}

static enum rule match_rule(const struct place *p, const struct bound_frag *f,
			    const char **field)
{
	const struct frag *g = &p->frags[f->frag];
	uint64_t stride = p->tensors[g->tensor].itemsize;
	*field = "nbytes";
	if (f->nbytes != g->nbytes)
		return RULE_BINDING_NBYTES;
	*field = "local_shape";
	if (f->n_dims != g->n_dims ||
	    memcmp(f->shape, g->box + g->n_dims, g->n_dims * sizeof(*f->shape)) != 0)
		return RULE_BINDING_SHAPE;
	*field = "itemsize";
	if (f->itemsize != stride)
		return RULE_BINDING_ITEMSIZE;
	*field = "strides_bytes";
	for (uint32_t d = g->n_dims; d-- > 0; stride *= f->shape[d])
		if (f->strides[d] != stride)
			return RULE_BINDING_STRIDES;
	return RULE_NONE;
}

static bool check_frags(struct reader *d, uint32_t k)
{
	struct binding *b = &d->out->b[k];
	const char *field;
	for (uint32_t i = 0; i < b->n_frags; i++) {
		struct bound_frag *f = &b->frags[i];
		if (!go(d, i))
			return false;
		f->frag = place_find_frag(d->p, f->place_id);
		if (f->frag == UINT32_MAX || d->p->frags[f->frag].part != b->part)
			return fail_frag(d, RULE_BINDING_FRAGMENT_UNKNOWN, k, i,
					 "placement_fragment_id");
	}
	/* none twice, each of the part: as many as it has are all of them */
	if (b->n_frags != d->p->parts[b->part].n)
		return fail(d, RULE_BINDING_FRAGMENT_MISSING, k, "fragments");
	for (uint32_t i = 0; i < b->n_frags; i++) {
		enum rule r = match_rule(d->p, &b->frags[i], &field);
		if (r != RULE_NONE)
			return fail_frag(d, r, k, i, field);
	}
	return true;
}

/* ---- against each other ---- */

struct range {
	const struct binding *b;
	const struct bound_frag *f;
	uint64_t lo, n;
};

static int space_cmp(const struct range *x, const struct range *y)
{
	int c = bytes_cmp(x->b->instance, y->b->instance);
	if (!c)
		c = bytes_cmp(x->f->worker, y->f->worker);
	return c ? c : bytes_cmp(x->f->device, y->f->device);
}

static int range_cmp(const void *a, const void *b, void *arg)
{
	(void)arg;
	const struct range *x = a, *y = b;
	int c = space_cmp(x, y);
	if (c)
		return c;
	if (x->lo != y->lo)
		return x->lo < y->lo ? -1 : 1;
	return (x->n < y->n) - (x->n > y->n); /* the longer first */
}

/* One memory under several names: equal ranges and boxes, one alias group, like tensors. */
static bool is_alias(const struct place *p, const struct range *x, const struct range *y)
{
	const struct frag *a = &p->frags[x->f->frag], *b = &p->frags[y->f->frag];
	const struct tensor *s = &p->tensors[a->tensor], *t = &p->tensors[b->tensor];
	if (x->lo != y->lo || x->n != y->n || !a->alias || a->alias != b->alias ||
	    a->n_dims != b->n_dims || box_cmp(a->box, b->box, a->n_dims) != 0)
		return false;
	for (int k = 0; k < AX_N; k++)
		if (s->axes[k].sem != t->axes[k].sem || s->axes[k].dim != t->axes[k].dim)
			return false;
	return s->itemsize == t->itemsize && s->has_layer == t->has_layer &&
	       s->layer == t->layer && s->has_expert == t->has_expert &&
	       s->expert == t->expert && bytes_eq(s->dtype, t->dtype) &&
	       bytes_eq(s->layout, t->layout) &&
	       memcmp(s->shape, t->shape, s->n_dims * sizeof(*s->shape)) == 0;
}

static bool fail_range(struct reader *d, enum rule r, const struct range *x, const char *field)
{
	return fail_frag(d, r, (uint32_t)(x->b - d->out->b), (uint32_t)(x->f - x->b->frags),
			 field);
}

/* Sorted: each against the one that reaches farthest before it. Ranges that pass are disjoint from
 * it or equal to it, so that is enough. */
static bool check_ranges(struct reader *d, struct range *v, size_t n, bool storage)
{
	if (!stop_sort(v, n, sizeof(*v), range_cmp, NULL, d->lim.cancel))
		return sort_fail(d);
	for (size_t i = 1; i < n; i++) {
		if (!go(d, i))
			return false;
		const struct range *x = &v[i - 1], *y = &v[i];
		if (space_cmp(x, y) != 0 || y->lo - x->lo >= x->n)
			continue;
		if (storage ? x->lo == y->lo && x->n == y->n : is_alias(d->p, x, y))
			continue;
		return storage ? fail_range(d, RULE_BINDING_STORAGE_OVERLAP, y,
					    "storage_address")
			       : fail_range(d, RULE_BINDING_OVERLAP, y, "address");
	}
	return true;
}

static bool check_memory(struct reader *d)
{
	size_t n = 0, at = 0;
	for (uint32_t k = 0; k < d->out->n; k++)
		n += d->out->b[k].n_frags;
	AUTO_FREE struct range *v = malloc(MAX_OF(n, 1) * sizeof(*v));
	if (!v)
		return no_memory(d);
	for (int storage = 0; storage < 2; storage++) {
		at = 0;
		for (uint32_t k = 0; k < d->out->n; k++)
			for (uint32_t i = 0; i < d->out->b[k].n_frags; i++) {
				const struct bound_frag *f = &d->out->b[k].frags[i];
				v[at++] = (struct range){
					&d->out->b[k], f,
					storage ? f->storage_address : f->address,
					storage ? f->storage_nbytes : f->nbytes
				};
			}
		if (!check_ranges(d, v, n, storage))
			return false;
	}
	return true;
}

static bool check(struct reader *d)
{
	for (uint32_t k = 0; k < d->out->n; k++)
		if (!check_one(d, k))
			return false;
	for (uint32_t k = 0; k < d->out->n; k++)
		if (!check_identity(d, k))
			return false;
	if (!check_set(d))
		return false;
	for (uint32_t k = 0; k < d->out->n; k++)
		if (!check_frags(d, k))
			return false;
	return check_memory(d);
}

enum err bind_read(struct bytes in, const struct place *p, const struct place_limits *lim,
		   struct reject *why, struct bindings **out)
{
	struct reader d = { .p = p, .why = why, .lim = *lim, .out = calloc(1, sizeof(*d.out)) };
	*why = (struct reject){ 0 };
	d.lim.json.cancel = lim->cancel;
	if (!d.out)
		return ERR_NO_MEMORY;
	d.out->mem = ARENA_INIT(lim->memory);
	if (read_text(&d, in) && check(&d))
		*out = d.out;
	else
		bind_free(d.out);
	return rule_err(why->rule);
}

void bind_free(struct bindings *b)
{
	if (!b)
		return;
	for (uint32_t i = 0; i < b->n; i++)
		free(b->b[i].frags);
	free(b->b);
	arena_fini(&b->mem);
	free(b);
}
