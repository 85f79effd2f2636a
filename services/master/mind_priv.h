/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of struct mind, for mind_*.c alone.
 *
 *	obj ── copy, copy ...	one a slot that a holder has (or is believed to have)
 *	 └─ work		only while something goes on: an attempt, publishes, removes, T2
 *
 * Nothing is decided twice: whatever changes, obj_step() looks at the object anew and does what is
 * due (mind_t2.c). Commands to slots are bits beside the slot table (mind_slot.c), so that a million
 * of them cost no memory and can be said again.
 *
 * A call that ends is put on m->ended and its done runs when the outermost call of the mind leaves,
 * so that done may call the mind again.
 */
#pragma once

#include <stdarg.h>
#include <string.h>

#include "base/heap.h"
#include "base/map.h"
#include "mind.h"
#include "store/alloc.h"

enum {
	SLOT_PAGE = 512,
	SLOT_MAX = 1 << 28,
	WINDOW = 4096,		/* closed numbers kept a client (V4) */
	CMDS_MAX = 4096,	/* slots' commands under way at a holder */
	ATTEMPTS_MAX = 1 << 20, /* B1 */
	HOLDERS_MAX = 4096,
	TENANTS_MAX = 65535,
	SOFT_PIN_MAX_MS = 86400000,
	LATE_MS =
		1000, /* a holder that owes answers for so long: what it frees is not counted on */
	RETRY_MS = 100, /* an append that met BUSY or NO_SPACE is tried again so much later */
	GROW_MS =
		5000, /* the next slice of 256 MiB is there by then: 0.1 s each, 1.2 s on a busy box */
};

enum copy_state {
	COPY_COMMITTED = 1, /* its holder's slot is COMMITTED */
	COPY_RETIRING,	    /* RETIRE is owed or under way */
	COPY_RETIRED,	    /* acknowledged */
	COPY_FREEING,	    /* FREE is owed or under way */
};
enum copy_flag {
	COPY_SERVED = 1,  /* in the index: readers see it */
	COPY_MARKED = 2,  /* its slot has the published mark */
	COPY_MERGED = 4,  /* from an inventory: may have been acknowledged by an older master */
	COPY_BARRED = 8,  /* by tombstone or floor: SETTLED waits for its RETIRE (V11) */
	COPY_RANGED = 16, /* the range remove under way waits for its RETIRE */
	COPY_COMING = 32, /* its space is on its way back: counted in m->coming */
	COPY_LATER = 64,  /* it comes back when leases have ended: counted in m->later */
};
enum call_kind { CALL_PLAIN, CALL_PUB };

struct range {
	uint64_t offset, bytes;
};

/* Of a put: what its slot keeps, when it is not all defaults. */
enum member { MEMBER_NONE, MEMBER_IN, MEMBER_DYING };
struct lack;
struct pull;
struct task;
struct opts {
	struct msg_put_opts m; /* points behind */
	struct group *group;   /* of an attempt or a member; NULL: none, or it has left */
	struct list member;    /* of its group, by state; not of an attempt */
	enum member state;
	bool owed; /* dying, and its RETIRE is not acknowledged */
	uint64_t space;
	struct copy *copy; /* NULL: of an attempt or an unfinished copy */
	struct lack *lack; /* NULL: there are as many as are wanted, or another copy's has it */
	struct heap_node soft;	/* m->softs while the pin runs */
	uint64_t soft_until_ns; /* 0: it was never readable */
	size_t bytes;
};

struct copy {
	struct copy *next; /* of its object; newest version first */
	struct obj *obj;
	struct opts *opts; /* NULL: all defaults */
	uint64_t version, generation;
	uint64_t size;
	union {
		uint64_t sum;
		uint64_t free_ns; /* no longer served: FREE not before */
	};
	uint32_t slot;
	uint16_t holder;
	uint8_t state, n_ranges;
	uint32_t segment;
	uint8_t flags, reason;
	uint16_t merge; /* holder.merge when its slot was last seen */
	struct range ranges[];
};

enum lru { LRU_PLAIN, LRU_SOFT, LRU_HARD, LRU_N };
struct lru_queue { /* the one used longest ago first */
	struct list l;
	bool groups; /* of struct group, else of struct obj */
	uint64_t n;
	uint64_t looked; /* in the turn of an eviction (mind_evict.c) */
};
/* One for all tenants without a quota, and one for each that has one (it evicts its own). */
struct lru_set {
	struct lru_queue objs[LRU_N], groups[LRU_N];
};

