/* SPDX-License-Identifier: Apache-2.0 */
/* PUT_START, PUT_REVOKE, PUT_PROGRESS: space and tickets (spec/store.md, Terms and puts). */
#include "flows.h"
#include "rpc/ticket.h"

#include <string.h>

/* ---- PUT_START ---- */

/* A bound of what a grant takes in the answer, beside key, group and format. */
#define GRANT_BYTES 700

struct put_msg {
	struct msg_put_start_req q;
	struct mind_who who;
};

/* Refused before anything is reserved: an answer over a message's size could not be sent. */
static enum err check_size(const struct msg_put_start_req *q, struct why *why)
{
	size_t n = 0;
	for (size_t i = 0; i < q->items.n; i++) {
		const struct msg_put_item *it = &q->items.p[i];
		n += GRANT_BYTES + it->key.n;
		n += it->opts ? it->opts->group.n + it->opts->format.n : 0;
	}
	return n <= WIRE_MESSAGE_MAX
		       ? ERR_NONE
		       : why_set(why, ERR_TOO_LARGE,
				 "PUT_START: the answer could take %zu bytes, at most %u: fewer "
				 "items a request",
				 n, WIRE_MESSAGE_MAX);
}

static enum err put_decode(struct mst_batch *b, struct dec *d, size_t *n)
{
	struct put_msg *p = b->msg;
	enum err e = dec_put_start_req(d, &p->q);
	if (e == ERR_NONE)
		e = mst_who(b->req, p->q.client, p->q.term, &p->who, d->why);
	if (e == ERR_NONE)
		e = check_size(&p->q, d->why);
	if (e == ERR_NONE)
		*n = p->q.items.n;
	return e;
}

static void put_warm(const struct mst_batch *b, struct mind *mind, size_t from)
{
	const struct put_msg *p = b->msg;
	struct bytes keys[MIND_WARM];
	size_t n = MIN_OF(p->q.items.n - from, (size_t)MIND_WARM);
	for (size_t i = 0; i < n; i++)
		keys[i] = p->q.items.p[from + i].key;
	mind_warm(mind, p->who.tenant, keys, n);
}

static void put_begin(struct mst_batch *b, struct mind *mind, size_t i)
{
	struct put_msg *p = b->msg;
	if (i % MIND_WARM == 0)
		put_warm(b, mind, i);
	mind_put_start(mind, &p->who, &p->q.items.p[i], mst_batch_item(b, i));
}

static enum err mint(struct mst_batch *b, size_t i, struct msg_put_grant *g,
		     struct buf *scratch, struct why *why)
{
	const struct put_msg *p = b->msg;
	const struct msg_put_item *it = &p->q.items.p[i];
	const struct mind_put *put = mst_batch_item(b, i);
	struct ticket_key *key = NULL;
	struct mind_holder h;
	enum err e = mst_links_ticket_key(b->m, put->holder, &key);
	if (e == ERR_NONE && !mind_holder(b->m->term.mind, put->holder, &h))
		e = ERR_TEMPORARILY_AWAY;
	if (e)
		return why_set(why, e, "PUT_START: no ticket: %s", err_text(e));
	struct msg_put_opts opts;
	if (it->opts) {
		opts = *it->opts;
		opts.replicas_required = it->replicas_required;
	}
	struct msg_ticket t = {
		.op = TICKET_WRITE,
		.tenant = p->who.tenant,
		.term = svc_meta_term(&b->m->meta),
		.pool_epoch = put->pool_epoch,
		.extents = g->extents,
		.size = it->size,
		.version = put->version,
		.attempt = it->attempt,
		.key = it->key,
		.opts = it->opts ? &opts : NULL,
	};
	memcpy(t.pool, h.pool, sizeof(t.pool));
	memcpy(t.client, p->q.client, sizeof(t.client));
	buf_clear(scratch);
	e = ticket_mint(key, &t, scratch, why);
	uint8_t *copy = e ? NULL : arena_alloc(&b->arena, scratch->n);
	if (e == ERR_NONE && !copy)
		return why_set(why, ERR_NO_MEMORY, "PUT_START: no memory for a ticket");
	if (e)
		return e;
	memcpy(copy, scratch->p, scratch->n);
	g->ticket = BYTES(copy, scratch->n);
	return ERR_NONE;
}

