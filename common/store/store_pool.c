/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocking backend as an asynchronous one: one writer thread, some readers, each with a lane of its own,
 * and the care for room: when the backend is above its watermark or a put found none, something is
 * picked, its user is asked, it is reclaimed, and puts that waited go on.
 *
 *	idle -> picking -> (nobody to ask: reclaimed) -> idle
 *	               \-> asked -> reclaiming -> idle           (asked waits for store_be_evict_done)
 *
 * P1: a parked put ends by a reclaim, by nothing being left to reclaim, by its deadline, or by close (T7).
 * P2: at most o.queue requests of writers and of readers are inside (B1); parked ones count.
 */
#include "store/store_none.h"

#include "store/store_blk.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RETRY_MS 200 /* after a refused or failed reclaim */

enum state { OPENING, OPEN, FAILED, CLOSING };
enum kind { PUT, GET, DEL, HAS, SCAN };
enum care { IDLE, PICKING, ASKED, RECLAIMING };

struct pool_be {
	struct store_be be;
	struct store_opts o;
	const struct store_backend_row *row;
	char *dir, *owner;
	uint64_t seed;
	char random_owner[32];
	struct disk_fs *fs; /* ours when o.fs is NULL */
	struct store_blk *blk;
	struct pool *writers, *readers;
	struct blk_lane writer;
	struct blk_lane *reader_lanes; /* [o.readers] */
	struct blk_lane **idle_lanes;  /* stack, under the lock */
	uint32_t n_idle;
	pthread_mutex_t lock;
	enum state state;
	struct why why;
	uint32_t n_writes, n_reads, n_short; /* requests inside */
	struct list parked;		     /* store_req.node, oldest first */
	enum care care;
	bool starved, reclaim_failed, full;
	struct store_eviction *ev;
	struct job care_job, life_job;
	struct timer timer;
	uint64_t retry_ns;
	void (*closed)(void *ctx);
	void *closed_ctx;
};

static struct pool_be *be_of(struct store_be *be)
{
	return container_of(be, struct pool_be, be);
}

static void look_after(struct pool_be *b);
static void close_when_idle(struct pool_be *b);

/* ---- lanes ---- */

static void lane_fini(struct blk_lane *l)
{
	disk_lane_free(l->io);
	free(l->bounce);
	*l = (struct blk_lane){ 0 };
}

static enum err lane_init(struct pool_be *b, struct blk_lane *l, uint32_t depth)
{
	struct bytes areas[17];
	size_t n = (size_t)BLK_BOUNCES * BLK_BOUNCE;
	static_assert(BLK_BOUNCE % DISK_ALIGN == 0, "pieces are aligned");
	l->depth = depth;
	l->bounce = aligned_alloc(DISK_ALIGN, n);
	if (!l->bounce)
		return ERR_NO_MEMORY;
	for (size_t i = 0; i < b->o.n_buffers; i++)
		areas[i] = b->o.buffers[i];
	areas[b->o.n_buffers] = BYTES(l->bounce, n);
	const struct disk_lane_opts o = { .depth = l->depth,
					  .uring = b->o.uring == STORE_URING_AUTO,
					  .buffers = areas,
					  .n_buffers = b->o.n_buffers + 1 };
	return b->fs->ops->lane_new(b->fs, &o, &l->io);
}

static void lanes_fini(struct pool_be *b)
{
	lane_fini(&b->writer);
	for (uint32_t i = 0; b->reader_lanes && i < b->o.readers; i++)
		lane_fini(&b->reader_lanes[i]);
}

static enum err lanes_init(struct pool_be *b)
{
	/* of a large record the head is an io of its own: so many records are in flight all the same */
	enum err e = lane_init(b, &b->writer, MIN_OF(2 * b->o.depth, 1024u));
	for (uint32_t i = 0; e == ERR_NONE && i < b->o.readers; i++) {
		e = lane_init(b, &b->reader_lanes[i], b->o.depth);
		b->idle_lanes[b->n_idle++] = &b->reader_lanes[i];
	}
	return e;
}

/* There are as many lanes as reader threads: one is always idle. */
static struct blk_lane *lane_take(struct pool_be *b)
{
	pthread_mutex_lock(&b->lock);
	assert(b->n_idle > 0);
	struct blk_lane *l = b->idle_lanes[--b->n_idle];
	pthread_mutex_unlock(&b->lock);
	return l;
}

static void lane_give(struct pool_be *b, struct blk_lane *l)
{
	pthread_mutex_lock(&b->lock);
	b->idle_lanes[b->n_idle++] = l;
	pthread_mutex_unlock(&b->lock);
}

