/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <stdio.h>
#include <string.h>

volatile int rig_calm;
volatile uint64_t rig_seed;

/* ---- what the mind says ---- */

static void on_command(void *ctx, const struct mind_cmd *c)
{
	struct rig *r = ctx;
	if (r->n_cmds == r->cap_cmds) {
		r->cap_cmds = r->cap_cmds ? 2 * r->cap_cmds : 64;
		rig_calm++;
		r->cmds = realloc(r->cmds, r->cap_cmds * sizeof(*r->cmds));
		rig_calm--;
		assert(r->cmds);
	}
	struct rig_cmd *q = &r->cmds[r->n_cmds++];
	*q = (struct rig_cmd){ .c = *c };
	if (c->n_extents)
		memcpy(q->ext, c->extents, c->n_extents * sizeof(struct extent));
	r->n_seen[c->op]++;
}

static void on_append(void *ctx, struct mind_append *a)
{
	struct rig *r = ctx;
	assert(r->n_apps < ARRAY_LEN(r->apps));
	r->apps[r->n_apps++] = a;
}

static enum err apply(struct rig *r, const struct mind_append *a)
{
	struct why why = { 0 };
	enum err first = ERR_NONE;
	rig_calm++;
	meta_state_plan(r->st);
	for (size_t i = 0; i < a->n; i++) {
		struct meta_rec rec = a->recs[i];
		assert(meta_rec_check(&rec, &why) == ERR_NONE);
		enum err e = meta_state_admit(r->st, &r->meta, &rec, &why);
		if (e == ERR_NONE)
			e = meta_state_apply(r->st, ++r->seq, &rec);
		first = first != ERR_NONE ? first : e;
		r->n_away += rec.type == META_HOLDER && rec.HOLDER.away;
	}
	rig_calm--;
	return first;
}

void rig_appends(struct rig *r)
{
	while (r->n_apps > 0) {
		struct mind_append *a = r->apps[0];
		memmove(r->apps, r->apps + 1, --r->n_apps * sizeof(r->apps[0]));
		mind_appended(r->m, a, r->append_err ? r->append_err : apply(r, a));
	}
}

/* ---- fake holders ---- */

static bool obeys(const struct fake *f, const struct mind_under *u)
{
	return u->term == f->term && u->adoption == f->adoption && u->pool_epoch == f->epoch;
}

static void still_writing(struct fake *f)
{
	f->writing[f->n_writing].version = f->hazard;
	f->writing[f->n_writing].n_ext = f->n_hazard_ext;
	memcpy(f->writing[f->n_writing++].ext, f->hazard_ext, sizeof(f->hazard_ext));
}

static void adopt(struct rig *r, struct fake *f, const struct rig_cmd *q)
{
	const struct mind_under *u = &q->c.under;
	const struct mind_segment seg = { 0, f->bytes, MAX_OF(f->bytes, f->whole), f->n_slots };
	if (u->term < f->term || (u->term == f->term && u->adoption < f->adoption)) {
		mind_refused(r->m, q->c.holder, u, ERR_STALE_TERM);
		return;
	}
	if (u->term != f->term || u->adoption != f->adoption) {
		f->term = u->term;
		f->adoption = u->adoption;
		f->epoch++;
		f->n_writing = 0;
		f->copy_top = 0;
		f->n_copying = f->n_revoked = 0;
		if (f->hazard)
			still_writing(f);
	}
	const struct mind_under now = { 0, f->term, f->adoption, f->epoch };
	mind_adopted(r->m, q->c.holder, &now, &seg, 1);
}

static struct msg_entry entry_of(const struct fake_slot *s, uint32_t slot,
				 struct msg_extent *ext)
{
	for (size_t i = 0; i < s->n_ext; i++)
		ext[i] = (struct msg_extent){ s->ext[i].segment, s->ext[i].offset,
					      s->ext[i].bytes };
	return (struct msg_entry){ .slot = slot,
				   .generation = s->generation,
				   .state = (uint8_t)s->state,
				   .reason = (uint8_t)s->reason,
				   .evict_id = s->evict_id,
				   .published = s->published,
				   .tenant = BYTES_STR(s->tenant),
				   .key = BYTES_STR(s->key),
				   .version = s->version,
				   .size = s->size,
				   .sum = s->sum,
				   .extents = { ext, s->n_ext },
				   .opts = s->has_opts ? &s->opts : NULL };
}

