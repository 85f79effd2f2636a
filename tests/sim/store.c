/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/store.h"

#include "services/transfer-agent/agent.h"
#include "tests/support/store_sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define AGENTS	  2
#define CLIENTS	  3
#define KEYS	  5
#define SLOTS	  2	/* calls at once, a client */
#define VALUE_MAX 20000 /* several copy steps */
#define CHAOS_MS  6000
#define SAMPLE_MS 50
#define CALM_MS	  30000 /* a connection that swallowed is found out by its next use, in 15 s */
#define SILENT_MS 16000 /* until a stream that swallows has been given up by both ends */

enum store_op { OP_PUT, OP_UPSERT, OP_GET, OP_REMOVE, OP_EXISTS, OP_RANGE, OP_N };

/* What one key has been through. Times are the simulator's. */
struct fact {
	uint64_t at_ns, version; /* acknowledged or returned, by then */
};
struct attempt {			    /* a put, by serial */
	uint64_t begin_ns, end_ns, version; /* end: UINT64_MAX while it may take effect */
	bool ok;
	size_t n;
};
struct removal {
	uint64_t begin_ns, end_ns, below; /* versions up to below are dead after end, if ok */
	bool ok;
};
struct key {
	struct fact *facts;
	struct attempt *puts;
	struct removal *rems;
	size_t n_facts, n_puts, n_rems;
};

struct world;

struct slot {
	struct client *c;
	struct timer timer;
	struct stc_call *call;
	struct stc_buf buf;
	uint8_t room[VALUE_MAX];
	enum store_op op;
	size_t key, serial;
	size_t serials[KEYS]; /* OP_RANGE: a removal of each key */
	uint64_t begin_ns, deadline_ns;
};

struct client {
	struct world *w;
	struct ss_client *ss;
	struct slot slots[SLOTS];
	bool ended;
};

struct world {
	struct ss s;
	struct sim_rng rng;
	struct store_sums *sums;
	enum store_plant plant;
	uint64_t plant_at;
	struct key keys[KEYS];
	struct client clients[CLIENTS];
	bool quiet, away; /* away: a holder was, in this run */
	bool small;	  /* a pool that evicts */
	bool lost;	  /* agents' machines lose their memory */
};

static uint64_t now_ns(struct world *w)
{
	return sim_now_ns(cl_sim(w->s.c));
}

/* ---- values ---- */

static void value_fill(uint8_t *p, size_t n, size_t key, size_t serial)
{
	uint64_t x = key * 0x9e3779b97f4a7c15ull + serial * 0xbf58476d1ce4e5b9ull + n;
	for (size_t i = 0; i < n; i++) {
		if (i % 8 == 0)
			x = x * 6364136223846793005ull + 1442695040888963407ull;
		p[i] = (uint8_t)(x >> (8 + i % 8 * 7));
	}
	if (n >= 8) {
		uint32_t head[2] = { (uint32_t)key, (uint32_t)serial };
		memcpy(p, head, 8);
	}
}

/* The serial of whole bytes of this key; SIZE_MAX: they are no value of it. */
static size_t value_serial(const struct world *w, size_t key, const uint8_t *p, size_t n)
{
	static uint8_t want[VALUE_MAX];
	uint32_t head[2];
	if (n < 8)
		return SIZE_MAX;
	memcpy(head, p, 8);
	if (head[0] != key || head[1] >= w->keys[key].n_puts)
		return SIZE_MAX;
	if (w->keys[key].puts[head[1]].n != n)
		return SIZE_MAX;
	value_fill(want, n, key, head[1]);
	return memcmp(p, want, n) == 0 ? head[1] : SIZE_MAX;
}

/* ---- what is known ---- */

#define PUSH(v, n, x)                                                          \
	do {                                                                   \
		if (((n) & ((n)-1)) == 0) {                                    \
			(v) = realloc((v), MAX_OF((n)*2, 16u) * sizeof(*(v))); \
			SIM_CHECK((v), "no memory");                           \
		}                                                              \
		(v)[(n)++] = (x);                                              \
	} while (0)

static void learn(struct world *w, size_t key, uint64_t version)
{
	struct key *k = &w->keys[key];
	struct fact f = { now_ns(w), version };
	PUSH(k->facts, k->n_facts, f);
}

