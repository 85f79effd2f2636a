/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning how model weights move: in this process, without cluster, service or I/O; or by the planner
 * of a cluster (pml_plan_remote), which gives the same plan to the byte.
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
		2,	/* parts, each with its identity and tensors, to be assembled */
	PML_STORED = 3, /* a stored manifest; for pml_plan_remote alone */
};

/* Receives text piece by piece; false stops the writing. */
typedef bool (*pml_sink)(void *arg, const void *p, size_t n);

/* ---- stopping ---- */

/* A flag that ends reading and planning: any thread may raise it, every call that was given it
 * returns PML_ERR_CANCELLED within milliseconds. */
struct pml_stop;
/* *out: pml_stop_free(), once no call has it any more. PML_ERR_NO_MEMORY. */
PML_API int pml_stop_new(struct pml_stop **out, struct pml_error *err);
PML_API void pml_stop_free(struct pml_stop *s);
/* For good. Safe in a signal handler. */
PML_API void pml_stop_now(struct pml_stop *s);

struct pml_read_opts {
	size_t size;
	struct pml_stop *stop; /* NULL: none */
	uint64_t max_memory;   /* bytes, the placement and its making; 0: 8 GiB */
	uint64_t max_text;     /* bytes; 0: 4 GiB */
};
#define PML_READ_OPTS_INIT                               \
	{                                                \
		sizeof(struct pml_read_opts), NULL, 0, 0 \
	}

/* ---- placements ---- */

/* json: borrowed, n bytes. *out: pml_placement_free(). PML_ERR_BAD_MANIFEST, PML_ERR_TOO_LARGE,
 * PML_ERR_LIMIT, PML_ERR_NO_MEMORY. */
PML_API int pml_placement_read(const void *json, size_t n, int form, struct pml_placement **out,
			       struct pml_error *err);
PML_API int pml_placement_read_with(const void *json, size_t n, int form,
				    const struct pml_read_opts *o, struct pml_placement **out,
				    struct pml_error *err);
/* NULL is fine. No plan that uses it may be alive. */
PML_API void pml_placement_free(struct pml_placement *p);
/* "sha256:..." and 64 hex digits; end in NUL, valid as long as p. */
PML_API const char *pml_placement_id(const struct pml_placement *p);
PML_API const char *pml_placement_digest(const struct pml_placement *p);
/* The canonical text. PML_ERR_CANCELLED when put stopped it. */
PML_API int pml_placement_write(const struct pml_placement *p, pml_sink put, void *arg,
				struct pml_error *err);

/* ---- stored weights ---- */

PML_API int pml_stored_read(const void *json, size_t n, struct pml_stored **out,
			    struct pml_error *err);
PML_API int pml_stored_read_with(const void *json, size_t n, const struct pml_read_opts *o,
				 struct pml_stored **out, struct pml_error *err);
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
	struct pml_stop *stop; /* NULL: none */
	uint64_t max_memory;   /* bytes, the plan and its making; 0: 4 GiB */
};
#define PML_PLAN_OPTS_INIT                                                                    \
	{                                                                                     \
		sizeof(struct pml_plan_opts), NULL, NULL, NULL, false, NULL, 0, 0, 0, NULL, 0 \
	}

struct pml_plan_info {
	size_t size;
	uint64_t n_regions, total_segments;
	uint64_t total_bytes;	       /* all ones: 2^64-1 or more */
	uint64_t n_sources, n_targets; /* participants that are read (0: stored), written */
	uint64_t n_routes;	       /* pairs of pipeline stages */
};
#define PML_PLAN_INFO_INIT                                     \
	{                                                      \
		sizeof(struct pml_plan_info), 0, 0, 0, 0, 0, 0 \
	}

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
 * the last. O(dimensions); the first one of a plan that came from the planner reads its whole text. */
PML_API int pml_plan_region(const struct pml_plan *p, uint64_t i, struct pml_region *out,
			    struct pml_error *err);
/* The whole plan as text: operations, executors, routes, totals. */
PML_API int pml_plan_write(const struct pml_plan *p, pml_sink put, void *arg,
			   struct pml_error *err);

/* ---- by the planner of a cluster ---- */

/* One side. At least one of json and digest; with both, json is sent only if the planner does not know
 * the digest. */
struct pml_remote_side {
	const void *json; /* n bytes */
	size_t n;
	int form;	    /* PML_PLACEMENT_*; PML_STORED: of the source alone */
	const char *digest; /* 64 hex digits: pml_placement_digest; NULL: not known */
};

struct pml_remote_opts {
	size_t size;
	struct pml_remote_side source, target;
	bool local;		 /* only what one participant of the target needs */
	const char *participant; /* which; NULL: the only one */
	/* 0: the planner's, which are the most: 16 Mi, 2^40, 2^48 */
	uint64_t max_regions, max_segments_per_region, max_total_segments;
	uint64_t max_text; /* bytes of the plan's text; 0: 2 GiB */
};
#define PML_REMOTE_OPTS_INIT                                                                \
	{                                                                                   \
		sizeof(struct pml_remote_opts), { NULL, 0, 0, NULL }, { NULL, 0, 0, NULL }, \
			false, NULL, 0, 0, 0, 0                                             \
	}

/*
 * Sends what is needed, plans there, fetches the plan and compares its digest. Cancelling, a deadline
 * and pml_close stop the work in the planner too. The plan is independent of the handle.
 *
 * opts  borrowed for the call
 * out   pml_plan_free()
 *
 * PML_ERR_NOT_FOUND: a digest that the planner does not know, and no json. PML_ERR_BAD_MANIFEST,
 * PML_ERR_LIMIT, PML_ERR_TOO_LARGE as in this process; PML_ERR_CORRUPT: what came is not what was made.
 */
PML_API int pml_plan_remote(struct pml *p, const struct pml_remote_opts *opts,
			    const struct pml_call_opts *o, struct pml_plan **out,
			    struct pml_error *err);
/* The same without waiting. Texts are copied. */
PML_API int pml_plan_remote_start(struct pml *p, const struct pml_remote_opts *opts,
				  const struct pml_call_opts *o, struct pml_cq *cq, void *user,
				  struct pml_op **out, struct pml_error *err);
/* Takes the plan out of a completed operation: pml_plan_free(). Its own error when it failed;
 * PML_ERR_INVALID_PARAMS: no such operation, or taken before. */
PML_API int pml_op_plan(struct pml_op *op, struct pml_plan **out, struct pml_error *err);
/* SHA-256 of the plan's text, 64 hex digits, of any plan; computed at the first call. NULL: no memory. */
PML_API const char *pml_plan_digest(const struct pml_plan *p);

#ifdef __cplusplus
}
#endif
#endif
