/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file engine: the loop's side of meta_log.h. One write is under way at a time and takes
 * all that waited for it (group commit); beside it at most one snapshot is made from the old
 * log, by another thread, in a state of its own.
 *
 *   OPENING -> READY -> BROKEN        CLOSING from any of them, when nothing is under way
 */
#include "meta/meta.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "loop/pool.h"
#include "meta/meta_fs.h"
#include "meta/meta_log.h"

#define BATCH_BYTES   (1u << 20) /* a write takes no more appends once it is so long */
#define SNAP_RETRY_MS 10000
#define SWEEP_SLICE   4096 /* tombstones; about a quarter of a millisecond */
#define LATE_LOGS     4 /* log_bytes_max times this, while a snapshot fails: no more is taken */

enum phase { OPENING, READY, BROKEN, FAILED };

struct meta {
	struct loop *loop;
	struct meta_opts o;
	char *dir;
	char name[33];
	struct meta_fs *fs;
	bool own_fs, closing, snap_ended;
	enum phase phase;
	struct pool *pool;
	struct meta_state *st;
	struct meta_log *log;
	struct why why; /* why it did not open, or broke */

	struct list queue; /* meta_append */
	uint64_t queue_bytes;
	struct post kick_post;
	bool kick_posted;

	struct job open_job;
	struct meta_log_opts log_opts;
	uint64_t seed;

	struct {
		struct job job;
		bool busy, rotate; /* rotate: begin a new log first */
		struct why rotate_why;
		struct buf payload;
		uint64_t first;
		uint32_t n;
		struct list appends;
		struct why why;
	} w;
	struct {
		struct job job;
		bool busy;
		struct meta_compaction c;
		struct why why;
		struct timer retry;
	} snap;
	struct timer sweep;

	struct meta_counters n;
	void (*closed)(void *arg);
	void *closed_arg;
	struct post close_post;
};

static void kick(struct meta *m);
static void maybe_finish(struct meta *m);

/* ---- ends of appends ---- */

static void post_done(struct post *p)
{
	struct meta_append *a = container_of(p, struct meta_append, post);
	buf_fini(&a->recs);
	a->done(a);
}

/* done runs later. */
static void refuse(struct meta *m, struct meta_append *a, enum err e)
{
	a->err = e;
	a->seq = 0;
	if (a->why.err == ERR_NONE)
		why_set(&a->why, e, "%s", err_text(e));
	m->n.refused++;
	a->post.fn = post_done;
	loop_defer(m->loop, &a->post);
}

static void refuse_queue(struct meta *m, enum err e)
{
	for (struct list *l; (l = list_pop_front(&m->queue));) {
		struct meta_append *a = list_entry(l, struct meta_append, node);
		why_set(&a->why, e, "%s", m->why.text);
		refuse(m, a, e);
	}
	m->queue_bytes = 0;
}

static void break_store(struct meta *m, const struct why *why)
{
	m->phase = BROKEN;
	m->why = *why;
	m->n.broken = true;
	LOG_ERROR(m->o.log, "meta", "store=%s broken=1 reason=\"%s\"", m->name, why->text);
	refuse_queue(m, ERR_IO); /* I4 */
	if (m->o.broken)
		m->o.broken(m->o.ctx, &m->why);
}

/* ---- snapshots ---- */

static void snap_work(struct job *j)
{
	struct meta *m = container_of(j, struct meta, snap.job);
	j->err = meta_log_compact(&m->snap.c, &m->snap.why);
}

static void snap_start(struct meta *m)
{
	if (m->phase != READY || m->closing || m->snap.busy || m->w.busy ||
	    timer_running(&m->snap.retry) || !meta_log_has_old(m->log))
		return;
	meta_log_compaction(m->log, &m->snap.c);
	m->snap.why = (struct why){ 0 };
	m->snap.busy = pool_submit(m->pool, &m->snap.job) == ERR_NONE;
	assert(m->snap.busy); /* two threads, two kinds of job, one of each */
}

