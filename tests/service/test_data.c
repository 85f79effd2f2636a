/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects over data lanes, real processes: a client that maps nothing, through a wire that flips, cuts and
 * stands still, to agents that are killed and stopped. What a get returns is always the object's bytes.
 */
#include "cases.h"
#include "relay.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../support/leak.h"

TestSuite(data, .timeout = 120);

/* What a crowded box adds to a limit: what is shown is that a call ends, not how fast the box is. */
enum { CROWDED_MS = 12000 };
enum { MiB = 1 << 20, BIG = 24 * MiB + 17 };

struct wire {
	struct world w;
	struct relay *relay;
	char listen[64], advertise[64];
};

static void up(struct wire *d)
{
	unsigned port = relay_free_port();
	memset(d, 0, sizeof(*d));
	setenv("POMELO_CLIENT_DATA_PATH", "tcp", 1);
	d->relay = relay_new(port);
	cs_prepare(&d->w, "agent.pool_size=256MiB", "agent.slots=20000");
	snprintf(d->listen, sizeof(d->listen), "agent.data_listen=tcp://127.0.0.1:%u", port);
	snprintf(d->advertise, sizeof(d->advertise), "agent.data_advertise=tcp://127.0.0.1:%u",
		 relay_port(d->relay));
	const char *more[] = { "--set", d->listen, "--set", d->advertise };
	size_t n = 0;
	while (d->w.aargs[n])
		n++;
	memcpy(d->w.aargs + n, more, sizeof(more));
	cs_start_all(&d->w);
	d->w.p = cs_client(&d->w);
}

static void down(struct wire *d)
{
	cs_down(&d->w);
	relay_free(d->relay);
}

static int put(struct wire *d, const char *key, const uint8_t *p, size_t n, unsigned ms,
	       struct pml_error *err)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	o.deadline_ms = ms;
	uint64_t end = cs_now_ms() + ms;
	int e;
	do /* a put of before that failed is given up in the background */
		e = pml_upsert(d->w.p, key, strlen(key), p, n, &o, err);
	while (e == PML_ERR_BUSY_WRITING && cs_now_ms() < end && usleep(10000) == 0);
	return e;
}

static int get(struct wire *d, const char *key, uint8_t *p, size_t cap, size_t *n, unsigned ms,
	       struct pml_error *err)
{
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	o.deadline_ms = ms;
	return pml_get(d->w.p, key, strlen(key), p, cap, n, &o, err);
}

/* Put, got, compared. */
static void there_and_back(struct wire *d, const char *key, size_t n, unsigned seed)
{
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *p = malloc(n + 1), *q = malloc(n + 1);
	size_t got = 0;
	cs_fill(p, n, seed);
	cr_expect_eq(put(d, key, p, n, 30000, &err), 0, "%s %zu: %s", key, n, err.text);
	cr_expect_eq(get(d, key, q, n, &got, 30000, &err), 0, "%s %zu: %s", key, n, err.text);
	cr_expect_eq(got, n);
	cr_expect(n == 0 || memcmp(p, q, n) == 0, "%s: %zu bytes differ", key, n);
	free(p);
	free(q);
}

Test(data, sizes_ranges_and_batches)
{
	static const size_t sizes[] = { 0,   1,	      100,	    4096, MiB - 1,
					MiB, MiB + 1, 3 * MiB + 17, BIG };
	struct wire d;
	char key[32];
	up(&d);
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		snprintf(key, sizeof(key), "s/%u", i);
		there_and_back(&d, key, sizes[i], i);
		there_and_back(&d, key, sizes[i], i + 100); /* a new version over it */
	}
	cs_put_many(&d.w, "many", 3000);
	ALL_GOOD(&d.w, "many", 3000);
	cr_expect_eq(cs_metric_of(&d.w.agent, "pomelo_agent_sessions"), 0, "nobody mapped it");
	cr_expect_geq(cs_metric_of(&d.w.agent, "pomelo_agent_data_puts_total{end=\"ok\"}"),
		      2800);
	cr_expect_geq(cs_metric_of(&d.w.agent, "pomelo_agent_data_gets_total{end=\"ok\"}"),
		      2800);
	cr_expect_eq(cs_metric_of(&d.w.agent, "pomelo_agent_data_lanes_total{end=\"bad\"}"), 0);
	cr_expect_leq(cs_metric_of(&d.w.agent, "pomelo_agent_data_lanes"), 4, "fixed lanes");
	down(&d);
	NO_LEAKS();
}

