/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert parallelism on the CPU: dispatch between two ranks as threads, bytes moved by design a second,
 * beside memcpy by as many threads; the cast to fp8 of one core, bytes of bf16 a second.
 */
#include "bench.h"
#include "ep/ep.h"
#include "ep/num.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, TOKENS = 512, HIDDEN = 7168, TOP_K = 8, EXPERTS = 16 };
#define COPY_BYTES (64ull << 20)

static struct rank {
	struct ep_exchange *x;
	struct ep_buf *b;
	uint16_t *xs, *out;
	void *recv;
	float *scales, *wt;
	int64_t *topk, range[EXPERTS][RANKS];
	int32_t *src, count[EXPERTS], active[RANKS];
	char *from, *to;
	uint32_t me;
} ranks[RANKS];
static pthread_barrier_t bar;
static double seconds;
static int what; /* 0 bf16, 1 fp8, 2 memcpy */

static void must(bool ok)
{
	if (!ok)
		abort();
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *open_rank(void *arg)
{
	struct rank *r = arg;
	uint64_t rows = (uint64_t)EXPERTS / RANKS * RANKS * TOKENS;
	struct ep_opts o = { .exchange = r->x,
			     .max_tokens = TOKENS,
			     .hidden = HIDDEN,
			     .n_experts = EXPERTS,
			     .transport = "host" };
	must(ep_open(&o, &r->b, NULL) == ERR_NONE);
	r->xs = calloc(TOKENS, HIDDEN * 2), r->out = calloc(TOKENS, HIDDEN * 2);
	r->recv = calloc(rows, HIDDEN * 2), r->scales = calloc(rows, HIDDEN / 128 * 4);
	r->topk = calloc(TOKENS * TOP_K, 8), r->wt = calloc(TOKENS * TOP_K, 4);
	r->src = calloc(rows, 4);
	r->from = calloc(1, COPY_BYTES), r->to = calloc(1, COPY_BYTES);
	must(r->xs && r->out && r->recv && r->scales && r->topk && r->wt && r->src && r->from &&
	     r->to);
	for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
		r->xs[i] = num_to_bf16((float)(i * 2654435761u % 4001) - 2000.0f);
	for (uint32_t i = 0; i < TOKENS * TOP_K; i++) /* eight experts in a row: four a rank */
		r->topk[i] = (i / TOP_K * 7 + i % TOP_K) % EXPERTS;
	for (int i = 0; i < RANKS; i++)
		r->active[i] = 1;
	memset(r->from, 1, COPY_BYTES), memset(r->to, 2, COPY_BYTES);
	return NULL;
}

static struct ep_handle *dispatch(struct rank *r)
{
	struct ep_handle *h = NULL;
	struct ep_dispatch_args a = { .x = r->xs,
				      .topk = r->topk,
				      .n_tokens = TOKENS,
				      .top_k = TOP_K,
				      .n_experts = EXPERTS,
				      .flags = what == 1 ? EP_FP8 : 0,
				      .timeout_us = -1,
				      .active = r->active,
				      .recv_x = r->recv,
				      .recv_scales = r->scales,
				      .recv_count = r->count,
				      .src_info = r->src,
				      .range = r->range[0] };
	must(ep_dispatch(r->b, &a, &h, NULL) == ERR_NONE);
	return h;
}

static void *one(void *arg)
{
	struct rank *r = arg;
	struct ep_handle *h = NULL;
	pthread_barrier_wait(&bar);
	double from = now_s();
	if (what == 2)
		memcpy(r->to, r->from, COPY_BYTES);
	else
		h = dispatch(r);
	pthread_barrier_wait(&bar);
	if (r->me == 0)
		seconds = now_s() - from;
	ep_handle_drop(h);
	return NULL;
}

static void on_all(void *(*fn)(void *arg))
{
	pthread_t th[RANKS];
	for (int r = 0; r < RANKS; r++)
		must(pthread_create(&th[r], NULL, fn, &ranks[r]) == 0);
	for (int r = 0; r < RANKS; r++)
		pthread_join(th[r], NULL);
}

/* Read and written: x and one row a token; a row once for each owner, and one a choice. */
static double sample(int kind)
{
	double h2 = HIDDEN * 2, row = kind == 1 ? HIDDEN + HIDDEN / 32 : h2, n = RANKS * TOKENS;
	double bytes = n * (h2 + row) + n * RANKS * row + n * TOP_K * row, sum = 0;
	if (kind == 2)
		bytes = RANKS * 2.0 * COPY_BYTES;
	what = kind;
	for (int i = 0; i < 5; i++) {
		on_all(one);
		sum += seconds;
	}
	return 5 * bytes / sum;
}

static double bf16(void *arg)
{
	(void)arg;
	return sample(0);
}

static double fp8(void *arg)
{
	(void)arg;
	return sample(1);
}

static double copy(void *arg)
{
	(void)arg;
	return sample(2);
}

static void cast_row(void *arg)
{
	struct rank *r = arg;
	num_row_to_fp8(r->xs, HIDDEN, (uint8_t *)r->recv, r->scales);
	bench_keep(r->recv);
}

static double cast(void *arg)
{
	(void)arg;
	return HIDDEN * 2 * 1e9 / bench_loop_ns(cast_row, &ranks[0], 20);
}

int main(int argc, char **argv)
{
	static const struct bench_row rows[] = {
		{ "ep.host_dispatch", "bytes/s", false, bf16, copy, "memcpy, 2 threads", 0,
		  "2 ranks, 512 tokens, hidden 7168, top-8, bf16" },
		{ "ep.host_cast_fp8", "bytes/s", false, cast, NULL, NULL, 10e9,
		  "one core, rows of 7168 bf16" },
		{ "ep.host_dispatch_fp8", "bytes/s", false, fp8, copy, "memcpy, 2 threads", 0,
		  "2 ranks, 512 tokens, hidden 7168, top-8, e4m3" },
	};
	struct ep_exchange *x[RANKS];
	must(exchange_local(RANKS, x) == ERR_NONE);
	pthread_barrier_init(&bar, NULL, RANKS);
	for (uint32_t r = 0; r < RANKS; r++)
		ranks[r].x = x[r], ranks[r].me = r;
	on_all(open_rank);
	return bench_main(argc, argv, rows, ARRAY_LEN(rows), NULL);
}
