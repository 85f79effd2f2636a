/* SPDX-License-Identifier: Apache-2.0 */
/* Life, time, calls that wait, tenants. */
#include "mind_priv.h"

enum { STEPS = 256 /* objects looked at before a call leaves; the rest in mind_work */ };

static void limits(struct mind_limits *l)
{
	l->index_bytes_max = l->index_bytes_max ? l->index_bytes_max : 16ull << 30;
	l->calls_max = l->calls_max ? l->calls_max : 65536;
	l->clients_max = l->clients_max ? l->clients_max : 65536;
	l->lease_ms = l->lease_ms ? l->lease_ms : 10000;
	l->lease_max_ms = l->lease_max_ms ? l->lease_max_ms : 60000;
	l->discard_ms = l->discard_ms ? l->discard_ms : 30000;
	l->release_ms = l->release_ms ? l->release_ms : 600000;
	l->dead_ms = l->dead_ms ? l->dead_ms : 30000;
	l->low_reserve = l->low_reserve > 0 ? l->low_reserve : 0.02;
	l->quarantine_max = l->quarantine_max > 0 ? l->quarantine_max : 0.10;
	l->high_watermark = l->high_watermark > 0 ? l->high_watermark : 0.90;
	l->evict_ratio = l->evict_ratio > 0 ? l->evict_ratio : 0.05;
	l->pinned_max = l->pinned_max > 0 ? l->pinned_max : 1;
	l->copies_per_holder = l->copies_per_holder ? l->copies_per_holder : 64;
	l->tasks_max = l->tasks_max ? l->tasks_max : 1024;
	l->task_keep_ms = l->task_keep_ms ? l->task_keep_ms : 3600000;
}

static void init(struct mind *m)
{
	struct map *maps[] = { &m->objs, &m->by_version, &m->by_number, &m->clients,
			       &m->rems, &m->tenants,	 &m->groups,	&m->pulls };
	struct list *lists[] = { &m->active,	      &m->todo,	       &m->ended,
				 &m->times,	      &m->clients_lru, &m->apps,
				 &m->space,	      &m->ranges,      &m->groups_look,
				 &m->groups_evicting, &m->tasks,       &m->tasks_run,
				 &m->over_quota };
	for (size_t i = 0; i < ARRAY_LEN(maps); i++)
		map_init(maps[i], SIZE_MAX);
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_init(lists[i]);
}

enum err mind_new(const struct mind_limits *l, const struct mind_out *o,
		  const struct meta_state *st, uint64_t now_ns, struct mind **out)
{
	struct mind *m = calloc(1, sizeof(*m));
	if (!m)
		return ERR_NO_MEMORY;
	m->l = *l;
	limits(&m->l);
	m->out = *o;
	m->st = st;
	m->now = m->start_ns = now_ns;
	m->term = meta_term(st);
	m->last = version_make(m->term, 0);
	m->rng = m->term * 0x9e3779b97f4a7c15 + 1;
	init(m);
	enum err e = tenants_init(m);
	e = e != ERR_NONE ? e : holder_load(m);
	if (e != ERR_NONE) {
		mind_free(m);
		return e;
	}
	*out = m;
	return ERR_NONE;
}

/* ---- calls ---- */

void call_init(struct mind_call *c, enum call_kind kind)
{
	c->err = ERR_NONE;
	c->retry_ms = 0;
	c->made = 0;
	c->why = (struct why){ 0 };
	list_init(&c->node);
	c->mind = NULL;
	c->on = NULL;
	c->kind = kind;
}

bool call_wait(struct mind *m, struct mind_call *c, struct list *on, void *what)
{
	if (m->n_waiting >= m->l.calls_max) {
		free(what);
		why_note(&c->why, ERR_BUSY, "%u calls wait already (master.calls_max)",
			 m->l.calls_max);
		c->retry_ms = RETRY_MS;
		call_end(m, c, ERR_BUSY);
		return false;
	}
	c->mind = m;
	c->on = what;
	m->n_waiting++;
	list_push_back(on, &c->node);
	return true;
}

void call_end(struct mind *m, struct mind_call *c, enum err e)
{
	list_del(&c->node);
	if (c->mind)
		m->n_waiting--;
	c->mind = NULL;
	free(c->on);
	c->on = NULL;
	c->err = e;
	list_push_back(&m->ended, &c->node);
}

