/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The services a box runs, in the order they are started; they are stopped in the reverse order, so
 * that nobody loses the master before its own drain is over.
 */
#pragma once

#include "base/def.h"

/* F(name, executable, folder in the tree) */
/* clang-format off */
#define SERVICE_TABLE(F) \
	F("master",  "pomelo-master",         "master") \
	F("agent",   "pomelo-transfer-agent", "transfer-agent") \
	F("owner",   "pomelo-offload-owner",  "offload-owner") \
	F("planner", "pomelo-weight-planner", "weight-planner") \
	F("pg",      "pomelo-pg-coordinator", "pg-coordinator")
/* clang-format on */

struct service_row {
	const char *name;   /* "agent": settings, run/NAME.sock, log/NAME.log */
	const char *exe;    /* "pomelo-transfer-agent" */
	const char *folder; /* services/FOLDER in the build tree */
};

enum {
#define SERVICE_COUNT_(name, exe, folder) +1
	SERVICE_COUNT = SERVICE_TABLE(SERVICE_COUNT_)
#undef SERVICE_COUNT_
};

extern const struct service_row service_rows[SERVICE_COUNT];
