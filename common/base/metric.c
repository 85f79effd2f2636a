/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cells of a metric: one value for each value of its label; a histogram has, for each, a count per
 * bucket, one above the last bound, and the sum. All in one array of relaxed atomics.
 */
#include "base/metric.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define BUCKETS_MAX   16
#define LABELS_MAX    64
#define FULL_NAME_MAX 100

struct shape {
	size_t first;	    /* its first cell */
	unsigned n_labels;  /* at least 1 */
	unsigned n_buckets; /* 0 but for a histogram */
	uint64_t bounds[BUCKETS_MAX];
};

struct metrics {
	const struct metric_schema *schema;
	struct shape *shapes;
	_Atomic uint64_t cells[];
};

/* ---- rows as text ---- */

/* Cells that one label value takes. */
static size_t stride(const struct shape *s)
{
	return s->n_buckets ? s->n_buckets + 2u : 1u;
}

/* The i-th value of "label=a|b|c"; false past the end. */
static bool label_value(const char *label, unsigned i, struct bytes *out)
{
	const char *p = strchr(label, '=');
	if (!p)
		return false;
	for (p++; i > 0; i--) {
		p = strchr(p, '|');
		if (!p)
			return false;
		p++;
	}
	*out = BYTES(p, strcspn(p, "|"));
	return true;
}

/* False when the text is no list of ascending numbers. */
static bool parse_buckets(const char *text, struct shape *s)
{
	while (*text) {
		char *end;
		uint64_t v = strtoull(text, &end, 10);
		if (end == text || (*end && *end != ' ') || s->n_buckets == BUCKETS_MAX ||
		    (s->n_buckets && v <= s->bounds[s->n_buckets - 1]))
			return false;
		s->bounds[s->n_buckets++] = v;
		text = end + (*end == ' ');
	}
	return true;
}

static bool shape_of(const struct metric_row *r, struct shape *out)
{
	struct bytes v;
	*out = (struct shape){ 0 };
	while (label_value(r->label, out->n_labels, &v)) {
		out->n_labels++;
		if (v.n == 0)
			return false;
	}
	if (out->n_labels > LABELS_MAX || (*r->label && out->n_labels == 0))
		return false;
	out->n_labels = MAX_OF(out->n_labels, 1u);
	if ((r->kind == METRIC_histogram) != (*r->buckets != '\0'))
		return false;
	return parse_buckets(r->buckets, out);
}

/* What a passed value is divided by to be exported. */
static double divisor(const char *unit)
{
	return strcmp(unit, "ms") == 0	 ? 1e3
	       : strcmp(unit, "us") == 0 ? 1e6
	       : strcmp(unit, "ns") == 0 ? 1e9
					 : 1;
}

static void full_name(const struct metric_schema *s, const struct metric_row *r,
		      char out[FULL_NAME_MAX])
{
	snprintf(out, FULL_NAME_MAX, "pomelo_%s%s%s", s->prefix, *s->prefix ? "_" : "",
		 r->name);
}

