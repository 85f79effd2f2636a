/* SPDX-License-Identifier: Apache-2.0 */
#include "base/where.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sum.h"

static const char *pick(const struct where_wish *w, const char *flag, const char *name)
{
	if (flag)
		return flag;
	const char *v = w->env(name);
	return v && *v ? v : NULL;
}

/* s, absolute, without a trailing slash. */
static enum err absolute(char *out, const char *s, struct why *why)
{
	char cwd[PATH_BYTES_MAX];
	if (s[0] == '/') {
		int n = snprintf(out, PATH_BYTES_MAX, "%s", s);
		if (n >= PATH_BYTES_MAX)
			return why_set(why, ERR_INVALID_PARAMS,
				       "%.80s...: a path over %d bytes", s, PATH_BYTES_MAX - 1);
	} else {
		if (!getcwd(cwd, sizeof(cwd)))
			return why_set(
				why, err_from_errno(errno),
				"%.80s: the current folder is gone; give an absolute path", s);
		enum err e = path_join(out, cwd, s, why);
		if (e != ERR_NONE)
			return e;
	}
	for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
		out[n - 1] = '\0';
	return ERR_NONE;
}

static enum err default_data(const struct where_wish *w, char *out, struct why *why)
{
	if (w->root)
		return absolute(out, "/var/lib/pomelo", why);
	const char *state = w->env("XDG_STATE_HOME"), *home = w->env("HOME");
	if (state && state[0] == '/')
		return path_join(out, state, "pomelo", why);
	if (home && home[0] == '/')
		return path_join(out, home, ".local/state/pomelo", why);
	return why_set(
		why, ERR_INVALID_PARAMS,
		"no data folder: neither --data, POMELO_DATA, XDG_STATE_HOME nor HOME is set; "
		"give --data DIR");
}

/* The folder DATA/run points to when it is a link, else DATA/run. */
static enum err default_run(struct where *d, struct why *why)
{
	char link[PATH_BYTES_MAX], to[PATH_BYTES_MAX];
	enum err e = path_join(link, d->path, "run", why);
	if (e != ERR_NONE)
		return e;
	ssize_t n = readlink(link, to, sizeof(to) - 1);
	if (n <= 0) {
		memcpy(d->run, link, sizeof(d->run));
		return ERR_NONE;
	}
	to[n] = '\0';
	d->run_given = true;
	return absolute(d->run, to, why);
}

/* The longest socket of ours in a run folder. */
static enum err check_sockets(const struct where *d, struct why *why)
{
	static const char longest[] = "planner.sock";
	size_t n = strlen(d->run) + sizeof(longest);
	if (n <= WHERE_SOCKET_PATH_MAX)
		return ERR_NONE;
	return why_set(
		why, ERR_INVALID_PARAMS,
		"the socket path %.160s/%s has %zu bytes, at most %d fit; give a short folder "
		"with --run-dir DIR",
		d->run, longest, n, WHERE_SOCKET_PATH_MAX);
}

enum err where_find(const struct where_wish *w, struct where *out, struct why *why)
{
	struct where d = { 0 };
	const char *data = pick(w, w->data, "POMELO_DATA");
	const char *run = pick(w, w->run_dir, "POMELO_RUN_DIR");
	const char *secret = pick(w, w->secret_file, "POMELO_SECRET_FILE");
	enum err e = data ? absolute(d.path, data, why) : default_data(w, d.path, why);
	if (e == ERR_NONE)
		e = run ? absolute(d.run, run, why) : default_run(&d, why);
	if (e == ERR_NONE)
		e = secret ? absolute(d.secret, secret, why)
			   : path_join(d.secret, d.path, "secret", why);
	if (e == ERR_NONE)
		e = check_sockets(&d, why);
	if (e != ERR_NONE)
		return e;
	d.run_given |= run != NULL;
	d.secret_given = secret != NULL;
	*out = d;
	return ERR_NONE;
}

void where_host(const char *host_id, char out[WHERE_HOST_MAX + 1])
{
	char name[256] = "";
	if (!host_id || !host_id[0]) {
		gethostname(name, sizeof(name) - 1);
		host_id = name;
	}
	size_t n = strlen(host_id);
	if (n <= WHERE_HOST_MAX)
		memcpy(out, host_id, n + 1);
	else
		snprintf(out, WHERE_HOST_MAX + 1, "%.47s-%016llx", host_id,
			 (unsigned long long)sum64(host_id, n));
}

enum err where_pool(const char *data, char *out, size_t size)
{
	struct stat st;
	char id[64];
	if (stat(data, &st) != 0)
		return ERR_NOT_FOUND;
	int n = snprintf(id, sizeof(id), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	snprintf(out, size, "/dev/shm/pomelo-%u-%016" PRIx64, (unsigned)geteuid(),
		 sum64(id, (size_t)n));
	return ERR_NONE;
}
