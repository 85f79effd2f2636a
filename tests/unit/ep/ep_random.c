/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random configurations of dispatch and combine on the host transport, ranks as threads, against a
 * plain model written here from spec/ep.md alone: dispatch bit for bit, combine bit for bit in the
 * stated order (k ascending, fmaf in f32). Usage: ep_random [CONFIGS [SEED]]
 *
 * A live rank that is masked is a failure, unless it was late by the test's own clock: every flag's
 * raising is recorded, and so is when each wait began. Such a configuration is tried again with a longer
 * time-out, and counted; more than LATE_SHARE of those with a dead rank is a failure too.
 */
#include "ep/ep.h"
#include "ep/num.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STEPS_MAX  4
#define LATE_SHARE 4	/* one in so many, and one more */
#define CLOCK_US   1000 /* a store may take effect after the clock was read */

struct config {
	uint32_t n_ranks, n_experts, top_k, hidden, max_tokens;
	uint32_t owner[512];
	bool fp8, zero_copy, hook, skew;
	int dead; /* a rank that never comes, or -1 */
	uint32_t n_tokens[EP_RANKS_MAX];
	uint16_t *x[EP_RANKS_MAX];
	int64_t *topk[EP_RANKS_MAX];
	float *w[EP_RANKS_MAX];
	uint64_t seed;
	int steps;
	int64_t timeout_us;
};

enum call { CALL_PUBLISH, CALL_RECEIVE, CALL_COMBINE, N_CALLS };

struct rank {
	struct config *c;
	struct ep_exchange *x;
	struct ep_buf *b;
	uint32_t me, step;
	char fail[400];
	uint16_t *out;
	int32_t *incomplete;
	/* the record of each step: when a call began, when a flag was out and for whom it was not */
	uint64_t began_us[STEPS_MAX][N_CALLS];
	uint64_t raised_us[STEPS_MAX][EP_N_FLAGS], withheld[STEPS_MAX][EP_N_FLAGS];
	struct ep_missed missed[EP_RANKS_MAX]; /* of live ranks, when it is over */
};

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* opts.mark: this rank has raised a flag of its step. */
static void on_flag(void *ctx, const char *what, void *stream)
{
	static const char *const names[EP_N_FLAGS] = { "published", "read done", "y ready",
						       "y done" };
	struct rank *r = ctx;
	(void)stream;
	for (int f = 0; f < EP_N_FLAGS; f++) {
		if (strcmp(what, names[f]) != 0)
			continue;
		for (uint32_t p = 0; p < r->c->n_ranks; p++)
			if (ep_missed(r->b, p, NULL, NULL))
				r->withheld[r->step][f] |= 1ull << p;
		r->raised_us[r->step][f] = now_us();
	}
}

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * 0x2545F4914F6CDD1Dull >> 11;
}

/* What the expert does to a row: any function of the bytes it got, in bf16. */
static void expert(uint32_t e, const float *row, uint32_t hidden, uint16_t *y)
{
	for (uint32_t i = 0; i < hidden; i++)
		y[i] = num_to_bf16(row[i] * (1.0f + (float)(e % 7) * 0.25f) +
				   (float)(i % 5) * 0.01f);
}

/* ---- the plain model: loops over tokens, no packing, no windows ---- */

/* e4m3 by search over its 127 values; the tie goes to the even code. */
static float model_e4m3(float v)
{
	float a = fabsf(v), best = 0, gap = INFINITY;
	for (int code = 0; code < 127; code++) {
		int e = code >> 3, m = code & 7;
		float f = e ? ldexpf(1.0f + (float)m / 8, e - 7) : ldexpf((float)m / 8, -6);
		float d = fabsf(f - a);
		if (d < gap || (d == gap && !(code & 1))) {
			gap = d;
			best = f;
		}
	}
	return v < 0 ? -best : best;
}

static void model_row(const struct config *c, uint32_t src, uint32_t t, float *row)
{
	const uint16_t *x = c->x[src] + (size_t)t * c->hidden;
	for (uint32_t g = 0; g < c->hidden / 128; g++) {
		float amax = 0;
		for (uint32_t i = g * 128; i < g * 128 + 128; i++)
			amax = fmaxf(amax, fabsf(num_from_bf16(x[i])));
		float scale = fmaxf(amax, 1e-4f) / 448.0f;
		for (uint32_t i = g * 128; i < g * 128 + 128; i++)
			row[i] = c->fp8 ? model_e4m3(num_from_bf16(x[i]) / scale) * scale
					: num_from_bf16(x[i]);
	}
}

