/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the store on a loop: the flows of put, get, remove and the probes (spec/store.md), with
 * their retries, over rpc and mapped pools. libpomelo's handle runs one on its own thread; simulated
 * clients run one on a simulated loop, the same code.
 *
 *   put  PUT_START -> map the pool -> lane_begin -> copy in steps (lane_look between) -> lane_end -> COMMIT
 *   get  QUERY -> map the pool -> copy in steps -> shmpool_same -> (other replica, QUERY again, LEASE_LOST)
 *
 * I1: a call ends exactly once, by its deadline, and then nothing touches its buffers any more.
 * I2: attempt numbers rise and are never given twice (V4, V5).
 * I3: what changes something names the term it is sent under; STALE_TERM is sent again only while its
 *     call is open, a remove then with the old term's ceiling (V4, T3).
 * I4: bytes of a get are the caller's only after shmpool_same said yes; on an error they are undefined,
 *     and the item says so by its err (T4).
 *
 * Retried until the deadline: STALE_TERM, STALE_EPOCH, STALE_ATTEMPT, LEASE_LOST (a few times), RECOVERING,
 * TEMPORARILY_AWAY, BUSY, NOT_READY, lost connections. Not retried: BUSY_WRITING of another client's put.
 *
 * Thread: the loop's, but for `map` and copies, which run on the session's workers.
 */
#pragma once

#include "base/arena.h"
#include "base/log.h"
#include "loop/loop.h"
#include "proto/messages.h"
#include "rpc/auth.h"
#include "rpc/rpc.h"
#include "store/shmpool.h"

struct stc;

enum { STC_ITEMS_MAX = 4096, STC_RANGES_MAX = 1 << 20 };

/* A holder's pool as a reply named it. Borrowed for the call. */
struct stc_place {
	const char *holder, *host, *fd_path;
	uint8_t pool[16];
};

struct stc_opts {
	struct loop *loop;
	const struct keyring *keys; /* borrowed for life */
	const struct log *log;	    /* borrowed for life */
	const char *tenant;	    /* copied */
	const uint8_t *instance;    /* 16 bytes, of this client; copied */
	const char *host_id;	    /* holders that name it share memory with us; copied */
	/* The client of the master, borrowed as long as the session; asked for by need. */
	enum err (*master)(void *ctx, struct rpc_client **out, struct why *why);
	/* The same, as an administrator. NULL: there is none, and nothing is asked as one. */
	enum err (*admin)(void *ctx, struct rpc_client **out, struct why *why);
	/* Maps a pool; the session closes it (shmpool_close), and then conn, unless it is -1. On a
	 * worker; may block for some seconds. */
	enum err (*map)(void *ctx, const struct stc_place *at, struct shmpool **out, int *conn,
			struct why *why);
	/* Simulations: false once the process was killed; pools are not touched from then on. NULL: true. */
	bool (*alive)(void *ctx);
	void *ctx;
	uint32_t threads;    /* workers; 0: 2 */
	uint32_t step_bytes; /* of a copy between two looks; 0: 8 MiB */
	uint32_t
		inline_bytes; /* up to so many are copied on the loop; 0: 64 KiB; UINT32_MAX: none */
	uint32_t calls_max;	/* under way; more are ERR_BUSY; 0: 4096 */
	uint32_t snap_keys_max; /* in all snapshots; more are ERR_BUSY; 0: 1 Mi */
};

/* out: owned, stc_close(). ERR_NO_MEMORY, ERR_BUSY (no threads). */
enum err stc_new(const struct stc_opts *o, struct stc **out, struct why *why) MUST_CHECK;
/* Calls under way end with ERR_CLOSED, then closed runs and s is gone. Never inside this call. */
void stc_close(struct stc *s, void (*closed)(void *arg), void *arg);
/* The last term heard of; 0: none yet. */
uint64_t stc_term(const struct stc *s);

/* ---- calls ---- */

enum stc_kind {
	STC_PUT,	  /* items: key, bufs, group */
	STC_GET,	  /* items: key, bufs, ranges (none: the whole) */
	STC_REMOVE,	  /* items: key, if_version */
	STC_REMOVE_RANGE, /* one item: key is the prefix, may be empty */
	STC_EXISTS,	  /* items: key */
	STC_STAT,	  /* items: key -> stat */
	STC_QUERY,	  /* items: key -> object, places; under a lease */
	STC_RELEASE,	  /* items: key, if_version: as queried */
	STC_SNAPSHOT,	  /* items: key, if_version -> version, size: they join call.snap */
	STC_LIST,	  /* one item: key is the prefix; cursor, limit, tier -> list */
	STC_EXPLAIN,	  /* one item: key -> explain */
	STC_HOLDERS,	  /* one item, nothing in it -> holders */
	STC_TASK_START,	  /* one item; task -> task_id */
	STC_TASKS,	  /* one item; task.ids -> tasks */
	STC_TASK_CANCEL,  /* one item; task.ids, one */
};

enum stc_task_kind { /* as in proto/store.def */
		     STC_TASK_COPY = 1,
		     STC_TASK_MOVE,
		     STC_TASK_DRAIN,
		     STC_TASK_PREFETCH,
};

