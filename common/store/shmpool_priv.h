/* SPDX-License-Identifier: Apache-2.0 */
/* A shmpool over memory that is mapped already: for mempool_attach. */
#pragma once

#include "store/backing.h"
#include "store/shmpool.h"

struct shmpool_view {
	uint8_t pool[16];
	const struct pool_ctl *ctl;
	const uint64_t *gen;
	struct pool_lane *lanes;
	uint8_t *data[64];
	uint64_t bytes[64];
	uint32_t n_segments, n_slots, n_lanes, session;
	struct pool_backing *backing; /* in memory: whose session ends with us; else NULL */
	bool writable;
};
/* ERR_NO_MEMORY. */
enum err shmpool_new_view(const struct shmpool_view *v, struct shmpool **out) MUST_CHECK;
