/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload of re-adopted objects, and of those that a lane found bad, read and compared with its sum (spec/store.md, Pool): one job at a
 * time, about XFA_VERIFY_BYTES each, and as long a pause after it as it took, so that it never has
 * more than half a worker. A bad one is RETIRED(CORRUPT) and reported; a slot that was freed
 * meanwhile is none of our business: hold_verified sees its generation.
 */
#include "agent.h"

#include <inttypes.h>
#include <string.h>

#include "base/sum.h"

/* ---- worker ---- */

/* Bytes [at, at + n) of an object, wherever they lie. */
static enum err add_range(struct xfa_verify *v, const struct mempool *pool, uint64_t at,
			  uint64_t n)
{
	const struct hold_verify *o = &v->items[0];
	enum err e = ERR_NONE;
	for (size_t i = 0; i < o->n_extents && n > 0 && e == ERR_NONE; i++) {
		struct extent x = o->extents[i];
		if (at >= x.bytes) {
			at -= x.bytes;
			continue;
		}
		x.offset += at;
		x.bytes = MIN_OF(x.bytes - at, n);
		const void *p = mempool_at(pool, &x);
		e = p ? sum_stream_add(v->stream, p, x.bytes) : ERR_CORRUPT;
		mempool_unload(pool, &x);
		n -= x.bytes;
		at = 0;
	}
	return e;
}

/* One object over several jobs. */
static enum err large_part(struct xfa_verify *v, const struct mempool *pool)
{
	const struct hold_verify *o = &v->items[0];
	uint64_t n = MIN_OF(o->size - v->at, XFA_VERIFY_BYTES);
	enum err e = v->stream ? ERR_NONE : sum_stream_new(o->size, NULL, &v->stream);
	if (e == ERR_NONE)
		e = add_range(v, pool, v->at, n);
	v->at += n;
	if (e == ERR_NONE && v->at == o->size)
		e = sum_stream_end(v->stream, &v->sums[0]);
	return e;
}

static void verify_work(struct job *j)
{
	struct xfa_verify *v = container_of(j, struct xfa_verify, job);
	const struct xfa *x = container_of(v, struct xfa, verify);
	const struct mempool *pool = x->memory.opening;
	if (v->items[0].size > XFA_VERIFY_BYTES) {
		v->errs[0] = large_part(v, pool);
		return;
	}
	for (size_t i = 0; i < v->n; i++) {
		const struct hold_verify *o = &v->items[i];
		v->errs[i] = mempool_sum(pool, o->extents, o->n_extents, o->size, &v->sums[i]);
		for (size_t k = 0; k < o->n_extents; k++)
			mempool_unload(pool, &o->extents[k]);
	}
}

/* ---- loop ---- */

static void next(struct xfa *x);

static void on_pause(struct timer *t)
{
	next(container_of(t, struct xfa, verify.pause));
}

static void one_verified(struct xfa *x, size_t i)
{
	struct xfa_verify *v = &x->verify;
	const struct hold_verify *o = &v->items[i];
	uint64_t sum =
		v->errs[i] == ERR_NONE ? v->sums[i] : ~o->sum; /* extents that are none */
	metric_inc(x->svc.metrics, XFA_M_VERIFIED);
	metric_add(x->svc.metrics, XFA_M_VERIFIED_BYTES, 0, o->size);
	if (hold_verified(x->hold, o, sum) != ERR_CORRUPT)
		return;
	metric_inc(x->svc.metrics, XFA_M_CORRUPT);
	LOG_ERROR(&x->svc.log, "verify",
		  "slot=%u version=%" PRIu64 " bytes=%" PRIu64
		  " msg=\"its bytes fail the checksum; it is retired\"",
		  o->slot, o->version, o->size);
	struct hold_slot s = { .slot = o->slot,
			       .generation = o->generation,
			       .version = o->version,
			       .sum = o->sum,
			       .retired = true };
	xfa_report_bad(x, o->shard, &s);
}

static void verify_done(struct job *j)
{
	struct xfa_verify *v = container_of(j, struct xfa_verify, job);
	struct xfa *x = container_of(v, struct xfa, verify);
	uint64_t now = loop_now_ns(x->svc.loop);
	bool part = v->stream && v->errs[0] == ERR_NONE && v->at < v->items[0].size;
	v->running = false;
	if (!v->stopped && j->err == ERR_NONE && !part) {
		for (size_t i = 0; i < v->n; i++)
			if (v->errs[i] !=
			    ERR_NO_MEMORY) /* its turn comes with the next start */
				one_verified(x, i);
		v->n = 0;
	}
	if (!part || v->stopped)
		sum_stream_free(TAKE(v->stream));
	if (!v->stopped)
		timer_start(x->svc.loop, &v->pause, now + (now - v->began_ns), on_pause);
	xfa_job_ended(x);
}

/* Small ones together, a large one alone. */
static void collect(struct xfa *x)
{
	struct xfa_verify *v = &x->verify;
	uint64_t bytes = 0;
	v->at = 0;
	while (v->n < XFA_VERIFY_N && bytes < XFA_VERIFY_BYTES) {
		uint64_t before = v->cursor;
		if (!hold_verify_next(x->hold, &v->cursor, &v->items[v->n]))
			return;
		bytes += v->items[v->n].size;
		if (v->n > 0 && v->items[v->n].size > XFA_VERIFY_BYTES) {
			v->cursor = before;
			return;
		}
		v->n++;
	}
}

static void next(struct xfa *x)
{
	struct xfa_verify *v = &x->verify;
	if (v->n == 0)
		collect(x);
	if (v->n == 0) {
		v->over = true;
		LOG_INFO(&x->svc.log, "verify", "objects=%" PRIu64 " corrupt=%" PRIu64,
			 metric_get(x->svc.metrics, XFA_M_VERIFIED, 0),
			 metric_get(x->svc.metrics, XFA_M_CORRUPT, 0));
		return;
	}
	v->began_ns = loop_now_ns(x->svc.loop);
	v->job = (struct job){ .work = verify_work, .done = verify_done };
	if (pool_submit(x->svc.pool, &v->job) != ERR_NONE) {
		timer_start(x->svc.loop, &v->pause, v->began_ns + NS_PER_S, on_pause);
		return;
	}
	v->running = true;
	x->n_jobs++;
}

void xfa_verify_start(struct xfa *x)
{
	if (!x->verify.stopped && !x->verify.running && !x->verify.over &&
	    hold_n_unverified(x->hold) > 0)
		next(x);
}

void xfa_verify_again(struct xfa *x)
{
	struct xfa_verify *v = &x->verify;
	v->over = false;
	v->cursor = 0;
	if (!timer_running(&v->pause))
		xfa_verify_start(x);
}

void xfa_verify_stop(struct xfa *x)
{
	x->verify.stopped = true;
	timer_stop(x->svc.loop, &x->verify.pause);
}

void xfa_verify_fini(struct xfa *x)
{
	assert(!x->verify.running);
	sum_stream_free(TAKE(x->verify.stream));
}
