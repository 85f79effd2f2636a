/* SPDX-License-Identifier: Apache-2.0 */
#include "ep_try.h"
#include "ep/ep.h"
#include "ep/num.h"
#include "gpu/gpu.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define TIMEOUT_US  10000000
#define COPY_BYTES  (64ull << 20) /* a rank: beyond its share of the caches */
#define SAMPLES_MAX 64

struct world {
	const struct ep_try *t;
	struct ep_try_result *res;
	pthread_barrier_t bar;
	pthread_mutex_t lock; /* over res, err, why */
	enum err err;
	struct why why;
	bool bench;
	uint64_t pairs, choices;
	double us[5][SAMPLES_MAX];
};

struct rank {
	struct world *w;
	struct ep_exchange *x;
	uint32_t me, n_local;
	bool gpu, fp8, ok;
	void *stream;
	struct ep_buf *b;
	int32_t active[EP_RANKS_MAX];
	/* as the transport sees them, and on the host: the same where there is no GPU */
	struct array {
		void *dev, *host;
		uint64_t bytes;
	} xs, topk, wt, recv, scales, count, src, range, y, out, act, lost;
};

/* ---- memory ---- */

static void failed(struct rank *r, enum err e, const struct why *why)
{
	pthread_mutex_lock(&r->w->lock);
	if (r->w->err == ERR_NONE) {
		r->w->err = e;
		r->w->why = *why;
	}
	pthread_mutex_unlock(&r->w->lock);
	r->ok = false;
}

static bool take(struct rank *r, struct array *a, uint64_t bytes)
{
	struct why why = { 0 };
	a->bytes = MAX_OF(bytes, (uint64_t)64);
	a->host = calloc(1, a->bytes);
	enum err e = a->host ? ERR_NONE : ERR_NO_MEMORY;
	a->dev = a->host;
	if (e == ERR_NONE && r->gpu) {
		a->dev = NULL;
		e = gpu_alloc(r->w->t->device, a->bytes, &a->dev, &why);
	}
	if (e != ERR_NONE)
		failed(r, e, &why);
	return e == ERR_NONE;
}

/* The stream is empty before and after: see docs/ep.md on ranks of one process. */
static void move(struct rank *r, void *to, const void *from, uint64_t bytes)
{
	struct why why = { 0 };
	if (!r->gpu || !r->ok)
		return;
	enum err e = gpu_sync(r->stream, &why);
	if (e == ERR_NONE)
		e = gpu_copy(to, from, bytes, r->stream, &why);
	if (e == ERR_NONE)
		e = gpu_sync(r->stream, &why);
	if (e != ERR_NONE)
		failed(r, e, &why);
}

static void up(struct rank *r, const struct array *a)
{
	move(r, a->dev, a->host, a->bytes);
}

static void down(struct rank *r, const struct array *a)
{
	move(r, a->host, a->dev, a->bytes);
}

static void drop(struct rank *r, struct array *a)
{
	if (r->gpu)
		gpu_free(r->w->t->device, a->dev);
	free(a->host);
}

static void on_say(void *ctx, const char *line)
{
	struct rank *r = ctx;
	pthread_mutex_lock(&r->w->lock);
	if (r->me == 0 || !strstr(line, "transport"))
		snprintf(r->w->res->said, sizeof(r->w->res->said), "%s", line);
	pthread_mutex_unlock(&r->w->lock);
}

static uint32_t owner_of(const struct ep_try *t, uint32_t e)
{
	return e % t->ranks;
}

