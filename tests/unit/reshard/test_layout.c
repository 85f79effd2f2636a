/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors, hostile ones too; patterns; placements from layouts against the models'. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "reshard/layout.h"
#include "tests/support/leak.h"
#include "tests/support/model.h"

TestSuite(reshard_layout, .timeout = 60);

static const struct place_limits lim = PLACE_LIMITS;

/* ---- headers ---- */

#define T(dtype, shape, b, e) \
	"{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #b "," #e "]}"

static const struct {
	const char *text;
	uint64_t data;
	enum rule rule;
} headers[] = {
	{ "{}", 0, RULE_NONE },
	{ "{}      ", 0, RULE_NONE },
	{ "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}}", 0, RULE_NONE },
	{ "{\"a\":" T("F32", "2,3", 0, 24) "}", 24, RULE_NONE },
	{ "{\"b\":" T("BF16", "", 24, 26) ",\"a\":" T("F32", "2,3", 0, 24) "}", 26, RULE_NONE },
	{ "{\"a\":" T("U8", "0", 0, 0) "}", 0, RULE_NONE },
	{ "{\"a\":" T("F32", "2,3", 0, 24) "}", 25, RULE_SAFETENSORS_HEADER },
	{ "{\"a\":" T("F32", "2,3", 0, 24) "}", 23, RULE_SAFETENSORS_HEADER },
	{ " {}", 0, RULE_SAFETENSORS_HEADER },
	{ "[]", 0, RULE_SAFETENSORS_HEADER },
	{ "{", 0, RULE_JSON_SYNTAX },
	{ "{}x", 0, RULE_JSON_SYNTAX },
	{ "{\"a\":" T("F33", "1", 0, 4) "}", 4, RULE_SAFETENSORS_TENSOR },
	{ "{\"a\":" T("F32", "2,3", 0, 20) "}", 20, RULE_SAFETENSORS_TENSOR },
	{ "{\"a\":" T("F32", "1", 4, 0) "}", 4, RULE_SAFETENSORS_TENSOR },
	{ "{\"a\":" T("F32", "1", 0, 4) ",\"b\":" T("F32", "1", 8, 12) "}", 12,
	  RULE_SAFETENSORS_TENSOR },
	{ "{\"a\":" T("F32", "1", 0, 4) ",\"b\":" T("F32", "1", 2, 6) "}", 6,
	  RULE_SAFETENSORS_TENSOR },
	{ "{\"a\":" T("F32", "1", 0, 4) ",\"a\":" T("F32", "1", 4, 8) "}", 8,
	  RULE_JSON_DUPLICATE_KEY },
	{ "{\"\\u0061\":" T("F32", "1", 0, 4) ",\"a\":" T("F32", "1", 4, 8) "}", 8,
	  RULE_JSON_DUPLICATE_KEY },
	{ "{\"a\":" T("F32", "4294967296,4294967296,4", 0, 4) "}", 4, RULE_SAFETENSORS_TENSOR },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
	  RULE_JSON_FIELDS },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, RULE_JSON_FIELDS },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
	  RULE_LIMIT_DIMS },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
	  RULE_SAFETENSORS_TENSOR },
	{ "{\"a\":" T("F32", "-1", 0, 4) "}", 4, RULE_JSON_INTEGER_RANGE },
	{ "{\"a\":" T("F32", "1.0", 0, 4) "}", 4, RULE_JSON_INTEGER },
	{ "{\"a\":7}", 4, RULE_JSON_ROOT_TYPE },
	{ "{\"__metadata__\":{\"x\":1}}", 0, RULE_JSON_STRING },
	{ "{\"__metadata__\":{},\"__metadata__\":{}}", 0, RULE_JSON_DUPLICATE_KEY },
};

Test(reshard_layout, safetensors_headers)
{
	for (size_t i = 0; i < ARRAY_LEN(headers); i++) {
		struct st_header *h = NULL;
		struct reject why;
		size_t n = strlen(headers[i].text);
		enum err e = st_header_read(BYTES(headers[i].text, n), 8 + n + headers[i].data,
					    &lim, &why, &h);
		cr_expect_eq(why.rule, headers[i].rule, "%s: %s at %s: %s", headers[i].text,
			     rule_name(why.rule), why.path, why.text);
		cr_expect_eq(e == ERR_NONE, h != NULL);
		st_header_free(h);
		/* no end but the right one */
		for (size_t k = 0;
		     headers[i].rule == RULE_NONE && k < n && headers[i].text[k] != ' '; k++) {
			h = NULL;
			if (headers[i].text[n - 1] != ' ')
				cr_expect_neq(st_header_read(BYTES(headers[i].text, k), 8 + k,
							     &lim, &why, &h),
					      ERR_NONE);
			st_header_free(h);
		}
	}
	struct st_header *h = NULL;
	struct reject why;
	cr_expect_eq(st_header_read(BYTES("{}", 2), 9, &lim, &why, &h), ERR_BAD_MANIFEST,
		     "a file shorter than its header");
	NO_LEAKS();
}

