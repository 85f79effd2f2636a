/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller that does everything wrong: NULL for every pointer in turn, sizes that make no sense, lengths without
 * memory, objects of the wrong kind, calls on what is closed. Each is a typed error that says what is wrong, and
 * the handle works on as if nothing had been.
 */
#include "pml_weights.h"
#include "store_fix.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(hostile, .timeout = 60);

#define REFUSED(call) cr_expect_eq(call, PML_ERR_INVALID_PARAMS, "%s", #call)
#define NOTHING(call) cr_expect_eq(call, 0, "%s", #call)

static void works(struct fix *x)
{
	char b[8];
	size_t n = 0;
	int e = pml_upsert(x->p, "works", 5, "on", 2, NULL, &x->err);
	cr_expect_eq(e, 0, "%s", x->err.text);
	e = pml_get(x->p, "works", 5, b, sizeof(b), &n, NULL, &x->err);
	cr_expect(e == 0 && n == 2 && memcmp(b, "on", 2) == 0, "%s", x->err.text);
}

/* ---- NULL ---- */

Test(hostile, no_handle)
{
	struct pml_op *op = NULL;
	struct pml_cq *cq = NULL;
	struct pml_item it = PML_ITEM_INIT;
	char b[8];
	size_t n;
	bool yes;
	it.key = "k", it.key_bytes = 1;
	REFUSED(pml_cq_new(NULL, 1, &cq, NULL));
	REFUSED(pml_status(NULL, NULL, NULL, &op, NULL));
	REFUSED(pml_status_start(NULL, NULL, NULL, NULL, NULL, &op, NULL));
	REFUSED(pml_echo(NULL, "master", "", 0, b, 8, &n, NULL, NULL));
	REFUSED(pml_put(NULL, "k", 1, "v", 1, NULL, NULL));
	REFUSED(pml_upsert(NULL, "k", 1, "v", 1, NULL, NULL));
	REFUSED(pml_get(NULL, "k", 1, b, 8, &n, NULL, NULL));
	REFUSED(pml_remove(NULL, "k", 1, NULL, NULL));
	REFUSED(pml_remove_prefix(NULL, "k", 1, NULL, NULL, NULL));
	REFUSED(pml_exists(NULL, "k", 1, &yes, NULL, NULL));
	REFUSED(pml_stat(NULL, "k", 1, NULL, &op, NULL));
	REFUSED(pml_query(NULL, "k", 1, NULL, &op, NULL));
	REFUSED(pml_release(NULL, "k", 1, 1, NULL));
	REFUSED(pml_list(NULL, "", 0, NULL, &op, NULL));
	REFUSED(pml_explain(NULL, "k", 1, NULL, &op, NULL));
	REFUSED(pml_holders(NULL, NULL, &op, NULL));
	REFUSED(pml_forget(NULL, "a", NULL, NULL));
	REFUSED(pml_get_start(NULL, &it, 1, NULL, NULL, NULL, &op, NULL));
	REFUSED(pml_open(NULL, NULL, NULL));
	cr_expect_null(op);
	cr_expect_null(cq);
	NO_LEAKS();
}

