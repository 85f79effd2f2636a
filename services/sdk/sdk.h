/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside libpomelo. An application's thread makes an operation and hands it through the door; the
 * handle's own thread runs it on its loop and hands it back through a queue or a waiter.
 *
 *   caller: pml_X_start -> op, a slot -> door ─┐
 *                                              ▼
 *   loop:   door_open -> op_run -> rpc_call ... -> op_done -> cq (eventfd) or the waiter
 *
 * I1: an operation completes exactly once: through its queue, its waiter, or silently when it was
 *     freed before.
 * I2: calls under way on a handle never exceed calls_max; in a queue, its depth.
 * I3: after pml_close no thread of the handle runs and no operation is under way.
 * I4: every object begins with a guard: a page that the kernel wipes in a forked child; a wiped one
 *     means ERR_FORKED and nothing else is touched.
 *
 * Threads: the door, operations' states and queues are locked; all else is the loop's.
 */
#pragma once

#include "base/arena.h"
#include "base/conf.h"
#include "base/log.h"
#include "base/where.h"
#include "loop/loop.h"
#include "pml.h"
#include "pml_memory.h"
#include "pml_store.h"
#include "rpc/auth.h"
#include "rpc/rpc.h"
#include "stc.h"
#include "svc/conf_common.def"

#include <pthread.h>
#include <stdatomic.h>

enum {
	SDK_SERVICES = 5,
	SDK_ADMIN = SDK_SERVICES, /* the master, asked as an administrator */
	SDK_ENDS,
	SDK_ADDRS_MAX = 8,
	SDK_CALLS_MAX = 4096,
	SDK_CALLS_TOP = 1 << 20,
	SDK_CQ_DEPTH_MAX = 65536,
	SDK_STATUS_BYTES = 64 << 10, /* decoded lists of one status */
};

/* ---- guard.c ---- */

/* Shared by a handle and all that came from it; counted. */
struct guard;
enum err guard_new(struct guard **out) MUST_CHECK;
struct guard *guard_ref(struct guard *g);
void guard_unref(struct guard *g);
/* False in a forked child. */
bool guard_ok(const struct guard *g);
/* Whose it is, from the opening to the closing: what outlives a handle finds it by this. */
void guard_own(struct guard *g, struct pml *p);
/* The owner, who cannot close until guard_leave; NULL: closed, and there is nothing to leave. */
struct pml *guard_enter(struct guard *g);
void guard_leave(struct guard *g);

/* ---- error.c ---- */

/* Fills out (may be NULL) and returns e. */
int sdk_error(struct pml_error *out, enum err e, uint32_t retry_ms, const char *peer,
	      const char *step, const char *fmt, ...) PRINTF_LIKE(6, 7);
int sdk_error_why(struct pml_error *out, const struct why *why, const char *step);
/* Copies src into dst within both sizes. */
void sdk_error_copy(struct pml_error *dst, const struct pml_error *src);
/* A struct the caller passed: copies what both know, zeroes the rest; false: its size makes no
 * sense. in NULL: all zero. */
bool sdk_opts(void *out, size_t out_size, const void *in);

/* ---- settings ---- */

/* clang-format off */
#define CLIENT_CONF(F) \
	F(addrs, client_masters, "client.masters", "", "", "8", 0, \
	  "addresses of the masters, for clients that take another way than `masters`") \
	F(ms, deadline_ms, "client.deadline_ms", "30000", "1", "86400000", 0, \
	  "time for a call that names none") \
	F(u32, calls_max, "client.calls_max", "4096", "1", "1048576", 0, \
	  "calls of one handle under way at once; more are BUSY") \
	F(u32, snapshot_keys, "client.snapshot_keys", "1048576", "1", "67108864", 0, \
	  "keys in all snapshots of one handle; more are BUSY. Each takes about 300 bytes, and as much again with copies on other hosts") \
	F(enum, verify, "client.verify", "auto", "auto always", "", 0, \
	  "when a get re-hashes what arrived: auto, what comes over a wire or from a disk, or an agent found at its start and has not read yet") \
	F(enum, data_path, "client.data_path", "auto", "auto tcp", "", 0, \
	  "how bytes reach an agent: auto, memory on the same host and data lanes else; tcp, data lanes alone")
