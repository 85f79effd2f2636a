/* SPDX-License-Identifier: Apache-2.0 */
/* The meta store on a real loop and a real folder: writes, snapshots and the loop side by side.
 */
#include "meta/meta.h"

#include <stdio.h>
#include <string.h>

#define APPENDS	 15000
#define INFLIGHT 64

struct run {
	struct loop loop;
	struct log log;
	struct meta *m;
	uint64_t started, done;
	struct meta_append a[INFLIGHT];
	struct meta_counters n;
};

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "race_meta: %s\n", what);
	exit(1);
}

static void on_closed(void *arg)
{
	struct run *r = arg;
	r->m = NULL;
	loop_stop(&r->loop);
}

static void on_done(struct meta_append *a);

static void write_one(struct run *r, struct meta_append *a)
{
	char key[24];
	struct meta_rec rec = { .type = META_TOMB };
	int n = snprintf(key, sizeof(key), "k%llu", (unsigned long long)r->started++ % 700);
	rec.TOMB = (struct msg_meta_tomb){ BYTES_STR("h"),	  0, BYTES_STR("t"),
					   BYTES(key, (size_t)n), 5, 5 };
	*a = (struct meta_append){ .term = META_ANY, .if_seq = META_ANY, .done = on_done };
	a->term = meta_term(meta_state_of(r->m));
	meta_append(r->m, a, &rec, 1);
}

static struct run *run_of(struct meta_append *a)
{
	static struct run run;
	(void)a;
	return &run;
}

static void on_done(struct meta_append *a)
{
	struct run *r = run_of(a);
	must(a->err == ERR_NONE, a->why.text);
	meta_counters(r->m, &r->n);
	r->done++;
	if (r->started < APPENDS)
		write_one(r, a);
	else if (r->done == APPENDS)
		meta_close(r->m, on_closed, r);
}

static void on_holder(struct meta_append *a)
{
	must(a->err == ERR_NONE, a->why.text);
	for (int i = 0; i < INFLIGHT; i++)
		write_one(run_of(a), &run_of(a)->a[i]);
}

static void on_term(struct meta_append *a)
{
	struct run *r = run_of(a);
	struct meta_rec rec = { .type = META_HOLDER,
				.HOLDER = { .id = BYTES_STR("h"), .kind = 1 } };
	must(a->err == ERR_NONE, a->why.text);
	*a = (struct meta_append){ .term = meta_term(meta_state_of(r->m)),
				   .if_seq = META_ANY,
				   .done = on_holder };
	meta_append(r->m, a, &rec, 1);
}

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	struct run *r = ctx;
	must(e == ERR_NONE, why->text);
	r->a[0].done = on_term;
	meta_raise_term(r->m, &r->a[0]);
}

int main(void)
{
	struct run *r = run_of(NULL);
	char dir[] = "/tmp/pomelo-race-meta-XXXXXX", cmd[64];
	must(mkdtemp(dir) != NULL, "no folder");
	r->log = (struct log){ .svc = "race", .fd = 2 };
	log_set_level(LOG_WARN_L);
	const struct meta_opts o = { .dir = dir,
				     .name = "m",
				     .log = &r->log,
				     .log_bytes_max = 64u << 10,
				     .chunk_bytes = 64u << 10,
				     .opened = on_opened,
				     .ctx = r };
	for (int i = 0; i < 3; i++) {
		r->started = r->done = 0;
		must(loop_open(&r->loop) == ERR_NONE, "no loop");
		must(meta_open(&r->loop, &o, &r->m) == ERR_NONE, "no memory");
		loop_run(&r->loop);
		loop_close(&r->loop);
		must(r->n.snapshots > 0, "no snapshot was made");
	}
	snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
	return system(cmd) != 0;
}
