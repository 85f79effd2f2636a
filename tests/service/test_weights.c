/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning through the library and the command line, by the real planner: the same plans as in this
 * process; cancels, deadlines, restarts; its memory before and after.
 */
#include "tests/service/daemons.h"
#include "tests/support/layout.h"
#include "tests/support/leak.h"

#include "pml.h"
#include "pml_weights.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct world {
	struct box box;
	struct proc planner;
	struct pml *p;
	struct buf source, target;
	char digest[2][65], plan[65]; /* as this process says */
};

static void make_texts(struct world *w, unsigned n_tensors)
{
	struct pml_placement *s = NULL, *t = NULL;
	struct pml_plan *plan = NULL;
	struct pml_error err = PML_ERROR_INIT;
	w->source = w->target = BUF_INIT((size_t)256 << 20);
	layout_text(&w->source, n_tensors, 8, 8);
	layout_text(&w->target, n_tensors, 8, 4);
	cr_assert_eq(pml_placement_read(w->source.p, w->source.n, PML_PLACEMENT_DRAFT, &s,
					&err),
		     0, "%s", err.text);
	cr_assert_eq(pml_placement_read(w->target.p, w->target.n, PML_PLACEMENT_DRAFT, &t,
					&err),
		     0);
	struct pml_plan_opts o = PML_PLAN_OPTS_INIT;
	o.source = s;
	o.target = t;
	cr_assert_eq(pml_plan_make(&o, &plan, &err), 0, "%s", err.text);
	snprintf(w->digest[0], 65, "%s", pml_placement_digest(s));
	snprintf(w->digest[1], 65, "%s", pml_placement_digest(t));
	snprintf(w->plan, 65, "%s", pml_plan_digest(plan));
	pml_plan_free(plan);
	pml_placement_free(s);
	pml_placement_free(t);
}

static const char *const args[] = { "--set", "planner.idle_ms=2000",
				    "--set", "planner.http_port=0",
				    "--set", "grace_ms=500",
				    NULL };

static void world_open(struct world *w, unsigned n_tensors)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	*w = (struct world){ 0 };
	make_texts(w, n_tensors);
	box_make(&w->box);
	proc_run(&w->box, daemon_row("planner"), args, &w->planner);
	o.data = w->box.dir;
	o.secret_file = w->box.secret;
	cr_assert_eq(pml_open(&o, &w->p, &err), 0, "%s", err.text);
}

static void world_close(struct world *w)
{
	cr_expect_eq(pml_close(w->p), 0);
	cr_expect_eq(proc_stop(&w->planner), 0);
	box_remove(&w->box);
	buf_fini(&w->source);
	buf_fini(&w->target);
}

static struct pml_remote_opts texts(const struct world *w)
{
	struct pml_remote_opts o = PML_REMOTE_OPTS_INIT;
	o.source =
		(struct pml_remote_side){ w->source.p, w->source.n, PML_PLACEMENT_DRAFT, NULL };
	o.target =
		(struct pml_remote_side){ w->target.p, w->target.n, PML_PLACEMENT_DRAFT, NULL };
	return o;
}

/* A value of its /metrics. */
static double metric(struct world *w, const char *name)
{
	static char page[1 << 18];
	cr_assert(proc_http_until(&w->planner, "/metrics", 200, 5000, page, sizeof(page)));
	return metric_value(page, name);
}

