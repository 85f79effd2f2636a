/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket address of a data lane: digits at once, a name on libuv's own threads (style.md section 3 leaves
 * them to that), with a deadline (T7). Whoever asked hears the deadline and forgets the rest; what the
 * resolver says afterwards is dropped.
 *
 * Thread: the loop's. Not in a simulation.
 */
#pragma once

#include <sys/socket.h>

#include "loop/loop.h"

struct xf_addr {
	struct sockaddr_storage sa;
	socklen_t n; /* 0: none */
};

/* "tcp://127.0.0.1:17606" and the like, and localhost. False: it has a name, or is no address. Any thread. */
bool xf_addr_digits(const char *text, struct xf_addr *out);
/* Is it of this very host? Any thread. */
bool xf_addr_is_loopback(const struct xf_addr *a);

struct xf_lookup;

/*
 * Looks a name up. done runs later, once, unless it was dropped; out: until then.
 *
 * ERR_INVALID_PARAMS  text is no tcp address     ERR_NO_MEMORY, ERR_UNREACHABLE   nothing was begun
 * done: ERR_UNREACHABLE no such name; ERR_TIMED_OUT after ms; text: a phrase, borrowed
 */
enum err xf_lookup(struct loop *l, const char *text, uint32_t ms,
		   void (*done)(void *arg, enum err e, const struct xf_addr *a,
				const char *text),
		   void *arg, struct xf_lookup **out) MUST_CHECK;
/* done does not run. */
void xf_lookup_drop(struct xf_lookup *q);
