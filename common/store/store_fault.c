/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that is struck goes below under a copy of its head, so that its end comes here first; the items
 * are its own.
 */
#include "store/store_fault.h"

#include <string.h>

#define ROWS_MAX 16

struct armed {
	struct store_fault_row row;
	uint64_t from; /* requests of the op when it was armed */
};

struct store_fault {
	struct store_be be;
	struct store_be *below;
	struct armed rows[ROWS_MAX];
	uint32_t n_rows;
	uint64_t seen[STORE_FAULT_N], hits;
	uint32_t waiting;
	void (*closed)(void *ctx);
	void *closed_ctx;
};

/* One struck request. */
struct struck {
	union {
		struct store_req req;
		struct store_put put;
		struct store_get get;
		struct store_del del;
	} u; /* what goes below */
	struct store_fault *f;
	struct store_req *real;
	struct store_fault_row row;
	struct timer timer;
	struct post post;
};

static struct store_fault *fault_of(struct store_be *be)
{
	return container_of(be, struct store_fault, be);
}

static void close_if_idle(struct store_fault *f);

static void set_errors(struct struck *s)
{
	struct store_put *p = container_of(s->real, struct store_put, req);
	struct store_get *g = container_of(s->real, struct store_get, req);
	struct store_del *d = container_of(s->real, struct store_del, req);
	if (s->row.err == ERR_NONE)
		return;
	for (uint32_t i = 0; s->row.op == STORE_FAULT_PUT && i < p->n; i++)
		p->items[i].err = s->row.err;
	for (uint32_t i = 0; s->row.op == STORE_FAULT_GET && i < g->n; i++) {
		g->items[i].err = s->row.err;
		g->items[i].got = 0;
	}
	for (uint32_t i = 0; s->row.op == STORE_FAULT_DELETE && i < d->n; i++)
		d->items[i].err = s->row.err;
}

static void finish(struct struck *s)
{
	struct store_fault *f = s->f;
	struct store_req *r = s->real;
	set_errors(s);
	free(s);
	f->waiting--;
	r->done(r);
	close_if_idle(f);
}

static void on_timer(struct timer *t)
{
	finish(container_of(t, struct struck, timer));
}

static void on_post(struct post *p)
{
	finish(container_of(p, struct struck, post));
}

static void late(struct struck *s)
{
	struct loop *l = s->f->be.loop;
	if (s->row.delay_ms > 0) {
		timer_start(l, &s->timer, clock_after_ms(loop_now_ns(l), s->row.delay_ms),
			    on_timer);
		return;
	}
	s->post.fn = on_post;
	loop_defer(l, &s->post);
}

static void below_done(struct store_req *r)
{
	late(container_of(r, struct struck, u.req));
}

static const struct store_fault_row *strikes(struct store_fault *f, enum store_fault_op op)
{
	uint64_t n = f->seen[op]++;
	for (uint32_t i = 0; i < f->n_rows; i++) {
		const struct armed *a = &f->rows[i];
		if (a->row.op == op && n >= a->from + a->row.skip &&
		    n - a->from - a->row.skip < a->row.count) {
			f->hits++;
			return &a->row;
		}
	}
	return NULL;
}

static enum err send_below(struct struck *s)
{
	switch (s->row.op) {
	case STORE_FAULT_PUT:
		return store_be_put(s->f->below, &s->u.put);
	case STORE_FAULT_GET:
		return store_be_get(s->f->below, &s->u.get);
	case STORE_FAULT_DELETE:
		return store_be_delete(s->f->below, &s->u.del);
	case STORE_FAULT_N:
		break;
	}
	return ERR_INTERNAL;
}

static enum err strike(struct store_fault *f, const struct store_fault_row *row,
		       struct store_req *r, size_t n)
{
	if (row->refuse)
		return row->err;
	struct struck *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	memcpy(&s->u, r, n);
	s->u.req.done = below_done;
	s->f = f;
	s->real = r;
	s->row = *row;
	enum err e = ERR_NONE;
	if (row->before)
		late(s);
	else
		e = send_below(s);
	if (e) {
		free(s);
		return e;
	}
	f->waiting++;
	return ERR_NONE;
}

