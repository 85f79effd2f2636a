/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop without libuv, time or threads: the test owns the clock and runs each turn. With
 * `workers` its driver has `later`, so pools run on it as in a simulation.
 */
#pragma once

#include "loop/loop.h"

#include <string.h>

#define FAKE_LATER_MAX 64

struct fake_loop {
	struct loop l;
	struct clock clock;
	struct loop_driver driver;
	uint64_t now_ns, armed_ns;
	unsigned wakes;
	struct {
		void (*fn)(void *arg);
		void *arg;
	} later[FAKE_LATER_MAX];
	unsigned n_later;
};

static inline uint64_t fake_now(const struct clock *c)
{
	return container_of(c, struct fake_loop, clock)->now_ns;
}

static inline uint64_t fake_wall(const struct clock *c)
{
	return fake_now(c) / NS_PER_MS;
}

static inline void fake_wake(struct loop *l)
{
	container_of(l, struct fake_loop, l)->wakes++;
}

static inline void fake_arm(struct loop *l, uint64_t due)
{
	container_of(l, struct fake_loop, l)->armed_ns = due;
}

static inline void fake_random(struct loop *l, void *p, size_t n)
{
	(void)l;
	memset(p, 7, n);
}

static inline void fake_later(struct loop *l, void (*fn)(void *arg), void *arg)
{
	struct fake_loop *f = container_of(l, struct fake_loop, l);
	assert(f->n_later < FAKE_LATER_MAX);
	f->later[f->n_later].fn = fn;
	f->later[f->n_later++].arg = arg;
}

static inline void fake_open(struct fake_loop *f, bool workers)
{
	*f = (struct fake_loop){
		.clock = { fake_now, fake_wall },
		.driver = { .wake = fake_wake,
			    .arm = fake_arm,
			    .random = fake_random,
			    .later = workers ? fake_later : NULL },
		.now_ns = NS_PER_S,
	};
	loop_init(&f->l, &f->driver, f, &f->clock);
}

/* Gives the i-th thing that waits for a worker its time. */
static inline void fake_work(struct fake_loop *f, unsigned i)
{
	assert(i < f->n_later);
	void (*fn)(void *arg) = f->later[i].fn;
	void *arg = f->later[i].arg;
	f->n_later--;
	memmove(&f->later[i], &f->later[i + 1], (f->n_later - i) * sizeof(f->later[0]));
	fn(arg);
}

static inline void fake_turn(struct fake_loop *f, uint64_t pass_ns)
{
	f->now_ns += pass_ns;
	loop_turn(&f->l);
}

static inline void fake_close(struct fake_loop *f)
{
	loop_fini(&f->l);
}
