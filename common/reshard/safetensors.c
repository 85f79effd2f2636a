/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/safetensors.h"

#include "reshard/place_priv.h"

static const struct {
	const char *st, *name;
	uint32_t itemsize;
} dtypes[] = {
	{ "BF16", "bfloat16", 2 },
	{ "F16", "float16", 2 },
	{ "F32", "float32", 4 },
	{ "F64", "float64", 8 },
	{ "F8_E4M3", "float8_e4m3fn", 1 },
	{ "F8_E5M2", "float8_e5m2", 1 },
	{ "F8_E8M0", "float8_e8m0fnu", 1 },
	{ "I8", "int8", 1 },
	{ "I16", "int16", 2 },
	{ "I32", "int32", 4 },
	{ "I64", "int64", 8 },
	{ "U8", "uint8", 1 },
	{ "U16", "uint16", 2 },
	{ "U32", "uint32", 4 },
	{ "U64", "uint64", 8 },
	{ "BOOL", "bool", 1 },
	{ "C64", "complex64", 8 },
};

struct reader {
	struct json_in in;
	struct st_header *h;
	struct reject *why;
	struct place_limits lim;
	struct arena mem; /* strings with escapes */
	struct names names;
	uint32_t cap;
	size_t held;
};

uint64_t st_header_bytes(const uint8_t first[8])
{
	uint64_t n = 0;
	for (int i = 7; i >= 0; i--)
		n = n << 8 | first[i];
	return n >= 2 && n <= ST_HEADER_MAX ? n : 0;
}

static bool no_memory(struct reader *d)
{
	return reject_set(d->why, RULE_LIMIT_MEMORY, "", "no memory within the limit");
}

static bool room(struct reader *d)
{
	struct st_header *h = d->h;
	if (h->n_tensors < d->cap)
		return true;
	uint32_t want = d->cap ? d->cap + d->cap / 2 : 64;
	size_t more = (want - d->cap) * sizeof(*h->tensors);
	bool fits = d->held + h->mem.held + names_bytes(&d->names) + more <= d->lim.memory;
	struct st_tensor *q = fits ? realloc(h->tensors, want * sizeof(*q)) : NULL;
	if (!q)
		return no_memory(d);
	d->held += more;
	h->tensors = q;
	d->cap = want;
	return true;
}

static bool read_dtype(struct json_in *r, struct st_tensor *t)
{
	struct bytes s;
	if (!json_in_text(r, &s))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
		if (bytes_eq(s, BYTES_STR(dtypes[i].st))) {
			t->dtype = dtypes[i].name;
			t->itemsize = dtypes[i].itemsize;
			return true;
		}
	return json_in_fail(r, RULE_SAFETENSORS_TENSOR, "no such dtype: %.*s",
			    (int)MIN_OF(s.n, 32), (const char *)s.p);
}

static bool keep_shape(struct reader *d, struct st_tensor *t, const uint64_t *shape, uint32_t n)
{
	uint64_t *p = arena_alloc(&d->h->mem, MAX_OF(n, 1) * sizeof(*p));
	uint64_t bytes = t->itemsize;
	bool over = false;
	if (!p)
		return no_memory(d);
	p[0] = 1;
	for (uint32_t i = 0; i < n; i++) {
		p[i] = shape[i];
		over |= __builtin_mul_overflow(bytes, shape[i], &bytes);
	}
	t->shape = p;
	t->n_dims = (uint8_t)MAX_OF(n, 1);
	if (over || t->end < t->begin || t->end - t->begin != bytes)
		return json_in_fail(&d->in, RULE_SAFETENSORS_TENSOR,
				    "data_offsets [%llu, %llu]: not the bytes of its shape",
				    (unsigned long long)t->begin, (unsigned long long)t->end);
	return true;
}

static bool read_tensor(struct reader *d, struct bytes name)
{
	static const struct json_field fields[] = { JSON_FIELD("dtype"), JSON_FIELD("shape"),
						    JSON_FIELD("data_offsets") };
	struct json_obj o;
	uint64_t shape[BOX_DIMS_MAX], at[2] = { 0 };
	uint32_t n = 0, n_at = 0, before = d->names.n;
	if (!room(d))
		return false;
	uint32_t number = names_put(&d->names, name, &d->h->mem);
	if (number == NAMES_NONE)
		return no_memory(d);
	if (d->names.n == before)
		return json_in_fail(&d->in, RULE_JSON_DUPLICATE_KEY, "that tensor came before");
	struct st_tensor *t = &d->h->tensors[d->h->n_tensors];
	*t = (struct st_tensor){ .name = d->names.name[number] };
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (f == 0   ? !read_dtype(&d->in, t)
		    : f == 1 ? !place_read_u64s(&d->in, shape, BOX_DIMS_MAX, &n)
			     : !place_read_u64s(&d->in, at, 2, &n_at))
			return false;
	if (!o.whole)
		return false;
	if (n_at != 2)
		return json_in_fail(&d->in, RULE_SAFETENSORS_TENSOR,
				    "data_offsets: two numbers are needed");
	t->begin = at[0];
	t->end = at[1];
	d->h->n_tensors++;
	return keep_shape(d, t, shape, n);
}

