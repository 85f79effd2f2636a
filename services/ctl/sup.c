/* SPDX-License-Identifier: Apache-2.0 */
/* Wiring of the supervisor: start, upkeep, stop. */
#include "sup.h"
#include "base/json_out.h"
#include "bin.h"
#include "loop/signals.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* How often logs are looked at and a wanted endpoints.json that failed is tried again. */
enum { UPKEEP_MS = 1000 };

/* ---- what others see ---- */

static void child_json(struct json *j, const struct child *c)
{
	json_obj(j);
	if (c->have_info) {
		run_info_json(j, c->row->name, &c->info);
	} else {
		struct run_info none = { .pid = c->pid };
		run_info_json(j, c->row->name, &none);
	}
	uint64_t up_ns = c->pid ? loop_now_ns(&c->sup->loop) - c->started_ns : 0;
	json_kv_str(j, "state", child_state_name(c->state));
	json_kv_bool(j, "ready", c->ready);
	json_key(j, "reasons");
	json_arr(j);
	for (size_t i = 0; i < c->reasons.n; i++)
		json_str(j, c->reasons.text[i]);
	json_end(j);
	json_kv_u64(j, "restarts", c->restarts);
	json_kv_bool(j, "adopted", c->adopted);
	json_kv_u64(j, "watched_ms", up_ns / NS_PER_MS);
	json_kv_u64(j, "early_deaths", c->early_deaths);
	json_kv_str(j, "last_exit", c->last_exit);
	json_key(j, "exit_code");
	json_i64(j, c->exit_code);
	json_end(j);
}

void sup_status(struct sup *s, struct buf *out)
{
	struct json j = JSON_OUT(out);
	json_obj(&j);
	json_kv_u64(&j, "pid", (uint64_t)getpid());
	json_kv_str(&j, "version", POMELO_VERSION);
	json_kv_str(&j, "state", s->stopping ? "stopping" : "running");
	json_kv_u64(&j, "adopted", s->adopted);
	json_key(&j, "services");
	json_arr(&j);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		child_json(&j, &s->children[i]);
	json_end(&j);
	json_end(&j);
}

static void event(struct sup *s, const char *what, const char *service)
{
	struct buf b = BUF_INIT(1024);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_str(&j, "event", what);
	if (service)
		json_kv_str(&j, "name", service);
	json_end(&j);
	if (s->sock && buf_err(&b) == ERR_NONE)
		sup_sock_event(s->sock, buf_bytes(&b));
	buf_fini(&b);
}

void sup_child_changed(struct child *c)
{
	struct sup *s = c->sup;
	struct run_endpoint e[SERVICE_COUNT];
	struct why why = { 0 };
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		const struct child *k = &s->children[i];
		e[i] = (struct run_endpoint){ service_rows[i].name,
					      k->have_info ? &k->info : NULL };
	}
	s->endpoints_due =
		run_endpoints_write(s->o->dir.run, e, SERVICE_COUNT, &why) != ERR_NONE;
	if (s->endpoints_due)
		LOG_WARN(&s->log, "endpoints", "failed=\"%s\"", why.text);
}

/* ---- upkeep ---- */

/* The supervisor's own log: the new file takes the place of standard output and error. */
static void reopen_own(struct sup *s)
{
	int fd = -1;
	if (suplog_open(s->log_dir, "supervisor", &fd, NULL) != ERR_NONE)
		return;
	dup2(fd, 1);
	dup2(fd, 2);
	close(fd);
}

static void rotate_logs(struct sup *s)
{
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		const struct child *c = &s->children[i];
		if (c->pid && !suplog_catches_hup(c->pid))
			continue;
		if (!suplog_rotate(s->log_dir, c->row->name, s->o->log_bytes))
			continue;
		LOG_INFO(&s->log, "rotate", "service=%s", c->row->name);
		child_hangup(c);
	}
	if (suplog_rotate(s->log_dir, "supervisor", s->o->log_bytes))
		reopen_own(s);
}

static void on_upkeep(struct timer *t)
{
	struct sup *s = container_of(t, struct sup, upkeep);
	rotate_logs(s);
	if (s->endpoints_due)
		sup_child_changed(&s->children[0]);
	timer_start(&s->loop, t, clock_after_ms(loop_now_ns(&s->loop), UPKEEP_MS), on_upkeep);
}

/* ---- stop ---- */

static void remove_pool(struct sup *s)
{
	struct why why = { 0 };
	uint64_t bytes = 0;
	enum err e = data_pools_remove(&s->o->dir, &bytes, &why);
	if (e == ERR_NONE)
		LOG_INFO(&s->log, "pool", "removed=1 bytes=%" PRIu64, bytes);
	else if (e != ERR_NOT_FOUND)
		LOG_WARN(&s->log, "pool", "kept=1 why=\"%s\"", why.text);
}

