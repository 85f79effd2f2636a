/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request of a client below the core: what rpc_call embeds and an engine fills. Apart, because
 * rpc.h and engine.h both need it. No code.
 */
#pragma once

#include "base/err.h"
#include "base/list.h"

/* One request of a client, in the caller's memory until done runs or cancel returns. */
struct eng_xchg {
	/* reply: borrowed for the call. e: CONN_LOST, TOO_LARGE, BAD_MESSAGE; NONE with the reply */
	void (*done)(struct eng_xchg *x, enum err e, struct bytes reply);
	/* the engine's */
	struct list node;
	void *impl;
	uint32_t id;
};
