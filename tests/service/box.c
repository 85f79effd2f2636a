/* SPDX-License-Identifier: Apache-2.0 */
#include "box.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMMAND_MS = 60000 };

uint64_t box_now_ms(void)
{
	return ctl_now_ns() / NS_PER_MS;
}

/* ---- folders ---- */

void box_init(struct box *b)
{
	*b = (struct box){ .dir = "/tmp/pomelo-box-XXXXXX" };
	cr_assert_not_null(mkdtemp(b->dir));
	snprintf(b->data, sizeof(b->data), "%s/d", b->dir);
	cr_assert_eq(mkdir(b->data, 0700), 0);
}

void box_init_odd(struct box *b)
{
	const char *odd = getenv("POMELO_TEST_ODD");
	char link[512];
	cr_assert_not_null(odd, "run by `meson test`, which says where odd_service is");
	box_init(b);
	snprintf(b->bindir, sizeof(b->bindir), "%s/bin", b->dir);
	cr_assert_eq(mkdir(b->bindir, 0700), 0);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		snprintf(link, sizeof(link), "%s/%s", b->bindir, service_rows[i].exe);
		cr_assert_eq(symlink(odd, link), 0);
	}
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

/* A sanitizer's report of a process that nobody waits for lands in its log. */
static void check_log(const struct box *b, const char *name)
{
	char file[64];
	snprintf(file, sizeof(file), "log/%s.log", name);
	const char *text = box_read(box_data(b, file));
	cr_expect(!strstr(text, "Sanitizer") && !strstr(text, "runtime error"), "%s: %s", file,
		  text);
}

void box_fini(struct box *b)
{
	struct box_ran r;
	box_run(b, &r, "down");
	check_log(b, "supervisor");
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		check_log(b, service_rows[i].name);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		pid_t pid = box_pid(b, service_rows[i].name);
		cr_expect_eq(pid, 0, "%s was left behind by `down`", service_rows[i].name);
		if (pid > 1)
			kill(pid, SIGKILL);
	}
	nftw(b->dir, drop, 16, FTW_DEPTH | FTW_PHYS);
}

const char *box_at(const struct box *b, const char *name)
{
	static char text[8][256];
	static unsigned next;
	char *t = text[next++ % 8];
	snprintf(t, sizeof(text[0]), "%s/%s", b->dir, name);
	return t;
}

const char *box_data(const struct box *b, const char *name)
{
	static char text[8][256];
	static unsigned next;
	char *t = text[next++ % 8];
	snprintf(t, sizeof(text[0]), "%s/%s", b->data, name);
	return t;
}

void box_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	cr_assert_geq(fd, 0, "%s", path);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

const char *box_read(const char *path)
{
	static char text[65536];
	int fd = open(path, O_RDONLY);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
	if (fd >= 0)
		close(fd);
	text[MAX_OF(n, 0)] = '\0';
	return text;
}

void box_manners(const struct box *b, const char *service, const char *manners)
{
	char name[32];
	snprintf(name, sizeof(name), "odd.%s", service);
	if (manners)
		box_write(box_data(b, name), manners);
	else
		unlink(box_data(b, name));
}

/* ---- commands ---- */

/* In the child: environment, arguments, exec. */
static void become(const struct box *b, const char *words)
{
	char text[2048], *argv[64], *save;
	int argc = 0;
	const char *exe = getenv("POMELO_TEST_EXE");
	argv[argc++] = "pomelo";
	argv[argc++] = "--data";
	argv[argc++] = (char *)b->data;
	snprintf(text, sizeof(text), "%s", words);
	if (strncmp(words, "up", 2) == 0 ||
	    strstr(words, " up")) /* not a quarter of the memory */
		setenv("POMELO_AGENT_POOL_SIZE", "16MiB", 0);
	bool env = true;
	for (char *w = strtok_r(text, " ", &save); w && argc < 63;
	     w = strtok_r(NULL, " ", &save)) {
		char *eq = strchr(w, '=');
		env &= eq && w[0] >= 'A' && w[0] <= 'Z';
		if (env) {
			*eq = '\0';
			setenv(w, eq + 1, 1);
		} else {
			argv[argc++] = w;
		}
	}
	argv[argc] = NULL;
	if (b->bindir[0] && !getenv("POMELO_BINDIR"))
		setenv("POMELO_BINDIR", b->bindir, 1);
	if (exe)
		execv(exe, argv);
	_exit(127);
}

