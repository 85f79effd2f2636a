/* SPDX-License-Identifier: Apache-2.0 */
/* TASK_START, TASKS, TASK_CANCEL: copies, moves, prefetches and drains. A client sees the tasks of its tenant. */
#include "flows.h"

#include <inttypes.h>
#include <string.h>

#define TASKS_SHOWN 4096

/* Whose tasks the caller sees; NULL: all. */
static const struct bytes *whose(const struct rpc_req *r, struct bytes *room)
{
	*room = mst_tenant(r);
	return r->peer->role == ROLE_ADMIN ? NULL : room;
}

/* ---- TASK_START ---- */

void mst_task_start(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_task_start_req q;
	uint64_t id = 0;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_task_start_req(&d, &q);
	bool drain = e == ERR_NONE && q.kind == MIND_TASK_DRAIN;
	if (drain && r->peer->role != ROLE_ADMIN)
		e = why_set(&a.why, ERR_FORBIDDEN,
			    "TASK_START: a drain is an admin's (pomelo secret derive admin)");
	if (e == ERR_NONE)
		e = mind_task_start(a.mind, drain ? BYTES(NULL, 0) : mst_tenant(r), &q, &id,
				    &a.why);
	if (e) {
		mst_ask_refuse(&a, e);
		return;
	}
	LOG_INFO(&a.m->svc.log, "task",
		 "task=%" PRIx64 " step=start kind=%u keys=%zu from=%.*s to=%.*s", id, q.kind,
		 q.keys.n, (int)q.from.n, (const char *)q.from.p, (int)q.to.n,
		 (const char *)q.to.p);
	struct buf out = BUF_INIT(64);
	enc_task_start_rep(&out, &(struct msg_task_start_rep){ id });
	mst_ask_reply(&a, &out);
}

/* ---- TASKS ---- */

/* Copies what the mind lends until its next call. */
static bool keep_task(struct arena *a, struct msg_task *t)
{
	struct bytes *texts[] = { &t->from, &t->to, &t->text };
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		uint8_t *p = arena_alloc(a, texts[i]->n + 1);
		if (!p)
			return false;
		if (texts[i]->n)
			memcpy(p, texts[i]->p, texts[i]->n);
		texts[i]->p = p;
	}
	return true;
}

static enum err named_tasks(struct mst_ask *a, const struct u64s *ids,
			    const struct bytes *tenant, struct msg_task *t, size_t *n)
{
	for (*n = 0; *n < ids->n; ++*n) {
		enum err e = mind_task(a->mind, tenant, ids->p[*n], &t[*n], &a->why);
		if (e == ERR_NONE && !keep_task(&a->arena, &t[*n]))
			e = ERR_NO_MEMORY;
		if (e)
			return e;
	}
	return ERR_NONE;
}

static enum err all_tasks(struct mst_ask *a, const struct bytes *tenant, struct msg_task *t,
			  size_t *n)
{
	uint64_t after = 0;
	for (*n = 0; *n < TASKS_SHOWN && mind_task_next(a->mind, tenant, after, &t[*n]); ++*n) {
		after = t[*n].id;
		if (!keep_task(&a->arena, &t[*n]))
			return ERR_NO_MEMORY;
	}
	return ERR_NONE;
}

void mst_tasks(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_tasks_req q;
	struct bytes room;
	size_t n = 0;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_tasks_req(&d, &q);
	size_t max = e || q.ids.n ? (e ? 0 : q.ids.n) : TASKS_SHOWN;
	struct msg_task *t = e ? NULL : arena_alloc(&a.arena, (max + 1) * sizeof(*t));
	if (e == ERR_NONE && !t)
		e = ERR_NO_MEMORY;
	if (e == ERR_NONE)
		e = q.ids.n ? named_tasks(&a, &q.ids, whose(r, &room), t, &n)
			    : all_tasks(&a, whose(r, &room), t, &n);
	if (e) {
		mst_ask_refuse(&a, e);
		return;
	}
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_tasks_rep(&out, &(struct msg_tasks_rep){ .tasks = { t, n } });
	mst_ask_reply(&a, &out);
}

/* ---- TASK_CANCEL ---- */

void mst_task_cancel(void *ctx, struct rpc_req *r)
{
	struct mst_ask a;
	struct msg_tasks_req q;
	struct bytes room;
	if (!mst_ask(&a, mst_of(ctx), r))
		return;
	struct dec d = DEC_INIT(r->body, &a.arena, &a.why);
	enum err e = dec_tasks_req(&d, &q);
	struct msg_result *res = e ? NULL : arena_alloc(&a.arena, (q.ids.n + 1) * sizeof(*res));
	if (!res) {
		mst_ask_refuse(&a, e ? e : ERR_NO_MEMORY);
		return;
	}
	for (size_t i = 0; i < q.ids.n; i++) {
		struct why why = { 0 };
		e = mind_task_cancel(a.mind, whose(r, &room), q.ids.p[i], &why);
		res[i] = mst_result(e, 0, &why);
		if (e)
			res[i].text = mst_text(&a.arena, &why);
		else
			LOG_INFO(&a.m->svc.log, "task", "task=%" PRIx64 " step=cancel",
				 q.ids.p[i]);
	}
	mst_ask_results(&a, res, q.ids.n);
}
