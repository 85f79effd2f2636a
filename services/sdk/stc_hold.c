/* SPDX-License-Identifier: Apache-2.0 */
/* Holders: their connections, made by need, and their pools, mapped by need on a worker. */
#include "stc_priv.h"

#include "base/sum.h"
#include "rpc/addr.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void text_of(char *out, size_t size, struct bytes b)
{
	snprintf(out, size, "%.*s", (int)MIN_OF(b.n, size - 1), (const char *)b.p);
}

/* ---- connections ---- */

static void on_closed(void *arg)
{
	struct stc_holder *h = arg;
	struct stc *s = h->s;
	free(h);
	s->n_closing--;
	hold_closed(s);
}

static void holder_close(struct stc *s, struct stc_holder *h)
{
	list_del(&h->node);
	s->n_holders--;
	s->n_closing++;
	rpc_client_close(h->rpc, on_closed, h);
}

void holder_drop(struct stc *s, struct stc_holder *h)
{
	if (--h->users == 0 && (h->old || s->n_holders > STC_HOLDERS_MAX))
		holder_close(s, h);
}

static enum err holder_new(struct stc *s, const struct msg_place *p, uint64_t hash,
			   struct stc_holder **out, struct why *why)
{
	char addrs[8][257];
	const char *v[8];
	struct stc_holder *h = calloc(1, sizeof(*h));
	if (!h)
		return why_set(why, ERR_NO_MEMORY, "%s", err_text(ERR_NO_MEMORY));
	text_of(h->id, sizeof(h->id), p->holder);
	h->s = s;
	h->addrs_hash = hash;
	size_t n = 0;
	for (size_t i = 0; i < p->addrs.n; i++) {
		text_of(addrs[n], sizeof(addrs[n]), p->addrs.p[i]);
		v[n] = addrs[n];
		n += !addr_is_data(addrs[n]);
	}
	struct rpc_client_opts o = {
		.addrs = v,
		.n_addrs = n,
		.peer_name = h->id,
		.as = ROLE_CLIENT,
		.expect = ROLE_HOLDER,
		.expect_holder = h->id,
		.tenant = s->tenant,
		.keys = s->o.keys,
		.log = s->o.log,
		.instance = s->instance,
	};
	enum err e = rpc_client_new(s->o.loop, &o, &h->rpc, why);
	if (e != ERR_NONE) {
		free(h);
		return e;
	}
	list_push_back(&s->holders, &h->node);
	s->n_holders++;
	*out = h;
	return ERR_NONE;
}

static uint64_t hash_addrs(const struct msg_place *p)
{
	uint64_t h = p->addrs.n;
	for (size_t i = 0; i < p->addrs.n; i++)
		h = h * 0x9e3779b97f4a7c15u + sum64(p->addrs.p[i].p, p->addrs.p[i].n);
	return h;
}

static bool same_text(const char *a, struct bytes b)
{
	return strlen(a) == b.n && memcmp(a, b.p, b.n) == 0;
}

enum err holder_take(struct stc_flow *f, const struct msg_place *p)
{
	struct stc *s = f->w->s;
	struct why why = { 0 };
	struct stc_holder *found = NULL;
	uint64_t hash = hash_addrs(p);
	if (p->addrs.n == 0 || p->addrs.n > 8) {
		flow_note(f, ERR_UNREACHABLE, 0, "master", "connect",
			  "the master names no address of holder %.*s", (int)p->holder.n,
			  (const char *)p->holder.p);
		return ERR_UNREACHABLE;
	}
	list_for_each_safe (it, &s->holders) {
		struct stc_holder *h = list_entry(it, struct stc_holder, node);
		if (!same_text(h->id, p->holder))
			continue;
		if (h->addrs_hash == hash) {
			h->old = false;
			found = h;
			continue;
		}
		h->old = true; /* it has moved */
		if (h->users == 0)
			holder_close(s, h);
	}
	enum err e = found ? ERR_NONE : holder_new(s, p, hash, &found, &why);
	if (e != ERR_NONE) {
		flow_note(f, e, 0, "", "connect", "%s", why.err ? why.text : err_text(e));
		return e;
	}
	found->users++;
	f->holder = found;
	return ERR_NONE;
}

/* ---- pools ---- */

static void pool_close(struct stc *s, struct stc_pool *p)
{
	list_del(&p->node);
	s->n_pools--;
	if (p->state == POOL_READY) {
		if (!stc_alive(s))
			shmpool_died(p->map);
		else
			shmpool_close(p->map);
		if (p->conn >= 0)
			close(p->conn);
	}
	free(p);
}

void pool_drop(struct stc *s, struct stc_pool *p)
{
	if (--p->users == 0 && p->state != POOL_MAPPING &&
	    (p->old || p->state == POOL_NONE || s->n_pools > STC_POOLS_MAX))
		pool_close(s, p);
}

