/* SPDX-License-Identifier: Apache-2.0 */
#include "flows.h"

#include <inttypes.h>
#include <string.h>

/* Decoded lists of a request of 8 MiB, and what its answer is made of. */
#define ASK_BYTES (32u << 20)

/* ---- rows ---- */

#define ROW(row, fn_, waits)                                                                \
	{                                                                                   \
		.number = METHOD_##row, .name = #row, .roles = ROLES_OF_##row, .fn = (fn_), \
		.sync = !(waits)                                                            \
	}
#define ROLE_ROW(name, number, req, rep, roles, idem, policy, doc) ROLES_OF_##name = (roles),
enum { STORE_METHODS(ROLE_ROW) HOLDER_METHODS(ROLE_ROW) };

const struct rpc_method mst_methods[MST_METHODS] = {
	ROW(PUT_START, mst_put_start, true),
	ROW(PUT_REVOKE, mst_put_revoke, false),
	ROW(PUT_PROGRESS, mst_put_progress, false),
	ROW(QUERY, mst_query, false),
	ROW(RELEASE, mst_release, false),
	ROW(RENEW, mst_renew, false),
	ROW(REMOVE, mst_remove, true),
	ROW(REMOVE_RANGE, mst_remove_range, true),
	ROW(EXISTS, mst_exists, false),
	ROW(OBJECT_STAT, mst_object_stat, false),
	ROW(LIST, mst_list, true),
	ROW(EXPLAIN, mst_explain, false),
	ROW(HOLDERS, mst_holders, false),
	ROW(FORGET, mst_forget, true),
	ROW(TASK_START, mst_task_start, false),
	ROW(TASKS, mst_tasks, false),
	ROW(TASK_CANCEL, mst_task_cancel, false),
	ROW(REGISTER, mst_register, true),
	ROW(PUBLISH, mst_publish, true),
	ROW(CONFIRM, mst_confirm, false),
	ROW(REPORT, mst_report, false),
};

/* ---- who asks ---- */

struct bytes mst_tenant(const struct rpc_req *r)
{
	const struct peer *p = r->peer;
	return p->role == ROLE_CLIENT ? BYTES_STR(p->tenant) : BYTES_STR("default");
}

enum err mst_who(const struct rpc_req *r, const uint8_t client[16], uint64_t term,
		 struct mind_who *who, struct why *why)
{
	if (r->peer->role == ROLE_CLIENT && memcmp(client, r->peer->instance, 16) != 0)
		return why_set(
			why, ERR_FORBIDDEN,
			"client: not the instance that this session's HELLO named"); /* F2 */
	*who = (struct mind_who){ .tenant = mst_tenant(r), .client = client, .term = term };
	return ERR_NONE;
}

enum err mst_caller(struct mst *m, const struct rpc_req *r, struct bytes holder,
		    uint32_t *index, struct why *why)
{
	const char *id = r->peer->holder;
	if (strlen(id) != holder.n || memcmp(id, holder.p, holder.n) != 0) /* F3 */
		return why_set(why, ERR_FORBIDDEN, "holder: this session is that of %s", id);
	int64_t i = mind_holder_index(m->term.mind, holder);
	if (i < 0)
		return why_set(why, ERR_NOT_IN_ROSTER, "%s is not in the roster: REGISTER", id);
	*index = (uint32_t)i;
	mst_links_heard(m, *index);
	return ERR_NONE;
}

enum err mst_caller_under(struct mst *m, const struct rpc_req *r, struct bytes holder,
			  const struct msg_under *in, uint32_t *index, struct mind_under *out,
			  struct why *why)
{
	struct mind_holder h;
	enum err e = mst_caller(m, r, holder, index, why);
	if (e)
		return e;
	if (!in)
		return why_set(why, ERR_BAD_MESSAGE, "%s: under is missing",
			       method_name(r->method));
	*out = (struct mind_under){ in->shard, in->term, in->adoption, in->pool_epoch };
	if (!mind_holder(m->term.mind, *index, &h))
		return why_set(why, ERR_NOT_IN_ROSTER, "%s is gone", r->peer->holder);
	if (in->term != svc_meta_term(&m->meta) || in->adoption != h.under.adoption)
		return why_set(why, ERR_STALE_TERM,
			       "%s: adopted as (%" PRIu64 ", %" PRIu64 "), not (%" PRIu64
			       ", %" PRIu64 ")",
			       h.id, svc_meta_term(&m->meta), h.under.adoption, in->term,
			       in->adoption);
	if (in->pool_epoch != h.under.pool_epoch)
		return why_set(why, ERR_STALE_EPOCH, "%s: pool_epoch %" PRIu64 ", not %" PRIu64,
			       h.id, h.under.pool_epoch, in->pool_epoch);
	return ERR_NONE;
}

enum err mst_check_shard(const struct rpc_req *r, struct why *why)
{
	return r->shard == 0 ? ERR_NONE
			     : why_set(why, ERR_INVALID_PARAMS,
				       "shard %u: this cluster has one, 0", r->shard);
}

enum err mst_no_term(struct mst *m, struct why *why)
{
	struct svc_reasons r = { .n = 0 };
	svc_meta_reasons(&m->meta, &r);
	if (svc_stopping(&m->svc))
		return why_set(why, ERR_SHUTTING_DOWN, "the master stops");
	return why_set(why, m->meta.state == SVC_META_FAILED ? ERR_NOT_READY : ERR_RECOVERING,
		       "the master starts: %s", r.n ? r.text[0] : "no term yet");
}

