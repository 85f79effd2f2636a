/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases from the field over real processes: a third client after a restart (8), an index with a limit (11),
 * numbers that are true (80), large pools that stop (81) and start (87), tenants and formats (82), parts (83).
 * 87 and 81 take 8 GiB, or a quarter of the memory that is free.
 */
#include "cases.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/leak.h"
#include "../support/tcp_client.h"

TestSuite(field, .timeout = 120);

static void put_str(struct pml *p, const char *key, const char *text)
{
	struct pml_error err = PML_ERROR_INIT;
	cr_assert_eq(pml_upsert(p, key, strlen(key), text, strlen(text), NULL, &err), 0,
		     "%s: %s", key, err.text);
}

/* 0: it has this text. */
static int has_str(struct pml *p, const char *key, const char *text,
		   const struct pml_get_opts *o)
{
	char v[256];
	size_t n = 0;
	int code = pml_get(p, key, strlen(key), v, sizeof(v), &n, o, NULL);
	cr_assert(code != 0 || (n == strlen(text) && memcmp(v, text, n) == 0),
		  "%s: wrong bytes", key);
	return code;
}

static struct pml *client_of(const struct box *b, const char *tenant)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	o.data = b->dir;
	o.secret_file = b->secret;
	o.tenant = tenant;
	cr_assert_eq(pml_open(&o, &p, &err), 0, "%s", err.text);
	return p;
}

/* A second agent with a folder of its own, at that master; more: two arguments, may be NULL. */
static void second_agent(struct world *w, const char *a, const char *b)
{
	static char masters[128];
	static const char *args[20];
	char cmd[256];
	size_t n = 0;
	box_make(&w->far);
	snprintf(cmd, sizeof(cmd), "cp '%s' '%s'", w->box.secret, w->far.secret);
	cr_assert_eq(system(cmd), 0);
	snprintf(masters, sizeof(masters), "--masters=ipc://%.60s/run/master.sock", w->box.dir);
	for (; w->aargs[n]; n++)
		args[n] = w->aargs[n];
	args[n++] = masters;
	args[n++] = a;
	args[n++] = b;
	args[n] = NULL;
	proc_run(&w->far, daemon_row("agent"), args, &w->second);
}

/* ---- 8 ---- */

/* The master starts again with two holders and two clients; a third client joins within two heartbeats and
 * reads what lies at both. */
