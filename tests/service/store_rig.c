/* SPDX-License-Identifier: Apache-2.0 */
#include "store_rig.h"

#include "base/fault.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../support/tcp_client.h"

enum { FOREIGN = 1000 }; /* a kid's code: bytes that are not the object's */

uint64_t rig_now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void rig_sleep(unsigned ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };
	nanosleep(&t, NULL);
}

uint64_t rig_chance(uint64_t *rng, uint64_t n)
{
	*rng = *rng * 6364136223846793005u + 1442695040888963407u;
	return (*rng >> 33) % n;
}

/* ---- values ---- */

static uint64_t value_next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static uint64_t value_begin(uint64_t seed)
{
	return (seed + 1) * 0x9e3779b97f4a7c15u | 1;
}

void value_fill(uint8_t *p, size_t n, uint64_t seed)
{
	uint64_t x = value_begin(seed);
	for (size_t at = 0; at < n; at += 8) {
		uint64_t v = value_next(&x);
		memcpy(p + at, &v, MIN_OF(n - at, 8));
	}
}

bool value_is(const uint8_t *p, size_t n, uint64_t seed)
{
	uint64_t x = value_begin(seed);
	for (size_t at = 0; at < n; at += 8) {
		uint64_t v = value_next(&x);
		if (memcmp(p + at, &v, MIN_OF(n - at, 8)) != 0)
			return false;
	}
	return true;
}

/* ---- the end of a test that failed ---- */

static void end_proc(struct proc *p)
{
	if (p->pid <= 0)
		return;
	kill(p->pid, SIGKILL);
	waitpid(p->pid, NULL, 0);
	p->pid = 0;
}

static void show_log(const struct proc *p)
{
	static char text[1 << 20];
	if (!p->log[0])
		return;
	size_t n = strlen(proc_log(p, text, sizeof(text)));
	fprintf(stderr, "---- %s\n%s\n", p->log, text + (n > 2500 ? n - 2500 : 0));
}

static void end_all(struct rig *r)
{
	end_proc(&r->master);
	for (unsigned i = 0; i < RIG_AGENTS; i++)
		end_proc(&r->agent[i]);
}

static void remove_all(struct rig *r)
{
	char cmd[128];
	if (r->supervised) { /* its pool went with `down` */
		box_remove(&r->box[0]);
		return;
	}
	for (unsigned i = 0; i < RIG_AGENTS; i++) {
		snprintf(cmd, sizeof(cmd), "rm -rf '%s'", r->shm[i]);
		if (system(cmd) != 0) // NOLINT(cert-env33-c): our own mkdtemp name
			fprintf(stderr, "not removed: %s\n", r->shm[i]);
		box_remove(&r->box[i]);
	}
}

/* What a live process says of itself, as far as it bears on objects. */
static void show_state(const struct proc *p)
{
	static const char *const of[] = { "objects",	   "copies",	 "attempts",
					  "calls_waiting", "bytes{",	 "slots",
					  "evict",	   "quarantine", "holders" };
	static char text[1 << 18];
	if (p->pid <= 0 ||
	    http_get(p->http, "GET", "/metrics", text, sizeof(text), NULL) != 200)
		return;
	fprintf(stderr, "---- %s\n", p->row->name);
	for (char *save, *line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; line[0] != '#' && i < ARRAY_LEN(of); i++)
			if (strstr(line, of[i])) {
				fprintf(stderr, "%s\n", line);
				break;
			}
}

_Noreturn void rig_fail(struct rig *r)
{
	if (r->supervised)
		rig_sup_fail(r);
	show_state(&r->master);
	for (unsigned i = 0; i < RIG_AGENTS; i++)
		if (!rig_stopped(r->agent[i].pid, 0))
			show_state(&r->agent[i]);
	end_all(r);
	show_log(&r->master);
	for (unsigned i = 0; i < RIG_AGENTS; i++)
		show_log(&r->agent[i]);
	if (!getenv("POMELO_TEST_KEEP"))
		remove_all(r);
	exit(1);
}

/* ---- the cluster ---- */

static bool port_free(unsigned port, int type)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
	bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* Beats go to the port + 5. */
