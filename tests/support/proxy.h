/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on real sockets: a thread between callers and servers that forwards SP streams message by
 * message, and can cut, delay, overtake and reset them. Unix sockets on both sides (ipc://), or TCP on
 * loopback (tcp://127.0.0.1:PORT).
 *
 * A route is one listening address that leads to one server; a link is the pair of numbers (from,
 * to) it goes over, and faults name links. A cut link is not read, as when packets are lost: bytes
 * wait in the kernels, nobody is told, connects succeed and hear nothing.
 *
 * Bounded: PROXY_ROUTES, PROXY_CONNS; a direction holds one message of PROXY_MESSAGE bytes at most, and
 * stops reading beyond PROXY_QUEUE bytes.
 *
 * Thread: calls from the test's; the forwarding has its own.
 */
#pragma once

#include "base/err.h"

#define PROXY_ROUTES  64
#define PROXY_CONNS   512
#define PROXY_MESSAGE (16u << 20)
#define PROXY_QUEUE   (32u << 20)

struct proxy;

/* owned, proxy_free(). Aborts when the machine gives no thread or descriptors: a test is void then. */
struct proxy *proxy_new(uint64_t seed);
void proxy_free(struct proxy *p);

/*
 * Listens at `at` and forwards to `to`, over the link (a, b): a's messages go a -> b. Node numbers: 0..63.
 * at  ipc://PATH, or tcp://127.0.0.1:0; bound gets what it became
 * ERR_EXISTS, ERR_TOO_LARGE (path), ERR_BUSY (routes)
 */
enum err proxy_route(struct proxy *p, const char *at, const char *to, int a, int b, char *bound,
		     size_t bound_size) MUST_CHECK;
/* The same for datagrams, of a unix socket: paths. Only cuts touch them. */
enum err proxy_route_dgrams(struct proxy *p, const char *at, const char *to, int a, int b)
	MUST_CHECK;
/* What `from` sends to `to` does not arrive, or does again. */
void proxy_cut(struct proxy *p, int from, int to, bool cut);
/* For for_ms each message from -> to takes ms more. */
void proxy_delay(struct proxy *p, int from, int to, uint32_t ms, uint32_t for_ms);
/* This share of all messages waits up to 5 ms, and others go ahead of it. */
void proxy_reorder(struct proxy *p, uint32_t ppm);
/* Resets every connection between the two; b negative: of a. */
void proxy_reset(struct proxy *p, int a, int b);

struct proxy_counters {
	uint64_t accepted, messages, overtaken, resets, refused;
};
void proxy_counters(struct proxy *p, struct proxy_counters *out);
