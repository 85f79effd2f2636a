/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpomelo, tasks: work of the cluster that goes on by itself: further copies, moves, the emptying of a holder.
 *
 *	uint64_t id;
 *	pml_drain(p, "agent-2", NULL, &id, &err);
 *	for (;;) {
 *		pml_task_status(p, &id, 1, NULL, &op, &err);
 *		pml_op_task(op, 0, &t); ... t.state, t.done of t.total ...
 *		pml_op_free(op);
 *	}
 *
 * A task belongs to a tenant, and is seen by its clients; a drain, and the tasks of all tenants, by those whose secret
 * is the cluster's own or a key of role admin. The master keeps finished ones for a while. Its restart ends them all:
 * TASK_LOST; what was copied or moved stays, and the task may be started again.
 *
 * An answer that is lost after a start (CONN_LOST) leaves open whether the task runs: pml_task_status shows it.
 */
#ifndef POMELO_PML_TASK_H
#define POMELO_PML_TASK_H

#include "pml_store.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pml_task_opts {
	size_t size;
	uint32_t deadline_ms; /* of the start; 0: the handle's */
	uint32_t replica_num; /* copy: copies there are to be; 0: one more than there are */
	const char *from;     /* move: the holder that is to have none of it any more */
	const char *to;	      /* holder; NULL: the master chooses */
};
#define PML_TASK_OPTS_INIT                               \
	{                                                \
		sizeof(struct pml_task_opts), 0, 0, 0, 0 \
	}

/*
 * Further copies of the keys of n items (1 to PML_ITEMS_MAX), of which key counts. Results of single keys: none;
 * pml_task.failed and text.
 *
 * id  of the task; 0 is none
 *
 * NOT_FOUND a holder or key that is not there, as the master decides; BUSY as many tasks as it keeps
 */
PML_API int pml_copy(struct pml *p, const struct pml_item *items, size_t n,
		     const struct pml_task_opts *o, uint64_t *id, struct pml_error *err);
PML_API int pml_copy_start(struct pml *p, const struct pml_item *items, size_t n,
			   const struct pml_task_opts *o, struct pml_cq *cq, void *user,
			   struct pml_op **out, struct pml_error *err);
/* The copies at o->from go to another holder. INVALID_PARAMS: no from. */
PML_API int pml_move(struct pml *p, const struct pml_item *items, size_t n,
		     const struct pml_task_opts *o, uint64_t *id, struct pml_error *err);
PML_API int pml_move_start(struct pml *p, const struct pml_item *items, size_t n,
			   const struct pml_task_opts *o, struct pml_cq *cq, void *user,
			   struct pml_op **out, struct pml_error *err);
/* What is on disk alone gets a copy in memory. */
PML_API int pml_prefetch(struct pml *p, const struct pml_item *items, size_t n,
			 const struct pml_task_opts *o, uint64_t *id, struct pml_error *err);
PML_API int pml_prefetch_start(struct pml *p, const struct pml_item *items, size_t n,
			       const struct pml_task_opts *o, struct pml_cq *cq, void *user,
			       struct pml_op **out, struct pml_error *err);
/* Everything on a holder is made readable elsewhere, and nothing new is put there. The holder's state says
 * "draining", then "drained" (pml_holders). FORBIDDEN without the cluster's own secret. */
PML_API int pml_drain(struct pml *p, const char *holder, const struct pml_call_opts *o,
		      uint64_t *id, struct pml_error *err);
PML_API int pml_drain_start(struct pml *p, const char *holder, const struct pml_call_opts *o,
			    struct pml_cq *cq, void *user, struct pml_op **out,
			    struct pml_error *err);
/* Of a start that is over and went well; 0 else. */
PML_API uint64_t pml_op_task_id(const struct pml_op *op);

/* How a task goes. Texts are borrowed from the operation. */
struct pml_task {
	size_t size;
	uint64_t id;
	const char *kind;      /* "copy" "move" "drain" "prefetch" */
	const char *state;     /* "queued" "running" "done" "failed" "cancelled" */
	const char *from, *to; /* holders; "" none, or the master chooses */
	uint64_t done, total;  /* objects; a drain's total as far as it is known */
	uint64_t failed; /* objects that could not be done; of a drain: that are tried again */
	uint64_t bytes_done, bytes_total;
	uint64_t age_ms;  /* since it was started */
	const char *text; /* the last failure, or what it waits for */
};
#define PML_TASK_INIT                                                       \
	{                                                                   \
		sizeof(struct pml_task), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * Of n tasks (at most PML_ITEMS_MAX), in the order of ids; n = 0: all that are seen, in the order of their ids.
 * out: yours, pml_op_free(). TASK_LOST: one of them is not known any more.
 */
PML_API int pml_task_status(struct pml *p, const uint64_t *ids, size_t n,
			    const struct pml_call_opts *o, struct pml_op **out,
			    struct pml_error *err);
PML_API int pml_task_status_start(struct pml *p, const uint64_t *ids, size_t n,
				  const struct pml_call_opts *o, struct pml_cq *cq, void *user,
				  struct pml_op **out, struct pml_error *err);
PML_API size_t pml_op_n_tasks(const struct pml_op *op);
/* out->size is set by the caller. */
PML_API int pml_op_task(const struct pml_op *op, size_t i, struct pml_task *out);

/* It ends; what it has copied or moved stays, and a holder that was being drained takes puts again. TASK_LOST. */
PML_API int pml_task_cancel(struct pml *p, uint64_t id, const struct pml_call_opts *o,
			    struct pml_error *err);
PML_API int pml_task_cancel_start(struct pml *p, uint64_t id, const struct pml_call_opts *o,
				  struct pml_cq *cq, void *user, struct pml_op **out,
				  struct pml_error *err);

#ifdef __cplusplus
}
#endif
#endif
