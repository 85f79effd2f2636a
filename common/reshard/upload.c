/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/upload.h"

#include <stdio.h>

#include "reshard/plan_priv.h"

/* ---- ids and keys ---- */

/* As Python prints a tuple: (1, 2) and (3,). */
static void tuple_text(struct text_out *o, const uint64_t *v, uint32_t n)
{
	text_lit(o, "(");
	for (uint32_t i = 0; i < n; i++) {
		if (i)
			text_lit(o, ", ");
		text_u64(o, v[i]);
	}
	if (n == 1)
		text_lit(o, ",");
	text_lit(o, ")");
}

static void fragment_id(struct text_out *o, struct bytes tensor_id, const uint64_t *box,
			uint32_t n_dims, char out[UPLOAD_FRAGMENT_ID_LEN])
{
	char hex[SHA_HEX];
	for (size_t i = 0, n; i < tensor_id.n; i += n) {
		n = MIN_OF(tensor_id.n - i, TEXT_ROOM);
		text_raw(o, tensor_id.p + i, n);
	}
	text_lit(o, "|");
	tuple_text(o, box, n_dims);
	text_lit(o, "|");
	tuple_text(o, box + n_dims, n_dims);
	text_flush(o);
	sha_hex(o->sha, hex);
	memcpy(out, hex, UPLOAD_FRAGMENT_ID_LEN);
}

enum err upload_fragment_id(struct bytes tensor_id, const uint64_t *box, uint32_t n_dims,
			    char out[UPLOAD_FRAGMENT_ID_LEN])
{
	struct sha sha = { 0 };
	AUTO_FREE struct text_out *o = malloc(sizeof(*o));
	if (!o || sha_init(&sha) != ERR_NONE)
		return ERR_NO_MEMORY;
	text_init(o, &sha, true);
	fragment_id(o, tensor_id, box, n_dims, out);
	sha_fini(&sha);
	return ERR_NONE;
}

static size_t percent(struct bytes in, char *out)
{
	static const char hex[] = "0123456789ABCDEF";
	size_t n = 0;
	for (size_t i = 0; i < in.n; i++) {
		uint8_t c = in.p[i];
		bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
			     (c >= 'A' && c <= 'Z') || (c && strchr("._-~", c));
		if (plain) {
			out[n++] = (char)c;
			continue;
		}
		out[n++] = '%';
		out[n++] = hex[c >> 4];
		out[n++] = hex[c & 15];
	}
	return n;
}

static bool is_transaction(struct bytes t)
{
	if (t.n != 32)
		return false;
	for (size_t i = 0; i < t.n; i++)
		if (!(t.p[i] >= '0' && t.p[i] <= '9') && !(t.p[i] >= 'a' && t.p[i] <= 'f'))
			return false;
	return true;
}

static struct bytes trimmed(struct bytes p)
{
	while (p.n && p.p[0] == '/')
		p = BYTES(p.p + 1, p.n - 1);
	while (p.n && p.p[p.n - 1] == '/')
		p.n--;
	return p;
}

/* base, then /suffix if there is one. */
static enum err key(const struct upload_names *u, const char *suffix, char **out,
		    struct why *why)
{
	struct bytes prefix = trimmed(u->prefix.p ? u->prefix : BYTES_STR("weights"));
	struct bytes ns = u->ns.p ? u->ns : BYTES_STR("default");
	if (!prefix.n || !ns.n)
		return why_set(why, ERR_INVALID_PARAMS,
			       "%s: empty; at least one character other "
			       "than / is needed",
			       prefix.n ? "namespace" : "key_prefix");
	size_t cap =
		prefix.n + 3 * (ns.n + u->resource_id.n + u->revision.n) + strlen(suffix) + 32;
	char *k = malloc(cap);
	if (!k)
		return why_set(why, ERR_NO_MEMORY, "a key of %zu bytes", cap);
	size_t n = prefix.n;
	memcpy(k, prefix.p, n);
	const struct bytes parts[] = { ns, u->resource_id, u->revision };
	for (uint32_t i = 0; i < ARRAY_LEN(parts); i++) {
		k[n++] = '/';
		n += percent(parts[i], k + n);
	}
	snprintf(k + n, cap - n, "/%llu%s", (unsigned long long)u->generation, suffix);
	*out = k;
	return ERR_NONE;
}

