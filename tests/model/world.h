/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole store in one struct, for the model checker: the master's mind (services/master/mind.h), two
 * holders (store/hold.h over pools in plain memory), the clients' lanes (store/shmpool.h), the meta
 * store's state, a network that loses, doubles and reorders, and clients that take a put, a get or a
 * remove step by step. The services' own models and policies, not copies; only who carries messages is
 * ours.
 *
 * An event is one move: a client's step, a message delivered, an append become durable, a fault. What
 * is checked after each is in check.c.
 *
 * All of it lives in the block of snap.h. Thread: one.
 */
#pragma once

#include "services/master/mind.h"
#include "store/hold.h"
#include "store/shmpool.h"

enum {
	W_CLIENTS = 2,
	W_HOLDERS = 2,
	W_KEYS = 2,
	W_EXTENTS_MAX = 2,
	W_MSGS_MAX = 24,
	W_APPENDS_MAX = 16,
	W_VERSIONS_MAX = 12,
	W_ENTRIES_MAX = 8,
	W_EVENTS_MAX = 128,
	W_BLOCK = 4096,
	W_FOLD_MAX = 160,
};

/* How many of each may still happen. */
struct w_budget {
	uint8_t puts[W_CLIENTS], gets[W_CLIENTS], removes[W_CLIENTS];
	uint8_t evicts, fences, master_deaths, holder_deaths, aways;
	uint8_t loss, dups, kills, stops, giveups, resends, copies, drops;
};

struct w_config {
	const char *name, *about;
	struct w_budget budget;
	uint8_t keys, extents; /* 1..2; extents a holder */
	bool kept;	       /* a death leaves what was sent */
	bool floors;	       /* one tombstone a holder, then a floor */
	bool absent_only;      /* puts, not upserts */
	uint8_t ring;	       /* of revoked versions; 0: 1 */
	uint32_t plant;	       /* mind_limits.mind_break */
	uint32_t plant_hold;   /* hold_opts.hold_break */
	uint32_t plant_here;   /* enum w_plant */
	const uint16_t *begin; /* events before the search, ends with 0: script.c */
};
enum w_plant { W_NO_GENERATION_CHECK = 1, W_NO_FIRST_LOOK = 2, W_FENCED_BY_NUMBER = 4 };

enum w_msg_kind {
	M_NONE,
	M_PUT_START,
	M_PUT_GRANT,
	M_REMOVE,
	M_REMOVE_REP,
	M_QUERY,
	M_QUERY_REP,
	M_COMMIT,
	M_COMMIT_REP,
	M_REGISTER,
	M_PUBLISH,
	M_PUBLISH_REP,
	M_CONFIRM,
	M_CONFIRM_REP,
	M_REPORT,
	M_CMD,
	M_CMD_REP,
};

struct w_inventory {
	uint32_t n, n_writing;
	struct msg_entry entries[W_ENTRIES_MAX];
	struct msg_writing writing[W_ENTRIES_MAX];
	struct msg_extent extents[2 * W_ENTRIES_MAX];
	char keys[W_ENTRIES_MAX][4];
};

struct w_msg {
	enum w_msg_kind kind;
	uint8_t client, holder, key;
	uint32_t call; /* the client's call it belongs to */
	enum mind_op op;
	enum err err;
	uint64_t term, attempt, version, epoch, generation;
	uint32_t slot;
	bool retired, adopted;
	uint8_t reason, fence;
	uint64_t evict_id;
	struct mind_under under;
	uint8_t extent; /* index + 1; 0: none */
	/* COPY, FENCE of a copy, its REPORT */
	uint64_t number, src_generation;
	uint32_t src_slot;
	uint8_t src, src_extent;
	uint32_t run;		 /* run of the holder that sent it, or that a reply is for */
	struct w_inventory *inv; /* owned */
};

enum w_client_state {
	C_IDLE,
	C_PUT_SENT,
	C_GRANTED,
	C_HAZARD, /* set and looked: may write */
	C_HALF,
	C_WRITTEN, /* second half too */
	C_COMMIT_SENT,
	C_QUERY_SENT,
	C_READ,
	C_READ_HALF,
	C_REMOVE_SENT,
};

struct w_client {
	enum w_client_state state;
	bool dead, stopped;
	uint32_t call; /* counts its calls: late answers are dropped */
	uint8_t key, holder, extent;
	uint64_t term, attempts, attempt, version, epoch, generation, half;
	uint32_t slot;
	uint64_t old_upto; /* versions that must not be returned; at the call's begin */
	uint64_t seen;	   /* remove: versions it must take */
	uint64_t must;	   /* get: acknowledged before it began, nobody having begun its end */
};

/* A copy that a holder fetches: from its source at once, then written in two halves. */
struct w_pull {
	bool on, cut; /* cut: adopted anew meanwhile; its thread has not seen it yet */
	uint8_t halves, key, extent, src, src_extent;
	uint32_t src_slot;
	uint64_t src_generation, version, number, epoch, got[2];
	struct mind_under under;
};

