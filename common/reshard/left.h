/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What work that ended without a result had built by then. Stopping takes a few milliseconds; giving
 * gigabytes back to the system takes longer where its pages are small, some 0.1 s each. Who has somebody
 * to answer takes what is left, answers, and frees it then.
 *
 * Pure. Thread: any; left_free in any later one.
 */
#pragma once

#include "base/def.h"

/* Zero is a valid, empty one. */
struct left {
	void (*fn)(void *p);
	void *p; /* owned, left_free(); NULL: nothing */
};

static inline void left_free(struct left *l)
{
	if (l->p)
		l->fn(TAKE(l->p));
}

/* p is put into l, or freed at once: there is no l, or something in it. */
static inline void left_put(struct left *l, void (*fn)(void *p), void *p)
{
	if (l && !l->p)
		*l = (struct left){ fn, p };
	else
		fn(p);
}
