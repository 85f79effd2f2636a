/* SPDX-License-Identifier: Apache-2.0 */
#include "base/huge.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <string.h>

/* Whatever the kernel makes of it: the bytes stay, errno stays, nothing outside is touched. */
Test(huge, a_hint_changes_nothing_that_can_be_seen, .timeout = 10)
{
	static const size_t sizes[] = {
		0, 1, 4096, HUGE_HINT_BYTES - 1, HUGE_HINT_BYTES, 3 * HUGE_HINT_BYTES + 4097
	};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		size_t n = sizes[i];
		uint8_t *p = malloc(n + 2);
		cr_assert_not_null(p);
		memset(p, 0x5a, n + 2);
		errno = 77;
		huge_hint(p + 1, n);
		cr_assert_eq(errno, 77);
		for (size_t k = 0; k < n + 2; k++)
			if (p[k] != 0x5a)
				cr_assert_fail("byte %zu of %zu", k, n);
		free(p);
	}
	NO_LEAKS();
}

Test(huge, no_block_and_a_block_that_is_not_mapped, .timeout = 5)
{
	errno = 0;
	huge_hint(NULL, HUGE_HINT_BYTES);
	/* the kernel refuses: nobody hears of it */
	huge_hint((void *)(uintptr_t)4096, HUGE_HINT_BYTES);
	cr_assert_eq(errno, 0);
	NO_LEAKS();
}
