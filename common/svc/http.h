/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-only HTTP of a service: /healthz, /readyz, /metrics (design section 4). libmicrohttpd with
 * no thread of its own: its epoll descriptor is polled by the loop, so every callback runs there.
 *
 * GET and HEAD only: other methods are 405, other paths 404.
 *
 * I1 (B1): connections, memory per connection and the life of a connection are bounded. A request
 *     not finished within request_ms, or a connection idle for idle_ms, is closed whatever bytes
 *     drip in; at conns_max the oldest connection goes, so a newcomer is always served.
 * I2: /healthz answers 200 as long as the loop turns; it says nothing about readiness.
 *
 * Absent in a simulation (loop_uv() is NULL): http_open is ERR_UNSUPPORTED there.
 * Thread: the loop's.
 */
#pragma once

#include "base/buf.h"
#include "base/log.h"
#include "loop/loop.h"

struct http;

struct http_opts {
	const struct log *log; /* borrowed for life */
	const char *bind;      /* "127.0.0.1", "::1", "0.0.0.0"; borrowed for the call */
	uint16_t port;
	bool any_port_if_taken; /* EADDRINUSE on port: any free one */
	uint32_t conns_max;	/* 0: 1024, or a quarter of the descriptor limit */
	uint32_t request_ms;	/* 0: 5000 */
	uint32_t idle_ms;	/* 0: 30000 */

	/* Both append to out; ctx is passed on. ready returns whether it is. */
	bool (*ready)(void *ctx, struct buf *out);
	void (*metrics)(void *ctx, struct buf *out);
	void *ctx;
};

struct http_counters {
	uint64_t requests, errors; /* errors: 4xx and 5xx answers but /readyz's 503 */
	uint64_t conns_open, conns_accepted, conns_timed_out, conns_evicted;
};

/* ERR_BUSY the port is taken, ERR_INVALID_PARAMS the address is no numeric one,
 * ERR_UNSUPPORTED, ERR_NO_MEMORY; why names address and remedy. */
enum err http_open(struct loop *l, const struct http_opts *o, struct http **out,
		   struct why *why) MUST_CHECK;
/* "127.0.0.1:17610", "[::1]:17610"; valid until http_close. */
const char *http_addr(const struct http *h);
void http_counters(const struct http *h, struct http_counters *out);
/* Closes every connection; closed runs later, then h is free. */
void http_close(struct http *h, void (*closed)(void *arg), void *arg);
