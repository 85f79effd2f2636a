/* SPDX-License-Identifier: Apache-2.0 */
/* What is read for people and metrics: list, explain, counts; the recount for tests. */
#include "mind_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

/* ---- list ---- */

enum { PAGE = 4096 };

struct page {
	struct mind *m;
	uint16_t tenant;
	struct bytes prefix;
	struct mind_cursor from;
	struct obj *objs[PAGE];
	size_t n, last; /* last: in order, of a page that is over */
	bool over; /* there are more in the bucket, later in order: made to have one hash */
};

static uint64_t order_of(const struct obj *o)
{
	return bits_reversed(o->node.hash);
}

static int by_order(const struct obj *a, const struct obj *b)
{
	uint64_t x = order_of(a), y = order_of(b);
	if (x == y && a != b) {
		x = obj_key_tie(obj_key(a));
		y = obj_key_tie(obj_key(b));
	}
	return (x > y) - (x < y);
}

static int by_order_at(const void *a, const void *b)
{
	return by_order(*(struct obj *const *)a, *(struct obj *const *)b);
}

/* Of more than fit, the first ones stay. */
static void page_squeeze(struct page *p, struct obj *o)
{
	if (p->over && by_order(o, p->objs[p->last]) > 0)
		return;
	if (p->over)
		p->objs[p->last] = o;
	for (size_t i = p->last = 0; i < PAGE; i++)
		if (by_order(p->objs[i], p->objs[p->last]) > 0)
			p->last = i;
	if (p->over)
		return;
	p->over = true;
	page_squeeze(p, o);
}

/* Its holder may be adopted again just now: it is there. */
static bool shown(struct mind *m, const struct obj *o)
{
	const struct copy *c = obj_served(m, o);
	struct why why = { 0 };
	enum err e = c ? group_readable(m, c, &why) : ERR_NOT_FOUND;
	return e == ERR_NONE || e == ERR_TEMPORARILY_AWAY;
}

static void page_one(struct map_node *n, void *arg)
{
	struct page *p = arg;
	struct obj *o = container_of(n, struct obj, node);
	if (o->tenant != p->tenant || o->key_n < p->prefix.n ||
	    (p->prefix.n && memcmp(o->key, p->prefix.p, p->prefix.n) != 0) || !shown(p->m, o))
		return;
	if (p->from.tie && order_of(o) == p->from.hash && obj_key_tie(obj_key(o)) < p->from.tie)
		return;
	if (p->n < PAGE)
		p->objs[p->n++] = o;
	else
		page_squeeze(p, o);
}

/* Behind the i-th. The longer form only where the next one has its hash. false: that was the last. */
static bool cursor_after(const struct page *p, size_t i, struct mind_cursor *out)
{
	const struct obj *o = p->objs[i];
	bool run = i + 1 < p->n ? order_of(p->objs[i + 1]) == order_of(o) : p->over;
	*out = (struct mind_cursor){ order_of(o), run ? obj_key_tie(obj_key(o)) + 1 : 0 };
	if (out->tie)
		return true;
	return ++out->hash != 0;
}

enum shown { SHOWN_ALL, SHOWN_SOME, SHOWN_LAST };

/* SHOWN_SOME: fn wants no more; *cursor is where to go on. */
static enum shown page_show(struct mind *m, struct page *p, struct mind_cursor *cursor,
			    bool (*fn)(void *arg, const struct mind_object *o), void *arg)
{
	qsort(p->objs, p->n, sizeof(struct obj *), by_order_at);
	for (size_t i = 0; i < p->n; i++) {
		struct mind_object o;
		obj_show(m, p->objs[i], obj_served(m, p->objs[i]), &o);
		if (!fn(arg, &o))
			return cursor_after(p, i, cursor) ? SHOWN_SOME : SHOWN_LAST;
	}
	return SHOWN_ALL;
}

