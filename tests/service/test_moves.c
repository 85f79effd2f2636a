/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases from the field about moving bytes and about the library, over real processes: speed of a hit, addresses,
 * memory that goes in the middle of a transfer, peers that die, what is documented, batches.
 */
#include "cases.h"
#include "relay.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/leak.h"

TestSuite(moves, .timeout = 120);

enum { MiB = 1 << 20, BIG = 24 * MiB };

static double seconds(void)
{
	return (double)clock_real.now_ns(&clock_real) / 1e9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* ---- a cluster whose clients use data lanes, through a relay or straight ---- */

struct wire {
	struct world w;
	struct relay *relay;
	char listen[64], advertise[80];
};

static void lanes_up(struct wire *d, bool relay)
{
	unsigned port = relay_free_port();
	memset(d, 0, sizeof(*d));
	setenv("POMELO_CLIENT_DATA_PATH", "tcp", 1);
	d->relay = relay ? relay_new(port) : NULL;
	cs_prepare(&d->w, "agent.pool_size=128MiB", "agent.slots=8000");
	snprintf(d->listen, sizeof(d->listen), "agent.data_listen=tcp://127.0.0.1:%u", port);
	/* without a relay: the first address is nobody's, as in case 67 */
	if (relay)
		snprintf(d->advertise, sizeof(d->advertise),
			 "agent.data_advertise=tcp://127.0.0.1:%u", relay_port(d->relay));
	else
		snprintf(d->advertise, sizeof(d->advertise),
			 "agent.data_advertise=tcp://127.0.0.1:%u,tcp://127.0.0.1:%u",
			 relay_free_port(), port);
	const char *more[] = { "--set", d->listen, "--set", d->advertise };
	size_t n = 0;
	while (d->w.aargs[n])
		n++;
	memcpy(d->w.aargs + n, more, sizeof(more));
	cs_start_all(&d->w);
}

static void lanes_down(struct wire *d)
{
	cs_down(&d->w);
	if (d->relay)
		relay_free(d->relay);
	unsetenv("POMELO_CLIENT_DATA_PATH");
}

static int put(struct pml *p, const char *key, const void *v, size_t n, uint32_t ms)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	uint64_t end = cs_now_ms() + ms;
	int e;
	o.deadline_ms = ms;
	do
		e = pml_upsert(p, key, strlen(key), v, n, &o, NULL);
	while (e == PML_ERR_BUSY_WRITING && cs_now_ms() < end && usleep(10000) == 0);
	return e;
}

static int get(struct pml *p, const char *key, void *v, size_t cap, size_t *n, uint32_t ms)
{
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	o.deadline_ms = ms;
	return pml_get(p, key, strlen(key), v, cap, n, &o, NULL);
}

static uint8_t *pages(size_t n)
{
	uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(p, MAP_FAILED);
	return p;
}

/* ---- 34 ---- */

enum { ENTRIES = 32, ENTRY = 8 * MiB, ROUNDS = 5 };

