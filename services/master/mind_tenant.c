/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: whose bytes they are, what each may have, and the order in which objects are used: a tenant
 * with a quota has its own, so that it evicts its own objects and nobody else's.
 */
#include "mind_priv.h"

/* ---- names ---- */

static void set_init(struct lru_set *s)
{
	for (size_t i = 0; i < LRU_N; i++) {
		list_init(&s->objs[i].l);
		list_init(&s->groups[i].l);
		s->groups[i].groups = true;
	}
}

/* Sets are made at the start, one a quota: a tenant that comes finds its own. */
enum err tenants_init(struct mind *m)
{
	set_init(&m->shared);
	m->sets = calloc(m->l.n_quotas + 1, sizeof(*m->sets));
	if (!m->sets)
		return ERR_NO_MEMORY;
	m->sets[m->n_sets++] = &m->shared;
	for (size_t i = 0; i < m->l.n_quotas; i++) {
		struct lru_set *s = calloc(1, sizeof(*s));
		if (!s)
			return ERR_NO_MEMORY;
		set_init(s);
		m->sets[m->n_sets++] = s;
	}
	m->bytes += m->l.n_quotas * sizeof(struct lru_set);
	return ERR_NONE;
}

void tenants_free(struct mind *m)
{
	for (uint32_t i = 0; i < m->n_tenants; i++)
		free(m->tenant[i]);
	free(m->tenant);
	for (uint32_t i = 1; i < m->n_sets; i++)
		free(m->sets[i]);
	free(m->sets);
}

static void tenant_set(struct mind *m, struct tenant *t, struct bytes name)
{
	t->set = &m->shared;
	for (size_t i = 0; i < m->l.n_quotas; i++) {
		const struct mind_quota *q = &m->l.quotas[i];
		if (q->tenant.n != name.n || memcmp(q->tenant.p, name.p, name.n) != 0)
			continue;
		t->quota = q;
		t->set = m->sets[i + 1];
	}
}

static bool tenant_eq(const struct map_node *n, const void *key)
{
	const struct tenant *t = container_of(n, struct tenant, node);
	const struct bytes *b = key;
	return t->n == b->n && memcmp(t->name, b->p, b->n) == 0;
}

static uint16_t tenant_add(struct mind *m, struct bytes name, uint64_t hash)
{
	if (m->n_tenants >= TENANTS_MAX)
		return TENANTS_MAX;
	if (m->n_tenants == m->cap_tenants) {
		uint32_t cap = m->cap_tenants ? 2 * m->cap_tenants : 8;
		struct tenant **p = realloc(m->tenant, cap * sizeof(struct tenant *));
		if (!p)
			return TENANTS_MAX;
		m->tenant = p;
		m->cap_tenants = cap;
	}
	struct tenant *t = calloc(1, sizeof(*t));
	if (!t || map_insert(&m->tenants, &t->node, hash) != ERR_NONE) {
		free(t);
		return TENANTS_MAX;
	}
	list_init(&t->waits);
	list_init(&t->waiting);
	tenant_set(m, t, name);
	memcpy(t->name, name.p, name.n);
	t->n = (uint8_t)name.n;
	t->index = (uint16_t)m->n_tenants;
	m->bytes += sizeof(*t);
	m->tenant[m->n_tenants++] = t;
	return t->index;
}

uint16_t tenant_of(struct mind *m, struct bytes name, bool make)
{
	if (name.n == 0 || name.n > 64)
		return TENANTS_MAX;
	const struct tenant *last = m->n_tenants ? m->tenant[m->tenant_last] : NULL;
	if (last && tenant_eq(&last->node, &name))
		return last->index; /* an inventory's entries are most often of one */
	uint64_t hash = obj_key_hash(name, BYTES(NULL, 0));
	struct map_node *n = map_find(&m->tenants, hash, tenant_eq, &name);
	if (n)
		return m->tenant_last = container_of(n, struct tenant, node)->index;
	return make ? tenant_add(m, name, hash) : TENANTS_MAX;
}

