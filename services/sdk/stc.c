/* SPDX-License-Identifier: Apache-2.0 */
/* The session and its calls: how they begin and how they end. */
#include "stc_priv.h"

#include <stdio.h>
#include <string.h>

/* ---- the session ---- */

uint64_t stc_term(const struct stc *s)
{
	return s->term;
}

static void on_kick(struct post *p);
static void on_revoke(struct post *p);
static void on_lanes(struct post *p);
static void on_end(struct post *p);

static void set_defaults(struct stc_opts *o)
{
	if (!o->threads)
		o->threads = STC_THREADS;
	if (!o->step_bytes)
		o->step_bytes = STC_STEP;
	if (!o->inline_bytes)
		o->inline_bytes = STC_INLINE;
	else if (o->inline_bytes == UINT32_MAX)
		o->inline_bytes = 0;
	if (!o->calls_max)
		o->calls_max = STC_CALLS;
	if (!o->snap_keys_max)
		o->snap_keys_max = STC_SNAP_KEYS;
}

enum err stc_new(const struct stc_opts *o, struct stc **out, struct why *why)
{
	struct stc *s = calloc(1, sizeof(*s));
	if (!s)
		return why_set(why, ERR_NO_MEMORY, "no memory for a store session");
	s->o = *o;
	set_defaults(&s->o);
	snprintf(s->tenant, sizeof(s->tenant), "%s", o->tenant);
	snprintf(s->host, sizeof(s->host), "%s", o->host_id);
	memcpy(s->instance, o->instance, 16);
	/* while workers have jobs the loop comes to run once a time slice, many copies later */
	s->active_max = 4 * s->o.threads;
	s->halves = fault_built();
	list_init(&s->calls);
	list_init(&s->msgs);
	list_init(&s->holders);
	list_init(&s->pools);
	list_init(&s->peers);
	list_init(&s->held);
	list_init(&s->ready);
	list_init(&s->learning);
	list_init(&s->snaps);
	s->kick.fn = on_kick;
	s->revoke.fn = on_revoke;
	s->lanes.fn = on_lanes;
	s->end.fn = on_end;
	/* a job for each copy that has a turn, and one for each pool that is being mapped */
	struct pool_opts po = { .name = "pomelo-copy",
				.n_threads = s->o.threads,
				.depth = s->active_max + STC_POOLS_MAX };
	enum err e = pool_new(s->o.loop, &po, &s->pool);
	if (e != ERR_NONE) {
		free(s);
		return why_set(why, e, "no threads for copies");
	}
	*out = s;
	return ERR_NONE;
}

static void on_end(struct post *p)
{
	struct stc *s = container_of(p, struct stc, end);
	void (*closed)(void *arg) = s->closed;
	void *arg = s->closed_arg;
	pool_free(s->pool);
	free(s->revokes);
	free(s->spare);
	free(s);
	if (closed)
		closed(arg);
}

void stc_maybe_end(struct stc *s)
{
	if (!s->closing || s->end_due || s->n_calls || s->n_msgs || s->n_mapping ||
	    s->lanes_due || s->kick_due || s->revoke_due || s->sent_due || s->n_revokes)
		return;
	timer_stop(s->o.loop, &s->tick);
	s->end_due = true;
	hold_close_all(s);
}

void stc_close(struct stc *s, void (*closed)(void *arg), void *arg)
{
	s->closing = true;
	s->closed = closed;
	s->closed_arg = arg;
	snap_close_all(s);
	list_for_each (it, &s->calls) {
		struct stc_work *w = list_entry(it, struct stc_work, node);
		for (uint32_t i = 0; i < w->c->n; i++) {
			op_fail(&w->flows[i].op, ERR_CLOSED, "%s", err_text(ERR_CLOSED));
			op_cancel(&w->flows[i].op);
		}
	}
	list_for_each (it, &s->msgs) {
		struct stc_msg *m = list_entry(it, struct stc_msg, node);
		rpc_cancel(&m->call);
	}
	stc_maybe_end(s);
}

/* Flows whose turn has come, for 2 ms at most (L4). */
static void on_kick(struct post *p)
{
	struct stc *s = container_of(p, struct stc, kick);
	uint64_t until = loop_now_ns(s->o.loop) + 2000000;
	while (s->n_active < s->active_max && !list_empty(&s->ready)) {
		struct stc_flow *f =
			list_entry(list_pop_front(&s->ready), struct stc_flow, node);
		s->n_active++;
		f->in_turn = true;
		op_resume(&f->op);
		if (loop_now_ns(s->o.loop) >= until && !list_empty(&s->ready)) {
			loop_defer(s->o.loop, &s->kick);
			return;
		}
	}
	s->kick_due = false;
	stc_maybe_end(s);
}

static void on_revoke(struct post *p)
{
	struct stc *s = container_of(p, struct stc, revoke);
	s->revoke_due = false;
	msg_send_revokes(s);
	stc_maybe_end(s);
}