/* 32 entries of 10,000 tokens: a hit in memory costs about what copying its bytes does. */
Test(moves, case_034_a_memory_hit_costs_a_copy)
{
	struct world w;
	char key[ENTRIES][24];
	double ratio[ROUNDS];
	uint8_t *set = pages((size_t)ENTRIES * ENTRY), *to = pages(ENTRY);
	size_t n = 0;
	cs_up(&w, "agent.pool_size=320MiB", "agent.slots=1000");
	for (unsigned i = 0; i < ENTRIES; i++) {
		snprintf(key[i], sizeof(key[i]), "entry/%u", i);
		cs_fill(set + (size_t)i * ENTRY, ENTRY, i);
		cr_assert_eq(put(w.p, key[i], set + (size_t)i * ENTRY, ENTRY, 20000), 0);
		cr_assert_eq(get(w.p, key[i], to, ENTRY, &n, 20000), 0);
		cr_assert(n == ENTRY && memcmp(to, set + (size_t)i * ENTRY, ENTRY) == 0);
	}
	for (unsigned r = 0; r < ROUNDS; r++) {
		double t0 = seconds();
		for (unsigned i = 0; i < ENTRIES; i++)
			memcpy(to, set + (size_t)(i * 7 % ENTRIES) * ENTRY, ENTRY);
		double t1 = seconds();
		for (unsigned i = 0; i < ENTRIES; i++)
			cr_assert_eq(get(w.p, key[i * 7 % ENTRIES], to, ENTRY, &n, 20000), 0);
		ratio[r] = (t1 - t0) / (seconds() - t1);
	}
	qsort(ratio, ROUNDS, sizeof(ratio[0]), by_value);
	/* bench/run says how near it is; here only what is far off on any machine fails */
	cr_expect_gt(ratio[ROUNDS / 2], 0.1, "%.2f of memcpy", ratio[ROUNDS / 2]);
	munmap(set, (size_t)ENTRIES * ENTRY);
	munmap(to, ENTRY);
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 67 ---- */

/* Of several addresses that are told, the one that answers is used. */
Test(moves, case_067_the_address_that_answers_is_used)
{
	struct wire d;
	uint8_t *v = malloc(MiB), *got = malloc(MiB);
	size_t n = 0;
	lanes_up(&d, false);
	d.w.p = cs_client(&d.w);
	cs_fill(v, MiB, 3);
	cr_expect_eq(put(d.w.p, "k", v, MiB, 10000), 0);
	cr_expect(get(d.w.p, "k", got, MiB, &n, 10000) == 0 && n == MiB &&
		  memcmp(v, got, n) == 0);
	cr_expect_gt(cs_metric_of(&d.w.agent, "pomelo_agent_data_bytes_total{dir=\"out\"}"),
		     MiB);
	free(v);
	free(got);
	lanes_down(&d);
	NO_LEAKS();
}

/* An address that nobody can dial is no address: the start ends, naming setting, value and remedy. */
Test(moves, case_067_an_address_nobody_can_dial_is_refused)
{
	static const struct {
		const char *flag, *value, *want;
	} rows[] = {
		{ "--data-listen", "tcp://0.0.0.0:0", "agent.data_advertise" },
		{ "--data-listen", "tcp://[::]:0", "agent.data_advertise" },
		{ "--listen", "tcp://0.0.0.0:0", "agent.advertise" },
		{ "--listen", "tcp://[::]:0", "agent.advertise" },
		{ "--data-listen", "tcp://", "data_listen" },
		{ "--data-listen", "ipc:///tmp/x", "tcp://HOST:PORT" },
	};
	char text[8192];
	struct box b;
	struct proc p;
	box_make(&b);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *args[] = { rows[i].flag,  rows[i].value, "--pool-size", "1MiB",
				       "--http-port", "0",	     NULL };
		proc_start(&b, daemon_row("agent"), args, &p);
		cr_assert(proc_wait(&p, 10000), "%s %s: it runs", rows[i].flag, rows[i].value);
		proc_log(&p, text, sizeof(text));
		cr_expect_eq(p.code, 2, "%s %s: %d %s", rows[i].flag, rows[i].value, p.code,
			     text);
		cr_expect(strstr(text, rows[i].want) && strstr(text, rows[i].value),
			  "%s %s: %s", rows[i].flag, rows[i].value, text);
	}
	box_remove(&b);
	NO_LEAKS();
}

/* ---- 73 ---- */

/* A call on pages of its own is given up half way; then the pages go. */
static void unmapped(struct pml *p, struct relay *relay, bool is_put, unsigned after_us)
{
	uint8_t *v = pages(BIG);
	struct pml_buf b = { v, BIG };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	it.key = is_put ? "other" : "k";
	it.key_bytes = is_put ? 5 : 1;
	it.bufs = &b;
	it.n_bufs = 1;
	int e = is_put ? pml_upsert_start(p, &it, 1, NULL, NULL, NULL, &op, NULL)
		       : pml_get_start(p, &it, 1, NULL, NULL, NULL, &op, NULL);
	cr_assert_eq(e, 0);
	usleep(after_us);
	if (relay)
		relay_hold(relay, true);
	uint64_t t0 = cs_now_ms();
	pml_op_free(op); /* back when nobody touches the buffers any more */
	cr_expect_lt(cs_now_ms() - t0, 10000);
	munmap(v, BIG);
	if (relay)
		relay_hold(relay, false);
}

