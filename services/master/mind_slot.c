/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A holder's slots and the commands they owe. A bit a slot says that its copy's state owes a command
 * (RETIRING: RETIRE, FREEING: FREE), another that it is under way; so however many are owed, nothing
 * is queued, at most CMDS_MAX are under way, and all can be said again.
 */
#include "mind_priv.h"

static struct slot_page *page_of(const struct holder *h, uint32_t slot)
{
	uint32_t i = slot / SLOT_PAGE;
	return i < h->n_pages ? h->pages[i] : NULL;
}

static bool bit(const uint64_t *w, uint32_t slot)
{
	return w[slot % SLOT_PAGE / 64] >> (slot % 64) & 1;
}

static void bit_set(uint64_t *w, uint32_t slot)
{
	w[slot % SLOT_PAGE / 64] |= 1ull << (slot % 64);
}

static void bit_clear(uint64_t *w, uint32_t slot)
{
	w[slot % SLOT_PAGE / 64] &= ~(1ull << (slot % 64));
}

struct copy *slot_at(const struct holder *h, uint32_t slot)
{
	const struct slot_page *p = page_of(h, slot);
	return p ? p->at[slot % SLOT_PAGE] : NULL;
}

static bool pages_grow(struct mind *m, struct holder *h, uint32_t n)
{
	uint32_t cap = MAX_OF(n, h->n_pages + h->n_pages / 2);
	struct slot_page **p = realloc(h->pages, cap * sizeof(struct slot_page *));
	if (!p)
		return false;
	memset(p + h->n_pages, 0, (cap - h->n_pages) * sizeof(struct slot_page *));
	m->bytes += (cap - h->n_pages) * sizeof(struct slot_page *);
	h->pages = p;
	h->n_pages = cap;
	return true;
}

enum err slot_put(struct mind *m, struct holder *h, uint32_t slot, struct copy *c)
{
	assert(slot < SLOT_MAX);
	if (slot / SLOT_PAGE >= h->n_pages && !pages_grow(m, h, slot / SLOT_PAGE + 1))
		return ERR_NO_MEMORY;
	struct slot_page **p = &h->pages[slot / SLOT_PAGE];
	if (!*p) {
		*p = calloc(1, sizeof(struct slot_page));
		if (!*p)
			return ERR_NO_MEMORY;
		m->bytes += sizeof(struct slot_page);
	}
	assert(!(*p)->at[slot % SLOT_PAGE]);
	(*p)->at[slot % SLOT_PAGE] = c;
	(*p)->n++;
	return ERR_NONE;
}

static void disown(struct holder *h, struct slot_page *p, uint32_t slot)
{
	if (!bit(p->owed, slot))
		return;
	bit_clear(p->owed, slot);
	if (bit(p->sent, slot)) {
		bit_clear(p->sent, slot);
		h->n_sent--;
	} else {
		p->n_unsent--;
		h->n_unsent--;
	}
}

static void not_later(struct holder *h, struct slot_page *p, uint32_t slot)
{
	if (!bit(p->later, slot))
		return;
	bit_clear(p->later, slot);
	p->n_later--;
	h->n_later--;
}

void slot_take(struct mind *m, struct holder *h, uint32_t slot)
{
	struct slot_page *p = page_of(h, slot);
	assert(p && p->at[slot % SLOT_PAGE]);
	disown(h, p, slot);
	not_later(h, p, slot);
	p->at[slot % SLOT_PAGE] = NULL;
	if (--p->n > 0)
		return;
	h->pages[slot / SLOT_PAGE] = NULL;
	m->bytes -= sizeof(*p);
	free(p);
}

void pages_free(struct mind *m, struct holder *h)
{
	for (uint32_t i = 0; i < h->n_pages; i++)
		if (h->pages[i])
			m->bytes -= sizeof(struct slot_page);
	for (uint32_t i = 0; i < h->n_pages; i++)
		free(h->pages[i]);
	m->bytes -= h->n_pages * sizeof(struct slot_page *);
	free(h->pages);
	h->pages = NULL;
	h->n_pages = h->n_unsent = h->n_sent = h->n_later = 0;
}

/* ---- saying ---- */

static uint64_t evict_id(const struct mind *m, const struct copy *c)
{
	const struct group *g = c->opts ? c->opts->group : NULL;
	return g ? g->evict_id : m->last;
}

