/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server: what comes from the engines is checked in the order of rpc.h I2 (session, tag and
 * window, version, deadline, method, role, limits), then a handler runs. Files: rpc_srv.h.
 */
#include "rpc/rpc_srv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- replies ---- */

/* Ends t with m; what cannot be encoded has been refused before. */
static void send_reply(struct side *sd, struct eng_token t, const struct msg_reply *m,
		       struct auth_session *auth)
{
	struct rpc_server *s = sd->server;
	struct env_parts out;
	if (env_reply(&s->out, m, auth, &out) != ERR_NONE) {
		sd->e->drop(sd->s, t);
		return;
	}
	s->c.replies++;
	s->c.errors += m->status != ERR_NONE;
	sd->e->reply(sd->s, t, out.p, out.n);
}

void rpc_reply_plain(struct side *sd, struct eng_token t, uint64_t id, enum err status,
		     uint32_t retry_ms, struct bytes body)
{
	struct msg_reply m = { .v = WIRE_VERSION,
			       .id = id,
			       .status = status,
			       .retry_ms = retry_ms,
			       .body = body };
	send_reply(sd, t, &m, NULL);
}

/* ERROR_INFO of a reason, in memory of its own on the stack: b is the caller's. */
static struct bytes error_info(const struct rpc_server *s, struct buf *b, const char *text)
{
	struct msg_error_info info = {
		.text = BYTES_STR(text),
		.peer = BYTES_STR(s->o.name),
	};
	if (text[0])
		enc_error_info(b, &info);
	return buf_err(b) == ERR_NONE ? buf_bytes(b) : BYTES(NULL, 0);
}

void rpc_refuse_plain(struct side *sd, struct eng_token t, uint64_t id, uint32_t retry_ms,
		      enum err status, const char *text)
{
	struct buf b = BUF_INIT(ENV_INLINE);
	rpc_reply_plain(sd, t, id, status, retry_ms, error_info(sd->server, &b, text));
	buf_fini(&b);
}

/* A reply within session x; its sequence number is taken here (I4). */
static void reply_in(struct side *sd, struct eng_token t, struct session *x, uint64_t id,
		     enum err status, uint32_t retry_ms, struct bytes body)
{
	struct rpc_server *s = sd->server;
	struct msg_reply m = {
		.v = x->peer.wire_version,
		.session = x->auth.id,
		.id = id,
		.status = status,
		.retry_ms = retry_ms,
		.term = s->o.term ? s->o.term(s->o.ctx) : 0,
		.body = body,
	};
	if (auth_next_seq(&x->auth, &m.seq) == ERR_NONE)
		send_reply(sd, t, &m, &x->auth);
	else
		rpc_refuse_plain(sd, t, id, 0, ERR_STALE_SESSION, "");
}

static void refuse_in(struct side *sd, struct eng_token t, struct session *x, uint64_t id,
		      uint32_t retry_ms, enum err status, const char *text)
{
	struct buf b = BUF_INIT(ENV_INLINE);
	reply_in(sd, t, x, id, status, retry_ms, error_info(sd->server, &b, text));
	buf_fini(&b);
}

/* ---- slots ---- */

static struct slot *slot_take(struct rpc_server *s)
{
	struct list *n = list_pop_front(&s->free_slots);
	struct slot *x;
	if (n) {
		s->n_free--;
		return container_of(n, struct slot, node);
	}
	x = malloc(sizeof(*x));
	if (x)
		memset(x, 0, offsetof(struct slot, room));
	return x;
}

static void slot_give(struct rpc_server *s, struct slot *x)
{
	x->serial++;
	if (x->heap) {
		s->copied_bytes -= x->r.body.n;
		free(x->heap);
		x->heap = NULL;
	}
	list_del(&x->node);
	list_push_front(&s->free_slots, &x->node);
	s->n_free++;
}

/* A request outside the slots has no claim to keep its memory warm: what many parked left goes. */
static void slots_trim(struct rpc_server *s)
{
	while (s->n_free > s->o.limits.inflight_max) {
		struct list *n = list_pop_front(&s->free_slots);
		assert(n);
		free(container_of(n, struct slot, node));
		s->n_free--;
	}
}

