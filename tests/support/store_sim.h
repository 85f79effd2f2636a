/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store in a simulated cluster: a master, agents over pools in plain memory that outlive them (L3),
 * clients that run the library's session (sdk/stc.h) and map those pools as a client on the agents' host
 * does. Members: "master" on m0; "a0", "a1" on n0, n1; clients where they are put.
 *
 *   struct ss s;
 *   ss_open(&s, &(struct ss_opts){ .seed = seed, .n_agents = 2 });
 *   ss_client(&s, "c0", "c0", "default");
 *   ss_start(&s);
 *   e = ss_put(&s, "c0", "key", BYTES_STR("value"), true, 1000, NULL);
 *   ss_close(&s);
 *
 * Thread: the test's.
 */
#pragma once

#include "services/master/master.h"
#include "services/sdk/stc.h"
#include "store/backing.h"
#include "tests/support/fetch_sim.h"

enum { SS_AGENTS_MAX = 4, SS_CLIENTS_MAX = 8, SS_FLAGS_MAX = 30, SS_MAPS_MAX = 64 };

struct ss_opts {
	uint64_t seed;
	size_t n_agents;
	uint64_t pool_bytes;		 /* of each agent; 0: 4 MiB */
	const char *const *master_flags; /* NULL-ended; borrowed for life */
	const char *const *agent_flags;	 /* likewise */
};

struct ss_agent {
	char name[24], node[24], pool_size[48];
	struct cl_svc svc;
	const char *flags[SS_FLAGS_MAX];
};

struct ss;

struct ss_client {
	struct ss *ss;
	char name[16], node[16], tenant[65];
	/* A workload of its own, in its process: after stc is there, and before it is closed. May be NULL. */
	void (*begin)(struct ss_client *c);
	void (*end)(struct ss_client *c, bool killed);
	void *user;
	/* of the present run; NULL, 0 when it is down */
	struct stc *stc;
	struct loop *loop;
	const uint8_t *instance;
};

struct ss {
	struct cluster *c;
	size_t n_agents, n_clients;
	struct ss_agent agents[SS_AGENTS_MAX];
	struct ss_client clients[SS_CLIENTS_MAX];
	struct cl_svc master;
	struct fetch_sim fetch; /* between the agents; its script may be changed */
};

void ss_open(struct ss *s, const struct ss_opts *o);
/* All members end; mind_check first, where there is a mind. Nothing may be left. */
void ss_close(struct ss *s);
/* Adds a client; it is not started. */
struct ss_client *ss_client(struct ss *s, const char *name, const char *node,
			    const char *tenant);
/* Starts all, and waits until the master is ready with every agent merged. */
void ss_start(struct ss *s);
/* Is it: every agent up, merged, in, nothing recovering? For cl_until. */
bool ss_ready(void *s);
struct ss_client *ss_client_of(struct ss *s, const char *name);
struct mst *ss_master(struct ss *s); /* NULL: down */
struct mind_counts ss_counts(struct ss *s);

/* ---- calls that are waited for ---- */

/* Starts c in that client's process and runs the cluster until it is done. c is not freed. ERR_CLOSED:
 * the client is down. Else ERR_NONE: its items have their own. */
enum err ss_call(struct ss *s, const char *client, struct stc_call *c, uint32_t ms);
/* One key each; the item's error. */
enum err ss_put(struct ss *s, const char *client, const char *key, struct bytes value,
		bool upsert, uint32_t ms, uint64_t *version);
/* value (may be NULL) is cleared and gets the bytes. */
enum err ss_get(struct ss *s, const char *client, const char *key, uint32_t ms,
		struct buf *value);
enum err ss_remove(struct ss *s, const char *client, const char *key, uint32_t ms);
enum err ss_exists(struct ss *s, const char *client, const char *key, uint32_t ms);
