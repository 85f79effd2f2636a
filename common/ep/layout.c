/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/layout.h"

static uint64_t line_up(uint64_t n)
{
	return (n + EP_LINE - 1) / EP_LINE * EP_LINE;
}

static enum err check(const char *name, uint64_t v, uint64_t lo, uint64_t hi, struct why *why)
{
	if (v >= lo && v <= hi)
		return ERR_NONE;
	return why_set(why, ERR_INVALID_PARAMS, "%s is %llu, allowed are %llu to %llu", name,
		       (unsigned long long)v, (unsigned long long)lo, (unsigned long long)hi);
}

static enum err check_shape(const struct ep_shape *s, struct why *why)
{
	enum err e = check("num_ranks", s->n_ranks, 1, EP_RANKS_MAX, why);
	if (e == ERR_NONE)
		e = check("num_experts", s->n_experts, 1, EP_EXPERTS_MAX, why);
	if (e == ERR_NONE)
		e = check("num_max_dispatch_tokens_per_rank", s->max_tokens, 1, EP_TOKENS_MAX,
			  why);
	if (e == ERR_NONE)
		e = check("hidden", s->hidden, 128, EP_HIDDEN_MAX, why);
	if (e == ERR_NONE && s->hidden % 128 != 0)
		e = why_set(why, ERR_INVALID_PARAMS,
			    "hidden is %u, it must be a multiple of 128", s->hidden);
	if (e == ERR_NONE)
		e = check("experts of one rank", s->max_local, 1, s->n_experts, why);
	return e;
}

enum err layout_make(const struct ep_shape *s, struct ep_layout *out, struct why *why)
{
	enum err e = check_shape(s, why);
	if (e != ERR_NONE)
		return e;
	struct ep_layout l = { 0 };
	uint64_t lists = (uint64_t)s->max_tokens * EP_TOP_K_MAX * 4;
	uint64_t row =
		MAX_OF(layout_row_stride(s->hidden, false), layout_row_stride(s->hidden, true));
	l.topk = line_up(sizeof(struct ep_slot_head));
	l.pos = l.topk + line_up(lists);
	l.counts = l.pos + line_up(lists);
	l.begin = l.counts + line_up((uint64_t)s->n_experts * 4);
	l.rows = l.begin + line_up((uint64_t)s->max_local * s->n_ranks * 4);
	l.y = l.rows + line_up(s->max_tokens * row);
	uint64_t slot = l.y + line_up((uint64_t)s->max_local * s->n_ranks * s->max_tokens *
				      s->hidden * 2);
	l.flags = line_up(sizeof(struct ep_window_head));
	uint64_t at = l.flags + (uint64_t)EP_SLOTS * EP_N_FLAGS * s->n_ranks * EP_LINE;
	for (int i = 0; i < EP_SLOTS; i++, at += slot)
		l.slot[i] = at;
	l.bytes = at;
	*out = l;
	return ERR_NONE;
}
