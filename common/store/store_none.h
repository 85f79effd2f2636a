/* SPDX-License-Identifier: Apache-2.0 */
/* How store_be_open makes what lies behind it. Internal to common/store. */
#pragma once

#include "store/store.h"

/* Both as store_be_open. */
enum err store_none_open(struct loop *l, const struct store_opts *o,
			 const struct store_caps *caps, struct store_be **out) MUST_CHECK;
enum err store_pool_open(struct loop *l, const struct store_opts *o,
			 const struct store_backend_row *row, struct store_be **out,
			 struct why *w) MUST_CHECK;
/* Requests as store.h bounds them. ERR_INVALID_PARAMS. */
enum err store_batch_ok(const struct store_be *be, const void *items, uint32_t n) MUST_CHECK;
enum err store_scan_ok(const struct store_scan *s) MUST_CHECK;
