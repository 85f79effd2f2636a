/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meta store on a real folder (POMELO_BENCH_DIR, else /var/tmp): appends a second with one
 * and with 64 in flight, against bare pwrite + fdatasync of the same bytes into a file that was
 * written before; a start over a million records; a look at a million tombstones.
 */
#include "bench.h"
#include "meta/meta.h"
#include "meta/meta_fs.h"
#include "meta/meta_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE_NS (300 * NS_PER_MS)
#define WIDE	  64
#define N_TOMBS	  1000000

struct work {
	char dir[256];
	struct loop loop;
	struct log log;
	struct meta *m;
	int fd; /* the bare file */
	uint64_t started, done, stop_ns;
	uint32_t in_flight;
	struct writer {
		struct meta_append a;
		struct work *w;
		char key[24];
	} writers[WIDE];
	size_t bytes_one, bytes_wide; /* of a write with that many appends */
	struct meta_state *big;
};

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "bench_meta: %s\n", what);
	exit(1);
}

static struct meta_rec tomb(struct bytes key, uint64_t ceiling)
{
	struct meta_rec r = { .type = META_TOMB };
	r.TOMB = (struct msg_meta_tomb){
		BYTES_STR("agent-1"), 0, BYTES_STR("default"), key, ceiling, ceiling
	};
	return r;
}

static void on_done(struct meta_append *a);

static void write_one(struct writer *x)
{
	struct work *w = x->w;
	int n = snprintf(x->key, sizeof(x->key), "kv/%016llx",
			 (unsigned long long)w->started++);
	struct meta_rec r = tomb(BYTES(x->key, (size_t)n), 1000);
	x->a = (struct meta_append){ .term = 1, .if_seq = META_ANY, .done = on_done };
	meta_append(w->m, &x->a, &r, 1);
}

static void on_done(struct meta_append *a)
{
	struct writer *x = container_of(a, struct writer, a);
	struct work *w = x->w;
	must(a->err == ERR_NONE, a->why.text);
	w->done++;
	if (loop_now_ns(&w->loop) < w->stop_ns)
		write_one(x);
	else if (--w->in_flight == 0)
		loop_stop(&w->loop);
}

static double appends_per_s(struct work *w, uint32_t in_flight)
{
	uint64_t start = loop_now_ns(&w->loop), before = w->done;
	w->stop_ns = start + SAMPLE_NS;
	w->in_flight = in_flight;
	for (uint32_t i = 0; i < in_flight; i++)
		write_one(&w->writers[i]);
	loop_run(&w->loop);
	return (double)(w->done - before) * 1e9 / (double)(loop_now_ns(&w->loop) - start);
}

static double bare_per_s(struct work *w, size_t bytes, uint32_t appends)
{
	static uint8_t data[1 << 20];
	uint64_t start = loop_now_ns(&w->loop), n = 0;
	off_t at = 0;
	memset(data, 0x5a, bytes);
	while (loop_now_ns(&w->loop) - start < SAMPLE_NS) {
		must(pwrite(w->fd, data, bytes, at) == (ssize_t)bytes && fdatasync(w->fd) == 0,
		     "the bare file cannot be written");
		at = (at + (off_t)bytes) % (64 << 20);
		n += appends;
	}
	return (double)n * 1e9 / (double)(loop_now_ns(&w->loop) - start);
}

static double one(void *arg)
{
	return appends_per_s(arg, 1);
}
static double bare_one(void *arg)
{
	struct work *w = arg;
	return bare_per_s(w, w->bytes_one, 1);
}
static double wide(void *arg)
{
	return appends_per_s(arg, WIDE);
}
static double bare_wide(void *arg)
{
	struct work *w = arg;
	return bare_per_s(w, w->bytes_wide, WIDE);
}

/* Records a second that a start takes in. */
static double replay(void *arg)
{
	struct work *w = arg;
	struct meta_fs *fs;
	struct meta_state *st;
	struct meta_log *g;
	struct meta_log_opts o = { .name = "big", .chunk_bytes = 1u << 20 };
	struct why why = { 0 };
	must(meta_fs_posix_new(w->dir, &fs, &why) == ERR_NONE, why.text);
	must(meta_state_new(1, &st) == ERR_NONE, "no memory");
	o.fs = fs;
	uint64_t start = loop_now_ns(&w->loop);
	must(meta_log_open(&o, st, &g, &why) == ERR_NONE, why.text);
	double s = (double)(loop_now_ns(&w->loop) - start) / 1e9, n = (double)meta_last_seq(st);
	meta_log_close(g);
	meta_state_free(st);
	meta_fs_free(fs);
	return n / s;
}

static void look(void *arg)
{
	struct work *w = arg;
	const struct meta_holder *h = meta_holder_find(w->big, BYTES_STR("agent-1"));
	char key[24];
	uint64_t k = (w->started += 7919) % N_TOMBS;
	int n = snprintf(key, sizeof(key), "kv/%016llx", (unsigned long long)k);
	must(meta_barred(h, 0, BYTES_STR("default"), BYTES(key, (size_t)n)) > 0,
	     "a tombstone is missing");
}

static double look_ns(void *arg)
{
	return bench_loop_ns(look, arg, 50);
}