/* Buffers unmapped in the middle of gets and puts, over lanes and over shared memory: nobody dies. */
Test(moves, case_073_buffers_unmapped_in_a_transfer)
{
	struct wire d;
	size_t n = 0;
	uint8_t *v = malloc(BIG), *got = malloc(BIG);
	lanes_up(&d, true);
	d.w.p = cs_client(&d.w);
	unsetenv("POMELO_CLIENT_DATA_PATH");
	struct pml *shm = cs_client(&d.w);
	cs_fill(v, BIG, 1);
	cr_assert_eq(put(d.w.p, "k", v, BIG, 20000), 0);
	for (unsigned i = 0; i < 12; i++) {
		unmapped(d.w.p, i % 3 == 2 ? d.relay : NULL, i % 2, i * 1500);
		unmapped(shm, NULL, i % 2, i * 300);
	}
	cr_expect(!proc_wait(&d.w.agent, 0) && !proc_wait(&d.w.master, 0), "both run on");
	cr_expect(get(d.w.p, "k", got, BIG, &n, 20000) == 0 && n == BIG &&
		  memcmp(v, got, n) == 0);
	cr_expect(get(shm, "k", got, BIG, &n, 20000) == 0 && n == BIG &&
		  memcmp(v, got, n) == 0);
	pml_close(shm);
	free(v);
	free(got);
	lanes_down(&d);
	NO_LEAKS();
}

#define SAME_PLACE ((void *)0x6e0000000000)

static uint8_t *same_place(void)
{
	return mmap(SAME_PLACE, 4 * MiB, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

/* Puts `mine`, waits for `other` and compares; its buffers are where the other process has its own. */
static int exchange(const struct world *w, unsigned mine, unsigned other)
{
	uint8_t *v = same_place(), *want = malloc(3 * MiB);
	char key[2][24];
	size_t n = 0;
	int e;
	struct pml *p = cs_client(w);
	if (v != SAME_PLACE)
		return 3;
	snprintf(key[0], sizeof(key[0]), "from/%u", mine);
	snprintf(key[1], sizeof(key[1]), "from/%u", other);
	cs_fill(v, 3 * MiB, mine);
	if (put(p, key[0], v, 3 * MiB, 20000) != 0)
		return 4;
	uint64_t end = cs_now_ms() + 20000;
	while ((e = get(p, key[1], v, 3 * MiB, &n, 5000)) == PML_ERR_NOT_FOUND &&
	       cs_now_ms() < end)
		usleep(5000);
	cs_fill(want, 3 * MiB, other);
	bool right = e == 0 && n == 3 * MiB && memcmp(v, want, n) == 0;
	free(want);
	pml_close(p);
	munmap(v, 4 * MiB);
	return right ? 0 : 5;
}

/* Two processes of one host with equal addresses of their buffers get each other's bytes. */
Test(moves, case_073_equal_addresses_in_two_processes)
{
	struct wire d;
	int st = 0;
	lanes_up(&d, false);
	d.w.p = NULL;
	pid_t pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0)
		_exit(exchange(&d.w, 1, 2));
	cr_expect_eq(exchange(&d.w, 2, 1), 0);
	cr_expect(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == 0, "%#x",
		  (unsigned)st);
	lanes_down(&d);
	NO_LEAKS();
}

/* ---- 74 ---- */

/* A get whose sender is killed before, in the middle of, or after the transfer ends by its deadline. */
Test(moves, case_074_a_get_has_a_final_status)
{
	struct wire d;
	uint8_t *v = malloc(BIG), *got = malloc(BIG);
	struct pml_buf b = { got, BIG };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	size_t n = 0;
	lanes_up(&d, true);
	d.w.p = cs_client(&d.w);
	cs_fill(v, BIG, 1);
	cr_assert_eq(put(d.w.p, "k", v, BIG, 20000), 0);
	it.key = "k", it.key_bytes = 1, it.bufs = &b, it.n_bufs = 1;
	o.deadline_ms = 2000;
	for (int when = 0; when < 3; when++) {
		cr_assert_eq(put(d.w.p, "k", v, BIG, 20000), 0);
		if (when == 0)
			cs_kill_it(&d.w.agent);
		uint64_t t0 = cs_now_ms();
		cr_assert_eq(pml_get_start(d.w.p, &it, 1, &o, NULL, NULL, &op, &err), 0);
		if (when == 1) {
			usleep(3000);
			relay_hold(d.relay, true); /* so that it is in the middle */
			usleep(20000);
			cs_kill_it(&d.w.agent);
		}
		int e = pml_op_wait(op);
		/* what is in time on a crowded box, and far from for ever */
		cr_expect_lt(cs_now_ms() - t0, 8000, "%d: %lu ms", when, cs_now_ms() - t0);
		if (when == 0)
			cr_expect_neq(e, 0);
		if (when == 2)
			cr_expect(e == 0 && memcmp(got, v, BIG) == 0);
		cr_expect_neq(pml_op_code(op), PML_ERR_BUSY);
		if (e != 0) {
			pml_op_item_error(op, 0, &err);
			cr_expect(err.text[0] && err.peer[0], "%d: '%s' '%s'", when, err.peer,
				  err.text);
		}
		pml_op_free(op);
		if (when == 2)
			cs_kill_it(&d.w.agent);
		relay_hold(d.relay, false);
		proc_run(&d.w.box, daemon_row("agent"), d.w.aargs, &d.w.agent);
		cs_ready(&d.w.agent);
		cr_expect(get(d.w.p, "k", got, BIG, &n, 20000) == 0 && n == BIG &&
			  memcmp(got, v, n) == 0);
	}
	free(v);
	free(got);
	lanes_down(&d);
	NO_LEAKS();
}

/* A put whose sender is killed: its blocks are free again, its key can be put. */
Test(moves, case_074_blocks_of_a_dead_sender_are_free)
{
	struct wire d;
	uint8_t *v = malloc(BIG);
	lanes_up(&d, true);
	d.w.p = NULL;
	double used = cs_metric_of(&d.w.master, "pomelo_master_bytes{of=\"used\"}");
	for (unsigned i = 0; i < 3; i++) {
		pid_t pid = fork();
		cr_assert_geq(pid, 0);
		if (pid == 0) {
			struct pml *p = cs_client(&d.w);
			(void)put(p, "k", v, BIG, 60000);
			_exit(0);
		}
		usleep(10000 + 15000 * i);
		relay_hold(d.relay, true);
		usleep(50000);
		kill(pid, SIGKILL);
		cr_expect_eq(waitpid(pid, NULL, 0), pid);
		relay_hold(d.relay, false);
		struct pml *p = cs_client(&d.w);
		cr_expect_eq(put(p, "k", v, BIG, 20000), 0, "round %u", i);
		cr_expect_eq(pml_remove(p, "k", 1, NULL, NULL), 0);
		pml_close(p);
		cr_expect(cs_metric_until(&d.w.master, "pomelo_master_bytes{of=\"used\"}", used,
					  15000),
			  "round %u: %g", i,
			  cs_metric_of(&d.w.master, "pomelo_master_bytes{of=\"used\"}"));
		cr_expect(cs_metric_until(&d.w.master, "pomelo_master_attempts", 0, 15000));
		cr_expect(cs_metric_until(&d.w.agent,
					  "pomelo_agent_pool_bytes{kind=\"quarantine\"}", 0,
					  15000));
	}
	free(v);
	lanes_down(&d);
	NO_LEAKS();
}

/* ---- 85 ---- */

static char *file_text(const char *dir, const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "r");
	cr_assert_not_null(f, "%s", path);
	char *text = calloc(1, 1 << 18);
	cr_assert_lt(fread(text, 1, (1 << 18) - 1, f), (1 << 18) - 1);
	fclose(f);
	return text;
}

