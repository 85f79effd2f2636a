/* SPDX-License-Identifier: Apache-2.0 */
/* pml_store.h: real sockets and real shared memory, in one process. */
#include "store_fix.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(store, .timeout = 60);

Test(store, has)
{
	cr_expect(pml_has("store"));
	NO_LEAKS();
}

Test(store, there_and_back)
{
	static const size_t sizes[] = { 0, 1, 4096, (1 << 20) + 1, 20 << 20 };
	struct fix x;
	fix_open(&x);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		size_t n = sizes[i], got = 99;
		uint8_t *a = bytes_of(n, (uint32_t)i), *b = malloc(n + 1);
		char key[8];
		snprintf(key, sizeof(key), "k%zu", i);
		cr_assert_eq(pml_put(x.p, key, 2, a, n, NULL, &x.err), 0, "%s", x.err.text);
		cr_assert_eq(pml_get(x.p, key, 2, b, n, &got, NULL, &x.err), 0, "%s",
			     x.err.text);
		cr_expect(got == n && memcmp(a, b, n) == 0);
		struct pml_get_opts o = PML_GET_OPTS_INIT;
		o.verify = PML_VERIFY_ALWAYS;
		cr_expect_eq(pml_get(x.p, key, 2, b, n, &got, &o, &x.err), 0);
		cr_expect_eq(pml_put(x.p, key, 2, a, n, NULL, &x.err), PML_ERR_ALREADY_EXISTS);
		cr_expect_eq(pml_upsert(x.p, key, 2, a, n, NULL, &x.err), 0);
		free(a);
		free(b);
	}
	fix_close(&x);
	NO_LEAKS();
}

Test(store, get_into_too_little)
{
	struct fix x;
	char b[4] = "abc";
	size_t n = 0;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "12345", 5, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_get(x.p, "k", 1, b, 3, &n, NULL, &x.err), PML_ERR_TOO_LARGE);
	cr_expect_eq(n, 5, "what it takes");
	cr_expect_str_eq(b, "abc");
	n = 77;
	cr_expect_eq(pml_get(x.p, "x", 1, b, 3, &n, NULL, &x.err), PML_ERR_NOT_FOUND);
	cr_expect_eq(n, 77);
	cr_expect_str_eq(x.err.peer, "master");
	cr_expect_str_eq(x.err.step, "QUERY");
	fix_close(&x);
	NO_LEAKS();
}

Test(store, ranges_and_probes)
{
	struct fix x;
	char b[8] = { 0 };
	struct pml_range r[] = { { 6, 2 }, { 0, 3 } };
	struct pml_buf bufs[] = { { b, 1 }, { b + 1, 4 } };
	bool yes = false;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "01234567", 8, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_get_ranges(x.p, "k", 1, r, 2, bufs, 2, NULL, &x.err), 0, "%s",
		     x.err.text);
	cr_expect_str_eq(b, "67012");
	cr_expect_eq(pml_get_ranges(x.p, "k", 1, r, 0, bufs, 2, NULL, &x.err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_exists(x.p, "k", 1, &yes, NULL, &x.err), 0);
	cr_expect(yes);
	cr_expect_eq(pml_exists(x.p, "none", 4, &yes, NULL, &x.err), 0);
	cr_expect(!yes);
	cr_expect_eq(pml_remove(x.p, "k", 1, NULL, &x.err), 0);
	cr_expect_eq(pml_remove(x.p, "k", 1, NULL, &x.err), 0, "absent is no error");
	cr_expect_eq(pml_exists(x.p, "k", 1, &yes, NULL, &x.err), 0);
	cr_expect(!yes);
	fix_close(&x);
	NO_LEAKS();
}

