/* SPDX-License-Identifier: Apache-2.0 */
/* What the flows share: errors, asking, pausing, waiting for a turn, stepping a copy, letting go. */
#include "stc_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- errors ---- */

void flow_note(struct stc_flow *f, enum err e, uint32_t retry_ms, const char *peer,
	       const char *step, const char *fmt, ...)
{
	char text[320];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	free(f->peer);
	free(f->text);
	f->err = e;
	f->retry_ms = retry_ms;
	f->step = step;
	f->peer = strdup(peer);
	f->text = strdup(text[0] ? text : err_text(e));
}

void flow_fail(struct stc_flow *f)
{
	op_fail(&f->op, f->err, "%s", f->text ? f->text : err_text(f->err));
}

static bool is_write(const struct stc_flow *f)
{
	enum stc_kind k = f->w->c->kind;
	return k == STC_PUT || k == STC_REMOVE || k == STC_REMOVE_RANGE;
}

/* The same question, or the whole operation, may have better luck. */
static bool may_pass(const struct stc_flow *f)
{
	switch (f->err) {
	case ERR_STALE_TERM:
	case ERR_STALE_EPOCH:
	case ERR_STALE_ATTEMPT:
	case ERR_RECOVERING:
	case ERR_BUSY:
	case ERR_NOT_READY:
	case ERR_NOT_LEADER:
	case ERR_SHUTTING_DOWN:
	case ERR_CONN_LOST:
	case ERR_UNREACHABLE:
	case ERR_STALE_SESSION:
	case ERR_LEASE_LOST:
		return true;
	case ERR_TEMPORARILY_AWAY:
		return is_write(f) || !f->w->c->get.recovering_as_miss;
	case ERR_BUSY_WRITING:
		return f->redone; /* it may be our own attempt of before */
	default:
		return false;
	}
}

bool flow_may_pass(const struct stc_flow *f)
{
	return may_pass(f);
}

static uint64_t left_ms(const struct stc_flow *f)
{
	return clock_left_ms(f->op.deadline_ns, loop_now_ns(f->w->s->o.loop));
}

/* How long to wait before the next try: as told, else doubling, with a quarter of chance in it; 0: there
 * is no time for it. */
static uint64_t pause_ms(struct stc_flow *f)
{
	uint64_t left = left_ms(f), ms = f->retry_ms;
	uint16_t chance;
	if (ms > 0)
		return ms < left ? ms : 0;
	ms = MIN_OF((uint64_t)STC_BACKOFF_MS << MIN_OF(f->tries, 8u),
		    (uint64_t)STC_BACKOFF_MAX_MS);
	loop_random(f->w->s->o.loop, &chance, sizeof(chance));
	ms += ms * chance / 65536 / 4;
	return left < 3 ? 0 : MIN_OF(ms, left / 2);
}

bool flow_again(struct stc_flow *f)
{
	if (f->op.err != ERR_NONE || !may_pass(f))
		return false;
	f->pause = pause_ms(f);
	return f->pause > 0;
}

/* ---- asking ---- */

int flow_ask(struct stc_flow *f, enum stc_q q)
{
	if (!op_first(&f->op))
		return 0;
	if (f->op.err != ERR_NONE)
		return 0;
	f->op.waits_for = q == Q_COMMIT ? f->holder->id : "master";
	f->step = stc_rows[q].name;
	msg_want(f, q);
	return OP_WAIT;
}

void flow_ask_stop(struct op *op)
{
	struct stc_flow *f = container_of(op, struct stc_flow, op);
	flow_leave(f);
	op_resume(op);
}

/* ---- pausing ---- */

static void on_pause_over(struct timer *t)
{
	struct stc_flow *f = container_of(t, struct stc_flow, timer);
	op_resume(&f->op);
}

int flow_pause(struct op *op)
{
	struct stc_flow *f = container_of(op, struct stc_flow, op);
	struct loop *l = f->w->s->o.loop;
	if (!op_first(op) || op->err != ERR_NONE)
		return f->back;
	if (f->err == ERR_STALE_TERM && f->tries++ == 0)
		return f->back; /* V4: at once, under the term just heard */
	f->tries++;
	timer_start(l, &f->timer, clock_after_ms(loop_now_ns(l), f->pause), on_pause_over);
	return OP_WAIT;
}

