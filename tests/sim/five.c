/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/five.h"

#include "tests/support/cluster_svc.h"

#include "proto/messages.h"
#include "rpc/net_sim.h"
#include "services/master/master.h"
#include "services/offload-owner/owner.h"
#include "services/pg-coordinator/pg.h"
#include "services/transfer-agent/agent.h"
#include "services/weight-planner/planner.h"

#include <inttypes.h>
#include <string.h>

#define N	       5
#define SLOTS	       6
#define SAMPLE_MS      50
#define SETTLE_MS      4000 /* beats, a handshake and a back-off after the last fault */
#define SETTLE_SAMPLES (1500 / SAMPLE_MS) /* until the next beat tells that it is ready */

static const char *const masters[] = { "sim://m0/master" };
static const char *const flags[] = { "--set", "holder_dead_ms=4000", NULL };
static const struct cl_svc svcs[N] = {
	{ &mst_def, masters, 1, flags }, { &xfa_def, masters, 1, flags },
	{ &own_def, masters, 1, flags }, { &wpl_def, masters, 1, flags },
	{ &pgc_def, masters, 1, flags },
};
static const char *const names[N] = { "master", "agent", "owner", "planner", "pg" };
static const char *const nodes[N] = { "m0", "n1", "n1", "n2", "n3" };

struct world {
	struct cluster *c;
	struct sim_rng rng;
	struct five_sums *sums;
	bool quiet;
	enum five_plant plant;
	uint32_t n_ready[N]; /* samples in a row in which it was */
	struct term {
		uint64_t now, run,
			before; /* of the present run; which it is; of earlier runs */
	} term[N];
};

/* ---- callers ---- */

struct slot {
	struct probe *p;
	struct rpc_call call;
	struct timer t;
	struct buf body;
	size_t to;
	bool out;
};

struct probe {
	struct cl_run *run;
	struct world *w;
	struct rpc_client *client[N];
	struct log log;
	struct log_capture quiet;
	uint8_t instance[16];
	uint32_t n_open;
	bool stopping;
	struct slot slots[SLOTS];
};

static void no_log(struct log_capture *cap, const char *line, size_t n)
{
	(void)cap, (void)line, (void)n;
}

static void begin(struct timer *t);

static void again(struct slot *s)
{
	struct loop *l = &s->p->run->loop;
	uint64_t ms = sim_rng_between(&s->p->w->rng, 5, 150);
	if (!s->p->stopping && !s->p->w->quiet)
		timer_start(l, &s->t, clock_after_ms(loop_now_ns(l), ms), begin);
}

/* F5 */
static void check_time(const struct slot *s)
{
	const struct sim_proc *p = s->p->run->proc;
	uint64_t now = loop_now_ns(&s->p->run->loop), due = s->call.deadline_ns;
	uint64_t awake = sim_now_ns(cl_sim(s->p->w->c)) - sim_awake_since_ns(p);
	SIM_CHECK(now <= due + 2 * NS_PER_MS || awake <= 2 * NS_PER_MS ||
			  sim_proc_state(p) == SIM_DEAD,
		  "a call to %s ended %" PRIu64 " us late: %s", names[s->to],
		  (now - due) / 1000, err_name(s->call.err));
}

/* F4, seen from outside: no reply is from a term that no run has raised. */
static void check_term(const struct slot *s)
{
	const struct term *t = &s->p->w->term[s->to];
	uint64_t top = MAX_OF(t->now, t->before);
	/* the latest may not have been looked at yet: runs that ended between two samples */
	SIM_CHECK(s->call.term <= top + cl_runs(s->p->w->c, names[s->to]) - t->run + 1,
		  "%s answers under term %" PRIu64 ", its terms go to %" PRIu64, names[s->to],
		  s->call.term, top);
}

static void check_answer(const struct slot *s)
{
	const struct rpc_call *c = &s->call;
	struct dec d = DEC_INIT(c->reply, NULL, NULL);
	if (c->method == METHOD_ECHO) {
		struct msg_echo m;
		SIM_CHECK(dec_echo(&d, &m) == ERR_NONE && m.data.n > 0 && m.data.p[0] == 'e',
			  "%s: ECHO is not what was sent", names[s->to]);
	} else if (c->method == METHOD_VERSION) {
		struct msg_version_rep m;
		SIM_CHECK(dec_version_rep(&d, &m) == ERR_NONE && m.v_min <= m.v_max,
			  "%s: VERSION cannot be read", names[s->to]);
	}
}

