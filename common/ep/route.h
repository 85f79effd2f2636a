/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who goes where: checks of the routing, each token's place among its source's tokens for an
 * expert, the packed layout of a receiver. The order is fixed (source rank, then token number), so
 * that every transport gives the same bytes. Shared by the CPU transport and, as the reference, by
 * the tests of the kernels.
 *
 * Thread: any. Pure.
 */
#pragma once

#include "ep/layout.h"

struct ep_map {
	uint32_t n_ranks, n_experts;
	uint32_t max_local;
	uint16_t owner[EP_EXPERTS_MAX]; /* rank of an expert */
	uint16_t local
		[EP_EXPERTS_MAX]; /* its place among that rank's experts, by expert number */
	uint16_t n_local[EP_RANKS_MAX];
};

/*
 * owner  [n_experts] ranks, borrowed; NULL: equal blocks in rank order, and then n_experts must
 *        divide by n_ranks
 * ERR_INVALID_PARAMS names expert, value and range.
 */
enum err route_map(uint32_t n_ranks, uint32_t n_experts, const uint32_t *owner,
		   struct ep_map *out, struct why *why) MUST_CHECK;

/* topk [n_tokens][top_k] i64. ERR_INVALID_PARAMS names token, place, value and range. */
enum err route_check(const int64_t *topk, uint32_t n_tokens, uint32_t top_k, uint32_t n_experts,
		     struct why *why) MUST_CHECK;

/*
 * ids     [n_tokens][top_k] i32 out, topk narrowed
 * pos     [n_tokens][top_k] i32 out: how many earlier (token, k) of this source name the same
 *         expert; undefined where the id is -1
 * counts  [n_experts] i32 out
 */
void route_source(const int64_t *topk, uint32_t n_tokens, uint32_t top_k, uint32_t n_experts,
		  int32_t *ids, int32_t *pos, int32_t *counts);

/*
 * counts_of(src, expert) for the local experts -> where each source's rows begin.
 * counts [n_local][n_ranks] i32 in; begin [n_local][n_ranks] i32 out; recv_count [n_local] i32 out;
 * range [n_local][n_ranks] i64 out: begin << 32 | count; may be NULL
 */
void route_receiver(const int32_t *counts, uint32_t n_local, uint32_t n_ranks, int32_t *begin,
		    int32_t *recv_count, int64_t *range);
