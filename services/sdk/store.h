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

#include "buffers.h"
#include "pml_snapshot.h"
#include "pml_task.h"
#include "sdk.h"

#define PML_FORMAT_MAX 64

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
	struct pml_snapshot *opened; /* by it, and not taken; NULL: none */
	struct sop_held *held;	     /* registered buffers; in mem */
	/* made when it is over */
	union {
		struct pml_stat_info *stats;
		struct sop_replicas *replicas;
		struct pml_holder *holders;
		struct pml_task *tasks;
		const char **facts; /* name, value, name, ... */
	};
	size_t n_views;
};

/* What of a task is no item. Borrowed for the start. */
struct sop_task {
	enum stc_task_kind kind;
	const char *from, *to; /* NULL: none */
	uint32_t replica_num;
	const uint64_t *ids; /* TASKS, TASK_CANCEL */
	size_t n_ids;
	bool admin; /* asked as one */
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
	struct stc_snap *snap;	    /* borrowed: joined, or read */
	struct pml_snapshot *opens; /* taken, by the operation or when there is none */
	bool missing_ok;
	const struct sop_task
		*task; /* TASK_START, whose items are its keys; TASKS, TASK_CANCEL: no items */
};
/* out: owned. Fills err. deadline_ms: of the options. */
int sop_make(struct pml *p, const struct sop_wish *w, struct sop **out, uint32_t *deadline_ms,
	     struct pml_error *err);

/* ---- store.c ---- */

/* As the public _start forms. */
int sop_start(struct pml *p, const struct sop_wish *w, struct pml_cq *cq, void *user,
	      struct pml_op **out, struct pml_error *err);
/* Of a get of one item that was started: waits, and says how many bytes, or how many it takes. */
int sop_get_finish(struct pml_op *op, size_t *n_out, struct pml_error *err);
/* Of a plain form whose start said e: waits, and gives its error. out NULL: nobody wants its results, it is
 * freed. */
int sop_finish(int e, struct pml_op *op, struct pml_op **out, struct pml_error *err);

/* ---- store_views.c ---- */

/* Copies n bytes of `from` into a struct whose size its owner has set. PML_ERR_INVALID_PARAMS: it is NULL, or
 * its size makes no sense. */
int sop_give(void *out, const void *from, size_t n);

/* ERR_NO_MEMORY. */
enum err sop_views(struct sop *s);
/* store_task.c. False: no memory. */
bool sop_view_tasks(struct sop *s, const struct msg_tasks_rep *m);
