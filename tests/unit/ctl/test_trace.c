/* SPDX-License-Identifier: Apache-2.0 */
/* Traces as files have them, the bytes of blocks, and what `trace-replay` refuses before it asks anybody. */
#include "block.h"
#include "ctl_test.h"
#include "replay.h"
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

static enum err line(struct trace *t, const char *s, struct why *why)
{
	*why = (struct why){ 0 };
	return trace_line(t, s, strlen(s), why);
}

Test(trace, lines_that_are_requests, .timeout = 10)
{
	struct trace t = { 0 };
	struct why why;
	cr_expect_eq(
		line(&t,
		     "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52,"
		     " \"hash_ids\": [46, 47, 9223372036854775807]}\n",
		     &why),
		ERR_NONE, "%s", why.text);
	cr_expect_eq(line(&t, "", &why), ERR_NONE);
	cr_expect_eq(line(&t, " \t\r\n", &why), ERR_NONE);
	cr_expect_eq(line(&t, "{\"hash_ids\":[],\"timestamp\":1.75,\"more\":{\"x\":[null]}}",
			  &why),
		     ERR_NONE, "%s", why.text);
	cr_expect_eq(line(&t, "{\"timestamp\":0,\"hash_ids\":[0]}\r\n", &why), ERR_NONE);
	cr_assert_eq(t.n, 3);
	cr_expect_eq(t.requests[0].at_ms, 27482);
	cr_expect_eq(t.requests[0].input_tokens, 6955);
	cr_expect_eq(t.requests[0].output_tokens, 52);
	cr_expect(t.requests[0].first == 0 && t.requests[0].n == 3);
	cr_expect_eq(t.ids[2], (uint64_t)INT64_MAX);
	cr_expect(t.requests[1].at_ms == 1 && t.requests[1].n == 0);
	cr_expect(t.requests[2].first == 3 && t.requests[2].n == 1 && t.ids[3] == 0);
	trace_free(&t);
	trace_free(&t);
	NO_LEAKS();
}

static const struct {
	const char *line, *why;
} bad[] = {
	{ "x", "no JSON (column" },
	{ "{\"timestamp\":0,\"hash_ids\":[1]", "no JSON (column" },
	{ "{\"timestamp\":0,\"hash_ids\":[1]} {}", "no JSON (column" },
	{ "{\"timestamp\":0,\"hash_ids\":[18446744073709551616]}", "no JSON (column" },
	{ "[1]", "a JSON object" },
	{ "7", "a JSON object" },
	{ "{}", "\"timestamp\" is missing" },
	{ "{\"hash_ids\":[1]}", "\"timestamp\" is missing" },
	{ "{\"timestamp\":-1,\"hash_ids\":[1]}", "\"timestamp\" is no number" },
	{ "{\"timestamp\":-0.5,\"hash_ids\":[1]}", "\"timestamp\" is no number" },
	{ "{\"timestamp\":1e300,\"hash_ids\":[1]}", "\"timestamp\" is no number" },
	{ "{\"timestamp\":\"1\",\"hash_ids\":[1]}", "\"timestamp\" is no number" },
	{ "{\"timestamp\":null,\"hash_ids\":[1]}", "\"timestamp\" is no number" },
	{ "{\"timestamp\":1,\"input_length\":-4,\"hash_ids\":[1]}",
	  "\"input_length\" is no number" },
	{ "{\"timestamp\":1,\"output_length\":[],\"hash_ids\":[1]}",
	  "\"output_length\" is no number" },
	{ "{\"timestamp\":1}", "\"hash_ids\" is missing" },
	{ "{\"timestamp\":1,\"hash_ids\":{}}", "\"hash_ids\" is missing or no array" },
	{ "{\"timestamp\":1,\"hash_ids\":[1,2,-3]}", "hash_ids[2] is no whole number" },
	{ "{\"timestamp\":1,\"hash_ids\":[1.5]}", "hash_ids[0] is no whole number" },
	{ "{\"timestamp\":1,\"hash_ids\":[1,\"2\"]}", "hash_ids[1] is no whole number" },
	{ "{\"timestamp\":1,\"hash_ids\":[[1]]}", "hash_ids[0] is no whole number" },
};