bool mind_list(struct mind *m, struct bytes tenant, struct bytes prefix,
	       struct mind_cursor *cursor, bool (*fn)(void *arg, const struct mind_object *o),
	       void *arg)
{
	struct page p = { .m = m, .tenant = tenant_of(m, tenant, false), .prefix = prefix };
	if (p.tenant == TENANTS_MAX)
		return false;
	for (size_t seen = 0; seen < 8 * PAGE; seen += 256) { /* about 2 ms (I6) */
		uint64_t next = cursor->hash;
		p.from = *cursor;
		p.n = 0;
		p.over = false;
		bool more = map_scan(&m->objs, &next, 256, page_one, &p);
		enum shown s = page_show(m, &p, cursor, fn, arg);
		if (s != SHOWN_ALL)
			return s == SHOWN_SOME;
		if (p.over) {
			more = cursor_after(&p, p.n - 1, cursor);
		} else {
			*cursor = (struct mind_cursor){ next, 0 };
		}
		if (!more)
			return false;
	}
	return true;
}

/* ---- explain ---- */

struct facts {
	void (*fn)(void *arg, const char *name, const char *value);
	void *arg;
};

static void PRINTF_LIKE(3, 4)
	fact(const struct facts *f, const char *name, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	/* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start stands above */
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	f->fn(f->arg, name, text);
}

static const char *const state_names[] = { "new", "committed", "retiring", "retired",
					   "freeing" };
static const char *const reason_names[] = { "none",  "removed", "superseded", "evicted",
					    "moved", "barred",	"overlap",    "corrupt" };

static void explain_copy(const struct mind *m, const struct copy *c, const struct facts *f)
{
	const struct holder *h = m->holders[c->holder];
	fact(f, "replica",
	     "holder %s slot %u generation %" PRIu64 " version %" PRIx64 " %s%s%s%s%s%s", h->id,
	     c->slot, c->generation, c->version, state_names[c->state],
	     c->flags & COPY_SERVED ? " served" : "",
	     c->flags & COPY_MARKED ? " published" : "",
	     c->state >= COPY_RETIRING ? " because " : "",
	     c->state >= COPY_RETIRING && c->reason < ARRAY_LEN(reason_names)
		     ? reason_names[c->reason]
		     : "",
	     h->suspect	    ? " (suspect)"
	     : holder_in(h) ? ""
			    : " (away)");
	if (c->opts && (c->flags & COPY_SERVED))
		fact(f, "options", "hard_pin %d soft_pin_ms %" PRIu64 " format \"%.*s\"",
		     c->opts->m.hard_pin, c->opts->m.soft_pin_ms, (int)c->opts->m.format.n,
		     (const char *)c->opts->m.format.p);
}

static void explain_work(const struct mind *m, const struct work *w, const struct facts *f)
{
	const struct attempt *a = w->attempt;
	if (a)
		fact(f, "attempt",
		     "version %" PRIx64 " at %s, %s, no progress for %" PRIu64 " ms",
		     a->version, m->holders[a->holder]->id,
		     a->fencing ? "being fenced" : "open", (m->now - a->progress_ns) / 1000000);
	for (const struct pull *p = w->pulls; p; p = p->next) {
		static const char *const states[] = { "planned", "said", "being fetched",
						      "being cancelled" };
		fact(f, "copy", "version %" PRIx64 " to %s, %s for %" PRIu64 " ms", p->version,
		     m->holders[p->holder]->id, states[p->state],
		     p->said_ns ? (m->now - p->said_ns) / 1000000 : 0);
	}
	if (!list_empty(&w->rems))
		fact(f, "remove", "under way");
	if (!list_empty(&w->pubs))
		fact(f, "publish", "under way");
	if (w->asking)
		fact(f, "append", "%u under way", w->asking);
}

