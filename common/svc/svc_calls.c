/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods every service answers (proto/common.def): VERSION STATUS ECHO CONFIG DRAIN LOG_LEVEL.
 */
#include "svc/svc_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/messages.h"

/* Lists in a request of these methods: there are none, but unknown fields may come. */
#define ARENA_BYTES (64u << 10)

void svc_reply(struct rpc_req *r, struct buf *b)
{
	if (buf_err(b))
		svc_refuse(r, buf_err(b), "%s: the answer is larger than a message",
			   method_name(r->method));
	else
		rpc_reply(r, ERR_NONE, 0, buf_bytes(b));
	buf_fini(b);
}

void svc_refuse(struct rpc_req *r, enum err e, const char *fmt, ...)
{
	struct why why = { .err = e };
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why.text, sizeof(why.text), fmt, ap);
	va_end(ap);
	rpc_reply_why(r, &why, 0);
}

/* ---- VERSION ---- */

static void on_version(void *ctx, struct rpc_req *r)
{
	struct msg_version_rep m = { .release = BYTES_STR(POMELO_VERSION),
				     .v_min = WIRE_VERSION_MIN,
				     .v_max = WIRE_VERSION };
	struct buf b = BUF_INIT(4096);
	enc_version_rep(&b, &m);
	svc_reply(r, &b);
}

/* ---- STATUS ---- */

struct status_room {
	struct svc_reasons reasons;
	struct bytes reason[SVC_REASONS_MAX], rpc[SVC_ADDRS_MAX];
	struct buf text; /* of the metrics */
	struct msg_counter *counters;
	size_t n_counters;
};

/* "name{labels} value" lines of the scrape, comments left out. */
static void counters_parse(struct status_room *room)
{
	size_t lines = 0;
	const char *p = (const char *)room->text.p, *end = p + room->text.n;
	for (const char *q = p; q < end; q++)
		lines += *q == '\n';
	room->counters = calloc(lines + 1, sizeof(*room->counters));
	for (; room->counters && p < end; p++) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		const char *sp = memrchr(p, ' ', (size_t)(nl - p));
		if (*p != '#' && sp)
			room->counters[room->n_counters++] =
				(struct msg_counter){ .name = BYTES(p, sp - p),
						      .value = strtod(sp + 1, NULL) };
		p = nl;
	}
}

static void status_lists(struct svc *s, bool counters, struct status_room *room,
			 struct msg_status_rep *m)
{
	svc_reasons(s, &room->reasons);
	for (size_t i = 0; i < room->reasons.n; i++)
		room->reason[i] = BYTES_STR(room->reasons.text[i]);
	for (size_t i = 0; i < s->n_addrs; i++)
		room->rpc[i] = BYTES_STR(s->addrs[i]);
	m->ready = room->reasons.n == 0;
	m->reasons = (struct bytes_list){ room->reason, room->reasons.n };
	m->rpc = (struct bytes_list){ room->rpc, s->n_addrs };
	if (!counters)
		return;
	room->text = BUF_INIT(WIRE_MESSAGE_MAX);
	svc_metrics_print(s, &room->text);
	if (buf_err(&room->text) == ERR_NONE)
		counters_parse(room);
	m->counters = (struct list_counter){ room->counters, MIN_OF(room->n_counters, 4096) };
}

static void on_status(void *ctx, struct rpc_req *r)
{
	struct svc *s = ctx;
	struct msg_status_req q;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_status_req(&d, &q) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	struct status_room room = { 0 };
	struct msg_status_rep m = {
		.service = BYTES_STR(s->def->name),
		.pid = loop_uv(s->loop) ? (uint64_t)getpid() : 0,
		.release = BYTES_STR(POMELO_VERSION),
		.draining = svc_stopping(s),
		.uptime_ms = (loop_now_ns(s->loop) - s->started_ns) / NS_PER_MS,
		.rss_bytes = loop_uv(s->loop) ? svc_rss_bytes() : 0,
		.term = s->def->term ? s->def->term(s) : 0,
		.http = BYTES_STR(svc_http_addr(s)),
	};
	memcpy(m.instance, s->instance, sizeof(m.instance));
	status_lists(s, q.counters, &room, &m);
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_status_rep(&b, &m);
	svc_reply(r, &b);
	buf_fini(&room.text);
	free(room.counters);
}

