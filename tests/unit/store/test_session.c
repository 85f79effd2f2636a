/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session handshake with real processes: a client that is stopped keeps its range, over restarts of
 * the agent too; one that is killed loses it as soon as its lock is free (T6).
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sock_fix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)

/* The child: attaches, sets a hazard, tells us, writes for ever. */
static void write_for_ever(const struct sock_fix *f, uint64_t epoch, int told)
{
	static const uint8_t instance[16] = "a child";
	struct shmsock_ask a = { .path = f->path,
				 .keys = sock_fix_keys(),
				 .role = ROLE_CLIENT,
				 .tenant = "default",
				 .instance = instance,
				 .write = true };
	struct extent e = { .offset = 4096, .bytes = 4096 };
	struct shmpool_fds fds;
	struct shmpool *c;
	int conn;
	if (shmsock_ask(&a, &fds, &conn, NULL) != ERR_NONE ||
	    shmpool_map(&fds, &c, NULL) != ERR_NONE)
		_exit(1);
	struct pool_lane *l = shmpool_lane(c);
	if (lane_begin(l, shmpool_ctl(c), 0, epoch, 5, &e, 1) != ERR_NONE)
		_exit(2);
	volatile uint64_t *at = shmpool_at(c, &e);
	*at = 1;
	if (write(told, "w", 1) != 1)
		_exit(3);
	for (;;)
		*at = *at + 1;
}

static pid_t start_writer(struct sock_fix *f)
{
	int told[2];
	char byte;
	cr_assert_eq(pipe(told), 0);
	pid_t pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0) {
		/* the agent's lock on the folder came along: it is not ours to keep */
		f->x.b->ops->unlock(f->x.b);
		close(told[0]);
		write_for_ever(f, store_fix_under(&f->x).pool_epoch, told[1]);
	}
	close(told[1]);
	fd_set set;
	struct timeval now;
	do {
		sock_fix_turn(f);
		FD_ZERO(&set);
		FD_SET(told[0], &set);
		now = (struct timeval){ 0 };
	} while (select(told[0] + 1, &set, NULL, NULL, &now) == 0);
	cr_assert_eq(read(told[0], &byte, 1), 1, "the child failed");
	close(told[0]);
	return pid;
}

static uint64_t last_word(struct sock_fix *f)
{
	return __atomic_load_n((uint64_t *)mempool_at(f->x.p, &(struct extent){ 0, 4096, 8 }),
			       __ATOMIC_RELAXED);
}

static void sweep_for(struct sock_fix *f, int ms)
{
	for (int i = 0; i < ms * 2; i++) {
		sock_fix_turn(f);
		hold_sweep(f->x.h);
	}
}

static void end(pid_t pid)
{
	int status;
	kill(pid, SIGKILL);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static enum hold_fence fence(struct sock_fix *f)
{
	struct hold_under u = store_fix_under(&f->x);
	struct extent e = { .offset = 4096, .bytes = 4096 };
	enum hold_fence state;
	struct hold_slot s;
	OK(hold_fence(f->x.h, &u, 5, &e, 1, &state, &s));
	return state;
}

/* Until the range is free; it must not be by then. */
static void wait_free(struct sock_fix *f)
{
	for (int i = 0; f->x.n_fenced == 0; i++) {
		cr_assert_lt(i, 4000, "the lock is not free after two seconds");
		hold_sweep(f->x.h);
		sock_fix_turn(f);
	}
	cr_assert_eq(f->x.fenced[0], 5);
	uint64_t word = last_word(f);
	sweep_for(f, 5);
	cr_assert_eq(last_word(f), word, "nobody writes there any more");
	cr_assert_eq(mempool_sessions(f->x.p), 0);
}

Test(session, a_stopped_writer_keeps_its_range_a_killed_one_loses_it, .timeout = 30)
{
	struct sock_fix f;
	sock_fix_init(&f);
	pid_t pid = start_writer(&f);
	cr_assert_eq(fence(&f), HOLD_WRITING);
	sweep_for(&f, 10);
	cr_assert_eq(f.x.n_fenced, 0);
	kill(pid, SIGSTOP);
	sweep_for(&f, 30);
	cr_assert_eq(f.x.n_fenced, 0, "held under SIGSTOP");
	cr_assert_eq(mempool_sessions(f.x.p), 1);
	kill(pid, SIGCONT);
	sweep_for(&f, 5);
	cr_assert_eq(f.x.n_fenced, 0);
	end(pid);
	wait_free(&f);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(session, the_range_is_known_over_restarts_of_the_agent, .timeout = 30)
{
	struct sock_fix f;
	sock_fix_init(&f);
	pid_t pid = start_writer(&f);
	for (int i = 0; i < 3; i++) {
		sock_fix_restart(&f);
		cr_assert_eq(f.x.start.sessions, 1);
		cr_assert_eq(hold_quarantine(f.x.h), 4096, "V1: nobody told this run");
		sweep_for(&f, 3);
		cr_assert_eq(f.x.n_fenced, 0);
	}
	kill(pid, SIGSTOP);
	sock_fix_restart(&f);
	cr_assert_eq(hold_quarantine(f.x.h), 4096);
	end(pid);
	wait_free(&f);
	sock_fix_restart(&f);
	cr_assert_eq(f.x.start.sessions + f.x.start.sessions_ended, 0);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(session, a_client_that_died_while_the_agent_was_down_is_swept, .timeout = 30)
{
	struct sock_fix f;
	sock_fix_init(&f);
	pid_t pid = start_writer(&f);
	end(pid);
	sock_fix_restart(&f);
	cr_assert_eq(f.x.start.sessions_ended, 1);
	cr_assert_eq(hold_quarantine(f.x.h), 0);
	sock_fix_fini(&f);
	NO_LEAKS();
}
