/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_million [OBJECTS]: a master that dies with a million objects of 256 bytes at one agent. From its
 * SIGKILL on, with a new process at once:
 *
 *   first   until a key that was put is found
 *   whole   until every one is in the index and nothing is being merged: less than 3 s
 *   lies    keys that were put and are said not to be there: none
 *   gap     longest time between two beats that the agent sent, and between two that the new master
 *           acknowledged, less what the host took away (/proc/stat, steal): at most two beats
 *
 * then every object is read, byte for byte. Prints the figures; ends with "N passed, N failed".
 */
#include "daemons.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pml_store.h"
#include "../support/tcp_client.h"

enum {
	OBJECT = 256,
	BATCH = 4096,
	PROBES = 256,
	BEAT_MS = 500,
	WHOLE_MS = 3000,
	CPUS_MAX = 256
};

static const char *const margs[] = { "--set", "master.http_port=0", NULL };
static const char *const aargs[] = { "--set", "agent.http_port=0",
				     "--set", "agent.pool_size=512MiB",
				     "--set", "agent.slots=1200000",
				     NULL };

struct world {
	struct box box;
	struct proc master, agent;
	struct pml *p;
	unsigned n;
	uint64_t killed_ns;
	atomic_bool over;
	/* the probing thread's */
	atomic_ullong first_ms, probes, lies;
	/* the beat-watching thread's */
	double sent_ms, acked_ms;
	unsigned passed, failed;
};

static uint64_t now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

static uint64_t since_ms(const struct world *w)
{
	return (now_ns() - w->killed_ns) / NS_PER_MS;
}

_Noreturn static void die(const char *what, const char *text)
{
	fprintf(stderr, "store_million: %s: %s\n", what, text);
	exit(2);
}

static void check(struct world *w, bool ok, const char *what)
{
	printf("%-6s %s\n", ok ? "ok" : "FAILED", what);
	w->passed += ok;
	w->failed += !ok;
}

static struct pml *client(const struct world *w)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	o.data = w->box.dir;
	o.secret_file = w->box.secret;
	if (pml_open(&o, &p, &err) != 0)
		die("pml_open", err.text);
	return p;
}

/* ---- objects ---- */

struct batch {
	struct pml_item items[BATCH];
	struct pml_buf bufs[BATCH];
	char keys[BATCH][24];
	uint8_t v[BATCH][OBJECT];
};

static void fill(uint8_t *v, unsigned i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
	for (size_t k = 0; k < OBJECT; k += sizeof(x), x = x * 0xd1342543de82ef95ull + i)
		memcpy(v + k, &x, sizeof(x));
}

static void name(struct batch *b, size_t at, unsigned i)
{
	int n = snprintf(b->keys[at], sizeof(b->keys[at]), "object/%08u", i);
	b->bufs[at] = (struct pml_buf){ b->v[at], OBJECT };
	b->items[at] = (struct pml_item)PML_ITEM_INIT;
	b->items[at].key = b->keys[at];
	b->items[at].key_bytes = (size_t)n;
	b->items[at].bufs = &b->bufs[at];
	b->items[at].n_bufs = 1;
}

static void put_all(struct world *w, struct batch *b)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op;
	for (unsigned at = 0; at < w->n; at += BATCH) {
		unsigned m = MIN_OF(w->n - at, BATCH);
		for (unsigned i = 0; i < m; i++) {
			name(b, i, at + i);
			fill(b->v[i], at + i);
		}
		if (pml_put_start(w->p, b->items, m, NULL, NULL, NULL, &op, &err) != 0)
			die("put", err.text);
		if (pml_op_wait(op) != 0) {
			pml_op_error(op, &err);
			die("put", err.text);
		}
		pml_op_free(op);
	}
}

static unsigned get_all(struct world *w, struct batch *b)
{
	static uint8_t want[OBJECT];
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op;
	unsigned good = 0;
	for (unsigned at = 0; at < w->n; at += BATCH) {
		unsigned m = MIN_OF(w->n - at, BATCH);
		for (unsigned i = 0; i < m; i++)
			name(b, i, at + i);
		if (pml_get_start(w->p, b->items, m, NULL, NULL, NULL, &op, &err) != 0)
			die("get", err.text);
		pml_op_wait(op);
		for (unsigned i = 0; i < m; i++) {
			struct pml_result r = PML_RESULT_INIT;
			pml_op_result(op, i, &r);
			fill(want, at + i);
			good += r.code == 0 && r.bytes == OBJECT &&
				memcmp(b->v[i], want, OBJECT) == 0;
		}
		pml_op_free(op);
	}
	return good;
}

/* ---- who looks meanwhile ---- */

/* Random keys that were put: found, or not known yet; never absent. */
static void *prober(void *arg)
{
	struct world *w = arg;
	struct batch *b = calloc(1, sizeof(*b));
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml *p = client(w);
	struct pml_op *op;
	uint64_t rng = 88172645463325252ull;
	o.deadline_ms = 50;
	while (b && !atomic_load(&w->over)) {
		for (size_t i = 0; i < PROBES; i++) {
			rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
			name(b, i, (unsigned)(rng % w->n));
		}
		if (pml_exists_start(p, b->items, PROBES, &o, NULL, NULL, &op, NULL) != 0)
			continue;
		pml_op_wait(op);
		for (size_t i = 0; i < PROBES; i++) {
			struct pml_result r = PML_RESULT_INIT;
			pml_op_result(op, i, &r);
			atomic_fetch_add(&w->probes, 1);
			if (r.code == PML_ERR_NOT_FOUND)
				atomic_fetch_add(&w->lies, 1);
			if (r.code == 0 && w->killed_ns && atomic_load(&w->first_ms) == 0)
				atomic_store(&w->first_ms, since_ms(w));
		}
		pml_op_free(op);
	}
	pml_close(p);
	free(b);
	return NULL;
}

