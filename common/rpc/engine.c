/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of this build, one row each: the first that can serve an address does. */
#include "rpc/engine.h"

#include <string.h>

static const struct engine *const engines[] = {
	&engine_sp,
	&engine_nng,
	&engine_sim,
};

const struct engine *engine_pick(const char *name, const char *addr, struct why *why)
{
	for (size_t i = 0; i < ARRAY_LEN(engines); i++) {
		const struct engine *e = engines[i];
		if ((!name || strcmp(name, e->name) == 0) && e->can(addr))
			return e;
	}
	if (name)
		why_set(why, ERR_INVALID_PARAMS,
			"address %.160s: the %.16s engine cannot serve it (sp, nng: tcp, "
			"ipc, tls+tcp; sim: sim)",
			addr, name);
	else
		why_set(why, ERR_INVALID_PARAMS,
			"address %.160s: it must begin with tcp://, ipc:// or tls+tcp://",
			addr);
	return NULL;
}
