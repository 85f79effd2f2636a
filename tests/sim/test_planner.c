/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner over rpc: pieces lost, repeated and out of order, limits, cancels, kills, callers that
 * go; its memory after each. On a virtual clock; what needs no faults also as the real daemon.
 */
#include "tests/support/cluster_svc.h"
#include "tests/support/layout.h"
#include "tests/support/leak.h"

#include "proto/messages.h"
#include "services/weight-planner/planner.h"

#include <criterion/criterion.h>
#include <string.h>

#define MS 2000
#define LIMITS                                                                               \
	"--set", "planner.message_max=64KiB", "--set", "planner.memory=32MiB", "--set",      \
		"planner.tenant_memory=32MiB", "--set", "planner.cache_bytes=4MiB", "--set", \
		"planner.plan_memory=12MiB", "--set", "planner.text_max=8MiB", "--set",      \
		"planner.plans_max=6", "--set", "planner.tenant_plans_max=4", "--set",       \
		"planner.idle_ms=3000", "--set", "grace_ms=500"
static const char *const flags[] = { LIMITS, NULL };
static const char *const masters[] = { "sim://m0/master" };
static const struct cl_svc planner = { &wpl_def, masters, 1, flags };
static const char *const real_args[] = { "--data",	   "%d",    "--set",
					 "secret_file=%s", "--set", "planner.http_port=0",
					 LIMITS,	   NULL };

static const struct cl_from anna = { .node = "c", .role = ROLE_CLIENT, .tenant = "anna" };
static const struct cl_from otto = { .node = "c", .role = ROLE_CLIENT, .tenant = "otto" };

struct world {
	struct cluster *c;
	struct buf source, target; /* texts */
	struct buf want;	   /* the plan's text, made here */
	char source_digest[SHA_HEX], target_digest[SHA_HEX];
};

