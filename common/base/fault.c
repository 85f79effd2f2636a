/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include <stdatomic.h>
#include <string.h>

struct point {
	_Atomic int64_t skip; /* passes to let go; counts down below 0 */
	_Atomic uint32_t count, hits;
};

static struct point points[FAULT_N];

static const char *const names[] = {
#define FAULT_NAME(name, doc) #name,
	FAULT_TABLE(FAULT_NAME)
#undef FAULT_NAME
};

const char *fault_name(enum fault f)
{
	assert(f < FAULT_N);
	return names[f];
}

bool fault_from_name(const char *name, enum fault *out)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(names[i], name) == 0) {
			*out = (enum fault)i;
			return true;
		}
	return false;
}

void fault_arm(enum fault f, uint32_t skip, uint32_t count)
{
	assert(f < FAULT_N);
	points[f].count = 0;
	points[f].skip = skip;
	points[f].hits = 0;
	points[f].count = count;
}

void fault_disarm_all(void)
{
	for (int i = 0; i < FAULT_N; i++)
		fault_arm((enum fault)i, 0, 0);
}

uint32_t fault_hits(enum fault f)
{
	assert(f < FAULT_N);
	return points[f].hits;
}

bool fault_built(void)
{
#ifdef POMELO_FAULTS
	return true;
#else
	return false;
#endif
}

#ifdef POMELO_FAULTS
bool fault_strike(enum fault f)
{
	struct point *p = &points[f];
	uint32_t count = atomic_load_explicit(&p->count, memory_order_relaxed);
	if (count == 0)
		return false;
	int64_t left = atomic_fetch_sub(&p->skip, 1);
	if (left > 0 || -left >= (int64_t)count)
		return false;
	atomic_fetch_add(&p->hits, 1);
	return true;
}
#endif
