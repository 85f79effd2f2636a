/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpomelo under ThreadSanitizer: many threads on one handle, with plain calls, queues, cancels and
 * frees at any moment; then handles that are closed while calls are under way and other threads poll,
 * cancel and free. Each call completes once; a lost wake-up stops the program (alarm). Plain main:
 * Criterion cannot start under TSan.
 */
#include "unit/sdk/sdk_server.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 6, CALLS = 400, ROUNDS = 150, OPS = 24, PATIENCE_S = 100 };

#define CHECK(x)                                                                \
	do {                                                                    \
		if (!(x)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			_exit(1);                                               \
		}                                                               \
	} while (0)

struct caller {
	pthread_t thread;
	struct pml *p;
	struct pml_cq *cq; /* shared by two callers */
	unsigned seed;
	uint32_t started, collected;
};

/* ---- one handle, many threads ---- */

static void plain_echo(struct caller *c)
{
	uint8_t in[32], out[32];
	size_t n = 0;
	memset(in, (int)(c->seed & 0xff), sizeof(in));
	CHECK(pml_echo(c->p, "master", in, sizeof(in), out, sizeof(out), &n, NULL, NULL) == 0);
	CHECK(n == sizeof(in) && memcmp(in, out, n) == 0);
}

static void queued_echo(struct caller *c)
{
	struct pml_op *op = NULL;
	int e = pml_echo_start(c->p, "master", "x", 1, (uint32_t)rand_r(&c->seed) % 3, NULL,
			       c->cq, c, &op, NULL);
	if (e == PML_ERR_BUSY) /* the depth: others must collect first */
		return;
	CHECK(e == 0);
	c->started++;
	/* whoever collects it may free it at any moment: no look at it from here on */
}

static void collect(struct caller *c)
{
	struct pml_op *ops[4];
	size_t n = pml_cq_poll(c->cq, ops, 4);
	for (size_t i = 0; i < n; i++) {
		size_t len = 0;
		CHECK(pml_op_code(ops[i]) == 0 && pml_op_bytes(ops[i], &len) && len == 1);
		pml_op_free(ops[i]);
	}
	c->collected += (uint32_t)n;
}

/* Its own, without a queue: cancelled or freed at any point of its life. */
static void abandoned(struct caller *c)
{
	struct pml_op *op = NULL;
	CHECK(pml_status_start(c->p, rand_r(&c->seed) % 2 ? "master" : NULL, NULL, NULL, NULL,
			       &op, NULL) == 0);
	for (int i = rand_r(&c->seed) % 50; i > 0; i--)
		(void)pml_op_code(op);
	if (rand_r(&c->seed) % 2)
		pml_op_cancel(op);
	pml_op_free(op);
}

static void *call(void *arg)
{
	struct caller *c = arg;
	for (int i = 0; i < CALLS; i++) {
		unsigned what = (unsigned)rand_r(&c->seed) % 4;
		if (what == 0)
			plain_echo(c);
		else if (what == 1)
			queued_echo(c);
		else if (what == 2)
			abandoned(c);
		collect(c);
	}
	return NULL;
}

static void shared_handle(struct sdk_server *s)
{
	struct pml_open_opts o = sdk_server_opts(s);
	struct caller c[THREADS] = { 0 };
	struct pml_cq *cq[THREADS / 2];
	struct pml *p = NULL;
	uint32_t started = 0, collected = 0;
	CHECK(pml_open(&o, &p, NULL) == 0);
	for (int i = 0; i < THREADS / 2; i++)
		CHECK(pml_cq_new(p, 16, &cq[i], NULL) == 0);
	for (int i = 0; i < THREADS; i++) {
		c[i] = (struct caller){ .p = p, .cq = cq[i / 2], .seed = (unsigned)i + 1 };
		CHECK(pthread_create(&c[i].thread, NULL, call, &c[i]) == 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(c[i].thread, NULL);
		started += c[i].started;
		collected += c[i].collected;
	}
	for (int i = 0; i < THREADS / 2; i++) {
		struct pml_op *op;
		while (pml_cq_free(cq[i]) == PML_ERR_BUSY)
			if (pml_cq_wait(cq[i], &op, 1, 1000) == 1) {
				collected++;
				pml_op_free(op);
			}
	}
	CHECK(started == collected);
	CHECK(pml_close(p) == 0);
}

/* ---- closed under way ---- */

struct reaper {
	pthread_t thread;
	struct pml_cq *cq;
	struct pml_op **ops;
	unsigned seed;
	uint32_t n;
};

/* Cancels and collects while the handle goes; operations and queue stay valid (pml.h). */
static void *reap(void *arg)
{
	struct reaper *r = arg;
	while (r->n < OPS) {
		struct pml_op *op;
		/* op i may be freed only here, so it may be cancelled here */
		if (pml_cq_wait(r->cq, &op, 1, 5000) != 1)
			break;
		int code = pml_op_code(op);
		CHECK(code == 0 || code == PML_ERR_CLOSED || code == PML_ERR_CANCELLED);
		for (int i = 0; i < OPS; i++) {
			if (r->ops[i] == op)
				r->ops[i] = NULL;
			else if (r->ops[i] && rand_r(&r->seed) % 8 == 0)
				pml_op_cancel(r->ops[i]);
		}
		pml_op_free(op);
		r->n++;
	}
	return NULL;
}

static void closed_under_way(struct sdk_server *s, unsigned seed)
{
	struct pml_open_opts o = sdk_server_opts(s);
	struct pml_op *ops[OPS] = { 0 };
	struct pml *p = NULL;
	struct reaper r = { .ops = ops, .seed = seed };
	CHECK(pml_open(&o, &p, NULL) == 0);
	CHECK(pml_cq_new(p, OPS, &r.cq, NULL) == 0);
	for (int i = 0; i < OPS; i++)
		CHECK(pml_echo_start(p, i % 3 ? "master" : "agent", "x", 1, (uint32_t)(i % 4),
				     NULL, r.cq, NULL, &ops[i], NULL) == 0);
	CHECK(pthread_create(&r.thread, NULL, reap, &r) == 0);
	usleep((unsigned)rand_r(&seed) % 3000);
	CHECK(pml_close(p) == 0);
	pthread_join(r.thread, NULL);
	CHECK(r.n == OPS);
	CHECK(pml_cq_free(r.cq) == 0);
}

int main(void)
{
	alarm(PATIENCE_S);
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	sdk_server_add(s, "agent");
	sdk_server_add(s, "owner");
	sdk_server_add(s, "planner");
	sdk_server_add(s, "pg");
	shared_handle(s);
	for (unsigned i = 0; i < ROUNDS; i++)
		closed_under_way(s, i + 1);
	sdk_server_free(s);
	puts("ok");
	return 0;
}
