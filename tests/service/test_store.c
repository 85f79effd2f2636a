/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects over the real services: every command, sizes that mean something, writers that meet on one key,
 * services that are killed under them, and, in builds with fault points, writers stopped half way.
 */
#include "box.h"

#include "base/fault.h"
#include "base/sum.h"
#include "pml_store.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(store, .timeout = 120);

static void up(struct box *b)
{
	struct box_ran r;
	box_init(b);
	box_run(b, &r, "up --no-disk --pool 256MiB");
	cr_assert_eq(r.code, 0, "%s", r.err);
}

static void ok(const struct box *b, const char *words)
{
	struct box_ran r;
	box_run(b, &r, words);
	cr_expect_eq(r.code, 0, "%s: %d %s", words, r.code, r.err);
}

/* The command, with a file of the box put in at its end. */
static struct box_ran with_file(const struct box *b, const char *words, const char *name)
{
	struct box_ran r;
	char all[1200];
	snprintf(all, sizeof(all), "%s %s", words, box_at(b, name));
	box_run(b, &r, all);
	return r;
}

static void make_file(const struct box *b, const char *name, size_t n, unsigned seed)
{
	FILE *f = fopen(box_at(b, name), "w");
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
	for (size_t at = 0; at < n; at += sizeof(x)) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		fwrite(&x, 1, MIN_OF(sizeof(x), n - at), f);
	}
	cr_assert_eq(fclose(f), 0);
}

static bool same_files(const struct box *b, const char *x, const char *y)
{
	FILE *f = fopen(box_at(b, x), "r"), *g = fopen(box_at(b, y), "r");
	bool same = f && g;
	static char p[65536], q[65536];
	while (same) {
		size_t n = fread(p, 1, sizeof(p), f), m = fread(q, 1, sizeof(q), g);
		same = n == m && memcmp(p, q, n) == 0;
		if (n < sizeof(p))
			break;
	}
	if (f)
		fclose(f);
	if (g)
		fclose(g);
	return same;
}

/* ---- commands ---- */

Test(store, sizes_there_and_back)
{
	static const size_t sizes[] = { 0, 1, 4096, (1 << 20) + 1, 64 << 20 };
	struct box b;
	struct box_ran r;
	char words[64];
	up(&b);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		make_file(&b, "in", sizes[i], (unsigned)i + 1);
		snprintf(words, sizeof(words), "put size/%zu", sizes[i]);
		r = with_file(&b, words, "in");
		cr_expect_eq(r.code, 0, "%zu: %s", sizes[i], r.err);
		unlink(box_at(&b, "out"));
		snprintf(words, sizeof(words), "get size/%zu", sizes[i]);
		r = with_file(&b, words, "out");
		cr_expect_eq(r.code, 0, "%zu: %s", sizes[i], r.err);
		cr_expect(same_files(&b, "in", "out"), "%zu", sizes[i]);
		snprintf(words, sizeof(words), "get --verify size/%zu", sizes[i]);
		r = with_file(&b, words, "out");
		cr_expect(r.code == 0 && same_files(&b, "in", "out"), "%zu: %s", sizes[i],
			  r.err);
	}
	box_fini(&b);
}

