/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch: claim -> route and pack -> meet -> gather (ep.h for the protocol, ep_kernels.h for the
 * flags). A large batch takes a kernel each, a small one a single kernel.
 *
 * Bytes, for T tokens a rank, K choices, row bytes B (hidden * 2, or hidden + hidden/32 for fp8):
 *   pack    reads T * hidden * 2, writes T * B
 *   gather  reads T * B once for each owner rank a token goes to, writes T * K * B
 */
#include "ep_common.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

/* ---- claim ---- */

/*
 * Every block that writes into the slot, first: may it (I3)? Then the stamp, before any row (I2). All
 * threads, 128 at least.
 */
__device__ void claim_slot(const struct ep_gpu &g, uint32_t slot, int32_t *active, uint64_t timeout_ns)
{
	uint64_t count = g.st->count[slot] + 1, end = end_of(timeout_ns);
	uint32_t r = threadIdx.x % EP_RANKS_MAX, half = threadIdx.x / EP_RANKS_MAX;
	if (half < 2 && r < g.s.n_ranks) {
		bool out = active[r] == 0, masked = g.st->masked[r];
		if (half == 0 && out)
			g.st->masked[r] = 1;
		if (half == 0 && masked)
			active[r] = 0;
		if (!out && !masked)
			wait_or_mask(g, slot, half ? EP_Y_DONE : EP_READ_DONE, r, stamp_of(g, count - 1), end, active);
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		*(volatile uint64_t *)&head_of(g, g.me, slot)->stamp_head = stamp_of(g, count);
		__threadfence_system();
	}
	__syncthreads();
}

/* Grid 1 x 128. */
__global__ void claim_kernel(struct ep_gpu g, uint32_t slot, int32_t *active, uint64_t timeout_ns)
{
	after_previous();
	claim_slot(g, slot, active, timeout_ns);
}

/* ---- route: one block ---- */

#define WALK_UNROLL 8
#define COUNT_MASK  0xffffff /* of a counter in shared memory; the place k of the last writer above it */

/*
 * The order of the list is kept without looking for equal choices among lanes (match_any, which is slow):
 * a group of lanes, as many as the top_k rounded up to a power of two, walks tokens of its own one after the
 * other, and within a token all choices differ. Each group counts in its own part of hist.
 */
struct route_part {
	uint32_t from, to; /* tokens of this group of lanes */
	uint32_t most;	   /* tokens of any group: all lanes of a warp take as many steps */
	uint32_t k;	   /* this lane's choice */
	int32_t *mine;
	bool refused;
};

__device__ __forceinline__ uint32_t group_lanes(uint32_t top_k)
{
	return top_k <= 1 ? 1 : 1u << (32 - __clz(top_k - 1));
}

/* What the tokens from t0 on of a group choose; -1 where there is none. */
__device__ __forceinline__ void load_choices(const struct ep_gpu_dispatch &d, const struct route_part &p, uint32_t t0,
					     int64_t *id)
{
#pragma unroll
	for (int u = 0; u < WALK_UNROLL; u++) {
		uint32_t t = t0 + u;
		id[u] = p.k < d.top_k && t < p.to ? d.topk[(uint64_t)t * d.top_k + p.k] : -1;
	}
}

/* Counts a group's tokens; false when a choice is out of range or repeated: it is reported to the host. */
__device__ bool count_part(const struct ep_gpu &g, const struct ep_gpu_dispatch &d, const struct route_part &p)
{
	bool good = true;
	for (uint32_t n = 0; n < p.most; n += WALK_UNROLL) {
		int64_t id[WALK_UNROLL];
		load_choices(d, p, p.from + n, id);
#pragma unroll
		for (int u = 0; u < WALK_UNROLL; u++) {
			bool wrong = id[u] < -1 || id[u] >= (int64_t)g.s.n_experts, have = id[u] >= 0 && !wrong;
			int32_t *at = p.mine + (have ? id[u] : 0), v = have ? *at & COUNT_MASK : 0;
			__syncwarp();
			if (have)
				*at = (v + 1) | (int32_t)(p.k << 24);
			__syncwarp();
			wrong |= have && (uint32_t)*at >> 24 != p.k; /* the token named it twice */
			if (wrong) {
				g.status->token = p.from + n + u;
				g.status->k = p.k;
				g.status->value = id[u];
				good = false;
			}
		}
	}
	return good;
}