Test(trace, lines_that_are_none, .timeout = 10)
{
	struct trace t = { 0 };
	struct why why;
	cr_assert_eq(line(&t, "{\"timestamp\":5,\"hash_ids\":[1,2]}", &why), ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cr_expect_eq(line(&t, bad[i].line, &why), ERR_INVALID_PARAMS, "%s",
			     bad[i].line);
		cr_expect(strncmp(why.text, bad[i].why, strlen(bad[i].why)) == 0, "%s: %s",
			  bad[i].line, why.text);
	}
	cr_expect_eq(trace_line(&t, "\0{}", 3, &why), ERR_INVALID_PARAMS);
	cr_expect(t.n == 1 && t.n_ids == 2, "what was refused has left nothing");
	char *huge = malloc(TRACE_LINE_MAX + 1);
	memset(huge, '1', TRACE_LINE_MAX + 1);
	cr_expect_eq(trace_line(&t, huge, TRACE_LINE_MAX + 1, &why), ERR_TOO_LARGE);
	free(huge);
	trace_free(&t);
	NO_LEAKS();
}

Test(trace, files, .timeout = 10)
{
	struct scratch s;
	struct trace t = { 0 };
	struct why why = { 0 };
	scratch_init(&s);
	scratch_write(&s, "ok",
		      "{\"timestamp\":0,\"hash_ids\":[1,2]}\n\n"
		      "{\"timestamp\":3,\"hash_ids\":[1,2,3]}\n"
		      "{\"timestamp\":9,\"hash_ids\":[1,7]}",
		      0600);
	cr_assert_eq(trace_read(scratch_at(&s, "ok"), 0, &t, &why), ERR_NONE, "%s", why.text);
	cr_expect(t.n == 3 && t.n_ids == 7);
	trace_free(&t);
	cr_assert_eq(trace_read(scratch_at(&s, "ok"), 2, &t, &why), ERR_NONE);
	cr_expect(t.n == 2 && t.n_ids == 5);
	trace_free(&t);

	scratch_write(&s, "third", "{\"timestamp\":0,\"hash_ids\":[1]}\n\n{\"timestamp\":0}\n",
		      0600);
	cr_expect_eq(trace_read(scratch_at(&s, "third"), 0, &t, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, "third:3: \"hash_ids\" is missing"), "%s", why.text);
	cr_expect_eq(trace_read(scratch_at(&s, "third"), 1, &t, &why), ERR_NONE,
		     "what lies behind the limit is not read");
	trace_free(&t);
	why = (struct why){ 0 };
	scratch_write(&s, "empty", "\n\n", 0600);
	cr_expect_eq(trace_read(scratch_at(&s, "empty"), 0, &t, &why), ERR_INVALID_PARAMS);
	cr_expect(strstr(why.text, "no request in it"), "%s", why.text);
	cr_expect_eq(trace_read(scratch_at(&s, "none"), 0, &t, &why), ERR_NOT_FOUND);
	cr_expect_neq(trace_read(s.path, 0, &t, &why), ERR_NONE, "a folder");
	cr_expect(t.n == 0 && !t.ids);
	scratch_fini(&s);
	NO_LEAKS();
}