/*
 * An object group (mind_group.c). Its members are copies; those of one version of an object are one.
 *
 *	WHOLE ──evicted, one is lost, or a mark is merged──► RETIRING ──all are marked──► DRAINING ──► WHOLE
 */
enum group_phase { GROUP_WHOLE, GROUP_RETIRING, GROUP_DRAINING };
struct group {
	struct map_node node;
	struct list in, todo,
		dying;		    /* opts.member: live; to be looked at; to go, RETIRE said */
	struct list waits;	    /* mind_call.node: puts */
	struct list lru;	    /* while a member is served */
	struct list look, evicting; /* m->groups_look, m->groups_evicting */
	struct list pulls;	    /* of members: pull.of_group */
	uint64_t evict_id, bytes;
	enum group_phase phase;
	uint32_t size; /* 0: open */
	uint32_t n_attempts, n_linked, n_served, n_ready, n_hard, n_owed, asking;
	uint32_t n_soft;      /* members whose soft pins run (m->softs) */
	uint32_t lease, used; /* ticks, as an object's; its age is that of its youngest use */
	bool loose;	      /* leases were given back: the longest is to be found anew */
	struct list *unknown; /* of in: those before it are known in m->era (all_known) */
	uint64_t era;
	bool whole; /* it was, in this term */
	uint8_t which;
	uint16_t tenant, id_n;
	uint8_t id[];
};

struct obj {
	struct map_node
		node; /* hash: bits of obj_key_hash reversed, so that scans go in its order */
	struct list lru; /* while it is served */
	struct copy *copies;
	struct work *work;
	uint32_t lease,
		used; /* ticks since the mind began: lease_end_ns(), used_at_ns(); 0: never */
	uint16_t tenant, key_n, n_leases;
	uint8_t which; /* enum lru */
	uint8_t key[];
};

/* An object on which something goes on. */
struct work {
	struct list node; /* m->active or m->todo */
	struct obj *obj;
	struct attempt *attempt; /* open: at most one a key */
	struct pull *pulls;
	struct list pubs, rems; /* mind_call.node of publishes; struct rem */
	uint32_t asking;	/* appends under way */
};

struct pub {		 /* mind_call.on of a waiting PUBLISH */
	struct obj *obj; /* NULL: early */
	uint64_t version, generation, adoption, sum;
	uint32_t slot, holder;
	bool retired;
	bool pulled; /* of a copy made by COPY: it waits for no other */
};

/* A remove. One that is repeated while under way joins (V4): its ceiling is the first one's. */
struct rem {
	struct list node; /* work.rems */
	struct map_node by_number;
	struct list calls;
	struct obj *obj;
	struct client *client;
	uint64_t number, ceiling;
};

struct client {
	struct map_node node;
	struct list lru;
	uint8_t id[16];
	uint16_t tenant;
	uint32_t n_open; /* attempts, removes, quarantined ranges: it stays */
	uint64_t used_ns, quarantine;
	uint64_t top;		      /* highest number closed */
	uint64_t closed[WINDOW / 64]; /* of (top - WINDOW, top] */
};

struct cond {
	uint64_t if_version, require_version;
	uint16_t key_n;
	uint8_t key[];
};

struct attempt {
	struct map_node by_version, by_number;
	struct list of_holder, of_time; /* of_time: by last progress */
	struct client *client;
	struct obj *obj;
	struct opts *opts;
	struct cond *cond;
	uint64_t number, version, size, pool_epoch, progress_ns;
	uint32_t segment;
	uint16_t holder;
	bool fencing;
	uint8_t n_ranges;
	struct range ranges[];
};

/* A range that a fenced writer may still write. */
struct quar {
	struct list node;      /* of its holder */
	struct client *client; /* NULL: not known */
	uint64_t version, bytes, since_ns;
	uint32_t segment;
	uint16_t merge, tenant; /* TENANTS_MAX: not known, its attempt was an older master's */
	uint8_t n_ranges;
	struct range ranges[];
};

