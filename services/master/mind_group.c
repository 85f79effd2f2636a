/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Object groups: members are evicted together and never singly.
 *
 * G1: with a size, a member is readable only while as many are whole; the loss of one retires the rest.
 * G2: an eviction has an id, the version counter now. RETIRE with that id goes to every member up to it;
 *     nothing is freed, and all stay readable, until all are acknowledged and each holder that is away has
 *     a tombstone of the group. Then none is readable any more, and FREE follows.
 * G3: a merge that meets the mark of an eviction finishes it. Until every holder is merged no member is
 *     shown: the mark may lie at the last of them. So whoever dies when, all are seen or none.
 * G4: a put into a group that goes waits for its end, so that its version is above the id.
 *
 * However many members there are, a slice of some is looked at in one go (I6).
 */
#include "mind_priv.h"

enum {
	MEMBERS_MAX = 1 << 20,
	LOOK = 65536,	   /* members looked at for reads in one turn */
	EXACT_LEASE = 256, /* members: beyond, a lease given back early ends by time */
};

struct group_name {
	uint16_t tenant;
	struct bytes id;
};

static bool group_eq(const struct map_node *n, const void *key)
{
	const struct group *g = container_of(n, struct group, node);
	const struct group_name *k = key;
	return g->tenant == k->tenant && g->id_n == k->id.n &&
	       memcmp(g->id, k->id.p, k->id.n) == 0;
}

static struct group *group_find(const struct mind *m, uint16_t tenant, struct bytes id,
				uint64_t *hash)
{
	const struct group_name k = { tenant, id };
	*hash = obj_key_hash(tenant_name(m, tenant), id);
	struct map_node *n = map_find(&m->groups, *hash, group_eq, &k);
	return n ? container_of(n, struct group, node) : NULL;
}

static size_t group_bytes(const struct group *g)
{
	return sizeof(*g) + g->id_n;
}

static struct group *group_new(struct mind *m, uint16_t tenant, struct bytes id, uint64_t hash)
{
	struct group *g = calloc(1, sizeof(*g) + id.n);
	if (!g)
		return NULL;
	struct list *lists[] = { &g->in, &g->todo, &g->dying, &g->waits, &g->pulls };
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_init(lists[i]);
	g->tenant = tenant;
	g->id_n = (uint16_t)id.n;
	memcpy(g->id, id.p, id.n);
	if (map_insert(&m->groups, &g->node, hash) != ERR_NONE) {
		free(g);
		return NULL;
	}
	m->bytes += group_bytes(g);
	return g;
}

/* Something is to be done for it, or nothing is left of it. */
static void look(struct mind *m, struct group *g)
{
	if (!list_linked(&g->look))
		list_push_back(&m->groups_look, &g->look);
}

static void group_free(struct mind *m, struct group *g)
{
	assert(!list_linked(&g->lru) && !list_linked(&g->evicting) && list_empty(&g->waits));
	list_del(&g->look);
	map_remove(&m->groups, &g->node);
	m->bytes -= group_bytes(g);
	free(g);
}

enum err group_join(struct mind *m, uint16_t tenant, struct opts *o)
{
	uint64_t hash;
	if (!o || o->m.group.n == 0)
		return ERR_NONE;
	struct group *g = group_find(m, tenant, o->m.group, &hash);
	g = g ? g : group_new(m, tenant, o->m.group, hash);
	if (!g)
		return ERR_NO_MEMORY;
	if (g->n_linked == 0 && g->n_attempts == 0)
		g->size = o->m.group_size;
	o->group = g;
	look(m, g); /* what joins may not stay */
	return ERR_NONE;
}

void group_attempt(struct mind *m, struct opts *o, bool on)
{
	struct group *g = o ? o->group : NULL;
	if (!g)
		return;
	g->n_attempts += on ? 1 : -1u;
	look(m, g);
}

/* ---- members ---- */

static struct copy *copy_of(struct list *it)
{
	return list_entry(it, struct opts, member)->copy;
}

/* Does it go with the eviction under way? */
static bool goes(const struct group *g, const struct copy *c)
{
	return g->phase != GROUP_WHOLE && c->version <= g->evict_id;
}

/* o leaves its list. */
static void unknown_leave(struct group *g, const struct opts *o)
{
	if (g->unknown == &o->member)
		g->unknown = o->member.next;
}

