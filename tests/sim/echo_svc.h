/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The toy service of echo.h, for a simulated process and for a real one (echo_main.c).
 * Thread: the loop's.
 */
#pragma once

#include "tests/sim/echo.h"

struct pool;

struct echo_env {
	struct loop *loop;
	const struct keyring *keys;
	const char *addr; /* where to listen; borrowed for life */
	struct echo_world *world;
	/* NULL: yes. A killed process of the simulator goes on a little, unseen. */
	bool (*alive)(void *arg);
	void (*ended)(void *arg); /* nothing of it is left */
	void *arg;
};

/* Memory of the caller, zeroed. */
struct echo {
	struct echo_env env;
	struct echo_world *w;
	struct rpc_server *server;
	struct pool *pool;
	struct log log;
	struct log_capture capture;
	struct list items;
	struct timer tick;
	uint8_t instance[16];
	bool stopping, closing;
};

enum err echo_open(const struct echo_env *env, struct echo *e, struct why *why) MUST_CHECK;
/* Its end begins; at_once: what is inside is answered now. Again: only at_once counts. */
void echo_end(struct echo *e, bool at_once);
