/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space of one segment (spec/store.md, Placement): which ranges are free. Only free ranges cost
 * memory (80 bytes each); what is given out is known by who has it. Good fit from size bins found by
 * bitmaps, neighbours joined at once.
 *
 * I1: free ranges do not touch or overlap; used + free = bytes.
 * I2: a range of 4 KiB and more begins and ends at a multiple of OBJ_ALIGN, a smaller one at one of
 *     OBJ_ALIGN_SMALL; so at least 99 % of a segment holds objects of one size (>= 1,000 of them).
 *
 * O(1): every call, but for a word a level (6) of a bitmap of free ranges' starts, for which
 * 1/256 of the segment's size is reserved and touched only where free ranges begin or end.
 * Pure. Thread: its owner's.
 */
#pragma once

#include "store/object.h"

struct alloc;

/* An empty segment that will have at most bytes_max; nothing is free before alloc_grow. owned,
 * alloc_free(). ERR_NO_MEMORY, ERR_INVALID_PARAMS (0, or above OBJ_SIZE_MAX * 64). */
enum err alloc_new(uint64_t bytes_max, struct alloc **out) MUST_CHECK;
void alloc_free(struct alloc *a);

/* The first `bytes` may be used; fewer than before changes nothing. ERR_NO_MEMORY. */
enum err alloc_grow(struct alloc *a, uint64_t bytes) MUST_CHECK;
/* What `bytes` take (I2). 0 for 0. */
uint64_t alloc_round(uint64_t bytes);

/* bytes > 0. ERR_NO_SPACE: no free range fits; ERR_NO_MEMORY. About 50 ns. */
enum err alloc_take(struct alloc *a, uint64_t bytes, uint64_t *offset) MUST_CHECK;
/* Takes that very range (a merge). ERR_CONFLICT: not all of it is free, or it is misplaced (I2). */
enum err alloc_reserve(struct alloc *a, uint64_t offset, uint64_t bytes) MUST_CHECK;
/* Gives a taken range back (asserted). false: no memory for it; it stays used. */
bool alloc_give(struct alloc *a, uint64_t offset, uint64_t bytes);

uint64_t alloc_bytes(const struct alloc *a); /* as grown */
uint64_t alloc_used(const struct alloc *a);
/* A request of this size surely fits. O(1). */
uint64_t alloc_fits(const struct alloc *a);
/* Asserts I1 by a recount. For tests. */
void alloc_check(const struct alloc *a);