Test(reshard_layout, header_lengths)
{
	static const struct {
		uint8_t b[8];
		uint64_t n;
	} v[] = {
		{ { 2 }, 2 },
		{ { 1 }, 0 },
		{ { 0 }, 0 },
		{ { 0, 1 }, 256 },
		{ { 0x00, 0xe1, 0xf5, 0x05 }, 100000000 },
		{ { 0x01, 0xe1, 0xf5, 0x05 }, 0 },
		{ { 255, 255, 255, 255, 255, 255, 255, 255 }, 0 },
	};
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		cr_expect_eq(st_header_bytes(v[i].b), v[i].n, "%zu", i);
}

Test(reshard_layout, scalars_have_one_dimension)
{
	static const char text[] =
		"{\"b\":" T("BF16", "", 24, 26) ",\"a\":" T("F32", "2,3", 0, 24) "}";
	struct st_header *h = NULL;
	struct reject why;
	cr_assert_eq(st_header_read(BYTES_STR(text), 8 + strlen(text) + 26, &lim, &why, &h),
		     ERR_NONE);
	cr_assert_eq(h->n_tensors, 2);
	cr_expect(h->tensors[0].n_dims == 1 && h->tensors[0].shape[0] == 1);
	cr_expect_str_eq(h->tensors[0].dtype, "bfloat16");
	cr_expect(h->tensors[1].n_dims == 2 && h->tensors[1].shape[1] == 3);
	st_header_free(h);
	NO_LEAKS();
}

/* ---- patterns ---- */

#define NONE UINT64_MAX
static const struct {
	const char *pattern, *name;
	bool match;
	uint64_t layer, expert;
} patterns[] = {
	{ "a", "a", true, NONE, NONE },
	{ "a", "ab", false, NONE, NONE },
	{ "*", "anything", true, NONE, NONE },
	{ "*", "", true, NONE, NONE },
	{ "l.{layer}.w", "l.12.w", true, 12, NONE },
	{ "l.{layer}.w", "l..w", false, NONE, NONE },
	{ "l.{layer}.w", "l.012.w", false, NONE, NONE },
	{ "l.{layer}.w", "l.0.w", true, 0, NONE },
	{ "l.{layer}.w", "l.99999999999999999999.w", false, NONE, NONE },
	{ "{layer}.e.{expert}", "3.e.255", true, 3, 255 },
	{ "*.{layer}.*", "model.layers.7.mlp.gate", true, 7, NONE },
	{ "*.experts.{expert}.*", "m.experts.x.experts.4.up", true, NONE, 4 },
	{ "*ab", "aab", true, NONE, NONE },
	{ "*a*b*c", "xxaxxbxxcxxc", true, NONE, NONE },
	{ "*a*b*c", "xxaxxcxxb", false, NONE, NONE },
	{ "", "", true, NONE, NONE },
};

Test(reshard_layout, what_patterns_match)
{
	for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
		uint64_t layer, expert;
		bool m = layout_match(BYTES_STR(patterns[i].pattern),
				      BYTES_STR(patterns[i].name), &layer, &expert);
		cr_expect_eq(m, patterns[i].match, "%s %s", patterns[i].pattern,
			     patterns[i].name);
		if (m)
			cr_expect(layer == patterns[i].layer && expert == patterns[i].expert,
				  "%s", patterns[i].name);
	}
}

/* Stars in rows cost the product of lengths, no more (B5). */
Test(reshard_layout, a_hostile_pattern_is_bounded, .timeout = 10)
{
	static char name[100000], pattern[4001];
	uint64_t layer, expert;
	memset(name, 'a', sizeof(name));
	for (size_t i = 0; i < sizeof(pattern) - 1; i += 2)
		memcpy(pattern + i, "*a", 2);
	pattern[sizeof(pattern) - 1] = 'b';
	cr_expect_not(layout_match(BYTES(pattern, sizeof(pattern)), BYTES(name, sizeof(name)),
				   &layer, &expert));
}