/* Milliseconds that the host took from each processor since the boot. */
static unsigned steal(double *out)
{
	char line[512];
	unsigned n = 0;
	FILE *f = fopen("/proc/stat", "re");
	while (f && n < CPUS_MAX && fgets(line, sizeof(line), f)) {
		unsigned cpu;
		unsigned long long v[8];
		if (sscanf(line, "cpu%u %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &v[0],
			   &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]) == 9)
			out[n++] = (double)v[7] * 1000 / (double)sysconf(_SC_CLK_TCK);
	}
	if (f)
		fclose(f);
	return n;
}

/* A counter that should rise each beat. */
struct pulse {
	const char *name;
	double value;
	uint64_t at_ns;
	double steal[CPUS_MAX];
	double worst_ms;
};

static void pulse_look(struct pulse *p, const char *text)
{
	double now_steal[CPUS_MAX], took = 0;
	double v = metric_value(text, p->name);
	if (v == p->value)
		return;
	uint64_t now = now_ns();
	unsigned n = steal(now_steal);
	for (unsigned i = 0; i < n; i++)
		took = MAX_OF(took, now_steal[i] - p->steal[i]);
	if (p->at_ns)
		p->worst_ms = MAX_OF(p->worst_ms, (double)(now - p->at_ns) / NS_PER_MS - took);
	memcpy(p->steal, now_steal, sizeof(now_steal));
	p->value = v;
	p->at_ns = now;
}

/* Acknowledged ones count from the new master's first. */
static void *beat_watcher(void *arg)
{
	static char text[1 << 18];
	static struct pulse sent = { .name = "pomelo_beats_total{end=\"sent\"}" },
			    acked = { .name = "pomelo_beats_total{end=\"acknowledged\"}" };
	struct world *w = arg;
	while (!atomic_load(&w->over)) {
		if (http_get(w->agent.http, "GET", "/metrics", text, sizeof(text), NULL) ==
		    200) {
			pulse_look(&sent, text);
			pulse_look(&acked, text);
		}
		usleep(20000);
	}
	w->sent_ms = sent.worst_ms;
	w->acked_ms = acked.worst_ms;
	return NULL;
}

/* ---- the whole ---- */

/* Milliseconds from the SIGKILL; 0: not within 60 s. */
static uint64_t until_whole(struct world *w)
{
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	o.deadline_ms = 500;
	while (since_ms(w) < 60000) {
		struct pml_op *op = NULL;
		if (pml_holders(w->p, &o, &op, NULL) == 0) {
			bool whole = !pml_op_recovering(op) && pml_op_objects(op) == w->n;
			pml_op_free(op);
			if (whole)
				return since_ms(w);
		}
		usleep(5000);
	}
	return 0;
}

static void restart(struct world *w)
{
	pthread_t probing, watching;
	if (pthread_create(&probing, NULL, prober, w) != 0)
		die("thread", "prober");
	usleep(300000); /* it has asked the old one */
	w->killed_ns = now_ns();
	proc_signal(&w->master, SIGKILL);
	proc_wait(&w->master, 5000);
	proc_start(&w->box, daemon_row("master"), margs, &w->master);
	if (pthread_create(&watching, NULL, beat_watcher, w) != 0)
		die("thread", "watcher");
	uint64_t whole = until_whole(w);
	usleep(2 * BEAT_MS * 1000); /* a gap that is open still ends */
	atomic_store(&w->over, true);
	pthread_join(probing, NULL);
	pthread_join(watching, NULL);
	printf("first positive answer %llu ms, whole %lu ms after SIGKILL; %llu probes, %llu lies; "
	       "longest gap of beats sent %.0f ms, acknowledged %.0f ms\n",
	       atomic_load(&w->first_ms), (unsigned long)whole, atomic_load(&w->probes),
	       atomic_load(&w->lies), w->sent_ms, w->acked_ms);
	check(w, w->first_ms > 0 && w->first_ms <= whole,
	      "positive answers start before the end");
	check(w, whole > 0 && whole < WHOLE_MS, "whole in less than 3 s");
	check(w, w->lies == 0, "NOT_FOUND never lies");
	check(w, w->sent_ms <= 2 * BEAT_MS, "beats sent: no gap over two");
	check(w, w->acked_ms <= 2 * BEAT_MS, "beats acknowledged: no gap over two");
}

int main(int argc, char **argv)
{
	static struct world w;
	static struct batch b;
	w.n = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1000000;
	if (w.n < BATCH || w.n > 1000000)
		die("OBJECTS", "4096 to 1000000");
	box_make(&w.box);
	proc_run(&w.box, daemon_row("master"), margs, &w.master);
	proc_run(&w.box, daemon_row("agent"), aargs, &w.agent);
	w.p = client(&w);
	uint64_t t0 = now_ns();
	put_all(&w, &b);
	printf("%u puts of %d bytes in %.1f s\n", w.n, OBJECT, (double)(now_ns() - t0) / 1e9);
	fflush(stdout);
	restart(&w);
	t0 = now_ns();
	unsigned good = get_all(&w, &b);
	printf("%u of %u read again in %.1f s\n", good, w.n, (double)(now_ns() - t0) / 1e9);
	check(&w, good == w.n, "every object is there, byte for byte");
	check(&w, proc_up(&w.box, &w.master, 5000) && w.agent.pid > 0, "both run on");
	pml_close(w.p);
	check(&w, proc_stop(&w.agent) == 0, "the agent ends well");
	check(&w, proc_stop(&w.master) == 0, "the master ends well");
	box_remove(&w.box);
	printf("%u passed, %u failed\n", w.passed, w.failed);
	return w.failed != 0;
}
