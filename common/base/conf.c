/* SPDX-License-Identifier: Apache-2.0 */
/* The store: one item a row, who may overwrite whom, what is shown. */
#include "base/conf_priv.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void conf_full_name(const char *service, const char *row_name, char out[CONF_NAME_MAX])
{
	int n = snprintf(out, CONF_NAME_MAX, "%s%s", row_name[0] == '.' ? service : "",
			 row_name);
	assert(n > 0 && n < CONF_NAME_MAX);
	(void)n;
}

struct conf_item *conf_find(const struct conf *c, const char *full_name, enum conf_rank *rank)
{
	*rank = CONF_SHARED;
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->items[i].name, full_name) == 0)
			return &c->items[i];
	*rank = CONF_OWN_NAME;
	for (size_t i = 0; i < c->n; i++)
		if (c->items[i].own_name[0] && strcmp(c->items[i].own_name, full_name) == 0)
			return &c->items[i];
	return NULL;
}

const char *conf_name_of(const struct conf_item *it, enum conf_rank rank)
{
	return rank == CONF_OWN_NAME ? it->own_name : it->name;
}

/* Name as in a row or in full; one that is not there is our own mistake. */
static struct conf_item *must_find(const struct conf *c, const char *name)
{
	char full[CONF_NAME_MAX];
	enum conf_rank rank;
	conf_full_name(c->schema->service, name, full);
	struct conf_item *it = conf_find(c, full, &rank);
	assert(it && rank == CONF_SHARED);
	return it;
}

void conf_quote(const struct conf_row *r, const char *text, char *out, size_t cap)
{
	if (r && (r->flags & CONF_SECRET)) {
		snprintf(out, cap, "(hidden)");
		return;
	}
	size_t n = 0;
	for (; text[n] && n + 4 < cap; n++)
		out[n] = iscntrl((unsigned char)text[n]) ? '?' : text[n];
	snprintf(out + n, cap - n, "%s", text[n] ? "..." : "");
}

/* I5, then I1. */
static bool weaker(const struct conf_item *it, enum conf_rank rank, enum conf_origin kind)
{
	bool own = rank != CONF_SHARED, was_own = it->rank != CONF_SHARED;
	return own != was_own ? was_own : kind < it->kind;
}

enum err conf_store(struct conf_item *it, struct conf_value v, enum conf_rank rank,
		    enum conf_origin kind, const char *origin)
{
	if (weaker(it, rank, kind)) {
		conf_value_free(it->row, &v);
		return ERR_NONE;
	}
	char *copy = origin ? strdup(origin) : NULL;
	if (origin && !copy) {
		conf_value_free(it->row, &v);
		return ERR_NO_MEMORY;
	}
	conf_value_free(it->row, &it->value);
	free(it->origin);
	it->value = v;
	it->kind = kind;
	it->rank = rank;
	it->origin = copy;
	conf_value_put(it->row, &it->value, it->at);
	return ERR_NONE;
}

static const char *remedy(enum conf_origin kind)
{
	switch (kind) {
	case CONF_FILE:
		return "correct the line or remove it";
	case CONF_ENV:
	case CONF_FOREIGN:
		return "correct the variable or unset it";
	case CONF_FLAG:
		return "correct the flag or drop it";
	case CONF_DEFAULT:
		break;
	}
	return "set it";
}

/* "NAME = VALUE (ORIGIN): PROBLEM; allowed RANGE; REMEDY" */
static enum err refuse(const struct conf_item *it, const char *name, struct conf_bad bad,
		       const char *text, enum conf_origin kind, const char *origin,
		       struct why *w)
{
	char value[80];
	conf_quote(it->row, text, value, sizeof(value));
	struct buf range = BUF_INIT(512);
	conf_range_print(it->row, &range);
	if (range.n == 0)
		buf_printf(&range, "%s", conf_type_text(it->row->type));
	why_set(w, bad.err, "%s = %s (%s): %s; allowed %.*s; %s", name, value, origin,
		bad.problem, (int)MIN_OF(range.n, (size_t)100), (const char *)range.p,
		remedy(kind));
	buf_fini(&range);
	return bad.err;
}

enum err conf_assign(struct conf_item *it, const char *text, enum conf_rank rank,
		     enum conf_origin kind, const char *origin, struct why *w)
{
	struct conf_value v;
	struct conf_bad bad = conf_value_parse(it->row, text, &v);
	if (bad.problem)
		return refuse(it, conf_name_of(it, rank), bad, text, kind, origin, w);
	enum err e = conf_store(it, v, rank, kind, origin);
	return e ? why_set(w, e, "%s: no memory left", it->name) : e;
}

/* Does any row of ours have a name in this section? */
static bool own_section(const struct conf *c, const char *section, size_t n)
{
	for (size_t i = 0; i < c->n; i++)
		if (strncmp(c->items[i].name, section, n) == 0 && c->items[i].name[n] == '.')
			return true;
	return n == strlen(c->schema->service) && memcmp(c->schema->service, section, n) == 0;
}