Test(trace, facts, .timeout = 10)
{
	static const char *const lines[] = {
		"{\"timestamp\":0,\"hash_ids\":[1,2,3]}",
		"{\"timestamp\":9,\"hash_ids\":[1,2,4]}",
		"{\"timestamp\":4,\"hash_ids\":[5,1,2]}", /* behind a hole nothing is a hit */
		"{\"timestamp\":5,\"hash_ids\":[]}",
		"{\"timestamp\":6,\"hash_ids\":[5,1,2]}",
		"{\"timestamp\":7,\"hash_ids\":[9223372036854775807]}",
	};
	struct trace t = { 0 };
	struct trace_facts f;
	struct why why;
	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		cr_assert_eq(line(&t, lines[i], &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(trace_facts(&t, &f), ERR_NONE);
	cr_expect_eq(f.references, 13);
	cr_expect_eq(f.distinct, 6);
	cr_expect_eq(f.prefix_hits, 5);
	cr_expect_eq(f.last_ms, 9);
	trace_free(&t);
	NO_LEAKS();
}

/* ---- blocks ---- */

Test(block, bytes_are_as_said, .timeout = 10)
{
	uint64_t v[19], i = 2;
	uint8_t odd[150], part[150];
	block_fill(v, sizeof(v), 12345);
	cr_expect_eq(v[18], XXH3_64bits_withSeed(&i, 8, 12345) + 2 * 0x9e3779b97f4a7c15ull);
	block_fill(odd + 1, 149, 12345);
	cr_expect(memcmp(odd + 1, v, 149) == 0, "wherever they lie");
	for (size_t n = 0; n <= 149; n++) {
		memset(part, 0xee, sizeof(part));
		block_fill(part, n, 12345);
		cr_expect(memcmp(part, v, n) == 0 && (n == 150 || part[n] == 0xee), "%zu", n);
		cr_expect(block_check(part, n, 12345), "%zu", n);
	}
}

Test(block, every_wrong_byte_is_seen, .timeout = 10)
{
	enum { N = 1000 };
	uint8_t v[N], w[N];
	block_fill(v, N, 7);
	for (size_t i = 0; i < N; i++) {
		v[i] ^= 1;
		cr_expect(!block_check(v, N, 7), "%zu", i);
		v[i] ^= 1;
	}
	cr_expect(block_check(v, N, 7));
	cr_expect(!block_check(v, N, 8), "another block");
	memcpy(w, v + 64, 64);
	memcpy(w + 64, v, 64);
	memcpy(w + 128, v + 128, N - 128);
	cr_expect(!block_check(w, N, 7), "lines in another order");
}

/* ---- the command line ---- */

static const struct {
	const char *flags, *why;
} refused[] = {
	{ "--block 0", "--block 0: a size from 1 byte to 256MiB" },
	{ "--block 257MiB", "--block 257MiB: a size from 1 byte to 256MiB" },
	{ "--block -1", "--block" },
	{ "--block lots", "--block lots: a size" },
	{ "--clients 0", "--clients 0: a whole number from 1 to 256" },
	{ "--clients 257", "--clients 257: a whole number" },
	{ "--clients 1x", "--clients 1x: a whole number" },
	{ "--limit 0", "--limit 0: a whole number from 1" },
	{ "--limit 99999999999999999999", "--limit 99999999999999999999: a whole number" },
	{ "--time-scale -1", "--time-scale -1: a number from 0 to 1000" },
	{ "--time-scale nan", "--time-scale nan: a number" },
	{ "--time-scale 1001", "--time-scale 1001: a number" },
	{ "--time-scale 1e3", "--time-scale 1e3: a number" },
	{ "--time-scale .", "--time-scale .: a number" },
	{ "--block 256MiB --clients 9",
	  "9 clients with blocks of this size take buffers of 9.0 GiB" },
	{ "--blocks 4", "--blocks: `trace-replay` has no such flag; did you mean --block?" },
};

Test(trace_replay, refused_before_anything_is_asked, .timeout = 20)
{
	struct scratch s;
	char words[300];
	scratch_init(&s);
	scratch_write(&s, "ok", "{\"timestamp\":0,\"hash_ids\":[1,2]}\n", 0600);
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		struct ran r;
		snprintf(words, sizeof(words), "--data %s/d trace-replay %s %s", s.path,
			 scratch_at(&s, "ok"), refused[i].flags);
		ran_do(&r, cli_cmds, words);
		cr_expect_eq(r.code, EXIT_USAGE_, "%s: %d", refused[i].flags, r.code);
		cr_expect(strstr(r.err, refused[i].why), "%s: %s", refused[i].flags, r.err);
		ran_fini(&r);
	}
	scratch_fini(&s);
	NO_LEAKS();
}

Test(trace_replay, nobody_there, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	char words[300];
	scratch_init(&s);
	scratch_write(&s, "ok", "{\"timestamp\":0,\"hash_ids\":[1,2]}\n", 0600);
	scratch_write(&s, "secret",
		      "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n",
		      0600);
	snprintf(words, sizeof(words),
		 "--data %s/d --secret-file %s --deadline 100ms trace-replay %s --clients 3",
		 s.path, scratch_at(&s, "secret"), scratch_at(&s, "ok"));
	ran_do(&r, cli_cmds, words);
	cr_expect_eq(r.code, EXIT_BUSY_, "%d %s", r.code, r.err);
	cr_expect(strstr(r.err, "stopped after 0 of 1 requests: master: "), "%s", r.err);
	cr_expect_str_empty(r.out, "no table of nothing");
	ran_fini(&r);
	snprintf(words, sizeof(words), "--data %s/d trace-replay %s/none", s.path, s.path);
	ran_do(&r, cli_cmds, words);
	cr_expect_eq(r.code, EXIT_NOT_FOUND_, "%d", r.code);
	cr_expect(strstr(r.err, "/none: No such file"), "%s", r.err);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}
