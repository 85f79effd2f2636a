/* SPDX-License-Identifier: Apache-2.0 */
/* Store operations: their start, their run on the loop, their plain forms. */
#include "store.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/shmsock.h"

/* ---- the loop's side ---- */

static enum err master_of(void *ctx, struct rpc_client **out, struct why *why)
{
	return sdk_end(ctx, sdk_service("master"), out, why);
}

static enum err admin_of(void *ctx, struct rpc_client **out, struct why *why)
{
	return sdk_end(ctx, SDK_ADMIN, out, why);
}

/* On a worker. */
static enum err map_pool(void *ctx, const struct stc_place *at, struct shmpool **out, int *conn,
			 struct why *why)
{
	const struct pml *p = ctx;
	struct shmsock_ask ask = { .path = at->fd_path,
				   .keys = p->keys,
				   .role = ROLE_CLIENT,
				   .tenant = p->tenant,
				   .instance = p->instance,
				   .write = true };
	struct shmpool_fds fds;
	int fd = -1;
	if (!at->fd_path[0])
		return why_set(
			why, ERR_NOT_READY, /* a master that has just started learns it again */
			"no socket for its memory is known; is agent.fd in its run folder?");
	enum err e = shmsock_ask(&ask, &fds, &fd, why);
	if (e != ERR_NONE)
		return e;
	struct shmpool *map = NULL;
	e = shmpool_map(&fds, &map, why);
	if (e == ERR_NONE && memcmp(shmpool_id(map), at->pool, 16) != 0)
		e = why_set(why, ERR_NOT_READY, "holder %s has another pool now", at->holder);
	if (e == ERR_NONE) {
		*out = map;
		*conn = fd;
		return ERR_NONE;
	}
	shmpool_close(map);
	close(fd);
	return e;
}

static enum err session(struct pml *p, struct why *why)
{
	struct stc_opts o = {
		.loop = &p->loop,
		.keys = p->keys,
		.log = &p->log,
		.tenant = p->tenant,
		.instance = p->instance,
		/* no host has this name: no memory is shared */
		.host_id = p->set.data_path == 1 ? "-" : p->host,
		.master = master_of,
		.admin = admin_of,
		.map = map_pool,
		.ctx = p,
		.calls_max = p->calls_max,
		.snap_keys_max = p->set.snapshot_keys,
	};
	return p->stc ? ERR_NONE : stc_new(&o, &p->stc, why);
}

static void item_error(const struct stc_item *it, struct pml_error *out)
{
	sdk_error(out, it->err, it->retry_ms, it->peer, it->step, "%s", it->text);
}

static void on_done(struct stc_call *c)
{
	struct pml_op *op = c->user;
	const struct stc_item *bad = NULL;
	sdk_ended(op->p);
	for (uint32_t i = 0; i < c->n && !bad; i++)
		if (c->items[i].err != ERR_NONE &&
		    !(c->missing_ok && c->items[i].err == ERR_NOT_FOUND))
			bad = &c->items[i];
	if (bad)
		item_error(bad, &op->error);
	else if (sop_views(op->store) != ERR_NONE)
		sdk_error(&op->error, ERR_NO_MEMORY, 0, NULL, "answer",
			  "no memory for the answer");
	op_complete(op);
}

void sop_run(struct pml_op *op)
{
	struct pml *p = op->p;
	struct stc_call *c = op->store->call;
	struct why why = { 0 };
	c->deadline_ns = op->deadline_ns;
	c->done = on_done;
	c->user = op;
	enum err e = session(p, &why);
	if (e == ERR_NONE)
		e = stc_start(p->stc, c);
	if (e == ERR_BUSY && c->kind == STC_SNAPSHOT)
		(void)why_set(&why, e,
			      "client.snapshot_keys = %u: no room for %u more keys in "
			      "the handle's snapshots; close one, or set it higher",
			      p->set.snapshot_keys, c->n);
	if (e == ERR_NONE)
		sdk_begun(p, op);
	else
		op_end_unrun(op, e, why.err ? why.text : err_text(e));
}

void sop_unrun(struct sop *s, enum err e)
{
	for (uint32_t i = 0; i < s->call->n; i++) {
		s->call->items[i].err = e;
		s->call->items[i].step = "start";
		s->call->items[i].text = err_text(e);
	}
}

void sop_cancel(struct pml_op *op)
{
	stc_cancel(op->store->call);
}

