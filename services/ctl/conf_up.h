/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the supervisor, section `up`.
 */
#pragma once

#include "base/conf.h"
#include "cli.h"
#include "data.h"
#include "svc/conf_common.def"

/* clang-format off */
#define UP_CONF(F) \
	F(ms,   stop_ms,   "up.grace_ms",  "10000", "100", "600000", 0, \
	  "how long `down` waits for a service to end before it kills it") \
	F(size, log_bytes, "up.log_size",  "64MiB", "64KiB", "16GiB", 0, \
	  "a service's log above it is renamed NAME.log.1; four files are kept")
/* clang-format on */

struct up_conf {
	SVC_CLUSTER_CONF(CONF_FIELD)
	UP_CONF(CONF_FIELD)
};

extern const struct conf_schema up_schema;

/* From --set, environment and DATA/pomelo.conf. Texts and lists in out are gone: numbers only. */
enum err up_conf_read(struct cli *c, const struct where *d, struct up_conf *out) MUST_CHECK;
/*
 * run_dir and secret_file of DATA/pomelo.conf, where flags and environment are silent. A file with a
 * mistake in it says nothing here: `down` and `status` must work all the same, `up` and `config`
 * report it.
 */
void up_conf_where(struct where *d);