bool conf_section_known(const char *section, size_t n)
{
	static const char *const sections[] = {
#define SECTION(name) #name,
		CONF_SECTIONS(SECTION)
#undef SECTION
	};
	for (size_t i = 0; i < ARRAY_LEN(sections); i++)
		if (strlen(sections[i]) == n && memcmp(sections[i], section, n) == 0)
			return true;
	return false;
}

bool conf_elsewhere(const struct conf *c, const char *full_name)
{
	size_t n = strcspn(full_name, ".");
	if (full_name[n] != '.' || full_name[n + 1] == '\0')
		return false;
	return conf_section_known(full_name, n) && !own_section(c, full_name, n);
}

enum err conf_left_see(struct conf *c, const char *name, const char *origin)
{
	char shown[CONF_NAME_MAX], text[2 * CONF_NAME_MAX];
	if (c->n_left == CONF_LEFT_MAX)
		return ERR_NONE;
	conf_quote(NULL, name, shown, sizeof(shown));
	snprintf(text, sizeof(text), "%s (%.70s)", shown, origin);
	char *copy = strdup(text);
	if (!copy)
		return ERR_NO_MEMORY;
	c->left[c->n_left++] = copy;
	return ERR_NONE;
}

size_t conf_left(const struct conf *c, const char *const **out)
{
	*out = c->left;
	return c->n_left;
}

void conf_env_name(const char *full_name, char out[CONF_NAME_MAX + 8])
{
	int n = snprintf(out, CONF_NAME_MAX + 8, "POMELO_%s", full_name);
	for (int i = 0; i < n; i++)
		out[i] = out[i] == '.' ? '_' : (char)toupper((unsigned char)out[i]);
}

void conf_flag_name(const struct conf *c, const char *full_name, char out[CONF_NAME_MAX + 8])
{
	size_t own = strlen(c->schema->service);
	if (strncmp(full_name, c->schema->service, own) == 0 && full_name[own] == '.')
		full_name += own + 1;
	int n = snprintf(out, CONF_NAME_MAX + 8, "--%s", full_name);
	for (int i = 0; i < n; i++)
		if (out[i] == '.' || out[i] == '_')
			out[i] = '-';
}

/* I5: the name in this service's section of a setting that has none of a section's. */
static void init_own_name(struct conf_item *it, const struct conf_schema *s)
{
	const char *section = s->section ? s->section : s->service;
	size_t n = strlen(section);
	if (!conf_section_known(section, n) || it->row->name[0] == '.' ||
	    (strncmp(it->name, section, n) == 0 && it->name[n] == '.'))
		return;
	int len = snprintf(it->own_name, sizeof(it->own_name), "%s.%s", section, it->name);
	assert(len < CONF_NAME_MAX);
	(void)len;
}

static enum err init_item(struct conf_item *it, const struct conf_schema *s,
			  const struct conf_row *row, void *at)
{
	it->row = row;
	it->at = at;
	conf_full_name(s->service, row->name, it->name);
	init_own_name(it, s);
	if (row->def[0] == '\0') { /* the zero of the type, which may lie outside lo..hi */
		if (row->type == CONF_str || row->type == CONF_path)
			it->value.text = strdup("");
		if ((row->type == CONF_str || row->type == CONF_path) && !it->value.text)
			return ERR_NO_MEMORY;
		conf_value_put(row, &it->value, at);
		return ERR_NONE;
	}
	struct conf_bad bad = conf_value_parse(row, row->def, &it->value);
	assert(!bad.problem || bad.err == ERR_NO_MEMORY);
	if (bad.problem)
		return bad.err;
	conf_value_put(row, &it->value, at);
	return ERR_NONE;
}

static enum err init_items(struct conf *c, void *at)
{
	for (size_t p = 0, n = 0; p < c->schema->n_parts; p++) {
		const struct conf_part *part = &c->schema->parts[p];
		for (size_t i = 0; i < part->n; i++, n++) {
			void *field = (char *)at + part->base + part->rows[i].offset;
			enum err e = init_item(&c->items[n], c->schema, &part->rows[i], field);
			if (e)
				return e;
		}
	}
	return ERR_NONE;
}

static void init_aliases(struct conf *c)
{
	size_t n = 0;
	for (size_t p = 0; p < c->schema->n_parts; p++)
		for (size_t i = 0; i < c->schema->parts[p].n_foreign; i++) {
			const struct conf_foreign *f = &c->schema->parts[p].foreign[i];
			c->aliases[n++] = (struct conf_alias){
				.f = f,
				.item = *f->setting ? must_find(c, f->setting) : NULL,
			};
		}
}

