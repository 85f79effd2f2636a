/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc_cli.h"

#include <inttypes.h>
#include <string.h>

static void connect_failed(struct rpc_client *cl, enum err e, const char *text);

static const char *step_of(const struct rpc_client *cl)
{
	return cl->state == CL_DIAL ? "connecting to" : "handshake with";
}

/* Nobody is to try again by itself what a person has to mend. */
static bool is_refusal(enum err e)
{
	return e == ERR_UNAUTHENTICATED || e == ERR_VERSION_MISMATCH || e == ERR_FORBIDDEN;
}

/* ---- hanging up ---- */

static void on_hung_up(void *arg)
{
	struct rpc_client *cl = arg;
	cl->n_hangups--;
	client_maybe_closed(cl);
}

void client_hangup(struct rpc_client *cl)
{
	struct eng_peer *p = cl->peer;
	timer_stop(cl->loop, &cl->timer);
	if (!p)
		return;
	cl->peer = NULL;
	cl->n_hangups++;
	client_target(cl)->engine->hangup(p, on_hung_up, cl);
}

static void tell_state(struct rpc_client *cl, bool up)
{
	if (cl->up_told == up)
		return;
	cl->up_told = up;
	if (cl->o.on_state)
		cl->o.on_state(cl->o.ctx, up);
}

/* ---- HELLO ---- */

static void on_hello_late(struct timer *t)
{
	struct rpc_client *cl = container_of(t, struct rpc_client, timer);
	connect_failed(cl, ERR_TIMED_OUT,
		       cl->state == CL_HELLO ? "no answer to HELLO" : "no answer to PROVE");
}

/* A status the peer gave without proof: good for giving up, never for success beyond HELLO. */
static enum err plain_status(const struct msg_reply *m, struct why *why)
{
	struct msg_error_info info = { 0 };
	struct dec d = DEC_INIT(m->body, NULL, NULL);
	if (m->status == ERR_NONE)
		return ERR_NONE;
	enum err e = (enum err)m->status;
	if (m->body.n > 0 && dec_error_info(&d, &info) == ERR_NONE && info.text.n > 0)
		return why_set(why, e, "%.*s", (int)info.text.n, (const char *)info.text.p);
	return why_set(why, e, "%s", err_text(e));
}

static enum err read_plain(struct bytes msg, struct msg_reply *m, struct why *why)
{
	struct bytes env;
	const uint8_t *tag;
	if (!env_split(msg, &env, &tag))
		return why_set(why, ERR_BAD_MESSAGE, "its answer is too short");
	struct dec d = DEC_INIT(env, NULL, why);
	enum err e = dec_reply(&d, m);
	if (e == ERR_NONE && m->session != 0)
		e = why_set(why, ERR_BAD_MESSAGE, "its answer belongs to a session");
	return e != ERR_NONE ? e : plain_status(m, why);
}

static void send_hello(struct rpc_client *cl, enum method method)
{
	struct env_parts out;
	struct msg_request m = {
		.v = cl->o.v_max,
		.method = method,
		.id = ++cl->next_id,
		.deadline_ms = cl->o.limits.handshake_ms,
		.body = buf_bytes(&cl->hello_out),
	};
	enum err e = env_request(&cl->out, &m, NULL, &out);
	if (e == ERR_NONE)
		e = client_target(cl)->engine->send(cl->peer, &cl->hx, out.p, out.n);
	if (e != ERR_NONE) /* down follows, or the timer */
		LOG_DEBUG(cl->o.log, "rpc", "peer=%s err=%s msg=\"HELLO not sent\"",
			  cl->o.peer_name, err_name(e));
}

static void session_up(struct rpc_client *cl)
{
	timer_stop(cl->loop, &cl->timer);
	if (cl->down_told)
		LOG_INFO(cl->o.log, "rpc", "peer=%s addr=%s msg=\"connected\"", cl->o.peer_name,
			 client_target(cl)->addr);
	cl->state = CL_UP;
	cl->down_told = false;
	cl->proven = false;
	cl->tries = cl->round = 0;
	cl->last = (struct why){ 0 };
	tell_state(cl, true);
	client_pump(cl);
}

static void on_welcome(struct rpc_client *cl, struct bytes body, struct why *why)
{
	struct auth_session fresh = { 0 };
	enum err e =
		hello_client_welcome(cl->hello, body, &fresh, &cl->server, &cl->theirs, why);
	if (e != ERR_NONE) {
		connect_failed(cl, e, why->text);
		return;
	}
	auth_session_fini(&cl->session);
	cl->session = fresh;
	session_up(cl);
}

static void on_challenge(struct rpc_client *cl, struct bytes body, struct why *why)
{
	buf_clear(&cl->hello_out);
	enum err e = hello_client_challenge(cl->hello, body, &cl->hello_out, why);
	if (e != ERR_NONE) {
		connect_failed(cl, e, why->text);
		return;
	}
	cl->state = CL_PROVE;
	send_hello(cl, METHOD_PROVE);
}

static void on_hello_answer(struct eng_xchg *x, enum err e, struct bytes msg)
{
	struct rpc_client *cl = container_of(x, struct rpc_client, hx);
	struct why why = { 0 };
	struct msg_reply m = { 0 };
	if (e != ERR_NONE)
		return; /* down follows */
	e = read_plain(msg, &m, &why);
	if (e == ERR_NONE && m.id != cl->next_id)
		return; /* of an earlier handshake on this connection */
	if (e != ERR_NONE)
		connect_failed(cl, e, why.text[0] ? why.text : err_text(e));
	else if (cl->state == CL_HELLO)
		on_challenge(cl, m.body, &why);
	else
		on_welcome(cl, m.body, &why);
}

