/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine: (copy_y ->) meet -> reduce. Bytes for T tokens a rank, K choices: reduce reads
 * T * K * hidden * 2 from the owners' windows and writes T * hidden * 2; copy_y, when y is not in
 * the window already, reads and writes the received rows once more.
 */
#include "ep_common.cuh"

#include <cuda_bf16.h>

/* The valid rows of y into our window. Grid (x, n_local), warp per row. Bound: bytes. */
__global__ void copy_y_kernel(struct ep_gpu g, uint32_t slot, const uint4 *y, const int32_t *recv_count)
{
	after_previous();
	uint32_t lane = threadIdx.x % WARP, n16 = g.s.hidden / 8, l = blockIdx.y;
	uint32_t n_warps = gridDim.x * (blockDim.x / WARP);
	uint64_t cap = (uint64_t)g.s.n_ranks * g.s.max_tokens;
	uint4 *to = (uint4 *)(slot_of(g, g.me, slot) + g.l.y) + l * cap * n16;
	const uint4 *from = y + l * cap * n16;
	uint32_t rows = (uint32_t)recv_count[l];
	for (uint32_t r = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; r < rows; r += n_warps) {
#pragma unroll 8
		for (uint32_t i = lane; i < n16; i += WARP)
			st_row(to + (uint64_t)r * n16 + i, ld_row(from + (uint64_t)r * n16 + i));
	}
}

/* Says "my outputs are ready", waits for everybody's. Grid 1 x 64. */
__global__ void meet_combine_kernel(struct ep_gpu g, uint32_t slot, int32_t *active, uint64_t timeout_ns)
{
	after_previous();
	uint64_t stamp = stamp_of(g, g.st->count[slot]), end = end_of(timeout_ns);
	uint32_t r = threadIdx.x;
	if (r >= g.s.n_ranks)
		return;
	if (active[r] == 0)
		g.st->masked[r] = 1;
	else if (g.st->masked[r])
		active[r] = 0;
	if (!g.st->masked[r]) {
		__threadfence_system();
		st_release_sys(flag_of(g, r, slot, EP_Y_READY, g.me), stamp);
	}
	wait_or_mask(g, slot, EP_Y_READY, r, stamp, end, active);
}

