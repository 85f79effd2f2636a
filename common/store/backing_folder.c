/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's files in a folder of our own. Everything goes through the folder's descriptor, so nobody
 * who renames folders above it leads us elsewhere.
 */
#include "store/backing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/sum.h"

enum { NAMES_MAX = 65536 };

struct folder {
	struct pool_backing base;
	int dir, lock;
	char path[PATH_BYTES_MAX];
};

static struct folder *folder_of(struct pool_backing *b)
{
	return container_of(b, struct folder, base);
}

/* "DIR/NAME: cannot be VERB: REASON", errno as the failed call left it. */
static enum err failed(struct folder *f, const char *name, const char *verb, struct why *why)
{
	int sys = errno;
	return why_set(why, err_from_errno(sys), "%.180s/%s: cannot be %s: %s", f->path, name,
		       verb, strerror(sys));
}

/* ---- opening ---- */

static enum err check_file(struct folder *f, const char *name, int fd, struct why *why)
{
	struct stat st;
	if (fstat(fd, &st) != 0)
		return failed(f, name, "examined", why);
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0 ||
	    st.st_nlink != 1)
		return why_set(
			why, ERR_FORBIDDEN,
			"%.180s/%s: no regular file of ours alone (owner %u, mode %04o, %u links); remove the folder to start with an empty pool",
			f->path, name, st.st_uid, st.st_mode & 07777, (unsigned)st.st_nlink);
	return ERR_NONE;
}

static enum err open_file(struct folder *f, const char *name, int flags, int *out,
			  struct why *why)
{
	/* NONBLOCK: a pipe of that name does not hold us up */
	int fd = openat(f->dir, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ELOOP)
		return why_set(
			why, ERR_FORBIDDEN,
			"%.180s/%s: is a symbolic link; remove the folder to start with an empty pool",
			f->path, name);
	if (fd < 0)
		return failed(f, name, "opened", why);
	enum err e = check_file(f, name, fd, why);
	if (e) {
		close(fd);
		return e;
	}
	*out = fd;
	return ERR_NONE;
}

static enum err dir_size(struct pool_backing *b, const char *name, uint64_t *bytes,
			 struct why *why)
{
	struct stat st;
	int fd = -1;
	enum err e = open_file(folder_of(b), name, O_RDWR, &fd, why);
	if (e)
		return e;
	if (fstat(fd, &st) != 0)
		e = failed(folder_of(b), name, "examined", why);
	else
		*bytes = (uint64_t)st.st_size;
	close(fd);
	return e;
}

