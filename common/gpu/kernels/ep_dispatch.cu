/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch: route -> pack -> meet -> gather (ep.h for the protocol, ep_kernels.h for the flags).
 *
 * Bytes, for T tokens a rank, K choices, row bytes B (hidden * 2, or hidden + hidden/32 for fp8):
 *   pack    reads T * hidden * 2, writes T * B
 *   gather  reads T * B once for each owner rank a token goes to, writes T * K * B
 */
#include "ep_common.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

/* ---- route: one block ---- */

#define WALK_UNROLL 8

/*
 * One warp, its tokens [from, to): how often they name each expert, into this warp's part of hist, and
 * are all choices in range and named once? A step takes as many whole tokens as fit the lanes, so
 * that a repeated choice shows as a match of (token, id). The first bad one is reported to the host.
 */
__device__ bool count_part(const struct ep_gpu &g, const int64_t *topk, uint32_t from, uint32_t to, uint32_t top_k,
			   int32_t *hist)
{
	uint32_t lane = threadIdx.x % WARP, per_step = WARP / top_k, mine = lane / top_k, k = lane % top_k;
	bool bad = false;
	for (uint32_t t0 = from; t0 < to; t0 += WALK_UNROLL * per_step) {
		int64_t id[WALK_UNROLL];
#pragma unroll
		for (int u = 0; u < WALK_UNROLL; u++) {
			uint32_t t = t0 + u * per_step + mine;
			id[u] = mine < per_step && t < to ? topk[(uint64_t)t * top_k + k] : -1;
		}
#pragma unroll
		for (int u = 0; u < WALK_UNROLL; u++) {
			bool wrong = id[u] < -1 || id[u] >= (int64_t)g.s.n_experts;
			int key = wrong || id[u] < 0 ? -1 - (int)lane : (int)(mine << 16 | (uint32_t)id[u]);
			wrong |= __popc(__match_any_sync(ALL, key)) > 1;
			if (wrong) {
				g.status->token = t0 + u * per_step + mine;
				g.status->k = k;
				g.status->value = id[u];
				bad = true;
			} else if (id[u] >= 0) {
				atomicAdd(hist + id[u], 1);
			}
		}
	}
	return bad;
}

/*
 * The places of entries [from, to), in order, by one warp. base: [n_experts] in shared memory, this
 * warp's running count of each expert. The loads of a round are all in flight before it is walked.
 */
__device__ void place_part(const int64_t *topk, uint32_t from, uint32_t to, int32_t *base, int32_t *ids, int32_t *pos)
{
	uint32_t lane = threadIdx.x % WARP;
	for (uint32_t i = from; i < to; i += WALK_UNROLL * WARP) {
		int id[WALK_UNROLL];
#pragma unroll
		for (int u = 0; u < WALK_UNROLL; u++) {
			uint32_t at = i + u * WARP + lane;
			id[u] = at < to ? (int)topk[at] : -1;
		}
#pragma unroll
		for (int u = 0; u < WALK_UNROLL; u++) {
			uint32_t at = i + u * WARP + lane;
			if (i + u * WARP >= to)
				break;
			uint32_t same = __match_any_sync(ALL, id[u]);
			int rank = __popc(same & ((1u << lane) - 1));
			int first = id[u] >= 0 ? base[id[u]] : 0;
			__syncwarp();
			if (id[u] >= 0 && rank == 0)
				base[id[u]] = first + __popc(same);
			__syncwarp();
			if (at < to) {
				ids[at] = id[u];
				pos[at] = first + rank;
			}
		}
	}
}

/* Every block that writes into the slot, first: may it (I3)? Then the stamp, before any row (I2). */
__device__ void claim_slot(const struct ep_gpu &g, uint32_t slot, int32_t *active, uint64_t timeout_ns)
{
	uint64_t count = g.st->count[slot] + 1, end = end_of(timeout_ns);
	if (threadIdx.x < g.s.n_ranks) {
		uint32_t r = threadIdx.x;
		if (active[r] == 0)
			g.st->masked[r] = 1;
		else if (g.st->masked[r])
			active[r] = 0;
		wait_or_mask(g, slot, EP_READ_DONE, r, stamp_of(g, count - 1), end, active);
		wait_or_mask(g, slot, EP_Y_DONE, r, stamp_of(g, count - 1), end, active);
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		*(volatile uint64_t *)&head_of(g, g.me, slot)->stamp_head = stamp_of(g, count);
		__threadfence_system();
	}
	__syncthreads();
}

