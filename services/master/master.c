/* SPDX-License-Identifier: Apache-2.0 */
#include "master.h"

#include <inttypes.h>
#include <string.h>

#include "flows.h"

/* ---- rows ---- */

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17610") };
#undef CONF_T
#define CONF_T struct mst_conf
static const struct conf_row own_rows[] = { MASTER_CONF(CONF_ROW) };
#undef CONF_T
#define FOREIGN_ROW(...) { __VA_ARGS__ },
static const struct conf_foreign foreign[] = { MASTER_FOREIGN(FOREIGN_ROW) };
static const struct conf_part conf_parts[] = {
	SVC_CONF_PART(shared_rows),
	{ .rows = own_rows,
	  .n = ARRAY_LEN(own_rows),
	  .base = offsetof(struct mst, conf),
	  .foreign = foreign,
	  .n_foreign = ARRAY_LEN(foreign) },
};

static enum err check_quotas(struct conf *c, const struct mst *m, struct why *w)
{
	struct mst_quotas q;
	struct why why = { 0 };
	int bad = 0;
	enum err e =
		mst_quotas_read(&m->conf.tenant_memory, &m->conf.tenant_pinned, &q, &bad, &why);
	return e == ERR_NONE ? e
			     : conf_fail(c, w, bad ? ".tenant_pinned" : ".tenant_memory", "%s",
					 why.text);
}

static enum err conf_check(struct conf *c, const void *at, struct why *w)
{
	const struct mst *m = at;
	enum err e = svc_conf_check(c, at, w);
	if (e == ERR_NONE && m->conf.lease_ms > m->conf.lease_max_ms)
		e = conf_fail(c, w, ".lease_ms", "above master.lease_max_ms, %" PRIu64,
			      m->conf.lease_max_ms);
	if (e == ERR_NONE && m->conf.discard_ms > m->conf.release_ms)
		e = conf_fail(c, w, ".put_start_discard_ms",
			      "above master.put_start_release_ms, %" PRIu64,
			      m->conf.release_ms);
	if (e == ERR_NONE && m->conf.strategy > MIND_LOCAL_FIRST)
		e = conf_fail(
			c, w, ".allocation_strategy",
			"ssd_free_ratio_first needs the disk tier, which this release has "
			"not: random, free_ratio_first or local_first");
	return e == ERR_NONE ? check_quotas(c, m, w) : e;
}

static const struct conf_schema conf = { "master", conf_parts, ARRAY_LEN(conf_parts),
					 conf_check };

static const struct metric_row metric_rows[] = { MASTER_METRICS(METRIC_ROW) };
static const struct metric_schema metrics = { "master", metric_rows, ARRAY_LEN(metric_rows) };

/* ---- beats ---- */

static void on_peer(void *ctx, const struct beat_peer *p)
{
	struct mst *m = ctx;
	bool bad = p->state == BEAT_SUSPECT || p->state == BEAT_DEAD;
	if (bad)
		LOG_WARN(&m->svc.log, "beat", "peer=%s state=%s loop_stands=%d pid=%u", p->name,
			 beat_state_name(p->state), p->loop_stands, p->news.pid);
	else
		LOG_INFO(&m->svc.log, "beat", "peer=%s state=%s pid=%u runs=%u", p->name,
			 beat_state_name(p->state), p->news.pid, p->instances);
	mst_watch_peer(m, p);
}

/* Wherever requests are listened for, beats are too. */
static enum err beats_open(struct mst *m, struct why *why)
{
	struct svc *s = &m->svc;
	char addr[SVC_ADDRS_MAX][BEAT_ADDR_MAX];
	const char *ptr[SVC_ADDRS_MAX];
	for (size_t i = 0; i < s->n_addrs; i++) {
		enum err e = beat_addr_of(s->addrs[i], addr[i], why);
		if (e)
			return e;
		ptr[i] = addr[i];
	}
	struct beat_table_opts o = { .keys = s->keys,
				     .log = &s->log,
				     .listen = ptr,
				     .n_listen = s->n_addrs,
				     .suspect_ms = (uint32_t)s->conf.suspect_ms,
				     .dead_ms = (uint32_t)s->conf.holder_dead_ms,
				     .changed = on_peer,
				     .ctx = m };
	return beat_table_open(s->loop, &o, &m->beats, why);
}

/* ---- metrics ---- */

