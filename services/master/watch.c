/* SPDX-License-Identifier: Apache-2.0 */
#include "master.h"

#include <string.h>

#define LOOK_MS 250

/* A registration is a sign of life too: beats that came before it say nothing about it. */
static bool stale(struct mst *m, uint32_t index, const struct beat_peer *p)
{
	uint64_t heard = mst_links_heard_ns(m, index);
	return heard > p->last_ns &&
	       loop_now_ns(m->svc.loop) - heard < m->svc.conf.suspect_ms * NS_PER_MS;
}

/* Asked again and again with one answer the mind changes nothing. */
static void tell(struct mst *m, struct mind *mind, const struct beat_peer *p)
{
	struct bytes id = BYTES_STR(p->name);
	struct mind_holder h;
	int64_t i = mind_holder_index(mind, id);
	if (i < 0 || !mind_holder(mind, (uint32_t)i, &h) || h.away)
		return; /* it registers first */
	mst_links_beats(m, (uint32_t)i);
	bool suspect = p->state == BEAT_SUSPECT || p->state == BEAT_DEAD;
	if (suspect && stale(m, (uint32_t)i, p))
		return;
	if (suspect != h.suspect)
		mind_suspect(mind, id, suspect);
	if (p->state == BEAT_DEAD)
		mind_away(mind, id);
	/* a lower one was sent before the present adoption was answered */
	else if (!suspect && h.merged && p->news.pool_epoch > h.under.pool_epoch)
		mind_beat_epoch(mind, id, p->news.pool_epoch);
}

void mst_watch_peer(struct mst *m, const struct beat_peer *p)
{
	struct mind *mind = p->role == ROLE_HOLDER ? mst_mind(m) : NULL;
	if (mind)
		tell(m, mind, p);
}

/* One that registered and whose first beat never came: the table knows nothing of it. */
static void tell_beatless(struct mst *m, struct mind *mind, uint32_t i)
{
	struct mind_holder h;
	uint64_t silent = loop_now_ns(m->svc.loop) - mst_links_heard_ns(m, i);
	if (!mst_links_beatless(m, i) || !mind_holder(mind, i, &h) || h.away)
		return;
	bool suspect = silent >= m->svc.conf.suspect_ms * NS_PER_MS;
	if (suspect != h.suspect)
		mind_suspect(mind, BYTES_STR(h.id), suspect);
	if (silent >= m->svc.conf.holder_dead_ms * NS_PER_MS)
		mind_away(mind, BYTES_STR(h.id));
}

static void look(struct timer *t)
{
	struct mst *m = container_of(t, struct mst, watch.timer);
	struct mind *mind = mst_mind(m);
	struct beat_peer p[32];
	for (size_t from = 0, n; (n = beat_table_list(m->beats, from, p, ARRAY_LEN(p)));
	     from += n)
		for (size_t i = 0; i < n; i++)
			if (p[i].role == ROLE_HOLDER)
				tell(m, mind, &p[i]);
	for (uint32_t i = 0; i < m->links.n; i++)
		tell_beatless(m, mind, i);
	timer_start(m->svc.loop, t, clock_after_ms(loop_now_ns(m->svc.loop), LOOK_MS), look);
}

void mst_watch_begin(struct mst *m)
{
	timer_start(m->svc.loop, &m->watch.timer, loop_now_ns(m->svc.loop), look);
}

void mst_watch_end(struct mst *m)
{
	timer_stop(m->svc.loop, &m->watch.timer);
}
