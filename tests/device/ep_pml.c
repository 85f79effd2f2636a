/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pml_ep.h on a GPU: two ranks as threads, each with a stream; dispatch, an expert on the same stream,
 * combine into the zero-copy buffer, all asynchronous, with an event between each two. The naive kernels
 * check every step. Usage: ep_pml [STEPS]; exit 77 without a GPU.
 */
#include "ep_naive.h"
#include "gpu/gpu.h"
#include "pml_ep.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, EXPERTS = 16, LOCAL = EXPERTS / RANKS, TOP_K = 4, HIDDEN = 1024, MAX = 64 };
enum { ROWS = RANKS * MAX };

static pthread_barrier_t bar; /* ranks of one process allocate together */
static uint32_t steps;

struct rank {
	uint32_t me, n_bad;
	struct pml_ep_group *group;
	struct pml_ep_buffer *b;
	void *stream, *x, *recv, *out;
	int64_t *topk, *range;
	float *w, *scales;
	int32_t *count, *src, *active, *incomplete;
	uint32_t *locals, *owner, *bad;
	char text[400];
};

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "ep_pml: %s\n", what);
	exit(1);
}

static void *take(uint64_t bytes)
{
	void *p = NULL;
	must(gpu_alloc(0, bytes, &p, NULL) == ERR_NONE, "allocating");
	return p;
}

static void put(struct rank *r, void *to, const void *from, uint64_t bytes)
{
	must(gpu_copy(to, from, bytes, r->stream, NULL) == ERR_NONE &&
		     gpu_sync(r->stream, NULL) == ERR_NONE,
	     "copying");
}

static void open_rank(struct rank *r)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_ep_opts o = PML_EP_OPTS_INIT;
	uint32_t locals[LOCAL], owner[EXPERTS];
	int32_t ones[RANKS] = { 1, 1 };
	o.num_max_dispatch_tokens_per_rank = MAX;
	o.hidden = HIDDEN;
	o.num_experts = EXPERTS;
	o.transport = "ipc";
	must(gpu_stream_new(0, &r->stream, NULL) == ERR_NONE, "stream");
	must(pml_ep_buffer_create(r->group, 0, &o, &r->b, &err) == 0, err.text);
	must(strcmp(pml_ep_buffer_transport(r->b), "ipc") == 0, "the transport's name");
	for (uint32_t e = 0; e < EXPERTS; e++)
		owner[e] = e / LOCAL;
	for (uint32_t l = 0; l < LOCAL; l++)
		locals[l] = r->me * LOCAL + l;
	r->x = take(MAX * HIDDEN * 2), r->out = take(MAX * HIDDEN * 2);
	r->topk = take(MAX * TOP_K * 8), r->w = take(MAX * TOP_K * 4);
	r->recv = take((uint64_t)LOCAL * ROWS * HIDDEN);
	r->scales = take((uint64_t)LOCAL * ROWS * HIDDEN / 128 * 4);
	r->count = take(LOCAL * 4), r->src = take(LOCAL * ROWS * 4);
	r->range = take(LOCAL * RANKS * 8), r->active = take(RANKS * 4);
	r->incomplete = take(MAX * 4), r->bad = take(4);
	r->locals = take(sizeof(locals)), r->owner = take(sizeof(owner));
	put(r, r->locals, locals, sizeof(locals));
	put(r, r->owner, owner, sizeof(owner));
	put(r, r->active, ones, sizeof(ones));
}

static struct pml_ep_dispatch_args dispatch_args(const struct rank *r, bool hook)
{
	struct pml_ep_dispatch_args a = PML_EP_DISPATCH_ARGS_INIT;
	a.x = r->x, a.topk_idx = r->topk, a.num_tokens = MAX, a.top_k = TOP_K;
	a.num_experts = EXPERTS, a.stream = r->stream, a.active_ranks = r->active;
	a.flags = PML_EP_FP8 | PML_EP_ASYNC | (hook ? PML_EP_HOOK : 0);
	a.timeout_us = 5000000;
	a.recv_x = r->recv, a.scales = r->scales, a.recv_count = r->count;
	a.src_info = r->src, a.layout_range = r->range;
	return a;
}

