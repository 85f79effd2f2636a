/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_soak [-s SECONDS]: the five services and a second agent, the pools full all the time, four clients that
 * put, replace, read, remove and lease objects of all kinds (plain, soft-pinned, in groups of 8, of a tenant
 * with a quota), and faults one after the other: the master killed (in the first half), the second agent
 * killed or stopped, a client killed in the middle of what it does.
 *
 *	wrong     bytes that are not the object's, or of a version older than one seen or acknowledged: none
 *	groups    found by one message with some of their members: none
 *	memory    of each service (RssAnon, every second): the highest of the last third of the run is at most a
 *	          tenth and 2 MiB above that of the third before. The first agent is never touched, nor the master
 *	          in the second half: what they leak is seen
 *	gauges    when it is calm, the master's equal a recount by the library (a list of all keys, the holders'
 *	          own counts), and are the same when a new master has counted them
 *	nothing   after the last remove no byte, slot or attempt is left
 *
 * Less than 120 s judge no memory: nothing is level by then. Ends with "N passed, N failed".
 */
#include "store_rig.h"

#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/tcp_client.h"

enum {
	WORKERS = 4, /* the last one is of tenant "red"; the second one uses data lanes */
	KEYS = 1500, /* each worker's own */
	BYTES_MAX = 96 << 10,
	GROUPS = 60,
	MEMBERS = 8,
	MEMBER_BYTES = 12 << 10,
	POOL_MIB = 32,
	SAMPLES = 4000,
	SERVICES = 6,
	LEVEL_S = 120
};

struct watched {
	const char *name;
	struct proc *p;
	struct {
		unsigned t_ms, kib;
	} v[SAMPLES];
	unsigned n;
};

static struct {
	struct rig rig;
	struct proc owner, planner, pg;
	unsigned seconds, passed, failed, n_faults;
	uint64_t t0;
	_Atomic bool over;
	_Atomic uint64_t puts, put_errors, gets, hits, removes, groups_whole, groups_none;
	struct watched watched[SERVICES];
	pthread_mutex_t procs; /* pids change under it */
} g = { .seconds = 20, .procs = PTHREAD_MUTEX_INITIALIZER };

static void check(bool ok, const char *what)
{
	printf("%-6s %s\n", ok ? "ok" : "FAILED", what);
	g.passed += ok;
	g.failed += !ok;
}

static unsigned since_ms(void)
{
	return (unsigned)(rig_now_ms() - g.t0);
}

/* ---- objects ---- */

struct worker {
	pthread_t thread;
	unsigned no;
	const char *tenant;
	struct pml *p;
	uint64_t rng;
	uint32_t begun[KEYS]; /* serial of the last put that began */
	uint32_t least[KEYS]; /* a get must find this one or a later one */
	uint8_t v[BYTES_MAX];
};

/* A value says what it is; the rest of it follows from that. */
struct head {
	uint32_t worker, key, serial, bytes;
};

static void value_of(uint8_t *v, const struct head *h)
{
	memcpy(v, h, sizeof(*h));
	value_fill(v + sizeof(*h), h->bytes - sizeof(*h),
		   (uint64_t)h->worker << 56 | (uint64_t)h->key << 32 | h->serial);
}

static void judge(const struct worker *w, unsigned k, size_t n)
{
	struct head h;
	CHECK(&g.rig, n >= sizeof(h), "key %u: %zu bytes", k, n);
	memcpy(&h, w->v, sizeof(h));
	CHECK(&g.rig, h.worker == w->no && h.key == k && h.bytes == n,
	      "foreign: key %u is %u of worker %u", k, h.key, h.worker);
	CHECK(&g.rig, h.serial >= w->least[k] && h.serial <= w->begun[k],
	      "key %u: serial %u of %u..%u", k, h.serial, w->least[k], w->begun[k]);
	CHECK(&g.rig,
	      value_is(w->v + sizeof(h), n - sizeof(h),
		       (uint64_t)h.worker << 56 | (uint64_t)h.key << 32 | h.serial),
	      "key %u: wrong bytes", k);
}

