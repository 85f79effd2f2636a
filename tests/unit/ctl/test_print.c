/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_test.h"

#include "print.h"

Test(print, tables_are_aligned, .timeout = 10)
{
	static const char *const heads[] = { "name", ">bytes", "what" };
	struct print_table t;
	char *text = NULL;
	size_t n;
	print_table_init(&t, heads, 3);
	print_table_row(&t, (const char *const[]){ "a", "1", "x" });
	print_table_row(&t, (const char *const[]){ "longer", "12345678", NULL });
	print_table_row(&t, (const char *const[]){ "gr\xc3\xbc\xc3\x9f", "", "tab\there\x7f" });
	FILE *f = open_memstream(&text, &n);
	print_table_put(&t, f);
	fclose(f);
	cr_expect_str_eq(text, "name       bytes  what\n"
			       "a              1  x\n"
			       "longer  12345678  -\n"
			       "gr\xc3\xbc\xc3\x9f           -  tab?here?\n");
	cr_expect_eq(t.err, ERR_NONE);
	free(text);
	print_table_fini(&t);
	print_table_fini(NULL);
	NO_LEAKS();
}

Test(print, tables_have_a_limit, .timeout = 10)
{
	static const char *const heads[] = { "n" };
	struct print_table t;
	print_table_init(&t, heads, 1);
	for (int i = 0; i < PRINT_ROWS_MAX + 2; i++)
		print_table_row(&t, (const char *const[]){ "1" });
	cr_expect_eq(t.n_rows, PRINT_ROWS_MAX);
	cr_expect_eq(t.err, ERR_TOO_LARGE);
	print_table_fini(&t);
	NO_LEAKS();
}

Test(print, sizes_and_ages, .timeout = 10)
{
	static const struct {
		uint64_t n;
		const char *bytes, *age;
	} rows[] = {
		{ 0, "0 B", "0 s" },
		{ 1023, "1023 B", "1 s" },
		{ 1024, "1.0 KiB", "1 s" },
		{ 119999, "117.2 KiB", "119 s" },
		{ 120000, "117.2 KiB", "2 min" },
		{ 1572864, "1.5 MiB", "26 min" },
		{ 7200000, "6.9 MiB", "2 h" },
		{ 172800000, "164.8 MiB", "2 d" },
		{ UINT64_MAX, "16.0 EiB", "213503982334 d" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char a[32], b[32];
		cr_expect_str_eq(print_bytes(a, sizeof(a), rows[i].n), rows[i].bytes);
		cr_expect_str_eq(print_age(b, sizeof(b), rows[i].n), rows[i].age);
	}
}

Test(print, hostile_text_is_cleaned_and_cut, .timeout = 10)
{
	char out[8];
	cr_expect_str_eq(print_clean(out, sizeof(out), "a\x1b]0;\n!!!!!"), "a?]0;?!");
	cr_expect_str_eq(print_clean(out, sizeof(out), ""), "");
	cr_expect_str_eq(print_clean(out, 1, "abc"), "");
}

/* Without a terminal progress prints nothing at all. */
Test(print, no_progress_without_a_terminal, .timeout = 10)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	struct cli c = { .err = f, .out = f };
	print_progress(&c, "half %d", 1);
	print_progress_end(&c);
	fclose(f);
	cr_expect_str_eq(text, "");
	free(text);
}
