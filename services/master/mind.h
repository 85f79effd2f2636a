/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's mind: objects, versions, attempts, holders, leases, tombstones and space; T1, T2, T3 and
 * the mends V1-V15 (spec/store.md, notes/model-check). Pure: it is told what happened and the time, and
 * says what is to be done through `struct mind_out`. The service brings messages and durability; the
 * model checker runs exactly this code.
 *
 *   calls of clients and holders ──┐                 ┌─> command(holder, ...)    to be sent
 *   answers of holders             ├─> mind_X(...) ──┼─> append(records)         to the meta store
 *   meta store: durable, time      ┘                 └─> done(call)              an answer is there
 *
 * I1: a version is served only after T2's third step (T2, V6); a remove ends only when T3 holds.
 * I2: an acknowledgement waits for holders that are `in` and not merged (V8), and for tombstones of
 *     those away (V7).
 * I3: an extent is allocated only after the holder is adopted and its whole inventory is merged, and
 *     never while a slot, a writing range or an open attempt has it (T6).
 * I4: gauges equal a recount (C3).
 * G1..G4: an object group's members are found and evicted together (mind_group.c).
 * I5: index memory is bounded: at most 200 bytes an object beside its key; limits answer BUSY (B1).
 * V13: an unfinished copy, wherever it is made, is known here, and T2 and T3 wait for its end (mind_copy.c).
 * I6: no scan longer than 2 ms: inventories, evictions and sweeps are sliced; mind_work() goes on (L4).
 *
 * Commands are idempotent and by value: one may be lost, doubled or late; mind_resend() says again
 * what a holder still owes. An answer that fits nothing changes nothing (V9, V15).
 *
 * Thread: its owner's.
 */
#pragma once

#include "base/list.h"
#include "meta/meta_state.h"
#include "store/object.h"

struct mind;

/* Bytes that a tenant's objects may take, in the allocator's measure; 0: no limit. */
struct mind_quota {
	struct bytes tenant;
	uint64_t memory, pinned;
};

enum mind_strategy { MIND_RANDOM, MIND_FREE_RATIO_FIRST, MIND_LOCAL_FIRST };

struct mind_limits {
	uint64_t index_bytes_max;	 /* 0: 16 GiB */
	uint32_t calls_max;		 /* calls that wait; 0: 65,536 */
	uint32_t clients_max;		 /* windows of closed attempts kept; 0: 65,536 */
	uint32_t lease_ms, lease_max_ms; /* 0: 10,000; 60,000 */
	uint32_t discard_ms;		 /* put_start_discard_ms; 0: 30,000 */
	uint32_t release_ms;		 /* put_start_release_ms; 0: 600,000 */
	uint32_t dead_ms; /* holder_dead_ms: holders not heard of since the start; 0: 30,000 */
	double low_reserve;	    /* 0: 0.02 */
	double quarantine_max;	    /* 0: 0.10 */
	double high_watermark;	    /* 0: 0.90 */
	double evict_ratio;	    /* 0: 0.05 */
	double pinned_max;	    /* share of the pool that hard pins may have; 0: 1 */
	uint32_t copies_per_holder; /* copies being made there at a time; 0: 64 */
	uint32_t tasks_max;	    /* queued, running and remembered; 0: 1,024 */
	uint32_t task_keep_ms;	    /* ended ones are remembered so long; 0: 3,600,000 */
	bool keep_soft; /* soft pins hold until they end, even when nothing else is left */
	enum mind_strategy strategy;	 /* of placement */
	struct bytes local_host;	 /* LOCAL_FIRST: its host id; borrowed for life */
	const struct mind_quota *quotas; /* borrowed for life */
	size_t n_quotas;
#ifdef POMELO_PLANT
	uint32_t mind_break; /* enum mind_break: rules left out, for the checker to find */
	const char
		*unknown_key; /* MIND_BREAK_UNKNOWN: of the first tenant; borrowed for life */
#endif
};

