/* SPDX-License-Identifier: Apache-2.0 */
/* A holder: what carries messages between the network and its hold. */
#include "tests/model/world_priv.h"

#include <stdio.h>
#include <string.h>

/* ---- messages to a holder ---- */

struct mind_under under_of(const struct w_holder *h)
{
	struct hold_under u = hold_under(h->hold, 0);
	return (struct mind_under){ u.shard, u.term, u.adoption, u.pool_epoch };
}

static struct hold_under hunder(const struct mind_under *u)
{
	return (struct hold_under){ u->shard, u->term, u->adoption, u->pool_epoch };
}

static bool scan_one(void *arg, const struct hold_entry *e)
{
	struct w_inventory *v = arg;
	assert(v->n < W_ENTRIES_MAX);
	unsigned i = v->n++;
	memcpy(v->keys[i], e->key.p, 2);
	v->extents[i] = (struct msg_extent){ e->extents[0].segment, e->extents[0].offset,
					     e->extents[0].bytes };
	v->entries[i] = (struct msg_entry){ .slot = e->at.slot,
					    .generation = e->at.generation,
					    .state = e->at.retired ? 2 : 1,
					    .reason = (uint8_t)e->reason,
					    .evict_id = e->evict_id,
					    .published = e->at.published,
					    .tenant = tenant,
					    .key = BYTES(v->keys[i], 2),
					    .version = e->at.version,
					    .size = e->size,
					    .sum = e->at.sum,
					    .extents = { &v->extents[i], 1 } };
	return true;
}

static void writing_one(void *arg, uint64_t version, const struct extent *ext, size_t n)
{
	struct w_inventory *v = arg;
	assert(v->n_writing < W_ENTRIES_MAX && n == 1);
	unsigned i = v->n_writing++;
	struct msg_extent *x = &v->extents[W_ENTRIES_MAX + i];
	*x = (struct msg_extent){ ext[0].segment, ext[0].offset, ext[0].bytes };
	v->writing[i] = (struct msg_writing){ .version = version, .extents = { x, 1 } };
}

static struct w_inventory *inventory(struct w_holder *h)
{
	struct w_inventory *v = calloc(1, sizeof(*v));
	uint64_t cursor = 0;
	hold_scan(h->hold, 0, &cursor, scan_one, v);
	hold_writing(h->hold, 0, writing_one, v);
	return v;
}

static void fence(struct w_holder *h, const struct w_msg *c, struct w_msg *r)
{
	struct hold_under u = hunder(&c->under);
	struct extent x = { 0, (uint64_t)(c->extent - 1) * W_BLOCK, W_BLOCK };
	enum hold_fence state = 0;
	struct hold_slot at = { 0 };
	if (hold_check(h->hold, &u) == ERR_NONE)
		copying_fence(h, c);
	r->err = hold_fence(h->hold, &u, c->version, &x, c->extent ? 1 : 0, &state, &at);
	r->fence = (uint8_t)state;
	r->slot = at.slot;
	r->generation = at.generation;
}

static void holder_command(struct world *w, const struct w_msg *c)
{
	struct w_holder *h = &w->holders[c->holder];
	struct hold_under u = hunder(&c->under), now;
	struct why why = { 0 };
	struct w_msg r = *c;
	r.kind = M_CMD_REP;
	r.inv = NULL;
	r.run = h->run;
	switch (c->op) {
	case MIND_ADOPT:
		r.err = hold_adopt(h->hold, 0, u.term, u.adoption, &now, &why);
		if (!r.err) {
			r.under = under_of(h);
			copying_adopted(h);
		}
		break;
	case MIND_INVENTORY:
		r.err = hold_check(h->hold, &u);
		if (!r.err)
			r.inv = inventory(h);
		break;
	case MIND_RETIRE:
		r.err = hold_retire(h->hold, &u, c->slot, c->generation, c->version,
				    (enum retire_reason)c->reason, c->evict_id);
		break;
	case MIND_FREE:
		r.err = hold_free(h->hold, &u, c->slot, c->generation);
		break;
	case MIND_MARK:
		r.err = hold_check(h->hold, &u);
		if (!r.err)
			r.err = hold_published(h->hold, c->slot, c->generation, c->version);
		break;
	case MIND_FENCE:
		fence(h, c, &r);
		break;
	case MIND_COPY:
		r.err = copying_command(w, c);
		break;
	}
	*world_send(w, M_CMD_REP) = r;
}

static void commit_answer(struct world *w, const struct w_msg *m, enum err e)
{
	if (m->call == UINT32_MAX)
		return; /* of a copy */
	struct w_msg *r = world_send(w, M_COMMIT_REP);
	r->client = m->client;
	r->call = m->call;
	r->version = m->version;
	r->holder = m->holder;
	r->err = e;
}

