/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log backend in one process against fio on the same file system (POMELO_BENCH_DIR, else /var/tmp), same engine
 * (io_uring, O_DIRECT), block size and depth: puts and gets of 1 MiB, gets of 4 KiB. Every byte is hashed, each
 * batch synced; fio syncs as often. BENCH_DISK_GIB says how much each side keeps (8).
 */
#include "bench.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIB	  (1ull << 20)
#define DEPTH	  32u /* ios in flight, both sides */
#define READERS	  2u  /* they share it */
#define BATCH	  32u /* items of a request, and writes of fio between two syncs */
#define REQUESTS  4u  /* under way */
#define SMALL_N	  65536u
#define SAMPLE_NS (2 * NS_PER_S) /* of gets */

struct work {
	char dir[256];
	struct loop loop;
	struct log log;
	struct store_be *be;
	uint8_t *staging; /* REQUESTS x BATCH x 1 MiB */
	uint64_t sums[REQUESTS * BATCH], small_sum;
	uint64_t gib, next_big, n_big;
	uint64_t issued, done, want, rng;
	bool opened, closed, small, reads;
	struct slot {
		struct work *w;
		uint32_t at;
		struct store_put put;
		struct store_get get;
		struct store_put_item p[BATCH];
		struct store_get_item g[BATCH];
		char keys[BATCH][24];
	} slots[REQUESTS];
};

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "bench_disk: %s\n", what);
	exit(1);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static uint64_t chance(struct work *w, uint64_t below)
{
	w->rng = w->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (w->rng >> 33) % below;
}

static struct store_id id_of(struct slot *s, uint32_t i, bool small, uint64_t n)
{
	int len = snprintf(s->keys[i], sizeof(s->keys[i]), "%c/%llu", small ? 's' : 'b',
			   (unsigned long long)n);
	return (struct store_id){ BYTES_STR("bench"), BYTES(s->keys[i], (size_t)len), 1 };
}

static uint8_t *memory_of(struct slot *s, uint32_t i)
{
	return s->w->staging + ((uint64_t)s->at * BATCH + i) * MIB;
}

/* ---- puts ---- */

static void fill_staging(struct work *w)
{
	size_t n = (size_t)REQUESTS * BATCH * MIB;
	for (size_t i = 0; i < n / 8; i++)
		((uint64_t *)(void *)w->staging)[i] = i * 0x9e3779b97f4a7c15ull;
	for (uint32_t i = 0; i < REQUESTS * BATCH; i++)
		w->sums[i] = obj_sum(w->staging + i * MIB, MIB, NULL);
}

static void put_done(struct store_req *r);

static void put_next(struct slot *s)
{
	struct work *w = s->w;
	uint64_t size = w->small ? 4096 : MIB;
	for (uint32_t i = 0; i < BATCH; i++) {
		uint64_t n = w->next_big++;
		s->p[i] = (struct store_put_item){
			.id = id_of(s, i, w->small, n),
			.p = memory_of(s, i),
			.n = size,
			.sum = w->small ? obj_sum(memory_of(s, i), size, NULL)
					: w->sums[s->at * BATCH + i],
		};
	}
	s->put = (struct store_put){ .req.done = put_done, .items = s->p, .n = BATCH };
	w->issued += BATCH;
	must(store_be_put(w->be, &s->put) == ERR_NONE, "a put was refused");
}

static void put_done(struct store_req *r)
{
	struct slot *s = container_of(r, struct slot, put.req);
	struct work *w = s->w;
	for (uint32_t i = 0; i < BATCH; i++)
		must(s->p[i].err == ERR_NONE, err_name(s->p[i].err));
	w->done += BATCH;
	if (w->issued < w->want)
		put_next(s);
}

/* Items, BATCH at a time; seconds. */
static double run_puts(struct work *w, uint64_t items)
{
	w->issued = w->done = 0;
	w->want = items;
	uint64_t start = loop_now_ns(&w->loop);
	for (uint32_t i = 0; i < REQUESTS && w->issued < items; i++)
		put_next(&w->slots[i]);
	while (w->done < w->issued || w->issued < w->want)
		loop_run_once(&w->loop, true);
	return (double)(loop_now_ns(&w->loop) - start) / 1e9;
}

