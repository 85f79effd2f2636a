/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Services of the common shape (svc/svc.h) as members of a simulated cluster. Their log lines are
 * in the list of events; they listen at sim://NODE/NAME, NAME being the member's, and have no HTTP.
 *
 *   static const struct cl_svc agent = { &xfa_def, masters, 1 };
 *   cl_add(c, &(struct cl_member_opts){ .name = "agent", .node = "n1", .app = &cl_svc_app,
 *                                       .arg = (void *)&agent });
 *   struct svc *s = cl_svc_of(c, "agent");
 */
#pragma once

#include "svc/svc.h"
#include "tests/support/cluster.h"

/* A member's arg; borrowed as long as the cluster. */
struct cl_svc {
	const struct svc_def *def;
	const char *const *masters; /* addresses */
	size_t n_masters;
	const char *const *flags; /* "--set", "beat_ms=100", ...; NULL-ended; NULL: none */
	const struct fetch_ops
		*fetch; /* an agent's: fetch_sim.h; NULL: it cannot fetch copies */
	void *fetch_ctx;
};

extern const struct cl_app cl_svc_app;

/* The service of its present run; NULL when it is down, or could not be opened. */
struct svc *cl_svc_of(struct cluster *c, const char *name);

/* The memory that an agent of that name on that node has for its pool: it outlives the agent (L3),
 * not a power cut. Borrowed until cl_close. */
struct pool_backing *cl_svc_backing(struct cluster *c, const char *node, const char *name);