struct slot_page {
	struct copy *at[SLOT_PAGE];
	uint64_t owed[SLOT_PAGE / 64];	/* a command is to be answered */
	uint64_t sent[SLOT_PAGE / 64];	/* it is under way */
	uint64_t later[SLOT_PAGE / 64]; /* FREE waits for a time */
	uint64_t later_ns;		/* the earliest of them, or before it */
	uint32_t n, n_unsent, n_later;
};

struct segment {
	uint32_t number;
	uint64_t bytes_total;
	struct alloc *alloc;
};

enum holder_state {
	HOLDER_NONE, /* not in the roster: a first REGISTER or a FORGET is being written */
	HOLDER_AWAY,
	HOLDER_SILENT, /* in; ADOPT is not yet said */
	HOLDER_ADOPTING,
	HOLDER_MERGING,
	HOLDER_FINISHING, /* all pieces are here: what was not in them goes */
	HOLDER_MERGED,
};

struct holder {
	uint32_t index;
	enum holder_state state;
	char id[65], host[65], fd_path[108];
	char addr_text[8][257];
	const char *addrs[8];
	size_t n_addrs;
	uint8_t kind, pool[16], instance[16];
	const struct meta_holder *row; /* NULL: not in the roster */
	struct mind_under under;
	bool suspect,
		known; /* known: V8's second sentence, its entries were merged in this term */
	bool want_in, want_away, want_gone; /* asked for, not yet in the roster */
	bool new_row, new_pool;		    /* the roster's row is another */
	bool appending, settling;	    /* a row, a SETTLED is on its way */
	bool dropping;			    /* it went; its copies leave the index in slices */
	bool short_memory; /* an entry did not fit: the piece is asked for again */
	uint64_t drop_at, away_era;
	/* again then, 0: not: SETTLED or a command that met no memory; a row; an adoption refused */
	uint64_t retry_ns, row_ns, readopt_ns;
	uint16_t merge;	      /* counts merges, modulo */
	uint64_t merge_seq;   /* of the meta store when the merge began: SETTLED through */
	uint64_t settled_seq; /* the last SETTLED's */
	uint64_t cursor;      /* inventory */
	uint64_t finish_at;   /* slot */
	uint64_t said_ns;
	struct list regs;  /* mind_call.node: registers that wait */
	struct list gones; /* likewise: forgets */
	struct list early; /* publishes before it is merged; on is a struct pub */
	struct list attempts, quars;
	struct list pulls; /* of_holder */
	uint32_t n_pulls, n_attempts;
	uint64_t n_slots; /* what it can hold, whatever the bytes; 0: not told */
	bool draining;	  /* gets nothing new; m->n_draining */
	struct task *drain;
	uint64_t
		copy_rest_ns; /* it refused a copy, or failed by itself: no other before that */
	uint64_t moved, moved_bytes; /* since its drain began */
	struct segment *segs;
	size_t n_segs;
	struct slot_page **pages;
	uint32_t n_pages, send_at;
	uint32_t n_unsent, n_sent, n_later;
	uint64_t n_copies, n_barred, quarantine, used, coming;
	uint64_t heard_ns; /* its last answer to a command, or when it first owed one */
	uint64_t young_ns; /* since then (mind_place.c) */
	double credit;	   /* bytes that it has earned */
	bool young;
	uint32_t seg_at, steps;
	uint64_t n_lost; /* ranges taken until the next adoption: rejected entries, no memory */
};

struct tenant {
	struct map_node node;
	struct lru_set *set;		/* m->shared, or its own */
	const struct mind_quota *quota; /* NULL: none */
	uint64_t used, pinned, coming, n_served;
	struct list waits;   /* mind_call.node: puts, until something of its own has gone */
	struct list waiting; /* m->over_quota, while there are some */
	uint16_t index;
	uint8_t n;
	char name[65];
};

/* The first of an append's kinds of owner. */
enum app_kind { APP_TOMB, APP_HOLDER, APP_SETTLED, APP_RANGE, APP_GROUP };
struct app {
	struct mind_append pub;
	struct list node;
	enum app_kind kind;
	struct obj *obj;
	struct holder *holder;
	struct range_op *range;
	struct group *group;
	struct row_text *text;	  /* APP_HOLDER: owned */
	bool away, gone, floored; /* APP_HOLDER: what it makes of it */
	size_t bytes;
	struct meta_rec recs[];
};

