/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: keys that were resolved once, their answers kept, their leases renewed until the snapshot is shut.
 *
 *   STC_SNAPSHOT call ── QUERY ──► a page of keys ──► STC_GET calls read by the kept answers
 *                                   ▲    │ every third of the lease: RENEW, in messages one after the other
 *                                   │    ▼
 *                        QUERY of those that the master did not know: the same version: where it lies now;
 *                        another or none: lost, for good
 *
 * S1: a key of a snapshot has one version for ever; what is read of it is that version's bytes, or LEASE_LOST (T4).
 * S2: keys of all snapshots of a session never exceed its limit (B1); one message of a snapshot is on its way.
 * S3: a lease is a courtesy: a read is judged by the slot's generation, as every get is. So nothing is lost while
 *     a master is away, and RENEW's no is a question (a new master may not have merged the holder yet).
 *
 * Thread: the loop's; `lock` guards what stc_snap_find and _n look at from any other.
 */
#include "stc_priv.h"

#include "base/map.h"
#include "base/sum.h"

#include <pthread.h>
#include <string.h>

enum {
	SNAP_MIN_MS = 50,     /* between two rounds of renewals, however short the lease */
	SNAP_AGAIN_MS = 1000, /* after a master that did not answer, or did not know */
	SNAP_ASK_ITEMS = 256, /* of a QUERY for those that are in doubt */
	SNAP_PAGE_BYTES = 64 << 20,
};

struct snap_key {
	struct map_node node;
	struct bytes key;	 /* in its page */
	struct stc_reply *reply; /* the answer that says where it lies */
	uint32_t idx;
	bool lost;  /* its version has gone */
	bool doubt; /* the master did not know it; to be asked */
};

/* What one call added. */
struct snap_page {
	struct list node;
	struct arena mem;
	uint32_t n;
	struct snap_key *keys;
};

struct stc_snap {
	uint32_t refs; /* atomic */
	bool shut;     /* atomic */
	pthread_mutex_t lock;
	struct map keys;
	/* the loop's */
	struct list pages;
	struct list node; /* s->snaps */
	struct stc *s;	  /* NULL: none yet, or gone */
	uint32_t lease_ms, granted_ms;
	bool busy;		/* a message is on its way */
	bool releasing;		/* the round is the last one: leases go back */
	uint64_t round_ns;	/* of the next round */
	struct snap_page *page; /* the round's place; NULL: no round */
	uint32_t at;
};

/* ---- any thread ---- */

enum err stc_snap_new(struct stc_snap **out)
{
	struct stc_snap *p = calloc(1, sizeof(*p));
	if (!p)
		return ERR_NO_MEMORY;
	p->refs = 1;
	pthread_mutex_init(&p->lock, NULL);
	list_init(&p->pages);
	map_init(&p->keys, SIZE_MAX);
	*out = p;
	return ERR_NONE;
}

struct stc_snap *stc_snap_ref(struct stc_snap *p)
{
	__atomic_fetch_add(&p->refs, 1, __ATOMIC_RELAXED);
	return p;
}

static void page_free(struct snap_page *g)
{
	for (uint32_t i = 0; i < g->n; i++)
		reply_unref(g->keys[i].reply);
	list_del(&g->node);
	arena_fini(&g->mem);
	free(g);
}

