/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend of real processes. Everything lives in one temporary folder:
 *
 *   DIR/secret            the cluster secret, 0600
 *   DIR/NODE/             a machine's disk; a tmpfs of its own when we are root
 *   DIR/NODE/MEMBER/      a member's folder (%d); MEMBER.log beside it has its output
 *   DIR/MEMBER.sock       where it listens, unless its options say otherwise
 *   DIR/FROM.MEMBER/      the proxy's doors for callers on the node FROM: rpc.sock, and beat.sock for
 *                         what goes to the beat.sock beside the member's socket
 *
 * Children die with the test's process. Callers share one real loop.
 */
#include "tests/support/cluster_priv.h"
#include "tests/support/proxy.h"
#include "tests/support/sim_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGS_MAX   32
#define DISK_BYTES "67108864"
#define SLICE_MS   5
#define PATH_BYTES 256

struct real {
	struct sim *events; /* for its list alone */
	uint64_t start_ns;
	char dir[64];
	struct proxy *proxy;
	struct loop loop;
	struct timer slice;
	int n_nodes;
	bool mounts; /* we may mount */
};

struct real_node {
	int idx;
	bool mounted;
	char dir[PATH_BYTES];
};

struct real_member {
	pid_t pid;
	int status;
	char dir[PATH_BYTES];
};

static struct real *real_of(const struct cluster *c)
{
	return c->impl;
}

static struct real_node *rn(const struct cl_node *n)
{
	return n->impl;
}

static struct real_member *rm(const struct cl_member *m)
{
	return m->impl;
}

static void make_dir(const char *path)
{
	SIM_CHECK(mkdir(path, 0700) == 0, "mkdir %s: %s", path, strerror(errno));
}

static void write_secret(struct real *r)
{
	static const char text[] = "a cluster under test: no secret"; /* as cluster.c */
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/secret", r->dir);
	FILE *f = fopen(path, "wx");
	SIM_CHECK(f && fchmod(fileno(f), 0600) == 0, "%s: %s", path, strerror(errno));
	for (size_t i = 0; i < sizeof(text); i++)
		fprintf(f, "%02x", (unsigned char)text[i]);
	fputc('\n', f);
	fclose(f);
}

