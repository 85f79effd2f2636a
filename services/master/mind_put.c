/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attempts of puts: from PUT_START until the slot is COMMITTED, or the attempt is fenced; clients and
 * their windows of closed numbers (V4, V5). A key has at most one open attempt.
 */
#include "mind_priv.h"

/* ---- clients ---- */

struct client_name {
	uint16_t tenant;
	const uint8_t *id;
};

static bool client_eq(const struct map_node *n, const void *key)
{
	const struct client *c = container_of(n, struct client, node);
	const struct client_name *k = key;
	return c->tenant == k->tenant && memcmp(c->id, k->id, sizeof(c->id)) == 0;
}

static uint64_t client_hash(const struct mind *m, uint16_t tenant, const uint8_t *id)
{
	return obj_key_hash(tenant_name(m, tenant), BYTES(id, 16));
}

struct client *client_find(const struct mind *m, uint16_t tenant, const uint8_t *id)
{
	const struct client_name k = { tenant, id };
	struct map_node *n = map_find(&m->clients, client_hash(m, tenant, id), client_eq, &k);
	return n ? container_of(n, struct client, node) : NULL;
}

/* The one idle for longest goes, if no message of it can be under way any more. */
static bool client_evict(struct mind *m)
{
	if (list_empty(&m->clients_lru))
		return false;
	struct client *c = list_entry(m->clients_lru.next, struct client, lru);
	if (m->now - c->used_ns < m->l.release_ms * 1000000ull)
		return false;
	list_del(&c->lru);
	map_remove(&m->clients, &c->node);
	m->bytes -= sizeof(*c);
	free(c);
	return true;
}

struct client *client_get(struct mind *m, uint16_t tenant, const uint8_t *id)
{
	struct client *c = client_find(m, tenant, id);
	if (!c) {
		if (m->clients.n >= m->l.clients_max && !client_evict(m))
			return NULL;
		c = calloc(1, sizeof(*c));
		if (!c)
			return NULL;
		c->tenant = tenant;
		memcpy(c->id, id, sizeof(c->id));
		if (map_insert(&m->clients, &c->node, client_hash(m, tenant, id)) != ERR_NONE) {
			free(c);
			return NULL;
		}
		m->bytes += sizeof(*c);
	}
	c->used_ns = m->now;
	list_del(&c->lru);
	if (c->n_open == 0)
		list_push_back(&m->clients_lru, &c->lru);
	return c;
}

/* While something of it is open, its window stays. */
void client_hold(struct client *c)
{
	c->n_open++;
	list_del(&c->lru);
}

void client_release(struct mind *m, struct client *c)
{
	assert(c->n_open > 0);
	if (--c->n_open == 0)
		list_push_back(&m->clients_lru, &c->lru);
}

bool client_closed(const struct client *c, uint64_t number)
{
	if (number > c->top)
		return false;
	if (c->top - number >= WINDOW)
		return true;
	return c->closed[number % WINDOW / 64] >> (number % 64) & 1;
}

void client_close(struct mind *m, struct client *c, uint64_t number)
{
	if (BROKEN(m, MIND_BREAK_WINDOW))
		return;
	if (number > c->top) {
		if (number - c->top >= WINDOW)
			memset(c->closed, 0, sizeof(c->closed));
		else
			for (uint64_t n = c->top + 1; n < number; n++)
				c->closed[n % WINDOW / 64] &= ~(1ull << (n % 64));
		c->top = number;
	}
	if (c->top - number < WINDOW)
		c->closed[number % WINDOW / 64] |= 1ull << (number % 64);
}

/* ---- attempts ---- */

struct number_name {
	const struct client *client;
	uint64_t number;
};

static uint64_t number_hash(const struct number_name *k)
{
	uint64_t h = k->number * 0x9e3779b97f4a7c15 + k->client->node.hash;
	return (h ^ h >> 32) * 0xd6e8feb86659fd93;
}

static bool number_eq(const struct map_node *n, const void *key)
{
	const struct attempt *a = container_of(n, struct attempt, by_number);
	const struct number_name *k = key;
	return a->client == k->client && a->number == k->number;
}

