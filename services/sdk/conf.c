/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's settings: section `client`, and those of the whole cluster, for it reads the same
 * pomelo.conf as the services do. pml_open_opts win over the environment, and that over the file.
 */
#include "sdk.h"

#include <stdio.h>
#include <unistd.h>

#define CONF_T struct client_conf
static const struct conf_row rows[] = { SVC_CLUSTER_CONF(CONF_ROW) CLIENT_CONF(CONF_ROW) };
#define FOREIGN_ROW(...) { __VA_ARGS__ },
static const struct conf_foreign foreign[] = { SVC_FOREIGN(FOREIGN_ROW) };
static const struct conf_part parts[] = { { .rows = rows,
					    .n = ARRAY_LEN(rows),
					    .foreign = foreign,
					    .n_foreign = ARRAY_LEN(foreign) } };
const struct conf_schema client_schema = { "libpomelo", parts, ARRAY_LEN(parts), NULL,
					   .section = "client" };

static enum err read_all(struct pml *p, const struct pml_open_opts *o, struct why *why)
{
	char file[PATH_BYTES_MAX];
	enum err e = conf_new(&client_schema, &p->set, &p->conf);
	if (e == ERR_NONE && o->masters) {
		if (asprintf(&p->masters_text, "client.masters=%s", o->masters) < 0)
			return ERR_NO_MEMORY;
		e = conf_set(p->conf, p->masters_text, why);
	}
	if (e == ERR_NONE)
		e = conf_env(p->conf, environ, why);
	if (e == ERR_NONE)
		e = path_join(file, p->where.path, "pomelo.conf", why);
	if (e == ERR_NONE)
		e = conf_file(p->conf, file, false, why);
	return e == ERR_NONE ? conf_end(p->conf, why) : e;
}

static const char *env_none(const char *name)
{
	return NULL;
}

/* The file may say where the sockets and the secret are. */
static enum err settle_where(struct pml *p, struct why *why)
{
	bool run = !p->where.run_given && p->set.run_dir[0];
	bool secret = !p->where.secret_given && p->set.secret_file[0];
	if (!run && !secret)
		return ERR_NONE;
	struct where_wish w = { .data = p->where.path,
				.run_dir = run ? p->set.run_dir : p->where.run,
				.secret_file = secret ? p->set.secret_file : p->where.secret,
				.env = env_none };
	return where_find(&w, &p->where, why);
}

enum err sdk_conf_read(struct pml *p, const struct pml_open_opts *o, struct why *why)
{
	enum err e = read_all(p, o, why);
	if (e == ERR_NONE)
		e = settle_where(p, why);
	if (e != ERR_NONE)
		return e;
	p->deadline_ms = o->deadline_ms ? o->deadline_ms : (uint32_t)p->set.deadline_ms;
	p->calls_max = o->calls_max ? o->calls_max : p->set.calls_max;
	p->masters = p->set.client_masters.n ? p->set.client_masters : p->set.masters;
	if (p->calls_max > SDK_CALLS_TOP)
		return why_set(why, ERR_INVALID_PARAMS, "calls_max = %u: out of 1..%d",
			       p->calls_max, SDK_CALLS_TOP);
	return ERR_NONE;
}