/* A waiting put. */
struct wput {
	struct mind_put *put;
	struct mind_who who;
	struct msg_put_item item;
};

/* Removes by range, one at a time (mind_range.c). */
struct range_op {
	struct list node;
	struct list calls;
	struct client *client;
	uint64_t number, ceiling, cursor, passes, removed, pinned;
	uint64_t merges; /* m->merges when the pass began */
	uint16_t tenant, n;
	bool force, walking, walked;
	uint32_t appending;
	uint64_t n_owed; /* copies flagged COPY_RANGED that are not retired yet */
	uint64_t *eras;	 /* a holder: away_era + 1 for which a RANGE is durable */
	uint32_t n_eras;
	uint64_t asked[HOLDERS_MAX / 64]; /* a bit a holder: its RANGE is on its way */
	uint8_t prefix[];
};

struct mind {
	struct mind_limits l;
	struct mind_out out;
	const struct meta_state *st;
	uint64_t now, start_ns, term, last; /* last: version given last */
	uint64_t rng, place_ns;
	uint32_t place_puts, n_young, n_places;
	double mean; /* share in use, at the last look */
	enum err failed;
	uint32_t depth;
	struct map objs, by_version, by_number, clients, rems, tenants, groups, pulls;
	struct tenant **tenant; /* by index */
	uint32_t n_tenants, cap_tenants;
	uint16_t tenant_last; /* asked for last */
	struct holder **holders;
	uint32_t n_holders, cap_holders;
	uint32_t n_unmerged; /* in, not merged, entries unknown: they hold up all (V8) */
	uint32_t n_partial;  /* in, not merged, entries known */
	uint32_t n_away;
	uint32_t n_dropping; /* went; copies of them are in the index still */
	uint64_t merges;
	uint64_t era;	    /* counts adoptions: within one, what is known stays known */
	uint64_t looked_ns; /* then n_looked members were looked at (all_known) */
	uint32_t n_looked;
	struct list active, todo, ended, times, clients_lru, apps, space, ranges;
	struct list over_quota;			  /* tenant.waiting */
	struct list groups_look, groups_evicting; /* something changed; not WHOLE */
	struct lru_set shared, **sets;		  /* sets: all of them */
	uint32_t n_sets;
	struct heap softs;	      /* soft pins that run, by their end */
	struct heap lacks;	      /* struct lack, by the time of the next try */
	struct heap pulls_due;	      /* struct pull, by when they are said again */
	struct list tasks, tasks_run; /* in order of their ids; those that have not ended */
	uint32_t n_tasks, n_running, n_draining;
	uint64_t task_last, pull_last; /* numbers given last */
	uint64_t copy_ns;	       /* repairs rest until then */
	struct bytes near;	       /* host of who looks; borrowed for the call */
	uint32_t shows;		       /* whose turn it is among copies that are alike */
	uint64_t lease_end_ns;	       /* met in the turn of an eviction */
	uint64_t pinned;	       /* of attempts and copies */
	struct clear *clear;	       /* room in one piece is being made (mind_clear.c) */
	uint64_t clear_ns; /* the last one is waited for until then; in vain: none before */
	bool clear_vain;
	uint64_t n_waiting, n_copies, n_served, bytes, coming, later;
	uint64_t total, used, quarantine; /* of merged holders' segments */
	uint64_t evict_left;		  /* of this round */
	uint64_t evict_ns;		  /* the last round found nothing: not before */
	uint64_t grow_ns;		  /* when a segment last grew, or began to */
	uint64_t retry_ns;		  /* appends that failed are tried again; 0: none */
	uint64_t space_ns;		  /* puts that wait for space are tried again */
	bool space_dirty;
	struct extent shown[OBJ_EXTENTS_MAX * OBJ_EXTENTS_MAX]; /* of the object shown last */
	struct extent copying[OBJ_EXTENTS_MAX];
	struct {
		uint64_t puts, publishes, removes, evictions, hits, misses, rejected, malformed;
		uint64_t copies_made, copies_failed;
	} n;
};

#ifdef POMELO_PLANT
#define BROKEN(m, bit) ((m)->l.mind_break & (bit))
#else
#define BROKEN(m, bit) false
#endif

