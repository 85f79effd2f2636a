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

/* A .safetensors file: w of 4 x 4 bf16. head: instead of its header; n_head: instead of its length. */
static void safetensors(struct scratch *s, const char *name, const char *head, uint64_t n_head,
			size_t n_data)
{
	static const char good[] =
		"{\"w\":{\"dtype\":\"BF16\",\"shape\":[4,4],\"data_offsets\":[0,32]}}";
	char path[256];
	uint8_t first[8], data[64] = { 0 };
	head = head ? head : good;
	n_head = n_head ? n_head : strlen(head);
	for (int i = 0; i < 8; i++)
		first[i] = (uint8_t)(n_head >> 8 * i);
	snprintf(path, sizeof(path), "%s/%s", s->path, name);
	FILE *f = fopen(path, "wb");
	cr_assert_not_null(f);
	fwrite(first, 1, 8, f);
	fwrite(head, 1, strlen(head), f);
	fwrite(data, 1, n_data, f);
	fclose(f);
}

static void layout(struct scratch *s, const char *name, const char *file)
{
	char text[2048];
	snprintf(
		text, sizeof(text),
		"{\"files\":[\"%s\"],\"layout_fingerprint\":\"row-major:v1\",\"placement_set_id\":"
		"\"s\",\"resource_id\":\"m\",\"revision\":\"r\",\"rules\":[{\"match\":\"*\",\"axes\":"
		"[{\"kind\":\"tp\",\"semantics\":\"split\",\"dim\":0}]}],\"topology\":{\"dp_size\":1,"
		"\"ep_size\":1,\"pp_size\":1,\"tp_size\":2,\"participants\":[{\"participant_id\":"
		"\"r0\",\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":0}},{\"participant_id\":\"r1\","
		"\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":1}}]},\"weight_generation\":1}",
		file);
	scratch_write(s, name, text, 0600);
}

/* A layout of the file is the placement that was written by hand. */
Test(weights, layouts_of_safetensors, .timeout = 20)
{
	struct scratch s;
	struct ran by_hand, r;
	files(&s);
	safetensors(&s, "w.safetensors", NULL, 0, 32);
	layout(&s, "layout.json", "w.safetensors");
	run(&s, &by_hand, "show", "two.json", NULL);
	run(&s, &r, "show", "layout.json", NULL);
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect_str_eq(r.out, by_hand.out);
	ran_fini(&r);
	ran_fini(&by_hand);
	run(&s, &r, "plan", "layout.json", "one.json");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "2 regions, 32 B in 2 segments"), "%s", r.out);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}

static const struct {
	const char *head;
	uint64_t n_head;
	size_t n_data;
	const char *says;
} hostile[] = {
	{ NULL, 1, 32, "safetensors.header" },
	{ NULL, 1000, 32, "safetensors.header" },
	{ NULL, 1ull << 40, 32, "safetensors.header" },
	{ NULL, UINT64_MAX, 32, "safetensors.header" },
	{ NULL, 0, 31, "safetensors.header" },
	{ NULL, 0, 33, "safetensors.header" },
	{ "{\"w\":1}", 0, 0, "json.root_type at w" },
	{ "{\"w\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, 0,
	  "safetensors.tensor at w.dtype" },
	{ "{\"w\x1b[31m\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 0, 2,
	  "json.syntax" },
};

Test(weights, hostile_safetensors, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	files(&s);
	layout(&s, "layout.json", "w.safetensors");
	for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
		safetensors(&s, "w.safetensors", hostile[i].head, hostile[i].n_head,
			    hostile[i].n_data);
		run(&s, &r, "validate", "layout.json", NULL);
		cr_expect_eq(r.code, EXIT_TYPED_, "%zu", i);
		cr_expect(strstr(r.err, hostile[i].says), "%zu: %s", i, r.err);
		cr_expect_not(strchr(r.err, 0x1b), "nothing a terminal obeys");
		ran_fini(&r);
	}
	layout(&s, "none.json", "nothing.safetensors");
	run(&s, &r, "validate", "none.json", NULL);
	cr_expect_eq(r.code, EXIT_NOT_FOUND_, "%s", r.err);
	ran_fini(&r);
	layout(&s, "folder.json", ".");
	run(&s, &r, "validate", "folder.json", NULL);
	cr_expect_eq(r.code, EXIT_USAGE_, "%s", r.err);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}