static bool model_token(const struct config *c, uint32_t src, uint32_t t, float *row,
			float *acc, uint16_t *y, uint16_t *out)
{
	bool whole = true;
	model_row(c, src, t, row);
	for (uint32_t i = 0; i < c->hidden; i++)
		acc[i] = 0;
	for (uint32_t k = 0; k < c->top_k; k++) {
		int64_t e = c->topk[src][(size_t)t * c->top_k + k];
		if (e < 0)
			continue;
		if ((int)c->owner[e] == c->dead) {
			whole = false;
			continue;
		}
		expert((uint32_t)e, row, c->hidden, y);
		for (uint32_t i = 0; i < c->hidden; i++)
			acc[i] = fmaf(c->w[src][(size_t)t * c->top_k + k], num_from_bf16(y[i]),
				      acc[i]);
	}
	for (uint32_t i = 0; i < c->hidden; i++)
		out[i] = num_to_bf16(acc[i]);
	return whole;
}

/* ---- one rank's thread ---- */

struct outs {
	void *recv_x;
	float *scales;
	int32_t *count, *src_info;
	int64_t *range;
	uint16_t *y;
	float *row;
	uint32_t n_local;
};

static void check_recv(struct rank *r, const struct outs *o, uint32_t *locals)
{
	struct config *c = r->c;
	uint64_t cap = (uint64_t)c->n_ranks * c->max_tokens;
	float *want = malloc(c->hidden * sizeof(float));
	for (uint32_t l = 0; l < o->n_local; l++) {
		uint64_t at = 0;
		for (uint32_t s = 0; s < c->n_ranks; s++) {
			uint64_t begin = at;
			for (uint32_t t = 0; (int)s != c->dead && t < c->n_tokens[s]; t++)
				for (uint32_t k = 0; k < c->top_k; k++) {
					if (c->topk[s][(size_t)t * c->top_k + k] != locals[l])
						continue;
					if (o->src_info[l * cap + at] != (int32_t)t)
						snprintf(r->fail, sizeof(r->fail),
							 "src_info of expert %u row %llu",
							 locals[l], (unsigned long long)at);
					model_row(c, s, t, want);
					for (uint32_t i = 0; i < c->hidden; i++) {
						uint64_t j = (l * cap + at) * c->hidden + i;
						float got =
							c->fp8 ? num_from_e4m3((
									 (uint8_t *)o
										 ->recv_x)[j]) *
									 o->scales
										 [(l * cap +
										   at) * (c->hidden /
											  128) +
										  i / 128]
							       : num_from_bf16((
									 (uint16_t *)
										 o->recv_x)[j]);
						if (num_bits(got) != num_bits(want[i]) &&
						    !(got == 0 && want[i] == 0))
							snprintf(
								r->fail, sizeof(r->fail),
								"expert %u row %llu channel %u: %g, not %g",
								locals[l],
								(unsigned long long)at, i,
								(double)got, (double)want[i]);
					}
					at++;
				}
			if (o->range[(uint64_t)l * c->n_ranks + s] !=
			    (int64_t)(begin << 32 | (at - begin)))
				snprintf(r->fail, sizeof(r->fail),
					 "layout_range of expert %u source %u", locals[l], s);
		}
		if (o->count[l] != (int32_t)at)
			snprintf(r->fail, sizeof(r->fail),
				 "recv_count of expert %u: %d, not %llu", locals[l],
				 o->count[l], (unsigned long long)at);
	}
	free(want);
}

static void run_experts(struct config *c, const struct outs *o, const uint32_t *locals,
			uint16_t *y)
{
	uint64_t cap = (uint64_t)c->n_ranks * c->max_tokens;
	for (uint32_t l = 0; l < o->n_local; l++)
		for (int32_t n = 0; n < o->count[l]; n++) {
			uint64_t row = l * cap + (uint64_t)n;
			for (uint32_t i = 0; i < c->hidden; i++)
				o->row[i] =
					c->fp8 ? num_from_e4m3((
							 (uint8_t *)o->recv_x)[row * c->hidden +
									       i]) *
							 o->scales[row * (c->hidden / 128) +
								   i / 128]
					       : num_from_bf16(
							 ((uint16_t *)
								  o->recv_x)[row * c->hidden +
									     i]);
			expert(locals[l], o->row, c->hidden, y + row * c->hidden);
		}
}

