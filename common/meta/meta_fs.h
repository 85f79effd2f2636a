/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few file operations under the meta store, so that a test can be the disk: one folder,
 * names in it, blocking calls. meta_fs_posix.c is the machine's; tests/support/meta_fs_fault.h
 * one whose power can be cut; tests/support/meta_fs_sim.h the simulator's.
 *
 * What the store relies on: bytes are durable once sync() said so, names once sync_dir() did;
 * what was written and not synced may be there, or not, in pieces of 512 bytes, in any order; a
 * byte past what was synced may be anything. Nothing else.
 *
 * Errors: ERR_NO_SPACE, ERR_NOT_FOUND, ERR_EXISTS, ERR_FORBIDDEN, ERR_IO, ERR_NO_MEMORY.
 * Thread: a worker's, two at a time on different files; names any.
 */
#pragma once

#include "base/err.h"

struct meta_fs;

/* An open file; engines embed it. */
struct meta_file {
	struct meta_fs *fs;
};

struct meta_fs_ops {
	/* create: makes it, 0600; ERR_EXISTS when it is there. Else for reading and writing. */
	enum err (*open)(struct meta_fs *fs, const char *name, bool create,
			 struct meta_file **out);
	void (*close)(struct meta_file *f);
	enum err (*size)(struct meta_file *f, uint64_t *out);
	/* *got < n only at the end of the file. */
	enum err (*read)(struct meta_file *f, void *p, size_t n, uint64_t off, size_t *got);
	/* All of it, or an error, after which any part of it may be there. */
	enum err (*write)(struct meta_file *f, const void *p, size_t n, uint64_t off);
	enum err (*sync)(struct meta_file *f);
	enum err (*rename)(struct meta_fs *fs, const char *from, const char *to);
	enum err (*unlink)(struct meta_fs *fs, const char *name);
	enum err (*sync_dir)(struct meta_fs *fs);
	/* Exclusive until the file it gives is closed. ERR_DIRECTORY_IN_USE; why says who holds
	 * what. */
	enum err (*lock)(struct meta_fs *fs, const char *name, struct meta_file **out,
			 struct why *why);
	void (*free)(struct meta_fs *fs);
};

struct meta_fs {
	const struct meta_fs_ops *ops;
	const char *where; /* for texts: the folder */
};

/* The folder dir of this machine, which must exist. owned, meta_fs_free(). */
enum err meta_fs_posix_new(const char *dir, struct meta_fs **out, struct why *why) MUST_CHECK;
static inline void meta_fs_free(struct meta_fs *fs)
{
	if (fs)
		fs->ops->free(fs);
}
static inline void meta_file_close(struct meta_file *f)
{
	if (f)
		f->fs->ops->close(f);
}
