/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The durable tier's backends behind one asynchronous ops table (spec/offload.md). An owner knows
 * this header alone: which backend lies behind it is a row (store_backends), what it can do is a row
 * (store_caps), and decorators (store_fault.h) wrap the table. One conformance suite runs over all
 * of them (tests/unit/store_disk).
 *
 * A stored object is (tenant, key, version) and bytes; a backend may hold several versions of a key
 * and never mixes them up. Its text is tenant/key/16-hex-version, URI-encoded (store_id_text).
 *
 * I1: done runs on the loop's thread, exactly once for each accepted request, never inside the call.
 * I2: a batch has one result an item, in the order of the items; items end in any order inside; one
 *     failure leaves the others as they are. When done runs the backend is through with all memory
 *     of the request (items, ids, values, buffers), whatever the results are.
 * I3: an item put with ERR_NONE is durable by the fsync policy: with BATCH and ALWAYS it survives a
 *     power cut. So is an item deleted: it is gone for good, over restarts and power cuts.
 * I4: what get returns with ERR_NONE are the bytes that were put under this id, verified against their
 *     block sums; anything else is an error (T4). After an error the buffer may be dirty.
 * I5: real use of the medium, blocks and not sums of sizes, never passes the limit; above the high
 *     watermark whole segments go, their user is told first (store_opts.evict), and nothing goes
 *     while a get reads it.
 * I6: what was put and then neither deleted nor evicted is listed by scan after any restart. An item
 *     whose put failed may be listed too (its outcome is unknown), with the right bytes; one that was
 *     deleted or evicted never is.
 *
 * Thread: the loop's, for every call here.
 */
#pragma once

#include "base/list.h"
#include "base/log.h"
#include "loop/pool.h"
#include "store/object.h"

struct disk_fs;	 /* store/disk.h */
struct store_be; /* an open backend */

/* Identity of stored bytes. tenant 1..64 bytes, key 1..1024, any bytes in both; version not 0. */
struct store_id {
	struct bytes tenant, key; /* borrowed as long as what holds the id says */
	uint64_t version;
};

#define STORE_ID_TEXT_MAX (3 * 64 + 1 + 3 * 1024 + 1 + 16 + 1)
/* The storage key: tenant/key/16-hex-version, each part URI-encoded (all but A-Z a-z 0-9 - _ . ~). NUL-ended;
 * returns its length. The id must be valid. */
size_t store_id_text(const struct store_id *id, char out[STORE_ID_TEXT_MAX]);
/* The id of a text; its parts go into room[64 + 1024], which out points into. ERR_INVALID_PARAMS for
 * what store_id_text did not make: no other text of an id is taken. */
enum err store_id_of_text(const char *text, uint8_t *room, struct store_id *out) MUST_CHECK;
bool store_id_valid(const struct store_id *id);
bool store_id_equal(const struct store_id *a, const struct store_id *b);

/* ---- what a backend can do: a row ---- */

enum store_sum_kind {
	STORE_SUM_NONE,	  /* the owner has to keep sums itself */
	STORE_SUM_BLOCKS, /* T4's vector, kept and checked on every read */
};

struct store_caps {
	const char *name;
	uint64_t max_value; /* bytes of one object */
	uint32_t max_batch; /* items of one request */
	uint32_t align; /* buffers at such addresses, with room up to a multiple, are read and
				  * written without a copy; others work */
	bool ranges;	/* get of a part; else whole objects only */
	bool conditional_put;	 /* two owners' puts of one id cannot both win */
	bool durable;		 /* keeps anything at all */
	enum store_sum_kind sum; /* */
};

/* ---- requests: caller's memory, taken from the call to done ---- */

struct store_req {
	void (*done)(struct store_req *r); /* may free r or use it again */
	/* private */
	struct store_be *be;
	struct job job;
	struct list node;
	uint64_t deadline_ns;
	int kind;
};

struct store_put_item {
	struct store_id id;
	const void *p; /* n bytes; NULL only when n is 0 */
	uint64_t n;
	uint64_t sum; /* the object's sum as its writer reported it (obj_sum) */
	/*
	 * ERR_NONE           durable (I3), or was already (existed): bytes of one id are equal
	 * ERR_CORRUPT        p's bytes have another sum: nothing is stored
	 * ERR_CONFLICT       the id is stored with another size or sum
	 * ERR_TOO_LARGE      above caps.max_value, or than ever fits into the limit
	 * ERR_NO_SPACE       nothing could be evicted in time, or the file system is full
	 * ERR_BUSY           the limit of objects, or of memory, is reached and nothing goes
	 * ERR_IO             the medium; outcome unknown (I6)
	 * ERR_INVALID_PARAMS id or batch out of range
	 * ERR_UNSUPPORTED    the backend `none`
	 */
	enum err err;
	bool existed;
	bool settled; /* private */
};
struct store_put {
	struct store_req req;
	struct store_put_item *items;
	uint32_t n;
};

