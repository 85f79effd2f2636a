/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/store_sim.h"

#include "services/transfer-agent/agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const masters[] = { "sim://m0/master" };

/* ---- a client's process ---- */

struct mapped {
	struct pool_backing *backing; /* outlives all (sim_node_ram) */
	uint32_t session;
};

struct run {
	struct cl_run *cl;
	struct ss_client *c;
	struct log log;
	struct log_capture quiet;
	uint8_t instance[16];
	struct rpc_client *master;
	struct mapped maps[SS_MAPS_MAX];
	size_t n_maps;
};

static void no_log(struct log_capture *cap, const char *line, size_t n)
{
	(void)cap, (void)line, (void)n;
}

static bool alive(void *ctx)
{
	struct run *x = ctx;
	return sim_proc_state(x->cl->proc) != SIM_DEAD;
}

static enum err get_master(void *ctx, struct rpc_client **out, struct why *why)
{
	struct run *x = ctx;
	(void)why;
	*out = x->master;
	return ERR_NONE;
}

/* What run/agent.fd does for a client of this host. */
static enum err map_pool(void *ctx, const struct stc_place *at, struct shmpool **out, int *conn,
			 struct why *why)
{
	struct run *x = ctx;
	struct ss *s = x->c->ss;
	*conn = -1;
	for (size_t i = 0; i < s->n_agents; i++) {
		struct svc *svc = cl_svc_of(s->c, s->agents[i].name);
		struct mempool *pool = svc ? xfa_of(svc)->pool : NULL;
		struct shmpool_fds fds;
		uint32_t id;
		if (!pool || memcmp(mempool_id(pool), at->pool, 16) != 0)
			continue;
		enum err e = mempool_session(pool, true, &id, &fds, why);
		if (e == ERR_NONE && x->n_maps == SS_MAPS_MAX)
			e = why_set(why, ERR_BUSY, "the harness keeps %d maps", SS_MAPS_MAX);
		if (e == ERR_NONE)
			e = mempool_attach(pool, id, out);
		if (e == ERR_NONE)
			x->maps[x->n_maps++] = (struct mapped){ svc->backing, id };
		return e;
	}
	return why_set(why, ERR_UNREACHABLE, "%s: its agent is not up", at->holder);
}

static void start_failed(struct run *x, enum err e, const struct why *why)
{
	SIM_CHECK(e == ERR_NONE, "%s does not start: %s", x->c->name, why->text);
}

static enum err start(struct cl_run *r, struct why *why)
{
	struct run *x = r->state;
	x->cl = r;
	x->c = r->arg;
	x->quiet.fn = no_log;
	x->log = (struct log){ .svc = "client", .clock = r->loop.clock };
	log_set_capture(&x->log, &x->quiet);
	loop_random(&r->loop, x->instance, sizeof(x->instance));
	struct rpc_client_opts o = { .addrs = masters,
				     .n_addrs = 1,
				     .peer_name = "master",
				     .as = ROLE_CLIENT,
				     .expect = ROLE_SERVICE,
				     .tenant = x->c->tenant,
				     .keys = cl_keys(r->cluster),
				     .log = &x->log,
				     .instance = x->instance,
				     .backoff_max_ms = 300 };
	start_failed(x, rpc_client_new(&r->loop, &o, &x->master, why), why);
	struct stc_opts so = { .loop = &r->loop,
			       .keys = cl_keys(r->cluster),
			       .log = &x->log,
			       .tenant = x->c->tenant,
			       .instance = x->instance,
			       .host_id = "host",
			       .master = get_master,
			       .map = map_pool,
			       .alive = alive,
			       .ctx = x,
			       .step_bytes = 4096,
			       .inline_bytes = UINT32_MAX };
	start_failed(x, stc_new(&so, &x->c->stc, why), why);
	x->c->loop = &r->loop;
	x->c->instance = x->instance;
	if (x->c->begin)
		x->c->begin(x->c);
	return ERR_NONE;
}

/* Its hazard pages are nobody's any more. */
static void let_go(struct run *x)
{
	for (size_t i = 0; i < x->n_maps; i++)
		pool_memory_session_killed(x->maps[i].backing, x->maps[i].session);
	x->n_maps = 0;
}

static void master_closed(void *arg)
{
	cl_run_ended(((struct run *)arg)->cl);
}

static void stc_closed(void *arg)
{
	struct run *x = arg;
	let_go(x);
	rpc_client_close(x->master, master_closed, x);
}

