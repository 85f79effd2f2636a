/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl.h"
#include "bin.h"
#include "conf_up.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum err ctl_dirs(struct cli *c, struct where *out)
{
	struct where_wish w = { .data = c->data,
				.run_dir = c->run_dir,
				.secret_file = c->secret_file,
				.env = (const char *(*)(const char *))getenv,
				.root = geteuid() == 0 };
	enum err e = where_find(&w, out, &c->why);
	if (e == ERR_NONE)
		up_conf_where(out);
	return e;
}

uint64_t ctl_now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

uint64_t ctl_deadline(const struct cli *c)
{
	return clock_after_ms(ctl_now_ns(), c->deadline_ms);
}

/* ---- waiting ---- */

enum err ctl_catch_interrupt(int *fd)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	int f = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (f < 0)
		return err_from_errno(errno);
	sigprocmask(SIG_BLOCK, &set, NULL);
	*fd = f;
	return ERR_NONE;
}

enum err ctl_wait(int interrupt_fd, int fd, uint64_t ms)
{
	struct pollfd p[2] = { { .fd = interrupt_fd, .events = POLLIN },
			       { .fd = fd, .events = POLLIN } };
	int r = poll(p, 2, (int)MIN_OF(ms, 3600000));
	if (r > 0 && p[0].revents)
		return ERR_CANCELLED;
	return r < 0 && errno != EINTR ? err_from_errno(errno) : ERR_NONE;
}

/* ---- the connection ---- */

struct supc {
	int fd;
	int pidfd; /* the supervisor's process; -1: it had ended */
	size_t n;
	char text[SUP_REPLY_MAX + 1];
};

enum err supc_open(const char *run_dir, struct supc **out, struct why *why)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int len = snprintf(to.sun_path, sizeof(to.sun_path), "%s/sup.sock", run_dir);
	if (len >= (int)sizeof(to.sun_path))
		return why_set(why, ERR_INVALID_PARAMS,
			       "%.200s/sup.sock: over %d bytes; use --run-dir", run_dir,
			       WHERE_SOCKET_PATH_MAX);
	struct supc *k = calloc(1, sizeof(*k));
	if (!k)
		return why_set(why, ERR_NO_MEMORY, "no memory for a connection");
	k->pidfd = -1;
	k->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (k->fd >= 0 && connect(k->fd, (struct sockaddr *)&to, sizeof(to)) == 0) {
		struct ucred who;
		socklen_t n = sizeof(who);
		if (getsockopt(k->fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0)
			k->pidfd = (int)syscall(SYS_pidfd_open, who.pid, 0);
		*out = k;
		return ERR_NONE;
	}
	int sys = errno;
	supc_close(k);
	(void)why_set(why, ERR_UNREACHABLE, "no supervisor listens on %.200s: %s", to.sun_path,
		      strerror(sys));
	return ERR_UNREACHABLE;
}

void supc_close(struct supc *k)
{
	if (!k)
		return;
	if (k->fd >= 0)
		close(k->fd);
	if (k->pidfd >= 0)
		close(k->pidfd);
	free(k);
}

enum err supc_wait_gone(struct supc *k, int interrupt_fd, uint64_t deadline_ns, struct why *why)
{
	enum err e = ERR_NONE;
	while (k->pidfd >= 0 && e == ERR_NONE) {
		struct pollfd p = { .fd = k->pidfd, .events = POLLIN };
		if (poll(&p, 1, 0) == 1)
			break;
		uint64_t left = clock_left_ms(deadline_ns, ctl_now_ns());
		if (left == 0)
			return why_set(why, ERR_TIMED_OUT,
				       "the supervisor has not ended in time");
		e = ctl_wait(interrupt_fd, k->pidfd, left);
	}
	return e == ERR_NONE ? e : why_set(why, e, "interrupted");
}

enum err supc_send(struct supc *k, const char *line, struct why *why)
{
	assert(k);
	size_t n = strlen(line);
	if (send(k->fd, line, n, MSG_NOSIGNAL) != (ssize_t)n ||
	    send(k->fd, "\n", 1, MSG_NOSIGNAL) != 1)
		return why_set(why, ERR_CONN_LOST, "the supervisor closed the connection");
	return ERR_NONE;
}

/* A whole line of k, as JSON; the rest moves up. */
static enum err take_line(struct supc *k, const char *nl, json_t **out, struct why *why)
{
	size_t n = (size_t)(nl - k->text) + 1;
	json_t *o = json_loadb(k->text, n, 0, NULL);
	memmove(k->text, k->text + n, k->n - n);
	k->n -= n;
	if (!json_is_object(o)) {
		json_decref(o);
		return why_set(why, ERR_BAD_MESSAGE, "the supervisor sent no JSON line");
	}
	*out = o;
	return ERR_NONE;
}

