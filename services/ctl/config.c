/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

static enum err load_one(struct config_part *t, const struct config_source *src,
			 const struct where *d, const char *const *sets, size_t n_sets,
			 char *const *env, struct why *why)
{
	char file[PATH_BYTES_MAX];
	t->name = src->name;
	t->at = calloc(1, src->size);
	enum err e = t->at ? conf_new(src->schema, t->at, &t->conf) : ERR_NO_MEMORY;
	if (e != ERR_NONE)
		return why_set(why, e, "no memory for settings");
	for (size_t i = 0; e == ERR_NONE && i < n_sets; i++)
		e = conf_set(t->conf, sets[i], why);
	if (e == ERR_NONE)
		e = conf_env(t->conf, env, why);
	if (e == ERR_NONE)
		e = path_join(file, d->path, "pomelo.conf", why);
	if (e == ERR_NONE)
		e = conf_file(t->conf, file, false, why);
	return e == ERR_NONE ? conf_end(t->conf, why) : e;
}

static bool left_by(const struct config_part *t, const char *text)
{
	const char *const *left;
	size_t n = conf_left(t->conf, &left);
	for (size_t i = 0; i < n; i++)
		if (strcmp(left[i], text) == 0)
			return true;
	return false;
}

/* I1: what each part left to the others has no owner. */
static enum err check_owners(const struct config *k, struct why *why)
{
	const char *const *left;
	size_t n = k->n > 0 ? conf_left(k->parts[0].conf, &left) : 0;
	for (size_t i = 0; i < n; i++) {
		size_t p = 1;
		while (p < k->n && left_by(&k->parts[p], left[i]))
			p++;
		if (p == k->n)
			return why_set(
				why, ERR_INVALID_PARAMS,
				"%s: no such setting; `pomelo config` lists what there is",
				left[i]);
	}
	return ERR_NONE;
}

enum err config_load(struct config *k, const struct where *d, const char *const *sets,
		     size_t n_sets, char *const *env, struct why *why)
{
	struct config_source src[CONFIG_PARTS_MAX];
	size_t n = config_sources(src);
	enum err e = ERR_NONE;
	*k = (struct config){ 0 };
	while (e == ERR_NONE && k->n < n) {
		e = load_one(&k->parts[k->n], &src[k->n], d, sets, n_sets, env, why);
		k->n++;
	}
	return e == ERR_NONE ? check_owners(k, why) : e;
}

void config_free(struct config *k)
{
	for (size_t i = 0; i < k->n; i++) {
		conf_free(k->parts[i].conf);
		free(k->parts[i].at);
	}
	*k = (struct config){ 0 };
}

bool config_repeated(const struct config *k, size_t p, const char *name)
{
	for (size_t i = 0; i < p; i++)
		for (size_t s = 0; s < conf_count(k->parts[i].conf); s++) {
			struct conf_shown shown;
			conf_show(k->parts[i].conf, s, &shown);
			if (strcmp(shown.name, name) == 0)
				return true;
		}
	return false;
}
