/* SPDX-License-Identifier: Apache-2.0 */
/* QUERY RELEASE RENEW EXISTS OBJECT_STAT EXPLAIN: the index is asked; nothing waits. */
#include "flows.h"

#include "rpc/ticket.h"

#include <string.h>

/* ---- QUERY ---- */

static uint32_t lease_of(const struct mst *m, uint32_t asked_ms)
{
	uint64_t ms = asked_ms ? asked_ms : m->conf.lease_ms;
	return (uint32_t)MIN_OF(ms, m->conf.lease_max_ms);
}

/* A read ticket for a reader that does not map the holder's pool. */
static enum err read_ticket(struct mst_ask *a, uint32_t holder, const struct mind_object *o,
			    const uint8_t pool[16], struct msg_replica *r)
{
	struct ticket_key *key = NULL;
	struct buf b = BUF_INIT(TICKET_MAX);
	enum err e = mst_links_ticket_key(a->m, holder, &key);
	struct msg_ticket t = {
		.op = TICKET_READ,
		.tenant = mst_tenant(a->req),
		.term = svc_meta_term(&a->m->meta),
		.extents = r->extents,
		.size = o->size,
		.version = o->version,
		.slot = r->slot,
		.generation = r->generation,
		.sum = o->sum,
	};
	memcpy(t.pool, pool, sizeof(t.pool));
	if (e == ERR_NONE)
		e = ticket_mint(key, &t, &b, NULL);
	uint8_t *copy = e ? NULL : arena_alloc(&a->arena, b.n);
	if (copy) {
		memcpy(copy, b.p, b.n);
		r->ticket = BYTES(copy, b.n);
	}
	buf_fini(&b);
	return e == ERR_NONE && !copy ? ERR_NO_MEMORY : e;
}

static bool elsewhere(const struct msg_keys_req *q, const struct msg_place *p)
{
	return q->host.n &&
	       (q->host.n != p->host.n || memcmp(q->host.p, p->host.p, q->host.n) != 0);
}

static bool replicas(struct mst_ask *a, const struct msg_keys_req *q, struct mst_places *places,
		     const struct mind_object *o, struct list_replica *out)
{
	struct msg_replica *r = arena_alloc(&a->arena, (o->n_replicas + 1) * sizeof(*r));
	if (!r)
		return false;
	for (size_t i = 0; i < o->n_replicas; i++) {
		const struct mind_replica *x = &o->replicas[i];
		r[i] = (struct msg_replica){ .tier = 1,
					     .slot = x->slot,
					     .generation = x->generation };
		if (!mst_extents(&a->arena, x->extents, x->n_extents, &r[i].extents) ||
		    !mst_place(places, x->holder, &r[i].place))
			return false;
		const struct msg_place *p = &places->p[r[i].place];
		if (elsewhere(q, p) && read_ticket(a, x->holder, o, p->pool, &r[i]) != ERR_NONE)
			return false;
	}
	*out = (struct list_replica){ r, o->n_replicas };
	return true;
}

static struct msg_object query_one(struct mst_ask *a, const struct msg_keys_req *q, size_t i,
				   uint32_t lease_ms, struct mst_places *places)
{
	struct mind_object o;
	struct why why;
	enum err e = mst_look(a, q, i, lease_ms, &o, &why);
	struct msg_object out = { .status = e };
	if (e == ERR_NONE && !replicas(a, q, places, &o, &out.replicas))
		out.status = e = ERR_NO_MEMORY;
	if (e) {
		struct msg_result r = mst_result(e, 0, &why);
		return (struct msg_object){ .status = r.status,
					    .retry_ms = r.retry_ms,
					    .text = mst_text(&a->arena, &why) };
	}
	out.version = o.version;
	out.size = o.size;
	out.sum = o.sum;
	out.lease_ms = lease_ms;
	return out;
}

void mst_query(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_keys_req q;
	struct mst_places places = { 0 };
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_keys_req(&d, &q);
	size_t n = e ? 0 : q.keys.n;
	struct msg_object *o = arena_alloc(&a.arena, (n + 1) * sizeof(*o));
	if (e || !o || !mst_places_init(&places, a.m, &a.arena, n * OBJ_EXTENTS_MAX)) {
		mst_ask_refuse(&a, e ? e : ERR_NO_MEMORY);
		return;
	}
	uint32_t lease_ms = lease_of(a.m, q.lease_ms);
	for (size_t i = 0; i < n; i++)
		o[i] = query_one(&a, &q, i, lease_ms, &places);
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_query_rep(&out, &(struct msg_query_rep){ .places = { places.p, places.n },
						     .items = { o, n } });
	mst_ask_reply(&a, &out);
}

/* ---- RELEASE, RENEW ---- */

static void leases(void *ctx, struct rpc_req *r, bool renew)
{
	struct mst_ask a;
	struct msg_leases_req q;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_leases_req(&d, &q);
	struct msg_result *res =
		e ? NULL : arena_alloc(&a.arena, (q.items.n + 1) * sizeof(*res));
	if (!res) {
		mst_ask_refuse(&a, e ? e : ERR_NO_MEMORY);
		return;
	}
	uint32_t ms = lease_of(a.m, q.lease_ms);
	struct bytes tenant = mst_tenant(r);
	for (size_t i = 0; i < q.items.n; i++) {
		const struct msg_lease *x = &q.items.p[i];
		e = renew ? mind_renew(a.mind, tenant, x->key, x->version, ms)
			  : mind_release(a.mind, tenant, x->key, x->version);
		res[i] = mst_result(e, 0, &(struct why){ 0 });
	}
	mst_ask_results(&a, res, q.items.n);
}