void calls_end(struct mind *m, struct list *l, enum err e)
{
	for (struct list *it; (it = list_pop_front(l));)
		call_end(m, list_entry(it, struct mind_call, node), e);
}

void mind_drop(struct mind *m, struct mind_call *c)
{
	if (!list_linked(&c->node))
		return;
	mind_enter(m);
	struct pub *p = c->kind == CALL_PUB ? c->on : NULL;
	struct obj *o = p ? p->obj : NULL;
	list_del(&c->node);
	if (c->mind)
		m->n_waiting--;
	c->mind = NULL;
	free(c->on);
	c->on = NULL;
	if (o)
		obj_step(m, o); /* its slot's FREE waited for the answer */
	mind_leave(m);
}

void mind_kick(struct mind *m)
{
	while (!list_empty(&m->active))
		list_push_back(&m->todo, list_pop_front(&m->active));
	groups_kick(m);
}

static void run_todo(struct mind *m, size_t n)
{
	for (struct list *l; n-- > 0 && (l = list_pop_front(&m->todo));) {
		struct work *w = list_entry(l, struct work, node);
		list_push_back(&m->active, &w->node);
		obj_step(m, w->obj);
	}
}

void mind_enter(struct mind *m)
{
	m->depth++;
}

/* Calls that have ended are told so now that everything is as it should be. */
void mind_leave(struct mind *m)
{
	while (m->depth == 1) {
		run_todo(m, STEPS);
		(void)groups_work(m, STEPS);
		if (m->space_dirty)
			space_pump(m);
		range_pump(m);
		struct list *l = list_pop_front(&m->ended);
		if (!l)
			break;
		struct mind_call *c = list_entry(l, struct mind_call, node);
		c->done(c);
	}
	m->depth--;
}

/* ---- time ---- */

void mind_clock(struct mind *m, uint64_t now_ns)
{
	m->now = MAX_OF(m->now, now_ns);
}

bool mind_work(struct mind *m)
{
	bool more = false;
	mind_enter(m);
	if (m->retry_ns && m->now >= m->retry_ns) {
		m->retry_ns = 0;
		mind_kick(m);
	}
	holders_due(m);
	for (uint32_t i = 0; i < m->n_holders; i++)
		more |= holder_work(m, m->holders[i]);
	more |= attempts_due(m);
	more |= groups_work(m, 16 * STEPS);
	more |= evict_work(m);
	more |= clear_work(m);
	more |= range_work(m);
	more |= copies_work(m);
	more |= tasks_work(m);
	if (space_waited(m)) {
		m->space_dirty = true; /* a lease may have ended */
		m->space_ns = m->now + RETRY_MS * 1000000ull;
	}
	mind_leave(m);
	return more || !list_empty(&m->todo) || !list_empty(&m->groups_look);
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return b && b < a ? b : a;
}

uint64_t mind_due_ns(const struct mind *m)
{
	uint64_t due = sooner(evict_due_ns(m), m->retry_ns);
	due = MIN_OF(due, MIN_OF(copies_due_ns(m), tasks_due_ns(m)));
	if (!list_empty(&m->todo) || !list_empty(&m->groups_look) || m->evict_left ||
	    m->clear || range_walking(m))
		return 0;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		if (h->dropping || h->state == HOLDER_FINISHING)
			return 0;
		due = sooner(due, slots_later_ns(h));
		due = sooner(due, h->retry_ns);
		due = sooner(due, h->row_ns);
		due = sooner(due, h->readopt_ns);
		if (h->state == HOLDER_SILENT && h->n_addrs && !h->appending)
			return 0;
		if (holder_in(h) && h->state <= HOLDER_ADOPTING && !h->want_in && !h->want_away)
			due = sooner(due, m->start_ns + m->l.dead_ms * 1000000ull);
	}
	if (!list_empty(&m->times)) {
		const struct attempt *a = list_entry(m->times.next, struct attempt, of_time);
		due = sooner(due, a->progress_ns + m->l.discard_ms * 1000000ull);
	}
	if (space_waited(m)) {
		if (evict_turning(m))
			return 0;
		due = sooner(due, m->space_ns);
	}
	return due;
}

/* ---- appends ---- */

