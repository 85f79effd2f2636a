/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo trace-replay` over the real services: exact hits, wrong bytes that are seen, a pool too small
 * for the trace, several clients, services that are killed under it, Ctrl-C.
 */
#include "box.h"

#include "trace.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(replay, .timeout = 120);

static void up(struct box *b, const char *pool)
{
	struct box_ran r;
	char words[80];
	box_init(b);
	snprintf(words, sizeof(words), "up --no-disk --pool %s", pool);
	box_run(b, &r, words);
	cr_assert_eq(r.code, 0, "%s", r.err);
}

/*
 * Conversations that take turns: each has its own blocks behind one that all share, and grows by a few
 * each time. out: what an unbounded cache finds.
 */
static struct trace_facts make_trace(const struct box *b, const char *name, unsigned requests,
				     unsigned talks)
{
	FILE *f = fopen(box_at(b, name), "w");
	struct trace t;
	struct trace_facts facts;
	struct why why = { 0 };
	for (unsigned i = 0; i < requests; i++) {
		unsigned talk = (i * 7 + i / 5) % talks, n = 3 + 4 * (i / talks);
		fprintf(f, "{\"timestamp\": %u, \"hash_ids\": [0", i * 2);
		for (unsigned k = 1; k < n; k++)
			fprintf(f, ", %u", talk * 100000 + k);
		fprintf(f, "]}\n");
	}
	cr_assert_eq(fclose(f), 0);
	cr_assert_eq(trace_read(box_at(b, name), 0, &t, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(trace_facts(&t, &facts), ERR_NONE);
	trace_free(&t);
	return facts;
}

/* One run; its report. */
struct report {
	int code;
	uint64_t requests, put, got, hits, misses, others, errors, wrong, lost;
	char err[400];
};

static uint64_t num(const json_t *o, const char *name)
{
	const json_t *v = json_object_get(o, name);
	cr_assert(json_is_integer(v), "%s", name);
	return (uint64_t)json_integer_value(v);
}

static struct report report_of(const struct box_ran *r)
{
	struct report p = { .code = r->code };
	json_t *o = box_json(r);
	cr_assert_not_null(o, "%s", r->err);
	snprintf(p.err, sizeof(p.err), "%.399s", r->err);
	cr_assert_null(json_object_get(o, "error"), "%s", r->err);
	p.requests = num(o, "requests");
	p.put = num(o, "blocks_put");
	p.got = num(o, "blocks_got");
	p.hits = num(o, "hits_memory");
	cr_expect_eq(num(o, "hits_disk"), 0);
	p.misses = num(o, "misses");
	p.others = num(o, "put_by_others");
	p.errors = num(o, "errors");
	p.wrong = num(o, "wrong_bytes");
	p.lost = num(o, "lost");
	cr_expect_eq(num(o, "references"), p.hits + p.misses);
	cr_expect_eq(num(o, "bytes_put"), p.put * num(o, "block"));
	cr_expect_eq(num(o, "bytes_got"),
		     p.wrong ? num(o, "bytes_got") : p.got * num(o, "block"));
	cr_expect_leq(num(o, "p50_us"), num(o, "p99_us"));
	cr_expect(json_is_real(json_object_get(o, "seconds")));
	json_decref(o);
	return p;
}

static struct report replay(const struct box *b, const char *flags)
{
	struct box_ran r;
	char words[300];
	snprintf(words, sizeof(words), "--json trace-replay %s %s", box_at(b, "trace"), flags);
	box_run(b, &r, words);
	return report_of(&r);
}

Test(replay, one_client_finds_what_there_is_to_be_found)
{
	struct box b;
	struct box_ran r;
	char words[200];
	up(&b, "256MiB");
	struct trace_facts f = make_trace(&b, "trace", 200, 9);
	struct report p = replay(&b, "--block 16KiB");
	cr_expect_eq(p.code, 0, "%s", p.err);
	cr_expect(p.requests == 200 && p.hits == f.prefix_hits && p.got == f.prefix_hits);
	cr_expect(p.put == f.distinct && p.misses == f.references - f.prefix_hits);
	cr_expect(p.errors == 0 && p.wrong == 0 && p.lost == 0 && p.others == 0);
	p = replay(&b, "--block 16KiB --clients 5");
	cr_expect(p.hits == f.references && p.put == 0 && p.wrong == 0, "all of it is there");
	p = replay(&b, "--block 1000 --limit 3");
	cr_expect(p.requests == 3 && p.put > 0 && p.wrong == 0, "other sizes are other blocks");
	p = replay(&b, "--block 16KiB --prefix other --limit 3");
	cr_expect(p.requests == 3 && p.put > 0, "other prefixes too");
	uint64_t t = box_now_ms();
	p = replay(&b, "--block 16KiB --time-scale 2");
	cr_expect(p.requests == 200 && box_now_ms() - t >= 2 * 2 * 199, "as slow as asked");
	snprintf(words, sizeof(words), "trace-replay --block 16KiB %s", box_at(&b, "trace"));
	box_run(&b, &r, words);
	cr_expect(r.code == 0 && strstr(r.out, "hits in memory") &&
			  strstr(r.out, "200 requests in "),
		  "%s%s", r.out, r.err);
	cr_expect_str_empty(r.err, "no progress bar without a terminal");
	box_fini(&b);
}

Test(replay, wrong_bytes_are_seen)
{
	struct box b;
	struct box_ran r;
	char words[200];
	up(&b, "256MiB");
	struct trace_facts f = make_trace(&b, "trace", 60, 3);
	cr_assert_eq(replay(&b, "--block 64").code, 0);
	box_write(box_at(&b, "bad"),
		  "0123456789012345678901234567890123456789012345678901234567890123");
	snprintf(words, sizeof(words), "put --replace trace/64/0 %s", box_at(&b, "bad"));
	box_run(&b, &r, words);
	cr_assert_eq(r.code, 0, "%s", r.err);
	struct report p = replay(&b, "--block 64");
	cr_expect_eq(p.code, EXIT_TYPED_, "%d %s", p.code, p.err);
	cr_expect_eq(p.wrong, 60, "every request begins with it");
	cr_expect(p.errors == 0 && p.hits == f.references);
	cr_expect(strstr(p.err, "60 blocks arrived with wrong bytes"), "%s", p.err);
	box_write(box_at(&b, "bad"), "short");
	box_run(&b, &r, words);
	p = replay(&b, "--block 64 --limit 5");
	cr_expect(p.code == EXIT_TYPED_ && p.wrong == 5, "shorter than it must be");
	box_write(box_at(&b, "bad"),
		  "01234567890123456789012345678901234567890123456789012345678901234");
	box_run(&b, &r, words);
	p = replay(&b, "--block 64 --limit 5");
	cr_expect(p.code == EXIT_SOME_ && p.errors == 5, "longer: %d %s", p.code, p.err);
	box_fini(&b);
}

Test(replay, a_pool_too_small_evicts_and_goes_on)
{
	struct box b;
	up(&b, "64MiB");
	struct trace_facts f = make_trace(&b, "trace", 300, 30);
	enum { ROOM = 64 * 8 }; /* blocks */
	cr_assert_gt(f.distinct, ROOM + ROOM / 2, "%d", (int)f.distinct);
	for (int i = 0; i < 2; i++) {
		struct report p =
			replay(&b, i ? "--block 128KiB --clients 16" : "--block 128KiB");
		cr_expect(p.code == 0 && p.requests == 300, "%s", p.err);
		cr_expect(p.errors == 0 && p.wrong == 0, "%s", p.err);
		cr_expect_geq(p.misses, f.distinct - (i ? ROOM : 0), "%d", (int)p.misses);
		cr_expect_gt(p.hits, 0);
	}
	box_fini(&b);
}

Test(replay, many_clients_meet)
{
	struct box b;
	up(&b, "256MiB");
	struct trace_facts f = make_trace(&b, "trace", 400, 4);
	struct report p = replay(&b, "--block 4KiB --clients 24");
	cr_expect(p.code == 0 && p.requests == 400, "%s", p.err);
	cr_expect(p.errors == 0 && p.wrong == 0, "%s", p.err);
	cr_expect_eq(p.put, f.distinct, "each block is put once");
	cr_expect_leq(p.hits, f.references - f.distinct);
	box_fini(&b);
}

Test(replay, services_killed_under_it)
{
	static const char *const victims[] = { "master", "agent", "master", "agent", "master" };
	struct box b;
	struct box_job j;
	struct box_ran r;
	char words[300];
	up(&b, "256MiB");
	struct trace_facts f = make_trace(&b, "trace", 600, 11);
	/* 600 requests at 2 ms, twice as slow */
	snprintf(words, sizeof(words),
		 "--json trace-replay %s --block 8KiB --clients 3 --time-scale 2",
		 box_at(&b, "trace"));
	box_start(&b, &j, words);
	unsigned killed = 0;
	for (size_t i = 0; i < ARRAY_LEN(victims); i++) {
		usleep(250000);
		pid_t pid = box_pid(&b, victims[i]);
		killed += pid > 0 && kill(pid, SIGKILL) == 0;
	}
	cr_expect_geq(killed, 3, "%u were there to be killed", killed);
	box_wait(&j, &r);
	struct report p = report_of(&r);
	cr_expect(p.code == 0 && p.requests == 600, "%d %s", p.code, p.err);
	cr_expect(p.errors == 0 && p.wrong == 0, "%s", p.err);
	p = replay(&b, "--block 8KiB");
	cr_expect(p.hits == f.references && p.put == 0 && p.wrong == 0,
		  "what was acknowledged is there");
	box_fini(&b);
}

Test(replay, interrupted)
{
	struct box b;
	struct box_job j;
	struct box_ran r;
	char words[300];
	up(&b, "64MiB");
	make_trace(&b, "trace", 300, 5);
	snprintf(words, sizeof(words), "--json trace-replay %s --block 1KiB --time-scale 100",
		 box_at(&b, "trace"));
	box_start(&b, &j, words);
	usleep(5000000); /* of the minute it would take */
	kill(j.pid, SIGINT);
	uint64_t t = box_now_ms();
	box_wait(&j, &r);
	struct report p = report_of(&r);
	cr_expect_leq(box_now_ms() - t, 3000);
	cr_expect_eq(p.code, EXIT_INTERRUPTED_, "%d %s", p.code, p.err);
	cr_expect(p.requests > 0 && p.requests < 300 && p.errors == 0 && p.wrong == 0);
	cr_expect(strstr(p.err, "interrupted after "), "%s", p.err);
	box_fini(&b);
}
