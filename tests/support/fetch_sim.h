/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated twin of xfer/fetch_lanes.c: bytes go from the pool of one simulated agent to another's, in
 * pieces of 64 KiB on virtual time, as far as the source lives, is awake and in reach, and its ticket
 * holds. Tickets are opened with the source's key, generations compared before and after each piece, blocks
 * verified by the same code (xfer/fetch.c).
 *
 *   fetch_sim_init(&fs, cluster);
 *   fetch_sim_add(&fs, "a0");  fetch_sim_add(&fs, "a1");
 *   svc = (struct cl_svc){ .fetch = &fetch_sim_ops, .fetch_ctx = fetch_sim_of(&fs, "a0"), ... };
 *
 * Thread: the simulator's.
 */
#pragma once

#include "tests/support/cluster_svc.h"
#include "xfer/fetch.h"

enum { FETCH_SIM_MEMBERS = 8, FETCH_SIM_MOVING = 256, FETCH_SIM_PIECE = 64 << 10 };

struct fetch_sim;
struct fetch_sim_member {
	struct fetch_sim *s;
	char name[32];
};

/* One fetch under way. */
struct fetch_sim_moving {
	bool used;
	struct timer timer;
	struct fetch *f;
	struct fetch_sim_member *dst;
	struct loop *loop;
	uint64_t moved_ns, in_block; /* bytes of the present block that came */
};

struct fetch_sim {
	struct cluster *c;
	struct fetch_sim_member members[FETCH_SIM_MEMBERS];
	size_t n;
	/* script */
	uint32_t damaged;  /* so many blocks, from now on, do not arrive as they were sent */
	uint32_t piece_us; /* a piece takes up to twice that; 0: 100 */
	bool hold;	   /* nothing moves */
	/* record */
	uint64_t bytes, started, good, cut;
	struct sim_rng rng;
	struct fetch_sim_moving moving[FETCH_SIM_MOVING];
};

extern const struct fetch_ops fetch_sim_ops; /* ctx: struct fetch_sim_member */

/* c may be set later, before anything is fetched. */
void fetch_sim_init(struct fetch_sim *s, struct cluster *c, uint64_t seed);
/* An agent, source or destination; borrowed as long as s. */
struct fetch_sim_member *fetch_sim_add(struct fetch_sim *s, const char *name);
