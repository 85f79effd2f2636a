/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpomelo, expert parallelism: dispatch sends a rank's tokens to the ranks that own the chosen
 * experts; combine brings the experts' outputs back and sums them. C and C++; docs/ep.md tells how it
 * works, services/sdk/examples/ep_step.c is a complete program.
 *
 *	pml_ep_group_socket("/tmp/ep.sock", rank, n_ranks, 30000, &group, &err);
 *	pml_ep_buffer_create(group, 0, &opts, &buf, &err);
 *	each step:
 *		pml_ep_dispatch(buf, &d, &handle, NULL, &err);	rows arrive in d.recv_x
 *		... experts write y, best into pml_ep_next_combine_buffer(handle) ...
 *		pml_ep_combine(buf, handle, &c, NULL, &err);	sums arrive in c.out
 *
 * Memory: with transport "ipc" every array below is device memory, kernels run on `stream` and nothing
 * synchronises when PML_EP_ASYNC is given; with "host" it is ordinary memory and calls return when the
 * work is done. Results are bit-equal.
 *
 * Time: a rank that makes no progress within timeout_us is masked in active_ranks and skipped; the call
 * succeeds and flags each token that lost a contribution in `incomplete`. A masked rank stays out until
 * pml_ep_buffer_update_members.
 *
 * Threads: one caller at a time for a buffer and its handles. fork: a child gets PML_ERR_FORKED.
 */
#ifndef POMELO_PML_EP_H
#define POMELO_PML_EP_H

#include "pml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pml_ep_group;  /* the ranks that meet */
struct pml_ep_buffer; /* a rank's window and its view of the others' */
struct pml_ep_handle; /* one dispatch that awaits its combine */
struct pml_ep_event;  /* the end of an asynchronous call */

#define PML_EP_RANKS_MAX  64
#define PML_EP_TOP_K_MAX  32
#define PML_EP_HIDDEN_MAX 16384
#define PML_EP_BLOB_MAX	  4096

/* timeout_us */
#define PML_EP_TIMEOUT_DEFAULT (-1) /* the buffer's */
#define PML_EP_TIMEOUT_NONE    (-2) /* wait for ever; for debugging */

enum pml_ep_flags {
	PML_EP_FP8 = 1, /* dispatch: rows travel as e4m3, one f32 scale for 128 channels */
	PML_EP_ASYNC =
		2, /* async_finish: return at once; arrays stay yours to keep until the event */
	PML_EP_HOOK = 4,      /* recv_hook: send now, receive in pml_ep_hook */
	PML_EP_ZERO_COPY = 8, /* combine: y is what pml_ep_next_combine_buffer gave */
};

/* ---- groups ---- */

/*
 * Rank 0 listens at a unix socket path (starting with '/') or HOST:PORT, the others dial it until the
 * deadline. out: yours, pml_ep_group_free() after its buffers.
 * INVALID_PARAMS, TIMED_OUT, UNREACHABLE
 */
PML_API int pml_ep_group_socket(const char *addr, uint32_t rank, uint32_t n_ranks,
				uint32_t deadline_ms, struct pml_ep_group **out,
				struct pml_error *err);
/* n_ranks groups, one for each thread or stream of this process. out: [n_ranks]. */
PML_API int pml_ep_group_local(uint32_t n_ranks, struct pml_ep_group **out,
			       struct pml_error *err);
/*
 * Your own way to meet. all_gather: every rank gives n bytes (at most PML_EP_BLOB_MAX) and gets all
 * ranks' in rank order; 0, or a PML_ERR_ number. Called by the thread that creates or updates.
 */
typedef int (*pml_ep_all_gather)(void *ctx, uint64_t epoch, const void *mine, size_t n,
				 void *all, uint64_t timeout_us);
PML_API int pml_ep_group_custom(uint32_t rank, uint32_t n_ranks, pml_ep_all_gather fn,
				void *ctx, struct pml_ep_group **out, struct pml_error *err);
PML_API int pml_ep_group_free(struct pml_ep_group *g);

/* ---- buffers ---- */

