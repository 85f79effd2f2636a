/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth.h"

#include <criterion/criterion.h>

#include "support/leak.h"

#define T0 (1000 * NS_PER_S)

static struct auth_limit *limit_new(void)
{
	struct auth_limit *l = NULL;
	cr_assert_eq(auth_limit_new(&l), ERR_NONE);
	return l;
}

Test(auth_limit, tries_then_one_a_second, .timeout = 5)
{
	struct auth_limit *l = limit_new();
	for (int i = 0; i < AUTH_TRIES; i++) {
		cr_assert(auth_limit_allow(l, 1, T0), "try %d", i);
		(void)auth_limit_failed(l, 1, T0, NULL);
	}
	cr_assert_not(auth_limit_allow(l, 1, T0));
	cr_assert(auth_limit_allow(l, 2, T0), "another source is another matter");
	cr_assert_not(auth_limit_allow(l, 1, T0 + NS_PER_S - 1));
	cr_assert(auth_limit_allow(l, 1, T0 + NS_PER_S));
	(void)auth_limit_failed(l, 1, T0 + NS_PER_S, NULL);
	cr_assert_not(auth_limit_allow(l, 1, T0 + NS_PER_S));
	/* quiet for as long as the burst took: all tries are back */
	uint64_t later = T0 + 60 * NS_PER_S;
	for (int i = 0; i < AUTH_TRIES; i++) {
		cr_assert(auth_limit_allow(l, 1, later));
		(void)auth_limit_failed(l, 1, later, NULL);
	}
	cr_assert_not(auth_limit_allow(l, 1, later));
	auth_limit_free(l);
	auth_limit_free(NULL);
	NO_LEAKS();
}

Test(auth_limit, a_flood_earns_no_endless_ban, .timeout = 5)
{
	struct auth_limit *l = limit_new();
	for (int i = 0; i < 100000; i++)
		(void)auth_limit_failed(l, 9, T0, NULL);
	cr_assert_not(auth_limit_allow(l, 9, T0));
	cr_assert(auth_limit_allow(l, 9, T0 + NS_PER_S));
	auth_limit_free(l);
}

Test(auth_limit, one_line_in_ten_seconds, .timeout = 5)
{
	struct auth_limit *l = limit_new();
	uint64_t repeated = 0;
	cr_assert(auth_limit_failed(l, 5, T0, &repeated));
	cr_assert_eq(repeated, 1);
	for (int i = 1; i < 1000; i++)
		cr_assert_not(auth_limit_failed(l, 5, T0 + i * 10 * NS_PER_MS, &repeated));
	cr_assert_eq(repeated, 1, "untouched without a line");
	cr_assert(auth_limit_failed(l, 5, T0 + 10 * NS_PER_S, &repeated));
	cr_assert_eq(repeated, 1000);
	auth_limit_free(l);
}

Test(auth_limit, memory_is_bounded_and_the_loud_stay, .timeout = 5)
{
	struct auth_limit *l = limit_new();
	uint64_t now = T0;
	/* source 0 keeps failing among a hundred thousand that fail once */
	for (uint64_t i = 1; i <= 100000; i++) {
		now += NS_PER_MS;
		(void)auth_limit_failed(l, i * 0x10001, now, NULL);
		if (i % 100 == 0)
			(void)auth_limit_failed(l, 0, now, NULL);
	}
	cr_assert_not(auth_limit_allow(l, 0, now), "still known");
	auth_limit_free(l);
	NO_LEAKS();
}