static inline uint64_t bits_reversed(uint64_t x)
{
	x = (x & 0x5555555555555555) << 1 | (x >> 1 & 0x5555555555555555);
	x = (x & 0x3333333333333333) << 2 | (x >> 2 & 0x3333333333333333);
	x = (x & 0x0f0f0f0f0f0f0f0f) << 4 | (x >> 4 & 0x0f0f0f0f0f0f0f0f);
	return __builtin_bswap64(x);
}

/* Times of an object: 32 bits of 34 ms, 4.5 years. */
#define TICK_BITS 25
static inline uint64_t lease_end_ns(const struct mind *m, const struct obj *o)
{
	return o->lease ? m->start_ns + ((uint64_t)o->lease << TICK_BITS) : 0;
}
static inline uint64_t used_at_ns(const struct mind *m, const struct obj *o)
{
	return m->start_ns + ((uint64_t)o->used << TICK_BITS);
}

static inline bool same_under(const struct mind_under *a, const struct mind_under *b)
{
	return a->shard == b->shard && a->term == b->term && a->adoption == b->adoption &&
	       a->pool_epoch == b->pool_epoch;
}

static inline struct bytes obj_key(const struct obj *o)
{
	return BYTES(o->key, o->key_n);
}

static inline bool holder_in(const struct holder *h)
{
	return h->state >= HOLDER_SILENT;
}

/* Its entry of the index is to be trusted: merged, and seen in the merge under way. */
static inline bool copy_known(const struct holder *h, const struct copy *c)
{
	return h->state == HOLDER_MERGED ||
	       ((h->state == HOLDER_MERGING || h->state == HOLDER_FINISHING) &&
		c->merge == h->merge);
}

/* ---- mind.c: life, calls ---- */

void mind_enter(struct mind *m);
void mind_leave(struct mind *m);
void call_init(struct mind_call *c, enum call_kind kind);
/* It waits: on a list, until call_end. false: calls_max (c ends with BUSY). */
bool call_wait(struct mind *m, struct mind_call *c, struct list *on, void *what);
void call_end(struct mind *m, struct mind_call *c, enum err e);
/* Ends every call of a list. */
void calls_end(struct mind *m, struct list *l, enum err e);
/* All objects that wait look again (a holder merged, or went). */
void mind_kick(struct mind *m);
struct bytes tenant_name(const struct mind *m, uint16_t index);
/* TENANTS_MAX: none (and make is false, or no memory). */
uint16_t tenant_of(struct mind *m, struct bytes name, bool make);

/* ---- mind_tenant.c: whose bytes, whose turn ---- */

enum err tenants_init(struct mind *m) MUST_CHECK;
void tenants_free(struct mind *m);
struct lru_set *set_of(const struct mind *m, const struct obj *o);
/* What an attempt or a copy takes is its tenant's from before it is written until it is free again. */
void charge_attempt(struct mind *m, const struct attempt *a, bool on);
void charge_copy(struct mind *m, const struct copy *c, bool on);
void charge_quar(struct mind *m, const struct quar *q, bool on);
void charge_pull(struct mind *m, const struct pull *p, bool on);
/* Before anything is allocated. ERR_NONE; ERR_QUOTA; ERR_BUSY: *over bytes of the tenant's must go first. */
enum err quota_check(struct mind *m, uint16_t tenant, const struct msg_put_item *it,
		     uint64_t bytes, uint64_t *over, struct why *why) MUST_CHECK;
struct holder *holder_at(const struct mind *m, uint32_t index);

/* ---- mind_app.c: appends ---- */

/* Room for n records; NULL without memory. */
struct app *app_new(struct mind *m, enum app_kind kind, size_t n);
void app_send(struct mind *m, struct app *a);
/* Tombstones up to `ceiling` are durable for every away holder; if not, they are asked for (V7). */
bool tombs_durable(struct mind *m, struct obj *o, uint64_t ceiling);
void retry_later(struct mind *m);

/* ---- mind_obj.c ---- */

struct obj *obj_find(const struct mind *m, uint16_t tenant, struct bytes key);
/* The object, made if need be; a merge has no limit: what is there already is kept. ERR_NO_MEMORY */
enum err obj_merge(struct mind *m, uint16_t tenant, struct bytes key, struct obj **out)
	MUST_CHECK;
