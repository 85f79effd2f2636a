/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request as a state machine (style.md section 3, "a request is a table"). A step returns the
 * next state, or OP_WAIT after arranging a resume. The driver checks that the move is allowed,
 * traces it, and stops at OP_DONE. In a request the first error wins (op_fail).
 *
 *   static const struct op_step get_steps[GET_N] = {
 *           [GET_LOOKUP] = { "lookup", get_lookup, TO(GET_PIN) | TO(GET_REPLY) },
 *           ...
 *   };
 *   OP_TABLE(get_table, "get", get_steps);
 *
 * OP_TABLE also puts the table into the section the generator of docs/states/ reads.
 * Thread: the loop's.
 */
#pragma once

#include "base/list.h"
#include "loop/loop.h"

enum { OP_DONE = -1, OP_WAIT = -2 };
#define TO(state)  ((state) == OP_DONE ? OP_TO_DONE : 1ull << ((state)&63))
#define OP_TO_DONE (1ull << 63)

struct op;

struct op_step {
	const char *name;
	int (*fn)(struct op *op);
	uint64_t to; /* TO() of every state it may move to */
	bool waits;  /* may return OP_WAIT; drawn with a double border */
};

struct op_table {
	const char *name;
	const struct op_step *steps;
	int n;
};

struct op {
	const struct op_table *table;
	struct loop *loop;
	uint64_t id;	      /* in logs: op= */
	uint64_t deadline_ns; /* UINT64_MAX: none */
	int state;
	enum err err; /* the first one */
	struct why why;
	void (*done)(struct op *op); /* after OP_DONE; may free the op */
	/* private */
	bool running, cancelled;
	struct timer timer;
	struct list node;
};

/* A section of pointers to all tables in the program, for op_tables(). */
#define OP_TABLE(var, text, rows)                                                \
	static const struct op_table var = { text, rows, (int)ARRAY_LEN(rows) }; \
	static const struct op_table *const var##_ptr                            \
		__attribute__((used, section("op_tables"))) = &var

/* Starts at state 0; op's table, loop, deadline_ns, done are set by the caller. */
void op_start(struct op *op);
/* From a completion: goes on. Asserts that the op waits, and that no step is running. */
void op_resume(struct op *op);
/* Records the first error and its reason; returns e. */
enum err op_fail(struct op *op, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The op's steps see op->cancelled when next resumed; the table decides what follows. */
void op_cancel(struct op *op);
