/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning: texts, placements and plans of DeepSeek-V3's two wide layouts (174,784 and 131,936
 * fragments). Processor time of one thread. The limits are what the same bytes cost a plain memory
 * copy, or SHA-256 alone.
 */
#include "bench/bench.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "reshard/plan.h"
#include "tests/support/model.h"

struct work {
	struct place *source, *target;
	struct plan_ask ask;
	struct buf text; /* of the target */
	struct text_out out;
	struct sha sha;
	uint8_t *copy;
};

static const struct place_limits lim = PLACE_LIMITS;

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "bench_reshard: %s failed\n", what);
	exit(1);
}

static void parse(void *arg)
{
	struct work *w = arg;
	struct reject why = { 0 };
	struct place_new *b = place_new_open(&lim, &why);
	must(b && place_new_read(b, buf_bytes(&w->text), PLACE_WIRE), "parse");
	place_new_free(b);
}

static void scan(void *arg)
{
	struct work *w = arg;
	struct reject why = { 0 };
	struct arena mem = ARENA_INIT(1 << 20);
	struct json_in r;
	must(json_in_open(&r, buf_bytes(&w->text), &lim.json, &mem, &why) && json_in_skip(&r) &&
		     json_in_close(&r),
	     "scan");
	arena_fini(&mem);
}

static void read_all(void *arg)
{
	struct work *w = arg;
	struct reject why;
	struct place *p = NULL;
	must(place_read(buf_bytes(&w->text), PLACE_WIRE, &lim, &why, &p) == ERR_NONE, "read");
	place_free(p);
}

static void copy(void *arg)
{
	struct work *w = arg;
	memcpy(w->copy, w->text.p, w->text.n);
	bench_keep(w->copy);
}

static void hash(void *arg)
{
	struct work *w = arg;
	char hex[SHA_HEX];
	sha_add(&w->sha, w->text.p, w->text.n);
	sha_hex(&w->sha, hex);
	bench_keep(hex);
}

static bool keep(void *arg, const void *p, size_t n)
{
	(void)arg;
	(void)n;
	bench_keep(p);
	return true;
}

static void write_text(void *arg)
{
	struct work *w = arg;
	text_init(&w->out, NULL, false);
	w->out.put = keep;
	place_text(w->target, &w->out);
	text_flush(&w->out);
}

static void make_plan(void *arg)
{
	struct work *w = arg;
	struct reject why;
	struct plan *p = NULL;
	must(plan_make(&w->ask, &why, &p) == ERR_NONE, "plan");
	plan_free(p);
}

static void plan_digest(void *arg)
{
	struct work *w = arg;
	struct reject why;
	struct plan *p = NULL;
	char hex[SHA_HEX];
	must(plan_make(&w->ask, &why, &p) == ERR_NONE, "plan");
	text_init(&w->out, &w->sha, false);
	plan_ops_text(p, &w->out);
	text_flush(&w->out);
	sha_hex(&w->sha, hex);
	plan_free(p);
}

static double bytes_per_s(void (*op)(void *arg), struct work *w)
{
	return (double)w->text.n * 1e9 / bench_loop_ns(op, w, 50);
}

#define BYTES_ROW(name, op)                  \
	static double name(void *arg)        \
	{                                    \
		return bytes_per_s(op, arg); \
	}
BYTES_ROW(parse_rate, parse)
BYTES_ROW(scan_rate, scan)
BYTES_ROW(read_rate, read_all)
BYTES_ROW(copy_rate, copy)
BYTES_ROW(hash_rate, hash)
BYTES_ROW(write_rate, write_text)

static double plan_rate(void *arg)
{
	return 1e9 / bench_loop_ns(make_plan, arg, 50);
}

static double digest_rate(void *arg)
{
	return 1e9 / bench_loop_ns(plan_digest, arg, 50);
}

static bool to_buf(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

static struct place *lay(const struct vec *models, const char *layout)
{
	struct model_layout l;
	struct reject why;
	struct place *p = NULL;
	must(model_layout(layout, &l) && model_place(model_find(models, "deepseek-v3"), &l,
						     &lim, &why, &p) == ERR_NONE,
	     layout);
	return p;
}

static void prepare(struct work *w)
{
	struct vec_file models = vec_open("reshard/models.json");
	w->source = lay(models.root, "wide 8 8");
	w->target = lay(models.root, "wide 4 8");
	vec_free(&models);
	w->ask = (struct plan_ask){ .source = w->source,
				    .target = w->target,
				    .lim = PLAN_LIMITS_WIDE };
	w->text = BUF_INIT((size_t)1 << 30);
	text_init(&w->out, NULL, false);
	w->out.put = to_buf;
	w->out.arg = &w->text;
	place_text(w->target, &w->out);
	text_flush(&w->out);
	w->copy = malloc(w->text.n);
	must(buf_err(&w->text) == ERR_NONE && w->copy && sha_init(&w->sha) == ERR_NONE,
	     "memory");
}

int main(int argc, char **argv)
{
	static struct work w;
	static const char text_note[] = "canonical text of DeepSeek-V3 wide 4 8, 67 MB";
	static const char plan_note[] = "wide 8 8 to wide 4 8, records in memory; one core";
	const struct bench_row rows[] = {
		{ "weights.json_scan", "bytes/s", false, scan_rate, copy_rate, "memcpy", 0,
		  text_note },
		{ "weights.json_parse", "bytes/s", false, parse_rate, copy_rate, "memcpy",
		  300e6, text_note },
		{ "weights.json_write", "bytes/s", false, write_rate, copy_rate, "memcpy",
		  500e6, text_note },
		{ "weights.placement_read", "bytes/s", false, read_rate, hash_rate, "SHA-256",
		  300e6, "parsed, checked, covered, ids and digest" },
		{ "weights.plan_deepseek_v3_per_s", "plans/s", false, plan_rate, NULL, NULL, 4,
		  plan_note },
		{ "weights.plan_deepseek_v3_digest_per_s", "plans/s", false, digest_rate, NULL,
		  NULL, 2, plan_note },
	};
	if (argc != 2 || strcmp(argv[1], "--list") != 0)
		prepare(&w);
	int rc = bench_main(argc, argv, rows, ARRAY_LEN(rows), &w);
	place_free(w.source);
	place_free(w.target);
	buf_fini(&w.text);
	sha_fini(&w.sha);
	free(w.copy);
	return rc;
}
