/* SPDX-License-Identifier: Apache-2.0 */
/* What has a name and one value: claims and views. */
#include "meta/meta_priv.h"

#include <string.h>

static uint8_t *put(uint8_t *at, struct bytes v)
{
	if (v.n)
		memcpy(at, v.p, v.n);
	return at + v.n;
}

static bool same(const uint8_t *p, size_t n, struct bytes v)
{
	return n == v.n && (n == 0 || memcmp(p, v.p, n) == 0);
}

struct two {
	struct bytes a, b;
};

static uint64_t two_hash(const struct meta_state *st, const struct two *k, uint64_t salt)
{
	return meta_hash(st, k->b.p, k->b.n, meta_hash(st, k->a.p, k->a.n, salt));
}

/* ---- claims ---- */

static bool claim_eq(const struct map_node *n, const void *key)
{
	const struct claim *c = container_of(n, struct claim, node);
	const struct two *k = key;
	return same(c->text, c->space_n, k->a) && same(c->text + c->space_n, c->name_n, k->b);
}

struct claim *claim_of(const struct meta_state *st, struct bytes space, struct bytes name)
{
	const struct two k = { space, name };
	struct map_node *n = map_find(&st->claims, two_hash(st, &k, 'c'), claim_eq, &k);
	return n ? container_of(n, struct claim, node) : NULL;
}

struct bytes claim_owner(const struct claim *c)
{
	return BYTES(c->text + c->space_n + c->name_n, c->owner_n);
}

static struct bytes claim_value(const struct claim *c)
{
	return BYTES(c->text + c->space_n + c->name_n + c->owner_n, c->value_n);
}

static size_t claim_bytes(const struct claim *c)
{
	return sizeof(*c) + c->space_n + c->name_n + c->owner_n + c->value_n;
}

static void claim_drop(struct meta_state *st, struct claim *c)
{
	map_remove(&st->claims, &c->node);
	st->bytes -= claim_bytes(c);
	free(c);
}

enum err claim_apply(struct meta_state *st, uint64_t seq, const struct msg_meta_claim *m)
{
	const struct two k = { m->space, m->name };
	struct claim *old = claim_of(st, m->space, m->name);
	if (old && !same(claim_owner(old).p, old->owner_n, m->owner))
		return ERR_CONFLICT; /* I3 */
	size_t n = m->space.n + m->name.n + m->owner.n + m->value.n;
	struct claim *c = malloc(sizeof(*c) + n);
	if (!c)
		return ERR_NO_MEMORY;
	*c = (struct claim){ .seq = seq,
			     .space_n = (uint8_t)m->space.n,
			     .name_n = (uint16_t)m->name.n,
			     .owner_n = (uint8_t)m->owner.n,
			     .value_n = (uint16_t)m->value.n };
	put(put(put(put(c->text, m->space), m->name), m->owner), m->value);
	if (old)
		claim_drop(st, old);
	enum err e = map_insert(&st->claims, &c->node, two_hash(st, &k, 'c'));
	if (e != ERR_NONE) {
		free(c);
		return ERR_NO_MEMORY;
	}
	st->bytes += claim_bytes(c);
	return ERR_NONE;
}

enum err unclaim_apply(struct meta_state *st, const struct msg_meta_unclaim *m)
{
	struct claim *c = claim_of(st, m->space, m->name);
	if (!c)
		return ERR_NOT_FOUND;
	if (!same(claim_owner(c).p, c->owner_n, m->owner))
		return ERR_CONFLICT;
	claim_drop(st, c);
	return ERR_NONE;
}

bool meta_claim_find(const struct meta_state *st, struct bytes space, struct bytes name,
		     struct bytes *owner, struct bytes *value)
{
	const struct claim *c = claim_of(st, space, name);
	if (!c)
		return false;
	*owner = claim_owner(c);
	*value = claim_value(c);
	return true;
}

/* ---- views ---- */

static bool view_eq(const struct map_node *n, const void *key)
{
	const struct view *v = container_of(n, struct view, node);
	const struct two *k = key;
	return same(v->text, v->tenant_n, k->a) &&
	       same(v->text + v->tenant_n, v->group_n, k->b);
}

struct view *view_of(const struct meta_state *st, struct bytes tenant, struct bytes group)
{
	const struct two k = { tenant, group };
	struct map_node *n = map_find(&st->views, two_hash(st, &k, 'v'), view_eq, &k);
	return n ? container_of(n, struct view, node) : NULL;
}

static size_t view_bytes(const struct view *v)
{
	return sizeof(*v) + v->tenant_n + v->group_n + v->blob_n;
}

static void view_drop(struct meta_state *st, struct view *v)
{
	map_remove(&st->views, &v->node);
	st->bytes -= view_bytes(v);
	free(v);
}

static bool newer(uint64_t term, uint64_t epoch, const struct view *than)
{
	return term > than->term || (term == than->term && epoch > than->epoch);
}

