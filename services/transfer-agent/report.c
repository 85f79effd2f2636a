/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What changes at a holder by itself: ranges whose fenced writer can no longer write (the sweep finds
 * them), slots that verify.c has retired. REPORT says so until the master has heard it.
 *
 * I1: a range is reported under the adoption that left it in quarantine. After another one its
 *     inventory no longer has it, so the report is dropped (no memory grows over terms).
 *     The same for a copy that failed.
 * I2: a bad slot is said again every BAD_NS until the master has freed it: its inventory may have
 *     been read before the slot was found bad, and the report may have come before that piece.
 */
#include "agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SWEEP_BUSY_NS (10 * NS_PER_MS)	/* while a fenced writer may write */
#define SWEEP_IDLE_NS (200 * NS_PER_MS) /* sessions of dead clients are to go, too */
#define CALL_NS	      (5 * NS_PER_S)
#define AGAIN_NS      (100 * NS_PER_MS)
#define BAD_NS	      (5 * NS_PER_S)
#define FAILED_MAX    65536u	 /* of copies that failed: each has a text */
#define ITEMS_MAX     (1u << 20) /* of either list (B1); what does not fit, an adoption finds */

/* ---- lists ---- */

static bool grow(void **p, size_t *cap, size_t n, size_t size)
{
	if (n < *cap)
		return true;
	size_t want = MAX_OF(*cap * 2, (size_t)64);
	void *more = n < ITEMS_MAX ? realloc(*p, want * size) : NULL;
	if (!more)
		return false;
	*p = more;
	*cap = want;
	return true;
}

void xfa_report_fenced(void *ctx, uint32_t shard, uint64_t version)
{
	struct xfa *x = ctx;
	struct xfa_report *r = &x->report;
	metric_inc(x->svc.metrics, XFA_M_FENCED);
	if (!x->hold ||
	    !grow((void **)&r->fenced, &r->cap_fenced, r->n_fenced, sizeof(*r->fenced)))
		return; /* the range stays with the master until the next adoption: safe, and rare */
	r->fenced[r->n_fenced++] = (struct xfa_fenced){
		.shard = shard,
		.version = version,
		.pool_epoch = hold_under(x->hold, shard).pool_epoch,
	};
}

static void sweep_in(struct xfa *x, uint64_t ns);

static void keep_text(char *to, size_t room, struct bytes from)
{
	(void)snprintf(to, room, "%.*s", (int)from.n, (const char *)from.p);
}

void xfa_report_failed(struct xfa *x, uint32_t shard, const struct msg_copy_fail *m)
{
	struct xfa_report *r = &x->report;
	if (r->n_failed >= FAILED_MAX ||
	    !grow((void **)&r->failed, &r->cap_failed, r->n_failed, sizeof(*r->failed)))
		return; /* as with fenced ones */
	struct xfa_failed *f = &r->failed[r->n_failed++];
	*f = (struct xfa_failed){ .shard = shard,
				  .version = m->version,
				  .pool_epoch = hold_under(x->hold, shard).pool_epoch,
				  .attempt = m->attempt,
				  .err = (enum err)m->status };
	keep_text(f->text, sizeof(f->text), m->text);
	keep_text(f->source, sizeof(f->source), m->source);
	sweep_in(x, 0);
}

void xfa_report_bad(struct xfa *x, uint32_t shard, const struct hold_slot *s)
{
	struct xfa_report *r = &x->report;
	if (!grow((void **)&r->bad, &r->cap_bad, r->n_bad, sizeof(*r->bad)))
		return; /* the slot is RETIRED: the next adoption's inventory says so */
	r->bad[r->n_bad++] = (struct xfa_bad){ .at = *s, .shard = shard };
	sweep_in(x, 0);
}

void xfa_report_adopted(struct xfa *x, const struct hold_under *u)
{
	struct xfa_report *r = &x->report;
	size_t kept = 0;
	for (size_t i = 0; i < r->n_fenced; i++)
		if (r->fenced[i].shard != u->shard || r->fenced[i].pool_epoch == u->pool_epoch)
			r->fenced[kept++] = r->fenced[i];
	r->n_fenced = kept; /* I1 */
	kept = 0;
	for (size_t i = 0; i < r->n_failed; i++)
		if (r->failed[i].shard != u->shard || r->failed[i].pool_epoch == u->pool_epoch)
			r->failed[kept++] = r->failed[i];
	r->n_failed = kept;
	r->n_sent = r->n_sent_failed = 0;
	r->retry_ns = 0;
}

