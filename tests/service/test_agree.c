/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C3: what `status`, `explain`, `top` and their --json say is what a recount of the objects finds, before and
 * after services are killed, one by one and together.
 */
#include "box.h"

#include "pml_store.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(agree, .timeout = 180);

enum { OBJECTS = 120, PINNED_EVERY = 7, WAIT_MS = 30000 };

static json_t *json_of(const struct box *b, const char *words, int code)
{
	struct box_ran r;
	box_run(b, &r, words);
	cr_assert_eq(r.code, code, "%s: %d %s", words, r.code, r.err);
	return box_json(&r);
}

static uint64_t num(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);
	cr_assert(json_is_number(v), "%s", key);
	return (uint64_t)json_number_value(v);
}

static size_t size_of(unsigned i)
{
	static const size_t sizes[] = { 0, 1, 63, 4096, 5000, 65536, 200000, (1 << 20) + 17 };
	return sizes[i % ARRAY_LEN(sizes)];
}

/* What an object of so many bytes takes of a segment: above 1 MiB with the sums of its blocks, from a multiple
 * of 8 on behind it; in units of 4 KiB from there up, else of 64 bytes. */
static uint64_t space_of(uint64_t bytes)
{
	uint64_t blocks = bytes > 1 << 20 ? (bytes + (1 << 20) - 1) >> 20 : 0;
	uint64_t all = blocks ? (bytes + 7) / 8 * 8 + 8 * blocks : bytes;
	uint64_t unit = all >= 4096 ? 4096 : 64;
	return (all + unit - 1) / unit * unit;
}

static struct pml *open_here(const struct box *b)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	o.data = b->data;
	o.deadline_ms = WAIT_MS;
	cr_assert_eq(pml_open(&o, &p, &err), 0, "%s", err.text);
	return p;
}

/* Objects of all sizes; every other one put twice, every fifth removed again. */
static void make_objects(struct pml *p)
{
	static uint8_t v[2 << 20];
	char key[32];
	for (unsigned i = 0; i < OBJECTS; i++) {
		struct pml_put_opts o = PML_PUT_OPTS_INIT;
		struct pml_error err = PML_ERROR_INIT;
		int n = snprintf(key, sizeof(key), "o/%u", i);
		o.hard_pin = i % PINNED_EVERY == 0;
		for (unsigned k = 0; k <= i % 2; k++)
			cr_assert_eq(pml_upsert(p, key, (size_t)n, v, size_of(i), &o, &err), 0,
				     "%s", err.text);
		if (i % 5 == 4 && !o.hard_pin)
			cr_assert_eq(pml_remove(p, key, (size_t)n, NULL, &err), 0, "%s",
				     err.text);
	}
}

/* ---- the recount ---- */

struct count {
	uint64_t objects, copies, bytes, space;
};

/* By ls, key by key. */
static struct count recount(const struct box *b)
{
	struct count c = { 0 };
	size_t i;
	json_t *v, *o = json_of(b, "ls --json", 0);
	cr_assert(json_is_false(json_object_get(o, "recovering")));
	json_array_foreach(json_object_get(o, "objects"), i, v)
	{
		uint64_t bytes = num(v, "bytes"), memory = num(v, "memory");
		c.objects++;
		c.copies += memory;
		c.bytes += bytes;
		c.space += memory * space_of(bytes);
	}
	cr_expect_eq(num(o, "n"), c.objects);
	cr_expect_eq(num(o, "bytes"), c.bytes);
	json_decref(o);
	return c;
}

/* Members of holders that status and top have in common; sums of theirs. */
static void judge_holders(const char *who, const json_t *o, const struct count *c)
{
	uint64_t copies = 0, used = 0, total = 0;
	size_t i;
	const json_t *v;
	json_array_foreach(json_object_get(o, "holders"), i, v)
	{
		copies += num(v, "objects");
		used += num(v, "bytes_used");
		total += num(v, "bytes_total");
		cr_expect_str_eq(json_string_value(json_object_get(v, "state")), "in", "%s",
				 who);
		cr_expect_eq(num(v, "quarantine_bytes"), 0, "%s", who);
	}
	cr_expect_eq(i, 1, "%s: one holder", who);
	cr_expect_eq(num(o, "objects"), c->objects, "%s: objects", who);
	cr_expect_eq(copies, c->copies, "%s: copies", who);
	cr_expect_eq(used, c->space, "%s: bytes_used %" PRIu64 ", counted %" PRIu64, who, used,
		     c->space);
	cr_expect_gt(total, used, "%s", who);
	cr_expect(json_is_false(json_object_get(o, "recovering")), "%s", who);
}