static void snap_again(struct timer *t)
{
	snap_start(container_of(t, struct meta, snap.retry));
}

static void snap_failed(struct meta *m, const char *step, const char *reason)
{
	m->n.snapshots_failed++;
	LOG_WARN(m->o.log, "meta", "store=%s step=%s retry_ms=%d reason=\"%s\"", m->name, step,
		 SNAP_RETRY_MS, reason);
	if (!m->closing)
		timer_start(m->loop, &m->snap.retry,
			    clock_after_ms(loop_now_ns(m->loop), SNAP_RETRY_MS), snap_again);
}

/* With the log at rest. */
static void snap_take(struct meta *m)
{
	m->snap_ended = false;
	meta_log_compacted(m->log, &m->snap.c);
	m->n.snapshots++;
	m->n.snap_bytes = m->snap.c.snap_bytes;
	m->snap.why = (struct why){ 0 };
}

static void snap_done(struct job *j)
{
	struct meta *m = container_of(j, struct meta, snap.job);
	m->snap.busy = false;
	if (j->err == ERR_NONE) {
		m->snap_ended = true;
		if (!m->w.busy)
			snap_take(m);
	} else {
		why_set(&m->snap.why, j->err, "%s", err_text(j->err));
		snap_failed(m, "snapshot", m->snap.why.text);
	}
	kick(m);
	maybe_finish(m);
}

/* ---- the sweep ---- */

static void sweep_slice(struct timer *t)
{
	struct meta *m = container_of(t, struct meta, sweep);
	if (meta_state_sweep(m->st, SWEEP_SLICE))
		timer_start(m->loop, t, clock_after_ms(loop_now_ns(m->loop), 1), sweep_slice);
}

static void sweep_start(struct meta *m)
{
	if (!timer_running(&m->sweep))
		timer_start(m->loop, &m->sweep, loop_now_ns(m->loop), sweep_slice);
}

/* ---- one write ---- */

static void write_work(struct job *j)
{
	struct meta *m = container_of(j, struct meta, w.job);
	m->w.rotate_why = (struct why){ 0 };
	if (m->w.rotate)
		(void)!meta_log_switch(m->log, &m->w.rotate_why);
	j->err = meta_log_append(m->log, m->w.first, m->w.n, buf_bytes(&m->w.payload),
				 &m->w.why);
}

/* The records of one append, from the bytes that the log has: what a replay sees is what we
 * see. */
static enum err apply_append(struct meta *m, struct bytes *payload, uint32_t n)
{
	enum err first = ERR_NONE;
	struct arena a = ARENA_INIT(64 << 10);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t seq;
		uint32_t type;
		struct bytes body;
		struct meta_rec r;
		bool there = meta_payload_next(payload, &seq, &type, &body);
		assert(there);
		arena_clear(&a);
		enum err e = meta_rec_decode(type, body, &a, &r, NULL);
		if (e == ERR_NONE)
			e = meta_state_apply(m->st, seq, &r);
		if (first == ERR_NONE || e == ERR_NO_MEMORY)
			first = e;
	}
	arena_fini(&a);
	return first;
}

/* True when the state is no longer the log's. */
static bool apply_batch(struct meta *m)
{
	struct bytes payload = buf_bytes(&m->w.payload);
	bool lost = false;
	list_for_each (l, &m->w.appends) {
		struct meta_append *a = list_entry(l, struct meta_append, node);
		a->err = apply_append(m, &payload, a->n_recs);
		lost |= a->err == ERR_NO_MEMORY;
		if (a->err != ERR_NONE)
			why_set(&a->why, a->err, "a record had no effect: %s",
				err_text(a->err));
		m->n.appends += a->err == ERR_NONE;
		m->n.refused += a->err != ERR_NONE;
	}
	m->n.records += m->w.n;
	m->n.writes++;
	m->n.bytes_written += meta_frame_sectors(m->w.payload.n) * META_SECTOR;
	sweep_start(m);
	return lost;
}

