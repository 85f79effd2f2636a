/* SPDX-License-Identifier: Apache-2.0 */
#include "pg.h"

#include "metrics.def"

/* ---- rows ---- */

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17614") };
#undef CONF_T
static const struct conf_part conf_parts[] = { SVC_CONF_PART(shared_rows) };
static const struct conf_schema conf = { "pg", conf_parts, ARRAY_LEN(conf_parts),
					 svc_conf_check };

enum { PG_METRICS(METRIC_ENUM) };
static const struct metric_row metric_rows[] = { PG_METRICS(METRIC_ROW) };
static const struct metric_schema metrics = { "pg", metric_rows, ARRAY_LEN(metric_rows) };

/* ---- life ---- */

static enum err on_open(struct svc *s, struct why *why)
{
	return svc_meta_open(&pgc_of(s)->meta, s, NULL, why);
}

static void reasons(struct svc *s, struct svc_reasons *r)
{
	svc_meta_reasons(&pgc_of(s)->meta, r);
}

static uint64_t term(const struct svc *s)
{
	return svc_meta_term(&container_of(s, const struct pgc, svc)->meta);
}

static void scrape(struct svc *s, struct buf *out)
{
	svc_meta_scrape(&pgc_of(s)->meta, s->metrics, PGC_M_TERM);
}

static void on_meta_closed(void *arg)
{
	svc_closed(arg);
}

static void on_close(struct svc *s)
{
	svc_meta_close(&pgc_of(s)->meta, on_meta_closed, s);
}

const struct svc_def pgc_def = {
	.name = "pg",
	.exe = "pomelo-pg-coordinator",
	.about = "Rank states, views and epochs of process groups.",
	.role = ROLE_SERVICE,
	.size = sizeof(struct pgc),
	.needs_master = false,
	.conf = &conf,
	.metrics = &metrics,
	.open = on_open,
	.close = on_close,
	.reasons = reasons,
	.term = term,
	.scrape = scrape,
};
