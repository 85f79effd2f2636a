/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc.h"

#include <sys/resource.h>

/* Descriptors a service needs beside its connections: log, data files, HTTP, pool, timers. */
#define FDS_KEPT       128u
#define CONNS_CAP      65536u
#define CONNS_FLOOR    64u
#define CONNS_ANON_TOP 512u

static uint32_t conns_default(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == RLIM_INFINITY)
		return CONNS_CAP;
	uint64_t n = r.rlim_cur > FDS_KEPT ? r.rlim_cur - FDS_KEPT : 0;
	return (uint32_t)MAX_OF(MIN_OF(n, (uint64_t)CONNS_CAP), (uint64_t)CONNS_FLOOR);
}

#define DEFAULT(field, value) (l->field = l->field ? l->field : (value))

void rpc_limits_default(struct rpc_limits *l)
{
	DEFAULT(message_bytes_max, 8u << 20);
	DEFAULT(conns_max, conns_default());
	DEFAULT(conns_anon_max, MIN_OF(MAX_OF(l->conns_max / 2, 1u), CONNS_ANON_TOP));
	DEFAULT(handshake_ms, 5000);
	DEFAULT(frame_ms, 30000);
	DEFAULT(inflight_max, 4096);
	DEFAULT(inflight_peer_max, 1024);
	DEFAULT(inside_bytes_max, 64u << 20);
	DEFAULT(queue_bytes_max, 64u << 20);
	DEFAULT(conn_queue_bytes_max, 1u << 20);
	DEFAULT(parked_bytes_max, 16u << 20);
	DEFAULT(parked_peer_bytes_max, l->parked_bytes_max / 4);
	DEFAULT(sessions_max, 8192);
}
