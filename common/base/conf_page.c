/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at schemas themselves: mistakes in rows, and the reference page. */
#include "base/conf_priv.h"

#include <stdio.h>
#include <string.h>

/* ---- mistakes ---- */

static enum err check_row(const struct conf_row *r, const char *full, struct why *w)
{
	struct conf_value v;
	size_t n = strlen(full);
	if (n == 0 || strspn(full, "abcdefghijklmnopqrstuvwxyz0123456789_.") != n)
		return why_set(w, ERR_INTERNAL, "%s: a name is of a-z 0-9 _ .", full);
	if (!r->doc || !*r->doc)
		return why_set(w, ERR_INTERNAL, "%s: says nothing", full);
	if (r->type == CONF_ms && (n < 3 || strcmp(full + n - 3, "_ms") != 0))
		return why_set(w, ERR_INTERNAL, "%s: the name lacks its unit, _ms", full);
	if (r->type == CONF_enum && !*r->lo)
		return why_set(w, ERR_INTERNAL, "%s: an enum without words", full);
	if (!*r->def && r->type == CONF_enum)
		return why_set(w, ERR_INTERNAL, "%s: an enum without a default", full);
	if (!*r->def)
		return ERR_NONE;
	struct conf_bad bad = conf_value_parse(r, r->def, &v);
	if (bad.problem)
		return why_set(w, ERR_INTERNAL, "%s: default %s is %s", full, r->def,
			       bad.problem);
	conf_value_free(r, &v);
	return ERR_NONE;
}

static bool known_section(const char *full)
{
	size_t n = strcspn(full, ".");
	return full[n] == '\0' || conf_section_known(full, n); /* without: "data", "host_id" */
}

/* Bounds of the type's kind, where they have to be numbers. */
static enum err check_bounds(const struct conf_row *r, const char *full, struct why *w)
{
	const struct conf_row plain = { .type = r->type == CONF_str || r->type == CONF_path ||
								r->type == CONF_list ||
								r->type == CONF_addrs
							? CONF_u64
							: r->type,
					.lo = "",
					.hi = "" };
	const char *const bounds[] = { r->lo, r->hi };
	if (r->type == CONF_enum)
		return ERR_NONE;
	for (size_t i = 0; i < 2; i++) {
		struct conf_value v;
		if (*bounds[i] && conf_value_parse(&plain, bounds[i], &v).problem)
			return why_set(w, ERR_INTERNAL, "%s: bound %s is no value of its type",
				       full, bounds[i]);
	}
	return ERR_NONE;
}

static enum err check_foreign(const struct conf *c, const struct conf_alias *a, struct why *w)
{
	const struct conf_foreign *f = a->f;
	for (const struct conf_alias *b = c->aliases; b < a; b++)
		if (strcmp(b->f->name, f->name) == 0)
			return why_set(w, ERR_INTERNAL, "%s: listed twice", f->name);
	if (!a->item && !f->note)
		return why_set(w, ERR_INTERNAL, "%s: fills nothing and says nothing", f->name);
	if (f->wrap && !strstr(f->wrap, "%s"))
		return why_set(w, ERR_INTERNAL, "%s: wrap has no %%s", f->name);
	const char *const bounds[] = { f->lo, f->hi };
	for (size_t i = 0; a->item && i < 2; i++) {
		struct conf_value v;
		if (!bounds[i])
			continue;
		if (conf_value_parse(a->item->row, bounds[i], &v).problem)
			return why_set(w, ERR_INTERNAL, "%s: bound %s is not allowed for %s",
				       f->name, bounds[i], a->item->name);
		conf_value_free(a->item->row, &v);
	}
	return ERR_NONE;
}