Test(store, stat_and_query)
{
	struct fix x;
	struct pml_op *op = NULL;
	struct pml_stat_info st = PML_STAT_INFO_INIT;
	struct pml_replica r = PML_REPLICA_INIT;
	struct pml_result res = PML_RESULT_INIT;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "01234567", 8, NULL, &x.err), 0, "%s", x.err.text);
	cr_assert_eq(pml_stat(x.p, "k", 1, NULL, &op, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_op_stat(op, 0, &st), 0);
	cr_expect(st.bytes == 8 && st.memory == 1 && st.n_holders == 1 && st.hard_pin);
	cr_expect_str_eq(st.holders[0], "agent-1");
	cr_expect(st.group_bytes == 1 && memcmp(st.group, "g", 1) == 0);
	cr_expect_eq(pml_op_stat(op, 1, &st), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_op_n_replicas(op, 0), 0, "a stat is no query");
	pml_op_free(op);
	cr_assert_eq(pml_query(x.p, "k", 1, NULL, &op, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_op_n_replicas(op, 0), 1);
	cr_expect_eq(pml_op_replica(op, 0, 0, &r), 0);
	cr_expect(r.tier == 1 && r.n_extents == 1 && r.extents[0].bytes >= 8);
	cr_expect_str_eq(r.holder, "agent-1");
	cr_expect_eq(pml_op_replica(op, 0, 1, &r), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_op_lease_ms(op, 0), 10000);
	cr_expect_eq(pml_op_result(op, 0, &res), 0);
	cr_expect_eq(pml_release(x.p, "k", 1, res.version, &x.err), 0);
	cr_expect_eq(pml_release(x.p, "k", 1, res.version + 1, &x.err), PML_ERR_LEASE_LOST);
	pml_op_free(op);
	cr_expect_eq(pml_stat(x.p, "none", 4, NULL, &op, &x.err), PML_ERR_NOT_FOUND);
	fix_close(&x);
	NO_LEAKS();
}

Test(store, list_explain_holders)
{
	struct fix x;
	struct pml_op *op = NULL;
	struct pml_listed k = PML_LISTED_INIT;
	struct pml_holder h = PML_HOLDER_INIT;
	const char *name, *value;
	uint64_t removed = 0;
	size_t n = 0;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "01234567", 8, NULL, &x.err), 0, "%s", x.err.text);
	cr_assert_eq(pml_list(x.p, "", 0, NULL, &op, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_op_n_listed(op), 1);
	cr_expect_eq(pml_op_listed(op, 0, &k), 0);
	cr_expect(k.key_bytes == 1 && memcmp(k.key, "k", 1) == 0 && k.bytes == 8);
	const void *cursor = pml_op_cursor(op, &n);
	cr_expect(cursor && n == 4 && pml_op_recovering(op));
	pml_op_free(op);
	cr_assert_eq(pml_explain(x.p, "k", 1, NULL, &op, &x.err), 0);
	cr_expect_eq(pml_op_n_facts(op), 2);
	cr_expect_eq(pml_op_fact(op, 1, &name, &value), 0);
	cr_expect(strcmp(name, "shard") == 0 && strcmp(value, "0") == 0);
	cr_expect_eq(pml_op_fact(op, 2, &name, &value), PML_ERR_INVALID_PARAMS);
	pml_op_free(op);
	cr_assert_eq(pml_holders(x.p, NULL, &op, &x.err), 0);
	cr_expect(pml_op_n_holders(op) == 1 && pml_op_objects(op) == 9 &&
		  pml_op_recovering(op));
	cr_expect_eq(pml_op_holder(op, 0, &h), 0);
	cr_expect(strcmp(h.state, "in") == 0 && h.objects == 7 && h.bytes_total == 2);
	pml_op_free(op);
	cr_expect_eq(pml_remove_prefix(x.p, "", 0, NULL, &removed, &x.err), 0);
	cr_expect_eq(removed, 1);
	fix_close(&x);
	NO_LEAKS();
}

static struct pml_item item(const char *key, const struct pml_buf *b)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = key;
	it.key_bytes = strlen(key);
	it.bufs = b;
	it.n_bufs = 1;
	return it;
}

/* What a start copies may go at once; only the buffers stay. Results are each item's. */
Test(store, batch_through_a_queue)
{
	struct fix x;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL, *got = NULL;
	struct pml_result r = PML_RESULT_INIT;
	struct pml_error err = PML_ERROR_INIT;
	char a[3] = "ab", b[3] = "";
	uint64_t moved, total;
	fix_open(&x);
	cr_assert_eq(pml_cq_new(x.p, 4, &cq, &x.err), 0);
	for (int round = 0; round < 2; round++) {
		struct pml_buf bufs[2] = { { round ? b : a, 2 }, { round ? b : a, 2 } };
		char key[8] = "key-1";
		struct pml_item it[2] = { item(key, &bufs[0]), item("", &bufs[1]) };
		int e = round ? pml_get_start(x.p, it, 2, NULL, cq, &x, &op, &x.err)
			      : pml_put_start(x.p, it, 2, NULL, cq, &x, &op, &x.err);
		cr_assert_eq(e, 0, "%s", x.err.text);
		memset(key, 0, sizeof(key));
		memset(it, 0, sizeof(it));
		memset(bufs, 0, sizeof(bufs));
		cr_assert_eq(pml_cq_wait(cq, &got, 1, 10000), 1);
		cr_expect(got == op && pml_op_user(op) == &x);
		cr_expect_eq(pml_op_code(op), PML_ERR_INVALID_PARAMS, "the first that failed");
		cr_expect_eq(pml_op_n(op), 2);
		cr_expect_eq(pml_op_result(op, 0, &r), 0);
		cr_expect(r.code == 0 && r.object_bytes == 2 && r.version != 0);
		cr_expect_eq(pml_op_result(op, 1, &r), 0);
		cr_expect_eq(r.code, PML_ERR_INVALID_PARAMS);
		cr_expect_eq(pml_op_item_error(op, 1, &err), 0);
		cr_expect(strstr(err.text, "1..1024"), "%s", err.text);
		cr_expect_eq(pml_op_progress(op, &moved, &total), 0);
		cr_expect(moved == 2 && total == (round ? 0 : 4));
		pml_op_free(op);
	}
	cr_expect_str_eq(b, "ab");
	cr_expect_eq(pml_cq_free(cq), 0);
	fix_close(&x);
	NO_LEAKS();
}