Test(field, case_008_a_third_client_after_a_restart)
{
	enum { N = 200, BEAT_MS = 1000 };
	struct world w;
	char key[16];
	cs_prepare(&w, "agent.pool_size=16MiB", "agent.slots=4000");
	w.margs[8] = "--set=beat_ms=1000";
	w.aargs[6] = "--set=beat_ms=1000";
	cs_start_all(&w);
	w.p = cs_client(&w);
	second_agent(&w, NULL, NULL);
	cs_ready(&w.second);
	struct pml *two = cs_client(&w);
	for (int i = 0; i < N; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		put_str(i % 2 ? w.p : two, key, key);
	}
	double here = cs_metric_of(&w.agent, "pomelo_agent_slots{kind=\"used\"}");
	double there = cs_metric_of(&w.second, "pomelo_agent_slots{kind=\"used\"}");
	cr_expect(here > 20 && there > 20, "%g here, %g there", here, there);
	cs_kill_it(&w.master);
	proc_run(&w.box, daemon_row("master"), w.margs, &w.master);
	uint64_t t0 = cs_now_ms();
	struct pml *three = cs_client(&w);
	for (int i = 0; i < N; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		cr_expect_eq(has_str(three, key, key, NULL), 0, "%s", key);
	}
	cr_expect_leq(cs_now_ms() - t0, 2 * BEAT_MS, "%llu ms",
		      (unsigned long long)(cs_now_ms() - t0));
	pml_close(two);
	pml_close(three);
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 11 ---- */

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

/* A sanitizer keeps what was freed for a while. */
#ifdef __SANITIZE_ADDRESS__
enum { RSS_MORE_KIB = 256 << 10 };
#else
enum { RSS_MORE_KIB = 1024 };
#endif

/* Three times the keys that the index may have: memory levels off, what is old goes, the master lives. */
Test(field, case_011_an_index_with_a_limit)
{
	enum { N = 6000 };
	struct world w;
	cs_prepare(&w, "agent.pool_size=64MiB", "agent.slots=40000");
	w.margs[8] = "--set=master.index_bytes_max=640KiB";
	cs_start_all(&w);
	w.p = cs_client(&w);
	cs_put_many(&w, "a", N);
	double once = cs_metric_of(&w.master, "pomelo_master_index_bytes");
	uint64_t objects = cs_objects(&w);
	unsigned kib = rss_kib(w.master.pid);
	cr_expect(objects > 500 && objects * 3 < N * 2, "%llu", (unsigned long long)objects);
	cs_put_many(&w, "b", N);
	cr_expect_leq(cs_metric_of(&w.master, "pomelo_master_index_bytes"), 700 << 10,
		      "after %g", once);
	cr_expect_leq(rss_kib(w.master.pid), kib + kib / 10 + RSS_MORE_KIB, "%u KiB, then %u",
		      kib, rss_kib(w.master.pid));
	struct found f = cs_get_many(&w, "b", N);
	cr_expect_eq(f.wrong + f.failed, 0, "%u wrong, %u failed: %s", f.wrong, f.failed,
		     f.why);
	cr_expect(f.good > 500 && f.absent > 1000, "%u good, %u absent", f.good, f.absent);
	f = cs_get_many(&w, "a", 1000);
	cr_expect_eq(f.good, 0, "the oldest go first: %u", f.good);
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 80 ---- */

static void gauges(const struct world *w, double out[5])
{
	static const char *const names[] = { "pomelo_master_objects", "pomelo_master_copies",
					     "pomelo_master_attempts",
					     "pomelo_master_bytes{of=\"used\"}",
					     "pomelo_master_bytes{of=\"total\"}" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		out[i] = cs_metric_of(&w->master, names[i]);
}

static uint64_t listed(struct pml *p, const char *prefix)
{
	struct pml_list_opts o = PML_LIST_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t cursor[64];
	uint64_t n = 0;
	bool more = true;
	while (more) {
		struct pml_op *op = NULL;
		size_t c = 0;
		cr_assert_eq(pml_list(p, prefix, strlen(prefix), &o, &op, &err), 0, "%s",
			     err.text);
		n += pml_op_n_listed(op);
		const void *at = pml_op_cursor(op, &c);
		cr_assert_leq(c, sizeof(cursor));
		if (c)
			memcpy(cursor, at, c);
		o.cursor = cursor;
		o.cursor_bytes = c;
		more = c > 0;
		pml_op_free(op);
	}
	return n;
}

/* Each name of a scrape is in the documentation, and each documented one of this service is in the scrape. */
static void documented(const struct proc *p, const char *prefix)
{
	static char text[1 << 20], docs[1 << 20];
	const char *body, *file = getenv("POMELO_TEST_METRICS_MD");
	cr_assert(file, "POMELO_TEST_METRICS_MD");
	FILE *f = fopen(file, "r");
	cr_assert(f, "%s", file);
	docs[fread(docs, 1, sizeof(docs) - 1, f)] = '\0';
	fclose(f);
	cr_assert_eq(http_get(p->http, "GET", "/metrics", text, sizeof(text), &body), 200);
	unsigned scraped = 0, told = 0;
	for (const char *at = body; (at = strstr(at, "# TYPE ")); at++) {
		char name[128];
		cr_assert_eq(sscanf(at, "# TYPE %127s", name), 1);
		cr_expect(strstr(docs, name), "%s is not in the documentation", name);
		scraped++;
	}
	for (const char *at = docs; (at = strstr(at, prefix)); at++) {
		char name[128];
		size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789");
		snprintf(name, sizeof(name), "%.*s", (int)MIN_OF(n, sizeof(name) - 1), at);
		cr_expect(strstr(body, name), "%s is documented, not scraped", name);
		told++;
	}
	cr_expect(scraped > 5 && told > 5, "%u scraped, %u documented", scraped, told);
}

Test(field, case_080_numbers_that_are_true)
{
	struct world w;
	double was[5], is[5];
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	cs_put_many(&w, "a", 3000);
	cs_put_many(&w, "b", 5000); /* more than fits: evictions */
	uint64_t removed = 0;
	cr_expect_eq(pml_remove_prefix(w.p, "b/1", 3, NULL, &removed, NULL), 0);
	cr_expect_gt(removed, 100);
	usleep(1500000); /* leases end, what they held is freed */
	gauges(&w, was);
	cr_expect_eq(was[0], listed(w.p, ""), "%g objects, %llu in the list", was[0],
		     (unsigned long long)listed(w.p, ""));
	cr_expect_eq(was[1], cs_metric_of(&w.agent, "pomelo_agent_slots{kind=\"used\"}"));
	cs_kill_it(&w.master);
	proc_run(&w.box, daemon_row("master"), w.margs, &w.master);
	cs_ready(&w.master);
	gauges(&w, is);
	for (int i = 0; i < 5; i++)
		cr_expect_eq(was[i], is[i], "gauge %d: %f, then %f", i, was[i], is[i]);
	documented(&w.master, "pomelo_master_");
	documented(&w.agent, "pomelo_agent_");
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 82 ---- */

Test(field, case_082_whose_object_it_is)
{
	struct world w;
	cs_prepare(&w, "agent.pool_size=16MiB", "agent.slots=4000");
	w.margs[8] = "--set=master.tenant_memory=red=1MiB,blue=2MiB";
	cs_start_all(&w);
	w.p = cs_client(&w);
	struct pml *red = client_of(&w.box, "red"), *blue = client_of(&w.box, "blue");
	put_str(red, "k", "red's");
	put_str(blue, "k", "blue's");
	put_str(blue, "only", "blue's");
	cr_expect_eq(has_str(red, "k", "red's", NULL), 0);
	cr_expect_eq(has_str(blue, "k", "blue's", NULL), 0);
	cr_expect_eq(has_str(red, "only", "", NULL), PML_ERR_NOT_FOUND);
	cr_expect_eq(has_str(w.p, "k", "", NULL), PML_ERR_NOT_FOUND);
	cr_expect(listed(red, "") == 1 && listed(blue, "") == 2 && listed(w.p, "") == 0);
	double r = cs_metric_of(&w.master,
				"pomelo_master_tenant_bytes{tenant=\"red\",of=\"used\"}");
	double b = cs_metric_of(&w.master,
				"pomelo_master_tenant_bytes{tenant=\"blue\",of=\"used\"}");
	cr_expect(r > 0 && b == 2 * r, "charged apart: %g, %g", r, b);
	uint64_t removed = 0;
	cr_expect_eq(pml_remove(red, "k", 1, NULL, NULL), 0);
	cr_expect_eq(pml_remove_prefix(red, "", 0, NULL, &removed, NULL), 0, "red's all");
	cr_expect_eq(has_str(blue, "k", "blue's", NULL), 0);
	/* a format: what was written for another revision is a miss, to every kind of question */
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_get_opts same = PML_GET_OPTS_INIT, other = PML_GET_OPTS_INIT,
			    any = PML_GET_OPTS_INIT;
	bool yes = true;
	o.format = "fp8/rev-7";
	same.format = "fp8/rev-7";
	other.format = "fp8/rev-8";
	cr_expect_eq(pml_put(w.p, "f", 1, "seven", 5, &o, NULL), 0);
	for (int round = 0; round < 2; round++) {
		cr_expect_eq(has_str(w.p, "f", "seven", &same), 0);
		cr_expect_eq(has_str(w.p, "f", "seven", &any), 0);
		cr_expect_eq(has_str(w.p, "f", "", &other), PML_ERR_NOT_FOUND);
		cr_expect_eq(pml_exists(w.p, "f", 1, &yes, &other, NULL), 0);
		cr_expect_not(yes);
		put_str(w.p, "none", "no format");
		cr_expect_eq(has_str(w.p, "none", "", &same), PML_ERR_NOT_FOUND);
		if (round == 0) { /* it is remembered by the holder */
			cs_kill_it(&w.master);
			proc_run(&w.box, daemon_row("master"), w.margs, &w.master);
			cs_ready(&w.master);
		}
	}
	pml_close(red);
	pml_close(blue);
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 83 ---- */

enum { PARTS = 4, PART = 3000 };

struct entry {
	struct pml_item it[PARTS];
	struct pml_buf buf[PARTS];
	char key[PARTS][16];
	uint8_t v[PARTS][PART];
};

static void entry_make(struct entry *e, bool fill)
{
	for (unsigned i = 0; i < PARTS; i++) {
		snprintf(e->key[i], sizeof(e->key[i]), "entry/%u", i);
		e->buf[i] = (struct pml_buf){ e->v[i], PART };
		e->it[i] = (struct pml_item)PML_ITEM_INIT;
		e->it[i].key = e->key[i];
		e->it[i].key_bytes = strlen(e->key[i]);
		e->it[i].bufs = &e->buf[i];
		e->it[i].n_bufs = 1;
		e->it[i].group = "entry";
		e->it[i].group_bytes = 5;
		e->it[i].group_size = PARTS;
		if (fill)
			cs_fill(e->v[i], PART, i);
		else
			memset(e->v[i], 0xee, PART);
	}
}

static int entry_put(struct pml *p, unsigned from, unsigned n)
{
	static struct entry e;
	struct pml_op *op = NULL;
	struct pml_error err = PML_ERROR_INIT;
	entry_make(&e, true);
	cr_assert_eq(pml_put_start(p, e.it + from, n, NULL, NULL, NULL, &op, &err), 0, "%s",
		     err.text);
	int code = pml_op_wait(op);
	pml_op_free(op);
	return code;
}

/* How many parts came; what did not says so, and claims no byte. */
static unsigned entry_get(struct pml *p, uint32_t verify, int *code)
{
	static struct entry e;
	static uint8_t want[PART];
	struct pml_op *op = NULL;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	unsigned good = 0;
	entry_make(&e, false);
	o.verify = verify;
	o.deadline_ms = 3000;
	cr_assert_eq(pml_get_start(p, e.it, PARTS, &o, NULL, NULL, &op, NULL), 0);
	*code = pml_op_wait(op);
	for (unsigned i = 0; i < PARTS; i++) {
		struct pml_result r = PML_RESULT_INIT;
		pml_op_result(op, i, &r);
		cs_fill(want, PART, i);
		cr_assert(r.code != 0 || (r.bytes == PART && memcmp(e.v[i], want, PART) == 0),
			  "part %u", i);
		cr_assert(r.code == 0 || r.bytes == 0, "part %u failed and claims %llu bytes",
			  i, (unsigned long long)r.bytes);
		good += r.code == 0;
	}
	pml_op_free(op);
	return good;
}

/* An entry declares its parts: one that lacks is a miss of all. */
Test(field, case_083_an_entry_and_its_parts)
{
	struct world w;
	int code;
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=4000");
	cr_expect_eq(entry_put(w.p, 0, 3), 0);
	cr_expect_eq(entry_get(w.p, PML_VERIFY_SETTING, &code), 0, "one lacks");
	cr_expect_eq(code, PML_ERR_NOT_FOUND);
	cr_expect_eq(entry_put(w.p, 3, 1), 0);
	cr_expect_eq(entry_get(w.p, PML_VERIFY_SETTING, &code), PARTS);
	cs_kill_it(&w.agent);
	(void)entry_get(w.p, PML_VERIFY_SETTING,
			&code); /* while it is gone: an answer, or an error */
	proc_run(&w.box, daemon_row("agent"), w.aargs, &w.agent);
	cs_ready(&w.agent);
	cr_expect_eq(entry_get(w.p, PML_VERIFY_SETTING, &code), PARTS);
	cr_expect_eq(pml_remove(w.p, "entry/1", 7, NULL, NULL), 0);
	cr_expect_eq(entry_get(w.p, PML_VERIFY_SETTING, &code), 0, "the loss of one");
	cs_down(&w);
	NO_LEAKS();
}

/* Checksums on every way to read: bytes that rotted in the pool are never returned. */
static void rotten(const char *path)
{
	enum { POOL = 4 << 20, SIZE = 100000 };
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	static uint8_t v[SIZE], got[SIZE];
	setenv("POMELO_CLIENT_DATA_PATH", path, 1);
	cs_prepare(&w, "agent.pool_size=4MiB", "agent.slots=1000");
	w.aargs[6] = "--set=agent.data_listen=tcp://127.0.0.1:0";
	cs_start_all(&w);
	w.p = cs_client(&w);
	cs_fill(v, SIZE, 1);
	cr_assert_eq(pml_put(w.p, "k", 1, v, SIZE, NULL, &err), 0, "%s", err.text);
	uint8_t *pool = cs_pool_map(&w, "data.0", POOL);
	uint8_t *at = memmem(pool, POOL, v, 64);
	cr_assert(at, "the bytes are in the pool");
	at[SIZE / 2] ^= 4;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	const struct pml_range r = { SIZE / 2 - 10, 20 };
	const struct pml_buf b = { got, sizeof(got) };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	size_t n = 0;
	o.verify = PML_VERIFY_ALWAYS;
	o.deadline_ms = 500;
	it.key = "k";
	it.key_bytes = 1;
	it.bufs = &b;
	it.n_bufs = 1;
	cr_expect_neq(pml_get(w.p, "k", 1, got, SIZE, &n, &o, &err), 0, "%s: a get", path);
	cr_expect_neq(pml_get_ranges(w.p, "k", 1, &r, 1, &b, 1, &o, &err), 0, "%s: a range",
		      path);
	cr_assert_eq(pml_get_start(w.p, &it, 1, &o, NULL, NULL, &op, &err), 0);
	cr_expect_neq(pml_op_wait(op), 0, "%s: a batch", path);
	pml_op_free(op);
	munmap(pool, POOL);
	cs_down(&w);
}

Test(field, case_083_checksums_on_every_path)
{
	rotten("auto"); /* through shared memory */
	rotten("tcp");
	NO_LEAKS();
}

/* ---- 81, 87 ---- */

static uint64_t mem_available(void)
{
	char line[256];
	uint64_t kib = 0;
	FILE *f = fopen("/proc/meminfo", "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %lu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib << 10;
}

/* 8 GiB, or what a crowded box can spare. */
static uint64_t large(void)
{
	struct statvfs v;
	uint64_t n = 8ull << 30;
	n = MIN_OF(n, mem_available() / 4);
	if (statvfs("/dev/shm", &v) == 0)
		n = MIN_OF(n, (uint64_t)v.f_bavail * v.f_frsize / 2);
	return n >> 28 << 28;
}

/* The longest time that a thread with nothing to do was kept from doing it: a host that stands still. */
struct watchdog {
	pthread_t thread;
	_Atomic bool over;
	uint64_t worst_ms;
};

static void *bark(void *arg)
{
	struct watchdog *d = arg;
	for (uint64_t last = cs_now_ms(); !d->over;) {
		usleep(5000);
		uint64_t now = cs_now_ms();
		d->worst_ms = MAX_OF(d->worst_ms, now - last);
		last = now;
	}
	return NULL;
}

static int pomelo_down(const struct world *w)
{
	const char *exe = getenv("POMELO_TEST_EXE");
	cr_assert(exe, "POMELO_TEST_EXE");
	pid_t pid = fork();
	if (pid == 0) {
		execl(exe, exe, "--data", w->box.dir, "down", "--fast", (char *)NULL);
		_exit(127);
	}
	int status = 0;
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static bool pool_there(const struct world *w)
{
	return cs_metric_of(&w->agent, "pomelo_agent_pool_bytes{kind=\"ready\"}") >= 0;
}

Test(field, case_087_case_081_a_large_pool_starts_in_slices_and_stops)
{
	enum { VALUE = 1 << 20 };
	struct world w;
	struct watchdog dog = { .over = false };
	struct pml_error err = PML_ERROR_INIT;
	static uint8_t v[VALUE], got[VALUE];
	char pool[64], shm[] = "/dev/shm/pml-XXXXXX", dir[64];
	uint64_t bytes = large(), first_ms = 0, suspects = 0, slices = 0;
	double ready = 0, before = 0;
	if (bytes < 1ull << 30)
		cr_skip_test("too little memory is free");
	snprintf(pool, sizeof(pool), "agent.pool_size=%lluMiB",
		 (unsigned long long)(bytes >> 20));
	cr_assert(mkdtemp(shm));
	snprintf(dir, sizeof(dir), "--set=agent.pool_dir=%s", shm);
	cs_prepare(&w, pool, "agent.slots=20000");
	w.aargs[6] = dir;
	proc_run(&w.box, daemon_row("master"), w.margs, &w.master);
	cs_ready(&w.master);
	w.p = cs_client(&w);
	cr_assert_eq(pthread_create(&dog.thread, NULL, bark, &dog), 0);
	uint64_t t0 = cs_now_ms();
	proc_start(&w.box, daemon_row("agent"), w.aargs, &w.agent);
	cs_fill(v, VALUE, 1);
	while (cs_now_ms() - t0 < 60000 && ready < (double)bytes) {
		struct pml_put_opts o = PML_PUT_OPTS_INIT;
		o.deadline_ms = 500;
		if (first_ms == 0 && pml_upsert(w.p, "first", 5, v, VALUE, &o, &err) == 0)
			first_ms = MAX_OF(cs_now_ms() - t0, 1u);
		if (!w.agent.http[0] && !proc_up(&w.box, &w.agent, 10))
			continue;
		suspects +=
			cs_metric_of(&w.master, "pomelo_master_peers{state=\"suspect\"}") > 0;
		ready = cs_metric_of(&w.agent, "pomelo_agent_pool_bytes{kind=\"ready\"}");
		slices += ready > before;
		before = ready;
	}
	cr_log_info("%llu MiB: the first put after %llu ms, all after %llu ms",
		    (unsigned long long)(bytes >> 20), (unsigned long long)first_ms,
		    (unsigned long long)(cs_now_ms() - t0));
	cr_expect(first_ms > 0 && first_ms <= 2000, "the first slice: %llu ms",
		  (unsigned long long)first_ms);
	cr_expect_eq(ready, (double)bytes);
	cr_expect_geq(slices, 2, "%llu", (unsigned long long)slices);
	cr_expect_eq(suspects, 0, "heartbeats go on");
	cr_expect_eq(pml_get(w.p, "first", 5, got, VALUE, NULL, NULL, &err), 0, "%s", err.text);
	cr_expect_eq(memcmp(v, got, VALUE), 0);
	/* 81: it stops, and gives all of it back, in bounded time; nothing else stands still for it */
	uint64_t free_before = mem_available();
	pml_close(w.p);
	w.p = NULL;
	dog.worst_ms = 0;
	t0 = cs_now_ms();
	cr_expect_eq(pomelo_down(&w), 0);
	uint64_t ms = cs_now_ms() - t0;
	cr_expect_lt(ms, 15000, "down took %llu ms", (unsigned long long)ms);
	cr_expect_not(pool_there(&w));
	cr_expect_gt(mem_available(), free_before + bytes / 2, "its memory is free again");
	dog.over = true;
	pthread_join(dog.thread, NULL);
	cr_expect_lt(dog.worst_ms, 1000, "the host stood still for %llu ms",
		     (unsigned long long)dog.worst_ms);
	cr_expect(proc_wait(&w.agent, 5000) && w.agent.code == 0, "%d", w.agent.code);
	cr_expect(proc_wait(&w.master, 5000) && w.master.code == 0, "%d", w.master.code);
	cr_expect_eq(rmdir(shm), 0, "nothing is left in %s", shm);
	box_remove(&w.box);
	NO_LEAKS();
}

/* The address to bind is a setting; the one that is told is proved: who cannot be reached there never joins. */
Test(field, case_081_the_advertised_address_is_proved)
{
	struct world w;
	static char text[1 << 16];
	char sock[96];
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=4000");
	proc_signal(&w.master, SIGSTOP);
	second_agent(&w, "--set=agent.listen=tcp://127.0.0.1:0",
		     "--set=agent.advertise=tcp://127.0.0.1:1");
	snprintf(sock, sizeof(sock), "%.60s/run/agent.sock", w.far.dir);
	cr_assert_eq(unlink(sock), 0); /* as if on another host */
	proc_signal(&w.master, SIGCONT);
	usleep(1500000);
	cr_expect(proc_http_until(&w.second, "/readyz", 503, 2000, text, sizeof(text)), "%s",
		  text);
	cr_expect(strstr(text, "adopted"), "%s", text);
	cr_expect_eq(cs_metric_of(&w.second, "pomelo_agent_adopted"), 0);
	for (int i = 0; i < 50; i++) { /* nothing is put there */
		char key[16];
		snprintf(key, sizeof(key), "k%d", i);
		put_str(w.p, key, key);
	}
	cr_expect_eq(cs_metric_of(&w.second, "pomelo_agent_slots{kind=\"used\"}"), 0);
	cs_down(&w);
	NO_LEAKS();
}
