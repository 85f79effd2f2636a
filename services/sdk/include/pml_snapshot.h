/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpomelo, snapshots: a set of objects that is resolved once, leased together and read many times.
 *
 *	pml_snapshot_open(p, items, n, NULL, &s, &err);		keys of the items
 *	pml_snapshot_get(s, "kv/1", 4, buf, sizeof(buf), &n, NULL, &err);
 *	pml_snapshot_get_ranges(s, "w/7", 3, ranges, 2, bufs, 2, NULL, &err);
 *	pml_snapshot_close(s);
 *
 * What is promised: a key of a snapshot has one version for ever. A read through it gives bytes of that version
 * without asking the master again, or LEASE_LOST for that key alone: it was removed, replaced or evicted meanwhile
 * (leases keep evictions away, not removes). While the snapshot is open the library renews the leases; a master
 * that is away for a while changes nothing.
 *
 * Sets of any size are opened in pages: pml_snapshot_open takes the first keys, or none, pml_snapshot_add more. The
 * keys of all snapshots of a handle are at most client.snapshot_keys (1 Mi); each takes about 300 bytes, and as
 * much again with copies on other hosts.
 *
 * Threads: all functions from any thread, on one snapshot too; only pml_snapshot_close must be the last call on it.
 * It may come after pml_close; the others say PML_ERR_CLOSED then. fork: PML_ERR_FORKED.
 */
#ifndef POMELO_PML_SNAPSHOT_H
#define POMELO_PML_SNAPSHOT_H

#include "pml_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pml_snapshot;

struct pml_snapshot_opts {
	size_t size;
	uint32_t deadline_ms; /* of the opening; 0: the handle's */
	uint32_t lease_ms;    /* 0: the cluster's; renewed at a third of it */
	const char *format;   /* an object put with another tag is NOT_FOUND; NULL: any */
	bool missing_ok;  /* keys that are NOT_FOUND are left out; false: they fail the call */
	bool reserved[7]; /* false */
};
#define PML_SNAPSHOT_OPTS_INIT                                    \
	{                                                         \
		sizeof(struct pml_snapshot_opts), 0, 0, 0, false, \
		{                                                 \
			false                                     \
		}                                                 \
	}

/*
 * Resolves and leases the keys of n items, of which key and version (0: any) count. All of them, or none: then
 * nothing stays open. n may be 0 (nobody is asked), and more than PML_ITEMS_MAX.
 *
 * o    NULL: all defaults; also for what is added later
 * out  yours, pml_snapshot_close()
 *
 * NOT_FOUND, CONFLICT (another version) unless missing_ok has it left out; BUSY client.snapshot_keys; others as
 * pml_get
 */
PML_API int pml_snapshot_open(struct pml *p, const struct pml_item *items, size_t n,
			      const struct pml_snapshot_opts *o, struct pml_snapshot **out,
			      struct pml_error *err);
/* 1 to PML_ITEMS_MAX items. Results: version and object_bytes each. The snapshot is taken out of the operation
 * with pml_op_snapshot; one that is not is closed with it. */
PML_API int pml_snapshot_open_start(struct pml *p, const struct pml_item *items, size_t n,
				    const struct pml_snapshot_opts *o, struct pml_cq *cq,
				    void *user, struct pml_op **out, struct pml_error *err);
/* out: yours. The operation's own error when it failed; BUSY: under way; INVALID_PARAMS: no opening, or taken
 * before. */
PML_API int pml_op_snapshot(struct pml_op *op, struct pml_snapshot **out);

/* More keys. Of each page of PML_ITEMS_MAX all join or none; pages before one that failed stay. A key that is in it
 * already stays as it is. */
PML_API int pml_snapshot_add(struct pml_snapshot *s, const struct pml_item *items, size_t n,
			     const struct pml_call_opts *o, struct pml_error *err);
PML_API int pml_snapshot_add_start(struct pml_snapshot *s, const struct pml_item *items,
				   size_t n, const struct pml_call_opts *o, struct pml_cq *cq,
				   void *user, struct pml_op **out, struct pml_error *err);

/* Keys in it, lost ones among them. */
PML_API size_t pml_snapshot_n(struct pml_snapshot *s);
/* What is known of a key; asks nobody. The value: 0, LEASE_LOST, NOT_FOUND (not in it). out: its size is set by the
 * caller; code, version and object_bytes of the first two; may be NULL. */
PML_API int pml_snapshot_find(struct pml_snapshot *s, const void *key, size_t key_bytes,
			      struct pml_result *out);

/*
 * As pml_get, pml_get_ranges, pml_get_regions, pml_get_start; of o, verify and deadline_ms count.
 *
 * NOT_FOUND   the key is not in the snapshot
 * LEASE_LOST  its version has gone, for good: open another snapshot
 */
PML_API int pml_snapshot_get(struct pml_snapshot *s, const void *key, size_t key_bytes,
			     void *buf, size_t cap, size_t *n_out, const struct pml_get_opts *o,
			     struct pml_error *err);
PML_API int pml_snapshot_get_ranges(struct pml_snapshot *s, const void *key, size_t key_bytes,
				    const struct pml_range *ranges, size_t n_ranges,
				    const struct pml_buf *bufs, size_t n_bufs,
				    const struct pml_get_opts *o, struct pml_error *err);
PML_API int pml_snapshot_get_regions(struct pml_snapshot *s, const void *key, size_t key_bytes,
				     const struct pml_nd_region *regions, size_t n_regions,
				     const struct pml_get_opts *o, struct pml_error *err);
PML_API int pml_snapshot_get_start(struct pml_snapshot *s, const struct pml_item *items,
				   size_t n, const struct pml_get_opts *o, struct pml_cq *cq,
				   void *user, struct pml_op **out, struct pml_error *err);

/* Leases go back, soon. Calls under way through it go on. NULL is fine. */
PML_API int pml_snapshot_close(struct pml_snapshot *s);

#ifdef __cplusplus
}
#endif
#endif
