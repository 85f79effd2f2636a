/* SPDX-License-Identifier: Apache-2.0 */
/* weights show, validate, plan on small files. */
#include "ctl_test.h"

#include <jansson.h>
#include <stdio.h>

/* A draft of one 4 x 4 bf16 matrix, cut by rows over n ranks (1 or 2). */
static void draft(char *out, size_t size, int n, int nbytes)
{
	char parts[1500] = "", members[300] = "";
	for (int i = 0; i < n; i++) {
		const char *tp = i ? "1" : "0";
		snprintf(
			parts + strlen(parts), sizeof(parts) - strlen(parts),
			"%s{\"fragments\":[{\"aliases\":[],\"global_offset\":[%d,0],\"local_shape\":"
			"[%d,4],\"nbytes\":%d,\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":%s},"
			"\"tensor_id\":\"w\"}],\"participant_id\":\"r%d\",\"rank\":{\"dp\":0,"
			"\"ep\":0,\"pp\":0,\"tp\":%s}}",
			i ? "," : "", i * 2, 4 / n, nbytes, tp, i, tp);
		snprintf(
			members + strlen(members), sizeof(members) - strlen(members),
			"%s{\"participant_id\":\"r%d\",\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":"
			"%s}}",
			i ? "," : "", i, tp);
	}
	snprintf(
		out, size,
		"{\"parts\":[%s],\"placement_set_id\":\"s\",\"resource_id\":\"m\","
		"\"resource_kind\":\"model_weight\",\"revision\":\"r\",\"tensors\":[{\"dtype\":"
		"\"bfloat16\",\"expert_id\":null,\"global_shape\":[4,4],\"itemsize\":2,\"layer_id\":"
		"null,\"layout_fingerprint\":\"row-major:v1\",\"parallel_axes\":[{\"dim\":0,\"kind\":"
		"\"tp\",\"semantics\":\"split\"}],\"shard_dims\":[0],\"tensor_id\":\"w\"}],"
		"\"topology\":{\"dp_size\":1,\"ep_size\":1,\"participants\":[%s],\"pp_size\":1,"
		"\"tp_size\":%d},\"weight_generation\":1}",
		parts, members, n);
}

static void files(struct scratch *s)
{
	char text[4096];
	scratch_init(s);
	draft(text, sizeof(text), 2, 16);
	scratch_write(s, "two.json", text, 0600);
	draft(text, sizeof(text), 1, 32);
	scratch_write(s, "one.json", text, 0600);
	draft(text, sizeof(text), 2, 17);
	scratch_write(s, "bad.json", text, 0600);
}

static void run(const struct scratch *s, struct ran *r, const char *cmd, const char *a,
		const char *b)
{
	char all[400];
	snprintf(all, sizeof(all), "weights %s %s/%s %s%s%s", cmd, s->path, a, b ? s->path : "",
		 b ? "/" : "", b ? b : "");
	ran_do(r, cli_cmds, all);
}

static json_int_t number(const char *out, const char *key)
{
	json_t *j = json_loads(out, 0, NULL);
	json_int_t v = json_integer_value(json_object_get(j, key));
	json_decref(j);
	return v;
}

Test(weights, show_says_what_is_in_it, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	files(&s);
	run(&s, &r, "show", "two.json", NULL);
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "1 tensors, 2 fragments on 2 ranks"), "%s", r.out);
	cr_expect(strstr(r.out, "sha256:"), "%s", r.out);
	ran_fini(&r);
	run(&s, &r, "show --json", "two.json", NULL);
	cr_expect_eq(number(r.out, "model_bytes"), 32, "%s", r.out);
	cr_expect_eq(number(r.out, "fragments"), 2, "%s", r.out);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}

Test(weights, validate_names_rule_and_field, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	files(&s);
	run(&s, &r, "validate", "two.json", NULL);
	cr_expect_eq(r.code, 0, "%s", r.err);
	ran_fini(&r);
	run(&s, &r, "validate", "bad.json", NULL);
	cr_expect_eq(r.code, EXIT_TYPED_);
	cr_expect(strstr(r.err, "fragment.nbytes at parts[0].fragments[0].nbytes"), "%s",
		  r.err);
	ran_fini(&r);
	run(&s, &r, "validate", "none.json", NULL);
	cr_expect_eq(r.code, EXIT_NOT_FOUND_, "%s", r.err);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}

Test(weights, plan_shows_pairs, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	files(&s);
	run(&s, &r, "plan", "two.json", "one.json");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "2 regions, 32 B in 2 segments, 2 pairs"), "%s", r.out);
	cr_expect(strstr(r.out, "r1 |\u2588|"), "%s", r.out);
	ran_fini(&r);
	run(&s, &r, "plan --json", "two.json", "one.json");
	cr_expect_eq(number(r.out, "total_bytes"), 32, "%s", r.out);
	ran_fini(&r);
	run(&s, &r, "plan --participant r1", "one.json", "two.json");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "1 regions, 16 B"), "%s", r.out);
	ran_fini(&r);
	run(&s, &r, "plan --local", "one.json", "two.json");
	cr_expect_eq(r.code, EXIT_USAGE_);
	cr_expect(strstr(r.err, "plan.participant"), "%s", r.err);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}
