/* SPDX-License-Identifier: Apache-2.0 */
#include "up.h"
#include "base/conf.h"
#include "base/json_out.h"
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TRIES = 3, UP_FILE_BYTES_MAX = 1 << 20 };

/* ---- the status line ---- */

static void take_text(const json_t *o, const char *key, char *out, size_t size)
{
	const char *s = json_string_value(json_object_get(o, key));
	snprintf(out, size, "%s", s ? s : "");
}

static uint64_t take_u64(const json_t *o, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(o, key));
	return v > 0 ? (uint64_t)v : 0;
}

static void take_info(const json_t *o, struct run_info *info)
{
	const json_t *rpc = json_object_get(o, "rpc");
	info->pid = (pid_t)take_u64(o, "pid");
	take_text(o, "instance", info->instance, sizeof(info->instance));
	take_text(o, "http", info->http, sizeof(info->http));
	info->n_rpc = MIN_OF(json_array_size(rpc), (size_t)RUN_RPC_MAX);
	for (size_t i = 0; i < info->n_rpc; i++) {
		const char *s = json_string_value(json_array_get(rpc, i));
		snprintf(info->rpc[i], RUN_ADDR_MAX, "%s", s ? s : "");
	}
}

static void take_service(const json_t *o, struct up_service *s)
{
	const json_t *reasons = json_object_get(o, "reasons");
	const char *why = json_string_value(json_array_get(reasons, 0));
	*s = (struct up_service){ 0 };
	take_text(o, "name", s->name, sizeof(s->name));
	take_text(o, "state", s->state, sizeof(s->state));
	take_text(o, "last_exit", s->last_exit, sizeof(s->last_exit));
	snprintf(s->why, sizeof(s->why), "%s", why ? why : "");
	s->exit_code = (int)json_integer_value(json_object_get(o, "exit_code"));
	s->restarts = (uint32_t)take_u64(o, "restarts");
	s->early_deaths = (uint32_t)take_u64(o, "early_deaths");
	s->watched_ms = take_u64(o, "watched_ms");
	s->ready = json_is_true(json_object_get(o, "ready"));
	s->adopted = json_is_true(json_object_get(o, "adopted"));
	take_info(o, &s->info);
}

bool up_hopeless(const struct up_service *s)
{
	if (s->early_deaths == 0 || s->exit_code <= 0)
		return false;
	return s->exit_code == EXIT_USAGE_ || s->early_deaths >= TRIES;
}

void up_view_read(const json_t *o, struct up_view *out)
{
	const json_t *list = json_object_get(o, "services");
	const char *state = json_string_value(json_object_get(o, "state"));
	*out = (struct up_view){ .failed = SERVICE_COUNT };
	out->pid = take_u64(o, "pid");
	out->adopted = (uint32_t)take_u64(o, "adopted");
	out->stopping = state && strcmp(state, "stopping") == 0;
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		struct up_service *s = &out->services[i];
		take_service(json_array_get(list, i), s);
		out->n_ready += s->ready;
		if (out->failed == SERVICE_COUNT && up_hopeless(s))
			out->failed = i;
	}
}

/* ---- settings ---- */

void up_sets_fini(struct up_sets *s)
{
	for (size_t i = 0; s && i < s->n; i++)
		free(s->v[i]);
	if (s)
		s->n = 0;
}

static enum err add_set(struct cli *c, struct up_sets *s, const char *name, const char *value)
{
	char *text = NULL;
	if (s->n == CLI_SETS_MAX)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "more than %d settings; put them into "
			       "DIR/pomelo.conf",
			       CLI_SETS_MAX);
	if (asprintf(&text, "%s=%s", name, value) < 0)
		return why_set(&c->why, ERR_NO_MEMORY, "no memory");
	s->v[s->n++] = text;
	return ERR_NONE;
}

static enum err add_size(struct cli *c, struct up_sets *s, const char *flag, const char *name,
			 const char *least, const char *most)
{
	const char *v = cli_value(c, flag);
	uint64_t bytes, low = 0, high = 0;
	if (!v)
		return ERR_NONE;
	if (!conf_parse_size(v, &bytes) || !conf_parse_size(least, &low) ||
	    !conf_parse_size(most, &high) || bytes < low || bytes > high)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%s %.40s: not a size, %s..%s; write 512MiB, 4GiB or bytes",
			       flag, v, least, most);
	return add_set(c, s, name, v);
}

