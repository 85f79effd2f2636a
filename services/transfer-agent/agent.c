/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and life: what starts when, and the end in its order. */
#include "agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/where.h"
#include "rpc/addr.h"

/* ---- rows ---- */

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17611") };
#undef CONF_T
#define CONF_T struct xfa
static const struct conf_row own_rows[] = { AGENT_CONF(CONF_ROW) };
#undef CONF_T

static const struct conf_part conf_parts[] = {
	SVC_CONF_PART(shared_rows),
	{ .rows = own_rows, .n = ARRAY_LEN(own_rows) },
};

enum { ISOLATION_NODE, ISOLATION_TENANT };

static enum err check_data_addrs(struct conf *c, struct why *w, const char *name,
				 const struct conf_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		struct addr a;
		struct why bad = { 0 };
		if (addr_parse(l->v[i], &a, &bad))
			return conf_fail(c, w, name, "%s", bad.text);
		if (a.scheme != ADDR_TCP)
			return conf_fail(c, w, name, "%.200s: data lanes are tcp://HOST:PORT",
					 l->v[i]);
	}
	return ERR_NONE;
}

/* An address of every interface: it can be listened on and not be dialed. */
static bool is_any_host(const char *text)
{
	struct addr a;
	return addr_parse(text, &a, NULL) == ERR_NONE &&
	       (strcmp(a.host, "*") == 0 || strcmp(a.host, "0.0.0.0") == 0 ||
		strcmp(a.host, "::") == 0);
}

/* What is told to others has to be what they can dial; `told` is the setting that says it instead. */
static enum err check_told(struct conf *c, struct why *w, const char *name,
			   const struct conf_list *listen, const char *told)
{
	for (size_t i = 0; i < listen->n; i++)
		if (is_any_host(listen->v[i]))
			return conf_fail(c, w, name,
					 "%.200s: nobody can dial that; say under which "
					 "address in agent.%s",
					 listen->v[i], told);
	return ERR_NONE;
}

/* Requests, and data lanes, which without an address of their own are beside them. */
static enum err check_all_told(struct conf *c, struct why *w, const struct xfa *x)
{
	const struct conf_list *rpc = &x->svc.conf.listen, *data = &x->data_listen;
	enum err e = ERR_NONE;
	if (x->svc.conf.advertise.n == 0)
		e = check_told(c, w, ".listen", rpc, "advertise");
	if (e == ERR_NONE && x->data_advertise.n == 0)
		e = data->n ? check_told(c, w, ".data_listen", data, "data_advertise")
			    : check_told(c, w, ".listen", rpc, "data_advertise");
	return e;
}

static enum err check(struct conf *c, const void *at, struct why *w)
{
	const struct xfa *x = at;
	enum err e = svc_conf_check(c, at, w);
	if (e)
		return e;
	if (x->isolation == ISOLATION_TENANT)
		return conf_fail(
			c, w, ".isolation",
			"this release has `node` alone: local clients of this user are "
			"one trust domain; give tenants that must not see each other "
			"users and data folders of their own");
	if (x->data_listen.n == 0 && x->data_advertise.n > 0 && x->svc.conf.listen.n == 0)
		return conf_fail(c, w, ".data_advertise",
				 "nothing is listened on: set agent.data_listen, too");
	e = check_data_addrs(c, w, ".data_listen", &x->data_listen);
	if (e == ERR_NONE)
		e = check_data_addrs(c, w, ".data_advertise", &x->data_advertise);
	if (e == ERR_NONE)
		e = check_all_told(c, w, x);
	if (e)
		return e;
	if (x->pool_size && x->pool_size < 1u << 20)
		return conf_fail(c, w, ".pool_size", "0, or 1MiB..64TiB");
	return ERR_NONE;
}

static const struct conf_schema conf = { "agent", conf_parts, ARRAY_LEN(conf_parts), check };

