/* SPDX-License-Identifier: Apache-2.0 */
/* pml_ep.h: what the skin adds to common/ep: struct sizes, refusals, events, hooks, rounds. */
#include "pml_ep.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 2, E = 4, H = 128, MAX = 4, K = 2, T = 11, ROWS = N * MAX };

struct rank {
	struct pml_ep_group *g;
	struct pml_ep_buffer *b;
	int me;
	uint32_t tokens, rounds;
	uint16_t x[T][H], out[T][H], recv[E / N][ROWS][H];
	int64_t topk[T][K], range[E / N][N];
	float w[T][K];
	int32_t count[E / N], src[E / N][ROWS], active[N], incomplete[T];
	struct pml_ep_dispatch_args d;
	struct pml_ep_combine_args c;
	void (*fn)(struct rank *r);
	char fail[200];
	int calls;
};

#define WANT(r, ok)                                                                    \
	do {                                                                           \
		if (!(ok) && !(r)->fail[0])                                            \
			snprintf((r)->fail, sizeof((r)->fail), "rank %d, line %d: %s", \
				 (r)->me, __LINE__, #ok);                              \
	} while (0)

static uint16_t bf16(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof(u));
	return (uint16_t)(u >> 16);
}

static void prepare(struct rank *r)
{
	struct pml_ep_dispatch_args d = PML_EP_DISPATCH_ARGS_INIT;
	struct pml_ep_combine_args c = PML_EP_COMBINE_ARGS_INIT;
	for (uint32_t t = 0; t < T; t++) {
		for (int i = 0; i < H; i++)
			r->x[t][i] = bf16((float)(r->me * 16 + (int)t));
		for (int k = 0; k < K; k++) {
			r->topk[t][k] = (int64_t)(t + (uint32_t)k * 3) % E;
			r->w[t][k] = 0.5f;
		}
	}
	r->active[0] = r->active[1] = 1;
	d.x = r->x, d.topk_idx = r->topk[0], d.num_tokens = r->tokens, d.top_k = K;
	d.num_experts = E, d.flags = 0, d.timeout_us = 10000000, d.active_ranks = r->active;
	d.recv_x = r->recv, d.recv_count = r->count, d.src_info = r->src[0];
	d.layout_range = r->range[0];
	c.y = r->recv, c.topk_weights = r->w[0], c.timeout_us = 10000000;
	c.active_ranks = r->active, c.out = r->out, c.incomplete = r->incomplete;
	r->d = d;
	r->c = c;
}

/* With the identity as expert and weights that sum to 1, out is x. */
static void check(struct rank *r)
{
	WANT(r, memcmp(r->out, r->x, r->tokens * sizeof(r->x[0])) == 0);
	for (uint32_t t = 0; t < r->tokens; t++)
		WANT(r, r->incomplete[t] == 0);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_ep_opts o = PML_EP_OPTS_INIT;
	o.num_max_dispatch_tokens_per_rank = MAX;
	o.hidden = H;
	o.num_experts = E;
	o.transport = "host";
	prepare(r);
	int code = pml_ep_buffer_create(r->g, 0, &o, &r->b, &err);
	WANT(r, code == 0);
	if (code == 0)
		r->fn(r);
	WANT(r, pml_ep_buffer_destroy(r->b) == 0);
	return NULL;
}

static void run(void (*fn)(struct rank *r), uint32_t tokens0, uint32_t tokens1, uint32_t rounds)
{
	struct pml_ep_group *g[N];
	pthread_t th[N];
	struct rank *ranks = calloc(N, sizeof(*ranks));
	cr_assert_eq(pml_ep_group_local(N, g, NULL), 0);
	for (int i = 0; i < N; i++) {
		ranks[i].g = g[i], ranks[i].me = i, ranks[i].fn = fn, ranks[i].rounds = rounds;
		ranks[i].tokens = i ? tokens1 : tokens0;
		pthread_create(&th[i], NULL, rank_main, &ranks[i]);
	}
	for (int i = 0; i < N; i++)
		pthread_join(th[i], NULL);
	for (int i = 0; i < N; i++) {
		cr_assert_str_empty(ranks[i].fail, "%s", ranks[i].fail);
		cr_assert_eq(pml_ep_group_free(g[i]), 0);
	}
	free(ranks);
}

