/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: one call in which every rank gives a blob and gets everybody's. The process group
 * implements it; exchange_socket serves tests and programs without a group; exchange_local serves
 * ranks that are threads or streams of one process.
 *
 * Thread: a rank's, one call at a time.
 */
#pragma once

#include "base/err.h"

#define EXCHANGE_BLOB_MAX 4096

struct ep_exchange {
	uint32_t rank, n_ranks;
	/*
	 * mine: n bytes, borrowed; all: [n_ranks][n], filled in rank order. Every rank gives the
	 * same n and the same epoch; another one's mismatch is ERR_CONFLICT naming both.
	 * ERR_TIMED_OUT names the ranks that did not come.
	 */
	enum err (*all_gather)(struct ep_exchange *x, uint64_t epoch, const void *mine,
			       size_t n, void *all, uint64_t timeout_us, struct why *why);
	void (*close)(struct ep_exchange *x);
};

/*
 * Rank 0 listens at a unix socket path (starting with '/') or HOST:PORT, the others dial it until
 * the deadline. out: owned, close() frees it. ERR_TIMED_OUT, ERR_INVALID_PARAMS, ERR_UNREACHABLE.
 */
enum err exchange_socket(const char *addr, uint32_t rank, uint32_t n_ranks, uint64_t timeout_us,
			 struct ep_exchange **out, struct why *why) MUST_CHECK;

/* n_ranks exchanges of one process that meet in memory; each is closed by its rank. */
enum err exchange_local(uint32_t n_ranks, struct ep_exchange **out /* [n_ranks] */) MUST_CHECK;
