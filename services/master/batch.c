/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include "flows.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SLICE	      256 /* items begun a turn; a put_start is about 3 us (L4) */
#define ARENA_BYTES   (32u << 20)
#define MARGIN_MS     50 /* of the deadline, at most, for the answer's way (I2) */
#define BUSY_RETRY_MS 50

enum { BATCH_BEGIN, BATCH_SETTLE, BATCH_REPLY };

/* In front of each item: what its mind_call's end needs. */
struct head {
	struct mst_batch *b;
};
_Static_assert(sizeof(struct head) % sizeof(void *) == 0, "items behind it are aligned");

static size_t stride(const struct mst_flow *f)
{
	return (sizeof(struct head) + f->item_bytes + 15) & ~(size_t)15;
}

static struct head *head_of(const struct mst_batch *b, size_t i)
{
	return (struct head *)(void *)(b->items + i * stride(b->flow));
}

void *mst_batch_item(const struct mst_batch *b, size_t i)
{
	return head_of(b, i) + 1;
}

/* ---- going on ---- */

static void on_post(struct post *p)
{
	struct mst_batch *b = container_of(p, struct mst_batch, post);
	b->posted = false;
	op_resume(&b->op);
}

/* On a turn of its own: the mind may be in the middle of something. */
static void go_on(struct mst_batch *b)
{
	if (b->posted)
		return;
	b->posted = true;
	b->post.fn = on_post;
	loop_defer(b->m->svc.loop, &b->post);
}

static void on_item(struct mind_call *c)
{
	struct head *h = (struct head *)(void *)c - 1;
	struct mst_batch *b = h->b;
	size_t i = (size_t)((char *)h - b->items) / stride(b->flow);
	assert(!b->ended[i] && b->n_open > 0); /* I1 */
	b->ended[i] = true;
	if (--b->n_open == 0 && b->op.state == BATCH_SETTLE)
		go_on(b);
}

/* ---- steps ---- */

static int step_begin(struct op *op)
{
	struct mst_batch *b = container_of(op, struct mst_batch, op);
	struct mind *mind = mst_mind(b->m);
	size_t end = MIN_OF(b->n, b->next + SLICE);
	if (op->err || !mind)
		return BATCH_REPLY;
	for (; b->next < end; b->next++) {
		head_of(b, b->next)->b = b;
		mst_batch_call(b, b->next)->done = on_item;
		b->n_open++;
		b->flow->begin(b, mind, b->next);
	}
	if (b->next == b->n)
		return b->n_open ? BATCH_SETTLE : BATCH_REPLY;
	go_on(b);
	return OP_WAIT;
}

static int step_settle(struct op *op)
{
	struct mst_batch *b = container_of(op, struct mst_batch, op);
	if (op->err || b->n_open == 0)
		return BATCH_REPLY;
	op->waits_for = b->flow->waits;
	enum err e = rpc_park(b->req); /* I3 */
	if (e) {
		op_fail(op, e, "%s: no room for requests that wait (parked_bytes_max)",
			b->flow->name);
		return BATCH_REPLY;
	}
	return OP_WAIT;
}

static void stop(struct op *op)
{
	go_on(container_of(op, struct mst_batch, op));
}

/* Whom an item waits for, as far as anybody knows: a holder that is not there. */
static void blame(struct mst_batch *b, const struct mind *mind, struct mind_call *c)
{
	struct mind_holder h;
	for (uint32_t i = 0; b->flow->by_holders && b->op.timed_out && i < mind_holders(mind);
	     i++)
		if (mind_holder(mind, i, &h) && !h.away && (h.suspect || !h.merged)) {
			c->err = h.suspect ? ERR_BUSY : ERR_RECOVERING;
			why_note(&c->why, c->err,
				 "%s: waited to the deadline for holder %s, %s", b->flow->name,
				 h.id, h.suspect ? "which is silent" : "which is being merged");
			return;
		}
}

static void end_item(struct mst_batch *b, struct mind *mind, size_t i)
{
	struct mind_call *c = mst_batch_call(b, i);
	const struct op *op = &b->op;
	if (b->ended[i])
		return;
	if (i < b->next && mind)
		mind_drop(mind, c);
	b->ended[i] = true;
	memset(&c->why, 0, sizeof(c->why));
	c->err = op->err;
	c->retry_ms = BUSY_RETRY_MS;
	if (!mind && c->err == ERR_NONE)
		c->err = why_set(&c->why, ERR_SHUTTING_DOWN, "%s: the master stops",
				 b->flow->name);
	if (mind)
		blame(b, mind, c);
	why_note(&c->why, c->err, "%s: %s", b->flow->name, op->why.text);
	metric_inc(b->m->svc.metrics, MST_M_LATE);
}

