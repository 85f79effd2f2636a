/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpomelo: what an application links to reach a Pomelo cluster. C and C++.
 *
 *	struct pml *p;
 *	struct pml_error err = PML_ERROR_INIT;
 *	if (pml_open(NULL, &p, &err) != PML_ERR_NONE)
 *		die("%s (peer %s, step %s)", err.text, err.peer, err.step);
 *	pml_echo(p, "master", "hello", 5, out, sizeof(out), &n, NULL, &err);
 *	pml_close(p);
 *
 * Each call has two forms. The plain one waits. The one that ends in _start returns at once; its
 * result comes through a completion queue, whose descriptor fits any poll, epoll or event loop:
 *
 *	pml_cq_new(p, 64, &cq, &err);
 *	pml_echo_start(p, "master", "hello", 5, NULL, cq, my_ptr, &op, &err);
 *	... pml_cq_fd(cq) is readable ...
 *	while ((n = pml_cq_poll(cq, ops, 16)) > 0)
 *		for each: pml_op_code(op), pml_op_user(op), pml_op_bytes(op, &n); pml_op_free(op);
 *
 * Results: functions that can fail return an error number (pml_errors.h), PML_ERR_NONE (0) when all
 * went well; with `struct pml_error *err` not NULL they fill it on failure. Nothing is written
 * through other pointers on failure.
 *
 * Time: every call ends by its deadline, with an error that names the peer and the step.
 *
 * Threads: every function may be called from any thread, on the same handle too; only pml_close,
 * pml_cq_free and pml_op_free must be the last call on their object. The handle has one thread of its
 * own, which blocks all signals and calls nothing of yours.
 *
 * Process: no signal handler, no atexit handler, no exit, no abort on what peers, files or memory do.
 *
 * fork: in a child every function on a handle of the parent returns PML_ERR_FORKED and does nothing;
 * the parent's handle is undisturbed. The child opens its own.
 *
 * ABI: handles are opaque; structs you pass begin with their size, so a library that knows more
 * fields works with a program that knows fewer, and the other way round; symbols are versioned.
 * Zero a struct with its _INIT, or set size to sizeof and the rest to 0.
 */
#ifndef POMELO_PML_H
#define POMELO_PML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pml_errors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PML_API __attribute__((visibility("default")))

#define PML_DIMS_MAX 32 /* of a region of strided memory */

struct pml;    /* a connection to a cluster */
struct pml_cq; /* completion queue */
struct pml_op; /* one call under way or done */

/* ---- errors ---- */

/* Why a call failed. Texts end in NUL. */
struct pml_error {
	size_t size;
	int code;	   /* PML_ERR_*; numbers of newer releases may come */
	uint32_t retry_ms; /* when to try again; 0: no hint */
	char peer[64];	   /* "master"; "" when no peer was asked */
	char step[64];	   /* what was being done: "connect", "wait for the answer" */
	char text[320];	   /* one line for a person: what, where, what to do */
};
#define PML_ERROR_INIT                                        \
	{                                                     \
		sizeof(struct pml_error), 0, 0, { 0 }, { 0 }, \
		{                                             \
			0                                     \
		}                                             \
	}

/* "TIMED_OUT"; "UNKNOWN" for a number this release does not know. Static. */
PML_API const char *pml_error_name(int code);
/* One line that says what it means and what to do. Static. */
PML_API const char *pml_error_text(int code);
/* May the same call be tried again, here or elsewhere? */
PML_API bool pml_error_retryable(int code);

/* ---- what this library is ---- */

/* "0.1.0". Static. */
PML_API const char *pml_version(void);
/* Is there a feature of this name? "status" "echo" "cq" "cancel" "fork" "ep" "weights" "plan_remote"
 * "store" "regions" "tensors" "buffers" "snapshots" "tasks"; false for all it does not know. */
PML_API bool pml_has(const char *feature);

/* ---- handle ---- */

