/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread's ios through io_uring of its own: blocking at its end, deep at the disk's. Files and the
 * areas given are registered, so that an io takes no reference and pins no page.
 *
 * I1: at most depth ios are in flight; the ring has room for all their completions.
 * I2: a file's place in the ring's table is emptied before the file is closed, else its blocks would not
 *     be returned when its name goes.
 *
 * Lock: the table of files, which the closing thread edits too.
 */
#include "store/disk_priv.h"

#include "base/fault.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>

#define FILES	     64		  /* places in the table: more files than that take turns */
#define PIECES_MAX   64		  /* registered areas */
#define PIECE_BYTES  (1ull << 30) /* the kernel's most for one */
#define SUBMIT_BYTES (256u << 10) /* hand over at least that often */

struct disk_ring {
	struct io_uring uring;
	uint32_t depth, in_flight, queued;
	uint64_t queued_bytes;
	struct iovec pieces[PIECES_MAX];
	uint32_t n_pieces;
	bool have_files;
	pthread_mutex_t lock;
	uint64_t files[FILES];	 /* serial; 0: empty */
	struct disk_req *failed; /* that the kernel never saw */
};

static void register_pieces(struct disk_ring *r, const struct disk_lane_opts *o)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < o->n_buffers; i++) {
		uint8_t *p = (uint8_t *)(uintptr_t)o->buffers[i].p;
		size_t left = o->buffers[i].n;
		while (left > 0 && n < PIECES_MAX) {
			size_t part = MIN_OF(left, (size_t)PIECE_BYTES);
			r->pieces[n++] = (struct iovec){ p, part };
			p += part;
			left -= part;
		}
	}
	/* without the right to pin so much memory plain ios do */
	if (n > 0 && io_uring_register_buffers(&r->uring, r->pieces, n) == 0)
		r->n_pieces = n;
}

enum err disk_ring_new(const struct disk_lane_opts *o, struct disk_ring **out)
{
	if (FAULT(ring_setup))
		return ERR_UNSUPPORTED;
	struct disk_ring *r = calloc(1, sizeof(*r));
	if (!r)
		return ERR_NO_MEMORY;
	r->depth = o->depth;
	if (io_uring_queue_init(o->depth, &r->uring, 0) != 0) {
		free(r);
		return ERR_UNSUPPORTED;
	}
	register_pieces(r, o);
	r->have_files = io_uring_register_files_sparse(&r->uring, FILES) == 0;
	pthread_mutex_init(&r->lock, NULL);
	*out = r;
	return ERR_NONE;
}

void disk_ring_free(struct disk_ring *r)
{
	if (!r)
		return;
	assert(r->in_flight == 0 && !r->failed);
	io_uring_queue_exit(&r->uring);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

/* The place of f in the table, or -1. */
static int file_slot(struct disk_ring *r, const struct disk_posix_file *f)
{
	uint32_t at = (uint32_t)(f->serial % FILES);
	int fd = f->fd;
	if (!r->have_files)
		return -1;
	pthread_mutex_lock(&r->lock);
	bool there = r->files[at] == f->serial;
	if (!there && io_uring_register_files_update(&r->uring, at, &fd, 1) == 1) {
		r->files[at] = f->serial;
		there = true;
	} else if (!there) {
		r->files[at] = 0;
	}
	pthread_mutex_unlock(&r->lock);
	return there ? (int)at : -1;
}

void disk_ring_forget(struct disk_ring *r, uint64_t serial)
{
	uint32_t at = (uint32_t)(serial % FILES);
	int none = -1;
	pthread_mutex_lock(&r->lock);
	if (r->have_files && r->files[at] == serial) {
		(void)!io_uring_register_files_update(&r->uring, at, &none, 1);
		r->files[at] = 0;
	}
	pthread_mutex_unlock(&r->lock);
}

static int piece_of(const struct disk_ring *r, const void *p, uint32_t n)
{
	for (uint32_t i = 0; i < r->n_pieces; i++) {
		const uint8_t *base = r->pieces[i].iov_base;
		const uint8_t *at = p;
		if (at >= base && at + n <= base + r->pieces[i].iov_len)
			return (int)i;
	}
	return -1;
}

static void prepare(struct disk_ring *r, struct io_uring_sqe *sqe, struct disk_req *q)
{
	const struct disk_posix_file *f = container_of(q->file, struct disk_posix_file, file);
	uint8_t *p = (uint8_t *)q->p + q->got;
	uint32_t n = q->n - q->got;
	uint64_t off = q->off + q->got;
	int piece = piece_of(r, p, n);
	int slot = file_slot(r, f);
	int fd = slot >= 0 ? slot : f->fd;
	if (q->write && piece >= 0)
		io_uring_prep_write_fixed(sqe, fd, p, n, off, piece);
	else if (q->write)
		io_uring_prep_write(sqe, fd, p, n, off);
	else if (piece >= 0)
		io_uring_prep_read_fixed(sqe, fd, p, n, off, piece);
	else
		io_uring_prep_read(sqe, fd, p, n, off);
	if (slot >= 0)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, q);
}

