/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of small placements (draft form) for tests of whoever reads and plans them: n_tensors matrices
 * of rows x 8 bf16, cut by rows over tp ranks.
 */
#pragma once

#include "base/buf.h"

static inline void layout_rank(struct buf *b, unsigned tp)
{
	buf_printf(b, "{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":%u}", tp);
}

static inline void layout_frag(struct buf *b, unsigned t, unsigned r, unsigned rows,
			       unsigned each)
{
	buf_printf(b,
		   "{\"tensor_id\":\"t%u\",\"global_offset\":[%u,0],\"local_shape\":[%u,8],"
		   "\"nbytes\":%u,\"aliases\":[],\"rank\":",
		   t, r * each, each, each * 16);
	layout_rank(b, r);
	buf_printf(b, "}");
	(void)rows;
}

/* rows is a multiple of tp. Appends to b. */
static inline void layout_text(struct buf *b, unsigned n_tensors, unsigned rows, unsigned tp)
{
	buf_printf(
		b,
		"{\"placement_set_id\":\"s\",\"resource_id\":\"m\","
		"\"resource_kind\":\"model_weight\",\"revision\":\"r\",\"weight_generation\":1,"
		"\"topology\":{\"dp_size\":1,\"ep_size\":1,\"pp_size\":1,\"tp_size\":%u,"
		"\"participants\":[",
		tp);
	for (unsigned r = 0; r < tp; r++) {
		buf_printf(b, "%s{\"participant_id\":\"p%u\",\"rank\":", r ? "," : "", r);
		layout_rank(b, r);
		buf_printf(b, "}");
	}
	buf_printf(b, "]},\"tensors\":[");
	for (unsigned t = 0; t < n_tensors; t++)
		buf_printf(
			b,
			"%s{\"dtype\":\"bf16\",\"expert_id\":null,\"global_shape\":[%u,8],"
			"\"itemsize\":2,\"layer_id\":null,\"layout_fingerprint\":\"l\","
			"\"parallel_axes\":[{\"kind\":\"tp\",\"semantics\":\"split\",\"dim\":0}],"
			"\"shard_dims\":[0],\"tensor_id\":\"t%u\"}",
			t ? "," : "", rows, t);
	buf_printf(b, "],\"parts\":[");
	for (unsigned r = 0; r < tp; r++) {
		buf_printf(b, "%s{\"participant_id\":\"p%u\",\"rank\":", r ? "," : "", r);
		layout_rank(b, r);
		buf_printf(b, ",\"fragments\":[");
		for (unsigned t = 0; t < n_tensors; t++) {
			if (t)
				buf_printf(b, ",");
			layout_frag(b, t, r, rows, rows / tp);
		}
		buf_printf(b, "]}");
	}
	buf_printf(b, "]}");
}
