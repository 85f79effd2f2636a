/* SPDX-License-Identifier: Apache-2.0 */
#include "store_bed.h"

#include <errno.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rpc/engine.h"
#include "tests/support/tcp_client.h"

enum { SPIN_US = 50 /* the default of spin_us */, ECHO_MAX = 1 << 20, WAIT_MS = 30000 };

double bed_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct bed *live; /* the one whose daemons are to end with this program */

/* Not through the service's own door: something went wrong. */
static void abandon(struct bed *b)
{
	char cmd[160];
	if (b->echo_pid > 0)
		kill(b->echo_pid, SIGKILL);
	if (b->agent.pid > 0)
		kill(b->agent.pid, SIGKILL);
	if (b->master.pid > 0)
		kill(b->master.pid, SIGKILL);
	snprintf(cmd, sizeof(cmd), "rm -rf '%s' '%s'", b->shm, b->box.dir);
	if (system(cmd) != 0) // NOLINT(cert-env33-c): our own mkdtemp names
		fprintf(stderr, "not removed: %s %s\n", b->shm, b->box.dir);
}

_Noreturn void bed_die(const char *what, const char *text)
{
	struct bed *b = TAKE(live);
	fprintf(stderr, "bench_store: %s: %s\n", what, text);
	if (b)
		abandon(b);
	_exit(1);
}

/* ---- the bare echo ---- */

static const struct log quiet = { .svc = "bench", .fd = 2 };
static const struct eng_limits limits = {
	.message_bytes_max = 8 << 20,
	.anon_message_bytes_max = 8 << 20,
	.conns_max = 4,
	.conns_anon_max = 4,
	.handshake_ms = 5000,
	.frame_ms = 30000,
	.queue_bytes_max = 64 << 20,
	.conn_queue_bytes_max = 64 << 20,
	.inside_bytes_max = 64 << 20,
};

static void echo_address(const char *dir, char *out, size_t size)
{
	snprintf(out, size, "ipc://%s/echo.sock", dir);
}

/* A request begins with the length of its answer. */
static void on_request(void *ctx, struct eng_conn *c, struct eng_token t, struct bytes msg,
		       enum eng_life life)
{
	static const uint8_t zeros[ECHO_MAX];
	struct eng_server **s = ctx;
	uint32_t n = 0;
	if (msg.n >= sizeof(n))
		memcpy(&n, msg.p, sizeof(n));
	const struct bytes answer = { zeros, MIN_OF(n, (uint32_t)ECHO_MAX) };
	if (!c->known)
		engine_sp.known(*s, c);
	engine_sp.reply(*s, t, &answer, 1);
}

static void on_closed(void *ctx, struct eng_conn *c)
{
}

bool bed_echo_main(int argc, char **argv)
{
	static const struct eng_server_events events = { on_request, on_closed };
	static struct rpc_counters counters;
	struct eng_server *s = NULL;
	struct loop l;
	struct why why = { 0 };
	char addr[128], bound[300];
	if (argc != 3 || strcmp(argv[1], "--echo") != 0)
		return false;
	echo_address(argv[2], addr, sizeof(addr));
	struct eng_server_opts o = { .limits = limits,
				     .log = &quiet,
				     .counters = &counters,
				     .events = &events,
				     .ctx = &s };
	if (loop_open(&l) != ERR_NONE || engine_sp.server_new(&l, &o, &s) != ERR_NONE ||
	    engine_sp.listen(s, addr, bound, sizeof(bound), &why) != ERR_NONE)
		bed_die("echo", why.text);
	loop_spin(&l, SPIN_US, NULL);
	loop_run(&l);
	return true;
}

struct round {
	struct eng_xchg x;
	struct bed_echo *e;
	size_t at; /* of e->bytes */
	bool busy;
};

struct bed_echo {
	struct loop loop;
	struct eng_peer *peer;
	bool up, down, stop;
	struct round rounds[BED_FLIGHTS];
	struct bed_bytes bytes[2];
	size_t n_bytes;
	uint64_t n_done;
};