/* One line a peer and state would be many: one a peer, its state as a label. */
static void print_peer(const struct beat_peer *p, struct buf *out)
{
	struct buf labels = BUF_INIT(1024);
	metric_label(&labels, "name", BYTES_STR(p->name));
	buf_put(&labels, ",", 1);
	metric_label(&labels, "state", BYTES_STR(beat_state_name(p->state)));
	buf_put(&labels, "", 1);
	if (buf_err(&labels) == ERR_NONE)
		metric_line(out, "pomelo_master_peer", (const char *)labels.p, 1);
	buf_fini(&labels);
}

enum { TENANTS_SHOWN = 1000 };

static void follow(struct mst *m, unsigned id, unsigned cell, uint64_t now)
{
	uint64_t was = metric_get(m->svc.metrics, id, cell);
	if (now > was)
		metric_add(m->svc.metrics, id, cell, now - was);
}

/* Tenants by name: what each has, and may have. The first of them, should there be very many (B1). */
static void scrape_tenants(struct mst *m, struct buf *out)
{
	struct mind_tenant t;
	metric_head(out, "pomelo_master_tenant_bytes", METRIC_gauge,
		    "memory of a tenant's objects, of those hard-pinned, and its quotas");
	for (uint32_t i = 0; i < TENANTS_SHOWN && mind_tenant(m->term.mind, i, &t); i++) {
		const struct {
			const char *of;
			uint64_t v;
		} rows[] = { { "used", t.bytes },
			     { "pinned", t.pinned },
			     { "quota", t.bytes_max },
			     { "pinned_quota", t.pinned_max } };
		for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
			struct buf labels = BUF_INIT(1024);
			if (r >= 2 && !rows[r].v)
				continue;
			metric_label(&labels, "tenant", t.name);
			buf_put(&labels, ",", 1);
			metric_label(&labels, "of", BYTES_STR(rows[r].of));
			buf_put(&labels, "", 1);
			if (buf_err(&labels) == ERR_NONE)
				metric_line(out, "pomelo_master_tenant_bytes",
					    (const char *)labels.p, (double)rows[r].v);
			buf_fini(&labels);
		}
	}
}

/* C3: gauges are a recount's. */
static void scrape_mind(struct mst *m)
{
	struct mind_counts c = { .recovering = true };
	struct metrics *x = m->svc.metrics;
	if (m->term.mind)
		mind_counts(m->term.mind, &c);
	metric_set(x, MST_M_OBJECTS, 0, (int64_t)c.objects);
	metric_set(x, MST_M_COPIES, 0, (int64_t)c.copies);
	metric_set(x, MST_M_ATTEMPTS, 0, (int64_t)c.attempts);
	metric_set(x, MST_M_WAITING, 0, (int64_t)c.waiting);
	metric_set(x, MST_M_TOMBS, 0, (int64_t)c.tombs_owed);
	metric_set(x, MST_M_INDEX, 0, (int64_t)c.index_bytes);
	metric_set(x, MST_M_BYTES, 0, (int64_t)c.bytes_total);
	metric_set(x, MST_M_BYTES, 1, (int64_t)c.bytes_used);
	metric_set(x, MST_M_BYTES, 2, (int64_t)c.quarantine_bytes);
	metric_set(x, MST_M_RECOVERING, 0, c.recovering);
	metric_set(x, MST_M_COPYING, 0, (int64_t)c.copying);
	metric_set(x, MST_M_LACKING, 0, (int64_t)c.under_replicated);
	metric_set(x, MST_M_TASKS, 0, (int64_t)c.tasks);
	if (!m->term.mind)
		return;
	follow(m, MST_M_PUTS, 0, c.puts);
	follow(m, MST_M_PUBLISHES, 0, c.publishes);
	follow(m, MST_M_REMOVES, 0, c.removes);
	follow(m, MST_M_EVICTIONS, 0, c.evictions);
	follow(m, MST_M_COPIED, 0, c.copies_made);
	follow(m, MST_M_COPIED, 1, c.copies_failed);
	follow(m, MST_M_LOOKUPS, 0, c.hits);
	follow(m, MST_M_LOOKUPS, 1, c.misses);
	follow(m, MST_M_REJECTED, 3, c.malformed);
}

