/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that are open: what was asked, the texts as far as they came, and the result. Memory for a
 * text is taken from the budget when the plan is opened and given back when it was read.
 *
 *   OPEN      texts come; nothing runs
 *   RUNNING   workers read, plan and write; texts and result do not change under them
 *   MADE      the plan's text is there
 *   REFUSED   by a rule of planning: the same answer again, until it is dropped
 *
 * P1: a plan belongs to the tenant that opened it; to others it does not exist.
 * P2: n, and each tenant's n_plans and bytes, are sums over the plans there are, within their limits.
 * P3: texts take at most half the budget, so that what is there can be planned.
 * P4: bytes charged to the budget for a plan = its texts + `reserved` + its result.
 *
 * Pure but for the heap. Thread: the loop's.
 */
#pragma once

#include "base/buf.h"
#include "reshard/plan.h"
#include "shelf.h"

struct rpc_req;
struct wpl_run;

enum wpl_state { WPL_OPEN, WPL_RUNNING, WPL_MADE, WPL_REFUSED };
enum wpl_limit { WPL_L_MEMORY, WPL_L_TENANT_MEMORY, WPL_L_PLANS, WPL_L_TENANT_PLANS, WPL_L_N };
enum wpl_form { WPL_WIRE = 1, WPL_DRAFT, WPL_PARTS, WPL_STORED };

struct wpl_tenant {
	struct list node;
	char name[WPL_TENANT_MAX + 1];
	uint32_t n_plans;
	uint64_t bytes; /* texts, reserved, results */
};

struct wpl_input {
	struct wpl_doc *doc; /* read, or known by digest; then the text is gone */
	uint8_t form;	     /* enum wpl_form */
	char digest[SHA_HEX];
	bool has_digest;  /* as the caller claimed */
	uint64_t bytes;	  /* of the text; 0: none is to come */
	uint64_t missing; /* of these */
	uint8_t *text;
	uint64_t *have; /* a bit for each piece */
};

struct wpl_plan {
	uint8_t id[16];
	struct wpl_tenant *tenant;
	enum wpl_state state;
	struct wpl_input in[2]; /* source, target */
	bool local;
	uint8_t *participant; /* owned; n bytes */
	size_t n_participant;
	uint64_t max_regions, max_segments_per_region,
		max_total_segments; /* 0: the service's */
	uint64_t touched_ns;
	/* running */
	struct wpl_run *run;
	uint64_t reserved;	 /* bytes, for the step that runs */
	struct rpc_req *stopper; /* who waits for its end */
	/* made */
	struct buf text; /* text.cap is charged */
	uint64_t charged;
	char digest[SHA_HEX], made_of[2][SHA_HEX];
	uint64_t regions, segments, total_bytes, sources, targets, routes, took_us;
	struct why why; /* refused */
	/* private */
	struct map_node node;
	struct list old;
};

struct wpl_plans {
	/* limits, set by the caller after init */
	uint32_t tenant_plans_max;
	uint64_t tenant_bytes_max;
	uint32_t part_bytes;
	struct budget *mem;	 /* borrowed */
	struct wpl_shelf *shelf; /* borrowed */
	uint64_t text_bytes;	 /* of texts, all plans */
	/* private */
	struct map plans; /* .limit: plans_max */
	struct list old;  /* the longest untouched first */
	struct list tenants;
	uint64_t seed;
};

/* What a caller asks; borrowed. */
struct wpl_ask {
	const uint8_t *id;
	const char *tenant;
	struct {
		uint8_t form;
		struct bytes digest; /* n 0, or SHA_HEX hex digits */
		uint64_t bytes;
	} in[2];
	bool local;
	struct bytes participant;
	uint64_t max_regions, max_segments_per_region, max_total_segments;
	uint64_t text_max;
};

void wpl_plans_init(struct wpl_plans *t, struct budget *mem, struct wpl_shelf *shelf,
		    uint32_t plans_max, uint64_t seed);
/* None may run. */
void wpl_plans_fini(struct wpl_plans *t);
/* NULL: none of that tenant's. Touches it. */
struct wpl_plan *wpl_plan_find(struct wpl_plans *t, const uint8_t id[16], const char *tenant,
			       uint64_t now_ns);
/*
 * Opens a plan, or finds the one that is open under that id with the same inputs.
 *
 * ERR_INVALID_PARAMS  form, digest, a target that is no placement
 * ERR_NOT_FOUND       a digest that is not known, and no text is to come
 * ERR_TOO_LARGE       a text above text_max, or above all memory there is
 * ERR_BUSY            *limit says which limit; ERR_EXISTS another plan has that id; ERR_NO_MEMORY
 */
enum err wpl_plan_open(struct wpl_plans *t, const struct wpl_ask *a, uint64_t now_ns,
		       struct wpl_plan **out, enum wpl_limit *limit, struct why *why)
	MUST_CHECK;
/*
 * A piece of a text. One that is there already changes nothing.
 *
 * ERR_INVALID_PARAMS  side, offset, length; ERR_NO_MEMORY
 */
enum err wpl_plan_part(struct wpl_plans *t, struct wpl_plan *p, uint32_t side, uint64_t offset,
		       struct bytes data, struct why *why) MUST_CHECK;
/* Is all there to run it? ERR_CONFLICT: a text lacks pieces; why names the first. */
enum err wpl_plan_whole(const struct wpl_plans *t, const struct wpl_plan *p, struct why *why)
	MUST_CHECK;
/* Charges n bytes to the plan's tenant and the budget; ERR_BUSY, with *limit. */
enum err wpl_plan_charge(struct wpl_plans *t, struct wpl_plan *p, uint64_t n,
			 enum wpl_limit *limit) MUST_CHECK;
void wpl_plan_discharge(struct wpl_plans *t, struct wpl_plan *p, uint64_t n);
/* The text has been read: it goes, doc (with its reference) takes its place. */
void wpl_plan_read(struct wpl_plans *t, struct wpl_plan *p, uint32_t side, struct wpl_doc *doc);
/* It is made or refused: texts and documents are not needed any more. */
void wpl_plan_settle(struct wpl_plans *t, struct wpl_plan *p);
/* It is not running: frees it with all it holds. */
void wpl_plan_drop(struct wpl_plans *t, struct wpl_plan *p);
/* The longest untouched plan that does not run, if it was touched before `before_ns`; else NULL. */
struct wpl_plan *wpl_plan_idle(struct wpl_plans *t, uint64_t before_ns);
/* P2, P4 by a recount. */
void wpl_plans_check(const struct wpl_plans *t);
