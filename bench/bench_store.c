/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store through real processes: this one is the client, a master and an agent run beside it, the
 * pool is in /dev/shm (spec/store.md, Benchmarks). A line on stderr says after each row how much
 * processor time an item took in each of the three, which is what counts where they share two cores.
 *
 *   get_1m_shm, put_1m_shm   objects of 1 MiB between a set of 256 MiB of the caller's and the pool, both
 *                            larger than L3 and touched before; the limit is memcpy between two such
 *                            sets by as many threads as the client copies with
 *   get_1m_tcp               the same gets over data lanes of loopback, every block compared with its sum; the
 *                            limit is plain sockets between two such sets, as many as the client has lanes
 *   put_4k_b32, get_4k_b32, exists_b128
 *                            items a second of one client; the limit is a bare SP echo of the same bytes
 *                            in as many exchanges, as many at a time, by one process with another
 *   get_4k_latency           p50 of one get at a time, as the caller sees it; the limit is a bare SP
 *                            round trip of the same bytes
 *
 *	bench/run store			all of them
 */
#include "store_bed.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
	MIB = 1 << 20,
	SET_MIB = 256,
	BIG_N = 512,   /* objects of 1 MiB a sample */
	BIG_BATCH = 8, /* a call, two calls under way */
	BIG_FLIGHTS = 2,
	PIECE = 256 << 10,
	COPIERS = 2, /* the threads a handle copies with */
	LANES = 4,   /* data lanes of a handle to one agent */
	SMALL = 4096,
	SMALL_N = 32768,
	SMALL_BATCH = 32,
	PROBE_BATCH = 128,
	PROBES = 1 << 17,
	SINGLES = 3000,
	ECHO_MS = 250,
};

static struct world {
	struct bed bed;
	struct bed_raw raw;
	uint8_t *a, *b; /* SET_MIB each */
	bool big_there, small_there, put_warm;
	struct bed_bytes of_put[2], of_get[2], of_probe[2], of_one[2];
} world; /* of this program; rows carry only what to measure */

/* ---- the sets ---- */