static void open_rank(struct rank *r)
{
	const struct ep_try *t = r->w->t;
	struct why why = { 0 };
	uint32_t owner[EP_EXPERTS_MAX];
	for (uint32_t e = 0; e < t->experts && e < EP_EXPERTS_MAX; e++)
		owner[e] = owner_of(t, e);
	struct ep_opts o = { .exchange = r->x,
			     .max_tokens = t->tokens,
			     .hidden = t->hidden,
			     .n_experts = t->experts,
			     .expert_owner = owner,
			     .transport = t->transport,
			     .device = t->device,
			     .open_timeout_us = 30000000,
			     .say = on_say,
			     .ctx = r };
	enum err e = ep_open(&o, &r->b, &why);
	if (e != ERR_NONE) {
		failed(r, e, &why);
		return;
	}
	r->gpu = strcmp(ep_transport(r->b), "host") != 0;
	if (r->gpu && (e = gpu_stream_new(t->device, &r->stream, &why)) != ERR_NONE)
		failed(r, e, &why);
	for (uint32_t i = 0; i < t->experts; i++)
		r->n_local += owner_of(t, i) == r->me;
	uint64_t rows = (uint64_t)r->n_local * t->ranks * t->tokens, n = t->tokens;
	r->ok = r->ok && take(r, &r->xs, n * t->hidden * 2) &&
		take(r, &r->topk, n * t->top_k * 8) && take(r, &r->wt, n * t->top_k * 4) &&
		take(r, &r->recv, rows * t->hidden * 2) &&
		take(r, &r->scales, rows * (t->hidden / 128) * 4) &&
		take(r, &r->count, r->n_local * 4) && take(r, &r->src, rows * 4) &&
		take(r, &r->range, (uint64_t)r->n_local * t->ranks * 8) &&
		take(r, &r->y, rows * t->hidden * 2) && take(r, &r->out, n * t->hidden * 2) &&
		take(r, &r->act, EP_RANKS_MAX * 4) && take(r, &r->lost, n * 4);
	for (uint32_t i = 0; r->ok && i < EP_RANKS_MAX; i++)
		((int32_t *)r->act.host)[i] = 1;
	up(r, &r->act);
}

static void close_rank(struct rank *r)
{
	struct array *all[] = { &r->xs,	 &r->topk,  &r->wt, &r->recv, &r->scales, &r->count,
				&r->src, &r->range, &r->y,  &r->out,  &r->act,	  &r->lost };
	ep_close(r->b);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		drop(r, all[i]);
	gpu_stream_free(r->stream);
}

/* ---- a step ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t h = a * 0x9E3779B97F4A7C15ull ^ (b + 1) * 0xBF58476D1CE4E5B9ull;
	h ^= h >> 29;
	h *= 0x94D049BB133111EBull;
	return h ^ h >> 32;
}

static void make(struct rank *r, uint64_t seed)
{
	const struct ep_try *t = r->w->t;
	uint16_t *x = r->xs.host;
	float *wt = r->wt.host;
	int64_t *topk = r->topk.host;
	uint64_t pairs = 0, choices = 0;
	for (uint64_t i = 0; i < (uint64_t)t->tokens * t->hidden; i++)
		x[i] = num_to_bf16(((float)(mix(seed + r->me, i) % 4001) - 2000.0f) * 0.01f);
	for (uint32_t tok = 0; tok < t->tokens; tok++) {
		uint64_t first = mix(seed + 77 * r->me, tok), seen = 0;
		for (uint32_t k = 0; k < t->top_k; k++) {
			uint64_t at = (uint64_t)tok * t->top_k + k;
			topk[at] = (int64_t)((first + k) % t->experts);
			wt[at] = (float)(mix(first, k) % 100) * 0.01f;
			seen |= 1ull << owner_of(t, (uint32_t)topk[at]);
			choices++;
		}
		pairs += (uint64_t)__builtin_popcountll(seen);
	}
	pthread_mutex_lock(&r->w->lock);
	r->w->pairs += pairs;
	r->w->choices += choices;
	pthread_mutex_unlock(&r->w->lock);
	up(r, &r->xs), up(r, &r->topk), up(r, &r->wt);
}

static struct ep_handle *dispatch(struct rank *r, bool fp8)
{
	const struct ep_try *t = r->w->t;
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	struct ep_dispatch_args a = { .x = r->xs.dev,
				      .topk = r->topk.dev,
				      .n_tokens = t->tokens,
				      .top_k = t->top_k,
				      .n_experts = t->experts,
				      .flags = fp8 ? EP_FP8 : 0,
				      .timeout_us = TIMEOUT_US,
				      .stream = r->stream,
				      .active = r->act.dev,
				      .recv_x = r->recv.dev,
				      .recv_scales = r->scales.dev,
				      .recv_count = r->count.dev,
				      .src_info = r->src.dev,
				      .range = r->range.dev };
	enum err e = ep_dispatch(r->b, &a, &h, &why);
	if (e != ERR_NONE)
		failed(r, e, &why);
	return h;
}

static void combine(struct rank *r, struct ep_handle *h, bool zero_copy)
{
	struct why why = { 0 };
	struct ep_combine_args a = { .y = zero_copy ? ep_y_buffer(h) : r->y.dev,
				     .weights = r->wt.dev,
				     .flags = zero_copy ? EP_ZERO_COPY : 0,
				     .timeout_us = TIMEOUT_US,
				     .stream = r->stream,
				     .active = r->act.dev,
				     .out = r->out.dev,
				     .incomplete = r->lost.dev };
	enum err e = ep_combine(r->b, h, &a, &why);
	if (e != ERR_NONE)
		failed(r, e, &why);
}

/* ---- check ---- */