static void put_in(struct list *l, struct opts *o, enum member state)
{
	struct group *g = o->group;
	unknown_leave(g, o);
	list_del(&o->member);
	o->state = state;
	list_push_back(l, &o->member);
	if (l == &g->in && g->unknown == &g->in)
		g->unknown = &o->member;
}

void group_link(struct mind *m, struct copy *c)
{
	struct opts *o = c->opts;
	struct group *g = o ? o->group : NULL;
	if (!g)
		return;
	o->copy = c;
	o->space = 0;
	for (size_t i = 0; i < c->n_ranges; i++)
		o->space += alloc_round(c->ranges[i].bytes);
	g->n_linked++;
	g->n_hard += o->m.hard_pin;
	g->bytes += o->space;
	put_in(goes(g, c) ? &g->todo : &g->in, o, MEMBER_IN);
	look(m, g);
}

static enum lru class_of(const struct group *g);

static void set_owed(struct mind *m, struct opts *o, bool owed)
{
	if (o->owed == owed)
		return;
	o->owed = owed;
	o->group->n_owed += owed ? 1 : -1u;
	if (!owed)
		look(m, o->group);
}

void group_leave(struct mind *m, struct opts *o)
{
	struct group *g = o ? o->group : NULL;
	if (!g)
		return;
	if (o->state != MEMBER_NONE) {
		set_owed(m, o, false);
		unknown_leave(g, o);
		list_del(&o->member);
		o->state = MEMBER_NONE;
		g->n_linked--;
		g->n_hard -= o->m.hard_pin;
		g->n_soft -= o->soft.linked;
		g->bytes -= o->space;
		if (list_linked(&g->lru) && g->which != class_of(g))
			group_place(m, g, true);
	}
	o->group = NULL;
	look(m, g);
}

void group_state(struct mind *m, struct copy *c)
{
	struct opts *o = c->opts;
	if (o && o->group && o->state == MEMBER_DYING)
		set_owed(m, o, c->state < COPY_RETIRED);
}

bool group_holds(const struct copy *c)
{
	const struct opts *o = c->opts;
	return o && o->group &&
	       (o->state == MEMBER_DYING || (o->state == MEMBER_IN && goes(o->group, c)));
}

struct group *group_of(const struct obj *o)
{
	for (const struct copy *c = o->copies; c; c = c->next)
		if ((c->flags & COPY_SERVED) && c->opts && c->opts->group)
			return c->opts->group;
	return NULL;
}

static bool counts(const struct copy *c, const struct group *g)
{
	return (c->flags & COPY_SERVED) && c->opts && c->opts->group == g;
}

/* Is another copy of its object served in this group? An older version may be, at a holder that has gone. */
static bool twin(const struct copy *c, const struct group *g)
{
	for (const struct copy *k = c->obj->copies; k; k = k->next)
		if (k != c && counts(k, g))
			return true;
	return false;
}

void group_served(struct mind *m, struct copy *c, bool on)
{
	struct opts *o = c->opts;
	struct group *g = o ? o->group : NULL;
	if (!g)
		return;
	uint32_t one = on ? 1 : -1u;
	g->n_served += one;
	g->n_ready += twin(c, g) ? 0 : one;
	g->whole |= g->size && g->n_ready >= g->size;
	if (on) {
		group_used(m, g);
		return;
	}
	if (g->n_ready == 0 && list_linked(&g->lru)) {
		list_del(&g->lru);
		m->tenant[g->tenant]->set->groups[g->which].n--;
	}
	look(m, g);
	if (!group_holds(c))
		group_leave(m, o);
}

/* ---- order of use, leases ---- */

static enum lru class_of(const struct group *g)
{
	return g->n_hard ? LRU_HARD : g->n_soft ? LRU_SOFT : LRU_PLAIN;
}

void group_place(struct mind *m, struct group *g, bool old)
{
	struct lru_set *s = m->tenant[g->tenant]->set;
	if (list_linked(&g->lru)) {
		list_del(&g->lru);
		s->groups[g->which].n--;
	}
	g->which = (uint8_t)class_of(g);
	s->groups[g->which].n++;
	if (old)
		list_push_front(&s->groups[g->which].l, &g->lru);
	else
		list_push_back(&s->groups[g->which].l, &g->lru);
}

void group_used(struct mind *m, struct group *g)
{
	g->used = (uint32_t)MIN_OF((m->now - m->start_ns) >> TICK_BITS, UINT32_MAX - 1ull);
	group_place(m, g, false);
}

