/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops under ThreadSanitizer: many threads post and call loop_stop at any time, and two loops on
 * threads of their own post to each other; each round ends by loop_close while the last posts are
 * still on their way. A wake-up that is lost stops the program (alarm). Plain main: Criterion cannot
 * start under TSan.
 */
#include "loop/loop.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { ROUNDS = 150, THREADS = 4, POSTS = 64, PINGS = 20000, PATIENCE_S = 100 };

/* ---- posts against stops and the end ---- */

struct mine {
	struct post p;
	uint64_t value; /* handed over by the post: plain on purpose */
};

struct poster {
	pthread_t thread;
	struct round *r;
	unsigned seed;
	struct mine posts[POSTS];
};

struct round {
	struct loop loop;
	_Atomic bool go;
	_Atomic uint32_t posting; /* threads that may still call loop_stop */
	uint64_t sum, n, n_turns;
	struct poster posters[THREADS];
};

static struct round *current; /* the loop's thread reads it in on_post */

static void on_post(struct post *p)
{
	struct mine *m = container_of(p, struct mine, p);
	current->sum += m->value;
	current->n++;
}

static void *post_some(void *arg)
{
	struct poster *t = arg;
	while (!atomic_load(&t->r->go))
		sched_yield();
	for (int i = 0; i < POSTS; i++) {
		/* the second half may come when the loop is in loop_close already: no stop there */
		bool last_half = i >= POSTS / 2;
		if (i == POSTS / 2)
			atomic_fetch_sub(&t->r->posting, 1);
		t->posts[i].value = (uint64_t)i + 1;
		loop_post(&t->r->loop, &t->posts[i].p);
		if (!last_half && rand_r(&t->seed) % 4 == 0)
			loop_stop(&t->r->loop);
		if (rand_r(&t->seed) % 8 == 0)
			sched_yield();
	}
	return NULL;
}

static void one_round(unsigned seed)
{
	static struct round r;
	r = (struct round){ .posting = THREADS };
	current = &r;
	enum err e = loop_open(&r.loop);
	assert(e == ERR_NONE);
	for (unsigned k = 0; k < THREADS; k++) {
		struct poster *t = &r.posters[k];
		t->r = &r;
		t->seed = seed * 31 + k;
		for (int i = 0; i < POSTS; i++) {
			t->posts[i].p.fn = on_post;
			loop_expect(&r.loop);
		}
		int rc = pthread_create(&t->thread, NULL, post_some, t);
		assert(rc == 0);
	}
	atomic_store(&r.go, true);
	/* nobody calls loop_stop once posting is 0; until then the loop returns again and again */
	while (atomic_load(&r.posting) > 0) {
		loop_run_once(&r.loop, false);
		if (seed % 2 && r.n < THREADS * POSTS)
			loop_run_once(&r.loop, true); /* a post is still to come */
		if (++r.n_turns % 16 == 0) {
			loop_stop(&r.loop);
			loop_run(&r.loop);
		}
	}
	loop_close(&r.loop);
	for (unsigned k = 0; k < THREADS; k++)
		pthread_join(r.posters[k].thread, NULL);
	assert(r.n == (uint64_t)THREADS * POSTS);
	assert(r.sum == (uint64_t)THREADS * POSTS * (POSTS + 1) / 2);
}

/* ---- two loops ---- */

struct side {
	pthread_t thread;
	struct loop loop;
	struct side *other;
	struct post ball;
	uint64_t seen;
};

static uint64_t hits; /* only who has the ball touches it */

static void on_ball(struct post *p)
{
	struct side *from = container_of(p, struct side, ball);
	struct side *me = from->other;
	me->seen++;
	if (++hits < PINGS) {
		loop_post(&from->loop, &me->ball);
		return;
	}
	loop_stop(&me->loop);
	loop_stop(&from->loop);
}

static void *play(void *arg)
{
	struct side *s = arg;
	loop_run(&s->loop);
	return NULL;
}

static void ping_pong(void)
{
	static struct side s[2];
	for (int i = 0; i < 2; i++) {
		enum err e = loop_open(&s[i].loop);
		assert(e == ERR_NONE);
		s[i].other = &s[1 - i];
		s[i].ball.fn = on_ball;
		for (int n = 0; n < PINGS / 2; n++)
			loop_expect(&s[i].loop);
	}
	loop_post(&s[1].loop, &s[0].ball);
	for (int i = 0; i < 2; i++) {
		int rc = pthread_create(&s[i].thread, NULL, play, &s[i]);
		assert(rc == 0);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(s[i].thread, NULL);
	for (int i = 0; i < 2; i++) {
		assert(s[i].seen == PINGS / 2);
		loop_close(&s[i].loop);
	}
}

int main(void)
{
	alarm(PATIENCE_S);
	for (unsigned i = 0; i < ROUNDS; i++)
		one_round(i);
	ping_pong();
	printf("2 passed, 0 failed\n");
	return 0;
}
