/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expert-parallel suite on a GPU. Ranks are streams of one process, or with --procs processes
 * that share the GPU (with or without the multi-process service) or take one GPU each (--gpus).
 *
 *   ep_gpu compare CONFIGS SEED   random configurations: the ipc transport and the host transport
 *                                 run on equal inputs, every output bit is compared
 *   ep_gpu soak STEPS RANKS TOKENS HIDDEN TOPK EXPERTS   checks every step with the naive kernels of
 *                                 ep_naive.cu; the host transport replays one step in 500
 *   ep_gpu graph STEPS            a captured step is replayed and checked
 *   ep_gpu fault                  a rank killed or stopped in a step; survivors go on; it is replaced
 *   ep_gpu refuse                 what must be refused, and that the process lives
 *
 * With EP_GPU_PDL set, kernels are launched with programmatic dependency (EP_TUNE_PDL).
 * Prints a line a configuration with its time, and one a mode; exit 0 when nothing differed. When no
 * rank makes progress for STALL_S seconds it prints where each rank stands, and which flag each waits
 * for once that time-out has passed, and ends with exit code 4.
 */
#include "ep/ep.h"
#include "ep/num.h"
#include "ep_naive.h"
#include "gpu/gpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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
};

struct job {
	struct naive c;
	uint32_t me, steps, replay_every, n_gpus;
	uint32_t owner[4096];
	bool zero_copy, hook, async, graph;
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

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void at(struct job *j, const char *what, uint32_t step)
{
	j->sh->stage[j->me] = (struct stage){ what, step, now_s() };
	__atomic_fetch_add(&j->sh->moves, 1, __ATOMIC_RELAXED);
}

/* What the buffer tells: which flag of which rank did not come. */
static void say_missed(void *ctx, const char *line)
{
	struct job *j = ctx;
	if (strstr(line, "transport"))
		return;
	snprintf(j->sh->missed[j->me], sizeof(j->sh->missed[0]), "%s", line);
	if (j->victim < 0)
		printf("  rank %u: %s\n", j->me, line);
}

#define FAIL(j, ...)                                                             \
	snprintf((j)->sh->text[(j)->me], sizeof((j)->sh->text[0]), __VA_ARGS__), \
		(j)->sh->differ[(j)->me]++

static bool bad(const struct job *j)
{
	return j->sh->differ[j->me] != 0;
}

/*
 * A copy waits for nothing but itself: with pageable memory CUDA waits for the stream inside the
 * call, and if it holds a lock meanwhile, a rank of the same process that this stream waits for cannot
 * launch. So the stream is empty first.
 */
static void fetch(struct job *j, void *dst, const void *src, uint64_t bytes, void *stream)
{
	struct why why = { 0 };
	if (bytes && (gpu_sync(stream, &why) != ERR_NONE ||
		      gpu_copy(dst, src, bytes, stream, &why) != ERR_NONE ||
		      gpu_sync(stream, &why) != ERR_NONE))
		FAIL(j, "%s", why.text);
}

static void *take(struct side *s, uint64_t bytes)
{
	void *p = NULL;
	struct why why = { 0 };
	bytes = bytes ? bytes : 16;
	if (!s->gpu)
		return calloc(1, bytes);
	if (gpu_alloc(s->device, bytes, &p, &why) != ERR_NONE) {
		fprintf(stderr, "%s\n", why.text);
		exit(3);
	}
	return p;
}

static uint32_t locals_of(const struct job *j, uint32_t *locals)
{
	uint32_t n = 0;
	for (uint32_t e = 0; e < j->c.n_experts; e++)
		if (j->owner[e] == j->me)
			locals[n++] = e;
	return n;
}

static bool side_open(struct job *j, struct side *s, bool gpu, uint32_t n_local)
{
	const struct naive *c = &j->c;
	struct why why = { 0 };
	*s = (struct side){ .gpu = gpu, .device = gpu ? (int)(j->me % j->n_gpus) : 0 };
	struct ep_opts o = { .exchange = j->x,
			     .max_tokens = c->max_tokens,
			     .hidden = c->hidden,
			     .n_experts = c->n_experts,
			     .expert_owner = j->owner,
			     .transport = gpu ? "ipc" : "host",
			     .device = s->device,
			     .tune = getenv("EP_GPU_PDL") ? EP_TUNE_PDL : 0,
			     .say = say_missed,
			     .ctx = j };
	at(j, gpu ? "opening the GPU's buffer" : "opening the host's buffer", 0);
	enum err e = ep_open(&o, &s->b, &why);
	s->stream = gpu ? j->lane : NULL;
	s->own_stream = e == ERR_NONE && gpu && !j->lane;
	if (s->own_stream)
		e = gpu_stream_new(s->device, &s->stream, &why);
	at(j, "allocating", 0);
	if (e != ERR_NONE) {
		FAIL(j, "open %s: %s: %s", o.transport, err_name(e), why.text);
		return false;
	}
	uint64_t rows = (uint64_t)(n_local ? n_local : 1) * c->n_ranks * c->max_tokens,
		 n = c->max_tokens;
	s->x = take(s, n * c->hidden * 2);
	s->topk = take(s, n * c->top_k * 8);
	s->w = take(s, n * c->top_k * 4);
	s->recv = take(s, rows * c->hidden * (c->fp8 ? 1 : 2));
	s->scales = take(s, rows * (c->hidden / 128) * 4);
	s->count = take(s, n_local * 4);
	s->src_info = take(s, rows * 4);
	s->range = take(s, (uint64_t)n_local * c->n_ranks * 8);
	s->y = take(s, j->zero_copy ? 0 : rows * c->hidden * 2);
	s->out = take(s, n * c->hidden * 2);
	s->active = take(s, 64 * 4);
	s->incomplete = take(s, n * 4);
	int32_t ones[64];
	for (int i = 0; i < 64; i++)
		ones[i] = 1;
	if (gpu)
		fetch(j, s->active, ones, sizeof(ones), s->stream);
	else
		memcpy(s->active, ones, sizeof(ones));
	return true;
}

static void side_close(struct side *s)
{
	void *all[] = { s->x,	     s->topk,  s->w, s->recv, s->scales, s->count,
			s->src_info, s->range, s->y, s->out,  s->active, s->incomplete };
	ep_close(s->b);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (s->gpu)
			gpu_free(s->device, all[i]);
		else
			free(all[i]);
	if (s->own_stream)
		gpu_stream_free(s->stream);
}

static struct ep_dispatch_args dispatch_args(const struct job *j, const struct side *s)
{
	return (struct ep_dispatch_args){ .x = s->x,
					  .topk = s->topk,
					  .n_tokens = j->c.n_tokens[j->me],
					  .top_k = j->c.top_k,
					  .n_experts = j->c.n_experts,
					  .flags = (j->c.fp8 ? EP_FP8 : 0) |
						   (j->hook ? EP_HOOK : 0) |
						   (j->async ? EP_ASYNC : 0),
					  .timeout_us = j->timeout_us,
					  .stream = s->stream,
					  .active = s->active,
					  .recv_x = s->recv,
					  .recv_scales = s->scales,
					  .recv_count = s->count,
					  .src_info = s->src_info,
					  .range = s->range };
}

static struct ep_combine_args combine_args(const struct job *j, const struct side *s,
					   const void *y)
{
	return (struct ep_combine_args){ .y = y,
					 .weights = s->w,
					 .flags = (j->zero_copy ? EP_ZERO_COPY : 0) |
						  (j->async ? EP_ASYNC : 0),
					 .timeout_us = j->timeout_us,
					 .stream = s->stream,
					 .active = s->active,
					 .out = s->out,
					 .incomplete = s->incomplete };
}

/* The GPU side's step with the naive expert; the host side's with the GPU's y brought over. */
static void gpu_step(struct job *j, struct side *s, const uint32_t *dev_locals,
		     uint32_t n_local, struct ep_handle **h, uint16_t **y)
{
	struct why why = { 0 };
	struct ep_dispatch_args d = dispatch_args(j, s);
	at(j, "dispatch", (uint32_t)j->sh->steps[j->me]);
	enum err e = ep_dispatch(s->b, &d, h, &why);
	if (e == ERR_NONE && j->hook)
		e = ep_hook(*h, &why);
	if (e != ERR_NONE) {
		FAIL(j, "dispatch: %s: %s", err_name(e), why.text);
		return;
	}
	*y = j->zero_copy ? ep_y_buffer(*h) : s->y;
	if (naive_expert(&j->c, dev_locals, n_local, s->recv, s->scales, s->count, *y,
			 s->stream))
		FAIL(j, "expert kernel");
	struct ep_combine_args a = combine_args(j, s, *y);
	at(j, "combine", (uint32_t)j->sh->steps[j->me]);
	e = ep_combine(s->b, *h, &a, &why);
	if (e != ERR_NONE)
		FAIL(j, "combine: %s: %s", err_name(e), why.text);
}

static void expert_cpu(const struct naive *c, uint32_t e, const void *recv, const float *scales,
		       uint64_t row, uint16_t *y)
{
	for (uint32_t i = 0; i < c->hidden; i++) {
		float v = c->fp8 ? num_from_e4m3(((const uint8_t *)recv)[row * c->hidden + i]) *
					   scales[row * (c->hidden / 128) + i / 128]
				 : num_from_bf16(((const uint16_t *)recv)[row * c->hidden + i]);
		float a = v * (1.0f + (float)(e % 7) * 0.25f);
		y[row * c->hidden + i] = num_to_bf16(a + (float)(i % 5) * 0.01f);
	}
}

/* The same step on the host transport, then every output bit against the GPU's. */
static void replay(struct job *j, struct side *g, struct side *s, const uint32_t *locals,
		   uint32_t n_local)
{
	const struct naive *c = &j->c;
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	uint64_t n = c->n_tokens[j->me], cap = (uint64_t)c->n_ranks * c->max_tokens,
		 el = c->fp8 ? 1 : 2;
	fetch(j, s->x, g->x, n * c->hidden * 2, g->stream);
	fetch(j, s->topk, g->topk, n * c->top_k * 8, g->stream);
	fetch(j, s->w, g->w, n * c->top_k * 4, g->stream);
	(void)!gpu_sync(g->stream, NULL);
	struct ep_dispatch_args d = dispatch_args(j, s);
	at(j, "host twin: dispatch", (uint32_t)j->sh->steps[j->me]);
	enum err e = ep_dispatch(s->b, &d, &h, &why);
	if (e == ERR_NONE && j->hook)
		e = ep_hook(h, &why);
	if (e != ERR_NONE) {
		FAIL(j, "host dispatch: %s: %s", err_name(e), why.text);
		return;
	}
	uint16_t *y = j->zero_copy ? ep_y_buffer(h) : s->y;
	for (uint32_t l = 0; l < n_local; l++)
		for (int32_t r = 0; r < s->count[l]; r++)
			expert_cpu(c, locals[l], s->recv, s->scales, l * cap + (uint64_t)r, y);
	struct ep_combine_args a = combine_args(j, s, y);
	at(j, "host twin: combine", (uint32_t)j->sh->steps[j->me]);
	e = ep_combine(s->b, h, &a, &why);
	at(j, "host twin: comparing", (uint32_t)j->sh->steps[j->me]);
	if (e != ERR_NONE)
		FAIL(j, "host combine: %s: %s", err_name(e), why.text);

	uint64_t big = cap * c->hidden * 2 + n * c->hidden * 2 + 65536 +
		       (uint64_t)n_local * c->n_ranks * 8;
	uint8_t *t = malloc(big);
#define SAME(what, dev, host, bytes)                                         \
	do {                                                                 \
		fetch(j, t, dev, bytes, g->stream);                          \
		if (memcmp(t, host, bytes) != 0)                             \
			FAIL(j, "%s differs from the host transport", what); \
	} while (0)
	SAME("recv_count", g->count, s->count, (uint64_t)n_local * 4);
	SAME("layout_range", g->range, s->range, (uint64_t)n_local * c->n_ranks * 8);
	SAME("out", g->out, s->out, n * c->hidden * 2);
	SAME("incomplete", g->incomplete, s->incomplete, n * 4);
	for (uint32_t l = 0; l < n_local && !bad(j); l++) {
		uint64_t rows = (uint64_t)s->count[l];
		SAME("recv_x", (uint8_t *)g->recv + l * cap * c->hidden * el,
		     (uint8_t *)s->recv + l * cap * c->hidden * el, rows * c->hidden * el);
		SAME("src_info", g->src_info + l * cap, s->src_info + l * cap, rows * 4);
		if (c->fp8)
			SAME("scales", g->scales + l * cap * (c->hidden / 128),
			     s->scales + l * cap * (c->hidden / 128),
			     rows * (c->hidden / 128) * 4);
	}
	free(t);
}

/*
 * All ranks are here. In one process no rank may allocate or free device memory while another's
 * kernel waits for it: CUDA makes both wait for the device.
 */
static void everybody(struct job *j)
{
	uint8_t one = 1, all[64];
	struct why why = { 0 };
	at(j, "waiting for all ranks", (uint32_t)j->sh->steps[j->me]);
	if (j->x->all_gather(j->x, 99, &one, 1, all, 15000000, &why) != ERR_NONE)
		FAIL(j, "%s", why.text);
}

/* The first rank that this one masked, and why; "" when none. */
static const char *missed_text(const struct job *j, const struct ep_buf *b)
{
	static __thread struct why w;
	w = (struct why){ 0 };
	for (uint32_t r = 0; r < j->c.n_ranks; r++)
		if (ep_missed(b, r, NULL, &w))
			return w.text;
	return "";
}

static void next_step(struct job *j, uint64_t base, uint32_t step)
{
	j->c.seed = base + step;
	for (uint32_t r = 0; r < j->c.n_ranks; r++) {
		uint64_t h = (j->c.seed * 0x9E3779B97F4A7C15ull + r * 77777ull) ^ 0x5bd1e995;
		h ^= h >> 29;
		h *= 0xBF58476D1CE4E5B9ull;
		h ^= h >> 32;
		/* mostly full, sometimes fewer, sometimes none (every subset of ranks, in time) */
		j->c.n_tokens[r] = h % 8 < 5	? j->c.max_tokens
				   : h % 8 == 7 ? 0
						: (uint32_t)((h >> 8) % (j->c.max_tokens + 1));
	}
	j->c.skew = step % 16 == 15;
}

static void run_rank(struct job *j)
{
	static __thread uint32_t locals[4096];
	uint32_t n_local = locals_of(j, locals);
	struct side g = { 0 }, s = { 0 };
	bool twin = j->replay_every > 0;
	if (!side_open(j, &g, true, n_local) || (twin && !side_open(j, &s, false, n_local)))
		return;
	uint32_t *dev_locals = take(&g, sizeof(locals)),
		 *dev_owner = take(&g, sizeof(j->owner)), *dev_bad = take(&g, 4);
	fetch(j, dev_locals, locals, sizeof(locals), g.stream);
	fetch(j, dev_owner, j->owner, sizeof(j->owner), g.stream);
	uint64_t base = j->c.seed;
	if (naive_load())
		FAIL(j, "loading the naive kernels");
	(void)!gpu_sync(g.stream, NULL);
	everybody(j);
	for (uint32_t i = 0; i < j->steps && !bad(j); i++) {
		struct ep_handle *h = NULL;
		uint16_t *y = NULL;
		uint32_t n_bad = 0;
		next_step(j, base, i);
		if (naive_make(&j->c, j->me, g.x, g.topk, g.w, g.stream))
			FAIL(j, "make kernel");
		gpu_step(j, &g, dev_locals, n_local, &h, &y);
		if (bad(j))
			break;
		if (naive_check_recv(&j->c, dev_locals, n_local, g.recv, g.scales, g.count,
				     g.src_info, g.range, dev_bad, g.stream) ||
		    naive_check_out(&j->c, j->me, dev_owner, g.out, g.incomplete, dev_bad,
				    g.stream))
			FAIL(j, "check kernels");
		if (i % 16 == 15 || i + 1 == j->steps) {
			at(j, "waiting for the stream", i);
			fetch(j, &n_bad, dev_bad, 4, g.stream);
			if (n_bad)
				FAIL(j, "%u differences by step %u (seed %llu) %s", n_bad, i,
				     (unsigned long long)j->c.seed, missed_text(j, g.b));
		}
		if (twin && i % j->replay_every == 0 && !bad(j))
			replay(j, &g, &s, locals, n_local);
		j->sh->steps[j->me]++;
	}
	struct why why = { 0 };
	if (gpu_sync(g.stream, &why) != ERR_NONE)
		FAIL(j, "%s", why.text);
	everybody(j);
	gpu_free(g.device, dev_locals), gpu_free(g.device, dev_owner),
		gpu_free(g.device, dev_bad);
	side_close(&g);
	if (twin)
		side_close(&s);
}

/* ---- a captured step ---- */

/* One step captured with its expert, then replayed over new inputs; every replay is checked. */
static void run_graph(struct job *j)
{
	static __thread uint32_t locals[4096];
	uint32_t n_local = locals_of(j, locals);
	struct side g = { 0 };
	struct why why = { 0 };
	void *graph = NULL;
	j->async = true;
	if (!side_open(j, &g, true, n_local))
		return;
	uint32_t *dev_locals = take(&g, sizeof(locals)),
		 *dev_owner = take(&g, sizeof(j->owner)), *dev_bad = take(&g, 4);
	fetch(j, dev_locals, locals, sizeof(locals), g.stream);
	fetch(j, dev_owner, j->owner, sizeof(j->owner), g.stream);
	for (uint32_t r = 0; r < j->c.n_ranks; r++)
		j->c.n_tokens[r] = j->c.max_tokens; /* a graph has its sizes baked in */
	if (naive_load())
		FAIL(j, "loading the naive kernels");
	(void)!gpu_sync(g.stream, NULL);
	everybody(j);
	if (gpu_graph_begin(g.stream, &why) != ERR_NONE)
		FAIL(j, "%s", why.text);
	struct ep_handle *h = NULL;
	uint16_t *y = NULL;
	gpu_step(j, &g, dev_locals, n_local, &h, &y);
	if (gpu_graph_end(g.stream, &graph, &why) != ERR_NONE)
		FAIL(j, "%s", why.text);
	everybody(j);
	for (uint32_t i = 0; i < j->steps && !bad(j); i++) {
		uint32_t n_bad = 0;
		j->c.seed = 555000 + i;
		if (naive_make(&j->c, j->me, g.x, g.topk, g.w, g.stream) ||
		    gpu_graph_launch(graph, g.stream, &why) != ERR_NONE ||
		    naive_check_recv(&j->c, dev_locals, n_local, g.recv, g.scales, g.count,
				     g.src_info, g.range, dev_bad, g.stream) ||
		    naive_check_out(&j->c, j->me, dev_owner, g.out, g.incomplete, dev_bad,
				    g.stream))
			FAIL(j, "replay %u: %s", i, why.text);
		fetch(j, &n_bad, dev_bad, 4, g.stream);
		if (n_bad)
			FAIL(j, "%u differences in replay %u", n_bad, i);
	}
	everybody(j);
	gpu_graph_free(graph);
	gpu_free(g.device, dev_locals), gpu_free(g.device, dev_owner),
		gpu_free(g.device, dev_bad);
	side_close(&g);
}

/* ---- a rank that leaves, and its replacement ---- */

static void leave(const struct job *j)
{
	if (j->leave_stopped)
		raise(SIGSTOP); /* the parent kills it at the end */
	else
		raise(SIGKILL);
}

/* One checked step; lost: the ranks whose outputs cannot arrive, silent: those whose rows cannot. */
static void fault_step(struct job *j, struct side *g, uint32_t i, uint64_t lost,
		       uint64_t silent, uint32_t *dev[3], const uint32_t *locals,
		       uint32_t n_local)
{
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	uint32_t n_bad = 0;
	next_step(j, 900000, i);
	for (uint32_t r = 0; r < j->c.n_ranks; r++)
		if (silent >> r & 1)
			j->c.n_tokens[r] = 0;
	j->c.dead_mask_lo = (uint32_t)lost;
	(void)locals;
	if (naive_make(&j->c, j->me, g->x, g->topk, g->w, g->stream))
		FAIL(j, "make kernel");
	at(j, "a step with faults", i);
	bool mine = (int)j->me == j->victim && i == j->leave_step && !j->newcomer;
	if (mine && !j->leave_mid)
		leave(j);
	struct ep_dispatch_args d = dispatch_args(j, g);
	enum err e = ep_dispatch(g->b, &d, &h, &why);
	if (e != ERR_NONE) {
		FAIL(j, "step %u dispatch: %s: %s", i, err_name(e), why.text);
		return;
	}
	if (mine)
		leave(j);
	uint16_t *y = ep_y_buffer(h);
	if (naive_expert(&j->c, dev[0], n_local, g->recv, g->scales, g->count, y, g->stream) ||
	    naive_check_recv(&j->c, dev[0], n_local, g->recv, g->scales, g->count, g->src_info,
			     g->range, dev[2], g->stream))
		FAIL(j, "kernels");
	struct ep_combine_args a = combine_args(j, g, y);
	e = ep_combine(g->b, h, &a, &why);
	if (e != ERR_NONE)
		FAIL(j, "step %u combine: %s: %s", i, err_name(e), why.text);
	if (naive_check_out(&j->c, j->me, dev[1], g->out, g->incomplete, dev[2], g->stream))
		FAIL(j, "check kernel");
	fetch(j, &n_bad, dev[2], 4, g->stream);
	if (n_bad)
		FAIL(j, "%u differences in step %u (lost %llx)", n_bad, i,
		     (unsigned long long)lost);
	/* used once more, the handle must be refused */
	if (ep_combine(g->b, h, &a, NULL) != ERR_STALE)
		FAIL(j, "a used handle was not refused");
}

static void rejoin(struct job *j, struct side *g)
{
	struct why why = { 0 };
	struct ep_handle *old = NULL;
	struct ep_dispatch_args d = dispatch_args(j, g);
	int32_t ones[64];
	for (int i = 0; i < 64; i++)
		ones[i] = 1;
	if (ep_dispatch(g->b, &d, &old, &why) !=
	    ERR_NONE) { /* left open over the change: must be stale after */
		FAIL(j, "%s", why.text);
		return;
	}
	struct ep_exchange *x = NULL;
	at(j, "rejoin: meeting at the new exchange", 0);
	if (exchange_socket(j->rejoin, j->me, j->c.n_ranks, 60000000, &x, &why) != ERR_NONE ||
	    ep_update_members(g->b, x, &why) != ERR_NONE)
		FAIL(j, "update_members: %s", why.text);
	struct ep_combine_args a = combine_args(j, g, g->y);
	enum err e = ep_combine(g->b, old, &a, NULL);
	if (e != ERR_STALE)
		FAIL(j, "a handle of the old generation: %s, not STALE", err_name(e));
	fetch(j, g->active, ones, sizeof(ones), g->stream);
}

static void run_faulty(struct job *j)
{
	at(j, "starting", 0);
	static __thread uint32_t locals[4096];
	uint32_t n_local = locals_of(j, locals);
	struct side g = { 0 };
	uint64_t v = 1ull << j->victim;
	j->zero_copy = true;
	if (!side_open(j, &g, true, n_local))
		return;
	uint32_t *dev[3] = { take(&g, sizeof(locals)), take(&g, sizeof(j->owner)),
			     take(&g, 4) };
	fetch(j, dev[0], locals, sizeof(locals), g.stream);
	fetch(j, dev[1], j->owner, sizeof(j->owner), g.stream);
	for (uint32_t i = j->newcomer ? j->steps : 0; i < j->steps && !bad(j); i++) {
		bool now = i == j->leave_step, after = i > j->leave_step;
		uint64_t lost = now || after ? v : 0,
			 silent = after || (now && !j->leave_mid) ? v : 0;
		fault_step(j, &g, i, lost, silent, dev, locals, n_local);
	}
	if (!j->newcomer && !bad(j))
		rejoin(j, &g);
	for (uint32_t i = 0; i < j->steps && !bad(j); i++)
		fault_step(j, &g, 1000 + i, 0, 0, dev, locals, n_local);
	at(j, "closing", 0);
	side_close(&g);
}

/* The parent's eye on its ranks; a thread. */
struct watch {
	struct shared *sh;
	const pid_t *pids; /* NULL: ranks are threads; else killed when they stall */
	uint32_t n_pids, n_ranks;
	bool end;
};

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
		if (now_s() - since < STALL_S)
			continue;
		printf("STALL: no rank moved for %d s\n", STALL_S);
		for (uint32_t r = 0; r < w->n_ranks; r++)
			printf("  rank %u: %s, step %u, for %.1f s; %s %s\n", r,
			       w->sh->stage[r].what ? w->sh->stage[r].what : "not started",
			       w->sh->stage[r].step, now_s() - w->sh->stage[r].since_s,
			       w->sh->missed[r], w->sh->text[r]);
		for (uint32_t i = 0; w->pids && i < w->n_pids; i++)
			if (w->pids[i] > 0)
				kill(w->pids[i], SIGKILL);
		_exit(4);
	}
	return NULL;
}