void group_leased(struct group *g, uint32_t tick)
{
	g->lease = MAX_OF(g->lease, tick);
}

void group_released(struct group *g)
{
	g->loose = true;
}

void group_soft(struct mind *m, struct opts *o, bool on)
{
	struct group *g = o->group;
	if (!g || o->state == MEMBER_NONE)
		return;
	g->n_soft += on ? 1 : -1u;
	if (list_linked(&g->lru) && g->which != class_of(g))
		group_place(m, g, true);
}

uint64_t group_lease_ns(const struct mind *m, struct group *g)
{
	if (g->loose && g->n_linked <= EXACT_LEASE) {
		g->lease = 0;
		g->loose = false;
		list_for_each (it, &g->in)
			g->lease = MAX_OF(g->lease, copy_of(it)->obj->lease);
	}
	return g->lease ? m->start_ns + ((uint64_t)g->lease << TICK_BITS) : 0;
}

/* ---- reading, putting ---- */

static bool member_known(const struct mind *m, struct list *it)
{
	const struct copy *c = copy_of(it);
	return copy_known(m->holders[c->holder], c);
}

/*
 * Could each member be read? Asked only while a holder is adopted again.
 * Within an era nobody who is known becomes unknown, so that each member is passed once; and of all groups
 * together LOOK members in one turn: what is not looked through is not shown yet.
 */
static bool all_known(struct mind *m, struct group *g)
{
	if (m->n_partial == 0)
		return true;
	if (g->phase != GROUP_WHOLE)
		return false; /* it goes */
	if (g->era != m->era || !g->unknown) {
		g->era = m->era;
		g->unknown = g->in.next;
	}
	if (m->looked_ns != m->now) {
		m->looked_ns = m->now;
		m->n_looked = 0;
	}
	while (g->unknown != &g->in && m->n_looked < LOOK && member_known(m, g->unknown)) {
		g->unknown = g->unknown->next;
		m->n_looked++;
	}
	return g->unknown == &g->in;
}

enum err group_readable(struct mind *m, const struct copy *c, struct why *why)
{
	struct group *g = c->opts ? c->opts->group : NULL;
	if (!g)
		return ERR_NONE;
	if (m->n_unmerged) /* G3 */
		return why_set(why, ERR_RECOVERING,
			       "the master is still merging what holders have of its group");
	if (g->phase == GROUP_DRAINING && c->version <= g->evict_id)
		return why_set(why, ERR_NOT_FOUND, "its group was evicted");
	if (g->size && (m->n_dropping || !all_known(m, g)))
		return why_set(why, ERR_TEMPORARILY_AWAY,
			       "a holder of its group is being adopted again");
	if (g->size && g->n_ready < g->size) /* G1 */
		return why_set(why, ERR_NOT_FOUND, "its group has %u of %u members", g->n_ready,
			       g->size);
	return ERR_NONE;
}

static bool is_member(const struct group *g, const struct obj *o)
{
	const struct attempt *a = o && o->work ? o->work->attempt : NULL;
	if (a && a->opts && a->opts->group == g)
		return true;
	for (const struct copy *c = o ? o->copies : NULL; c; c = c->next)
		if (c->opts && c->opts->group == g)
			return true;
	return false;
}

enum err group_may_put(struct mind *m, uint16_t tenant, const struct obj *o,
		       const struct msg_put_item *it, struct list **wait, struct why *why)
{
	uint64_t hash;
	if (!it->opts || it->opts->group.n == 0)
		return ERR_NONE;
	if (it->opts->group_size > MEMBERS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "group_size %u, at most %d",
			       it->opts->group_size, MEMBERS_MAX);
	struct group *g = group_find(m, tenant, it->opts->group, &hash);
	if (!g)
		return ERR_NONE;
	if (g->phase != GROUP_WHOLE) { /* G4 */
		*wait = &g->waits;
		return ERR_NONE;
	}
	if ((g->n_linked || g->n_attempts) && g->size != it->opts->group_size)
		return why_set(why, ERR_CONFLICT, "the group has size %u, not %u", g->size,
			       it->opts->group_size);
	if (g->n_ready + g->n_attempts >= (g->size ? g->size : MEMBERS_MAX) && !is_member(g, o))
		return why_set(why, ERR_CONFLICT, "the group has its %u members",
			       g->n_ready + g->n_attempts);
	return ERR_NONE;
}