static void say(struct mind *m, struct holder *h, const struct copy *c)
{
	struct mind_cmd cmd = { .op = c->state == COPY_RETIRING	 ? MIND_RETIRE
				      : c->state == COPY_FREEING ? MIND_FREE
								 : MIND_MARK,
				.holder = h->index,
				.under = h->under,
				.slot = c->slot,
				.generation = c->generation,
				.version = c->version,
				.reason = c->reason,
				.evict_id = c->reason == RETIRE_EVICTED ? evict_id(m, c) : 0 };
	m->out.command(m->out.ctx, &cmd);
}

bool holder_late(const struct mind *m, const struct holder *h)
{
	return h->suspect || (h->n_sent && m->now - h->heard_ns > LATE_MS * 1000000ull);
}

bool holder_gives(const struct mind *m, const struct holder *h)
{
	return h->state == HOLDER_MERGED && !h->draining && !holder_late(m, h);
}

static void send_page(struct mind *m, struct holder *h, struct slot_page *p)
{
	for (uint32_t w = 0; w < ARRAY_LEN(p->owed); w++)
		for (uint64_t left = p->owed[w] & ~p->sent[w]; left && h->n_sent < CMDS_MAX;
		     left &= left - 1) {
			uint32_t i = w * 64 + (uint32_t)__builtin_ctzll(left);
			bit_set(p->sent, i);
			h->heard_ns = h->n_sent ? h->heard_ns : m->now;
			h->n_sent++;
			h->n_unsent--;
			p->n_unsent--;
			say(m, h, p->at[i]);
		}
}

void slots_send(struct mind *m, struct holder *h)
{
	if (h->state != HOLDER_MERGED)
		return;
	for (uint32_t n = 0; h->n_unsent && h->n_sent < CMDS_MAX && n <= h->n_pages; n++) {
		h->send_at = h->send_at < h->n_pages ? h->send_at : 0;
		struct slot_page *p = h->pages[h->send_at];
		if (p && p->n_unsent)
			send_page(m, h, p);
		if (!p || !p->n_unsent)
			h->send_at++;
	}
}

void slots_resend(struct mind *m, struct holder *h)
{
	for (uint32_t i = 0; i < h->n_pages && h->state == HOLDER_MERGED; i++) {
		struct slot_page *p = h->pages[i];
		for (uint32_t w = 0; p && w < ARRAY_LEN(p->sent); w++)
			for (uint64_t left = p->sent[w]; left; left &= left - 1)
				say(m, h, p->at[w * 64 + (uint32_t)__builtin_ctzll(left)]);
	}
	slots_send(m, h);
}

void slots_unsend(struct mind *m, struct holder *h)
{
	for (uint32_t i = 0; i < h->n_pages; i++) {
		struct slot_page *p = h->pages[i];
		for (uint32_t w = 0; p && w < ARRAY_LEN(p->sent); w++) {
			uint32_t n = (uint32_t)__builtin_popcountll(p->sent[w]);
			p->sent[w] = 0;
			p->n_unsent += n;
			h->n_unsent += n;
			h->n_sent -= n;
		}
	}
	assert(h->n_sent == 0);
}

void slot_owe(struct mind *m, struct copy *c)
{
	struct holder *h = m->holders[c->holder];
	if (c->state == COPY_COMMITTED) {
		/* MARK: nobody waits for it, and losing it costs only time (V6) */
		if (h->state == HOLDER_MERGED)
			say(m, h, c);
		return;
	}
	struct slot_page *p = page_of(h, c->slot);
	assert(p);
	disown(h, p, c->slot); /* another command may be under way: its answer fits nothing */
	not_later(h, p, c->slot);
	bit_set(p->owed, c->slot);
	p->n_unsent++;
	h->n_unsent++;
	slots_send(m, h);
}

void slot_answered(struct mind *m, struct copy *c)
{
	struct holder *h = m->holders[c->holder];
	struct slot_page *p = page_of(h, c->slot);
	assert(p);
	disown(h, p, c->slot);
	slots_send(m, h);
}

/* ---- when a slot may be emptied ---- */

/* A put that waits for space finds too little, whatever the share that is free (B2). */
static bool low(const struct mind *m, const struct holder *h)
{
	uint64_t bytes = 0;
	if (space_waited(m))
		return true;
	for (size_t i = 0; i < h->n_segs; i++)
		bytes += alloc_bytes(h->segs[i].alloc);
	return (double)(bytes - MIN_OF(h->used, bytes)) < m->l.low_reserve * (double)bytes;
}

