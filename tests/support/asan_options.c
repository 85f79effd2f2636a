/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every Criterion test program asks of ASan. No check at exit: the runner leaks a little of
 * its own there, and NO_LEAKS() has looked at the end of each test. (A suppression by library would
 * hide our leaks too, for every test is called from libcriterion.) A huge allocation fails, as it
 * does without ASan. Not weak: clang's runtime has a weak one that comes first.
 */
const char *__asan_default_options(void);

__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
	return "leak_check_at_exit=0:allocator_may_return_null=1";
}