static struct attempt *attempt_by_number(const struct mind *m, const struct client *c,
					 uint64_t number)
{
	const struct number_name k = { c, number };
	struct map_node *n = c ? map_find(&m->by_number, number_hash(&k), number_eq, &k) : NULL;
	return n ? container_of(n, struct attempt, by_number) : NULL;
}

static uint64_t version_hash(uint64_t v)
{
	v = (v ^ v >> 32) * 0x9e3779b97f4a7c15;
	return v ^ v >> 29;
}

static bool version_eq(const struct map_node *n, const void *key)
{
	return container_of(n, struct attempt, by_version)->version == *(const uint64_t *)key;
}

struct attempt *attempt_of(const struct mind *m, uint64_t version)
{
	struct map_node *n =
		map_find(&m->by_version, version_hash(version), version_eq, &version);
	return n ? container_of(n, struct attempt, by_version) : NULL;
}

static size_t attempt_bytes(const struct attempt *a)
{
	return sizeof(*a) + a->n_ranges * sizeof(struct range) +
	       (a->cond ? sizeof(*a->cond) + a->cond->key_n : 0);
}

static void attempt_free(struct mind *m, struct attempt *a)
{
	m->bytes -= attempt_bytes(a);
	opts_free(m, a->opts);
	free(a->cond);
	free(a);
}

static void attempt_unlink(struct mind *m, struct attempt *a)
{
	map_remove(&m->by_version, &a->by_version);
	map_remove(&m->by_number, &a->by_number);
	list_del(&a->of_holder);
	m->holders[a->holder]->n_attempts--;
	list_del(&a->of_time);
	a->obj->work->attempt = NULL;
	charge_attempt(m, a, false);
	group_attempt(m, a->opts, false);
	client_close(m, a->client, a->number);
	client_release(m, a->client);
}

void attempt_end(struct mind *m, struct attempt *a, bool give)
{
	struct obj *o = a->obj;
	if (give)
		space_give(m, m->holders[a->holder], a->segment, a->ranges, a->n_ranges);
	attempt_unlink(m, a);
	attempt_free(m, a);
	obj_step(m, o);
}

void attempt_say(struct mind *m, const struct attempt *a)
{
	const struct holder *h = m->holders[a->holder];
	struct extent ext[OBJ_EXTENTS_MAX];
	for (size_t i = 0; i < a->n_ranges; i++)
		ext[i] = (struct extent){ a->segment, a->ranges[i].offset, a->ranges[i].bytes };
	struct mind_cmd cmd = { .op = MIND_FENCE,
				.holder = h->index,
				.under = h->under,
				.version = a->version,
				.extents = ext,
				.n_extents = a->n_ranges };
	if (h->state == HOLDER_MERGED)
		m->out.command(m->out.ctx, &cmd);
}

void attempt_fence(struct mind *m, struct attempt *a)
{
	if (a->fencing)
		return;
	a->fencing = true;
	list_del(&a->of_time);
	attempt_say(m, a);
}

struct copy *attempt_commit(struct mind *m, struct attempt *a, uint32_t slot,
			    uint64_t generation, uint64_t sum)
{
	struct copy *c = copy_new(m, a->obj, m->holders[a->holder], slot, a->n_ranges);
	if (!c)
		return NULL;
	c->version = a->version;
	c->generation = generation;
	c->size = a->size;
	c->sum = sum;
	c->segment = a->segment;
	c->merge = m->holders[a->holder]->merge;
	memcpy(c->ranges, a->ranges, a->n_ranges * sizeof(struct range));
	attempt_unlink(m, a);
	c->opts = TAKE(a->opts);
	charge_copy(m, c, true);
	group_link(m, c);
	copy_state(m, c, COPY_COMMITTED);
	attempt_free(m, a);
	return c;
}

bool attempts_due(struct mind *m)
{
	for (int n = 0; n < 256; n++) {
		if (list_empty(&m->times))
			return false;
		struct attempt *a = list_entry(m->times.next, struct attempt, of_time);
		if (m->now - a->progress_ns < m->l.discard_ms * 1000000ull)
			return false;
		attempt_fence(m, a);
	}
	return true;
}

