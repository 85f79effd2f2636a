/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_uring on a uv loop. Owns the ring, an eventfd the kernel signals for completions, a uv_poll on
 * it, a uv_prepare that hands over what was queued just before the loop sleeps, and a uv_timer that
 * wakes the loop when the kernel would not take it.
 *
 * I4: the ring has room for depth submissions, and completions for twice that: neither overflows.
 */
#include "loop/ring.h"

#include "base/fault.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <uv.h>

#define DEPTH_MAX 4096
#define IOV_N_MAX 1024

struct ring {
	struct io_uring uring;
	struct loop *loop;
	int event_fd;
	uint32_t depth, flying, queued;
	unsigned handles; /* uv handles that are not closed yet */
	uv_poll_t poll;
	uv_prepare_t prepare;
	uv_timer_t retry;
};

/* ---- completions ---- */

static void complete(struct ring *r, const struct io_uring_cqe *cqe)
{
	struct ring_io *io = (struct ring_io *)(uintptr_t)cqe->user_data;
	r->flying--;
	inbox_unexpect(&r->loop->inbox);
	io->flying = false;
	io->ring = NULL;
	io->sys = cqe->res < 0 ? -cqe->res : 0;
	io->err = cqe->res < 0 ? err_from_errno(-cqe->res) : ERR_NONE;
	io->n = cqe->res < 0 ? 0 : (uint32_t)cqe->res;
}

/* Reaps until empty; done may submit more. */
static void reap(struct ring *r)
{
	struct io_uring_cqe *cqe;
	while (io_uring_peek_cqe(&r->uring, &cqe) == 0) {
		struct ring_io *io = (struct ring_io *)(uintptr_t)cqe->user_data;
		complete(r, cqe);
		io_uring_cqe_seen(&r->uring, cqe);
		io->done(io); /* may free io */
	}
}

static void on_event(uv_poll_t *h, int status, int events)
{
	struct ring *r = h->data;
	uint64_t count;
	(void)status;
	(void)events;
	/* read first, then reap: a completion in between signals again (style.md section 3) */
	ssize_t got = read(r->event_fd, &count, sizeof(count));
	(void)got;
	reap(r);
	loop_worked(r->loop);
}

/* ---- submissions ---- */

/* The next on_prepare tries again. */
static void on_retry(uv_timer_t *t)
{
	(void)t;
}

static void on_prepare(uv_prepare_t *h)
{
	struct ring *r = h->data;
	while (r->queued > 0) {
		int n = FAULT(ring_submit) ? -EAGAIN : io_uring_submit(&r->uring);
		if (n > 0) {
			r->queued -= MIN_OF((uint32_t)n, r->queued);
			continue;
		}
		/* the kernel is short of memory, or of room for completions: make room, wait a bit */
		reap(r);
		uv_timer_start(&r->retry, on_retry, 1, 0);
		return;
	}
	uv_prepare_stop(h);
}

static struct io_uring_sqe *next_sqe(struct ring *r, struct ring_io *io)
{
	assert(!io->flying);
	if (r->flying == r->depth)
		return NULL; /* I2 */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
	assert(sqe); /* I4 */
	io->flying = true;
	io->ring = r;
	io->err = ERR_NONE;
	io->sys = 0;
	io->n = 0;
	r->flying++;
	r->queued++;
	loop_expect(r->loop);
	uv_prepare_start(&r->prepare, on_prepare);
	return sqe;
}

enum err ring_read(struct ring *r, struct ring_io *io, int fd, void *to, uint32_t n,
		   uint64_t offset)
{
	struct io_uring_sqe *sqe = next_sqe(r, io);
	if (!sqe)
		return ERR_BUSY;
	io_uring_prep_read(sqe, fd, to, n, offset);
	io_uring_sqe_set_data(sqe, io);
	return ERR_NONE;
}

enum err ring_write(struct ring *r, struct ring_io *io, int fd, const void *from, uint32_t n,
		    uint64_t offset)
{
	struct io_uring_sqe *sqe = next_sqe(r, io);
	if (!sqe)
		return ERR_BUSY;
	io_uring_prep_write(sqe, fd, from, n, offset);
	io_uring_sqe_set_data(sqe, io);
	return ERR_NONE;
}

enum err ring_readv(struct ring *r, struct ring_io *io, int fd, const struct iovec *v,
		    uint32_t n_v, uint64_t offset)
{
	assert(n_v >= 1 && n_v <= IOV_N_MAX);
	struct io_uring_sqe *sqe = next_sqe(r, io);
	if (!sqe)
		return ERR_BUSY;
	io_uring_prep_readv(sqe, fd, v, n_v, offset);
	io_uring_sqe_set_data(sqe, io);
	return ERR_NONE;
}

enum err ring_writev(struct ring *r, struct ring_io *io, int fd, const struct iovec *v,
		     uint32_t n_v, uint64_t offset)
{
	assert(n_v >= 1 && n_v <= IOV_N_MAX);
	struct io_uring_sqe *sqe = next_sqe(r, io);
	if (!sqe)
		return ERR_BUSY;
	io_uring_prep_writev(sqe, fd, v, n_v, offset);
	io_uring_sqe_set_data(sqe, io);
	return ERR_NONE;
}

