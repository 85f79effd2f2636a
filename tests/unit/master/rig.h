/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mind with holders and a meta store around it, all in memory. Messages wait in queues until the test
 * lets them through: in order (rig_run), one by one, twice, or never.
 *
 * A fake holder obeys hold.h: slots EMPTY, COMMITTED, RETIRED; (term, adoption, pool_epoch); closed
 * versions. What it holds outlives its process and the mind.
 *
 * Thread: the test's.
 */
#pragma once

#include "services/master/mind.h"

enum {
	FAKES = 3,
	FAKES_MAX = 10,
	FAKE_SLOTS = 2048,
	FAKE_CLOSED = 8192,
	FAKE_COPIES = 128,
	FAKE_RING = 4
};

struct fake_slot {
	int state; /* 0, 1 COMMITTED, 2 RETIRED */
	uint64_t version, generation, size, sum;
	bool published;
	enum retire_reason reason;
	uint64_t evict_id;
	char key[80], tenant[16];
	struct extent ext[OBJ_EXTENTS_MAX];
	size_t n_ext;
	struct msg_put_opts opts;
	bool has_opts;
	char group[16]; /* of a copy: its own, for the mind may die */
};

struct fake {
	char id[8];
	const char *host; /* NULL: "box" */
	bool up;	  /* answers */
	uint8_t pool, instance;
	uint64_t term, adoption, epoch;
	uint32_t n_slots;      /* told with its segment; 0: not */
	uint64_t bytes, whole; /* ready; of the segment when all is mounted (0: bytes) */
	struct fake_slot slots[FAKE_SLOTS];
	uint64_t closed[FAKE_CLOSED];
	size_t n_closed;
	struct {
		uint64_t version;
		struct extent ext[OBJ_EXTENTS_MAX];
		size_t n_ext;
	} writing[16];
	size_t n_writing;
	/* the version whose writer is stopped in the middle, and its range */
	uint64_t hazard;
	struct extent hazard_ext[OBJ_EXTENTS_MAX];
	size_t n_hazard_ext;
	uint32_t piece; /* slots a piece of inventory; 0: all */
	/* COPY (rig_copy.c) */
	enum fake_copies { COPIES_DONE, COPIES_HELD, COPIES_REFUSED } copies;
	enum err copies_err; /* REFUSED: what is answered */
	uint64_t copy_top;   /* the highest number in this adoption */
	struct fake_copy {
		uint64_t version, number, size, sum;
		char key[80], tenant[16];
		struct extent ext[OBJ_EXTENTS_MAX];
		size_t n_ext;
		struct msg_put_opts opts;
		bool has_opts;
		char group[16];
		int from; /* of ours: the nearest source */
		size_t n_sources;
	} copying[FAKE_COPIES];
	size_t n_copying;
	uint64_t revoked[FAKE_RING]; /* by FENCE, in this adoption: the last ones */
	size_t n_revoked;
};

struct rig_cmd {
	struct mind_cmd c;
	struct extent ext[OBJ_EXTENTS_MAX];
};

struct rig;

/* A put between PUT_START and its end. */
struct rig_put {
	struct mind_put p; /* its call ended: p.call.err */
	struct mind_call pub;
	int done, published; /* how often */
	char key[80];
	struct msg_put_item it;
	struct mind_who who;
	uint32_t slot;
	int h; /* granted at: stays true when the mind's numbers change */
	struct rig *r;
};

struct rig {
	struct meta_state *st;
	struct meta_limits meta;
	uint64_t seq, now;
	struct mind *m;
	struct mind_limits l;
	struct fake h[FAKES_MAX]; /* FAKES of them, but where a test takes more */
	struct rig_cmd *cmds;
	size_t n_cmds, cap_cmds;
	struct mind_append *apps[4096];
	size_t n_apps;
	enum err append_err; /* of the appends to come */
	uint64_t attempt;    /* numbers given */
	uint64_t n_seen[8];  /* commands by op */
	uint64_t n_away;     /* rows that say away */
	uint8_t client[16];
	struct msg_put_opts *opts; /* of the puts to come */
	const char *tenant;	   /* of the calls to come; NULL: "t" */
	uint32_t required;	   /* replicas_required of the puts to come */
};

/* While not 0 no allocation is made to fail (test_oom.c). */
extern volatile int rig_calm; /* volatile: compilers know that malloc reads no globals */