static void check_out(struct rank *r)
{
	struct config *c = r->c;
	float *row = calloc(c->hidden, 4), *acc = calloc(c->hidden, 4);
	uint16_t *y = malloc(c->hidden * 2), *want = malloc(c->hidden * 2);
	for (uint32_t t = 0; t < c->n_tokens[r->me]; t++) {
		bool whole = model_token(c, r->me, t, row, acc, y, want);
		if (memcmp(want, r->out + (size_t)t * c->hidden, c->hidden * 2) != 0)
			snprintf(r->fail, sizeof(r->fail), "combine of token %u differs", t);
		if (r->incomplete[t] != !whole)
			snprintf(r->fail, sizeof(r->fail), "token %u: incomplete is %d", t,
				 r->incomplete[t]);
	}
	free(row), free(acc), free(y), free(want);
}

static void one_step(struct rank *r, struct ep_buf *b, const struct outs *o, uint32_t *locals,
		     int32_t *active)
{
	struct config *c = r->c;
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	uint32_t flags = (c->fp8 ? EP_FP8 : 0) | (c->hook ? EP_HOOK : 0);
	int64_t timeout = c->timeout_us;
	struct ep_dispatch_args d = { c->x[r->me], c->topk[r->me], c->n_tokens[r->me],
				      c->top_k,	   c->n_experts,   flags,
				      timeout,	   NULL,	   active,
				      o->recv_x,   o->scales,	   o->count,
				      o->src_info, o->range };
	r->began_us[r->step][CALL_PUBLISH] = r->began_us[r->step][CALL_RECEIVE] = now_us();
	enum err e = ep_dispatch(b, &d, &h, &why);
	if (e == ERR_NONE && c->hook) {
		r->began_us[r->step][CALL_RECEIVE] = now_us();
		e = ep_hook(h, &why);
	}
	if (e == ERR_NONE) {
		check_recv(r, o, locals);
		uint16_t *y = c->zero_copy ? ep_y_buffer(h) : o->y;
		run_experts(c, o, locals, y);
		struct ep_combine_args a = {
			y,	 c->w[r->me],  c->zero_copy ? EP_ZERO_COPY : 0,
			timeout, NULL,	       active,
			r->out,	 r->incomplete
		};
		r->began_us[r->step][CALL_COMBINE] = now_us();
		e = ep_combine(b, h, &a, &why);
	}
	if (e != ERR_NONE)
		snprintf(r->fail, sizeof(r->fail), "%s: %s", err_name(e), why.text);
	else
		check_out(r);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct config *c = r->c;
	struct why why = { 0 };
	struct ep_opts opts = { .exchange = r->x,
				.max_tokens = c->max_tokens,
				.hidden = c->hidden,
				.n_experts = c->n_experts,
				.expert_owner = c->owner,
				.transport = "host",
				.mark = on_flag,
				.ctx = r };
	enum err e = ep_open(&opts, &r->b, &why);
	struct ep_buf *b = r->b;
	if (e != ERR_NONE) {
		snprintf(r->fail, sizeof(r->fail), "open: %s: %s", err_name(e), why.text);
		return NULL;
	}
	uint32_t locals[512];
	struct outs o = { 0 };
	for (uint32_t i = 0; i < c->n_experts; i++)
		if (c->owner[i] == r->me)
			locals[o.n_local++] = i;
	uint64_t rows = (uint64_t)MAX_OF(o.n_local, 1u) * c->n_ranks * c->max_tokens;
	int32_t active[EP_RANKS_MAX];
	for (uint32_t i = 0; i < c->n_ranks; i++)
		active[i] = 1;
	o.recv_x = malloc(rows * c->hidden * (c->fp8 ? 1 : 2));
	o.scales = malloc(rows * (c->hidden / 128) * 4);
	o.count = calloc(MAX_OF(o.n_local, 1u), 4);
	o.src_info = malloc(rows * 4);
	o.range = malloc((uint64_t)MAX_OF(o.n_local, 1u) * c->n_ranks * 8);
	o.y = malloc(rows * c->hidden * 2);
	o.row = calloc(c->hidden, 4);
	r->out = malloc((size_t)c->max_tokens * c->hidden * 2);
	r->incomplete = calloc(c->max_tokens, 4);
	for (; (int)r->step < c->steps && !r->fail[0] && (int)r->me != c->dead; r->step++)
		one_step(r, b, &o, locals, active);
	if (c->dead >= 0 && (int)r->me != c->dead && active[c->dead] != 0 && !r->fail[0])
		snprintf(r->fail, sizeof(r->fail), "the dead rank %d is still active", c->dead);
	for (uint32_t i = 0; i < c->n_ranks; i++)
		if ((int)i != c->dead)
			(void)ep_missed(b, i, &r->missed[i], NULL);
	ep_close(b);
	free(o.recv_x), free(o.scales), free(o.count), free(o.src_info), free(o.range),
		free(o.y), free(o.row);
	free(r->out), free(r->incomplete);
	return NULL;
}

