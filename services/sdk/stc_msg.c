/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages: what items of a call want in the same turn travels together; terms, attempts, and what the
 * session sends for itself (revokes, progress, renewals, the question for the term).
 */
#include "stc_priv.h"

#include <stdio.h>
#include <string.h>

/* Newer numbers than this and a closed number cannot be told from one below the master's window of
 * 4,096 (V4): a new one is taken. */
enum { ATTEMPT_SPREAD = 2048 };

struct stc_reply *reply_ref(struct stc_reply *r)
{
	__atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
	return r;
}

void reply_unref(struct stc_reply *r)
{
	if (!r || __atomic_sub_fetch(&r->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	arena_fini(&r->arena);
	free(r->bytes);
	free(r);
}

void flow_leave(struct stc_flow *f)
{
	struct stc_msg *m = f->msg;
	list_del(&f->node);
	if (!m)
		return;
	f->msg = NULL;
	m->flows[f->msg_idx] = NULL; /* P1 */
	/* a grant that nobody awaits any more is to be given back, so its answer must come */
	if (--m->live == 0 && m->q != Q_PUT)
		rpc_cancel(&m->call);
}

/* The flow gets its answer and goes on. */
static void answer(struct stc_flow *f, const struct stc_msg *m, enum err e, uint32_t retry_ms,
		   struct bytes text)
{
	f->msg = NULL;
	if (!m->holder && !f->first_term && e != ERR_STALE_TERM)
		f->first_term = m->call.term;
	if (e == ERR_NONE)
		f->err = ERR_NONE;
	else
		flow_note(f, e, retry_ms, m->holder ? m->holder->id : "master",
			  stc_rows[m->q].name, "%.*s", (int)text.n, (const char *)text.p);
	op_resume(&f->op);
}

static void answer_all(struct stc_msg *m, enum err e, uint32_t retry_ms, const char *text)
{
	for (uint32_t i = 0; i < m->n; i++)
		if (m->flows[i])
			answer(m->flows[i], m, e, retry_ms, BYTES_STR(text));
}

static void msg_free(struct stc_msg *m)
{
	if (m->holder)
		holder_drop(m->s, m->holder);
	stc_snap_unref(m->snap);
	buf_fini(&m->body);
	free(m->attempts);
	free(m);
}

static enum err read_reply(struct stc_msg *m, struct stc_reply **out, struct why *why)
{
	struct bytes in = m->call.reply;
	struct stc_reply *r = calloc(1, sizeof(*r));
	enum err e = ERR_NO_MEMORY;
	if (r)
		r->bytes = malloc(in.n + 1);
	if (r && r->bytes) {
		if (in.n)
			memcpy(r->bytes, in.p, in.n);
		r->refs = 1;
		r->arena = ARENA_INIT(STC_REPLY_BYTES);
		struct dec d = DEC_INIT(BYTES(r->bytes, in.n), &r->arena, why);
		const struct stc_row *row = &stc_rows[m->q];
		e = row->dec(&d, r);
		if (e == ERR_NONE && row->count && row->count(r) != m->n)
			e = why_set(why, ERR_BAD_MESSAGE, "%zu answers to %u questions",
				    row->count(r), m->n);
	} else {
		free(r);
		return e;
	}
	if (e == ERR_NONE)
		*out = r;
	else
		reply_unref(r);
	return e;
}

/* A term heard from the master. What it says with STALE_TERM counts even when it is lower: another
 * data folder may be behind the address now. */
static void hear_term(struct stc *s, const struct stc_msg *m, bool stale)
{
	if (!m->holder && m->call.term && (stale || m->call.term > s->term))
		s->term = m->call.term;
}

/* A grant whose put has gone. */
static void give_back(struct stc_msg *m, const struct stc_reply *r, uint32_t i)
{
	const struct msg_put_grant *g = &r->grants.items.p[i];
	if (m->q == Q_PUT && g->status == ERR_NONE)
		msg_revoke(m->s, m->attempts[i], g->version);
}

static void hand_out(struct stc_msg *m, struct stc_reply *r)
{
	const struct stc_row *row = &stc_rows[m->q];
	for (uint32_t i = 0; i < m->n; i++) {
		struct stc_flow *f = m->flows[i];
		uint32_t retry_ms = 0;
		struct bytes text = { 0 };
		enum err e = row->status ? row->status(r, i, &retry_ms, &text) : ERR_NONE;
		if (e == ERR_STALE_TERM)
			hear_term(m->s, m, true);
		if (!f) {
			give_back(m, r, i);
			continue;
		}
		if (e == ERR_NONE) {
			reply_unref(f->reply);
			f->reply = reply_ref(r);
		}
		answer(f, m, e, retry_ms, text.n ? text : BYTES_STR(err_text(e)));
	}
}

/* PROGRESS: what the master no longer knows is closed. */
static void hear_closed(struct stc *s, const struct stc_msg *m, const struct stc_reply *r)
{
	for (uint32_t i = 0; i < m->n; i++) {
		if (r->results.items.p[i].status != ERR_STALE_ATTEMPT)
			continue;
		list_for_each_safe (it, &s->held) {
			struct stc_flow *f = list_entry(it, struct stc_flow, held);
			if (f->attempt == m->attempts[i])
				flow_closed(f);
		}
	}
}

static void on_background(struct stc_msg *m)
{
	struct stc_reply *r = NULL;
	struct why why = { 0 };
	bool read = m->snap || m->call.method == METHOD_PUT_PROGRESS;
	if (m->call.err == ERR_NONE && read && read_reply(m, &r, &why) != ERR_NONE)
		r = NULL;
	if (m->snap)
		snap_answered(m, r);
	else if (r)
		hear_closed(m->s, m, r);
	reply_unref(r);
}

static void on_done(struct rpc_call *c)
{
	struct stc_msg *m = container_of(c, struct stc_msg, call);
	struct stc *s = m->s;
	struct stc_reply *r = NULL;
	struct why why = c->why;
	enum err e = c->err;
	list_del(&m->node);
	s->n_msgs--;
	hear_term(s, m, e == ERR_STALE_TERM);
	if (m->background) {
		on_background(m);
	} else {
		if (e == ERR_NONE)
			e = read_reply(m, &r, &why);
		if (e == ERR_NONE)
			hand_out(m, r);
		else
			answer_all(m, e, c->retry_ms, why.err ? why.text : err_text(e));
		reply_unref(r);
	}
	msg_free(m);
	stc_maybe_end(s);
}

struct stc_msg *msg_new(struct stc *s, enum stc_q q, uint32_t n, uint32_t n_attempts)
{
	struct stc_msg *m = calloc(1, sizeof(*m) + n * sizeof(m->flows[0]));
	if (!m)
		return NULL;
	m->s = s;
	m->q = q;
	m->body = BUF_INIT(WIRE_MESSAGE_MAX - 4096);
	m->attempts = n_attempts ? calloc(n_attempts, sizeof(m->attempts[0])) : NULL;
	if (n_attempts && !m->attempts) {
		free(m);
		return NULL;
	}
	return m;
}

static enum err msg_send(struct stc_msg *m, uint32_t method, uint64_t deadline_ns,
			 struct why *why)
{
	struct stc *s = m->s;
	struct rpc_client *rpc = NULL;
	enum err e = buf_err(&m->body);
	if (e == ERR_NONE && m->holder)
		rpc = m->holder->rpc;
	else if (e == ERR_NONE && m->admin)
		e = s->o.admin ? s->o.admin(s->o.ctx, &rpc, why) : ERR_FORBIDDEN;
	else if (e == ERR_NONE)
		e = s->o.master(s->o.ctx, &rpc, why);
	if (e != ERR_NONE)
		return e;
	m->call = (struct rpc_call){
		.method = method,
		.idempotent = !stc_rows[m->q].once,
		.deadline_ns = deadline_ns,
		.body = buf_bytes(&m->body),
		.done = on_done,
	};
	list_push_back(&s->msgs, &m->node);
	s->n_msgs++;
	rpc_send(rpc, &m->call);
	return ERR_NONE;
}

/* ---- what flows want ---- */

static void flush_soon(struct stc_work *w)
{
	if (w->flush_due)
		return;
	w->flush_due = true;
	loop_defer(w->s->o.loop, &w->flush);
}

void msg_want(struct stc_flow *f, enum stc_q q)
{
	list_push_back(&f->w->want[q], &f->node);
	flush_soon(f->w);
}

static void number(struct stc *s, struct stc_flow *f)
{
	if (!f->attempt || s->attempt - f->attempt >= ATTEMPT_SPREAD)
		f->attempt = ++s->attempt; /* I2 */
}

/* Moves the flows of one message from the queue into it. */
static struct stc_msg *gather(struct stc_work *w, enum stc_q q)
{
	struct stc_flow *take[STC_ITEMS_MAX];
	const struct stc_row *row = &stc_rows[q];
	struct list *want = &w->want[q];
	struct stc_holder *h = list_entry(want->next, struct stc_flow, node)->holder;
	uint32_t n = 0;
	size_t bytes = 0;
	list_for_each (it, want) {
		struct stc_flow *f = list_entry(it, struct stc_flow, node);
		if (q == Q_COMMIT && f->holder != h)
			continue;
		bytes += wire_bytes(f, q);
		if (n == row->items_max || (n > 0 && bytes > STC_MSG_BYTES))
			break;
		take[n++] = f;
	}
	struct stc_msg *m = msg_new(w->s, q, n, q == Q_PUT ? n : 0);
	if (!m)
		return NULL;
	if (q == Q_COMMIT) {
		m->holder = h;
		h->users++;
	}
	m->n = m->live = n;
	m->admin = w->c->admin;
	for (uint32_t i = 0; i < n; i++) {
		list_del(&take[i]->node);
		m->flows[i] = take[i];
		take[i]->msg = m;
		take[i]->msg_idx = i;
		if (row->changes)
			number(w->s, take[i]);
		if (m->attempts)
			m->attempts[i] = take[i]->attempt;
	}
	return m;
}

/* All of a queue fails: no message could be made. */
static void fail_queue(struct stc_work *w, enum stc_q q, enum err e, const char *text)
{
	struct list now;
	list_init(&now);
	while (!list_empty(&w->want[q]))
		list_push_back(&now, list_pop_front(&w->want[q]));
	while (!list_empty(&now)) {
		struct stc_flow *f = list_entry(list_pop_front(&now), struct stc_flow, node);
		flow_note(f, e, 0, "master", stc_rows[q].name, "%s", text);
		op_resume(&f->op);
	}
}

/* The reply comes a moment before the flow's own deadline, for it knows more of the reason. */
static uint64_t reply_deadline(const struct stc_call *c)
{
	return c->deadline_ns > 1000000 ? c->deadline_ns - 1000000 : 1;
}

static void on_sent(struct post *p)
{
	struct stc *s = container_of(p, struct stc, sent);
	s->sent_due = false;
	FAULT_AT(put_commit_sent);
	stc_maybe_end(s);
}

static void send_one(struct stc_work *w, enum stc_q q)
{
	struct stc *s = w->s;
	const struct stc_row *row = &stc_rows[q];
	struct why why = { 0 };
	struct stc_msg *m = gather(w, q);
	if (!m) {
		fail_queue(w, q, ERR_NO_MEMORY, err_text(ERR_NO_MEMORY));
		return;
	}
	row->enc(m, &m->body);
	enum err e = msg_send(m, row->method, reply_deadline(w->c), &why);
	if (e != ERR_NONE) {
		answer_all(m, e, 0, why.err ? why.text : err_text(e));
		msg_free(m);
	}
	if (q == Q_COMMIT && s->halves && !s->sent_due) {
		s->sent_due = true;
		s->sent.fn = on_sent;
		loop_defer(s->o.loop, &s->sent);
	}
}

/* ---- the term ---- */

static void on_learned(struct rpc_call *c)
{
	struct stc_msg *m = container_of(c, struct stc_msg, call);
	struct stc *s = m->s;
	enum err e = c->err;
	char text[sizeof(c->why.text)]; /* c goes with m */
	snprintf(text, sizeof(text), "%s", c->why.err ? c->why.text : err_text(e));
	list_del(&m->node);
	s->n_msgs--;
	s->learn_sent = false;
	hear_term(s, m, false);
	msg_free(m);
	struct list now;
	list_init(&now);
	while (!list_empty(&s->learning))
		list_push_back(&now, list_pop_front(&s->learning));
	while (!list_empty(&now)) {
		struct stc_work *w =
			list_entry(list_pop_front(&now), struct stc_work, learn_node);
		if (s->term != 0 || e == ERR_TIMED_OUT) { /* not by its own deadline */
			flush_soon(w);
			continue;
		}
		for (enum stc_q q = 0; q < Q_N; q++)
			if (stc_rows[q].changes)
				fail_queue(w, q, e ? e : ERR_NOT_READY,
					   e ? text : "the master has no term yet");
	}
	stc_maybe_end(s);
}

/* What changes something is not sent without a term (I3): any answer tells it. */
static void learn(struct stc_work *w)
{
	struct stc *s = w->s;
	struct why why = { 0 };
	if (!list_linked(&w->learn_node))
		list_push_back(&s->learning, &w->learn_node);
	if (s->learn_sent)
		return;
	struct stc_msg *m = msg_new(s, Q_PUT, 0, 0);
	enum err e = ERR_NO_MEMORY;
	if (m) {
		enc_echo(&m->body, &(struct msg_echo){ 0 });
		e = msg_send(m, METHOD_ECHO, reply_deadline(w->c), &why);
	}
	if (e == ERR_NONE) {
		m->call.done = on_learned;
		s->learn_sent = true;
		return;
	}
	if (m)
		msg_free(m);
	list_del(&w->learn_node);
	for (enum stc_q q = 0; q < Q_N; q++)
		if (stc_rows[q].changes)
			fail_queue(w, q, e, why.err ? why.text : err_text(e));
}

void msg_flush(struct stc_work *w)
{
	for (enum stc_q q = 0; q < Q_N; q++) {
		if (list_empty(&w->want[q]))
			continue;
		if (stc_rows[q].changes && w->s->term == 0) {
			learn(w);
			continue;
		}
		while (!list_empty(&w->want[q]))
			send_one(w, q);
	}
}

/* ---- for itself ---- */

bool msg_background(struct stc_msg *m, uint32_t method)
{
	struct stc *s = m->s;
	struct why why = { 0 };
	uint32_t ms = s->closing ? STC_BG_CLOSING_MS : STC_BG_MS;
	m->background = true;
	if (msg_send(m, method, clock_after_ms(loop_now_ns(s->o.loop), ms), &why) == ERR_NONE)
		return true;
	msg_free(m);
	return false;
}

void msg_revoke(struct stc *s, uint64_t attempt, uint64_t version)
{
	if (s->n_revokes == s->cap_revokes) {
		uint32_t cap = s->cap_revokes ? 2 * s->cap_revokes : 64;
		struct msg_attempt *p =
			cap > STC_REVOKES_MAX ? NULL : realloc(s->revokes, cap * sizeof(*p));
		if (!p)
			return; /* the master discards it in time */
		s->revokes = p;
		s->cap_revokes = cap;
	}
	s->revokes[s->n_revokes++] =
		(struct msg_attempt){ .attempt = attempt, .version = version };
	if (!s->revoke_due) {
		s->revoke_due = true;
		loop_defer(s->o.loop, &s->revoke);
	}
}

static void send_attempts(struct stc *s, uint32_t method, const struct msg_attempt *v,
			  uint32_t n)
{
	struct msg_attempts_req q = { .term = s->term, .items = { v, n } };
	struct stc_msg *m = msg_new(s, Q_PUT, 0, n);
	if (!m)
		return;
	m->q = Q_REMOVE; /* its answers are results */
	m->n = n;
	memcpy(q.client, s->instance, 16);
	for (uint32_t i = 0; i < n; i++)
		m->attempts[i] = v[i].attempt;
	enc_attempts_req(&m->body, &q);
	(void)msg_background(m, method);
}

void msg_send_revokes(struct stc *s)
{
	for (uint32_t i = 0; i < s->n_revokes; i += STC_ITEMS_MAX)
		send_attempts(s, METHOD_PUT_REVOKE, s->revokes + i,
			      MIN_OF(s->n_revokes - i, (uint32_t)STC_ITEMS_MAX));
	s->n_revokes = 0;
}

static void send_leases(struct stc *s, const struct msg_lease *v, uint32_t n, uint32_t lease_ms)
{
	struct msg_leases_req q = { .items = { v, n }, .lease_ms = lease_ms };
	struct stc_msg *m = msg_new(s, Q_RELEASE, 0, 0);
	if (!m)
		return;
	enc_leases_req(&m->body, &q);
	(void)msg_background(m, METHOD_RENEW);
}

/* Is there progress to tell of, or a lease that runs out? B4 */
static bool due(struct stc_flow *f, uint64_t now)
{
	if (now < f->renew_ns)
		return false;
	f->renew_ns = now + f->lease_ns;
	uint64_t done = __atomic_load_n(&f->w->c->bytes_done, __ATOMIC_RELAXED);
	bool moved = done != f->done_at_renewal || !f->in_turn;
	f->done_at_renewal = done;
	return moved;
}

void msg_renew(struct stc *s)
{
	struct msg_attempt puts[256];
	struct msg_lease gets[256];
	uint32_t n_puts = 0, n_gets = 0, lease_ms = 0;
	uint64_t now = loop_now_ns(s->o.loop);
	list_for_each (it, &s->held) {
		struct stc_flow *f = list_entry(it, struct stc_flow, held);
		if (!due(f, now))
			continue;
		if (f->w->c->kind == STC_PUT) {
			puts[n_puts++] = (struct msg_attempt){ .attempt = f->attempt,
							       .version = f->it->version };
		} else {
			lease_ms = f->w->c->get.lease_ms;
			gets[n_gets++] = (struct msg_lease){ .key = f->it->key,
							     .version = f->it->version };
		}
		if (n_puts == ARRAY_LEN(puts) || n_gets == ARRAY_LEN(gets))
			break; /* the rest with the next tick */
	}
	if (n_puts)
		send_attempts(s, METHOD_PUT_PROGRESS, puts, n_puts);
	if (n_gets)
		send_leases(s, gets, n_gets, lease_ms);
}
