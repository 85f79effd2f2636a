/* SPDX-License-Identifier: Apache-2.0 */
#include "top.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

enum kind { KIND_gauge, KIND_counter };

static const struct row {
	const char *service;
	enum kind kind;
	const char *metric;
} rows[TOP_N] = {
#define TOP_ROW(id, service, kind, metric) { service, KIND_##kind, metric },
	TOP_METRICS(TOP_ROW)
#undef TOP_ROW
};

/* ---- reading ---- */

static double value(struct bytes page, const char *name)
{
	double v;
	return scrape_value(page, name, &v) ? v : NAN;
}

/* A process that holds its pid file and has written where it is. */
static void find(const char *run_dir, const char *name, struct top_service *s)
{
	pid_t pid = 0;
	if (run_holder(run_dir, name, &pid) != ERR_NONE)
		return;
	if (run_read(run_dir, name, &s->info) != ERR_NONE || s->info.pid != pid)
		s->info = (struct run_info){ .pid = pid };
}

static void take(struct top_service *s, const struct scrape *x)
{
	struct bytes page = buf_bytes(&x->answer);
	s->told = x->ok;
	if (!x->ok)
		return;
	s->page_us = (double)x->took_ns / 1e3;
	s->ready = value(page, "pomelo_ready");
	s->rss = value(page, "pomelo_resident_bytes");
	s->requests = value(page, "pomelo_rpc_requests_total");
	s->errors = value(page, "pomelo_rpc_errors_total");
	s->busy = value(page, "pomelo_rpc_busy_total");
	(void)scrape_hist(page, "pomelo_rpc_seconds", &s->took);
	(void)scrape_hist(page, "pomelo_loop_late_seconds", &s->late);
}

void top_read(const char *run_dir, uint64_t ms, struct top_reading *out)
{
	struct scrape x[SERVICE_COUNT] = { 0 };
	static_assert((int)SERVICE_COUNT <= (int)SCRAPE_AT_ONCE, "one page each");
	*out = (struct top_reading){ 0 };
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		struct top_service *s = &out->s[i];
		s->ready = s->rss = s->requests = s->errors = s->busy = s->page_us = NAN;
		find(run_dir, service_rows[i].name, s);
		x[i].addr = s->info.http;
		x[i].path = "/metrics";
	}
	scrape_all(x, SERVICE_COUNT, ms);
	out->at_ns = clock_real.now_ns(&clock_real);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		take(&out->s[i], &x[i]);
		for (size_t k = 0; k < TOP_N; k++)
			if (strcmp(rows[k].service, service_rows[i].name) == 0)
				out->m[k] =
					x[i].ok ? value(buf_bytes(&x[i].answer), rows[k].metric)
						: NAN;
		scrape_fini(&x[i]);
	}
}

/* ---- between two of them ---- */

static double rate(double was, double now, double seconds)
{
	return now >= was && seconds > 0 ? (now - was) / seconds : NAN;
}

static double quantile_us(const struct scrape_hist *was, const struct scrape_hist *now,
			  double share)
{
	double s;
	return scrape_quantile(was, now, share, &s) ? s * 1e6 : NAN;
}

static bool same_run(const struct top_service *was, const struct top_service *now)
{
	return was->told && now->told && strcmp(was->info.instance, now->info.instance) == 0;
}

static struct top_row row_of(const struct top_service *was, const struct top_service *now,
			     double seconds)
{
	if (!same_run(was, now))
		return (struct top_row){ NAN, NAN, NAN, NAN, NAN, NAN };
	return (struct top_row){
		.requests = rate(was->requests, now->requests, seconds),
		.errors = rate(was->errors, now->errors, seconds),
		.busy = rate(was->busy, now->busy, seconds),
		.p50_us = quantile_us(&was->took, &now->took, 0.5),
		.p99_us = quantile_us(&was->took, &now->took, 0.99),
		.late_p99_us = quantile_us(&was->late, &now->late, 0.99),
	};
}

void top_between(const struct top_reading *was, const struct top_reading *now,
		 struct top_report *out)
{
	*out = (struct top_report){ .seconds = (double)(now->at_ns - was->at_ns) / 1e9 };
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		out->s[i] = row_of(&was->s[i], &now->s[i], out->seconds);
		for (size_t k = 0; k < TOP_N; k++) {
			if (strcmp(rows[k].service, service_rows[i].name) != 0)
				continue;
			out->m[k] = now->m[k];
			if (rows[k].kind == KIND_counter)
				out->m[k] = same_run(&was->s[i], &now->s[i])
						    ? rate(was->m[k], now->m[k], out->seconds)
						    : NAN;
		}
	}
	double all = out->m[TOP_HITS] + out->m[TOP_MISSES];
	out->hit_share = all > 0 ? out->m[TOP_HITS] / all : NAN;
}
