/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that the master orders (COPY): each is fetched from a holder that has the bytes (xfer/fetch.h),
 * into extents of our pool, then committed and published as a client's put is.
 *
 *   copy.c   COPY: tickets opened, copies taken on or refused
 *   pull.c   one op a copy: its turn, its source, its bytes, its slot, its PUBLISH
 *   source.c holders that bytes come from: how many copies at once, and for how long one is left alone
 *
 *   COPY ─► queue ─► open ─► fetch ─► commit ─► publish ─► end
 *             ▲        │        │         │                 ▲
 *             └────────┼────────┘ another source            │
 *                      └─ fenced, or nobody has good bytes ─┘  (REPORT.failed)
 *
 * P1: a thread writes into a copy's extents only while a hazard record names its version: FENCE, COMMIT and
 *     ADOPT see it as any writer (D1, T6). It is stopped by xfa_pull_fence and xfa_pulls_adopted, and the
 *     record goes when it has stopped.
 * P2: bounded: pull_queue_max copies wait, pulls_max move bytes, at most pulls_per_source from one source
 *     (L4: one that stands still holds no more workers than that, each for pull_stall_ms).
 * P3: a copy ends once: published; failed and reported, with nothing of it left here; or, when it was
 *     fenced or another adoption came, without a word (the master knows).
 * P4: who failed just now is left alone for a while, and what needs it alone fails at once (T7).
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/map.h"
#include "loop/op.h"
#include "rpc/ticket.h"
#include "store/hold.h"
#include "xfer/fetch.h"

struct xfa;

enum { XFA_SOURCES_MAX = 16, XFA_SOURCES_KEPT = 256 };

/* A holder that bytes come from, at one of its addresses. */
struct xfa_source {
	struct list node;
	char holder[65], addr[257]; /* addr: of its data lanes; "": it opens none */
	uint32_t users, running, fails;
	uint64_t not_before_ns; /* it is left alone until then */
	enum err last;
};

struct xfa_pulls {
	struct xfa *x;
	const struct fetch_ops *ops; /* NULL: nothing can be fetched */
	void *engine;
	struct fetch_lanes *own; /* the engine, if it is ours */
	struct pool_lane *lanes; /* hazard records, pulls_max of them; borrowed */
	bool *lane_used;
	struct map by_version;
	struct op_set ops_alive;
	struct list queue, sources;
	uint32_t n_queued, n_running, n_sources;
	struct post kick;
	bool kick_due, stopped;
	void (*closed)(void *arg);
	void *closed_arg;
};

/* lanes: pulls_max hazard records, borrowed for life. ERR_NO_MEMORY, ERR_BUSY (no threads). */
enum err xfa_pulls_open(struct xfa *x, struct pool_lane *lanes) MUST_CHECK;
/* No copies any more; those under way end, without a word. */
void xfa_pulls_stop(struct xfa *x);
/* After xfa_pulls_stop. True: all have ended; else closed runs when they have. Then: xfa_pulls_fini. */
bool xfa_pulls_close(struct xfa *x, void (*closed)(void *arg), void *arg);
void xfa_pulls_fini(struct xfa *x);

/* FENCE of a version is about to be obeyed: a copy of it that is not committed ends. */
void xfa_pull_fence(struct xfa *x, uint32_t shard, uint64_t version);
/* The epoch has risen: what was ordered under an older one ends. */
void xfa_pulls_adopted(struct xfa *x, const struct hold_under *u);

/* One item of COPY, as decoded. ERR_NONE: it is under way, or was. ERR_BUSY: the queue is full. */
enum err xfa_pull_take(struct xfa *x, const struct hold_under *u, const struct msg_copy_item *m,
		       struct why *why) MUST_CHECK;

/* ---- source.c ---- */

/* A user more. NULL: no memory. */
struct xfa_source *xfa_source_get(struct xfa_pulls *p, struct bytes holder, struct bytes addr);
void xfa_source_put(struct xfa_pulls *p, struct xfa_source *s);
bool xfa_source_rests(const struct xfa_pulls *p, const struct xfa_source *s);
/* How a fetch from it went, and whether bytes came. */
void xfa_source_went(struct xfa_pulls *p, struct xfa_source *s, enum err e, bool moved);
