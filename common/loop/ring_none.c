/* SPDX-License-Identifier: Apache-2.0 */
/* Built without liburing: no ring can be opened, so nothing else here can be reached. */
#include "loop/ring.h"

enum err ring_open(struct loop *l, uint32_t depth, struct ring **out, struct why *w)
{
	(void)l;
	(void)depth;
	(void)out;
	return why_set(w, ERR_UNSUPPORTED,
		       "io_uring: this build lacks it; build with -During=enabled (liburing)");
}

void ring_close(struct ring *r)
{
	assert(!r);
}

enum err ring_read(struct ring *r, struct ring_io *io, int fd, void *to, uint32_t n,
		   uint64_t offset)
{
	(void)r;
	(void)io;
	(void)fd;
	(void)to;
	(void)n;
	(void)offset;
	return ERR_UNSUPPORTED;
}

enum err ring_write(struct ring *r, struct ring_io *io, int fd, const void *from, uint32_t n,
		    uint64_t offset)
{
	(void)r;
	(void)io;
	(void)fd;
	(void)from;
	(void)n;
	(void)offset;
	return ERR_UNSUPPORTED;
}

enum err ring_readv(struct ring *r, struct ring_io *io, int fd, const struct iovec *v,
		    uint32_t n_v, uint64_t offset)
{
	(void)r;
	(void)io;
	(void)fd;
	(void)v;
	(void)n_v;
	(void)offset;
	return ERR_UNSUPPORTED;
}

enum err ring_writev(struct ring *r, struct ring_io *io, int fd, const struct iovec *v,
		     uint32_t n_v, uint64_t offset)
{
	return ring_readv(r, io, fd, v, n_v, offset);
}

enum err ring_fsync(struct ring *r, struct ring_io *io, int fd, bool data_only)
{
	(void)r;
	(void)io;
	(void)fd;
	(void)data_only;
	return ERR_UNSUPPORTED;
}

enum err ring_fallocate(struct ring *r, struct ring_io *io, int fd, int mode, uint64_t offset,
			uint64_t n)
{
	(void)r;
	(void)io;
	(void)fd;
	(void)mode;
	(void)offset;
	(void)n;
	return ERR_UNSUPPORTED;
}

uint32_t ring_in_flight(const struct ring *r)
{
	(void)r;
	return 0;
}
