/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PLAN_RUN: reads the texts that are not known yet, plans, writes the plan's text.
 *
 *   (source, waits) -> (target, waits) -> (make, waits) -> reply -> done
 *          \________________\________________\_______________^
 *                    refused, cancelled, deadline, caller gone
 *
 * Each of the first three waits for memory, then for a worker. Memory is charged before a job is
 * submitted and what it did not use is given back when it has ended, so that no worker ever asks for
 * some: R1: a job holds at most `reserved` bytes (place_limits.memory, plan_limits.memory).
 * R2: while a job is under way, the plan and what it names are not freed (p->run).
 * R3: a job looks at `cancel` every few milliseconds (reshard/stop.h), and what it had built by then is
 *     freed after the answer (reshard/left.h).
 */
#include "planner.h"

#include "proto/messages.h"

#include <stdio.h>
#include <string.h>

enum { RUN_SOURCE, RUN_TARGET, RUN_MAKE, RUN_REPLY };

/* What reading a text may hold for each of its bytes: measured 0.9 for plain placements; drafts, whose
 * ids are derived, up to 2.4. */
#define READ_FACTOR 3
#define READ_MIN    ((uint64_t)1 << 20)

struct wpl_run {
	struct op op;
	struct wpl *w;
	struct wpl_plan *p;
	struct rpc_req *req;
	struct list waits; /* for memory */
	struct job job;
	uint32_t side; /* of a job that reads: 1 or 2 */
	uint64_t began_ns, cancelled_ns;
	atomic_bool cancel;
	/* a job's results */
	struct reject why;
	enum err err;
	struct wpl_doc *doc;
	struct buf text;
	struct left left; /* what it has built and is wanted no more */
	char digest[SHA_HEX];
	uint64_t regions, segments, total_bytes, sources, targets, routes;
};

static struct wpl_run *run_of(struct op *op)
{
	return container_of(op, struct wpl_run, op);
}

/* ---- workers ---- */

static struct place_limits read_limits(struct wpl_run *r)
{
	struct place_limits lim = PLACE_LIMITS;
	lim.memory = r->p->reserved - r->p->reserved / 8 - (128u << 10);
	lim.work = r->w->work_max;
	lim.cancel = &r->cancel;
	lim.left = &r->left;
	lim.json.text_bytes = r->w->text_max;
	return lim;
}

static void work_read(struct job *j)
{
	struct wpl_run *r = container_of(j, struct wpl_run, job);
	const struct wpl_input *in = &r->p->in[r->side - 1];
	const struct place_limits lim = read_limits(r);
	struct bytes text = BYTES(in->text, in->bytes);
	struct wpl_doc *d = calloc(1, sizeof(*d));
	r->err = ERR_NO_MEMORY;
	if (!d)
		return;
	if (in->form == WPL_STORED)
		r->err = stored_read(text, &lim, &r->why, &d->stored);
	else
		r->err = place_read(text, (enum place_form)(in->form - WPL_WIRE), &lim, &r->why,
				    &d->place);
	if (r->err) {
		free(d);
		return;
	}
	d->bytes = d->place ? place_bytes(d->place) : stored_bytes(d->stored);
	r->doc = d;
}

static struct plan_ask ask_of(struct wpl_run *r)
{
	const struct wpl_plan *p = r->p;
	struct plan_ask a = { .lim = PLAN_LIMITS_WIDE, .local = p->local };
	a.source = p->in[0].doc->place;
	a.stored = p->in[0].doc->stored;
	a.target = p->in[1].doc->place;
	if (p->n_participant)
		a.participant = BYTES(p->participant, p->n_participant);
	a.lim.max_transfer_regions = MIN_OF(p->max_regions ? p->max_regions : UINT64_MAX,
					    (uint64_t)r->w->regions_max);
	if (p->max_segments_per_region)
		a.lim.max_segments_per_region =
			MIN_OF(p->max_segments_per_region, a.lim.max_segments_per_region);
	if (p->max_total_segments)
		a.lim.max_total_lowered_segments =
			MIN_OF(p->max_total_segments, a.lim.max_total_lowered_segments);
	a.lim.work = r->w->work_max;
	a.lim.cancel = &r->cancel;
	a.lim.memory = p->reserved;
	a.lim.left = &r->left;
	return a;
}

static bool put(void *arg, const void *p, size_t n)
{
	struct buf *b = arg;
	buf_put(b, p, n);
	return buf_err(b) == ERR_NONE;
}

