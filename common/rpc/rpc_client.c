/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc_cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* With another address to try, a connection this silent while a call died on it is given up. */
#define SILENT_NS (2 * NS_PER_S)
/* A request whose connection breaks each time may be what breaks it. */
#define TRIES_MAX 8

/* ---- ends ---- */

static void call_post(struct post *p)
{
	struct rpc_call *c = container_of(p, struct rpc_call, post);
	struct rpc_client *cl = c->client;
	c->state = CALL_NONE;
	c->done(c);
	if (cl->n_waiting > 0) /* a cancelled call made room on the wire */
		client_pump(cl);
}

static void leave(struct rpc_call *c)
{
	struct rpc_client *cl = c->client;
	if (c->state == CALL_WAITING)
		cl->n_waiting--;
	else if (c->state == CALL_SENT)
		cl->n_sent--;
	list_del(&c->node);
	heap_remove(&cl->due, &c->due);
}

/* From a callback: done runs now. */
static void end_now(struct rpc_call *c, enum err e)
{
	leave(c);
	c->err = e;
	c->state = CALL_NONE;
	c->done(c);
}

/* From a caller's own call: done runs on the next turn. */
static void end_later(struct rpc_call *c, enum err e)
{
	leave(c);
	c->err = e;
	c->state = CALL_ENDING;
	c->post.fn = call_post;
	loop_defer(c->client->loop, &c->post);
}

static void to_waiting(struct rpc_call *c, bool front)
{
	struct rpc_client *cl = c->client;
	c->state = CALL_WAITING;
	cl->n_waiting++;
	if (front)
		list_push_front(&cl->waiting, &c->node);
	else
		list_push_back(&cl->waiting, &c->node);
}

/* It was on the wire and no answer will come. */
static void call_lost(struct rpc_call *c, enum err e, const char *text)
{
	struct rpc_client *cl = c->client;
	if (c->idempotent && c->tries < TRIES_MAX) {
		list_del(&c->node);
		cl->n_sent--;
		to_waiting(c, true);
		return;
	}
	why_set(&c->why, e, "%s at %s: %s (%u %s); %s may or may not have been carried out",
		cl->o.peer_name, client_target(cl)->addr, text, c->tries,
		c->tries == 1 ? "try" : "tries", method_name(c->method));
	end_now(c, e);
}

void client_lose_sent(struct rpc_client *cl)
{
	/* backwards and to the front: they keep their order. Those that end leave the list too. */
	while (!list_empty(&cl->sent))
		call_lost(container_of(cl->sent.prev, struct rpc_call, node), ERR_CONN_LOST,
			  "the connection broke before the answer came");
}

void client_fail_waiting(struct rpc_client *cl, enum err e)
{
	uint32_t n = cl->n_waiting; /* done may add more: they are not ours */
	for (; n > 0 && !list_empty(&cl->waiting); n--) {
		struct rpc_call *c = container_of(cl->waiting.next, struct rpc_call, node);
		c->why = cl->last;
		end_now(c, e);
	}
}

/* ---- deadlines ---- */

/* Why a call is not where it should be by its deadline (T7: peer, address, step). */
static enum err late(struct rpc_call *c)
{
	struct rpc_client *cl = c->client;
	const char *addr = client_target(cl)->addr, *name = cl->o.peer_name;
	if (c->state == CALL_SENT)
		return why_set(&c->why, ERR_TIMED_OUT,
			       "%s at %s: no answer to %s within the deadline", name, addr,
			       method_name(c->method));
	if (cl->state == CL_UP)
		return why_set(&c->why, ERR_TIMED_OUT,
			       "%s at %s: %s waited behind %u calls on the wire (limit %u)",
			       name, addr, method_name(c->method), cl->n_sent,
			       cl->o.inflight_max);
	if (cl->last.err != ERR_NONE)
		return why_set(&c->why,
			       cl->last.err == ERR_TIMED_OUT ? ERR_TIMED_OUT : ERR_UNREACHABLE,
			       "%s (%u %s)", cl->last.text, cl->tries,
			       cl->tries == 1 ? "try" : "tries");
	return why_set(&c->why, ERR_TIMED_OUT, "%s %s at %s: no answer within the deadline",
		       cl->state == CL_DIAL ? "connecting to" : "handshake with", name, addr);
}

