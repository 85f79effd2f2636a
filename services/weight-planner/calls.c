/* SPDX-License-Identifier: Apache-2.0 */
/* PLAN_BEGIN, PLAN_PART, PLAN_RUN, PLAN_NEXT, PLAN_CANCEL (proto/weights.def). */
#include "planner.h"

#include "proto/messages.h"

#include <string.h>

#define ARENA_BYTES (64u << 10) /* the two inputs; unknown fields are skipped */

static void refuse(struct rpc_req *r, const struct why *why)
{
	rpc_reply_why(r, why, why->err == ERR_BUSY ? 100 : 0);
}

/* NULL: the caller has its answer. */
static struct wpl_plan *find(struct wpl *w, struct rpc_req *r, const uint8_t id[16])
{
	struct wpl_plan *p =
		wpl_plan_find(&w->plans, id, r->peer->tenant, loop_now_ns(w->svc.loop));
	if (!p)
		svc_refuse(
			r, ERR_NOT_FOUND,
			"no such plan here: dropped after %llu ms without a call, or the planner "
			"has restarted; begin it again",
			(unsigned long long)w->idle_ms);
	return p;
}

/* ---- PLAN_BEGIN ---- */

static void note_busy(struct wpl *w, enum err e, enum wpl_limit limit)
{
	static const unsigned cell[WPL_L_N] = { 0, 1, 2, 3 };
	if (e == ERR_BUSY)
		metric_add(w->svc.metrics, WPL_M_BUSY, cell[limit], 1);
}

static void begin(struct wpl *w, struct rpc_req *r, const struct msg_plan_begin_req *m)
{
	struct why why = { 0 };
	struct wpl_plan *p = NULL;
	enum wpl_limit limit = WPL_L_MEMORY;
	struct wpl_ask a = { .id = m->plan,
			     .tenant = r->peer->tenant,
			     .local = m->local,
			     .participant = m->participant,
			     .max_regions = m->max_regions,
			     .max_segments_per_region = m->max_segments_per_region,
			     .max_total_segments = m->max_total_segments,
			     .text_max = w->text_max };
	const struct msg_plan_input *in[2] = { m->source, m->target };
	for (int i = 0; i < 2; i++) {
		a.in[i].form = in[i]->form;
		a.in[i].digest = in[i]->digest;
		a.in[i].bytes = in[i]->bytes;
	}
	enum err e = wpl_plan_open(&w->plans, &a, loop_now_ns(w->svc.loop), &p, &limit, &why);
	if (e) {
		note_busy(w, e, limit);
		refuse(r, &why);
		return;
	}
	struct msg_plan_begin_rep rep = { .source_missing = p->in[0].missing,
					  .target_missing = p->in[1].missing,
					  .part_bytes = w->plans.part_bytes,
					  .idle_ms = (uint32_t)w->idle_ms };
	struct buf b = BUF_INIT(256);
	enc_plan_begin_rep(&b, &rep);
	svc_reply(r, &b);
}

static void on_begin(void *ctx, struct rpc_req *r)
{
	struct wpl *w = wpl_of(ctx);
	struct msg_plan_begin_req m;
	struct why why = { 0 };
	struct arena arena = ARENA_INIT(ARENA_BYTES);
	struct dec d = DEC_INIT(r->body, &arena, &why);
	if (dec_plan_begin_req(&d, &m) != ERR_NONE)
		rpc_reply_why(r, &why, 0);
	else if (!m.source || !m.target)
		svc_refuse(r, ERR_INVALID_PARAMS, "%s: needed", m.source ? "target" : "source");
	else
		begin(w, r, &m);
	arena_fini(&arena);
}

/* ---- PLAN_PART ---- */

static void on_part(void *ctx, struct rpc_req *r)
{
	struct wpl *w = wpl_of(ctx);
	struct msg_plan_part_req m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_plan_part_req(&d, &m) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	struct wpl_plan *p = find(w, r, m.plan);
	if (!p)
		return;
	if (wpl_plan_part(&w->plans, p, m.side, m.offset, m.data, &why) != ERR_NONE) {
		refuse(r, &why);
		return;
	}
	metric_add(w->svc.metrics, WPL_M_IN, 0, m.data.n);
	struct msg_plan_part_rep rep = { .missing = p->in[m.side - 1].missing };
	struct buf b = BUF_INIT(64);
	enc_plan_part_rep(&b, &rep);
	svc_reply(r, &b);
}

/* ---- PLAN_RUN ---- */

