/* SPDX-License-Identifier: Apache-2.0 */
/* `pomelo ep`: the command line, and that check sees what it must on every shape. */
#include "ctl_test.h"
#include "ep_try.h"

#include <stdio.h>

Test(ep, check_says_what_it_did, .timeout = 30)
{
	struct ran r;
	ran_do(&r, cli_cmds, "ep check --transport host --ranks 3 --experts 7 --steps 4");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out,
			 "host: 3 ranks, 7 experts, hidden 1024, top_k 4, 32 tokens a rank: "
			 "4 steps, all equal to the plain sum"),
		  "%s", r.out);
	ran_fini(&r);
	ran_do(&r, cli_cmds, "ep check --transport host --tokens 3 --hidden 128 --json");
	cr_assert_eq(r.code, 0, "%s", r.err);
	json_t *o = json_loads(r.out, 0, NULL);
	cr_expect_eq(json_integer_value(json_object_get(o, "differences")), 0);
	cr_expect_str_eq(json_string_value(json_object_get(o, "transport")), "host");
	json_decref(o);
	ran_fini(&r);
	NO_LEAKS();
}

Test(ep, bench_has_every_phase, .timeout = 30)
{
	struct ran r;
	ran_do(&r, cli_cmds,
	       "ep bench --transport host --ranks 2 --tokens 4 --hidden 256 --steps 3 --json");
	cr_assert_eq(r.code, 0, "%s", r.err);
	json_t *o = json_loads(r.out, 0, NULL);
	static const char *const names[] = { "dispatch_fp8", "dispatch_bf16", "combine",
					     "combine_zero_copy" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		json_t *p = json_object_get(o, names[i]);
		cr_expect_gt(json_real_value(json_object_get(p, "us")), 0.0);
		cr_expect_gt(json_integer_value(json_object_get(p, "bytes")), 0);
	}
	cr_expect_gt(json_real_value(json_object_get(o, "copy_gbps")), 0.0);
	json_decref(o);
	ran_fini(&r);
	ran_do(&r, cli_cmds, "ep bench --transport host --tokens 2 --hidden 128 --steps 1");
	cr_expect(strstr(r.out, "combine_zero_copy"), "%s", r.out);
	ran_fini(&r);
	NO_LEAKS();
}

Test(ep, refuses, .timeout = 30)
{
	static const struct {
		const char *words, *text;
		int code;
	} rows[] = {
		{ "ep check --ranks 0", "ranks is 0, allowed are 1 to 64", EXIT_USAGE_ },
		{ "ep check --ranks 65", "ranks is 65, allowed are 1 to 64", EXIT_USAGE_ },
		{ "ep check --hidden 100", "hidden is 100", EXIT_USAGE_ },
		{ "ep check --top-k 5 --experts 4", "top_k is 5, allowed are 1 to 4",
		  EXIT_USAGE_ },
		{ "ep check --steps 0", "steps is 0", EXIT_USAGE_ },
		{ "ep check --tokens -1", "--tokens -1: a number is needed", EXIT_USAGE_ },
		{ "ep bench --steps 3x", "--steps 3x: a number is needed", EXIT_USAGE_ },
		{ "ep check --transport pigeon", "'pigeon', allowed are auto, host",
		  EXIT_USAGE_ },
		{ "ep check --transport rdma", "transport rdma: needs a verbs NIC",
		  EXIT_TYPED_ },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ran r;
		ran_do(&r, cli_cmds, rows[i].words);
		cr_expect_eq(r.code, rows[i].code, "%s: %d", rows[i].words, r.code);
		cr_expect(strstr(r.err, rows[i].text), "%s: %s", rows[i].words, r.err);
		ran_fini(&r);
	}
	NO_LEAKS();
}
