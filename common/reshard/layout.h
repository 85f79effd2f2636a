/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout: how the tensors of some safetensors files lie on the ranks of a job, said by rules that a
 * person writes (the topology file, docs/weights.md). Nothing is guessed: a tensor that matches no rule is
 * refused, a rule that matches no tensor too.
 *
 *	{ "files": ["model-00001-of-00002.safetensors" ...],
 *	  "layout_fingerprint", "placement_set_id", "resource_id", "revision": text,
 *	  "weight_generation": 0..2^64-1,
 *	  "topology": as in a draft placement,
 *	  "rules": [ { "match": "model.layers.{layer}.mlp.experts.{expert}.*", "axes": [
 *	      { "kind": "tp", "semantics": "split", "dim": 0 },
 *	      { "kind": "dp", "semantics": "replicated" },
 *	      { "kind": "ep", "semantics": "ownership", "by": "expert", "of": 256 },
 *	      { "kind": "pp", "semantics": "ownership", "at": 3 } ] } ... ] }
 *
 * match   the first rule that matches is the tensor's. {layer} and {expert} stand for decimal numbers and
 *         become layer_id and expert_id; * for any run of characters; all else for itself
 * split   the dimension in as many shares as the axis has ranks, the first ones one longer
 * by, of  the owner: numbers 0..of-1 in as many blocks as the axis has ranks, the first ones one longer
 * at      the owner's coordinate; with neither at nor by whoever the other axes leave
 *
 * What comes out is a placement like any other: every rule of the format is proved for it.
 * Thread: the caller's. Time: tensors times (rules and ranks), bounded by lim.work.
 */
#pragma once

#include "reshard/safetensors.h"

#define LAYOUT_FILES_MAX 65536
#define LAYOUT_RULES_MAX 4096

struct layout_axis {
	uint8_t sem; /* enum axis_sem; SEM_NONE: not declared */
	uint8_t by;  /* 0: whoever is left, 'a' at, 'l' layer, 'e' expert */
	uint64_t n;  /* dim of a split; at; of */
};

struct layout_rule {
	struct bytes match;
	struct layout_axis axes[AX_N];
};

struct layout {
	struct bytes *files; /* names, as given */
	struct layout_rule *rules;
	uint32_t n_files, n_rules;
	/* private */
	struct bytes resource_id, revision, set_id, fingerprint;
	uint64_t generation, size[AX_N];
	struct layout_member {
		struct bytes id;
		struct rank rank;
	} * members;
	uint32_t n_members;
	struct arena mem;
};

/* out owned, layout_free(). Errors as place_read. */
enum err layout_read(struct bytes text, const struct place_limits *lim, struct reject *why,
		     struct layout **out) MUST_CHECK;
void layout_free(struct layout *l);
/* The placement of the tensors of n headers. Errors as place_read; texts name the tensor. */
enum err layout_place(const struct layout *l, const struct st_header *const *headers,
		      uint32_t n, const struct place_limits *lim, struct reject *why,
		      struct place **out) MUST_CHECK;
/* Does the pattern match the whole name? *layer, *expert: UINT64_MAX when the pattern has none. */
bool layout_match(struct bytes pattern, struct bytes name, uint64_t *layer, uint64_t *expert);