static uint8_t *set_new(void)
{
	uint8_t *p = mmap(NULL, (size_t)SET_MIB * MIB, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		bed_die("memory", "no room for the sets");
	for (size_t i = 0; i < (size_t)SET_MIB * MIB; i += 8)
		memcpy(p + i, &(uint64_t){ i * 0x9e3779b97f4a7c15u }, 8);
	return p;
}

static struct world *up(void)
{
	struct world *w = &world;
	if (w->a)
		return w;
	w->a = set_new();
	w->b = set_new();
	bed_up(&w->bed, "2GiB", 200000);
	return w;
}

static void say(const char *row, const struct bed_cpu *c, double scale, const char *per)
{
	fprintf(stderr, "# %s: processor ns %s: client %.0f, master %.0f, agent %.0f\n", row,
		per, c->client * scale, c->master * scale, c->agent * scale);
}

/* ---- 1 MiB ---- */

struct copier {
	pthread_t thread;
	unsigned i;
};

/* Blocks of 1 MiB, every COPIERS-th, in an order that no prefetcher foresees; in pieces of the size that
 * memcpy is quickest with here, which the client uses, too. */
static void *copy_share(void *arg)
{
	const struct copier *c = arg;
	for (unsigned i = c->i; i < BIG_N; i += COPIERS) {
		uint8_t *to = world.b + (size_t)(i * 37 % SET_MIB) * MIB;
		const uint8_t *from = world.a + (size_t)(i * 101 % SET_MIB) * MIB;
		for (size_t at = 0; at < MIB; at += PIECE)
			memcpy(to + at, from + at, PIECE);
	}
	return NULL;
}

static double s_memcpy(void *arg)
{
	struct copier c[COPIERS];
	up();
	double begin = bed_now(), cpu = bed_cpu_now();
	for (unsigned i = 0; i < COPIERS; i++) {
		c[i].i = i;
		if (pthread_create(&c[i].thread, NULL, copy_share, &c[i]) != 0)
			bed_die("thread", "none");
	}
	for (unsigned i = 0; i < COPIERS; i++)
		pthread_join(c[i].thread, NULL);
	double v = (double)BIG_N * MIB / (bed_now() - begin);
	fprintf(stderr, "# memcpy: processor ns a MiB: %.0f\n", (bed_cpu_now() - cpu) / BIG_N);
	return v;
}

static struct bed_work big(enum bed_op op, const char *prefix, uint8_t *mem, uint32_t verify)
{
	return (struct bed_work){ .op = op,
				  .prefix = prefix,
				  .n = op == BED_GET ? SET_MIB : BIG_N,
				  .batch = BIG_BATCH,
				  .flights = BIG_FLIGHTS,
				  .bytes = MIB,
				  .mem = mem,
				  .mem_n = SET_MIB,
				  .verify = verify };
}

static double get_1m(const char *row, uint32_t verify)
{
	struct world *w = up();
	struct bed_cpu cpu, all = { 0 };
	struct bed_work put = big(BED_PUT, "big", w->a, 0);
	struct bed_work get = big(BED_GET, "big", w->b, verify);
	put.n = SET_MIB;
	if (!w->big_there) {
		bed_run(&w->bed, &put, &cpu);
		bed_run(&w->bed, &get, &cpu); /* the pool's pages are mapped now */
		w->big_there = true;
	}
	double s = 0;
	for (int i = 0; i < BIG_N / SET_MIB; i++) {
		s += SET_MIB / bed_run(&w->bed, &get, &cpu);
		all = cpu;
	}
	double v = (double)BIG_N * MIB / s;
	if (memcmp(w->a, w->b, (size_t)SET_MIB * MIB) != 0)
		bed_die(row, "other bytes");
	say(row, &all, 1, "an object");
	return v;
}

static double s_get_1m(void *arg)
{
	return get_1m("store.get_1m_shm", PML_VERIFY_AUTO);
}

static double s_get_1m_verify(void *arg)
{
	return get_1m("store.get_1m_shm_verify", PML_VERIFY_ALWAYS);
}

static double s_get_1m_tcp(void *arg)
{
	struct world *w = up();
	if (!w->big_there) /* put by the quicker way */
		(void)get_1m("store.get_1m_shm", PML_VERIFY_AUTO);
	memset(w->b, 0, (size_t)SET_MIB * MIB);
	bed_tcp(&w->bed, true);
	double v = get_1m("store.get_1m_tcp", PML_VERIFY_AUTO);
	bed_tcp(&w->bed, false);
	return v;
}

static double raw_cpu(const struct bed_raw *r)
{
	clockid_t id;
	struct timespec t;
	if (clock_getcpuclockid(r->pid, &id) != 0 || clock_gettime(id, &t) != 0)
		bed_die("plain sockets", "no clock of the sender");
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double s_raw(void *arg)
{
	struct world *w = up();
	if (!w->raw.pid)
		bed_raw_open(&w->raw, LANES, SET_MIB);
	double here = bed_cpu_now(), there = raw_cpu(&w->raw);
	double v = bed_raw_run(&w->raw, w->b, BIG_N);
	fprintf(stderr, "# plain sockets: processor ns a MiB: receiver %.0f, sender %.0f\n",
		(bed_cpu_now() - here) / BIG_N, (raw_cpu(&w->raw) - there) / BIG_N);
	return v;
}

static double s_put_1m(void *arg)
{
	struct world *w = up();
	struct bed_cpu cpu;
	struct bed_work put = big(BED_PUT, "new", w->a, 0);
	uint64_t used = bed_used(&w->bed);
	if (!w->put_warm) {
		bed_run(&w->bed, &put, &cpu);
		bed_clear(&w->bed, "new", used);
		w->put_warm = true;
	}
	double v = bed_run(&w->bed, &put, &cpu) * MIB;
	bed_clear(&w->bed, "new", used);
	say("store.put_1m_shm", &cpu, 1, "an object");
	return v;
}

/* ---- 4 KiB ---- */

static struct bed_work small(enum bed_op op, const char *prefix, uint8_t *mem)
{
	return (struct bed_work){ .op = op,
				  .prefix = prefix,
				  .n = SMALL_N,
				  .batch = SMALL_BATCH,
				  .flights = BED_FLIGHTS,
				  .bytes = SMALL,
				  .mem = mem,
				  .mem_n = SMALL_N };
}

static double s_put_4k(void *arg)
{
	struct world *w = up();
	struct bed_cpu cpu;
	struct bed_work put = small(BED_PUT, "p", w->a);
	uint64_t used = bed_used(&w->bed);
	if (!w->of_put[0].ask) {
		bed_bytes(&w->bed, &put, w->of_put);
		bed_clear(&w->bed, "p/", used);
	}
	double v = bed_run(&w->bed, &put, &cpu);
	bed_clear(&w->bed, "p/", used);
	say("store.put_4k_b32", &cpu, 1, "an item");
	return v;
}

static double s_put_echo(void *arg)
{
	struct world *w = up();
	if (!w->of_put[0].ask)
		s_put_4k(NULL);
	return bed_echo(&w->bed, w->of_put, 2, BED_FLIGHTS, ECHO_MS) * SMALL_BATCH;
}

static void small_there(struct world *w)
{
	struct bed_cpu cpu;
	struct bed_work put = small(BED_PUT, "s", w->a), get = small(BED_GET, "s", w->b);
	if (w->small_there)
		return;
	bed_run(&w->bed, &put, &cpu);
	bed_bytes(&w->bed, &get, w->of_get);
	get.n = SINGLES;
	get.batch = get.flights = 1;
	bed_bytes(&w->bed, &get, w->of_one);
	w->small_there = true;
}

static double s_get_4k(void *arg)
{
	struct world *w = up();
	struct bed_cpu cpu;
	struct bed_work get = small(BED_GET, "s", w->b);
	small_there(w);
	double v = bed_run(&w->bed, &get, &cpu);
	if (memcmp(w->a, w->b, (size_t)SMALL_N * SMALL) != 0)
		bed_die("store.get_4k_b32", "other bytes");
	say("store.get_4k_b32", &cpu, 1, "an item");
	return v;
}

static double s_get_echo(void *arg)
{
	struct world *w = up();
	small_there(w);
	return bed_echo(&w->bed, w->of_get, 1, BED_FLIGHTS, ECHO_MS) * SMALL_BATCH;
}

static struct bed_work probes(void)
{
	struct bed_work x = small(BED_EXISTS, "s", NULL);
	x.batch = PROBE_BATCH;
	return x;
}

static double s_exists(void *arg)
{
	struct world *w = up();
	struct bed_cpu cpu, all = { 0 };
	struct bed_work x = probes();
	small_there(w);
	if (!w->of_probe[0].ask)
		bed_bytes(&w->bed, &x, w->of_probe);
	double s = 0;
	for (int i = 0; i < PROBES / SMALL_N; i++) {
		s += SMALL_N / bed_run(&w->bed, &x, &cpu);
		all = cpu;
	}
	double v = PROBES / s;
	say("store.exists_b128", &all, 1, "a key");
	return v;
}

static double s_exists_echo(void *arg)
{
	struct world *w = up();
	if (!w->of_probe[0].ask)
		s_exists(NULL);
	return bed_echo(&w->bed, w->of_probe, 1, BED_FLIGHTS, ECHO_MS) * PROBE_BATCH;
}

/* ---- one at a time ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double s_get_one(void *arg)
{
	struct world *w = up();
	static double v[SINGLES];
	struct pml_error err = PML_ERROR_INIT;
	char key[32];
	small_there(w);
	for (unsigned i = 0; i < SINGLES; i++) {
		size_t n = 0;
		int len = snprintf(key, sizeof(key), "s/%08u", i);
		double begin = bed_now();
		if (pml_get(w->bed.p, key, (size_t)len, w->b, SMALL, &n, NULL, &err) != 0)
			bed_die("get", err.text);
		v[i] = (bed_now() - begin) * 1e9;
	}
	qsort(v, SINGLES, sizeof(v[0]), by_value);
	fprintf(stderr, "# store.get_4k_latency: p99 %.1f us\n", v[SINGLES / 100 * 99] / 1000);
	return v[SINGLES / 2];
}

static double s_one_echo(void *arg)
{
	struct world *w = up();
	small_there(w);
	return bed_echo_p50(&w->bed, w->of_one[0], SINGLES);
}

/* clang-format off */
static const struct bench_row rows[] = {
	{ "store.get_1m_shm", "bytes/s", false, s_get_1m, s_memcpy, "memcpy by two threads", 0,
	  "one client, 2 calls of 8 objects of 1 MiB under way, sets of 256 MiB; goal: ratio 0.70" },
	{ "store.get_1m_shm_verify", "bytes/s", false, s_get_1m_verify, s_memcpy, "memcpy by two threads", 0,
	  "the same, hashed again at the target; goal: ratio 0.55" },
	{ "store.put_1m_shm", "bytes/s", false, s_put_1m, s_memcpy, "memcpy by two threads", 0,
	  "one client, 2 calls of 8 objects of 1 MiB under way, hashed; goal: ratio 0.55" },
	{ "store.get_1m_tcp", "bytes/s", false, s_get_1m_tcp, s_raw, "four plain sockets of loopback", 0,
	  "one client, 2 calls of 8 objects of 1 MiB under way, over data lanes; goal: ratio 0.60" },
	{ "store.put_4k_b32", "items/s", false, s_put_4k, s_put_echo, "bare SP echo of the same bytes", 150e3,
	  "one client, 16 calls of 32 objects of 4 KiB under way" },
	{ "store.get_4k_b32", "items/s", false, s_get_4k, s_get_echo, "bare SP echo of the same bytes", 400e3,
	  "one client, 16 calls of 32 objects of 4 KiB under way" },
	{ "store.exists_b128", "keys/s", false, s_exists, s_exists_echo, "bare SP echo of the same bytes", 3e6,
	  "one client, 16 calls of 128 keys under way" },
	{ "store.get_4k_latency", "ns", true, s_get_one, s_one_echo, "bare SP round trip of the same bytes", 0,
	  "p50 of one pml_get at a time; goal: ratio 0.33" },
};
/* clang-format on */

int main(int argc, char **argv)
{
	if (bed_echo_main(argc, argv) || bed_raw_main(argc, argv))
		return 1;
	int rc = bench_main(argc, argv, rows, ARRAY_LEN(rows), NULL);
	bed_raw_close(&world.raw);
	if (world.a)
		bed_down(&world.bed);
	return rc;
}