static void watch_start(struct watch *w, pthread_t *th)
{
	pthread_create(th, NULL, watch_main, w);
}

static void watch_end(struct watch *w, pthread_t th)
{
	__atomic_store_n(&w->end, true, __ATOMIC_RELEASE);
	pthread_join(th, NULL);
}

/* Ranks as processes; the victim's replacement is started once it has gone or stands still. */
static bool run_fault_case(struct job *proto, const char *what)
{
	struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char path[64];
	uint32_t n = proto->c.n_ranks;
	pid_t pids[65] = { 0 };
	double from = now_s();
	struct watch w = { .sh = sh, .pids = pids, .n_pids = n + 1, .n_ranks = n };
	pthread_t eye;
	snprintf(path, sizeof(path), "/tmp/ep_gpu.%d", (int)getpid());
	snprintf(proto->rejoin, sizeof(proto->rejoin), "/tmp/ep_gpu.%d.b", (int)getpid());
	unlink(path), unlink(proto->rejoin); /* rank 0 of the case before left by _exit */
	for (uint32_t i = 0; i <= n; i++) {
		static struct job j;
		if (i == n) {
			int st = 0;
			waitpid(pids[proto->victim], &st, WUNTRACED);
		}
		pids[i] = fork();
		if (pids[i] != 0) {
			if (i == n - 1) /* not before the first forks: a fork has one thread */
				watch_start(&w, &eye);
			continue;
		}
		struct why why = { 0 };
		j = *proto;
		j.newcomer = i == n;
		j.me = i == n ? (uint32_t)proto->victim : i;
		j.sh = sh;
		if (exchange_socket(j.newcomer ? j.rejoin : path, j.me, n, 60000000, &j.x,
				    &why) != ERR_NONE)
			FAIL(&j, "%s", why.text);
		else
			run_faulty(&j);
		_exit(0);
	}
	uint64_t differ = 0;
	const char *text = "";
	for (uint32_t i = 0; i <= n; i++) {
		if ((int)i == proto->victim) {
			if (proto->leave_stopped) { /* else it was reaped above */
				kill(pids[i], SIGKILL);
				waitpid(pids[i], NULL, 0);
			}
			continue;
		}
		int st = 0;
		uint32_t me = i == n ? (uint32_t)proto->victim : i;
		if (waitpid(pids[i], &st, 0) < 0 || st != 0) {
			snprintf(sh->text[me], sizeof(sh->text[0]),
				 "process ended with status %d", st);
			sh->differ[me]++;
		}
	}
	for (uint32_t r = 0; r < n; r++) {
		if (sh->differ[r] && !differ)
			text = sh->text[r];
		differ += sh->differ[r];
	}
	watch_end(&w, eye);
	printf("ep_gpu fault: %s: %s%s (%.1f s)", what, differ ? "FAILED: " : "ok", text,
	       now_s() - from);
	for (uint32_t r = 0; r < n; r++)
		printf("%s%s", sh->missed[r][0] ? "\n  told: " : "", sh->missed[r]);
	printf("\n");
	bool ok = differ == 0;
	munmap(sh, sizeof(*sh));
	unlink(path), unlink(proto->rejoin);
	return ok;
}

