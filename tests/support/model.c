/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/model.h"

#include <inttypes.h>
#include <stdio.h>

bool model_layout(const char *text, struct model_layout *l)
{
	*l = (struct model_layout){ .tp = 1, .pp = 1, .ep = 1, .dp = 1 };
	if (sscanf(text, "grid %" SCNu64 " %" SCNu64 " %" SCNu64, &l->tp, &l->pp, &l->ep) == 3)
		return true;
	l->wide = sscanf(text, "wide %" SCNu64 " %" SCNu64, &l->tp, &l->dp) == 2;
	l->pp = 1;
	l->ep = l->tp * l->dp;
	return l->wide;
}

const struct vec *model_find(const struct vec *models, const char *name)
{
	vec_each(m, vec_get(models, "models")) if (strcmp(vec_str(vec_get(m, "name")), name) ==
						   0) return m;
	return NULL;
}

/* Puts numbers for {l} and {e}. */
static struct bytes expand(struct bytes pattern, int64_t layer, int64_t expert, char out[256])
{
	size_t n = 0;
	for (size_t i = 0; i < pattern.n && n < 200; i++) {
		if (pattern.p[i] != '{') {
			out[n++] = (char)pattern.p[i];
			continue;
		}
		n += (size_t)snprintf(out + n, 256 - n, "%" PRId64,
				      pattern.p[i + 1] == 'l' ? layer : expert);
		i += 2;
	}
	return BYTES(out, n);
}

static void span(const struct vec *rule, const char *key, int64_t *lo, int64_t *hi)
{
	const struct vec *v = vec_get(rule, key);
	*lo = v ? (int64_t)v->kid->num : -1;
	*hi = v ? (int64_t)v->kid->next->num : -1;
}

void model_each(const struct vec *model,
		void (*fn)(void *arg, struct bytes name, const struct vec *rule, int64_t layer,
			   int64_t expert),
		void *arg)
{
	char name[256];
	int64_t l0, l1, e0, e1;
	vec_each(rule, vec_get(model, "tensor_rules"))
	{
		span(rule, "layers", &l0, &l1);
		span(rule, "experts", &e0, &e1);
		for (int64_t l = l0; l <= l1; l++)
			for (int64_t e = e0; e <= e1; e++)
				fn(arg, expand(vec_get(rule, "name")->str, l, e, name), rule, l,
				   e);
	}
}

struct laying {
	struct place_new *b;
	const struct vec *model;
	const struct model_layout *l;
	struct rank rank;
	uint64_t layers, experts;
	bool ok;
};

static void cut(uint64_t total, uint64_t count, uint64_t i, uint64_t *begin, uint64_t *extent)
{
	uint64_t base = total / count, extra = total % count;
	*begin = i * base + MIN_OF(i, extra);
	*extent = base + (i < extra);
}

static void put_axis(struct tensor *t, int kind, uint8_t sem, uint64_t dim, uint64_t *shard)
{
	t->axes[kind] = (struct axis){ sem, sem == SEM_SPLIT ? dim : 0 };
	if (sem == SEM_SPLIT)
		shard[t->n_shard++] = dim;
}

static void axes(const struct model_layout *l, const struct vec *rule, struct tensor *t,
		 uint64_t *shard)
{
	bool expert = vec_get(rule, "experts"), split = vec_get(rule, "tp_dim");
	if (l->dp > 1)
		put_axis(t, AX_DP, expert ? SEM_OWNERSHIP : SEM_REPLICATED, 0, shard);
	if (l->pp > 1)
		put_axis(t, AX_PP, SEM_OWNERSHIP, 0, shard);
	if (l->ep > 1 && (expert || !l->wide))
		put_axis(t, AX_EP, expert ? SEM_OWNERSHIP : SEM_REPLICATED, 0, shard);
	if (l->tp > 1)
		put_axis(t, AX_TP,
			 l->wide && expert ? SEM_OWNERSHIP
			 : split	   ? SEM_SPLIT
					   : SEM_REPLICATED,
			 vec_num(rule, "tp_dim", 0), shard);
}

static uint32_t shape_of(const struct vec *rule, uint64_t *shape)
{
	uint32_t n = 0;
	vec_each(v, vec_get(rule, "shape")) shape[n++] = v->num;
	return n;
}

static void put_tensor(void *arg, struct bytes name, const struct vec *rule, int64_t layer,
		       int64_t expert)
{
	struct laying *y = arg;
	uint64_t shape[8], shard[4];
	struct tensor t = { .id = name, .shape = shape, .shard_dims = shard };
	t.n_dims = (uint8_t)shape_of(rule, shape);
	t.dtype = vec_get(rule, "dtype")->str;
	t.layout = BYTES_STR("row-major:v1");
	t.itemsize = vec_num(rule, "itemsize", 0);
	t.has_layer = layer >= 0;
	t.layer = layer >= 0 ? (uint64_t)layer : 0;
	t.has_expert = expert >= 0;
	t.expert = expert >= 0 ? (uint64_t)expert : 0;
	axes(y->l, rule, &t, shard);
	y->ok = y->ok && place_new_tensor(y->b, &t);
}

