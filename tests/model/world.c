/* SPDX-License-Identifier: Apache-2.0 */
/* The master, the holders, the network between them, and what befalls them. */
#include "tests/model/world.h"

#include <stdio.h>
#include <string.h>

enum { POOL_ROOM = 56 << 10 }; /* bytes of a holder's files */

static struct world
	*world_of; /* the one that is entered: the sinks' ctx moves with the block */

void world_broken(struct world *w, const char *text)
{
	if (!w->broken)
		w->broken = text;
}

struct w_version *world_version(struct world *w, uint64_t version)
{
	for (uint32_t i = 0; i < w->n_versions; i++)
		if (w->versions[i].version == version)
			return &w->versions[i];
	return NULL;
}

struct w_msg *world_send(struct world *w, enum w_msg_kind kind)
{
	static struct w_msg lost;
	if (w->n_msgs == W_MSGS_MAX) {
		w->overflow = true;
		memset(&lost, 0, sizeof(lost));
		return &lost;
	}
	struct w_msg *m = &w->msgs[w->n_msgs++];
	memset(m, 0, sizeof(*m));
	m->kind = kind;
	return m;
}

static void msg_free(struct w_msg *m)
{
	free(m->inv);
}

static struct w_msg msg_take(struct world *w, unsigned i)
{
	struct w_msg m = w->msgs[i];
	memmove(&w->msgs[i], &w->msgs[i + 1], (w->n_msgs - i - 1) * sizeof(m));
	w->n_msgs--;
	return m;
}

static void key_name(unsigned key, char out[4])
{
	memcpy(out, "k0", 3);
	out[1] = (char)('0' + key);
}

static const struct bytes tenant = { (const uint8_t *)"t", 1 };

/* ---- the mind's sinks ---- */

/* The mind numbers holders anew in each term. */
static uint8_t holder_of(const struct world *w, uint32_t index)
{
	struct mind_holder h;
	if (!w->mind || !mind_holder(w->mind, index, &h))
		abort();
	return (uint8_t)(h.id[1] - '0');
}

static struct bytes holder_id(unsigned h)
{
	return h ? BYTES("h1", 2) : BYTES("h0", 2);
}

/* UINT32_MAX, which no holder has: the mind does not know it. */
static uint32_t index_of(const struct world *w, unsigned h)
{
	int64_t at = mind_holder_index(w->mind, holder_id(h));
	return at < 0 ? UINT32_MAX : (uint32_t)at;
}

static void on_command(void *ctx, const struct mind_cmd *c)
{
	struct world *w = *(struct world **)ctx;
	struct w_msg *m = world_send(w, M_CMD);
	m->holder = w->mind ? holder_of(w, c->holder) : (uint8_t)c->holder;
	m->op = c->op;
	m->under = c->under;
	m->slot = c->slot;
	m->generation = c->generation;
	m->version = c->version;
	m->reason = (uint8_t)c->reason;
	m->evict_id = c->evict_id;
	struct w_version *v = world_version(w, c->version);
	if (c->op == MIND_RETIRE && c->reason == RETIRE_EVICTED && v)
		v->began_end = true; /* for want of space */
	if (c->op == MIND_FENCE && c->n_extents)
		m->extent = (uint8_t)(c->extents[0].offset / W_BLOCK + 1);
}

static void on_append(void *ctx, struct mind_append *a)
{
	struct world *w = *(struct world **)ctx;
	if (w->n_appends == W_APPENDS_MAX)
		w->overflow = true;
	else
		w->appends[w->n_appends++] = a;
}

static struct meta_limits meta_limits_of(const struct world *w)
{
	struct meta_limits l = { .tombs_max = w->cfg->floors ? 1 : 64 };
	meta_limits_default(&l);
	return l;
}