/* Bytes of a rank's window for the peak step, experts in equal blocks, rounded up. */
PML_API int pml_ep_buffer_size(uint32_t num_max_dispatch_tokens_per_rank, uint32_t hidden,
			       uint32_t num_ranks, uint32_t num_experts, uint64_t *bytes,
			       struct pml_error *err);

struct pml_ep_opts {
	size_t size;
	uint32_t num_max_dispatch_tokens_per_rank;
	uint32_t hidden; /* a multiple of 128, up to PML_EP_HIDDEN_MAX */
	uint32_t num_experts;
	int device; /* GPU number; -1: the thread's current one */
	const uint32_t *
		expert_owner; /* [num_experts] ranks; NULL: equal blocks. Borrowed for the call */
	/*
	 * "auto" "host" "ipc" "rdma" "ibgda" "nccl"; NULL: POMELO_EP_TRANSPORT,
	 * MOONCAKE_EP_TRANSPORT, else auto. A choice by name never falls back.
	 */
	const char *transport;
	uint64_t timeout_us;	  /* of calls that give -1; 0: 100 s */
	uint64_t open_timeout_us; /* of each meeting of the ranks; 0: 60 s */
	/* one line at a time: the transport chosen and why; each rank masked and why. May be NULL */
	void (*say)(void *ctx, const char *line);
	void *say_ctx;
};
#define PML_EP_OPTS_INIT                                                  \
	{                                                                 \
		sizeof(struct pml_ep_opts), 0, 0, 0, -1, 0, 0, 0, 0, 0, 0 \
	}

/*
 * Collective: all ranks of the group call it. bytes: what you set aside, checked; 0: what is needed.
 * out: yours, pml_ep_buffer_destroy(). INVALID_PARAMS, CONFLICT (ranks disagree), UNSUPPORTED (the
 * transport named cannot be used; why), NO_MEMORY, TIMED_OUT
 */
PML_API int pml_ep_buffer_create(struct pml_ep_group *g, uint64_t bytes,
				 const struct pml_ep_opts *o, struct pml_ep_buffer **out,
				 struct pml_error *err);
/* Not collective. Its handles and events end with it. NULL is fine. */
PML_API int pml_ep_buffer_destroy(struct pml_ep_buffer *b);
/*
 * Collective over g, which has the new members: fresh memory under a new generation. Handles of before
 * answer STALE. The old group may be freed afterwards.
 */
PML_API int pml_ep_buffer_update_members(struct pml_ep_buffer *b, struct pml_ep_group *g,
					 struct pml_error *err);
/* "host" "ipc". Static. */
PML_API const char *pml_ep_buffer_transport(const struct pml_ep_buffer *b);
/*
 * Why a rank was masked, in one line: which flag, slot and step did not come. True when it was masked
 * by a time-out. text: cap bytes.
 */
PML_API bool pml_ep_buffer_missed(const struct pml_ep_buffer *b, uint32_t rank, char *text,
				  size_t cap);

/* ---- a step ---- */

enum pml_ep_dtype { PML_EP_BF16 = 0, PML_EP_F16 = 1, PML_EP_F32 = 2 };

struct pml_ep_dispatch_args {
	size_t size;
	/* in, borrowed until the step is done */
	const void *x;	   /* [num_tokens][hidden] bf16 */
	uint32_t x_dtype;  /* must be PML_EP_BF16 */
	uint32_t x_stride; /* elements from row to row; 0 or hidden: anything else is refused */
	const int64_t *topk_idx; /* [num_tokens][top_k], -1 masked; an expert once a token */
	uint32_t num_tokens, top_k;
	uint32_t num_experts; /* the buffer's */
	uint32_t flags;	      /* PML_EP_FP8, _ASYNC, _HOOK */
	int64_t timeout_us;
	void *stream; /* cudaStream_t; NULL: the default one */
	/* in and out */
	int32_t *active_ranks; /* [num_ranks]; 0: not taking part */
	/* out; rows = num_ranks * num_max_dispatch_tokens_per_rank */
	void *recv_x;	     /* [num_local_experts][rows][hidden] bf16, or e4m3 */
	float *scales;	     /* [num_local_experts][rows][hidden/128]; PML_EP_FP8 only */
	int32_t *recv_count; /* [num_local_experts]; rows from there on are undefined */
	int32_t *src_info;   /* [num_local_experts][rows] token number at its source */
	int64_t *
		layout_range; /* [num_local_experts][num_ranks] begin << 32 | count; may be NULL */
};
#define PML_EP_DISPATCH_ARGS_INIT                                                            \
	{                                                                                    \
		sizeof(struct pml_ep_dispatch_args), 0, 0, 0, 0, 0, 0, 0, PML_EP_FP8, -1, 0, \
			0, 0, 0, 0, 0, 0                                                     \
	}