/* The other half of the steps with a hook. */
static void step(struct rank *r, uint32_t i)
{
	struct naive c = {
		i + 1, RANKS, EXPERTS, TOP_K, HIDDEN, MAX, { MAX, MAX }, 0, 1, 0, 0
	};
	struct pml_error err = PML_ERROR_INIT;
	struct pml_ep_handle *h = NULL;
	struct pml_ep_event *done = NULL, *sent = NULL;
	struct pml_ep_dispatch_args d = dispatch_args(r, i & 1);
	struct pml_ep_combine_args a = PML_EP_COMBINE_ARGS_INIT;
	must(!naive_make(&c, r->me, r->x, r->topk, r->w, r->stream), "make kernel");
	must(pml_ep_dispatch(r->b, &d, &h, &sent, &err) == 0, err.text);
	must(!(i & 1) || pml_ep_hook(h, &err) == 0, err.text);
	must(pml_ep_event_stream_wait(sent, r->stream, &err) == 0, err.text);
	void *y = pml_ep_next_combine_buffer(h);
	must(!naive_expert(&c, r->locals, LOCAL, r->recv, r->scales, r->count, y, r->stream),
	     "expert kernel");
	a.y = y, a.topk_weights = r->w, a.flags = PML_EP_ASYNC | PML_EP_ZERO_COPY;
	a.stream = r->stream, a.active_ranks = r->active, a.timeout_us = 5000000;
	a.out = r->out, a.incomplete = r->incomplete;
	must(pml_ep_combine(r->b, h, &a, &done, &err) == 0, err.text);
	must(!naive_check_recv(&c, r->locals, LOCAL, r->recv, r->scales, r->count, r->src,
			       r->range, r->bad, r->stream) &&
		     !naive_check_out(&c, r->me, r->owner, r->out, r->incomplete, r->bad,
				      r->stream),
	     "check kernels");
	must(pml_ep_event_wait(done, &err) == 0, err.text);
	must(pml_ep_combine(r->b, h, &a, NULL, NULL) == PML_ERR_STALE,
	     "a used handle was taken");
	pml_ep_event_free(sent), pml_ep_event_free(done);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	open_rank(r);
	must(naive_load() == 0, "loading the naive kernels");
	pthread_barrier_wait(&bar);
	for (uint32_t i = 0; i < steps; i++)
		step(r, i);
	must(gpu_sync(r->stream, NULL) == ERR_NONE, "the stream");
	pthread_barrier_wait(&bar);
	put(r, &r->n_bad, r->bad, 4);
	for (uint32_t p = 0; p < RANKS; p++)
		if (pml_ep_buffer_missed(r->b, p, r->text, sizeof(r->text)))
			r->n_bad++;
	pthread_barrier_wait(&bar);
	(void)pml_ep_buffer_destroy(r->b);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct rank ranks[RANKS];
	struct pml_ep_group *groups[RANKS];
	pthread_t th[RANKS];
	uint32_t n_bad = 0;
	const char *missing = gpu_missing();
	steps = argc > 1 ? (uint32_t)atoi(argv[1]) : 50;
	if (missing) {
		printf("SKIPPED: no GPU: %s\n", missing);
		return 77;
	}
	must(pml_ep_group_local(RANKS, groups, NULL) == 0, "group");
	pthread_barrier_init(&bar, NULL, RANKS);
	for (uint32_t r = 0; r < RANKS; r++) {
		ranks[r] = (struct rank){ .me = r, .group = groups[r] };
		pthread_create(&th[r], NULL, rank_main, &ranks[r]);
	}
	for (uint32_t r = 0; r < RANKS; r++) {
		pthread_join(th[r], NULL);
		(void)pml_ep_group_free(groups[r]);
		n_bad += ranks[r].n_bad;
	}
	printf("ep_pml: %u steps of %d ranks: %u differences %s\n", steps, RANKS, n_bad,
	       ranks[0].text);
	return n_bad != 0;
}
