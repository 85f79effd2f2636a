/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A holder that copies (proto/holder.def, COPY): what the transfer-agent's pulls do, with the same hold. The source
 * is read at once, as an agent reads it that keeps the slot from FREE while it sends.
 */
#include "tests/model/world_priv.h"

#include <string.h>

/* The command as it leaves the master: nothing is said of a copy that has ended, or that nobody has. */
void copying_told(struct world *w, const struct mind_cmd *c)
{
	struct mind_copying info;
	struct mind_holder h, src;
	if (!mind_copying(w->mind, c->holder, c->version, c->generation, &info) ||
	    !mind_holder(w->mind, c->holder, &h) ||
	    !mind_holder(w->mind, info.sources[0].holder, &src))
		return;
	struct w_msg *m = world_send(w, M_CMD);
	m->holder = (uint8_t)(h.id[1] - '0');
	m->op = MIND_COPY;
	m->under = c->under;
	m->version = c->version;
	m->number = info.number;
	m->key = (uint8_t)(info.key.p[1] - '0');
	m->extent = (uint8_t)(info.extents[0].offset / W_BLOCK + 1);
	m->src = (uint8_t)(src.id[1] - '0');
	m->src_slot = info.sources[0].slot;
	m->src_generation = info.sources[0].generation;
	m->src_extent = (uint8_t)(info.sources[0].extents[0].offset / W_BLOCK + 1);
	w->holders[m->holder].owner[m->extent - 1] = c->version;
}

/* Borrows x and key. */
static struct msg_ticket ticket_of(const struct w_holder *h, const struct w_pull *p,
				   struct msg_extent *x, char key[4])
{
	key_name(p->key, key);
	*x = (struct msg_extent){ 0, (uint64_t)(p->extent - 1) * W_BLOCK, W_BLOCK };
	struct msg_ticket t = { .op = 3,
				.tenant = tenant,
				.term = p->under.term,
				.pool_epoch = p->epoch,
				.extents = { x, 1 },
				.size = W_BLOCK,
				.version = p->version,
				.attempt = p->number,
				.key = BYTES_STR(key) };
	memcpy(t.pool, mempool_id(h->pool), sizeof(t.pool));
	return t;
}

static enum err publish(struct world *w, unsigned i, const struct w_pull *p)
{
	struct w_holder *h = &w->holders[i];
	struct msg_extent x;
	char key[4];
	struct msg_ticket t = ticket_of(h, p, &x, key);
	struct hold_slot at = { 0 };
	struct why why = { 0 };
	enum err e = hold_commit(h->hold, &t, p->version, &at, &why);
	if (e)
		return e;
	struct w_msg *m = world_send(w, M_PUBLISH);
	m->holder = (uint8_t)i;
	m->key = p->key;
	m->call = UINT32_MAX;
	m->version = p->version;
	m->under = under_of(h);
	m->run = h->run;
	m->slot = at.slot;
	m->generation = at.generation;
	m->retired = at.retired;
	return ERR_NONE;
}

enum err copying_command(struct world *w, const struct w_msg *c)
{
	struct w_holder *h = &w->holders[c->holder];
	struct hold_under u = { c->under.shard, c->under.term, c->under.adoption,
				c->under.pool_epoch };
	enum err e = hold_check(h->hold, &u);
	if (e)
		return e;
	if (h->pull.on && !h->pull.cut && h->pull.version == c->version &&
	    h->pull.number == c->number)
		return ERR_NONE; /* it is under way */
	if (h->pull.on)
		return ERR_BUSY;
	struct w_pull p = { .on = true,
			    .key = c->key,
			    .extent = c->extent,
			    .src = c->src,
			    .src_extent = c->src_extent,
			    .src_slot = c->src_slot,
			    .src_generation = c->src_generation,
			    .version = c->version,
			    .number = c->number,
			    .epoch = c->under.pool_epoch,
			    .under = c->under };
	struct msg_extent x;
	char key[4];
	struct msg_ticket t = ticket_of(h, &p, &x, key);
	struct why why = { 0 };
	e = hold_pull_admit(h->hold, &t, &why);
	if (e == ERR_EXISTS)
		return publish(w, c->holder, &p);
	if (e == ERR_NONE)
		h->pull = p;
	return e;
}

static void stop(struct w_holder *h)
{
	if (h->pull.halves || h->own->hazard)
		lane_end(h->own);
	memset(&h->pull, 0, sizeof(h->pull));
}

/* Its threads are stopped before FENCE is answered. */
void copying_fence(struct w_holder *h, const struct w_msg *c)
{
	struct hold_under u = { c->under.shard, c->under.term, c->under.adoption,
				c->under.pool_epoch };
	if (h->pull.on && h->pull.version == c->version && !h->pull.cut)
		stop(h);
	if (c->number && hold_pull_bar(h->hold, &u, c->number) != ERR_NONE)
		abort();
}

/* An adoption does not wait for them: the hazard record keeps the range. */
void copying_adopted(struct w_holder *h)
{
	if (h->pull.on && h->pull.epoch != under_of(h).pool_epoch)
		h->pull.cut = true;
	if (h->pull.cut && !h->own->hazard)
		stop(h);
}

static void failed(struct world *w, unsigned i)
{
	struct w_holder *h = &w->holders[i];
	struct w_msg *m = world_send(w, M_REPORT);
	m->holder = (uint8_t)i;
	m->version = h->pull.version;
	m->number = h->pull.number;
	m->under = h->pull.under;
	m->err = ERR_UNREACHABLE;
	m->run = h->run;
	stop(h);
}

/* The source's slot is as the ticket says, and keeps its bytes meanwhile. */
static bool fetch(struct world *w, struct w_pull *p)
{
	struct w_holder *s = &w->holders[p->src];
	bool unverified;
	if (!s->up ||
	    mempool_generation(s->pool, p->src_slot, &unverified) != p->src_generation)
		return false;
	p->got[0] = s->data[p->src_extent - 1][0];
	p->got[1] = s->data[p->src_extent - 1][1];
	return p->got[0] == p->version && p->got[1] == p->version; /* T4: the checksum */
}

static void begin(struct world *w, unsigned i)
{
	struct w_holder *h = &w->holders[i];
	struct extent ext[OBJ_EXTENTS_MAX];
	struct msg_extent x;
	char key[4];
	struct msg_ticket t = ticket_of(h, &h->pull, &x, key);
	struct why why = { 0 };
	if (!fetch(w, &h->pull) || hold_pull(h->hold, &t, h->own, ext, &why) != ERR_NONE)
		failed(w, i);
	else
		h->pull.halves = 1; /* named, nothing written */
}

void copying_step(struct world *w, unsigned i)
{
	struct w_holder *h = &w->holders[i];
	struct w_pull *p = &h->pull;
	if (p->halves == 0) {
		begin(w, i);
		return;
	}
	unsigned half = p->halves - 1u;
	check_store(w, i, p->extent - 1u, p->version);
	h->data[p->extent - 1][half] = p->got[half];
	p->halves++;
	if (p->cut) {
		stop(h);
		return;
	}
	if (half == 0)
		return;
	struct w_pull done = *p;
	stop(h);
	if (publish(w, i, &done) != ERR_NONE) {
		h->pull = done;
		h->pull.halves = 0;
		failed(w, i);
	}
}
