/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files through io_uring on a loop (ring.c), or its absence (ring_none.c): reads, writes, fsync and
 * fallocate that end on the loop, without threads of ours. What is queued in one turn of the loop
 * reaches the kernel in one system call, before the loop next sleeps.
 *
 * I1: done runs on the loop's thread, exactly once for each accepted io, never inside its own call.
 * I2: at most depth ios are in flight; one more is ERR_BUSY (B1).
 * I3: short reads and writes are reported as they are: io->n says how many bytes moved.
 *
 * Thread: the loop's.
 */
#pragma once

#include "loop/loop.h"

#include <sys/uio.h>

struct ring;

struct ring_io {
	void (*done)(struct ring_io *io); /* may free io or submit it again */
	/* results */
	enum err err;
	int sys;    /* errno of the failure, 0 */
	uint32_t n; /* bytes read or written */
	/* private */
	struct ring *ring;
	bool flying;
};

/* owned, ring_close(). ERR_UNSUPPORTED (w says what is missing: the build, the kernel, its rights,
 * or a loop of a simulation), ERR_NO_MEMORY, ERR_BUSY. depth 1..4096. */
enum err ring_open(struct loop *l, uint32_t depth, struct ring **out, struct why *w) MUST_CHECK;
/* Every accepted io must have ended (asserted). NULL is fine. The memory goes in a later turn. */
void ring_close(struct ring *r);

/* ERR_BUSY when depth are in flight. On ERR_NONE io and the bytes are taken until done. */
enum err ring_read(struct ring *r, struct ring_io *io, int fd, void *to, uint32_t n,
		   uint64_t offset) MUST_CHECK;
enum err ring_write(struct ring *r, struct ring_io *io, int fd, const void *from, uint32_t n,
		    uint64_t offset) MUST_CHECK;
/* v is borrowed until done; n_v 1..1024. */
enum err ring_readv(struct ring *r, struct ring_io *io, int fd, const struct iovec *v,
		    uint32_t n_v, uint64_t offset) MUST_CHECK;
enum err ring_writev(struct ring *r, struct ring_io *io, int fd, const struct iovec *v,
		     uint32_t n_v, uint64_t offset) MUST_CHECK;
/* Orders nothing: call it after the writes it is to cover have ended. */
enum err ring_fsync(struct ring *r, struct ring_io *io, int fd, bool data_only) MUST_CHECK;
/* mode as in fallocate(2). */
enum err ring_fallocate(struct ring *r, struct ring_io *io, int fd, int mode, uint64_t offset,
			uint64_t n) MUST_CHECK;
uint32_t ring_in_flight(const struct ring *r);
