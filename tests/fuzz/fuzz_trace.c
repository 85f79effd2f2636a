/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a request trace (B5): whatever they are, each adds one whole request or nothing. */
#include "trace.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void one(struct trace *t, const char *s, size_t n)
{
	struct why why = { 0 };
	size_t requests = t->n, ids = t->n_ids;
	enum err e = trace_line(t, s, n, &why);
	assert((e == ERR_NONE) == (why.err == ERR_NONE));
	if (t->n == requests) {
		assert(t->n_ids == ids);
		return;
	}
	const struct trace_request *r = &t->requests[requests];
	assert(e == ERR_NONE && t->n == requests + 1);
	assert(r->first == ids && r->n == t->n_ids - ids);
	assert(r->at_ms <= INT64_MAX && r->input_tokens <= INT64_MAX);
	for (size_t i = ids; i < t->n_ids; i++)
		assert(t->ids[i] <= INT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct trace t = { 0 };
	struct trace_facts f = { 0 };
	const char *s = (const char *)p;
	while (n > 0) {
		const char *end = memchr(s, '\n', n);
		size_t len = end ? (size_t)(end - s) + 1 : n;
		one(&t, s, len);
		s += len;
		n -= len;
	}
	assert(trace_facts(&t, &f) == ERR_NONE);
	assert(f.references == t.n_ids && f.distinct <= f.references);
	assert(f.prefix_hits <= f.references - f.distinct);
	trace_free(&t);
	return 0;
}
