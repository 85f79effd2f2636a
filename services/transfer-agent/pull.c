/* SPDX-License-Identifier: Apache-2.0 */
/* One op a copy (pull.h). */
#include "agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/sum.h"
#include "rpc/addr.h"

enum { PULL_QUEUE, PULL_OPEN, PULL_FETCH, PULL_COMMIT, PULL_PUBLISH, PULL_END, PULL_N };

enum { ARENA_PULL = 128 << 10, ASK_AGAIN_MS = 50 };

struct from {
	struct xfa_source *s;
	struct bytes ticket;
	bool tried;
};

struct pull {
	struct op op;
	struct map_node node;
	struct xfa *x;
	struct arena arena; /* of the ticket and of the sources' texts */
	struct msg_ticket t;
	struct from from[XFA_SOURCES_MAX];
	uint32_t n_from;
	struct from *cur; /* has a place among those that move bytes, and one at its source */
	struct pool_lane *lane;
	struct fetch fetch;
	uint64_t began_at; /* fetch.at when this source was asked */
	struct xfa_wait wait;
	struct timer timer;
	bool there, here;      /* a slot had it before; its slot is COMMITTED */
	struct hold_slot slot; /* here */
	/* why it failed so far: bytes that are bad count before all else */
	enum err err;
	char text[200], bad[65];
};

static struct pull *pull_of(struct op *op)
{
	return container_of(op, struct pull, op);
}

static struct xfa_pulls *pulls_of(const struct pull *p)
{
	return &p->x->pulls;
}

static void fail(struct pull *p, enum err e, const char *source, const char *step,
		 const char *text)
{
	if (p->err == ERR_CORRUPT)
		return;
	p->err = e;
	(void)snprintf(p->bad, sizeof(p->bad), "%s", source);
	(void)snprintf(p->text, sizeof(p->text), "%.64s%s%s: %.110s", source,
		       source[0] ? " " : "", step, text && text[0] ? text : err_text(e));
}

/* ---- turns ---- */

static void on_kick(struct post *post);

static void kick(struct xfa_pulls *s)
{
	if (s->kick_due || list_empty(&s->queue))
		return;
	s->kick_due = true;
	s->kick.fn = on_kick;
	loop_defer(s->x->svc.loop, &s->kick);
}

/* Can it be asked now? What cannot be asked at all has had its turn. */
static bool usable(struct pull *p, struct from *f, bool *busy)
{
	struct xfa_pulls *s = pulls_of(p);
	if (f->tried)
		return false;
	if (!s->ops || (s->own && !f->s->addr[0])) {
		fail(p, ERR_UNSUPPORTED, f->s->holder, "fetch",
		     "it opens no data lanes; set agent.data_listen there");
		f->tried = true;
		return false;
	}
	if (xfa_source_rests(s, f->s)) { /* P4 */
		fail(p, ERR_UNREACHABLE, f->s->holder, "fetch",
		     "its data lanes failed just now");
		f->tried = true;
		return false;
	}
	if (f->s->running >= s->x->pulls_per_source) {
		*busy = true;
		return false;
	}
	return true;
}

/* The nearest source that is free takes it. False: it waits for one. cur NULL then: nobody is left. */
static bool pick(struct pull *p)
{
	struct xfa_pulls *s = pulls_of(p);
	bool busy = false;
	p->cur = NULL;
	for (uint32_t i = 0; i < p->n_from && !p->cur; i++)
		if (usable(p, &p->from[i], &busy))
			p->cur = &p->from[i];
	if (p->cur) {
		p->cur->s->running++;
		s->n_running++;
	}
	return p->cur || !busy;
}

static void leave_queue(struct pull *p)
{
	list_del(&p->fetch.node);
	pulls_of(p)->n_queued--;
}

/* P2. Those whose sources are all busy let others go ahead. */
static void on_kick(struct post *post)
{
	struct xfa_pulls *s = container_of(post, struct xfa_pulls, kick);
	s->kick_due = false;
	list_for_each_safe (n, &s->queue) {
		struct pull *p =
			container_of(list_entry(n, struct fetch, node), struct pull, fetch);
		if (s->n_running == s->x->pulls_max)
			return;
		if (!pick(p))
			continue;
		leave_queue(p);
		op_resume(&p->op);
	}
}

/* Its turn is over. */
static void turn_over(struct pull *p)
{
	struct xfa_pulls *s = pulls_of(p);
	if (p->lane) { /* P1: nothing of ours writes there any more */
		lane_end(p->lane);
		s->lane_used[p->lane - s->lanes] = false;
		p->lane = NULL;
	}
	if (!p->cur)
		return;
	p->cur->s->running--;
	s->n_running--;
	p->cur = NULL;
	kick(s);
}

