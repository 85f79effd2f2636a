/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inbox and uv loop under ThreadSanitizer: producers post the same few posts again and again, the
 * loop counts, timers and loop_stop run beside. Plain main: Criterion cannot start under TSan.
 */
#include "loop/loop.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum { PRODUCERS = 4, POSTS = 16, ROUNDS = 2000 };

struct slot {
	struct post p;
	_Atomic bool free;
	uint64_t written, read; /* handed over by the post: plain on purpose */
};

struct producer {
	pthread_t thread;
	struct loop *loop;
	struct slot slots[POSTS];
};

static struct loop loop;
static uint64_t drained;

static void on_post(struct post *p)
{
	struct slot *s = container_of(p, struct slot, p);
	assert(s->written == s->read + 1);
	s->read = s->written;
	drained++;
	if (drained == (uint64_t)PRODUCERS * POSTS * ROUNDS) {
		loop_stop(&loop);
		return;
	}
	if (s->read < ROUNDS) {
		loop_expect(&loop);
		atomic_store_explicit(&s->free, true, memory_order_release);
	}
}

static void *produce(void *arg)
{
	struct producer *p = arg;
	for (uint64_t round = 1; round <= ROUNDS; round++)
		for (int i = 0; i < POSTS; i++) {
			struct slot *s = &p->slots[i];
			while (!atomic_load_explicit(&s->free, memory_order_acquire))
				sched_yield();
			atomic_store_explicit(&s->free, false, memory_order_relaxed);
			s->written = round;
			loop_post(p->loop, &s->p);
		}
	return NULL;
}

static void tick(struct timer *t)
{
	timer_start(&loop, t, loop_now_ns(&loop) + NS_PER_MS, tick);
}

int main(void)
{
	static struct producer producers[PRODUCERS];
	struct timer t = { 0 };
	enum err e = loop_open(&loop);
	assert(e == ERR_NONE);
	timer_start(&loop, &t, 0, tick);
	for (int k = 0; k < PRODUCERS; k++) {
		producers[k].loop = &loop;
		for (int i = 0; i < POSTS; i++) {
			producers[k].slots[i].p.fn = on_post;
			producers[k].slots[i].free = true;
			loop_expect(&loop);
		}
		int r = pthread_create(&producers[k].thread, NULL, produce, &producers[k]);
		assert(r == 0);
	}
	loop_run(&loop);
	for (int k = 0; k < PRODUCERS; k++)
		pthread_join(producers[k].thread, NULL);
	timer_stop(&loop, &t);
	assert(loop.inbox.expected == 0);
	loop_close(&loop);
	printf("1 passed, 0 failed\n");
	return 0;
}