static const struct metric_row metric_rows[] = { AGENT_METRICS(METRIC_ROW) };
static const struct metric_schema metrics = { "agent", metric_rows, ARRAY_LEN(metric_rows) };

/* clang-format off */
#define ROLES_OF(NAME, num, req, rep, allowed, idem, policy, doc) ROLES_OF_##NAME = (allowed),
enum { HOLDER_METHODS(ROLES_OF) };
#define ROW(NAME, handler, at_once) \
	{ .number = METHOD_##NAME, .name = #NAME, .roles = ROLES_OF_##NAME, .fn = (handler), .sync = (at_once) }
static const struct rpc_method methods[] = {
	ROW(ADOPT,     xfa_on_adopt,     true),
	ROW(INVENTORY, xfa_on_inventory, true),
	ROW(RETIRE,    xfa_on_retire,    true),
	ROW(FREE,      xfa_on_free,      true),
	ROW(MARK,      xfa_on_mark,      true),
	ROW(FENCE,     xfa_on_fence,     true),
	ROW(COPY,      xfa_on_copy,      true),
	ROW(COMMIT,    xfa_on_commit,    false),
};
/* clang-format on */

/* ---- start ---- */

/* In a simulation the machine's name: "sim://NODE/NAME". */
static void find_host(struct xfa *x)
{
	const struct svc *s = &x->svc;
	char node[WHERE_HOST_MAX + 1] = "";
	if (!loop_uv(s->loop) && !s->conf.host_id[0])
		sscanf(s->addrs[0], "sim://%64[^/]", node);
	where_host(node[0] ? node : s->conf.host_id, x->host);
}

static enum err fd_path(struct xfa *x, struct why *why)
{
	if (!loop_uv(x->svc.loop))
		return ERR_NONE;
	int n = snprintf(x->fd_path, sizeof(x->fd_path), "%s/agent.fd", x->svc.run_dir);
	if (n >= (int)sizeof(x->fd_path))
		return why_set(
			why, ERR_INVALID_PARAMS,
			"%s/agent.fd: a socket's path has at most 107 bytes; use --run-dir",
			x->svc.run_dir);
	return ERR_NONE;
}

static enum err on_open(struct svc *s, struct why *why)
{
	struct xfa *x = xfa_of(s);
	find_host(x);
	xfa_asks_init(x);
	enum err e = fd_path(x, why);
	if (e)
		return e;
	e = ticket_key_new(s->keys, s->id, &x->tickets);
	if (e)
		return why_set(why, e,
			       "agent: no key for tickets (%s); services need the cluster's "
			       "secret, not a role's key",
			       err_text(e));
	e = xfa_memory_find(x, why);
	if (e == ERR_NONE)
		e = xfa_link_open(x, why);
	if (e) {
		xfa_memory_close(x);
		ticket_key_free(TAKE(x->tickets));
		return e;
	}
	xfa_memory_begin(x);
	return ERR_NONE;
}

/* Hazard records of writers in this process, and those who write. */
static enum err open_writers(struct xfa *x, struct why *why)
{
	enum err e = mempool_own_lanes(x->pool, x->data_conns_max + x->pulls_max, &x->lanes);
	if (e == ERR_NONE)
		e = xfa_pulls_open(x, x->lanes + x->data_conns_max);
	if (e)
		return why_set(why, e, "copies: %s", err_text(e));
	return loop_uv(x->svc.loop) ? xfa_data_open(x, &x->data, why) : ERR_NONE;
}

static enum err open_sock(struct xfa *x, struct why *why)
{
	const struct svc *s = &x->svc;
	struct shmsock_opts o = { .loop = s->loop,
				  .keys = s->keys,
				  .pool = x->pool,
				  .path = x->fd_path,
				  .conns_max = x->clients_max,
				  .ask_ms = (uint32_t)x->ask_ms };
	return loop_uv(s->loop) ? shmsock_listen(&o, &x->sock, why) : ERR_NONE;
}

void xfa_opened(struct xfa *x)
{
	struct why why = { 0 };
	atomic_store_explicit(&x->epoch, hold_under(x->hold, 0).pool_epoch,
			      memory_order_relaxed);
	xfa_report_start(x);
	enum err e = open_sock(x, &why);
	if (e == ERR_NONE)
		e = open_writers(x, &why);
	if (e)
		svc_fail(&x->svc, e, "%s", why.text);
}

/* ---- what is asked ---- */

static void reasons(struct svc *s, struct svc_reasons *r)
{
	const struct xfa *x = xfa_of(s);
	xfa_memory_reasons(x, r);
	if (x->hold)
		xfa_link_reasons(x, r);
}

static uint64_t pool_epoch(const struct svc *s)
{
	return atomic_load_explicit(&container_of(s, const struct xfa, svc)->epoch,
				    memory_order_relaxed);
}

static void follow(struct xfa *x, unsigned cell, uint64_t now)
{
	uint64_t was = metric_get(x->svc.metrics, XFA_M_FD, cell);
	metric_add(x->svc.metrics, XFA_M_FD, cell, now - was);
}

static void scrape_data(struct xfa *x)
{
	if (!x->data)
		return;
	struct xfa_data_counts *c = &x->data->counts;
	const struct {
		unsigned id, cell;
		_Atomic uint64_t *n;
	} rows[] = {
		{ XFA_M_LANES, 0, &c->lanes_ok },
		{ XFA_M_LANES, 1, &c->lanes_busy },
		{ XFA_M_LANES, 2, &c->lanes_key },
		{ XFA_M_LANES, 3, &c->lanes_bad },
		{ XFA_M_DATA_GETS, 0, &c->get_ok },
		{ XFA_M_DATA_GETS, 1, &c->get_refused },
		{ XFA_M_DATA_GETS, 2, &c->get_cut },
		{ XFA_M_DATA_PUTS, 0, &c->put_ok },
		{ XFA_M_DATA_PUTS, 1, &c->put_refused },
		{ XFA_M_DATA_PUTS, 2, &c->put_cut },
		{ XFA_M_DATA_BYTES, 0, &c->bytes_in },
		{ XFA_M_DATA_BYTES, 1, &c->bytes_out },
		{ XFA_M_DATA_CORRUPT, 0, &c->corrupt },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		uint64_t was = metric_get(x->svc.metrics, rows[i].id, rows[i].cell);
		metric_add(x->svc.metrics, rows[i].id, rows[i].cell,
			   atomic_load(rows[i].n) - was);
	}
	metric_set(x->svc.metrics, XFA_M_LANES_OPEN, 0, (int64_t)atomic_load(&c->open));
}

static void scrape_pulls(struct xfa *x)
{
	struct metrics *m = x->svc.metrics;
	uint32_t idle = 0, open = x->pulls.own ? fetch_lanes_open(x->pulls.own, &idle) : 0;
	metric_set(m, XFA_M_PULLING, 0, x->pulls.n_queued);
	metric_set(m, XFA_M_PULLING, 1, x->pulls.n_running);
	metric_set(m, XFA_M_PULL_LANES, 0, open - idle);
	metric_set(m, XFA_M_PULL_LANES, 1, idle);
}

static void scrape_sock(struct xfa *x)
{
	struct shmsock_counts c;
	if (!x->sock)
		return;
	shmsock_counts(x->sock, &c);
	const uint64_t ends[] = { c.granted, c.refused_user, c.refused_key, c.refused_message,
				  c.refused_busy };
	for (unsigned i = 0; i < ARRAY_LEN(ends); i++)
		follow(x, i, ends[i]);
	metric_set(x->svc.metrics, XFA_M_FD_OPEN, 0, c.open);
}

/* C3: from what is, not from what was added up. */
static void scrape(struct svc *s, struct buf *out)
{
	struct xfa *x = xfa_of(s);
	struct metrics *m = s->metrics;
	if (!x->hold)
		return;
	const struct mempool_start *f = &x->memory.start;
	const uint64_t found[] = { f->committed, f->retired, f->dropped, f->overlaps };
	struct mempool_segment b = xfa_memory_bytes(x);
	metric_set(m, XFA_M_POOL, 0, (int64_t)b.bytes_total);
	metric_set(m, XFA_M_POOL, 1, (int64_t)b.bytes);
	metric_set(m, XFA_M_POOL, 2, (int64_t)hold_quarantine(x->hold));
	metric_set(m, XFA_M_SLOTS, 0, mempool_slots_used(x->pool));
	metric_set(m, XFA_M_SLOTS, 1, mempool_slots(x->pool));
	metric_set(m, XFA_M_SESSIONS, 0, mempool_sessions(x->pool));
	metric_set(m, XFA_M_EPOCH, 0, (int64_t)pool_epoch(s));
	metric_set(m, XFA_M_ADOPTED, 0, x->link.adopted);
	metric_set(m, XFA_M_UNVERIFIED, 0, hold_n_unverified(x->hold));
	for (unsigned i = 0; i < ARRAY_LEN(found); i++)
		metric_set(m, XFA_M_FOUND, i, (int64_t)found[i]);
	for (unsigned k = 0; k < XFA_ASK_KINDS; k++)
		metric_set(m, XFA_M_WAITING, k, (int64_t)x->asks[k].by_version.n);
	metric_set(m, XFA_M_WAITING, 2,
		   (int64_t)(x->report.n_fenced + x->report.n_bad + x->report.n_failed));
	scrape_sock(x);
	scrape_data(x);
	scrape_pulls(x);
}

/* ---- the end ----
 *
 *   drain   no background work any more; COMMITs inside still get their answers
 *   close   questions end, our jobs run out, link and socket close, then the pool
 */

static void on_drain(struct svc *s)
{
	struct xfa *x = xfa_of(s);
	timer_stop(s->loop, &x->memory.again);
	xfa_link_stop(x);
	xfa_report_stop(x);
	xfa_verify_stop(x);
	xfa_pulls_stop(x);
}

static void all_closed(struct xfa *x)
{
	xfa_asks_fini(x);
	xfa_report_fini(x);
	xfa_verify_fini(x);
	xfa_pulls_fini(x);
	xfa_memory_close(x);
	ticket_key_free(TAKE(x->tickets));
	buf_fini(&x->link.body);
	svc_closed(&x->svc);
}

static void part_closed(void *arg)
{
	struct xfa *x = arg;
	assert(x->ends > 0);
	if (--x->ends == 0)
		all_closed(x);
}

void xfa_job_ended(struct xfa *x)
{
	assert(x->n_jobs > 0);
	if (--x->n_jobs == 0 && x->closing)
		part_closed(x);
}

static void on_close(struct svc *s)
{
	struct xfa *x = xfa_of(s);
	x->closing = true;
	xfa_pulls_stop(x);
	x->ends = 1 + (x->n_jobs > 0) + (x->sock != NULL) + (x->data != NULL) +
		  !xfa_pulls_close(x, part_closed, x);
	xfa_asks_stop(x);
	xfa_link_stop(x);
	timer_stop(s->loop, &x->memory.again);
	if (x->sock)
		shmsock_close(TAKE(x->sock), part_closed, x);
	xfa_data_close(TAKE(x->data), part_closed, x);
	xfa_link_close(x, part_closed, x);
}

const struct svc_def xfa_def = {
	.name = "agent",
	.exe = "pomelo-transfer-agent",
	.about = "A node's memory pool and its data plane.",
	.role = ROLE_HOLDER,
	.size = sizeof(struct xfa),
	.needs_master = true,
	.conf = &conf,
	.methods = methods,
	.n_methods = ARRAY_LEN(methods),
	.metrics = &metrics,
	.open = on_open,
	.drain = on_drain,
	.close = on_close,
	.reasons = reasons,
	.pool_epoch = pool_epoch,
	.scrape = scrape,
};