static void fail_batch(struct meta *m, enum err e)
{
	list_for_each (l, &m->w.appends) {
		struct meta_append *a = list_entry(l, struct meta_append, node);
		a->err = e;
		a->seq = 0;
		why_set(&a->why, e, "%s", m->w.why.text);
		m->n.refused++;
	}
}

/* Callbacks may append and close; m lives on until a later turn. */
static void call_batch(struct meta *m)
{
	struct list ended;
	list_init(&ended);
	for (struct list *l; (l = list_pop_front(&m->w.appends));)
		list_push_back(&ended, l);
	for (struct list *l; (l = list_pop_front(&ended));) {
		struct meta_append *a = list_entry(l, struct meta_append, node);
		buf_fini(&a->recs);
		a->done(a);
	}
}

static void write_done(struct job *j)
{
	struct meta *m = container_of(j, struct meta, w.job);
	struct why lost = { 0 };
	enum err e = j->err;
	if (m->snap_ended)
		snap_take(m);
	if (m->w.rotate_why.err != ERR_NONE)
		snap_failed(m, "rotate", m->w.rotate_why.text);
	if (e == ERR_NONE && apply_batch(m))
		why_set(&lost, ERR_NO_MEMORY,
			"no memory for the meta store's state; restart the "
			"service with more");
	else if (e != ERR_NONE)
		fail_batch(m, e);
	m->n.log_bytes = meta_log_bytes(m->log);
	bool broken = lost.err != ERR_NONE || e == ERR_IO;
	if (broken)
		break_store(m, lost.err != ERR_NONE ? &lost : &m->w.why);
	/* the log is at rest now; once the callbacks run it may not be for long */
	m->w.busy = false;
	snap_start(m);
	call_batch(m);
	kick(m);
	maybe_finish(m);
}

/* ---- building a batch ---- */

static uint64_t log_limit(const struct meta *m)
{
	/* a snapshot as large as the log it replaces costs a write more a byte, and no more
	 * than that */
	return MAX_OF(m->o.log_bytes_max, meta_log_snap_bytes(m->log));
}

/* B1: while snapshots fail the log grows only so far. */
static bool snapshot_late(const struct meta *m)
{
	bool waits = meta_log_has_old(m->log) || timer_running(&m->snap.retry);
	return waits && meta_log_bytes(m->log) >= LATE_LOGS * log_limit(m);
}

static enum err check_writer(const struct meta *m, struct meta_append *a, uint64_t term,
			     uint64_t seq)
{
	if (a->term != META_ANY && a->term != term)
		return why_set(&a->why, ERR_CONFLICT,
			       "the writer's term is %" PRIu64 ", the store's %" PRIu64,
			       a->term, term);
	if (a->if_seq != META_ANY && a->if_seq != seq)
		return why_set(&a->why, ERR_CONFLICT,
			       "the writer saw record %" PRIu64 ", the store is at %" PRIu64,
			       a->if_seq, seq);
	if (snapshot_late(m))
		return m->snap.why.err != ERR_NONE
			       ? why_set(&a->why, ERR_NO_SPACE, "the log is full: %s",
					 m->snap.why.text)
			       : why_set(&a->why, ERR_BUSY, "the log waits for its snapshot");
	return ERR_NONE;
}

