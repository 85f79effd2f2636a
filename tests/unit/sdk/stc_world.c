/* SPDX-License-Identifier: Apache-2.0 */
#include "stc_world.h"

#include <string.h>

static void no_log(struct log_capture *c, const char *line, size_t n)
{
}

/* ---- the client ---- */

static enum err get_master(void *ctx, struct rpc_client **out, struct why *why)
{
	*out = ((struct world *)ctx)->rpc;
	return ERR_NONE;
}

static enum err map_pool(void *ctx, const struct stc_place *at, struct shmpool **out, int *conn,
			 struct why *why)
{
	struct world *w = ctx;
	struct shmpool_fds fds;
	uint32_t id;
	w->maps++;
	*conn = -1;
	if (w->map_err != ERR_NONE)
		return why_set(why, w->map_err, "no pool for %s", at->holder);
	SIM_CHECK(w->n_sessions < ARRAY_LEN(w->sessions), "too many sessions");
	enum err e = mempool_session(w->f.pool, true, &id, &fds, why);
	if (e == ERR_NONE)
		e = mempool_attach(w->f.pool, id, out);
	if (e == ERR_NONE)
		w->sessions[w->n_sessions++] = id;
	return e;
}

static bool alive(void *ctx)
{
	return sim_proc_state(((struct world *)ctx)->client) != SIM_DEAD;
}

static void on_closed(void *arg)
{
	((struct world *)arg)->closed = true;
}

static void rpc_gone(void *arg)
{
	on_closed(arg);
}

static void stc_gone(void *arg)
{
	struct world *w = arg;
	rpc_client_close(w->rpc, rpc_gone, w);
}

static void stop_client(void *arg)
{
	struct world *w = arg;
	stc_close(w->stc, stc_gone, w);
}

static void start_client(void *arg)
{
	static const char *const addrs[] = { "sim://n0/master" };
	struct world *w = arg;
	struct why why = { 0 };
	loop_random(&w->cl, w->instance, sizeof(w->instance));
	struct rpc_client_opts o = { .addrs = addrs,
				     .n_addrs = 1,
				     .peer_name = "master",
				     .as = ROLE_CLIENT,
				     .expect = ROLE_SERVICE,
				     .tenant = "default",
				     .keys = w->f.keys,
				     .log = &w->log,
				     .instance = w->instance };
	enum err e = rpc_client_new(&w->cl, &o, &w->rpc, &why);
	struct stc_opts so = { .loop = &w->cl,
			       .keys = w->f.keys,
			       .log = &w->log,
			       .tenant = "default",
			       .instance = w->instance,
			       .host_id = "here",
			       .master = get_master,
			       .map = map_pool,
			       .alive = alive,
			       .ctx = w,
			       .step_bytes = w->o.step_bytes ? w->o.step_bytes : 4096,
			       .inline_bytes =
				       w->o.inline_bytes ? w->o.inline_bytes : UINT32_MAX,
			       .snap_keys_max = w->o.snap_keys_max };
	if (e == ERR_NONE)
		e = stc_new(&so, &w->stc, &why);
	SIM_CHECK(e == ERR_NONE, "%s", why.text);
}

static void start_servers(void *arg)
{
	struct world *w = arg;
	fake_open(&w->f);
}

void w_open(struct world *w, const struct w_opts *o)
{
	static const uint8_t secret[32] = { 9 };
	*w = (struct world){ .o = *o, .sim = sim_new(o->seed) };
	w->quiet.fn = no_log;
	w->log = (struct log){ .svc = "test" };
	log_set_capture(&w->log, &w->quiet);
	w->f = (struct fake){ .loop = &w->sl,
			      .log = &w->log,
			      .master_addr = "sim://n0/master",
			      .holder_addr = "sim://n0/holder",
			      .fd_path = "/run/agent.fd",
			      .pool_bytes = o->pool_bytes ? o->pool_bytes : 16 << 20 };
	SIM_CHECK(keyring_new(secret, NULL, &w->f.keys) == ERR_NONE, "no keys");
	SIM_CHECK(pool_memory_new(&w->f.backing) == ERR_NONE, "no pool");
	w->servers = sim_proc_start(sim_node(w->sim, "n0"),
				    &(struct sim_proc_opts){ .name = "servers" });
	sim_loop_open(w->servers, &w->sl);
	sim_run_in(w->servers, start_servers, w);
	w->client =
		sim_proc_start(sim_node(w->sim, "n0"),
			       &(struct sim_proc_opts){
				       .name = "client", .on_kill = stop_client, .arg = w });
	sim_loop_open(w->client, &w->cl);
	sim_run_in(w->client, start_client, w);
}