/*
 * Checks and counts the choices, then writes ids, pos, counts and the head. Two passes of each warp
 * over its own tokens with a scan over the warps between them keep the order of the list.
 * Shared: n_warps * n_experts * 4 bytes.
 */
__device__ void route(const struct ep_gpu &g, uint32_t slot, const int64_t *topk, uint32_t n_tokens, uint32_t top_k,
		      int fp8, uint32_t n_warps)
{
	extern __shared__ int32_t hist[]; /* [n_warps][n_experts] */
	__shared__ uint32_t bad;
	uint32_t warp = threadIdx.x / WARP;
	uint8_t *s = slot_of(g, g.me, slot);
	struct ep_slot_head *head = (struct ep_slot_head *)s;
	if (threadIdx.x == 0)
		bad = 0;
	for (uint32_t i = threadIdx.x; i < n_warps * g.s.n_experts; i += blockDim.x)
		hist[i] = 0;
	__syncthreads();
	uint32_t part = (n_tokens + n_warps - 1) / n_warps;
	uint32_t from = min(warp * part, n_tokens), to = warp < n_warps ? min(from + part, n_tokens) : from;
	int32_t *mine = hist + warp * g.s.n_experts;
	if (count_part(g, topk, from, to, top_k, mine))
		bad = 1;
	__syncthreads();
	bool refused = bad; /* then nothing of ours moves; peers see a rank with no tokens */
	int32_t *counts = (int32_t *)(s + g.l.counts);
	for (uint32_t e = threadIdx.x; e < g.s.n_experts; e += blockDim.x) {
		int32_t at = 0;
#pragma unroll 8
		for (uint32_t w = 0; w < n_warps; w++) {
			int32_t n = hist[w * g.s.n_experts + e];
			hist[w * g.s.n_experts + e] = at;
			at += n;
		}
		counts[e] = refused ? 0 : at;
	}
	__syncthreads();
	if (!refused)
		place_part(topk, from * top_k, to * top_k, mine, (int32_t *)(s + g.l.topk), (int32_t *)(s + g.l.pos));
	if (threadIdx.x == 0) {
		if (refused)
			g.status->bad = 1;
		head->n_tokens = refused ? 0 : n_tokens;
		head->top_k = top_k;
		head->n_experts = g.s.n_experts;
		head->fp8 = fp8;
	}
}

/* Grid 1 x 1024. */
__global__ void __launch_bounds__(1024) route_kernel(struct ep_gpu g, uint32_t slot, const int64_t *topk,
						     uint32_t n_tokens, uint32_t top_k, int fp8, int32_t *active,
						     uint64_t timeout_ns, uint32_t n_warps)
{
	after_previous();
	claim_slot(g, slot, active, timeout_ns);
	route(g, slot, topk, n_tokens, top_k, fp8, n_warps);
}

/* ---- pack ---- */

/* 8 channels of a lane; 16 lanes share a scale. The arithmetic of answers.md, bit for bit. */
__device__ __forceinline__ uint2 cast8(uint4 v, float *scale)
{
	const uint32_t w[4] = { v.x, v.y, v.z, v.w };
	float f[8], amax = 0.0f;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		f[2 * i] = __uint_as_float(w[i] << 16);
		f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		amax = fmaxf(amax, fabsf(f[i]));
#pragma unroll
	for (int d = 8; d > 0; d >>= 1)
		amax = fmaxf(amax, __shfl_xor_sync(ALL, amax, d));
	float s = __fdiv_rn(fmaxf(amax, 1e-4f), 448.0f);
	*scale = s;
	uint32_t q[2] = { 0, 0 };
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float2 p = make_float2(__fdiv_rn(f[2 * i], s), __fdiv_rn(f[2 * i + 1], s));
		uint32_t two = __nv_cvt_float2_to_fp8x2(p, __NV_SATFINITE, __NV_E4M3);
		q[i / 2] |= two << (i % 2 * 16);
	}
	return make_uint2(q[0], q[1]);
}

