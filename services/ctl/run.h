/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run folder as its readers see it. Each service keeps run/NAME.pid, OFD-locked for as long as
 * it lives, and writes run/NAME.json once it can be reached; the supervisor merges these into
 * run/endpoints.json, which clients read.
 *
 * What is read here was written by a process that may have died half way: every file is bounded and
 * checked, and is believed only while the lock is held (I1).
 *
 * Thread: any; every call stands alone.
 */
#pragma once

#include "base/json_out.h"

#include <sys/types.h>

enum { RUN_RPC_MAX = 8, RUN_ADDR_MAX = 192, RUN_FILE_BYTES_MAX = 16384 };

/* run/NAME.json */
struct run_info {
	pid_t pid;
	char instance[33]; /* 32 hex digits */
	char http[64];	   /* "127.0.0.1:17610"; "" without */
	char rpc[RUN_RPC_MAX][RUN_ADDR_MAX];
	size_t n_rpc;
};

/* What a service of that name writes there; ERR_CORRUPT: not this, out is untouched. Pure. */
enum err run_parse(struct bytes text, const char *name, struct run_info *out) MUST_CHECK;
/* ERR_NOT_FOUND no such file yet; ERR_CORRUPT not what a service writes. */
enum err run_read(const char *run_dir, const char *name, struct run_info *out) MUST_CHECK;

/*
 * Who holds run/NAME.pid. ERR_NOT_FOUND: nobody. ERR_BUSY: somebody, who has not written its pid
 * yet; look again.
 */
enum err run_holder(const char *run_dir, const char *name, pid_t *pid) MUST_CHECK;
/* Does any service of ours hold its pid file there? */
bool run_any_held(const char *run_dir);

/* One service's line in endpoints.json; info NULL: it is not there now and is left out. */
struct run_endpoint {
	const char *name;
	const struct run_info *info;
};
/* Writes run/endpoints.json in one step: readers see the old file or the new one. */
enum err run_endpoints_write(const char *run_dir, const struct run_endpoint *e, size_t n,
			     struct why *why) MUST_CHECK;

/* The members name pid instance rpc http, into an object that is open. */
void run_info_json(struct json *j, const char *name, const struct run_info *info);
