/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the master orders (V9: each names what it was given under; hold.h decides). All answer at
 * once. INVENTORY fills one message, or what 2 ms of the loop give (L4); the master asks on.
 */
#include "agent.h"

#include <inttypes.h>
#include <string.h>

#define ARENA_BYTES	(4u << 20)
#define PIECE_BYTES	(4u << 20)
#define PIECE_BYTES_MAX (7u << 20) /* of a message of 8 MiB */
#define PIECE_NS	(2 * NS_PER_MS)
#define CURSOR_WRITING	UINT64_MAX /* the slots are told, the writing ranges are not */
#define ENTRIES_MAX	131072
#define WRITING_MAX	65536
#define ENTRY_BYTES	96 /* of one on the wire, beside its texts and extents: an upper bound */
#define EXTENT_BYTES	24
#define OPTS_BYTES	40

static_assert(sizeof(struct extent) == sizeof(struct msg_extent) &&
		      offsetof(struct extent, offset) == offsetof(struct msg_extent, offset) &&
		      offsetof(struct extent, bytes) == offsetof(struct msg_extent, bytes),
	      "an extent is the same in memory and in messages");

/* ---- what they share ---- */

void xfa_count_command(struct xfa *x, enum xfa_cmd what, uint64_t n)
{
	metric_add(x->svc.metrics, XFA_M_COMMANDS, what, n);
}

static enum err refused(struct xfa *x, enum err e)
{
	metric_add(x->svc.metrics, XFA_M_REFUSED,
		   e == ERR_STALE_TERM	  ? 0
		   : e == ERR_STALE_EPOCH ? 1
					  : 2,
		   1);
	return e;
}

static enum err under_shard(struct xfa *x, const struct msg_under *u, struct why *why)
{
	if (!u)
		return why_set(why, ERR_BAD_MESSAGE, "under: missing");
	if (u->shard >= mempool_shards(x->pool))
		return why_set(why, ERR_INVALID_PARAMS, "under.shard = %u: 0..%u", u->shard,
			       mempool_shards(x->pool) - 1);
	return ERR_NONE;
}

/* I1 of hold.h, with both sides named. */
enum err xfa_under(struct xfa *x, const struct msg_under *u, struct hold_under *out,
		   struct why *why)
{
	enum err e = under_shard(x, u, why);
	if (e)
		return refused(x, e);
	*out = (struct hold_under){ u->shard, u->term, u->adoption, u->pool_epoch };
	e = hold_check(x->hold, out);
	if (e == ERR_NONE)
		return e;
	struct hold_under now = hold_under(x->hold, u->shard);
	return refused(x,
		       why_set(why, e,
			       "given under term %" PRIu64 ", adoption %" PRIu64
			       ", epoch %" PRIu64 "; it is %" PRIu64 ", %" PRIu64 ", %" PRIu64,
			       u->term, u->adoption, u->pool_epoch, now.term, now.adoption,
			       now.pool_epoch));
}

static struct msg_under wire_under(const struct hold_under *u)
{
	return (struct msg_under){ u->shard, u->term, u->adoption, u->pool_epoch };
}

bool xfa_ready(struct xfa *x, struct rpc_req *r)
{
	if (x->hold && !x->closing)
		return true;
	struct why why = { 0 };
	if (x->closing)
		why_note(&why, ERR_SHUTTING_DOWN, "%s: the agent is stopping",
			 method_name(r->method));
	else
		why_note(&why, ERR_NOT_READY, "%s: the pool is being opened",
			 method_name(r->method));
	rpc_reply_why(r, &why, 20);
	return false;
}

static void reply_results(struct rpc_req *r, const struct msg_result *items, size_t n)
{
	struct msg_results_rep m = { .items = { items, n } };
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_results_rep(&b, &m);
	svc_reply(r, &b);
}

/* ---- ADOPT ---- */