#define STORE_WHOLE UINT64_MAX
struct store_get_item {
	struct store_id id;
	uint64_t off,
		n; /* the range; n STORE_WHOLE: to the end. Past the end: ERR_INVALID_PARAMS */
	void *to;  /* room bytes; what lies in it past got may be overwritten */
	uint64_t
		room; /* too small for the range: ERR_TOO_LARGE, size and sum are set all the same */
	/*
	 * ERR_NOT_FOUND     not stored, or its file is gone: forgotten and counted (lost)
	 * ERR_CORRUPT       bytes fail their sum: forgotten, counted (corrupt), kept aside for inspection
	 * ERR_IO            the medium; the object stays listed
	 */
	enum err err;
	uint64_t got, size, sum; /* bytes in `to`; of the whole object */
};
struct store_get {
	struct store_req req;
	struct store_get_item *items;
	uint32_t n;
};

struct store_del_item {
	struct store_id id;
	/* ERR_NONE also when there was none (absent). ERR_IO, ERR_NO_SPACE: it may still be there. */
	enum err err;
	bool absent;
};
struct store_del {
	struct store_req req;
	struct store_del_item *items;
	uint32_t n;
};

struct store_has_item {
	struct store_id id;
	bool there;
	uint64_t size, sum; /* when there */
};
struct store_has {
	struct store_req req;
	struct store_has_item *items;
	uint32_t n;
	enum err err;
};

/* One page of what is stored; every object that is there throughout is listed exactly once. */
struct store_entry {
	struct store_id id; /* bytes in the page */
	uint64_t size, sum;
};
struct store_scan {
	struct store_req req;
	uint64_t cursor;	     /* 0: the beginning */
	uint32_t max_items;	     /* 1..STORE_SCAN_MAX; about so many */
	uint32_t max_bytes;	     /* of keys and tenants, about; 0: 1 MiB */
	enum err err;		     /* ERR_NO_MEMORY, ERR_SHUTTING_DOWN */
	bool more;		     /* cursor says where to go on */
	uint32_t n;		     /* entries; 0 is no end */
	struct store_entry *entries; /* owned, store_scan_fini() */
	void *room;		     /* private */
};
#define STORE_SCAN_MAX 20000
void store_scan_fini(struct store_scan *s);

/* ---- eviction ---- */

/*
 * Objects that shall go to make room. Their user is told before anything is deleted; it answers with
 * store_be_evict_done, at its leisure, after setting keep for those that must stay (they are moved). One at a
 * time. Valid until the answer.
 */
struct store_eviction {
	struct store_evict_item {
		struct store_id id;
		uint64_t size;
		bool keep; /* set by the user */
		bool gone; /* told by `evicted`: its bytes are durably deleted */
	} * items;
	uint32_t n;
	/* private */
	void *room;
	uint64_t what; /* the backend's name of it */
	uint32_t n_dels;
	bool compaction;
};

/* ---- opening ---- */

enum store_fsync { STORE_FSYNC_BATCH, STORE_FSYNC_ALWAYS, STORE_FSYNC_NEVER };
enum store_order { STORE_FIFO, STORE_LRU, STORE_EVICT_NONE };
enum store_uring { STORE_URING_AUTO, STORE_URING_OFF };

struct store_opts {
	const char *backend; /* a row of store_backends: "log" "file" "none" */
	const char *dir;     /* the folder; must exist, absolute, no symbolic link on the way */
	struct disk_fs *fs;  /* instead of dir: borrowed for life (tests, simulations); NULL */
	const char *
		owner; /* durable owner id 1..64 of [A-Za-z0-9._-] for a new folder; NULL: a random
				 * one. A folder of another owner: ERR_DIRECTORY_IN_USE. Borrowed for the call */
	struct log *log; /* borrowed for life */
	uint64_t
		limit_bytes; /* real use; 0: 90 % of what is free at first start, plus own use */
	uint64_t limit_objects; /* 0: 10,000,000 */
	uint32_t high_pct,
		low_pct; /* watermarks of the limit; 0, 0: 90 and 80. low < high <= 100 */
	uint64_t segment_bytes; /* log: 1 MiB..1 GiB; 0: 256 MiB, less for small limits */
	enum store_order order;
	enum store_fsync fsync;
	enum store_uring uring;
	bool no_direct;	      /* no O_DIRECT even where it works */
	uint32_t readers;     /* threads that get; 0: 4. At most 64 */
	uint32_t depth;	      /* ios in flight of one thread; 0: 64. At most 1024 */
	uint32_t queue;	      /* requests waiting for each kind of thread; 0: 256 */
	uint64_t put_wait_ms; /* how long a put waits for evictions; 0: 10,000 (T7) */
	const struct bytes *
		buffers; /* borrowed for life: areas of staging memory to register with io_uring */
	uint32_t n_buffers; /* at most 16 */
	void *ctx;
	/* ERR_NONE: ready. Else w says why, and only store_be_close remains. */
	void (*opened)(void *ctx, enum err e, const struct why *w);
	/* See store_eviction; NULL: evict without asking. */
	void (*evict)(void *ctx, struct store_eviction *ev);
	/* What became of it, after store_be_evict_done(go); NULL is fine. What is neither kept nor gone is still listed, and
	 * will be named again. ev is borrowed for the call. */
	void (*evicted)(void *ctx, const struct store_eviction *ev);
};

