/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulator's own files share. Not for tests.
 */
#pragma once

#include "tests/support/sim.h"

#include "base/heap.h"

/* In the queue, or held by a stopped process; freed after fn. */
struct sim_event {
	struct heap_node node; /* key: ns << 8 | a seeded byte, which decides among equals */
	struct list held;
	struct sim_proc *proc; /* NULL: the world's */
	void (*fn)(void *arg);
	void *arg;
	bool keep; /* embedded elsewhere */
};

struct sim_lines {
	char (*text)[160];
	size_t n, max; /* n counts all there ever were */
	bool ring;     /* false: the first max stay */
};

struct sim {
	struct list all; /* worlds that live, for the dump */
	uint64_t seed, now_ns, hash, n_events;
	struct heap queue;
	struct sim_rng rng;
	struct list nodes;
	struct net_sim *net;
	struct sim_lines lines, faults;
	uint32_t n_procs;
	bool echo;
};

/* One thing that a machine keeps in memory. */
struct sim_ram {
	struct sim_ram *next;
	char name[64];
	void *what;
	void (*drop)(void *ram);
	bool lost; /* by a power cut */
};

struct sim_node {
	struct list node; /* in sim.nodes */
	struct sim *sim;
	char name[32];
	struct list procs;
	struct sim_disk *disk;
	struct sim_ram *ram;
	struct clock clock;
	/* now_ns of the machine = base_ns + (sim.now_ns - since_ns) * (1 + ppm / 1e6) */
	uint64_t base_ns, since_ns;
	int32_t ppm;
	int64_t wall_off_ms; /* wall_ms = 2026-01-01 + now_ns / 1e6 + this */
	uint64_t asleep_until_ns;
};

struct sim_loop {
	struct list node; /* in sim_proc.loops */
	struct loop *loop;
	struct sim_proc *proc;
	struct sim_event turn, timer;
};

struct sim_proc {
	struct list node; /* in sim_node.procs */
	struct sim_node *machine;
	char name[32];
	uint32_t id;
	enum sim_state state;
	struct list held, loops;
	struct net_sim_port *port;
	struct sim_rng rng;
	uint64_t awake_since_ns;
	uint64_t spent_ns; /* by sim_spend, until the running job ends */
	void (*on_kill)(void *arg);
	void *arg;
};

/* Queues e for when_ns (not before now). */
void sim_queue(struct sim *s, struct sim_event *e, uint64_t when_ns);
/* The first ns of everybody's time at which n's clock shows at least due_ns; UINT64_MAX: never. */
uint64_t sim_node_when(const struct sim_node *n, uint64_t due_ns);
/* Arms every loop's timer on n again: its clock was changed. */
void sim_node_rearm(struct sim_node *n);
/* Mixes v into the hash. */
void sim_mix(struct sim *s, uint64_t v);
/* A fresh node's clock. */
void sim_clock_init(struct sim_node *n, struct sim_rng *r);
/* Memory of n zero bytes; aborts without. */
void *sim_alloc(size_t n);
/* Events held while p was stopped, or its machine asleep, become due now, in their order. */
void sim_release(struct sim_proc *p);
/* The lists of a world. */
void sim_lines_init(struct sim *s);
void sim_lines_fini(struct sim *s);
