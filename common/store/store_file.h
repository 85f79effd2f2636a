/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file backend's inside: store_file.c (all but the start), store_file_start.c. Internal to common/store.
 */
#pragma once

#include <pthread.h>

#include "store/logrec.h"
#include "store/store_blk.h"
#include "store/store_ix.h"

#define NAME_MAX_BYTES 160
#define FILE_SALT      0x656c6966ull /* heads of files: one constant, R1 does not matter here */
#define QUARANTINE     "quarantine"

struct file_be {
	struct store_blk blk;
	struct disk_fs *fs;
	struct log *log;
	struct disk_file *lock_file;
	enum store_fsync fsync;
	enum store_order order;
	uint64_t limit, limit_objects;
	uint32_t high_pct, low_pct;
	uint64_t owner_hash;
	uint64_t *vector; /* scratch of the writer */
	uint64_t cap_vector;
	bool root_doubt, doubt[256]; /* folders below may not be durable: the writer's */

	pthread_mutex_t lock;
	struct ix ix;
	struct list order_list; /* ix_entry.in_where: first out first */
	uint64_t used;
	uint64_t n_made; /* generation of entries, in their `where` */
	struct store_stat n;
	bool draining;
};

/* AA/BB/OWNER-HASH-VERSION and what follows it. */
void file_name(const struct file_be *f, const struct store_id *id, const char *end,
	       char out[NAME_MAX_BYTES]);
/* The place that heads of this owner's files name. */
static inline struct logrec_place file_head_place(const struct file_be *f)
{
	return (struct logrec_place){ f->owner_hash ? f->owner_hash : 1, 0 };
}
/* Reads what the folder holds into the index. */
enum err file_start(struct file_be *f, struct blk_lane *lane, struct why *why) MUST_CHECK;
