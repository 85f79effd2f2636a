/* SPDX-License-Identifier: Apache-2.0 */
/* Items to messages, messages to answers: a row for each thing that can be asked. Pure. */
#include "stc_priv.h"

#include <string.h>

size_t wire_bytes(const struct stc_flow *f, enum stc_q q)
{
	const struct stc_item *it = f->it;
	size_t n = 64 + it->key.n;
	if (q == Q_PUT)
		n += 64 + it->require_key.n + it->group.n + f->w->c->put.format.n +
		     66 * f->w->c->put.n_preferred;
	if (q == Q_COMMIT)
		n += put_grant_of(f)->ticket.n;
	return n;
}

static const struct stc_call *call_of(const struct stc_msg *m)
{
	return m->flows[0]->w->c;
}

/* ---- puts ---- */

static bool all_defaults(const struct msg_put_opts *o)
{
	return o->replica_num == 1 && !o->durable && !o->hard_pin && !o->soft_pin_ms &&
	       !o->group.n && !o->group_size && !o->format.n;
}

static void put_item(const struct stc_flow *f, struct msg_put_item *p, struct msg_put_opts *o)
{
	const struct stc_call *c = f->w->c;
	const struct stc_item *it = f->it;
	*o = (struct msg_put_opts){
		.replica_num = c->put.replica_num ? c->put.replica_num : 1,
		.durable = c->put.durable,
		.hard_pin = c->put.hard_pin,
		.soft_pin_ms = c->put.soft_pin_ms,
		.group = it->group,
		.group_size = it->group_size,
		.format = c->put.format,
	};
	*p = (struct msg_put_item){
		.attempt = f->attempt,
		.key = it->key,
		.size = it->size,
		.upsert = c->put.upsert,
		.if_absent = c->put.if_absent,
		.if_version = it->if_version,
		.require_key = it->require_key,
		.require_version = it->require_version,
		.replicas_required = c->put.replicas_required,
		.preferred = { c->put.preferred, c->put.n_preferred },
		.opts = all_defaults(o) ? NULL : o,
	};
}

static void enc_put(struct stc_msg *m, struct buf *b)
{
	struct msg_put_item *items = calloc(m->n, sizeof(*items));
	struct msg_put_opts *opts = calloc(m->n, sizeof(*opts));
	struct msg_put_start_req q = { .term = m->s->term, .items = { items, m->n } };
	memcpy(q.client, m->s->instance, 16);
	if (items && opts) {
		for (uint32_t i = 0; i < m->n; i++)
			put_item(m->flows[i], &items[i], &opts[i]);
		enc_put_start_req(b, &q);
	} else {
		b->err = ERR_NO_MEMORY;
	}
	free(items);
	free(opts);
}

static enum err dec_put(struct dec *d, struct stc_reply *r)
{
	enum err e = dec_put_start_rep(d, &r->grants);
	for (size_t i = 0; e == ERR_NONE && i < r->grants.items.n; i++) {
		const struct msg_put_grant *g = &r->grants.items.p[i];
		if (g->status == ERR_NONE && g->place >= r->grants.places.n)
			e = why_set(d->why, ERR_BAD_MESSAGE, "PUT_START: no such place");
	}
	return e;
}

static size_t count_grants(const struct stc_reply *r)
{
	return r->grants.items.n;
}

static enum err grant_status(const struct stc_reply *r, size_t i, uint32_t *retry_ms,
			     struct bytes *text)
{
	const struct msg_put_grant *g = &r->grants.items.p[i];
	*retry_ms = g->retry_ms;
	*text = g->text;
	return (enum err)g->status;
}

const struct msg_put_grant *put_grant_of(const struct stc_flow *f)
{
	return f->grant;
}

static void enc_commit(struct stc_msg *m, struct buf *b)
{
	struct msg_commit_item *items = calloc(m->n, sizeof(*items));
	struct msg_commit_req q = { .items = { items, m->n } };
	if (!items) {
		b->err = ERR_NO_MEMORY;
		return;
	}
	for (uint32_t i = 0; i < m->n; i++)
		items[i] = (struct msg_commit_item){
			.ticket = put_grant_of(m->flows[i])->ticket,
			.sum = m->flows[i]->sum,
		};
	enc_commit_req(b, &q);
	free(items);
}

/* ---- results ---- */

static enum err dec_results(struct dec *d, struct stc_reply *r)
{
	return dec_results_rep(d, &r->results);
}

static size_t count_results(const struct stc_reply *r)
{
	return r->results.items.n;
}

static enum err result_status(const struct stc_reply *r, size_t i, uint32_t *retry_ms,
			      struct bytes *text)
{
	const struct msg_result *x = &r->results.items.p[i];
	*retry_ms = x->retry_ms;
	*text = x->text;
	return (enum err)x->status;
}