static void adopted(struct xfa *x, struct rpc_req *r, const struct hold_under *u)
{
	struct msg_segment segments[MEMPOOL_SEGMENTS_MAX];
	struct msg_under under = wire_under(u);
	struct msg_adopt_rep m = { .under = &under,
				   .segments = { segments, xfa_memory_segments(x, segments) } };
	struct buf b = BUF_INIT(64 << 10);
	xfa_count_command(x, XFA_CMD_ADOPT, 1);
	if (u->shard == 0 && xfa_def.pool_epoch(&x->svc) != u->pool_epoch)
		xfa_link_overtaken(x);
	if (u->shard == 0)
		atomic_store_explicit(&x->epoch, u->pool_epoch, memory_order_relaxed);
	xfa_report_adopted(x, u);
	xfa_link_adopted(x, u->term);
	enc_adopt_rep(&b, &m);
	svc_reply(r, &b);
	xfa_data_fenced(x->data);
	xfa_pulls_adopted(x, u);
	xfa_asks_kick(x);
	xfa_report_sweep_soon(x);
}

void xfa_on_adopt(void *ctx, struct rpc_req *r)
{
	struct xfa *x = ctx;
	struct msg_under q;
	struct hold_under u;
	struct why why = { 0 };
	if (!xfa_ready(x, r))
		return;
	struct dec d = DEC_INIT(r->body, NULL, &why);
	enum err e = dec_under(&d, &q);
	if (e == ERR_NONE)
		e = under_shard(x, &q, &why);
	if (e == ERR_NONE)
		e = hold_adopt(x->hold, q.shard, q.term, q.adoption, &u, &why);
	if (e == ERR_NONE) {
		adopted(x, r, &u);
		return;
	}
	why_note(&why, refused(x, e), "ADOPT: %s", err_text(e));
	rpc_reply_why(r, &why, 0);
}

/* ---- RETIRE, FREE, MARK ---- */

typedef enum err (*slot_fn)(struct xfa *x, const struct hold_under *u,
			    const struct msg_retire_item *it);

static enum err retire_one(struct xfa *x, const struct hold_under *u,
			   const struct msg_retire_item *it)
{
	if (it->reason == RETIRE_NONE || it->reason > RETIRE_CORRUPT)
		return ERR_INVALID_PARAMS;
	return hold_retire(x->hold, u, it->slot, it->generation, it->version,
			   (enum retire_reason)it->reason, it->evict_id);
}

static enum err free_one(struct xfa *x, const struct hold_under *u,
			 const struct msg_retire_item *it)
{
	return xfa_data_free_slot(x->data, x->hold, u, it->slot, it->generation);
}

static enum err mark_one(struct xfa *x, const struct hold_under *u,
			 const struct msg_retire_item *it)
{
	return hold_published(x->hold, it->slot, it->generation, it->version);
}

static enum err run_slots(struct xfa *x, struct rpc_req *r, enum xfa_cmd what, slot_fn fn,
			  struct arena *arena, struct why *why)
{
	struct msg_retire_req q;
	struct hold_under u;
	struct dec d = DEC_INIT(r->body, arena, why);
	enum err e = dec_retire_req(&d, &q);
	if (e == ERR_NONE)
		e = xfa_under(x, q.under, &u, why);
	struct msg_result *res = NULL;
	if (e == ERR_NONE && !(res = calloc(q.items.n + 1, sizeof(*res))))
		e = why_set(why, ERR_NO_MEMORY, "no memory for the answer");
	if (e)
		return e;
	for (size_t i = 0; i < q.items.n; i++)
		res[i].status = (uint32_t)fn(x, &u, &q.items.p[i]);
	xfa_count_command(x, what, q.items.n);
	reply_results(r, res, q.items.n);
	free(res);
	return ERR_NONE;
}

static void on_slots(struct xfa *x, struct rpc_req *r, enum xfa_cmd what, slot_fn fn)
{
	struct arena arena = ARENA_INIT(ARENA_BYTES);
	struct why why = { 0 };
	if (!xfa_ready(x, r))
		return;
	if (run_slots(x, r, what, fn, &arena, &why) != ERR_NONE)
		rpc_reply_why(r, &why, 0);
	arena_fini(&arena);
}

void xfa_on_retire(void *ctx, struct rpc_req *r)
{
	on_slots(ctx, r, XFA_CMD_RETIRE, retire_one);
}

void xfa_on_free(void *ctx, struct rpc_req *r)
{
	on_slots(ctx, r, XFA_CMD_FREE, free_one);
}

void xfa_on_mark(void *ctx, struct rpc_req *r)
{
	on_slots(ctx, r, XFA_CMD_MARK, mark_one);
}

