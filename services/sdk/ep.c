/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pml_ep.h over common/ep: sizes of structs, error texts, events, rounds. No logic of the protocol.
 *
 * Owns: the wrappers. A buffer's two handles live in it. Thread: the caller's.
 */
#include "pml_ep.h"
#include "ep/ep.h"
#include "gpu/gpu.h"
#include "sdk.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct pml_ep_group {
	struct ep_exchange *x;
	pml_ep_all_gather fn; /* custom groups: own is what x points to */
	void *ctx;
	struct ep_exchange own;
};

struct pml_ep_buffer {
	struct ep_buf *b;
	struct pml_ep_group *group;
	uint32_t hidden, max_tokens, n_ranks;
	pid_t pid;
	bool gpu;
};

struct pml_ep_event {
	void *ev; /* NULL: it is over already */
};

static int fail(struct pml_error *err, const struct why *why, enum err e, const char *step)
{
	struct why w = *why;
	if (w.err == ERR_NONE)
		(void)why_set(&w, e, "%s", err_text(e));
	return sdk_error_why(err, &w, step);
}

static int refuse(struct pml_error *err, enum err e, const char *step, const char *text)
{
	struct why w = { 0 };
	(void)why_set(&w, e, "%s", text);
	return sdk_error_why(err, &w, step);
}

static int usable(const struct pml_ep_buffer *b, struct pml_error *err, const char *step)
{
	if (!b)
		return refuse(err, ERR_INVALID_PARAMS, step, "the buffer is NULL");
	if (b->pid != getpid())
		return refuse(err, ERR_FORKED, step,
			      "the buffer belongs to the parent process");
	return 0;
}

/* ---- groups ---- */

static enum err custom_gather(struct ep_exchange *x, uint64_t epoch, const void *mine, size_t n,
			      void *all, uint64_t timeout_us, struct why *why)
{
	struct pml_ep_group *g = container_of(x, struct pml_ep_group, own);
	int r = g->fn(g->ctx, epoch, mine, n, all, timeout_us);
	return r == 0 ? ERR_NONE
		      : why_set(why, (enum err)r, "bootstrap: your all_gather returned %d", r);
}

static struct pml_ep_group *group_of(struct ep_exchange *x)
{
	struct pml_ep_group *g = calloc(1, sizeof(*g));
	if (g)
		g->x = x;
	else
		x->close(x);
	return g;
}

int pml_ep_group_socket(const char *addr, uint32_t rank, uint32_t n_ranks, uint32_t deadline_ms,
			struct pml_ep_group **out, struct pml_error *err)
{
	struct why why = { 0 };
	struct ep_exchange *x = NULL;
	if (!addr || !out)
		return refuse(err, ERR_INVALID_PARAMS, "group", "addr or out is NULL");
	enum err e =
		exchange_socket(addr, rank, n_ranks, (uint64_t)deadline_ms * 1000, &x, &why);
	if (e != ERR_NONE)
		return fail(err, &why, e, "group");
	struct pml_ep_group *g = group_of(x);
	if (!g)
		return fail(err, &why, ERR_NO_MEMORY, "group");
	*out = g;
	return 0;
}

int pml_ep_group_local(uint32_t n_ranks, struct pml_ep_group **out, struct pml_error *err)
{
	struct ep_exchange *x[EP_RANKS_MAX];
	struct pml_ep_group *g[EP_RANKS_MAX];
	if (n_ranks < 1 || n_ranks > EP_RANKS_MAX || !out)
		return refuse(err, ERR_INVALID_PARAMS, "group",
			      "num_ranks is out of its range 1 to 64, or out is NULL");
	enum err e = exchange_local(n_ranks, x);
	bool all = e == ERR_NONE;
	for (uint32_t r = 0; r < n_ranks && e == ERR_NONE; r++)
		all &= (g[r] = group_of(x[r])) != NULL;
	if (!all) {
		for (uint32_t r = 0; r < n_ranks && e == ERR_NONE; r++)
			(void)pml_ep_group_free(g[r]);
		return refuse(err, ERR_NO_MEMORY, "group", err_text(ERR_NO_MEMORY));
	}
	memcpy(out, g, n_ranks * sizeof(*out));
	return 0;
}