/* The highest version acknowledged or returned before at_ns. */
static uint64_t known_before(const struct key *k, uint64_t at_ns)
{
	uint64_t v = 0;
	for (size_t i = 0; i < k->n_facts; i++)
		if (k->facts[i].at_ns < at_ns)
			v = MAX_OF(v, k->facts[i].version);
	return v;
}

/* The highest version that acknowledged removes, ended before at_ns, made dead. */
static uint64_t dead_before(const struct key *k, uint64_t at_ns)
{
	uint64_t v = 0;
	for (size_t i = 0; i < k->n_rems; i++)
		if (k->rems[i].ok && k->rems[i].end_ns < at_ns)
			v = MAX_OF(v, k->rems[i].below);
	return v;
}

/* An acknowledged put, ended before at_ns, that no remove can have taken. */
static const struct attempt *must_be_there(const struct key *k, uint64_t at_ns)
{
	for (size_t i = 0; i < k->n_puts; i++) {
		const struct attempt *p = &k->puts[i];
		bool taken = !p->ok || p->end_ns >= at_ns;
		for (size_t r = 0; r < k->n_rems && !taken; r++)
			taken = k->rems[r].end_ns > p->begin_ns;
		if (!taken)
			return p;
	}
	return NULL;
}

/* ---- judging ---- */

static void judge_hit(struct slot *s, const struct stc_item *it)
{
	struct world *w = s->c->w;
	struct key *k = &w->keys[s->key];
	uint64_t version = it->version;
	if (w->plant == STORE_WRONG_BYTE && it->size > 8)
		s->room[it->size - 1] ^= 1;
	size_t serial = value_serial(w, s->key, s->room, it->size);
	SIM_CHECK(serial != SIZE_MAX, "S1: key %zu: %" PRIu64 " bytes that nobody put", s->key,
		  it->size);
	uint64_t floor = known_before(k, s->begin_ns);
	if (w->plant == STORE_OLD && floor > 1)
		version = floor - 1;
	SIM_CHECK(version >= floor,
		  "S2: key %zu: a get returned version %" PRIx64 " after %" PRIx64, s->key,
		  version, floor);
	uint64_t dead = w->plant == STORE_REMOVED ? UINT64_MAX : dead_before(k, s->begin_ns);
	SIM_CHECK(version > dead,
		  "S3: key %zu: version %" PRIx64 " is back, removed up to %" PRIx64, s->key,
		  version, dead);
	w->sums->hits++;
	learn(w, s->key, version);
}

/* For the reader of a failure: what the agents have of everything. */
static bool note_slot(void *arg, const struct hold_entry *e)
{
	sim_note(arg, "slot %u gen %" PRIu64 " %.*s v%" PRIx64 " %s reason %d%s", e->at.slot,
		 e->at.generation, (int)e->key.n, (const char *)e->key.p, e->at.version,
		 e->at.retired ? "retired" : "committed", e->reason,
		 e->at.published ? " published" : "");
	return true;
}

static void note_slots(struct world *w)
{
	for (size_t i = 0; i < AGENTS; i++) {
		struct svc *a = cl_svc_of(w->s.c, w->s.agents[i].name);
		uint64_t cursor = 0;
		sim_note(cl_sim(w->s.c), "%s: %s", w->s.agents[i].name,
			 a && xfa_of(a)->hold ? "its directory" : "down");
		if (a && xfa_of(a)->hold)
			hold_scan(xfa_of(a)->hold, 0, &cursor, note_slot, cl_sim(w->s.c));
	}
}

static void judge_absent(struct world *w, size_t key, uint64_t begin_ns, const char *rule)
{
	if (w->small || w->lost || (w->away && rule[1] == '4'))
		return;
	const struct attempt *p = must_be_there(&w->keys[key], begin_ns);
	w->sums->judged_absent++;
	if (p)
		note_slots(w);
	SIM_CHECK(!p, "%s: key %zu: put %zu, version %" PRIx64 ", is lost", rule, key,
		  (size_t)(p - w->keys[key].puts), p->version);
}

