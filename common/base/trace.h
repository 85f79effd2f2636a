/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last events of one thread in memory, for after a failure: cheap enough to stay on. An event
 * is a literal and two numbers; no texts are built until it is printed.
 * Thread: its owner's.
 */
#pragma once

#include "base/buf.h"
#include "base/clock.h"

struct trace_event {
	uint64_t at_ns;
	const char *what; /* a literal: "grant seg=%u64 bytes=%u64" is not parsed, just shown */
	uint64_t a, b;
};

struct trace {
	struct trace_event *ring;
	uint32_t cap; /* a power of two */
	uint64_t n;   /* events so far */
};

/* cap is rounded up to a power of two, at most 1 Mi. owned, trace_fini(). ERR_NO_MEMORY. */
enum err trace_init(struct trace *t, uint32_t cap) MUST_CHECK;
void trace_fini(struct trace *t);
/* Does nothing on a zeroed trace. */
static inline void trace_put(struct trace *t, uint64_t now_ns, const char *what, uint64_t a,
			     uint64_t b)
{
	if (t->cap)
		t->ring[t->n++ & (t->cap - 1)] = (struct trace_event){ now_ns, what, a, b };
}
/* Oldest first, a line each: "+12us what a b"; the newest `last` ones. */
void trace_print(const struct trace *t, size_t last, struct buf *out);
