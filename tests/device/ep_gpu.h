/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of ep_gpu share: a rank's job, its two sides (GPU and host transport), one step.
 *
 * Thread: a rank's, but for the parent's functions in ep_gpu_all.c and ep_gpu_fault.c.
 */
#pragma once

#include "ep/ep.h"
#include "ep_naive.h"

#include <pthread.h>
#include <sys/types.h>

#define TIMEOUT_US \
	6000000 /* of a step: before the watchdog, so that the flag missed is known */
#define STALL_S 20

struct shared { /* between the ranks, also when they are processes */
	struct stage {
		const char *what; /* a literal: the same address in every forked rank */
		uint32_t step;
		double since_s;
	} stage[64];
	uint64_t moves; /* counts every change of a stage */
	char missed[64][400];
	uint64_t differ[64], steps[64];
	char text[64][400];
	struct ep_buf *bufs[64]; /* of ranks that are threads: on the GPU */
};

struct job {
	struct naive c;
	uint32_t me, steps, replay_every, n_gpus;
	uint32_t owner[4096];
	bool zero_copy, hook, async, graph;
	bool mixed; /* each step is fp8 or not, with zero copy or not, hooked or not, by its number */
	/* faults: this rank leaves at that step, before its dispatch or between dispatch and combine */
	int victim;
	uint32_t leave_step;
	bool leave_mid, leave_stopped;
	char rejoin[64]; /* address of the exchange after the replacement; empty: none */
	bool newcomer;
	int64_t timeout_us;
	void *lane; /* ranks as threads: a stream of its own for all configurations, one hardware queue */
	struct ep_exchange *x;
	struct shared *sh;
};

/* One side of the comparison: a buffer and its arrays, on the device or on the host. */
struct side {
	struct ep_buf *b;
	bool gpu;
	int device;
	void *stream;
	bool own_stream;
	uint16_t *x, *y, *out;
	void *recv;
	float *scales, *w;
	int64_t *topk, *range;
	int32_t *count, *src_info, *active, *incomplete;
};

/* The job's numbers on the device. */
struct dev {
	uint32_t *locals, *owner, *bad;
	uint32_t n_local, host_locals[4096];
};

/* ---- ep_gpu_side.c ---- */

double now_s(void);
/* Where this rank stands, for the watchdog. */
void at(struct job *j, const char *what, uint32_t step);
/* Counts a failure; the first one's text is kept. */
void job_fail(struct job *j, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool bad(const struct job *j);
void fetch(struct job *j, void *dst, const void *src, uint64_t bytes, void *stream);
void *take(struct side *s, uint64_t bytes);
bool side_open(struct job *j, struct side *s, bool gpu);
void side_close(struct side *s);
void dev_open(struct job *j, struct side *g, struct dev *d);
void dev_close(struct side *g, struct dev *d);
struct ep_dispatch_args dispatch_args(const struct job *j, const struct side *s);
struct ep_combine_args combine_args(const struct job *j, const struct side *s, const void *y);
/* A dispatch, the naive expert, a combine; *y: where the outputs are. */
void gpu_step(struct job *j, struct side *s, const struct dev *d, struct ep_handle **h,
	      uint16_t **y);
/* Checks of this step's results by the naive kernels, into d->bad. */
void check_step(struct job *j, struct side *g, const struct dev *d);
/* The same step on the host transport, then every output bit against the GPU's. */
void replay(struct job *j, struct side *g, struct side *s, const struct dev *d);
void everybody(struct job *j);
const char *missed_text(const struct job *j, const struct ep_buf *b);
void next_step(struct job *j, uint64_t base, uint32_t step);

/* ---- ep_gpu_rank.c: what a rank does ---- */

void run_rank(struct job *j);
void run_graph(struct job *j);
void run_refusals(struct job *j);
void run_cast(struct job *j);

/* ---- ep_gpu_all.c: all ranks of a job ---- */

/* The parent's eye on its ranks; a thread. */
struct watch {
	struct shared *sh;
	const pid_t *pids; /* NULL: ranks are threads; else killed when they stall */
	uint32_t n_pids, n_ranks;
	bool end;
	pthread_t thread;
};
void watch_start(struct watch *w);
void watch_end(struct watch *w);
struct shared *shared_new(void);
/* Runs a job on all its ranks; prints each failure. */
bool run_all(const struct job *proto, bool procs);
void random_job(struct job *j, uint64_t seed, uint32_t n_gpus, uint32_t max_ranks);

/* ---- ep_gpu_fault.c ---- */

/* Number of cases that failed. */
uint64_t run_faults(uint32_t n_gpus);
