/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a block by its id alone, so that whoever gets a block can tell whether it is the right one.
 *
 * Word w (u64, little endian, from 0) of the block `id` is
 *
 *	XXH3_64(u64le(w / 8), seed id) + (w mod 8) * 0x9e3779b97f4a7c15   (mod 2^64)
 *
 * and a block of n bytes is the first n bytes of that. One hash makes a line of 64 bytes: making and
 * comparing run at the speed of memory, so what a replay measures is the store.
 *
 * Pure, any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void block_fill(void *p, size_t n, uint64_t id);
/* Is every byte what block_fill makes? */
bool block_check(const void *p, size_t n, uint64_t id);
