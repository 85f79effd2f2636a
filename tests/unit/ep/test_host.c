/* SPDX-License-Identifier: Apache-2.0 */
/* The host transport: cases from the field, refusals, generations, pipelines. */
#include "ep_world.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- case 59: one row in 256 is wrong ---- */

static void many_steps(struct member *m)
{
	uint32_t n = *(const uint32_t *)m->arg;
	for (uint32_t i = 0; i < n && !m->fail[0]; i++) {
		m->w.fp8 = i & 1;
		member_step(m, i);
	}
}

Test(host, case_059_no_wrong_row_in_many_combines, .timeout = 60)
{
	struct world w = { .n = 2,
			   .experts = 6,
			   .hidden = 256,
			   .max = 32,
			   .top_k = 4,
			   .tokens = { 32, 32 },
			   .timeout_us = 20000000 };
	uint32_t steps = 200;
	cr_assert_str_empty(world_threads(&w, many_steps, &steps));
	NO_LEAKS();
}

/* ---- case 61: a rank with no tokens ---- */

static void all_subsets(struct member *m)
{
	for (uint32_t set = 0; set < 1u << m->w.n && !m->fail[0]; set++) {
		for (uint32_t r = 0; r < m->w.n; r++)
			m->w.tokens[r] = set >> r & 1 ? 0 : 1 + (r + set) % m->w.max;
		m->w.fp8 = set & 1;
		member_step(m, set);
	}
}

Test(host, case_061_every_subset_of_ranks_has_no_tokens, .timeout = 60)
{
	struct world w = { .n = 4,
			   .experts = 5,
			   .hidden = 128,
			   .max = 5,
			   .top_k = 2,
			   .owner = (const uint32_t[]){ 3, 0, 0, 1, 3 },
			   .timeout_us = 20000000 };
	cr_assert_str_empty(world_threads(&w, all_subsets, NULL));
	NO_LEAKS();
}

/* ---- case 62: several groups, pipelines, uneven steps ---- */

static void pipelines(struct member *m)
{
	struct flight a, b;
	for (uint32_t i = 0; i < 30 && !m->fail[0]; i++) {
		for (uint32_t r = 0; r < m->w.n; r++)
			m->w.tokens[r] = (i * 7 + r * 3) % (m->w.max + 1);
		if (!flight_dispatch(m, &a, i, EP_HOOK) ||
		    !flight_dispatch(m, &b, 500 + i, i & 1 ? EP_HOOK : 0))
			return;
		struct why why = { 0 };
		struct ep_handle *h = NULL;
		struct ep_dispatch_args third = a.args;
		if (ep_dispatch(m->b, &third, &h, &why) != ERR_BUSY ||
		    !strstr(why.text, "2 dispatches are open"))
			member_fail(m, "a third dispatch: %s", why.text);
		if (ep_hook(a.h, NULL) != ERR_NONE ||
		    (i & 1 && ep_hook(b.h, NULL) != ERR_NONE) ||
		    ep_hook(a.h, NULL) != ERR_STALE)
			member_fail(m, "hooks");
		flight_check_recv(m, &b);
		flight_combine(m, &b, i & 1);
		flight_check_recv(m, &a);
		flight_combine(m, &a, !(i & 1));
	}
}

Test(host, case_062_pipelines_of_two_open_dispatches, .timeout = 60)
{
	struct world w = { .n = 3,
			   .experts = 9,
			   .hidden = 128,
			   .max = 7,
			   .top_k = 3,
			   .timeout_us = 20000000 };
	cr_assert_str_empty(world_threads(&w, pipelines, NULL));
	NO_LEAKS();
}

/* Each rank takes part in three groups at once, with steps of different sizes. */
static void groups_of_one_rank(struct member *m)
{
	struct ep_exchange **xs = m->arg;
	struct member more[2];
	static _Thread_local char fails[2][FAIL_BYTES];
	for (uint32_t g = 0; g < 2; g++) {
		fails[g][0] = 0;
		more[g] = *m;
		more[g].b = NULL;
		more[g].x = xs[g * m->w.n + m->me];
		more[g].fail = fails[g];
		more[g].w.hidden = 128 * (g + 2);
		if (!member_open(&more[g]))
			return;
	}
	for (uint32_t i = 0; i < 20 && !m->fail[0]; i++) {
		member_step(m, i);
		member_step(&more[i % 2], 100 + i);
		if (i % 3 == 0)
			member_step(&more[1], 200 + i);
	}
	for (uint32_t g = 0; g < 2; g++) {
		if (fails[g][0])
			member_fail(m, "group %u: %s", g, fails[g]);
		ep_close(more[g].b);
	}
}

