/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep.c and its transports share. Not for callers.
 *
 * A buffer keeps a sticky mask: a rank that was inactive in one step, by configuration or because
 * it timed out, stays out until ep_update_members, since its counters stand still meanwhile.
 */
#pragma once

#include "ep/ep.h"

struct ep_handle {
	struct ep_buf *buf;
	uint64_t epoch, count;
	uint32_t slot;
	uint32_t n_tokens, top_k;
	bool open, received;
	struct ep_dispatch_args args; /* pointers are the caller's until the step is done */
};

struct ep_transport_ops {
	const char *name;
	/* NULL text: can be used here; else why not, in one line */
	const char *(*missing)(const struct ep_opts *o);
	/* Collective. Makes b->priv: windows of all ranks, zeroed, under b->epoch. */
	enum err (*open)(struct ep_buf *b, struct why *why);
	/* unmaps the peers' windows; NULL where nothing needs that before their owners free them */
	void (*detach)(struct ep_buf *b);
	void (*close)(struct ep_buf *b);
	enum err (*publish)(struct ep_buf *b, struct ep_handle *h, struct why *why);
	enum err (*receive)(struct ep_buf *b, struct ep_handle *h, struct why *why);
	enum err (*combine)(struct ep_buf *b, struct ep_handle *h,
			    const struct ep_combine_args *a, struct why *why);
	/* the handle ends without a combine: peers need not wait for us */
	void (*drop)(struct ep_buf *b, struct ep_handle *h);
	void *(*window)(struct ep_buf *b); /* our own, as the caller's kernels see it */
	const volatile struct ep_missed *(*missed)(const struct ep_buf *b); /* [n_ranks] */
};

struct ep_buf {
	const struct ep_transport_ops *ops;
	struct ep_exchange *x;
	struct ep_opts opts;
	struct ep_shape shape;
	struct ep_layout layout;
	struct ep_map map;
	uint64_t epoch;
	uint64_t count[EP_SLOTS];
	uint32_t next_slot;
	bool masked[EP_RANKS_MAX]; /* sticky, see above */
	bool said[EP_RANKS_MAX];   /* its ep_missed was told */
	struct ep_handle handles[EP_SLOTS];
	void *priv;
};

extern const struct ep_transport_ops ep_host_ops;
extern const struct ep_transport_ops ep_ipc_ops;   /* ipc.c or ipc_none.c */
extern const struct ep_transport_ops ep_rdma_ops;  /* rdma_none.c */
extern const struct ep_transport_ops ep_ibgda_ops; /* ibgda_none.c */
extern const struct ep_transport_ops ep_nccl_ops;  /* nccl_none.c */

static inline uint64_t ep_timeout_us(const struct ep_buf *b, int64_t given)
{
	if (given == EP_FOREVER)
		return UINT64_MAX;
	return given < 0 ? b->opts.timeout_us : (uint64_t)given;
}