/* ---- what it tells ---- */

enum store_health_state {
	STORE_OPENING,
	STORE_OK,
	STORE_FULL,   /* nothing can be evicted: puts fail, all else works */
	STORE_BROKEN, /* writes and deletes are refused until a restart; reads work */
	STORE_CLOSING,
};
const char *store_health_name(enum store_health_state s);

/* Gauges, then counters since the start. Cheap: no I/O. */
struct store_stat {
	uint64_t objects, bytes_live;	   /* sums of sizes */
	uint64_t bytes_used, bytes_limit;  /* real blocks; effective limit */
	uint64_t files, bytes_quarantined; /* segments or files; in quarantined objects */
	uint64_t puts, gets, deletes;	   /* items that ended with ERR_NONE */
	uint64_t bytes_put, bytes_got;
	uint64_t corrupt, lost, io_errors; /* items */
	uint64_t evicted, evicted_bytes, compactions;
	uint64_t bad_files; /* segments that failed an fsync or a write: never written again */
	uint64_t unknown;   /* names and records that lack our metadata: never touched */
	uint64_t rebuilt_from_records; /* files whose footer could not be used at the start */
	bool uring, direct;
};

/* ---- the table: backends and decorators fill it ---- */

struct store_ops {
	enum err (*put_batch)(struct store_be *be, struct store_put *r);
	enum err (*get_batch)(struct store_be *be, struct store_get *r);
	enum err (*delete_batch)(struct store_be *be, struct store_del *r);
	enum err (*exists)(struct store_be *be, struct store_has *r);
	enum err (*scan)(struct store_be *be, struct store_scan *r);
	void (*evict_done)(struct store_be *be, struct store_eviction *ev, bool go);
	void (*stat)(struct store_be *be, struct store_stat *out);
	enum store_health_state (*health)(struct store_be *be, struct why *w);
	const char *(*owner)(struct store_be *be);
	void (*close)(struct store_be *be, void (*closed)(void *ctx), void *ctx);
};
struct store_be {
	const struct store_ops *ops;
	const struct store_caps *caps;
	struct loop *loop;
};

/*
 * Opens the backend o->backend: returns at once, o->opened follows (it may take a scan of the medium).
 *
 * out  owned, store_be_close()
 *
 * ERR_INVALID_PARAMS  (w) an option out of its range, an unknown backend
 * ERR_NO_MEMORY
 */
enum err store_be_open(struct loop *l, const struct store_opts *o, struct store_be **out,
		       struct why *w) MUST_CHECK;
/* closed runs when all that was accepted has ended and the memory is gone. NULL is fine (closed runs in
 * the call). Requests still waiting for room end with ERR_SHUTTING_DOWN. */
void store_be_close(struct store_be *be, void (*closed)(void *ctx), void *ctx);

/* These five: on ERR_NONE r is taken until done. ERR_BUSY: as many wait as may (B1). ERR_NOT_READY before
 * opened. ERR_INVALID_PARAMS: no items, or more than caps.max_batch. ERR_CLOSED after a failed open. */
static inline enum err MUST_CHECK store_be_put(struct store_be *be, struct store_put *r)
{
	return be->ops->put_batch(be, r);
}
static inline enum err MUST_CHECK store_be_get(struct store_be *be, struct store_get *r)
{
	return be->ops->get_batch(be, r);
}
static inline enum err MUST_CHECK store_be_delete(struct store_be *be, struct store_del *r)
{
	return be->ops->delete_batch(be, r);
}
static inline enum err MUST_CHECK store_be_exists(struct store_be *be, struct store_has *r)
{
	return be->ops->exists(be, r);
}
static inline enum err MUST_CHECK store_be_scan(struct store_be *be, struct store_scan *r)
{
	return be->ops->scan(be, r);
}
/* The answer to evict. go false: nothing of it may go now; another try comes when room is short. */
static inline void store_be_evict_done(struct store_be *be, struct store_eviction *ev, bool go)
{
	be->ops->evict_done(be, ev, go);
}
static inline void store_be_stat(struct store_be *be, struct store_stat *out)
{
	be->ops->stat(be, out);
}
/* w: gets a line for all but STORE_OK; may be NULL. */
static inline enum store_health_state store_be_health(struct store_be *be, struct why *w)
{
	return be->ops->health(be, w);
}
/* The folder's durable owner id, once opened. Borrowed. */
static inline const char *store_be_owner(struct store_be *be)
{
	return be->ops->owner(be);
}

/* Every backend this build has. */
struct store_backend_row {
	struct store_caps caps;
	const struct store_blk_ops *blk; /* store_blk.h; NULL: `none` */
};
extern const struct store_backend_row store_backends[];
extern const size_t store_n_backends;