struct msg_result mst_result(enum err e, uint32_t retry_ms, const struct why *why)
{
	struct msg_result x = { .status = e, .retry_ms = retry_ms };
	if (e)
		x.text = BYTES_STR(why->err ? why->text : err_text(e));
	if (e && x.retry_ms == 0 && err_retry(e) == ERR_RETRY_AFTER)
		x.retry_ms = MST_RETRY_MS;
	return x;
}

/* ---- methods that answer at once ---- */

bool mst_ask(struct mst_ask *a, struct mst *m, struct rpc_req *r)
{
	*a = (struct mst_ask){ .m = m, .req = r, .mind = mst_mind(m) };
	a->arena.limit = ASK_BYTES;
	enum err e = mst_check_shard(r, &a->why);
	if (e == ERR_NONE && !a->mind)
		e = mst_no_term(m, &a->why);
	if (e)
		mst_ask_refuse(a, e);
	return e == ERR_NONE;
}

void mst_ask_refuse(struct mst_ask *a, enum err e)
{
	why_note(&a->why, e, "%s: %s", method_name(a->req->method), err_text(e));
	rpc_reply_why(a->req, &a->why, err_retry(e) == ERR_RETRY_AFTER ? MST_RETRY_MS : 0);
	arena_fini(&a->arena);
}

void mst_ask_reply(struct mst_ask *a, struct buf *b)
{
	svc_reply(a->req, b);
	arena_fini(&a->arena);
}

void mst_ask_results(struct mst_ask *a, struct msg_result *res, size_t n)
{
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_results_rep(&b, &(struct msg_results_rep){ .items = { res, n } });
	mst_ask_reply(a, &b);
}

enum err mst_look(struct mst_ask *a, const struct msg_keys_req *q, size_t i, uint32_t lease_ms,
		  struct mind_object *o, struct why *why)
{
	why->err = ERR_NONE;
	why->text[0] = '\0';
	if (i % MIND_WARM == 0)
		mind_warm(a->mind, mst_tenant(a->req), q->keys.p + i,
			  MIN_OF(q->keys.n - i, (size_t)MIND_WARM));
	enum err e = mind_lookup_near(a->mind, mst_tenant(a->req), q->keys.p[i], q->host,
				      lease_ms, q->format, o, why);
	return e == ERR_RECOVERING && q->recovering_as_miss ? ERR_NOT_FOUND : e;
}

struct bytes mst_text(struct arena *a, const struct why *why)
{
	size_t n = strlen(why->text);
	char *p = n ? arena_alloc(a, n) : NULL;
	if (!p)
		return BYTES("", 0);
	memcpy(p, why->text, n);
	return BYTES(p, n);
}

bool mst_extents(struct arena *a, const struct extent *e, size_t n, struct list_extent *out)
{
	struct msg_extent *x = arena_alloc(a, (n + 1) * sizeof(*x));
	if (!x)
		return false;
	for (size_t i = 0; i < n; i++)
		x[i] = (struct msg_extent){ e[i].segment, e[i].offset, e[i].bytes };
	*out = (struct list_extent){ x, n };
	return true;
}

/* ---- places ---- */

bool mst_places_init(struct mst_places *s, struct mst *m, struct arena *a, size_t n_max)
{
	*s = (struct mst_places){ .m = m, .arena = a, .n_of = mind_holders(m->term.mind) };
	s->cap = MIN_OF(n_max, s->n_of);
	s->p = arena_alloc(a, (s->cap + 1) * sizeof(s->p[0]));
	s->of = arena_alloc(a, (s->n_of + 1) * sizeof(s->of[0]));
	if (s->of)
		memset(s->of, 0, s->n_of * sizeof(s->of[0]));
	return s->p && s->of;
}

static struct bytes keep(struct arena *a, const char *text)
{
	size_t n = strlen(text);
	char *p = arena_alloc(a, n + 1);
	if (p)
		memcpy(p, text, n + 1);
	return BYTES(p, p ? n : 0);
}

bool mst_place(struct mst_places *s, uint32_t holder, uint32_t *place)
{
	struct mind_holder h;
	if (holder >= s->n_of)
		return false;
	if (s->of[holder] == 0) {
		if (s->n == s->cap || !mind_holder(s->m->term.mind, holder, &h))
			return false;
		struct bytes *addrs = arena_alloc(s->arena, (h.n_addrs + 1) * sizeof(*addrs));
		struct msg_place *p = &s->p[s->n];
		*p = (struct msg_place){ .holder = keep(s->arena, h.id),
					 .host = keep(s->arena, h.host),
					 .fd_path = keep(s->arena, h.fd_path) };
		if (!addrs || !p->holder.p || !p->host.p || !p->fd_path.p)
			return false;
		for (size_t i = 0; i < h.n_addrs; i++)
			addrs[i] = keep(s->arena, h.addrs[i]);
		p->addrs = (struct bytes_list){ addrs, h.n_addrs };
		memcpy(p->pool, h.pool, sizeof(p->pool));
		s->of[holder] = (uint32_t)++s->n;
	}
	*place = s->of[holder] - 1;
	return true;
}
