/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes by prefix (T3): one RANGE tombstone a holder that is away, and every object of the range that
 * is known, RETIRED. One at a time, in order. V8: it begins when no holder is unmerged; if a holder was
 * merged or went away meanwhile, the walk is made again.
 */
#include "mind_priv.h"

static bool unmerged(const struct mind *m)
{
	return !BROKEN(m, MIND_BREAK_UNMERGED) && (m->n_unmerged || m->n_partial);
}

/* Is a RANGE of this op durable for every holder that is away? If not it is asked for. */
static bool range_durable(struct mind *m, struct range_op *op)
{
	size_t n = 0;
	if (BROKEN(m, MIND_BREAK_TOMB_REMOVE))
		return true;
	if (op->appending)
		return false;
	if (op->n_eras < m->n_holders) {
		uint64_t *p = realloc(op->eras, m->n_holders * sizeof(*p));
		if (!p)
			return false;
		memset(p + op->n_eras, 0, (m->n_holders - op->n_eras) * sizeof(*p));
		op->eras = p;
		op->n_eras = m->n_holders;
	}
	for (uint32_t i = 0; i < m->n_holders; i++)
		n += m->holders[i]->state == HOLDER_AWAY &&
		     op->eras[i] != m->holders[i]->away_era + 1;
	if (n == 0)
		return true;
	struct app *a = m->retry_ns ? NULL : app_new(m, APP_RANGE, n);
	if (!a) {
		m->retry_ns = m->retry_ns ? m->retry_ns : m->now + RETRY_MS * 1000000ull;
		return false;
	}
	a->range = op;
	for (uint32_t i = 0, at = 0; i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		if (h->state != HOLDER_AWAY || op->eras[i] == h->away_era + 1)
			continue;
		op->asked[i / 64] |= 1ull << (i % 64);
		a->recs[at++] =
			(struct meta_rec){ .type = META_RANGE,
					   .RANGE = { .holder = BYTES_STR(h->id),
						      .match = 1,
						      .tenant = tenant_name(m, op->tenant),
						      .prefix = BYTES(op->prefix, op->n),
						      .ceiling = op->ceiling,
						      .now = m->last } };
	}
	op->appending = 1;
	app_send(m, a);
	return false;
}

void range_appended(struct mind *m, struct app *a, enum err e)
{
	struct range_op *op = a->range;
	op->appending = 0;
	for (uint32_t i = 0; i < m->n_holders; i++)
		if (e == ERR_NONE && (op->asked[i / 64] >> (i % 64) & 1) &&
		    m->holders[i]->state == HOLDER_AWAY)
			op->eras[i] = m->holders[i]->away_era + 1;
	memset(op->asked, 0, sizeof(op->asked));
}

static bool in_range(const struct range_op *op, const struct obj *o)
{
	return o->tenant == op->tenant && o->key_n >= op->n &&
	       memcmp(o->key, op->prefix, op->n) == 0;
}

struct walk {
	struct mind *m;
	struct range_op *op;
};

static void walk_one(struct map_node *n, void *arg)
{
	struct walk *w = arg;
	struct obj *o = container_of(n, struct obj, node);
	if (!in_range(w->op, o))
		return;
	const struct copy *s = obj_served(w->m, o);
	if (s && s->opts && s->opts->m.hard_pin && !w->op->force) {
		w->op->pinned += s->version <= w->op->ceiling && w->op->passes == 1;
		return;
	}
	w->op->removed += s && s->version <= w->op->ceiling && s->state == COPY_COMMITTED;
	bool now = obj_remove(w->m, o, w->op->ceiling);
	for (struct copy *c = o->copies; c; c = c->next)
		if (c->version <= w->op->ceiling && c->state == COPY_RETIRING &&
		    holder_in(w->m->holders[c->holder]) && !(c->flags & COPY_RANGED)) {
			c->flags |= COPY_RANGED;
			w->op->n_owed++;
		}
	for (struct pull *p = o->work ? o->work->pulls : NULL; p; p = p->next)
		if (p->version <= w->op->ceiling && p->state != PULL_PLANNED && !p->ranged) {
			p->ranged = true; /* V13 */
			w->op->n_owed++;
		}
	if (now)
		obj_step(w->m, o);
}

static void op_free(struct mind *m, struct range_op *op)
{
	list_del(&op->node);
	m->bytes -= sizeof(*op) + op->n;
	free(op->eras);
	free(op);
}

