/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/loop.h"

static void wake(void *arg)
{
	struct loop *l = arg;
	l->driver->wake(l);
}

void loop_init(struct loop *l, const struct loop_driver *d, void *driver_data,
	       const struct clock *clock)
{
	*l = (struct loop){
		.clock = clock, .driver = d, .driver_data = driver_data, .armed_ns = UINT64_MAX
	};
	inbox_init(&l->inbox, wake, l);
}

void loop_fini(struct loop *l)
{
	assert(l->timers.root == NULL);
	inbox_fini(&l->inbox);
}

static void rearm(struct loop *l)
{
	if (l->in_timers)
		return; /* loop_turn does it once, at its end */
	struct heap_node *first = heap_min(&l->timers);
	uint64_t due = first ? first->key : UINT64_MAX;
	if (due == l->armed_ns && due != 0) /* 0: see loop_turn */
		return;
	l->armed_ns = due;
	l->driver->arm(l, due);
}

void timer_start(struct loop *l, struct timer *t, uint64_t due_ns, void (*fn)(struct timer *t))
{
	heap_remove(&l->timers, &t->node);
	t->fn = fn;
	heap_insert(&l->timers, &t->node, due_ns);
	rearm(l);
}

void timer_stop(struct loop *l, struct timer *t)
{
	heap_remove(&l->timers, &t->node);
	rearm(l);
}

/* Timers started while we run have a higher seq: one turn cannot run for ever. */
static void run_due(struct loop *l)
{
	uint64_t now = loop_now_ns(l), last_seq = l->timers.next_seq;
	struct heap_node *n;
	while ((n = heap_min(&l->timers)) && n->key <= now && n->seq < last_seq) {
		struct timer *t = container_of(n, struct timer, node);
		heap_remove(&l->timers, n);
		t->fn(t);
	}
}

void loop_turn(struct loop *l)
{
	l->in_timers = true;
	l->recent_left = 0;
	__atomic_store_n(&l->turns, l->turns + 1, __ATOMIC_RELAXED);
	l->worked |= inbox_drain(&l->inbox) > 0;
	run_due(l);
	l->in_timers = false;
	l->armed_ns = 0; /* whatever was armed has fired or may be stale */
	rearm(l);
}