/* ---- keys ---- */

static void enc_some_keys(struct stc_msg *m, struct buf *b, struct msg_keys_req *q)
{
	struct bytes *keys = calloc(m->n, sizeof(*keys));
	if (!keys) {
		b->err = ERR_NO_MEMORY;
		return;
	}
	for (uint32_t i = 0; i < m->n; i++)
		keys[i] = m->flows[i]->it->key;
	q->keys = (struct bytes_list){ keys, m->n };
	enc_keys_req(b, q);
	free(keys);
}

static void enc_keys(struct stc_msg *m, struct buf *b)
{
	const struct stc_call *c = call_of(m);
	struct msg_keys_req q = { .lease_ms = c->get.lease_ms,
				  .format = c->get.format,
				  .recovering_as_miss = c->get.recovering_as_miss };
	if (m->q == Q_QUERY)
		q.host = BYTES_STR(m->s->host);
	enc_some_keys(m, b, &q);
}

static void enc_doubt(struct stc_msg *m, struct buf *b)
{
	struct msg_keys_req q = { 0 };
	enc_some_keys(m, b, &q);
}

static enum err dec_query(struct dec *d, struct stc_reply *r)
{
	enum err e = dec_query_rep(d, &r->query);
	for (size_t i = 0; e == ERR_NONE && i < r->query.items.n; i++) {
		const struct msg_object *o = &r->query.items.p[i];
		for (size_t k = 0; k < o->replicas.n; k++)
			if (o->replicas.p[k].place >= r->query.places.n)
				e = why_set(d->why, ERR_BAD_MESSAGE, "QUERY: no such place");
	}
	return e;
}

static size_t count_objects(const struct stc_reply *r)
{
	return r->query.items.n;
}

static enum err object_status(const struct stc_reply *r, size_t i, uint32_t *retry_ms,
			      struct bytes *text)
{
	const struct msg_object *o = &r->query.items.p[i];
	*retry_ms = o->retry_ms;
	*text = o->text;
	return (enum err)o->status;
}

static enum err dec_stats(struct dec *d, struct stc_reply *r)
{
	return dec_stat_rep(d, &r->stats);
}

static size_t count_stats(const struct stc_reply *r)
{
	return r->stats.items.n;
}

static enum err stat_status(const struct stc_reply *r, size_t i, uint32_t *retry_ms,
			    struct bytes *text)
{
	const struct msg_stat *x = &r->stats.items.p[i];
	*retry_ms = x->retry_ms;
	*text = x->text;
	return (enum err)x->status;
}

/* ---- removes and releases ---- */

/* T3: a remove that was answered under an older term never kills what was put since. A term that it was
 * only sent under may have been over before it began: what was put and read by then has to go. */
static uint64_t ceiling(const struct stc_flow *f)
{
	const struct stc *s = f->w->s;
	return f->first_term && f->first_term != s->term
		       ? version_make(f->first_term, VERSION_COUNTER_MAX)
		       : 0;
}

static void enc_remove(struct stc_msg *m, struct buf *b)
{
	struct msg_remove_item *items = calloc(m->n, sizeof(*items));
	struct msg_remove_req q = { .term = m->s->term, .items = { items, m->n } };
	if (!items) {
		b->err = ERR_NO_MEMORY;
		return;
	}
	memcpy(q.client, m->s->instance, 16);
	for (uint32_t i = 0; i < m->n; i++)
		items[i] = (struct msg_remove_item){
			.attempt = m->flows[i]->attempt,
			.key = m->flows[i]->it->key,
			.if_version = m->flows[i]->it->if_version,
			.ceiling = ceiling(m->flows[i]),
			.force = call_of(m)->force,
		};
	enc_remove_req(b, &q);
	free(items);
}

static void enc_range(struct stc_msg *m, struct buf *b)
{
	const struct stc_flow *f = m->flows[0];
	struct msg_remove_range_req q = {
		.term = m->s->term,
		.attempt = f->attempt,
		.prefix = f->it->key,
		.ceiling = ceiling(f),
		.force = call_of(m)->force,
	};
	memcpy(q.client, m->s->instance, 16);
	enc_remove_range_req(b, &q);
}

static enum err dec_range(struct dec *d, struct stc_reply *r)
{
	return dec_remove_range_rep(d, &r->range);
}

static void enc_release(struct stc_msg *m, struct buf *b)
{
	struct msg_lease *items = calloc(m->n, sizeof(*items));
	struct msg_leases_req q = { .items = { items, m->n } };
	if (!items) {
		b->err = ERR_NO_MEMORY;
		return;
	}
	for (uint32_t i = 0; i < m->n; i++)
		items[i] = (struct msg_lease){ .key = m->flows[i]->it->key,
					       .version = m->flows[i]->it->if_version };
	enc_leases_req(b, &q);
	free(items);
}

