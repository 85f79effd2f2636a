/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/svc_meta.h"

#include <inttypes.h>
#include <string.h>

#include "base/path.h"

#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 5000

static void failed(struct svc_meta *m, enum err e, const struct why *why, const char *step)
{
	m->state = SVC_META_FAILED;
	why_set(&m->why, e, "%s", why && why->err ? why->text : err_text(e));
	LOG_ERROR(&m->svc->log, "meta", "step=%s err=%s msg=\"%s\"", step, err_name(e),
		  m->why.text);
}

/* I3. Said once; /readyz says it all the time. */
static void wait_for_space(struct svc_meta *m, const struct why *why, const char *step,
			   void (*again)(struct timer *t))
{
	struct why now = *why; /* which may be m's own */
	m->state = SVC_META_NO_SPACE;
	m->why = (struct why){ 0 };
	why_set(&m->why, ERR_NO_SPACE, "%s", now.err ? now.text : err_text(ERR_NO_SPACE));
	if (m->wait_ms == 0)
		LOG_WARN(
			&m->svc->log, "meta",
			"step=%s err=NO_SPACE msg=\"%s\" notice=\"goes on when there is room\"",
			step, m->why.text);
	m->wait_ms = m->wait_ms ? MIN_OF(2 * m->wait_ms, (uint64_t)RETRY_MAX_MS) : RETRY_MIN_MS;
	timer_start(m->svc->loop, &m->retry,
		    clock_after_ms(loop_now_ns(m->svc->loop), m->wait_ms), again);
}

static void on_raised(struct meta_append *a);

static void raise_term(struct svc_meta *m)
{
	m->state = SVC_META_RAISING;
	m->raise = (struct meta_append){ .done = on_raised };
	meta_raise_term(m->meta, &m->raise);
}

static void raise_again(struct timer *t)
{
	raise_term(container_of(t, struct svc_meta, retry));
}

static void on_raised(struct meta_append *a)
{
	struct svc_meta *m = container_of(a, struct svc_meta, raise);
	if (m->state != SVC_META_RAISING)
		return; /* closed, or broken: that was said */
	if (a->err == ERR_NO_SPACE) {
		wait_for_space(m, &a->why, "term", raise_again);
		return;
	}
	if (a->err) {
		failed(m, a->err, &a->why, "term");
		return;
	}
	m->term = meta_term(meta_state_of(m->meta));
	m->state = SVC_META_READY;
	m->wait_ms = 0;
	LOG_INFO(&m->svc->log, "meta", "term=%" PRIu64, m->term);
	if (m->ready)
		m->ready(m->svc);
}

static void open_again(struct timer *t);

/* The store that did not open is gone: the next try, or the end that came meanwhile. */
static void on_unopened_closed(void *arg)
{
	struct svc_meta *m = arg;
	m->ending = false;
	if (m->state == SVC_META_CLOSED)
		m->closed(m->closed_arg);
	else
		wait_for_space(m, &m->why, "open", open_again);
}

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	struct svc_meta *m = ctx;
	if (m->state != SVC_META_OPENING)
		return; /* it is being closed already */
	if (e == ERR_NO_SPACE) {
		struct meta *meta = m->meta;
		m->why = *why;
		m->state = SVC_META_NO_SPACE;
		m->ending = true;
		m->meta = NULL;
		meta_close(meta, on_unopened_closed, m);
	} else if (e) {
		failed(m, e, why, "open");
	} else {
		raise_term(m);
	}
}

static void on_broken(void *ctx, const struct why *why)
{
	struct svc_meta *m = ctx;
	if (m->state == SVC_META_CLOSED)
		return;
	failed(m, ERR_IO, why, "write");
	svc_fail(m->svc, ERR_IO, "meta log: %s", m->why.text);
}