/* ---- layouts of models ---- */

struct writing {
	struct buf header, layout;
	uint64_t at;
};

static void put_header(void *arg, struct bytes name, const struct vec *rule, int64_t layer,
		       int64_t expert)
{
	struct writing *w = arg;
	const char *dtype = vec_str(vec_get(rule, "dtype"));
	uint64_t n = vec_num(rule, "itemsize", 0);
	(void)layer;
	(void)expert;
	buf_printf(&w->header, "%s\"%.*s\":{\"dtype\":\"%s\",\"shape\":[", w->at ? "," : "",
		   (int)name.n, (const char *)name.p,
		   strcmp(dtype, "bfloat16") == 0	 ? "BF16"
		   : strcmp(dtype, "float32") == 0	 ? "F32"
		   : strcmp(dtype, "float8_e4m3fn") == 0 ? "F8_E4M3"
							 : "?");
	vec_each(d, vec_get(rule, "shape"))
	{
		buf_printf(&w->header, "%s%" PRIu64,
			   d == vec_get(rule, "shape")->kid ? "" : ",", d->num);
		n *= d->num;
	}
	buf_printf(&w->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", w->at,
		   w->at + n);
	w->at += n;
}

static void axis(struct buf *b, const char *kind, const char *rest)
{
	buf_printf(b, "%s{\"kind\":\"%s\",\"semantics\":%s}", b->p[b->n - 1] == '[' ? "" : ",",
		   kind, rest);
}

/* The rule of a model as one of a layout. */
static void put_rule(struct buf *b, const struct vec *rule, const struct model_layout *l,
		     const struct vec *model)
{
	char text[128];
	bool expert = vec_get(rule, "experts"), layer = vec_get(rule, "layers");
	const struct vec *name = vec_get(rule, "name");
	buf_printf(b, "%s{\"axes\":[", b->p[b->n - 1] == '[' ? "" : ",");
	if (l->dp > 1)
		axis(b, "dp", expert ? "\"ownership\"" : "\"replicated\"");
	if (l->pp > 1) {
		bool last = !layer && strcmp(vec_str(vec_get(rule, "place")), "last") == 0;
		snprintf(text, sizeof(text),
			 layer ? "\"ownership\",\"by\":\"layer\",\"of\":%" PRIu64
			       : "\"ownership\",\"at\":%" PRIu64,
			 layer	? vec_num(model, "layers", 0)
			 : last ? l->pp - 1
				: 0);
		axis(b, "pp", text);
	}
	if (l->ep > 1 && (expert || !l->wide)) {
		snprintf(text, sizeof(text),
			 expert ? "\"ownership\",\"by\":\"expert\",\"of\":%" PRIu64
				: "\"replicated\"",
			 vec_num(model, "experts", 0));
		axis(b, "ep", text);
	}
	if (l->tp > 1) {
		snprintf(text, sizeof(text),
			 l->wide && expert	   ? "\"ownership\""
			 : vec_get(rule, "tp_dim") ? "\"split\",\"dim\":%" PRIu64
						   : "\"replicated\"",
			 vec_num(rule, "tp_dim", 0));
		axis(b, "tp", text);
	}
	buf_printf(b, "],\"match\":\"");
	for (size_t i = 0; i < name->str.n; i++)
		if (name->str.p[i] == '{') {
			buf_printf(b, name->str.p[i + 1] == 'l' ? "{layer}" : "{expert}");
			i += 2;
		} else {
			buf_put(b, &name->str.p[i], 1);
		}
	buf_printf(b, "\"}");
}