static uint64_t run_faults(void)
{
	static struct job j;
	uint64_t bad_n = 0;
	for (int k = 0; k < 4; k++) {
		j = (struct job){ .n_gpus = 1,
				  .steps = 6,
				  .leave_step = 3,
				  .victim = 1,
				  .leave_mid = k & 1,
				  .leave_stopped = k >> 1,
				  .timeout_us = 1500000 };
		j.c = (struct naive){ .n_ranks = 3,
				      .n_experts = 24,
				      .top_k = 6,
				      .hidden = 1024,
				      .max_tokens = 64,
				      .fp8 = 1 };
		for (uint32_t e = 0; e < 24; e++)
			j.owner[e] = e % 3;
		static const char *const names[] = { "killed before its dispatch",
						     "killed between dispatch and combine",
						     "stopped before its dispatch",
						     "stopped between dispatch and combine" };
		bad_n += !run_fault_case(&j, names[k]);
	}
	return bad_n;
}

/* ---- what must be refused, with the process alive after it ---- */

static bool expect(struct job *j, enum err got, enum err want, const struct why *why,
		   const char *what)
{
	if (got == want)
		return true;
	FAIL(j, "%s: %s (%s), not %s", what, err_name(got), why->text, err_name(want));
	return false;
}

static void run_refusals(struct job *j)
{
	static __thread uint32_t locals[4096];
	uint32_t n_local = locals_of(j, locals);
	struct side g = { 0 };
	struct ep_handle *h = NULL;
	if (!side_open(j, &g, true, n_local))
		return;
	int64_t wrong[4][2] = {
		{ 0, 99999 }, { 1, -2 }, { 5, (int64_t)j->c.n_experts }, { 9, -1000000 }
	};
	next_step(j, 1, 0);
	j->c.n_tokens[j->me] = j->c.max_tokens;
	for (int i = 0; i < 4; i++) {
		struct why why = { 0 };
		if (naive_make(&j->c, j->me, g.x, g.topk, g.w, g.stream))
			FAIL(j, "make kernel");
		fetch(j, g.topk + wrong[i][0], &wrong[i][1], 8, g.stream);
		struct ep_dispatch_args d = dispatch_args(j, &g);
		expect(j, ep_dispatch(g.b, &d, &h, &why), ERR_INVALID_PARAMS, &why,
		       "topk_idx out of range");
		char value[32];
		snprintf(value, sizeof(value), "%lld", (long long)wrong[i][1]);
		if (!strstr(why.text, value))
			FAIL(j, "the text does not name %s: %s", value, why.text);
	}
	struct why why = { 0 };
	struct ep_dispatch_args d = dispatch_args(j, &g);
	d.n_tokens = j->c.max_tokens + 1;
	expect(j, ep_dispatch(g.b, &d, &h, &why), ERR_TOO_MANY_TOKENS, &why, "too many tokens");
	d = dispatch_args(j, &g);
	d.top_k = 33;
	expect(j, ep_dispatch(g.b, &d, &h, &why), ERR_INVALID_PARAMS, &why, "top_k 33");
	/* and it goes on */
	if (naive_make(&j->c, j->me, g.x, g.topk, g.w, g.stream))
		FAIL(j, "make kernel");
	d = dispatch_args(j, &g);
	why = (struct why){ 0 };
	if (expect(j, ep_dispatch(g.b, &d, &h, &why), ERR_NONE, &why,
		   "a good dispatch after bad ones")) {
		struct ep_combine_args a = combine_args(j, &g, g.y);
		a.flags |= EP_ZERO_COPY;
		expect(j, ep_combine(g.b, h, &a, &why), ERR_INVALID_PARAMS, &why,
		       "zero copy without its buffer");
		a.flags &= ~(uint32_t)EP_ZERO_COPY;
		why = (struct why){ 0 };
		expect(j, ep_combine(g.b, h, &a, &why), ERR_NONE, &why, "combine");
		expect(j, ep_combine(g.b, h, &a, &why), ERR_STALE, &why, "combine twice");
	}
	side_close(&g);
}