static void name_of(char out[32], const struct worker *w, unsigned k)
{
	snprintf(out, 32, "w%u/%u", w->no, k);
}

static void put(struct worker *w, unsigned k)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct head h = { w->no, k, ++w->begun[k], 0 };
	char key[32];
	h.bytes = (uint32_t)(sizeof(h) +
			     rig_chance(&w->rng, k % 8 ? 8 << 10 : BYTES_MAX - sizeof(h)));
	value_of(w->v, &h);
	name_of(key, w, k);
	o.deadline_ms = 5000;
	o.soft_pin_ms = k % 5 == 0 ? 2000 : 0;
	int e = pml_upsert(w->p, key, strlen(key), w->v, h.bytes, &o, NULL);
	g.puts++;
	g.put_errors += e != 0;
	if (e == 0)
		w->least[k] = h.serial;
}

static void get(struct worker *w, unsigned k)
{
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	char key[32];
	size_t n = 0;
	name_of(key, w, k);
	o.deadline_ms = 5000;
	o.verify = k % 2 ? PML_VERIFY_ALWAYS : PML_VERIFY_SETTING;
	int e = pml_get(w->p, key, strlen(key), w->v, sizeof(w->v), &n, &o, NULL);
	g.gets++;
	g.hits += e == 0;
	if (e != 0)
		return;
	judge(w, k, n);
	struct head h;
	memcpy(&h, w->v, sizeof(h));
	w->least[k] = h.serial;
}

static void take_away(struct worker *w, unsigned k)
{
	struct pml_remove_opts o = PML_REMOVE_OPTS_INIT;
	char key[32];
	name_of(key, w, k);
	o.deadline_ms = 5000;
	if (pml_remove(w->p, key, strlen(key), &o, NULL) == 0)
		w->least[k] = w->begun[k] + 1; /* whatever is found later was put later */
	g.removes++;
}

/* A lease of its own: held, and given back or not. */
static void lease(struct worker *w, unsigned k)
{
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_op *op = NULL;
	struct pml_result r = PML_RESULT_INIT;
	char key[32];
	name_of(key, w, k);
	o.deadline_ms = 5000;
	if (pml_query(w->p, key, strlen(key), &o, &op, NULL) == 0 &&
	    pml_op_result(op, 0, &r) == 0 && k % 2)
		(void)pml_release(w->p, key, strlen(key), r.version, NULL);
	if (op)
		pml_op_free(op);
}

static struct pml *client(const char *tenant)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	o.data = g.rig.box[0].dir;
	o.secret_file = g.rig.box[0].secret;
	o.tenant = tenant;
	CHECK(&g.rig, pml_open(&o, &p, &err) == 0, "%s", err.text);
	return p;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	while (!g.over) {
		unsigned k = (unsigned)rig_chance(&w->rng, KEYS),
			 what = (unsigned)rig_chance(&w->rng, 100);
		if (what < 45)
			put(w, k);
		else if (what < 92)
			get(w, k);
		else if (what < 97)
			take_away(w, k);
		else
			lease(w, k);
	}
	return NULL;
}

/* ---- groups ---- */

struct batch {
	char key[MEMBERS][24], group[16];
	struct pml_item it[MEMBERS];
	struct pml_buf buf[MEMBERS];
	uint8_t v[MEMBERS][MEMBER_BYTES];
};

static void group_make(struct batch *b, unsigned n)
{
	snprintf(b->group, sizeof(b->group), "group-%u", n);
	for (unsigned i = 0; i < MEMBERS; i++) {
		snprintf(b->key[i], sizeof(b->key[i]), "g%u/%u", n, i);
		b->buf[i] = (struct pml_buf){ b->v[i], MEMBER_BYTES };
		value_fill(b->v[i], MEMBER_BYTES, n * MEMBERS + i);
		b->it[i] = (struct pml_item)PML_ITEM_INIT;
		b->it[i].key = b->key[i];
		b->it[i].key_bytes = strlen(b->key[i]);
		b->it[i].bufs = &b->buf[i];
		b->it[i].n_bufs = 1;
		b->it[i].group = b->group;
		b->it[i].group_bytes = strlen(b->group);
		b->it[i].group_size = MEMBERS;
	}
}

