/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of one service under the supervisor.
 *
 *            start                 /readyz true            TERM
 *   DOWN ------------> STARTING ------------------> RUNNING ----> STOPPING ----> STOPPED
 *    ^   (or adopted)     |                            |             (KILL after grace)
 *    +--------------------+----------------------------+
 *            died: after the back-off (I3)
 *
 * One timer does it all: in DOWN it is the back-off, in STARTING and RUNNING the next look, in
 * STOPPING the grace.
 */
#include "sup.h"
#include "bin.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

struct watch {
	uv_poll_t poll;
	int pidfd;
	struct child *child; /* NULL: closed */
};

static void on_tick(struct timer *t);

static void tick_in(struct child *c, uint64_t ms)
{
	struct loop *l = &c->sup->loop;
	timer_start(l, &c->tick, clock_after_ms(loop_now_ns(l), ms), on_tick);
}

static int send_signal(const struct child *c, int signum)
{
	return (int)syscall(SYS_pidfd_send_signal, c->pidfd, signum, NULL, 0);
}

/* ---- death ---- */

static void on_watch_closed(uv_handle_t *h)
{
	struct watch *w = h->data;
	close(w->pidfd);
	free(w);
}

static void unwatch(struct child *c)
{
	struct watch *w = c->watch;
	if (!w)
		return;
	w->child = NULL;
	c->watch = NULL;
	c->pidfd = -1;
	uv_close((uv_handle_t *)&w->poll, on_watch_closed);
}

/* Reaps our own child; how it ended, in words. */
static void take_exit(struct child *c)
{
	siginfo_t si = { 0 };
	c->exit_code = -1;
	snprintf(c->last_exit, sizeof(c->last_exit), "ended, status unknown");
	if (c->adopted || waitid(P_PIDFD, (id_t)c->pidfd, &si, WEXITED | WNOHANG) != 0)
		return;
	if (si.si_code == CLD_EXITED) {
		c->exit_code = si.si_status;
		snprintf(c->last_exit, sizeof(c->last_exit), "exit code %d", si.si_status);
	} else {
		snprintf(c->last_exit, sizeof(c->last_exit), "signal %d", si.si_status);
	}
}

static void died(struct child *c)
{
	struct sup *s = c->sup;
	uint64_t now = loop_now_ns(&s->loop);
	bool proven = c->ready_ns != 0 && now - c->ready_ns >= SUP_PROVEN_MS * NS_PER_MS;
	bool killed = c->state == CHILD_STOPPING && c->gave_up_waiting;
	take_exit(c);
	unwatch(c);
	probe_stop(&c->probe);
	timer_stop(&s->loop, &c->tick);
	c->early_deaths = c->ready_ns == 0 ? c->early_deaths + 1 : 0;
	c->ready = c->have_info = false;
	c->pid = 0;
	c->reasons.n = 0;
	sup_child_changed(c);
	if (s->stopping) {
		LOG_INFO(&s->log, "stop", "service=%s how=\"%s\"", c->row->name, c->last_exit);
		c->state = CHILD_STOPPED;
		sup_child_ended(c, killed);
		return;
	}
	uint64_t ms = backoff_died(&c->backoff, proven);
	LOG_WARN(&s->log, "died", "service=%s how=\"%s\" restart_in_ms=%" PRIu64, c->row->name,
		 c->last_exit, ms);
	c->state = CHILD_DOWN;
	tick_in(c, ms);
}

static void on_pidfd(uv_poll_t *p, int status, int events)
{
	struct watch *w = p->data;
	if (w->child)
		died(w->child);
}

static enum err watch(struct child *c, int pidfd)
{
	struct watch *w = calloc(1, sizeof(*w));
	if (!w)
		return ERR_NO_MEMORY;
	int r = uv_poll_init(loop_uv(&c->sup->loop), &w->poll, pidfd);
	if (r != 0) {
		free(w);
		return err_from_errno(-r);
	}
	w->poll.data = w;
	w->pidfd = pidfd;
	w->child = c;
	c->watch = w;
	c->pidfd = pidfd;
	uv_poll_start(&w->poll, UV_READABLE, on_pidfd);
	return ERR_NONE;
}

