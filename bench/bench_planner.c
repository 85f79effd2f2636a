/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSeek-V3 from wide 8 8 to wide 4 8 through the planner, a real daemon on this box over its unix
 * socket: texts of 79 and 67 MB in, a plan of some 100 MB out, its digest compared. Wall time; needs both
 * cores for itself.
 *
 *   planner.known_s      both placements known by digest
 *   planner.known_cpu_s  the same as processor time of planner and client together: what it takes when
 *                        nobody shares the cores is at most that
 *   planner.cold_cpu_s   the same with both texts sent
 *   planner.cold_two_s   a planner just started, two clients at once, each sends both texts
 *   planner.stop_ms      worst of 10 cancels spread over a cold plan, from the cancel to the planner's word
 *                        that the work has stopped
 *   planner.rss_mib      its resident memory after all that, when nothing is cached; limit: before
 *
 * The daemon is found by the first argument's folder: BUILD/bench/bench_planner ->
 * BUILD/services/weight-planner/pomelo-weight-planner.
 */
#include "bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "pml.h"
#include "pml_weights.h"
#include "reshard/place.h"
#include "tests/support/model.h"

#define STOPS 10

struct work {
	char exe[512], dir[64], secret[96];
	pid_t pid;
	struct pml *p[2];
	struct buf text[2];
	char digest[2][SHA_HEX + 1];
	double cold_s; /* of one plan, to spread the cancels over */
	bool cached;
};

static void must(bool ok, const char *what, const char *why)
{
	if (ok)
		return;
	fprintf(stderr, "bench_planner: %s: %s\n", what, why);
	exit(1);
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the daemon ---- */

static void stop(struct work *w)
{
	struct pml *p;
	for (int i = 0; i < 2; i++) {
		p = TAKE(w->p[i]);
		pml_close(p);
	}
	if (w->pid <= 0)
		return;
	kill(w->pid, SIGTERM);
	waitpid(w->pid, NULL, 0);
	w->pid = 0;
}

static void spawn(struct work *w, const char *cache)
{
	char set[64], port[] = "planner.http_port=0";
	snprintf(set, sizeof(set), "planner.cache_bytes=%s", cache);
	char *argv[] = { w->exe, "--data", w->dir, "--set", set, "--set", port, NULL };
	char log[96];
	snprintf(log, sizeof(log), "%s/log", w->dir);
	w->pid = fork();
	if (w->pid == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
		dup2(fd, 2);
		execv(w->exe, argv);
		_exit(127);
	}
}

static void start(struct work *w, const char *cache)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	stop(w);
	spawn(w, cache);
	o.data = w->dir;
	o.secret_file = w->secret;
	for (int i = 0; i < 2; i++) {
		must(pml_open(&o, &w->p[i], &err) == 0, "open", err.text);
		int e = 1;
		for (double end = now_s() + 20; e && now_s() < end; usleep(20000)) {
			size_t n;
			char c;
			e = pml_echo(w->p[i], "planner", "x", 1, &c, 1, &n, NULL, &err);
		}
		must(!e, "the planner", err.text);
	}
	(void)op;
	w->cached = false;
}

static double rss_mib(struct work *w)
{
	char path[64], line[256];
	double kib = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", w->pid);
	FILE *f = fopen(path, "r");
	must(f, path, strerror(errno));
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %lf", &kib) == 1)
			break;
	fclose(f);
	return kib / 1024;
}

/* ---- plans ---- */

static struct pml_remote_opts ask(const struct work *w, bool text, bool digest)
{
	struct pml_remote_opts o = PML_REMOTE_OPTS_INIT;
	struct pml_remote_side *s[] = { &o.source, &o.target };
	for (int i = 0; i < 2; i++) {
		s[i]->json = text ? w->text[i].p : NULL;
		s[i]->n = text ? w->text[i].n : 0;
		s[i]->form = PML_PLACEMENT_WIRE;
		s[i]->digest = digest ? w->digest[i] : NULL;
	}
	return o;
}

static double one(struct work *w, int client, bool text, bool digest)
{
	struct pml_remote_opts o = ask(w, text, digest);
	struct pml_call_opts c = PML_CALL_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_plan *plan = NULL;
	c.deadline_ms = 60000;
	double t0 = now_s();
	must(pml_plan_remote(w->p[client], &o, &c, &plan, &err) == 0, "plan", err.text);
	double took = now_s() - t0;
	pml_plan_free(plan);
	return took;
}

/* Processor time of both processes. */
static double cpu_s(const struct work *w)
{
	char path[64], line[1024];
	unsigned long user = 0, sys = 0;
	struct timespec t;
	snprintf(path, sizeof(path), "/proc/%d/stat", w->pid);
	FILE *f = fopen(path, "r");
	must(f && fgets(line, sizeof(line), f), path, "no such process");
	fclose(f);
	const char *p = strrchr(line, ')');
	must(p && sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			 &sys) == 2,
	     path, "is not as expected");
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK) + (double)t.tv_sec +
	       (double)t.tv_nsec / 1e9;
}

static double known(void *arg)
{
	struct work *w = arg;
	if (!w->cached) {
		start(w, "2GiB");
		one(w, 0, true, false);
		w->cached = true;
	}
	return one(w, 0, false, true);
}

static double known_cpu(void *arg)
{
	struct work *w = arg;
	if (!w->cached)
		known(w);
	double t0 = cpu_s(w);
	one(w, 0, false, true);
	return cpu_s(w) - t0;
}

static double cold_cpu(void *arg)
{
	struct work *w = arg;
	start(w, "0");
	double t0 = cpu_s(w);
	one(w, 0, true, false);
	return cpu_s(w) - t0;
}