static bool error_fits(const struct world *w, enum store_op op, enum err e)
{
	switch (e) {
	case ERR_NONE:
	case ERR_TIMED_OUT: /* and what a call says that was retried to its deadline */
	case ERR_BUSY:
	case ERR_UNREACHABLE:
	case ERR_CONN_LOST:
	case ERR_RECOVERING:
	case ERR_TEMPORARILY_AWAY:
	case ERR_NOT_READY:
	case ERR_SHUTTING_DOWN:
	case ERR_CLOSED:
	case ERR_CANCELLED:
	case ERR_STALE_TERM:
	case ERR_STALE_SESSION:
		return true;
	case ERR_BAD_TICKET: /* of a pool that is no more */
		return w->lost && (op == OP_PUT || op == OP_UPSERT);
	case ERR_NOT_FOUND:
		return op == OP_GET || op == OP_EXISTS;
	case ERR_LEASE_LOST:
		return op == OP_GET;
	case ERR_ALREADY_EXISTS:
		return op == OP_PUT;
	case ERR_BUSY_WRITING:
	case ERR_STALE_EPOCH:
	case ERR_STALE_ATTEMPT:
	case ERR_NOT_IN_ROSTER:
		return op == OP_PUT || op == OP_UPSERT;
	default:
		return false;
	}
}

/* Nothing of it can take effect any more: it was refused before it wrote anything. */
static bool refused(enum err e)
{
	return e == ERR_ALREADY_EXISTS || e == ERR_BUSY_WRITING;
}

static void judge_put(struct slot *s, const struct stc_item *it)
{
	struct world *w = s->c->w;
	struct attempt *p = &w->keys[s->key].puts[s->serial];
	p->ok = it->err == ERR_NONE;
	if (!p->ok && !refused(it->err))
		return;
	p->end_ns = now_ns(w);
	p->version = it->version;
	if (p->ok)
		learn(w, s->key, it->version);
}

static void judge_remove(struct slot *s, size_t key, size_t serial, enum err e)
{
	struct removal *r = &s->c->w->keys[key].rems[serial];
	r->ok = e == ERR_NONE;
	if (r->ok)
		r->end_ns = now_ns(s->c->w);
}

/* S5; a process that stood still, or is dead, is late by that. */
static void judge_time(const struct slot *s, uint64_t now)
{
	const struct sim_proc *p = sim_loop_proc(s->c->ss->loop);
	uint64_t awake = sim_now_ns(cl_sim(s->c->w->s.c)) - sim_awake_since_ns(p);
	SIM_CHECK(now <= s->deadline_ns + 50 * NS_PER_MS || awake <= 50 * NS_PER_MS,
		  "S5: a call ended %" PRIu64 " ms late",
		  (uint64_t)((now - s->deadline_ns) / NS_PER_MS));
}

static void judge(struct slot *s)
{
	struct world *w = s->c->w;
	const struct stc_item *it = &s->call->items[0];
	enum err e = it->err;
	if (w->plant == STORE_LOST && s->op == OP_GET && e == ERR_NONE)
		e = ERR_NOT_FOUND;
	w->sums->ok[s->op] += e == ERR_NONE;
	w->sums->by_err[e < 512 ? e : 511]++;
	sim_note(cl_sim(w->s.c), "%s op %d key %zu: %s v%" PRIx64 " %s %s %s", s->c->ss->name,
		 s->op, s->key, err_name(e), it->version, it->peer ? it->peer : "",
		 it->step ? it->step : "", it->text ? it->text : "");
	SIM_CHECK(error_fits(w, s->op, e), "S6: op %d of key %zu ended with %s: %s", s->op,
		  s->key, err_name(e), it->text);
	if (s->op == OP_PUT || s->op == OP_UPSERT)
		judge_put(s, it);
	else if (s->op == OP_REMOVE)
		judge_remove(s, s->key, s->serial, e);
	else if (s->op == OP_RANGE)
		for (size_t i = 0; i < KEYS; i++)
			judge_remove(s, i, s->serials[i], e);
	else if (s->op == OP_GET && e == ERR_NONE)
		judge_hit(s, it);
	else if (e == ERR_NOT_FOUND)
		judge_absent(w, s->key, s->begin_ns, "S4");
}

/* ---- a client's calls ---- */

static void begin(struct timer *t);

static void again(struct slot *s)
{
	struct world *w = s->c->w;
	if (w->quiet || s->c->ended)
		return;
	timer_start(s->c->ss->loop, &s->timer,
		    clock_after_ms(loop_now_ns(s->c->ss->loop),
				   sim_rng_between(&w->rng, 1, 120)),
		    begin);
}

