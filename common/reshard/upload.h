/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a snapshot stores: which replica is the source, which fragment of it holds each box, and
 * under which ids and keys the boxes are stored.
 *
 * Pure. Thread: any. N log N.
 */
#pragma once

#include "reshard/place.h"

#define UPLOAD_FRAGMENT_ID_LEN 24

/* First 24 digits of the SHA-256 of "tensor|(offset, ...)|(shape, ...)". */
enum err upload_fragment_id(struct bytes tensor_id, const uint64_t *box, uint32_t n_dims,
			    char out[UPLOAD_FRAGMENT_ID_LEN]) MUST_CHECK;

struct upload_names {
	struct bytes prefix, ns; /* p NULL: "weights", "default" */
	struct bytes resource_id, revision;
	uint64_t generation;
	struct bytes transaction; /* 32 lower-case hex digits */
};

/* Text of a key, 0-terminated; owned, free(). ERR_INVALID_PARAMS: empty prefix or namespace, or a
 * transaction that is no 32 digits; why (may be NULL) says which. */
enum err upload_base(const struct upload_names *n, char **out, struct why *why) MUST_CHECK;
enum err upload_manifest_key(const struct upload_names *n, char **out, struct why *why)
	MUST_CHECK;
enum err upload_object_key(const struct upload_names *n, const char id[UPLOAD_FRAGMENT_ID_LEN],
			   char **out, struct why *why) MUST_CHECK;
enum err upload_transaction_group(const struct upload_names *n, char **out, struct why *why)
	MUST_CHECK;
enum err upload_control_key(const struct upload_names *n, char **out, struct why *why)
	MUST_CHECK;

struct upload_item {
	uint32_t frag; /* of the placement */
	char id[UPLOAD_FRAGMENT_ID_LEN];
	bool dp_owned; /* its tensor is owned along dp: taken from its owner, not from the replica */
};

struct upload {
	struct upload_item *items; /* by (tensor id, offset, shape) */
	uint32_t n_items, n_dp_owned;
	bool has_dp; /* some tensor is shared: then dp is the replica it is taken from */
	uint64_t dp, generation;
};

/* A participant that is bound, and the generation of its binding. */
struct upload_bound {
	uint32_t part;
	uint64_t generation;
};

struct upload_opts {
	bool allow_dp_owned; /* ours: such tensors come from their one owner, which must be whole; else
			      * they are refused */
	uint64_t work;		   /* comparisons of boxes (box.h) */
	const atomic_bool *cancel; /* borrowed; NULL: none */
	size_t memory;		   /* bytes held, the plan and its making */
};
/* To initialise with. */
#define UPLOAD_OPTS                                            \
	{                                                      \
		false, BOX_WORK_DEFAULT, NULL, (size_t)4 << 30 \
	}

/*
 * Which fragment of which participant is stored for each box. Of equal boxes the first by rank (dp, pp,
 * ep, tp): ranks are unique and a rank holds a box once, so that nothing is left for worker or fragment
 * id to decide.
 *
 * bound  borrowed, no part twice
 * out    owned, upload_free()
 *
 * Rules upload.*, limit.*; with allow_dp_owned plan.dp_owner.
 */
enum err upload_plan(const struct place *p, const struct upload_bound *bound, uint32_t n,
		     const struct upload_opts *opts, struct reject *why, struct upload **out)
	MUST_CHECK;
void upload_free(struct upload *u);
