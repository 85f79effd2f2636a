/* SPDX-License-Identifier: Apache-2.0 */
/* What came back, as the public structs. */
#include "store.h"

#include <string.h>

/* ---- made once, when the call is over ---- */

static const char *text(struct sop *s, struct bytes b)
{
	char *p = arena_alloc(&s->mem, b.n + 1);
	if (!p)
		return NULL;
	if (b.n)
		memcpy(p, b.p, b.n);
	p[b.n] = '\0';
	return p;
}

static const char *const *texts(struct sop *s, const struct bytes_list *l)
{
	const char **v = arena_alloc(&s->mem, (l->n + 1) * sizeof(*v));
	for (size_t i = 0; v && i < l->n; i++) {
		v[i] = text(s, l->p[i]);
		if (!v[i])
			return NULL;
	}
	return v;
}

static bool view_stat(struct sop *s, const struct stc_item *it, struct pml_stat_info *v)
{
	static const struct msg_put_opts none = { .replica_num = 1 };
	const struct msg_stat *m = it->stat;
	const struct msg_put_opts *o = m->opts ? m->opts : &none;
	*v = (struct pml_stat_info){
		.size = sizeof(*v),
		.version = m->version,
		.bytes = m->size,
		.sum = m->sum,
		.idle_ms = m->idle_ms,
		.memory = m->memory,
		.disk = m->disk,
		.leased = m->leases > 0,
		.n_holders = (uint32_t)m->holders.n,
		.holders = texts(s, &m->holders),
		.replica_num = o->replica_num,
		.format = text(s, o->format),
		.group = o->group.p,
		.group_bytes = o->group.n,
		.group_size = o->group_size,
		.soft_pin_ms = o->soft_pin_ms,
		.hard_pin = o->hard_pin,
		.durable = o->durable,
	};
	return v->holders && v->format;
}

static bool view_replica(struct sop *s, const struct stc_item *it, const struct msg_replica *m,
			 struct pml_replica *v)
{
	const struct msg_place *at = &it->places[m->place];
	struct pml_extent *ext =
		arena_alloc(&s->mem, (m->extents.n + 1) * sizeof(struct pml_extent));
	*v = (struct pml_replica){
		.size = sizeof(*v),
		.holder = text(s, at->holder),
		.host = text(s, at->host),
		.generation = m->generation,
		.slot = m->slot,
		.tier = m->tier,
		.n_extents = (uint32_t)m->extents.n,
		.extents = ext,
	};
	memcpy(v->pool, at->pool, sizeof(v->pool));
	for (size_t i = 0; ext && i < m->extents.n; i++)
		ext[i] = (struct pml_extent){ .segment = m->extents.p[i].segment,
					      .offset = m->extents.p[i].offset,
					      .bytes = m->extents.p[i].bytes };
	return v->holder && v->host && ext;
}

static bool view_query(struct sop *s, const struct stc_item *it, struct sop_replicas *r)
{
	const struct msg_object *o = it->object;
	r->v = arena_alloc(&s->mem, (o->replicas.n + 1) * sizeof(*r->v));
	r->n = o->replicas.n;
	r->lease_ms = o->lease_ms;
	for (size_t i = 0; r->v && i < r->n; i++)
		if (!view_replica(s, it, &o->replicas.p[i], &r->v[i]))
			return false;
	return r->v != NULL;
}

static bool view_holder(struct sop *s, const struct msg_holder_state *m, struct pml_holder *v)
{
	*v = (struct pml_holder){
		.size = sizeof(*v),
		.id = text(s, m->id),
		.kind = text(s, m->kind),
		.state = text(s, m->state),
		.objects = m->objects,
		.bytes_used = m->bytes_used,
		.bytes_total = m->bytes_total,
		.quarantine_bytes = m->quarantine_bytes,
	};
	return v->id && v->kind && v->state;
}

static bool view_facts(struct sop *s, const struct msg_explain_rep *m)
{
	s->facts = arena_alloc(&s->mem, (2 * m->facts.n + 1) * sizeof(*s->facts));
	for (size_t i = 0; s->facts && i < m->facts.n; i++) {
		s->facts[2 * i] = text(s, m->facts.p[i].name);
		s->facts[2 * i + 1] = text(s, m->facts.p[i].value);
		if (!s->facts[2 * i] || !s->facts[2 * i + 1])
			return false;
	}
	s->n_views = m->facts.n;
	return s->facts != NULL;
}

static bool view_holders(struct sop *s, const struct msg_holders_rep *m)
{
	s->holders = arena_alloc(&s->mem, (m->holders.n + 1) * sizeof(*s->holders));
	for (size_t i = 0; s->holders && i < m->holders.n; i++)
		if (!view_holder(s, &m->holders.p[i], &s->holders[i]))
			return false;
	s->n_views = m->holders.n;
	return s->holders != NULL;
}