/* Ranges in any order, buffers of odd sizes, more of both than a frame or a request has. */
Test(data, ranges_and_scattered_buffers)
{
	enum { N = 2 * MiB + 999, RANGES = 3000, PARTS = 700 };
	struct wire d;
	struct pml_error err = PML_ERROR_INIT;
	static struct pml_range r[RANGES];
	static struct pml_buf b[PARTS];
	uint8_t *p = malloc(N), *q = malloc(N), *in = malloc(N);
	up(&d);
	cs_fill(p, N, 7);
	for (unsigned i = 0, at = 0; i < PARTS; i++) {
		size_t n = i + 1 < PARTS ? i * 8 : N - at;
		memcpy(in + at, p + at, n);
		b[i] = (struct pml_buf){ in + at, n };
		at += (unsigned)n;
	}
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	it.key = "obj";
	it.key_bytes = 3;
	it.bufs = b;
	it.n_bufs = PARTS;
	cr_assert_eq(pml_put_start(d.w.p, &it, 1, NULL, NULL, NULL, &op, &err), 0, "%s",
		     err.text);
	cr_expect_eq(pml_op_wait(op), 0);
	pml_op_free(op);
	size_t total = 0;
	for (unsigned i = 0; i < RANGES; i++) {
		r[i].offset = (i * 7919u) % (N - 700);
		r[i].bytes = i % 700;
		total += r[i].bytes;
	}
	cr_assert_leq(total, N);
	for (unsigned i = 0; i < PARTS; i++)
		b[i] = (struct pml_buf){ q + (size_t)i * (N / PARTS),
					 i + 1 < PARTS ? N / PARTS
						       : N - (PARTS - 1) * (N / PARTS) };
	for (int verify = PML_VERIFY_SETTING; verify <= PML_VERIFY_ALWAYS; verify++) {
		struct pml_get_opts o = PML_GET_OPTS_INIT;
		o.verify = (uint32_t)verify;
		memset(q, 0, N);
		cr_expect_eq(pml_get_ranges(d.w.p, "obj", 3, r, RANGES, b, PARTS, &o, &err), 0,
			     "%s", err.text);
		for (unsigned i = 0, at = 0; i < RANGES; at += (unsigned)r[i++].bytes)
			cr_assert(memcmp(q + at, p + r[i].offset, r[i].bytes) == 0, "range %u",
				  i);
	}
	cr_expect_eq(pml_get_ranges(d.w.p, "obj", 3, &(struct pml_range){ N, 1 }, 1, b, 1, NULL,
				    &err),
		     PML_ERR_INVALID_PARAMS);
	free(p);
	free(q);
	free(in);
	down(&d);
	NO_LEAKS();
}

/* ---- the wire ---- */

/* Bits change in flight: noticed, counted, done again; and when all fails, an error, never a byte. */
Test(data, flipped_bits)
{
	struct wire d;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *p = malloc(2 * MiB);
	size_t n = 0;
	up(&d);
	there_and_back(&d, "k", 2 * MiB, 1);
	relay_flip(d.relay, false, 3 * MiB);
	for (unsigned i = 0; i < 8; i++)
		there_and_back(&d, "k", 2 * MiB, i);
	relay_flip(d.relay, false, 0);
	relay_flip(d.relay, true, 3 * MiB);
	for (unsigned i = 0; i < 8; i++)
		there_and_back(&d, "k", 2 * MiB, i);
	cr_expect_gt(relay_counts(d.relay).flipped, 3);
	cr_expect_gt(cs_metric_of(&d.w.agent, "pomelo_agent_data_lanes_total{end=\"bad\"}") +
			     cs_metric_of(&d.w.agent,
					  "pomelo_agent_data_lanes_total{end=\"key\"}"),
		     0);
	relay_flip(d.relay, false, 0);
	relay_flip(d.relay, true, 100000); /* in every block */
	uint64_t t0 = cs_now_ms();
	cr_expect_neq(get(&d, "k", p, 2 * MiB, &n, 2000, &err), 0);
	cr_expect_lt(cs_now_ms() - t0, 2000 + CROWDED_MS);
	relay_flip(d.relay, false, 100000);
	relay_flip(d.relay, true, 0);
	cr_expect_neq(put(&d, "k", p, 2 * MiB, 2000, &err), 0);
	relay_flip(d.relay, false, 0);
	there_and_back(&d, "k", 2 * MiB, 99);
	free(p);
	down(&d);
	NO_LEAKS();
}

