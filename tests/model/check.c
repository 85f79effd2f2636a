/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold in every state (T1-T6), and a state's fingerprint. */
#include "tests/model/world.h"

#include <stdio.h>
#include <string.h>

/* ---- (b), (c), (d), (e): at the moment they could break ---- */

void check_store(struct world *w, unsigned holder, unsigned extent, uint64_t version)
{
	if (w->holders[holder].owner[extent] != version)
		world_broken(w, "T6 (d): a store into an extent last given to another attempt");
}

void check_returned(struct world *w, const struct w_client *c, uint64_t version, uint64_t half1,
		    uint64_t half2)
{
	if (half1 != version || half2 != version)
		world_broken(w, "T4 (c): a get returned bytes that are not its version's");
	if (version <= c->old_upto)
		world_broken(w,
			     "T2 T3 (b): a get returned a version that was old when it began");
	w->old_upto[c->key] = MAX_OF(w->old_upto[c->key], version - 1);
}

void check_not_found(struct world *w, const struct w_client *c)
{
	bool away = false;
	for (unsigned i = 0; i < W_HOLDERS; i++)
		away |= w->away_ever[i];
	const struct w_version *v = c->must ? world_version(w, c->must) : NULL;
	if (v && !v->began_end && !away)
		world_broken(w, "T1 (e): NOT_FOUND for an acknowledged object");
}

/* ---- the state ---- */

struct seen {
	struct world *w;
	unsigned holder;
	uint64_t committed[W_VERSIONS_MAX];
	uint32_t n;
	uint64_t at[W_EXTENTS_MAX]; /* version of the slot over an extent */
};

static bool slot_check(void *arg, const struct hold_entry *e)
{
	struct seen *s = arg;
	struct w_holder *h = &s->w->holders[s->holder];
	unsigned x = (unsigned)(e->extents[0].offset / W_BLOCK);
	if (s->at[x])
		world_broken(s->w, "T6 (d): two slots over one extent");
	s->at[x] = e->at.version;
	if (e->at.retired)
		return true;
	if (h->data[x][0] != e->at.version || h->data[x][1] != e->at.version)
		world_broken(s->w, "T4 T5 (c): a COMMITTED slot over another version's bytes");
	if (s->n < W_VERSIONS_MAX)
		s->committed[s->n++] = e->at.version;
	return true;
}

static bool superseded(const struct world *w, const struct w_version *v)
{
	for (uint32_t i = 0; i < w->n_versions; i++) {
		const struct w_version *o = &w->versions[i];
		if (o->key == v->key && o->version > v->version && o->committed)
			return true;
	}
	return false;
}

static bool among(const struct seen *s, uint64_t version)
{
	for (uint32_t k = 0; k < s->n; k++)
		if (s->committed[k] == version)
			return true;
	return false;
}

/* (a) of what may have been moved: somebody has it. */
static void moved_check(struct world *w, const struct seen *s)
{
	for (unsigned i = 0; i < W_HOLDERS; i++)
		if (!w->holders[i].up)
			return;
	for (uint32_t i = 0; i < w->n_versions; i++) {
		const struct w_version *v = &w->versions[i];
		bool there = !v->moved || !v->acked || v->began_end || superseded(w, v) ||
			     v->floored;
		for (unsigned h = 0; h < W_HOLDERS && !there; h++)
			there = among(&s[h], v->version);
		if (!there)
			world_broken(w,
				     "T2 (a): an acknowledged version is gone that was moved");
	}
}

/* (a). A holder that is down keeps its pool: only what runs is looked at. */
static void lost_check(struct world *w, const struct seen *s)
{
	for (uint32_t i = 0; i < w->n_versions; i++) {
		const struct w_version *v = &w->versions[i];
		bool there = v->holder != s->holder || !v->acked || v->began_end ||
			     superseded(w, v) || v->floored || v->moved;
		if (!there && !among(s, v->version))
			world_broken(w, "T2 (a): an acknowledged version is gone");
	}
}

