/* SPDX-License-Identifier: Apache-2.0 */
#include "ep_naive.h"

#include <cuda_runtime.h>
#include <math.h>

__device__ uint64_t mix(uint64_t z)
{
	z += 0x9E3779B97F4A7C15ull;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

__device__ uint64_t h4(uint64_t seed, uint32_t kind, uint32_t r, uint32_t t, uint32_t c)
{
	return mix(mix(seed * 8 + kind) ^ ((uint64_t)r << 56) ^ ((uint64_t)t << 32) ^ c);
}

__device__ float from_bf16(uint16_t h)
{
	return __uint_as_float((uint32_t)h << 16);
}

__device__ uint16_t to_bf16(float f)
{
	uint32_t u = __float_as_uint(f);
	if ((u & 0x7fffffff) > 0x7f800000)
		return 0x7fff;
	return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

__device__ uint16_t x_of(const naive &c, uint32_t r, uint32_t t, uint32_t i)
{
	uint64_t h = h4(c.seed, 1, r, t, i);
	float mag = (h >> 40 & 15) == 0 ? 1e-8f : (h >> 44 & 15) == 0 ? 100.0f : 1.0f;
	return to_bf16(((float)(int)(h & 0xffff) - 32768.0f) / 16384.0f * mag);
}

/* top_k different experts: a stride walk from a hashed start; some are masked */
__device__ int64_t topk_of(const naive &c, uint32_t r, uint32_t t, uint32_t k)
{
	uint32_t n = c.skew ? min(c.top_k, c.n_experts) : c.n_experts;
	uint64_t h = h4(c.seed, 2, r, t, 0);
	uint32_t start = (uint32_t)(h % n);
	if ((h4(c.seed, 3, r, t, k) & 15) == 0)
		return -1;
	return (start + k * (n / min(n, c.top_k))) % n;
}

__device__ float w_of(const naive &c, uint32_t r, uint32_t t, uint32_t k)
{
	return (float)(h4(c.seed, 4, r, t, k) % 4096) / 2048.0f;
}

/* e4m3 by search: the nearest of 127 values, ties to the even code */
__device__ uint8_t e4m3_of(float v)
{
	float a = fabsf(v);
	int best = 0;
	float gap = INFINITY;
	int lo = 0, hi = 126;
	while (hi - lo > 1) { /* codes are ordered as their values */
		int mid = (lo + hi) / 2, e = mid >> 3, m = mid & 7;
		float f = e ? ldexpf(1.0f + m / 8.0f, e - 7) : ldexpf(m / 8.0f, -6);
		if (f <= a)
			lo = mid;
		else
			hi = mid;
	}
	for (int code = lo; code <= hi; code++) {
		int e = code >> 3, m = code & 7;
		float f = e ? ldexpf(1.0f + m / 8.0f, e - 7) : ldexpf(m / 8.0f, -6), d = fabsf(f - a);
		if (d < gap || (d == gap && !(code & 1))) {
			gap = d;
			best = code;
		}
	}
	return (uint8_t)(best | (__float_as_uint(v) >> 31 << 7));
}

__device__ float from_e4m3(uint8_t q)
{
	int e = q >> 3 & 15, m = q & 7;
	float f = e ? ldexpf(1.0f + m / 8.0f, e - 7) : ldexpf(m / 8.0f, -6);
	return q & 0x80 ? -f : f;
}

__device__ float scale_of(const naive &c, uint32_t r, uint32_t t, uint32_t g)
{
	float amax = 0;
	for (uint32_t i = g * 128; i < g * 128 + 128; i++)
		amax = fmaxf(amax, fabsf(from_bf16(x_of(c, r, t, i))));
	return __fdiv_rn(fmaxf(amax, 1e-4f), 448.0f);
}

/* What an expert makes of one value of its row. */
__device__ uint16_t expert_of(uint32_t e, float v, uint32_t i)
{
	float a = __fmul_rn(v, 1.0f + (float)(e % 7) * 0.25f);
	return to_bf16(__fadd_rn(a, (float)(i % 5) * 0.01f));
}

__global__ void make_kernel(naive c, uint32_t r, uint16_t *x, int64_t *topk, float *w)
{
	uint64_t n = (uint64_t)c.n_tokens[r] * c.hidden;
	for (uint64_t j = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; j < n; j += (uint64_t)gridDim.x * blockDim.x)
		x[j] = x_of(c, r, (uint32_t)(j / c.hidden), (uint32_t)(j % c.hidden));
	for (uint64_t j = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; j < (uint64_t)c.n_tokens[r] * c.top_k;
	     j += (uint64_t)gridDim.x * blockDim.x) {
		topk[j] = topk_of(c, r, (uint32_t)(j / c.top_k), (uint32_t)(j % c.top_k));
		w[j] = w_of(c, r, (uint32_t)(j / c.top_k), (uint32_t)(j % c.top_k));
	}
}

__global__ void expert_kernel(naive c, const uint32_t *locals, const void *recv, const float *scales,
			      const int32_t *count, uint16_t *y)
{
	uint64_t l = blockIdx.y, cap = (uint64_t)c.n_ranks * c.max_tokens, n = (uint64_t)count[l] * c.hidden;
	for (uint64_t j = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; j < n; j += (uint64_t)gridDim.x * blockDim.x) {
		uint64_t row = l * cap + j / c.hidden;
		uint32_t i = (uint32_t)(j % c.hidden);
		float v = c.fp8 ? __fmul_rn(from_e4m3(((const uint8_t *)recv)[row * c.hidden + i]),
					    scales[row * (c.hidden / 128) + i / 128])
				: from_bf16(((const uint16_t *)recv)[row * c.hidden + i]);
		y[row * c.hidden + i] = expert_of(locals[l], v, i);
	}
}

/* One block a row: is it the row it should be, in the order it should have? */
__global__ void check_recv_kernel(naive c, const uint32_t *locals, const void *recv, const float *scales,
				  const int32_t *count, const int32_t *src_info, const int64_t *range, uint32_t *bad)
{
	uint64_t l = blockIdx.y, cap = (uint64_t)c.n_ranks * c.max_tokens;
	__shared__ float want[128];
	for (uint32_t row = blockIdx.x; row < (uint32_t)count[l]; row += gridDim.x) {
		uint32_t src = 0;
		while (src < c.n_ranks) {
			int64_t g = range[l * c.n_ranks + src];
			if (row >= (uint32_t)(g >> 32) && row < (uint32_t)(g >> 32) + (uint32_t)g)
				break;
			src++;
		}
		uint64_t at = l * cap + row;
		uint32_t t = (uint32_t)src_info[at];
		bool wrong = src >= c.n_ranks || t >= c.n_tokens[src];
		if (!wrong && threadIdx.x == 0) {
			bool chosen = false;
			for (uint32_t k = 0; k < c.top_k; k++)
				chosen |= topk_of(c, src, t, k) == (int64_t)locals[l];
			uint32_t begin = (uint32_t)(range[l * c.n_ranks + src] >> 32);
			if (!chosen || (row > begin && (uint32_t)src_info[at - 1] >= t))
				atomicAdd(bad, 1);
		}
		__syncthreads();
		for (uint32_t g = threadIdx.x; c.fp8 && !wrong && g < c.hidden / 128; g += blockDim.x)
			want[g] = scale_of(c, src, t, g);
		__syncthreads();
		for (uint32_t i = threadIdx.x; !wrong && i < c.hidden; i += blockDim.x) {
			uint16_t x = x_of(c, src, t, i);
			if (!c.fp8)
				wrong |= ((const uint16_t *)recv)[at * c.hidden + i] != x;
			else {
				float s = scales[at * (c.hidden / 128) + i / 128];
				wrong |= ((const uint8_t *)recv)[at * c.hidden + i] != e4m3_of(__fdiv_rn(from_bf16(x), s));
				wrong |= s != want[i / 128];
			}
		}
		if (wrong)
			atomicAdd(bad, 1);
	}
}

/* Do the counts add up? One thread a (local expert, source). */
__global__ void check_counts_kernel(naive c, const uint32_t *locals, uint32_t n_local, const int32_t *count,
				    const int64_t *range, uint32_t *bad)
{
	for (uint32_t j = blockIdx.x; j < n_local * c.n_ranks; j += gridDim.x) {
		uint32_t l = j / c.n_ranks, src = j % c.n_ranks;
		__shared__ uint32_t n;
		if (threadIdx.x == 0)
			n = 0;
		__syncthreads();
		for (uint32_t t = threadIdx.x; t < c.n_tokens[src]; t += blockDim.x)
			for (uint32_t k = 0; k < c.top_k; k++)
				if (topk_of(c, src, t, k) == (int64_t)locals[l])
					atomicAdd(&n, 1);
		__syncthreads();
		if (threadIdx.x == 0) {
			uint64_t before = src ? (uint64_t)range[j - 1] : 0;
			uint32_t begin = src ? (uint32_t)(before >> 32) + (uint32_t)before : 0;
			if ((uint32_t)range[j] != n || (uint32_t)(range[j] >> 32) != begin)
				atomicAdd(bad, 1);
			if (src == c.n_ranks - 1 && (uint32_t)count[l] != begin + n)
				atomicAdd(bad, 1);
		}
		__syncthreads();
	}
}

/* One block a token. */
__global__ void check_out_kernel(naive c, uint32_t r, const uint32_t *owner, const uint16_t *out,
				 const int32_t *incomplete, uint32_t *bad)
{
	uint64_t dead = c.dead_mask_lo | (uint64_t)c.dead_mask_hi << 32;
	__shared__ float scales[128], w[32];
	__shared__ int64_t chosen[32];
	for (uint32_t t = blockIdx.x; t < c.n_tokens[r]; t += gridDim.x) {
		if (threadIdx.x < c.top_k) {
			chosen[threadIdx.x] = topk_of(c, r, t, threadIdx.x);
			w[threadIdx.x] = w_of(c, r, t, threadIdx.x);
		}
		for (uint32_t g = threadIdx.x; c.fp8 && g < c.hidden / 128; g += blockDim.x)
			scales[g] = scale_of(c, r, t, g);
		__syncthreads();
		int lost = 0;
		for (uint32_t i = threadIdx.x; i < c.hidden; i += blockDim.x) {
			float v = from_bf16(x_of(c, r, t, i)), acc = 0;
			if (c.fp8)
				v = __fmul_rn(from_e4m3(e4m3_of(__fdiv_rn(v, scales[i / 128]))), scales[i / 128]);
			lost = 0;
			for (uint32_t k = 0; k < c.top_k; k++) {
				int64_t e = chosen[k];
				if (e < 0)
					continue;
				if (dead >> owner[e] & 1) {
					lost = 1;
					continue;
				}
				acc = __fmaf_rn(w[k], from_bf16(expert_of((uint32_t)e, v, i)), acc);
			}
			if (out[(uint64_t)t * c.hidden + i] != to_bf16(acc))
				atomicAdd(bad, 1);
		}
		if (threadIdx.x == 0 && incomplete && incomplete[t] != lost)
			atomicAdd(bad, 1);
		__syncthreads();
	}
}

__global__ void empty_kernel()
{
}

/* One thread: raises *theirs to 1, 2, ... n, each after *mine came to it (the second player: before). */
__global__ void pingpong_kernel(volatile uint64_t *mine, uint64_t *theirs, uint32_t n, int first)
{
	for (uint64_t i = 1; i <= n; i++) {
		if (first)
			asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(theirs), "l"(i) : "memory");
		while (*mine != i)
			;
		if (!first)
			asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(theirs), "l"(i) : "memory");
	}
	*mine = 0;
}

