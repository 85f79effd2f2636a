/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"
#include "run.h"
#include "base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Given back to the kernel at a time, so that nothing stalls on a huge file (case 81). */
#define POOL_SLICE_BYTES (1ll << 30)

/* ---- making ---- */

bool data_exists(const struct where *d)
{
	struct stat st;
	return stat(d->path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum err data_make(const struct where *d, struct why *why)
{
	return path_mkdirs_private(d->path, why);
}

/* Leaves an old DATA/run behind that nobody uses: its files are of processes that have ended. */
static enum err clear_old_run(const char *own, struct why *why)
{
	if (run_any_held(own))
		return why_set(
			why, ERR_CONFLICT,
			"services still run in %.200s; `pomelo down` before moving the run folder",
			own);
	DIR *dir = opendir(own);
	for (struct dirent *de = dir ? readdir(dir) : NULL; de; de = readdir(dir))
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
			unlinkat(dirfd(dir), de->d_name, 0);
	if (dir)
		closedir(dir);
	if (rmdir(own) != 0)
		return why_set(why, err_from_errno(errno),
			       "%.200s: cannot be replaced by a link to the run folder: %s",
			       own, strerror(errno));
	return ERR_NONE;
}

/* DATA/run -> the run folder, so that later commands find it without being told. */
static enum err link_run(const struct where *d, struct why *why)
{
	char own[PATH_BYTES_MAX], to[PATH_BYTES_MAX];
	struct stat st;
	enum err e = path_join(own, d->path, "run", why);
	if (e != ERR_NONE || strcmp(own, d->run) == 0)
		return e;
	ssize_t n = readlink(own, to, sizeof(to) - 1);
	if (n > 0) {
		to[n] = '\0';
		if (strcmp(to, d->run) == 0)
			return ERR_NONE;
		if (run_any_held(to))
			return why_set(why, ERR_CONFLICT,
				       "services still run in %.200s; `pomelo down` first", to);
		unlink(own);
	} else if (lstat(own, &st) == 0) {
		e = clear_old_run(own, why);
		if (e != ERR_NONE)
			return e;
	}
	if (symlink(d->run, own) != 0)
		return why_set(why, err_from_errno(errno), "%.200s: %s", own, strerror(errno));
	return ERR_NONE;
}

/* I2: run/data names the data folder a run folder serves. */
static enum err claim_run(const struct where *d, struct why *why)
{
	char path[PATH_BYTES_MAX], owner[PATH_BYTES_MAX] = "";
	enum err e = path_join(path, d->run, "data", why);
	if (e != ERR_NONE)
		return e;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	ssize_t n = fd >= 0 ? read(fd, owner, sizeof(owner) - 1) : -1;
	if (n < 0)
		goto fail;
	owner[n] = '\0';
	if (n > 0 && strcmp(owner, d->path) != 0 && run_any_held(d->run)) {
		close(fd);
		return why_set(
			why, ERR_CONFLICT,
			"the run folder %.100s is in use by the data folder %.100s; give another "
			"--run-dir",
			d->run, owner);
	}
	size_t len = strlen(d->path);
	if (strcmp(owner, d->path) != 0 &&
	    (ftruncate(fd, 0) != 0 || pwrite(fd, d->path, len, 0) != (ssize_t)len))
		goto fail;
	close(fd);
	return ERR_NONE;
fail:
	e = why_set(why, err_from_errno(errno), "%.200s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return e;
}

enum err data_make_rest(const struct where *d, struct why *why)
{
	char logs[PATH_BYTES_MAX];
	enum err e = path_join(logs, d->path, "log", why);
	if (e == ERR_NONE)
		e = path_mkdirs_private(logs, why);
	if (e == ERR_NONE)
		e = link_run(d, why);
	if (e == ERR_NONE)
		e = path_mkdirs_private(d->run, why);
	if (e == ERR_NONE)
		e = claim_run(d, why);
	return e;
}

enum err data_lock(const struct where *d, int *fd, struct why *why)
{
	char path[PATH_BYTES_MAX];
	enum err e = path_join(path, d->path, "lock", why);
	if (e != ERR_NONE)
		return e;
	return path_lock(path, fd, why);
}

/* ---- pool ---- */

enum err data_pool_path(const struct where *d, char *out, size_t size)
{
	return where_pool(d->path, out, size);
}

/* Shrinks and unlinks one file of the pool; its size. */
static uint64_t drop_file(int dir, const char *name)
{
	struct stat st = { 0 };
	int fd = openat(dir, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		for (off_t left = st.st_size; left > POOL_SLICE_BYTES; left -= POOL_SLICE_BYTES)
			if (ftruncate(fd, left - POOL_SLICE_BYTES) != 0)
				break;
	}
	if (fd >= 0)
		close(fd);
	unlinkat(dir, name, 0);
	return (uint64_t)st.st_blocks * 512;
}

enum err data_pool_remove(const char *path, uint64_t *bytes, struct why *why)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return ERR_NOT_FOUND;
	struct stat st;
	if (fd < 0 || fstat(fd, &st) != 0 || st.st_uid != geteuid()) {
		if (fd >= 0)
			close(fd);
		return why_set(why, ERR_FORBIDDEN, "%.200s: not a folder of ours; left alone",
			       path);
	}
	DIR *dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return ERR_NO_MEMORY;
	}
	uint64_t sum = 0;
	for (struct dirent *de = readdir(dir); de; de = readdir(dir))
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
			sum += drop_file(fd, de->d_name);
	closedir(dir);
	if (rmdir(path) != 0)
		return why_set(why, err_from_errno(errno), "%.200s: %s", path, strerror(errno));
	*bytes = sum;
	return ERR_NONE;
}

/* The pool under agent.pool_dir; false: there is none. */
static bool named_pool(const struct where *d, char *out, size_t size)
{
	char path[PATH_BYTES_MAX];
	struct buf b = BUF_INIT(PATH_BYTES_MAX);
	bool found = path_join(path, d->run, "agent.pool", NULL) == ERR_NONE &&
		     path_read(path, size - 1, &b, NULL) == ERR_NONE && b.n > 1 &&
		     b.p[0] == '/' && b.p[b.n - 1] == '\n';
	if (found) {
		memcpy(out, b.p, b.n - 1);
		out[b.n - 1] = '\0';
	}
	buf_fini(&b);
	return found;
}

enum err data_pools_remove(const struct where *d, uint64_t *bytes, struct why *why)
{
	char path[PATH_BYTES_MAX];
	uint64_t n = 0;
	enum err e = data_pool_path(d, path, sizeof(path)), e2 = ERR_NOT_FOUND;
	*bytes = 0;
	if (e == ERR_NONE)
		e = data_pool_remove(path, bytes, why);
	if (named_pool(d, path, sizeof(path))) {
		e2 = data_pool_remove(path, &n, why);
		*bytes += n;
		if (e2 == ERR_NONE && path_join(path, d->run, "agent.pool", NULL) == ERR_NONE)
			unlink(path);
	}
	return e == ERR_NOT_FOUND ? e2 : e;
}
