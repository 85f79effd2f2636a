/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libuv driver of struct loop. Owns the uv_loop, one async, one idle and one timer handle.
 * Thread: the loop's; wake and loop_stop from any.
 */
#include "loop/loop.h"

#include <errno.h>
#include <sched.h>
#include <sys/random.h>
#include <uv.h>

enum { RECENT_USES = 16 };

struct loop_uv {
	uv_loop_t uv;
	uv_async_t async;
	uv_idle_t idle; /* active: something was deferred; uv does not wait then */
	uv_timer_t timer;
	struct loop *loop;
	_Atomic bool stop;
	/* see loop_spin */
	uint64_t spin_ns, spin_end_ns; /* end: 0 not polling, UINT64_MAX not yet known */
	const uint32_t *only_if;
};

static void uv_wake(struct loop *l)
{
	struct loop_uv *d = l->driver_data;
	uv_async_send(&d->async);
}

static void on_timer(uv_timer_t *t)
{
	struct loop_uv *d = t->data;
	loop_turn(d->loop);
}

static void uv_arm(struct loop *l, uint64_t first_due_ns)
{
	struct loop_uv *d = l->driver_data;
	if (first_due_ns == UINT64_MAX) {
		uv_timer_stop(&d->timer);
		return;
	}
	/* uv counts from its own cached, coarse now: bring it up to date first */
	uv_update_time(&d->uv);
	uv_timer_start(&d->timer, on_timer, clock_left_ms(first_due_ns, loop_now_ns(l)), 0);
}

static void uv_random_bytes(struct loop *l, void *p, size_t n)
{
	(void)l;
	for (uint8_t *at = p; n > 0;) {
		ssize_t r = getrandom(at, n, 0);
		assert(r > 0 || errno == EINTR); /* it can fail no other way on Linux */
		if (r > 0) {
			at += r;
			n -= (size_t)r;
		}
	}
}

static void on_idle(uv_idle_t *i)
{
	struct loop_uv *d = i->data;
	uv_idle_stop(i); /* what is deferred in this turn starts it again */
	loop_turn(d->loop);
}

static void uv_soon(struct loop *l)
{
	struct loop_uv *d = l->driver_data;
	uv_idle_start(&d->idle, on_idle);
}

static const struct loop_driver driver = {
	.wake = uv_wake,
	.soon = uv_soon,
	.arm = uv_arm,
	.random = uv_random_bytes,
};

static void on_async(uv_async_t *a)
{
	struct loop_uv *d = a->data;
	loop_turn(d->loop);
}

enum err loop_open(struct loop *l)
{
	struct loop_uv *d = calloc(1, sizeof(*d));
	if (!d)
		return ERR_NO_MEMORY;
	int r = uv_loop_init(&d->uv);
	if (r != 0)
		goto fail_mem;
	r = uv_async_init(&d->uv, &d->async, on_async);
	if (r != 0)
		goto fail_loop;
	uv_timer_init(&d->uv, &d->timer);
	uv_idle_init(&d->uv, &d->idle);
	d->async.data = d->timer.data = d->idle.data = d;
	d->loop = l;
	loop_init(l, &driver, d, &clock_real);
	l->recent_uses = RECENT_USES;
	return ERR_NONE;

fail_loop:
	uv_loop_close(&d->uv);
fail_mem:
	free(d);
	return err_from_errno(-r);
}

struct uv_loop_s *loop_uv(struct loop *l)
{
	if (l->driver != &driver)
		return NULL;
	return &((struct loop_uv *)l->driver_data)->uv;
}

void loop_spin(struct loop *l, uint32_t spin_us, const uint32_t *only_if)
{
	if (!loop_uv(l))
		return;
	struct loop_uv *d = l->driver_data;
	d->spin_ns = spin_us * NS_PER_US;
	d->only_if = only_if;
}

/* Whether to poll once more (I3). The clock is read only when a pass found nothing. */
static bool may_poll(struct loop_uv *d)
{
	struct loop *l = d->loop;
	if (l->worked) {
		l->worked = false;
		d->spin_end_ns = UINT64_MAX;
	}
	if (d->spin_ns == 0 || d->spin_end_ns == 0 || (d->only_if && *d->only_if == 0))
		return false;
	return d->spin_end_ns == UINT64_MAX || loop_now_ns(l) < d->spin_end_ns;
}

/* One pass, which waits in the kernel once polling pays no more. */
static void wait_pass(struct loop_uv *d)
{
	d->loop->recent_left = 0;
	if (!may_poll(d)) {
		d->spin_end_ns = 0;
		uv_run(&d->uv, UV_RUN_ONCE);
		return;
	}
	uv_run(&d->uv, UV_RUN_NOWAIT);
	if (d->loop->worked)
		return;
	if (d->spin_end_ns == UINT64_MAX)
		d->spin_end_ns = loop_now_ns(d->loop) + d->spin_ns;
	sched_yield(); /* on a crowded machine nobody waits for our polling */
}

void loop_run(struct loop *l)
{
	struct loop_uv *d = l->driver_data;
	while (!d->stop)
		wait_pass(d);
	d->stop = false;
}

void loop_stop(struct loop *l)
{
	struct loop_uv *d = l->driver_data;
	d->stop = true;
	uv_async_send(&d->async);
}

void loop_run_once(struct loop *l, bool block)
{
	struct loop_uv *d = l->driver_data;
	if (block)
		wait_pass(d);
	else
		uv_run(&d->uv, UV_RUN_NOWAIT);
}

void loop_close(struct loop *l)
{
	struct loop_uv *d = l->driver_data;
	while (l->inbox.expected > 0)
		uv_run(&d->uv, UV_RUN_ONCE);
	uv_close((uv_handle_t *)&d->async, NULL);
	uv_close((uv_handle_t *)&d->timer, NULL);
	uv_close((uv_handle_t *)&d->idle, NULL);
	while (uv_run(&d->uv, UV_RUN_DEFAULT) != 0)
		continue;
	int r = uv_loop_close(&d->uv);
	assert(r == 0);
	(void)r;
	loop_fini(l);
	free(d);
}