/* ---- ECHO: at once, or parked for park_ms ----
 *
 *   (park, waits) --time is up--> (reply) --> done
 *                 --cancelled, deadline, peer gone--^
 */

enum { ECHO_PARK, ECHO_REPLY };

struct echo {
	struct op op;
	struct rpc_req *req;
	struct bytes data; /* in the request's body */
	uint64_t due_ns;
	struct timer timer;
};

static void echo_answer(struct rpc_req *r, struct bytes data)
{
	struct msg_echo m = { .data = data };
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_echo(&b, &m);
	svc_reply(r, &b);
}

static void echo_due(struct timer *t)
{
	op_resume(&container_of(t, struct echo, timer)->op);
}

static int echo_park(struct op *op)
{
	struct echo *e = container_of(op, struct echo, op);
	if (op_first(op) && op->err == ERR_NONE) {
		timer_start(op->loop, &e->timer, e->due_ns, echo_due);
		return OP_WAIT;
	}
	return ECHO_REPLY;
}

static void echo_unpark(struct op *op)
{
	struct echo *e = container_of(op, struct echo, op);
	timer_start(op->loop, &e->timer, loop_now_ns(op->loop), echo_due);
}

static int echo_reply(struct op *op)
{
	struct echo *e = container_of(op, struct echo, op);
	if (op->err)
		rpc_reply_why(e->req, &op->why, 0);
	else
		echo_answer(e->req, e->data);
	return OP_DONE;
}

static const struct op_step echo_steps[] = {
	[ECHO_PARK] = { "park", echo_park, TO(ECHO_REPLY), .waits = true, .stop = echo_unpark },
	[ECHO_REPLY] = { "reply", echo_reply, TO(OP_DONE) },
};
OP_TABLE(echo_table, "common.echo", echo_steps);

static void echo_done(struct op *op)
{
	free(container_of(op, struct echo, op));
}

static void echo_gone(struct rpc_req *r)
{
	op_cancel(&((struct echo *)r->user)->op);
}

static enum err echo_start(struct svc *s, struct rpc_req *r, const struct msg_echo *m)
{
	enum err err = rpc_park(r);
	if (err)
		return err;
	struct echo *e = calloc(1, sizeof(*e));
	if (!e)
		return ERR_NO_MEMORY;
	e->req = r;
	e->data = m->data;
	e->due_ns = clock_after_ms(loop_now_ns(s->loop), m->park_ms);
	e->op = (struct op){ .table = &echo_table,
			     .loop = s->loop,
			     .set = &s->ops,
			     .deadline_ns = r->deadline_ns,
			     .done = echo_done };
	r->user = e;
	r->gone = echo_gone;
	err = op_start(&e->op);
	if (err) {
		r->gone = NULL;
		free(e);
	}
	return err;
}

static void on_echo(void *ctx, struct rpc_req *r)
{
	struct svc *s = ctx;
	struct msg_echo m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_echo(&d, &m) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	if (m.park_ms == 0) {
		echo_answer(r, m.data);
		return;
	}
	enum err e = echo_start(s, r, &m);
	if (e)
		svc_refuse(r, e, "ECHO: no room to park: %s", err_text(e));
}

/* ---- CONFIG ---- */

struct config_room {
	struct buf text; /* every string, one after the other */
	struct msg_setting *settings;
	struct bytes *notices;
	size_t n;
};

/* conf_show's texts live until the next one: they are copied, and pointed at once the copy is whole
 * and stays where it is. Offsets travel in `p` until then. */
static struct bytes keep(struct buf *text, const char *s)
{
	struct bytes at = { (const uint8_t *)(uintptr_t)text->n, strlen(s) };
	buf_put(text, s, at.n);
	return at;
}

static void settle(struct bytes *b, const struct buf *text)
{
	b->p = text->p + (uintptr_t)b->p;
}

static void config_collect(struct svc *s, struct bytes prefix, struct config_room *room)
{
	size_t n = conf_count(s->settings);
	room->text = BUF_INIT(WIRE_MESSAGE_MAX);
	room->settings = calloc(n + 1, sizeof(*room->settings));
	for (size_t i = 0; i < n && room->settings; i++) {
		struct conf_shown v;
		conf_show(s->settings, i, &v);
		if (strlen(v.name) < prefix.n ||
		    (prefix.n && memcmp(v.name, prefix.p, prefix.n) != 0))
			continue;
		room->settings[room->n++] =
			(struct msg_setting){ .name = keep(&room->text, v.name),
					      .value = keep(&room->text, v.value),
					      .origin = keep(&room->text, v.origin),
					      .text = keep(&room->text, v.doc) };
	}
	for (size_t i = 0; i < room->n && buf_err(&room->text) == ERR_NONE; i++) {
		struct msg_setting *m = &room->settings[i];
		settle(&m->name, &room->text);
		settle(&m->value, &room->text);
		settle(&m->origin, &room->text);
		settle(&m->text, &room->text);
	}
}

