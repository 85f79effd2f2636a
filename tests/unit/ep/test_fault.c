/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes; one is killed or stopped in a step. The others flag what they lost and go on, and
 * a new process takes its place through ep_update_members.
 */
#include "ep_world.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3, VICTIM = 1, LEAVE = 3, STEPS = 6, BOOT_US = 20000000 };

struct fault {
	bool mid, stopped;
	char name[48];
};

static const struct world shape = { .n = N,
				    .experts = 7,
				    .hidden = 256,
				    .max = 6,
				    .top_k = 3,
				    .owner = (const uint32_t[]){ 0, 1, 2, 0, 1, 2, 0 },
				    .tokens = { 6, 5, 4 },
				    .timeout_us = 1000000 };

static void one_step(struct member *m, const struct fault *f, uint32_t step)
{
	struct flight fl;
	bool now = step == LEAVE, gone = step > LEAVE, leaving = now && m->me == VICTIM;
	m->w.lost = now || gone ? 1u << VICTIM : 0;
	m->w.silent = gone || (now && !f->mid) ? 1u << VICTIM : 0;
	m->w.fp8 = step & 1;
	if (leaving && !f->mid)
		raise(f->stopped ? SIGSTOP : SIGKILL);
	if (!flight_dispatch(m, &fl, step, step & 2 ? EP_HOOK : 0))
		return;
	if (step & 2 && ep_hook(fl.h, NULL) != ERR_NONE)
		member_fail(m, "hook");
	if (leaving)
		raise(f->stopped ? SIGSTOP : SIGKILL);
	flight_check_recv(m, &fl);
	flight_combine(m, &fl, step & 1);
}

/* The survivor's side of the change: a handle left open over it is stale after it. */
static void rejoin(struct member *m, const char *path)
{
	struct flight open;
	struct why why = { 0 };
	struct ep_exchange *x = NULL;
	if (m->active[VICTIM] != 0 || !strstr(m->told, "rank 1 did not"))
		member_fail(m, "rank 1 is not masked, or nothing was told: '%s'", m->told);
	if (!flight_dispatch(m, &open, 77, 0))
		return;
	enum err e = exchange_socket(path, m->me, N, BOOT_US, &x, &why);
	if (e == ERR_NONE)
		e = ep_update_members(m->b, x, &why);
	if (e != ERR_NONE)
		member_fail(m, "update_members: %s: %s", err_name(e), why.text);
	struct ep_combine_args a = { .y = open.y,
				     .weights = open.weights,
				     .active = m->active,
				     .out = open.out,
				     .timeout_us = 1000 };
	why = (struct why){ 0 };
	e = ep_combine(m->b, open.h, &a, &why);
	if (e != ERR_STALE || !strstr(why.text, "generation 1, the buffer of 2"))
		member_fail(m, "a handle of the old generation: %s: %s", err_name(e), why.text);
	if (ep_y_buffer(open.h) || ep_hook(open.h, NULL) != ERR_STALE)
		member_fail(m, "a stale handle gives a buffer");
	flight_free(&open);
	m->x->close(m->x);
	m->x = x;
	for (uint32_t r = 0; r < N; r++)
		m->active[r] = 1;
}

static void rank_process(const struct fault *f, uint32_t me, bool newcomer, const char *first,
			 const char *second, char *fail)
{
	struct member m = { .w = shape, .me = me, .fail = fail };
	struct why why = { 0 };
	if (exchange_socket(newcomer ? second : first, me, N, BOOT_US, &m.x, &why) !=
	    ERR_NONE) {
		member_fail(&m, "%s", why.text);
		_exit(0);
	}
	if (!member_open(&m))
		_exit(0);
	for (uint32_t i = 0; i < STEPS && !newcomer && !fail[0]; i++)
		one_step(&m, f, i);
	if (!newcomer)
		rejoin(&m, second);
	m.w.lost = m.w.silent = 0;
	m.w.fp8 = false;
	m.w.timeout_us = 10000000;
	for (uint32_t i = 0; i < STEPS && !fail[0]; i++)
		member_step(&m, 1000 + i);
	ep_close(m.b);
	m.x->close(m.x);
	_exit(0);
}

static pid_t start(const struct fault *f, uint32_t me, bool newcomer, const char *first,
		   const char *second, char *fail)
{
	pid_t pid = fork();
	if (pid == 0)
		rank_process(f, me, newcomer, first, second, fail);
	return pid;
}

ParameterizedTestParameters(fault, case_062_rank_leaves)
{
	static struct fault rows[] = {
		{ false, false, "killed before its dispatch" },
		{ true, false, "killed between dispatch and combine" },
		{ false, true, "stopped before its dispatch" },
		{ true, true, "stopped between dispatch and combine" },
	};
	return cr_make_param_array(struct fault, rows, ARRAY_LEN(rows));
}

