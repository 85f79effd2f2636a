/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members, time, calls: what both backends have alike.
 */
#include "tests/support/cluster_priv.h"
#include "tests/support/sim_alloc.h"
#include "tests/support/sim_priv.h"

#include "rpc/auth.h"
#include "rpc/net_sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void take_name(char to[CL_NAME_MAX + 1], const char *name, const char *what)
{
	SIM_CHECK(name && *name && strlen(name) <= CL_NAME_MAX && !strchr(name, '/'),
		  "%s name '%s': 1..%d characters without '/'", what, name ? name : "(null)",
		  CL_NAME_MAX);
	memcpy(to, name, strlen(name) + 1);
}

static struct cl_node *node_find(struct cluster *c, const char *name)
{
	list_for_each (i, &c->nodes)
		if (strcmp(list_entry(i, struct cl_node, node)->name, name) == 0)
			return list_entry(i, struct cl_node, node);
	return NULL;
}

struct cl_node *cl_node_of(struct cluster *c, const char *name)
{
	struct cl_node *n = node_find(c, name);
	SIM_CHECK(n, "no node is called '%s'", name);
	return n;
}

static struct cl_node *node_make(struct cluster *c, const char *name)
{
	struct cl_node *n = node_find(c, name);
	if (n)
		return n;
	n = calloc(1, sizeof(*n));
	SIM_CHECK(n, "no memory");
	take_name(n->name, name, "node");
	list_push_back(&c->nodes, &n->node);
	c->ops->node_add(c, n);
	return n;
}

static struct cl_member *member_find(struct cluster *c, const char *name)
{
	list_for_each (i, &c->members)
		if (strcmp(list_entry(i, struct cl_member, node)->name, name) == 0)
			return list_entry(i, struct cl_member, node);
	return NULL;
}

struct cl_member *cl_member_of(struct cluster *c, const char *name)
{
	struct cl_member *m = member_find(c, name);
	SIM_CHECK(m, "no member is called '%s'", name);
	return m;
}

/* The simulator lists its own faults. */
#define REAL_NOTE(c, ...)                        \
	do {                                     \
		if ((c)->o.backend == CL_REAL)   \
			cl_note(c, __VA_ARGS__); \
	} while (0)

void cl_note(struct cluster *c, const char *fmt, ...)
{
	char text[160];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	c->ops->note(c, text);
}

/* Log lines of clients belong to the list of events, if to anything. */
static void no_log(struct log_capture *cap, const char *line, size_t n)
{
	(void)cap, (void)line, (void)n;
}

struct cluster *cl_open(const struct cl_opts *o)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "a cluster under test: no secret";
	struct cluster *c = calloc(1, sizeof(*c));
	SIM_CHECK(c, "no memory");
	c->o = *o;
	c->ops = o->backend == CL_SIM ? &cl_ops_sim : &cl_ops_real;
	c->rng = sim_rng(o->seed, "cluster");
	c->capture.fn = no_log;
	c->log.svc = "test";
	list_init(&c->nodes);
	list_init(&c->members);
	list_init(&c->clients);
	SIM_CHECK(keyring_new(secret, NULL, &c->keys) == ERR_NONE, "no locked memory for keys");
	log_set_capture(&c->log, &c->capture);
	c->ops->open(c);
	return c;
}

void cl_add(struct cluster *c, const struct cl_member_opts *o)
{
	SIM_CHECK(!member_find(c, o->name), "two members are called '%s'", o->name);
	struct cl_member *m = calloc(1, sizeof(*m));
	SIM_CHECK(m, "no memory");
	take_name(m->name, o->name, "member");
	m->o = *o;
	m->o.name = m->name;
	m->on = node_make(c, o->node);
	m->still_ns = 0;
	m->o.node = m->on->name;
	list_push_back(&c->members, &m->node);
	c->ops->member_add(c, m);
}

enum cl_backend cl_backend(const struct cluster *c)
{
	return c->o.backend;
}

const struct keyring *cl_keys(struct cluster *c)
{
	return c->keys;
}

