/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent as a whole: the shell (svc/svc.h) and what README.md says it owns. One file a part:
 *
 *   memory.c   the pool: found, opened on a worker, touched in slices
 *   link.c     the connection to the master; REGISTER
 *   command.c  what the master orders: ADOPT INVENTORY RETIRE FREE MARK FENCE
 *   commit.c   COMMIT of a client
 *   ask.c      PUBLISH and CONFIRM in batches
 *   report.c   the sweep over fenced writers; REPORT
 *   verify.c   payload of re-adopted objects, in the background
 *   data.c data_thread.c   data lanes (data.h)
 *   copy.c pull.c source.c   copies from other holders (pull.h)
 *
 * Decisions are hold.h's; these bring messages. Thread: the loop's, but for jobs.
 */
#pragma once

#include <stdatomic.h>

#include "base/map.h"
#include "loop/pool.h"
#include "rpc/ticket.h"
#include "store/hold.h"
#include "store/shmsock.h"
#include "svc/svc.h"

#include "data.h"
#include "pull.h"

#include "conf.def"
#include "metrics.def"

enum { AGENT_METRICS(METRIC_ENUM) };

#define XFA_ITEMS_MAX 4096 /* of a request, design.md section 6 */

struct xfa;

/* ---- memory.c ---- */

struct xfa_slice {
	struct job job;
	struct xfa *x;
	uint32_t segment, slice;
	struct why why;
	bool taken;
};

struct xfa_memory {
	char dir[PATH_BYTES_MAX]; /* "" in a simulation */
	struct pool_backing *own; /* the folder; NULL in a simulation */
	struct mempool_opts opts;
	uint64_t bytes; /* wanted, all segments */
	struct mempool_start start;
	struct job open;
	struct why why; /* of the open */
	struct mempool *opening;
	struct hold *hold;
	/* slices */
	uint8_t *state; /* of each, place by place: memory.c */
	uint32_t n_places, n_slices, n_done, next;
	struct xfa_slice *jobs; /* a worker each */
	uint32_t n_jobs;
	struct timer again;
	struct why slice_why; /* the last failure; cleared by a success */
};

/* Settings and place, looked at. The errors of pool_folder_*; ERR_INVALID_PARAMS: too small (why). */
enum err xfa_memory_find(struct xfa *x, struct why *why) MUST_CHECK;
/* Opens the pool on a worker; xfa_opened() follows, or svc_fail(). */
void xfa_memory_begin(struct xfa *x);
/* No job runs any more: the pool is closed, its files stay (L3). */
void xfa_memory_close(struct xfa *x);
void xfa_memory_reasons(const struct xfa *x, struct svc_reasons *r);
/* Ready and total, over all segments. */
struct mempool_segment xfa_memory_bytes(const struct xfa *x);
/* As messages have them; out has room for MEMPOOL_SEGMENTS_MAX. */
size_t xfa_memory_segments(const struct xfa *x, struct msg_segment *out);

/* ---- size.c: pure but for what it reads ---- */

/* A quarter of the smaller of both, in whole MiB, at least 64 MiB. 0: not known, no limit. */
uint64_t xfa_default_bytes(uint64_t ram, uint64_t cgroup);
/* The least memory limit of our cgroup and those above it; 0: none. root is "" or a test's. */
uint64_t xfa_cgroup_bytes(const char *root);
uint64_t xfa_ram_bytes(void);
/* NUMA nodes, at least 1. */
uint32_t xfa_numa_nodes(const char *root);
/* The calling thread's new memory comes from that node where there is some left. */
void xfa_numa_prefer(uint32_t node);
void xfa_numa_any(void);

/* ---- link.c ---- */

struct xfa_link {
	struct rpc_client *client;
	struct rpc_call call;
	struct buf body;
	struct timer timer;
	bool busy;  /* a REGISTER is under way */
	bool again; /* something changed meanwhile */
	bool stopped, adopted;
	bool old_master;	/* C1: it knows no REGISTER and takes no objects */
	uint64_t term;		/* the master's, from its last answer */
	uint32_t failed, asked; /* in a row: failures, answers that say not adopted */
	uint64_t sent_ns;	/* the last REGISTER */
	struct why why;		/* the last failure; cleared by an answer */
};

