/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of mind_priv.h, at whose end it is included, about several copies of an object and tasks.
 *
 * C1: a holder has at most one copy or unfinished copy of a version.
 * C2: an unfinished copy that was said to a holder ends by that holder's word alone: PUBLISH, FENCE's answer,
 *     REPORT, COPY's refusal, its next directory; or when it is away (T6, V13).
 * C3: for a repair nothing is evicted, and a pool is not filled above the high watermark.
 * C4: a copy is given up only while another one is readable; a draining holder gets nothing new (L5).
 */
#pragma once

#include "mind_priv.h"

/* An object has fewer copies than replica_num: more are made from its time on (mind_copy.c). */
struct lack {
	struct heap_node node; /* m->lacks: tried again then */
	struct opts *opts;     /* of one that is served */
	uint32_t tries;
};

/*
 * An unfinished copy (V13): a holder fetches the version. It counts as a replica for T2 and T3: they wait until
 * it has ended.
 *
 *	PLANNED ──its version is served──► SAID ──COPY's answer──► TAKEN ──PUBLISH──► a copy
 *	   │ nothing is known there         └──────── version dead ───┴──► FENCING ──FENCE's answer──► gone
 *	   └─its attempt has ended─► gone            (or it failed ──► gone)
 */
enum pull_state { PULL_PLANNED, PULL_SAID, PULL_TAKEN, PULL_FENCING };
struct pull {
	struct map_node node;		 /* m->pulls: version, holder */
	struct list of_holder, of_group; /* of its destination; of opts->group */
	struct pull *next;		 /* work.pulls */
	struct heap_node due;		 /* m->pulls_due: said again then */
	struct obj *obj;
	struct opts *opts;
	struct task *task; /* NULL: of a put, or a repair */
	uint32_t item;	   /* of its task */
	uint32_t segment;
	uint64_t version, number, size, sum, said_ns;
	uint16_t holder;
	uint8_t state, n_ranges;
	bool told;   /* COPY went out with sources: its holder will say how it ends */
	bool ranged; /* the range remove under way waits for it */
	struct range ranges[];
};

static inline uint64_t in_ms(const struct mind *m, uint64_t ms)
{
	return m->now + ms * 1000000;
}

/* ---- mind_copy.c: unfinished copies ---- */

struct pull *pull_of(const struct mind *m, uint64_t version, uint32_t holder);
/* The space is the pull's. NULL without memory: it was given back. */
struct pull *pull_new(struct mind *m, struct obj *o, uint64_t version, uint64_t size,
		      const struct msg_put_opts *opts, const struct place *at);
/* Said and not yet ended: T2 and T3 wait (V13). upto: versions from 1 to it. */
bool pulls_open(const struct mind *m, const struct obj *o, uint64_t upto);
void pulls_cancel(struct mind *m, struct obj *o, uint64_t upto);
void pull_fence(struct mind *m, struct pull *p);
struct copy *pull_commit(struct mind *m, struct pull *p, uint32_t slot, uint64_t generation,
			 uint64_t sum);
/* COPY, with a new number: fetched from who has `of`'s version. */
void pull_say(struct mind *m, struct pull *p, const struct copy *of);
/* Nothing is left of it; e: why, for its task and the next try. give: nobody writes its range any more. The caller
 * steps the object. */
void pull_end(struct mind *m, struct pull *p, bool give, enum err e, const struct why *why);
/* FENCE's answer. */
void pull_fenced(struct mind *m, struct pull *p, const struct msg_fence_res *res);
/* Its holder is adopted anew: what was only planned there ends. It went, or its directory is read: all. */
void pulls_unplan(struct mind *m, struct holder *h);
void pulls_resolve(struct mind *m, struct holder *h);
void pulls_resend(struct mind *m, struct holder *h);
/* What nothing was heard of for long. */
void pulls_say_due(struct mind *m);
void pull_free(struct mind *m, struct pull *p); /* at the mind's end, too */

/* ---- mind_repair.c: where copies go, how many there are ---- */

/* Copies of a version that readers find, those about to go not counted. */
uint32_t copies_live(const struct mind *m, const struct obj *o, uint64_t version);
/* Those on their way. */
uint32_t pulls_live(const struct obj *o, uint64_t version);
/* Of obj_step: what is planned begins, what lacks is noted, what a draining holder has goes. */
void copies_step(struct mind *m, struct obj *o);
/* May a PUBLISH of this version be acknowledged? ERR_NONE and *wait; ERR_NOT_READY: there cannot be that many. */
enum err copies_enough(const struct mind *m, const struct obj *o, uint64_t version, bool *wait,
		       uint32_t *made);
/* A holder for one more copy: the space is taken. to: only there; NULL: the best. ERR_NOT_READY: nobody could
 * ever; ERR_BUSY: their limits; ERR_NO_SPACE. */
enum copy_for { COPY_FOR_PUT, COPY_FOR_REPAIR, COPY_FOR_TASK };
enum err copy_place(struct mind *m, const struct obj *o, uint64_t version, uint64_t bytes,
		    struct holder *to, enum copy_for why, struct place *out) MUST_CHECK;
/* The same for a put that has n places already. */
enum err copy_place_beside(struct mind *m, uint64_t bytes, const struct bytes_list *preferred,
			   const struct place *taken, size_t n, struct place *out) MUST_CHECK;
/* Begins one; as copy_place; ERR_NO_MEMORY. */
enum err copy_begin(struct mind *m, struct obj *o, const struct copy *of, struct holder *to,
		    enum copy_for why, struct pull **out) MUST_CHECK;
/* There can be no further copy of it; none is on its way. */
bool drain_may_go(const struct mind *m, const struct obj *o, const struct copy *c);
bool copies_work(struct mind *m);
uint64_t copies_due_ns(const struct mind *m);
void lack_free(struct mind *m, struct opts *o);
/* A copy of it has failed: tried again later and later. */
void lack_later(struct mind *m, struct obj *o);

/* ---- mind_task.c ---- */

bool tasks_work(struct mind *m);
uint64_t tasks_due_ns(const struct mind *m);
/* A pull of it has ended; ERR_NONE: as a copy. */
void task_pulled(struct mind *m, struct task *t, uint32_t item, enum err e,
		 const struct why *why);
void tasks_free(struct mind *m);
/* Of a drain that is done. */
bool holder_drained(const struct mind *m, const struct holder *h);
