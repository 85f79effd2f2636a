/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expert-parallel suite on a GPU. Ranks are streams of one process, or with --procs processes
 * that share the GPU (with or without the multi-process service) or take one GPU each (--gpus N).
 *
 *   ep_gpu compare CONFIGS SEED   random configurations: the ipc transport and the host transport
 *                                 run on equal inputs, every output bit is compared
 *   ep_gpu soak STEPS RANKS TOKENS HIDDEN TOPK EXPERTS   checks every step with the naive kernels of
 *                                 ep_naive.cu; the host transport replays one step in 500
 *   ep_gpu graph STEPS            a captured step is replayed and checked
 *   ep_gpu fault                  a rank killed or stopped in a step; survivors go on; it is replaced
 *   ep_gpu refuse                 what must be refused, and that the process lives
 *   ep_gpu cast STEPS             the cast to fp8 over every kind of number, against num.h
 *
 * EP_GPU_TUNE: a sum of EP_TUNE_*, for all buffers. Prints a line a configuration with its time, and
 * one a mode; exit 0 when nothing differed, 77 without a GPU. When no rank makes progress for STALL_S
 * seconds it prints where each rank stands, and which flag each waits for once that time-out has
 * passed, and ends with exit code 4.
 */
#include "ep_gpu.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct args {
	bool procs;
	uint32_t n_gpus, max_ranks;
	const char *a[8]; /* after the mode */
	int n;
};

static uint32_t number(const struct args *a, int i, uint32_t otherwise)
{
	return i < a->n ? (uint32_t)strtoul(a->a[i], NULL, 10) : otherwise;
}

static uint64_t mode_compare(const struct args *a)
{
	static struct job j;
	uint32_t configs = number(a, 0, 100), seed = number(a, 1, 1);
	uint64_t bad_n = 0;
	for (uint32_t i = 0; i < configs && bad_n < 5; i++) {
		random_job(&j, seed + i, a->n_gpus, a->max_ranks);
		bad_n += !run_all(&j, a->procs);
	}
	printf("ep_gpu compare%s: %u configurations from seed %u, %llu differ from the host transport\n",
	       a->procs ? " --procs" : "", configs, seed, (unsigned long long)bad_n);
	return bad_n;
}

static uint64_t mode_soak(const struct args *a)
{
	static struct job j;
	uint32_t steps = number(a, 0, 100);
	struct naive *c = &j.c;
	j = (struct job){ .steps = steps,
			  .n_gpus = a->n_gpus,
			  .async = true,
			  .mixed = true,
			  .replay_every = 500 };
	*c = (struct naive){ .seed = 12345,
			     .n_ranks = number(a, 1, 2),
			     .max_tokens = number(a, 2, 128),
			     .hidden = number(a, 3, 7168),
			     .top_k = number(a, 4, 8),
			     .n_experts = number(a, 5, 32) };
	for (uint32_t e = 0; e < c->n_experts; e++)
		j.owner[e] = e / (c->n_experts / c->n_ranks);
	uint64_t bad_n = !run_all(&j, a->procs);
	printf("ep_gpu soak%s: %u steps, %u ranks, %u tokens, hidden %u, top_k %u, %u experts, each step fp8 or "
	       "bf16, zero copy or not, hooked or not: %s\n",
	       a->procs ? " --procs" : "", steps, c->n_ranks, c->max_tokens, c->hidden,
	       c->top_k, c->n_experts, bad_n ? "DIFFERENCES" : "0 differences");
	return bad_n;
}

static uint64_t mode_graph(const struct args *a)
{
	static struct job j;
	uint64_t bad_n = 0;
	j = (struct job){ .steps = number(a, 0, 100), .n_gpus = a->n_gpus, .graph = true };
	j.c = (struct naive){ .n_ranks = 4,
			      .n_experts = 32,
			      .top_k = 8,
			      .hidden = 7168,
			      .max_tokens = 128,
			      .fp8 = 1 };
	for (uint32_t e = 0; e < 32; e++)
		j.owner[e] = e / 8;
	for (int zc = 0; zc < 2; zc++) {
		j.zero_copy = zc;
		bad_n += !run_all(&j, false);
	}
	printf("ep_gpu graph: %u replays, with and without zero copy: %s\n", j.steps,
	       bad_n ? "DIFFERENCES" : "equal");
	return bad_n;
}