Test(store, every_command)
{
	struct box b;
	struct box_ran r;
	up(&b);
	box_write(box_at(&b, "one"), "the value of one");
	cr_expect_eq(with_file(&b, "put k/1", "one").code, 0);
	r = with_file(&b, "put k/1", "one");
	cr_expect_eq(r.code, EXIT_TYPED_);
	cr_expect(strstr(r.err, "exists already; --replace"), "%s", r.err);
	box_write(box_at(&b, "two"), "another value");
	cr_expect_eq(with_file(&b, "put --replace k/1", "two").code, 0);
	cr_expect_eq(with_file(&b, "put --hard-pin hex:00ff", "two").code, 0);
	box_run(&b, &r, "get k/1 -");
	cr_expect(r.code == 0 && strcmp(r.out, "another value") == 0, "%s", r.err);
	box_run(&b, &r, "get nothing -");
	cr_expect_eq(r.code, EXIT_NOT_FOUND_, "%s", r.err);
	cr_expect(strstr(r.err, "no such key") && strstr(r.err, "pomelo ls"), "%s", r.err);
	cr_expect_str_eq(r.out, "");
	r = with_file(&b, "get nothing", "none");
	cr_expect(r.code == EXIT_NOT_FOUND_ && access(box_at(&b, "none"), F_OK) != 0);
	box_run(&b, &r, "ls");
	cr_expect(strstr(r.out, "k/1") && strstr(r.out, "hex:00ff") && strstr(r.out, "13 B"),
		  "%s", r.out);
	box_run(&b, &r, "ls k/ --json");
	json_t *o = box_json(&r);
	cr_expect_eq(json_integer_value(json_object_get(o, "n")), 1);
	cr_expect_eq(json_integer_value(json_object_get(o, "bytes")), 13);
	json_decref(o);
	box_run(&b, &r, "stat k/1 hex:00ff");
	cr_expect(r.code == 0 && strstr(r.out, "pinned"), "%s", r.out);
	box_run(&b, &r, "stat k/1 nothing --json");
	cr_expect_eq(r.code, EXIT_SOME_, "%s", r.err);
	box_run(&b, &r, "stat nothing");
	cr_expect_eq(r.code, EXIT_NOT_FOUND_, "%s", r.err);
	box_run(&b, &r, "explain k/1");
	cr_expect(r.code == 0 && strstr(r.out, "version"), "%s%s", r.out, r.err);
	box_run(&b, &r, "status --json");
	o = box_json(&r);
	cr_expect_eq(json_integer_value(json_object_get(o, "objects")), 2, "%s", r.out);
	cr_expect(json_is_false(json_object_get(o, "recovering")));
	cr_expect_eq(json_array_size(json_object_get(o, "holders")), 1);
	json_decref(o);
	box_run(&b, &r, "rm hex:00ff");
	cr_expect_eq(r.code, EXIT_TYPED_, "hard-pinned: %s", r.err);
	ok(&b, "rm hex:00ff --force");
	ok(&b, "rm k/1 nothing");
	box_run(&b, &r, "stat k/1");
	cr_expect_eq(r.code, EXIT_NOT_FOUND_);
	for (int i = 0; i < 4; i++) {
		char words[32];
		snprintf(words, sizeof(words), "put %c/%d", i < 2 ? 'a' : 'b', i);
		cr_expect_eq(with_file(&b, words, "one").code, 0);
	}
	box_run(&b, &r, "rm --prefix a/");
	cr_expect(r.code == 0 && strstr(r.out, "2 removed"), "%s%s", r.out, r.err);
	box_run(&b, &r, "rm --all --json");
	o = box_json(&r);
	cr_expect_eq(json_integer_value(json_object_get(o, "removed")), 2, "%s", r.out);
	json_decref(o);
	box_run(&b, &r, "forget nobody");
	cr_expect_eq(r.code, EXIT_NOT_FOUND_, "%s", r.err);
	box_fini(&b);
}

/* A program of the library's examples, on a cluster of its own; argv ends with NULL. */
static void example(const char *const *argv)
{
	struct box b;
	int st = 0;
	up(&b);
	pid_t pid = fork();
	if (pid == 0) {
		setenv("POMELO_DATA", b.data, 1);
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	cr_expect(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == 0,
		  "%s: %x", argv[0], (unsigned)st);
	box_fini(&b);
}

Test(store, example_put_get)
{
	const char *exe = getenv("POMELO_TEST_PUT_GET");
	cr_assert_not_null(exe, "run by `meson test`");
	example((const char *[]){ exe, NULL });
}

/* Strided regions through a snapshot into a registered buffer. */
Test(store, example_kv_tiles)
{
	const char *exe = getenv("POMELO_TEST_KV_TILES");
	cr_assert_not_null(exe, "run by `meson test`");
	example((const char *[]){ exe, NULL });
}

Test(store, example_prefix_cache_in_cpp)
{
	const char *exe = getenv("POMELO_TEST_PREFIX_CACHE");
	if (!exe)
		cr_skip("needs a C++ compiler");
	example((const char *[]){ exe, NULL });
}

/* ctypes: the structs declared there are those of pml_store.h. A library with sanitizers in it cannot be
 * loaded by an interpreter without. */
Test(store, example_from_python)
{
	const char *script = getenv("POMELO_TEST_PUT_GET_PY"), *lib = getenv("POMELO_TEST_LIB");
	cr_assert(script && lib, "run by `meson test`");
#ifdef __SANITIZE_ADDRESS__
	cr_skip("not under sanitizers");
#endif
	example((const char *[]){ "python3", script, lib, NULL });
}

/* ---- kills ---- */

static void kill_one(const struct box *b, const char *service)
{
	pid_t pid = box_pid(b, service);
	cr_assert_gt(pid, 1);
	kill(pid, SIGKILL);
}

/* Commands that meet a restart wait for its end; nothing acknowledged is lost, nothing removed is back. */
static void survive(const char *service)
{
	struct box b;
	up(&b);
	make_file(&b, "in", 3 << 20, 7);
	cr_expect_eq(with_file(&b, "put kept", "in").code, 0);
	cr_expect_eq(with_file(&b, "put gone", "in").code, 0);
	ok(&b, "rm gone");
	for (int i = 0; i < 3; i++) {
		struct box_ran r;
		kill_one(&b, service);
		unlink(box_at(&b, "out"));
		r = with_file(&b, "get kept", "out");
		cr_expect(r.code == 0 && same_files(&b, "in", "out"), "%s", r.err);
		box_run(&b, &r, "stat gone");
		cr_expect_eq(r.code, EXIT_NOT_FOUND_, "%s", r.err);
		kill_one(&b, service);
		r = with_file(&b, "put --replace again", "in");
		cr_expect_eq(r.code, 0, "%s", r.err);
	}
	box_fini(&b);
}

Test(store, master_killed)
{
	survive("master");
}

Test(store, agent_killed)
{
	survive("agent");
}

/* ---- many writers ---- */

enum { WRITERS = 64, READERS = 4, HEAD = 64 };

/* A value: a head that names its writer, and a body that all share, so that 64 of a GiB fit. */
struct contest {
	const struct box *b;
	size_t n; /* of a value */
	uint8_t *body;
	_Atomic bool over;
	_Atomic unsigned seen; /* whole values that readers got */
	pthread_barrier_t start;
};

struct writer {
	struct contest *c;
	unsigned i;
	int code;
};

static struct pml *open_here(const struct box *b)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	o.data = b->data;
	o.deadline_ms = 60000;
	if (pml_open(&o, &p, &err) != 0)
		fprintf(stderr, "%s\n", err.text);
	return p;
}

