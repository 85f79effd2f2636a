/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_flow.h"
#include "proto/messages.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define BEGINS_MAX 4
#define LEAVE_MS   500
#define AGAIN_MS   50 /* for a planner that is busy and does not say how long */
#define ARENA	   4096

enum { FLOW_BEGIN, FLOW_SEND, FLOW_RUN, FLOW_READ, FLOW_LEAVE };

static struct plan_flow *flow_of(struct op *op)
{
	return container_of(op, struct plan_flow, op);
}

/* ---- calls ---- */

static void on_done(struct rpc_call *call);

static void send(struct flow_call *c)
{
	rpc_send(c->flow->rpc, &c->call);
}

static void on_again(struct timer *t)
{
	send(container_of(t, struct flow_call, again));
}

/* body is encoded already. */
static void call(struct flow_call *c, uint32_t method, uint64_t deadline_ns)
{
	struct plan_flow *f = c->flow;
	c->call = (struct rpc_call){ .method = method,
				     .idempotent = true,
				     .deadline_ns = deadline_ns,
				     .body = buf_bytes(&c->body),
				     .done = on_done };
	c->out = true;
	f->n_out++;
	send(c);
}

static struct flow_call *slot(struct plan_flow *f)
{
	for (int i = 0; i < FLOW_WINDOW; i++)
		if (!f->calls[i].out) {
			f->calls[i].flow = f;
			f->calls[i].body.limit = WIRE_MESSAGE_MAX;
			buf_clear(&f->calls[i].body);
			return &f->calls[i];
		}
	return NULL;
}

static bool failed(const struct plan_flow *f)
{
	return f->call_err || f->op.err;
}

static void note_error(struct plan_flow *f, enum err e, const struct why *why)
{
	if (f->call_err)
		return;
	f->call_err = e;
	f->call_why = *why;
	if (!f->call_why.err)
		why_set(&f->call_why, e, "%s", err_text(e));
}

/* ---- answers ---- */

static enum err take_begin(struct plan_flow *f, struct bytes reply, struct why *why)
{
	struct dec d = DEC_INIT(reply, NULL, why);
	struct msg_plan_begin_rep m;
	enum err e = dec_plan_begin_rep(&d, &m);
	if (e)
		return e;
	f->missing[0] = m.source_missing;
	f->missing[1] = m.target_missing;
	f->part_bytes = m.part_bytes;
	for (int i = 0; i < 2; i++)
		if (f->missing[i] > f->ask.in[i].text.n || (f->missing[i] && !m.part_bytes) ||
		    m.part_bytes > 4u << 20)
			return why_set(
				why, ERR_BAD_MESSAGE,
				"PLAN_BEGIN_REP: it misses %llu bytes of a text of %zu, in "
				"pieces of %u",
				(unsigned long long)f->missing[i], f->ask.in[i].text.n,
				m.part_bytes);
	return ERR_NONE;
}

static enum err take_run(struct plan_flow *f, struct bytes reply, struct why *why)
{
	struct dec d = DEC_INIT(reply, NULL, why);
	struct msg_plan_run_rep m;
	enum err e = dec_plan_run_rep(&d, &m);
	if (e)
		return e;
	if (m.digest.n != sizeof(f->digest))
		return why_set(why, ERR_BAD_MESSAGE, "PLAN_RUN_REP.digest: %zu characters",
			       m.digest.n);
	if (m.text_bytes > f->ask.text_max)
		return why_set(why, ERR_TOO_LARGE, "the plan has %llu bytes; at most %llu",
			       (unsigned long long)m.text_bytes,
			       (unsigned long long)f->ask.text_max);
	memcpy(f->digest, m.digest.p, sizeof(f->digest));
	f->text_bytes = m.text_bytes;
	f->regions = m.regions;
	f->segments = m.segments;
	f->total_bytes = m.total_bytes;
	f->sources = m.sources;
	f->targets = m.targets;
	f->routes = m.routes;
	f->took_us = m.took_us;
	f->text.limit = m.text_bytes;
	buf_clear(&f->text);
	return buf_room(&f->text, m.text_bytes) || !m.text_bytes ? ERR_NONE : ERR_NO_MEMORY;
}

static enum err take_piece(struct plan_flow *f, struct flow_call *c, struct bytes reply,
			   struct why *why)
{
	struct dec d = DEC_INIT(reply, NULL, why);
	struct msg_plan_next_rep m;
	enum err e = dec_plan_next_rep(&d, &m);
	if (e)
		return e;
	if (m.data.n != MIN_OF(f->text_bytes - c->offset, f->part_bytes))
		return why_set(why, ERR_BAD_MESSAGE, "PLAN_NEXT_REP.data: %zu bytes at %llu",
			       m.data.n, (unsigned long long)c->offset);
	if (m.data.n)
		memcpy(f->text.p + c->offset, m.data.p, m.data.n);
	return ERR_NONE;
}

