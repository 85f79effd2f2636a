/* SPDX-License-Identifier: Apache-2.0 */
/* io_uring: what moved, depth, order of ends, refusals. Where there is none: the refusal alone. */
#include "loop/ring.h"

#include "base/fault.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_loop.h"
#include "tests/support/leak.h"

struct task {
	struct ring_io io;
	struct ring *again; /* reads once more when done */
	char data[4096];
	unsigned done;
};

static unsigned n_done;
static int file_fd;

static void on_done(struct ring_io *io)
{
	struct task *t = container_of(io, struct task, io);
	t->done++;
	n_done++;
	if (t->again) {
		struct ring *r = t->again;
		t->again = NULL;
		cr_assert_eq(ring_read(r, io, file_fd, t->data, 10, 0), ERR_NONE);
	}
}

static void wait_for(struct loop *l, unsigned n)
{
	while (n_done < n)
		loop_run_once(l, true);
}

static int open_file(void)
{
	char path[] = "/tmp/pomelo-ring-XXXXXX";
	int fd = mkstemp(path);
	cr_assert(fd >= 0);
	unlink(path);
	return fd;
}

/* NULL where the machine has no io_uring. */
static struct ring *open_ring(struct loop *l, uint32_t depth)
{
	struct ring *r = NULL;
	struct why w = { 0 };
	cr_assert_eq(loop_open(l), ERR_NONE);
	enum err e = ring_open(l, depth, &r, &w);
	if (e) {
		cr_assert_eq(e, ERR_UNSUPPORTED);
		cr_assert(strstr(w.text, "io_uring"));
		loop_close(l);
		cr_skip_test("no io_uring here");
	}
	return r;
}

Test(ring, writes_reads_syncs_allocates, .timeout = 10)
{
	struct loop l;
	struct task w = { .io.done = on_done }, s = w, f = w, rd = w, part = w, bad = w,
		    vec = w;
	struct stat st;
	int fd = open_file();
	struct ring *r = open_ring(&l, 8);
	memset(w.data, 'p', 3000);
	cr_assert_eq(ring_write(r, &w.io, fd, w.data, 3000, 100), ERR_NONE);
	cr_expect_eq(w.done, 0);
	wait_for(&l, 1);
	cr_expect_eq(w.io.err, ERR_NONE);
	cr_expect_eq(w.io.n, 3000);
	cr_assert_eq(ring_fsync(r, &s.io, fd, true), ERR_NONE);
	cr_assert_eq(ring_fallocate(r, &f.io, fd, 0, 0, 8192), ERR_NONE);
	cr_assert_eq(ring_read(r, &rd.io, fd, rd.data, 2000, 100), ERR_NONE);
	cr_expect_eq(ring_in_flight(r), 3);
	wait_for(&l, 4);
	cr_expect_eq(s.io.err, ERR_NONE);
	cr_expect_eq(f.io.err, ERR_NONE, "%d", f.io.sys);
	cr_expect(fstat(fd, &st) == 0 && st.st_size == 8192);
	cr_expect_eq(rd.io.n, 2000);
	cr_expect_arr_eq(rd.data, w.data, 2000);
	cr_assert_eq(ring_read(r, &part.io, fd, part.data, 4096, 8000), ERR_NONE);
	cr_assert_eq(ring_read(r, &bad.io, -1, bad.data, 1, 0), ERR_NONE);
	struct iovec v[2] = { { vec.data, 10 }, { vec.data + 100, 20 } };
	cr_assert_eq(ring_readv(r, &vec.io, fd, v, 2, 100), ERR_NONE);
	wait_for(&l, 7);
	cr_expect_eq(part.io.n, 192, "short at the end of the file (I3)");
	cr_expect_eq(bad.io.sys, EBADF);
	cr_expect_eq(bad.io.err, ERR_IO);
	cr_expect_eq(bad.io.n, 0);
	cr_expect_eq(vec.io.n, 30);
	cr_expect_arr_eq(vec.data + 100, w.data, 20);
	cr_assert_eq(ring_writev(r, &vec.io, fd, v, 2, 0), ERR_NONE);
	wait_for(&l, 8);
	cr_expect_eq(vec.io.n, 30);
	ring_close(r);
	loop_close(&l);
	close(fd);
	NO_LEAKS();
}