/* ---- FENCE ---- */

static enum err fence_one(struct xfa *x, const struct hold_under *u,
			  const struct msg_fence_item *it, struct msg_fence_res *out)
{
	enum hold_fence state = 0;
	struct hold_slot s = { 0 };
	/* P1: one that waits has no record any more */
	xfa_pull_fence(x, u->shard, it->version);
	enum err e = hold_pull_bar(x->hold, u, it->attempt);
	if (e == ERR_NONE)
		e = hold_fence(x->hold, u, it->version, (const struct extent *)it->extents.p,
			       it->extents.n, &state, &s);
	if (e)
		return e;
	*out = (struct msg_fence_res){ .state = (uint8_t)state };
	if (state == HOLD_COMMITTED) {
		out->slot = s.slot;
		out->generation = s.generation;
		out->sum = s.sum;
	}
	return ERR_NONE;
}

/* One that fails fails all: those before it are closed, which a repeat finds. */
static enum err run_fence(struct xfa *x, struct rpc_req *r, struct arena *arena,
			  struct why *why)
{
	struct msg_fence_req q;
	struct hold_under u;
	struct dec d = DEC_INIT(r->body, arena, why);
	enum err e = dec_fence_req(&d, &q);
	if (e == ERR_NONE)
		e = xfa_under(x, q.under, &u, why);
	struct msg_fence_res *res = NULL;
	if (e == ERR_NONE && !(res = calloc(q.items.n + 1, sizeof(*res))))
		e = why_set(why, ERR_NO_MEMORY, "no memory for the answer");
	for (size_t i = 0; e == ERR_NONE && i < q.items.n; i++) {
		e = fence_one(x, &u, &q.items.p[i], &res[i]);
		if (e)
			why_note(why, e, "FENCE: item %zu: %s", i, err_text(e));
	}
	if (e == ERR_NONE) {
		struct msg_fence_rep m = { .items = { res, q.items.n } };
		struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
		xfa_count_command(x, XFA_CMD_FENCE, q.items.n);
		xfa_data_fenced(x->data);
		enc_fence_rep(&b, &m);
		svc_reply(r, &b);
		xfa_report_sweep_soon(x);
	}
	free(res);
	return e;
}

void xfa_on_fence(void *ctx, struct rpc_req *r)
{
	struct xfa *x = ctx;
	struct arena arena = ARENA_INIT(ARENA_BYTES);
	struct why why = { 0 };
	if (!xfa_ready(x, r))
		return;
	if (run_fence(x, r, &arena, &why) != ERR_NONE)
		rpc_reply_why(r, &why, 0);
	arena_fini(&arena);
}

/* ---- INVENTORY ---- */

struct piece {
	struct xfa *x;
	struct arena arena; /* what entries point to */
	struct msg_entry *entries;
	struct msg_writing *writing;
	size_t n, cap, n_writing, cap_writing;
	size_t bytes, bytes_max, writing_bytes;
	uint64_t end_ns;
	enum err err;
};

static void *copy(struct piece *p, const void *from, size_t n)
{
	void *to = arena_alloc(&p->arena, n ? n : 1);
	if (!to)
		p->err = ERR_NO_MEMORY;
	else if (n)
		memcpy(to, from, n);
	return to;
}

/* Twice the room, up to most; false: none. */
static bool room(void **v, size_t *cap, size_t n, size_t size, size_t most)
{
	if (n < *cap)
		return true;
	size_t want = MIN_OF(MAX_OF(*cap * 2, (size_t)1024), most);
	void *more = n < want ? realloc(*v, want * size) : NULL;
	if (!more)
		return false;
	*v = more;
	*cap = want;
	return true;
}

/* Texts lie in the pool until this turn of the loop ends: the message is encoded before. */
static void put_entry(struct piece *p, const struct hold_entry *e)
{
	struct msg_entry *m = &p->entries[p->n];
	*m = (struct msg_entry){
		.slot = e->at.slot,
		.generation = e->at.generation,
		.state = e->at.retired ? 2 : 1,
		.reason = (uint8_t)e->reason,
		.evict_id = e->evict_id,
		.published = e->at.published,
		.tenant = e->tenant,
		.key = e->key,
		.version = e->at.version,
		.size = e->size,
		.sum = e->at.sum,
		.extents = { copy(p, e->extents, e->n_extents * sizeof(struct extent)),
			     e->n_extents },
		.opts = copy(p, &e->opts, sizeof(e->opts)),
	};
	p->n += p->err == ERR_NONE;
	p->bytes += ENTRY_BYTES + e->tenant.n + e->key.n + e->n_extents * EXTENT_BYTES +
		    OPTS_BYTES + e->opts.group.n + e->opts.format.n;
}