/* How many of 8 are found by one message; -1: it had to ask again meanwhile, which says nothing of one moment. */
static int group_count(struct pml *p, struct batch *b, unsigned n)
{
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_op *op = NULL;
	uint64_t t0 = rig_now_ms();
	int yes = 0, other = 0;
	group_make(b, n);
	o.deadline_ms = 5000;
	if (pml_exists_start(p, b->it, MEMBERS, &o, NULL, NULL, &op, NULL) != 0)
		return -1;
	pml_op_wait(op);
	for (unsigned i = 0; i < MEMBERS; i++) {
		struct pml_result r = PML_RESULT_INIT;
		pml_op_result(op, i, &r);
		yes += r.code == 0;
		other += r.code != 0 && r.code != PML_ERR_NOT_FOUND;
	}
	pml_op_free(op);
	return other || rig_now_ms() - t0 > 40 ? -1 : yes;
}

static void group_put(struct pml *p, struct batch *b, unsigned n)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_op *op = NULL;
	group_make(b, n);
	o.deadline_ms = 5000;
	if (pml_put_start(p, b->it, MEMBERS, &o, NULL, NULL, &op, NULL) != 0)
		return;
	pml_op_wait(op);
	pml_op_free(op);
}

static void *work_groups(void *arg)
{
	static struct batch b;
	uint64_t rng = 77;
	struct pml *p = client("default");
	while (!g.over) {
		unsigned n = (unsigned)rig_chance(&rng, GROUPS);
		int found = group_count(p, &b, n);
		CHECK(&g.rig, found == -1 || found == 0 || found == MEMBERS,
		      "group %u: %d members", n, found);
		g.groups_whole += found == MEMBERS;
		g.groups_none += found == 0;
		if (found == 0)
			group_put(p, &b, n);
		else
			rig_sleep(3);
	}
	pml_close(p);
	return arg;
}

/* ---- memory ---- */

static unsigned rss_kib(pid_t pid)
{
	char path[64], line[256];
	unsigned kib = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	FILE *f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %u", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

static void *watch(void *arg)
{
	while (!g.over) {
		pthread_mutex_lock(&g.procs);
		for (unsigned i = 0; i < SERVICES; i++) {
			struct watched *w = &g.watched[i];
			unsigned kib = w->p->pid > 0 ? rss_kib(w->p->pid) : 0;
			if (kib == 0 || w->n == SAMPLES)
				continue;
			w->v[w->n].t_ms = since_ms();
			w->v[w->n++].kib = kib;
		}
		pthread_mutex_unlock(&g.procs);
		rig_sleep(1000);
	}
	return arg;
}

static unsigned highest(const struct watched *w, unsigned from_ms, unsigned to_ms)
{
	unsigned kib = 0;
	for (unsigned i = 0; i < w->n; i++)
		if (w->v[i].t_ms >= from_ms && w->v[i].t_ms < to_ms)
			kib = MAX_OF(kib, w->v[i].kib);
	return kib;
}

static void judge_memory(unsigned end_ms)
{
	char text[160];
	for (unsigned i = 0; i < SERVICES; i++) {
		const struct watched *w = &g.watched[i];
		unsigned was = highest(w, end_ms / 3, end_ms * 2 / 3),
			 is = highest(w, end_ms * 2 / 3, end_ms);
		bool flat = is <= was + was / 10 + 2048;
		snprintf(text, sizeof(text),
			 "memory of %s: %u KiB in the first third, %u, then %u%s", w->name,
			 highest(w, 0, end_ms / 3), was, is,
			 g.seconds < LEVEL_S ? " (not judged)" : "");
		check(flat || g.seconds < LEVEL_S, text);
	}
}

/* ---- faults ---- */

/* --writer DATA: puts until it is killed. */
static int writer(const char *data)
{
	static uint8_t v[512 << 10];
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml *p = NULL;
	char key[32];
	o.data = data;
	if (pml_open(&o, &p, NULL) != 0)
		return 1;
	for (unsigned i = 0;; i = (i + 1) % 64) {
		int n = snprintf(key, sizeof(key), "x/%u", i);
		(void)pml_upsert(p, key, (size_t)n, v, sizeof(v) - i * 4096, NULL, NULL);
	}
}

/* A client that is killed while it puts. */
static void client_killed(uint64_t *rng)
{
	pid_t pid = fork();
	CHECK(&g.rig, pid >= 0, "no process");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/proc/self/exe", "store_soak", "--writer", g.rig.box[0].dir,
		      (char *)NULL);
		_exit(127);
	}
	rig_sleep(100 + (unsigned)rig_chance(rng, 200));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void kill_and_start(struct proc *p, bool master)
{
	pthread_mutex_lock(&g.procs);
	rig_kill(&g.rig, p);
	if (master)
		rig_master(&g.rig, NULL);
	else
		rig_agent(&g.rig, 1, NULL);
	pthread_mutex_unlock(&g.procs);
}