static uint16_t expert(uint32_t e, float v)
{
	return num_to_bf16(v * (1.0f + (float)(e % 5) * 0.25f));
}

/* y of every received row, on the host; then to where combine reads it. */
static void experts(struct rank *r, bool fp8, struct ep_handle *h, bool zero_copy)
{
	const struct ep_try *t = r->w->t;
	uint64_t cap = (uint64_t)t->ranks * t->tokens, hidden = t->hidden;
	uint16_t *y = r->y.host;
	down(r, &r->recv), down(r, &r->scales), down(r, &r->count);
	for (uint32_t l = 0; l < r->n_local && r->ok; l++)
		for (int64_t n = 0; n < ((int32_t *)r->count.host)[l]; n++)
			for (uint64_t i = 0; i < hidden; i++) {
				uint64_t row = l * cap + (uint64_t)n, at = row * hidden + i;
				float v = fp8 ? num_from_e4m3(((uint8_t *)r->recv.host)[at]) *
							  ((float *)r->scales
								   .host)[row * (hidden / 128) +
									  i / 128]
					      : num_from_bf16(((uint16_t *)r->recv.host)[at]);
				y[at] = expert(l * t->ranks + r->me, v);
			}
	if (!zero_copy)
		up(r, &r->y);
	else if (r->gpu)
		move(r, ep_y_buffer(h), r->y.host, r->y.bytes);
	else
		memcpy(ep_y_buffer(h), r->y.host, r->y.bytes);
}

/* The plain loop: no packing, no ranks. */
static void compare(struct rank *r, bool fp8, uint64_t step)
{
	const struct ep_try *t = r->w->t;
	const uint16_t *x = r->xs.host, *out = r->out.host;
	uint64_t bad = 0, where = 0;
	down(r, &r->out), down(r, &r->lost);
	for (uint64_t i = 0; i < (uint64_t)t->tokens * t->hidden && r->ok; i++) {
		uint64_t tok = i / t->hidden, g = i / 128 * 128;
		float v = num_from_bf16(x[i]), amax = 0, acc = 0;
		if (fp8) {
			for (uint64_t j = g; j < g + 128; j++)
				amax = fmaxf(amax, fabsf(num_from_bf16(x[j])));
			float scale = fmaxf(amax, EP_AMAX_MIN) / EP_FP8_MAX;
			v = num_from_e4m3(num_to_e4m3(v / scale)) * scale;
		}
		for (uint32_t k = 0; k < t->top_k; k++) {
			uint64_t at = tok * t->top_k + k;
			uint32_t e = (uint32_t)((int64_t *)r->topk.host)[at];
			acc = fmaf(((float *)r->wt.host)[at], num_from_bf16(expert(e, v)), acc);
		}
		if (num_to_bf16(acc) != out[i] || ((int32_t *)r->lost.host)[tok]) {
			where = bad++ ? where : i;
		}
	}
	pthread_mutex_lock(&r->w->lock);
	if (bad && !r->w->res->differences)
		snprintf(r->w->res->first, sizeof(r->w->res->first),
			 "rank %u, step %llu, token %llu, channel %llu", r->me,
			 (unsigned long long)step, (unsigned long long)(where / t->hidden),
			 (unsigned long long)(where % t->hidden));
	r->w->res->differences += bad;
	pthread_mutex_unlock(&r->w->lock);
}