/* One row of the caller into our slot, by a warp, all loads of a round in flight. */
template <bool FP8>
__device__ void pack_row(const struct ep_gpu &g, const uint4 *in, uint8_t *row)
{
	uint32_t lane = threadIdx.x % WARP, n16 = g.s.hidden / 8;
	float *scales = (float *)(row + g.s.hidden);
	/* hidden is a multiple of 128: 16 lanes of 8 channels; the other half may idle at the end */
#pragma unroll 4
	for (uint32_t i = lane; i < (n16 + WARP - 1) / WARP * WARP; i += WARP) {
		uint4 v = i < n16 ? ld_row(in + i) : make_uint4(0, 0, 0, 0);
		if (!FP8) {
			if (i < n16)
				((uint4 *)row)[i] = v;
			continue;
		}
		float scale;
		uint2 q = cast8(v, &scale);
		if (i < n16) {
			((uint2 *)row)[i] = q;
			if (lane % 16 == 0)
				scales[i / 16] = scale;
		}
	}
}

template <bool FP8>
__device__ __forceinline__ uint64_t row_stride(const struct ep_gpu &g)
{
	return FP8 ? ((uint64_t)g.s.hidden + g.s.hidden / 32 + 15) / 16 * 16 : (uint64_t)g.s.hidden * 2;
}

/* Warp per token, grid-stride. Bound: bytes (see above). */
template <bool FP8>
__global__ void pack_kernel(struct ep_gpu g, uint32_t slot, const uint4 *x, uint32_t n_tokens)
{
	after_previous();
	uint8_t *rows = slot_of(g, g.me, slot) + g.l.rows;
	uint32_t n_warps = gridDim.x * (blockDim.x / WARP);
	for (uint32_t t = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; t < n_tokens; t += n_warps)
		pack_row<FP8>(g, x + (uint64_t)t * (g.s.hidden / 8), rows + t * row_stride<FP8>(g));
}

/*
 * route and pack in one launch, for small batches: block 0 routes, the others pack, and each of
 * them asks whether the slot is free. They are few (ep_launch_publish), so that waiting blocks of
 * all ranks on a GPU leave room for the kernels they wait for. Grid 1 + blocks x 1024.
 */
template <bool FP8>
__global__ void __launch_bounds__(1024) publish_kernel(struct ep_gpu g, uint32_t slot, const uint4 *x,
						       const int64_t *topk, uint32_t n_tokens, uint32_t top_k,
						       int32_t *active, uint64_t timeout_ns, uint32_t n_warps)
{
	after_previous();
	claim_slot(g, slot, active, timeout_ns);
	if (blockIdx.x == 0) {
		route(g, slot, topk, n_tokens, top_k, FP8, n_warps);
		return;
	}
	uint8_t *rows = slot_of(g, g.me, slot) + g.l.rows;
	uint32_t stride = (gridDim.x - 1) * (blockDim.x / WARP);
	for (uint32_t t = (blockIdx.x - 1) * (blockDim.x / WARP) + threadIdx.x / WARP; t < n_tokens; t += stride)
		pack_row<FP8>(g, x + (uint64_t)t * (g.s.hidden / 8), rows + t * row_stride<FP8>(g));
}

/* ---- meet ---- */

/* Does what source r published belong to this step and fit it? */
__device__ bool source_fits(const struct ep_gpu &g, uint32_t r, uint32_t slot, uint64_t stamp, int fp8)
{
	const volatile struct ep_slot_head *h = head_of(g, r, slot);
	return h->stamp_head == stamp && h->n_tokens <= g.s.max_tokens && h->top_k >= 1 &&
	       h->top_k <= EP_TOP_K_MAX && h->n_experts == g.s.n_experts && (int)h->fp8 == fp8;
}

/*
 * Says "published", waits for all sources, lays our rows out: begin for the sources to read (-1
 * for a masked one, I2), counts and ranges for the caller. Grid 1 x 1024.
 */