static void op_end(struct mind *m, struct range_op *op)
{
	for (struct list *l; (l = list_pop_front(&op->calls));) {
		struct mind_call *c = list_entry(l, struct mind_call, node);
		struct mind_remove_range *r = container_of(c, struct mind_remove_range, call);
		r->removed = op->removed;
		r->pinned = op->pinned;
		call_end(m, c, ERR_NONE);
	}
	client_close(m, op->client, op->number);
	client_release(m, op->client);
	m->n.removes += op->removed;
	op_free(m, op);
}

static uint64_t eras(const struct mind *m)
{
	uint64_t n = m->merges;
	for (uint32_t i = 0; i < m->n_holders; i++)
		n += m->holders[i]->away_era;
	return n;
}

/* Goes as far as it can without walking. */
void range_pump(struct mind *m)
{
	while (!list_empty(&m->ranges)) {
		struct range_op *op = list_entry(m->ranges.next, struct range_op, node);
		if (op->walking || unmerged(m) || !range_durable(m, op))
			return;
		if (!op->walked || op->merges != eras(m)) {
			op->walking = true;
			op->walked = false;
			op->merges = eras(m);
			op->passes++;
			op->cursor = 0;
			return;
		}
		if (op->n_owed && !BROKEN(m, MIND_BREAK_RETIRE))
			return;
		op_end(m, op);
	}
}

bool range_work(struct mind *m)
{
	if (list_empty(&m->ranges))
		return false;
	struct range_op *op = list_entry(m->ranges.next, struct range_op, node);
	struct walk w = { m, op };
	if (!op->walking)
		return false;
	if (map_scan(&m->objs, &op->cursor, 2048, walk_one, &w))
		return true;
	op->walking = false;
	op->walked = true;
	return false;
}

bool range_walking(const struct mind *m)
{
	return !list_empty(&m->ranges) &&
	       list_entry(m->ranges.next, struct range_op, node)->walking;
}

static struct range_op *op_find(struct mind *m, const struct client *client, uint64_t number)
{
	list_for_each (it, &m->ranges) {
		struct range_op *op = list_entry(it, struct range_op, node);
		if (op->client == client && op->number == number)
			return op;
	}
	return NULL;
}

static struct range_op *op_new(struct mind *m, uint16_t tenant, struct client *client,
			       const struct msg_remove_range_req *q)
{
	struct range_op *op = calloc(1, sizeof(*op) + q->prefix.n);
	if (!op)
		return NULL;
	op->client = client;
	op->number = q->attempt;
	op->ceiling = q->ceiling ? MIN_OF(q->ceiling, m->last) : m->last;
	op->tenant = tenant;
	op->force = q->force;
	op->n = (uint16_t)q->prefix.n;
	if (op->n)
		memcpy(op->prefix, q->prefix.p, op->n);
	list_init(&op->calls);
	client_hold(client);
	m->bytes += sizeof(*op) + op->n;
	list_push_back(&m->ranges, &op->node);
	return op;
}

static enum err range_call(struct mind *m, const struct mind_who *w,
			   const struct msg_remove_range_req *q, struct mind_remove_range *r)
{
	uint16_t tenant;
	struct why *why = &r->call.why;
	enum err e = who_check(m, w, &tenant, why);
	if (e == ERR_NONE && q->prefix.n > OBJ_KEY_MAX)
		e = why_set(why, ERR_INVALID_PARAMS, "a prefix of %zu bytes, at most %d",
			    q->prefix.n, OBJ_KEY_MAX);
	if (e != ERR_NONE)
		return e;
	struct client *client = client_get(m, tenant, w->client);
	if (!client)
		return why_set(why, ERR_BUSY, "too many clients (master.clients_max)");
	struct range_op *op = op_find(m, client, q->attempt);
	if (!op && client_closed(client, q->attempt))
		return why_set(why, ERR_EXISTS, "DONE: attempt %llu is closed",
			       (unsigned long long)q->attempt);
	if (!op)
		op = op_new(m, tenant, client, q);
	if (!op)
		return ERR_NO_MEMORY;
	call_wait(m, &r->call, &op->calls, NULL);
	return ERR_NONE;
}

void mind_remove_range(struct mind *m, const struct mind_who *w,
		       const struct msg_remove_range_req *q, struct mind_remove_range *r)
{
	mind_enter(m);
	call_init(&r->call, CALL_PLAIN);
	r->removed = r->pinned = 0;
	enum err e = range_call(m, w, q, r);
	if (e != ERR_NONE)
		call_end(m, &r->call, e);
	mind_leave(m);
}

void ranges_free(struct mind *m)
{
	for (struct list *l; (l = list_pop_front(&m->ranges));) {
		struct range_op *op = list_entry(l, struct range_op, node);
		calls_end(m, &op->calls, ERR_SHUTTING_DOWN);
		op_free(m, op);
	}
}