static bool silent_since(const struct rpc_client *cl, const struct rpc_call *c, uint64_t now)
{
	return cl->n_targets > 1 && cl->state == CL_UP && c->n_answers == cl->n_answers &&
	       now - c->sent_ns >= SILENT_NS;
}

static void on_due(struct timer *t)
{
	struct rpc_client *cl = container_of(t, struct rpc_client, due_timer);
	uint64_t now = loop_now_ns(cl->loop);
	struct heap_node *n;
	bool silent = false;
	while ((n = heap_min(&cl->due)) && n->key <= now) {
		struct rpc_call *c = container_of(n, struct rpc_call, due);
		if (c->state == CALL_SENT) {
			silent |= silent_since(cl, c, now);
			if (cl->peer)
				client_target(cl)->engine->cancel(cl->peer, &c->xchg);
		}
		end_now(c, late(c));
	}
	if (cl->state == CL_CLOSING)
		return;
	if (n && !timer_running(&cl->due_timer)) {
		cl->due_armed_ns = n->key;
		timer_start(cl->loop, &cl->due_timer, n->key, on_due);
	}
	if (silent && cl->state == CL_UP) {
		cl->proven = false; /* not this address again at once */
		client_break(cl, ERR_TIMED_OUT, "connected, but nothing is answered");
	} else {
		client_pump(cl);
	}
}

/* The timer may fire early, with nothing due: cheaper than moving it with every call. */
static void arm_due(struct rpc_client *cl, uint64_t due_ns)
{
	if (timer_running(&cl->due_timer) && cl->due_armed_ns <= due_ns)
		return;
	cl->due_armed_ns = due_ns;
	timer_start(cl->loop, &cl->due_timer, due_ns, on_due);
}

/* ---- answers ---- */

/* The server's words, or the error's own text. */
static void explain(struct rpc_call *c, const struct msg_reply *m)
{
	struct msg_error_info info = { 0 };
	struct dec d = DEC_INIT(m->body, NULL, NULL);
	enum err e = (enum err)m->status;
	if (m->body.n > 0 && dec_error_info(&d, &info) == ERR_NONE && info.text.n > 0)
		why_set(&c->why, e, "%.*s", (int)info.text.n, (const char *)info.text.p);
	else
		why_set(&c->why, e, "%s answered %s: %s", c->client->o.peer_name, err_name(e),
			err_text(e));
}

/* The server does not know the session any more. What it did not run may run again. */
static void session_gone(struct rpc_call *c)
{
	struct rpc_client *cl = c->client;
	bool current = c->session == cl->session.id && cl->state == CL_UP;
	call_lost(c, ERR_STALE_SESSION, "the session ended");
	if (!current || cl->state != CL_UP)
		return;
	if (cl->proven)
		client_rehello(cl);
	else
		client_break(cl, ERR_STALE_SESSION, "it forgets sessions at once");
}

/*
 * An answer without a session proves nothing about who gave it: it may make us knock again, it may
 * not decide a call.
 */
static void plain_answer(struct rpc_call *c, const struct msg_reply *m)
{
	char text[96];
	if (m->status == ERR_STALE_SESSION || m->status == ERR_UNAUTHENTICATED) {
		session_gone(c);
		return;
	}
	snprintf(text, sizeof(text), "it refused a message: %s", err_name((enum err)m->status));
	client_break(c->client, ERR_CONN_LOST, text);
}

static void on_reply(struct rpc_call *c, const struct msg_reply *m)
{
	struct rpc_client *cl = c->client;
	cl->n_answers++;
	cl->proven = true;
	cl->backoff_ms = 0;
	c->retry_ms = m->retry_ms;
	c->term = m->term;
	c->reply = m->body;
	if (m->status != ERR_NONE)
		explain(c, m);
	end_now(c, (enum err)m->status);
}