static void *second(void *arg)
{
	one(arg, 1, true, false);
	return NULL;
}

static double cold_two(void *arg)
{
	struct work *w = arg;
	pthread_t th;
	start(w, "2GiB");
	double t0 = now_s();
	pthread_create(&th, NULL, second, w);
	one(w, 0, true, false);
	pthread_join(th, NULL);
	return now_s() - t0;
}

/* Cancelled after `at` seconds of a cold plan; how long until it has stopped, ms. */
static double cancel_after(struct work *w, double at)
{
	struct pml_remote_opts o = ask(w, true, false);
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL, *got = NULL;
	struct pml_cq *cq = NULL;
	must(pml_cq_new(w->p[0], 1, &cq, &err) == 0, "queue", err.text);
	double t0 = now_s();
	must(pml_plan_remote_start(w->p[0], &o, NULL, cq, NULL, &op, &err) == 0, "start",
	     err.text);
	while (now_s() - t0 < at && pml_op_code(op) == PML_ERR_BUSY)
		usleep(500);
	double t1 = now_s();
	pml_op_cancel(op);
	pml_cq_wait(cq, &got, 1, 60000);
	double took = (now_s() - t1) * 1e3;
	pml_op_free(op);
	pml_cq_free(cq);
	return took;
}

static double stops(void *arg)
{
	struct work *w = arg;
	double worst = 0;
	start(w, "0");
	w->cold_s = one(w, 0, true, false);
	for (int i = 0; i < STOPS; i++)
		worst = MAX_OF(worst, cancel_after(w, w->cold_s * (i + 0.5) / STOPS));
	return worst;
}

static double rss_before(void *arg)
{
	struct work *w = arg;
	start(w, "0");
	return rss_mib(w);
}

static double rss_after(void *arg)
{
	struct work *w = arg;
	start(w, "0");
	for (int i = 0; i < 3; i++)
		w->cold_s = one(w, i & 1, true, false);
	for (int i = 0; i < 5; i++)
		cancel_after(w, w->cold_s * i / 5);
	sleep(2); /* an idle planner looks once a second */
	return rss_mib(w);
}

/* ---- the texts ---- */

static bool to_buf(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

static void lay(struct work *w, const struct vec *models, int i, const char *layout)
{
	static struct text_out o;
	static const struct place_limits lim = PLACE_LIMITS;
	struct model_layout l;
	struct reject why;
	struct place *p = NULL;
	must(model_layout(layout, &l) && model_place(model_find(models, "deepseek-v3"), &l,
						     &lim, &why, &p) == ERR_NONE,
	     layout, "is no layout");
	w->text[i] = BUF_INIT((size_t)1 << 30);
	text_init(&o, NULL, false);
	o.put = to_buf;
	o.arg = &w->text[i];
	place_text(p, &o);
	text_flush(&o);
	memcpy(w->digest[i], p->digest, SHA_HEX);
	place_free(p);
}

static void prepare(struct work *w, const char *self)
{
	struct vec_file models = vec_open("reshard/models.json");
	char path[400];
	snprintf(path, sizeof(path), "%s", self);
	snprintf(w->exe, sizeof(w->exe), "%s/../services/weight-planner/pomelo-weight-planner",
		 dirname(path));
	snprintf(w->dir, sizeof(w->dir), "/tmp/pml-bench-XXXXXX");
	must(access(w->exe, X_OK) == 0, w->exe, strerror(errno));
	must(mkdtemp(w->dir) != NULL, w->dir, strerror(errno));
	snprintf(w->secret, sizeof(w->secret), "%s/secret", w->dir);
	FILE *f = fopen(w->secret, "w");
	must(f && fchmod(fileno(f), 0600) == 0 && fprintf(f, "%064d\n", 7) > 0 &&
		     fclose(f) == 0,
	     w->secret, strerror(errno));
	lay(w, models.root, 0, "wide 8 8");
	lay(w, models.root, 1, "wide 4 8");
	vec_free(&models);
}

static int drop(const char *path, const struct stat *s, int type, struct FTW *f)
{
	(void)s;
	(void)type;
	(void)f;
	return remove(path);
}

int main(int argc, char **argv)
{
	static struct work w;
	const struct bench_row rows[] = {
		{ "planner.known_s", "s", true, known, NULL, NULL, 1,
		  "DeepSeek-V3 wide 8 8 to wide 4 8 over rpc, placements known by digest" },
		{ "planner.known_cpu_s", "s", true, known_cpu, NULL, NULL, 1,
		  "the same, processor time of planner and client together" },
		{ "planner.cold_cpu_s", "s", true, cold_cpu, NULL, NULL, 0,
		  "one cold plan, texts sent, processor time of planner and client together" },
		{ "planner.cold_two_s", "s", true, cold_two, NULL, NULL, 4,
		  "the same, a planner just started, two clients at once, texts sent" },
		{ "planner.stop_ms", "ms", true, stops, NULL, NULL, 50,
		  "worst of 10 cancels spread over a cold plan" },
		{ "planner.rss_mib", "MiB", true, rss_after, rss_before, "before", 0,
		  "resident memory after three plans and five cancels, no cache" },
	};
	bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
	if (!list)
		prepare(&w, argv[0]);
	int rc = bench_main(argc, argv, rows, ARRAY_LEN(rows), &w);
	if (!list) {
		stop(&w);
		nftw(w.dir, drop, 16, FTW_DEPTH | FTW_PHYS);
	}
	buf_fini(&w.text[0]);
	buf_fini(&w.text[1]);
	return rc;
}
