/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does: random steps, a captured step, what must be refused. */
#include "ep_gpu.h"
#include "ep/num.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void run_rank(struct job *j)
{
	static __thread struct dev d;
	struct side g = { 0 }, s = { 0 };
	struct why why = { 0 };
	bool twin = j->replay_every > 0;
	if (!side_open(j, &g, true) || (twin && !side_open(j, &s, false)))
		return;
	dev_open(j, &g, &d);
	uint64_t base = j->c.seed;
	everybody(j);
	for (uint32_t i = 0; i < j->steps && !bad(j); i++) {
		struct ep_handle *h = NULL;
		uint16_t *y = NULL;
		uint32_t n_bad = 0;
		next_step(j, base, i);
		if (naive_make(&j->c, j->me, g.x, g.topk, g.w, g.stream))
			job_fail(j, "make kernel");
		gpu_step(j, &g, &d, &h, &y);
		if (bad(j))
			break;
		check_step(j, &g, &d);
		if (i % 16 == 15 || i + 1 == j->steps) {
			at(j, "waiting for the stream", i);
			fetch(j, &n_bad, d.bad, 4, g.stream);
			if (n_bad)
				job_fail(j, "%u differences by step %u (seed %llu) %s", n_bad,
					 i, (unsigned long long)j->c.seed, missed_text(j, g.b));
		}
		if (twin && i % j->replay_every == 0 && !bad(j))
			replay(j, &g, &s, &d);
		j->sh->steps[j->me]++;
	}
	if (gpu_sync(g.stream, &why) != ERR_NONE)
		job_fail(j, "%s", why.text);
	everybody(j);
	dev_close(&g, &d);
	side_close(&g);
	if (twin)
		side_close(&s);
}

/* ---- a captured step ---- */

static void capture(struct job *j, struct side *g, const struct dev *d, void **graph)
{
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	uint16_t *y = NULL;
	if (gpu_graph_begin(g->stream, &why) != ERR_NONE)
		job_fail(j, "%s", why.text);
	gpu_step(j, g, d, &h, &y);
	if (gpu_graph_end(g->stream, graph, &why) != ERR_NONE)
		job_fail(j, "%s", why.text);
}

/* One step captured with its expert, then replayed over new inputs; every replay is checked. */
void run_graph(struct job *j)
{
	static __thread struct dev d;
	struct side g = { 0 };
	void *graph = NULL;
	j->async = true;
	if (!side_open(j, &g, true))
		return;
	dev_open(j, &g, &d);
	for (uint32_t r = 0; r < j->c.n_ranks; r++)
		j->c.n_tokens[r] = j->c.max_tokens; /* a graph has its sizes baked in */
	everybody(j);
	capture(j, &g, &d, &graph);
	everybody(j);
	for (uint32_t i = 0; i < j->steps && !bad(j); i++) {
		struct why why = { 0 };
		uint32_t n_bad = 0;
		j->c.seed = 555000 + i;
		if (naive_make(&j->c, j->me, g.x, g.topk, g.w, g.stream) ||
		    gpu_graph_launch(graph, g.stream, &why) != ERR_NONE)
			job_fail(j, "replay %u: %s", i, why.text);
		check_step(j, &g, &d);
		fetch(j, &n_bad, d.bad, 4, g.stream);
		if (n_bad)
			job_fail(j, "%u differences in replay %u", n_bad, i);
	}
	everybody(j);
	gpu_graph_free(graph);
	dev_close(&g, &d);
	side_close(&g);
}

/* ---- what must be refused, with the process alive after it ---- */

static bool expect(struct job *j, enum err got, enum err want, const struct why *why,
		   const char *what)
{
	if (got != want)
		job_fail(j, "%s: %s (%s), not %s", what, err_name(got), why->text,
			 err_name(want));
	return got == want;
}

