/* SPDX-License-Identifier: Apache-2.0 */
/* The pg as a whole: the shell (svc/svc.h) and what README.md says it owns. Thread: the loop's. */
#pragma once

#include "svc/svc.h"

struct pgc {
	struct svc svc; /* first: svc.h */
};

extern const struct svc_def pgc_def;
