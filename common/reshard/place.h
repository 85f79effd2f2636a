/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A placement: which rank holds which box of which tensor. Immutable once built; every rule of the
 * format is proved by then (coverage included), and ids and digest are known.
 *
 * Built from a text (place_read: wire form, draft, or parts to assemble) or record by record
 * (place_new_*). Both end in the same checks, in this order: topology, tensors, parts, the set of
 * participants, fragments of the whole placement, aliases, coverage tensor by tensor, ids.
 *
 * Order: tensors by id, parts by participant, fragments of a part by id; names compare as bytes.
 * The order of the input is not significant, but paths in refusals are those of the input.
 *
 * Memory: linear, some 180 bytes a fragment with its id; never above place_limits.memory by more
 * than an eighth and the 64 KiB of a writer. Time: N log N; place_limits.cancel ends it within
 * milliseconds (stop.h), but for what it frees then (left.h). Thread: any one at a time while building; a built one may be shared, read-only.
 */
#pragma once

#include "base/arena.h"
#include "reshard/box.h"
#include "reshard/json_in.h"
#include "reshard/left.h"
#include "reshard/text.h"

/* In canonical order. */
enum axis_kind { AX_DP, AX_PP, AX_EP, AX_TP, AX_N };
enum axis_sem { SEM_NONE, SEM_SPLIT, SEM_REPLICATED, SEM_OWNERSHIP };

extern const char *const axis_names[AX_N]; /* "dp" ... */
extern const char *const sem_names[4];	   /* "", "split" ... */

#define DERIVED_ID_LEN (7 + SHA_HEX) /* "sha256:" and 64 digits */

struct rank {
	uint64_t c[AX_N];
};

struct axis {
	uint8_t sem;  /* enum axis_sem; SEM_NONE: not declared */
	uint64_t dim; /* of a split */
};

struct tensor {
	/* what is asked for each fragment: one line */
	struct bytes id;
	const uint64_t *shape;
	const uint64_t
		*boxes; /* of its fragments, as by_tensor has them; once they are grouped */
	uint64_t itemsize;
	uint8_t n_dims, n_shard;
	bool has_layer, has_expert;
	/* the rest */
	uint32_t name; /* while building: number of the name */
	struct bytes dtype, layout;
	const uint64_t *shard_dims;
	uint64_t layer, expert;
	struct axis axes[AX_N];
	uint32_t pos;  /* in the input's list */
	uint32_t part; /* position of the input part that listed it; only while assembling */
};

struct frag {
	struct bytes id;     /* p NULL: to be derived; not after building */
	const uint64_t *box; /* offsets, then extents */
	uint64_t nbytes, stage;
	uint32_t tensor; /* index; while building: number of the name */
	uint32_t part;
	uint32_t pos;		 /* in the input part's list */
	uint32_t alias;		 /* index of a group; 0: none */
	uint8_t n_dims, n_shape; /* differ only in what is refused */
	bool has_stage;
};

/* Tensors that share memory, in the order of their names. */
struct alias {
	const uint32_t *tensors; /* indices; UINT32_MAX: no such tensor */
	const struct bytes *names;
	uint32_t n;
};

/* A participant and what it holds: frags[first .. first + n). */
struct place_part {
	struct bytes id;
	struct rank rank;
	uint32_t first, n;
	uint32_t pos; /* in the input's list of parts */
};

struct place {
	struct bytes resource_id, revision, set_id;
	uint64_t generation;
	uint64_t size[AX_N];
	char topology_id[DERIVED_ID_LEN], id[DERIVED_ID_LEN], digest[SHA_HEX];
	uint64_t text_bytes; /* of the canonical text */
	struct place_part *parts;
	struct tensor *tensors;
	struct frag *frags;
	struct alias *aliases; /* [0] is the empty group */
	uint32_t n_parts, n_tensors, n_frags, n_aliases;
	uint32_t *by_id;	/* all fragments, by fragment id */
	uint32_t *id_rank;	/* a fragment's place in by_id */
	uint32_t *by_tensor;	/* all fragments: those of tensor t are by_tensor[first[t] ..
				 * first[t + 1]), in (rank dp, pp, ep, tp; id) order */
	uint32_t *tensor_part;	/* part of fragment by_tensor[i] */
	uint32_t *tensor_first; /* n_tensors + 1 */
	uint32_t *rank_order;	/* parts by (dp, pp, ep, tp) */
	bool staged;		/* some fragment has a stage */
	/* private */
	uint64_t *boxes; /* of fragment by_tensor[0], [1] ...: a tensor's lie side by side */
	size_t box_words;
	struct arena mem;
	bool built_ok;
};

