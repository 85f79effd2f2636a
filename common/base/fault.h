/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points: `if (FAULT(meta_fsync)) return ERR_IO;`. A point is a row here; a test arms it to
 * let `skip` passes go and fail the next `count`. Without -Dfaults=true a point is the constant
 * false and no code.
 *
 *   for (uint32_t skip = 0;; skip++) {
 *           fault_arm(FAULT_meta_fsync, skip, 1);
 *           run the case;                     each failure must end clean
 *           if (fault_hits(FAULT_meta_fsync) == 0)
 *                   break;                    the case passed untouched
 *   }
 *
 * Armed faults are process globals (style.md: one of the two kinds allowed). Thread: any.
 */
#pragma once

#include "base/def.h"

/* clang-format off */
#define FAULT_TABLE(F) \
	F(alloc,        "memory allocation in a place that asks") \
	F(path_write,   "write of a small file") \
	F(path_fsync,   "fsync of a small file or its folder") \
	F(path_rename,  "rename of a small file over the old one") \
	F(pool_thread,  "start of a worker thread") \
	F(ring_setup,   "set-up of io_uring") \
	F(ring_submit,  "hand-over of queued ios to the kernel") \
	/* places of the put table, in its order (spec/store.md, Terms and puts) */ \
	F(put_granted,      "client: has its grant") \
	F(put_hazard,       "client: hazard set, not looked yet") \
	F(put_looked,       "client: first look said go on") \
	F(put_half,         "client: half of the bytes are written") \
	F(put_copied,       "client: all bytes are written") \
	F(put_cleared,      "client: hazard cleared") \
	F(put_commit_sent,  "client: COMMIT was sent") \
	F(commit_slot,      "agent: slot committed") \
	F(commit_published, "agent: PUBLISH was sent") \
	F(publish_retired,  "master: older versions retired") \
	F(publish_tombs,    "master: tombstones durable") \
	F(publish_indexed,  "master: indexed, not answered yet") \
	F(pull_open,        "agent: a copy's range is named, no byte of it came") \
	F(pull_fetched,     "agent: all of a copy's bytes are there, its slot is not") \
	F(get_queried,      "client: knows where the object lies") \
	F(get_half,         "client: half of the bytes are read") \
	F(get_copied,       "client: all bytes read, not compared yet")
/* clang-format on */

enum fault {
#define FAULT_ENUM(name, doc) FAULT_##name,
	FAULT_TABLE(FAULT_ENUM)
#undef FAULT_ENUM
		FAULT_N
};

const char *fault_name(enum fault f);
/* False when there is none of this name. */
bool fault_from_name(const char *name, enum fault *out);
/* Forgets hits. count 0 disarms. */
void fault_arm(enum fault f, uint32_t skip, uint32_t count);
void fault_disarm_all(void);
/*
 * What a strike of a place does, until it is armed again: a test of real processes stops or kills one
 * there. FAIL is for points that are asked.
 */
enum fault_act { FAULT_FAIL, FAULT_STOP, FAULT_KILL };
void fault_arm_act(enum fault f, uint32_t skip, uint32_t count, enum fault_act act);
/*
 * Arms from a text: "put_half:stop" or "put_half:kill:SKIP:COUNT", several with commas between; NULL
 * and "" arm nothing. For POMELO_TEST_FAULTS of a process's environment. False: it makes no sense
 * (what stands before was armed).
 */
bool fault_arm_text(const char *text);
/* How often it has struck since it was armed. */
uint32_t fault_hits(enum fault f);
/* Are points compiled in? */
bool fault_built(void);

#ifdef POMELO_FAULTS
bool fault_strike(enum fault f);
/* A strike raises SIGSTOP or SIGKILL as armed. */
void fault_place(enum fault f);
#define FAULT(name)    fault_strike(FAULT_##name)
#define FAULT_AT(name) fault_place(FAULT_##name)
#else
#define FAULT(name)    (FAULT_##name == FAULT_N)
#define FAULT_AT(name) ((void)FAULT_##name)
#endif
