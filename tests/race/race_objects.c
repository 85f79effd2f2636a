/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects under ThreadSanitizer: threads on one handle put, get, remove, cancel and free, small values on
 * the loop and large ones on its workers; then handles closed in the middle of it. A get that succeeds has
 * one writer's bytes. Plain main: Criterion cannot start under TSan.
 */
#include "unit/sdk/sdk_server.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, CALLS = 60, ROUNDS = 10, KEYS = 8, LARGE = 300000, PATIENCE_S = 110 };

#define CHECK(x)                                                                \
	do {                                                                    \
		if (!(x)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			_exit(1);                                               \
		}                                                               \
	} while (0)

struct worker {
	pthread_t thread;
	struct pml *p;
	unsigned seed;
	bool closing; /* the handle may be closed meanwhile: any error will do */
};

static bool fine(const struct worker *w, int e)
{
	return e == 0 || e == PML_ERR_BUSY_WRITING || e == PML_ERR_NOT_FOUND ||
	       e == PML_ERR_LEASE_LOST || (w->closing && e == PML_ERR_CLOSED);
}

static void put_one(struct worker *w, const char *key)
{
	size_t n = rand_r(&w->seed) % 2 ? LARGE : 100;
	uint8_t *v = malloc(n);
	memset(v, rand_r(&w->seed) & 0xff, n);
	CHECK(fine(w, pml_upsert(w->p, key, 2, v, n, NULL, NULL)));
	free(v);
}

static void get_one(struct worker *w, const char *key)
{
	uint8_t *v = malloc(LARGE);
	size_t n = 0;
	int e = pml_get(w->p, key, 2, v, LARGE, &n, NULL, NULL);
	CHECK(fine(w, e));
	for (size_t i = 1; e == 0 && i < n; i++)
		CHECK(v[i] == v[0]);
	free(v);
}

/* Started, and then cancelled, freed or waited for. */
static void start_one(struct worker *w, const char *key)
{
	uint8_t *v = malloc(LARGE);
	struct pml_buf b = { memset(v, 7, LARGE), LARGE };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	it.key = key;
	it.key_bytes = 2;
	it.bufs = &b;
	it.n_bufs = 1;
	int e = pml_upsert_start(w->p, &it, 1, NULL, NULL, NULL, &op, NULL);
	CHECK(e == 0 || (w->closing && e == PML_ERR_CLOSED));
	if (e == 0 && rand_r(&w->seed) % 2)
		pml_op_cancel(op);
	if (e == 0 && rand_r(&w->seed) % 2)
		pml_op_wait(op);
	pml_op_free(op); /* the buffer is ours again */
	free(v);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	for (int i = 0; i < CALLS; i++) {
		char key[3] = { 'k', (char)('0' + rand_r(&w->seed) % KEYS), '\0' };
		switch (rand_r(&w->seed) % 4) {
		case 0:
			put_one(w, key);
			break;
		case 1:
			get_one(w, key);
			break;
		case 2:
			start_one(w, key);
			break;
		default:
			CHECK(fine(w, pml_remove(w->p, key, 2, NULL, NULL)));
		}
	}
	return NULL;
}

static struct pml *open_on(struct sdk_server *s)
{
	struct pml_open_opts o = sdk_server_opts(s);
	struct pml *p = NULL;
	o.deadline_ms = 60000;
	CHECK(pml_open(&o, &p, NULL) == 0);
	return p;
}

int main(void)
{
	alarm(PATIENCE_S);
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct sdk_server *s = sdk_server_start();
		struct worker w[THREADS];
		sdk_server_store(s);
		struct pml *p = open_on(s);
		for (unsigned i = 0; i < THREADS; i++) {
			w[i] = (struct worker){ .p = p, .seed = round * 100 + i };
			CHECK(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
		}
		for (unsigned i = 0; i < THREADS; i++)
			pthread_join(w[i].thread, NULL);
		/* one call under way when it closes */
		struct worker last = { .p = p, .seed = round, .closing = true };
		struct pml_op *op = NULL;
		uint8_t *v = malloc(LARGE);
		struct pml_buf b = { memset(v, 3, LARGE), LARGE };
		struct pml_item it = PML_ITEM_INIT;
		it.key = "k0";
		it.key_bytes = 2;
		it.bufs = &b;
		it.n_bufs = 1;
		CHECK(pml_upsert_start(p, &it, 1, NULL, NULL, NULL, &op, NULL) == 0);
		usleep(rand_r(&last.seed) % 2000);
		pml_close(p);
		CHECK(fine(&last, pml_op_code(op)));
		pml_op_free(op);
		free(v);
		sdk_server_free(s);
	}
	puts("ok");
	return 0;
}