/* ---- time ---- */

uint64_t cl_now_ns(struct cluster *c)
{
	return c->ops->now_ns(c);
}

void cl_later(struct cluster *c, uint64_t at_ns, const struct cl_action *a)
{
	struct cl_action *own = malloc(sizeof(*own));
	SIM_CHECK(own, "no memory");
	*own = *a;
	own->at = (struct heap_node){ 0 };
	heap_insert(&c->actions, &own->at, at_ns);
}

void cl_forget(struct cluster *c)
{
	for (struct heap_node *n; (n = heap_min(&c->actions));) {
		heap_remove(&c->actions, n);
		free(container_of(n, struct cl_action, at));
	}
}

static void act(struct cluster *c, struct heap_node *n)
{
	struct cl_action *a = container_of(n, struct cl_action, at);
	heap_remove(&c->actions, n);
	a->fn(c, a);
	free(a);
}

static bool run_to(struct cluster *c, bool (*pred)(void *arg), void *arg, uint64_t end_ns)
{
	for (;;) {
		struct heap_node *n = heap_min(&c->actions);
		uint64_t next = n && n->key <= end_ns ? n->key : end_ns;
		if (c->ops->run(c, pred, arg, next))
			return true;
		if (!n || n->key > end_ns)
			return false;
		act(c, n);
	}
}

void cl_run_ms(struct cluster *c, uint64_t ms)
{
	run_to(c, NULL, NULL, clock_after_ms(cl_now_ns(c), ms));
}

bool cl_until(struct cluster *c, bool (*pred)(void *arg), void *arg, uint64_t ms)
{
	return run_to(c, pred, arg, clock_after_ms(cl_now_ns(c), ms));
}

/* ---- what is touched by faults ---- */

static void touch(uint64_t *at, uint64_t until_ns)
{
	*at = MAX_OF(*at, until_ns);
}

static void touch_node(struct cluster *c, const char *node, uint64_t for_ms)
{
	touch(&cl_node_of(c, node)->touched_ns, clock_after_ms(cl_now_ns(c), for_ms));
}

static void cut_add(struct cluster *c, struct cl_node *from, struct cl_node *to)
{
	for (size_t i = 0; i < c->n_cuts; i++)
		if (c->cuts[i].from == from && c->cuts[i].to == to)
			return;
	SIM_CHECK(c->n_cuts < CL_CUTS_MAX, "more than %d links are cut", CL_CUTS_MAX);
	c->cuts[c->n_cuts].from = from;
	c->cuts[c->n_cuts++].to = to;
}

static void cut_end(struct cluster *c, const struct cl_node *a, const struct cl_node *b)
{
	uint64_t until = clock_after_ms(cl_now_ns(c), CL_AFTER_MS);
	for (size_t i = 0; i < c->n_cuts;) {
		struct cl_node *from = c->cuts[i].from, *to = c->cuts[i].to;
		if (a && !((from == a && to == b) || (from == b && to == a))) {
			i++;
			continue;
		}
		touch(&from->touched_ns, until);
		touch(&to->touched_ns, until);
		c->cuts[i] = c->cuts[--c->n_cuts];
	}
}

uint64_t cl_touched_ns(struct cluster *c, const char *name)
{
	const struct cl_member *m = cl_member_of(c, name);
	uint64_t t = MAX_OF(m->touched_ns, m->on->touched_ns);
	t = MAX_OF(t, c->touched_ns);
	for (size_t i = 0; i < c->n_cuts; i++)
		if (c->cuts[i].from == m->on || c->cuts[i].to == m->on)
			return UINT64_MAX;
	bool now = c->lossy || c->reordering || m->still_ns != UINT64_MAX;
	return now || t > cl_now_ns(c) ? UINT64_MAX : t;
}

uint64_t cl_still_since_ns(struct cluster *c, const char *name)
{
	return cl_member_of(c, name)->still_ns;
}