static unsigned some_port(void)
{
	for (unsigned i = 0, p = 20000 + (unsigned)getpid() % 10000; i < 500; i++, p += 7)
		if (port_free(p, SOCK_STREAM) && port_free(p + 5, SOCK_DGRAM))
			return p;
	fprintf(stderr, "no free port\n");
	exit(1);
}

static void start(struct rig *r, unsigned i, const char *name, const char *const *args,
		  const char *faults, struct proc *p)
{
	static char text[8192];
	if (faults)
		setenv("POMELO_TEST_FAULTS", faults, 1);
	proc_start(&r->box[i], daemon_row(name), args, p);
	unsetenv("POMELO_TEST_FAULTS");
	CHECK(r, proc_up(&r->box[i], p, RIG_WAIT_MS), "%s does not come up: %s", name,
	      proc_log(p, text, sizeof(text)));
}

void rig_master(struct rig *r, const char *faults)
{
	static char listen[64], dead[48], discard[64], budget[64];
	const char *args[] = { "--set",
			       listen,
			       "--set",
			       dead,
			       "--set",
			       discard,
			       "--set=master.http_port=0",
			       "--set=master.lease_ms=300",
			       "--set=master.lease_max_ms=1000",
			       "--set=suspect_ms=700",
			       "--set=beat_ms=100",
			       r->budget ? budget : NULL,
			       NULL };
	snprintf(listen, sizeof(listen), "master.listen=tcp://127.0.0.1:%u", r->port);
	snprintf(dead, sizeof(dead), "holder_dead_ms=%u", r->dead_ms);
	snprintf(discard, sizeof(discard), "master.put_start_discard_ms=%u", r->discard_ms);
	snprintf(budget, sizeof(budget), "--set=master.tombs_max=%u", r->budget);
	start(r, 0, "master", args, faults, &r->master);
}

static void read_id(struct rig *r, unsigned i)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/run/agent.json", r->box[i].dir);
	json_t *o = json_load_file(path, 0, NULL);
	const char *id = json_string_value(json_object_get(o, "id"));
	CHECK(r, id, "%s: no id", path);
	snprintf(r->id[i], sizeof(r->id[i]), "%s", id);
	json_decref(o);
}

void rig_agent(struct rig *r, unsigned i, const char *faults)
{
	static char masters[64], secret[128], pool[64], dir[96];
	const char *args[] = { "--set",
			       masters,
			       "--set",
			       secret,
			       "--set",
			       pool,
			       "--set",
			       dir,
			       "--set=agent.http_port=0",
			       "--set=beat_ms=100",
			       "--set=agent.register_ms=500",
			       "--set=agent.workers=1",
			       NULL };
	snprintf(masters, sizeof(masters), "masters=tcp://127.0.0.1:%u", r->port);
	snprintf(secret, sizeof(secret), "secret_file=%s", r->box[0].secret);
	snprintf(pool, sizeof(pool), "agent.pool_size=%uMiB", r->pool_mib);
	snprintf(dir, sizeof(dir), "agent.pool_dir=%s", r->shm[i]);
	start(r, i, "agent", args, faults, &r->agent[i]);
	read_id(r, i);
}

void rig_kill(struct rig *r, struct proc *p)
{
	CHECK(r, p->pid > 0, "%s has ended by itself, code %d", p->row->name, p->code);
	kill(p->pid, SIGKILL);
	CHECK(r, proc_wait(p, RIG_WAIT_MS), "%s cannot be killed", p->row->name);
	CHECK(r, p->code == 128 + SIGKILL, "%s ended before it was killed: %d", p->row->name,
	      p->code);
}

bool rig_stopped(pid_t pid, unsigned ms)
{
	uint64_t end = rig_now_ms() + ms;
	do {
		siginfo_t i = { 0 };
		if (waitid(P_PID, (id_t)pid, &i, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) == 0 &&
		    i.si_pid == pid)
			return i.si_code == CLD_STOPPED;
		rig_sleep(2);
	} while (rig_now_ms() < end);
	return false;
}