static void call_done(struct rpc_call *c)
{
	struct slot *s = container_of(c, struct slot, call);
	struct five_sums *sums = s->p->w->sums;
	SIM_CHECK(s->out, "a call ended twice");
	s->out = false;
	sums->by_err[MIN_OF((size_t)c->err, ARRAY_LEN(sums->by_err) - 1)]++;
	check_time(s);
	if (c->err == ERR_NONE) {
		sums->ok++;
		check_answer(s);
		check_term(s);
	} else {
		SIM_CHECK(c->why.text[0], "%s: %s without a word", names[s->to],
			  err_name(c->err));
	}
	buf_fini(&s->body);
	again(s);
}

static void begin(struct timer *t)
{
	struct slot *s = container_of(t, struct slot, t);
	struct world *w = s->p->w;
	struct loop *l = &s->p->run->loop;
	uint64_t kind = sim_rng_below(&w->rng, 4), ms = sim_rng_between(&w->rng, 5, 1500);
	if (s->p->stopping || w->quiet)
		return;
	s->to = sim_rng_below(&w->rng, N);
	s->body = BUF_INIT(4096);
	if (kind < 2) {
		uint32_t park = kind ? (uint32_t)sim_rng_below(&w->rng, 800) : 0;
		enc_echo(&s->body,
			 &(struct msg_echo){ .data = BYTES("echo", 4), .park_ms = park });
	}
	s->call = (struct rpc_call){
		.method = kind < 2 ? METHOD_ECHO : METHOD_VERSION,
		.idempotent = true,
		.deadline_ns = clock_after_ms(loop_now_ns(l), ms),
		.body = buf_bytes(&s->body),
		.done = call_done,
	};
	s->out = true;
	w->sums->calls++;
	rpc_send(s->p->client[s->to], &s->call);
}

static void client_open(struct probe *p, size_t i)
{
	char addr[64];
	const char *addrs[] = { addr };
	struct why why = { 0 };
	snprintf(addr, sizeof(addr), "sim://%s/%s", nodes[i], names[i]);
	struct rpc_client_opts o = { .addrs = addrs,
				     .n_addrs = 1,
				     .peer_name = names[i],
				     .as = ROLE_ADMIN,
				     .expect_name = names[i],
				     .keys = cl_keys(p->run->cluster),
				     .log = &p->log,
				     .instance = p->instance };
	enum err e = rpc_client_new(&p->run->loop, &o, &p->client[i], &why);
	SIM_CHECK(e == ERR_NONE, "no client: %s", why.text);
	p->n_open++;
}

static enum err probe_start(struct cl_run *r, struct why *why)
{
	struct probe *p = r->state;
	(void)why;
	p->run = r;
	p->w = r->arg;
	p->quiet.fn = no_log;
	p->log = (struct log){ .svc = "probe", .clock = r->loop.clock };
	log_set_capture(&p->log, &p->quiet);
	loop_random(&r->loop, p->instance, sizeof(p->instance));
	for (size_t i = 0; i < N; i++)
		client_open(p, i);
	for (size_t i = 0; i < SLOTS; i++) {
		p->slots[i].p = p;
		again(&p->slots[i]);
	}
	return ERR_NONE;
}

static void client_closed(void *arg)
{
	struct probe *p = arg;
	if (--p->n_open > 0)
		return;
	for (size_t i = 0; i < SLOTS; i++)
		SIM_CHECK(!p->slots[i].out, "the clients are closed, a call never ended");
	cl_run_ended(p->run);
}

static void probe_stop(struct cl_run *r, bool killed)
{
	struct probe *p = r->state;
	(void)killed;
	if (p->stopping)
		return;
	p->stopping = true;
	for (size_t i = 0; i < SLOTS; i++)
		timer_stop(&r->loop, &p->slots[i].t);
	for (size_t i = 0; i < N; i++)
		rpc_client_close(p->client[i], client_closed, p);
}

static const struct cl_app probe_app = { sizeof(struct probe), probe_start, probe_stop };

/* ---- what the master sees ---- */

