/* SPDX-License-Identifier: Apache-2.0 */
/* pml_task.h: tasks as store operations of one question each. */
#include "pml_task.h"

#include "store.h"

#include <string.h>

static int bad(struct pml_error *err, const char *what)
{
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "task", "%s", what);
}

/* Tasks of all tenants are an admin's; a client whose secret is no more than its own sees its own. */
static bool is_admin(const struct pml *p)
{
	return keyring_holds(p->keys, ROLE_ADMIN, NULL);
}

/* ---- starting ---- */

static int start_task(struct pml *p, const struct pml_item *items, size_t n,
		      const struct sop_task *t, uint32_t deadline_ms, struct pml_cq *cq,
		      void *user, struct pml_op **out, struct pml_error *err)
{
	struct pml_get_opts get = PML_GET_OPTS_INIT;
	get.deadline_ms = deadline_ms;
	struct sop_wish w = {
		.kind = STC_TASK_START, .items = items, .n = n, .get = &get, .task = t
	};
	return sop_start(p, &w, cq, user, out, err);
}

static const char *check_holder(const char *id)
{
	return id && strlen(id) > HOLDER_MAX ? "a holder's id has at most 64 characters" : NULL;
}

static int start_keys(struct pml *p, enum stc_task_kind kind, const struct pml_item *items,
		      size_t n, const struct pml_task_opts *opts, struct pml_cq *cq, void *user,
		      struct pml_op **out, struct pml_error *err)
{
	struct pml_task_opts o;
	if (!sdk_opts(&o, sizeof(o), opts))
		return bad(err, "pml_task_opts: size is not set; use PML_TASK_OPTS_INIT");
	const char *wrong = check_holder(o.from);
	wrong = wrong ? wrong : check_holder(o.to);
	if (!wrong && kind == STC_TASK_MOVE && (!o.from || !*o.from))
		wrong = "from: a move names the holder that is to have none of it any more";
	if (!wrong && o.replica_num > OBJ_EXTENTS_MAX)
		wrong = "replica_num: at most 16";
	if (wrong)
		return bad(err, wrong);
	struct sop_task t = {
		.kind = kind, .from = o.from, .to = o.to, .replica_num = o.replica_num
	};
	return start_task(p, items, n, &t, o.deadline_ms, cq, user, out, err);
}

int pml_drain_start(struct pml *p, const char *holder, const struct pml_call_opts *o,
		    struct pml_cq *cq, void *user, struct pml_op **out, struct pml_error *err)
{
	struct sop_task t = { .kind = STC_TASK_DRAIN, .from = holder, .admin = true };
	struct pml_call_opts opts;
	int e = sdk_usable(p, err);
	if (e == PML_ERR_NONE)
		e = sdk_call_opts(&opts, o, err);
	if (e != PML_ERR_NONE)
		return e;
	if (!holder || !*holder || check_holder(holder))
		return bad(err, "a holder's id has 1..64 characters");
	if (!is_admin(p))
		return sdk_error(
			err, ERR_FORBIDDEN, 0, NULL, "task",
			"a drain needs the cluster's own secret or a key of role admin "
			"(`pomelo secret derive admin`)");
	return start_task(p, NULL, 0, &t, opts.deadline_ms, cq, user, out, err);
}

/* The id of one that was started; frees it. */
static int finish_id(int e, struct pml_op *op, uint64_t *id, struct pml_error *err)
{
	struct pml_op *done = NULL;
	e = sop_finish(e, op, &done, err);
	if (e != PML_ERR_NONE)
		return e;
	*id = pml_op_task_id(done);
	op_destroy(done);
	return e;
}

static int run_keys(struct pml *p, enum stc_task_kind kind, const struct pml_item *items,
		    size_t n, const struct pml_task_opts *o, uint64_t *id,
		    struct pml_error *err)
{
	struct pml_op *op = NULL;
	if (!id)
		return bad(err, "id is NULL");
	int e = start_keys(p, kind, items, n, o, NULL, NULL, &op, err);
	return finish_id(e, op, id, err);
}

#define KEYS_TASK(name, kind)                                                                \
	int pml_##name##_start(struct pml *p, const struct pml_item *items, size_t n,        \
			       const struct pml_task_opts *o, struct pml_cq *cq, void *user, \
			       struct pml_op **out, struct pml_error *err)                   \
	{                                                                                    \
		return start_keys(p, kind, items, n, o, cq, user, out, err);                 \
	}                                                                                    \
	int pml_##name(struct pml *p, const struct pml_item *items, size_t n,                \
		       const struct pml_task_opts *o, uint64_t *id, struct pml_error *err)   \
	{                                                                                    \
		return run_keys(p, kind, items, n, o, id, err);                              \
	}
KEYS_TASK(copy, STC_TASK_COPY)
KEYS_TASK(move, STC_TASK_MOVE)
KEYS_TASK(prefetch, STC_TASK_PREFETCH)

int pml_drain(struct pml *p, const char *holder, const struct pml_call_opts *o, uint64_t *id,
	      struct pml_error *err)
{
	struct pml_op *op = NULL;
	if (!id)
		return bad(err, "id is NULL");
	int e = pml_drain_start(p, holder, o, NULL, NULL, &op, err);
	return finish_id(e, op, id, err);
}