static size_t config_notices(const struct svc *s, struct config_room *room)
{
	const struct conf_notice *v;
	size_t n = MIN_OF(conf_notices(s->settings, &v), 1024);
	room->notices = calloc(n + 1, sizeof(*room->notices));
	for (size_t i = 0; i < n && room->notices; i++)
		room->notices[i] = BYTES(v[i].text, MIN_OF(strlen(v[i].text), 512));
	return n;
}

static void on_config(void *ctx, struct rpc_req *r)
{
	struct svc *s = ctx;
	struct msg_config_req q;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_config_req(&d, &q) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	struct config_room room = { 0 };
	config_collect(s, q.prefix, &room);
	size_t n_notices = config_notices(s, &room);
	if (!room.settings || !room.notices || buf_err(&room.text)) {
		svc_refuse(r, ERR_NO_MEMORY, "CONFIG: no memory for the answer");
	} else {
		struct msg_config_rep m = { .settings = { room.settings, room.n },
					    .notices = { room.notices, n_notices } };
		struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
		enc_config_rep(&b, &m);
		svc_reply(r, &b);
	}
	buf_fini(&room.text);
	free(room.settings);
	free(room.notices);
}

/* ---- DRAIN ---- */

static void on_drain(void *ctx, struct rpc_req *r)
{
	struct svc *s = ctx;
	struct msg_drain_req q;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_drain_req(&d, &q) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	struct msg_drain_rep m = { .inflight = rpc_server_inflight(s->rpc) - 1 };
	struct buf b = BUF_INIT(256);
	enc_drain_rep(&b, &m);
	LOG_INFO(&s->log, "stop", "drain asked by role=%u session=%u", r->peer->role,
		 r->peer->session);
	svc_reply(r, &b);
	svc_stop(s, q.grace_ms ? q.grace_ms : s->conf.grace_ms);
}

/* ---- LOG_LEVEL ---- */

static const char *const level_names[] = { "error", "warn", "info", "debug" };

static void on_log_level(void *ctx, struct rpc_req *r)
{
	struct svc *s = ctx;
	struct msg_log_level_req q;
	char text[17] = "";
	enum log_level level = log_get_level(), before = level;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_log_level_req(&d, &q) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	memcpy(text, q.level.p ? (const char *)q.level.p : "", q.level.n);
	if (q.level.n > 0 && !log_level_parse(text, &level)) {
		svc_refuse(r, ERR_INVALID_PARAMS, "level: one of error warn info debug");
		return;
	}
	if (level != before) {
		log_set_level(level);
		LOG_WARN(&s->log, "log", "level=%s was=%s", level_names[level],
			 level_names[before]);
	}
	struct msg_log_level_rep m = { .level = BYTES_STR(level_names[before]) };
	struct buf b = BUF_INIT(256);
	enc_log_level_rep(&b, &m);
	svc_reply(r, &b);
}

/* ---- the rows; who may call is proto/common.def's column ---- */

/* clang-format off */
#define ROLES_OF(NAME, num, req, rep, allowed, idem, policy, doc) ROLES_OF_##NAME = (allowed),
enum { COMMON_METHODS(ROLES_OF) };
#define ROW(NAME, handler, at_once) \
	{ .number = METHOD_##NAME, .name = #NAME, .roles = ROLES_OF_##NAME, .fn = (handler), .sync = (at_once) }
const struct rpc_method svc_calls[] = {
	ROW(VERSION,   on_version,   true),
	ROW(STATUS,    on_status,    true),
	ROW(ECHO,      on_echo,      false),
	ROW(CONFIG,    on_config,    true),
	ROW(DRAIN,     on_drain,     true),
	ROW(LOG_LEVEL, on_log_level, true),
};
/* clang-format on */
const size_t svc_n_calls = ARRAY_LEN(svc_calls);