static enum err begin_open(struct svc_meta *m, struct why *why)
{
	struct svc *s = m->svc;
	char dir[PATH_BYTES_MAX] = "";
	enum err e = s->meta_fs ? ERR_NONE : path_join(dir, s->data_dir, "meta", why);
	if (e == ERR_NONE && !s->meta_fs)
		e = path_mkdir_private(dir, why);
	if (e)
		return e;
	struct meta_opts o = { .dir = dir,
			       .name = s->def->name,
			       .fs = s->meta_fs,
			       .log = &s->log,
			       .limits = m->limits,
			       .opened = on_opened,
			       .broken = on_broken,
			       .ctx = m };
	e = meta_open(s->loop, &o, &m->meta);
	if (e)
		return why_set(why, e, "meta log: %s", err_text(e));
	m->state = SVC_META_OPENING;
	return ERR_NONE;
}

static void open_again(struct timer *t)
{
	struct svc_meta *m = container_of(t, struct svc_meta, retry);
	struct why why = { 0 };
	enum err e = begin_open(m, &why);
	if (e == ERR_NO_SPACE)
		wait_for_space(m, &why, "open", open_again);
	else if (e)
		failed(m, e, &why, "open");
}

enum err svc_meta_open(struct svc_meta *m, struct svc *s, void (*ready)(struct svc *s),
		       struct why *why)
{
	*m = (struct svc_meta){ .svc = s, .ready = ready, .limits = m->limits };
	if (!s->meta_fs && !loop_uv(s->loop))
		return why_set(why, ERR_INVALID_PARAMS,
			       "meta log: a simulation says where its files are");
	struct why own = { 0 };
	enum err e = begin_open(m, &own);
	if (e == ERR_NO_SPACE)
		wait_for_space(m, &own, "open", open_again);
	else if (e)
		return why_set(why, e, "%s", own.err ? own.text : err_text(e));
	return ERR_NONE;
}

void svc_meta_close(struct svc_meta *m, void (*closed)(void *arg), void *arg)
{
	struct meta *meta = m->meta;
	if (m->state == SVC_META_NO_SPACE)
		timer_stop(m->svc->loop, &m->retry);
	m->meta = NULL;
	m->state = SVC_META_CLOSED;
	m->term = 0;
	m->closed = closed;
	m->closed_arg = arg;
	if (m->ending)
		return; /* on_unopened_closed goes on */
	if (meta)
		meta_close(meta, closed, arg);
	else
		closed(arg);
}

uint64_t svc_meta_term(const struct svc_meta *m)
{
	return m->term;
}

void svc_meta_reasons(const struct svc_meta *m, struct svc_reasons *r)
{
	switch (m->state) {
	case SVC_META_CLOSED:
	case SVC_META_READY:
		return;
	case SVC_META_OPENING:
		svc_reason(r, "meta log: replaying");
		return;
	case SVC_META_RAISING:
		svc_reason(r, "meta log: raising the term");
		return;
	case SVC_META_NO_SPACE:
		svc_reason(r, "meta log: %s; goes on when there is room", m->why.text);
		return;
	case SVC_META_FAILED:
		svc_reason(r, "meta log: %s", m->why.text);
		return;
	}
}

static void follow(struct metrics *out, unsigned id, unsigned cell, uint64_t now)
{
	uint64_t was = metric_get(out, id, cell);
	if (now > was)
		metric_add(out, id, cell, now - was);
}

void svc_meta_scrape(const struct svc_meta *m, struct metrics *out, unsigned first)
{
	struct meta_counters c = { 0 };
	if (m->meta)
		meta_counters(m->meta, &c);
	metric_set(out, first, 0, (int64_t)m->term);
	follow(out, first + 1, 0, c.appends);
	follow(out, first + 1, 1, c.refused);
	follow(out, first + 2, 0, c.writes);
	follow(out, first + 3, 0, c.snapshots);
	follow(out, first + 3, 1, c.snapshots_failed);
	metric_set(out, first + 4, 0, (int64_t)c.log_bytes);
	metric_set(out, first + 4, 1, (int64_t)c.snap_bytes);
	metric_set(out, first + 4, 2, (int64_t)c.queue_bytes);
}