static bool put(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

/* What the planner must say: the same by the library. */
static void make_want(struct world *w)
{
	static struct text_out o;
	struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	struct place *s = NULL, *t = NULL;
	struct plan *p = NULL;
	cr_assert_eq(place_read(buf_bytes(&w->source), PLACE_DRAFT, &lim, &why, &s), ERR_NONE,
		     "%s %s", rule_name(why.rule), why.path);
	cr_assert_eq(place_read(buf_bytes(&w->target), PLACE_DRAFT, &lim, &why, &t), ERR_NONE);
	struct plan_ask a = { .source = s, .target = t, .lim = PLAN_LIMITS_WIDE };
	cr_assert_eq(plan_make(&a, &why, &p), ERR_NONE);
	text_init(&o, NULL, false);
	o.put = put;
	o.arg = &w->want;
	plan_text(p, &o);
	text_flush(&o);
	memcpy(w->source_digest, s->digest, SHA_HEX);
	memcpy(w->target_digest, t->digest, SHA_HEX);
	plan_free(p);
	place_free(s);
	place_free(t);
}

static void world_open(struct world *w, enum cl_backend b, uint64_t seed)
{
	*w = (struct world){ .source = BUF_INIT(16 << 20),
			     .target = BUF_INIT(16 << 20),
			     .want = BUF_INIT(64 << 20) };
	layout_text(&w->source, 300, 8, 4);
	layout_text(&w->target, 300, 8, 2);
	make_want(w);
	w->c = cl_open(&(struct cl_opts){ .backend = b, .seed = seed });
	cl_add(w->c,
	       &(struct cl_member_opts){ .name = "planner",
					 .node = "s",
					 .app = &cl_svc_app,
					 .arg = (void *)&planner,
					 .exe = "services/weight-planner/pomelo-weight-planner",
					 .args = real_args,
					 .addr = "ipc://%d/run/planner.sock" });
	cr_assert(cl_start(w->c, "planner"), "%s", cl_why(w->c, "planner"));
	cl_run_ms(w->c, 100);
}

static struct wpl *wpl(struct world *w)
{
	struct svc *s = cl_svc_of(w->c, "planner");
	return s ? wpl_of(s) : NULL;
}

/* Every plan goes, and with them all memory but the cache. */
static void world_close(struct world *w)
{
	struct wpl *x = wpl(w);
	if (x) {
		cl_run_ms(w->c, 6000);
		cr_expect_eq(x->plans.plans.n, 0, "idle plans are dropped");
		cr_expect_eq(x->mem.used, x->shelf.bytes, "nothing but the cache is held");
		cr_expect_eq(x->n_running + x->n_waiting, 0);
		wpl_plans_check(&x->plans);
		wpl_shelf_check(&x->shelf);
	}
	cl_close(w->c);
	buf_fini(&w->source);
	buf_fini(&w->target);
	buf_fini(&w->want);
}

/* ---- calls ---- */

static struct why last; /* of the last call; tests run one at a time */

#define CALL(w, from, METHOD, req, msg)                                          \
	({                                                                       \
		struct buf body_ = BUF_INIT(8 << 20);                            \
		enc_##req(&body_, msg);                                          \
		last = (struct why){ 0 };                                        \
		enum err e_ = cl_call((w)->c, from, "planner", METHOD_##METHOD,  \
				      buf_bytes(&body_), MS, &reply_buf, &last); \
		buf_fini(&body_);                                                \
		e_;                                                              \
	})
static struct buf reply_buf = { .limit = 8 << 20 };

static void id_of(uint8_t id[16], int n)
{
	memset(id, n, 16);
}

/* digest NULL: unknown. bytes 0: no text. */
static struct msg_plan_input input(const char *digest, size_t bytes)
{
	return (struct msg_plan_input){ .form = WPL_DRAFT,
					.digest = BYTES(digest, digest ? SHA_HEX : 0),
					.bytes = bytes };
}

static enum err begin(struct world *w, struct cl_from from, int id, struct msg_plan_input s,
		      struct msg_plan_input t, struct msg_plan_begin_rep *out)
{
	struct msg_plan_begin_req q = { .source = &s, .target = &t };
	id_of(q.plan, id);
	enum err e = CALL(w, from, PLAN_BEGIN, plan_begin_req, &q);
	struct dec d = DEC_INIT(buf_bytes(&reply_buf), NULL, NULL);
	if (!e)
		cr_assert_eq(dec_plan_begin_rep(&d, out), ERR_NONE);
	return e;
}

static enum err begin_texts(struct world *w, struct cl_from from, int id,
			    struct msg_plan_begin_rep *out)
{
	return begin(w, from, id, input(NULL, w->source.n), input(NULL, w->target.n), out);
}

static enum err part(struct world *w, struct cl_from from, int id, uint8_t side,
		     uint64_t offset, size_t n)
{
	const struct buf *b = side == 1 ? &w->source : &w->target;
	struct msg_plan_part_req q = { .side = side, .offset = offset };
	q.data = BYTES(b->p + (offset + n <= b->n ? offset : 0), n);
	id_of(q.plan, id);
	return CALL(w, from, PLAN_PART, plan_part_req, &q);
}

/* All pieces of a side, the last first. */
static enum err parts(struct world *w, struct cl_from from, int id, uint8_t side, size_t each)
{
	const struct buf *b = side == 1 ? &w->source : &w->target;
	for (size_t i = (b->n + each - 1) / each; i-- > 0;) {
		enum err e = part(w, from, id, side, i * each, MIN_OF(each, b->n - i * each));
		if (e)
			return e;
	}
	return ERR_NONE;
}

static enum err run(struct world *w, struct cl_from from, int id, struct msg_plan_run_rep *out)
{
	struct msg_plan_id q = { 0 };
	id_of(q.plan, id);
	enum err e = CALL(w, from, PLAN_RUN, plan_id, &q);
	struct dec d = DEC_INIT(buf_bytes(&reply_buf), NULL, NULL);
	if (!e && out)
		cr_assert_eq(dec_plan_run_rep(&d, out), ERR_NONE);
	return e;
}

static enum err cancel(struct world *w, struct cl_from from, int id)
{
	struct msg_plan_id q = { 0 };
	id_of(q.plan, id);
	return CALL(w, from, PLAN_CANCEL, plan_id, &q);
}

/* The plan's text in pieces of `bytes`, compared. */
static enum err compare(struct world *w, struct cl_from from, int id, uint32_t bytes)
{
	bool ended = false;
	for (uint64_t at = 0; !ended;) {
		struct msg_plan_next_req q = { .offset = at, .bytes = bytes };
		struct msg_plan_next_rep m;
		id_of(q.plan, id);
		enum err e = CALL(w, from, PLAN_NEXT, plan_next_req, &q);
		struct dec d = DEC_INIT(buf_bytes(&reply_buf), NULL, NULL);
		if (e)
			return e;
		cr_assert_eq(dec_plan_next_rep(&d, &m), ERR_NONE);
		cr_assert_leq(at + m.data.n, w->want.n);
		cr_assert_eq(memcmp(m.data.p, w->want.p + at, m.data.n), 0, "at %lu", at);
		at += m.data.n;
		ended = m.last;
		cr_assert(ended ? at == w->want.n : m.data.n > 0);
	}
	return ERR_NONE;
}

static enum err whole(struct world *w, struct cl_from from, int id)
{
	struct msg_plan_begin_rep b;
	struct msg_plan_run_rep r;
	enum err e = begin_texts(w, from, id, &b);
	if (!e)
		e = parts(w, from, id, 1, b.part_bytes);
	if (!e)
		e = parts(w, from, id, 2, b.part_bytes);
	if (!e)
		e = run(w, from, id, &r);
	return e ? e : compare(w, from, id, 0);
}

/* ---- tests ---- */

static void in_pieces(enum cl_backend b)
{
	struct world w;
	struct msg_plan_begin_rep rep;
	struct msg_plan_run_rep made;
	world_open(&w, b, 1);
	cr_assert_eq(begin_texts(&w, anna, 1, &rep), ERR_NONE, "%s", last.text);
	cr_assert_eq(rep.source_missing, w.source.n);
	cr_assert_gt(w.source.n, 2 * rep.part_bytes, "it takes several");
	cr_assert_eq(parts(&w, anna, 1, 1, rep.part_bytes), ERR_NONE);
	cr_assert_eq(parts(&w, anna, 1, 2, rep.part_bytes), ERR_NONE);
	cr_assert_eq(run(&w, anna, 1, &made), ERR_NONE, "%s", last.text);
	cr_expect_eq(made.text_bytes, w.want.n);
	cr_expect_eq(memcmp(made.source_digest.p, w.source_digest, SHA_HEX), 0);
	cr_expect_eq(made.regions, 1200);
	char digest[SHA_HEX];
	memcpy(digest, made.digest.p, SHA_HEX);
	cr_expect_eq(compare(&w, anna, 1, 0), ERR_NONE);
	cr_expect_eq(compare(&w, anna, 1, 5000), ERR_NONE);
	/* again: the same answer, at once */
	cr_assert_eq(run(&w, anna, 1, &made), ERR_NONE);
	cr_expect_eq(memcmp(made.digest.p, digest, SHA_HEX), 0);
	/* by digest alone, of that tenant */
	struct msg_plan_input s = input(w.source_digest, 0), t = input(w.target_digest, 0);
	cr_assert_eq(begin(&w, anna, 2, s, t, &rep), ERR_NONE, "%s", last.text);
	cr_expect_eq(rep.source_missing + rep.target_missing, 0);
	cr_assert_eq(run(&w, anna, 2, &made), ERR_NONE);
	cr_expect_eq(memcmp(made.digest.p, digest, SHA_HEX), 0);
	cr_expect_eq(begin(&w, otto, 3, s, t, &rep), ERR_NOT_FOUND, "not of another");
	cr_expect_eq(run(&w, otto, 2, &made), ERR_NOT_FOUND, "nor its plans");
	cr_expect_eq(cancel(&w, anna, 1), ERR_NONE);
	cr_expect_eq(compare(&w, anna, 1, 0), ERR_NOT_FOUND);
	cr_expect_eq(cancel(&w, anna, 1), ERR_NONE, "stopped is stopped");
	world_close(&w);
	buf_fini(&reply_buf);
}

Test(planner, in_pieces_sim, .timeout = 60)
{
	in_pieces(CL_SIM);
	NO_LEAKS();
}

Test(planner, in_pieces_real, .timeout = 90)
{
	in_pieces(CL_REAL);
	NO_LEAKS();
}

Test(planner, lost_and_repeated_pieces, .timeout = 60)
{
	struct world w;
	struct msg_plan_begin_rep rep;
	world_open(&w, CL_SIM, 2);
	cr_assert_eq(begin_texts(&w, anna, 1, &rep), ERR_NONE);
	uint32_t each = rep.part_bytes;
	cr_expect_eq(run(&w, anna, 1, NULL), ERR_CONFLICT);
	cr_assert_eq(part(&w, anna, 1, 1, 0, each), ERR_NONE);
	cr_assert_eq(part(&w, anna, 1, 1, 0, each), ERR_NONE, "again");
	cr_expect_eq(run(&w, anna, 1, NULL), ERR_CONFLICT);
	char want[64];
	snprintf(want, sizeof(want), "from byte %u on", each);
	cr_expect(strstr(last.text, want), "%s", last.text);
	cr_expect_eq(part(&w, anna, 1, 1, 1, each), ERR_INVALID_PARAMS,
		     "no piece begins there");
	cr_expect_eq(part(&w, anna, 1, 1, each, each - 1), ERR_INVALID_PARAMS, "too short");
	cr_expect_eq(part(&w, anna, 1, 1, 100ull * each, each), ERR_INVALID_PARAMS, "beyond");
	cr_expect_eq(part(&w, anna, 1, 3, 0, each), ERR_INVALID_PARAMS, "no such side");
	cr_expect_eq(part(&w, otto, 1, 1, 0, each), ERR_NOT_FOUND, "another tenant's");
	cr_assert_eq(begin_texts(&w, anna, 1, &rep), ERR_NONE, "begun again: the same plan");
	cr_expect_eq(rep.source_missing, w.source.n - each);
	cr_expect_eq(begin(&w, anna, 1, input(NULL, 5), input(NULL, 5), &rep), ERR_EXISTS);
	cr_assert_eq(parts(&w, anna, 1, 1, each), ERR_NONE);
	cr_assert_eq(parts(&w, anna, 1, 2, each), ERR_NONE);
	cr_assert_eq(run(&w, anna, 1, NULL), ERR_NONE, "%s", last.text);
	cr_expect_eq(part(&w, anna, 1, 1, 0, each), ERR_NONE, "late and known");
	cr_expect_eq(compare(&w, anna, 1, 0), ERR_NONE);
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

Test(planner, what_is_refused_is_typed, .timeout = 60)
{
	struct world w;
	struct msg_plan_begin_rep rep;
	world_open(&w, CL_SIM, 3);
	uint8_t *at = memmem(w.source.p, w.source.n, "\"nbytes\":32", 11);
	cr_assert_not_null(at);
	at[9] = '7';
	cr_assert_eq(begin_texts(&w, anna, 1, &rep), ERR_NONE);
	cr_assert_eq(parts(&w, anna, 1, 1, rep.part_bytes), ERR_NONE);
	cr_assert_eq(parts(&w, anna, 1, 2, rep.part_bytes), ERR_NONE);
	for (int i = 0; i < 2; i++) {
		cr_expect_eq(run(&w, anna, 1, NULL), ERR_BAD_MANIFEST, "the same twice");
		cr_expect(strstr(last.text, "fragment.nbytes at parts[0].fragments[0].nbytes"),
			  "%s", last.text);
	}
	cr_expect_eq(compare(&w, anna, 1, 0), ERR_CONFLICT, "there is no plan");
	at[9] = '3';
	/* a digest that is not the text's */
	cr_assert_eq(begin(&w, anna, 2, input(w.target_digest, w.source.n),
			   input(NULL, w.target.n), &rep),
		     ERR_NONE);
	cr_assert_eq(parts(&w, anna, 2, 1, rep.part_bytes), ERR_NONE);
	cr_assert_eq(parts(&w, anna, 2, 2, rep.part_bytes), ERR_NONE);
	cr_expect_eq(run(&w, anna, 2, NULL), ERR_BAD_MANIFEST);
	cr_expect(strstr(last.text, "source.digest"), "%s", last.text);
	struct msg_plan_input bad = input(NULL, 10);
	bad.form = 9;
	cr_expect_eq(begin(&w, anna, 3, bad, input(NULL, 10), &rep), ERR_INVALID_PARAMS);
	bad = input(NULL, 10);
	bad.form = WPL_STORED;
	cr_expect_eq(begin(&w, anna, 3, input(NULL, 10), bad, &rep), ERR_INVALID_PARAMS,
		     "the target is a placement");
	cr_expect_eq(begin(&w, anna, 3, input(NULL, 0), input(NULL, 10), &rep),
		     ERR_INVALID_PARAMS, "neither digest nor text");
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

Test(planner, limits, .timeout = 60)
{
	struct world w;
	struct msg_plan_begin_rep rep;
	world_open(&w, CL_SIM, 4);
	cr_expect_eq(begin(&w, anna, 1, input(NULL, 9 << 20), input(NULL, 1), &rep),
		     ERR_TOO_LARGE);
	cr_expect(strstr(last.text, "text_max"), "%s", last.text);
	/* half of the memory is for texts */
	cr_expect_eq(begin(&w, anna, 1, input(NULL, 8 << 20), input(NULL, 7 << 20), &rep),
		     ERR_NONE);
	cr_expect_eq(begin(&w, anna, 2, input(NULL, 1 << 20), input(NULL, 1 << 20), &rep),
		     ERR_BUSY);
	cr_expect(strstr(last.text, "planner.memory"), "%s", last.text);
	cr_expect_eq(cancel(&w, anna, 1), ERR_NONE);
	for (int i = 1; i <= 4; i++)
		cr_expect_eq(begin(&w, anna, i, input(NULL, 9), input(NULL, 9), &rep),
			     ERR_NONE);
	cr_expect_eq(begin(&w, anna, 5, input(NULL, 9), input(NULL, 9), &rep), ERR_BUSY);
	cr_expect(strstr(last.text, "tenant_plans_max"), "%s", last.text);
	for (int i = 5; i <= 6; i++)
		cr_expect_eq(begin(&w, otto, i, input(NULL, 9), input(NULL, 9), &rep),
			     ERR_NONE);
	cr_expect_eq(begin(&w, otto, 7, input(NULL, 9), input(NULL, 9), &rep), ERR_BUSY);
	cr_expect(strstr(last.text, "planner.plans_max"), "%s", last.text);
	cl_run_ms(w.c, 5000);
	cr_expect_eq(begin(&w, anna, 5, input(NULL, 9), input(NULL, 9), &rep), ERR_NONE,
		     "the others were dropped");
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

/* ---- calls that overlap ---- */

struct call {
	struct rpc_call call;
	struct buf body;
	bool ended;
};

static void on_done(struct rpc_call *c)
{
	struct call *x = container_of(c, struct call, call);
	x->ended = true;
	buf_fini(&x->body);
}

static bool has_ended(void *arg)
{
	return ((struct call *)arg)->ended;
}

static void send(struct world *w, struct cl_from from, struct call *x, uint32_t method, int id,
		 uint32_t ms)
{
	struct loop *l;
	struct rpc_client *cl = cl_client(w->c, from, "planner", &l);
	struct msg_plan_id q = { 0 };
	id_of(q.plan, id);
	*x = (struct call){ .body = BUF_INIT(1024) };
	enc_plan_id(&x->body, &q);
	x->call = (struct rpc_call){ .method = method,
				     .idempotent = true,
				     .deadline_ns = clock_after_ms(loop_now_ns(l), ms),
				     .body = buf_bytes(&x->body),
				     .done = on_done };
	rpc_send(cl, &x->call);
}

static void ready(struct world *w, struct cl_from from, int id)
{
	struct msg_plan_begin_rep rep;
	cr_assert_eq(begin_texts(w, from, id, &rep), ERR_NONE, "%s", last.text);
	cr_assert_eq(parts(w, from, id, 1, rep.part_bytes), ERR_NONE);
	cr_assert_eq(parts(w, from, id, 2, rep.part_bytes), ERR_NONE);
}

static bool is_running(void *arg)
{
	struct world *w = arg;
	return wpl(w)->n_running > 0;
}

/* At each moment of a run, from its first to after its last. */
Test(planner, a_cancel_at_any_moment, .timeout = 120)
{
	struct world w;
	int stopped = 0, made = 0;
	world_open(&w, CL_SIM, 5);
	for (int i = 0; i < 120; i++) {
		struct call r, c;
		ready(&w, anna, 1);
		send(&w, anna, &r, METHOD_PLAN_RUN, 1, MS);
		cr_assert(cl_until(w.c, is_running, &w, 1000) || r.ended);
		for (int k = 0; k < i % 12; k++)
			sim_step(cl_sim(w.c));
		send(&w, anna, &c, METHOD_PLAN_CANCEL, 1, MS);
		cr_assert(cl_until(w.c, has_ended, &c, MS) && cl_until(w.c, has_ended, &r, MS));
		cr_assert_eq(c.call.err, ERR_NONE);
		cr_assert(r.call.err == ERR_NONE || r.call.err == ERR_CANCELLED, "%s",
			  r.call.why.text);
		stopped += r.call.err == ERR_CANCELLED;
		made += r.call.err == ERR_NONE;
		cr_assert_eq(wpl(&w)->n_running, 0);
		cr_assert_eq(wpl(&w)->plans.plans.n, 0, "it is gone");
		cr_assert_eq(wpl(&w)->mem.used, wpl(&w)->shelf.bytes);
		wpl_plans_check(&wpl(&w)->plans);
	}
	cr_expect(stopped > 10, "%d stopped, %d made", stopped, made);
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

Test(planner, a_deadline_stops_the_work, .timeout = 60)
{
	struct world w;
	struct call r;
	world_open(&w, CL_SIM, 6);
	for (uint32_t ms = 1; ms < 12; ms++) {
		ready(&w, anna, 1);
		send(&w, anna, &r, METHOD_PLAN_RUN, 1, ms);
		cr_assert(cl_until(w.c, has_ended, &r, MS));
		cr_assert(r.call.err == ERR_TIMED_OUT || r.call.err == ERR_NONE);
		cl_run_ms(w.c, 100);
		cr_assert_eq(wpl(&w)->n_running, 0, "no worker goes on for nobody");
		cr_assert_eq(run(&w, anna, 1, NULL), ERR_NONE, "and it can be run again: %s",
			     last.text);
		cr_assert_eq(cancel(&w, anna, 1), ERR_NONE);
	}
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

/* The caller's connection goes; its call, sent again, finds the plan as it was. */
Test(planner, a_caller_that_goes, .timeout = 60)
{
	struct world w;
	world_open(&w, CL_SIM, 7);
	for (int i = 0; i < 40; i++) {
		struct call r;
		ready(&w, anna, 1);
		send(&w, anna, &r, METHOD_PLAN_RUN, 1, MS);
		cr_assert(cl_until(w.c, is_running, &w, 1000) || r.ended);
		for (int k = 0; k < i % 20; k++)
			sim_step(cl_sim(w.c));
		cl_reset(w.c, "c", "s");
		cr_assert(cl_until(w.c, has_ended, &r, MS));
		cr_assert(r.call.err == ERR_NONE || r.call.err == ERR_BUSY, "%s",
			  r.call.why.text);
		cl_run_ms(w.c, 200);
		cr_assert_eq(wpl(&w)->n_running, 0);
		cr_assert_eq(run(&w, anna, 1, NULL), ERR_NONE, "%d %s: %s", i,
			     err_name(r.call.err), last.text);
		cr_assert_eq(compare(&w, anna, 1, 0), ERR_NONE);
		cr_assert_eq(cancel(&w, anna, 1), ERR_NONE);
	}
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

Test(planner, a_killed_planner_forgets, .timeout = 60)
{
	struct world w;
	world_open(&w, CL_SIM, 8);
	for (int i = 0; i < 20; i++) {
		struct call r;
		ready(&w, anna, 1);
		send(&w, anna, &r, METHOD_PLAN_RUN, 1, MS);
		for (int k = 0; k < 3 * i; k++)
			sim_step(cl_sim(w.c));
		cl_restart(w.c, "planner");
		cr_assert(cl_until(w.c, has_ended, &r, MS + 100));
		cr_assert(r.call.err == ERR_NOT_FOUND || r.call.err == ERR_NONE, "%s: %s",
			  err_name(r.call.err), r.call.why.text);
		cl_run_ms(w.c, 100);
		cr_assert_eq(cancel(&w, anna, 1), ERR_NONE, "%s", last.text);
		cr_assert_eq(whole(&w, anna, 2), ERR_NONE, "begun again: %s", last.text);
		cr_assert_eq(cancel(&w, anna, 2), ERR_NONE);
	}
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

/* Three at once, with memory for one after the other: they wait, and none is refused. */
Test(planner, runs_wait_for_memory, .timeout = 60)
{
	struct world w;
	struct call r[4];
	uint32_t waited = 0;
	world_open(&w, CL_SIM, 9);
	for (int i = 0; i < 4; i++)
		ready(&w, i < 3 ? anna : otto, i + 1);
	for (int i = 0; i < 4; i++)
		send(&w, i < 3 ? anna : otto, &r[i], METHOD_PLAN_RUN, i + 1, MS);
	for (int i = 0; i < 4; i++)
		while (!r[i].ended && sim_step(cl_sim(w.c)))
			waited = MAX_OF(waited, wpl(&w)->n_waiting);
	for (int i = 0; i < 4; i++)
		cr_expect_eq(r[i].call.err, ERR_NONE, "%d: %s", i, r[i].call.why.text);
	cr_expect_gt(waited, 0, "some waited");
	cr_expect_leq(wpl(&w)->mem.peak, wpl(&w)->mem.limit);
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}

/* Partitions, resets, kills; a caller that tries until it has its plan. */
Test(planner, under_faults, .timeout = 240)
{
	uint64_t seed;
	for (struct sim_seeds sr = sim_seeds(10); sim_seeds_next(&sr, &seed);) {
		struct world w;
		struct cl_budget b = {
			.kill = 3, .partition = 3, .reset = 5, .delay = 3, .stop = 2
		};
		world_open(&w, CL_SIM, seed);
		cl_chaos(w.c, &b, 20000, NULL, NULL);
		for (int i = 1; i <= 12; i++) {
			int id = 2 * i;
			whole(&w, anna, id);
			cancel(&w, anna, id);
			cl_run_ms(w.c, 500);
		}
		cl_calm(w.c);
		cl_run_ms(w.c, 4000);
		cr_assert_eq(whole(&w, anna, 99), ERR_NONE, "%s", last.text);
		world_close(&w);
	}
	buf_fini(&reply_buf);
	NO_LEAKS();
}

/* A drain with plans inside: each call is answered, and the planner ends. */
Test(planner, drains, .timeout = 60)
{
	struct world w;
	struct call r;
	world_open(&w, CL_SIM, 11);
	ready(&w, anna, 1);
	send(&w, anna, &r, METHOD_PLAN_RUN, 1, MS);
	cr_assert(cl_until(w.c, is_running, &w, 1000) || r.ended);
	cl_term(w.c, "planner");
	cr_assert(cl_until(w.c, has_ended, &r, MS + 100));
	cr_expect(r.call.err != ERR_INTERNAL);
	cl_run_ms(w.c, 2000);
	cr_expect_not(cl_running(w.c, "planner"));
	world_close(&w);
	buf_fini(&reply_buf);
	NO_LEAKS();
}
