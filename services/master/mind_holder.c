/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roster: REGISTER, away, forget, adoption. A holder's row is durable before anything is done
 * about it; one row at a time is on its way.
 *
 *	NONE ─row─► SILENT ─ADOPT─► ADOPTING ─► MERGING ─► FINISHING ─► MERGED
 *	AWAY ─row───┘  ▲ (in, by the roster)       └──── adopted again ◄────┘
 *	  ▲            └ all the states to the right: in
 *	  └─row─ any state that is in
 */
#include "mind_priv.h"

#include <stdio.h>

static uint32_t *counter_of(struct mind *m, const struct holder *h)
{
	if (h->state == HOLDER_AWAY)
		return &m->n_away;
	if (holder_in(h) && h->state != HOLDER_MERGED)
		return h->known ? &m->n_partial : &m->n_unmerged;
	return NULL;
}

static uint64_t bytes_of(const struct holder *h)
{
	uint64_t n = 0;
	for (size_t i = 0; i < h->n_segs; i++)
		n += alloc_bytes(h->segs[i].alloc);
	return n;
}

void holder_set(struct mind *m, struct holder *h, enum holder_state s, bool known)
{
	assert(m && h);
	uint32_t *n = counter_of(m, h);
	if (n)
		--*n;
	if (h->state == HOLDER_MERGED) {
		m->total -= bytes_of(h);
		m->used -= h->used;
	}
	h->state = s;
	h->known = known;
	m->era += s < HOLDER_FINISHING;
	n = counter_of(m, h);
	if (n)
		++*n;
	if (s == HOLDER_MERGED) {
		m->total += bytes_of(h);
		m->used += h->used;
	}
}

struct holder *holder_at(const struct mind *m, uint32_t index)
{
	return index < m->n_holders ? m->holders[index] : NULL;
}

static struct holder *holder_find(const struct mind *m, struct bytes id)
{
	int64_t i = mind_holder_index(m, id);
	return i < 0 ? NULL : m->holders[i];
}

int64_t mind_holder_index(const struct mind *m, struct bytes id)
{
	for (uint32_t i = 0; i < m->n_holders; i++)
		if (strlen(m->holders[i]->id) == id.n &&
		    memcmp(m->holders[i]->id, id.p, id.n) == 0)
			return i;
	return -1;
}

uint32_t mind_holders(const struct mind *m)
{
	return m->n_holders;
}

static struct holder *holder_new(struct mind *m, struct bytes id)
{
	if (m->n_holders == HOLDERS_MAX || id.n == 0 || id.n >= sizeof(m->holders[0]->id))
		return NULL;
	if (m->n_holders == m->cap_holders) {
		uint32_t cap = m->cap_holders ? 2 * m->cap_holders : 4;
		struct holder **p = realloc(m->holders, cap * sizeof(struct holder *));
		if (!p)
			return NULL;
		m->holders = p;
		m->cap_holders = cap;
	}
	struct holder *h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	h->index = m->n_holders;
	memcpy(h->id, id.p, id.n);
	h->under.term = m->term;
	struct list *lists[] = { &h->regs,     &h->gones, &h->early,
				 &h->attempts, &h->quars, &h->pulls };
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_init(lists[i]);
	m->bytes += sizeof(*h);
	m->holders[m->n_holders++] = h;
	return h;
}

static void set_text(char *to, size_t size, struct bytes s)
{
	size_t n = MIN_OF(s.n, size - 1);
	if (n)
		memcpy(to, s.p, n);
	to[n] = '\0';
}

static void set_addrs(struct holder *h, const struct bytes *a, size_t n)
{
	h->n_addrs = MIN_OF(n, ARRAY_LEN(h->addrs));
	for (size_t i = 0; i < h->n_addrs; i++) {
		set_text(h->addr_text[i], sizeof(h->addr_text[i]), a[i]);
		h->addrs[i] = h->addr_text[i];
	}
}

