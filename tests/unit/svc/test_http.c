/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/http.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "../../support/leak.h"
#include "../../support/tcp_client.h"

TestSuite(http, .timeout = 30);

/* A server on a loop in its own thread; the test is the client. */
struct fixture {
	struct loop loop;
	struct http *http;
	pthread_t thread;
	char addr[64];
	_Atomic bool ready;
	_Atomic unsigned long n_metrics;
	bool big;
	struct http_counters counters; /* as the loop thread saw them last */
};

static bool on_ready(void *ctx, struct buf *out)
{
	struct fixture *f = ctx;
	if (f->ready)
		buf_printf(out, "{\"ready\":true,\"reasons\":[]}\n");
	else
		buf_printf(out, "{\"ready\":false,\"reasons\":[\"test: not yet\"]}\n");
	return f->ready;
}

static void on_metrics(void *ctx, struct buf *out)
{
	struct fixture *f = ctx;
	f->n_metrics++;
	buf_printf(out, "pomelo_test 1\n");
	for (int i = 0; f->big && i < 50000; i++)
		buf_printf(out, "pomelo_row{i=\"%d\"} 1\n", i);
}

static void *loop_main(void *arg)
{
	struct fixture *f = arg;
	loop_run(&f->loop);
	http_counters(f->http, &f->counters);
	http_close(f->http, NULL, NULL);
	loop_close(&f->loop);
	return NULL;
}

static void begin(struct fixture *f, struct http_opts o)
{
	struct why why = { 0 };
	cr_assert_eq(loop_open(&f->loop), ERR_NONE);
	o.bind = "127.0.0.1";
	o.ready = on_ready;
	o.metrics = on_metrics;
	o.ctx = f;
	cr_assert_eq(http_open(&f->loop, &o, &f->http, &why), ERR_NONE, "%s", why.text);
	snprintf(f->addr, sizeof(f->addr), "%s", http_addr(f->http));
	cr_assert_eq(pthread_create(&f->thread, NULL, loop_main, f), 0);
}

static void end(struct fixture *f)
{
	loop_stop(&f->loop);
	pthread_join(f->thread, NULL);
}

Test(http, three_pages)
{
	struct fixture f = { .ready = true };
	char a[4096];
	const char *body;
	begin(&f, (struct http_opts){ 0 });
	cr_expect_eq(http_get(f.addr, "GET", "/healthz", a, sizeof(a), &body), 200);
	cr_expect_str_eq(body, "ok\n");
	cr_expect_eq(http_get(f.addr, "GET", "/readyz", a, sizeof(a), &body), 200);
	cr_expect_str_eq(body, "{\"ready\":true,\"reasons\":[]}\n");
	cr_expect(strstr(a, "application/json"));
	cr_expect_eq(http_get(f.addr, "GET", "/metrics", a, sizeof(a), &body), 200);
	cr_expect_str_eq(body, "pomelo_test 1\n");
	cr_expect(strstr(a, "text/plain; version=0.0.4"));
	end(&f);
	cr_expect_eq(f.counters.requests, 3);
	cr_expect_eq(f.counters.errors, 0);
	cr_expect_eq(f.counters.conns_accepted, 3);
	NO_LEAKS();
}

Test(http, not_ready_is_503_with_reasons)
{
	struct fixture f = { .ready = false };
	char a[4096];
	const char *body;
	begin(&f, (struct http_opts){ 0 });
	cr_expect_eq(http_get(f.addr, "GET", "/readyz", a, sizeof(a), &body), 503);
	cr_expect(strstr(body, "test: not yet"));
	cr_expect_eq(http_get(f.addr, "GET", "/healthz", a, sizeof(a), &body), 200);
	end(&f);
	cr_expect_eq(f.counters.errors, 0, "a 503 of readyz is an answer, not an error");
	NO_LEAKS();
}

Test(http, head_has_length_and_no_body)
{
	struct fixture f = { .ready = true };
	char a[4096];
	const char *body;
	begin(&f, (struct http_opts){ 0 });
	cr_expect_eq(http_get(f.addr, "HEAD", "/metrics", a, sizeof(a), &body), 200);
	cr_expect_str_eq(body, "");
	cr_expect(strstr(a, "Content-Length: 14"), "%s", a);
	end(&f);
	NO_LEAKS();
}

