/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical text of a placement, the ids derived from it, and look-ups by name. */
#include "reshard/place_priv.h"

#include "base/buf.h"
#include "base/huge.h"

void rank_text(const struct rank *r, struct text_out *o)
{
	char *p = text_room(o, AX_N * (PEN_U64 + 8));
	p = pen_u64(pen_lit(p, "{\"dp\":"), r->c[AX_DP]);
	p = pen_u64(pen_lit(p, ",\"ep\":"), r->c[AX_EP]);
	p = pen_u64(pen_lit(p, ",\"pp\":"), r->c[AX_PP]);
	p = pen_u64(pen_lit(p, ",\"tp\":"), r->c[AX_TP]);
	text_to(o, pen_lit(p, "}"));
}

static void axis_text(const struct axis *x, int kind, struct text_out *o)
{
	text_lit(o, "{");
	if (x->sem == SEM_SPLIT) {
		text_lit(o, "\"dim\":");
		text_u64(o, x->dim);
		text_lit(o, ",");
	}
	text_lit(o, "\"kind\":\"");
	text_raw(o, axis_names[kind], 2);
	text_lit(o, "\",\"semantics\":\"");
	text_raw(o, sem_names[x->sem], strlen(sem_names[x->sem]));
	text_lit(o, "\"}");
}

static void axes_text(const struct tensor *t, struct text_out *o)
{
	bool any = false;
	for (int k = 0; k < AX_N; k++) {
		if (t->axes[k].sem == SEM_NONE)
			continue;
		if (any)
			text_lit(o, ",");
		any = true;
		axis_text(&t->axes[k], k, o);
	}
}

void place_tensor_text(const struct tensor *t, struct text_out *o)
{
	text_lit(o, "{\"dtype\":");
	text_str(o, t->dtype);
	text_lit(o, ",\"expert_id\":");
	text_u64_null(o, t->has_expert, t->expert);
	text_lit(o, ",\"global_shape\":");
	text_u64s(o, t->shape, t->n_dims);
	text_lit(o, ",\"itemsize\":");
	text_u64(o, t->itemsize);
	text_lit(o, ",\"layer_id\":");
	text_u64_null(o, t->has_layer, t->layer);
	text_lit(o, ",\"layout_fingerprint\":");
	text_str(o, t->layout);
	text_lit(o, ",\"parallel_axes\":[");
	axes_text(t, o);
	text_lit(o, "],\"shard_dims\":");
	text_u64s(o, t->shard_dims, t->n_shard);
	text_lit(o, ",\"tensor_id\":");
	text_str(o, t->id);
	text_lit(o, "}");
}

static void members_text(const struct place_new *b, const struct place *p, struct text_out *o)
{
	uint32_t n = b ? b->n_members : p->n_parts;
	for (uint32_t i = 0; i < n && !o->ended; i++) {
		const struct member *m = b ? &b->members[b->member_order[i]] : NULL;
		if (i)
			text_lit(o, ",");
		text_lit(o, "{\"participant_id\":");
		text_str(o, m ? m->id : p->parts[i].id);
		text_lit(o, ",\"rank\":");
		rank_text(m ? &m->rank : &p->parts[i].rank, o);
		text_lit(o, "}");
	}
}

/* b: before there are parts, for the id; NULL: with the id. */
static void topology_text(const struct place_new *b, const struct place *p, struct text_out *o)
{
	text_lit(o, "{\"dp_size\":");
	text_u64(o, p->size[AX_DP]);
	text_lit(o, ",\"ep_size\":");
	text_u64(o, p->size[AX_EP]);
	text_lit(o, ",\"participants\":[");
	members_text(b, p, o);
	text_lit(o, "],\"pp_size\":");
	text_u64(o, p->size[AX_PP]);
	if (b) {
		text_lit(o, ",\"schema\":\"weight-parallel-topology\"");
	} else {
		text_lit(o, ",\"topology_id\":\"");
		text_raw(o, p->topology_id, DERIVED_ID_LEN);
		text_lit(o, "\"");
	}
	text_lit(o, ",\"tp_size\":");
	text_u64(o, p->size[AX_TP]);
	text_lit(o, "}");
}

