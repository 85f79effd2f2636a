/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The supervisor that `pomelo up` leaves behind: one process, one loop. It starts the services,
 * watches them by pidfd, starts again what dies, rotates their logs, merges run/endpoints.json, and
 * answers on run/sup.sock.
 *
 * I1: no service needs it: killed, the services run on; the next `up` adopts them.
 * I2: a service that holds run/NAME.pid is never started a second time; it is adopted.
 * I3: the delay before a restart doubles, 50 ms to 5 s, only while the service dies before it has
 *     been ready for 5 s.
 * I4: what comes in on sup.sock is bounded: 16 connections, 4 KiB a request, our own user or root.
 *
 * Thread: the loop's, everything.
 */
#pragma once

#include "base/buf.h"
#include "base/log.h"
#include "data.h"
#include "loop/loop.h"
#include "run.h"
#include "services.h"

#include <sys/types.h>

enum {
	SUP_BACKOFF_MIN_MS = 50,
	SUP_BACKOFF_MAX_MS = 5000,
	SUP_PROVEN_MS = 5000,	 /* ready for so long: the next death is a new story */
	SUP_TICK_FAST_MS = 20,	 /* how often a service that is not ready is looked at */
	SUP_TICK_SLOW_MS = 1000, /* and one that is */
	SUP_PROBE_MS = 2000,	 /* for one answer of /readyz */
	SUP_REASONS_MAX = 8,	 /* kept of a service's reasons for not being ready */
	SUP_REASON_BYTES = 128,
	SUP_SETS_MAX = 64,
	SUP_CONNS_MAX = 128,
	SUP_REQUEST_MAX = 4096,
	SUP_REPLY_MAX = 65536,
	SUP_CONN_MS = 5000, /* for a request to arrive, and for each write to be taken */
};

struct sup_opts {
	struct where dir;
	char bin[SERVICE_COUNT]
		[PATH_BYTES_MAX];	/* "": was not found; looked up again at a start */
	char self[PATH_BYTES_MAX];	/* our own executable, for bin_find() */
	const char *sets[SUP_SETS_MAX]; /* k=v, passed on to every service */
	size_t n_sets;
	int lock_fd;	    /* DATA/lock, held; taken */
	int ready_fd;	    /* gets "ok\n", or one line that says why not; taken; -1 for none */
	bool adopt_only;    /* start nothing: `down` of services without a supervisor */
	uint64_t grace_ms;  /* from SIGTERM to SIGKILL */
	uint64_t log_bytes; /* a log above it is rotated */
};

/* Runs until it is told to stop; an exit code. */
int sup_run(const struct sup_opts *o);

/* ---- policy: pure ---- */

/* Zero is the state of a service that has not died yet. */
struct backoff {
	uint64_t ms; /* the last delay */
};
/* The delay before the next start, after a death. proven: it had been ready for SUP_PROVEN_MS. */
uint64_t backoff_died(struct backoff *b, bool proven);

/* ---- parts ---- */

struct sup;
struct signals;

/* Why a service is not ready, for people. */
struct reasons {
	size_t n;
	char text[SUP_REASONS_MAX][SUP_REASON_BYTES];
};

/* One GET /readyz over loopback (sup_probe.c). */
struct probe {
	struct sup *sup;
	void *live; /* the exchange under way; NULL: none */
	void (*done)(struct probe *p, bool answered, bool ready, const struct reasons *why);
};
/* addr "127.0.0.1:17610" or "[::1]:17610". done runs later, once, unless probe_stop() comes first. */
void probe_start(struct probe *p, const char *addr);
void probe_stop(struct probe *p);
/* A whole HTTP answer of /readyz: whether ready, and the first of its reasons, cut to size. False:
 * not such an answer. Pure. */
bool probe_parse(const char *text, size_t n, bool *ready, struct reasons *why) MUST_CHECK;

enum child_state {
	CHILD_DOWN,	/* not there; a start is due */
	CHILD_STARTING, /* runs, was not ready yet */
	CHILD_RUNNING,	/* runs, has been ready */
	CHILD_STOPPING, /* was asked to end */
	CHILD_STOPPED,	/* ended, and stays so */
};
const char *child_state_name(enum child_state s);

struct child {
	struct sup *sup;
	const struct service_row *row;
	const char *bin;
	enum child_state state;
	pid_t pid;
	int pidfd;    /* borrowed from watch */
	void *watch;  /* the uv handle on pidfd; NULL: none */
	bool adopted; /* not our child: its exit status stays unknown */
	bool ready, have_info, gave_up_waiting;
	uint64_t started_ns, ready_ns; /* 0: never */
	struct backoff backoff;
	uint32_t restarts;     /* starts after the first, by this supervisor */
	uint32_t early_deaths; /* in a row, before it was ready */
	int exit_code;	       /* of the last early death; -1: by a signal or unknown */
	char last_exit[64];    /* "exit code 2", "signal 9" */
	struct reasons reasons;
	struct run_info info;
	struct timer tick;
	struct probe probe;
};

/* sup_child.c */
void child_init(struct child *c, struct sup *s, const struct service_row *row, const char *bin);
/* Adopts a running one, else starts it (adopt_only: leaves it stopped). */
void child_begin(struct child *c);
/* SIGTERM now, SIGKILL after grace; sup_child_ended() follows. */
void child_stop(struct child *c);
/* SIGHUP: open the log again. */
void child_hangup(const struct child *c);
/* Ends timers, probe and watch; the process is left alone. */
void child_release(struct child *c);

/* sup_log.c: logs are plain files that a service holds open with O_APPEND, so that it can write
 * without us. Rotation renames and then sends SIGHUP, on which a service opens the name again. */
enum err suplog_open(const char *log_dir, const char *name, int *fd, struct why *why)
	MUST_CHECK;
/* NAME.log -> .1 -> .2 -> .3 -> gone, when NAME.log is larger than max. True: it was renamed. */
bool suplog_rotate(const char *log_dir, const char *name, uint64_t max);
/* Does the process catch SIGHUP? (else it would die of it) */
bool suplog_catches_hup(pid_t pid);

/* sup_sock.c */
struct sup_sock;
enum err sup_sock_open(struct sup *s, const char *path, struct sup_sock **out, struct why *why)
	MUST_CHECK;
/* An event line to everyone who asked for a stop. */
void sup_sock_event(struct sup_sock *k, struct bytes line);
/* Flushes what is queued and closes; sup_sock_gone() follows. */
void sup_sock_close(struct sup_sock *k);

/* sup.c */
struct sup {
	struct loop loop;
	const struct sup_opts *o;
	struct log log;
	struct child children[SERVICE_COUNT];
	struct sup_sock *sock;
	struct timer upkeep;
	struct signals *signals;
	char log_dir[PATH_BYTES_MAX];
	bool stopping, keep_memory, stopped;
	bool endpoints_due; /* the last writing of endpoints.json failed */
	uint32_t adopted;   /* how many were found running */
};
/* The status line, without its newline. */
void sup_status(struct sup *s, struct buf *out);
/* Begins to stop everything. Idempotent; keep_memory of the first call counts. */
void sup_stop(struct sup *s, bool keep_memory);
void sup_sock_gone(struct sup *s);
void sup_child_changed(struct child *c);	    /* endpoints.json is due */
void sup_child_ended(struct child *c, bool killed); /* while stopping */