/* On a worker. */
static void map_work(struct job *j)
{
	struct stc_pool *p = container_of(j, struct stc_pool, job);
	struct stc_place at = { .holder = p->holder, .host = p->host, .fd_path = p->fd_path };
	memcpy(at.pool, p->id, 16);
	j->err = p->s->o.map(p->s->o.ctx, &at, &p->map, &p->conn, &p->why);
}

static void map_done(struct job *j)
{
	struct stc_pool *p = container_of(j, struct stc_pool, job);
	struct stc *s = p->s;
	struct list now;
	enum err e = j->err;
	struct why why = p->why;
	char holder[sizeof(p->holder)];
	s->n_mapping--;
	p->state = e == ERR_NONE ? POOL_READY : POOL_NONE;
	p->why = (struct why){ 0 };
	snprintf(holder, sizeof(holder), "%s", p->holder);
	list_init(&now);
	while (!list_empty(&p->waiting))
		list_push_back(&now, list_pop_front(&p->waiting));
	if (list_empty(&now)) { /* all were cancelled: users is 0 */
		p->users++;
		pool_drop(s, p);
	}
	while (!list_empty(&now)) { /* each drops it when it fails: p may be gone then */
		struct stc_flow *f = list_entry(list_pop_front(&now), struct stc_flow, node);
		f->err = ERR_NONE;
		if (e != ERR_NONE)
			flow_note(f, e, 0, holder, "map its pool", "%s",
				  why.err ? why.text : err_text(e));
		op_resume(&f->op);
	}
	stc_maybe_end(s);
}

/* The mapping of this pool; others of the same holder are of the past. */
static struct stc_pool *find(struct stc *s, const struct msg_place *at)
{
	struct stc_pool *found = NULL;
	list_for_each_safe (it, &s->pools) {
		struct stc_pool *p = list_entry(it, struct stc_pool, node);
		if (memcmp(p->id, at->pool, 16) == 0) {
			found = p;
			p->old = false;
			if (p->state ==
			    POOL_NONE) /* its socket may have moved, or be known only now */
				text_of(p->fd_path, sizeof(p->fd_path), at->fd_path);
		} else if (same_text(p->holder, at->holder)) {
			p->old = true;
			if (p->users == 0 && p->state != POOL_MAPPING)
				pool_close(s, p);
		}
	}
	return found;
}

static struct stc_pool *pool_make(struct stc *s, const struct msg_place *at)
{
	struct stc_pool *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->s = s;
	p->conn = -1;
	list_init(&p->waiting);
	memcpy(p->id, at->pool, 16);
	text_of(p->holder, sizeof(p->holder), at->holder);
	text_of(p->host, sizeof(p->host), at->host);
	text_of(p->fd_path, sizeof(p->fd_path), at->fd_path);
	p->job.work = map_work;
	p->job.done = map_done;
	list_push_back(&s->pools, &p->node);
	s->n_pools++;
	return p;
}

void place_name(const struct msg_place *p, char out[65])
{
	text_of(out, 65, p->holder);
}

enum err pool_take(struct stc_flow *f, const struct msg_place *at)
{
	struct stc *s = f->w->s;
	if (!same_text(s->host, at->host))
		return dlane_take(f, at);
	struct stc_pool *p = find(s, at);
	if (!p)
		p = pool_make(s, at);
	if (!p) {
		flow_note(f, ERR_NO_MEMORY, 0, "", "map its pool", "no memory for a pool");
		return ERR_NO_MEMORY;
	}
	p->users++;
	f->pool = p;
	if (p->state == POOL_READY)
		return ERR_NONE;
	if (p->state == POOL_NONE) {
		enum err e = pool_submit(s->pool, &p->job);
		if (e != ERR_NONE) {
			f->pool = NULL;
			pool_drop(s, p);
			flow_note(f, e, 0, "", "map its pool", "too many pools at once");
			return e == ERR_BUSY ? ERR_NOT_READY : e;
		}
		p->state = POOL_MAPPING;
		s->n_mapping++;
	}
	list_push_back(&p->waiting, &f->node);
	return ERR_BUSY;
}

/* ---- the end ---- */

void hold_closed(struct stc *s)
{
	if (s->end_due && s->n_closing == 0)
		loop_defer(s->o.loop, &s->end);
}

void hold_close_all(struct stc *s)
{
	s->n_closing++;
	list_for_each_safe (it, &s->holders)
		holder_close(s, list_entry(it, struct stc_holder, node));
	list_for_each_safe (it, &s->pools)
		pool_close(s, list_entry(it, struct stc_pool, node));
	dlane_close_all(s);
	s->n_closing--;
	hold_closed(s);
}