/* Whose reply it is. */
struct mind_under {
	uint32_t shard;
	uint64_t term, adoption, pool_epoch;
};

enum mind_op {
	MIND_ADOPT,
	MIND_INVENTORY,
	MIND_RETIRE,
	MIND_FREE,
	MIND_MARK,
	MIND_FENCE,
	MIND_COPY
};
struct mind_cmd {
	enum mind_op op;
	uint32_t holder; /* index, stable for this term */
	struct mind_under under;
	uint32_t slot;		   /* RETIRE, FREE, MARK */
	uint64_t generation;	   /* likewise; COPY, FENCE of a copy: its number */
	uint64_t version;	   /* RETIRE, MARK, FENCE, COPY (the rest: mind_copying) */
	enum retire_reason reason; /* RETIRE */
	uint64_t evict_id;
	uint64_t cursor;	      /* INVENTORY */
	const struct extent *extents; /* FENCE; borrowed for the call */
	size_t n_extents;
};

/* Records on their way to the meta store. */
struct mind_append {
	const struct meta_rec *recs;
	size_t n;
};

/* A request's item that may have to wait. In the caller's memory until done, which may run inside the
 * call that began it. */
struct mind_call {
	void (*done)(struct mind_call *c);
	/* results */
	enum err err;
	uint32_t retry_ms;
	uint32_t made; /* PUBLISH: copies that are readable */
	struct why why;
	/* private */
	struct list node;
	struct mind *mind;
	void *on;
	int kind;
};

/* Neither calls the mind again from inside. */
struct mind_out {
	void *ctx;
	void (*command)(void *ctx, const struct mind_cmd *c);
	/* The caller answers with mind_appended(m, a, err), later; a and what it points to stay the
	 * mind's until then. Appends are answered in order. */
	void (*append)(void *ctx, struct mind_append *a);
};

/*
 * st  the meta store's state after this term was raised in it; borrowed for life, changes only before
 *     mind_appended
 * out owned, mind_free()
 */
enum err mind_new(const struct mind_limits *l, const struct mind_out *o,
		  const struct meta_state *st, uint64_t now_ns, struct mind **out) MUST_CHECK;
/* Calls that wait end with ERR_SHUTTING_DOWN. */
void mind_free(struct mind *m);

/* ---- time ---- */

/* Before every other call: the time (CLOCK_BOOTTIME terms). Cheap. */
void mind_clock(struct mind *m, uint64_t now_ns);
/* Goes on with sliced work and what is due (leases, attempts without progress, holders dead since the
 * start); true while there is more to do at once. */
bool mind_work(struct mind *m);
/* When mind_work is due next; UINT64_MAX: not. */
uint64_t mind_due_ns(const struct mind *m);
/* An append ended. An error other than NO_SPACE or BUSY is the end of this master: the service fails. */
void mind_appended(struct mind *m, struct mind_append *a, enum err e);

/* ---- holders ---- */

struct mind_segment {
	uint32_t segment;
	uint64_t bytes, bytes_total;
	uint32_t slots; /* of the pool; 0: not told, no limit */
};
struct mind_news { /* REGISTER; all borrowed for the call */
	struct bytes id, host, fd_path;
	uint8_t kind, instance[16], pool[16];
	const struct bytes *addrs;
	size_t n_addrs;
	uint64_t pool_epoch;
	const struct mind_segment *segments;
	size_t n_segments;
};
struct mind_register {
	struct mind_call call;
	bool adopted; /* result */
};
/* Durable in the roster, then adopted. A holder that is not in the roster gets a floor (it returns
 * empty); one that comes back from away is `in` from here. Done when the roster says so. */