/* The places of a group's tokens, from what hist holds by now. */
__device__ void place_part(const struct ep_gpu_dispatch &d, const struct route_part &p, int32_t *ids, int32_t *pos)
{
	for (uint32_t n = 0; n < p.most; n += WALK_UNROLL) {
		int64_t id[WALK_UNROLL];
		load_choices(d, p, p.from + n, id);
#pragma unroll
		for (int u = 0; u < WALK_UNROLL; u++) {
			uint32_t t = p.from + n + u;
			int32_t at = id[u] >= 0 ? p.mine[id[u]] : 0;
			__syncwarp();
			if (id[u] >= 0)
				p.mine[id[u]] = at + 1;
			__syncwarp();
			if (p.k < d.top_k && t < p.to) {
				ids[(uint64_t)t * d.top_k + p.k] = (int32_t)id[u];
				pos[(uint64_t)t * d.top_k + p.k] = at;
			}
		}
	}
}

/* First: each group counts its tokens; only the caller's memory is read. hist: [n_parts][n_experts]. */
__device__ struct route_part route_count(const struct ep_gpu &g, const struct ep_gpu_dispatch &d, uint32_t n_parts,
					 int32_t *hist)
{
	__shared__ uint32_t bad;
	uint32_t lanes = group_lanes(d.top_k), part = threadIdx.x / lanes;
	struct route_part p;
	if (threadIdx.x == 0)
		bad = 0;
	for (uint32_t i = threadIdx.x; i < n_parts * g.s.n_experts; i += blockDim.x)
		hist[i] = 0;
	__syncthreads();
	p.most = (d.n_tokens + n_parts - 1) / n_parts;
	p.from = part < n_parts ? min(part * p.most, d.n_tokens) : d.n_tokens;
	p.to = min(p.from + p.most, d.n_tokens);
	p.k = threadIdx.x % lanes;
	p.mine = hist + (part < n_parts ? part : 0) * g.s.n_experts;
	if (!count_part(g, d, p))
		bad = 1;
	__syncthreads();
	p.refused = bad; /* then nothing of ours moves; peers see a rank with no tokens */
	return p;
}

/* Then, in a slot that is ours: ids, pos, counts and the head. */
__device__ void route_write(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_dispatch &d, uint32_t n_parts,
			    int32_t *hist, const struct route_part &p)
{
	uint8_t *s = slot_of(g, g.me, slot);
	struct ep_slot_head *head = (struct ep_slot_head *)s;
	int32_t *counts = (int32_t *)(s + g.l.counts);
	for (uint32_t e = threadIdx.x; e < g.s.n_experts; e += blockDim.x) {
		int32_t at = 0;
#pragma unroll 8
		for (uint32_t i = 0; i < n_parts; i++) {
			int32_t n = hist[i * g.s.n_experts + e] & COUNT_MASK;
			hist[i * g.s.n_experts + e] = at;
			at += n;
		}
		counts[e] = p.refused ? 0 : at;
	}
	__syncthreads();
	if (!p.refused)
		place_part(d, p, (int32_t *)(s + g.l.topk), (int32_t *)(s + g.l.pos));
	if (threadIdx.x == 0) {
		if (p.refused)
			g.status->bad = 1;
		head->n_tokens = p.refused ? 0 : d.n_tokens;
		head->top_k = d.top_k;
		head->n_experts = g.s.n_experts;
		head->fp8 = d.fp8;
	}
}

/* ---- pack ---- */

