/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of services' HTTP ports, several at a time, and what stands in a /metrics page. Bounded in bytes and
 * time: a service that stands still costs its own page only.
 *
 * Thread: any; a scrape is its owner's.
 */
#pragma once

#include "base/buf.h"

enum { SCRAPE_BYTES_MAX = 1 << 20, SCRAPE_AT_ONCE = 8, SCRAPE_BUCKETS = 17 };

/* One page that is asked for. */
struct scrape {
	const char *addr;  /* "127.0.0.1:17610", "[::1]:17610"; "": nobody is asked */
	const char *path;  /* "/metrics" */
	struct buf answer; /* owned, scrape_fini(): the body once ok */
	bool ok;	   /* a whole answer with status 200 came in time */
	/* private */
	int fd;
	bool sent;
	uint64_t begin_ns;
	uint64_t took_ns; /* from the first byte sent to the last one read; 0: not ok */
};

/* Asks n of them, at most SCRAPE_AT_ONCE, and waits for all, ms at most. */
void scrape_all(struct scrape *v, size_t n, uint64_t ms);
void scrape_fini(struct scrape *s);

/* ---- a page in Prometheus text ---- */

/* The value of the line that begins with `name` (labels included) and a blank. False: there is none. Pure. */
bool scrape_value(struct bytes page, const char *name, double *out);

/* A histogram, as counters. */
struct scrape_hist {
	size_t n;
	double le
		[SCRAPE_BUCKETS]; /* upper bounds in seconds, ascending; the last is infinite */
	double count[SCRAPE_BUCKETS]; /* of all up to there */
};
/* `name` without _bucket. False: there is none, or it has too many buckets. Pure. */
bool scrape_hist(struct bytes page, const char *name, struct scrape_hist *out);
/*
 * The upper bound of the bucket that the given share (0..1) of what came between two readings lies in, in
 * seconds. False: nothing came, it lies beyond the last bound, or the readings are not of one run. Pure.
 */
bool scrape_quantile(const struct scrape_hist *was, const struct scrape_hist *now, double share,
		     double *out);
