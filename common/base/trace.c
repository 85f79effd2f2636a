/* SPDX-License-Identifier: Apache-2.0 */
#include "base/trace.h"

#define CAP_MAX (1u << 20)

enum err trace_init(struct trace *t, uint32_t cap)
{
	uint32_t n = 1;
	while (n < cap && n < CAP_MAX)
		n *= 2;
	struct trace_event *ring = calloc(n, sizeof(*ring));
	if (!ring)
		return ERR_NO_MEMORY;
	*t = (struct trace){ .ring = ring, .cap = n };
	return ERR_NONE;
}

void trace_fini(struct trace *t)
{
	if (!t)
		return;
	free(t->ring);
	*t = (struct trace){ 0 };
}

void trace_print(const struct trace *t, size_t last, struct buf *out)
{
	uint64_t kept = MIN_OF(t->n, (uint64_t)t->cap), before = 0;
	kept = MIN_OF(kept, (uint64_t)last);
	for (uint64_t i = t->n - kept; i < t->n; i++) {
		const struct trace_event *e = &t->ring[i & (t->cap - 1)];
		uint64_t us = before ? (e->at_ns - before) / 1000 : 0;
		buf_printf(out, "+%lluus %s %llu %llu\n", (unsigned long long)us, e->what,
			   (unsigned long long)e->a, (unsigned long long)e->b);
		before = e->at_ns;
	}
}
