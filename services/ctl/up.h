/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `up`, `down` and `status` share: the supervisor's status line in C, the settings of a running
 * cluster, stopping it.
 *
 * Thread: the main one.
 */
#pragma once

#include "ctl.h"

/* One service as the supervisor sees it. */
struct up_service {
	char name[16];
	char state[16];
	char last_exit[64];
	char why[SUP_REASON_BYTES]; /* the first reason it is not ready */
	int exit_code;
	uint32_t restarts, early_deaths;
	uint64_t watched_ms;
	bool ready, adopted;
	struct run_info info; /* pid 0: it does not run; instance "" : not known yet */
};

struct up_view {
	uint64_t pid; /* the supervisor's */
	uint32_t adopted, n_ready;
	bool stopping;
	size_t failed; /* a service that will not come up by waiting; SERVICE_COUNT: none */
	struct up_service services[SERVICE_COUNT];
};

/* Fields that are missing keep their zero. */
void up_view_read(const json_t *o, struct up_view *out);
/*
 * Will it not come up by itself? A service that says its configuration is wrong (2) will say so
 * again; one that ends with another code gets three tries. Pure.
 */
bool up_hopeless(const struct up_service *s);

/* ---- settings of a cluster ---- */

/* --set lines for the services; owned. */
struct up_sets {
	char *v[CLI_SETS_MAX];
	size_t n;
};
/*
 * The flags of this command line as settings. When services run already, the ones they were started
 * with (run/up.json) count, and other wishes are refused with a word; else they are recorded there.
 */
enum err up_sets_take(struct cli *c, const struct where *d, struct up_sets *out) MUST_CHECK;
/* What the running services were started with; an absent or broken file is no settings. */
void up_sets_recall(const struct where *d, struct up_sets *out);
void up_sets_fini(struct up_sets *s);

/* Stops all, silently; for an `up` that failed. */
void up_stop_all(const struct where *d, uint64_t deadline_ns, bool keep_memory);
