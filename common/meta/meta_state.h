/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the meta store holds, in memory: the fold of its records (T1). Pure: no disk, no clock.
 *
 * A record is applied once, in the order of sequence numbers, and applying never fails for what
 * it says: one that comes too late (a lower term, an older view, a thing that another owns, a
 * holder that is unknown) changes nothing and answers so. Replaying the log therefore gives
 * what the first run had, whatever the limits are set to now.
 *
 * I1: the term only rises; (term, epoch) of a group's view only rises.
 * I2: a version that was once barred for a holder (tombstone, floor) stays so until SETTLED or
 *     FORGET.
 * I3: a claim has one owner; another's CLAIM changes nothing until UNCLAIM.
 * I4: counts and bytes equal a recount (C3).
 *
 * Freed tombstones are reclaimed in slices (meta_state_sweep), so that no record costs more
 * than a few microseconds though it may bar or settle a million keys (L4).
 *
 * Thread: its owner's.
 */
#pragma once

#include "proto/messages.h"

/* The record types, numbers as on disk. */
enum meta_type {
#define META_TYPE_ENUM(NAME, number, msg) META_##NAME = (number),
	META_RECORDS(META_TYPE_ENUM)
#undef META_TYPE_ENUM
};

/* One record; bytes inside are borrowed. */
struct meta_rec {
	enum meta_type type;
	union {
#define META_REC_FIELD(NAME, number, msg) struct msg_##msg NAME;
		META_RECORDS(META_REC_FIELD)
#undef META_REC_FIELD
	};
};

/* "TOMB"; "UNKNOWN" for a number of no row. */
const char *meta_type_name(uint32_t type);
/* Appends the body of r. buf_err(b) tells. */
void meta_rec_encode(struct buf *b, const struct meta_rec *r);
/*
 * ERR_UNSUPPORTED  a type of no row: a newer release wrote it
 * ERR_BAD_MESSAGE, ERR_NO_MEMORY, ERR_TOO_LARGE
 */
enum err meta_rec_decode(uint32_t type, struct bytes body, struct arena *a,
			 struct meta_rec *out, struct why *why) MUST_CHECK;
/* Is it sound by itself (names, ranges)? ERR_INVALID_PARAMS, why names the field. */
enum err meta_rec_check(const struct meta_rec *r, struct why *why) MUST_CHECK;

/* Limits on what may be added; what is there already is kept whatever they say (B1). */
struct meta_limits {
	uint32_t holders_max;	 /* 4,096 */
	uint32_t tombs_max;	 /* a holder's; beyond: its floor rises (T3); 1,000,000 */
	uint64_t tomb_bytes_max; /* a holder's, likewise; 256 MiB */
	uint32_t claims_max;	 /* 1,000,000 */
	uint32_t views_max;	 /* 65,536 */
	uint64_t bytes_max;	 /* all of it; 4 GiB */
};
/* Fills every field that is 0 with its default. */
void meta_limits_default(struct meta_limits *l);

/* ---- the state ---- */

struct meta_state;
struct meta_holder;

/* seed: for the hash of hostile keys. owned, meta_state_free(). */
enum err meta_state_new(uint64_t seed, struct meta_state **out) MUST_CHECK;
void meta_state_free(struct meta_state *st);

/*
 * Applies record number seq, which is above all before it (asserted).
 *
 * ERR_CONFLICT     no effect: the term is not higher, the view not newer, the thing another's
 * ERR_NOT_FOUND    no effect: no such holder, claim or view
 * ERR_NO_MEMORY    the state is no longer that of the log: its owner must give it up
 *
 * Microseconds; holders' and views' bytes are copied.
 */
enum err meta_state_apply(struct meta_state *st, uint64_t seq, const struct meta_rec *r)
	MUST_CHECK;
/* The same without raising last_seq, for a snapshot, whose records come in any order. */
enum err meta_state_restore(struct meta_state *st, uint64_t seq, const struct meta_rec *r)
	MUST_CHECK;
/* After a snapshot: it held everything up to seq. */
void meta_state_restored(struct meta_state *st, uint64_t seq);

