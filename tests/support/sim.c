/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event queue, processes and their loops. Owns everything in sim_priv.h but clocks
 * (sim_clock.c) and lines (sim_lines.c).
 *
 * I1: an event of a stopped process moves to its held list and comes back, in order, when it
 *     goes on.
 */
#include "tests/support/sim_priv.h"
#include "tests/support/sim_disk.h"

#include "rpc/net_sim.h"

#include <inttypes.h>
#include <string.h>

#define PROCS_MAX     100000
#define WAKE_MAX_NS   50000 /* of a thread that sleeps in epoll_wait; usually 5..50 us */
#define SLACK_MAX_NS  60000 /* the kernel's timer slack is 50 us */
#define JOB_MIN_NS    2000
#define FREE_LIMIT_NS (600 * NS_PER_S) /* for the last shutdowns */

static struct sim_proc *current;

struct sim_proc *sim_current(void)
{
	return current;
}

/* posix_memalign is what sim_alloc.c leaves alone. */
void *sim_alloc(size_t n)
{
	void *p;
	SIM_CHECK(posix_memalign(&p, 16, n) == 0, "no memory for %zu bytes", n);
	return memset(p, 0, n);
}

void sim_mix(struct sim *s, uint64_t v)
{
	s->hash = (s->hash ^ v) * 0x100000001b3ull;
	s->hash ^= s->hash >> 29;
}

/* ---- queue ---- */

void sim_queue(struct sim *s, struct sim_event *e, uint64_t when_ns)
{
	uint64_t at = MAX_OF(when_ns, s->now_ns);
	SIM_CHECK(at < UINT64_MAX >> 8, "the virtual clock ends after two years");
	heap_remove(&s->queue, &e->node);
	list_del(&e->held);
	heap_insert(&s->queue, &e->node, at << 8 | (sim_rng_next(&s->rng) & 0xff));
}

static void add_event(struct sim *s, struct sim_proc *p, uint64_t when_ns,
		      void (*fn)(void *arg), void *arg)
{
	struct sim_event *e = sim_alloc(sizeof(*e));
	*e = (struct sim_event){ .proc = p, .fn = fn, .arg = arg };
	sim_queue(s, e, when_ns);
}

void sim_at(struct sim *s, uint64_t when_ns, void (*fn)(void *arg), void *arg)
{
	add_event(s, NULL, when_ns, fn, arg);
}

void sim_at_proc(struct sim_proc *p, uint64_t when_ns, void (*fn)(void *arg), void *arg)
{
	add_event(p->machine->sim, p, when_ns, fn, arg);
}

bool sim_awake(const struct sim_proc *p)
{
	if (p->state == SIM_DEAD || p->state == SIM_ENDED)
		return true;
	return p->state == SIM_RUNNING &&
	       p->machine->asleep_until_ns <= p->machine->sim->now_ns;
}

uint64_t sim_awake_since_ns(const struct sim_proc *p)
{
	return p->awake_since_ns;
}

static void dispatch(struct sim *s, struct sim_event *e)
{
	struct sim_proc *p = e->proc;
	void (*fn)(void *arg) = e->fn;
	void *arg = e->arg;
	if (!e->keep)
		free(e);
	s->n_events++;
	sim_mix(s, s->now_ns ^ (uint64_t)(p ? p->id : 0) << 48);
	current = p;
	fn(arg);
	current = NULL;
}

void sim_run_in(struct sim_proc *p, void (*fn)(void *arg), void *arg)
{
	SIM_CHECK(!current, "sim_run_in from inside an event");
	SIM_CHECK(sim_awake(p), "%s is stopped", p->name);
	current = p;
	fn(arg);
	current = NULL;
}

bool sim_step(struct sim *s)
{
	struct heap_node *n = heap_min(&s->queue);
	if (!n)
		return false;
	SIM_CHECK(!current, "the simulator was entered from inside an event");
	struct sim_event *e = container_of(n, struct sim_event, node);
	uint64_t at = n->key >> 8;
	heap_remove(&s->queue, n);
	SIM_CHECK(at >= s->now_ns, "time went back");
	s->now_ns = at;
	if (!e->proc || sim_awake(e->proc))
		dispatch(s, e);
	else
		list_push_back(&e->proc->held, &e->held);
	return true;
}

static bool due_by(const struct sim *s, uint64_t end_ns)
{
	const struct heap_node *n = heap_min(&s->queue);
	return n && n->key >> 8 <= end_ns;
}

void sim_run_ms(struct sim *s, uint64_t ms)
{
	uint64_t end = s->now_ns + ms * NS_PER_MS;
	while (due_by(s, end))
		sim_step(s);
	s->now_ns = end;
}