static uint64_t parked_cost(const struct slot *x)
{
	return sizeof(*x) + (x->heap ? x->r.body.n : 0);
}

/* The request has its answer. */
static void slot_end(struct slot *x)
{
	struct rpc_server *s = x->r.server;
	if (x->parked) {
		uint64_t cost = parked_cost(x);
		x->session->n_parked--;
		x->session->parked_bytes -= cost;
		s->c.bytes_parked -= cost;
		s->c.parked--;
	} else {
		x->session->n_inside--;
		s->c.inflight--;
	}
	bool trim = x->parked;
	if (s->o.took)
		s->o.took(s->o.ctx, loop_now_ns(s->loop) - x->begin_ns);
	slot_give(s, x);
	if (trim)
		slots_trim(s);
}

void rpc_reply(struct rpc_req *r, enum err status, uint32_t retry_ms, struct bytes body)
{
	struct slot *x = container_of(r, struct slot, r);
	struct rpc_server *s = r->server;
	if (body.n + ENV_ROOM > s->o.limits.message_bytes_max) {
		struct why why = { 0 };
		why_set(&why, ERR_TOO_LARGE, "the answer has %zu bytes, a message at most %u",
			body.n, s->o.limits.message_bytes_max - ENV_ROOM);
		rpc_reply_why(r, &why, 0);
		return;
	}
	reply_in(x->side, x->token, x->session, r->id, status, retry_ms, body);
	slot_end(x);
}

void rpc_reply_why(struct rpc_req *r, const struct why *why, uint32_t retry_ms)
{
	struct buf b = BUF_INIT(ENV_INLINE);
	rpc_reply(r, why->err, retry_ms, error_info(r->server, &b, why->text));
	buf_fini(&b);
}

enum err rpc_park(struct rpc_req *r)
{
	struct slot *x = container_of(r, struct slot, r);
	struct rpc_server *s = r->server;
	uint64_t cost = parked_cost(x);
	if (x->parked)
		return ERR_NONE;
	if (s->c.bytes_parked + cost > s->o.limits.parked_bytes_max ||
	    x->session->parked_bytes + cost > s->o.limits.parked_peer_bytes_max)
		return ERR_BUSY;
	x->parked = true;
	x->session->n_inside--;
	x->session->n_parked++;
	x->session->parked_bytes += cost;
	s->c.inflight--;
	s->c.parked++;
	s->c.bytes_parked += cost;
	return ERR_NONE;
}

/* ---- requests ---- */

static const struct rpc_method *method_of(const struct rpc_server *s, uint32_t number)
{
	uint32_t i = number < METHOD_MAX ? s->by_number[number] : 0;
	return i ? &s->methods[i - 1] : NULL;
}

/* The body must outlive this call: small ones in the slot, larger ones on the heap, counted. */
static bool keep_body(struct rpc_server *s, struct slot *x, struct bytes body)
{
	x->r.body = body;
	if (body.n == 0)
		return true;
	if (body.n <= SLOT_INLINE) {
		memcpy(x->room, body.p, body.n);
		x->r.body.p = x->room;
		return true;
	}
	if (s->copied_bytes + body.n > s->o.limits.inside_bytes_max)
		return false;
	x->heap = malloc(body.n);
	if (!x->heap)
		return false;
	memcpy(x->heap, body.p, body.n);
	x->r.body.p = x->heap;
	s->copied_bytes += body.n;
	return true;
}

struct incoming {
	struct side *side;
	struct eng_conn *conn;
	struct eng_token token;
	struct session *session;
	const struct msg_request *q;
	enum eng_life life;
};

