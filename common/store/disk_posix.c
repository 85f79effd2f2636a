/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder of this machine. Lanes over io_uring where that works, else pread and pwrite in submit.
 *
 * Lock: the list of lanes, which closing a file walks.
 */
#include "store/disk_priv.h"

#include "base/list.h"
#include "base/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FILES_WANTED 65536

struct posix_fs {
	struct disk_fs fs;
	int dir;
	_Atomic uint64_t next_serial;
	pthread_mutex_t lock;
	struct list lanes;
	char where[PATH_BYTES_MAX];
};

struct posix_lane {
	struct disk_lane lane;
	struct disk_ring *ring; /* NULL: pread and pwrite */
	struct list node;
	struct disk_req *first, **last; /* done, not told yet */
};

static struct posix_fs *fs_of(struct disk_fs *fs)
{
	return container_of(fs, struct posix_fs, fs);
}

static struct disk_posix_file *file_of(struct disk_file *f)
{
	return container_of(f, struct disk_posix_file, file);
}

static enum err check(int r)
{
	return r < 0 ? err_from_errno(errno) : ERR_NONE;
}

static enum err file_new(struct disk_fs *fs, int fd, bool direct, struct disk_file **out)
{
	struct disk_posix_file *f = calloc(1, sizeof(*f));
	if (!f) {
		close(fd);
		return ERR_NO_MEMORY;
	}
	f->file.fs = fs;
	f->fd = fd;
	f->file.direct = direct;
	f->serial = atomic_fetch_add(&fs_of(fs)->next_serial, 1) + 1;
	*out = &f->file;
	return ERR_NONE;
}

static int open_fd(struct posix_fs *p, const char *name, unsigned flags, bool direct)
{
	int how = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0);
	return openat(p->dir, name, how | (flags & DISK_CREATE ? O_CREAT | O_EXCL : 0), 0600);
}

static enum err posix_open(struct disk_fs *fs, const char *name, unsigned flags,
			   struct disk_file **out)
{
	struct stat st;
	bool direct = flags & DISK_DIRECT;
	int fd = open_fd(fs_of(fs), name, flags, direct);
	if (fd < 0 && errno == EINVAL && direct) {
		/* this file system has no O_DIRECT; it may have made the file all the same */
		direct = false;
		fd = open_fd(fs_of(fs), name, flags & ~(unsigned)DISK_CREATE, false);
		if (fd < 0 && errno == ENOENT && (flags & DISK_CREATE))
			fd = open_fd(fs_of(fs), name, flags, false);
	}
	if (fd < 0)
		return err_from_errno(errno);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return ERR_FORBIDDEN;
	}
	return file_new(fs, fd, direct, out);
}

static void posix_close(struct disk_file *f)
{
	struct posix_fs *p = fs_of(f->fs);
	pthread_mutex_lock(&p->lock);
	list_for_each (n, &p->lanes) {
		struct posix_lane *l = list_entry(n, struct posix_lane, node);
		if (l->ring)
			disk_ring_forget(l->ring, file_of(f)->serial);
	}
	pthread_mutex_unlock(&p->lock);
	close(file_of(f)->fd);
	free(file_of(f));
}

static enum err posix_stat(struct disk_file *f, struct disk_stat *out)
{
	struct stat st;
	if (fstat(file_of(f)->fd, &st))
		return err_from_errno(errno);
	*out = (struct disk_stat){ .size = (uint64_t)st.st_size,
				   .real = (uint64_t)st.st_blocks * 512,
				   .links = (uint32_t)st.st_nlink };
	return ERR_NONE;
}

static enum err posix_truncate(struct disk_file *f, uint64_t size)
{
	return check(ftruncate(file_of(f)->fd, (off_t)size));
}

