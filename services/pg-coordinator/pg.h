/* SPDX-License-Identifier: Apache-2.0 */
/* The pg as a whole: the shell (svc/svc.h) and what README.md says it owns. Thread: the loop's. */
#pragma once

#include "svc/svc.h"
#include "svc/svc_meta.h"

struct pgc {
	struct svc svc; /* first: svc.h */
	struct svc_meta meta;
};

extern const struct svc_def pgc_def;

/* The coordinator a shell belongs to. */
static inline struct pgc *pgc_of(struct svc *s)
{
	return container_of(s, struct pgc, svc);
}
