/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real daemons for tests of level service: a box (a temporary data folder with a secret), processes
 * on it, and a caller that makes requests from the test's own thread.
 *
 * Nothing is looked up: binaries come from POMELO_TEST_SERVICES (the build tree's services folder),
 * each test has its own folder under /tmp, every wait has a limit. Thread: the test's.
 */
#pragma once

#include "rpc/auth.h"
#include "rpc/rpc.h"
#include "services/services.def"
#include "svc/svc.h"

#include <sys/types.h>

struct daemon_row {
	const struct svc_def *def; /* its role, whether it needs a master */
	const char *name, *exe, *folder;
};

enum {
#define DAEMON_COUNT(tag, name, exe, folder) +1
	N_DAEMONS = SERVICES(DAEMON_COUNT)
#undef DAEMON_COUNT
};

extern const struct daemon_row daemon_rows[N_DAEMONS];

/* The row of a name; aborts when there is none. */
const struct daemon_row *daemon_row(const char *name);

/* ---- the box ---- */

struct box {
	char dir[64];	 /* the data folder, "/tmp/pml-XXXXXX" */
	char secret[80]; /* DIR/secret */
	struct keyring *keys;
};

/* Aborts when /tmp cannot be written: nothing could be tested then. */
void box_make(struct box *b);
/* Removes the folder and all in it. */
void box_remove(struct box *b);
/* DIR/NAME written whole, or aborts. */
void box_write(const struct box *b, const char *name, const char *text);

/* ---- processes ---- */

struct proc {
	const struct daemon_row *row;
	pid_t pid;     /* 0: ended and waited for */
	int code;      /* exit code, or 128 + signal */
	char log[96];  /* file of its standard error */
	char http[64]; /* from run/NAME.json */
	char rpc[192]; /* its first address */
	char instance[40];
};

/* Starts row's binary with --data and the given arguments (NULL-ended, may be NULL); does not wait. */
void proc_start(const struct box *b, const struct daemon_row *row, const char *const *args,
		struct proc *out);
/* Waits for its run/NAME.json; false when it ended or ms passed. */
bool proc_up(const struct box *b, struct proc *p, unsigned ms);
/* start and up; aborts with its log when it does not come up within 20 s. */
void proc_run(const struct box *b, const struct daemon_row *row, const char *const *args,
	      struct proc *out);
void proc_signal(const struct proc *p, int signum);
/* Waits for its end; false after ms. */
bool proc_wait(struct proc *p, unsigned ms);
/* SIGTERM, then wait at most 20 s, then SIGKILL; returns the exit code. */
int proc_stop(struct proc *p);
/* Its standard error so far into out, NUL-ended; returns out. */
const char *proc_log(const struct proc *p, char *out, size_t size);
/* Waits until the GET of path answers with this status, or ms have passed. out: the last answer. */
bool proc_http_until(const struct proc *p, const char *path, int status, unsigned ms, char *out,
		     size_t size);
/* The value of a metric line that begins with `name` (labels included); -1 when it is absent. */
double metric_value(const char *text, const char *name);

/* ---- requests ---- */

struct caller {
	struct loop loop;
	struct log log;
	struct rpc_client *client;
	uint8_t instance[16];
};

/* Aborts when the client cannot be made. */
void caller_open(struct caller *c, const struct box *b, const char *addr, enum role as,
		 enum role expect);
void caller_close(struct caller *c);
/* One call, to its end. reply may be NULL; appended to otherwise. */
enum err caller_call(struct caller *c, uint32_t method, struct bytes body, uint64_t ms,
		     struct buf *reply, struct why *why);
