/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small world for the tests of the host transport: ranks as threads or as processes, tokens whose
 * content is a formula, the identity as expert, every output checked against the formula.
 */
#pragma once

#include "ep/ep.h"

struct world {
	uint32_t n, experts, hidden, max, top_k;
	const uint32_t *owner;	       /* NULL: equal blocks */
	uint32_t tokens[EP_RANKS_MAX]; /* of each rank in this step */
	uint64_t lost;		       /* ranks whose outputs cannot arrive */
	uint64_t silent;	       /* ranks whose rows cannot arrive */
	int64_t timeout_us;
	bool fp8; /* then values are small enough to be exact in e4m3 */
};

struct member {
	struct world w;
	uint32_t me;
	struct ep_exchange *x;
	struct ep_buf *b;
	int32_t active[EP_RANKS_MAX];
	char *fail;	/* [FAIL_BYTES]: the first difference */
	char told[400]; /* the last line of opts.say */
	void *arg;
};
#define FAIL_BYTES 400

/* Opens m->b on m->x. False, with m->fail, when that failed. */
bool member_open(struct member *m);
void member_fail(struct member *m, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Arrays of one dispatch; freed by flight_combine or flight_free. */
struct flight {
	struct ep_handle *h;
	struct ep_dispatch_args args; /* as they were given */
	void *recv;
	float *scales, *weights;
	int32_t *count, *src_info;
	int64_t *range, *topk;
	uint16_t *x, *y, *out;
	int32_t *incomplete;
	uint32_t n_local, locals[EP_EXPERTS_MAX];
	struct world w;
	uint64_t seed;
};
bool flight_dispatch(struct member *m, struct flight *f, uint64_t seed, uint32_t flags);
void flight_check_recv(struct member *m, struct flight *f);
void flight_combine(struct member *m, struct flight *f, bool zero_copy);
void flight_free(struct flight *f);
/* All of it: dispatch, check, combine, check. */
void member_step(struct member *m, uint64_t seed);

/* Runs fn on n threads that share a local exchange; the first failure text, "" when none. */
const char *world_threads(const struct world *w, void (*fn)(struct member *m), void *arg);
