/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/svc_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_out.h"
#include "base/path.h"
#include "base/sum.h"
#include "base/where.h"
#include "rpc/addr.h"
#include "rpc/auth.h"
#include "svc/beat.h"

#define SVC_FOREIGN_ROW(...) { __VA_ARGS__ },
const struct conf_foreign svc_foreign[] = { SVC_FOREIGN(SVC_FOREIGN_ROW) };

/* ---- settings ---- */

/* Each must be an address that an engine can serve, said with the setting's name. */
static enum err check_addrs(struct conf *c, struct why *w, const char *name,
			    const struct conf_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		struct addr a;
		struct why bad = { 0 };
		if (addr_parse(l->v[i], &a, &bad))
			return conf_fail(c, w, name, "%s", bad.text);
	}
	return ERR_NONE;
}

enum err svc_conf_check(struct conf *c, const void *at, struct why *w)
{
	const struct svc_conf *v = &((const struct svc *)at)->conf;
	if (v->suspect_ms < 2 * v->beat_ms)
		return conf_fail(c, w, "suspect_ms", "at least two beats (beat_ms = %llu) long",
				 (unsigned long long)v->beat_ms);
	if (v->holder_dead_ms <= v->suspect_ms)
		return conf_fail(c, w, "holder_dead_ms",
				 "must be longer than suspect_ms = %llu, which comes first",
				 (unsigned long long)v->suspect_ms);
	if (!v->tls_cert[0] != !v->tls_key[0])
		return conf_fail(c, w, v->tls_cert[0] ? ".tls_cert" : ".tls_key",
				 "certificate and key go together; set both or none");
	enum err e = check_addrs(c, w, ".listen", &v->listen);
	if (e == ERR_NONE)
		e = check_addrs(c, w, ".advertise", &v->advertise);
	return e ? e : check_addrs(c, w, "masters", &v->masters);
}

/* The settings have read POMELO_* already; where_find is to see the rest alone. */
static const char *env_home(const char *name)
{
	return strncmp(name, "POMELO_", 7) == 0 ? NULL : getenv(name);
}

static const char *env_none(const char *name)
{
	return NULL;
}

static const char *null_if_empty(const char *text)
{
	return text[0] ? text : NULL;
}

enum err svc_dirs_resolve(struct svc *s, bool with_home, struct why *why)
{
	struct where w;
	if (!loop_uv(s->loop)) {
		snprintf(s->data_dir, sizeof(s->data_dir), "%s", s->conf.data);
		return ERR_NONE;
	}
	enum err e = where_find(&(struct where_wish){ .data = null_if_empty(s->conf.data),
						      .run_dir = null_if_empty(s->conf.run_dir),
						      .secret_file = null_if_empty(
							      s->conf.secret_file),
						      .env = with_home ? env_home : env_none,
						      .root = geteuid() == 0 },
				&w, why);
	if (e)
		return e;
	if (strlen(w.path) >= sizeof(s->data_dir) || strlen(w.secret) >= sizeof(s->secret_file))
		return why_set(why, ERR_INVALID_PARAMS,
			       "%.80s...: a data folder's path has at most %d bytes", w.path,
			       SVC_PATH_MAX - 1);
	memcpy(s->data_dir, w.path, strlen(w.path) + 1);
	memcpy(s->run_dir, w.run, strlen(w.run) + 1); /* under 108 bytes: where_find */
	memcpy(s->secret_file, w.secret, strlen(w.secret) + 1);
	return ERR_NONE;
}

/* The file is found by what flags and environment say, so these come first; origins sort it out. */
enum err svc_conf_load(struct svc *s, const struct svc_env *env, struct why *why)
{
	char path[SVC_PATH_MAX + 16];
	enum err e = conf_new(s->def->conf, s, &s->settings);
	if (e)
		return e;
	if (env->argc > 1)
		e = conf_flags(s->settings, env->argc - 1, env->argv + 1, why);
	if (e == ERR_NONE && env->environ)
		e = conf_env(s->settings, env->environ, why);
	if (e == ERR_NONE)
		e = svc_dirs_resolve(s, env->environ != NULL, why);
	if (e == ERR_NONE && s->data_dir[0] && loop_uv(s->loop)) {
		snprintf(path, sizeof(path), "%s/pomelo.conf", s->data_dir);
		e = conf_file(s->settings, path, false, why);
	}
	if (e == ERR_NONE)
		e = conf_end(s->settings, why);
	if (e == ERR_NONE && conf_origin(s->settings, "data") == CONF_FILE)
		e = conf_fail(s->settings, why, "data",
			      "a data folder cannot name itself; use --data or POMELO_DATA");
	/* run_dir may come from the file */
	return e ? e : svc_dirs_resolve(s, env->environ != NULL, why);
}

void svc_conf_log(const struct svc *s)
{
	const struct conf_notice *v;
	const char *const *names;
	size_t n = conf_notices(s->settings, &v);
	for (size_t i = 0; i < n; i++)
		LOG_WARN(&s->log, "config", "setting=%s notice=\"%s\"",
			 v[i].setting[0] ? v[i].setting : "-", v[i].text);
	n = conf_unlisted(s->settings, &names);
	for (size_t i = 0; i < n; i++)
		LOG_INFO(&s->log, "config", "name=%s notice=\"not known to this service\"",
			 names[i]);
}

