/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run-time bindings: where the fragments of a placement are in memory, one binding a participant.
 * Checked against the placement and against each other: sizes, shapes, strides, allocations, and
 * that no two live ranges overlap but for declared aliases.
 *
 * Text form (ours; the keys are the vectors'): a list of bindings, each
 *	{"fragments":[{"address","device","endpoint","fragment_id","itemsize","local_shape","nbytes",
 *	"placement_fragment_id","storage_address","storage_nbytes","storage_offset_bytes",
 *	"strides_bytes","worker_id"}...],"generation","instance_id","lease_id","participant_id",
 *	"placement_digest","placement_id","resource_id","revision"}
 *
 * Immutable once read. N log N. Thread: a built one may be shared, read-only.
 */
#pragma once

#include "reshard/place.h"

struct bound_frag {
	struct bytes place_id, id, worker, endpoint, device;
	uint64_t address, nbytes, itemsize;
	uint64_t storage_address, storage_nbytes, storage_offset;
	uint64_t *shape, *strides; /* n_dims, n_strides; strides of extents 1 are normalised */
	uint32_t n_dims, n_strides;
	uint32_t frag; /* of the placement */
};

struct binding {
	struct bytes resource_id, revision, placement_id, digest, instance, lease, participant;
	uint64_t generation;
	struct bound_frag *frags; /* as the input has them */
	uint32_t n_frags;
	uint32_t part; /* of the placement */
};

struct bindings {
	struct binding *b; /* as the input has them */
	uint32_t n;
	struct arena mem; /* private */
};

/* p borrowed as long as the bindings live. Errors as place_read. */
enum err bind_read(struct bytes text, const struct place *p, const struct place_limits *lim,
		   struct reject *why, struct bindings **out) MUST_CHECK;
void bind_free(struct bindings *b);