static struct pml_item contended(struct contest *c, uint8_t *head, struct pml_buf bufs[2])
{
	struct pml_item it = PML_ITEM_INIT;
	size_t h = MIN_OF(c->n, (size_t)HEAD);
	bufs[0] = (struct pml_buf){ head, h };
	bufs[1] = (struct pml_buf){ c->body, c->n - h };
	it.key = "contended";
	it.key_bytes = 9;
	it.bufs = bufs;
	it.n_bufs = 2;
	return it;
}

static void *write_once(void *arg)
{
	struct writer *w = arg;
	uint8_t head[HEAD];
	struct pml_buf bufs[2];
	struct pml_item it = contended(w->c, memset(head, (int)w->i, HEAD), bufs);
	struct pml *p = open_here(w->c->b);
	pthread_barrier_wait(&w->c->start);
	do {
		struct pml_op *op = NULL;
		w->code = pml_put_start(p, &it, 1, NULL, NULL, NULL, &op, NULL);
		if (w->code == 0)
			w->code = pml_op_wait(op);
		pml_op_free(op);
	} while (w->code == PML_ERR_BUSY_WRITING && usleep(2000) == 0);
	pml_close(p);
	return NULL;
}

/* Is it one writer's value, whole? Its number; -1: not. */
static int whole_of(const struct contest *c, const uint8_t *v, size_t n)
{
	size_t h = MIN_OF(c->n, (size_t)HEAD);
	for (size_t i = 1; i < h; i++)
		if (v[i] != v[0])
			return -1;
	if (n != c->n || memcmp(v + h, c->body, n - h) != 0)
		return -1;
	return n ? v[0] : 0;
}

static void *read_all_along(void *arg)
{
	struct contest *c = arg;
	struct pml *p = open_here(c->b);
	uint8_t *v = malloc(c->n + 1);
	while (!c->over) {
		size_t n = 0;
		int e = pml_get(p, "contended", 9, v, c->n, &n, NULL, NULL);
		cr_expect(e == 0 || e == PML_ERR_NOT_FOUND, "%s", pml_error_name(e));
		if (e == 0)
			cr_expect(whole_of(c, v, n) >= 0, "%zu bytes", n);
		c->seen += e == 0;
		usleep(500);
	}
	free(v);
	pml_close(p);
	return NULL;
}