static void check(struct rank *r)
{
	for (uint32_t i = 0; i < r->w->t->steps && r->ok; i++) {
		bool fp8 = i & 1, zero_copy = i & 2;
		make(r, 1000 * i + 1);
		struct ep_handle *h = r->ok ? dispatch(r, fp8) : NULL;
		if (!r->ok)
			return;
		experts(r, fp8, h, zero_copy);
		combine(r, h, zero_copy);
		if (r->ok)
			compare(r, fp8, i);
	}
}

/* ---- bench ---- */

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

enum { FP8, BF16, COPY_Y, ZERO_COPY, COPY };

/* One phase on all ranks at once; rank 0 keeps the time of the slowest. A failed rank still comes. */
static void timed(struct rank *r, int phase, uint32_t sample, struct ep_handle **h, void *a,
		  void *b)
{
	pthread_barrier_wait(&r->w->bar);
	double from = now_us();
	if (r->ok && (phase == FP8 || phase == BF16))
		*h = dispatch(r, phase == FP8);
	else if (r->ok && *h && phase != COPY)
		combine(r, *h, phase == ZERO_COPY);
	else if (r->ok && phase == COPY && r->gpu && r->me == 0)
		move(r, a, b, COPY_BYTES);
	else if (r->ok && phase == COPY && !r->gpu)
		memcpy(a, b, COPY_BYTES);
	pthread_barrier_wait(&r->w->bar);
	if (r->me == 0 && sample < SAMPLES_MAX)
		r->w->us[phase][sample] = now_us() - from;
}

static void bench(struct rank *r)
{
	struct array a = { 0 }, b = { 0 };
	struct ep_handle *h = NULL;
	if (r->ok)
		make(r, 1);
	if (r->ok && (!r->gpu || r->me == 0) && take(r, &a, COPY_BYTES) &&
	    take(r, &b, COPY_BYTES))
		memset(b.host, 1, COPY_BYTES);
	uint32_t n = MIN_OF(r->w->t->steps, (uint32_t)SAMPLES_MAX);
	for (uint32_t i = 0; i <= n; i++) { /* the first round warms up and is written over */
		uint32_t s = i ? i - 1 : 0;
		timed(r, COPY, s, &h, a.dev, b.dev);
		timed(r, FP8, s, &h, NULL, NULL);
		timed(r, COPY_Y, s, &h, NULL, NULL);
		timed(r, BF16, s, &h, NULL, NULL);
		timed(r, ZERO_COPY, s, &h, NULL, NULL);
	}
	if (a.host)
		drop(r, &a);
	if (b.host)
		drop(r, &b);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void summarise(struct world *w, bool gpu)
{
	const struct ep_try *t = w->t;
	struct ep_try_result *res = w->res;
	uint32_t n = MIN_OF(t->steps, (uint32_t)SAMPLES_MAX);
	for (int p = 0; p < 5; p++)
		qsort(w->us[p], n, sizeof(double), by_value);
	uint64_t tokens = (uint64_t)t->ranks * t->tokens, h2 = (uint64_t)t->hidden * 2,
		 f8 = layout_row_bytes(t->hidden, true);
	double ranks = gpu ? 1 : t->ranks;
	res->dispatch_fp8 =
		(struct ep_try_phase){ w->us[FP8][n / 2],
				       tokens * (h2 + f8) + w->pairs * f8 + w->choices * f8 };
	res->dispatch_bf16 =
		(struct ep_try_phase){ w->us[BF16][n / 2],
				       tokens * 2 * h2 + w->pairs * h2 + w->choices * h2 };
	res->combine = (struct ep_try_phase){ w->us[COPY_Y][n / 2],
					      w->choices * h2 * 3 + tokens * h2 };
	res->combine_zero_copy =
		(struct ep_try_phase){ w->us[ZERO_COPY][n / 2], w->choices * h2 + tokens * h2 };
	res->copy_gbps = ranks * 2 * (double)COPY_BYTES / w->us[COPY][n / 2] / 1e3;
}

/* ---- ranks ---- */

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	r->ok = true;
	open_rank(r);
	pthread_barrier_wait(&r->w->bar); /* no rank allocates while another's step waits */
	if (r->w->err != ERR_NONE)
		r->ok = false; /* all or none */
	if (r->w->bench)
		bench(r);
	else
		check(r);
	pthread_barrier_wait(&r->w->bar);
	if (r->me == 0 && r->b)
		snprintf(r->w->res->transport, sizeof(r->w->res->transport), "%s",
			 ep_transport(r->b));
	close_rank(r);
	return NULL;
}

