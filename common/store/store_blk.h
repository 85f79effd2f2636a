/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend whose calls block: what a backend of files writes, and store_pool.c makes an asynchronous one
 * of (store.h), with one writer thread and some readers.
 *
 * W1: open, put, del, pick, reclaim, close run on the writer, one at a time; get on readers, several at a
 *     time and beside the writer; scan, has, stat, wants on any thread at any time, and are short (L4).
 * W2: a put item that found no room has ERR_BUSY and is not settled: the caller may bring it again after a
 *     reclaim. All others are settled.
 *
 * Internal to common/store.
 */
#pragma once

#include "store/disk.h"
#include "store/store.h"

struct store_blk {
	const struct store_blk_ops *ops;
	char owner[65];
};

/* One thread's means. */
struct blk_lane {
	struct disk_lane *io;
	uint8_t *
		bounce; /* BLK_BOUNCES pieces of BLK_BOUNCE bytes, each aligned to DISK_ALIGN */
	uint32_t depth;
};
#define BLK_BOUNCES 8u
#define BLK_BOUNCE  ((1u << 20) + 2 * DISK_ALIGN)

struct blk_opts {
	const struct store_opts *o; /* valid during open, but for log and buffers */
	struct disk_fs *fs;	    /* borrowed for life */
	uint64_t seed;		    /* random */
	char owner[65];		    /* for a new folder */
	bool direct;
};

enum blk_want {
	BLK_NOTHING,
	BLK_TIDY,     /* something may be reclaimed or written that costs nobody anything */
	BLK_PRESSURE, /* above a watermark */
};

struct store_blk_ops {
	enum err (*open)(const struct blk_opts *o, struct blk_lane *lane,
			 struct store_blk **out, struct why *w);
	/* What is open on the medium is ended in good order; failures are logged. */
	void (*close)(struct store_blk *b, struct blk_lane *lane);
	void (*put)(struct store_blk *b, struct blk_lane *lane, struct store_put *r);
	void (*get)(struct store_blk *b, struct blk_lane *lane, struct store_get *r);
	void (*del)(struct store_blk *b, struct blk_lane *lane, struct store_del *r);
	void (*has)(struct store_blk *b, struct store_has *r);
	void (*scan)(struct store_blk *b, struct store_scan *r);
	void (*stat)(struct store_blk *b, struct store_stat *out);
	enum store_health_state (*health)(struct store_blk *b, struct why *w);
	enum blk_want (*wants)(struct store_blk *b);
	/*
	 * What should go next. starved: a put found no room. *out NULL: nothing. Owned,
	 * blk_eviction_free(). n 0: nobody needs to be asked.
	 */
	enum err (*pick)(struct store_blk *b, struct blk_lane *lane, bool starved,
			 struct store_eviction **out);
	/* Deletes what pick named, but for what is kept. ERR_NONE: room was won. */
	enum err (*reclaim)(struct store_blk *b, struct blk_lane *lane,
			    struct store_eviction *ev);
};

extern const struct store_blk_ops store_log_blk, store_file_blk;

/* room for n items and their names. NULL: no memory. */
struct store_eviction *blk_eviction_new(uint32_t n, size_t names);
void blk_eviction_add(struct store_eviction *ev, const struct store_id *id, uint64_t size);
void blk_eviction_free(struct store_eviction *ev);

/* ---- the folder's marker (blk_marker.c) ---- */

struct blk_marker {
	char owner[65];
	char backend[16];
	uint64_t free_at_first; /* of the file system, when the folder was new */
};
/*
 * Locks the folder and reads its marker, or makes both. lock: owned, disk_close() ends it.
 *
 * want      owner id that must be, or NULL
 * propose   of a new folder
 *
 * ERR_DIRECTORY_IN_USE  another process, or another owner's
 * ERR_CONFLICT          another backend's folder
 * ERR_CORRUPT           the marker makes no sense (w says what to do)
 */
enum err blk_marker_take(struct disk_fs *fs, struct disk_lane *io, const char *backend,
			 const char *want, const char *propose, struct blk_marker *out,
			 struct disk_file **lock, struct why *w) MUST_CHECK;
#define BLK_MARKER_NAME "owner"
#define BLK_LOCK_NAME	"owner.lock"

/* 0: 90 % of what was free at first (spec/offload.md Capacity). */
uint64_t blk_limit(struct disk_fs *fs, const struct blk_marker *m, uint64_t wanted);

/* ---- verified reads (blk_read.c) ---- */

/* Where a value lies, as it was when the get began. */
struct blk_value {
	struct disk_file *file;
	uint64_t off; /* of the value's first byte; a multiple of DISK_ALIGN */
	uint64_t size, sum;
	const uint64_t *vector; /* NULL up to 1 MiB */
};
/* n ranges at once, as many ios in flight as the lane has. Sets err, got, size and sum of items whose err is ERR_NONE. */
void blk_read(struct blk_lane *lane, struct store_get_item **items, const struct blk_value *v,
	      uint32_t n);
/* Checks a range against a size; fills size and sum. */
enum err blk_range(struct store_get_item *it, uint64_t size, uint64_t sum, uint64_t *n)
	MUST_CHECK;
