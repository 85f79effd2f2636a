/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holder's half of the handshake with local writers, and the ranges that wait for one (T6, V1, V2,
 * V5). lane.c has the other half.
 */
#include <string.h>

#include "base/shm.h"
#include "store/hold_priv.h"

/* ---- the ring ---- */

static struct pool_ctl_shard *page(const struct hold *h, uint32_t shard)
{
	return &h->p->ctl->shard[shard];
}

bool hold_in_ring(const struct hold *h, uint32_t shard, uint64_t version)
{
	const struct pool_ctl_shard *s = page(h, shard);
	/* nobody else writes there (clients map it read-only); what was never written says nothing */
	uint64_t n = MIN_OF(s->revoke_seq, s->ring_n);
	for (uint64_t i = 0; i < n; i++)
		if (shm_get_u64(&s->ring[i]) == version)
			return true;
	return false;
}

bool hold_revoked(const struct hold *h, uint32_t shard, uint64_t version)
{
	return version <= shm_get_u64(&page(h, shard)->revoked_below) ||
	       hold_in_ring(h, shard, version);
}

/* revoked_below, then the ring, then its count: lane.c reads the other way round. */
static void revoke(struct hold *h, uint32_t shard, uint64_t version)
{
	struct pool_ctl_shard *s = page(h, shard);
	if (hold_revoked(h, shard, version))
		return;
	uint64_t *at = &s->ring[s->revoke_seq % s->ring_n];
	uint64_t leaves = shm_get_u64(at);
	if (leaves > s->revoked_below && !HOLD_BROKEN(h, HOLD_BREAK_BELOW))
		(void)shm_swap_u64(&s->revoked_below, leaves);
	(void)shm_swap_u64(at, version);
	(void)shm_swap_u64(&s->revoke_seq, s->revoke_seq + 1);
}

void hold_show_epoch(struct hold *h, uint32_t shard)
{
	(void)shm_swap_u64(&page(h, shard)->pool_epoch, h->p->super.under[shard].pool_epoch);
}

/* ---- hazards ---- */

bool hold_named(const struct hold *h, uint64_t version)
{
	const struct mempool *p = h->p;
	if (HOLD_BROKEN(h, HOLD_BREAK_HAZARD))
		return false;
	for (uint32_t s = 0; s < p->n_sessions; s++)
		for (uint32_t l = 0; l < p->super.n_lanes; l++)
			if (shm_seq_get_u64(&p->sessions[s].lanes[l].hazard) == version)
				return true;
	for (uint32_t l = 0; l < p->n_own_lanes; l++)
		if (shm_seq_get_u64(&p->own_lanes[l].hazard) == version)
			return true;
	return false;
}

void hold_commits_begin(struct hold *h)
{
	h->sharing = true;
	h->have_named = false;
}

void hold_commits_end(struct hold *h)
{
	h->sharing = false;
}

/* false: more of them than there is room for. */
static bool note_hazard(struct hold *h, const struct pool_lane *l)
{
	uint64_t v = shm_seq_get_u64(&l->hazard);
	if (v == 0)
		return true;
	if (h->n_named == HOLD_NAMED_MAX)
		return false;
	h->named[h->n_named++] = v;
	return true;
}

static bool read_hazards(struct hold *h)
{
	const struct mempool *p = h->p;
	bool room = true;
	h->n_named = 0;
	for (uint32_t s = 0; s < p->n_sessions && room; s++)
		for (uint32_t l = 0; l < p->super.n_lanes && room; l++)
			room = note_hazard(h, &p->sessions[s].lanes[l]);
	for (uint32_t l = 0; l < p->n_own_lanes && room; l++)
		room = note_hazard(h, &p->own_lanes[l]);
	return room;
}

bool hold_commit_named(struct hold *h, uint64_t version)
{
	if (HOLD_BROKEN(h, HOLD_BREAK_HAZARD))
		return false;
	if (h->sharing && !h->have_named)
		h->sharing = h->have_named = read_hazards(h);
	if (!h->sharing)
		return hold_named(h, version);
	for (uint32_t i = 0; i < h->n_named; i++)
		if (h->named[i] == version)
			return true;
	return false;
}