/* A name of I5 may be a row's, which then goes first (client.masters); else it is to differ. */
static enum err check_own_name(const struct conf *c, const struct conf_item *it, struct why *w)
{
	char env[CONF_NAME_MAX + 8], other[CONF_NAME_MAX + 8];
	conf_env_name(it->own_name, env);
	for (size_t i = 0; it->own_name[0] && i < c->n; i++) {
		const char *name = c->items[i].name;
		conf_env_name(name, other);
		if (strcmp(env, other) == 0 && strcmp(it->own_name, name) != 0)
			return why_set(w, ERR_INTERNAL, "%s and %s: both are %s", name,
				       it->own_name, env);
	}
	return ERR_NONE;
}

/* Two settings may differ and still meet in the environment or on the command line. */
static enum err check_names(const struct conf *c, const struct conf_item *it, struct why *w)
{
	char env[CONF_NAME_MAX + 8], flag[CONF_NAME_MAX + 8], other[CONF_NAME_MAX + 8];
	conf_env_name(it->name, env);
	conf_flag_name(c, it->name, flag);
	if (strcmp(flag, "--set") == 0 || strcmp(flag, "--help") == 0 ||
	    strcmp(flag, "--version") == 0)
		return why_set(w, ERR_INTERNAL, "%s: %s has a meaning already", it->name, flag);
	for (const struct conf_item *b = c->items; b < it; b++) {
		conf_env_name(b->name, other);
		if (strcmp(env, other) == 0)
			return why_set(w, ERR_INTERNAL, "%s and %s: both are %s", b->name,
				       it->name, env);
		conf_flag_name(c, b->name, other);
		if (strcmp(flag, other) == 0)
			return why_set(w, ERR_INTERNAL, "%s and %s: both are %s", b->name,
				       it->name, flag);
	}
	return ERR_NONE;
}

static enum err check_all(const struct conf *c, struct why *w)
{
	for (size_t i = 0; i < c->n; i++) {
		enum err e = check_names(c, &c->items[i], w);
		if (!e)
			e = check_own_name(c, &c->items[i], w);
		if (e)
			return e;
	}
	for (size_t i = 0; i < c->n_aliases; i++) {
		enum err e = check_foreign(c, &c->aliases[i], w);
		if (e)
			return e;
	}
	return ERR_NONE;
}

/* Room for the service's struct: the rows say how far they reach. */
static size_t struct_bytes(const struct conf_schema *s)
{
	size_t n = 0;
	for (size_t p = 0; p < s->n_parts; p++)
		for (size_t i = 0; i < s->parts[p].n; i++)
			n = MAX_OF(n, s->parts[p].base + s->parts[p].rows[i].offset);
	return n + sizeof(struct conf_list);
}

enum err conf_schema_check(const struct conf_schema *s, struct why *w)
{
	char full[CONF_NAME_MAX];
	for (size_t p = 0; p < s->n_parts; p++)
		for (size_t i = 0; i < s->parts[p].n; i++) {
			const struct conf_row *r = &s->parts[p].rows[i];
			conf_full_name(s->service, r->name, full);
			if (!known_section(full))
				return why_set(w, ERR_INTERNAL, "%s: its section is not listed",
					       full);
			enum err e = check_bounds(r, full, w);
			if (!e)
				e = check_row(r, full, w);
			if (e)
				return e;
		}
	AUTO_FREE void *at = calloc(1, struct_bytes(s));
	struct conf *c;
	enum err e = at ? conf_new(s, at, &c) : ERR_NO_MEMORY;
	if (e)
		return why_set(w, e, "%s: no memory left", s->service);
	e = check_all(c, w);
	conf_free(c);
	return e;
}

/* ---- the page ---- */

/* Text in a table cell: a bar would end it. */
static void cell(struct buf *out, const char *text)
{
	for (; *text; text++)
		buf_printf(out, *text == '|' ? "\\%c" : "%c", *text);
}

struct page {
	const struct conf_schema *const *schemas;
	size_t n;
	struct buf *out;
};