static void plain_step(struct rank *r)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_ep_handle *h = NULL;
	struct pml_ep_event *ev = NULL, *ev2 = NULL;
	r->d.flags = r->rounds ? PML_EP_HOOK : PML_EP_ASYNC;
	WANT(r, pml_ep_dispatch(r->b, &r->d, &h, &ev, &err) == 0);
	if (r->rounds)
		WANT(r, pml_ep_hook(h, &err) == 0);
	WANT(r, pml_ep_event_stream_wait(ev, NULL, &err) == 0);
	WANT(r, pml_ep_event_wait(ev, &err) == 0);
	uint16_t *y = pml_ep_next_combine_buffer(h);
	memcpy(y, r->recv, sizeof(r->recv));
	r->c.y = y;
	r->c.flags = PML_EP_ZERO_COPY | PML_EP_ASYNC;
	WANT(r, pml_ep_combine(r->b, h, &r->c, &ev2, &err) == 0);
	WANT(r, pml_ep_event_wait(ev2, &err) == 0);
	check(r);
	WANT(r, pml_ep_combine(r->b, h, &r->c, NULL, &err) == PML_ERR_STALE);
	WANT(r, strcmp(err.step, "combine") == 0 && strstr(err.text, "used before"));
	WANT(r, pml_ep_next_combine_buffer(h) == NULL);
	WANT(r, !pml_ep_buffer_missed(r->b, 0, NULL, 0));
	WANT(r, strcmp(pml_ep_buffer_transport(r->b), "host") == 0);
	pml_ep_event_free(ev), pml_ep_event_free(ev2), pml_ep_event_free(NULL);
}

Test(sdk_ep, a_step_with_events, .timeout = 30)
{
	run(plain_step, 4, 3, 0);
	run(plain_step, 0, 4, 1);
	NO_LEAKS();
}

static int identity(void *ctx, const struct pml_ep_dispatch_args *d, void *y)
{
	struct rank *r = ctx;
	r->calls++;
	memcpy(y, d->recv_x, sizeof(r->recv));
	return 0;
}

static void split(struct rank *r)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_ep_handle *h = NULL;
	if (r->tokens > MAX) {
		WANT(r,
		     pml_ep_dispatch(r->b, &r->d, &h, NULL, &err) == PML_ERR_TOO_MANY_TOKENS);
		WANT(r, strstr(err.text, "the buffer was made for 4"));
		WANT(r, pml_ep_step(r->b, &r->d, &r->c, 1, identity, r, &err) ==
				PML_ERR_TOO_MANY_TOKENS);
		WANT(r, strstr(err.text, "1 rounds of 4 hold 4"));
	}
	WANT(r, pml_ep_step(r->b, &r->d, &r->c, r->rounds, identity, r, &err) == 0);
	WANT(r, r->calls == 3);
	check(r);
}

Test(sdk_ep, case_064_a_batch_above_the_limit_is_split, .timeout = 30)
{
	run(split, 11, 2, 0); /* agreed in a meeting: rank 1 makes two empty rounds */
	run(split, 9, 0, 3);
	NO_LEAKS();
}

static int stop_it(void *ctx, const struct pml_ep_dispatch_args *d, void *y)
{
	(void)d, (void)y;
	((struct rank *)ctx)->calls++;
	return PML_ERR_CANCELLED;
}

static void stopped(struct rank *r)
{
	struct pml_error err = PML_ERROR_INIT;
	WANT(r, pml_ep_step(r->b, &r->d, &r->c, 2, stop_it, r, &err) == PML_ERR_CANCELLED);
	WANT(r, r->calls == 1 && strcmp(err.step, "experts") == 0);
	r->calls = 0;
	WANT(r, pml_ep_step(r->b, &r->d, &r->c, 0, identity, r, &err) == 0);
	check(r);
}

Test(sdk_ep, experts_may_end_a_step, .timeout = 30)
{
	run(stopped, 4, 4, 0);
	NO_LEAKS();
}

/* ---- one rank, a meeting of one's own ---- */

static int alone(void *ctx, uint64_t epoch, const void *mine, size_t n, void *all, uint64_t us)
{
	(void)epoch, (void)us;
	++*(int *)ctx;
	memcpy(all, mine, n);
	return 0;
}

static int never(void *ctx, uint64_t epoch, const void *mine, size_t n, void *all, uint64_t us)
{
	(void)ctx, (void)epoch, (void)mine, (void)n, (void)all, (void)us;
	return PML_ERR_UNREACHABLE;
}