enum err upload_base(const struct upload_names *n, char **out, struct why *why)
{
	return key(n, "", out, why);
}

enum err upload_manifest_key(const struct upload_names *n, char **out, struct why *why)
{
	return key(n, "/manifest", out, why);
}

/* A key that holds the transaction: "/before/TXN/after". */
static enum err txn_key(const struct upload_names *n, const char *before, const char *after,
			char **out, struct why *why)
{
	char suffix[128];
	if (!is_transaction(n->transaction))
		return why_set(why, ERR_INVALID_PARAMS,
			       "transaction: 32 lower-case hex digits are needed");
	snprintf(suffix, sizeof(suffix), "/%s/%.32s%s", before, (const char *)n->transaction.p,
		 after);
	return key(n, suffix, out, why);
}

enum err upload_object_key(const struct upload_names *n, const char id[UPLOAD_FRAGMENT_ID_LEN],
			   char **out, struct why *why)
{
	char after[UPLOAD_FRAGMENT_ID_LEN + 2];
	snprintf(after, sizeof(after), "/%.*s", UPLOAD_FRAGMENT_ID_LEN, id);
	return txn_key(n, "payload", after, out, why);
}

enum err upload_transaction_group(const struct upload_names *n, char **out, struct why *why)
{
	return txn_key(n, "transactions", "", out, why);
}

enum err upload_control_key(const struct upload_names *n, char **out, struct why *why)
{
	return txn_key(n, "transactions", "/decision", out, why);
}

/* ---- which replica ---- */

/* What is known of a DP rank. */
struct dp_state {
	uint64_t dp, generation;
	uint32_t n_tensors; /* whole there */
	bool any, mixed;    /* generations of the chosen fragments */
};

struct choosing {
	const struct place *p;
	struct reject *why;
	struct plan_room room;
	struct box_work work;
	struct box_join join;
	struct cands k;
	const uint64_t **boxes;
	uint64_t *generation; /* of a part */
	bool *bound;	      /* parts */
	struct dp_state *dps;
	uint32_t n_dps, n_shared;
	struct dp_state owned; /* of the tensors that are owned along dp */
	bool allow_dp_owned;
	uint32_t *list;
};

static struct dp_state *dp_of(struct choosing *c, uint64_t dp)
{
	uint32_t lo = 0, hi = c->n_dps;
	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;
		*(c->dps[mid].dp <= dp ? &lo : &hi) = mid;
	}
	return &c->dps[lo];
}

/* Bound fragments of a tensor, as candidates sorted by (dp, owner, box). */
static bool fill(struct choosing *c, uint32_t t)
{
	cands_fill(&c->k, c->p, t, c->bound);
	return cands_sort(&c->k, true, &c->room);
}

/* Some participants are not bound, so replicas may be there in part: the boxes are really laid
 * out. *n: distinct boxes, the first of each at c->list. */
static bool tiles(struct choosing *c, uint32_t first, uint32_t end, uint32_t *n, bool *out)
{
	struct cands *k = &c->k;
	*n = 0;
	for (uint32_t i = first; i < end; i++) {
		if (i > first && box_cmp(k->c[i - 1].box, k->c[i].box, k->n_dims) == 0)
			continue;
		c->list[*n] = k->c[i].pos;
		c->boxes[(*n)++] = k->c[i].box;
	}
	return box_tile(&c->join, c->boxes, *n, k->t->shape, k->n_dims, &c->work, out) ||
	       plan_work_fail(&c->work, c->why);
}

/* Of the fragment by_tensor[pos]. */
static void note_generation(struct choosing *c, struct dp_state *s, uint32_t pos)
{
	uint64_t g = c->generation[c->p->tensor_part[pos]];
	s->mixed |= s->any && s->generation != g;
	s->generation = g;
	s->any = true;
}

/* One DP rank's fragments of a tensor, [first, end): is every owner whole? The chosen ones are those
 * of the first. */
