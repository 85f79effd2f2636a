/* SPDX-License-Identifier: Apache-2.0 */
/* A rig under the supervisor (store_rig.h): all five services as `pomelo up` runs them. */
#include "store_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

enum { WORDS_MAX = 40 };

/* `pomelo --data DIR WORDS`, its output at the end of DIR/pomelo.out. */
static int pomelo(struct rig *r, const char *const *words)
{
	const char *exe = getenv("POMELO_TEST_EXE");
	const char *argv[WORDS_MAX] = { "pomelo", "--data", r->box[0].dir };
	char out[96];
	posix_spawn_file_actions_t fa;
	pid_t pid = 0;
	int status = -1;
	for (size_t n = 3; *words && n < WORDS_MAX - 1; n++)
		argv[n] = *words++;
	CHECK(r, exe, "run by `meson test`, which says where pomelo is");
	snprintf(out, sizeof(out), "%s/pomelo.out", r->box[0].dir);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_addopen(&fa, 1, out, O_WRONLY | O_CREAT | O_APPEND, 0600);
	posix_spawn_file_actions_adddup2(&fa, 1, 2);
	int sys = posix_spawn(&pid, exe, &fa, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	CHECK(r, sys == 0 && waitpid(pid, &status, 0) == pid, "%s: %s", exe, strerror(sys));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void show_tail(const struct rig *r, const char *name)
{
	static char text[1 << 20];
	struct proc p = { 0 };
	snprintf(p.log, sizeof(p.log), "%s/%s", r->box[0].dir, name);
	size_t n = strlen(proc_log(&p, text, sizeof(text)));
	fprintf(stderr, "---- %s\n%s\n", name, text + (n > 2500 ? n - 2500 : 0));
}

void rig_sup_fail(struct rig *r)
{
	static const char *const logs[] = { "pomelo.out", "log/supervisor.log",
					    "log/master.log", "log/agent.log" };
	static const char *const down[] = { "down", "--fast", NULL };
	static bool failing;
	if (failing) /* what follows may fail, too */
		return;
	failing = true;
	for (size_t i = 0; i < ARRAY_LEN(logs); i++)
		show_tail(r, logs[i]);
	pomelo(r, down);
}

static void run_dir(const struct rig *r, char out[96])
{
	snprintf(out, 96, "%s/run", r->box[0].dir);
}

pid_t rig_sup_pid(struct rig *r, const char *name, bool wait)
{
	uint64_t end = rig_now_ms() + RIG_WAIT_MS;
	char run[96];
	pid_t pid = 0;
	run_dir(r, run);
	while (run_holder(run, name, &pid) != ERR_NONE) {
		if (!wait)
			return 0;
		CHECK(r, rig_now_ms() < end, "%s does not run", name);
		rig_sleep(2);
	}
	return pid;
}

pid_t rig_sup_supervisor(struct rig *r)
{
	char path[120];
	int pid = 0;
	snprintf(path, sizeof(path), "%s/run/sup.pid", r->box[0].dir);
	FILE *f = fopen(path, "re");
	CHECK(r, f && fscanf(f, "%d", &pid) == 1 && pid > 1, "%s: no supervisor's", path);
	fclose(f);
	return pid;
}

void rig_sup_kill(struct rig *r, pid_t pid, const char *name)
{
	CHECK(r, kill(pid, SIGKILL) == 0, "%s %d: %s", name, (int)pid, strerror(errno));
}

void rig_sup_ready(struct rig *r)
{
	char pool[32];
	snprintf(pool, sizeof(pool), "%uMiB", r->pool_mib);
	const char *words[] = {
		"up",
		"--pool",
		pool,
		"--set=master.lease_ms=300",
		"--set=master.lease_max_ms=1000",
		"--set=master.put_start_discard_ms=1000",
		"--set=suspect_ms=700",
		"--set=beat_ms=100",
		"--set=holder_dead_ms=60000",
		"--set=agent.register_ms=500",
		"--set=agent.workers=1",
		"--deadline",
		"60000",
		NULL,
	};
	int code = pomelo(r, words);
	CHECK(r, code == 0, "`pomelo up` ended with %d", code);
}

void rig_sup_up(struct rig *r)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	r->supervised = true;
	box_make(&r->box[0]);
	r->want = malloc(RIG_VALUE_MAX);
	r->got = malloc(RIG_VALUE_MAX);
	rig_sup_ready(r);
	o.data = r->box[0].dir;
	o.deadline_ms = RIG_WAIT_MS;
	CHECK(r, pml_open(&o, &r->p, &err) == 0, "%s", err.text);
}

void rig_sup_down(struct rig *r)
{
	static const char *const down[] = { "down", NULL };
	static const char *const names[] = { "master", "agent", "owner", "planner", "pg" };
	char run[96];
	pid_t pid;
	run_dir(r, run);
	pml_close(r->p);
	int code = pomelo(r, down);
	CHECK(r, code == 0, "`pomelo down` ended with %d", code);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		CHECK(r, run_holder(run, names[i], &pid) == ERR_NOT_FOUND, "%s was left behind",
		      names[i]);
	box_remove(&r->box[0]);
	free(r->want);
	free(r->got);
}
