/* SPDX-License-Identifier: Apache-2.0 */
/* pml_snapshot.h: real sockets and real shared memory, in one process. What the session does: test_stc_snap.c. */
#include "pml_snapshot.h"
#include "store_fix.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(snapshot, .timeout = 60);

#define REFUSED(call) cr_expect_eq(call, PML_ERR_INVALID_PARAMS, "%s", #call)

static struct pml_item item(const char *key)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = key;
	it.key_bytes = strlen(key);
	return it;
}

static void put(struct fix *x, const char *key, const void *v, size_t n)
{
	int e = pml_upsert(x->p, key, strlen(key), v, n, NULL, &x->err);
	cr_assert_eq(e, 0, "%s", x->err.text);
}

Test(snapshot, every_way_to_read)
{
	struct fix x;
	struct pml_snapshot *s = NULL;
	struct pml_result r = PML_RESULT_INIT;
	char b[64] = { 0 };
	size_t n = 0;
	fix_open(&x);
	put(&x, "a", "0123456789", 10);
	put(&x, "b", "", 0);
	struct pml_item it[2] = { item("a"), item("b") };
	cr_assert_eq(pml_snapshot_open(x.p, it, 2, NULL, &s, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_snapshot_n(s), 2);
	cr_expect_eq(pml_snapshot_find(s, "a", 1, &r), 0);
	cr_expect(r.object_bytes == 10 && r.version != 0 && r.code == 0);
	cr_expect_eq(pml_snapshot_find(s, "c", 1, NULL), PML_ERR_NOT_FOUND);
	cr_expect_eq(pml_snapshot_get(s, "a", 1, b, sizeof(b), &n, NULL, &x.err), 0, "%s",
		     x.err.text);
	cr_expect(n == 10 && memcmp(b, "0123456789", 10) == 0);
	cr_expect_eq(pml_snapshot_get(s, "b", 1, b, sizeof(b), &n, NULL, &x.err), 0);
	cr_expect_eq(n, 0);
	cr_expect_eq(pml_snapshot_get(s, "a", 1, b, 3, &n, NULL, &x.err), PML_ERR_TOO_LARGE);
	cr_expect_eq(n, 10);
	struct pml_range ra = { 3, 4 };
	struct pml_buf bu = { b, 4 };
	cr_expect_eq(pml_snapshot_get_ranges(s, "a", 1, &ra, 1, &bu, 1, NULL, &x.err), 0);
	cr_expect_eq(memcmp(b, "3456", 4), 0);
	struct pml_nd_region g = PML_ND_REGION_INIT;
	g.memory = b, g.memory_bytes = sizeof(b);
	g.inner_bytes = 1, g.n_dims = 1;
	g.counts[0] = 5, g.object_strides[0] = 2, g.memory_strides[0] = 1;
	cr_expect_eq(pml_snapshot_get_regions(s, "a", 1, &g, 1, NULL, &x.err), 0);
	cr_expect_eq(memcmp(b, "02468", 5), 0);
	cr_expect_eq(x.f->asked[METHOD_QUERY], 1);
	cr_expect_eq(pml_snapshot_get(s, "c", 1, b, 3, &n, NULL, &x.err), PML_ERR_NOT_FOUND);
	cr_expect(strstr(x.err.text, "pml_snapshot_add"), "%s", x.err.text);
	cr_expect_eq(pml_snapshot_close(s), 0);
	fix_close(&x);
	NO_LEAKS();
}

/* Replaced under an open snapshot: the old bytes, or LEASE_LOST; never the new ones. */
Test(snapshot, one_version)
{
	struct fix x;
	struct pml_snapshot *s = NULL;
	struct pml_item it = item("k");
	char b[8];
	size_t n = 0;
	fix_open(&x);
	put(&x, "k", "old", 3);
	cr_assert_eq(pml_snapshot_open(x.p, &it, 1, NULL, &s, &x.err), 0);
	put(&x, "k", "newer", 5);
	for (int i = 0; i < 50; i++) {
		int e = pml_snapshot_get(s, "k", 1, b, sizeof(b), &n, NULL, &x.err);
		cr_expect(e == PML_ERR_LEASE_LOST || (e == 0 && memcmp(b, "old", 3) == 0));
	}
	cr_expect_eq(pml_get(x.p, "k", 1, b, sizeof(b), &n, NULL, &x.err), 0);
	cr_expect_eq(memcmp(b, "newer", 5), 0);
	pml_snapshot_close(s);
	fix_close(&x);
	NO_LEAKS();
}

Test(snapshot, opened_without_waiting)
{
	struct fix x;
	struct pml_snapshot *s = NULL, *again = NULL;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL, *got = NULL;
	struct pml_result r = PML_RESULT_INIT;
	struct pml_item it[2] = { item("a"), item("none") };
	char b[8] = { 0 };
	fix_open(&x);
	put(&x, "a", "1", 1);
	cr_assert_eq(pml_cq_new(x.p, 4, &cq, &x.err), 0);
	/* one that fails gives none */
	cr_assert_eq(pml_snapshot_open_start(x.p, it, 2, NULL, cq, NULL, &op, &x.err), 0);
	cr_assert_eq(pml_cq_wait(cq, &got, 1, 10000), 1);
	cr_expect_eq(pml_op_snapshot(op, &s), PML_ERR_NOT_FOUND);
	cr_expect_eq(pml_op_result(op, 0, &r), 0);
	pml_op_free(op);
	/* one that does, once */
	cr_assert_eq(pml_snapshot_open_start(x.p, it, 1, NULL, cq, NULL, &op, &x.err), 0);
	cr_assert_eq(pml_cq_wait(cq, &got, 1, 10000), 1);
	cr_expect_eq(pml_op_result(op, 0, &r), 0);
	cr_expect(r.version != 0 && r.object_bytes == 1);
	REFUSED(pml_op_snapshot(op, NULL));
	cr_assert_eq(pml_op_snapshot(op, &s), 0);
	REFUSED(pml_op_snapshot(op, &again));
	pml_op_free(op);
	/* reading and adding too */
	struct pml_buf buf = { b, 8 };
	it[0].bufs = &buf, it[0].n_bufs = 1;
	cr_assert_eq(pml_snapshot_get_start(s, it, 1, NULL, cq, NULL, &op, &x.err), 0);
	cr_assert_eq(pml_cq_wait(cq, &got, 1, 10000), 1);
	cr_expect_eq(pml_op_code(op), 0);
	cr_expect_eq(b[0], '1');
	REFUSED(pml_op_snapshot(op, &again));
	pml_op_free(op);
	put(&x, "none", "2", 1);
	cr_assert_eq(pml_snapshot_add_start(s, it, 2, NULL, cq, NULL, &op, &x.err), 0);
	cr_assert_eq(pml_cq_wait(cq, &got, 1, 10000), 1);
	cr_expect_eq(pml_op_code(op), 0);
	REFUSED(pml_op_snapshot(op, &again));
	pml_op_free(op);
	cr_expect_eq(pml_snapshot_n(s), 2);
	/* never taken: closed with its operation */
	cr_assert_eq(pml_snapshot_open_start(x.p, it, 2, NULL, NULL, NULL, &op, &x.err), 0);
	cr_expect_eq(pml_op_wait(op), 0);
	pml_op_free(op);
	cr_assert_eq(pml_snapshot_open_start(x.p, it, 2, NULL, NULL, NULL, &op, &x.err), 0);
	pml_op_free(op);
	cr_expect_null(again);
	pml_snapshot_close(s);
	cr_expect_eq(pml_cq_free(cq), 0);
	fix_close(&x);
	NO_LEAKS();
}

Test(snapshot, missing_ok)
{
	struct fix x;
	struct pml_snapshot *s = NULL;
	struct pml_snapshot_opts o = PML_SNAPSHOT_OPTS_INIT;
	struct pml_item it[2] = { item("none"), item("a") };
	struct pml_op *op = NULL;
	struct pml_result r = PML_RESULT_INIT;
	fix_open(&x);
	put(&x, "a", "1", 1);
	cr_expect_eq(pml_snapshot_open(x.p, it, 2, NULL, &s, &x.err), PML_ERR_NOT_FOUND);
	cr_expect_null(s);
	o.missing_ok = true;
	cr_assert_eq(pml_snapshot_open_start(x.p, it, 2, &o, NULL, NULL, &op, &x.err), 0);
	cr_expect_eq(pml_op_wait(op), 0);
	cr_expect_eq(pml_op_result(op, 0, &r), 0);
	cr_expect_eq(r.code, PML_ERR_NOT_FOUND);
	cr_assert_eq(pml_op_snapshot(op, &s), 0);
	pml_op_free(op);
	cr_expect_eq(pml_snapshot_n(s), 1);
	pml_snapshot_close(s);
	it[1].version = 12345; /* another version is another matter */
	cr_expect_eq(pml_snapshot_open(x.p, it, 2, &o, &s, &x.err), PML_ERR_CONFLICT);
	fix_close(&x);
	NO_LEAKS();
}

/* More than one call takes, in pages; none at first. */
Test(snapshot, pages)
{
	enum { MANY = 5000 };
	struct fix x;
	struct pml_snapshot *s = NULL;
	static char keys[MANY][8];
	struct pml_item *it = calloc(MANY, sizeof(*it));
	struct pml_op *op = NULL;
	char b[4];
	size_t n = 9;
	fix_open(&x);
	for (int i = 0; i < MANY; i++) {
		snprintf(keys[i], 8, "p%d", i);
		it[i] = item(keys[i]);
	}
	for (int at = 0; at < MANY; at += 2500) {
		cr_assert_eq(pml_put_start(x.p, it + at, 2500, NULL, NULL, NULL, &op, &x.err),
			     0);
		cr_assert_eq(pml_op_wait(op), 0);
		pml_op_free(op);
	}
	cr_assert_eq(pml_snapshot_open(x.p, NULL, 0, NULL, &s, &x.err), 0);
	cr_expect_eq(x.f->asked[METHOD_QUERY], 0);
	cr_assert_eq(pml_snapshot_add(s, it, MANY, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_snapshot_n(s), MANY);
	cr_expect_eq(pml_snapshot_get(s, "p4999", 5, b, 4, &n, NULL, &x.err), 0);
	cr_expect_eq(n, 0);
	it[4990].key = "none", it[4990].key_bytes = 4;
	struct pml_snapshot *t = NULL;
	cr_expect_eq(pml_snapshot_open(x.p, it, MANY, NULL, &t, &x.err), PML_ERR_NOT_FOUND);
	cr_expect_null(t);
	pml_snapshot_close(s);
	free(it);
	fix_close(&x);
	NO_LEAKS();
}

Test(snapshot, room)
{
	struct fix x;
	struct pml_snapshot *s = NULL;
	struct pml_item it[3] = { item("a"), item("b"), item("c") };
	setenv("POMELO_CLIENT_SNAPSHOT_KEYS", "2", 1);
	fix_open(&x);
	unsetenv("POMELO_CLIENT_SNAPSHOT_KEYS");
	for (int i = 0; i < 3; i++)
		put(&x, it[i].key, "v", 1);
	cr_expect_eq(pml_snapshot_open(x.p, it, 3, NULL, &s, &x.err), PML_ERR_BUSY);
	cr_expect(strstr(x.err.text, "client.snapshot_keys = 2"), "%s", x.err.text);
	cr_expect_eq(pml_snapshot_open(x.p, it, 2, NULL, &s, &x.err), 0, "%s", x.err.text);
	pml_snapshot_close(s);
	fix_close(&x);
	NO_LEAKS();
}

Test(snapshot, refused)
{
	struct fix x;
	struct pml_snapshot *s = NULL, *t = NULL;
	struct pml_snapshot_opts o = { .size = 3 };
	struct pml_item it = item("k"), bad = item("k");
	struct pml_op *op = NULL;
	struct pml_result tiny = { .size = 3 };
	char b[8];
	size_t n;
	fix_open(&x);
	put(&x, "k", "v", 1);
	REFUSED(pml_snapshot_open(NULL, &it, 1, NULL, &t, &x.err));
	REFUSED(pml_snapshot_open(x.p, &it, 1, NULL, NULL, &x.err));
	REFUSED(pml_snapshot_open(x.p, NULL, 1, NULL, &t, &x.err));
	REFUSED(pml_snapshot_open(x.p, &it, 1, &o, &t, &x.err));
	cr_expect(strstr(x.err.text, "PML_SNAPSHOT_OPTS_INIT"), "%s", x.err.text);
	o = (struct pml_snapshot_opts)PML_SNAPSHOT_OPTS_INIT;
	o.reserved[6] = true;
	REFUSED(pml_snapshot_open(x.p, &it, 1, &o, &t, &x.err));
	o.reserved[6] = false;
	o.format = "0123456789012345678901234567890123456789012345678901234567890123456789";
	REFUSED(pml_snapshot_open(x.p, &it, 1, &o, &t, &x.err));
	bad.size = 0;
	REFUSED(pml_snapshot_open(x.p, &bad, 5000, NULL, &t, &x.err));
	bad = item("");
	REFUSED(pml_snapshot_open(x.p, &bad, 1, NULL, &t, &x.err));
	REFUSED(pml_snapshot_open_start(x.p, &it, 0, NULL, NULL, NULL, &op, &x.err));
	REFUSED(pml_snapshot_open_start(x.p, &it, 4097, NULL, NULL, NULL, &op, &x.err));
	REFUSED(pml_snapshot_open_start(x.p, &it, 1, NULL, NULL, NULL, NULL, &x.err));
	REFUSED(pml_snapshot_open_start(NULL, &it, 1, NULL, NULL, NULL, &op, &x.err));
	cr_assert_eq(pml_snapshot_open(x.p, &it, 1, NULL, &s, &x.err), 0);
	REFUSED(pml_snapshot_add(NULL, &it, 1, NULL, &x.err));
	REFUSED(pml_snapshot_add(s, NULL, 1, NULL, &x.err));
	REFUSED(pml_snapshot_add_start(NULL, &it, 1, NULL, NULL, NULL, &op, &x.err));
	REFUSED(pml_snapshot_add_start(s, &it, 0, NULL, NULL, NULL, &op, &x.err));
	REFUSED(pml_snapshot_get(NULL, "k", 1, b, 8, &n, NULL, &x.err));
	REFUSED(pml_snapshot_get(s, NULL, 1, b, 8, &n, NULL, &x.err));
	REFUSED(pml_snapshot_get(s, "k", 1, NULL, 8, &n, NULL, &x.err));
	REFUSED(pml_snapshot_get(s, "", 0, b, 8, &n, NULL, &x.err));
	REFUSED(pml_snapshot_get_ranges(s, "k", 1, NULL, 0, NULL, 0, NULL, &x.err));
	REFUSED(pml_snapshot_get_ranges(s, "k", 1, NULL, 1, NULL, 0, NULL, &x.err));
	REFUSED(pml_snapshot_get_regions(s, "k", 1, NULL, 0, NULL, &x.err));
	REFUSED(pml_snapshot_get_start(s, &it, 1, NULL, NULL, NULL, NULL, &x.err));
	REFUSED(pml_snapshot_find(NULL, "k", 1, NULL));
	REFUSED(pml_snapshot_find(s, NULL, 1, NULL));
	REFUSED(pml_snapshot_find(s, "k", 0, NULL));
	REFUSED(pml_snapshot_find(s, "k", 5000, NULL));
	REFUSED(pml_snapshot_find(s, "k", 1, &tiny));
	REFUSED(pml_op_snapshot(NULL, &t));
	cr_expect_eq(pml_snapshot_n(NULL), 0);
	cr_expect_eq(pml_snapshot_close(NULL), 0);
	cr_expect(!t && !op);
	cr_expect_eq(pml_snapshot_get(s, "k", 1, b, 8, &n, NULL, NULL), 0,
		     "works all the same");
	pml_snapshot_close(s);
	fix_close(&x);
	NO_LEAKS();
}

/* The handle goes first: what was open says so, and can be closed. */
Test(snapshot, after_close)
{
	struct fix x;
	struct pml_snapshot *s = NULL, *t = NULL;
	struct pml_item it = item("k");
	struct pml_op *op = NULL;
	char b[8];
	size_t n;
	fix_open(&x);
	put(&x, "k", "v", 1);
	cr_assert_eq(pml_snapshot_open(x.p, &it, 1, NULL, &s, &x.err), 0);
	cr_assert_eq(pml_snapshot_open_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err), 0);
	cr_expect_eq(pml_op_wait(op), 0);
	pml_close(x.p);
	cr_expect_eq(pml_op_snapshot(op, &t), 0);
	pml_op_free(op);
	cr_expect_eq(pml_snapshot_get(s, "k", 1, b, 8, &n, NULL, &x.err), PML_ERR_CLOSED);
	cr_expect_eq(pml_snapshot_add(t, &it, 1, NULL, &x.err), PML_ERR_CLOSED);
	cr_expect(strstr(x.err.text, "closed"), "%s", x.err.text);
	cr_expect_eq(pml_snapshot_find(t, "k", 1, NULL), 0);
	cr_expect_eq(pml_snapshot_close(s), 0);
	cr_expect_eq(pml_snapshot_close(t), 0);
	sdk_server_free(x.s);
	NO_LEAKS();
}

Test(snapshot, in_a_forked_child)
{
	struct fix x;
	struct pml_snapshot *s = NULL;
	struct pml_item it = item("k");
	int st = 0;
	char b[4];
	size_t n;
	fix_open(&x);
	put(&x, "k", "v", 1);
	cr_assert_eq(pml_snapshot_open(x.p, &it, 1, NULL, &s, &x.err), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct pml_snapshot *t = NULL;
		bool ok = pml_snapshot_get(s, "k", 1, b, 4, &n, NULL, NULL) == PML_ERR_FORKED &&
			  pml_snapshot_add(s, &it, 1, NULL, NULL) == PML_ERR_FORKED &&
			  pml_snapshot_find(s, "k", 1, NULL) == PML_ERR_FORKED &&
			  pml_snapshot_n(s) == 0 &&
			  pml_snapshot_open(x.p, &it, 1, NULL, &t, NULL) == PML_ERR_FORKED &&
			  pml_snapshot_close(s) == PML_ERR_FORKED;
		_exit(ok ? 0 : 1);
	}
	cr_expect(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == 0);
	cr_expect_eq(pml_snapshot_get(s, "k", 1, b, 4, &n, NULL, &x.err), 0,
		     "the parent goes on");
	pml_snapshot_close(s);
	fix_close(&x);
	NO_LEAKS();
}