static void names_text(struct text_out *o, const struct bytes *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (i)
			text_lit(o, ",");
		text_str(o, v[i]);
	}
}

/* What a fragment's text begins and ends with; in between come id or schema. */
static void frag_head(const struct frag *f, struct text_out *o, const struct bytes *alias,
		      uint32_t n_alias)
{
	text_lit(o, "{\"aliases\":[");
	names_text(o, alias, n_alias);
	text_lit(o, "],\"global_offset\":");
	text_u64s(o, f->box, f->n_dims);
	text_lit(o, ",\"local_shape\":");
	text_u64s(o, f->box + f->n_dims, f->n_dims);
	text_lit(o, ",\"nbytes\":");
	text_u64(o, f->nbytes);
	if (f->has_stage) {
		text_lit(o, ",\"pipeline_stage_id\":");
		text_u64(o, f->stage);
	}
}

#define AHEAD 8 /* fragments */

/* Names and boxes of fragments lie in other orders than they: they are on their way to the caches
 * while others are written. */
static void fetch_ahead(const struct place *p, uint32_t k)
{
	if (p->n_frags - k <= 2 * AHEAD)
		return;
	const struct frag *f = &p->frags[k + AHEAD], *g = &p->frags[k + 2 * AHEAD];
	__builtin_prefetch(f->id.p);
	__builtin_prefetch(p->tensors[f->tensor].id.p);
	__builtin_prefetch(g->box);
	__builtin_prefetch(&p->tensors[g->tensor]);
}

static void parts_text(const struct place *p, struct text_out *o)
{
	for (uint32_t i = 0; i < p->n_parts && !o->ended; i++) {
		const struct place_part *q = &p->parts[i];
		if (i)
			text_lit(o, ",");
		text_lit(o, "{\"fragments\":[");
		for (uint32_t k = q->first; k < q->first + q->n && !o->ended; k++) {
			fetch_ahead(p, k);
			const struct frag *f = &p->frags[k];
			const struct alias *a = &p->aliases[f->alias];
			if (k > q->first)
				text_lit(o, ",");
			frag_head(f, o, a->names, a->n);
			text_lit(o, ",\"placement_fragment_id\":");
			text_str(o, f->id);
			text_lit(o, ",\"rank\":");
			rank_text(&q->rank, o);
			text_lit(o, ",\"tensor_id\":");
			text_str(o, p->tensors[f->tensor].id);
			text_lit(o, "}");
		}
		text_lit(o, "],\"participant_id\":");
		text_str(o, q->id);
		text_lit(o, ",\"rank\":");
		rank_text(&q->rank, o);
		text_lit(o, "}");
	}
}

/* Behind the parts and the placement's id, as far as the tensors. schema: the text that the id is
 * derived from. */
static void identity_text(const struct place *p, struct text_out *o, bool schema)
{
	text_lit(o, "\"placement_set_id\":");
	text_str(o, p->set_id);
	text_lit(o, ",\"resource_id\":");
	text_str(o, p->resource_id);
	if (!schema)
		text_lit(o, ",\"resource_kind\":\"model_weight\"");
	text_lit(o, ",\"revision\":");
	text_str(o, p->revision);
	if (schema)
		text_lit(o, ",\"schema\":\"complete-weight-placement\"");
}

/* The rest: the same in both texts. */
static void tail_text(const struct place *p, struct text_out *o)
{
	text_lit(o, ",\"tensors\":[");
	for (uint32_t i = 0; i < p->n_tensors && !o->ended; i++) {
		if (i)
			text_lit(o, ",");
		place_tensor_text(&p->tensors[i], o);
	}
	text_lit(o, "],\"topology\":");
	topology_text(NULL, p, o);
	text_lit(o, ",\"weight_generation\":");
	text_u64(o, p->generation);
	text_lit(o, "}");
}

