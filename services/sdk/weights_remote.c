/* SPDX-License-Identifier: Apache-2.0 */
/* Plans by the planner of a cluster: an operation around plan_flow.h, and what came of it. */
#include "plan_flow.h"
#include "weights_priv.h"

#include <string.h>

#define TEXT_MAX (2ull << 30)

struct remote {
	struct plan_flow flow;
	struct pml_op *op;
	struct buf copy[2]; /* texts of the form that does not wait */
	char digests[2][SHA_HEX];
	char *participant; /* copied */
	bool taken;
};

static struct remote *remote_of(const struct pml_op *op)
{
	return op->state;
}

/* ---- the operation ---- */

static void flow_done(struct plan_flow *f)
{
	struct pml_op *op = container_of(f, struct remote, flow)->op;
	if (f->err)
		sdk_error(&op->error, f->err, 0, "planner", "plan", "%s", f->why.text);
	op_complete(op);
}

static void run(struct pml_op *op)
{
	struct remote *r = remote_of(op);
	struct why why = { 0 };
	enum err e = sdk_end(op->p, op->parts[0].service, &r->flow.rpc, &why);
	if (!e) {
		r->flow.loop = &op->p->loop;
		r->flow.deadline_ns = op->deadline_ns;
		r->flow.done = flow_done;
		e = plan_flow_start(&r->flow);
	}
	if (e) {
		sdk_error(&op->error, e, 0, "planner", "connect", "%s",
			  why.err ? why.text : err_text(e));
		op_complete(op);
	}
}

static void stop(struct pml_op *op, enum err e, bool closing)
{
	plan_flow_stop(&remote_of(op)->flow, e, closing);
}

static void release(void *state)
{
	struct remote *r = state;
	plan_flow_fini(&r->flow);
	buf_fini(&r->copy[0]);
	buf_fini(&r->copy[1]);
	free(r->participant);
	free(r);
}

static const struct op_flow flow_ops = { run, stop, release };

/* ---- starting ---- */

static int bad(struct pml_error *err, const char *what)
{
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start", "%s", what);
}

static const char *check_side(const struct pml_remote_side *s, bool source)
{
	if (s->form < PML_PLACEMENT_WIRE ||
	    s->form > (source ? PML_STORED : PML_PLACEMENT_PARTS))
		return source ? "source.form: 0 to 3" : "target.form: 0 to 2";
	if (s->digest && strlen(s->digest) != SHA_HEX)
		return "digest: 64 hex digits, or NULL";
	if (!s->json && s->n)
		return "json may not be NULL when n is not 0";
	return s->digest || s->n ? NULL : "a side needs its json or its digest";
}

static bool take_side(struct remote *r, int i, const struct pml_remote_side *s, bool copy)
{
	struct flow_side *f = &r->flow.ask.in[i];
	f->form = (uint8_t)(s->form + 1);
	f->text = BYTES(s->json, s->n);
	if (s->digest) {
		memcpy(r->digests[i], s->digest, SHA_HEX);
		f->digest = BYTES(r->digests[i], SHA_HEX);
	}
	if (!copy || !s->n)
		return true;
	r->copy[i] = BUF_INIT(s->n);
	buf_put(&r->copy[i], s->json, s->n);
	f->text = buf_bytes(&r->copy[i]);
	return buf_err(&r->copy[i]) == ERR_NONE;
}

static struct remote *remote_new(const struct pml_remote_opts *o, bool copy)
{
	struct remote *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	struct flow_ask *a = &r->flow.ask;
	bool ok = take_side(r, 0, &o->source, copy) && take_side(r, 1, &o->target, copy);
	if (o->participant) {
		r->participant = strdup(o->participant);
		a->participant = BYTES_STR(o->participant);
		a->participant.p = (const uint8_t *)r->participant;
	}
	a->local = o->local || o->participant;
	a->max_regions = o->max_regions;
	a->max_segments_per_region = o->max_segments_per_region;
	a->max_total_segments = o->max_total_segments;
	a->text_max = o->max_text ? o->max_text : TEXT_MAX;
	if (ok && (!o->participant || r->participant))
		return r;
	release(r);
	return NULL;
}

static int start(struct pml *p, const struct pml_remote_opts *opts,
		 const struct pml_call_opts *o, struct pml_cq *cq, void *user, bool copy,
		 struct pml_op **out, struct pml_error *err)
{
	struct pml_remote_opts full;
	struct pml_op *op = NULL;
	int e = sdk_usable(p, err);
	if (e != PML_ERR_NONE)
		return e;
	if (!opts || !out || !sdk_opts(&full, sizeof(full), opts))
		return bad(err, "opts needs its size set (PML_REMOTE_OPTS_INIT), out a place");
	const char *wrong = check_side(&full.source, true);
	wrong = wrong ? wrong : check_side(&full.target, false);
	if (wrong)
		return bad(err, wrong);
	struct remote *r = remote_new(&full, copy);
	if (!r || op_new(p, OP_FLOW, 1, &op) != ERR_NONE) {
		if (r)
			release(r);
		return sdk_error(err, ERR_NO_MEMORY, 0, NULL, "start",
				 "no memory for the texts");
	}
	op->flow = &flow_ops;
	op->state = r;
	r->op = op;
	op->parts[0].service = sdk_service("planner");
	e = op_submit(op, o, cq, user, err);
	if (e == PML_ERR_NONE)
		*out = op;
	return e;
}

