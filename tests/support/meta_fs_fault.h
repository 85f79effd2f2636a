/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk in memory under the meta store whose power can be cut at any operation, so that a test
 * can walk through everything it might then hold: each unsynced 512-byte piece of a write and
 * each unsynced change of a name is kept or lost on its own (any subset, in order of the
 * writes); past what was synced a file ends early, or shows zeros, or garbage. What was synced
 * stays.
 *
 * The operations that change something are numbered from 0: create, write, sync, rename,
 * unlink, sync_dir. Running out of memory aborts. Thread: the test's.
 */
#pragma once

#include "meta/meta_fs.h"

struct fault_fs;

struct fault_fs *fault_fs_new(void);
void fault_fs_free(struct fault_fs *f);
struct meta_fs *fault_fs_fs(struct fault_fs *f);

/* Operations so far. */
uint64_t fault_fs_ops(const struct fault_fs *f);
/* Operation n and all after it fail and change nothing: the power went. Of n itself, if it is a
 * write, the first `bytes` still reach the cache. */
void fault_fs_cut(struct fault_fs *f, uint64_t n, size_t bytes);
/* Operations n to n + count - 1 fail with e. A write leaves its first half behind; a failed
 * sync drops what it should have written from what will ever be durable, and readers go on
 * seeing it, as on Linux. */
void fault_fs_fail(struct fault_fs *f, uint64_t n, uint64_t count, enum err e);
/* Was operation n a write, ...? */
enum fault_op {
	FAULT_CREATE,
	FAULT_WRITE,
	FAULT_SYNC,
	FAULT_RENAME,
	FAULT_UNLINK,
	FAULT_SYNC_DIR
};
enum fault_op fault_fs_kind(const struct fault_fs *f, uint64_t n);

/* How many things are pending: each may be kept or lost. */
size_t fault_fs_pending(const struct fault_fs *f);
enum fault_tail { FAULT_SHORT, FAULT_ZEROS, FAULT_GARBAGE };
/* What the disk holds after the power came back: keep(arg, i) for the i-th pending thing. A new
 * one. */
struct fault_fs *fault_fs_after_cut(const struct fault_fs *f, bool (*keep)(void *arg, size_t i),
				    void *arg, enum fault_tail tail);
/* What another process sees now: all of it (the page cache). A new one. */
struct fault_fs *fault_fs_copy(const struct fault_fs *f);

/* A file's bytes in the cache, to look at and to spoil; NULL: none. */
uint8_t *fault_fs_file(struct fault_fs *f, const char *name, size_t *n);
void fault_fs_truncate(struct fault_fs *f, const char *name, size_t n);
void fault_fs_remove(struct fault_fs *f, const char *name);
/* Makes or replaces a file, durably. */
void fault_fs_put(struct fault_fs *f, const char *name, const void *p, size_t n);
