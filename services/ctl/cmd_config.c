/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo config [NAME]`: each setting's value in effect and where it comes from. Reads flags,
 * environment and file as the services do; of services that run, also the --set they were started
 * with. No service is asked, so it works without any.
 */
#include "config.h"
#include "ctl.h"
#include "print.h"
#include "up.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAMES_MAX = 1024 };

struct view {
	struct cli *c;
	struct where dir;
	struct up_sets sets; /* of running services */
	struct config conf;
	const char *part; /* NAME is a service */
	const char *name; /* NAME is a setting */
};

/* ---- which ---- */

static bool exact(const struct config *k, const char *name)
{
	return config_repeated(k, k->n, name);
}

/* Is it a shared setting's name for one service, whether it is given or not? */
static bool own_name(const struct config *k, const char *name)
{
	for (size_t p = 0; p < k->n; p++)
		for (size_t i = 0; i < conf_count(k->parts[p].conf); i++) {
			struct conf_shown s;
			conf_show(k->parts[p].conf, i, &s);
			if (strcmp(s.own, name) == 0)
				return true;
		}
	return false;
}

static bool is_wanted(const struct view *v, size_t p, const struct conf_shown *s)
{
	if (v->name && strcmp(s->name, v->name) == 0)
		return !config_repeated(&v->conf, p, s->name);
	if (v->name)
		return strcmp(s->own, v->name) == 0 && !exact(&v->conf, v->name);
	if (v->part)
		return strcmp(v->conf.parts[p].name, v->part) == 0;
	return !config_repeated(&v->conf, p, s->name);
}

/* Setting i of part p, if it is to be shown. */
static bool wanted(const struct view *v, size_t p, size_t i, struct conf_shown *out)
{
	conf_show(v->conf.parts[p].conf, i, out);
	bool is = is_wanted(v, p, out);
	conf_show(v->conf.parts[p].conf, i, out); /* looking at others has freed its texts */
	return is;
}

static bool has_setting(const struct config *k, const char *name)
{
	return exact(k, name) || own_name(k, name);
}

/* The name nearest to what was asked for, copied into out. */
static bool nearest(const struct config *k, const char *word, char *out, size_t size)
{
	const char **names = calloc(NAMES_MAX, sizeof(*names));
	char **copies = calloc(NAMES_MAX, sizeof(*copies));
	size_t n = 0;
	for (size_t p = 0; names && copies && p < k->n; p++)
		for (size_t i = 0; i < conf_count(k->parts[p].conf) && n < NAMES_MAX; i++) {
			struct conf_shown s;
			conf_show(k->parts[p].conf, i, &s);
			names[n] = copies[n] = strdup(s.name);
			n += names[n] != NULL;
		}
	const char *best = n ? conf_nearest(word, names, n) : NULL;
	if (best)
		snprintf(out, size, "%s", best);
	for (size_t i = 0; i < n; i++)
		free(copies[i]);
	free(copies);
	free(names);
	return best != NULL;
}

static enum err choose(struct view *v)
{
	const char *word = v->c->n_args ? v->c->args[0] : NULL;
	char near[96];
	if (!word)
		return ERR_NONE;
	for (size_t p = 0; p < v->conf.n && !v->part; p++)
		if (strcmp(v->conf.parts[p].name, word) == 0)
			v->part = word;
	if (v->part)
		return ERR_NONE;
	v->name = word;
	if (has_setting(&v->conf, word))
		return ERR_NONE;
	if (nearest(&v->conf, word, near, sizeof(near)))
		return why_set(&v->c->why, ERR_NOT_FOUND,
			       "%.80s: no such service or setting; did you mean %s?", word,
			       near);
	return why_set(&v->c->why, ERR_NOT_FOUND,
		       "%.80s: no such service or setting; `pomelo config` lists them", word);
}

/* ---- foreign names ---- */

/* A notice of one part that an earlier part gave too. */
static bool noticed(const struct view *v, size_t p, const char *text)
{
	for (size_t i = 0; i < p; i++) {
		const struct conf_notice *list;
		size_t n = conf_notices(v->conf.parts[i].conf, &list);
		for (size_t k = 0; k < n; k++)
			if (strcmp(list[k].text, text) == 0)
				return true;
	}
	return false;
}

/* Known to no schema at all. */
static bool unknown_to_all(const struct view *v, const char *name)
{
	for (size_t p = 1; p < v->conf.n; p++) {
		const char *const *names;
		size_t n = conf_unlisted(v->conf.parts[p].conf, &names), i = 0;
		while (i < n && strcmp(names[i], name) != 0)
			i++;
		if (i == n)
			return false;
	}
	return true;
}

/* Calls each for every notice and every unknown name, once. */
static void each_foreign(const struct view *v,
			 void (*each)(void *arg, const char *text, bool known), void *arg)
{
	for (size_t p = 0; p < v->conf.n; p++) {
		const struct conf_notice *list;
		size_t n = conf_notices(v->conf.parts[p].conf, &list);
		for (size_t i = 0; i < n; i++)
			if (!noticed(v, p, list[i].text))
				each(arg, list[i].text, true);
	}
	const char *const *names;
	size_t n = v->conf.n ? conf_unlisted(v->conf.parts[0].conf, &names) : 0;
	for (size_t i = 0; i < n; i++)
		if (unknown_to_all(v, names[i]))
			each(arg, names[i], false);
}

/* ---- output ---- */

static void put_note(void *arg, const char *text, bool known)
{
	FILE *to = arg;
	if (known)
		fprintf(to, "notice: %s\n", text);
	else
		fprintf(to, "notice: %s: not known here, it has no effect\n", text);
}

static void put_details(const struct view *v, const struct conf_shown *s)
{
	fprintf(v->c->out, "%s = %s\n  from   %s\n", s->name, s->value, s->origin);
	if (s->range[0])
		fprintf(v->c->out, "  range  %s\n", s->range);
	fprintf(v->c->out, "  %s\n", s->doc);
}

static void put_table(const struct view *v)
{
	static const char *const heads[] = { "setting", "value", "from", "range", "meaning" };
	struct print_table t;
	print_table_init(&t, heads, v->c->verbose ? 5 : 3);
	for (size_t p = 0; p < v->conf.n; p++)
		for (size_t i = 0; i < conf_count(v->conf.parts[p].conf); i++) {
			struct conf_shown s;
			if (!wanted(v, p, i, &s))
				continue;
			const char *cells[] = { s.name, s.value, s.origin, s.range, s.doc };
			if (v->name)
				put_details(v, &s);
			else
				print_table_row(&t, cells);
		}
	if (!v->name)
		print_table_put(&t, v->c->out);
	print_table_fini(&t);
}

static void put_setting_json(struct json *j, const struct conf_shown *s)
{
	json_obj(j);
	json_kv_str(j, "name", s->name);
	json_kv_str(j, "value", s->value);
	json_kv_str(j, "origin", s->origin);
	json_kv_str(j, "range", s->range);
	json_kv_str(j, "text", s->doc);
	json_end(j);
}

struct note_lists {
	struct json *j;
	bool known; /* which of the two is being written */
};

static void put_note_json(void *arg, const char *text, bool known)
{
	struct note_lists *l = arg;
	if (l->known == known)
		json_str(l->j, text);
}

static void put_json(const struct view *v)
{
	struct buf b = BUF_INIT(1 << 20);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_key(&j, "settings");
	json_arr(&j);
	for (size_t p = 0; p < v->conf.n; p++)
		for (size_t i = 0; i < conf_count(v->conf.parts[p].conf); i++) {
			struct conf_shown s;
			if (wanted(v, p, i, &s))
				put_setting_json(&j, &s);
		}
	json_end(&j);
	for (int known = 1; known >= 0; known--) {
		struct note_lists l = { &j, known };
		json_key(&j, known ? "notices" : "unlisted");
		json_arr(&j);
		each_foreign(v, put_note_json, &l);
		json_end(&j);
	}
	json_end(&j);
	print_json(v->c, &b);
}

/* This command line's --set, or those of the services that run. */
static enum err load(struct view *v)
{
	struct cli *c = v->c;
	enum err e = ctl_dirs(c, &v->dir);
	if (e != ERR_NONE)
		return e;
	if (c->n_sets == 0 && run_any_held(v->dir.run))
		up_sets_recall(&v->dir, &v->sets);
	const char *const *sets = v->sets.n ? (const char *const *)v->sets.v : c->sets;
	return config_load(&v->conf, &v->dir, sets, v->sets.n ? v->sets.n : c->n_sets, environ,
			   &c->why);
}

int cmd_config(struct cli *c)
{
	struct view v = { .c = c };
	enum err e = load(&v);
	if (e == ERR_NONE)
		e = choose(&v);
	if (e == ERR_NONE && c->json)
		put_json(&v);
	else if (e == ERR_NONE) {
		put_table(&v);
		each_foreign(&v, put_note, c->out);
	}
	config_free(&v.conf);
	up_sets_fini(&v.sets);
	return e == ERR_NONE ? EXIT_OK_ : cli_exit_of(e);
}
