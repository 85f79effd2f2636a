/* SPDX-License-Identifier: Apache-2.0 */
#include "base/where.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "NAME=VALUE" lines of the test that runs; each test is its own process. */
static const char *const *fake;

static const char *fake_env(const char *name)
{
	size_t n = strlen(name);
	for (size_t i = 0; fake && fake[i]; i++)
		if (strncmp(fake[i], name, n) == 0 && fake[i][n] == '=')
			return fake[i] + n + 1;
	return NULL;
}

static const struct row {
	struct where_wish wish;
	const char *env[4];
	const char *path, *run, *secret;
	bool run_given, secret_given;
} rows[] = {
	{ { .root = true },
	  { 0 },
	  "/var/lib/pomelo",
	  "/var/lib/pomelo/run",
	  "/var/lib/pomelo/secret" },
	{ { 0 },
	  { "HOME=/home/u" },
	  "/home/u/.local/state/pomelo",
	  "/home/u/.local/state/pomelo/run",
	  "/home/u/.local/state/pomelo/secret" },
	{ { 0 },
	  { "HOME=/home/u", "XDG_STATE_HOME=/s" },
	  "/s/pomelo",
	  "/s/pomelo/run",
	  "/s/pomelo/secret" },
	/* a relative XDG folder is to be ignored (its specification) */
	{ { 0 },
	  { "HOME=/h", "XDG_STATE_HOME=s" },
	  "/h/.local/state/pomelo",
	  "/h/.local/state/pomelo/run",
	  "/h/.local/state/pomelo/secret" },
	{ { .root = true }, { "POMELO_DATA=/d/" }, "/d", "/d/run", "/d/secret" },
	{ { .data = "/flag//" }, { "POMELO_DATA=/d" }, "/flag", "/flag/run", "/flag/secret" },
	{ { .data = "/" }, { 0 }, "/", "/run", "/secret" },
	{ { .data = "/d", .run_dir = "/r" },
	  { "POMELO_RUN_DIR=/e" },
	  "/d",
	  "/r",
	  "/d/secret",
	  true },
	{ { .data = "/d" }, { "POMELO_RUN_DIR=/e" }, "/d", "/e", "/d/secret", true },
	{ { .data = "/d", .secret_file = "/s" },
	  { "POMELO_SECRET_FILE=/e" },
	  "/d",
	  "/d/run",
	  "/s",
	  false,
	  true },
	{ { .data = "/d" },
	  { "POMELO_SECRET_FILE=/e", "POMELO_RUN_DIR=" },
	  "/d",
	  "/d/run",
	  "/e",
	  false,
	  true },
};

Test(where, finds_what_answers_say, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct where_wish w = rows[i].wish;
		struct where at;
		struct why why = { 0 };
		w.env = fake_env;
		fake = rows[i].env;
		cr_assert_eq(where_find(&w, &at, &why), ERR_NONE, "%zu: %s", i, why.text);
		cr_expect_str_eq(at.path, rows[i].path);
		cr_expect_str_eq(at.run, rows[i].run);
		cr_expect_str_eq(at.secret, rows[i].secret);
		cr_expect_eq(at.run_given, rows[i].run_given);
		cr_expect_eq(at.secret_given, rows[i].secret_given);
	}
}

Test(where, relative_paths_become_absolute, .timeout = 10)
{
	struct where_wish w = {
		.data = "d", .run_dir = "r/", .secret_file = "s", .env = fake_env
	};
	struct where at;
	cr_assert_eq(chdir("/tmp"), 0);
	cr_assert_eq(where_find(&w, &at, NULL), ERR_NONE);
	cr_expect_str_eq(at.path, "/tmp/d");
	cr_expect_str_eq(at.run, "/tmp/r");
	cr_expect_str_eq(at.secret, "/tmp/s");
}

Test(where, nowhere_to_go_is_said, .timeout = 10)
{
	struct where_wish w = { .env = fake_env };
	struct where at = { .path = "untouched" };
	struct why why = { 0 };
	fake = NULL;
	cr_expect_eq(where_find(&w, &at, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, "--data DIR"), "%s", why.text);
	cr_expect_str_eq(at.path, "untouched");
}