void mind_register(struct mind *m, const struct mind_news *n, struct mind_register *r);
/* A beat carried this epoch; one that is not known means another adoption (V10). */
void mind_beat_epoch(struct mind *m, struct bytes id, uint64_t pool_epoch);
/* Its beats have stopped for long (suspect), or came back. Reads avoid a suspect. */
void mind_suspect(struct mind *m, struct bytes id, bool suspect);
/* Its beats have stopped for holder_dead_ms: durable first, then it leaves the index. */
void mind_away(struct mind *m, struct bytes id);
/* Dropped from the roster. ERR_NOT_FOUND. */
void mind_forget(struct mind *m, struct bytes id, struct mind_call *c);
/* Says again every command this holder has not answered; after a lost connection. */
void mind_resend(struct mind *m, uint32_t holder);

struct mind_holder {
	uint32_t index;
	const char *id, *host, *fd_path;
	uint8_t kind, pool[16];
	const char *const *addrs;
	size_t n_addrs;
	bool away, merged, suspect;
	bool draining, drained; /* gets nothing new; all it held is readable elsewhere (L5) */
	struct mind_under under;
	uint64_t objects, bytes_used, bytes_total, quarantine_bytes;
};
/* false: no holder of that index. Borrowed until the next call. */
bool mind_holder(const struct mind *m, uint32_t index, struct mind_holder *out);
/* -1: none. */
int64_t mind_holder_index(const struct mind *m, struct bytes id);
uint32_t mind_holders(const struct mind *m); /* indices are below */

/* ---- answers of holders. `u` is what the answer carries; what is not awaited is dropped ---- */

void mind_adopted(struct mind *m, uint32_t holder, const struct mind_under *u,
		  const struct mind_segment *segs, size_t n);
/* A piece; all borrowed for the call. cursor 0: the last. About 1 us an entry: pieces of 128 KiB keep
 * to I6. */
void mind_inventory(struct mind *m, uint32_t holder, const struct msg_inventory_rep *piece);
/* err: ERR_NONE or ERR_NOT_FOUND (as good); STALE_*: ignored (an adoption follows). */
void mind_retired(struct mind *m, uint32_t holder, const struct mind_under *u, uint32_t slot,
		  uint64_t generation, uint64_t version, enum err e);
void mind_freed(struct mind *m, uint32_t holder, const struct mind_under *u, uint32_t slot,
		uint64_t generation, enum err e);
/* state: enum hold_fence's numbers. */
void mind_fenced(struct mind *m, uint32_t holder, const struct mind_under *u, uint64_t version,
		 const struct msg_fence_res *res);
/* The holder refused with STALE_TERM or STALE_EPOCH, or cannot be understood: adopt it again. */
void mind_refused(struct mind *m, uint32_t holder, const struct mind_under *u, enum err e);

/* ---- calls of holders ---- */

/* PUBLISH (T2): done with ERR_NONE once the version is in the index (or was superseded after T2), STALE_ATTEMPT
 * when it is barred, closed or unknown (V11, V15), STALE_TERM, STALE_EPOCH. Also for a RETIRED slot:
 * done when T2's conditions hold again. */
void mind_publish(struct mind *m, uint32_t holder, const struct mind_under *u,
		  const struct msg_publish_item *it, struct mind_call *c);
/* CONFIRM: is an attempt of this version open at that holder? */
bool mind_open_attempt(const struct mind *m, uint32_t holder, const struct mind_under *u,
		       uint64_t version);
/* REPORT: a range in quarantine is free now. ERR_RECOVERING: the inventory is still being read, or
 * FENCE's answer, that it is in quarantine, is under way: report it again; STALE_TERM, STALE_EPOCH: the next inventory says it. */
enum err mind_range_free(struct mind *m, uint32_t holder, const struct mind_under *u,
			 uint64_t version);
/* REPORT: the holder retired this slot itself. */
void mind_corrupt(struct mind *m, uint32_t holder, const struct mind_under *u, uint32_t slot,
		  uint64_t generation, uint64_t version);

/* ---- copies between holders (mind_copy.c) ---- */

