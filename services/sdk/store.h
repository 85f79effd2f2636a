/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store operations of the library: a pml_op that carries a call of the session (stc.h).
 *
 *   store.c        pml_X_start -> sop -> door; on the loop: the session, the call, its end
 *   store_items.c  the caller's items and options into a call, all but payload copied
 *   store_views.c  what came back, as the public structs; made once, when the call is over
 *
 * Threads: made by the caller's, run by the loop's, read by the caller's when it is over.
 */
#pragma once

#include "sdk.h"

enum { SOP_BYTES = 256 << 20, SOP_PIECES_MAX = 65536 };

/* One copy of an object, with its extents. */
struct sop_replicas {
	struct pml_replica *v;
	size_t n;
	uint32_t lease_ms;
};

struct sop {
	struct stc_call *call;
	struct pml_op *op;
	struct arena mem; /* copies of what the caller passed; texts and arrays of the views */
	uint64_t total;	  /* bytes of a put */
	/* made when it is over */
	union {
		struct pml_stat_info *stats;
		struct sop_replicas *replicas;
		struct pml_holder *holders;
		const char **facts; /* name, value, name, ... */
	};
	size_t n_views;
};

/* ---- store_items.c ---- */

/*
 * A sop of that kind for these items; opts as the kind has. NULL: err was filled.
 */
struct sop_wish {
	enum stc_kind kind;
	const struct pml_item *items;
	size_t n;
	bool upsert;
	const struct pml_put_opts *put;
	const struct pml_get_opts *get;
	const struct pml_remove_opts *remove;
	const struct pml_list_opts *list;
};
/* out: owned. Fills err. deadline_ms: of the options. */
int sop_make(const struct pml *p, const struct sop_wish *w, struct sop **out,
	     uint32_t *deadline_ms, struct pml_error *err);

/* ---- store.c ---- */

/* Of a plain form whose start said e: waits, and gives its error. out NULL: nobody wants its results, it is
 * freed. */
int sop_finish(int e, struct pml_op *op, struct pml_op **out, struct pml_error *err);

/* ---- store_views.c ---- */

/* Copies n bytes of `from` into a struct whose size its owner has set. PML_ERR_INVALID_PARAMS: it is NULL, or
 * its size makes no sense. */
int sop_give(void *out, const void *from, size_t n);

/* ERR_NO_MEMORY. */
enum err sop_views(struct sop *s);
