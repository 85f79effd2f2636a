/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/route.h"

#include <string.h>

enum err route_map(uint32_t n_ranks, uint32_t n_experts, const uint32_t *owner,
		   struct ep_map *out, struct why *why)
{
	if (n_ranks < 1 || n_ranks > EP_RANKS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "num_ranks is %u, allowed are 1 to %d",
			       n_ranks, EP_RANKS_MAX);
	if (n_experts < 1 || n_experts > EP_EXPERTS_MAX)
		return why_set(why, ERR_INVALID_PARAMS,
			       "num_experts is %u, allowed are 1 to %d", n_experts,
			       EP_EXPERTS_MAX);
	if (!owner && n_experts % n_ranks != 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "num_experts is %u, no multiple of %u ranks; give expert_owner",
			       n_experts, n_ranks);
	for (uint32_t e = 0; owner && e < n_experts; e++)
		if (owner[e] >= n_ranks)
			return why_set(why, ERR_INVALID_PARAMS,
				       "expert_owner[%u] is %u, allowed are 0 to %u", e,
				       owner[e], n_ranks - 1);
	memset(out, 0, sizeof(*out));
	out->n_ranks = n_ranks;
	out->n_experts = n_experts;
	for (uint32_t e = 0; e < n_experts; e++) {
		uint32_t r = owner ? owner[e] : e / (n_experts / n_ranks);
		out->owner[e] = (uint16_t)r;
		out->local[e] = out->n_local[r]++;
		out->max_local = MAX_OF(out->max_local, (uint32_t)out->n_local[r]);
	}
	return ERR_NONE;
}

enum err route_check(const int64_t *topk, uint32_t n_tokens, uint32_t top_k, uint32_t n_experts,
		     struct why *why)
{
	if (top_k < 1 || top_k > EP_TOP_K_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "top_k is %u, allowed are 1 to %d",
			       top_k, EP_TOP_K_MAX);
	for (uint64_t i = 0; i < (uint64_t)n_tokens * top_k; i++)
		if (topk[i] < -1 || topk[i] >= (int64_t)n_experts)
			return why_set(why, ERR_INVALID_PARAMS,
				       "topk_idx[%llu][%llu] is %lld, allowed are -1 to %u",
				       (unsigned long long)(i / top_k),
				       (unsigned long long)(i % top_k), (long long)topk[i],
				       n_experts - 1);
	return ERR_NONE;
}

void route_source(const int64_t *topk, uint32_t n_tokens, uint32_t top_k, uint32_t n_experts,
		  int32_t *ids, int32_t *pos, int32_t *counts)
{
	memset(counts, 0, n_experts * sizeof(*counts));
	for (uint64_t i = 0; i < (uint64_t)n_tokens * top_k; i++) {
		int32_t id = (int32_t)topk[i];
		ids[i] = id;
		if (id >= 0)
			pos[i] = counts[id]++;
	}
}

void route_receiver(const int32_t *counts, uint32_t n_local, uint32_t n_ranks, int32_t *begin,
		    int32_t *recv_count, int64_t *range)
{
	for (uint32_t e = 0; e < n_local; e++) {
		int32_t at = 0;
		for (uint32_t r = 0; r < n_ranks; r++) {
			uint64_t i = (uint64_t)e * n_ranks + r;
			begin[i] = at;
			if (range)
				range[i] = (int64_t)at << 32 | counts[i];
			at += counts[i];
		}
		recv_count[e] = at;
	}
}
