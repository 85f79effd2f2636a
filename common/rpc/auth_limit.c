/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth.h"

#define WAYS	   8
#define LOG_GAP_NS (10 * NS_PER_S)

/* A bucket as one number: tries are spent up to paid_ns; each failure adds a second to it. */
struct source {
	uint64_t id; /* 0 is a source like any other; used says whether it is one */
	uint64_t paid_ns, last_ns, logged_ns, unlogged;
	bool used, logged;
};

struct auth_limit {
	struct source sources[AUTH_SOURCES / WAYS][WAYS];
};

enum err auth_limit_new(struct auth_limit **out)
{
	struct auth_limit *l = calloc(1, sizeof(*l));
	if (!l)
		return ERR_NO_MEMORY;
	*out = l;
	return ERR_NONE;
}

void auth_limit_free(struct auth_limit *l)
{
	free(l);
}

static size_t set_of(uint64_t source)
{
	return (source * 0x9e3779b97f4a7c15ull >> 32) % (AUTH_SOURCES / WAYS);
}

static const struct source *find(const struct source *set, uint64_t source)
{
	for (int i = 0; i < WAYS; i++)
		if (set[i].used && set[i].id == source)
			return &set[i];
	return NULL;
}

/* Its entry, or the one longest quiet made its. */
static struct source *find_or_make(struct source *set, uint64_t source)
{
	struct source *quiet = &set[0];
	for (int i = 0; i < WAYS; i++) {
		if (set[i].used && set[i].id == source)
			return &set[i];
		if (quiet->used && (!set[i].used || set[i].last_ns < quiet->last_ns))
			quiet = &set[i];
	}
	*quiet = (struct source){ .id = source, .used = true };
	return quiet;
}

bool auth_limit_allow(const struct auth_limit *l, uint64_t source, uint64_t now_ns)
{
	const struct source *s = find(l->sources[set_of(source)], source);
	return !s || s->paid_ns <= now_ns + (AUTH_TRIES - 1) * NS_PER_S;
}

bool auth_limit_failed(struct auth_limit *l, uint64_t source, uint64_t now_ns,
		       uint64_t *repeated)
{
	struct source *s = find_or_make(l->sources[set_of(source)], source);
	/* Failures that were let in before the bucket ran dry cannot pile up a longer ban than
	 * it. */
	uint64_t most = now_ns + AUTH_TRIES * NS_PER_S;
	s->paid_ns = MIN_OF(MAX_OF(s->paid_ns, now_ns) + NS_PER_S, most);
	s->last_ns = now_ns;
	s->unlogged++;
	if (s->logged && now_ns - s->logged_ns < LOG_GAP_NS)
		return false;
	if (repeated)
		*repeated = s->unlogged;
	s->logged = true;
	s->logged_ns = now_ns;
	s->unlogged = 0;
	return true;
}
