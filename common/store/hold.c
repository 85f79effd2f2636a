/* SPDX-License-Identifier: Apache-2.0 */
/* Adoption, COMMIT, and what the master does to slots. hold_fence.c has writers, hold_scan.c readers. */
#include "store/hold.h"

#include <string.h>

#include "base/shm.h"
#include "rpc/ticket.h"
#include "store/hold_priv.h"

enum { CLOSED_DEFAULT = 65536 };

/* ---- life ---- */

/*
 * Another length than the page has (tests): what the ring names goes below revoked_below first, so that
 * nobody who looks meanwhile misses it.
 */
static void set_ring(struct pool_ctl_shard *s, uint64_t n)
{
	if (shm_get_u64(&s->ring_n) == n)
		return;
	for (uint32_t i = 0; i < POOL_RING; i++)
		if (s->ring[i] > s->revoked_below)
			(void)shm_swap_u64(&s->revoked_below, s->ring[i]);
	(void)shm_swap_u64(&s->ring_n, n);
	for (uint32_t i = 0; i < POOL_RING; i++)
		(void)shm_swap_u64(&s->ring[i], 0);
}

static void set_rings(struct hold *h)
{
	uint32_t n = h->o.ring ? MIN_OF(h->o.ring, (uint32_t)POOL_RING) : POOL_RING;
	for (uint32_t i = 0; i < h->p->super.n_shards; i++)
		set_ring(&h->p->ctl->shard[i], n);
}

/* L2: the last run's tickets are void before anybody asks. */
static enum err fence_last_run(struct hold *h)
{
	struct mempool *p = h->p;
	struct super s = p->super;
	for (uint32_t i = 0; i < s.n_shards; i++)
		s.under[i].pool_epoch++;
	enum err e = mempool_put_super(p, &s, NULL);
	for (uint32_t i = 0; i < s.n_shards && e == ERR_NONE; i++) {
		hold_show_epoch(h, i);
		e = hold_take_hazards(h, i);
	}
	return e;
}

enum err hold_new(const struct hold_opts *o, struct hold **out)
{
	struct hold *h = calloc(1, sizeof(*h));
	if (!h)
		return ERR_NO_MEMORY;
	h->o = *o;
	h->p = o->pool;
	set_rings(h);
	enum err e = fence_last_run(h);
	if (e) {
		hold_close(h);
		return e;
	}
	*out = h;
	return ERR_NONE;
}

void hold_close(struct hold *h)
{
	if (!h)
		return;
	for (uint32_t i = 0; i < OBJ_SHARDS_MAX; i++) {
		if (h->closed[i])
			closed_fini(h->closed[i]);
		free(h->closed[i]);
	}
	free(h->ranges);
	free(h);
}

/* ---- under what ---- */

struct hold_under hold_under(const struct hold *h, uint32_t shard)
{
	if (shard >= h->p->super.n_shards)
		return (struct hold_under){ .shard = shard };
	const struct super_under *u = &h->p->super.under[shard];
	return (struct hold_under){ .shard = shard,
				    .term = u->term,
				    .adoption = u->adoption,
				    .pool_epoch = u->pool_epoch };
}

enum err hold_check(const struct hold *h, const struct hold_under *u)
{
	if (u->shard >= h->p->super.n_shards)
		return ERR_INVALID_PARAMS;
	const struct super_under *now = &h->p->super.under[u->shard];
	if (u->term != now->term || u->adoption != now->adoption)
		return ERR_STALE_TERM;
	return u->pool_epoch == now->pool_epoch ? ERR_NONE : ERR_STALE_EPOCH;
}

/* A command to a slot. */
static enum err commanded(const struct hold *h, const struct hold_under *u)
{
	if (HOLD_BROKEN(h, HOLD_BREAK_UNDER))
		return ERR_NONE;
	return hold_check(h, u);
}

static enum err raise_epoch(struct hold *h, uint32_t shard, uint64_t term, uint64_t adoption,
			    struct why *why)
{
	struct super s = h->p->super;
	struct super_under *u = &s.under[shard];
	*u = (struct super_under){ term, adoption, u->pool_epoch + 1 };
	enum err e = mempool_put_super(h->p, &s, why);
	if (e)
		return e;
	hold_show_epoch(h, shard);
	h->scan_owed[shard] = true;
	if (h->closed[shard])
		closed_clear(h->closed[shard]);
	h->copies[shard] = 0;
	return ERR_NONE;
}