struct mind_replica {
	uint32_t holder, slot;
	uint64_t generation;
	const struct extent *extents;
	size_t n_extents;
};
struct mind_copying { /* what a COPY command says; borrowed until the next call */
	struct bytes tenant, key;
	uint64_t version, number, size, sum;
	const struct extent *extents; /* none: the holder chooses (an owner) */
	size_t n_extents;
	const struct msg_put_opts *opts;
	struct mind_replica sources[OBJ_EXTENTS_MAX]; /* nearest to it first */
	size_t n_sources;
};
/* The copy that was commanded to that holder. false: it has ended meanwhile, or nobody has the bytes now. */
bool mind_copying(struct mind *m, uint32_t holder, uint64_t version, uint64_t number,
		  struct mind_copying *out);
/* COPY's answer. ERR_NONE: taken; ERR_BUSY: said again after retry_ms; any other: it ends, nothing is written
 * there. */
void mind_copied(struct mind *m, uint32_t holder, const struct mind_under *u, uint64_t version,
		 uint64_t number, enum err e, uint32_t retry_ms);
/* REPORT: it was given up, its range is free. f: borrowed. */
void mind_copy_failed(struct mind *m, uint32_t holder, const struct mind_under *u,
		      const struct msg_copy_fail *f);

/* ---- tasks (mind_task.c) ---- */

enum mind_task_kind { MIND_TASK_COPY = 1, MIND_TASK_MOVE, MIND_TASK_DRAIN, MIND_TASK_PREFETCH };
enum mind_task_state {
	MIND_TASK_QUEUED = 1,
	MIND_TASK_RUNNING,
	MIND_TASK_DONE,
	MIND_TASK_FAILED,
	MIND_TASK_CANCELLED,
};
/*
 * tenant: whose keys; empty: an admin's drain. q: borrowed for the call.
 *
 * ERR_INVALID_PARAMS, ERR_NOT_FOUND (no such holder), ERR_BUSY (tasks_max), ERR_NO_MEMORY
 */
enum err mind_task_start(struct mind *m, struct bytes tenant,
			 const struct msg_task_start_req *q, uint64_t *id, struct why *why)
	MUST_CHECK;
/* Of that id, of one of the tenant's; NULL tenant: of anybody. out borrows until the next call.
 * ERR_TASK_LOST: of another term, or forgotten; ERR_NOT_FOUND: never given, or another tenant's. */
enum err mind_task(struct mind *m, const struct bytes *tenant, uint64_t id,
		   struct msg_task *out, struct why *why) MUST_CHECK;
/* The one after that id in order (0: the first); false: none. */
bool mind_task_next(struct mind *m, const struct bytes *tenant, uint64_t after,
		    struct msg_task *out);
/* It begins nothing new; what it copied stays. A drain, also one that is done, is undone: its holder gets new
 * objects again. ERR_NONE also when it has ended; as mind_task. */
enum err mind_task_cancel(struct mind *m, const struct bytes *tenant, uint64_t id,
			  struct why *why) MUST_CHECK;

/* ---- calls of clients ---- */

struct mind_who {
	struct bytes tenant;
	const uint8_t *client; /* 16 bytes: instance */
	uint64_t term;	       /* sent under; 0: not known. Another: ERR_STALE_TERM (V4) */
};

struct mind_put {
	struct mind_call call; /* first */
	/* results, with ERR_NONE */
	uint64_t version, pool_epoch;
	uint32_t holder;
	struct extent extents[OBJ_EXTENTS_MAX];
	size_t n_extents;
};
/*
 * w, it and all they point to: borrowed until done.
 *
 * PUT_START: space, a version, an open attempt. A repeat of an open attempt gets the same answer; of a
 * closed one ERR_EXISTS ("DONE", V4). Waits while space is made (B2).
 *
 * ERR_ALREADY_EXISTS, ERR_BUSY_WRITING, ERR_RECOVERING, ERR_TEMPORARILY_AWAY, ERR_CONFLICT (a condition, or
 * its group has another size or all its members),
 * ERR_TOO_LARGE, ERR_BUSY (all leased: retry_ms), ERR_POOL_PINNED, ERR_STALE_TERM, ERR_INVALID_PARAMS,
 * ERR_NOT_READY (no holder with memory, or fewer than replicas_required), ERR_QUOTA (pins, or a size, above what the tenant may have)
 */