/* A store of a million tombstones, written in large frames. */
static void make_big(struct work *w)
{
	struct meta_fs *fs;
	struct meta_log *g;
	struct meta_log_opts o = { .name = "big", .chunk_bytes = 1u << 20 };
	struct buf payload = BUF_INIT(META_PAYLOAD_MAX), body = BUF_INIT(1 << 12);
	struct why why = { 0 };
	must(meta_fs_posix_new(w->dir, &fs, &why) == ERR_NONE, why.text);
	must(meta_state_new(1, &w->big) == ERR_NONE, "no memory");
	o.fs = fs;
	must(meta_log_open(&o, w->big, &g, &why) == ERR_NONE, why.text);
	uint64_t seq = 0, first = 1;
	for (uint64_t k = 0; k <= N_TOMBS; k++) {
		char key[24];
		int n = snprintf(key, sizeof(key), "kv/%016llx", (unsigned long long)(k - 1));
		struct meta_rec r = { .type = META_HOLDER,
				      .HOLDER = { .id = BYTES_STR("agent-1"), .kind = 1 } };
		if (k > 0)
			r = tomb(BYTES(key, (size_t)n), k);
		buf_clear(&body);
		meta_rec_encode(&body, &r);
		meta_payload_add(&payload, ++seq, r.type, buf_bytes(&body));
		must(meta_state_apply(w->big, seq, &r) == ERR_NONE, "no memory");
		if (payload.n < 1u << 20 && k < N_TOMBS)
			continue;
		must(meta_log_append(g, first, (uint32_t)(seq - first + 1), buf_bytes(&payload),
				     &why) == ERR_NONE,
		     why.text);
		first = seq + 1;
		buf_clear(&payload);
	}
	buf_fini(&payload);
	buf_fini(&body);
	meta_log_close(g);
	meta_fs_free(fs);
}

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	must(e == ERR_NONE, why->text);
}

static void on_first(struct meta_append *a)
{
	must(a->err == ERR_NONE, a->why.text);
	loop_stop(&container_of(a, struct writer, a)->w->loop);
}

static void first_records(struct work *w)
{
	struct meta_rec term = { .type = META_TERM, .TERM = { 1 } };
	struct meta_rec h = { .type = META_HOLDER,
			      .HOLDER = {
				      .id = BYTES_STR("agent-1"), .kind = 1, .away = true } };
	for (int i = 0; i < 2; i++) {
		w->writers[0].a = (struct meta_append){ .term = i ? 1 : META_ANY,
							.if_seq = META_ANY,
							.done = on_first };
		meta_append(w->m, &w->writers[0].a, i ? &h : &term, 1);
		loop_run(&w->loop);
	}
}

/* What one write carries, from the store's own counters. */
static size_t bytes_a_write(struct work *w, uint32_t in_flight)
{
	struct meta_counters a, b;
	meta_counters(w->m, &a);
	(void)appends_per_s(w, in_flight);
	meta_counters(w->m, &b);
	return (size_t)((b.bytes_written - a.bytes_written) / (b.writes - a.writes));
}

static void setup(struct work *w)
{
	const char *base = getenv("POMELO_BENCH_DIR");
	char path[512];
	snprintf(w->dir, sizeof(w->dir), "%s/pomelo-bench-meta-XXXXXX",
		 base ? base : "/var/tmp");
	must(mkdtemp(w->dir) != NULL, "no folder");
	w->log = (struct log){ .svc = "bench", .fd = 2 };
	log_set_level(LOG_WARN_L);
	const struct meta_opts o = {
		.dir = w->dir, .name = "m", .log = &w->log, .opened = on_opened
	};
	must(loop_open(&w->loop) == ERR_NONE && meta_open(&w->loop, &o, &w->m) == ERR_NONE,
	     "no memory");
	for (int i = 0; i < WIDE; i++)
		w->writers[i].w = w;
	first_records(w);
	snprintf(path, sizeof(path), "%s/bare", w->dir);
	w->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	must(w->fd >= 0, "no bare file");
	static uint8_t zeros[1 << 20];
	for (int i = 0; i < 66; i++)
		must(pwrite(w->fd, zeros, sizeof(zeros), (off_t)i << 20) == sizeof(zeros),
		     "no space");
	must(fsync(w->fd) == 0, "fsync");
	w->bytes_one = bytes_a_write(w, 1);
	w->bytes_wide = bytes_a_write(w, WIDE);
	make_big(w);
}

static void on_closed(void *arg)
{
	loop_stop(&((struct work *)arg)->loop);
}

int main(int argc, char **argv)
{
	static struct work w;
	char note1[64], note64[64], cmd[300];
	setup(&w);
	snprintf(note1, sizeof(note1), "1 in flight, %zu B a write", w.bytes_one);
	snprintf(note64, sizeof(note64), "64 in flight, %zu B a write", w.bytes_wide);
	const struct bench_row rows[] = {
		{ "meta.append_1", "items/s", false, one, bare_one, "pwrite+fdatasync", 0,
		  note1 },
		{ "meta.append_64", "items/s", false, wide, bare_wide, "pwrite+fdatasync", 0,
		  note64 },
		{ "meta.replay", "items/s", false, replay, NULL, NULL, 0,
		  "a log of 1 M tombstones" },
		{ "meta.barred", "ns", true, look_ns, NULL, NULL, 0,
		  "1 M tombstones of one holder" },
	};
	int rc = bench_main(argc, argv, rows, ARRAY_LEN(rows), &w);
	meta_close(w.m, on_closed, &w);
	loop_run(&w.loop);
	loop_close(&w.loop);
	meta_state_free(w.big);
	close(w.fd);
	snprintf(cmd, sizeof(cmd), "rm -r %s", w.dir);
	return system(cmd) != 0 ? 1 : rc;
}