Test(hostile, no_place_for_the_result)
{
	struct fix x;
	char b[8];
	size_t n;
	struct pml_item it = PML_ITEM_INIT;
	fix_open(&x);
	it.key = "k", it.key_bytes = 1;
	REFUSED(pml_cq_new(x.p, 1, NULL, &x.err));
	REFUSED(pml_status(x.p, "master", NULL, NULL, &x.err));
	REFUSED(pml_status_start(x.p, "master", NULL, NULL, NULL, NULL, &x.err));
	REFUSED(pml_echo_start(x.p, "master", "", 0, 0, NULL, NULL, NULL, NULL, &x.err));
	REFUSED(pml_echo(x.p, "master", "", 0, b, 8, NULL, NULL, &x.err));
	REFUSED(pml_echo(x.p, "master", "", 0, NULL, 8, &n, NULL, &x.err));
	REFUSED(pml_exists(x.p, "k", 1, NULL, NULL, &x.err));
	REFUSED(pml_stat(x.p, "k", 1, NULL, NULL, &x.err));
	REFUSED(pml_query(x.p, "k", 1, NULL, NULL, &x.err));
	REFUSED(pml_list(x.p, "", 0, NULL, NULL, &x.err));
	REFUSED(pml_explain(x.p, "k", 1, NULL, NULL, &x.err));
	REFUSED(pml_holders(x.p, NULL, NULL, &x.err));
	REFUSED(pml_put_start(x.p, &it, 1, NULL, NULL, NULL, NULL, &x.err));
	REFUSED(pml_remove_prefix_start(x.p, "", 0, NULL, NULL, NULL, NULL, &x.err));
	/* what may be NULL */
	cr_expect_eq(pml_put(x.p, "k", 1, "value", 5, NULL, NULL), 0);
	cr_expect_eq(pml_get(x.p, "k", 1, b, 8, NULL, NULL, NULL), 0);
	cr_expect_eq(pml_get(x.p, "k", 1, NULL, 0, &n, NULL, NULL), PML_ERR_TOO_LARGE);
	cr_expect_eq(n, 5);
	works(&x);
	fix_close(&x);
	NO_LEAKS();
}

Test(hostile, lengths_without_memory)
{
	struct fix x;
	char b[8];
	size_t n;
	struct pml_op *op = NULL;
	struct pml_list_opts lo = PML_LIST_OPTS_INIT;
	struct pml_put_opts po = PML_PUT_OPTS_INIT;
	fix_open(&x);
	REFUSED(pml_put(x.p, NULL, 3, "v", 1, NULL, &x.err));
	REFUSED(pml_put(x.p, NULL, 0, "v", 1, NULL, &x.err));
	REFUSED(pml_put(x.p, "k", 0, "v", 1, NULL, &x.err));
	REFUSED(pml_put(x.p, "k", 1, NULL, 1, NULL, &x.err));
	REFUSED(pml_put(x.p, "k", SIZE_MAX, "v", 1, NULL, &x.err));
	REFUSED(pml_get(x.p, "k", 1, NULL, 8, &n, NULL, &x.err));
	REFUSED(pml_get(x.p, NULL, 1, b, 8, &n, NULL, &x.err));
	REFUSED(pml_remove(x.p, NULL, 1, NULL, &x.err));
	REFUSED(pml_remove_prefix(x.p, NULL, 1, NULL, NULL, &x.err));
	REFUSED(pml_remove_prefix(x.p, "x", 1025, NULL, NULL, &x.err));
	REFUSED(pml_list(x.p, NULL, 1, NULL, &op, &x.err));
	lo.cursor_bytes = 3;
	REFUSED(pml_list(x.p, "", 0, &lo, &op, &x.err));
	REFUSED(pml_echo(x.p, "master", NULL, 3, b, 8, &n, NULL, &x.err));
	REFUSED(pml_forget(x.p, NULL, NULL, &x.err));
	po.n_preferred = 1;
	REFUSED(pml_put(x.p, "k", 1, "v", 1, &po, &x.err));
	po.n_preferred = 0, po.require_key_bytes = 1;
	REFUSED(pml_put(x.p, "k", 1, "v", 1, &po, &x.err));
	po.require_key_bytes = 0, po.group_bytes = 1;
	REFUSED(pml_put(x.p, "k", 1, "v", 1, &po, &x.err));
	cr_expect_null(op);
	works(&x);
	fix_close(&x);
	NO_LEAKS();
}

