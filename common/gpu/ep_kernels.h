/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers of the expert-parallel kernels (kernels/ep_dispatch.cu, ep_combine.cu). Each takes a
 * stream, returns an error, neither allocates nor synchronises.
 *
 * Only the one-block "meet" and "route" kernels ever wait for another rank, so ranks that share a
 * GPU cannot keep each other from running. Steps are counted on the device: a captured graph
 * replays right.
 *
 * Memory model, beside each flag (values: layout_stamp):
 *   rows, lists, counts -> EP_PUBLISHED   written by route/pack kernels; stream order puts them
 *       before meet's __threadfence_system + st.release.sys; the reader's ld.acquire.sys in its
 *       meet kernel, then stream order, puts its gather's loads after.
 *   loads of gather -> EP_READ_DONE       every block of gather ends with __threadfence_system and
 *       an atomic count; the last block's st.release.sys follows all of them.
 *   y rows -> EP_Y_READY                  as EP_PUBLISHED, by the caller's or copy_y's kernel.
 *   loads of reduce -> EP_Y_DONE          as EP_READ_DONE.
 */
#pragma once

#include "ep/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In device memory, one a buffer. */
struct ep_gpu_state {
	uint64_t count[EP_SLOTS];		   /* step of each slot */
	uint32_t masked[EP_RANKS_MAX];		   /* sticky until update_members */
	uint32_t n_tokens[EP_SLOTS][EP_RANKS_MAX]; /* of each source, as meet found them */
	uint32_t top_k[EP_SLOTS][EP_RANKS_MAX];
	uint32_t blocks_done[EP_SLOTS][2]; /* gather, reduce */
};

/* In page-locked host memory: what a kernel refused. */
struct ep_gpu_status {
	volatile uint32_t bad; /* 1: a topk_idx value is out of range or repeated */
	volatile uint32_t token, k;
	volatile int64_t value;
	volatile struct ep_missed missed[EP_RANKS_MAX]; /* by rank: why it was masked */
};

/* By value to every kernel. */
struct ep_gpu {
	uint8_t *win[EP_RANKS_MAX]; /* windows as this device sees them */
	struct ep_layout l;
	struct ep_shape s;
	uint64_t epoch;
	uint32_t me, n_local, n_sms;
	uint32_t pdl; /* 1: launch with programmatic dependency (EP_TUNE_PDL) */
	struct ep_gpu_state *st;
	struct ep_gpu_status *status;
	const uint16_t *owner, *local; /* [n_experts], device */
};

/*
 * Loads every kernel now. CUDA loads lazily at the first launch, and that load waits for the device:
 * with another rank's kernel waiting on the same device for us it would never end.
 */
enum err ep_load_dispatch(void);
enum err ep_load_combine(void);

/*
 * Claims the slot, routes and packs: one launch for small batches, else two. The choices are counted
 * in shared_bytes of shared memory. ERR_UNSUPPORTED: more experts than that can count.
 */
enum err ep_launch_publish(const struct ep_gpu *g, uint32_t slot, const void *x,
			   const int64_t *topk, uint32_t n_tokens, uint32_t top_k, int fp8,
			   int32_t *active, uint64_t timeout_ns, uint32_t shared_bytes,
			   void *stream);
enum err ep_launch_meet_dispatch(const struct ep_gpu *g, uint32_t slot, int fp8, int signal,
				 int32_t *active, int32_t *recv_count, int64_t *range,
				 uint64_t timeout_ns, void *stream);
/* Only raises EP_PUBLISHED: the first half of a hooked dispatch. */
enum err ep_launch_signal(const struct ep_gpu *g, uint32_t slot, enum ep_flag flag,
			  void *stream);
enum err ep_launch_gather(const struct ep_gpu *g, uint32_t slot, int fp8, void *recv_x,
			  float *scales, int32_t *src_info, int32_t *active, void *stream);
enum err ep_launch_copy_y(const struct ep_gpu *g, uint32_t slot, const void *y,
			  const int32_t *recv_count, void *stream);
enum err ep_launch_meet_combine(const struct ep_gpu *g, uint32_t slot, int32_t *active,
				uint64_t timeout_ns, void *stream);
enum err ep_launch_reduce(const struct ep_gpu *g, uint32_t slot, const float *weights,
			  void *out, int32_t *incomplete, uint32_t n_tokens, uint32_t top_k,
			  int32_t *active, void *stream);

#ifdef __cplusplus
}
#endif
