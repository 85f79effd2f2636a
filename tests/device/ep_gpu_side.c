/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's two sides: buffers and arrays on the GPU and on the host, and steps over them. */
#include "ep_gpu.h"
#include "ep/num.h"
#include "gpu/gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void at(struct job *j, const char *what, uint32_t step)
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

void job_fail(struct job *j, const char *fmt, ...)
{
	va_list ap;
	if (j->sh->differ[j->me]++)
		return;
	va_start(ap, fmt);
	vsnprintf(j->sh->text[j->me], sizeof(j->sh->text[0]), fmt, ap);
	va_end(ap);
}

bool bad(const struct job *j)
{
	return j->sh->differ[j->me] != 0;
}

/*
 * A copy waits for nothing but itself: with pageable memory CUDA waits for the stream inside the
 * call, and if it holds a lock meanwhile, a rank of the same process that this stream waits for cannot
 * launch. So the stream is empty first.
 */
void fetch(struct job *j, void *dst, const void *src, uint64_t bytes, void *stream)
{
	struct why why = { 0 };
	if (bytes && (gpu_sync(stream, &why) != ERR_NONE ||
		      gpu_copy(dst, src, bytes, stream, &why) != ERR_NONE ||
		      gpu_sync(stream, &why) != ERR_NONE))
		job_fail(j, "%s", why.text);
}

void *take(struct side *s, uint64_t bytes)
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

bool side_open(struct job *j, struct side *s, bool gpu)
{
	static __thread uint32_t locals[4096];
	const char *tune = getenv("EP_GPU_TUNE");
	uint32_t n_local = locals_of(j, locals);
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
			     .tune = tune ? (uint32_t)atoi(tune) : 0,
			     .say = say_missed,
			     .ctx = j };
	at(j, gpu ? "opening the GPU's buffer" : "opening the host's buffer", 0);
	enum err e = ep_open(&o, &s->b, &why);
	if (gpu)
		j->sh->bufs[j->me] = s->b;
	s->stream = gpu ? j->lane : NULL;
	s->own_stream = e == ERR_NONE && gpu && !j->lane;
	if (s->own_stream)
		e = gpu_stream_new(s->device, &s->stream, &why);
	at(j, "allocating", 0);
	if (e != ERR_NONE) {
		job_fail(j, "open %s: %s: %s", o.transport, err_name(e), why.text);
		return false;
	}
	uint64_t rows = (uint64_t)(n_local ? n_local : 1) * c->n_ranks * c->max_tokens,
		 n = c->max_tokens;
	s->x = take(s, n * c->hidden * 2);
	s->topk = take(s, n * c->top_k * 8);
	s->w = take(s, n * c->top_k * 4);
	s->recv = take(s, rows * c->hidden * (c->fp8 && !j->mixed ? 1 : 2));
	s->scales = take(s, rows * (c->hidden / 128) * 4);
	s->count = take(s, n_local * 4);
	s->src_info = take(s, rows * 4);
	s->range = take(s, (uint64_t)n_local * c->n_ranks * 8);
	s->y = take(s, j->zero_copy && !j->mixed ? 0 : rows * c->hidden * 2);
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

void side_close(struct side *s)
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

struct ep_dispatch_args dispatch_args(const struct job *j, const struct side *s)
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

struct ep_combine_args combine_args(const struct job *j, const struct side *s, const void *y)
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

void dev_open(struct job *j, struct side *g, struct dev *d)
{
	d->n_local = locals_of(j, d->host_locals);
	d->locals = take(g, sizeof(d->host_locals));
	d->owner = take(g, sizeof(j->owner));
	d->bad = take(g, 4);
	fetch(j, d->locals, d->host_locals, sizeof(d->host_locals), g->stream);
	fetch(j, d->owner, j->owner, sizeof(j->owner), g->stream);
	if (naive_load())
		job_fail(j, "loading the naive kernels");
	(void)!gpu_sync(g->stream, NULL);
}

void dev_close(struct side *g, struct dev *d)
{
	gpu_free(g->device, d->locals);
	gpu_free(g->device, d->owner);
	gpu_free(g->device, d->bad);
}

void gpu_step(struct job *j, struct side *s, const struct dev *d, struct ep_handle **h,
	      uint16_t **y)
{
	struct why why = { 0 };
	struct ep_dispatch_args a = dispatch_args(j, s);
	at(j, "dispatch", (uint32_t)j->sh->steps[j->me]);
	enum err e = ep_dispatch(s->b, &a, h, &why);
	if (e == ERR_NONE && j->hook)
		e = ep_hook(*h, &why);
	if (e != ERR_NONE) {
		job_fail(j, "dispatch: %s: %s", err_name(e), why.text);
		return;
	}
	*y = j->zero_copy ? ep_y_buffer(*h) : s->y;
	if (naive_expert(&j->c, d->locals, d->n_local, s->recv, s->scales, s->count, *y,
			 s->stream))
		job_fail(j, "expert kernel");
	struct ep_combine_args c = combine_args(j, s, *y);
	at(j, "combine", (uint32_t)j->sh->steps[j->me]);
	e = ep_combine(s->b, *h, &c, &why);
	if (e != ERR_NONE)
		job_fail(j, "combine: %s: %s", err_name(e), why.text);
}

void check_step(struct job *j, struct side *g, const struct dev *d)
{
	if (naive_check_recv(&j->c, d->locals, d->n_local, g->recv, g->scales, g->count,
			     g->src_info, g->range, d->bad, g->stream) ||
	    naive_check_out(&j->c, j->me, d->owner, g->out, g->incomplete, d->bad, g->stream))
		job_fail(j, "check kernels");
}

