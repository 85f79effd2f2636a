/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning how model weights move, in this process: no cluster, no service, no I/O.
 *
 *	struct pml_placement *from, *to;
 *	struct pml_plan *plan;
 *	pml_placement_read(json, n, PML_PLACEMENT_WIRE, &from, &err);
 *	pml_placement_read(json2, n2, PML_PLACEMENT_WIRE, &to, &err);
 *	struct pml_plan_opts o = PML_PLAN_OPTS_INIT;
 *	o.source = from;
 *	o.target = to;
 *	pml_plan_make(&o, &plan, &err);
 *	for (i = 0; i < info.n_regions; i++)
 *		pml_plan_region(plan, i, &r) ...
 *
 * A region is a copy loop between two fragments: for each index of outer_counts, outermost first,
 * copy inner_bytes from source_base + index . source_strides to target_base + index .
 * target_strides; offsets are bytes from the start of the fragment's memory.
 *
 * Errors: as everywhere (pml.h). The text names the rule that was broken and the path of the field:
 * "fragment.nbytes at parts[3].fragments[0].nbytes: ...". Names of rules are stable.
 *
 * Threads: what was read or made never changes and may be used from any thread; only _free must be
 * the last call on its object. Calls compute and do not wait.
 */
#ifndef POMELO_PML_WEIGHTS_H
#define POMELO_PML_WEIGHTS_H

#include "pml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pml_placement; /* which rank holds which part of which tensor */
struct pml_stored;    /* which object of the store does */
struct pml_plan;

/* A name in a placement: bytes, not ended by NUL, valid as long as the object they came from. */
struct pml_text {
	const char *p;
	size_t n;
};

enum {
	PML_PLACEMENT_WIRE = 0,	 /* with topology_id and placement_id, which are compared */
	PML_PLACEMENT_DRAFT = 1, /* without; fragment ids may be left out too */
	PML_PLACEMENT_PARTS =
		2, /* parts, each with its identity and tensors, to be assembled */
};

/* Receives text piece by piece; false stops the writing. */
typedef bool (*pml_put)(void *arg, const void *p, size_t n);

/* ---- placements ---- */

/* json: borrowed, n bytes. *out: pml_placement_free(). PML_ERR_BAD_MANIFEST, PML_ERR_TOO_LARGE,
 * PML_ERR_LIMIT, PML_ERR_NO_MEMORY. */
PML_API int pml_placement_read(const void *json, size_t n, int form, struct pml_placement **out,
			       struct pml_error *err);
/* NULL is fine. No plan that uses it may be alive. */
PML_API void pml_placement_free(struct pml_placement *p);
/* "sha256:..." and 64 hex digits; end in NUL, valid as long as p. */
PML_API const char *pml_placement_id(const struct pml_placement *p);
PML_API const char *pml_placement_digest(const struct pml_placement *p);
/* The canonical text. PML_ERR_CANCELLED when put stopped it. */
PML_API int pml_placement_write(const struct pml_placement *p, pml_put put, void *arg,
				struct pml_error *err);

/* ---- stored weights ---- */

PML_API int pml_stored_read(const void *json, size_t n, struct pml_stored **out,
			    struct pml_error *err);
PML_API void pml_stored_free(struct pml_stored *s);
PML_API const char *pml_stored_digest(const struct pml_stored *s);

/* ---- plans ---- */

struct pml_plan_opts {
	size_t size;
	const struct pml_placement *source; /* one of the two; both live as long as the plan */
	const struct pml_stored *stored;
	const struct pml_placement *target; /* lives as long as the plan */
	bool local;			    /* only what one participant of the target needs */
	const char *participant;	    /* which; NULL: the only one */
	/* 0: 1,000,000, 1,000,000 and 10,000,000 */
	uint64_t max_regions, max_segments_per_region, max_total_segments;
};
#define PML_PLAN_OPTS_INIT                                                           \
	{                                                                            \
		sizeof(struct pml_plan_opts), NULL, NULL, NULL, false, NULL, 0, 0, 0 \
	}

struct pml_plan_info {
	size_t size;
	uint64_t n_regions, total_segments;
	uint64_t total_bytes; /* all ones: 2^64-1 or more */
};
#define PML_PLAN_INFO_INIT                            \
	{                                             \
		sizeof(struct pml_plan_info), 0, 0, 0 \
	}

#define PML_DIMS_MAX 32

struct pml_region {
	size_t size;
	struct pml_text tensor, source_fragment, target_fragment;
	struct pml_text source_participant; /* n 0: stored */
	struct pml_text target_participant;
	uint64_t source_base, target_base, inner_bytes, segments;
	uint32_t n_outer;
	uint64_t outer_counts[PML_DIMS_MAX];
	uint64_t source_strides[PML_DIMS_MAX];
	uint64_t target_strides[PML_DIMS_MAX];
};

PML_API int pml_plan_make(const struct pml_plan_opts *opts, struct pml_plan **out,
			  struct pml_error *err);
PML_API void pml_plan_free(struct pml_plan *p);
/* info->size is to be set (PML_PLAN_INFO_INIT). */
PML_API int pml_plan_info(const struct pml_plan *p, struct pml_plan_info *info,
			  struct pml_error *err);
/* Region i of n_regions, in the plan's order; out->size = sizeof(*out). PML_ERR_INVALID_PARAMS past
 * the last. O(dimensions). */
PML_API int pml_plan_region(const struct pml_plan *p, uint64_t i, struct pml_region *out,
			    struct pml_error *err);
/* The whole plan as text: operations, executors, routes, totals. */
PML_API int pml_plan_write(const struct pml_plan *p, pml_put put, void *arg,
			   struct pml_error *err);

#ifdef __cplusplus
}
#endif
#endif