Test(http, others_are_404_and_405)
{
	static const char *const methods[] = {
		"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X"
	};
	struct fixture f = { .ready = true };
	char a[4096];
	const char *body;
	begin(&f, (struct http_opts){ 0 });
	cr_expect_eq(http_get(f.addr, "GET", "/", a, sizeof(a), &body), 404);
	cr_expect_eq(http_get(f.addr, "GET", "/metrics/x", a, sizeof(a), &body), 404);
	cr_expect_eq(http_get(f.addr, "GET", "/../etc/passwd", a, sizeof(a), &body), 404);
	for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
		int got = http_get(f.addr, methods[i], "/metrics", a, sizeof(a), &body);
		cr_expect_eq(got, 405, "%s gave %d", methods[i], got);
		cr_expect(strstr(a, "Allow: GET, HEAD"));
	}
	end(&f);
	cr_expect_eq(f.n_metrics, 0);
	cr_expect_eq(f.counters.errors, 3 + ARRAY_LEN(methods));
	NO_LEAKS();
}

Test(http, keep_alive_serves_many)
{
	struct fixture f = { .ready = true };
	char a[1024];
	begin(&f, (struct http_opts){ 0 });
	int fd = tcp_connect(f.addr);
	cr_assert_geq(fd, 0);
	for (int i = 0; i < 50; i++) {
		cr_assert(tcp_send(fd, "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"));
		size_t n = 0;
		a[0] = 0;
		while (!strstr(a, "ok\n")) {
			ssize_t r = recv(fd, a + n, sizeof(a) - 1 - n, 0);
			cr_assert_gt(r, 0);
			n += (size_t)r;
			a[n] = 0;
		}
	}
	close(fd);
	end(&f);
	cr_expect_eq(f.counters.requests, 50);
	cr_expect_eq(f.counters.conns_accepted, 1);
	NO_LEAKS();
}

/* A body bigger than any socket buffer arrives whole. */
Test(http, a_big_answer_arrives_whole)
{
	struct fixture f = { .ready = true, .big = true };
	size_t cap = 4u << 20;
	char *a = malloc(cap);
	const char *body;
	begin(&f, (struct http_opts){ 0 });
	cr_expect_eq(http_get(f.addr, "GET", "/metrics", a, cap, &body), 200);
	cr_expect(strstr(body, "pomelo_row{i=\"49999\"} 1\n"));
	end(&f);
	free(a);
	NO_LEAKS();
}

/* I1: bytes that drip in do not keep a connection beyond request_ms. */
Test(http, slow_loris_is_closed)
{
	struct fixture f = { .ready = true };
	begin(&f, (struct http_opts){ .request_ms = 600 });
	int fd = tcp_connect(f.addr);
	bool closed = false;
	cr_assert(tcp_send(fd, "GET /healthz HTTP/1.1\r\n"));
	for (int i = 0; i < 40 && !closed; i++) {
		tcp_send(fd, "X");
		closed = tcp_closed_within(fd, 100);
	}
	cr_expect(closed, "still open after 4 s");
	close(fd);
	end(&f);
	cr_expect_eq(f.counters.conns_timed_out, 1);
	NO_LEAKS();
}

Test(http, idle_after_an_answer_is_closed)
{
	struct fixture f = { .ready = true };
	begin(&f, (struct http_opts){ .request_ms = 10000, .idle_ms = 300 });
	int fd = tcp_connect(f.addr);
	cr_assert(tcp_send(fd, "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"));
	cr_expect(tcp_closed_within(fd, 4000));
	close(fd);
	end(&f);
	cr_expect_eq(f.counters.requests, 1);
	cr_expect_eq(f.counters.conns_timed_out, 1);
	NO_LEAKS();
}

/* A peer that asks and never reads holds memory no longer than idle_ms and request_ms allow. */
Test(http, a_reader_that_never_reads_is_closed)
{
	struct fixture f = { .ready = true, .big = true };
	begin(&f, (struct http_opts){ .request_ms = 500, .idle_ms = 500 });
	int fd = tcp_connect(f.addr);
	int small = 4096;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	cr_assert(tcp_send(fd, "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n"));
	usleep(1600 * 1000);
	end(&f);
	close(fd);
	cr_expect_eq(f.counters.conns_timed_out, 1);
	cr_expect_eq(f.counters.conns_open, 0);
	NO_LEAKS();
}