static void id_text(const struct place *p, struct text_out *o)
{
	text_lit(o, "\"placement_id\":\"");
	text_raw(o, p->id, DERIVED_ID_LEN);
	text_lit(o, "\",");
}

void place_text(const struct place *p, struct text_out *o)
{
	text_lit(o, "{\"parts\":[");
	parts_text(p, o);
	text_lit(o, "],");
	id_text(p, o);
	identity_text(p, o, false);
	tail_text(p, o);
}

/* ---- derived ids ---- */

static void derived(struct sha *s, char out[DERIVED_ID_LEN])
{
	memcpy(out, "sha256:", 7); // NOLINT(bugprone-not-null-terminated-result): no text yet
	sha_hex(s, out + 7);
}

struct hashing {
	struct sha sha, fork;
	struct text_out *o;
};

static void hashing_end(struct hashing *h)
{
	sha_fini(&h->sha);
	sha_fini(&h->fork);
	free(h->o);
}

static bool hashing_begin(struct place_new *b, struct hashing *h)
{
	*h = (struct hashing){ .o = malloc(sizeof(*h->o)) };
	if (!h->o || sha_init(&h->sha) != ERR_NONE || sha_init(&h->fork) != ERR_NONE) {
		hashing_end(h);
		return place_no_memory(b);
	}
	text_init(h->o, &h->sha, false);
	h->o->cancel = b->lim.cancel;
	return true;
}

bool place_derive_topology(struct place_new *b)
{
	struct place *p = b->p;
	struct hashing h;
	if (!hashing_begin(b, &h))
		return false;
	topology_text(b, p, h.o);
	text_flush(h.o);
	bool ended = h.o->ended;
	derived(&h.sha, p->topology_id);
	hashing_end(&h);
	if (ended)
		return place_stopped(b);
	return !b->topology_id.p ||
	       bytes_eq(b->topology_id, BYTES(p->topology_id, DERIVED_ID_LEN)) ||
	       place_fail(b, RULE_ID_TOPOLOGY, "another id follows from the topology",
			  "topology.topology_id");
}

static int name_cmp(const void *x, const void *y, void *arg)
{
	(void)arg;
	return bytes_cmp(*(const struct bytes *)x, *(const struct bytes *)y);
}

/* The group's names, sorted: it is not resolved yet. */
static bool group_names(struct place_new *b, uint32_t g, struct bytes **out, uint32_t *n)
{
	*out = NULL;
	*n = b->p->aliases[g].n;
	if (!*n)
		return true;
	struct bytes raw = b->groups.name[g - 1];
	const uint32_t *v = (const uint32_t *)(const void *)raw.p;
	*out = place_tmp(b, *n * sizeof(**out));
	if (!*out)
		return false;
	for (uint32_t i = 0; i < *n; i++)
		(*out)[i] = b->names.name[v[i]];
	if (stop_sort(*out, *n, sizeof(**out), name_cmp, NULL, b->lim.cancel))
		return true;
	free(*out);
	return place_sort_fail(b);
}

static bool derive_frag(struct place_new *b, struct hashing *h, struct frag *f)
{
	struct bytes *names;
	uint32_t n;
	char *id = place_alloc(b, DERIVED_ID_LEN);
	if (!id || !group_names(b, f->alias, &names, &n))
		return false;
	frag_head(f, h->o, names, n);
	free(names);
	text_lit(h->o, ",\"rank\":");
	rank_text(&b->parts[f->part].rank, h->o);
	text_lit(h->o, ",\"schema\":\"weight-placement-fragment\",\"tensor_id\":");
	text_str(h->o, b->p->tensors[f->tensor].id);
	text_lit(h->o, "}");
	text_flush(h->o);
	derived(&h->sha, id);
	f->id = BYTES(id, DERIVED_ID_LEN);
	return true;
}

bool place_derive_frags(struct place_new *b)
{
	struct place *p = b->p;
	struct hashing h;
	bool ok = true;
	if (!hashing_begin(b, &h))
		return false;
	for (uint32_t i = 0; ok && i < p->n_frags; i++) {
		if (!p->frags[i].id.p)
			ok = derive_frag(b, &h, &p->frags[i]);
		ok = ok && place_go(b, i);
	}
	hashing_end(&h);
	return ok;
}

