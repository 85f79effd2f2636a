/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service's own meta log (T1): DATA/meta/NAME.{log,snap}, opened behind a reason of /readyz, its
 * term raised durably once a start before anything is answered under it. For the master and the
 * coordinator; embedded in their structs, zero is a valid, closed state.
 *
 * I1: svc_meta_term() is 0 until the raised term is durable; two runs never see the same one.
 * I2: a log that cannot be opened keeps the service up and not ready, with the reason; one that breaks
 *     later ends the process (meta.h I4): a restart reads what is there.
 * I3: for want of space the start waits, and tries again after 0.1 s, doubling up to 5 s: nothing was
 *     written (meta.h), so it goes on by itself once there is room.
 *
 * Thread: the loop's.
 */
#pragma once

#include "meta/meta.h"
#include "svc/svc.h"

enum svc_meta_state {
	SVC_META_CLOSED,
	SVC_META_OPENING,
	SVC_META_RAISING,
	SVC_META_READY,
	SVC_META_NO_SPACE, /* I3: waiting to open or to raise */
	SVC_META_FAILED,
};

struct svc_meta {
	struct meta_limits limits; /* set before svc_meta_open(), or 0: the defaults */
	struct meta *meta;	   /* appends go to it once state is SVC_META_READY */
	enum svc_meta_state state;
	/* private */
	struct svc *svc;
	uint64_t term;
	struct meta_append raise;
	struct why why; /* SVC_META_FAILED, SVC_META_NO_SPACE */
	void (*ready)(struct svc *s);
	struct timer retry;
	uint64_t wait_ms; /* before the next try; 0: none was needed */
	bool ending;	  /* a store that did not open is being closed */
	void (*closed)(void *arg);
	void *closed_arg;
};

/*
 * From an open hook. ready (may be NULL) runs later, once the term is durable.
 *
 * ERR_FORBIDDEN, ERR_IO ...  DATA/meta cannot be made
 * ERR_INVALID_PARAMS         a simulation that does not say where files are (svc_env.meta_fs)
 */
enum err svc_meta_open(struct svc_meta *m, struct svc *s, void (*ready)(struct svc *s),
		       struct why *why) MUST_CHECK;
/* What waits is written; closed runs later, also when it was never open. */
void svc_meta_close(struct svc_meta *m, void (*closed)(void *arg), void *arg);
uint64_t svc_meta_term(const struct svc_meta *m);
/* "meta log: replaying", and the like. */
void svc_meta_reasons(const struct svc_meta *m, struct svc_reasons *r);

/* Rows for the service's metrics.def, with its prefix for the ids: SVC_META_METRICS(F, MST). */
/* clang-format off */
#define SVC_META_METRICS(F, P) \
	F(gauge,   P##_M_TERM,         "term",               "", "", "", "the term it answers under; 0: none yet") \
	F(counter, P##_M_META_APPENDS, "meta_appends_total", "", "end=durable|refused", "", "appends to the meta log") \
	F(counter, P##_M_META_WRITES,  "meta_writes_total",  "", "", "", "writes of the meta log, one fsync each") \
	F(counter, P##_M_META_SNAPS,   "meta_snapshots_total", "", "end=made|failed", "", "snapshots of the meta log") \
	F(gauge,   P##_M_META_BYTES,   "meta_bytes",         "bytes", "of=log|snapshot|queue", "", "size of the meta log's parts")
/* clang-format on */
/* From a scrape hook; first is P_M_TERM. */
void svc_meta_scrape(const struct svc_meta *m, struct metrics *out, unsigned first);
