/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a world under the model checker: while it is entered, every malloc of our code comes
 * from one block at a fixed address, so that a state is saved and put back by one copy, pointers and
 * all, and the models need no clone functions. Linked with -Wl,--wrap=malloc and its kin.
 *
 * Thread: one.
 */
#pragma once

#include "base/def.h"

/* Maps the block. max: bytes at most; running out ends the program with a message. */
void snap_open(size_t max);
/* From here allocations are the world's, until snap_leave. Not nested. */
void snap_enter(void);
void snap_leave(void);
/* Bytes in use: what a snapshot takes. */
size_t snap_bytes(void);
void snap_save(void *dst);
void snap_load(const void *src, size_t bytes);
/* Every piece handed out and not freed: for leaks. */
size_t snap_live(void);
