/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all transports share: argument checks, choice of the transport, handles, generations.
 * Everything is refused here before a transport moves a byte.
 */
#include "ep/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_US	100000000ull /* ep.timeout_ms, answers.md */
#define DEFAULT_OPEN_TIMEOUT_US 60000000ull

static const struct ep_transport_ops *const transports[] = {
	&ep_host_ops, &ep_ipc_ops, &ep_rdma_ops, &ep_ibgda_ops, &ep_nccl_ops,
};

static void say(const struct ep_opts *o, const char *line)
{
	if (o->say)
		o->say(o->ctx, line);
}

/* auto: nccl where built and able, else ipc, else host; it says what and why in one line. */
static const struct ep_transport_ops *choose_auto(const struct ep_opts *o)
{
	static const struct ep_transport_ops *const order[] = { &ep_nccl_ops, &ep_ipc_ops,
								&ep_host_ops };
	char line[512] = "";
	size_t n = 0;
	for (size_t i = 0; i < ARRAY_LEN(order); i++) {
		const char *missing = order[i]->missing(o);
		if (!missing) {
			snprintf(line + n, sizeof(line) - n, "ep: transport %s%s",
				 order[i]->name, i ? "" : ", the first choice");
			say(o, line);
			return order[i];
		}
		int m = snprintf(line + n, sizeof(line) - n, "ep: not %s (%s); ",
				 order[i]->name, missing);
		n = MIN_OF(n + (size_t)MAX_OF(m, 0), sizeof(line) - 1);
	}
	return &ep_host_ops;
}

static enum err choose(const struct ep_opts *o, const struct ep_transport_ops **out,
		       struct why *why)
{
	const char *name = o->transport && *o->transport ? o->transport : "auto";
	if (strcmp(name, "auto") == 0) {
		*out = choose_auto(o);
		return ERR_NONE;
	}
	for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
		if (strcmp(transports[i]->name, name) != 0)
			continue;
		const char *missing = transports[i]->missing(o);
		if (missing) /* an explicit choice never falls back */
			return why_set(why, ERR_UNSUPPORTED, "ep: transport %s: %s", name,
				       missing);
		*out = transports[i];
		return ERR_NONE;
	}
	return why_set(why, ERR_INVALID_PARAMS,
		       "ep: transport is '%s', allowed are auto, host, ipc, rdma, ibgda, nccl",
		       name);
}

enum err ep_buffer_size(uint32_t max_tokens, uint32_t hidden, uint32_t n_ranks,
			uint32_t n_experts, uint64_t *out, struct why *why)
{
	struct ep_shape s = { n_ranks, n_experts, max_tokens, hidden, 0 };
	s.max_local = n_ranks ? (n_experts + n_ranks - 1) / n_ranks : 1;
	struct ep_layout l;
	enum err e = layout_make(&s, &l, why);
	if (e == ERR_NONE)
		*out = l.bytes;
	return e;
}

/* Shape, map and layout for the exchange's ranks. */
static enum err plan(struct ep_buf *b, struct why *why)
{
	const struct ep_opts *o = &b->opts;
	enum err e = route_map(b->x->n_ranks, o->n_experts, o->expert_owner, &b->map, why);
	if (e != ERR_NONE)
		return e;
	b->shape = (struct ep_shape){ b->x->n_ranks, o->n_experts, o->max_tokens, o->hidden,
				      b->map.max_local };
	e = layout_make(&b->shape, &b->layout, why);
	if (e == ERR_NONE && o->bytes && o->bytes < b->layout.bytes)
		e = why_set(why, ERR_INVALID_PARAMS,
			    "ep: the buffer has %llu bytes, this shape needs %llu",
			    (unsigned long long)o->bytes, (unsigned long long)b->layout.bytes);
	return e;
}

/* Everybody's next generation: the highest any rank has seen, plus one. A new process says 0. */
static enum err agree_epoch(struct ep_exchange *x, uint64_t mine, uint64_t timeout_us,
			    uint64_t *out, struct why *why)
{
	uint64_t epochs[EP_RANKS_MAX], epoch = 0;
	if (x->n_ranks > EP_RANKS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "num_ranks is %u, allowed are 1 to %d",
			       x->n_ranks, EP_RANKS_MAX);
	enum err e = x->all_gather(x, 0, &mine, sizeof(mine), epochs, timeout_us, why);
	for (uint32_t r = 0; r < x->n_ranks && e == ERR_NONE; r++)
		epoch = MAX_OF(epoch, epochs[r]);
	if (e == ERR_NONE)
		*out = epoch + 1;
	return e;
}

