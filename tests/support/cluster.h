/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster under test: members that run on nodes, faults as one-line events, calls from outside.
 * One interface, two backends, so that one scenario serves both:
 *
 *   CL_SIM   every member in this process, on a virtual clock and a simulated network and disk
 *            (sim.h): thousands of runs a minute, the same seed gives the same run
 *   CL_REAL  every member is a process of the build tree on loopback, in a temporary folder: real
 *            signals, sockets through a proxy that cuts, delays and reorders, a small tmpfs to fill
 *
 *   struct cluster *c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = seed });
 *   cl_add(c, &(struct cl_member_opts){ .name = "echo", .node = "s", .app = &echo_app });
 *   cl_start(c, "echo");
 *   cl_partition(c, "c", "s");
 *   e = cl_call(c, "c", "echo", METHOD_ECHO, body, 500, &reply, &why);
 *   cl_heal(c, "c", "s");
 *   cl_close(c);
 *
 * Names: members are unique in the cluster; a node is a machine, made when first named; so is a
 * node that only calls come from. Wrong names, and faults this backend has not (cl_can), fail the
 * test with the list of events.
 *
 * Every member ends through its own shutdown path, killed ones in the simulator too; cl_close waits
 * for all of them and checks that nothing is left.
 *
 * Thread: the test's.
 */
#pragma once

#include "tests/support/sim.h"

#include "base/buf.h"
#include "rpc/rpc.h"

struct cluster;
struct cl_run;

enum cl_backend { CL_SIM, CL_REAL };

struct cl_opts {
	enum cl_backend backend;
	uint64_t seed; /* CL_REAL: of the schedule alone */
};

/* What a member runs in the simulator: callbacks in its process. */
struct cl_app {
	size_t state_bytes; /* of r->state: zeroed for each run */
	/* An error: nothing is left open; the member is down then, and cl_why says so. */
	enum err (*start)(struct cl_run *r, struct why *why);
	/* End, at once when killed: afterwards cl_run_ended(r), now or later. */
	void (*stop)(struct cl_run *r, bool killed);
};

/* One run of a member, in the simulator. */
struct cl_run {
	struct cluster *cluster;
	struct sim_proc *proc;
	struct loop loop;
	void *state;	  /* the app's */
	void *arg;	  /* cl_member_opts.arg */
	const char *name; /* the member's */
	const char *addr; /* where it listens: sim://NODE/NAME */
	/* private */
	struct cl_member *member;
	struct list node;
	bool started, stopping, ended;
};
/* The app's last word: its loop has nothing expected and no timer any more. */
void cl_run_ended(struct cl_run *r);

struct cl_member_opts {
	const char *name, *node; /* copied */
	/* CL_SIM */
	const struct cl_app *app;
	void *arg;
	/* CL_REAL: a program of the build tree ("services/master/pomelo-master") and its arguments;
	 * "%d" becomes the member's own folder, "%a" the address it is to listen on, "%s" the
	 * secret file, "%m" the address of the member named by `peer` as seen from here. */
	const char *exe;
	const char *const *args; /* NULL-ended */
	const char *peer;
	const char *
		addr; /* where it listens: "ipc://%d/run/agent.sock"; NULL: a path of ours, %a */
};

/* owned, cl_close(). */
struct cluster *cl_open(const struct cl_opts *o);
/* Ends every fault and member. A member that does not end, or leaves something, fails the test. */
void cl_close(struct cluster *c);
void cl_add(struct cluster *c, const struct cl_member_opts *o);
enum cl_backend cl_backend(const struct cluster *c);
/* NULL for CL_REAL. */
struct sim *cl_sim(struct cluster *c);
/* The keys of the cluster; the real one's secret file holds the same. */
const struct keyring *cl_keys(struct cluster *c);

/* ---- time ---- */

uint64_t cl_now_ns(struct cluster *c);
/* Lets ms pass, virtual or real; faults that are due happen. */
void cl_run_ms(struct cluster *c, uint64_t ms);
/* Until pred says true, at most ms. False: it never did. */
bool cl_until(struct cluster *c, bool (*pred)(void *arg), void *arg, uint64_t ms);

/* ---- members ---- */

/* Starts it unless it runs. False, with cl_why: it could not. In the simulator it runs at once. */
bool cl_start(struct cluster *c, const char *name);
/* SIGTERM: its graceful end begins. */
void cl_term(struct cluster *c, const char *name);
/* SIGKILL. */
void cl_kill(struct cluster *c, const char *name);
/* kill if it runs, and start. */
void cl_restart(struct cluster *c, const char *name);
/* SIGSTOP, SIGCONT. */
void cl_stop(struct cluster *c, const char *name);
void cl_cont(struct cluster *c, const char *name);
bool cl_running(struct cluster *c, const char *name);
/* Why the last start of it failed. */
const char *cl_why(struct cluster *c, const char *name);
/* How often it was started. */
uint32_t cl_runs(struct cluster *c, const char *name);
/*
 * When the last fault that touches it ended: of itself, its node, a link of its node, or everywhere;
 * its start is one. UINT64_MAX while one lasts. Clock jumps and drifts are none: nothing may mind them.
 */