enum err supc_next(struct supc *k, int interrupt_fd, uint64_t deadline_ns, json_t **out,
		   struct why *why)
{
	for (;;) {
		const char *nl = memchr(k->text, '\n', k->n);
		if (nl)
			return take_line(k, nl, out, why);
		uint64_t left = clock_left_ms(deadline_ns, ctl_now_ns());
		if (left == 0)
			return why_set(why, ERR_TIMED_OUT,
				       "no answer from the supervisor in time");
		if (k->n == SUP_REPLY_MAX)
			return why_set(why, ERR_BAD_MESSAGE,
				       "the supervisor sent a line over %d bytes",
				       SUP_REPLY_MAX);
		if (ctl_wait(interrupt_fd, k->fd, left) == ERR_CANCELLED)
			return why_set(why, ERR_CANCELLED, "interrupted");
		ssize_t n = recv(k->fd, k->text + k->n, SUP_REPLY_MAX - k->n, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return why_set(why, ERR_CONN_LOST,
				       "the supervisor closed the connection");
		k->n += n > 0 ? (size_t)n : 0;
	}
}

enum err supc_status(const char *run_dir, int interrupt_fd, uint64_t deadline_ns, json_t **out,
		     struct why *why)
{
	struct supc *k = NULL;
	enum err e = supc_open(run_dir, &k, why);
	if (e == ERR_NONE)
		e = supc_send(k, "{\"op\":\"status\"}", why);
	if (e == ERR_NONE)
		e = supc_next(k, interrupt_fd, deadline_ns, out, why);
	supc_close(k);
	return e;
}

/* ---- launching ---- */

/* In the child: its own session, no terminal, output into the log; never returns. */
static void become_supervisor(const char *self, const char *const *argv, int log_fd)
{
	sigset_t none;
	int null_fd = open("/dev/null", O_RDWR);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	if (null_fd >= 0 && dup2(null_fd, 0) == 0 && dup2(log_fd, 1) == 1 &&
	    dup2(log_fd, 2) == 2)
		execv(self, (char *const *)argv);
	_exit(127);
}

/* What the supervisor says on its pipe until it closes it: "ok", or why not. */
static enum err read_verdict(int fd, struct why *why)
{
	char line[sizeof(why->text)];
	size_t n = 0;
	for (;;) {
		ssize_t r = read(fd, line + n, sizeof(line) - 1 - n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			break;
		n += (size_t)r;
	}
	while (n > 0 && line[n - 1] == '\n')
		n--;
	line[n] = '\0';
	if (strcmp(line, "ok") == 0)
		return ERR_NONE;
	return why_set(why, ERR_INTERNAL, "the supervisor did not start: %s",
		       n ? line : "it ended without a word; see log/supervisor.log");
}

/* Clears close-on-exec; the number as text. */
static const char *pass_fd(int fd, char *out, size_t size)
{
	fcntl(fd, F_SETFD, 0);
	snprintf(out, size, "%d", fd);
	return out;
}

enum err supc_launch(struct cli *c, const struct where *d, const char *const *sets,
		     size_t n_sets, bool adopt_only, int lock_fd, struct why *why)
{
	const char *argv[20 + 2 * CLI_SETS_MAX];
	char self[PATH_BYTES_MAX], logs[PATH_BYTES_MAX], lock[16], ready[16];
	int log_fd = -1, verdict[2] = { -1, -1 };
	size_t n = 0;
	enum err e = bin_self(self, why);
	if (e == ERR_NONE)
		e = path_join(logs, d->path, "log", why);
	if (e == ERR_NONE)
		e = suplog_open(logs, "supervisor", &log_fd, why);
	if (e == ERR_NONE && pipe2(verdict, O_CLOEXEC) != 0)
		e = why_set(why, err_from_errno(errno), "pipe: %s", strerror(errno));
	if (e != ERR_NONE)
		goto out;
	const char *fixed[] = { "pomelo",    "supervise", "--data",	   d->path,
				"--run-dir", d->run,	  "--secret-file", d->secret };
	for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
		argv[n++] = fixed[i];
	argv[n++] = "--lock-fd";
	argv[n++] = pass_fd(lock_fd, lock, sizeof(lock));
	argv[n++] = "--ready-fd";
	argv[n++] = pass_fd(verdict[1], ready, sizeof(ready));
	if (adopt_only)
		argv[n++] = "--adopt-only";
	for (size_t i = 0; i < n_sets; i++) {
		argv[n++] = "--set";
		argv[n++] = sets[i];
	}
	argv[n] = NULL;
	fflush(NULL);
	pid_t pid = fork(); /* no thread of ours runs yet */
	if (pid == 0)
		become_supervisor(self, argv, log_fd);
	close(verdict[1]);
	e = pid < 0 ? why_set(why, err_from_errno(errno), "fork: %s", strerror(errno))
		    : read_verdict(verdict[0], why);
	if (pid > 0 && e != ERR_NONE)
		waitpid(pid, NULL, 0);
	close(verdict[0]);
out:
	if (log_fd >= 0)
		close(log_fd);
	close(lock_fd);
	return e;
}