static void moves(struct cluster *c, struct cl_member *m, bool moving)
{
	touch(&m->touched_ns, cl_now_ns(c));
	if (moving)
		m->still_ns = UINT64_MAX;
	else
		m->still_ns = MIN_OF(m->still_ns, cl_now_ns(c));
}

/* ---- members ---- */

void cl_member_ended(struct cluster *c, struct cl_member *m)
{
	m->up = false;
	moves(c, m, false);
}

bool cl_start(struct cluster *c, const char *name)
{
	struct cl_member *m = cl_member_of(c, name);
	if (m->up)
		return true;
	cl_note(c, "start %s", name);
	m->n_runs++;
	m->why[0] = 0;
	m->up = true;
	m->up = c->ops->start(c, m);
	moves(c, m, m->up);
	return m->up;
}

void cl_term(struct cluster *c, const char *name)
{
	struct cl_member *m = cl_member_of(c, name);
	if (!m->up)
		return;
	cl_note(c, "end %s", name);
	c->ops->term(c, m);
	moves(c, m, false);
}

void cl_kill(struct cluster *c, const char *name)
{
	struct cl_member *m = cl_member_of(c, name);
	if (!m->up)
		return;
	REAL_NOTE(c, "kill %s", name);
	c->ops->kill(c, m);
	m->up = false;
	moves(c, m, false);
}

void cl_restart(struct cluster *c, const char *name)
{
	cl_kill(c, name);
	SIM_CHECK(cl_start(c, name), "%s does not start: %s", name, cl_why(c, name));
}

void cl_stop(struct cluster *c, const char *name)
{
	struct cl_member *m = cl_member_of(c, name);
	if (!m->up)
		return;
	REAL_NOTE(c, "stop %s", name);
	c->ops->stop(c, m);
	moves(c, m, false);
}

void cl_cont(struct cluster *c, const char *name)
{
	struct cl_member *m = cl_member_of(c, name);
	if (!m->up)
		return;
	REAL_NOTE(c, "continue %s", name);
	c->ops->cont(c, m);
	moves(c, m, true);
}

bool cl_running(struct cluster *c, const char *name)
{
	return cl_member_of(c, name)->up;
}

const char *cl_why(struct cluster *c, const char *name)
{
	return cl_member_of(c, name)->why;
}

uint32_t cl_runs(struct cluster *c, const char *name)
{
	return cl_member_of(c, name)->n_runs;
}

const char *cl_addr(struct cluster *c, const char *from_node, const char *name)
{
	return c->ops->addr(c, node_make(c, from_node), cl_member_of(c, name));
}

/* ---- faults ---- */

bool cl_can(const struct cluster *c, enum cl_fault f)
{
	if (f == CL_OOM && !sim_alloc_fail)
		return false;
	return (c->ops->can & (1u << f)) != 0;
}

static void need(const struct cluster *c, enum cl_fault f, const char *what)
{
	SIM_CHECK(cl_can(c, f), "this backend has no %s: ask cl_can first", what);
}

void cl_partition_oneway(struct cluster *c, const char *from, const char *to)
{
	need(c, CL_PARTITION, "partition");
	REAL_NOTE(c, "cut %s -> %s", from, to);
	c->ops->cut(c, cl_node_of(c, from), cl_node_of(c, to));
	cut_add(c, cl_node_of(c, from), cl_node_of(c, to));
}

void cl_partition(struct cluster *c, const char *a, const char *b)
{
	cl_partition_oneway(c, a, b);
	cl_partition_oneway(c, b, a);
}

void cl_heal(struct cluster *c, const char *a, const char *b)
{
	REAL_NOTE(c, "heal %s %s", a ? a : "all", a ? b : "");
	struct cl_node *x = a ? cl_node_of(c, a) : NULL, *y = a ? cl_node_of(c, b) : NULL;
	c->ops->heal(c, x, y);
	cut_end(c, x, y);
}

