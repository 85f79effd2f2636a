/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a service. The shutdown is style.md section 3's, in steps that each wait for the one
 * before:
 *
 *   1 DRAINING    no new requests (rpc_server_drain, the drain hook); ops end by themselves
 *   2 CANCELLING  the grace is over: every op is cancelled, and ends through OP_DONE all the same
 *   3 FLUSHING    no op is alive, no request inside: jobs nobody waits for are cancelled, the close
 *                 hook flushes and ends the service's own producers
 *   4 CLOSING     beats, workers, HTTP, request server close; then files and locks go
 *
 * After a failed svc_open only step 4 runs, over what was opened by then.
 */
#include "svc/svc_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json_out.h"
#include "loop/pool.h"
#include "rpc/addr.h"
#include "rpc/auth.h"
#include "svc/beat.h"

/* How often a draining service looks whether it is done; a stop of an idle one takes one or two. */
#define TICK_NS	    (5 * NS_PER_MS)
/* What outlives its grace by so long is logged, again and again: a bug, or a dead disk. */
#define COMPLAIN_NS (5 * NS_PER_S)

/* ---- readiness ---- */

void svc_reason(struct svc_reasons *r, const char *fmt, ...)
{
	va_list ap;
	if (r->n == SVC_REASONS_MAX)
		return;
	va_start(ap, fmt);
	vsnprintf(r->text[r->n++], SVC_REASON_MAX, fmt, ap);
	va_end(ap);
}

/* Silence of the master counts after suspect_ms, the time after which it thinks us gone, too. */
static bool master_hears(const struct svc *s, uint64_t last_ack_ns)
{
	uint64_t now = loop_now_ns(s->loop);
	if (!s->def->needs_master)
		return true;
	return last_ack_ns && now - MIN_OF(last_ack_ns, now) <= s->conf.suspect_ms * NS_PER_MS;
}

static void beat_reasons(const struct svc *s, struct svc_reasons *r)
{
	struct beat_sender_counters c;
	if (!s->beats)
		return;
	beat_sender_counters(s->beats, &c);
	if (master_hears(s, c.last_ack_ns))
		return;
	if (c.last_ack_ns == 0)
		svc_reason(r, "master: no beat acknowledged");
	else
		svc_reason(r, "master: no beat acknowledged for %" PRIu64 " ms",
			   (uint64_t)((loop_now_ns(s->loop) - c.last_ack_ns) / NS_PER_MS));
}

void svc_reasons(struct svc *s, struct svc_reasons *out)
{
	out->n = 0;
	if (svc_stopping(s))
		svc_reason(out, "draining");
	svc_conf_reasons(s, out);
	if (s->def->reasons && s->opened)
		s->def->reasons(s, out);
	s->ready = out->n == 0; /* the beat adds the master's part by itself */
	beat_reasons(s, out);
}

bool svc_ready_json(struct svc *s, struct buf *out)
{
	struct svc_reasons r;
	struct json j = JSON_OUT(out);
	svc_reasons(s, &r);
	json_obj(&j);
	json_kv_bool(&j, "ready", r.n == 0);
	json_key(&j, "reasons");
	json_arr(&j);
	for (size_t i = 0; i < r.n; i++)
		json_str(&j, r.text[i]);
	json_end(&j);
	json_end(&j);
	return r.n == 0;
}

/* ---- what the parts call ---- */

static bool on_http_ready(void *ctx, struct buf *out)
{
	bool ready = svc_ready_json(ctx, out);
	buf_put(out, "\n", 1);
	return ready;
}

static void on_http_metrics(void *ctx, struct buf *out)
{
	svc_metrics_print(ctx, out);
}

static uint64_t on_term(void *ctx)
{
	struct svc *s = ctx;
	return s->def->term && s->opened ? s->def->term(s) : 0;
}