int pml_ep_group_custom(uint32_t rank, uint32_t n_ranks, pml_ep_all_gather fn, void *ctx,
			struct pml_ep_group **out, struct pml_error *err)
{
	if (rank >= n_ranks || n_ranks > EP_RANKS_MAX || !fn || !out)
		return refuse(
			err, ERR_INVALID_PARAMS, "group",
			"rank must be below num_ranks, that at most 64; fn and out given");
	struct pml_ep_group *g = calloc(1, sizeof(*g));
	if (!g)
		return refuse(err, ERR_NO_MEMORY, "group", err_text(ERR_NO_MEMORY));
	*g = (struct pml_ep_group){ .fn = fn, .ctx = ctx };
	g->own = (struct ep_exchange){ rank, n_ranks, custom_gather, NULL };
	g->x = &g->own;
	*out = g;
	return 0;
}

int pml_ep_group_free(struct pml_ep_group *g)
{
	if (g && g->x->close)
		g->x->close(g->x);
	free(g);
	return 0;
}

/* ---- buffers ---- */

int pml_ep_buffer_size(uint32_t num_max_dispatch_tokens_per_rank, uint32_t hidden,
		       uint32_t num_ranks, uint32_t num_experts, uint64_t *bytes,
		       struct pml_error *err)
{
	struct why why = { 0 };
	if (!bytes)
		return refuse(err, ERR_INVALID_PARAMS, "buffer size", "bytes is NULL");
	enum err e = ep_buffer_size(num_max_dispatch_tokens_per_rank, hidden, num_ranks,
				    num_experts, bytes, &why);
	return e == ERR_NONE ? 0 : fail(err, &why, e, "buffer size");
}

static const char *transport_of(const struct pml_ep_opts *o)
{
	const char *t = o->transport;
	if (!t || !*t)
		t = secure_getenv("POMELO_EP_TRANSPORT");
	if (!t || !*t)
		t = secure_getenv("MOONCAKE_EP_TRANSPORT");
	return t && *t ? t : "auto";
}

int pml_ep_buffer_create(struct pml_ep_group *g, uint64_t bytes, const struct pml_ep_opts *opts,
			 struct pml_ep_buffer **out, struct pml_error *err)
{
	struct pml_ep_opts o;
	struct why why = { 0 };
	if (!g || !opts || !out || !sdk_opts(&o, sizeof(o), opts))
		return refuse(err, ERR_INVALID_PARAMS, "buffer",
			      "group, opts or out is NULL, or opts has no size");
	struct pml_ep_buffer *b = calloc(1, sizeof(*b));
	if (!b)
		return refuse(err, ERR_NO_MEMORY, "buffer", err_text(ERR_NO_MEMORY));
	struct ep_opts e_opts = { .exchange = g->x,
				  .max_tokens = o.num_max_dispatch_tokens_per_rank,
				  .hidden = o.hidden,
				  .n_experts = o.num_experts,
				  .expert_owner = o.expert_owner,
				  .bytes = bytes,
				  .transport = transport_of(&o),
				  .device = o.device,
				  .timeout_us = o.timeout_us,
				  .open_timeout_us = o.open_timeout_us,
				  .say = o.say,
				  .ctx = o.say_ctx };
	enum err e = ep_open(&e_opts, &b->b, &why);
	if (e != ERR_NONE) {
		free(b);
		return fail(err, &why, e, "buffer");
	}
	b->group = g;
	b->hidden = o.hidden;
	b->max_tokens = o.num_max_dispatch_tokens_per_rank;
	b->n_ranks = g->x->n_ranks;
	b->pid = getpid();
	b->gpu = strcmp(ep_transport(b->b), "host") != 0;
	*out = b;
	return 0;
}

int pml_ep_buffer_destroy(struct pml_ep_buffer *b)
{
	if (!b)
		return 0;
	if (b->pid != getpid())
		return ERR_FORKED;
	ep_close(b->b);
	free(b);
	return 0;
}

