/* SPDX-License-Identifier: Apache-2.0 */
#include "daemons.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../support/tcp_client.h"

extern char **environ;

#define DAEMON_DEF(tag, name, exe, folder) extern const struct svc_def tag##_def;
SERVICES(DAEMON_DEF)
#define DAEMON_ROW(tag, name, exe, folder) { &tag##_def, name, exe, folder },
const struct daemon_row daemon_rows[N_DAEMONS] = { SERVICES(DAEMON_ROW) };

_Noreturn static void fail(const char *what, const char *about)
{
	fprintf(stderr, "test harness: %s: %s (%s)\n", what, about, strerror(errno));
	abort();
}

const struct daemon_row *daemon_row(const char *name)
{
	for (size_t i = 0; i < N_DAEMONS; i++)
		if (strcmp(daemon_rows[i].name, name) == 0)
			return &daemon_rows[i];
	fail("no such daemon", name);
}

static void sleep_ms(unsigned ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };
	nanosleep(&t, NULL);
}

/* ---- the box ---- */

void box_make(struct box *b)
{
	struct why why = { 0 };
	*b = (struct box){ .dir = "/tmp/pml-XXXXXX" };
	signal(SIGPIPE, SIG_IGN); /* a daemon that ends is part of the test */
	if (!mkdtemp(b->dir))
		fail("no temporary folder", b->dir);
	snprintf(b->secret, sizeof(b->secret), "%s/secret", b->dir);
	if (secret_new(b->secret, &why) != ERR_NONE ||
	    keyring_load(b->secret, &b->keys, &why) != ERR_NONE)
		fail("no secret", why.text);
}

void box_remove(struct box *b)
{
	char cmd[128];
	keyring_free(b->keys);
	b->keys = NULL;
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", b->dir);
	if (system(cmd) != 0) // NOLINT(cert-env33-c): our own mkdtemp name
		fail("not removed", b->dir);
}

void box_write(const struct box *b, const char *name, const char *text)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/%s", b->dir, name);
	FILE *f = fopen(path, "we");
	if (!f || fputs(text, f) < 0 || fclose(f) != 0)
		fail("not written", path);
}

/* ---- processes ---- */

static void exe_path(const struct daemon_row *row, char *out, size_t size)
{
	const char *dir = getenv("POMELO_TEST_SERVICES");
	snprintf(out, size, "%s/%s/%s", dir ? dir : "build/services", row->folder, row->exe);
}

void proc_start(const struct box *b, const struct daemon_row *row, const char *const *args,
		struct proc *out)
{
	char exe[512];
	const char *argv[64] = { exe, "--data", b->dir };
	size_t n = 3;
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t attr;
	sigset_t none;
	/* nobody takes a pool in /dev/shm away after a test, nor wants a quarter of the memory in it */
	setenv("POMELO_AGENT_POOL_DIR", b->dir, 1);
	setenv("POMELO_AGENT_POOL_SIZE", "16MiB", 0);
	exe_path(row, exe, sizeof(exe));
	while (args && *args && n < ARRAY_LEN(argv) - 1)
		argv[n++] = *args++;
	*out = (struct proc){ .row = row };
	snprintf(out->log, sizeof(out->log), "%s/%s.stderr", b->dir, row->name);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_addopen(&fa, 2, out->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	posix_spawn_file_actions_adddup2(&fa, 2, 1);
	/* the test's runner may have blocked signals */
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	int r = posix_spawn(&out->pid, exe, &fa, &attr, (char *const *)argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&fa);
	errno = r;
	if (r != 0)
		fail("not started", exe);
}

static bool read_json(const struct box *b, struct proc *p)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/run/%s.json", b->dir, p->row->name);
	json_t *o = json_load_file(path, 0, NULL);
	bool mine = o && json_integer_value(json_object_get(o, "pid")) == p->pid;
	const char *http = json_string_value(json_object_get(o, "http"));
	const char *rpc = json_string_value(json_array_get(json_object_get(o, "rpc"), 0));
	const char *inst = json_string_value(json_object_get(o, "instance"));
	mine = mine && http && rpc && inst;
	if (mine) {
		snprintf(p->http, sizeof(p->http), "%s", http);
		snprintf(p->rpc, sizeof(p->rpc), "%s", rpc);
		snprintf(p->instance, sizeof(p->instance), "%s", inst);
	}
	json_decref(o);
	return mine;
}