bool rig_ended(pid_t pid)
{
	siginfo_t i = { 0 };
	return waitid(P_PID, (id_t)pid, &i, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	       i.si_pid == pid;
}

/* The agent's state as the master says; "" when it says nothing. */
static void state_of(struct rig *r, const char *id, char *out, size_t size, bool *recovering)
{
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_op *op = NULL;
	o.deadline_ms = 2000;
	out[0] = '\0';
	if (pml_holders(r->p, &o, &op, NULL) != 0)
		return;
	*recovering = pml_op_recovering(op);
	for (size_t i = 0; i < pml_op_n_holders(op); i++) {
		struct pml_holder h = PML_HOLDER_INIT;
		if (pml_op_holder(op, i, &h) == 0 && strcmp(h.id, id) == 0)
			snprintf(out, size, "%s", h.state);
	}
	pml_op_free(op);
}

static void until(struct rig *r, unsigned agent, const char *state, bool settled)
{
	uint64_t end = rig_now_ms() + RIG_WAIT_MS;
	char is[32];
	bool recovering = true;
	for (;;) {
		state_of(r, r->id[agent], is, sizeof(is), &recovering);
		if (strcmp(is, state) == 0 && !(settled && recovering))
			return;
		CHECK(r, rig_now_ms() < end, "agent %u is '%s', not '%s'%s", agent, is, state,
		      recovering ? ", recovering" : "");
		rig_sleep(20);
	}
}

void rig_until(struct rig *r, unsigned agent, const char *state)
{
	until(r, agent, state, false);
}

void rig_settled(struct rig *r)
{
	for (unsigned i = 0; i < RIG_AGENTS; i++)
		until(r, i, "in", true);
}

void rig_up(struct rig *r)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	r->port = some_port();
	for (unsigned i = 0; i < RIG_AGENTS; i++) {
		box_make(&r->box[i]);
		snprintf(r->shm[i], sizeof(r->shm[i]), "/dev/shm/pml-XXXXXX");
		CHECK(r, mkdtemp(r->shm[i]), "no folder in /dev/shm: %s", strerror(errno));
	}
	r->want = malloc(RIG_VALUE_MAX);
	r->got = malloc(RIG_VALUE_MAX);
	rig_master(r, NULL);
	for (unsigned i = 0; i < RIG_AGENTS; i++)
		rig_agent(r, i, NULL);
	o.data = r->box[0].dir;
	o.deadline_ms = RIG_WAIT_MS;
	CHECK(r, pml_open(&o, &r->p, &err) == 0, "%s", err.text);
	rig_settled(r);
}

void rig_down(struct rig *r)
{
	pml_close(r->p);
	for (unsigned i = 0; i < RIG_AGENTS; i++)
		CHECK(r, proc_stop(&r->agent[i]) == 0, "agent %u ended with %d", i,
		      r->agent[i].code);
	CHECK(r, proc_stop(&r->master) == 0, "the master ended with %d", r->master.code);
	remove_all(r);
	free(r->want);
	free(r->got);
}

/* ---- the handle ---- */

/* All but others: what a test looks at must not be evicted. */
static bool rig_stays(const char *key)
{
	return strncmp(key, "o/", 2) != 0;
}

/* One call of one item; the result tells the version. */
static int put_with(struct pml *p, const char *key, const void *v, size_t n, bool upsert,
		    const char *holder, unsigned deadline_ms, uint64_t *version,
		    struct pml_error *err)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_result res = PML_RESULT_INIT;
	const struct pml_buf buf = { (void *)v, n };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	it.key = key;
	it.key_bytes = strlen(key);
	it.bufs = &buf;
	it.n_bufs = 1;
	o.deadline_ms = deadline_ms;
	o.hard_pin = rig_stays(key);
	o.n_preferred = holder != NULL;
	o.preferred = &holder;
	int code = (upsert ? pml_upsert_start : pml_put_start)(p, &it, 1, &o, NULL, NULL, &op,
							       err);
	if (code != 0)
		return code;
	code = pml_op_wait(op);
	pml_op_item_error(op, 0, err);
	pml_op_result(op, 0, &res);
	if (version)
		*version = res.version;
	pml_op_free(op);
	return code;
}