static void run(const struct incoming *in, const struct rpc_method *m, uint64_t now_ns)
{
	struct rpc_server *s = in->side->server;
	struct session *ses = in->session;
	struct slot *x = slot_take(s);
	if (x && (m->sync || in->life == ENG_STABLE)) {
		x->r.body = in->q->body;
	} else if (!x || !keep_body(s, x, in->q->body)) {
		if (x)
			slot_give(s, x);
		s->c.busy++;
		refuse_in(in->side, in->token, ses, in->q->id, BUSY_RETRY_MS, ERR_BUSY,
			  "the bytes of requests inside are at their limit "
			  "(inside_bytes_max)");
		return;
	}
	x->r.peer = &ses->peer;
	x->r.server = s;
	x->r.method = in->q->method;
	x->r.shard = in->q->shard;
	x->r.id = in->q->id;
	x->r.deadline_ns = clock_after_ms(now_ns, in->q->deadline_ms);
	x->begin_ns = now_ns;
	x->r.user = NULL;
	x->r.gone = NULL;
	x->side = in->side;
	x->token = in->token;
	x->session = ses;
	x->parked = false;
	ses->n_inside++;
	s->c.inflight++;
	uint64_t serial = x->serial;
	m->fn(m->ctx, &x->r);
	if (x->serial == serial) {
		assert(!m->sync); /* its body goes now: rpc_method.sync */
		list_push_back(&in->conn->requests, &x->node);
	}
}

/* Why this request, though authentic, is not run. ERR_NONE: it may. */
static enum err admit(const struct incoming *in, const struct rpc_method *m, uint32_t *retry_ms,
		      const char **text)
{
	struct rpc_server *s = in->side->server;
	const struct rpc_limits *lim = &s->o.limits;
	*retry_ms = 0;
	*text = "";
	if (in->q->v != in->session->peer.wire_version) {
		*text = "the message's wire version is not the session's";
		return ERR_VERSION_MISMATCH;
	}
	if (in->q->deadline_ms == 0) {
		s->c.expired++;
		*text = "the deadline had passed before the request was read";
		return ERR_TIMED_OUT;
	}
	if (s->draining) {
		*text = "it is draining";
		return ERR_SHUTTING_DOWN;
	}
	if (!m)
		return ERR_UNKNOWN_METHOD;
	if (!(m->roles >> in->session->peer.role & 1))
		return ERR_FORBIDDEN;
	*retry_ms = BUSY_RETRY_MS;
	if (in->session->n_inside >= lim->inflight_peer_max) {
		s->c.busy++;
		*text = "this peer's requests inside are at their limit (inflight_peer_max)";
		return ERR_BUSY;
	}
	if (s->c.inflight >= lim->inflight_max) {
		s->c.busy++;
		*text = "requests inside are at their limit (inflight_max)";
		return ERR_BUSY;
	}
	return ERR_NONE;
}

static void refuse_admit(const struct incoming *in, const struct rpc_method *m, enum err e,
			 uint32_t retry_ms, const char *text)
{
	char line[160];
	if (e == ERR_UNKNOWN_METHOD)
		snprintf(line, sizeof(line), "method %u is not known here", in->q->method);
	else if (e == ERR_FORBIDDEN)
		snprintf(line, sizeof(line), "role %s may not call %s",
			 role_name(in->session->peer.role), m->name);
	else
		snprintf(line, sizeof(line), "%s", text);
	refuse_in(in->side, in->token, in->session, in->q->id, retry_ms, e, line);
}

static void authentic(const struct incoming *in)
{
	struct rpc_server *s = in->side->server;
	const struct rpc_method *m = method_of(s, in->q->method);
	uint32_t retry_ms;
	const char *text;
	s->c.requests++;
	session_touch(s, in->session, in->conn);
	if (!in->conn->known)
		in->side->e->known(in->side->s, in->conn);
	enum err e = admit(in, m, &retry_ms, &text);
	if (e != ERR_NONE) {
		refuse_admit(in, m, e, retry_ms, text);
		return;
	}
	run(in, m, loop_now_ns(s->loop));
}

/* Not from a session of ours, or tampered with: refused in the open, one line a site (log.h). */
static void not_authentic(const struct incoming *in, enum err e)
{
	struct rpc_server *s = in->side->server;
	char from[96];
	in->side->e->conn_name(in->conn, from, sizeof(from));
	s->c.bad_macs += e == ERR_UNAUTHENTICATED;
	s->c.replays += e == ERR_REPLAYED;
	if (e != ERR_STALE_SESSION)
		LOG_WARN(s->o.log, "rpc",
			 "peer=\"%s\" session=%u seq=%" PRIu64 " err=%s msg=\"%s; refused\"",
			 from, in->q->session, in->q->seq, err_name(e),
			 e == ERR_REPLAYED ? "a message came twice or far too late"
					   : "a message's tag does not match its session");
	rpc_refuse_plain(in->side, in->token, in->q->id, 0, e, "");
}