/* ---- ends of requests ---- */

static void finish(struct pool_be *b, struct store_req *r)
{
	uint32_t *n = r->kind == GET			 ? &b->n_reads
		      : r->kind == PUT || r->kind == DEL ? &b->n_writes
							 : &b->n_short;
	(*n)--;
	r->be = NULL;
	r->done(r); /* may free r */
	close_when_idle(b);
}

static struct store_put *put_of(struct store_req *r)
{
	return container_of(r, struct store_put, req);
}

static bool short_of_room(const struct store_put *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (!p->items[i].settled)
			return true;
	return false;
}

/* What has found no room by now does not get any. */
static void give_up(struct pool_be *b, struct store_req *r, enum err e)
{
	struct store_put *p = put_of(r);
	list_del(&r->node);
	for (uint32_t i = 0; i < p->n; i++) {
		if (p->items[i].settled)
			continue;
		p->items[i].settled = true;
		p->items[i].err = e;
	}
	finish(b, r);
}

static void give_up_all(struct pool_be *b, enum err e)
{
	struct list mine;
	list_init(&mine);
	struct list *n;
	while ((n = list_pop_front(&b->parked)))
		list_push_back(&mine, n);
	while (!list_empty(&mine))
		give_up(b, list_entry(mine.next, struct store_req, node), e);
}

/* ---- jobs of requests ---- */

static struct store_req *req_of(struct job *j)
{
	return container_of(j, struct store_req, job);
}

static void write_work(struct job *j)
{
	struct store_req *r = req_of(j);
	struct pool_be *b = be_of(r->be);
	if (r->kind == PUT)
		b->blk->ops->put(b->blk, &b->writer, put_of(r));
	else
		b->blk->ops->del(b->blk, &b->writer, container_of(r, struct store_del, req));
}

static void write_done(struct job *j)
{
	struct store_req *r = req_of(j);
	struct pool_be *b = be_of(r->be);
	if (r->kind == PUT && short_of_room(put_of(r))) {
		if (b->state == CLOSING) {
			give_up(b, r, ERR_SHUTTING_DOWN);
			return;
		}
		if (loop_now_ns(b->be.loop) >= r->deadline_ns) {
			give_up(b, r, ERR_NO_SPACE);
			return;
		}
		list_push_back(&b->parked, &r->node);
		look_after(b);
		return;
	}
	if (r->kind == PUT)
		b->full = false;
	look_after(b);
	finish(b, r);
}

static void read_work(struct job *j)
{
	struct store_req *r = req_of(j);
	struct pool_be *b = be_of(r->be);
	struct blk_lane *l = lane_take(b);
	b->blk->ops->get(b->blk, l, container_of(r, struct store_get, req));
	lane_give(b, l);
}

static void read_done(struct job *j)
{
	struct store_req *r = req_of(j);
	struct pool_be *b = be_of(r->be);
	look_after(b);
	finish(b, r);
}

static void short_done(struct post *p)
{
	struct store_req *r = container_of(p, struct store_req, job.post);
	finish(be_of(r->be), r);
}

static void submit(struct pool_be *b, struct store_req *r)
{
	bool read = r->kind == GET;
	r->job = (struct job){ .work = read ? read_work : write_work,
			       .done = read ? read_done : write_done };
	enum err e = pool_submit(read ? b->readers : b->writers, &r->job);
	assert(e == ERR_NONE); /* P2: the pools are deep enough */
}

/* ---- requests ---- */

static enum err admit(struct pool_be *b, struct store_req *r, enum kind kind)
{
	if (b->state == OPENING)
		return ERR_NOT_READY;
	if (b->state == FAILED)
		return ERR_CLOSED;
	if (b->state == CLOSING)
		return ERR_SHUTTING_DOWN;
	uint32_t *n = kind == GET		   ? &b->n_reads
		      : kind == PUT || kind == DEL ? &b->n_writes
						   : &b->n_short;
	if (*n >= b->o.queue)
		return ERR_BUSY; /* P2 */
	(*n)++;
	r->be = &b->be;
	r->kind = kind;
	list_init(&r->node);
	return ERR_NONE;
}

static enum err pool_be_put(struct store_be *be, struct store_put *p)
{
	struct pool_be *b = be_of(be);
	enum err e = store_batch_ok(be, p->items, p->n);
	if (e == ERR_NONE)
		e = admit(b, &p->req, PUT);
	if (e)
		return e;
	for (uint32_t i = 0; i < p->n; i++)
		p->items[i].settled = p->items[i].existed = false;
	p->req.deadline_ns = clock_after_ms(loop_now_ns(be->loop), b->o.put_wait_ms);
	submit(b, &p->req);
	return ERR_NONE;
}

