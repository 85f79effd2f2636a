/* SPDX-License-Identifier: Apache-2.0 */
/* Keys as people write them; what the commands on objects refuse before they ask anybody. */
#include "ctl_test.h"
#include "store.h"

#include <stdio.h>
#include <unistd.h>

static const struct {
	const char *text;
	size_t n;
	const char *bytes;
} good[] = {
	{ "k", 1, "k" },
	{ "prompts/7", 9, "prompts/7" },
	{ "with space", 10, "with space" },
	{ "hex:00ffAb", 3, "\x00\xff\xab" },
	{ "hex", 3, "hex" },
	{ "Hex:00", 6, "Hex:00" },
};

Test(store_key, read, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct store_key k;
		struct why why = { 0 };
		cr_expect_eq(store_key_read(good[i].text, false, &k, &why), ERR_NONE, "%s",
			     why.text);
		cr_expect(k.n == good[i].n && memcmp(k.p, good[i].bytes, k.n) == 0, "%s",
			  good[i].text);
	}
	NO_LEAKS();
}

Test(store_key, refused, .timeout = 10)
{
	char longest[PML_KEY_MAX + 2], hex[4 + 2 * PML_KEY_MAX + 3] = "hex:";
	static const char *const bad[] = { "", "hex:", "hex:0", "hex:0g", "hex:0x" };
	struct store_key k;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct why why = { 0 };
		cr_expect_eq(store_key_read(bad[i], false, &k, &why), ERR_INVALID_PARAMS, "%s",
			     bad[i]);
		cr_expect(why.text[0]);
	}
	cr_expect_eq(store_key_read("", true, &k, NULL), ERR_NONE, "a prefix may be empty");
	cr_expect_eq(k.n, 0);
	memset(longest, 'x', PML_KEY_MAX + 1);
	longest[PML_KEY_MAX + 1] = '\0';
	cr_expect_eq(store_key_read(longest, false, &k, NULL), ERR_INVALID_PARAMS);
	longest[PML_KEY_MAX] = '\0';
	cr_expect_eq(store_key_read(longest, false, &k, NULL), ERR_NONE);
	memset(hex + 4, '0', 2 * PML_KEY_MAX + 2);
	hex[4 + 2 * PML_KEY_MAX + 2] = '\0';
	cr_expect_eq(store_key_read(hex, false, &k, NULL), ERR_INVALID_PARAMS);
	hex[4 + 2 * PML_KEY_MAX] = '\0';
	cr_expect_eq(store_key_read(hex, false, &k, NULL), ERR_NONE);
	NO_LEAKS();
}

/* Whatever ls prints is taken back as the same key. */
Test(store_key, text_and_back, .timeout = 10)
{
	static const struct {
		const char *p;
		size_t n;
		const char *text;
	} rows[] = {
		{ "plain", 5, "plain" },       { "hex:41", 6, "hex:6865783a3431" },
		{ "a b", 3, "hex:612062" },    { "\x00", 1, "hex:00" },
		{ "\xc3\xa9", 2, "hex:c3a9" }, { "a\n", 2, "hex:610a" },
	};
	char text[STORE_KEY_TEXT];
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct store_key k;
		cr_expect_str_eq(store_key_text(rows[i].p, rows[i].n, text), rows[i].text);
		cr_expect_eq(store_key_read(text, false, &k, NULL), ERR_NONE);
		cr_expect(k.n == rows[i].n && memcmp(k.p, rows[i].p, k.n) == 0);
	}
	uint8_t all[PML_KEY_MAX];
	memset(all, 0xfe, sizeof(all));
	cr_expect_eq(strlen(store_key_text(all, sizeof(all), text)), STORE_KEY_TEXT - 1);
	NO_LEAKS();
}

static const struct {
	const char *words;
	int code;
	const char *says;
} wrong[] = {
	{ "put k", 2, "FILE" },
	{ "put hex:0 /dev/null", 2, "hex:0" },
	{ "put k /nowhere/there", 3, "/nowhere/there" },
	{ "put k /dev/null --replicas 17", 2, "1..16" },
	{ "put k /dev/null --replicas x", 2, "1..16" },
	{ "put k /dev/null --soft-pin 0", 2, "1..86400000" },
	{ "put k /dev/null --group-size 8", 2, "--group" },
	{ "put k /dev/null --group g --group-size 0", 2, "1..1048576" },
	{ "put k /dev/null --group", 2, "--group" },
	{ "get k", 2, "FILE" },
	{ "ls a b", 2, "b" },
	{ "ls --tier tape", 2, "memory or disk" },
	{ "stat", 2, "KEY" },
	{ "rm", 2, "--all" },
	{ "rm --all k", 2, "no KEY" },
	{ "rm --all --prefix", 2, "--prefix" },
	{ "explain", 2, "KEY" },
	{ "forget", 2, "HOLDER" },
};

Test(store_commands, refuse, .timeout = 20)
{
	struct scratch s;
	scratch_init(&s);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		char all[400];
		struct ran r;
		snprintf(all, sizeof(all), "--data %s/d %s", s.path, wrong[i].words);
		ran_do(&r, cli_cmds, all);
		cr_expect_eq(r.code, wrong[i].code, "%s: %d %s", wrong[i].words, r.code, r.err);
		cr_expect(strstr(r.err, wrong[i].says), "%s: %s", wrong[i].words, r.err);
		cr_expect_str_eq(r.out, "");
		ran_fini(&r);
	}
	scratch_fini(&s);
	NO_LEAKS();
}

/* Nothing runs: within the deadline, exit code 5, and no file under the name. */
Test(store_commands, nobody_there, .timeout = 30)
{
	static const struct {
		const char *word, *file;
	} rows[] = { { "get k ", "out" }, { "put k ", "in" }, { "ls", "" },
		     { "stat k", "" },	  { "rm k", "" },     { "explain k", "" },
		     { "forget a", "" } };
	struct scratch s;
	struct ran r;
	scratch_init(&s);
	scratch_write(&s, "in", "bytes", 0600);
	char all[400];
	snprintf(all, sizeof(all), "--data %s/d secret new", s.path);
	ran_do(&r, cli_cmds, all);
	ran_fini(&r);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *line = rows[i].word;
		snprintf(all, sizeof(all), "--data %s/d --deadline 200ms %s%s", s.path, line,
			 rows[i].file[0] ? scratch_at(&s, rows[i].file) : "");
		ran_do(&r, cli_cmds, all);
		cr_expect_eq(r.code, EXIT_BUSY_, "%s: %d %s", line, r.code, r.err);
		cr_expect(strstr(r.err, "master"), "%s: %s", line, r.err);
		ran_fini(&r);
	}
	cr_expect_neq(access(scratch_at(&s, "out"), F_OK), 0);
	scratch_fini(&s);
	NO_LEAKS();
}