static void expert_cpu(const struct naive *c, uint32_t e, const void *recv, const float *scales,
		       uint64_t row, uint16_t *y)
{
	static __thread float e4m3[256]; /* looked up: a soak has many rows */
	for (int q = 0; q < 256 && e4m3[1] == 0; q++)
		e4m3[255 - q] = num_from_e4m3((uint8_t)(255 - q));
	for (uint32_t i = 0; i < c->hidden; i++) {
		float v = c->fp8 ? e4m3[((const uint8_t *)recv)[row * c->hidden + i]] *
					   scales[row * (c->hidden / 128) + i / 128]
				 : num_from_bf16(((const uint16_t *)recv)[row * c->hidden + i]);
		float a = v * (1.0f + (float)(e % 7) * 0.25f);
		y[row * c->hidden + i] = num_to_bf16(a + (float)(i % 5) * 0.01f);
	}
}

/* n bytes of the device against the host's. */
static void same(struct job *j, const struct side *g, const char *what, const void *dev,
		 const void *host, uint64_t bytes)
{
	uint8_t *t = malloc(bytes ? bytes : 1);
	fetch(j, t, dev, bytes, g->stream);
	if (memcmp(t, host, bytes) != 0)
		job_fail(j, "%s differs from the host transport", what);
	free(t);
}

static void compare(struct job *j, const struct side *g, const struct side *s, uint32_t n_local)
{
	const struct naive *c = &j->c;
	uint64_t n = c->n_tokens[j->me], cap = (uint64_t)c->n_ranks * c->max_tokens,
		 row = (uint64_t)c->hidden * (c->fp8 ? 1 : 2), groups = c->hidden / 128;
	same(j, g, "recv_count", g->count, s->count, (uint64_t)n_local * 4);
	same(j, g, "layout_range", g->range, s->range, (uint64_t)n_local * c->n_ranks * 8);
	same(j, g, "out", g->out, s->out, n * c->hidden * 2);
	same(j, g, "incomplete", g->incomplete, s->incomplete, n * 4);
	for (uint64_t l = 0; l < n_local && !bad(j); l++) {
		uint64_t rows = (uint64_t)s->count[l], from = l * cap;
		same(j, g, "recv_x", (uint8_t *)g->recv + from * row,
		     (uint8_t *)s->recv + from * row, rows * row);
		same(j, g, "src_info", g->src_info + from, s->src_info + from, rows * 4);
		if (c->fp8)
			same(j, g, "scales", g->scales + from * groups,
			     s->scales + from * groups, rows * groups * 4);
	}
}

void replay(struct job *j, struct side *g, struct side *s, const struct dev *d)
{
	const struct naive *c = &j->c;
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	uint32_t step = (uint32_t)j->sh->steps[j->me];
	uint64_t n = c->n_tokens[j->me], cap = (uint64_t)c->n_ranks * c->max_tokens;
	fetch(j, s->x, g->x, n * c->hidden * 2, g->stream);
	fetch(j, s->topk, g->topk, n * c->top_k * 8, g->stream);
	fetch(j, s->w, g->w, n * c->top_k * 4, g->stream);
	struct ep_dispatch_args a = dispatch_args(j, s);
	at(j, "host twin: dispatch", step);
	enum err e = ep_dispatch(s->b, &a, &h, &why);
	if (e == ERR_NONE && j->hook)
		e = ep_hook(h, &why);
	if (e != ERR_NONE) {
		job_fail(j, "host dispatch: %s: %s", err_name(e), why.text);
		return;
	}
	uint16_t *y = j->zero_copy ? ep_y_buffer(h) : s->y;
	for (uint32_t l = 0; l < d->n_local; l++)
		for (int32_t r = 0; r < s->count[l]; r++)
			expert_cpu(c, d->host_locals[l], s->recv, s->scales,
				   l * cap + (uint64_t)r, y);
	struct ep_combine_args b = combine_args(j, s, y);
	at(j, "host twin: combine", step);
	e = ep_combine(s->b, h, &b, &why);
	at(j, "host twin: comparing", step);
	if (e != ERR_NONE)
		job_fail(j, "host combine: %s: %s", err_name(e), why.text);
	compare(j, g, s, d->n_local);
}

/*
 * All ranks are here. In one process no rank may allocate or free device memory while another's
 * kernel waits for it: CUDA makes both wait for the device.
 */
void everybody(struct job *j)
{
	uint8_t one = 1, all[64];
	struct why why = { 0 };
	at(j, "waiting for all ranks", (uint32_t)j->sh->steps[j->me]);
	if (j->x->all_gather(j->x, 99, &one, 1, all, 15000000, &why) != ERR_NONE)
		job_fail(j, "%s", why.text);
}

/* The first rank that this one masked, and why; "" when none. */
const char *missed_text(const struct job *j, const struct ep_buf *b)
{
	static __thread struct why w;
	w = (struct why){ 0 };
	for (uint32_t r = 0; r < j->c.n_ranks; r++)
		if (ep_missed(b, r, NULL, &w))
			return w.text;
	return "";
}

void next_step(struct job *j, uint64_t base, uint32_t step)
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
	if (j->mixed) {
		uint32_t h = (step * 2654435761u) >> 29;
		j->c.fp8 = h & 1;
		j->zero_copy = h >> 1 & 1;
		j->hook = h >> 2 & 1;
	}
}
