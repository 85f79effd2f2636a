/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest of stored weights: which object holds which box of which tensor. Immutable once
 * read; lists keep the order of the text. Memory and time linear, N log N for the checks.
 * Thread: a built one may be shared, read-only.
 */
#pragma once

#include "reshard/place.h"

struct stored_frag {
	struct bytes id, object_key;
	const uint64_t *box;
	uint64_t object_offset, nbytes;
	uint32_t tensor; /* index */
	uint32_t alias;	 /* index of a group; 0: none */
};

struct stored {
	struct bytes ns, resource_id, revision, group_id, manifest_key, created_at;
	uint64_t generation;
	struct tensor *tensors;	   /* in the text's order */
	struct stored_frag *frags; /* in the text's order */
	struct alias *aliases;
	uint32_t n_tensors, n_frags, n_aliases;
	uint32_t *by_name;		    /* tensors in the order of names */
	uint32_t *by_tensor, *tensor_first; /* fragments by tensor, in (object key, id) order */
	char digest[SHA_HEX];
	uint64_t text_bytes;
	/* private */
	struct arena mem;
};

/* As place_read. */
enum err stored_read(struct bytes text, const struct place_limits *lim, struct reject *why,
		     struct stored **out) MUST_CHECK;
void stored_free(struct stored *s);
/* Bytes it holds. */
size_t stored_bytes(const struct stored *s);
/* The canonical text (J8: o->raw is to be set). */
void stored_text(const struct stored *s, struct text_out *o);
/* UINT32_MAX: none. */
uint32_t stored_find_tensor(const struct stored *s, struct bytes id);