static bool check_dp(struct choosing *c, uint32_t first, uint32_t end, struct dp_state *s)
{
	bool whole = true, one = false;
	uint32_t n;
	for (uint32_t i = first, e; i < end && whole; i = e) {
		for (e = i + 1; e < end && cands_same(&c->k, i, e, true);)
			e++;
		if (!tiles(c, i, e, &n, &one))
			return false;
		whole = one;
		for (uint32_t k = 0; i == first && whole && k < n; k++)
			note_generation(c, s, c->list[k]);
	}
	s->n_tensors += whole;
	return true;
}

static uint32_t dp_end(const struct cands *k, uint32_t i)
{
	uint64_t dp = k->c[i].rank->c[AX_DP];
	while (i < k->n && k->c[i].rank->c[AX_DP] == dp)
		i++;
	return i;
}

/* A tensor that is owned along dp: one owner, whole, has it. */
static bool check_owned(struct choosing *c)
{
	const struct cands *k = &c->k;
	uint32_t n = 0, end = 0;
	bool whole = false;
	while (end < k->n && cands_same(k, 0, end, true))
		end++;
	if (end == k->n && k->n && !tiles(c, 0, k->n, &n, &whole))
		return false;
	if (!whole)
		return reject_set(c->why, RULE_PLAN_DP_OWNER, "", "tensor %.*s",
				  (int)MIN_OF(k->t->id.n, 120), (const char *)k->t->id.p);
	for (uint32_t i = 0; i < n; i++)
		note_generation(c, &c->owned, c->list[i]);
	return true;
}

static bool count_shared(struct choosing *c)
{
	for (uint32_t t = 0; t < c->p->n_tensors; t++) {
		bool owned = tensor_dp_owned(&c->p->tensors[t]);
		if (owned && !c->allow_dp_owned)
			return reject_set(
				c->why, RULE_UPLOAD_DP_OWNED, "",
				"Weight Store upload requires replicated DP source tensors; "
				"DP-owned tensor snapshots are not supported");
		c->n_shared += !owned;
	}
	return true;
}

static bool look(struct choosing *c)
{
	if (!count_shared(c))
		return false;
	for (uint32_t t = 0; t < c->p->n_tensors; t++) {
		if (!fill(c, t))
			return false;
		if (!box_work_take(&c->work, 16ull + c->k.n))
			return plan_work_fail(&c->work, c->why);
		bool owned = tensor_dp_owned(c->k.t);
		if (owned && !check_owned(c))
			return false;
		for (uint32_t i = 0, e; !owned && i < c->k.n; i = e) {
			e = dp_end(&c->k, i);
			if (!check_dp(c, i, e, dp_of(c, c->k.c[i].rank->c[AX_DP])))
				return false;
		}
	}
	return true;
}

static const struct dp_state *differ(struct choosing *c)
{
	reject_set(c->why, RULE_UPLOAD_GENERATIONS_DIFFER, "",
		   "complete source DP replicas have inconsistent lease generations");
	return NULL;
}

static const struct dp_state *pick(struct choosing *c)
{
	const struct dp_state *best = c->n_shared ? NULL : &c->owned;
	for (uint32_t i = 0; c->n_shared && i < c->n_dps; i++) {
		const struct dp_state *s = &c->dps[i];
		if (s->n_tensors != c->n_shared || s->mixed)
			continue;
		if (best && best->generation != s->generation)
			return differ(c);
		best = best ? best : s;
	}
	if (best && !c->owned.mixed && c->owned.any && c->owned.generation != best->generation)
		return differ(c);
	if (best && !c->owned.mixed)
		return best;
	reject_set(c->why, RULE_UPLOAD_NO_CONSISTENT_REPLICA, "",
		   "source manifests have no complete generation-consistent DP replica");
	return NULL;
}

/* ---- the list ---- */

struct put {
	struct sha sha;
	struct text_out *o;
	struct upload *u;
	uint32_t cap;
};

static bool put_one(struct choosing *c, struct put *w, uint32_t frag)
{
	const struct frag *f = &c->p->frags[frag];
	if (!plan_grow(&w->u->items, &w->cap, w->u->n_items, sizeof(*w->u->items), &c->room))
		return false;
	struct upload_item *it = &w->u->items[w->u->n_items++];
	it->frag = frag;
	it->dp_owned = tensor_dp_owned(c->k.t);
	w->u->n_dp_owned += it->dp_owned;
	fragment_id(w->o, c->p->tensors[f->tensor].id, f->box, f->n_dims, it->id);
	return true;
}