/* Lengths whose sum is not what it looks like: neither an empty object nor a crash. */
Test(hostile, lengths_that_wrap)
{
	static const struct pml_buf bufs[][3] = {
		{ { "v", SIZE_MAX } },
		{ { "v", SIZE_MAX / 2 + 1 }, { "v", SIZE_MAX / 2 + 1 } },
		{ { "v", 1 }, { "v", SIZE_MAX - 4096 } },
		{ { "v", 1ull << 61 }, { "v", 1ull << 61 }, { "v", 1 } },
	};
	struct fix x;
	struct pml_op *op = NULL;
	bool yes = true;
	fix_open(&x);
	for (size_t i = 0; i < ARRAY_LEN(bufs); i++) {
		struct pml_item it = PML_ITEM_INIT;
		it.key = "wraps", it.key_bytes = 5;
		it.bufs = bufs[i], it.n_bufs = 3;
		REFUSED(pml_put_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err));
		cr_expect(strstr(x.err.text, "memory"), "%s", x.err.text);
		REFUSED(pml_get_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err));
	}
	struct pml_buf large = { (void *)4096, (1ull << 40) + 1 };
	struct pml_item it = PML_ITEM_INIT;
	it.key = "wraps", it.key_bytes = 5;
	it.bufs = &large, it.n_bufs = 1;
	cr_assert_eq(pml_put_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err), 0);
	cr_expect_eq(pml_op_wait(op), PML_ERR_TOO_LARGE);
	pml_op_free(op);
	cr_expect_eq(pml_exists(x.p, "wraps", 5, &yes, NULL, &x.err), 0);
	cr_expect(!yes);
	fix_close(&x);
	NO_LEAKS();
}

/* ---- sizes ---- */

Test(hostile, sizes_that_make_no_sense)
{
	static const size_t sizes[] = { 0, 1, 7, 4097, SIZE_MAX };
	struct fix x;
	char b[8];
	size_t n;
	struct pml_op *op = NULL;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "value", 5, NULL, &x.err), 0);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct pml_put_opts po = { .size = sizes[i] };
		struct pml_get_opts go = { .size = sizes[i] };
		struct pml_remove_opts ro = { .size = sizes[i] };
		struct pml_list_opts lo = { .size = sizes[i] };
		struct pml_call_opts co = { .size = sizes[i] };
		struct pml_open_opts oo = { .size = sizes[i] };
		struct pml_item it = { .size = sizes[i], .key = "k", .key_bytes = 1 };
		struct pml_error bad = { .size = sizes[i], .code = 77 };
		struct pml *q = NULL;
		REFUSED(pml_put(x.p, "k", 1, "v", 1, &po, &x.err));
		REFUSED(pml_get(x.p, "k", 1, b, 8, &n, &go, &x.err));
		REFUSED(pml_remove(x.p, "k", 1, &ro, &x.err));
		REFUSED(pml_list(x.p, "", 0, &lo, &op, &x.err));
		REFUSED(pml_explain(x.p, "k", 1, &co, &op, &x.err));
		REFUSED(pml_forget(x.p, "a", &co, &x.err));
		REFUSED(pml_status(x.p, "master", &co, &op, &x.err));
		REFUSED(pml_open(&oo, &q, &x.err));
		REFUSED(pml_exists_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err));
		REFUSED(pml_put(x.p, "", 0, "v", 1, NULL, &bad));
		cr_expect_eq(bad.code, 77, "an error without a size is left alone");
	}
	cr_expect_null(op);
	works(&x);
	fix_close(&x);
	NO_LEAKS();
}