enum err ep_open(const struct ep_opts *o, struct ep_buf **out, struct why *why)
{
	struct ep_buf *b = calloc(1, sizeof(*b));
	if (!b)
		return ERR_NO_MEMORY;
	b->opts = *o;
	b->x = o->exchange;
	if (b->opts.timeout_us == 0)
		b->opts.timeout_us = DEFAULT_TIMEOUT_US;
	if (b->opts.open_timeout_us == 0)
		b->opts.open_timeout_us = DEFAULT_OPEN_TIMEOUT_US;
	enum err e = plan(b, why);
	if (e == ERR_NONE)
		e = choose(o, &b->ops, why);
	if (e == ERR_NONE)
		e = agree_epoch(b->x, 0, b->opts.open_timeout_us, &b->epoch, why);
	if (e == ERR_NONE)
		e = b->ops->open(b, why);
	/* the meeting of ep_update_members, so that a new process can join one */
	uint8_t here = 1, all_here[EP_RANKS_MAX];
	if (e == ERR_NONE)
		e = b->x->all_gather(b->x, b->epoch, &here, 1, all_here,
				     b->opts.open_timeout_us, why);
	if (e != ERR_NONE && b->priv)
		b->ops->close(b);
	if (e != ERR_NONE) {
		free(b);
		return e;
	}
	b->opts.expert_owner = NULL; /* borrowed for the call only */
	*out = b;
	return ERR_NONE;
}

void ep_close(struct ep_buf *b)
{
	if (!b)
		return;
	b->ops->close(b);
	free(b);
}

enum err ep_update_members(struct ep_buf *b, struct ep_exchange *x, struct why *why)
{
	struct ep_buf next = { .ops = b->ops, .x = x, .opts = b->opts };
	uint32_t owner[EP_EXPERTS_MAX];
	enum err e = agree_epoch(x, b->epoch, b->opts.open_timeout_us, &next.epoch, why);
	if (e != ERR_NONE)
		return e;
	if (x->n_ranks == b->shape.n_ranks) {
		for (uint32_t i = 0; i < b->shape.n_experts; i++)
			owner[i] = b->map.owner[i];
		next.opts.expert_owner = owner;
	}
	e = plan(&next, why);
	if (e == ERR_NONE)
		e = next.ops->open(&next, why);
	if (e != ERR_NONE)
		return e;
	next.opts.expert_owner = NULL;
	/* the old memory goes once every rank of the new generation has unmapped it */
	uint8_t gone = 1, all_gone[EP_RANKS_MAX];
	if (b->ops->detach)
		b->ops->detach(b);
	e = x->all_gather(x, next.epoch, &gone, 1, all_gone, b->opts.open_timeout_us, why);
	if (e != ERR_NONE) {
		next.ops->close(&next);
		return e;
	}
	b->ops->close(b);
	struct ep_handle keep[EP_SLOTS];
	memcpy(keep, b->handles,
	       sizeof(keep)); /* old handles stay readable, and are stale by epoch */
	*b = next;
	memcpy(b->handles, keep, sizeof(keep));
	for (int i = 0; i < EP_SLOTS; i++)
		b->handles[i].open = false;
	return ERR_NONE;
}

const char *ep_transport(const struct ep_buf *b)
{
	return b->ops->name;
}

/* ---- what did not come ---- */

static const char *const flag_texts[EP_N_FLAGS + 1] = {
	[EP_PUBLISHED] = "did not publish its rows",
	[EP_READ_DONE] = "did not say that it has read our rows",
	[EP_Y_READY] = "did not publish its expert outputs",
	[EP_Y_DONE] = "did not say that it has read our outputs",
	[EP_N_FLAGS] = "went on to another step while we read",
};

#define STEP_OF(stamp) ((unsigned long long)((stamp)&0xffffffffffull))

bool ep_missed(const struct ep_buf *b, uint32_t rank, struct ep_missed *out, struct why *text)
{
	if (rank >= b->shape.n_ranks || !b->ops->missed(b)[rank].set)
		return false;
	const volatile struct ep_missed *m = &b->ops->missed(b)[rank];
	struct ep_missed v = { 1, m->flag, m->slot, 0, m->want, m->found };
	if (out)
		*out = v;
	(void)why_set(text, ERR_TIMED_OUT,
		      "ep: rank %u %s: slot %u, step %llu of generation %llu, found step %llu",
		      rank, flag_texts[MIN_OF(v.flag, (uint32_t)EP_N_FLAGS)], v.slot,
		      STEP_OF(v.want), (unsigned long long)(v.want >> 40), STEP_OF(v.found));
	return true;
}

/* Each rank that was masked is told of once. */
static void tell_missed(struct ep_buf *b)
{
	for (uint32_t r = 0; r < b->shape.n_ranks && b->opts.say; r++) {
		struct why text = { 0 };
		if (b->said[r] || !ep_missed(b, r, NULL, &text))
			continue;
		b->said[r] = true;
		say(&b->opts, text.text);
	}
}

/* ---- dispatch ---- */