static void one_fault(uint64_t *rng)
{
	bool late = since_ms() > g.seconds * 500;
	switch (rig_chance(rng, 4)) {
	case 0:
		if (!late)
			kill_and_start(&g.rig.master, true);
		break;
	case 1:
		kill_and_start(&g.rig.agent[1], false);
		break;
	case 2:
		proc_signal(&g.rig.agent[1], SIGSTOP);
		rig_sleep(100 + (unsigned)rig_chance(rng, 1500));
		proc_signal(&g.rig.agent[1], SIGCONT);
		break;
	default:
		client_killed(rng);
	}
	g.n_faults++;
}

/* ---- the recount ---- */

static double metric(const struct proc *p, const char *name)
{
	static char text[1 << 20];
	const char *body;
	if (http_get(p->http, "GET", "/metrics", text, sizeof(text), &body) != 200)
		return -1;
	return metric_value(body, name);
}

static bool until_zero(const struct proc *p, const char *name)
{
	for (int i = 0; i < 1500 && metric(p, name) != 0; i++)
		rig_sleep(20);
	return metric(p, name) == 0;
}

static uint64_t listed(const char *tenant)
{
	struct pml *p = client(tenant);
	struct pml_list_opts o = PML_LIST_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t cursor[64];
	uint64_t n = 0;
	bool more = true;
	while (more) {
		struct pml_op *op = NULL;
		size_t c = 0;
		CHECK(&g.rig, pml_list(p, "", 0, &o, &op, &err) == 0, "list: %s", err.text);
		n += pml_op_n_listed(op);
		const void *at = pml_op_cursor(op, &c);
		CHECK(&g.rig, c <= sizeof(cursor), "a cursor of %zu bytes", c);
		if (c)
			memcpy(cursor, at, c);
		o.cursor = cursor;
		o.cursor_bytes = c;
		more = c > 0;
		pml_op_free(op);
	}
	pml_close(p);
	return n;
}

struct gauges {
	double objects, copies, used, total, quarantine, red, slots, holders;
};

static struct gauges gauges(void)
{
	struct gauges x = {
		.objects = metric(&g.rig.master, "pomelo_master_objects"),
		.copies = metric(&g.rig.master, "pomelo_master_copies"),
		.used = metric(&g.rig.master, "pomelo_master_bytes{of=\"used\"}"),
		.total = metric(&g.rig.master, "pomelo_master_bytes{of=\"total\"}"),
		.quarantine = metric(&g.rig.master, "pomelo_master_bytes{of=\"quarantine\"}"),
		.red = metric(&g.rig.master,
			      "pomelo_master_tenant_bytes{tenant=\"red\",of=\"used\"}"),
	};
	struct pml_op *op = NULL;
	CHECK(&g.rig, pml_holders(g.rig.p, NULL, &op, NULL) == 0, "no holders");
	for (size_t i = 0; i < pml_op_n_holders(op); i++) {
		struct pml_holder h = PML_HOLDER_INIT;
		pml_op_holder(op, i, &h);
		x.holders += (double)h.bytes_used;
	}
	pml_op_free(op);
	for (unsigned i = 0; i < RIG_AGENTS; i++)
		x.slots += metric(&g.rig.agent[i], "pomelo_agent_slots{kind=\"used\"}");
	return x;
}

