/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo up` and `pomelo down`.
 *
 * up: the lock on DATA/lock decides. Free: make what is missing, start a supervisor (which adopts
 * what runs), wait. Held: a supervisor runs, or another `up` is about to start one: wait for the same
 * services.
 */
#include "bin.h"
#include "ctl.h"
#include "print.h"
#include "rpc/auth.h"
#include "up.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What one `up` knows. */
struct up {
	struct cli *c;
	struct where dir;
	int interrupt_fd;
	uint64_t start_ns, deadline_ns;
	bool launched;		       /* by us */
	off_t log_from[SERVICE_COUNT]; /* sizes of the logs before */
	struct up_view view;
};

/* ---- before the start ---- */

/* The secret: made by the first `up`, else it must be one. */
static enum err check_secret(const struct up *u)
{
	struct keyring *k = NULL;
	struct why *why = &u->c->why;
	enum err e = ERR_EXISTS;
	if (!u->dir.secret_given && access(u->dir.secret, F_OK) != 0 && errno == ENOENT)
		e = secret_new(u->dir.secret, why);
	if (e != ERR_NONE && e != ERR_EXISTS)
		return e;
	*why = (struct why){ 0 };
	e = keyring_load(u->dir.secret, &k, why);
	if (e != ERR_NONE)
		return e;
	if (!keyring_is_cluster(k))
		e = why_set(
			why, ERR_INVALID_PARAMS,
			"%.200s: holds keys of single roles; services need the cluster secret",
			u->dir.secret);
	keyring_free(k);
	return e;
}

static enum err check_bins(const struct up *u)
{
	char self[PATH_BYTES_MAX], path[PATH_BYTES_MAX];
	enum err e = bin_self(self, &u->c->why);
	for (size_t i = 0; e == ERR_NONE && i < SERVICE_COUNT; i++)
		e = bin_find(&service_rows[i], self, getenv("POMELO_BINDIR"), path, &u->c->why);
	return e;
}

static void note_logs(struct up *u)
{
	char path[PATH_BYTES_MAX];
	struct stat st;
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		snprintf(path, sizeof(path), "%.*s/log/%s.log", PATH_BYTES_MAX - 64,
			 u->dir.path, service_rows[i].name);
		u->log_from[i] = stat(path, &st) == 0 ? st.st_size : 0;
	}
}

/* The lock is ours: make the folders, the secret, the supervisor. */
static enum err launch(struct up *u, int lock_fd)
{
	struct up_sets sets = { 0 };
	struct cli *c = u->c;
	enum err e = data_make_rest(&u->dir, &c->why);
	if (e == ERR_NONE)
		e = check_secret(u);
	if (e == ERR_NONE)
		e = check_bins(u);
	if (e == ERR_NONE)
		e = up_sets_take(c, &u->dir, &sets);
	if (e != ERR_NONE) {
		close(lock_fd);
		up_sets_fini(&sets);
		return e;
	}
	note_logs(u);
	u->launched = true;
	e = supc_launch(c, &u->dir, (const char *const *)sets.v, sets.n, false, lock_fd,
			&c->why);
	up_sets_fini(&sets);
	return e;
}

/* ---- waiting ---- */

/* The last lines a service wrote since we began, to standard error. */
static void show_log(const struct up *u, size_t service)
{
	char path[PATH_BYTES_MAX], text[4097], line[512];
	snprintf(path, sizeof(path), "%.*s/log/%s.log", PATH_BYTES_MAX - 64, u->dir.path,
		 service_rows[service].name);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
	off_t from = MAX_OF(u->log_from[service], size - (off_t)(sizeof(text) - 1));
	ssize_t n = fd >= 0 ? pread(fd, text, sizeof(text) - 1, MIN_OF(from, size)) : 0;
	if (fd >= 0)
		close(fd);
	text[MAX_OF(n, 0)] = '\0';
	fprintf(u->c->err, "the last lines of %s:\n", path);
	for (char *s = text; *s;) {
		size_t len = strcspn(s, "\n");
		bool more = s[len] == '\n';
		s[len] = '\0';
		fprintf(u->c->err, "  %s\n", print_clean(line, sizeof(line), s));
		s += len + more;
	}
}

/* A service that will not come up: what we started is taken down again, what ran before stays. */
static int give_up(struct up *u)
{
	const struct up_service *s = &u->view.services[u->view.failed];
	struct cli *c = u->c;
	print_progress_end(c);
	show_log(u, u->view.failed);
	bool ours = u->launched && u->view.adopted == 0;
	if (ours)
		up_stop_all(&u->dir, u->deadline_ns, true);
	enum err e = s->exit_code == EXIT_USAGE_     ? ERR_INVALID_PARAMS
		     : s->exit_code == EXIT_REFUSED_ ? ERR_FORBIDDEN
						     : ERR_INTERNAL;
	return cli_fail(c, e, "%s does not start (%s); %s", s->name, s->last_exit,
			ours ? "everything is stopped again" : "the others run on");
}

static int too_late(struct up *u)
{
	char waiting[160] = "";
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		const struct up_service *s = &u->view.services[i];
		size_t n = strlen(waiting);
		if (!s->ready)
			snprintf(waiting + n, sizeof(waiting) - n, "%s%s: %s", n ? "; " : "",
				 s->name, s->why[0] ? s->why : s->state);
	}
	return cli_fail(
		u->c, ERR_TIMED_OUT,
		"not ready in time (%s); they go on starting: `pomelo status` shows them, "
		"`pomelo down` stops them",
		waiting[0] ? waiting : "no supervisor answers");
}

static void show_progress(struct up *u)
{
	char names[120] = "";
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		size_t n = strlen(names);
		if (!u->view.services[i].ready)
			snprintf(names + n, sizeof(names) - n, " %s", service_rows[i].name);
	}
	print_progress(u->c, "%u of %d ready; waiting for%s", u->view.n_ready, SERVICE_COUNT,
		       names);
}

/*
 * Nobody listens. The lock tells why: held, somebody is just starting or ending; free, and we had
 * launched: it died; free, and we had not (a `down` held it): now it is our turn.
 */
static enum err take_turn(struct up *u)
{
	struct why held = { 0 };
	int lock_fd = -1;
	enum err e = data_lock(&u->dir, &lock_fd, &held);
	if (e == ERR_DIRECTORY_IN_USE)
		return ERR_NONE;
	if (e != ERR_NONE)
		return why_set(&u->c->why, e, "%s", held.text);
	if (!u->launched)
		return launch(u, lock_fd);
	close(lock_fd);
	return why_set(&u->c->why, ERR_INTERNAL,
		       "the supervisor ended; see %.200s/log/supervisor.log", u->dir.path);
}

/* Until all are ready; EXIT_OK_, or the exit code of what went wrong. */
static int wait_ready(struct up *u)
{
	struct why why = { 0 };
	for (;;) {
		json_t *o = NULL;
		enum err e = supc_status(u->dir.run, u->interrupt_fd, u->deadline_ns, &o, &why);
		if (e == ERR_NONE)
			up_view_read(o, &u->view);
		json_decref(o);
		why = (struct why){ 0 };
		if (e == ERR_UNREACHABLE && take_turn(u) != ERR_NONE)
			return cli_exit_of(u->c->why.err);
		if (e == ERR_NONE && u->view.n_ready == SERVICE_COUNT)
			return EXIT_OK_;
		if (e == ERR_NONE && u->view.failed < SERVICE_COUNT)
			return give_up(u);
		if (e == ERR_NONE && u->view.stopping && u->launched)
			return cli_fail(u->c, ERR_SHUTTING_DOWN, "a `pomelo down` stopped it");
		if (e == ERR_CANCELLED || ctl_wait(u->interrupt_fd, -1, 20) == ERR_CANCELLED) {
			cli_fail(
				u->c, ERR_CANCELLED,
				"interrupted; the services go on starting, `pomelo down` stops them");
			return EXIT_INTERRUPTED_;
		}
		show_progress(u);
		if (ctl_now_ns() >= u->deadline_ns)
			return too_late(u);
	}
}

static void report(struct up *u)
{
	struct cli *c = u->c;
	if (!u->launched && (c->n_sets > 0 || c->n_opts > 0))
		fprintf(c->err,
			"pomelo: already up: the settings of this command line are not used; "
			"`pomelo down` first\n");
	else if (cli_has(c, "--disk"))
		fprintf(c->err,
			"pomelo: this release has no disk tier yet; --disk is checked and kept\n");
	double seconds = (double)(ctl_now_ns() - u->start_ns) / 1e9;
	struct buf b = BUF_INIT(PATH_BYTES_MAX * 2);
	struct json j = JSON_OUT(&b);
	print_progress_end(c);
	if (c->json) {
		json_obj(&j);
		json_kv_bool(&j, "already", !u->launched);
		json_kv_str(&j, "data", u->dir.path);
		json_kv_u64(&j, "supervisor", u->view.pid);
		json_kv_u64(&j, "adopted", u->view.adopted);
		json_key(&j, "seconds");
		json_double(&j, seconds);
		json_end(&j);
		print_json(c, &b);
	} else if (!u->launched) {
		fprintf(c->out, "already up: %d services ready, data folder %s\n",
			SERVICE_COUNT, u->dir.path);
	} else {
		fprintf(c->out, "up: %d services ready in %.2f s%s, data folder %s\n",
			SERVICE_COUNT, seconds,
			u->view.adopted ? " (running ones adopted)" : "", u->dir.path);
	}
}

int cmd_up(struct cli *c)
{
	struct up u = { .c = c, .interrupt_fd = -1, .start_ns = ctl_now_ns() };
	int lock_fd = -1;
	u.deadline_ns = ctl_deadline(c);
	enum err e = ctl_dirs(c, &u.dir);
	if (e == ERR_NONE)
		e = data_make(&u.dir, &c->why);
	if (e == ERR_NONE)
		e = data_lock(&u.dir, &lock_fd, &c->why);
	if (e == ERR_NONE)
		e = launch(&u, lock_fd);
	else if (e == ERR_DIRECTORY_IN_USE)
		c->why = (struct why){ 0 };
	if (e != ERR_NONE && e != ERR_DIRECTORY_IN_USE)
		return cli_exit_of(e);
	if (ctl_catch_interrupt(&u.interrupt_fd) != ERR_NONE)
		u.interrupt_fd = -1;
	int code = wait_ready(&u);
	if (code == EXIT_OK_)
		report(&u);
	if (u.interrupt_fd >= 0)
		close(u.interrupt_fd);
	return code;
}