static void on_answer(struct eng_xchg *x, enum err e, struct bytes msg)
{
	struct rpc_call *c = container_of(x, struct rpc_call, xchg);
	struct rpc_client *cl = c->client;
	struct msg_reply m;
	struct bytes env;
	const uint8_t *tag;
	if (e != ERR_NONE) {
		call_lost(c, ERR_CONN_LOST, "the connection broke before the answer came");
		return;
	}
	if (!env_split(msg, &env, &tag)) {
		client_break(cl, ERR_BAD_MESSAGE, "an answer is too short");
		return;
	}
	struct dec d = DEC_INIT(env, NULL, NULL);
	if (dec_reply(&d, &m) != ERR_NONE) {
		client_break(cl, ERR_BAD_MESSAGE, "an answer is no valid message");
	} else if (m.session == 0) {
		plain_answer(c, &m);
	} else if (c->session != cl->session.id) {
		call_lost(c, ERR_STALE_SESSION, "the session ended");
	} else if (m.session != cl->session.id ||
		   env_check(&cl->session, m.seq, env, tag) != ERR_NONE) {
		client_break(cl, ERR_UNAUTHENTICATED, "the tag of an answer does not match");
	} else if (m.id != c->id) {
		client_break(cl, ERR_BAD_MESSAGE, "an answer belongs to another request");
	} else {
		on_reply(c, &m);
	}
	if (cl->n_waiting > 0)
		client_pump(cl);
}

/* ---- sending ---- */

static uint32_t message_max(const struct rpc_client *cl)
{
	uint32_t ours = cl->o.limits.message_bytes_max, theirs = cl->theirs.message_max;
	return theirs && theirs < ours ? theirs : ours;
}

static enum err too_large(const struct rpc_client *cl, struct rpc_call *c)
{
	return why_set(&c->why, ERR_TOO_LARGE,
		       "%s: the request has %zu bytes, a message at most %u", cl->o.peer_name,
		       c->body.n, message_max(cl) - ENV_ROOM);
}

static uint32_t inflight_max(const struct rpc_client *cl)
{
	uint32_t ours = cl->o.inflight_max, theirs = cl->theirs.inflight_max;
	return theirs && theirs < ours ? theirs : ours;
}

/* NONE: on the wire. BUSY: not now. Else the call's end. */
static enum err send_one(struct rpc_client *cl, struct rpc_call *c, uint64_t now)
{
	struct env_parts out;
	struct msg_request m = {
		.v = cl->server.wire_version,
		.method = c->method,
		.session = cl->session.id,
		.id = ++cl->next_id,
		.deadline_ms = clock_left_ms(c->deadline_ns, now),
		.shard = c->shard,
		.body = c->body,
	};
	if (m.deadline_ms == 0)
		return ERR_TIMED_OUT;
	if (c->body.n + ENV_ROOM > message_max(cl))
		return too_large(cl, c);
	enum err e = auth_next_seq(&cl->session, &m.seq);
	if (e == ERR_NONE)
		e = env_request(&cl->out, &m, &cl->session, &out);
	if (e != ERR_NONE)
		return e;
	c->id = m.id;
	c->session = m.session;
	c->sent_ns = now;
	c->n_answers = cl->n_answers;
	c->xchg.done = on_answer;
	e = client_target(cl)->engine->send(cl->peer, &c->xchg, out.p, out.n);
	if (e != ERR_NONE)
		return ERR_BUSY; /* full, or down is on its way: it waits */
	c->tries++;
	c->state = CALL_SENT;
	cl->n_sent++;
	list_push_back(&cl->sent, &c->node);
	return ERR_NONE;
}

/* May a call go out at once? */
static bool ready(const struct rpc_client *cl)
{
	return cl->state == CL_UP && cl->n_sent < inflight_max(cl) &&
	       !auth_session_old(&cl->session);
}

void client_pump(struct rpc_client *cl)
{
	uint64_t now = loop_now_ns(cl->loop);
	while (cl->n_waiting > 0 && ready(cl)) {
		struct rpc_call *c = container_of(cl->waiting.next, struct rpc_call, node);
		list_del(&c->node);
		cl->n_waiting--;
		c->state = CALL_NONE;
		enum err e = send_one(cl, c, now);
		if (e == ERR_BUSY) {
			to_waiting(c, true);
			return;
		}
		if (e != ERR_NONE) {
			why_set(&c->why, e, "%s: sending %s: %s", cl->o.peer_name,
				method_name(c->method), err_text(e));
			end_now(c, e);
		}
	}
	if (cl->state == CL_UP && cl->n_sent == 0 && auth_session_old(&cl->session))
		client_rehello(cl);
	client_kick(cl);
}

