/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/echo_svc.h"

#include "loop/pool.h"
#include "rpc/auth.h"

#include <stdio.h>
#include <string.h>

/* ---- the service ---- */

/* A request that is answered later. */
struct item {
	struct list node;
	struct echo *e;
	struct rpc_req *r;
	struct timer t;
	struct job job;
	bool in_pool;
};

static void no_log(struct log_capture *cap, const char *line, size_t n)
{
	(void)cap, (void)line, (void)n;
}

static void answer(struct echo *e, struct rpc_req *r)
{
	if (e->w->bug == ECHO_WRONG_BYTES && r->body.n > 8 && sim_rng_chance(&e->w->rng, 20000))
		rpc_reply(r, ERR_NONE, 0, BYTES(r->body.p, r->body.n - 1));
	else
		rpc_reply(r, ERR_NONE, 0, r->body);
}

static void item_end(struct item *i)
{
	struct echo *e = i->e;
	timer_stop(e->env.loop, &i->t);
	list_del(&i->node);
	if (e->w->bug != ECHO_FORGETS || !sim_rng_chance(&e->w->rng, 20000))
		answer(e, i->r);
	free(i);
}

static struct item *item_new(struct echo *e, struct rpc_req *r)
{
	struct item *i = calloc(1, sizeof(*i));
	if (!i) {
		rpc_reply(r, ERR_NO_MEMORY, 0, BYTES(NULL, 0));
		return NULL;
	}
	i->e = e;
	i->r = r;
	list_push_back(&e->items, &i->node);
	return i;
}

static void on_echo(void *ctx, struct rpc_req *r)
{
	answer(ctx, r);
}

static void on_no(void *ctx, struct rpc_req *r)
{
	struct why why = { 0 };
	(void)ctx;
	why_set(&why, ERR_NOT_FOUND, "echo: there is nothing of the kind");
	rpc_reply_why(r, &why, 0);
}

static void on_time(struct timer *t)
{
	item_end(container_of(t, struct item, t));
}

static void after(struct item *i, uint64_t max_ms)
{
	struct loop *l = i->e->env.loop;
	uint64_t ms = sim_rng_below(&i->e->w->rng, max_ms);
	timer_start(l, &i->t, clock_after_ms(loop_now_ns(l), ms), on_time);
}

static void on_slow(void *ctx, struct rpc_req *r)
{
	struct item *i = item_new(ctx, r);
	if (i)
		after(i, 300);
}

static void on_park(void *ctx, struct rpc_req *r)
{
	enum err err = rpc_park(r);
	if (err != ERR_NONE) {
		rpc_reply(r, err, 10, BYTES(NULL, 0));
		return;
	}
	struct item *i = item_new(ctx, r);
	if (i)
		after(i, 3000);
}

static void work(struct job *j)
{
	struct item *i = container_of(j, struct item, job);
	j->err = i->r->body.n < 8 ? ERR_INVALID_PARAMS : ERR_NONE;
}

static void work_done(struct job *j)
{
	struct item *i = container_of(j, struct item, job);
	i->in_pool = false;
	if (i->e->w->bug == ECHO_LOSES_WAKE && sim_rng_chance(&i->e->w->rng, 50000))
		return; /* nobody will ever look at it again */
	item_end(i);
}

static void on_work(void *ctx, struct rpc_req *r)
{
	struct item *i = item_new(ctx, r);
	if (!i)
		return;
	i->job = (struct job){ .work = work, .done = work_done };
	i->in_pool = true;
	if (pool_submit(i->e->pool, &i->job) == ERR_NONE)
		return;
	list_del(&i->node);
	free(i);
	rpc_reply(r, ERR_BUSY, 20, BYTES(NULL, 0));
}

static void on_once(void *ctx, struct rpc_req *r)
{
	struct echo *e = ctx;
	uint32_t n;
	memcpy(&n, r->body.p, sizeof(n));
	/* a dead process changes nothing any more */
	if (e->w->bug == ECHO_TELLS_LIES && sim_rng_chance(&e->w->rng, 20000))
		; /* not a thing */
	else if ((!e->env.alive || e->env.alive(e->env.arg)))
		e->w->once_done[n % ONCE_MAX]++;
	answer(e, r);
}

#define ANYONE (1u << ROLE_CLIENT | 1u << ROLE_ADMIN)

static const struct rpc_method methods[] = {
	{ ECHO_ECHO, "ECHO", ANYONE, on_echo, NULL, true },
	{ ECHO_SLOW, "SLOW", ANYONE, on_slow, NULL, false },
	{ ECHO_WORK, "WORK", ANYONE, on_work, NULL, false },
	{ ECHO_PARK, "PARK", ANYONE, on_park, NULL, false },
	{ ECHO_ONCE, "ONCE", ANYONE, on_once, NULL, true },
	{ ECHO_NO, "NO", ANYONE, on_no, NULL, true },
};

static enum err echo_listen(struct echo *e, struct why *why)
{
	struct rpc_server_opts o = {
		.keys = e->env.keys,
		.log = &e->log,
		.instance = e->instance,
		.role = ROLE_SERVICE,
		.name = "echo",
		.limits = { .parked_bytes_max = 32768, .inflight_max = 64 },
	};
	enum err err = rpc_server_new(e->env.loop, &o, &e->server);
	if (err != ERR_NONE)
		return why_set(why, err, "no server");
	for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
		struct rpc_method m = methods[i];
		m.ctx = e;
		rpc_server_add(e->server, &m, 1);
	}
	return rpc_server_listen(e->server, e->env.addr, NULL, 0, why);
}

enum err echo_open(const struct echo_env *env, struct echo *e, struct why *why)
{
	e->env = *env;
	e->w = env->world;
	e->capture.fn = no_log;
	e->log = (struct log){ .svc = "echo", .clock = env->loop->clock };
	log_set_capture(&e->log, &e->capture);
	list_init(&e->items);
	loop_random(env->loop, e->instance, sizeof(e->instance));
	struct pool_opts po = { .name = "w", .n_threads = 2, .depth = 8 };
	enum err err = pool_new(env->loop, &po, &e->pool);
	return err == ERR_NONE ? echo_listen(e, why) : why_set(why, err, "no pool");
}

static void echo_tick(struct timer *t);

static void echo_closed(void *arg)
{
	struct echo *e = arg;
	pool_free(e->pool);
	if (e->w->bug == ECHO_LEAVES_TIMER)
		timer_start(e->env.loop, &e->tick, UINT64_MAX - 1, echo_tick);
	if (e->w->bug == ECHO_OWES)
		loop_expect(e->env.loop);
	e->env.ended(e->env.arg);
}

static void echo_tick(struct timer *t)
{
	struct echo *e = container_of(t, struct echo, tick);
	struct loop *l = e->env.loop;
	if (rpc_server_inflight(e->server) > 0 || !list_empty(&e->items)) {
		timer_start(l, &e->tick, clock_after_ms(loop_now_ns(l), 5), echo_tick);
		return;
	}
	rpc_server_close(e->server, echo_closed, e);
}

static void end_items(struct echo *e)
{
	list_for_each_safe (n, &e->items) {
		struct item *i = list_entry(n, struct item, node);
		if (!i->in_pool)
			item_end(i);
	}
}

void echo_end(struct echo *e, bool at_once)
{
	if (at_once)
		end_items(e);
	if (e->stopping)
		return;
	e->stopping = true;
	rpc_server_drain(e->server);
	timer_start(e->env.loop, &e->tick, loop_now_ns(e->env.loop), echo_tick);
}