/* Each wrong choice alone, in a full batch. */
static void refuse_choices(struct job *j, struct side *g)
{
	const int64_t wrong[4][2] = {
		{ 0, 99999 }, { 1, -2 }, { 5, (int64_t)j->c.n_experts }, { 9, -1000000 }
	};
	for (int i = 0; i < 4; i++) {
		struct ep_handle *h = NULL;
		struct why why = { 0 };
		char value[32];
		if (naive_make(&j->c, j->me, g->x, g->topk, g->w, g->stream))
			job_fail(j, "make kernel");
		fetch(j, g->topk + wrong[i][0], &wrong[i][1], 8, g->stream);
		struct ep_dispatch_args d = dispatch_args(j, g);
		expect(j, ep_dispatch(g->b, &d, &h, &why), ERR_INVALID_PARAMS, &why,
		       "topk_idx out of range");
		snprintf(value, sizeof(value), "%lld", (long long)wrong[i][1]);
		if (!strstr(why.text, value))
			job_fail(j, "the text does not name %s: %s", value, why.text);
	}
}

void run_refusals(struct job *j)
{
	struct side g = { 0 };
	struct ep_handle *h = NULL;
	struct why why = { 0 };
	if (!side_open(j, &g, true))
		return;
	next_step(j, 1, 0);
	j->c.n_tokens[j->me] = j->c.max_tokens;
	refuse_choices(j, &g);
	struct ep_dispatch_args d = dispatch_args(j, &g);
	d.n_tokens = j->c.max_tokens + 1;
	expect(j, ep_dispatch(g.b, &d, &h, &why), ERR_TOO_MANY_TOKENS, &why, "too many tokens");
	d = dispatch_args(j, &g);
	d.top_k = 33;
	expect(j, ep_dispatch(g.b, &d, &h, &why), ERR_INVALID_PARAMS, &why, "top_k 33");
	/* and it goes on */
	if (naive_make(&j->c, j->me, g.x, g.topk, g.w, g.stream))
		job_fail(j, "make kernel");
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

/* ---- the cast to fp8 over every bf16 ---- */

/*
 * Rows of bit patterns, each group of 128 below a greatest of its own: NaN, infinities, the least and the
 * greatest numbers among them; against num_row_to_fp8. All tokens go to expert 0, so rows keep their order.
 */
void run_cast(struct job *j)
{
	struct side g = { 0 };
	struct naive *c = &j->c;
	struct why why = { 0 };
	uint64_t n = (uint64_t)c->max_tokens * c->hidden, groups = c->hidden / 128, s = 12345;
	if (!side_open(j, &g, true))
		return;
	uint16_t *x = calloc(n, 2);
	uint8_t *q = calloc(n, 1), *want = calloc(n, 1);
	float *scales = calloc(n / 128, 4), *want_scales = calloc(n / 128, 4);
	int64_t *topk = calloc(c->max_tokens, 8);
	c->n_tokens[j->me] = c->max_tokens;
	for (uint32_t step = 0; step < j->steps && !bad(j); step++) {
		struct ep_handle *h = NULL;
		for (uint64_t i = 0; i < n; i++) {
			s = s * 6364136223846793005ull + 1442695040888963407ull;
			uint16_t a = (uint16_t)(s >> 33) & 0x7fff,
				 top = (uint16_t)(i / 128 * 37 + step);
			x[i] = (uint16_t)((top & 0x7fff ? a % ((top & 0x7fffu) + 1) : a) |
					  (s >> 63) << 15);
		}
		fetch(j, g.x, x, n * 2, g.stream);
		fetch(j, g.topk, topk, (uint64_t)c->max_tokens * 8, g.stream);
		struct ep_dispatch_args d = dispatch_args(j, &g);
		if (ep_dispatch(g.b, &d, &h, &why) != ERR_NONE)
			job_fail(j, "dispatch: %s", why.text);
		fetch(j, q, g.recv, n, g.stream);
		fetch(j, scales, g.scales, n / 128 * 4, g.stream);
		for (uint32_t t = 0; t < c->max_tokens; t++)
			num_row_to_fp8(x + (uint64_t)t * c->hidden, c->hidden,
				       want + (uint64_t)t * c->hidden,
				       want_scales + t * groups);
		for (uint64_t i = 0; i < n; i++)
			if (q[i] != want[i] ||
			    num_bits(scales[i / 128]) != num_bits(want_scales[i / 128]))
				job_fail(j, "x %04x scale %a: %02x, the host has %02x", x[i],
					 (double)want_scales[i / 128], q[i], want[i]);
		ep_handle_drop(h);
		(void)!gpu_sync(g.stream, NULL);
	}
	side_close(&g);
	free(x), free(q), free(want), free(scales), free(want_scales), free(topk);
}