/* The beat's thread: relaxed counters only. */
static void on_news(void *ctx, uint64_t last_ack_ns, struct beat_news *out)
{
	const struct svc *s = ctx;
	*out = (struct beat_news){
		.loop_turns = __atomic_load_n(&s->loop->turns, __ATOMIC_RELAXED),
		.pool_done = pool_progress(s->pool),
		.pool_queued = s->pool_queued,
		.pid = loop_uv(s->loop) ? (uint32_t)getpid() : 0,
		.ready = s->ready && master_hears(s, last_ack_ns),
		.pool_epoch = s->def->pool_epoch ? s->def->pool_epoch(s) : 0,
	};
}

static void on_ping(void *ctx, uint64_t late_ns)
{
	struct svc *s = ctx;
	struct svc_reasons r;
	svc_metrics_late(s, late_ns);
	s->pool_queued = pool_queued(s->pool);
	svc_reasons(s, &r); /* keeps s->ready fresh for the next beat */
}

const char *svc_http_addr(const struct svc *s)
{
	return s->http ? http_addr(s->http) : "";
}

/* ---- open ---- */

static enum err open_pool(struct svc *s, struct why *why)
{
	enum err e = pool_new(s->loop,
			      &(struct pool_opts){ .name = s->def->name,
						   .n_threads = s->conf.workers,
						   .depth = s->conf.worker_queue },
			      &s->pool);
	return e ? why_set(why, e, "%s.workers = %u: the threads did not start: %s",
			   s->def->name, s->conf.workers, err_text(e))
		 : e;
}

static enum err open_metrics(struct svc *s)
{
	enum err e = metrics_new(&svc_metric_schema, &s->shared_metrics);
	if (e == ERR_NONE && s->def->metrics)
		e = metrics_new(s->def->metrics, &s->metrics);
	return e;
}

static void add_methods(struct svc *s, const struct rpc_method *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct rpc_method m = rows[i];
		m.ctx = m.ctx ? m.ctx : s;
		rpc_server_add(s->rpc, &m, 1);
	}
}

static const char *null_if_empty(const char *text)
{
	return text[0] ? text : NULL;
}

static enum err open_rpc(struct svc *s, struct why *why)
{
	const struct svc_conf *c = &s->conf;
	struct rpc_server_opts o = {
		.limits = { .message_bytes_max = (uint32_t)c->message_max,
			    .conns_max = c->conns_max,
			    .inflight_max = c->inflight_max,
			    .inflight_peer_max = c->inflight_peer_max,
			    .queue_bytes_max = c->queue_bytes_max,
			    .parked_bytes_max = c->parked_bytes_max,
			    .sessions_max = c->sessions_max },
		.keys = s->keys,
		.log = &s->log,
		.instance = s->instance,
		.role = s->def->role,
		.name = s->def->name,
		.holder = s->def->role == ROLE_HOLDER ? s->id : NULL,
		.term = on_term,
		.took = svc_metrics_took,
		.ctx = s,
		.tls = { null_if_empty(c->tls_ca), null_if_empty(c->tls_cert),
			 null_if_empty(c->tls_key) },
	};
	enum err e = rpc_server_new(s->loop, &o, &s->rpc);
	if (e)
		return why_set(why, e, "%s: no request server: %s", s->def->name, err_text(e));
	add_methods(s, svc_calls, svc_n_calls);
	add_methods(s, s->def->methods, s->def->n_methods);
	return ERR_NONE;
}

static enum err open_http(struct svc *s, struct why *why)
{
	if (!loop_uv(s->loop))
		return ERR_NONE;
	struct http_opts o = {
		.log = &s->log,
		.bind = s->conf.http_bind,
		.port = (uint16_t)s->conf.http_port,
		.any_port_if_taken = conf_origin(s->settings, ".http_port") == CONF_DEFAULT,
		.ready = on_http_ready,
		.metrics = on_http_metrics,
		.ctx = s,
	};
	return http_open(s->loop, &o, &s->http, why);
}

static enum err listen_one(struct svc *s, const char *addr, struct why *why)
{
	enum err e = rpc_server_listen(s->rpc, addr, s->addrs[s->n_addrs], SVC_ADDR_MAX, why);
	s->n_addrs += e == ERR_NONE;
	return e;
}