/* What a call can fail of before it is anywhere. */
static enum err precheck(struct rpc_client *cl, struct rpc_call *c, uint64_t now)
{
	if (cl->state == CL_CLOSING)
		return why_set(&c->why, ERR_CLOSED, "%s: the client is closed",
			       cl->o.peer_name);
	if (c->body.n + ENV_ROOM > message_max(cl))
		return too_large(cl, c);
	if (c->deadline_ns <= now)
		return why_set(&c->why, ERR_TIMED_OUT,
			       "%s: the deadline had passed before %s was sent",
			       cl->o.peer_name, method_name(c->method));
	if (cl->refused != ERR_NONE) {
		c->why = cl->last;
		return cl->refused;
	}
	if (!ready(cl) && cl->n_waiting >= cl->o.queue_max)
		return why_set(&c->why, ERR_BUSY, "%s: %u calls wait already (limit %u)",
			       cl->o.peer_name, cl->n_waiting, cl->o.queue_max);
	return ERR_NONE;
}

void rpc_send(struct rpc_client *cl, struct rpc_call *c)
{
	uint64_t now = loop_now_ns(cl->loop);
	c->client = cl;
	c->err = ERR_NONE;
	c->retry_ms = 0;
	c->term = 0;
	c->reply = BYTES(NULL, 0);
	c->why.err = ERR_NONE;
	c->why.text[0] = '\0';
	c->tries = 0;
	c->state = CALL_NONE;
	c->post.queued = false;
	c->due.linked = false;
	list_init(&c->node);
	enum err e = precheck(cl, c, now);
	if (e != ERR_NONE) {
		end_later(c, e);
		return;
	}
	heap_insert(&cl->due, &c->due, c->deadline_ns);
	arm_due(cl, c->deadline_ns);
	e = ready(cl) && cl->n_waiting == 0 ? send_one(cl, c, now) : ERR_BUSY;
	if (e == ERR_BUSY) {
		to_waiting(c, false);
		client_kick(cl);
	} else if (e != ERR_NONE) {
		why_set(&c->why, e, "%s: sending %s: %s", cl->o.peer_name,
			method_name(c->method), err_text(e));
		end_later(c, e);
	}
}

void rpc_cancel(struct rpc_call *c)
{
	struct rpc_client *cl = c->client;
	if (c->state != CALL_WAITING && c->state != CALL_SENT)
		return;
	if (c->state == CALL_SENT && cl->peer)
		client_target(cl)->engine->cancel(cl->peer, &c->xchg);
	why_set(&c->why, ERR_CANCELLED, "%s: %s was cancelled", cl->o.peer_name,
		method_name(c->method));
	end_later(c, ERR_CANCELLED);
}

bool rpc_client_up(const struct rpc_client *cl)
{
	return cl->state == CL_UP;
}

/* ---- life ---- */

static void client_free(struct rpc_client *cl)
{
	for (size_t i = 0; i < cl->n_targets; i++)
		free(cl->targets[i].addr);
	free(cl->targets);
	hello_client_free(cl->hello);
	auth_session_fini(&cl->session);
	buf_fini(&cl->out);
	buf_fini(&cl->hello_out);
	free(cl);
}

static void on_closed(struct post *p)
{
	struct rpc_client *cl = container_of(p, struct rpc_client, post);
	void (*closed)(void *arg) = cl->closed;
	void *arg = cl->arg;
	client_free(cl);
	if (closed)
		closed(arg);
}

void client_maybe_closed(struct rpc_client *cl)
{
	if (cl->state != CL_CLOSING || cl->n_hangups > 0 || cl->post_queued)
		return;
	cl->post_queued = true;
	cl->post.fn = on_closed;
	loop_defer(cl->loop, &cl->post);
}