#define GRID 1056
extern "C" int naive_load(void)
{
	struct cudaFuncAttributes a;
	return cudaFuncGetAttributes(&a, empty_kernel) || cudaFuncGetAttributes(&a, pingpong_kernel) ||
	       cudaFuncGetAttributes(&a, make_kernel) || cudaFuncGetAttributes(&a, expert_kernel) ||
	       cudaFuncGetAttributes(&a, check_recv_kernel) || cudaFuncGetAttributes(&a, check_counts_kernel) ||
	       cudaFuncGetAttributes(&a, check_out_kernel);
}

extern "C" int naive_make(const struct naive *c, uint32_t r, void *x, int64_t *topk, float *weights, void *stream)
{
	make_kernel<<<GRID, 256, 0, (cudaStream_t)stream>>>(*c, r, (uint16_t *)x, topk, weights);
	return cudaGetLastError();
}

extern "C" int naive_expert(const struct naive *c, const uint32_t *locals, uint32_t n_local, const void *recv_x,
			    const float *scales, const int32_t *recv_count, void *y, void *stream)
{
	if (n_local)
		expert_kernel<<<dim3(128, n_local), 256, 0, (cudaStream_t)stream>>>(*c, locals, recv_x, scales, recv_count,
										    (uint16_t *)y);
	return cudaGetLastError();
}