static void echo_up(void *ctx)
{
	((struct bed_echo *)ctx)->up = true;
}

static void echo_down(void *ctx, enum err e, const char *text)
{
	((struct bed_echo *)ctx)->down = true;
}

static bool echo_dial(struct bed_echo *e, const char *addr)
{
	static const struct eng_peer_events events = { echo_up, echo_down };
	struct eng_dial_opts o = {
		.limits = limits, .addr = addr, .log = &quiet, .events = &events, .ctx = e
	};
	struct why why = { 0 };
	e->down = false;
	if (engine_sp.dial(&e->loop, &o, &e->peer, &why) != ERR_NONE)
		bed_die("echo", why.text);
	while (!e->up && !e->down)
		loop_run_once(&e->loop, true);
	return e->up;
}

static void set_stop(void *arg)
{
	((struct bed_echo *)arg)->stop = true;
}

static void echo_hangup(struct bed_echo *e)
{
	e->stop = false;
	engine_sp.hangup(e->peer, set_stop, e);
	while (!e->stop)
		loop_run_once(&e->loop, true);
}

static void echo_open(struct bed *b)
{
	struct bed_echo *e = calloc(1, sizeof(*e));
	char addr[128];
	b->echo_pid = fork();
	if (b->echo_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/proc/self/exe", "bench_store", "--echo", b->box.dir, (char *)NULL);
		_exit(127);
	}
	if (!e || loop_open(&e->loop) != ERR_NONE)
		bed_die("echo", "no loop");
	loop_spin(&e->loop, SPIN_US, NULL);
	echo_address(b->box.dir, addr, sizeof(addr));
	for (double end = bed_now() + 10; !echo_dial(e, addr) && bed_now() < end;) {
		echo_hangup(e);
		usleep(10000);
	}
	if (!e->up)
		bed_die("echo", "it does not come up");
	b->echo = e;
	bed_echo_p50(b, (struct bed_bytes){ 8, 8 },
		     1); /* one that asks nothing is hung up on */
}

static void echo_close(struct bed *b)
{
	echo_hangup(b->echo);
	loop_close(&b->echo->loop);
	free(b->echo);
	kill(b->echo_pid, SIGKILL);
	waitpid(b->echo_pid, NULL, 0);
}

static void echo_send(struct round *r)
{
	static uint8_t ask[ECHO_MAX];
	struct bed_echo *e = r->e;
	uint32_t n = (uint32_t)e->bytes[r->at].answer;
	struct bytes msg = { ask, MAX_OF(e->bytes[r->at].ask, sizeof(n)) };
	memcpy(ask, &n, sizeof(n));
	if (engine_sp.send(e->peer, &r->x, &msg, 1) != ERR_NONE)
		bed_die("echo", "send");
}

static void on_echo(struct eng_xchg *x, enum err err, struct bytes reply)
{
	struct round *r = container_of(x, struct round, x);
	struct bed_echo *e = r->e;
	if (err != ERR_NONE || reply.n != e->bytes[r->at].answer)
		bed_die("echo", err ? err_text(err) : "an answer of another length");
	if (++r->at == e->n_bytes) {
		r->at = 0;
		e->n_done++;
		r->busy = !e->stop;
	}
	if (r->busy)
		echo_send(r);
}

static void echo_start(struct bed_echo *e, struct round *r)
{
	*r = (struct round){ .e = e, .busy = true };
	r->x.done = on_echo;
	echo_send(r);
}

static void echo_set(struct bed_echo *e, const struct bed_bytes *x, size_t n)
{
	e->n_bytes = 0;
	for (size_t i = 0; i < n; i++)
		if (x[i].ask)
			e->bytes[e->n_bytes++] = x[i];
	e->n_done = 0;
	e->stop = false;
}