/* ERR_BUSY: index_bytes_max; ERR_NO_MEMORY */
enum err obj_get(struct mind *m, uint16_t tenant, struct bytes key, struct obj **out)
	MUST_CHECK;
/* Frees it if nothing is left of it. */
void obj_gc(struct mind *m, struct obj *o);
struct work *work_get(struct mind *m, struct obj *o); /* NULL without memory */
void work_gc(struct mind *m, struct obj *o);
/* A served copy of a holder that is in; the newest. */
struct copy *obj_served(const struct mind *m, const struct obj *o);
/* The same, of a holder that answers. */
struct copy *obj_readable(const struct mind *m, const struct obj *o);
void obj_use(struct mind *m, struct obj *o);
bool obj_leased(const struct mind *m, const struct obj *o);
bool opts_default(const struct msg_put_opts *o);
enum err opts_copy(struct mind *m, const struct msg_put_opts *o, struct opts **out) MUST_CHECK;
void opts_free(struct mind *m, struct opts *o);
struct copy *copy_new(struct mind *m, struct obj *o, struct holder *h, uint32_t slot,
		      size_t n_ranges);
/* Takes it out of its object, slot table and counts, and gives its ranges back (give). */
void copy_drop(struct mind *m, struct copy *c, bool give);
void copy_serve(struct mind *m, struct copy *c);
void copy_unserve(struct mind *m, struct copy *c);
void copy_state(struct mind *m, struct copy *c, enum copy_state s);
enum lru lru_of(const struct mind *m, const struct obj *o); /* as its pins have it */
void lru_add(struct mind *m, struct obj *o, enum lru which, bool old);
void lru_del(struct mind *m, struct obj *o);
uint64_t space_of(const struct copy *c); /* bytes; at least 1: an object of none has a slot */
void copy_coming(struct mind *m, struct copy *c, bool on);
void copy_later(struct mind *m, struct copy *c); /* instead: until copy_coming is said again */
void obj_show(struct mind *m, const struct obj *o, const struct copy *best,
	      struct mind_object *out);

/* ---- mind_slot.c ---- */

struct copy *slot_at(const struct holder *h, uint32_t slot);
enum err slot_put(struct mind *m, struct holder *h, uint32_t slot, struct copy *c) MUST_CHECK;
void slot_take(struct mind *m, struct holder *h, uint32_t slot);
/* What the copy's state owes its holder: said now, or when there is room. */
void slot_owe(struct mind *m, struct copy *c);
void slot_answered(struct mind *m, struct copy *c);
/* RETIRED and not served: FREE now, or later. */
void slot_free_due(struct mind *m, struct copy *c);
/* All that was said is to be said again, under the present adoption. */
void slots_unsend(struct mind *m, struct holder *h);
void slots_send(struct mind *m, struct holder *h);
void slots_resend(struct mind *m, struct holder *h);
/* Looks at what waits for a time; sliced; true while there is more. */
bool slots_later(struct mind *m, struct holder *h);
uint64_t slots_later_ns(const struct holder *h);
/* Space is short: what only waits for an older master's leases does not wait (low_reserve). */
void slots_hurry(struct mind *m, struct holder *h);
/* It is suspect, or has answered no command for LATE_MS: others make room meanwhile (L4). */
bool holder_late(const struct mind *m, const struct holder *h);
/* It keeps as many objects as it can, whatever their bytes: another put there needs one of them to go (B2). */
bool holder_slots_full(const struct holder *h);
/* What is freed there can be put to, soon: it is merged, not late, and not being drained. */
bool holder_gives(const struct mind *m, const struct holder *h);
void pages_free(struct mind *m, struct holder *h);

/* ---- mind_group.c ---- */

/* Into opts; nothing when it names none. ERR_NO_MEMORY */
enum err group_join(struct mind *m, uint16_t tenant, struct opts *o) MUST_CHECK;
/* An attempt of a member begins; ends (before its opts go, or become a copy's). */
void group_attempt(struct mind *m, struct opts *o, bool on);
/* A copy with these opts is there; has become served, or no longer is; is of another state; is gone. */
void group_link(struct mind *m, struct copy *c);
void group_served(struct mind *m, struct copy *c, bool on);
void group_state(struct mind *m, struct copy *c);
void group_leave(struct mind *m, struct opts *o);
/* An inventory has c RETIRED by an eviction with this id: every member up to it goes. */
void group_mark(struct mind *m, struct copy *c, uint64_t evict_id);
/* FREE, and leaving the index, wait for all of the group. */
bool group_holds(const struct copy *c);
/* That of what is served of o; NULL: none. */
struct group *group_of(const struct obj *o);
/* Of a put: ERR_CONFLICT, ERR_INVALID_PARAMS, or where it has to wait. */
enum err group_may_put(struct mind *m, uint16_t tenant, const struct obj *o,
		       const struct msg_put_item *it, struct list **wait, struct why *why)
	MUST_CHECK;