static void judge_top(const struct box *b, const struct count *c, uint64_t term)
{
	json_t *o = json_of(b, "top --json --interval 100ms", 0);
	const json_t *s = json_object_get(o, "store"), *v;
	size_t i;
	judge_holders("top", o, c);
	cr_expect_eq(num(o, "term"), term);
	cr_expect_eq(num(s, "objects"), c->objects);
	cr_expect_eq(num(s, "copies"), c->copies);
	cr_expect_eq(num(s, "bytes_used"), c->space);
	cr_expect_eq(num(s, "quarantine_bytes"), 0);
	cr_expect_eq(num(s, "puts_open"), 0);
	cr_expect(json_is_null(json_object_get(s, "hit_share")), "nobody looked anything up");
	cr_expect_eq(num(s, "puts_per_s"), 0);
	json_array_foreach(json_object_get(o, "services"), i, v)
	{
		cr_expect_str_eq(json_string_value(json_object_get(v, "state")), "ready");
		cr_expect_eq((pid_t)num(v, "pid"), box_pid(b, service_rows[i].name));
		cr_expect_gt(num(v, "rss_bytes"), 1 << 20);
	}
	cr_expect_eq(i, SERVICE_COUNT);
	json_decref(o);
}

/* The value of a fact; NULL: there is none. */
static const char *fact(const json_t *o, const char *name)
{
	size_t i;
	const json_t *v;
	json_array_foreach(json_object_get(o, "facts"), i,
			   v) if (strcmp(json_string_value(json_object_get(v, "name")), name) ==
				  0) return json_string_value(json_object_get(v, "value"));
	return NULL;
}

/* explain says of a key what stat says. */
static void judge_explain(const struct box *b, unsigned i, uint64_t term)
{
	char words[64], want[64];
	snprintf(words, sizeof(words), "explain o/%u --json", i);
	json_t *e = json_of(b, words, 0);
	snprintf(words, sizeof(words), "stat o/%u --json", i);
	json_t *o = json_of(b, words, 0), *s = json_array_get(json_object_get(o, "objects"), 0);
	const char *holder =
		json_string_value(json_array_get(json_object_get(s, "holders"), 0));
	const char *version = json_string_value(json_object_get(s, "version"));
	cr_assert(fact(e, "version") && fact(e, "replica") && fact(e, "term"), "o/%u", i);
	while (*version == '0')
		version++;
	snprintf(want, sizeof(want), "%s, %" PRIu64 " bytes", version, num(s, "bytes"));
	cr_expect_str_eq(fact(e, "version"), want);
	cr_expect(holder && strstr(fact(e, "replica"), holder), "%s", fact(e, "replica"));
	cr_expect_eq(strtoull(fact(e, "term"), NULL, 10), term);
	cr_expect_eq(num(s, "bytes"), size_of(i));
	cr_expect_eq(num(s, "memory"), 1);
	cr_expect_eq(json_is_true(json_object_get(s, "hard_pin")), i % PINNED_EVERY == 0);
	json_decref(o);
	json_decref(e);
}

/* status says all of it once nothing is under way any more: space of what was replaced returns by and by. */
static json_t *settled(const struct box *b, const struct count *c)
{
	uint64_t end = box_now_ms() + WAIT_MS;
	for (;;) {
		struct box_ran r;
		box_run(b, &r, "status --json");
		json_t *o = box_json(&r);
		const json_t *h = json_array_get(json_object_get(o, "holders"), 0);
		if ((r.code == 0 && h && json_is_false(json_object_get(o, "recovering")) &&
		     num(h, "bytes_used") == c->space) ||
		    box_now_ms() > end)
			return o;
		json_decref(o);
		usleep(50000);
	}
}

static struct count judge(const struct box *b)
{
	struct count c = recount(b);
	json_t *o = settled(b, &c);
	uint64_t term = num(o, "term");
	judge_holders("status", o, &c);
	json_decref(o);
	judge_top(b, &c, term);
	for (unsigned i = 0; c.objects > 0 && i < OBJECTS; i += 35)
		judge_explain(b, i, term);
	return c;
}