bool proc_up(const struct box *b, struct proc *p, unsigned ms)
{
	for (unsigned t = 0; t < ms; t += 5) {
		if (read_json(b, p))
			return true;
		if (proc_wait(p, 0))
			return false;
		sleep_ms(5);
	}
	return false;
}

void proc_run(const struct box *b, const struct daemon_row *row, const char *const *args,
	      struct proc *out)
{
	char text[4096];
	proc_start(b, row, args, out);
	if (!proc_up(b, out, 20000))
		fail(row->exe, proc_log(out, text, sizeof(text)));
}

void proc_signal(const struct proc *p, int signum)
{
	if (p->pid > 0)
		kill(p->pid, signum);
}

bool proc_wait(struct proc *p, unsigned ms)
{
	for (unsigned t = 0; p->pid > 0; t += 2) {
		int status;
		if (waitpid(p->pid, &status, WNOHANG) == p->pid) {
			p->code = WIFEXITED(status) ? WEXITSTATUS(status)
						    : 128 + WTERMSIG(status);
			p->pid = 0;
			break;
		}
		if (t >= ms)
			return false;
		sleep_ms(2);
	}
	return true;
}

int proc_stop(struct proc *p)
{
	proc_signal(p, SIGCONT);
	proc_signal(p, SIGTERM);
	if (!proc_wait(p, 20000)) {
		proc_signal(p, SIGKILL);
		proc_wait(p, 20000);
	}
	return p->code;
}

const char *proc_log(const struct proc *p, char *out, size_t size)
{
	FILE *f = fopen(p->log, "re");
	size_t n = f ? fread(out, 1, size - 1, f) : 0;
	out[n] = 0;
	if (f)
		fclose(f);
	return out;
}

bool proc_http_until(const struct proc *p, const char *path, int status, unsigned ms, char *out,
		     size_t size)
{
	for (unsigned t = 0;; t += 20) {
		if (http_get(p->http, "GET", path, out, size, NULL) == status)
			return true;
		if (t >= ms)
			return false;
		sleep_ms(20);
	}
}

double metric_value(const char *text, const char *name)
{
	size_t n = strlen(name);
	for (const char *p = text; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (strncmp(p, name, n) == 0 && p[n] == ' ')
			return strtod(p + n + 1, NULL);
	}
	return -1;
}

/* ---- requests ---- */

void caller_open(struct caller *c, const struct box *b, const char *addr, enum role as,
		 enum role expect)
{
	struct why why = { 0 };
	*c = (struct caller){ .log = { .svc = "test", .fd = 2 } };
	if (loop_open(&c->loop) != ERR_NONE)
		fail("no loop", addr);
	loop_random(&c->loop, c->instance, sizeof(c->instance));
	struct rpc_client_opts o = { .addrs = &addr,
				     .n_addrs = 1,
				     .peer_name = "service",
				     .as = as,
				     .expect = expect,
				     .tenant = "default",
				     .holder = as == ROLE_HOLDER ? "test" : NULL,
				     .keys = b->keys,
				     .log = &c->log,
				     .instance = c->instance };
	if (rpc_client_new(&c->loop, &o, &c->client, &why) != ERR_NONE)
		fail("no client", why.text);
}

static void on_client_closed(void *arg)
{
	*(bool *)arg = true;
}

void caller_close(struct caller *c)
{
	bool closed = false;
	rpc_client_close(c->client, on_client_closed, &closed);
	while (!closed)
		loop_run_once(&c->loop, true);
	loop_close(&c->loop);
}

struct sync_call {
	struct rpc_call call;
	struct buf *reply;
	bool ended;
};

static void on_done(struct rpc_call *call)
{
	struct sync_call *s = container_of(call, struct sync_call, call);
	if (s->reply && call->reply.n)
		buf_put(s->reply, call->reply.p, call->reply.n);
	s->ended = true;
}

enum err caller_call(struct caller *c, uint32_t method, struct bytes body, uint64_t ms,
		     struct buf *reply, struct why *why)
{
	struct sync_call s = {
		.call = { .method = method,
			  .idempotent = true,
			  .body = body,
			  .done = on_done,
			  .deadline_ns = clock_after_ms(loop_now_ns(&c->loop), ms) },
		.reply = reply,
	};
	rpc_send(c->client, &s.call);
	while (!s.ended)
		loop_run_once(&c->loop, true);
	if (why)
		*why = s.call.why;
	return s.call.err;
}
