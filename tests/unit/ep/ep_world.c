/* SPDX-License-Identifier: Apache-2.0 */
#include "ep_world.h"
#include "ep/num.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void member_fail(struct member *m, const char *fmt, ...)
{
	va_list ap;
	if (m->fail[0])
		return;
	va_start(ap, fmt);
	int n = snprintf(m->fail, FAIL_BYTES, "rank %u: ", m->me);
	vsnprintf(m->fail + n, (size_t)(FAIL_BYTES - n), fmt, ap);
	va_end(ap);
}

static void on_say(void *ctx, const char *line)
{
	struct member *m = ctx;
	snprintf(m->told, sizeof(m->told), "%s", line);
}

bool member_open(struct member *m)
{
	struct why why = { 0 };
	struct ep_opts o = { .exchange = m->x,
			     .max_tokens = m->w.max,
			     .hidden = m->w.hidden,
			     .n_experts = m->w.experts,
			     .expert_owner = m->w.owner,
			     .transport = "host",
			     .open_timeout_us = 20000000,
			     .say = on_say,
			     .ctx = m };
	for (uint32_t r = 0; r < m->w.n; r++)
		m->active[r] = 1;
	enum err e = ep_open(&o, &m->b, &why);
	if (e != ERR_NONE)
		member_fail(m, "open: %s: %s", err_name(e), why.text);
	return e == ERR_NONE;
}

/* ---- the formula ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t h = a * 0x9E3779B97F4A7C15ull ^ (b + 0x7F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
	h ^= h >> 29;
	h *= 0x94D049BB133111EBull;
	return h ^ h >> 32;
}

/* Small whole numbers with 448 in each group, so that the cast to e4m3 changes nothing. */
static float x_of(uint64_t seed, uint32_t r, uint32_t t, uint32_t i)
{
	if (i % 128 == 0)
		return 448.0f;
	return (float)(mix(mix(seed, r), (uint64_t)t << 32 | i) % 15) - 7.0f;
}

static int64_t expert_of(const struct world *w, uint64_t seed, uint32_t r, uint32_t t,
			 uint32_t k)
{
	uint64_t first = mix(mix(seed, r + 1000), t);
	if (mix(first, k) % 9 == 0)
		return -1;
	return (int64_t)((first + k) % w->experts); /* distinct while top_k <= experts */
}

static float w_of(uint64_t seed, uint32_t r, uint32_t t, uint32_t k)
{
	return (float)(mix(mix(seed, r + 2000), (uint64_t)t << 8 | k) % 100) * 0.01f;
}

static uint32_t owner_of(const struct world *w, uint32_t e)
{
	return w->owner ? w->owner[e] : e / (w->experts / w->n);
}

/* ---- a step ---- */

void flight_free(struct flight *f)
{
	free(f->recv), free(f->scales), free(f->weights), free(f->count), free(f->src_info),
		free(f->range), free(f->topk), free(f->x), free(f->y), free(f->out),
		free(f->incomplete);
	*f = (struct flight){ 0 };
}

static void flight_make(struct member *m, struct flight *f, uint64_t seed)
{
	const struct world *w = &m->w;
	uint32_t n = w->tokens[m->me];
	*f = (struct flight){ .w = *w, .seed = seed };
	for (uint32_t e = 0; e < w->experts; e++)
		if (owner_of(w, e) == m->me)
			f->locals[f->n_local++] = e;
	uint64_t rows = (uint64_t)MAX_OF(f->n_local, 1u) * w->n * w->max;
	f->recv = calloc(rows, w->hidden * 2);
	f->scales = calloc(rows, w->hidden / 128 * 4);
	f->count = calloc(MAX_OF(f->n_local, 1u), 4);
	f->src_info = calloc(rows, 4);
	f->range = calloc((uint64_t)MAX_OF(f->n_local, 1u) * w->n, 8);
	f->y = calloc(rows, w->hidden * 2);
	f->x = calloc(MAX_OF(n, 1u), w->hidden * 2);
	f->topk = calloc(MAX_OF(n, 1u), w->top_k * 8);
	f->weights = calloc(MAX_OF(n, 1u), w->top_k * 4);
	f->out = calloc(MAX_OF(n, 1u), w->hidden * 2);
	f->incomplete = calloc(MAX_OF(n, 1u), 4);
	for (uint32_t t = 0; t < n; t++) {
		for (uint32_t i = 0; i < w->hidden; i++)
			f->x[t * w->hidden + i] = num_to_bf16(x_of(seed, m->me, t, i));
		for (uint32_t k = 0; k < w->top_k; k++) {
			f->topk[t * w->top_k + k] = expert_of(w, seed, m->me, t, k);
			f->weights[t * w->top_k + k] = w_of(seed, m->me, t, k);
		}
	}
}