double bed_echo(struct bed *b, const struct bed_bytes *x, size_t n, unsigned flights,
		unsigned ms)
{
	struct bed_echo *e = b->echo;
	double begin = bed_now(), end = begin + ms * 1e-3;
	echo_set(e, x, n);
	for (unsigned i = 0; i < flights; i++)
		echo_start(e, &e->rounds[i]);
	while (bed_now() < end)
		loop_run_once(&e->loop, true);
	e->stop = true;
	for (unsigned i = 0; i < flights; i++)
		while (e->rounds[i].busy)
			loop_run_once(&e->loop, true);
	return (double)e->n_done / (bed_now() - begin);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double bed_echo_p50(struct bed *b, struct bed_bytes x, unsigned n)
{
	struct bed_echo *e = b->echo;
	double *v = calloc(n, sizeof(*v));
	echo_set(e, &x, 1);
	e->stop = true; /* a round each */
	for (unsigned i = 0; v && i < n; i++) {
		double begin = bed_now();
		echo_start(e, &e->rounds[0]);
		while (e->rounds[0].busy)
			loop_run_once(&e->loop, true);
		v[i] = (bed_now() - begin) * 1e9;
	}
	if (!v)
		bed_die("echo", "no memory");
	qsort(v, n, sizeof(*v), by_value);
	double p50 = v[n / 2];
	free(v);
	return p50;
}

/* ---- daemons ---- */

static void find_daemons(void)
{
	char exe[512], dir[600];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	if (n <= 0)
		bed_die("exe", strerror(errno));
	exe[n] = '\0';
	snprintf(dir, sizeof(dir), "%s/services", dirname(dirname(exe)));
	setenv("POMELO_TEST_SERVICES", dir, 1);
}

static void start(struct bed *b, const char *name, const char *const *args, struct proc *p)
{
	static char text[8192];
	proc_start(&b->box, daemon_row(name), args, p);
	if (!proc_up(&b->box, p, WAIT_MS))
		bed_die(name, proc_log(p, text, sizeof(text)));
}

static double cpu_of(pid_t pid)
{
	clockid_t clock;
	struct timespec t = { 0 };
	if (pid == 0)
		clock = CLOCK_PROCESS_CPUTIME_ID;
	else if (clock_getcpuclockid(pid, &clock) != 0)
		return 0;
	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

double bed_cpu_now(void)
{
	return cpu_of(0);
}

/* The agent touches its pool after it is ready, slice by slice. */
static void wait_idle(const struct bed *b)
{
	double was = cpu_of(b->agent.pid), is;
	for (double end = bed_now() + 60;; was = is) {
		usleep(200000);
		is = cpu_of(b->agent.pid);
		if (is - was < 5e6)
			return;
		if (bed_now() > end)
			bed_die("agent", "it does not come to rest");
	}
}

/* Until the pool is merged: a put says so. */
static void wait_ready(struct bed *b)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	static char text[1 << 16];
	o.deadline_ms = WAIT_MS;
	if (!proc_http_until(&b->agent, "/readyz", 200, WAIT_MS, text, sizeof(text)) ||
	    !proc_http_until(&b->master, "/readyz", 200, WAIT_MS, text, sizeof(text)))
		bed_die("readyz", text);
	if (pml_put(b->p, "ready", 5, "x", 1, &o, &err) != 0)
		bed_die("put", err.text);
	wait_idle(b);
}

void bed_up(struct bed *b, const char *pool, unsigned slots)
{
	char dir[96], size[64], n[64];
	const char *margs[] = { "--set=master.http_port=0", NULL };
	const char *aargs[] = { "--set=agent.http_port=0",
				dir,
				size,
				n,
				"--set=agent.data_listen=tcp://127.0.0.1:0",
				NULL };
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	find_daemons();
	box_make(&b->box);
	live = b;
	snprintf(b->shm, sizeof(b->shm), "/dev/shm/pml-XXXXXX");
	if (!mkdtemp(b->shm))
		bed_die("/dev/shm", strerror(errno));
	snprintf(dir, sizeof(dir), "--set=agent.pool_dir=%s", b->shm);
	snprintf(size, sizeof(size), "--set=agent.pool_size=%s", pool);
	snprintf(n, sizeof(n), "--set=agent.slots=%u", slots);
	start(b, "master", margs, &b->master);
	start(b, "agent", aargs, &b->agent);
	o.data = b->box.dir;
	o.secret_file = b->box.secret;
	if (pml_open(&o, &b->p, &err) != 0 || pml_cq_new(b->p, 64, &b->cq, &err) != 0)
		bed_die("open", err.text);
	wait_ready(b);
	echo_open(b);
}

static void swap(struct bed *b)
{
	struct pml *p = b->p;
	struct pml_cq *cq = b->cq;
	b->p = b->tcp;
	b->cq = b->tcp_cq;
	b->tcp = p;
	b->tcp_cq = cq;
	b->over_tcp = !b->over_tcp;
}

void bed_tcp(struct bed *b, bool on)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	o.data = b->box.dir;
	o.secret_file = b->box.secret;
	if (on && !b->tcp) {
		setenv("POMELO_CLIENT_DATA_PATH", "tcp", 1);
		if (pml_open(&o, &b->tcp, &err) != 0 ||
		    pml_cq_new(b->tcp, 64, &b->tcp_cq, &err) != 0)
			bed_die("open", err.text);
		unsetenv("POMELO_CLIENT_DATA_PATH");
	}
	if (on != b->over_tcp)
		swap(b);
}

