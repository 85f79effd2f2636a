/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine: (copy_y ->) meet -> reduce. A kernel each, also for small batches: a single one was slower at
 * every shape measured, since the few blocks that may wait read less than the whole machine does.
 *
 * Bytes for T tokens a rank, K choices: reduce reads T * K * hidden * 2 from the owners' windows and
 * writes T * hidden * 2; copy_y, when y is not in the window already, reads and writes once more the
 * received rows of other ranks. A rank's own rows are read where the caller left them.
 */
#include "ep_common.cuh"

#include <cuda_bf16.h>

/* ---- copy_y ---- */

/* Where the rows of expert l end that came from ourselves: where the next source's begin. */
__device__ __forceinline__ uint32_t own_end(const int32_t *begin, uint32_t n, uint32_t me, uint32_t rows)
{
	for (uint32_t r = me + 1; r < n; r++)
		if (begin[r] >= 0)
			return (uint32_t)begin[r];
	return rows;
}

/* The rows of y that came from other ranks into our window. Grid (x, n_local) x 256, a warp a row. Bound: bytes. */
__global__ void copy_y_kernel(struct ep_gpu g, uint32_t slot, struct ep_gpu_combine c)
{
	after_previous();
	uint32_t lane = threadIdx.x % WARP, n16 = g.s.hidden / 8, n = g.s.n_ranks, l = blockIdx.y;
	uint32_t per = blockDim.x / WARP, n_warps = gridDim.x * per;
	const int32_t *begin = (const int32_t *)(slot_of(g, g.me, slot) + g.l.begin) + l * n;
	uint64_t from = (uint64_t)l * n * g.s.max_tokens * n16;
	uint4 *to = (uint4 *)(slot_of(g, g.me, slot) + g.l.y) + from;
	const uint4 *y = (const uint4 *)c.y + from;
	uint32_t rows = (uint32_t)c.recv_count[l], own = begin[g.me] < 0 ? rows : (uint32_t)begin[g.me];
	uint32_t skip = begin[g.me] < 0 ? 0 : own_end(begin, n, g.me, rows) - own;
	for (uint32_t i = blockIdx.x * per + threadIdx.x / WARP; i < rows - skip; i += n_warps) {
		uint64_t r = (uint64_t)(i < own ? i : i + skip) * n16;
#pragma unroll 8
		for (uint32_t j = lane; j < n16; j += WARP)
			st_row(to + r + j, ld_row(y + r + j));
	}
}

/* ---- meet: one block ---- */

/* Says "my outputs are ready", waits for everybody's. Grid 1 x 64. */
__global__ void meet_combine_kernel(struct ep_gpu g, uint32_t slot, struct ep_gpu_combine c)
{
	after_previous();
	uint64_t stamp = stamp_of(g, g.st->count[slot]);
	uint32_t r = threadIdx.x;
	if (r >= g.s.n_ranks)
		return;
	bool masked = g.st->masked[r];
	if (c.active[r] == 0)
		g.st->masked[r] = masked = true;
	else if (masked)
		c.active[r] = 0;
	if (!masked)
		st_release_sys(flag_of(g, r, slot, EP_Y_READY, g.me), stamp);
	wait_or_mask(g, slot, EP_Y_READY, r, stamp, end_of(c.timeout_ns), c.active);
}

/* ---- reduce ---- */

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

/* A lane's choice of a token, from our own slot. */
struct choice {
	uint32_t where; /* ~0: none */
	int32_t pos;
	float w;
};

__device__ __forceinline__ struct choice choice_of(const struct ep_gpu &g, uint32_t slot,
						   const struct ep_gpu_combine &c, uint32_t t, uint32_t sent)
{
	uint32_t lane = threadIdx.x % WARP;
	const uint8_t *mine = slot_of(g, g.me, slot);
	uint64_t i = (uint64_t)t * c.top_k + lane;
	struct choice ch = { ~0u, 0, 0.0f };
	if (lane >= c.top_k || t >= sent)
		return ch;
	int32_t id = ((const int32_t *)(mine + g.l.topk))[i];
	ch.pos = ((const int32_t *)(mine + g.l.pos))[i];
	ch.w = c.weights[i];
	if (id >= 0)
		ch.where = g.where[id];
	return ch;
}

