/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpomelo, the object store: immutable bytes under keys, in the memory of a cluster's agents.
 *
 *	pml_put(p, "kv/1", 4, data, n, NULL, &err);
 *	pml_get(p, "kv/1", 4, buf, sizeof(buf), &n, NULL, &err);
 *	pml_remove(p, "kv/1", 4, NULL, &err);
 *
 * Many at once, and without waiting: fill an array of items and start it. It takes up to
 * PML_ITEMS_MAX; each has its own result.
 *
 *	struct pml_item it[2] = { PML_ITEM_INIT, PML_ITEM_INIT };
 *	it[0].key = "kv/1", it[0].key_bytes = 4, it[0].bufs = &buf0, it[0].n_bufs = 1; ...
 *	pml_get_start(p, it, 2, NULL, cq, my_ptr, &op, &err);
 *	... it arrives in cq (pml.h), or with cq NULL: pml_op_wait(op)
 *	for each: pml_op_result(op, i, &r)
 *	pml_op_free(op);
 *
 * What is promised: a put that succeeded is there for every later get, until it is removed, replaced or
 * evicted, whatever process dies meanwhile but the holder of its last copy; a get returns an object's
 * exact bytes or an error; a remove that succeeded is final. A call that ended in an error may still take
 * effect (its answer may have been what was lost).
 *
 * Keys: 1 to 1024 bytes of any values. Objects: 0 bytes to 1 TiB; zero bytes is an object. Tenants do not
 * see each other's.
 *
 * Memory: buffers are yours and must live until the call is over: it returned, was collected, or
 * pml_op_free came back, which waits for that (a copy of some MiB at most). All else of items and options
 * is copied by the start. After a failed get the buffers' contents are undefined.
 *
 * Retries: what passes by itself (a restarted master or agent, a full pool with something to evict) is
 * tried again until the deadline. Not BUSY_WRITING: another writer is putting the key.
 */
#ifndef POMELO_PML_STORE_H
#define POMELO_PML_STORE_H

#include "pml.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PML_ITEMS_MAX 4096
#define PML_KEY_MAX   1024

/* A piece of memory. */
struct pml_buf {
	void *p; /* puts only read it */
	size_t n;
};

/* A part of an object. */
struct pml_range {
	uint64_t offset, bytes;
};

struct pml_nd_region; /* pml_memory.h */

