/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters, gauges and histograms as rows; Prometheus text 0.0.4 and docs/metrics.md come from the
 * same rows.
 *
 *   #define MASTER_METRICS(F) \
 *           F(counter,   MST_PUTS,    "puts_total",   "",   "result=ok|busy|failed", "", "puts ended") \
 *           F(gauge,     MST_OBJECTS, "objects",      "",   "", "", "objects in the index") \
 *           F(histogram, MST_GET,     "get_seconds",  "us", "", "10 100 1000 10000", "time of a get")
 *   enum { MASTER_METRICS(METRIC_ENUM) };
 *   static const struct metric_row rows[] = { MASTER_METRICS(METRIC_ROW) };
 *   static const struct metric_schema schema = { "master", rows, ARRAY_LEN(rows) };
 *
 * F(kind, id, name, unit, label, buckets, doc)
 *   name     exported as pomelo_PREFIX_NAME
 *   unit     of what code passes in: "" "bytes" "ms" "us" "ns"; times are exported in seconds
 *   label    "" or one label with its fixed values in order: cells are picked by that order
 *   buckets  histogram only: upper bounds in `unit`, ascending, at most 16
 *
 * Metrics that are known only when asked (a recount, C3; one line per holder) are printed by the
 * service through metric_line().
 *
 * Thread: metric_add, _set, _observe, _get any (relaxed atomics); printing any.
 */
#pragma once

#include "base/buf.h"

enum metric_kind { METRIC_counter, METRIC_gauge, METRIC_histogram };

struct metric_row {
	enum metric_kind kind;
	const char *name, *unit, *label, *buckets, *doc;
};

struct metric_schema {
	const char *prefix; /* "master"; "" for what all services share */
	const struct metric_row *rows;
	size_t n;
};

#define METRIC_ENUM(kind, id, name, unit, label, buckets, doc) id,
#define METRIC_ROW(kind, id, name, unit, label, buckets, doc) \
	{ METRIC_##kind, name, unit, label, buckets, doc },

struct metrics;

/* owned, metrics_free(). ERR_NO_MEMORY. Asserts that the rows are right (metric_schema_check). */
enum err metrics_new(const struct metric_schema *s, struct metrics **out) MUST_CHECK;
void metrics_free(struct metrics *m);

/* id: a row of the schema. cell: place of the label's value, 0 without label (both asserted). */
void metric_add(struct metrics *m, unsigned id, unsigned cell, uint64_t n);
/* Gauges only. */
void metric_set(struct metrics *m, unsigned id, unsigned cell, int64_t v);
void metric_shift(struct metrics *m, unsigned id, unsigned cell, int64_t by);
/* Histograms only. */
void metric_observe(struct metrics *m, unsigned id, unsigned cell, uint64_t v);
/* Counter or gauge: the value; histogram: how many were observed. */
uint64_t metric_get(const struct metrics *m, unsigned id, unsigned cell);
static inline void metric_inc(struct metrics *m, unsigned id)
{
	metric_add(m, id, 0, 1);
}

/* All rows of m in Prometheus text. */
void metrics_print(const struct metrics *m, struct buf *out);
/* HELP and TYPE of a metric that is printed by hand, then its lines. labels: "" or
 * `a="b",c="d"` with values escaped by metric_label(). */
void metric_head(struct buf *out, const char *full_name, enum metric_kind kind,
		 const char *doc);
void metric_line(struct buf *out, const char *full_name, const char *labels, double v);
void metric_label(struct buf *out, const char *label, struct bytes value);

enum err metric_schema_check(const struct metric_schema *s, struct why *w) MUST_CHECK;
/* docs/metrics.md. */
void metric_page(const struct metric_schema *const *schemas, size_t n, struct buf *out);
