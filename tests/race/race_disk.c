/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The durable tier's threads: puts, gets, deletes, scans and evictions of the same objects at once, over a disk
 * in memory and over files. What a get gives is right or not there.
 */
#include "store/disk_cut.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N_IDS  64u
#define N_REQS 24u
#define ROUNDS 1500u

struct world;
struct task {
	struct world *w;
	uint32_t id;
	int kind;
	struct store_put put;
	struct store_get get;
	struct store_del del;
	struct store_scan scan;
	struct store_put_item p;
	struct store_get_item g;
	struct store_del_item d;
	uint8_t *to;
	char key[16];
};

struct world {
	struct loop loop;
	struct log log;
	struct store_be *be;
	bool opened, closed;
	uint64_t rng;
	uint32_t left, flying, n_ok;
	uint8_t *values;
	struct task tasks[N_REQS];
};

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "race_disk: %s\n", what);
	exit(1);
}

static uint64_t chance(struct world *w, uint64_t below)
{
	w->rng = w->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (w->rng >> 33) % below;
}

static struct store_id id_of(struct task *t)
{
	int n = snprintf(t->key, sizeof(t->key), "k%u", t->id);
	return (struct store_id){ BYTES_STR("t"), BYTES(t->key, (size_t)n), 1 };
}

static uint64_t size_of(uint32_t i)
{
	return 1000 + i * 1000;
}

static void next(struct task *t);

static void done(struct world *w, struct task *t)
{
	w->flying--;
	if (w->left > 0)
		next(t);
}

static void put_done(struct store_req *r)
{
	struct task *t = container_of(r, struct task, put.req);
	must(t->p.err == ERR_NONE, err_name(t->p.err));
	done(t->w, t);
}

static void get_done(struct store_req *r)
{
	struct task *t = container_of(r, struct task, get.req);
	must(t->g.err == ERR_NONE || t->g.err == ERR_NOT_FOUND, err_name(t->g.err));
	if (t->g.err == ERR_NONE) {
		must(t->g.got == size_of(t->id) &&
			     memcmp(t->to, t->w->values + t->id, t->g.got) == 0,
		     "wrong bytes");
		t->w->n_ok++;
	}
	done(t->w, t);
}

static void del_done(struct store_req *r)
{
	struct task *t = container_of(r, struct task, del.req);
	must(t->d.err == ERR_NONE, err_name(t->d.err));
	done(t->w, t);
}

static void scan_done(struct store_req *r)
{
	struct task *t = container_of(r, struct task, scan.req);
	store_scan_fini(&t->scan);
	done(t->w, t);
}

static enum err start(struct task *t)
{
	struct world *w = t->w;
	switch (t->kind) {
	case 0:
		t->p = (struct store_put_item){ .id = id_of(t),
						.p = w->values + t->id,
						.n = size_of(t->id) };
		t->p.sum = obj_sum(t->p.p, t->p.n, NULL);
		t->put = (struct store_put){ .req.done = put_done, .items = &t->p, .n = 1 };
		return store_be_put(w->be, &t->put);
	case 1:
		t->g = (struct store_get_item){
			.id = id_of(t), .n = STORE_WHOLE, .to = t->to, .room = 128 << 10
		};
		t->get = (struct store_get){ .req.done = get_done, .items = &t->g, .n = 1 };
		return store_be_get(w->be, &t->get);
	case 2:
		t->d = (struct store_del_item){ .id = id_of(t) };
		t->del = (struct store_del){ .req.done = del_done, .items = &t->d, .n = 1 };
		return store_be_delete(w->be, &t->del);
	default:
		t->scan = (struct store_scan){ .req.done = scan_done, .max_items = 20 };
		return store_be_scan(w->be, &t->scan);
	}
}

static void next(struct task *t)
{
	struct world *w = t->w;
	uint64_t what = chance(w, 100);
	t->id = (uint32_t)chance(w, N_IDS);
	t->kind = what < 35 ? 0 : what < 85 ? 1 : what < 97 ? 2 : 3;
	w->left--;
	w->flying++;
	must(start(t) == ERR_NONE, "refused");
}

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	must(e == ERR_NONE, why ? why->text : "");
	((struct world *)ctx)->opened = true;
}

static void on_closed(void *ctx)
{
	((struct world *)ctx)->closed = true;
}

static void run(const char *backend, const char *dir, struct disk_fs *fs)
{
	static struct world w;
	struct why why = { 0 };
	memset(&w, 0, sizeof(w));
	w.rng = 7;
	w.left = ROUNDS;
	w.log = (struct log){ .svc = "race", .fd = 2 };
	w.values = aligned_alloc(4096, 128 << 10);
	must(w.values != NULL, "no memory");
	for (uint32_t i = 0; i < 128 << 10; i++)
		w.values[i] = (uint8_t)(i * 31 >> 3);
	const struct store_opts o = { .backend = backend,
				      .dir = dir,
				      .fs = fs,
				      .log = &w.log,
				      .limit_bytes = 4 << 20,
				      .segment_bytes = 1 << 20,
				      .readers = 3,
				      .ctx = &w,
				      .opened = on_opened };
	must(loop_open(&w.loop) == ERR_NONE &&
		     store_be_open(&w.loop, &o, &w.be, &why) == ERR_NONE,
	     "cannot open");
	while (!w.opened)
		loop_run_once(&w.loop, true);
	for (uint32_t i = 0; i < N_REQS; i++) {
		w.tasks[i].w = &w;
		w.tasks[i].to = aligned_alloc(4096, 128 << 10);
		next(&w.tasks[i]);
	}
	while (w.flying > 0)
		loop_run_once(&w.loop, true);
	store_be_close(w.be, on_closed, &w);
	while (!w.closed)
		loop_run_once(&w.loop, true);
	loop_close(&w.loop);
	for (uint32_t i = 0; i < N_REQS; i++)
		free(w.tasks[i].to);
	free(w.values);
	printf("%s: %u gets found their object\n", backend, w.n_ok);
	must(w.n_ok > 0, "nothing was ever there");
}

int main(void)
{
	char dir[] = "/tmp/pomelo-race-disk-XXXXXX", cmd[80];
	struct disk_cut *a = disk_cut_new(1), *b = disk_cut_new(2);
	log_set_level(LOG_WARN_L);
	run("log", NULL, disk_cut_fs(a));
	run("file", NULL, disk_cut_fs(b));
	disk_cut_free(a);
	disk_cut_free(b);
	must(mkdtemp(dir) != NULL, "no folder");
	run("log", dir, NULL);
	snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
	return system(cmd) != 0;
}