Test(weights_remote, the_same_plan, .timeout = 60)
{
	struct world w;
	struct pml_plan *plan = NULL;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_plan_info info = PML_PLAN_INFO_INIT;
	world_open(&w, 3000);
	struct pml_remote_opts o = texts(&w);
	cr_assert_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), 0, "%s: %s", err.step,
		     err.text);
	cr_expect_str_eq(pml_plan_digest(plan), w.plan);
	cr_assert_eq(pml_plan_info(plan, &info, &err), 0);
	cr_expect_eq(info.n_regions, 24000);
	cr_expect_eq(info.total_bytes, 3000 * 8 * 16);
	cr_expect_eq(info.n_sources, 8);
	cr_expect_eq(info.n_targets, 4);
	uint64_t sum = 0;
	for (uint64_t i = 0; i < info.n_regions; i++) {
		struct pml_region r = { .size = sizeof(r) };
		cr_assert_eq(pml_plan_region(plan, i, &r, &err), 0, "%s", err.text);
		cr_assert(r.source_participant.n == 2 && r.target_participant.n == 2);
		sum += r.inner_bytes * r.segments;
	}
	cr_expect_eq(sum, info.total_bytes);
	pml_plan_free(plan);
	/* by digest, and for one participant */
	o.source = (struct pml_remote_side){ NULL, 0, PML_PLACEMENT_DRAFT, w.digest[0] };
	o.target = (struct pml_remote_side){ NULL, 0, PML_PLACEMENT_DRAFT, w.digest[1] };
	cr_assert_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), 0, "%s", err.text);
	cr_expect_str_eq(pml_plan_digest(plan), w.plan);
	pml_plan_free(plan);
	o.participant = "p2";
	cr_assert_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), 0, "%s", err.text);
	cr_assert_eq(pml_plan_info(plan, &info, &err), 0);
	cr_expect_eq(info.n_regions, 6000);
	pml_plan_free(plan);
	cr_expect_eq(metric(&w, "pomelo_planner_cache_total{end=\"hit\"}"), 4);
	cr_expect_eq(metric(&w, "pomelo_planner_plans"), 0, "each plan was given up");
	world_close(&w);
	NO_LEAKS();
}

Test(weights_remote, refusals_come_with_rule_and_path, .timeout = 60)
{
	struct world w;
	struct pml_plan *plan = NULL;
	struct pml_error err = PML_ERROR_INIT;
	world_open(&w, 4);
	struct pml_remote_opts o = texts(&w);
	o.source.n--;
	cr_expect_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), PML_ERR_BAD_MANIFEST);
	cr_expect(strstr(err.text, "json.syntax"), "%s", err.text);
	o = texts(&w);
	o.participant = "nobody";
	cr_expect_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), PML_ERR_INVALID_PARAMS);
	cr_expect(strstr(err.text, "plan.participant"), "%s", err.text);
	o = texts(&w);
	o.max_regions = 3;
	cr_expect_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), PML_ERR_LIMIT);
	cr_expect(strstr(err.text, "limits.regions"), "%s", err.text);
	o = texts(&w);
	w.digest[0][5] ^= 1;
	o.source = (struct pml_remote_side){ NULL, 0, PML_PLACEMENT_WIRE, w.digest[0] };
	cr_expect_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), PML_ERR_NOT_FOUND, "%s",
		     err.text);
	o.source.digest = "abc";
	cr_expect_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), PML_ERR_INVALID_PARAMS);
	o = texts(&w);
	o.target.form = PML_STORED;
	cr_expect_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), PML_ERR_INVALID_PARAMS);
	o = texts(&w);
	o.max_text = 1000;
	cr_expect_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), PML_ERR_TOO_LARGE, "%s",
		     err.text);
	cr_expect_null(plan);
	world_close(&w);
	NO_LEAKS();
}

