/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning by the planner under ThreadSanitizer: the real service on a loop of its own with two workers,
 * two clients of two threads each that plan, cancel, give up, let a deadline pass; then a handle closed in
 * the middle of calls, and the service stopped in the middle of work. A plan that comes is the one that
 * this process makes. Plain main: Criterion cannot start under TSan.
 */
#include "pml.h"
#include "pml_weights.h"

#include "rpc/auth.h"
#include "services/weight-planner/planner.h"
#include "support/layout.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CLIENTS = 2, THREADS = 2, ROUNDS = 12, TENSORS = 150, PATIENCE_MS = 100000 };

#define CHECK(x)                                                                \
	do {                                                                    \
		if (!(x)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			_exit(1);                                               \
		}                                                               \
	} while (0)

/* ---- the service ---- */

struct server {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool up;
	struct loop loop;
	struct wpl svc;
	struct post stop;
	struct log_capture silence;
	char dir[64], secret[96];
};

static void quiet(struct log_capture *c, const char *line, size_t n)
{
}

static void on_closed(struct svc *s, void *arg)
{
	struct server *x = arg;
	loop_stop(&x->loop);
}

static void on_stop(struct post *p)
{
	struct server *x = container_of(p, struct server, stop);
	svc_stop(&x->svc.svc, 20);
}

static void *serve(void *arg)
{
	struct server *x = arg;
	char secret[128];
	struct why why = { 0 };
	snprintf(secret, sizeof(secret), "secret_file=%s", x->secret);
	char *argv[] = { "planner",
			 "--data",
			 x->dir,
			 "--set",
			 secret,
			 "--set",
			 "planner.http_port=0",
			 "--set",
			 "planner.workers=2",
			 "--set",
			 "planner.cache_bytes=4MiB" };
	struct svc_env env = { .loop = &x->loop,
			       .argc = ARRAY_LEN(argv),
			       .argv = argv,
			       .log = &x->silence,
			       .closed = on_closed,
			       .arg = x };
	CHECK(loop_open(&x->loop) == ERR_NONE);
	enum err e = svc_open(&x->svc.svc, &wpl_def, &env, &why);
	if (e != ERR_NONE)
		fprintf(stderr, "%s\n", why.text);
	CHECK(e == ERR_NONE);
	x->stop.fn = on_stop;
	loop_expect(&x->loop);
	pthread_mutex_lock(&x->lock);
	x->up = true;
	pthread_cond_signal(&x->cond);
	pthread_mutex_unlock(&x->lock);
	loop_run(&x->loop);
	loop_close(&x->loop);
	return NULL;
}

static void server_start(struct server *x)
{
	struct why why = { 0 };
	snprintf(x->dir, sizeof(x->dir), "/tmp/pomelo-race-XXXXXX");
	CHECK(mkdtemp(x->dir));
	snprintf(x->secret, sizeof(x->secret), "%s/secret", x->dir);
	CHECK(secret_new(x->secret, &why) == ERR_NONE);
	x->silence.fn = quiet;
	pthread_mutex_init(&x->lock, NULL);
	pthread_cond_init(&x->cond, NULL);
	CHECK(pthread_create(&x->thread, NULL, serve, x) == 0);
	pthread_mutex_lock(&x->lock);
	while (!x->up)
		pthread_cond_wait(&x->cond, &x->lock);
	pthread_mutex_unlock(&x->lock);
}

static void server_stop(struct server *x)
{
	char cmd[128];
	loop_post(&x->loop, &x->stop);
	CHECK(pthread_join(x->thread, NULL) == 0);
	pthread_cond_destroy(&x->cond);
	pthread_mutex_destroy(&x->lock);
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", x->dir);
	CHECK(system(cmd) == 0); // NOLINT(cert-env33-c): our own mkdtemp name
}

/* ---- clients ---- */

struct texts {
	struct buf source, target;
	char plan[65];
};

struct worker {
	pthread_t thread;
	struct pml *p;
	const struct texts *texts;
	unsigned seed;
	unsigned made, ended; /* plans that came; calls that were ended before */
	bool closing;	      /* the handle or the service goes meanwhile */
};