void box_start(const struct box *b, struct box_job *j, const char *words)
{
	int out[2], err[2];
	cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
	cr_assert_eq(pipe2(err, O_CLOEXEC), 0);
	*j = (struct box_job){ .out = out[0], .err = err[0], .start_ns = ctl_now_ns() };
	j->pid = fork();
	cr_assert_geq(j->pid, 0);
	if (j->pid == 0) {
		dup2(out[1], 1);
		dup2(err[1], 2);
		become(b, words);
	}
	close(out[1]);
	close(err[1]);
}

/* Reads one end into text; false at its end. */
static bool take(int fd, char *text, size_t size)
{
	size_t at = strlen(text);
	ssize_t n = read(fd, text + at, size - 1 - at);
	if (n > 0)
		text[at + (size_t)n] = '\0';
	return n > 0;
}

void box_wait(struct box_job *j, struct box_ran *r)
{
	struct pollfd p[2] = { { .fd = j->out, .events = POLLIN },
			       { .fd = j->err, .events = POLLIN } };
	uint64_t end = box_now_ms() + COMMAND_MS;
	int status = 0;
	*r = (struct box_ran){ 0 };
	while (p[0].fd >= 0 || p[1].fd >= 0) {
		uint64_t now = box_now_ms();
		cr_assert_lt(now, end, "the command hangs: %s %s", r->out, r->err);
		poll(p, 2, (int)(end - now));
		if (p[0].revents && !take(j->out, r->out, sizeof(r->out)))
			p[0].fd = -1;
		if (p[1].revents && !take(j->err, r->err, sizeof(r->err)))
			p[1].fd = -1;
	}
	cr_assert_eq(waitpid(j->pid, &status, 0), j->pid);
	close(j->out);
	close(j->err);
	r->code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
	r->seconds = (double)(ctl_now_ns() - j->start_ns) / 1e9;
}

void box_run(const struct box *b, struct box_ran *r, const char *words)
{
	struct box_job j;
	box_start(b, &j, words);
	box_wait(&j, r);
}

json_t *box_json(const struct box_ran *r)
{
	size_t n = strlen(r->out);
	cr_assert(n > 1 && r->out[n - 1] == '\n', "no line: '%s' %s", r->out, r->err);
	const char *line = r->out + n - 1;
	while (line > r->out && line[-1] != '\n')
		line--;
	json_t *o = json_loads(line, 0, NULL);
	cr_assert_not_null(o, "%s", line);
	return o;
}

/* ---- the cluster ---- */

/* The run folder: DATA/run, or where it points. */
static const char *run_of(const struct box *b, char *out, size_t size)
{
	const char *run = box_data(b, "run");
	ssize_t n = readlink(run, out, size - 1);
	if (n <= 0)
		return run;
	out[n] = '\0';
	return out;
}

bool box_view(const struct box *b, struct up_view *v)
{
	struct why why = { 0 };
	char run[256];
	json_t *o = NULL;
	if (supc_status(run_of(b, run, sizeof(run)), -1, clock_after_ms(ctl_now_ns(), 5000), &o,
			&why) != ERR_NONE)
		return false;
	up_view_read(o, v);
	json_decref(o);
	return true;
}

bool box_until(const struct box *b, uint64_t ms,
	       bool (*cond)(const struct up_view *v, void *arg), void *arg)
{
	struct up_view v;
	uint64_t end = box_now_ms() + ms;
	do {
		if (box_view(b, &v) && (cond ? cond(&v, arg) : v.n_ready == SERVICE_COUNT))
			return true;
		usleep(2000);
	} while (box_now_ms() < end);
	return false;
}

pid_t box_pid(const struct box *b, const char *service)
{
	char run[256];
	pid_t pid = 0;
	return run_holder(run_of(b, run, sizeof(run)), service, &pid) == ERR_NONE ? pid : 0;
}
