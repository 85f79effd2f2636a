/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few file operations under the backends of the durable tier, so that a test can be the disk: one
 * folder, names in it (with / for folders below), blocking calls, and lanes: one thread's reads and
 * writes with many in flight. disk_posix.c is the machine's, over io_uring (disk_uring.c) or
 * pread/pwrite, chosen when a lane is made; disk_cut.c one in memory whose power can be cut.
 *
 * What a backend may rely on: bytes are durable once sync said so, names once sync_dir of their folder
 * did; what was written and not synced may be there, or not, in pieces of 512 bytes, in any order; a byte
 * of a file past what was synced may be anything. After a failed sync nothing is known of what it was to
 * cover, and a later one that succeeds says nothing about it.
 *
 * Errors: ERR_NO_SPACE, ERR_NOT_FOUND, ERR_EXISTS, ERR_FORBIDDEN, ERR_IO, ERR_NO_MEMORY, ERR_BUSY.
 * Thread: any, several at a time; a lane belongs to one thread at a time.
 */
#pragma once

#include "base/err.h"

#define DISK_ALIGN 4096 /* of address, length and offset of a direct file's ios */

struct disk_fs;
struct disk_lane;

/* An open file; engines embed it. */
struct disk_file {
	struct disk_fs *fs;
	bool direct; /* past the page cache: ios are aligned (DISK_ALIGN) */
};

enum {
	DISK_CREATE = 1, /* made, 0600; ERR_EXISTS when it is there */
	DISK_DIRECT = 2, /* past the page cache where the file system can */
};

struct disk_stat {
	uint64_t size, real; /* bytes; real: blocks that it takes */
	uint32_t links;	     /* 0: its name is gone */
};

struct disk_req {
	struct disk_file *file;
	void *p;
	uint32_t n;
	bool write;
	uint64_t off;
	void (*done)(
		struct disk_req *r); /* inside disk_reap; may submit, r too; NULL is fine */
	/* results */
	enum err err;
	uint32_t got; /* less than n without an error: the end of the file */
	/* private */
	struct disk_req *next;
};

struct disk_lane_opts {
	uint32_t depth; /* ios in flight, 1..1024 */
	bool uring;	/* try io_uring */
	const struct bytes
		*buffers; /* areas whose pages may be held by the kernel; borrowed for life */
	uint32_t n_buffers;
};

struct disk_fs_ops {
	enum err (*open)(struct disk_fs *fs, const char *name, unsigned flags,
			 struct disk_file **out);
	void (*close)(struct disk_file *f);
	enum err (*stat)(struct disk_file *f, struct disk_stat *out);
	enum err (*truncate)(struct disk_file *f, uint64_t size);
	/* Blocks for the first n bytes, so that writes there need no more space. */
	enum err (*allocate)(struct disk_file *f, uint64_t n);
	enum err (*sync)(struct disk_file *f);
	/* What is cached and clean is read from the medium again. */
	void (*forget)(struct disk_file *f);
	enum err (*rename)(struct disk_fs *fs, const char *from, const char *to);
	enum err (*unlink)(struct disk_fs *fs, const char *name);
	enum err (*mkdir)(struct disk_fs *fs, const char *name); /* ERR_EXISTS */
	enum err (*sync_dir)(struct disk_fs *fs,
			     const char *name); /* "" is the folder itself */
	/* All names and bytes that are seen: for a start after a crash. */
	enum err (*sync_all)(struct disk_fs *fs);
	/* fn for each name in the folder, in no order; fn must not change it. is_dir: a folder. */
	enum err (*list)(struct disk_fs *fs, const char *name,
			 void (*fn)(void *arg, const char *name, bool is_dir), void *arg);
	/* Bytes that the file system has left for us. */
	enum err (*space)(struct disk_fs *fs, uint64_t *free_bytes);
	/* Exclusive until the file it gives is closed. ERR_DIRECTORY_IN_USE; w says which. */
	enum err (*lock)(struct disk_fs *fs, const char *name, struct disk_file **out,
			 struct why *w);
	enum err (*lane_new)(struct disk_fs *fs, const struct disk_lane_opts *o,
			     struct disk_lane **out);
	void (*lane_free)(struct disk_lane *lane); /* nothing in flight */
	/* r and its bytes are taken until done. Never fails: results tell. At depth it reaps. */
	void (*submit)(struct disk_lane *lane, struct disk_req *r);
	/* Runs done of what ended, waiting until at most `left` are in flight. */
	void (*reap)(struct disk_lane *lane, uint32_t left);
	void (*free)(struct disk_fs *fs);
};

struct disk_fs {
	const struct disk_fs_ops *ops;
	const char *where; /* for texts: the folder */
};

/* Engines embed it. */
struct disk_lane {
	struct disk_fs *fs;
	uint32_t in_flight;
	bool uring;
};

/* The folder dir: absolute, no symbolic link on the way (openat2), its descriptor kept. owned,
 * disk_fs_free(). Raises the process's soft limit of open files as far as the hard one lets it. ERR_INVALID_PARAMS,
 * ERR_NOT_FOUND, ERR_FORBIDDEN (w). */
enum err disk_posix_new(const char *dir, struct disk_fs **out, struct why *w) MUST_CHECK;

static inline void disk_fs_free(struct disk_fs *fs)
{
	if (fs)
		fs->ops->free(fs);
}
static inline void disk_close(struct disk_file *f)
{
	if (f)
		f->fs->ops->close(f);
}
static inline void disk_submit(struct disk_lane *lane, struct disk_req *r)
{
	lane->fs->ops->submit(lane, r);
}
static inline void disk_reap(struct disk_lane *lane, uint32_t left)
{
	lane->fs->ops->reap(lane, left);
}
static inline void disk_lane_free(struct disk_lane *lane)
{
	if (lane)
		lane->fs->ops->lane_free(lane);
}
/* One at a time. ERR_CORRUPT: the file ends before. Nothing else may be in flight on the lane. */
enum err disk_read(struct disk_lane *lane, struct disk_file *f, void *p, uint32_t n,
		   uint64_t off) MUST_CHECK;
enum err disk_write(struct disk_lane *lane, struct disk_file *f, const void *p, uint32_t n,
		    uint64_t off) MUST_CHECK;
