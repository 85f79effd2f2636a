/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log backend's inside (docs/decisions/0038): segments, the batch being written, what is pending.
 * Files: store_log.c (open, close, stat, get), store_log_write.c (put, delete, commit), store_log_seg.c
 * (segments' files), store_log_recover.c (start), store_log_reclaim.c (pick, reclaim). Bytes: logrec.h.
 *
 * G1: nothing is acknowledged before its record is synced (policy) and its segment's name is.
 * G2: a record is dead from a delete record that names its place; a delete record lives as long as the
 *     segment that it names (carried along by reclaims). Serials are never used again while a delete record
 *     names them.
 * G3: places whose records may be on the medium though nobody was told so (failed writes, older twins) are
 *     kills: they get delete records before, or with, the next acknowledgement of a delete.
 * G4: a segment with a failed write or sync is bad: nothing is written to it again; what was acknowledged
 *     before stays readable.
 * G5: a segment leaves the table after its name is durably gone, its memory after the last reader.
 * G6: only the writer appends, drops segments and follows entries over time; readers mark (busy, gone).
 *
 * Lock: index, segments, counters. The writer reads what only it changes without it.
 * Internal to common/store.
 */
#pragma once

#include <pthread.h>

#include "store/logrec.h"
#include "store/store_blk.h"
#include "store/store_ix.h"

enum seg_state {
	SEG_ACTIVE, /* being written; one at most */
	SEG_SEALED,
	SEG_BAD,    /* G4 */
	SEG_ZOMBIE, /* unlinked, but that may not be durable: still in the table (G5) */
};

struct log_seg {
	struct list node; /* of the table, serial rising */
	uint64_t serial, salt;
	struct disk_file *file;
	enum seg_state state;
	uint64_t end;	       /* where records end */
	uint64_t room;	       /* bytes that were allocated */
	uint64_t real;	       /* blocks it takes */
	uint64_t footer_bytes; /* of all its records, at most */
	uint64_t live_bytes, n_live;
	struct list entries;
	struct logrec_place *dels;
	uint32_t n_dels, cap_dels;
	uint64_t used_tick;
	uint32_t pins; /* readers */
	bool doomed;   /* off the table: freed with the last pin */
	bool lost;     /* its file is gone */
	bool sick;     /* parts of it could not be read at the start: never compacted */
};

/* What the next commit decides. */
enum pend_kind { PEND_PUT, PEND_DEL, PEND_MOVE, PEND_PLACE };
struct pend {
	enum pend_kind kind;
	struct ix_entry *e;	    /* PUT: hidden; DEL, MOVE: busy */
	struct logrec_place place;  /* PUT, MOVE: the new record; DEL, PLACE: the dead one */
	struct store_put_item *put; /* PUT */
	struct store_del_item *del; /* DEL */
};

/* The stream of bytes into the active segment. */
#define OUT_REQS 64u
struct log_out {
	struct blk_lane *lane;
	struct log_seg *seg;
	uint64_t at; /* of the next byte */
	int piece;   /* being filled; -1: none */
	uint32_t fill;
	uint32_t pieces; /* bit set: free */
	struct out_req {
		struct disk_req req;
		struct log_out *out;
		struct out_req *next;
		int piece;
	} reqs[OUT_REQS];
	struct out_req *idle;
	enum err err; /* the first */
};

struct log_be {
	struct store_blk blk;
	struct disk_fs *fs;
	struct log *log;
	struct disk_file *lock_file;
	enum store_fsync fsync;
	enum store_order order;
	bool direct;
	uint64_t limit, limit_objects, seg_bytes;
	uint32_t high_pct, low_pct;
	uint64_t salt_seed;

	pthread_mutex_t lock;
	struct ix ix;
	struct list segs;
	uint64_t next_serial, tick;
	uint64_t used;	     /* real bytes of all segments of the table */
	uint64_t foreign;    /* of files that look like segments and are not ours */
	struct store_stat n; /* counters */
	struct logrec_place *kills;
	uint32_t n_kills, cap_kills;
	bool draining, tidy;
	bool no_moves; /* the last reclaim found no room to move into */
	bool broken;
	char broken_why[160];

	/* the writer's */
	struct log_seg *active;
	struct log_out out;
	struct pend *pend;
	uint32_t n_pend, cap_pend;
	uint64_t *vector; /* scratch */
	uint64_t cap_vector;
};

enum log_purpose {
	FOR_PUTS,
	FOR_REST
}; /* rest: deletes and moves, which may use the reserve */

static inline struct log_be *log_of(struct store_blk *b)
{
	return container_of(b, struct log_be, blk);
}
#define LOG_SEG_NAME_MAX 32
void log_seg_name(uint64_t serial, char name[LOG_SEG_NAME_MAX]);

/* store_log.c */
/* Under the lock. NULL: no such segment. */
struct log_seg *log_seg_find(struct log_be *lg, uint64_t serial);
void log_seg_free(struct log_seg *s);
/* Under the lock: counts again what the segment takes. */
void log_seg_count(struct log_be *lg, struct log_seg *s);
/* Under the lock; e is not busy. Accounts and frees. */
void log_drop(struct log_be *lg, struct ix_entry *e);
/* Under the lock. */
void log_kill(struct log_be *lg, struct logrec_place p);
/* Under the lock: what wants() will say. */
void log_look(struct log_be *lg);
void log_break(struct log_be *lg, const char *what, enum err e);
/* The bytes of an entry are bad. */
void log_quarantine(struct log_be *lg, const struct store_id *id, struct logrec_place at,
		    bool lost);

/* store_log_write.c */
void log_put(struct store_blk *b, struct blk_lane *lane, struct store_put *r);
void log_del(struct store_blk *b, struct blk_lane *lane, struct store_del *r);
void log_out_init(struct log_out *o, struct blk_lane *lane);
/* All of it is with the kernel and back. */
enum err log_out_wait(struct log_out *o);
/* Under the lock. */
void log_make_bad(struct log_be *lg, struct log_seg *s, enum err e);

/* store_log_seg.c */
/* Bytes of a segment whose records end at `end`, with one more and a footer of so many. */
uint64_t log_seg_need(uint64_t end, uint64_t length, uint64_t footer);
/* Space for a record in the active segment, which may become another one (what was pending is committed
 * then). ERR_BUSY: no room within the limit; ERR_NO_SPACE: nor in the file system; others: the medium. */
enum err log_room(struct log_be *lg, uint64_t length, uint64_t entry_bytes,
		  enum log_purpose why) MUST_CHECK;
enum err log_pend(struct log_be *lg, const struct pend *p) MUST_CHECK;
/* Head and tail around a value; between them the value goes through log_out_bytes or log_out_place. */
struct logrec_place log_record_begin(struct log_be *lg, const struct logrec_head *h);
void log_record_end(struct log_be *lg, uint64_t size, const uint64_t *vector);
void log_out_bytes(struct log_out *o, const void *p, size_t n);
/* Room for n bytes (at most 1 MiB, at a block's border) in a piece; log_out_advance says how many came. */
uint8_t *log_out_place(struct log_out *o, uint32_t n);
void log_out_advance(struct log_out *o, uint32_t n);
/* Flushes and goes on at `at` of the segment. */
void log_out_seek(struct log_out *o, uint64_t at);
/* Delete records for places, pending as kind PEND_PLACE. */
enum err log_write_dels(struct log_be *lg, const struct logrec_place *p, uint32_t n) MUST_CHECK;
/* What is pending becomes true, or fails as one. ERR_IO: the segment is bad now. */
enum err log_commit(struct log_be *lg);
bool log_may_write(struct log_be *lg);
/* All kills become delete records, pending. */
enum err log_write_kills(struct log_be *lg) MUST_CHECK;
/* Ends the active segment, if there is one. */
enum err log_seal(struct log_be *lg);
/* Footer, trailer, sync of a segment whose records are all synced. */
enum err log_write_footer(struct log_be *lg, struct blk_lane *lane, struct log_seg *s)
	MUST_CHECK;

/* store_log_recover.c */
enum err log_recover(struct log_be *lg, struct blk_lane *lane, struct why *w) MUST_CHECK;

/* store_log_reclaim.c */
enum err log_pick(struct store_blk *b, struct blk_lane *lane, bool starved,
		  struct store_eviction **out);
enum err log_reclaim(struct store_blk *b, struct blk_lane *lane, struct store_eviction *ev);
/* Unlinks it for good, its entries with it; leaves a zombie when that is not sure. */
enum err log_remove_seg(struct log_be *lg, struct log_seg *s);