int rig_put(struct rig *r, const char *key, uint64_t seed, size_t n, bool upsert, int agent,
	    uint64_t *version)
{
	struct pml_error err = PML_ERROR_INIT;
	uint64_t v = 0;
	value_fill(r->want, n, seed);
	int code = put_with(r->p, key, r->want, n, upsert, agent >= 0 ? r->id[agent] : NULL, 0,
			    &v, &err);
	if (code != 0)
		fprintf(stderr, "put %s: %s (%s, %s)\n", key, err.text, err.peer, err.step);
	else
		r->version = MAX_OF(r->version, v);
	if (version)
		*version = v;
	return code;
}

int rig_get(struct rig *r, const char *key, const uint64_t *seeds, unsigned n_seeds, size_t n,
	    unsigned *which)
{
	struct pml_error err = PML_ERROR_INIT;
	size_t got = 0;
	memset(r->got, 0, n);
	int code = pml_get(r->p, key, strlen(key), r->got, RIG_VALUE_MAX, &got, NULL, &err);
	if (code != 0 && code != PML_ERR_NOT_FOUND)
		fprintf(stderr, "get %s: %s (%s, %s)\n", key, err.text, err.peer, err.step);
	if (code != 0)
		return code;
	for (unsigned i = 0; i < n_seeds; i++)
		if (got == n && value_is(r->got, n, seeds[i])) {
			if (which)
				*which = i;
			return 0;
		}
	CHECK(r, false, "%s: foreign bytes, %zu of them", key, got);
}

int rig_remove(struct rig *r, const char *key)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_remove_opts o = PML_REMOVE_OPTS_INIT;
	o.force = true;
	int code = pml_remove(r->p, key, strlen(key), &o, &err);
	if (code != 0)
		fprintf(stderr, "remove %s: %s (%s, %s)\n", key, err.text, err.peer, err.step);
	return code;
}

/* ---- others ---- */

static size_t some_size(struct rig *r)
{
	static const size_t top[] = { 64, 4096, 64 << 10, 400 << 10, 1500 << 10 };
	return 1 + rig_chance(&r->rng, top[rig_chance(&r->rng, ARRAY_LEN(top))]);
}

/* Most are new keys: their space comes from evictions, and some from removes and replaced versions. */
static size_t put_other(struct rig *r, bool lenient)
{
	struct rig_other *o = &r->others[rig_chance(&r->rng, RIG_OTHERS)];
	uint64_t what = rig_chance(&r->rng, 10);
	size_t n = some_size(r);
	if (o->key[0] && what == 0) {
		int code = rig_remove(r, o->key);
		CHECK(r, code == 0 || lenient, "remove %s: %d", o->key, code);
		o->key[0] = '\0';
		return 0;
	}
	bool upsert = o->key[0] && what < 4;
	if (!upsert)
		snprintf(o->key, sizeof(o->key), "o/%" PRIu64, r->gen);
	o->seed = r->gen++;
	o->n = n;
	int code = rig_put(r, o->key, o->seed, n, upsert, -1, NULL);
	CHECK(r, code == 0 || lenient, "put %s: %s", o->key, pml_error_name(code));
	if (code != 0)
		o->key[0] = '\0';
	return n;
}

void rig_turn_over(struct rig *r, double pools, bool lenient)
{
	double left = pools * r->pool_mib * 1024 * 1024 * RIG_AGENTS;
	while (left > 0)
		left -= (double)put_other(r, lenient);
}

void rig_compare(struct rig *r)
{
	for (unsigned i = 0; i < RIG_OTHERS; i++) {
		struct rig_other *o = &r->others[i];
		if (!o->key[0])
			continue;
		int code = rig_get(r, o->key, &o->seed, 1, o->n, NULL);
		CHECK(r, code == 0 || code == PML_ERR_NOT_FOUND, "get %s: %s", o->key,
		      pml_error_name(code));
		r->compared += code == 0;
		r->evicted += code != 0;
		if (code != 0)
			o->key[0] = '\0';
	}
}

/* ---- kids ---- */