static void inventory(struct rig *r, struct fake *f, const struct rig_cmd *q)
{
	rig_calm++;
	struct msg_entry *e = calloc(FAKE_SLOTS, sizeof(*e));
	struct msg_extent *x = calloc(FAKE_SLOTS * 2, sizeof(*x));
	rig_calm--;
	struct msg_writing w[16];
	struct msg_extent wx[16][OBJ_EXTENTS_MAX];
	const struct msg_under u = { 0, f->term, f->adoption, f->epoch };
	struct msg_inventory_rep rep = { .under = (struct msg_under *)&u };
	size_t n = 0, nx = 0, from = q->c.cursor, to = f->piece ? from + f->piece : FAKE_SLOTS;
	for (size_t i = from; i < to && i < FAKE_SLOTS; i++)
		if (f->slots[i].state && nx + f->slots[i].n_ext <= 2 * FAKE_SLOTS) {
			e[n++] = entry_of(&f->slots[i], (uint32_t)i, x + nx);
			nx += f->slots[i].n_ext;
		}
	for (size_t i = 0; i < f->n_writing; i++) {
		for (size_t k = 0; k < f->writing[i].n_ext; k++)
			wx[i][k] = (struct msg_extent){ f->writing[i].ext[k].segment,
							f->writing[i].ext[k].offset,
							f->writing[i].ext[k].bytes };
		w[i] = (struct msg_writing){ f->writing[i].version,
					     { wx[i], f->writing[i].n_ext } };
	}
	rep.entries.p = e;
	rep.entries.n = n;
	rep.cursor = to < FAKE_SLOTS ? to : 0;
	if (rep.cursor == 0) {
		rep.writing.p = w;
		rep.writing.n = f->n_writing;
	}
	if (obeys(f, &q->c.under))
		mind_inventory(r->m, q->c.holder, &rep);
	else
		mind_refused(r->m, q->c.holder, &q->c.under, ERR_STALE_EPOCH);
	free(e);
	free(x);
}

static bool is_closed(const struct fake *f, uint64_t version)
{
	for (size_t i = 0; i < f->n_closed; i++)
		if (f->closed[i] == version)
			return true;
	return false;
}

static void close_version(struct fake *f, uint64_t version)
{
	if (!is_closed(f, version) && f->n_closed < FAKE_CLOSED)
		f->closed[f->n_closed++] = version;
}

static void fence(struct rig *r, struct fake *f, const struct rig_cmd *q)
{
	struct msg_fence_res res = { .state = 2 };
	close_version(f, q->c.version);
	rig_copy_fence(f, q->c.version, q->c.generation);
	for (uint32_t i = 0; i < FAKE_SLOTS; i++)
		if (f->slots[i].state && f->slots[i].version == q->c.version)
			res = (struct msg_fence_res){ 1, i, f->slots[i].generation,
						      f->slots[i].sum };
	if (res.state == 2 && f->hazard == q->c.version) {
		res.state = 3;
		f->n_writing = 0;
		still_writing(f);
	}
	mind_fenced(r->m, q->c.holder, &q->c.under, q->c.version, &res);
}

static void slot_cmd(struct rig *r, struct fake *f, const struct rig_cmd *q)
{
	struct fake_slot *s = &f->slots[q->c.slot];
	bool same = s->state && s->generation == q->c.generation;
	if (q->c.op == MIND_RETIRE) {
		same = same && s->version == q->c.version;
		if (same && s->state == 1) {
			s->state = 2;
			s->reason = q->c.reason;
			s->evict_id = q->c.evict_id;
		}
		mind_retired(r->m, q->c.holder, &q->c.under, q->c.slot, q->c.generation,
			     q->c.version, same ? ERR_NONE : ERR_NOT_FOUND);
	} else if (q->c.op == MIND_FREE) {
		same = same && s->state == 2;
		if (same)
			*s = (struct fake_slot){ .generation = s->generation + 1 };
		mind_freed(r->m, q->c.holder, &q->c.under, q->c.slot, q->c.generation,
			   same ? ERR_NONE : ERR_NOT_FOUND);
	} else if (same && s->version == q->c.version && s->state == 1) {
		s->published = true;
	}
}

