/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/layout.h"

#include <stdio.h>

#include "reshard/place_priv.h"

struct reader {
	struct json_in in;
	struct layout *l;
	struct reject *why;
	struct place_limits lim;
	uint32_t cap_files, cap_rules, cap_members;
};

/* ---- patterns ---- */

static bool starts(struct bytes s, const char *with)
{
	size_t n = strlen(with);
	return s.n >= n && memcmp(s.p, with, n) == 0;
}

static struct bytes from(struct bytes s, size_t n)
{
	return BYTES(s.p + n, s.n - n);
}

/* A number as people write it: no zero in front, below 2^64-1. Its digits; 0: none. */
static size_t number(struct bytes s, uint64_t *out)
{
	uint64_t v = 0;
	size_t n = 0;
	for (; n < s.n && s.p[n] >= '0' && s.p[n] <= '9'; n++)
		if (__builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(s.p[n] - '0'), &v))
			return 0;
	if ((n > 1 && s.p[0] == '0') || v == UINT64_MAX)
		return 0;
	*out = v;
	return n;
}

/* One element of the pattern but a star: how much of pattern and name it takes. */
static bool element(struct bytes p, struct bytes s, size_t *of_p, size_t *of_s, uint64_t *layer,
		    uint64_t *expert)
{
	bool is_layer = starts(p, "{layer}"), is_expert = starts(p, "{expert}");
	*of_p = *of_s = 1;
	if (!is_layer && !is_expert)
		return p.n && s.n && p.p[0] == s.p[0];
	*of_p = is_layer ? strlen("{layer}") : strlen("{expert}");
	*of_s = number(s, is_layer ? layer : expert);
	return *of_s > 0;
}

/* The last star may take one more, until the name is used up: no other need be tried again. */
bool layout_match(struct bytes pattern, struct bytes name, uint64_t *layer, uint64_t *expert)
{
	struct bytes p = pattern, s = name, star = { 0 }, retry = { 0 };
	bool has_star = false;
	*layer = *expert = UINT64_MAX;
	while (s.n || p.n) {
		size_t of_p, of_s;
		if (p.n && p.p[0] == '*') {
			has_star = true;
			star = p = from(p, 1);
			retry = s;
		} else if (element(p, s, &of_p, &of_s, layer, expert)) {
			p = from(p, of_p);
			s = from(s, of_s);
		} else if (has_star && retry.n) {
			s = retry = from(retry, 1);
			p = star;
		} else {
			return false;
		}
	}
	return true;
}

/* Each placeholder at most once, no other brace. */
static bool pattern_ok(struct bytes p, bool *layer, bool *expert)
{
	*layer = *expert = false;
	for (size_t i = 0; i < p.n; i++) {
		struct bytes s = from(p, i);
		bool *which = starts(s, "{layer}")    ? layer
			      : starts(s, "{expert}") ? expert
						      : NULL;
		if (which ? *which : p.p[i] == '{')
			return false;
		if (which)
			*which = true;
		i += !which	      ? 0
		     : which == layer ? strlen("{layer}") - 1
				      : strlen("{expert}") - 1;
	}
	return p.n > 0;
}

/* ---- reading ---- */

static bool no_memory(struct reader *d)
{
	return reject_set(d->why, RULE_LIMIT_MEMORY, "", "no memory within the limit");
}

static bool grow(struct reader *d, void *list, uint32_t *cap, uint32_t n, uint32_t most,
		 size_t each)
{
	void *old, *q;
	if (n < *cap)
		return true;
	if (n >= most)
		return json_in_fail(&d->in, RULE_LIMIT_COUNT, "at most %u", most);
	uint32_t want = *cap ? *cap * 2 : 16;
	memcpy(&old, list, sizeof(old));
	q = realloc(old, want * each);
	if (!q)
		return no_memory(d);
	memcpy(list, &q, sizeof(q));
	*cap = want;
	return true;
}

static bool text(struct reader *d, struct bytes *out)
{
	struct bytes b;
	if (!json_in_text(&d->in, &b))
		return false;
	uint8_t *p = arena_alloc(&d->l->mem, b.n);
	if (!p)
		return no_memory(d);
	memcpy(p, b.p, b.n);
	*out = BYTES(p, b.n);
	return true;
}

struct axis_in {
	uint64_t at, dim, of;
	struct bytes by;
	int kind, sem;
	uint32_t seen;
};