/* The first owner's distinct boxes at the chosen DP rank: sorted by box already. */
static bool put_tensor(struct choosing *c, struct put *w, uint32_t t, uint64_t dp)
{
	struct cands *k = &c->k;
	uint32_t i = 0;
	if (!fill(c, t))
		return false;
	while (i < k->n && !tensor_dp_owned(k->t) && k->c[i].rank->c[AX_DP] != dp)
		i++;
	for (uint32_t e = i; e < k->n && cands_same(k, i, e, true); e++)
		if ((e == i || box_cmp(k->c[e - 1].box, k->c[e].box, k->n_dims) != 0) &&
		    !put_one(c, w, c->p->by_tensor[k->c[e].pos]))
			return false;
	return true;
}

static bool put_all(struct choosing *c, struct upload *u)
{
	struct put w = { .u = u, .o = malloc(sizeof(*w.o)) };
	bool ok = w.o && sha_init(&w.sha) == ERR_NONE;
	if (ok)
		text_init(w.o, &w.sha, true);
	else
		plan_no_memory(c->why);
	for (uint32_t t = 0; ok && t < c->p->n_tensors; t++)
		ok = put_tensor(c, &w, t, u->dp) && plan_go(&c->room, t);
	sha_fini(&w.sha);
	free(w.o);
	return ok;
}

static bool begin(struct choosing *c, const struct upload_bound *bound, uint32_t n)
{
	const struct place *p = c->p;
	uint32_t most = 1;
	for (uint32_t t = 0; t < p->n_tensors; t++)
		most = MAX_OF(most, p->tensor_first[t + 1] - p->tensor_first[t]);
	c->k.c = plan_alloc(&c->room, most * sizeof(*c->k.c));
	c->boxes = plan_alloc(&c->room, most * sizeof(*c->boxes));
	c->list = plan_alloc(&c->room, most * sizeof(*c->list));
	c->generation = plan_zero(&c->room, p->n_parts, sizeof(*c->generation));
	c->bound = plan_zero(&c->room, p->n_parts, sizeof(*c->bound));
	c->dps = plan_zero(&c->room, p->n_parts, sizeof(*c->dps));
	if (!c->k.c || !c->boxes || !c->list || !c->generation || !c->bound || !c->dps)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		c->bound[bound[i].part] = true;
		c->generation[bound[i].part] = bound[i].generation;
	}
	for (uint32_t i = 0; i < p->n_parts; i++) {
		uint64_t dp = p->parts[p->rank_order[i]].rank.c[AX_DP];
		if (!c->n_dps || c->dps[c->n_dps - 1].dp != dp)
			c->dps[c->n_dps++].dp = dp;
	}
	return true;
}

static void end(struct choosing *c)
{
	free(c->k.c);
	free(c->boxes);
	free(c->list);
	free(c->generation);
	free(c->bound);
	free(c->dps);
	box_join_fini(&c->join);
}

static bool choose(struct choosing *c, struct upload *u)
{
	const struct dp_state *s = look(c) ? pick(c) : NULL;
	if (!s)
		return false;
	u->has_dp = s != &c->owned;
	u->dp = s->dp;
	u->generation = s->generation;
	return put_all(c, u);
}

enum err upload_plan(const struct place *p, const struct upload_bound *bound, uint32_t n,
		     const struct upload_opts *opts, struct reject *why, struct upload **out)
{
	struct choosing c = { .p = p, .why = why, .allow_dp_owned = opts->allow_dp_owned };
	struct upload *u = calloc(1, sizeof(*u));
	*why = (struct reject){ 0 };
	if (!u)
		return ERR_NO_MEMORY;
	c.room = (struct plan_room){ why, opts->cancel, opts->memory };
	c.work = (struct box_work){ .left = opts->work,
				    .look = opts->work,
				    .cancel = opts->cancel,
				    .memory = opts->memory };
	bool ok = begin(&c, bound, n) && choose(&c, u);
	end(&c);
	if (ok)
		*out = u;
	else
		upload_free(u);
	return rule_err(why->rule);
}

void upload_free(struct upload *u)
{
	if (!u)
		return;
	free(u->items);
	free(u);
}