Test(sdk_ep, refusals, .timeout = 30)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_ep_group *g = NULL;
	struct rank *r = calloc(1, sizeof(*r));
	struct pml_ep_handle *h = NULL;
	int met = 0;
	cr_assert_eq(pml_ep_group_custom(1, 1, alone, &met, &g, &err), PML_ERR_INVALID_PARAMS);
	cr_assert_eq(pml_ep_group_local(65, &g, &err), PML_ERR_INVALID_PARAMS);
	cr_assert_eq(pml_ep_group_socket("x", 0, 1, 10, &g, &err), PML_ERR_INVALID_PARAMS);
	cr_assert_eq(pml_ep_group_custom(0, 1, never, NULL, &g, &err), 0);
	struct pml_ep_opts o = PML_EP_OPTS_INIT;
	o.num_max_dispatch_tokens_per_rank = MAX, o.hidden = H, o.num_experts = E;
	o.transport = "host";
	cr_assert_eq(pml_ep_buffer_create(g, 0, &o, &r->b, &err), PML_ERR_UNREACHABLE);
	cr_assert(strstr(err.text, "your all_gather returned"));
	pml_ep_group_free(g);
	cr_assert_eq(pml_ep_group_custom(0, 1, alone, &met, &g, &err), 0);
	o.size = 1;
	cr_assert_eq(pml_ep_buffer_create(g, 0, &o, &r->b, &err), PML_ERR_INVALID_PARAMS);
	o.size = sizeof(o);
	setenv("MOONCAKE_EP_TRANSPORT", "pigeon", 1);
	o.transport = NULL;
	cr_assert_eq(pml_ep_buffer_create(g, 0, &o, &r->b, &err), PML_ERR_INVALID_PARAMS);
	cr_assert(strstr(err.text, "'pigeon'"));
	setenv("POMELO_EP_TRANSPORT", "host", 1);
	cr_assert_eq(pml_ep_buffer_create(g, 0, &o, &r->b, &err), 0, "%s", err.text);
	cr_assert_gt(met, 2);
	r->tokens = 4;
	prepare(r);
	struct pml_ep_dispatch_args d[5] = { r->d, r->d, r->d, r->d, r->d };
	static const char *const texts[] = { "x_dtype is 2",
					     "x is not contiguous: x_stride is 256",
					     "flags is 0x8", "has no size",
					     "topk_idx[0][0] is 4" };
	int64_t wrong[8] = { 4 };
	d[0].x_dtype = PML_EP_F32, d[1].x_stride = 256, d[2].flags = PML_EP_ZERO_COPY;
	d[3].size = 0, d[4].topk_idx = wrong;
	for (int i = 0; i < 5; i++) {
		cr_assert_eq(pml_ep_dispatch(r->b, &d[i], &h, NULL, &err),
			     PML_ERR_INVALID_PARAMS);
		cr_assert(strstr(err.text, texts[i]), "%s", err.text);
		cr_assert_str_eq(err.step, "dispatch");
	}
	cr_assert_null(h);
	cr_assert_eq(pml_ep_dispatch(NULL, &r->d, &h, NULL, &err), PML_ERR_INVALID_PARAMS);
	cr_assert_eq(pml_ep_hook(NULL, &err), PML_ERR_INVALID_PARAMS);
	cr_assert_eq(pml_ep_event_wait(NULL, &err), PML_ERR_INVALID_PARAMS);
	cr_assert_eq(pml_ep_dispatch(r->b, &r->d, &h, NULL, &err), 0);
	struct pml_ep_handle *old = h;
	cr_assert_eq(pml_ep_buffer_update_members(r->b, g, &err), 0);
	cr_assert_eq(pml_ep_combine(r->b, old, &r->c, NULL, &err), PML_ERR_STALE);
	pid_t pid = fork();
	if (pid == 0)
		_exit(pml_ep_dispatch(r->b, &r->d, &h, NULL, &err) == PML_ERR_FORKED &&
				      pml_ep_buffer_destroy(r->b) == PML_ERR_FORKED
			      ? 0
			      : 1);
	int st = 1;
	waitpid(pid, &st, 0);
	cr_assert_eq(st, 0);
	cr_assert_eq(pml_ep_buffer_destroy(r->b), 0);
	cr_assert_eq(pml_ep_buffer_destroy(NULL), 0);
	pml_ep_group_free(g);
	pml_ep_group_free(NULL);
	uint64_t bytes = 0;
	cr_assert_eq(pml_ep_buffer_size(MAX, 100, N, E, &bytes, &err), PML_ERR_INVALID_PARAMS);
	cr_assert_eq(pml_ep_buffer_size(MAX, H, N, E, &bytes, &err), 0);
	cr_assert_gt(bytes, 0);
	cr_assert(pml_has("ep"));
	free(r);
	NO_LEAKS();
}
