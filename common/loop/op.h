/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request as a state machine (style.md section 3, "a request is a table").
 *
 *   static const struct op_step get_steps[] = {
 *           [GET_LOOKUP] = { "lookup", get_lookup, TO(GET_READ) | TO(GET_REPLY) },
 *           [GET_READ]   = { "read",   get_read,   TO(GET_REPLY), .waits = true, .stop = get_unread },
 *           [GET_REPLY]  = { "reply",  get_reply,  TO(OP_DONE) },
 *   };
 *   OP_TABLE(get_table, "master.get", get_steps);
 *
 * A step returns the next state, OP_DONE, or OP_WAIT after arranging an op_resume(). After a
 * resume the same step runs again: op_first() tells the first run from the later ones. The driver
 * checks each move against the table and keeps the last OP_TRACE_N of them.
 *
 *   static int get_read(struct op *op)
 *   {
 *           struct get *g = container_of(op, struct get, op);
 *           if (op_first(op)) {
 *                   job_submit...; return OP_WAIT;
 *           }
 *           return GET_REPLY;       (g's result is there, or op->err says why not)
 *   }
 *
 * Deadline and cancel: the op is failed (ERR_TIMED_OUT, ERR_CANCELLED). If it waits, the step's
 * `stop` is called once: it cancels the outstanding work, whose end resumes the op as ever. A
 * waiting step without a stop is resumed at once: it must have nothing outstanding that could
 * resume it later. A step that must not be disturbed (an undo) has op_stop_none. An op that does
 * not wait sees op->err in its next step. An op is stopped at most once.
 *
 * I1: the first error wins (op_fail).
 * I2: done runs exactly once, after OP_DONE, never inside op_start unless done_inline.
 * I3: a completion never runs inside its own submit call: op_resume asserts that no step runs.
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/buf.h"
#include <string.h>

#include "base/list.h"
#include "loop/loop.h"

enum { OP_DONE = -1, OP_WAIT = -2 };
#define OP_STATES_MAX 63
#define TO(state)     (1ull << ((state)&63)) /* OP_DONE, -1, is the top bit */
#define OP_TO_DONE    (1ull << 63)
#define OP_TRACE_N    16

struct op;

struct op_step {
	const char *name;
	int (*fn)(struct op *op);
	uint64_t to;		     /* TO() of every state it may move to */
	bool waits;		     /* may return OP_WAIT; drawn with a double border */
	void (*stop)(struct op *op); /* see above; may be NULL */
};

struct op_table {
	const char *name; /* "master.get": the page docs/states/master.get.md */
	const struct op_step *steps;
	int n;
};

/* Ops that are alive, bounded (B1). Zero with a limit set and list_init'ed by op_set_init. */
struct op_set {
	struct list ops;
	uint32_t n, limit;
	void (*on_empty)(struct op_set *s); /* after the last one's done; may be NULL */
};

struct op_move {
	uint32_t at_us; /* since op_start */
	int8_t state;
};

struct op {
	/* set by the caller before op_start; the rest zeroed */
	const struct op_table *table;
	struct loop *loop;
	struct op_set *set;	     /* NULL: none */
	uint64_t deadline_ns;	     /* UINT64_MAX: none. 0 is a deadline that has passed */
	bool done_inline;	     /* done may run inside op_start */
	void (*done)(struct op *op); /* may free the op */
	/* for steps to read */
	uint64_t id; /* unique in its loop; in logs: op= */
	int state;
	enum err err; /* the first one; its reason: why, below */
	bool cancelled, timed_out;
	/* for steps to set: the peer that this step waits for, in the deadline's text (T7); borrowed,
	 * forgotten at the next move */
	const char *waits_for;
	/* private */
	bool running, waiting, stopped, stop_due, starting;
	uint32_t visits, moves;
	uint64_t start_ns;
	struct timer timer;
	struct post post;
	struct list node;
	/* large, and read only as far as they were written: see op_clear */
	struct op_move trace[OP_TRACE_N];
	struct why why; /* for steps to read */
};

/* For an op in memory that was not zeroed: zeroes what has to be, a third of it. */
static inline void op_clear(struct op *op)
{
	memset(op, 0, offsetof(struct op, trace));
	op->why.err = ERR_NONE;
}

/* A section of pointers to all tables in the program, for op_tables(). */
#define OP_TABLE(var, text, rows)                                                \
	static const struct op_table var = { text, rows, (int)ARRAY_LEN(rows) }; \
	static const struct op_table *const var##_ptr                            \
		__attribute__((used, section("op_table_ptrs"))) = &var

void op_set_init(struct op_set *s, uint32_t limit);
/* op_cancel on each; returns how many were alive. */
uint32_t op_set_cancel(struct op_set *s);

/* Begins at state 0. ERR_BUSY (nothing has begun, done will not run) when the set is full. */
enum err op_start(struct op *op) MUST_CHECK;
/* From a completion: goes on. Asserts that the op waits and that no step is running. */
void op_resume(struct op *op);
/* First run of this step since the op moved to its state? */
static inline bool op_first(const struct op *op)
{
	return op->visits == 1;
}
/* Records the first error and its reason; returns e. */
enum err op_fail(struct op *op, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same with a reason that is there already (a library call's why). */
enum err op_fail_why(struct op *op, enum err e, const struct why *w);
/* Fails the op with ERR_CANCELLED and stops its wait. Safe in any state before done. */
void op_cancel(struct op *op);
/* As a step's stop: the wait goes on to its own end. */
void op_stop_none(struct op *op);
/* "lookup@0us read@12us ..." of the last moves, for a log line. */
void op_trace_print(const struct op *op, struct buf *out);

/* All OP_TABLEs linked into this program. */
size_t op_tables(const struct op_table *const **out);
/* What is wrong with a table (a state nobody reaches, a move out of range, no way to OP_DONE). */
enum err op_table_check(const struct op_table *t, struct why *w) MUST_CHECK;
/* The page docs/states/NAME.md. */
void op_table_page(const struct op_table *t, struct buf *out);
