/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as it will be stored: one operation a fragment, its source as the bindings say it is now,
 * its target object; the manifest that names them all; the keys of the transaction. Immutable once made.
 *
 * U1 (checked when made): every operation's fragment is bound, by the participant that holds it, with
 *    that placement fragment's id, tensor, box and size; object_offset is 0; the generation of every
 *    binding that is used is the plan's; object keys are of this transaction; operations are the
 *    manifest's fragments, in its order.
 *
 * Pure. Thread: a made one may be shared, read-only, as long as placement and bindings live.
 */
#pragma once

#include "reshard/bind.h"
#include "reshard/upload.h"

struct upload_op {
	uint32_t frag; /* source: fragment of the placement */
	uint32_t binding,
		bound; /* its binding, and the fragment in it: address, worker, strides */
	char id[UPLOAD_FRAGMENT_ID_LEN]; /* target: fragment_id */
	struct bytes object_key;	 /* target */
	uint64_t object_offset, nbytes;
	bool dp_owned; /* taken from its tensor's owner, not from the replica */
};

struct upload_set {
	struct upload *plan;
	struct upload_op *ops; /* by (tensor id, offset, shape), as plan->items */
	uint32_t n_ops;
	struct bytes ns;
	char *base; /* group of manifest and payload */
	char *manifest_key;
	char *transaction_group; /* group of the decision */
	char *control_key;	 /* the decision */
	char digest[SHA_HEX];	 /* of the manifest's text */
	/* borrowed */
	const struct place *place;
	const struct bindings *bindings;
	struct bytes created_at;
	/* private */
	struct arena mem;
};

/*
 * p, b        borrowed as long as the set lives; b was read against p
 * names       resource, revision and generation are taken from p; the transaction's id is needed
 * created_at  free text, borrowed as long as the set lives
 * out         owned, upload_set_free()
 *
 * Errors of upload_plan; rule upload.names.
 */
enum err upload_set_make(const struct place *p, const struct bindings *b,
			 const struct upload_names *names, struct bytes created_at,
			 const struct upload_opts *opts, struct reject *why,
			 struct upload_set **out) MUST_CHECK;
void upload_set_free(struct upload_set *s);
/* The manifest's canonical text (J8: o->raw is to be set). */
void upload_set_text(const struct upload_set *s, struct text_out *o);
/* The set as text, ours (docs/weights.md): operations with source and target, keys, digest. */
void upload_set_ops_text(const struct upload_set *s, struct text_out *o);