/* The reason is found by decoding once more: the good case has no use for its memory. */
static void bad_message(struct side *sd, struct eng_conn *c, struct eng_token t,
			struct bytes env)
{
	struct rpc_server *s = sd->server;
	struct why why = { 0 };
	struct msg_request q;
	char from[96];
	struct dec d = DEC_INIT(env, NULL, &why);
	if (env.n == 0 || dec_request(&d, &q) == ERR_NONE)
		why_set(&why, ERR_BAD_MESSAGE, "too short for an envelope and its tag");
	sd->e->conn_name(c, from, sizeof(from));
	s->c.bad_frames++;
	LOG_WARN(s->o.log, "rpc", "peer=\"%s\" err=BAD_MESSAGE msg=\"%s; connection closed\"",
		 from, why.text);
	sd->e->drop(sd->s, t);
}

static void on_request(void *ctx, struct eng_conn *c, struct eng_token t, struct bytes msg,
		       enum eng_life life)
{
	struct side *sd = ctx;
	struct rpc_server *s = sd->server;
	struct msg_request q;
	struct bytes env = BYTES(NULL, 0);
	const uint8_t *tag;
	bool ok = env_split(msg, &env, &tag);
	struct dec d = DEC_INIT(env, NULL, NULL);
	if (!ok || dec_request(&d, &q) != ERR_NONE) {
		bad_message(sd, c, t, env);
		return;
	}
	struct incoming in = { sd, c, t, NULL, &q, life };
	if (s->closing) {
		rpc_refuse_plain(sd, t, q.id, 0, ERR_SHUTTING_DOWN, "");
		return;
	}
	if (q.session == 0) {
		session_hello(sd, c, t, &q);
		return;
	}
	in.session = session_find(s, q.session);
	enum err e =
		in.session ? env_check(&in.session->auth, q.seq, env, tag) : ERR_STALE_SESSION;
	if (e == ERR_NONE)
		authentic(&in);
	else
		not_authentic(&in, e);
}

static void on_closed(void *ctx, struct eng_conn *c)
{
	struct side *sd = ctx;
	struct list *n;
	while ((n = list_pop_front(&c->requests))) {
		struct slot *x = container_of(n, struct slot, node);
		if (x->r.gone)
			x->r.gone(&x->r);
	}
	sessions_conn_closed(sd->server, c);
}

const struct eng_server_events rpc_server_events = {
	.request = on_request,
	.closed = on_closed,
};

/* ---- the server ---- */

static void server_free(struct rpc_server *s)
{
	list_for_each_safe (n, &s->free_slots)
		free(container_of(n, struct slot, node));
	sessions_fini(s);
	buf_fini(&s->out);
	free(s->methods);
	free(s);
}

static void copy_opts(struct rpc_server *s, const struct rpc_server_opts *o)
{
	s->o = *o;
	rpc_limits_default(&s->o.limits);
	s->o.limits.sessions_max = MIN_OF(s->o.limits.sessions_max, SESSIONS_CAP);
	s->o.v_min = o->v_min ? o->v_min : WIRE_VERSION_MIN;
	s->o.v_max = o->v_max ? o->v_max : WIRE_VERSION;
	memcpy(s->instance, o->instance, sizeof(s->instance));
	s->o.instance = s->instance;
	if (o->holder) {
		strncpy(s->holder, o->holder, HOLDER_MAX);
		s->o.holder = s->holder;
	}
}

enum err rpc_server_new(struct loop *l, const struct rpc_server_opts *o,
			struct rpc_server **out)
{
	struct rpc_server *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->loop = l;
	copy_opts(s, o);
	list_init(&s->free_slots);
	s->out = BUF_INIT(2 * (ENV_ROOM + ENV_INLINE));
	enum err e = sessions_init(s);
	if (e != ERR_NONE) {
		server_free(s);
		return e;
	}
	*out = s;
	return ERR_NONE;
}