/* false: not this one, it comes first in the next piece. */
static bool on_entry(void *arg, const struct hold_entry *e)
{
	struct piece *p = arg;
	if (p->n == ENTRIES_MAX || p->bytes >= p->bytes_max ||
	    (p->n > 0 && p->n % 64 == 0 && loop_now_ns(p->x->svc.loop) >= p->end_ns))
		return false;
	if (!room((void **)&p->entries, &p->cap, p->n, sizeof(*p->entries), ENTRIES_MAX))
		p->err = ERR_NO_MEMORY;
	else
		put_entry(p, e);
	return p->err == ERR_NONE;
}

static void on_writing(void *arg, uint64_t version, const struct extent *ext, size_t n)
{
	struct piece *p = arg;
	if (p->err)
		return;
	if (!room((void **)&p->writing, &p->cap_writing, p->n_writing, sizeof(*p->writing),
		  WRITING_MAX)) {
		p->err = ERR_NO_MEMORY;
		return;
	}
	p->writing[p->n_writing] =
		(struct msg_writing){ .version = version,
				      .extents = { copy(p, ext, n * sizeof(*ext)), n } };
	p->n_writing += p->err == ERR_NONE;
	p->writing_bytes += 16 + n * EXTENT_BYTES;
}

/* Fills the piece from *cursor on; *cursor: where the next one begins. */
static void fill(struct piece *p, uint32_t shard, uint64_t *cursor)
{
	if (*cursor != CURSOR_WRITING) {
		hold_scan(p->x->hold, shard, cursor, on_entry, p);
		if (*cursor != 0 || p->err)
			return;
	}
	*cursor = 0;
	hold_writing(p->x->hold, shard, on_writing, p);
	if (p->n == 0 || p->bytes + p->writing_bytes <= PIECE_BYTES_MAX)
		return;
	p->n_writing = 0; /* they get a message of their own */
	*cursor = CURSOR_WRITING;
}

static enum err send_piece(struct xfa *x, struct rpc_req *r, const struct msg_inventory_req *q,
			   const struct hold_under *u, struct piece *p)
{
	uint64_t cursor = q->cursor;
	fill(p, u->shard, &cursor);
	if (p->err)
		return p->err;
	struct msg_under under = wire_under(u);
	struct msg_inventory_rep m = { .under = &under,
				       .entries = { p->entries, p->n },
				       .writing = { p->writing, p->n_writing },
				       .cursor = cursor };
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	xfa_count_command(x, XFA_CMD_INVENTORY, p->n);
	enc_inventory_rep(&b, &m);
	svc_reply(r, &b);
	return ERR_NONE;
}

void xfa_on_inventory(void *ctx, struct rpc_req *r)
{
	struct xfa *x = ctx;
	struct arena arena = ARENA_INIT(64 << 10);
	struct msg_inventory_req q;
	struct hold_under u;
	struct why why = { 0 };
	if (!xfa_ready(x, r))
		return;
	struct piece p = { .x = x,
			   .arena = ARENA_INIT(64u << 20),
			   .end_ns = loop_now_ns(x->svc.loop) + PIECE_NS };
	struct dec d = DEC_INIT(r->body, &arena, &why);
	enum err e = dec_inventory_req(&d, &q);
	if (e == ERR_NONE)
		e = xfa_under(x, q.under, &u, &why);
	if (e == ERR_NONE) {
		p.bytes_max = q.bytes_max ? MIN_OF(q.bytes_max, PIECE_BYTES_MAX) : PIECE_BYTES;
		e = send_piece(x, r, &q, &u, &p);
	}
	if (e) {
		why_note(&why, e, "INVENTORY: %s", err_text(e));
		rpc_reply_why(r, &why, 0);
	}
	free(p.entries);
	free(p.writing);
	arena_fini(&p.arena);
	arena_fini(&arena);
}