/* The text and its digest; limit: bytes it may have. */
static void write_text(struct wpl_run *r, const struct plan *p, size_t limit)
{
	struct sha sha = { 0 };
	struct text_out *o = malloc(sizeof(*o));
	r->text = BUF_INIT(limit);
	r->err = o ? sha_init(&sha) : ERR_NO_MEMORY;
	if (!r->err) {
		text_init(o, &sha, false);
		o->put = put;
		o->arg = &r->text;
		o->cancel = &r->cancel;
		plan_text(p, o);
		if (!text_end(o)) {
			r->err = buf_err(&r->text) ? ERR_LIMIT : ERR_CANCELLED;
			reject_set(&r->why,
				   buf_err(&r->text) ? RULE_LIMIT_MEMORY : RULE_PLAN_CANCELLED,
				   "planner.plan_memory",
				   "the plan's text is longer than %zu bytes", limit);
		}
		sha_hex(&sha, r->digest);
	}
	sha_fini(&sha);
	free(o);
}

static void free_plan(void *p)
{
	plan_free(p);
}

static void work_make(struct job *j)
{
	struct wpl_run *r = container_of(j, struct wpl_run, job);
	struct plan_ask a = ask_of(r);
	struct plan *p = NULL;
	r->err = plan_make(&a, &r->why, &p);
	if (r->err)
		return;
	r->regions = p->n_ops;
	r->segments = p->total_segments;
	r->sources = p->n_sources;
	r->targets = p->n_targets;
	r->routes = p->n_routes;
	r->total_bytes = (uint64_t)MIN_OF(p->total_bytes, (unsigned __int128)UINT64_MAX);
	size_t made = plan_bytes(p);
	write_text(r, p, made < r->p->reserved ? r->p->reserved - made : 0);
	left_put(&r->left, free_plan, p);
}

static void on_job(struct job *j)
{
	op_resume(&container_of(j, struct wpl_run, job)->op);
}

/* ---- memory ---- */

static void give(struct wpl_run *r, uint64_t n)
{
	r->p->reserved -= n;
	wpl_plan_discharge(&r->w->plans, r->p, n);
	wpl_run_wake(r->w);
}

static void stop_waiting(struct wpl_run *r)
{
	if (!list_linked(&r->waits))
		return;
	list_del(&r->waits);
	r->w->n_waiting--;
}

/* Charged to the plan, or it waits in line. */
static bool take(struct wpl_run *r, uint64_t n)
{
	enum wpl_limit limit;
	struct wpl *w = r->w;
	/* whoever waits longer goes first */
	bool turn = list_empty(&w->waiting) || w->waiting.next == &r->waits;
	if (turn && wpl_plan_charge(&w->plans, r->p, n, &limit) == ERR_NONE) {
		r->p->reserved += n;
		stop_waiting(r);
		return true;
	}
	if (!list_linked(&r->waits)) {
		list_push_back(&w->waiting, &r->waits);
		w->n_waiting++;
		r->op.waits_for = "memory";
	}
	return false;
}

/* The first in line, and the next as long as each gets what it waits for. */
static void on_wake(struct timer *t)
{
	struct wpl *w = container_of(t, struct wpl, wake);
	for (struct list *last = NULL; !list_empty(&w->waiting) && w->waiting.next != last;) {
		last = w->waiting.next;
		op_resume(&list_entry(last, struct wpl_run, waits)->op);
	}
}

void wpl_run_wake(struct wpl *w)
{
	if (!list_empty(&w->waiting))
		timer_start(w->svc.loop, &w->wake, loop_now_ns(w->svc.loop), on_wake);
}

/* ---- steps ---- */

/* Never fits, however long it waits? */
static bool never(struct wpl_run *r, uint64_t n)
{
	const struct wpl *w = r->w;
	uint64_t held = 0;
	for (int i = 0; i < 2; i++)
		held += r->p->in[i].text ? r->p->in[i].bytes : 0;
	uint64_t most = MIN_OF(w->mem.limit, w->plans.tenant_bytes_max);
	if (n + held <= most)
		return false;
	op_fail(&r->op, ERR_TOO_LARGE,
		"%llu bytes of memory are needed; planner.memory and planner.tenant_memory allow "
		"%llu",
		(unsigned long long)n + held, (unsigned long long)most);
	return true;
}

/* Memory, then a worker. OP_WAIT, or why not. */
static int begin_job(struct wpl_run *r, uint64_t n, void (*work)(struct job *))
{
	if (r->p->reserved == 0) {
		if (never(r, n))
			return RUN_REPLY;
		if (!take(r, n))
			return OP_WAIT;
	}
	r->job = (struct job){ .work = work, .done = on_job };
	r->err = ERR_INTERNAL;
	enum err e = pool_submit(r->w->svc.pool, &r->job);
	if (e) {
		op_fail(&r->op, e,
			"as many jobs wait for workers as planner.worker_queue allows");
		return RUN_REPLY;
	}
	r->op.waits_for = "a worker";
	return OP_WAIT;
}