bool sim_run_until_ns(struct sim *s, bool (*pred)(void *arg), void *arg, uint64_t end_ns)
{
	while (!pred(arg)) {
		if (!due_by(s, end_ns)) {
			s->now_ns = end_ns;
			return pred(arg);
		}
		sim_step(s);
	}
	return true;
}

bool sim_run_until(struct sim *s, bool (*pred)(void *arg), void *arg, uint64_t ms)
{
	return sim_run_until_ns(s, pred, arg, s->now_ns + ms * NS_PER_MS);
}

void sim_release(struct sim_proc *p)
{
	struct sim *s = p->machine->sim;
	uint64_t at = s->now_ns + 1000;
	p->awake_since_ns = s->now_ns;
	for (struct list *n; (n = list_pop_front(&p->held));)
		sim_queue(s, list_entry(n, struct sim_event, held), at++);
}

/* ---- the loop's driver ---- */

static void drv_wake(struct loop *l)
{
	struct sim_loop *sl = l->driver_data;
	struct sim *s = sl->proc->machine->sim;
	if (sl->turn.node.linked || list_linked(&sl->turn.held))
		return;
	sim_queue(s, &sl->turn, s->now_ns + sim_rng_between(&s->rng, 500, WAKE_MAX_NS));
}

static void drv_arm(struct loop *l, uint64_t first_due_ns)
{
	struct sim_loop *sl = l->driver_data;
	struct sim *s = sl->proc->machine->sim;
	uint64_t when = sim_node_when(sl->proc->machine, first_due_ns);
	if (when >= UINT64_MAX >> 9) { /* a year from now, or never */
		heap_remove(&s->queue, &sl->timer.node);
		list_del(&sl->timer.held);
		return;
	}
	sim_queue(s, &sl->timer,
		  MAX_OF(when, s->now_ns) + sim_rng_below(&s->rng, SLACK_MAX_NS));
}

static void drv_random(struct loop *l, void *p, size_t n)
{
	struct sim_loop *sl = l->driver_data;
	uint8_t *to = p;
	while (n > 0) {
		uint64_t v = sim_rng_next(&sl->proc->rng);
		size_t part = MIN_OF(n, sizeof(v));
		memcpy(to, &v, part);
		to += part;
		n -= part;
	}
}

/* Most jobs are short, some take a time slice or a disk's time. */
static uint64_t job_ns(struct sim_rng *r)
{
	uint64_t most = sim_rng_chance(r, 100000) ? 5 * NS_PER_MS : 100000;
	return sim_rng_between(r, JOB_MIN_NS, most);
}

/* One half of a worker's job: pool.c calls later twice, before the work and before its end. */
static void drv_later(struct loop *l, void (*fn)(void *arg), void *arg)
{
	struct sim_loop *sl = l->driver_data;
	struct sim_proc *p = sl->proc;
	struct sim *s = p->machine->sim;
	add_event(s, p, s->now_ns + p->spent_ns + job_ns(&s->rng), fn, arg);
	p->spent_ns = 0;
}

static struct net_sim_port *drv_net(struct loop *l)
{
	struct sim_loop *sl = l->driver_data;
	return sl->proc->port;
}

static const struct loop_driver driver = {
	.wake = drv_wake,
	.arm = drv_arm,
	.random = drv_random,
	.later = drv_later,
	.net = drv_net,
};

static void turn(void *arg)
{
	struct sim_loop *sl = arg;
	loop_turn(sl->loop);
}

void sim_loop_open(struct sim_proc *p, struct loop *l)
{
	struct sim_loop *sl = sim_alloc(sizeof(*sl));
	*sl = (struct sim_loop){ .loop = l, .proc = p };
	sl->turn = (struct sim_event){ .proc = p, .fn = turn, .arg = sl, .keep = true };
	sl->timer = sl->turn;
	list_push_back(&p->loops, &sl->node);
	loop_init(l, &driver, sl, &p->machine->clock);
}

void sim_loop_close(struct loop *l)
{
	struct sim_loop *sl = l->driver_data;
	struct sim *s = sl->proc->machine->sim;
	heap_remove(&s->queue, &sl->turn.node);
	heap_remove(&s->queue, &sl->timer.node);
	list_del(&sl->turn.held);
	list_del(&sl->timer.held);
	list_del(&sl->node);
	loop_fini(l);
	free(sl);
}

struct sim_proc *sim_loop_proc(const struct loop *l)
{
	return l->driver == &driver ? ((struct sim_loop *)l->driver_data)->proc : NULL;
}

void sim_spend(uint64_t ns)
{
	if (current)
		current->spent_ns += ns;
}

/* ---- processes ---- */

