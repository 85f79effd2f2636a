/* SPDX-License-Identifier: Apache-2.0 */
/* Signals of a daemon. */
#include "loop/signals.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_loop.h"
#include "tests/support/leak.h"

struct seen {
	struct loop *l;
	int signum[4];
	uint32_t n_th[4], n, n_hups;
};

static void on_drain(void *arg, int signum, uint32_t n_th)
{
	struct seen *s = arg;
	s->signum[s->n] = signum;
	s->n_th[s->n++] = n_th;
}

static void on_hup(void *arg)
{
	struct seen *s = arg;
	s->n_hups++;
}

/* SIGHUP is no reason to end; who wants to, hears of it. */
Test(signals, hup_is_passed_on, .timeout = 10)
{
	struct loop l;
	struct signals *s;
	struct seen seen = { 0 };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(signals_open(&l, on_drain, &seen, &s), ERR_NONE);
	raise(SIGHUP);
	loop_run_once(&l, true);
	signals_on_hup(s, on_hup);
	raise(SIGHUP);
	while (seen.n_hups < 1)
		loop_run_once(&l, true);
	signals_on_hup(s, NULL);
	raise(SIGHUP);
	loop_run_once(&l, true);
	cr_expect_eq(seen.n_hups, 1);
	cr_expect_eq(seen.n, 0);
	signals_close(s);
	loop_close(&l);
	NO_LEAKS();
}

Test(signals, term_and_int_are_counted, .timeout = 10)
{
	struct loop l;
	struct signals *s;
	struct seen seen = { 0 };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(signals_open(&l, on_drain, &seen, &s), ERR_NONE);
	raise(SIGHUP);
	raise(SIGPIPE);
	raise(SIGTERM);
	cr_expect_eq(seen.n, 0, "on the loop, not in the handler");
	while (seen.n < 1)
		loop_run_once(&l, true);
	raise(SIGINT);
	while (seen.n < 2)
		loop_run_once(&l, true);
	cr_expect_eq(seen.signum[0], SIGTERM);
	cr_expect_eq(seen.n_th[0], 1);
	cr_expect_eq(seen.signum[1], SIGINT);
	cr_expect_eq(seen.n_th[1], 2);
	signals_close(s);
	signals_close(NULL);
	loop_close(&l);
	NO_LEAKS();
}

/* After the close SIGTERM ends the process again. */
Test(signals, default_again_after_close, .timeout = 10)
{
	pid_t pid = fork();
	if (pid == 0) {
		struct loop l;
		struct signals *s;
		struct seen seen = { 0 };
		if (loop_open(&l) || signals_open(&l, on_drain, &seen, &s))
			_exit(1);
		signals_close(s);
		loop_close(&l);
		raise(SIGTERM);
		_exit(2);
	}
	int status;
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

Test(signals, none_in_a_simulation, .timeout = 5)
{
	struct fake_loop f;
	struct signals *s = NULL;
	fake_open(&f, true);
	cr_expect_eq(signals_open(&f.l, on_drain, NULL, &s), ERR_UNSUPPORTED);
	cr_expect_null(s);
	fake_close(&f);
}
