/* SPDX-License-Identifier: Apache-2.0 */
/* REMOVE, REMOVE_RANGE: acknowledged when T3 holds. */
#include "flows.h"

/* ---- REMOVE ---- */

struct remove_msg {
	struct msg_remove_req q;
	struct mind_who who;
};

static enum err remove_decode(struct mst_batch *b, struct dec *d, size_t *n)
{
	struct remove_msg *p = b->msg;
	enum err e = dec_remove_req(d, &p->q);
	if (e == ERR_NONE)
		e = mst_who(b->req, p->q.client, p->q.term, &p->who, d->why);
	if (e == ERR_NONE)
		*n = p->q.items.n;
	return e;
}

static void remove_begin(struct mst_batch *b, struct mind *mind, size_t i)
{
	struct remove_msg *p = b->msg;
	mind_remove(mind, &p->who, &p->q.items.p[i], mst_batch_item(b, i));
}

static const struct mst_flow remove_flow = {
	.name = "REMOVE",
	.waits = "holders to mark it",
	.item_bytes = sizeof(struct mind_call),
	.msg_bytes = sizeof(struct remove_msg),
	.by_holders = true,
	.decode = remove_decode,
	.begin = remove_begin,
	.reply = mst_batch_results,
};

void mst_remove(void *ctx, struct rpc_req *r)
{
	mst_batch_run(mst_of(ctx), r, &remove_flow);
}

/* ---- REMOVE_RANGE ---- */

struct range_msg {
	struct msg_remove_range_req q;
	struct mind_who who;
};

static enum err range_decode(struct mst_batch *b, struct dec *d, size_t *n)
{
	struct range_msg *p = b->msg;
	enum err e = dec_remove_range_req(d, &p->q);
	if (e == ERR_NONE)
		e = mst_who(b->req, p->q.client, p->q.term, &p->who, d->why);
	*n = 1;
	return e;
}

static void range_begin(struct mst_batch *b, struct mind *mind, size_t i)
{
	struct range_msg *p = b->msg;
	mind_remove_range(mind, &p->who, &p->q, mst_batch_item(b, i));
}

static void range_reply(struct mst_batch *b)
{
	const struct mind_remove_range *x = mst_batch_item(b, 0);
	struct buf out = BUF_INIT(4096);
	if (x->call.err) {
		struct msg_result r = mst_result(x->call.err, x->call.retry_ms, &x->call.why);
		struct why why = x->call.why;
		why_note(&why, x->call.err, "%s", err_text(x->call.err));
		rpc_reply_why(b->req, &why, r.retry_ms);
		return;
	}
	enc_remove_range_rep(&out, &(struct msg_remove_range_rep){ x->removed, x->pinned });
	svc_reply(b->req, &out);
}

static const struct mst_flow range_flow = {
	.name = "REMOVE_RANGE",
	.waits = "holders to mark them",
	.item_bytes = sizeof(struct mind_remove_range),
	.msg_bytes = sizeof(struct range_msg),
	.by_holders = true,
	.decode = range_decode,
	.begin = range_begin,
	.reply = range_reply,
};

void mst_remove_range(void *ctx, struct rpc_req *r)
{
	mst_batch_run(mst_of(ctx), r, &range_flow);
}