static enum err dir_create(struct pool_backing *b, const char *name, uint64_t bytes,
			   struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = openat(f->dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return failed(f, name, "made", why);
	enum err e = ERR_NONE;
	if (ftruncate(fd, (off_t)bytes) != 0)
		e = failed(f, name, "given its size", why);
	close(fd);
	return e;
}

static enum err dir_rename(struct pool_backing *b, const char *from, const char *to,
			   struct why *why)
{
	struct folder *f = folder_of(b);
	if (renameat2(f->dir, from, f->dir, to, RENAME_NOREPLACE) != 0)
		return failed(f, from, "renamed", why);
	return fsync(f->dir) == 0 ? ERR_NONE : failed(f, to, "made durable", why);
}

static enum err dir_remove(struct pool_backing *b, const char *name, struct why *why)
{
	struct folder *f = folder_of(b);
	if (unlinkat(f->dir, name, 0) != 0 && errno != ENOENT)
		return failed(f, name, "removed", why);
	return ERR_NONE;
}

static enum err read_names(struct folder *f, DIR *d, void (*fn)(void *arg, const char *name),
			   void *arg, struct why *why)
{
	struct dirent *e;
	for (unsigned n = 0; (e = readdir(d)); n++) {
		if (n >= NAMES_MAX)
			return why_set(
				why, ERR_TOO_LARGE,
				"%.180s: more than %d files; remove the folder to start with an empty pool",
				f->path, NAMES_MAX);
		if (strlen(e->d_name) < BACKING_NAME_MAX && e->d_name[0] != '.')
			fn(arg, e->d_name);
	}
	return ERR_NONE;
}

static enum err dir_list(struct pool_backing *b, void (*fn)(void *arg, const char *name),
			 void *arg, struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = openat(f->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	if (!d) {
		enum err e = failed(f, ".", "listed", why);
		if (fd >= 0)
			close(fd);
		return e;
	}
	enum err e = read_names(f, d, fn, arg, why);
	closedir(d);
	return e;
}

/* ---- bytes ---- */

static enum err dir_map(struct pool_backing *b, const char *name, uint64_t bytes, void **out,
			struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = -1;
	enum err e = open_file(f, name, O_RDWR, &fd, why);
	if (e)
		return e;
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED) {
		e = failed(f, name, "mapped", why);
	} else {
		(void)madvise(p, bytes, MADV_DONTDUMP);
		(void)madvise(p, bytes, MADV_DONTFORK);
		*out = p;
	}
	close(fd);
	return e;
}

static void dir_unmap(struct pool_backing *b, void *p, uint64_t bytes)
{
	(void)b;
	(void)munmap(p, bytes);
}

static void dir_unload(struct pool_backing *b, void *p, uint64_t bytes)
{
	uintptr_t from = (uintptr_t)p & ~(uintptr_t)4095;
	(void)b;
	(void)madvise((void *)from, (uintptr_t)p + bytes - from, MADV_DONTNEED);
}

static enum err dir_reserve(struct pool_backing *b, const char *name, uint64_t offset,
			    uint64_t bytes, struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = -1;
	enum err e = open_file(f, name, O_RDWR, &fd, why);
	if (e)
		return e;
	int sys = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
	close(fd);
	errno = sys;
	return sys == 0 ? ERR_NONE : failed(f, name, "given its memory", why);
}

static bool dir_data(struct pool_backing *b, const char *name, uint64_t from, uint64_t *start,
		     uint64_t *end)
{
	int fd = -1;
	if (open_file(folder_of(b), name, O_RDWR, &fd, NULL) != ERR_NONE)
		return false;
	off_t at = lseek(fd, (off_t)from, SEEK_DATA);
	off_t to = at >= 0 ? lseek(fd, at, SEEK_HOLE) : -1;
	close(fd);
	if (to < 0)
		return false;
	*start = (uint64_t)at;
	*end = (uint64_t)to;
	return true;
}

static enum err dir_read(struct pool_backing *b, const char *name, uint64_t offset, void *p,
			 size_t n, struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = -1;
	enum err e = open_file(f, name, O_RDWR, &fd, why);
	if (e)
		return e;
	ssize_t got = pread(fd, p, n, (off_t)offset);
	if (got < 0)
		e = failed(f, name, "read", why);
	else if ((size_t)got != n)
		e = why_set(
			why, ERR_CORRUPT,
			"%.180s/%s: shorter than it must be; remove the folder to start with an empty pool",
			f->path, name);
	close(fd);
	return e;
}

static enum err dir_write(struct pool_backing *b, const char *name, uint64_t offset,
			  const void *p, size_t n, struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = -1;
	enum err e = open_file(f, name, O_RDWR, &fd, why);
	if (e)
		return e;
	ssize_t put = pwrite(fd, p, n, (off_t)offset);
	if (put >= 0 && (size_t)put != n)
		errno = ENOSPC;
	if (put < 0 || (size_t)put != n)
		e = failed(f, name, "written", why);
	close(fd);
	return e;
}

static enum err dir_sync(struct pool_backing *b, const char *name, struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = -1;
	enum err e = open_file(f, name, O_RDWR, &fd, why);
	if (e)
		return e;
	if (fsync(fd) != 0)
		e = failed(f, name, "made durable", why);
	close(fd);
	return e;
}

/* ---- locks ---- */

static enum err dir_lock(struct pool_backing *b, struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = openat(f->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return failed(f, ".", "opened", why);
	if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		enum err e = errno == EWOULDBLOCK
				     ? why_set(why, ERR_DIRECTORY_IN_USE,
					       "%.200s: another agent runs this pool; stop it",
					       f->path)
				     : failed(f, ".", "locked", why);
		close(fd);
		return e;
	}
	f->lock = fd;
	return ERR_NONE;
}

static void dir_unlock(struct pool_backing *b)
{
	struct folder *f = folder_of(b);
	if (f->lock >= 0)
		close(f->lock);
	f->lock = -1;
}

static enum err dir_session_lock(struct pool_backing *b, const char *name, int *out,
				 struct why *why)
{
	struct folder *f = folder_of(b);
	int fd = -1;
	enum err e = open_file(f, name, O_RDWR, &fd, why);
	if (e)
		return e;
	if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		e = failed(f, name, "locked", why);
		close(fd);
		return e;
	}
	*out = fd;
	return ERR_NONE;
}

