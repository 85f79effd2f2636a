/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From any thread into the loop: posts a second through an inbox (a short lock, one wake-up on empty
 * to non-empty), against the two usual ways: a write to an eventfd for every item, and a queue
 * with a mutex and a condition. One producer that never has more than WINDOW items outstanding.
 */
#include "bench.h"

#include "base/clock.h"
#include "loop/loop.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WINDOW = 256, ITEMS = 200000 };

struct item {
	struct post p;
	struct item *next;
	_Atomic bool free;
};

/* One sample's world. */
struct world {
	struct item items[WINDOW];
	uint64_t taken;
	struct loop loop;
	int event_fd;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct item *head, **tail;
	void (*hand_over)(struct world *w, struct item *it);
};

static struct world the_world;

static void *produce(void *arg)
{
	struct world *w = arg;
	for (uint64_t i = 0; i < ITEMS; i++) {
		struct item *it = &w->items[i % WINDOW];
		while (!atomic_load_explicit(&it->free, memory_order_acquire))
			sched_yield();
		atomic_store_explicit(&it->free, false, memory_order_relaxed);
		w->hand_over(w, it);
	}
	return NULL;
}

static void release(struct item *it)
{
	atomic_store_explicit(&it->free, true, memory_order_release);
}

/* ---- the inbox ---- */

static void posted(struct post *p)
{
	struct item *it = container_of(p, struct item, p);
	struct world *w = &the_world;
	if (++w->taken == ITEMS)
		loop_stop(&w->loop);
	if (w->taken <= ITEMS - WINDOW)
		loop_expect(&w->loop);
	release(it);
}

static void post_item(struct world *w, struct item *it)
{
	loop_post(&w->loop, &it->p);
}

static void consume_inbox(struct world *w)
{
	loop_run(&w->loop);
}

/* ---- a list, woken by an eventfd or a condition ---- */

static void push(struct world *w, struct item *it)
{
	it->next = NULL;
	*w->tail = it;
	w->tail = &it->next;
}

static struct item *pop(struct world *w)
{
	struct item *it = w->head;
	w->head = it->next;
	if (!w->head)
		w->tail = &w->head;
	return it;
}

static void write_item(struct world *w, struct item *it)
{
	uint64_t one = 1;
	pthread_mutex_lock(&w->lock);
	push(w, it);
	pthread_mutex_unlock(&w->lock);
	if (write(w->event_fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static void consume_eventfd(struct world *w)
{
	while (w->taken < ITEMS) {
		uint64_t n;
		if (read(w->event_fd, &n, sizeof(n)) != sizeof(n))
			abort();
		for (; n > 0; n--) {
			pthread_mutex_lock(&w->lock);
			struct item *it = pop(w);
			pthread_mutex_unlock(&w->lock);
			w->taken++;
			release(it);
		}
	}
}

static void signal_item(struct world *w, struct item *it)
{
	pthread_mutex_lock(&w->lock);
	push(w, it);
	pthread_cond_signal(&w->more);
	pthread_mutex_unlock(&w->lock);
}

static void consume_cond(struct world *w)
{
	while (w->taken < ITEMS) {
		pthread_mutex_lock(&w->lock);
		while (!w->head)
			pthread_cond_wait(&w->more, &w->lock);
		struct item *it = pop(w);
		pthread_mutex_unlock(&w->lock);
		w->taken++;
		release(it);
	}
}

/* ---- samples ---- */

static void must(bool ok)
{
	if (!ok)
		abort();
}

static double sample(struct world *w, void (*hand_over)(struct world *w, struct item *it),
		     void (*consume)(struct world *w))
{
	pthread_t t;
	w->taken = 0;
	w->head = NULL;
	w->tail = &w->head;
	w->hand_over = hand_over;
	for (int i = 0; i < WINDOW; i++) {
		w->items[i].p.fn = posted;
		w->items[i].free = true;
		if (consume == consume_inbox)
			loop_expect(&w->loop);
	}
	uint64_t t0 = clock_real.now_ns(&clock_real);
	must(pthread_create(&t, NULL, produce, w) == 0);
	consume(w);
	uint64_t t1 = clock_real.now_ns(&clock_real);
	pthread_join(t, NULL);
	return ITEMS * 1e9 / (double)(t1 - t0);
}

static double ours(void *arg)
{
	return sample(arg, post_item, consume_inbox);
}

static double eventfd_each(void *arg)
{
	return sample(arg, write_item, consume_eventfd);
}

static double cond_queue(void *arg)
{
	return sample(arg, signal_item, consume_cond);
}

int main(int argc, char **argv)
{
	static const struct bench_row rows[] = {
		{ "inbox.post_eventfd", "items/s", false, ours, eventfd_each,
		  "an eventfd write an item", 0, "1 producer, 256 outstanding" },
		{ "inbox.post_cond", "items/s", false, ours, cond_queue,
		  "a mutex and a condition", 0, "1 producer, 256 outstanding" },
	};
	struct world *w = &the_world;
	must(loop_open(&w->loop) == ERR_NONE);
	w->event_fd = eventfd(0, EFD_CLOEXEC);
	must(w->event_fd >= 0);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->more, NULL);
	int rc = bench_main(argc, argv, rows, ARRAY_LEN(rows), w);
	loop_close(&w->loop);
	return rc;
}