int pml_ep_buffer_update_members(struct pml_ep_buffer *b, struct pml_ep_group *g,
				 struct pml_error *err)
{
	struct why why = { 0 };
	int r = usable(b, err, "update members");
	if (r != 0)
		return r;
	if (!g)
		return refuse(err, ERR_INVALID_PARAMS, "update members", "the group is NULL");
	enum err e = ep_update_members(b->b, g->x, &why);
	if (e != ERR_NONE)
		return fail(err, &why, e, "update members");
	b->group = g;
	b->n_ranks = g->x->n_ranks;
	return 0;
}

const char *pml_ep_buffer_transport(const struct pml_ep_buffer *b)
{
	return b ? ep_transport(b->b) : "";
}

bool pml_ep_buffer_missed(const struct pml_ep_buffer *b, uint32_t rank, char *text, size_t cap)
{
	struct why why = { 0 };
	if (!b || b->pid != getpid() || !ep_missed(b->b, rank, NULL, &why))
		return false;
	if (text && cap > 0)
		snprintf(text, cap, "%s", why.text);
	return true;
}

/* ---- events ---- */

/* After a call that succeeded. On the CPU everything is over by then. */
static int event_after(const struct pml_ep_buffer *b, void *stream, struct pml_ep_event **out,
		       struct pml_error *err)
{
	struct why why = { 0 };
	if (!out)
		return 0;
	struct pml_ep_event *ev = calloc(1, sizeof(*ev));
	int device = 0;
	enum err e = ev ? ERR_NONE : ERR_NO_MEMORY;
	if (e == ERR_NONE && b->gpu) {
		e = gpu_current(&device, &why);
		if (e == ERR_NONE)
			e = gpu_event_new(device, false, &ev->ev, &why);
		if (e == ERR_NONE)
			e = gpu_event_record(ev->ev, stream, &why);
	}
	if (e != ERR_NONE) {
		pml_ep_event_free(ev);
		return fail(err, &why, e, "event");
	}
	*out = ev;
	return 0;
}

int pml_ep_event_stream_wait(struct pml_ep_event *e, void *stream, struct pml_error *err)
{
	struct why why = { 0 };
	if (!e)
		return refuse(err, ERR_INVALID_PARAMS, "event", "the event is NULL");
	enum err r = e->ev ? gpu_stream_wait(stream, e->ev, &why) : ERR_NONE;
	return r == ERR_NONE ? 0 : fail(err, &why, r, "event");
}

int pml_ep_event_wait(struct pml_ep_event *e, struct pml_error *err)
{
	struct why why = { 0 };
	if (!e)
		return refuse(err, ERR_INVALID_PARAMS, "event", "the event is NULL");
	enum err r = e->ev ? gpu_event_wait(e->ev, &why) : ERR_NONE;
	return r == ERR_NONE ? 0 : fail(err, &why, r, "event");
}

void pml_ep_event_free(struct pml_ep_event *e)
{
	if (e && e->ev)
		gpu_event_free(e->ev);
	free(e);
}

/* ---- a step ---- */

static enum err check_x(const struct pml_ep_buffer *b, const struct pml_ep_dispatch_args *a,
			struct why *why)
{
	if (a->x_dtype != PML_EP_BF16)
		return why_set(why, ERR_INVALID_PARAMS,
			       "x_dtype is %u, allowed is 0 (PML_EP_BF16)", a->x_dtype);
	if (a->x_stride != 0 && a->x_stride != b->hidden)
		return why_set(why, ERR_INVALID_PARAMS,
			       "x is not contiguous: x_stride is %u, allowed are 0 and %u",
			       a->x_stride, b->hidden);
	if (a->flags & ~(uint32_t)(PML_EP_FP8 | PML_EP_ASYNC | PML_EP_HOOK))
		return why_set(why, ERR_INVALID_PARAMS,
			       "flags is 0x%x, dispatch knows FP8 1, ASYNC 2, HOOK 4",
			       a->flags);
	return ERR_NONE;
}

