/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a store's files into a state, and writing a snapshot of one. For meta_log.c.
 * Thread: the caller's.
 */
#pragma once

#include "meta/meta_log.h"

struct recovery {
	struct meta_fs *fs;
	const char *name;
	struct meta_state *st; /* new and empty */
	struct why *why;
	/* results */
	bool have_snap, have_old, have_log;
	bool have_store;
	uint8_t store[16];
	uint64_t seq;	/* the last record read; also meta_last_seq(st) */
	uint32_t chain; /* after it */
	uint64_t snap_bytes;
	/* where the last log that was read ends (struct meta_reader's) */
	struct {
		struct meta_head head;
		uint64_t next; /* number of the record after its last */
		uint64_t sector, number, last_sector, durable;
		uint32_t chain;
		bool torn;
	} end;
};

#define META_NAME_BYTES 48

/* "NAME" + suffix into out. */
void meta_name(char out[META_NAME_BYTES], const char *name, const char *suffix);

/*
 * NAME.snap, NAME.log.old and, unless old_only, NAME.log. With old_only the old log must be
 * whole to its last acknowledged record: seq and chain say which.
 *
 * ERR_CORRUPT, ERR_VERSION_MISMATCH, ERR_IO, ERR_NO_MEMORY
 */
enum err recovery_run(struct recovery *r, const struct meta_compaction *old_only) MUST_CHECK;

/* NAME.snap becomes one of st. Errors leave the old one. */
enum err snapshot_write(struct meta_fs *fs, const char *name, const struct meta_state *st,
			const struct meta_head *head, uint64_t *bytes, struct why *why)
	MUST_CHECK;