static void open_cluster(struct cluster *c)
{
	struct real *r = calloc(1, sizeof(*r));
	const char *tmp = getenv("TMPDIR");
	SIM_CHECK(r, "no memory");
	c->impl = r;
	snprintf(r->dir, sizeof(r->dir), "%.30s/pomelo-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	SIM_CHECK(mkdtemp(r->dir), "mkdtemp %s: %s", r->dir, strerror(errno));
	write_secret(r);
	signal(SIGPIPE, SIG_IGN); /* as a daemon does: a peer that dies is EPIPE */
	r->events = sim_new(c->o.seed);
	r->start_ns = clock_real.now_ns(&clock_real);
	r->proxy = proxy_new(c->o.seed);
	r->mounts = geteuid() == 0;
	enum err e = loop_open(&r->loop);
	SIM_CHECK(e == ERR_NONE, "no loop: %s", err_name(e));
}

static void node_add(struct cluster *c, struct cl_node *n)
{
	struct real *r = real_of(c);
	struct real_node *x = calloc(1, sizeof(*x));
	SIM_CHECK(x, "no memory");
	n->impl = x;
	x->idx = r->n_nodes++;
	snprintf(x->dir, sizeof(x->dir), "%s/%s", r->dir, n->name);
	make_dir(x->dir);
	if (r->mounts)
		x->mounted = mount("pomelo-test", x->dir, "tmpfs", MS_NOSUID | MS_NODEV,
				   "mode=0700,size=" DISK_BYTES) == 0;
}

static void expand(struct cluster *c, struct cl_member *m, const char *arg,
		   char out[PATH_BYTES]);

static void member_add(struct cluster *c, struct cl_member *m)
{
	struct real *r = real_of(c);
	struct real_member *x = calloc(1, sizeof(*x));
	SIM_CHECK(x, "no memory");
	SIM_CHECK(m->o.exe, "%s has no program to run", m->name);
	m->impl = x;
	snprintf(x->dir, sizeof(x->dir), "%.120s/%s", rn(m->on)->dir, m->name);
	make_dir(x->dir);
	snprintf(m->addr, sizeof(m->addr), "ipc://%s/%s.sock", r->dir, m->name);
	if (m->o.addr) {
		char text[PATH_BYTES];
		expand(c, m, m->o.addr, text);
		SIM_CHECK(strncmp(text, "ipc:///", 7) == 0, "%s: want ipc://PATH", text);
		snprintf(m->addr, sizeof(m->addr), "%.150s", text);
	}
}

static uint64_t now_ns(struct cluster *c)
{
	(void)c;
	return clock_real.now_ns(&clock_real);
}

static void note(struct cluster *c, const char *text)
{
	struct real *r = real_of(c);
	r->events->now_ns = now_ns(c) - r->start_ns;
	sim_fault(r->events, "%s", text);
}

/* ---- processes ---- */

/* Takes note of one that ended. */
static void reap(struct cluster *c, struct cl_member *m)
{
	struct real_member *x = rm(m);
	if (x->pid <= 0 || waitpid(x->pid, &x->status, WNOHANG) != x->pid)
		return;
	x->pid = 0;
	cl_member_ended(c, m);
	if (WIFSIGNALED(x->status))
		snprintf(m->why, sizeof(m->why), "signal %d", WTERMSIG(x->status));
	else
		snprintf(m->why, sizeof(m->why), "exit code %d", WEXITSTATUS(x->status));
	cl_note(c, "%s ended: %s", m->name, m->why);
}

static void on_slice(struct timer *t)
{
	(void)t;
}

static bool run(struct cluster *c, bool (*pred)(void *arg), void *arg, uint64_t until_ns)
{
	struct real *r = real_of(c);
	for (;;) {
		list_for_each (i, &c->members)
			reap(c, list_entry(i, struct cl_member, node));
		if (pred && pred(arg))
			return true;
		uint64_t now = now_ns(c);
		if (now >= until_ns)
			return false;
		timer_start(&r->loop, &r->slice, MIN_OF(until_ns, now + SLICE_MS * NS_PER_MS),
			    on_slice);
		loop_run_once(&r->loop, true);
		timer_stop(&r->loop, &r->slice);
	}
}

static const char *addr(struct cluster *c, struct cl_node *from, struct cl_member *to);

static void expand(struct cluster *c, struct cl_member *m, const char *arg,
		   char out[PATH_BYTES])
{
	const char *peer = "";
	if (m->o.peer)
		peer = addr(c, m->on, cl_member_of(c, m->o.peer));
	out[0] = 0;
	for (size_t n = 0; *arg && n < PATH_BYTES - 1; arg++) {
		const char *put = NULL;
		if (*arg == '%' && arg[1] == 'd')
			put = rm(m)->dir;
		else if (*arg == '%' && arg[1] == 'a')
			put = m->addr;
		else if (*arg == '%' && arg[1] == 'm')
			put = peer;
		else if (*arg == '%' && arg[1] == 's')
			put = real_of(c)->dir;
		if (put) {
			n += (size_t)snprintf(out + n, PATH_BYTES - n, "%s%s", put,
					      arg[1] == 's' ? "/secret" : "");
			arg++;
		} else {
			out[n++] = *arg;
			out[n] = 0;
		}
	}
}

/* After fork: only calls that are safe there. */
static _Noreturn void child(char *const *argv, int log)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(log, 1);
	dup2(log, 2);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	execv(argv[0], argv);
	static const char text[] = "cannot execute the program\n";
	ssize_t w = write(2, text, sizeof(text) - 1);
	(void)w;
	_exit(127);
}