struct sim_proc *sim_proc_start(struct sim_node *n, const struct sim_proc_opts *o)
{
	struct sim *s = n->sim;
	SIM_CHECK(strlen(o->name) < 32 && *o->name, "process name '%s': 1..31 characters",
		  o->name);
	SIM_CHECK(s->n_procs < PROCS_MAX, "more than %d processes", PROCS_MAX);
	struct sim_proc *p = sim_alloc(sizeof(*p));
	*p = (struct sim_proc){
		.machine = n, .id = ++s->n_procs, .on_kill = o->on_kill, .arg = o->arg
	};
	memcpy(p->name, o->name, strlen(o->name) + 1);
	p->awake_since_ns = s->now_ns;
	p->rng = (struct sim_rng){ sim_rng_next(&s->rng) };
	list_init(&p->held);
	list_init(&p->loops);
	list_push_back(&n->procs, &p->node);
	p->port = net_sim_port_new(s->net, n->name, p);
	sim_note(s, "start %s on %s, process %u", p->name, n->name, p->id);
	return p;
}

void sim_proc_end(struct sim_proc *p)
{
	SIM_CHECK(p->state != SIM_ENDED, "%s, process %u, ended twice", p->name, p->id);
	SIM_CHECK(list_empty(&p->loops), "%s, process %u, ends with an open loop", p->name,
		  p->id);
	sim_note(p->machine->sim, "end of %s, process %u", p->name, p->id);
	p->state = SIM_ENDED;
	net_sim_port_free(TAKE(p->port));
	if (p->machine->disk)
		sim_disk_forget(p->machine->disk, p);
}

enum sim_state sim_proc_state(const struct sim_proc *p)
{
	return p->state;
}

const char *sim_proc_name(const struct sim_proc *p)
{
	return p->name;
}

struct sim_node *sim_proc_node(const struct sim_proc *p)
{
	return p->machine;
}

void sim_stop(struct sim_proc *p)
{
	if (p->state != SIM_RUNNING)
		return;
	sim_fault(p->machine->sim, "stop %s", p->name);
	p->state = SIM_STOPPED;
}

void sim_cont(struct sim_proc *p)
{
	if (p->state != SIM_STOPPED)
		return;
	sim_fault(p->machine->sim, "continue %s", p->name);
	p->state = SIM_RUNNING;
	sim_release(p);
}

/* The network and disk forget it first: nothing that follows is seen by anyone. */
static void die(struct sim_proc *p, bool silent)
{
	if (p->state != SIM_RUNNING && p->state != SIM_STOPPED)
		return;
	struct sim *s = p->machine->sim;
	p->state = SIM_DEAD;
	if (p->machine->disk)
		sim_disk_forget(p->machine->disk, p);
	net_sim_port_cut(p->port, silent);
	sim_release(p);
	if (p->on_kill)
		add_event(s, p, s->now_ns, p->on_kill, p->arg);
}

void sim_kill(struct sim_proc *p)
{
	if (p->state != SIM_RUNNING && p->state != SIM_STOPPED)
		return;
	sim_fault(p->machine->sim, "kill %s", p->name);
	die(p, false);
}

void sim_power_cut(struct sim_node *n)
{
	sim_fault(n->sim, "power cut on %s", n->name);
	list_for_each (i, &n->procs)
		die(list_entry(i, struct sim_proc, node), true);
	for (struct sim_ram *r = n->ram; r; r = r->next)
		r->lost = true; /* dying processes may look at it still */
	if (n->disk)
		sim_disk_power_cut(n->disk);
}

/* ---- machines ---- */

struct sim_node *sim_node(struct sim *s, const char *name)
{
	list_for_each (i, &s->nodes) {
		struct sim_node *n = list_entry(i, struct sim_node, node);
		if (strcmp(n->name, name) == 0)
			return n;
	}
	SIM_CHECK(strlen(name) < 32 && *name && !strchr(name, '/'),
		  "node name '%s': 1..31 characters without '/'", name);
	struct sim_node *n = sim_alloc(sizeof(*n));
	n->sim = s;
	memcpy(n->name, name, strlen(name) + 1);
	list_init(&n->procs);
	sim_clock_init(n, &s->rng);
	list_push_back(&s->nodes, &n->node);
	return n;
}

const char *sim_node_name(const struct sim_node *n)
{
	return n->name;
}

struct sim *sim_node_sim(const struct sim_node *n)
{
	return n->sim;
}

struct sim_disk *sim_node_disk(struct sim_node *n)
{
	if (!n->disk)
		n->disk = sim_disk_new(n->sim, n->name);
	return n->disk;
}