void wpl_run_answer(const struct wpl_plan *p, struct rpc_req *r)
{
	if (p->state == WPL_REFUSED) {
		rpc_reply_why(r, &p->why, 0);
		return;
	}
	struct msg_plan_run_rep m = { .digest = BYTES(p->digest, SHA_HEX),
				      .text_bytes = p->text.n,
				      .source_digest = BYTES(p->made_of[0], SHA_HEX),
				      .target_digest = BYTES(p->made_of[1], SHA_HEX),
				      .regions = p->regions,
				      .segments = p->segments,
				      .total_bytes = p->total_bytes,
				      .sources = p->sources,
				      .targets = p->targets,
				      .routes = p->routes,
				      .took_us = p->took_us };
	struct buf b = BUF_INIT(1024);
	enc_plan_run_rep(&b, &m);
	svc_reply(r, &b);
}

static void run(struct wpl *w, struct wpl_plan *p, struct rpc_req *r)
{
	struct why why = { 0 };
	enum err e = wpl_plan_whole(&w->plans, p, &why);
	if (!e)
		e = wpl_run_start(w, p, r);
	if (!e)
		return;
	if (!why.err)
		why_set(&why, e, "PLAN_RUN: %s",
			e == ERR_BUSY ? "as much is under way as planner.ops_max and "
					"parked_bytes_max allow"
				      : err_text(e));
	refuse(r, &why);
}

static void on_run(void *ctx, struct rpc_req *r)
{
	struct wpl *w = wpl_of(ctx);
	struct msg_plan_id m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_plan_id(&d, &m) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	struct wpl_plan *p = find(w, r, m.plan);
	if (!p)
		return;
	if (p->state == WPL_OPEN && !p->run) {
		run(w, p, r);
	} else if (p->run) {
		why_set(&why, ERR_BUSY, "it runs already, for an earlier call");
		rpc_reply_why(r, &why, 20);
	} else {
		wpl_run_answer(p, r);
	}
}

/* ---- PLAN_NEXT ---- */

static void on_next(void *ctx, struct rpc_req *r)
{
	struct wpl *w = wpl_of(ctx);
	struct msg_plan_next_req m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_plan_next_req(&d, &m) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	struct wpl_plan *p = find(w, r, m.plan);
	if (!p)
		return;
	if (p->state != WPL_MADE || m.offset > p->text.n) {
		svc_refuse(r, p->state == WPL_MADE ? ERR_INVALID_PARAMS : ERR_CONFLICT,
			   p->state == WPL_MADE ? "offset: %llu; the plan has %zu bytes"
						: "the plan is not made: run it first",
			   (unsigned long long)m.offset, p->text.n);
		return;
	}
	uint64_t most = m.bytes ? MIN_OF(m.bytes, w->plans.part_bytes) : w->plans.part_bytes;
	uint64_t n = MIN_OF(p->text.n - m.offset, most);
	struct msg_plan_next_rep rep = { .data = BYTES(p->text.p + m.offset, n),
					 .last = m.offset + n == p->text.n };
	struct buf b = BUF_INIT(n + 64);
	enc_plan_next_rep(&b, &rep);
	metric_add(w->svc.metrics, WPL_M_OUT, 0, n);
	svc_reply(r, &b);
}

/* ---- PLAN_CANCEL ---- */

static void on_cancel(void *ctx, struct rpc_req *r)
{
	struct wpl *w = wpl_of(ctx);
	struct msg_plan_id m;
	struct why why = { 0 };
	struct dec d = DEC_INIT(r->body, NULL, &why);
	if (dec_plan_id(&d, &m) != ERR_NONE) {
		rpc_reply_why(r, &why, 0);
		return;
	}
	struct wpl_plan *p =
		wpl_plan_find(&w->plans, m.plan, r->peer->tenant, loop_now_ns(w->svc.loop));
	/* a second one need not wait: the first does */
	if (p && p->run && !p->stopper && rpc_park(r) == ERR_NONE) {
		p->stopper = r;
		wpl_run_cancel(p);
		return;
	}
	if (p && p->run) {
		wpl_run_cancel(p);
	} else if (p) {
		wpl_plan_drop(&w->plans, p);
		wpl_run_wake(w);
	}
	rpc_reply(r, ERR_NONE, 0, BYTES(NULL, 0));
}

/* ---- the rows; who may call is proto/weights.def's column ---- */

/* clang-format off */
#define ROLES_OF(NAME, num, req, rep, allowed, idem, policy, doc) ROLES_OF_##NAME = (allowed),
enum { WEIGHTS_METHODS(ROLES_OF) };
#define ROW(NAME, handler, at_once) \
	{ .number = METHOD_##NAME, .name = #NAME, .roles = ROLES_OF_##NAME, .fn = (handler), .sync = (at_once) }
const struct rpc_method wpl_methods[WPL_N_METHODS] = {
	ROW(PLAN_BEGIN,  on_begin,  true),
	ROW(PLAN_PART,   on_part,   true),
	ROW(PLAN_RUN,    on_run,    false),
	ROW(PLAN_NEXT,   on_next,   true),
	ROW(PLAN_CANCEL, on_cancel, false),
};
/* clang-format on */