static struct ep_dispatch_args dispatch_args(const struct pml_ep_dispatch_args *a)
{
	return (struct ep_dispatch_args){ .x = a->x,
					  .topk = a->topk_idx,
					  .n_tokens = a->num_tokens,
					  .top_k = a->top_k,
					  .n_experts = a->num_experts,
					  .flags = a->flags, /* the same bits */
					  .timeout_us = a->timeout_us,
					  .stream = a->stream,
					  .active = a->active_ranks,
					  .recv_x = a->recv_x,
					  .recv_scales = a->scales,
					  .recv_count = a->recv_count,
					  .src_info = a->src_info,
					  .range = a->layout_range };
}

_Static_assert((int)PML_EP_FP8 == (int)EP_FP8 && (int)PML_EP_ASYNC == (int)EP_ASYNC &&
		       (int)PML_EP_HOOK == (int)EP_HOOK &&
		       (int)PML_EP_ZERO_COPY == (int)EP_ZERO_COPY &&
		       PML_EP_TIMEOUT_NONE == EP_FOREVER && PML_EP_RANKS_MAX == EP_RANKS_MAX &&
		       PML_EP_TOP_K_MAX == EP_TOP_K_MAX && PML_EP_HIDDEN_MAX == EP_HIDDEN_MAX &&
		       PML_EP_BLOB_MAX == EXCHANGE_BLOB_MAX,
	       "pml_ep.h and ep.h say the same");

/* A handle is common/ep's own: pml_ep_handle is never defined. */
static struct ep_handle *inner(struct pml_ep_handle *h)
{
	return (struct ep_handle *)(void *)h;
}

int pml_ep_dispatch(struct pml_ep_buffer *b, const struct pml_ep_dispatch_args *args,
		    struct pml_ep_handle **out, struct pml_ep_event **event,
		    struct pml_error *err)
{
	struct pml_ep_dispatch_args a;
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	int r = usable(b, err, "dispatch");
	if (r != 0)
		return r;
	if (!args || !out || !sdk_opts(&a, sizeof(a), args))
		return refuse(err, ERR_INVALID_PARAMS, "dispatch",
			      "args or out is NULL, or args has no size");
	enum err e = check_x(b, &a, &why);
	struct ep_dispatch_args d = dispatch_args(&a);
	if (e == ERR_NONE)
		e = ep_dispatch(b->b, &d, &h, &why);
	if (e != ERR_NONE)
		return fail(err, &why, e, "dispatch");
	r = event_after(b, a.stream, event, err);
	if (r != 0) {
		ep_handle_drop(h);
		return r;
	}
	*out = (struct pml_ep_handle *)(void *)h;
	return 0;
}

int pml_ep_hook(struct pml_ep_handle *h, struct pml_error *err)
{
	struct why why = { 0 };
	enum err e = ep_hook(inner(h), &why);
	return e == ERR_NONE ? 0 : fail(err, &why, e, "hook");
}

void *pml_ep_next_combine_buffer(struct pml_ep_handle *h)
{
	return h ? ep_y_buffer(inner(h)) : NULL;
}

void pml_ep_handle_drop(struct pml_ep_handle *h)
{
	ep_handle_drop(inner(h));
}

int pml_ep_combine(struct pml_ep_buffer *b, struct pml_ep_handle *h,
		   const struct pml_ep_combine_args *args, struct pml_ep_event **event,
		   struct pml_error *err)
{
	struct pml_ep_combine_args a;
	struct why why = { 0 };
	int r = usable(b, err, "combine");
	if (r != 0)
		return r;
	if (!args || !sdk_opts(&a, sizeof(a), args))
		return refuse(err, ERR_INVALID_PARAMS, "combine",
			      "args is NULL, or has no size");
	struct ep_combine_args c = { .y = a.y,
				     .weights = a.topk_weights,
				     .flags = a.flags,
				     .timeout_us = a.timeout_us,
				     .stream = a.stream,
				     .active = a.active_ranks,
				     .out = a.out,
				     .incomplete = a.incomplete };
	enum err e = ERR_NONE;
	if (a.flags & ~(uint32_t)(PML_EP_ZERO_COPY | PML_EP_ASYNC))
		e = why_set(&why, ERR_INVALID_PARAMS,
			    "flags is 0x%x, combine knows ASYNC 2, ZERO_COPY 8", a.flags);
	if (e == ERR_NONE)
		e = ep_combine(b->b, inner(h), &c, &why);
	if (e != ERR_NONE)
		return fail(err, &why, e, "combine");
	return event_after(b, a.stream, event, err);
}