static enum err check_numbers(const struct ep_try *t, struct why *why)
{
	if (t->ranks < 1 || t->ranks > EP_RANKS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "ranks is %u, allowed are 1 to %d",
			       t->ranks, EP_RANKS_MAX);
	if (t->top_k < 1 || t->top_k > EP_TOP_K_MAX || t->top_k > t->experts)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"top_k is %u, allowed are 1 to %u, the number of experts, and %d",
			t->top_k, t->experts, EP_TOP_K_MAX);
	if (t->steps < 1 || t->steps > 1000000)
		return why_set(why, ERR_INVALID_PARAMS, "steps is %u, allowed are 1 to 1000000",
			       t->steps);
	uint64_t bytes;
	return ep_buffer_size(t->tokens, t->hidden, t->ranks, t->experts, &bytes, why);
}

static enum err run(struct world *w, struct why *why)
{
	const struct ep_try *t = w->t;
	struct ep_exchange *x[EP_RANKS_MAX];
	pthread_t th[EP_RANKS_MAX];
	enum err e = check_numbers(t, why);
	if (e != ERR_NONE)
		return e;
	struct rank *ranks = calloc(t->ranks, sizeof(*ranks));
	if (!ranks || exchange_local(t->ranks, x) != ERR_NONE) {
		free(ranks);
		return why_set(why, ERR_NO_MEMORY, "ep: no memory for %u ranks", t->ranks);
	}
	pthread_barrier_init(&w->bar, NULL, t->ranks);
	pthread_mutex_init(&w->lock, NULL);
	for (uint32_t r = 0; r < t->ranks; r++) {
		ranks[r] = (struct rank){ .w = w, .x = x[r], .me = r };
		if (pthread_create(&th[r], NULL, rank_main, &ranks[r]) != 0)
			abort(); /* the others wait for it: nothing can be undone */
	}
	for (uint32_t r = 0; r < t->ranks; r++) {
		pthread_join(th[r], NULL);
		x[r]->close(x[r]);
	}
	bool gpu = ranks[0].gpu;
	free(ranks);
	pthread_barrier_destroy(&w->bar);
	pthread_mutex_destroy(&w->lock);
	w->res->steps = t->steps;
	if (w->err == ERR_NONE && w->bench)
		summarise(w, gpu);
	return w->err == ERR_NONE ? ERR_NONE : why_set(why, w->err, "%s", w->why.text);
}

static enum err start(const struct ep_try *t, bool bench_it, struct ep_try_result *out,
		      struct why *why)
{
	struct world *w = calloc(1, sizeof(*w));
	if (!w)
		return why_set(why, ERR_NO_MEMORY, "ep: no memory");
	*out = (struct ep_try_result){ 0 };
	/* a hardware queue for each rank's stream; read when CUDA starts */
	(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	w->t = t;
	w->res = out;
	w->bench = bench_it;
	enum err e = run(w, why);
	free(w);
	return e;
}

enum err ep_try_check(const struct ep_try *t, struct ep_try_result *out, struct why *why)
{
	return start(t, false, out, why);
}

enum err ep_try_bench(const struct ep_try *t, struct ep_try_result *out, struct why *why)
{
	return start(t, true, out, why);
}
