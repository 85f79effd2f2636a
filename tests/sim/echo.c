/* SPDX-License-Identifier: Apache-2.0 */
/* The members of the toy cluster, and a run of it. */
#include "tests/sim/echo_svc.h"

#include "rpc/auth.h"

#include <string.h>

/* ---- the service as a member ---- */

static bool run_alive(void *arg)
{
	return sim_proc_state(((struct cl_run *)arg)->proc) == SIM_RUNNING;
}

static void run_ended(void *arg)
{
	cl_run_ended(arg);
}

static enum err echo_start(struct cl_run *r, struct why *why)
{
	struct echo_env env = { .loop = &r->loop,
				.keys = cl_keys(r->cluster),
				.addr = r->addr,
				.world = r->arg,
				.alive = run_alive,
				.ended = run_ended,
				.arg = r };
	enum err e = echo_open(&env, r->state, why);
	SIM_CHECK(e == ERR_NONE, "the echo service does not start: %s", why->text);
	return e;
}

static void echo_stop(struct cl_run *r, bool killed)
{
	echo_end(r->state, killed);
}

const struct cl_app echo_app = { sizeof(struct echo), echo_start, echo_stop };

static void no_log(struct log_capture *cap, const char *line, size_t n)
{
	(void)cap, (void)line, (void)n;
}

/* ---- the callers ---- */

#define SLOTS_MAX 8
#define BODY_MAX  6000

struct slot {
	struct caller *c;
	struct rpc_call call;
	struct timer t;
	uint8_t body[BODY_MAX];
	uint32_t once;
	uint64_t due_ns;
	bool out;
};

struct caller {
	struct cl_run *run;
	struct echo_world *w;
	uint32_t i;
	struct rpc_client *client;
	struct log log;
	struct log_capture capture;
	uint8_t instance[16];
	bool stopping;
	struct slot slots[SLOTS_MAX];
};

static void begin(struct timer *t);

static void again(struct slot *s)
{
	struct loop *l = &s->c->run->loop;
	uint64_t ms = sim_rng_below(&s->c->w->rng, 60);
	if (!s->c->stopping && !s->c->w->quiet)
		timer_start(l, &s->t, clock_after_ms(loop_now_ns(l), ms), begin);
}

/* T7, unless we ourselves could not run. */
static void check_time(struct slot *s)
{
	struct sim_proc *p = s->c->run->proc;
	uint64_t now = loop_now_ns(&s->c->run->loop), late = 0;
	if (now > s->due_ns)
		late = now - s->due_ns;
	uint64_t awake = sim_now_ns(cl_sim(s->c->run->cluster)) - sim_awake_since_ns(p);
	SIM_CHECK(late <= 2 * NS_PER_MS || awake <= 2 * NS_PER_MS ||
			  sim_proc_state(p) == SIM_DEAD,
		  "a call ended %lu us after its deadline: %s", late / 1000,
		  err_name(s->call.err));
}

static void check_end(struct slot *s)
{
	struct rpc_call *c = &s->call;
	struct echo_world *w = s->c->w;
	if (c->err == ERR_NONE) {
		SIM_CHECK(c->reply.n == c->body.n &&
				  memcmp(c->reply.p, c->body.p, c->body.n) == 0,
			  "method %u answered other bytes than it got", c->method);
		SIM_CHECK(c->method != ECHO_NO, "a refusal became a yes");
		w->n_ok++;
		w->ok_of[s->c->i]++;
		if (c->method == ECHO_ONCE)
			w->once_told[s->once % ONCE_MAX] = 1;
		return;
	}
	w->n_failed++;
	SIM_CHECK(strcmp(err_name(c->err), "UNKNOWN") != 0, "error %d is in no row", c->err);
	SIM_CHECK(strstr(c->why.text, "echo"), "%s: '%s' does not name the peer",
		  err_name(c->err), c->why.text);
}