void bed_down(struct bed *b)
{
	char cmd[128];
	if (!b->p)
		return;
	live = NULL;
	echo_close(b);
	if (b->tcp) {
		pml_cq_free(b->tcp_cq);
		pml_close(b->tcp);
	}
	pml_cq_free(b->cq);
	pml_close(b->p);
	proc_stop(&b->agent);
	proc_stop(&b->master);
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", b->shm);
	if (system(cmd) != 0) // NOLINT(cert-env33-c): our own mkdtemp name
		fprintf(stderr, "not removed: %s\n", b->shm);
	box_remove(&b->box);
}

/* ---- calls ---- */

struct flight {
	struct pml_item items[BED_BATCH_MAX];
	struct pml_buf bufs[BED_BATCH_MAX];
};

static struct flight *flights; /* BED_FLIGHTS of them, as long as the program */

/* All keys are there before the time is taken, as a caller's are. */
enum { KEY_BYTES = 24, KEYS_MAX = 1 << 15 };
static char (*keys)[KEY_BYTES];

static void name_all(const struct bed_work *w)
{
	if (!keys)
		keys = calloc(KEYS_MAX, KEY_BYTES);
	if (!keys || w->n > KEYS_MAX)
		bed_die("keys", "no memory, or too many");
	for (uint32_t i = 0; i < w->n; i++)
		snprintf(keys[i], KEY_BYTES, "%s/%08u", w->prefix, i);
}

static void fill(const struct bed_work *w, struct flight *f, uint32_t from)
{
	for (uint32_t i = 0; i < w->batch; i++) {
		uint32_t at = from + i;
		struct pml_item *it = &f->items[i];
		if (w->mem)
			f->bufs[i] =
				(struct pml_buf){ w->mem + (size_t)(at % w->mem_n) * w->bytes,
						  w->bytes };
		*it = (struct pml_item)PML_ITEM_INIT;
		it->key = keys[at];
		it->key_bytes = strlen(keys[at]);
		it->bufs = w->mem ? &f->bufs[i] : NULL;
		it->n_bufs = w->mem ? 1 : 0;
	}
}

static void begin(struct bed *b, const struct bed_work *w, struct flight *f, uint32_t from)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_get_opts g = PML_GET_OPTS_INIT;
	struct pml_op *op;
	int e;
	g.verify = w->verify;
	fill(w, f, from);
	if (w->op == BED_PUT)
		e = pml_put_start(b->p, f->items, w->batch, NULL, b->cq, f, &op, &err);
	else if (w->op == BED_GET)
		e = pml_get_start(b->p, f->items, w->batch, &g, b->cq, f, &op, &err);
	else
		e = pml_exists_start(b->p, f->items, w->batch, NULL, b->cq, f, &op, &err);
	if (e != 0)
		bed_die("start", err.text);
}

