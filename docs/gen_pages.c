/* SPDX-License-Identifier: Apache-2.0 */
/*
 * docs/errors.md, docs/configuration.md, docs/metrics.md, docs/wire.md from the rows in the source.
 * Schemas with a mistake in them make no page. Usage: page.h.
 */
#include "page.h"

#include <stdio.h>

#include "base/conf.h"
#include "base/metric.h"
#include "proto/wire_page.h"
#include "services.h"

#define SERVICES_MAX 16

static void write_errors(struct page_run *r)
{
	static const char *const retry[] = {
		[ERR_RETRY_NEVER] = "nobody: it would fail the same way",
		[ERR_RETRY_AFTER] = "the same request, after `retry_ms`",
		[ERR_RETRY_OTHER] = "the same request at another peer",
		[ERR_RETRY_REDO] = "the caller starts the operation again",
	};
	struct buf b = BUF_INIT(PAGE_BYTES_MAX);
	buf_printf(
		&b,
		"<!-- Written by `meson compile -C build pages` from common/base/err.h. -->\n"
		"# Errors\n\nNumbers are the wire's and never change: 1 common, 100 store, 200 "
		"holder, 300 weights,\n400 groups, 500 expert parallelism.\n\n"
		"| number | name | meaning | who may try again | Mooncake's name |\n"
		"|---|---|---|---|---|\n");
#define ERR_LINE(name, number, retry_, text, mooncake)                          \
	buf_printf(&b, "| %d | `%s` | %s | %s | `%s` |\n", number, #name, text, \
		   number == 0 ? "" : retry[ERR_RETRY_##retry_], mooncake);
	ERR_TABLE(ERR_LINE)
#undef ERR_LINE
	page_put(r, "errors.md", &b);
}

static bool good(enum err e, const struct why *w)
{
	if (e)
		fprintf(stderr, "%s\n", w->text);
	return e == ERR_NONE;
}

static void write_settings(struct page_run *r)
{
	const struct conf_schema *all[SERVICES_MAX + 3] = {
#define SCHEMA(tag, name, exe, folder) tag##_def.conf,
		SERVICES(SCHEMA)
#undef SCHEMA
			& client_schema,
		&up_schema,
	};
	size_t n = 0;
	struct buf b = BUF_INIT(PAGE_BYTES_MAX);
	for (; all[n]; n++) {
		struct why w = { 0 };
		r->n_stale += !good(conf_schema_check(all[n], &w), &w);
	}
	if (n > 0)
		conf_page(all, n, &b);
	if (n > 0)
		page_put(r, "configuration.md", &b);
}

static void write_metrics(struct page_run *r)
{
	const struct metric_schema *const listed[] = { &svc_metric_schema,
#define SCHEMA(tag, name, exe, folder) tag##_def.metrics,
						       SERVICES(SCHEMA)
#undef SCHEMA
	};
	const struct metric_schema *all[SERVICES_MAX + 1];
	size_t n = 0;
	struct buf b = BUF_INIT(PAGE_BYTES_MAX);
	for (size_t i = 0; i < ARRAY_LEN(listed); i++) {
		struct why w = { 0 };
		if (!listed[i])
			continue; /* a service with the shared ones alone */
		all[n++] = listed[i];
		r->n_stale += !good(metric_schema_check(listed[i], &w), &w);
	}
	metric_page(all, n, &b);
	page_put(r, "metrics.md", &b);
}

static void write_wire(struct page_run *r)
{
	struct buf b = BUF_INIT(PAGE_BYTES_MAX);
	buf_printf(&b,
		   "<!-- Written by `meson compile -C build pages` from proto/*.def. -->\n");
	wire_page(&b);
	page_put(r, "wire.md", &b);
}

int main(int argc, char **argv)
{
	struct page_run r;
	if (!page_begin(&r, argc, argv))
		return 2;
	write_errors(&r);
	write_settings(&r);
	write_metrics(&r);
	write_wire(&r);
	return page_end(&r);
}
