/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo down`. A supervisor is asked to stop all and tells how it goes. Without one, but with
 * services that run on, one is started that adopts them and starts nothing.
 */
#include "ctl.h"
#include "print.h"
#include "up.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct down {
	struct cli *c;
	struct where dir;
	int interrupt_fd;
	uint64_t deadline_ns;
	bool keep_memory, was_up;
	uint32_t n_stopped, n_killed;
	char killed[96]; /* names, with a blank before each */
};

/* One event line; true when it was the last. */
static bool on_event(struct down *d, const json_t *o)
{
	const char *what = json_string_value(json_object_get(o, "event"));
	const char *name = json_string_value(json_object_get(o, "name"));
	if (!what)
		return false;
	if (strcmp(what, "stopping") == 0 && name)
		print_progress(d->c, "stopping %s", name);
	d->n_stopped += strcmp(what, "stopped") == 0 || strcmp(what, "killed") == 0;
	if (strcmp(what, "killed") == 0 && name) {
		size_t n = strlen(d->killed);
		snprintf(d->killed + n, sizeof(d->killed) - n, " %s", name);
		d->n_killed++;
	}
	return strcmp(what, "done") == 0;
}

static enum err stop(struct down *d, struct why *why)
{
	struct supc *k = NULL;
	json_t *o = NULL;
	bool done = false;
	enum err e = supc_open(d->dir.run, &k, why);
	if (e == ERR_NONE)
		e = supc_send(k,
			      d->keep_memory ? "{\"op\":\"stop\",\"keep_memory\":true}"
					     : "{\"op\":\"stop\",\"keep_memory\":false}",
			      why);
	while (e == ERR_NONE && !done) {
		e = supc_next(k, d->interrupt_fd, d->deadline_ns, &o, why);
		if (e == ERR_NONE) {
			done = on_event(d, o);
			json_decref(o);
		}
	}
	if (e == ERR_NONE)
		e = supc_wait_gone(k, d->interrupt_fd, d->deadline_ns, why);
	supc_close(k);
	return e;
}

void up_stop_all(const struct where *dir, uint64_t deadline_ns, bool keep_memory)
{
	struct cli quiet = { .err = stderr, .out = stdout };
	struct down d = {
		.c = &quiet, .dir = *dir, .interrupt_fd = -1, .keep_memory = keep_memory
	};
	d.deadline_ns = MAX_OF(deadline_ns, clock_after_ms(ctl_now_ns(), CLI_DEADLINE_MS));
	if (stop(&d, NULL) != ERR_NONE)
		fprintf(stderr,
			"pomelo: not everything could be stopped; `pomelo down` again\n");
}

/* Nobody supervises (the lock was free): services that run on get a supervisor first. */
static enum err without_supervisor(struct down *d, int lock_fd)
{
	struct cli *c = d->c;
	if (run_any_held(d->dir.run)) {
		d->was_up = true;
		enum err e = data_make_rest(&d->dir, &c->why);
		if (e != ERR_NONE) {
			close(lock_fd);
			return e;
		}
		e = supc_launch(c, &d->dir, NULL, 0, true, lock_fd, &c->why);
		return e == ERR_NONE ? stop(d, &c->why) : e;
	}
	uint64_t bytes = 0;
	enum err e = ERR_NONE;
	if (!d->keep_memory)
		e = data_pools_remove(&d->dir, &bytes, &c->why);
	close(lock_fd);
	return e == ERR_NOT_FOUND ? ERR_NONE : e;
}

/* The lock is held: by a supervisor, or by an `up` or `down` that is at the point of having one or
 * of being done. */
static enum err stop_held(struct down *d)
{
	struct cli *c = d->c;
	for (;;) {
		struct why why = { 0 };
		enum err e = stop(d, &why);
		if (e != ERR_UNREACHABLE && e != ERR_CONN_LOST) /* lost: it was just ending */
			return e == ERR_NONE ? e : why_set(&c->why, e, "%s", why.text);
		int lock_fd = -1;
		struct why held = { 0 };
		if (data_lock(&d->dir, &lock_fd, &held) == ERR_NONE)
			return without_supervisor(d, lock_fd);
		if (ctl_now_ns() >= d->deadline_ns)
			return why_set(&c->why, ERR_TIMED_OUT, "%s, and no supervisor answers",
				       held.text);
		if (ctl_wait(d->interrupt_fd, -1, 10) == ERR_CANCELLED)
			return why_set(&c->why, ERR_CANCELLED, "interrupted");
	}
}

static enum err down_all(struct down *d)
{
	struct cli *c = d->c;
	int lock_fd = -1;
	struct why held = { 0 };
	enum err e = data_lock(&d->dir, &lock_fd, &held);
	if (e == ERR_NONE)
		return without_supervisor(d, lock_fd);
	if (e != ERR_DIRECTORY_IN_USE)
		return why_set(&c->why, e, "%s", held.text);
	d->was_up = true;
	return stop_held(d);
}

static void report(const struct down *d)
{
	struct cli *c = d->c;
	struct buf b = BUF_INIT(PATH_BYTES_MAX * 2);
	struct json j = JSON_OUT(&b);
	print_progress_end(c);
	if (d->n_killed > 0)
		fprintf(c->err, "pomelo: killed after the grace period:%s\n", d->killed);
	if (c->json) {
		json_obj(&j);
		json_kv_bool(&j, "was_up", d->was_up);
		json_kv_u64(&j, "stopped", d->n_stopped);
		json_kv_u64(&j, "killed", d->n_killed);
		json_kv_bool(&j, "memory_kept", d->keep_memory);
		json_kv_str(&j, "data", d->dir.path);
		json_end(&j);
		print_json(c, &b);
	} else if (!d->was_up) {
		fprintf(c->out, "nothing runs on the data folder %s\n", d->dir.path);
	} else {
		fprintf(c->out, "down: %u services stopped; durable data stays in %s\n",
			d->n_stopped, d->dir.path);
	}
}

int cmd_down(struct cli *c)
{
	struct down d = { .c = c,
			  .interrupt_fd = -1,
			  .keep_memory = cli_has(c, "--keep-memory") };
	d.deadline_ns = ctl_deadline(c);
	enum err e = ctl_dirs(c, &d.dir);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	if (ctl_catch_interrupt(&d.interrupt_fd) != ERR_NONE)
		d.interrupt_fd = -1;
	if (data_exists(&d.dir))
		e = down_all(&d);
	if (d.interrupt_fd >= 0)
		close(d.interrupt_fd);
	if (e == ERR_CANCELLED)
		return EXIT_INTERRUPTED_;
	if (e != ERR_NONE)
		return cli_exit_of(e);
	report(&d);
	return EXIT_OK_;
}