/* Adds a's records, as admitted, to the batch; *term follows TERM records. */
static enum err add_records(struct meta *m, struct meta_append *a, uint64_t *term)
{
	struct bytes recs = buf_bytes(&a->recs), body;
	struct arena ar = ARENA_INIT(64 << 10);
	struct buf again = BUF_INIT(META_BYTES_MAX);
	uint64_t seq = m->w.first + m->w.n, unused;
	uint32_t type;
	enum err e = ERR_NONE;
	while (e == ERR_NONE && meta_payload_next(&recs, &unused, &type, &body)) {
		struct meta_rec r;
		arena_clear(&ar);
		e = meta_rec_decode(type, body, &ar, &r, &a->why);
		if (e == ERR_NONE)
			e = meta_state_admit(m->st, &m->o.limits, &r, &a->why);
		if (e != ERR_NONE)
			break;
		if (r.type != (enum meta_type)type) { /* a tombstone became a floor */
			buf_clear(&again);
			meta_rec_encode(&again, &r);
			body = buf_bytes(&again);
		}
		if (r.type == META_TERM)
			*term = r.TERM.term;
		meta_payload_add(&m->w.payload, seq++, r.type, body);
		e = buf_err(&m->w.payload);
	}
	buf_fini(&again);
	arena_fini(&ar);
	return e;
}

static void add_append(struct meta *m, struct meta_append *a, uint64_t *term)
{
	size_t before = m->w.payload.n;
	uint64_t was = *term;
	enum err e = check_writer(m, a, *term, m->w.first + m->w.n - 1);
	if (e == ERR_NONE)
		e = add_records(m, a, term);
	if (e != ERR_NONE) {
		m->w.payload.n = before;
		m->w.payload.err = ERR_NONE;
		*term = was;
		refuse(m, a, e);
		return;
	}
	m->w.n += a->n_recs;
	a->seq = m->w.first + m->w.n - 1;
	list_push_back(&m->w.appends, &a->node);
}

static void build_batch(struct meta *m)
{
	uint64_t term = meta_term(m->st);
	buf_clear(&m->w.payload);
	m->w.first = meta_last_seq(m->st) + 1;
	m->w.n = 0;
	m->w.why = (struct why){ 0 };
	meta_state_plan(m->st);
	while (!list_empty(&m->queue) && m->w.payload.n < BATCH_BYTES) {
		struct meta_append *a =
			list_entry(list_pop_front(&m->queue), struct meta_append, node);
		m->queue_bytes -= a->recs.n;
		add_append(m, a, &term);
	}
}

/* Begins a write when there is something to write and none is under way. While a snapshot that
 * is being made is late, what comes waits for it (its end kicks again); while they fail it is
 * refused. */
static void kick(struct meta *m)
{
	while (m->phase == READY && !m->w.busy && !list_empty(&m->queue)) {
		if (m->snap.busy && snapshot_late(m))
			return;
		build_batch(m);
		if (m->w.n == 0)
			continue;
		m->w.rotate = !meta_log_has_old(m->log) && !timer_running(&m->snap.retry) &&
			      meta_log_bytes(m->log) >= log_limit(m);
		m->w.busy = pool_submit(m->pool, &m->w.job) == ERR_NONE;
		assert(m->w.busy);
	}
}

static void kick_now(struct post *p)
{
	struct meta *m = container_of(p, struct meta, kick_post);
	m->kick_posted = false;
	kick(m);
	maybe_finish(m);
}

/* Not at once: all that is appended in this turn goes into one write. */
static void kick_later(struct meta *m)
{
	if (m->kick_posted || m->phase != READY)
		return;
	m->kick_posted = true;
	m->kick_post.fn = kick_now;
	loop_defer(m->loop, &m->kick_post);
}

/* ---- appending ---- */

static enum err encode(struct meta_append *a, const struct meta_rec *recs, size_t n)
{
	struct buf body = BUF_INIT(META_BYTES_MAX);
	enum err e = ERR_NONE;
	a->recs = BUF_INIT(META_BYTES_MAX);
	if (n == 0 || n > META_RECS_MAX)
		e = why_set(&a->why, ERR_INVALID_PARAMS,
			    "an append has 1 to %d records, this one %zu", META_RECS_MAX, n);
	for (size_t i = 0; i < n && e == ERR_NONE; i++) {
		buf_clear(&body);
		e = meta_rec_check(&recs[i], &a->why);
		if (e != ERR_NONE)
			break;
		meta_rec_encode(&body, &recs[i]);
		meta_payload_add(&a->recs, 0, recs[i].type, buf_bytes(&body));
		e = buf_err(&body) != ERR_NONE ? buf_err(&body) : buf_err(&a->recs);
		if (e == ERR_TOO_LARGE)
			why_set(&a->why, e, "an append has at most %u bytes", META_BYTES_MAX);
	}
	buf_fini(&body);
	a->n_recs = (uint32_t)n;
	return e;
}