bool flight_dispatch(struct member *m, struct flight *f, uint64_t seed, uint32_t flags)
{
	struct why why = { 0 };
	flight_make(m, f, seed);
	struct ep_dispatch_args a = { .x = f->x,
				      .topk = f->topk,
				      .n_tokens = m->w.tokens[m->me],
				      .top_k = m->w.top_k,
				      .n_experts = m->w.experts,
				      .flags = flags | (m->w.fp8 ? EP_FP8 : 0),
				      .timeout_us = m->w.timeout_us,
				      .active = m->active,
				      .recv_x = f->recv,
				      .recv_scales = f->scales,
				      .recv_count = f->count,
				      .src_info = f->src_info,
				      .range = f->range };
	f->args = a;
	enum err e = ep_dispatch(m->b, &a, &f->h, &why);
	if (e != ERR_NONE)
		member_fail(m, "dispatch: %s: %s", err_name(e), why.text);
	return e == ERR_NONE;
}

static float recv_at(const struct flight *f, uint64_t row, uint32_t i)
{
	uint64_t h = f->w.hidden;
	if (!f->w.fp8)
		return num_from_bf16(((uint16_t *)f->recv)[row * h + i]);
	return num_from_e4m3(((uint8_t *)f->recv)[row * h + i]) *
	       f->scales[row * (h / 128) + i / 128];
}

/* Rows of each expert: by source, then token, then place; nothing more, nothing less. */
void flight_check_recv(struct member *m, struct flight *f)
{
	const struct world *w = &f->w;
	uint64_t cap = (uint64_t)w->n * w->max;
	for (uint32_t l = 0; l < f->n_local; l++) {
		uint64_t at = 0;
		for (uint32_t r = 0; r < w->n; r++) {
			uint64_t begin = at;
			for (uint32_t t = 0; !(w->silent >> r & 1) && t < w->tokens[r]; t++)
				for (uint32_t k = 0; k < w->top_k; k++) {
					if (expert_of(w, f->seed, r, t, k) != f->locals[l])
						continue;
					uint64_t row = l * cap + at++;
					if (f->src_info[row] != (int32_t)t)
						member_fail(m, "expert %u row %llu is token %d",
							    f->locals[l],
							    (unsigned long long)(at - 1),
							    f->src_info[row]);
					for (uint32_t i = 0; i < w->hidden; i++)
						if (recv_at(f, row, i) !=
						    x_of(f->seed, r, t, i))
							member_fail(m, "expert %u row %llu",
								    f->locals[l],
								    (unsigned long long)at - 1);
				}
			if (f->range[l * w->n + r] != (int64_t)(begin << 32 | (at - begin)))
				member_fail(m, "range of expert %u source %u", f->locals[l], r);
		}
		if (f->count[l] != (int32_t)at)
			member_fail(m, "expert %u has %d rows, not %llu", f->locals[l],
				    f->count[l], (unsigned long long)at);
	}
}

