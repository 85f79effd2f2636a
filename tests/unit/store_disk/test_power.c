/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts, kills and errors at every operation that a life of puts, deletes, evictions and
 * compactions makes, on disks that keep any part of what was not synced.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#include "disk_rig.h"
#include "tests/support/leak.h"

struct param {
	char backend[8];
	uint32_t seed;
};

static struct param params[] = {
	{ "log", 1 }, { "log", 2 },  { "log", 3 },  { "log", 4 },
	{ "log", 5 }, { "file", 1 }, { "file", 2 },
};

/* A life that has everything in it. */
static void some_life(struct rig *r, unsigned steps)
{
	for (unsigned i = 0; i < steps; i++)
		rig_step(r);
}

ParameterizedTestParameters(power, a_random_life_agrees_with_its_model)
{
	return cr_make_param_array(struct param, params, sizeof(params) / sizeof(params[0]));
}

ParameterizedTest(struct param *p, power, a_random_life_agrees_with_its_model, .timeout = 60)
{
	struct rig r;
	rig_init(&r, p->backend, p->seed);
	r.order = p->seed == 2 ? STORE_LRU : STORE_FIFO;
	cr_assert_eq(rig_open(&r), ERR_NONE);
	for (int round = 0; round < 12; round++) {
		some_life(&r, 12);
		rig_check(&r);
		if (round % 3 == 0) {
			rig_close(&r);
		} else {
			rig_crash(&r, disk_cut_copy(r.disk));
		}
		cr_assert_eq(rig_open(&r), ERR_NONE);
		rig_check(&r);
	}
	rig_fini(&r);
	NO_LEAKS();
}

static uint64_t ops_of_life(const struct param *p, unsigned steps)
{
	struct rig r;
	rig_init(&r, p->backend, p->seed);
	cr_assert_eq(rig_open(&r), ERR_NONE);
	some_life(&r, steps);
	uint64_t n = disk_cut_ops(r.disk);
	rig_fini(&r);
	return n;
}

/* The power goes at operation n of a life. */
static void one_cut(const struct param *p, uint64_t n, unsigned steps, enum disk_cut_keep keep)
{
	struct rig r;
	rig_init(&r, p->backend, p->seed);
	snprintf(r.what, sizeof(r.what), "%s, seed %u, cut at %llu, kept %d", p->backend,
		 p->seed, (unsigned long long)n, (int)keep);
	disk_cut_at(r.disk, n);
	if (rig_open(&r) == ERR_NONE)
		some_life(&r, steps);
	struct disk_cut *next = disk_cut_after(r.disk, keep, n * 31 + p->seed);
	rig_crash(&r, next);
	cr_assert_eq(rig_open(&r), ERR_NONE, "cut at %llu, kept %d", (unsigned long long)n,
		     keep);
	rig_check(&r);
	/* it goes on, and nothing of before comes back later */
	some_life(&r, 4);
	rig_check(&r);
	rig_crash(&r, disk_cut_after(r.disk, CUT_RANDOM, n));
	cr_assert_eq(rig_open(&r), ERR_NONE);
	rig_check(&r);
	rig_fini(&r);
}

ParameterizedTestParameters(power, cut_at_every_operation)
{
	return cr_make_param_array(struct param, params, sizeof(params) / sizeof(params[0]));
}

ParameterizedTest(struct param *p, power, cut_at_every_operation, .timeout = 120)
{
	const unsigned steps = 24;
	uint64_t n = ops_of_life(p, steps);
	for (uint64_t i = p->seed % RIG_STEP; i <= n; i += RIG_STEP) {
		one_cut(p, i, steps, (enum disk_cut_keep)(i % 5));
		one_cut(p, i, steps, CUT_RANDOM);
	}
	NO_LEAKS();
}

/* Operation n fails; the life goes on; later the power goes. */
static void one_error(const struct param *p, uint64_t n, uint64_t count, unsigned steps,
		      enum err e, bool kept)
{
	struct rig r;
	rig_init(&r, p->backend, p->seed);
	snprintf(r.what, sizeof(r.what), "%s, seed %u, %s at %llu, %llu times, kept %d",
		 p->backend, p->seed, err_name(e), (unsigned long long)n,
		 (unsigned long long)count, kept);
	disk_cut_fail(r.disk, n, count, e, kept);
	for (int tries = 0; rig_open(&r) != ERR_NONE; tries++)
		cr_assert(disk_cut_ops(r.disk) > n && tries < 4, "no start after that: %s",
			  r.what);
	some_life(&r, steps);
	rig_check(&r);
	rig_crash(&r, disk_cut_after(r.disk, kept ? CUT_RANDOM : CUT_NOTHING, n));
	cr_assert_eq(rig_open(&r), ERR_NONE);
	rig_check(&r);
	rig_fini(&r);
}

ParameterizedTestParameters(power, errors_at_every_operation)
{
	return cr_make_param_array(struct param, params, sizeof(params) / sizeof(params[0]));
}

ParameterizedTest(struct param *p, power, errors_at_every_operation, .timeout = 120)
{
	const unsigned steps = 24;
	uint64_t n = ops_of_life(p, steps);
	for (uint64_t i = p->seed % RIG_STEP; i <= n; i += RIG_STEP) {
		one_error(p, i, 1, steps, ERR_IO, i & 1);
		one_error(p, i, 1 + i % 3, steps, ERR_NO_SPACE, !(i & 1));
	}
	NO_LEAKS();
}
