/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes go from where to where: from a placement, or from stored weights, to a whole
 * placement or to one participant of it. Immutable once made.
 *
 * An operation is two fragments; the loop between them (region.h) follows from their boxes and is
 * worked out when asked for, so that a plan costs 16 bytes a region. Memory linear in fragments
 * and regions; time N log N for regular cuts, bounded by lim.work for any.
 *
 * Thread: a made plan may be shared, read-only, as long as its placements live.
 */
#pragma once

#include "reshard/left.h"
#include "reshard/region.h"
#include "reshard/stored.h"

struct plan_limits {
	uint64_t max_transfer_regions, max_segments_per_region, max_total_lowered_segments;
	uint64_t work;		   /* comparisons of boxes (box.h) */
	const atomic_bool *cancel; /* borrowed; NULL: none */
	size_t memory;		   /* bytes held, the plan and its making */
	struct left *
		left; /* borrowed; where what a plan that was not made leaves is put; NULL: it is
				    * freed before plan_make returns */
};

#define PLAN_MEMORY ((size_t)4 << 30)
/* To initialise with. The library's: those of the vectors. */
#define PLAN_LIMITS                                                                   \
	{                                                                             \
		1000000, 1000000, 10000000, BOX_WORK_DEFAULT, NULL, PLAN_MEMORY, NULL \
	}
/* Where plans are never lowered to segments: the service and the command line. */
#define PLAN_LIMITS_WIDE                                                                     \
	{                                                                                    \
		16u << 20, 1ull << 40, 1ull << 48, BOX_WORK_DEFAULT, NULL, PLAN_MEMORY, NULL \
	}

struct plan_op {
	uint32_t target, source; /* fragments */
	uint64_t target_base;	 /* bytes */
};

/* Operations of one participant: indices ops[first .. first + n), ascending. */
struct plan_exec {
	uint32_t part, first, n;
};

struct plan_route {
	uint64_t source_pp, source_stage, target_pp, target_stage;
	bool has_source_pp, has_source_stage, has_target_stage;
	uint32_t first, n;
};

struct plan {
	const struct place *source;  /* borrowed; NULL: stored */
	const struct stored *stored; /* borrowed; NULL: placement */
	const struct place *target;  /* borrowed */
	struct plan_op *ops;	     /* by (target id, target base, source id, source base) */
	uint32_t n_ops;
	unsigned __int128 total_bytes;
	uint64_t total_segments;
	uint64_t work;			     /* steps that its making took from lim.work */
	struct plan_exec *sources, *targets; /* by (dp, pp, ep, tp) */
	struct plan_route *routes;
	uint32_t n_sources, n_targets, n_routes;
	uint32_t *source_ops, *target_ops, *route_ops;
};

struct plan_ask {
	const struct place *source; /* one of the two */
	const struct stored *stored;
	const struct place *target;
	bool local;		  /* one participant only */
	struct bytes participant; /* of the target; p NULL: the only one */
	struct plan_limits lim;
};

/* ask borrowed; the placements as long as the plan lives. out owned, plan_free(). */
enum err plan_make(const struct plan_ask *ask, struct reject *why, struct plan **out)
	MUST_CHECK;
void plan_free(struct plan *p);
/* Bytes it holds, its placements left out. */
size_t plan_bytes(const struct plan *p);
/* The loop of operation i. */
void plan_region(const struct plan *p, uint32_t i, struct region *out);

/* The plan's text (J), as the vectors have it. */
void plan_text(const struct plan *p, struct text_out *o);
/* Its "operations" alone. */
void plan_ops_text(const struct plan *p, struct text_out *o);
/* Operations [first, first + n) without brackets, a comma between two. */
void plan_ops_some(const struct plan *p, uint32_t first, uint32_t n, struct text_out *o);

static inline struct bytes plan_source_id(const struct plan *p, uint32_t i)
{
	uint32_t f = p->ops[i].source;
	return p->source ? p->source->frags[f].id : p->stored->frags[f].id;
}