/* Results into structs of no sense; of the wrong kind of operation; past the last. */
Test(hostile, results_of_nothing)
{
	struct fix x;
	struct pml_op *op = NULL;
	struct pml_result r = PML_RESULT_INIT, tiny = { .size = 3 };
	struct pml_stat_info st = PML_STAT_INFO_INIT;
	struct pml_replica re = PML_REPLICA_INIT;
	struct pml_listed li = PML_LISTED_INIT;
	struct pml_holder ho = PML_HOLDER_INIT;
	struct pml_service_status ss = PML_SERVICE_STATUS_INIT;
	const char *a, *b;
	uint64_t u;
	size_t n;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "value", 5, NULL, &x.err), 0);
	for (int kind = 0; kind < 3; kind++) {
		op = NULL;
		if (kind == 1)
			cr_assert_eq(pml_stat(x.p, "k", 1, NULL, &op, &x.err), 0);
		if (kind == 2)
			cr_assert_eq(pml_list(x.p, "", 0, NULL, &op, &x.err), 0);
		REFUSED(pml_op_result(op, kind ? 1 : 0, &r));
		REFUSED(pml_op_result(op, SIZE_MAX, &r));
		REFUSED(pml_op_result(op, 0, NULL));
		REFUSED(pml_op_result(op, 0, &tiny));
		REFUSED(pml_op_item_error(op, 0, NULL));
		REFUSED(pml_op_item_error(op, 9, &x.err));
		REFUSED(pml_op_error(op, NULL));
		REFUSED(pml_op_stat(op, kind == 1 ? 7 : 0, &st));
		REFUSED(pml_op_stat(op, 0, NULL));
		REFUSED(pml_op_replica(op, 0, 0, &re));
		REFUSED(pml_op_listed(op, kind == 2 ? 7 : 0, &li));
		REFUSED(pml_op_listed(op, 0, NULL));
		REFUSED(pml_op_holder(op, 0, &ho));
		REFUSED(pml_op_status(op, 0, &ss));
		REFUSED(pml_op_fact(op, 0, &a, &b));
		REFUSED(pml_op_progress(op, NULL, &u));
		NOTHING(pml_op_n_replicas(op, 0));
		NOTHING(pml_op_lease_ms(op, 0));
		NOTHING(pml_op_n_facts(op));
		NOTHING(pml_op_n_holders(op));
		NOTHING(pml_op_n_status(op));
		NOTHING(pml_op_objects(op));
		cr_expect_null(pml_op_bytes(op, &n));
		cr_expect_null(pml_op_bytes(op, NULL));
		cr_expect_null(pml_op_cursor(op, NULL));
		cr_expect_null(pml_op_user(op));
		pml_op_free(op);
	}
	REFUSED(pml_op_wait(NULL));
	REFUSED(pml_op_code(NULL));
	REFUSED(pml_op_cancel(NULL));
	NOTHING(pml_op_n(NULL));
	NOTHING(pml_cq_poll(NULL, &op, 1));
	NOTHING(pml_cq_wait(NULL, &op, 1, 10));
	works(&x);
	fix_close(&x);
	NO_LEAKS();
}

/* ---- the wrong moment ---- */

/* Queues and operations live on when their handle has gone: they answer, they do not crash. */
Test(hostile, after_close)
{
	struct fix x;
	struct pml_cq *cq = NULL, *full = NULL;
	struct pml_op *op = NULL, *got[2] = { 0 }, *second = NULL;
	struct pml_result r = PML_RESULT_INIT;
	struct pml_item it = PML_ITEM_INIT;
	struct pml_error err = PML_ERROR_INIT;
	fix_open(&x);
	it.key = "none", it.key_bytes = 4;
	cr_assert_eq(pml_cq_new(x.p, 1, &cq, &x.err), 0);
	cr_assert_eq(pml_cq_new(x.p, 1, &full, &x.err), 0);
	cr_assert_eq(pml_exists_start(x.p, &it, 1, NULL, cq, &x, &op, &x.err), 0);
	cr_assert_eq(pml_exists_start(x.p, &it, 1, NULL, full, NULL, &second, &x.err), 0);
	cr_expect_eq(pml_exists_start(x.p, &it, 1, NULL, full, NULL, &got[0], &x.err),
		     PML_ERR_BUSY, "as many as its depth");
	pml_op_wait(op);
	pml_close(x.p);
	cr_expect_eq(pml_op_wait(op), pml_op_code(op));
	cr_expect_eq(pml_op_cancel(op), 0, "too late is no error");
	cr_expect_eq(pml_op_result(op, 0, &r), 0);
	cr_expect_eq(r.code, PML_ERR_NOT_FOUND);
	cr_expect_eq(pml_op_error(op, &err), 0);
	cr_expect_eq(pml_op_user(op), &x);
	cr_expect_eq(pml_cq_free(cq), PML_ERR_BUSY, "one is uncollected");
	cr_expect_eq(pml_cq_poll(cq, NULL, 2), 0);
	cr_expect_eq(pml_cq_poll(cq, got, 2), 1);
	cr_expect_eq(pml_cq_poll(cq, got + 1, 1), 0);
	cr_expect_eq(pml_op_free(op), 0);
	cr_expect_eq(pml_op_free(second), 0, "uncollected: it leaves its queue");
	cr_expect_eq(pml_cq_free(cq), 0);
	cr_expect_eq(pml_cq_free(full), 0);
	sdk_server_free(x.s);
	NO_LEAKS();
}