static const struct conf_row *row_named(const struct conf_schema *s, const char *name)
{
	for (size_t p = 0; p < s->n_parts; p++)
		for (size_t i = 0; i < s->parts[p].n; i++)
			if (strcmp(s->parts[p].rows[i].name, name) == 0)
				return &s->parts[p].rows[i];
	return NULL;
}

/* Has it settings with its own section's name? A library or a tool may have none. */
static bool is_service(const struct conf_schema *s)
{
	for (size_t p = 0; p < s->n_parts; p++)
		for (size_t i = 0; i < s->parts[p].n; i++)
			if (s->parts[p].rows[i].name[0] == '.')
				return true;
	return false;
}

/* Is it the same setting in every service, each with a section's name in front or none? */
static bool in_all(const struct page *g, const struct conf_row *r)
{
	size_t n = 0;
	for (size_t s = 0; s < g->n; s++) {
		const struct conf_row *other = row_named(g->schemas[s], r->name);
		if (r->name[0] == '.' && !is_service(g->schemas[s]))
			continue;
		if (!other || strcmp(other->doc, r->doc) != 0)
			return false;
		n++;
	}
	return r->name[0] != '.' || n > 1;
}

/* Has a schema before the at-th an absolute name too? */
static bool seen_before(const struct page *g, size_t at, const struct conf_row *r)
{
	for (size_t s = 0; r->name[0] != '.' && s < at; s++)
		if (row_named(g->schemas[s], r->name))
			return true;
	return false;
}

/* One default, or one a service where they differ. */
static void page_default(const struct page *g, const struct conf_row *r, bool shared)
{
	const char *last = NULL, *comma = "";
	for (size_t s = 0; s < (shared ? g->n : 1); s++) {
		const struct conf_row *o = shared ? row_named(g->schemas[s], r->name) : r;
		const char *def = o ? o->def : last;
		if (!o || (last && strcmp(last, def) == 0))
			continue;
		if (*def || last) {
			buf_printf(g->out, "%s`", comma);
			cell(g->out, def);
			buf_printf(g->out, "`");
			comma = ", ";
		}
		last = def;
	}
}

static void page_row(const struct page *g, const struct conf_row *r, const char *service,
		     bool shared)
{
	char full[CONF_NAME_MAX], env[CONF_NAME_MAX + 8];
	struct buf range = BUF_INIT(1024);
	conf_full_name(service, r->name, full);
	conf_env_name(full, env);
	conf_range_print(r, &range);
	buf_put(&range, "", 1);
	buf_printf(g->out, "| `%s` | `%s` | ", full, env);
	page_default(g, r, shared);
	buf_printf(g->out, " | %s", conf_type_text(r->type));
	if (range.p && *range.p) {
		buf_printf(g->out, "; ");
		cell(g->out, (const char *)range.p);
	}
	buf_printf(g->out, " | ");
	cell(g->out, r->doc);
	buf_printf(g->out, "%s |\n", r->flags & CONF_SECRET ? " (never shown)" : "");
	buf_fini(&range);
}

/* A shared part brings its foreign names into each service. */
static bool foreign_before(const struct page *g, size_t at, const struct conf_foreign *f)
{
	for (size_t s = 0; s < at; s++)
		for (size_t p = 0; p < g->schemas[s]->n_parts; p++)
			for (size_t i = 0; i < g->schemas[s]->parts[p].n_foreign; i++) {
				const struct conf_foreign *o =
					&g->schemas[s]->parts[p].foreign[i];
				if (strcmp(o->name, f->name) == 0 &&
				    strcmp(o->setting, f->setting) == 0 && f->setting[0] != '.')
					return true;
			}
	return false;
}

static void part(struct buf *out, const char **sep)
{
	buf_printf(out, "%s", *sep);
	*sep = "; ";
}

