/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent's end of one data lane: the state machine, without its socket.
 *
 *   hello ──> proven ──> ready ──GET──> sending ──END──> ready
 *                          └────PUT──> opening ──GO──> writing ──LAST, END──> ready
 *   any ──wrong, fenced or cut──> over (an END with the reason goes out first, once the peer is proven)
 *
 * I1: nothing is read or written but what a ticket names that `get` or `put` took, between their
 *     success and `end`.
 * I2: bytes of a put come in order, once each; LAST is good only when all of them came.
 * I3: before DATA lands, and whenever lane_srv_cut is called, `look` is asked: a fenced writer's lane ends (T6).
 *
 * Thread: its owner's.
 */
#pragma once

#include "store/object.h"
#include "xfer/pipe.h"

/* The stored bytes that a ticket names. */
struct lane_obj {
	struct iovec ext[OBJ_EXTENTS_MAX];
	uint32_t n_ext;
	uint64_t size, sum; /* of the object; sum: GET */
	bool check;	    /* GET: as with XF_CHECK, asked or not */
};

enum lane_open {
	LANE_OPENED,
	LANE_REFUSED, /* why says it; the lane goes on */
	LANE_LATER,   /* lane_srv_opened follows, never inside the call */
};

struct lane_srv;

struct lane_srv_ops {
	/* ticket: borrowed for the call. out: filled when it is OPENED. */
	enum lane_open (*get)(void *ctx, struct bytes ticket, struct lane_obj *out,
			      struct why *why);
	enum lane_open (*put)(void *ctx, struct bytes ticket, struct lane_obj *out,
			      struct why *why);
	/* May the put under way still write? ERR_STALE_EPOCH, ERR_STALE_ATTEMPT. */
	enum err (*look)(void *ctx);
	/* What was opened is over; all: a get sent, or a put took, every byte. */
	void (*end)(void *ctx, bool put, bool all);
	/* A GET with XF_CHECK found bytes in the pool that fail their sum. */
	void (*corrupt)(void *ctx);
	void *ctx;
};

struct lane_srv_opts {
	const struct lane_srv_ops *ops; /* borrowed for life */
	struct hello_server *hello;	/* likewise; one thread's */
	uint32_t session;		/* not 0; no other lane of this hello has it */
	bool mac_data;			/* the peer is on another host */
};

struct lane_srv {
	struct xf_pipe pipe; /* err, why: why it is over */
	struct peer peer;    /* from PROVE on */
	/* private */
	struct lane_srv_opts o;
	enum {
		SRV_HELLO,
		SRV_PROVE,
		SRV_READY,
		SRV_OPENING,
		SRV_SENDING,
		SRV_WRITING,
	} state;
	bool goodbye; /* over; its last frame is on its way */
	uint64_t now_ns;
	uint32_t request;
	uint16_t flags;
	struct lane_obj obj;
	uint8_t *ranges; /* owned */
	size_t n_ranges, range;
	uint64_t range_at, put_at;
	uint64_t
		good_block; /* GET: 1 + the last block that was found whole; ranges of it follow */
	uint64_t hashed;    /* bytes that were read for that: lane_srv_hashed */
};

void lane_srv_init(struct lane_srv *l, const struct lane_srv_opts *o);
/* Calls end for what is open. */
void lane_srv_fini(struct lane_srv *l);
/* As xf_pipe's; now_ns: the clock that hello uses. */
size_t lane_srv_want(struct lane_srv *l, struct iovec *iov);
void lane_srv_got(struct lane_srv *l, size_t n, uint64_t now_ns);
size_t lane_srv_out(struct lane_srv *l, struct iovec *iov);
void lane_srv_sent(struct lane_srv *l, size_t n);
/* Nothing more will come of it: close it. */
bool lane_srv_over(const struct lane_srv *l);
/* The answer to LANE_LATER; obj is copied. */
void lane_srv_opened(struct lane_srv *l, enum err e, const struct lane_obj *obj,
		     const struct why *why);
/* Bytes hashed since it was asked last: work that moved nothing, to be charged to the lane's turn (L4). */
static inline uint64_t lane_srv_hashed(struct lane_srv *l)
{
	uint64_t n = l->hashed;
	l->hashed = 0;
	return n;
}
/* Something was fenced: look. */
void lane_srv_cut(struct lane_srv *l);
/* A GET or PUT is under way. */
static inline bool lane_srv_active(const struct lane_srv *l)
{
	return l->state >= SRV_OPENING;
}
