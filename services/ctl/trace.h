/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request trace: one JSON object a line,
 *
 *	{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
 *
 * timestamp: ms since the trace began; input_length, output_length: tokens (may be absent); hash_ids: the
 * prefix blocks of the request from its first token on, where an equal id means equal content and an equal
 * prefix before it. Other members are skipped, so are empty lines.
 *
 * I1: a trace that was read has at least one request; ids of a request are ids[first .. first + n).
 * I2: what a file says bounds nothing: the limits below do (B5).
 *
 * Thread: any; nothing here is shared.
 */
#pragma once

#include "base/err.h"

#include <stdio.h>

enum {
	TRACE_LINE_MAX = 16 << 20, /* bytes of a line: 1 M blocks, 512 M tokens */
	TRACE_REQUESTS_MAX = 16 << 20,
	TRACE_IDS_MAX = 256 << 20, /* of all requests: 2 GiB */
};

struct trace_request {
	uint64_t at_ms;
	uint64_t input_tokens, output_tokens; /* 0: not said */
	uint64_t first;			      /* of trace.ids */
	uint32_t n;
};

/* Zero is a valid, empty state. */
struct trace {
	struct trace_request *requests;
	size_t n;
	uint64_t *ids;
	size_t n_ids;
	/* private */
	size_t requests_cap, ids_cap;
};

/*
 * Adds the request of one line, n bytes without the newline; a blank one adds nothing.
 *
 * ERR_INVALID_PARAMS  it is no such object: why says what, without file and line; t is unchanged
 * ERR_TOO_LARGE       a limit above
 * ERR_NO_MEMORY
 */
enum err trace_line(struct trace *t, const char *line, size_t n, struct why *why) MUST_CHECK;
/*
 * The first `limit` requests of a file (0: all), "-" is standard input. out: owned, trace_free(); written
 * only on success. why: "FILE:LINE: what".
 *
 * ERR_NOT_FOUND, ERR_FORBIDDEN, ERR_IO  the file; ERR_INVALID_PARAMS a line, or no request at all
 */
enum err trace_read(const char *file, uint64_t limit, struct trace *out, struct why *why)
	MUST_CHECK;
void trace_free(struct trace *t);

/* What there is to be found in it. */
struct trace_facts {
	uint64_t references, distinct; /* blocks */
	uint64_t prefix_hits; /* blocks that one client with an unbounded cache finds */
	uint64_t last_ms;     /* the latest timestamp */
};
/* O(ids). ERR_NO_MEMORY. */
enum err trace_facts(const struct trace *t, struct trace_facts *out) MUST_CHECK;
