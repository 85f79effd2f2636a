/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics: rows, values, Prometheus text, the page. */
#include "base/metric.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>

#include "tests/support/leak.h"

/* clang-format off */
#define SAMPLE(F) \
	F(counter,   M_PUTS,    "puts_total",        "",      "result=ok|busy|failed", "", "puts that ended") \
	F(counter,   M_BYTES,   "put_bytes_total",   "bytes", "", "", "payload bytes") \
	F(gauge,     M_OBJECTS, "objects",           "",      "", "", "objects, \\ counted") \
	F(histogram, M_GET,     "get_seconds",       "us",    "", "10 100 1000", "time of a get") \
	F(histogram, M_SIZE,    "batch_items",       "",      "kind=get|put", "1 8", "items in a batch") \
	F(counter,   M_WAIT,    "wait_seconds_total", "ns",   "", "", "time waited")
/* clang-format on */
enum { SAMPLE(METRIC_ENUM) M_N };
static const struct metric_row rows[] = { SAMPLE(METRIC_ROW) };
static const struct metric_schema schema = { "master", rows, ARRAY_LEN(rows) };

static char *text_of(struct buf *b)
{
	buf_put(b, "", 1);
	cr_assert_eq(buf_err(b), ERR_NONE);
	return (char *)b->p;
}

Test(metric, rows_are_right, .timeout = 5)
{
	struct why w = { 0 };
	cr_assert_eq(ARRAY_LEN(rows), M_N);
	cr_expect_eq(metric_schema_check(&schema, &w), ERR_NONE, "%s", w.text);
}

Test(metric, values, .timeout = 5)
{
	struct metrics *m;
	cr_assert_eq(metrics_new(&schema, &m), ERR_NONE);
	metric_inc(m, M_PUTS);
	metric_add(m, M_PUTS, 2, 5);
	metric_set(m, M_OBJECTS, 0, 10);
	metric_shift(m, M_OBJECTS, 0, -13);
	metric_observe(m, M_GET, 0, 10);
	metric_observe(m, M_GET, 0, 11);
	cr_expect_eq(metric_get(m, M_PUTS, 0), 1);
	cr_expect_eq(metric_get(m, M_PUTS, 1), 0);
	cr_expect_eq(metric_get(m, M_PUTS, 2), 5);
	cr_expect_eq((int64_t)metric_get(m, M_OBJECTS, 0), -3);
	cr_expect_eq(metric_get(m, M_GET, 0), 2);
	metrics_free(m);
	metrics_free(NULL);
	NO_LEAKS();
}

Test(metric, prometheus_text, .timeout = 5)
{
	struct metrics *m;
	struct buf b = BUF_INIT(1 << 16);
	cr_assert_eq(metrics_new(&schema, &m), ERR_NONE);
	metric_add(m, M_PUTS, 1, 7);
	metric_add(m, M_BYTES, 0, UINT64_MAX);
	metric_set(m, M_OBJECTS, 0, -3);
	metric_observe(m, M_GET, 0, 10); /* on the bound: inside */
	metric_observe(m, M_GET, 0, 500);
	metric_observe(m, M_GET, 0, 1500000);
	metric_observe(m, M_SIZE, 1, 8);
	metric_add(m, M_WAIT, 0, 2500000000);
	metrics_print(m, &b);
	static const char want[] =
		"# HELP pomelo_master_puts_total puts that ended\n"
		"# TYPE pomelo_master_puts_total counter\n"
		"pomelo_master_puts_total{result=\"ok\"} 0\n"
		"pomelo_master_puts_total{result=\"busy\"} 7\n"
		"pomelo_master_puts_total{result=\"failed\"} 0\n"
		"# HELP pomelo_master_put_bytes_total payload bytes\n"
		"# TYPE pomelo_master_put_bytes_total counter\n"
		"pomelo_master_put_bytes_total 18446744073709551615\n"
		"# HELP pomelo_master_objects objects, \\\\ counted\n"
		"# TYPE pomelo_master_objects gauge\n"
		"pomelo_master_objects -3\n"
		"# HELP pomelo_master_get_seconds time of a get\n"
		"# TYPE pomelo_master_get_seconds histogram\n"
		"pomelo_master_get_seconds_bucket{le=\"1e-05\"} 1\n"
		"pomelo_master_get_seconds_bucket{le=\"0.0001\"} 1\n"
		"pomelo_master_get_seconds_bucket{le=\"0.001\"} 2\n"
		"pomelo_master_get_seconds_bucket{le=\"+Inf\"} 3\n"
		"pomelo_master_get_seconds_sum 1.50051\n"
		"pomelo_master_get_seconds_count 3\n"
		"# HELP pomelo_master_batch_items items in a batch\n"
		"# TYPE pomelo_master_batch_items histogram\n"
		"pomelo_master_batch_items_bucket{kind=\"get\",le=\"1\"} 0\n"
		"pomelo_master_batch_items_bucket{kind=\"get\",le=\"8\"} 0\n"
		"pomelo_master_batch_items_bucket{kind=\"get\",le=\"+Inf\"} 0\n"
		"pomelo_master_batch_items_sum{kind=\"get\"} 0\n"
		"pomelo_master_batch_items_count{kind=\"get\"} 0\n"
		"pomelo_master_batch_items_bucket{kind=\"put\",le=\"1\"} 0\n"
		"pomelo_master_batch_items_bucket{kind=\"put\",le=\"8\"} 1\n"
		"pomelo_master_batch_items_bucket{kind=\"put\",le=\"+Inf\"} 1\n"
		"pomelo_master_batch_items_sum{kind=\"put\"} 8\n"
		"pomelo_master_batch_items_count{kind=\"put\"} 1\n"
		"# HELP pomelo_master_wait_seconds_total time waited\n"
		"# TYPE pomelo_master_wait_seconds_total counter\n"
		"pomelo_master_wait_seconds_total 2.5\n";
	cr_expect_str_eq(text_of(&b), want);
	buf_fini(&b);
	metrics_free(m);
	NO_LEAKS();
}

