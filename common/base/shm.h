/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores to memory that other processes map, or that outlives ours (spec/store.md Pool, Local
 * writers). Code that owes a promise about their order stores through these calls and no others,
 * so that a test can log each store, cut the run after any of them, try every order the machine
 * is free to choose, and look at what a reader or a restarted process would find
 * (tests/support/prefix.h).
 *
 *   shm_put_*          a store with no order: it may be seen before or after its neighbours
 *   shm_copy, _zero    many of them, in pieces of up to 8 bytes: torn at every aligned word
 *   shm_publish_*      release: seen only after every store before it
 *   shm_swap_u64       seq_cst: as publish, and nothing after it is seen or done before
 *   shm_fence          seq_cst: everything before is seen before anything after
 *
 * Built with POMELO_STORE_LOG the calls also tell the log; tests compile the sources under test once
 * more with it. In all other builds they are the bare stores: no branch, no symbol.
 *
 * Thread: any. Cost: one store.
 */
#pragma once

#include "base/def.h"

#include <string.h>

enum shm_kind { SHM_PLAIN, SHM_RELEASE, SHM_SEQ, SHM_FENCE };

#ifdef POMELO_STORE_LOG
/* tests/support/prefix.c: n bytes at p have just been stored. */
void prefix_stored(const void *p, size_t n, enum shm_kind kind, const char *file, int line);
#define SHM_TELL(p, n, kind) prefix_stored(p, n, kind, file, line)
#define SHM_WHERE	     , const char *file, int line
#define SHM_HERE	     , __FILE__, __LINE__
#else
#define SHM_TELL(p, n, kind) ((void)0)
#define SHM_WHERE
#define SHM_HERE
#endif

#define SHM_STORES(bits)                                                                     \
	static inline void shm_put_u##bits##_(uint##bits##_t *p, uint##bits##_t v SHM_WHERE) \
	{                                                                                    \
		__atomic_store_n(p, v, __ATOMIC_RELAXED);                                    \
		SHM_TELL(p, sizeof(*p), SHM_PLAIN);                                          \
	}                                                                                    \
	static inline void shm_publish_u##bits##_(uint##bits##_t *p,                         \
						  uint##bits##_t v SHM_WHERE)                \
	{                                                                                    \
		__atomic_store_n(p, v, __ATOMIC_RELEASE);                                    \
		SHM_TELL(p, sizeof(*p), SHM_RELEASE);                                        \
	}

SHM_STORES(8)
SHM_STORES(16)
SHM_STORES(32)
SHM_STORES(64)

static inline uint64_t shm_swap_u64_(uint64_t *p, uint64_t v SHM_WHERE)
{
	uint64_t old = __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);
	SHM_TELL(p, sizeof(*p), SHM_SEQ);
	return old;
}

static inline void shm_fence_(int dummy SHM_WHERE)
{
	(void)dummy;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	SHM_TELL(NULL, 0, SHM_FENCE);
}

/* Bulk bytes have no order among themselves: the log takes them as words. */
static inline void shm_copy_(void *to, const void *from, size_t n SHM_WHERE)
{
	if (n == 0)
		return;
	memcpy(to, from, n);
	SHM_TELL(to, n, SHM_PLAIN);
}

static inline void shm_zero_(void *to, size_t n SHM_WHERE)
{
	if (n == 0)
		return;
	memset(to, 0, n);
	SHM_TELL(to, n, SHM_PLAIN);
}

#define shm_put_u8(p, v)      shm_put_u8_(p, v SHM_HERE)
#define shm_put_u16(p, v)     shm_put_u16_(p, v SHM_HERE)
#define shm_put_u32(p, v)     shm_put_u32_(p, v SHM_HERE)
#define shm_put_u64(p, v)     shm_put_u64_(p, v SHM_HERE)
#define shm_publish_u8(p, v)  shm_publish_u8_(p, v SHM_HERE)
#define shm_publish_u16(p, v) shm_publish_u16_(p, v SHM_HERE)
#define shm_publish_u32(p, v) shm_publish_u32_(p, v SHM_HERE)
#define shm_publish_u64(p, v) shm_publish_u64_(p, v SHM_HERE)
#define shm_swap_u64(p, v)    shm_swap_u64_(p, v SHM_HERE)
#define shm_fence()	      shm_fence_(0 SHM_HERE)
#define shm_copy(to, from, n) shm_copy_(to, from, n SHM_HERE)
#define shm_zero(to, n)	      shm_zero_(to, n SHM_HERE)

/* Reads of such memory: whole words, never torn by the compiler. */
static inline uint64_t shm_get_u64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}
/* What was stored before the value seen was published is seen too. */
static inline uint64_t shm_acquire_u64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline uint32_t shm_acquire_u32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
/* For the hazard handshake: ordered with every other seq_cst operation. */
static inline uint64_t shm_seq_get_u64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