void rig_deliver(struct rig *r, size_t i, bool keep)
{
	assert(i < r->n_cmds);
	struct rig_cmd q = r->cmds[i];
	if (!keep)
		memmove(r->cmds + i, r->cmds + i + 1, (--r->n_cmds - i) * sizeof(q));
	struct fake *f = &r->h[rig_index(r, q.c.holder)];
	if (!f->up)
		return;
	if (q.c.op == MIND_ADOPT)
		adopt(r, f, &q);
	else if (q.c.op == MIND_INVENTORY)
		inventory(r, f, &q);
	else if (!obeys(f, &q.c.under))
		mind_refused(r->m, q.c.holder, &q.c.under,
			     q.c.under.term != f->term ? ERR_STALE_TERM : ERR_STALE_EPOCH);
	else if (q.c.op == MIND_FENCE)
		fence(r, f, &q);
	else if (q.c.op == MIND_COPY)
		rig_copy(r, rig_index(r, q.c.holder), &q.c);
	else
		slot_cmd(r, f, &q);
}

void rig_lose(struct rig *r, int h, int op)
{
	size_t n = 0;
	for (size_t i = 0; i < r->n_cmds; i++)
		if ((h >= 0 && rig_index(r, r->cmds[i].c.holder) != h) ||
		    (op >= 0 && (int)r->cmds[i].c.op != op))
			r->cmds[n++] = r->cmds[i];
	r->n_cmds = n;
}

/* ---- life ---- */

static void begin(struct rig *r)
{
	rig_calm++;
	const struct mind_out out = { r, on_command, on_append };
	const struct meta_rec term = { .type = META_TERM, .TERM = { meta_term(r->st) + 1 } };
	assert(meta_state_apply(r->st, ++r->seq, &term) == ERR_NONE);
	assert(mind_new(&r->l, &out, r->st, r->now, &r->m) == ERR_NONE);
	mind_clock(r->m, r->now);
	rig_calm--;
}

struct rig *rig_bare(const struct mind_limits *l)
{
	struct rig *r = calloc(1, sizeof(*r));
	assert(r);
	if (l)
		r->l = *l;
	r->now = 1000000000;
	memcpy(r->client, "client-instance!", 16);
	meta_limits_default(&r->meta);
	assert(meta_state_new(7, &r->st) == ERR_NONE);
	for (int i = 0; i < FAKES_MAX; i++) {
		snprintf(r->h[i].id, sizeof(r->h[i].id), "h%d", i);
		r->h[i].up = true;
		r->h[i].pool = (uint8_t)(i + 1);
		r->h[i].instance = 1;
		r->h[i].epoch = 1;
		r->h[i].bytes = 1 << 20;
	}
	begin(r);
	return r;
}

struct rig *rig_new(void)
{
	struct rig *r = rig_bare(NULL);
	rig_register(r, 0);
	rig_register(r, 1);
	rig_run(r);
	return r;
}

void rig_free(struct rig *r)
{
	mind_check(r->m);
	mind_free(r->m);
	meta_state_check(r->st);
	meta_state_free(r->st);
	free(r->cmds);
	free(r);
}

void rig_restart(struct rig *r)
{
	mind_free(r->m);
	r->n_cmds = r->n_apps = 0;
	begin(r);
}

struct reg {
	struct mind_register r;
};

static void on_reg(struct mind_call *c)
{
	free(container_of(c, struct reg, r.call));
}