/* ---- birth ---- */

static void began(struct child *c, pid_t pid, bool adopted)
{
	struct sup *s = c->sup;
	c->pid = pid;
	c->adopted = adopted;
	c->started_ns = loop_now_ns(&s->loop);
	c->ready_ns = 0;
	c->state = CHILD_STARTING;
	LOG_INFO(&s->log, "start", "service=%s pid=%d adopted=%d", c->row->name, pid, adopted);
	tick_in(c, SUP_TICK_FAST_MS);
}

/*
 * A service that runs already (I2). The pid in the file is its holder's when the lock was held
 * before and after the pidfd was opened, with the same pid inside.
 */
static bool adopt(struct child *c)
{
	const char *run = c->sup->o->dir.run;
	pid_t pid = 0, again = 0;
	enum err e = run_holder(run, c->row->name, &pid);
	if (e == ERR_BUSY) { /* it is just starting: look again */
		tick_in(c, SUP_TICK_FAST_MS);
		return true;
	}
	if (e != ERR_NONE)
		return false;
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return false;
	if (run_holder(run, c->row->name, &again) != ERR_NONE || again != pid ||
	    watch(c, pidfd) != ERR_NONE) {
		close(pidfd);
		return false;
	}
	began(c, pid, true);
	return true;
}

/* argv of a service, into v. Texts are borrowed. */
static void make_argv(const struct child *c, const char **v, const char *log_file)
{
	const struct sup_opts *o = c->sup->o;
	size_t n = 0;
	v[n++] = c->bin;
	v[n++] = "--data";
	v[n++] = o->dir.path;
	if (o->dir.run_given) {
		v[n++] = "--run-dir";
		v[n++] = o->dir.run;
	}
	if (o->dir.secret_given) {
		v[n++] = "--secret-file";
		v[n++] = o->dir.secret;
	}
	v[n++] = "--log-file";
	v[n++] = log_file;
	for (size_t i = 0; i < o->n_sets; i++) {
		v[n++] = "--set";
		v[n++] = o->sets[i];
	}
	v[n] = NULL;
}

/* Its own session, the data folder as its place, the log as its output, no signal blocked. */
static int spawn(struct child *c, int log_fd, char *const *argv, pid_t *pid)
{
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t at;
	sigset_t none, all;
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&fa);
	posix_spawnattr_init(&at);
	posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&fa, log_fd, 1);
	posix_spawn_file_actions_adddup2(&fa, log_fd, 2);
	posix_spawn_file_actions_addchdir_np(&fa, c->sup->o->dir.path);
	posix_spawnattr_setsigmask(&at, &none);
	posix_spawnattr_setsigdefault(&at, &all);
	posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
					      POSIX_SPAWN_SETSIGDEF);
	int sys = posix_spawn(pid, c->bin, &fa, &at, argv, environ);
	posix_spawnattr_destroy(&at);
	posix_spawn_file_actions_destroy(&fa);
	return sys;
}

/* Counts as a death: it is tried again after the back-off. */
static void start_failed(struct child *c, const char *what, int sys)
{
	struct sup *s = c->sup;
	c->early_deaths++;
	c->exit_code = -1;
	snprintf(c->last_exit, sizeof(c->last_exit), "%s: %s", what, strerror(sys));
	uint64_t ms = backoff_died(&c->backoff, false);
	LOG_WARN(&s->log, "start", "service=%s bin=\"%s\" failed=\"%s\" again_in_ms=%" PRIu64,
		 c->row->name, c->bin, c->last_exit, ms);
	tick_in(c, ms);
}

