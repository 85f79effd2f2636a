/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers of the expert-parallel kernels (kernels/ep_dispatch.cu, ep_combine.cu). Each takes a
 * stream, returns an error, neither allocates nor synchronises.
 *
 * Only kernels of one block ("claim", "meet") ever wait for another rank, but for the dispatch of a
 * small batch, which is one kernel: its blocks wait, and are few enough for the GPU to hold those of
 * all ranks on it four times over. So ranks that share a GPU cannot keep each other from running. Steps
 * are counted on the device: a captured graph replays right.
 *
 * Memory model, beside each flag (values: layout_stamp):
 *   rows, lists, counts -> EP_PUBLISHED   written by route and pack; stream order, or in a small
 *       batch's kernel the count of arrived blocks (fence and atomic), puts them before meet's
 *       __threadfence_system + st.release.sys; the reader's ld.acquire.sys in its meet, then stream
 *       order or the gate (st.release.gpu, ld.acquire.gpu), puts its gather's loads after.
 *   loads of gather -> EP_READ_DONE       every block of gather ends with __threadfence and an
 *       atomic count; the last block's st.release.sys follows all of them.
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
	/* small dispatch: blocks that arrived at the meeting, and the step whose meeting is over */
	uint32_t arrived[EP_SLOTS];
	uint64_t gate[EP_SLOTS];
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
	uint32_t n_here; /* ranks on this GPU */
	uint32_t pdl;	 /* 1: launch with programmatic dependency (EP_TUNE_PDL) */
	struct ep_gpu_state *st;
	struct ep_gpu_status *status;
	const uint32_t *where; /* [n_experts], device: owner << 16 | place there */
};

/*
 * Loads every kernel now. CUDA loads lazily at the first launch, and that load waits for the device:
 * with another rank's kernel waiting on the same device for us it would never end.
 */
enum err ep_load_dispatch(void);
enum err ep_load_combine(void);

/* What a dispatch is about, beside the window. */
struct ep_gpu_dispatch {
	const void *x;
	const int64_t *topk;
	uint32_t n_tokens, top_k;
	int fp8;
	uint32_t shared_bytes; /* of a block, at most; the choices are counted there */
	uint64_t timeout_ns;
	int32_t *active;
	void *recv_x;
	float *scales;
	int32_t *src_info, *recv_count;
	int64_t *range; /* may be NULL */
};

enum ep_part { EP_PART_PUBLISH = 1, EP_PART_RECEIVE = 2 };

/*
 * A small batch: the parts asked for in one launch; with EP_PART_PUBLISH alone it also raises the
 * flag. ERR_UNSUPPORTED: more experts than shared_bytes can count (every publishing launch).
 */
enum err ep_launch_dispatch(const struct ep_gpu *g, uint32_t slot,
			    const struct ep_gpu_dispatch *d, int parts, void *stream);

/* A large one: claim the slot; route and pack; meet; gather. */
enum err ep_launch_claim(const struct ep_gpu *g, uint32_t slot, int32_t *active,
			 uint64_t timeout_ns, void *stream);
enum err ep_launch_publish(const struct ep_gpu *g, uint32_t slot,
			   const struct ep_gpu_dispatch *d, void *stream);
enum err ep_launch_meet_dispatch(const struct ep_gpu *g, uint32_t slot,
				 const struct ep_gpu_dispatch *d, int signal, void *stream);
enum err ep_launch_gather(const struct ep_gpu *g, uint32_t slot,
			  const struct ep_gpu_dispatch *d, void *stream);
/* Only raises the flag: the first half of a hooked dispatch, the end of a dropped one. */
enum err ep_launch_signal(const struct ep_gpu *g, uint32_t slot, enum ep_flag flag,
			  void *stream);

struct ep_gpu_combine {
	const void *y; /* NULL: it is in the window */
	const int32_t *recv_count;
	const float *weights;
	void *out;
	int32_t *incomplete; /* may be NULL */
	uint32_t n_tokens, top_k;
	uint64_t timeout_ns;
	int32_t *active;
};

/* In this order; the first not when y is NULL. */
enum err ep_launch_copy_y(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_combine *c,
			  void *stream);
enum err ep_launch_meet_combine(const struct ep_gpu *g, uint32_t slot,
				const struct ep_gpu_combine *c, void *stream);
enum err ep_launch_reduce(const struct ep_gpu *g, uint32_t slot, const struct ep_gpu_combine *c,
			  void *stream);

/* For tables of what the compiler made of the kernels; ERR_NOT_FOUND past the last. */
struct ep_kernel_info {
	const char *name;
	uint32_t threads, registers, shared_bytes /* static */, local_bytes, blocks_per_sm;
};
enum err ep_dispatch_kernel_info(uint32_t i, struct ep_kernel_info *out);
enum err ep_combine_kernel_info(uint32_t i, struct ep_kernel_info *out);

#ifdef __cplusplus
}
#endif