/* What the roster says at the start: the in ones are adopted where they were last seen. */
enum err holder_load(struct mind *m)
{
	for (const struct meta_holder *r = meta_holder_first(m->st); r;
	     r = meta_holder_next(m->st, r)) {
		struct meta_holder_info i;
		struct bytes addrs[8];
		meta_holder_info(r, &i);
		struct holder *h = holder_new(m, BYTES_STR(i.id));
		if (!h)
			return ERR_NO_MEMORY;
		for (size_t a = 0; a < i.n_addrs; a++)
			addrs[a] = BYTES_STR(i.addrs[a]);
		set_addrs(h, addrs, i.n_addrs);
		set_text(h->host, sizeof(h->host), BYTES_STR(i.host));
		set_text(h->fd_path, sizeof(h->fd_path), BYTES_STR(i.fd_path));
		h->kind = (uint8_t)i.kind;
		memcpy(h->pool, i.pool, sizeof(h->pool));
		h->row = r;
		holder_set(m, h, i.away ? HOLDER_AWAY : HOLDER_SILENT, false);
	}
	return ERR_NONE;
}

/* ---- rows ---- */

struct row_text {
	struct bytes addrs[8];
	char addr_text[8][257];
	char host[65], fd_path[108];
};

static struct app *row_new(struct mind *m, struct holder *h, size_t n)
{
	struct app *a = app_new(m, APP_HOLDER, n);
	struct row_text *t = a ? malloc(sizeof(*t)) : NULL;
	if (!t) {
		if (a)
			m->bytes -= a->bytes;
		free(a);
		return NULL;
	}
	/* the holder may register anew before this is written */
	memcpy(t->addr_text, h->addr_text, sizeof(t->addr_text));
	memcpy(t->host, h->host, sizeof(t->host));
	memcpy(t->fd_path, h->fd_path, sizeof(t->fd_path));
	for (size_t i = 0; i < h->n_addrs; i++)
		t->addrs[i] = BYTES_STR(t->addr_text[i]);
	a->holder = h;
	a->text = t;
	a->recs[0].type = META_HOLDER;
	a->recs[0].HOLDER = (struct msg_meta_holder){ .id = BYTES_STR(h->id),
						      .kind = h->kind,
						      .addrs = { t->addrs, h->n_addrs },
						      .host = BYTES_STR(t->host),
						      .fd_path = BYTES_STR(t->fd_path),
						      .term = m->term,
						      .adoption = h->under.adoption };
	memcpy(a->recs[0].HOLDER.pool, h->pool, sizeof(h->pool));
	return a;
}

static void row_send(struct mind *m, struct holder *h, struct app *a)
{
	if (!a) {
		h->row_ns = m->now + RETRY_MS * 1000000ull;
		return;
	}
	h->appending = true;
	app_send(m, a);
}

static void send_in(struct mind *m, struct holder *h)
{
	bool floor = !h->row || h->new_pool;
	struct app *a = row_new(m, h, floor ? 2 : 1);
	if (a && floor) /* what it has, nobody here knows: it returns empty */
		a->recs[1] = (struct meta_rec){ .type = META_FLOOR,
						.FLOOR = { .holder = BYTES_STR(h->id),
							   .floor = m->last } };
	if (a)
		a->floored = floor;
	h->new_row = false;
	row_send(m, h, a);
}

static void send_away(struct mind *m, struct holder *h)
{
	struct app *a = row_new(m, h, 1);
	if (a) {
		a->away = true;
		a->recs[0].HOLDER.away = true;
		a->recs[0].HOLDER.away_since = m->last;
	}
	row_send(m, h, a);
}

static void send_gone(struct mind *m, struct holder *h)
{
	struct app *a = app_new(m, APP_HOLDER, 1);
	if (a) {
		a->holder = h;
		a->gone = true;
		a->recs[0] = (struct meta_rec){ .type = META_FORGET,
						.FORGET = { .holder = BYTES_STR(h->id) } };
	}
	row_send(m, h, a);
}

/* ---- what is due ---- */