/* Names behind PML_API in a header; each is looked up. How many. */
static unsigned look_up(void *lib, const char *text, const char *file)
{
	unsigned n = 0;
	for (const char *p = text; (p = strstr(p, "\nPML_API ")); p++) {
		char name[80];
		const char *open = strchr(p, '('), *at = open;
		cr_assert_not_null(open);
		while (at[-1] == '_' || (at[-1] >= 'a' && at[-1] <= 'z') ||
		       (at[-1] >= '0' && at[-1] <= '9'))
			at--;
		snprintf(name, sizeof(name), "%.*s", (int)(open - at), at);
		cr_expect(strncmp(name, "pml_", 4) == 0 && dlsym(lib, name),
			  "%s: %s is not in the library", file, name);
		n++;
	}
	return n;
}

/* Every call that a header documents is in the library that is built; pml_has knows what pml.h lists. */
Test(moves, case_085_what_is_documented_is_there)
{
	const char *dir = getenv("POMELO_TEST_INCLUDE"), *so = getenv("POMELO_TEST_LIB");
	cr_assert(dir && so, "run by `meson test`");
	void *lib = dlopen(so, RTLD_NOW | RTLD_LOCAL);
	cr_assert_not_null(lib, "%s", dlerror());
	unsigned n = 0, features = 0;
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		size_t len = strlen(e->d_name);
		if (len < 3 || strcmp(e->d_name + len - 2, ".h") != 0)
			continue;
		char *text = file_text(dir, e->d_name);
		n += look_up(lib, text, e->d_name);
		free(text);
	}
	closedir(d);
	cr_expect_gt(n, 80);
	bool (*has)(const char *) = (bool (*)(const char *))dlsym(lib, "pml_has");
	cr_assert_not_null(has);
	char *text = file_text(dir, "pml.h");
	char *p = strstr(text, "Is there a feature of this name?"),
	     *end = p ? strstr(p, "*/") : NULL;
	cr_assert(p && end);
	while ((p = strchr(p, '"')) && p < end) {
		char *close = strchr(p + 1, '"');
		*close = '\0';
		cr_expect(has(p + 1), "%s", p + 1);
		p = close + 1;
		features++;
	}
	cr_expect_gt(features, 5);
	cr_expect(!has("no such thing") && !has("") && !has(NULL));
	free(text);
	dlclose(lib);
}

