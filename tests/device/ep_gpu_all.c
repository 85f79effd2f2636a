/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks of a job, as threads or processes, under a watchdog; random jobs. */
#include "ep_gpu.h"
#include "gpu/gpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared *shared_new(void)
{
	void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	return p;
}

/* ---- the watchdog ---- */

static void stalled(const struct watch *w)
{
	printf("STALL: no rank moved for %d s\n", STALL_S);
	for (uint32_t r = 0; r < w->n_ranks; r++)
		printf("  rank %u: %s, step %u, for %.1f s; %s %s\n", r,
		       w->sh->stage[r].what ? w->sh->stage[r].what : "not started",
		       w->sh->stage[r].step, now_s() - w->sh->stage[r].since_s,
		       w->sh->missed[r], w->sh->text[r]);
	for (uint32_t r = 0; !w->pids && r < w->n_ranks;
	     r++) /* page-locked memory: no call of CUDA */
		for (uint32_t p = 0; w->sh->bufs[r] && p < w->n_ranks; p++) {
			struct why text = { 0 };
			if (ep_missed(w->sh->bufs[r], p, NULL, &text))
				printf("  rank %u on the GPU: %s\n", r, text.text);
		}
	for (uint32_t i = 0; w->pids && i < w->n_pids; i++)
		if (w->pids[i] > 0)
			kill(w->pids[i], SIGKILL);
	_exit(4);
}

static void *watch_main(void *arg)
{
	struct watch *w = arg;
	uint64_t seen = 0;
	double since = now_s();
	while (!__atomic_load_n(&w->end, __ATOMIC_ACQUIRE)) {
		usleep(100000);
		uint64_t moves = __atomic_load_n(&w->sh->moves, __ATOMIC_RELAXED);
		if (moves != seen) {
			seen = moves;
			since = now_s();
		}
		if (now_s() - since >= STALL_S)
			stalled(w);
	}
	return NULL;
}

void watch_start(struct watch *w)
{
	pthread_create(&w->thread, NULL, watch_main, w);
}

void watch_end(struct watch *w)
{
	__atomic_store_n(&w->end, true, __ATOMIC_RELEASE);
	pthread_join(w->thread, NULL);
}

/* ---- ranks ---- */

struct team {
	struct job jobs[64];
	struct ep_exchange *xs[64];
	void *lanes[64]; /* kept over configurations */
	pthread_t th[64];
	pid_t pids[64];
	char path[64];
};

static void *thread_main(void *arg)
{
	struct job *j = arg;
	j->graph ? run_graph(j) : run_rank(j);
	return NULL;
}

static void start_thread(struct team *t, uint32_t r)
{
	struct why why = { 0 };
	struct job *j = &t->jobs[r];
	if (!t->lanes[r] && j->n_gpus == 1 &&
	    gpu_stream_new(0, &t->lanes[r], &why) != ERR_NONE) {
		printf("%s\n", why.text);
		exit(3);
	}
	j->lane = t->lanes[r];
	j->x = t->xs[r];
	pthread_create(&t->th[r], NULL, thread_main, j);
}

static void start_process(struct team *t, uint32_t r)
{
	struct why why = { 0 };
	struct job *j = &t->jobs[r];
	t->pids[r] = fork();
	if (t->pids[r] != 0)
		return;
	if (exchange_socket(t->path, r, j->c.n_ranks, 60000000, &j->x, &why) != ERR_NONE)
		job_fail(j, "%s", why.text);
	else
		run_rank(j), j->x->close(j->x);
	_exit(0);
}

/* Prints each rank's first failure; the number of failures. */
static uint64_t await_ranks(struct team *t, const struct shared *sh, uint32_t n, bool procs)
{
	uint64_t differ = 0;
	for (uint32_t r = 0; r < n; r++) {
		int st = 0;
		if (procs && (waitpid(t->pids[r], &st, 0) < 0 || st != 0))
			job_fail(&t->jobs[r], "process ended with status %d", st);
		if (!procs)
			pthread_join(t->th[r], NULL), t->xs[r]->close(t->xs[r]);
		differ += sh->differ[r];
		if (sh->differ[r])
			printf("  rank %u: %s\n", r, sh->text[r]);
	}
	return differ;
}

