/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

static uint64_t real_now_ns(const struct clock *c)
{
	(void)c;
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static uint64_t real_wall_ms(const struct clock *c)
{
	(void)c;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / NS_PER_MS;
}

const struct clock clock_real = { .now_ns = real_now_ns, .wall_ms = real_wall_ms };