struct bytes tenant_name(const struct mind *m, uint16_t index)
{
	return BYTES(m->tenant[index]->name, m->tenant[index]->n);
}

struct lru_set *set_of(const struct mind *m, const struct obj *o)
{
	return m->tenant[o->tenant]->set;
}

/* ---- bytes ---- */

static uint64_t rounded(const struct range *r, size_t n)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += alloc_round(r[i].bytes);
	return sum;
}

static void charge(struct mind *m, uint16_t tenant, uint64_t bytes, bool hard, bool on)
{
	struct tenant *t = m->tenant[tenant];
	uint64_t n = on ? bytes : -bytes;
	t->used += n;
	t->pinned += hard ? n : 0;
	m->pinned += hard ? n : 0;
}

void charge_attempt(struct mind *m, const struct attempt *a, bool on)
{
	charge(m, a->obj->tenant, rounded(a->ranges, a->n_ranges),
	       a->opts && a->opts->m.hard_pin, on);
}

void charge_copy(struct mind *m, const struct copy *c, bool on)
{
	charge(m, c->obj->tenant, rounded(c->ranges, c->n_ranges),
	       c->opts && c->opts->m.hard_pin, on);
}

/* A range that its fenced writer may still write is the tenant's until it is free; no pin holds it. */
void charge_quar(struct mind *m, const struct quar *q, bool on)
{
	if (q->tenant != TENANTS_MAX)
		charge(m, q->tenant, q->bytes, false, on);
}

void charge_pull(struct mind *m, const struct pull *p, bool on)
{
	charge(m, p->obj->tenant, rounded(p->ranges, p->n_ranges),
	       p->opts && p->opts->m.hard_pin, on);
}

static enum err pins_check(const struct mind *m, const struct tenant *t, uint64_t bytes,
			   struct why *why)
{
	uint64_t all = (uint64_t)(m->l.pinned_max * (double)m->total);
	if (t->quota && t->quota->pinned && t->pinned + bytes > t->quota->pinned)
		return why_set(why, ERR_QUOTA,
			       "hard pins of this tenant take %llu bytes, %llu are allowed "
			       "(master.tenant_pinned)",
			       (unsigned long long)t->pinned,
			       (unsigned long long)t->quota->pinned);
	if (m->l.pinned_max < 1 && m->pinned + bytes > all)
		return why_set(why, ERR_QUOTA,
			       "hard pins take %llu bytes, %llu are allowed "
			       "(master.pinned_max)",
			       (unsigned long long)m->pinned, (unsigned long long)all);
	return ERR_NONE;
}

enum err quota_check(struct mind *m, uint16_t tenant, const struct msg_put_item *it,
		     uint64_t bytes, uint64_t *over, struct why *why)
{
	const struct tenant *t = m->tenant[tenant];
	uint64_t max = t->quota ? t->quota->memory : 0;
	enum err e = it->opts && it->opts->hard_pin ? pins_check(m, t, bytes, why) : ERR_NONE;
	if (e != ERR_NONE || max == 0 || t->used + bytes <= max)
		return e;
	if (bytes > max)
		return why_set(why, ERR_QUOTA,
			       "%llu bytes, this tenant may have %llu (master.tenant_memory)",
			       (unsigned long long)bytes, (unsigned long long)max);
	*over = t->used + bytes - max;
	return ERR_BUSY;
}

bool mind_tenant(const struct mind *m, uint32_t index, struct mind_tenant *out)
{
	if (index >= m->n_tenants)
		return false;
	const struct tenant *t = m->tenant[index];
	*out = (struct mind_tenant){ .name = tenant_name(m, (uint16_t)index),
				     .objects = t->n_served,
				     .bytes = t->used,
				     .pinned = t->pinned,
				     .bytes_max = t->quota ? t->quota->memory : 0,
				     .pinned_max = t->quota ? t->quota->pinned : 0 };
	return true;
}