bool run_all(const struct job *proto, bool procs)
{
	static struct team t;
	const struct naive *c = &proto->c;
	struct watch w = { .sh = shared_new(),
			   .pids = procs ? t.pids : NULL,
			   .n_pids = c->n_ranks,
			   .n_ranks = c->n_ranks };
	double from = now_s();
	snprintf(t.path, sizeof(t.path), "/tmp/ep_gpu.%d", (int)getpid());
	unlink(t.path);
	if (!procs && exchange_local(c->n_ranks, t.xs) != ERR_NONE)
		return false;
	for (uint32_t r = 0; r < c->n_ranks; r++) {
		t.jobs[r] = *proto;
		t.jobs[r].me = r;
		t.jobs[r].sh = w.sh;
		t.jobs[r].victim = -1;
		t.jobs[r].timeout_us = TIMEOUT_US;
		procs ? start_process(&t, r) : start_thread(&t, r);
	}
	watch_start(&w);
	uint64_t differ = await_ranks(&t, w.sh, c->n_ranks, procs);
	watch_end(&w);
	printf("  ranks %u experts %u top_k %u hidden %u tokens %u fp8 %u zc %d hook %d async %d seed %llu: %u steps, %.2f s: %s\n",
	       c->n_ranks, c->n_experts, c->top_k, c->hidden, c->max_tokens, c->fp8,
	       proto->zero_copy, proto->hook, proto->async, (unsigned long long)c->seed,
	       proto->steps, now_s() - from, differ ? "DIFFERS" : "equal");
	munmap(w.sh, sizeof(*w.sh));
	return differ == 0;
}

/* ---- random jobs ---- */

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * 0x2545F4914F6CDD1Dull >> 11;
}

/* The host transport replays every step, and windows hold two slots of outputs of every rank. */
static void keep_small(struct naive *c)
{
	while ((uint64_t)c->n_ranks * c->max_tokens * c->top_k * c->hidden > (4u << 20) &&
	       c->max_tokens > 1)
		c->max_tokens /= 2;
	while ((uint64_t)c->n_experts * c->n_ranks * c->max_tokens * c->hidden * 8 >
		       (96u << 20) &&
	       (c->max_tokens > 1 || c->hidden > 128)) {
		if (c->max_tokens > 1)
			c->max_tokens /= 2;
		else
			c->hidden = c->hidden / 256 * 128;
	}
}

void random_job(struct job *j, uint64_t seed, uint32_t n_gpus, uint32_t max_ranks)
{
	uint64_t s = seed * 0x9E3779B97F4A7C15ull + 1;
	*j = (struct job){ .n_gpus = n_gpus, .replay_every = 1 };
	struct naive *c = &j->c;
	c->seed = seed * 1000;
	c->n_ranks = 1 + (uint32_t)(rnd(&s) % (rnd(&s) % 4 ? 8 : 16));
	if (max_ranks && c->n_ranks > max_ranks)
		c->n_ranks = 1 + c->n_ranks % max_ranks;
	c->n_experts = 1 + (uint32_t)(rnd(&s) % (rnd(&s) % 4 ? 64 : 512));
	c->top_k = 1 + (uint32_t)(rnd(&s) % MIN_OF(32u, c->n_experts));
	c->hidden = 128 * (1 + (uint32_t)(rnd(&s) % (rnd(&s) % 8 ? 8 : 64)));
	c->max_tokens = 1 + (uint32_t)(rnd(&s) % (c->n_experts * c->hidden > 65536 ? 9 : 80));
	if (rnd(&s) % 6 ==
	    0) { /* many tokens: the ways of large batches, whole rows to a warp */
		c->top_k = MIN_OF(c->top_k, 3u);
		c->hidden = 128 * (1 + (uint32_t)(rnd(&s) % 9));
		c->n_experts = MIN_OF(c->n_experts, 8u);
		c->top_k = MIN_OF(c->top_k, c->n_experts);
		c->max_tokens = 400;
	}
	keep_small(c);
	c->fp8 = rnd(&s) & 1;
	j->zero_copy = rnd(&s) & 1;
	j->hook = rnd(&s) & 1;
	j->async = rnd(&s) & 1;
	j->steps = 1 + (uint32_t)(rnd(&s) % 4);
	bool even = c->n_experts % c->n_ranks == 0 && (rnd(&s) & 1);
	for (uint32_t e = 0; e < c->n_experts; e++)
		j->owner[e] = even ? e / (c->n_experts / c->n_ranks)
				   : (uint32_t)(rnd(&s) % c->n_ranks);
}