/* ERR_NOT_FOUND: its group is not whole, or goes; ERR_RECOVERING: not all of it is merged. */
enum err group_readable(struct mind *m, const struct copy *c, struct why *why) MUST_CHECK;
bool group_evictable(struct mind *m, struct group *g);
void group_evict(struct mind *m, struct group *g);
void group_used(struct mind *m, struct group *g);
/* A lease on one protects all. */
void group_leased(struct group *g, uint32_t tick);
void group_released(struct group *g);
/* The soft pin of a member begins to run; has ended. */
void group_soft(struct mind *m, struct opts *o, bool on);
uint64_t group_lease_ns(const struct mind *m, struct group *g);
void group_place(struct mind *m, struct group *g, bool old); /* in the order of use */
/* Those that go may go on: a holder was merged, or went. */
void groups_kick(struct mind *m);
void group_appended(struct mind *m, struct app *a);
/* About n members; true while there is more. */
bool groups_work(struct mind *m, size_t n);
void groups_free(struct mind *m);
/* Asserts the recount. */
void groups_check(const struct mind *m);

/* ---- mind_space.c: segments, placement, waiting puts ---- */

enum err segs_reset(struct mind *m, struct holder *h, const struct mind_segment *s, size_t n)
	MUST_CHECK;
void segs_grow(struct mind *m, struct holder *h, const struct mind_segment *s, size_t n);
/* Until when more space is to be expected of segments that are still being mounted; 0: none is. */
uint64_t segs_growing_ns(const struct mind *m);
void segs_free(struct mind *m, struct holder *h);
struct segment *seg_of(const struct holder *h, uint32_t number);
enum err space_reserve(struct mind *m, struct holder *h, uint32_t segment,
		       const struct range *r, size_t n) MUST_CHECK;
void space_give(struct mind *m, struct holder *h, uint32_t segment, const struct range *r,
		size_t n);
struct place {
	struct holder *h;
	uint32_t segment;
	size_t n;
	struct range r[OBJ_EXTENTS_MAX];
};
bool space_take_at(struct mind *m, struct holder *h, uint64_t bytes, struct place *out);
/* mind_place.c: at the holder that the strategy has; false: there is no room. */
bool place_take(struct mind *m, uint64_t bytes, struct place *out);
/* ERR_TOO_LARGE, ERR_RECOVERING, ERR_NOT_READY, ERR_NO_SPACE (now) */
enum err space_take(struct mind *m, uint64_t bytes, const struct bytes_list *preferred,
		    struct place *out, struct why *why) MUST_CHECK;
/* Bytes of the largest segment there is. */
uint64_t space_largest(const struct mind *m);
/* Waiting puts try again: those for the pool's space in order, those over a quota in their tenant's. */
void space_pump(struct mind *m);
/* Does any put wait for space? */
bool space_waited(const struct mind *m);
void quar_add(struct mind *m, struct holder *h, struct attempt *a);
void quar_free(struct mind *m, struct holder *h, struct quar *q, bool give);

/* ---- mind_put.c ---- */

struct client *client_get(struct mind *m, uint16_t tenant, const uint8_t *id);
struct client *client_find(const struct mind *m, uint16_t tenant, const uint8_t *id);
bool client_closed(const struct client *c, uint64_t number);
void client_close(struct mind *m, struct client *c, uint64_t number);
void client_release(struct mind *m, struct client *c);
void client_hold(struct client *c);
/* ERR_NONE: p is filled. *wait: where it is to wait (for space, for a group that goes); NULL: it ended. */
enum err put_try(struct mind *m, const struct wput *w, struct list **wait);
struct attempt *attempt_of(const struct mind *m, uint64_t version);
/* Ends it: its number is closed, its range given back (give). */
void attempt_end(struct mind *m, struct attempt *a, bool give);
void attempt_fence(struct mind *m, struct attempt *a);
void attempt_say(struct mind *m, const struct attempt *a);
/* Its slot is COMMITTED: the attempt becomes a copy. NULL without memory. */
struct copy *attempt_commit(struct mind *m, struct attempt *a, uint32_t slot,
			    uint64_t generation, uint64_t sum);
