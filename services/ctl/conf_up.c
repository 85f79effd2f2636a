/* SPDX-License-Identifier: Apache-2.0 */
#include "conf_up.h"

#include <unistd.h>

#define CONF_T struct up_conf
static const struct conf_row rows[] = { UP_CONF(CONF_ROW) };
static const struct conf_part parts[] = { { .rows = rows, .n = ARRAY_LEN(rows) } };
const struct conf_schema up_schema = { "up", parts, ARRAY_LEN(parts), NULL };

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
