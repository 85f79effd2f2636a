/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many seeds of one scenario: sim_soak SCENARIO COUNT [FIRST]. A seed that fails aborts with its list
 * of events; `SEED=n build/tests/sim/sim_SCENARIO` runs it again under Criterion.
 */
#include "tests/sim/echo.h"
#include "tests/sim/five.h"
#include "tests/sim/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void run_echo(uint64_t seed)
{
	static struct echo_world w;
	echo_scenario(seed, ECHO_RIGHT, &w);
}

static void run_five(uint64_t seed)
{
	struct five_sums sums = { 0 };
	five_scenario(seed, FIVE_NONE, &sums);
}

static void run_store(uint64_t seed)
{
	struct store_sums sums = { 0 };
	store_scenario(seed, STORE_RIGHT, &sums);
}

static const struct row {
	const char *name;
	void (*run)(uint64_t seed);
} rows[] = {
	{ "echo", run_echo },
	{ "five", run_five },
	{ "store", run_store },
};

static bool number(const char *text, uint64_t *out)
{
	char *end;
	*out = strtoull(text, &end, 10);
	return *text && !*end;
}

static int usage(void)
{
	fprintf(stderr, "usage: sim_soak SCENARIO COUNT [FIRST], SCENARIO one of");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		fprintf(stderr, " %s", rows[i].name);
	fprintf(stderr, "\n");
	return 2;
}

int main(int argc, char **argv)
{
	uint64_t count, first = 1;
	const struct row *row = NULL;
	if (argc < 3 || argc > 4 || !number(argv[2], &count) ||
	    (argc == 4 && !number(argv[3], &first)))
		return usage();
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strcmp(rows[i].name, argv[1]) == 0)
			row = &rows[i];
	if (!row)
		return usage();
	for (uint64_t i = 0; i < count; i++)
		row->run(first + i);
	printf("%" PRIu64 " passed, 0 failed: seeds %" PRIu64 "..%" PRIu64 " of %s\n", count,
	       first, first + count - 1, row->name);
	return 0;
}