/* What cannot be looked at is taken for alive: its range stays (T6). */
static bool dir_session_gone(struct pool_backing *b, const char *name)
{
	struct folder *f = folder_of(b);
	int fd = openat(f->dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT;
	bool gone = flock(fd, LOCK_EX | LOCK_NB) == 0;
	close(fd);
	return gone;
}

static enum err dir_fd(struct pool_backing *b, const char *name, bool write, int *fd,
		       struct why *why)
{
	return open_file(folder_of(b), name, write ? O_RDWR : O_RDONLY, fd, why);
}

/* ---- the whole ---- */

static void dir_free(struct pool_backing *b)
{
	struct folder *f = folder_of(b);
	dir_unlock(b);
	close(f->dir);
	free(f);
}

static const struct pool_backing_ops dir_ops = {
	.size = dir_size,
	.create = dir_create,
	.rename = dir_rename,
	.remove = dir_remove,
	.list = dir_list,
	.map = dir_map,
	.unmap = dir_unmap,
	.unload = dir_unload,
	.reserve = dir_reserve,
	.data = dir_data,
	.read = dir_read,
	.write = dir_write,
	.sync = dir_sync,
	.lock = dir_lock,
	.unlock = dir_unlock,
	.session_lock = dir_session_lock,
	.session_gone = dir_session_gone,
	.fd = dir_fd,
	.free = dir_free,
};

enum err pool_folder_open(const char *dir, struct pool_backing **out, struct why *why)
{
	if (strlen(dir) >= PATH_BYTES_MAX)
		return why_set(why, ERR_TOO_LARGE, "%.80s...: longer than %d bytes", dir,
			       PATH_BYTES_MAX - 1);
	enum err e = path_mkdir_private(dir, why);
	if (e)
		return e;
	struct folder *f = calloc(1, sizeof(*f));
	if (!f)
		return ERR_NO_MEMORY;
	f->base.ops = &dir_ops;
	f->lock = -1;
	memcpy(f->path, dir, strlen(dir) + 1);
	f->dir = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (f->dir < 0) {
		e = failed(f, ".", "opened", why);
		free(f);
		return e;
	}
	*out = &f->base;
	return ERR_NONE;
}

enum err pool_folder_name(const char *data_dir, const char *pool_dir, char out[PATH_BYTES_MAX],
			  struct why *why)
{
	char text[64];
	struct stat st;
	if (stat(data_dir, &st) != 0)
		return why_set(why, err_from_errno(errno), "%.200s: %s", data_dir,
			       strerror(errno));
	int n = snprintf(text, sizeof(text), "%" PRIu64 ":%" PRIu64, (uint64_t)st.st_dev,
			 (uint64_t)st.st_ino);
	uint64_t hash = sum64(text, (size_t)n);
	n = snprintf(text, sizeof(text), "pomelo-%u-%016" PRIx64, geteuid(), hash);
	assert(n > 0 && (size_t)n < sizeof(text));
	return path_join(out, pool_dir && pool_dir[0] ? pool_dir : "/dev/shm", text, why);
}

/* What the pool that is there already has of the file system; 0: there is none. */
static uint64_t folder_has(const char *dir)
{
	uint64_t n = 0;
	DIR *d = opendir(dir);
	for (const struct dirent *e; d && (e = readdir(d));) {
		struct stat st;
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode))
			n += (uint64_t)st.st_blocks * 512;
	}
	if (d)
		closedir(d);
	return n;
}

enum err pool_folder_fits(const char *dir, uint64_t bytes, struct why *why)
{
	char parent[PATH_BYTES_MAX];
	struct statvfs fs;
	(void)snprintf(parent, sizeof(parent), "%s", dir);
	char *slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent] = '\0';
	if (statvfs(slash ? parent : ".", &fs) != 0)
		return why_set(why, err_from_errno(errno), "%.200s: %s", parent,
			       strerror(errno));
	uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize + folder_has(dir);
	if (bytes <= left)
		return ERR_NONE;
	return why_set(why, ERR_NO_SPACE,
		       "%.200s: %" PRIu64 " bytes are free, the pool wants %" PRIu64, parent,
		       left, bytes);
}