/* What common/meta does with an append: within its limits, all or none. */
static enum err append_apply(struct world *w, struct mind_append *a)
{
	struct meta_limits l = meta_limits_of(w);
	struct why why = { 0 };
	meta_state_plan(w->meta);
	for (size_t i = 0; i < a->n; i++) {
		struct meta_rec r = a->recs[i];
		enum err e = meta_state_admit(w->meta, &l, &r, &why);
		if (e)
			return e;
		w->floor_ever |= r.type == META_FLOOR;
	}
	meta_state_plan(w->meta);
	for (size_t i = 0; i < a->n; i++) {
		struct meta_rec r = a->recs[i];
		enum err e = meta_state_admit(w->meta, &l, &r, &why);
		if (e)
			return e;
		e = meta_state_apply(w->meta, ++w->meta_seq, &r);
		if (e == ERR_NO_MEMORY)
			abort();
		while (meta_state_sweep(w->meta, 64))
			;
	}
	return ERR_NONE;
}

static void master_turns(struct world *w)
{
	if (!w->mind)
		return;
	for (int i = 0; i < 1000 && mind_work(w->mind); i++)
		;
}

static void master_clock(struct world *w)
{
	w->now += 2000000;
	if (w->mind)
		mind_clock(w->mind, w->now);
}

static void meta_done(struct world *w)
{
	struct mind_append *a = w->appends[0];
	memmove(w->appends, w->appends + 1, --w->n_appends * sizeof(a));
	mind_appended(w->mind, a, append_apply(w, a));
}

/* ---- calls that wait in the mind ---- */

struct wcall {
	union {
		struct mind_call call;
		struct mind_put put;
		struct mind_register reg;
	};
	struct w_msg from;
	char key[4]; /* borrowed by the mind until done */
	uint8_t id[16];
};

static void grant(struct world *w, const struct wcall *k, struct w_msg *m)
{
	const struct mind_put *p = &k->put;
	m->version = p->version;
	m->epoch = p->pool_epoch;
	m->holder = holder_of(w, p->holder);
	m->extent = (uint8_t)(p->extents[0].offset / W_BLOCK + 1);
	if (!world_version(w, p->version)) {
		if (w->n_versions == W_VERSIONS_MAX) {
			w->overflow = true;
			return;
		}
		w->versions[w->n_versions++] =
			(struct w_version){ .version = p->version,
					    .key = m->key,
					    .holder = m->holder,
					    .began_end = w->removes_open[m->key] > 0 };
		w->holders[m->holder].owner[m->extent - 1] = p->version;
	}
}

static void call_done(struct mind_call *c)
{
	struct wcall *k = container_of(c, struct wcall, call);
	struct world *w = world_of;
	static const enum w_msg_kind reply_of[] = { [M_PUT_START] = M_PUT_GRANT,
						    [M_REMOVE] = M_REMOVE_REP,
						    [M_PUBLISH] = M_PUBLISH_REP };
	if (!w->dying && k->from.kind != M_REGISTER) {
		struct w_msg *m = world_send(w, reply_of[k->from.kind]);
		enum w_msg_kind kind = m->kind;
		*m = k->from;
		m->kind = kind;
		m->inv = NULL;
		m->err = c->err;
		m->term = meta_term(w->meta);
		if (k->from.kind == M_PUT_START && c->err == ERR_NONE)
			grant(w, k, m);
	}
	free(k);
}

static struct wcall *call_new(const struct w_msg *m)
{
	struct wcall *k = calloc(1, sizeof(*k));
	k->from = *m;
	k->call.done = call_done;
	return k;
}

/* ---- messages to the master ---- */

/* The call's key and client, in its own memory. */
static struct mind_who who_of(struct wcall *k)
{
	key_name(k->from.key, k->key);
	k->id[0] = (uint8_t)(k->from.client + 1);
	return (struct mind_who){ .tenant = tenant, .client = k->id, .term = k->from.term };
}

static void master_put(struct world *w, const struct w_msg *m)
{
	struct wcall *k = call_new(m);
	struct mind_who who = who_of(k);
	struct msg_put_item it = { .attempt = m->attempt,
				   .key = BYTES_STR(k->key),
				   .size = W_BLOCK,
				   .upsert = !w->cfg->absent_only };
	mind_put_start(w->mind, &who, &it, &k->put);
}