Test(host, case_062_several_groups, .timeout = 60)
{
	struct world w = { .n = 3,
			   .experts = 6,
			   .hidden = 128,
			   .max = 6,
			   .top_k = 2,
			   .tokens = { 6, 1, 4 },
			   .timeout_us = 20000000 };
	struct ep_exchange *xs[6];
	cr_assert_eq(exchange_local(3, xs), ERR_NONE);
	cr_assert_eq(exchange_local(3, xs + 3), ERR_NONE);
	cr_assert_str_empty(world_threads(&w, groups_of_one_rank, xs));
	for (int i = 0; i < 6; i++)
		xs[i]->close(xs[i]);
	NO_LEAKS();
}

/* ---- case 64: fixed limits ---- */

static void too_many(struct member *m)
{
	struct flight f;
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	member_step(m, 1);
	if (!flight_dispatch(m, &f, 2, 0))
		return;
	struct ep_dispatch_args a = f.args;
	a.n_tokens = m->w.max + 1;
	if (ep_dispatch(m->b, &a, &h, &why) != ERR_TOO_MANY_TOKENS ||
	    !strstr(why.text, "num_tokens is 3, the buffer was made for 2") || h)
		member_fail(m, "too many tokens: %s", why.text);
	flight_check_recv(m, &f);
	flight_combine(m, &f, false);
	member_step(m, 3); /* it lives */
}

Test(host, case_064_too_many_tokens_are_refused_and_top_k_16_hidden_3584_work, .timeout = 60)
{
	struct world w = { .n = 2,
			   .experts = 32,
			   .hidden = 3584,
			   .max = 2,
			   .top_k = 16,
			   .tokens = { 2, 1 },
			   .timeout_us = 20000000 };
	cr_assert_str_empty(world_threads(&w, too_many, NULL));
	NO_LEAKS();
}

/* ---- case 65: start and growth ---- */

static void two_steps(struct member *m)
{
	member_step(m, 1);
	member_step(m, 2);
}

Test(host, case_065_256_experts_on_15_16_and_17_ranks, .timeout = 60)
{
	static uint32_t owner[256];
	for (uint32_t n = 15; n <= 17; n++) {
		struct world w = { .n = n,
				   .experts = 256,
				   .hidden = 128,
				   .max = 2,
				   .top_k = 8,
				   .owner = owner,
				   .timeout_us = 20000000 };
		for (uint32_t e = 0; e < 256; e++)
			owner[e] = e % n;
		for (uint32_t r = 0; r < n; r++)
			w.tokens[r] = r % 3;
		cr_assert_str_empty(world_threads(&w, two_steps, NULL));
	}
	NO_LEAKS();
}

static void keep_line(void *ctx, const char *line)
{
	snprintf(ctx, 512, "%s", line);
}

Test(host, case_065_a_fast_path_that_is_missing_is_said_at_once, .timeout = 30)
{
	static const char *const gone[] = { "ipc", "rdma", "ibgda", "nccl" };
	struct ep_exchange *x;
	struct ep_buf *b = NULL;
	char line[512] = "";
	cr_assert_eq(exchange_local(1, &x), ERR_NONE);
	struct ep_opts o = { .exchange = x,
			     .max_tokens = 4,
			     .hidden = 128,
			     .n_experts = 4,
			     .device = -1,
			     .say = keep_line,
			     .ctx = line };
	for (size_t i = 0; i < ARRAY_LEN(gone); i++) {
		struct why why = { 0 };
		o.transport = gone[i];
		enum err e = ep_open(&o, &b, &why);
		if (e == ERR_NONE) { /* a machine with a GPU */
			cr_assert_str_eq(gone[i], "ipc");
			ep_close(b);
			continue;
		}
		cr_assert_eq(e, ERR_UNSUPPORTED);
		cr_assert(strstr(why.text, gone[i]), "%s", why.text);
	}
	struct why why = { 0 };
	o.transport = "carrier-pigeon";
	cr_assert_eq(ep_open(&o, &b, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "'carrier-pigeon', allowed are auto, host, ipc"));
	o.transport = "auto";
	cr_assert_eq(ep_open(&o, &b, NULL), ERR_NONE);
	cr_assert(strstr(line, "ep: not nccl (needs NCCL"), "%s", line);
	cr_assert(strstr(line, ep_transport(b)), "%s", line);
	ep_close(b);
	x->close(x);
	NO_LEAKS();
}