struct stc_buf {
	void *p; /* PUT: only read */
	size_t n;
};
struct stc_range {
	uint64_t offset, bytes;
};

struct stc_item {
	/* in: all borrowed until done */
	struct bytes key;
	const struct stc_buf *bufs; /* PUT: the value; GET: filled in order */
	uint32_t n_bufs, n_ranges;
	const struct stc_range *ranges; /* GET: these, one after the other, fill the buffers */
	uint64_t
		if_version; /* PUT: over this one; GET, REMOVE, RELEASE: only this one; 0: any */
	struct bytes require_key; /* PUT: only while this key has require_version */
	uint64_t require_version;
	struct bytes group; /* PUT */
	uint32_t group_size;

	/* out */
	enum err err;
	uint32_t retry_ms;
	const char *peer, *step, *text; /* with err; valid as long as the call; "" or more */
	uint64_t version;
	uint64_t size;	 /* PUT, GET, STAT, QUERY: of the object; also with GET's TOO_LARGE */
	uint64_t bytes;	 /* GET: copied; REMOVE_RANGE: objects removed */
	uint64_t pinned; /* REMOVE_RANGE: hard-pinned ones that stayed */
	uint32_t copies; /* PUT: made */
	uint8_t tier;	 /* GET: of the replica that was read; 0: none */
	union {		 /* in the call's memory */
		const struct msg_stat *stat;
		const struct msg_object *object;
		const struct msg_list_rep *list;
		const struct msg_explain_rep *explain;
		const struct msg_holders_rep *holders;
		const struct msg_tasks_rep *tasks;
		uint64_t task_id;
	};
	const struct msg_place *places; /* QUERY: named by object->replicas[].place */
	size_t n_places;

	/* private */
	struct stc_flow *flow;
};

struct stc_call {
	/* set before stc_start */
	uint64_t deadline_ns; /* of the loop's clock */
	void (*done)(struct stc_call *c);
	void *user;
	struct { /* PUT, of all items */
		bool upsert, if_absent, durable, hard_pin;
		uint32_t replica_num, replicas_required;
		uint64_t soft_pin_ms;
		const struct bytes *preferred; /* holder ids */
		size_t n_preferred;
		struct bytes format;
	} put;
	struct {	     /* GET, QUERY, EXISTS, STAT */
		bool verify; /* GET: re-hash what arrived (T4) */
		bool recovering_as_miss;
		uint32_t lease_ms;
		struct bytes format;
	} get;
	/* SNAPSHOT: what they join; GET: what is read. A reference, the call's; NULL: none */
	struct stc_snap *snap;
	bool missing_ok; /* SNAPSHOT: those that are NOT_FOUND are left out; false: then none joins */
	bool force; /* REMOVE, REMOVE_RANGE: hard-pinned ones too */
	bool admin; /* TASK*: asked as an administrator */
	struct {    /* TASK* */
		enum stc_task_kind kind;
		struct bytes from, to;
		uint32_t replica_num;
		struct bytes_list keys;
		struct u64s ids;
	} task;
	struct { /* LIST */
		struct bytes cursor;
		uint32_t limit;
		uint8_t tier;
	} list;

	/* results; items each have their own */
	uint64_t bytes_done; /* moved so far, atomic; any thread */

	/* set by stc_call_new */
	enum stc_kind kind;
	uint32_t n;
	struct stc_item *items; /* zeroed: the caller fills them */
	struct stc_work *work;	/* private */
};

/* n: 1..STC_ITEMS_MAX. out: owned, stc_call_free() when it was not started or is done. ERR_NO_MEMORY,
 * ERR_INVALID_PARAMS. */
enum err stc_call_new(enum stc_kind kind, uint32_t n, struct stc_call **out) MUST_CHECK;
void stc_call_free(struct stc_call *c);
/*
 * done follows, later, never inside this call; by the deadline and a copy step. An item that is wrong
 * by itself (its key, its size) ends with ERR_INVALID_PARAMS, the others go on.
 *
 * ERR_BUSY  calls_max; ERR_CLOSED; nothing was started
 */
enum err stc_start(struct stc *s, struct stc_call *c) MUST_CHECK;
/* Items that are not over end with ERR_CANCELLED, attempts are revoked; done follows. */
void stc_cancel(struct stc_call *c);

/* ---- snapshots: keys resolved once, leased until it is shut ---- */

/*
 * Filled by STC_SNAPSHOT calls, read by STC_GET calls: LEASE_LOST for a key whose version has gone, NOT_FOUND
 * for one that is not in it. Counted. Any thread.
 */
struct stc_snap;
enum err stc_snap_new(struct stc_snap **out) MUST_CHECK; /* ERR_NO_MEMORY */
struct stc_snap *stc_snap_ref(struct stc_snap *p);
void stc_snap_unref(struct stc_snap *p);
/* For good: no key joins any more, leases go back. Calls that have it go on. */
void stc_snap_shut(struct stc_snap *p);
struct stc_found {
	uint64_t version, size;
	bool lost;
};
/* False: the key is not in it. */
bool stc_snap_find(struct stc_snap *p, struct bytes key, struct stc_found *out);
size_t stc_snap_n(struct stc_snap *p);