static void master_remove(struct world *w, const struct w_msg *m)
{
	struct wcall *k = call_new(m);
	struct mind_who who = who_of(k);
	struct msg_remove_item it = { .attempt = m->attempt, .key = BYTES_STR(k->key) };
	mind_remove(w->mind, &who, &it, &k->call);
}

static void master_query(struct world *w, const struct w_msg *q)
{
	char key[4];
	struct mind_object o;
	struct why why = { 0 };
	key_name(q->key, key);
	enum err e = mind_lookup(w->mind, tenant, BYTES_STR(key), 0, BYTES("", 0), &o, &why);
	struct w_msg *m = world_send(w, M_QUERY_REP);
	m->client = q->client;
	m->key = q->key;
	m->call = q->call;
	m->err = e;
	m->term = meta_term(w->meta);
	if (e)
		return;
	m->version = o.version;
	m->holder = holder_of(w, o.replicas[0].holder);
	m->slot = o.replicas[0].slot;
	m->generation = o.replicas[0].generation;
	m->extent = (uint8_t)(o.replicas[0].extents[0].offset / W_BLOCK + 1);
}

static void master_register(struct world *w, const struct w_msg *m)
{
	struct mind_segment seg = { 0, (uint64_t)w->cfg->extents * W_BLOCK,
				    (uint64_t)w->cfg->extents * W_BLOCK };
	struct bytes addr = BYTES_STR("sim://h/h");
	struct mind_news n = { .id = holder_id(m->holder),
			       .host = BYTES_STR("h"),
			       .fd_path = BYTES("", 0),
			       .kind = 1,
			       .addrs = &addr,
			       .n_addrs = 1,
			       .pool_epoch = m->epoch,
			       .segments = &seg,
			       .n_segments = 1 };
	n.instance[0] = m->holder;
	n.instance[1] = (uint8_t)m->run;
	memcpy(n.pool, w->holders[m->holder].pool_id, sizeof(n.pool));
	mind_register(w->mind, &n, &call_new(m)->reg);
	mind_beat_epoch(w->mind, n.id, m->epoch);
}

static void master_publish(struct world *w, const struct w_msg *m)
{
	struct msg_publish_item it = { .slot = m->slot,
				       .generation = m->generation,
				       .version = m->version,
				       .sum = m->version,
				       .retired = m->retired };
	mind_publish(w->mind, index_of(w, m->holder), &m->under, &it, &call_new(m)->call);
}

static void master_confirm(struct world *w, const struct w_msg *q)
{
	bool open = mind_open_attempt(w->mind, index_of(w, q->holder), &q->under, q->version);
	struct w_msg *m = world_send(w, M_CONFIRM_REP);
	enum w_msg_kind kind = m->kind;
	*m = *q;
	m->kind = kind;
	m->err = open ? ERR_NONE : ERR_STALE_ATTEMPT;
}

static void master_reply(struct world *w, const struct w_msg *m)
{
	struct msg_under u = { m->under.shard, m->under.term, m->under.adoption,
			       m->under.pool_epoch };
	struct mind_segment seg = { 0, (uint64_t)w->cfg->extents * W_BLOCK,
				    (uint64_t)w->cfg->extents * W_BLOCK };
	uint32_t at = index_of(w, m->holder);
	if (m->err == ERR_STALE_TERM || m->err == ERR_STALE_EPOCH) {
		mind_refused(w->mind, at, &m->under, m->err);
		return;
	}
	switch (m->op) {
	case MIND_ADOPT:
		mind_adopted(w->mind, at, &m->under, &seg, 1);
		break;
	case MIND_INVENTORY: {
		struct msg_inventory_rep piece = { .under = &u,
						   .entries = { m->inv->entries, m->inv->n },
						   .writing = { m->inv->writing,
								m->inv->n_writing } };
		mind_inventory(w->mind, at, &piece);
		break;
	}
	case MIND_RETIRE:
		mind_retired(w->mind, at, &m->under, m->slot, m->generation, m->version,
			     m->err);
		break;
	case MIND_FREE:
		mind_freed(w->mind, at, &m->under, m->slot, m->generation, m->err);
		break;
	case MIND_MARK:
		break;
	case MIND_FENCE: {
		struct msg_fence_res res = { m->fence, m->slot, m->generation, m->version };
		mind_fenced(w->mind, at, &m->under, m->version, &res);
		break;
	}
	}
}

