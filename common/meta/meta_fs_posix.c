/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta_fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"

struct posix_fs {
	struct meta_fs fs;
	int dir;
	char where[PATH_BYTES_MAX];
};

struct posix_file {
	struct meta_file file;
	int fd;
};

static struct posix_fs *fs_of(struct meta_fs *fs)
{
	return container_of(fs, struct posix_fs, fs);
}

static int fd_of(struct meta_file *f)
{
	return container_of(f, struct posix_file, file)->fd;
}

static enum err check(int r)
{
	return r < 0 ? err_from_errno(errno) : ERR_NONE;
}

static enum err file_new(struct meta_fs *fs, int fd, struct meta_file **out)
{
	struct posix_file *f = calloc(1, sizeof(*f));
	if (!f) {
		close(fd);
		return ERR_NO_MEMORY;
	}
	f->file.fs = fs;
	f->fd = fd;
	*out = &f->file;
	return ERR_NONE;
}

static enum err posix_open(struct meta_fs *fs, const char *name, bool create,
			   struct meta_file **out)
{
	int flags =
		O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT | O_EXCL : 0);
	int fd = openat(fs_of(fs)->dir, name, flags, 0600);
	if (fd < 0)
		return err_from_errno(errno);
	struct stat st;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return ERR_FORBIDDEN;
	}
	return file_new(fs, fd, out);
}

static void posix_close(struct meta_file *f)
{
	close(fd_of(f));
	free(container_of(f, struct posix_file, file));
}

static enum err posix_size(struct meta_file *f, uint64_t *out)
{
	struct stat st;
	if (fstat(fd_of(f), &st))
		return err_from_errno(errno);
	*out = (uint64_t)st.st_size;
	return ERR_NONE;
}

static enum err posix_read(struct meta_file *f, void *p, size_t n, uint64_t off, size_t *got)
{
	size_t done = 0;
	while (done < n) {
		ssize_t r = pread(fd_of(f), (char *)p + done, n - done, (off_t)(off + done));
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return err_from_errno(errno);
		if (r == 0)
			break;
		done += (size_t)r;
	}
	*got = done;
	return ERR_NONE;
}

static enum err posix_write(struct meta_file *f, const void *p, size_t n, uint64_t off)
{
	size_t done = 0;
	while (done < n) {
		ssize_t r =
			pwrite(fd_of(f), (const char *)p + done, n - done, (off_t)(off + done));
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return err_from_errno(errno);
		if (r == 0)
			return ERR_NO_SPACE;
		done += (size_t)r;
	}
	return ERR_NONE;
}

/* Not retried on EINTR or anything else: what a second one says about the first's pages is
 * nothing. */
static enum err posix_sync(struct meta_file *f)
{
	return check(fdatasync(fd_of(f)));
}

static enum err posix_rename(struct meta_fs *fs, const char *from, const char *to)
{
	return check(renameat(fs_of(fs)->dir, from, fs_of(fs)->dir, to));
}

static enum err posix_unlink(struct meta_fs *fs, const char *name)
{
	return check(unlinkat(fs_of(fs)->dir, name, 0));
}

static enum err posix_sync_dir(struct meta_fs *fs)
{
	return check(fsync(fs_of(fs)->dir));
}

static enum err posix_lock(struct meta_fs *fs, const char *name, struct meta_file **out,
			   struct why *why)
{
	char path[PATH_BYTES_MAX];
	int fd;
	enum err e = path_join(path, fs->where, name, why);
	if (e == ERR_NONE)
		e = path_lock(path, &fd, why);
	return e == ERR_NONE ? file_new(fs, fd, out) : e;
}

static void posix_free(struct meta_fs *fs)
{
	close(fs_of(fs)->dir);
	free(fs_of(fs));
}

static const struct meta_fs_ops posix_ops = {
	.open = posix_open,
	.close = posix_close,
	.size = posix_size,
	.read = posix_read,
	.write = posix_write,
	.sync = posix_sync,
	.rename = posix_rename,
	.unlink = posix_unlink,
	.sync_dir = posix_sync_dir,
	.lock = posix_lock,
	.free = posix_free,
};

enum err meta_fs_posix_new(const char *dir, struct meta_fs **out, struct why *why)
{
	struct posix_fs *p = calloc(1, sizeof(*p));
	if (!p)
		return ERR_NO_MEMORY;
	int n = snprintf(p->where, sizeof(p->where), "%s", dir);
	p->fs = (struct meta_fs){ .ops = &posix_ops, .where = p->where };
	p->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->dir < 0 || n < 0 || (size_t)n >= sizeof(p->where)) {
		enum err e = p->dir < 0 ? err_from_errno(errno) : ERR_INVALID_PARAMS;
		why_set(why, e, "cannot open the folder %s of the meta store: %s", dir,
			p->dir < 0 ? strerror(errno) : "the path is too long");
		if (p->dir >= 0)
			close(p->dir);
		free(p);
		return e;
	}
	*out = &p->fs;
	return ERR_NONE;
}
