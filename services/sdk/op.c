/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation, from its start on an application's thread to its completion.
 *
 * Who holds it: its owner until pml_op_free; the loop until it has completed. An orphan (freed while
 * under way) is destroyed by the loop.
 */
#include "buffers.h"
#include "sdk.h"
#include "proto/messages.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum err op_new(struct pml *p, enum op_kind kind, uint32_t n_parts, struct pml_op **out)
{
	struct pml_op *op = calloc(1, sizeof(*op) + n_parts * sizeof(op->parts[0]));
	if (!op)
		return ERR_NO_MEMORY;
	op->guard = guard_ref(p->guard);
	op->p = p;
	op->kind = kind;
	op->n_parts = n_parts;
	op->error.size = sizeof(op->error);
	for (uint32_t i = 0; i < n_parts; i++) {
		op->parts[i].op = op;
		op->parts[i].body = BUF_INIT(PML_ECHO_MAX + 64);
		op->parts[i].reply = BUF_INIT(PML_ECHO_MAX + 64);
		op->parts[i].arena = ARENA_INIT(SDK_STATUS_BYTES);
		op->parts[i].error.size = sizeof(op->error);
	}
	pthread_mutex_init(&op->lock, NULL);
	pthread_cond_init(&op->cond, NULL);
	*out = op;
	return ERR_NONE;
}

void op_destroy(struct pml_op *op)
{
	for (uint32_t i = 0; i < op->n_parts; i++) {
		buf_fini(&op->parts[i].body);
		buf_fini(&op->parts[i].reply);
		arena_fini(&op->parts[i].arena);
	}
	if (op->flow)
		op->flow->free(op->state);
	sop_free(op->store);
	pthread_cond_destroy(&op->cond);
	pthread_mutex_destroy(&op->lock);
	guard_unref(op->guard);
	free(op);
}

/* ---- start ---- */

/* Under p->lock. */
static enum err admit(struct pml *p, struct pml_op *op)
{
	if (p->closing)
		return ERR_CLOSED;
	if (p->n_live == p->calls_max)
		return ERR_BUSY;
	p->n_live++;
	list_push_back(&p->live, &op->live_node);
	list_push_back(&p->door, &op->door_node);
	sdk_knock(p);
	return ERR_NONE;
}

static int refuse(struct pml_op *op, struct pml_error *err, enum err e, const char *text)
{
	op_destroy(op);
	return sdk_error(err, e, e == ERR_BUSY ? 10 : 0, NULL, "start", "%s", text);
}

int sdk_call_opts(struct pml_call_opts *out, const struct pml_call_opts *o,
		  struct pml_error *err)
{
	if (sdk_opts(out, sizeof(*out), o) && !out->reserved)
		return PML_ERR_NONE;
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
			 "pml_call_opts: size is not set; use PML_CALL_OPTS_INIT");
}

int op_submit(struct pml_op *op, const struct pml_call_opts *o, struct pml_cq *cq, void *user,
	      struct pml_error *err)
{
	struct pml *p = op->p;
	struct pml_call_opts opts;
	int bad = sdk_call_opts(&opts, o, err);
	if (bad != PML_ERR_NONE) {
		op_destroy(op);
		return bad;
	}
	if (cq && !cq_is_of(cq, p))
		return refuse(op, err, ERR_INVALID_PARAMS,
			      "the queue belongs to another handle");
	if (cq && cq_take_slot(cq) != ERR_NONE)
		return refuse(op, err, ERR_BUSY, "the queue holds as many calls as its depth");
	uint32_t ms = opts.deadline_ms ? opts.deadline_ms : p->deadline_ms;
	op->deadline_ns = clock_after_ms(clock_real.now_ns(&clock_real), ms);
	op->cq = cq;
	op->user = user;
	op->spin_ns = p->set.spin_us * NS_PER_US;
	pthread_mutex_lock(&p->lock);
	enum err e = admit(p, op);
	pthread_mutex_unlock(&p->lock);
	if (e == ERR_NONE)
		return PML_ERR_NONE;
	if (cq)
		cq_drop_slot(cq);
	return refuse(op, err, e,
		      e == ERR_CLOSED ? "the handle is being closed"
				      : "as many calls are under way as calls_max allows");
}

/* ---- completion ---- */

/* Hands it back. Its owner may free it as soon as the lock is open. */
void op_complete(struct pml_op *op)
{
	struct pml *p = op->p;
	struct pml_cq *cq = op->cq;
	pthread_mutex_lock(&op->lock);
	pthread_mutex_lock(&p->lock);
	list_del(&op->live_node);
	if (list_linked(&op->door_node)) /* a cancel that came too late */
		list_del(&op->door_node);
	p->n_live--;
	pthread_mutex_unlock(&p->lock);
	op->p = NULL;
	if (op->store)
		buffers_let_go(op->store);
	bool orphan = op->orphan;
	if (!orphan) {
		__atomic_store_n(&op->done, true, __ATOMIC_RELEASE);
		pthread_cond_broadcast(&op->cond);
		if (cq)
			cq_push(cq, op);
	}
	pthread_mutex_unlock(&op->lock);
	if (!orphan)
		return;
	if (cq)
		cq_drop_slot(cq);
	op_destroy(op);
}