__global__ void meet_dispatch_kernel(struct ep_gpu g, uint32_t slot, int fp8, int signal, int32_t *active,
				     int32_t *recv_count, int64_t *range, uint64_t timeout_ns)
{
	after_previous();
	extern __shared__ int32_t counts[]; /* [n_local][n_ranks] */
	uint64_t count = g.st->count[slot] + (signal ? 1 : 0), stamp = stamp_of(g, count), end = end_of(timeout_ns);
	uint32_t n = g.s.n_ranks, tid = threadIdx.x;
	if (tid < n) {
		if (signal && !g.st->masked[tid]) {
			__threadfence_system();
			st_release_sys(flag_of(g, tid, slot, EP_PUBLISHED, g.me), stamp);
		}
		wait_or_mask(g, slot, EP_PUBLISHED, tid, stamp, end, active);
		if (!g.st->masked[tid] && !source_fits(g, tid, slot, stamp, fp8))
			mask_rank(g, slot, EP_N_FLAGS, tid, stamp, head_of(g, tid, slot)->stamp_head, active);
		bool out = g.st->masked[tid];
		g.st->n_tokens[slot][tid] = out ? 0 : head_of(g, tid, slot)->n_tokens;
		g.st->top_k[slot][tid] = out ? 1 : head_of(g, tid, slot)->top_k;
	}
	__syncthreads();
	if (tid == 0)
		g.st->count[slot] = count; /* the step is out: everything after counts with it */
	for (uint32_t i = tid; i < g.s.n_experts * n; i += blockDim.x) { /* many loads in flight */
		uint32_t e = i / n, r = i % n;
		if (g.owner[e] != g.me)
			continue;
		const volatile int32_t *c = (const int32_t *)(slot_of(g, r, slot) + g.l.counts);
		counts[g.local[e] * n + r] = g.st->masked[r] ? 0 : c[e];
	}
	__syncthreads();
	int32_t *begin = (int32_t *)(slot_of(g, g.me, slot) + g.l.begin);
	for (uint32_t l = tid; l < g.n_local; l += blockDim.x) {
		int32_t at = 0;
		for (uint32_t r = 0; r < n; r++) {
			int32_t c = counts[l * n + r];
			begin[l * n + r] = g.st->masked[r] ? -1 : at;
			if (range)
				range[(uint64_t)l * n + r] = (int64_t)at << 32 | (uint32_t)c;
			at += c;
		}
		recv_count[l] = at;
	}
}

/* advance: the flag is the slot's next step, which it thereby becomes. */
__global__ void signal_kernel(struct ep_gpu g, uint32_t slot, int flag, int advance)
{
	after_previous();
	uint64_t count = g.st->count[slot] + (advance ? 1 : 0), stamp = stamp_of(g, count);
	__syncthreads();
	if (threadIdx.x == 0)
		g.st->count[slot] = count;
	if (threadIdx.x < g.s.n_ranks && !g.st->masked[threadIdx.x]) {
		__threadfence_system();
		st_release_sys(flag_of(g, threadIdx.x, slot, flag, g.me), stamp);
	}
}

/* ---- gather ---- */

#define GATHER_UNROLL 4

/* One row to all its places here; `dests` of the warp's lanes hold the row numbers, -1 for none. */
template <bool FP8>
__device__ __forceinline__ void spread(const struct ep_gpu &g, const uint8_t *row, uint8_t *recv_x, float *scales,
				       uint32_t owned, int64_t dest, uint32_t from16, uint32_t n16)
{
	uint32_t lane = threadIdx.x % WARP;
	uint64_t row_out = (uint64_t)g.s.hidden * (FP8 ? 1 : 2);
	const uint4 *in = (const uint4 *)row;
	uint32_t i = from16 + lane;
	for (; i + (GATHER_UNROLL - 1) * WARP < n16; i += GATHER_UNROLL * WARP) {
		uint4 v[GATHER_UNROLL];
#pragma unroll
		for (int u = 0; u < GATHER_UNROLL; u++)
			v[u] = ld_row(in + i + u * WARP);
		for (uint32_t m = owned; m; m &= m - 1) {
			int64_t d = __shfl_sync(ALL, dest, __ffs(m) - 1);
			uint4 *out = (uint4 *)(recv_x + d * row_out);
#pragma unroll
			for (int u = 0; u < GATHER_UNROLL; u++)
				st_row(out + i + u * WARP, v[u]);
		}
	}
	uint32_t rest = i - lane < n16 ? (n16 - (i - lane) + WARP - 1) / WARP : 0; /* the same for all lanes: shuffles below */
	for (uint32_t j = 0; j < rest; j++, i += WARP) {
		uint4 v = i < n16 ? ld_row(in + i) : make_uint4(0, 0, 0, 0);
		for (uint32_t m = owned; m; m &= m - 1) {
			int64_t d = __shfl_sync(ALL, dest, __ffs(m) - 1);
			if (i < n16)
				st_row((uint4 *)(recv_x + d * row_out) + i, v);
		}
	}
	if (!FP8 || from16 != 0)
		return;
	uint32_t n_scales = g.s.hidden / 128;
	const float *in_scales = (const float *)(row + g.s.hidden);
	for (uint32_t j = 0; j < (n_scales + WARP - 1) / WARP; j++) {
		uint32_t c = j * WARP + lane;
		float v = c < n_scales ? in_scales[c] : 0.0f;
		for (uint32_t m = owned; m; m &= m - 1) {
			int64_t d = __shfl_sync(ALL, dest, __ffs(m) - 1);
			if (c < n_scales)
				scales[d * n_scales + c] = v;
		}
	}
}