void mind_discard(struct mind *m, uint64_t version)
{
	mind_enter(m);
	struct attempt *a = attempt_of(m, version);
	if (a)
		attempt_fence(m, a);
	mind_leave(m);
}

bool mind_open_attempt(const struct mind *m, uint32_t holder, const struct mind_under *u,
		       uint64_t version)
{
	const struct attempt *a = attempt_of(m, version);
	const struct pull *p = pull_of(m, version, holder);
	bool open = (a && a->holder == holder && !a->fencing) ||
		    (p && (p->state == PULL_SAID || p->state == PULL_TAKEN));
	return open && same_under(u, &m->holders[holder]->under) &&
	       m->holders[holder]->state == HOLDER_MERGED;
}

/* ---- PUT_START ---- */

enum err key_check(struct bytes key, struct why *why)
{
	if (key.n == 0 || key.n > OBJ_KEY_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "a key of %zu bytes, 1..%d allowed",
			       key.n, OBJ_KEY_MAX);
	return ERR_NONE;
}

enum err who_check(struct mind *m, const struct mind_who *w, uint16_t *tenant, struct why *why)
{
	if (w->term != 0 && w->term != m->term && !BROKEN(m, MIND_BREAK_TERM))
		return why_set(why, ERR_STALE_TERM, "sent under term %llu, this is %llu",
			       (unsigned long long)w->term, (unsigned long long)m->term);
	*tenant = tenant_of(m, w->tenant, true);
	if (*tenant == TENANTS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "no tenant, or too many of them");
	return ERR_NONE;
}

static enum err item_check(const struct msg_put_item *it, struct why *why)
{
	enum err e = key_check(it->key, why);
	if (e != ERR_NONE)
		return e;
	if (it->size > OBJ_SIZE_MAX)
		return why_set(why, ERR_TOO_LARGE, "%llu bytes, an object has at most 1 TiB",
			       (unsigned long long)it->size);
	if (it->require_key.n > OBJ_KEY_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "require_key of %zu bytes, at most %d",
			       it->require_key.n, OBJ_KEY_MAX);
	uint32_t num = it->opts ? MAX_OF(it->opts->replica_num, 1u) : 1;
	if (num > OBJ_EXTENTS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "replica_num %u, at most %d", num,
			       OBJ_EXTENTS_MAX);
	if (it->replicas_required > num)
		return why_set(why, ERR_INVALID_PARAMS,
			       "replicas_required %u, replica_num is %u", it->replicas_required,
			       num);
	if (it->opts && it->opts->durable)
		return why_set(why, ERR_UNSUPPORTED, "this release has no disk tier");
	return ERR_NONE;
}

static void grant(struct mind_put *p, const struct attempt *a)
{
	p->version = a->version;
	p->pool_epoch = a->pool_epoch;
	p->holder = a->holder;
	p->n_extents = a->n_ranges;
	for (size_t i = 0; i < a->n_ranges; i++)
		p->extents[i] =
			(struct extent){ a->segment, a->ranges[i].offset, a->ranges[i].bytes };
}

static uint32_t ms_until(const struct mind *m, uint64_t at)
{
	return at > m->now ? (uint32_t)MIN_OF((at - m->now) / 1000000 + 1, 60000ull) : 1;
}

/* Somebody puts this key: an attempt is open, or its version waits for T2. */
static enum err writing(const struct mind *m, const struct obj *o, struct mind_call *c)
{
	const struct attempt *a = o && o->work ? o->work->attempt : NULL;
	c->retry_ms = RETRY_MS;
	if (a) {
		uint64_t at = a->progress_ns + m->l.discard_ms * 1000000ull;
		c->retry_ms = a->fencing ? RETRY_MS : MIN_OF(ms_until(m, at), 1000u);
		return why_set(&c->why, ERR_BUSY_WRITING, "version %llx is being written",
			       (unsigned long long)a->version);
	}
	for (const struct copy *k = o ? o->copies : NULL; k; k = k->next)
		if (k->state == COPY_COMMITTED && !(k->flags & COPY_SERVED) &&
		    holder_in(m->holders[k->holder]))
			return why_set(&c->why, ERR_BUSY_WRITING,
				       "version %llx is being published",
				       (unsigned long long)k->version);
	c->retry_ms = 0;
	return ERR_NONE;
}

