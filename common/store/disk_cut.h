/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk in memory under the backends whose power can be cut at any operation, so that a test can walk
 * through what it might then hold: each unsynced 512-byte piece of a write, each unsynced size and each
 * unsynced change of a name is kept or lost on its own, in order of the writes. What was synced stays.
 * Ios of a lane end in an order of the seed's. Ios of direct files must be aligned (asserted).
 *
 * The operations that change something are numbered from 0: create, write, truncate, allocate, sync,
 * rename, unlink, mkdir, sync_dir. Running out of memory aborts.
 * Thread: any; one lock around all.
 */
#pragma once

#include "store/disk.h"

struct disk_cut;

enum disk_cut_op {
	CUT_CREATE,
	CUT_WRITE,
	CUT_TRUNCATE,
	CUT_ALLOCATE,
	CUT_SYNC,
	CUT_RENAME,
	CUT_UNLINK,
	CUT_MKDIR,
	CUT_SYNC_DIR,
};

/* owned, disk_cut_free(). Any seed. */
struct disk_cut *disk_cut_new(uint64_t seed);
void disk_cut_free(struct disk_cut *c);
struct disk_fs *disk_cut_fs(struct disk_cut *c);

uint64_t disk_cut_ops(const struct disk_cut *c);
/* Of an operation of before; only the last 65,536 are known. */
enum disk_cut_op disk_cut_kind(const struct disk_cut *c, uint64_t n);
/* Operation n and all after it fail and change nothing: the power went. UINT64_MAX: never. */
void disk_cut_at(struct disk_cut *c, uint64_t n);
/* Operations n to n + count - 1 fail with e. A write leaves its first half behind. A failed sync forgets what
 * it was to write: readers go on seeing it until disk_fs_ops.forget; with kept it may still become durable. */
void disk_cut_fail(struct disk_cut *c, uint64_t n, uint64_t count, enum err e, bool kept);
/* After skip reads the next count fail with ERR_IO. */
void disk_cut_fail_reads(struct disk_cut *c, uint64_t skip, uint64_t count);
/* Bytes of the file system; what is taken counts in blocks of 4 KiB. UINT64_MAX at first; a terabyte is reported. */
void disk_cut_space(struct disk_cut *c, uint64_t bytes);
/* Real milliseconds that each write takes. */
void disk_cut_slow(struct disk_cut *c, uint32_t write_ms);

enum disk_cut_keep { CUT_NOTHING, CUT_ALL, CUT_RANDOM, CUT_NAMES, CUT_BYTES };
/* What it holds after the power came back: nothing of what was not synced, all, some (by seed), only names, only bytes.
 * A new one. */
struct disk_cut *disk_cut_after(const struct disk_cut *c, enum disk_cut_keep keep,
				uint64_t seed);
/* What a new process sees (kill -9): all of it. A new one. */
struct disk_cut *disk_cut_copy(const struct disk_cut *c);

/* A file's bytes, to look at and to spoil; NULL: none. Valid until the file next changes. */
uint8_t *disk_cut_file(struct disk_cut *c, const char *name, size_t *n);
void disk_cut_remove(struct disk_cut *c, const char *name);
void disk_cut_put(struct disk_cut *c, const char *name, const void *p, size_t n);
/* Files, in no order; fn must not change them. */
void disk_cut_each(struct disk_cut *c, void (*fn)(void *arg, const char *name, size_t n),
		   void *arg);