void cl_delay(struct cluster *c, const char *a, const char *b, uint32_t ms, uint32_t for_ms)
{
	need(c, CL_DELAY, "delay");
	REAL_NOTE(c, "delay %s - %s by %u ms for %u ms", a, b, ms, for_ms);
	struct cl_node *x = cl_node_of(c, a), *y = cl_node_of(c, b);
	c->ops->delay(c, x, y, ms, for_ms);
	c->ops->delay(c, y, x, ms, for_ms);
	touch_node(c, a, (uint64_t)ms + for_ms);
	touch_node(c, b, (uint64_t)ms + for_ms);
}

void cl_reorder(struct cluster *c, uint32_t ppm)
{
	need(c, CL_REORDER, "reordering");
	cl_note(c, "reorder %u ppm", ppm);
	c->ops->reorder(c, ppm);
	c->reordering = ppm > 0;
	touch(&c->touched_ns, cl_now_ns(c));
}

void cl_reset(struct cluster *c, const char *a, const char *b)
{
	need(c, CL_RESET, "reset");
	REAL_NOTE(c, "reset %s - %s", a, b ? b : "all");
	c->ops->reset(c, cl_node_of(c, a), b ? cl_node_of(c, b) : NULL);
	touch_node(c, a, 0);
}

void cl_black_hole(struct cluster *c, const char *a, const char *b)
{
	need(c, CL_BLACK_HOLE, "black hole");
	REAL_NOTE(c, "black hole %s - %s", a, b ? b : "all");
	c->ops->black_hole(c, cl_node_of(c, a), b ? cl_node_of(c, b) : NULL);
	touch_node(c, a, 2 * NET_GIVE_UP_MS);
}

void cl_lossy(struct cluster *c, uint32_t break_ppm, uint32_t dgram_loss_ppm,
	      uint32_t dgram_dup_ppm)
{
	need(c, CL_LOSSY, "loss");
	cl_note(c, "lossy: break %u, lose %u, double %u ppm", break_ppm, dgram_loss_ppm,
		dgram_dup_ppm);
	c->ops->lossy(c, break_ppm, dgram_loss_ppm, dgram_dup_ppm);
	c->lossy = break_ppm || dgram_loss_ppm || dgram_dup_ppm;
	touch(&c->touched_ns, cl_now_ns(c));
}

void cl_disk_full(struct cluster *c, const char *node, bool full)
{
	need(c, CL_DISK_FULL, "full disk");
	REAL_NOTE(c, "disk of %s full: %s", node, full ? "yes" : "no");
	c->ops->disk_full(c, cl_node_of(c, node), full);
}

void cl_disk_slow(struct cluster *c, const char *node, uint32_t ms)
{
	need(c, CL_DISK_SLOW, "slow disk");
	REAL_NOTE(c, "disk of %s takes %u ms a call", node, ms);
	c->ops->disk_slow(c, cl_node_of(c, node), ms);
}

void cl_power_cut(struct cluster *c, const char *node)
{
	need(c, CL_POWER_CUT, "power cut");
	struct cl_node *n = cl_node_of(c, node);
	REAL_NOTE(c, "power cut %s", node);
	c->ops->power_cut(c, n);
	list_for_each (i, &c->members) {
		struct cl_member *m = list_entry(i, struct cl_member, node);
		if (m->on != n)
			continue;
		m->up = false;
		moves(c, m, false);
	}
}

void cl_clock_jump(struct cluster *c, const char *node, int64_t ms)
{
	need(c, CL_CLOCK_JUMP, "clock jump");
	REAL_NOTE(c, "clock of %s jumps by %" PRId64 " ms", node, ms);
	c->ops->clock_jump(c, cl_node_of(c, node), ms);
}

void cl_clock_drift(struct cluster *c, const char *node, int32_t ppm)
{
	need(c, CL_CLOCK_DRIFT, "clock drift");
	REAL_NOTE(c, "clock of %s drifts by %d ppm", node, ppm);
	c->ops->clock_drift(c, cl_node_of(c, node), ppm);
}

void cl_suspend(struct cluster *c, const char *node, uint32_t ms)
{
	need(c, CL_SUSPEND, "suspend");
	REAL_NOTE(c, "suspend %s for %u ms", node, ms);
	c->ops->suspend(c, cl_node_of(c, node), ms);
	touch_node(c, node, ms);
}

