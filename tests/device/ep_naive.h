/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the device tests that share no code with common/gpu: inputs from a hash, the obvious
 * expert, and checks that recompute everything from the hash, one thread an element. All arrays
 * are device memory.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct naive {
	uint64_t seed; /* of this step */
	uint32_t n_ranks, n_experts, top_k, hidden, max_tokens;
	uint32_t n_tokens[64];
	uint32_t skew; /* 1: all choices among the first top_k experts */
	uint32_t fp8;
	uint32_t dead_mask_lo, dead_mask_hi; /* ranks whose contributions are lost */
};

/* Loads all kernels (see ep_kernels.h). */
int naive_load(void);
/* x [n][hidden] bf16, topk [n][top_k], weights [n][top_k] of rank r. */
int naive_make(const struct naive *c, uint32_t r, void *x, int64_t *topk, float *weights,
	       void *stream);
/* y = expert(recv) in place of recv's layout; locals [n_local]: expert numbers. */
int naive_expert(const struct naive *c, const uint32_t *locals, uint32_t n_local,
		 const void *recv_x, const float *scales, const int32_t *recv_count, void *y,
		 void *stream);
/* Adds to *bad every row of recv that differs from what the hash says. */
int naive_check_recv(const struct naive *c, const uint32_t *locals, uint32_t n_local,
		     const void *recv_x, const float *scales, const int32_t *recv_count,
		     const int32_t *src_info, const int64_t *range, uint32_t *bad,
		     void *stream);
/* Adds to *bad every element of out that differs. owner [n_experts] ranks, device. */
int naive_check_out(const struct naive *c, uint32_t r, const uint32_t *owner, const void *out,
		    const int32_t *incomplete, uint32_t *bad, void *stream);

/* What a step cannot do without: a launch, and a flag's trip between two kernels, n there and back. */
int naive_empty(void *stream);
int naive_pingpong(uint64_t *mine, uint64_t *theirs, uint32_t n, int first, void *stream);

#ifdef __cplusplus
}
#endif
