/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What disk_posix.c and the lanes over io_uring share. Internal to common/store.
 */
#pragma once

#include "store/disk.h"

struct disk_posix_file {
	struct disk_file file;
	int fd;
	uint64_t
		serial; /* never used again in this process: names it in a ring's table of files */
};

struct disk_ring;

/* ERR_UNSUPPORTED: no io_uring in this build or kernel. owned, disk_ring_free(). */
enum err disk_ring_new(const struct disk_lane_opts *o, struct disk_ring **out) MUST_CHECK;
void disk_ring_free(struct disk_ring *r);
/* Returns how many are in flight. */
uint32_t disk_ring_submit(struct disk_ring *r, struct disk_req *q);
/* Waits until at most `left` are in flight; returns how many are. */
uint32_t disk_ring_reap(struct disk_ring *r, uint32_t left);
/* The file of that serial is being closed. Any thread. */
void disk_ring_forget(struct disk_ring *r, uint64_t serial);
