/* SPDX-License-Identifier: Apache-2.0 */
/* A plan of pml_weights.h: made here (p), or fetched from the planner (text). Shared by weights.c and
 * weights_remote.c. */
#pragma once

#include "sdk.h"

#include "include/pml_weights.h"
#include "reshard/plan.h"
#include "reshard/plan_read.h"

struct pml_plan {
	struct plan *p;	 /* NULL: text */
	struct buf text; /* of the planner */
	uint64_t n_regions, total_segments, total_bytes, n_sources, n_targets, n_routes;
	/* lock */
	pthread_mutex_t lock;
	struct listed_plan *list; /* of text, by need */
	char digest[SHA_HEX + 1]; /* by need; "": not known yet */
};

struct pml_stop {
	atomic_bool flag;
};

/* A handle with its lock; NULL: no memory. */
struct pml_plan *sdk_plan_new(void);
/* weights_remote.c: region i of a fetched plan; the fields behind size. */
int sdk_listed_region(struct pml_plan *p, uint64_t i, struct pml_region *out,
		      struct pml_error *err);
/* A refusal of the library as an error. */
int sdk_refused(struct pml_error *err, enum err e, const struct reject *why, const char *step);
