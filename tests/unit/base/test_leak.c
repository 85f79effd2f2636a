/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/leak.h"

#include <criterion/criterion.h>

/* Lost where no register or stack slot of the caller can keep it. */
static __attribute__((noinline)) void lose(size_t n)
{
	void *volatile p = NULL;
	for (size_t i = 0; i < n; i++)
		p = malloc(1000 + i);
	cr_assert(p != NULL);
	p = NULL;
}

Test(leak, a_lost_block_is_found_under_asan, .timeout = 20)
{
#ifdef LEAK_CHECKED
	NO_LEAKS();
	lose(16);
	cr_assert(leak_found());
#else
	(void)lose;
	cr_skip_test("not an ASan build");
#endif
}

Test(leak, clean_code_passes, .timeout = 20)
{
	free(malloc(100));
	NO_LEAKS();
}