uint64_t pml_op_task_id(const struct pml_op *op)
{
	if (pml_op_code(op) != PML_ERR_NONE || !op->store ||
	    op->store->call->kind != STC_TASK_START)
		return 0;
	return op->store->call->items[0].task_id;
}

/* ---- how they go, and their end ---- */

static int ask(struct pml *p, enum stc_kind kind, const uint64_t *ids, size_t n,
	       const struct pml_call_opts *o, struct pml_cq *cq, void *user,
	       struct pml_op **out, struct pml_error *err)
{
	struct pml_get_opts get = PML_GET_OPTS_INIT;
	struct pml_call_opts opts;
	int e = sdk_usable(p, err);
	if (e == PML_ERR_NONE)
		e = sdk_call_opts(&opts, o, err);
	if (e != PML_ERR_NONE)
		return e;
	if (n > PML_ITEMS_MAX || (n && !ids))
		return bad(err, "ids: at most 4096, and not NULL");
	get.deadline_ms = opts.deadline_ms;
	struct sop_task t = { .ids = ids, .n_ids = n, .admin = is_admin(p) };
	struct sop_wish w = { .kind = kind, .get = &get, .task = &t };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_task_status_start(struct pml *p, const uint64_t *ids, size_t n,
			  const struct pml_call_opts *o, struct pml_cq *cq, void *user,
			  struct pml_op **out, struct pml_error *err)
{
	return ask(p, STC_TASKS, ids, n, o, cq, user, out, err);
}

int pml_task_status(struct pml *p, const uint64_t *ids, size_t n, const struct pml_call_opts *o,
		    struct pml_op **out, struct pml_error *err)
{
	struct pml_op *op = NULL;
	if (!out)
		return bad(err, "out is NULL");
	int e = pml_task_status_start(p, ids, n, o, NULL, NULL, &op, err);
	return sop_finish(e, op, out, err);
}

int pml_task_cancel_start(struct pml *p, uint64_t id, const struct pml_call_opts *o,
			  struct pml_cq *cq, void *user, struct pml_op **out,
			  struct pml_error *err)
{
	return ask(p, STC_TASK_CANCEL, &id, 1, o, cq, user, out, err);
}

int pml_task_cancel(struct pml *p, uint64_t id, const struct pml_call_opts *o,
		    struct pml_error *err)
{
	struct pml_op *op = NULL;
	int e = pml_task_cancel_start(p, id, o, NULL, NULL, &op, err);
	return sop_finish(e, op, NULL, err);
}

static const char *name_of(const char *const *names, size_t n, uint8_t i)
{
	return i < n && names[i] ? names[i] : "unknown"; /* a newer master's */
}

static const char *keep(struct sop *s, struct bytes b)
{
	char *p = arena_alloc(&s->mem, b.n + 1);
	if (!p)
		return NULL;
	if (b.n)
		memcpy(p, b.p, b.n);
	p[b.n] = '\0';
	return p;
}

static bool view(struct sop *s, const struct msg_task *m, struct pml_task *v)
{
	static const char *const kinds[] = { NULL, "copy", "move", "drain", "prefetch" };
	static const char *const states[] = { NULL,   "queued", "running",
					      "done", "failed", "cancelled" };
	*v = (struct pml_task){
		.size = sizeof(*v),
		.id = m->id,
		.kind = name_of(kinds, ARRAY_LEN(kinds), m->kind),
		.state = name_of(states, ARRAY_LEN(states), m->state),
		.from = keep(s, m->from),
		.to = keep(s, m->to),
		.done = m->done,
		.total = m->total,
		.failed = m->failed,
		.bytes_done = m->bytes_done,
		.bytes_total = m->bytes_total,
		.age_ms = m->age_ms,
		.text = keep(s, m->text),
	};
	return v->from && v->to && v->text;
}

bool sop_view_tasks(struct sop *s, const struct msg_tasks_rep *m)
{
	s->tasks = arena_alloc(&s->mem, (m->tasks.n + 1) * sizeof(*s->tasks));
	for (size_t i = 0; s->tasks && i < m->tasks.n; i++)
		if (!view(s, &m->tasks.p[i], &s->tasks[i]))
			return false;
	s->n_views = m->tasks.n;
	return s->tasks != NULL;
}

static const struct sop *tasks_of(const struct pml_op *op)
{
	if (pml_op_code(op) != PML_ERR_NONE || !op->store || op->store->call->kind != STC_TASKS)
		return NULL;
	return op->store;
}

size_t pml_op_n_tasks(const struct pml_op *op)
{
	const struct sop *s = tasks_of(op);
	return s ? s->n_views : 0;
}

int pml_op_task(const struct pml_op *op, size_t i, struct pml_task *out)
{
	int e = op_usable(op);
	const struct sop *s = e == PML_ERR_NONE ? tasks_of(op) : NULL;
	if (e != PML_ERR_NONE)
		return e;
	return s && i < s->n_views ? sop_give(out, &s->tasks[i], sizeof(s->tasks[i]))
				   : PML_ERR_INVALID_PARAMS;
}
