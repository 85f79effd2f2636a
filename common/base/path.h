/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files and folders, safely: no symbolic link is followed at the end of a path, folders are
 * private and ours, files are replaced whole or not at all.
 *
 * w gets one line with path, what was wrong and the remedy; it may be NULL.
 * Thread: any; these calls block (an fsync takes 0.5-10 ms): at start, in tools, or on a pool.
 */
#pragma once

#include "base/buf.h"

#define PATH_BYTES_MAX 4096

/* "DIR/NAME" into out[PATH_BYTES_MAX]. ERR_TOO_LARGE. */
enum err path_join(char *out, const char *dir, const char *name, struct why *w) MUST_CHECK;
/* Makes dir 0700 when it is not there (its parent must be); refuses a symbolic link, what is no
 * folder, another user's (ERR_FORBIDDEN) and one that group or others may enter. */
enum err path_mkdir_private(const char *dir, struct why *w) MUST_CHECK;
/* Makes missing parents too (0755 & umask), then as above. */
enum err path_mkdirs_private(const char *dir, struct why *w) MUST_CHECK;
/* open(2) with O_NOFOLLOW | O_CLOEXEC; only a regular file. mode for O_CREAT. owned, close(). */
enum err path_open(const char *path, int flags, unsigned mode, int *out_fd, struct why *w)
	MUST_CHECK;
/* No symbolic link anywhere on the way (openat2). For folders given by others. */
enum err path_open_dir_strict(const char *dir, int *out_fd, struct why *w) MUST_CHECK;
/* Appends the whole file to out. ERR_TOO_LARGE past limit, ERR_NOT_FOUND. */
enum err path_read(const char *path, size_t limit, struct buf *out, struct why *w) MUST_CHECK;
/* Writes a temporary file beside it, fsync, rename over path, fsync of the folder. Old bytes stay
 * on any failure. ERR_NO_SPACE, ERR_IO. Killed half way it may leave PATH.tmp-XXXXXX: path_sweep(). */
enum err path_write_atomic(const char *path, struct bytes text, unsigned mode, struct why *w)
	MUST_CHECK;
/* Removes what path_write_atomic(path) leaves when its process is killed half way: PATH.tmp-XXXXXX, files
 * of ours. For the owner of path at its start: nobody may be writing path meanwhile. A folder that
 * cannot be read is left as it is. */
void path_sweep(const char *path);
/* Exclusive lock that ends with the process (F_OFD_SETLK on a 0600 file made when missing: unlike
 * flock it can be looked at, F_OFD_GETLK, without being taken; the supervisor does so).
 * ERR_DIRECTORY_IN_USE when another holds it. owned: closing the descriptor ends it. */
enum err path_lock(const char *path, int *out_fd, struct why *w) MUST_CHECK;
/* fsync of a folder, after creating, renaming or removing in it. */
enum err path_sync_dir(const char *dir, struct why *w) MUST_CHECK;
