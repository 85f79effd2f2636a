/* SPDX-License-Identifier: Apache-2.0 */
/* A schema with a row of each type, for the tests and the fuzz target of the settings engine. */
#pragma once

#include "base/conf.h"

/* clang-format off */
#define SAMPLE_SHARED(F) \
	F(path,  data,     "data",       "",     "", "4000", 0, "data folder") \
	F(str,   host_id,  "host_id",    "here", "1", "64", 0, "name of this machine") \
	F(u32,   port,     "http.port",  "17610", "1", "65535", 0, "HTTP port") \
	F(addrs, listen,   ".listen",    "ipc:///run/m.sock", "1", "4", CONF_NAMES_USE, "where to listen")

#define SAMPLE_OWN(F) \
	F(ms,    beat_ms,  ".beat_ms",   "500",  "50", "60000", 0, "time between two beats") \
	F(size,  pool,     ".pool_bytes", "1GiB", "4KiB", "1TiB", 0, "memory") \
	F(ratio, low,      ".low_ratio", "0.25", "0", "1", 0, "low water") \
	F(ratio, high,     ".high_ratio", "0.75", "0", "1", 0, "high water") \
	F(bool,  offload,  ".offload",   "true", "", "", 0, "spill to disk") \
	F(enum,  engine,   ".engine",    "sp",   "sp nng sim", "", 0, "rpc engine") \
	F(u64,   keys,     ".n_keys",    "1000", "", "", 0, "keys") \
	F(list,  routes,   ".routes",    "",     "", "3", 0, "routes") \
	F(str,   token,    ".token",     "",     "", "32", CONF_SECRET, "a secret") \
	F(path,  dir,      ".dir",       "",     "", "", CONF_NAMES_USE, "a folder") \
	F(u32,   depth,    ".depth",     "256",  "1", "1024", 0, "queue depth")
/* clang-format on */

struct sample_shared {
	SAMPLE_SHARED(CONF_FIELD)
};
struct sample {
	struct sample_shared shared;
	SAMPLE_OWN(CONF_FIELD)
};

#define CONF_T struct sample_shared
static const struct conf_row sample_shared_rows[] = { SAMPLE_SHARED(CONF_ROW) };
#undef CONF_T
#define CONF_T struct sample
static const struct conf_row sample_rows[] = { SAMPLE_OWN(CONF_ROW) };
#undef CONF_T

static const struct conf_foreign sample_foreign[] = {
	{ "MOONCAKE_OFFLOAD_ENABLED", ".offload" },
	{ "MOONCAKE_BEAT_SECONDS", ".beat_ms", .mul = 1000, .lo = "100", .hi = "1000",
	  .flags = CONF_CLAMP, .note = "kept within 0.1..1 s here" },
	{ "MOONCAKE_POOL", ".pool_bytes" },
	{ "OSS_POOL", ".pool_bytes" },
	{ "MOONCAKE_DEPTH", ".depth", .map = "0=256", .flags = CONF_CLAMP },
	{ "MOONCAKE_PROTOCOL", ".engine", .map = "tcp=sp rdma=nng" },
	{ "MOONCAKE_DIR", ".dir" },
	{ "MOONCAKE_TOKEN", ".token" },
	{ "MOONCAKE_CONFIG_PATH", "", .note = "not read; settings live in pomelo.conf" },
	{ "--rpc_port", ".listen", .wrap = "tcp://127.0.0.1:%s" },
	{ "--enable_offload", ".offload" },
};

static enum err sample_check(struct conf *c, const void *at, struct why *w)
{
	const struct sample *s = at;
	if (s->low >= s->high)
		return conf_fail(c, w, ".low_ratio", "must be below master.high_ratio (%.12g)",
				 s->high);
	return ERR_NONE;
}

static const struct conf_part sample_parts[] = {
	{ sample_shared_rows, ARRAY_LEN(sample_shared_rows), offsetof(struct sample, shared),
	  NULL, 0 },
	{ sample_rows, ARRAY_LEN(sample_rows), 0, sample_foreign, ARRAY_LEN(sample_foreign) },
};

static const struct conf_schema sample_schema = { "master", sample_parts,
						  ARRAY_LEN(sample_parts), sample_check };
