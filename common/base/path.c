/* SPDX-License-Identifier: Apache-2.0 */
#include "base/path.h"

#include "base/fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "PATH: cannot be VERB: REASON", errno as the failed call left it. */
static enum err sys_fail(struct why *w, const char *path, const char *verb, int sys)
{
	return why_set(w, err_from_errno(sys), "%s: cannot be %s: %s", path, verb,
		       strerror(sys));
}

enum err path_join(char *out, const char *dir, const char *name, struct why *w)
{
	size_t n = strlen(dir);
	const char *slash = n > 0 && dir[n - 1] == '/' ? "" : "/";
	int len = snprintf(out, PATH_BYTES_MAX, "%s%s%s", dir, slash, name);
	if (len < 0 || len >= PATH_BYTES_MAX)
		return why_set(w, ERR_TOO_LARGE, "%.80s.../%.80s: longer than %d bytes", dir,
			       name, PATH_BYTES_MAX - 1);
	return ERR_NONE;
}

/* The folder of a path, "." when it names none. */
static enum err parent_of(const char *path, char *out, struct why *w)
{
	const char *slash = strrchr(path, '/');
	size_t n = slash ? MAX_OF((size_t)(slash - path), (size_t)1) : 1;
	if (n >= PATH_BYTES_MAX)
		return why_set(w, ERR_TOO_LARGE, "%.80s...: longer than %d bytes", path,
			       PATH_BYTES_MAX - 1);
	memcpy(out, slash ? path : ".", n);
	out[n] = '\0';
	return ERR_NONE;
}

/* ---- folders ---- */

static enum err check_private(int fd, const char *dir, struct why *w)
{
	struct stat st;
	if (fstat(fd, &st) != 0)
		return sys_fail(w, dir, "examined", errno);
	if (st.st_uid != geteuid())
		return why_set(w, ERR_FORBIDDEN,
			       "%s: belongs to user %u, we are %u; choose a folder of our own",
			       dir, st.st_uid, geteuid());
	if (st.st_mode & 077)
		return why_set(w, ERR_FORBIDDEN,
			       "%s: mode %04o lets others in; run: chmod 700 %s", dir,
			       st.st_mode & 07777, dir);
	return ERR_NONE;
}

enum err path_mkdir_private(const char *dir, struct why *w)
{
	if (mkdir(dir, 0700) != 0 && errno != EEXIST)
		return sys_fail(w, dir, "made", errno);
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return why_set(w, ERR_FORBIDDEN,
			       "%s: is a symbolic link or no folder; move it away", dir);
	if (fd < 0)
		return sys_fail(w, dir, "opened", errno);
	enum err e = check_private(fd, dir, w);
	close(fd);
	return e;
}

enum err path_mkdirs_private(const char *dir, struct why *w)
{
	char part[PATH_BYTES_MAX];
	size_t n = strlen(dir);
	while (n > 1 && dir[n - 1] == '/')
		n--;
	if (n == 0 || n >= sizeof(part))
		return why_set(w, ERR_INVALID_PARAMS, "%.80s: a folder's path is 1..%d bytes",
			       dir, PATH_BYTES_MAX - 1);
	memcpy(part, dir, n);
	part[n] = '\0';
	for (char *p = strchr(part + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = '\0';
		if (mkdir(part, 0755) != 0 && errno != EEXIST)
			return sys_fail(w, part, "made", errno);
		*p = '/';
	}
	return path_mkdir_private(part, w);
}

/* One folder further down; closes the one above. */
static int step_down(int at, const char *name)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int sys = errno;
	close(at);
	errno = sys;
	return fd;
}

enum err path_open_dir_strict(const char *dir, int *out_fd, struct why *w)
{
	char part[PATH_BYTES_MAX];
	size_t n = strlen(dir);
	if (dir[0] != '/' || n >= sizeof(part))
		return why_set(w, ERR_INVALID_PARAMS,
			       "%.80s: not an absolute path of at most %d bytes", dir,
			       PATH_BYTES_MAX - 1);
	memcpy(part, dir, n + 1);
	int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char *rest = part;
	for (char *name; fd >= 0 && (name = strtok_r(rest, "/", &rest));)
		fd = step_down(fd, name);
	if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
		return why_set(
			w, ERR_INVALID_PARAMS,
			"%s: a part of it is a symbolic link or no folder; give the real path",
			dir);
	if (fd < 0)
		return sys_fail(w, dir, "opened", errno);
	*out_fd = fd;
	return ERR_NONE;
}

enum err path_sync_dir(const char *dir, struct why *w)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return sys_fail(w, dir, "opened", errno);
	int sys = FAULT(path_fsync) ? EIO : fsync(fd) ? errno : 0;
	close(fd);
	return sys ? sys_fail(w, dir, "synced", sys) : ERR_NONE;
}

/* ---- files ---- */

