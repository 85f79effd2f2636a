/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one shape of the five services: settings, folder, keys, request server, HTTP, beats, ops,
 * drain. A service is a `struct svc_def` (rows and hooks) and a struct whose first member is
 * `struct svc`; its main.c calls svc_main() and nothing else.
 *
 * Any number of services may be open in one process, on one loop or several, on the real clock
 * or a simulated one: all state is in struct svc, there are no globals (style.md section 2). In a
 * simulation (loop_uv() is NULL) there are no HTTP, no lock and no files in the run folder.
 *
 * Life: svc_open -> running -> svc_stop -> (ops drain, producers end, files flushed, handles
 * closed) -> env.closed. The order is style.md section 3's; svc.c numbers its steps.
 *
 * I1: each request accepted is answered, or fails with an error of err.h, before `closed` runs.
 * I2: `closed` runs exactly once for each svc_open, later, whether that succeeded or not; then
 *     nothing of it is left (no file but DATA and the empty pid file, no handle, no thread).
 * I3: the instance (random 128 bits) names this run alone; nothing of an older run carries it (L2).
 *
 * Thread: the loop's, everything.
 */
#pragma once

#include "base/conf.h"
#include "base/log.h"
#include "base/metric.h"
#include "loop/op.h"
#include "rpc/rpc.h"
#include "svc/conf_common.def"

struct beat_sender;
struct beat_news;
struct fetch_ops;
struct http;
struct meta_fs;
struct pool;
struct pool_backing;
struct svc;
struct svc_reasons;

#define SVC_ADDRS_MAX	8   /* addresses listened on, masters */
#define SVC_ADDR_MAX	288 /* characters of an rpc address, the NUL included */
#define SVC_PATH_MAX	512 /* of the data and run folders */
#define SVC_REASONS_MAX 16
#define SVC_REASON_MAX	160

struct svc_conf {
	SVC_CONF(CONF_FIELD, "")
};

/* What a service is. One static const object each; borrowed for ever. */
struct svc_def {
	const char *name;  /* "master": settings prefix, run/NAME.sock, svc= in the log */
	const char *exe;   /* "pomelo-master" */
	const char *about; /* one line for --help */
	enum role role; /* what it is to peers: ROLE_SERVICE, or ROLE_HOLDER for agent, owner */
	size_t size;	/* of the struct that begins with struct svc */
	bool needs_master; /* not ready until a master has acknowledged a beat */

	const struct conf_schema *conf;	  /* SVC_CONF_PART and the rows of conf.def */
	const struct rpc_method *methods; /* ctx NULL: the shell passes struct svc * */
	size_t n_methods;
	const struct metric_schema *metrics; /* NULL: none but the shared ones */

	/* Any hook may be NULL. */
	/* Settings are read, the folder is ours, keys, pool and metrics exist, addresses are bound
	 * (s->addrs), masters are known; no request is taken in before it returns, no beat is sent.
	 * On an error open has undone its own work. Long work goes on behind a reason. */
	enum err (*open)(struct svc *s, struct why *why);
	/* Shutdown began: no new background work; park lists may be answered now. */
	void (*drain)(struct svc *s);
	/* All ops have ended; not called if open failed. Flush, end producers, then svc_closed(s),
	 * now or later. */
	void (*close)(struct svc *s);
	/* Each svc_reason() keeps /readyz at 503. Asked often; cheap. */
	void (*reasons)(struct svc *s, struct svc_reasons *r);
	/* The term in replies and STATUS; 0 without. */
	uint64_t (*term)(const struct svc *s);
	/* Fencing number of the agent's writers, for the beat. Any thread: a relaxed load. */
	uint64_t (*pool_epoch)(const struct svc *s);
	/* Before a scrape: brings gauges up to date by a recount (C3), and prints with metric_line()
	 * what only a scrape knows. */
	void (*scrape)(struct svc *s, struct buf *out);
};

/* Where a service runs. Zeroed fields mean a daemon's defaults; borrowed for svc_open only,
 * unless said otherwise. */
struct svc_env {
	struct loop *loop; /* borrowed until closed */
	int argc;	   /* as a daemon gets them, argv[0] included; 0 for none */
	char *const *argv;
	char *const *environ; /* "POMELO_X=v" texts, NULL-ended; NULL: none is read */

	/* A simulation gives these; NULL or 0: the real thing. */
	const char *const *listen; /* replaces run/NAME.sock and NAME.listen */
	size_t n_listen;
	const char *const *masters; /* replaces run/master.sock and masters */
	size_t n_masters;
	const struct keyring *keys; /* borrowed until closed; else the secret file is read */
	struct log_capture *log;    /* borrowed until closed; else standard error */
	struct meta_fs *meta_fs;    /* borrowed until closed; else files in DATA/meta */
	struct pool_backing
		*backing; /* borrowed until closed; else a folder (agent.pool_dir) */
	const struct fetch_ops *fetch; /* xfer/fetch.h; borrowed, as its ctx; else data lanes */
	void *fetch_ctx;

	/* The end (I2): s may be freed here. NULL is fine. */
	void (*closed)(struct svc *s, void *arg);
	void *arg;
};

enum svc_state {
	SVC_FAILED,
	SVC_RUNNING,
	SVC_DRAINING,
	SVC_CANCELLING,
	SVC_FLUSHING,
	SVC_CLOSING
};