static void check_out(struct member *m, const struct flight *f)
{
	const struct world *w = &f->w;
	for (uint32_t t = 0; t < w->tokens[m->me]; t++) {
		bool whole = true;
		for (uint32_t k = 0; k < w->top_k; k++) {
			int64_t e = expert_of(w, f->seed, m->me, t, k);
			whole &= e < 0 || !(w->lost >> owner_of(w, (uint32_t)e) & 1);
		}
		if (f->incomplete[t] != !whole)
			member_fail(m, "token %u: incomplete is %d", t, f->incomplete[t]);
		for (uint32_t i = 0; i < w->hidden; i++) {
			float acc = 0;
			for (uint32_t k = 0; k < w->top_k; k++) {
				int64_t e = expert_of(w, f->seed, m->me, t, k);
				if (e >= 0 && !(w->lost >> owner_of(w, (uint32_t)e) & 1))
					acc = fmaf(w_of(f->seed, m->me, t, k),
						   x_of(f->seed, m->me, t, i), acc);
			}
			if (f->out[t * w->hidden + i] != num_to_bf16(acc))
				member_fail(m, "token %u channel %u", t, i);
		}
	}
}

void flight_combine(struct member *m, struct flight *f, bool zero_copy)
{
	const struct world *w = &f->w;
	struct why why = { 0 };
	uint64_t cap = (uint64_t)w->n * w->max;
	uint16_t *y = zero_copy ? ep_y_buffer(f->h) : f->y;
	for (uint32_t l = 0; l < f->n_local; l++)
		for (int32_t r = 0; r < f->count[l]; r++)
			for (uint32_t i = 0; i < w->hidden; i++) {
				uint64_t row = l * cap + (uint64_t)r;
				y[row * w->hidden + i] = num_to_bf16(recv_at(f, row, i));
			}
	struct ep_combine_args a = { .y = y,
				     .weights = f->weights,
				     .flags = zero_copy ? EP_ZERO_COPY : 0,
				     .timeout_us = w->timeout_us,
				     .active = m->active,
				     .out = f->out,
				     .incomplete = f->incomplete };
	enum err e = ep_combine(m->b, f->h, &a, &why);
	if (e != ERR_NONE)
		member_fail(m, "combine: %s: %s", err_name(e), why.text);
	else
		check_out(m, f);
	if (ep_combine(m->b, f->h, &a, NULL) != ERR_STALE)
		member_fail(m, "a used handle was taken again");
	flight_free(f);
}

void member_step(struct member *m, uint64_t seed)
{
	struct flight f;
	if (flight_dispatch(m, &f, seed, 0)) {
		flight_check_recv(m, &f);
		flight_combine(m, &f, seed & 1);
	} else {
		flight_free(&f);
	}
}

/* ---- ranks as threads ---- */

struct seat {
	struct member m;
	void (*fn)(struct member *m);
};

static void *seat_main(void *arg)
{
	struct seat *s = arg;
	if (member_open(&s->m))
		s->fn(&s->m);
	ep_close(s->m.b);
	return NULL;
}

const char *world_threads(const struct world *w, void (*fn)(struct member *m), void *arg)
{
	static char fails[EP_RANKS_MAX][FAIL_BYTES];
	struct ep_exchange *x[EP_RANKS_MAX];
	pthread_t th[EP_RANKS_MAX];
	struct seat *seats = calloc(w->n, sizeof(*seats));
	const char *fail = "";
	memset(fails, 0, sizeof(fails));
	if (!seats || exchange_local(w->n, x) != ERR_NONE) {
		free(seats);
		return "no memory";
	}
	for (uint32_t r = 0; r < w->n; r++) {
		seats[r] = (struct seat){
			.m = { .w = *w, .me = r, .x = x[r], .fail = fails[r], .arg = arg },
			.fn = fn
		};
		pthread_create(&th[r], NULL, seat_main, &seats[r]);
	}
	for (uint32_t r = 0; r < w->n; r++) {
		pthread_join(th[r], NULL);
		x[r]->close(x[r]);
		fail = fail[0] ? fail : fails[r];
	}
	free(seats);
	return fail;
}