static bool ends_with(const char *s, const char *tail)
{
	size_t n = strlen(s), m = strlen(tail);
	return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Prometheus' naming rules, so that nobody has to guess units. */
static const char *name_problem(const struct metric_row *r)
{
	size_t n = strlen(r->name);
	if (n == 0 || n > 60 || strspn(r->name, "abcdefghijklmnopqrstuvwxyz0123456789_") != n)
		return "a name is 1..60 of a-z 0-9 _";
	if ((r->kind == METRIC_counter) != ends_with(r->name, "_total"))
		return "counters, and they alone, end in _total";
	if (divisor(r->unit) != 1 && !strstr(r->name, "seconds"))
		return "times are exported in seconds: say so in the name";
	if (strcmp(r->unit, "bytes") == 0 && !strstr(r->name, "bytes"))
		return "bytes must be in the name";
	if (*r->unit && divisor(r->unit) == 1 && strcmp(r->unit, "bytes") != 0)
		return "the unit is none of: bytes ms us ns";
	return NULL;
}

enum err metric_schema_check(const struct metric_schema *s, struct why *w)
{
	struct shape shape;
	for (size_t i = 0; i < s->n; i++) {
		const struct metric_row *r = &s->rows[i];
		const char *problem = name_problem(r);
		if (problem)
			return why_set(w, ERR_INTERNAL, "metric %s: %s", r->name, problem);
		if (!*r->doc)
			return why_set(w, ERR_INTERNAL, "metric %s: says nothing", r->name);
		if (!shape_of(r, &shape))
			return why_set(w, ERR_INTERNAL, "metric %s: label or buckets are wrong",
				       r->name);
		for (size_t k = 0; k < i; k++)
			if (strcmp(s->rows[k].name, r->name) == 0)
				return why_set(w, ERR_INTERNAL, "metric %s: listed twice",
					       r->name);
	}
	return ERR_NONE;
}

/* ---- values ---- */

enum err metrics_new(const struct metric_schema *s, struct metrics **out)
{
	struct shape *shapes = calloc(s->n + 1, sizeof(*shapes));
	size_t n = 0;
	if (!shapes)
		return ERR_NO_MEMORY;
	for (size_t i = 0; i < s->n; i++) {
		bool ok = shape_of(&s->rows[i], &shapes[i]);
		assert(ok);
		(void)ok;
		shapes[i].first = n;
		n += stride(&shapes[i]) * shapes[i].n_labels;
	}
	struct metrics *m = calloc(1, sizeof(*m) + n * sizeof(m->cells[0]));
	if (!m) {
		free(shapes);
		return ERR_NO_MEMORY;
	}
	m->schema = s;
	m->shapes = shapes;
	*out = m;
	return ERR_NONE;
}

void metrics_free(struct metrics *m)
{
	if (!m)
		return;
	free(m->shapes);
	free(m);
}

static _Atomic uint64_t *cell_of(struct metrics *m, unsigned id, unsigned cell)
{
	assert(id < m->schema->n && cell < m->shapes[id].n_labels);
	return &m->cells[m->shapes[id].first + cell * stride(&m->shapes[id])];
}

void metric_add(struct metrics *m, unsigned id, unsigned cell, uint64_t n)
{
	_Atomic uint64_t *c = cell_of(m, id, cell);
	assert(m->schema->rows[id].kind == METRIC_counter);
	atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

void metric_set(struct metrics *m, unsigned id, unsigned cell, int64_t v)
{
	_Atomic uint64_t *c = cell_of(m, id, cell);
	assert(m->schema->rows[id].kind == METRIC_gauge);
	atomic_store_explicit(c, (uint64_t)v, memory_order_relaxed);
}

void metric_shift(struct metrics *m, unsigned id, unsigned cell, int64_t by)
{
	_Atomic uint64_t *c = cell_of(m, id, cell);
	assert(m->schema->rows[id].kind == METRIC_gauge);
	atomic_fetch_add_explicit(c, (uint64_t)by, memory_order_relaxed);
}

void metric_observe(struct metrics *m, unsigned id, unsigned cell, uint64_t v)
{
	_Atomic uint64_t *c = cell_of(m, id, cell);
	const struct shape *s = &m->shapes[id];
	unsigned b = 0;
	assert(m->schema->rows[id].kind == METRIC_histogram);
	while (b < s->n_buckets && v > s->bounds[b])
		b++;
	atomic_fetch_add_explicit(&c[b], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&c[s->n_buckets + 1], v, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *c)
{
	return atomic_load_explicit(c, memory_order_relaxed);
}

uint64_t metric_get(const struct metrics *m, unsigned id, unsigned cell)
{
	assert(id < m->schema->n && cell < m->shapes[id].n_labels);
	const struct shape *s = &m->shapes[id];
	const _Atomic uint64_t *c = &m->cells[s->first + cell * stride(s)];
	uint64_t n = 0;
	if (!s->n_buckets)
		return load(c);
	for (unsigned b = 0; b <= s->n_buckets; b++)
		n += load(&c[b]);
	return n;
}

/* ---- text ---- */

void metric_head(struct buf *out, const char *name, enum metric_kind kind, const char *doc)
{
	static const char *const kinds[] = { "counter", "gauge", "histogram" };
	buf_printf(out, "# HELP %s ", name);
	for (; *doc; doc++)
		buf_printf(out, *doc == '\n' ? "\\n" : *doc == '\\' ? "\\\\" : "%c", *doc);
	buf_printf(out, "\n# TYPE %s %s\n", name, kinds[kind]);
}

void metric_line(struct buf *out, const char *name, const char *labels, double v)
{
	buf_printf(out, "%s", name);
	if (*labels)
		buf_printf(out, "{%s}", labels);
	if (isnan(v))
		buf_printf(out, " NaN\n");
	else if (isinf(v))
		buf_printf(out, " %cInf\n", v > 0 ? '+' : '-');
	else if (fabs(v) < 9e15 && v == (double)(int64_t)v)
		buf_printf(out, " %.0f\n", v);
	else
		buf_printf(out, " %.15g\n", v);
}

void metric_label(struct buf *out, const char *label, struct bytes value)
{
	buf_printf(out, "%s=\"", label);
	for (size_t i = 0; i < value.n; i++) {
		uint8_t c = value.p[i];
		if (c == '"' || c == '\\')
			buf_printf(out, "\\%c", c);
		else if (c == '\n')
			buf_printf(out, "\\n");
		else
			buf_printf(out, "%c", c < 0x20 || c == 0x7f ? '?' : c);
	}
	buf_printf(out, "\"");
}

/* `name="value"` of a cell, "" without label, into text. */
static void cell_label(const struct metric_row *r, unsigned cell, char *text, size_t cap)
{
	struct bytes v;
	text[0] = '\0';
	if (label_value(r->label, cell, &v))
		snprintf(text, cap, "%.*s=\"%.*s\"", (int)strcspn(r->label, "="), r->label,
			 (int)v.n, (const char *)v.p);
}

static void print_value(struct buf *out, const struct metric_row *r, const char *name,
			const char *labels, uint64_t v)
{
	double d = divisor(r->unit);
	if (d != 1) {
		metric_line(out, name, labels, (double)v / d);
		return;
	}
	buf_printf(out, "%s%s%s%s ", name, *labels ? "{" : "", labels, *labels ? "}" : "");
	if (r->kind == METRIC_gauge)
		buf_printf(out, "%lld\n", (long long)v);
	else
		buf_printf(out, "%llu\n", (unsigned long long)v);
}

static void print_histogram(struct buf *out, const struct metric_row *r, const struct shape *s,
			    const _Atomic uint64_t *c, const char *name, const char *labels)
{
	char line[FULL_NAME_MAX + 16];
	uint64_t n = 0;
	const char *comma = *labels ? "," : "";
	for (unsigned b = 0; b < s->n_buckets; b++) {
		n += load(&c[b]);
		buf_printf(out, "%s_bucket{%s%sle=\"%.12g\"} %llu\n", name, labels, comma,
			   (double)s->bounds[b] / divisor(r->unit), (unsigned long long)n);
	}
	n += load(&c[s->n_buckets]);
	buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma,
		   (unsigned long long)n);
	snprintf(line, sizeof(line), "%s_sum", name);
	print_value(out, r, line, labels, load(&c[s->n_buckets + 1]));
	snprintf(line, sizeof(line), "%s_count", name);
	metric_line(out, line, labels, (double)n);
}

void metrics_print(const struct metrics *m, struct buf *out)
{
	char name[FULL_NAME_MAX], labels[160];
	for (size_t i = 0; i < m->schema->n; i++) {
		const struct metric_row *r = &m->schema->rows[i];
		const struct shape *s = &m->shapes[i];
		full_name(m->schema, r, name);
		metric_head(out, name, r->kind, r->doc);
		for (unsigned cell = 0; cell < s->n_labels; cell++) {
			const _Atomic uint64_t *c = &m->cells[s->first + cell * stride(s)];
			cell_label(r, cell, labels, sizeof(labels));
			if (r->kind == METRIC_histogram)
				print_histogram(out, r, s, c, name, labels);
			else
				print_value(out, r, name, labels, load(c));
		}
	}
}

/* ---- the page ---- */

static void page_row(const struct metric_schema *s, const struct metric_row *r, struct buf *out)
{
	static const char *const kinds[] = { "counter", "gauge", "histogram" };
	char name[FULL_NAME_MAX];
	full_name(s, r, name);
	buf_printf(out, "| `%s` | %s | %s | ", name, kinds[r->kind],
		   divisor(r->unit) != 1 ? "seconds" : r->unit);
	for (const char *p = r->label; *p; p++)
		buf_printf(out, *p == '=' ? ": " : *p == '|' ? ", " : "%c", *p);
	buf_printf(out, " | %s", r->doc);
	if (r->kind == METRIC_histogram)
		buf_printf(out, " (bounds in %s: %s)", *r->unit ? r->unit : "units",
			   r->buckets);
	buf_printf(out, " |\n");
}

void metric_page(const struct metric_schema *const *schemas, size_t n, struct buf *out)
{
	buf_printf(
		out,
		"<!-- Written by `meson compile -C build pages` from the rows in the source. -->\n"
		"# Metrics\n\nEach service exports these at `/metrics` of its HTTP port, as\n"
		"Prometheus text. Counters start at 0 with the process.\n");
	for (size_t s = 0; s < n; s++) {
		buf_printf(out, "\n## %s\n\n| name | kind | unit | label | meaning |\n",
			   *schemas[s]->prefix ? schemas[s]->prefix : "All services");
		buf_printf(out, "|---|---|---|---|---|\n");
		for (size_t i = 0; i < schemas[s]->n; i++)
			page_row(schemas[s], &schemas[s]->rows[i], out);
	}
}