static void adopted_or_wait(struct mind *m, struct holder *h)
{
	for (struct list *l; (l = list_pop_front(&h->regs));) {
		struct mind_call *c = list_entry(l, struct mind_call, node);
		container_of(c, struct mind_register, call)->adopted =
			h->state == HOLDER_MERGED;
		call_end(m, c, ERR_NONE);
	}
	if (h->state == HOLDER_SILENT)
		holder_adopt(m, h);
}

void holder_step(struct mind *m, struct holder *h)
{
	if (h->appending || m->now < h->row_ns)
		return;
	h->row_ns = 0;
	if (h->want_gone)
		send_gone(m, h);
	else if (h->want_away && holder_in(h))
		send_away(m, h);
	else if (h->want_in && (h->new_row || !holder_in(h))) {
		if (!h->dropping) /* what it had must have left the index first */
			send_in(m, h);
	} else if (h->want_in)
		adopted_or_wait(m, h);
}

/* It leaves the index: attempts and calls at once, copies in slices. */
static void holder_gone(struct mind *m, struct holder *h, enum holder_state s)
{
	holder_set(m, h, s, false);
	h->away_era++;
	h->cursor = 0;
	h->settling = false;
	calls_end(m, &h->early, ERR_STALE_EPOCH);
	while (!list_empty(&h->attempts))
		attempt_end(m, list_entry(h->attempts.next, struct attempt, of_holder), false);
	while (!list_empty(&h->quars))
		quar_free(m, h, list_entry(h->quars.next, struct quar, node), false);
	pulls_resolve(m, h);
	m->n_dropping += !h->dropping;
	h->dropping = true;
	h->drop_at = 0;
	mind_kick(m);
	m->space_dirty = true;
}

static void row_written(struct mind *m, struct holder *h, const struct app *a)
{
	bool again = false;
	if (a->gone) {
		h->row = NULL;
		h->want_gone = h->want_in = h->want_away = false;
		holder_gone(m, h, HOLDER_NONE);
		calls_end(m, &h->gones, ERR_NONE);
		calls_end(m, &h->regs, ERR_NOT_IN_ROSTER);
		return;
	}
	h->row = meta_holder_find(m->st, BYTES_STR(h->id));
	if (a->away) {
		h->want_away = false;
		holder_gone(m, h, HOLDER_AWAY);
		return;
	}
	/* under a floor of now it holds nothing that others must wait for (V8) */
	if (!holder_in(h))
		holder_set(m, h, HOLDER_SILENT, a->floored);
	else
		again = a->floored; /* another pool: what the old one had is gone */
	if (a->floored)
		h->new_pool = false;
	if (again)
		holder_adopt(m, h);
}

static void settled(struct mind *m, struct holder *h, enum err e)
{
	h->settling = false;
	if (e == ERR_NONE)
		h->settled_seq = h->merge_seq;
	else if (e != ERR_NOT_FOUND && e != ERR_CONFLICT)
		h->retry_ns = m->now + RETRY_MS * 1000000ull;
}

void holder_appended(struct mind *m, struct app *a, enum err e)
{
	struct holder *h = a->holder;
	free(a->text);
	if (a->kind == APP_SETTLED) {
		settled(m, h, e);
		return;
	}
	h->appending = false;
	if (e == ERR_NONE || (e == ERR_NOT_FOUND && a->gone))
		row_written(m, h, a);
	else if (e == ERR_NO_SPACE || e == ERR_BUSY || e == ERR_NO_MEMORY) {
		h->new_row = !a->away && !a->gone;
		h->row_ns = m->now + RETRY_MS * 1000000ull;
		return;
	} else {
		calls_end(m, &h->regs, e);
		calls_end(m, &h->gones, e);
		h->want_in = h->want_away = h->want_gone = false;
	}
	holder_step(m, h);
}

/* ---- adoption (V9, V10) ---- */

void holder_say(struct mind *m, struct holder *h)
{
	struct mind_cmd cmd = { .holder = h->index, .under = h->under };
	if (h->new_pool)
		return; /* its floor must be durable first; nothing of it is read meanwhile */
	h->said_ns = m->now + 1;
	if (h->state == HOLDER_ADOPTING) {
		cmd.op = MIND_ADOPT;
		cmd.under.pool_epoch = 0;
	} else if (h->state == HOLDER_MERGING) {
		cmd.op = MIND_INVENTORY;
		cmd.cursor = h->cursor;
	} else {
		return;
	}
	m->out.command(m->out.ctx, &cmd);
}