Test(data, cut_streams)
{
	struct wire d;
	up(&d);
	relay_cut(d.relay, 5 * MiB); /* an object or two, then the end of a connection */
	for (unsigned i = 0; i < 10; i++)
		there_and_back(&d, "k", 2 * MiB, i);
	cr_expect_gt(relay_counts(d.relay).cut, 2);
	relay_cut(d.relay, 0);
	/* what was given up is free again: no range stays in quarantine */
	cr_expect(cs_metric_until(&d.w.agent, "pomelo_agent_pool_bytes{kind=\"quarantine\"}", 0,
				  5000));
	down(&d);
	NO_LEAKS();
}

/* T7: nothing moves and nobody is told: an error in time, and all is well when it moves again. */
Test(data, a_wire_that_stands_still)
{
	struct wire d;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *p = malloc(2 * MiB);
	size_t n = 0;
	up(&d);
	there_and_back(&d, "k", 2 * MiB, 1);
	relay_hold(d.relay, true);
	uint64_t t0 = cs_now_ms();
	cr_expect_neq(get(&d, "k", p, 2 * MiB, &n, 1500, &err), 0);
	cr_expect_neq(put(&d, "k", p, 2 * MiB, 1500, &err), 0);
	uint64_t t = cs_now_ms() - t0;
	cr_expect(t >= 2900 && t < 3000 + CROWDED_MS, "%llu ms", (unsigned long long)t);
	relay_hold(d.relay, false);
	there_and_back(&d, "k", 2 * MiB, 3);
	free(p);
	down(&d);
	NO_LEAKS();
}

/* ---- agents ---- */

struct worker {
	struct wire *d;
	pthread_t t;
	_Atomic bool stop;
	_Atomic unsigned done, failed;
	char why[200];
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *p = malloc(4 * MiB), *q = malloc(4 * MiB);
	for (unsigned i = 0; !w->stop; i++) {
		size_t n = 0;
		cs_fill(p, 4 * MiB, i);
		if (put(w->d, "w", p, 4 * MiB, 20000, &err) == 0 &&
		    get(w->d, "w", q, 4 * MiB, &n, 20000, &err) == 0 && n == 4 * MiB &&
		    memcmp(p, q, n) == 0) {
			w->done++;
			continue;
		}
		w->failed++;
		snprintf(w->why, sizeof(w->why), "%.190s", err.text);
	}
	free(p);
	free(q);
	return NULL;
}

/* Killed in the middle of transfers, started again: every call goes on and gets the right bytes. */
Test(data, an_agent_killed_in_a_transfer)
{
	struct wire d;
	up(&d);
	struct worker w = { .d = &d };
	cr_assert_eq(pthread_create(&w.t, NULL, work, &w), 0);
	for (unsigned i = 0; i < 4; i++) {
		unsigned was = w.done;
		for (int k = 0; k < 1000 && w.done < was + 2; k++)
			usleep(10000);
		usleep(3000 * i);
		cs_kill_it(&d.w.agent);
		proc_run(&d.w.box, daemon_row("agent"), d.w.aargs, &d.w.agent);
	}
	cs_ready(&d.w.agent);
	usleep(500000);
	w.stop = true;
	pthread_join(w.t, NULL);
	cr_expect_eq(w.failed, 0, "%u failed: %s", w.failed, w.why);
	cr_expect_geq(w.done, 8);
	down(&d);
	NO_LEAKS();
}