/*
 * 8 channels of a lane; 16 lanes share a scale. The arithmetic of answers.md, bit for bit: the quotient
 * is corrected by its remainder, which for a bf16 numerator gives the e4m3 of the IEEE quotient
 * (num.c says why). An infinite scale has no remainder: its quotients are 0 or NaN.
 */
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
	float s = __fdiv_rn(fmaxf(amax, 1e-4f), 448.0f), inv = __frcp_rn(s);
	float finite = s < INFINITY ? s : 0.0f;
	*scale = s;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		float q = __fmul_rn(f[i], inv);
		q = __fmaf_rn(__fmaf_rn(-q, finite, f[i]), inv, q);
		f[i] = copysignf(q, f[i]); /* the correction loses the sign of 0 */
	}
	uint32_t q[2] = { 0, 0 };
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t two =
			__nv_cvt_float2_to_fp8x2(make_float2(f[2 * i], f[2 * i + 1]), __NV_SATFINITE, __NV_E4M3);
		q[i / 2] |= two << (i % 2 * 16);
	}
	return make_uint2(q[0], q[1]);
}

template <bool FP8>
__device__ __forceinline__ uint64_t row_stride(const struct ep_gpu &g)
{
	return FP8 ? ((uint64_t)g.s.hidden + g.s.hidden / 32 + 15) / 16 * 16 : (uint64_t)g.s.hidden * 2;
}

#define PACK_UNROLL 4
#define PACK_PIECE  (PACK_UNROLL * WARP) /* uint4 of a row that a warp has in flight */

/* hidden is a multiple of 128, so 16 lanes of 8 channels are all there or all beyond the end. */
__device__ __forceinline__ void pack_load(const struct ep_gpu &g, const uint4 *row, uint32_t from, uint4 *v)
{
	uint32_t n16 = g.s.hidden / 8, lane = threadIdx.x % WARP;
#pragma unroll
	for (int u = 0; u < PACK_UNROLL; u++) {
		uint32_t i = from + u * WARP + lane;
		v[u] = i < n16 ? ld_row(row + i) : make_uint4(0, 0, 0, 0);
	}
}

template <bool FP8>
__device__ __forceinline__ void pack_store(const struct ep_gpu &g, uint8_t *row, uint32_t from, const uint4 *v)
{
	uint32_t n16 = g.s.hidden / 8, lane = threadIdx.x % WARP;
	float *scales = (float *)(row + g.s.hidden);
#pragma unroll
	for (int u = 0; u < PACK_UNROLL; u++) {
		uint32_t i = from + u * WARP + lane;
		if (!FP8) {
			if (i < n16)
				((uint4 *)row)[i] = v[u];
			continue;
		}
		float scale;
		uint2 q = cast8(v[u], &scale);
		if (i < n16) {
			((uint2 *)row)[i] = q;
			if (lane % 16 == 0)
				scales[i / 16] = scale;
		}
	}
}

/* Warp per token, of the blocks from `first_block` on. Bound: bytes (see above). */
template <bool FP8>
__device__ void pack_rows(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_dispatch &d, uint32_t first_block)
{
	uint8_t *rows = slot_of(g, g.me, slot) + g.l.rows;
	uint32_t per = blockDim.x / WARP, stride = (gridDim.x - first_block) * per;
	for (uint32_t t = (blockIdx.x - first_block) * per + threadIdx.x / WARP; t < d.n_tokens; t += stride) {
		const uint4 *in = (const uint4 *)d.x + (uint64_t)t * (g.s.hidden / 8);
		for (uint32_t i = 0; i < g.s.hidden / 8; i += PACK_PIECE) {
			uint4 v[PACK_UNROLL];
			pack_load(g, in, i, v);
			pack_store<FP8>(g, rows + t * row_stride<FP8>(g), i, v);
		}
	}
}

/* A large batch, after claim: the first block routes while the others pack. Grid 1 + blocks x 1024. */
template <bool FP8>
__global__ void __launch_bounds__(1024)
	publish_kernel(struct ep_gpu g, uint32_t slot, struct ep_gpu_dispatch d, uint32_t n_parts)
{
	extern __shared__ int32_t shared[];
	after_previous();
	if (blockIdx.x > 0) {
		pack_rows<FP8>(g, slot, d, 1);
		return;
	}
	struct route_part p = route_count(g, d, n_parts, shared);
	route_write(g, slot, d, n_parts, shared, p);
}

/* ---- meet: one block ---- */