/* At the limit of sun_path it works, one byte over it says --run-dir. */
Test(where, long_socket_paths_name_the_remedy, .timeout = 10)
{
	char dir[256];
	struct where_wish w = { .data = "/d", .run_dir = dir, .env = fake_env };
	struct where at;
	size_t fits = WHERE_SOCKET_PATH_MAX - strlen("/planner.sock");
	memset(dir, 'x', sizeof(dir));
	dir[0] = '/';
	dir[fits] = '\0';
	cr_expect_eq(where_find(&w, &at, NULL), ERR_NONE);
	struct why why = { 0 };
	dir[fits] = 'x';
	dir[fits + 1] = '\0';
	cr_expect_eq(where_find(&w, &at, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, "--run-dir DIR") && strstr(why.text, "108 bytes") &&
			  strstr(why.text, "107"),
		  "%s", why.text);
	/* a data folder with a long path is fine as long as the sockets are elsewhere */
	w.data = dir;
	w.run_dir = "/run/p";
	cr_expect_eq(where_find(&w, &at, NULL), ERR_NONE);
}

Test(where, paths_have_a_limit, .timeout = 10)
{
	static char huge[PATH_BYTES_MAX + 10];
	struct where_wish w = { .data = huge, .env = fake_env };
	struct where at;
	struct why why = { 0 };
	memset(huge, 'x', sizeof(huge) - 1);
	cr_expect_neq(where_find(&w, &at, &why), ERR_NONE, "relative");
	huge[0] = '/';
	why = (struct why){ 0 };
	cr_expect_eq(where_find(&w, &at, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, "4095"), "%s", why.text);
}

/* DATA/run as a link: later commands need not be told again. */
Test(where, link_names_the_run_folder, .timeout = 10)
{
	char data[] = "/tmp/pomelo-where-XXXXXX", link[64];
	struct where at;
	cr_assert_not_null(mkdtemp(data));
	snprintf(link, sizeof(link), "%s/run", data);
	cr_assert_eq(symlink("/tmp/elsewhere", link), 0);
	struct where_wish w = { .data = data, .env = fake_env };
	cr_expect_eq(where_find(&w, &at, NULL), ERR_NONE);
	cr_expect_str_eq(at.run, "/tmp/elsewhere");
	cr_expect(at.run_given);
	unlink(link);
	rmdir(data);
}

Test(where, host_is_cut_to_what_a_message_holds, .timeout = 10)
{
	char a[WHERE_HOST_MAX + 1], b[WHERE_HOST_MAX + 1], name[256], real[256] = "";
	where_host("box-1", a);
	cr_assert_str_eq(a, "box-1");
	memset(name, 'h', 200);
	name[200] = '\0';
	where_host(name, a);
	name[199] = 'i';
	where_host(name, b);
	cr_assert_eq(strlen(a), WHERE_HOST_MAX);
	cr_assert_eq(strlen(b), WHERE_HOST_MAX);
	cr_assert_str_neq(a, b, "the whole of it counts");
	gethostname(real, sizeof(real) - 1);
	where_host("", a);
	cr_assert_eq(strncmp(a, real, 40), 0, "%s is not %s", a, real);
}

Test(where, pool_follows_the_folder_not_its_name, .timeout = 10)
{
	char dir[] = "/tmp/pml_whereXXXXXX", moved[64], a[128], b[128];
	cr_assert(mkdtemp(dir));
	cr_assert_eq(where_pool(dir, a, sizeof(a)), ERR_NONE);
	cr_assert_eq(strncmp(a, "/dev/shm/pomelo-", 16), 0, "%s", a);
	snprintf(moved, sizeof(moved), "%s.moved", dir);
	cr_assert_eq(rename(dir, moved), 0);
	cr_assert_eq(where_pool(moved, b, sizeof(b)), ERR_NONE);
	cr_assert_str_eq(a, b);
	cr_assert_eq(where_pool(dir, b, sizeof(b)), ERR_NOT_FOUND);
	rmdir(moved);
}