Test(metric, lines_by_hand, .timeout = 5)
{
	struct buf b = BUF_INIT(4096), l = BUF_INIT(100);
	metric_head(&b, "pomelo_x", METRIC_gauge, "a\nb");
	metric_label(&l, "holder", BYTES("a\"b\\c\nd\x01", 8));
	metric_line(&b, "pomelo_x", text_of(&l), 3);
	metric_line(&b, "pomelo_x", "", 0.1);
	metric_line(&b, "pomelo_x", "", NAN);
	metric_line(&b, "pomelo_x", "", -INFINITY);
	metric_line(&b, "pomelo_x", "", 1e300);
	cr_expect_str_eq(text_of(&b), "# HELP pomelo_x a\\nb\n# TYPE pomelo_x gauge\n"
				      "pomelo_x{holder=\"a\\\"b\\\\c\\nd?\"} 3\n"
				      "pomelo_x 0.1\npomelo_x NaN\npomelo_x -Inf\n"
				      "pomelo_x 1e+300\n");
	buf_fini(&b);
	buf_fini(&l);
	NO_LEAKS();
}

Test(metric, no_prefix_and_full_buffer, .timeout = 5)
{
	const struct metric_schema shared = { "", rows, 1 };
	struct metrics *m;
	struct buf b = BUF_INIT(1 << 16), small = BUF_INIT(30);
	cr_assert_eq(metrics_new(&shared, &m), ERR_NONE);
	metrics_print(m, &b);
	cr_expect(strstr(text_of(&b), "\npomelo_puts_total{"));
	metrics_print(m, &small);
	cr_expect_eq(buf_err(&small), ERR_TOO_LARGE);
	buf_fini(&b);
	buf_fini(&small);
	metrics_free(m);
	NO_LEAKS();
}

static const struct {
	struct metric_row row;
	const char *word;
} broken[] = {
	{ { METRIC_counter, "puts", "", "", "", "d" }, "_total" },
	{ { METRIC_gauge, "puts_total", "", "", "", "d" }, "_total" },
	{ { METRIC_gauge, "Puts", "", "", "", "d" }, "a-z" },
	{ { METRIC_gauge, "", "", "", "", "d" }, "a-z" },
	{ { METRIC_gauge, "wait", "ms", "", "", "d" }, "seconds" },
	{ { METRIC_gauge, "used", "bytes", "", "", "d" }, "bytes" },
	{ { METRIC_gauge, "used", "pages", "", "", "d" }, "none of" },
	{ { METRIC_gauge, "used", "", "", "", "" }, "says nothing" },
	{ { METRIC_gauge, "used", "", "x", "", "d" }, "label or buckets" },
	{ { METRIC_gauge, "used", "", "x=a||b", "", "d" }, "label or buckets" },
	{ { METRIC_gauge, "used", "", "", "1 2", "d" }, "label or buckets" },
	{ { METRIC_histogram, "h", "", "", "", "d" }, "label or buckets" },
	{ { METRIC_histogram, "h", "", "", "2 1", "d" }, "label or buckets" },
	{ { METRIC_histogram, "h", "", "", "1 x", "d" }, "label or buckets" },
	{ { METRIC_histogram, "h", "", "", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "d" },
	  "label or buckets" },
};

Test(metric, mistakes_are_found, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
		const struct metric_schema s = { "m", &broken[i].row, 1 };
		struct why w = { 0 };
		cr_expect_eq(metric_schema_check(&s, &w), ERR_INTERNAL, "%zu", i);
		cr_expect(strstr(w.text, broken[i].word), "%s", w.text);
	}
	const struct metric_row twice[] = { rows[0], rows[0] };
	const struct metric_schema s = { "m", twice, 2 };
	struct why w = { 0 };
	cr_expect_eq(metric_schema_check(&s, &w), ERR_INTERNAL);
	cr_expect(strstr(w.text, "twice"));
}

Test(metric, wrong_cell_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct metrics *m;
	cr_assert_eq(metrics_new(&schema, &m), ERR_NONE);
	metric_add(m, M_PUTS, 3, 1);
}

Test(metric, wrong_kind_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct metrics *m;
	cr_assert_eq(metrics_new(&schema, &m), ERR_NONE);
	metric_set(m, M_PUTS, 0, 1);
}

Test(metric, page, .timeout = 5)
{
	const struct metric_schema shared = { "", rows, 1 };
	const struct metric_schema *const all[] = { &shared, &schema };
	struct buf b = BUF_INIT(1 << 16);
	metric_page(all, 2, &b);
	const char *s = text_of(&b);
	cr_expect(strstr(s, "## All services\n"));
	cr_expect(
		strstr(s,
		       "| `pomelo_master_puts_total` | counter |  | result: ok, busy, failed | "
		       "puts that ended |\n"),
		"%s", s);
	cr_expect(
		strstr(s,
		       "| `pomelo_master_get_seconds` | histogram | seconds |  | time of a get "
		       "(bounds in us: 10 100 1000) |\n"));
	buf_fini(&b);
	NO_LEAKS();
}
