/* SPDX-License-Identifier: Apache-2.0 */
/* Where values come from: the command line, the environment, a file. Strict (I2). */
#include "base/conf_priv.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum name_kind { NAME_PLAIN, NAME_ENV, NAME_FLAG };

typedef char name_text[CONF_NAME_MAX + 8];

/* A name of it; false when it has none of that rank. */
static bool write_name(const struct conf *c, const struct conf_item *it, enum conf_rank rank,
		       enum name_kind kind, name_text out)
{
	const char *name = conf_name_of(it, rank);
	if (!name[0])
		return false;
	switch (kind) {
	case NAME_PLAIN:
		snprintf(out, sizeof(name_text), "%s", name);
		break;
	case NAME_ENV:
		conf_env_name(name, out);
		break;
	case NAME_FLAG:
		conf_flag_name(c, name, out);
		break;
	}
	return true;
}

static const enum conf_rank ranks[] = { CONF_SHARED, CONF_OWN_NAME };

static struct conf_item *find_as(const struct conf *c, const char *name, enum name_kind kind,
				 enum conf_rank *rank)
{
	name_text at;
	for (size_t r = 0; r < ARRAY_LEN(ranks); r++)
		for (size_t i = 0; i < c->n; i++) {
			*rank = ranks[r];
			if (write_name(c, &c->items[i], *rank, kind, at) &&
			    strcmp(at, name) == 0)
				return &c->items[i];
		}
	return NULL;
}

/* The known name nearest to this one goes into out; false when none is near. */
static bool suggest(const struct conf *c, const char *name, enum name_kind kind, name_text out)
{
	const char *best = NULL;
	size_t room = c->n * ARRAY_LEN(ranks) + 1, n = 0;
	name_text *texts = calloc(room, sizeof(*texts));
	const char **names = calloc(room, sizeof(*names));
	for (size_t r = 0; texts && names && r < ARRAY_LEN(ranks); r++)
		for (size_t i = 0; i < c->n; i++)
			if (write_name(c, &c->items[i], ranks[r], kind, texts[n])) {
				names[n] = texts[n];
				n++;
			}
	if (texts && names)
		best = conf_nearest(name, names, n);
	if (best)
		snprintf(out, sizeof(name_text), "%s", best);
	free(names);
	free(texts);
	return best != NULL;
}

static enum err unknown(const struct conf *c, const char *name, enum name_kind kind,
			const char *origin, struct why *w)
{
	static const char *const what[] = { "setting", "setting", "flag" };
	char shown[CONF_NAME_MAX];
	name_text near;
	conf_quote(NULL, name, shown, sizeof(shown));
	if (suggest(c, name, kind, near))
		return why_set(w, ERR_INVALID_PARAMS, "%s (%s): no such %s; did you mean %s?",
			       shown, origin, what[kind], near);
	return why_set(w, ERR_INVALID_PARAMS,
		       "%s (%s): no such %s; `pomelo config` lists what there is", shown,
		       origin, what[kind]);
}

/* ---- assignments: --set and files ---- */