static void on_lanes(struct post *p)
{
	struct stc *s = container_of(p, struct stc, lanes);
	s->lanes_due = false;
	dlane_next(s);
	stc_maybe_end(s);
}

/* ---- calls ---- */

static void on_flush(struct post *p)
{
	struct stc_work *w = container_of(p, struct stc_work, flush);
	w->flush_due = false;
	msg_flush(w);
	work_maybe_end(w);
}

static void on_work_end(struct post *p)
{
	struct stc_work *w = container_of(p, struct stc_work, end);
	struct stc *s = w->s;
	if (w->flush_due) { /* the term was learnt meanwhile: on_flush comes back here */
		w->end_due = false;
		return;
	}
	list_del(&w->node);
	list_del(&w->learn_node);
	s->n_calls--;
	w->started = false;
	if (w->c->kind == STC_SNAPSHOT)
		snap_take(w);
	w->c->done(w->c); /* w may be gone */
	stc_maybe_end(s);
}

void work_maybe_end(struct stc_work *w)
{
	if (w->left || w->flush_due || w->end_due)
		return;
	w->end_due = true;
	loop_defer(w->s->o.loop, &w->end);
}

enum err stc_call_new(enum stc_kind kind, uint32_t n, struct stc_call **out)
{
	if (n < 1 || n > STC_ITEMS_MAX)
		return ERR_INVALID_PARAMS;
	struct stc_call *c = calloc(1, sizeof(*c));
	struct stc_item *items = calloc(n, sizeof(*items));
	struct stc_work *w = malloc(sizeof(*w) + n * sizeof(w->flows[0]));
	if (!c || !items || !w) {
		free(c);
		free(items);
		free(w);
		return ERR_NO_MEMORY;
	}
	c->kind = kind;
	c->n = n;
	c->items = items;
	c->work = w;
	memset(w, 0, sizeof(*w));
	w->c = c;
	w->flush.fn = on_flush;
	w->end.fn = on_work_end;
	for (size_t q = 0; q < Q_N; q++)
		list_init(&w->want[q]);
	for (uint32_t i = 0; i < n; i++) {
		memset(&w->flows[i], 0, offsetof(struct stc_flow, op));
		op_clear(&w->flows[i].op);
		w->flows[i].w = w;
		w->flows[i].it = &items[i];
		items[i].flow = &w->flows[i];
		items[i].peer = items[i].step = items[i].text = "";
	}
	*out = c;
	return ERR_NONE;
}

void stc_call_free(struct stc_call *c)
{
	if (!c)
		return;
	assert(!c->work->started);
	for (uint32_t i = 0; i < c->n; i++) {
		struct stc_flow *f = &c->work->flows[i];
		reply_unref(f->reply);
		free(f->peer);
		free(f->text);
	}
	stc_snap_unref(c->snap);
	free(c->work);
	free(c->items);
	free(c);
}

/* The item's results, from the flow. */
static void on_flow_done(struct op *op)
{
	struct stc_flow *f = container_of(op, struct stc_flow, op);
	struct stc_item *it = f->it;
	flow_let_go(f);
	it->err = op->err;
	if (op->err != ERR_NONE) {
		if (op->err != f->err) { /* deadline, cancel, close */
			free(f->text);
			f->text = strdup(op->why.text);
			f->retry_ms = 0;
		}
		it->retry_ms = f->retry_ms;
		it->peer = f->peer ? f->peer : "";
		it->step = f->step ? f->step : "";
		it->text = f->text ? f->text : err_text(op->err);
	}
	f->w->left--;
	work_maybe_end(f->w);
}

static const struct op_table *table_of(enum stc_kind kind)
{
	return kind == STC_PUT	 ? stc_put_table
	       : kind == STC_GET ? stc_get_table
				 : stc_key_table;
}

enum err stc_start(struct stc *s, struct stc_call *c)
{
	struct stc_work *w = c->work;
	if (s->closing)
		return ERR_CLOSED;
	if (s->n_calls >= s->o.calls_max || snap_room(s, c) != ERR_NONE)
		return ERR_BUSY;
	s->n_calls++;
	list_push_back(&s->calls, &w->node);
	w->s = s;
	w->started = true;
	w->left = c->n;
	for (uint32_t i = 0; i < c->n; i++) {
		struct op *op = &w->flows[i].op;
		op->table = table_of(c->kind);
		op->loop = s->o.loop;
		op->deadline_ns = c->deadline_ns;
		op->done_inline = true;
		op->done = on_flow_done;
		enum err e = op_start(op);
		assert(e == ERR_NONE);
		(void)e;
	}
	return ERR_NONE;
}

void stc_cancel(struct stc_call *c)
{
	struct stc_work *w = c->work;
	for (uint32_t i = 0; w->started && i < c->n; i++)
		op_cancel(&w->flows[i].op);
}