Test(store, wait_without_a_queue)
{
	struct fix x;
	struct pml_op *op = NULL;
	struct pml_buf buf = { "v", 1 };
	struct pml_item it = item("k", &buf);
	fix_open(&x);
	cr_assert_eq(pml_upsert_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err), 0);
	cr_expect_eq(pml_op_wait(op), 0);
	pml_op_free(op);
	fix_close(&x);
	NO_LEAKS();
}

static void no_size(struct pml_item *it, struct pml_put_opts *o)
{
	it->size = 0;
}
static void null_key(struct pml_item *it, struct pml_put_opts *o)
{
	it->key = NULL;
}
static void null_buf(struct pml_item *it, struct pml_put_opts *o)
{
	static const struct pml_buf b = { NULL, 3 };
	it->bufs = &b;
}
static void no_bufs(struct pml_item *it, struct pml_put_opts *o)
{
	it->bufs = NULL;
}
static void opts_size(struct pml_item *it, struct pml_put_opts *o)
{
	o->size = 3;
}
static void many_preferred(struct pml_item *it, struct pml_put_opts *o)
{
	o->n_preferred = 17;
}
static void long_format(struct pml_item *it, struct pml_put_opts *o)
{
	o->format = "0123456789012345678901234567890123456789012345678901234567890123456789";
}
static void reserved(struct pml_item *it, struct pml_put_opts *o)
{
	o->reserved[0] = true;
}

Test(store, refused_at_the_start)
{
	static const struct {
		size_t n;
		void (*bend)(struct pml_item *it, struct pml_put_opts *o);
		const char *says;
	} rows[] = { { 0, NULL, "4096" },	   { 4097, NULL, "4096" },
		     { 1, no_size, "PML_ITEM" },   { 1, null_key, "NULL" },
		     { 1, null_buf, "NULL" },	   { 1, no_bufs, "65536" },
		     { 1, opts_size, "PUT_OPTS" }, { 1, many_preferred, "16" },
		     { 1, long_format, "64" },	   { 1, reserved, "PUT_OPTS" } };
	struct fix x;
	fix_open(&x);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct pml_buf buf = { "v", 1 };
		struct pml_item it = item("k", &buf);
		struct pml_put_opts o = PML_PUT_OPTS_INIT;
		struct pml_op *op = NULL;
		if (rows[i].bend)
			rows[i].bend(&it, &o);
		int e = pml_put_start(x.p, &it, rows[i].n, &o, NULL, NULL, &op, &x.err);
		cr_expect_eq(e, PML_ERR_INVALID_PARAMS, "row %zu", i);
		cr_expect(strstr(x.err.text, rows[i].says), "%s", x.err.text);
		cr_expect_null(op);
	}
	fix_close(&x);
	NO_LEAKS();
}

/* A program of an older release knows a shorter item: the array's stride is its own. */
Test(store, older_items)
{
	struct old_item {
		size_t size;
		const void *key;
		size_t key_bytes;
		const struct pml_buf *bufs;
		size_t n_bufs;
	};
	struct fix x;
	struct pml_buf buf = { "v", 1 };
	struct old_item it[2] = { { sizeof(it[0]), "a", 1, &buf, 1 },
				  { sizeof(it[0]), "b", 1, &buf, 1 } };
	struct pml_op *op = NULL;
	bool yes = false;
	fix_open(&x);
	cr_assert_eq(pml_put_start(x.p, (const struct pml_item *)it, 2, NULL, NULL, NULL, &op,
				   &x.err),
		     0, "%s", x.err.text);
	cr_expect_eq(pml_op_wait(op), 0);
	pml_op_free(op);
	cr_expect_eq(pml_exists(x.p, "b", 1, &yes, NULL, &x.err), 0);
	cr_expect(yes);
	fix_close(&x);
	NO_LEAKS();
}

/* A master that parks every PUT_START. */
static bool park(struct fake *f, uint32_t method, struct rpc_req *r)
{
	if (method != METHOD_PUT_START || f->parked)
		return false;
	enum err e = rpc_park(r);
	assert(e == ERR_NONE);
	(void)e;
	f->parked = r;
	return true;
}