void world_check(struct world *w)
{
	struct seen s[W_HOLDERS];
	for (unsigned i = 0; i < W_HOLDERS && !w->overflow; i++) {
		s[i] = (struct seen){ .w = w, .holder = i };
		if (!w->holders[i].up)
			continue;
		uint64_t cursor = 0;
		hold_scan(w->holders[i].hold, 0, &cursor, slot_check, &s[i]);
		lost_check(w, &s[i]);
	}
	if (!w->overflow)
		moved_check(w, s);
	if (w->mind && !w->overflow)
		mind_check(w->mind);
}

/* ---- (f) ---- */

static bool calm(const struct world *w)
{
	for (unsigned c = 0; c < W_CLIENTS; c++)
		if (w->clients[c].state != C_IDLE && !w->clients[c].dead &&
		    !w->clients[c].stopped)
			return false;
	for (uint32_t i = 0; i < w->n_msgs; i++)
		if (!msg_waits(w, &w->msgs[i]))
			return false;
	for (unsigned i = 0; i < W_HOLDERS; i++)
		if (w->holders[i].pull.on)
			return false;
	return w->n_appends == 0 && w->mind;
}

static void settle_step(struct world *w, unsigned turn)
{
	uint16_t ev[W_EVENTS_MAX];
	size_t n = world_events(w, ev), k = 0;
	for (size_t i = 0; i < n; i++)
		if (!event_is_choice(ev[i]))
			ev[k++] = ev[i];
	/* what was lost is said again after a while, whatever else goes on */
	if (k && turn % 50 != 48) {
		/* every other one is the oldest, and none is left out for ever */
		size_t at = turn % 2 ? (turn * 0x9e3779b9u >> 16) % k : 0;
		world_apply(w, ev[at]);
		return;
	}
	for (unsigned i = 0; w->mind && i < W_HOLDERS; i++) {
		w->left.resends = 1;
		world_apply(w, EVENT(E_RESEND, i));
	}
}

static bool same_objects(struct world *w)
{
	struct mind_counts c;
	uint32_t committed = 0, used = 0;
	mind_counts(w->mind, &c);
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		struct seen s = { .w = w, .holder = i };
		uint64_t cursor = 0;
		hold_scan(w->holders[i].hold, 0, &cursor, slot_check, &s);
		committed += s.n;
		for (unsigned x = 0; x < w->cfg->extents; x++)
			used += s.at[x] != 0;
	}
	return c.copies == committed && used == committed && c.copying == 0;
}

/* Answers that were lost leave a call open: its deadline ends it. */
static void deadlines(struct world *w)
{
	for (unsigned c = 0; c < W_CLIENTS; c++) {
		struct w_client *cl = &w->clients[c];
		if (cl->state == C_IDLE || cl->dead || cl->stopped)
			continue;
		w->left.giveups = 1;
		world_apply(w, EVENT(E_GIVE_UP, c));
	}
}

static uint32_t acked(const struct world *w)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < w->n_versions; i++)
		n += w->versions[i].acked;
	return n;
}

/* At rest puts succeed at once, wherever they go. */
static void fresh_puts(struct world *w)
{
	for (unsigned i = 0; i < 2 * W_HOLDERS; i++) {
		unsigned c = 0;
		while (c < W_CLIENTS && (w->clients[c].state != C_IDLE || w->clients[c].dead))
			c++;
		if (c == W_CLIENTS || w->n_versions == W_VERSIONS_MAX)
			return;
		uint32_t before = acked(w);
		world_apply(w, EVENT(E_PUT, c * 2));
		for (unsigned k = 0; k < 400 && w->clients[c].state != C_IDLE; k++)
			settle_step(w, 2 * k);
		if (w->overflow)
			return;
		if (acked(w) == before)
			world_broken(w, "T7 (f): with all faults over, a put fails");
	}
}

static void settle_calls(struct world *w)
{
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 400 && !w->overflow; i++) {
			settle_step(w, i);
			if (w->broken)
				return;
		}
		if (w->overflow)
			return;
		deadlines(w);
		/* attempts nobody finishes are fenced after a while */
		for (uint32_t i = 0; w->mind && i < w->n_versions; i++)
			if (!w->versions[i].acked)
				mind_discard(w->mind, w->versions[i].version);
	}
}