static void make_texts(struct texts *w)
{
	struct pml_placement *s = NULL, *t = NULL;
	struct pml_plan *plan = NULL;
	struct pml_plan_opts o = PML_PLAN_OPTS_INIT;
	w->source = w->target = BUF_INIT((size_t)64 << 20);
	layout_text(&w->source, TENSORS, 8, 8);
	layout_text(&w->target, TENSORS, 8, 4);
	CHECK(pml_placement_read(w->source.p, w->source.n, PML_PLACEMENT_DRAFT, &s, NULL) == 0);
	CHECK(pml_placement_read(w->target.p, w->target.n, PML_PLACEMENT_DRAFT, &t, NULL) == 0);
	o.source = s;
	o.target = t;
	CHECK(pml_plan_make(&o, &plan, NULL) == 0);
	snprintf(w->plan, sizeof(w->plan), "%s", pml_plan_digest(plan));
	pml_plan_free(plan);
	pml_placement_free(s);
	pml_placement_free(t);
}

static bool ended_early(const struct worker *w, int e)
{
	return e == PML_ERR_CANCELLED || e == PML_ERR_TIMED_OUT ||
	       (w->closing && (e == PML_ERR_CLOSED || e == PML_ERR_UNREACHABLE ||
			       e == PML_ERR_CONN_LOST || e == PML_ERR_SHUTTING_DOWN));
}

static void end_of(struct worker *w, int e, struct pml_plan *plan)
{
	if (e != 0 && !ended_early(w, e))
		fprintf(stderr, "error %d\n", e);
	CHECK(e == 0 || ended_early(w, e));
	if (e == 0)
		CHECK(strcmp(pml_plan_digest(plan), w->texts->plan) == 0);
	if (e == 0)
		pml_plan_free(plan);
	w->made += e == 0;
	w->ended += e != 0;
}

static struct pml_remote_opts sides(const struct worker *w)
{
	struct pml_remote_opts o = PML_REMOTE_OPTS_INIT;
	o.source = (struct pml_remote_side){ w->texts->source.p, w->texts->source.n,
					     PML_PLACEMENT_DRAFT, NULL };
	o.target = (struct pml_remote_side){ w->texts->target.p, w->texts->target.n,
					     PML_PLACEMENT_DRAFT, NULL };
	return o;
}

static void plan_and_wait(struct worker *w, uint64_t deadline_ms)
{
	struct pml_remote_opts o = sides(w);
	struct pml_call_opts c = PML_CALL_OPTS_INIT;
	struct pml_plan *plan = NULL;
	c.deadline_ms = deadline_ms;
	int e = pml_plan_remote(w->p, &o, &c, &plan, NULL);
	end_of(w, e, plan);
}

/* Started; then cancelled at any moment, or given up at once. */
static void start_and_end(struct worker *w, struct pml_cq *cq, bool give_up)
{
	struct pml_remote_opts o = sides(w);
	struct pml_call_opts c = PML_CALL_OPTS_INIT;
	struct pml_op *op = NULL, *got = NULL;
	struct pml_plan *plan = NULL;
	c.deadline_ms = PATIENCE_MS;
	CHECK(pml_plan_remote_start(w->p, &o, &c, cq, w, &op, NULL) == 0);
	usleep((unsigned)rand_r(&w->seed) % (1u << (4 + rand_r(&w->seed) % 13)));
	if (give_up) {
		pml_op_free(op);
		return;
	}
	CHECK(pml_op_cancel(op) == 0);
	CHECK(pml_cq_wait(cq, &got, 1, PATIENCE_MS) == 1 && got == op);
	int e = pml_op_code(op);
	if (e == 0)
		CHECK(pml_op_plan(op, &plan, NULL) == 0);
	end_of(w, e, plan);
	pml_op_free(op);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct pml_cq *cq = NULL;
	CHECK(pml_cq_new(w->p, 8, &cq, NULL) == 0);
	for (unsigned i = 0; i < ROUNDS; i++)
		switch (rand_r(&w->seed) % 4) {
		case 0:
			plan_and_wait(w, PATIENCE_MS);
			break;
		case 1:
			plan_and_wait(w, 1 + (unsigned)rand_r(&w->seed) % 30);
			break;
		default:
			start_and_end(w, cq, rand_r(&w->seed) % 3 == 0);
			break;
		}
	plan_and_wait(w, PATIENCE_MS);
	while (pml_cq_free(cq) == PML_ERR_BUSY)
		usleep(1000);
	return NULL;
}