static enum err take(struct plan_flow *f, struct flow_call *c, struct why *why)
{
	struct bytes reply = c->call.reply;
	switch (c->call.method) {
	case METHOD_PLAN_BEGIN:
		return take_begin(f, reply, why);
	case METHOD_PLAN_RUN:
		return take_run(f, reply, why);
	case METHOD_PLAN_NEXT:
		return take_piece(f, c, reply, why);
	default:
		return ERR_NONE;
	}
}

static void pump(struct plan_flow *f);

static void on_done(struct rpc_call *rc)
{
	struct flow_call *c = container_of(rc, struct flow_call, call);
	struct plan_flow *f = c->flow;
	struct why why = rc->why;
	enum err e = rc->err;
	if ((e == ERR_BUSY || e == ERR_NOT_READY) && !failed(f) && !f->gone &&
	    f->op.state != FLOW_LEAVE) {
		timer_start(f->loop, &c->again,
			    clock_after_ms(loop_now_ns(f->loop),
					   rc->retry_ms ? rc->retry_ms : AGAIN_MS),
			    on_again);
		return;
	}
	if (!e)
		e = take(f, c, &why);
	if (e)
		note_error(f, e, &why);
	c->out = false;
	f->n_out--;
	if (!failed(f))
		pump(f);
	if (f->n_out == 0)
		op_resume(&f->op);
}

/* ---- pieces ---- */

static void send_piece(struct plan_flow *f, struct flow_call *c)
{
	const struct flow_side *in = &f->ask.in[f->side];
	struct msg_plan_part_req m = { .side = (uint8_t)(f->side + 1), .offset = f->next };
	m.data = BYTES(in->text.p + f->next, MIN_OF(in->text.n - f->next, f->part_bytes));
	memcpy(m.plan, f->id, sizeof(m.plan));
	enc_plan_part_req(&c->body, &m);
	f->next += m.data.n;
}

static void ask_piece(struct plan_flow *f, struct flow_call *c)
{
	struct msg_plan_next_req m = { .offset = f->next, .bytes = f->part_bytes };
	memcpy(m.plan, f->id, sizeof(m.plan));
	enc_plan_next_req(&c->body, &m);
	c->offset = f->next;
	f->next += MIN_OF(f->text_bytes - f->next, f->part_bytes);
}

/* Is there another piece to send? Goes on to the next side. */
static bool more_to_send(struct plan_flow *f)
{
	while (f->side < 2 && (!f->missing[f->side] || f->next >= f->ask.in[f->side].text.n)) {
		f->side++;
		f->next = 0;
	}
	return f->side < 2;
}

static void pump(struct plan_flow *f)
{
	struct flow_call *c;
	bool sending = f->op.state == FLOW_SEND;
	if (!sending && f->op.state != FLOW_READ)
		return;
	while ((sending ? more_to_send(f) : f->next < f->text_bytes) && (c = slot(f)) != NULL) {
		if (sending)
			send_piece(f, c);
		else
			ask_piece(f, c);
		if (buf_err(&c->body)) {
			note_error(f, buf_err(&c->body), &(struct why){ 0 });
			return;
		}
		call(c, sending ? METHOD_PLAN_PART : METHOD_PLAN_NEXT, f->deadline_ns);
	}
}

/* ---- steps ---- */

/* All calls of a step have ended: on to next, back to the beginning, or away. */
static int after(struct plan_flow *f, int next)
{
	if (f->op.err)
		return FLOW_LEAVE;
	enum err e = f->call_err;
	if (!e)
		return next;
	f->call_err = ERR_NONE;
	/* it was known a moment ago: the planner has restarted, or was slower than its idle_ms */
	if (e == ERR_NOT_FOUND && f->op.state != FLOW_BEGIN && f->n_begun < BEGINS_MAX)
		return FLOW_BEGIN;
	op_fail_why(&f->op, e, &f->call_why);
	return FLOW_LEAVE;
}

static int step_begin(struct op *op)
{
	struct plan_flow *f = flow_of(op);
	if (!op_first(op))
		return after(f, FLOW_SEND);
	struct msg_plan_input in[2];
	for (int i = 0; i < 2; i++)
		in[i] = (struct msg_plan_input){ .form = f->ask.in[i].form,
						 .digest = f->ask.in[i].digest,
						 .bytes = f->ask.in[i].text.n };
	struct msg_plan_begin_req m = {
		.source = &in[0],
		.target = &in[1],
		.local = f->ask.local,
		.participant = f->ask.participant,
		.max_regions = f->ask.max_regions,
		.max_segments_per_region = f->ask.max_segments_per_region,
		.max_total_segments = f->ask.max_total_segments,
	};
	memcpy(m.plan, f->id, sizeof(m.plan));
	struct flow_call *c = slot(f);
	enc_plan_begin_req(&c->body, &m);
	f->n_begun++;
	f->side = 0;
	f->next = 0;
	call(c, METHOD_PLAN_BEGIN, f->deadline_ns);
	return OP_WAIT;
}