/* What a job said, as the operation's error. */
static void take_error(struct wpl_run *r)
{
	struct why why = { 0 };
	enum err e = r->job.err ? r->job.err : r->err;
	if (e && r->why.rule != RULE_NONE) {
		reject_why(&r->why, &why);
		op_fail_why(&r->op, why.err, &why);
	} else if (e) {
		op_fail(&r->op, e, "%s", err_text(e));
	}
}

/* A worker's leavings, and the text it wrote, go elsewhere. */
static void bury(struct wpl_run *r)
{
	wpl_shelf_bury(&r->w->shelf, (struct wpl_remains){ .text = r->text.p,
							   .left = r->left,
							   .bytes = r->p->reserved });
	r->text = (struct buf){ 0 };
	r->left = (struct left){ 0 };
}

static bool job_was_begun(const struct wpl_run *r)
{
	return r->job.work != NULL;
}

static void read_done(struct wpl_run *r)
{
	struct wpl_doc *d = TAKE(r->doc);
	struct wpl *w = r->w;
	r->job.work = NULL;
	take_error(r);
	if (!d)
		bury(r);
	uint64_t keep = d ? MIN_OF(d->bytes, r->p->reserved) : 0;
	give(r, r->p->reserved - keep);
	if (!d)
		return;
	/* from the plan's charge to the document's */
	d->bytes = keep;
	give(r, keep);
	enum err e = budget_take(&w->mem, keep);
	assert(e == ERR_NONE);
	memcpy(d->tenant, r->p->tenant->name, sizeof(d->tenant));
	wpl_plan_read(&w->plans, r->p, r->side, wpl_shelf_put(&w->shelf, d));
	const struct wpl_input *in = &r->p->in[r->side - 1];
	if (in->has_digest && memcmp(in->digest, in->doc->digest, SHA_HEX) != 0)
		op_fail(&r->op, ERR_BAD_MANIFEST,
			"%s.digest: the text sent has the digest %.*s",
			r->side == 1 ? "source" : "target", SHA_HEX, in->doc->digest);
}

static int step_read(struct wpl_run *r, uint32_t side, int next)
{
	const struct wpl_input *in = &r->p->in[side - 1];
	if (job_was_begun(r))
		read_done(r);
	if (r->op.err)
		return RUN_REPLY;
	if (in->doc)
		return next;
	r->side = side;
	return begin_job(r, READ_FACTOR * in->bytes + READ_MIN, work_read);
}

static int run_source(struct op *op)
{
	return step_read(run_of(op), 1, RUN_TARGET);
}

static int run_target(struct op *op)
{
	return step_read(run_of(op), 2, RUN_MAKE);
}

static void make_done(struct wpl_run *r)
{
	struct wpl_plan *p = r->p;
	r->job.work = NULL;
	take_error(r);
	if (r->op.err) {
		bury(r);
		give(r, p->reserved);
		return;
	}
	/* the capacity of a growing buffer may be above what was counted for it */
	uint8_t *fit = realloc(r->text.p, MAX_OF(r->text.n, 1));
	r->text.p = fit ? fit : r->text.p;
	r->text.cap = r->text.n;
	p->text = r->text;
	r->text = (struct buf){ 0 };
	bury(r);
	p->charged = MIN_OF(p->text.n, p->reserved);
	uint64_t rest = p->reserved - p->charged;
	p->reserved -= p->charged;
	give(r, rest);
	memcpy(p->digest, r->digest, SHA_HEX);
	p->regions = r->regions;
	p->segments = r->segments;
	p->sources = r->sources;
	p->targets = r->targets;
	p->routes = r->routes;
	p->total_bytes = r->total_bytes;
	memcpy(p->made_of[0], p->in[0].doc->digest, SHA_HEX);
	memcpy(p->made_of[1], p->in[1].doc->digest, SHA_HEX);
	p->took_us = (loop_now_ns(r->op.loop) - r->began_ns) / 1000;
}

static int run_make(struct op *op)
{
	struct wpl_run *r = run_of(op);
	if (job_was_begun(r)) {
		make_done(r);
		return RUN_REPLY;
	}
	if (op->err)
		return RUN_REPLY;
	return begin_job(r, r->w->plan_memory, work_make);
}