static enum err absent_ok(const struct mind *m, const struct obj *o, struct mind_call *c)
{
	if (m->n_unmerged == 0)
		return ERR_NONE;
	c->retry_ms = RETRY_MS;
	return why_set(&c->why, ERR_RECOVERING,
		       "the master is still merging what holders have");
}

static bool version_is(const struct mind *m, const struct obj *o, uint64_t version)
{
	const struct copy *c = obj_served(m, o);
	return c && c->version == version;
}

static enum err condition(const struct mind *m, uint16_t tenant, const struct obj *o,
			  const struct msg_put_item *it, struct mind_call *c)
{
	if (it->if_version && !version_is(m, o, it->if_version)) {
		if (!obj_served(m, o) && absent_ok(m, o, c) != ERR_NONE)
			return ERR_RECOVERING;
		return why_set(&c->why, ERR_CONFLICT, "the key has another version than %llx",
			       (unsigned long long)it->if_version);
	}
	if (it->require_key.n == 0)
		return ERR_NONE;
	const struct obj *r = obj_find(m, tenant, it->require_key);
	if (version_is(m, r, it->require_version))
		return ERR_NONE;
	if (!obj_served(m, r) && absent_ok(m, r, c) != ERR_NONE)
		return ERR_RECOVERING;
	return why_set(&c->why, ERR_CONFLICT, "require_key has another version than %llx",
		       (unsigned long long)it->require_version);
}

static enum err may_put(struct mind *m, uint16_t tenant, const struct obj *o,
			const struct msg_put_item *it, struct mind_call *c)
{
	enum err e = writing(m, o, c);
	if (e != ERR_NONE)
		return e;
	const struct copy *served = obj_served(m, o);
	if (!served) {
		e = absent_ok(m, o, c);
	} else if (!it->upsert || it->if_absent) {
		e = obj_readable(m, o)
			    ? why_set(&c->why, ERR_ALREADY_EXISTS, "the key has version %llx",
				      (unsigned long long)served->version)
			    : why_set(&c->why, ERR_TEMPORARILY_AWAY,
				      "its holder is being adopted");
		c->retry_ms = e == ERR_TEMPORARILY_AWAY ? RETRY_MS : 0;
	}
	return e != ERR_NONE ? e : condition(m, tenant, o, it, c);
}

static enum err cond_copy(const struct msg_put_item *it, struct attempt *a)
{
	if (!it->if_version && it->require_key.n == 0)
		return ERR_NONE;
	struct cond *c = calloc(1, sizeof(*c) + it->require_key.n);
	if (!c)
		return ERR_NO_MEMORY;
	c->if_version = it->if_version;
	c->require_version = it->require_version;
	c->key_n = (uint16_t)it->require_key.n;
	if (it->require_key.n)
		memcpy(c->key, it->require_key.p, it->require_key.n);
	a->cond = c;
	return ERR_NONE;
}

bool cond_holds(const struct mind *m, const struct attempt *a)
{
	const struct cond *c = a->cond;
	if (!c)
		return true;
	if (c->if_version && !version_is(m, a->obj, c->if_version))
		return false;
	return c->key_n == 0 ||
	       version_is(m, obj_find(m, a->obj->tenant, BYTES(c->key, c->key_n)),
			  c->require_version);
}

static bool attempt_insert(struct mind *m, struct attempt *a)
{
	const struct number_name k = { a->client, a->number };
	if (map_insert(&m->by_version, &a->by_version, version_hash(a->version)) != ERR_NONE)
		return false;
	if (map_insert(&m->by_number, &a->by_number, number_hash(&k)) == ERR_NONE)
		return true;
	map_remove(&m->by_version, &a->by_version);
	return false;
}