static int pull_queue(struct op *op)
{
	struct pull *p = pull_of(op);
	struct xfa_pulls *s = pulls_of(p);
	if (op->err)
		return PULL_END;
	if (p->t.size == 0 || p->there)
		return PULL_COMMIT;
	if (op_first(op)) {
		op->waits_for = "its turn";
		list_push_back(&s->queue, &p->fetch.node);
		s->n_queued++;
		kick(s);
		return OP_WAIT;
	}
	return p->cur ? PULL_OPEN : PULL_END;
}

static void queue_stop(struct op *op)
{
	leave_queue(pull_of(op));
	op_resume(op);
}

/* ---- bytes ---- */

static struct pool_lane *free_lane(struct xfa_pulls *s)
{
	uint32_t i = 0;
	while (s->lane_used[i])
		i++;
	assert(i < s->x->pulls_max); /* n_running is below it */
	s->lane_used[i] = true;
	return &s->lanes[i];
}

static int pull_open(struct op *op)
{
	struct pull *p = pull_of(op);
	struct extent ext[OBJ_EXTENTS_MAX];
	struct why why = { 0 };
	if (op->err) {
		turn_over(p);
		return PULL_END;
	}
	struct pool_lane *lane = free_lane(pulls_of(p));
	enum err e = hold_pull(p->x->hold, &p->t, lane, ext, &why);
	if (e) {
		pulls_of(p)->lane_used[lane - pulls_of(p)->lanes] = false;
		turn_over(p);
		if (e == ERR_EXISTS)
			return PULL_COMMIT;
		fail(p, e, "", "open", why.text);
		return PULL_END;
	}
	p->lane = lane;
	for (size_t i = 0; i < p->t.extents.n; i++)
		p->fetch.ext[i] =
			(struct iovec){ mempool_at(p->x->pool, &ext[i]), (size_t)ext[i].bytes };
	p->fetch.n_ext = (uint32_t)p->t.extents.n;
	return PULL_FETCH;
}

static void on_fetched(struct fetch *f)
{
	op_resume(&container_of(f, struct pull, fetch)->op);
}

/* How its source did. Bytes that came stay: another source goes on behind them (T5). */
static void fetched(struct pull *p)
{
	struct xfa *x = p->x;
	struct fetch *f = &p->fetch;
	struct from *from = p->cur;
	bool moved = f->at > p->began_at;
	metric_add(x->svc.metrics, XFA_M_PULL_BYTES, 0, f->at - p->began_at);
	xfa_source_went(&x->pulls, from->s, f->err, moved);
	if (f->err == ERR_NONE || f->err == ERR_CANCELLED)
		return;
	bool ours = f->err == ERR_NO_MEMORY || f->err == ERR_BUSY;
	from->tried = !(moved && (f->err == ERR_CONN_LOST || f->err == ERR_TIMED_OUT));
	fail(p, f->err, ours ? "" : from->s->holder, "fetch", f->why.text);
	metric_add(x->svc.metrics, XFA_M_PULL_SOURCES, f->err == ERR_CORRUPT ? 1 : 0, 1);
	if (f->err == ERR_CORRUPT)
		LOG_WARN(&x->svc.log, "pull", "version=%" PRIu64 " from=%s err=%s msg=\"%s\"",
			 p->t.version, from->s->holder, err_name(f->err), f->why.text);
}

static int pull_fetch(struct op *op)
{
	struct pull *p = pull_of(op);
	struct xfa_pulls *s = pulls_of(p);
	if (op_first(op) && op->err == ERR_NONE) {
		p->fetch.holder = p->cur->s->holder;
		p->fetch.addr = p->cur->s->addr;
		p->fetch.ticket = p->cur->ticket;
		p->began_at = p->fetch.at;
		op->waits_for = p->fetch.holder;
		FAULT_AT(pull_open);
		s->ops->start(s->engine, &p->fetch);
		return OP_WAIT;
	}
	if (!op_first(op))
		fetched(p);
	bool good = !op_first(op) && p->fetch.err == ERR_NONE;
	turn_over(p);
	if (op->err)
		return PULL_END;
	FAULT_AT(pull_fetched);
	return good ? PULL_COMMIT : PULL_QUEUE;
}

static void fetch_stop(struct op *op)
{
	struct pull *p = pull_of(op);
	pulls_of(p)->ops->stop(pulls_of(p)->engine, &p->fetch);
}

/* ---- its slot ---- */