enum { A_AT, A_BY, A_DIM, A_KIND, A_OF, A_SEM };
#define HAS(a, f) ((a)->seen >> (f)&1)

static bool axis_field(struct json_in *r, int f, struct axis_in *a)
{
	switch (f) {
	case A_AT:
		return json_in_u64(r, &a->at);
	case A_BY:
		return json_in_text(r, &a->by);
	case A_DIM:
		return json_in_u64(r, &a->dim);
	case A_KIND:
		return place_read_axis_word(r, true, &a->kind);
	case A_OF:
		return json_in_u64(r, &a->of);
	default:
		return place_read_axis_word(r, false, &a->sem);
	}
}

/* Which keys go with which semantics. */
static bool axis_ok(struct json_in *r, const struct axis_in *a)
{
	bool by = HAS(a, A_BY), of = HAS(a, A_OF), at = HAS(a, A_AT);
	if (HAS(a, A_DIM) != (a->sem == SEM_SPLIT))
		return json_in_fail(r, RULE_LAYOUT_RULE,
				    "a split axis has the key dim, no other");
	if (a->sem == SEM_SPLIT && a->kind != AX_EP && a->kind != AX_TP)
		return json_in_fail(r, RULE_AXIS_SPLIT_KIND, "%s may not be split",
				    axis_names[a->kind]);
	if ((by || of || at) && a->sem != SEM_OWNERSHIP)
		return json_in_fail(r, RULE_LAYOUT_RULE, "at, by and of are for owners");
	if (by != of || (by && at) || (of && !a->of))
		return json_in_fail(r, RULE_LAYOUT_RULE,
				    "at, or by and of (at least 1), or none of the three");
	if (by && !bytes_eq(a->by, BYTES_STR("layer")) && !bytes_eq(a->by, BYTES_STR("expert")))
		return json_in_fail(r, RULE_LAYOUT_RULE, "by: layer or expert");
	return true;
}

static bool read_axis(struct reader *d, struct layout_rule *rule)
{
	static const struct json_field fields[] = {
		JSON_FIELD_OPT("at"), JSON_FIELD_OPT("by"), JSON_FIELD_OPT("dim"),
		JSON_FIELD("kind"),   JSON_FIELD_OPT("of"), JSON_FIELD("semantics"),
	};
	struct json_obj o;
	struct axis_in a = { 0 };
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!axis_field(&d->in, f, &a))
			return false;
	a.seen = o.seen;
	if (!o.whole || !axis_ok(&d->in, &a))
		return false;
	struct layout_axis *x = &rule->axes[a.kind];
	if (x->sem != SEM_NONE)
		return json_in_fail(&d->in, RULE_AXIS_DUPLICATE_KIND, "%s again",
				    axis_names[a.kind]);
	*x = (struct layout_axis){ .sem = (uint8_t)a.sem,
				   .by = HAS(&a, A_AT)		   ? 'a'
					 : HAS(&a, A_BY) && a.by.n ? a.by.p[0]
								   : 0 };
	x->n = a.sem == SEM_SPLIT ? a.dim : x->by == 'a' ? a.at : a.of;
	return true;
}

static bool read_axes(struct reader *d, struct layout_rule *rule)
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!read_axis(d, rule))
			return false;
	return a.whole;
}

/* A block by number needs a pattern that says the number. */
static bool rule_ok(struct reader *d, const struct layout_rule *r)
{
	bool layer, expert;
	if (!pattern_ok(r->match, &layer, &expert))
		return json_in_fail(
			&d->in, RULE_LAYOUT_RULE,
			"match: {layer} and {expert}, each once at most, * and text");
	for (int k = 0; k < AX_N; k++)
		if ((r->axes[k].by == 'l' && !layer) || (r->axes[k].by == 'e' && !expert))
			return json_in_fail(&d->in, RULE_LAYOUT_RULE,
					    "axis %s: the pattern has no such number",
					    axis_names[k]);
	return true;
}

