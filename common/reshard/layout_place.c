/* SPDX-License-Identifier: Apache-2.0 */
/* A layout's placement: each tensor's rule, then what each rank holds. */
#include "reshard/layout.h"

#include <stdio.h>

#include "reshard/place_priv.h"

/* A tensor with what its rule says of it. */
struct ruled {
	const struct st_tensor *t;
	const struct layout_rule *rule;
	uint64_t layer, expert; /* UINT64_MAX: none */
};

struct making {
	const struct layout *l;
	struct place_new *b;
	struct reject *why;
	struct place_limits lim;
	struct box_work work;
	struct ruled *tensors;
	uint32_t n_tensors;
};

/* Share i of n: where it begins, how long it is. The first total % n are one longer. */
static void share(uint64_t total, uint64_t n, uint64_t i, uint64_t *begin, uint64_t *extent)
{
	uint64_t base = total / n, extra = total % n;
	*begin = i * base + MIN_OF(i, extra);
	*extent = base + (i < extra);
}

/* The block that holds number v of `of`; n: none. */
static uint64_t block_of(uint64_t of, uint64_t n, uint64_t v)
{
	uint64_t base = of / n, extra = of % n, long_ones = extra * (base + 1);
	if (v >= of)
		return n;
	if (v < long_ones)
		return v / (base + 1);
	return extra + (v - long_ones) / base; /* base is not 0: there is such a v */
}

/* ---- rules ---- */

static bool work(struct making *m, uint64_t n)
{
	if (box_work_take(&m->work, n))
		return true;
	return reject_set(m->why, m->work.cancelled ? RULE_PLAN_CANCELLED : RULE_LIMIT_WORK, "",
			  "more tensors, rules and ranks than the work budget");
}

static bool rule_of(struct making *m, struct ruled *x, bool *used)
{
	const struct layout *l = m->l;
	for (uint32_t i = 0; i < l->n_rules; i++) {
		if (!work(m, 1 + x->t->name.n / 8))
			return false;
		if (!layout_match(l->rules[i].match, x->t->name, &x->layer, &x->expert))
			continue;
		x->rule = &l->rules[i];
		used[i] = true;
		return true;
	}
	return reject_set(m->why, RULE_LAYOUT_MATCH, "rules", "tensor %.*s matches none",
			  (int)MIN_OF(x->t->name.n, 120), (const char *)x->t->name.p);
}

static bool rules(struct making *m, const struct st_header *const *headers, uint32_t n)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < n; i++)
		total += headers[i]->n_tensors;
	AUTO_FREE bool *used = calloc(MAX_OF(m->l->n_rules, 1), sizeof(*used));
	if (total >= 1u << 31)
		return reject_set(m->why, RULE_LIMIT_COUNT, "files", "too many tensors");
	m->tensors = place_keep(m->b, total * sizeof(*m->tensors));
	if (!m->tensors || !used)
		return place_no_memory(m->b);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < headers[i]->n_tensors; k++) {
			struct ruled *x = &m->tensors[m->n_tensors++];
			*x = (struct ruled){ .t = &headers[i]->tensors[k] };
			if (!rule_of(m, x, used))
				return false;
		}
	for (uint32_t i = 0; i < m->l->n_rules; i++)
		if (!used[i]) {
			char path[32];
			snprintf(path, sizeof(path), "rules[%u].match", i);
			return reject_set(m->why, RULE_LAYOUT_MATCH, path,
					  "no tensor that an earlier rule left matches it");
		}
	return true;
}

/* ---- records ---- */

static bool put_tensor(struct making *m, const struct ruled *x)
{
	uint64_t dims[AX_N];
	struct tensor t = { .id = x->t->name,
			    .dtype = BYTES_STR(x->t->dtype),
			    .layout = m->l->fingerprint,
			    .shape = x->t->shape,
			    .shard_dims = dims,
			    .itemsize = x->t->itemsize,
			    .n_dims = x->t->n_dims };
	t.has_layer = x->layer != UINT64_MAX;
	t.layer = t.has_layer ? x->layer : 0;
	t.has_expert = x->expert != UINT64_MAX;
	t.expert = t.has_expert ? x->expert : 0;
	for (int k = 0; k < AX_N; k++) {
		const struct layout_axis *a = &x->rule->axes[k];
		t.axes[k] =
			(struct axis){ .sem = a->sem, .dim = a->sem == SEM_SPLIT ? a->n : 0 };
		if (a->sem == SEM_SPLIT)
			dims[t.n_shard++] = a->n;
	}
	/* two at most: ep's and tp's */
	if (t.n_shard == 2 && dims[0] > dims[1]) {
		uint64_t d = dims[0];
		dims[0] = dims[1];
		dims[1] = d;
	}
	return place_new_tensor(m->b, &t);
}

