/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo up` and its supervisor as processes, over services with odd manners (odd_service.c): what
 * it does when they die, hang, lie or are not there.
 */
#include "box.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void up(const struct box *b)
{
	struct box_ran r;
	box_run(b, &r, "up");
	cr_assert_eq(r.code, 0, "%s", r.err);
}

static struct up_view view(const struct box *b)
{
	struct up_view v;
	cr_assert(box_view(b, &v), "no supervisor");
	return v;
}

/* ---- life ---- */

Test(sup, up_down_and_again, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	box_run(&b, &r, "up");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "up: 5 services ready"), "%s", r.out);
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.out, "already up"), "%s", r.out);
	box_run(&b, &r, "up --pool 1GiB");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.err, "not used"), "%s", r.err);
	box_run(&b, &r, "down --json");
	cr_expect_eq(r.code, 0, "%s", r.err);
	json_t *o = box_json(&r);
	cr_expect_eq(json_integer_value(json_object_get(o, "stopped")), 5);
	cr_expect_eq(json_integer_value(json_object_get(o, "killed")), 0);
	json_decref(o);
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.out, "nothing runs"), "%s", r.out);
	cr_expect_neq(access(box_data(&b, "run/sup.sock"), F_OK), 0);
	cr_expect_neq(access(box_data(&b, "run/endpoints.json"), F_OK), 0);
	up(&b);
	box_fini(&b);
}

struct was {
	size_t killed;
	struct up_view before;
};

/* The killed one is back as another process and ready; checked with the others by the caller. */
static bool is_back(const struct up_view *v, void *arg)
{
	const struct was *w = arg;
	const struct up_service *s = &v->services[w->killed];
	return s->ready && s->info.pid != w->before.services[w->killed].info.pid;
}

Test(sup, each_killed_one_is_back_within_a_second, .timeout = 60)
{
	struct box b;
	box_init_odd(&b);
	up(&b);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		struct was w = { i, view(&b) };
		const struct up_service *old = w.before.services;
		uint64_t begin = box_now_ms();
		cr_assert_eq(kill(old[i].info.pid, SIGKILL), 0);
		cr_assert(box_until(&b, 5000, is_back, &w), "%s is not back", old[i].name);
		uint64_t ms = box_now_ms() - begin;
		cr_expect_lt(ms, 1000, "%s took %llu ms", old[i].name, (unsigned long long)ms);
		struct up_view now = view(&b);
		for (size_t k = 0; k < SERVICE_COUNT; k++) {
			bool same = now.services[k].info.pid == old[k].info.pid &&
				    strcmp(now.services[k].info.instance,
					   old[k].info.instance) == 0;
			cr_expect_eq(same, k != i, "%s after killing %s", old[k].name,
				     old[i].name);
		}
		cr_expect_eq(now.services[i].restarts, 1);
		cr_expect(strstr(box_read(box_data(&b, "run/endpoints.json")),
				 now.services[i].info.instance),
			  "endpoints.json has the new one");
	}
	box_fini(&b);
}

/* I1: killed, the five run on; the next `up` adopts the very same processes and watches them. */
Test(sup, supervisor_killed_and_services_adopted, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	up(&b);
	struct up_view old = view(&b);
	cr_assert_eq(kill((pid_t)old.pid, SIGKILL), 0);
	usleep(200000);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(box_pid(&b, service_rows[i].name), old.services[i].info.pid);
	box_run(&b, &r, "up --json");
	cr_assert_eq(r.code, 0, "%s", r.err);
	json_t *o = box_json(&r);
	cr_expect_eq(json_integer_value(json_object_get(o, "adopted")), 5);
	cr_expect_eq(json_is_true(json_object_get(o, "already")), 0);
	json_decref(o);
	struct up_view now = view(&b);
	cr_expect_neq(now.pid, old.pid);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		cr_expect_eq(now.services[i].info.pid, old.services[i].info.pid);
		cr_expect_str_eq(now.services[i].info.instance, old.services[i].info.instance);
		cr_expect(now.services[i].adopted);
	}
	/* one that is no child of ours is watched all the same */
	struct was w = { 2, now };
	cr_assert_eq(kill(now.services[2].info.pid, SIGKILL), 0);
	cr_expect(box_until(&b, 1000, is_back, &w));
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(box_pid(&b, service_rows[i].name), 0);
	box_fini(&b);
}

/* Some died with nobody to watch them: the next `up` adopts the rest and starts these. */
Test(sup, half_a_cluster_is_completed, .timeout = 60)
{
	struct box b;
	box_init_odd(&b);
	up(&b);
	struct up_view old = view(&b);
	kill((pid_t)old.pid, SIGKILL);
	kill(old.services[1].info.pid, SIGKILL);
	kill(old.services[3].info.pid, SIGKILL);
	usleep(100000);
	up(&b);
	struct up_view now = view(&b);
	cr_expect_eq(now.adopted, 3);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(now.services[i].info.pid == old.services[i].info.pid,
			     i != 1 && i != 3);
	box_fini(&b);
}

Test(sup, down_without_a_supervisor, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	up(&b);
	kill((pid_t)view(&b).pid, SIGKILL);
	usleep(100000);
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "5 services stopped"), "%s", r.out);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(box_pid(&b, service_rows[i].name), 0);
	box_fini(&b);
}

/* Told to go by init, it takes its services along. */
Test(sup, sigterm_stops_all, .timeout = 60)
{
	struct box b;
	box_init_odd(&b);
	up(&b);
	pid_t sup = (pid_t)view(&b).pid;
	cr_assert_eq(kill(sup, SIGTERM), 0);
	uint64_t end = box_now_ms() + 5000;
	while (kill(sup, 0) == 0 && box_now_ms() < end)
		usleep(5000);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(box_pid(&b, service_rows[i].name), 0);
	box_fini(&b);
}

/* ---- several at once ---- */

Test(sup, ups_at_the_same_time_make_one_cluster, .timeout = 60)
{
	enum { N = 6 };
	struct box b;
	struct box_job j[N];
	struct box_ran r;
	int launched = 0;
	box_init_odd(&b);
	for (int i = 0; i < N; i++)
		box_start(&b, &j[i], "up --json");
	for (int i = 0; i < N; i++) {
		box_wait(&j[i], &r);
		cr_expect_eq(r.code, 0, "%s", r.err);
		json_t *o = box_json(&r);
		launched += json_is_false(json_object_get(o, "already"));
		json_decref(o);
	}
	cr_expect_eq(launched, 1);
	for (int i = 0; i < N; i++)
		box_start(&b, &j[i], "down");
	for (int i = 0; i < N; i++) {
		box_wait(&j[i], &r);
		cr_expect_eq(r.code, 0, "%s", r.err);
	}
	box_fini(&b);
}

/* An `up` during a `down` waits for it and then starts. */
Test(sup, up_during_a_down, .timeout = 60)
{
	struct box b;
	struct box_job j;
	struct box_ran r;
	box_init_odd(&b);
	box_manners(&b, "agent", "deaf");
	box_run(&b, &r, "up --set up.grace_ms=700");
	cr_assert_eq(r.code, 0, "%s", r.err);
	box_manners(&b, "agent", NULL);
	box_start(&b, &j, "down");
	usleep(100000);
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "up: 5 services ready"), "%s", r.out);
	box_wait(&j, &r);
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect_eq(view(&b).n_ready, 5);
	box_fini(&b);
}

Test(sup, two_data_folders_do_not_meet, .timeout = 60)
{
	struct box a, b;
	struct box_ran r;
	box_init_odd(&a);
	box_init_odd(&b);
	up(&a);
	up(&b);
	struct up_view va = view(&a), vb = view(&b);
	cr_expect_neq(va.pid, vb.pid);
	box_run(&a, &r, "down");
	cr_expect_eq(r.code, 0);
	cr_expect_eq(view(&b).n_ready, 5);
	cr_expect_eq(view(&b).services[0].info.pid, vb.services[0].info.pid);
	/* and one folder's run folder is not the other's */
	char words[160];
	snprintf(words, sizeof(words), "--run-dir %s/run up", b.data);
	box_run(&a, &r, words);
	cr_expect_eq(r.code, 1, "%d %s", r.code, r.err);
	cr_expect(strstr(r.err, b.data) && strstr(r.err, "--run-dir"), "%s", r.err);
	box_fini(&b);
	box_fini(&a);
}

/* ---- bad manners ---- */

/* I3: 50, 100, 200 ... ms: in 3.5 s no more than 7 restarts, and the others see nothing of it. */
Test(sup, crash_loop_backs_off, .timeout = 60)
{
	struct box b;
	box_init_odd(&b);
	up(&b);
	struct up_view old = view(&b);
	box_manners(&b, "owner", "crash 30");
	kill(old.services[2].info.pid, SIGKILL);
	usleep(3500000);
	struct up_view now = view(&b);
	cr_expect(now.services[2].restarts >= 3 && now.services[2].restarts <= 7, "%u restarts",
		  now.services[2].restarts);
	cr_expect_str_eq(now.services[2].last_exit, "signal 9");
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		if (i != 2)
			cr_expect_eq(now.services[i].info.pid, old.services[i].info.pid);
	/* when it behaves again it is back, after what is left of the pause */
	box_manners(&b, "owner", NULL);
	cr_expect(box_until(&b, 6000, NULL, NULL));
	box_fini(&b);
}

Test(sup, configuration_error_is_shown_and_undone, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	box_manners(&b, "planner", "exit 2");
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 2, "%s", r.err);
	cr_expect(strstr(r.err, "odd: exit 2") && strstr(r.err, "planner does not start"), "%s",
		  r.err);
	cr_expect(strstr(r.err, "log/planner.log"), "%s", r.err);
	cr_expect_lt(r.seconds, 10);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(box_pid(&b, service_rows[i].name), 0,
			     "everything is stopped again");
	/* the log's older lines are not shown again */
	box_manners(&b, "planner", "exit 1");
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 1, "%s", r.err);
	cr_expect(!strstr(r.err, "odd: exit 2") && strstr(r.err, "odd: exit 1"), "%s", r.err);
	box_fini(&b);
}

/* What ran before the `up` that failed goes on running. */
Test(sup, failed_adoption_leaves_the_others, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	up(&b);
	struct up_view old = view(&b);
	kill((pid_t)old.pid, SIGKILL);
	kill(old.services[4].info.pid, SIGKILL);
	usleep(100000);
	box_manners(&b, "pg", "exit 2");
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 2, "%s", r.err);
	cr_expect(strstr(r.err, "the others run on"), "%s", r.err);
	for (size_t i = 0; i < 4; i++)
		cr_expect_eq(box_pid(&b, service_rows[i].name), old.services[i].info.pid);
	box_manners(&b, "pg", NULL);
	cr_expect(box_until(&b, 6000, NULL, NULL), "it is tried on and on");
	box_fini(&b);
}

static const struct slow_row {
	const char *manners, *says;
} slow_rows[] = {
	{ "never", "master: odd: never" },
	{ "mute", "master: " },
	{ "garbage", "master: http: does not answer" },
};

/* Not ready by the deadline: exit code 5, who and why; they go on, and `down` ends them. */
Test(sup, not_ready_in_time, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	for (size_t i = 0; i < ARRAY_LEN(slow_rows); i++) {
		box_manners(&b, "master", slow_rows[i].manners);
		box_run(&b, &r, "up --deadline 2500ms");
		cr_expect_eq(r.code, 5, "%s: %s", slow_rows[i].manners, r.err);
		cr_expect(strstr(r.err, slow_rows[i].says), "%s", r.err);
		cr_expect(r.seconds > 2.4 && r.seconds < 10, "%f s", r.seconds);
		cr_expect_neq(box_pid(&b, "master"), 0);
		box_run(&b, &r, "down");
		cr_expect_eq(r.code, 0, "%s", r.err);
	}
	box_manners(&b, "master", "slow 700");
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect_geq(r.seconds, 0.6);
	box_fini(&b);
}

Test(sup, deaf_service_is_killed_and_named, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	box_manners(&b, "agent", "deaf");
	box_run(&b, &r, "up --set up.grace_ms=400");
	cr_assert_eq(r.code, 0, "%s", r.err);
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.err, "killed after the grace period: agent"), "%s", r.err);
	cr_expect(r.seconds >= 0.39 && r.seconds < 5, "%f s", r.seconds);
	cr_expect_eq(box_pid(&b, "agent"), 0);
	box_fini(&b);
}

Test(sup, ctrl_c_during_up, .timeout = 60)
{
	struct box b;
	struct box_job j;
	struct box_ran r;
	box_init_odd(&b);
	box_manners(&b, "master", "never");
	box_start(&b, &j, "up");
	for (int i = 0; i < 2000 && box_pid(&b, "master") == 0; i++)
		usleep(2000);
	usleep(100000);
	kill(j.pid, SIGINT);
	box_wait(&j, &r);
	cr_expect_eq(r.code, 130, "%s", r.err);
	cr_expect(strstr(r.err, "pomelo down"), "%s", r.err);
	box_fini(&b);
}

/* ---- files ---- */

Test(sup, executable_is_missing, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	char path[160];
	const char *odd = getenv("POMELO_TEST_ODD");
	box_init_odd(&b);
	cr_assert_not_null(odd);
	snprintf(path, sizeof(path), "%s/pomelo-weight-planner", b.bindir);
	cr_assert_eq(unlink(path), 0);
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 2, "%s", r.err);
	cr_expect(strstr(r.err, "pomelo-weight-planner") && strstr(r.err, "POMELO_BINDIR"),
		  "%s", r.err);
	cr_expect_eq(box_pid(&b, "master"), 0, "nothing was started");
	/* gone while it runs: tried again until it is back */
	cr_assert_eq(symlink(odd, path), 0);
	up(&b);
	cr_assert_eq(unlink(path), 0);
	struct up_view v = view(&b);
	kill(v.services[3].info.pid, SIGKILL);
	usleep(300000);
	cr_expect(strstr(view(&b).services[3].last_exit, "exec"), "%s",
		  view(&b).services[3].last_exit);
	cr_assert_eq(symlink(odd, path), 0);
	cr_expect(box_until(&b, 6000, NULL, NULL));
	box_fini(&b);
}

Test(sup, secret_that_is_no_secret, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	box_write(box_data(&b, "secret"),
		  "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		  "\n");
	cr_assert_eq(chmod(box_data(&b, "secret"), 0644), 0);
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 6, "%s", r.err);
	cr_expect(strstr(r.err, "/d/secret") && strstr(r.err, "600"), "%s", r.err);
	cr_assert_eq(chmod(box_data(&b, "secret"), 0600), 0);
	box_write(box_data(&b, "secret"), "not hexadecimal\n");
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 1, "%s", r.err);
	cr_expect(strstr(r.err, "/d/secret"), "%s", r.err);
	box_run(&b, &r, "up --secret-file /nonexistent/secret");
	cr_expect_eq(r.code, 3, "%s", r.err);
	cr_expect(strstr(r.err, "/nonexistent/secret"), "%s", r.err);
	cr_expect_eq(box_pid(&b, "master"), 0);
	unlink(box_data(&b, "secret"));
	box_fini(&b);
}

Test(sup, data_folder_open_to_others, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	box_init_odd(&b);
	cr_assert_eq(chmod(b.data, 0755), 0);
	box_run(&b, &r, "up");
	cr_expect_eq(r.code, 6, "%s", r.err);
	cr_expect(strstr(r.err, b.data) && strstr(r.err, "700"), "%s", r.err);
	cr_assert_eq(chmod(b.data, 0700), 0);
	box_fini(&b);
}

/* A folder too deep for sockets is refused with the remedy; the remedy works, and is remembered. */
Test(sup, run_folder_elsewhere, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	char deep[120], words[300];
	box_init_odd(&b);
	memset(deep, 'x', sizeof(deep));
	memcpy(deep, b.data, strlen(b.data));
	deep[strlen(b.data)] = '/';
	deep[sizeof(deep) - 1] = '\0';
	snprintf(words, sizeof(words), "--data %s up", deep);
	box_run(&b, &r, words);
	cr_expect_eq(r.code, 2, "%s", r.err);
	cr_expect(strstr(r.err, "--run-dir DIR") && strstr(r.err, "107"), "%s", r.err);
	snprintf(words, sizeof(words), "--data %s --run-dir %s/r up", deep, b.dir);
	box_run(&b, &r, words);
	cr_expect_eq(r.code, 0, "%s", r.err);
	snprintf(words, sizeof(words), "--data %s down --json", deep);
	box_run(&b, &r, words);
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "\"stopped\":5"), "%s", r.out);
	box_fini(&b);
}

/* A pid file that nobody holds is of the past: its number means nothing now. */
Test(sup, stale_pid_files_are_ignored, .timeout = 60)
{
	struct box b;
	char pid[32];
	box_init_odd(&b);
	cr_assert_eq(mkdir(box_data(&b, "run"), 0700), 0);
	snprintf(pid, sizeof(pid), "%d\n", getpid());
	box_write(box_data(&b, "run/master.pid"), pid);
	box_write(box_data(&b, "run/master.json"), "{\"name\":\"master\"");
	up(&b);
	struct up_view v = view(&b);
	cr_expect_eq(v.adopted, 0);
	cr_expect_neq(v.services[0].info.pid, getpid());
	box_fini(&b); /* and this process is still here to say so */
}

/* Rotation by rename: the service opens the new file on SIGHUP, four files stay. */
Test(sup, logs_rotate, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	struct stat st;
	char names[4][32];
	box_init_odd(&b);
	box_manners(&b, "master", "chatty");
	box_run(&b, &r, "up --set up.log_size=64KiB");
	cr_assert_eq(r.code, 0, "%s", r.err);
	for (int round = 0; round < 6; round++) {
		char line[1025];
		memset(line, '.', 1024);
		line[1024] = '\0';
		FILE *f = fopen(box_data(&b, "log/master.log"), "a");
		cr_assert_not_null(f);
		for (int i = 0; i < 70; i++)
			fputs(line, f);
		fclose(f);
		for (int i = 0; i < 300; i++) {
			if (stat(box_data(&b, "log/master.log"), &st) == 0 &&
			    st.st_size < 65536)
				break;
			usleep(10000);
		}
		cr_expect(stat(box_data(&b, "log/master.log"), &st) == 0 && st.st_size < 65536,
			  "round %d", round);
	}
	for (int i = 1; i <= 4; i++) {
		snprintf(names[i - 1], 32, "log/master.log.%d", i);
		cr_expect_eq(access(box_data(&b, names[i - 1]), F_OK) == 0, i < 4, "%d", i);
	}
	cr_expect(strstr(box_read(box_data(&b, "log/master.log")), "log opened again"));
	box_fini(&b);
}

/* A full disk under the data folder: one line, no half-made cluster. Needs root for a small tmpfs. */
Test(sup, full_disk_is_said, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	char block[4096] = { 0 };
	box_init_odd(&b);
	if (geteuid() != 0 || mount("tmpfs", b.data, "tmpfs", 0, "size=64k,mode=0700") != 0) {
		box_fini(&b);
		cr_skip("needs the right to mount a small tmpfs");
	}
	FILE *f = fopen(box_data(&b, "filler"), "w");
	while (fwrite(block, sizeof(block), 1, f) == 1 && fflush(f) == 0)
		continue;
	fclose(f);
	box_run(&b, &r, "up --deadline 5s");
	cr_expect(r.code == 1 || r.code == 5, "%d %s", r.code, r.err);
	cr_expect(strstr(r.err, "space") || strstr(r.err, "full"), "%s", r.err);
	cr_expect_eq(box_pid(&b, "master"), 0);
	cr_assert_eq(unlink(box_data(&b, "filler")), 0);
	up(&b); /* with room again it comes up */
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_assert_eq(umount(b.data), 0);
	box_fini(&b);
}

/* ---- sup.sock ---- */

static int connect_sup(const struct box *b)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	snprintf(to.sun_path, sizeof(to.sun_path), "%s/run/sup.sock", b->data);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval t = { .tv_sec = 10 };
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0, "%s", strerror(errno));
	return fd;
}

/* What comes back until it closes. */
static const char *ask(const struct box *b, const char *text, size_t n)
{
	static char got[65536];
	size_t at = 0;
	int fd = connect_sup(b);
	cr_expect_eq(send(fd, text, n, MSG_NOSIGNAL), (ssize_t)n);
	for (ssize_t r;
	     at < sizeof(got) - 1 && (r = recv(fd, got + at, sizeof(got) - 1 - at, 0)) > 0;)
		at += (size_t)r;
	got[at] = '\0';
	close(fd);
	return got;
}

/* I4: hostile bytes get an error line, silence gets closed, and honest ones are served on. */
Test(sup, control_socket_is_bounded, .timeout = 60)
{
	static const char *const bad[] = { "\n",
					   "x\n",
					   "{}\n",
					   "[\"status\"]\n",
					   "{\"op\":1}\n",
					   "{\"op\":\"fly\"}\n",
					   "{\"op\":\"stop\",\"keep_memory\":\"yes\"}\n",
					   "{\"op\":\"status\",\"op\":\"stop\"}\n",
					   "\xff\xfe\n" };
	static char big[8192];
	struct box b;
	int idle[40];
	box_init_odd(&b);
	up(&b);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		cr_expect(strstr(ask(&b, bad[i], strlen(bad[i])), "INVALID_PARAMS"), "%s",
			  bad[i]);
	memset(big, ' ', sizeof(big));
	cr_expect(strstr(ask(&b, big, 4096), "TOO_LARGE"));
	cr_expect(strstr(ask(&b, "{\"op\":\"status\"}\n", 16), "\"services\":["));
	/* more than it takes at once: the surplus is closed, the honest one gets through */
	for (size_t i = 0; i < ARRAY_LEN(idle); i++)
		idle[i] = connect_sup(&b);
	usleep(50000);
	for (size_t i = 0; i < ARRAY_LEN(idle); i++)
		close(idle[i]);
	cr_expect(box_until(&b, 2000, NULL, NULL));
	/* a half request is closed after SUP_CONN_MS */
	uint64_t begin = box_now_ms();
	cr_expect_str_eq(ask(&b, "{\"op\":", 6), "");
	uint64_t ms = box_now_ms() - begin;
	cr_expect(ms >= SUP_CONN_MS - 100 && ms < 2 * SUP_CONN_MS, "%llu",
		  (unsigned long long)ms);
	struct stat st;
	cr_expect(stat(box_data(&b, "run/sup.sock"), &st) == 0 && (st.st_mode & 077) == 0);
	box_fini(&b);
}