/* --pool, --disk and --no-disk are settings with a name of their own. */
static enum err wishes(struct cli *c, struct up_sets *out)
{
	enum err e = add_size(c, out, "--pool", "agent.pool_size", "1MiB", "64TiB");
	if (e == ERR_NONE)
		e = add_size(c, out, "--disk", "owner.disk_size", "1", "1024TiB");
	if (e == ERR_NONE && cli_has(c, "--no-disk"))
		e = add_set(c, out, "owner.disk", "false");
	for (size_t i = 0; e == ERR_NONE && i < c->n_sets; i++) {
		const char *eq = strchr(c->sets[i], '=');
		char name[256];
		snprintf(name, sizeof(name), "%.*s", (int)MIN_OF(eq - c->sets[i], 255),
			 c->sets[i]);
		e = add_set(c, out, name, eq + 1);
	}
	return e;
}

static enum err record(const struct where *d, const struct up_sets *s, struct why *why)
{
	char path[PATH_BYTES_MAX];
	struct buf b = BUF_INIT(UP_FILE_BYTES_MAX);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_key(&j, "sets");
	json_arr(&j);
	for (size_t i = 0; i < s->n; i++)
		json_str(&j, s->v[i]);
	json_end(&j);
	json_end(&j);
	enum err e = path_join(path, d->run, "up.json", why);
	if (e == ERR_NONE && buf_err(&b) != ERR_NONE)
		e = why_set(why, buf_err(&b), "the settings of --set are over %d bytes",
			    UP_FILE_BYTES_MAX);
	if (e == ERR_NONE)
		e = path_write_atomic(path, buf_bytes(&b), 0600, why);
	buf_fini(&b);
	return e;
}

void up_sets_recall(const struct where *d, struct up_sets *out)
{
	char path[PATH_BYTES_MAX];
	struct buf b = BUF_INIT(UP_FILE_BYTES_MAX + 1);
	if (path_join(path, d->run, "up.json", NULL) == ERR_NONE &&
	    path_read(path, UP_FILE_BYTES_MAX, &b, NULL) == ERR_NONE) {
		json_t *o = json_loadb((const char *)b.p, b.n, 0, NULL), *v;
		size_t i;
		json_array_foreach(json_object_get(o, "sets"), i, v)
		{
			const char *s = json_string_value(v);
			char *copy =
				s && strchr(s, '=') && out->n < CLI_SETS_MAX ? strdup(s) : NULL;
			if (copy)
				out->v[out->n++] = copy;
		}
		json_decref(o);
	}
	buf_fini(&b);
}

static bool same(const struct up_sets *a, const struct up_sets *b)
{
	bool eq = a->n == b->n;
	for (size_t i = 0; eq && i < a->n; i++)
		eq = strcmp(a->v[i], b->v[i]) == 0;
	return eq;
}

/* As every service would judge them, and the file and the environment too, before one is started. */
static enum err check(const struct where *d, const struct up_sets *s, struct why *why)
{
	static const char *const own[][2] = { { "data=", "--data DIR" },
					      { "run_dir=", "--run-dir DIR" },
					      { "secret_file=", "--secret-file FILE" } };
	struct config k;
	for (size_t i = 0; i < s->n; i++)
		for (size_t f = 0; f < ARRAY_LEN(own); f++)
			if (strncmp(s->v[i], own[f][0], strlen(own[f][0])) == 0)
				return why_set(why, ERR_INVALID_PARAMS,
					       "--set %.100s: give it as %s", s->v[i],
					       own[f][1]);
	enum err e = config_load(&k, d, (const char *const *)s->v, s->n, environ, why);
	config_free(&k);
	return e;
}

enum err up_sets_take(struct cli *c, const struct where *d, struct up_sets *out)
{
	struct up_sets old = { 0 };
	enum err e = wishes(c, out);
	if (e == ERR_NONE)
		e = check(d, out, &c->why);
	if (e != ERR_NONE || !run_any_held(d->run))
		return e != ERR_NONE ? e : record(d, out, &c->why);
	up_sets_recall(d, &old);
	if (out->n > 0 && !same(&old, out)) {
		up_sets_fini(&old);
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"services run already, started with other settings; leave out --set, "
			"--pool and --disk, or `pomelo down` first");
	}
	up_sets_fini(out);
	*out = old;
	return ERR_NONE;
}