/* I2, and many at once in any order. */
Test(ring, depth_is_a_limit, .timeout = 10)
{
	struct loop l;
	static struct task t[9];
	struct ring *r = open_ring(&l, 8);
	file_fd = open_file();
	cr_assert_eq(ftruncate(file_fd, 4096), 0);
	for (int round = 1; round <= 20; round++) {
		for (int i = 0; i < 9; i++) {
			t[i].io.done = on_done;
			cr_expect_eq(ring_read(r, &t[i].io, file_fd, t[i].data, 4096, 0),
				     i < 8 ? ERR_NONE : ERR_BUSY);
		}
		cr_expect_eq(ring_in_flight(r), 8);
		wait_for(&l, (unsigned)round * 8);
		cr_expect_eq(ring_in_flight(r), 0);
	}
	t[0].again = r;
	cr_assert_eq(ring_read(r, &t[0].io, file_fd, t[0].data, 4096, 0), ERR_NONE);
	wait_for(&l, 162);
	ring_close(r);
	ring_close(NULL);
	loop_close(&l);
	close(file_fd);
	NO_LEAKS();
}

/* loop_close waits for what is in flight: it is expected. */
Test(ring, closing_waits, .timeout = 10)
{
	struct loop l;
	struct task t = { .io.done = on_done };
	struct ring *r = open_ring(&l, 1);
	int fd = open_file();
	cr_assert_eq(ring_write(r, &t.io, fd, "x", 1, 0), ERR_NONE);
	cr_expect_eq(l.inbox.expected, 1);
	while (l.inbox.expected > 0)
		loop_run_once(&l, true);
	cr_expect_eq(t.done, 1);
	ring_close(r);
	loop_close(&l);
	close(fd);
	NO_LEAKS();
}

Test(ring, none_in_a_simulation, .timeout = 5)
{
	struct fake_loop f;
	struct ring *r = NULL;
	struct why w = { 0 };
	fake_open(&f, true);
	cr_expect_eq(ring_open(&f.l, 8, &r, &w), ERR_UNSUPPORTED);
	cr_expect_null(r);
	cr_expect(strstr(w.text, "io_uring"));
	fake_close(&f);
}

Test(ring, kernel_refuses, .timeout = 10)
{
	struct loop l;
	struct ring *r = NULL;
	struct why w = { 0 };
	if (!fault_built())
		cr_skip_test("needs -Dfaults=true");
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fault_arm(FAULT_ring_setup, 0, 1);
	cr_expect_eq(ring_open(&l, 8, &r, &w), ERR_UNSUPPORTED);
	cr_expect_null(r);
	fault_disarm_all();
	loop_close(&l);
	NO_LEAKS();
}

/* The kernel would not take them for a while: they are late, not lost. */
Test(ring, submission_is_retried, .timeout = 10)
{
	struct loop l;
	struct task t[3];
	if (!fault_built())
		cr_skip_test("needs -Dfaults=true");
	struct ring *r = open_ring(&l, 4);
	int fd = open_file();
	fault_arm(FAULT_ring_submit, 0, 5);
	for (int i = 0; i < 3; i++) {
		t[i] = (struct task){ .io.done = on_done };
		cr_assert_eq(ring_write(r, &t[i].io, fd, "x", 1, (uint64_t)i), ERR_NONE);
	}
	wait_for(&l, 3);
	cr_expect_eq(fault_hits(FAULT_ring_submit), 5);
	fault_disarm_all();
	ring_close(r);
	loop_close(&l);
	close(fd);
	NO_LEAKS();
}