static enum err open_listeners(struct svc *s, const struct svc_env *env, struct why *why)
{
	char ipc[SVC_PATH_MAX + 32];
	enum err e = ERR_NONE;
	if (env->n_listen > SVC_ADDRS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "%s: more than %d addresses",
			       s->def->name, SVC_ADDRS_MAX);
	for (size_t i = 0; i < env->n_listen && e == ERR_NONE; i++)
		e = listen_one(s, env->listen[i], why);
	if (env->n_listen > 0)
		return e;
	snprintf(ipc, sizeof(ipc), "ipc://%s/%s.sock", s->run_dir, s->def->name);
	e = listen_one(s, ipc, why);
	for (size_t i = 0; i < s->conf.listen.n && e == ERR_NONE; i++)
		e = listen_one(s, s->conf.listen.v[i], why);
	return e;
}

/* The masters: env's, masters', or the one of this data folder. */
static enum err find_masters(struct svc *s, const struct svc_env *env, struct why *why)
{
	char ipc[SVC_PATH_MAX + 32];
	const char *const local[] = { ipc };
	struct conf_list l = { env->masters, env->n_masters };
	snprintf(ipc, sizeof(ipc), "ipc://%s/master.sock", s->run_dir);
	if (l.n == 0)
		l = s->conf.masters;
	if (l.n == 0)
		l = (struct conf_list){ local, 1 };
	if (l.n > SVC_ADDRS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "masters: more than %d", SVC_ADDRS_MAX);
	for (size_t i = 0; i < l.n; i++) {
		if (strlen(l.v[i]) >= SVC_ADDR_MAX)
			return why_set(
				why, ERR_INVALID_PARAMS,
				"masters: %.80s...: an address has at most %d characters",
				l.v[i], SVC_ADDR_MAX - 1);
		memcpy(s->masters[s->n_masters++], l.v[i], strlen(l.v[i]) + 1);
	}
	return ERR_NONE;
}

static enum err open_beats(struct svc *s, struct why *why)
{
	char to[SVC_ADDRS_MAX][BEAT_ADDR_MAX], from[SVC_PATH_MAX + 40];
	const char *ptr[SVC_ADDRS_MAX];
	size_t n = s->n_masters;
	enum err e = ERR_NONE;
	for (size_t i = 0; i < n && e == ERR_NONE; i++) {
		e = beat_addr_of(s->masters[i], to[i], why);
		ptr[i] = to[i];
	}
	if (e)
		return e;
	if (loop_uv(s->loop))
		snprintf(from, sizeof(from), "unix:%s/%s.beat", s->run_dir, s->def->name);
	else
		snprintf(from, sizeof(from), "%.*s.beat", SVC_ADDR_MAX, s->addrs[0]);
	struct beat_sender_opts o = { .name = s->id,
				      .role = s->def->role,
				      .keys = s->keys,
				      .instance = s->instance,
				      .log = &s->log,
				      .to = ptr,
				      .n_to = n,
				      .from = from,
				      .beat_ms = (uint32_t)s->conf.beat_ms,
				      .news = on_news,
				      .ping = on_ping,
				      .ctx = s };
	return beat_sender_open(s->loop, &o, &s->beats, why);
}

/* Which failures lie in what a user wrote is kept by the error itself. */
static enum err open_all(struct svc *s, const struct svc_env *env, struct why *why)
{
	enum err e = svc_conf_load(s, env, why);
	if (e == ERR_NONE)
		e = svc_dirs_take(s, why);
	if (e == ERR_NONE)
		e = svc_keys_load(s, env, why);
	if (e)
		return e;
	loop_spin(s->loop, s->conf.spin_us, NULL);
	svc_id_make(s, env->n_listen ? env->listen[0] : "");
	if (conf_origin(s->settings, "log.level") != CONF_DEFAULT)
		log_set_level((enum log_level)s->conf.log_level);
	svc_conf_log(s);
	e = open_metrics(s);
	if (e == ERR_NONE)
		e = open_pool(s, why);
	if (e == ERR_NONE)
		e = open_rpc(s, why);
	if (e == ERR_NONE)
		e = open_http(s, why);
	if (e == ERR_NONE)
		e = open_listeners(s, env, why);
	if (e == ERR_NONE)
		e = find_masters(s, env, why);
	if (e == ERR_NONE && s->def->open)
		e = s->def->open(s, why);
	s->opened = e == ERR_NONE;
	if (e)
		return e;
	struct svc_reasons r;
	s->ops.limit = s->conf.ops_max;
	s->state = SVC_RUNNING;
	svc_reasons(s, &r); /* the first beat is to tell the truth, too */
	e = open_beats(s, why);
	return e ? e : svc_dirs_tell(s, why);
}