static void put_layout(struct buf *b, const struct vec *model, const struct model_layout *l,
		       const struct place *like)
{
	buf_printf(
		b,
		"{\"files\":[\"x\"],\"layout_fingerprint\":\"row-major:v1\",\"placement_set_id\":"
		"\"%.*s\",\"resource_id\":\"%.*s\",\"revision\":\"r1\",\"rules\":[",
		(int)like->set_id.n, (const char *)like->set_id.p, (int)like->resource_id.n,
		(const char *)like->resource_id.p);
	vec_each(rule, vec_get(model, "tensor_rules")) put_rule(b, rule, l, model);
	buf_printf(b,
		   "],\"topology\":{\"dp_size\":%" PRIu64 ",\"ep_size\":%" PRIu64
		   ",\"participants\":[",
		   l->dp, l->ep);
	for (uint32_t i = 0; i < like->n_parts; i++)
		buf_printf(b,
			   "%s{\"participant_id\":\"%.*s\",\"rank\":{\"dp\":%" PRIu64
			   ",\"ep\":%" PRIu64 ",\"pp\":%" PRIu64 ",\"tp\":%" PRIu64 "}}",
			   i ? "," : "", (int)like->parts[i].id.n,
			   (const char *)like->parts[i].id.p, like->parts[i].rank.c[AX_DP],
			   like->parts[i].rank.c[AX_EP], like->parts[i].rank.c[AX_PP],
			   like->parts[i].rank.c[AX_TP]);
	buf_printf(b,
		   "],\"pp_size\":%" PRIu64 ",\"tp_size\":%" PRIu64
		   "},\"weight_generation\":1}",
		   l->pp, l->tp);
}

static void same_as_model(const struct vec *models, const char *name, const char *how)
{
	struct writing w = { .header = BUF_INIT(64 << 20), .layout = BUF_INIT(16 << 20) };
	const struct vec *model = model_find(models, name);
	struct model_layout l;
	struct place *want = NULL, *have = NULL;
	struct layout *lay = NULL;
	struct st_header *h = NULL;
	struct reject why;
	cr_assert(model_layout(how, &l));
	cr_assert_eq(model_place(model, &l, &lim, &why, &want), ERR_NONE);
	buf_printf(&w.header, "{");
	model_each(model, put_header, &w);
	buf_printf(&w.header, "}");
	put_layout(&w.layout, model, &l, want);
	cr_assert_eq(st_header_read(buf_bytes(&w.header), 8 + w.header.n + w.at, &lim, &why,
				    &h),
		     ERR_NONE, "%s at %s: %s", rule_name(why.rule), why.path, why.text);
	cr_assert_eq(layout_read(buf_bytes(&w.layout), &lim, &why, &lay), ERR_NONE,
		     "%s at %s: %s", rule_name(why.rule), why.path, why.text);
	cr_assert_eq(layout_place(lay, (const struct st_header *const *)&h, 1, &lim, &why,
				  &have),
		     ERR_NONE, "%s at %s: %s", rule_name(why.rule), why.path, why.text);
	cr_expect_eq(have->n_frags, want->n_frags);
	cr_expect_eq(memcmp(have->digest, want->digest, SHA_HEX), 0,
		     "%s %s: the same placement", name, how);
	place_free(want);
	place_free(have);
	layout_free(lay);
	st_header_free(h);
	buf_fini(&w.header);
	buf_fini(&w.layout);
}

Test(reshard_layout, the_models_layouts)
{
	struct vec_file f = vec_open("reshard/models.json");
	same_as_model(f.root, "llama-3.1-405b", "grid 8 2 1");
	same_as_model(f.root, "llama-3.1-405b", "grid 3 5 2");
	same_as_model(f.root, "qwen3-235b-a22b", "grid 2 2 3");
	same_as_model(f.root, "deepseek-v3", "wide 2 1");
	vec_free(&f);
	NO_LEAKS();
}

/* ---- what is refused ---- */

#define TOPO                                                                                     \
	"\"topology\":{\"dp_size\":1,\"ep_size\":1,\"participants\":[{\"participant_id\":\"p\"," \
	"\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":0}}],\"pp_size\":1,\"tp_size\":1}"
#define LAYOUT(rules)                                                                 \
	"{\"files\":[\"f\"],\"layout_fingerprint\":\"l\",\"placement_set_id\":\"s\"," \
	"\"resource_id\":\"m\",\"revision\":\"r\",\"rules\":[" rules "]," TOPO        \
	",\"weight_generation\":1}"
#define RULE(match, axes) "{\"match\":\"" match "\",\"axes\":[" axes "]}"