/* ---- eviction ---- */

bool group_evictable(struct mind *m, struct group *g)
{
	return g->phase == GROUP_WHOLE && g->n_attempts == 0 && list_empty(&g->pulls) &&
	       g->n_linked == g->n_served && m->n_unmerged == 0 && m->n_partial == 0 &&
	       group_lease_ns(m, g) <= m->now;
}

/* However many: in one go. */
static void all_todo(struct group *g)
{
	struct list *first = g->in.next, *last = g->in.prev;
	if (list_empty(&g->in))
		return;
	first->prev = g->todo.prev;
	g->todo.prev->next = first;
	last->next = &g->todo;
	g->todo.prev = last;
	list_init(&g->in);
	g->unknown = NULL;
}

static void begin(struct mind *m, struct group *g, uint64_t evict_id)
{
	if (!list_linked(&g->evicting))
		list_push_back(&m->groups_evicting, &g->evicting);
	g->phase = GROUP_RETIRING;
	g->evict_id = MAX_OF(g->evict_id, evict_id);
	list_for_each (it, &g->pulls) { /* V13 */
		struct pull *p = list_entry(it, struct pull, of_group);
		if (p->version <= g->evict_id)
			pull_fence(m, p);
	}
	look(m, g);
}

void group_evict(struct mind *m, struct group *g)
{
	m->n.evictions += g->n_ready;
	begin(m, g, m->last);
	all_todo(g);
}

void group_mark(struct mind *m, struct copy *c, uint64_t evict_id)
{
	struct group *g = c->opts ? c->opts->group : NULL;
	if (!g)
		return;
	if (g->phase == GROUP_WHOLE || evict_id > g->evict_id)
		all_todo(g);
	begin(m, g, evict_id);
	put_in(&g->dying, c->opts, MEMBER_DYING);
	group_state(m, c);
}

static bool lacks(const struct mind *m, const struct holder *h, const struct group *g)
{
	return h->state == HOLDER_AWAY &&
	       meta_barred_group(h->row, 0, tenant_name(m, g->tenant), BYTES(g->id, g->id_n)) <
		       g->evict_id;
}

static void ask(struct mind *m, struct group *g, size_t n)
{
	struct app *a = m->retry_ns ? NULL : app_new(m, APP_GROUP, n);
	if (!a) {
		m->retry_ns = m->retry_ns ? m->retry_ns : m->now + RETRY_MS * 1000000ull;
		return;
	}
	a->group = g;
	for (uint32_t i = 0, at = 0; i < m->n_holders; i++)
		if (lacks(m, m->holders[i], g))
			a->recs[at++] = (struct meta_rec){
				.type = META_RANGE,
				.RANGE = { .holder = BYTES_STR(m->holders[i]->id),
					   .match = 2,
					   .tenant = tenant_name(m, g->tenant),
					   .prefix = BYTES(g->id, g->id_n),
					   .ceiling = g->evict_id,
					   .now = m->last }
			};
	g->asking++;
	app_send(m, a);
}

static bool tombs_there(struct mind *m, struct group *g)
{
	size_t n = 0;
	for (uint32_t i = 0; m->n_away && i < m->n_holders; i++)
		n += lacks(m, m->holders[i], g);
	if (n && g->asking == 0)
		ask(m, g, n);
	return n == 0;
}

void group_appended(struct mind *m, struct app *a)
{
	a->group->asking--;
	look(m, a->group);
}

static void retire_some(struct mind *m, struct group *g, size_t *n)
{
	for (; *n > 0 && !list_empty(&g->todo); --*n) {
		struct opts *o = list_entry(g->todo.next, struct opts, member);
		struct copy *c = o->copy;
		if (!goes(g, c)) {
			put_in(&g->in, o, MEMBER_IN);
			continue;
		}
		put_in(&g->dying, o, MEMBER_DYING);
		if (c->state == COPY_COMMITTED && holder_in(m->holders[c->holder]))
			copy_retire(m, c, RETIRE_EVICTED);
		group_state(m, c);
	}
}

/* They leave the index, and what is not leased is freed. */
static void drain_some(struct mind *m, struct group *g, size_t *n)
{
	for (; *n > 0 && !list_empty(&g->dying); --*n) {
		struct copy *c = copy_of(g->dying.next);
		copy_unserve(m, c);
		group_leave(m, c->opts);
		obj_step(m, c->obj);
	}
}

