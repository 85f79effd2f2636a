/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the supervisor, section `up`.
 */
#pragma once

#include "base/conf.h"
#include "cli.h"
#include "data.h"

/* clang-format off */
#define UP_CONF(F) \
	F(ms,   grace_ms,  ".grace_ms",  "10000", "100", "600000", 0, \
	  "how long `down` waits for a service to end before it kills it") \
	F(size, log_bytes, ".log_size",  "64MiB", "64KiB", "16GiB", 0, \
	  "a service's log above it is renamed NAME.log.1; four files are kept")
/* clang-format on */

struct up_conf {
	UP_CONF(CONF_FIELD)
};

extern const struct conf_schema up_schema;

/* From --set, environment and DATA/pomelo.conf. */
enum err up_conf_read(struct cli *c, const struct where *d, struct up_conf *out) MUST_CHECK;