static enum err check_dispatch(const struct ep_buf *b, const struct ep_dispatch_args *a,
			       struct why *why)
{
	if (a->n_experts != b->shape.n_experts)
		return why_set(why, ERR_INVALID_PARAMS,
			       "num_experts is %u, the buffer was made for %u", a->n_experts,
			       b->shape.n_experts);
	if (a->n_tokens > b->shape.max_tokens)
		return why_set(why, ERR_TOO_MANY_TOKENS,
			       "num_tokens is %u, the buffer was made for %u", a->n_tokens,
			       b->shape.max_tokens);
	if (a->top_k < 1 || a->top_k > EP_TOP_K_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "top_k is %u, allowed are 1 to %d",
			       a->top_k, EP_TOP_K_MAX);
	const char *missing = a->n_tokens && !a->x		       ? "x"
			      : a->n_tokens && !a->topk		       ? "topk_idx"
			      : !a->active			       ? "active_ranks"
			      : !a->recv_x			       ? "recv_x"
			      : (a->flags & EP_FP8) && !a->recv_scales ? "recv_scales"
			      : !a->recv_count || !a->src_info ? "recv_count or src_info"
							       : NULL;
	if (missing)
		return why_set(why, ERR_INVALID_PARAMS, "%s is NULL", missing);
	return ERR_NONE;
}

enum err ep_dispatch(struct ep_buf *b, const struct ep_dispatch_args *a,
		     struct ep_handle **handle, struct why *why)
{
	enum err e = check_dispatch(b, a, why);
	if (e != ERR_NONE)
		return e;
	struct ep_handle *h = &b->handles[b->next_slot];
	if (h->open)
		return why_set(why, ERR_BUSY,
			       "%d dispatches are open already; combine or drop one first",
			       EP_SLOTS);
	struct ep_handle next = { .buf = b,
				  .epoch = b->epoch,
				  .count = b->count[b->next_slot] + 1,
				  .slot = b->next_slot,
				  .n_tokens = a->n_tokens,
				  .top_k = a->top_k,
				  .open = true,
				  .args = *a };
	e = b->ops->publish(b, &next, why); /* also checks topk, before it moves anything */
	if (e != ERR_NONE)
		return e;
	*h = next;
	b->count[b->next_slot]++;
	b->next_slot = (b->next_slot + 1) % EP_SLOTS;
	if (!(a->flags & EP_HOOK)) {
		e = ep_hook(h, why);
		if (e != ERR_NONE) {
			ep_handle_drop(h);
			return e;
		}
	}
	*handle = h;
	return ERR_NONE;
}

static enum err check_handle(const struct ep_handle *h, struct why *why)
{
	if (!h || !h->buf)
		return why_set(why, ERR_INVALID_PARAMS, "no handle");
	if (h->epoch != h->buf->epoch)
		return why_set(why, ERR_STALE,
			       "the handle is of generation %llu, the buffer of %llu",
			       (unsigned long long)h->epoch, (unsigned long long)h->buf->epoch);
	if (!h->open)
		return why_set(why, ERR_STALE, "the handle was used before");
	return ERR_NONE;
}

enum err ep_hook(struct ep_handle *h, struct why *why)
{
	enum err e = check_handle(h, why);
	if (e == ERR_NONE && h->received)
		e = why_set(why, ERR_STALE, "the hook was called before");
	if (e == ERR_NONE)
		e = h->buf->ops->receive(h->buf, h, why);
	if (e != ERR_NONE)
		return e;
	h->received = true;
	tell_missed(h->buf);
	return ERR_NONE;
}

void *ep_y_buffer(struct ep_handle *h)
{
	struct ep_buf *b = h->buf;
	if (check_handle(h, NULL) != ERR_NONE)
		return NULL;
	return (uint8_t *)b->ops->window(b) + b->layout.slot[h->slot] + b->layout.y;
}

enum err ep_combine(struct ep_buf *b, struct ep_handle *h, const struct ep_combine_args *a,
		    struct why *why)
{
	enum err e = check_handle(h, why);
	if (e != ERR_NONE)
		return e;
	if (!b || h->buf != b)
		return why_set(why, ERR_INVALID_PARAMS, "the handle belongs to another buffer");
	if (!h->received)
		return why_set(why, ERR_INVALID_PARAMS,
			       "combine before the dispatch's hook was called");
	bool zero_copy = a->flags & EP_ZERO_COPY;
	if (zero_copy && a->y != ep_y_buffer(h))
		return why_set(why, ERR_INVALID_PARAMS,
			       "zero_copy, but y is not this handle's combine buffer");
	if ((!zero_copy && !a->y) || !a->active || (h->n_tokens && (!a->weights || !a->out)))
		return why_set(why, ERR_INVALID_PARAMS,
			       "y, topk_weights, active_ranks or out is NULL");
	e = b->ops->combine(b, h, a, why);
	h->open = false;
	tell_missed(b);
	return e;
}

void ep_handle_drop(struct ep_handle *h)
{
	if (!h || check_handle(h, NULL) != ERR_NONE)
		return;
	h->buf->ops->drop(h->buf, h);
	h->open = false;
}
