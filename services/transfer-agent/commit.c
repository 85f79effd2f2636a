/* SPDX-License-Identifier: Apache-2.0 */
/*
 * COMMIT of a client (spec/store.md, Terms and puts (3) and (4)). One op a request; its items go each
 * their own way:
 *
 *   ticket opened, hold_commit ──ERR_NONE──> PUBLISH ──> answered
 *            ^       └──ERR_NOT_READY──> CONFIRM ──┐└──> anything else: answered
 *            └─────────────────────────────────────┘
 *
 *   (open, waits) --all looked at--> (settle, waits) --all answered, or the deadline--> (reply) --> done
 *
 * I1: an item is answered OK only after the master said that it is published (T2), and after the
 *     slot's mark was set (V6).
 * I2: an item that is COMMITTED here and not known to be published ends with ERR_TIMED_OUT: in doubt.
 *     A COMMIT sent again finds its slot.
 */
#include "agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"

#define TICKET_ARENA_BYTES (32u << 10)
#define LIST_ARENA_BYTES   (1u << 20)
#define SLICE_NS	   NS_PER_MS /* of opening tickets, in one turn (L4) */
#define SLICE_ITEMS	   256
#define EARLY_NS	   (20 * NS_PER_MS) /* ahead of the deadline, so that the answer arrives */
#define BUSY_MS		   1		    /* the client is about to clear its hazard word */

enum { COMMIT_OPEN, COMMIT_SETTLE, COMMIT_REPLY, COMMIT_N };

struct commit;

struct item {
	struct commit *of;
	bool waits, here, confirmed; /* here: the slot is COMMITTED */
	enum err err;
	uint32_t retry_ms, made;
	char *text;	      /* of an error; owned */
	struct xfa_wait wait; /* for PUBLISH or CONFIRM; last: its text is not zeroed */
};

struct commit {
	struct op op;
	struct xfa *x;
	struct rpc_req *req;
	struct arena arena; /* of the list of items, which points into the request's body */
	struct msg_commit_req msg;
	struct post post;	 /* the next slice */
	size_t n_looked, n_open; /* n_open: looked at and not answered */
	bool posted;
	struct item items[];
};

/* ---- ends of items ---- */

static unsigned cell_of(enum err e)
{
	switch (e) {
	case ERR_NONE:
		return 0;
	case ERR_STALE_EPOCH:
	case ERR_STALE_ATTEMPT:
	case ERR_STALE_TERM:
		return 1;
	case ERR_BUSY:
		return 2;
	case ERR_BAD_TICKET:
		return 3;
	case ERR_NO_SPACE:
		return 4;
	case ERR_TIMED_OUT:
		return 5;
	default:
		return 6;
	}
}

static void item_end(struct item *it, enum err e, const char *text, uint32_t retry_ms)
{
	it->err = e;
	it->retry_ms = retry_ms;
	if (e)
		it->text = strdup(text); /* none: the error's own text will do */
	it->of->n_open--;
	metric_add(it->of->x->svc.metrics, XFA_M_COMMITS, cell_of(e), 1);
}

static void look(struct commit *c, struct item *it);

static void settle_soon(struct commit *c);

/* The master has answered about this one. */
static void on_word(struct xfa_wait *w)
{
	struct item *it = container_of(w, struct item, wait);
	struct commit *c = it->of;
	it->waits = false;
	if (w->err)
		item_end(it, w->err, w->why.text, w->retry_ms);
	else if (it->here) {
		it->made = w->made;
		item_end(it, ERR_NONE, "", 0);
	} else {
		it->confirmed = true;
		look(c, it);
	}
	if (c->n_open == 0)
		settle_soon(c);
}

static void ask(struct item *it, enum xfa_ask_kind kind, uint32_t shard,
		const struct hold_slot *s)
{
	memset(&it->wait, 0, offsetof(struct xfa_wait, why));
	it->wait.why.err = ERR_NONE;
	it->wait.done = on_word;
	enum err e = xfa_ask(it->of->x, kind, shard, s, &it->wait);
	it->waits = e == ERR_NONE;
	if (e == ERR_BUSY)
		item_end(it, e, "agent.commits_max objects wait for the master already", 50);
	else if (e)
		item_end(it, e, err_text(e), 0);
}

/* ---- a ticket ---- */

