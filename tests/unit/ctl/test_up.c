/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_test.h"

#include "bin.h"
#include "up.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- the view ---- */

Test(up, reads_the_status_line, .timeout = 10)
{
	static const char text[] =
		"{\"pid\":9,\"state\":\"stopping\",\"adopted\":2,\"services\":["
		"{\"name\":\"master\",\"pid\":11,\"state\":\"running\",\"ready\":true,\"restarts\":3,"
		"\"reasons\":[],\"exit_code\":-1,\"rpc\":[\"a\",\"b\"],\"http\":\"h\"},"
		"{\"name\":\"agent\",\"pid\":0,\"state\":\"down\",\"ready\":false,\"early_deaths\":1,"
		"\"exit_code\":2,\"last_exit\":\"exit code 2\",\"reasons\":[\"why\",\"more\"]}]}";
	struct up_view v;
	json_t *o = json_loads(text, 0, NULL);
	up_view_read(o, &v);
	json_decref(o);
	cr_expect(v.pid == 9 && v.adopted == 2 && v.stopping && v.n_ready == 1);
	cr_expect_eq(v.services[0].restarts, 3);
	cr_expect_eq(v.services[0].info.n_rpc, 2);
	cr_expect_str_eq(v.services[1].why, "why");
	cr_expect_eq(v.failed, 1);
	cr_expect_str_eq(v.services[4].name, "", "what is missing is empty");
	up_view_read(NULL, &v);
	cr_expect(v.pid == 0 && v.n_ready == 0 && v.failed == SERVICE_COUNT);
	NO_LEAKS();
}

Test(up, knows_what_is_hopeless, .timeout = 10)
{
	static const struct {
		uint32_t deaths;
		int code;
		bool hopeless;
	} rows[] = {
		{ 0, 2, false }, { 1, 2, true },  { 1, 6, false }, { 3, 6, true },
		{ 1, 1, false }, { 2, 1, false }, { 3, 1, true },  { 9, -1, false },
		{ 9, 0, false }, { 4, 5, true },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct up_service s = { .early_deaths = rows[i].deaths,
					.exit_code = rows[i].code };
		cr_expect_eq(up_hopeless(&s), rows[i].hopeless, "%zu", i);
	}
}

/* ---- settings ---- */

static enum err take(const struct where *w, const char *words, struct up_sets *out,
		     struct cli *c)
{
	static char text[512]; /* the command line, until the next call */
	char *argv[32] = { "pomelo" }, *save;
	int argc = 1;
	snprintf(text, sizeof(text), "%s", words);
	for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save))
		argv[argc++] = p;
	*c = (struct cli){ .cmds = cli_cmds, .out = stdout, .err = stderr };
	cr_assert_eq(cli_parse(c, argc, argv), ERR_NONE, "%s", c->why.text);
	return up_sets_take(c, w, out);
}

Test(up, flags_become_settings_and_are_recorded, .timeout = 10)
{
	struct scratch s;
	struct up_sets a = { 0 }, b = { 0 };
	struct cli c;
	int fd = -1;
	scratch_init(&s);
	struct where w = scratch_where(&s);
	cr_assert_eq(data_make(&w, NULL), ERR_NONE);
	cr_assert_eq(data_make_rest(&w, NULL), ERR_NONE);
	cr_assert_eq(take(&w, "up --pool 2GiB --no-disk --set pg.workers=3", &a, &c), ERR_NONE);
	cr_assert_eq(a.n, 3);
	cr_expect_str_eq(a.v[0], "agent.pool_size=2GiB");
	cr_expect_str_eq(a.v[1], "owner.disk=false");
	cr_expect_str_eq(a.v[2], "pg.workers=3");
	/* services run: the recorded ones count, asked for or not */
	cr_assert_eq(path_lock(scratch_at(&s, "data/run/pg.pid"), &fd, NULL), ERR_NONE);
	cr_assert_eq(take(&w, "up", &b, &c), ERR_NONE);
	cr_expect_eq(b.n, 3);
	cr_expect_str_eq(b.v[2], "pg.workers=3");
	up_sets_fini(&b);
	cr_assert_eq(take(&w, "up --pool 2GiB --no-disk --set pg.workers=3", &b, &c), ERR_NONE);
	up_sets_fini(&b);
	/* others are refused */
	cr_expect_eq(take(&w, "up --pool 3GiB", &b, &c), ERR_INVALID_PARAMS);
	cr_expect(strstr(c.why.text, "pomelo down"), "%s", c.why.text);
	up_sets_fini(&b);
	close(fd);
	up_sets_fini(&a);
	up_sets_fini(NULL);
	scratch_fini(&s);
}

