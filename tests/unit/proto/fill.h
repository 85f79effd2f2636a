/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages filled by their tables, for tests of all of them at once. Thread: any.
 */
#pragma once

#include "proto/wire.h"

struct rng {
	uint64_t s;
};
uint64_t rng_next(struct rng *r);
/* 0..n-1. */
uint64_t rng_below(struct rng *r, uint64_t n);

/*
 * Fills m (t->size bytes) with values that like limits: 0, 1, 127..128, a type's largest, a row's
 * max. Lists and bytes lie in `a`. Bytes of one run stay under run_max; lists under list_max.
 */
void fill_random(const struct wire_msg *t, void *m, struct rng *r, struct arena *a,
		 size_t run_max, size_t list_max);

/* The message as JSON text, NUL-terminated, in out: what two messages are compared by. */
const char *json_of(const struct wire_msg *t, const void *m, struct buf *out);