static bool same(const struct gauges *a, const struct gauges *b)
{
	return a->objects == b->objects && a->copies == b->copies && a->used == b->used &&
	       a->total == b->total && a->quarantine == b->quarantine && a->red == b->red &&
	       a->slots == b->slots && a->holders == b->holders;
}

static void print_gauges(const char *when, const struct gauges *x)
{
	printf("  %s: objects %.0f, copies %.0f, bytes used %.0f of %.0f, quarantine %.0f, red %.0f; the agents: "
	       "slots %.0f, bytes %.0f\n",
	       when, x->objects, x->copies, x->used, x->total, x->quarantine, x->red, x->slots,
	       x->holders);
}

/* Nothing is under way, and what waits for leases of before has gone. */
static void calm(void)
{
	rig_settled(&g.rig);
	CHECK(&g.rig, until_zero(&g.rig.master, "pomelo_master_attempts"),
	      "attempts stay open");
	CHECK(&g.rig, until_zero(&g.rig.master, "pomelo_master_calls_waiting"), "calls wait");
	for (int i = 0; i < 100; i++) { /* what the watermark evicts, what leases held */
		struct gauges was = gauges();
		rig_sleep(300);
		struct gauges is = gauges();
		if (is.slots == is.copies && is.copies == is.objects && is.quarantine == 0 &&
		    same(&was, &is))
			break;
	}
}

static void recount(void)
{
	calm();
	struct gauges was = gauges();
	uint64_t n = listed("default") + listed("red");
	print_gauges("before", &was);
	printf("  listed: %" PRIu64 " keys\n", n);
	check(was.objects > 100 && (double)n == was.objects, "objects: as many as a list has");
	check(was.copies == was.slots, "copies: as many as the agents have slots");
	check(was.used == was.holders, "bytes used: those of all holders");
	check(was.quarantine == 0, "no range is left in quarantine");
	rig_kill(&g.rig, &g.rig.master);
	rig_master(&g.rig, NULL);
	calm();
	struct gauges is = gauges();
	print_gauges("after a failover", &is);
	check(same(&was, &is), "a new master counts the same");
}

static void empty(void)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_remove_opts o = PML_REMOVE_OPTS_INIT;
	static const char *const tenants[] = { "default", "red" };
	o.deadline_ms = 30000;
	for (size_t i = 0; i < ARRAY_LEN(tenants); i++) {
		struct pml *p = client(tenants[i]);
		uint64_t n = 0;
		CHECK(&g.rig, pml_remove_prefix(p, "", 0, &o, &n, &err) == 0, "%s", err.text);
		pml_close(p);
	}
	bool none = until_zero(&g.rig.master, "pomelo_master_bytes{of=\"used\"}") &&
		    until_zero(&g.rig.master, "pomelo_master_copies");
	struct gauges x = gauges();
	print_gauges("emptied", &x);
	check(none && x.objects == 0 && x.slots == 0 && x.red == 0, "nothing is left");
}

/* ---- all of it ---- */

static void up(void)
{
	static const char *const args[] = { "--set=beat_ms=200", NULL };
	setenv("POMELO_MASTER_TENANT_MEMORY", "red=6MiB", 1);
	setenv("POMELO_AGENT_DATA_LISTEN", "tcp://127.0.0.1:0", 1);
	g.rig.pool_mib = POOL_MIB;
	g.rig.dead_ms = 4000;
	g.rig.discard_ms = 1500;
	g.rig.rng = 5;
	rig_up(&g.rig);
	proc_run(&g.rig.box[0], daemon_row("owner"), args, &g.owner);
	proc_run(&g.rig.box[0], daemon_row("planner"), args, &g.planner);
	proc_run(&g.rig.box[0], daemon_row("pg"), args, &g.pg);
	struct watched all[SERVICES] = { { .name = "master", .p = &g.rig.master },
					 { .name = "agent 0", .p = &g.rig.agent[0] },
					 { .name = "agent 1", .p = &g.rig.agent[1] },
					 { .name = "owner", .p = &g.owner },
					 { .name = "planner", .p = &g.planner },
					 { .name = "pg", .p = &g.pg } };
	memcpy(g.watched, all, sizeof(all));
}