enum err hold_adopt(struct hold *h, uint32_t shard, uint64_t term, uint64_t adoption,
		    struct hold_under *out, struct why *why)
{
	if (shard >= h->p->super.n_shards)
		return why_set(why, ERR_INVALID_PARAMS, "adopt: shard %u (0..%u)", shard,
			       h->p->super.n_shards - 1);
	const struct super_under *u = &h->p->super.under[shard];
	bool any = HOLD_BROKEN(h, HOLD_BREAK_ADOPT);
	if (term < u->term || (term == u->term && adoption < u->adoption && !any))
		return why_set(why, ERR_STALE_TERM,
			       "adopt: term %llu.%llu, the pool is under %llu.%llu",
			       (unsigned long long)term, (unsigned long long)adoption,
			       (unsigned long long)u->term, (unsigned long long)u->adoption);
	enum err e = ERR_NONE;
	if (term != u->term || adoption != u->adoption || any)
		e = raise_epoch(h, shard, term, adoption, why);
	if (e == ERR_NONE && h->scan_owed[shard])
		e = hold_take_hazards(h, shard);
	if (e)
		return e;
	h->scan_owed[shard] = false;
	*out = hold_under(h, shard);
	return ERR_NONE;
}

/* ---- COMMIT ---- */

void hold_slot_at(const struct hold *h, uint32_t slot, struct hold_slot *out)
{
	const struct slot *s = &h->p->slots[slot];
	*out = (struct hold_slot){ .slot = slot,
				   .generation = directory_generation(h->p, slot),
				   .version = s->version,
				   .sum = s->sum,
				   .retired = slot_state(s->state) == SLOT_RETIRED,
				   .published = slot_published(s->state) };
}

/* A slot has it already: PUBLISH again, unless it can never be published. */
static enum err commit_again(const struct hold *h, uint32_t slot, struct hold_slot *out)
{
	enum retire_reason r = slot_reason(h->p->slots[slot].state);
	if (r == RETIRE_BARRED || r == RETIRE_OVERLAP || r == RETIRE_CORRUPT)
		return ERR_STALE_ATTEMPT;
	hold_slot_at(h, slot, out);
	return ERR_NONE;
}

static enum err bad_ticket(struct why *why, const char *what)
{
	return why_set(why, ERR_BAD_TICKET, "commit: %s", what);
}

static enum err check_ticket(const struct hold *h, const struct msg_ticket *t,
			     struct extent *ext, struct why *why)
{
	uint64_t bytes = 0;
	if ((t->op != TICKET_WRITE && t->op != TICKET_PULL) || t->version == 0 ||
	    t->shard >= h->p->super.n_shards)
		return bad_ticket(why, "no write or pull ticket of a shard of ours");
	if (memcmp(t->pool, h->p->super.pool, sizeof(t->pool)) != 0)
		return bad_ticket(why, "it is for another pool");
	if (t->extents.n > OBJ_EXTENTS_MAX || t->size > OBJ_SIZE_MAX)
		return bad_ticket(why, "too many extents, or too large");
	for (size_t i = 0; i < t->extents.n; i++) {
		ext[i] = (struct extent){ .segment = t->extents.p[i].segment,
					  .offset = t->extents.p[i].offset,
					  .bytes = t->extents.p[i].bytes };
		if (!mempool_extents_fit(h->p, &ext[i], 1))
			return bad_ticket(why, "an extent lies outside the pool");
		bytes += ext[i].bytes;
	}
	return bytes >= obj_stored_bytes(t->size)
		       ? ERR_NONE
		       : bad_ticket(why, "its extents are too short");
}

static enum err closed_of(struct hold *h, uint32_t shard, struct closed **out)
{
	if (!h->closed[shard]) {
		struct closed *c = calloc(1, sizeof(*c));
		if (!c)
			return ERR_NO_MEMORY;
		if (closed_init(c, h->o.closed ? h->o.closed : CLOSED_DEFAULT) != ERR_NONE) {
			free(c);
			return ERR_NO_MEMORY;
		}
		h->closed[shard] = c;
	}
	*out = h->closed[shard];
	return ERR_NONE;
}