/* clang-format on */

struct client_conf {
	SVC_CLUSTER_CONF(CONF_FIELD)
	CLIENT_CONF(CONF_FIELD)
};

extern const struct conf_schema client_schema;

/* conf.c: settings, deadlines and limits of the handle; where, once more, by what the file says. */
enum err sdk_conf_read(struct pml *p, const struct pml_open_opts *o, struct why *why)
	MUST_CHECK;

/* ---- handle ---- */

struct service_end {
	const char *name;
	enum role as;
	struct rpc_client *rpc; /* NULL: not asked yet */
};

struct pml {
	struct guard *guard;
	/* set at open, then read-only */
	struct where where;
	struct conf *conf;
	struct client_conf set;
	char *masters_text;	  /* pml_open_opts.masters as a setting */
	struct conf_list masters; /* of `conf` */
	char tenant[TENANT_MAX + 1];
	uint32_t deadline_ms, calls_max;
	uint8_t instance[16];
	char host[WHERE_HOST_MAX + 1];
	struct keyring *keys;
	struct log log;
	struct log_capture silence;
	pthread_t thread;

	/* lock */
	pthread_mutex_t lock;
	struct list door; /* operations handed in */
	struct list live; /* operations under way, all of them */
	/* buffers.c: by address, under buf_lock; the number is atomic */
	pthread_rwlock_t buf_lock;
	struct pml_buffer **buffers;
	uint32_t n_buffers, cap_buffers;
	struct post door_post;
	bool door_posted, door_shut, closing; /* closing: no new operation */
	uint32_t n_live;

	/* the loop's */
	struct loop loop;
	struct service_end ends[SDK_ENDS];
	struct stc *stc;	       /* NULL: no store call yet */
	uint32_t n_closing, n_running; /* running: sent, not complete */
	uint32_t poll;		       /* not 0: the loop polls before it sleeps (loop_spin) */
	bool linger;		       /* it polls after the last one, too: see sdk_begun */
	uint64_t idle_ns;	       /* since when none is running */
};

/*
 * On the loop: one more is running, one less. While any is, the loop polls. After one that somebody waited
 * for it polls on if that one came within spin_us of the one before: a caller in a loop, whose next call comes
 * sooner than a sleeping thread is awake.
 */
void sdk_begun(struct pml *p, const struct pml_op *op);
void sdk_ended(struct pml *p);

/* ---- operations ---- */

enum op_kind { OP_STATUS, OP_ECHO, OP_FORGET, OP_FLOW, OP_STORE };

/* An operation that is more than one call (OP_FLOW). The loop's thread, but for free. */
struct op_flow {
	void (*run)(struct pml_op *op); /* ends in op_complete, later */
	/* End soon, with e; closing: without another call. */
	void (*stop)(struct pml_op *op, enum err e, bool closing);
	void (*free)(void *state); /* any thread; the operation has completed or never ran */
};

/* One request of an operation. */
struct part {
	struct pml_op *op;
	int service; /* index into pml.ends */
	struct rpc_call call;
	bool sent;
	struct buf body; /* request; then kept until the call is done */
	/* results */
	struct pml_error error;
	struct buf reply; /* echo: the bytes */
	struct arena arena;
	struct pml_service_status status; /* texts in arena */
};

struct pml_op {
	struct guard *guard;
	struct pml *p;	   /* valid until it has completed */
	struct pml_cq *cq; /* NULL: a waiter, or nobody */
	void *user;
	enum op_kind kind;
	const struct op_flow *flow; /* OP_FLOW */
	void *state;		    /* the flow's */
	uint64_t deadline_ns;

	struct list door_node, live_node; /* under the lock of p */