/* Freed while under way: when that returns, the buffers are the caller's. */
Test(store, free_while_under_way)
{
	struct fix x;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	fix_open(&x);
	x.f->on = park;
	cr_assert_eq(pml_cq_new(x.p, 4, &cq, &x.err), 0);
	char *v = malloc(100);
	struct pml_buf buf = { memset(v, 1, 100), 100 };
	struct pml_item it = item("k", &buf);
	cr_assert_eq(pml_put_start(x.p, &it, 1, NULL, cq, NULL, &op, &x.err), 0);
	cr_expect_eq(pml_op_free(op), 0);
	free(v);
	struct pollfd pf = { .fd = pml_cq_fd(cq), .events = POLLIN };
	cr_expect_eq(poll(&pf, 1, 0), 0, "no completion is left");
	cr_expect_eq(pml_cq_free(cq), 0);
	fix_close(&x);
	NO_LEAKS();
}

Test(store, cancel_and_close)
{
	struct fix x;
	struct pml_op *op[2] = { 0 };
	struct pml_buf buf = { "v", 1 };
	struct pml_item it = item("k", &buf);
	struct pml_error err = PML_ERROR_INIT;
	fix_open(&x);
	x.f->on = park;
	cr_assert_eq(pml_put_start(x.p, &it, 1, NULL, NULL, NULL, &op[0], &x.err), 0);
	cr_expect_eq(pml_op_cancel(op[0]), 0);
	cr_expect_eq(pml_op_wait(op[0]), PML_ERR_CANCELLED);
	sdk_server_stop(x.s);
	cr_assert_eq(pml_put_start(x.p, &it, 1, NULL, NULL, NULL, &op[1], &x.err), 0);
	pml_close(x.p);
	cr_expect_eq(pml_op_code(op[1]), PML_ERR_CLOSED);
	cr_expect_eq(pml_op_item_error(op[1], 0, &err), 0);
	cr_expect_eq(err.code, PML_ERR_CLOSED);
	pml_op_free(op[0]);
	pml_op_free(op[1]);
	sdk_server_free(x.s);
	NO_LEAKS();
}

Test(store, nobody_there)
{
	struct fix x = { .s = sdk_server_start(), .err = PML_ERROR_INIT };
	struct pml_open_opts o = sdk_server_opts(x.s);
	struct pml_put_opts po = PML_PUT_OPTS_INIT;
	cr_assert_eq(pml_open(&o, &x.p, &x.err), 0);
	po.deadline_ms = 300;
	int e = pml_put(x.p, "k", 1, "v", 1, &po, &x.err);
	cr_expect(e == PML_ERR_UNREACHABLE || e == PML_ERR_TIMED_OUT, "%d", e);
	cr_expect_str_eq(x.err.peer, "master");
	fix_close(&x);
	NO_LEAKS();
}

Test(store, in_a_forked_child)
{
	struct fix x;
	int st = 0;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "v", 1, NULL, &x.err), 0, "%s", x.err.text);
	pid_t pid = fork();
	if (pid == 0) {
		char b[4];
		size_t n;
		int a = pml_put(x.p, "l", 1, "v", 1, NULL, NULL);
		int g = pml_get(x.p, "k", 1, b, 4, &n, NULL, NULL);
		_exit(a == PML_ERR_FORKED && g == PML_ERR_FORKED ? 0 : 1);
	}
	cr_expect(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == 0);
	cr_expect_eq(pml_put(x.p, "m", 1, "v", 1, NULL, &x.err), 0, "the parent goes on");
	fix_close(&x);
	NO_LEAKS();
}

struct thread {
	struct fix *x;
	unsigned i;
	unsigned failed;
};

static void *put_and_get(void *arg)
{
	struct thread *t = arg;
	for (unsigned k = 0; k < 50; k++) {
		char key[32], value[64], got[64];
		size_t n = 0;
		struct pml_error err = PML_ERROR_INIT;
		int len = snprintf(key, sizeof(key), "%u/%u", t->i, k);
		int vn = snprintf(value, sizeof(value), "value of %s", key);
		int e = pml_put(t->x->p, key, (size_t)len, value, (size_t)vn, NULL, &err);
		if (e == 0)
			e = pml_get(t->x->p, key, (size_t)len, got, sizeof(got), &n, NULL,
				    &err);
		t->failed += e != 0 || n != (size_t)vn || memcmp(got, value, n) != 0;
	}
	return NULL;
}

Test(store, many_threads)
{
	struct fix x;
	struct thread t[8];
	pthread_t id[8];
	fix_open(&x);
	for (unsigned i = 0; i < 8; i++) {
		t[i] = (struct thread){ &x, i, 0 };
		pthread_create(&id[i], NULL, put_and_get, &t[i]);
	}
	for (unsigned i = 0; i < 8; i++) {
		pthread_join(id[i], NULL);
		cr_expect_eq(t[i].failed, 0);
	}
	fix_close(&x);
	NO_LEAKS();
}