static void hand_over(struct disk_ring *r)
{
	while (r->queued > 0) {
		int n = FAULT(ring_submit) ? -EAGAIN : io_uring_submit(&r->uring);
		if (n <= 0)
			break; /* tried again by reap */
		r->queued -= MIN_OF((uint32_t)n, r->queued);
	}
	r->queued_bytes = 0;
}

static void queue(struct disk_ring *r, struct disk_req *q)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
	if (!sqe) {
		hand_over(r);
		sqe = io_uring_get_sqe(&r->uring);
	}
	if (!sqe) { /* the kernel takes nothing */
		q->err = ERR_BUSY;
		q->next = r->failed;
		r->failed = q;
		return;
	}
	prepare(r, sqe, q);
	r->queued++;
	r->queued_bytes += q->n;
	if (r->queued_bytes >= SUBMIT_BYTES)
		hand_over(r);
}

uint32_t disk_ring_submit(struct disk_ring *r, struct disk_req *q)
{
	if (r->in_flight == r->depth)
		disk_ring_reap(r, r->depth - 1); /* I1 */
	q->err = ERR_NONE;
	q->got = 0;
	r->in_flight++;
	queue(r, q);
	return r->in_flight;
}

static void ended(struct disk_ring *r, struct disk_req *q)
{
	r->in_flight--;
	if (q->done)
		q->done(q);
}

/* Short ones go on, but for a read at the end of its file. */
static void completion(struct disk_ring *r, struct disk_req *q, int res)
{
	if (res == -EINTR || res == -EAGAIN) {
		queue(r, q);
		return;
	}
	if (res < 0)
		q->err = err_from_errno(-res);
	else
		q->got += (uint32_t)res;
	if (res == 0 && q->write)
		q->err = ERR_NO_SPACE;
	/* a direct read that ends at no block's border met the end of the file */
	if (res > 0 && q->got < q->n && !(q->file->direct && q->got % DISK_ALIGN != 0)) {
		queue(r, q);
		return;
	}
	ended(r, q);
}

static void fail_some(struct disk_ring *r)
{
	while (r->failed) {
		struct disk_req *q = r->failed;
		r->failed = q->next;
		ended(r, q);
	}
}

static bool take_one(struct disk_ring *r)
{
	struct io_uring_cqe *cqe;
	if (io_uring_peek_cqe(&r->uring, &cqe) != 0)
		return false;
	struct disk_req *q = io_uring_cqe_get_data(cqe);
	int res = cqe->res;
	io_uring_cqe_seen(&r->uring, cqe);
	completion(r, q, res);
	return true;
}

uint32_t disk_ring_reap(struct disk_ring *r, uint32_t left)
{
	for (;;) {
		fail_some(r);
		while (take_one(r))
			;
		if (r->in_flight <= left && r->in_flight == 0)
			break;
		if (r->in_flight <= left) {
			hand_over(r);
			break;
		}
		/* some are the kernel's, or will be: it takes what is queued before it waits */
		int n = FAULT(ring_submit) ? -EAGAIN : io_uring_submit_and_wait(&r->uring, 1);
		if (n > 0)
			r->queued -= MIN_OF((uint32_t)n, r->queued);
		r->queued_bytes = 0;
	}
	return r->in_flight;
}