static int pull_commit(struct op *op)
{
	struct pull *p = pull_of(op);
	struct why why = { 0 };
	if (op->err)
		return PULL_END;
	enum err e = hold_commit(p->x->hold, &p->t, p->t.sum, &p->slot, &why);
	if (e) {
		fail(p, e, "", "commit", why.text);
		return PULL_END;
	}
	p->here = true;
	p->err = ERR_NONE;
	return PULL_PUBLISH;
}

static void on_word(struct xfa_wait *w)
{
	op_resume(&container_of(w, struct pull, wait)->op);
}

static void on_ask_again(struct timer *t)
{
	op_resume(&container_of(t, struct pull, timer)->op);
}

/* The answer resumes the op, or, when there is no room for the question now, the timer. */
static void ask(struct pull *p)
{
	struct loop *l = p->x->svc.loop;
	p->wait = (struct xfa_wait){ .done = on_word, .err = ERR_BUSY };
	if (xfa_ask(p->x, XFA_PUBLISH, p->t.shard, &p->slot, &p->wait) != ERR_NONE)
		timer_start(l, &p->timer, clock_after_ms(loop_now_ns(l), ASK_AGAIN_MS),
			    on_ask_again);
}

/* No deadline: while the slot is here, the master has to hear of it; until it adopts us anew. */
static int pull_publish(struct op *op)
{
	struct pull *p = pull_of(op);
	if (op->err)
		return PULL_END;
	if (!op_first(op) && p->wait.err != ERR_BUSY)
		return PULL_END;
	op->waits_for = "master";
	ask(p);
	return OP_WAIT;
}

static void publish_stop(struct op *op)
{
	struct pull *p = pull_of(op);
	if (!timer_running(&p->timer))
		xfa_ask_drop(&p->wait);
	timer_stop(op->loop, &p->timer);
	op_resume(op);
}

/* P3 */
static int pull_end(struct op *op)
{
	struct pull *p = pull_of(op);
	struct xfa *x = p->x;
	enum { OK, FAILED, ENDED, REFUSED };
	unsigned how = op->err ? ENDED : !p->here ? FAILED : p->wait.err ? REFUSED : OK;
	metric_add(x->svc.metrics, XFA_M_PULLS, how, 1);
	if (how != FAILED)
		return OP_DONE;
	LOG_INFO(&x->svc.log, "pull", "version=%" PRIu64 " size=%" PRIu64 " err=%s msg=\"%s\"",
		 p->t.version, p->t.size, err_name(p->err), p->text);
	xfa_report_failed(x, p->t.shard,
			  &(struct msg_copy_fail){ .version = p->t.version,
						   .status = (uint32_t)p->err,
						   .attempt = p->t.attempt,
						   .text = BYTES_STR(p->text),
						   .source = BYTES_STR(p->bad) });
	return OP_DONE;
}

static const struct op_step pull_steps[PULL_N] = {
	[PULL_QUEUE] = { "queue", pull_queue, TO(PULL_OPEN) | TO(PULL_COMMIT) | TO(PULL_END),
			 .waits = true, .stop = queue_stop },
	[PULL_OPEN] = { "open", pull_open, TO(PULL_FETCH) | TO(PULL_COMMIT) | TO(PULL_END) },
	[PULL_FETCH] = { "fetch", pull_fetch, TO(PULL_QUEUE) | TO(PULL_COMMIT) | TO(PULL_END),
			 .waits = true, .stop = fetch_stop },
	[PULL_COMMIT] = { "commit", pull_commit, TO(PULL_PUBLISH) | TO(PULL_END) },
	[PULL_PUBLISH] = { "publish", pull_publish, TO(PULL_END), .waits = true,
			   .stop = publish_stop },
	[PULL_END] = { "end", pull_end, TO(OP_DONE) },
};
OP_TABLE(pull_table, "agent.pull", pull_steps);

/* ---- begin and end ---- */

static uint64_t hash_of(uint32_t shard, uint64_t version)
{
	uint64_t key[2] = { version, shard };
	return sum64(key, sizeof(key));
}

static bool same(const struct map_node *n, const void *key)
{
	const struct pull *p = container_of(n, struct pull, node);
	const uint64_t *k = key;
	return p->t.version == k[0] && p->t.shard == k[1];
}

static struct pull *find(const struct xfa_pulls *s, uint32_t shard, uint64_t version)
{
	uint64_t key[2] = { version, shard };
	struct map_node *n = map_find(&s->by_version, hash_of(shard, version), same, key);
	return n ? container_of(n, struct pull, node) : NULL;
}