/* ---- configurations ---- */

static void make_tokens(struct config *c, uint32_t r, uint64_t *s)
{
	size_t n = (size_t)c->n_tokens[r];
	c->x[r] = malloc(MAX_OF(n, (size_t)1) * c->hidden * 2);
	c->topk[r] = malloc(MAX_OF(n, (size_t)1) * c->top_k * 8);
	c->w[r] = malloc(MAX_OF(n, (size_t)1) * c->top_k * 4);
	for (size_t i = 0; i < n * c->hidden; i++)
		c->x[r][i] = num_to_bf16(((float)(rnd(s) % 20001) - 10000.0f) *
					 ((rnd(s) & 15) ? 1e-4f : 1e-9f));
	for (size_t t = 0; t < n; t++)
		for (uint32_t k = 0; k < c->top_k; k++) {
			int64_t e = (int64_t)(rnd(s) % (c->skew ? c->top_k : c->n_experts));
			bool again = rnd(s) % 8 == 0;
			for (uint32_t j = 0; j < k; j++)
				again |= c->topk[r][t * c->top_k + j] == e;
			c->topk[r][t * c->top_k + k] = again ? -1 : e;
			c->w[r][t * c->top_k + k] = (float)(rnd(s) % 1000) / 500.0f;
		}
}

static void make(struct config *c, uint64_t seed)
{
	uint64_t s = seed * 0x9E3779B97F4A7C15ull + 1;
	*c = (struct config){ .seed = seed, .dead = -1 };
	c->n_ranks = 1 + (uint32_t)(rnd(&s) % 16);
	c->n_experts = 1 + (uint32_t)(rnd(&s) % (rnd(&s) % 4 ? 48 : 512));
	c->top_k = 1 + (uint32_t)(rnd(&s) % MIN_OF(32u, c->n_experts));
	c->hidden = 128 * (1 + (uint32_t)(rnd(&s) % (rnd(&s) % 16 ? 4 : 64)));
	c->max_tokens = 1 + (uint32_t)(rnd(&s) % (c->hidden > 512 ? 2 : 12));
	c->fp8 = rnd(&s) & 1;
	c->zero_copy = rnd(&s) & 1;
	c->hook = rnd(&s) & 1;
	c->skew = rnd(&s) % 4 == 0;
	c->steps = 1 + (int)(rnd(&s) % 4);
	if (c->n_ranks > 1 && rnd(&s) % 16 == 0)
		c->dead = (int)(rnd(&s) % c->n_ranks);
	bool even = c->n_experts % c->n_ranks == 0 && (rnd(&s) & 1);
	for (uint32_t e = 0; e < c->n_experts; e++)
		c->owner[e] = even ? e / (c->n_experts / c->n_ranks)
				   : (uint32_t)(rnd(&s) % c->n_ranks);
	for (uint32_t r = 0; r < c->n_ranks; r++) {
		c->n_tokens[r] = rnd(&s) % 4 ? (uint32_t)(rnd(&s) % (c->max_tokens + 1)) : 0;
		make_tokens(c, r, &s);
	}
}

/* ---- were the masks right? ---- */

enum verdict { FINE, LATE, WRONG };

