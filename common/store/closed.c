/* SPDX-License-Identifier: Apache-2.0 */
#include "store/closed.h"

#include <string.h>

enum { CONFIRMED_MAX = 4096 };

enum err closed_init(struct closed *c, uint32_t limit)
{
	uint32_t n = 4;
	assert(limit > 0 && limit <= 1u << 20);
	while (n < 2 * limit)
		n *= 2;
	*c = (struct closed){ .limit = limit,
			      .mask = n - 1,
			      .confirmed_max = MIN_OF(limit, (uint32_t)CONFIRMED_MAX) };
	c->fifo = calloc(limit, sizeof(*c->fifo));
	c->table = calloc(n, sizeof(*c->table));
	c->confirmed = calloc(c->confirmed_max, sizeof(*c->confirmed));
	if (c->fifo && c->table && c->confirmed)
		return ERR_NONE;
	closed_fini(c);
	return ERR_NO_MEMORY;
}

void closed_fini(struct closed *c)
{
	free(c->fifo);
	free(c->table);
	free(c->confirmed);
	*c = (struct closed){ 0 };
}

/* Versions come in runs: eight of one share a cache line. */
static uint32_t home(const struct closed *c, uint64_t version)
{
	uint64_t h = (version >> 3) * 0x9e3779b97f4a7c15ull >> 32;
	return (uint32_t)(h << 3 | (version & 7)) & c->mask;
}

/* Where the version stands in the table, or the empty place where it would. */
static uint32_t place(const struct closed *c, uint64_t version)
{
	uint32_t i = home(c, version);
	while (c->table[i] != 0 && c->fifo[c->table[i] - 1] != version)
		i = (i + 1) & c->mask;
	return i;
}

bool closed_has(const struct closed *c, uint64_t version)
{
	return c->table[place(c, version)] != 0;
}

static uint32_t find_confirmed(const struct closed *c, uint64_t version)
{
	uint32_t i = 0;
	while (i < c->n_confirmed && c->confirmed[i] != version)
		i++;
	return i;
}

bool closed_unsure(const struct closed *c, uint64_t version)
{
	return version <= c->dropped && find_confirmed(c, version) == c->n_confirmed;
}

static void take_out(struct closed *c, uint32_t hole)
{
	c->table[hole] = 0;
	for (uint32_t i = (hole + 1) & c->mask; c->table[i] != 0; i = (i + 1) & c->mask) {
		uint32_t h = home(c, c->fifo[c->table[i] - 1]);
		if (((i - h) & c->mask) < ((i - hole) & c->mask))
			continue;
		c->table[hole] = c->table[i];
		c->table[i] = 0;
		hole = i;
	}
}

static void drop_oldest(struct closed *c)
{
	uint64_t version = c->fifo[c->first];
	take_out(c, place(c, version));
	c->dropped = MAX_OF(c->dropped, version);
	c->first = (c->first + 1) % c->limit;
	c->n--;
}

static void drop_confirmed(struct closed *c, uint32_t i)
{
	c->n_confirmed--;
	memmove(c->confirmed + i, c->confirmed + i + 1,
		(c->n_confirmed - i) * sizeof(*c->confirmed));
}

void closed_add(struct closed *c, uint64_t version)
{
	uint32_t i = find_confirmed(c, version);
	if (i < c->n_confirmed)
		drop_confirmed(c, i);
	uint32_t to = place(c, version); /* before the fifo has it */
	if (c->table[to] != 0)
		return;
	if (c->n == c->limit) {
		drop_oldest(c); /* what stands behind it moves */
		to = place(c, version);
	}
	uint32_t at = (c->first + c->n) % c->limit;
	c->n++;
	c->fifo[at] = version;
	c->table[to] = at + 1;
}

void closed_confirm(struct closed *c, uint64_t version)
{
	if (find_confirmed(c, version) < c->n_confirmed || version > c->dropped)
		return;
	if (c->n_confirmed == c->confirmed_max)
		drop_confirmed(c, 0);
	c->confirmed[c->n_confirmed++] = version;
}

void closed_clear(struct closed *c)
{
	memset(c->table, 0, (c->mask + 1ull) * sizeof(*c->table));
	c->first = c->n = c->n_confirmed = 0;
	c->dropped = 0;
}

uint64_t closed_at(const struct closed *c, uint32_t i)
{
	return c->fifo[(c->first + i) % c->limit];
}