void cl_oom(struct cluster *c, const char *name, uint64_t skip, uint64_t count)
{
	need(c, CL_OOM, "allocation failure: link with sim_alloc_dep");
	cl_note(c, "allocations of %s fail: %" PRIu64 " after %" PRIu64, name, count, skip);
	c->ops->oom(c, cl_member_of(c, name), skip, count);
}

void cl_oom_callers(struct cluster *c, const char *node, uint64_t skip, uint64_t count)
{
	need(c, CL_OOM, "allocation failure: link with sim_alloc_dep");
	cl_note(c, "allocations of callers on %s fail: %" PRIu64 " after %" PRIu64, node, count,
		skip);
	c->ops->oom_callers(c, node_make(c, node), skip, count);
}

/* ---- calls from outside ---- */

struct client_wish {
	struct cluster *c;
	struct cl_client *cl;
	struct why why;
	enum err err;
};

static void client_open(void *arg)
{
	struct client_wish *w = arg;
	struct cl_client *cl = w->cl;
	const char *addrs[] = { cl->addr };
	loop_random(cl->loop, cl->instance, sizeof(cl->instance));
	struct rpc_client_opts o = {
		.addrs = addrs,
		.n_addrs = 1,
		.peer_name = cl->to->name,
		.as = cl->role,
		.expect = ROLE_NONE,
		.tenant = cl->tenant[0] ? cl->tenant : NULL,
		.holder = cl->holder[0] ? cl->holder : NULL,
		.keys = w->c->keys,
		.log = &w->c->log,
		.instance = cl->instance,
	};
	w->err = rpc_client_new(cl->loop, &o, &cl->rpc, &w->why);
}

/* NULL: it could not be made. */
static struct cl_client *client_of(struct cluster *c, struct cl_from from, const char *member,
				   struct why *why)
{
	enum role role = from.role ? from.role : ROLE_ADMIN;
	const char *tenant = role != ROLE_CLIENT ? "" : from.tenant ? from.tenant : "default";
	const char *holder = role == ROLE_HOLDER && from.holder ? from.holder : "";
	struct cl_node *n = node_make(c, from.node);
	struct cl_member *to = cl_member_of(c, member);
	list_for_each (i, &c->clients) {
		struct cl_client *cl = list_entry(i, struct cl_client, node);
		if (cl->from == n && cl->to == to && cl->role == role &&
		    strcmp(cl->tenant, tenant) == 0 && strcmp(cl->holder, holder) == 0)
			return cl;
	}
	struct cl_client *cl = calloc(1, sizeof(*cl));
	SIM_CHECK(cl, "no memory");
	cl->from = n;
	cl->to = to;
	cl->role = role;
	snprintf(cl->tenant, sizeof(cl->tenant), "%s", tenant);
	snprintf(cl->holder, sizeof(cl->holder), "%s", holder);
	snprintf(cl->addr, sizeof(cl->addr), "%s", c->ops->addr(c, n, to));
	cl->loop = c->ops->loop(c, n);
	struct client_wish w = { .c = c, .cl = cl };
	c->ops->run_in(c, n, client_open, &w);
	if (w.err != ERR_NONE) {
		why_set(why, w.err, "%s", w.why.text);
		free(cl);
		return NULL;
	}
	list_push_back(&c->clients, &cl->node);
	return cl;
}

struct rpc_client *cl_client(struct cluster *c, struct cl_from from, const char *member,
			     struct loop **loop)
{
	struct why why = { 0 };
	struct cl_client *cl = client_of(c, from, member, &why);
	SIM_CHECK(cl, "client of %s: %s", member, why.text);
	if (loop)
		*loop = cl->loop;
	return cl->rpc;
}

const uint8_t *cl_instance(struct cluster *c, struct cl_from from, const char *member)
{
	struct why why = { 0 };
	struct cl_client *cl = client_of(c, from, member, &why);
	SIM_CHECK(cl, "client of %s: %s", member, why.text);
	return cl->instance;
}