static enum err check_open(const struct meta *m, struct meta_append *a)
{
	if (m->closing)
		return ERR_CLOSED;
	if (m->phase == BROKEN || m->phase == FAILED)
		return why_set(&a->why, m->phase == BROKEN ? ERR_IO : m->why.err, "%s",
			       m->why.text);
	return ERR_NONE;
}

void meta_append(struct meta *m, struct meta_append *a, const struct meta_rec *recs, size_t n)
{
	a->err = ERR_NONE;
	a->seq = 0;
	a->why = (struct why){ 0 };
	a->post = (struct post){ 0 };
	enum err e = encode(a, recs, n);
	if (e == ERR_NONE)
		e = check_open(m, a);
	if (e == ERR_NONE && a->term == META_ANY && (n != 1 || recs[0].type != META_TERM))
		e = why_set(&a->why, ERR_INVALID_PARAMS,
			    "only a single TERM record needs no term");
	if (e == ERR_NONE && m->queue_bytes + a->recs.n > m->o.queue_bytes_max)
		e = why_set(&a->why, ERR_BUSY, "%" PRIu64 " bytes wait for the disk already",
			    m->queue_bytes); /* B1 */
	if (e != ERR_NONE) {
		refuse(m, a, e);
		return;
	}
	list_push_back(&m->queue, &a->node);
	m->queue_bytes += a->recs.n;
	kick_later(m);
}

void meta_raise_term(struct meta *m, struct meta_append *a)
{
	assert(meta_state_of(m));
	struct meta_rec r = { .type = META_TERM, .TERM = { meta_term(m->st) + 1 } };
	a->term = a->if_seq = META_ANY;
	meta_append(m, a, &r, 1);
}

/* ---- opening and closing ---- */

static void open_work(struct job *j)
{
	struct meta *m = container_of(j, struct meta, open_job);
	if (!m->fs) {
		j->err = meta_fs_posix_new(m->dir, &m->fs, &m->why);
		m->own_fs = j->err == ERR_NONE;
	}
	if (j->err == ERR_NONE)
		j->err = meta_state_new(m->seed, &m->st);
	m->log_opts.fs = m->fs;
	if (j->err == ERR_NONE)
		j->err = meta_log_open(&m->log_opts, m->st, &m->log, &m->why);
}

static void open_done(struct job *j)
{
	struct meta *m = container_of(j, struct meta, open_job);
	if (j->err != ERR_NONE) {
		m->phase = FAILED;
		why_set(&m->why, j->err, "%s", err_text(j->err));
		meta_state_free(m->st);
		m->st = NULL;
		refuse_queue(m, j->err);
	} else {
		struct meta_counts c;
		m->phase = READY;
		meta_state_counts(m->st, &c);
		m->n.log_bytes = meta_log_bytes(m->log);
		m->n.snap_bytes = meta_log_snap_bytes(m->log);
		LOG_INFO(m->o.log, "meta",
			 "store=%s open=1 term=%" PRIu64 " record=%" PRIu64 " holders=%" PRIu64
			 " away=%" PRIu64 " tombs=%" PRIu64 " log_bytes=%" PRIu64
			 " snap_bytes=%" PRIu64,
			 m->name, meta_term(m->st), meta_last_seq(m->st), c.holders, c.away,
			 c.tombs, m->n.log_bytes, m->n.snap_bytes);
	}
	m->o.opened(m->o.ctx, j->err, &m->why);
	if (m->phase == READY) {
		sweep_start(m);
		snap_start(m);
		kick(m);
	}
	maybe_finish(m);
}