/* ---- rounds ---- */

/* The most rounds that any rank needs. */
static enum err agree_rounds(struct pml_ep_buffer *b, uint32_t mine, uint32_t *out,
			     struct why *why)
{
	uint32_t all[EP_RANKS_MAX], most = 1;
	enum err e = b->group->x->all_gather(b->group->x, 0, &mine, sizeof(mine), all, 60000000,
					     why);
	for (uint32_t r = 0; r < b->n_ranks && e == ERR_NONE; r++)
		most = MAX_OF(most, all[r]);
	*out = most;
	return e;
}

/* Round i of the whole: its tokens, and where they and their results lie. */
static void cut(const struct pml_ep_buffer *b, uint32_t i, struct pml_ep_dispatch_args *d,
		struct pml_ep_combine_args *c)
{
	uint64_t from = MIN_OF((uint64_t)i * b->max_tokens, (uint64_t)d->num_tokens);
	uint64_t row = (uint64_t)b->hidden * 2;
	d->x = d->x ? (const uint8_t *)d->x + from * row : NULL;
	d->topk_idx = d->topk_idx ? d->topk_idx + from * d->top_k : NULL;
	d->num_tokens = (uint32_t)MIN_OF(d->num_tokens - from, (uint64_t)b->max_tokens);
	d->flags &= ~(uint32_t)PML_EP_HOOK;
	c->topk_weights = c->topk_weights ? c->topk_weights + from * d->top_k : NULL;
	c->out = c->out ? (uint8_t *)c->out + from * row : NULL;
	c->incomplete = c->incomplete ? c->incomplete + from : NULL;
	c->flags |= PML_EP_ZERO_COPY;
}

static int one_round(struct pml_ep_buffer *b, const struct pml_ep_dispatch_args *d,
		     struct pml_ep_combine_args *c, pml_ep_experts experts, void *ctx,
		     struct pml_error *err)
{
	struct pml_ep_handle *h = NULL;
	int r = pml_ep_dispatch(b, d, &h, NULL, err);
	if (r != 0)
		return r;
	void *y = pml_ep_next_combine_buffer(h);
	c->y = y;
	r = experts(ctx, d, y);
	if (r != 0) {
		pml_ep_handle_drop(h);
		return refuse(err, (enum err)r, "experts", "your experts ended the step");
	}
	return pml_ep_combine(b, h, c, NULL, err);
}

int pml_ep_step(struct pml_ep_buffer *b, const struct pml_ep_dispatch_args *d,
		const struct pml_ep_combine_args *c, uint32_t num_rounds,
		pml_ep_experts experts, void *ctx, struct pml_error *err)
{
	struct pml_ep_dispatch_args all_d;
	struct pml_ep_combine_args all_c;
	struct why why = { 0 };
	int r = usable(b, err, "step");
	if (r != 0)
		return r;
	if (!d || !c || !experts || !sdk_opts(&all_d, sizeof(all_d), d) ||
	    !sdk_opts(&all_c, sizeof(all_c), c))
		return refuse(err, ERR_INVALID_PARAMS, "step",
			      "d, c or experts is NULL, or d or c has no size");
	uint32_t need = (all_d.num_tokens + b->max_tokens - 1) / b->max_tokens;
	enum err e = ERR_NONE;
	if (num_rounds == 0)
		e = agree_rounds(b, need, &num_rounds, &why);
	if (e == ERR_NONE && need > num_rounds)
		e = why_set(&why, ERR_TOO_MANY_TOKENS,
			    "num_tokens is %u, %u rounds of %u hold %llu", all_d.num_tokens,
			    num_rounds, b->max_tokens,
			    (unsigned long long)num_rounds * b->max_tokens);
	if (e != ERR_NONE)
		return fail(err, &why, e, "step");
	for (uint32_t i = 0; i < num_rounds && r == 0; i++) {
		struct pml_ep_dispatch_args one = all_d;
		struct pml_ep_combine_args back = all_c;
		cut(b, i, &one, &back);
		r = one_round(b, &one, &back, experts, ctx, err);
	}
	return r;
}