static bool view_items(struct sop *s)
{
	const struct stc_call *c = s->call;
	bool stat = c->kind == STC_STAT, ok = true;
	size_t each = stat ? sizeof(s->stats[0]) : sizeof(s->replicas[0]);
	void *v = arena_alloc(&s->mem, c->n * each);
	if (!v)
		return false;
	memset(v, 0, c->n * each);
	if (stat)
		s->stats = v;
	else
		s->replicas = v;
	for (uint32_t i = 0; ok && i < c->n; i++) {
		const struct stc_item *it = &c->items[i];
		if (it->err == ERR_NONE)
			ok = stat ? view_stat(s, it, &s->stats[i])
				  : view_query(s, it, &s->replicas[i]);
	}
	s->n_views = c->n;
	return ok;
}

enum err sop_views(struct sop *s)
{
	const struct stc_item *it = &s->call->items[0];
	bool ok = true;
	switch (s->call->kind) {
	case STC_STAT:
	case STC_QUERY:
		ok = view_items(s);
		break;
	case STC_EXPLAIN:
		ok = it->err != ERR_NONE || view_facts(s, it->explain);
		break;
	case STC_HOLDERS:
		ok = it->err != ERR_NONE || view_holders(s, it->holders);
		break;
	case STC_TASKS:
		ok = it->err != ERR_NONE || sop_view_tasks(s, it->tasks);
		break;
	case STC_TASK_START:
	case STC_TASK_CANCEL:
	case STC_PUT:
	case STC_GET:
	case STC_REMOVE:
	case STC_REMOVE_RANGE:
	case STC_EXISTS:
	case STC_RELEASE:
	case STC_SNAPSHOT:
	case STC_LIST:
		break;
	}
	return ok ? ERR_NONE : ERR_NO_MEMORY;
}

/* ---- read by the caller ---- */

/* A store operation that is over; NULL, and why in *e. */
static const struct sop *over(const struct pml_op *op, int *e)
{
	*e = op_usable(op);
	if (*e == PML_ERR_NONE && !op->store)
		*e = PML_ERR_INVALID_PARAMS;
	if (*e != PML_ERR_NONE)
		return NULL;
	if (op_over(op))
		return op->store;
	*e = PML_ERR_BUSY;
	return NULL;
}

static const struct sop *over_of(const struct pml_op *op, enum stc_kind kind, int *e)
{
	const struct sop *s = over(op, e);
	if (s && s->call->kind == kind)
		return s;
	if (s)
		*e = PML_ERR_INVALID_PARAMS;
	return NULL;
}

int sop_give(void *out, const void *from, size_t n)
{
	size_t size;
	if (!out)
		return PML_ERR_INVALID_PARAMS;
	memcpy(&size, out, sizeof(size));
	if (size < sizeof(size) || size > 4096)
		return PML_ERR_INVALID_PARAMS;
	memcpy(out, from, MIN_OF(size, n));
	memcpy(out, &size, sizeof(size));
	return PML_ERR_NONE;
}

size_t pml_op_n(const struct pml_op *op)
{
	return op_usable(op) == PML_ERR_NONE && op->store ? op->store->call->n : 0;
}

int pml_op_result(const struct pml_op *op, size_t i, struct pml_result *out)
{
	int e;
	const struct sop *s = over(op, &e);
	if (!s)
		return e;
	if (i >= s->call->n)
		return PML_ERR_INVALID_PARAMS;
	const struct stc_item *it = &s->call->items[i];
	struct pml_result r = {
		.size = sizeof(r),
		.code = (int)it->err,
		.retry_ms = it->retry_ms,
		.version = it->version,
		.object_bytes = it->size,
		.bytes = it->bytes,
		.pinned = it->pinned,
		.copies = it->copies,
		.tier = it->tier,
	};
	return sop_give(out, &r, sizeof(r));
}

int pml_op_item_error(const struct pml_op *op, size_t i, struct pml_error *out)
{
	int e;
	const struct sop *s = over(op, &e);
	if (!s)
		return e;
	if (i >= s->call->n || !out)
		return PML_ERR_INVALID_PARAMS;
	const struct stc_item *it = &s->call->items[i];
	sdk_error(out, it->err, it->retry_ms, it->peer, it->step, "%s", it->text);
	return PML_ERR_NONE;
}

int pml_op_progress(const struct pml_op *op, uint64_t *moved, uint64_t *total)
{
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	if (!op->store || !moved || !total)
		return PML_ERR_INVALID_PARAMS;
	*moved = __atomic_load_n(&op->store->call->bytes_done, __ATOMIC_RELAXED);
	*total = op->store->total;
	return PML_ERR_NONE;
}

