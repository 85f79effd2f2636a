/* SPDX-License-Identifier: Apache-2.0 */
/* REGISTER PUBLISH CONFIRM REPORT: what holders call. */
#include "flows.h"

#include <inttypes.h>
#include <string.h>

static void reply_error(struct mst_batch *b, const struct mind_call *c)
{
	struct msg_result r = mst_result(c->err, c->retry_ms, &c->why);
	struct why why = c->why;
	why_note(&why, c->err, "%s: %s", b->flow->name, err_text(c->err));
	rpc_reply_why(b->req, &why, r.retry_ms);
}

/* ---- REGISTER ---- */

static enum err register_check(const struct rpc_req *r, const struct msg_register_req *q,
			       struct why *why)
{
	const char *id = r->peer->holder;
	if (strlen(id) != q->holder.n || memcmp(id, q->holder.p, q->holder.n) != 0) /* F3 */
		return why_set(why, ERR_FORBIDDEN, "holder: this session is that of %s", id);
	if (q->kind != 1 && q->kind != 2)
		return why_set(why, ERR_INVALID_PARAMS, "REGISTER.kind: %u, 1 agent or 2 owner",
			       q->kind);
	if (q->addrs.n == 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "REGISTER.addrs: none: the master dials the holder");
	return ERR_NONE;
}

static enum err register_decode(struct mst_batch *b, struct dec *d, size_t *n)
{
	struct msg_register_req *q = b->msg;
	enum err e = dec_register_req(d, q);
	*n = 1;
	return e ? e : register_check(b->req, q, d->why);
}

static void register_begin(struct mst_batch *b, struct mind *mind, size_t i)
{
	const struct msg_register_req *q = b->msg;
	struct mind_segment segs[256];
	struct mind_news news = { .id = q->holder,
				  .host = q->host,
				  .fd_path = q->fd_path,
				  .kind = q->kind,
				  .addrs = q->addrs.p,
				  .n_addrs = q->addrs.n,
				  .pool_epoch = q->pool_epoch,
				  .segments = segs,
				  .n_segments = q->segments.n };
	for (size_t s = 0; s < q->segments.n; s++)
		segs[s] =
			(struct mind_segment){ q->segments.p[s].segment, q->segments.p[s].bytes,
					       q->segments.p[s].bytes_total,
					       q->segments.p[s].slots };
	memcpy(news.instance, q->instance, sizeof(news.instance));
	memcpy(news.pool, q->pool, sizeof(news.pool));
	int64_t index = mind_holder_index(mind, q->holder);
	if (index >= 0)
		mst_links_heard(b->m, (uint32_t)index);
	mind_register(mind, &news, mst_batch_item(b, i));
}

static void register_reply(struct mst_batch *b)
{
	const struct mind_register *x = mst_batch_item(b, 0);
	struct buf out = BUF_INIT(4096);
	if (x->call.err) {
		reply_error(b, &x->call);
		return;
	}
	if (!x->adopted) /* else: it only makes sure */
		LOG_INFO(&b->m->svc.log, "holder", "holder=%s step=register",
			 b->req->peer->holder);
	enc_register_rep(&out,
			 &(struct msg_register_rep){ svc_meta_term(&b->m->meta), x->adopted });
	svc_reply(b->req, &out);
}

static const struct mst_flow register_flow = {
	.name = "REGISTER",
	.waits = "the meta log",
	.item_bytes = sizeof(struct mind_register),
	.msg_bytes = sizeof(struct msg_register_req),
	.decode = register_decode,
	.begin = register_begin,
	.reply = register_reply,
};

void mst_register(void *ctx, struct rpc_req *r)
{
	mst_batch_run(mst_of(ctx), r, &register_flow);
}

/* ---- PUBLISH ---- */

struct publish_msg {
	struct msg_publish_req q;
	struct mind_under under;
	uint32_t index;
};

/* What it acts under is judged for each item (mind_publish): V3 wants an answer for old slots too. */
static enum err publish_decode(struct mst_batch *b, struct dec *d, size_t *n)
{
	struct publish_msg *p = b->msg;
	enum err e = dec_publish_req(d, &p->q);
	if (e == ERR_NONE)
		e = mst_caller(b->m, b->req, p->q.holder, &p->index, d->why);
	if (e == ERR_NONE && !p->q.under)
		e = why_set(d->why, ERR_BAD_MESSAGE, "PUBLISH: under is missing");
	if (e)
		return e;
	const struct msg_under *u = p->q.under;
	p->under = (struct mind_under){ u->shard, u->term, u->adoption, u->pool_epoch };
	*n = p->q.items.n;
	return ERR_NONE;
}

static void publish_begin(struct mst_batch *b, struct mind *mind, size_t i)
{
	struct publish_msg *p = b->msg;
	mind_publish(mind, p->index, &p->under, &p->q.items.p[i], mst_batch_item(b, i));
}

static const struct mst_flow publish_flow = {
	.name = "PUBLISH",
	.waits = "older versions to be marked",
	.item_bytes = sizeof(struct mind_call),
	.msg_bytes = sizeof(struct publish_msg),
	.by_holders = true,
	.decode = publish_decode,
	.begin = publish_begin,
	.reply = mst_batch_results,
};

void mst_publish(void *ctx, struct rpc_req *r)
{
	mst_batch_run(mst_of(ctx), r, &publish_flow);
}

/* ---- CONFIRM ---- */

void mst_confirm(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_confirm_req q;
	struct mind_under under;
	uint32_t index = 0;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_confirm_req(&d, &q);
	if (e == ERR_NONE)
		e = mst_caller_under(a.m, r, q.holder, q.under, &index, &under, &a.why);
	struct msg_result *res =
		e ? NULL : arena_alloc(&a.arena, (q.versions.n + 1) * sizeof(*res));
	if (!res) {
		mst_ask_refuse(&a, e ? e : ERR_NO_MEMORY);
		return;
	}
	for (size_t i = 0; i < q.versions.n; i++) {
		bool open = mind_open_attempt(a.mind, index, &under, q.versions.p[i]);
		res[i] = mst_result(open ? ERR_NONE : ERR_STALE_ATTEMPT, 0, &(struct why){ 0 });
	}
	mst_ask_results(&a, res, q.versions.n);
}

/* ---- REPORT ---- */

void mst_report(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_report_req q;
	struct mind_under under;
	uint32_t index = 0;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_report_req(&d, &q);
	if (e == ERR_NONE)
		e = mst_caller_under(a.m, r, q.holder, q.under, &index, &under, &a.why);
	if (e) {
		mst_ask_refuse(&a, e);
		return;
	}
	for (size_t i = 0; i < q.fenced.n; i++) {
		enum err one = mind_range_free(a.mind, index, &under, q.fenced.p[i]);
		e = one == ERR_RECOVERING ? one : e; /* to be said again, all of it */
	}
	for (size_t i = 0; i < q.corrupt.n; i++) {
		const struct msg_publish_item *x = &q.corrupt.p[i];
		mind_corrupt(a.mind, index, &under, x->slot, x->generation, x->version);
		metric_add(a.m->svc.metrics, MST_M_REJECTED, 2, 1);
	}
	for (size_t i = 0; i < q.failed.n; i++)
		mind_copy_failed(a.mind, index, &under, &q.failed.p[i]);
	if (e) {
		mst_ask_refuse(&a, e);
		return;
	}
	rpc_reply(r, ERR_NONE, 0, BYTES(NULL, 0));
	arena_fini(&a.arena);
}