/* Batches of records are planned before any of them is applied: see meta_state_admit. */
void meta_state_plan(struct meta_state *st);
/*
 * May r be added next, within the limits? A tombstone over its holder's budget becomes a FLOOR
 * of its `now` (T3), in place. Counts what was admitted since meta_state_plan, but for a holder
 * that the plan itself brings: its budget begins with the next plan.
 *
 * ERR_TOO_LARGE   a limit is reached; why names it
 * ERR_NOT_FOUND   it is for a holder that is not in the roster (and not just planned to be)
 */
enum err meta_state_admit(struct meta_state *st, const struct meta_limits *l,
			  struct meta_rec *r, struct why *why) MUST_CHECK;

/* Frees about `want` dead tombstones; true while there are more. */
bool meta_state_sweep(struct meta_state *st, size_t want);

/*
 * Every record that makes this state again, in no order that matters but TERM, HOLDER, FLOOR
 * first. emit's bytes are borrowed for its call; an error of it ends the walk and is returned.
 */
enum err meta_state_dump(const struct meta_state *st,
			 enum err (*emit)(void *arg, uint64_t seq, const struct meta_rec *r),
			 void *arg) MUST_CHECK;

/* ---- reading ---- */

uint64_t meta_term(const struct meta_state *st);
/* The number of the last record. */
uint64_t meta_last_seq(const struct meta_state *st);

struct meta_counts {
	uint64_t holders, away, tombs, claims, views;
	uint64_t bytes; /* of memory, tables aside */
	uint64_t dead;	/* of tombs: to be swept */
};
void meta_state_counts(const struct meta_state *st, struct meta_counts *out);

/* What the roster says; lives until it changes. */
struct meta_holder_info {
	const char *id;
	uint32_t kind; /* 1 agent, 2 owner */
	const char *const *addrs;
	size_t n_addrs;
	const char *host, *fd_path;
	uint8_t pool[16];
	bool away;
	uint64_t away_since, term, adoption;
	uint64_t n_tombs, tomb_bytes; /* dead ones that were not swept yet included */
};

/* NULL when there is none. borrowed: until FORGET. */
const struct meta_holder *meta_holder_find(const struct meta_state *st, struct bytes id);
/* The first, and the one after h; NULL at the end. In no order. */
const struct meta_holder *meta_holder_first(const struct meta_state *st);
const struct meta_holder *meta_holder_next(const struct meta_state *st,
					   const struct meta_holder *h);
void meta_holder_info(const struct meta_holder *h, struct meta_holder_info *out);
/* 0: none. */
uint64_t meta_floor(const struct meta_holder *h, uint32_t shard);
/*
 * The highest version of that key which is dead at h: by floor, exact and range tombstones. An
 * entry of h's inventory is taken only above it (T3, V11, V14). 0: nothing is barred.
 * A lookup for each distinct prefix length, about 60 ns each.
 */
uint64_t meta_barred(const struct meta_holder *h, uint32_t shard, struct bytes tenant,
		     struct bytes key);
/* The same of an object group's members, by its id: the floor and tombstones of match 2. */
uint64_t meta_barred_group(const struct meta_holder *h, uint32_t shard, struct bytes tenant,
			   struct bytes group);
/* Nothing is kept for h in that shard: no SETTLED is due. */
bool meta_holder_clear(const struct meta_holder *h, uint32_t shard);

/*
 * A slice of h's tombstones as TOMB and RANGE records: about `want`, from *cursor (0 at the
 * start); true while there is more. One that stays throughout is seen once.
 */
bool meta_tomb_scan(const struct meta_state *st, const struct meta_holder *h, uint64_t *cursor,
		    size_t want, void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r),
		    void *arg);

/* false: nobody's. owner and value: borrowed until it changes. */
bool meta_claim_find(const struct meta_state *st, struct bytes space, struct bytes name,
		     struct bytes *owner, struct bytes *value);
/* Slices, as above; records are CLAIM. */
bool meta_claim_scan(const struct meta_state *st, uint64_t *cursor, size_t want,
		     void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r), void *arg);

/* false: none. out's bytes: borrowed until it changes. */
bool meta_view_find(const struct meta_state *st, struct bytes tenant, struct bytes group,
		    struct msg_meta_view *out);
/* Slices, as above; records are VIEW. */
bool meta_view_scan(const struct meta_state *st, uint64_t *cursor, size_t want,
		    void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r), void *arg);

/* Asserts I1 to I4 by a recount. For tests. */
void meta_state_check(const struct meta_state *st);
