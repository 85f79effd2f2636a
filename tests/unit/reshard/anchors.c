/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model-size placements and plans against counts and digests: anchors [NAME...], default all; a name
 * may be a beginning. Also the catalogue of every model. Prints times, which judge nothing here
 * (bench_reshard does). Plain main(): the largest pair needs some 2 GiB.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include "reshard/plan.h"
#include "tests/support/model.h"

static int failures;

static void expect(bool ok, const char *name, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "FAILED %s: %s\n", name, what);
	failures++;
}

static bool same(const struct vec *want, const char *have, size_t n)
{
	return want && want->str.n == n && memcmp(want->str.p, have, n) == 0;
}

/* This thread's processor time: one core, whoever shares it. */
static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double ms_since(uint64_t t0)
{
	return (double)(cpu_ns() - t0) / 1e6;
}

static struct place *side(const struct vec *models, const struct vec *v, const char *key)
{
	static const struct place_limits lim = PLACE_LIMITS;
	const struct vec *e = vec_get(v, key),
			 *m = model_find(models, vec_str(vec_get(v, "model")));
	const char *name = vec_str(vec_get(v, "name"));
	struct model_layout l;
	struct reject why;
	struct place *p = NULL;
	uint64_t t0 = cpu_ns();
	if (!m || !model_layout(vec_str(vec_get(e, "layout")), &l) ||
	    model_place(m, &l, &lim, &why, &p) != ERR_NONE) {
		expect(false, name, key);
		return NULL;
	}
	printf("  %s: %u fragments built, checked, hashed in %.0f ms\n", key, p->n_frags,
	       ms_since(t0));
	expect(p->n_frags == vec_num(e, "fragments", 0), name, "fragments");
	expect(p->n_tensors == vec_num(e, "tensors", 0), name, "tensors");
	expect(p->n_parts == vec_num(e, "participants", 0), name, "participants");
	expect(same(vec_get(e, "placement_id"), p->id, DERIVED_ID_LEN), name, "placement_id");
	if (vec_get(e, "digest"))
		expect(same(vec_get(e, "digest"), p->digest, SHA_HEX), name, "digest");
	if (vec_get(e, "canonical_bytes"))
		expect(p->text_bytes == vec_num(e, "canonical_bytes", 0), name,
		       "canonical_bytes");
	return p;
}

static void check_plan(const struct vec *e, const struct plan *p, const char *name)
{
	static struct text_out o;
	struct sha sha;
	char hex[SHA_HEX];
	expect(p->n_ops == vec_num(e, "regions", 0), name, "regions");
	expect(p->total_segments == vec_num(e, "total_segments", 0), name, "total_segments");
	expect(p->total_bytes == vec_num(e, "total_bytes", 0), name, "total_bytes");
	expect(p->n_routes == vec_num(e, "pipeline_routes", 0), name, "pipeline_routes");
	expect(p->n_sources == vec_num(e, "source_executors", 0), name, "source_executors");
	if (sha_init(&sha) != ERR_NONE)
		exit(2);
	text_init(&o, &sha, false);
	plan_ops_text(p, &o);
	text_flush(&o);
	sha_hex(&sha, hex);
	sha_fini(&sha);
	expect(same(vec_get(e, "operations_sha256"), hex, SHA_HEX), name, "operations_sha256");
}

static void one(const struct vec *models, const struct vec *v)
{
	const char *name = vec_str(vec_get(v, "name"));
	const struct vec *l = vec_get(v, "limits");
	struct reject why;
	struct rusage u;
	struct plan *p = NULL;
	printf("%s\n", name);
	struct place *s = side(models, v, "source"), *t = side(models, v, "target");
	struct plan_ask a = { .source = s, .target = t, .lim = PLAN_LIMITS };
	a.lim.max_transfer_regions = vec_num(l, "max_transfer_regions", 0);
	a.lim.max_segments_per_region = vec_num(l, "max_segments_per_region", 0);
	a.lim.max_total_lowered_segments = vec_num(l, "max_total_lowered_segments", 0);
	uint64_t t0 = cpu_ns();
	if (s && t && plan_make(&a, &why, &p) == ERR_NONE) {
		double made = ms_since(t0);
		check_plan(vec_get(v, "expect"), p, name);
		getrusage(RUSAGE_SELF, &u);
		printf("  %u regions planned in %.0f ms, with their digest %.0f ms; peak %ld MiB\n",
		       p->n_ops, made, ms_since(t0), u.ru_maxrss >> 10);
	} else {
		expect(false, name, s && t ? rule_name(why.rule) : "sides");
	}
	plan_free(p);
	place_free(s);
	place_free(t);
}

/* ---- catalogues ---- */

struct catalog {
	struct text_out o;
	uint64_t tensors, parameters, bytes;
};

static void number(struct text_out *o, int64_t v)
{
	text_lit(o, "|");
	if (v < 0)
		text_lit(o, "-");
	else
		text_u64(o, (uint64_t)v);
}

static void line(void *arg, struct bytes name, const struct vec *rule, int64_t layer,
		 int64_t expert)
{
	struct catalog *c = arg;
	uint64_t n = 1, itemsize = vec_num(rule, "itemsize", 0);
	const char *sep = "|";
	text_raw(&c->o, name.p, name.n);
	vec_each(d, vec_get(rule, "shape"))
	{
		text_raw(&c->o, sep, 1);
		text_u64(&c->o, d->num);
		sep = "x";
		n *= d->num;
	}
	text_lit(&c->o, "|");
	text_raw(&c->o, vec_get(rule, "dtype")->str.p, vec_get(rule, "dtype")->str.n);
	number(&c->o, (int64_t)itemsize);
	number(&c->o, layer);
	number(&c->o, expert);
	text_lit(&c->o, "\n");
	c->tensors++;
	c->bytes += n * itemsize;
	if (!strstr((const char *)vec_get(rule, "name")->str.p, "scale"))
		c->parameters += n;
}

static void catalogues(const struct vec *models)
{
	static struct catalog c;
	struct sha sha;
	char hex[SHA_HEX];
	if (sha_init(&sha) != ERR_NONE)
		exit(2);
	vec_each(m, vec_get(models, "models"))
	{
		const char *name = vec_str(vec_get(m, "name"));
		const struct vec *n = vec_get(m, "counts");
		c.tensors = c.parameters = c.bytes = 0;
		text_init(&c.o, &sha, true);
		model_each(m, line, &c);
		text_flush(&c.o);
		sha_hex(&sha, hex);
		expect(same(vec_get(m, "catalog_sha256"), hex, SHA_HEX), name,
		       "catalog_sha256");
		expect(c.tensors == vec_num(n, "tensors", 0), name, "tensors");
		expect(c.bytes == vec_num(n, "bytes", 0), name, "bytes");
		expect(c.parameters == vec_num(n, "parameters", 0), name, "parameters");
	}
	sha_fini(&sha);
}

static bool asked(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++)
		if (strncmp(argv[i], name, strlen(argv[i])) == 0)
			return true;
	return argc < 2;
}

int main(int argc, char **argv)
{
	struct vec_file models = vec_open("reshard/models.json");
	struct vec_file anchors = vec_open("reshard/anchors.json");
	catalogues(models.root);
	vec_each(v, anchors.root) if (asked(argc, argv, vec_str(vec_get(v, "name"))))
		one(models.root, v);
	vec_free(&models);
	vec_free(&anchors);
	printf("%d failures\n", failures);
	return failures ? 1 : 0;
}
