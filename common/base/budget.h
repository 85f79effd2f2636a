/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded amount of something: bytes, slots (B1). Take before use, give back after.
 * I1: used <= limit, unless the limit was lowered below what is in use; then takes are refused.
 * Thread: its owner's.
 */
#pragma once

#include "base/err.h"

struct budget {
	uint64_t limit, used;
	uint64_t peak;	  /* high-water mark of used */
	uint64_t refused; /* takes that were refused */
};

#define BUDGET_INIT(n) ((struct budget){ .limit = (n) })

/* ERR_BUSY when it does not fit now, ERR_TOO_LARGE when it never will; nothing is taken then. */
enum err budget_take(struct budget *b, uint64_t n) MUST_CHECK;
/* Asserts that as much was taken. */
void budget_give(struct budget *b, uint64_t n);
static inline uint64_t budget_left(const struct budget *b)
{
	return b->used < b->limit ? b->limit - b->used : 0;
}
