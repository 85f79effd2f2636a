/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master as a whole: the shell (svc/svc.h), its meta log, the table of beats, and for the term
 * that it raised the mind (mind.h) with what brings it messages, time and durability:
 *
 *   batch.h    a request with items that may wait       flow_*.c  the methods
 *   term.h     the mind's life, clock and appends       links.h   commands to holders
 *   watch.h    beats become suspect, away, epoch
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/where.h"
#include "links.h"
#include "mind.h"
#include "quota.h"
#include "svc/beat.h"
#include "svc/svc.h"
#include "svc/svc_meta.h"
#include "term.h"
#include "watch.h"

#include "conf.def"
#include "metrics.def"

enum { MASTER_METRICS(METRIC_ENUM) };

struct mst_conf {
	MASTER_CONF(CONF_FIELD)
};

struct mst {
	struct svc svc; /* first: svc.h */
	struct mst_conf conf;
	struct mst_quotas quotas;	     /* of conf */
	char local_host[WHERE_HOST_MAX + 1]; /* local_first's */
	struct svc_meta meta;
	struct beat_table *beats;
	struct mst_term term;
	struct mst_links links;
	struct mst_watch watch;
};

extern const struct svc_def mst_def;

/* The master a shell belongs to. */
static inline struct mst *mst_of(struct svc *s)
{
	return container_of(s, struct mst, svc);
}
