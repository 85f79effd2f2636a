/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: real threads on a uv loop, and slots on a driver that has `later`. */
#include "loop/pool.h"

#include "base/fault.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "fake_loop.h"
#include "tests/support/leak.h"

struct task {
	struct job j;
	struct gate *gate;
	struct pool *again; /* submit again this many times */
	unsigned left, order, done;
	char thread[16];
	bool signals_blocked;
};

/* Holds workers until opened. */
struct gate {
	pthread_mutex_t m;
	pthread_cond_t c;
	bool open;
	_Atomic unsigned entered;
};

static void gate_open(struct gate *g)
{
	pthread_mutex_lock(&g->m);
	g->open = true;
	pthread_cond_broadcast(&g->c);
	pthread_mutex_unlock(&g->m);
}

static void task_work(struct job *j)
{
	struct task *t = container_of(j, struct task, j);
	sigset_t now;
	pthread_getname_np(pthread_self(), t->thread, sizeof(t->thread));
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	t->signals_blocked = sigismember(&now, SIGTERM) == 1;
	if (t->gate) {
		atomic_fetch_add(&t->gate->entered, 1);
		pthread_mutex_lock(&t->gate->m);
		while (!t->gate->open)
			pthread_cond_wait(&t->gate->c, &t->gate->m);
		pthread_mutex_unlock(&t->gate->m);
	}
	j->err = ERR_IO;
}

static unsigned n_done;

static void task_done(struct job *j)
{
	struct task *t = container_of(j, struct task, j);
	t->done++;
	t->order = ++n_done;
	if (t->again && t->left-- > 0)
		cr_assert_eq(pool_submit(t->again, j), ERR_NONE);
}

static struct task make(struct gate *g)
{
	return (struct task){ .j = { .work = task_work, .done = task_done }, .gate = g };
}

static void run_until_done(struct loop *l, unsigned n)
{
	while (n_done < n)
		loop_run_once(l, true);
}

Test(pool, jobs_run_on_workers_and_end_on_the_loop, .timeout = 10)
{
	struct loop l;
	struct pool *p;
	struct task t[20];
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(pool_new(&l, &(struct pool_opts){ "pml-io", 3, 20 }, &p), ERR_NONE);
	for (int i = 0; i < 20; i++) {
		t[i] = make(NULL);
		cr_assert_eq(pool_submit(p, &t[i].j), ERR_NONE);
		cr_expect_eq(t[i].done, 0);
	}
	run_until_done(&l, 20);
	for (int i = 0; i < 20; i++) {
		cr_expect_eq(t[i].done, 1);
		cr_expect_eq(t[i].j.err, ERR_IO);
		cr_expect_str_eq(t[i].thread, "pml-io");
		cr_expect(t[i].signals_blocked);
		cr_expect(!pool_cancel(&t[i].j), "it has ended");
	}
	cr_expect_eq(pool_progress(p), 20);
	cr_expect_eq(pool_queued(p), 0);
	cr_expect_eq(pool_running(p), 0);
	pool_free(p);
	pool_free(NULL);
	loop_close(&l);
	NO_LEAKS();
}

/* B1, I2, I3 */
Test(pool, full_busy_cancel, .timeout = 10)
{
	struct loop l;
	struct pool *p;
	struct gate g = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0 };
	struct task t[5];
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(pool_new(&l, &(struct pool_opts){ "w", 1, 3 }, &p), ERR_NONE);
	for (int i = 0; i < 5; i++)
		t[i] = make(&g);
	cr_assert_eq(pool_submit(p, &t[0].j), ERR_NONE);
	while (g.entered == 0)
		sched_yield();
	for (int i = 1; i < 4; i++)
		cr_assert_eq(pool_submit(p, &t[i].j), ERR_NONE);
	cr_expect_eq(pool_submit(p, &t[4].j), ERR_BUSY);
	cr_expect(!pool_cancel(&t[4].j), "it was refused");
	cr_expect_eq(pool_queued(p), 3);
	cr_expect_eq(pool_running(p), 1);
	cr_expect(!pool_cancel(&t[0].j), "it has begun");
	cr_expect(pool_cancel(&t[2].j));
	cr_expect(!pool_cancel(&t[2].j), "it is cancelled");
	cr_expect_eq(t[2].done, 0);
	cr_assert_eq(pool_submit(p, &t[4].j), ERR_NONE, "there is room again");
	gate_open(&g);
	run_until_done(&l, 5);
	cr_expect_eq(t[2].j.err, ERR_CANCELLED);
	cr_expect_eq(t[2].thread[0], '\0', "its work never ran");
	cr_expect(t[0].order < t[1].order && t[1].order < t[3].order &&
		  t[3].order < t[4].order);
	cr_expect_eq(pool_progress(p), 4);
	pool_free(p);
	loop_close(&l);
	NO_LEAKS();
}