bool attempts_due(struct mind *m);
/* ERR_STALE_TERM, ERR_INVALID_PARAMS; the tenant. */
enum err who_check(struct mind *m, const struct mind_who *w, uint16_t *tenant, struct why *why)
	MUST_CHECK;
enum err key_check(struct bytes key, struct why *why) MUST_CHECK;

/* Do the conditions of its put still hold? */
bool cond_holds(const struct mind *m, const struct attempt *a);

/* ---- mind_t2.c ---- */

/* Versions up to it are dead at h: by the key, or by its group (V11, V14). */
uint64_t holder_barred(const struct mind *m, const struct holder *h, const struct obj *o,
		       const struct opts *p);

/* May that slot hold something new? What the table has there was freed (the answer is late), or the
 * holder is adopted again. */
bool slot_vacant(struct mind *m, struct holder *h, uint32_t slot, uint64_t generation);

/* Does what is due for this object; may free it. */
void obj_step(struct mind *m, struct obj *o);
/* No unmerged holder may have something of it (V8). */
bool obj_settled(const struct mind *m, const struct obj *o);
/* Publishes that came before the holder was merged. */
void publish_early(struct mind *m, struct holder *h);
/* A remove of all up to the ceiling: RETIRE is due. true: obj_step has something to do at once. */
bool obj_remove(struct mind *m, struct obj *o, uint64_t ceiling);
/* RETIRE is due for it. */
void copy_retire(struct mind *m, struct copy *c, enum retire_reason reason);
void copy_retired(struct mind *m, struct copy *c);

/* ---- mind_merge.c ---- */

void merge_finish(struct mind *m, struct holder *h);

/* ---- mind_holder.c ---- */

void holder_set(struct mind *m, struct holder *h, enum holder_state s, bool known);
void holder_step(struct mind *m, struct holder *h);
void holder_adopt(struct mind *m, struct holder *h);
bool holder_work(struct mind *m, struct holder *h);
void holder_appended(struct mind *m, struct app *a, enum err e);
void holder_say(struct mind *m, struct holder *h);
/* SETTLED when all it owes by tombstones and floor is acknowledged. */
void holder_settle(struct mind *m, struct holder *h);
enum err holder_load(struct mind *m);
void holders_free(struct mind *m);
void holders_due(struct mind *m);

/* ---- mind_evict.c ---- */

/* Makes room for that much: true while room will come; else *e and *retry_ms say why not.
 * only: of this tenant's objects; NULL: of all. */
bool evict_for(struct mind *m, const struct tenant *only, uint64_t bytes, enum err *e,
	       uint32_t *retry_ms);
/* The same for an index that is full: some objects go, whatever their bytes. */
bool evict_index(struct mind *m, enum err *e, uint32_t *retry_ms);
bool evict_turning(const struct mind *m); /* not all were looked at */
bool evict_work(struct mind *m);
/* When evict_work is due for the watermark's sake: m->now or later; UINT64_MAX: it is not. */
uint64_t evict_due_ns(const struct mind *m);
enum err evict_obj(struct mind *m, struct obj *o) MUST_CHECK;

/* May it go now? The hard-pinned may not. */
bool evict_may(struct mind *m, struct obj *o);

/* ---- mind_clear.c ---- */

/*
 * There was no room for that much. true: a stretch of it is being emptied, because free bytes are enough, in
 * pieces; the put waits. coming: something is on its way back.
 */
bool clear_for(struct mind *m, uint64_t bytes, bool coming);
bool clear_work(struct mind *m); /* a slice; true while there is more */
void clear_free(struct mind *m);

/* ---- mind_range.c ---- */

void range_pump(struct mind *m);
bool range_work(struct mind *m);
void range_appended(struct mind *m, struct app *a, enum err e);
bool range_walking(const struct mind *m);
void ranges_free(struct mind *m);

#include "mind_copy.h"