/* answers.md: one line at start naming the trust domain. */
static void log_start(const struct svc *s)
{
	char rpc[SVC_ADDRS_MAX * 48] = "";
	size_t n = 0;
	for (size_t i = 0; i < s->n_addrs && n < sizeof(rpc); i++)
		n += (size_t)snprintf(rpc + n, sizeof(rpc) - n, "%s%s", i ? "," : "",
				      s->addrs[i]);
	LOG_INFO(&s->log, "start",
		 "version=%s pid=%ld id=%s data=\"%s\" rpc=\"%s\" http=%s "
		 "trust=\"uid %u on this host and every holder of the secret\"",
		 POMELO_VERSION, loop_uv(s->loop) ? (long)getpid() : 0L, s->id, s->data_dir,
		 rpc, svc_http_addr(s), (unsigned)geteuid());
}

static void close_parts(struct svc *s);

enum err svc_open(struct svc *s, const struct svc_def *def, const struct svc_env *env,
		  struct why *why)
{
	struct why own = { 0 };
	assert(def->size >= sizeof(struct svc));
	memset(s, 0, def->size);
	s->def = def;
	s->loop = env->loop;
	s->log = (struct log){ .svc = def->name, .clock = env->loop->clock, .fd = 2 };
	if (env->log)
		log_set_capture(&s->log, env->log);
	s->lock_fd = -1;
	s->meta_fs = env->meta_fs;
	s->backing = env->backing;
	s->fetch = env->fetch;
	s->fetch_ctx = env->fetch_ctx;
	s->closed = env->closed;
	s->closed_arg = env->arg;
	s->started_ns = loop_now_ns(s->loop);
	loop_random(s->loop, s->instance, sizeof(s->instance));
	op_set_init(&s->ops, UINT32_MAX);
	enum err e = open_all(s, env, &own);
	if (e == ERR_NONE) {
		log_start(s);
		return ERR_NONE;
	}
	s->state = SVC_FAILED;
	why_set(why, e, "%s", own.err ? own.text : err_text(e));
	svc_stop(s, 0);
	return e;
}

/* ---- stop ---- */

static void on_tick(struct timer *t);

static void tick_soon(struct svc *s)
{
	timer_start(s->loop, &s->tick, loop_now_ns(s->loop) + TICK_NS, on_tick);
}

void svc_stop(struct svc *s, uint64_t grace_ms)
{
	uint64_t now = loop_now_ns(s->loop), end = clock_after_ms(now, grace_ms);
	if (s->state >= SVC_DRAINING) {
		s->grace_end_ns = MIN_OF(s->grace_end_ns, end);
		return;
	}
	if (s->state == SVC_RUNNING)
		LOG_INFO(&s->log, "stop", "inside=%" PRIu64 " ops=%u grace_ms=%" PRIu64,
			 rpc_server_inflight(s->rpc), s->ops.n, grace_ms);
	bool opened = s->opened;
	s->state = SVC_DRAINING;
	s->stop_ns = now;
	s->grace_end_ns = end;
	s->ready = false;
	if (s->rpc)
		rpc_server_drain(s->rpc); /* step 1 */
	if (opened && s->def->drain)
		s->def->drain(s);
	tick_soon(s);
}

void svc_fail(struct svc *s, enum err e, const char *fmt, ...)
{
	char text[320];
	va_list ap;
	if (s->failed)
		return;
	s->failed = e;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	LOG_ERROR(&s->log, "stop", "err=%s msg=\"%s\"", err_name(e), text);
	svc_stop(s, s->conf.grace_ms);
}

