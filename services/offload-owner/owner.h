/* SPDX-License-Identifier: Apache-2.0 */
/* The owner as a whole: the shell (svc/svc.h) and what README.md says it owns. Thread: the loop's. */
#pragma once

#include "svc/svc.h"

#include "conf.def"

struct own {
	struct svc svc; /* first: svc.h */
	OWNER_CONF(CONF_FIELD)
};

extern const struct svc_def own_def;