static void grant(struct mst_batch *b, size_t i, struct mst_places *places, struct buf *scratch,
		  struct msg_put_grant *g)
{
	struct mind_put *put = mst_batch_item(b, i);
	struct mind_call *c = &put->call;
	*g = (struct msg_put_grant){ 0 };
	if (c->err == ERR_NONE) {
		memset(&c->why, 0, sizeof(c->why));
		if (!mst_extents(&b->arena, put->extents, put->n_extents, &g->extents) ||
		    !mst_place(places, put->holder, &g->place))
			c->err = why_set(&c->why, ERR_NO_MEMORY,
					 "PUT_START: no memory for the answer");
		else
			c->err = mint(b, i, g, scratch, &c->why);
		g->version = put->version;
		g->pool_epoch = put->pool_epoch;
	}
	if (c->err) {
		struct msg_result r = mst_result(c->err, c->retry_ms, &c->why);
		*g = (struct msg_put_grant){ .status = r.status,
					     .retry_ms = r.retry_ms,
					     .text = r.text };
	}
}

static void put_reply(struct mst_batch *b)
{
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX), scratch = BUF_INIT(TICKET_MAX);
	struct msg_put_grant *g = arena_alloc(&b->arena, (b->n + 1) * sizeof(*g));
	struct mst_places places = { 0 };
	if (!b->m->term.mind) {
		svc_refuse(b->req, ERR_SHUTTING_DOWN, "PUT_START: the master stops");
		return;
	}
	if (!g || !mst_places_init(&places, b->m, &b->arena, b->n)) {
		svc_refuse(b->req, ERR_NO_MEMORY, "PUT_START: no memory for the answer");
		return;
	}
	for (size_t i = 0; i < b->n; i++)
		grant(b, i, &places, &scratch, &g[i]);
	enc_put_start_rep(&out, &(struct msg_put_start_rep){ .places = { places.p, places.n },
							     .items = { g, b->n } });
	svc_reply(b->req, &out);
	buf_fini(&scratch);
}

static const struct mst_flow put_flow = {
	.name = "PUT_START",
	.waits = "space",
	.item_bytes = sizeof(struct mind_put),
	.msg_bytes = sizeof(struct put_msg),
	.decode = put_decode,
	.begin = put_begin,
	.reply = put_reply,
};

void mst_put_start(void *ctx, struct rpc_req *r)
{
	mst_batch_run(mst_of(ctx), r, &put_flow);
}

/* ---- PUT_REVOKE, PUT_PROGRESS ---- */

static void attempts(void *ctx, struct rpc_req *r,
		     enum err (*fn)(struct mind *, const struct mind_who *, uint64_t, uint64_t))
{
	struct mst_ask a;
	struct msg_attempts_req q;
	struct mind_who who;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_attempts_req(&d, &q);
	if (e == ERR_NONE)
		e = mst_who(r, q.client, q.term, &who, &a.why);
	struct msg_result *res =
		e ? NULL : arena_alloc(&a.arena, (q.items.n + 1) * sizeof(*res));
	if (!res) {
		mst_ask_refuse(&a, e ? e : ERR_NO_MEMORY);
		return;
	}
	for (size_t i = 0; i < q.items.n; i++) {
		e = fn(a.mind, &who, q.items.p[i].attempt, q.items.p[i].version);
		res[i] = mst_result(e, 0, &(struct why){ 0 });
	}
	mst_ask_results(&a, res, q.items.n);
}

void mst_put_revoke(void *ctx, struct rpc_req *r)
{
	attempts(ctx, r, mind_put_revoke);
}

void mst_put_progress(void *ctx, struct rpc_req *r)
{
	attempts(ctx, r, mind_put_progress);
}