static bool holds(const struct laying *y, const struct vec *rule, int64_t layer, int64_t expert)
{
	uint64_t begin, extent, stage = 0;
	if (layer < 0)
		stage = strcmp(vec_str(vec_get(rule, "place")), "last") == 0 ? y->l->pp - 1 : 0;
	for (uint64_t s = 0; layer >= 0 && s < y->l->pp; s++) {
		cut(y->layers, y->l->pp, s, &begin, &extent);
		if ((uint64_t)layer >= begin && (uint64_t)layer < begin + extent)
			stage = s;
	}
	if (y->l->pp > 1 && stage != y->rank.c[AX_PP])
		return false;
	if (expert < 0 || y->l->ep == 1)
		return true;
	cut(y->experts, y->l->ep, y->rank.c[AX_EP], &begin, &extent);
	return (uint64_t)expert >= begin && (uint64_t)expert < begin + extent;
}

static void put_frag(void *arg, struct bytes name, const struct vec *rule, int64_t layer,
		     int64_t expert)
{
	struct laying *y = arg;
	uint64_t box[16] = { 0 }, shape[8], nbytes = vec_num(rule, "itemsize", 0);
	uint32_t n = shape_of(rule, shape);
	bool whole = y->l->wide && vec_get(rule, "experts");
	if (!y->ok || !holds(y, rule, layer, expert))
		return;
	for (uint32_t d = 0; d < n; d++)
		box[n + d] = shape[d];
	if (vec_get(rule, "tp_dim") && y->l->tp > 1 && !whole) {
		uint64_t d = vec_num(rule, "tp_dim", 0);
		cut(shape[d], y->l->tp, y->rank.c[AX_TP], &box[d], &box[n + d]);
	}
	for (uint32_t d = 0; d < n; d++)
		nbytes *= box[n + d];
	y->ok = place_new_frag(y->b, (struct bytes){ 0 }, name, box, n, nbytes, NULL, NULL, 0);
}

static struct bytes rank_name(const struct model_layout *l, const struct rank *r, char out[64])
{
	int n = l->wide ? snprintf(out, 64, "r%04" PRIu64, r->c[AX_DP] * l->tp + r->c[AX_TP])
			: snprintf(out, 64, "p%02" PRIu64 "-e%03" PRIu64 "-t%02" PRIu64,
				   r->c[AX_PP], r->c[AX_EP], r->c[AX_TP]);
	return BYTES(out, n);
}

static void put_rank(struct laying *y)
{
	char name[64];
	struct bytes id = rank_name(y->l, &y->rank, name);
	y->ok = y->ok && place_new_member(y->b, id, &y->rank) &&
		place_new_part(y->b, id, &y->rank);
	if (y->ok)
		model_each(y->model, put_frag, y);
}

static void put_ranks(struct laying *y)
{
	const struct model_layout *l = y->l;
	for (uint64_t a = 0; a < (l->wide ? l->dp : l->pp); a++)
		for (uint64_t e = 0; e < (l->wide ? 1 : l->ep); e++)
			for (uint64_t t = 0; t < l->tp; t++) {
				y->rank = l->wide ? (struct rank){ { a, 0, a * l->tp + t, t } }
						  : (struct rank){ { 0, a, e, t } };
				put_rank(y);
			}
}

enum err model_place(const struct vec *model, const struct model_layout *l,
		     const struct place_limits *lim, struct reject *why, struct place **out)
{
	struct laying y = { .model = model, .l = l, .ok = true };
	char set[96];
	const uint64_t size[AX_N] = { l->dp, l->pp, l->ep, l->tp };
	int n = l->wide ? snprintf(set, sizeof(set),
				   "wide-tp%" PRIu64 "-dp%" PRIu64 "-ep%" PRIu64, l->tp, l->dp,
				   l->ep)
			: snprintf(set, sizeof(set),
				   "grid-tp%" PRIu64 "-pp%" PRIu64 "-ep%" PRIu64, l->tp, l->pp,
				   l->ep);
	*why = (struct reject){ 0 };
	y.b = place_new_open(lim, why);
	if (!y.b)
		return ERR_NO_MEMORY;
	y.layers = vec_num(model, "layers", 0);
	y.experts = vec_num(model, "experts", 0);
	y.ok = place_new_ident(y.b, vec_get(model, "name")->str, BYTES_STR("r1"), 1,
			       BYTES(set, n), size);
	if (y.ok)
		model_each(model, put_tensor, &y);
	put_ranks(&y);
	enum err e = y.ok ? place_build(y.b, out) : rule_err(why->rule);
	place_new_free(y.b);
	return e;
}
