/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct point {
	_Atomic int64_t skip; /* passes to let go; counts down below 0 */
	_Atomic uint32_t count, hits;
	_Atomic int act; /* enum fault_act */
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
	fault_arm_act(f, skip, count, FAULT_FAIL);
}

void fault_arm_act(enum fault f, uint32_t skip, uint32_t count, enum fault_act act)
{
	assert(f < FAULT_N);
	points[f].count = 0;
	points[f].skip = skip;
	points[f].hits = 0;
	points[f].act = act;
	points[f].count = count;
}

static bool arm_one(const char *one)
{
	char name[32], act[8];
	unsigned skip = 0, count = 1;
	enum fault f;
	if (sscanf(one, "%31[a-z_]:%7[a-z]:%u:%u", name, act, &skip, &count) < 2 ||
	    !fault_from_name(name, &f))
		return false;
	bool stop = strcmp(act, "stop") == 0, kill = strcmp(act, "kill") == 0;
	if (!stop && !kill && strcmp(act, "fail") != 0)
		return false;
	fault_arm_act(f, skip, count, stop ? FAULT_STOP : kill ? FAULT_KILL : FAULT_FAIL);
	return true;
}

bool fault_arm_text(const char *text)
{
	char one[80];
	while (text && *text) {
		size_t n = strcspn(text, ",");
		if (n >= sizeof(one))
			return false;
		memcpy(one, text, n);
		one[n] = '\0';
		if (!arm_one(one))
			return false;
		text += n + (text[n] == ',');
	}
	return true;
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

void fault_place(enum fault f)
{
	int act = points[f].act;
	if (act != FAULT_FAIL && fault_strike(f))
		raise(act == FAULT_STOP ? SIGSTOP : SIGKILL);
}
#endif