ParameterizedTest(struct fault *f, fault, case_062_rank_leaves, .timeout = 60)
{
	char(*fails)[FAIL_BYTES] = mmap(NULL, (N + 1) * FAIL_BYTES, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char first[64], second[64];
	pid_t pids[N + 1];
	int st = 0;
	cr_assert(fails != MAP_FAILED);
	snprintf(first, sizeof(first), "/tmp/ep_fault.%d.a", (int)getpid());
	snprintf(second, sizeof(second), "/tmp/ep_fault.%d.b", (int)getpid());
	for (uint32_t r = 0; r < N; r++)
		pids[r] = start(f, r, false, first, second, fails[r]);
	cr_assert_eq(waitpid(pids[VICTIM], &st, WUNTRACED), pids[VICTIM]);
	cr_expect(f->stopped ? WIFSTOPPED(st) : WIFSIGNALED(st), "%s", fails[VICTIM]);
	pids[N] = start(f, VICTIM, true, first, second, fails[N]);
	for (uint32_t i = 0; i <= N; i++) {
		if (i == VICTIM)
			continue;
		cr_assert_eq(waitpid(pids[i], &st, 0), pids[i]);
		cr_expect_eq(st, 0, "rank process %u ended with %d", i, st);
	}
	if (f->stopped) { /* it held the old generation's memory all the while */
		kill(pids[VICTIM], SIGKILL);
		waitpid(pids[VICTIM], NULL, 0);
	}
	for (uint32_t i = 0; i <= N; i++)
		cr_expect_str_empty(fails[i], "%s: %s", f->name, fails[i]);
	munmap(fails, (N + 1) * FAIL_BYTES);
	unlink(first), unlink(second);
	NO_LEAKS();
}

/* ---- a rank that others masked learns it by itself ---- */

static void late_rank(struct member *m)
{
	if (m->me == VICTIM) {
		usleep(2000000);
		m->w.silent = m->w.lost = 1u << 0 | 1u << 2;
		struct flight f;
		m->w.timeout_us = 100000;
		if (!flight_dispatch(m, &f, 0, 0))
			return;
		m->w.lost = ~(1ull << VICTIM);
		struct ep_combine_args a = { .y = f.y,
					     .weights = f.weights,
					     .active = m->active,
					     .out = f.out,
					     .incomplete = f.incomplete,
					     .timeout_us = 100000 };
		cr_expect_eq(ep_combine(m->b, f.h, &a, NULL), ERR_NONE);
		for (uint32_t r = 0; r < N; r++) {
			struct ep_missed why;
			struct why text = { 0 };
			if (m->active[r] != (r == VICTIM))
				member_fail(m, "active[%u] is %d", r, m->active[r]);
			if (r != VICTIM && (!ep_missed(m->b, r, &why, &text) ||
					    !strstr(text.text, "slot 0, step 1")))
				member_fail(m, "why rank %u was masked: '%s'", r, text.text);
		}
		for (uint32_t t = 0; t < m->w.tokens[VICTIM]; t++) {
			bool lost = false;
			for (uint32_t k = 0; k < m->w.top_k; k++) {
				int64_t e = f.topk[t * m->w.top_k + k];
				lost |= e >= 0 && m->w.owner[e] != VICTIM;
			}
			if (f.incomplete[t] != lost)
				member_fail(m, "token %u passes for whole", t);
		}
		flight_free(&f);
		return;
	}
	m->w.lost = m->w.silent = 1u << VICTIM;
	m->w.timeout_us = 500000;
	for (uint32_t i = 0; i < 5; i++)
		member_step(m, i);
	if (m->active[VICTIM] != 0)
		member_fail(m, "the late rank is still active");
	usleep(2500000); /* the late rank still looks into our windows */
}

Test(fault, masked_rank_learns_it_from_its_own_timeout, .timeout = 30)
{
	cr_assert_str_empty(world_threads(&shape, late_rank, NULL));
	NO_LEAKS();
}

/* ---- the mask that the caller gives ---- */

static void masked_by_caller(struct member *m)
{
	m->w.timeout_us = 5000000;
	if (m->me == VICTIM)
		return; /* configuration, not failure: it does not take part */
	m->active[VICTIM] = 0;
	m->w.lost = m->w.silent = 1u << VICTIM;
	for (uint32_t i = 0; i < 4; i++)
		member_step(m, i);
	if (ep_missed(m->b, VICTIM, NULL, NULL))
		member_fail(m, "a rank masked by the caller counts as missed");
	m->active[VICTIM] = 1; /* sticky until update_members: its counters stand still */
	member_step(m, 9);
	if (m->active[VICTIM] != 0)
		member_fail(m, "the mask did not stick");
}

Test(fault, mask_of_the_caller_waits_for_nobody, .timeout = 30)
{
	cr_assert_str_empty(world_threads(&shape, masked_by_caller, NULL));
	NO_LEAKS();
}