Test(pool, cancel_all, .timeout = 10)
{
	struct loop l;
	struct pool *p;
	struct gate g = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0 };
	struct task t[6];
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(pool_new(&l, &(struct pool_opts){ "w", 2, 8 }, &p), ERR_NONE);
	for (int i = 0; i < 6; i++) {
		t[i] = make(&g);
		cr_assert_eq(pool_submit(p, &t[i].j), ERR_NONE);
	}
	while (g.entered < 2)
		sched_yield();
	cr_expect_eq(pool_cancel_all(p), 4);
	cr_expect_eq(pool_cancel_all(p), 0);
	gate_open(&g);
	run_until_done(&l, 6);
	for (int i = 0; i < 6; i++)
		cr_expect_eq(t[i].j.err, i < 2 ? ERR_IO : ERR_CANCELLED);
	pool_free(p);
	loop_close(&l);
	NO_LEAKS();
}

Test(pool, done_may_submit_again, .timeout = 10)
{
	struct loop l;
	struct pool *p;
	struct task t = make(NULL);
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(pool_new(&l, &(struct pool_opts){ "w", 1, 1 }, &p), ERR_NONE);
	t.again = p;
	t.left = 100;
	cr_assert_eq(pool_submit(p, &t.j), ERR_NONE);
	run_until_done(&l, 101);
	cr_expect_eq(t.done, 101);
	pool_free(p);
	loop_close(&l);
	NO_LEAKS();
}

/* The driver decides when; n_threads jobs are in flight. */
Test(pool, simulated, .timeout = 5)
{
	struct fake_loop f;
	struct pool *p;
	struct task t[5];
	fake_open(&f, true);
	cr_assert_eq(pool_new(&f.l, &(struct pool_opts){ "w", 2, 3 }, &p), ERR_NONE);
	for (int i = 0; i < 5; i++) {
		t[i] = make(NULL);
		cr_assert_eq(pool_submit(p, &t[i].j), ERR_NONE);
	}
	struct task extra = make(NULL);
	cr_expect_eq(pool_submit(p, &extra.j), ERR_BUSY);
	cr_expect_eq(f.n_later, 2);
	cr_expect_eq(pool_running(p), 2);
	cr_expect_eq(pool_queued(p), 3);
	cr_expect(!pool_cancel(&t[1].j));
	cr_expect(pool_cancel(&t[3].j));
	fake_work(&f, 1); /* the second begins first */
	cr_expect_eq(t[1].j.err, ERR_IO);
	cr_expect_eq(t[0].j.err, ERR_NONE);
	fake_work(&f, 1); /* and ends: the third is taken */
	cr_expect_eq(f.n_later, 2);
	cr_expect_eq(t[1].done, 0);
	fake_turn(&f, 0);
	cr_expect_eq(t[1].done, 1);
	cr_expect_eq(t[3].done, 1);
	cr_expect_eq(t[3].j.err, ERR_CANCELLED);
	while (f.n_later > 0)
		fake_work(&f, 0);
	fake_turn(&f, 0);
	cr_expect_eq(n_done, 5);
	cr_expect_eq(pool_progress(p), 4);
	pool_free(p);
	fake_close(&f);
	NO_LEAKS();
}

Test(pool, no_threads_left, .timeout = 5)
{
	if (!fault_built())
		cr_skip_test("needs -Dfaults=true");
	struct fake_loop f;
	fake_open(&f, false);
	for (uint32_t skip = 0;; skip++) {
		struct pool *p = NULL;
		fault_arm(FAULT_pool_thread, skip, 1);
		enum err e = pool_new(&f.l, &(struct pool_opts){ "w", 3, 3 }, &p);
		if (fault_hits(FAULT_pool_thread) == 0) {
			cr_expect_eq(skip, 3);
			cr_expect_eq(e, ERR_NONE);
			pool_free(p);
			break;
		}
		cr_expect_eq(e, ERR_BUSY);
		cr_expect_null(p);
	}
	fault_disarm_all();
	fake_close(&f);
	NO_LEAKS();
}

Test(pool, free_with_a_job_inside_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct fake_loop f;
	struct pool *p;
	struct task t = make(NULL);
	fake_open(&f, true);
	cr_assert_eq(pool_new(&f.l, &(struct pool_opts){ "w", 1, 1 }, &p), ERR_NONE);
	cr_assert_eq(pool_submit(p, &t.j), ERR_NONE);
	pool_free(p);
}