static bool read_metadata(struct reader *d)
{
	struct json_arr m;
	struct bytes key, value;
	if (!json_in_map(&d->in, &m))
		return false;
	while (json_in_entry(&d->in, &m, &key))
		if (!json_in_string(&d->in, &value))
			return false;
	return m.whole;
}

static bool read_all(struct reader *d, struct bytes text)
{
	struct json_arr m;
	struct bytes key;
	bool meta = false;
	if (!json_in_open(&d->in, text, &d->lim.json, &d->mem, d->why))
		return false;
	if (text.n && text.p[0] != '{')
		return json_in_fail(&d->in, RULE_SAFETENSORS_HEADER, "it begins with no brace");
	if (!json_in_map(&d->in, &m))
		return false;
	while (json_in_entry(&d->in, &m, &key)) {
		if (!bytes_eq(key, BYTES_STR("__metadata__"))) {
			if (!read_tensor(d, key))
				return false;
		} else if (meta) {
			return json_in_fail(&d->in, RULE_JSON_DUPLICATE_KEY, "metadata again");
		} else {
			meta = true;
			if (!read_metadata(d))
				return false;
		}
		arena_clear(&d->mem);
	}
	return m.whole && json_in_close(&d->in);
}

static int begin_cmp(const void *a, const void *b, void *arg)
{
	const struct st_tensor *t = arg, *x = &t[*(const uint32_t *)a],
			       *y = &t[*(const uint32_t *)b];
	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

/* One after the other, from 0 to the file's end. */
static bool check_offsets(struct reader *d)
{
	const struct st_header *h = d->h;
	uint64_t at = 0;
	AUTO_FREE uint32_t *order = malloc(MAX_OF(h->n_tensors, 1) * sizeof(*order));
	if (!order)
		return no_memory(d);
	for (uint32_t i = 0; i < h->n_tensors; i++)
		order[i] = i;
	if (!stop_sort(order, h->n_tensors, sizeof(*order), begin_cmp, h->tensors,
		       d->lim.cancel))
		return stop_now(d->lim.cancel)
			       ? reject_set(d->why, RULE_PLAN_CANCELLED, "", "stopped")
			       : no_memory(d);
	for (uint32_t i = 0; i < h->n_tensors; i++) {
		const struct st_tensor *t = &h->tensors[order[i]];
		if (t->begin != at)
			return reject_set(d->why, RULE_SAFETENSORS_TENSOR, "",
					  "%.*s begins at %llu; the one before ends at %llu",
					  (int)MIN_OF(t->name.n, 80), (const char *)t->name.p,
					  (unsigned long long)t->begin, (unsigned long long)at);
		at = t->end;
	}
	return at == h->data_bytes ||
	       reject_set(d->why, RULE_SAFETENSORS_HEADER, "",
			  "the tensors have %llu bytes, the file %llu behind its header",
			  (unsigned long long)at, (unsigned long long)h->data_bytes);
}

static bool read_whole(struct reader *d, struct bytes text, uint64_t file_bytes)
{
	if (text.n > ST_HEADER_MAX || file_bytes < 8 + text.n)
		return reject_set(d->why, RULE_SAFETENSORS_HEADER, "",
				  "a header of %zu bytes in a file of %llu", text.n,
				  (unsigned long long)file_bytes);
	d->h->data_at = 8 + text.n;
	d->h->data_bytes = file_bytes - d->h->data_at;
	return read_all(d, text) && check_offsets(d);
}

enum err st_header_read(struct bytes text, uint64_t file_bytes, const struct place_limits *lim,
			struct reject *why, struct st_header **out)
{
	struct reader d = { .why = why, .lim = *lim, .h = calloc(1, sizeof(*d.h)) };
	*why = (struct reject){ 0 };
	if (!d.h)
		return ERR_NO_MEMORY;
	d.lim.json.cancel = lim->cancel;
	d.h->mem = d.mem = ARENA_INIT(lim->memory);
	bool ok = read_whole(&d, text, file_bytes);
	arena_fini(&d.mem);
	names_fini(&d.names);
	if (ok)
		*out = d.h;
	else
		st_header_free(d.h);
	return rule_err(why->rule);
}

void st_header_free(struct st_header *h)
{
	if (!h)
		return;
	free(h->tensors);
	arena_fini(&h->mem);
	free(h);
}
