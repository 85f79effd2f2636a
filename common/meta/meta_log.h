/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meta store's files and what is done to them, blocking (docs/decisions/0002-meta-log.md):
 *
 *   NAME.lock      held while open
 *   NAME.log       the records since NAME.snap (or since NAME.log.old)
 *   NAME.log.old   the log before it, while a snapshot of it is being made
 *   NAME.snap      everything up to some record
 *   *.new          being written; worth nothing
 *
 * L1: a frame is written where zeros were synced before, then synced; the next comes after
 *     that. So behind the last acknowledged frame there is at most one unfinished frame.
 * L2: a write that failed for want of space was taken back, durably, before it is reported.
 * L3: any other failure once a frame was begun breaks the log: ERR_IO from then on (meta.h I4).
 * L4: a file gets its name when its bytes are synced, and names change one at a time, each
 *     followed by sync_dir, but for the unlink of what is no longer needed.
 *
 * Thread: meta_log_* one worker at a time; meta_log_compact another one, beside it.
 */
#pragma once

#include "meta/meta_frame.h"
#include "meta/meta_state.h"

struct meta_log;

struct meta_log_opts {
	struct meta_fs *fs;   /* borrowed for life */
	const char *name;     /* 1..32 characters; copied */
	uint32_t chunk_bytes; /* the log grows by this; multiple of 4,096, not 0 */
	uint8_t store[16];    /* id of the store, should it be made; random */
};

/*
 * Locks, reads everything into st (new and empty), makes the tail good: what is in st is
 * durable when this returns. A store that is not there is made.
 *
 * Errors: meta_open. On error st is of no use.
 */
enum err meta_log_open(const struct meta_log_opts *o, struct meta_state *st,
		       struct meta_log **out, struct why *why) MUST_CHECK;
void meta_log_close(struct meta_log *g);

/*
 * Appends one frame of n records (a payload of META_PAYLOAD_MAX at most), numbered from first
 * on, durably.
 *
 * ERR_NO_SPACE  L2
 * ERR_IO        L3, or broken already
 */
enum err meta_log_append(struct meta_log *g, uint64_t first, uint32_t n, struct bytes payload,
			 struct why *why) MUST_CHECK;

/*
 * The log becomes NAME.log.old, an empty one takes its place; for a log that has records, when
 * there is no NAME.log.old (asserted).
 *
 * ERR_NO_SPACE  nothing changed
 * ERR_IO        broken
 */
enum err meta_log_switch(struct meta_log *g, struct why *why) MUST_CHECK;

/* NAME.log.old is there: a snapshot is due. */
bool meta_log_has_old(const struct meta_log *g);
/* Bytes of records in the log, and of the last snapshot. */
uint64_t meta_log_bytes(const struct meta_log *g);
uint64_t meta_log_snap_bytes(const struct meta_log *g);

/* What meta_log_compact needs to know, taken from the log beforehand, by value. */
struct meta_compaction {
	struct meta_fs *fs;
	char name[33];
	uint8_t store[16];
	uint64_t seq;	     /* the last number of NAME.log.old */
	uint32_t chain;	     /* after it */
	uint64_t snap_bytes; /* result */
};
void meta_log_compaction(const struct meta_log *g, struct meta_compaction *out);
/*
 * NAME.snap and NAME.log.old become a new NAME.snap; NAME.log.old goes. Any error leaves both
 * as they were (or NAME.log.old beside a snapshot that holds it already), to be tried again.
 */
enum err meta_log_compact(struct meta_compaction *c, struct why *why) MUST_CHECK;
/* It succeeded; with the log's thread. */
void meta_log_compacted(struct meta_log *g, const struct meta_compaction *c);