static uint64_t mode_fault(const struct args *a)
{
	return run_faults(a->n_gpus);
}

/* A job of one rank, here. */
static uint64_t alone(struct job *j, void (*run)(struct job *j), const char *what)
{
	static struct shared sh;
	struct ep_exchange *x;
	j->n_gpus = 1, j->sh = &sh, j->victim = -1, j->timeout_us = TIMEOUT_US;
	j->c.n_ranks = 1;
	if (exchange_local(1, &x) != ERR_NONE)
		return 1;
	j->x = x;
	run(j);
	x->close(x);
	printf("ep_gpu %s: %s%s\n", what, sh.differ[0] ? "FAILED: " : "ok", sh.text[0]);
	return sh.differ[0];
}

static uint64_t mode_refuse(const struct args *a)
{
	static struct job j;
	(void)a;
	j.c = (struct naive){ .n_experts = 16, .top_k = 4, .hidden = 512, .max_tokens = 64 };
	return alone(&j, run_refusals, "refuse");
}

static uint64_t mode_cast(const struct args *a)
{
	static struct job j;
	j.steps = number(a, 0, 20);
	j.c = (struct naive){
		.n_experts = 2, .top_k = 1, .hidden = 16384, .max_tokens = 64, .fp8 = 1
	};
	return alone(&j, run_cast, "cast");
}

static const struct mode {
	const char *name;
	int min_args;
	bool forks; /* always */
	uint64_t (*run)(const struct args *a);
} modes[] = {
	{ "compare", 0, false, mode_compare }, { "soak", 6, false, mode_soak },
	{ "graph", 0, false, mode_graph },     { "fault", 0, true, mode_fault },
	{ "refuse", 0, false, mode_refuse },   { "cast", 0, false, mode_cast },
};

/* Asked in a child: a process that forks ranks must not have started CUDA. */
static bool gpu_here(void)
{
	int st = 1;
	pid_t pid = fork();
	if (pid == 0) {
		const char *missing = gpu_missing();
		if (missing)
			printf("SKIPPED: no GPU: %s\n", missing);
		fflush(stdout);
		_exit(missing != NULL);
	}
	return pid > 0 && waitpid(pid, &st, 0) == pid && st == 0;
}

/* The mode named, or NULL; the rest into a. */
static const struct mode *parse(int argc, char **argv, struct args *a)
{
	const struct mode *m = NULL;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--procs") == 0)
			a->procs = true;
		else if (strcmp(argv[i], "--gpus") == 0 && i + 1 < argc)
			a->n_gpus = (uint32_t)atoi(argv[++i]);
		else if (strcmp(argv[i], "--max-ranks") == 0 && i + 1 < argc)
			a->max_ranks = (uint32_t)atoi(argv[++i]);
		else if (m && a->n < (int)ARRAY_LEN(a->a))
			a->a[a->n++] = argv[i];
		for (size_t k = 0; !m && k < ARRAY_LEN(modes); k++)
			if (strcmp(argv[i], modes[k].name) == 0)
				m = &modes[k];
	}
	return m && a->n >= m->min_args && a->n_gpus > 0 ? m : NULL;
}

int main(int argc, char **argv)
{
	struct args a = { .n_gpus = 1 };
	const struct mode *m = parse(argc, argv, &a);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!m) {
		fprintf(stderr,
			"usage: ep_gpu [--procs] [--gpus N] [--max-ranks N] "
			"compare|soak|graph|fault|refuse|cast [ARGS]; see the file's head\n");
		return 2;
	}
	/*
	 * Ranks as streams: one hardware queue each, or a waiting rank blocks those behind it (32 at
	 * most). Not for processes: under the multi-process service they share what queues there are.
	 */
	if (!a.procs && !m->forks)
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	if (!gpu_here())
		return 77; /* skipped, and counted */
	return m->run(&a) != 0;
}