static void to_master(struct world *w, const struct w_msg *m)
{
	if (!w->mind)
		return; /* nobody listens: lost */
	switch (m->kind) {
	case M_PUT_START:
		master_put(w, m);
		break;
	case M_REMOVE:
		master_remove(w, m);
		break;
	case M_QUERY:
		master_query(w, m);
		break;
	case M_REGISTER:
		master_register(w, m);
		break;
	case M_PUBLISH:
		master_publish(w, m);
		break;
	case M_CONFIRM:
		master_confirm(w, m);
		break;
	case M_REPORT:
		mind_range_free(w->mind, index_of(w, m->holder), &m->under, m->version);
		break;
	case M_CMD_REP:
		master_reply(w, m);
		break;
	default:
		break;
	}
}

/* ---- messages to a holder ---- */

static struct mind_under under_of(const struct w_holder *h)
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
		if (!r.err)
			r.under = under_of(h);
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
	}
	*world_send(w, M_CMD_REP) = r;
}

static void commit_answer(struct world *w, const struct w_msg *m, enum err e)
{
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

static void to_holder(struct world *w, struct w_msg *m)
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

static void deliver(struct world *w, struct w_msg *m)
{
	switch (m->kind) {
	case M_CMD:
	case M_COMMIT:
	case M_PUBLISH_REP:
	case M_CONFIRM_REP:
		to_holder(w, m);
		break;
	case M_PUT_GRANT:
	case M_REMOVE_REP:
	case M_QUERY_REP:
	case M_COMMIT_REP:
		client_deliver(w, m);
		break;
	default:
		to_master(w, m);
	}
	msg_free(m);
}

/* ---- lives ---- */

static void on_fenced(void *ctx, uint32_t shard, uint64_t version)
{
	struct w_holder *h = ctx;
	struct w_msg *m = world_send(world_of, M_REPORT);
	(void)shard;
	m->holder = (uint8_t)(h - world_of->holders);
	m->version = version;
	m->under = under_of(h);
	m->run = h->run;
}

/* Ids that are the same in every run. */
static void not_random(void *ctx, void *p, size_t n)
{
	struct w_holder *h = ctx;
	memset(p, 1 + (int)(h - world_of->holders), n);
	((uint8_t *)p)[0] = ++h->n_ids;
}

/* Opens the pool, new or as the last run left it, and fences that run's writers. */
static void holder_start(struct world *w, unsigned i)
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
	h->up = true;
	h->run++;
}

static void sessions_open(struct w_holder *h)
{
	struct shmpool_fds fds;
	for (unsigned c = 0; c < W_CLIENTS; c++) {
		if (mempool_session(h->pool, true, &h->sessions[c], &fds, NULL) != ERR_NONE ||
		    mempool_attach(h->pool, h->sessions[c], &h->maps[c]) != ERR_NONE)
			abort();
		h->lanes[c] = shmpool_lane(h->maps[c]);
	}
}

/* Drops what a death takes with it. */
static void forget(struct world *w, bool (*of)(const struct w_msg *m, unsigned i), unsigned i)
{
	uint32_t to = 0;
	for (uint32_t k = 0; k < w->n_msgs; k++) {
		if (of(&w->msgs[k], i))
			msg_free(&w->msgs[k]);
		else
			w->msgs[to++] = w->msgs[k];
	}
	w->n_msgs = to;
}

