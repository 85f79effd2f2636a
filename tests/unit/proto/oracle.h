/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack-c as the judge of our bytes. Mismatches fail the test.
 */
#pragma once

#include "fill.h"

/* msgpack-c's tree of `wire` holds what m holds. */
void oracle_check(const struct wire_msg *t, const void *m, struct bytes wire);
/* m as msgpack-c packs it, appended to out. */
void oracle_pack(const struct wire_msg *t, const void *m, struct buf *out);
/* The same values with heads of random, larger widths, appended to out. */
void oracle_widen(struct bytes wire, struct rng *r, struct buf *out);