void world_settle(struct world *w)
{
	struct w_budget none = { 0 };
	w->left = none;
	settle_calls(w);
	if (w->broken)
		return;
	for (unsigned i = 0; i < 400 && !w->overflow && !calm(w); i++)
		settle_step(w, 2 * i);
	if (w->overflow)
		return;
	bool stuck_writer = false;
	for (unsigned c = 0; c < W_CLIENTS; c++)
		stuck_writer |= w->clients[c].stopped;
	if (!calm(w))
		world_broken(w, "T7 (f): with all faults over, something never ends");
	else if (!same_objects(w) && !stuck_writer)
		world_broken(w, "C3 (f): index and directories do not agree at rest");
	else if (!stuck_writer)
		fresh_puts(w);
}

/* ---- fingerprint ---- */

enum { RENAMED = 96 };
struct names {
	uint64_t v[RENAMED];
	size_t n;
};
struct walk {
	struct fold fold;
	bool collect;
	struct names versions, terms, epochs, generations;
	uint64_t h;
};

static void mix(struct walk *k, uint64_t v)
{
	uint64_t x = k->h ^ v;
	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	k->h = x ^ x >> 32;
}

static void name_add(struct names *n, uint64_t v)
{
	size_t i = n->n;
	while (i && n->v[i - 1] > v)
		i--;
	if (i && n->v[i - 1] == v)
		return;
	assert(n->n < RENAMED);
	memmove(&n->v[i + 1], &n->v[i], (n->n - i) * sizeof(v));
	n->v[i] = v;
	n->n++;
}

static uint64_t name_rank(const struct names *n, uint64_t v)
{
	size_t lo = 0, hi = n->n;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (n->v[mid] < v)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo + 1;
}

static void named(struct walk *k, struct names *n, uint64_t v)
{
	if (k->collect)
		name_add(n, v);
	else
		mix(k, v ? name_rank(n, v) : 0);
}

static void fold_word(struct fold *f, uint64_t v)
{
	struct walk *k = container_of(f, struct walk, fold);
	if (!k->collect)
		mix(k, v);
}

static void fold_term(struct fold *f, uint64_t v)
{
	struct walk *k = container_of(f, struct walk, fold);
	named(k, &k->terms, v);
}

static void fold_version(struct fold *f, uint64_t v)
{
	struct walk *k = container_of(f, struct walk, fold);
	named(k, &k->versions, v);
	fold_term(f, version_term(v));
}

static void fold_epoch(struct fold *f, uint64_t v)
{
	struct walk *k = container_of(f, struct walk, fold);
	named(k, &k->epochs, v);
}

static void fold_generation(struct fold *f, uint64_t v)
{
	struct walk *k = container_of(f, struct walk, fold);
	named(k, &k->generations, v);
}

static void fold_under(struct walk *k, const struct mind_under *u)
{
	fold_term(&k->fold, u->term);
	fold_term(&k->fold, u->adoption);
	fold_epoch(&k->fold, u->pool_epoch);
}

static void fold_msg(struct walk *k, const struct world *w, const struct w_msg *m)
{
	struct fold *f = &k->fold;
	bool client = m->kind == M_PUT_GRANT || m->kind == M_REMOVE_REP ||
		      m->kind == M_QUERY_REP || m->kind == M_COMMIT_REP;
	fold_word(f, (uint64_t)m->kind | (uint64_t)m->client << 8 | (uint64_t)m->holder << 16 |
			     (uint64_t)m->key << 24 | (uint64_t)m->op << 32 |
			     (uint64_t)m->extent << 40 | (uint64_t)m->retired << 48 |
			     (uint64_t)m->reason << 52 | (uint64_t)m->fence << 60);
	fold_word(f, (uint64_t)m->err | (uint64_t)m->slot << 32);
	/* what matters of a call's number is whether it still goes on; of an attempt's, which one */
	fold_word(f, client ? m->call == w->clients[m->client].call : 0);
	fold_word(f, m->attempt);
	fold_word(f, m->number);
	fold_word(f, (uint64_t)m->src | (uint64_t)m->src_extent << 8 |
			     (uint64_t)m->src_slot << 16);
	fold_generation(f, m->src_generation);
	fold_word(f, m->run == w->holders[m->holder].run);
	fold_term(f, m->term);
	fold_version(f, m->version);
	fold_version(f, m->evict_id);
	fold_epoch(f, m->epoch);
	fold_generation(f, m->generation);
	fold_under(k, &m->under);
	for (uint32_t i = 0; m->inv && i < m->inv->n; i++) {
		const struct msg_entry *e = &m->inv->entries[i];
		fold_word(f, e->slot | (uint64_t)e->state << 32 | (uint64_t)e->published << 40);
		fold_version(f, e->version);
		fold_generation(f, e->generation);
	}
	for (uint32_t i = 0; m->inv && i < m->inv->n_writing; i++)
		fold_version(f, m->inv->writing[i].version);
}