static bool start(struct cluster *c, struct cl_member *m)
{
	static char exe[512], text[ARGS_MAX][PATH_BYTES];
	char *argv[ARGS_MAX + 2] = { exe }, log[PATH_BYTES + 8];
	const char *root = getenv("CL_BUILD_ROOT");
	size_t n = 0;
	snprintf(exe, sizeof(exe), "%s/%s", root ? root : CL_BUILD_ROOT, m->o.exe);
	for (; m->o.args && m->o.args[n]; n++) {
		SIM_CHECK(n < ARGS_MAX, "%s has more than %d arguments", m->name, ARGS_MAX);
		expand(c, m, m->o.args[n], text[n]);
		argv[n + 1] = text[n];
	}
	/* a pool in /dev/shm would stay, and would want a quarter of the memory */
	setenv("POMELO_AGENT_POOL_DIR", rm(m)->dir, 1);
	setenv("POMELO_AGENT_POOL_SIZE", "16MiB", 0);
	snprintf(log, sizeof(log), "%s.log", rm(m)->dir);
	int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	SIM_CHECK(fd >= 0, "%s: %s", log, strerror(errno));
	pid_t pid = fork();
	SIM_CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0)
		child(argv, fd);
	close(fd);
	rm(m)->pid = pid;
	return true;
}

static void send_signal(struct cl_member *m, int sig)
{
	if (rm(m)->pid > 0)
		kill(rm(m)->pid, sig);
}

static void term(struct cluster *c, struct cl_member *m)
{
	(void)c;
	send_signal(m, SIGTERM);
}

/* Gone when this returns. */
static void kill_member(struct cluster *c, struct cl_member *m)
{
	struct real_member *x = rm(m);
	(void)c;
	send_signal(m, SIGKILL);
	if (x->pid > 0)
		waitpid(x->pid, &x->status, 0);
	x->pid = 0;
}

static void stop(struct cluster *c, struct cl_member *m)
{
	(void)c;
	send_signal(m, SIGSTOP);
}

static void cont(struct cluster *c, struct cl_member *m)
{
	(void)c;
	send_signal(m, SIGCONT);
}

/* ---- callers ---- */

static const char *addr(struct cluster *c, struct cl_node *from, struct cl_member *to)
{
	struct real *r = real_of(c);
	if (from == to->on)
		return to->addr;
	for (struct cl_route *i = c->routes; i; i = i->next)
		if (i->from == from && i->to == to)
			return i->addr;
	struct cl_route *x = calloc(1, sizeof(*x));
	char dir[PATH_BYTES], at[PATH_BYTES + 16], beats[CL_ADDR_MAX + 16];
	SIM_CHECK(x, "no memory");
	*x = (struct cl_route){ .from = from, .to = to, .next = c->routes };
	snprintf(dir, sizeof(dir), "%s/%s.%s", r->dir, from->name, to->name);
	make_dir(dir);
	snprintf(at, sizeof(at), "ipc://%s/rpc.sock", dir);
	enum err e = proxy_route(r->proxy, at, to->addr, rn(from)->idx, rn(to->on)->idx,
				 x->addr, sizeof(x->addr));
	snprintf(at, sizeof(at), "%s/beat.sock", dir);
	const char *path = to->addr + strlen("ipc://"), *slash = strrchr(path, '/');
	snprintf(beats, sizeof(beats), "%.*s/beat.sock", (int)(slash - path), path);
	if (e == ERR_NONE)
		e = proxy_route_dgrams(r->proxy, at, beats, rn(from)->idx, rn(to->on)->idx);
	SIM_CHECK(e == ERR_NONE, "%s: %s", at, err_name(e));
	c->routes = x;
	return x->addr;
}

static struct loop *caller_loop(struct cluster *c, struct cl_node *n)
{
	(void)n;
	return &real_of(c)->loop;
}

static void run_in(struct cluster *c, struct cl_node *n, void (*fn)(void *arg), void *arg)
{
	(void)c, (void)n;
	fn(arg);
}

/* ---- faults ---- */

static void cut(struct cluster *c, struct cl_node *from, struct cl_node *to)
{
	proxy_cut(real_of(c)->proxy, rn(from)->idx, rn(to)->idx, true);
}

static void heal(struct cluster *c, struct cl_node *a, struct cl_node *b)
{
	struct real *r = real_of(c);
	for (int i = 0; i < r->n_nodes; i++)
		for (int j = 0; j < r->n_nodes; j++)
			if (!a || (i == rn(a)->idx && j == rn(b)->idx) ||
			    (i == rn(b)->idx && j == rn(a)->idx))
				proxy_cut(r->proxy, i, j, false);
}