void mind_put_start(struct mind *m, const struct mind_who *w, const struct msg_put_item *it,
		    struct mind_put *p);
/* Gives an attempt up: FENCE. ERR_NONE also when it is closed already; a foreign one: ERR_STALE_ATTEMPT. */
enum err mind_put_revoke(struct mind *m, const struct mind_who *w, uint64_t attempt,
			 uint64_t version);
enum err mind_put_progress(struct mind *m, const struct mind_who *w, uint64_t attempt,
			   uint64_t version);

/* REMOVE (T3). Absent is OK. ERR_RECOVERING, ERR_POOL_PINNED (hard-pinned, no force), ERR_EXISTS (DONE),
 * ERR_CONFLICT (if_version), ERR_STALE_TERM. */
void mind_remove(struct mind *m, const struct mind_who *w, const struct msg_remove_item *it,
		 struct mind_call *c);
struct mind_remove_range {
	struct mind_call call; /* first */
	uint64_t removed, pinned;
};
void mind_remove_range(struct mind *m, const struct mind_who *w,
		       const struct msg_remove_range_req *q, struct mind_remove_range *r);

/* The caller no longer wants the answer (deadline, lost connection): done does not run any more. What was
 * begun goes on by itself. */
void mind_drop(struct mind *m, struct mind_call *c);

/*
 * A hint to the memory that these keys (MIND_WARM of them at most) are asked for or put next; changes
 * nothing. A lookup waits for three or four places that no cache holds, one after the other; those of many
 * keys come side by side.
 */
enum { MIND_WARM = 16 };
void mind_warm(struct mind *m, struct bytes tenant, const struct bytes *keys, size_t n);

struct mind_object { /* borrowed until the next call */
	struct bytes key;
	uint64_t version, size, sum;
	struct mind_replica replicas[OBJ_EXTENTS_MAX];
	size_t n_replicas;
	const struct msg_put_opts *opts;
	bool leased;
	uint64_t idle_ns;
};
/*
 * lease_ms 0: a probe (no use, no lease: B3).
 *
 * ERR_NOT_FOUND (why says whether a durable holder is away, or that its group is not whole),
 * ERR_RECOVERING, ERR_TEMPORARILY_AWAY
 */
enum err mind_lookup(struct mind *m, struct bytes tenant, struct bytes key, uint32_t lease_ms,
		     struct bytes format, struct mind_object *out, struct why *why) MUST_CHECK;
/* The same for a reader on that host: copies there come first. Of several that are alike each comes first in
 * turn. */
enum err mind_lookup_near(struct mind *m, struct bytes tenant, struct bytes key,
			  struct bytes host, uint32_t lease_ms, struct bytes format,
			  struct mind_object *out, struct why *why) MUST_CHECK;
/* ERR_LEASE_LOST: that version is no longer served. */
enum err mind_release(struct mind *m, struct bytes tenant, struct bytes key, uint64_t version);
enum err mind_renew(struct mind *m, struct bytes tenant, struct bytes key, uint64_t version,
		    uint32_t lease_ms);
/* A place in the order of a list: by obj_key_hash, then obj_key_tie. Zero is the start. */
struct mind_cursor {
	uint64_t hash, tie; /* tie 0: all keys of that hash are still to come */
};
/* Objects of a tenant from *cursor until fn returns false (it has taken that one) or about 2 ms went by;
 * *cursor: where to go on; returns true while there is more. */
bool mind_list(struct mind *m, struct bytes tenant, struct bytes prefix,
	       struct mind_cursor *cursor, bool (*fn)(void *arg, const struct mind_object *o),
	       void *arg);
/* Facts of a key, for people. */
void mind_explain(struct mind *m, struct bytes tenant, struct bytes key,
		  void (*fn)(void *arg, const char *name, const char *value), void *arg);

