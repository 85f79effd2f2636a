/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data folder (answers.md): where it is, how it is made, who owns it.
 *
 *   DATA/pomelo.conf  settings of this cluster, if any
 *   DATA/secret       64 hex digits, 0600, made by the first `up`
 *   DATA/lock         OFD-locked by the supervisor (or by `up` while it starts one)
 *   DATA/run          sockets, run/NAME.{pid,json}, endpoints.json; a symbolic link with --run-dir
 *   DATA/log          NAME.log, NAME.log.1 .. NAME.log.3
 *
 * I1: no folder of ours is ever readable by others: 0700, our own, or it is refused.
 * I2: two supervisors never run on one data folder, and two data folders never share a run folder.
 *
 * Thread: the main one.
 */
#pragma once

#include "base/where.h"

/* DATA, 0700. ERR_FORBIDDEN another's or open to others; ERR_IO, ERR_NO_SPACE. */
enum err data_make(const struct where *d, struct why *why) MUST_CHECK;
/* Does DATA exist at all? */
bool data_exists(const struct where *d);
/* The rest: log, run (or the link to it). The lock is held. ERR_CONFLICT: the run folder is another
 * data folder's, or services still run on another run folder. */
enum err data_make_rest(const struct where *d, struct why *why) MUST_CHECK;
/*
 * Takes DATA/lock. fd: owned; the lock goes with the last descriptor of it (fork, exec keep it).
 * ERR_DIRECTORY_IN_USE: somebody holds it.
 */
enum err data_lock(const struct where *d, int *fd, struct why *why) MUST_CHECK;

/* The folder of the memory pool, "/dev/shm/pomelo-UID-HASH16": HASH of the data folder's device and
 * inode. ERR_NOT_FOUND: no data folder. */
enum err data_pool_path(const struct where *d, char *out, size_t size) MUST_CHECK;
/*
 * Removes a pool folder and the files in it, memory going back in slices. bytes: what it held.
 * ERR_NOT_FOUND none there; ERR_FORBIDDEN not ours or not a plain folder: left alone.
 */
enum err data_pool_remove(const char *path, uint64_t *bytes, struct why *why) MUST_CHECK;
/*
 * The pools of a data folder: the default one, and the one under agent.pool_dir (run/agent.pool says
 * where). As data_pool_remove; with two, the first error counts.
 */
enum err data_pools_remove(const struct where *d, uint64_t *bytes, struct why *why) MUST_CHECK;