static int step_send(struct op *op)
{
	struct plan_flow *f = flow_of(op);
	if (op->err)
		return FLOW_LEAVE;
	if (op_first(op)) {
		pump(f);
		if (f->n_out)
			return OP_WAIT;
	}
	return after(f, FLOW_RUN);
}

static void id_call(struct plan_flow *f, uint32_t method, uint64_t deadline_ns)
{
	struct flow_call *c = slot(f);
	struct msg_plan_id m = { 0 };
	memcpy(m.plan, f->id, sizeof(m.plan));
	enc_plan_id(&c->body, &m);
	call(c, method, deadline_ns);
}

static int step_run(struct op *op)
{
	struct plan_flow *f = flow_of(op);
	if (op->err)
		return FLOW_LEAVE;
	if (op_first(op)) {
		id_call(f, METHOD_PLAN_RUN, f->deadline_ns);
		return OP_WAIT;
	}
	f->next = 0;
	return after(f, FLOW_READ);
}

static int step_read(struct op *op)
{
	struct plan_flow *f = flow_of(op);
	if (op->err)
		return FLOW_LEAVE;
	if (op_first(op)) {
		pump(f);
		if (f->n_out)
			return OP_WAIT;
	}
	int next = after(f, FLOW_LEAVE);
	if (next == FLOW_LEAVE && !op->err)
		f->text.n = f->text_bytes;
	return next;
}

/* Whatever came of it, the planner need not keep it. */
static int step_leave(struct op *op)
{
	struct plan_flow *f = flow_of(op);
	bool lost = op->err == ERR_TIMED_OUT || op->err == ERR_UNREACHABLE ||
		    op->err == ERR_CONN_LOST || op->err == ERR_CLOSED;
	if (!op_first(op) || f->gone || lost) /* it stops by its own deadline */
		return OP_DONE;
	f->call_err = ERR_NONE;
	id_call(f, METHOD_PLAN_CANCEL, clock_after_ms(loop_now_ns(f->loop), LEAVE_MS));
	return OP_WAIT;
}

/* Every call ends now; the last one's end resumes. */
static void unwait(struct op *op)
{
	struct plan_flow *f = flow_of(op);
	for (int i = 0; i < FLOW_WINDOW; i++) {
		struct flow_call *c = &f->calls[i];
		if (!c->out)
			continue;
		if (!timer_running(&c->again)) {
			rpc_cancel(&c->call);
			continue;
		}
		timer_stop(f->loop, &c->again);
		c->out = false;
		f->n_out--;
	}
	if (f->n_out == 0)
		op_resume(op);
}

static const struct op_step flow_steps[] = {
	[FLOW_BEGIN] = { "begin", step_begin, TO(FLOW_SEND) | TO(FLOW_LEAVE), .waits = true,
			 .stop = unwait },
	[FLOW_SEND] = { "send", step_send, TO(FLOW_BEGIN) | TO(FLOW_RUN) | TO(FLOW_LEAVE),
			.waits = true, .stop = unwait },
	[FLOW_RUN] = { "run", step_run, TO(FLOW_BEGIN) | TO(FLOW_READ) | TO(FLOW_LEAVE),
		       .waits = true, .stop = unwait },
	[FLOW_READ] = { "read", step_read, TO(FLOW_BEGIN) | TO(FLOW_LEAVE), .waits = true,
			.stop = unwait },
	[FLOW_LEAVE] = { "leave", step_leave, TO(OP_DONE), .waits = true,
			 .stop = op_stop_none },
};
OP_TABLE(flow_table, "client.plan", flow_steps);

static void flow_done(struct op *op)
{
	struct plan_flow *f = flow_of(op);
	f->err = op->err;
	f->why = op->why;
	for (int i = 0; i < FLOW_WINDOW; i++)
		buf_fini(&f->calls[i].body);
	f->done(f);
}

enum err plan_flow_start(struct plan_flow *f)
{
	if (getrandom(f->id, sizeof(f->id), 0) != (ssize_t)sizeof(f->id))
		return ERR_IO;
	f->op = (struct op){ .table = &flow_table,
			     .loop = f->loop,
			     .deadline_ns = f->deadline_ns,
			     .done = flow_done };
	return op_start(&f->op);
}

void plan_flow_stop(struct plan_flow *f, enum err e, bool closing)
{
	f->gone = f->gone || closing;
	if (f->op.state == FLOW_LEAVE)
		return;
	op_fail(&f->op, e, "%s", err_text(e));
	op_cancel(&f->op);
}

void plan_flow_fini(struct plan_flow *f)
{
	buf_fini(&f->text);
}