/* What holds the end up, once a period: the one thing an operator needs then. */
static void complain(struct svc *s, uint64_t now)
{
	if (now - MAX_OF(s->complained_ns, s->grace_end_ns) < COMPLAIN_NS)
		return;
	s->complained_ns = now;
	LOG_ERROR(&s->log, "stop",
		  "waited_ms=%" PRIu64 " ops=%u inside=%" PRIu64
		  " jobs_running=%u jobs_queued=%u",
		  (uint64_t)((now - s->stop_ns) / NS_PER_MS), s->ops.n,
		  s->rpc ? rpc_server_inflight(s->rpc) : 0, s->pool ? pool_running(s->pool) : 0,
		  s->pool ? pool_queued(s->pool) : 0);
	list_for_each (it, &s->ops.ops) {
		struct op *op = list_entry(it, struct op, node);
		struct buf b = BUF_INIT(512);
		op_trace_print(op, &b);
		LOG_ERROR(&s->log, "stop", "op=%" PRIu64 " table=%s trace=\"%.*s\"", op->id,
			  op->table->name, (int)b.n, (const char *)b.p);
		buf_fini(&b);
		break; /* one is enough to know which */
	}
}

static void flush(struct svc *s)
{
	s->state = SVC_FLUSHING; /* step 3 */
	if (s->pool)
		pool_cancel_all(s->pool);
	if (s->opened && s->def->close)
		s->def->close(s);
	else
		svc_closed(s);
}

static bool drained(const struct svc *s)
{
	return s->ops.n == 0 && (!s->rpc || rpc_server_inflight(s->rpc) == 0);
}

static void on_tick(struct timer *t)
{
	struct svc *s = container_of(t, struct svc, tick);
	uint64_t now = loop_now_ns(s->loop);
	if (s->state == SVC_CLOSING) {
		close_parts(s);
		return;
	}
	if (drained(s)) {
		flush(s);
		return;
	}
	if (now >= s->grace_end_ns) {
		if (s->state == SVC_DRAINING)
			LOG_WARN(&s->log, "stop", "cancelled=%u", s->ops.n);
		s->state = SVC_CANCELLING; /* step 2; ops that start meanwhile are caught too */
		op_set_cancel(&s->ops);
		complain(s, now);
	}
	tick_soon(s);
}

void svc_closed(struct svc *s)
{
	assert(s->state == SVC_FLUSHING);
	s->state = SVC_CLOSING; /* step 4; not from here: the close hook may be running still */
	tick_soon(s);
}

/* ---- close ---- */

static void on_last(struct post *p)
{
	struct svc *s = container_of(p, struct svc, last);
	void (*closed)(struct svc * s, void *arg) = s->closed;
	void *arg = s->closed_arg;
	svc_dirs_leave(s);
	metrics_free(s->metrics);
	metrics_free(s->shared_metrics);
	conf_free(s->settings);
	keyring_free(s->own_keys);
	if (closed)
		closed(s, arg);
}

static void part_closed(void *arg)
{
	struct svc *s = arg;
	assert(s->closing > 0);
	if (--s->closing > 0)
		return;
	s->last.fn = on_last;
	loop_defer(s->loop, &s->last);
}

/* Jobs that run still (nobody waits for them any more) are let end; pool_free would assert. */
static bool pool_idle(struct svc *s)
{
	return !s->pool || pool_running(s->pool) + pool_queued(s->pool) == 0;
}

static void close_parts(struct svc *s)
{
	if (!pool_idle(s)) {
		complain(s, loop_now_ns(s->loop));
		tick_soon(s);
		return;
	}
	assert(s->ops.n == 0);
	s->closing = 1;
	if (s->beats) {
		s->closing++;
		beat_sender_close(s->beats, part_closed, s);
	}
	pool_free(s->pool);
	if (s->http) {
		s->closing++;
		http_close(s->http, part_closed, s);
	}
	if (s->rpc) {
		s->closing++;
		rpc_server_close(s->rpc, part_closed, s);
	}
	part_closed(s);
}
