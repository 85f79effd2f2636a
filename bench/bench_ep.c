/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert parallelism on GPUs: time of dispatch and combine beside copy bandwidth measured in the
 * same run, interleaved, median of REPS with spread. Ranks are streams of one process, on one GPU
 * or one GPU each (--gpus N). Bytes are what the kernels move by design (kernels' file comments);
 * floor_bytes are those of spec/ep.md (dispatch: written once, read and written once more;
 * combine: three times).
 *
 *   bench_ep [--gpus N] [--tune BITS] [--kernels] [--info] RANKS TOKENS HIDDEN TOPK EXPERTS
 *
 *   --tune     a sum of EP_TUNE_*
 *   --kernels  also the mean time of each kernel of rank 0, by events around it (with the time it
 *              waits for other ranks; the events keep kernels from overlapping)
 *   --info     also registers and occupancy of every kernel
 *
 * One JSON object a line, values in us a step for all ranks together. What a step cannot do without is
 * measured in the same run: ep.two_launches (an empty kernel launched and awaited, twice) and ep.flag_trip
 * (a flag's way between two kernels that wait for it); least_us is the greater of their sum with two
 * trips and floor_bytes at copy bandwidth, of_least the value over it.
 */
#include "ep/ep.h"
#include "ep_naive.h"
#include "gpu/ep_kernels.h"
#include "gpu/gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPS	    7
#define COPY_BYTES  (2ull << 30)
#define GRAPH_STEPS 16
#define MARKS_MAX   16
#define MARK_STEPS  50
#define TRIPS	    200

enum {
	DISPATCH_FP8,
	DISPATCH_BF16,
	COMBINE,
	COMBINE_ZC,
	STEP, /* dispatch fp8 and combine zero copy, awaited once */
	STEP_GRAPH,
	LAUNCHES,
	N_PHASES
};
static const char *const phase_names[] = { "ep.dispatch_fp8", "ep.dispatch_bf16",
					   "ep.combine",      "ep.combine_zero_copy",
					   "ep.step",	      "ep.step_graph",
					   "ep.two_launches" };

struct world {
	struct naive c;
	uint32_t owner[4096], n_gpus, iters;
	pthread_barrier_t bar;
	double us[N_PHASES][REPS], copy_gbps[REPS], peer_gbps[REPS], trip_us[REPS];
	uint64_t pairs; /* distinct (token, owner rank) of all ranks */
	uint64_t choices, own;
	uint64_t far_pairs, far; /* pairs and choices whose owner is on another GPU */
	void *peer;		 /* COPY_BYTES of rank 1, on the second GPU */
	uint64_t *ping[2];	 /* a flag in the memory of each player */
	uint32_t tune;
	bool kernels;
	struct mark {
		const char *kernel;
		double us;
		uint32_t n;
	} marks[MARKS_MAX];
	uint32_t n_marks;
};

struct rank {
	struct world *w;
	struct ep_exchange *x;
	uint32_t me;
	int device;
	void *stream, *graph, *second; /* second: the other player's, of a lone rank */
	struct ep_buf *b;
	uint16_t *xb, *y, *out;
	void *recv;
	float *scales, *wt;
	int64_t *topk, *range;
	int32_t *count, *src_info, *active;
	void *events[MARKS_MAX + 1]; /* --kernels: one before the step, one after each kernel */
	const char *names[MARKS_MAX];
	uint32_t n_events;
	bool marking;
};

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void must(enum err e, const struct why *why)
{
	if (e == ERR_NONE)
		return;
	fprintf(stderr, "bench_ep: %s: %s\n", err_name(e), why->text);
	exit(1);
}

static void *take(struct rank *r, uint64_t bytes)
{
	void *p = NULL;
	struct why why = { 0 };
	must(gpu_alloc(r->device, bytes ? bytes : 16, &p, &why), &why);
	return p;
}

/* After each launch. */
static void on_mark(void *ctx, const char *kernel, void *stream)
{
	struct rank *r = ctx;
	struct why why = { 0 };
	if (!r->marking || r->n_events > MARKS_MAX)
		return;
	r->names[r->n_events - 1] = kernel;
	must(gpu_event_record(r->events[r->n_events++], stream, &why), &why);
}

static void open_rank(struct rank *r)
{
	struct world *w = r->w;
	struct naive *c = &w->c;
	struct why why = { 0 };
	r->device = (int)(r->me % w->n_gpus);
	must(gpu_stream_new(r->device, &r->stream, &why), &why);
	struct ep_opts o = { .exchange = r->x,
			     .max_tokens = c->max_tokens,
			     .hidden = c->hidden,
			     .n_experts = c->n_experts,
			     .expert_owner = w->owner,
			     .transport = "ipc",
			     .tune = w->tune,
			     .mark = w->kernels ? on_mark : NULL,
			     .ctx = r,
			     .device = r->device };
	must(ep_open(&o, &r->b, &why), &why);
	uint32_t n_local = 0;
	for (uint32_t e = 0; e < c->n_experts; e++)
		n_local += w->owner[e] == r->me;
	uint64_t rows = (uint64_t)n_local * c->n_ranks * c->max_tokens, n = c->max_tokens;
	r->xb = take(r, n * c->hidden * 2);
	r->topk = take(r, n * c->top_k * 8);
	r->wt = take(r, n * c->top_k * 4);
	r->recv = take(r, rows * c->hidden * 2);
	r->scales = take(r, rows * (c->hidden / 128) * 4);
	r->count = take(r, n_local * 4);
	r->src_info = take(r, rows * 4);
	r->range = take(r, (uint64_t)n_local * c->n_ranks * 8);
	r->y = take(r, rows * c->hidden * 2);
	r->out = take(r, n * c->hidden * 2);
	r->active = take(r, 64 * 4);
	if (r->me < 2)
		w->ping[r->me] = take(r, 16);
	if (c->n_ranks == 1)
		w->ping[1] = take(r, 16);
	must(gpu_stream_new(r->device, &r->second, &why), &why);
	int32_t ones[64];
	for (int i = 0; i < 64; i++)
		ones[i] = 1;
	must(gpu_copy(r->active, ones, sizeof(ones), r->stream, &why), &why);
	if (naive_load() || naive_make(c, r->me, r->xb, r->topk, r->wt, r->stream))
		exit(1);
	must(gpu_sync(r->stream, &why), &why);
}

/* What this rank's tokens choose, for the byte counts. */
static void count_pairs(struct rank *r)
{
	struct world *w = r->w;
	struct why why = { 0 };
	uint64_t n = (uint64_t)w->c.max_tokens * w->c.top_k, at_home = 0;
	uint64_t counts[5] = { 0 }; /* pairs, choices, own, far pairs, far */
	int64_t *t = malloc(n * 8);
	must(gpu_copy(t, r->topk, n * 8, r->stream, &why), &why);
	must(gpu_sync(r->stream, &why), &why);
	for (uint32_t o = r->me % w->n_gpus; o < w->c.n_ranks; o += w->n_gpus)
		at_home |= 1ull << o;
	for (uint32_t i = 0; i < w->c.max_tokens; i++) {
		uint64_t seen = 0;
		for (uint32_t k = 0; k < w->c.top_k; k++) {
			int64_t e = t[i * w->c.top_k + k];
			uint64_t owner = e < 0 ? 0 : 1ull << w->owner[e];
			seen |= owner;
			counts[1] += e >= 0;
			counts[2] += owner == 1ull << r->me;
			counts[4] += (owner & ~at_home) != 0;
		}
		counts[0] += (uint64_t)__builtin_popcountll(seen);
		counts[3] += (uint64_t)__builtin_popcountll(seen & ~at_home);
	}
	free(t);
	uint64_t *to[5] = { &w->pairs, &w->choices, &w->own, &w->far_pairs, &w->far };
	for (int i = 0; i < 5; i++)
		__atomic_fetch_add(to[i], counts[i], __ATOMIC_RELAXED);
}

static struct ep_handle *dispatch(struct rank *r, bool fp8)
{
	struct naive *c = &r->w->c;
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	struct ep_dispatch_args a = { .x = r->xb,
				      .topk = r->topk,
				      .n_tokens = c->max_tokens,
				      .top_k = c->top_k,
				      .n_experts = c->n_experts,
				      .flags = EP_ASYNC | (fp8 ? EP_FP8 : 0),
				      .timeout_us = -1,
				      .stream = r->stream,
				      .active = r->active,
				      .recv_x = r->recv,
				      .recv_scales = r->scales,
				      .recv_count = r->count,
				      .src_info = r->src_info,
				      .range = r->range };
	must(ep_dispatch(r->b, &a, &h, &why), &why);
	return h;
}

static void combine(struct rank *r, struct ep_handle *h, bool zero_copy)
{
	struct why why = { 0 };
	struct ep_combine_args a = { .y = zero_copy ? ep_y_buffer(h) : r->y,
				     .weights = r->wt,
				     .flags = EP_ASYNC | (zero_copy ? EP_ZERO_COPY : 0),
				     .timeout_us = -1,
				     .stream = r->stream,
				     .active = r->active,
				     .out = r->out };
	must(ep_combine(r->b, h, &a, &why), &why);
}

/* All ranks start together; the time until the last one's stream is empty. */
static double timed(struct rank *r, struct ep_handle **h, int phase)
{
	struct why why = { 0 };
	pthread_barrier_wait(&r->w->bar);
	double from = now_us();
	if (phase == DISPATCH_FP8 || phase == DISPATCH_BF16)
		*h = dispatch(r, phase == DISPATCH_FP8);
	else if (phase == COMBINE || phase == COMBINE_ZC)
		combine(r, *h, phase == COMBINE_ZC);
	else if (phase == STEP)
		combine(r, dispatch(r, true), true);
	else if (phase == STEP_GRAPH)
		must(gpu_graph_launch(r->graph, r->stream, &why), &why);
	for (int i = 0; phase == LAUNCHES && i < 2; i++) {
		if (naive_empty(r->stream))
			exit(1);
		must(gpu_sync(r->stream, &why), &why);
	}
	must(gpu_sync(r->stream, &why), &why);
	pthread_barrier_wait(&r->w->bar);
	return now_us() - from;
}

/* Ranks 0 and 1 play, or both of a lone rank's streams; the others wait. */
static void trip_rep(struct rank *r, int rep)
{
	struct why why = { 0 };
	void *e0, *e1;
	float ms = 0;
	bool alone = r->w->c.n_ranks == 1;
	uint64_t **f = r->w->ping;
	pthread_barrier_wait(&r->w->bar);
	must(gpu_event_new(r->device, true, &e0, &why), &why);
	must(gpu_event_new(r->device, true, &e1, &why), &why);
	must(gpu_event_record(e0, r->stream, &why), &why);
	if (r->me < 2 && naive_pingpong(f[r->me], f[!r->me], TRIPS, r->me == 0, r->stream))
		exit(1);
	if (alone && naive_pingpong(f[1], f[0], TRIPS, 0, r->second))
		exit(1);
	must(gpu_event_record(e1, r->stream, &why), &why);
	must(gpu_event_wait(e1, &why), &why);
	must(gpu_event_ms(e0, e1, &ms, &why), &why);
	if (r->me == 0)
		r->w->trip_us[rep] = (double)ms * 1e3 / TRIPS / 2;
	gpu_event_free(e0);
	gpu_event_free(e1);
	pthread_barrier_wait(&r->w->bar);
}

/* Bytes read and written a second; between GPUs, bytes that cross. */
static double copy_gbps(struct rank *r, void *to, const void *from)
{
	struct why why = { 0 };
	void *e0, *e1;
	float ms = 0;
	must(gpu_event_new(r->device, true, &e0, &why), &why);
	must(gpu_event_new(r->device, true, &e1, &why), &why);
	must(gpu_event_record(e0, r->stream, &why), &why);
	for (int i = 0; i < 4; i++)
		must(gpu_copy(to, from, COPY_BYTES, r->stream, &why), &why);
	must(gpu_event_record(e1, r->stream, &why), &why);
	must(gpu_event_wait(e1, &why), &why);
	must(gpu_event_ms(e0, e1, &ms, &why), &why);
	gpu_event_free(e0);
	gpu_event_free(e1);
	return 4.0 * (from == r->w->peer ? 1 : 2) * (double)COPY_BYTES / (double)ms / 1e6;
}

static void capture(struct rank *r)
{
	struct why why = { 0 };
	must(gpu_graph_begin(r->stream, &why), &why);
	for (int i = 0; i < GRAPH_STEPS; i++)
		combine(r, dispatch(r, true), true);
	must(gpu_graph_end(r->stream, &r->graph, &why), &why);
}

static void add_mark(struct world *w, const char *phase, const char *kernel, double us)
{
	static char names[MARKS_MAX][48];
	char name[48];
	uint32_t i = 0;
	snprintf(name, sizeof(name), "%s/%s", phase, kernel);
	while (i < w->n_marks && strcmp(w->marks[i].kernel, name) != 0)
		i++;
	if (i == MARKS_MAX)
		return;
	if (i == w->n_marks) {
		memcpy(names[i], name, sizeof(name));
		w->marks[w->n_marks++].kernel = names[i];
	}
	w->marks[i].us += us;
	w->marks[i].n++;
}

/* One marked half of a step: its kernels' times, kept by rank 0. */
static void marked(struct rank *r, struct ep_handle **h, bool is_dispatch, bool way)
{
	struct why why = { 0 };
	pthread_barrier_wait(&r->w->bar);
	r->n_events = 1;
	must(gpu_event_record(r->events[0], r->stream, &why), &why);
	r->marking = true;
	if (is_dispatch)
		*h = dispatch(r, way);
	else
		combine(r, *h, way);
	r->marking = false;
	must(gpu_sync(r->stream, &why), &why);
	for (uint32_t i = 1; i < r->n_events && r->me == 0; i++) {
		float ms = 0;
		must(gpu_event_ms(r->events[i - 1], r->events[i], &ms, &why), &why);
		add_mark(r->w,
			 is_dispatch ? way ? "fp8" : "bf16"
			 : way	     ? "zero_copy"
				     : "copy",
			 r->names[i - 1], (double)ms * 1e3);
	}
}

static void time_kernels(struct rank *r)
{
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	for (int i = 0; i <= MARKS_MAX; i++)
		must(gpu_event_new(r->device, true, &r->events[i], &why), &why);
	for (int i = 0; i < MARK_STEPS; i++)
		for (int way = 0; way < 2; way++) {
			marked(r, &h, true, way);
			marked(r, &h, false, way);
		}
	pthread_barrier_wait(&r->w->bar);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct world *w = r->w;
	struct ep_handle *h = NULL;
	open_rank(r);
	count_pairs(r);
	void *a = NULL, *b = NULL;
	if (r->me == 0) {
		a = take(r, COPY_BYTES);
		b = take(r, COPY_BYTES);
	}
	if (r->me == 1 && w->n_gpus > 1)
		w->peer = take(r, COPY_BYTES);
	pthread_barrier_wait(&w->bar);
	capture(r);
	for (int rep = -2; rep < REPS; rep++) {
		double us[N_PHASES] = { 0 };
		if (r->me == 0)
			w->copy_gbps[rep < 0 ? 0 : rep] = copy_gbps(r, b, a);
		if (r->me == 0 && w->peer)
			w->peer_gbps[rep < 0 ? 0 : rep] = copy_gbps(r, b, w->peer);
		trip_rep(r, rep < 0 ? 0 : rep);
		for (uint32_t i = 0; i < w->iters; i++) {
			us[DISPATCH_FP8] += timed(r, &h, DISPATCH_FP8);
			us[COMBINE] += timed(r, &h, COMBINE);
			us[DISPATCH_BF16] += timed(r, &h, DISPATCH_BF16);
			us[COMBINE_ZC] += timed(r, &h, COMBINE_ZC);
			us[STEP] += timed(r, &h, STEP);
			us[STEP_GRAPH] += timed(r, &h, STEP_GRAPH) / GRAPH_STEPS;
			us[LAUNCHES] += timed(r, &h, LAUNCHES);
		}
		if (r->me == 0 && rep >= 0)
			for (int p = 0; p < N_PHASES; p++)
				w->us[p][rep] = us[p] / w->iters;
	}
	if (w->kernels)
		time_kernels(r);
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Bytes by design and by the push design, each phase. */
static void count_bytes(const struct world *w, double *bytes, double *floors)
{
	const struct naive *c = &w->c;
	double tokens = (double)c->n_ranks * c->max_tokens, h2 = c->hidden * 2.0,
	       f8 = c->hidden + c->hidden / 32.0;
	double ch = (double)w->choices, pairs = (double)w->pairs, own = (double)w->own;
	bytes[DISPATCH_FP8] = tokens * (h2 + f8) + pairs * f8 + ch * (f8 + 4);
	bytes[DISPATCH_BF16] = tokens * 2 * h2 + pairs * h2 + ch * (h2 + 4);
	bytes[COMBINE_ZC] = ch * h2 + tokens * h2;
	bytes[COMBINE] = bytes[COMBINE_ZC] + (ch - own) * h2 * 2;
	bytes[STEP] = bytes[STEP_GRAPH] = bytes[DISPATCH_FP8] + bytes[COMBINE_ZC];
	floors[DISPATCH_FP8] = ch * f8 * 3;
	floors[DISPATCH_BF16] = floors[COMBINE] = floors[COMBINE_ZC] = ch * h2 * 3;
	floors[STEP] = floors[STEP_GRAPH] = floors[DISPATCH_FP8] + floors[COMBINE_ZC];
}

static double median(double *v, double *spread)
{
	qsort(v, REPS, sizeof(double), by_value);
	*spread = (v[REPS - 1] - v[0]) / v[REPS / 2];
	return v[REPS / 2];
}

/* What crosses between GPUs, beside a plain copy between two of them that nobody else disturbs. */
static void report_far(struct world *w, const double *us)
{
	const struct naive *c = &w->c;
	double f8 = c->hidden + c->hidden / 32.0, h2 = c->hidden * 2.0, any;
	double pairs = (double)w->far_pairs, far = (double)w->far;
	const double bytes[] = { [DISPATCH_FP8] = pairs * f8,
				 [DISPATCH_BF16] = pairs * h2,
				 [COMBINE] = far * h2,
				 [COMBINE_ZC] = far * h2 };
	double peer = median(w->peer_gbps, &any);
	for (size_t p = 0; p < ARRAY_LEN(bytes); p++)
		printf("{\"name\":\"%s.far\",\"ranks\":%u,\"tokens\":%u,\"gpus\":%u,\"value\":%.1f,\"unit\":\"GB/s a GPU\","
		       "\"bytes\":%.0f,\"limit_name\":\"peer copy, one direction\",\"limit\":%.1f,\"ratio\":%.3f}\n",
		       phase_names[p], c->n_ranks, c->max_tokens, w->n_gpus,
		       bytes[p] / w->n_gpus / us[p] / 1e3, bytes[p], peer,
		       bytes[p] / w->n_gpus / us[p] / 1e3 / peer);
}

static void head(const struct world *w, const char *name, double value, double spread)
{
	const struct naive *c = &w->c;
	printf("{\"name\":\"%s\",\"tune\":%u,\"gpus\":%u,\"ranks\":%u,\"tokens\":%u,\"hidden\":%u,\"top_k\":%u,"
	       "\"experts\":%u,\"value\":%.2f,\"unit\":\"us\",\"spread\":%.3f,\"samples\":%d",
	       name, w->tune, w->n_gpus, c->n_ranks, c->max_tokens, c->hidden, c->top_k,
	       c->n_experts, value, spread, REPS);
}

static void report(struct world *w)
{
	double bytes[N_PHASES] = { 0 }, floors[N_PHASES] = { 0 }, us[N_PHASES],
	       spread[N_PHASES], any;
	double copy = median(w->copy_gbps, &any), trip = median(w->trip_us, &any);
	count_bytes(w, bytes, floors);
	head(w, "ep.flag_trip", trip, any);
	printf("}\n");
	for (int p = 0; p < N_PHASES; p++)
		us[p] = median(w->us[p], &spread[p]);
	for (int p = 0; p < N_PHASES; p++) {
		double floor_us = floors[p] / copy / 1e3, least = us[LAUNCHES] + 2 * trip;
		least = floor_us > least ? floor_us : least;
		head(w, phase_names[p], us[p], spread[p]);
		if (p != LAUNCHES)
			printf(",\"bytes\":%.0f,\"gbps\":%.0f,\"limit_name\":\"copy_gbps\",\"limit\":%.0f,"
			       "\"ratio\":%.3f,\"floor_bytes\":%.0f,\"floor_ratio\":%.3f,\"least_us\":%.1f,"
			       "\"of_least\":%.2f",
			       bytes[p], bytes[p] / us[p] / 1e3, copy,
			       bytes[p] / us[p] / 1e3 / copy, floors[p],
			       floors[p] / us[p] / 1e3 / copy, least, us[p] / least);
		printf("}\n");
	}
	if (w->n_gpus > 1)
		report_far(w, us);
	for (uint32_t i = 0; i < w->n_marks; i++)
		printf("{\"name\":\"ep.kernel.%s\",\"ranks\":%u,\"tokens\":%u,\"value\":%.2f,\"unit\":\"us\",\"samples\":%u}\n",
		       w->marks[i].kernel, w->c.n_ranks, w->c.max_tokens,
		       w->marks[i].us / w->marks[i].n, w->marks[i].n);
}

static void print_info(enum err (*next)(uint32_t i, struct ep_kernel_info *out))
{
	struct ep_kernel_info k;
	for (uint32_t i = 0; next(i, &k) == ERR_NONE; i++)
		printf("{\"name\":\"ep.info.%s\",\"threads\":%u,\"registers\":%u,\"static_shared_bytes\":%u,"
		       "\"local_bytes\":%u,\"blocks_per_sm\":%u,\"warps_per_sm\":%u}\n",
		       k.name, k.threads, k.registers, k.shared_bytes, k.local_bytes,
		       k.blocks_per_sm, k.blocks_per_sm * k.threads / 32);
}

static int run(struct world *w)
{
	static struct rank ranks[64];
	struct ep_exchange *x[64];
	pthread_t th[64];
	w->iters = w->c.max_tokens > 1000 ? 5 : 20;
	for (uint32_t r = 0; r < w->c.n_ranks; r++)
		w->c.n_tokens[r] = w->c.max_tokens;
	for (uint32_t e = 0; e < w->c.n_experts; e++)
		w->owner[e] = e / (w->c.n_experts / w->c.n_ranks);
	if (exchange_local(w->c.n_ranks, x) != ERR_NONE)
		return 1;
	pthread_barrier_init(&w->bar, NULL, w->c.n_ranks);
	for (uint32_t r = 0; r < w->c.n_ranks; r++) {
		ranks[r] = (struct rank){ .w = w, .x = x[r], .me = r };
		pthread_create(&th[r], NULL, rank_main, &ranks[r]);
	}
	for (uint32_t r = 0; r < w->c.n_ranks; r++)
		pthread_join(th[r], NULL);
	report(w);
	return 0;
}

int main(int argc, char **argv)
{
	static struct world w;
	bool info = false;
	int i = 1;
	w.n_gpus = 1;
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
	       1); /* a hardware queue for each rank's stream */
	for (; i < argc && argv[i][0] == '-'; i++)
		if (strcmp(argv[i], "--gpus") == 0 && i + 1 < argc)
			w.n_gpus = (uint32_t)atoi(argv[++i]);
		else if (strcmp(argv[i], "--tune") == 0 && i + 1 < argc)
			w.tune = (uint32_t)atoi(argv[++i]);
		else if (strcmp(argv[i], "--kernels") == 0)
			w.kernels = true;
		else if (strcmp(argv[i], "--info") == 0)
			info = true;
		else
			break;
	if (argc - i != 5) {
		fprintf(stderr,
			"usage: bench_ep [--gpus N] [--tune BITS] [--kernels] [--info] RANKS TOKENS HIDDEN TOPK EXPERTS\n");
		return 2;
	}
	w.c = (struct naive){ .seed = 7,
			      .n_ranks = (uint32_t)atoi(argv[i]),
			      .max_tokens = (uint32_t)atoi(argv[i + 1]),
			      .hidden = (uint32_t)atoi(argv[i + 2]),
			      .top_k = (uint32_t)atoi(argv[i + 3]),
			      .n_experts = (uint32_t)atoi(argv[i + 4]) };
	if (w.c.n_ranks < 1 || w.c.n_ranks > 64 || w.c.n_experts % w.c.n_ranks != 0 ||
	    w.n_gpus < 1) {
		fprintf(stderr, "bench_ep: ranks are 1 to 64 and divide the experts\n");
		return 2;
	}
	int r = run(&w);
	if (info)
		print_info(ep_dispatch_kernel_info), print_info(ep_combine_kernel_info);
	return r; /* the process ends: device memory goes with it */
}
