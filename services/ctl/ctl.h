/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands share: where things are, waiting that Ctrl-C ends, and talking to the
 * supervisor.
 *
 * Thread: the main one; calls block, never past the command's deadline.
 */
#pragma once

#include "cli.h"
#include "data.h"
#include "sup.h"

#include <jansson.h>

/* The folders of this command line and environment. */
enum err ctl_dirs(struct cli *c, struct where *out) MUST_CHECK;
/* The command's deadline from now, on clock_real. */
uint64_t ctl_deadline(const struct cli *c);
uint64_t ctl_now_ns(void);

/* ---- waiting ---- */

/* From here on SIGINT and SIGTERM are seen by ctl_wait() alone. fd: owned, close(). */
enum err ctl_catch_interrupt(int *fd) MUST_CHECK;
/* Waits ms, or until fd is readable when fd >= 0. ERR_CANCELLED: interrupted. */
enum err ctl_wait(int interrupt_fd, int fd, uint64_t ms) MUST_CHECK;

/* ---- the supervisor ---- */

struct supc; /* one connection to run/sup.sock */

/* ERR_UNREACHABLE: nobody listens. owned, supc_close(). */
enum err supc_open(const char *run_dir, struct supc **out, struct why *why) MUST_CHECK;
void supc_close(struct supc *k);
/* Sends one request line. */
enum err supc_send(struct supc *k, const char *line, struct why *why) MUST_CHECK;
/*
 * The next line as JSON; owned, json_decref(). ERR_TIMED_OUT, ERR_CANCELLED by interrupt_fd (-1 for
 * none), ERR_CONN_LOST at its end, ERR_BAD_MESSAGE.
 */
enum err supc_next(struct supc *k, int interrupt_fd, uint64_t deadline_ns, json_t **out,
		   struct why *why) MUST_CHECK;
/* Waits until the supervisor's process has ended. */
enum err supc_wait_gone(struct supc *k, int interrupt_fd, uint64_t deadline_ns, struct why *why)
	MUST_CHECK;
/* Asks for the status line over a connection of its own. */
enum err supc_status(const char *run_dir, int interrupt_fd, uint64_t deadline_ns, json_t **out,
		     struct why *why) MUST_CHECK;

/*
 * Starts a supervisor and waits until it listens. lock_fd is taken (it holds DATA/lock).
 * The text of why is the supervisor's own.
 */
enum err supc_launch(struct cli *c, const struct where *d, const char *const *sets,
		     size_t n_sets, bool adopt_only, int lock_fd, struct why *why) MUST_CHECK;

/* ---- the cluster ---- */

struct pml;
struct pml_error;
struct pml_open_opts;
/* How a handle on the cluster of this data folder is opened; borrows d and c. */
struct pml_open_opts ctl_open_opts(const struct cli *c, const struct where *d);
/* A handle on the cluster of this data folder; pml_close(). */
int ctl_open(struct cli *c, const struct where *d, struct pml **out, struct pml_error *err);

/* ---- commands (one each: cmd_NAME.c) ---- */

int cmd_up(struct cli *c);
int cmd_down(struct cli *c);
int cmd_status(struct cli *c);
int cmd_top(struct cli *c);
int cmd_put(struct cli *c);
int cmd_get(struct cli *c);
int cmd_ls(struct cli *c);
int cmd_stat(struct cli *c);
int cmd_rm(struct cli *c);
int cmd_explain(struct cli *c);
int cmd_forget(struct cli *c);
int cmd_drain(struct cli *c);
int cmd_tasks(struct cli *c);
int cmd_task_cancel(struct cli *c);
int cmd_trace_replay(struct cli *c);
int cmd_supervise(struct cli *c);
int cmd_secret_new(struct cli *c);
int cmd_secret_derive(struct cli *c);
int cmd_secret_show_path(struct cli *c);
int cmd_version(struct cli *c);
int cmd_doctor(struct cli *c);
int cmd_ep_check(struct cli *c);
int cmd_ep_bench(struct cli *c);
int cmd_config(struct cli *c);
int cmd_bench(struct cli *c);
int cmd_weights_show(struct cli *c);
int cmd_weights_validate(struct cli *c);
int cmd_weights_plan(struct cli *c);
int cmd_help(struct cli *c);
int cmd_completion(struct cli *c);