Test(data, a_stopped_agent)
{
	struct wire d;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *p = malloc(2 * MiB);
	size_t n = 0;
	up(&d);
	there_and_back(&d, "k", 2 * MiB, 1);
	proc_signal(&d.w.agent, SIGSTOP);
	uint64_t t0 = cs_now_ms();
	cr_expect_neq(get(&d, "k", p, 2 * MiB, &n, 1500, &err), 0);
	cr_expect_lt(cs_now_ms() - t0, 1500 + CROWDED_MS);
	proc_signal(&d.w.agent, SIGCONT);
	there_and_back(&d, "k", 2 * MiB, 2);
	free(p);
	down(&d);
	NO_LEAKS();
}

/* Cancelled half way: the call ends at once, its buffers are the caller's again (case 73). */
Test(data, a_cancelled_get)
{
	struct wire d;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *p = malloc(BIG);
	struct pml_buf b = { p, BIG };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	up(&d);
	there_and_back(&d, "k", BIG, 1);
	it.key = "k";
	it.key_bytes = 1;
	it.bufs = &b;
	it.n_bufs = 1;
	for (int i = 0; i < 5; i++) {
		cr_assert_eq(pml_get_start(d.w.p, &it, 1, NULL, NULL, NULL, &op, &err), 0);
		usleep((useconds_t)i * 1500);
		if (i == 4) {
			relay_hold(d.relay, true);
			usleep(20000);
		}
		pml_op_cancel(op);
		uint64_t t0 = cs_now_ms();
		int e = pml_op_wait(op);
		cr_expect_lt(cs_now_ms() - t0, CROWDED_MS); /* long before its deadline */
		cr_expect(e == 0 || e == PML_ERR_CANCELLED, "%d", e);
		pml_op_free(op);
		memset(p, 0, BIG);
	}
	relay_hold(d.relay, false);
	there_and_back(&d, "k", BIG, 2);
	free(p);
	down(&d);
	NO_LEAKS();
}

/* Two agents, one over a lane each: what the one that lives has is read while the other is gone. */
Test(data, two_agents)
{
	struct wire d;
	up(&d);
	struct world *w = &d.w;
	char cmd[256], listen[64], masters[128];
	const char *args[16];
	box_make(&w->far);
	snprintf(cmd, sizeof(cmd), "cp '%s' '%s'", w->box.secret, w->far.secret);
	cr_assert_eq(system(cmd), 0);
	snprintf(masters, sizeof(masters), "--masters=ipc://%.60s/run/master.sock", w->box.dir);
	snprintf(listen, sizeof(listen), "agent.data_listen=tcp://127.0.0.1:0");
	memcpy(args, w->aargs, sizeof(args));
	args[6] = "--set";
	args[7] = listen;
	args[8] = masters;
	args[9] = NULL;
	proc_run(&w->far, daemon_row("agent"), args, &w->second);
	cs_ready(&w->second);
	cs_put_many(w, "k", 400);
	ALL_GOOD(w, "k", 400);
	double here = cs_metric_of(&w->agent, "pomelo_agent_data_puts_total{end=\"ok\"}");
	double there = cs_metric_of(&w->second, "pomelo_agent_data_puts_total{end=\"ok\"}");
	cr_expect(here > 0 && there > 0, "%g here, %g there", here, there);
	cs_kill_it(&w->second);
	char text[1 << 10];
	unsigned good = 0, failed = 400;
	bool have[400] = { false };
	/* 20 ms are short for a crowded box: more than one try for what may be on the dead agent */
	for (unsigned i = 0; i < 10 * 400 && (i < 400 || good < here); i++) {
		struct pml_error err = PML_ERROR_INIT;
		uint8_t v[VALUE_MAX], want[VALUE_MAX];
		size_t n = 0;
		unsigned k = i % 400;
		if (have[k])
			continue;
		snprintf(text, sizeof(text), "k/%u", k);
		have[k] = get(&d, text, v, sizeof(v), &n, 20, &err) == 0;
		cs_fill(want, n, k);
		cr_expect(!have[k] || memcmp(v, want, n) == 0);
		good += have[k];
		failed -= have[k];
	}
	cr_expect(good >= here && failed > 0, "%u good, %u failed", good, failed);
	proc_run(&w->far, daemon_row("agent"), args, &w->second);
	cs_ready(&w->second);
	ALL_GOOD(w, "k", 400);
	down(&d);
	NO_LEAKS();
}