static uint64_t quiet_ms(struct world *w, const char *name)
{
	uint64_t at = cl_touched_ns(w->c, name), now = cl_now_ns(w->c);
	return at == UINT64_MAX ? 0 : (now - at) / NS_PER_MS;
}

static uint64_t still_ms(struct world *w, const char *name)
{
	uint64_t at = cl_still_since_ns(w->c, name), now = cl_now_ns(w->c);
	return at == UINT64_MAX ? 0 : (now - at) / NS_PER_MS;
}

static bool is_ready(struct svc *s)
{
	struct svc_reasons why;
	svc_reasons(s, &why);
	return s->state == SVC_RUNNING && why.n == 0;
}

static void check_one(struct world *w, struct svc *master, size_t i, char id[65])
{
	struct beat_peer p;
	struct svc *s = cl_svc_of(w->c, names[i]);
	uint64_t quiet = quiet_ms(w, names[i]), still = still_ms(w, names[i]);
	uint64_t mq = quiet_ms(w, "master");
	if (s)
		memcpy(id, s->id, sizeof(s->id));
	w->n_ready[i] = s && is_ready(s) ? w->n_ready[i] + 1 : 0;
	bool known = id[0] && beat_table_find(mst_of(master)->beats, id, &p);
	if (known)
		w->sums->seen[p.state]++;
	if (MIN_OF(quiet, mq) > SETTLE_MS) { /* F1, F3 */
		SIM_CHECK(known, "%s, untouched for %" PRIu64 " ms, is not known", names[i],
			  quiet);
		bool ready = p.state == BEAT_READY;
		SIM_CHECK(ready || (p.state == BEAT_STARTING && w->n_ready[i] < SETTLE_SAMPLES),
			  "%s, untouched for %" PRIu64 " ms, is %s", names[i], quiet,
			  beat_state_name(p.state));
		SIM_CHECK(s && memcmp(p.instance, s->instance, 16) == 0,
			  "%s: an older run of it is taken for alive", names[i]);
	}
	uint64_t suspect = master->conf.suspect_ms, dead = master->conf.holder_dead_ms;
	uint64_t both = MIN_OF(still, mq);
	if (known && both > suspect * 2 + 1000) /* F2 */
		SIM_CHECK(p.state != BEAT_READY && p.state != BEAT_STARTING,
			  "%s, still for %" PRIu64 " ms, is %s", names[i], still,
			  beat_state_name(p.state));
	if (known && both > dead + suspect + 1000)
		SIM_CHECK(p.state == BEAT_DEAD, "%s, still for %" PRIu64 " ms, is %s", names[i],
			  still, beat_state_name(p.state));
}

/* F4, seen from inside. */
static void check_terms(struct world *w, size_t i)
{
	const struct svc *s = cl_svc_of(w->c, names[i]);
	struct term *t = &w->term[i];
	uint64_t run = cl_runs(w->c, names[i]), now = 0;
	if (s && s->state == SVC_RUNNING && s->def->term)
		now = s->def->term(s);
	if (now == 0)
		return;
	if (run != t->run) {
		t->before = MAX_OF(t->before, t->now);
		SIM_CHECK(now > t->before,
			  "run %" PRIu64 " of %s has term %" PRIu64
			  ", an earlier one had %" PRIu64,
			  run, names[i], now, t->before);
	} else {
		SIM_CHECK(now == t->now, "%s changed its term from %" PRIu64 " to %" PRIu64,
			  names[i], t->now, now);
	}
	t->run = run;
	t->now = now;
}

static void check_all(struct world *w, char ids[N][65])
{
	for (size_t i = 0; i < N; i++)
		check_terms(w, i);
	struct svc *m = cl_svc_of(w->c, "master");
	if (!m || m->state != SVC_RUNNING)
		return;
	for (size_t i = 0; i < N; i++)
		check_one(w, m, i, ids[i]);
}

static void run_checked(struct world *w, uint64_t ms, char ids[N][65])
{
	uint64_t end = clock_after_ms(cl_now_ns(w->c), ms);
	while (cl_now_ns(w->c) < end) {
		cl_run_ms(w->c, SAMPLE_MS);
		check_all(w, ids);
	}
}

/* ---- faults the cluster is not told of ---- */