void holder_adopt(struct mind *m, struct holder *h)
{
	pulls_unplan(m, h);
	/* V8's second sentence: its entries are known if a merge was completed */
	holder_set(m, h, HOLDER_ADOPTING, h->known || h->state == HOLDER_MERGED);
	h->under.adoption++;
	h->under.pool_epoch = 0;
	h->cursor = 0;
	calls_end(m, &h->early, ERR_STALE_EPOCH);
	slots_unsend(m, h);
	mind_kick(m); /* publishes that wait end */
	holder_say(m, h);
}

void mind_adopted(struct mind *m, uint32_t holder, const struct mind_under *u,
		  const struct mind_segment *segs, size_t n)
{
	struct holder *h = holder_at(m, holder);
	if (!h || h->state != HOLDER_ADOPTING || u->shard != 0 || u->term != m->term ||
	    u->adoption != h->under.adoption)
		return;
	mind_enter(m);
	if (segs_reset(m, h, segs, n) == ERR_NONE) {
		h->under.pool_epoch = u->pool_epoch;
		h->merge++;
		h->merge_seq = meta_last_seq(m->st);
		holder_set(m, h, HOLDER_MERGING, h->known);
		holder_say(m, h);
	} else {
		h->retry_ns = m->now + RETRY_MS * 1000000ull; /* ADOPT is said again */
	}
	mind_leave(m);
}

void mind_refused(struct mind *m, uint32_t holder, const struct mind_under *u, enum err e)
{
	struct holder *h = holder_at(m, holder);
	if (!h || h->state < HOLDER_ADOPTING || u->term != m->term ||
	    u->adoption != h->under.adoption)
		return;
	mind_enter(m);
	if (h->state == HOLDER_ADOPTING)
		h->readopt_ns = m->now + RETRY_MS * 1000000ull; /* not at once, for ever */
	else if (u->pool_epoch == h->under.pool_epoch)
		holder_adopt(m, h);
	mind_leave(m);
}

void mind_beat_epoch(struct mind *m, struct bytes id, uint64_t pool_epoch)
{
	struct holder *h = holder_find(m, id);
	/* a lower one is an old beat */
	if (!h || h->state < HOLDER_MERGING || pool_epoch <= h->under.pool_epoch ||
	    BROKEN(m, MIND_BREAK_EPOCH_BEAT))
		return;
	mind_enter(m);
	holder_adopt(m, h);
	mind_leave(m);
}

/* ---- calls about holders ---- */

static bool row_differs(const struct holder *h, const struct mind_news *n)
{
	struct meta_holder_info i;
	if (!h->row)
		return true;
	meta_holder_info(h->row, &i);
	if (i.kind != n->kind || i.n_addrs != n->n_addrs || strlen(i.host) != n->host.n ||
	    strlen(i.fd_path) != n->fd_path.n ||
	    (n->fd_path.n && memcmp(i.fd_path, n->fd_path.p, n->fd_path.n) != 0) ||
	    (n->host.n && memcmp(i.host, n->host.p, n->host.n) != 0) ||
	    memcmp(i.pool, n->pool, sizeof(i.pool)) != 0)
		return true;
	for (size_t a = 0; a < n->n_addrs; a++)
		if (strlen(i.addrs[a]) != n->addrs[a].n ||
		    memcmp(i.addrs[a], n->addrs[a].p, n->addrs[a].n) != 0)
			return true;
	return false;
}

static bool pool_differs(const struct holder *h, const struct mind_news *n)
{
	struct meta_holder_info i;
	if (!h->row)
		return false;
	meta_holder_info(h->row, &i);
	return memcmp(i.pool, n->pool, sizeof(i.pool)) != 0;
}

