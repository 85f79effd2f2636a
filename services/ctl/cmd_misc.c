/* SPDX-License-Identifier: Apache-2.0 */
/* help, completion, secret. */
#include "ctl.h"
#include "print.h"
#include "rpc/auth.h"

#include <string.h>
#include <sys/stat.h>

int cmd_help(struct cli *c)
{
	char name[128];
	if (c->n_args == 0) {
		cli_help_all(c->cmds, c->out);
		return EXIT_OK_;
	}
	snprintf(name, sizeof(name), "%.60s%s%.60s", c->args[0], c->n_args > 1 ? " " : "",
		 c->n_args > 1 ? c->args[1] : "");
	if (cli_help_cmd(c->cmds, name, c->out))
		return EXIT_OK_;
	const char *near = cli_nearest_cmd(c->cmds, name);
	if (near)
		return cli_fail(c, ERR_INVALID_PARAMS,
				"%s: no such command; did you mean `pomelo help %s`?", name,
				near);
	return cli_fail(c, ERR_INVALID_PARAMS, "%s: no such command; `pomelo help` lists them",
			name);
}

int cmd_completion(struct cli *c)
{
	if (cli_completion(c->cmds, c->args[0], c->out))
		return EXIT_OK_;
	return cli_fail(c, ERR_INVALID_PARAMS,
			"%.40s: no completion for this shell; there are: %s", c->args[0],
			cli_shells);
}

/* ---- secret ---- */

static int say_path(struct cli *c, const char *key, const char *path)
{
	struct buf b = BUF_INIT(PATH_BYTES_MAX * 2);
	struct json j = JSON_OUT(&b);
	if (!c->json) {
		fprintf(c->out, "%s\n", path);
		return EXIT_OK_;
	}
	json_obj(&j);
	json_kv_str(&j, key, path);
	json_end(&j);
	print_json(c, &b);
	return EXIT_OK_;
}

int cmd_secret_new(struct cli *c)
{
	struct where d;
	enum err e = ctl_dirs(c, &d);
	if (e == ERR_NONE && !d.secret_given)
		e = data_make(&d, &c->why);
	if (e == ERR_NONE)
		e = secret_new(d.secret, &c->why);
	if (e == ERR_EXISTS)
		c->why = (struct why){ 0 };
	if (e == ERR_EXISTS)
		return cli_fail(
			c, e,
			"%.200s: there already, left as it is; move it away for a new one",
			d.secret);
	return e == ERR_NONE ? say_path(c, "secret_file", d.secret) : cli_exit_of(e);
}

int cmd_secret_show_path(struct cli *c)
{
	struct where d;
	enum err e = ctl_dirs(c, &d);
	return e == ERR_NONE ? say_path(c, "secret_file", d.secret) : cli_exit_of(e);
}

static enum err check_role(struct cli *c, enum role *role)
{
	if (!role_parse(c->args[0], role) || *role == ROLE_NONE)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%.40s: no such role; one of client, holder, service, admin",
			       c->args[0]);
	bool tenant = c->n_args == 2;
	if (*role == ROLE_CLIENT && !tenant && !c->tenant)
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"role client needs a tenant: `pomelo secret derive client default`");
	if (*role != ROLE_CLIENT && tenant)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%.60s: role %s has no tenant; leave it out", c->args[1],
			       role_name(*role));
	return ERR_NONE;
}

int cmd_secret_derive(struct cli *c)
{
	struct where d;
	struct keyring *k = NULL;
	struct buf b = BUF_INIT(1024);
	enum role role = ROLE_NONE;
	enum err e = check_role(c, &role);
	const char *tenant = role != ROLE_CLIENT ? NULL
			     : c->n_args == 2	 ? c->args[1]
						 : c->tenant;
	if (e == ERR_NONE)
		e = ctl_dirs(c, &d);
	if (e == ERR_NONE)
		e = keyring_load(d.secret, &k, &c->why);
	if (e == ERR_NONE)
		e = keyring_derive_line(k, role, tenant, &b, &c->why);
	keyring_free(k);
	if (e == ERR_NONE) {
		fwrite(b.p, 1, b.n, c->out);
		fflush(c->out);
		explicit_bzero(b.p, b.n);
	}
	buf_fini(&b);
	return e == ERR_NONE ? EXIT_OK_ : cli_exit_of(e);
}