void op_end_unrun(struct pml_op *op, enum err e, const char *text)
{
	sdk_error(&op->error, e, 0, NULL, "start", "%s", text);
	for (uint32_t i = 0; i < op->n_parts; i++)
		op->parts[i].error = op->error;
	if (op->store)
		sop_unrun(op->store, e);
	op_complete(op);
}

/* ---- the loop's part ---- */

/* Copies of what a reply's lists and strings point to. */
static const char *keep(struct part *t, struct bytes s)
{
	char *p = arena_alloc(&t->arena, s.n + 1);
	if (!p)
		return "";
	if (s.n)
		memcpy(p, s.p, s.n);
	p[s.n] = '\0';
	return p;
}

static const char *const *keep_all(struct part *t, const struct bytes_list *l, size_t *n)
{
	const char **v = arena_alloc(&t->arena, (l->n + 1) * sizeof(*v));
	*n = v ? l->n : 0;
	for (size_t i = 0; i < *n; i++)
		v[i] = keep(t, l->p[i]);
	return v;
}

static enum err take_status(struct part *t, struct bytes reply, struct why *why)
{
	struct arena scratch = ARENA_INIT(SDK_STATUS_BYTES);
	struct dec d = DEC_INIT(reply, &scratch, why);
	struct msg_status_rep m;
	enum err e = dec_status_rep(&d, &m);
	if (e == ERR_NONE) {
		char hex[33];
		for (size_t i = 0; i < 16; i++)
			snprintf(hex + 2 * i, 3, "%02x", m.instance[i]);
		struct pml_service_status *s = &t->status;
		s->pid = (int)MIN_OF(m.pid, (uint64_t)INT32_MAX);
		s->instance = keep(t, BYTES_STR(hex));
		s->release = keep(t, m.release);
		s->http = keep(t, m.http);
		s->rpc = keep_all(t, &m.rpc, &s->n_rpc);
		s->reasons = keep_all(t, &m.reasons, &s->n_reasons);
		s->uptime_ms = m.uptime_ms;
		s->rss_bytes = m.rss_bytes;
		s->term = m.term;
		s->ready = m.ready;
		s->draining = m.draining;
	}
	arena_fini(&scratch);
	return e;
}

static enum err take_echo(struct part *t, struct bytes reply, struct why *why)
{
	struct dec d = DEC_INIT(reply, NULL, why);
	struct msg_echo m;
	enum err e = dec_echo(&d, &m);
	if (e != ERR_NONE)
		return e;
	buf_put(&t->reply, m.data.p, m.data.n);
	return buf_err(&t->reply);
}

/* One part has ended: with an error of the way, of the service, or of its answer. */
static void part_ended(struct part *t, enum err e, const struct why *why, const char *step)
{
	struct pml_op *op = t->op;
	if (e != ERR_NONE)
		sdk_error(&t->error, e, t->call.retry_ms, op->p->ends[t->service].name, step,
			  "%s", why->err != ERR_NONE ? why->text : err_text(e));
	t->status.size = sizeof(t->status);
	t->status.code = (int)e;
	t->status.error = e != ERR_NONE ? keep(t, BYTES_STR(t->error.text)) : "";
	if (--op->n_left > 0)
		return;
	sdk_ended(op->p);
	/* of several, each item tells; of one, it is the operation's */
	if (op->n_parts == 1)
		op->error = op->parts[0].error;
	op_complete(op);
}

static void on_call_done(struct rpc_call *c)
{
	struct part *t = container_of(c, struct part, call);
	struct why why = c->why;
	enum err e = c->err;
	const char *step = "call";
	if (e == ERR_NONE) {
		step = "decode";
		e = t->op->kind == OP_ECHO     ? take_echo(t, c->reply, &why)
		    : t->op->kind == OP_STATUS ? take_status(t, c->reply, &why)
					       : ERR_NONE;
	}
	part_ended(t, e, &why, step);
}

static void part_run(struct part *t)
{
	struct pml_op *op = t->op;
	struct pml *p = op->p;
	struct rpc_client *rpc = NULL;
	struct why why = { 0 };
	enum err e = sdk_end(p, t->service, &rpc, &why);
	if (e != ERR_NONE) {
		part_ended(t, e, &why, "connect");
		return;
	}
	t->sent = true;
	t->call = (struct rpc_call){
		.method = op->kind == OP_ECHO	  ? METHOD_ECHO
			  : op->kind == OP_FORGET ? METHOD_FORGET
						  : METHOD_STATUS,
		.idempotent = true,
		.deadline_ns = op->deadline_ns,
		.body = buf_bytes(&t->body),
		.done = on_call_done,
	};
	rpc_send(rpc, &t->call);
}

static void op_run(struct pml_op *op)
{
	uint32_t n = op->n_parts;
	op->n_left = n;
	op->running = true;
	if (op->flow) {
		op->flow->run(op);
		return;
	}
	if (op->kind == OP_STORE) {
		sop_run(op); /* it may be gone */
		return;
	}
	sdk_begun(op->p, op);
	/* the last part_run may complete and free it */
	for (uint32_t i = 0; i < n; i++)
		part_run(&op->parts[i]);
}