void svc_conf_reasons(const struct svc *s, struct svc_reasons *r)
{
	const struct conf_notice *v;
	size_t n = s->settings ? conf_notices(s->settings, &v) : 0;
	for (size_t i = 0; i < n; i++)
		if (v[i].kind == CONF_PROBLEM)
			svc_reason(r, "%s: %s", v[i].setting, v[i].text);
}

/* ---- folders ---- */

static enum err take_pid_file(struct svc *s, struct why *why)
{
	char path[PATH_BYTES_MAX], name[32], text[24];
	snprintf(name, sizeof(name), "%s.pid", s->def->name);
	enum err e = path_join(path, s->run_dir, name, why);
	if (e)
		return e;
	struct why lock_why = { 0 };
	e = path_lock(path, &s->lock_fd, &lock_why);
	if (e == ERR_DIRECTORY_IN_USE)
		return why_set(
			why, e,
			"%s: another %s runs on this folder; stop it or use another --data",
			path, s->def->exe);
	if (e)
		return why_set(why, e, "%s", lock_why.text);
	int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
	if (ftruncate(s->lock_fd, 0) != 0 || pwrite(s->lock_fd, text, (size_t)n, 0) != n)
		return why_set(why, err_from_errno(errno), "%s: cannot write: %s", path,
			       strerror(errno));
	return ERR_NONE;
}

enum err svc_dirs_take(struct svc *s, struct why *why)
{
	if (loop_uv(s->loop) == NULL)
		return ERR_NONE;
	enum err e = path_mkdirs_private(s->data_dir, why);
	if (e == ERR_NONE)
		e = path_mkdirs_private(s->run_dir, why);
	e = e ? e : take_pid_file(s, why);
	if (e)
		return e;
	char path[PATH_BYTES_MAX], name[32];
	snprintf(name, sizeof(name), "%s.json", s->def->name);
	if (path_join(path, s->run_dir, name, NULL) == ERR_NONE)
		path_sweep(path); /* of an earlier run that was killed in svc_dirs_tell */
	return ERR_NONE;
}

static void addrs_json(struct json *j, const struct svc *s)
{
	json_key(j, "rpc");
	json_arr(j);
	for (size_t i = 0; i < s->conf.advertise.n; i++)
		json_str(j, s->conf.advertise.v[i]);
	for (size_t i = 0; i < s->n_addrs; i++)
		if (s->conf.advertise.n == 0 || strncmp(s->addrs[i], "ipc:", 4) == 0)
			json_str(j, s->addrs[i]);
	json_end(j);
}

enum err svc_dirs_tell(struct svc *s, struct why *why)
{
	char path[PATH_BYTES_MAX], name[32], hex[33];
	if (loop_uv(s->loop) == NULL)
		return ERR_NONE;
	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", s->instance[i]);
	struct buf b = BUF_INIT(16384);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_str(&j, "name", s->def->name);
	json_kv_u64(&j, "pid", (uint64_t)getpid());
	json_kv_str(&j, "instance", hex);
	json_kv_str(&j, "id", s->id);
	addrs_json(&j, s);
	json_kv_str(&j, "http", svc_http_addr(s));
	json_end(&j);
	buf_put(&b, "\n", 1);
	snprintf(name, sizeof(name), "%s.json", s->def->name);
	enum err e = buf_err(&b) ? buf_err(&b) : path_join(path, s->run_dir, name, why);
	if (e == ERR_NONE)
		e = path_write_atomic(path, buf_bytes(&b), 0600, why);
	buf_fini(&b);
	s->told = e == ERR_NONE;
	return e;
}

void svc_dirs_leave(struct svc *s)
{
	char path[SVC_PATH_MAX + 48];
	if (s->told) {
		snprintf(path, sizeof(path), "%s/%s.json", s->run_dir, s->def->name);
		unlink(path);
	}
	if (s->lock_fd >= 0) {
		/* the file stays: removing a lock file that a successor has open breaks its lock */
		if (ftruncate(s->lock_fd, 0) != 0)
			LOG_WARN(&s->log, "stop", "error=\"%s.pid not emptied\"", s->def->name);
		close(s->lock_fd);
	}
	s->lock_fd = -1;
}

void svc_id_make(struct svc *s, const char *where)
{
	char text[SVC_PATH_MAX + 320], host[256] = "";
	struct stat st;
	if (s->def->role != ROLE_HOLDER) {
		snprintf(s->id, sizeof(s->id), "%s", s->def->name);
		return;
	}
	snprintf(host, sizeof(host), "%s", s->conf.host_id);
	if (!host[0] && loop_uv(s->loop))
		gethostname(host, sizeof(host) - 1);
	int n = snprintf(text, sizeof(text), "%s %s", host, where);
	if (loop_uv(s->loop) && stat(s->data_dir, &st) == 0)
		n = snprintf(text, sizeof(text), "%s %llx:%llx", host,
			     (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	snprintf(s->id, sizeof(s->id), "%s-%016llx", s->def->name,
		 (unsigned long long)sum64(text, (size_t)n));
}

enum err svc_keys_load(struct svc *s, const struct svc_env *env, struct why *why)
{
	struct why load_why = { 0 };
	s->keys = env->keys;
	if (s->keys)
		return ERR_NONE;
	enum err e = keyring_load(s->secret_file, &s->own_keys, &load_why);
	if (e == ERR_NOT_FOUND)
		return why_set(
			why, e,
			"%s: no secret there; `pomelo up` makes one, so does `pomelo secret new`",
			s->secret_file);
	if (e)
		return why_set(why, e, "%s", load_why.text);
	s->keys = s->own_keys;
	return ERR_NONE;
}