static void start(struct child *c)
{
	const char *argv[12 + 2 * SUP_SETS_MAX];
	char file[PATH_BYTES_MAX];
	int log_fd = -1;
	pid_t pid = 0;
	if (suplog_open(c->sup->log_dir, c->row->name, &log_fd, NULL) != ERR_NONE) {
		start_failed(c, "log", errno);
		return;
	}
	snprintf(file, sizeof(file), "%.*s/%s.log", PATH_BYTES_MAX - 64, c->sup->log_dir,
		 c->row->name);
	make_argv(c, argv, file);
	int sys = spawn(c, log_fd, (char *const *)argv, &pid);
	close(log_fd);
	if (sys != 0) {
		start_failed(c, "exec", sys);
		return;
	}
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	sys = pidfd < 0 ? errno : 0;
	if (pidfd >= 0 && watch(c, pidfd) == ERR_NONE) {
		began(c, pid, false);
		return;
	}
	/* unwatched it would be no one's: end it */
	if (pidfd >= 0)
		close(pidfd);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	start_failed(c, "watch", sys ? sys : ENOMEM);
}

/* ---- looking ---- */

static void on_probed(struct probe *p, bool answered, bool ready, const struct reasons *why)
{
	static const struct reasons silent = { 1, { "http: does not answer" } };
	struct child *c = container_of(p, struct child, probe);
	struct sup *s = c->sup;
	if (c->state != CHILD_STARTING && c->state != CHILD_RUNNING)
		return;
	c->ready = answered && ready;
	c->reasons = answered ? *why : silent;
	if (c->ready && c->state == CHILD_STARTING) {
		c->state = CHILD_RUNNING;
		c->ready_ns = loop_now_ns(&s->loop);
		c->early_deaths = 0;
		LOG_INFO(&s->log, "ready", "service=%s pid=%d after_ms=%" PRIu64, c->row->name,
			 c->pid, (uint64_t)((c->ready_ns - c->started_ns) / NS_PER_MS));
	}
	tick_in(c, c->ready ? SUP_TICK_SLOW_MS : SUP_TICK_FAST_MS);
}

static void look(struct child *c)
{
	struct run_info info;
	if (!c->have_info && run_read(c->sup->o->dir.run, c->row->name, &info) == ERR_NONE &&
	    info.pid == c->pid) {
		c->info = info;
		c->have_info = true;
		sup_child_changed(c);
	}
	/* the probe's end sets the next tick; this one is for a probe that could not begin */
	tick_in(c, c->have_info ? SUP_PROBE_MS + SUP_TICK_SLOW_MS : SUP_TICK_FAST_MS);
	if (c->have_info && !c->probe.live)
		probe_start(&c->probe, c->info.http);
}

static void on_tick(struct timer *t)
{
	struct child *c = container_of(t, struct child, tick);
	switch (c->state) {
	case CHILD_DOWN:
		c->restarts++;
		if (!adopt(c))
			start(c);
		break;
	case CHILD_STARTING:
	case CHILD_RUNNING:
		look(c);
		break;
	case CHILD_STOPPING:
		c->gave_up_waiting = true;
		LOG_WARN(&c->sup->log, "stop",
			 "service=%s still_there_after_ms=%" PRIu64 " signal=9", c->row->name,
			 c->sup->o->grace_ms);
		send_signal(c, SIGKILL);
		break;
	case CHILD_STOPPED:
		break;
	}
}

/* ---- for sup.c ---- */

void child_init(struct child *c, struct sup *s, const struct service_row *row, const char *bin)
{
	*c = (struct child){ .sup = s, .row = row, .bin = bin, .pidfd = -1, .exit_code = -1 };
	c->probe = (struct probe){ .sup = s, .done = on_probed };
}

void child_begin(struct child *c)
{
	if (adopt(c)) {
		c->sup->adopted++;
		return;
	}
	if (c->sup->o->adopt_only)
		c->state = CHILD_STOPPED;
	else
		start(c);
}

void child_stop(struct child *c)
{
	probe_stop(&c->probe);
	timer_stop(&c->sup->loop, &c->tick);
	if (!c->watch) {
		c->state = CHILD_STOPPED;
		sup_child_ended(c, false);
		return;
	}
	c->state = CHILD_STOPPING;
	send_signal(c, SIGTERM);
	tick_in(c, c->sup->o->grace_ms);
}

void child_hangup(const struct child *c)
{
	if (c->watch)
		send_signal(c, SIGHUP);
}

void child_release(struct child *c)
{
	probe_stop(&c->probe);
	timer_stop(&c->sup->loop, &c->tick);
	unwatch(c);
}