static void free_meta(struct meta *m)
{
	pool_free(m->pool);
	meta_log_close(m->log);
	meta_state_free(m->st);
	if (m->own_fs)
		meta_fs_free(m->fs);
	buf_fini(&m->w.payload);
	free(m->dir);
	free(m);
}

static enum err start_open(struct meta *m)
{
	const struct pool_opts po = { .name = "meta", .n_threads = 2, .depth = 2 };
	enum err e = pool_new(m->loop, &po, &m->pool);
	if (e != ERR_NONE)
		return e;
	m->open_job = (struct job){ .work = open_work, .done = open_done };
	m->w.job = (struct job){ .work = write_work, .done = write_done };
	m->snap.job = (struct job){ .work = snap_work, .done = snap_done };
	return pool_submit(m->pool, &m->open_job);
}

static void opts_default(struct meta_opts *o)
{
	meta_limits_default(&o->limits);
	o->log_bytes_max = o->log_bytes_max ? o->log_bytes_max : 64ull << 20;
	o->queue_bytes_max = o->queue_bytes_max ? o->queue_bytes_max : 16ull << 20;
	o->chunk_bytes = o->chunk_bytes ? o->chunk_bytes : 1u << 20;
}

enum err meta_open(struct loop *l, const struct meta_opts *o, struct meta **out)
{
	size_t n = strlen(o->name);
	if (n == 0 || n > 32 || o->chunk_bytes % 4096)
		return ERR_INVALID_PARAMS;
	struct meta *m = calloc(1, sizeof(*m));
	if (!m)
		return ERR_NO_MEMORY;
	m->loop = l;
	m->o = *o;
	m->fs = o->fs;
	opts_default(&m->o);
	memcpy(m->name, o->name, n);
	list_init(&m->queue);
	list_init(&m->w.appends);
	m->w.payload = BUF_INIT(META_PAYLOAD_MAX);
	m->log_opts =
		(struct meta_log_opts){ .name = m->name, .chunk_bytes = m->o.chunk_bytes };
	loop_random(l, m->log_opts.store, sizeof(m->log_opts.store));
	loop_random(l, &m->seed, sizeof(m->seed));
	m->o.dir = m->dir = strdup(o->dir ? o->dir : "");
	enum err e = m->dir ? start_open(m) : ERR_NO_MEMORY;
	if (e != ERR_NONE) {
		free_meta(m);
		return e;
	}
	*out = m;
	return ERR_NONE;
}

static void finish(struct post *p)
{
	struct meta *m = container_of(p, struct meta, close_post);
	void (*closed)(void *arg) = m->closed;
	void *arg = m->closed_arg;
	free_meta(m);
	closed(arg);
}

/* When it is being closed and nothing is under way any more. */
static void maybe_finish(struct meta *m)
{
	if (!m->closing || m->phase == OPENING || m->w.busy || m->snap.busy || m->kick_posted ||
	    !list_empty(&m->queue) || m->close_post.fn)
		return;
	timer_stop(m->loop, &m->snap.retry);
	timer_stop(m->loop, &m->sweep);
	m->close_post.fn = finish;
	loop_defer(m->loop, &m->close_post);
}

void meta_close(struct meta *m, void (*closed)(void *arg), void *arg)
{
	assert(!m->closing);
	m->closing = true;
	m->closed = closed;
	m->closed_arg = arg;
	maybe_finish(m);
}

/* ---- reading ---- */

const struct meta_state *meta_state_of(const struct meta *m)
{
	return m->phase == READY || m->phase == BROKEN ? m->st : NULL;
}

void meta_counters(const struct meta *m, struct meta_counters *out)
{
	*out = m->n;
	out->queue_bytes = m->queue_bytes;
}