/* V3: epoch, then whether the version is closed, then the hazards. */
static enum err may_commit(struct hold *h, const struct msg_ticket *t, const struct closed *c)
{
	if (t->pool_epoch != h->p->super.under[t->shard].pool_epoch)
		return ERR_STALE_EPOCH;
	if (HOLD_BROKEN(h, HOLD_BREAK_CLOSED))
		return ERR_NONE;
	if (hold_revoked(h, t->shard, t->version) || closed_has(c, t->version))
		return ERR_STALE_ATTEMPT;
	if (closed_unsure(c, t->version))
		return ERR_NOT_READY;
	return hold_commit_named(h, t->version) ? ERR_BUSY : ERR_NONE;
}

/* A copy may be of an old version, below what has left the ring: only what the ring names is fenced, and a
 * command that comes late is known by its number (hold_pull_admit). */
static enum err may_pull(struct hold *h, const struct msg_ticket *t)
{
	if (t->pool_epoch != h->p->super.under[t->shard].pool_epoch)
		return ERR_STALE_EPOCH;
	if (hold_in_ring(h, t->shard, t->version))
		return ERR_STALE_ATTEMPT;
	return hold_commit_named(h, t->version) ? ERR_BUSY : ERR_NONE;
}

static enum err commit_new(struct hold *h, const struct msg_ticket *t, const struct extent *ext,
			   uint64_t sum, uint32_t *slot, struct why *why)
{
	struct slot_body b = { .version = t->version,
			       .size = t->size,
			       .sum = sum,
			       .attempt = t->attempt,
			       .shard = t->shard,
			       .extents = ext,
			       .n_extents = t->extents.n,
			       .tenant = t->tenant,
			       .key = t->key };
	memcpy(b.client, t->client, sizeof(b.client));
	if (t->opts)
		b.opts = *t->opts;
	enum err e = directory_commit(h->p, &b, slot, why);
	return e == ERR_INVALID_PARAMS ? ERR_BAD_TICKET : e;
}

enum err hold_commit(struct hold *h, const struct msg_ticket *t, uint64_t sum,
		     struct hold_slot *out, struct why *why)
{
	struct extent ext[OBJ_EXTENTS_MAX];
	struct closed *c;
	uint32_t slot;
	enum err e = check_ticket(h, t, ext, why);
	if (e)
		return e;
	slot = directory_find(h->p, t->shard, t->version);
	if (slot != NO_SLOT)
		return commit_again(h, slot, out);
	e = closed_of(h, t->shard, &c);
	if (e == ERR_NONE)
		e = t->op == TICKET_PULL ? may_pull(h, t) : may_commit(h, t, c);
	if (e == ERR_NONE)
		e = commit_new(h, t, ext, sum, &slot, why);
	if (e)
		return e;
	if (t->op == TICKET_WRITE)
		closed_add(c, t->version);
	hold_slot_at(h, slot, out);
	return ERR_NONE;
}

enum err hold_write(struct hold *h, const struct msg_ticket *t, struct pool_lane *lane,
		    struct extent ext[OBJ_EXTENTS_MAX], struct why *why)
{
	struct closed *c;
	if (t->op == TICKET_WRITE && memcmp(t->pool, h->p->super.pool, sizeof(t->pool)) != 0)
		return why_set(why, ERR_STALE_EPOCH, "put: the ticket is for another pool");
	enum err e = t->op == TICKET_PULL ? bad_ticket(why, "no write ticket")
					  : check_ticket(h, t, ext, why);
	if (e)
		return e;
	if (directory_find(h->p, t->shard, t->version) != NO_SLOT)
		return why_set(why, ERR_STALE_ATTEMPT, "put: this version is committed");
	e = closed_of(h, t->shard, &c);
	if (e == ERR_NONE)
		e = may_commit(h, t, c);
	if (e == ERR_NOT_READY)
		e = ERR_STALE_ATTEMPT;
	if (e)
		return why_set(why, e, "put: %s", err_text(e));
	return lane_begin(lane, h->p->ctl, t->shard, t->pool_epoch, t->version, ext,
			  t->extents.n);
}