/* Where its row lies, or 0 when there is none or it is lost. */
__device__ __forceinline__ const uint4 *row_of(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_combine &c,
					       struct choice ch, bool *lost)
{
	if (ch.where == ~0u)
		return nullptr;
	uint32_t r = ch.where >> 16, l = ch.where & 0xffff, n = g.s.n_ranks;
	uint64_t cap = (uint64_t)n * g.s.max_tokens;
	const uint8_t *s = slot_of(g, r, slot);
	int32_t begin = -1;
	if (!g.st->masked[r])
		begin = ((const volatile int32_t *)(s + g.l.begin))[l * n + g.me];
	uint64_t at = (uint64_t)begin + (uint64_t)ch.pos;
	*lost = begin < 0 || at >= cap;
	if (*lost)
		return nullptr;
	const uint8_t *y = r == g.me && c.y ? (const uint8_t *)c.y : s + g.l.y;
	return (const uint4 *)(y + (l * cap + at) * g.s.hidden * 2);
}

/*
 * A warp: 32 units of 16 bytes of token t at a time, from `piece` of n_pieces on, so that warps beside each
 * other read what lies together. K loads a lane are in flight (twice as many gave nothing); sums in f32
 * with k ascending, so the result does not depend on the cut.
 */
__device__ __forceinline__ void reduce_piece(const struct ep_gpu &g, const struct ep_gpu_combine &c, const uint4 *row,
					     float w, uint32_t t, uint32_t piece, uint32_t n_pieces)
{
	uint32_t lane = threadIdx.x % WARP, n16 = g.s.hidden / 8;
	uint4 *out = (uint4 *)c.out + (uint64_t)t * n16;
	for (uint32_t i0 = piece * WARP; i0 < n16; i0 += n_pieces * WARP) {
		uint32_t i = i0 + lane;
		float acc[8] = { 0 };
		for (uint32_t k0 = 0; k0 < c.top_k; k0 += K_UNROLL) {
			uint4 v[K_UNROLL];
			float wk[K_UNROLL];
			uint32_t have = 0;
#pragma unroll
			for (int k = 0; k < K_UNROLL; k++) {
				int lane_k = (k0 + k) % WARP;
				const uint4 *p = (const uint4 *)__shfl_sync(ALL, (unsigned long long)row, lane_k);
				wk[k] = __shfl_sync(ALL, w, lane_k);
				if (k0 + k < c.top_k && p)
					have |= 1u << k;
				v[k] = (have >> k & 1) && i < n16 ? ld_row(p + i) : make_uint4(0, 0, 0, 0);
			}
#pragma unroll
			for (int k = 0; k < K_UNROLL; k++)
				if (have >> k & 1)
					fma8(acc, v[k], wk[k]);
		}
		if (i < n16)
			st_row(out + i, make_uint4(pack2(acc[0], acc[1]), pack2(acc[2], acc[3]), pack2(acc[4], acc[5]),
						   pack2(acc[6], acc[7])));
	}
}

/* All blocks, at the end: the last one tells the owners, after it looked whether they went on (I2). */
__device__ void reduce_end(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_combine &c, uint32_t sent)
{
	__shared__ bool gone[EP_RANKS_MAX];
	__shared__ uint32_t any;
	if (!last_block(&g.st->blocks_done[slot][1]))
		return;
	uint64_t stamp = stamp_of(g, g.st->count[slot]);
	uint32_t r = threadIdx.x;
	if (r == 0)
		any = 0;
	__syncthreads();
	if (r < EP_RANKS_MAX)
		gone[r] = false;
	if (r < g.s.n_ranks && !g.st->masked[r]) {
		uint64_t found = *(volatile uint64_t *)&head_of(g, r, slot)->stamp_head;
		gone[r] = found != stamp;
		if (gone[r]) {
			mask_rank(g, slot, EP_N_FLAGS, r, stamp, found, c.active);
			any = 1;
		} else {
			st_release_sys(flag_of(g, r, slot, EP_Y_DONE, g.me), stamp);
		}
	}
	__syncthreads();
	if (!any || !c.incomplete)
		return;
	const int32_t *ids = (const int32_t *)(slot_of(g, g.me, slot) + g.l.topk);
	for (uint32_t i = threadIdx.x; i < sent * c.top_k; i += blockDim.x)
		if (ids[i] >= 0 && gone[g.where[ids[i]] >> 16])
			c.incomplete[i / c.top_k] = 1;
}