/* One object of a call. All items of an array have the same size, which is their distance. */
struct pml_item {
	size_t size;
	const void *key;
	size_t key_bytes;
	/* put: the value, piece by piece; get: filled piece by piece */
	const struct pml_buf *bufs;
	size_t n_bufs;
	/* get: these parts, one behind the other; none: the whole object */
	const struct pml_range *ranges;
	size_t n_ranges;
	/* put, upsert: only over this version; get, remove: only this one, else CONFLICT; release: as
	 * queried. 0: any */
	uint64_t version;
	/* put: only while this key has that version, else CONFLICT */
	const void *require_key;
	size_t require_key_bytes;
	uint64_t require_version;
	/* put: object group, evicted together; group_size: its members are readable only while there are as many;
	 * 0: open. CONFLICT: the group has another size, or all of its members */
	const void *group;
	size_t group_bytes;
	uint32_t group_size;
	uint32_t reserved; /* 0 */
	/* put, get: strided memory, in the place of bufs and ranges (pml_memory.h) */
	const struct pml_nd_region *regions;
	size_t n_regions;
};
#define PML_ITEM_INIT                                                                   \
	{                                                                               \
		sizeof(struct pml_item), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/* What came of item i. */
struct pml_result {
	size_t size;
	int code;
	uint32_t retry_ms; /* with an error: when to try again; 0: no hint */
	uint64_t version;  /* put: made; get, stat, query: found */
	uint64_t
		object_bytes; /* put, get, stat, query: of the object; get: also with TOO_LARGE */
	uint64_t bytes;	      /* get: copied; remove_prefix: objects removed */
	uint64_t pinned;      /* remove_prefix: hard-pinned ones that stayed */
	uint32_t copies;      /* put: made before the acknowledgement */
	uint32_t
		tier; /* get: where the bytes came from: 1 memory, 2 disk; 0: there were none */
};
#define PML_RESULT_INIT                                           \
	{                                                         \
		sizeof(struct pml_result), 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/* ---- any operation ---- */

/* Until it is over; returns its code. Its deadline ends the wait. */
PML_API int pml_op_wait(struct pml_op *op);
/* Items of a store operation; 0 for others. Its code is 0 when all went well, else that of the first that
 * did not. */
PML_API size_t pml_op_n(const struct pml_op *op);
/* out->size is set by the caller. INVALID_PARAMS: no such item; BUSY: under way. */
PML_API int pml_op_result(const struct pml_op *op, size_t i, struct pml_result *out);
/* Why item i failed: peer, step and text. */
PML_API int pml_op_item_error(const struct pml_op *op, size_t i, struct pml_error *out);
/* Bytes a put or get has moved so far, and what it will have moved in the end as far as is known
 * (puts). Any time. */
PML_API int pml_op_progress(const struct pml_op *op, uint64_t *moved, uint64_t *total);

/* ---- put ---- */

/* What a soft pin lasts when nothing else is wanted. */
#define PML_SOFT_PIN_DEFAULT_MS 1800000

struct pml_put_opts {
	size_t size;
	uint32_t deadline_ms;	    /* 0: the handle's */
	uint32_t replica_num;	    /* copies wanted; 0: 1 */
	uint32_t replicas_required; /* before the acknowledgement; 0: 1 */
	uint32_t n_preferred;
	const char *const *preferred; /* ids of holders tried first, at most 16 */
	uint64_t soft_pin_ms; /* evicted last for so long from when it is readable, a day at
					 most; 0: no soft pin */
	const char
		*format; /* opaque tag of up to 64 bytes: a get that names another one misses */
	bool hard_pin;	 /* the last copy is never evicted */
	bool durable;	 /* acknowledged only with a copy on disk */
	bool if_absent;	 /* upsert: only while the key has no object, else ALREADY_EXISTS */
	bool reserved[5]; /* false */
	/* for items that say nothing themselves */
	uint64_t if_version;
	const void *require_key;
	size_t require_key_bytes;
	uint64_t require_version;
	const void *group;
	size_t group_bytes;
	uint32_t group_size;
	uint32_t reserved2; /* 0 */
};
#define PML_PUT_OPTS_INIT                                                              \
	{                                                                              \
		sizeof(struct pml_put_opts), 0, 0, 0, 0, 0, 0, 0, false, false, false, \
			{ false }, 0, 0, 0, 0, 0, 0, 0, 0                              \
	}

/*
 * A new object. Acknowledged when it is whole at its holder, every older version is marked dead, and it can
 * be found.
 *
 * ALREADY_EXISTS  the key has a whole object (upsert replaces it)
 * BUSY_WRITING    another writer is putting the key; retry_ms
 * CONFLICT        if_version or require do not hold
 * TOO_LARGE       larger than the largest segment    POOL_PINNED  nothing can make room
 * QUOTA           more, or more that is hard-pinned, than the tenant may ever have
 * BUSY, RECOVERING, TEMPORARILY_AWAY, UNREACHABLE, TIMED_OUT  the deadline passed; the last reason
 * UNSUPPORTED     the holder shares no memory with this process and opens no data lanes
 */
PML_API int pml_put(struct pml *p, const void *key, size_t key_bytes, const void *data,
		    size_t n, const struct pml_put_opts *o, struct pml_error *err);
PML_API int pml_put_start(struct pml *p, const struct pml_item *items, size_t n,
			  const struct pml_put_opts *o, struct pml_cq *cq, void *user,
			  struct pml_op **out, struct pml_error *err);
/* The same over an existing object, which stays readable until the new one is whole. */
PML_API int pml_upsert(struct pml *p, const void *key, size_t key_bytes, const void *data,
		       size_t n, const struct pml_put_opts *o, struct pml_error *err);
PML_API int pml_upsert_start(struct pml *p, const struct pml_item *items, size_t n,
			     const struct pml_put_opts *o, struct pml_cq *cq, void *user,
			     struct pml_op **out, struct pml_error *err);

/* ---- get ---- */

enum pml_verify {
	PML_VERIFY_SETTING = 0, /* client.verify */
	PML_VERIFY_AUTO =
		1, /* what comes over a wire or from a disk, or was re-adopted and not read yet */
	PML_VERIFY_ALWAYS = 2, /* re-hash what arrived in the buffers */
};

struct pml_get_opts {
	size_t size;
	uint32_t deadline_ms; /* 0: the handle's */
	uint32_t verify;      /* enum pml_verify */
	uint32_t
		lease_ms; /* get, query: 0 means the cluster's; exists, stat: 0 means no lease */
	uint32_t reserved;  /* 0 */
	const char *format; /* an object put with another tag is NOT_FOUND; NULL: any */
	/* NOT_FOUND instead of waiting for a master that is still merging what holders have */
	bool recovering_as_miss;
	bool reserved2[7]; /* false */
};
#define PML_GET_OPTS_INIT                                          \
	{                                                          \
		sizeof(struct pml_get_opts), 0, 0, 0, 0, 0, false, \
		{                                                  \
			false                                      \
		}                                                  \
	}

/*
 * n_out: its bytes. TOO_LARGE: more than cap; n_out is set to what it takes then.
 *
 * NOT_FOUND; LEASE_LOST (it went while it was read, several times over); CORRUPT; RECOVERING,
 * TEMPORARILY_AWAY, BUSY, UNREACHABLE, TIMED_OUT; UNSUPPORTED as of put
 */
PML_API int pml_get(struct pml *p, const void *key, size_t key_bytes, void *buf, size_t cap,
		    size_t *n_out, const struct pml_get_opts *o, struct pml_error *err);
/* Parts of one object and version, into bufs one behind the other. INVALID_PARAMS: outside of it. */
PML_API int pml_get_ranges(struct pml *p, const void *key, size_t key_bytes,
			   const struct pml_range *ranges, size_t n_ranges,
			   const struct pml_buf *bufs, size_t n_bufs,
			   const struct pml_get_opts *o, struct pml_error *err);
/* Whole objects and parts, as each item says. */
PML_API int pml_get_start(struct pml *p, const struct pml_item *items, size_t n,
			  const struct pml_get_opts *o, struct pml_cq *cq, void *user,
			  struct pml_op **out, struct pml_error *err);

/* ---- remove ---- */

struct pml_remove_opts {
	size_t size;
	uint32_t deadline_ms; /* 0: the handle's */
	bool force;	      /* hard-pinned ones too */
	bool reserved[3];     /* false */
};
#define PML_REMOVE_OPTS_INIT                              \
	{                                                 \
		sizeof(struct pml_remove_opts), 0, false, \
		{                                         \
			false                             \
		}                                         \
	}

/* An absent key is no error. POOL_PINNED: hard-pinned, and no force. */
PML_API int pml_remove(struct pml *p, const void *key, size_t key_bytes,
		       const struct pml_remove_opts *o, struct pml_error *err);
PML_API int pml_remove_start(struct pml *p, const struct pml_item *items, size_t n,
			     const struct pml_remove_opts *o, struct pml_cq *cq, void *user,
			     struct pml_op **out, struct pml_error *err);
/* All keys of the tenant that begin so; 0 bytes: all. removed may be NULL. */
PML_API int pml_remove_prefix(struct pml *p, const void *prefix, size_t prefix_bytes,
			      const struct pml_remove_opts *o, uint64_t *removed,
			      struct pml_error *err);
PML_API int pml_remove_prefix_start(struct pml *p, const void *prefix, size_t prefix_bytes,
				    const struct pml_remove_opts *o, struct pml_cq *cq,
				    void *user, struct pml_op **out, struct pml_error *err);

/* ---- probes: no use of the object, and no lease unless asked ---- */

/* yes: whether it is there. Only what cannot be known is an error. */
PML_API int pml_exists(struct pml *p, const void *key, size_t key_bytes, bool *yes,
		       const struct pml_get_opts *o, struct pml_error *err);
/* Results: 0 or NOT_FOUND each. */
PML_API int pml_exists_start(struct pml *p, const struct pml_item *items, size_t n,
			     const struct pml_get_opts *o, struct pml_cq *cq, void *user,
			     struct pml_op **out, struct pml_error *err);

/* What is known of an object. Texts and arrays are borrowed from the operation. */
struct pml_stat_info {
	size_t size;
	uint64_t version, bytes, sum, idle_ms;
	uint32_t memory, disk; /* copies */
	uint32_t n_holders;
	uint32_t replica_num;
	const char *const *holders; /* n_holders ids */
	const char *format;
	const void *group;
	size_t group_bytes;
	uint64_t soft_pin_ms;
	uint32_t group_size;
	bool leased, hard_pin, durable;
};
#define PML_STAT_INFO_INIT                                                                     \
	{                                                                                      \
		sizeof(struct pml_stat_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false, \
			false, false                                                           \
	}

/* out: yours, pml_op_free(); pml_op_stat(out, 0, ...). */
PML_API int pml_stat(struct pml *p, const void *key, size_t key_bytes,
		     const struct pml_get_opts *o, struct pml_op **out, struct pml_error *err);
PML_API int pml_stat_start(struct pml *p, const struct pml_item *items, size_t n,
			   const struct pml_get_opts *o, struct pml_cq *cq, void *user,
			   struct pml_op **out, struct pml_error *err);
/* out->size is set by the caller. The item's error when it has one. */
PML_API int pml_op_stat(const struct pml_op *op, size_t i, struct pml_stat_info *out);

/* ---- query and release: for callers that move bytes themselves ---- */

struct pml_extent {
	uint32_t segment;
	uint32_t reserved;
	uint64_t offset, bytes;
};

/* One copy of a queried object. Borrowed from the operation. */
struct pml_replica {
	size_t size;
	const char *holder, *host;
	uint8_t pool[16];
	uint64_t
		generation; /* of the slot; another one later: the bytes were not this object's */
	uint32_t slot;
	uint32_t tier; /* 1 memory, 2 disk */
	uint32_t n_extents;
	uint32_t reserved;
	const struct pml_extent *extents;
};
#define PML_REPLICA_INIT                                                  \
	{                                                                 \
		sizeof(struct pml_replica), 0, 0, { 0 }, 0, 0, 0, 0, 0, 0 \
	}

/* Where it lies, under a lease. out: yours, pml_op_free(). */
PML_API int pml_query(struct pml *p, const void *key, size_t key_bytes,
		      const struct pml_get_opts *o, struct pml_op **out, struct pml_error *err);
PML_API int pml_query_start(struct pml *p, const struct pml_item *items, size_t n,
			    const struct pml_get_opts *o, struct pml_cq *cq, void *user,
			    struct pml_op **out, struct pml_error *err);
/* Copies of item i; 0 when it failed. */
PML_API size_t pml_op_n_replicas(const struct pml_op *op, size_t i);
PML_API int pml_op_replica(const struct pml_op *op, size_t i, size_t k,
			   struct pml_replica *out);
/* Milliseconds of the lease, from before the query was sent. */
PML_API uint32_t pml_op_lease_ms(const struct pml_op *op, size_t i);
/* The lease goes back. LEASE_LOST: that version is gone, and what was read may be something else. */
PML_API int pml_release(struct pml *p, const void *key, size_t key_bytes, uint64_t version,
			struct pml_error *err);
PML_API int pml_release_start(struct pml *p, const struct pml_item *items, size_t n,
			      struct pml_cq *cq, void *user, struct pml_op **out,
			      struct pml_error *err);

/* ---- list ---- */

struct pml_list_opts {
	size_t size;
	uint32_t deadline_ms; /* 0: the handle's */
	uint32_t limit;	      /* keys of a page; 0: 1000; at most 4096 */
	uint32_t tier;	      /* 1: with a copy in memory; 2: on disk; 0: any */
	uint32_t reserved;    /* 0 */
	const void *cursor;   /* of the page before; NULL: from the start */
	size_t cursor_bytes;
};
#define PML_LIST_OPTS_INIT                                     \
	{                                                      \
		sizeof(struct pml_list_opts), 0, 0, 0, 0, 0, 0 \
	}

/* One key of a page. Borrowed from the operation. */
struct pml_listed {
	size_t size;
	const void *key;
	size_t key_bytes;
	uint64_t version, bytes;
	uint32_t memory, disk; /* copies */
};
#define PML_LISTED_INIT                                     \
	{                                                   \
		sizeof(struct pml_listed), 0, 0, 0, 0, 0, 0 \
	}

/* A page, in the order of keys' hashes. A key that is there all the time is listed once. */
PML_API int pml_list(struct pml *p, const void *prefix, size_t prefix_bytes,
		     const struct pml_list_opts *o, struct pml_op **out, struct pml_error *err);
PML_API int pml_list_start(struct pml *p, const void *prefix, size_t prefix_bytes,
			   const struct pml_list_opts *o, struct pml_cq *cq, void *user,
			   struct pml_op **out, struct pml_error *err);
PML_API size_t pml_op_n_listed(const struct pml_op *op);
PML_API int pml_op_listed(const struct pml_op *op, size_t i, struct pml_listed *out);
/* For the next page; NULL: this was the last. Borrowed from the operation. */
PML_API const void *pml_op_cursor(const struct pml_op *op, size_t *n);
/* list, holders: the master is still merging what holders have; more may come. */
PML_API bool pml_op_recovering(const struct pml_op *op);

/* ---- for people ---- */

/* All that the master knows of a key: lines of name and value. out: yours, pml_op_free(). */
PML_API int pml_explain(struct pml *p, const void *key, size_t key_bytes,
			const struct pml_call_opts *o, struct pml_op **out,
			struct pml_error *err);
PML_API size_t pml_op_n_facts(const struct pml_op *op);
/* Borrowed from the operation. */
PML_API int pml_op_fact(const struct pml_op *op, size_t i, const char **name,
			const char **value);

struct pml_holder {
	size_t size;
	const char *id, *kind, *state; /* "agent" "owner"; "in" "merging" "suspect" "away" */
	uint64_t objects, bytes_used, bytes_total, quarantine_bytes;
};
#define PML_HOLDER_INIT                                        \
	{                                                      \
		sizeof(struct pml_holder), 0, 0, 0, 0, 0, 0, 0 \
	}

/* Who holds bytes, and how many. out: yours, pml_op_free(). */
PML_API int pml_holders(struct pml *p, const struct pml_call_opts *o, struct pml_op **out,
			struct pml_error *err);
PML_API size_t pml_op_n_holders(const struct pml_op *op);
PML_API int pml_op_holder(const struct pml_op *op, size_t i, struct pml_holder *out);
/* Objects in the master's index. */
PML_API uint64_t pml_op_objects(const struct pml_op *op);
/* Drops a holder from the roster, with all it holds. FORBIDDEN without the cluster's own secret. */
PML_API int pml_forget(struct pml *p, const char *holder, const struct pml_call_opts *o,
		       struct pml_error *err);

#ifdef __cplusplus
}
#endif
#endif