void mst_release(void *ctx, struct rpc_req *r)
{
	leases(ctx, r, false);
}

void mst_renew(void *ctx, struct rpc_req *r)
{
	leases(ctx, r, true);
}

/* ---- EXISTS, OBJECT_STAT: probes (B3) ---- */

/* 0 stays 0: no lease unless asked. */
static uint32_t probe_lease(const struct mst *m, uint32_t asked_ms)
{
	return asked_ms ? lease_of(m, asked_ms) : 0;
}

void mst_exists(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_keys_req q;
	struct mind_object o;
	struct why why;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_keys_req(&d, &q);
	struct msg_result *res =
		e ? NULL : arena_alloc(&a.arena, (q.keys.n + 1) * sizeof(*res));
	if (!res) {
		mst_ask_refuse(&a, e ? e : ERR_NO_MEMORY);
		return;
	}
	for (size_t i = 0; i < q.keys.n; i++) {
		e = mst_look(&a, &q, i, probe_lease(a.m, q.lease_ms), &o, &why);
		res[i] = mst_result(e, 0, &why);
		if (e)
			res[i].text = mst_text(&a.arena, &why);
	}
	mst_ask_results(&a, res, q.keys.n);
}

static bool is_disk(struct mind *mind, uint32_t holder)
{
	struct mind_holder h;
	return mind_holder(mind, holder, &h) && h.kind == 2;
}

/* Copies what the mind lends until its next call. */
static bool stat_fill(struct mst_ask *a, const struct mind_object *o, struct msg_stat *s)
{
	struct bytes *names = arena_alloc(&a->arena, (o->n_replicas + 1) * sizeof(*names));
	struct mind_holder h;
	size_t n = 0;
	s->version = o->version;
	s->size = o->size;
	s->sum = o->sum;
	s->leases = o->leased;
	s->idle_ms = o->idle_ns / NS_PER_MS;
	if (o->opts) {
		struct msg_put_opts *opts = arena_alloc(&a->arena, sizeof(*opts));
		uint8_t *room =
			arena_alloc(&a->arena, o->opts->group.n + o->opts->format.n + 1);
		if (!opts || !room)
			return false;
		*opts = *o->opts;
		opts->group.p =
			memcpy(room, opts->group.n ? opts->group.p : room, opts->group.n);
		opts->format.p = memcpy(room + opts->group.n,
					opts->format.n ? opts->format.p : room, opts->format.n);
		s->opts = opts;
	}
	for (size_t i = 0; names && i < o->n_replicas; i++) {
		bool disk = is_disk(a->mind, o->replicas[i].holder);
		s->memory += !disk;
		s->disk += disk;
		if (!mind_holder(a->mind, o->replicas[i].holder, &h))
			continue;
		struct why id = { 0 };
		why_note(&id, ERR_INTERNAL, "%s", h.id);
		names[n++] = mst_text(&a->arena, &id);
	}
	s->holders = (struct bytes_list){ names, n };
	return names != NULL;
}

static struct msg_stat stat_one(struct mst_ask *a, const struct msg_keys_req *q, size_t i)
{
	struct mind_object o;
	struct why why;
	struct msg_stat s = { 0 };
	enum err e = mst_look(a, q, i, probe_lease(a->m, q->lease_ms), &o, &why);
	if (e == ERR_NONE && !stat_fill(a, &o, &s))
		e = ERR_NO_MEMORY;
	if (e == ERR_NONE)
		return s;
	struct msg_result r = mst_result(e, 0, &why);
	return (struct msg_stat){ .status = r.status,
				  .retry_ms = r.retry_ms,
				  .text = mst_text(&a->arena, &why) };
}

void mst_object_stat(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_keys_req q;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_keys_req(&d, &q);
	struct msg_stat *s = e ? NULL : arena_alloc(&a.arena, (q.keys.n + 1) * sizeof(*s));
	if (!s) {
		mst_ask_refuse(&a, e ? e : ERR_NO_MEMORY);
		return;
	}
	for (size_t i = 0; i < q.keys.n; i++)
		s[i] = stat_one(&a, &q, i);
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_stat_rep(&out, &(struct msg_stat_rep){ .items = { s, q.keys.n } });
	mst_ask_reply(&a, &out);
}

/* ---- EXPLAIN ---- */

#define FACTS_MAX 256

struct facts {
	struct arena *arena;
	struct msg_fact fact[FACTS_MAX];
	size_t n;
};

static struct bytes cut(struct arena *a, const char *text, size_t max)
{
	size_t n = strnlen(text, max);
	char *p = arena_alloc(a, n + 1);
	if (!p)
		return BYTES("", 0);
	memcpy(p, text, n);
	return BYTES(p, n);
}

static void on_fact(void *arg, const char *name, const char *value)
{
	struct facts *f = arg;
	if (f->n == FACTS_MAX)
		return;
	f->fact[f->n++] =
		(struct msg_fact){ cut(f->arena, name, 64), cut(f->arena, value, 512) };
}

void mst_explain(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_explain_req q;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_explain_req(&d, &q);
	if (e == ERR_NONE && q.key.n == 0)
		e = why_set(&a.why, ERR_INVALID_PARAMS, "EXPLAIN: a key has 1..%d bytes",
			    OBJ_KEY_MAX);
	if (e) {
		mst_ask_refuse(&a, e);
		return;
	}
	struct facts f = { .arena = &a.arena };
	mind_explain(a.mind, mst_tenant(r), q.key, on_fact, &f);
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_explain_rep(&out, &(struct msg_explain_rep){ .facts = { f.fact, f.n } });
	mst_ask_reply(&a, &out);
}