static void on_done(struct stc_call *c)
{
	struct slot *s = c->user;
	bool dead = s->c->ended || sim_proc_state(sim_loop_proc(s->c->ss->loop)) == SIM_DEAD;
	if (!dead) { /* what a dead process is told nobody hears */
		judge_time(s, loop_now_ns(s->c->ss->loop));
		judge(s);
	}
	stc_call_free(TAKE(s->call));
	if (!dead)
		again(s);
}

static enum stc_kind kind_of(enum store_op op)
{
	static const enum stc_kind kinds[OP_N] = { STC_PUT,    STC_PUT,	   STC_GET,
						   STC_REMOVE, STC_EXISTS, STC_REMOVE_RANGE };
	return kinds[op];
}

static enum store_op pick(struct world *w)
{
	static const enum store_op ops[] = {
		OP_PUT, OP_UPSERT, OP_UPSERT, OP_UPSERT, OP_GET,
		OP_GET, OP_GET,	   OP_GET,    OP_REMOVE, OP_EXISTS
	};
	if (sim_rng_chance(&w->rng, 20000))
		return OP_RANGE;
	return ops[sim_rng_below(&w->rng, ARRAY_LEN(ops))];
}

static size_t remove_key(struct slot *s, size_t key)
{
	struct key *k = &s->c->w->keys[key];
	struct removal r = { .begin_ns = s->begin_ns,
			     .end_ns = UINT64_MAX,
			     .below = known_before(k, s->begin_ns) };
	PUSH(k->rems, k->n_rems, r);
	return k->n_rems - 1;
}

static void prepare(struct slot *s)
{
	struct world *w = s->c->w;
	struct key *k = &w->keys[s->key];
	s->buf = (struct stc_buf){ s->room, sizeof(s->room) };
	if (s->op == OP_PUT || s->op == OP_UPSERT) {
		struct attempt p = { .begin_ns = s->begin_ns, .end_ns = UINT64_MAX };
		p.n = sim_rng_between(&w->rng, 8,
				      sim_rng_chance(&w->rng, 300000) ? VALUE_MAX : 600);
		s->serial = k->n_puts;
		s->buf.n = p.n;
		value_fill(s->room, p.n, s->key, s->serial);
		PUSH(k->puts, k->n_puts, p);
	} else if (s->op == OP_REMOVE) {
		s->serial = remove_key(s, s->key);
	} else if (s->op == OP_RANGE) {
		for (size_t i = 0; i < KEYS; i++)
			s->serials[i] = remove_key(s, i);
	}
}

static void begin(struct timer *t)
{
	struct slot *s = container_of(t, struct slot, timer);
	struct world *w = s->c->w;
	if (w->quiet)
		return;
	if (stc_call_new(kind_of(s->op = pick(w)), 1, &s->call) != ERR_NONE)
		SIM_CHECK(false, "no memory");
	s->key = sim_rng_below(&w->rng, KEYS);
	s->begin_ns = now_ns(w);
	prepare(s);
	static const char *const names[KEYS] = { "key-0", "key-1", "key-2", "key-3", "key-4" };
	s->call->items[0].key = BYTES_STR(s->op == OP_RANGE ? "key-" : names[s->key]);
	if (kind_of(s->op) == STC_PUT || s->op == OP_GET) {
		s->call->items[0].bufs = &s->buf;
		s->call->items[0].n_bufs = 1;
	}
	s->call->put.upsert = s->op == OP_UPSERT;
	s->call->done = on_done;
	s->call->user = s;
	s->deadline_ns =
		clock_after_ms(loop_now_ns(s->c->ss->loop), sim_rng_between(&w->rng, 50, 3000));
	s->call->deadline_ns = s->deadline_ns;
	w->sums->calls[s->op]++;
	enum err e = stc_start(s->c->ss->stc, s->call);
	SIM_CHECK(e == ERR_NONE, "stc_start: %s", err_name(e));
}

static void client_begin(struct ss_client *ss)
{
	struct client *c = ss->user;
	c->ended = false;
	for (size_t i = 0; i < SLOTS; i++) {
		c->slots[i] = (struct slot){ .c = c };
		again(&c->slots[i]);
	}
}

/* Calls that are out end through stc_close; nobody hears of it. */
static void client_end(struct ss_client *ss, bool killed)
{
	struct client *c = ss->user;
	(void)killed;
	c->ended = true;
	for (size_t i = 0; i < SLOTS; i++)
		timer_stop(ss->loop, &c->slots[i].timer);
}