/* Connections break: what came to the dead one, and, unless kept, what it had sent. */
static bool of_holder(const struct w_msg *m, unsigned i)
{
	bool to = m->kind == M_CMD || m->kind == M_COMMIT || m->kind == M_PUBLISH_REP ||
		  m->kind == M_CONFIRM_REP;
	bool from = m->kind == M_CMD_REP || m->kind == M_PUBLISH || m->kind == M_CONFIRM ||
		    m->kind == M_REPORT || m->kind == M_REGISTER || m->kind == M_COMMIT_REP;
	return (to || (from && !world_of->cfg->kept)) && m->holder == i;
}

static bool of_master(const struct w_msg *m, unsigned i)
{
	(void)i;
	bool to = m->kind == M_PUT_START || m->kind == M_REMOVE || m->kind == M_QUERY ||
		  m->kind == M_REGISTER || m->kind == M_PUBLISH || m->kind == M_CONFIRM ||
		  m->kind == M_REPORT || m->kind == M_CMD_REP;
	bool from = m->kind == M_CMD || m->kind == M_PUT_GRANT || m->kind == M_REMOVE_REP ||
		    m->kind == M_QUERY_REP || m->kind == M_PUBLISH_REP ||
		    m->kind == M_CONFIRM_REP;
	return to ? !world_of->cfg->kept : from && !world_of->cfg->kept;
}

static void holder_dies(struct world *w, unsigned i)
{
	struct w_holder *h = &w->holders[i];
	forget(w, of_holder, i);
	holder_remember(h);
	pool_memory_killed(h->backing);
	hold_close(h->hold);
	mempool_close(h->pool);
	h->hold = NULL;
	h->pool = NULL;
	h->up = false;
}

static void master_start(struct world *w)
{
	struct meta_rec r = { .type = META_TERM, .TERM = { .term = meta_term(w->meta) + 1 } };
	if (meta_state_apply(w->meta, ++w->meta_seq, &r) != ERR_NONE)
		abort();
	struct mind_limits l = { .index_bytes_max = 1 << 20,
				 .calls_max = 16,
				 .clients_max = 4,
				 .lease_ms = 1,
				 .lease_max_ms = 1,
				 .discard_ms = UINT32_MAX,
				 .release_ms = UINT32_MAX,
				 .dead_ms = UINT32_MAX,
				 .quarantine_max = 1.0,
				 .high_watermark = 1.0 };
#ifdef POMELO_PLANT
	l.mind_break = w->cfg->plant;
#endif
	struct mind_out o = { .ctx = &world_of, .command = on_command, .append = on_append };
	uint32_t first = w->n_msgs;
	if (mind_new(&l, &o, w->meta, w->now, &w->mind) != ERR_NONE)
		abort();
	for (; first < w->n_msgs; first++)
		w->msgs[first].holder = holder_of(w, w->msgs[first].holder);
}

/* The first `durable` of the appends under way reached the disk. */
static void master_dies(struct world *w, unsigned durable)
{
	forget(w, of_master, 0);
	for (unsigned i = 0; i < durable; i++)
		(void)!append_apply(w, w->appends[i]);
	w->n_appends = 0;
	w->dying = true;
	mind_free(w->mind);
	w->dying = false;
	w->mind = NULL;
	w->left.master_deaths--;
}

struct world *world_new(const struct w_config *cfg)
{
	struct world *w = calloc(1, sizeof(*w));
	world_of = w;
	w->cfg = cfg;
	w->left = cfg->budget;
	if (meta_state_new(1, &w->meta) != ERR_NONE)
		abort();
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		char *room = malloc(POOL_ROOM + 64);
		room += -(uintptr_t)room & 63;
		if (pool_memory_new_at(room, POOL_ROOM, &w->holders[i].backing) != ERR_NONE)
			abort();
		holder_start(w, i);
		sessions_open(&w->holders[i]);
	}
	master_start(w);
	/* everything quiet: both holders known and merged */
	for (unsigned i = 0; i < W_HOLDERS; i++)
		world_apply(w, EVENT(E_REGISTER, i));
	for (int i = 0; i < 1000 && (w->n_msgs || w->n_appends); i++)
		world_apply(w, w->n_appends ? EVENT(E_META, 0) : EVENT(E_DELIVER, 0));
	return w;
}

