/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two readings of all services' /metrics and what lies between them, for `pomelo top`. What a service did not
 * tell, or what cannot be compared because it was another run of the process, is NAN: never 0.
 *
 *   top_read ──► was ──┐
 *   top_read ──► now ──┴─► top_between ──► table or JSON
 *
 * Thread: the main one.
 */
#pragma once

#include "run.h"
#include "scrape.h"
#include "services.h"

/* What is read of the master and the agent. Rows: T(id, service, kind, metric). */
/* clang-format off */
#define TOP_METRICS(T) \
	T(TERM,       "master", gauge,   "pomelo_master_term") \
	T(OBJECTS,    "master", gauge,   "pomelo_master_objects") \
	T(COPIES,     "master", gauge,   "pomelo_master_copies") \
	T(ATTEMPTS,   "master", gauge,   "pomelo_master_attempts") \
	T(WAITING,    "master", gauge,   "pomelo_master_calls_waiting") \
	T(RECOVERING, "master", gauge,   "pomelo_master_recovering") \
	T(TOTAL,      "master", gauge,   "pomelo_master_bytes{of=\"total\"}") \
	T(USED,       "master", gauge,   "pomelo_master_bytes{of=\"used\"}") \
	T(QUARANTINE, "master", gauge,   "pomelo_master_bytes{of=\"quarantine\"}") \
	T(PUTS,       "master", counter, "pomelo_master_publishes_total") \
	T(HITS,       "master", counter, "pomelo_master_lookups_total{end=\"hit\"}") \
	T(MISSES,     "master", counter, "pomelo_master_lookups_total{end=\"miss\"}") \
	T(REMOVES,    "master", counter, "pomelo_master_removes_total") \
	T(EVICTIONS,  "master", counter, "pomelo_master_evictions_total") \
	T(TCP_IN,     "agent",  counter, "pomelo_agent_data_bytes_total{dir=\"in\"}") \
	T(TCP_OUT,    "agent",  counter, "pomelo_agent_data_bytes_total{dir=\"out\"}")
/* clang-format on */

enum top_metric {
#define TOP_ID(id, service, kind, metric) TOP_##id,
	TOP_METRICS(TOP_ID)
#undef TOP_ID
		TOP_N
};

/* One service at one time. */
struct top_service {
	struct run_info info; /* pid 0: it does not run */
	bool told;	      /* its page came */
	double ready, rss, requests, errors, busy;
	struct scrape_hist took, late;
	double page_us; /* the page itself, from the call to its end; NAN: not told */
};

struct top_reading {
	uint64_t at_ns;
	struct top_service s[SERVICE_COUNT];
	double m[TOP_N];
};

/* Reads all; a service that does not answer within ms is not told. run_dir: where they are. */
void top_read(const char *run_dir, uint64_t ms, struct top_reading *out);

/* One service between two readings; a second each. */
struct top_row {
	double requests, errors, busy;
	double p50_us, p99_us; /* upper bounds of the buckets that they lie in */
	double late_p99_us;
};

struct top_report {
	double seconds;
	struct top_row s[SERVICE_COUNT];
	double m[TOP_N];  /* gauges: as of now; counters: a second */
	double hit_share; /* of the look-ups in between, 0..1; NAN: there were none */
};

/* Pure. */
void top_between(const struct top_reading *was, const struct top_reading *now,
		 struct top_report *out);
