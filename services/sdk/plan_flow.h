/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One plan made by the planner (proto/weights.def): texts sent in pieces, the plan run, its text
 * fetched. Pieces go four at a time; a planner that is busy is asked again when it says; one that has
 * forgotten the plan (a restart) gets it again, three times at most.
 *
 *   begin -> send -> run -> read -> leave -> done
 *     ^_______|_______|______|  forgotten
 *   any of them -> leave, which stops the work there
 *
 * Thread: the loop's of the client.
 */
#pragma once

#include "base/buf.h"
#include "loop/op.h"
#include "rpc/rpc.h"

struct flow_side {
	uint8_t form;	     /* as in proto/weights.def */
	struct bytes digest; /* n 0: not known */
	struct bytes text;   /* n 0: none to send */
};

/* Borrowed until done has run. */
struct flow_ask {
	struct flow_side in[2]; /* source, target */
	bool local;
	struct bytes participant;
	uint64_t max_regions, max_segments_per_region, max_total_segments;
	uint64_t text_max; /* largest plan taken */
};

#define FLOW_WINDOW 4

struct plan_flow;
struct flow_call {
	struct rpc_call call;
	struct plan_flow *flow;
	struct buf body;
	struct timer again;
	uint64_t offset;
	bool out;
};

struct plan_flow {
	/* set by the caller; the rest zeroed */
	struct rpc_client *rpc; /* borrowed until done */
	struct loop *loop;
	struct flow_ask ask;
	uint64_t deadline_ns;
	void (*done)(struct plan_flow *f); /* later; may free f */
	/* results */
	enum err err;
	struct why why;
	const char *step; /* that failed */
	struct buf text;  /* the plan's */
	char digest[64];  /* as the planner says; not compared with the text yet */
	uint64_t regions, segments, total_bytes, sources, targets, routes, took_us;
	/* private */
	struct op op;
	uint8_t id[16];
	uint64_t missing[2], text_bytes;
	uint32_t part_bytes;
	uint32_t n_out, n_begun, side;
	uint64_t next;	  /* offset of the next piece to send or ask for */
	bool again, gone; /* forgotten there; the client is being closed */
	enum err call_err;
	struct why call_why;
	struct flow_call calls[FLOW_WINDOW];
};

/* Begins. ERR_IO: no random bytes for a name. */
enum err plan_flow_start(struct plan_flow *f) MUST_CHECK;
/* It ends soon, with e; closing: without another call to the planner. */
void plan_flow_stop(struct plan_flow *f, enum err e, bool closing);
/* Frees what the results hold. */
void plan_flow_fini(struct plan_flow *f);