enum err path_open(const char *path, int flags, unsigned mode, int *out_fd, struct why *w)
{
	struct stat st;
	/* not blocking: the open of a fifo would wait for its other end */
	int fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
	if (fd < 0 && errno == ELOOP)
		return why_set(w, ERR_FORBIDDEN, "%s: is a symbolic link; give the file itself",
			       path);
	if (fd < 0)
		return sys_fail(w, path, "opened", errno);
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return why_set(w, ERR_INVALID_PARAMS, "%s: is no regular file", path);
	}
	if (!(flags & O_NONBLOCK))
		fcntl(fd, F_SETFL, flags & ~(O_CREAT | O_EXCL | O_TRUNC));
	*out_fd = fd;
	return ERR_NONE;
}

static enum err read_all(int fd, const char *path, size_t limit, struct buf *out, struct why *w)
{
	for (size_t got = 0;;) {
		size_t want = MIN_OF(limit - got + 1, (size_t)65536);
		uint8_t *room = buf_room(out, want);
		if (!room)
			return why_set(w, buf_err(out), "%s: does not fit into %zu bytes", path,
				       out->limit);
		ssize_t r = read(fd, room, want);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return sys_fail(w, path, "read", errno);
		if (r == 0)
			return ERR_NONE;
		got += (size_t)r;
		if (got > limit)
			return why_set(w, ERR_TOO_LARGE, "%s: larger than %zu bytes", path,
				       limit);
		buf_advance(out, (size_t)r);
	}
}

enum err path_read(const char *path, size_t limit, struct buf *out, struct why *w)
{
	int fd = -1;
	enum err e = path_open(path, O_RDONLY, 0, &fd, w);
	if (e)
		return e;
	e = read_all(fd, path, limit, out, w);
	close(fd);
	return e;
}

/* 0 or errno. */
static int write_all(int fd, struct bytes text)
{
	while (text.n > 0) {
		ssize_t r =
			FAULT(path_write) ? (errno = ENOSPC, -1) : write(fd, text.p, text.n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return errno;
		text = BYTES(text.p + r, text.n - (size_t)r);
	}
	return 0;
}

/* Mode, bytes, fsync; closes fd. 0 or errno. */
static int fill(int fd, struct bytes text, unsigned mode)
{
	int sys = fchmod(fd, mode) ? errno : write_all(fd, text);
	if (!sys && FAULT(path_fsync))
		sys = EIO;
	if (!sys && fsync(fd))
		sys = errno;
	if (close(fd) && !sys)
		sys = errno;
	return sys;
}

#define TMP_MARK ".tmp-"
#define TMP_X	 "XXXXXX"

/* Is name one that mkostemp made of base? */
static bool is_leftover(const char *name, const char *base)
{
	static const char made_of[] = "abcdefghijklmnopqrstuvwxyz"
				      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	size_t n = strlen(base), n_mark = strlen(TMP_MARK), n_x = strlen(TMP_X);
	if (strncmp(name, base, n) != 0 || strncmp(name + n, TMP_MARK, n_mark) != 0)
		return false;
	const char *x = name + n + n_mark;
	return strlen(x) == n_x && strspn(x, made_of) == n_x;
}

void path_sweep(const char *path)
{
	char dir[PATH_BYTES_MAX];
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	if (parent_of(path, dir, NULL) != ERR_NONE)
		return;
	DIR *d = opendir(dir);
	if (!d)
		return;
	for (struct dirent *e; (e = readdir(d)) != NULL;) {
		struct stat st;
		if (is_leftover(e->d_name, base) &&
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode) && st.st_uid == geteuid())
			unlinkat(dirfd(d), e->d_name, 0);
	}
	closedir(d);
}

enum err path_write_atomic(const char *path, struct bytes text, unsigned mode, struct why *w)
{
	char tmp[PATH_BYTES_MAX], dir[PATH_BYTES_MAX];
	enum err e = parent_of(path, dir, w);
	if (e)
		return e;
	if (snprintf(tmp, sizeof(tmp), "%s" TMP_MARK TMP_X, path) >= (int)sizeof(tmp))
		return why_set(w, ERR_TOO_LARGE, "%.80s...: longer than %d bytes", path,
			       PATH_BYTES_MAX - 12);
	int fd = mkostemp(tmp, O_CLOEXEC);
	if (fd < 0)
		return sys_fail(w, path, "written", errno);
	int sys = fill(fd, text, mode);
	if (!sys && FAULT(path_rename))
		sys = EIO;
	if (!sys && rename(tmp, path))
		sys = errno;
	if (sys) {
		unlink(tmp);
		return sys_fail(w, path, "written", sys);
	}
	return path_sync_dir(dir, w);
}

enum err path_lock(const char *path, int *out_fd, struct why *w)
{
	int fd = -1;
	enum err e = path_open(path, O_RDWR | O_CREAT, 0600, &fd, w);
	if (e)
		return e;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	if (fcntl(fd, F_OFD_SETLK, &lock) == 0) {
		*out_fd = fd;
		return ERR_NONE;
	}
	int sys = errno;
	close(fd);
	if (sys == EAGAIN || sys == EACCES)
		return why_set(w, ERR_DIRECTORY_IN_USE,
			       "%s: locked by another process; stop it or use another folder",
			       path);
	return sys_fail(w, path, "locked", sys);
}
