/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts an object, replaces it, reads it and a part of it, and removes it; then many at once through a
 * completion queue. Needs a running cluster (`pomelo up`); --data as everywhere: POMELO_DATA.
 *
 *	cc put_get.c -o put_get $(pkg-config --cflags --libs pomelo)
 */
#include <stdio.h>
#include <string.h>

#include "pml_store.h"

#define N 64

static struct pml_error err = PML_ERROR_INIT;

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s (%s, peer %s, step %s)\n", what, err.text,
		pml_error_name(err.code), err.peer, err.step);
	return 1;
}

static int one(struct pml *p)
{
	static const char key[] = "example/one";
	const size_t k = sizeof(key) - 1;
	char buf[64];
	size_t n = 0;
	struct pml_range range = { 4, 5 };
	struct pml_buf part = { buf, 5 };
	if (pml_upsert(p, key, k, "the first value", 15, NULL, &err))
		return failed("upsert");
	if (pml_put(p, key, k, "another", 7, NULL, &err) != PML_ERR_ALREADY_EXISTS)
		return failed("put over an object");
	if (pml_get(p, key, k, buf, sizeof(buf), &n, NULL, &err))
		return failed("get");
	printf("%.*s\n", (int)n, buf);
	if (pml_get_ranges(p, key, k, &range, 1, &part, 1, NULL, &err))
		return failed("get_ranges");
	printf("%.5s\n", buf);
	if (pml_remove(p, key, k, NULL, &err))
		return failed("remove");
	return 0;
}

/* Starts one call of N items and waits for it at the queue, as an event loop would. */
static int run(struct pml_cq *cq, struct pml_op *op, const char *what)
{
	struct pml_op *done = NULL;
	struct pml_result r = PML_RESULT_INIT;
	size_t ok = 0, i;
	while (pml_cq_wait(cq, &done, 1, 1000) == 0)
		continue;
	for (i = 0; i < pml_op_n(op); i++)
		ok += pml_op_result(op, i, &r) == 0 && r.code == PML_ERR_NONE;
	printf("%s: %u of %u\n", what, (unsigned)ok, (unsigned)pml_op_n(op));
	if (ok < N)
		pml_op_error(op, &err);
	pml_op_free(op);
	return ok == N ? 0 : failed(what);
}

static int many(struct pml *p)
{
	static char keys[N][32], values[N][32];
	struct pml_item items[N];
	struct pml_buf bufs[N];
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	int bad, i;
	if (pml_cq_new(p, 8, &cq, &err))
		return failed("queue");
	for (i = 0; i < N; i++) {
		struct pml_item it = PML_ITEM_INIT;
		snprintf(keys[i], sizeof(keys[i]), "example/many/%d", i);
		snprintf(values[i], sizeof(values[i]), "value %d", i);
		bufs[i].p = values[i];
		bufs[i].n = sizeof(values[i]);
		it.key = keys[i];
		it.key_bytes = strlen(keys[i]);
		it.bufs = &bufs[i];
		it.n_bufs = 1;
		items[i] = it;
	}
	bad = pml_upsert_start(p, items, N, NULL, cq, NULL, &op, &err) ? failed("upsert")
								       : run(cq, op, "put");
	memset(values, 0, sizeof(values));
	if (!bad)
		bad = pml_get_start(p, items, N, NULL, cq, NULL, &op, &err)
			      ? failed("get")
			      : run(cq, op, "got");
	for (i = 0; !bad && i < N; i++) {
		char want[32];
		snprintf(want, sizeof(want), "value %d", i);
		bad = strcmp(values[i], want) != 0;
	}
	if (!bad && pml_remove_prefix(p, "example/", 8, NULL, NULL, &err))
		bad = failed("remove_prefix");
	pml_cq_free(cq);
	return bad;
}

int main(void)
{
	struct pml *p = NULL;
	int bad;
	if (pml_open(NULL, &p, &err))
		return failed("open");
	bad = one(p) || many(p);
	pml_close(p);
	return bad;
}