struct pml_ep_combine_args {
	size_t size;
	const void *y;		   /* recv_x's layout, bf16 */
	const float *topk_weights; /* [num_tokens][top_k] */
	uint32_t flags;		   /* PML_EP_ZERO_COPY, _ASYNC */
	uint32_t reserved;	   /* 0 */
	int64_t timeout_us;
	void *stream;
	int32_t *active_ranks; /* [num_ranks] in and out */
	void *out;	       /* [num_tokens][hidden] bf16 */
	int32_t *incomplete;   /* [num_tokens] 1: a contribution was lost; may be NULL */
};
#define PML_EP_COMBINE_ARGS_INIT                                               \
	{                                                                      \
		sizeof(struct pml_ep_combine_args), 0, 0, 0, 0, -1, 0, 0, 0, 0 \
	}

/*
 * Everything wrong is refused with the value named before anything moves: INVALID_PARAMS,
 * TOO_MANY_TOKENS (see pml_ep_step for the way to split), BUSY (two dispatches are open).
 * out: yours until pml_ep_combine, which ends it also on error, or pml_ep_handle_drop.
 * event: NULL, or yours, pml_ep_event_free().
 */
PML_API int pml_ep_dispatch(struct pml_ep_buffer *b, const struct pml_ep_dispatch_args *a,
			    struct pml_ep_handle **out, struct pml_ep_event **event,
			    struct pml_error *err);
/* The receiving half of a dispatch with PML_EP_HOOK: call it at the overlap point. */
PML_API int pml_ep_hook(struct pml_ep_handle *h, struct pml_error *err);
/* [num_local_experts][rows][hidden] bf16 of the window itself; NULL for a handle that is over. */
PML_API void *pml_ep_next_combine_buffer(struct pml_ep_handle *h);
/* INVALID_PARAMS; STALE: the handle was used, or is of an older generation. */
PML_API int pml_ep_combine(struct pml_ep_buffer *b, struct pml_ep_handle *h,
			   const struct pml_ep_combine_args *a, struct pml_ep_event **event,
			   struct pml_error *err);
/* Ends a handle without a combine; peers do not wait for it. */
PML_API void pml_ep_handle_drop(struct pml_ep_handle *h);

/* ---- a step of any number of tokens ---- */

/*
 * Your experts, once a round: rows of r->recv_x (recv_count of each local expert) to y. 0 goes on;
 * anything else ends pml_ep_step with that number.
 */
typedef int (*pml_ep_experts)(void *ctx, const struct pml_ep_dispatch_args *r, void *y);
/*
 * dispatch, experts, combine in rounds of at most num_max_dispatch_tokens_per_rank: the split of a
 * batch that is TOO_MANY_TOKENS. Collective; every rank makes the same number of rounds: num_rounds, or,
 * when that is 0, the most that any rank needs, agreed in one meeting of the group. The outputs of
 * dispatch hold one round each. y lies in the window (zero copy).
 */
PML_API int pml_ep_step(struct pml_ep_buffer *b, const struct pml_ep_dispatch_args *d,
			const struct pml_ep_combine_args *c, uint32_t num_rounds,
			pml_ep_experts experts, void *ctx, struct pml_error *err);

/* ---- events ---- */

/* Work given to `stream` from here on starts after the event. Nothing to do on "host". */
PML_API int pml_ep_event_stream_wait(struct pml_ep_event *e, void *stream,
				     struct pml_error *err);
/* Blocks the calling thread. */
PML_API int pml_ep_event_wait(struct pml_ep_event *e, struct pml_error *err);
PML_API void pml_ep_event_free(struct pml_ep_event *e);

#ifdef __cplusplus
}
#endif
#endif
