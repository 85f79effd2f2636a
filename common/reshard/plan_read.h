/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan from its text (plan_text), for who did not make it: operations with their loops and the
 * participants at both ends. As strict as the reader of placements; what the text says is not
 * compared with any placement.
 *
 * Memory: some 150 bytes an operation; strings stay in the text. Time linear.
 * Thread: a read one may be shared, read-only, as long as its text lives.
 */
#pragma once

#include "reshard/place.h"

struct listed_op {
	struct bytes tensor, source, target;   /* names; of fragments the last two */
	struct bytes source_part, target_part; /* participants; source_part n 0: stored */
	uint64_t source_base, target_base, inner_bytes;
	const uint64_t *outer; /* n_outer counts, then source strides, then target strides */
	uint32_t n_outer;
};

struct listed_plan {
	struct listed_op *ops;
	uint32_t n_ops;
	/* private */
	struct arena mem;
};

/* text borrowed as long as the plan lives. out owned, listed_plan_free(). Errors as place_read. */
enum err listed_plan_read(struct bytes text, const struct place_limits *lim, struct reject *why,
			  struct listed_plan **out) MUST_CHECK;
void listed_plan_free(struct listed_plan *p);