static enum err check_pull(struct hold *h, const struct msg_ticket *t,
			   struct extent ext[OBJ_EXTENTS_MAX], struct why *why)
{
	enum err e = t->op == TICKET_PULL ? check_ticket(h, t, ext, why)
					  : bad_ticket(why, "no pull ticket");
	if (e)
		return e;
	if (directory_find(h->p, t->shard, t->version) != NO_SLOT)
		return ERR_EXISTS;
	e = may_pull(h, t);
	return e ? why_set(why, e, "pull: %s", err_text(e)) : e;
}

enum err hold_pull_admit(struct hold *h, const struct msg_ticket *t, struct why *why)
{
	struct extent ext[OBJ_EXTENTS_MAX];
	enum err e = check_pull(h, t, ext, why);
	if (e != ERR_NONE && e != ERR_EXISTS)
		return e;
	bool late = t->attempt <= h->copies[t->shard];
	h->copies[t->shard] = MAX_OF(h->copies[t->shard], t->attempt);
	return late && e == ERR_NONE ? why_set(why, ERR_STALE_ATTEMPT, "pull: an old command")
				     : e;
}

enum err hold_pull_bar(struct hold *h, const struct hold_under *u, uint64_t number)
{
	enum err e = hold_check(h, u);
	if (e == ERR_NONE)
		h->copies[u->shard] = MAX_OF(h->copies[u->shard], number);
	return e;
}

enum err hold_pull(struct hold *h, const struct msg_ticket *t, struct pool_lane *lane,
		   struct extent ext[OBJ_EXTENTS_MAX], struct why *why)
{
	enum err e = check_pull(h, t, ext, why);
	if (e == ERR_NONE)
		lane_name(lane, t->shard, t->version, ext, t->extents.n);
	return e;
}

void hold_confirm(struct hold *h, uint32_t shard, uint64_t version)
{
	if (shard < OBJ_SHARDS_MAX && h->closed[shard])
		closed_confirm(h->closed[shard], version);
}

/* ---- slots ---- */

static bool slot_is(const struct hold *h, uint32_t slot, uint64_t generation,
		    enum slot_state state)
{
	const struct mempool *p = h->p;
	return bits_has(&p->used, slot) && directory_generation(p, slot) == generation &&
	       slot_state(p->slots[slot].state) == state;
}

enum err hold_published(struct hold *h, uint32_t slot, uint64_t generation, uint64_t version)
{
	if (!slot_is(h, slot, generation, SLOT_COMMITTED) ||
	    h->p->slots[slot].version != version)
		return ERR_NOT_FOUND;
	if (!slot_published(h->p->slots[slot].state))
		directory_publish(h->p, slot);
	return ERR_NONE;
}

enum err hold_retire(struct hold *h, const struct hold_under *u, uint32_t slot,
		     uint64_t generation, uint64_t version, enum retire_reason reason,
		     uint64_t evict_id)
{
	enum err e = commanded(h, u);
	if (e)
		return e;
	if (reason == RETIRE_NONE || reason > RETIRE_CORRUPT)
		return ERR_INVALID_PARAMS;
	bool retired = slot_is(h, slot, generation, SLOT_RETIRED);
	if (!retired && !slot_is(h, slot, generation, SLOT_COMMITTED))
		return ERR_NOT_FOUND;
	const struct slot *s = &h->p->slots[slot];
	if (s->version != version || s->shard != u->shard)
		return ERR_NOT_FOUND;
	if (!retired)
		directory_retire(h->p, slot, reason, evict_id);
	return ERR_NONE;
}

enum err hold_free(struct hold *h, const struct hold_under *u, uint32_t slot,
		   uint64_t generation)
{
	enum err e = commanded(h, u);
	if (e)
		return e;
	if (!slot_is(h, slot, generation, SLOT_RETIRED) || h->p->slots[slot].shard != u->shard)
		return ERR_NOT_FOUND;
	directory_free(h->p, slot);
	return ERR_NONE;
}