static void stop(struct cl_run *r, bool killed)
{
	struct run *x = r->state;
	struct ss_client *c = x->c;
	if (killed)
		let_go(x);
	if (c->end)
		c->end(c, killed);
	c->loop = NULL;
	c->instance = NULL;
	stc_close(TAKE(c->stc), stc_closed, x);
}

static const struct cl_app client_app = { sizeof(struct run), start, stop };

/* ---- the cluster ---- */

static void agent_add(struct ss *s, size_t i, const struct ss_opts *o)
{
	struct ss_agent *a = &s->agents[i];
	size_t n = 0;
	snprintf(a->name, sizeof(a->name), "a%zu", i);
	snprintf(a->node, sizeof(a->node), "n%zu", i);
	snprintf(a->pool_size, sizeof(a->pool_size), "agent.pool_size=%" PRIu64,
		 o->pool_bytes ? o->pool_bytes : (uint64_t)4 << 20);
	const char *own[] = { "--set", a->pool_size, "--set", "host_id=host" };
	for (size_t k = 0; k < ARRAY_LEN(own); k++)
		a->flags[n++] = own[k];
	for (const char *const *f = o->agent_flags; f && *f; f++) {
		SIM_CHECK(n + 1 < SS_FLAGS_MAX, "more than %d flags", SS_FLAGS_MAX);
		a->flags[n++] = *f;
	}
	a->svc = (struct cl_svc){ .def = &xfa_def,
				  .masters = masters,
				  .n_masters = 1,
				  .flags = a->flags,
				  .fetch = &fetch_sim_ops,
				  .fetch_ctx = fetch_sim_add(&s->fetch, a->name) };
	cl_add(s->c,
	       &(struct cl_member_opts){
		       .name = a->name, .node = a->node, .app = &cl_svc_app, .arg = &a->svc });
}

void ss_open(struct ss *s, const struct ss_opts *o)
{
	SIM_CHECK(o->n_agents <= SS_AGENTS_MAX, "more than %d agents", SS_AGENTS_MAX);
	*s = (struct ss){ .n_agents = o->n_agents };
	s->c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = o->seed });
	fetch_sim_init(&s->fetch, s->c, o->seed);
	s->master = (struct cl_svc){
		.def = &mst_def, .masters = masters, .n_masters = 1, .flags = o->master_flags
	};
	cl_add(s->c,
	       &(struct cl_member_opts){
		       .name = "master", .node = "m0", .app = &cl_svc_app, .arg = &s->master });
	for (size_t i = 0; i < o->n_agents; i++)
		agent_add(s, i, o);
}

void ss_close(struct ss *s)
{
	struct mst *m = ss_master(s);
	if (m && m->term.mind)
		mind_check(m->term.mind);
	cl_close(s->c);
}

struct ss_client *ss_client(struct ss *s, const char *name, const char *node,
			    const char *tenant)
{
	SIM_CHECK(s->n_clients < SS_CLIENTS_MAX, "more than %d clients", SS_CLIENTS_MAX);
	struct ss_client *c = &s->clients[s->n_clients++];
	c->ss = s;
	snprintf(c->name, sizeof(c->name), "%s", name);
	snprintf(c->node, sizeof(c->node), "%s", node);
	snprintf(c->tenant, sizeof(c->tenant), "%s", tenant);
	cl_add(s->c, &(struct cl_member_opts){
			     .name = c->name, .node = c->node, .app = &client_app, .arg = c });
	return c;
}

struct ss_client *ss_client_of(struct ss *s, const char *name)
{
	for (size_t i = 0; i < s->n_clients; i++)
		if (strcmp(s->clients[i].name, name) == 0)
			return &s->clients[i];
	SIM_CHECK(false, "no client %s", name);
	return NULL;
}

struct mst *ss_master(struct ss *s)
{
	struct svc *m = cl_svc_of(s->c, "master");
	return m ? mst_of(m) : NULL;
}

struct mind_counts ss_counts(struct ss *s)
{
	struct mind_counts c = { .recovering = true };
	struct mst *m = ss_master(s);
	if (m && m->term.mind)
		mind_counts(m->term.mind, &c);
	return c;
}

bool ss_ready(void *arg)
{
	struct ss *s = arg;
	struct mst *m = ss_master(s);
	struct mind *mind = m ? m->term.mind : NULL;
	struct mind_holder h;
	size_t n = 0;
	if (!mind || ss_counts(s).recovering)
		return false;
	for (uint32_t i = 0; i < mind_holders(mind); i++)
		if (mind_holder(mind, i, &h))
			n += !h.away && h.merged && !h.suspect && h.bytes_total > 0;
	return n == s->n_agents;
}

