/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request whose items may have to wait: for holders, for space, for the meta log. Drawn in
 * docs/states/master.batch.md:
 *
 *   begin (a slice of items a turn) ──> settle (waits, parked) ──> reply ──> done
 *          └────────── none has to wait ───────────────────────────┘
 *
 * I1: each item ends once: by the mind, or here, when the deadline passes, the peer goes or the service
 *     stops; then it is dropped (mind_drop) and the others keep their results.
 * I2: the answer leaves a little before the caller's deadline, so that it arrives: an item that did not
 *     end says which step it was in and for whom it waited (T7).
 * I3: a request that waits is parked, out of the request slots; without room for that it is BUSY (B1).
 *
 * Thread: the loop's.
 */
#pragma once

#include "loop/op.h"
#include "master.h"
#include "proto/messages.h"

struct mst_batch;

/* What a method is as a batch. Items are of item_bytes, zeroed, and begin with struct mind_call. */
struct mst_flow {
	const char *name;	      /* "PUT_START" */
	const char *waits;	      /* what an item may wait for: "space", "holders" */
	size_t item_bytes, msg_bytes; /* msg: of the decoded request */
	bool by_holders;	      /* its items wait for answers of holders */
	/* b->msg from the request; *n items. why says what is wrong. */
	enum err (*decode)(struct mst_batch *b, struct dec *d, size_t *n) MUST_CHECK;
	/* Item i goes to the mind: exactly one call that takes its mind_call. */
	void (*begin)(struct mst_batch *b, struct mind *mind, size_t i);
	/* All items have ended: answers b->req. mind may be NULL: the service closes. */
	void (*reply)(struct mst_batch *b);
};

struct mst_batch {
	struct op op;
	struct mst *m;
	struct rpc_req *req;
	const struct mst_flow *flow;
	struct arena arena; /* what msg borrows from; the reply may too */
	void *msg;
	size_t n, next, n_open;
	struct post post;
	bool posted;
	uint8_t *ended; /* of each item */
	char *items;	/* private: see mst_batch_item */
};

/* A handler's whole work. */
void mst_batch_run(struct mst *m, struct rpc_req *r, const struct mst_flow *f);
/* Item i, as the flow knows it. */
void *mst_batch_item(const struct mst_batch *b, size_t i);
static inline struct mind_call *mst_batch_call(const struct mst_batch *b, size_t i)
{
	return mst_batch_item(b, i);
}
/* RESULTS_REP from the items' calls. */
void mst_batch_results(struct mst_batch *b);