/* Masks what source r published when it does not belong to this step or does not fit it. */
__device__ void take_head(const struct ep_gpu &g, uint32_t slot, uint32_t r, uint64_t stamp, int fp8, int32_t *active)
{
	const struct ep_slot_head *h = head_of(g, r, slot);
	uint64_t found = *(const volatile uint64_t *)&h->stamp_head;
	uint32_t n_tokens, top_k, n_experts, is_fp8;
	asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(n_tokens), "=r"(top_k), "=r"(n_experts), "=r"(is_fp8)
		     : "l"(&h->n_tokens));
	bool fits = found == stamp && n_tokens <= g.s.max_tokens && top_k >= 1 && top_k <= EP_TOP_K_MAX &&
		    n_experts == g.s.n_experts && (int)is_fp8 == fp8;
	if (!fits)
		mask_rank(g, slot, EP_N_FLAGS, r, stamp, found, active);
	g.st->n_tokens[slot][r] = fits ? n_tokens : 0;
	g.st->top_k[slot][r] = fits ? top_k : 1;
}

/* Where each source's rows begin: for the sources to read, and for the caller. counts: shared memory. */
__device__ void lay_out(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_dispatch &d, const uint32_t *where,
			const bool *out, int32_t *counts)
{
	uint32_t n = g.s.n_ranks, tid = threadIdx.x;
	for (uint32_t i = tid; i < g.s.n_experts * n; i += blockDim.x) { /* many loads in flight */
		uint32_t e = i / n, r = i % n, w = where[e];
		if (w >> 16 != g.me)
			continue;
		const volatile int32_t *c = (const int32_t *)(slot_of(g, r, slot) + g.l.counts);
		counts[(w & 0xffff) * n + r] = out[r] ? 0 : c[e];
	}
	__syncthreads();
	int32_t *begin = (int32_t *)(slot_of(g, g.me, slot) + g.l.begin);
	for (uint32_t l = tid; l < g.n_local; l += blockDim.x) {
		int32_t at = 0;
		for (uint32_t r = 0; r < n; r++) {
			int32_t c = counts[l * n + r];
			begin[l * n + r] = out[r] ? -1 : at; /* I2 */
			if (d.range)
				d.range[(uint64_t)l * n + r] = (int64_t)at << 32 | (uint32_t)c;
			at += c;
		}
		d.recv_count[l] = at;
	}
}

/*
 * Says "published" and makes the step the slot's (PUBLISH); waits for all sources and lays our rows
 * out (RECEIVE). counts: [n_local][n_ranks] of shared memory. The step's stamp.
 */
__device__ uint64_t meet(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_dispatch &d, int parts,
			 const uint32_t *where, int32_t *counts)
{
	__shared__ bool out[EP_RANKS_MAX];
	bool publish = parts & EP_PART_PUBLISH;
	uint64_t count = g.st->count[slot] + (publish ? 1 : 0), stamp = stamp_of(g, count);
	uint32_t tid = threadIdx.x;
	if (tid < g.s.n_ranks) {
		if (publish && !g.st->masked[tid])
			st_release_sys(flag_of(g, tid, slot, EP_PUBLISHED, g.me), stamp);
		if (parts & EP_PART_RECEIVE) {
			wait_or_mask(g, slot, EP_PUBLISHED, tid, stamp, end_of(d.timeout_ns), d.active);
			if (!g.st->masked[tid])
				take_head(g, slot, tid, stamp, d.fp8, d.active);
			out[tid] = g.st->masked[tid];
			if (out[tid])
				g.st->n_tokens[slot][tid] = 0;
		}
	}
	__syncthreads();
	if (tid == 0 && publish)
		g.st->count[slot] = count; /* the step is out: everything after counts with it */
	if (parts & EP_PART_RECEIVE)
		lay_out(g, slot, d, where, out, counts);
	return stamp;
}

/* Grid 1 x 1024. */
__global__ void __launch_bounds__(1024)
	meet_kernel(struct ep_gpu g, uint32_t slot, struct ep_gpu_dispatch d, int parts)
{
	extern __shared__ int32_t shared[];
	after_previous();
	meet(g, slot, d, parts, g.where, shared);
}