static void *thread_main(void *arg)
{
	struct job *j = arg;
	j->graph ? run_graph(j) : run_rank(j);
	return NULL;
}

/* Runs a job on all its ranks; prints the first failure. */
static bool run_all(const struct job *proto, bool procs)
{
	struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t n = proto->c.n_ranks;
	static struct job jobs[64];
	static void *lanes[64];
	struct ep_exchange *xs[64];
	pthread_t th[64], eye;
	pid_t pids[64] = { 0 };
	char path[64];
	double from = now_s();
	struct why lane_why = { 0 };
	struct watch w = { .sh = sh, .pids = procs ? pids : NULL, .n_pids = n, .n_ranks = n };
	snprintf(path, sizeof(path), "/tmp/ep_gpu.%d", (int)getpid());
	unlink(path);
	if (!procs && exchange_local(n, xs) != ERR_NONE)
		return false;
	for (uint32_t r = 0; r < n; r++) {
		jobs[r] = *proto;
		jobs[r].me = r;
		jobs[r].sh = sh;
		jobs[r].victim = -1;
		jobs[r].timeout_us = TIMEOUT_US;
		if (!procs && !lanes[r] && proto->n_gpus == 1 &&
		    gpu_stream_new(0, &lanes[r], &lane_why) != ERR_NONE) {
			printf("%s\n", lane_why.text);
			exit(3);
		}
		jobs[r].lane = procs ? NULL : lanes[r];
		if (!procs) {
			jobs[r].x = xs[r];
			pthread_create(&th[r], NULL, thread_main, &jobs[r]);
			continue;
		}
		pids[r] = fork();
		if (pids[r] == 0) {
			struct why why = { 0 };
			if (exchange_socket(path, r, n, 60000000, &jobs[r].x, &why) != ERR_NONE)
				FAIL(&jobs[r], "%s", why.text);
			else
				run_rank(&jobs[r]), jobs[r].x->close(jobs[r].x);
			_exit(0);
		}
	}
	watch_start(&w, &eye);
	uint64_t differ = 0;
	const char *text = "";
	for (uint32_t r = 0; r < n; r++) {
		int st = 0;
		if (procs && (waitpid(pids[r], &st, 0) < 0 || st != 0))
			FAIL(&jobs[r], "process ended with status %d", st);
		if (!procs)
			pthread_join(th[r], NULL), xs[r]->close(xs[r]);
		if (sh->differ[r] && !differ)
			text = sh->text[r];
		differ += sh->differ[r];
	}
	watch_end(&w, eye);
	bool ok = differ == 0;
	printf("  ranks %u experts %u top_k %u hidden %u tokens %u fp8 %u zc %d hook %d async %d seed %llu: %u steps, %.2f s: %s %s\n",
	       n, proto->c.n_experts, proto->c.top_k, proto->c.hidden, proto->c.max_tokens,
	       proto->c.fp8, proto->zero_copy, proto->hook, proto->async,
	       (unsigned long long)proto->c.seed, proto->steps, now_s() - from,
	       ok ? "equal" : "DIFFERS", text);
	munmap(sh, sizeof(*sh));
	return ok;
}

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * 0x2545F4914F6CDD1Dull >> 11;
}