static void pull_free(struct pull *p)
{
	for (uint32_t i = 0; i < p->n_from; i++)
		xfa_source_put(pulls_of(p), p->from[i].s);
	fetch_fini(&p->fetch);
	arena_fini(&p->arena);
	free(p);
}

static void pull_done(struct op *op)
{
	struct pull *p = pull_of(op);
	map_remove(&pulls_of(p)->by_version, &p->node);
	pull_free(p);
}

static enum err keep(struct pull *p, struct bytes from, struct bytes *out)
{
	uint8_t *to = arena_alloc(&p->arena, from.n + 1);
	if (!to)
		return ERR_NO_MEMORY;
	if (from.n)
		memcpy(to, from.p, from.n);
	to[from.n] = 0;
	*out = BYTES(to, from.n);
	return ERR_NONE;
}

static enum err add_from(struct pull *p, const struct msg_copy_source *m, struct bytes addr,
			 struct bytes ticket)
{
	if (p->n_from == XFA_SOURCES_MAX)
		return ERR_NONE;
	struct xfa_source *s = xfa_source_get(pulls_of(p), m->holder, addr);
	if (!s)
		return ERR_NO_MEMORY;
	p->from[p->n_from++] = (struct from){ .s = s, .ticket = ticket };
	return ERR_NONE;
}

/* The first address of each, then the second ones: another holder is more likely to be there. */
static enum err take_sources(struct pull *p, const struct msg_copy_item *m)
{
	struct bytes tickets[XFA_SOURCES_MAX] = { 0 };
	size_t n = MIN_OF(m->sources.n, (size_t)XFA_SOURCES_MAX);
	enum err e = ERR_NONE;
	for (size_t i = 0; i < n && e == ERR_NONE; i++)
		e = keep(p, m->sources.p[i].ticket, &tickets[i]);
	for (size_t k = 0; k < XFA_DATA_LISTEN_MAX; k++)
		for (size_t i = 0; i < n && e == ERR_NONE; i++) {
			struct bytes addr = BYTES(NULL, 0);
			const struct msg_copy_source *at = &m->sources.p[i];
			if (addr_data_at(at->addrs.p, at->addrs.n, k, &addr) || k == 0)
				e = add_from(p, &m->sources.p[i], addr, tickets[i]);
		}
	return e;
}

static enum err take_ticket(struct pull *p, const struct hold_under *u,
			    const struct msg_copy_item *m, struct why *why)
{
	struct bytes sealed;
	enum err e = keep(p, m->ticket, &sealed);
	if (e == ERR_NONE)
		e = ticket_open(p->x->tickets, sealed, &p->arena, &p->t, why);
	if (e)
		return e;
	if (p->t.op != TICKET_PULL || p->t.shard != u->shard)
		return why_set(why, ERR_BAD_TICKET, "COPY takes a pull ticket of its shard");
	if (memcmp(p->t.pool, mempool_id(p->x->pool), 16) != 0)
		return why_set(why, ERR_BAD_TICKET, "the ticket is for another pool");
	return ERR_NONE;
}

static enum err admit(struct pull *p, const struct msg_copy_item *m, struct why *why)
{
	enum err e = hold_pull_admit(p->x->hold, &p->t, why);
	p->there = e == ERR_EXISTS; /* PUBLISH comes again */
	if (e == ERR_NONE && p->t.size > 0 && m->sources.n == 0)
		return why_set(why, ERR_INVALID_PARAMS, "COPY: nobody to fetch it from");
	return p->there ? ERR_NONE : e;
}

static enum err start(struct pull *p)
{
	struct xfa_pulls *s = pulls_of(p);
	p->fetch.size = p->t.size;
	p->fetch.sum = p->t.sum;
	p->fetch.stall_ms = (uint32_t)p->x->pull_stall_ms;
	p->fetch.done = on_fetched;
	p->op = (struct op){ .table = &pull_table,
			     .loop = p->x->svc.loop,
			     .set = &s->ops_alive,
			     .deadline_ns = UINT64_MAX,
			     .done = pull_done };
	enum err e = fetch_init(&p->fetch);
	if (e == ERR_NONE)
		e = map_insert(&s->by_version, &p->node, hash_of(p->t.shard, p->t.version));
	if (e)
		return e;
	e = op_start(&p->op);
	if (e)
		map_remove(&s->by_version, &p->node);
	return e;
}

/* It is under way already, or on its way out. */
static enum err again(const struct pull *old, const struct pull *p, struct why *why)
{
	if (old->op.err)
		return why_set(why, ERR_STALE_ATTEMPT, "this copy is being ended");
	if (old->t.attempt < p->t.attempt)
		return why_set(why, ERR_BUSY, "another copy of this version is under way");
	if (old->t.attempt > p->t.attempt)
		return why_set(why, ERR_STALE_ATTEMPT, "pull: an old command");
	return ERR_NONE;
}