static enum err pool_be_get(struct store_be *be, struct store_get *g)
{
	enum err e = store_batch_ok(be, g->items, g->n);
	if (e == ERR_NONE)
		e = admit(be_of(be), &g->req, GET);
	if (e == ERR_NONE)
		submit(be_of(be), &g->req);
	return e;
}

static enum err pool_be_delete(struct store_be *be, struct store_del *d)
{
	enum err e = store_batch_ok(be, d->items, d->n);
	if (e == ERR_NONE)
		e = admit(be_of(be), &d->req, DEL);
	if (e == ERR_NONE)
		submit(be_of(be), &d->req);
	return e;
}

/* No I/O: done now, told in the next turn. */
static void tell_soon(struct pool_be *b, struct store_req *r)
{
	r->job.post.fn = short_done;
	loop_defer(b->be.loop, &r->job.post);
}

static enum err pool_be_exists(struct store_be *be, struct store_has *h)
{
	struct pool_be *b = be_of(be);
	enum err e = store_batch_ok(be, h->items, h->n);
	if (e == ERR_NONE)
		e = admit(b, &h->req, HAS);
	if (e)
		return e;
	h->err = ERR_NONE;
	b->blk->ops->has(b->blk, h);
	tell_soon(b, &h->req);
	return ERR_NONE;
}

static enum err pool_be_scan(struct store_be *be, struct store_scan *s)
{
	struct pool_be *b = be_of(be);
	enum err e = store_scan_ok(s);
	if (e == ERR_NONE)
		e = admit(b, &s->req, SCAN);
	if (e)
		return e;
	b->blk->ops->scan(b->blk, s);
	tell_soon(b, &s->req);
	return ERR_NONE;
}

/* ---- room ---- */

static void pick_work(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, care_job);
	j->err = b->blk->ops->pick(b->blk, &b->writer, b->starved, &b->ev);
	if (j->err == ERR_NONE && b->ev && b->ev->n == 0)
		j->err = b->blk->ops->reclaim(b->blk, &b->writer, b->ev);
}

static void reclaim_work(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, care_job);
	j->err = b->blk->ops->reclaim(b->blk, &b->writer, b->ev);
}

/* Puts that waited try again, in their order. */
static void unpark(struct pool_be *b)
{
	struct list *n;
	while ((n = list_pop_front(&b->parked)))
		submit(b, list_entry(n, struct store_req, node));
}

static void reclaimed(struct pool_be *b, enum err e)
{
	blk_eviction_free(b->ev);
	b->ev = NULL;
	b->care = IDLE;
	b->reclaim_failed = e != ERR_NONE;
	if (e == ERR_NONE) {
		b->full = false;
		unpark(b);
	} else {
		LOG_WARN(b->o.log, "disk", "reclaim=failed err=%s", err_name(e));
		b->retry_ns = clock_after_ms(loop_now_ns(b->be.loop), RETRY_MS);
	}
	look_after(b);
	close_when_idle(b);
}

static void reclaim_done(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, care_job);
	if (b->o.evicted)
		b->o.evicted(b->o.ctx, b->ev);
	reclaimed(b, j->err);
}

static void start_care(struct pool_be *b, enum care care, void (*work)(struct job *j),
		       void (*done)(struct job *j))
{
	b->care = care;
	b->care_job = (struct job){ .work = work, .done = done };
	enum err e = pool_submit(b->writers, &b->care_job);
	assert(e == ERR_NONE); /* one at a time, and the pool has a place for it */
}

static void ask(struct pool_be *b)
{
	if (!b->o.evict) {
		start_care(b, RECLAIMING, reclaim_work, reclaim_done);
		return;
	}
	b->care = ASKED;
	b->o.evict(b->o.ctx, b->ev);
}

static void nothing_to_pick(struct pool_be *b)
{
	b->care = IDLE;
	if (b->starved) {
		b->full = true;
		give_up_all(b, ERR_NO_SPACE); /* P1 */
	}
	/* what will come by itself comes with the next request */
	b->retry_ns = clock_after_ms(loop_now_ns(b->be.loop), RETRY_MS);
	if (!list_empty(&b->parked))
		look_after(b); /* parked while this went on */
	close_when_idle(b);
}

static void pick_done(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, care_job);
	if (j->err || (b->ev && b->ev->n == 0))
		reclaimed(b, j->err);
	else if (!b->ev)
		nothing_to_pick(b);
	else if (b->state == CLOSING)
		reclaimed(b, ERR_SHUTTING_DOWN);
	else
		ask(b);
}