extern volatile uint64_t rig_seed; /* of the soak under way */

struct rig *rig_new(void);
/* Without holders having registered. */
struct rig *rig_bare(const struct mind_limits *l);
/* Checks the mind and frees all. */
void rig_free(struct rig *r);
/* The mind dies; a new one begins under the next term. Messages under way are lost. */
void rig_restart(struct rig *r);

void rig_register(struct rig *r, int h);
/* Lets everything through until nothing moves; checks. */
void rig_run(struct rig *r);
void rig_appends(struct rig *r);
/* Delivers the i-th command that waits, and its answer; it stays queued when keep (a duplicate). */
void rig_deliver(struct rig *r, size_t i, bool keep);
/* Only commands to that holder, or of that op, are lost. -1: any. */
void rig_lose(struct rig *r, int h, int op);
void rig_pass(struct rig *r, uint64_t ms);
void rig_away(struct rig *r, int h);
/* The holder's process starts again: another instance, an epoch up. */
void rig_reborn(struct rig *r, int h);

/* ---- copies ---- */

/* COPY has come. */
void rig_copy(struct rig *r, int h, const struct mind_cmd *c);
/* FENCE ends what is under way; number: of a copy. */
void rig_copy_fence(struct fake *f, uint64_t version, uint64_t number);
/* The i-th that is under way there is COMMITTED and PUBLISHed; the answer, ERR_TIMED_OUT: it waits (and is dropped). */
enum err rig_copy_done(struct rig *r, int h, size_t i);
/* COMMITTED, PUBLISH is lost. */
uint32_t rig_copy_commit(struct rig *r, int h, size_t i);
/* It is given up; source: of ours, -1: the destination's own fault. */
void rig_copy_fail(struct rig *r, int h, size_t i, enum err e, int source);
/* Copies of this key that are readable; where[]: of ours, nearest first. */
size_t rig_replicas(struct rig *r, const char *key, int where[OBJ_EXTENTS_MAX]);
bool rig_has(const struct rig *r, int h, const char *key); /* COMMITTED there */

int rig_index(const struct rig *r, uint32_t index); /* of the mind's -> of ours */
uint32_t rig_holder(const struct rig *r, int h);
struct mind_under rig_under(const struct rig *r, int h); /* as the holder knows it */
struct mind_who rig_who(struct rig *r);

/* PUT_START at holder h (-1: any); the call may wait. key: borrowed. */
void rig_start(struct rig *r, struct rig_put *p, const char *key, uint64_t size, int h,
	       bool upsert);
/* COMMIT at its holder: the slot, or an error as hold.h has it. */
enum err rig_commit(struct rig *r, struct rig_put *p);
/* PUBLISH of its slot; the call may wait. */
void rig_publish(struct rig *r, struct rig_put *p);
/* Its writer is stopped in the middle; it goes on, or its process is gone: the range is reported. */
void rig_stop(struct rig *r, struct rig_put *p);
enum err rig_writer_gone(struct rig *r, int h);
bool rig_closed(const struct rig *r, const struct rig_put *p); /* at its holder */
/* All of it, everything let through. */
enum err rig_put(struct rig *r, const char *key, int h, bool upsert);
enum err rig_put_v(struct rig *r, const char *key, int h, bool upsert, uint64_t *version);

/* Anywhere, that large, with these options (NULL: none). ERR_TIMED_OUT: it waits. */
enum err rig_put_opts(struct rig *r, const char *key, uint64_t size,
		      const struct msg_put_opts *o);
/* A lookup under a lease (0: a probe) by the rig's tenant. */
enum err rig_use(struct rig *r, const char *key, uint32_t lease_ms);

struct rig_remove {
	struct mind_call c;
	int done;
	struct msg_remove_item it;
};
void rig_remove_start(struct rig *r, struct rig_remove *x, const char *key);
enum err rig_remove(struct rig *r, const char *key);
enum err rig_remove_prefix(struct rig *r, const char *prefix, uint64_t *removed);

enum err rig_get(struct rig *r, const char *key, uint64_t *version);
int rig_slots(const struct rig *r, int h, int state);
int rig_waiting(const struct rig *r, enum mind_op op); /* commands queued */
struct mind_counts rig_counts(const struct rig *r);