static struct attempt *attempt_new(struct mind *m, struct obj *o, struct client *client,
				   const struct msg_put_item *it, const struct place *at)
{
	struct attempt *a = malloc(sizeof(*a) + at->n * sizeof(struct range));
	if (!a)
		return NULL;
	*a = (struct attempt){ .client = client,
			       .obj = o,
			       .number = it->attempt,
			       .version = m->last + 1,
			       .size = it->size,
			       .pool_epoch = at->h->under.pool_epoch,
			       .progress_ns = m->now,
			       .segment = at->segment,
			       .holder = (uint16_t)at->h->index,
			       .n_ranges = (uint8_t)at->n };
	memcpy(a->ranges, at->r, at->n * sizeof(struct range));
	struct msg_put_opts opts = it->opts ? *it->opts : (struct msg_put_opts){ 0 };
	opts.replicas_required = it->replicas_required;
	if (cond_copy(it, a) != ERR_NONE || opts_copy(m, &opts, &a->opts) != ERR_NONE ||
	    group_join(m, o->tenant, a->opts) != ERR_NONE || !work_get(m, o) ||
	    !attempt_insert(m, a)) {
		opts_free(m, a->opts);
		free(a->cond);
		free(a);
		return NULL;
	}
	m->last++;
	o->work->attempt = a;
	list_push_back(&at->h->attempts, &a->of_holder);
	at->h->n_attempts++;
	list_push_back(&m->times, &a->of_time);
	client_hold(client);
	m->bytes += attempt_bytes(a);
	charge_attempt(m, a, true);
	group_attempt(m, a->opts, true);
	return a;
}

/* at[0]: the client's; the others are for the copies that the put waits for. */
static enum err put_begin(struct mind *m, uint16_t tenant, struct client *client,
			  const struct msg_put_item *it, const struct place *at, size_t n,
			  struct mind_put *p)
{
	struct obj *o;
	enum err e = obj_get(m, tenant, it->key, &o);
	if (e != ERR_NONE)
		return why_set(&p->call.why, e, "the index is full (master.index_bytes_max)");
	struct attempt *a = attempt_new(m, o, client, it, at);
	if (!a) {
		work_gc(m, o);
		obj_gc(m, o);
		return ERR_NO_MEMORY;
	}
	for (size_t i = 1; i < n; i++) /* without memory: another place is looked for later */
		(void)pull_new(m, o, a->version, a->size, &a->opts->m, &at[i]);
	m->n.puts++;
	grant(p, a);
	return ERR_NONE;
}

/* A client whose stopped writers hold too much gets no more (spec: quarantine_max). */
static bool quarantined(const struct mind *m, const struct client *c)
{
	return c->quarantine > 0 &&
	       (double)m->quarantine > m->l.quarantine_max * (double)m->total;
}

/* Something is evicted and the put waits, or why nothing can be (B2). only: among this tenant's. */
static enum err put_room(struct mind *m, struct tenant *only, uint64_t bytes,
			 struct mind_put *p, struct list **wait)
{
	enum err e = ERR_NONE;
	if (evict_for(m, only, bytes, &e, &p->call.retry_ms)) {
		*wait = only ? &only->waits : &m->space;
		if (only && !list_linked(&only->waiting))
			list_push_back(&m->over_quota, &only->waiting);
		return ERR_NONE;
	}
	return why_set(&p->call.why, e,
		       e == ERR_POOL_PINNED ? "everything in the pool is hard-pinned"
		       : e == ERR_QUOTA	    ? "all that this tenant may have is hard-pinned "
					      "(master.tenant_memory)"
		       : only ? "this tenant's quota is used up, by what is leased or being "
				"written (master.tenant_memory)"
			      : "no space: all of it is leased or being written");
}

/* A quota is charged before anything is allocated; who is over it evicts its own. */
static enum err put_quota(struct mind *m, uint16_t tenant, const struct msg_put_item *it,
			  uint64_t bytes, struct mind_put *p, struct list **wait)
{
	uint64_t over = 0;
	if (bytes > space_largest(m))
		return ERR_NONE; /* TOO_LARGE comes before anything is evicted */
	uint64_t all = alloc_round(bytes) * MAX_OF(it->replicas_required, 1u);
	enum err e = quota_check(m, tenant, it, all, &over, &p->call.why);
	return e == ERR_BUSY ? put_room(m, m->tenant[tenant], over, p, wait) : e;
}

