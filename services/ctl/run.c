/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "services.h"
#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct service_row service_rows[SERVICE_COUNT] = {
#define SERVICE_ROW_(tag, name, exe, folder) { name, exe, folder },
	SERVICES(SERVICE_ROW_)
#undef SERVICE_ROW_
};

/* A string member, copied; false when it is absent, too long or no string. */
static bool take_str(const json_t *o, const char *key, char *out, size_t size)
{
	const char *s = json_string_value(json_object_get(o, key));
	if (!s || strlen(s) >= size)
		return false;
	memcpy(out, s, strlen(s) + 1);
	return true;
}

static bool take_rpc(const json_t *list, struct run_info *info)
{
	size_t n = json_array_size(list);
	if (!json_is_array(list) || n > RUN_RPC_MAX)
		return false;
	for (size_t i = 0; i < n; i++) {
		const char *s = json_string_value(json_array_get(list, i));
		if (!s || strlen(s) >= RUN_ADDR_MAX)
			return false;
		memcpy(info->rpc[i], s, strlen(s) + 1);
	}
	info->n_rpc = n;
	return true;
}

enum err run_parse(struct bytes text, const char *name, struct run_info *out)
{
	char who[64];
	struct run_info info = { 0 };
	json_t *o = json_loadb((const char *)text.p, text.n, JSON_REJECT_DUPLICATES, NULL);
	json_int_t pid = json_integer_value(json_object_get(o, "pid"));
	bool good = take_str(o, "name", who, sizeof(who)) && strcmp(who, name) == 0 &&
		    pid > 0 && pid <= INT_MAX &&
		    take_str(o, "instance", info.instance, sizeof(info.instance)) &&
		    strspn(info.instance, "0123456789abcdef") == 32 &&
		    take_str(o, "http", info.http, sizeof(info.http)) &&
		    take_rpc(json_object_get(o, "rpc"), &info);
	json_decref(o);
	if (!good)
		return ERR_CORRUPT;
	info.pid = (pid_t)pid;
	*out = info;
	return ERR_NONE;
}

enum err run_read(const char *run_dir, const char *name, struct run_info *out)
{
	char path[PATH_BYTES_MAX], file[64];
	struct buf text = BUF_INIT(RUN_FILE_BYTES_MAX + 1);
	struct why why = { 0 };
	snprintf(file, sizeof(file), "%s.json", name);
	enum err e = path_join(path, run_dir, file, &why);
	if (e == ERR_NONE)
		e = path_read(path, RUN_FILE_BYTES_MAX, &text, &why);
	if (e == ERR_NONE)
		e = run_parse(buf_bytes(&text), name, out);
	buf_fini(&text);
	return e;
}

enum err run_holder(const char *run_dir, const char *name, pid_t *pid)
{
	char path[PATH_BYTES_MAX], text[32] = "";
	int len = snprintf(path, sizeof(path), "%s/%s.pid", run_dir, name);
	int fd = len < (int)sizeof(path) ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
	if (fd < 0)
		return errno == ENOENT ? ERR_NOT_FOUND : err_from_errno(errno);
	struct flock lk = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	bool free_ = fcntl(fd, F_OFD_GETLK, &lk) != 0 || lk.l_type == F_UNLCK;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (free_)
		return ERR_NOT_FOUND;
	long v = n > 0 ? strtol(text, NULL, 10) : 0;
	if (v <= 1 || v > INT_MAX)
		return ERR_BUSY;
	*pid = (pid_t)v;
	return ERR_NONE;
}

bool run_any_held(const char *run_dir)
{
	pid_t pid;
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		enum err e = run_holder(run_dir, service_rows[i].name, &pid);
		if (e == ERR_NONE || e == ERR_BUSY)
			return true;
	}
	return false;
}

void run_info_json(struct json *j, const char *name, const struct run_info *info)
{
	json_kv_str(j, "name", name);
	json_kv_u64(j, "pid", (uint64_t)info->pid);
	json_kv_str(j, "instance", info->instance);
	json_key(j, "rpc");
	json_arr(j);
	for (size_t i = 0; i < info->n_rpc; i++)
		json_str(j, info->rpc[i]);
	json_end(j);
	json_kv_str(j, "http", info->http);
}

enum err run_endpoints_write(const char *run_dir, const struct run_endpoint *e, size_t n,
			     struct why *why)
{
	char path[PATH_BYTES_MAX];
	struct buf b = BUF_INIT(65536);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_u64(&j, "version", 1);
	json_key(&j, "services");
	json_arr(&j);
	for (size_t i = 0; i < n; i++) {
		if (!e[i].info)
			continue;
		json_obj(&j);
		run_info_json(&j, e[i].name, e[i].info);
		json_end(&j);
	}
	json_end(&j);
	json_end(&j);
	buf_put(&b, "\n", 1);
	enum err err = path_join(path, run_dir, "endpoints.json", why);
	if (err == ERR_NONE)
		err = buf_err(&b);
	if (err == ERR_NONE)
		err = path_write_atomic(path, buf_bytes(&b), 0600, why);
	buf_fini(&b);
	return err;
}