struct pml_open_opts {
	size_t size;
	const char *data;    /* data folder; NULL: POMELO_DATA, else the default one */
	const char *run_dir; /* folder of its sockets; NULL: POMELO_RUN_DIR, else DATA/run */
	const char
		*masters; /* "tcp://a:17600,tcp://b:17600"; NULL: client.masters, else local */
	const char *
		secret_file; /* cluster secret or a derived client key; NULL: POMELO_SECRET_FILE,
				    else DATA/secret */
	const char *tenant;  /* NULL: "default" */
	uint32_t deadline_ms; /* of calls that name none; 0: client.deadline_ms (30 s) */
	uint32_t calls_max;   /* under way at once; more are BUSY; 0: client.calls_max (4096) */
	uint32_t reserved;    /* 0 */
};
#define PML_OPEN_OPTS_INIT                                           \
	{                                                            \
		sizeof(struct pml_open_opts), 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * Makes a handle. Reads settings, environment and secret; connects with the first call, so a cluster
 * that is down is no error here.
 *
 * o    NULL: all defaults
 * out  yours, pml_close()
 *
 * INVALID_PARAMS  an option or setting; NOT_FOUND, FORBIDDEN, CORRUPT the secret file; NO_MEMORY
 */
PML_API int pml_open(const struct pml_open_opts *o, struct pml **out, struct pml_error *err);
/*
 * Ends it: calls under way end with PML_ERR_CLOSED (they arrive in their queues, or return), then the
 * thread is joined. Operations and queues stay valid until they are freed. NULL is fine.
 */
PML_API int pml_close(struct pml *p);

/* ---- completion queues ---- */

/* depth: calls that may be under way or uncollected at once, 1..65536; more are BUSY. */
PML_API int pml_cq_new(struct pml *p, uint32_t depth, struct pml_cq **out,
		       struct pml_error *err);
/* Readable while a completion waits. Never read it; poll only. Closed by pml_cq_free. */
PML_API int pml_cq_fd(const struct pml_cq *cq);
/* Takes up to max completed operations, oldest first; never waits. 0 also in a forked child. */
PML_API size_t pml_cq_poll(struct pml_cq *cq, struct pml_op **ops, size_t max);
/* The same, waiting up to wait_ms for the first. */
PML_API size_t pml_cq_wait(struct pml_cq *cq, struct pml_op **ops, size_t max,
			   uint32_t wait_ms);
/* BUSY while calls are under way or uncollected; then nothing happened. NULL is fine. */
PML_API int pml_cq_free(struct pml_cq *cq);

/* ---- operations ---- */

/* PML_ERR_BUSY while it is under way, then its result. */
PML_API int pml_op_code(const struct pml_op *op);
/* The user pointer of its start. */
PML_API void *pml_op_user(const struct pml_op *op);
/* Why it failed; out->size is set by the caller. NOT_READY while under way. */
PML_API int pml_op_error(const struct pml_op *op, struct pml_error *out);
/* Asks it to end: it completes with CANCELLED unless its result is on the way already. */
PML_API int pml_op_cancel(struct pml_op *op);
/* Frees it. Under way: it is cancelled, and freed when it ends, without a completion; one that has
 * buffers of yours is waited for. Done and not collected yet: it leaves its queue. NULL is fine. */
PML_API int pml_op_free(struct pml_op *op);

struct pml_call_opts {
	size_t size;
	uint32_t deadline_ms; /* 0: the handle's */
	uint32_t reserved;    /* 0 */
};
#define PML_CALL_OPTS_INIT                         \
	{                                          \
		sizeof(struct pml_call_opts), 0, 0 \
	}

/* ---- status ---- */

/* One service. Texts are borrowed from the operation. */
struct pml_service_status {
	size_t size;
	int code; /* PML_ERR_NONE, or why it could not be asked */
	int pid;
	const char *name;     /* "master" "agent" "owner" "planner" "pg" */
	const char *instance; /* 32 hex digits: one run of the process */
	const char *release;
	const char *http;	/* "127.0.0.1:17610" */
	const char *const *rpc; /* n_rpc addresses */
	size_t n_rpc;
	const char *const *reasons; /* n_reasons texts: why it is not ready */
	size_t n_reasons;
	uint64_t uptime_ms, rss_bytes, term;
	bool ready, draining;
	const char *error; /* with code: one line; else "" */
};
#define PML_SERVICE_STATUS_INIT                                                           \
	{                                                                                 \
		sizeof(struct pml_service_status), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
			false, false, 0                                                   \
	}

/*
 * Asks services how they are. The call itself succeeds when every one was asked; what came of it is
 * in each item.
 *
 * service  one name, or NULL for all five
 * out      yours, pml_op_free(); pml_op_n_status() items
 */
PML_API int pml_status(struct pml *p, const char *service, const struct pml_call_opts *o,
		       struct pml_op **out, struct pml_error *err);
PML_API int pml_status_start(struct pml *p, const char *service, const struct pml_call_opts *o,
			     struct pml_cq *cq, void *user, struct pml_op **out,
			     struct pml_error *err);
PML_API size_t pml_op_n_status(const struct pml_op *op);
/* out->size is set by the caller. INVALID_PARAMS: no such item, or no status. */
PML_API int pml_op_status(const struct pml_op *op, size_t i, struct pml_service_status *out);

/* ---- echo: bytes to a service and back, for tests of the way ---- */

#define PML_ECHO_MAX (4u << 20) /* bytes */

/* out: cap bytes of yours; *n_out bytes came back. TOO_LARGE: over PML_ECHO_MAX or cap. */
PML_API int pml_echo(struct pml *p, const char *service, const void *data, size_t n, void *out,
		     size_t cap, size_t *n_out, const struct pml_call_opts *o,
		     struct pml_error *err);
/* data is copied. park_ms: how long the service waits before it answers. */
PML_API int pml_echo_start(struct pml *p, const char *service, const void *data, size_t n,
			   uint32_t park_ms, const struct pml_call_opts *o, struct pml_cq *cq,
			   void *user, struct pml_op **out, struct pml_error *err);
/* What came back, borrowed from the operation; NULL when it failed or is no echo. */
PML_API const void *pml_op_bytes(const struct pml_op *op, size_t *n);

#ifdef __cplusplus
}
#endif
#endif