/*
 * Warp per (source, token, piece of the row): reads it once and writes it for each of the token's
 * experts here. Grid (x, n_ranks), y = source. Bound: bytes.
 */
template <bool FP8>
__global__ void gather_kernel(struct ep_gpu g, uint32_t slot, uint8_t *recv_x, float *scales, int32_t *src_info,
			      int32_t *active, uint32_t n_pieces)
{
	after_previous();
	uint32_t lane = threadIdx.x % WARP, src = (blockIdx.y + g.me) % g.s.n_ranks; /* start at home */
	uint32_t n_tokens = g.st->n_tokens[slot][src], top_k = g.st->top_k[slot][src];
	uint32_t n_warps = gridDim.x * (blockDim.x / WARP), n = g.s.n_ranks;
	uint64_t cap = (uint64_t)n * g.s.max_tokens;
	const uint8_t *s = slot_of(g, src, slot);
	const int32_t *ids = (const int32_t *)(s + g.l.topk), *pos = (const int32_t *)(s + g.l.pos);
	const int32_t *begin = (const int32_t *)(slot_of(g, g.me, slot) + g.l.begin);
	uint32_t n16 = g.s.hidden / (FP8 ? 16 : 8), per = (n16 + n_pieces * WARP - 1) / (n_pieces * WARP) * WARP;
	for (uint32_t u = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; u < n_tokens * n_pieces; u += n_warps) {
		uint32_t t = u / n_pieces, piece = u % n_pieces;
		int64_t dest = -1;
		if (lane < top_k) {
			int32_t id = ids[(uint64_t)t * top_k + lane];
			if (id >= 0 && id < (int32_t)g.s.n_experts && g.owner[id] == g.me) {
				uint32_t l = g.local[id];
				uint64_t at = (uint64_t)(begin[l * n + src] + pos[(uint64_t)t * top_k + lane]);
				if (at < cap) /* else the source went on and we are masked there */
					dest = (int64_t)(l * cap + at);
			}
		}
		uint32_t owned = __ballot_sync(ALL, dest >= 0);
		if (!owned)
			continue;
		if (dest >= 0 && piece == 0)
			src_info[dest] = (int32_t)t;
		spread<FP8>(g, s + g.l.rows + t * row_stride<FP8>(g), recv_x, scales, owned, dest, piece * per,
			    min((piece + 1) * per, n16));
	}
	if (!last_block(&g.st->blocks_done[slot][0]))
		return;
	uint64_t stamp = stamp_of(g, g.st->count[slot]);
	if (threadIdx.x >= n || g.st->masked[threadIdx.x])
		return;
	uint32_t r = threadIdx.x;
	uint64_t found = *(volatile uint64_t *)&head_of(g, r, slot)->stamp_head;
	if (found != stamp) { /* I2 */
		mask_rank(g, slot, EP_N_FLAGS, r, stamp, found, active);
		int32_t *b = (int32_t *)(slot_of(g, g.me, slot) + g.l.begin);
		for (uint32_t l = 0; l < g.n_local; l++)
			b[l * n + r] = -1;
		return;
	}
	st_release_sys(flag_of(g, r, slot, EP_READ_DONE, g.me), stamp);
}

/* ---- launchers ---- */

extern "C" enum err ep_load_dispatch(void)
{
	static const void *const k[] = {
		(const void *)route_kernel,	       (const void *)pack_kernel<true>,	   (const void *)pack_kernel<false>,
		(const void *)publish_kernel<true>,    (const void *)publish_kernel<false>, (const void *)meet_dispatch_kernel,
		(const void *)signal_kernel,	       (const void *)gather_kernel<true>,  (const void *)gather_kernel<false>,
	};
	return loaded(k, sizeof(k) / sizeof(k[0]));
}