/* Who waited for it may put. */
static void evicted(struct mind *m, struct group *g)
{
	list_del(&g->evicting);
	g->phase = GROUP_WHOLE;
	g->whole = false;
	while (!list_empty(&g->waits))
		list_push_back(&m->space, list_pop_front(&g->waits));
	m->space_dirty = true;
}

/* true: there is more to do at once. */
static bool step(struct mind *m, struct group *g, size_t *n)
{
	if (g->phase == GROUP_WHOLE && g->whole && g->n_ready < g->size && g->n_linked)
		group_evict(m, g); /* G1 */
	if (g->phase == GROUP_RETIRING) {
		retire_some(m, g, n);
		if (!list_empty(&g->todo))
			return true;
		/* a put that commits under the evict id after the end would be retired by the next start (T2) */
		if (g->n_attempts || !list_empty(&g->pulls) || g->n_owed || m->n_unmerged ||
		    !tombs_there(m, g))
			return false;
		g->phase = GROUP_DRAINING; /* G2 */
	}
	if (g->phase == GROUP_DRAINING) {
		drain_some(m, g, n);
		if (!list_empty(&g->todo)) /* merged meanwhile */
			g->phase = GROUP_RETIRING;
		if (!list_empty(&g->dying) || !list_empty(&g->todo))
			return true;
		evicted(m, g);
	}
	return false;
}

static bool nothing_left(const struct group *g)
{
	return g->phase == GROUP_WHOLE && g->n_linked == 0 && g->n_attempts == 0 &&
	       list_empty(&g->pulls) && g->asking == 0;
}

bool groups_work(struct mind *m, size_t n)
{
	while (n > 0 && !list_empty(&m->groups_look)) {
		struct group *g = list_entry(m->groups_look.next, struct group, look);
		list_del(&g->look);
		n--;
		if (step(m, g, &n))
			look(m, g);
		else if (nothing_left(g))
			group_free(m, g);
	}
	return !list_empty(&m->groups_look);
}

void groups_kick(struct mind *m)
{
	list_for_each (it, &m->groups_evicting)
		look(m, list_entry(it, struct group, evicting));
}

static void free_one(struct map_node *n, void *arg)
{
	struct mind *m = arg;
	struct group *g = container_of(n, struct group, node);
	calls_end(m, &g->waits, ERR_SHUTTING_DOWN);
	struct list *nodes[] = { &g->lru, &g->look, &g->evicting };
	for (size_t i = 0; i < ARRAY_LEN(nodes); i++)
		list_del(nodes[i]);
	map_remove(&m->groups, n);
	free(g);
}

void groups_free(struct mind *m)
{
	uint64_t cursor = 0;
	while (map_scan(&m->groups, &cursor, 4096, free_one, m))
		;
}

/* ---- the recount ---- */

static void check_list(const struct group *g, const struct list *l, enum member state,
		       uint64_t sum[5])
{
	list_for_each (it, l) {
		const struct opts *o = list_entry(it, struct opts, member);
		const struct copy *c = o->copy;
		assert(o->state == state && c->opts == o && o->group == g);
		bool first = counts(c, g);
		for (const struct copy *k = c->obj->copies; first && k != c; k = k->next)
			first = !counts(k, g);
		sum[0]++;
		sum[1] += counts(c, g);
		sum[2] += first;
		sum[3] += o->owed;
		sum[4] += o->soft.linked;
		assert(o->owed == (state == MEMBER_DYING && c->state < COPY_RETIRED));
	}
}

void groups_check(const struct mind *m)
{
	map_for_each (n, &m->groups) {
		const struct group *g = container_of(n, struct group, node);
		uint64_t sum[5] = { 0 };
		check_list(g, &g->in, MEMBER_IN, sum);
		check_list(g, &g->todo, MEMBER_IN, sum);
		check_list(g, &g->dying, MEMBER_DYING, sum);
		assert(sum[0] == g->n_linked && sum[1] == g->n_served && sum[2] == g->n_ready &&
		       sum[3] == g->n_owed && sum[4] == g->n_soft);
		assert(list_linked(&g->lru) == (g->n_ready > 0));
		assert(list_linked(&g->evicting) == (g->phase != GROUP_WHOLE));
		assert(g->phase != GROUP_WHOLE ||
		       (list_empty(&g->todo) && list_empty(&g->dying) &&
			list_empty(&g->waits)));
	}
}
