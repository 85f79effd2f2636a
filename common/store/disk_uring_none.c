/* SPDX-License-Identifier: Apache-2.0 */
/* Built without liburing: lanes use pread and pwrite, nothing else here can be reached. */
#include "store/disk_priv.h"

enum err disk_ring_new(const struct disk_lane_opts *o, struct disk_ring **out)
{
	(void)o;
	(void)out;
	return ERR_UNSUPPORTED;
}

void disk_ring_free(struct disk_ring *r)
{
	assert(!r);
}

uint32_t disk_ring_submit(struct disk_ring *r, struct disk_req *q)
{
	(void)r;
	(void)q;
	abort();
}

uint32_t disk_ring_reap(struct disk_ring *r, uint32_t left)
{
	(void)r;
	(void)left;
	abort();
}

void disk_ring_forget(struct disk_ring *r, uint64_t serial)
{
	(void)serial;
	assert(!r);
}