struct svc {
	/* read-only for services */
	const struct svc_def *def;
	struct loop *loop;
	struct svc_conf conf;
	struct log log;
	uint8_t instance[16];
	char data_dir[SVC_PATH_MAX],
		run_dir[SVC_PATH_MAX]; /* "" in a simulation without --data */
	char secret_file[SVC_PATH_MAX];
	char id[65]; /* in beats and, for holders, in HELLO: "master", "agent-0123456789abcdef" */
	const struct keyring *keys;
	struct meta_fs *meta_fs; /* for meta_opts.fs: the simulation's disk; NULL: DATA/meta */
	struct pool_backing *backing;  /* the simulation's memory pool; NULL: a folder */
	const struct fetch_ops *fetch; /* the simulation's; NULL: data lanes */
	void *fetch_ctx;
	struct pool *pool; /* NAME.workers threads; in a simulation they run by turns */
	struct op_set ops; /* every op joins it: it is counted, and cancelled after the grace */
	struct metrics *metrics; /* of def->metrics */
	struct rpc_server *rpc;
	char addrs[SVC_ADDRS_MAX][SVC_ADDR_MAX]; /* bound, NAME.sock first */
	size_t n_addrs;
	char masters[SVC_ADDRS_MAX]
		    [SVC_ADDR_MAX]; /* as to be dialed; set before the open hook */
	size_t n_masters;
	enum svc_state state;
	enum err failed; /* what svc_fail was told; ERR_NONE */

	/* private */
	struct conf *settings;
	struct keyring *own_keys;
	struct metrics *shared_metrics;
	struct beat_sender *beats;
	struct http *http;
	int lock_fd;
	bool opened, told; /* the open hook succeeded; run/NAME.json is there */
	uint64_t started_ns, stop_ns, grace_end_ns, complained_ns;
	_Atomic bool ready; /* but for the master's part; for the beat thread, as is the next */
	_Atomic uint32_t pool_queued;
	uint32_t closing; /* ends still to come in SVC_CLOSING */
	struct timer tick;
	struct post last;
	void (*closed)(struct svc *s, void *arg);
	void *closed_arg;
};

/*
 * Opens a service of def in s.
 *
 * s     caller's memory of def->size bytes, until closed; its content is overwritten
 * why   one line for a person: what, where, range, remedy
 *
 * ERR_INVALID_PARAMS    a setting or flag (exit code 2)
 * ERR_DIRECTORY_IN_USE  another process runs this service on this folder
 * and what files, addresses and the open hook report. I2.
 */
enum err svc_open(struct svc *s, const struct svc_def *def, const struct svc_env *env,
		  struct why *why) MUST_CHECK;

/* Begins the shutdown; `closed` follows within grace_ms plus what flushing takes. Called again, it
 * may only shorten the grace. */
void svc_stop(struct svc *s, uint64_t grace_ms);
/* From the close hook, once. */
void svc_closed(struct svc *s);
/* It cannot go on: one line of log, then the shutdown; the process ends with code 1, so that who
 * watches it starts a new run. The first reason stays. */
void svc_fail(struct svc *s, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);

/*
 * A daemon: signals (TERM, INT: svc_stop; a second one: grace 0; a third: _exit), loop, service.
 * Returns the exit code (answers.md): 0 stopped as asked, 1 failed, 2 usage or configuration,
 * 5 busy, 6 refused. Also --help, --version, --show-config.
 */
int svc_main(int argc, char **argv, const struct svc_def *def);

/* ---- for handlers ---- */

/* Answers with an encoded message, or with the error that encoding it latched; frees b. */
void svc_reply(struct rpc_req *r, struct buf *b);
/* Answers with err and a text. */
void svc_refuse(struct rpc_req *r, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- readiness ---- */

struct svc_reasons {
	size_t n;
	char text[SVC_REASONS_MAX][SVC_REASON_MAX];
};

/* Adds one reason, "meta log: replaying" style; what does not fit is cut. */
void svc_reason(struct svc_reasons *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Why it is not ready; ready when there are none. */
void svc_reasons(struct svc *s, struct svc_reasons *out);
/* Appends {"ready":b,"reasons":[...]} to out; returns whether it is ready. */
bool svc_ready_json(struct svc *s, struct buf *out);

/* ---- what is served ---- */

/* "127.0.0.1:17610", "" without HTTP. */
const char *svc_http_addr(const struct svc *s);
/* All metrics in Prometheus text. */
void svc_metrics_print(struct svc *s, struct buf *out);
static inline bool svc_stopping(const struct svc *s)
{
	return s->state != SVC_RUNNING;
}

/* ---- rows of the shell, for a service's own tables ---- */

extern const struct conf_foreign svc_foreign[];
extern const struct metric_schema svc_metric_schema;
/*
 *   #define CONF_T struct svc_conf
 *   static const struct conf_row shared[] = { SVC_CONF(CONF_ROW, "17610") };
 *   static const struct conf_part parts[] = { SVC_CONF_PART(shared), ... };
 *
 * The schema's check is svc_conf_check, or a function that calls it first.
 */
#define SVC_CONF_PART(shared_rows)                                                            \
	{                                                                                     \
		shared_rows, ARRAY_LEN(shared_rows), offsetof(struct svc, conf), svc_foreign, \
			SVC_N_FOREIGN                                                         \
	}
enum err svc_conf_check(struct conf *c, const void *at, struct why *w);
