/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/sim.h"

#include <string.h>

/* splitmix64: every start is a good one. */
uint64_t sim_rng_next(struct sim_rng *r)
{
	uint64_t z = r->s += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

struct sim_rng sim_rng(uint64_t seed, const char *label)
{
	struct sim_rng r = { seed };
	for (const char *c = label; *c; c++) {
		r.s ^= (unsigned char)*c;
		r.s = sim_rng_next(&r);
	}
	return r;
}

uint64_t sim_rng_below(struct sim_rng *r, uint64_t n)
{
	assert(n > 0);
	return (uint64_t)(((unsigned __int128)sim_rng_next(r) * n) >> 64);
}

static bool env_number(const char *name, uint64_t *out)
{
	const char *v = getenv(name);
	char *end;
	if (!v || !*v)
		return false;
	uint64_t n = strtoull(v, &end, 0);
	if (*end) {
		fprintf(stderr, "%s=%s is no number; give one seed or count\n", name, v);
		abort();
	}
	*out = n;
	return true;
}

struct sim_seeds sim_seeds(uint64_t n_default)
{
	uint64_t v;
	if (env_number("SEED", &v))
		return (struct sim_seeds){ v, v + 1 };
	if (!env_number("SEEDS", &v))
		v = n_default;
	return (struct sim_seeds){ 1, v + 1 };
}

bool sim_seeds_next(struct sim_seeds *r, uint64_t *seed)
{
	if (r->next >= r->end)
		return false;
	*seed = r->next++;
	return true;
}