static bool is_true(void *arg)
{
	return *(bool *)arg;
}

static void servers_gone(void *arg)
{
	((struct world *)arg)->servers_closed = true;
}

static void stop_servers(void *arg)
{
	struct world *w = arg;
	fake_close(&w->f, servers_gone, w);
}

void w_close(struct world *w)
{
	if (sim_proc_state(w->client) == SIM_RUNNING)
		sim_run_in(w->client, stop_client, w);
	SIM_CHECK(sim_run_until(w->sim, is_true, &w->closed, 60000), "the client does not end");
	sim_run_in(w->servers, stop_servers, w);
	SIM_CHECK(sim_run_until(w->sim, is_true, &w->servers_closed, 60000),
		  "the servers do not end");
	sim_loop_close(&w->cl);
	sim_proc_end(w->client);
	sim_loop_close(&w->sl);
	sim_proc_end(w->servers);
	sim_free(w->sim);
	fake_fini(&w->f);
	keyring_free(w->f.keys);
}

/* ---- calls ---- */

struct starting {
	struct world *w;
	struct stc_call *c;
	uint32_t ms;
};

static void on_done(struct stc_call *c)
{
	*(bool *)c->user = true;
}

static void start_call(void *arg)
{
	struct starting *s = arg;
	s->c->deadline_ns = clock_after_ms(loop_now_ns(&s->w->cl), s->ms);
	s->c->done = on_done;
	enum err e = stc_start(s->w->stc, s->c);
	SIM_CHECK(e == ERR_NONE, "stc_start: %s", err_name(e));
}

void w_start(struct world *w, struct stc_call *c, uint32_t ms, bool *done)
{
	struct starting s = { w, c, ms };
	*done = false;
	c->user = done;
	sim_run_in(w->client, start_call, &s);
}

bool w_wait(struct world *w, const bool *done, uint32_t ms)
{
	return sim_run_until(w->sim, is_true, (void *)done, ms);
}

bool w_run(struct world *w, struct stc_call *c, uint32_t ms)
{
	bool done;
	w_start(w, c, ms, &done);
	return w_wait(w, &done, ms + 100); /* T7: by its deadline */
}

static struct stc_call *call_of(enum stc_kind kind, const char *key)
{
	struct stc_call *c = NULL;
	SIM_CHECK(stc_call_new(kind, 1, &c) == ERR_NONE, "no call");
	c->items[0].key = BYTES_STR(key);
	return c;
}

static enum err run_one(struct world *w, struct stc_call *c, uint32_t ms)
{
	SIM_CHECK(w_run(w, c, ms), "a call outlives its deadline");
	return c->items[0].err;
}

enum err w_put(struct world *w, const char *key, struct bytes value, bool upsert, uint32_t ms)
{
	struct stc_call *c = call_of(STC_PUT, key);
	struct stc_buf b = { (void *)value.p, value.n };
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	c->put.upsert = upsert;
	enum err e = run_one(w, c, ms);
	SIM_CHECK(e != ERR_NONE || (c->items[0].version && c->items[0].copies == 1),
		  "a put without a version");
	stc_call_free(c);
	return e;
}

enum err w_get(struct world *w, const char *key, void *out, size_t cap, size_t *n, bool verify,
	       uint32_t ms)
{
	struct stc_call *c = call_of(STC_GET, key);
	struct stc_buf b = { out, cap };
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	c->get.verify = verify;
	enum err e = run_one(w, c, ms);
	if (e == ERR_NONE && n)
		*n = c->items[0].bytes;
	stc_call_free(c);
	return e;
}

enum err w_key(struct world *w, enum stc_kind kind, const char *key, uint32_t ms)
{
	struct stc_call *c = call_of(kind, key);
	enum err e = run_one(w, c, ms);
	stc_call_free(c);
	return e;
}