uint64_t cl_touched_ns(struct cluster *c, const char *name);
/* Since when it is down or stopped; UINT64_MAX while it runs. */
uint64_t cl_still_since_ns(struct cluster *c, const char *name);
/* The state of its present run; NULL when it is down or in CL_REAL. */
void *cl_state(struct cluster *c, const char *name);
/* Its address as dialed from that node: direct, or the proxy's. Valid until cl_close. */
const char *cl_addr(struct cluster *c, const char *from_node, const char *name);

/* ---- faults: a line each in the list of events ---- */

enum cl_fault {
	CL_PARTITION,
	CL_DELAY,
	CL_REORDER,
	CL_RESET,
	CL_BLACK_HOLE,
	CL_LOSSY,
	CL_DISK_FULL,
	CL_DISK_SLOW,
	CL_POWER_CUT,
	CL_CLOCK_JUMP,
	CL_CLOCK_DRIFT,
	CL_SUSPEND,
	CL_OOM,
};
/* Does this backend have it? CL_REAL lacks BLACK_HOLE, LOSSY, DISK_SLOW, POWER_CUT, CLOCK_JUMP,
 * CLOCK_DRIFT and OOM. */
bool cl_can(const struct cluster *c, enum cl_fault f);

/* Both ways; one way: what `from` sends to `to` does not arrive. */
void cl_partition(struct cluster *c, const char *a, const char *b);
void cl_partition_oneway(struct cluster *c, const char *from, const char *to);
/* a NULL: all. */
void cl_heal(struct cluster *c, const char *a, const char *b);
/* For for_ms everything between the two takes ms more. */
void cl_delay(struct cluster *c, const char *a, const char *b, uint32_t ms, uint32_t for_ms);
/* From now on, everywhere: this share of messages is overtaken; 0 ends it. */
void cl_reorder(struct cluster *c, uint32_t ppm);
/* Resets all connections between the two; b NULL: of a. */
void cl_reset(struct cluster *c, const char *a, const char *b);
void cl_black_hole(struct cluster *c, const char *a, const char *b);
/* From now on, everywhere: messages break their connection, datagrams are lost or doubled. */
void cl_lossy(struct cluster *c, uint32_t break_ppm, uint32_t dgram_loss_ppm,
	      uint32_t dgram_dup_ppm);
void cl_disk_full(struct cluster *c, const char *node, bool full);
/* Each disk call on it takes ms; 0: as before. */
void cl_disk_slow(struct cluster *c, const char *node, uint32_t ms);
/* Its members die and stay down; unsynced data is lost, dropped, torn. */
void cl_power_cut(struct cluster *c, const char *node);
/* The wall clock. */
void cl_clock_jump(struct cluster *c, const char *node, int64_t ms);
void cl_clock_drift(struct cluster *c, const char *node, int32_t ppm);
/* The whole machine stands for ms and its monotonic clock goes on. */
void cl_suspend(struct cluster *c, const char *node, uint32_t ms);
/* The allocations skip..skip+count-1 that the member makes from now fail (sim_alloc.h). */
void cl_oom(struct cluster *c, const char *name, uint64_t skip, uint64_t count);
/* The same of the callers on a node. */
void cl_oom_callers(struct cluster *c, const char *node, uint64_t skip, uint64_t count);

/* ---- chance ---- */

/* How many of each over the whole span, at times, places and lengths the seed picks. */
struct cl_budget {
	uint32_t kill, stop, power_cut, suspend;
	uint32_t partition, oneway, delay, reset, black_hole, lossy, reorder;
	uint32_t clock_jump, clock_drift, disk_full, disk_slow;
	uint32_t min_ms, max_ms; /* a fault that lasts; 0: 50..2000 */
	bool stay_down;		 /* killed members are not started again until cl_calm */
};
/*
 * Schedules the faults of b, as far as cl_can, over the next span_ms. Those that last end by
 * themselves; members come back after min_ms..max_ms.
 *
 * members, nodes  NULL-ended lists of what may be hit; NULL: all
 */
void cl_chaos(struct cluster *c, const struct cl_budget *b, uint64_t span_ms,
	      const char *const *members, const char *const *nodes);
/* Ends every fault there is, drops those to come, starts what is down. */
void cl_calm(struct cluster *c);

/* ---- calls from outside ---- */

/* Which role the caller has; a client of its own for each (node, role, member). */
struct cl_from {
	const char *node;
	enum role role;	    /* ROLE_NONE: admin */
	const char *tenant; /* role client; NULL: "default" */
	const char *holder; /* role holder: its id */
};
/*
 * Calls a member and waits for the end, at most deadline_ms and a little. reply (may be NULL) is
 * cleared and gets the body. Returns what rpc_call.err says.
 */
enum err cl_call(struct cluster *c, struct cl_from from, const char *member, uint32_t method,
		 struct bytes body, uint32_t deadline_ms, struct buf *reply, struct why *why);
/* The client under it, and its loop, for calls that overlap. Valid until cl_close. */
struct rpc_client *cl_client(struct cluster *c, struct cl_from from, const char *member,
			     struct loop **loop);
/* The 16 bytes that its HELLO names it by. Valid until cl_close. */
const uint8_t *cl_instance(struct cluster *c, struct cl_from from, const char *member);