int pml_plan_remote_start(struct pml *p, const struct pml_remote_opts *opts,
			  const struct pml_call_opts *o, struct pml_cq *cq, void *user,
			  struct pml_op **out, struct pml_error *err)
{
	return start(p, opts, o, cq, user, true, out, err);
}

int pml_plan_remote(struct pml *p, const struct pml_remote_opts *opts,
		    const struct pml_call_opts *o, struct pml_plan **out, struct pml_error *err)
{
	struct pml_op *op = NULL;
	if (!out)
		return bad(err, "out may not be NULL");
	int e = start(p, opts, o, NULL, NULL, false, &op, err);
	if (e != PML_ERR_NONE)
		return e;
	op_wait(op);
	e = pml_op_plan(op, out, err);
	op_destroy(op);
	return e;
}

/* ---- what came ---- */

static bool digest_is(struct pml_plan *h, const char want[SHA_HEX])
{
	struct sha sha;
	if (sha_init(&sha) != ERR_NONE)
		return false;
	sha_add(&sha, h->text.p, h->text.n);
	sha_hex(&sha, h->digest);
	sha_fini(&sha);
	return memcmp(h->digest, want, SHA_HEX) == 0;
}

int pml_op_plan(struct pml_op *op, struct pml_plan **out, struct pml_error *err)
{
	int code = pml_op_code(op);
	if (code == PML_ERR_BUSY)
		return sdk_error(err, ERR_NOT_READY, 0, NULL, "take a plan", "it is under way");
	if (code != PML_ERR_NONE) {
		if (err && op_usable(op) == PML_ERR_NONE)
			sdk_error_copy(err, &op->error);
		return code;
	}
	if (!op || op->flow != &flow_ops || remote_of(op)->taken || !out)
		return bad(err, "the operation made no plan, or it was taken before");
	struct remote *r = remote_of(op);
	struct pml_plan *h = sdk_plan_new();
	if (!h)
		return sdk_error(err, ERR_NO_MEMORY, 0, NULL, "take a plan", "no memory");
	h->text = r->flow.text;
	r->flow.text = (struct buf){ 0 };
	r->taken = true;
	h->n_regions = r->flow.regions;
	h->total_segments = r->flow.segments;
	h->total_bytes = r->flow.total_bytes;
	h->n_sources = r->flow.sources;
	h->n_targets = r->flow.targets;
	h->n_routes = r->flow.routes;
	if (!digest_is(h, r->flow.digest)) {
		pml_plan_free(h);
		return sdk_error(err, ERR_CORRUPT, 0, "planner", "compare the digest",
				 "the plan that came is not the one that was made: SHA-256 "
				 "differs");
	}
	*out = h;
	return PML_ERR_NONE;
}

/* ---- its regions ---- */

static int read_list(struct pml_plan *p, struct pml_error *err)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	int e = PML_ERR_NONE;
	pthread_mutex_lock(&p->lock);
	if (!p->list) {
		enum err r = listed_plan_read(buf_bytes(&p->text), &lim, &why, &p->list);
		if (r)
			e = sdk_refused(err, r, &why, "read the plan");
		else if (p->list->n_ops != p->n_regions)
			e = sdk_error(err, ERR_CORRUPT, 0, "planner", "read the plan",
				      "%u regions; %llu were announced", p->list->n_ops,
				      (unsigned long long)p->n_regions);
	}
	pthread_mutex_unlock(&p->lock);
	return e;
}

static struct pml_text text_of(struct bytes b)
{
	return (struct pml_text){ (const char *)b.p, b.n };
}

int sdk_listed_region(struct pml_plan *p, uint64_t i, struct pml_region *out,
		      struct pml_error *err)
{
	int e = read_list(p, err);
	if (e)
		return e;
	const struct listed_op *o = &p->list->ops[i];
	uint64_t *const to[] = { out->outer_counts, out->source_strides, out->target_strides };
	out->tensor = text_of(o->tensor);
	out->source_fragment = text_of(o->source);
	out->target_fragment = text_of(o->target);
	out->source_participant = text_of(o->source_part);
	out->target_participant = text_of(o->target_part);
	out->source_base = o->source_base;
	out->target_base = o->target_base;
	out->inner_bytes = o->inner_bytes;
	out->segments = 1;
	out->n_outer = o->n_outer;
	for (uint32_t d = 0; d < o->n_outer; d++)
		if (__builtin_mul_overflow(out->segments, o->outer[d], &out->segments))
			out->segments = UINT64_MAX;
	for (int k = 0; k < 3 && o->n_outer; k++)
		memcpy(to[k], o->outer + (size_t)k * o->n_outer, o->n_outer * sizeof(uint64_t));
	return PML_ERR_NONE;
}
