/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk of a simulated machine: a tree of files in memory that knows what was synced. Calls
 * look like the system's and answer -errno; adapters make them the file ops of the code under test.
 *
 * What a file system may do to an unsynced write when the power goes, this one does, by the seed:
 *   data      each 512-byte sector written since the file's last fsync is kept, or dropped, on its
 *             own: writes are lost, reordered and torn. A dropped sector shows what was there
 *             before; one past the old end shows zeros or, as delayed allocation may leave it, garbage.
 *   size      is that of one of the writes since the last fsync, or the old one.
 *   names     creations, renames and unlinks since the last fsync of their folder: the first k of
 *             them, in order, have happened (journals keep order); a file without a name is gone.
 * What was synced stays. A killed process loses nothing: the page cache is the machine's.
 *
 * D1: a sector that fsync covered, and that was not written since, keeps its bytes for ever.
 * D2: a handle of a process that was killed answers -EBADF, and changes nothing.
 * D3: bounded: SIM_DISK_BYTES of content, SIM_DISK_FILES files, then -ENOSPC.
 *
 * Paths are absolute, '/' between names, no "." or "..". Thread: the world's.
 */
#pragma once

#include "tests/support/sim.h"

#define SIM_DISK_BYTES (64ull << 20)
#define SIM_DISK_FILES 1024
#define SIM_PATH_MAX   255
#define SIM_SECTOR     512

struct sim_file; /* an open handle */

enum sim_open { SIM_O_CREATE = 1, SIM_O_EXCL = 2, SIM_O_TRUNC = 4, SIM_O_DIR = 8 };

/* For sim.c, which gives each machine one at the first sim_node_disk(). sim_disk_free: NULL is fine. */
struct sim_disk *sim_disk_new(struct sim *s, const char *node);
void sim_disk_free(struct sim_disk *d);
/* p was killed, or ended: D2. */
void sim_disk_forget(struct sim_disk *d, const struct sim_proc *p);
void sim_disk_power_cut(struct sim_disk *d);

/* ---- faults ---- */

/* From now on (or no longer) nothing more fits. */
void sim_disk_full(struct sim_disk *d, bool full);
/* Content may not grow past this; SIM_DISK_BYTES at most. */
void sim_disk_limit(struct sim_disk *d, uint64_t bytes);
/* Each call takes ns_per_op more, and ns_per_kib for its bytes; a sync ten times ns_per_op. */
void sim_disk_slow(struct sim_disk *d, uint64_t ns_per_op, uint64_t ns_per_kib);
/* The calls skip, skip+1, ... skip+count-1 from now fail with -err (EIO, ENOSPC, ...): those that
 * write, sync, or change names when `writes` is set, else those that read. A failed fsync drops what
 * it should have written from what will ever be synced, as Linux does: the pages are clean then. */
void sim_disk_fail(struct sim_disk *d, bool writes, uint64_t skip, uint64_t count, int err);
/* How many calls that write (read) there were so far. */
uint64_t sim_disk_ops(const struct sim_disk *d, bool writes);
/* A flipped bit at this place, on the medium and in the cache. -ENOENT, -EINVAL (past the end). */
int sim_disk_rot(struct sim_disk *d, const char *path, uint64_t off);
uint64_t sim_disk_used(const struct sim_disk *d);

/* ---- calls ---- */

/* -ENOENT, -EEXIST, -EISDIR, -ENOTDIR, -ENOSPC, -EIO. Made files need an existing folder. */
int sim_open(struct sim_disk *d, const char *path, int flags, struct sim_file **out);
void sim_close(struct sim_file *f);
/* Bytes read; 0 at the end. */
int64_t sim_pread(struct sim_file *f, void *p, size_t n, uint64_t off);
/* n, or less when the disk is full (a short write), or -errno. */
int64_t sim_pwrite(struct sim_file *f, const void *p, size_t n, uint64_t off);
int sim_ftruncate(struct sim_file *f, uint64_t size);
int64_t sim_size(struct sim_file *f);
/* Of a folder: its names. */
int sim_fsync(struct sim_file *f);
/* Exclusive, as an OFD lock: ends with the handle or its process. -EWOULDBLOCK. */
int sim_lock(struct sim_file *f);
int sim_mkdir(struct sim_disk *d, const char *path);
int sim_rename(struct sim_disk *d, const char *from, const char *to);
int sim_unlink(struct sim_disk *d, const char *path);
/* The i-th name in a folder, in byte order; -ENOENT past the last. */
int sim_readdir(struct sim_disk *d, const char *path, size_t i, char *name, size_t size);