static double put_1m(void *arg)
{
	struct work *w = arg;
	w->small = false;
	fill_staging(w); /* gets have been there */
	uint64_t n = w->gib * 1024 / 8, cpu = cpu_ns();
	double s = run_puts(w, n / BATCH * BATCH);
	fprintf(stderr, "# put: %.2f s of CPU a GiB\n",
		(double)(cpu_ns() - cpu) / 1e9 / ((double)n / 1024));
	return (double)(n / BATCH * BATCH) * (double)MIB / s;
}

/* ---- gets ---- */

static void get_done(struct store_req *r);

static void get_next(struct slot *s)
{
	struct work *w = s->w;
	for (uint32_t i = 0; i < BATCH; i++) {
		uint64_t n =
			w->small ? chance(w, SMALL_N)
				 : w->next_big - 1 - chance(w, MIN_OF(w->next_big, w->n_big));
		s->g[i] = (struct store_get_item){ .id = id_of(s, i, w->small, n),
						   .n = STORE_WHOLE,
						   .to = memory_of(s, i),
						   .room = w->small ? 4096 : MIB };
	}
	s->get = (struct store_get){ .req.done = get_done, .items = s->g, .n = BATCH };
	w->issued += BATCH;
	must(store_be_get(w->be, &s->get) == ERR_NONE, "a get was refused");
}

static void get_done(struct store_req *r)
{
	struct slot *s = container_of(r, struct slot, get.req);
	struct work *w = s->w;
	for (uint32_t i = 0; i < BATCH; i++)
		must(s->g[i].err == ERR_NONE, err_name(s->g[i].err));
	w->done += BATCH;
	if (w->reads)
		get_next(s);
}

static double run_gets(struct work *w)
{
	w->issued = w->done = 0;
	w->reads = true;
	uint64_t start = loop_now_ns(&w->loop), cpu = cpu_ns();
	for (uint32_t i = 0; i < REQUESTS; i++)
		get_next(&w->slots[i]);
	while (loop_now_ns(&w->loop) - start < SAMPLE_NS)
		loop_run_once(&w->loop, true);
	w->reads = false;
	while (w->done < w->issued)
		loop_run_once(&w->loop, true);
	double s = (double)(loop_now_ns(&w->loop) - start) / 1e9;
	fprintf(stderr, "# get: %.2f us of CPU an item\n",
		(double)(cpu_ns() - cpu) / 1e3 / (double)w->done);
	return (double)w->done / s;
}

static double get_1m(void *arg)
{
	struct work *w = arg;
	w->small = false;
	return run_gets(w) * (double)MIB;
}

static double get_4k(void *arg)
{
	struct work *w = arg;
	w->small = true;
	return run_gets(w);
}

/* ---- fio ---- */

static bool have_fio(void)
{
	return system("fio --version >/dev/null 2>&1") == 0;
}

/* Field `at` of its terse line, from 1. */
static double fio(struct work *w, const char *job, unsigned at)
{
	char cmd[700], line[8192];
	snprintf(cmd, sizeof(cmd),
		 "fio --name=x --filename=%s/fio --size=%lluG --ioengine=io_uring --direct=1 "
		 "--iodepth=%u --minimal --terse-version=3 %s",
		 w->dir, (unsigned long long)w->gib, DEPTH, job);
	FILE *f = popen(cmd, "re");
	double v = 0;
	while (f && fgets(line, sizeof(line), f)) {
		char *save = NULL, *field = strtok_r(line, ";", &save);
		for (unsigned i = 1; field && i < at; i++)
			field = strtok_r(NULL, ";", &save);
		if (field)
			v = strtod(field, NULL);
	}
	must(f && pclose(f) == 0 && v > 0, "fio failed");
	return v;
}

static double fio_put(void *arg)
{
	char job[100];
	struct work *w = arg;
	snprintf(job, sizeof(job), "--rw=write --bs=1M --fdatasync=%u --io_size=%lluM", BATCH,
		 (unsigned long long)w->gib * 1024 / 8);
	return fio(w, job, 48) * 1024;
}

static double fio_get_1m(void *arg)
{
	return fio(arg, "--rw=randread --bs=1M --runtime=2 --time_based", 7) * 1024;
}

static double fio_get_4k(void *arg)
{
	return fio(arg, "--rw=randread --bs=4k --runtime=2 --time_based", 8);
}

/* ---- life ---- */

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	must(e == ERR_NONE, why ? why->text : "cannot open");
	((struct work *)ctx)->opened = true;
}

