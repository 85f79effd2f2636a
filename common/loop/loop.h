/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread's event loop: an inbox, timers and a clock, over libuv or over the simulator
 * (tests/support/sim.h). Services, rpc and flows use only this; code that needs a descriptor asks
 * for loop_uv(), which is NULL in a simulation, so such code lives in engines that have a
 * simulated twin.
 *
 * Owns: the timer heap and, when real, one uv_async, one uv_timer and the uv_loop.
 * I1: callbacks run on the loop's thread only, never inside the call that arranged them.
 * I2: timers due at the same time run in the order they were started.
 *
 * Thread: the loop's, but for loop_post and loop_stop.
 */
#pragma once

#include "base/clock.h"
#include "base/err.h"
#include "base/heap.h"
#include "loop/inbox.h"

struct uv_loop_s;
struct loop;
struct net_sim_port; /* rpc/net_sim.h: where a simulated process meets its network */

struct timer {
	struct heap_node node;
	void (*fn)(struct timer *t);
};

/* What drives a loop: libuv (loop_uv.c) or the simulator. */
struct loop_driver {
	void (*wake)(struct loop *l); /* any thread: the inbox has something */
	void (*arm)(struct loop *l, uint64_t first_due_ns); /* UINT64_MAX: no timer */
	void (*random)(struct loop *l, void *p, size_t n);  /* see loop_random */

	/* What follows is NULL but in a simulation, where there are no threads and no sockets. */

	/*
	 * Calls fn(arg) after some virtual time, seeded, never inside this call: what a worker
	 * thread would do meanwhile (pool.c). Waits while the process is stopped.
	 */
	void (*later)(struct loop *l, void (*fn)(void *arg), void *arg);
	struct net_sim_port *(*net)(struct loop *l);
};

struct loop {
	const struct clock *clock;
	struct inbox inbox;
	struct heap timers;
	/* private */
	const struct loop_driver *driver;
	void *driver_data; /* struct loop_uv, or the simulator's node */
	uint64_t armed_ns;
	uint64_t turns; /* progress counter, read by the beat thread (relaxed) */
	uint64_t last_op_id;
	bool in_timers;
	void *engine; /* what the connections of this loop share (rpc/sp_pipe.c) */
};

/* For drivers: l gets a driver and a clock; no handle is opened. */
void loop_init(struct loop *l, const struct loop_driver *d, void *driver_data,
	       const struct clock *clock);
/* Asserts that no timer runs and that nothing is expected. */
void loop_fini(struct loop *l);
/* For drivers: drain the inbox, run what is due, arm again. */
void loop_turn(struct loop *l);

static inline uint64_t loop_now_ns(const struct loop *l)
{
	return l->clock->now_ns(l->clock);
}
static inline uint64_t loop_wall_ms(const struct loop *l)
{
	return l->clock->wall_ms(l->clock);
}

/*
 * n bytes nobody can foretell (nonces, instances, jitter): the kernel's; in a simulation the
 * seed's, so that a run can be repeated. Services take random bytes from nowhere else.
 */
static inline void loop_random(struct loop *l, void *p, size_t n)
{
	l->driver->random(l, p, n);
}

/* Starts or restarts t: fn runs once, at or after due_ns (loop_now_ns terms). */
void timer_start(struct loop *l, struct timer *t, uint64_t due_ns, void (*fn)(struct timer *t));
/* Safe on a timer that does not run. */
void timer_stop(struct loop *l, struct timer *t);
static inline bool timer_running(const struct timer *t)
{
	return t->node.linked;
}

static inline void loop_expect(struct loop *l)
{
	inbox_expect(&l->inbox);
}
static inline void loop_post(struct loop *l, struct post *p)
{
	inbox_post(&l->inbox, p);
}
/* Loop thread: fn of p runs on the next turn. Expect and post in one. */
static inline void loop_defer(struct loop *l, struct post *p)
{
	inbox_expect(&l->inbox);
	inbox_post(&l->inbox, p);
}

/* ---- the real driver (loop_uv.c) ---- */

/* l: caller's memory. ERR_NO_MEMORY, ERR_BUSY (descriptors). */
enum err loop_open(struct loop *l) MUST_CHECK;
/* The uv loop, for engines; NULL in a simulation. */
struct uv_loop_s *loop_uv(struct loop *l);
/* Runs until loop_stop(); callable again. */
void loop_run(struct loop *l);
/* Any thread, and a signal handler: loop_run returns after this turn. */
void loop_stop(struct loop *l);
/* One uv turn: waits for an event when block is true. For tests and for closing. */
void loop_run_once(struct loop *l, bool block);
/*
 * The end (style.md section 3, shutdown): runs until expected is 0 and every uv handle that the
 * engines closed is gone, closes its own, asserts uv_loop_close() == 0.
 */
void loop_close(struct loop *l);