static enum err open_ticket(struct commit *c, const struct item *it, struct arena *a,
			    struct msg_ticket *t, struct why *why)
{
	struct xfa *x = c->x;
	const struct msg_commit_item *m = &c->msg.items.p[it - c->items];
	const struct peer *peer = c->req->peer;
	enum err e = ticket_open(x->tickets, m->ticket, a, t, why);
	if (e)
		return e;
	/* An admin has no tenant of its own: it acts for the one of its ticket. */
	if (peer->role == ROLE_CLIENT && (t->tenant.n != strlen(peer->tenant) ||
					  memcmp(t->tenant.p, peer->tenant, t->tenant.n) != 0))
		return why_set(why, ERR_BAD_TICKET, "the ticket is another tenant's");
	if (t->op != TICKET_WRITE)
		return why_set(why, ERR_BAD_TICKET,
			       "COMMIT takes a write ticket, this is none");
	if (memcmp(t->pool, mempool_id(x->pool), 16) != 0)
		return why_set(why, ERR_BAD_TICKET, "the ticket is for another pool");
	if (t->shard >= mempool_shards(x->pool))
		return why_set(why, ERR_BAD_TICKET, "the ticket is for shard %u of %u",
			       t->shard, mempool_shards(x->pool));
	return ERR_NONE;
}

/* Looks an item up and sends it on its way. */
static void look(struct commit *c, struct item *it)
{
	struct arena a = ARENA_INIT(TICKET_ARENA_BYTES);
	struct msg_ticket t;
	struct hold_slot s = { 0 };
	struct why why = { 0 };
	enum err e = open_ticket(c, it, &a, &t, &why);
	if (e == ERR_NONE)
		e = hold_commit(c->x->hold, &t, c->msg.items.p[it - c->items].sum, &s, &why);
	if (e == ERR_NONE) {
		it->here = true;
		FAULT_AT(commit_slot);
		ask(it, XFA_PUBLISH, t.shard, &s);
	} else if (e == ERR_NOT_READY && !it->confirmed) {
		s = (struct hold_slot){ .version = t.version };
		ask(it, XFA_CONFIRM, t.shard, &s);
	} else {
		item_end(it, e, why.err ? why.text : err_text(e), e == ERR_BUSY ? BUSY_MS : 0);
	}
	arena_fini(&a);
}

/* ---- steps ---- */

static void on_slice(struct post *p)
{
	struct commit *c = container_of(p, struct commit, post);
	c->posted = false;
	op_resume(&c->op);
}

static void settle_soon(struct commit *c)
{
	if (c->posted || c->op.state != COMMIT_SETTLE || c->op.err)
		return;
	c->posted = true;
	c->post.fn = on_slice;
	loop_defer(c->op.loop, &c->post);
}

static int commit_open(struct op *op)
{
	struct commit *c = container_of(op, struct commit, op);
	uint64_t end = loop_now_ns(op->loop) + SLICE_NS;
	hold_commits_begin(c->x->hold);
	while (op->err == ERR_NONE && c->n_looked < c->msg.items.n) {
		c->n_open++;
		look(c, &c->items[c->n_looked++]);
		if (c->n_looked % 16 == 0 && c->n_looked < c->msg.items.n &&
		    (c->n_looked % SLICE_ITEMS == 0 || loop_now_ns(op->loop) >= end)) {
			c->posted = true;
			c->post.fn = on_slice;
			loop_defer(op->loop, &c->post);
			break;
		}
	}
	hold_commits_end(c->x->hold);
	return c->posted ? OP_WAIT : COMMIT_SETTLE;
}

/* The deadline, or the end of the service: what is not answered is in doubt (I2). */
static void drop_waits(struct commit *c)
{
	char text[512];
	for (size_t i = 0; i < c->n_looked; i++) {
		struct item *it = &c->items[i];
		if (!it->waits)
			continue;
		xfa_ask_drop(&it->wait);
		it->waits = false;
		snprintf(text, sizeof(text), "%s; the master has not %s%s%s",
			 it->here ? "in doubt: the object is whole here"
				  : "nothing was committed",
			 it->here ? "published it in time" : "said in time whether it is open",
			 it->wait.why.err ? "; its last word: " : "",
			 it->wait.why.err ? it->wait.why.text : "");
		item_end(it, c->op.timed_out ? ERR_TIMED_OUT : c->op.err, text, 0);
	}
}

static int commit_settle(struct op *op)
{
	struct commit *c = container_of(op, struct commit, op);
	if (op->err)
		drop_waits(c);
	if (c->n_open == 0)
		return COMMIT_REPLY;
	op->waits_for = "the master";
	return OP_WAIT;
}