struct place_limits {
	struct json_limits json;
	size_t memory;		   /* bytes held, the finished placement and its making */
	uint64_t work;		   /* comparisons of boxes (box.h) */
	const atomic_bool *cancel; /* borrowed; NULL: none */
	/* Borrowed; NULL: a read that ends without a placement frees what it had built before it returns.
	 * Else that is put there. Not for place_new_open. */
	struct left *left;
};

/* To initialise with: struct place_limits lim = PLACE_LIMITS; */
#define PLACE_LIMITS                                                       \
	{                                                                  \
		JSON_LIMITS, (size_t)8 << 30, BOX_WORK_DEFAULT, NULL, NULL \
	}

enum place_form {
	PLACE_WIRE,  /* the whole wire object: all ids given and compared */
	PLACE_DRAFT, /* without topology_id and placement_id; fragment ids may be left out */
	PLACE_PARTS, /* parts with their own identity and tensors, to be assembled */
};

/*
 * Reads, checks and builds.
 *
 * text  borrowed; nothing of it is kept
 * why   borrowed; the refusal, when the error says that there is one
 * out   owned, place_free()
 *
 * The errors are those of rule.h's rows; ERR_NO_MEMORY.
 */
enum err place_read(struct bytes text, enum place_form form, const struct place_limits *lim,
		    struct reject *why, struct place **out) MUST_CHECK;
void place_free(struct place *p);
/* Bytes it holds. */
size_t place_bytes(const struct place *p);

/* ---- record by record ---- */

struct place_new;

/* resource_id, revision, set_id: copied. lim is copied, why borrowed until place_build. */
struct place_new *place_new_open(const struct place_limits *lim, struct reject *why);
void place_new_free(struct place_new *b);
/* Each of these copies what it is given; false: why has the refusal (a limit). */
bool place_new_ident(struct place_new *b, struct bytes resource_id, struct bytes revision,
		     uint64_t generation, struct bytes set_id, const uint64_t size[AX_N]);
bool place_new_member(struct place_new *b, struct bytes id, const struct rank *r);
/* id, dtype, layout, shape and shard_dims of t are read; n_dims, n_shard count. */
bool place_new_tensor(struct place_new *b, const struct tensor *t);
/* Fragments that follow are of this part. */
bool place_new_part(struct place_new *b, struct bytes id, const struct rank *r);
/* box: n_dims offsets, n_dims extents. id may be empty: derived. Group of aliases by name. */
bool place_new_frag(struct place_new *b, struct bytes id, struct bytes tensor,
		    const uint64_t *box, uint32_t n_dims, uint64_t nbytes,
		    const uint64_t *stage, const struct bytes *aliases, uint32_t n_aliases);
/* All records of a text, into an empty b: place_read is this and place_build. */
bool place_new_read(struct place_new *b, struct bytes text, enum place_form form);
/* Takes what b holds, whatever comes of it; b is to be freed all the same. */
enum err place_build(struct place_new *b, struct place **out) MUST_CHECK;

/* ---- text and lookups ---- */

/* The canonical text. */
void place_text(const struct place *p, struct text_out *o);
void place_tensor_text(const struct tensor *t, struct text_out *o);
void rank_text(const struct rank *r, struct text_out *o);
/* UINT32_MAX: none. */
uint32_t place_find_part(const struct place *p, struct bytes id);
uint32_t place_find_tensor(const struct place *p, struct bytes id);
/* Index of the fragment with this id. */
uint32_t place_find_frag(const struct place *p, struct bytes id);

static inline int bytes_cmp(struct bytes a, struct bytes b)
{
	size_t n = MIN_OF(a.n, b.n);
	int c = n ? memcmp(a.p, b.p, n) : 0;
	return c ? c : (a.n > b.n) - (a.n < b.n);
}

static inline bool bytes_eq(struct bytes a, struct bytes b)
{
	return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

int rank_cmp(const struct rank *a, const struct rank *b);