static void delay(struct cluster *c, struct cl_node *from, struct cl_node *to, uint32_t ms,
		  uint32_t for_ms)
{
	proxy_delay(real_of(c)->proxy, rn(from)->idx, rn(to)->idx, ms, for_ms);
}

static void reorder(struct cluster *c, uint32_t ppm)
{
	proxy_reorder(real_of(c)->proxy, ppm);
}

static void reset(struct cluster *c, struct cl_node *a, struct cl_node *b)
{
	proxy_reset(real_of(c)->proxy, rn(a)->idx, b ? rn(b)->idx : -1);
}

/* Without a tmpfs: no file of the members may grow. They must ignore SIGXFSZ, and get EFBIG. */
static void limit_files(struct cluster *c, struct cl_node *n, bool full)
{
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		struct rlimit l = { full ? 0 : RLIM_INFINITY, RLIM_INFINITY };
		if (m->on == n && rm(m)->pid > 0)
			prlimit(rm(m)->pid, RLIMIT_FSIZE, &l, NULL);
	}
}

static void disk_full(struct cluster *c, struct cl_node *n, bool full)
{
	char path[PATH_BYTES + 8];
	struct statvfs v;
	snprintf(path, sizeof(path), "%s/fill", rn(n)->dir);
	if (!rn(n)->mounted) {
		limit_files(c, n, full);
		return;
	}
	unlink(path);
	if (!full)
		return;
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	SIM_CHECK(fd >= 0 && fstatvfs(fd, &v) == 0, "%s: %s", path, strerror(errno));
	if (v.f_bavail > 0) {
		int e = posix_fallocate(fd, 0, (off_t)(v.f_bavail * v.f_bsize));
		SIM_CHECK(e == 0, "%s: %s", path, strerror(e));
	}
	close(fd);
}

static void wake_node(struct cluster *c, struct cl_action *a)
{
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		if (strcmp(m->on->name, a->a) == 0)
			send_signal(m, SIGCONT);
	}
}

static void suspend(struct cluster *c, struct cl_node *n, uint32_t ms)
{
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		if (m->on == n)
			send_signal(m, SIGSTOP);
	}
	struct cl_action wake = { .fn = wake_node, .a = n->name };
	cl_later(c, clock_after_ms(now_ns(c), ms), &wake);
}

/* ---- the end ---- */

static void remove_tree(const char *path)
{
	char cmd[PATH_BYTES + 16];
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", path);
	int r = system(cmd); /* NOLINT(cert-env33-c): a folder we made, named by mkdtemp */
	SIM_CHECK(r == 0, "%s: exit status %d", cmd, r);
}

static void close_cluster(struct cluster *c)
{
	struct real *r = real_of(c);
	loop_close(&r->loop);
	proxy_free(r->proxy);
	list_for_each (i, &c->nodes) {
		struct real_node *x = list_entry(i, struct cl_node, node)->impl;
		if (x->mounted)
			umount2(x->dir, MNT_DETACH);
		free(x);
	}
	list_for_each (i, &c->members)
		free(list_entry(i, struct cl_member, node)->impl);
	for (struct cl_route *x; (x = c->routes);) {
		c->routes = x->next;
		free(x);
	}
	remove_tree(r->dir);
	sim_free(r->events);
	free(r);
}

const struct cl_ops cl_ops_real = {
	.can = 1u << CL_PARTITION | 1u << CL_DELAY | 1u << CL_REORDER | 1u << CL_RESET |
	       1u << CL_DISK_FULL | 1u << CL_SUSPEND,
	.open = open_cluster,
	.close = close_cluster,
	.node_add = node_add,
	.member_add = member_add,
	.now_ns = now_ns,
	.run = run,
	.start = start,
	.term = term,
	.kill = kill_member,
	.stop = stop,
	.cont = cont,
	.note = note,
	.addr = addr,
	.loop = caller_loop,
	.run_in = run_in,
	.cut = cut,
	.heal = heal,
	.delay = delay,
	.reorder = reorder,
	.reset = reset,
	.disk_full = disk_full,
	.suspend = suspend,
};