static bool holds(const struct making *m, const struct ruled *x, const struct rank *r)
{
	for (int k = 0; k < AX_N; k++) {
		const struct layout_axis *a = &x->rule->axes[k];
		uint64_t v = a->by == 'l' ? x->layer : x->expert;
		if (a->by == 'a' ? r->c[k] != a->n
		    : a->by	 ? r->c[k] != block_of(a->n, m->l->size[k], v)
				 : false)
			return false;
	}
	return true;
}

/* The rank's box. False: it has none, for there are more ranks than rows. */
static bool box_of(const struct making *m, const struct ruled *x, const struct rank *r,
		   uint64_t *box, uint64_t *nbytes)
{
	uint32_t n = x->t->n_dims;
	memset(box, 0, n * sizeof(*box));
	memcpy(box + n, x->t->shape, n * sizeof(*box));
	for (int k = 0; k < AX_N; k++) {
		const struct layout_axis *a = &x->rule->axes[k];
		if (a->sem != SEM_SPLIT || a->n >= n || r->c[k] >= m->l->size[k])
			continue; /* refused by place_build, with its rule */
		share(x->t->shape[a->n], m->l->size[k], r->c[k], &box[a->n], &box[n + a->n]);
	}
	*nbytes = x->t->itemsize;
	for (uint32_t d = 0; d < n; d++)
		*nbytes *= box[n + d]; /* at most the tensor's bytes, which are in a file */
	return *nbytes > 0;
}

static bool put_part(struct making *m, const struct layout_member *q)
{
	uint64_t box[2 * BOX_DIMS_MAX], nbytes;
	if (!place_new_part(m->b, q->id, &q->rank))
		return false;
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct ruled *x = &m->tensors[i];
		if (!work(m, 1))
			return false;
		if (holds(m, x, &q->rank) && box_of(m, x, &q->rank, box, &nbytes) &&
		    !place_new_frag(m->b, BYTES(NULL, 0), x->t->name, box, x->t->n_dims, nbytes,
				    NULL, NULL, 0))
			return false;
	}
	return true;
}

static bool records(struct making *m)
{
	const struct layout *l = m->l;
	for (int k = 0; k < AX_N; k++)
		if (!l->size[k])
			return place_fail(m->b, RULE_TOPOLOGY_SIZE, "0; at least 1 is allowed",
					  "topology.%s_size", axis_names[k]);
	if (!place_new_ident(m->b, l->resource_id, l->revision, l->generation, l->set_id,
			     l->size))
		return false;
	for (uint32_t i = 0; i < l->n_members; i++)
		if (!place_new_member(m->b, l->members[i].id, &l->members[i].rank))
			return false;
	for (uint32_t i = 0; i < m->n_tensors; i++)
		if (!put_tensor(m, &m->tensors[i]) || !work(m, 1))
			return false;
	for (uint32_t i = 0; i < l->n_members; i++)
		if (!put_part(m, &l->members[i]))
			return false;
	return true;
}

/* Paths of refusals count tensors of all files; people know names. */
static void name_tensor(const struct making *m)
{
	unsigned i;
	char was[sizeof(m->why->text)];
	if (sscanf(m->why->path, "tensors[%u]", &i) != 1 || i >= m->n_tensors)
		return;
	const struct bytes name = m->tensors[i].t->name;
	snprintf(was, sizeof(was), "%s", m->why->text);
	snprintf(m->why->text, sizeof(m->why->text), "tensor %.*s: %.90s",
		 (int)MIN_OF(name.n, 80), (const char *)name.p, was);
}

enum err layout_place(const struct layout *l, const struct st_header *const *headers,
		      uint32_t n, const struct place_limits *lim, struct reject *why,
		      struct place **out)
{
	struct making m = { .l = l, .why = why, .lim = *lim };
	*why = (struct reject){ 0 };
	m.b = place_new_open(lim, why);
	if (!m.b)
		return ERR_NO_MEMORY;
	m.work = (struct box_work){ .left = lim->work,
				    .look = lim->work,
				    .cancel = lim->cancel };
	enum err e = rules(&m, headers, n) && records(&m) ? place_build(m.b, out)
							  : rule_err(why->rule);
	if (e)
		name_tensor(&m);
	free(m.tensors);
	place_new_free(m.b);
	return e;
}
