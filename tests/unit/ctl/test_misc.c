/* SPDX-License-Identifier: Apache-2.0 */
/* secret, and what the commands say when nothing runs. */
#include "ctl_test.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void run_in(const struct scratch *s, struct ran *r, const char *words)
{
	char all[400];
	snprintf(all, sizeof(all), "--data %s/d %s", s->path, words);
	ran_do(r, cli_cmds, all);
}

Test(secret, is_made_once_and_derived_from, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	struct stat st;
	char first[256];
	scratch_init(&s);
	run_in(&s, &r, "secret new");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect_eq(stat(scratch_at(&s, "d/secret"), &st), 0);
	cr_expect(st.st_size == 65 && (st.st_mode & 07777) == 0600);
	ran_fini(&r);
	run_in(&s, &r, "secret new");
	cr_expect_eq(r.code, EXIT_TYPED_);
	cr_expect(strstr(r.err, "left as it is"), "%s", r.err);
	ran_fini(&r);
	run_in(&s, &r, "secret derive client default");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect_eq(strncmp(r.out, "pomelo-key v1 client default ", 29), 0, "%s", r.out);
	snprintf(first, sizeof(first), "%s", r.out);
	ran_fini(&r);
	run_in(&s, &r, "--tenant default secret derive client");
	cr_expect_str_eq(r.out, first, "the same key, by the global flag");
	ran_fini(&r);
	run_in(&s, &r, "secret derive client other");
	cr_expect_str_neq(r.out, first);
	ran_fini(&r);
	run_in(&s, &r, "secret derive holder");
	cr_expect_eq(strncmp(r.out, "pomelo-key v1 holder - ", 23), 0, "%s", r.out);
	ran_fini(&r);
	run_in(&s, &r, "secret show-path --json");
	json_t *o = json_loads(r.out, 0, NULL);
	cr_expect_str_eq(json_string_value(json_object_get(o, "secret_file")),
			 scratch_at(&s, "d/secret"));
	json_decref(o);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}

Test(secret, refuses_what_makes_no_sense, .timeout = 20)
{
	static const struct {
		const char *words;
		int code;
		const char *says;
	} rows[] = {
		{ "secret derive client default", 3, "/d/secret" },
		{ "secret derive king", 2, "one of client, holder, service, admin" },
		{ "secret derive none", 2, "one of client, holder, service, admin" },
		{ "secret derive client", 2, "needs a tenant" },
		{ "secret derive holder default", 2, "has no tenant" },
		{ "secret derive client a/b", 3, "/d/secret" },
		{ "secret derive", 2, "ROLE [TENANT]" },
		{ "secret new more", 2, "one argument too many" },
	};
	struct scratch s;
	scratch_init(&s);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ran r;
		run_in(&s, &r, rows[i].words);
		cr_expect_eq(r.code, rows[i].code, "%s: %d %s", rows[i].words, r.code, r.err);
		cr_expect(strstr(r.err, rows[i].says), "%s: %s", rows[i].words, r.err);
		cr_expect_str_eq(r.out, "");
		ran_fini(&r);
	}
	scratch_fini(&s);
	NO_LEAKS();
}

/* Commands about a cluster that is not there say so and change nothing. */
Test(misc, nothing_runs, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	scratch_init(&s);
	run_in(&s, &r, "status");
	cr_expect_eq(r.code, EXIT_BUSY_);
	cr_expect(strstr(r.out, "`pomelo up` starts it"), "%s", r.out);
	ran_fini(&r);
	run_in(&s, &r, "status --json");
	cr_expect_eq(r.code, EXIT_BUSY_);
	json_t *o = json_loads(r.out, 0, NULL);
	cr_assert_not_null(o, "%s", r.out);
	cr_expect_eq(json_array_size(json_object_get(o, "services")), SERVICE_COUNT);
	json_t *one = json_array_get(json_object_get(o, "services"), 0);
	static const char *const keys[] = { "name",  "pid",	"instance",
					    "ready", "reasons", "restarts",
					    "rpc",   "http",	"rss_bytes" };
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		cr_expect_not_null(json_object_get(one, keys[i]), "%s", keys[i]);
	static const char *const tops[] = { "version",	"data",	   "term",   "recovering",
					    "services", "holders", "objects" };
	for (size_t i = 0; i < ARRAY_LEN(tops); i++)
		cr_expect_not_null(json_object_get(o, tops[i]), "%s", tops[i]);
	json_decref(o);
	ran_fini(&r);
	run_in(&s, &r, "down");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.out, "nothing runs"), "%s", r.out);
	ran_fini(&r);
	run_in(&s, &r, "version");
	cr_expect_eq(r.code, 0);
	cr_expect_str_eq(r.out, "pomelo " POMELO_VERSION "\n");
	ran_fini(&r);
	run_in(&s, &r, "supervise");
	cr_expect_eq(r.code, EXIT_USAGE_);
	ran_fini(&r);
	cr_expect_neq(access(scratch_at(&s, "d"), F_OK), 0, "no folder was made");
	scratch_fini(&s);
	NO_LEAKS();
}
