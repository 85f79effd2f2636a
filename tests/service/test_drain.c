/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo drain`, `tasks`, `task cancel` over the real services and a second agent: every key is readable
 * throughout, what is drained is empty, Ctrl-C and deadlines leave a drain running.
 */
#include "box.h"

#include "pml_store.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(drain, .timeout = 120);

enum { KEYS = 60, VALUE = 100000, WAIT_MS = 30000 };

/* ---- two agents ---- */

struct two {
	struct box b;
	pid_t second; /* the agent in DIR/b */
	char first_id[80], second_id[80];
	struct pml *p;
};

static json_t *json_of(const struct box *b, const char *words, int code)
{
	struct box_ran r;
	box_run(b, &r, words);
	cr_assert_eq(r.code, code, "%s: %d %s", words, r.code, r.err);
	return box_json(&r);
}

static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));
	cr_assert_not_null(s, "%s", key);
	return s;
}

static uint64_t num(const json_t *o, const char *key)
{
	cr_assert(json_is_integer(json_object_get(o, key)), "%s", key);
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

/* The roster's row of a holder into state and objects; an empty id: the first that is not `but`. */
static bool holder(const struct box *b, char id[80], const char *but, char state[32],
		   uint64_t *objects)
{
	struct box_ran r;
	size_t i;
	json_t *v;
	bool found = false;
	box_run(b, &r, "status --json");
	json_t *o = box_json(&r);
	json_array_foreach(json_object_get(o, "holders"), i, v)
	{
		const char *at = text_of(v, "id");
		if (found || (*id ? strcmp(at, id) != 0 : strcmp(at, but) == 0))
			continue;
		snprintf(id, 80, "%s", at);
		snprintf(state, 32, "%s", text_of(v, "state"));
		*objects = num(v, "objects");
		found = true;
	}
	json_decref(o);
	return found;
}

static void until_state(const struct two *t, const char *id, const char *want)
{
	char at[80], state[32] = "";
	uint64_t n, end = box_now_ms() + WAIT_MS;
	snprintf(at, sizeof(at), "%s", id);
	while ((!holder(&t->b, at, "", state, &n) || strcmp(state, want) != 0) &&
	       box_now_ms() < end)
		usleep(20000);
	cr_assert_str_eq(state, want, "%s", id);
}

static pid_t start_agent(const struct two *t, const char *pool)
{
	char exe[512], dir[128], masters[256];
	const char *pomelo = getenv("POMELO_TEST_EXE");
	cr_assert_not_null(pomelo, "run by `meson test`");
	snprintf(exe, sizeof(exe), "%.*s/../transfer-agent/pomelo-transfer-agent",
		 (int)(strrchr(pomelo, '/') - pomelo), pomelo);
	snprintf(dir, sizeof(dir), "%s", box_at(&t->b, "b"));
	snprintf(masters, sizeof(masters), "ipc://%s", box_data(&t->b, "run/master.sock"));
	cr_assert_eq(mkdir(dir, 0700), 0);
	box_write(box_at(&t->b, "b/secret"), box_read(box_data(&t->b, "secret")));
	pid_t pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0) {
		int log = open(box_at(&t->b, "b.log"), O_WRONLY | O_CREAT, 0600);
		dup2(log, 2);
		execl(exe, exe, "--data", dir, "--masters", masters, "--data-listen",
		      "tcp://127.0.0.1:0", "--pool-size", pool, "--http-port", "0",
		      (char *)NULL);
		_exit(127);
	}
	return pid;
}

static void two_up(struct two *t, const char *second_pool)
{
	struct box_ran r;
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	char state[32];
	uint64_t n, end;
	*t = (struct two){ 0 };
	box_init(&t->b);
	box_run(&t->b, &r,
		"up --no-disk --pool 64MiB --set agent.data_listen=tcp://127.0.0.1:0 --set "
		"master.lease_ms=500 --set master.lease_max_ms=1000");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_assert(holder(&t->b, t->first_id, "", state, &n));
	o.data = t->b.data;
	o.deadline_ms = WAIT_MS;
	cr_assert_eq(pml_open(&o, &t->p, NULL), 0);
	t->second = start_agent(t, second_pool);
	end = box_now_ms() + WAIT_MS;
	while (!holder(&t->b, t->second_id, t->first_id, state, &n) && box_now_ms() < end)
		usleep(20000);
	until_state(t, t->second_id, "in");
}

static void two_down(struct two *t)
{
	struct box_ran r;
	struct box far = t->b;
	int st = 0;
	pml_close(t->p);
	snprintf(far.data, sizeof(far.data), "%s", box_at(&t->b, "b"));
	box_run(&far, &r, "down"); /* its pool goes with it */
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect(waitpid(t->second, &st, 0) == t->second && WIFEXITED(st) &&
			  WEXITSTATUS(st) == 0,
		  "%#x %s", (unsigned)st, box_read(box_at(&t->b, "b.log")));
	box_fini(&t->b);
}

/* ---- objects ---- */

static void fill(uint8_t *v, unsigned i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
	for (size_t k = 0; k < VALUE; k++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		v[k] = (uint8_t)x;
	}
}

static void put_all(const struct two *t, unsigned from, unsigned n, const char *at, bool pin)
{
	uint8_t *v = malloc(VALUE);
	for (unsigned i = from; i < from + n; i++) {
		struct pml_put_opts o = PML_PUT_OPTS_INIT;
		struct pml_error err = PML_ERROR_INIT;
		char key[24];
		int len = snprintf(key, sizeof(key), "k/%u", i);
		o.hard_pin = pin;
		o.preferred = &at;
		o.n_preferred = at ? 1 : 0;
		fill(v, i);
		cr_assert_eq(pml_put(t->p, key, (size_t)len, v, VALUE, &o, &err), 0, "%s",
			     err.text);
	}
	free(v);
}

struct reader {
	struct two *t;
	pthread_t thread;
	atomic_bool stop;
	atomic_uint rounds, bad;
	char why[200];
};

/* Every key, again and again: right bytes, always. */
static void *read_all(void *arg)
{
	struct reader *r = arg;
	uint8_t *v = malloc(VALUE), *want = malloc(VALUE);
	while (!atomic_load(&r->stop)) {
		for (unsigned i = 0; i < KEYS; i++) {
			struct pml_error err = PML_ERROR_INIT;
			char key[24];
			size_t n = 0;
			int len = snprintf(key, sizeof(key), "k/%u", i);
			fill(want, i);
			if (pml_get(r->t->p, key, (size_t)len, v, VALUE, &n, NULL, &err) == 0 &&
			    n == VALUE && memcmp(v, want, n) == 0)
				continue;
			snprintf(r->why, sizeof(r->why), "%s: %.150s", key, err.text);
			atomic_fetch_add(&r->bad, 1);
		}
		atomic_fetch_add(&r->rounds, 1);
	}
	free(v);
	free(want);
	return NULL;
}

/* ---- the tests ---- */

Test(drain, empties_a_holder_under_readers)
{
	struct two t;
	struct box_ran r;
	char words[128], state[32], id[32];
	uint64_t n;
	two_up(&t, "64MiB");
	put_all(&t, 0, KEYS, t.first_id, false);
	struct reader rd = { .t = &t };
	cr_assert_eq(pthread_create(&rd.thread, NULL, read_all, &rd), 0);
	snprintf(words, sizeof(words), "drain %s --json", t.first_id);
	json_t *o = json_of(&t.b, words, 0);
	cr_expect(json_is_true(json_object_get(o, "drained")));
	cr_expect_str_eq(text_of(o, "holder"), t.first_id);
	cr_expect_str_eq(text_of(o, "kind"), "drain");
	cr_expect_str_eq(text_of(o, "state"), "done");
	cr_expect(num(o, "done") == KEYS && num(o, "total") == KEYS &&
		  num(o, "bytes_done") == KEYS * VALUE);
	snprintf(id, sizeof(id), "%s", text_of(o, "id"));
	json_decref(o);
	for (unsigned was = rd.rounds, i = 0; rd.rounds < was + 2 && i < 3000; i++)
		usleep(10000);
	atomic_store(&rd.stop, true);
	pthread_join(rd.thread, NULL);
	cr_expect_eq(rd.bad, 0, "%u bad reads, %s", rd.bad, rd.why);
	cr_expect_geq(rd.rounds, 2);
	put_all(&t, KEYS, 10, t.first_id, false); /* though it is preferred */
	cr_expect(holder(&t.b, t.first_id, "", state, &n) && strcmp(state, "drained") == 0,
		  "%s", state);
	cr_expect(holder(&t.b, t.second_id, "", state, &n) && n == KEYS + 10);
	snprintf(words, sizeof(words), "tasks %s", id);
	box_run(&t.b, &r, words);
	cr_expect(r.code == 0 && strstr(r.out, "drain") && strstr(r.out, "done") &&
			  strstr(r.out, id),
		  "%s%s", r.out, r.err);
	snprintf(words, sizeof(words), "task cancel %s", id);
	box_run(&t.b, &r, words);
	cr_expect(r.code == 0 && strstr(r.out, "is cancelled"), "%s%s", r.out, r.err);
	until_state(&t, t.first_id, "in");
	two_down(&t);
}

/* No room elsewhere, and nothing may go: it waits, says so, and is left and ended as one says. */
Test(drain, waits_for_room_and_is_left_running)
{
	struct two t;
	struct box_ran r;
	struct box_job j;
	char words[160], state[32], id[32];
	uint64_t n;
	two_up(&t, "1MiB");
	put_all(&t, 0, KEYS, t.first_id, true);
	snprintf(words, sizeof(words), "drain %s --json", t.first_id);
	box_start(&t.b, &j, words);
	until_state(&t, t.first_id, "draining");
	usleep(500000);
	kill(j.pid, SIGINT);
	box_wait(&j, &r);
	cr_expect_eq(r.code, EXIT_INTERRUPTED_, "%d %s", r.code, r.err);
	cr_expect(strstr(r.err, "the drain goes on") && strstr(r.err, "pomelo task cancel"),
		  "%s", r.err);
	json_t *o = box_json(&r);
	snprintf(id, sizeof(id), "%s", text_of(o, "id"));
	cr_expect(json_is_false(json_object_get(o, "drained")));
	json_decref(o);
	o = json_of(&t.b, "tasks --json", 0);
	const json_t *task = json_array_get(json_object_get(o, "tasks"), 0);
	cr_expect_str_eq(text_of(task, "id"), id);
	cr_expect_str_eq(text_of(task, "state"), "running");
	cr_expect_lt(num(task, "done"), KEYS);
	json_decref(o);
	cr_expect(holder(&t.b, t.first_id, "", state, &n) && n > 0 &&
		  strcmp(state, "draining") == 0);
	snprintf(words, sizeof(words), "task cancel %s 1", id);
	box_run(&t.b, &r, words);
	cr_expect_eq(r.code, EXIT_SOME_, "%d %s", r.code, r.err);
	until_state(&t, t.first_id, "in");
	snprintf(words, sizeof(words), "drain %s --deadline 1s", t.first_id);
	box_run(&t.b, &r, words);
	cr_expect(r.code == EXIT_BUSY_ && strstr(r.err, "it goes on"), "%d %s", r.code, r.err);
	snprintf(words, sizeof(words), "stat k/%u", KEYS - 1);
	box_run(&t.b, &r, words);
	cr_expect_eq(r.code, 0, "%s", r.err);
	two_down(&t);
}

/* A master that is restarted ends it; begun again it does the rest. */
Test(drain, lost_with_the_master_and_begun_again)
{
	struct two t;
	struct box_ran r;
	char words[160], id[32];
	two_up(&t, "64MiB");
	put_all(&t, 0, KEYS, t.first_id, false);
	snprintf(words, sizeof(words), "drain %s --no-wait --json", t.first_id);
	json_t *o = json_of(&t.b, words, 0);
	snprintf(id, sizeof(id), "%s", text_of(o, "id"));
	json_decref(o);
	kill(box_pid(&t.b, "master"), SIGKILL);
	snprintf(words, sizeof(words), "tasks %s", id);
	box_run(&t.b, &r, words);
	cr_expect(r.code == EXIT_TYPED_ && strstr(r.err, "another term"), "%d %s", r.code,
		  r.err);
	until_state(&t, t.second_id, "in");
	until_state(&t, t.first_id, "in");
	snprintf(words, sizeof(words), "drain %s", t.first_id);
	box_run(&t.b, &r, words);
	cr_expect(r.code == 0 && strstr(r.out, "is drained: ") &&
			  strstr(r.out, "pomelo forget"),
		  "%d %s%s", r.code, r.out, r.err);
	until_state(&t, t.first_id, "drained");
	two_down(&t);
}

Test(drain, refusals)
{
	static const struct {
		const char *words, *err;
		int code;
	} rows[] = {
		{ "drain nobody", "nobody: no such holder; `pomelo status` shows them",
		  EXIT_NOT_FOUND_ },
		{ "tasks xyz", "xyz: no id of a task", EXIT_USAGE_ },
		{ "tasks 0", "0: no id of a task", EXIT_USAGE_ },
		{ "tasks 00000000000000001", "no id of a task", EXIT_USAGE_ },
		{ "task cancel 7", "task 7: ", EXIT_TYPED_ },
		{ "task", "which one?", EXIT_USAGE_ },
	};
	struct box b;
	struct box_ran r;
	box_init(&b);
	box_run(&b, &r, "up --no-disk");
	cr_assert_eq(r.code, 0, "%s", r.err);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		box_run(&b, &r, rows[i].words);
		cr_expect(r.code == rows[i].code && strstr(r.err, rows[i].err), "%s: %d %s",
			  rows[i].words, r.code, r.err);
	}
	box_run(&b, &r, "tasks");
	cr_expect(r.code == 0 && strstr(r.out, "no task"), "%s%s", r.out, r.err);
	box_fini(&b);
}