/* B1: a new key finds no room in the index; what was used longest ago goes. */
static enum err put_index(struct mind *m, struct mind_put *p, struct list **wait)
{
	enum err e = ERR_NONE;
	if (m->bytes < m->l.index_bytes_max)
		return ERR_NONE;
	if (evict_index(m, &e, &p->call.retry_ms)) {
		*wait = &m->space;
		return ERR_NONE;
	}
	return why_set(&p->call.why, e,
		       "the index is full (master.index_bytes_max), of what is %s",
		       e == ERR_POOL_PINNED ? "hard-pinned" : "leased or being written");
}

static void places_give(struct mind *m, const struct place *at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		space_give(m, at[i].h, at[i].segment, at[i].r, at[i].n);
}

/* As many holders as it has to wait for, each another one. */
static enum err put_places(struct mind *m, const struct msg_put_item *it, uint64_t bytes,
			   struct place at[OBJ_EXTENTS_MAX], size_t *n, struct why *why)
{
	size_t want = MAX_OF(it->replicas_required, 1u);
	enum err e = space_take(m, bytes, &it->preferred, &at[0], why);
	if (e != ERR_NONE)
		return e;
	for (*n = 1; *n < want && e == ERR_NONE; *n += e == ERR_NONE)
		e = copy_place_beside(m, bytes, &it->preferred, at, *n, &at[*n]);
	if (e == ERR_NONE)
		return e;
	places_give(m, at, *n);
	if (e == ERR_NOT_READY)
		why_note(why, e, "replicas_required %zu, %zu holders can have one", want, *n);
	return e;
}

static enum err put_place(struct mind *m, uint16_t tenant, struct client *client,
			  const struct msg_put_item *it, struct mind_put *p, struct list **wait)
{
	struct place at[OBJ_EXTENTS_MAX];
	size_t n = 0;
	uint64_t bytes = obj_stored_bytes(it->size);
	enum err e = put_quota(m, tenant, it, bytes, p, wait);
	if (e != ERR_NONE || *wait)
		return e;
	e = put_places(m, it, bytes, at, &n, &p->call.why);
	if (e == ERR_NO_SPACE)
		return put_room(m, NULL, alloc_round(bytes), p, wait);
	if (e == ERR_RECOVERING || e == ERR_NOT_READY)
		p->call.retry_ms = RETRY_MS;
	if (e != ERR_NONE)
		return e;
	e = put_begin(m, tenant, client, it, at, n, p);
	if (e != ERR_NONE)
		places_give(m, at, n);
	return e;
}

/* B1, and a client whose stopped writers hold too much. */
static enum err put_limits(struct mind *m, const struct client *c, struct mind_call *call)
{
	call->retry_ms = 1000;
	if (m->by_version.n >= ATTEMPTS_MAX)
		return why_set(&call->why, ERR_BUSY, "%d puts are open", ATTEMPTS_MAX);
	if (quarantined(m, c))
		return why_set(&call->why, ERR_BUSY,
			       "stopped writers of this client hold too much space");
	call->retry_ms = 0;
	return ERR_NONE;
}

static enum err put_client(struct mind *m, uint16_t tenant, struct client *client,
			   const struct wput *w, struct list **wait)
{
	const struct msg_put_item *it = &w->item;
	struct mind_call *c = &w->put->call;
	const struct obj *o = obj_find(m, tenant, it->key);
	struct attempt *a = attempt_by_number(m, client, it->attempt);
	if (a && a->obj != o)
		return why_set(&c->why, ERR_INVALID_PARAMS, "an attempt's number for two keys");
	if (a) {
		grant(w->put, a);
		return ERR_NONE;
	}
	if (client_closed(client, it->attempt))
		return why_set(&c->why, ERR_EXISTS, "DONE: attempt %llu is closed",
			       (unsigned long long)it->attempt);
	enum err e = put_limits(m, client, c);
	e = e != ERR_NONE ? e : group_may_put(m, tenant, o, it, wait, &c->why);
	if (e != ERR_NONE || *wait)
		return e;
	e = may_put(m, tenant, o, it, c);
	if (e == ERR_NONE && !o)
		e = put_index(m, w->put, wait);
	if (*wait)
		return e;
	return e != ERR_NONE ? e : put_place(m, tenant, client, it, w->put, wait);
}