static void pool_be_evict_done(struct store_be *be, struct store_eviction *ev, bool go)
{
	struct pool_be *b = be_of(be);
	assert(b->care == ASKED && ev == b->ev);
	if (go)
		start_care(b, RECLAIMING, reclaim_work, reclaim_done);
	else
		reclaimed(b, ERR_BUSY);
}

static void set_timer(struct pool_be *b, uint64_t retry_ns)
{
	uint64_t due = retry_ns;
	if (!list_empty(&b->parked)) {
		struct store_req *r = list_entry(b->parked.next, struct store_req, node);
		due = MIN_OF(due, r->deadline_ns);
	}
	if (due == UINT64_MAX)
		timer_stop(b->be.loop, &b->timer);
	else
		timer_start(b->be.loop, &b->timer, due, b->timer.fn);
}

/* Is there something to do about room, and may it be done now? */
static void look_after(struct pool_be *b)
{
	if (b->state != OPEN)
		return;
	bool starved = !list_empty(&b->parked);
	bool wanted = starved || b->blk->ops->wants(b->blk) != BLK_NOTHING;
	uint64_t now = loop_now_ns(b->be.loop);
	if (b->care != IDLE || !wanted) {
		set_timer(b, UINT64_MAX);
		return;
	}
	if (now < b->retry_ns && !(starved && !b->reclaim_failed)) {
		set_timer(b, b->retry_ns);
		return;
	}
	b->starved = starved;
	set_timer(b, UINT64_MAX);
	start_care(b, PICKING, pick_work, pick_done);
}

static void on_timer(struct timer *t)
{
	struct pool_be *b = container_of(t, struct pool_be, timer);
	uint64_t now = loop_now_ns(b->be.loop);
	while (!list_empty(&b->parked)) {
		struct store_req *r = list_entry(b->parked.next, struct store_req, node);
		if (now < r->deadline_ns)
			break;
		give_up(b, r, ERR_NO_SPACE); /* P1 */
	}
	look_after(b);
}

/* ---- what it tells ---- */

static void pool_be_stat(struct store_be *be, struct store_stat *out)
{
	struct pool_be *b = be_of(be);
	*out = (struct store_stat){ 0 };
	if (b->state == OPENING || !b->blk)
		return;
	b->blk->ops->stat(b->blk, out);
	out->uring = b->writer.io->uring;
}

static enum store_health_state pool_be_health(struct store_be *be, struct why *w)
{
	struct pool_be *b = be_of(be);
	switch (b->state) {
	case OPENING:
		why_note(w, ERR_NOT_READY, "disk tier: reading what %s holds",
			 b->o.dir ? b->dir : b->o.fs->where);
		return STORE_OPENING;
	case FAILED:
		if (w)
			*w = b->why;
		return STORE_BROKEN;
	case CLOSING:
		return STORE_CLOSING;
	case OPEN:
		break;
	}
	enum store_health_state s = b->blk->ops->health(b->blk, w);
	if (s == STORE_OK && b->full) {
		why_note(w, ERR_NO_SPACE, "disk tier: nothing more can be evicted from %s",
			 b->fs->where);
		s = STORE_FULL;
	}
	return s;
}

static const char *pool_be_owner(struct store_be *be)
{
	struct pool_be *b = be_of(be);
	return b->blk && b->state != OPENING ? b->blk->owner : "";
}

/* ---- life ---- */

static void destroy(struct pool_be *b)
{
	timer_stop(b->be.loop, &b->timer);
	pool_free(b->writers);
	pool_free(b->readers);
	lanes_fini(b);
	if (!b->o.fs)
		disk_fs_free(b->fs);
	pthread_mutex_destroy(&b->lock);
	free(b->reader_lanes);
	free(b->idle_lanes);
	free(b->dir);
	free(b->owner);
	free(b);
}

static void close_work(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, life_job);
	if (b->blk)
		b->blk->ops->close(b->blk, &b->writer);
}

static void close_done(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, life_job);
	void (*closed)(void *) = b->closed;
	void *ctx = b->closed_ctx;
	destroy(b);
	closed(ctx);
}

static void close_when_idle(struct pool_be *b)
{
	bool idle = b->n_writes == 0 && b->n_reads == 0 && b->n_short == 0 && b->care == IDLE;
	if (b->state != CLOSING || !idle || b->life_job.pool)
		return;
	b->life_job = (struct job){ .work = close_work, .done = close_done };
	enum err e = pool_submit(b->writers, &b->life_job);
	assert(e == ERR_NONE);
}