enum err xfa_link_open(struct xfa *x, struct why *why) MUST_CHECK;
void xfa_link_stop(struct xfa *x);
/* closed runs later, always. */
void xfa_link_close(struct xfa *x, void (*closed)(void *arg), void *arg);
/* REGISTER soon: something changed. */
void xfa_link_tell(struct xfa *x);
/* The master's answer does not fit what we know: REGISTER, but not for each such answer. */
void xfa_link_doubt(struct xfa *x);
/* An adoption took place. */
void xfa_link_adopted(struct xfa *x, uint64_t term);
/* The epoch has changed: a REGISTER that is under way tells the old one, and a master that reads it now
 * would adopt once more. */
void xfa_link_overtaken(struct xfa *x);
void xfa_link_reasons(const struct xfa *x, struct svc_reasons *r);

/* ---- ask.c ---- */

enum xfa_ask_kind { XFA_PUBLISH, XFA_CONFIRM, XFA_ASK_KINDS };

/* Somebody who waits for the answer about one version; in the caller's memory. */
struct xfa_wait {
	void (*done)(struct xfa_wait *w); /* later, once; w is free then */
	enum err err;
	uint32_t retry_ms;
	uint32_t made; /* PUBLISH: copies there are; 0: the master did not say */
	/* private */
	struct list node;
	void *on;	/* struct question */
	struct why why; /* why.text: only as far as why.err says so */
};

struct xfa_asks { /* one kind */
	struct xfa *x;
	enum xfa_ask_kind kind;
	struct map by_version;
	struct list queue; /* to be sent, in order */
	struct list later; /* likewise, when the timer says so */
	uint32_t n_calls;
	struct post post;
	bool posted, stopped;
	struct timer again;
};

void xfa_asks_init(struct xfa *x);
/*
 * PUBLISH: the slot is published, and marked so; CONFIRM: the version is open. One question a version:
 * who comes later waits for the same answer. Goes out with this turn's others; asked again until there
 * is an answer, as long as anybody waits.
 *
 * ERR_BUSY  commits_max wait already     ERR_NO_MEMORY
 */
enum err xfa_ask(struct xfa *x, enum xfa_ask_kind k, uint32_t shard, const struct hold_slot *s,
		 struct xfa_wait *w) MUST_CHECK;
/* w waits no more; done does not run. w->why: what the master said last, if it said anything. */
void xfa_ask_drop(struct xfa_wait *w);
/* What was refused may be asked again at once: the pool was adopted. */
void xfa_asks_kick(struct xfa *x);
/* Shutdown: who waits gets ERR_SHUTTING_DOWN; calls end with the link. */
void xfa_asks_stop(struct xfa *x);
void xfa_asks_fini(struct xfa *x);

/* ---- report.c ---- */

struct xfa_bad { /* a slot that verify.c retired */
	struct hold_slot at;
	uint32_t shard;
	uint64_t due_ns; /* to be said again */
};
struct xfa_fenced {
	uint32_t shard;
	uint64_t version, pool_epoch; /* found free under it */
};

struct xfa_failed { /* a copy that was given up */
	uint32_t shard;
	uint64_t version, pool_epoch, attempt;
	enum err err;
	char text[200], source[65];
};

struct xfa_report {
	struct timer sweep;
	struct xfa_fenced *fenced;
	struct xfa_bad *bad;
	struct xfa_failed *failed;
	size_t n_fenced, cap_fenced, n_bad, cap_bad, n_failed, cap_failed;
	struct rpc_call call;
	struct buf body;
	bool busy, stopped, loud;
	uint32_t shard;		      /* of the call */
	size_t n_sent, n_sent_failed; /* fenced and failed ones in it */
	uint64_t retry_ns;
};