/* A file system without fallocate takes blocks as they are written. */
static enum err posix_allocate(struct disk_file *f, uint64_t n)
{
	int r;
	do
		r = fallocate(file_of(f)->fd, 0, 0, (off_t)n);
	while (r < 0 && errno == EINTR);
	if (r < 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
		return posix_truncate(f, n);
	return check(r);
}

/* Not retried: what a second one says about the first's pages is nothing. */
static enum err posix_sync(struct disk_file *f)
{
	return check(fdatasync(file_of(f)->fd));
}

static void posix_forget(struct disk_file *f)
{
	(void)!posix_fadvise(file_of(f)->fd, 0, 0, POSIX_FADV_DONTNEED);
}

static enum err posix_rename(struct disk_fs *fs, const char *from, const char *to)
{
	return check(renameat(fs_of(fs)->dir, from, fs_of(fs)->dir, to));
}

static enum err posix_unlink(struct disk_fs *fs, const char *name)
{
	return check(unlinkat(fs_of(fs)->dir, name, 0));
}

static enum err posix_mkdir(struct disk_fs *fs, const char *name)
{
	return check(mkdirat(fs_of(fs)->dir, name, 0700));
}

static int open_dir(struct disk_fs *fs, const char *name)
{
	return openat(fs_of(fs)->dir, name[0] ? name : ".",
		      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static enum err posix_sync_dir(struct disk_fs *fs, const char *name)
{
	int fd = open_dir(fs, name);
	if (fd < 0)
		return err_from_errno(errno);
	enum err e = check(fsync(fd));
	close(fd);
	return e;
}

static enum err posix_sync_all(struct disk_fs *fs)
{
	return check(syncfs(fs_of(fs)->dir));
}

static enum err posix_list(struct disk_fs *fs, const char *name,
			   void (*fn)(void *arg, const char *name, bool is_dir), void *arg)
{
	int fd = open_dir(fs, name);
	if (fd < 0)
		return err_from_errno(errno);
	DIR *d = fdopendir(fd);
	if (!d) {
		close(fd);
		return ERR_NO_MEMORY;
	}
	struct dirent *e;
	errno = 0;
	while ((e = readdir(d))) {
		bool dots = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
		bool is_dir = e->d_type == DT_DIR;
		struct stat st;
		if (e->d_type == DT_UNKNOWN)
			is_dir = fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
				 S_ISDIR(st.st_mode);
		if (!dots)
			fn(arg, e->d_name, is_dir);
		errno = 0;
	}
	enum err r = errno ? err_from_errno(errno) : ERR_NONE;
	closedir(d);
	return r;
}

static enum err posix_space(struct disk_fs *fs, uint64_t *free_bytes)
{
	struct statvfs v;
	if (fstatvfs(fs_of(fs)->dir, &v))
		return err_from_errno(errno);
	*free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
	return ERR_NONE;
}

static enum err posix_lock(struct disk_fs *fs, const char *name, struct disk_file **out,
			   struct why *w)
{
	char path[PATH_BYTES_MAX];
	int fd;
	enum err e = path_join(path, fs->where, name, w);
	if (e == ERR_NONE)
		e = path_lock(path, &fd, w);
	return e == ERR_NONE ? file_new(fs, fd, false, out) : e;
}

static void posix_free(struct disk_fs *fs)
{
	struct posix_fs *p = fs_of(fs);
	assert(list_empty(&p->lanes));
	pthread_mutex_destroy(&p->lock);
	close(p->dir);
	free(p);
}

/* ---- lanes ---- */

static struct posix_lane *lane_of(struct disk_lane *l)
{
	return container_of(l, struct posix_lane, lane);
}

static enum err posix_lane_new(struct disk_fs *fs, const struct disk_lane_opts *o,
			       struct disk_lane **out)
{
	struct posix_lane *l = calloc(1, sizeof(*l));
	if (!l)
		return ERR_NO_MEMORY;
	l->lane.fs = fs;
	l->last = &l->first;
	l->lane.uring = o->uring && disk_ring_new(o, &l->ring) == ERR_NONE;
	pthread_mutex_lock(&fs_of(fs)->lock);
	list_push_back(&fs_of(fs)->lanes, &l->node);
	pthread_mutex_unlock(&fs_of(fs)->lock);
	*out = &l->lane;
	return ERR_NONE;
}

static void posix_lane_free(struct disk_lane *lane)
{
	struct posix_lane *l = lane_of(lane);
	assert(lane->in_flight == 0);
	pthread_mutex_lock(&fs_of(lane->fs)->lock);
	list_del(&l->node);
	pthread_mutex_unlock(&fs_of(lane->fs)->lock);
	disk_ring_free(l->ring);
	free(l);
}

static void move_bytes(struct disk_req *q)
{
	int fd = file_of(q->file)->fd;
	while (q->got < q->n) {
		uint8_t *p = (uint8_t *)q->p + q->got;
		size_t n = q->n - q->got;
		off_t off = (off_t)(q->off + q->got);
		ssize_t r = q->write ? pwrite(fd, p, n, off) : pread(fd, p, n, off);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0 || (r == 0 && q->write))
			q->err = r < 0 ? err_from_errno(errno) : ERR_NO_SPACE;
		if (r <= 0)
			return;
		q->got += (uint32_t)r;
		if (q->file->direct && q->got % DISK_ALIGN != 0)
			return; /* the end of the file */
	}
}

static void posix_submit(struct disk_lane *lane, struct disk_req *q)
{
	struct posix_lane *l = lane_of(lane);
	if (l->ring) {
		lane->in_flight = disk_ring_submit(l->ring, q);
		return;
	}
	q->err = ERR_NONE;
	q->got = 0;
	q->next = NULL;
	move_bytes(q);
	*l->last = q;
	l->last = &q->next;
	lane->in_flight++;
}

static void posix_reap(struct disk_lane *lane, uint32_t left)
{
	struct posix_lane *l = lane_of(lane);
	if (l->ring) {
		lane->in_flight = disk_ring_reap(l->ring, left);
		return;
	}
	while (l->first) { /* all of it: done already */
		struct disk_req *q = l->first;
		l->first = q->next;
		if (!l->first)
			l->last = &l->first;
		lane->in_flight--;
		if (q->done)
			q->done(q);
	}
}

static const struct disk_fs_ops posix_ops = {
	.open = posix_open,
	.close = posix_close,
	.stat = posix_stat,
	.truncate = posix_truncate,
	.allocate = posix_allocate,
	.sync = posix_sync,
	.forget = posix_forget,
	.rename = posix_rename,
	.unlink = posix_unlink,
	.mkdir = posix_mkdir,
	.sync_dir = posix_sync_dir,
	.sync_all = posix_sync_all,
	.list = posix_list,
	.space = posix_space,
	.lock = posix_lock,
	.lane_new = posix_lane_new,
	.lane_free = posix_lane_free,
	.submit = posix_submit,
	.reap = posix_reap,
	.free = posix_free,
};

/* A tier of 2 TiB has 8,192 segments, each an open file; the usual soft limit is 1,024. */
static void allow_files(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= FILES_WANTED)
		return;
	r.rlim_cur = MIN_OF(r.rlim_max, (rlim_t)FILES_WANTED);
	(void)!setrlimit(RLIMIT_NOFILE, &r);
}

enum err disk_posix_new(const char *dir, struct disk_fs **out, struct why *w)
{
	if (dir[0] != '/' || strlen(dir) >= PATH_BYTES_MAX)
		return why_set(
			w, ERR_INVALID_PARAMS,
			"the folder of the disk tier must be an absolute path, at most %d bytes",
			PATH_BYTES_MAX - 1);
	struct posix_fs *p = calloc(1, sizeof(*p));
	if (!p)
		return why_set(w, ERR_NO_MEMORY, "disk tier: no memory left");
	snprintf(p->where, sizeof(p->where), "%s", dir);
	p->fs = (struct disk_fs){ .ops = &posix_ops, .where = p->where };
	enum err e = path_open_dir_strict(dir, &p->dir, w);
	if (e) {
		free(p);
		return e;
	}
	allow_files();
	pthread_mutex_init(&p->lock, NULL);
	list_init(&p->lanes);
	*out = &p->fs;
	return ERR_NONE;
}

/* ---- for all engines ---- */

static enum err one(struct disk_lane *lane, struct disk_req *q)
{
	assert(lane->in_flight == 0);
	disk_submit(lane, q);
	disk_reap(lane, 0);
	return q->err == ERR_NONE && q->got < q->n ? ERR_CORRUPT : q->err;
}

enum err disk_read(struct disk_lane *lane, struct disk_file *f, void *p, uint32_t n,
		   uint64_t off)
{
	struct disk_req q = { .file = f, .p = p, .n = n, .off = off };
	return one(lane, &q);
}

enum err disk_write(struct disk_lane *lane, struct disk_file *f, const void *p, uint32_t n,
		    uint64_t off)
{
	struct disk_req q = {
		.file = f, .p = (void *)(uintptr_t)p, .n = n, .off = off, .write = true
	};
	return one(lane, &q);
}