void rig_register(struct rig *r, int h)
{
	struct fake *f = &r->h[h];
	const char *host = f->host ? f->host : "box";
	char text[32];
	snprintf(text, sizeof(text), "tcp://h%d", h);
	const struct bytes addr = BYTES_STR(text);
	const struct mind_segment seg = { 0, f->bytes, MAX_OF(f->bytes, f->whole), f->n_slots };
	struct mind_news n = { .id = BYTES_STR(f->id),
			       .host = BYTES_STR(host),
			       .kind = 1,
			       .instance = { f->instance },
			       .pool = { f->pool },
			       .addrs = &addr,
			       .n_addrs = 1,
			       .pool_epoch = f->epoch,
			       .segments = &seg,
			       .n_segments = 1 };
	rig_calm++;
	struct reg *g = calloc(1, sizeof(*g));
	rig_calm--;
	assert(g);
	g->r.call.done = on_reg;
	mind_register(r->m, &n, &g->r);
}

void rig_run(struct rig *r)
{
	for (int i = 0; i < 100000; i++) {
		bool more = mind_work(r->m);
		if (!more && r->n_cmds == 0 && r->n_apps == 0)
			break;
		rig_appends(r);
		if (r->n_cmds > 0)
			rig_deliver(r, 0, false);
		assert(i < 99999);
	}
	mind_check(r->m);
}

void rig_pass(struct rig *r, uint64_t ms)
{
	r->now += ms * 1000000;
	mind_clock(r->m, r->now);
}

void rig_away(struct rig *r, int h)
{
	mind_away(r->m, BYTES_STR(r->h[h].id));
	rig_run(r);
}

void rig_reborn(struct rig *r, int h)
{
	r->h[h].instance++;
	r->h[h].epoch++;
}

int rig_index(const struct rig *r, uint32_t index)
{
	struct mind_holder x;
	assert(mind_holder(r->m, index, &x));
	return x.id[1] - '0';
}

uint32_t rig_holder(const struct rig *r, int h)
{
	int64_t i = mind_holder_index(r->m, BYTES_STR(r->h[h].id));
	assert(i >= 0);
	return (uint32_t)i;
}

struct mind_under rig_under(const struct rig *r, int h)
{
	const struct fake *f = &r->h[h];
	return (struct mind_under){ 0, f->term, f->adoption, f->epoch };
}

struct mind_who rig_who(struct rig *r)
{
	const char *t = r->tenant ? r->tenant : "t";
	return (struct mind_who){ BYTES_STR(t), r->client, meta_term(r->st) };
}

/* ---- puts ---- */

static void on_started(struct mind_call *c)
{
	struct rig_put *p = container_of(c, struct rig_put, p.call);
	p->done++;
	if (c->err == ERR_NONE)
		p->h = rig_index(p->r, p->p.holder);
}

static void on_published(struct mind_call *c)
{
	container_of(c, struct rig_put, pub)->published++;
}

static struct bytes prefs[FAKES_MAX];

void rig_start(struct rig *r, struct rig_put *p, const char *key, uint64_t size, int h,
	       bool upsert)
{
	memset(p, 0, sizeof(*p));
	p->r = r;
	snprintf(p->key, sizeof(p->key), "%s", key);
	p->who = rig_who(r);
	p->it = (struct msg_put_item){ .attempt = ++r->attempt,
				       .key = BYTES_STR(key),
				       .size = size,
				       .upsert = upsert,
				       .replicas_required = r->required,
				       .opts = r->opts };
	for (int i = 0; i < FAKES_MAX; i++)
		prefs[i] = BYTES_STR(r->h[i].id);
	if (h >= 0)
		p->it.preferred = (struct bytes_list){ &prefs[h], 1 };
	p->p.call.done = on_started;
	p->pub.done = on_published;
	mind_put_start(r->m, &p->who, &p->it, &p->p);
}

static bool overlap(const struct extent *a, size_t n_a, const struct extent *b, size_t n_b)
{
	for (size_t x = 0; x < n_a; x++)
		for (size_t y = 0; y < n_b; y++)
			if (a[x].offset < b[y].offset + b[y].bytes &&
			    b[y].offset < a[x].offset + a[x].bytes)
				return true;
	return false;
}

