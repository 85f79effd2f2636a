/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any thread -> loop. The one door through which completions enter a loop (style.md section 3).
 *
 * I1: struct post is embedded in the thing that completes; posting never allocates and never fails.
 * I2: expected counts what the world still owes the loop: inbox_expect() when the work is handed
 *     out, minus one when its post is drained. A loop may close only at 0.
 * I3: the wake-up is sent on empty -> non-empty, under the lock, so that close cannot overtake it. What the
 *     loop's own thread puts in (inbox_put) needs none.
 * I4: a post is on the queue at most once between two drains (asserted).
 *
 * Threads: inbox_post any; all else the loop's.
 */
#pragma once

#include "base/def.h"

#include <pthread.h>

struct post {
	struct post *next;
	void (*fn)(struct post *p); /* loop thread; p may be freed or posted again inside */
	bool queued;
};

struct inbox {
	pthread_mutex_t lock;
	struct post *head, **tail;
	uint64_t expected;
	void (*wake)(void *arg); /* under the lock; must not block */
	void *wake_arg;
};

void inbox_init(struct inbox *in, void (*wake)(void *arg), void *wake_arg);
/* Asserts that it is empty. */
void inbox_fini(struct inbox *in);
/* Loop thread: a post will come. */
void inbox_expect(struct inbox *in);
/* Loop thread: takes back an expectation whose work was never handed out. */
void inbox_unexpect(struct inbox *in);
/* Loop thread: inbox_post without its wake. True: it was empty, and the caller sees to it that the loop drains
 * it before it waits; false: that is seen to already. */
bool inbox_put(struct inbox *in, struct post *p) MUST_CHECK;
/* Any thread: hand p over. For an expected post; the drain takes the expectation back. */
void inbox_post(struct inbox *in, struct post *p);
/* Runs everything queued when it began; returns how many. Loop thread. */
size_t inbox_drain(struct inbox *in);