/* ---- refusals: typed, naming the value, before anything moves ---- */

static void refuse(struct member *m, enum err got, enum err want, const struct why *why,
		   const char *text)
{
	if (got != want || !strstr(why->text, text))
		member_fail(m, "%s '%s', not %s '%s'", err_name(got), why->text, err_name(want),
			    text);
}

/* Each with one thing wrong; nothing moves. */
static void refuse_dispatches(struct member *m, const struct ep_dispatch_args *good)
{
	static const int64_t wrong[6] = { 0, 1, 4, 0, 0, 0 };
	struct {
		struct ep_dispatch_args a;
		const char *text;
	} rows[] = {
		{ *good, "topk_idx[1][0] is 4, allowed are -1 to 3" },
		{ *good, "num_experts is 5, the buffer was made for 4" },
		{ *good, "top_k is 0, allowed are 1 to 32" },
		{ *good, "top_k is 33, allowed are 1 to 32" },
		{ *good, "x is NULL" },
		{ *good, "topk_idx is NULL" },
		{ *good, "active_ranks is NULL" },
		{ *good, "recv_x is NULL" },
		{ *good, "recv_scales is NULL" },
		{ *good, "recv_count or src_info is NULL" },
		{ *good, "recv_count or src_info is NULL" },
	};
	rows[0].a.topk = wrong;
	rows[1].a.n_experts = 5;
	rows[2].a.top_k = 0;
	rows[3].a.top_k = 33;
	rows[4].a.x = NULL;
	rows[5].a.topk = NULL;
	rows[6].a.active = NULL;
	rows[7].a.recv_x = NULL;
	rows[8].a.recv_scales = NULL, rows[8].a.flags |= EP_FP8;
	rows[9].a.recv_count = NULL;
	rows[10].a.src_info = NULL;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct why why = { 0 };
		struct ep_handle *h = NULL;
		refuse(m, ep_dispatch(m->b, &rows[i].a, &h, &why), ERR_INVALID_PARAMS, &why,
		       rows[i].text);
		if (h)
			member_fail(m, "a handle came with a refusal");
	}
}

static void refuse_combine(struct member *m, struct ep_buf *b, struct ep_handle *h,
			   const struct ep_combine_args *c, const char *text)
{
	struct why why = { 0 };
	refuse(m, ep_combine(b, h, c, &why), ERR_INVALID_PARAMS, &why, text);
}

/* Of a dispatch that is open; it stays so. */
static void refuse_combines(struct member *m, struct flight *f)
{
	struct ep_combine_args c = { .y = f->y,
				     .weights = f->weights,
				     .active = m->active,
				     .out = f->out,
				     .flags = EP_ZERO_COPY };
	struct member other = *m;
	struct ep_exchange *x = NULL;
	refuse_combine(m, m->b, f->h, &c,
		       "zero_copy, but y is not this handle's combine buffer");
	c.flags = 0;
	c.out = NULL;
	refuse_combine(m, m->b, f->h, &c, "out is NULL");
	refuse_combine(m, m->b, NULL, &c, "no handle");
	if (exchange_local(1, &x) != ERR_NONE)
		return;
	other.x = x;
	if (member_open(&other)) {
		c.out = f->out;
		refuse_combine(m, other.b, f->h, &c, "the handle belongs to another buffer");
		ep_close(other.b);
	}
	x->close(x);
}

/* A dropped handle is over, and keeps nobody waiting. */
static void drop_handles(struct member *m)
{
	struct flight f;
	for (int i = 0; i < 5; i++) {
		if (!flight_dispatch(m, &f, 5, EP_HOOK))
			return;
		struct ep_combine_args c = {
			.y = f.y, .weights = f.weights, .out = f.out, .active = m->active
		};
		refuse_combine(m, m->b, f.h, &c,
			       "combine before the dispatch's hook was called");
		ep_handle_drop(f.h);
		ep_handle_drop(f.h);
		flight_free(&f);
	}
}

static void refusals(struct member *m)
{
	struct flight f;
	if (!flight_dispatch(m, &f, 5, 0))
		return;
	refuse_dispatches(m, &f.args);
	refuse_combines(m, &f);
	flight_check_recv(m, &f);
	flight_combine(m, &f, true);
	drop_handles(m);
	member_step(m, 6);
}