void op_step(struct pml_op *op)
{
	bool cancelled = __atomic_load_n(&op->cancelled, __ATOMIC_ACQUIRE);
	if (!op->running && cancelled)
		op_end_unrun(op, ERR_CANCELLED, "cancelled before it was sent");
	else if (!op->running)
		op_run(op);
	else if (cancelled && op->flow)
		op->flow->stop(op, ERR_CANCELLED, false);
	else if (cancelled && op->kind == OP_STORE)
		sop_cancel(op);
	else if (cancelled)
		for (uint32_t i = 0; i < op->n_parts; i++)
			if (op->parts[i].sent)
				rpc_cancel(&op->parts[i].call);
}

/* ---- the owner's part ---- */

int op_usable(const struct pml_op *op)
{
	if (!op)
		return PML_ERR_INVALID_PARAMS;
	return guard_ok(op->guard) ? PML_ERR_NONE : PML_ERR_FORKED;
}

bool op_over(const struct pml_op *op)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)&op->lock;
	pthread_mutex_lock(lock);
	bool done = op->done;
	pthread_mutex_unlock(lock);
	return done;
}

/* Waking a thread costs as much as many an answer takes (loop_spin): so it looks first, and lets others have
 * the processor between two looks. */
static void op_look(struct pml_op *op)
{
	uint64_t end = 0;
	while (op->spin_ns > 0 && !__atomic_load_n(&op->done, __ATOMIC_ACQUIRE)) {
		uint64_t now = clock_real.now_ns(&clock_real);
		if (end == 0)
			end = now + op->spin_ns;
		if (now >= end)
			return;
		sched_yield();
	}
}

void op_wait(struct pml_op *op)
{
	op_look(op);
	pthread_mutex_lock(&op->lock);
	while (!op->done)
		pthread_cond_wait(&op->cond, &op->lock);
	pthread_mutex_unlock(&op->lock);
}

int op_wait_for(struct pml_op *op, struct pml_error *err)
{
	assert(op);
	op_wait(op);
	int e = op->error.code;
	if (e != PML_ERR_NONE && err)
		sdk_error_copy(err, &op->error);
	return e;
}

int pml_op_wait(struct pml_op *op)
{
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	op_wait(op);
	return op->error.code;
}

int pml_op_code(const struct pml_op *op)
{
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	return op_over(op) ? op->error.code : PML_ERR_BUSY;
}

/* Under p->lock, while it is under way. */
static void cancel_soon(struct pml *p, struct pml_op *op)
{
	__atomic_store_n(&op->cancelled, true, __ATOMIC_RELEASE);
	if (list_linked(&op->door_node))
		return;
	list_push_back(&p->door, &op->door_node);
	sdk_knock(p);
}

/* An op of the list cannot complete while the lock is held, though it may have begun to: op_complete takes a
 * cancel that came too late out of the door again. */
void op_cancel_users(struct pml *p, const struct pml_buffer *b)
{
	pthread_mutex_lock(&p->lock);
	list_for_each (it, &p->live) {
		struct pml_op *op = list_entry(it, struct pml_op, live_node);
		if (op->store && buffers_held(op->store, b))
			cancel_soon(p, op);
	}
	pthread_mutex_unlock(&p->lock);
}

/* Marks an op that is under way and brings it to the loop once more. False: it is done. */
static bool cancel(struct pml_op *op, bool orphan)
{
	pthread_mutex_lock(&op->lock);
	bool under_way = !op->done;
	if (under_way) {
		struct pml *p = op->p; /* lives as long as an op under way */
		op->orphan |= orphan;
		pthread_mutex_lock(&p->lock);
		cancel_soon(p, op);
		pthread_mutex_unlock(&p->lock);
	}
	pthread_mutex_unlock(&op->lock);
	return under_way;
}

int pml_op_cancel(struct pml_op *op)
{
	int e = op_usable(op);
	if (e == PML_ERR_NONE)
		cancel(op, false);
	return e;
}

int pml_op_free(struct pml_op *op)
{
	if (!op)
		return PML_ERR_NONE;
	if (!guard_ok(op->guard))
		return PML_ERR_FORKED;
	bool waits = sop_has_buffers(op); /* they are the caller's again when this returns */
	if (cancel(op, !waits)) {
		if (!waits)
			return PML_ERR_NONE; /* the loop frees it */
		op_wait(op);
	}
	/* done, but nobody has collected it; a queue that was collected from may be gone */
	if (op->cq && !op->collected)
		cq_pull(op->cq, op);
	op_destroy(op);
	return PML_ERR_NONE;
}

void *pml_op_user(const struct pml_op *op)
{
	return op_usable(op) == PML_ERR_NONE ? op->user : NULL;
}

int pml_op_error(const struct pml_op *op, struct pml_error *out)
{
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	if (!out)
		return PML_ERR_INVALID_PARAMS;
	if (!op_over(op))
		return PML_ERR_NOT_READY;
	sdk_error_copy(out, &op->error);
	return PML_ERR_NONE;
}