extern "C" int naive_check_recv(const struct naive *c, const uint32_t *locals, uint32_t n_local, const void *recv_x,
				const float *scales, const int32_t *recv_count, const int32_t *src_info,
				const int64_t *range, uint32_t *bad, void *stream)
{
	if (n_local == 0)
		return 0;
	check_recv_kernel<<<dim3(256, n_local), 256, 0, (cudaStream_t)stream>>>(*c, locals, recv_x, scales, recv_count,
										src_info, range, bad);
	check_counts_kernel<<<256, 256, 0, (cudaStream_t)stream>>>(*c, locals, n_local, recv_count, range, bad);
	return cudaGetLastError();
}

extern "C" int naive_check_out(const struct naive *c, uint32_t r, const uint32_t *owner, const void *out,
			       const int32_t *incomplete, uint32_t *bad, void *stream)
{
	check_out_kernel<<<GRID, 256, 0, (cudaStream_t)stream>>>(*c, r, owner, (const uint16_t *)out, incomplete, bad);
	return cudaGetLastError();
}

extern "C" int naive_empty(void *stream)
{
	empty_kernel<<<1, 32, 0, (cudaStream_t)stream>>>();
	return cudaGetLastError();
}

extern "C" int naive_pingpong(uint64_t *mine, uint64_t *theirs, uint32_t n, int first, void *stream)
{
	pingpong_kernel<<<1, 1, 0, (cudaStream_t)stream>>>(mine, theirs, n, first);
	return cudaGetLastError();
}
