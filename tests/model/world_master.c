/* SPDX-License-Identifier: Apache-2.0 */
/* The master: what carries messages and appends between the network and its mind. */
#include "tests/model/world_priv.h"

#include <stdio.h>
#include <string.h>

/* ---- the mind's sinks ---- */

/* The mind numbers holders anew in each term. */
static uint8_t holder_of(const struct world *w, uint32_t index)
{
	struct mind_holder h;
	if (!w->mind || !mind_holder(w->mind, index, &h))
		abort();
	return (uint8_t)(h.id[1] - '0');
}

/* UINT32_MAX, which no holder has: the mind does not know it. */
uint32_t index_of(const struct world *w, unsigned h)
{
	int64_t at = mind_holder_index(w->mind, holder_id(h));
	return at < 0 ? UINT32_MAX : (uint32_t)at;
}

static void on_command(void *ctx, const struct mind_cmd *c)
{
	struct world *w = world_entered();
	if (c->op == MIND_COPY) {
		copying_told(w, c);
		return;
	}
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
	if (c->op == MIND_FENCE)
		m->number = c->generation;
}

static void on_append(void *ctx, struct mind_append *a)
{
	struct world *w = world_entered();
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

/* T3: what it has from before a floor may go. */
static void floored(struct world *w, const struct msg_meta_floor *f)
{
	for (uint32_t i = 0; i < w->n_versions; i++) {
		struct w_version *v = &w->versions[i];
		v->floored |= v->decided && v->version <= f->floor &&
			      v->holder == f->holder.p[1] - '0';
	}
}

/* What common/meta does with an append: within its limits, all or none. */
enum err append_apply(struct world *w, struct mind_append *a)
{
	struct meta_limits l = meta_limits_of(w);
	struct why why = { 0 };
	meta_state_plan(w->meta);
	for (size_t i = 0; i < a->n; i++) {
		struct meta_rec r = a->recs[i];
		enum err e = meta_state_admit(w->meta, &l, &r, &why);
		if (e)
			return e;
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
		if (r.type == META_FLOOR)
			floored(w, &r.FLOOR);
		while (meta_state_sweep(w->meta, 64))
			;
	}
	return ERR_NONE;
}

void master_turns(struct world *w)
{
	if (!w->mind)
		return;
	for (int i = 0; i < 1000 && mind_work(w->mind); i++)
		;
}

void master_clock(struct world *w)
{
	w->now += 2000000;
	if (w->mind)
		mind_clock(w->mind, w->now);
}

void meta_done(struct world *w)
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
					    .client = m->client,
					    .attempt = m->attempt,
					    .began_end = w->removes_open[m->key] > 0 };
		w->holders[m->holder].owner[m->extent - 1] = p->version;
	}
}

static void call_done(struct mind_call *c)
{
	struct wcall *k = container_of(c, struct wcall, call);
	struct world *w = world_entered();
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
		struct w_version *v = world_version(w, m->version);
		if (k->from.kind == M_PUT_START && c->err == ERR_NONE)
			grant(w, k, m);
		else if (k->from.kind == M_PUBLISH && c->err == ERR_NONE && v)
			v->decided = true;
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

/* V5 left out: the answer names the client's attempt, and means the version it has now. */
static uint64_t fenced_version(const struct world *w, const struct w_msg *m)
{
	const struct w_version *of = NULL;
	uint64_t version = m->version;
	if (!(w->cfg->plant_here & W_FENCED_BY_NUMBER))
		return version;
	for (uint32_t i = 0; i < w->n_versions; i++)
		if (w->versions[i].version == m->version)
			of = &w->versions[i];
	for (uint32_t i = 0; of && i < w->n_versions; i++) {
		const struct w_version *v = &w->versions[i];
		if (v->client == of->client && v->attempt == of->attempt)
			version = MAX_OF(version, v->version);
	}
	return version;
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
		mind_fenced(w->mind, at, &m->under, fenced_version(w, m), &res);
		break;
	}
	case MIND_COPY:
		mind_copied(w->mind, at, &m->under, m->version, m->number, m->err, 1);
		break;
	}
}

void to_master(struct world *w, const struct w_msg *m)
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
		if (m->number) {
			const struct msg_copy_fail f = { .version = m->version,
							 .attempt = m->number,
							 .status = (uint32_t)m->err };
			mind_copy_failed(w->mind, index_of(w, m->holder), &m->under, &f);
		} else if (mind_range_free(w->mind, index_of(w, m->holder), &m->under,
					   m->version) == ERR_RECOVERING)
			*world_send(w, M_REPORT) = *m; /* it is said again */
		break;
	case M_CMD_REP:
		master_reply(w, m);
		break;
	default:
		break;
	}
}

/* ---- its life ---- */

void master_start(struct world *w)
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
	l.unknown_key = "k0";
#endif
	struct mind_out o = { .command = on_command, .append = on_append };
	uint32_t first = w->n_msgs;
	if (mind_new(&l, &o, w->meta, w->now, &w->mind) != ERR_NONE)
		abort();
	for (; first < w->n_msgs; first++)
		w->msgs[first].holder = holder_of(w, w->msgs[first].holder);
}
