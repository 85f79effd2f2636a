/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools under ThreadSanitizer: jobs are submitted, cancelled and submitted again from their done
 * while workers take them and another thread reads the progress, as the beat does.
 */
#include "loop/pool.h"

#include <stdatomic.h>
#include <stdio.h>

enum { JOBS = 64, ENDS = 30000, POOLS = 3 };

struct task {
	struct job j;
	uint64_t value; /* plain: the worker's between submit and done */
	uint64_t runs;
};

static struct loop loop;
static struct pool *pool;
static struct task tasks[JOBS];
static uint64_t ends, cancelled, seed = 1;
static bool stopping;
static _Atomic bool watching;

static uint64_t rng(void)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return seed >> 33;
}

static void work(struct job *j)
{
	struct task *t = container_of(j, struct task, j);
	t->value++;
	j->err = ERR_NONE;
}

static void done(struct job *j)
{
	struct task *t = container_of(j, struct task, j);
	ends++;
	if (j->err == ERR_CANCELLED)
		cancelled++;
	else
		t->runs++;
	assert(t->value == t->runs);
	if (ends >= ENDS)
		stopping = true;
	if (stopping)
		return;
	/* a full queue is allowed: somebody else's done will submit this one */
	for (int i = 0; i < 3; i++) {
		struct task *other = &tasks[rng() % JOBS];
		if (other->j.pool) {
			if (rng() % 4 == 0)
				(void)pool_cancel(&other->j);
		} else if (pool_submit(pool, &other->j) != ERR_NONE) {
			break;
		}
	}
	if (!j->pool)
		(void)!pool_submit(pool, j);
}

static void *watch(void *arg)
{
	uint64_t last = 0;
	while (watching) {
		uint64_t now = pool_progress(arg);
		assert(now >= last);
		last = now;
	}
	return NULL;
}

static void one_pool(uint32_t n_threads)
{
	pthread_t watcher;
	enum err e = pool_new(&loop, &(struct pool_opts){ "race", n_threads, JOBS / 2 }, &pool);
	assert(e == ERR_NONE);
	watching = true;
	int r = pthread_create(&watcher, NULL, watch, pool);
	assert(r == 0);
	ends = 0;
	stopping = false;
	for (int i = 0; i < JOBS / 2; i++) {
		e = pool_submit(pool, &tasks[i].j);
		assert(e == ERR_NONE);
	}
	while (!stopping)
		loop_run_once(&loop, true);
	(void)pool_cancel_all(pool);
	while (loop.inbox.expected > 0)
		loop_run_once(&loop, true);
	watching = false;
	pthread_join(watcher, NULL);
	pool_free(pool);
}

int main(void)
{
	enum err e = loop_open(&loop);
	assert(e == ERR_NONE);
	for (int i = 0; i < JOBS; i++)
		tasks[i].j = (struct job){ .work = work, .done = done };
	for (uint32_t i = 0; i < POOLS; i++)
		one_pool(1 + i * 2);
	loop_close(&loop);
	assert(cancelled > 0);
	printf("1 passed, 0 failed\n");
	return 0;
}