static void scrape(struct svc *s, struct buf *out)
{
	struct mst *m = mst_of(s);
	scrape_mind(m);
	if (m->term.mind)
		scrape_tenants(m, out);
	struct beat_peer p[32];
	struct beat_table_counters c;
	int64_t n_state[BEAT_DEAD + 1] = { 0 };
	svc_meta_scrape(&m->meta, s->metrics, MST_M_TERM);
	if (!m->beats)
		return;
	metric_head(out, "pomelo_master_peer", METRIC_gauge, "1; a service seen, its state");
	for (size_t from = 0, n; (n = beat_table_list(m->beats, from, p, ARRAY_LEN(p)));
	     from += n)
		for (size_t i = 0; i < n; i++) {
			n_state[p[i].state]++;
			print_peer(&p[i], out);
		}
	for (int i = 0; i <= BEAT_DEAD; i++)
		metric_set(s->metrics, MST_M_PEERS, (unsigned)i, n_state[i]);
	beat_table_counters(m->beats, &c);
	const uint64_t ends[] = { c.stamped,	c.challenges, c.bad_macs,
				  c.bad_frames, c.replays,    c.refused };
	for (unsigned i = 0; i < ARRAY_LEN(ends); i++)
		follow(m, MST_M_BEATS, i, ends[i]);
}

/* ---- life ---- */

static void on_term(struct svc *s)
{
	mst_term_begin(mst_of(s));
}

static void ignore(void *arg)
{
	(void)arg;
}

static enum err on_open(struct svc *s, struct why *why)
{
	struct mst *m = mst_of(s);
	enum err e = mst_links_open(m);
	if (e)
		return why_set(why, e, "no memory for links to holders");
	where_host(m->conf.local_first_host[0] ? m->conf.local_first_host : s->conf.host_id,
		   m->local_host);
	m->meta.limits.tombs_max = m->conf.tombs_max;
	int bad;
	e = mst_quotas_read(&m->conf.tenant_memory, &m->conf.tenant_pinned, &m->quotas, &bad,
			    why);
	if (e) {
		mst_links_close(m, ignore, NULL);
		return e;
	}
	e = beats_open(m, why);
	if (e == ERR_NONE)
		e = svc_meta_open(&m->meta, s, on_term, why);
	if (e == ERR_NONE)
		return ERR_NONE;
	if (m->beats)
		beat_table_close(TAKE(m->beats), NULL, NULL);
	mst_links_close(m, ignore, NULL);
	return e;
}

/* T1: positive answers come at once, but it is whole only when each holder is merged or away. */
static void reasons(struct svc *s, struct svc_reasons *r)
{
	struct mst *m = mst_of(s);
	struct mind *mind = m->term.mind;
	struct mind_counts c;
	struct mind_holder h;
	svc_meta_reasons(&m->meta, r);
	if (!mind)
		return;
	mind_counts(mind, &c);
	for (uint32_t i = 0; c.recovering && i < mind_holders(mind); i++)
		if (mind_holder(mind, i, &h) && !h.away && !h.merged)
			svc_reason(r, "index: merging holder %s", h.id);
	if (c.recovering && r->n == 0)
		svc_reason(r, "index: merging holders");
}

static uint64_t term(const struct svc *s)
{
	return svc_meta_term(&container_of(s, const struct mst, svc)->meta);
}

/* No request is inside any more. The mind goes first: it borrows from the meta store. */
static void on_meta_closed(void *arg)
{
	svc_closed(arg);
}

static void on_beats_closed(void *arg)
{
	struct svc *s = arg;
	svc_meta_close(&mst_of(s)->meta, on_meta_closed, s);
}

static void on_links_closed(void *arg)
{
	struct svc *s = arg;
	struct beat_table *t = TAKE(mst_of(s)->beats);
	if (t)
		beat_table_close(t, on_beats_closed, s);
	else
		on_beats_closed(s);
}

static void on_close(struct svc *s)
{
	struct mst *m = mst_of(s);
	mst_term_end(m);
	mst_links_close(m, on_links_closed, s);
}

const struct svc_def mst_def = {
	.name = "master",
	.exe = "pomelo-master",
	.about = "The index of a Pomelo cluster: which object lives where.",
	.role = ROLE_SERVICE,
	.size = sizeof(struct mst),
	.conf = &conf,
	.methods = mst_methods,
	.n_methods = ARRAY_LEN(mst_methods),
	.metrics = &metrics,
	.open = on_open,
	.close = on_close,
	.reasons = reasons,
	.term = term,
	.scrape = scrape,
};
