/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks of simulated machines: each starts somewhere of its own and runs at its own speed.
 */
#include "tests/support/sim_priv.h"

#include <inttypes.h>

#define WALL_START_MS 1767225600000ull /* 2026-01-01T00:00:00Z */
#define PPM	      1000000

static uint64_t local_ns(const struct sim_node *n)
{
	uint64_t passed = n->sim->now_ns - n->since_ns;
	return n->base_ns + (uint64_t)((__int128)passed * (PPM + n->ppm) / PPM);
}

static uint64_t node_now_ns(const struct clock *c)
{
	return local_ns(container_of(c, struct sim_node, clock));
}

static uint64_t node_wall_ms(const struct clock *c)
{
	const struct sim_node *n = container_of(c, struct sim_node, clock);
	return WALL_START_MS + n->sim->now_ns / NS_PER_MS + (uint64_t)n->wall_off_ms;
}

void sim_clock_init(struct sim_node *n, struct sim_rng *r)
{
	n->clock = (struct clock){ .now_ns = node_now_ns, .wall_ms = node_wall_ms };
	/* up for between a minute and a month; never 0, which some would take for "unset" */
	n->base_ns = sim_rng_between(r, 60, 2600000) * NS_PER_S + sim_rng_below(r, NS_PER_S);
	n->since_ns = n->sim->now_ns;
	n->wall_off_ms = (int64_t)sim_rng_below(r, 200) - 100;
}

uint64_t sim_node_when(const struct sim_node *n, uint64_t due_ns)
{
	if (due_ns == UINT64_MAX)
		return UINT64_MAX;
	if (due_ns <= n->base_ns)
		return n->since_ns;
	unsigned __int128 wait = (unsigned __int128)(due_ns - n->base_ns) * PPM;
	unsigned __int128 rate = (unsigned)(PPM + n->ppm);
	return n->since_ns + (uint64_t)((wait + rate - 1) / rate);
}

/* From now on by another line; the time shown now stays. */
static void rebase(struct sim_node *n)
{
	n->base_ns = local_ns(n);
	n->since_ns = n->sim->now_ns;
}

void sim_clock_drift(struct sim_node *n, int32_t ppm)
{
	SIM_CHECK(ppm >= -100000 && ppm <= 100000, "ppm %d, allowed -100000..100000", ppm);
	rebase(n);
	n->ppm = ppm;
	sim_fault(n->sim, "clock of %s drifts by %d ppm", n->name, ppm);
	sim_node_rearm(n);
}

void sim_clock_jump(struct sim_node *n, int64_t ms)
{
	n->wall_off_ms += ms;
	sim_fault(n->sim, "wall clock of %s jumps by %" PRId64 " ms", n->name, ms);
}

void sim_clock_skip(struct sim_node *n, uint64_t ms)
{
	rebase(n);
	n->base_ns += ms * NS_PER_MS;
	sim_fault(n->sim, "monotonic clock of %s skips %" PRIu64 " ms", n->name, ms);
	sim_node_rearm(n);
}