void stc_snap_unref(struct stc_snap *p)
{
	if (!p || __atomic_sub_fetch(&p->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	list_for_each_safe (it, &p->pages)
		page_free(list_entry(it, struct snap_page, node));
	map_fini(&p->keys);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void stc_snap_shut(struct stc_snap *p)
{
	__atomic_store_n(&p->shut, true, __ATOMIC_RELEASE);
}

static bool is_shut(const struct stc_snap *p)
{
	return __atomic_load_n(&p->shut, __ATOMIC_ACQUIRE);
}

static bool same_key(const struct map_node *n, const void *key)
{
	const struct snap_key *k = container_of(n, struct snap_key, node);
	const struct bytes *b = key;
	return k->key.n == b->n && memcmp(k->key.p, b->p, b->n) == 0;
}

static struct snap_key *find(struct stc_snap *p, struct bytes key)
{
	struct map_node *n = map_find(&p->keys, sum64(key.p, key.n), same_key, &key);
	return n ? container_of(n, struct snap_key, node) : NULL;
}

static const struct msg_object *object_of(const struct snap_key *k)
{
	return &k->reply->query.items.p[k->idx];
}

bool stc_snap_find(struct stc_snap *p, struct bytes key, struct stc_found *out)
{
	pthread_mutex_lock(&p->lock);
	const struct snap_key *k = find(p, key);
	if (k)
		*out = (struct stc_found){ .version = object_of(k)->version,
					   .size = object_of(k)->size,
					   .lost = k->lost };
	pthread_mutex_unlock(&p->lock);
	return k != NULL;
}

size_t stc_snap_n(struct stc_snap *p)
{
	pthread_mutex_lock(&p->lock);
	size_t n = p->keys.n;
	pthread_mutex_unlock(&p->lock);
	return n;
}

/* ---- messages for itself ---- */

static struct snap_key *key_of(const struct stc_msg *m, uint32_t i)
{
	return &m->page->keys[m->attempts[i]];
}

static void say(struct stc_snap *p, struct stc_msg *m, uint32_t method)
{
	m->snap = stc_snap_ref(p);
	p->busy = true;
	if (!msg_background(m, method))
		p->busy = false;
}

/* Leases of keys of a page, from *at on: as many as a message takes. */
static struct stc_msg *lease_msg(struct stc *s, struct snap_page *g, uint32_t *at,
				 uint32_t lease_ms)
{
	struct msg_lease *v = malloc(STC_ITEMS_MAX * sizeof(*v));
	struct stc_msg *m = v ? msg_new(s, Q_RELEASE, 0, STC_ITEMS_MAX) : NULL;
	size_t bytes = 0;
	uint32_t n = 0;
	if (!m) {
		free(v);
		return NULL;
	}
	for (; *at < g->n && n < STC_ITEMS_MAX && bytes < STC_MSG_BYTES; ++*at) {
		const struct snap_key *k = &g->keys[*at];
		if (k->lost)
			continue;
		m->attempts[n] = *at;
		v[n++] = (struct msg_lease){ .key = k->key, .version = object_of(k)->version };
		bytes += k->key.n + 16;
	}
	m->n = n;
	m->page = g;
	enc_leases_req(&m->body,
		       &(struct msg_leases_req){ .items = { v, n }, .lease_ms = lease_ms });
	free(v);
	return m;
}

/* Those of the page that the master did not know; NULL: none. */
static struct stc_msg *doubt_msg(struct stc *s, struct snap_page *g, uint32_t lease_ms)
{
	struct bytes keys[SNAP_ASK_ITEMS];
	struct stc_msg *m = NULL;
	uint32_t n = 0;
	for (uint32_t i = 0; i < g->n && n < SNAP_ASK_ITEMS; i++) {
		struct snap_key *k = &g->keys[i];
		if (!k->doubt)
			continue;
		if (!m)
			m = msg_new(s, Q_QUERY, 0, SNAP_ASK_ITEMS);
		if (!m)
			return NULL;
		k->doubt = false; /* asked; an answer that is none leaves it as it is */
		m->attempts[n] = i;
		keys[n++] = k->key;
	}
	if (!m)
		return NULL;
	m->n = n;
	m->page = g;
	enc_keys_req(&m->body, &(struct msg_keys_req){ .keys = { keys, n },
						       .lease_ms = lease_ms,
						       .host = BYTES_STR(s->host) });
	return m;
}

/* ---- rounds ---- */

static void round_in(struct stc_snap *p, uint64_t ms)
{
	p->page = NULL;
	p->round_ns = clock_after_ms(loop_now_ns(p->s->o.loop), ms);
}

static uint64_t every_ms(const struct stc_snap *p)
{
	return MAX_OF(p->granted_ms / 3, (uint32_t)SNAP_MIN_MS);
}

static void leave(struct stc_snap *p)
{
	list_del(&p->node);
	p->s->n_snap_keys -= p->keys.n;
	p->s = NULL;
	p->page = NULL;
	stc_snap_unref(p);
}

/* The next message of a page. False: nothing of it is left. */
static bool send_next(struct stc_snap *p)
{
	struct stc *s = p->s;
	struct stc_msg *m = p->releasing ? NULL : doubt_msg(s, p->page, p->lease_ms);
	if (m) {
		say(p, m, METHOD_QUERY);
		return true;
	}
	if (p->at == p->page->n)
		return false;
	m = lease_msg(s, p->page, &p->at, p->lease_ms);
	if (m)
		say(p, m, p->releasing ? METHOD_RELEASE : METHOD_RENEW);
	return true;
}

/* The round goes on with its next message, or ends: also when one could not be sent. */
static void go_on(struct stc_snap *p)
{
	while (p->page && !send_next(p)) {
		struct list *next = p->page->node.next;
		p->at = 0;
		p->page = next == &p->pages ? NULL : list_entry(next, struct snap_page, node);
	}
	if (p->busy)
		return;
	if (p->releasing)
		leave(p); /* what was not told ends by its time */
	else if (p->page)
		round_in(p, SNAP_AGAIN_MS);
}

static void begin_round(struct stc_snap *p)
{
	round_in(p, every_ms(p));
	p->page = list_entry(p->pages.next, struct snap_page, node);
	p->at = 0;
	go_on(p);
}

static void tick(struct stc_snap *p, uint64_t now)
{
	if (p->busy)
		return;
	p->releasing = is_shut(p);
	if (p->releasing || (!p->page && now >= p->round_ns))
		begin_round(p);
}

uint64_t snap_tick(struct stc *s)
{
	uint64_t now = loop_now_ns(s->o.loop), ms = STC_TICK_MS;
	list_for_each_safe (it, &s->snaps) {
		struct stc_snap *p = list_entry(it, struct stc_snap, node);
		ms = MIN_OF(ms, every_ms(p));
		tick(p, now);
	}
	return ms;
}

void snap_close_all(struct stc *s)
{
	list_for_each_safe (it, &s->snaps) {
		struct stc_snap *p = list_entry(it, struct stc_snap, node);
		stc_snap_shut(p);
		leave(p);
	}
}

/* ---- answers ---- */

/* A newer answer for a key, if it is of the same version. False: that version has gone. */
static bool renew(struct stc_snap *p, struct snap_key *k, struct stc_reply *r, uint32_t idx)
{
	const struct msg_object *o = &r->query.items.p[idx];
	pthread_mutex_lock(&p->lock);
	if (o->version == object_of(k)->version) {
		struct stc_reply *old = k->reply;
		k->reply = reply_ref(r);
		k->idx = idx;
		reply_unref(old);
	} else {
		k->lost = true;
	}
	bool lives = !k->lost;
	pthread_mutex_unlock(&p->lock);
	return lives;
}

static void lose(struct stc_snap *p, struct snap_key *k)
{
	pthread_mutex_lock(&p->lock);
	k->lost = true;
	pthread_mutex_unlock(&p->lock);
}

static void take_renewed(struct stc_msg *m, const struct stc_reply *r)
{
	for (uint32_t i = 0; i < m->n; i++)
		if (r->results.items.p[i].status == ERR_LEASE_LOST)
			key_of(m, i)->doubt = true;
}

static void take_asked(struct stc_snap *p, struct stc_msg *m, struct stc_reply *r)
{
	for (uint32_t i = 0; i < m->n; i++) {
		enum err e = (enum err)r->query.items.p[i].status;
		if (e == ERR_NONE)
			(void)renew(p, key_of(m, i), r, i);
		else if (e == ERR_NOT_FOUND)
			lose(p, key_of(m, i));
	}
}

void snap_answered(struct stc_msg *m, struct stc_reply *r)
{
	struct stc_snap *p = m->snap;
	p->busy = false;
	if (r && m->q == Q_QUERY)
		take_asked(p, m, r);
	else if (r)
		take_renewed(m, r);
	if (!p->s || (is_shut(p) && !p->releasing))
		return; /* the next tick has leases go back */
	if (r)
		go_on(p);
	else if (p->releasing)
		leave(p);
	else
		round_in(p, MIN_OF(every_ms(p), (uint64_t)SNAP_AGAIN_MS));
}

/* ---- calls ---- */

enum err snap_room(struct stc *s, const struct stc_call *c)
{
	if (c->kind != STC_SNAPSHOT)
		return ERR_NONE;
	if (s->n_snap_keys + c->n > s->o.snap_keys_max)
		return ERR_BUSY;
	s->n_snap_keys += c->n;
	return ERR_NONE;
}

static struct snap_page *page_new(uint32_t n)
{
	struct snap_page *g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	list_init(&g->node);
	g->mem = ARENA_INIT(SNAP_PAGE_BYTES);
	g->keys = arena_alloc(&g->mem, n * sizeof(*g->keys));
	if (g->keys)
		return g;
	arena_fini(&g->mem);
	free(g);
	return NULL;
}

/* A key of the page, from what a flow was told. A key that the snapshot has already stays as it is. */
static enum err page_add(struct stc_snap *p, struct snap_page *g, const struct stc_flow *f)
{
	const struct stc_item *it = f->it;
	struct snap_key *k = &g->keys[g->n];
	if (find(p, it->key))
		return ERR_NONE;
	uint8_t *key = arena_alloc(&g->mem, it->key.n);
	if (!key)
		return ERR_NO_MEMORY;
	memcpy(key, it->key.p, it->key.n);
	*k = (struct snap_key){ .key = BYTES(key, it->key.n),
				.reply = f->reply,
				.idx = f->msg_idx };
	enum err e = map_insert(&p->keys, &k->node, sum64(key, it->key.n));
	if (e != ERR_NONE)
		return e;
	reply_ref(k->reply);
	g->n++;
	return ERR_NONE;
}

static void page_undo(struct stc_snap *p, struct snap_page *g)
{
	for (uint32_t i = 0; i < g->n; i++)
		map_remove(&p->keys, &g->keys[i].node);
	page_free(g);
}

/* All of the call's keys that were found, or none. */
static enum err take_all(struct stc_work *w, struct snap_page **out)
{
	struct stc_snap *p = w->c->snap;
	struct snap_page *g = page_new(w->c->n);
	enum err e = g ? ERR_NONE : ERR_NO_MEMORY;
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < w->c->n && e == ERR_NONE; i++)
		if (w->c->items[i].err == ERR_NONE)
			e = page_add(p, g, &w->flows[i]);
	if (g && e != ERR_NONE)
		page_undo(p, g);
	pthread_mutex_unlock(&p->lock);
	if (e == ERR_NONE)
		*out = g;
	return e;
}

static bool all_found(const struct stc_call *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		enum err e = c->items[i].err;
		if (e != ERR_NONE && !(c->missing_ok && e == ERR_NOT_FOUND))
			return false;
	}
	return true;
}

/* Those that were found fail with the others; their leases end by their time. */
static void fail_all(struct stc_call *c, enum err e)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct stc_item *it = &c->items[i];
		if (it->err != ERR_NONE)
			continue;
		it->err = e;
		it->step = "snapshot";
		it->text = err_text(e);
	}
}