void ss_start(struct ss *s)
{
	SIM_CHECK(cl_start(s->c, "master"), "master: %s", cl_why(s->c, "master"));
	for (size_t i = 0; i < s->n_agents; i++)
		SIM_CHECK(cl_start(s->c, s->agents[i].name), "agent: %s",
			  cl_why(s->c, s->agents[i].name));
	for (size_t i = 0; i < s->n_clients; i++)
		SIM_CHECK(cl_start(s->c, s->clients[i].name), "client");
	SIM_CHECK(cl_until(s->c, ss_ready, s, 10000), "the store is not ready after 10 s");
}

/* ---- calls ---- */

struct waiting {
	struct ss_client *c;
	struct stc_call *call;
	uint32_t ms;
	enum err err;
	bool done;
};

static void on_done(struct stc_call *c)
{
	((struct waiting *)c->user)->done = true;
}

static void begin(void *arg)
{
	struct waiting *w = arg;
	w->err = ERR_CLOSED;
	if (w->c->stc) {
		w->call->deadline_ns = clock_after_ms(loop_now_ns(w->c->loop), w->ms);
		w->err = stc_start(w->c->stc, w->call);
	}
	w->done = w->err != ERR_NONE;
}

static bool is_done(void *arg)
{
	return ((struct waiting *)arg)->done;
}

enum err ss_call(struct ss *s, const char *client, struct stc_call *c, uint32_t ms)
{
	struct waiting w = { .c = ss_client_of(s, client), .call = c, .ms = ms };
	if (!w.c->stc)
		return ERR_CLOSED;
	c->done = on_done;
	c->user = &w;
	sim_at_proc(sim_loop_proc(w.c->loop), sim_now_ns(cl_sim(s->c)), begin, &w);
	SIM_CHECK(cl_until(s->c, is_done, &w, ms + 10000),
		  "a call of %s did not end by its deadline (T7)", client);
	return w.err;
}

static struct stc_call *one(enum stc_kind kind, const char *key)
{
	struct stc_call *c = NULL;
	SIM_CHECK(stc_call_new(kind, 1, &c) == ERR_NONE, "no memory");
	c->items[0].key = BYTES_STR(key);
	return c;
}

static enum err run_one(struct ss *s, const char *client, struct stc_call *c, uint32_t ms)
{
	enum err e = ss_call(s, client, c, ms);
	if (e == ERR_NONE && c->items[0].err)
		sim_note(cl_sim(s->c), "%s: %s: %s %s %s", client, err_name(c->items[0].err),
			 c->items[0].peer, c->items[0].step, c->items[0].text);
	return e ? e : c->items[0].err;
}

enum err ss_put(struct ss *s, const char *client, const char *key, struct bytes value,
		bool upsert, uint32_t ms, uint64_t *version)
{
	struct stc_call *c = one(STC_PUT, key);
	struct stc_buf b = { (void *)(uintptr_t)value.p, value.n };
	c->put.upsert = upsert;
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	enum err e = run_one(s, client, c, ms);
	if (e == ERR_NONE && version)
		*version = c->items[0].version;
	stc_call_free(c);
	return e;
}

enum err ss_get(struct ss *s, const char *client, const char *key, uint32_t ms,
		struct buf *value)
{
	struct stc_call *c = one(STC_GET, key);
	size_t n = 1 << 20;
	struct stc_buf b = { malloc(n), n };
	SIM_CHECK(b.p, "no memory");
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	enum err e = run_one(s, client, c, ms);
	if (value)
		buf_clear(value);
	if (e == ERR_NONE && value)
		buf_put(value, b.p, c->items[0].size);
	stc_call_free(c);
	free(b.p);
	return e;
}

static enum err plain(struct ss *s, const char *client, enum stc_kind kind, const char *key,
		      uint32_t ms)
{
	struct stc_call *c = one(kind, key);
	enum err e = run_one(s, client, c, ms);
	stc_call_free(c);
	return e;
}

enum err ss_remove(struct ss *s, const char *client, const char *key, uint32_t ms)
{
	return plain(s, client, STC_REMOVE, key, ms);
}

enum err ss_exists(struct ss *s, const char *client, const char *key, uint32_t ms)
{
	return plain(s, client, STC_EXISTS, key, ms);
}