static void explain_group(const struct group *g, const struct facts *f)
{
	static const char *const phases[] = { "", ", being evicted", ", evicted" };
	fact(f, "group", "\"%.*s\", %u of %u members%s%s", MIN_OF((int)g->id_n, 100),
	     (const char *)g->id, g->n_ready, g->size, g->size ? "" : " (open)",
	     phases[g->phase]);
}

static void explain_obj(const struct mind *m, const struct obj *o, const struct facts *f)
{
	const struct copy *s = obj_served(m, o);
	if (s)
		fact(f, "version", "%" PRIx64 ", %" PRIu64 " bytes", s->version, s->size);
	for (const struct copy *c = o->copies; c; c = c->next)
		explain_copy(m, c, f);
	const struct copy *want = s && s->opts && s->opts->m.replica_num > 1 ? s : NULL;
	if (want)
		fact(f, "replicas", "%u of %u%s", copies_live(m, o, s->version),
		     want->opts->m.replica_num,
		     copies_live(m, o, s->version) < want->opts->m.replica_num
			     ? ": more are made as soon as there is room"
			     : "");
	if (obj_leased(m, o))
		fact(f, "lease", "%u readers, %" PRIu64 " ms left", o->n_leases,
		     (lease_end_ns(m, o) - m->now) / 1000000);
	if (s)
		fact(f, "idle", "%" PRIu64 " ms", (m->now - used_at_ns(m, o)) / 1000000);
	if (group_of(o))
		explain_group(group_of(o), f);
	if (o->work)
		explain_work(m, o->work, f);
}

void mind_explain(struct mind *m, struct bytes tenant, struct bytes key,
		  void (*fn)(void *arg, const char *name, const char *value), void *arg)
{
	const struct facts f = { fn, arg };
	struct why why = { 0 };
	if (key_check(key, &why) != ERR_NONE)
		return;
	struct obj *o = obj_find(m, tenant_of(m, tenant, false), key);
	fact(&f, "hash", "%016" PRIx64, obj_key_hash(tenant, key));
	fact(&f, "shard", "0");
	fact(&f, "term", "%" PRIu64, m->term);
	if (o)
		explain_obj(m, o, &f);
	else
		fact(&f, "version", "none%s",
		     m->n_unmerged ? " yet: not every holder is merged" : "");
	for (uint32_t i = 0; i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		uint64_t bar = h->row ? meta_barred(h->row, 0, tenant, key) : 0;
		if (bar)
			fact(&f, "tombstone", "at %s: versions up to %" PRIx64 " are dead",
			     h->id, bar);
		if (!holder_in(h))
			fact(&f, "away", "%s", h->id);
	}
}

/* ---- counts ---- */

void mind_counts(const struct mind *m, struct mind_counts *out)
{
	*out = (struct mind_counts){ .objects = m->n_served,
				     .copies = m->n_copies,
				     .attempts = m->by_version.n,
				     .waiting = m->n_waiting,
				     .index_bytes = m->bytes + 8 * m->objs.n,
				     .bytes_total = m->total,
				     .bytes_used = m->used,
				     .quarantine_bytes = m->quarantine,
				     .puts = m->n.puts,
				     .publishes = m->n.publishes,
				     .removes = m->n.removes,
				     .evictions = m->n.evictions,
				     .hits = m->n.hits,
				     .misses = m->n.misses,
				     .rejected = m->n.rejected,
				     .malformed = m->n.malformed,
				     .copying = m->pulls.n,
				     .under_replicated = m->lacks.n,
				     .copies_made = m->n.copies_made,
				     .copies_failed = m->n.copies_failed,
				     .tasks = m->n_running,
				     .failed = m->failed,
				     .recovering = m->n_unmerged > 0 };
	for (uint32_t i = 0; i < m->n_holders; i++)
		list_for_each (it, &m->holders[i]->quars)
			out->stuck += m->now - list_entry(it, struct quar, node)->since_ns >=
				      m->l.release_ms * 1000000ull;
	list_for_each (it, &m->apps)
		out->tombs_owed += list_entry(it, struct app, node)->pub.n;
}