enum err rig_commit(struct rig *r, struct rig_put *p)
{
	struct fake *f = &r->h[p->h];
	for (uint32_t i = 0; i < FAKE_SLOTS; i++)
		if (f->slots[i].state && f->slots[i].version == p->p.version) {
			p->slot = i;
			return f->slots[i].reason >= RETIRE_BARRED ? ERR_STALE_ATTEMPT
								   : ERR_NONE;
		}
	if (f->epoch != p->p.pool_epoch)
		return ERR_STALE_EPOCH;
	if (is_closed(f, p->p.version))
		return ERR_STALE_ATTEMPT;
	if (f->hazard == p->p.version)
		return ERR_BUSY;
	for (p->slot = 0; f->slots[p->slot].state; p->slot++)
		assert(p->slot + 1 < FAKE_SLOTS);
	struct fake_slot *s = &f->slots[p->slot];
	s->state = 1;
	s->version = p->p.version;
	s->size = p->it.size;
	s->sum = p->p.version * 31;
	snprintf(s->key, sizeof(s->key), "%s", p->key);
	snprintf(s->tenant, sizeof(s->tenant), "%.*s", (int)p->who.tenant.n,
		 (const char *)p->who.tenant.p);
	s->n_ext = p->p.n_extents;
	memcpy(s->ext, p->p.extents, sizeof(s->ext));
	s->has_opts = p->it.opts;
	if (p->it.opts) {
		s->opts = *p->it.opts;
		s->opts.replicas_required = p->it.replicas_required; /* as the ticket has it */
	}
	/* T6: no two slots over one range, no store into a range that another writer may write */
	for (uint32_t i = 0; i < FAKE_SLOTS; i++)
		assert(i == p->slot || !f->slots[i].state ||
		       !overlap(f->slots[i].ext, f->slots[i].n_ext, s->ext, s->n_ext));
	assert(!f->hazard || f->hazard == s->version ||
	       !overlap(f->hazard_ext, f->n_hazard_ext, s->ext, s->n_ext));
	close_version(f, p->p.version);
	return ERR_NONE;
}

bool rig_closed(const struct rig *r, const struct rig_put *p)
{
	return is_closed(&r->h[p->h], p->p.version);
}

void rig_stop(struct rig *r, struct rig_put *p)
{
	struct fake *f = &r->h[p->h];
	f->hazard = p->p.version;
	f->n_hazard_ext = p->p.n_extents;
	memcpy(f->hazard_ext, p->p.extents, sizeof(f->hazard_ext));
}

enum err rig_writer_gone(struct rig *r, int h)
{
	struct fake *f = &r->h[h];
	const struct mind_under u = rig_under(r, h);
	enum err e = ERR_NONE;
	if (f->n_writing)
		e = mind_range_free(r->m, rig_holder(r, h), &u, f->hazard);
	if (e == ERR_RECOVERING)
		return e;
	f->hazard = 0;
	f->n_writing = 0;
	return ERR_NONE;
}

void rig_publish(struct rig *r, struct rig_put *p)
{
	const struct fake_slot *s = &r->h[p->h].slots[p->slot];
	const struct mind_under u = rig_under(r, p->h);
	const struct msg_publish_item it = { .slot = p->slot,
					     .generation = s->generation,
					     .version = p->p.version,
					     .sum = s->sum,
					     .retired = s->state == 2 };
	p->published = 0;
	mind_publish(r->m, rig_holder(r, p->h), &u, &it, &p->pub);
}

enum err rig_put_v(struct rig *r, const char *key, int h, bool upsert, uint64_t *version)
{
	struct rig_put p;
	rig_start(r, &p, key, 1000, h, upsert);
	rig_run(r);
	assert(p.done == 1);
	if (p.p.call.err != ERR_NONE)
		return p.p.call.err;
	if (version)
		*version = p.p.version;
	enum err e = rig_commit(r, &p);
	if (e != ERR_NONE)
		return e;
	rig_publish(r, &p);
	rig_run(r);
	if (!p.published) {
		mind_drop(r->m, &p.pub);
		return ERR_TIMED_OUT;
	}
	struct fake_slot *s = &r->h[p.h].slots[p.slot];
	if (p.pub.err == ERR_NONE && s->state == 1 && s->version == p.p.version)
		s->published = true;
	return p.pub.err;
}