static void finish(struct sup *s)
{
	char path[PATH_BYTES_MAX];
	s->stopped = true;
	if (!s->keep_memory)
		remove_pool(s);
	static const char *const names[] = { "endpoints.json", "up.json", "sup.pid",
					     "sup.sock" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (path_join(path, s->o->dir.run, names[i], NULL) == ERR_NONE)
			unlink(path);
	event(s, "done", NULL);
	LOG_INFO(&s->log, "stop", "done=1");
	timer_stop(&s->loop, &s->upkeep);
	if (s->sock)
		sup_sock_close(s->sock);
	else
		loop_stop(&s->loop);
}

void sup_sock_gone(struct sup *s)
{
	if (s->stopped)
		loop_stop(&s->loop);
}

/* In the reverse order of the start, one at a time. */
static void stop_next(struct sup *s)
{
	for (size_t i = SERVICE_COUNT; i > 0; i--) {
		struct child *c = &s->children[i - 1];
		if (c->state == CHILD_STOPPED)
			continue;
		event(s, "stopping", c->row->name);
		child_stop(c);
		return;
	}
	finish(s);
}

void sup_child_ended(struct child *c, bool killed)
{
	event(c->sup, killed ? "killed" : "stopped", c->row->name);
	stop_next(c->sup);
}

void sup_stop(struct sup *s, bool keep_memory)
{
	if (s->stopping)
		return;
	s->stopping = true;
	s->keep_memory = keep_memory;
	LOG_INFO(&s->log, "stop", "keep_memory=%d", keep_memory);
	stop_next(s);
}

/* A supervisor that is told to go (init, systemd) takes its services along; memory is kept. */
static void on_signal(void *arg, int signum, uint32_t n_th)
{
	sup_stop(arg, true);
}

/* ---- start ---- */

static void say_ready(const struct sup_opts *o, const char *line)
{
	if (o->ready_fd < 0)
		return;
	ssize_t n = write(o->ready_fd, line, strlen(line));
	(void)n; /* `up` has gone: nobody to tell */
	close(o->ready_fd);
}

static enum err open_all(struct sup *s, struct why *why)
{
	char path[PATH_BYTES_MAX];
	enum err e = path_join(s->log_dir, s->o->dir.path, "log", why);
	if (e == ERR_NONE)
		e = path_join(path, s->o->dir.run, "sup.sock", why);
	if (e == ERR_NONE)
		e = sup_sock_open(s, path, &s->sock, why);
	if (e != ERR_NONE)
		return e;
	e = signals_open(&s->loop, on_signal, s, &s->signals);
	if (e != ERR_NONE) {
		sup_sock_close(s->sock);
		return why_set(why, e, "signals cannot be watched: %s", err_text(e));
	}
	return ERR_NONE;
}

/* For init systems (PIDFile=); nothing of ours reads it. */
static void write_pid(const struct sup *s)
{
	char path[PATH_BYTES_MAX], text[32];
	int n = snprintf(text, sizeof(text), "%d\n", getpid());
	struct why why = { 0 };
	enum err e = path_join(path, s->o->dir.run, "sup.pid", &why);
	if (e == ERR_NONE)
		e = path_write_atomic(path, BYTES(text, n), 0600, &why);
	if (e != ERR_NONE)
		LOG_WARN(&s->log, "start", "pid_file=\"%s\"", why.text);
}

/* What a killed supervisor or `up` left half written; the lock is ours. */
static void sweep(const struct sup *s)
{
	static const char *const names[] = { "endpoints.json", "up.json", "sup.pid" };
	char path[PATH_BYTES_MAX];
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (path_join(path, s->o->dir.run, names[i], NULL) == ERR_NONE)
			path_sweep(path);
}

static void begin(struct sup *s)
{
	sweep(s);
	write_pid(s);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		child_init(&s->children[i], s, &service_rows[i], s->o->bin[i]);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		child_begin(&s->children[i]);
	sup_child_changed(&s->children[0]);
	timer_start(&s->loop, &s->upkeep, clock_after_ms(loop_now_ns(&s->loop), UPKEEP_MS),
		    on_upkeep);
}

int sup_run(const struct sup_opts *o)
{
	struct why why = { 0 };
	struct sup s = { .o = o, .log = { .svc = "supervisor", .fd = 2 } };
	char line[sizeof(why.text) + 2];
	if (loop_open(&s.loop) != ERR_NONE) {
		say_ready(o, "no memory or descriptors for an event loop\n");
		return 1;
	}
	enum err e = open_all(&s, &why);
	if (e != ERR_NONE) {
		snprintf(line, sizeof(line), "%s\n", why.text);
		say_ready(o, line);
	} else {
		begin(&s);
		say_ready(o, "ok\n");
		loop_run(&s.loop);
		signals_close(s.signals);
		for (size_t i = 0; i < SERVICE_COUNT; i++)
			child_release(&s.children[i]);
	}
	loop_close(&s.loop);
	close(o->lock_fd);
	return e == ERR_NONE ? 0 : 1;
}
