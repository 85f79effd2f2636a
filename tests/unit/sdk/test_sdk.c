/* SPDX-License-Identifier: Apache-2.0 */
#include "sdk_server.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct pml *open_on(struct sdk_server *s)
{
	struct pml_open_opts o = sdk_server_opts(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	int e = pml_open(&o, &p, &err);
	cr_assert_eq(e, PML_ERR_NONE, "%s", err.text);
	return p;
}

static struct pml_op *collect(struct pml_cq *cq)
{
	struct pml_op *op = NULL;
	cr_assert_eq(pml_cq_wait(cq, &op, 1, 10000), 1);
	return op;
}

/* ---- plain calls ---- */

Test(sdk, echo, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	char out[16];
	size_t n = 99;
	cr_expect_eq(pml_echo(p, "master", "hello", 5, out, sizeof(out), &n, NULL, &err), 0,
		     "%s", err.text);
	cr_expect_eq(n, 5);
	cr_expect_eq(memcmp(out, "hello", 5), 0);
	cr_expect_eq(pml_echo(p, "master", "", 0, out, sizeof(out), &n, NULL, &err), 0);
	cr_expect_eq(n, 0);
	n = 99;
	cr_expect_eq(pml_echo(p, "master", "hello", 5, out, 4, &n, NULL, &err),
		     PML_ERR_TOO_LARGE);
	cr_expect_eq(n, 99, "nothing is written on failure");
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

Test(sdk, echo_of_the_largest, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "agent");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *in = malloc(PML_ECHO_MAX + 1), *out = malloc(PML_ECHO_MAX);
	size_t n = 0;
	for (size_t i = 0; i <= PML_ECHO_MAX; i++)
		in[i] = (uint8_t)(i * 2654435761u >> 24);
	cr_expect_eq(pml_echo(p, "agent", in, PML_ECHO_MAX, out, PML_ECHO_MAX, &n, NULL, &err),
		     0, "%s", err.text);
	cr_expect(n == PML_ECHO_MAX && memcmp(in, out, n) == 0);
	cr_expect_eq(pml_echo(p, "agent", in, PML_ECHO_MAX + 1, out, PML_ECHO_MAX, &n, NULL,
			      &err),
		     PML_ERR_TOO_LARGE);
	cr_expect(strstr(err.text, "4194304"), "%s", err.text);
	free(in);
	free(out);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

Test(sdk, status_of_one, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "owner");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_service_status st = PML_SERVICE_STATUS_INIT;
	struct pml_op *op = NULL;
	cr_assert_eq(pml_status(p, "owner", NULL, &op, &err), 0, "%s", err.text);
	cr_assert_eq(pml_op_n_status(op), 1);
	cr_assert_eq(pml_op_status(op, 0, &st), 0);
	cr_expect(st.code == 0 && st.pid == 4711 && !st.ready && st.term == 3);
	cr_expect(st.uptime_ms == 5 && st.rss_bytes == 1 << 20);
	cr_expect_str_eq(st.name, "owner");
	cr_expect_str_eq(st.release, "9.9.9");
	cr_expect_str_eq(st.instance, "abababababababababababababababab");
	cr_expect(st.n_rpc == 2 && strcmp(st.rpc[1], "tcp://127.0.0.1:1") == 0);
	cr_expect(st.n_reasons == 1 && strcmp(st.reasons[0], "test: not yet") == 0);
	cr_expect_eq(pml_op_status(op, 1, &st), PML_ERR_INVALID_PARAMS);
	size_t n;
	cr_expect_null(pml_op_bytes(op, &n), "a status is no echo");
	pml_op_free(op);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* Of all five, those that answer answer, and each of the others says why; the call succeeds. */
Test(sdk, status_of_all_is_per_item, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	sdk_server_add(s, "pg");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_op *op = NULL;
	int good = 0;
	o.deadline_ms = 300;
	cr_assert_eq(pml_status(p, NULL, &o, &op, &err), 0, "%s", err.text);
	cr_assert_eq(pml_op_n_status(op), 5);
	for (size_t i = 0; i < 5; i++) {
		struct pml_service_status st = PML_SERVICE_STATUS_INIT;
		cr_assert_eq(pml_op_status(op, i, &st), 0);
		good += st.code == 0;
		if (st.code != 0)
			cr_expect(st.code == PML_ERR_TIMED_OUT ||
					  st.code == PML_ERR_UNREACHABLE,
				  "%d", st.code);
		if (st.code != 0)
			cr_expect(strstr(st.error, st.name), "%s", st.error);
	}
	cr_expect_eq(good, 2);
	pml_op_free(op);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* T7: the deadline ends the wait, the error names peer and step. */
Test(sdk, deadline_names_peer_and_step, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "planner");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_op *op = NULL;
	struct pml_cq *cq = NULL;
	o.deadline_ms = 80;
	cr_assert_eq(pml_cq_new(p, 1, &cq, &err), 0);
	uint64_t begin = clock_real.now_ns(&clock_real);
	cr_assert_eq(pml_echo_start(p, "planner", "x", 1, 60000, &o, cq, NULL, &op, &err), 0);
	op = collect(cq);
	uint64_t ms = (clock_real.now_ns(&clock_real) - begin) / NS_PER_MS;
	cr_expect_eq(pml_op_code(op), PML_ERR_TIMED_OUT);
	cr_expect(ms >= 79 && ms < 5000, "%llu ms", (unsigned long long)ms);
	cr_expect_eq(pml_op_error(op, &err), 0);
	cr_expect_str_eq(err.peer, "planner");
	cr_expect(strstr(err.text, "planner") && err.step[0], "%s / %s", err.text, err.step);
	pml_op_free(op);
	pml_cq_free(cq);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

Test(sdk, service_that_is_not_there, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	char out[8];
	size_t n;
	o.deadline_ms = 200;
	int e = pml_echo(p, "master", "x", 1, out, sizeof(out), &n, &o, &err);
	cr_expect(e == PML_ERR_TIMED_OUT || e == PML_ERR_UNREACHABLE, "%d", e);
	cr_expect_str_eq(err.peer, "master");
	/* it comes up: the same handle reaches it */
	sdk_server_add(s, "master");
	cr_expect_eq(pml_echo(p, "master", "x", 1, out, sizeof(out), &n, NULL, &err), 0, "%s",
		     err.text);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* ---- arguments ---- */

Test(sdk, bad_arguments_are_refused, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	struct pml_cq *cq = NULL;
	struct pml_call_opts o = { .size = 3 };
	char out[8];
	size_t n;
	cr_expect_eq(pml_echo(p, "mister", "x", 1, out, 8, &n, NULL, &err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(err.text, "mister") && strstr(err.text, "planner"), "%s", err.text);
	cr_expect_eq(pml_echo(p, NULL, "x", 1, out, 8, &n, NULL, &err), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_status(p, "", NULL, &op, &err), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_echo(NULL, "pg", "x", 1, out, 8, &n, NULL, &err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_echo(p, "pg", "x", 1, out, 8, &n, &o, &err), PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(err.text, "PML_CALL_OPTS_INIT"), "%s", err.text);
	cr_expect_eq(pml_cq_new(p, 0, &cq, &err), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_cq_new(p, 65537, &cq, &err), PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(err.text, "1..65536"), "%s", err.text);
	cr_expect_eq(pml_op_code(NULL), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_op_free(NULL), PML_ERR_NONE);
	cr_expect_eq(pml_cq_free(NULL), PML_ERR_NONE);
	cr_expect_eq(pml_close(NULL), PML_ERR_NONE);
	cr_expect_eq(pml_cq_fd(NULL), -1);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

Test(sdk, open_says_what_is_wrong, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	struct pml_open_opts o = sdk_server_opts(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	char path[128];
	o.tenant = "a/b";
	cr_expect_eq(pml_open(&o, &p, &err), PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(err.text, "a/b"), "%s", err.text);
	o.tenant = NULL;
	o.masters = "gopher://x";
	int e = pml_open(&o, &p, &err);
	if (e == PML_ERR_NONE) { /* addresses may be judged at the first call */
		struct pml_op *op = NULL;
		e = pml_status(p, "master", NULL, &op, &err);
		pml_close(p);
		p = NULL;
	}
	cr_expect_eq(e, PML_ERR_INVALID_PARAMS, "%s", err.text);
	o.masters = NULL;
	o.calls_max = 1u << 30;
	cr_expect_eq(pml_open(&o, &p, &err), PML_ERR_INVALID_PARAMS);
	o.calls_max = 0;
	snprintf(path, sizeof(path), "%s/secret", sdk_server_data(s));
	chmod(path, 0644);
	cr_expect_eq(pml_open(&o, &p, &err), PML_ERR_FORBIDDEN, "%s", err.text);
	unlink(path);
	cr_expect_eq(pml_open(&o, &p, &err), PML_ERR_NOT_FOUND, "%s", err.text);
	cr_expect(strstr(err.text, path), "%s", err.text);
	setenv("POMELO_CLIENT_CALLS_MAX", "zero", 1);
	cr_expect_eq(pml_open(&o, &p, &err), PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(err.text, "calls_max") && strstr(err.text, "zero"), "%s", err.text);
	unsetenv("POMELO_CLIENT_CALLS_MAX");
	o.size = 0;
	cr_expect_eq(pml_open(&o, &p, &err), PML_ERR_INVALID_PARAMS);
	cr_expect_null(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* A caller of an older release passes shorter structs; nothing behind them is read or written. */
Test(sdk, sizes_tag_the_structs, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	struct pml_open_opts o = sdk_server_opts(s);
	struct pml *p = NULL;
	struct {
		size_t size;
		int code;
		char guard[24];
	} err = { .size = 2 * sizeof(size_t) };
	memset(err.guard, 0x5a, sizeof(err.guard));
	o.tenant = (const char *)1; /* would crash if it were read */
	o.size = offsetof(struct pml_open_opts, tenant);
	cr_assert_eq(pml_open(&o, &p, (struct pml_error *)&err), PML_ERR_NONE);
	char out[4];
	size_t n;
	cr_expect_eq(pml_echo(p, "none", "", 0, out, 4, &n, NULL, (struct pml_error *)&err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_eq(err.code, PML_ERR_INVALID_PARAMS);
	cr_expect_eq(err.size, 2 * sizeof(size_t));
	for (size_t i = sizeof(size_t) - sizeof(int); i < sizeof(err.guard); i++)
		cr_expect_eq(err.guard[i], 0x5a);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* ---- queues ---- */

static bool readable(int fd, int wait_ms)
{
	struct pollfd pf = { .fd = fd, .events = POLLIN };
	return poll(&pf, 1, wait_ms) == 1;
}

Test(sdk, queue_descriptor_follows_the_list, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *ops[3], *got[4];
	int users[3];
	cr_assert_eq(pml_cq_new(p, 3, &cq, &err), 0);
	cr_expect_not(readable(pml_cq_fd(cq), 0));
	for (int i = 0; i < 3; i++)
		cr_assert_eq(pml_echo_start(p, "master", "abc", (size_t)i, 0, NULL, cq,
					    &users[i], &ops[i], &err),
			     0);
	/* I2: the depth counts what is under way and what was not collected */
	struct pml_op *more = NULL;
	cr_expect_eq(pml_echo_start(p, "master", "x", 1, 0, NULL, cq, NULL, &more, &err),
		     PML_ERR_BUSY);
	cr_expect_gt(err.retry_ms, 0);
	cr_expect_eq(pml_cq_free(cq), PML_ERR_BUSY);
	cr_assert(readable(pml_cq_fd(cq), 10000));
	size_t n = 0;
	while (n < 3)
		n += pml_cq_wait(cq, got + n, 1, 10000);
	cr_expect_not(readable(pml_cq_fd(cq), 0));
	cr_expect_eq(pml_cq_poll(cq, got, 4), 0);
	for (int i = 0; i < 3; i++) {
		size_t len = 99;
		cr_expect_eq(pml_op_code(ops[i]), 0);
		cr_expect_eq(pml_op_user(ops[i]), &users[i]);
		cr_expect_not_null(pml_op_bytes(ops[i], &len));
		cr_expect_eq(len, (size_t)i);
		pml_op_free(ops[i]);
	}
	cr_expect_eq(pml_cq_wait(cq, got, 4, 10), 0, "nothing comes: the wait ends");
	cr_expect_eq(pml_cq_free(cq), PML_ERR_NONE);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

Test(sdk, calls_max_is_kept, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml_open_opts o = sdk_server_opts(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	struct pml_op *a = NULL, *b = NULL, *c = NULL;
	o.calls_max = 2;
	cr_assert_eq(pml_open(&o, &p, &err), 0);
	cr_assert_eq(pml_echo_start(p, "master", "", 0, 60000, NULL, NULL, NULL, &a, &err), 0);
	cr_assert_eq(pml_echo_start(p, "master", "", 0, 60000, NULL, NULL, NULL, &b, &err), 0);
	cr_expect_eq(pml_echo_start(p, "master", "", 0, 0, NULL, NULL, NULL, &c, &err),
		     PML_ERR_BUSY);
	cr_expect(strstr(err.text, "calls_max"), "%s", err.text);
	cr_expect_eq(pml_op_code(a), PML_ERR_BUSY, "under way");
	cr_expect_eq(pml_op_error(a, &err), PML_ERR_NOT_READY);
	pml_op_free(a);
	pml_op_free(b);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* A queue of one handle does not serve another. */
Test(sdk, queues_belong_to_their_handle, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	struct pml *p = open_on(s), *q = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	cr_assert_eq(pml_cq_new(p, 1, &cq, &err), 0);
	cr_expect_eq(pml_echo_start(q, "master", "", 0, 0, NULL, cq, NULL, &op, &err),
		     PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_cq_free(cq), 0, "it took no slot");
	pml_close(p);
	pml_close(q);
	sdk_server_free(s);
	NO_LEAKS();
}

/* ---- cancel, free, close ---- */

static void wait_parked(struct sdk_server *s, uint32_t n)
{
	for (int i = 0; i < 5000 && sdk_server_parked(s) != n; i++)
		usleep(1000);
	cr_assert_eq(sdk_server_parked(s), n);
}

Test(sdk, cancel_ends_a_call, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	cr_assert_eq(pml_cq_new(p, 4, &cq, &err), 0);
	cr_assert_eq(pml_echo_start(p, "master", "", 0, 60000, NULL, cq, NULL, &op, &err), 0);
	wait_parked(s, 1);
	cr_expect_eq(pml_op_cancel(op), 0);
	cr_expect_eq(pml_op_cancel(op), 0, "twice is once");
	cr_expect_eq(collect(cq), op);
	cr_expect_eq(pml_op_code(op), PML_ERR_CANCELLED);
	cr_expect_eq(pml_op_cancel(op), 0, "after the end it is nothing");
	pml_op_free(op);
	/* at once after the start: whichever wins, it completes once */
	for (int i = 0; i < 100; i++) {
		cr_assert_eq(pml_echo_start(p, "master", "", 0, 1, NULL, cq, NULL, &op, &err),
			     0);
		pml_op_cancel(op);
		cr_assert_eq(collect(cq), op);
		int code = pml_op_code(op);
		cr_assert(code == 0 || code == PML_ERR_CANCELLED, "%d", code);
		pml_op_free(op);
	}
	cr_expect_eq(pml_cq_free(cq), 0);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* An operation freed while under way leaves no completion, and gives its slot back. */
Test(sdk, free_under_way_is_silent, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	cr_assert_eq(pml_cq_new(p, 1, &cq, &err), 0);
	for (int i = 0; i < 20; i++) {
		int e = PML_ERR_BUSY;
		for (int t = 0; t < 5000 && e == PML_ERR_BUSY; t++) {
			e = pml_echo_start(p, "master", "", 0, 60000, NULL, cq, NULL, &op,
					   &err);
			if (e == PML_ERR_BUSY)
				usleep(1000);
		}
		cr_assert_eq(e, 0, "the slot came back");
		pml_op_free(op);
	}
	cr_expect_eq(pml_cq_wait(cq, &op, 1, 50), 0);
	pml_close(p);
	cr_expect_eq(pml_cq_free(cq), 0);
	sdk_server_free(s);
	NO_LEAKS();
}

/* Its owner cannot know that it has ended meanwhile: a call that lies in its queue leaves it, first, last
 * or in the middle, and its place is free again. */
Test(sdk, free_of_what_was_not_collected, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *ops[3], *got[4];
	cr_assert_eq(pml_cq_new(p, 3, &cq, &err), 0);
	for (unsigned freed = 0; freed < 8; freed++) {
		for (int i = 0; i < 3; i++)
			cr_assert_eq(pml_echo_start(p, "master", "", 0, 0, NULL, cq, NULL,
						    &ops[i], &err),
				     0, "%s", err.text);
		for (int i = 0; i < 3; i++)
			cr_assert_eq(pml_op_wait(ops[i]), 0);
		for (unsigned i = 0; i < 3; i++)
			if (freed & 1u << i)
				cr_expect_eq(pml_op_free(ops[i]), 0);
		size_t left = 3 - (size_t)__builtin_popcount(freed);
		cr_expect_eq(readable(pml_cq_fd(cq), 0), left > 0);
		cr_expect_eq(pml_cq_free(cq), left ? PML_ERR_BUSY : 0);
		if (!left)
			break;
		cr_assert_eq(pml_cq_poll(cq, got, 4), left);
		for (size_t i = 0; i < left; i++)
			cr_expect_eq(pml_op_free(got[i]), 0);
		cr_expect_not(readable(pml_cq_fd(cq), 0));
	}
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* I1, I3: close with calls under way: each ends once, with CLOSED; objects outlive the handle. */
Test(sdk, close_ends_calls_as_closed, .timeout = 20)
{
	enum { N = 40 };
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *ops[N], *got[N + 1];
	cr_assert_eq(pml_cq_new(p, N, &cq, &err), 0);
	for (int i = 0; i < N; i++) /* half of them wait for a service that is not there */
		cr_assert_eq(pml_echo_start(p, i % 2 ? "master" : "agent", "", 0, 60000, NULL,
					    cq, NULL, &ops[i], &err),
			     0);
	wait_parked(s, N / 2);
	cr_expect_eq(pml_close(p), 0);
	size_t n = pml_cq_poll(cq, got, N + 1);
	cr_expect_eq(n, N);
	for (size_t i = 0; i < n; i++) {
		cr_expect_eq(pml_op_code(got[i]), PML_ERR_CLOSED);
		cr_expect_eq(pml_op_error(got[i], &err), 0);
		cr_expect(err.text[0]);
		pml_op_free(got[i]);
	}
	cr_expect_eq(pml_cq_free(cq), 0);
	sdk_server_free(s);
	NO_LEAKS();
}

struct waiter {
	struct pml *p;
	int code;
};

static void *wait_in_echo(void *arg)
{
	struct waiter *w = arg;
	struct pml_op *op = NULL;
	w->code = pml_status(w->p, "agent", NULL, &op, NULL); /* nobody is there */
	return NULL;
}

Test(sdk, close_ends_plain_calls, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	struct waiter w = { .p = open_on(s) };
	pthread_t t;
	cr_assert_eq(pthread_create(&t, NULL, wait_in_echo, &w), 0);
	usleep(50000);
	cr_expect_eq(pml_close(w.p), 0);
	pthread_join(t, NULL);
	cr_expect_eq(w.code, PML_ERR_CLOSED);
	sdk_server_free(s);
	NO_LEAKS();
}

/* ---- threads ---- */

struct caller {
	struct pml *p;
	int seed, wrong;
};

static void *call_often(void *arg)
{
	struct caller *c = arg;
	uint8_t in[64], out[64];
	size_t n;
	for (int i = 0; i < 200; i++) {
		memset(in, c->seed + i, sizeof(in));
		int e = pml_echo(c->p, "master", in, sizeof(in), out, sizeof(out), &n, NULL,
				 NULL);
		c->wrong += e != 0 || n != sizeof(in) || memcmp(in, out, n) != 0;
	}
	return NULL;
}

Test(sdk, many_threads_share_a_handle, .timeout = 60)
{
	enum { N = 8 };
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct caller c[N];
	pthread_t t[N];
	for (int i = 0; i < N; i++) {
		c[i] = (struct caller){ p, i * 31, 0 };
		cr_assert_eq(pthread_create(&t[i], NULL, call_often, &c[i]), 0);
	}
	for (int i = 0; i < N; i++) {
		pthread_join(t[i], NULL);
		cr_expect_eq(c[i].wrong, 0);
	}
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* ---- the process around it ---- */

static int count_tasks(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	for (struct dirent *de = readdir(d); de; de = readdir(d))
		n += de->d_name[0] != '.';
	closedir(d);
	return n;
}

/* One thread a handle, no thread of nng's, and none left behind. */
Test(sdk, one_thread_a_handle, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	int before = count_tasks();
	struct pml *p = open_on(s), *q = open_on(s);
	char out[4];
	size_t n;
	cr_expect_eq(pml_echo(p, "master", "x", 1, out, 4, &n, NULL, NULL), 0);
	cr_expect_eq(pml_echo(q, "master", "x", 1, out, 4, &n, NULL, NULL), 0);
	cr_expect_eq(count_tasks(), before + 2);
	pml_close(p);
	pml_close(q);
	cr_expect_eq(count_tasks(), before);
	sdk_server_free(s);
	NO_LEAKS();
}

static volatile sig_atomic_t n_signals;
static pid_t signal_tid;

static void on_usr1(int signum)
{
	n_signals = n_signals + 1;
	signal_tid = (pid_t)syscall(SYS_gettid); /* NOLINT(bugprone-signal-handler) */
}

/* The library changes no handler and no mask, and its thread takes none of the process's signals. */
Test(sdk, signals_are_left_alone, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	struct sigaction before[NSIG], after;
	sigset_t mask_before, mask_after, all;
	sigemptyset(&mask_before); /* the kernel fills a part of it */
	sigemptyset(&mask_after);
	for (int i = 1; i < NSIG; i++)
		sigaction(i, NULL, &before[i]);
	sigprocmask(SIG_SETMASK, NULL, &mask_before);
	struct pml *p = open_on(s);
	for (int i = 1; i < NSIG; i++)
		if (sigaction(i, NULL, &after) == 0)
			cr_expect_eq((void *)after.sa_handler, (void *)before[i].sa_handler,
				     "%d", i);
	sigprocmask(SIG_SETMASK, NULL, &mask_after);
	cr_expect_eq(memcmp(&mask_before, &mask_after, sizeof(mask_before)), 0);
	pml_close(p);
	sdk_server_stop(s);
	/* all threads but the library's block it: it must stay pending */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	signal(SIGUSR1, on_usr1);
	p = open_on(s);
	kill(getpid(), SIGUSR1);
	usleep(20000);
	cr_expect_eq(n_signals, 0);
	pml_close(p);
	pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
	cr_expect_eq(n_signals, 1);
	cr_expect_eq(signal_tid, gettid());
	sdk_server_free(s);
	NO_LEAKS();
}

/* In a child each call on the parent's objects says FORKED; a handle of its own works. */
static int child_of(struct sdk_server *s, struct pml *p, struct pml_cq *cq, struct pml_op *op)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *got = NULL;
	struct pml *q = NULL;
	struct pml_cq *cq2 = NULL;
	char out[4];
	size_t n = 0;
	if (pml_echo(p, "master", "x", 1, out, 4, &n, NULL, &err) != PML_ERR_FORKED ||
	    err.code != PML_ERR_FORKED || !err.text[0])
		return 1;
	if (pml_status(p, NULL, NULL, &got, NULL) != PML_ERR_FORKED)
		return 2;
	if (pml_cq_new(p, 1, &cq2, NULL) != PML_ERR_FORKED || pml_cq_fd(cq) != -1 ||
	    pml_cq_poll(cq, &got, 1) != 0 || pml_cq_wait(cq, &got, 1, 1000) != 0 ||
	    pml_cq_free(cq) != PML_ERR_FORKED)
		return 3;
	if (pml_op_code(op) != PML_ERR_FORKED || pml_op_cancel(op) != PML_ERR_FORKED ||
	    pml_op_error(op, &err) != PML_ERR_FORKED || pml_op_free(op) != PML_ERR_FORKED)
		return 4;
	if (pml_close(p) != PML_ERR_FORKED)
		return 5;
	struct pml_open_opts o = sdk_server_opts(s);
	if (pml_open(&o, &q, &err) != 0)
		return 6;
	if (pml_echo(q, "master", "y", 1, out, 4, &n, NULL, &err) != 0 || n != 1 ||
	    out[0] != 'y')
		return 7;
	return pml_close(q) == 0 ? 0 : 8;
}

Test(sdk, fork_is_safe, .timeout = 20)
{
	struct sdk_server *s = sdk_server_start();
	sdk_server_add(s, "master");
	struct pml *p = open_on(s);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	int status = -1;
	char out[4];
	size_t n;
	cr_assert_eq(pml_cq_new(p, 1, &cq, &err), 0);
	cr_assert_eq(pml_echo_start(p, "master", "", 0, 300, NULL, cq, NULL, &op, &err), 0);
	wait_parked(s, 1);
	pid_t pid = fork();
	if (pid == 0)
		_exit(child_of(s, p, cq, op));
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "step %d of the child",
		  WEXITSTATUS(status));
	/* the parent's objects are undisturbed */
	cr_expect_eq(collect(cq), op);
	cr_expect_eq(pml_op_code(op), 0);
	cr_expect_eq(pml_echo(p, "master", "z", 1, out, 4, &n, NULL, &err), 0, "%s", err.text);
	pml_op_free(op);
	pml_cq_free(cq);
	pml_close(p);
	sdk_server_free(s);
	NO_LEAKS();
}

/* ---- small things ---- */

Test(sdk, errors_and_features, .timeout = 10)
{
	cr_expect_str_eq(pml_error_name(PML_ERR_BUSY), "BUSY");
	cr_expect_str_eq(pml_error_name(31999), "UNKNOWN");
	cr_expect(strlen(pml_error_text(PML_ERR_TIMED_OUT)) > 10);
	cr_expect(pml_error_retryable(PML_ERR_BUSY) && !pml_error_retryable(PML_ERR_FORKED));
	cr_expect_str_eq(pml_version(), POMELO_VERSION);
	cr_expect(pml_has("echo") && pml_has("status") && pml_has("fork"));
	cr_expect(!pml_has("group") && pml_has("store") && !pml_has("") && !pml_has(NULL));
#define SAME(name, number, retry, text, mooncake) \
	cr_expect_eq((int)PML_ERR_##name, (int)ERR_##name);
	ERR_TABLE(SAME)
#undef SAME
}

Test(sdk, endpoints_file, .timeout = 10)
{
	static const char text[] =
		"{\"version\":1,\"services\":[{\"name\":\"master\",\"rpc\":[\"ipc:///a\","
		"\"tcp://h:1\",7,\"\"]},{\"name\":\"agent\",\"rpc\":{}},{\"name\":3}]}";
	char *addrs[SDK_ADDRS_MAX] = { 0 };
	size_t n = endpoints_parse(BYTES_STR(text), "master", addrs);
	cr_assert_eq(n, 2);
	cr_expect_str_eq(addrs[1], "tcp://h:1");
	free(addrs[0]);
	free(addrs[1]);
	cr_expect_eq(endpoints_parse(BYTES_STR(text), "agent", addrs), 0);
	cr_expect_eq(endpoints_parse(BYTES_STR(text), "pg", addrs), 0);
	for (size_t i = 0; i < sizeof(text); i++) {
		n = endpoints_parse(BYTES(text, i), "master", addrs);
		cr_expect_eq(n, i >= sizeof(text) - 1 ? 2 : 0);
		while (n > 0)
			free(addrs[--n]);
	}
	NO_LEAKS();
}

Test(sdk, endpoints_are_bounded, .timeout = 10)
{
	char *addrs[SDK_ADDRS_MAX] = { 0 };
	struct buf text = BUF_INIT(1024);
	buf_printf(&text, "{\"services\":[{\"name\":\"pg\",\"rpc\":[\"a\"");
	for (int i = 0; i < 50; i++)
		buf_printf(&text, ",\"b\"");
	buf_printf(&text, "]}]}");
	size_t n = endpoints_parse(buf_bytes(&text), "pg", addrs);
	buf_fini(&text);
	cr_expect_eq(n, SDK_ADDRS_MAX);
	while (n > 0)
		free(addrs[--n]);
	NO_LEAKS();
}
