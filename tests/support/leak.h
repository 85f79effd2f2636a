/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NO_LEAKS(): the last line of every test body. Built with ASan it fails the test when heap
 * memory is unreachable by then; else it does nothing. (Criterion prints the leak report that
 * ASan makes at exit, and passes the test all the same; so does it a failure in `.fini`.)
 *
 * A pointer left in a dead register or stack slot can hide a leak; it cannot invent one.
 * Thread: the test's, with no other thread allocating.
 */
#pragma once

#include "base/def.h"

#if defined(__SANITIZE_ADDRESS__)
#define LEAK_CHECKED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEAK_CHECKED 1
#endif
#endif

#ifdef LEAK_CHECKED
int __lsan_do_recoverable_leak_check(void);
#endif

/* True when something leaked since the last call; the report is on stderr. For plain mains. */
static inline bool leak_found(void)
{
#ifdef LEAK_CHECKED
	return __lsan_do_recoverable_leak_check() != 0;
#else
	return false;
#endif
}

/* Needs criterion/criterion.h, which the test has included. */
#define NO_LEAKS() cr_assert(!leak_found(), "memory leaked: the report is above")