enum err conf_new(const struct conf_schema *s, void *at, struct conf **out)
{
	struct conf *c = calloc(1, sizeof(*c));
	if (!c)
		return ERR_NO_MEMORY;
	c->schema = s;
	c->at = at;
	for (size_t i = 0; i < s->n_parts; i++) {
		c->n += s->parts[i].n;
		c->n_aliases += s->parts[i].n_foreign;
	}
	c->items = calloc(c->n + 1, sizeof(*c->items));
	c->aliases = calloc(c->n_aliases + 1, sizeof(*c->aliases));
	c->notices = calloc(c->n_aliases + 1, sizeof(*c->notices));
	if (!c->items || !c->aliases || !c->notices || init_items(c, at) != ERR_NONE) {
		conf_free(c);
		return ERR_NO_MEMORY;
	}
	init_aliases(c);
	*out = c;
	return ERR_NONE;
}

void conf_free(struct conf *c)
{
	if (!c)
		return;
	for (size_t i = 0; c->items && i < c->n; i++) {
		if (c->items[i].row)
			conf_value_free(c->items[i].row, &c->items[i].value);
		free(c->items[i].origin);
	}
	for (size_t i = 0; c->aliases && i < c->n_aliases; i++)
		free(c->aliases[i].value);
	for (size_t i = 0; i < c->n_notices; i++)
		free((void *)c->notices[i].text);
	for (size_t i = 0; i < c->n_unlisted; i++)
		free((void *)c->unlisted[i]);
	for (size_t i = 0; i < c->n_left; i++)
		free((void *)c->left[i]);
	free(c->items);
	free(c->aliases);
	free(c->notices);
	free(c->shown_value);
	free(c->shown_range);
	free(c);
}

enum err conf_end(struct conf *c, struct why *w)
{
	enum err e = conf_foreign_resolve(c);
	if (e)
		return why_set(w, e, "settings: no memory left");
	return c->schema->check ? c->schema->check(c, c->at, w) : ERR_NONE;
}

static const char *origin_text(const struct conf_item *it)
{
	return it->origin ? it->origin : "default";
}

/* Owned text of the item's value, NULL without memory. */
static char *value_text(const struct conf_item *it)
{
	struct buf b = BUF_INIT(CONF_VALUE_MAX * 2);
	bool secret = it->row->flags & CONF_SECRET;
	if (!secret)
		conf_value_print(it->row, &it->value, &b);
	else if (it->kind != CONF_DEFAULT)
		buf_printf(&b, "(set, not shown)");
	buf_put(&b, "", 1);
	if (buf_err(&b)) {
		buf_fini(&b);
		return NULL;
	}
	return (char *)b.p;
}

enum err conf_fail(struct conf *c, struct why *w, const char *name, const char *fmt, ...)
{
	const struct conf_item *it = must_find(c, name);
	char text[200], value[80];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	AUTO_FREE char *shown = value_text(it);
	conf_quote(it->row, shown ? shown : "", value, sizeof(value));
	return why_set(w, ERR_INVALID_PARAMS, "%s = %s (%s): %s", conf_name_of(it, it->rank),
		       value, origin_text(it), text);
}

size_t conf_count(const struct conf *c)
{
	return c->n;
}

void conf_show(struct conf *c, size_t i, struct conf_shown *out)
{
	assert(i < c->n);
	const struct conf_item *it = &c->items[i];
	struct buf range = BUF_INIT(1024);
	conf_range_print(it->row, &range);
	buf_put(&range, "", 1);
	free(c->shown_value);
	free(c->shown_range);
	c->shown_value = value_text(it);
	c->shown_range = (char *)range.p;
	*out = (struct conf_shown){
		.name = conf_name_of(it, it->rank),
		.own = it->own_name,
		.value = c->shown_value ? c->shown_value : "?",
		.origin = origin_text(it),
		.range = c->shown_range ? c->shown_range : "",
		.doc = it->row->doc,
		.kind = it->kind,
		.secret = it->row->flags & CONF_SECRET,
	};
}

enum conf_origin conf_origin(const struct conf *c, const char *name)
{
	return must_find(c, name)->kind;
}

void conf_print(struct conf *c, struct buf *out)
{
	struct conf_shown s;
	int name_w = 4, value_w = 5, origin_w = 6;
	for (size_t i = 0; i < c->n; i++) {
		conf_show(c, i, &s);
		name_w = MAX_OF(name_w, (int)strlen(s.name));
		value_w = MAX_OF(value_w, MIN_OF((int)strlen(s.value), 40));
		origin_w = MAX_OF(origin_w, MIN_OF((int)strlen(s.origin), 40));
	}
	buf_printf(out, "%-*s  %-*s  %-*s  %s\n", name_w, "name", value_w, "value", origin_w,
		   "origin", "meaning");
	for (size_t i = 0; i < c->n; i++) {
		conf_show(c, i, &s);
		buf_printf(out, "%-*s  %-*s  %-*s  %s\n", name_w, s.name, value_w, s.value,
			   origin_w, s.origin, s.doc);
	}
}