/* I1: more idle connections than conns_max: the oldest go, a newcomer is served at once. */
Test(http, newcomers_are_served_when_full)
{
	enum { N = 60, MAX = 20 };
	struct fixture f = { .ready = true };
	int fd[N];
	char a[4096];
	const char *body;
	begin(&f, (struct http_opts){ .conns_max = MAX, .request_ms = 20000 });
	for (int i = 0; i < N; i++) {
		fd[i] = tcp_connect(f.addr);
		cr_assert_geq(fd[i], 0);
	}
	cr_expect_eq(http_get(f.addr, "GET", "/healthz", a, sizeof(a), &body), 200);
	cr_expect(tcp_closed_within(fd[0], 1000), "the oldest went");
	cr_expect_not(tcp_closed_within(fd[N - 1], 50), "the youngest stays");
	for (int i = 0; i < N; i++)
		close(fd[i]);
	end(&f);
	cr_expect_geq(f.counters.conns_evicted, N - MAX);
	cr_expect_leq(f.counters.conns_open, MAX);
	NO_LEAKS();
}

Test(http, garbage_and_huge_headers_are_refused)
{
	struct fixture f = { .ready = true };
	char a[4096];
	const char *body;
	static char big[64 * 1024];
	begin(&f, (struct http_opts){ 0 });
	memset(big, 'a', sizeof(big) - 1);
	for (int i = 0; i < 20; i++) {
		int fd = tcp_connect(f.addr);
		tcp_send(fd,
			 i % 2 ? "\x16\x03\x01\x02\xff\r\n\r\n" : "\r\n\r\nnonsense\r\n\r\n");
		cr_expect(tcp_closed_within(fd, 3000));
		close(fd);
	}
	int fd = tcp_connect(f.addr);
	tcp_send(fd, "GET /healthz HTTP/1.1\r\nX: ");
	tcp_send(fd, big);
	cr_expect(tcp_closed_within(fd, 3000));
	close(fd);
	cr_expect_eq(http_get(f.addr, "GET", "/healthz", a, sizeof(a), &body), 200);
	end(&f);
	NO_LEAKS();
}

Test(http, a_taken_port_is_an_error_or_another)
{
	struct fixture f = { .ready = true };
	struct loop l;
	struct why why = { 0 };
	struct http *h = NULL;
	begin(&f, (struct http_opts){ 0 });
	uint16_t port = (uint16_t)strtoul(strrchr(f.addr, ':') + 1, NULL, 10);
	struct http_opts o = { .bind = "127.0.0.1",
			       .port = port,
			       .ready = on_ready,
			       .metrics = on_metrics,
			       .ctx = &f };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_expect_eq(http_open(&l, &o, &h, &why), ERR_BUSY);
	cr_expect(strstr(why.text, "127.0.0.1") && strstr(why.text, "in use"), "%s", why.text);
	cr_expect_null(h);
	o.any_port_if_taken = true;
	cr_assert_eq(http_open(&l, &o, &h, &why), ERR_NONE);
	cr_expect_str_neq(http_addr(h), f.addr);
	http_close(h, NULL, NULL);
	loop_close(&l);
	end(&f);
	NO_LEAKS();
}

Test(http, a_name_is_no_address)
{
	static const char *const bad[] = { "localhost", "", "1.2.3", "::g", "127.0.0.1:80" };
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct why why = { 0 };
		struct http *h = NULL;
		struct http_opts o = { .bind = bad[i],
				       .ready = on_ready,
				       .metrics = on_metrics };
		cr_expect_eq(http_open(&l, &o, &h, &why), ERR_INVALID_PARAMS, "%s", bad[i]);
		cr_expect(strstr(why.text, "http.bind"), "%s", why.text);
	}
	loop_close(&l);
	NO_LEAKS();
}

static void count_closed(void *arg)
{
	++*(int *)arg;
}

/* Closing with connections in every state leaves nothing. */
Test(http, close_with_open_connections)
{
	struct loop l;
	struct http *h;
	int fd[8], closed = 0;
	struct http_opts o = { .bind = "127.0.0.1", .ready = on_ready, .metrics = on_metrics };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(http_open(&l, &o, &h, NULL), ERR_NONE);
	for (int i = 0; i < 8; i++) {
		fd[i] = tcp_connect(http_addr(h));
		if (i % 2)
			tcp_send(fd[i], "GET /heal");
	}
	for (int i = 0; i < 20; i++)
		loop_run_once(&l, false);
	http_close(h, count_closed, &closed);
	cr_expect_eq(closed, 0, "closed never runs inside http_close");
	loop_close(&l);
	cr_expect_eq(closed, 1);
	for (int i = 0; i < 8; i++) {
		cr_expect(tcp_closed_within(fd[i], 500));
		close(fd[i]);
	}
	NO_LEAKS();
}