/* The number of the only one that won. */
static unsigned contest(struct contest *c)
{
	struct writer w[WRITERS];
	pthread_t t[WRITERS], r[READERS];
	unsigned won = 0, winner = 0;
	pthread_barrier_init(&c->start, NULL, WRITERS);
	for (unsigned i = 0; i < READERS; i++)
		pthread_create(&r[i], NULL, read_all_along, c);
	for (unsigned i = 0; i < WRITERS; i++) {
		w[i] = (struct writer){ c, i, -1 };
		pthread_create(&t[i], NULL, write_once, &w[i]);
	}
	for (unsigned i = 0; i < WRITERS; i++) {
		pthread_join(t[i], NULL);
		cr_expect(w[i].code == 0 || w[i].code == PML_ERR_ALREADY_EXISTS, "%s",
			  pml_error_name(w[i].code));
		if (w[i].code == 0)
			won++, winner = i;
	}
	cr_expect_eq(won, 1, "%zu bytes: %u won", c->n, won);
	for (int i = 0; i < 2000 && c->seen == 0; i++)
		usleep(10000);
	c->over = true;
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(r[i], NULL);
	cr_expect_gt(c->seen, 0, "no reader saw it");
	pthread_barrier_destroy(&c->start);
	return winner;
}

static void contests(const char *pool, const size_t *sizes, size_t n_sizes)
{
	struct box b;
	struct box_ran r;
	char words[64];
	box_init(&b);
	snprintf(words, sizeof(words), "up --no-disk --pool %s", pool);
	box_run(&b, &r, words);
	cr_assert_eq(r.code, 0, "%s", r.err);
	for (size_t s = 0; s < n_sizes; s++) {
		struct contest c = { .b = &b, .n = sizes[s], .body = malloc(sizes[s] + 1) };
		size_t n = 0;
		for (size_t k = 0; k < sizes[s]; k++)
			c.body[k] = (uint8_t)(k * 11 + (k >> 9));
		unsigned winner = contest(&c);
		uint8_t *got = malloc(sizes[s] + 1);
		struct pml *p = open_here(&b);
		cr_expect_eq(pml_get(p, "contended", 9, got, sizes[s], &n, NULL, NULL), 0);
		cr_expect_eq(whole_of(&c, got, n), sizes[s] ? (int)winner : 0);
		cr_expect_eq(pml_remove(p, "contended", 9, NULL, NULL), 0);
		pml_close(p);
		free(got);
		free(c.body);
	}
	box_fini(&b);
}

/* Exactly one wins; the others hear BUSY_WRITING, then ALREADY_EXISTS; readers see nothing or all of it. */
Test(store, case_015_64_writers_on_one_key)
{
	static const size_t sizes[] = { 0, 1, 4096, (1 << 20) + 1, 4 << 20 };
	contests("256MiB", sizes, ARRAY_LEN(sizes));
}

/* The largest of the case's values; with POMELO_TEST_LONG set. */
Test(store, case_015_values_to_1_gib, .timeout = 600)
{
	static const size_t sizes[] = { 64 << 20, 1 << 30 };
	if (!getenv("POMELO_TEST_LONG"))
		cr_skip("takes 4 GiB of memory; POMELO_TEST_LONG=1 runs it");
	contests("2560MiB", sizes, ARRAY_LEN(sizes));
}

/* ---- stopped at every row of the put table ---- */

static const char *const rows[] = { "put_granted", "put_hazard",  "put_looked",	    "put_half",
				    "put_copied",  "put_cleared", "put_commit_sent" };

static void wait_stopped(const struct box_job *j, const char *row)
{
	int st = 0;
	cr_assert(waitpid(j->pid, &st, WUNTRACED) == j->pid && WIFSTOPPED(st), "%s: %#x", row,
		  (unsigned)st);
}

/* Rounds a row: ROUNDS in the environment, or 1. */
static unsigned rounds(void)
{
	const char *s = getenv("ROUNDS");
	return s ? (unsigned)atoi(s) : 1;
}

/* Bytes of an object that may have been evicted: these, or none. */
static void same_or_gone(const struct box *b, const char *key, const char *want,
			 const char *when)
{
	char words[600];
	snprintf(words, sizeof(words), "get --verify %s", key);
	struct box_ran r = with_file(b, words, "out");
	cr_expect(r.code == EXIT_NOT_FOUND_ || (r.code == 0 && same_files(b, want, "out")),
		  "%s: %s: %d %s", when, key, r.code, r.err);
}

/*
 * A writer is stopped there; the master dies and comes back; the whole pool is written over and over, so
 * that its space is wanted; the writer goes on. No byte of another object changes, and its own put is whole.
 */
