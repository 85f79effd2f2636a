/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's end of one data lane: the state machine, without its socket.
 *
 *   hello ──> prove ──> ready ──lane_cli_get──> receiving ──END──> ready
 *                         └─────lane_cli_put──> asked ──GO──> writing: lane_cli_data .. lane_cli_last ──END──> ready
 *
 * I1: bytes of a GET land where `land` says, in the order they come, and only while it runs.
 * I2: `landed` runs after their tag and sum were found right.
 *
 * Thread: its owner's, one at a time.
 */
#pragma once

#include "xfer/pipe.h"

struct lane_cli_ops {
	/* n bytes from offset on are coming: where to? Fills spans (room for XF_SPANS) and returns how
	 * many; 0: that was not asked for. */
	size_t (*land)(void *ctx, uint64_t offset, size_t n, struct iovec *spans);
	/* They are there; sum: XXH3-64 of them. */
	enum err (*landed)(void *ctx, uint64_t offset, size_t n, uint64_t sum);
};

struct lane_cli_opts {
	const struct keyring *keys;  /* borrowed for life */
	const char *tenant, *holder; /* holder: whom we mean to speak to; both copied */
	const uint8_t *instance;     /* 16 bytes; copied */
	const char *as_holder; /* NULL: a client; else our own id, we are a holder; copied */
	bool mac_data;	       /* the agent is on another host */
};

enum lane_cli_state {
	CLI_HELLO, /* until WELCOME */
	CLI_READY, /* or: the last request has ended; see status */
	CLI_GETTING,
	CLI_ASKED,
	CLI_WRITING,
	CLI_ENDING, /* LAST is out */
};

struct lane_cli {
	struct xf_pipe pipe; /* err: the lane is over */
	enum lane_cli_state state;
	enum err status; /* of the last request */
	char text[200];	 /* likewise */
	/* private */
	struct hello_client *hello;
	bool proving, mac_data;
	uint32_t request;
	const struct lane_cli_ops *ops;
	void *ctx;
};

/* Queues HELLO. ERR_INVALID_PARAMS, ERR_FORBIDDEN (why), ERR_NO_MEMORY; lane_cli_fini is fine then. */
enum err lane_cli_init(struct lane_cli *l, const struct lane_cli_opts *o, struct why *why)
	MUST_CHECK;
void lane_cli_fini(struct lane_cli *l);

/* As xf_pipe's. */
size_t lane_cli_want(struct lane_cli *l, struct iovec *iov);
void lane_cli_got(struct lane_cli *l, size_t n);
static inline size_t lane_cli_out(const struct lane_cli *l, struct iovec *iov)
{
	return xf_pipe_out(&l->pipe, iov);
}
static inline void lane_cli_sent(struct lane_cli *l, size_t n)
{
	xf_pipe_sent(&l->pipe, n);
}

/* State READY, nothing to be sent (asserted). ops, ctx: borrowed until it has ended. ERR_TOO_LARGE,
 * ERR_NO_MEMORY, ERR_STALE_SESSION. */
enum err lane_cli_get(struct lane_cli *l, struct bytes ticket, const struct xf_range *ranges,
		      size_t n, bool check, const struct lane_cli_ops *ops, void *ctx)
	MUST_CHECK;
enum err lane_cli_put(struct lane_cli *l, struct bytes ticket) MUST_CHECK;
/* State WRITING, nothing to be sent. data: borrowed until it is; sum: XXH3-64 of it. */
enum err lane_cli_data(struct lane_cli *l, uint64_t offset, const struct iovec *data, size_t n,
		       size_t bytes, uint64_t sum) MUST_CHECK;
enum err lane_cli_last(struct lane_cli *l) MUST_CHECK;