static enum err fault_put(struct store_be *be, struct store_put *r)
{
	struct store_fault *f = fault_of(be);
	const struct store_fault_row *row = strikes(f, STORE_FAULT_PUT);
	return row ? strike(f, row, &r->req, sizeof(*r)) : store_be_put(f->below, r);
}

static enum err fault_get(struct store_be *be, struct store_get *r)
{
	struct store_fault *f = fault_of(be);
	const struct store_fault_row *row = strikes(f, STORE_FAULT_GET);
	return row ? strike(f, row, &r->req, sizeof(*r)) : store_be_get(f->below, r);
}

static enum err fault_delete(struct store_be *be, struct store_del *r)
{
	struct store_fault *f = fault_of(be);
	const struct store_fault_row *row = strikes(f, STORE_FAULT_DELETE);
	return row ? strike(f, row, &r->req, sizeof(*r)) : store_be_delete(f->below, r);
}

static enum err fault_exists(struct store_be *be, struct store_has *r)
{
	return store_be_exists(fault_of(be)->below, r);
}

static enum err fault_scan(struct store_be *be, struct store_scan *r)
{
	return store_be_scan(fault_of(be)->below, r);
}

static void fault_evict_done(struct store_be *be, struct store_eviction *ev, bool go)
{
	store_be_evict_done(fault_of(be)->below, ev, go);
}

static void fault_stat(struct store_be *be, struct store_stat *out)
{
	store_be_stat(fault_of(be)->below, out);
}

static enum store_health_state fault_health(struct store_be *be, struct why *w)
{
	return store_be_health(fault_of(be)->below, w);
}

static const char *fault_owner(struct store_be *be)
{
	return store_be_owner(fault_of(be)->below);
}

static void below_closed(void *ctx)
{
	struct store_fault *f = ctx;
	f->below = NULL;
	close_if_idle(f);
}

static void close_if_idle(struct store_fault *f)
{
	if (f->waiting > 0 || f->below || !f->closed)
		return;
	void (*closed)(void *) = f->closed;
	void *ctx = f->closed_ctx;
	free(f);
	closed(ctx);
}

static void fault_close(struct store_be *be, void (*closed)(void *ctx), void *ctx)
{
	struct store_fault *f = fault_of(be);
	f->closed = closed;
	f->closed_ctx = ctx;
	store_be_close(f->below, below_closed, f);
}

static const struct store_ops fault_ops = {
	.put_batch = fault_put,
	.get_batch = fault_get,
	.delete_batch = fault_delete,
	.exists = fault_exists,
	.scan = fault_scan,
	.evict_done = fault_evict_done,
	.stat = fault_stat,
	.health = fault_health,
	.owner = fault_owner,
	.close = fault_close,
};

enum err store_fault_new(struct store_be *below, struct store_fault **out)
{
	struct store_fault *f = calloc(1, sizeof(*f));
	if (!f)
		return ERR_NO_MEMORY;
	f->below = below;
	f->be = (struct store_be){ .ops = &fault_ops,
				   .caps = below->caps,
				   .loop = below->loop };
	*out = f;
	return ERR_NONE;
}

struct store_be *store_fault_be(struct store_fault *f)
{
	return &f->be;
}

bool store_fault_arm(struct store_fault *f, const struct store_fault_row *row)
{
	if (f->n_rows == ROWS_MAX)
		return false;
	f->rows[f->n_rows++] = (struct armed){ *row, f->seen[row->op] };
	return true;
}

void store_fault_disarm(struct store_fault *f)
{
	f->n_rows = 0;
}

uint64_t store_fault_seen(const struct store_fault *f, enum store_fault_op op)
{
	return f->seen[op];
}

uint64_t store_fault_hits(const struct store_fault *f)
{
	return f->hits;
}