enum err ring_fsync(struct ring *r, struct ring_io *io, int fd, bool data_only)
{
	struct io_uring_sqe *sqe = next_sqe(r, io);
	if (!sqe)
		return ERR_BUSY;
	io_uring_prep_fsync(sqe, fd, data_only ? IORING_FSYNC_DATASYNC : 0);
	io_uring_sqe_set_data(sqe, io);
	return ERR_NONE;
}

enum err ring_fallocate(struct ring *r, struct ring_io *io, int fd, int mode, uint64_t offset,
			uint64_t n)
{
	struct io_uring_sqe *sqe = next_sqe(r, io);
	if (!sqe)
		return ERR_BUSY;
	io_uring_prep_fallocate(sqe, fd, mode, (off_t)offset, (off_t)n);
	io_uring_sqe_set_data(sqe, io);
	return ERR_NONE;
}

uint32_t ring_in_flight(const struct ring *r)
{
	return r->flying;
}

/* ---- opening and closing ---- */

/* Every operation this file uses; a kernel may lack one, or a sandbox forbid it. */
static bool kernel_has_ops(struct io_uring *uring)
{
	static const int ops[] = { IORING_OP_READ,   IORING_OP_WRITE, IORING_OP_READV,
				   IORING_OP_WRITEV, IORING_OP_FSYNC, IORING_OP_FALLOCATE };
	struct io_uring_probe *p = io_uring_get_probe_ring(uring);
	bool all = p != NULL;
	for (size_t i = 0; all && i < ARRAY_LEN(ops); i++)
		all = io_uring_opcode_supported(p, ops[i]);
	if (p)
		io_uring_free_probe(p);
	return all;
}

static enum err refused(struct why *w, int sys)
{
	enum err e = sys == ENOMEM		      ? ERR_NO_MEMORY
		     : sys == EMFILE || sys == ENFILE ? ERR_BUSY
						      : ERR_UNSUPPORTED;
	return why_set(w, e,
		       "io_uring: the kernel refuses it: %s; plain reads and writes are used",
		       strerror(sys));
}

static enum err open_uring(struct ring *r, struct why *w)
{
	int sys = FAULT(ring_setup) ? ENOSYS : -io_uring_queue_init(r->depth, &r->uring, 0);
	if (sys)
		return refused(w, sys);
	if (!kernel_has_ops(&r->uring)) {
		io_uring_queue_exit(&r->uring);
		return why_set(
			w, ERR_UNSUPPORTED,
			"io_uring: this kernel lacks an operation we need; plain reads and "
			"writes are used");
	}
	return ERR_NONE;
}

static enum err open_event(struct ring *r, struct why *w)
{
	r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->event_fd < 0)
		return refused(w, errno);
	int sys = -io_uring_register_eventfd(&r->uring, r->event_fd);
	if (!sys)
		sys = -uv_poll_init(loop_uv(r->loop), &r->poll, r->event_fd);
	if (sys)
		close(r->event_fd);
	return sys ? refused(w, sys) : ERR_NONE;
}

enum err ring_open(struct loop *l, uint32_t depth, struct ring **out, struct why *w)
{
	assert(depth >= 1 && depth <= DEPTH_MAX);
	if (!loop_uv(l))
		return why_set(w, ERR_UNSUPPORTED, "io_uring: a simulation has none");
	struct ring *r = calloc(1, sizeof(*r));
	if (!r)
		return why_set(w, ERR_NO_MEMORY, "io_uring: no memory left");
	r->loop = l;
	r->depth = depth;
	enum err e = open_uring(r, w);
	if (e)
		goto fail_mem;
	e = open_event(r, w);
	if (e)
		goto fail_uring;
	uv_prepare_init(loop_uv(l), &r->prepare);
	uv_timer_init(loop_uv(l), &r->retry);
	r->poll.data = r->prepare.data = r->retry.data = r;
	r->handles = 3;
	uv_poll_start(&r->poll, UV_READABLE, on_event);
	/* by itself a ring keeps no loop running: what is in flight does, by its expectations */
	uv_unref((uv_handle_t *)&r->poll);
	uv_unref((uv_handle_t *)&r->prepare);
	uv_unref((uv_handle_t *)&r->retry);
	*out = r;
	return ERR_NONE;

fail_uring:
	io_uring_queue_exit(&r->uring);
fail_mem:
	free(r);
	return e;
}

static void handle_closed(uv_handle_t *h)
{
	struct ring *r = h->data;
	if (--r->handles > 0)
		return;
	io_uring_queue_exit(&r->uring);
	close(r->event_fd);
	free(r);
}

void ring_close(struct ring *r)
{
	if (!r)
		return;
	assert(r->flying == 0);
	uv_close((uv_handle_t *)&r->poll, handle_closed);
	uv_close((uv_handle_t *)&r->prepare, handle_closed);
	uv_close((uv_handle_t *)&r->retry, handle_closed);
}