static bool read_rule(struct reader *d)
{
	static const struct json_field fields[] = { JSON_FIELD("axes"), JSON_FIELD("match") };
	struct json_obj o;
	struct layout *l = d->l;
	if (!grow(d, &l->rules, &d->cap_rules, l->n_rules, LAYOUT_RULES_MAX,
		  sizeof(*l->rules)) ||
	    !json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	struct layout_rule *r = &l->rules[l->n_rules++];
	*r = (struct layout_rule){ 0 };
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (f == 0 ? !read_axes(d, r) : !text(d, &r->match))
			return false;
	return o.whole && rule_ok(d, r);
}

static bool read_file(struct reader *d)
{
	struct layout *l = d->l;
	return grow(d, &l->files, &d->cap_files, l->n_files, LAYOUT_FILES_MAX,
		    sizeof(*l->files)) &&
	       text(d, &l->files[l->n_files++]);
}

static bool read_member(struct reader *d)
{
	static const struct json_field fields[] = { JSON_FIELD("participant_id"),
						    JSON_FIELD("rank") };
	struct json_obj o;
	struct layout *l = d->l;
	if (!grow(d, &l->members, &d->cap_members, l->n_members, 1u << 24,
		  sizeof(*l->members)) ||
	    !json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	struct layout_member *m = &l->members[l->n_members++];
	*m = (struct layout_member){ 0 };
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (f == 0 ? !text(d, &m->id) : !place_read_rank(&d->in, &m->rank))
			return false;
	return o.whole;
}

static bool read_list(struct reader *d, bool (*one)(struct reader *d))
{
	struct json_arr a;
	if (!json_in_arr(&d->in, &a))
		return false;
	while (json_in_item(&d->in, &a))
		if (!one(d))
			return false;
	return a.whole;
}

static bool read_topology(struct reader *d)
{
	static const struct json_field fields[] = {
		JSON_FIELD("dp_size"), JSON_FIELD("ep_size"), JSON_FIELD("participants"),
		JSON_FIELD("pp_size"), JSON_FIELD("tp_size"),
	};
	static const uint8_t kind[] = { AX_DP, AX_EP, AX_N, AX_PP, AX_TP };
	struct json_obj o;
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (f == 2 ? !read_list(d, read_member)
			   : !json_in_u64(&d->in, &d->l->size[kind[f]]))
			return false;
	return o.whole;
}

enum {
	L_FILES,
	L_FINGERPRINT,
	L_SET,
	L_RESOURCE,
	L_REVISION,
	L_RULES,
	L_TOPOLOGY,
	L_GENERATION
};

static bool top_field(struct reader *d, int f)
{
	struct layout *l = d->l;
	switch (f) {
	case L_FILES:
		return read_list(d, read_file);
	case L_FINGERPRINT:
		return text(d, &l->fingerprint);
	case L_SET:
		return text(d, &l->set_id);
	case L_RESOURCE:
		return text(d, &l->resource_id);
	case L_REVISION:
		return text(d, &l->revision);
	case L_RULES:
		return read_list(d, read_rule);
	case L_TOPOLOGY:
		return read_topology(d);
	default:
		return json_in_u64(&d->in, &l->generation);
	}
}

static bool read_top(struct reader *d)
{
	static const struct json_field fields[] = {
		JSON_FIELD("files"),
		JSON_FIELD("layout_fingerprint"),
		JSON_FIELD("placement_set_id"),
		JSON_FIELD("resource_id"),
		JSON_FIELD("revision"),
		JSON_FIELD("rules"),
		JSON_FIELD("topology"),
		JSON_FIELD("weight_generation"),
	};
	struct json_obj o;
	if (!json_in_obj(&d->in, &o, fields, ARRAY_LEN(fields)))
		return false;
	for (int f; (f = json_in_key(&d->in, &o)) >= 0;)
		if (!top_field(d, f))
			return false;
	return o.whole && json_in_close(&d->in);
}

enum err layout_read(struct bytes in, const struct place_limits *lim, struct reject *why,
		     struct layout **out)
{
	struct reader d = { .why = why, .lim = *lim, .l = calloc(1, sizeof(*d.l)) };
	*why = (struct reject){ 0 };
	if (!d.l)
		return ERR_NO_MEMORY;
	d.lim.json.cancel = lim->cancel;
	d.l->mem = ARENA_INIT(lim->memory);
	if (json_in_open(&d.in, in, &d.lim.json, &d.l->mem, why) && read_top(&d))
		*out = d.l;
	else
		layout_free(d.l);
	return rule_err(why->rule);
}

void layout_free(struct layout *l)
{
	if (!l)
		return;
	free(l->files);
	free(l->rules);
	free(l->members);
	arena_fini(&l->mem);
	free(l);
}
