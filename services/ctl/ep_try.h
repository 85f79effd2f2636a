/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert parallelism tried on this machine: ranks as threads of this process, tokens from a hash, every
 * result compared with a plain loop (check), or timed (bench). Works with each transport that can be
 * used here; on a GPU each rank has a stream.
 *
 * Thread: blocks the caller.
 */
#pragma once

#include "base/err.h"

struct ep_try {
	uint32_t ranks, tokens, hidden, top_k, experts, steps;
	const char *transport; /* NULL: auto */
	int device;
};

struct ep_try_phase {
	double us;	/* median of the steps, all ranks together */
	uint64_t bytes; /* moved by design, all ranks */
};

struct ep_try_result {
	char transport[16];
	char said[512]; /* the line about the choice */
	uint64_t steps, differences;
	char first[200]; /* what differed first */
	struct ep_try_phase dispatch_fp8, dispatch_bf16, combine, combine_zero_copy;
	double copy_gbps; /* read + write, the same number of ranks copying */
};

/* ERR_INVALID_PARAMS, ERR_UNSUPPORTED, ERR_NO_MEMORY, ERR_TIMED_OUT; differences are no error. */
enum err ep_try_check(const struct ep_try *t, struct ep_try_result *out, struct why *why)
	MUST_CHECK;
enum err ep_try_bench(const struct ep_try *t, struct ep_try_result *out, struct why *why)
	MUST_CHECK;