/* advance: the flag is the slot's next step, which it thereby becomes. */
__global__ void signal_kernel(struct ep_gpu g, uint32_t slot, int flag, int advance)
{
	after_previous();
	uint64_t count = g.st->count[slot] + (advance ? 1 : 0), stamp = stamp_of(g, count);
	__syncthreads();
	if (threadIdx.x == 0)
		g.st->count[slot] = count;
	if (threadIdx.x < g.s.n_ranks && !g.st->masked[threadIdx.x])
		st_release_sys(flag_of(g, threadIdx.x, slot, flag, g.me), stamp);
}

/* ---- gather ---- */

#define GATHER_UNROLL 4

/*
 * [from16, n16) of one row to all its places here; the warp's lanes hold the row numbers (dest, -1 for
 * none), `owned` says which. All lanes take every turn: the shuffles need them.
 */
template <bool FP8>
__device__ __forceinline__ void spread(const struct ep_gpu &g, const uint8_t *row, uint8_t *recv_x, float *scales,
				       uint32_t owned, int64_t dest, uint32_t from16, uint32_t n16)
{
	uint32_t lane = threadIdx.x % WARP, i0 = from16;
	uint64_t row_out = (uint64_t)g.s.hidden * (FP8 ? 1 : 2);
	const uint4 *in = (const uint4 *)row;
	for (; i0 + GATHER_UNROLL * WARP <= n16; i0 += GATHER_UNROLL * WARP) {
		uint4 v[GATHER_UNROLL];
#pragma unroll
		for (int u = 0; u < GATHER_UNROLL; u++)
			v[u] = ld_row(in + i0 + u * WARP + lane);
		for (uint32_t m = owned; m; m &= m - 1) {
			int64_t d = __shfl_sync(ALL, dest, __ffs(m) - 1);
			uint4 *out = (uint4 *)(recv_x + d * row_out);
#pragma unroll
			for (int u = 0; u < GATHER_UNROLL; u++)
				st_row(out + i0 + u * WARP + lane, v[u]);
		}
	}
	for (; i0 < n16; i0 += WARP) {
		uint32_t i = i0 + lane;
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

/* A warp: one piece of one token of one source, read once and written for each of its experts here. */
template <bool FP8>
__device__ __forceinline__ void gather_piece(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_dispatch &d,
					     const uint32_t *where, uint32_t src, uint32_t t, uint32_t top_k,
					     uint32_t piece, uint32_t n_pieces)
{
	uint32_t lane = threadIdx.x % WARP, n = g.s.n_ranks;
	uint32_t n16 = g.s.hidden / (FP8 ? 16 : 8), per = (n16 + n_pieces * WARP - 1) / (n_pieces * WARP) * WARP;
	uint64_t cap = (uint64_t)n * g.s.max_tokens, i = (uint64_t)t * top_k + lane;
	const uint8_t *s = slot_of(g, src, slot);
	int64_t dest = -1;
	if (lane < top_k) {
		int32_t id = ((const int32_t *)(s + g.l.topk))[i], pos = ((const int32_t *)(s + g.l.pos))[i];
		uint32_t w = id >= 0 && id < (int32_t)g.s.n_experts ? where[id] : ~0u, l = w & 0xffff;
		if (w >> 16 == g.me) {
			const int32_t *begin = (const int32_t *)(slot_of(g, g.me, slot) + g.l.begin);
			uint64_t at = (uint64_t)(begin[l * n + src] + pos);
			if (at < cap) /* else the source went on and we are masked there */
				dest = (int64_t)(l * cap + at);
		}
	}
	uint32_t owned = __ballot_sync(ALL, dest >= 0);
	if (!owned)
		return;
	if (dest >= 0 && piece == 0)
		d.src_info[dest] = (int32_t)t;
	spread<FP8>(g, s + g.l.rows + t * row_stride<FP8>(g), (uint8_t *)d.recv_x, d.scales, owned, dest, piece * per,
		    min((piece + 1) * per, n16));
}

/* All blocks, at the end: the last one tells the sources, after it looked whether they went on (I2). */
__device__ void gather_end(const struct ep_gpu &g, uint32_t slot, int32_t *active)
{
	if (!last_block(&g.st->blocks_done[slot][0]))
		return;
	uint64_t stamp = stamp_of(g, g.st->count[slot]);
	uint32_t r = threadIdx.x, n = g.s.n_ranks;
	if (r >= n || g.st->masked[r])
		return;
	uint64_t found = *(volatile uint64_t *)&head_of(g, r, slot)->stamp_head;
	if (found != stamp) {
		mask_rank(g, slot, EP_N_FLAGS, r, stamp, found, active);
		int32_t *b = (int32_t *)(slot_of(g, g.me, slot) + g.l.begin);
		for (uint32_t l = 0; l < g.n_local; l++)
			b[l * n + r] = -1;
		return;
	}
	st_release_sys(flag_of(g, r, slot, EP_READ_DONE, g.me), stamp);
}

/* Warp per (token, piece of the row). Grid (x, n_ranks), y = source. Bound: bytes. */
template <bool FP8>
__global__ void gather_kernel(struct ep_gpu g, uint32_t slot, struct ep_gpu_dispatch d, uint32_t n_pieces)
{
	after_previous();
	uint32_t src = (blockIdx.y + g.me) % g.s.n_ranks; /* start at home */
	uint32_t n_tokens = g.st->n_tokens[slot][src], top_k = g.st->top_k[slot][src];
	uint32_t per = blockDim.x / WARP, n_warps = gridDim.x * per;
	for (uint32_t u = blockIdx.x * per + threadIdx.x / WARP; u < n_tokens * n_pieces; u += n_warps)
		gather_piece<FP8>(g, slot, d, g.where, src, u / n_pieces, top_k, u % n_pieces, n_pieces);
	gather_end(g, slot, d.active);
}

/* ---- a small batch: all of it in one kernel ---- */

#define SMALL_THREADS 512

/* Before the meeting: the first block routes, the others pack; what can be read is read before claim. */
template <bool FP8>
__device__ void small_publish(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_dispatch &d, uint32_t n_parts,
			      int32_t *hist)
{
	if (blockIdx.x == 0) {
		struct route_part p = route_count(g, d, n_parts, hist);
		claim_slot(g, slot, d.active, d.timeout_ns);
		route_write(g, slot, d, n_parts, hist, p);
		return;
	}
	uint32_t n16 = g.s.hidden / 8, pieces = (n16 + PACK_PIECE - 1) / PACK_PIECE, per = blockDim.x / WARP;
	uint32_t u = (blockIdx.x - 1) * per + threadIdx.x / WARP, n = d.n_tokens * pieces, stride = (gridDim.x - 1) * per;
	uint8_t *rows = slot_of(g, g.me, slot) + g.l.rows;
	uint4 v[PACK_UNROLL];
	if (u < n)
		pack_load(g, (const uint4 *)d.x + (uint64_t)(u / pieces) * n16, u % pieces * PACK_PIECE, v);
	claim_slot(g, slot, d.active, d.timeout_ns);
	while (u < n) {
		pack_store<FP8>(g, rows + u / pieces * row_stride<FP8>(g), u % pieces * PACK_PIECE, v);
		u += stride;
		if (u < n)
			pack_load(g, (const uint4 *)d.x + (uint64_t)(u / pieces) * n16, u % pieces * PACK_PIECE, v);
	}
}

/* After it: warps over (source, token, piece), sources one after the other from home. */
template <bool FP8>
__device__ void small_gather(const struct ep_gpu &g, uint32_t slot, const struct ep_gpu_dispatch &d,
			     const uint32_t *where, uint32_t n_pieces)
{
	__shared__ uint32_t units[EP_RANKS_MAX], top_ks[EP_RANKS_MAX];
	uint32_t n = g.s.n_ranks, per = blockDim.x / WARP;
	if (threadIdx.x < n) {
		uint32_t src = (threadIdx.x + g.me) % n;
		units[threadIdx.x] = g.st->n_tokens[slot][src] * n_pieces;
		top_ks[threadIdx.x] = g.st->top_k[slot][src];
	}
	__syncthreads();
	uint32_t u = blockIdx.x * per + threadIdx.x / WARP;
	for (uint32_t i = 0; i < n; i++) {
		for (; u < units[i]; u += gridDim.x * per)
			gather_piece<FP8>(g, slot, d, where, (i + g.me) % n, u / n_pieces, top_ks[i], u % n_pieces,
					  n_pieces);
		u -= units[i];
	}
	gather_end(g, slot, d.active);
}

/*
 * Grid at most ep_small_blocks x 512, so that a GPU holds the blocks of all its ranks: they wait. Two
 * blocks fit a multiprocessor (64 registers). Shared: where [n_experts], then hist or counts.
 */
template <bool FP8>
__global__ void __launch_bounds__(SMALL_THREADS, 2)
	dispatch_kernel(struct ep_gpu g, uint32_t slot, struct ep_gpu_dispatch d, int parts, uint32_t n_parts,
			uint32_t n_pieces)
{
	extern __shared__ int32_t shared[];
	uint32_t *where = (uint32_t *)shared;
	after_previous();
	for (uint32_t e = threadIdx.x; e < g.s.n_experts; e += blockDim.x)
		where[e] = g.where[e];
	uint64_t stamp = stamp_of(g, g.st->count[slot] + (parts & EP_PART_PUBLISH ? 1 : 0));
	if (parts & EP_PART_PUBLISH) {
		small_publish<FP8>(g, slot, d, n_parts, shared + g.s.n_experts);
		if (blockIdx.x > 0)
			arrive(&g.st->arrived[slot]);
		else
			await_blocks(&g.st->arrived[slot]);
	}
	__syncthreads();
	if (blockIdx.x == 0)
		meet(g, slot, d, parts, where, shared + g.s.n_experts);
	if (!(parts & EP_PART_RECEIVE))
		return;
	if (blockIdx.x == 0)
		open_gate(&g.st->gate[slot], stamp);
	else
		await_gate(&g.st->gate[slot], stamp);
	small_gather<FP8>(g, slot, d, where, n_pieces);
}

/* ---- launchers ---- */

static const struct kernel kernels[] = {
	{ "dispatch fp8 (small)", (const void *)dispatch_kernel<true>, SMALL_THREADS },
	{ "dispatch bf16 (small)", (const void *)dispatch_kernel<false>, SMALL_THREADS },
	{ "claim", (const void *)claim_kernel, 2 * EP_RANKS_MAX },
	{ "publish fp8", (const void *)publish_kernel<true>, 1024 },
	{ "publish bf16", (const void *)publish_kernel<false>, 1024 },
	{ "meet", (const void *)meet_kernel, 1024 },
	{ "signal", (const void *)signal_kernel, EP_RANKS_MAX },
	{ "gather fp8", (const void *)gather_kernel<true>, 256 },
	{ "gather bf16", (const void *)gather_kernel<false>, 256 },
};

extern "C" enum err ep_load_dispatch(void)
{
	return loaded(kernels, sizeof(kernels) / sizeof(kernels[0]));
}

extern "C" enum err ep_dispatch_kernel_info(uint32_t i, struct ep_kernel_info *out)
{
	return describe(kernels, sizeof(kernels) / sizeof(kernels[0]), i, out);
}

static void allow_shared(const void *kernel, uint32_t bytes)
{
	if (bytes > 40 * 1024)
		cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Groups of lanes that count, each in its own part of at most shared_bytes; at least 1. */
static uint32_t route_parts(const struct ep_gpu *g, const struct ep_gpu_dispatch *d, uint32_t shared_bytes,
			    uint32_t threads)
{
	uint32_t lanes = 1, n = shared_bytes / (g->s.n_experts * 4);
	while (lanes < d->top_k)
		lanes *= 2;
	return n > threads / lanes ? threads / lanes : n;
}

extern "C" enum err ep_launch_dispatch(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_dispatch *d,
				       int parts, void *stream)
{
	uint32_t half = d->shared_bytes / 2, where = g->s.n_experts * 4; /* two blocks fit */
	uint32_t n_parts = half > where ? route_parts(g, d, half - where, SMALL_THREADS) : 0;
	uint32_t bytes = n_parts * where, counts = g->s.max_local * g->s.n_ranks * 4, n16, pieces = 1;
	uint32_t blocks = ep_small_blocks(g), warps = blocks * (SMALL_THREADS / WARP);
	bytes = where + (counts > bytes ? counts : bytes);
	if (n_parts < 1 || bytes > half)
		return ERR_UNSUPPORTED;
	n16 = g->s.hidden / (d->fp8 ? 16 : 8);
	while (g->s.max_tokens * g->s.n_ranks * pieces * 2 <= warps && pieces * 2 * WARP <= n16)
		pieces *= 2;
	if (blocks < 2) /* one routes, one packs */
		blocks = 2;
	const void *k = d->fp8 ? (const void *)dispatch_kernel<true> : (const void *)dispatch_kernel<false>;
	allow_shared(k, bytes);
	if (d->fp8)
		start(g, dispatch_kernel<true>, dim3(blocks), SMALL_THREADS, bytes, stream, *g, slot, *d, parts,
		      n_parts, pieces);
	else
		start(g, dispatch_kernel<false>, dim3(blocks), SMALL_THREADS, bytes, stream, *g, slot, *d, parts,
		      n_parts, pieces);
	return launched();
}

extern "C" enum err ep_launch_claim(const struct ep_gpu *g, uint32_t slot, int32_t *active, uint64_t timeout_ns,
				    void *stream)
{
	start(g, claim_kernel, dim3(1), 2 * EP_RANKS_MAX, 0, stream, *g, slot, active, timeout_ns);
	return launched();
}

extern "C" enum err ep_launch_publish(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_dispatch *d,
				      void *stream)
{
	uint32_t n_parts = route_parts(g, d, d->shared_bytes, 1024), bytes = n_parts * g->s.n_experts * 4;
	uint32_t blocks = (d->n_tokens + 31) / 32, most = g->n_sms * 2;
	if (n_parts < 1)
		return ERR_UNSUPPORTED;
	blocks = 1 + (blocks > most ? most : blocks);
	if (d->fp8) {
		allow_shared((const void *)publish_kernel<true>, bytes);
		start(g, publish_kernel<true>, dim3(blocks), 1024, bytes, stream, *g, slot, *d, n_parts);
	} else {
		allow_shared((const void *)publish_kernel<false>, bytes);
		start(g, publish_kernel<false>, dim3(blocks), 1024, bytes, stream, *g, slot, *d, n_parts);
	}
	return launched();
}

extern "C" enum err ep_launch_meet_dispatch(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_dispatch *d,
					    int signal, void *stream)
{
	uint32_t bytes = g->s.max_local * g->s.n_ranks * 4;
	allow_shared((const void *)meet_kernel, bytes);
	start(g, meet_kernel, dim3(1), 1024, bytes, stream, *g, slot, *d,
	      EP_PART_RECEIVE | (signal ? EP_PART_PUBLISH : 0));
	return launched();
}

extern "C" enum err ep_launch_signal(const struct ep_gpu *g, uint32_t slot, enum ep_flag flag, void *stream)
{
	start(g, signal_kernel, dim3(1), EP_RANKS_MAX, 0, stream, *g, slot, (int)flag, flag == EP_PUBLISHED);
	return launched();
}

extern "C" enum err ep_launch_gather(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_dispatch *d,
				     void *stream)
{
	const int threads = 256;
	uint32_t n16 = g->s.hidden / (d->fp8 ? 16 : 8), pieces = 1;
	/* few tokens: cut rows so that the machine is full */
	while (g->s.max_tokens * g->s.n_ranks * pieces < g->n_sms * 16 && pieces * 2 * WARP <= n16)
		pieces *= 2;
	/* the token counts are on the device: as many warps as the largest batch can use */
	uint32_t per_src = (g->s.max_tokens * pieces + threads / WARP - 1) / (threads / WARP);
	uint32_t most = (g->n_sms * 8 + g->s.n_ranks - 1) / g->s.n_ranks;
	dim3 grid(per_src > most ? most : per_src, g->s.n_ranks);
	if (d->fp8)
		start(g, gather_kernel<true>, grid, threads, 0, stream, *g, slot, *d, pieces);
	else
		start(g, gather_kernel<false>, grid, threads, 0, stream, *g, slot, *d, pieces);
	return launched();
}