void *sim_node_ram(struct sim_node *n, const char *name, void *(*make)(void),
		   void (*drop)(void *ram))
{
	for (struct sim_ram *r = n->ram; r; r = r->next)
		if (!r->lost && strcmp(r->name, name) == 0)
			return r->what;
	struct sim_ram *r = sim_alloc(sizeof(*r));
	SIM_CHECK(strlen(name) < sizeof(r->name), "%s: a longer name", name);
	memcpy(r->name, name, strlen(name) + 1);
	r->what = make();
	r->drop = drop;
	r->next = n->ram;
	n->ram = r;
	return r->what;
}

void sim_node_rearm(struct sim_node *n)
{
	list_for_each (i, &n->procs) {
		struct sim_proc *p = list_entry(i, struct sim_proc, node);
		list_for_each (j, &p->loops) {
			struct loop *l = list_entry(j, struct sim_loop, node)->loop;
			const struct heap_node *first = heap_min(&l->timers);
			drv_arm(l, first ? first->key : UINT64_MAX);
		}
	}
}

static void wake_up(void *arg)
{
	struct sim_node *n = arg;
	if (n->asleep_until_ns > n->sim->now_ns)
		return; /* put to sleep again meanwhile */
	sim_fault(n->sim, "%s wakes up", n->name);
	list_for_each (i, &n->procs) {
		struct sim_proc *p = list_entry(i, struct sim_proc, node);
		if (p->state == SIM_RUNNING)
			sim_release(p);
	}
}

void sim_suspend(struct sim_node *n, uint64_t ms)
{
	uint64_t until = n->sim->now_ns + ms * NS_PER_MS;
	sim_fault(n->sim, "%s sleeps for %" PRIu64 " ms", n->name, ms);
	n->asleep_until_ns = MAX_OF(n->asleep_until_ns, until);
	sim_at(n->sim, until, wake_up, n);
}

/* ---- the world ---- */

static uint64_t world_now_ns(void *ctx)
{
	return ((struct sim *)ctx)->now_ns;
}

static uint64_t world_rand(void *ctx)
{
	return sim_rng_next(&((struct sim *)ctx)->rng);
}

static void world_at(void *ctx, void *owner, uint64_t when_ns, void (*fn)(void *arg), void *arg)
{
	add_event(ctx, owner, when_ns, fn, arg);
}

static void world_note(void *ctx, bool fault, const char *text)
{
	if (fault)
		sim_fault(ctx, "%s", text);
	else
		sim_note(ctx, "%s", text);
}

struct sim *sim_new(uint64_t seed)
{
	struct sim *s = sim_alloc(sizeof(*s));
	s->seed = seed;
	s->now_ns = NS_PER_S;
	s->rng = sim_rng(seed, "world");
	list_init(&s->nodes);
	sim_lines_init(s);
	s->net = net_sim_new(&(struct net_sim_world){ .now_ns = world_now_ns,
						      .rand = world_rand,
						      .at = world_at,
						      .note = world_note,
						      .ctx = s });
	SIM_CHECK(s->net, "no memory for a network");
	return s;
}

static bool all_ended(void *arg)
{
	struct sim *s = arg;
	list_for_each (i, &s->nodes) {
		struct sim_node *n = list_entry(i, struct sim_node, node);
		list_for_each (j, &n->procs)
			if (list_entry(j, struct sim_proc, node)->state != SIM_ENDED)
				return false;
	}
	return true;
}

static void node_free(struct sim_node *n)
{
	list_for_each_safe (i, &n->procs)
		free(list_entry(i, struct sim_proc, node));
	sim_disk_free(n->disk);
	for (struct sim_ram *r; (r = n->ram);) {
		n->ram = r->next;
		r->drop(r->what);
		free(r);
	}
	free(n);
}

void sim_free(struct sim *s)
{
	if (!s)
		return;
	bool ended = sim_run_until(s, all_ended, s, FREE_LIMIT_NS / NS_PER_MS);
	SIM_CHECK(ended, "a process still lives ten minutes after the end of the test");
	net_sim_free(s->net);
	for (struct heap_node *n; (n = heap_min(&s->queue));) {
		heap_remove(&s->queue, n);
		free(container_of(n, struct sim_event,
				  node)); /* loops are closed: none is kept */
	}
	list_for_each_safe (i, &s->nodes)
		node_free(list_entry(i, struct sim_node, node));
	sim_lines_fini(s);
	free(s);
}

uint64_t sim_seed(const struct sim *s)
{
	return s->seed;
}

uint64_t sim_now_ns(const struct sim *s)
{
	return s->now_ns;
}

struct sim_rng *sim_world_rng(struct sim *s)
{
	return &s->rng;
}

struct net_sim *sim_net(struct sim *s)
{
	return s->net;
}

uint64_t sim_hash(const struct sim *s)
{
	return s->hash;
}

uint64_t sim_events(const struct sim *s)
{
	return s->n_events;
}