void retry_later(struct mind *m)
{
	m->retry_ns = m->now + RETRY_MS * 1000000ull;
}

void mind_appended(struct mind *m, struct mind_append *pub, enum err e)
{
	struct app *a = container_of(pub, struct app, pub);
	mind_enter(m);
	list_del(&a->node);
	m->bytes -= a->bytes;
	if (e == ERR_NO_SPACE || e == ERR_BUSY || e == ERR_NO_MEMORY)
		retry_later(m);
	else if (e != ERR_NONE && e != ERR_NOT_FOUND && e != ERR_CONFLICT)
		m->failed = e;
	switch (a->kind) {
	case APP_TOMB:
		a->obj->work->asking--;
		if (e == ERR_NONE || e == ERR_NOT_FOUND || e == ERR_CONFLICT)
			obj_step(m, a->obj);
		break;
	case APP_HOLDER:
	case APP_SETTLED:
		holder_appended(m, a, e);
		break;
	case APP_RANGE:
		range_appended(m, a, e);
		break;
	case APP_GROUP:
		group_appended(m, a);
		break;
	}
	free(a);
	mind_leave(m);
}

struct app *app_new(struct mind *m, enum app_kind kind, size_t n)
{
	size_t bytes = sizeof(struct app) + n * sizeof(struct meta_rec);
	struct app *a = calloc(1, bytes);
	if (!a)
		return NULL;
	a->kind = kind;
	a->bytes = bytes;
	a->pub.recs = a->recs;
	a->pub.n = n;
	m->bytes += bytes;
	return a;
}

void app_send(struct mind *m, struct app *a)
{
	list_push_back(&m->apps, &a->node);
	m->out.append(m->out.ctx, &a->pub);
}

/* ---- the end ---- */

static void free_obj(struct map_node *n, void *arg)
{
	struct mind *m = arg;
	struct obj *o = container_of(n, struct obj, node);
	struct work *w = o->work;
	if (w) {
		calls_end(m, &w->pubs, ERR_SHUTTING_DOWN);
		for (struct list *l; (l = list_pop_front(&w->rems));) {
			struct rem *r = list_entry(l, struct rem, node);
			calls_end(m, &r->calls, ERR_SHUTTING_DOWN);
			free(r);
		}
		if (w->attempt) {
			opts_free(m, w->attempt->opts);
			free(w->attempt->cond);
			free(w->attempt);
		}
		for (struct pull *p = w->pulls, *next; p; p = next) {
			next = p->next;
			pull_free(m, p);
		}
		free(w);
	}
	for (struct copy *c = o->copies, *next; c; c = next) {
		next = c->next;
		opts_free(m, c->opts);
		free(c);
	}
	map_remove(&m->objs, &o->node);
	free(o);
}

static void free_client(struct map_node *n, void *arg)
{
	struct mind *m = arg;
	map_remove(&m->clients, n);
	free(container_of(n, struct client, node));
}

void mind_free(struct mind *m)
{
	if (!m)
		return;
	m->depth = 2; /* nothing is pumped any more */
	uint64_t cursor = 0;
	ranges_free(m);
	clear_free(m);
	tasks_free(m);
	calls_end(m, &m->space, ERR_SHUTTING_DOWN);
	for (uint32_t i = 0; i < m->n_tenants; i++)
		calls_end(m, &m->tenant[i]->waits, ERR_SHUTTING_DOWN);
	while (map_scan(&m->objs, &cursor, 4096, free_obj, m))
		;
	groups_free(m);
	cursor = 0;
	while (map_scan(&m->clients, &cursor, 4096, free_client, m))
		;
	holders_free(m);
	for (struct list *l; (l = list_pop_front(&m->ended));) {
		struct mind_call *c = list_entry(l, struct mind_call, node);
		c->done(c);
	}
	for (struct list *l; (l = list_pop_front(&m->apps));) {
		struct app *a = list_entry(l, struct app, node);
		free(a->text);
		free(a);
	}
	tenants_free(m);
	struct map *maps[] = { &m->objs, &m->by_version, &m->by_number, &m->clients,
			       &m->rems, &m->tenants,	 &m->groups,	&m->pulls };
	for (size_t i = 0; i < ARRAY_LEN(maps); i++)
		map_fini(maps[i]);
	free(m);
}