static void holder_commit(struct world *w, const struct w_msg *m)
{
	struct w_holder *h = &w->holders[m->holder];
	char key[4];
	key_name(m->key, key);
	struct msg_extent x = { 0, (uint64_t)(m->extent - 1) * W_BLOCK, W_BLOCK };
	struct msg_ticket t = { .op = 1,
				.tenant = tenant,
				.term = version_term(m->version),
				.pool_epoch = m->epoch,
				.extents = { &x, 1 },
				.size = W_BLOCK,
				.version = m->version,
				.attempt = m->attempt,
				.key = BYTES_STR(key) };
	memcpy(t.pool, mempool_id(h->pool), sizeof(t.pool));
	t.client[0] = (uint8_t)(m->client + 1);
	struct hold_slot at = { 0 };
	struct why why = { 0 };
	enum err e = hold_commit(h->hold, &t, m->version, &at, &why);
	if (e && e != ERR_NOT_READY) {
		commit_answer(w, m, e);
		return;
	}
	struct w_version *v = world_version(w, m->version);
	if (!e && v)
		v->committed = true;
	struct w_msg *p = world_send(w, e ? M_CONFIRM : M_PUBLISH);
	enum w_msg_kind kind = p->kind;
	*p = *m;
	p->kind = kind;
	p->under = under_of(h);
	p->run = h->run;
	p->slot = at.slot;
	p->generation = at.generation;
	p->retired = at.retired;
}

static void holder_published(struct world *w, const struct w_msg *m)
{
	struct w_holder *h = &w->holders[m->holder];
	if (m->run != h->run)
		return; /* an answer to the last run */
	if (m->kind == M_CONFIRM_REP) {
		if (m->err) {
			commit_answer(w, m, ERR_STALE_ATTEMPT);
			return;
		}
		hold_confirm(h->hold, 0, m->version);
		holder_commit(w, m);
		return;
	}
	if (!m->err && !m->retired)
		(void)!hold_published(h->hold, m->slot, m->generation, m->version);
	commit_answer(w, m, m->err);
}

void to_holder(struct world *w, struct w_msg *m)
{
	if (!w->holders[m->holder].up)
		return;
	if (m->kind == M_CMD)
		holder_command(w, m);
	else if (m->kind == M_COMMIT)
		holder_commit(w, m);
	else
		holder_published(w, m);
}

/* ---- lives ---- */

static void on_fenced(void *ctx, uint32_t shard, uint64_t version)
{
	struct w_holder *h = ctx;
	struct w_msg *m = world_send(world_entered(), M_REPORT);
	(void)shard;
	m->holder = (uint8_t)(h - world_entered()->holders);
	m->version = version;
	m->under = under_of(h);
	m->run = h->run;
}

/* Ids that are the same in every run. */
static void not_random(void *ctx, void *p, size_t n)
{
	struct w_holder *h = ctx;
	memset(p, 1 + (int)(h - world_entered()->holders), n);
	((uint8_t *)p)[0] = ++h->n_ids;
}

/* Opens the pool, new or as the last run left it, and fences that run's writers. */
void holder_start(struct world *w, unsigned i)
{
	struct w_holder *h = &w->holders[i];
	struct mempool_start found;
	struct why why = { 0 };
	struct mempool_opts p = { .backing = h->backing,
				  .segment_bytes = (uint64_t)w->cfg->extents * W_BLOCK,
				  .n_segments = 1,
				  .n_slots = 4,
				  .heap_bytes = 4096,
				  .n_lanes = 1,
				  .n_shards = 1,
				  .sessions_max = W_CLIENTS,
				  .random = not_random,
				  .random_ctx = h };
	struct hold_opts o = { .ring = w->cfg->ring ? w->cfg->ring : 1,
			       .closed = 1,
			       .fenced = on_fenced,
			       .ctx = h };
	if (mempool_open(&p, &h->pool, &found, &why) != ERR_NONE) {
		fprintf(stderr, "model: pool: %s\n", why.text);
		abort();
	}
	memcpy(h->pool_id, mempool_id(h->pool), sizeof(h->pool_id));
	mempool_ready(h->pool, 0, 1);
	o.pool = h->pool;
#ifdef POMELO_PLANT
	o.hold_break = w->cfg->plant_hold;
#endif
	if (hold_new(&o, &h->hold) != ERR_NONE)
		abort();
	if (mempool_own_lanes(h->pool, 1, &h->own) != ERR_NONE)
		abort();
	h->up = true;
	h->run++;
}

void sessions_open(struct w_holder *h)
{
	struct shmpool_fds fds;
	for (unsigned c = 0; c < W_CLIENTS; c++) {
		if (mempool_session(h->pool, true, &h->sessions[c], &fds, NULL) != ERR_NONE ||
		    mempool_attach(h->pool, h->sessions[c], &h->maps[c]) != ERR_NONE)
			abort();
		h->lanes[c] = shmpool_lane(h->maps[c]);
	}
}
