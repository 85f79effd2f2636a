/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One store session (sdk/stc.h) in a simulated process, and a fake store (store_fake.h) in another.
 *
 * Thread: the test's.
 */
#pragma once

#include "services/sdk/stc.h"
#include "store_fake.h"
#include "tests/support/sim.h"

struct w_opts {
	uint64_t seed;
	uint32_t step_bytes;   /* 0: 4096 */
	uint32_t inline_bytes; /* as stc_opts; 0: none */
	uint64_t pool_bytes;   /* 0: 16 MiB */
	uint32_t snap_keys_max;
};

struct world {
	struct w_opts o;
	struct sim *sim;
	struct log log;
	struct log_capture quiet;
	struct sim_proc *servers;
	struct loop sl;
	struct fake f;
	/* the client's */
	struct sim_proc *client;
	struct loop cl;
	struct rpc_client *rpc;
	struct stc *stc;
	uint8_t instance[16];
	uint32_t sessions[8], n_sessions;
	uint32_t maps;	  /* how often a pool was mapped */
	enum err map_err; /* what the next maps fail with */
	bool closed, servers_closed;
};

void w_open(struct world *w, const struct w_opts *o);
/* Everything ends through its own way out. */
void w_close(struct world *w);

/* Starts c in the client's process with that deadline and runs until it is done; false: it never was. */
bool w_run(struct world *w, struct stc_call *c, uint32_t ms);
/* Only starts it; *done becomes true. */
void w_start(struct world *w, struct stc_call *c, uint32_t ms, bool *done);
bool w_wait(struct world *w, const bool *done, uint32_t ms);

/* One key; the item's error. */
enum err w_put(struct world *w, const char *key, struct bytes value, bool upsert, uint32_t ms);
enum err w_get(struct world *w, const char *key, void *out, size_t cap, size_t *n, bool verify,
	       uint32_t ms);
enum err w_key(struct world *w, enum stc_kind kind, const char *key, uint32_t ms);
