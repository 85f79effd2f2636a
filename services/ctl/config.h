/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every setting there is, of every service, read as the services would read it: `pomelo config` and
 * the check that `up` makes before it starts anything (C2).
 *
 * I1: a name that no schema owns is refused, wherever it stands; one schema alone cannot know.
 *
 * Thread: the main one.
 */
#pragma once

#include "base/conf.h"
#include "data.h"
#include "services.h"

enum { CONFIG_PARTS_MAX = 16 };

/* A schema and the size of the struct its values go to. */
struct config_source {
	const char *name; /* "master", "client", "up" */
	const struct conf_schema *schema;
	size_t size;
};

/* schemas.c: the services of this build, then the library's and the supervisor's; returns how many.
 * schemas_none.c: a build without services knows the last two alone. */
size_t config_sources(struct config_source out[CONFIG_PARTS_MAX]);

struct config_part {
	const char *name;
	void *at;
	struct conf *conf;
};

struct config {
	size_t n;
	struct config_part parts[CONFIG_PARTS_MAX];
};

/* sets: "name=value"; env: the process's. why: one line as a service would print it. config_free()
 * also after an error. */
enum err config_load(struct config *k, const struct where *d, const char *const *sets,
		     size_t n_sets, char *const *env, struct why *why) MUST_CHECK;
void config_free(struct config *k);

/* Is setting i of part p shown by an earlier part too? (what services share) */
bool config_repeated(const struct config *k, size_t p, const char *name);