/* Many under way, cancelled at many moments, or freed, or left to the end. */
Test(weights_remote, cancels_through_a_queue, .timeout = 120)
{
	struct world w;
	struct pml_cq *cq = NULL;
	struct pml_error err = PML_ERROR_INIT;
	unsigned made = 0, cancelled = 0;
	world_open(&w, 2000);
	struct pml_remote_opts o = texts(&w);
	cr_assert_eq(pml_cq_new(w.p, 16, &cq, &err), 0);
	for (unsigned i = 0; i < 30; i++) {
		struct pml_op *op = NULL, *got = NULL;
		struct pml_plan *plan = NULL;
		cr_assert_eq(pml_plan_remote_start(w.p, &o, NULL, cq, &w, &op, &err), 0, "%s",
			     err.text);
		cr_expect_eq(pml_op_plan(op, &plan, NULL), PML_ERR_NOT_READY);
		usleep(2000 * i);
		if (i % 5 == 4) {
			pml_op_free(op); /* nobody wants it any more */
			continue;
		}
		cr_expect_eq(pml_op_cancel(op), 0);
		cr_assert_eq(pml_cq_wait(cq, &got, 1, 20000), 1);
		cr_assert_eq(got, op);
		int code = pml_op_code(op);
		cr_expect(code == 0 || code == PML_ERR_CANCELLED, "%d", code);
		if (code == 0) {
			cr_assert_eq(pml_op_plan(op, &plan, &err), 0, "%s", err.text);
			cr_expect_str_eq(pml_plan_digest(plan), w.plan);
			cr_expect_eq(pml_op_plan(op, &plan, &err), PML_ERR_INVALID_PARAMS,
				     "once");
			pml_plan_free(plan);
		}
		made += code == 0;
		cancelled += code != 0;
		pml_op_free(op);
	}
	cr_expect_gt(cancelled, 0);
	for (int i = 0; i < 100 && pml_cq_free(cq) == PML_ERR_BUSY; i++)
		usleep(50000);
	for (int i = 0; i < 100 && metric(&w, "pomelo_planner_plans") > 0; i++)
		usleep(50000);
	cr_expect_eq(metric(&w, "pomelo_planner_plans"), 0);
	cr_expect_eq(metric(&w, "pomelo_planner_plans_running"), 0);
	cr_expect_eq(metric(&w, "pomelo_planner_memory_bytes{of=\"all\"}"),
		     metric(&w, "pomelo_planner_memory_bytes{of=\"cache\"}"),
		     "all but the cache");
	cr_log_info("%u made, %u cancelled", made, cancelled);
	world_close(&w);
	NO_LEAKS();
}

/* The planner dies in the middle and comes back: the library begins again by itself. */
Test(weights_remote, a_planner_that_restarts, .timeout = 120)
{
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	world_open(&w, 3000);
	struct pml_remote_opts o = texts(&w);
	for (int i = 0; i < 6; i++) {
		struct pml_cq *cq = NULL;
		struct pml_op *op = NULL, *got = NULL;
		struct pml_plan *plan = NULL;
		cr_assert_eq(pml_cq_new(w.p, 1, &cq, &err), 0);
		cr_assert_eq(pml_plan_remote_start(w.p, &o, NULL, cq, NULL, &op, &err), 0);
		usleep(8000 * (unsigned)i);
		proc_signal(&w.planner, SIGKILL);
		cr_assert(proc_wait(&w.planner, 5000));
		proc_run(&w.box, daemon_row("planner"), args, &w.planner);
		cr_assert_eq(pml_cq_wait(cq, &got, 1, 30000), 1);
		cr_assert_eq(pml_op_plan(op, &plan, &err), 0, "%s: %s", err.step, err.text);
		cr_expect_str_eq(pml_plan_digest(plan), w.plan);
		pml_plan_free(plan);
		pml_op_free(op);
		cr_expect_eq(pml_cq_free(cq), 0);
	}
	world_close(&w);
	NO_LEAKS();
}