enum err view_apply(struct meta_state *st, uint64_t seq, const struct msg_meta_view *m)
{
	const struct two k = { m->tenant, m->group };
	struct view *old = view_of(st, m->tenant, m->group);
	if (old && !newer(m->term, m->epoch, old))
		return ERR_CONFLICT; /* I1 */
	struct view *v = malloc(sizeof(*v) + m->tenant.n + m->group.n + m->blob.n);
	if (!v)
		return ERR_NO_MEMORY;
	*v = (struct view){ .seq = seq,
			    .term = m->term,
			    .epoch = m->epoch,
			    .tenant_n = (uint8_t)m->tenant.n,
			    .group_n = (uint16_t)m->group.n,
			    .blob_n = (uint32_t)m->blob.n };
	put(put(put(v->text, m->tenant), m->group), m->blob);
	if (old)
		view_drop(st, old);
	enum err e = map_insert(&st->views, &v->node, two_hash(st, &k, 'v'));
	if (e != ERR_NONE) {
		free(v);
		return ERR_NO_MEMORY;
	}
	st->bytes += view_bytes(v);
	return ERR_NONE;
}

enum err unview_apply(struct meta_state *st, const struct msg_meta_unview *m)
{
	struct view *v = view_of(st, m->tenant, m->group);
	if (!v)
		return ERR_NOT_FOUND;
	if (v->term > m->term || (v->term == m->term && v->epoch > m->epoch))
		return ERR_CONFLICT;
	view_drop(st, v);
	return ERR_NONE;
}

static struct msg_meta_view view_msg(const struct view *v)
{
	return (struct msg_meta_view){ .tenant = BYTES(v->text, v->tenant_n),
				       .group = BYTES(v->text + v->tenant_n, v->group_n),
				       .term = v->term,
				       .epoch = v->epoch,
				       .blob = BYTES(v->text + v->tenant_n + v->group_n,
						     v->blob_n) };
}

bool meta_view_find(const struct meta_state *st, struct bytes tenant, struct bytes group,
		    struct msg_meta_view *out)
{
	const struct view *v = view_of(st, tenant, group);
	if (v)
		*out = view_msg(v);
	return v != NULL;
}

/* ---- all of them ---- */

struct scan {
	void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r);
	void *arg;
};

static void scan_claim(struct map_node *n, void *arg)
{
	const struct scan *s = arg;
	const struct claim *c = container_of(n, struct claim, node);
	struct meta_rec r = { .type = META_CLAIM };
	r.CLAIM = (struct msg_meta_claim){ .space = BYTES(c->text, c->space_n),
					   .name = BYTES(c->text + c->space_n, c->name_n),
					   .owner = claim_owner(c),
					   .value = claim_value(c) };
	s->fn(s->arg, c->seq, &r);
}

static void scan_view(struct map_node *n, void *arg)
{
	const struct scan *s = arg;
	const struct view *v = container_of(n, struct view, node);
	struct meta_rec r = { .type = META_VIEW };
	r.VIEW = view_msg(v);
	s->fn(s->arg, v->seq, &r);
}

/* A scan that removes nothing leaves the map as it is, whatever its prototype allows. */
static struct map *unchanged(const struct map *m)
{
	return (struct map *)m;
}

bool meta_claim_scan(const struct meta_state *st, uint64_t *cursor, size_t want,
		     void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r), void *arg)
{
	struct scan s = { fn, arg };
	return map_scan(unchanged(&st->claims), cursor, want, scan_claim, &s);
}

bool meta_view_scan(const struct meta_state *st, uint64_t *cursor, size_t want,
		    void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r), void *arg)
{
	struct scan s = { fn, arg };
	return map_scan(unchanged(&st->views), cursor, want, scan_view, &s);
}

static void drop_claim(struct map_node *n, void *arg)
{
	claim_drop(arg, container_of(n, struct claim, node));
}

static void drop_view(struct map_node *n, void *arg)
{
	view_drop(arg, container_of(n, struct view, node));
}

void named_fini(struct meta_state *st)
{
	uint64_t cursor = 0;
	while (map_scan(&st->claims, &cursor, 1024, drop_claim, st))
		;
	cursor = 0;
	while (map_scan(&st->views, &cursor, 1024, drop_view, st))
		;
	map_fini(&st->claims);
	map_fini(&st->views);
}

static uint64_t named_bytes(const struct meta_state *st)
{
	uint64_t bytes = 0;
	map_for_each (n, &st->claims)
		bytes += claim_bytes(container_of(n, struct claim, node));
	map_for_each (n, &st->views)
		bytes += view_bytes(container_of(n, struct view, node));
	return bytes;
}

uint64_t named_check(const struct meta_state *st)
{
	map_check(&st->claims);
	map_check(&st->views);
	return named_bytes(st);
}