static void pool_be_close(struct store_be *be, void (*closed)(void *ctx), void *ctx)
{
	struct pool_be *b = be_of(be);
	bool opening = b->state == OPENING;
	assert(b->state != CLOSING);
	b->state = CLOSING;
	b->closed = closed;
	b->closed_ctx = ctx;
	timer_stop(be->loop, &b->timer);
	if (b->care == ASKED) { /* taken back */
		blk_eviction_free(b->ev);
		b->ev = NULL;
		b->care = IDLE;
	}
	if (opening)
		return; /* open_done goes on */
	b->n_short++;	/* give_up must not close before we are through */
	give_up_all(b, ERR_SHUTTING_DOWN);
	b->n_short--;
	close_when_idle(b);
}

static void open_work(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, life_job);
	struct blk_opts o = { .o = &b->o, .seed = b->seed, .direct = !b->o.no_direct };
	snprintf(o.owner, sizeof(o.owner), "%s", b->random_owner);
	b->fs = b->o.fs;
	j->err = b->fs ? ERR_NONE : disk_posix_new(b->dir, &b->fs, &b->why);
	if (j->err)
		return;
	o.fs = b->fs;
	j->err = lanes_init(b);
	if (j->err)
		why_note(&b->why, j->err, "disk tier: %s", err_text(j->err));
	else
		j->err = b->row->blk->open(&o, &b->writer, &b->blk, &b->why);
}

static void open_done(struct job *j)
{
	struct pool_be *b = container_of(j, struct pool_be, life_job);
	enum err e = j->err;
	if (b->state == CLOSING) {
		close_when_idle(b);
		return;
	}
	b->state = e ? FAILED : OPEN;
	b->o.opened(b->o.ctx, e, e ? &b->why : NULL);
	look_after(b);
}

static const struct store_ops pool_ops = {
	.put_batch = pool_be_put,
	.get_batch = pool_be_get,
	.delete_batch = pool_be_delete,
	.exists = pool_be_exists,
	.scan = pool_be_scan,
	.evict_done = pool_be_evict_done,
	.stat = pool_be_stat,
	.health = pool_be_health,
	.owner = pool_be_owner,
	.close = pool_be_close,
};

static enum err pools_new(struct pool_be *b)
{
	const struct pool_opts w = { .name = "disk-write",
				     .n_threads = 1,
				     .depth = b->o.queue + 4 };
	const struct pool_opts r = { .name = "disk-read",
				     .n_threads = b->o.readers,
				     .depth = b->o.queue + 4 };
	enum err e = pool_new(b->be.loop, &w, &b->writers);
	return e ? e : pool_new(b->be.loop, &r, &b->readers);
}

enum err store_pool_open(struct loop *l, const struct store_opts *o,
			 const struct store_backend_row *row, struct store_be **out,
			 struct why *w)
{
	struct pool_be *b = calloc(1, sizeof(*b));
	if (!b)
		return why_set(w, ERR_NO_MEMORY, "disk tier: no memory left");
	uint64_t name[2];
	b->be = (struct store_be){ .ops = &pool_ops, .caps = &row->caps, .loop = l };
	b->o = *o;
	b->row = row;
	b->timer.fn = on_timer;
	list_init(&b->parked);
	pthread_mutex_init(&b->lock, NULL);
	loop_random(l, &b->seed, sizeof(b->seed));
	loop_random(l, name, sizeof(name));
	snprintf(b->random_owner, sizeof(b->random_owner), "owner-%016llx",
		 (unsigned long long)name[0]);
	b->dir = o->dir ? strdup(o->dir) : NULL;
	b->owner = o->owner ? strdup(o->owner) : NULL;
	b->o.dir = b->dir;
	b->o.owner = b->owner;
	b->reader_lanes = calloc(o->readers, sizeof(*b->reader_lanes));
	b->idle_lanes = calloc(o->readers, sizeof(struct blk_lane *));
	bool ok = (!o->dir || b->dir) && (!o->owner || b->owner) && b->reader_lanes &&
		  b->idle_lanes;
	enum err e = ok ? pools_new(b) : ERR_NO_MEMORY;
	if (e) {
		destroy(b);
		return why_set(w, e, "disk tier: %s", err_text(e));
	}
	b->life_job = (struct job){ .work = open_work, .done = open_done };
	e = pool_submit(b->writers, &b->life_job);
	assert(e == ERR_NONE); /* an empty pool */
	*out = &b->be;
	return ERR_NONE;
}