void flow_pause_stop(struct op *op)
{
	struct stc_flow *f = container_of(op, struct stc_flow, op);
	timer_stop(f->w->s->o.loop, &f->timer);
	op_resume(op);
}

void flow_wait_stop(struct op *op)
{
	struct stc_flow *f = container_of(op, struct stc_flow, op);
	list_del(&f->node);
	op_resume(op);
}

/* ---- copies ---- */

void flow_copy_stop(struct op *op)
{
	struct stc_flow *f = container_of(op, struct stc_flow, op);
	if (f->copy->remote) {
		remote_stop(f);
		return;
	}
	/* the step under way ends after its piece, and resumes the flow (P3) */
	__atomic_store_n(&f->copy->stop, true, __ATOMIC_RELAXED);
}

/* What the loop itself would copy, or hash: ranges that are verified cost their blocks. */
static uint64_t cost(const struct stc_flow *f)
{
	const struct stc_call *c = f->w->c;
	if (c->kind == STC_PUT || (f->verify && f->it->n_ranges))
		return f->it->size;
	return f->it->bytes;
}

bool flow_turn(struct stc_flow *f)
{
	struct stc *s = f->w->s;
	if (!f->dlane && cost(f) <= s->o.inline_bytes) /* a lane's socket is a worker's */
		return true;
	if (s->n_active < s->active_max && list_empty(&s->ready)) {
		s->n_active++;
		f->in_turn = true;
		return true;
	}
	list_push_back(&s->ready, &f->node);
	return false;
}

void flow_turn_over(struct stc_flow *f)
{
	struct stc *s = f->w->s;
	if (!f->in_turn)
		return;
	f->in_turn = false;
	s->n_active--;
	if (!list_empty(&s->ready) && !s->kick_due) {
		s->kick_due = true;
		loop_defer(s->o.loop, &s->kick);
	}
}

static void on_step(struct job *j)
{
	struct stc_copy *c = container_of(j, struct stc_copy, job);
	op_resume(&c->f->op);
}

bool flow_copy(struct stc_flow *f)
{
	struct stc_copy *c = f->copy;
	if (c->remote)
		return remote_copy(f);
	c->job.work = copy_step;
	c->job.done = on_step;
	if (f->in_turn) {
		enum err e = pool_submit(f->w->s->pool, &c->job);
		if (e == ERR_NONE)
			return false;
	}
	c->job.err = ERR_NONE;
	copy_step(&c->job);
	return true;
}

/* ---- renewals ---- */

static void on_tick(struct timer *t)
{
	struct stc *s = container_of(t, struct stc, tick);
	msg_renew(s);
	uint64_t ms = snap_tick(s);
	if (!list_empty(&s->held) || !list_empty(&s->snaps))
		tick_in(s, ms);
}

void tick_in(struct stc *s, uint64_t ms)
{
	uint64_t due = clock_after_ms(loop_recent_ns(s->o.loop), ms);
	if (timer_running(&s->tick) && s->tick_ns <= due)
		return;
	timer_stop(s->o.loop, &s->tick);
	s->tick_ns = due;
	timer_start(s->o.loop, &s->tick, due, on_tick);
}

void flow_hold(struct stc_flow *f, uint64_t every_ms)
{
	struct stc *s = f->w->s;
	uint64_t now = loop_recent_ns(s->o.loop);
	f->lease_ns = every_ms * 1000000;
	f->renew_ns = now + f->lease_ns;
	if (!list_linked(&f->held))
		list_push_back(&s->held, &f->held);
	tick_in(s, STC_TICK_MS);
}

void flow_let_go(struct stc_flow *f)
{
	struct stc *s = f->w->s;
	list_del(&f->held);
	list_del(&f->node);
	copy_end(f);
	dlane_drop(f, ERR_NONE);
	flow_turn_over(f);
	if (f->pool)
		pool_drop(s, f->pool);
	if (f->holder)
		holder_drop(s, f->holder);
	f->pool = NULL;
	f->holder = NULL;
}