/* ---- events ---- */

/* Does the master believe in the holder as it is? */
static bool adopted(const struct world *w, unsigned i)
{
	struct mind_holder h;
	if (!mind_holder(w->mind, index_of(w, i), &h))
		return false;
	struct mind_under u = under_of(&w->holders[i]);
	return !h.away && h.under.term == u.term && h.under.adoption == u.adoption &&
	       h.under.pool_epoch == u.pool_epoch;
}

static bool in_flight(const struct world *w, unsigned h)
{
	for (uint32_t i = 0; i < w->n_msgs; i++) {
		const struct w_msg *m = &w->msgs[i];
		bool adopts = (m->kind == M_CMD || m->kind == M_CMD_REP) &&
			      (m->op == MIND_ADOPT || m->op == MIND_INVENTORY);
		if (m->holder == h && (m->kind == M_REGISTER || adopts))
			return true;
	}
	return false;
}

static void can_fenced(void *arg, uint64_t version, const struct extent *ext, size_t n)
{
	const struct w_holder *h = ((void **)arg)[0];
	bool *can = ((void **)arg)[1];
	(void)ext;
	(void)n;
	bool named = false;
	for (unsigned c = 0; c < W_CLIENTS; c++)
		named |= !h->gone_session[c] && h->lanes[c]->hazard == version;
	*can |= !named;
}

static bool sweeps(const struct w_holder *h)
{
	bool can = false;
	void *arg[2] = { (void *)(uintptr_t)h, &can };
	hold_writing(h->hold, 0, can_fenced, arg);
	return can;
}

/* Its client is stopped: it lies in the socket. */
bool msg_waits(const struct world *w, const struct w_msg *m)
{
	bool client = m->kind == M_PUT_GRANT || m->kind == M_REMOVE_REP ||
		      m->kind == M_QUERY_REP || m->kind == M_COMMIT_REP;
	return client && w->clients[m->client].stopped && !w->clients[m->client].dead;
}

static size_t calm_events(const struct world *w, uint16_t *out)
{
	size_t n = 0;
	for (uint32_t i = 0; i < w->n_msgs; i++) {
		if (msg_waits(w, &w->msgs[i]))
			continue;
		/* equal messages: one is enough */
		bool again = false;
		for (uint32_t k = 0; k < i && !w->msgs[i].inv; k++)
			again |= memcmp(&w->msgs[i], &w->msgs[k], sizeof(w->msgs[i])) == 0;
		if (!again)
			out[n++] = EVENT(E_DELIVER, i);
	}
	if (w->mind && w->n_appends)
		out[n++] = EVENT(E_META, 0);
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		if (w->holders[i].up && w->mind && !adopted(w, i) && !in_flight(w, i))
			out[n++] = EVENT(E_REGISTER, i);
		if (w->holders[i].up && sweeps(&w->holders[i]))
			out[n++] = EVENT(E_SWEEP, i);
		if (!w->holders[i].up)
			out[n++] = EVENT(E_HOLDER_STARTS, i);
	}
	if (!w->mind)
		out[n++] = EVENT(E_MASTER_STARTS, 0);
	return n + client_events(w, out + n);
}

static size_t net_faults(const struct world *w, uint16_t *out)
{
	size_t n = 0;
	for (uint32_t i = 0; i < w->n_msgs; i++) {
		if (w->left.loss)
			out[n++] = EVENT(E_DROP, i);
		if (w->left.dups && !w->msgs[i].inv)
			out[n++] = EVENT(E_DUP, i);
	}
	return n;
}