static int step_reply(struct op *op)
{
	struct mst_batch *b = container_of(op, struct mst_batch, op);
	struct mind *mind = mst_mind(b->m);
	for (size_t i = 0; i < b->n; i++)
		end_item(b, mind, i);
	b->flow->reply(b);
	b->req = NULL;
	return OP_DONE;
}

static const struct op_step steps[] = {
	[BATCH_BEGIN] = { "begin", step_begin, TO(BATCH_SETTLE) | TO(BATCH_REPLY),
			  .waits = true, .stop = op_stop_none },
	[BATCH_SETTLE] = { "settle", step_settle, TO(BATCH_REPLY), .waits = true,
			   .stop = stop },
	[BATCH_REPLY] = { "reply", step_reply, TO(OP_DONE) },
};
OP_TABLE(batch_table, "master.batch", steps);

/* ---- life ---- */

static void batch_free(struct mst_batch *b)
{
	arena_fini(&b->arena);
	free(b->ended);
	free(b->items);
	free(b->msg);
	free(b);
}

static void on_done(struct op *op)
{
	batch_free(container_of(op, struct mst_batch, op));
}

static void on_gone(struct rpc_req *r)
{
	op_cancel(&((struct mst_batch *)r->user)->op);
}

/* I2 */
static uint64_t deadline(const struct mst *m, const struct rpc_req *r)
{
	uint64_t now = loop_now_ns(m->svc.loop);
	uint64_t left = r->deadline_ns > now ? r->deadline_ns - now : 0;
	return now + left - MIN_OF(left / 8, MARGIN_MS * NS_PER_MS);
}

static enum err decode(struct mst_batch *b, struct why *why)
{
	struct dec d = DEC_INIT(b->req->body, &b->arena, why);
	enum err e = b->flow->decode(b, &d, &b->n);
	if (e)
		return e;
	b->items = calloc(b->n + 1, stride(b->flow));
	b->ended = calloc(b->n + 1, 1);
	return b->items && b->ended ? ERR_NONE
				    : why_set(why, ERR_NO_MEMORY, "%s: no memory for %zu items",
					      b->flow->name, b->n);
}

static enum err start(struct mst_batch *b, struct why *why)
{
	enum err e = b->m->term.mind ? mst_check_shard(b->req, why) : mst_no_term(b->m, why);
	if (e == ERR_NONE)
		e = decode(b, why);
	if (e)
		return e;
	b->op.table = &batch_table;
	b->op.loop = b->m->svc.loop;
	b->op.set = &b->m->svc.ops;
	b->op.deadline_ns = deadline(b->m, b->req);
	b->op.done = on_done;
	b->op.done_inline = true;
	b->req->user = b;
	b->req->gone = on_gone;
	return op_start(&b->op)
		       ? why_set(why, ERR_BUSY, "%s: too many requests under way (ops_max)",
				 b->flow->name)
		       : ERR_NONE;
}

void mst_batch_run(struct mst *m, struct rpc_req *r, const struct mst_flow *f)
{
	struct why why = { 0 };
	struct mst_batch *b = calloc(1, sizeof(*b));
	if (b)
		b->msg = calloc(1, f->msg_bytes);
	if (!b || !b->msg) {
		free(b);
		svc_refuse(r, ERR_NO_MEMORY, "%s: no memory", f->name);
		return;
	}
	b->m = m;
	b->req = r;
	b->flow = f;
	b->arena.limit = ARENA_BYTES;
	if (start(b, &why) == ERR_NONE)
		return; /* b may be gone */
	r->user = NULL;
	r->gone = NULL;
	rpc_reply_why(r, &why, BUSY_RETRY_MS);
	batch_free(b);
}

void mst_batch_results(struct mst_batch *b)
{
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX);
	struct msg_result *res = arena_alloc(&b->arena, (b->n + 1) * sizeof(*res));
	if (!res) {
		svc_refuse(b->req, ERR_NO_MEMORY, "%s: no memory for the answer",
			   b->flow->name);
		return;
	}
	for (size_t i = 0; i < b->n; i++) {
		const struct mind_call *c = mst_batch_call(b, i);
		res[i] = mst_result(c->err, c->retry_ms, &c->why);
		res[i].made = c->made;
	}
	enc_results_rep(&out, &(struct msg_results_rep){ .items = { res, b->n } });
	svc_reply(b->req, &out);
}
