/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots, regions and registered buffers under ThreadSanitizer: threads on one handle read and fill one snapshot,
 * open and close their own, give memory up while bytes move into it; renewals run beside them, keys are replaced and
 * removed. Then the handle goes first, and what came of it after. A read through a snapshot has the bytes of one
 * version. Plain main: Criterion cannot start under TSan.
 */
#include "pml_snapshot.h"
#include "unit/sdk/sdk_server.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, CALLS = 60, ROUNDS = 6, KEYS = 8, LARGE = 200000, PATIENCE_S = 110 };

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
	struct pml_snapshot *shared;
	unsigned seed;
};

static unsigned pick(struct worker *w, unsigned n)
{
	return (unsigned)rand_r(&w->seed) % n;
}

static bool fine(int e)
{
	return e == 0 || e == PML_ERR_NOT_FOUND || e == PML_ERR_LEASE_LOST ||
	       e == PML_ERR_BUSY_WRITING || e == PML_ERR_CANCELLED;
}

static struct pml_item item(const char *key)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = key;
	it.key_bytes = 2;
	return it;
}

/* Bytes of one version: all the same; every second one by a region. */
static void read_through(struct worker *w, struct pml_snapshot *s, const char *key)
{
	uint8_t *v = malloc(LARGE);
	size_t n = 0;
	int e;
	if (pick(w, 2)) {
		e = pml_snapshot_get(s, key, 2, v, LARGE, &n, NULL, NULL);
	} else {
		struct pml_nd_region r = PML_ND_REGION_INIT;
		r.memory = v, r.memory_bytes = LARGE;
		r.inner_bytes = 1, r.n_dims = 1;
		r.counts[0] = n = 50, r.object_strides[0] = 2, r.memory_strides[0] = 1;
		e = pml_snapshot_get_regions(s, key, 2, &r, 1, NULL, NULL);
	}
	CHECK(fine(e));
	for (size_t i = 1; e == 0 && i < n; i++)
		CHECK(v[i] == v[0]);
	free(v);
}

static void own_snapshot(struct worker *w, const char *key)
{
	struct pml_item it = item(key);
	struct pml_snapshot *s = NULL;
	struct pml_op *op = NULL;
	int e;
	if (pick(w, 2)) {
		e = pml_snapshot_open(w->p, &it, 1, NULL, &s, NULL);
	} else {
		CHECK(pml_snapshot_open_start(w->p, &it, 1, NULL, NULL, NULL, &op, NULL) == 0);
		if (pick(w, 3) == 0)
			pml_op_cancel(op);
		e = pml_op_wait(op);
		if (e == 0 && pick(w, 2))
			CHECK(pml_op_snapshot(op, &s) == 0);
		pml_op_free(op);
	}
	CHECK(fine(e));
	if (s)
		read_through(w, s, key);
	pml_snapshot_close(s);
}

/* The memory goes while its call is somewhere on its way. */
static void give_memory_up(struct worker *w, const char *key)
{
	uint8_t *v = malloc(LARGE);
	struct pml_buffer *b = NULL;
	struct pml_op *op = NULL;
	struct pml_buf buf = { v, LARGE };
	struct pml_item it = item(key);
	bool put = pick(w, 2);
	memset(v, (int)pick(w, 256), LARGE);
	CHECK(pml_buffer_register(w->p, v, LARGE, NULL, &b, NULL) == 0);
	it.bufs = &buf, it.n_bufs = 1;
	int e = put ? pml_upsert_start(w->p, &it, 1, NULL, NULL, NULL, &op, NULL)
		    : pml_get_start(w->p, &it, 1, NULL, NULL, NULL, &op, NULL);
	CHECK(e == 0);
	usleep(pick(w, 3) * 200);
	CHECK(pml_buffer_unregister(b) == 0);
	memset(v, 0xee, LARGE);
	free(v);
	CHECK(fine(pml_op_wait(op)));
	pml_op_free(op);
}

static void put_one(struct worker *w, const char *key)
{
	uint8_t v[1000];
	memset(v, (int)pick(w, 256), sizeof(v));
	CHECK(fine(pml_upsert(w->p, key, 2, v, sizeof(v), NULL, NULL)));
}

static void *work(void *arg)
{
	struct worker *w = arg;
	for (int i = 0; i < CALLS; i++) {
		char key[3] = { 'k', (char)('0' + pick(w, KEYS)), '\0' };
		struct pml_item it = item(key);
		struct pml_result r = PML_RESULT_INIT;
		switch (pick(w, 7)) {
		case 0:
			put_one(w, key);
			break;
		case 1:
			read_through(w, w->shared, key);
			break;
		case 2:
			CHECK(fine(pml_snapshot_add(w->shared, &it, 1, NULL, NULL)));
			break;
		case 3:
			CHECK(fine(pml_snapshot_find(w->shared, key, 2, &r)));
			CHECK(pml_snapshot_n(w->shared) <= KEYS);
			break;
		case 4:
			own_snapshot(w, key);
			break;
		case 5:
			give_memory_up(w, key);
			break;
		default:
			CHECK(fine(pml_remove(w->p, key, 2, NULL, NULL)));
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

static void handle_goes_first(struct worker *w)
{
	static char memory[4096];
	struct pml_buffer *b = NULL;
	struct pml_item it = item("k0");
	struct pml_op *op = NULL;
	CHECK(pml_buffer_register(w->p, memory, sizeof(memory), NULL, &b, NULL) == 0);
	CHECK(pml_snapshot_open_start(w->p, &it, 1, NULL, NULL, NULL, &op, NULL) == 0);
	usleep(pick(w, 4) * 300);
	pml_close(w->p);
	CHECK(pml_snapshot_add(w->shared, &it, 1, NULL, NULL) == PML_ERR_CLOSED);
	CHECK(pml_snapshot_close(w->shared) == 0);
	CHECK(pml_buffer_unregister(b) == 0);
	pml_op_free(op);
}

int main(void)
{
	alarm(PATIENCE_S);
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct sdk_server *s = sdk_server_start();
		struct worker w[THREADS];
		sdk_server_store(s)->lease_ms = 150; /* renewals, all along */
		struct pml *p = open_on(s);
		struct pml_snapshot *shared = NULL;
		CHECK(pml_snapshot_open(p, NULL, 0, NULL, &shared, NULL) == 0);
		for (unsigned i = 0; i < THREADS; i++) {
			w[i] = (struct worker){ .p = p,
						.shared = shared,
						.seed = round * 100 + i };
			CHECK(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
		}
		for (unsigned i = 0; i < THREADS; i++)
			pthread_join(w[i].thread, NULL);
		handle_goes_first(&w[0]);
		sdk_server_free(s);
	}
	puts("ok");
	return 0;
}