static void call_done(struct rpc_call *c)
{
	struct slot *s = container_of(c, struct slot, call);
	struct echo_world *w = s->c->w;
	SIM_CHECK(s->out, "a call ended twice");
	s->out = false;
	w->n_ended++;
	w->by_err[MIN_OF((size_t)c->err, ARRAY_LEN(w->by_err) - 1)]++;
	check_time(s);
	check_end(s);
	again(s);
}

static size_t fill_body(struct slot *s)
{
	struct echo_world *w = s->c->w;
	uint64_t kind = sim_rng_below(&w->rng, 20);
	size_t n = kind == 0 ? sim_rng_between(&w->rng, 4000, BODY_MAX)
			     : sim_rng_between(&w->rng, 8, 200);
	uint64_t v = sim_rng_next(&w->rng);
	for (size_t i = 0; i < n; i += sizeof(v)) {
		v += 0x9e3779b97f4a7c15ull;
		memcpy(s->body + i, &v, MIN_OF(sizeof(v), n - i));
	}
	return n;
}

static uint32_t pick_method(struct sim_rng *r)
{
	static const uint16_t kinds[] = { ECHO_ECHO, ECHO_ECHO, ECHO_SLOW, ECHO_SLOW, ECHO_WORK,
					  ECHO_PARK, ECHO_ONCE, ECHO_ONCE, ECHO_NO };
	return kinds[sim_rng_below(r, ARRAY_LEN(kinds))];
}

static void begin(struct timer *t)
{
	struct slot *s = container_of(t, struct slot, t);
	struct echo_world *w = s->c->w;
	struct loop *l = &s->c->run->loop;
	if (s->c->stopping || w->quiet)
		return;
	size_t n = fill_body(s);
	uint32_t method = pick_method(&w->rng);
	if (method == ECHO_ONCE) {
		s->once = w->n_once++;
		SIM_CHECK(s->once < ONCE_MAX, "more than %d numbers", ONCE_MAX);
		memcpy(s->body, &s->once, sizeof(s->once));
	}
	uint64_t ms = sim_rng_between(&w->rng, 1, sim_rng_below(&w->rng, 4) ? 1500 : 50);
	s->call = (struct rpc_call){
		.method = method,
		.idempotent = method != ECHO_ONCE || w->bug == ECHO_RETRIES_ONCE,
		.deadline_ns = clock_after_ms(loop_now_ns(l), ms),
		.body = BYTES(s->body, n),
		.done = call_done,
	};
	s->due_ns = s->call.deadline_ns;
	if (w->bug == ECHO_LATE)
		s->call.deadline_ns += 5 * NS_PER_MS;
	s->out = true;
	w->n_begun++;
	rpc_send(s->c->client, &s->call);
	SIM_CHECK(s->out, "a call ended inside rpc_send");
	if (sim_rng_chance(&w->rng, 20000))
		rpc_cancel(&s->call);
}

static enum err caller_start(struct cl_run *r, struct why *why)
{
	struct caller *c = r->state;
	struct echo_caller *arg = r->arg;
	c->run = r;
	c->w = arg->w;
	c->i = arg->i;
	c->capture.fn = no_log;
	c->log = (struct log){ .svc = "caller", .clock = r->loop.clock };
	log_set_capture(&c->log, &c->capture);
	loop_random(&r->loop, c->instance, sizeof(c->instance));
	struct rpc_client_opts o = { .addrs = &arg->to,
				     .n_addrs = 1,
				     .peer_name = "echo",
				     .as = ROLE_CLIENT,
				     .tenant = "t",
				     .expect = ROLE_SERVICE,
				     .keys = cl_keys(r->cluster),
				     .log = &c->log,
				     .instance = c->instance,
				     .inflight_max = 4,
				     .queue_max = 6 };
	enum err e = rpc_client_new(&r->loop, &o, &c->client, why);
	SIM_CHECK(e == ERR_NONE, "no client: %s", why->text);
	for (uint32_t i = 0; i < MIN_OF(c->w->n_slots, (uint32_t)SLOTS_MAX); i++) {
		c->slots[i].c = c;
		again(&c->slots[i]);
	}
	return ERR_NONE;
}