static void soak(void)
{
	static struct worker w[WORKERS];
	pthread_t watcher, groups;
	uint64_t rng = 9;
	g.t0 = rig_now_ms();
	for (unsigned i = 0; i < WORKERS; i++) {
		w[i].no = i;
		w[i].rng = i + 1;
		w[i].tenant = i == WORKERS - 1 ? "red" : "default";
		if (i == 1)
			setenv("POMELO_CLIENT_DATA_PATH", "tcp", 1);
		w[i].p = client(w[i].tenant);
		unsetenv("POMELO_CLIENT_DATA_PATH");
		CHECK(&g.rig, pthread_create(&w[i].thread, NULL, work, &w[i]) == 0,
		      "no thread");
	}
	CHECK(&g.rig, pthread_create(&watcher, NULL, watch, NULL) == 0, "no thread");
	CHECK(&g.rig, pthread_create(&groups, NULL, work_groups, NULL) == 0, "no thread");
	while (since_ms() < g.seconds * 1000) {
		rig_sleep(MIN_OF(2000u, g.seconds * 50));
		one_fault(&rng);
	}
	unsigned end_ms = since_ms();
	rig_settled(&g.rig);
	g.over = true;
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(w[i].thread, NULL);
	pthread_join(groups, NULL);
	pthread_join(watcher, NULL);
	printf("  %u s, %u faults: puts %" PRIu64 " (%" PRIu64 " with an error), gets %" PRIu64
	       " (%" PRIu64 " hits), removes %" PRIu64 ", groups whole %" PRIu64
	       ", none %" PRIu64 ", evictions %.0f\n",
	       end_ms / 1000, g.n_faults, g.puts, g.put_errors, g.gets, g.hits, g.removes,
	       g.groups_whole, g.groups_none,
	       metric(&g.rig.master, "pomelo_master_evictions_total"));
	for (unsigned i = 0; i < WORKERS; i++) { /* what is there is right, to the last byte */
		for (unsigned k = 0; k < KEYS; k++)
			get(&w[i], k);
		pml_close(w[i].p);
	}
	check(g.hits > 100 && g.puts > 100, "0 wrong bytes, none of an older version");
	check(metric(&g.rig.agent[0], "pomelo_agent_data_puts_total{end=\"ok\"}") > 10 &&
		      metric(&g.rig.agent[0], "pomelo_agent_sessions") > 0,
	      "over data lanes, and through shared memory");
	check(g.groups_whole > 10, "groups of 8: 8 or 0");
	check(g.put_errors * 20 < g.puts,
	      "puts go on: less than one in twenty ends in an error");
	judge_memory(end_ms);
}

int main(int argc, char **argv)
{
	int o;
	if (argc == 3 && strcmp(argv[1], "--writer") == 0)
		return writer(argv[2]);
	while ((o = getopt(argc, argv, "s:")) != -1) {
		if (o == '?') {
			fputs("usage: store_soak [-s SECONDS]\n", stderr);
			return 2;
		}
		g.seconds = (unsigned)strtoul(optarg, NULL, 10);
	}
	g.seconds = MIN_OF(MAX_OF(g.seconds, 5u), 3600u);
	setvbuf(stdout, NULL, _IOLBF, 0);
	up();
	soak();
	recount();
	empty();
	struct proc *rest[] = { &g.owner, &g.planner, &g.pg };
	for (size_t i = 0; i < ARRAY_LEN(rest); i++)
		check(proc_stop(rest[i]) == 0, "a service ends when told");
	rig_down(&g.rig);
	printf("%u passed, %u failed\n", g.passed, g.failed);
	return g.failed != 0;
}
