/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long work that can be stopped. A flag, set by any thread, is looked at every few thousand turns of
 * each loop whose length the input decides; no step between two looks takes more than some
 * milliseconds. Whoever sees it ends with plan.cancelled.
 *
 * Pure. Thread: any.
 */
#pragma once

#include <stdatomic.h>

#include "base/err.h"

/* NULL never stops. */
static inline bool stop_now(const atomic_bool *cancel)
{
	return cancel && atomic_load_explicit(cancel, memory_order_relaxed);
}

/* In turn i of a loop. */
static inline bool stop_at(const atomic_bool *cancel, size_t i)
{
	return (i & 2047) == 2047 && stop_now(cancel);
}

/*
 * To be called on a block that nothing was written to yet and that is going to be filled in no order: the
 * system clears a page when it is first touched, and each of 512 items in a row may lie in another page of
 * 2 MiB. Here they are touched one after the other, with looks. Writes zeros; false: stopped.
 */
bool stop_touch(void *p, size_t n, const atomic_bool *cancel) MUST_CHECK;

/* Sorts n items of `each` bytes as qsort_r would, in slices. False: stopped, or no memory for a
 * second copy of them; then v is in no order. */
bool stop_sort(void *v, size_t n, size_t each, int (*cmp)(const void *, const void *, void *),
	       void *arg, const atomic_bool *cancel) MUST_CHECK;
