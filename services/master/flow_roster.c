/* SPDX-License-Identifier: Apache-2.0 */
/* HOLDERS, FORGET: the roster. */
#include "flows.h"

#include <string.h>

static const char *state_name(const struct mind_holder *h)
{
	if (h->away)
		return "away";
	if (!h->merged)
		return "merging";
	if (h->draining)
		return h->drained ? "drained" : "draining";
	return h->suspect ? "suspect" : "in";
}

void mst_holders(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct mind_counts c;
	struct mind_holder h;
	size_t n = 0;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	uint32_t max = MIN_OF(mind_holders(a.mind), 4096u);
	struct msg_holder_state *s = arena_alloc(&a.arena, (max + 1) * sizeof(*s));
	for (uint32_t i = 0; s && i < max; i++) {
		if (!mind_holder(a.mind, i, &h))
			continue;
		struct why id = { 0 };
		why_note(&id, ERR_INTERNAL, "%s", h.id);
		s[n++] = (struct msg_holder_state){
			.id = mst_text(&a.arena, &id),
			.kind = BYTES_STR(h.kind == 2 ? "owner" : "agent"),
			.state = BYTES_STR(state_name(&h)),
			.objects = h.objects,
			.bytes_used = h.bytes_used,
			.bytes_total = h.bytes_total,
			.quarantine_bytes = h.quarantine_bytes,
		};
	}
	if (!s) {
		mst_ask_refuse(&a, ERR_NO_MEMORY);
		return;
	}
	mind_counts(a.mind, &c);
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_holders_rep(&out, &(struct msg_holders_rep){ .holders = { s, n },
							 .recovering = c.recovering,
							 .objects = c.objects });
	mst_ask_reply(&a, &out);
}

/* ---- FORGET ---- */

static enum err forget_decode(struct mst_batch *b, struct dec *d, size_t *n)
{
	*n = 1;
	return dec_forget_req(d, b->msg);
}

static void forget_begin(struct mst_batch *b, struct mind *mind, size_t i)
{
	const struct msg_forget_req *q = b->msg;
	mind_forget(mind, q->holder, mst_batch_item(b, i));
}

static void forget_reply(struct mst_batch *b)
{
	const struct mind_call *c = mst_batch_call(b, 0);
	struct msg_result r = mst_result(c->err, c->retry_ms, &c->why);
	struct why why = c->why;
	why_note(&why, c->err, "FORGET: %s", err_text(c->err));
	if (c->err)
		rpc_reply_why(b->req, &why, r.retry_ms);
	else
		rpc_reply(b->req, ERR_NONE, 0, BYTES(NULL, 0));
}

static const struct mst_flow forget_flow = {
	.name = "FORGET",
	.waits = "the meta log",
	.item_bytes = sizeof(struct mind_call),
	.msg_bytes = sizeof(struct msg_forget_req),
	.decode = forget_decode,
	.begin = forget_begin,
	.reply = forget_reply,
};

void mst_forget(void *ctx, struct rpc_req *r)
{
	mst_batch_run(mst_of(ctx), r, &forget_flow);
}