enum err put_try(struct mind *m, const struct wput *w, struct list **wait)
{
	struct mind_call *c = &w->put->call;
	uint16_t tenant;
	enum err e = item_check(&w->item, &c->why);
	e = e != ERR_NONE ? e : who_check(m, &w->who, &tenant, &c->why);
	if (e != ERR_NONE)
		return e;
	struct client *client = client_get(m, tenant, w->who.client);
	if (client)
		return put_client(m, tenant, client, w, wait);
	c->retry_ms = 1000;
	return why_set(&c->why, ERR_BUSY, "too many clients (master.clients_max)");
}

void mind_put_start(struct mind *m, const struct mind_who *w, const struct msg_put_item *it,
		    struct mind_put *p)
{
	struct wput one = { p, *w, *it }, *kept;
	struct list *wait = NULL;
	mind_enter(m);
	call_init(&p->call, CALL_PLAIN);
	bool waited = space_waited(m);
	enum err e = put_try(m, &one, &wait);
	if (!wait) {
		call_end(m, &p->call, e);
	} else if ((kept = malloc(sizeof(*kept)))) {
		*kept = one;
		if (!waited)
			m->space_ns = m->now + RETRY_MS * 1000000ull;
		call_wait(m, &p->call, wait, kept);
	} else {
		call_end(m, &p->call, ERR_NO_MEMORY);
	}
	mind_leave(m);
}

/* ---- giving up, going on ---- */

static enum err own_attempt(struct mind *m, const struct mind_who *w, uint64_t number,
			    uint64_t version, struct attempt **out)
{
	uint16_t tenant;
	struct why why = { 0 };
	*out = NULL;
	enum err e = who_check(m, w, &tenant, &why);
	if (e != ERR_NONE)
		return e;
	struct client *c = client_find(m, tenant, w->client);
	struct attempt *a = attempt_by_number(m, c, number);
	if (a && a->version == version) {
		*out = a;
		return ERR_NONE;
	}
	return c && !a && client_closed(c, number) ? ERR_NONE : ERR_STALE_ATTEMPT;
}

enum err mind_put_revoke(struct mind *m, const struct mind_who *w, uint64_t attempt,
			 uint64_t version)
{
	struct attempt *a;
	mind_enter(m);
	enum err e = own_attempt(m, w, attempt, version, &a);
	if (e == ERR_NONE && a)
		attempt_fence(m, a);
	mind_leave(m);
	return e;
}

enum err mind_put_progress(struct mind *m, const struct mind_who *w, uint64_t attempt,
			   uint64_t version)
{
	struct attempt *a;
	mind_enter(m);
	enum err e = own_attempt(m, w, attempt, version, &a);
	if (e == ERR_NONE && (!a || a->fencing))
		e = ERR_STALE_ATTEMPT;
	if (e == ERR_NONE) {
		a->progress_ns = m->now;
		list_del(&a->of_time);
		list_push_back(&m->times, &a->of_time);
	}
	mind_leave(m);
	return e;
}

void mind_fenced(struct mind *m, uint32_t holder, const struct mind_under *u, uint64_t version,
		 const struct msg_fence_res *res)
{
	struct holder *h = holder_at(m, holder);
	struct attempt *a = attempt_of(m, version);
	struct pull *p = pull_of(m, version, holder);
	if (!h || h->state != HOLDER_MERGED || !same_under(u, &h->under))
		return;
	a = a && a->holder == holder && a->fencing ? a : NULL;
	p = p && p->state == PULL_FENCING ? p : NULL;
	if (!a && !p)
		return;
	mind_enter(m);
	if (!a) {
		pull_fenced(m, p, res);
	} else if (res->state == 1) {
		struct obj *o = a->obj;
		if (slot_vacant(m, h, res->slot, res->generation) &&
		    attempt_commit(m, a, res->slot, res->generation, res->sum))
			obj_step(m, o);
	} else if (res->state == 2) {
		attempt_end(m, a, true);
	} else if (res->state == 3) {
		quar_add(m, h, a);
		attempt_end(m, a, false);
	}
	mind_leave(m);
}
