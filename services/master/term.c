/* SPDX-License-Identifier: Apache-2.0 */
#include "master.h"

#include <inttypes.h>

/* The watch looks in every 250 ms: a longer silence of the loop is an absence (I2). */
#define GAP_NS (1000 * NS_PER_MS)

struct append {
	struct meta_append a;
	struct mst *m;
	struct mind_append *of;
};

static void tell_time(struct mst *m)
{
	struct mst_term *t = &m->term;
	uint64_t now = loop_now_ns(m->svc.loop);
	t->mind_ns += MIN_OF(now - t->seen_ns, GAP_NS);
	t->seen_ns = now;
	mind_clock(t->mind, t->mind_ns);
}

static void on_after(struct post *p);

static void ask_turn(struct mst *m)
{
	struct mst_term *t = &m->term;
	if (t->after_posted)
		return;
	t->after_posted = true;
	t->after.fn = on_after;
	loop_defer(m->svc.loop, &t->after);
}

struct mind *mst_mind(struct mst *m)
{
	if (!m->term.mind)
		return NULL;
	tell_time(m);
	ask_turn(m);
	return m->term.mind;
}

static void on_due(struct timer *timer)
{
	struct mst *m = container_of(timer, struct mst, term.due);
	m->term.armed_ns = 0;
	ask_turn(m);
}

static void arm(struct mst *m)
{
	struct mst_term *t = &m->term;
	uint64_t due = mind_due_ns(t->mind);
	if (due == UINT64_MAX) {
		timer_stop(m->svc.loop, &t->due);
		t->armed_ns = 0;
	} else if (due != t->armed_ns || !timer_running(&t->due)) {
		t->armed_ns = due;
		timer_start(m->svc.loop, &t->due,
			    t->seen_ns + (due > t->mind_ns ? due - t->mind_ns : 0), on_due);
	}
}

static void on_after(struct post *p)
{
	struct mst *m = container_of(p, struct mst, term.after);
	struct mst_term *t = &m->term;
	t->after_posted = false;
	if (!t->mind)
		return;
	tell_time(m);
	bool more = mind_due_ns(t->mind) <= t->mind_ns && mind_work(t->mind);
	mst_links_flush(m);
	if (more)
		ask_turn(m);
	else
		arm(m);
}

/* ---- appends ---- */

static void on_appended(struct meta_append *a)
{
	struct append *x = container_of(a, struct append, a);
	struct mst *m = x->m;
	struct mind *mind = mst_mind(m);
	enum err e = a->err;
	if (mind) { /* else the service closes: its calls have ended */
		mind_appended(mind, x->of, e);
		if (e != ERR_NONE && e != ERR_NO_SPACE && e != ERR_BUSY) /* I4 */
			svc_fail(&m->svc, e, "meta log: an append failed: %s",
				 a->why.err ? a->why.text : err_text(e));
	}
	free(x);
}

static void on_append(void *ctx, struct mind_append *of)
{
	struct mst *m = ctx;
	struct append *x = calloc(1, sizeof(*x));
	if (!x) {
		svc_fail(&m->svc, ERR_NO_MEMORY, "meta log: no memory for an append");
		return;
	}
	*x = (struct append){ .m = m, .of = of };
	x->a.term = svc_meta_term(&m->meta);
	x->a.if_seq = META_ANY;
	x->a.done = on_appended;
	meta_append(m->meta.meta, &x->a, of->recs, of->n);
}

/* ---- life ---- */

static struct mind_limits limits(const struct mst *m)
{
	const struct mst_conf *c = &m->conf;
	return (struct mind_limits){
		.index_bytes_max = c->index_bytes_max,
		.calls_max = c->calls_max,
		.clients_max = c->clients_max,
		.lease_ms = (uint32_t)c->lease_ms,
		.lease_max_ms = (uint32_t)c->lease_max_ms,
		.discard_ms = (uint32_t)c->discard_ms,
		.release_ms = (uint32_t)c->release_ms,
		.dead_ms = (uint32_t)m->svc.conf.holder_dead_ms,
		.low_reserve = c->low_reserve,
		.quarantine_max = c->quarantine_max,
		.high_watermark = c->high_watermark,
		.evict_ratio = c->evict_ratio,
		.pinned_max = c->pinned_max,
		.keep_soft = !c->evict_soft,
		.copies_per_holder = c->copies_per_holder,
		.tasks_max = c->tasks_max,
		.task_keep_ms = (uint32_t)c->task_keep_ms,
		.strategy = (enum mind_strategy)c->strategy,
		.local_host = BYTES_STR(m->local_host),
		.quotas = m->quotas.v,
		.n_quotas = m->quotas.n,
	};
}

void mst_term_begin(struct mst *m)
{
	struct mst_term *t = &m->term;
	struct mind_limits l = limits(m);
	struct mind_out o = { .ctx = m, .command = mst_links_command, .append = on_append };
	if (svc_stopping(&m->svc))
		return;
	t->seen_ns = t->mind_ns = loop_now_ns(m->svc.loop);
	enum err e = mind_new(&l, &o, meta_state_of(m->meta.meta), t->mind_ns, &t->mind);
	if (e) {
		svc_fail(&m->svc, e, "the index could not be made: %s", err_text(e));
		return;
	}
	ask_turn(m);
	mst_watch_begin(m);
}

void mst_term_end(struct mst *m)
{
	struct mst_term *t = &m->term;
	mst_watch_end(m);
	timer_stop(m->svc.loop, &t->due);
	mind_free(TAKE(t->mind));
}
