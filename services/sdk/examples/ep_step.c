/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert parallelism from an application: four ranks as processes of this machine, each with a batch of
 * tokens larger than its buffer, two experts a rank, on the CPU.
 *
 *	cc ep_step.c $(pkg-config --cflags --libs pomelo) -o ep_step && ./ep_step
 *
 * Every token is x = its rank + 1; expert e multiplies by e + 1; the weights of a token sum to 1. Prints
 * one line a rank and ends with 0 when each sum is what it must be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pml_ep.h"

enum { RANKS = 4, EXPERTS = 8, HIDDEN = 256, MAX = 16, TOKENS = 40, TOP_K = 2 };
enum { LOCAL = EXPERTS / RANKS, ROWS = RANKS * MAX };

static unsigned short to_bf16(float f) /* exact for the numbers here */
{
	unsigned u;
	memcpy(&u, &f, sizeof(u));
	return (unsigned short)(u >> 16);
}

static float from_bf16(unsigned short h)
{
	unsigned u = (unsigned)h << 16;
	float f;
	memcpy(&f, &u, sizeof(f));
	return f;
}

static void must(int r, const struct pml_error *err)
{
	if (r == PML_ERR_NONE)
		return;
	fprintf(stderr, "%s: %s: %s\n", err->step, pml_error_name(r), err->text);
	exit(1);
}

/* The experts of this rank: rows of recv_x to rows of y, as many as recv_count says. */
static int experts(void *ctx, const struct pml_ep_dispatch_args *r, void *y)
{
	int rank = *(int *)ctx, e, row, i;
	for (e = 0; e < LOCAL; e++)
		for (row = 0; row < r->recv_count[e]; row++)
			for (i = 0; i < HIDDEN; i++) {
				size_t at =
					((size_t)e * ROWS + (size_t)row) * HIDDEN + (size_t)i;
				float v = from_bf16(((const unsigned short *)r->recv_x)[at]);
				((unsigned short *)y)[at] =
					to_bf16(v * (float)(rank * LOCAL + e + 1));
			}
	return 0;
}

static int rank_main(const char *addr, int rank)
{
	static unsigned short x[TOKENS][HIDDEN], recv[LOCAL][ROWS][HIDDEN], out[TOKENS][HIDDEN];
	static int64_t topk[TOKENS][TOP_K], range[LOCAL][RANKS];
	static float weights[TOKENS][TOP_K];
	static int32_t count[LOCAL], src[LOCAL][ROWS], active[RANKS], incomplete[TOKENS];
	struct pml_error err = PML_ERROR_INIT;
	struct pml_ep_group *group;
	struct pml_ep_buffer *buf;
	struct pml_ep_opts o = PML_EP_OPTS_INIT;
	struct pml_ep_dispatch_args d = PML_EP_DISPATCH_ARGS_INIT;
	struct pml_ep_combine_args c = PML_EP_COMBINE_ARGS_INIT;
	int t, k, i, bad = 0;

	must(pml_ep_group_socket(addr, (uint32_t)rank, RANKS, 30000, &group, &err), &err);
	o.num_max_dispatch_tokens_per_rank = MAX;
	o.hidden = HIDDEN;
	o.num_experts = EXPERTS;
	o.transport = "host";
	must(pml_ep_buffer_create(group, 0, &o, &buf, &err), &err);

	for (i = 0; i < RANKS; i++)
		active[i] = 1;
	for (t = 0; t < TOKENS; t++) {
		for (i = 0; i < HIDDEN; i++)
			x[t][i] = to_bf16((float)(rank + 1));
		for (k = 0; k < TOP_K; k++) {
			topk[t][k] = (t + rank + k * 3) % EXPERTS;
			weights[t][k] = 0.5f;
		}
	}
	d.x = x, d.topk_idx = topk[0], d.num_tokens = TOKENS, d.top_k = TOP_K;
	d.num_experts = EXPERTS, d.flags = 0, d.active_ranks = active;
	d.recv_x = recv, d.recv_count = count, d.src_info = src[0], d.layout_range = range[0];
	c.topk_weights = weights[0], c.active_ranks = active, c.out = out,
	c.incomplete = incomplete;
	/* 40 tokens through a buffer for 16: three rounds, on every rank */
	must(pml_ep_step(buf, &d, &c, 0, experts, &rank, &err), &err);

	for (t = 0; t < TOKENS; t++) {
		float want = 0;
		for (k = 0; k < TOP_K; k++)
			want += 0.5f * (float)(rank + 1) * (float)(topk[t][k] + 1);
		for (i = 0; i < HIDDEN; i++)
			bad += from_bf16(out[t][i]) != want;
		bad += incomplete[t];
	}
	printf("rank %d over %s: %d tokens, %d wrong\n", rank, pml_ep_buffer_transport(buf),
	       TOKENS, bad);
	fflush(stdout);
	must(pml_ep_buffer_destroy(buf), &err);
	(void)pml_ep_group_free(group);
	return bad != 0;
}

int main(void)
{
	char addr[64];
	int r, st, bad = 0;
	pid_t pids[RANKS];
	snprintf(addr, sizeof(addr), "/tmp/pml_ep_step.%d", (int)getpid());
	for (r = 0; r < RANKS; r++) {
		pids[r] = fork();
		if (pids[r] == 0)
			_exit(rank_main(addr, r));
	}
	for (r = 0; r < RANKS; r++)
		bad += waitpid(pids[r], &st, 0) < 0 || st != 0;
	return bad != 0;
}
