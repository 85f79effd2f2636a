/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store-prefix log: what may another process, or the next run, find in shared memory if we die,
 * or are looked at, between any two stores? Random kills miss a window of 200 ns; this tries all.
 *
 *   static bool sound(void *ctx, const void *region, struct why *why) { ... recover, compare ... }
 *
 *   struct prefix_log *g = prefix_begin(region, size);
 *   slot_commit(region, ...);               built with -DPOMELO_STORE_LOG (base/shm.h)
 *   struct prefix_result r;
 *   cr_assert(prefix_check(g, PREFIX_WEAK, sound, ctx, &r), "%s", r.text);
 *   prefix_free(g);
 *
 * PREFIX_KILL  the process dies: every store before some point has happened, none after it. Machine
 *              order; plain stores may have been swapped by the compiler, so between two ordered ones
 *              any subset of them may be missing.
 * PREFIX_WEAK  another processor looks: a store is seen any time after the ordered stores that its
 *              order demands; later plain stores may be seen before an earlier release.
 *
 * The order, for both: a release or seq_cst store comes after everything before it; what follows a
 * seq_cst store, or a fence, comes after it; two stores to one byte keep their order. In PREFIX_KILL
 * what follows a release comes after it too (a processor retires stores in order, and compilers
 * do not move a store up over a release here).
 *
 * Enumerated: every set of stores closed under that order, exhaustively up to `max` sets, else all
 * prefixes, all prefixes less one earlier store, all prefixes plus one later one, and seeded samples
 * up to `max`. Bulk stores count one per 8 aligned bytes.
 *
 * Also checked: that every byte of the region that changed was told to the log, so that a store which
 * goes around base/shm.h is a failure of its own.
 *
 * Thread: the one that called prefix_begin; its log is the thread's.
 */
#pragma once

#include "base/err.h"
#include "base/shm.h"

#define PREFIX_STORES_MAX 4096

enum prefix_model { PREFIX_KILL, PREFIX_WEAK };

struct prefix_log;

struct prefix_result {
	uint64_t n_sets;   /* tried */
	bool exhaustive;   /* every allowed one */
	uint32_t n_stores; /* in the log */
	char text[1024]; /* why it failed: the checker's words, the stores that were missing */
};

/* Starts to log stores to [region, region + size), at most 1 MiB, of this thread. owned, prefix_free(). */
struct prefix_log *prefix_begin(void *region, size_t size);
/* Stops logging; prefix_check does so too. */
void prefix_end(struct prefix_log *g);
void prefix_free(struct prefix_log *g);
uint32_t prefix_n_stores(const struct prefix_log *g);

/*
 * Calls sound(ctx, copy, why) for copies of the region as it was at prefix_begin plus each allowed
 * set of stores. The copy is aligned as a page, the checker's to change. False at the first that is
 * not sound, or if stores went around the log.
 *
 * max  0: 1 << 16
 */
bool prefix_check(struct prefix_log *g, enum prefix_model model, uint64_t max,
		  bool (*sound)(void *ctx, void *region, struct why *why), void *ctx,
		  struct prefix_result *out);