	/* its own lock, taken before p's and the queue's */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done, orphan; /* orphan: freed by its owner while under way */
	bool cancelled;	   /* atomic: see op_cancel_users */
	uint64_t spin_ns;  /* a waiter looks for so long before it sleeps */
	struct list cq_node;
	bool collected; /* taken from its queue; under the queue's lock */

	struct pml_error error;
	bool running;	   /* was sent; the loop's */
	bool told;	   /* a flow knows that the handle is being closed; the loop's */
	struct sop *store; /* OP_STORE */
	uint32_t n_left;   /* parts not ended; the loop's */
	uint32_t n_parts;
	struct part parts[];
};

/* op.c. The caller fills parts' service and body, then op_submit; on an error it is freed. */
enum err op_new(struct pml *p, enum op_kind kind, uint32_t n_parts, struct pml_op **out);
int op_submit(struct pml_op *op, const struct pml_call_opts *o, struct pml_cq *cq, void *user,
	      struct pml_error *err);
/* Loop thread: it lay at the door: it is sent, or its cancel passed on. */
void op_step(struct pml_op *op);
/* Loop thread: it has ended; its owner, or a queue, has it from here on. */
void op_complete(struct pml_op *op);
/* Loop thread: ends it with e before it was sent. */
void op_end_unrun(struct pml_op *op, enum err e, const char *text);
/* Any thread: waits until it is over. */
void op_wait(struct pml_op *op);
/* Of a plain form: waits, and gives its error. */
int op_wait_for(struct pml_op *op, struct pml_error *err);
void op_destroy(struct pml_op *op);
/* Any thread: operations under way that hold this buffer are cancelled. */
void op_cancel_users(struct pml *p, const struct pml_buffer *b);
/* Has it completed? A code of BUSY may be how it ended. */
bool op_over(const struct pml_op *op);
/* Is this op usable here? PML_ERR_NONE or the error to return. */
int op_usable(const struct pml_op *op);

/* cq.c */
enum err cq_take_slot(struct pml_cq *cq); /* ERR_BUSY at its depth */
void cq_drop_slot(struct pml_cq *cq); /* for an op that was never submitted or is an orphan */
void cq_push(struct pml_cq *cq, struct pml_op *op);
/* Takes it out again unless somebody has collected it. */
void cq_pull(struct pml_cq *cq, struct pml_op *op);
bool cq_is_of(const struct pml_cq *cq, const struct pml *p);

/* client.c */
int sdk_usable(const struct pml *p, struct pml_error *err);
/* guard_enter, or PML_ERR_FORKED, PML_ERR_CLOSED. */
int sdk_enter(struct guard *g, struct pml **out, struct pml_error *err);
/* The options of a call, checked; o may be NULL. */
int sdk_call_opts(struct pml_call_opts *out, const struct pml_call_opts *o,
		  struct pml_error *err);
/* "master" -> 0; -1: no such service. */
int sdk_service(const char *name);
/* Loop thread: the client of a service, made by need. */
enum err sdk_end(struct pml *p, int service, struct rpc_client **out, struct why *why);
/* Any thread: work for the loop lies at the door. Under p->lock. */
void sdk_knock(struct pml *p);

/* store*.c: an operation that is a call of the store session */
struct sop;
void sop_run(struct pml_op *op);
void sop_cancel(struct pml_op *op);
/* It ends with e and never began: so do its items. */
void sop_unrun(struct sop *s, enum err e);
void sop_free(struct sop *s);
/* Buffers of the caller are in it: freeing it waits for its end. */
bool sop_has_buffers(const struct pml_op *op);

/* endpoints.c: addresses of a service, at most SDK_ADDRS_MAX; owned texts. */
size_t endpoints_of(const struct pml *p, const char *service, char *addrs[SDK_ADDRS_MAX]);
/* The rpc addresses of a service in a run/endpoints.json. Pure. */
size_t endpoints_parse(struct bytes text, const char *service, char *addrs[SDK_ADDRS_MAX]);