enum err xfa_pull_take(struct xfa *x, const struct hold_under *u, const struct msg_copy_item *m,
		       struct why *why)
{
	struct xfa_pulls *s = &x->pulls;
	if (s->stopped)
		return why_set(why, ERR_SHUTTING_DOWN, "the agent is stopping");
	if (s->n_queued >= x->pull_queue_max)
		return why_set(why, ERR_BUSY, "agent.pull_queue_max copies wait already");
	struct pull *p = calloc(1, sizeof(*p));
	if (!p)
		return ERR_NO_MEMORY;
	p->x = x;
	p->arena = ARENA_INIT(ARENA_PULL);
	enum err e = take_ticket(p, u, m, why);
	const struct pull *old = e ? NULL : find(s, p->t.shard, p->t.version);
	if (old) {
		e = again(old, p, why);
		pull_free(p);
		return e;
	}
	if (e == ERR_NONE)
		e = take_sources(p, m);
	if (e == ERR_NONE)
		e = admit(p, m, why);
	if (e == ERR_NONE)
		e = start(p);
	if (e)
		pull_free(p);
	return e;
}

/* ---- what ends them ---- */

void xfa_pull_fence(struct xfa *x, uint32_t shard, uint64_t version)
{
	struct pull *p = find(&x->pulls, shard, version);
	if (p && !p->here)
		op_cancel(&p->op);
}

void xfa_pulls_adopted(struct xfa *x, const struct hold_under *u)
{
	list_for_each_safe (n, &x->pulls.ops_alive.ops) {
		struct pull *p = pull_of(list_entry(n, struct op, node));
		if (p->t.shard == u->shard && p->t.pool_epoch != u->pool_epoch)
			op_cancel(&p->op);
	}
}

/* ---- life ---- */

enum err xfa_pulls_open(struct xfa *x, struct pool_lane *lanes)
{
	struct xfa_pulls *s = &x->pulls;
	struct fetch_lanes_opts o = { .loop = x->svc.loop,
				      .keys = x->svc.keys,
				      .self = x->svc.id,
				      .instance = x->svc.instance,
				      .threads = x->pulls_max,
				      .idle_ms = (uint32_t)x->pull_idle_ms,
				      .idle_max = x->pulls_max };
	*s = (struct xfa_pulls){
		.x = x, .lanes = lanes, .ops = x->svc.fetch, .engine = x->svc.fetch_ctx
	};
	list_init(&s->queue);
	list_init(&s->sources);
	op_set_init(&s->ops_alive, UINT32_MAX); /* the queue and the map have limits */
	map_init(&s->by_version, SIZE_MAX);
	s->lane_used = calloc(x->pulls_max, sizeof(*s->lane_used));
	if (!s->lane_used)
		return ERR_NO_MEMORY;
	if (s->ops || !loop_uv(x->svc.loop))
		return ERR_NONE;
	enum err e = fetch_lanes_new(&o, &s->own);
	s->ops = e == ERR_NONE ? &fetch_lanes_ops : NULL;
	s->engine = s->own;
	return e;
}

void xfa_pulls_stop(struct xfa *x)
{
	struct xfa_pulls *s = &x->pulls;
	if (!s->x || s->stopped)
		return;
	s->stopped = true;
	op_set_cancel(&s->ops_alive);
}

static void on_empty(struct op_set *set)
{
	struct xfa_pulls *s = container_of(set, struct xfa_pulls, ops_alive);
	s->closed(s->closed_arg);
}

bool xfa_pulls_close(struct xfa *x, void (*closed)(void *arg), void *arg)
{
	struct xfa_pulls *s = &x->pulls;
	if (s->ops_alive.n == 0)
		return true;
	s->closed = closed;
	s->closed_arg = arg;
	s->ops_alive.on_empty = on_empty;
	return false;
}

void xfa_pulls_fini(struct xfa *x)
{
	struct xfa_pulls *s = &x->pulls;
	if (!s->x)
		return;
	assert(s->ops_alive.n == 0 && s->n_running == 0 && s->n_queued == 0);
	list_for_each_safe (n, &s->sources) {
		struct xfa_source *f = list_entry(n, struct xfa_source, node);
		assert(f->users == 0 && f->running == 0);
		list_del(n);
		free(f);
	}
	fetch_lanes_close(TAKE(s->own));
	map_fini(&s->by_version);
	free(TAKE(s->lane_used));
	s->x = NULL;
}
