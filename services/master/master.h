/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master as a whole: the shell (svc/svc.h), its meta log, the table of beats, later the
 * index and its flows.
 * Thread: the loop's.
 */
#pragma once

#include "svc/beat.h"
#include "svc/svc.h"
#include "svc/svc_meta.h"

struct mst {
	struct svc svc; /* first: svc.h */
	struct svc_meta meta;
	struct beat_table *beats;
};

extern const struct svc_def mst_def;

/* The master a shell belongs to. */
static inline struct mst *mst_of(struct svc *s)
{
	return container_of(s, struct mst, svc);
}