static void fold_client(struct walk *k, const struct w_client *c)
{
	struct fold *f = &k->fold;
	fold_word(f, (uint64_t)c->state | (uint64_t)c->dead << 8 | (uint64_t)c->stopped << 9 |
			     (uint64_t)c->key << 16 | (uint64_t)c->holder << 24 |
			     (uint64_t)c->extent << 32);
	fold_word(f, c->attempts);
	fold_term(f, c->term);
	if (c->state == C_IDLE)
		return;
	fold_version(f, c->version);
	fold_version(f, c->half);
	fold_version(f, c->old_upto);
	fold_version(f, c->seen);
	fold_version(f, c->must);
	fold_epoch(f, c->epoch);
	fold_generation(f, c->generation);
	fold_word(f, c->slot);
}

/* A fold that keeps what it is told. */
struct recorder {
	struct fold fold;
	struct w_holder *h;
};

static void record(struct fold *f, uint8_t kind, uint64_t v)
{
	struct w_holder *h = container_of(f, struct recorder, fold)->h;
	assert(h->n_last < W_FOLD_MAX);
	h->last[h->n_last].kind = kind;
	h->last[h->n_last++].v = v;
}

#define RECORD(name, kind)                                    \
	static void record_##name(struct fold *f, uint64_t v) \
	{                                                     \
		record(f, kind, v);                           \
	}
RECORD(word, 0)
RECORD(version, 1)
RECORD(term, 2)
RECORD(epoch, 3)
RECORD(generation, 4)

static void replay(struct fold *f, uint8_t kind, uint64_t v)
{
	void (*const fns[])(struct fold *, uint64_t) = { f->word, f->version, f->term, f->epoch,
							 f->generation };
	fns[kind](f, v);
}

void holder_remember(struct w_holder *h)
{
	struct recorder r = {
		{ record_word, record_version, record_term, record_epoch, record_generation }, h
	};
	h->n_last = 0;
	hold_fold(h->hold, &r.fold);
}

static void fold_holder(struct walk *k, const struct world *w, const struct w_holder *h)
{
	struct fold *f = &k->fold;
	fold_word(f, h->up);
	if (h->up)
		hold_fold(h->hold, f);
	for (uint32_t i = 0; !h->up && i < h->n_last; i++)
		replay(f, h->last[i].kind, h->last[i].v);
	const struct w_pull *p = &h->pull;
	fold_word(f, p->on | (uint64_t)p->cut << 1 | (uint64_t)p->halves << 2 |
			     (uint64_t)p->key << 8 | (uint64_t)p->extent << 16 |
			     (uint64_t)p->src << 24 | (uint64_t)p->src_extent << 32);
	if (p->on) {
		fold_word(f, p->number | (uint64_t)p->src_slot << 32);
		fold_generation(f, p->src_generation);
		fold_version(f, p->version);
		fold_epoch(f, p->epoch);
		fold_under(k, &p->under);
	}
	fold_version(f, h->up ? h->own->hazard : 0);
	for (unsigned x = 0; x < w->cfg->extents; x++) {
		fold_version(f, h->data[x][0]);
		fold_version(f, h->data[x][1]);
		fold_version(f, h->owner[x]);
	}
	for (unsigned c = 0; c < W_CLIENTS; c++) {
		fold_word(f, h->gone_session[c]);
		fold_version(f, h->lanes[c]->hazard);
	}
}