int pml_op_stat(const struct pml_op *op, size_t i, struct pml_stat_info *out)
{
	int e;
	const struct sop *s = over_of(op, STC_STAT, &e);
	if (!s)
		return e;
	if (i >= s->call->n)
		return PML_ERR_INVALID_PARAMS;
	if (s->call->items[i].err != ERR_NONE)
		return (int)s->call->items[i].err;
	return i < s->n_views ? sop_give(out, &s->stats[i], sizeof(s->stats[i]))
			      : PML_ERR_NO_MEMORY;
}

static const struct sop_replicas *replicas(const struct pml_op *op, size_t i)
{
	int e;
	const struct sop *s = over_of(op, STC_QUERY, &e);
	return s && i < s->n_views && s->call->items[i].err == ERR_NONE ? &s->replicas[i]
									: NULL;
}

size_t pml_op_n_replicas(const struct pml_op *op, size_t i)
{
	const struct sop_replicas *r = replicas(op, i);
	return r ? r->n : 0;
}

int pml_op_replica(const struct pml_op *op, size_t i, size_t k, struct pml_replica *out)
{
	const struct sop_replicas *r = replicas(op, i);
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	return r && k < r->n ? sop_give(out, &r->v[k], sizeof(r->v[k]))
			     : PML_ERR_INVALID_PARAMS;
}

uint32_t pml_op_lease_ms(const struct pml_op *op, size_t i)
{
	const struct sop_replicas *r = replicas(op, i);
	return r ? r->lease_ms : 0;
}

static const struct msg_list_rep *page(const struct pml_op *op)
{
	int e;
	const struct sop *s = over_of(op, STC_LIST, &e);
	return s && s->call->items[0].err == ERR_NONE ? s->call->items[0].list : NULL;
}

size_t pml_op_n_listed(const struct pml_op *op)
{
	const struct msg_list_rep *l = page(op);
	return l ? l->items.n : 0;
}

int pml_op_listed(const struct pml_op *op, size_t i, struct pml_listed *out)
{
	const struct msg_list_rep *l = page(op);
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	if (!l || i >= l->items.n)
		return PML_ERR_INVALID_PARAMS;
	const struct msg_list_item *m = &l->items.p[i];
	struct pml_listed v = {
		.size = sizeof(v),
		.key = m->key.p,
		.key_bytes = m->key.n,
		.version = m->version,
		.bytes = m->size,
		.memory = m->memory,
		.disk = m->disk,
	};
	return sop_give(out, &v, sizeof(v));
}

const void *pml_op_cursor(const struct pml_op *op, size_t *n)
{
	const struct msg_list_rep *l = page(op);
	if (!l || l->cursor.n == 0 || !n)
		return NULL;
	*n = l->cursor.n;
	return l->cursor.p;
}

static const struct msg_holders_rep *roster(const struct pml_op *op, const struct sop **s)
{
	int e;
	*s = over_of(op, STC_HOLDERS, &e);
	return *s && (*s)->call->items[0].err == ERR_NONE ? (*s)->call->items[0].holders : NULL;
}

bool pml_op_recovering(const struct pml_op *op)
{
	const struct sop *s;
	const struct msg_list_rep *l = page(op);
	const struct msg_holders_rep *h = roster(op, &s);
	return (l && l->recovering) || (h && h->recovering);
}

size_t pml_op_n_facts(const struct pml_op *op)
{
	int e;
	const struct sop *s = over_of(op, STC_EXPLAIN, &e);
	return s ? s->n_views : 0;
}

int pml_op_fact(const struct pml_op *op, size_t i, const char **name, const char **value)
{
	int e;
	const struct sop *s = over_of(op, STC_EXPLAIN, &e);
	if (!s)
		return e;
	if (i >= s->n_views || !name || !value)
		return PML_ERR_INVALID_PARAMS;
	*name = s->facts[2 * i];
	*value = s->facts[2 * i + 1];
	return PML_ERR_NONE;
}

size_t pml_op_n_holders(const struct pml_op *op)
{
	const struct sop *s;
	return roster(op, &s) ? s->n_views : 0;
}

int pml_op_holder(const struct pml_op *op, size_t i, struct pml_holder *out)
{
	const struct sop *s;
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	return roster(op, &s) && i < s->n_views
		       ? sop_give(out, &s->holders[i], sizeof(s->holders[i]))
		       : PML_ERR_INVALID_PARAMS;
}

uint64_t pml_op_objects(const struct pml_op *op)
{
	const struct sop *s;
	const struct msg_holders_rep *h = roster(op, &s);
	return h ? h->objects : 0;
}
