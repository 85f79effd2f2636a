/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages.h"

#include "proto/gen.h"

WIRE_MESSAGES(WIRE_DEFINE)

const struct wire_msg *wire_message(size_t i)
{
#define ONE(name, NAME, doc) wire_msg_##name,
	static const struct wire_msg *(*const all[])(void) = { WIRE_MESSAGES(ONE) };
#undef ONE
	return i < ARRAY_LEN(all) ? all[i]() : NULL;
}

const struct wire_method *wire_methods(size_t *n)
{
#define ROW(name, number, req, rep, roles, idem, policy, doc) \
	{ #name, number, roles, idem, wire_msg_##req, wire_msg_##rep, policy, doc },
	static const struct wire_method all[] = { WIRE_METHODS(ROW) };
#undef ROW
	*n = ARRAY_LEN(all);
	return all;
}

const struct wire_method *wire_method(uint32_t number)
{
	size_t n;
	const struct wire_method *m = wire_methods(&n);
	for (size_t i = 0; i < n; i++)
		if (m[i].number == number)
			return &m[i];
	return NULL;
}

const char *method_name(uint32_t number)
{
	const struct wire_method *m = wire_method(number);
	return m ? m->name : "UNKNOWN";
}