static bool name_byte(char b)
{
	return (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9') || b == '_' || b == '.';
}

/* Cuts "name = value" in place; false when it has not that shape. */
static bool cut_assignment(char *text, char **name, char **value)
{
	char *p = text + strspn(text, " \t");
	*name = p;
	while (name_byte(*p))
		p++;
	char *end = p;
	p += strspn(p, " \t");
	if (end == *name || *p != '=')
		return false;
	*end = '\0';
	p++;
	*value = p + strspn(p, " \t");
	return true;
}

static enum err assign_named(struct conf *c, const char *name, const char *value,
			     enum conf_origin kind, const char *origin, struct why *w)
{
	enum conf_rank rank;
	struct conf_item *it = conf_find(c, name, &rank);
	if (it)
		return conf_assign(it, value, rank, kind, origin, w);
	if (conf_elsewhere(c, name)) {
		enum err e = conf_left_see(c, name, origin);
		return e ? why_set(w, e, "%s: no memory left", name) : e;
	}
	return unknown(c, name, NAME_PLAIN, origin, w);
}

static enum err set_copy(struct conf *c, const char *shown, char *copy, struct why *w)
{
	char *name, *value;
	if (!cut_assignment(copy, &name, &value))
		return why_set(w, ERR_INVALID_PARAMS,
			       "--set %s: not an assignment; write --set master.beat_ms=500",
			       shown);
	return assign_named(c, name, value, CONF_FLAG, "flag --set", w);
}

enum err conf_set(struct conf *c, const char *assignment, struct why *w)
{
	char shown[80];
	conf_quote(NULL, assignment, shown, sizeof(shown));
	if (strlen(assignment) >= CONF_VALUE_MAX)
		return why_set(w, ERR_INVALID_PARAMS,
			       "--set %s: longer than %d bytes; put less into one setting",
			       shown, CONF_VALUE_MAX);
	char *copy = strdup(assignment);
	if (!copy)
		return why_set(w, ERR_NO_MEMORY, "--set: no memory left");
	enum err e = set_copy(c, shown, copy, w);
	free(copy);
	return e;
}

/* ---- command line ---- */

/* A path given by hand counts from the working folder. */
static enum err assign_flag(struct conf_item *it, const char *value, const char *origin,
			    struct why *w)
{
	char cwd[PATH_MAX], full[2 * PATH_MAX + 2];
	if (it->row->type == CONF_path && value[0] != '/' && value[0] != '\0' &&
	    strlen(value) < PATH_MAX && getcwd(cwd, sizeof(cwd))) {
		snprintf(full, sizeof(full), "%s/%s", cwd, value);
		value = full;
	}
	enum conf_rank rank = it->own_name[0] ? CONF_OWN_FLAG : CONF_SHARED;
	return conf_assign(it, value, rank, CONF_FLAG, origin, w);
}

/* One flag with its value cut off (value NULL: none was joined with =). used counts arguments. */
static enum err take_flag(struct conf *c, const char *flag, const char *value, const char *next,
			  int *used, struct why *w)
{
	char origin[CONF_NAME_MAX + 16];
	snprintf(origin, sizeof(origin), "flag %s", flag);
	struct conf_alias *a = conf_alias_find(c, flag);
	enum conf_rank rank;
	struct conf_item *it = a ? a->item : find_as(c, flag, NAME_FLAG, &rank);
	bool is_set = strcmp(flag, "--set") == 0;
	if (!it && !a && !is_set)
		return unknown(c, flag, NAME_FLAG, "command line", w);
	if (!value && it && it->row->type == CONF_bool)
		value = "true";
	/* a foreign flag that fills nothing has no type to tell: a switch, unless a value follows */
	if (!value && a && !it && (!next || strncmp(next, "--", 2) == 0))
		value = "true";
	if (!value) {
		value = next;
		(*used)++;
	}
	if (!value)
		return why_set(w, ERR_INVALID_PARAMS, "%s: a value is missing; write %s=VALUE",
			       flag, flag);
	if (is_set)
		return conf_set(c, value, w);
	if (!a)
		return assign_flag(it, value, origin, w);
	enum err e = conf_alias_see(a, value);
	return e ? why_set(w, e, "%s: no memory left", flag) : e;
}

enum err conf_flags(struct conf *c, int argc, char *const *argv, struct why *w)
{
	for (int i = 0; i < argc;) {
		const char *arg = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
		char flag[CONF_NAME_MAX + 8], shown[80];
		size_t n = strcspn(arg, "=");
		int used = 1;
		conf_quote(NULL, arg, shown, sizeof(shown));
		if (strncmp(arg, "--", 2) != 0 || arg[2] == '\0' || n >= sizeof(flag))
			return why_set(w, ERR_INVALID_PARAMS,
				       "%s: not a flag; flags begin with --, --help lists them",
				       shown);
		snprintf(flag, sizeof(flag), "%.*s", (int)n, arg);
		enum err e = take_flag(c, flag, arg[n] ? arg + n + 1 : NULL, next, &used, w);
		if (e)
			return e;
		i += used;
	}
	return ERR_NONE;
}

/* ---- environment ---- */

/*
 * POMELO_ names that need not be settings of this schema: of tests, where the tool finds the
 * daemons, and where a cluster is (answers.md): programs without these rows take them as flags.
 */
static bool env_reserved(const char *name)
{
	static const char *const names[] = { "POMELO_BINDIR", "POMELO_DATA", "POMELO_RUN_DIR",
					     "POMELO_SECRET_FILE" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return strncmp(name, "POMELO_TEST_", 12) == 0;
}

/* POMELO_OWNER_X seen by the master: as owner.x. */
static bool env_elsewhere(const struct conf *c, const char *name)
{
	char full[CONF_NAME_MAX];
	size_t n = 0;
	bool cut = false;
	for (name += strlen("POMELO_"); *name && n + 1 < sizeof(full); name++) {
		full[n++] = !cut && *name == '_' ? '.' : (char)tolower((unsigned char)*name);
		cut = cut || *name == '_';
	}
	full[n] = '\0';
	return conf_elsewhere(c, full);
}

static enum err take_env(struct conf *c, const char *name, const char *value, struct why *w)
{
	char origin[CONF_NAME_MAX + 16];
	struct conf_alias *a = conf_alias_find(c, name);
	if (a)
		return conf_alias_see(a, value);
	if (strncmp(name, "MOONCAKE_", 9) == 0)
		return conf_unlisted_see(c, name, strlen(name));
	if (strncmp(name, "POMELO_", 7) != 0)
		return ERR_NONE;
	snprintf(origin, sizeof(origin), "env %s", name);
	enum conf_rank rank;
	struct conf_item *it = find_as(c, name, NAME_ENV, &rank);
	if (it)
		return conf_assign(it, value, rank, CONF_ENV, origin, w);
	if (env_reserved(name))
		return ERR_NONE;
	if (env_elsewhere(c, name))
		return conf_left_see(c, name, "environment");
	return unknown(c, name, NAME_ENV, "environment", w);
}

enum err conf_env(struct conf *c, char *const *envp, struct why *w)
{
	for (; envp && *envp; envp++) {
		char name[CONF_NAME_MAX + 8];
		size_t n = strcspn(*envp, "=");
		if ((*envp)[n] != '=' || n == 0)
			continue;
		/* a longer one is cut: no name of ours is as long, so it is unknown all the same */
		snprintf(name, sizeof(name), "%.*s", (int)MIN_OF(n, sizeof(name) - 1), *envp);
		enum err e = take_env(c, name, *envp + n + 1, w);
		if (e)
			return why_set(w, e, "%s (environment): %s", name, err_text(e));
	}
	return ERR_NONE;
}

/* ---- file ---- */

struct lines {
	struct conf *c;
	const char *name; /* of the file */
	unsigned line;
	struct why *w;
	char origin[112];
};

static enum err bad_line(struct lines *l, const char *problem)
{
	return why_set(l->w, ERR_INVALID_PARAMS,
		       "%s: %s; a line is `name = value` or # comment", l->origin, problem);
}

/* "..." with \" and \\ inside; nothing but a comment after it. Unquotes in place. */
static const char *unquote(char *value)
{
	char *to = value, *p = value + 1;
	for (; *p && *p != '"'; p++) {
		if (*p == '\\' && (p[1] == '"' || p[1] == '\\'))
			p++;
		*to++ = *p;
	}
	if (*p != '"')
		return "a quote is not closed";
	p += 1 + strspn(p + 1, " \t");
	*to = '\0';
	return *p == '\0' || *p == '#' ? NULL : "text after the closing quote";
}

/* Ends the value before a comment and trailing blanks. */
static void trim_value(char *value)
{
	for (char *p = value; *p; p++)
		if (*p == '#' && (p == value || p[-1] == ' ' || p[-1] == '\t')) {
			*p = '\0';
			break;
		}
	for (size_t n = strlen(value); n && strchr(" \t", value[n - 1]); n--)
		value[n - 1] = '\0';
}

static enum err take_line(struct lines *l, char *text)
{
	char *name, *value, *first = text + strspn(text, " \t");
	if (*first == '\0' || *first == '#')
		return ERR_NONE;
	if (!cut_assignment(text, &name, &value))
		return bad_line(l, "not an assignment");
	const char *problem = NULL;
	if (*value == '"')
		problem = unquote(value);
	else
		trim_value(value);
	if (problem)
		return bad_line(l, problem);
	enum conf_rank rank;
	struct conf_item *it = conf_find(l->c, name, &rank);
	unsigned *line = !it ? NULL : rank == CONF_OWN_NAME ? &it->own_line : &it->line;
	if (line && *line)
		return why_set(l->w, ERR_INVALID_PARAMS,
			       "%s (%s): set already in line %u; keep one of the two", name,
			       l->origin, *line);
	if (line)
		*line = l->line;
	return assign_named(l->c, name, value, CONF_FILE, l->origin, l->w);
}

/* The end of a long path says more than its beginning. */
static void set_origin(struct lines *l)
{
	size_t n = strlen(l->name);
	bool cut = n > 80;
	snprintf(l->origin, sizeof(l->origin), "%s%s:%u", cut ? "..." : "",
		 cut ? l->name + n - 80 : l->name, l->line);
}

/* text: one line without its end; copy: room for it and a NUL. */
static enum err copy_line(struct lines *l, struct bytes text, char *copy)
{
	if (text.n >= CONF_VALUE_MAX)
		return bad_line(l, "longer than 8191 bytes");
	if (memchr(text.p, '\0', text.n))
		return bad_line(l, "a NUL byte");
	memcpy(copy, text.p, text.n);
	if (text.n > 0 && copy[text.n - 1] == '\r')
		text.n--;
	copy[text.n] = '\0';
	return take_line(l, copy);
}

enum err conf_parse(struct conf *c, struct bytes text, const char *name, struct why *w)
{
	struct lines l = { .c = c, .name = name, .w = w };
	enum err e = ERR_NONE;
	char *copy = malloc(CONF_VALUE_MAX);
	if (!copy)
		return why_set(w, ERR_NO_MEMORY, "%s: no memory left", name);
	for (size_t i = 0; i < c->n; i++)
		c->items[i].line = c->items[i].own_line = 0;
	while (text.n > 0 && !e) {
		const uint8_t *end = memchr(text.p, '\n', text.n);
		size_t n = end ? (size_t)(end - text.p) : text.n, used = end ? n + 1 : n;
		l.line++;
		set_origin(&l);
		e = copy_line(&l, BYTES(text.p, n), copy);
		text = BYTES(text.p + used, text.n - used);
	}
	free(copy);
	return e;
}

/* At most CONF_FILE_MAX bytes of fd. */
static enum err read_all(int fd, const char *path, struct buf *b, struct why *w)
{
	for (;;) {
		uint8_t *room = buf_room(b, 65536);
		if (!room)
			return why_set(w, buf_err(b),
				       "%s: larger than %d bytes, a settings file is not", path,
				       CONF_FILE_MAX);
		ssize_t r = read(fd, room, 65536);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return why_set(w, err_from_errno(errno), "%s: cannot be read: %s", path,
				       strerror(errno));
		if (r == 0)
			return ERR_NONE;
		buf_advance(b, (size_t)r);
	}
}

enum err conf_file(struct conf *c, const char *path, bool must_exist, struct why *w)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT && !must_exist)
		return ERR_NONE;
	if (fd < 0)
		return why_set(w, err_from_errno(errno),
			       "%s: cannot be opened: %s; check the path and its mode", path,
			       strerror(errno));
	struct buf b = BUF_INIT(CONF_FILE_MAX + 65536);
	enum err e = read_all(fd, path, &b, w);
	close(fd);
	if (!e)
		e = conf_parse(c, buf_bytes(&b), path, w);
	buf_fini(&b);
	return e;
}
