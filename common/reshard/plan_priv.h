/* SPDX-License-Identifier: Apache-2.0 */
/* A plan being made: what the source side offers for a tensor, for each DP rank (plan_source.c),
 * and how it meets the target (plan.c). Also the choice of a replica for uploads. */
#pragma once

#include "reshard/plan.h"

/* What the making of a plan may use, and where it says why it ended. */
struct plan_room {
	struct reject *why;	   /* borrowed */
	const atomic_bool *cancel; /* borrowed; NULL: none */
	size_t left; /* bytes that may still be taken; what is freed does not return */
};

/* n bytes; NULL: limit.memory. */
void *plan_alloc(struct plan_room *r, size_t n);
void *plan_zero(struct plan_room *r, size_t n, size_t each);
/* In turn i of a long loop. False: plan.cancelled. */
static inline bool plan_go(struct plan_room *r, size_t i)
{
	return !stop_at(r->cancel, i) || reject_set(r->why, RULE_PLAN_CANCELLED, "", "stopped");
}
/* stop_touch. False: plan.cancelled. */
bool plan_touch(struct plan_room *r, void *p, size_t n);
/* A sort failed: stopped, or for lack of memory. */
bool plan_sort_fail(struct plan_room *r);

/* A source for one box: the fragment with the smallest (dp, pp, ep, tp, id) of those that hold it. */
struct offer {
	const uint64_t *box;
	uint32_t frag;
};

/* What one DP rank (or all: dp_idx UINT32_MAX) offers of a tensor: its smallest owner's boxes. */
struct offer_run {
	uint32_t dp_idx, first, n; /* of offers */
};

struct offers {
	struct offer *offer;
	uint32_t n_offers, cap_offers;
	struct offer_run *run;
	uint32_t n_runs, cap_runs;
	uint32_t *run_first; /* tensor -> first run; n_tensors + 1 */
	uint64_t *dp;	     /* distinct DP ranks, ascending */
	uint32_t n_dp;
	uint32_t *complete; /* indices into dp: complete ranks, ascending */
	uint32_t n_complete;
	bool any_shared;       /* some tensor is not DP-owned */
	const uint32_t *frags; /* borrowed: the source's by_tensor */
};

/* A fragment with its tensor's owner, to be sorted. */
struct cand {
	const struct rank *rank;
	const uint64_t *box;
	uint32_t pos, seq; /* pos: in by_tensor; seq: in (dp, pp, ep, tp, id) order */
};

struct cands {
	struct cand *c;
	uint32_t n, n_dims;
	const struct tensor *t;
};

/* Sorts by (dp if with_dp, owner, box, seq). False: stopped, no memory. */
bool cands_sort(struct cands *k, bool with_dp, struct plan_room *r);
/* The same DP rank (if with_dp) and owner? */
bool cands_same(const struct cands *k, uint32_t a, uint32_t b, bool with_dp);
/* Do the distinct boxes of c[first..end), sorted, add up to the whole tensor? For fragments of a
 * built placement that is the same as tiling: each replica among them tiles, so equal volume means
 * that all replicas are cut alike. */
bool cands_whole(const struct cands *k, uint32_t first, uint32_t end);
/* The fragments of tensor t, in rank order, as candidates. only: those of parts where it is true;
 * NULL: all. */
void cands_fill(struct cands *k, const struct place *p, uint32_t t, const bool *only);

static inline bool tensor_dp_owned(const struct tensor *t)
{
	return t->axes[AX_DP].sem == SEM_OWNERSHIP;
}

/* all: DP-owned tensors must have one owner too (planning). False: refused or no memory. */
bool offers_of_place(struct offers *o, const struct place *p, struct box_work *w,
		     struct plan_room *r);
bool offers_of_stored(struct offers *o, const struct stored *s, struct plan_room *r);
void offers_fini(struct offers *o);
/* NULL: none for that DP rank. */
const struct offer_run *offers_for(const struct offers *o, uint32_t tensor, uint64_t target_dp);

/* Executors and routes of finished operations (plan_index.c). at: those that fill the target fragment
 * at place i of by_id are [at[i], at[i + 1]). */
bool plan_index(struct plan *p, const uint32_t *at, struct plan_room *r);
bool plan_no_memory(struct reject *why);
bool plan_work_fail(const struct box_work *w, struct reject *why);
bool plan_grow(void *list, uint32_t *cap, uint32_t n, size_t each, struct plan_room *r);
