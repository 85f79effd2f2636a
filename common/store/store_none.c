/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `none`: offload is off; puts are refused, nothing is ever there. */
#include "store/store_none.h"

struct none {
	struct store_be be;
	struct store_opts o;
	struct post opened, closing;
	struct list done; /* store_req.node */
	struct post tell;
	bool telling;
	void (*closed)(void *ctx);
	void *closed_ctx;
};

static struct none *none_of(struct store_be *be)
{
	return container_of(be, struct none, be);
}

static void tell(struct post *p)
{
	struct none *b = container_of(p, struct none, tell);
	struct list *n;
	b->telling = false;
	struct list mine;
	list_init(&mine);
	while ((n = list_pop_front(&b->done)))
		list_push_back(&mine, n);
	while ((n = list_pop_front(&mine))) {
		struct store_req *r = list_entry(n, struct store_req, node);
		r->done(r);
	}
}

static enum err finish(struct store_be *be, struct store_req *r)
{
	struct none *b = none_of(be);
	list_init(&r->node);
	list_push_back(&b->done, &r->node);
	if (!b->telling) {
		b->telling = true;
		b->tell.fn = tell;
		loop_defer(be->loop, &b->tell);
	}
	return ERR_NONE;
}

static enum err none_put(struct store_be *be, struct store_put *r)
{
	if (store_batch_ok(be, r->items, r->n))
		return ERR_INVALID_PARAMS;
	for (uint32_t i = 0; i < r->n; i++)
		r->items[i].err = ERR_UNSUPPORTED;
	return finish(be, &r->req);
}

static enum err none_get(struct store_be *be, struct store_get *r)
{
	if (store_batch_ok(be, r->items, r->n))
		return ERR_INVALID_PARAMS;
	for (uint32_t i = 0; i < r->n; i++)
		r->items[i].err = ERR_NOT_FOUND;
	return finish(be, &r->req);
}

static enum err none_delete(struct store_be *be, struct store_del *r)
{
	if (store_batch_ok(be, r->items, r->n))
		return ERR_INVALID_PARAMS;
	for (uint32_t i = 0; i < r->n; i++) {
		r->items[i].err = ERR_NONE;
		r->items[i].absent = true;
	}
	return finish(be, &r->req);
}

static enum err none_exists(struct store_be *be, struct store_has *r)
{
	if (store_batch_ok(be, r->items, r->n))
		return ERR_INVALID_PARAMS;
	r->err = ERR_NONE;
	for (uint32_t i = 0; i < r->n; i++) {
		r->items[i].there = false;
		r->items[i].size = r->items[i].sum = 0;
	}
	return finish(be, &r->req);
}

static enum err none_scan(struct store_be *be, struct store_scan *r)
{
	if (store_scan_ok(r))
		return ERR_INVALID_PARAMS;
	r->err = ERR_NONE;
	r->n = 0;
	r->entries = NULL;
	r->room = NULL;
	r->more = false;
	return finish(be, &r->req);
}

static void none_evict_done(struct store_be *be, struct store_eviction *ev, bool go)
{
	(void)be;
	(void)ev;
	(void)go;
	assert(!"nothing is evicted here");
}

static void none_stat(struct store_be *be, struct store_stat *out)
{
	(void)be;
	*out = (struct store_stat){ 0 };
}

static enum store_health_state none_health(struct store_be *be, struct why *w)
{
	(void)be;
	(void)w;
	return STORE_OK;
}

static const char *none_owner(struct store_be *be)
{
	(void)be;
	return "";
}

static void ended(struct post *p)
{
	struct none *b = container_of(p, struct none, closing);
	void (*closed)(void *) = b->closed;
	void *ctx = b->closed_ctx;
	free(b);
	closed(ctx);
}

static void none_close(struct store_be *be, void (*closed)(void *ctx), void *ctx)
{
	struct none *b = none_of(be);
	b->closed = closed;
	b->closed_ctx = ctx;
	b->closing.fn = ended;
	loop_defer(be->loop, &b->closing); /* behind what is to be told */
}

static const struct store_ops none_ops = {
	.put_batch = none_put,
	.get_batch = none_get,
	.delete_batch = none_delete,
	.exists = none_exists,
	.scan = none_scan,
	.evict_done = none_evict_done,
	.stat = none_stat,
	.health = none_health,
	.owner = none_owner,
	.close = none_close,
};

static void opened(struct post *p)
{
	struct none *b = container_of(p, struct none, opened);
	b->o.opened(b->o.ctx, ERR_NONE, NULL);
}

enum err store_none_open(struct loop *l, const struct store_opts *o,
			 const struct store_caps *caps, struct store_be **out)
{
	struct none *b = calloc(1, sizeof(*b));
	if (!b)
		return ERR_NO_MEMORY;
	b->be = (struct store_be){ .ops = &none_ops, .caps = caps, .loop = l };
	b->o = *o;
	list_init(&b->done);
	b->opened.fn = opened;
	loop_defer(l, &b->opened);
	*out = &b->be;
	return ERR_NONE;
}