static const struct {
	const char *text, *path;
	enum rule read, place;
} layouts[] = {
	{ LAYOUT(RULE("*", "")), "", RULE_NONE, RULE_NONE },
	{ LAYOUT(RULE("a", "") "," RULE("b", "")), "", RULE_NONE, RULE_NONE },
	{ LAYOUT(RULE("a", "")), "rules", RULE_NONE, RULE_LAYOUT_MATCH },
	{ LAYOUT(RULE("*", "") "," RULE("b", "")), "rules[1].match", RULE_NONE,
	  RULE_LAYOUT_MATCH },
	{ LAYOUT(RULE("", "")), "rules[0].match", RULE_JSON_STRING, 0 },
	{ LAYOUT(RULE("{x}", "")), "rules[0]", RULE_LAYOUT_RULE, 0 },
	{ LAYOUT(RULE("{layer}{layer}", "")), "rules[0]", RULE_LAYOUT_RULE, 0 },
	{ LAYOUT(RULE("*", "{\"kind\":\"tp\",\"semantics\":\"split\"}")), "rules[0].axes[0]",
	  RULE_LAYOUT_RULE, 0 },
	{ LAYOUT(RULE("*", "{\"kind\":\"tp\",\"semantics\":\"replicated\",\"at\":0}")),
	  "rules[0].axes[0]", RULE_LAYOUT_RULE, 0 },
	{ LAYOUT(RULE(
		  "*",
		  "{\"kind\":\"ep\",\"semantics\":\"ownership\",\"by\":\"expert\",\"of\":4}")),
	  "rules[0]", RULE_LAYOUT_RULE, 0 },
	{ LAYOUT(RULE(
		  "*",
		  "{\"kind\":\"ep\",\"semantics\":\"ownership\",\"by\":\"token\",\"of\":4}")),
	  "rules[0].axes[0]", RULE_LAYOUT_RULE, 0 },
	{ LAYOUT(RULE("*", "{\"kind\":\"ep\",\"semantics\":\"ownership\",\"by\":\"layer\"}")),
	  "rules[0].axes[0]", RULE_LAYOUT_RULE, 0 },
	{ LAYOUT(RULE("*", "{\"kind\":\"xp\",\"semantics\":\"ownership\"}")),
	  "rules[0].axes[0].kind", RULE_AXIS_KIND, 0 },
	{ LAYOUT(RULE("*", "{\"kind\":\"tp\",\"semantics\":\"replicated\"},{\"kind\":\"tp\","
			   "\"semantics\":\"replicated\"}")),
	  "rules[0].axes[1]", RULE_AXIS_DUPLICATE_KIND, 0 },
	{ LAYOUT(RULE("*", "{\"kind\":\"tp\",\"semantics\":\"split\",\"dim\":7}")),
	  "tensors[0].parallel_axes", RULE_NONE, RULE_AXIS_DIM_RANGE },
	{ LAYOUT(RULE("*", "{\"kind\":\"pp\",\"semantics\":\"split\",\"dim\":0}")),
	  "rules[0].axes[0]", RULE_AXIS_SPLIT_KIND, 0 },
	{ LAYOUT(RULE("*", "{\"kind\":\"pp\",\"semantics\":\"ownership\",\"at\":3}")), "",
	  RULE_NONE, RULE_PLACEMENT_EMPTY },
	{ "{\"files\":[]}", "", RULE_JSON_FIELDS, 0 },
	{ "[]", "", RULE_JSON_ROOT_TYPE, 0 },
};

Test(reshard_layout, what_is_refused)
{
	static const char head[] =
		"{\"a\":" T("F32", "4", 0, 16) ",\"b\":" T("F32", "4", 16, 32) "}";
	struct st_header *h = NULL;
	struct reject why;
	cr_assert_eq(st_header_read(BYTES_STR(head), 8 + strlen(head) + 32, &lim, &why, &h),
		     ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
		struct layout *l = NULL;
		struct place *p = NULL;
		enum err e = layout_read(BYTES_STR(layouts[i].text), &lim, &why, &l);
		cr_expect_eq(e != ERR_NONE, l == NULL);
		cr_expect_eq(why.rule, layouts[i].read, "%zu: %s at %s: %s", i,
			     rule_name(why.rule), why.path, why.text);
		if (l) {
			e = layout_place(l, (const struct st_header *const *)&h, 1, &lim, &why,
					 &p);
			cr_expect_eq(e != ERR_NONE, p == NULL);
			cr_expect_eq(why.rule, layouts[i].place, "%zu: %s at %s: %s", i,
				     rule_name(why.rule), why.path, why.text);
		}
		if (layouts[i].path[0])
			cr_expect_str_eq(why.path, layouts[i].path, "%zu", i);
		cr_expect_eq(p != NULL, !layouts[i].read && !layouts[i].place);
		place_free(p);
		layout_free(l);
	}
	st_header_free(h);
	NO_LEAKS();
}