void client_rehello(struct rpc_client *cl)
{
	buf_clear(&cl->hello_out);
	enum err e = hello_client_start(cl->hello, &cl->hello_out);
	cl->state = CL_HELLO;
	cl->hx.done = on_hello_answer;
	timer_start(cl->loop, &cl->timer,
		    clock_after_ms(loop_now_ns(cl->loop), cl->o.limits.handshake_ms),
		    on_hello_late);
	if (e == ERR_NONE)
		send_hello(cl, METHOD_HELLO);
}

/* ---- dialing ---- */

static void on_up(void *ctx)
{
	client_rehello(ctx);
}

static void on_down(void *ctx, enum err e, const char *text)
{
	struct rpc_client *cl = ctx;
	if (cl->state == CL_UP)
		client_break(cl, e, text);
	else
		connect_failed(cl, e, text);
}

static const struct eng_peer_events peer_events = { .up = on_up, .down = on_down };

static void dial(struct rpc_client *cl)
{
	const struct rpc_limits *l = &cl->o.limits;
	const struct target *t = client_target(cl);
	struct why why = { 0 };
	struct eng_dial_opts o = {
		.limits = { .message_bytes_max = l->message_bytes_max,
			    .anon_message_bytes_max = l->message_bytes_max,
			    .handshake_ms = l->handshake_ms,
			    .frame_ms = l->frame_ms,
			    .queue_bytes_max = l->queue_bytes_max,
			    .conn_queue_bytes_max = l->conn_queue_bytes_max,
			    .inside_bytes_max = l->inside_bytes_max },
		.addr = t->addr,
		.log = cl->o.log,
		.events = &peer_events,
		.ctx = cl,
		.tls = cl->o.tls,
	};
	cl->state = CL_DIAL;
	cl->tries++;
	cl->round++;
	enum err e = t->engine->dial(cl->loop, &o, &cl->peer, &why);
	if (e != ERR_NONE) {
		cl->peer = NULL;
		connect_failed(cl, is_refusal(e) ? ERR_UNREACHABLE : e, why.text);
	}
}

void client_kick(struct rpc_client *cl)
{
	if (cl->state == CL_IDLE && cl->n_waiting > 0)
		dial(cl);
}

/* ---- failure ---- */

static void on_backoff_over(struct timer *t)
{
	struct rpc_client *cl = container_of(t, struct rpc_client, timer);
	cl->refused = ERR_NONE;
	cl->state = CL_IDLE;
	cl->round = 0;
	client_kick(cl);
}

/* min..max doubling, each a quarter more or less: peers of one dead server come back spread. */
static void back_off(struct rpc_client *cl)
{
	uint32_t r;
	uint64_t ms = cl->backoff_ms ? cl->backoff_ms * 2 : cl->o.backoff_min_ms;
	cl->backoff_ms = MIN_OF(ms, (uint64_t)cl->o.backoff_max_ms);
	loop_random(cl->loop, &r, sizeof(r));
	uint64_t ns = cl->backoff_ms * NS_PER_MS, half = ns / 2;
	ns = ns - half / 2 + (half * r >> 32);
	cl->state = CL_BACKOFF;
	timer_start(cl->loop, &cl->timer, loop_now_ns(cl->loop) + ns, on_backoff_over);
}

static void log_down(struct rpc_client *cl)
{
	if (cl->down_told)
		return;
	cl->down_told = true;
	LOG_WARN(cl->o.log, "rpc", "peer=%s err=%s msg=\"%s\"", cl->o.peer_name,
		 err_name(cl->last.err), cl->last.text);
}

/* What stood, or was to stand, on this address is gone; the next address, or a pause. */
static void try_on(struct rpc_client *cl)
{
	cl->at = (cl->at + 1) % cl->n_targets;
	if (cl->refused != ERR_NONE || cl->round >= cl->n_targets) {
		enum err refused = cl->refused;
		back_off(cl);
		if (refused != ERR_NONE)
			client_fail_waiting(cl, refused);
		return;
	}
	cl->state = CL_IDLE;
	client_kick(cl);
}

static void connect_failed(struct rpc_client *cl, enum err e, const char *text)
{
	cl->last = (struct why){ 0 };
	why_set(&cl->last, e, "%s %s at %s: %s", step_of(cl), cl->o.peer_name,
		client_target(cl)->addr, text);
	log_down(cl);
	client_hangup(cl);
	if (is_refusal(e))
		cl->refused = e;
	cl->state = CL_IDLE;
	client_lose_sent(cl);
	tell_state(cl, false);
	if (cl->state == CL_IDLE) /* a callback may have closed us, or begun anew */
		try_on(cl);
}

void client_break(struct rpc_client *cl, enum err e, const char *text)
{
	bool proven = cl->proven; /* else it was no better than a failed try */
	cl->last = (struct why){ 0 };
	why_set(&cl->last, e, "connection to %s at %s: %s", cl->o.peer_name,
		client_target(cl)->addr, text);
	client_hangup(cl);
	cl->state = CL_IDLE;
	cl->round = proven ? 0 : 1;
	client_lose_sent(cl);
	tell_state(cl, false);
	if (cl->state != CL_IDLE)
		return;
	if (proven)
		client_kick(cl); /* the same address first: it was good */
	else
		try_on(cl);
}
