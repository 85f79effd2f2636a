/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time as data. Nothing in a service asks the kernel for the time: it asks its loop
 * (loop_now_ns), which asks a struct clock, so that a test can own time. Durations count on
 * CLOCK_BOOTTIME (spec/store.md Reads: a lease goes on while the machine sleeps).
 *
 * Thread: any for the real clock; the sim clock belongs to the sim's thread.
 */
#pragma once

#include "base/def.h"

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S  1000000000ull

struct clock {
	/* nanoseconds, never going back, from an arbitrary start */
	uint64_t (*now_ns)(const struct clock *c);
	/* wall clock, milliseconds since 1970; may jump either way; for people only */
	uint64_t (*wall_ms)(const struct clock *c);
};

/* The kernel's clocks. */
extern const struct clock clock_real;

/* now + ms, saturating: UINT64_MAX means "never". */
static inline uint64_t clock_after_ms(uint64_t now_ns, uint64_t ms)
{
	uint64_t add = ms > UINT64_MAX / NS_PER_MS ? UINT64_MAX : ms * NS_PER_MS;
	return now_ns > UINT64_MAX - add ? UINT64_MAX : now_ns + add;
}

/* What is left until deadline_ns, in whole ms rounded up; 0 when it has passed. */
static inline uint64_t clock_left_ms(uint64_t deadline_ns, uint64_t now_ns)
{
	if (deadline_ns <= now_ns)
		return 0;
	uint64_t left = deadline_ns - now_ns;
	return left / NS_PER_MS + (left % NS_PER_MS != 0);
}