void rpc_server_add(struct rpc_server *s, const struct rpc_method *rows, size_t n)
{
	struct rpc_method *m = realloc(s->methods, (s->n_methods + n) * sizeof(*m));
	assert(m && s->n_sides == 0);
	s->methods = m;
	for (size_t i = 0; i < n; i++) {
		assert(rows[i].number < METHOD_MAX && s->by_number[rows[i].number] == 0);
		m[s->n_methods++] = rows[i];
		s->by_number[rows[i].number] = (uint16_t)s->n_methods;
	}
}

static struct eng_limits engine_limits(const struct rpc_limits *l)
{
	return (struct eng_limits){
		.message_bytes_max = l->message_bytes_max,
		.anon_message_bytes_max = MIN_OF(l->message_bytes_max, 4096u),
		.conns_max = l->conns_max,
		.conns_anon_max = l->conns_anon_max,
		.handshake_ms = l->handshake_ms,
		.frame_ms = l->frame_ms,
		.queue_bytes_max = l->queue_bytes_max,
		.conn_queue_bytes_max = l->conn_queue_bytes_max,
		.inside_bytes_max = l->inside_bytes_max,
	};
}

/* The side of engine e, made by its first address. */
static enum err side_of(struct rpc_server *s, const struct engine *e, struct side **out)
{
	for (uint32_t i = 0; i < s->n_sides; i++) {
		if (s->sides[i].e == e) {
			*out = &s->sides[i];
			return ERR_NONE;
		}
	}
	assert(s->n_sides < ENGINES_MAX);
	struct side *sd = &s->sides[s->n_sides];
	*sd = (struct side){ .server = s, .e = e };
	struct eng_server_opts o = {
		.limits = engine_limits(&s->o.limits),
		.log = s->o.log,
		.counters = &s->c,
		.events = &rpc_server_events,
		.ctx = sd,
		.tls = s->o.tls,
	};
	enum err r = e->server_new(s->loop, &o, &sd->s);
	if (r != ERR_NONE)
		return r;
	s->n_sides++;
	*out = sd;
	return ERR_NONE;
}

enum err rpc_server_listen(struct rpc_server *s, const char *addr, char *bound,
			   size_t bound_size, struct why *why)
{
	struct side *sd;
	if (s->draining)
		return why_set(why, ERR_SHUTTING_DOWN, "listen on %.160s: the server drains",
			       addr);
	const struct engine *e = engine_pick(s->o.engine, addr, why);
	if (!e)
		return ERR_INVALID_PARAMS;
	enum err r = side_of(s, e, &sd);
	if (r != ERR_NONE)
		return why_set(why, r, "listen on %.160s: the %s engine: %s", addr, e->name,
			       err_text(r));
	return e->listen(sd->s, addr, bound, bound_size, why);
}

void rpc_server_drain(struct rpc_server *s)
{
	if (s->draining)
		return;
	s->draining = true;
	for (uint32_t i = 0; i < s->n_sides; i++)
		s->sides[i].e->drain(s->sides[i].s);
}

uint64_t rpc_server_inflight(const struct rpc_server *s)
{
	return s->c.inflight + s->c.parked;
}

void rpc_server_counters(const struct rpc_server *s, struct rpc_counters *out)
{
	*out = s->c;
}

static void all_closed(struct post *p)
{
	struct rpc_server *s = container_of(p, struct rpc_server, post);
	void (*closed)(void *arg) = s->closed;
	void *arg = s->arg;
	server_free(s);
	if (closed)
		closed(arg);
}

static void side_closed(void *arg)
{
	struct rpc_server *s = ((struct side *)arg)->server;
	if (--s->n_open > 0)
		return;
	s->post.fn = all_closed;
	loop_defer(s->loop, &s->post);
}

void rpc_server_close(struct rpc_server *s, void (*closed)(void *arg), void *arg)
{
	assert(rpc_server_inflight(s) == 0);
	rpc_server_drain(s);
	s->closing = true;
	s->closed = closed;
	s->arg = arg;
	s->n_open = s->n_sides + 1;
	for (uint32_t i = 0; i < s->n_sides; i++)
		s->sides[i].e->server_close(s->sides[i].s, SERVER_FLUSH_MS, side_closed,
					    &s->sides[i]);
	side_closed(&(struct side){ .server = s });
}
