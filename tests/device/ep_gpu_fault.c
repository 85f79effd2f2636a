/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that leaves in a step, the others that go on, and its replacement. Ranks are processes. */
#include "ep_gpu.h"
#include "gpu/gpu.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3, VICTIM = 1, EXPERTS = 24, BOOT_US = 60000000 };

static void leave(const struct job *j)
{
	raise(j->leave_stopped ? SIGSTOP
			       : SIGKILL); /* the parent kills a stopped one at the end */
}

/* A combine of the step, and the handle, used once more, refused. */
static void combine_checked(struct job *j, struct side *g, const struct dev *d,
			    struct ep_handle *h, uint32_t step)
{
	struct why why = { 0 };
	uint32_t n_bad = 0;
	struct ep_combine_args a = combine_args(j, g, ep_y_buffer(h));
	enum err e = ep_combine(g->b, h, &a, &why);
	if (e != ERR_NONE)
		job_fail(j, "step %u combine: %s: %s", step, err_name(e), why.text);
	check_step(j, g, d);
	fetch(j, &n_bad, d->bad, 4, g->stream);
	if (n_bad)
		job_fail(j, "%u differences in step %u (lost %x)", n_bad, step,
			 j->c.dead_mask_lo);
	if (ep_combine(g->b, h, &a, NULL) != ERR_STALE)
		job_fail(j, "a used handle was not refused");
}

/* One checked step; lost: the ranks whose outputs cannot arrive, silent: those whose rows cannot. */
static void fault_step(struct job *j, struct side *g, const struct dev *d, uint32_t i,
		       uint32_t lost, uint32_t silent)
{
	struct why why = { 0 };
	struct ep_handle *h = NULL;
	next_step(j, 900000, i);
	for (uint32_t r = 0; r < j->c.n_ranks; r++)
		if (silent >> r & 1)
			j->c.n_tokens[r] = 0;
	j->c.dead_mask_lo = lost;
	if (naive_make(&j->c, j->me, g->x, g->topk, g->w, g->stream))
		job_fail(j, "make kernel");
	at(j, "a step with faults", i);
	bool mine = (int)j->me == j->victim && i == j->leave_step && !j->newcomer;
	if (mine && !j->leave_mid)
		leave(j);
	struct ep_dispatch_args a = dispatch_args(j, g);
	enum err e = ep_dispatch(g->b, &a, &h, &why);
	if (e != ERR_NONE) {
		job_fail(j, "step %u dispatch: %s: %s", i, err_name(e), why.text);
		return;
	}
	if (mine)
		leave(j);
	if (naive_expert(&j->c, d->locals, d->n_local, g->recv, g->scales, g->count,
			 ep_y_buffer(h), g->stream))
		job_fail(j, "expert kernel");
	combine_checked(j, g, d, h, i);
}

/* The survivor's side of the change: a handle left open over it is stale after it. */
static void rejoin(struct job *j, struct side *g)
{
	struct why why = { 0 };
	struct ep_handle *old = NULL;
	struct ep_exchange *x = NULL;
	struct ep_dispatch_args d = dispatch_args(j, g);
	int32_t ones[64];
	for (int i = 0; i < 64; i++)
		ones[i] = 1;
	enum err e = ep_dispatch(g->b, &d, &old, &why);
	if (e != ERR_NONE) {
		job_fail(j, "the step before the change: %s: %s", err_name(e), why.text);
		return;
	}
	at(j, "rejoin: meeting at the new exchange", 0);
	e = exchange_socket(j->rejoin, j->me, j->c.n_ranks, BOOT_US, &x, &why);
	if (e == ERR_NONE)
		e = ep_update_members(g->b, x, &why);
	if (e != ERR_NONE) {
		job_fail(j, "update_members: %s: %s", err_name(e), why.text);
		return;
	}
	struct ep_combine_args a = combine_args(j, g, g->y);
	e = ep_combine(g->b, old, &a, &why);
	if (e != ERR_STALE)
		job_fail(j, "a handle of the old generation: %s: %s", err_name(e), why.text);
	fetch(j, g->active, ones, sizeof(ones), g->stream);
}

static void run_faulty(struct job *j)
{
	static struct dev d;
	struct side g = { 0 };
	uint32_t v = 1u << j->victim;
	at(j, "starting", 0);
	j->zero_copy = true;
	if (!side_open(j, &g, true))
		return;
	dev_open(j, &g, &d);
	for (uint32_t i = j->newcomer ? j->steps : 0; i < j->steps && !bad(j); i++) {
		bool now = i == j->leave_step, after = i > j->leave_step;
		uint32_t lost = now || after ? v : 0,
			 silent = after || (now && !j->leave_mid) ? v : 0;
		fault_step(j, &g, &d, i, lost, silent);
	}
	if (!j->newcomer && !bad(j))
		rejoin(j, &g);
	for (uint32_t i = 0; i < j->steps && !bad(j); i++)
		fault_step(j, &g, &d, 1000 + i, 0, 0);
	at(j, "closing", 0);
	dev_close(&g, &d);
	side_close(&g);
}