void sop_free(struct sop *s)
{
	if (!s)
		return;
	(void)pml_snapshot_close(s->opened);
	buffers_let_go(s);
	stc_call_free(s->call);
	arena_fini(&s->mem);
	free(s);
}

bool sop_has_buffers(const struct pml_op *op)
{
	return op->store &&
	       (op->store->call->kind == STC_PUT || op->store->call->kind == STC_GET);
}

/* ---- starts ---- */

static int no_place(struct pml_error *err)
{
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
			 "a place for the result (out, yes) is NULL");
}

int sop_start(struct pml *p, const struct sop_wish *w, struct pml_cq *cq, void *user,
	      struct pml_op **out, struct pml_error *err)
{
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_op *op = NULL;
	struct sop *s = NULL;
	int e = sdk_usable(p, err);
	if (e == PML_ERR_NONE && !out)
		e = no_place(err);
	if (e == PML_ERR_NONE)
		e = sop_make(p, w, &s, &o.deadline_ms, err);
	if (e != PML_ERR_NONE) {
		(void)pml_snapshot_close(w->opens);
		return e;
	}
	assert(out && s);
	if (op_new(p, OP_STORE, 0, &op) != ERR_NONE) {
		sop_free(s);
		return sdk_error(err, ERR_NO_MEMORY, 0, NULL, "start",
				 "no memory for an operation");
	}
	op->store = s;
	s->op = op;
	e = op_submit(op, &o, cq, user, err);
	if (e == PML_ERR_NONE)
		*out = op;
	return e;
}

