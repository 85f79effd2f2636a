/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/aes_block.h"

bool aes_block_have(void)
{
	return false;
}

void aes_block_expand(uint8_t *sched, const uint8_t key[16])
{
	assert(false);
}

void aes_block(const unsigned char in[16], unsigned char out[16], const void *sched)
{
	assert(false);
}