void kid_start(struct rig *r, struct kid *k, const char *op, const char *faults, int agent,
	       unsigned deadline_ms)
{
	char seed[24], n[24], ms[24];
	int fd[2];
	snprintf(seed, sizeof(seed), "%" PRIu64, k->seed);
	snprintf(n, sizeof(n), "%zu", k->n);
	snprintf(ms, sizeof(ms), "%u", deadline_ms);
	k->get = strcmp(op, "get") == 0;
	CHECK(r, pipe2(fd, O_CLOEXEC) == 0, "no pipe");
	k->pid = fork();
	CHECK(r, k->pid >= 0, "no process");
	if (k->pid == 0) {
		dup2(fd[1], STDOUT_FILENO);
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a stopped one, too */
		execl("/proc/self/exe", "kid", "--kid", r->box[0].dir, op, k->key, seed, n,
		      agent >= 0 ? r->id[agent] : "", ms, faults ? faults : "", (char *)NULL);
		_exit(127);
	}
	close(fd[1]);
	k->out = fd[0];
}

void kid_wait(struct rig *r, struct kid *k)
{
	struct pollfd p = { .fd = k->out, .events = POLLIN };
	char line[512] = "";
	size_t at = 0;
	int status = 0, used = 0;
	uint64_t end = rig_now_ms() + 2 * RIG_WAIT_MS;
	for (ssize_t got = 1; got > 0 && at < sizeof(line) - 1; at += (size_t)MAX_OF(got, 0)) {
		uint64_t now = rig_now_ms();
		CHECK(r, now < end && poll(&p, 1, (int)(end - now)) > 0, "%s %s hangs", k->row,
		      k->key);
		got = read(k->out, line + at, sizeof(line) - 1 - at);
	}
	close(k->out);
	CHECK(r,
	      waitpid(k->pid, &status, 0) == k->pid && WIFEXITED(status) &&
		      WEXITSTATUS(status) == 0,
	      "%s %s: status %#x", k->row, k->key, (unsigned)status);
	CHECK(r, sscanf(line, "%d %" SCNu64 " %n", &k->code, &k->version, &used) == 2,
	      "%s: '%s'", k->row, line);
	snprintf(k->text, sizeof(k->text), "%s", line + used);
	CHECK(r, k->code != FOREIGN, "%s %s: the get returned foreign bytes", k->row, k->key);
	k->pid = 0;
}

void kid_show(const struct kid *k)
{
	char line[512] = "";
	struct pollfd p = { .fd = k->out, .events = POLLIN };
	ssize_t n = poll(&p, 1, 0) > 0 ? read(k->out, line, sizeof(line) - 1) : 0;
	fprintf(stderr, "kid %s %s: %s\n", k->row, k->key, n > 0 ? line : "is silent");
}

static int kid_get(struct pml *p, const char *key, uint64_t seed, size_t n, unsigned ms,
		   struct pml_error *err)
{
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	static uint8_t v[RIG_VALUE_MAX];
	size_t got = 0;
	o.deadline_ms = ms;
	int code = pml_get(p, key, strlen(key), v, sizeof(v), &got, &o, err);
	return code == 0 && (got != n || !value_is(v, n, seed)) ? FOREIGN : code;
}

/* --kid DATA OP KEY SEED BYTES HOLDER DEADLINE_MS FAULTS */
bool rig_kid_main(int argc, char **argv, int *code)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	static uint8_t v[RIG_VALUE_MAX];
	struct pml *p;
	uint64_t version = 0;
	if (argc != 10 || strcmp(argv[1], "--kid") != 0)
		return false;
	uint64_t seed = strtoull(argv[5], NULL, 10);
	size_t n = strtoull(argv[6], NULL, 10);
	unsigned ms = (unsigned)strtoul(argv[8], NULL, 10);
	o.data = argv[2];
	*code = 1;
	if (!fault_arm_text(argv[9]) || pml_open(&o, &p, &err) != 0)
		return true;
	int c;
	if (strcmp(argv[3], "get") == 0) {
		c = kid_get(p, argv[4], seed, n, ms, &err);
	} else {
		value_fill(v, n, seed);
		c = put_with(p, argv[4], v, n, strcmp(argv[3], "upsert") == 0,
			     argv[7][0] ? argv[7] : NULL, ms, &version, &err);
	}
	printf("%d %" PRIu64 " %s: %s (%s, %s)\n", c, version, pml_error_name(c), err.text,
	       err.peer, err.step);
	pml_close(p);
	*code = 0;
	return true;
}
