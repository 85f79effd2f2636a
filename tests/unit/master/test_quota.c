/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas of tenants as settings say them. */
#include <criterion/criterion.h>
#include <string.h>

#include "../../support/leak.h"
#include "services/master/quota.h"

static enum err read(const char *const *memory, size_t n_memory, const char *const *pinned,
		     size_t n_pinned, struct mst_quotas *q, int *bad, struct why *why)
{
	const struct conf_list m = { memory, n_memory }, p = { pinned, n_pinned };
	return mst_quotas_read(&m, &p, q, bad, why);
}

Test(quota, two_lists_make_one_row_a_tenant, .timeout = 10)
{
	static const char *const memory[] = { "red=1GiB", "blue.1=4096" }, *const pinned[] = {
		"green=2MiB", "red=10"
	};
	static struct mst_quotas q;
	struct why why = { 0 };
	int bad = -1;
	cr_assert_eq(read(memory, 2, pinned, 2, &q, &bad, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(q.n, 3);
	cr_assert(q.v[0].memory == 1 << 30 && q.v[0].pinned == 10);
	cr_assert(q.v[1].memory == 4096 && q.v[1].pinned == 0 && q.v[1].tenant.n == 6);
	cr_assert(q.v[2].memory == 0 && q.v[2].pinned == 2 << 20);
	cr_assert_eq(read(NULL, 0, NULL, 0, &q, &bad, &why), ERR_NONE);
	cr_assert_eq(q.n, 0);
	NO_LEAKS();
}

Test(quota, what_is_none_is_named, .timeout = 10)
{
	static const char *const wrong[] = { "red",	 "=1GiB",   "red=",	 "red=0",
					     "red=lots", "r d=1",   "red=-1",	 "red/x=1",
					     "red=1GB",	 "r=1EiBx", "a=b=1MiBx", "\xff=1" };
	static struct mst_quotas q;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct why why = { 0 };
		int bad = -1;
		cr_expect_eq(read(&wrong[i], 1, NULL, 0, &q, &bad, &why), ERR_INVALID_PARAMS,
			     "%s", wrong[i]);
		cr_expect_eq(bad, 0);
		cr_expect(why.text[0]);
		cr_expect_eq(read(NULL, 0, &wrong[i], 1, &q, &bad, &why), ERR_INVALID_PARAMS);
		cr_expect_eq(bad, 1);
	}
	static const char *const twice[] = { "red=1", "red=2" };
	struct why why = { 0 };
	int bad = -1;
	cr_assert_eq(read(twice, 2, NULL, 0, &q, &bad, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "twice"), "%s", why.text);
	NO_LEAKS();
}
