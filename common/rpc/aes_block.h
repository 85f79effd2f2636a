/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block of AES-128 by the processor's instruction, which takes the same time for every key and
 * input. aes_block_x86.c, or aes_block_none.c where there is no such instruction.
 *
 * Thread: any. Pure.
 */
#pragma once

#include "base/def.h"

#define AES_SCHEDULE_BYTES (11 * 16)

/* This machine has it; else the two calls below must not be made. */
bool aes_block_have(void);
/* sched: AES_SCHEDULE_BYTES, aligned to 16. */
void aes_block_expand(uint8_t *sched, const uint8_t key[16]);
/* libcrypto's block128_f: key is a schedule. */
void aes_block(const unsigned char in[16], unsigned char out[16], const void *sched);
