/* SPDX-License-Identifier: Apache-2.0 */
/* What both kernel families use: flags, stamps, waiting. See ep_kernels.h for the memory model. */
#pragma once

#include "gpu/ep_kernels.h"

#include <cuda_runtime.h>

#define WARP 32
#define ALL  0xffffffffu

/* First in every kernel: what the stream holds before it is over and visible (EP_TUNE_PDL). */
__device__ __forceinline__ void after_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ uint64_t ld_acquire_sys(const uint64_t *p)
{
	uint64_t v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ void st_release_sys(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* Within this GPU: the blocks of one kernel. */
__device__ __forceinline__ uint64_t ld_acquire_gpu(const uint64_t *p)
{
	uint64_t v;
	asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ void st_release_gpu(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ uint64_t now_ns()
{
	uint64_t t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

/* Rows of another rank are read once: keep them out of L1. */
__device__ __forceinline__ uint4 ld_row(const uint4 *p)
{
	uint4 v;
	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p));
	return v;
}

__device__ __forceinline__ void st_row(uint4 *p, uint4 v)
{
	asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
		     "r"(v.w)
		     : "memory");
}

__device__ __forceinline__ uint8_t *slot_of(const struct ep_gpu &g, uint32_t rank, uint32_t slot)
{
	return g.win[rank] + g.l.slot[slot];
}

__device__ __forceinline__ struct ep_slot_head *head_of(const struct ep_gpu &g, uint32_t rank, uint32_t slot)
{
	return (struct ep_slot_head *)slot_of(g, rank, slot);
}

/* The line in owner's window that `writer` writes. */
__device__ __forceinline__ uint64_t *flag_of(const struct ep_gpu &g, uint32_t owner, uint32_t slot, int f,
					     uint32_t writer)
{
	return (uint64_t *)(g.win[owner] + g.l.flags +
			    (((uint64_t)slot * EP_N_FLAGS + f) * g.s.n_ranks + writer) * EP_LINE);
}

__device__ __forceinline__ uint64_t stamp_of(const struct ep_gpu &g, uint64_t count)
{
	return g.epoch << 40 | (count & 0xffffffffffull);
}

/* Masks rank r and leaves the reason where the host finds it. flag EP_N_FLAGS: it went on. */
__device__ __forceinline__ void mask_rank(const struct ep_gpu &g, uint32_t slot, int flag, uint32_t r, uint64_t want,
					  uint64_t found, int32_t *active)
{
	volatile struct ep_missed *m = &g.status->missed[r];
	m->flag = (uint32_t)flag;
	m->slot = slot;
	m->want = want;
	m->found = found;
	__threadfence_system();
	m->set = 1;
	g.st->masked[r] = 1;
	active[r] = 0;
}

/*
 * One thread: waits for rank r's flag; a rank that does not come by the deadline is masked (I4). The
 * clock is read before the flag, so a flag that came in time is seen however long we stood still.
 */
__device__ __forceinline__ void wait_or_mask(const struct ep_gpu &g, uint32_t slot, int f, uint32_t r,
					     uint64_t stamp, uint64_t end_ns, int32_t *active)
{
	if (g.st->masked[r] || (stamp & 0xffffffffffull) == 0)
		return;
	const uint64_t *at = flag_of(g, g.me, slot, f, r);
	uint64_t v;
	bool over = false;
	for (;;) {
		v = ld_acquire_sys(at);
		if (v >> 40 == stamp >> 40 && v >= stamp)
			return;
		if (over)
			break;
		over = now_ns() > end_ns;
	}
	mask_rank(g, slot, f, r, stamp, v, active);
}

__device__ __forceinline__ uint64_t end_of(uint64_t timeout_ns)
{
	uint64_t t = now_ns();
	return timeout_ns > ~t ? ~0ull : t + timeout_ns;
}

/*
 * Every block, at the end of a kernel that read other ranks' memory; true in the whole last block,
 * where everybody's loads are over. The counter is left at 0 for the next launch.
 */
__device__ __forceinline__ bool last_block(uint32_t *counter)
{
	__shared__ bool last;
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		uint32_t n = gridDim.x * gridDim.y;
		last = atomicAdd(counter, 1) == n - 1;
		if (last) {
			*counter = 0;
			__threadfence();
		}
	}
	__syncthreads();
	return last;
}

/*
 * The meeting inside a small dispatch: every block but the first arrives when its part is
 * written; the first waits for them, meets the other ranks, and opens the gate for this step. The
 * blocks of such kernels are few enough to be on the GPU together (ep_small_blocks), else this would
 * never end. Release and acquire at the GPU's scope; the first block's flags to other ranks are
 * system-scope releases after it, and causality is transitive.
 */
__device__ __forceinline__ void arrive(uint32_t *counter)
{
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		atomicAdd(counter, 1);
	}
}