Test(store, writer_stopped_at_every_row, .timeout = 900)
{
	struct box b;
	struct box_ran r;
	if (!fault_built())
		cr_skip("needs a build with fault points");
	box_init(&b);
	box_run(&b, &r, "up --no-disk --pool 64MiB --set master.lease_ms=300");
	cr_assert_eq(r.code, 0, "%s", r.err);
	make_file(&b, "in", 4 << 20, 1);
	make_file(&b, "other", 4 << 20, 2);
	for (size_t i = 0; i < ARRAY_LEN(rows) * rounds(); i++) {
		const char *row = rows[i % ARRAY_LEN(rows)];
		struct box_job j;
		char words[512];
		snprintf(words, sizeof(words), "POMELO_TEST_FAULTS=%s:stop put stopped %s", row,
			 box_at(&b, "in"));
		box_start(&b, &j, words);
		wait_stopped(&j, row);
		kill_one(&b, "master");
		for (int k = 0; k < 20; k++) {
			snprintf(words, sizeof(words), "put --replace other/%d", k);
			r = with_file(&b, words, "other");
			cr_expect_eq(r.code, 0, "%s: %s", row, r.err);
		}
		kill(j.pid, SIGCONT);
		box_wait(&j, &r);
		cr_expect_eq(r.code, 0, "%s: %s", row, r.err);
		same_or_gone(&b, "stopped", "in", row);
		for (int k = 0; k < 20; k++) {
			snprintf(words, sizeof(words), "other/%d", k);
			same_or_gone(&b, words, "other", row);
		}
		ok(&b, "rm stopped");
	}
	box_fini(&b);
}

/* Killed there instead: the key is free again, at once or when its attempt is discarded. */
Test(store, writer_killed_at_every_row, .timeout = 900)
{
	struct box b;
	struct box_ran r;
	if (!fault_built())
		cr_skip("needs a build with fault points");
	box_init(&b);
	box_run(&b, &r, "up --no-disk --pool 256MiB --set master.put_start_discard_ms=1000");
	cr_assert_eq(r.code, 0, "%s", r.err);
	make_file(&b, "in", 8 << 20, 1);
	for (size_t i = 0; i < ARRAY_LEN(rows) * rounds(); i++) {
		const char *row = rows[i % ARRAY_LEN(rows)];
		struct box_job j;
		char words[512];
		snprintf(words, sizeof(words), "POMELO_TEST_FAULTS=%s:kill put killed %s", row,
			 box_at(&b, "in"));
		box_start(&b, &j, words);
		box_wait(&j, &r);
		cr_expect_eq(r.code, -SIGKILL, "%s", row);
		r = with_file(&b, "put --replace killed", "in");
		cr_expect_eq(r.code, 0, "%s: %s", row, r.err);
		r = with_file(&b, "get --verify killed", "out");
		cr_expect(r.code == 0 && same_files(&b, "in", "out"), "%s: %s", row, r.err);
		ok(&b, "rm killed");
	}
	box_fini(&b);
}

/* A reader stopped past its lease, its object removed, its space rewritten: never foreign bytes. */
Test(store, reader_stopped, .timeout = 900)
{
	static const char *const places[] = { "get_queried", "get_half", "get_copied" };
	struct box b;
	struct box_ran r;
	if (!fault_built())
		cr_skip("needs a build with fault points");
	box_init(&b);
	box_run(&b, &r, "up --no-disk --pool 64MiB --set master.lease_ms=500");
	cr_assert_eq(r.code, 0, "%s", r.err);
	make_file(&b, "in", 8 << 20, 1);
	make_file(&b, "other", 8 << 20, 2);
	for (size_t i = 0; i < ARRAY_LEN(places) * rounds(); i++) {
		const char *place = places[i % ARRAY_LEN(places)];
		struct box_job j;
		char words[512];
		cr_expect_eq(with_file(&b, "put --replace read", "in").code, 0);
		snprintf(words, sizeof(words),
			 "POMELO_TEST_FAULTS=%s:stop --deadline 3s get read %s", place,
			 box_at(&b, "out"));
		unlink(box_at(&b, "out"));
		box_start(&b, &j, words);
		wait_stopped(&j, place);
		ok(&b, "rm read");
		usleep(700000);
		for (int k = 0; k < 7; k++) {
			snprintf(words, sizeof(words), "put --replace other/%d", k);
			r = with_file(&b, words, "other");
			cr_expect_eq(r.code, 0, "%s: %s", place, r.err);
		}
		kill(j.pid, SIGCONT);
		box_wait(&j, &r);
		cr_expect(r.code != 0 || same_files(&b, "in", "out"), "%s: foreign bytes",
			  place);
		cr_expect(r.code == EXIT_NOT_FOUND_ || r.code == 0, "%s: %d %s", place, r.code,
			  r.err);
		ok(&b, "rm --all");
	}
	box_fini(&b);
}
