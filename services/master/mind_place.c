/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which holder a put goes to (spec/store.md, Placement): the strategy, and the slow start of one that has just
 * joined, or has much less than the others.
 *
 * A holder whose share in use is below the mean of all by LAG is young. Of the bytes that are put it gets a
 * share that rises in steps, from half the mean share to a little under twice of it, whatever the strategy:
 * a credit that grows with each put says when it is its turn. It is young until the gap is LEVEL.
 *
 * Cost: a look at all holders every LOOK puts or 100 ms; else a few tries.
 */
#include "mind_priv.h"

enum {
	LOOK = 256,
	TRIES = 4,  /* at random, before all are tried in turn */
	SAMPLE = 6, /* free_ratio_first (spec) */
	STEP_MS = 1000,
	BYTES_MIN = 1 << 20, /* below, an object or two are all of it */
};
#define LAG   0.02
#define LEVEL 0.005
#define NEW   0.25 /* a gap of one that has joined: it starts from the first step */
#define MOST  1.9 /* of the mean share: below 2 also where the last put of a second is counted */

static uint32_t random_below(struct mind *m, uint32_t n)
{
	m->rng ^= m->rng << 13;
	m->rng ^= m->rng >> 7;
	m->rng ^= m->rng << 17;
	return (uint32_t)((m->rng >> 32) * n >> 32);
}

static uint64_t bytes_of(const struct holder *h)
{
	uint64_t n = 0;
	for (size_t i = 0; i < h->n_segs; i++)
		n += alloc_bytes(h->segs[i].alloc);
	return n;
}

static double fill_of(const struct holder *h)
{
	uint64_t n = bytes_of(h);
	return n ? (double)h->used / (double)n : 1;
}

/* ---- slow start ---- */

static void look_one(struct mind *m, struct holder *h, double mean)
{
	double gap = mean - fill_of(h);
	bool young = bytes_of(h) >= BYTES_MIN && gap > (h->young ? LEVEL : LAG);
	if (young && !h->young) {
		h->young_ns = m->now;
		h->credit = 0;
		h->steps = gap > NEW ? 1 : 3;
	}
	h->young = young;
	m->n_young += young;
	m->n_places++;
}

static void look_at_all(struct mind *m)
{
	double mean = m->total ? (double)m->used / (double)m->total : 0;
	m->mean = mean;
	m->place_ns = m->now + 100000000;
	m->place_puts = 0;
	m->n_young = m->n_places = 0;
	for (uint32_t i = 0; i < m->n_holders; i++)
		if (m->holders[i]->state == HOLDER_MERGED && m->holders[i]->n_segs)
			look_one(m, m->holders[i], mean);
}

static double share_of(const struct mind *m, const struct holder *h)
{
	uint64_t steps = (m->now - h->young_ns) / (STEP_MS * 1000000ull);
	return MIN_OF(0.5 * (double)(steps + h->steps), MOST) / (double)m->n_places;
}

/* The young earn their share of every put; the first that has earned this one gets it. */
static struct holder *turn_of_young(struct mind *m, uint64_t bytes)
{
	struct holder *turn = NULL;
	for (uint32_t i = 0; m->n_young && i < m->n_holders; i++) {
		struct holder *h = m->holders[i];
		if (!h->young || h->state != HOLDER_MERGED || h->suspect || h->draining)
			continue;
		h->credit += share_of(m, h) * (double)bytes;
		h->credit = MIN_OF(h->credit, 2.0 * (double)bytes);
		if (!turn && h->credit >= (double)bytes)
			turn = h;
	}
	return turn;
}

/* ---- strategies ---- */

/* One of those that are grown up and answer; NULL: not this time. */
static struct holder *one(struct mind *m)
{
	struct holder *h = m->holders[random_below(m, m->n_holders)];
	return h->state == HOLDER_MERGED && !h->suspect && !h->young ? h : NULL;
}

/* The fuller than the mean, the more often it is passed over: chance alone would not level. */
static bool too_full(struct mind *m, const struct holder *h)
{
	double above = (fill_of(h) - m->mean) * 1000 * 20; /* 5 %: always */
	return above > (double)random_below(m, 1000);
}

static bool by_chance(struct mind *m, uint64_t bytes, struct place *out)
{
	for (int i = 0; i < TRIES; i++) {
		struct holder *h = one(m);
		if (h && !too_full(m, h) && space_take_at(m, h, bytes, out))
			return true;
	}
	return false;
}

/* Who is freer by less than LEVEL is not: one that was young would get more than twice the mean share. */
static bool by_free(struct mind *m, uint64_t bytes, struct place *out)
{
	struct holder *best = NULL;
	double fill = 1;
	for (int i = 0; i < SAMPLE; i++) {
		struct holder *h = one(m);
		double f = h ? fill_of(h) : 1;
		if (h && (!best || f + LEVEL < fill)) {
			best = h;
			fill = f;
		}
	}
	return best && space_take_at(m, best, bytes, out);
}

static bool by_host(struct mind *m, uint64_t bytes, struct place *out)
{
	uint32_t from = random_below(m, m->n_holders);
	for (uint32_t i = 0; i < m->n_holders; i++) {
		struct holder *h = m->holders[(from + i) % m->n_holders];
		if (!h->suspect && !h->young && m->l.local_host.n == strlen(h->host) &&
		    memcmp(h->host, m->l.local_host.p, m->l.local_host.n) == 0 &&
		    space_take_at(m, h, bytes, out))
			return true;
	}
	return by_chance(m, bytes, out);
}

static bool by_strategy(struct mind *m, uint64_t bytes, struct place *out)
{
	switch (m->l.strategy) {
	case MIND_RANDOM:
		return by_chance(m, bytes, out);
	case MIND_FREE_RATIO_FIRST:
		return by_free(m, bytes, out);
	case MIND_LOCAL_FIRST:
		return by_host(m, bytes, out);
	}
	return false;
}

/* Where there is room, those that are young or suspect last (B2). */
static bool anywhere(struct mind *m, uint64_t bytes, struct place *out)
{
	uint32_t from = random_below(m, m->n_holders);
	for (int last = 0; last < 3; last++)
		for (uint32_t i = 0; i < m->n_holders; i++) {
			struct holder *h = m->holders[(from + i) % m->n_holders];
			int rank = h->suspect ? 2 : h->young ? 1 : 0;
			if (rank == last && space_take_at(m, h, bytes, out))
				return true;
		}
	return false;
}

bool place_take(struct mind *m, uint64_t bytes, struct place *out)
{
	if (m->n_holders == 0)
		return false;
	if (m->now >= m->place_ns || ++m->place_puts >= LOOK)
		look_at_all(m);
	struct holder *young = turn_of_young(m, bytes);
	if (young && space_take_at(m, young, bytes, out)) {
		young->credit -= (double)bytes;
		return true;
	}
	return by_strategy(m, bytes, out) || anywhere(m, bytes, out);
}
