/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large blocks of the heap on large pages: fewer page faults while they are filled, fewer misses of
 * the address tables while they are walked at random.
 *
 * Any thread. One system call for a block of at least HUGE_HINT_BYTES, else none.
 */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/def.h"

/* Measured with a plan of a million fragments: blocks from here on are worth the call. */
#define HUGE_HINT_BYTES ((size_t)2 << 20)

/* p (may be NULL), n bytes that are about to be filled. Only a hint: kernels without large pages, or with
 * none left, give small ones. errno is kept. */
static inline void huge_hint(void *p, size_t n)
{
	if (!p || n < HUGE_HINT_BYTES)
		return;
	int e = errno;
	uintptr_t from = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
	uintptr_t to = ((uintptr_t)p + n) & ~(uintptr_t)4095;
	(void)madvise((void *)from, to - from, MADV_HUGEPAGE);
	errno = e;
}
