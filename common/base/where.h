/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a cluster's files are on this box (answers.md): the data folder, the run folder of its
 * sockets, the secret. The command line, the library and the daemons all look here.
 *
 * Thread: any. Reads the environment through the caller, and one symbolic link; makes nothing.
 */
#pragma once

#include "base/path.h"

#define WHERE_SOCKET_PATH_MAX 107 /* sun_path less its NUL */

struct where {
	char path[PATH_BYTES_MAX]; /* the data folder */
	char run[PATH_BYTES_MAX];
	char secret[PATH_BYTES_MAX];
	bool run_given, secret_given; /* by flag, environment or the link DATA/run */
};

/* What the user said; NULL: nothing. */
struct where_wish {
	const char *data, *run_dir, *secret_file;
	const char *(*env)(const char *name); /* getenv, in a program */
	bool root;			      /* effective user 0 */
};

/*
 * What was said wins over POMELO_DATA, POMELO_RUN_DIR, POMELO_SECRET_FILE, and these over the
 * defaults: /var/lib/pomelo for root, else $XDG_STATE_HOME/pomelo or ~/.local/state/pomelo;
 * DATA/run, or where the link DATA/run points; DATA/secret. Relative paths count from the current
 * folder.
 *
 * ERR_INVALID_PARAMS  no home to put it into; a path too long; a socket's path over 107 bytes
 *                     (the remedy is --run-dir)
 */
enum err where_find(const struct where_wish *w, struct where *out, struct why *why) MUST_CHECK;

#define WHERE_HOST_MAX 64
/*
 * What makes two processes neighbours: the setting host_id, or where that is empty the machine's
 * name. A longer one than WHERE_HOST_MAX is cut, with a hash of the whole at its end: agents tell it
 * to the master, clients compare it with their own.
 */
void where_host(const char *host_id, char out[WHERE_HOST_MAX + 1]);

/*
 * The default place of a data folder's memory pool: "/dev/shm/pomelo-UID-HASH16", HASH that of the
 * folder's device and inode, so that a folder that is moved keeps its pool (answers.md).
 * ERR_NOT_FOUND: no such data folder.
 */
enum err where_pool(const char *data, char *out, size_t size) MUST_CHECK;
