/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

uint64_t model_rnd(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15ull;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static const char *const holder_ids[MODEL_HOLDERS] = { "h0", "h1", "h2", "h3" };
static const char *const tenants[] = { "a", "b" };

static struct bytes text(char *s)
{
	return BYTES_STR(s);
}

static uint64_t pick(uint64_t *seed, uint64_t n)
{
	return model_rnd(seed) % n;
}

/* ---- random records ---- */

static void random_key(uint64_t *seed, char out[8])
{
	/* keys of one to three letters of three: prefixes of each other as often as not */
	size_t n = 1 + pick(seed, 3);
	for (size_t i = 0; i < n; i++)
		out[i] = (char)('x' + (char)pick(seed, 3));
	out[n] = '\0';
}

static void random_tomb(uint64_t *seed, uint64_t now, struct model_rec *o)
{
	struct bytes id = BYTES_STR(holder_ids[pick(seed, MODEL_HOLDERS)]);
	uint32_t shard = (uint32_t)pick(seed, 3);
	uint64_t ceiling = now - pick(seed, MIN_OF(now, 20ull));
	random_key(seed, o->s[1]);
	snprintf(o->s[0], sizeof(o->s[0]), "%s", tenants[pick(seed, 2)]);
	if (pick(seed, 3) > 0) {
		o->r.type = META_TOMB;
		o->r.TOMB =
			(struct msg_meta_tomb){ id,	 shard, text(o->s[0]), text(o->s[1]),
						ceiling, now };
		return;
	}
	if (pick(seed, 4) == 0)
		o->s[0][0] = '\0';
	o->s[1][pick(seed, 3)] = '\0';
	o->r.type = META_RANGE;
	o->r.RANGE = (struct msg_meta_range){ id,      shard, 1, text(o->s[0]), text(o->s[1]),
					      ceiling, now };
}

static void random_holder(uint64_t *seed, uint64_t now, struct model_rec *o)
{
	o->addr = BYTES_STR("ipc:///h");
	o->r.type = META_HOLDER;
	o->r.HOLDER = (struct msg_meta_holder){ .id = BYTES_STR(
							holder_ids[pick(seed, MODEL_HOLDERS)]),
						.kind = 1,
						.addrs = { &o->addr, 1 },
						.away = pick(seed, 2),
						.away_since = now,
						.adoption = pick(seed, 100) };
}

static void random_named(uint64_t *seed, const struct model *m, struct model_rec *o)
{
	random_key(seed, o->s[0]);
	snprintf(o->s[1], sizeof(o->s[1]), "o%d", (int)pick(seed, 2));
	snprintf(o->s[2], sizeof(o->s[2]), "v%d", (int)pick(seed, 1000));
	struct bytes space = BYTES_STR("window");
	switch (pick(seed, 4)) {
	case 0:
		o->r.type = META_CLAIM;
		o->r.CLAIM = (struct msg_meta_claim){ space, text(o->s[0]), text(o->s[1]),
						      text(o->s[2]) };
		break;
	case 1:
		o->r.type = META_UNCLAIM;
		o->r.UNCLAIM = (struct msg_meta_unclaim){ space, text(o->s[0]), text(o->s[1]) };
		break;
	case 2:
		o->r.type = META_VIEW;
		o->r.VIEW = (struct msg_meta_view){ BYTES_STR("a"), text(o->s[0]), m->term,
						    pick(seed, 40), text(o->s[2]) };
		break;
	default:
		o->r.type = META_UNVIEW;
		o->r.UNVIEW = (struct msg_meta_unview){ BYTES_STR("a"), text(o->s[0]), m->term,
							pick(seed, 40) };
	}
}

static void random_rare(uint64_t *seed, uint64_t now, const struct model *m,
			struct model_rec *o)
{
	struct bytes id = BYTES_STR(holder_ids[pick(seed, MODEL_HOLDERS)]);
	uint32_t shard = (uint32_t)pick(seed, 3);
	switch (pick(seed, 8)) {
	case 0:
		o->r.type = META_TERM;
		o->r.TERM.term = m->term + pick(seed, 3);
		break;
	case 1:
		o->r.type = META_FORGET;
		o->r.FORGET.holder = id;
		break;
	case 2:
	case 3:
		o->r.type = META_FLOOR;
		o->r.FLOOR = (struct msg_meta_floor){ id, shard, now - pick(seed, now) };
		break;
	default:
		o->r.type = META_SETTLED;
		o->r.SETTLED =
			(struct msg_meta_settled){ id, shard,
						   m->last_seq - pick(seed, m->last_seq + 1) };
	}
}

void model_random(uint64_t *seed, uint64_t *counter, const struct model *m,
		  struct model_rec *out)
{
	memset(out, 0, sizeof(*out));
	*counter += 1 + pick(seed, 3);
	uint64_t kind = pick(seed, 100);
	if (kind < 60)
		random_tomb(seed, *counter, out);
	else if (kind < 70)
		random_holder(seed, *counter, out);
	else if (kind < 95)
		random_named(seed, m, out);
	else
		random_rare(seed, *counter, m, out);
}

/* ---- the model ---- */

static bool is(struct bytes b, const char *s)
{
	return b.n == strlen(s) && (b.n == 0 || memcmp(b.p, s, b.n) == 0);
}

static void copy(char out[8], struct bytes b)
{
	memset(out, 0, 8);
	if (b.n)
		memcpy(out, b.p, b.n);
}

static struct model_holder *holder_of(struct model *m, struct bytes id)
{
	for (int i = 0; i < MODEL_HOLDERS; i++)
		if (is(id, holder_ids[i]))
			return &m->holders[i];
	cr_assert_fail("a holder of no name");
	return NULL;
}

static bool dead(const struct model_holder *h, const struct model_tomb *t)
{
	return t->seq <= h->shards[t->shard].settled ||
	       (t->ceiling <= h->shards[t->shard].floor &&
		t->seq < h->shards[t->shard].floor_seq);
}

static void add_tomb(struct model_holder *h, uint64_t seq, uint8_t match, uint32_t shard,
		     struct bytes tenant, struct bytes key, uint64_t ceiling)
{
	struct model_tomb *free_one = NULL;
	for (int i = 0; i < MODEL_TOMBS; i++) {
		struct model_tomb *t = &h->tombs[i];
		if (t->used && dead(h, t))
			t->used = false;
		if (!t->used) {
			free_one = free_one ? free_one : t;
			continue;
		}
		if (t->match != match || t->shard != shard || !is(tenant, t->tenant) ||
		    !is(key, t->text))
			continue;
		t->ceiling = MAX_OF(t->ceiling, ceiling);
		t->seq = seq;
		return;
	}
	cr_assert(free_one);
	*free_one = (struct model_tomb){ true, match, shard, "", "", ceiling, seq };
	copy(free_one->tenant, tenant);
	copy(free_one->text, key);
}

static enum err apply_claim(struct model *m, const struct msg_meta_claim *c)
{
	struct model_claim *free_one = NULL;
	for (int i = 0; i < MODEL_CLAIMS; i++) {
		struct model_claim *k = &m->claims[i];
		if (!k->used)
			free_one = free_one ? free_one : k;
		else if (is(c->name, k->name)) {
			if (!is(c->owner, k->owner))
				return ERR_CONFLICT;
			copy(k->value, c->value);
			return ERR_NONE;
		}
	}
	free_one->used = true;
	copy(free_one->name, c->name);
	copy(free_one->owner, c->owner);
	copy(free_one->value, c->value);
	return ERR_NONE;
}

static enum err apply_unclaim(struct model *m, const struct msg_meta_unclaim *c)
{
	for (int i = 0; i < MODEL_CLAIMS; i++) {
		struct model_claim *k = &m->claims[i];
		if (!k->used || !is(c->name, k->name))
			continue;
		if (!is(c->owner, k->owner))
			return ERR_CONFLICT;
		k->used = false;
		return ERR_NONE;
	}
	return ERR_NOT_FOUND;
}

static struct model_view *view_of(struct model *m, struct bytes group)
{
	for (int i = 0; i < MODEL_VIEWS; i++)
		if (m->views[i].used && is(group, m->views[i].group))
			return &m->views[i];
	return NULL;
}

static bool above(uint64_t t1, uint64_t e1, uint64_t t2, uint64_t e2)
{
	return t1 > t2 || (t1 == t2 && e1 > e2);
}

static enum err apply_view(struct model *m, const struct msg_meta_view *v)
{
	struct model_view *k = view_of(m, v->group);
	if (k && !above(v->term, v->epoch, k->term, k->epoch))
		return ERR_CONFLICT;
	for (int i = 0; !k && i < MODEL_VIEWS; i++)
		if (!m->views[i].used)
			k = &m->views[i];
	k->used = true;
	k->term = v->term;
	k->epoch = v->epoch;
	copy(k->group, v->group);
	copy(k->blob, v->blob);
	return ERR_NONE;
}

static enum err apply_unview(struct model *m, const struct msg_meta_unview *v)
{
	struct model_view *k = view_of(m, v->group);
	if (!k)
		return ERR_NOT_FOUND;
	if (above(k->term, k->epoch, v->term, v->epoch))
		return ERR_CONFLICT;
	k->used = false;
	return ERR_NONE;
}

static enum err apply_kept(struct model *m, uint64_t seq, const struct meta_rec *r)
{
	struct bytes id = r->type == META_TOMB	  ? r->TOMB.holder
			  : r->type == META_RANGE ? r->RANGE.holder
			  : r->type == META_FLOOR ? r->FLOOR.holder
						  : r->SETTLED.holder;
	struct model_holder *h = holder_of(m, id);
	if (!h->used)
		return ERR_NOT_FOUND;
	if (r->type == META_TOMB) {
		add_tomb(h, seq, 0, r->TOMB.shard, r->TOMB.tenant, r->TOMB.key,
			 r->TOMB.ceiling);
	} else if (r->type == META_RANGE) {
		add_tomb(h, seq, 1, r->RANGE.shard, r->RANGE.tenant, r->RANGE.prefix,
			 r->RANGE.ceiling);
	} else if (r->type == META_FLOOR) {
		uint32_t s = r->FLOOR.shard;
		h->shards[s].floor = MAX_OF(h->shards[s].floor, r->FLOOR.floor);
		h->shards[s].floor_seq = seq;
	} else {
		uint32_t s = r->SETTLED.shard;
		h->shards[s].settled =
			MAX_OF(h->shards[s].settled, MIN_OF(r->SETTLED.through, seq));
		if (h->shards[s].floor_seq <= h->shards[s].settled)
			h->shards[s].floor = h->shards[s].floor_seq = 0;
	}
	return ERR_NONE;
}

enum err model_apply(struct model *m, uint64_t seq, const struct meta_rec *r)
{
	struct model_holder *h;
	m->last_seq = seq;
	switch (r->type) {
	case META_TERM:
		if (r->TERM.term <= m->term)
			return ERR_CONFLICT;
		m->term = r->TERM.term;
		return ERR_NONE;
	case META_HOLDER:
		h = holder_of(m, r->HOLDER.id);
		h->used = true;
		h->away = r->HOLDER.away;
		h->away_since = r->HOLDER.away_since;
		h->adoption = r->HOLDER.adoption;
		return ERR_NONE;
	case META_FORGET:
		h = holder_of(m, r->FORGET.holder);
		if (!h->used)
			return ERR_NOT_FOUND;
		memset(h, 0, sizeof(*h));
		return ERR_NONE;
	case META_TOMB:
	case META_RANGE:
	case META_FLOOR:
	case META_SETTLED:
		return apply_kept(m, seq, r);
	case META_CLAIM:
		return apply_claim(m, &r->CLAIM);
	case META_UNCLAIM:
		return apply_unclaim(m, &r->UNCLAIM);
	case META_VIEW:
		return apply_view(m, &r->VIEW);
	case META_UNVIEW:
		return apply_unview(m, &r->UNVIEW);
	}
	return ERR_INTERNAL;
}

/* ---- comparing ---- */

static uint64_t barred(const struct model_holder *h, uint32_t shard, const char *tenant,
		       const char *key)
{
	uint64_t top = h->shards[shard].floor;
	for (int i = 0; i < MODEL_TOMBS; i++) {
		const struct model_tomb *t = &h->tombs[i];
		if (!t->used || t->shard != shard || dead(h, t))
			continue;
		bool hit =
			t->match ? (!t->tenant[0] || strcmp(t->tenant, tenant) == 0) &&
					   strncmp(t->text, key, strlen(t->text)) == 0
				 : strcmp(t->tenant, tenant) == 0 && strcmp(t->text, key) == 0;
		if (hit)
			top = MAX_OF(top, t->ceiling);
	}
	return top;
}

static void compare_holder(const struct model_holder *h, const struct meta_holder *g)
{
	struct meta_holder_info info;
	meta_holder_info(g, &info);
	cr_assert_eq(info.away, h->away);
	cr_assert_eq(info.away_since, h->away_since);
	cr_assert_eq(info.adoption, h->adoption);
	cr_assert_eq(info.n_addrs, 1);
	cr_assert_str_eq(info.addrs[0], "ipc:///h");
	for (uint32_t s = 0; s < 3; s++) {
		cr_assert_eq(meta_floor(g, s), h->shards[s].floor);
		/* every key of one to three letters of three */
		for (int n = 0; n < 39; n++) {
			char key[4] = "";
			int len = n < 3	   ? 1
				  : n < 12 ? 2
					   : 3,
			    rest = n < 3    ? n
				   : n < 12 ? n - 3
					    : n - 12;
			for (int i = 0; i < len; i++, rest /= 3)
				key[i] = (char)('x' + rest % 3);
			for (int t = 0; t < 2; t++)
				cr_assert_eq(meta_barred(g, s, BYTES_STR(tenants[t]),
							 BYTES_STR(key)),
					     barred(h, s, tenants[t], key));
		}
	}
}

static void compare_named(const struct model *m, const struct meta_state *st)
{
	struct meta_counts c;
	uint64_t claims = 0, views = 0;
	meta_state_counts(st, &c);
	for (int i = 0; i < MODEL_CLAIMS; i++) {
		const struct model_claim *k = &m->claims[i];
		struct bytes owner, value;
		if (!k->used)
			continue;
		claims++;
		cr_assert(meta_claim_find(st, BYTES_STR("window"), BYTES_STR(k->name), &owner,
					  &value));
		cr_assert(is(owner, k->owner) && is(value, k->value));
	}
	for (int i = 0; i < MODEL_VIEWS; i++) {
		const struct model_view *k = &m->views[i];
		struct msg_meta_view v;
		if (!k->used)
			continue;
		views++;
		cr_assert(meta_view_find(st, BYTES_STR("a"), BYTES_STR(k->group), &v));
		cr_assert(v.term == k->term && v.epoch == k->epoch && is(v.blob, k->blob));
	}
	cr_assert_eq(c.claims, claims);
	cr_assert_eq(c.views, views);
}

void model_compare(const struct model *m, const struct meta_state *st)
{
	cr_assert_eq(meta_term(st), m->term);
	cr_assert_eq(meta_last_seq(st), m->last_seq);
	size_t n = 0;
	for (int i = 0; i < MODEL_HOLDERS; i++) {
		const struct meta_holder *g = meta_holder_find(st, BYTES_STR(holder_ids[i]));
		cr_assert_eq(g != NULL, m->holders[i].used, "%s", holder_ids[i]);
		if (g)
			compare_holder(&m->holders[i], g);
		n += m->holders[i].used;
	}
	for (const struct meta_holder *g = meta_holder_first(st); g;
	     g = meta_holder_next(st, g))
		n--;
	cr_assert_eq(n, 0);
	compare_named(m, st);
}