/* A warp: piece u of all (token, piece); ch: its choices. */
__device__ __forceinline__ void reduce_unit(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_combine &c,
					    struct choice ch, uint32_t u, uint32_t n_pieces, uint32_t sent)
{
	uint32_t t = u / n_pieces, piece = u % n_pieces;
	bool lost = false;
	const uint4 *row = row_of(g, slot, c, ch, &lost);
	bool any_lost = __any_sync(ALL, lost) || t >= sent;
	if (c.incomplete && piece == 0 && threadIdx.x % WARP == 0)
		c.incomplete[t] = any_lost;
	reduce_piece(g, c, row, ch.w, t, piece, n_pieces);
}

/* Warp per (token, piece), grid-stride. Bound: bytes. */
__global__ void reduce_kernel(struct ep_gpu g, uint32_t slot, struct ep_gpu_combine c, uint32_t n_pieces)
{
	after_previous();
	uint32_t per = blockDim.x / WARP, n_warps = gridDim.x * per;
	uint32_t sent = head_of(g, g.me, slot)->n_tokens; /* 0 when our choices were refused */
	for (uint32_t u = blockIdx.x * per + threadIdx.x / WARP; u < c.n_tokens * n_pieces; u += n_warps)
		reduce_unit(g, slot, c, choice_of(g, slot, c, u / n_pieces, sent), u, n_pieces, sent);
	reduce_end(g, slot, c, sent);
}

/* ---- launchers ---- */

static const struct kernel kernels[] = {
	{ "copy_y", (const void *)copy_y_kernel, 256 },
	{ "meet combine", (const void *)meet_combine_kernel, EP_RANKS_MAX },
	{ "reduce", (const void *)reduce_kernel, 256 },
};

extern "C" enum err ep_load_combine(void)
{
	return loaded(kernels, sizeof(kernels) / sizeof(kernels[0]));
}

extern "C" enum err ep_combine_kernel_info(uint32_t i, struct ep_kernel_info *out)
{
	return describe(kernels, sizeof(kernels) / sizeof(kernels[0]), i, out);
}

extern "C" enum err ep_launch_copy_y(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_combine *c,
				     void *stream)
{
	if (g->n_local == 0 || g->s.n_ranks == 1) /* nothing that is not ours */
		return ERR_NONE;
	const int threads = 256;
	uint32_t rows = g->s.n_ranks * g->s.max_tokens;
	uint32_t want = (rows + threads / WARP - 1) / (threads / WARP), most = (g->n_sms * 8 + g->n_local - 1) / g->n_local;
	most = most < 8 ? 8 : most;
	start(g, copy_y_kernel, dim3(want > most ? most : want, g->n_local), threads, 0, stream, *g, slot, *c);
	return launched();
}

extern "C" enum err ep_launch_meet_combine(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_combine *c,
					   void *stream)
{
	start(g, meet_combine_kernel, dim3(1), EP_RANKS_MAX, 0, stream, *g, slot, *c);
	return launched();
}

extern "C" enum err ep_launch_reduce(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_combine *c,
				     void *stream)
{
	const int threads = 256;
	uint32_t n16 = g->s.hidden / 8, pieces = 1, target = g->n_sms * 32;
	/* few tokens: cut rows so that the machine is full */
	while (c->n_tokens * pieces < target && pieces * WARP < n16)
		pieces *= 2;
	uint32_t units = c->n_tokens * pieces;
	uint32_t blocks = (units + threads / WARP - 1) / (threads / WARP);
	blocks = blocks > g->n_sms * 8 ? g->n_sms * 8 : blocks;
	blocks = blocks == 0 ? 1 : blocks; /* a rank without tokens still says that it is done */
	start(g, reduce_kernel, dim3(blocks), threads, 0, stream, *g, slot, *c, pieces);
	return launched();
}
