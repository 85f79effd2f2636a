/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one shape of the five services: settings, folder, keys, request server, HTTP, beats, ops,
 * drain. A service is a `struct svc_def` (rows and hooks) and a struct whose first member is
 * `struct svc`; its main.c calls svc_main() and nothing else.
 *
 * Any number of services may be open in one process, on one loop or several, on the real clock
 * or a simulated one: all state is in struct svc, there are no globals (style.md section 2).
 *
 * Life: svc_open -> running -> svc_stop -> (ops drain, producers end, files flushed, handles
 * closed) -> env.closed. The order is style.md section 3's; svc.c numbers its steps.
 *
 * I1: each request accepted is answered, or fails with an error of err.h, before `closed` runs.
 * I2: svc_open either opens all of it or leaves nothing behind (no file, no handle, no thread).
 * I3: the instance (random 128 bits) names this run alone; nothing of an older run carries it (L2).
 * I4: after `closed`, the loop's expected count is what it was before svc_open.
 *
 * Thread: the loop's, everything.
 */
#pragma once

#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "loop/op.h"
#include "rpc/rpc.h"

struct conf_row;
struct metric_row;
struct pool;
struct svc;
struct svc_reasons;
struct beat_net;
struct buf;

/* What a service is. One static const object each; borrowed for ever. */
struct svc_def {
	const char *name;  /* "master": settings prefix, run/NAME.sock, svc= in the log */
	const char *exe;   /* "pomelo-master" */
	const char *about; /* one line for --help */
	uint16_t
		http_port; /* default (answers.md); taken and not set explicitly: any free one */
	enum role role; /* what it is to peers: ROLE_SERVICE, or ROLE_HOLDER for agent, owner */
	size_t size;	/* of the struct that begins with struct svc */

	const struct conf_row *conf; /* rows of conf.def; values go to conf_values */
	size_t n_conf;
	size_t conf_offset;	      /* of the values' struct, within the service's struct */
	const struct svc_flag *flags; /* command-line names beside ours */
	size_t n_flags;
	const struct rpc_method *methods; /* ctx NULL: the shell passes struct svc * */
	size_t n_methods;
	const struct metric_row *metrics;
	size_t n_metrics;

	/* Any hook may be NULL. */
	/* Settings are read, the folder is ours, keys and pool exist, nothing listens yet. On an
	 * error open has undone its own work. Long work goes on behind a reason of `reasons`. */
	enum err (*open)(struct svc *s, struct why *why);
	/* Shutdown began: no new background work; park lists may be answered now. */
	void (*drain)(struct svc *s);
	/* All ops have ended. Flush and end producers, then call svc_closed(s), now or later. */
	void (*close)(struct svc *s);
	/* Each svc_reason() keeps /readyz at 503. Asked often; cheap. */
	void (*reasons)(struct svc *s, struct svc_reasons *r);
	/* The term in replies and STATUS; 0 without. */
	uint64_t (*term)(const struct svc *s);
	/* Fencing number of the agent's writers, for the beat; 0 without. */
	uint64_t (*pool_epoch)(const struct svc *s);
};

/* A flag that stands for a setting: { "rpc_port", "master.listen", "tcp://127.0.0.1:%s" }. */
struct svc_flag {
	const char *flag, *setting;
	const char *value; /* format with one %s, or the value of a bare switch */
	bool takes_value;
};

/* Where a service runs. Zeroed fields mean a daemon's defaults; borrowed for svc_open only,
 * unless said otherwise. */
struct svc_env {
	struct loop *loop; /* borrowed until closed */
	int argc;	   /* as a daemon gets them, argv[0] included; 0 for none */
	char *const *argv;
	char *const *environ; /* "POMELO_X=v" lines, NULL-ended; NULL: none is read */

	/* A simulation sets the rest; NULL or 0: the real thing. */
	const char *engine;	   /* rpc engine: "sim" */
	const char *const *listen; /* replaces run/NAME.sock and NAME.listen */
	size_t n_listen;
	const char *const *masters; /* replaces run/master.sock and `masters` */
	size_t n_masters;
	const struct keyring *keys; /* borrowed until closed; else the secret file is read */
	const struct beat_net *beat_net; /* borrowed until closed; else threads and datagrams */
	bool no_http;
	void (*random)(void *ctx, void *p, size_t n); /* else getrandom() */
	void *random_ctx;
	struct log_capture *log; /* borrowed until closed; else standard error */

	/* The end: nothing of s is in use any more; s may be freed here. NULL is fine. */
	void (*closed)(struct svc *s, void *arg);
	void *arg;
};

/*
 * Opens a service of def in s.
 *
 * s     caller's memory of def->size bytes, until closed; its content is overwritten
 * why   one line for a person: what, where, range, remedy
 *
 * ERR_INVALID_PARAMS  a setting or flag (exit code 2)
 * ERR_DIRECTORY_IN_USE  another process runs this service on this folder
 * and what files, addresses and the open hook report. I2.
 */
enum err svc_open(struct svc *s, const struct svc_def *def, const struct svc_env *env,
		  struct why *why) MUST_CHECK;

/* Begins the shutdown; `closed` follows within grace_ms plus what flushing takes. Idempotent. */
void svc_stop(struct svc *s);
/* From the close hook, once. */
void svc_closed(struct svc *s);

/*
 * A daemon: signals (TERM, INT: svc_stop; again: cancel at once; PIPE ignored), loop, svc, exit
 * code (answers.md): 0 stopped as asked, 1 failed, 2 usage or configuration, 6 refused.
 */
int svc_main(int argc, char **argv, const struct svc_def *def);

/* ---- requests as ops ---- */

/*
 * An op of a service; embed it. The shell counts it, cancels it when the grace period is over,
 * and passes `done` on. A handler that can answer at once needs none.
 */
struct svc_op {
	struct op op;
	struct rpc_req *req; /* NULL: background work */
	struct svc *svc;
	void (*done)(struct svc_op *o); /* after OP_DONE; may free o */
	struct list node;		/* private */
};
/* o->op.table, o->req, o->done are set by the caller; the deadline is the request's, or
 * deadline_ns without one. Starts at state 0. */
void svc_op_start(struct svc *s, struct svc_op *o, uint64_t deadline_ns);

/* ---- readiness ---- */

/* Adds one reason, "meta log: replaying" style; more than 16 or 120 characters are cut. */
void svc_reason(struct svc_reasons *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Writes {"ready":b,"reasons":[...]} to out; true when ready. */
bool svc_ready_json(struct svc *s, struct buf *out);

/* ---- what hooks and handlers may use ---- */

struct loop *svc_loop(struct svc *s);
const struct log *svc_log(const struct svc *s);
const struct svc_def *svc_def_of(const struct svc *s);
/* The workers (NAME.workers threads); in a simulation they run by turns. */
struct pool *svc_pool(struct svc *s);
const struct keyring *svc_keys(const struct svc *s);
const uint8_t *svc_instance(const struct svc *s); /* 16 bytes */
const char *svc_data_dir(const struct svc *s);
const char *svc_run_dir(const struct svc *s);
void svc_random(struct svc *s, void *p, size_t n);
bool svc_stopping(const struct svc *s);
/* The real address of the i-th rpc listener, or NULL; the HTTP address "127.0.0.1:17610" or "". */
const char *svc_rpc_addr(const struct svc *s, size_t i);
const char *svc_http_addr(const struct svc *s);