/* Extents that lie in the pool; a client that lies here can write anywhere it maps anyhow. */
static void read_extents(const struct hold *h, const struct pool_lane *l, struct hold_range *r)
{
	uint64_t word = shm_get_u64(&l->shard_next);
	uint32_t n = MIN_OF((uint32_t)(word >> 32), (uint32_t)OBJ_EXTENTS_MAX);
	r->shard = (uint32_t)word;
	r->n = 0;
	if (HOLD_BROKEN(h, HOLD_BREAK_EXTENTS))
		return;
	for (uint32_t i = 0; i < n; i++) {
		const struct extent *from = &l->extents[i];
		struct extent e = { .segment = shm_acquire_u32(&from->segment),
				    .offset = shm_get_u64(&from->offset),
				    .bytes = shm_get_u64(&from->bytes) };
		if (mempool_extents_fit(h->p, &e, 1))
			r->extents[r->n++] = e;
	}
}

/*
 * What a lane that was set before the epoch rose writes. A hazard that changes while we read has been
 * cleared since, and what came then saw the new epoch.
 */
static bool read_lane(const struct hold *h, const struct pool_lane *l, struct hold_range *r)
{
	uint64_t version = shm_seq_get_u64(&l->hazard);
	if (version == 0)
		return false;
	memset(r, 0, sizeof(*r));
	r->version = version;
	read_extents(h, l, r);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return shm_seq_get_u64(&l->hazard) == version;
}

/* ---- ranges ---- */

static int compare(const struct hold_range *r, uint64_t version, uint32_t shard)
{
	if (r->version != version)
		return r->version < version ? -1 : 1;
	return (r->shard > shard) - (r->shard < shard);
}