int pml_put_start(struct pml *p, const struct pml_item *items, size_t n,
		  const struct pml_put_opts *o, struct pml_cq *cq, void *user,
		  struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = { .kind = STC_PUT, .items = items, .n = n, .put = o };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_upsert_start(struct pml *p, const struct pml_item *items, size_t n,
		     const struct pml_put_opts *o, struct pml_cq *cq, void *user,
		     struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = {
		.kind = STC_PUT, .items = items, .n = n, .upsert = true, .put = o
	};
	return sop_start(p, &w, cq, user, out, err);
}

int pml_get_start(struct pml *p, const struct pml_item *items, size_t n,
		  const struct pml_get_opts *o, struct pml_cq *cq, void *user,
		  struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = { .kind = STC_GET, .items = items, .n = n, .get = o };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_remove_start(struct pml *p, const struct pml_item *items, size_t n,
		     const struct pml_remove_opts *o, struct pml_cq *cq, void *user,
		     struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = { .kind = STC_REMOVE, .items = items, .n = n, .remove = o };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_exists_start(struct pml *p, const struct pml_item *items, size_t n,
		     const struct pml_get_opts *o, struct pml_cq *cq, void *user,
		     struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = { .kind = STC_EXISTS, .items = items, .n = n, .get = o };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_stat_start(struct pml *p, const struct pml_item *items, size_t n,
		   const struct pml_get_opts *o, struct pml_cq *cq, void *user,
		   struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = { .kind = STC_STAT, .items = items, .n = n, .get = o };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_query_start(struct pml *p, const struct pml_item *items, size_t n,
		    const struct pml_get_opts *o, struct pml_cq *cq, void *user,
		    struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = { .kind = STC_QUERY, .items = items, .n = n, .get = o };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_release_start(struct pml *p, const struct pml_item *items, size_t n, struct pml_cq *cq,
		      void *user, struct pml_op **out, struct pml_error *err)
{
	struct sop_wish w = { .kind = STC_RELEASE, .items = items, .n = n };
	return sop_start(p, &w, cq, user, out, err);
}

static struct pml_item one_key(const void *key, size_t key_bytes)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = key;
	it.key_bytes = key_bytes;
	return it;
}

int pml_remove_prefix_start(struct pml *p, const void *prefix, size_t prefix_bytes,
			    const struct pml_remove_opts *o, struct pml_cq *cq, void *user,
			    struct pml_op **out, struct pml_error *err)
{
	struct pml_item it = one_key(prefix, prefix_bytes);
	struct sop_wish w = { .kind = STC_REMOVE_RANGE, .items = &it, .n = 1, .remove = o };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_list_start(struct pml *p, const void *prefix, size_t prefix_bytes,
		   const struct pml_list_opts *o, struct pml_cq *cq, void *user,
		   struct pml_op **out, struct pml_error *err)
{
	struct pml_item it = one_key(prefix, prefix_bytes);
	struct sop_wish w = { .kind = STC_LIST, .items = &it, .n = 1, .list = o };
	return sop_start(p, &w, cq, user, out, err);
}

/* ---- plain forms ---- */

int sop_finish(int e, struct pml_op *op, struct pml_op **out, struct pml_error *err)
{
	if (e != PML_ERR_NONE)
		return e;
	e = op_wait_for(op, err);
	if (e == PML_ERR_NONE && out)
		*out = op;
	else
		op_destroy(op);
	return e;
}

static int put_one(struct pml *p, bool upsert, const void *key, size_t key_bytes,
		   const void *data, size_t n, const struct pml_put_opts *o,
		   struct pml_error *err)
{
	struct pml_buf buf = { (void *)data, n };
	struct pml_item it = one_key(key, key_bytes);
	struct pml_op *op = NULL;
	it.bufs = &buf;
	it.n_bufs = 1;
	struct sop_wish w = {
		.kind = STC_PUT, .items = &it, .n = 1, .upsert = upsert, .put = o
	};
	int e = sop_start(p, &w, NULL, NULL, &op, err);
	return sop_finish(e, op, NULL, err);
}

int pml_put(struct pml *p, const void *key, size_t key_bytes, const void *data, size_t n,
	    const struct pml_put_opts *o, struct pml_error *err)
{
	return put_one(p, false, key, key_bytes, data, n, o, err);
}

int pml_upsert(struct pml *p, const void *key, size_t key_bytes, const void *data, size_t n,
	       const struct pml_put_opts *o, struct pml_error *err)
{
	return put_one(p, true, key, key_bytes, data, n, o, err);
}

int sop_get_finish(struct pml_op *op, size_t *n_out, struct pml_error *err)
{
	assert(op);
	int e = op_wait_for(op, err);
	const struct stc_item *x = &op->store->call->items[0];
	if (n_out && (e == PML_ERR_NONE || e == PML_ERR_TOO_LARGE))
		*n_out = e == PML_ERR_NONE ? x->bytes : x->size;
	op_destroy(op);
	return e;
}

static int get_one(struct pml *p, const struct pml_item *it, size_t *n_out,
		   const struct pml_get_opts *o, struct pml_error *err)
{
	struct pml_op *op = NULL;
	int e = pml_get_start(p, it, 1, o, NULL, NULL, &op, err);
	return e == PML_ERR_NONE ? sop_get_finish(op, n_out, err) : e;
}

int pml_get(struct pml *p, const void *key, size_t key_bytes, void *buf, size_t cap,
	    size_t *n_out, const struct pml_get_opts *o, struct pml_error *err)
{
	struct pml_buf b = { buf, cap };
	struct pml_item it = one_key(key, key_bytes);
	it.bufs = &b;
	it.n_bufs = 1;
	return get_one(p, &it, n_out, o, err);
}

int pml_get_ranges(struct pml *p, const void *key, size_t key_bytes,
		   const struct pml_range *ranges, size_t n_ranges, const struct pml_buf *bufs,
		   size_t n_bufs, const struct pml_get_opts *o, struct pml_error *err)
{
	struct pml_item it = one_key(key, key_bytes);
	it.ranges = ranges;
	it.n_ranges = n_ranges;
	it.bufs = bufs;
	it.n_bufs = n_bufs;
	if (n_ranges == 0)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
				 "no ranges: pml_get reads whole objects");
	return get_one(p, &it, NULL, o, err);
}

int pml_remove(struct pml *p, const void *key, size_t key_bytes,
	       const struct pml_remove_opts *o, struct pml_error *err)
{
	struct pml_item it = one_key(key, key_bytes);
	struct pml_op *op = NULL;
	int e = pml_remove_start(p, &it, 1, o, NULL, NULL, &op, err);
	return sop_finish(e, op, NULL, err);
}

int pml_remove_prefix(struct pml *p, const void *prefix, size_t prefix_bytes,
		      const struct pml_remove_opts *o, uint64_t *removed, struct pml_error *err)
{
	struct pml_op *op = NULL, *done = NULL;
	int e = pml_remove_prefix_start(p, prefix, prefix_bytes, o, NULL, NULL, &op, err);
	e = sop_finish(e, op, &done, err);
	if (e != PML_ERR_NONE)
		return e;
	assert(done);
	if (removed)
		*removed = done->store->call->items[0].bytes;
	op_destroy(done);
	return e;
}

int pml_exists(struct pml *p, const void *key, size_t key_bytes, bool *yes,
	       const struct pml_get_opts *o, struct pml_error *err)
{
	struct pml_item it = one_key(key, key_bytes);
	struct pml_error own = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	if (!yes)
		return no_place(err);
	int e = pml_exists_start(p, &it, 1, o, NULL, NULL, &op, err);
	if (e != PML_ERR_NONE)
		return e;
	assert(op);
	e = op_wait_for(op, &own);
	op_destroy(op);
	if (e != PML_ERR_NONE && e != PML_ERR_NOT_FOUND) {
		if (err)
			sdk_error_copy(err, &own);
		return e;
	}
	*yes = e == PML_ERR_NONE;
	return PML_ERR_NONE;
}

int pml_stat(struct pml *p, const void *key, size_t key_bytes, const struct pml_get_opts *o,
	     struct pml_op **out, struct pml_error *err)
{
	struct pml_item it = one_key(key, key_bytes);
	struct pml_op *op = NULL;
	int e = out ? pml_stat_start(p, &it, 1, o, NULL, NULL, &op, err) : no_place(err);
	return sop_finish(e, op, out, err);
}

int pml_query(struct pml *p, const void *key, size_t key_bytes, const struct pml_get_opts *o,
	      struct pml_op **out, struct pml_error *err)
{
	struct pml_item it = one_key(key, key_bytes);
	struct pml_op *op = NULL;
	int e = out ? pml_query_start(p, &it, 1, o, NULL, NULL, &op, err) : no_place(err);
	return sop_finish(e, op, out, err);
}

int pml_release(struct pml *p, const void *key, size_t key_bytes, uint64_t version,
		struct pml_error *err)
{
	struct pml_item it = one_key(key, key_bytes);
	struct pml_op *op = NULL;
	it.version = version;
	int e = pml_release_start(p, &it, 1, NULL, NULL, &op, err);
	return sop_finish(e, op, NULL, err);
}

int pml_list(struct pml *p, const void *prefix, size_t prefix_bytes,
	     const struct pml_list_opts *o, struct pml_op **out, struct pml_error *err)
{
	struct pml_op *op = NULL;
	int e = out ? pml_list_start(p, prefix, prefix_bytes, o, NULL, NULL, &op, err)
		    : no_place(err);
	return sop_finish(e, op, out, err);
}

/* Only a deadline can be chosen. */
static int plain(struct pml *p, enum stc_kind kind, const struct pml_item *it,
		 const struct pml_call_opts *o, struct pml_op **out, struct pml_error *err)
{
	struct pml_call_opts opts;
	struct pml_get_opts get = PML_GET_OPTS_INIT;
	struct pml_op *op = NULL;
	if (!out)
		return no_place(err);
	int e = sdk_call_opts(&opts, o, err);
	if (e != PML_ERR_NONE)
		return e;
	get.deadline_ms = opts.deadline_ms;
	struct sop_wish w = { .kind = kind, .items = it, .n = 1, .get = &get };
	e = sop_start(p, &w, NULL, NULL, &op, err);
	return sop_finish(e, op, out, err);
}

int pml_explain(struct pml *p, const void *key, size_t key_bytes, const struct pml_call_opts *o,
		struct pml_op **out, struct pml_error *err)
{
	struct pml_item it = one_key(key, key_bytes);
	return plain(p, STC_EXPLAIN, &it, o, out, err);
}

int pml_holders(struct pml *p, const struct pml_call_opts *o, struct pml_op **out,
		struct pml_error *err)
{
	struct pml_item it = one_key("", 0);
	return plain(p, STC_HOLDERS, &it, o, out, err);
}

int pml_forget(struct pml *p, const char *holder, const struct pml_call_opts *o,
	       struct pml_error *err)
{
	struct msg_forget_req m = { .holder = BYTES_STR(holder ? holder : "") };
	struct pml_op *op = NULL;
	int e = sdk_usable(p, err);
	if (e != PML_ERR_NONE)
		return e;
	if (m.holder.n < 1 || m.holder.n > 64)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
				 "a holder's id has 1..64 characters");
	if (op_new(p, OP_FORGET, 1, &op) != ERR_NONE)
		return sdk_error(err, ERR_NO_MEMORY, 0, NULL, "start",
				 "no memory for an operation");
	op->parts[0].service = SDK_ADMIN;
	enc_forget_req(&op->parts[0].body, &m);
	e = op_submit(op, o, NULL, NULL, err);
	return sop_finish(e, op, NULL, err);
}
