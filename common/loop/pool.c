/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers are threads, or, under a driver that has `later`, slots that the driver gives time: a job
 * is taken at once, worked on later, and ended later still.
 *
 * Lock: queue, counts, job->state. The rest is the loop's.
 */
#include "loop/pool.h"

#include "base/fault.h"
#include "loop/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define THREADS_MAX 256

enum job_state { JOB_IDLE, JOB_QUEUED, JOB_RUNNING, JOB_ENDED };

struct worker {
	struct pool *pool;
	pthread_t thread;
	struct job *job; /* of a slot */
};

struct pool {
	struct loop *loop;
	struct pool_opts o;
	bool simulated;
	uint32_t n_workers; /* that were started */
	uint32_t owed;	    /* accepted, done not yet called; the loop's */
	_Atomic uint64_t progress;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct list queue;
	uint32_t queued, running;
	bool stop;
	struct worker workers[];
};

/* Under the lock. NULL when there is none. */
static struct job *take(struct pool *p)
{
	struct list *n = list_pop_front(&p->queue);
	if (!n)
		return NULL;
	struct job *j = list_entry(n, struct job, node);
	j->state = JOB_RUNNING;
	p->queued--;
	p->running++;
	return j;
}

/* After this the job is the loop's: nothing of it is looked at again. */
static void end(struct pool *p, struct job *j)
{
	pthread_mutex_lock(&p->lock);
	j->state = JOB_ENDED;
	p->running--;
	pthread_mutex_unlock(&p->lock);
	atomic_fetch_add_explicit(&p->progress, 1, memory_order_relaxed);
	loop_post(p->loop, &j->post);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct pool *p = w->pool;
	for (;;) {
		pthread_mutex_lock(&p->lock);
		while (list_empty(&p->queue) && !p->stop)
			pthread_cond_wait(&p->more, &p->lock);
		struct job *j = take(p);
		pthread_mutex_unlock(&p->lock);
		if (!j)
			return NULL;
		j->work(j);
		end(p, j);
	}
}

static enum err start_thread(struct worker *w)
{
	int r = FAULT(pool_thread)
			? EAGAIN
			: thread_start(&w->thread, NULL, w->pool->o.name, worker_main, w);
	return r == 0 ? ERR_NONE : err_from_errno(r);
}

static void join_all(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; !p->simulated && i < p->n_workers; i++)
		pthread_join(p->workers[i].thread, NULL);
}

static void destroy(struct pool *p)
{
	pthread_cond_destroy(&p->more);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

enum err pool_new(struct loop *l, const struct pool_opts *o, struct pool **out)
{
	assert(o->n_threads >= 1 && o->n_threads <= THREADS_MAX && o->depth >= 1);
	assert(strlen(o->name) <= 15);
	struct pool *p = calloc(1, sizeof(*p) + o->n_threads * sizeof(p->workers[0]));
	if (!p)
		return ERR_NO_MEMORY;
	p->loop = l;
	p->o = *o;
	p->simulated = l->driver->later != NULL;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
	list_init(&p->queue);
	for (; p->n_workers < o->n_threads; p->n_workers++) {
		struct worker *w = &p->workers[p->n_workers];
		w->pool = p;
		enum err e = p->simulated ? ERR_NONE : start_thread(w);
		if (e) {
			join_all(p);
			destroy(p);
			return e;
		}
	}
	*out = p;
	return ERR_NONE;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	assert(p->owed == 0);
	join_all(p);
	assert(p->queued == 0 && p->running == 0);
	destroy(p);
}

/* ---- slots of a simulation ---- */

static void slot_take(struct worker *w);

static void slot_end(void *arg)
{
	struct worker *w = arg;
	struct job *j = w->job;
	w->job = NULL;
	end(w->pool, j);
	slot_take(w);
}

static void slot_work(void *arg)
{
	struct worker *w = arg;
	w->job->work(w->job);
	w->pool->loop->driver->later(w->pool->loop, slot_end, w);
}

static void slot_take(struct worker *w)
{
	w->job = take(w->pool);
	if (w->job)
		w->pool->loop->driver->later(w->pool->loop, slot_work, w);
}

static void feed_slot(struct pool *p)
{
	for (uint32_t i = 0; i < p->n_workers; i++)
		if (!p->workers[i].job) {
			slot_take(&p->workers[i]);
			return;
		}
}

/* ---- the loop's side ---- */

static void job_done(struct post *post)
{
	struct job *j = container_of(post, struct job, post);
	struct pool *p = j->pool;
	j->state = JOB_IDLE;
	j->pool = NULL;
	p->owed--;
	j->done(j); /* I1; may free both */
}

enum err pool_submit(struct pool *p, struct job *j)
{
	assert(!j->pool && j->state == JOB_IDLE);
	pthread_mutex_lock(&p->lock);
	if (p->queued == p->o.depth) {
		pthread_mutex_unlock(&p->lock);
		return ERR_BUSY; /* B1 */
	}
	j->pool = p;
	j->err = ERR_NONE;
	j->state = JOB_QUEUED;
	j->post.fn = job_done;
	p->queued++;
	p->owed++;
	loop_expect(p->loop);
	list_init(&j->node);
	list_push_back(&p->queue, &j->node);
	pthread_cond_signal(&p->more);
	pthread_mutex_unlock(&p->lock);
	if (p->simulated)
		feed_slot(p);
	return ERR_NONE;
}

bool pool_cancel(struct job *j)
{
	struct pool *p = j->pool;
	if (!p)
		return false;
	pthread_mutex_lock(&p->lock);
	bool queued = j->state == JOB_QUEUED;
	if (queued) {
		list_del(&j->node);
		p->queued--;
		j->state = JOB_ENDED;
		j->err = ERR_CANCELLED;
	}
	pthread_mutex_unlock(&p->lock);
	if (queued)
		loop_post(p->loop, &j->post); /* I2 */
	return queued;
}

size_t pool_cancel_all(struct pool *p)
{
	size_t n = 0;
	for (;; n++) {
		pthread_mutex_lock(&p->lock);
		struct job *j = list_empty(&p->queue)
					? NULL
					: list_entry(p->queue.next, struct job, node);
		pthread_mutex_unlock(&p->lock);
		if (!j)
			return n;
		/* a worker may have taken it meanwhile: it stays valid until its done, on our thread */
		if (!pool_cancel(j))
			n--;
	}
}

uint64_t pool_progress(const struct pool *p)
{
	return atomic_load_explicit(&p->progress, memory_order_relaxed);
}

uint32_t pool_queued(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	uint32_t n = p->queued;
	pthread_mutex_unlock(&p->lock);
	return n;
}

uint32_t pool_running(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	uint32_t n = p->running;
	pthread_mutex_unlock(&p->lock);
	return n;
}