static void random_job(struct job *j, uint64_t seed, uint32_t n_gpus, uint32_t max_ranks)
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
	/* the host transport replays every step: keep the rows it moves within bounds */
	while ((uint64_t)c->n_ranks * c->max_tokens * c->top_k * c->hidden > (4u << 20) &&
	       c->max_tokens > 1)
		c->max_tokens /= 2;
	/* windows hold two slots of outputs of every rank, on both sides */
	while ((uint64_t)c->n_experts * c->n_ranks * c->max_tokens * c->hidden * 8 >
		       (96u << 20) &&
	       (c->max_tokens > 1 || c->hidden > 128)) {
		if (c->max_tokens > 1)
			c->max_tokens /= 2;
		else
			c->hidden = c->hidden / 256 * 128;
	}
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

int main(int argc, char **argv)
{
	bool procs = false;
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* ranks as streams: one hardware queue each, or a waiting rank blocks those behind it (32 at most) */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	uint32_t n_gpus = 1, max_ranks = 0;
	char *a[16] = { 0 };
	int n = 0;
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--procs") == 0)
			procs = true;
		else if (strcmp(argv[i], "--gpus") == 0 && i + 1 < argc)
			n_gpus = (uint32_t)atoi(argv[++i]);
		else if (strcmp(argv[i], "--max-ranks") == 0 && i + 1 < argc)
			max_ranks = (uint32_t)atoi(argv[++i]);
		else if (n < 15)
			a[n++] = argv[i];
	if (!a[0])
		return 2;
	if (!gpu_here())
		return 77; /* skipped, and counted */
	uint64_t bad_n = 0;
	if (strcmp(a[0], "compare") == 0) {
		uint64_t configs = strtoull(a[1] ? a[1] : "100", NULL, 10),
			 seed = strtoull(a[2] ? a[2] : "1", NULL, 10);
		static struct job j;
		for (uint64_t i = 0; i < configs && bad_n < 5; i++) {
			random_job(&j, seed + i, n_gpus, max_ranks);
			bad_n += !run_all(&j, procs);
		}
		printf("ep_gpu compare%s: %llu configurations from seed %llu, %llu differ from the host transport\n",
		       procs ? " --procs" : "", (unsigned long long)configs,
		       (unsigned long long)seed, (unsigned long long)bad_n);
	} else if (strcmp(a[0], "soak") == 0 && n == 7) {
		static struct job j;
		j.steps = (uint32_t)atoi(a[1]);
		j.n_gpus = n_gpus;
		j.async = true;
		j.c = (struct naive){ .seed = 12345,
				      .n_ranks = (uint32_t)atoi(a[2]),
				      .max_tokens = (uint32_t)atoi(a[3]),
				      .hidden = (uint32_t)atoi(a[4]),
				      .top_k = (uint32_t)atoi(a[5]),
				      .n_experts = (uint32_t)atoi(a[6]) };
		for (uint32_t e = 0; e < j.c.n_experts; e++)
			j.owner[e] = e / (j.c.n_experts / j.c.n_ranks);
		for (uint32_t k = 0; k < 4; k++) { /* a quarter of the steps each way */
			static struct job one;
			one = j;
			one.steps = j.steps / 4;
			one.c.seed += k * 1000000ull;
			one.c.fp8 = k & 1;
			one.zero_copy = k < 2;
			one.hook = k == 2;
			one.replay_every = 500;
			bad_n += !run_all(&one, procs);
		}
		printf("ep_gpu soak%s: %u steps, %u ranks, %u tokens, hidden %u, top_k %u, %u experts: %s\n",
		       procs ? " --procs" : "", j.steps, j.c.n_ranks, j.c.max_tokens,
		       j.c.hidden, j.c.top_k, j.c.n_experts,
		       bad_n ? "DIFFERENCES" : "0 differences");
	} else if (strcmp(a[0], "graph") == 0) {
		static struct job j;
		j = (struct job){ .steps = (uint32_t)atoi(a[1] ? a[1] : "100"),
				  .n_gpus = n_gpus,
				  .graph = true };
		j.c = (struct naive){ .n_ranks = 4,
				      .n_experts = 32,
				      .top_k = 8,
				      .hidden = 7168,
				      .max_tokens = 128,
				      .fp8 = 1 };
		for (int zc = 0; zc < 2; zc++) {
			j.zero_copy = zc;
			for (uint32_t e = 0; e < 32; e++)
				j.owner[e] = e / 8;
			bad_n += !run_all(&j, false);
		}
		printf("ep_gpu graph: %u replays, with and without zero copy: %s\n", j.steps,
		       bad_n ? "DIFFERENCES" : "equal");
	} else if (strcmp(a[0], "fault") == 0) {
		bad_n = run_faults();
	} else if (strcmp(a[0], "refuse") == 0) {
		static struct job j;
		static struct shared sh;
		struct ep_exchange *x;
		j = (struct job){
			.n_gpus = 1, .sh = &sh, .victim = -1, .timeout_us = TIMEOUT_US
		};
		j.c = (struct naive){ .n_ranks = 1,
				      .n_experts = 16,
				      .top_k = 4,
				      .hidden = 512,
				      .max_tokens = 64 };
		if (exchange_local(1, &x) != ERR_NONE)
			return 1;
		j.x = x;
		run_refusals(&j);
		x->close(x);
		bad_n = sh.differ[0];
		printf("ep_gpu refuse: %s%s\n", bad_n ? "FAILED: " : "ok", sh.text[0]);
	} else {
		return 2;
	}
	return bad_n != 0;
}