/* ---- 88 ---- */

enum { KEYS = 4096 };

/* One call of 4,096 items: each has a result of its own; it comes through a descriptor. */
static void batch(const struct world *w, struct pml_item *it, bool async)
{
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	struct pml_error err = PML_ERROR_INIT;
	cr_assert(!async || pml_cq_new(w->p, 4, &cq, &err) == 0);
	cr_assert_eq(pml_exists_start(w->p, it, KEYS, NULL, cq, it, &op, &err), 0, "%s",
		     err.text);
	if (async) {
		struct pollfd f = { .fd = pml_cq_fd(cq), .events = POLLIN };
		struct pml_op *done = NULL;
		cr_assert_eq(poll(&f, 1, 20000), 1);
		cr_assert(pml_cq_poll(cq, &done, 1) == 1 && done == op &&
			  pml_op_user(op) == it);
	} else {
		pml_op_wait(op);
	}
	for (unsigned i = 0; i < KEYS; i++) {
		struct pml_result r = PML_RESULT_INIT;
		cr_assert_eq(pml_op_result(op, i, &r), 0);
		cr_assert_eq(r.code, i % 3 ? 0 : PML_ERR_NOT_FOUND, "%u: %d", i, r.code);
	}
	pml_op_free(op);
	cr_expect_eq(pml_cq_free(cq), 0);
}

static void put_keys(const struct world *w, struct pml_item *it)
{
	struct pml_op *op = NULL;
	static struct pml_item some[KEYS];
	size_t n = 0;
	for (unsigned i = 0; i < KEYS; i++)
		if (i % 3)
			some[n++] = it[i];
	cr_assert_eq(pml_put_start(w->p, some, n, NULL, NULL, NULL, &op, NULL), 0);
	cr_assert_eq(pml_op_wait(op), 0);
	pml_op_free(op);
}

/* Per-item results, both forms of a call; and a batch costs a fraction of as many single calls. */
Test(moves, case_088_a_batch_has_a_result_an_item)
{
	static struct pml_item it[KEYS];
	static char key[KEYS][16];
	static uint8_t v[64];
	struct pml_buf b = { v, sizeof(v) };
	struct world w;
	double ratio[5];
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	for (unsigned i = 0; i < KEYS; i++) {
		it[i] = (struct pml_item)PML_ITEM_INIT;
		it[i].key_bytes = (size_t)snprintf(key[i], sizeof(key[i]), "b/%u", i);
		it[i].key = key[i];
		it[i].bufs = &b;
		it[i].n_bufs = 1;
	}
	put_keys(&w, it);
	for (unsigned r = 0; r < 5; r++) {
		double t0 = seconds();
		batch(&w, it, r % 2);
		double t1 = seconds();
		for (unsigned i = 0; i < KEYS / 8; i++) {
			bool yes = false;
			cr_assert_eq(pml_exists(w.p, key[i], it[i].key_bytes, &yes, NULL, NULL),
				     0);
			cr_assert_eq(yes, i % 3 != 0);
		}
		ratio[r] = 8 * (seconds() - t1) / (t1 - t0);
	}
	qsort(ratio, 5, sizeof(ratio[0]), by_value);
	cr_expect_gt(ratio[2], 2, "a batch is %.1f times as fast as single calls", ratio[2]);
	cs_down(&w);
	NO_LEAKS();
}
