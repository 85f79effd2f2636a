/* SPDX-License-Identifier: Apache-2.0 */
#include "base/budget.h"

enum err budget_take(struct budget *b, uint64_t n)
{
	if (n > budget_left(b)) {
		b->refused++;
		return n > b->limit ? ERR_TOO_LARGE : ERR_BUSY;
	}
	b->used += n;
	b->peak = MAX_OF(b->peak, b->used);
	return ERR_NONE;
}

void budget_give(struct budget *b, uint64_t n)
{
	assert(n <= b->used);
	b->used -= n;
}