Test(up, sizes_are_checked, .timeout = 10)
{
	static const char *const bad[] = { "up --pool many", "up --pool 0", "up --disk -1",
					   "up --disk 1XiB" };
	struct scratch s;
	scratch_init(&s);
	struct where w = scratch_where(&s);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct up_sets sets = { 0 };
		struct cli c;
		cr_expect_eq(take(&w, bad[i], &sets, &c), ERR_INVALID_PARAMS, "%s", bad[i]);
		cr_expect(strstr(c.why.text, "512MiB"), "%s", c.why.text);
		up_sets_fini(&sets);
	}
	scratch_fini(&s);
}

/* A record cut short by a crash is no settings, not an error. */
Test(up, broken_record_is_no_settings, .timeout = 10)
{
	static const char *const bad[] = { "", "{\"sets\":[\"a.b=1\"", "{\"sets\":{}}", "[1]",
					   "{\"sets\":[1,\"noequals\",null]}" };
	struct scratch s;
	int fd = -1;
	scratch_init(&s);
	struct where w = scratch_where(&s);
	cr_assert_eq(data_make(&w, NULL), ERR_NONE);
	cr_assert_eq(data_make_rest(&w, NULL), ERR_NONE);
	cr_assert_eq(path_lock(scratch_at(&s, "data/run/pg.pid"), &fd, NULL), ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct up_sets sets = { 0 };
		struct cli c;
		scratch_write(&s, "data/run/up.json", bad[i], 0600);
		cr_expect_eq(take(&w, "up", &sets, &c), ERR_NONE, "%s", bad[i]);
		cr_expect_eq(sets.n, 0, "%s", bad[i]);
		up_sets_fini(&sets);
	}
	close(fd);
	scratch_fini(&s);
}

/* ---- executables ---- */

static void make_exe(const struct scratch *s, const char *name, unsigned mode)
{
	scratch_write(s, name, "#!/bin/sh\n", mode);
}

Test(up, executables_are_found_in_order, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	char out[PATH_BYTES_MAX];
	scratch_init(&s);
	const struct service_row *agent = &service_rows[1];
	const char *self = scratch_at(&s, "services/ctl/pomelo");
	mkdir(scratch_at(&s, "services"), 0700);
	mkdir(scratch_at(&s, "services/ctl"), 0700);
	mkdir(scratch_at(&s, "services/transfer-agent"), 0700);
	cr_expect_eq(bin_find(agent, self, NULL, out, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, "pomelo-transfer-agent") &&
			  strstr(why.text, "POMELO_BINDIR"),
		  "%s", why.text);
	make_exe(&s, "services/transfer-agent/pomelo-transfer-agent", 0700);
	cr_assert_eq(bin_find(agent, self, NULL, out, NULL), ERR_NONE);
	cr_expect(strstr(out, "/../transfer-agent/pomelo-transfer-agent"), "%s", out);
	make_exe(&s, "services/ctl/pomelo-transfer-agent", 0700);
	cr_assert_eq(bin_find(agent, self, NULL, out, NULL), ERR_NONE);
	cr_expect_str_eq(out, scratch_at(&s, "services/ctl/pomelo-transfer-agent"));
	/* a folder that was named is the only one that counts */
	why = (struct why){ 0 };
	cr_expect_eq(bin_find(agent, self, s.path, out, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, s.path), "%s", why.text);
	make_exe(&s, "pomelo-transfer-agent", 0600);
	cr_expect_eq(bin_find(agent, self, s.path, out, NULL), ERR_INVALID_PARAMS,
		     "not executable");
	make_exe(&s, "pomelo-transfer-agent", 0700);
	cr_expect_eq(bin_find(agent, self, s.path, out, NULL), ERR_NONE);
	scratch_fini(&s);
}
