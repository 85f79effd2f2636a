/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of services/services.def as the supervisor and the command line read them. */
#pragma once

#include "base/def.h"
#include "services/services.def"

struct service_row {
	const char *name;   /* "agent": settings, run/NAME.sock, log/NAME.log */
	const char *exe;    /* "pomelo-transfer-agent" */
	const char *folder; /* services/FOLDER in the build tree */
};

enum {
#define SERVICE_COUNT_(tag, name, exe, folder) +1
	SERVICE_COUNT = SERVICES(SERVICE_COUNT_)
#undef SERVICE_COUNT_
};

extern const struct service_row service_rows[SERVICE_COUNT];