__device__ __forceinline__ void fma8(float *acc, uint4 v, float w)
{
	const uint32_t u[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
	for (int i = 0; i < 4; i++) {
		acc[2 * i] = __fmaf_rn(w, __uint_as_float(u[i] << 16), acc[2 * i]);
		acc[2 * i + 1] = __fmaf_rn(w, __uint_as_float(u[i] & 0xffff0000u), acc[2 * i + 1]);
	}
}

__device__ __forceinline__ uint32_t pack2(float a, float b)
{
	__nv_bfloat16 x = __float2bfloat16_rn(a), y = __float2bfloat16_rn(b);
	return (uint32_t)__bfloat16_as_ushort(x) | (uint32_t)__bfloat16_as_ushort(y) << 16;
}

#define K_UNROLL 8

/* Where choice `lane` of token t lies, or 0 when it is masked or lost. */
__device__ __forceinline__ const uint4 *row_of(const struct ep_gpu &g, uint32_t slot, uint64_t i, bool *lost)
{
	const uint8_t *mine = slot_of(g, g.me, slot);
	int32_t id = ((const int32_t *)(mine + g.l.topk))[i];
	if (id < 0)
		return nullptr;
	uint32_t r = g.owner[id], l = g.local[id], n = g.s.n_ranks;
	uint64_t cap = (uint64_t)n * g.s.max_tokens;
	int32_t begin = -1;
	if (!g.st->masked[r])
		begin = ((const volatile int32_t *)(slot_of(g, r, slot) + g.l.begin))[l * n + g.me];
	uint64_t at = (uint64_t)begin + (uint64_t)((const int32_t *)(mine + g.l.pos))[i];
	*lost = begin < 0 || at >= cap;
	if (*lost)
		return nullptr;
	return (const uint4 *)(slot_of(g, r, slot) + g.l.y + (l * cap + at) * g.s.hidden * 2);
}

/*
 * A warp takes a piece of a token's channels: K loads in flight a lane, sums in f32 with k
 * ascending, so that the result does not depend on the cut. Grid-stride over (token, piece).
 * Bound: bytes.
 */
__global__ void reduce_kernel(struct ep_gpu g, uint32_t slot, const float *weights, uint4 *out, int32_t *incomplete,
			      uint32_t n_tokens, uint32_t top_k, uint32_t n_pieces, int32_t *active)
{
	after_previous();
	uint32_t lane = threadIdx.x % WARP, n16 = g.s.hidden / 8;
	uint32_t per_piece = (n16 + n_pieces * WARP - 1) / (n_pieces * WARP) * WARP;
	uint32_t n_warps = gridDim.x * (blockDim.x / WARP);
	uint32_t sent = head_of(g, g.me, slot)->n_tokens; /* 0 when our choices were refused */
	for (uint32_t u = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; u < n_tokens * n_pieces; u += n_warps) {
		uint32_t t = u / n_pieces, piece = u % n_pieces;
		bool lost = false;
		const uint4 *row = nullptr;
		float w = 0.0f;
		if (lane < top_k && t < sent) {
			row = row_of(g, slot, (uint64_t)t * top_k + lane, &lost);
			w = weights[(uint64_t)t * top_k + lane];
		}
		bool any_lost = __any_sync(ALL, lost) || t >= sent;
		if (incomplete && piece == 0 && lane == 0)
			incomplete[t] = any_lost;
		uint32_t end = min((piece + 1) * per_piece, n16);
		uint32_t steps = piece * per_piece < end ? (end - piece * per_piece + WARP - 1) / WARP : 0;
		for (uint32_t j = 0; j < steps; j++) {
			uint32_t i = piece * per_piece + j * WARP + lane;
			float acc[8] = { 0 };
			for (uint32_t k0 = 0; k0 < top_k; k0 += K_UNROLL) {
				uint4 v[K_UNROLL];
				float wk[K_UNROLL];
				bool have[K_UNROLL];
#pragma unroll
				for (int k = 0; k < K_UNROLL; k++) {
					int from = (k0 + k) % WARP;
					const uint4 *p = (const uint4 *)__shfl_sync(ALL, (unsigned long long)row, from);
					wk[k] = __shfl_sync(ALL, w, from);
					have[k] = k0 + k < top_k && p != nullptr;
					v[k] = have[k] && i < end ? ld_row(p + i) : make_uint4(0, 0, 0, 0);
				}
#pragma unroll
				for (int k = 0; k < K_UNROLL; k++)
					if (have[k])
						fma8(acc, v[k], wk[k]);
			}
			if (i < end)
				out[(uint64_t)t * n16 + i] = make_uint4(pack2(acc[0], acc[1]), pack2(acc[2], acc[3]),
								       pack2(acc[4], acc[5]), pack2(acc[6], acc[7]));
		}
	}
	if (!last_block(&g.st->blocks_done[slot][1]))
		return;
	uint64_t stamp = stamp_of(g, g.st->count[slot]);
	__shared__ uint32_t gone[EP_RANKS_MAX];
	__shared__ uint32_t any;
	if (threadIdx.x == 0)
		any = 0;
	__syncthreads();
	uint32_t r = threadIdx.x;
	if (r < g.s.n_ranks && !g.st->masked[r]) {
		uint64_t found = *(volatile uint64_t *)&head_of(g, r, slot)->stamp_head;
		gone[r] = found != stamp; /* I2 */
		if (gone[r]) {
			mask_rank(g, slot, EP_N_FLAGS, r, stamp, found, active);
			any = 1;
		} else {
			st_release_sys(flag_of(g, r, slot, EP_Y_DONE, g.me), stamp);
		}
	} else if (r < EP_RANKS_MAX) {
		gone[r] = 0;
	}
	__syncthreads();
	if (!any || !incomplete)
		return;
	const int32_t *ids = (const int32_t *)(slot_of(g, g.me, slot) + g.l.topk);
	for (uint32_t i = threadIdx.x; i < sent * top_k; i += blockDim.x)
		if (ids[i] >= 0 && gone[g.owner[ids[i]]])
			incomplete[i / top_k] = 1;
}

extern "C" enum err ep_load_combine(void)
{
	static const void *const k[] = { (const void *)copy_y_kernel, (const void *)meet_combine_kernel,
					 (const void *)reduce_kernel };
	return loaded(k, sizeof(k) / sizeof(k[0]));
}

extern "C" enum err ep_launch_copy_y(const struct ep_gpu *g, uint32_t slot, const void *y, const int32_t *recv_count,
				     void *stream)
{
	if (g->n_local == 0)
		return ERR_NONE;
	const int threads = 256;
	uint32_t rows = g->s.n_ranks * g->s.max_tokens;
	uint32_t want = (rows + threads / WARP - 1) / (threads / WARP), most = (g->n_sms * 8 + g->n_local - 1) / g->n_local;
	most = most < 8 ? 8 : most;
	dim3 grid(want > most ? most : want, g->n_local);
	start(g, copy_y_kernel, dim3(grid), threads, 0, stream, *g, slot, (const uint4 *)y, recv_count);
	return launched();
}

extern "C" enum err ep_launch_meet_combine(const struct ep_gpu *g, uint32_t slot, int32_t *active, uint64_t timeout_ns,
					   void *stream)
{
	start(g, meet_combine_kernel, dim3(1), EP_RANKS_MAX, 0, stream, *g, slot, active, timeout_ns);
	return launched();
}

extern "C" enum err ep_launch_reduce(const struct ep_gpu *g, uint32_t slot, const float *weights, void *out,
				     int32_t *incomplete, uint32_t n_tokens, uint32_t top_k, int32_t *active,
				     void *stream)
{
	const int threads = 256;
	uint32_t n16 = g->s.hidden / 8, pieces = 1, target = g->n_sms * 32;
	/* few tokens: cut rows so that the machine is full */
	while (n_tokens * pieces < target && pieces * WARP < n16)
		pieces *= 2;
	uint32_t units = n_tokens * pieces;
	uint32_t blocks = (units + threads / WARP - 1) / (threads / WARP);
	blocks = blocks > g->n_sms * 8 ? g->n_sms * 8 : blocks;
	blocks = blocks == 0 ? 1 : blocks; /* a rank without tokens still says that it is done */
	start(g, reduce_kernel, dim3(blocks), threads, 0, stream, *g, slot, weights, (uint4 *)out, incomplete,
	      n_tokens, top_k, pieces, active);
	return launched();
}