Test(weights_remote, deadlines_and_close, .timeout = 60)
{
	struct world w;
	struct pml_plan *plan = NULL;
	struct pml_op *op = NULL;
	struct pml_cq *cq = NULL;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_call_opts c = PML_CALL_OPTS_INIT;
	world_open(&w, 3000);
	struct pml_remote_opts o = texts(&w);
	c.deadline_ms = 3;
	cr_expect_eq(pml_plan_remote(w.p, &o, &c, &plan, &err), PML_ERR_TIMED_OUT, "%s",
		     err.text);
	cr_expect_str_eq(err.peer, "planner");
	proc_signal(&w.planner, SIGSTOP);
	c.deadline_ms = 300;
	cr_expect_eq(pml_plan_remote(w.p, &o, &c, &plan, &err), PML_ERR_TIMED_OUT, "%s",
		     err.text);
	cr_assert_eq(pml_cq_new(w.p, 1, &cq, &err), 0);
	cr_assert_eq(pml_plan_remote_start(w.p, &o, NULL, cq, NULL, &op, &err), 0);
	cr_expect_eq(pml_close(w.p), 0, "a handle can always be closed");
	cr_expect_eq(pml_op_code(op), PML_ERR_CLOSED);
	pml_op_free(op);
	struct pml_op *got = NULL;
	(void)got;
	pml_cq_free(cq);
	proc_signal(&w.planner, SIGCONT);
	struct pml_open_opts oo = PML_OPEN_OPTS_INIT;
	oo.data = w.box.dir;
	oo.secret_file = w.box.secret;
	cr_assert_eq(pml_open(&oo, &w.p, &err), 0);
	cr_assert_eq(pml_plan_remote(w.p, &o, NULL, &plan, &err), 0, "%s", err.text);
	pml_plan_free(plan);
	world_close(&w);
	NO_LEAKS();
}

/* Standard output of `pomelo ...`; its exit code. */
static int pomelo(struct world *w, const char *args_text, struct buf *out)
{
	char cmd[1024];
	buf_clear(out);
	snprintf(cmd, sizeof(cmd), "%s/ctl/pomelo --data %s --secret-file %s %s 2>&1",
		 getenv("POMELO_TEST_SERVICES"), w->box.dir, w->box.secret, args_text);
	FILE *f = popen(cmd, "r");
	cr_assert_not_null(f);
	for (size_t n = 1; n;) {
		uint8_t *p = buf_room(out, 4096);
		n = fread(p, 1, 4096, f);
		buf_advance(out, n);
	}
	int status = pclose(f);
	buf_put(out, "", 1);
	return WEXITSTATUS(status);
}

static void save(const struct world *w, const char *name, const struct buf *text)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", w->box.dir, name);
	FILE *f = fopen(path, "w");
	cr_assert(f && fwrite(text->p, 1, text->n, f) == text->n && fclose(f) == 0);
}

Test(weights_remote, the_command_line_prints_the_same, .timeout = 60)
{
	struct world w;
	struct buf here = BUF_INIT(1 << 20), there = BUF_INIT(1 << 20);
	char line[512];
	world_open(&w, 50);
	save(&w, "a.json", &w.source);
	save(&w, "b.json", &w.target);
	static const char *const ways[] = { "", "--json", "--participant p1 --json" };
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		snprintf(line, sizeof(line), "weights plan %s/a.json %s/b.json %s", w.box.dir,
			 w.box.dir, ways[i]);
		cr_assert_eq(pomelo(&w, line, &here), 0, "%s", here.p);
		strcat(line, " --remote");
		cr_assert_eq(pomelo(&w, line, &there), 0, "%s", there.p);
		if (i < 2)
			cr_expect_str_eq((char *)here.p, (char *)there.p);
		cr_expect(strstr((char *)there.p, i ? "\"plan_digest\"" : w.plan));
	}
	snprintf(line, sizeof(line),
		 "weights plan %s/a.json %s/b.json --participant zz --remote", w.box.dir,
		 w.box.dir);
	cr_expect_eq(pomelo(&w, line, &there), 2, "%s", there.p);
	cr_expect(strstr((char *)there.p, "plan.participant"), "%s", there.p);
	proc_signal(&w.planner, SIGSTOP);
	snprintf(line, sizeof(line), "--deadline 300 weights plan %s/a.json %s/b.json --remote",
		 w.box.dir, w.box.dir);
	cr_expect_eq(pomelo(&w, line, &there), 5, "%s", there.p);
	proc_signal(&w.planner, SIGCONT);
	buf_fini(&here);
	buf_fini(&there);
	world_close(&w);
	NO_LEAKS();
}