static size_t life_faults(const struct world *w, uint16_t *out)
{
	size_t n = 0;
	if (w->mind && w->left.master_deaths)
		for (unsigned i = 0; i <= w->n_appends; i++)
			out[n++] = EVENT(E_MASTER_DIES, i);
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		if (w->holders[i].up && w->left.holder_deaths)
			out[n++] = EVENT(E_HOLDER_DIES, i);
		if (w->mind && w->left.aways)
			out[n++] = EVENT(E_AWAY, i);
		if (w->mind && w->left.resends)
			out[n++] = EVENT(E_RESEND, i);
	}
	for (unsigned k = 0; w->mind && w->left.evicts && k < w->cfg->keys; k++)
		out[n++] = EVENT(E_EVICT, k);
	for (unsigned i = 0; w->mind && w->left.fences && i < w->n_versions; i++)
		if (!w->versions[i].acked)
			out[n++] = EVENT(E_FENCE, i);
	return n;
}

size_t world_events(const struct world *w, uint16_t *out)
{
	size_t n = calm_events(w, out);
	n += net_faults(w, out + n);
	n += life_faults(w, out + n);
	assert(n <= W_EVENTS_MAX);
	return n;
}

bool event_is_choice(uint16_t e)
{
	return EVENT_KIND(e) >= E_PUT && EVENT_KIND(e) != E_HOLDER_STARTS &&
	       EVENT_KIND(e) != E_MASTER_STARTS;
}

static void holder_register(struct world *w, unsigned i)
{
	struct w_msg *m = world_send(w, M_REGISTER);
	m->holder = (uint8_t)i;
	m->run = w->holders[i].run;
	m->epoch = hold_under(w->holders[i].hold, 0).pool_epoch;
}

static void evict(struct world *w, unsigned k)
{
	char key[4];
	key_name(k, key);
	w->left.evicts--;
	if (mind_evict(w->mind, tenant, BYTES_STR(key)) != ERR_NONE)
		return;
	for (uint32_t i = 0; i < w->n_versions; i++)
		w->versions[i].began_end |= w->versions[i].key == k;
}

static void away(struct world *w, unsigned i)
{
	w->left.aways--;
	w->away_ever[i] = true;
	mind_away(w->mind, holder_id(i));
}

static void duplicate(struct world *w, unsigned i)
{
	w->left.dups--;
	struct w_msg m = w->msgs[i];
	enum w_msg_kind kind = m.kind;
	*world_send(w, kind) = m;
}

static void resend(struct world *w, unsigned i)
{
	w->left.resends--;
	if (index_of(w, i) != UINT32_MAX)
		mind_resend(w->mind, index_of(w, i));
}

void world_apply(struct world *w, uint16_t event)
{
	unsigned kind = EVENT_KIND(event), arg = EVENT_ARG(event);
	struct w_msg m;
	world_of = w;
	master_clock(w);
	switch (kind) {
	case E_DELIVER:
		m = msg_take(w, arg);
		deliver(w, &m);
		break;
	case E_META:
		meta_done(w);
		break;
	case E_REGISTER:
		holder_register(w, arg);
		break;
	case E_SWEEP:
		hold_sweep(w->holders[arg].hold);
		break;
	case E_DROP:
		w->left.loss--;
		m = msg_take(w, arg);
		msg_free(&m);
		break;
	case E_DUP:
		duplicate(w, arg);
		break;
	case E_EVICT:
		evict(w, arg);
		break;
	case E_FENCE:
		w->left.fences--;
		mind_discard(w->mind, w->versions[arg].version);
		break;
	case E_MASTER_DIES:
		master_dies(w, arg);
		break;
	case E_MASTER_STARTS:
		master_start(w);
		break;
	case E_HOLDER_DIES:
		w->left.holder_deaths--;
		holder_dies(w, arg);
		break;
	case E_HOLDER_STARTS:
		holder_start(w, arg);
		break;
	case E_AWAY:
		away(w, arg);
		break;
	case E_RESEND:
		resend(w, arg);
		break;
	default:
		client_apply(w, kind, arg);
	}
	master_turns(w);
}