/* ---- a run ---- */

static const char *const flags_stay[] = { "--set", "holder_dead_ms=60000",
					  "--set", "suspect_ms=600",
					  "--set", "beat_ms=100",
					  "--set", "master.lease_ms=1000",
					  "--set", "master.lease_max_ms=2000",
					  "--set", "master.put_start_discard_ms=1500",
					  NULL };
static const char *const flags_away[] = { "--set", "holder_dead_ms=1500",
					  "--set", "suspect_ms=600",
					  "--set", "beat_ms=100",
					  "--set", "master.lease_ms=1000",
					  "--set", "master.lease_max_ms=2000",
					  "--set", "master.put_start_discard_ms=1500",
					  NULL };
static const char *const agent_flags[] = { "--set", "agent.register_ms=500", "--set",
					   "beat_ms=100", NULL };

static void note_away(struct world *w)
{
	struct mst *m = ss_master(&w->s);
	struct mind_holder h;
	for (uint32_t i = 0; m && m->term.mind && i < mind_holders(m->term.mind); i++)
		if (mind_holder(m->term.mind, i, &h) && h.away && !w->away) {
			w->away = true;
			w->sums->seen_away++;
		}
}

static void run_ms(struct world *w, uint64_t ms)
{
	uint64_t end = now_ns(w) + ms * NS_PER_MS;
	while (now_ns(w) < end) {
		cl_run_ms(w->s.c, SAMPLE_MS);
		note_away(w);
	}
}

static struct cl_budget budget(struct sim_rng *r)
{
	struct cl_budget b = { .min_ms = 20, .max_ms = 2500 };
	uint32_t *kinds[] = { &b.kill,	     &b.kill,	   &b.kill,    &b.stop,	    &b.stop,
			      &b.suspend,    &b.partition, &b.oneway,  &b.delay,    &b.reset,
			      &b.black_hole, &b.lossy,	   &b.reorder, &b.disk_slow };
	for (int i = 0; i < 4; i++)
		*kinds[sim_rng_below(r, ARRAY_LEN(kinds))] +=
			(uint32_t)sim_rng_between(r, 1, 3);
	b.kill++;
	return b;
}

/* The master's log outlives a power cut; the agents' memory does not. */
static void power_cuts(struct world *w, struct sim_rng *r)
{
	static const char *const master[] = { "m0", NULL }, *const agents[] = { "n0", "n1",
										NULL };
	struct cl_budget b = { .min_ms = 20, .max_ms = 2500, .power_cut = 1 };
	if (sim_rng_chance(r, 300000))
		cl_chaos(w->s.c, &b, CHAOS_MS, NULL, master);
	w->lost = sim_rng_chance(r, 100000);
	if (w->lost)
		cl_chaos(w->s.c, &b, CHAOS_MS, NULL, agents);
}

static void open_world(struct world *w, uint64_t seed, struct sim_rng *r)
{
	static const char *const nodes[CLIENTS] = { "c0", "c1", "c1" };
	bool may_go = sim_rng_chance(r, 400000);
	w->small = sim_rng_chance(r, 150000);
	w->away = may_go; /* the watch may miss one: nothing is judged by it then */
	ss_open(&w->s, &(struct ss_opts){ .seed = seed,
					  .n_agents = AGENTS,
					  .pool_bytes = w->small ? 1 << 20 : 4 << 20,
					  .master_flags = may_go ? flags_away : flags_stay,
					  .agent_flags = agent_flags });
	for (size_t i = 0; i < CLIENTS; i++) {
		char name[24];
		snprintf(name, sizeof(name), "c%zu", i);
		w->clients[i].w = w;
		w->clients[i].ss = ss_client(&w->s, name, nodes[i], "default");
		w->clients[i].ss->user = &w->clients[i];
		w->clients[i].ss->begin = client_begin;
		w->clients[i].ss->end = client_end;
	}
}

static bool calls_ended(void *arg)
{
	struct world *w = arg;
	for (size_t i = 0; i < CLIENTS; i++)
		for (size_t s = 0; s < SLOTS; s++)
			if (w->clients[i].slots[s].call)
				return false;
	return true;
}