/* Calls that are under way when their handle is closed, or their service goes. */
struct rest {
	pthread_t thread;
	struct worker w;
	struct pml_cq *cq;
	struct pml_op *op[THREADS];
};

static void *wait_rest(void *arg)
{
	struct rest *r = arg;
	for (unsigned i = 0; i < THREADS; i++) {
		struct pml_op *got = NULL;
		struct pml_plan *plan = NULL;
		CHECK(pml_cq_wait(r->cq, &got, 1, PATIENCE_MS) == 1);
		int e = pml_op_code(got);
		if (e == 0)
			CHECK(pml_op_plan(got, &plan, NULL) == 0);
		end_of(&r->w, e, plan);
		pml_op_free(got);
	}
	return NULL;
}

static void rest_start(struct rest *r, struct pml *p, const struct texts *t)
{
	*r = (struct rest){ .w = { .p = p, .texts = t, .closing = true } };
	struct pml_remote_opts o = sides(&r->w);
	struct pml_call_opts c = PML_CALL_OPTS_INIT;
	c.deadline_ms = PATIENCE_MS;
	CHECK(pml_cq_new(p, THREADS, &r->cq, NULL) == 0);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK(pml_plan_remote_start(p, &o, &c, r->cq, NULL, &r->op[i], NULL) == 0);
	CHECK(pthread_create(&r->thread, NULL, wait_rest, r) == 0);
}

static void rest_end(struct rest *r, unsigned *made, unsigned *ended)
{
	CHECK(pthread_join(r->thread, NULL) == 0);
	CHECK(pml_cq_free(r->cq) == 0);
	*made += r->w.made;
	*ended += r->w.ended;
}

static struct pml *client(const struct server *x)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml *p = NULL;
	o.data = x->dir;
	o.secret_file = x->secret;
	CHECK(pml_open(&o, &p, NULL) == 0);
	return p;
}

static void start_all(struct worker *w, struct pml *const *p, const struct texts *t)
{
	for (unsigned i = 0; i < CLIENTS * THREADS; i++) {
		w[i] = (struct worker){ .p = p[i % CLIENTS], .texts = t, .seed = i + 1 };
		CHECK(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
	}
}

static void join_all(struct worker *w, unsigned *made, unsigned *ended)
{
	for (unsigned i = 0; i < CLIENTS * THREADS; i++) {
		CHECK(pthread_join(w[i].thread, NULL) == 0);
		*made += w[i].made;
		*ended += w[i].ended;
	}
}

int main(void)
{
	static struct server x;
	struct texts t;
	struct worker w[CLIENTS * THREADS];
	struct rest r[CLIENTS];
	struct pml *p[CLIENTS];
	unsigned made = 0, ended = 0;
	make_texts(&t);
	server_start(&x);
	for (unsigned i = 0; i < CLIENTS; i++)
		p[i] = client(&x);
	start_all(w, p, &t);
	join_all(w, &made, &ended);
	CHECK(made >= CLIENTS * THREADS && ended > 0);
	/* one handle goes in the middle of its calls, then the service in that of the other's */
	for (unsigned i = 0; i < CLIENTS; i++)
		rest_start(&r[i], p[i], &t);
	usleep(30000);
	CHECK(pml_close(p[0]) == 0);
	usleep(10000);
	server_stop(&x);
	CHECK(pml_close(p[1]) == 0);
	for (unsigned i = 0; i < CLIENTS; i++)
		rest_end(&r[i], &made, &ended);
	buf_fini(&t.source);
	buf_fini(&t.target);
	printf("%u plans, %u calls ended before theirs\n", made, ended);
	return 0;
}
