/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of every version that was ever released, in proto/golden: NAME.vN.bin decodes, encodes for
 * version N to itself, and means what NAME.vN.json says (which a swap of two rows would change).
 *
 * When this fails after a change of rows: a row was changed that may only be appended to. As long as
 * version 1 has not been released its files may be deleted and made anew: `meson compile -C build golden`.
 */
#include "fill.h"
#include "proto/messages.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool slurp(const char *name, const char *ending, struct buf *out)
{
	char path[4096];
	uint8_t chunk[4096];
	size_t n;
	snprintf(path, sizeof(path), "%s/%s%s", GOLDEN_DIR, name, ending);
	FILE *f = fopen(path, "re");
	if (!f)
		return false;
	while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0)
		buf_put(out, chunk, n);
	fclose(f);
	return buf_err(out) == ERR_NONE;
}

static const struct wire_msg *find(const char *name, size_t n)
{
	const struct wire_msg *t;
	for (size_t i = 0; (t = wire_message(i)); i++)
		if (strlen(t->name) == n && strncmp(t->name, name, n) == 0)
			return t;
	return NULL;
}

/* stem: "HELLO.v1" */
static void check(const char *stem)
{
	const char *dot = strchr(stem, '.');
	uint32_t version = (uint32_t)strtoul(dot + 2, NULL, 10);
	const struct wire_msg *t = find(stem, (size_t)(dot - stem));
	struct buf bin = BUF_INIT(1 << 20), text = BUF_INIT(1 << 20), out = BUF_INIT(1 << 20);
	struct arena a = ARENA_INIT(1 << 20);
	struct why why = { 0 };
	max_align_t m[64];
	cr_assert_not_null(t, "%s: a released message has no rows any more", stem);
	cr_assert(slurp(stem, ".bin", &bin) && slurp(stem, ".json", &text), "%s", stem);
	struct dec d = DEC_INIT(buf_bytes(&bin), &a, &why);
	cr_assert_eq(t->dec(&d, m), ERR_NONE, "%s does not decode: %s", stem, why.text);
	t->enc(&out, m, version);
	cr_assert_eq(out.n, bin.n, "%s encodes differently: were rows changed?", stem);
	cr_assert_eq(memcmp(out.p, bin.p, bin.n), 0, "%s encodes differently", stem);
	buf_clear(&out);
	wire_json_at(&out, t, m, version);
	buf_put(&out, "\n", 2);
	buf_put(&text, "", 1);
	cr_assert_str_eq((char *)out.p, (char *)text.p, "%s means something else now", stem);
	buf_fini(&bin);
	buf_fini(&text);
	buf_fini(&out);
	arena_fini(&a);
}

Test(golden, every_released_version_decodes_for_ever, .timeout = 20)
{
	DIR *dir = opendir(GOLDEN_DIR);
	struct dirent *e;
	size_t n = 0;
	cr_assert_not_null(dir);
	while ((e = readdir(dir))) {
		char *end = strstr(e->d_name, ".bin");
		if (!end)
			continue;
		*end = 0;
		check(e->d_name);
		n++;
	}
	closedir(dir);
	cr_assert_gt(n, 0);
	NO_LEAKS();
}

Test(golden, every_message_has_bytes_of_its_newest_version, .timeout = 20)
{
	const struct wire_msg *t;
	for (size_t i = 0; (t = wire_message(i)); i++) {
		char stem[128];
		struct buf b = BUF_INIT(1 << 20);
		snprintf(stem, sizeof(stem), "%s.v%u", t->name, wire_newest(t));
		cr_assert(slurp(stem, ".bin", &b),
			  "no golden %s: run `meson compile -C build golden`", stem);
		buf_fini(&b);
	}
	NO_LEAKS();
}

/* The tool makes what is missing and leaves alone what is there, whatever it holds. */
Test(golden, the_tool_never_overwrites, .timeout = 20)
{
	char dir[] = "/tmp/pomelo-golden-XXXXXX", cmd[1024], path[256], text[8] = "";
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/HELLO.v1.bin", dir);
	FILE *f = fopen(path, "we");
	cr_assert_not_null(f);
	fputs("mine", f);
	fclose(f);
	snprintf(cmd, sizeof(cmd), "%s %s %s >/dev/null && %s %s %s", GOLDEN_TOOL, dir, dir,
		 GOLDEN_TOOL, dir, dir);
	cr_assert_eq(system(cmd), 0); /* NOLINT(cert-env33-c): our own tool */
	f = fopen(path, "re");
	cr_assert_not_null(fgets(text, sizeof(text), f));
	fclose(f);
	cr_assert_str_eq(text, "mine");
	snprintf(cmd, sizeof(cmd), "cmp %s/ECHO.v1.bin %s/ECHO.v1.bin && rm -r %s", GOLDEN_DIR,
		 dir, dir);
	cr_assert_eq(system(cmd), 0);
	NO_LEAKS();
}
