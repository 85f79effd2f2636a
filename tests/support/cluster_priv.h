/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the cluster share: cluster.c (members, time, calls), cluster_chaos.c,
 * cluster_sim.c, cluster_real.c. Not for tests.
 */
#pragma once

#include "tests/support/cluster.h"

#include "base/heap.h"

#define CL_NAME_MAX 31
#define CL_ADDR_MAX 160
#define CL_CUTS_MAX 256
/* What was held back by a fault arrives this much later at most. */
#define CL_AFTER_MS 2000

struct cl_node {
	struct list node; /* cluster.nodes */
	char name[CL_NAME_MAX + 1];
	uint64_t touched_ns; /* until when a fault on it lasts, cuts apart */
	void *impl;	     /* the backend's */
};

struct cl_member {
	struct list node; /* cluster.members */
	char name[CL_NAME_MAX + 1];
	struct cl_node *on;
	struct cl_member_opts o;
	char addr[CL_ADDR_MAX];
	char why[400];
	uint32_t n_runs;
	bool up;		       /* runs, or is stopped */
	uint64_t touched_ns, still_ns; /* cl_touched_ns, cl_still_since_ns */
	void *impl;		       /* the backend's: the present run or process */
};

/* A client of somebody outside. */
struct cl_client {
	struct list node; /* cluster.clients */
	struct cl_node *from;
	struct cl_member *to;
	enum role role;
	char tenant[65], addr[CL_ADDR_MAX];
	char holder[HOLDER_MAX + 1];
	struct rpc_client *rpc;
	struct loop *loop;
	uint8_t instance[16];
	bool closed;
};

/* CL_REAL: a door of the proxy. */
struct cl_route {
	struct cl_route *next;
	struct cl_node *from;
	struct cl_member *to;
	char addr[CL_ADDR_MAX];
};

struct cl_action {
	struct heap_node at;
	void (*fn)(struct cluster *c, struct cl_action *a);
	struct cl_member *m;
	const char *a, *b; /* names of nodes */
	uint64_t n;
	uint32_t lasts_ms;
};

/* A backend. Names are resolved, events are listed already; what it has not is never called. */
struct cl_ops {
	uint32_t can; /* bits of 1 << enum cl_fault */
	void (*open)(struct cluster *c);
	void (*close)(struct cluster *c);
	void (*node_add)(struct cluster *c, struct cl_node *n);
	void (*member_add)(struct cluster *c, struct cl_member *m);
	uint64_t (*now_ns)(struct cluster *c);
	/* Runs until pred, or to until_ns. pred may be NULL. */
	bool (*run)(struct cluster *c, bool (*pred)(void *arg), void *arg, uint64_t until_ns);
	bool (*start)(struct cluster *c, struct cl_member *m);
	void (*term)(struct cluster *c, struct cl_member *m);
	void (*kill)(struct cluster *c, struct cl_member *m);
	void (*stop)(struct cluster *c, struct cl_member *m);
	void (*cont)(struct cluster *c, struct cl_member *m);
	void (*note)(struct cluster *c, const char *text);
	const char *(*addr)(struct cluster *c, struct cl_node *from, struct cl_member *to);
	/* The loop callers on that node use. */
	struct loop *(*loop)(struct cluster *c, struct cl_node *n);
	/* fn(arg) on that loop's thread, now. */
	void (*run_in)(struct cluster *c, struct cl_node *n, void (*fn)(void *arg), void *arg);
	void (*cut)(struct cluster *c, struct cl_node *from, struct cl_node *to);
	void (*heal)(struct cluster *c, struct cl_node *a,
		     struct cl_node *b); /* NULL, NULL: all */
	void (*delay)(struct cluster *c, struct cl_node *from, struct cl_node *to, uint32_t ms,
		      uint32_t for_ms);
	void (*reorder)(struct cluster *c, uint32_t ppm);
	void (*reset)(struct cluster *c, struct cl_node *a, struct cl_node *b);
	void (*black_hole)(struct cluster *c, struct cl_node *a, struct cl_node *b);
	void (*lossy)(struct cluster *c, uint32_t break_ppm, uint32_t loss_ppm,
		      uint32_t dup_ppm);
	void (*disk_full)(struct cluster *c, struct cl_node *n, bool full);
	void (*disk_slow)(struct cluster *c, struct cl_node *n, uint32_t ms);
	void (*power_cut)(struct cluster *c, struct cl_node *n);
	void (*clock_jump)(struct cluster *c, struct cl_node *n, int64_t ms);
	void (*clock_drift)(struct cluster *c, struct cl_node *n, int32_t ppm);
	void (*suspend)(struct cluster *c, struct cl_node *n, uint32_t ms);
	void (*oom)(struct cluster *c, struct cl_member *m, uint64_t skip, uint64_t count);
	void (*oom_callers)(struct cluster *c, struct cl_node *n, uint64_t skip,
			    uint64_t count);
};

struct cluster {
	const struct cl_ops *ops;
	struct cl_opts o;
	struct sim_rng rng;
	struct list nodes, members, clients;
	struct heap actions;
	struct cl_route *routes;
	struct {
		struct cl_node *from, *to;
	} cuts[CL_CUTS_MAX]; /* that last */
	size_t n_cuts;
	bool lossy, reordering;
	uint64_t touched_ns; /* all of it */
	struct keyring *keys;
	struct log log;
	struct log_capture capture;
	void *impl; /* the backend's */
};

extern const struct cl_ops cl_ops_sim, cl_ops_real;

struct cl_node *cl_node_of(struct cluster *c, const char *name);
struct cl_member *cl_member_of(struct cluster *c, const char *name);
/* It ended by itself, or as asked. */
void cl_member_ended(struct cluster *c, struct cl_member *m);
void cl_note(struct cluster *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Takes a for itself; freed after fn. */
void cl_later(struct cluster *c, uint64_t at_ns, const struct cl_action *a);
/* Drops every action. */
void cl_forget(struct cluster *c);
