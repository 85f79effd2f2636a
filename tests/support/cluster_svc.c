/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/cluster_svc.h"
#include "store/backing.h"
#include "tests/support/meta_fs_sim.h"

#include <stdio.h>
#include <string.h>

#define FLAGS_MAX 32

struct svc_run {
	struct cl_run *run;
	struct svc *svc; /* NULL: closed */
	struct log_capture capture;
	struct meta_fs *fs; /* on the machine's disk: outlives the run there */
};

static void to_events(struct log_capture *cap, const char *line, size_t n)
{
	struct svc_run *x = container_of(cap, struct svc_run, capture);
	const char *topic = memmem(line, n, "topic=", 6); /* the time is in the list already */
	if (!topic)
		return;
	sim_note(cl_sim(x->run->cluster), "%.*s", (int)(line + n - topic - 1), topic);
}

static void on_closed(struct svc *s, void *arg)
{
	struct svc_run *x = arg;
	(void)s;
	free(TAKE(x->svc));
	meta_fs_free(x->fs);
	cl_run_ended(x->run);
}

static void *make_pool(void)
{
	struct pool_backing *b = NULL;
	SIM_CHECK(pool_memory_new(&b) == ERR_NONE, "no memory");
	return b;
}

static void drop_pool(void *ram)
{
	pool_backing_free(ram);
}

static struct pool_backing *backing_on(struct sim_node *n, const char *name)
{
	char key[64];
	snprintf(key, sizeof(key), "pool of %.40s", name);
	return sim_node_ram(n, key, make_pool, drop_pool);
}

struct pool_backing *cl_svc_backing(struct cluster *c, const char *node, const char *name)
{
	return backing_on(sim_node(cl_sim(c), node), name);
}

static enum err start(struct cl_run *r, struct why *why)
{
	struct svc_run *x = r->state;
	const struct cl_svc *arg = r->arg;
	char *argv[FLAGS_MAX + 2] = { (char *)arg->def->exe };
	char dir[64];
	int argc = 1;
	for (const char *const *f = arg->flags; f && *f; f++) {
		SIM_CHECK(argc <= FLAGS_MAX, "more than %d flags", FLAGS_MAX);
		argv[argc++] = (char *)*f;
	}
	x->run = r;
	x->capture.fn = to_events;
	snprintf(dir, sizeof(dir), "/%s/meta", r->name);
	x->fs = meta_fs_sim_new(sim_node_disk(sim_proc_node(r->proc)), dir);
	x->svc = calloc(1, arg->def->size);
	SIM_CHECK(x->svc, "no memory");
	struct pool_backing *pool = NULL;
	if (arg->def->role == ROLE_HOLDER) {
		pool = backing_on(sim_proc_node(r->proc), r->name);
		pool_memory_killed(pool); /* whoever had its lock is no more */
	}
	struct svc_env env = { .loop = &r->loop,
			       .argc = argc,
			       .argv = argv,
			       .listen = &r->addr,
			       .n_listen = 1,
			       .masters = arg->masters,
			       .n_masters = arg->n_masters,
			       .keys = cl_keys(r->cluster),
			       .log = &x->capture,
			       .meta_fs = x->fs,
			       .backing = pool,
			       .fetch = arg->fetch,
			       .fetch_ctx = arg->fetch_ctx,
			       .closed = on_closed,
			       .arg = x };
	return svc_open(x->svc, arg->def, &env, why);
}

static void stop(struct cl_run *r, bool killed)
{
	struct svc_run *x = r->state;
	svc_stop(x->svc, killed ? 0 : x->svc->conf.grace_ms);
}

const struct cl_app cl_svc_app = { sizeof(struct svc_run), start, stop };

struct svc *cl_svc_of(struct cluster *c, const char *name)
{
	struct svc_run *x = cl_state(c, name);
	return x ? x->svc : NULL;
}