static bool keep_tail(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

/* What keep_tail kept, or once more what it had no room for. */
static void hash_tail(struct hashing *h, const struct place *p, const struct buf *tail)
{
	struct text_out *o = h->o;
	if (buf_err(tail) != ERR_NONE) {
		tail_text(p, o);
		return;
	}
	text_flush(o);
	for (size_t i = 0, n; i < tail->n && !o->ended; i += n) {
		n = MIN_OF(tail->n - i, (size_t)1 << 20);
		sha_add(o->sha, tail->p + i, n);
		o->n_flushed += n;
		o->ended = stop_now(o->cancel);
	}
}

/* The text the id is derived from and the canonical text begin and end alike: {"parts":[...]," is
 * written and hashed once, the tensors and what follows are written once. That is nearly all. */
static bool hash_both(struct place_new *b, struct hashing *h, struct buf *tail)
{
	struct place *p = b->p;
	text_lit(h->o, "{\"parts\":[");
	parts_text(p, h->o);
	text_lit(h->o, "],");
	text_flush(h->o);
	uint64_t head = text_bytes(h->o);
	sha_copy(&h->fork, &h->sha);
	identity_text(p, h->o, true);
	text_flush(h->o);
	h->o->put = keep_tail;
	h->o->arg = tail;
	tail_text(p, h->o);
	text_flush(h->o);
	derived(&h->sha, p->id);
	bool ended = h->o->ended;
	text_init(h->o, &h->fork, false);
	h->o->cancel = b->lim.cancel;
	id_text(p, h->o);
	identity_text(p, h->o, false);
	hash_tail(h, p, tail);
	text_flush(h->o);
	p->text_bytes = head + text_bytes(h->o);
	sha_hex(&h->fork, p->digest);
	return !ended && !h->o->ended;
}

bool place_derive(struct place_new *b)
{
	struct place *p = b->p;
	struct buf tail = BUF_INIT(place_room(b));
	struct hashing h;
	if (!hashing_begin(b, &h))
		return false;
	/* what a tensor's text may come to; more is found when it is needed */
	size_t guess = 512ull * p->n_tensors;
	if (guess < tail.limit)
		huge_hint(buf_room(&tail, guess), guess);
	bool done = hash_both(b, &h, &tail);
	hashing_end(&h);
	buf_fini(&tail);
	if (!done)
		return place_stopped(b);
	return !b->place_id.p || bytes_eq(b->place_id, BYTES(p->id, DERIVED_ID_LEN)) ||
	       place_fail(b, RULE_ID_PLACEMENT, "another id follows from the placement",
			  "placement_id");
}

/* ---- look-ups ---- */

uint32_t place_find_part(const struct place *p, struct bytes id)
{
	uint32_t lo = 0, hi = p->n_parts;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		int c = bytes_cmp(p->parts[mid].id, id);
		if (c == 0)
			return mid;
		*(c < 0 ? &lo : &hi) = c < 0 ? mid + 1 : mid;
	}
	return UINT32_MAX;
}

uint32_t place_find_tensor(const struct place *p, struct bytes id)
{
	uint32_t lo = 0, hi = p->n_tensors;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		int c = bytes_cmp(p->tensors[mid].id, id);
		if (c == 0)
			return mid;
		*(c < 0 ? &lo : &hi) = c < 0 ? mid + 1 : mid;
	}
	return UINT32_MAX;
}

uint32_t place_find_frag(const struct place *p, struct bytes id)
{
	uint32_t lo = 0, hi = p->n_frags;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		int c = bytes_cmp(p->frags[p->by_id[mid]].id, id);
		if (c == 0)
			return p->by_id[mid];
		*(c < 0 ? &lo : &hi) = c < 0 ? mid + 1 : mid;
	}
	return UINT32_MAX;
}