struct w_holder {
	bool up;
	struct w_pull pull;
	struct pool_lane *own; /* its hazard record */
	uint32_t run;
	struct pool_backing *backing; /* outlives the holder's runs */
	struct mempool *pool;
	uint8_t pool_id[16], n_ids;
	struct hold *hold;
	uint64_t data[W_EXTENTS_MAX][2]; /* which version wrote each half */
	uint64_t owner[W_EXTENTS_MAX];	 /* the last grant */
	struct shmpool *maps[W_CLIENTS];
	struct pool_lane *lanes[W_CLIENTS];
	uint32_t sessions[W_CLIENTS];
	bool gone_session[W_CLIENTS];
	/* down: its fold as it died */
	struct {
		uint8_t kind;
		uint64_t v;
	} last[W_FOLD_MAX];
	uint32_t n_last;
};

/* What the outside knows of one version. */
struct w_version {
	uint64_t version;
	uint8_t key, holder, client;
	uint64_t attempt;
	bool acked, committed, began_end,
		moved; /* moved: a copy of it was given up. began_end: a remove or an eviction of it was begun */
	bool decided; /* the master has said that it is there */
	bool floored; /* after that its holder got a floor over it */
};

struct world {
	const struct w_config *cfg;
	struct w_budget left;
	uint64_t now;
	struct meta_state *meta;
	uint64_t meta_seq;
	struct mind *mind; /* NULL: the master is down */
	bool dying;
	struct mind_append *appends[W_APPENDS_MAX];
	uint32_t n_appends;
	struct w_holder holders[W_HOLDERS];
	struct w_client clients[W_CLIENTS];
	struct w_msg msgs[W_MSGS_MAX];
	uint32_t n_msgs;
	bool overflow; /* a bound of the checker was hit: this branch ends */
	/* the outside's view */
	struct w_version versions[W_VERSIONS_MAX];
	uint32_t n_versions;
	uint64_t old_upto[W_KEYS];
	uint32_t removes_open[W_KEYS];
	bool away_ever[W_HOLDERS];
	const char *broken; /* a violation, as text */
};

/* Builds a world inside the block: adopted holders, idle clients. */
struct world *world_new(const struct w_config *cfg);

/* All moves there are now; returns how many. */
size_t world_events(const struct world *w, uint16_t *out);
/* One move. */
void world_apply(struct world *w, uint16_t event);
/* "deliver COMMIT c0 -> h1" for traces; to be asked before it is applied. */
void world_tell(const struct world *w, uint16_t event, char *out, size_t n);
/* The outside's and the master's view, printed. */
void world_show(struct world *w);
/* script.c: the events of cfg->begin as they are in this world, up to `max`, carried out; returns how many.
 * One that cannot be ends the program with a message. */
size_t world_script(struct world *w, uint16_t *out, size_t max);
/* Is it a fault, or a new call? What a fair run leaves out. */
bool event_is_choice(uint16_t event);

/* world_client.c: the clients' side. */
size_t client_events(const struct world *w, uint16_t *out);
void client_apply(struct world *w, unsigned kind, unsigned c);
void client_deliver(struct world *w, struct w_msg *m);

/* check.c: sets w->broken. */
void world_check(struct world *w);
void check_store(struct world *w, unsigned holder, unsigned extent, uint64_t version);
void check_returned(struct world *w, const struct w_client *c, uint64_t version, uint64_t half1,
		    uint64_t half2);
void check_not_found(struct world *w, const struct w_client *c);
uint64_t world_fingerprint(const struct world *w);
/* Keeps what hold_fold says, for while it is down. */
void holder_remember(struct w_holder *h);
/* After faults have ended everything ends well: (f). Destroys w. */
void world_settle(struct world *w);

struct w_version *world_version(struct world *w, uint64_t version);
/* Adds a message; sets overflow when there is no room. */
struct w_msg *world_send(struct world *w, enum w_msg_kind kind);
bool msg_waits(const struct world *w, const struct w_msg *m);
void world_broken(struct world *w, const char *text);

/* Events: kind in the upper byte, argument in the lower. */
enum w_event {
	E_DELIVER = 1, /* message */
	E_META,	       /* the oldest append is durable */
	E_REGISTER,    /* holder */
	E_SWEEP,       /* holder */
	E_STEP,	       /* client */
	E_PULL,	       /* holder */
	/* choices */
	E_PUT, /* client * 2 + key */
	E_GET,
	E_REMOVE,
	E_DROP, /* message */
	E_DUP,
	E_EVICT,       /* key */
	E_FENCE,       /* index of version */
	E_MASTER_DIES, /* appends that were durable */
	E_HOLDER_DIES,
	E_HOLDER_STARTS, /* holder; no fault, but in no fair run needed more than once */
	E_MASTER_STARTS,
	E_AWAY,
	E_KILL, /* client */
	E_STOP,
	E_CONT,
	E_GIVE_UP,
	E_AGAIN,  /* client: an impatient second COMMIT */
	E_RESEND, /* holder */
	E_COPY,	  /* key * 2 + holder: another copy, there */
	E_GIVE,	  /* likewise: the one there is given up */
};
/* In cfg->begin alone. */
enum w_script {
	S_QUIET = 64, /* all that needs no choice, the oldest first, until nothing is left */
	S_SEND,	      /* the oldest message of this kind (enum w_msg_kind) is delivered */
	S_DUP,	      /* or doubled */
	S_STEPS,      /* client: until its COMMIT is sent */
	S_AWAY_OF,    /* the holder of the version with this number, from 0 */
};
#define EVENT(kind, arg) ((uint16_t)((kind) << 8 | (arg)))
#define EVENT_KIND(e)	 ((unsigned)(e) >> 8)
#define EVENT_ARG(e)	 ((unsigned)(e)&255)
