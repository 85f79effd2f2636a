/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One SP connection on libuv, either side of it, and the hub of a loop that all of them share.
 * Output is gathered in one buffer and written once a wake, or some 20 us into a long one: uv_try_write
 * first, uv_write for what the socket does not take. Used by rpc_sp.c (server) and sp_peer.c (client) alone.
 *
 * I1: in steady state nothing is allocated per message: output buffers come from the hub's list
 *     and go back when they are empty, so an idle connection holds none.
 * I2: while more than queue_max bytes wait to be written, nothing more is read or parsed.
 * I3: one read of SP_SCRATCH bytes a wake: a busy connection does not hold up the others.
 * I4: ended runs once, from the hub's tick or libuv's callbacks, never inside a call of this file.
 * I5: SIGPIPE is blocked in the thread of a loop that has a hub.
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/list.h"
#include "loop/loop.h"
#include "rpc/sp_frame.h"
#include "rpc/sp_tls.h"

#include <uv.h>

#define SP_SCRATCH (128u << 10)
#define SP_CHUNK   (64u << 10) /* an output buffer before it has to grow */

struct sp_pipe;

struct sp_pipe_ops {
	void (*frame)(struct sp_pipe *p, struct bytes body, uint8_t *owned); /* see sp_rx */
	/* The peer's greeting came. May be NULL. */
	void (*open)(struct sp_pipe *p);
	/* It broke, or the peer broke a rule. The owner calls sp_pipe_close, now or later. */
	void (*ended)(struct sp_pipe *p, enum err e, const char *text);
	/* All of it is gone; memory may be freed. */
	void (*closed)(struct sp_pipe *p);
};

struct sp_out {
	uint8_t *p;
	size_t n, cap;
};

/* One a loop, made by its first server or peer. */
struct sp_hub {
	struct loop *loop;
	uint32_t refs;
	struct list dirty;   /* has something to write, or broke */
	struct list again;   /* may read on */
	struct list starved; /* wait for memory for a large frame */
	/* private */
	uv_prepare_t prepare;
	uv_check_t check;
	int n_handles;
	struct sp_out spare[32];
	size_t n_spare;
	uint8_t *cipher; /* SP_SCRATCH bytes, made by the first pipe with TLS */
	uint8_t scratch[SP_SCRATCH];
};

struct sp_pipe {
	union {
		uv_handle_t handle;
		uv_stream_t stream;
		uv_tcp_t tcp;
		uv_pipe_t pipe;
	} u;
	struct sp_hub *hub;
	const struct sp_pipe_ops *ops;
	struct sp_rx rx;
	struct sp_tls *tls;   /* NULL: plain. Set before sp_pipe_start, ours from then on */
	uint64_t queue_max;   /* I2 */
	uint64_t *all_queued; /* the owner's sum */
	uint64_t *bytes_in, *bytes_out;
	/* progress, for the owner's sweeps */
	uint64_t n_frames, n_written;
	uint64_t queued; /* bytes not yet written */
	bool closing, writing, broken;
	/* private */
	bool reading, finish, over;
	int sys; /* libuv's code, when broken */
	/* since the last write, while frames come: when it was looked at the clock first, 0: not yet; read since
	 * the last look */
	uint64_t ahead_ns;
	size_t ahead_bytes;
	struct list dirty, again;
	struct sp_out out, sending;
	uv_write_t write;
};

/* The hub of l, one more reference. ERR_NO_MEMORY, ERR_UNSUPPORTED in a simulation. */
enum err sp_hub_ref(struct loop *l, struct sp_hub **out) MUST_CHECK;
void sp_hub_unref(struct sp_hub *h);
/* Memory that counted as held is free again: starved pipes try once more at the next tick. */
void sp_hub_fed(struct sp_hub *h);

/*
 * p: zeroed memory with rx, queue_max, all_queued, bytes_* set. Opens the handle, unconnected.
 * ERR_BUSY (descriptors).
 */
enum err sp_pipe_init(struct sp_pipe *p, struct sp_hub *h, const struct sp_pipe_ops *ops,
		      bool ipc) MUST_CHECK;
/* The handle is connected: sends our greeting, reads. Tcp: no delay, keep-alive. */
void sp_pipe_start(struct sp_pipe *p, uint16_t our_proto);
/* One frame of parts, borrowed for the call. False: it is closing or no memory; nothing is sent. */
bool sp_pipe_send(struct sp_pipe *p, const struct bytes *parts, int n);
/* Reads on at the next tick, if nothing else stands against it: rx.max or held changed. */
void sp_pipe_again(struct sp_pipe *p);
/* Ends at the next tick: ended runs with it. */
void sp_pipe_break(struct sp_pipe *p, int sys);
/* Reads no more; closes when all is written. ended does not run. */
void sp_pipe_finish(struct sp_pipe *p);
/* closed follows. Safe to call twice. */
void sp_pipe_close(struct sp_pipe *p);
