/* SPDX-License-Identifier: Apache-2.0 */
#include "kinds.h"

#include "proto/gen.h"
#include "proto/messages.h"

TEST_MESSAGES(WIRE_DEFINE)

const struct wire_msg *any_message(size_t i)
{
#define ONE(name, NAME, doc) wire_msg_##name,
	static const struct wire_msg *(*const mine[])(void) = { TEST_MESSAGES(ONE) };
#undef ONE
	return i < ARRAY_LEN(mine) ? mine[i]() : wire_message(i - ARRAY_LEN(mine));
}