/* Has the master freed it? Retiring what is RETIRED changes nothing. */
static bool gone(struct xfa *x, const struct xfa_bad *b)
{
	struct hold_under u = hold_under(x->hold, b->shard);
	return hold_retire(x->hold, &u, b->at.slot, b->at.generation, b->at.version,
			   RETIRE_CORRUPT, 0) == ERR_NOT_FOUND;
}

static void forget_gone(struct xfa *x)
{
	struct xfa_report *r = &x->report;
	size_t kept = 0;
	for (size_t i = 0; i < r->n_bad; i++)
		if (!gone(x, &r->bad[i]))
			r->bad[kept++] = r->bad[i];
	r->n_bad = kept;
}

/* ---- REPORT ---- */

static void on_answer(struct rpc_call *c)
{
	struct xfa_report *r = container_of(c, struct xfa_report, call);
	struct xfa *x = container_of(r, struct xfa, report);
	uint64_t now = loop_now_ns(x->svc.loop);
	r->busy = false;
	if (r->stopped)
		return;
	if (c->err) {
		LOG_DEBUG(&x->svc.log, "report", "err=%s msg=\"%s\"", err_name(c->err),
			  c->why.text);
		r->retry_ns = now + MAX_OF(c->retry_ms * NS_PER_MS, (uint64_t)AGAIN_NS);
		r->n_sent = r->n_sent_failed = 0;
		if (c->err == ERR_STALE_TERM || c->err == ERR_STALE_EPOCH ||
		    c->err == ERR_NOT_IN_ROSTER)
			xfa_link_doubt(x);
		return;
	}
	/* n_sent is 0 when an adoption came between */
	r->n_fenced -= r->n_sent;
	if (r->n_fenced)
		memmove(r->fenced, r->fenced + r->n_sent, r->n_fenced * sizeof(*r->fenced));
	r->n_failed -= r->n_sent_failed;
	if (r->n_failed)
		memmove(r->failed, r->failed + r->n_sent_failed,
			r->n_failed * sizeof(*r->failed));
	r->n_sent = r->n_sent_failed = 0;
}

static size_t take_fenced(struct xfa_report *r, uint64_t *out)
{
	size_t n = 0;
	while (n < r->n_fenced && n < XFA_ITEMS_MAX && r->fenced[n].shard == r->shard) {
		out[n] = r->fenced[n].version;
		n++;
	}
	return n;
}

static size_t take_bad(struct xfa_report *r, uint64_t now, struct msg_publish_item *out)
{
	size_t n = 0;
	for (size_t i = 0; i < r->n_bad && n < XFA_ITEMS_MAX; i++) {
		struct xfa_bad *b = &r->bad[i];
		if (b->due_ns > now || b->shard != r->shard)
			continue;
		b->due_ns = now + BAD_NS;
		out[n++] = (struct msg_publish_item){ .slot = b->at.slot,
						      .generation = b->at.generation,
						      .version = b->at.version,
						      .sum = b->at.sum,
						      .retired = true };
	}
	return n;
}

static size_t take_failed(struct xfa_report *r, struct msg_copy_fail *out)
{
	size_t n = 0;
	while (n < r->n_failed && n < XFA_ITEMS_MAX && r->failed[n].shard == r->shard) {
		const struct xfa_failed *f = &r->failed[n];
		out[n++] = (struct msg_copy_fail){ .version = f->version,
						   .status = (uint32_t)f->err,
						   .attempt = f->attempt,
						   .text = BYTES_STR(f->text),
						   .source = BYTES_STR(f->source) };
	}
	return n;
}

/* The shard that has something to say; false: none. */
static bool pick_shard(struct xfa_report *r, uint64_t now)
{
	if (r->n_fenced) {
		r->shard = r->fenced[0].shard;
		return true;
	}
	if (r->n_failed) {
		r->shard = r->failed[0].shard;
		return true;
	}
	for (size_t i = 0; i < r->n_bad; i++)
		if (r->bad[i].due_ns <= now) {
			r->shard = r->bad[i].shard;
			return true;
		}
	return false;
}