/* ---- the recount ---- */

struct tally {
	uint64_t later;
	uint64_t copies, served, grouped, pulls, lacks;
	struct tenant_sum {
		uint64_t used, pinned, served;
	} * of;
};

static uint64_t rounded(const struct range *r, size_t n)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += alloc_round(r[i].bytes);
	return sum;
}

static void check_copy(const struct mind *m, const struct obj *o, const struct copy *c)
{
	const struct holder *h = m->holders[c->holder];
	assert(c->obj == o && slot_at(h, c->slot) == c);
	assert(c->state >= COPY_COMMITTED && c->state <= COPY_FREEING);
	assert(!(c->flags & COPY_SERVED) || c->state <= COPY_RETIRED);
	assert(!!(c->flags & COPY_BARRED) <= (c->state == COPY_RETIRING));
	assert(holder_in(h) || h->dropping);
}

static void check_work(const struct mind *m, const struct obj *o)
{
	const struct work *w = o->work;
	if (!w)
		return;
	assert(w->obj == o && list_linked(&w->node));
	if (w->attempt)
		assert(w->attempt->obj == o &&
		       attempt_of(m, w->attempt->version) == w->attempt);
}

/* C1, and what waits for its attempt alone is only planned. */
static void check_pulls(const struct mind *m, const struct obj *o, struct tally *t,
			struct tenant_sum *sum)
{
	for (const struct pull *p = o->work ? o->work->pulls : NULL; p; p = p->next) {
		t->pulls++;
		sum->used += rounded(p->ranges, p->n_ranges);
		sum->pinned +=
			p->opts && p->opts->m.hard_pin ? rounded(p->ranges, p->n_ranges) : 0;
		assert(p->obj == o && pull_of(m, p->version, p->holder) == p);
		assert(holder_in(m->holders[p->holder]));
		for (const struct copy *c = o->copies; c; c = c->next)
			assert(c->holder != p->holder || c->version != p->version);
	}
	uint64_t lacks = 0;
	for (const struct copy *c = o->copies; c; c = c->next)
		lacks += c->opts && c->opts->lack;
	assert(lacks <= 1);
	t->lacks += lacks;
}

static void check_obj(const struct mind *m, const struct obj *o, struct tally *t)
{
	uint64_t top = 0, pending = 0;
	bool served = false;
	assert(o->copies || o->work);
	struct tenant_sum *sum = &t->of[o->tenant];
	for (const struct copy *c = o->copies; c; c = c->next) {
		check_copy(m, o, c);
		t->copies++;
		t->later += c->flags & COPY_LATER ? space_of(c) : 0;
		sum->used += rounded(c->ranges, c->n_ranges);
		if (c->opts && c->opts->m.hard_pin)
			sum->pinned += rounded(c->ranges, c->n_ranges);
		served |= c->flags & COPY_SERVED;
		if (!holder_in(m->holders[c->holder]))
			continue;
		if (c->flags & COPY_SERVED)
			top = MAX_OF(top, c->version);
		else if (c->state == COPY_COMMITTED)
			pending = MAX_OF(pending, c->version);
	}
	/* I1: an older version is not served beside a newer one, and what waits for T2 is remembered */
	for (const struct copy *c = o->copies; c; c = c->next)
		assert(!(c->flags & COPY_SERVED) || c->version == top ||
		       !holder_in(m->holders[c->holder]));
	assert(!pending || o->work);
	assert((served && !group_of(o)) == list_linked(&o->lru));
	t->served += served;
	t->grouped += served && group_of(o);
	sum->served += served;
	const struct attempt *a = o->work ? o->work->attempt : NULL;
	sum->used += a ? rounded(a->ranges, a->n_ranges) : 0;
	sum->pinned +=
		a && a->opts && a->opts->m.hard_pin ? rounded(a->ranges, a->n_ranges) : 0;
	check_work(m, o);
	check_pulls(m, o, t, sum);
}