static void take_news(struct holder *h, const struct mind_news *n)
{
	h->new_row = row_differs(h, n);
	h->new_pool = pool_differs(h, n);
	set_text(h->host, sizeof(h->host), n->host);
	set_text(h->fd_path, sizeof(h->fd_path), n->fd_path);
	set_addrs(h, n->addrs, n->n_addrs);
	h->kind = n->kind;
	memcpy(h->pool, n->pool, sizeof(h->pool));
}

/* Another run of its process, or an epoch that nobody here knows. */
static bool must_adopt(const struct mind *m, const struct holder *h, const struct mind_news *n)
{
	if (h->state < HOLDER_ADOPTING)
		return false;
	if (memcmp(h->instance, n->instance, sizeof(h->instance)) != 0 || h->new_pool)
		return true;
	return h->state >= HOLDER_MERGING && n->pool_epoch != h->under.pool_epoch &&
	       !BROKEN(m, MIND_BREAK_EPOCH_BEAT);
}

static void register_call(struct mind *m, struct holder *h, const struct mind_news *n,
			  struct mind_register *r)
{
	take_news(h, n);
	bool again = must_adopt(m, h, n);
	memcpy(h->instance, n->instance, sizeof(h->instance));
	h->want_in = true;
	h->want_away = false;
	call_wait(m, &r->call, &h->regs, NULL);
	if (again)
		holder_adopt(m, h);
	else if (h->state == HOLDER_MERGED)
		segs_grow(m, h, n->segments, n->n_segments);
	else
		holder_say(m, h); /* its last answer may be lost */
	holder_step(m, h);
}

void mind_register(struct mind *m, const struct mind_news *n, struct mind_register *r)
{
	mind_enter(m);
	call_init(&r->call, CALL_PLAIN);
	r->adopted = false;
	struct holder *h = holder_find(m, n->id);
	if (!h)
		h = holder_new(m, n->id);
	if (h)
		register_call(m, h, n, r);
	else
		call_end(m, &r->call,
			 why_set(&r->call.why, ERR_BUSY, "too many holders, or no name"));
	mind_leave(m);
}

void mind_suspect(struct mind *m, struct bytes id, bool suspect)
{
	struct holder *h = holder_find(m, id);
	if (h)
		h->suspect = suspect;
}

void mind_away(struct mind *m, struct bytes id)
{
	struct holder *h = holder_find(m, id);
	if (!h || !holder_in(h) || h->want_away)
		return;
	mind_enter(m);
	h->want_away = true;
	h->want_in = false;
	calls_end(m, &h->regs, ERR_NOT_READY);
	holder_step(m, h);
	mind_leave(m);
}

void mind_forget(struct mind *m, struct bytes id, struct mind_call *c)
{
	mind_enter(m);
	call_init(c, CALL_PLAIN);
	struct holder *h = holder_find(m, id);
	if (!h || (!h->row && !h->appending)) {
		call_end(m, c, why_set(&c->why, ERR_NOT_FOUND, "no such holder in the roster"));
	} else {
		h->want_gone = true;
		call_wait(m, c, &h->gones, NULL);
		holder_step(m, h);
	}
	mind_leave(m);
}

void mind_resend(struct mind *m, uint32_t holder)
{
	struct holder *h = holder_at(m, holder);
	if (!h)
		return;
	mind_enter(m);
	if (h->state != HOLDER_MERGED) {
		holder_say(m, h);
	} else {
		slots_resend(m, h);
		list_for_each (it, &h->attempts) {
			const struct attempt *a = list_entry(it, struct attempt, of_holder);
			if (a->fencing)
				attempt_say(m, a);
		}
		pulls_resend(m, h);
	}
	mind_leave(m);
}