static void secret(void *arg)
{
	struct world *w = arg;
	struct svc *s = cl_svc_of(w->c, "planner");
	struct sim_proc *p = s ? sim_loop_proc(s->loop) : NULL;
	if (!p)
		return;
	if (w->plant == FIVE_SECRET_STOP)
		sim_stop(p);
	else if (w->plant == FIVE_SECRET_CUT)
		net_link_cut(sim_net(cl_sim(w->c)), "n2", "m0");
	else
		sim_cont(p);
}

static void plant(struct world *w, enum five_plant what)
{
	w->plant = what;
	if (what == FIVE_NONE)
		return;
	if (what == FIVE_SECRET_CONT)
		cl_stop(w->c, "planner");
	sim_at(cl_sim(w->c), clock_after_ms(cl_now_ns(w->c), 100), secret, w);
}

/* ---- a run ---- */

static struct cl_budget budget(struct sim_rng *r)
{
	struct cl_budget b = { .min_ms = 50, .max_ms = 9000 };
	uint32_t *kinds[] = { &b.kill,	     &b.kill,	   &b.stop,	  &b.suspend,
			      &b.partition,  &b.oneway,	   &b.delay,	  &b.reset,
			      &b.lossy,	     &b.reorder,   &b.clock_jump, &b.clock_drift,
			      &b.black_hole, &b.power_cut, &b.disk_full,  &b.disk_slow };
	for (int i = 0; i < 4; i++)
		*kinds[sim_rng_below(r, ARRAY_LEN(kinds))] += (uint32_t)sim_rng_below(r, 3);
	b.clock_jump++;
	b.kill++;
	return b;
}

/* What an operator does: who says that its log could not be opened is started again. */
static void mend(struct world *w)
{
	struct svc_reasons why;
	for (size_t i = 0; i < N; i++) {
		struct svc *s = cl_svc_of(w->c, names[i]);
		bool broken = !s;
		if (s)
			svc_reasons(s, &why);
		for (size_t k = 0; s && k < why.n; k++)
			broken |= strncmp(why.text[k], "meta log: ", 10) == 0;
		if (!broken)
			continue;
		w->sums->mended++;
		cl_restart(w->c, names[i]);
	}
}

static bool all_ready(void *arg)
{
	struct world *w = arg;
	for (size_t i = 0; i < N; i++) {
		struct svc *s = cl_svc_of(w->c, names[i]);
		if (!s || !is_ready(s))
			return false;
	}
	return true;
}

static void open_all(struct world *w)
{
	for (size_t i = 0; i < N; i++) {
		cl_add(w->c, &(struct cl_member_opts){ .name = names[i],
						       .node = nodes[i],
						       .app = &cl_svc_app,
						       .arg = (void *)&svcs[i] });
		SIM_CHECK(cl_start(w->c, names[i]), "%s does not start: %s", names[i],
			  cl_why(w->c, names[i]));
	}
	cl_add(w->c, &(struct cl_member_opts){
			     .name = "probe", .node = "c", .app = &probe_app, .arg = w });
	cl_start(w->c, "probe");
}

uint64_t five_scenario(uint64_t seed, enum five_plant plant_what, struct five_sums *sums)
{
	struct world w = { .sums = sums, .rng = sim_rng(seed, "probe") };
	struct sim_rng r = sim_rng(seed, "five");
	char ids[N][65] = { { 0 } };
	w.c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = seed });
	open_all(&w);
	run_checked(&w, 1000, ids);
	struct cl_budget b = plant_what ? (struct cl_budget){ 0 } : budget(&r);
	cl_chaos(w.c, &b, 8000, NULL, NULL);
	plant(&w, plant_what);
	run_checked(&w, 14000, ids);
	cl_calm(w.c);
	cl_run_ms(w.c, 2000);
	mend(&w);
	SIM_CHECK(cl_until(w.c, all_ready, &w, 8000), "%s", "not all are ready in calm");
	run_checked(&w, SETTLE_MS + 1000, ids);
	w.quiet = true;
	cl_run_ms(w.c, 2000);
	sums->runs_of_master += cl_runs(w.c, "master");
	sums->terms += w.term[0].now;
	uint64_t h = sim_hash(cl_sim(w.c));
	cl_close(w.c);
	return h;
}