enum err rig_put(struct rig *r, const char *key, int h, bool upsert)
{
	return rig_put_v(r, key, h, upsert, NULL);
}

enum err rig_put_opts(struct rig *r, const char *key, uint64_t size,
		      const struct msg_put_opts *o)
{
	struct rig_put p;
	struct msg_put_opts *was = r->opts;
	r->opts = (struct msg_put_opts *)o;
	rig_start(r, &p, key, size, -1, false);
	r->opts = was;
	rig_run(r);
	if (!p.done) {
		mind_drop(r->m, &p.p.call);
		return ERR_TIMED_OUT;
	}
	if (p.p.call.err != ERR_NONE)
		return p.p.call.err;
	enum err e = rig_commit(r, &p);
	if (e != ERR_NONE)
		return e;
	rig_publish(r, &p);
	rig_run(r);
	if (!p.published) {
		mind_drop(r->m, &p.pub);
		return ERR_TIMED_OUT;
	}
	struct fake_slot *s = &r->h[p.h].slots[p.slot];
	if (p.pub.err == ERR_NONE && s->state == 1 && s->version == p.p.version)
		s->published = true;
	return p.pub.err;
}

enum err rig_use(struct rig *r, const char *key, uint32_t lease_ms)
{
	const struct mind_who w = rig_who(r);
	struct mind_object o;
	struct why why = { 0 };
	return mind_lookup(r->m, w.tenant, BYTES_STR(key), lease_ms, BYTES(NULL, 0), &o, &why);
}

/* ---- removes, gets ---- */

static void on_removed(struct mind_call *c)
{
	container_of(c, struct rig_remove, c)->done++;
}

void rig_remove_start(struct rig *r, struct rig_remove *x, const char *key)
{
	const struct mind_who w = rig_who(r);
	*x = (struct rig_remove){ .it = { .attempt = ++r->attempt, .key = BYTES_STR(key) } };
	x->c.done = on_removed;
	mind_remove(r->m, &w, &x->it, &x->c);
}

enum err rig_remove(struct rig *r, const char *key)
{
	struct rig_remove x;
	rig_remove_start(r, &x, key);
	rig_run(r);
	if (x.done)
		return x.c.err;
	mind_drop(r->m, &x.c);
	return ERR_TIMED_OUT;
}

struct rr {
	struct mind_remove_range r;
	int done;
};

static void on_range(struct mind_call *c)
{
	container_of(c, struct rr, r.call)->done++;
}

enum err rig_remove_prefix(struct rig *r, const char *prefix, uint64_t *removed)
{
	const struct mind_who w = rig_who(r);
	struct rr x = { .r.call.done = on_range };
	const struct msg_remove_range_req q = { .attempt = ++r->attempt,
						.prefix = BYTES_STR(prefix) };
	mind_remove_range(r->m, &w, &q, &x.r);
	rig_run(r);
	if (!x.done) {
		mind_drop(r->m, &x.r.call);
		return ERR_TIMED_OUT;
	}
	*removed = x.r.removed;
	return x.r.call.err;
}

enum err rig_get(struct rig *r, const char *key, uint64_t *version)
{
	struct mind_object o;
	struct why why = { 0 };
	enum err e =
		mind_lookup(r->m, BYTES_STR("t"), BYTES_STR(key), 0, BYTES(NULL, 0), &o, &why);
	if (e == ERR_NONE && version)
		*version = o.version;
	return e;
}

int rig_slots(const struct rig *r, int h, int state)
{
	int n = 0;
	for (int i = 0; i < FAKE_SLOTS; i++)
		n += r->h[h].slots[i].state == state;
	return n;
}

int rig_waiting(const struct rig *r, enum mind_op op)
{
	int n = 0;
	for (size_t i = 0; i < r->n_cmds; i++)
		n += r->cmds[i].c.op == op;
	return n;
}

struct mind_counts rig_counts(const struct rig *r)
{
	struct mind_counts c;
	mind_counts(r->m, &c);
	return c;
}