static void on_closed(void *ctx)
{
	((struct work *)ctx)->closed = true;
}

static void setup(struct work *w)
{
	const char *base = getenv("POMELO_BENCH_DIR"), *gib = getenv("BENCH_DISK_GIB");
	struct why why = { 0 };
	w->gib = gib ? strtoull(gib, NULL, 10) : 8;
	must(w->gib >= 1 && w->gib <= 1024, "BENCH_DISK_GIB is 1 to 1024");
	snprintf(w->dir, sizeof(w->dir), "%s/pomelo-bench-disk-XXXXXX",
		 base ? base : "/var/tmp");
	must(mkdtemp(w->dir) != NULL && chdir(w->dir) == 0 && mkdir("disk", 0700) == 0,
	     "no folder");
	w->log = (struct log){ .svc = "bench", .fd = 2 };
	log_set_level(LOG_WARN_L);
	w->n_big = w->gib * 1024 / 2; /* the youngest of these are certainly there */
	size_t n = (size_t)REQUESTS * BATCH * MIB;
	w->staging = aligned_alloc(1 << 21, n);
	must(w->staging != NULL, "no memory");
	fill_staging(w);
	char dir[300];
	snprintf(dir, sizeof(dir), "%s/disk", w->dir);
	const struct bytes area = BYTES(w->staging, n);
	static struct bytes areas[1];
	areas[0] = area;
	const struct store_opts o = { .backend = "log",
				      .dir = dir,
				      .log = &w->log,
				      .limit_bytes = (w->gib + 1) << 30,
				      .readers = READERS,
				      .depth = DEPTH / READERS,
				      .buffers = areas,
				      .n_buffers = 1,
				      .ctx = w,
				      .opened = on_opened };
	must(loop_open(&w->loop) == ERR_NONE &&
		     store_be_open(&w->loop, &o, &w->be, &why) == ERR_NONE,
	     "cannot open");
	while (!w->opened)
		loop_run_once(&w->loop, true);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		w->slots[i].w = w;
		w->slots[i].at = i;
	}
}

/* What gets read: 64 K small ones last, so that no put of the rows before evicts them. */
static void fill(struct work *w, bool fio_too)
{
	w->small = false;
	(void)run_puts(w, w->gib * 1024 * 9 / 8 / BATCH * BATCH);
	uint64_t big = w->next_big;
	w->next_big = 0;
	w->small = true;
	(void)run_puts(w, SMALL_N);
	w->next_big = big;
	if (fio_too)
		(void)fio(w, "--rw=write --bs=1M", 48);
}

static bool lists_only(int argc, char **argv)
{
	return argc == 2 && strcmp(argv[1], "--list") == 0;
}

int main(int argc, char **argv)
{
	static struct work w;
	static char note[160];
	bool list = lists_only(argc, argv), limit = list || have_fio();
	if (!limit)
		fprintf(stderr, "bench_disk: fio is not installed (apt-get install fio): no "
				"limits are measured\n");
	const struct bench_row rows[] = {
		{ "disk.log_get_4k", "items/s", false, get_4k, limit ? fio_get_4k : NULL,
		  "fio randread", 0.70, note },
		{ "disk.log_get", "bytes/s", false, get_1m, limit ? fio_get_1m : NULL,
		  "fio randread", 0.85, note },
		{ "disk.log_put", "bytes/s", false, put_1m, limit ? fio_put : NULL, "fio write",
		  0.80, note },
	};
	snprintf(note, sizeof(note), "O_DIRECT, depth %u, batches of %u, goal is the ratio",
		 DEPTH, BATCH);
	if (list)
		return bench_main(argc, argv, rows, ARRAY_LEN(rows), &w);
	setup(&w);
	fill(&w, limit);
	struct store_stat st;
	store_be_stat(w.be, &st);
	fprintf(stderr, "# %s, %s, %llu GiB\n", st.uring ? "io_uring" : "pread and pwrite",
		st.direct ? "direct" : "cached", (unsigned long long)w.gib);
	int rc = bench_main(argc, argv, rows, ARRAY_LEN(rows), &w);
	store_be_close(w.be, on_closed, &w);
	while (!w.closed)
		loop_run_once(&w.loop, true);
	loop_close(&w.loop);
	free(w.staging);
	char cmd[300];
	snprintf(cmd, sizeof(cmd), "rm -r %s", w.dir);
	return system(cmd) != 0 ? 1 : rc;
}