static void commit_unwait(struct op *op)
{
	if (!container_of(op, struct commit, op)->posted) /* else a resume is on its way */
		op_resume(op);
}

static void reply_items(struct commit *c)
{
	size_t n = c->msg.items.n;
	struct msg_result *res = calloc(n + 1, sizeof(*res));
	if (!res) {
		svc_refuse(c->req, ERR_NO_MEMORY, "COMMIT: no memory for the answer");
		return;
	}
	for (size_t i = 0; i < n; i++) {
		const struct item *it = &c->items[i];
		const char *text = it->text ? it->text : it->err ? err_text(it->err) : "";
		res[i] = (struct msg_result){ .status = (uint32_t)it->err,
					      .retry_ms = it->retry_ms,
					      .made = it->made,
					      .text = BYTES(text, MIN_OF(strlen(text),
									 (size_t)320)) };
	}
	struct msg_results_rep m = { .items = { res, n } };
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_results_rep(&b, &m);
	svc_reply(c->req, &b);
	free(res);
}

/* One that was stopped before its items were all looked at says so as a whole. */
static int commit_reply(struct op *op)
{
	struct commit *c = container_of(op, struct commit, op);
	c->req->gone = NULL;
	if (c->n_looked < c->msg.items.n || op->cancelled)
		rpc_reply_why(c->req, &op->why, 0);
	else
		reply_items(c);
	return OP_DONE;
}

static const struct op_step commit_steps[COMMIT_N] = {
	[COMMIT_OPEN] = { "open", commit_open, TO(COMMIT_SETTLE), .waits = true,
			  .stop = op_stop_none },
	[COMMIT_SETTLE] = { "settle", commit_settle, TO(COMMIT_REPLY), .waits = true,
			    .stop = commit_unwait },
	[COMMIT_REPLY] = { "reply", commit_reply, TO(OP_DONE) },
};
OP_TABLE(commit_table, "agent.commit", commit_steps);

/* ---- begin and end ---- */

static void commit_free(struct commit *c)
{
	for (size_t i = 0; i < c->msg.items.n; i++)
		free(c->items[i].text);
	arena_fini(&c->arena);
	free(c);
}

static void commit_done(struct op *op)
{
	commit_free(container_of(op, struct commit, op));
}

static void commit_gone(struct rpc_req *r)
{
	op_cancel(&((struct commit *)r->user)->op);
}

static enum err begin(struct xfa *x, struct rpc_req *r, struct arena *arena,
		      const struct msg_commit_req *m, struct why *why)
{
	struct commit *c = malloc(sizeof(*c) + m->items.n * sizeof(c->items[0]));
	enum err e = c ? rpc_park(r) : ERR_NO_MEMORY;
	if (e) {
		free(c);
		return why_set(why, e, "COMMIT: no room to wait: %s", err_text(e));
	}
	uint64_t now = loop_now_ns(x->svc.loop);
	uint64_t left = r->deadline_ns - MIN_OF(now, r->deadline_ns);
	memset(c, 0, sizeof(*c));
	c->x = x;
	c->req = r;
	c->arena = *arena;
	c->msg = *m;
	for (size_t i = 0; i < m->items.n; i++) {
		memset(&c->items[i], 0, offsetof(struct item, wait.why.text));
		c->items[i].of = c;
	}
	c->op = (struct op){ .table = &commit_table,
			     .loop = x->svc.loop,
			     .set = &x->svc.ops,
			     .deadline_ns = r->deadline_ns - MIN_OF(left / 4, EARLY_NS),
			     .done = commit_done };
	r->user = c;
	r->gone = commit_gone;
	*arena = ARENA_INIT(0); /* taken */
	e = op_start(&c->op);
	if (e) {
		r->gone = NULL;
		*arena = c->arena;
		free(c);
		return why_set(why, e, "COMMIT: agent.ops_max requests are under way");
	}
	return ERR_NONE;
}

void xfa_on_commit(void *ctx, struct rpc_req *r)
{
	struct xfa *x = ctx;
	struct arena arena = ARENA_INIT(LIST_ARENA_BYTES);
	struct msg_commit_req m;
	struct why why = { 0 };
	if (!xfa_ready(x, r))
		return;
	struct dec d = DEC_INIT(r->body, &arena, &why);
	enum err e = dec_commit_req(&d, &m);
	if (e == ERR_NONE)
		e = begin(x, r, &arena, &m, &why);
	if (e)
		rpc_reply_why(r, &why, e == ERR_BUSY ? 50 : 0);
	arena_fini(&arena);
}
