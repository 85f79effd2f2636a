/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meta store (T1): the few durable facts that no holder can know. One writer, a log of
 * records, and the state they make (meta_state.h). Asynchronous, so that a file's fsync (0.5-7
 * ms) and, later, etcd both fit. Engines: meta_file.c (this one: DIR/NAME.{log,snap}), etcd.
 *
 *   append -> queue -> one write and one fsync for all that waits -> applied -> done
 *
 * I1: done with ERR_NONE: the records are durable and in the state. Any other error: they are
 *     in neither, and never will be; but for ERR_IO, after which the store is broken and what
 *     its last write did is known only after a restart.
 * I2: appends are applied in the order they were made; the records of one append together or
 *     not.
 * I3: compare-and-append: nothing is written unless the writer's term is the store's, and, when
 *     it says so, unless nothing was appended since it looked (fencing; etcd: the leader key's
 *     revision).
 * I4: after a failed fsync the store is broken: every later append fails, none is retried as if
 *     the first had never been (the kernel may have dropped the pages).
 * I5: one process at a time: an OFD lock on DIR/NAME.lock.
 * I6: the state given out is durable: nobody acts on what a power cut could take back.
 *
 * Format, crash table: docs/decisions/0002-meta-log.md. Thread: the loop's, everything.
 */
#pragma once

#include "base/list.h"
#include "base/log.h"
#include "loop/loop.h"
#include "meta/meta_state.h"

struct meta;
struct meta_fs; /* meta_fs.h */

struct meta_opts {
	const char *dir;  /* the data folder's meta/; must exist; copied */
	const char *name; /* "master" or "pg"; copied */
	struct meta_fs
		*fs; /* where the files are; borrowed for life. NULL: DIR on this machine */
	const struct log *log; /* borrowed for life */
	struct meta_limits limits;
	uint64_t log_bytes_max;	  /* above it a snapshot is made; 64 MiB */
	uint64_t queue_bytes_max; /* appends waiting; more are ERR_BUSY; 16 MiB */
	uint32_t chunk_bytes;	  /* the log grows by this; multiple of 4,096; 1 MiB */
	/* Opened, or not: e and why. Runs once, never inside meta_open; after an error:
	 * meta_close. */
	void (*opened)(void *ctx, enum err e, const struct why *why);
	/* It broke (I4). Once; may be NULL. The service should end: a restart reads what is
	 * there. */
	void (*broken)(void *ctx, const struct why *why);
	void *ctx;
};

/*
 * Begins to open. out: owned, meta_close().
 *
 * opened gets:
 * ERR_DIRECTORY_IN_USE   another process has it
 * ERR_CORRUPT            bytes that were acknowledged are damaged or missing; why says where,
 *                        and what to do
 * ERR_VERSION_MISMATCH   written by a newer release
 * ERR_NO_SPACE, ERR_FORBIDDEN, ERR_IO, ERR_NO_MEMORY
 */
enum err meta_open(struct loop *l, const struct meta_opts *o, struct meta **out) MUST_CHECK;
/* What is waiting is still written; then closed runs, later, and m is free. */
void meta_close(struct meta *m, void (*closed)(void *arg), void *arg);

/* NULL until opened said ERR_NONE. borrowed; changes only before a done callback. */
const struct meta_state *meta_state_of(const struct meta *m);

#define META_ANY UINT64_MAX

/* One append, in the caller's memory until done. */
struct meta_append {
	uint64_t term;	 /* the writer's; META_ANY for a TERM record alone */
	uint64_t if_seq; /* what meta_last_seq() must be when it is written, or META_ANY */
	void (*done)(struct meta_append *a);
	/* results, set before done */
	enum err err; /* I1; or ERR_CONFLICT, ERR_NOT_FOUND of a record without effect */
	uint64_t seq; /* of its last record; 0 when nothing was written */
	struct why why;
	/* private */
	struct list node;
	struct buf recs;
	uint32_t n_recs;
	struct post post;
};

/*
 * Appends n records (1..META_RECS_MAX, META_BYTES_MAX of them in all); recs and all they point
 * to are borrowed for the call. done always runs, later, never inside this call.
 *
 * err:
 * ERR_INVALID_PARAMS   a record is not sound; why names the field
 * ERR_CONFLICT         I3, or a record had no effect (is it in the log all the same? seq says)
 * ERR_NOT_FOUND        for a holder, claim or view that is not there
 * ERR_TOO_LARGE        a limit of struct meta_limits, or the append itself
 * ERR_BUSY             queue_bytes_max
 * ERR_NO_SPACE         the file system is full: nothing was written; later ones may fit
 * ERR_IO               broken (I4)
 * ERR_CLOSED           after meta_close
 */
void meta_append(struct meta *m, struct meta_append *a, const struct meta_rec *recs, size_t n);
#define META_RECS_MAX  4096
#define META_BYTES_MAX (2u << 20)

/* A TERM record of the present term + 1: a leader begins. a->done as above; then meta_term().
 */
void meta_raise_term(struct meta *m, struct meta_append *a);

struct meta_counters {
	uint64_t appends, records, refused; /* done with and without ERR_NONE */
	uint64_t writes, bytes_written;	    /* one write and fsync each */
	uint64_t snapshots, snapshots_failed;
	uint64_t log_bytes, snap_bytes, queue_bytes;
	bool broken;
};
void meta_counters(const struct meta *m, struct meta_counters *out);
