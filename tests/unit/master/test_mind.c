/* SPDX-License-Identifier: Apache-2.0 */
/* Puts, gets, removes of the mind, with two holders that do as they should. */
#include <criterion/criterion.h>
#include <string.h>

#include "../../support/leak.h"
#include "rig.h"

Test(mind, put_get_remove, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0, got = 0;
	cr_assert_eq(rig_get(r, "k", &got), ERR_NOT_FOUND);
	cr_assert_eq(rig_put_v(r, "k", 0, false, &v), ERR_NONE);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NONE);
	cr_assert_eq(got, v);
	cr_assert_eq(rig_put(r, "k", 1, false), ERR_ALREADY_EXISTS);
	cr_assert_eq(rig_remove(r, "k"), ERR_NONE);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NOT_FOUND);
	cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 0, 2), 0, "the slot is empty again");
	cr_assert_eq(rig_counts(r).bytes_used, 0);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, upsert_replaces_and_frees, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v1 = 0, v2 = 0, got = 0;
	cr_assert_eq(rig_put_v(r, "k", 0, false, &v1), ERR_NONE);
	cr_assert_eq(rig_put_v(r, "k", 1, true, &v2), ERR_NONE);
	cr_assert_gt(v2, v1);
	cr_assert_eq(rig_get(r, "k", &got), ERR_NONE);
	cr_assert_eq(got, v2);
	cr_assert_eq(rig_slots(r, 0, 1) + rig_slots(r, 0, 2), 0);
	cr_assert_eq(rig_counts(r).objects, 1);
	cr_assert_eq(rig_counts(r).copies, 1);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, restart_serves_what_was_published, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0, got = 0;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &v), ERR_NONE);
	cr_assert_eq(rig_put(r, "b", 1, false), ERR_NONE);
	rig_restart(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_RECOVERING);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v);
	cr_assert_eq(rig_get(r, "b", NULL), ERR_NONE);
	cr_assert_eq(rig_get(r, "c", NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}

Test(mind, away_and_back, .timeout = 10)
{
	struct rig *r = rig_new();
	uint64_t v = 0, got = 0;
	cr_assert_eq(rig_put_v(r, "a", 0, false, &v), ERR_NONE);
	cr_assert_eq(rig_put(r, "b", 0, false), ERR_NONE);
	rig_away(r, 0);
	cr_assert_eq(rig_get(r, "a", NULL), ERR_NOT_FOUND);
	cr_assert_eq(rig_remove(r, "b"), ERR_NONE);
	rig_reborn(r, 0);
	rig_register(r, 0);
	rig_run(r);
	cr_assert_eq(rig_get(r, "a", &got), ERR_NONE);
	cr_assert_eq(got, v);
	cr_assert_eq(rig_get(r, "b", NULL), ERR_NOT_FOUND);
	rig_free(r);
	NO_LEAKS();
}
