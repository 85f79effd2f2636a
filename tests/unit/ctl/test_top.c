/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of metrics: got from servers of every kind, read, compared; the times of calls. */
#include "ctl_test.h"

#include "measure.h"
#include "top.h"

#include <arpa/inet.h>
#include <math.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- a server that answers once ---- */

struct server {
	int fd;
	char addr[32];
	const char *answer; /* NULL: takes the connection and says nothing */
	pthread_t thread;
};

static void *serve(void *arg)
{
	struct server *s = arg;
	char got[512];
	int c = accept(s->fd, NULL, NULL);
	if (c < 0)
		return NULL;
	(void)!read(c, got, sizeof(got));
	if (s->answer)
		(void)!write(c, s->answer, strlen(s->answer));
	else
		usleep(400000);
	close(c);
	return NULL;
}

static void server_init(struct server *s, const char *answer)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t n = sizeof(at);
	s->answer = answer;
	s->fd = socket(AF_INET, SOCK_STREAM, 0);
	cr_assert_eq(bind(s->fd, (struct sockaddr *)&at, sizeof(at)), 0);
	cr_assert_eq(listen(s->fd, 4), 0);
	cr_assert_eq(getsockname(s->fd, (struct sockaddr *)&at, &n), 0);
	snprintf(s->addr, sizeof(s->addr), "127.0.0.1:%u", ntohs(at.sin_port));
	cr_assert_eq(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void server_fini(struct server *s)
{
	shutdown(s->fd, SHUT_RDWR);
	pthread_join(s->thread, NULL);
	close(s->fd);
}

/* One that stands still costs its own page only; what is no good answer is none. */
Test(top, pages_of_many_at_once, .timeout = 20)
{
	static const char *const answers[] = { "HTTP/1.1 200 OK\r\nX: y\r\n\r\na 1\nb 2\n",
					       NULL, "HTTP/1.1 503 No\r\n\r\na 1\n",
					       "no http at all",
					       "HTTP/1.1 200 OK\r\nnever ends" };
	struct server s[ARRAY_LEN(answers)];
	struct scrape x[ARRAY_LEN(answers) + 3] = { 0 };
	double v = 0;
	for (size_t i = 0; i < ARRAY_LEN(x); i++) {
		if (i < ARRAY_LEN(answers))
			server_init(&s[i], answers[i]);
		x[i].addr = i < ARRAY_LEN(answers)    ? s[i].addr
			    : i == ARRAY_LEN(answers) ? ""
						      : "127.0.0.1:1";
		x[i].path = "/metrics";
	}
	x[ARRAY_LEN(x) - 1].addr = "not an address";
	uint64_t begin = ctl_now_ns();
	scrape_all(x, ARRAY_LEN(x), 200);
	cr_expect_lt(ctl_now_ns() - begin, 2 * NS_PER_S);
	cr_expect(x[0].ok && scrape_value(buf_bytes(&x[0].answer), "b", &v) && v == 2);
	cr_expect_gt(x[0].took_ns, 0);
	for (size_t i = 1; i < ARRAY_LEN(x); i++)
		cr_expect_not(x[i].ok, "%zu", i);
	for (size_t i = 0; i < ARRAY_LEN(x); i++)
		scrape_fini(&x[i]);
	for (size_t i = 0; i < ARRAY_LEN(answers); i++)
		server_fini(&s[i]);
	NO_LEAKS();
}

/* ---- reading ---- */

Test(top, values, .timeout = 10)
{
	static const char text[] =
		"# HELP a b\na_total 5\na 7\nb{of=\"x\"} 1.5e3\nb{of=\"y\"} 2\n"
		"bad 12x\nlast 9";
	struct bytes page = BYTES_STR(text);
	double v = 0;
	cr_expect(scrape_value(page, "a", &v) && v == 7);
	cr_expect(scrape_value(page, "a_total", &v) && v == 5);
	cr_expect(scrape_value(page, "b{of=\"x\"}", &v) && v == 1500);
	cr_expect(scrape_value(page, "last", &v) && v == 9);
	v = 3;
	cr_expect_not(scrape_value(page, "b", &v));
	cr_expect_not(scrape_value(page, "bad", &v));
	cr_expect_not(scrape_value(page, "HELP", &v));
	cr_expect_not(scrape_value(BYTES(NULL, 0), "a", &v));
	cr_expect_eq(v, 3);
}

static struct scrape_hist hist(const char *text)
{
	struct scrape_hist h = { 0 };
	cr_assert(scrape_hist(BYTES_STR(text), "t", &h), "%s", text);
	return h;
}

#define HIST(a, b, c)                                              \
	"t_bucket{le=\"0.001\"} " #a "\nt_bucket{le=\"0.01\"} " #b \
	"\nt_bucket{le=\"+Inf\"} " #c "\n"

Test(top, histograms, .timeout = 10)
{
	struct scrape_hist was = hist(HIST(10, 20, 30)), now = hist(HIST(10, 119, 130)),
			   none = { 0 };
	double v = 0;
	cr_expect_eq(now.n, 3);
	cr_expect(scrape_quantile(&was, &now, 0.5, &v) && v == 0.01);
	cr_expect(scrape_quantile(&was, &now, 0.99, &v) && v == 0.01);
	cr_expect_not(scrape_quantile(&was, &now, 0.999, &v), "beyond the last bound");
	cr_expect_not(scrape_quantile(&was, &was, 0.5, &v), "nothing came");
	cr_expect_not(scrape_quantile(&now, &was, 0.5, &v), "another run");
	cr_expect_not(scrape_quantile(&none, &now, 0.5, &v));
	cr_expect_not(scrape_hist(BYTES_STR("t_bucket{le=\"1\"} 5\n"), "t", &none), "no +Inf");
	cr_expect_not(scrape_hist(BYTES_STR("t_bucket{le=\"1"), "t", &none));
	cr_expect_not(scrape_hist(BYTES_STR(""), "t", &none));
	struct buf b = BUF_INIT(65536);
	for (int i = 0; i <= SCRAPE_BUCKETS; i++)
		buf_printf(&b, "t_bucket{le=\"%d\"} %d\n", i, i);
	buf_printf(&b, "t_bucket{le=\"+Inf\"} 99\n");
	cr_expect_not(scrape_hist(buf_bytes(&b), "t", &none), "more than there is room for");
	buf_fini(&b);
	NO_LEAKS();
}

/* ---- two readings ---- */

static struct top_reading reading(uint64_t at_s, const char *instance, double puts, double hits)
{
	struct top_reading r = { .at_ns = at_s * NS_PER_S };
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		r.s[i].told = true;
		snprintf(r.s[i].info.instance, sizeof(r.s[i].info.instance), "%s", instance);
		r.s[i].requests = 100 * (double)at_s;
	}
	r.m[TOP_OBJECTS] = 42;
	r.m[TOP_PUTS] = puts;
	r.m[TOP_HITS] = hits;
	r.m[TOP_MISSES] = hits;
	return r;
}