static void page_foreign(struct buf *out, const struct conf_schema *s,
			 const struct conf_foreign *f)
{
	char full[CONF_NAME_MAX] = "";
	const char *sep = "";
	if (*f->setting)
		conf_full_name(s->service, f->setting, full);
	buf_printf(out, "| `%s` | %s%s%s | ", f->name, *full ? "`" : "",
		   *full ? full : "nothing", *full ? "`" : "");
	if (f->mul > 1) {
		part(out, &sep);
		buf_printf(out, "times %u", f->mul);
	}
	if (f->map) {
		part(out, &sep);
		cell(out, f->map);
	}
	if (f->wrap) {
		part(out, &sep);
		buf_printf(out, "becomes `%s`", f->wrap);
	}
	if (f->lo || f->hi) {
		part(out, &sep);
		buf_printf(out, "%s..%s", f->lo ? f->lo : "", f->hi ? f->hi : "");
	}
	if (f->flags & CONF_CLAMP) {
		part(out, &sep);
		buf_printf(out, "clamped");
	}
	if (f->note) {
		part(out, &sep);
		cell(out, f->note);
	}
	buf_printf(out, " |\n");
}

static const char head[] =
	"<!-- Written by `meson compile -C build pages` from the rows in the source. -->\n"
	"# Settings\n\n"
	"A setting is given, strongest first, by a flag (`--set NAME=VALUE`, or for the service\n"
	"itself `--name VALUE`: its own section left out, `-` for `.` and `_`), by the environment,\n"
	"by a line `NAME = VALUE` of `pomelo.conf`, by a foreign name of the last table, or it keeps\n"
	"its default. `pomelo config` prints each value in effect and where it comes from. A name\n"
	"that does not exist or a value out of its range stops the start; a foreign name never does.\n\n"
	"A setting that all share (`beat_ms`, `masters`, `log.level`) may be given for one of them, as\n"
	"`SERVICE.NAME` (`master.beat_ms`, `POMELO_MASTER_BEAT_MS`; `client.NAME` for the library) or\n"
	"by a flag to its process. For that one it wins over the shared setting, wherever the two are\n"
	"given; the others pass it by.\n";

static const char table_head[] = "\n| name | environment | default | value | meaning |\n"
				 "|---|---|---|---|---|\n";

/* The rows of one schema that all have, or those that they have not; the head before the first. */
static void page_rows(const struct page *g, size_t at, bool shared)
{
	const struct conf_schema *s = g->schemas[at];
	bool begun = false;
	for (size_t p = 0; p < s->n_parts; p++)
		for (size_t i = 0; i < s->parts[p].n; i++) {
			const struct conf_row *r = &s->parts[p].rows[i];
			if (in_all(g, r) != shared || (!shared && seen_before(g, at, r)))
				continue;
			if (!begun && !shared)
				buf_printf(g->out, "\n## %s\n", s->service);
			if (!begun)
				buf_printf(g->out, "%s", table_head);
			begun = true;
			page_row(g, r, shared ? "SERVICE" : s->service, shared);
		}
}

void conf_page(const struct conf_schema *const *schemas, size_t n, struct buf *out)
{
	const struct page g = { .schemas = schemas, .n = n, .out = out };
	buf_printf(out, "%s\n## All services\n\n`SERVICE` is one of:", head);
	for (size_t s = 0; s < n; s++)
		if (is_service(schemas[s]))
			buf_printf(out, " `%s`", schemas[s]->service);
	buf_printf(out, ". Defaults that differ stand in that order.\n");
	for (size_t s = 0; s < n; s++) {
		if (s == 0)
			page_rows(&g, s, true);
		page_rows(&g, s, false);
	}
	buf_printf(out,
		   "\n## Names of other systems\n\n| name | fills | how |\n|---|---|---|\n");
	for (size_t s = 0; s < n; s++)
		for (size_t p = 0; p < schemas[s]->n_parts; p++)
			for (size_t i = 0; i < schemas[s]->parts[p].n_foreign; i++) {
				const struct conf_foreign *f = &schemas[s]->parts[p].foreign[i];
				if (!foreign_before(&g, s, f))
					page_foreign(out, schemas[s], f);
			}
}