/* ---- the parent ---- */

struct fault_run {
	struct job *proto;
	struct watch w;
	pid_t pids[N + 1]; /* the last: the replacement */
	char first[64];
};

/* In the forked rank; does not return. */
static void rank_process(const struct fault_run *f, uint32_t i)
{
	static struct job j;
	struct why why = { 0 };
	j = *f->proto;
	j.newcomer = i == N;
	j.me = j.newcomer ? VICTIM : i;
	j.sh = f->w.sh;
	if (exchange_socket(j.newcomer ? j.rejoin : f->first, j.me, N, BOOT_US, &j.x, &why) !=
	    ERR_NONE)
		job_fail(&j, "%s", why.text);
	else
		run_faulty(&j);
	_exit(0);
}

/* The replacement is started once the victim has gone or stands still. */
static void start_all(struct fault_run *f)
{
	for (uint32_t i = 0; i <= N; i++) {
		int st = 0;
		if (i == N)
			waitpid(f->pids[VICTIM], &st, WUNTRACED);
		f->pids[i] = fork();
		if (f->pids[i] == 0)
			rank_process(f, i);
		if (i == N - 1) /* not before the first forks: a fork has one thread */
			watch_start(&f->w);
	}
}

static void await_all(struct fault_run *f)
{
	struct shared *sh = f->w.sh;
	for (uint32_t i = 0; i <= N; i++) {
		int st = 0;
		uint32_t me = i == N ? VICTIM : i;
		if (i == VICTIM) /* stopped: at the end; killed: reaped when it left */
			continue;
		if (waitpid(f->pids[i], &st, 0) < 0 || st != 0) {
			snprintf(sh->text[me], sizeof(sh->text[0]),
				 "process ended with status %d", st);
			sh->differ[me]++;
		}
	}
	if (f->proto->leave_stopped) { /* it held the old generation's memory all the while */
		kill(f->pids[VICTIM], SIGKILL);
		waitpid(f->pids[VICTIM], NULL, 0);
	}
}

static bool run_case(struct job *proto, const char *what)
{
	struct fault_run f = { .proto = proto, .w = { .sh = shared_new(), .n_ranks = N } };
	double from = now_s();
	uint64_t differ = 0;
	f.w.pids = f.pids;
	f.w.n_pids = N + 1;
	snprintf(f.first, sizeof(f.first), "/tmp/ep_gpu.%d", (int)getpid());
	snprintf(proto->rejoin, sizeof(proto->rejoin), "/tmp/ep_gpu.%d.b", (int)getpid());
	unlink(f.first), unlink(proto->rejoin); /* rank 0 of the case before left by _exit */
	start_all(&f);
	await_all(&f);
	watch_end(&f.w);
	for (uint32_t r = 0; r < N; r++)
		differ += f.w.sh->differ[r];
	printf("ep_gpu fault: %s: %s (%.1f s)\n", what, differ ? "FAILED" : "ok",
	       now_s() - from);
	for (uint32_t r = 0; r < N; r++) {
		if (f.w.sh->text[r][0])
			printf("  rank %u: %s\n", r, f.w.sh->text[r]);
		if (f.w.sh->missed[r][0])
			printf("  told: %s\n", f.w.sh->missed[r]);
	}
	munmap(f.w.sh, sizeof(*f.w.sh));
	unlink(f.first), unlink(proto->rejoin);
	return differ == 0;
}

uint64_t run_faults(uint32_t n_gpus)
{
	static const char *const names[] = { "killed before its dispatch",
					     "killed between dispatch and combine",
					     "stopped before its dispatch",
					     "stopped between dispatch and combine" };
	static struct job j;
	uint64_t bad_n = 0;
	for (int k = 0; k < 4; k++) {
		j = (struct job){ .n_gpus = n_gpus,
				  .steps = 6,
				  .leave_step = 3,
				  .victim = VICTIM,
				  .leave_mid = k & 1,
				  .leave_stopped = k >> 1,
				  .timeout_us = 1500000 };
		j.c = (struct naive){ .n_ranks = N,
				      .n_experts = EXPERTS,
				      .top_k = 6,
				      .hidden = 1024,
				      .max_tokens = 64,
				      .fp8 = 1 };
		for (uint32_t e = 0; e < EXPERTS; e++)
			j.owner[e] = e % N;
		bad_n += !run_case(&j, names[k]);
	}
	return bad_n;
}