static enum err encode(struct xfa *x, uint64_t now)
{
	struct xfa_report *r = &x->report;
	struct hold_under h = hold_under(x->hold, r->shard);
	struct msg_under u = { h.shard, h.term, h.adoption, h.pool_epoch };
	uint64_t *fenced = calloc(XFA_ITEMS_MAX, sizeof(*fenced));
	struct msg_publish_item *bad = calloc(XFA_ITEMS_MAX, sizeof(*bad));
	struct msg_copy_fail *failed = calloc(r->n_failed + 1, sizeof(*failed));
	enum err e = fenced && bad && failed ? ERR_NONE : ERR_NO_MEMORY;
	if (e == ERR_NONE) {
		struct msg_report_req m = { .holder = BYTES_STR(x->svc.id), .under = &u };
		r->n_sent = take_fenced(r, fenced);
		m.fenced = (struct u64s){ fenced, r->n_sent };
		m.corrupt = (struct list_publish_item){ bad, take_bad(r, now, bad) };
		r->n_sent_failed = take_failed(r, failed);
		m.failed = (struct list_copy_fail){ failed, r->n_sent_failed };
		buf_clear(&r->body);
		enc_report_req(&r->body, &m);
		e = buf_err(&r->body);
	}
	free(fenced);
	free(bad);
	free(failed);
	return e;
}

static void report(struct xfa *x)
{
	struct xfa_report *r = &x->report;
	uint64_t now = loop_now_ns(x->svc.loop);
	if (r->busy || now < r->retry_ns || !x->link.adopted || !pick_shard(r, now))
		return;
	if (encode(x, now) != ERR_NONE) {
		r->n_sent = r->n_sent_failed = 0;
		r->retry_ns = now + AGAIN_NS;
		return;
	}
	r->busy = true;
	metric_add(x->svc.metrics, XFA_M_BATCHES, 2, 1);
	r->call = (struct rpc_call){ .method = METHOD_REPORT,
				     .shard = r->shard,
				     .idempotent = true,
				     .deadline_ns = now + CALL_NS,
				     .body = buf_bytes(&r->body),
				     .done = on_answer };
	rpc_send(x->link.client, &r->call);
}

/* ---- the sweep ---- */

/* quarantine_max: the master refuses the clients' puts from there on; here it is said once. */
static void look_at_quarantine(struct xfa *x, uint64_t bytes)
{
	struct xfa_report *r = &x->report;
	uint64_t limit =
		(uint64_t)(x->quarantine_max * (double)xfa_memory_bytes(x).bytes_total);
	if (bytes > limit && !r->loud)
		LOG_WARN(
			&x->svc.log, "fence",
			"quarantine_bytes=%" PRIu64 " limit=%" PRIu64
			" notice=\"stopped or slow local writers hold it; it is free when they "
			"go on or end\"",
			bytes, limit);
	r->loud = bytes > limit;
}

static void on_sweep(struct timer *t)
{
	struct xfa_report *r = container_of(t, struct xfa_report, sweep);
	struct xfa *x = container_of(r, struct xfa, report);
	uint64_t began = loop_now_ns(x->svc.loop);
	hold_sweep(x->hold);
	uint64_t took = loop_now_ns(x->svc.loop) - began;
	uint64_t bytes = hold_quarantine(x->hold);
	look_at_quarantine(x, bytes);
	if (xfa_data_doubts(x->data, x->hold))
		xfa_verify_again(x);
	if (r->n_bad)
		forget_gone(x);
	report(x);
	bool busy = bytes > 0 || r->n_fenced > 0 || r->n_failed > 0;
	/* with thousands of sessions a look costs something: at most a twentieth of the loop (L4) */
	sweep_in(x, MAX_OF(took * 19, busy ? SWEEP_BUSY_NS : SWEEP_IDLE_NS));
}

static void sweep_in(struct xfa *x, uint64_t ns)
{
	if (!x->report.stopped)
		timer_start(x->svc.loop, &x->report.sweep, loop_now_ns(x->svc.loop) + ns,
			    on_sweep);
}

void xfa_report_sweep_soon(struct xfa *x)
{
	sweep_in(x, 0);
}

void xfa_report_start(struct xfa *x)
{
	x->report.body = BUF_INIT(WIRE_MESSAGE_MAX / 2);
	sweep_in(x, SWEEP_IDLE_NS);
}

void xfa_report_stop(struct xfa *x)
{
	x->report.stopped = true;
	timer_stop(x->svc.loop, &x->report.sweep);
}

void xfa_report_fini(struct xfa *x)
{
	struct xfa_report *r = &x->report;
	assert(!r->busy);
	buf_fini(&r->body);
	free(TAKE(r->fenced));
	free(TAKE(r->bad));
	free(TAKE(r->failed));
}
