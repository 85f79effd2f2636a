/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every message's decoder on the same bytes. What decodes must encode, decode again to the same
 * bytes, and print; what does not must say why. Memory stays within the arena's limit.
 */
#include "proto/messages.h"

#include <string.h>

#define ARENA_MAX (4u << 20)

struct state {
	struct arena first, second;
	struct buf once, twice, json;
};

static void reopen(const struct wire_msg *t, struct state *s, const void *m)
{
	static max_align_t again[64];
	t->enc(&s->once, m, WIRE_VERSION);
	assert(buf_err(&s->once) == ERR_NONE);
	struct dec d = DEC_INIT(buf_bytes(&s->once), &s->second, NULL);
	enum err e = t->dec(&d, again);
	assert(e == ERR_NONE);
	t->enc(&s->twice, again, WIRE_VERSION);
	assert(s->once.n == s->twice.n && memcmp(s->once.p, s->twice.p, s->once.n) == 0);
	wire_json(&s->json, t, again);
}

static void one(const struct wire_msg *t, struct bytes in, struct state *s)
{
	static max_align_t m[64];
	struct why why = { 0 };
	assert(t->size <= sizeof(m));
	arena_clear(&s->first);
	arena_clear(&s->second);
	buf_clear(&s->once);
	buf_clear(&s->twice);
	buf_clear(&s->json);
	struct dec d = DEC_INIT(in, &s->first, &why);
	enum err e = t->dec(&d, m);
	assert(s->first.held <= ARENA_MAX);
	assert(e == why.err && (e == ERR_NONE) == (why.text[0] == 0));
	if (e == ERR_NONE)
		reopen(t, s, m);
	else
		assert(e == ERR_BAD_MESSAGE || e == ERR_TOO_LARGE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct state s;
	const struct wire_msg *t;
	s.first.limit = s.second.limit = ARENA_MAX;
	s.once.limit = s.twice.limit = s.json.limit = 16u << 20;
	for (size_t i = 0; (t = wire_message(i)); i++)
		one(t, BYTES(data, size), &s);
	return 0;
}
