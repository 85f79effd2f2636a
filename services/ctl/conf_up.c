/* SPDX-License-Identifier: Apache-2.0 */
#include "conf_up.h"

#include <unistd.h>

#define CONF_T struct up_conf
static const struct conf_row rows[] = { SVC_CLUSTER_CONF(CONF_ROW) UP_CONF(CONF_ROW) };
#define FOREIGN_ROW(...) { __VA_ARGS__ },
static const struct conf_foreign foreign[] = { SVC_FOREIGN(FOREIGN_ROW) };
static const struct conf_part parts[] = { { .rows = rows,
					    .n = ARRAY_LEN(rows),
					    .foreign = foreign,
					    .n_foreign = ARRAY_LEN(foreign) } };
const struct conf_schema up_schema = { "supervisor", parts, ARRAY_LEN(parts), NULL };

enum err up_conf_read(struct cli *c, const struct where *d, struct up_conf *out)
{
	struct conf *k = NULL;
	char file[PATH_BYTES_MAX];
	enum err e = conf_new(&up_schema, out, &k);
	if (e != ERR_NONE)
		return why_set(&c->why, e, "no memory");
	for (size_t i = 0; e == ERR_NONE && i < c->n_sets; i++)
		e = conf_set(k, c->sets[i], &c->why);
	if (e == ERR_NONE)
		e = conf_env(k, environ, &c->why);
	if (e == ERR_NONE)
		e = path_join(file, d->path, "pomelo.conf", &c->why);
	if (e == ERR_NONE)
		e = conf_file(k, file, false, &c->why);
	if (e == ERR_NONE)
		e = conf_end(k, &c->why);
	conf_free(k);
	return e;
}

static const char *env_none(const char *name)
{
	return NULL;
}

void up_conf_where(struct where *d)
{
	struct up_conf up;
	struct conf *k = NULL;
	struct where to;
	char file[PATH_BYTES_MAX];
	if (conf_new(&up_schema, &up, &k) != ERR_NONE)
		return;
	if (path_join(file, d->path, "pomelo.conf", NULL) == ERR_NONE &&
	    conf_file(k, file, false, NULL) == ERR_NONE && conf_end(k, NULL) == ERR_NONE) {
		bool run = !d->run_given && up.run_dir[0];
		bool secret = !d->secret_given && up.secret_file[0];
		struct where_wish w = { .data = d->path,
					.run_dir = run ? up.run_dir : d->run,
					.secret_file = secret ? up.secret_file : d->secret,
					.env = env_none };
		if ((run || secret) && where_find(&w, &to, NULL) == ERR_NONE) {
			to.run_given = run || d->run_given;
			to.secret_given = secret || d->secret_given;
			*d = to;
		}
	}
	conf_free(k);
}
