/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LIST: a page of keys in hash order, gathered in slices (L4). Drawn in docs/states/master.list.md:
 *
 *   scan (a slice a turn) ──> reply ──> done
 *
 * A page ends at its limit, at about the size of a message, or at the deadline: what is there is
 * answered, with the cursor to go on. The cursor's bytes: shard (u32), hash (u64), and a tie (u64) where
 * a page ends between keys of one hash; little-endian.
 */
#include "flows.h"

#include <string.h>

#define LIMIT_DEFAULT 1000
#define LIMIT_MAX     4096
#define PAGE_BYTES    (4u << 20)
#define CURSOR_BYTES  12
#define CURSOR_MAX    20

enum { LIST_SCAN, LIST_REPLY };

struct page {
	struct op op;
	struct mst *m;
	struct rpc_req *req;
	struct arena arena;
	struct msg_list_req q;
	struct msg_list_item *items;
	size_t n, max, bytes;
	struct mind_cursor cursor;
	bool end, full, no_memory;
	struct post post;
	bool posted;
};

/* ---- the cursor ---- */

static enum err cursor_in(struct bytes c, struct mind_cursor *out, struct why *why)
{
	uint32_t shard;
	*out = (struct mind_cursor){ 0 };
	if (c.n == 0)
		return ERR_NONE;
	if (c.n != CURSOR_BYTES && c.n != CURSOR_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "LIST.cursor: %zu bytes, not of a page",
			       c.n);
	memcpy(&shard, c.p, sizeof(shard));
	memcpy(out, c.p + sizeof(shard), c.n - sizeof(shard));
	return shard == 0 ? ERR_NONE
			  : why_set(why, ERR_INVALID_PARAMS, "LIST.cursor: of shard %u", shard);
}

static struct bytes cursor_out(const struct mind_cursor *c, uint8_t room[CURSOR_MAX])
{
	memset(room, 0, sizeof(uint32_t));
	memcpy(room + sizeof(uint32_t), c, sizeof(*c));
	return BYTES(room, c->tie ? CURSOR_MAX : CURSOR_BYTES);
}

/* ---- steps ---- */

static void on_post(struct post *p)
{
	struct page *g = container_of(p, struct page, post);
	g->posted = false;
	op_resume(&g->op);
}

static void count_tiers(const struct page *g, const struct mind_object *o,
			struct msg_list_item *it)
{
	struct mind_holder h;
	for (size_t i = 0; i < o->n_replicas; i++) {
		bool disk =
			mind_holder(g->m->term.mind, o->replicas[i].holder, &h) && h.kind == 2;
		it->memory += !disk;
		it->disk += disk;
	}
}

static bool on_object(void *arg, const struct mind_object *o)
{
	struct page *g = arg;
	struct msg_list_item it = { .version = o->version, .size = o->size };
	count_tiers(g, o, &it);
	if ((g->q.tier == 1 && it.memory == 0) || (g->q.tier == 2 && it.disk == 0))
		return true;
	uint8_t *key = arena_alloc(&g->arena, o->key.n + 1);
	if (!key) {
		g->no_memory = true;
		return false;
	}
	memcpy(key, o->key.p, o->key.n);
	it.key = BYTES(key, o->key.n);
	g->items[g->n++] = it;
	g->bytes += o->key.n + 64;
	g->full = g->n == g->max || g->bytes >= PAGE_BYTES;
	return !g->full;
}

static int step_scan(struct op *op)
{
	struct page *g = container_of(op, struct page, op);
	struct mind *mind = mst_mind(g->m);
	if (op->err || !mind)
		return LIST_REPLY;
	bool more = mind_list(mind, mst_tenant(g->req), g->q.prefix, &g->cursor, on_object, g);
	g->end = !more;
	if (g->no_memory)
		op_fail(op, ERR_NO_MEMORY, "LIST: no memory for the page");
	if (g->end || g->full || op->err)
		return LIST_REPLY;
	g->posted = true;
	g->post.fn = on_post;
	loop_defer(op->loop, &g->post);
	return OP_WAIT;
}

static int step_reply(struct op *op)
{
	struct page *g = container_of(op, struct page, op);
	uint8_t room[CURSOR_MAX];
	struct mind *mind = mst_mind(g->m);
	struct mind_counts c = { .recovering = true };
	if (op->err && !(op->timed_out && (g->cursor.hash || g->cursor.tie))) {
		rpc_reply_why(g->req, &op->why, MST_RETRY_MS);
		return OP_DONE;
	}
	if (mind)
		mind_counts(mind, &c);
	struct msg_list_rep rep = { .items = { g->items, g->n }, .recovering = c.recovering };
	if (!g->end)
		rep.cursor = cursor_out(&g->cursor, room);
	struct buf out = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_list_rep(&out, &rep);
	svc_reply(g->req, &out);
	return OP_DONE;
}

static const struct op_step steps[] = {
	[LIST_SCAN] = { "scan", step_scan, TO(LIST_REPLY), .waits = true,
			.stop = op_stop_none },
	[LIST_REPLY] = { "reply", step_reply, TO(OP_DONE) },
};
OP_TABLE(list_table, "master.list", steps);

/* ---- life ---- */

static void page_free(struct page *g)
{
	arena_fini(&g->arena);
	free(g);
}

static void on_done(struct op *op)
{
	page_free(container_of(op, struct page, op));
}

static void on_gone(struct rpc_req *r)
{
	op_cancel(&((struct page *)r->user)->op);
}

static enum err page_start(struct page *g, struct why *why)
{
	struct mst *m = g->m;
	struct dec d = DEC_INIT(g->req->body, &g->arena, why);
	enum err e = m->term.mind ? mst_check_shard(g->req, why) : mst_no_term(m, why);
	if (e == ERR_NONE)
		e = dec_list_req(&d, &g->q);
	if (e == ERR_NONE)
		e = cursor_in(g->q.cursor, &g->cursor, why);
	if (e == ERR_NONE && (g->q.tier > 2 || g->q.limit > LIMIT_MAX))
		e = why_set(why, ERR_INVALID_PARAMS, "LIST: tier %u of 0..2, limit %u of 0..%d",
			    g->q.tier, g->q.limit, LIMIT_MAX);
	if (e)
		return e;
	g->max = g->q.limit ? g->q.limit : LIMIT_DEFAULT;
	g->items = arena_alloc(&g->arena, g->max * sizeof(g->items[0]));
	if (!g->items)
		return why_set(why, ERR_NO_MEMORY, "LIST: no memory for a page");
	g->op = (struct op){ .table = &list_table,
			     .loop = m->svc.loop,
			     .set = &m->svc.ops,
			     .deadline_ns = g->req->deadline_ns,
			     .done_inline = true,
			     .done = on_done };
	g->req->user = g;
	g->req->gone = on_gone;
	return op_start(&g->op)
		       ? why_set(why, ERR_BUSY, "LIST: too many requests under way (ops_max)")
		       : ERR_NONE;
}

void mst_list(void *ctx, struct rpc_req *r)
{
	struct why why = { 0 };
	struct page *g = calloc(1, sizeof(*g));
	if (!g) {
		svc_refuse(r, ERR_NO_MEMORY, "LIST: no memory");
		return;
	}
	g->m = mst_of(ctx);
	g->req = r;
	g->arena.limit = 32u << 20;
	if (page_start(g, &why) == ERR_NONE)
		return; /* g may be gone */
	r->user = NULL;
	r->gone = NULL;
	rpc_reply_why(r, &why, MST_RETRY_MS);
	page_free(g);
}