Test(top, what_lies_between, .timeout = 10)
{
	struct top_reading was = reading(10, "a", 100, 30), now = reading(12, "a", 300, 90);
	struct top_report r;
	top_between(&was, &now, &r);
	cr_expect_eq(r.seconds, 2);
	cr_expect_eq(r.s[0].requests, 100);
	cr_expect_eq(r.m[TOP_PUTS], 100);
	cr_expect_eq(r.m[TOP_OBJECTS], 42, "a gauge is as it is");
	cr_expect_eq(r.hit_share, 0.5);
	cr_expect(isnan(r.s[0].p99_us), "nothing was told of times");
}

/* What was not measured is not a number: no look-ups, another run, no answer. */
Test(top, what_is_not_known, .timeout = 10)
{
	struct top_reading was = reading(10, "a", 100, 30), now = reading(12, "a", 300, 30);
	struct top_report r;
	top_between(&was, &now, &r);
	cr_expect(isnan(r.hit_share), "no look-up");
	now = reading(12, "b", 500, 90);
	top_between(&was, &now, &r);
	cr_expect(isnan(r.s[0].requests) && isnan(r.m[TOP_PUTS]) && isnan(r.hit_share),
		  "another run");
	cr_expect_eq(r.m[TOP_OBJECTS], 42);
	now = reading(12, "a", 50, 90);
	top_between(&was, &now, &r);
	cr_expect(isnan(r.m[TOP_PUTS]), "a counter that fell");
	now.s[0].told = false;
	top_between(&was, &now, &r);
	cr_expect(isnan(r.s[0].requests) && !isnan(r.s[1].requests), "it does not answer");
}

/* Nobody there: nothing is told, nothing is waited for. */
Test(top, nobody, .timeout = 10)
{
	struct scratch s;
	struct ran r;
	char words[160];
	scratch_init(&s);
	snprintf(words, sizeof(words), "--data %s top --json --interval 100ms",
		 scratch_at(&s, "d"));
	ran_do(&r, cli_cmds, words);
	cr_expect_eq(r.code, EXIT_BUSY_, "%d %s", r.code, r.err);
	cr_expect(strstr(r.err, "nothing runs on the data folder"), "%s", r.err);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}

/* ---- times of calls ---- */

Test(top, times_of_calls, .timeout = 10)
{
	static struct times t, u;
	cr_expect_eq(times_share(&t, 0.5), 0);
	for (uint64_t i = 1; i <= 1000; i++)
		times_add(&t, i * 1000);
	for (uint64_t i = 0; i < 10; i++)
		times_add(&u, 1ull << 60);
	double p50 = times_share(&t, 0.5), p99 = times_share(&t, 0.99);
	cr_expect(p50 > 500e3 * 0.97 && p50 < 500e3 * 1.03, "%g", p50);
	cr_expect(p99 > 990e3 * 0.97 && p99 < 990e3 * 1.03, "%g", p99);
	times_join(&t, &u);
	cr_expect_gt(times_share(&t, 1), 1e9, "what is longer than all is in the last");
	for (uint64_t v = 1; v < 1ull << 40; v = v * 3 + 1) {
		static struct times one;
		memset(&one, 0, sizeof(one));
		times_add(&one, v);
		double got = times_share(&one, 0.5);
		cr_expect(fabs(got - (double)v) <= 0.032 * (double)v, "%lu: %g", v, got);
	}
}

Test(top, a_bench_is_bounded, .timeout = 10)
{
	struct measure_opts o = {
		.op = MEASURE_GET, .clients = 3, .batch = 5, .flights = 7, .bytes = 11
	};
	cr_expect_eq(measure_objects_min(&o), 105);
	cr_expect_eq(measure_buffer_bytes(&o), 1155);
	o.op = MEASURE_EXISTS;
	cr_expect_eq(measure_buffer_bytes(&o), 0);
	o.op = MEASURE_PUT;
	o.bytes = UINT64_MAX / 4;
	cr_expect_eq(measure_buffer_bytes(&o), UINT64_MAX);
}