static bool space_is_back(void *arg)
{
	struct world *w = arg;
	struct mind_counts c = ss_counts(&w->s);
	return c.objects == 0 && c.attempts == 0 && c.bytes_used == 0 &&
	       c.quarantine_bytes == 0 && c.waiting == 0 && c.copies == 0;
}

/* S7, S8 */
static void check_key(struct world *w, size_t key)
{
	char name[16];
	struct buf b = BUF_INIT(2 << 20);
	snprintf(name, sizeof(name), "key-%zu", key);
	uint64_t began = now_ns(w), version = 0;
	enum err e = ss_get(&w->s, "c0", name, CALM_MS, &b);
	SIM_CHECK(e == ERR_NONE || e == ERR_NOT_FOUND, "S7: key %zu in calm: %s", key,
		  err_name(e));
	if (e == ERR_NONE)
		SIM_CHECK(value_serial(w, key, b.p, b.n) != SIZE_MAX, "S1: key %zu in calm",
			  key);
	else
		judge_absent(w, key, began, "S7");
	static const char last[] = "the last value of all";
	for (int i = 0; i < 50;
	     i++) { /* a writer that went is discarded after a while (case 13) */
		e = ss_put(&w->s, "c0", name, BYTES_STR(last), true, CALM_MS, &version);
		if (e != ERR_BUSY_WRITING)
			break;
		cl_run_ms(w->s.c, 100);
	}
	SIM_CHECK(e == ERR_NONE, "S8: key %zu is stuck: %s", key, err_name(e));
	e = ss_get(&w->s, "c1", name, CALM_MS, &b);
	SIM_CHECK(e == ERR_NONE && b.n == strlen(last) && memcmp(b.p, last, b.n) == 0,
		  "S8: key %zu: %s after its last put", key, err_name(e));
	e = ss_remove(&w->s, "c1", name, CALM_MS);
	SIM_CHECK(e == ERR_NONE, "S8: key %zu cannot be removed: %s", key, err_name(e));
	buf_fini(&b);
}

static void check_calm(struct world *w)
{
	SIM_CHECK(cl_until(w->s.c, ss_ready, &w->s, 30000), "%s", "not ready in calm");
	SIM_CHECK(cl_until(w->s.c, calls_ended, w, 10000), "%s", "S5: a call never ended");
	for (size_t i = 0; i < KEYS; i++)
		check_key(w, i);
	bool back = cl_until(w->s.c, space_is_back, w, 40000);
	struct mind_counts c = ss_counts(&w->s);
	SIM_CHECK(back,
		  "S9: %" PRIu64 " objects, %" PRIu64 " copies, %" PRIu64 " attempts, %" PRIu64
		  " bytes used, %" PRIu64 " in quarantine, %" PRIu64 " waiting",
		  c.objects, c.copies, c.attempts, c.bytes_used, c.quarantine_bytes, c.waiting);
}

uint64_t store_scenario(uint64_t seed, enum store_plant plant, struct store_sums *sums)
{
	struct world *w = calloc(1, sizeof(*w));
	struct sim_rng r = sim_rng(seed, "store");
	SIM_CHECK(w, "no memory");
	w->sums = sums;
	w->plant = plant;
	w->rng = sim_rng(seed, "clients");
	open_world(w, seed, &r);
	ss_start(&w->s);
	run_ms(w, 500);
	struct cl_budget b = budget(&r);
	cl_chaos(w->s.c, &b, CHAOS_MS, NULL, NULL);
	power_cuts(w, &r);
	run_ms(w, CHAOS_MS + 500);
	cl_calm(w->s.c);
	run_ms(w, 500);
	w->quiet = true;
	run_ms(w, SILENT_MS);
	check_calm(w);
	sums->runs_of_master += cl_runs(w->s.c, "master");
	for (size_t i = 0; i < AGENTS; i++)
		sums->runs_of_agents += cl_runs(w->s.c, w->s.agents[i].name);
	for (size_t i = 0; i < CLIENTS; i++)
		sums->runs_of_clients += cl_runs(w->s.c, w->clients[i].ss->name);
	uint64_t h = sim_hash(cl_sim(w->s.c));
	ss_close(&w->s);
	for (size_t i = 0; i < KEYS; i++) {
		free(w->keys[i].facts);
		free(w->keys[i].puts);
		free(w->keys[i].rems);
	}
	free(w);
	return h;
}