/* A record at a time, added up: the order of a table says nothing. */
struct rec_walk {
	struct walk *k;
	uint64_t sum;
};

static void fold_rec(struct walk *k, const struct meta_rec *r)
{
	struct fold *f = &k->fold;
	fold_word(f, r->type);
	switch (r->type) {
	case META_TERM:
		fold_term(f, r->TERM.term);
		break;
	case META_HOLDER:
		fold_word(f, r->HOLDER.id.p[1] | (uint64_t)r->HOLDER.away << 8);
		fold_version(f, r->HOLDER.away_since);
		fold_term(f, r->HOLDER.term);
		fold_term(f, r->HOLDER.adoption);
		break;
	case META_TOMB:
		fold_word(f, r->TOMB.holder.p[1] | (uint64_t)r->TOMB.key.p[1] << 8);
		fold_version(f, r->TOMB.ceiling);
		break;
	case META_RANGE:
		fold_word(f, r->RANGE.holder.p[1]);
		fold_version(f, r->RANGE.ceiling);
		break;
	case META_FLOOR:
		fold_word(f, r->FLOOR.holder.p[1]);
		fold_version(f, r->FLOOR.floor);
		break;
	default:
		break;
	}
}

static enum err rec_one(void *arg, uint64_t seq, const struct meta_rec *r)
{
	struct rec_walk *rw = arg;
	(void)seq;
	uint64_t h = rw->k->h;
	rw->k->h = 7;
	fold_rec(rw->k, r);
	rw->sum += rw->k->h;
	rw->k->h = h;
	return ERR_NONE;
}

static void fold_world(struct walk *k, const struct world *w)
{
	struct fold *f = &k->fold;
	for (size_t i = 0; i < sizeof(w->left); i++)
		fold_word(f, ((const uint8_t *)&w->left)[i]);
	fold_word(f, w->mind != NULL);
	if (w->mind)
		mind_fold(w->mind, f);
	for (unsigned i = 0; i < W_HOLDERS; i++)
		fold_holder(k, w, &w->holders[i]);
	for (unsigned i = 0; i < W_CLIENTS; i++)
		fold_client(k, &w->clients[i]);
	struct rec_walk rw = { .k = k };
	(void)!meta_state_dump(w->meta, rec_one, &rw);
	fold_word(f, rw.sum);
	for (uint32_t i = 0; i < w->n_appends; i++)
		for (size_t r = 0; r < w->appends[i]->n; r++)
			fold_rec(k, &w->appends[i]->recs[r]);
	for (uint32_t i = 0; i < w->n_versions; i++) {
		const struct w_version *v = &w->versions[i];
		fold_version(f, v->version);
		fold_word(f, v->key | (uint64_t)v->holder << 8 | (uint64_t)v->acked << 16 |
				     (uint64_t)v->committed << 17 |
				     (uint64_t)v->began_end << 18 | (uint64_t)v->decided << 19 |
				     (uint64_t)v->floored << 20 | (uint64_t)v->moved << 21);
	}
	for (unsigned i = 0; i < W_KEYS; i++) {
		fold_version(f, w->old_upto[i]);
		fold_word(f, w->removes_open[i]);
	}
	uint64_t h = k->h, sum = 0; /* messages: a bag */
	for (uint32_t i = 0; i < w->n_msgs; i++) {
		k->h = 11;
		fold_msg(k, w, &w->msgs[i]);
		sum += k->h;
	}
	k->h = h;
	fold_word(f, sum);
}

uint64_t world_fingerprint(const struct world *w)
{
	struct walk k = { .fold = { fold_word, fold_version, fold_term, fold_epoch,
				    fold_generation },
			  .collect = true };
	fold_world(&k, w);
	k.collect = false;
	k.h = 1;
	fold_world(&k, w);
	return k.h ? k.h : 1;
}