static void check_holder(const struct mind *m, const struct holder *h, struct tally *t)
{
	uint64_t copies = 0, barred = 0, used = 0, quarantine = 0, alloc = 0;
	for (uint32_t i = 0; i < h->n_pages; i++)
		for (uint32_t s = 0; h->pages[i] && s < SLOT_PAGE; s++) {
			const struct copy *c = h->pages[i]->at[s];
			copies += c != NULL;
			barred += c && (c->flags & COPY_BARRED);
			used += c ? rounded(c->ranges, c->n_ranges) : 0;
		}
	uint64_t attempts = 0, pulls = 0;
	list_for_each (it, &h->attempts) {
		const struct attempt *a = list_entry(it, struct attempt, of_holder);
		used += rounded(a->ranges, a->n_ranges);
		attempts++;
	}
	list_for_each (it, &h->pulls) {
		const struct pull *p = list_entry(it, struct pull, of_holder);
		used += rounded(p->ranges, p->n_ranges);
		pulls++;
	}
	assert(pulls == h->n_pulls && attempts == h->n_attempts);
	list_for_each (it, &h->quars) {
		const struct quar *q = list_entry(it, struct quar, node);
		quarantine += q->bytes;
		if (q->tenant != TENANTS_MAX)
			t->of[q->tenant].used += q->bytes;
	}
	for (size_t i = 0; i < h->n_segs; i++) {
		alloc_check(h->segs[i].alloc);
		alloc += alloc_used(h->segs[i].alloc);
	}
	assert(copies == h->n_copies && barred == h->n_barred); /* I4 */
	assert(quarantine == h->quarantine);
	assert(alloc == h->used);
	/* I3: what is not free is a slot's, an attempt's, or a writer's */
	if (h->state == HOLDER_MERGED)
		assert(used + quarantine <= alloc && (h->n_lost || used + quarantine == alloc));
}

static uint64_t check_queue(const struct lru_queue *q)
{
	uint64_t n = 0;
	list_for_each (it, &q->l)
		n++;
	assert(n == q->n);
	return n;
}

static void check_tenants(const struct mind *m, const struct tally *t)
{
	uint64_t lru = 0, pinned = 0;
	for (uint32_t i = 0; i < m->n_tenants; i++) {
		const struct tenant *x = m->tenant[i];
		assert(x->used == t->of[i].used && x->pinned == t->of[i].pinned &&
		       x->n_served == t->of[i].served);
		pinned += x->pinned;
	}
	for (uint32_t i = 0; i < m->n_sets; i++)
		for (int w = 0; w < LRU_N; w++)
			lru += check_queue(&m->sets[i]->objs[w]);
	groups_check(m);
	assert(lru + t->grouped == m->n_served && pinned == m->pinned);
}

void mind_check(const struct mind *m)
{
	struct tally t = { .of = calloc(m->n_tenants + 1, sizeof(*t.of)) };
	uint64_t used = 0, total = 0, quarantine = 0;
	if (!t.of)
		return;
	map_for_each (n, &m->objs)
		check_obj(m, container_of(n, struct obj, node), &t);
	for (uint32_t i = 0; i < m->n_holders; i++) {
		const struct holder *h = m->holders[i];
		check_holder(m, h, &t);
		quarantine += h->quarantine;
		for (size_t s = 0; h->state == HOLDER_MERGED && s < h->n_segs; s++)
			total += alloc_bytes(h->segs[s].alloc);
		used += h->state == HOLDER_MERGED ? h->used : 0;
	}
	assert(t.later == m->later);
	assert(t.copies == m->n_copies && t.served == m->n_served); /* I4 */
	assert(t.pulls == m->pulls.n && t.lacks == m->lacks.n);
	check_tenants(m, &t);
	free(t.of);
	assert(used == m->used && total == m->total && quarantine == m->quarantine);
	assert(m->by_version.n == m->by_number.n);
}