static struct flight *collect(struct pml_op *op)
{
	struct flight *f = pml_op_user(op);
	struct pml_error err = PML_ERROR_INIT;
	if (pml_op_code(op) != 0) {
		pml_op_error(op, &err);
		bed_die(err.step, err.text);
	}
	pml_op_free(op);
	return f;
}

static struct bed_cpu cpu_now(const struct bed *b)
{
	return (struct bed_cpu){ cpu_of(0), cpu_of(b->master.pid), cpu_of(b->agent.pid) };
}

double bed_run(struct bed *b, const struct bed_work *w, struct bed_cpu *cpu)
{
	struct pml_op *ops[BED_FLIGHTS];
	uint32_t next = 0, left = w->n / w->batch;
	if (!flights)
		flights = calloc(BED_FLIGHTS, sizeof(*flights));
	if (!flights)
		bed_die("flights", "no memory");
	name_all(w);
	struct bed_cpu was = cpu_now(b);
	double start_s = bed_now();
	for (uint32_t i = 0; i < w->flights && next < w->n; i++, next += w->batch)
		begin(b, w, &flights[i], next);
	while (left > 0) {
		size_t n = pml_cq_wait(b->cq, ops, BED_FLIGHTS, WAIT_MS);
		if (n == 0)
			bed_die("wait", "nothing came");
		for (size_t i = 0; i < n; i++, left--) {
			struct flight *f = collect(ops[i]);
			if (next < w->n) {
				begin(b, w, f, next);
				next += w->batch;
			}
		}
	}
	double took = bed_now() - start_s;
	struct bed_cpu is = cpu_now(b);
	*cpu = (struct bed_cpu){ (is.client - was.client) / w->n,
				 (is.master - was.master) / w->n,
				 (is.agent - was.agent) / w->n };
	return w->n / took;
}

uint64_t bed_used(struct bed *b)
{
	struct pml_holder h = PML_HOLDER_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op;
	if (pml_holders(b->p, NULL, &op, &err) != 0 || pml_op_holder(op, 0, &h) != 0)
		bed_die("holders", err.text);
	uint64_t bytes = h.bytes_used;
	pml_op_free(op);
	return bytes;
}

void bed_clear(struct bed *b, const char *prefix, uint64_t used)
{
	struct pml_error err = PML_ERROR_INIT;
	uint64_t n = 0;
	if (pml_remove_prefix(b->p, prefix, strlen(prefix), NULL, &n, &err) != 0)
		bed_die("remove", err.text);
	for (double end = bed_now() + 60; bed_used(b) > used; usleep(2000))
		if (bed_now() > end)
			bed_die("remove", "its space does not come back");
}

/* ---- bytes of messages ---- */

static double counter(const struct proc *p, const char *name)
{
	static char text[1 << 18];
	if (http_get(p->http, "GET", "/metrics", text, sizeof(text), NULL) != 200)
		bed_die("metrics", p->http);
	return metric_value(text, name);
}

static void counters(const struct bed *b, double v[4])
{
	static const char *const in = "pomelo_rpc_bytes_total{way=\"in\"}",
				 *const out = "pomelo_rpc_bytes_total{way=\"out\"}";
	v[0] = counter(&b->master, in);
	v[1] = counter(&b->master, out);
	v[2] = counter(&b->agent, in);
	v[3] = counter(&b->agent, out);
}

void bed_bytes(struct bed *b, const struct bed_work *w, struct bed_bytes out[2])
{
	struct bed_cpu cpu;
	double was[4], is[4];
	counters(b, was);
	bed_run(b, w, &cpu);
	counters(b, is);
	double calls = (double)w->n / w->batch;
	out[0] = (struct bed_bytes){ (size_t)((is[0] - was[0]) / calls),
				     (size_t)((is[1] - was[1]) / calls) };
	out[1] = (struct bed_bytes){ (size_t)((is[2] - was[2]) / calls),
				     (size_t)((is[3] - was[3]) / calls) };
	if (w->op != BED_PUT)
		out[1] = (struct bed_bytes){ 0, 0 };
}