/* Of another handle. */
Test(hostile, objects_of_others)
{
	struct fix x;
	struct pml *q = NULL;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	struct pml_item it = PML_ITEM_INIT;
	fix_open(&x);
	struct pml_open_opts o = sdk_server_opts(x.s);
	cr_assert_eq(pml_open(&o, &q, &x.err), 0);
	cr_assert_eq(pml_cq_new(q, 1, &cq, &x.err), 0);
	it.key = "k", it.key_bytes = 1;
	REFUSED(pml_get_start(x.p, &it, 1, NULL, cq, NULL, &op, &x.err));
	cr_expect(strstr(x.err.text, "another handle"), "%s", x.err.text);
	cr_expect_eq(pml_cq_free(cq), 0, "nothing is under way in it");
	pml_close(q);
	works(&x);
	fix_close(&x);
	NO_LEAKS();
}

/* ---- weights ---- */

static bool sink(void *arg, const void *p, size_t n)
{
	return true;
}

Test(hostile, weights)
{
	struct pml_placement *p = NULL;
	struct pml_stored *s = NULL;
	struct pml_plan *plan = NULL;
	struct pml_plan_info info = PML_PLAN_INFO_INIT;
	struct pml_region r = { .size = sizeof(r) };
	struct pml_plan_opts o = PML_PLAN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	REFUSED(pml_placement_read(NULL, 3, 0, &p, &err));
	REFUSED(pml_placement_read("{}", 2, 0, NULL, &err));
	REFUSED(pml_placement_read("{}", 2, 9, &p, &err));
	cr_expect_neq(pml_placement_read("{}", 2, 0, &p, &err), 0);
	REFUSED(pml_placement_write(NULL, sink, NULL, &err));
	REFUSED(pml_stored_read(NULL, 1, &s, &err));
	REFUSED(pml_stored_read("{}", 2, NULL, &err));
	REFUSED(pml_plan_make(NULL, &plan, &err));
	REFUSED(pml_plan_make(&o, &plan, &err));
	REFUSED(pml_plan_make(&o, NULL, &err));
	REFUSED(pml_plan_info(NULL, &info, &err));
	REFUSED(pml_plan_region(NULL, 0, &r, &err));
	REFUSED(pml_plan_write(NULL, sink, NULL, &err));
	REFUSED(pml_stop_new(NULL, &err));
	REFUSED(pml_op_plan(NULL, &plan, &err));
	REFUSED(pml_plan_remote(NULL, NULL, NULL, &plan, &err));
	cr_expect_null(pml_placement_id(NULL));
	cr_expect_null(pml_placement_digest(NULL));
	cr_expect_null(pml_stored_digest(NULL));
	cr_expect_null(pml_plan_digest(NULL));
	pml_placement_free(NULL);
	pml_stored_free(NULL);
	pml_plan_free(NULL);
	pml_stop_free(NULL);
	pml_stop_now(NULL);
	cr_expect(!p && !s && !plan);
	NO_LEAKS();
}
