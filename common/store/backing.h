/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a pool's files live (spec/store.md, Pool): a private folder on tmpfs or disk, or plain memory.
 * Memory is for the simulator, the model checker and the prefix tests: it outlives the mempool over
 * it, as the folder outlives the agent, so a simulated agent that was killed finds its pool again
 * (L3). Names are the files' own: super dir gen ctl data.N ses.ID.
 *
 * why: one line naming the file, what is wrong and the remedy; it may be NULL.
 * Thread: reserve: any; the rest the pool's owner (or one thread before there is one). They block.
 */
#pragma once

#include "base/path.h"

#define BACKING_NAME_MAX 24 /* with the NUL */

struct pool_backing;

struct pool_backing_ops {
	/* ERR_NOT_FOUND; ERR_FORBIDDEN: a link, no regular file, another user's, open to others. */
	enum err (*size)(struct pool_backing *b, const char *name, uint64_t *bytes,
			 struct why *why);
	/* A new file of zeros, sparse. ERR_EXISTS, ERR_NO_SPACE. */
	enum err (*create)(struct pool_backing *b, const char *name, uint64_t bytes,
			   struct why *why);
	/* In one step, over nothing: ERR_EXISTS; durable. */
	enum err (*rename)(struct pool_backing *b, const char *from, const char *to,
			   struct why *why);
	/* Absent is fine. Mappings and descriptors of it live on. */
	enum err (*remove)(struct pool_backing *b, const char *name, struct why *why);
	/* fn for each name, in no order, at most 65,536; fn may remove it. */
	enum err (*list)(struct pool_backing *b, void (*fn)(void *arg, const char *name),
			 void *arg, struct why *why);
	/* The whole file, shared, to read and write; MADV_DONTDUMP, MADV_DONTFORK. */
	enum err (*map)(struct pool_backing *b, const char *name, uint64_t bytes, void **out,
			struct why *why);
	void (*unmap)(struct pool_backing *b, void *p, uint64_t bytes);
	/* Drops our page table entries for a part of a mapping, for which the bytes are the file's. NULL: they
	 * are nowhere else. */
	void (*unload)(struct pool_backing *b, void *p, uint64_t bytes);
	/* From here on a touch of that range cannot fail for want of memory. ERR_NO_SPACE. */
	enum err (*reserve)(struct pool_backing *b, const char *name, uint64_t offset,
			    uint64_t bytes, struct why *why);
	/* The next run from `from` on that may hold anything but zeros; false: none. Reading a hole of
	 * a mapped file would fill it. */
	bool (*data)(struct pool_backing *b, const char *name, uint64_t from, uint64_t *start,
		     uint64_t *end);
	/* For super alone: whole pieces, then sync. */
	enum err (*read)(struct pool_backing *b, const char *name, uint64_t offset, void *p,
			 size_t n, struct why *why);
	enum err (*write)(struct pool_backing *b, const char *name, uint64_t offset,
			  const void *p, size_t n, struct why *why);
	enum err (*sync)(struct pool_backing *b, const char *name, struct why *why);
	/* One agent at a time. ERR_DIRECTORY_IN_USE. Ends with the process too. */
	enum err (*lock)(struct pool_backing *b, struct why *why);
	void (*unlock)(struct pool_backing *b);
	/*
	 * A session's lock (Local writers): taken on a description of its own, which is handed to the
	 * client and closed here; from then on it is free only when the client process has gone.
	 * fd: owned, -1 in memory.
	 */
	enum err (*session_lock)(struct pool_backing *b, const char *name, int *fd,
				 struct why *why);
	bool (*session_gone)(struct pool_backing *b, const char *name);
	/* A descriptor for a client, owned; -1 in memory. */
	enum err (*fd)(struct pool_backing *b, const char *name, bool write, int *fd,
		       struct why *why);
	void (*free)(struct pool_backing *b);
};

struct pool_backing {
	const struct pool_backing_ops *ops;
};

/* Does not touch what lies there. NULL is fine. */
static inline void pool_backing_free(struct pool_backing *b)
{
	if (b)
		b->ops->free(b);
}

/* ---- a folder ---- */

/*
 * Where the pool of a data folder is: pomelo-UID-HASH16 in `pool_dir` (the setting;
 * NULL or empty: in /dev/shm), HASH of the data folder's device and inode.
 *
 * ERR_NOT_FOUND  no such data folder (why)
 */
enum err pool_folder_name(const char *data_dir, const char *pool_dir, char out[PATH_BYTES_MAX],
			  struct why *why) MUST_CHECK;
/* Room for so many bytes beside what others have there? Its parent must exist. ERR_NO_SPACE (why: both figures). */
enum err pool_folder_fits(const char *dir, uint64_t bytes, struct why *why) MUST_CHECK;
/*
 * Makes the folder (0700) when it is not there; a link, another user's or an open one is refused.
 * All files are reached through its descriptor, with O_NOFOLLOW, new ones with O_EXCL.
 *
 * out  owned, pool_backing_free()
 */
enum err pool_folder_open(const char *dir, struct pool_backing **out, struct why *why)
	MUST_CHECK;

/* ---- memory ---- */

/* out: owned, pool_backing_free(); it must outlive every mempool and shmpool over it. */
enum err pool_memory_new(struct pool_backing **out) MUST_CHECK;
/* The same inside [p, p + n), borrowed: files are laid end to end at multiples of 64. For tests. */
enum err pool_memory_new_at(void *p, size_t n, struct pool_backing **out) MUST_CHECK;
/* The files of `like` (made by pool_memory_new_at) as they are in a copy of its memory at p. */
enum err pool_memory_new_like(const struct pool_backing *like, void *p,
			      struct pool_backing **out) MUST_CHECK;
/* The process that ran the pool has died: its lock is free. Mempools over it are only freed after. */
void pool_memory_killed(struct pool_backing *b);
/* A client's process has gone, or a shmpool was closed: that session's lock is free. */
void pool_memory_session_killed(struct pool_backing *b, uint32_t session);
