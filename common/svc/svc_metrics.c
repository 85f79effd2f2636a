/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared metrics: what others count (rpc, pool, beats, http) is copied at each scrape, so a
 * gauge is always a recount (C3).
 */
#include "svc/svc_priv.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop/pool.h"
#include "svc/beat.h"
#include "svc/metrics.def"

enum { SVC_METRICS(METRIC_ENUM) };
static const struct metric_row rows[] = { SVC_METRICS(METRIC_ROW) };
const struct metric_schema svc_metric_schema = { "", rows, ARRAY_LEN(rows) };

/* A counter that somebody else keeps: raised to what it is now. */
static void follow(struct metrics *m, unsigned id, unsigned cell, uint64_t now)
{
	uint64_t was = metric_get(m, id, cell);
	if (now > was)
		metric_add(m, id, cell, now - was);
}

static void rpc_copy(struct svc *s, struct metrics *m)
{
	struct rpc_counters c;
	rpc_server_counters(s->rpc, &c);
	follow(m, SVC_M_REQUESTS, 0, c.requests);
	follow(m, SVC_M_REPLIES, 0, c.replies);
	follow(m, SVC_M_ERRORS, 0, c.errors);
	follow(m, SVC_M_BUSY, 0, c.busy);
	follow(m, SVC_M_EXPIRED, 0, c.expired);
	follow(m, SVC_M_CONNS, 0, c.conns_accepted);
	follow(m, SVC_M_CONNS, 1, c.conns_refused);
	follow(m, SVC_M_CONNS, 2, c.conns_dropped);
	follow(m, SVC_M_REFUSED, 0, c.bad_frames);
	follow(m, SVC_M_REFUSED, 1, c.bad_macs);
	follow(m, SVC_M_REFUSED, 2, c.replays);
	follow(m, SVC_M_REFUSED, 3, c.hello_failed);
	follow(m, SVC_M_BYTES, 0, c.bytes_in);
	follow(m, SVC_M_BYTES, 1, c.bytes_out);
	metric_set(m, SVC_M_CONNS_OPEN, 0, (int64_t)c.conns_open);
	metric_set(m, SVC_M_SESSIONS, 0, (int64_t)c.sessions);
	metric_set(m, SVC_M_INFLIGHT, 0, (int64_t)c.inflight);
	metric_set(m, SVC_M_PARKED, 0, (int64_t)c.parked);
	metric_set(m, SVC_M_HELD, 0, (int64_t)c.bytes_queued);
	metric_set(m, SVC_M_HELD, 1, (int64_t)c.bytes_parked);
}

static void beats_copy(const struct svc *s, struct metrics *m)
{
	struct beat_sender_counters c;
	beat_sender_counters(s->beats, &c);
	follow(m, SVC_M_BEATS, 0, c.sent);
	follow(m, SVC_M_BEATS, 1, c.send_errors);
	follow(m, SVC_M_BEATS, 2, c.acked);
	follow(m, SVC_M_BEATS, 3, c.bad);
}

static void http_copy(const struct svc *s, struct metrics *m)
{
	struct http_counters c;
	http_counters(s->http, &c);
	follow(m, SVC_M_HTTP, 0, c.requests - c.errors);
	follow(m, SVC_M_HTTP, 1, c.errors);
	follow(m, SVC_M_HTTP_CONNS, 0, c.conns_accepted);
	follow(m, SVC_M_HTTP_CONNS, 1, c.conns_timed_out);
	follow(m, SVC_M_HTTP_CONNS, 2, c.conns_evicted);
	metric_set(m, SVC_M_HTTP_OPEN, 0, (int64_t)c.conns_open);
}

uint64_t svc_rss_bytes(void)
{
	unsigned long long size, resident;
	FILE *f = fopen("/proc/self/statm", "re");
	int n = f ? fscanf(f, "%llu %llu", &size, &resident) : 0;
	if (f)
		fclose(f);
	return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* Since Linux 6.2 the size of the folder is the count; before, its entries are counted. */
static uint64_t fds_open(void)
{
	struct stat st;
	uint64_t n = 0;
	if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
		return (uint64_t)st.st_size;
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n > 3 ? n - 3 : 0; /* "." ".." and its own */
}

static void process_copy(struct svc *s, struct metrics *m)
{
	struct svc_reasons r;
	svc_reasons(s, &r);
	metric_set(m, SVC_M_BUILD, 0, 1);
	metric_set(m, SVC_M_READY, 0, r.n == 0);
	follow(m, SVC_M_TURNS, 0, __atomic_load_n(&s->loop->turns, __ATOMIC_RELAXED));
	follow(m, SVC_M_JOBS, 0, pool_progress(s->pool));
	metric_set(m, SVC_M_JOBS_NOW, 0, pool_queued(s->pool));
	metric_set(m, SVC_M_JOBS_NOW, 1, pool_running(s->pool));
	metric_set(m, SVC_M_OPS, 0, s->ops.n);
	metric_set(m, SVC_M_UPTIME, 0,
		   (int64_t)((loop_now_ns(s->loop) - s->started_ns) / NS_PER_MS));
	if (!loop_uv(s->loop))
		return; /* the simulation's process is not ours */
	metric_set(m, SVC_M_RSS, 0, (int64_t)svc_rss_bytes());
	metric_set(m, SVC_M_FDS, 0, (int64_t)fds_open());
}

void svc_metrics_late(struct svc *s, uint64_t late_ns)
{
	metric_observe(s->shared_metrics, SVC_M_LATE, 0, late_ns / 1000);
}

void svc_metrics_took(void *arg, uint64_t ns)
{
	struct svc *s = arg;
	metric_observe(s->shared_metrics, SVC_M_TOOK, 0, ns / 1000);
}

void svc_metrics_print(struct svc *s, struct buf *out)
{
	struct metrics *m = s->shared_metrics;
	rpc_copy(s, m);
	process_copy(s, m);
	if (s->beats)
		beats_copy(s, m);
	if (s->http)
		http_copy(s, m);
	metrics_print(m, out);
	if (s->def->scrape)
		s->def->scrape(s, out);
	if (s->metrics)
		metrics_print(s->metrics, out);
}