Test(host, refusals_name_the_value, .timeout = 30)
{
	struct world w = { .n = 1,
			   .experts = 4,
			   .hidden = 128,
			   .max = 3,
			   .top_k = 2,
			   .tokens = { 3 },
			   .timeout_us = 2000000 };
	cr_assert_str_empty(world_threads(&w, refusals, NULL));
	NO_LEAKS();
}

Test(host, buffer_sizes, .timeout = 30)
{
	uint64_t bytes = 0, more = 0;
	struct why why = { 0 };
	struct ep_exchange *x;
	struct ep_buf *b = NULL;
	cr_assert_eq(ep_buffer_size(128, 7168, 8, 256, &bytes, NULL), ERR_NONE);
	cr_assert_gt(bytes, 2ull * 32 * 8 * 128 * 7168 * 2);
	cr_assert_eq(ep_buffer_size(129, 7168, 8, 256, &more, NULL), ERR_NONE);
	cr_assert_gt(more, bytes);
	cr_assert_eq(ep_buffer_size(128, 7168, 0, 256, &more, &why), ERR_INVALID_PARAMS);
	cr_assert_eq(ep_buffer_size(4, 128, 1, 4, &bytes, NULL), ERR_NONE);
	cr_assert_eq(exchange_local(1, &x), ERR_NONE);
	struct ep_opts o = { .exchange = x,
			     .max_tokens = 4,
			     .hidden = 128,
			     .n_experts = 4,
			     .transport = "host",
			     .bytes = bytes - 1 };
	char want[128];
	why = (struct why){ 0 };
	cr_assert_eq(ep_open(&o, &b, &why), ERR_INVALID_PARAMS);
	snprintf(want, sizeof(want), "the buffer has %llu bytes, this shape needs %llu",
		 (unsigned long long)bytes - 1, (unsigned long long)bytes);
	cr_assert(strstr(why.text, want), "%s", why.text);
	o.bytes = bytes;
	cr_assert_eq(ep_open(&o, &b, NULL), ERR_NONE);
	ep_close(b);
	ep_close(NULL);
	x->close(x);
	NO_LEAKS();
}

/* ---- ranks that do not agree at the start ---- */

static void *odd_rank(void *arg)
{
	struct ep_exchange *x = arg;
	struct ep_buf *b = NULL;
	struct why *why = calloc(1, sizeof(*why));
	struct ep_opts o = { .exchange = x,
			     .max_tokens = 4,
			     .hidden = x->rank ? 256 : 128,
			     .n_experts = 4,
			     .transport = "host",
			     .open_timeout_us = 5000000 };
	why->err = ep_open(&o, &b, why);
	return why;
}

Test(host, ranks_of_different_shapes_all_fail, .timeout = 30)
{
	struct ep_exchange *x[2];
	pthread_t th;
	void *other = NULL;
	cr_assert_eq(exchange_local(2, x), ERR_NONE);
	pthread_create(&th, NULL, odd_rank, x[1]);
	struct why *mine = odd_rank(x[0]);
	pthread_join(th, &other);
	cr_assert_eq(mine->err, ERR_CONFLICT);
	cr_assert_eq(((struct why *)other)->err, ERR_CONFLICT);
	cr_assert(strstr(mine->text, "rank 1 was made for 4 tokens, hidden 256"), "%s",
		  mine->text);
	free(mine), free(other);
	x[0]->close(x[0]), x[1]->close(x[1]);
	NO_LEAKS();
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

Test(host, a_rank_that_never_opens_is_a_time_out, .timeout = 30)
{
	struct ep_exchange *x[2];
	struct ep_buf *b = NULL;
	struct why why = { 0 };
	cr_assert_eq(exchange_local(2, x), ERR_NONE);
	struct ep_opts o = { .exchange = x[0],
			     .max_tokens = 4,
			     .hidden = 128,
			     .n_experts = 4,
			     .transport = "host",
			     .open_timeout_us = 200000 };
	uint64_t from = now_ms();
	cr_assert_eq(ep_open(&o, &b, &why), ERR_TIMED_OUT);
	cr_assert_lt(now_ms() - from, 5000);
	cr_assert(strstr(why.text, "1 of 2 ranks did not come"), "%s", why.text);
	x[0]->close(x[0]), x[1]->close(x[1]);
	NO_LEAKS();
}