/* The first range that is not below. */
static size_t range_from(const struct hold *h, uint64_t version, uint32_t shard)
{
	size_t lo = 0, hi = h->n_ranges;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (compare(&h->ranges[mid], version, shard) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool same_extent(const struct extent *a, const struct extent *b)
{
	return a->segment == b->segment && a->offset == b->offset && a->bytes == b->bytes;
}

/* Two lanes of one version may tell of different parts: all of them are kept while there is room. */
static void join(struct hold_range *r, const struct hold_range *more)
{
	for (uint32_t i = 0; i < more->n; i++) {
		uint32_t k = 0;
		while (k < r->n && !same_extent(&r->extents[k], &more->extents[i]))
			k++;
		if (k == r->n && r->n < OBJ_EXTENTS_MAX)
			r->extents[r->n++] = more->extents[i];
	}
}

static enum err add_range(struct hold *h, const struct hold_range *r)
{
	size_t at = range_from(h, r->version, r->shard);
	if (at < h->n_ranges && compare(&h->ranges[at], r->version, r->shard) == 0) {
		join(&h->ranges[at], r);
		return ERR_NONE;
	}
	if (h->n_ranges == h->cap_ranges) {
		size_t cap = MAX_OF(h->cap_ranges * 2, (size_t)8);
		struct hold_range *more = realloc(h->ranges, cap * sizeof(*more));
		if (!more)
			return ERR_NO_MEMORY;
		h->ranges = more;
		h->cap_ranges = cap;
	}
	memmove(h->ranges + at + 1, h->ranges + at, (h->n_ranges - at) * sizeof(*r));
	h->ranges[at] = *r;
	h->n_ranges++;
	return ERR_NONE;
}

static enum err take_lane(struct hold *h, const struct pool_lane *l, uint32_t shard)
{
	struct hold_range r;
	return read_lane(h, l, &r) && r.shard == shard && r.n > 0 ? add_range(h, &r) : ERR_NONE;
}

enum err hold_take_hazards(struct hold *h, uint32_t shard)
{
	struct mempool *p = h->p;
	enum err e = ERR_NONE;
	for (uint32_t s = 0; s < p->n_sessions && e == ERR_NONE; s++)
		for (uint32_t l = 0; l < p->super.n_lanes && e == ERR_NONE; l++)
			e = take_lane(h, &p->sessions[s].lanes[l], shard);
	for (uint32_t l = 0; l < p->n_own_lanes && e == ERR_NONE; l++)
		e = take_lane(h, &p->own_lanes[l], shard);
	return e;
}

/* ---- FENCE ---- */

static enum err start_waiting(struct hold *h, uint32_t shard, uint64_t version,
			      const struct extent *ext, size_t n)
{
	struct hold_range r = { .version = version, .shard = shard, .n = (uint32_t)n };
	for (size_t i = 0; i < n; i++)
		r.extents[i] = ext[i];
	return add_range(h, &r);
}

enum err hold_fence(struct hold *h, const struct hold_under *u, uint64_t version,
		    const struct extent *ext, size_t n_ext, enum hold_fence *state,
		    struct hold_slot *out)
{
	enum err e = hold_check(h, u);
	if (e)
		return e;
	if (version == 0 || !mempool_extents_fit(h->p, ext, n_ext))
		return ERR_INVALID_PARAMS;
	uint32_t slot = directory_find(h->p, u->shard, version);
	if (slot != NO_SLOT) {
		hold_slot_at(h, slot, out);
		*state = HOLD_COMMITTED;
		return ERR_NONE;
	}
	revoke(h, u->shard, version);
	if (!hold_named(h, version)) {
		*state = HOLD_FENCED;
		return ERR_NONE;
	}
	e = start_waiting(h, u->shard, version, ext, n_ext);
	if (e == ERR_NONE)
		*state = HOLD_WRITING;
	return e;
}

/* ---- the sweep ---- */

static void mark_named(struct hold *h, uint64_t version)
{
	size_t i = range_from(h, version, 0);
	for (; i < h->n_ranges && h->ranges[i].version == version; i++)
		h->ranges[i].named = true;
}

static void mark_all(struct hold *h)
{
	struct mempool *p = h->p;
	for (size_t i = 0; i < h->n_ranges; i++)
		h->ranges[i].named = false;
	for (uint32_t s = 0; s < p->n_sessions; s++)
		for (uint32_t l = 0; l < p->super.n_lanes; l++) {
			uint64_t version = shm_seq_get_u64(&p->sessions[s].lanes[l].hazard);
			if (version != 0)
				mark_named(h, version);
		}
	for (uint32_t l = 0; l < p->n_own_lanes; l++) {
		uint64_t version = shm_seq_get_u64(&p->own_lanes[l].hazard);
		if (version != 0)
			mark_named(h, version);
	}
}

/* A session that names a version somebody waits for: is its process there still? */
static void look_at_writers(struct hold *h)
{
	struct mempool *p = h->p;
	for (uint32_t s = 0; s < p->n_sessions; s++)
		for (uint32_t l = 0; l < p->super.n_lanes && !p->sessions[s].hint; l++) {
			uint64_t version = shm_seq_get_u64(&p->sessions[s].lanes[l].hazard);
			size_t i = version ? range_from(h, version, 0) : h->n_ranges;
			p->sessions[s].hint =
				i < h->n_ranges && h->ranges[i].version == version;
		}
}

void hold_sweep(struct hold *h)
{
	enum { IN_TURN = 64 }; /* looks at a lock, some 2 us each (L4) */
	size_t kept = 0;
	if (h->n_ranges > 0) /* else nobody waits for a hazard */
		look_at_writers(h);
	sessions_sweep(h->p, MIN_OF(h->p->n_sessions, (uint32_t)IN_TURN));
	if (h->n_ranges > 0)
		mark_all(h);
	for (size_t i = 0; i < h->n_ranges; i++) {
		struct hold_range r = h->ranges[i];
		if (r.named)
			h->ranges[kept++] = r;
		else if (h->o.fenced)
			h->o.fenced(h->o.ctx, r.shard, r.version);
	}
	h->n_ranges = kept;
}

uint64_t hold_quarantine(const struct hold *h)
{
	uint64_t n = 0;
	for (size_t i = 0; i < h->n_ranges; i++)
		for (uint32_t k = 0; k < h->ranges[i].n; k++)
			n += h->ranges[i].extents[k].bytes;
	return n;
}

void hold_writing(struct hold *h, uint32_t shard,
		  void (*fn)(void *arg, uint64_t version, const struct extent *ext, size_t n),
		  void *arg)
{
	for (size_t i = 0; i < h->n_ranges; i++)
		if (h->ranges[i].shard == shard)
			fn(arg, h->ranges[i].version, h->ranges[i].extents, h->ranges[i].n);
}