/* ---- the tests ---- */

static void kill_them(const struct box *b, const char *const *names)
{
	for (; *names; names++) {
		pid_t pid = box_pid(b, *names);
		cr_assert_gt(pid, 1, "%s", *names);
		kill(pid, SIGKILL);
	}
	usleep(20000); /* it is seen to be gone */
	cr_assert(box_until(b, WAIT_MS, NULL, NULL), "not all are ready again");
}

Test(agree, status_explain_and_top_with_a_recount_after_kills)
{
	static const char *const rounds[][3] = {
		{ "master" }, { "agent" }, { "master", "agent" }, { "agent", "master" }
	};
	struct box b;
	struct box_ran r;
	box_init(&b);
	/* space that is removed after a restart returns when no lease of before it can run any more */
	box_run(&b, &r,
		"up --no-disk --pool 256MiB --set master.lease_ms=500 --set master.lease_max_ms=1000");
	cr_assert_eq(r.code, 0, "%s", r.err);
	struct pml *p = open_here(&b);
	make_objects(p);
	struct count c = judge(&b);
	cr_expect_gt(c.objects, OBJECTS / 2);
	for (size_t i = 0; i < ARRAY_LEN(rounds); i++) {
		kill_them(&b, rounds[i]);
		struct count again = judge(&b);
		cr_expect(again.objects == c.objects && again.bytes == c.bytes &&
				  again.space == c.space,
			  "round %zu", i);
	}
	cr_expect_eq(pml_remove_prefix(p, "o/1", 3, NULL, NULL, NULL), 0);
	cr_expect_lt(judge(&b).objects, c.objects);
	pml_close(p);
	box_run(&b, &r, "rm --all --force");
	cr_expect_eq(r.code, 0, "%s", r.err);
	c = judge(&b);
	cr_expect(c.objects == 0 && c.space == 0);
	box_fini(&b);
}

/* What happens between two looks is what top says happened. */
Test(agree, top_counts_what_is_done)
{
	struct box b;
	struct box_ran r;
	struct box_job j;
	char key[32], v[4096] = { 0 };
	box_init(&b);
	box_run(&b, &r, "up --no-disk --pool 64MiB");
	cr_assert_eq(r.code, 0, "%s", r.err);
	struct pml *p = open_here(&b);
	cr_assert_eq(pml_put(p, "there", 5, v, sizeof(v), NULL, NULL), 0);
	box_start(&b, &j, "top --json --interval 4s");
	usleep(1500000);
	size_t got = 0;
	for (int i = 0; i < 100; i++) {
		int n = snprintf(key, sizeof(key), "k/%d", i);
		cr_assert_eq(pml_put(p, key, (size_t)n, v, sizeof(v), NULL, NULL), 0);
		cr_assert_eq(pml_get(p, i % 4 ? "there" : "no", i % 4 ? 5 : 2, v, sizeof(v),
				     &got, NULL, NULL),
			     i % 4 ? 0 : PML_ERR_NOT_FOUND);
	}
	box_wait(&j, &r);
	cr_assert_eq(r.code, 0, "%s", r.err);
	json_t *o = box_json(&r), *s = json_object_get(o, "store");
	double seconds = json_number_value(json_object_get(o, "seconds"));
	cr_expect_float_eq(seconds * json_number_value(json_object_get(s, "puts_per_s")), 100,
			   0.01);
	cr_expect_float_eq(seconds * json_number_value(json_object_get(s, "lookups_per_s")),
			   100, 0.01);
	cr_expect_float_eq(json_number_value(json_object_get(s, "hit_share")), 0.75, 1e-6);
	cr_expect_eq(num(s, "evictions_per_s"), 0);
	const json_t *m = json_array_get(json_object_get(o, "services"), 0);
	cr_expect_gt(seconds * json_number_value(json_object_get(m, "requests_per_s")), 199);
	cr_expect(json_is_number(json_object_get(m, "p50_us")) &&
			  json_is_number(json_object_get(m, "p99_us")),
		  "times were measured");
	json_decref(o);
	pml_close(p);
	box_fini(&b);
}