void xfa_report_start(struct xfa *x);
/* hold_opts.fenced */
void xfa_report_fenced(void *ctx, uint32_t shard, uint64_t version);
void xfa_report_bad(struct xfa *x, uint32_t shard, const struct hold_slot *s);
/* A copy was given up; nothing writes into its range any more. m is copied. */
void xfa_report_failed(struct xfa *x, uint32_t shard, const struct msg_copy_fail *m);
/* Ranges under an older epoch are in no inventory any more. */
void xfa_report_adopted(struct xfa *x, const struct hold_under *u);
/* FENCE left a range in quarantine: look soon. */
void xfa_report_sweep_soon(struct xfa *x);
void xfa_report_stop(struct xfa *x);
void xfa_report_fini(struct xfa *x);

/* ---- verify.c ---- */

#define XFA_VERIFY_N	 64
#define XFA_VERIFY_BYTES (64ull << 20) /* read in one job */

struct xfa_verify {
	struct job job;
	struct timer pause;
	struct hold_verify items[XFA_VERIFY_N];
	uint64_t sums[XFA_VERIFY_N];
	enum err errs[XFA_VERIFY_N];
	size_t n;
	uint64_t cursor, at; /* at: bytes read of an object that takes several jobs */
	struct sum_stream *stream;
	uint64_t began_ns;
	bool running, stopped, over;
};

void xfa_verify_start(struct xfa *x);
/* Something is in doubt anew. */
void xfa_verify_again(struct xfa *x);
void xfa_verify_stop(struct xfa *x);
void xfa_verify_fini(struct xfa *x);

/* ---- commit.c, command.c, copy.c ---- */

enum xfa_cmd {
	XFA_CMD_ADOPT,
	XFA_CMD_INVENTORY,
	XFA_CMD_RETIRE,
	XFA_CMD_FREE,
	XFA_CMD_MARK,
	XFA_CMD_FENCE,
	XFA_CMD_COPY
};
void xfa_count_command(struct xfa *x, enum xfa_cmd what, uint64_t n);
/* V9: what a command was given under, as it is now. ERR_STALE_TERM, ERR_STALE_EPOCH, ERR_BAD_MESSAGE,
 * ERR_INVALID_PARAMS; counted. */
enum err xfa_under(struct xfa *x, const struct msg_under *u, struct hold_under *out,
		   struct why *why) MUST_CHECK;
void xfa_on_commit(void *ctx, struct rpc_req *r);
void xfa_on_copy(void *ctx, struct rpc_req *r);
void xfa_on_adopt(void *ctx, struct rpc_req *r);
void xfa_on_inventory(void *ctx, struct rpc_req *r);
void xfa_on_retire(void *ctx, struct rpc_req *r);
void xfa_on_free(void *ctx, struct rpc_req *r);
void xfa_on_mark(void *ctx, struct rpc_req *r);
void xfa_on_fence(void *ctx, struct rpc_req *r);

/* ---- the whole ---- */

struct xfa {
	struct svc svc; /* first: svc.h */
	AGENT_CONF(CONF_FIELD)
	char host[65], fd_path[108];
	struct xfa_memory memory;
	struct mempool *pool; /* NULL until it is open */
	struct hold *hold;    /* likewise */
	struct ticket_key *tickets;
	struct shmsock *sock;
	struct pool_lane
		*lanes;	       /* hazard records: data_conns_max, then pulls_max; the pool's */
	struct xfa_data *data; /* NULL: no data lanes */
	struct xfa_pulls pulls;
	struct xfa_link link;
	struct xfa_asks asks[XFA_ASK_KINDS];
	struct xfa_report report;
	struct xfa_verify verify;
	_Atomic uint64_t epoch; /* of shard 0, for the beat's thread */
	uint32_t n_jobs;	/* of ours that have not ended */
	bool closing;
	uint32_t ends; /* still to come while closing */
};

static inline struct xfa *xfa_of(struct svc *s)
{
	return container_of(s, struct xfa, svc);
}

extern const struct svc_def xfa_def;

/* memory.c has opened pool and hold: the rest begins. */
void xfa_opened(struct xfa *x);
/* A job of ours has ended; the close may have waited for it. */
void xfa_job_ended(struct xfa *x);
/* Answers r unless the pool is open and the body decodes: false then. */
bool xfa_ready(struct xfa *x, struct rpc_req *r);