static void run_unwait(struct op *op)
{
	struct wpl_run *r = run_of(op);
	r->cancelled_ns = loop_now_ns(op->loop);
	atomic_store_explicit(&r->cancel, true, memory_order_relaxed);
	if (job_was_begun(r)) {
		pool_cancel(&r->job); /* begun or not, its end resumes the op */
		return;
	}
	/* it waits for memory: nothing else would resume it */
	stop_waiting(r);
	op_resume(op);
}

static enum wpl_end end_of(const struct op *op)
{
	return !op->err	       ? WPL_MADE_
	       : op->cancelled ? WPL_CANCELLED_
	       : op->timed_out ? WPL_TIMED_OUT_
	       : op->err == ERR_BAD_MANIFEST || op->err == ERR_LIMIT ||
			       op->err == ERR_TOO_LARGE || op->err == ERR_INVALID_PARAMS
		       ? WPL_REFUSED_
		       : WPL_FAILED_;
}

static void note_end(struct wpl_run *r, enum wpl_end end)
{
	struct metrics *m = r->w->svc.metrics;
	uint64_t now = loop_now_ns(r->op.loop);
	metric_add(m, WPL_M_ENDED, (unsigned)end, 1);
	metric_observe(m, WPL_M_TIME, 0, (now - r->began_ns) / NS_PER_MS);
	if (r->cancelled_ns)
		metric_observe(m, WPL_M_STOP, 0, (now - r->cancelled_ns) / NS_PER_MS);
}

static int run_reply(struct op *op)
{
	struct wpl_run *r = run_of(op);
	struct wpl_plan *p = r->p;
	enum wpl_end end = end_of(op);
	stop_waiting(r);
	if (p->reserved)
		give(r, p->reserved);
	note_end(r, end);
	p->state = end == WPL_MADE_ ? WPL_MADE : end == WPL_REFUSED_ ? WPL_REFUSED : WPL_OPEN;
	p->why = op->why;
	if (p->state != WPL_OPEN)
		wpl_plan_settle(&r->w->plans, p);
	p->touched_ns = loop_now_ns(op->loop);
	if (end == WPL_MADE_ || end == WPL_REFUSED_)
		wpl_run_answer(p, r->req);
	else
		rpc_reply_why(r->req, &op->why, op->err == ERR_BUSY ? 50 : 0);
	return OP_DONE;
}

static const struct op_step run_steps[] = {
	[RUN_SOURCE] = { "source", run_source, TO(RUN_TARGET) | TO(RUN_REPLY), .waits = true,
			 .stop = run_unwait },
	[RUN_TARGET] = { "target", run_target, TO(RUN_MAKE) | TO(RUN_REPLY), .waits = true,
			 .stop = run_unwait },
	[RUN_MAKE] = { "make", run_make, TO(RUN_REPLY), .waits = true, .stop = run_unwait },
	[RUN_REPLY] = { "reply", run_reply, TO(OP_DONE) },
};
OP_TABLE(run_table, "planner.run", run_steps);

static void run_done(struct op *op)
{
	struct wpl_run *r = run_of(op);
	struct wpl *w = r->w;
	struct wpl_plan *p = r->p;
	p->run = NULL;
	w->n_running--;
	w->trim_due = true;
	free(r);
	if (p->stopper) {
		rpc_reply(TAKE(p->stopper), ERR_NONE, 0, BYTES(NULL, 0));
		wpl_plan_drop(&w->plans, p);
	}
	wpl_run_wake(w);
}

static void run_gone(struct rpc_req *q)
{
	op_cancel(&((struct wpl_run *)q->user)->op);
}

enum err wpl_run_start(struct wpl *w, struct wpl_plan *p, struct rpc_req *q)
{
	enum err e = rpc_park(q);
	if (e)
		return e;
	struct wpl_run *r = calloc(1, sizeof(*r));
	if (!r)
		return ERR_NO_MEMORY;
	r->w = w;
	r->p = p;
	r->req = q;
	r->began_ns = loop_now_ns(w->svc.loop);
	r->op = (struct op){ .table = &run_table,
			     .loop = w->svc.loop,
			     .set = &w->svc.ops,
			     .deadline_ns = q->deadline_ns,
			     .done = run_done };
	q->user = r;
	q->gone = run_gone;
	p->run = r;
	p->state = WPL_RUNNING;
	w->n_running++;
	e = op_start(&r->op);
	if (e) {
		q->gone = NULL;
		p->run = NULL;
		p->state = WPL_OPEN;
		w->n_running--;
		free(r);
	}
	return e;
}

void wpl_run_cancel(struct wpl_plan *p)
{
	op_cancel(&p->run->op);
}