/* What r says of the live rank p that it masked. text: [400]. */
static enum verdict judge(const struct rank *r, const struct rank *p, char *text)
{
	const struct ep_missed *m = &r->missed[p->me];
	uint32_t step = 2 * ((uint32_t)(m->want & 0xffffffffff) - 1) + m->slot;
	if (!m->set)
		return FINE;
	if (m->flag == EP_N_FLAGS && !p->missed[r->me].set) {
		snprintf(text, 400,
			 "rank %u says that rank %u went on in step %u, which did not mask it",
			 r->me, p->me, step);
		return WRONG;
	}
	if (m->flag == EP_N_FLAGS)
		return LATE; /* a consequence: p's own mask is judged by itself */
	bool publish = m->flag == EP_READ_DONE || m->flag == EP_Y_DONE;
	enum call call = publish		   ? CALL_PUBLISH
			 : m->flag == EP_PUBLISHED ? CALL_RECEIVE
						   : CALL_COMBINE;
	uint64_t end =
		r->began_us[publish ? step + 2 : step][call] + (uint64_t)r->c->timeout_us;
	uint64_t at = p->raised_us[step][m->flag];
	if (at == 0 || p->withheld[step][m->flag] >> r->me & 1 || at + CLOCK_US > end)
		return LATE;
	snprintf(
		text, 400,
		"rank %u masked rank %u for flag %u of step %u, which was up %llu us before the deadline",
		r->me, p->me, m->flag, step, (unsigned long long)(end - at));
	return WRONG;
}

/* The worst of all pairs; each rank's own failure counts when no live rank was masked. */
static enum verdict judge_all(struct rank *ranks, uint32_t n, char *text)
{
	enum verdict worst = FINE;
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t p = 0; p < n && worst != WRONG; p++)
			worst = MAX_OF(worst, judge(&ranks[r], &ranks[p], text));
	for (uint32_t r = 0; r < n && worst == FINE; r++)
		if (ranks[r].fail[0]) {
			snprintf(text, 400, "rank %u: %.350s", r, ranks[r].fail);
			worst = WRONG;
		}
	return worst;
}

static enum verdict run_once(uint64_t seed, int64_t dead_timeout_us, bool *dead)
{
	static struct config c;
	static struct rank ranks[EP_RANKS_MAX];
	struct ep_exchange *x[EP_RANKS_MAX];
	pthread_t th[EP_RANKS_MAX];
	char text[400] = "";
	make(&c, seed);
	*dead = c.dead >= 0;
	c.timeout_us = *dead ? dead_timeout_us : 20000000;
	memset(ranks, 0, sizeof(ranks));
	if (exchange_local(c.n_ranks, x) != ERR_NONE)
		return WRONG;
	for (uint32_t r = 0; r < c.n_ranks; r++) {
		ranks[r].c = &c, ranks[r].x = x[r], ranks[r].me = r;
		pthread_create(&th[r], NULL, rank_main, &ranks[r]);
	}
	for (uint32_t r = 0; r < c.n_ranks; r++) {
		pthread_join(th[r], NULL);
		x[r]->close(x[r]);
		free(c.x[r]), free(c.topk[r]), free(c.w[r]);
	}
	enum verdict v = judge_all(ranks, c.n_ranks, text);
	if (v == WRONG)
		printf("seed %llu, %u ranks (experts %u top_k %u hidden %u max %u fp8 %d zc %d hook %d dead %d): %s\n",
		       (unsigned long long)seed, c.n_ranks, c.n_experts, c.top_k, c.hidden,
		       c.max_tokens, c.fp8, c.zero_copy, c.hook, c.dead, text);
	return v;
}

struct tally {
	uint64_t dead, late, wrong;
};

/* A rank that never comes costs its time-out; one too short for a busy machine is tried longer. */
static void run(uint64_t seed, struct tally *t)
{
	enum verdict v = LATE;
	bool dead = true;
	for (int64_t us = 1000000; us <= 64000000 && v == LATE && dead; us *= 8) {
		v = run_once(seed, us, &dead);
		t->dead += us == 1000000 && dead;
		t->late += v == LATE && dead;
	}
	t->wrong += v != FINE;
	if (v == LATE)
		printf("seed %llu: live ranks are late by %d s\n", (unsigned long long)seed,
		       dead ? 64 : 20);
}

int main(int argc, char **argv)
{
	uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 300,
		 seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	struct tally t = { 0 };
	for (uint64_t i = 0; i < n && t.wrong < 5; i++)
		run(seed + i, &t);
	bool slow = t.late > 1 + t.dead / LATE_SHARE;
	printf("ep_random: %llu configurations from seed %llu, %llu with a dead rank, %llu runs late%s, %llu failed\n",
	       (unsigned long long)n, (unsigned long long)seed, (unsigned long long)t.dead,
	       (unsigned long long)t.late, slow ? " (too many)" : "",
	       (unsigned long long)t.wrong);
	return t.wrong != 0 || slow;
}
