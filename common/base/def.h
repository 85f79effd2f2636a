/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few macros every file uses.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MUST_CHECK	  __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define ARRAY_LEN(a)	  (sizeof(a) / sizeof((a)[0]))
#define MIN_OF(a, b)	  ((a) < (b) ? (a) : (b))
#define MAX_OF(a, b)	  ((a) > (b) ? (a) : (b))

/* The struct of type t whose member m is at p. */
#define container_of(p, t, m) ((t *)(void *)((char *)(p)-offsetof(t, m)))

/* Scratch memory freed on leaving the scope; TAKE() moves it out. Never mixed with goto undo. */
#define AUTO_FREE __attribute__((cleanup(auto_free_)))
static inline void auto_free_(void *p)
{
	free(*(void **)p);
}
#define TAKE(p)                         \
	({                              \
		typeof(p) taken_ = (p); \
		(p) = NULL;             \
		taken_;                 \
	})

/*
 * calloc(1, n) for what is made and freed all the time: this C library's calloc does not look into the
 * thread's own lists (twice the time for small ones). The barrier keeps compilers from making it one again.
 */
static inline void *new_zeroed(size_t n)
{
	void *p = malloc(n);
#ifndef __clang_analyzer__ /* it takes what comes out for another pointer */
	__asm__("" : "+r"(p));
#endif
	return p ? memset(p, 0, n) : NULL;
}

/* A borrowed run of bytes; p may be NULL only when n is 0. */
struct bytes {
	const uint8_t *p;
	size_t n;
};
#define BYTES(ptr, len) ((struct bytes){ .p = (const uint8_t *)(ptr), .n = (len) })
#define BYTES_STR(s)	BYTES((s), strlen(s))