/* Leases of an older master are not known: the longest one is waited for, unless space is short. */
static uint64_t free_at(const struct mind *m, const struct holder *h, const struct copy *c)
{
	uint64_t old = m->start_ns + m->l.lease_max_ms * 1000000ull;
	if (version_term(c->version) >= m->term || m->now >= old || low(m, h))
		return c->free_ns;
	return MAX_OF(c->free_ns, old);
}

/* FREE waits for an owed PUBLISH answer. */
static bool answer_owed(const struct copy *c)
{
	const struct work *w = c->obj->work;
	if (!w)
		return false;
	list_for_each (it, &w->pubs) {
		const struct pub *p = list_entry(it, struct mind_call, node)->on;
		if (p->holder == c->holder && p->slot == c->slot)
			return true;
	}
	return false;
}

/* An eviction is over when every holder that answers has marked it; then FREE follows. */
static bool evicting_elsewhere(const struct mind *m, const struct copy *c)
{
	if (c->reason != RETIRE_EVICTED)
		return false;
	for (const struct copy *k = c->obj->copies; k; k = k->next)
		if (k != c && k->version == c->version && k->reason == RETIRE_EVICTED &&
		    k->state == COPY_RETIRING && holder_in(m->holders[k->holder]) &&
		    !m->holders[k->holder]->suspect)
			return true;
	return false;
}

static void later(struct mind *m, struct holder *h, struct copy *c, uint64_t at)
{
	struct slot_page *p = page_of(h, c->slot);
	assert(p);
	copy_later(m, c);
	if (!bit(p->later, c->slot)) {
		bit_set(p->later, c->slot);
		p->n_later++;
		h->n_later++;
		p->later_ns = p->n_later == 1 ? at : MIN_OF(p->later_ns, at);
	}
	p->later_ns = MIN_OF(p->later_ns, at);
}

void slot_free_due(struct mind *m, struct copy *c)
{
	struct holder *h = m->holders[c->holder];
	if (c->state != COPY_RETIRED || (c->flags & COPY_SERVED) || answer_owed(c) ||
	    group_holds(c))
		return;
	if (evicting_elsewhere(m, c)) {
		later(m, h, c, m->now + RETRY_MS * 1000000ull);
		return;
	}
	uint64_t at = h->state == HOLDER_MERGED ? free_at(m, h, c) : m->now;
	if (at > m->now || h->state != HOLDER_MERGED) {
		later(m, h, c, at);
		return;
	}
	copy_state(m, c, COPY_FREEING);
	slot_owe(m, c);
}

static void page_later(struct mind *m, struct holder *h, struct slot_page *p)
{
	p->later_ns = UINT64_MAX;
	for (uint32_t w = 0; w < ARRAY_LEN(p->later); w++)
		for (uint64_t left = p->later[w]; left; left &= left - 1)
			slot_free_due(m, p->at[w * 64 + (uint32_t)__builtin_ctzll(left)]);
}

bool slots_later(struct mind *m, struct holder *h)
{
	uint32_t pages = 0;
	for (uint32_t i = 0; h->n_later && h->state == HOLDER_MERGED && i < h->n_pages; i++) {
		struct slot_page *p = h->pages[i];
		if (!p || !p->n_later || p->later_ns > m->now)
			continue;
		if (++pages > 16) /* I6 */
			return true;
		page_later(m, h, p);
	}
	return false;
}

uint64_t slots_later_ns(const struct holder *h)
{
	uint64_t at = 0;
	for (uint32_t i = 0; h->n_later && h->state == HOLDER_MERGED && i < h->n_pages; i++) {
		const struct slot_page *p = h->pages[i];
		if (p && p->n_later)
			at = at ? MIN_OF(at, p->later_ns) : p->later_ns;
	}
	return at;
}

void slots_hurry(struct mind *m, struct holder *h)
{
	if (!h->n_later || m->now >= m->start_ns + m->l.lease_max_ms * 1000000ull || !low(m, h))
		return;
	for (uint32_t i = 0; i < h->n_pages; i++)
		if (h->pages[i] && h->pages[i]->n_later)
			h->pages[i]->later_ns = 1; /* long past; 0 is never */
}
