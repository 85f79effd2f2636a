/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of request tables: moves, deadline, stop, the end. */
#include "loop/op.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void op_set_init(struct op_set *s, uint32_t limit)
{
	*s = (struct op_set){ .limit = limit };
	list_init(&s->ops);
}

uint32_t op_set_cancel(struct op_set *s)
{
	uint32_t n = s->n;
	/* a cancelled op may end at once and take others with it: only the front is sure to live */
	for (uint32_t i = 0; i < n && !list_empty(&s->ops); i++) {
		struct op *op = list_entry(s->ops.next, struct op, node);
		list_del(&op->node);
		list_push_back(&s->ops, &op->node);
		op_cancel(op);
	}
	return n;
}

static const struct op_step *step_of(const struct op *op)
{
	return &op->table->steps[op->state];
}

static void note(struct op *op, int state)
{
	uint64_t us = (loop_recent_ns(op->loop) - op->start_ns) / 1000;
	op->trace[op->moves++ % OP_TRACE_N] = (struct op_move){
		.at_us = (uint32_t)MIN_OF(us, (uint64_t)UINT32_MAX),
		.state = (int8_t)state,
	};
	op->state = state;
	op->visits = 0;
	op->waits_for = NULL;
	op->stop_due = false; /* the next step sees op->err by itself */
}

static void end(struct op *op)
{
	struct op_set *s = op->set;
	if (s) {
		list_del(&op->node);
		s->n--;
	}
	op->done(op); /* op may be gone */
	if (s && s->n == 0 && s->on_empty)
		s->on_empty(s);
}

static void end_later(struct post *p)
{
	end(container_of(p, struct op, post));
}

static void finish(struct op *op)
{
	timer_stop(op->loop, &op->timer);
	if (!op->starting || op->done_inline) {
		end(op);
		return;
	}
	op->post.fn = end_later; /* I2 */
	loop_defer(op->loop, &op->post);
}

/* One run of one step. True while there is another to run; op may be gone after false. */
static bool step(struct op *op)
{
	const struct op_step *s = step_of(op);
	op->visits += op->visits < UINT32_MAX;
	op->running = true;
	int next = s->fn(op);
	op->running = false;
	if (next != OP_WAIT) {
		assert(next == OP_DONE || (next >= 0 && next < op->table->n));
		assert(s->to & TO(next)); /* the table allows the move */
		note(op, next);
		if (next != OP_DONE)
			return true;
		finish(op);
		return false;
	}
	assert(s->waits);
	if (!op->stop_due) {
		op->waiting = true;
		op->starting = false;
		return false;
	}
	op->stop_due = false;
	op->stopped = true;
	if (!s->stop)
		return true;
	op->waiting = true;
	s->stop(op);
	return false;
}

static void run(struct op *op)
{
	while (step(op))
		continue;
}

/* The op has failed from outside: its wait ends, once. */
static void stop(struct op *op)
{
	if (op->stopped)
		return;
	if (!op->waiting) {
		op->stop_due = true; /* in case the step that runs now goes to wait */
		return;
	}
	op->stopped = true;
	if (step_of(op)->stop)
		step_of(op)->stop(op);
	else
		op_resume(op);
}

static void on_deadline(struct timer *t)
{
	struct op *op = container_of(t, struct op, timer);
	op->timed_out = true;
	op_fail(op, ERR_TIMED_OUT, "%s: the deadline passed in step %s%s%s", op->table->name,
		step_of(op)->name, op->waits_for ? ", waiting for " : "",
		op->waits_for ? op->waits_for : ""); /* T7 */
	stop(op);
}

enum err op_start(struct op *op)
{
	assert(op->table->n >= 1 && op->table->n <= OP_STATES_MAX && op->done);
	if (op->set) {
		if (op->set->n >= op->set->limit)
			return ERR_BUSY; /* B1 */
		op->set->n++;
		list_init(&op->node);
		list_push_back(&op->set->ops, &op->node);
	}
	op->id = ++op->loop->last_op_id;
	op->start_ns = loop_recent_ns(op->loop);
	note(op, 0);
	if (op->deadline_ns != UINT64_MAX)
		timer_start(op->loop, &op->timer, op->deadline_ns, on_deadline);
	op->starting = true;
	run(op); /* op may be gone */
	return ERR_NONE;
}

void op_resume(struct op *op)
{
	assert(!op->running && op->waiting); /* I3 */
	op->waiting = false;
	run(op);
}

enum err op_fail(struct op *op, enum err e, const char *fmt, ...)
{
	if (op->err != ERR_NONE)
		return e; /* I1 */
	op->err = e;
	op->why.err = e;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(op->why.text, sizeof(op->why.text), fmt, ap);
	va_end(ap);
	return e;
}

enum err op_fail_why(struct op *op, enum err e, const struct why *w)
{
	return op_fail(op, e, "%s", w && w->err ? w->text : err_text(e));
}

void op_cancel(struct op *op)
{
	if (op->state == OP_DONE || op->cancelled)
		return;
	op->cancelled = true;
	op_fail(op, ERR_CANCELLED, "%s: cancelled in step %s", op->table->name,
		step_of(op)->name);
	stop(op);
}

void op_stop_none(struct op *op)
{
	(void)op;
}

void op_trace_print(const struct op *op, struct buf *out)
{
	uint32_t first = op->moves > OP_TRACE_N ? op->moves - OP_TRACE_N : 0;
	if (first > 0)
		buf_printf(out, "(%u earlier) ", first);
	for (uint32_t i = first; i < op->moves; i++) {
		const struct op_move *m = &op->trace[i % OP_TRACE_N];
		buf_printf(out, "%s%s@%uus", i > first ? " " : "",
			   m->state == OP_DONE ? "done" : op->table->steps[m->state].name,
			   m->at_us);
	}
}