bool mind_holder(const struct mind *m, uint32_t index, struct mind_holder *out)
{
	const struct holder *h = holder_at(m, index);
	if (!h)
		return false;
	*out = (struct mind_holder){ .index = index,
				     .id = h->id,
				     .host = h->host,
				     .fd_path = h->fd_path,
				     .kind = h->kind,
				     .addrs = h->addrs,
				     .n_addrs = h->n_addrs,
				     .away = !holder_in(h),
				     .merged = h->state == HOLDER_MERGED,
				     .suspect = h->suspect,
				     .draining = h->draining,
				     .drained = holder_drained(m, h),
				     .under = h->under,
				     .objects = h->n_copies,
				     .bytes_used = h->used,
				     .quarantine_bytes = h->quarantine };
	memcpy(out->pool, h->pool, sizeof(out->pool));
	for (size_t i = 0; i < h->n_segs; i++)
		out->bytes_total += h->segs[i].bytes_total;
	return true;
}

/* ---- time, the end ---- */

void holders_due(struct mind *m)
{
	uint64_t dead = m->start_ns + m->l.dead_ms * 1000000ull;
	for (uint32_t i = 0; i < m->n_holders; i++) {
		struct holder *h = m->holders[i];
		if (h->state == HOLDER_SILENT && h->n_addrs && !h->appending)
			holder_adopt(m, h); /* where it was last seen */
		/* not heard of since the start (T1) */
		if (holder_in(h) && h->state <= HOLDER_ADOPTING && !h->want_in &&
		    !h->want_away && m->now >= dead) {
			h->want_away = true;
			holder_step(m, h);
		}
	}
}

static void drop_some(struct mind *m, struct holder *h)
{
	for (uint32_t n = 0; n < 2048 && h->n_copies; h->drop_at++) {
		struct copy *c = slot_at(h, (uint32_t)h->drop_at);
		if (!c) {
			if (h->drop_at / SLOT_PAGE >= h->n_pages)
				h->drop_at = UINT64_MAX;
			else if (!h->pages[h->drop_at / SLOT_PAGE])
				h->drop_at |= SLOT_PAGE - 1;
			continue;
		}
		struct obj *o = c->obj;
		copy_drop(m, c, false);
		obj_step(m, o);
		n++;
	}
	if (h->n_copies)
		return;
	m->n_dropping -= h->dropping;
	h->dropping = false;
	pages_free(m, h);
	segs_free(m, h);
	holder_step(m, h);
}

bool holder_work(struct mind *m, struct holder *h)
{
	if (h->dropping)
		drop_some(m, h);
	if (h->state == HOLDER_FINISHING)
		merge_finish(m, h);
	if (h->readopt_ns && m->now >= h->readopt_ns && h->state == HOLDER_ADOPTING) {
		h->readopt_ns = 0;
		holder_adopt(m, h);
	}
	if (h->retry_ns && m->now >= h->retry_ns) {
		h->retry_ns = 0;
		holder_settle(m, h);
		holder_say(m, h);
	}
	if (h->row_ns && m->now >= h->row_ns)
		holder_step(m, h);
	return slots_later(m, h) || h->dropping || h->state == HOLDER_FINISHING;
}

void holder_settle(struct mind *m, struct holder *h)
{
	if (h->state != HOLDER_MERGED || h->n_barred || h->settling || h->appending ||
	    h->settled_seq == h->merge_seq || meta_holder_clear(h->row, 0))
		return;
	struct app *a = app_new(m, APP_SETTLED, 1);
	if (!a) {
		h->retry_ns = m->now + RETRY_MS * 1000000ull;
		return;
	}
	a->holder = h;
	a->recs[0] = (struct meta_rec){ .type = META_SETTLED,
					.SETTLED = { .holder = BYTES_STR(h->id),
						     .through = h->merge_seq } };
	h->settling = true;
	app_send(m, a);
}

void holders_free(struct mind *m)
{
	for (uint32_t i = 0; i < m->n_holders; i++) {
		struct holder *h = m->holders[i];
		calls_end(m, &h->regs, ERR_SHUTTING_DOWN);
		calls_end(m, &h->gones, ERR_SHUTTING_DOWN);
		calls_end(m, &h->early, ERR_SHUTTING_DOWN);
		for (struct list *l; (l = list_pop_front(&h->quars));)
			free(list_entry(l, struct quar, node));
		pages_free(m, h);
		segs_free(m, h);
		free(h);
	}
	free(m->holders);
}