void rpc_client_close(struct rpc_client *cl, void (*closed)(void *arg), void *arg)
{
	struct list *lists[] = { &cl->waiting, &cl->sent };
	cl->state = CL_CLOSING;
	cl->closed = closed;
	cl->arg = arg;
	client_hangup(cl);
	timer_stop(cl->loop, &cl->due_timer);
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		while (!list_empty(lists[i])) {
			struct rpc_call *c =
				container_of(lists[i]->next, struct rpc_call, node);
			why_set(&c->why, ERR_CLOSED, "%s: the client was closed",
				cl->o.peer_name);
			end_later(c, ERR_CLOSED);
		}
	}
	client_maybe_closed(cl);
}

static enum err add_targets(struct rpc_client *cl, const struct rpc_client_opts *o,
			    struct why *why)
{
	if (o->n_addrs == 0)
		return why_set(why, ERR_INVALID_PARAMS, "%s: no address is given",
			       o->peer_name);
	cl->targets = calloc(o->n_addrs, sizeof(*cl->targets));
	if (!cl->targets)
		return why_set(why, ERR_NO_MEMORY, "%s: no memory", o->peer_name);
	for (; cl->n_targets < o->n_addrs; cl->n_targets++) {
		struct target *t = &cl->targets[cl->n_targets];
		t->engine = engine_pick(o->engine, o->addrs[cl->n_targets], why);
		if (!t->engine)
			return ERR_INVALID_PARAMS;
		t->addr = strdup(o->addrs[cl->n_targets]);
		if (!t->addr)
			return why_set(why, ERR_NO_MEMORY, "%s: no memory", o->peer_name);
	}
	return ERR_NONE;
}

static void copy_opts(struct rpc_client *cl, const struct rpc_client_opts *o)
{
	cl->o = *o;
	rpc_limits_default(&cl->o.limits);
	cl->o.addrs = NULL;
	cl->o.tenant = cl->o.holder = cl->o.expect_name = cl->o.expect_holder = NULL;
	cl->o.instance = NULL;
	cl->o.v_min = o->v_min ? o->v_min : WIRE_VERSION_MIN;
	cl->o.v_max = o->v_max ? o->v_max : WIRE_VERSION;
	cl->o.inflight_max = o->inflight_max ? o->inflight_max : 256;
	cl->o.queue_max = o->queue_max ? o->queue_max : 4096;
	cl->o.backoff_min_ms = o->backoff_min_ms ? o->backoff_min_ms : 50;
	cl->o.backoff_max_ms = o->backoff_max_ms ? o->backoff_max_ms : 2000;
}

static void fill_random(void *ctx, void *p, size_t n)
{
	loop_random(ctx, p, n);
}

static enum err make_hello(struct rpc_client *cl, const struct rpc_client_opts *o,
			   struct why *why)
{
	struct hello_client_opts h = {
		.keys = o->keys,
		.role = o->as,
		.tenant = o->tenant,
		.holder = o->holder,
		.instance = o->instance,
		.v_min = cl->o.v_min,
		.v_max = cl->o.v_max,
		.expect = o->expect,
		.expect_listener = o->expect_name,
		.expect_holder = o->expect_holder,
		.random = { fill_random, cl->loop },
	};
	return hello_client_new(&h, &cl->hello, why);
}

enum err rpc_client_new(struct loop *l, const struct rpc_client_opts *o,
			struct rpc_client **out, struct why *why)
{
	struct rpc_client *cl = calloc(1, sizeof(*cl));
	if (!cl)
		return why_set(why, ERR_NO_MEMORY, "%s: no memory", o->peer_name);
	cl->loop = l;
	copy_opts(cl, o);
	cl->out = BUF_INIT(2 * (ENV_ROOM + ENV_INLINE));
	cl->hello_out = BUF_INIT(8 << 10);
	list_init(&cl->waiting);
	list_init(&cl->sent);
	enum err e = add_targets(cl, o, why);
	if (e == ERR_NONE)
		e = make_hello(cl, o, why);
	if (e != ERR_NONE) {
		client_free(cl);
		return why_set(why, e, "%s: %s", o->peer_name, err_text(e));
	}
	*out = cl;
	return ERR_NONE;
}
