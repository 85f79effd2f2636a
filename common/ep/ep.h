/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert-parallel dispatch and combine (spec/ep.md): the interface inside Pomelo. libpomelo's
 * pml_ep.h is a thin skin over it. A transport (ops below) is chosen at creation: `host` (CPU,
 * shared memory) or `ipc` (CUDA); both follow one protocol and one layout and give equal bits.
 *
 * The protocol pulls: a rank publishes its rows, once a token, in its own window; owners of the
 * chosen experts read them from there; outputs are left in the owner's window and the source reads
 * and sums them. Payload is never written into somebody else's memory (I1).
 *
 * I1: another rank's memory is only ever written in flag lines that belong to the writer.
 * I2: rows are used only if the source's stamps name this step before and after they were read.
 * I3: at most EP_SLOTS handles are open; a slot is written again only when every active peer has
 *     said that it is done with it, or was masked.
 * I4: every wait has a deadline; what it did not get is masked and flagged, never guessed (T7).
 *
 * Thread: one caller at a time a buffer.
 */
#pragma once

#include "ep/exchange.h"
#include "ep/route.h"

struct ep_buf;
struct ep_handle;

#define EP_FOREVER (-2ll) /* timeout_us: no deadline at all; for debugging */

struct ep_opts {
	struct ep_exchange *exchange; /* borrowed as long as the buffer */
	uint32_t max_tokens, hidden, n_experts;
	const uint32_t
		*expert_owner;	  /* [n_experts], borrowed for the call; NULL: equal blocks */
	uint64_t bytes;		  /* what the caller set aside; 0: what is needed */
	const char *transport;	  /* "auto" "host" "ipc" "rdma" "ibgda" "nccl" */
	int device;		  /* GPU number; -1: the current one */
	uint64_t timeout_us;	  /* for calls that give -1; 0: 100 s (ep.timeout_ms) */
	uint64_t open_timeout_us; /* for each meeting of ep_open, ep_update_members; 0: 60 s */
	uint32_t tune;		  /* EP_TUNE_*: ways that are still being measured; 0 */
	/*
	 * Measurement: called after each launch of a kernel, in stream order; on the host transport,
	 * where nothing is launched, after each flag was raised. May be NULL.
	 */
	void (*mark)(void *ctx, const char *what, void *stream);
	void (*say)(void *ctx,
		    const char *line); /* one line: what was chosen and why; may be NULL */
	void *ctx;
};

enum ep_tune {
	/*
	 * A kernel is set up while the one before it ends (Hopper and later; else ignored). No kernel lets
	 * the next begin early: the blocks of a waiting gather could keep another rank's from running.
	 */
	EP_TUNE_PDL = 1,
	EP_TUNE_APART = 2,    /* dispatch: a kernel a phase, also for small batches */
	EP_TUNE_TOGETHER = 4, /* dispatch: one kernel, also for large ones */
};

enum ep_flags {
	EP_FP8 = 1,	  /* dispatch: rows travel as e4m3 with scales */
	EP_ASYNC = 2,	  /* return at once; done when the event or ep_wait says so */
	EP_HOOK = 4,	  /* publish now, receive when ep_hook is called */
	EP_ZERO_COPY = 8, /* combine: y is what ep_y_buffer gave */
};

struct ep_dispatch_args {
	/* in, borrowed until the step is done */
	const void *x;	     /* [n_tokens][hidden] bf16, contiguous */
	const int64_t *topk; /* [n_tokens][top_k], -1 masked; one expert at most once a token */
	uint32_t n_tokens, top_k;
	uint32_t n_experts; /* must be the buffer's */
	uint32_t flags;
	int64_t timeout_us; /* -1: the buffer's */
	void *stream;	    /* CUDA stream; NULL: the default one; host: unused */
	/* in and out */
	int32_t *active; /* [n_ranks], 0: take no part; set to 0 when a rank times out */
	/* out */
	void *recv_x;	     /* [n_local][n_ranks * max_tokens][hidden] bf16, or e4m3 */
	float *recv_scales;  /* [n_local][n_ranks * max_tokens][hidden/128]; EP_FP8 only */
	int32_t *recv_count; /* [n_local] rows; what follows them is undefined */
	int32_t *src_info;   /* [n_local][n_ranks * max_tokens] token number at its source */
	int64_t *range;	     /* [n_local][n_ranks] begin << 32 | count */
};

struct ep_combine_args {
	/* in, borrowed until the step is done */
	const void *y;	      /* [n_local][n_ranks * max_tokens][hidden] bf16 */
	const float *weights; /* [n_tokens][top_k] */
	uint32_t flags;
	int64_t timeout_us;
	void *stream;
	/* in and out */
	int32_t *active; /* [n_ranks] */
	/* out */
	void *out;	     /* [n_tokens][hidden] bf16 */
	int32_t *incomplete; /* [n_tokens] 1: a contribution was lost; may be NULL */
};

/* Bytes of a rank's window for the peak step; experts in equal blocks, rounded up. */
enum err ep_buffer_size(uint32_t max_tokens, uint32_t hidden, uint32_t n_ranks,
			uint32_t n_experts, uint64_t *out, struct why *why) MUST_CHECK;
/* Collective: every rank of the exchange calls it. out: owned, ep_close(). */
enum err ep_open(const struct ep_opts *o, struct ep_buf **out, struct why *why) MUST_CHECK;
/* Not collective; a peer that still reads finds the memory until it closes too. */
void ep_close(struct ep_buf *b);
/*
 * Collective over the exchange given, after its membership changed: everything is exchanged anew
 * in fresh memory under a higher epoch; older handles answer ERR_STALE.
 */
enum err ep_update_members(struct ep_buf *b, struct ep_exchange *x, struct why *why) MUST_CHECK;
const char *ep_transport(const struct ep_buf *b);

/*
 * Why `rank` was masked by this buffer: false when it was not, or only by the caller. text: one line
 * that names rank, flag, slot and step. Each is also told to opts.say, once.
 */
bool ep_missed(const struct ep_buf *b, uint32_t rank, struct ep_missed *out, struct why *text);

/*
 * ERR_INVALID_PARAMS and ERR_TOO_MANY_TOKENS before anything moves, naming the value. A source that
 * times out is masked in active[] and the call succeeds. handle: owned, ends with ep_combine or
 * ep_handle_drop.
 */
enum err ep_dispatch(struct ep_buf *b, const struct ep_dispatch_args *a,
		     struct ep_handle **handle, struct why *why) MUST_CHECK;
/* EP_HOOK: the receiving half. */
enum err ep_hook(struct ep_handle *h, struct why *why) MUST_CHECK;
/* The window's own [n_local][n_ranks * max_tokens][hidden] bf16 for this handle's outputs. */
void *ep_y_buffer(struct ep_handle *h);
/* Ends the handle, also on error. ERR_STALE: handle of an older generation, or used before. */
enum err ep_combine(struct ep_buf *b, struct ep_handle *h, const struct ep_combine_args *a,
		    struct why *why) MUST_CHECK;
/* Gives the slot back without a combine; peers do not wait for it. */
void ep_handle_drop(struct ep_handle *h);
