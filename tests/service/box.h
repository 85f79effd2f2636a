/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box to run a cluster in, for service tests: a scratch folder, `pomelo` as a child process with
 * its output caught, and whatever is still alive at the end is ended by its pid file.
 *
 * The executables come by environment from meson: POMELO_TEST_EXE (pomelo) and POMELO_TEST_ODD
 * (odd_service), see there.
 */
#pragma once

#include "run.h"
#include "services.h"
#include "up.h"

struct box {
	char dir[64];	 /* removed by box_fini */
	char data[80];	 /* DIR/d: --data of every command */
	char bindir[80]; /* POMELO_BINDIR of every command; "": the build tree's services */
};

/* The real services. */
void box_init(struct box *b);
/* Odd ones (odd_service.c) in their place. */
void box_init_odd(struct box *b);
void box_fini(struct box *b);

/* What DATA/odd.NAME says; NULL: nothing, a service of good manners. */
void box_manners(const struct box *b, const char *service, const char *manners);
/* DIR/NAME and DATA/NAME, in static buffers. */
const char *box_at(const struct box *b, const char *name);
const char *box_data(const struct box *b, const char *name);
void box_write(const char *path, const char *text);
/* The whole file as text, in a static buffer; "" when it is not there. */
const char *box_read(const char *path);

/* One command that ran. */
struct box_ran {
	int code; /* -N: ended by signal N */
	char out[65536], err[16384];
	double seconds;
};
/* words: split at blanks, after `pomelo --data DATA`. A word NAME=VALUE before the command is put into
 * the environment. Fails the test after 60 s. */
void box_run(const struct box *b, struct box_ran *r, const char *words);
/* The same in the background; box_wait collects it. */
struct box_job {
	pid_t pid;
	int out, err;
	uint64_t start_ns;
};
void box_start(const struct box *b, struct box_job *j, const char *words);
void box_wait(struct box_job *j, struct box_ran *r);

/* The last line of the output as JSON; json_decref. */
json_t *box_json(const struct box_ran *r);

/* ---- the cluster in it ---- */

/* What the supervisor says; false: none answers. */
bool box_view(const struct box *b, struct up_view *v);
/* Until the condition holds, at most ms; returns whether. cond may be NULL: all five ready. */
bool box_until(const struct box *b, uint64_t ms,
	       bool (*cond)(const struct up_view *v, void *arg), void *arg);
/* The process that holds run/NAME.pid; 0: nobody. */
pid_t box_pid(const struct box *b, const char *service);
uint64_t box_now_ms(void);