static void allow_shared(const void *kernel, uint32_t bytes)
{
	if (bytes > 40 * 1024)
		cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

static void launch_pack(const struct ep_gpu *g, uint32_t slot, const uint4 *x, uint32_t n_tokens, int fp8,
			cudaStream_t stream)
{
	const int threads = 256;
	uint32_t blocks = (n_tokens + threads / WARP - 1) / (threads / WARP);
	blocks = blocks > g->n_sms * 8 ? g->n_sms * 8 : blocks;
	if (n_tokens == 0)
		return;
	if (fp8)
		start(g, pack_kernel<true>, dim3(blocks), threads, 0, stream, *g, slot, x, n_tokens);
	else
		start(g, pack_kernel<false>, dim3(blocks), threads, 0, stream, *g, slot, x, n_tokens);
}

extern "C" enum err ep_launch_publish(const struct ep_gpu *g, uint32_t slot, const void *x, const int64_t *topk,
				      uint32_t n_tokens, uint32_t top_k, int fp8, int32_t *active, uint64_t timeout_ns,
				      uint32_t shared_bytes, void *stream)
{
	cudaStream_t st = (cudaStream_t)stream;
	uint32_t n_warps = shared_bytes / (g->s.n_experts * 4);
	n_warps = n_warps > 32 ? 32 : n_warps;
	if (n_warps < 2)
		return ERR_UNSUPPORTED;
	uint32_t bytes = n_warps * g->s.n_experts * 4, blocks = (n_tokens + 31) / 32;
	if (blocks + 1 > g->n_sms / (2 * g->s.n_ranks)) {
		allow_shared((const void *)route_kernel, bytes);
		start(g, route_kernel, dim3(1), 1024, bytes, st, *g, slot, topk, n_tokens, top_k, fp8, active,
		      timeout_ns, n_warps);
		launch_pack(g, slot, (const uint4 *)x, n_tokens, fp8, st);
	} else if (fp8) {
		allow_shared((const void *)publish_kernel<true>, bytes);
		start(g, publish_kernel<true>, dim3(blocks + 1), 1024, bytes, st, *g, slot, (const uint4 *)x,
		      topk, n_tokens, top_k, active, timeout_ns, n_warps);
	} else {
		allow_shared((const void *)publish_kernel<false>, bytes);
		start(g, publish_kernel<false>, dim3(blocks + 1), 1024, bytes, st, *g, slot, (const uint4 *)x,
		      topk, n_tokens, top_k, active, timeout_ns, n_warps);
	}
	return launched();
}

extern "C" enum err ep_launch_meet_dispatch(const struct ep_gpu *g, uint32_t slot, int fp8, int signal,
					    int32_t *active, int32_t *recv_count, int64_t *range, uint64_t timeout_ns,
					    void *stream)
{
	uint32_t bytes = g->s.max_local * g->s.n_ranks * 4;
	allow_shared((const void *)meet_dispatch_kernel, bytes);
	start(g, meet_dispatch_kernel, dim3(1), 1024, bytes, stream, *g, slot, fp8, signal, active, recv_count,
	      range, timeout_ns);
	return launched();
}

extern "C" enum err ep_launch_signal(const struct ep_gpu *g, uint32_t slot, enum ep_flag flag, void *stream)
{
	start(g, signal_kernel, dim3(1), EP_RANKS_MAX, 0, stream, *g, slot, (int)flag, flag == EP_PUBLISHED);
	return launched();
}

extern "C" enum err ep_launch_gather(const struct ep_gpu *g, uint32_t slot, int fp8, void *recv_x, float *scales,
				     int32_t *src_info, int32_t *active, void *stream)
{
	const int threads = 256;
	uint32_t n16 = g->s.hidden / (fp8 ? 16 : 8), pieces = 1;
	/* few tokens: cut rows so that the machine is full */
	while (g->s.max_tokens * g->s.n_ranks * pieces < g->n_sms * 16 && pieces * 2 * WARP <= n16)
		pieces *= 2;
	/* the token counts are on the device: as many warps as the largest batch can use */
	uint32_t per_src = (g->s.max_tokens * pieces + threads / WARP - 1) / (threads / WARP);
	uint32_t most = (g->n_sms * 8 + g->s.n_ranks - 1) / g->s.n_ranks;
	dim3 grid(per_src > most ? most : per_src, g->s.n_ranks);
	if (fp8)
		start(g, gather_kernel<true>, dim3(grid), threads, 0, stream, *g, slot, (uint8_t *)recv_x, scales,
		      src_info, active, pieces);
	else
		start(g, gather_kernel<false>, dim3(grid), threads, 0, stream, *g, slot, (uint8_t *)recv_x, scales,
		      src_info, active, pieces);
	return launched();
}
