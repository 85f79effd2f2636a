/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread's event loop: an inbox, timers and a clock, over libuv or over the simulator
 * (tests/support/sim.h). Services, rpc and flows use only this; code that needs a descriptor asks
 * for loop_uv(), which is NULL in a simulation, so such code lives in engines that have a
 * simulated twin.
 *
 * Owns: the timer heap and, when real, one uv_async, one uv_idle, one uv_timer and the uv_loop.
 * I1: callbacks run on the loop's thread only, never inside the call that arranged them.
 * I2: timers due at the same time run in the order they were started.
 * I3: a loop that has just had work polls for loop_spin()'s time before it blocks; timers that fire
 *     are no work, so an idle service sleeps.
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
	/* The loop's thread: a turn is due before the loop waits. NULL: wake does as well. */
	void (*soon)(struct loop *l);
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
	uint64_t recent_ns;		   /* see loop_recent_ns */
	uint32_t recent_left, recent_uses; /* uses: 0 but with the real driver */
	bool in_timers, worked;
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
/*
 * The time as of a moment ago: the clock is read (25 ns) once a turn, after loop_worked and after some uses. For traces and
 * what else some microseconds make no difference to. Rises as loop_now_ns does, is never ahead of it. With
 * another driver than the real one: loop_now_ns.
 */
static inline uint64_t loop_recent_ns(struct loop *l)
{
	if (l->recent_left > 0) {
		l->recent_left--;
	} else {
		l->recent_ns = loop_now_ns(l);
		l->recent_left = l->recent_uses;
	}
	return l->recent_ns;
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
/* Loop thread: fn of p runs on the next turn. Expect and post in one, without the system calls of a wake. */
static inline void loop_defer(struct loop *l, struct post *p)
{
	inbox_expect(&l->inbox);
	if (!inbox_put(&l->inbox, p))
		return;
	if (l->driver->soon)
		l->driver->soon(l);
	else
		l->driver->wake(l);
}

/*
 * Loop thread: something came that is likely to be followed by more at once: bytes of a connection,
 * a completion. The inbox tells by itself.
 */
static inline void loop_worked(struct loop *l)
{
	l->worked = true;
	l->recent_left = 0; /* it may have waited for this for long */
}

/* ---- the real driver (loop_uv.c) ---- */

/* l: caller's memory. ERR_NO_MEMORY, ERR_BUSY (descriptors). */
enum err loop_open(struct loop *l) MUST_CHECK;
/* The uv loop, for engines; NULL in a simulation. */
struct uv_loop_s *loop_uv(struct loop *l);
/*
 * From now on the loop polls for spin_us after its last work (loop_worked, posts) before it blocks,
 * and lets others have the CPU between two polls. Waking a CPU that halted costs 25 to 30 us on a
 * virtual machine (measured), each way of a request, so polling about as long as a wake costs is
 * never more than twice the best choice (the ski rental problem).
 *
 * spin_us  0: block at once, the state after loop_open
 * only_if  borrowed until the loop is closed, or NULL: poll only while it is not 0. For loops inside
 *          other people's processes, which poll only for answers they wait for. The loop's thread.
 *
 * Nothing to do in a simulation.
 */
void loop_spin(struct loop *l, uint32_t spin_us, const uint32_t *only_if);
/* Runs until loop_stop(); callable again. */
void loop_run(struct loop *l);
/* Any thread, and a signal handler: loop_run returns after this turn. */
void loop_stop(struct loop *l);
/* One uv turn: waits for an event when block is true (or polls once, see loop_spin). For tests and
 * for closing. */
void loop_run_once(struct loop *l, bool block);
/*
 * The end (style.md section 3, shutdown): runs until expected is 0 and every uv handle that the
 * engines closed is gone, closes its own, asserts uv_loop_close() == 0.
 */
void loop_close(struct loop *l);