static void join(struct stc *s, struct stc_snap *p, struct snap_page *g, uint32_t lease_ms)
{
	uint64_t now = loop_now_ns(s->o.loop);
	uint32_t granted = UINT32_MAX;
	for (uint32_t i = 0; i < g->n; i++)
		granted = MIN_OF(granted, object_of(&g->keys[i])->lease_ms);
	if (list_empty(&p->pages) || granted < p->granted_ms)
		p->granted_ms = granted;
	p->lease_ms = lease_ms;
	list_push_back(&p->pages, &g->node);
	if (!p->s) {
		p->s = s;
		list_push_back(&s->snaps, &p->node);
		stc_snap_ref(p);
		p->round_ns = 0;
	}
	uint64_t next = clock_after_ms(now, every_ms(p));
	if (p->round_ns == 0 || next < p->round_ns)
		p->round_ns = next;
	tick_in(s, MIN_OF(every_ms(p), (uint64_t)STC_TICK_MS));
}

void snap_take(struct stc_work *w)
{
	struct stc_call *c = w->c;
	struct stc *s = w->s;
	struct snap_page *g = NULL;
	s->n_snap_keys -= c->n;
	if (!all_found(c))
		return;
	enum err e = s->closing || is_shut(c->snap) ? ERR_CLOSED : take_all(w, &g);
	if (e != ERR_NONE) {
		fail_all(c, e);
		return;
	}
	if (g->n == 0) { /* none that it had not already */
		page_free(g);
		return;
	}
	s->n_snap_keys += g->n;
	join(s, c->snap, g, c->get.lease_ms);
}

bool snap_use(struct stc_flow *f)
{
	struct stc_snap *p = f->w->c->snap;
	struct snap_key *k = find(p, f->it->key); /* the loop alone changes it */
	if (!k)
		flow_note(f, ERR_NOT_FOUND, 0, "", "snapshot",
			  "the key is not in this snapshot; pml_snapshot_add");
	else if (k->lost)
		flow_note(f, ERR_LEASE_LOST, 0, "master", "snapshot",
			  "the version of the snapshot was removed, replaced or evicted");
	if (!k || k->lost)
		return false;
	f->reply = reply_ref(k->reply);
	f->msg_idx = k->idx;
	return true;
}

void snap_asked(struct stc_flow *f)
{
	struct stc_snap *p = f->w->c->snap;
	struct snap_key *k = find(p, f->it->key);
	if (!k)
		return;
	if (f->err == ERR_NONE && renew(p, k, f->reply, f->msg_idx))
		return;
	if (f->err == ERR_NOT_FOUND)
		lose(p, k);
	if (k->lost)
		flow_note(f, ERR_LEASE_LOST, 0, "master", "snapshot",
			  "the version of the snapshot was removed, replaced or evicted");
}