__device__ __forceinline__ void await_blocks(uint32_t *counter)
{
	if (threadIdx.x == 0) {
		while (*(volatile uint32_t *)counter != gridDim.x - 1)
			;
		*counter = 0;
		__threadfence();
	}
	__syncthreads();
}

__device__ __forceinline__ void open_gate(uint64_t *gate, uint64_t stamp)
{
	__syncthreads();
	if (threadIdx.x == 0)
		st_release_gpu(gate, stamp);
}

__device__ __forceinline__ void await_gate(const uint64_t *gate, uint64_t stamp)
{
	if (threadIdx.x == 0)
		while (ld_acquire_gpu(gate) != stamp)
			;
	__syncthreads();
}

template <typename... P, typename... A>
static void start(const struct ep_gpu *g, void (*kernel)(P...), dim3 grid, int threads, uint32_t shared, void *stream,
		  A... args)
{
	cudaLaunchAttribute at = {};
	cudaLaunchConfig_t c = {};
	at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at.val.programmaticStreamSerializationAllowed = 1;
	c.gridDim = grid;
	c.blockDim = dim3(threads);
	c.dynamicSmemBytes = shared;
	c.stream = (cudaStream_t)stream;
	c.attrs = &at;
	c.numAttrs = g->pdl ? 1 : 0;
	(void)cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...); /* launched() asks */
}

static inline enum err launched()
{
	return cudaGetLastError() == cudaSuccess ? ERR_NONE : ERR_IO;
}

/* Blocks of a kernel whose blocks wait: one on every second multiprocessor, over all ranks on it. */
static inline uint32_t ep_small_blocks(const struct ep_gpu *g)
{
	uint32_t n = g->n_sms / (2 * (g->n_here ? g->n_here : 1));
	return n < 1 ? 1 : n;
}

/* What loads and describes the kernels of a family. */
struct kernel {
	const char *name;
	const void *fn;
	int threads;
};

static inline enum err describe(const struct kernel *k, size_t n, uint32_t i, struct ep_kernel_info *out)
{
	struct cudaFuncAttributes a;
	int blocks = 0;
	if (i >= n)
		return ERR_NOT_FOUND;
	if (cudaFuncGetAttributes(&a, k[i].fn) != cudaSuccess ||
	    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k[i].fn, k[i].threads, 0) != cudaSuccess) {
		(void)cudaGetLastError();
		return ERR_UNSUPPORTED;
	}
	out->name = k[i].name;
	out->threads = (uint32_t)k[i].threads;
	out->registers = (uint32_t)a.numRegs;
	out->shared_bytes = (uint32_t)a.sharedSizeBytes;
	out->local_bytes = (uint32_t)a.localSizeBytes;
	out->blocks_per_sm = (uint32_t)blocks;
	return ERR_NONE;
}

static inline enum err loaded(const struct kernel *k, size_t n)
{
	struct ep_kernel_info info;
	for (uint32_t i = 0; i < n; i++)
		if (describe(k, n, i, &info) != ERR_NONE)
			return ERR_UNSUPPORTED;
	return ERR_NONE;
}