struct one_call {
	struct rpc_call call;
	struct rpc_client *rpc;
	struct loop *loop;
	uint8_t *reply; /* a copy */
	size_t n_reply;
	uint32_t deadline_ms;
	bool done;
};

static void call_done(struct rpc_call *rc)
{
	struct one_call *o = container_of(rc, struct one_call, call);
	if (rc->reply.n) {
		o->reply =
			sim_alloc(rc->reply.n); /* in the caller: malloc may be made to fail */
		o->n_reply = rc->reply.n;
		memcpy(o->reply, rc->reply.p, rc->reply.n);
	}
	o->done = true;
}

static void call_send(void *arg)
{
	struct one_call *o = arg;
	o->call.deadline_ns = clock_after_ms(loop_now_ns(o->loop), o->deadline_ms);
	rpc_send(o->rpc, &o->call);
}

static bool call_is_done(void *arg)
{
	return ((struct one_call *)arg)->done;
}

enum err cl_call(struct cluster *c, struct cl_from from, const char *member, uint32_t method,
		 struct bytes body, uint32_t deadline_ms, struct buf *reply, struct why *why)
{
	struct why own = { 0 };
	struct cl_client *cl = client_of(c, from, member, &own);
	if (!cl)
		return why_set(why, own.err, "%s", own.text);
	struct one_call *o = calloc(1, sizeof(*o));
	SIM_CHECK(o, "no memory");
	o->call = (struct rpc_call){ .method = method, .body = body, .done = call_done };
	o->rpc = cl->rpc;
	o->loop = cl->loop;
	o->deadline_ms = deadline_ms;
	if (reply)
		buf_clear(reply);
	c->ops->run_in(c, cl->from, call_send, o);
	/* ten seconds more: the caller's machine may be asleep, or this one be slow */
	bool ended = cl_until(c, call_is_done, o, deadline_ms + 10000);
	SIM_CHECK(ended, "a call of %s to %s did not end by its deadline (T7)", cl->from->name,
		  member);
	enum err e = o->call.err;
	if (e != ERR_NONE)
		why_set(why, e, "%s", o->call.why.text);
	if (reply)
		buf_put(reply, o->reply, o->n_reply);
	free(o->reply);
	free(o);
	return e;
}

/* ---- the end ---- */

static void client_closed(void *arg)
{
	((struct cl_client *)arg)->closed = true;
}

static void client_close(void *arg)
{
	struct cl_client *cl = arg;
	rpc_client_close(cl->rpc, client_closed, cl);
}

static bool clients_closed(void *arg)
{
	struct cluster *c = arg;
	list_for_each (i, &c->clients)
		if (!list_entry(i, struct cl_client, node)->closed)
			return false;
	return true;
}

static bool members_down(void *arg)
{
	struct cluster *c = arg;
	list_for_each (i, &c->members)
		if (list_entry(i, struct cl_member, node)->up)
			return false;
	return true;
}

void cl_close(struct cluster *c)
{
	cl_forget(c);
	cl_heal(c, NULL, NULL);
	list_for_each (i, &c->clients) {
		struct cl_client *cl = list_entry(i, struct cl_client, node);
		c->ops->run_in(c, cl->from, client_close, cl);
	}
	SIM_CHECK(cl_until(c, clients_closed, c, 10000), "a client does not close");
	list_for_each (i, &c->members) {
		cl_cont(c, list_entry(i, struct cl_member, node)->name);
		cl_term(c, list_entry(i, struct cl_member, node)->name);
	}
	SIM_CHECK(cl_until(c, members_down, c, 60000), "a member does not end when asked to");
	c->ops->close(c);
	list_for_each_safe (i, &c->clients)
		free(list_entry(i, struct cl_client, node));
	list_for_each_safe (i, &c->members)
		free(list_entry(i, struct cl_member, node));
	list_for_each_safe (i, &c->nodes)
		free(list_entry(i, struct cl_node, node));
	keyring_free(c->keys);
	free(c);
}