static void caller_closed(void *arg)
{
	struct caller *c = arg;
	for (size_t i = 0; i < SLOTS_MAX; i++)
		SIM_CHECK(!c->slots[i].out, "the client is closed, a call of it never ended");
	cl_run_ended(c->run);
}

static void caller_stop(struct cl_run *r, bool killed)
{
	struct caller *c = r->state;
	(void)killed;
	if (c->stopping)
		return;
	c->stopping = true;
	for (size_t i = 0; i < SLOTS_MAX; i++)
		timer_stop(&r->loop, &c->slots[i].t);
	rpc_client_close(c->client, caller_closed, c);
}

const struct cl_app echo_caller_app = { sizeof(struct caller), caller_start, caller_stop };

/* ---- a run ---- */

static void check_once(const struct echo_world *w)
{
	for (uint32_t i = 0; i < w->n_once; i++) {
		SIM_CHECK(w->once_done[i] <= 1, "number %u was carried out %u times", i,
			  w->once_done[i]);
		SIM_CHECK(w->once_done[i] >= w->once_told[i],
			  "number %u was not carried out, its caller was told so", i);
	}
}

static struct cl_budget budget(struct sim_rng *r)
{
	struct cl_budget b = { .min_ms = 20, .max_ms = 1200 };
	uint32_t *kinds[] = { &b.kill,	   &b.stop,	  &b.suspend,	  &b.partition,
			      &b.oneway,   &b.delay,	  &b.reset,	  &b.lossy,
			      &b.reorder,  &b.clock_jump, &b.clock_drift, &b.black_hole,
			      &b.power_cut };
	/* a few kinds at a time: rare ones alone show what they do */
	for (int i = 0; i < 4; i++)
		*kinds[sim_rng_below(r, ARRAY_LEN(kinds))] += (uint32_t)sim_rng_below(r, 4);
	return b;
}

static bool recovered(void *arg)
{
	struct echo_world *w = arg;
	return w->ok_of[0] > 0 && w->ok_of[1] > 0;
}

static void cluster_of_three(struct cluster *c, struct echo_world *w, struct echo_caller arg[2])
{
	static const char *const names[] = { "c0", "c1" }, *const nodes[] = { "a", "b" };
	cl_add(c, &(struct cl_member_opts){
			  .name = "echo", .node = "s", .app = &echo_app, .arg = w });
	cl_start(c, "echo");
	for (uint32_t i = 0; i < 2; i++) {
		arg[i] = (struct echo_caller){ w, "sim://s/echo", i };
		cl_add(c, &(struct cl_member_opts){ .name = names[i],
						    .node = nodes[i],
						    .app = &echo_caller_app,
						    .arg = &arg[i] });
		cl_start(c, names[i]);
	}
}

uint64_t echo_scenario(uint64_t seed, enum echo_bug bug, struct echo_world *w)
{
	struct cluster *c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = seed });
	struct sim_rng r = sim_rng(seed, "echo");
	struct echo_caller args[2];
	*w = (struct echo_world){ .bug = bug, .rng = sim_rng(seed, "work"), .n_slots = 4 };
	cluster_of_three(c, w, args);
	struct cl_budget b = budget(&r);
	cl_chaos(c, &b, 2000, NULL, NULL);
	cl_run_ms(c, 2500);
	cl_calm(c);
	memset(w->ok_of, 0, sizeof(w->ok_of));
	/* a black hole is found by keepalive after 15..30 s; then comes the back-off */
	SIM_CHECK(cl_until(c, recovered, w, b.black_hole ? 35000 : 6000), "%s",
		  "not every caller is served in calm");
	w->quiet = true;
	cl_run_ms(c, 2000);
	check_once(w); /* while the list of events is there */
	uint64_t h = sim_hash(cl_sim(c));
	cl_close(c);
	check_once(w);
	SIM_CHECK(w->n_begun == w->n_ended, "seed %lu: %lu calls began, %lu ended", seed,
		  w->n_begun, w->n_ended);
	return h;
}