struct mind_counts {
	uint64_t objects, copies, attempts, waiting, tombs_owed;
	uint64_t index_bytes, bytes_total, bytes_used, quarantine_bytes;
	uint64_t puts, publishes, removes, evictions, hits, misses;
	uint64_t rejected;  /* entries of inventories not taken: unsound, or an overlap */
	uint64_t malformed; /* those of them that are unsound */
	uint64_t stuck;	    /* ranges in quarantine for longer than release_ms: an alarm */
	uint64_t copying;   /* copies being made */
	uint64_t under_replicated; /* objects with fewer copies than they are to have */
	uint64_t copies_made, copies_failed;
	uint64_t tasks;	 /* queued or running */
	enum err failed; /* an append failed for good: the service ends */
	bool recovering;
};
void mind_counts(const struct mind *m, struct mind_counts *out);
/* What a tenant has. bytes: attempts and copies, until FREE is acknowledged. */
struct mind_tenant {
	struct bytes name;
	uint64_t objects, bytes, pinned, bytes_max, pinned_max; /* max 0: no limit */
};
/* Tenants heard of have the indices from 0. false: none of that index. Borrowed until the next call. */
bool mind_tenant(const struct mind *m, uint32_t index, struct mind_tenant *out);
/* Asserts I3, I4 by a recount. For tests. */
void mind_check(const struct mind *m);

/* ---- for the checker ---- */

#ifdef POMELO_PLANT
enum mind_break {
	MIND_BREAK_RETIRE = 1 << 0,	 /* T2, T3: acknowledged before RETIRE is */
	MIND_BREAK_TOMB_PUT = 1 << 1,	 /* V7: no tombstone at a put */
	MIND_BREAK_TOMB_REMOVE = 1 << 2, /* T3: no tombstone at a remove */
	MIND_BREAK_TOMB_ABSENT = 1 << 3, /* V7: none when the key is absent */
	MIND_BREAK_WINDOW = 1 << 4,	 /* V4: closed numbers are forgotten */
	MIND_BREAK_TERM = 1 << 5,	 /* V4: a request's term is not looked at */
	MIND_BREAK_MARK = 1 << 6,	 /* V6: an unmarked entry is served at once */
	MIND_BREAK_UNMERGED = 1 << 7,	 /* V8: unmerged holders hold up nothing */
	MIND_BREAK_EPOCH_BEAT = 1 << 8,	 /* V10: a new epoch that a holder tells is ignored */
	MIND_BREAK_FLOOR = 1 << 9,	 /* V11: a barred version counts as superseded */
	MIND_BREAK_MERGE_TOMB =
		1 << 10, /* V11, V14: only those that return in this term are barred anything */
	MIND_BREAK_NOT_FOUND = 1 << 11, /* V12: NOT_FOUND while a key's versions wait for T2 */
	MIND_BREAK_UNKNOWN = 1 << 12,	/* V15: a PUBLISH of an unknown version is taken */
	MIND_BREAK_UNDER = 1 << 13,	/* V9: answers of an older adoption are taken */
	MIND_BREAK_COPIES = 1 << 14,	/* V13: T2 and T3 do not wait for unfinished copies */
};
#endif

/* Evicts this object as pressure would. ERR_NOT_FOUND, ERR_BUSY (leased, unfinished). */
enum err mind_evict(struct mind *m, struct bytes tenant, struct bytes key) MUST_CHECK;
/* The attempt has shown no progress for long: FENCE it. */
void mind_discard(struct mind *m, uint64_t version);
/* A copy of this object at that holder; the copy there is given up, if another one is readable. ERR_NOT_FOUND;
 * ERR_BUSY: not now; ERR_EXISTS: there is one. */
enum err mind_copy_to(struct mind *m, struct bytes tenant, struct bytes key, uint32_t holder)
	MUST_CHECK;
enum err mind_copy_drop(struct mind *m, struct bytes tenant, struct bytes key, uint32_t holder)
	MUST_CHECK;
void mind_fold(const struct mind *m, struct fold *f);