/* A service that stands still is said, and the others are shown. */
Test(agree, top_of_a_stopped_service)
{
	struct box b;
	struct box_ran r;
	box_init(&b);
	box_run(&b, &r, "up --no-disk --pool 64MiB");
	cr_assert_eq(r.code, 0, "%s", r.err);
	pid_t pid = box_pid(&b, "planner");
	kill(pid, SIGSTOP);
	json_t *o = json_of(&b, "top --json --interval 100ms", EXIT_BUSY_);
	const json_t *v = json_object_get(o, "services");
	cr_expect_str_eq(json_string_value(json_object_get(json_array_get(v, 3), "state")),
			 "no answer");
	cr_expect(json_is_null(json_object_get(json_array_get(v, 3), "requests_per_s")));
	cr_expect_str_eq(json_string_value(json_object_get(json_array_get(v, 0), "state")),
			 "ready");
	json_decref(o);
	box_run(&b, &r, "top --once --interval 100ms");
	cr_expect(r.code == EXIT_BUSY_ && strstr(r.out, "no answer") && strstr(r.out, "holder"),
		  "%s", r.out);
	kill(pid, SIGCONT);
	cr_expect(box_until(&b, WAIT_MS, NULL, NULL));
	box_fini(&b);
}

/* ---- bench ---- */

static const json_t *result(const json_t *o, const char *name)
{
	size_t i;
	const json_t *v;
	json_array_foreach(json_object_get(o, "results"), i,
			   v) if (strcmp(json_string_value(json_object_get(v, "name")), name) ==
				  0) return v;
	return NULL;
}

/* It measures what it was asked for and nothing else, says how, and leaves nothing. */
Test(agree, bench_measures_and_leaves_nothing)
{
	struct box b;
	struct box_ran r;
	box_init(&b);
	box_run(&b, &r, "up --no-disk --pool 64MiB");
	cr_assert_eq(r.code, 0, "%s", r.err);
	json_t *o = json_of(
		&b, "bench get exists --seconds 1 --clients 2 --batch 16 --size 1KiB --json",
		0);
	cr_expect(result(o, "get") && result(o, "exists") && !result(o, "put"));
	cr_expect_eq(num(o, "clients"), 2);
	cr_expect_eq(num(o, "object_bytes"), 1024);
	for (int i = 0; i < 2; i++) {
		const json_t *v = result(o, i ? "get" : "exists");
		cr_expect(num(v, "items") > 0 && num(v, "errors") == 0 &&
			  num(v, "wrong_bytes") == 0 && num(v, "missing") == 0);
		cr_expect_leq(json_number_value(json_object_get(v, "p50_us")),
			      json_number_value(json_object_get(v, "p99_us")));
		cr_expect(json_is_number(json_object_get(v, "bytes_per_s")) == (i == 1));
	}
	json_decref(o);
	box_run(&b, &r, "bench put --seconds 1 --batch 4");
	cr_expect(r.code == 0 && strstr(r.out, "1 client, 4 calls of 4 objects of 4.0 KiB") &&
			  strstr(r.out, "put ") && !strstr(r.out, "exists "),
		  "%s%s", r.out, r.err);
	o = json_of(&b, "ls --json", 0);
	cr_expect_eq(num(o, "n"), 0, "its objects are gone");
	json_decref(o);
	box_run(&b, &r, "bench --size 32MiB --batch 4");
	cr_expect(r.code == EXIT_BUSY_ && strstr(r.err, "are free"), "%d %s", r.code, r.err);
	box_fini(&b);
}

Test(agree, bench_interrupted)
{
	struct box b;
	struct box_ran r;
	struct box_job j;
	box_init(&b);
	box_run(&b, &r, "up --no-disk --pool 64MiB");
	cr_assert_eq(r.code, 0, "%s", r.err);
	box_start(&b, &j, "bench put --seconds 50 --json");
	usleep(2500000);
	kill(j.pid, SIGINT);
	box_wait(&j, &r);
	cr_expect_eq(r.code, EXIT_INTERRUPTED_, "%d %s", r.code, r.err);
	cr_expect_lt(r.seconds, 20);
	json_t *o = box_json(&r);
	cr_expect(result(o, "put") && num(result(o, "put"), "items") > 0);
	json_decref(o);
	o = json_of(&b, "ls --json", 0);
	cr_expect_eq(num(o, "n"), 0);
	json_decref(o);
	box_fini(&b);
}
