/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas of tenants, from settings: lists of NAME=SIZE. Pure. Thread: any.
 */
#pragma once

#include "base/conf.h"
#include "mind.h"

#define MST_QUOTAS_MAX 512 /* both lists name others */

struct mst_quotas {
	struct mind_quota v[MST_QUOTAS_MAX];
	size_t n;
};

/*
 * memory, pinned  borrowed as long as out is used: names point into them
 * out             a tenant of both lists has one row
 *
 * ERR_INVALID_PARAMS: no NAME=SIZE, a name that is none, a size of 0, a name twice in a list; why names the
 * entry and bad the list (0 memory, 1 pinned)
 */
enum err mst_quotas_read(const struct conf_list *memory, const struct conf_list *pinned,
			 struct mst_quotas *out, int *bad, struct why *why) MUST_CHECK;
