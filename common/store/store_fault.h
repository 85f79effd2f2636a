/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend that fails on demand: a decorator over any other (style.md section 5). What a row of the plan
 * strikes fails with its error, or comes late; all else passes. For tests of what lies above a backend; the
 * disk below one is disk_cut.h.
 *
 * Thread: the loop's.
 */
#pragma once

#include "store/store.h"

enum store_fault_op { STORE_FAULT_PUT, STORE_FAULT_GET, STORE_FAULT_DELETE, STORE_FAULT_N };

/* Of requests of an op: after `skip` of them the next `count`. */
struct store_fault_row {
	enum store_fault_op op;
	uint64_t skip, count;
	enum err
		err; /* of all items that the backend took; ERR_NONE: only late. After ERR_IO of a put its
		       * outcome is unknown: it was stored */
	bool before;	   /* the backend does not see it at all */
	bool refuse;	   /* the call itself returns err (ERR_BUSY) */
	uint64_t delay_ms; /* until done; 10 s: a slow disk */
};

struct store_fault;

/* below: taken, closed with this one. out: owned, store_be_close(store_fault_be()). ERR_NO_MEMORY: below is the
 * caller's still. */
enum err store_fault_new(struct store_be *below, struct store_fault **out) MUST_CHECK;
struct store_be *store_fault_be(struct store_fault *f);
/* At most 16 rows wait; false: too many. Counting begins now. */
bool store_fault_arm(struct store_fault *f, const struct store_fault_row *row);
void store_fault_disarm(struct store_fault *f);
/* Requests of an op so far, and those that were struck. */
uint64_t store_fault_seen(const struct store_fault *f, enum store_fault_op op);
uint64_t store_fault_hits(const struct store_fault *f);
