/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An object's stored bytes (payload, and above 1 MiB the vector of block sums behind it), fetched from one
 * holder by a read ticket and verified block by block (T4): the way PULL takes (design.md section 5).
 *
 *   fetch_lanes.c        over data lanes: sockets, workers
 *   tests' fetch_sim.c   its twin: between pools of simulated agents, on virtual time
 *
 *   fetch_init ─► ops->start ─► done ─► (another source: ops->start again, from `at` on) ─► fetch_fini
 *
 * I1: bytes land in `ext` alone, and only between start and done: after done no thread writes there (T6).
 * I2: bytes below `at` are the object's: each block was compared with the vector, and the vector with `sum`.
 *     Same version, same bytes (T5), so another source goes on from there.
 * I3: a fetch ends: each frame, and the handshake, has stall_ms (T7).
 *
 * Thread: the loop's, but for fetch_land and fetch_landed (who moves the bytes).
 */
#pragma once

#include <stdatomic.h>

#include "loop/pool.h"
#include "store/object.h"
#include "xfer/lookup.h"
#include "xfer/pipe.h"

struct fetch;
struct fetch_lane;

struct fetch_ops {
	/* done follows, later, never inside this call. */
	void (*start)(void *ctx, struct fetch *f);
	/* done follows soon, with ERR_CANCELLED if it was not over. Safe on one that is not under way. */
	void (*stop)(void *ctx, struct fetch *f);
};

struct fetch {
	/* where to, set before fetch_init; the pieces of `ext` are the stored bytes from 0 on */
	struct iovec ext[OBJ_EXTENTS_MAX];
	uint32_t n_ext;
	uint64_t size, sum;
	/* where from, set before each start; borrowed until done */
	const char *holder, *addr; /* addr: tcp://HOST:PORT of its data lanes */
	struct bytes ticket;
	uint32_t stall_ms;
	void (*done)(struct fetch *f);
	/* results of a start */
	enum err
		err; /* ERR_CORRUPT: its bytes fail their sum where they lie; ERR_CONN_LOST: on the way */
	struct why why;
	_Atomic uint64_t at; /* payload that is there and good */
	/* private */
	uint64_t *vector, vector_got; /* owned; bytes of it that came */
	bool vector_good, bad;	      /* bad: the source's sums do not fit */
	bool running;
	_Atomic bool stopped;
	struct job job;
	struct post post;
	struct list node;
	struct xf_lookup *lookup;
	struct fetch_lane *lane;
	void *engine;
};

/* ERR_NO_MEMORY. The rest of f is zeroed by the caller. */
enum err fetch_init(struct fetch *f) MUST_CHECK;
/* Not while it is under way (asserted). Fine on a zeroed one. */
void fetch_fini(struct fetch *f);

/* ---- for engines ---- */

/* Begins with a source: forgets what the last one left half done. */
void fetch_begin(struct fetch *f);
/* What is to be asked for next, in order: the vector, the rest. How many, 0..2. */
size_t fetch_wanted(const struct fetch *f, struct xf_range out[2]);
/* n stored bytes from offset on are coming: where to. Spans, at most XF_SPANS; 0: not awaited. */
size_t fetch_land(struct fetch *f, uint64_t offset, size_t n, struct iovec *spans);
/* They are there; sum: XXH3-64 of them. ERR_CORRUPT: they are not the object's. */
enum err fetch_landed(struct fetch *f, uint64_t offset, size_t n, uint64_t sum);
bool fetch_whole(const struct fetch *f);
/* The first error stays. */
void fetch_fail(struct fetch *f, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- over data lanes ---- */

struct fetch_lanes;
struct fetch_lanes_opts {
	struct loop *loop; /* borrowed for life, as are the next two */
	const struct keyring *keys;
	const char *self;	 /* our holder id */
	const uint8_t *instance; /* 16 bytes; copied */
	uint32_t threads;	 /* fetches at once, 1..256: each holds a worker */
	uint32_t idle_ms;	 /* a lane that nobody used for so long is closed */
	uint32_t idle_max;	 /* lanes kept, all sources together */
};
extern const struct fetch_ops fetch_lanes_ops; /* ctx: struct fetch_lanes */

/* out: owned, fetch_lanes_close(). ERR_NO_MEMORY, ERR_BUSY (no threads). */
enum err fetch_lanes_new(const struct fetch_lanes_opts *o, struct fetch_lanes **out) MUST_CHECK;
/* Nothing is under way (asserted). NULL is fine. */
void fetch_lanes_close(struct fetch_lanes *x);
/* Open, and kept because nobody uses them; any time. */
uint32_t fetch_lanes_open(const struct fetch_lanes *x, uint32_t *idle);