/* ---- single ones ---- */

static void enc_list(struct stc_msg *m, struct buf *b)
{
	const struct stc_call *c = call_of(m);
	struct msg_list_req q = { .prefix = m->flows[0]->it->key,
				  .cursor = c->list.cursor,
				  .limit = c->list.limit,
				  .tier = c->list.tier };
	enc_list_req(b, &q);
}

static enum err dec_list(struct dec *d, struct stc_reply *r)
{
	return dec_list_rep(d, &r->list);
}

static void enc_explain(struct stc_msg *m, struct buf *b)
{
	struct msg_explain_req q = { .key = m->flows[0]->it->key };
	enc_explain_req(b, &q);
}

static enum err dec_explain(struct dec *d, struct stc_reply *r)
{
	return dec_explain_rep(d, &r->explain);
}

static void enc_nothing(struct stc_msg *m, struct buf *b)
{
	static const struct msg_none q;
	enc_none(b, &q);
}

static enum err dec_holders(struct dec *d, struct stc_reply *r)
{
	return dec_holders_rep(d, &r->holders);
}

/* ---- tasks ---- */

static void enc_task_start(struct stc_msg *m, struct buf *b)
{
	const struct stc_call *c = call_of(m);
	struct msg_task_start_req q = { .kind = (uint8_t)c->task.kind,
					.keys = c->task.keys,
					.from = c->task.from,
					.to = c->task.to,
					.replica_num = c->task.replica_num };
	enc_task_start_req(b, &q);
}

static enum err dec_task_start(struct dec *d, struct stc_reply *r)
{
	return dec_task_start_rep(d, &r->task);
}

static void enc_tasks(struct stc_msg *m, struct buf *b)
{
	struct msg_tasks_req q = { .ids = call_of(m)->task.ids };
	enc_tasks_req(b, &q);
}

static enum err dec_tasks(struct dec *d, struct stc_reply *r)
{
	return dec_tasks_rep(d, &r->tasks);
}

#define RESULTS .dec = dec_results, .count = count_results, .status = result_status
/* clang-format off */
const struct stc_row stc_rows[Q_N] = {
	[Q_PUT]     = { "PUT_START", METHOD_PUT_START, true, STC_MSG_ITEMS, .enc = enc_put,
			.dec = dec_put, .count = count_grants, .status = grant_status },
	[Q_COMMIT]  = { "COMMIT", METHOD_COMMIT, false, STC_MSG_ITEMS, .enc = enc_commit, RESULTS },
	[Q_DOUBT]   = { "OBJECT_STAT", METHOD_OBJECT_STAT, false, STC_MSG_ITEMS, .enc = enc_doubt,
			.dec = dec_stats, .count = count_stats, .status = stat_status },
	[Q_QUERY]   = { "QUERY", METHOD_QUERY, false, STC_MSG_ITEMS, .enc = enc_keys,
			.dec = dec_query, .count = count_objects, .status = object_status },
	[Q_REMOVE]  = { "REMOVE", METHOD_REMOVE, true, STC_ITEMS_MAX, .enc = enc_remove, RESULTS },
	[Q_EXISTS]  = { "EXISTS", METHOD_EXISTS, false, STC_ITEMS_MAX, .enc = enc_keys, RESULTS },
	[Q_STAT]    = { "OBJECT_STAT", METHOD_OBJECT_STAT, false, STC_MSG_ITEMS, .enc = enc_keys,
			.dec = dec_stats, .count = count_stats, .status = stat_status },
	[Q_RELEASE] = { "RELEASE", METHOD_RELEASE, false, STC_ITEMS_MAX, .enc = enc_release, RESULTS },
	[Q_RANGE]   = { "REMOVE_RANGE", METHOD_REMOVE_RANGE, true, 1, .enc = enc_range, .dec = dec_range },
	[Q_LIST]    = { "LIST", METHOD_LIST, false, 1, .enc = enc_list, .dec = dec_list },
	[Q_EXPLAIN] = { "EXPLAIN", METHOD_EXPLAIN, false, 1, .enc = enc_explain, .dec = dec_explain },
	[Q_HOLDERS] = { "HOLDERS", METHOD_HOLDERS, false, 1, .enc = enc_nothing, .dec = dec_holders },
	[Q_TASK_START] = { "TASK_START", METHOD_TASK_START, false, 1, .once = true,
			   .enc = enc_task_start, .dec = dec_task_start },
	[Q_TASKS]   = { "TASKS", METHOD_TASKS, false, 1, .enc = enc_tasks, .dec = dec_tasks },
	[Q_TASK_CANCEL] = { "TASK_CANCEL", METHOD_TASK_CANCEL, false, 1, .enc = enc_tasks, RESULTS },
};
/* clang-format on */
